"""Checks that the pictures of a list exist and can be read.

Without any library this finds files that are missing, empty, or do not begin like a picture (such
as the error page of a web server saved as .jpg). With `decode=True` Pillow
(`pip install 'nnnorm[images]'`) decodes every picture completely, which also finds files that are
cut short, and refuses files that would unpack to an unreasonable number of pixels.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io import Progress

_BEGINNINGS = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\x00",  # TIFF
    b"MM\x00*",
    b"RIFF",  # WebP
)


class Problem(NamedTuple):
    """A picture that can't be used.

    Attributes
    ----------
    row : int
        Its position in the list.
    image : str
    reason : str
    """

    row: int
    image: str
    reason: str


def find_problems(
    images: Sequence[str], *, decode: bool = False, progress: Progress | None = None
) -> list[Problem]:
    """List the pictures that are missing or can't be read.

    Parameters
    ----------
    images : sequence of str
        Paths.
    decode : bool
        Decode every picture with Pillow; otherwise only the first bytes are checked.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    list of Problem

    Examples
    --------
    >>> find_problems(["nowhere.jpg"])
    [Problem(row=0, image='nowhere.jpg', reason='is not there')]
    """
    pillow = require("PIL.Image", "images") if decode else None
    problems = []
    for row, image in enumerate(images):
        if reason := _look(image, pillow):
            problems.append(Problem(row, image, reason))
        if progress is not None:
            progress(row + 1, len(images))
    return problems


def check_images(
    images: Sequence[str],
    *,
    skip: bool = False,
    decode: bool = False,
    progress: Progress | None = None,
) -> list[Problem]:
    """Raise an error that lists the first pictures that can't be used, or return them with `skip`.

    Parameters
    ----------
    images : sequence of str
    skip : bool
        Return the problems instead of raising; the caller removes those rows.
    decode : bool
    progress : callable, optional

    Returns
    -------
    list of Problem

    Examples
    --------
    >>> check_images(["nowhere.jpg"])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: 1 of 1 pictures can't be used: nowhere.jpg is not there. ...
    """
    problems = find_problems(images, decode=decode, progress=progress)
    if problems and (not skip or len(problems) == len(images)):
        listed = "; ".join(f"{problem.image} {problem.reason}" for problem in problems[:5])
        more = "; …" if len(problems) > 5 else ""
        hint = (
            "Is it the right folder?"
            if len(problems) == len(images)
            else "Give the right folder, or leave them out with skip=True (--skip-broken)"
        )
        raise NNNormError(
            f"{len(problems):,} of {len(images):,} pictures can't be used: {listed}{more}. {hint}"
        )
    return problems


def _look(image: str, pillow: Any) -> str | None:
    """Return the reason why a picture can't be used, or None."""
    if not os.path.exists(image):
        return "is not there"
    if not os.path.isfile(image):
        return "is no file"
    try:
        with open(image, "rb") as file:
            start = file.read(12)
        if not start:
            return "is empty"
        if not start.startswith(_BEGINNINGS):
            return "is no picture (it begins like none)"
        if pillow is not None:
            with warnings.catch_warnings():
                # Pillow warns about large pictures and refuses those of twice that size.
                warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
                with pillow.open(image) as picture:
                    picture.load()
    except Exception as error:  # decoders raise errors of many kinds
        return f"can't be read ({first_line(error)})"
    return None
