"""Checks that the pictures of a list exist and can be read, with Pillow."""

import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io import Progress


class Problem(NamedTuple):
    """A picture that can't be used: its place in the list, its path, and the reason."""

    row: int
    image: str
    reason: str


def check_images(
    images: Sequence[str],
    *,
    skip: bool = False,
    decode: bool = False,
    progress: Progress | None = None,
) -> list[Problem]:
    """Raise if pictures are missing or can't be read, or return them with `skip`.

    Parameters
    ----------
    images : sequence of str
    skip : bool
        Return the problems instead of raising; the caller removes those rows.
    decode : bool
        Decode every picture completely, which also finds files that are cut short; otherwise only
        its header is read.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    list of Problem

    Examples
    --------
    >>> check_images(["nowhere.jpg"])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: 1 of 1 pictures can't be used: nowhere.jpg is not there. ...
    """
    pillow = require("PIL.Image", "images")
    problems = []
    for row, image in enumerate(images):
        if reason := _find_problem(image, pillow, decode):
            problems.append(Problem(row, image, reason))
        if progress is not None:
            progress(row + 1, len(images))
    if problems and (not skip or len(problems) == len(images)):
        listed = "; ".join(f"{problem.image} {problem.reason}" for problem in problems[:5])
        more = "; …" if len(problems) > 5 else ""
        hint = "Give the right folder, or leave them out with skip=True (--skip-broken)"
        hint = "Is it the right folder?" if len(problems) == len(images) else hint
        raise NNNormError(
            f"{len(problems):,} of {len(images):,} pictures can't be used: {listed}{more}. {hint}"
        )
    return problems


def _find_problem(image: str, pillow: Any, decode: bool) -> str | None:
    """Return the reason why a picture can't be used, or None."""
    if not os.path.exists(image):
        return "is not there"
    if not os.path.isfile(image):
        return "is not a file"
    try:
        with warnings.catch_warnings():
            # Pillow warns about large pictures and rejects those of twice that size.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            with pillow.open(image) as picture:
                if decode:
                    picture.load()
    except Exception as error:  # decoders raise errors of many kinds
        return f"can't be read ({first_line(error)})"
    return None
