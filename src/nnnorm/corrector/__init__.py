"""`Corrector`: a method, its settings and its bank, kept together for items of next week."""

from nnnorm.corrector.corrector import Corrector, Moved, check_method
