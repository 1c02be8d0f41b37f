"""Images, opened safely with Pillow and prepared for a model.

The header of an image is checked before it is decoded: an image of more than `MAX_PIXELS` is
refused as a decompression bomb. Pixels are RGB as stored; the EXIF orientation is not applied, as
in the original code of the models. `decode_image` may be called by several threads at once.
"""

import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.containers import Stored
from nnnorm.encoders.inputs import check_all
from nnnorm.errors import NNNormError, first_line, require

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Twice the limit of Pillow's warning: 537 MB once decoded.
MAX_PIXELS = 178_956_970


def open_image(source: Any) -> Any:
    """Open and decode an image in RGB, from a path, a member of a tar file or a Pillow image.

    Parameters
    ----------
    source : str, PathLike, Stored or PIL.Image.Image

    Returns
    -------
    PIL.Image.Image
        Decoded, in mode RGB.

    Examples
    --------
    >>> open_image("nowhere.png")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: image nowhere.png: there is no such file; check the path
    """
    with quiet_pillow():
        return decode_image(source)


def decode_image(source: Any) -> Any:
    """Do the work of `open_image`, with Pillow's warnings: for threads within `quiet_pillow`.

    Examples
    --------
    >>> from PIL import Image
    >>> decode_image(Image.new("L", (2, 2))).mode
    'RGB'
    """
    pillow = require("PIL.Image", "encoders")
    if isinstance(source, pillow.Image):
        return _to_rgb(source, "an image")
    if not isinstance(source, (str, os.PathLike, Stored)):
        raise NNNormError(f"an image must be a path or a Pillow image; got {type(source).__name__}")
    with _reading(source) as image:
        return _to_rgb(image, f"image {source}")


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings of large images, palettes and odd metadata, in all threads.

    Filters belong to the whole process, so this is entered once around the work of threads.

    Examples
    --------
    >>> with quiet_pillow():
    ...     pass
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def check_images(paths: Sequence[Any]) -> None:
    """Check the headers of all images before long work; raise for the first that can't be used.

    Examples
    --------
    >>> check_images(["nowhere.png", "never.png"])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: image nowhere.png: there is no such file; check the path (2 of 2 ...
    """

    def check(path: Any) -> None:
        with _reading(path) as image:
            _check_depth(image, f"image {path}")

    with quiet_pillow():
        check_all(paths, check, "images")


def square_pixels(
    images: Sequence[Any], size: int, mean: Sequence[float], std: Sequence[float]
) -> FloatArray:
    """Resize images to a square (bicubic, ignoring the aspect ratio), scale and normalise them.

    Parameters
    ----------
    images : sequence of PIL.Image.Image
        In RGB.
    size : int
        Side of the square in pixels.
    mean, std : three floats
        Of each channel, in 0 to 1.

    Returns
    -------
    ndarray, shape (n_images, 3, size, size)
        Ready for the model.

    Examples
    --------
    >>> from PIL import Image
    >>> grey = Image.new("RGB", (30, 20), (255, 0, 255))
    >>> square_pixels([grey], 2, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))[0, :, 0, 0].tolist()
    [1.0, -1.0, 1.0]
    """
    bicubic = require("PIL.Image", "encoders").Resampling.BICUBIC
    small = [np.asarray(image.resize((size, size), bicubic)) for image in images]
    pixels = np.stack(small).astype(np.float32) / 255
    pixels = (pixels - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))


@contextmanager
def _reading(path: Any) -> Iterator[Any]:
    """Open an image, and explain what goes wrong while it is read."""
    try:
        with _opened(path) as image:
            yield image
    except NNNormError:
        raise
    except Exception as error:  # each of Pillow's readers raises its own kind of error
        raise NNNormError(
            f"image {path} can't be read ({first_line(error)}); is it cut short, or no image?"
        ) from error


def _opened(source: Any) -> Any:
    """Open lazily: the header is read, the pixels are not."""
    pillow = require("PIL.Image", "encoders")
    if isinstance(source, Stored):
        place: Any = io.BytesIO(source.read())
    else:
        place = Path(source)
        if not place.exists():
            raise NNNormError(f"image {place}: there is no such file; check the path")
        if not place.is_file():
            raise NNNormError(f"image {place}: it is a folder or a device; expected an image file")
    try:
        image = pillow.open(place)
    except pillow.DecompressionBombError as error:
        counted = re.search(r"\d+ pixels", str(error))
        raise NNNormError(
            _bomb(f"image {source}", counted[0] if counted else "too many pixels")
        ) from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        image.close()
        raise NNNormError(_bomb(f"image {source}", f"{width} x {height} pixels"))
    return image


def _to_rgb(image: Any, name: str) -> Any:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise NNNormError(_bomb(name, f"{width} x {height} pixels"))
    _check_depth(image, name)
    if image.mode == "RGB":  # a copy would hold the interpreter
        image.load()
        return image
    return image.convert("RGB")


def _check_depth(image: Any, name: str) -> None:
    if image.mode[0] in "IF":  # Pillow would clip their values, which makes most of them white
        raise NNNormError(
            f"{name} has more than 8 bits per channel (Pillow's mode {image.mode}); "
            "save it as 8-bit RGB or grey first"
        )


def _bomb(name: str, what: str) -> str:
    return (
        f"{name} is too large ({what}; at most {MAX_PIXELS:,} pixels): "
        "a decompression bomb? Scale it down if it is not"
    )
