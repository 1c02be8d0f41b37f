"""Are the pictures of a list there, and are they pictures? Listed, skipped only when told to.

Without any library: a file that is absent, empty, or begins like no picture (the error page of a
web server, saved as a .jpg). With `decode=True` every picture is read to its end by Pillow
(`pip install 'nnnorm[images]'`), which finds those that are cut short, and refuses those that
would unpack to more pixels than is sane.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io import Progress

__all__ = ["Problem", "check_images", "find_problems"]

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
        Its place in the list.
    image : str
    reason : str
    """

    row: int
    image: str
    reason: str


def find_problems(
    images: Sequence[str], *, decode: bool = False, progress: Progress | None = None
) -> list[Problem]:
    """List the pictures that are not there or can't be read.

    Parameters
    ----------
    images : sequence of str
        Paths.
    decode : bool
        Read each to its end (Pillow); without it only the first bytes are looked at.
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
    """List the pictures that can't be used, or raise with the first few unless told to skip them.

    Parameters
    ----------
    images : sequence of str
    skip : bool
        Return the problems instead of raising; the caller leaves those rows out.
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
    """Why a picture can't be used, or None."""
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
                # Pillow warns of large pictures, and refuses those of twice that size: a bomb.
                warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
                with pillow.open(image) as picture:
                    picture.load()
    except Exception as error:  # decoders raise many kinds: each is a picture that can't be read
        return f"can't be read ({first_line(error)})"
    return None
