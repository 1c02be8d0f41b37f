"""Images, opened safely with Pillow.

The header of an image is checked before it is decoded: an image of more than `MAX_PIXELS` is
rejected as a decompression bomb. Pixels are RGB as stored; the EXIF orientation is not applied, as
in the original code of the models.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.files import Progress

MAX_PIXELS = 178_956_970  # twice the limit of Pillow's warning: 537 MB once decoded


def open_image(source: Any) -> Any:
    """Open and decode an image in RGB, from a path or a Pillow image."""
    with quiet_pillow():
        return decode_image(source)


def decode_image(source: Any) -> Any:
    """Do the work of `open_image`, with Pillow's warnings: for threads within `quiet_pillow`."""
    pillow = require("PIL.Image", "encoders")
    if isinstance(source, pillow.Image):
        return _to_rgb(source, "an image")
    if not isinstance(source, (str, os.PathLike)):
        raise NNNormError(f"an image must be a path or a Pillow image; got {type(source).__name__}")
    with _opened(source) as image:
        return _to_rgb(image, f"image {source}")


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings, in all threads: entered once around the work of threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


class Problem(NamedTuple):
    """An image that can't be used: its place in the list, and the reason, which names it."""

    row: int
    reason: str


def check_images(
    images: Sequence[Any],
    *,
    skip: bool = False,
    decode: bool = False,
    progress: Progress | None = None,
) -> list[Problem]:
    """Raise if image files are missing or can't be used, or return them with `skip`."""
    problems = []
    with quiet_pillow():
        for row, image in enumerate(images):
            if isinstance(image, (str, os.PathLike)):
                try:
                    with _opened(image) as opened:
                        if decode:
                            opened.load()
                except NNNormError as error:
                    problems.append(Problem(row, str(error)))
            if progress is not None:
                progress(row + 1, len(images))
    if problems and (not skip or len(problems) == len(images)):
        raise NNNormError(
            f"{problems[0].reason} ({len(problems):,} of {len(images):,} images can't be used)"
        )
    return problems


@contextmanager
def _opened(source: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an image: the header is read and checked, the pixels are not."""
    pillow = require("PIL.Image", "encoders")
    path = Path(source)
    if not path.exists():
        raise NNNormError(f"image {path}: there is no such file; check the path")
    if not path.is_file():
        raise NNNormError(f"image {path}: it is a folder or a device; expected an image file")
    try:
        with pillow.open(path) as image:
            _check_header(image, f"image {path}")
            yield image
    except NNNormError:
        raise
    except pillow.DecompressionBombError as error:
        raise NNNormError(_bomb(f"image {path}", "too many pixels")) from error
    except Exception as error:  # each of Pillow's readers raises its own kind of error
        raise NNNormError(
            f"image {path} can't be read ({first_line(error)}); is it cut short, or not an image?"
        ) from error


def _to_rgb(image: Any, name: str) -> Any:
    _check_header(image, name)
    if image.mode == "RGB":  # a copy would hold the interpreter
        image.load()
        return image
    return image.convert("RGB")


def _check_header(image: Any, name: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise NNNormError(_bomb(name, f"{width} x {height} pixels"))
    if image.mode[0] in "IF":  # Pillow would clip their values, which makes most of them white
        raise NNNormError(
            f"{name} has more than 8 bits per channel (Pillow's mode {image.mode}); "
            "save it as 8-bit RGB or grey first"
        )


def _bomb(name: str, what: str) -> str:
    return f"{name} is too large ({what}; at most {MAX_PIXELS:,} pixels); scale it down"
