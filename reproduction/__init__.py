"""The paper's tables and figures, reproduced with nnnorm's public API.

Not part of the wheel: run it from a checkout with `python -m reproduction`. See README.md.
"""

import sys


def say(text: str) -> None:
    """Print progress, if the output is a terminal."""
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr)
