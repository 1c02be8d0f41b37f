"""`Corrector`: a method, its settings and its bank, kept together for items of next week.

    fit ──► method       which methods it takes, with the numbers that were settled
            references   the references it is fitted on, kept in float16
            norms        the norms it expects of later rows
            bounds       the norm of all rows it stores, with room for any item
    refit ► moved        how far values moved
    load ─► files        its file

`corrector` is the class, which calls these in that order; none of them knows it.
"""

from nnnorm.corrector.corrector import Corrector
from nnnorm.corrector.method import check_method
from nnnorm.corrector.refit_report import RefitReport
