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

from nnnorm.errors import NNNormError, first_line, require

FloatArray: TypeAlias = npt.NDArray[np.float32]


def read_sound(source: Any, rate: int) -> FloatArray:
    """Read a sound as mono float32 at `rate`, from a path, the bytes of a file, or samples."""
    name = f"sound {source}" if isinstance(source, (str, os.PathLike)) else "a sound"
    if isinstance(source, (str, os.PathLike, bytes)):
        channels, found = _call("read", source, name, dtype="float32", always_2d=True)
        samples = _resample(channels, found, rate)
    else:
        samples = np.asarray(source, dtype=np.float32)
        if samples.ndim != 1:
            raise NNNormError(f"{name} must be mono, shape (n_samples,); got {samples.shape}")
    if len(samples) == 0:
        raise NNNormError(f"{name} is empty; remove it")
    if not np.isfinite(samples).all():
        raise NNNormError(f"{name} has samples that are not finite; convert it again")
    return samples


def check_sounds(sounds: Sequence[Any]) -> None:
    """Check the headers of all sound files before long work; raise for the first bad one."""
    errors = []
    for sound in sounds:
        if isinstance(sound, (str, os.PathLike)):
            try:
                _call("info", sound, f"sound {sound}")
            except NNNormError as error:
                errors.append(error)
    if errors:
        raise NNNormError(f"{errors[0]} ({len(errors)} of {len(sounds)} sounds can't be used)")


def _call(function: str, source: Any, name: str, **options: Any) -> Any:
    soundfile = require("soundfile", "audio")
    place = io.BytesIO(source) if isinstance(source, bytes) else Path(source)
    if isinstance(place, Path) and not place.is_file():
        raise NNNormError(f"{name}: there is no such file; check the path")
    try:
        return getattr(soundfile, function)(place, **options)
    except (soundfile.SoundFileError, OSError) as error:
        raise NNNormError(
            f"{name} can't be read ({first_line(error)}); is it cut short, or not a sound?"
        ) from error


def _resample(channels: FloatArray, found: int, rate: int) -> FloatArray:
    mono: FloatArray = channels.mean(axis=1)
    if found == rate or len(mono) == 0:
        return mono
    common = gcd(rate, found)
    resample = require("scipy.signal", "audio").resample_poly
    resampled: FloatArray = resample(mono, rate // common, found // common).astype(np.float32)
    return resampled
