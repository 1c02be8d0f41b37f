"""The paper's tables and figures, measured again on the public API of nnnorm.

Not part of the wheel: run it from a checkout with `python -m reproduction`. See README.md.
"""

import sys


def say(text: str) -> None:
    """Print what is being done, to a person at a terminal."""
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr)
