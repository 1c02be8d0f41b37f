"""`python -m nnnorm` is the command `nnnorm`."""

from nnnorm.cli import main

main()
