"""Reproduces the paper's tables and figures with nnnorm's public API.

It isn't part of the wheel: run `python -m reproduction` in a clone of the repository (README.md).
"""

import sys


def show_progress(text: str) -> None:
    """Print progress to stderr if it is a terminal."""
    if sys.stderr.isatty():
        print(f"{text} …", file=sys.stderr)
