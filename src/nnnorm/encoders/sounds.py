"""Sounds from files: mono, float32, at the sampling rate of a model.

Needs soundfile and scipy (`pip install 'nnnorm[audio]'`), which read WAV, FLAC, OGG and MP3.
Channels are averaged; other rates are resampled with a polyphase filter.
"""

import io
import os
from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.containers import Stored
from nnnorm.encoders.inputs import check_all
from nnnorm.errors import NNNormError, first_line, require

FloatArray: TypeAlias = npt.NDArray[np.float32]


def read_sound(source: Any, rate: int) -> FloatArray:
    """Read a sound as mono float32 at `rate`.

    Parameters
    ----------
    source : str, PathLike, Stored or ndarray
        A file, a member of a tar file, or samples of shape ``(n_samples,)`` that are already at
        `rate`.
    rate : int
        Sampling rate of the result, in samples per second.

    Returns
    -------
    ndarray, shape (n_samples,)

    Examples
    --------
    >>> read_sound(np.zeros(4), 48_000).dtype
    dtype('float32')
    >>> read_sound("nowhere.wav", 48_000)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: sound nowhere.wav: there is no such file; check the path
    """
    name = "a sound"
    if isinstance(source, (str, os.PathLike, Stored)):
        name = f"sound {source}"
        samples = _read_file(source, name, rate)
    else:
        samples = np.asarray(source, dtype=np.float32)
        if samples.ndim != 1:
            raise NNNormError(f"{name} must be mono, shape (n_samples,); got {samples.shape}")
    if len(samples) == 0:
        raise NNNormError(f"{name} is empty; remove it")
    if not np.isfinite(samples).all():
        raise NNNormError(f"{name} has samples that are not finite; convert it anew")
    return samples


def check_sounds(paths: Sequence[Any]) -> None:
    """Check the headers of all sounds before long work; raise for the first that can't be used.

    Examples
    --------
    >>> check_sounds(["nowhere.wav", "never.wav"])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: sound nowhere.wav: there is no such file; check the path (2 of 2 ...
    """
    info = require("soundfile", "audio").info
    check_all(paths, lambda path: _opened(info, path, f"sound {path}"), "sounds")


def _opened(read: Any, source: Any, name: str, **options: Any) -> Any:
    soundfile = require("soundfile", "audio")
    if isinstance(source, Stored):
        place: Any = io.BytesIO(source.read())
    elif not (place := Path(source)).is_file():
        raise NNNormError(f"{name}: there is no such file; check the path")
    try:
        return read(place, **options)
    except (soundfile.SoundFileError, OSError) as error:
        raise NNNormError(
            f"{name} can't be read ({first_line(error)}); is it cut short, or no sound?"
        ) from error


def _read_file(source: Any, name: str, rate: int) -> FloatArray:
    soundfile = require("soundfile", "audio")
    channels, found = _opened(soundfile.read, source, name, dtype="float32", always_2d=True)
    mono: FloatArray = channels.mean(axis=1)
    if found == rate or len(mono) == 0:
        return mono
    common = gcd(rate, found)
    resample = require("scipy.signal", "audio").resample_poly
    resampled: FloatArray = resample(mono, rate // common, found // common).astype(np.float32)
    return resampled
