"""Lists of images, texts and sounds from any source, and functions to check and open them.

A folder lists all its images (or sounds), including those in subfolders, sorted by name. A text
file has one entry per line; a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`) has a column of entries.
Paths in a file are relative to the folder of that file. Tar files of webdataset and folders written
by `save_to_disk` are opened by Hugging Face's `datasets`.

Images with more than `MAX_PIXELS` are rejected as decompression bombs. Pixels are RGB as stored:
the EXIF orientation isn't applied, as in the original code of the models. Sounds are mono float32
at the rate of the model: channels are averaged, and other rates are resampled.
"""

import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnnorm.embeddings import FloatArray
from nnnorm.errors import NNNormError, first_line, require
from nnnorm.files import Progress, check_file
from nnnorm.tables import TABLE_SUFFIXES, read_column, read_lines

MAX_PIXELS = 178_956_970  # twice the limit of Pillow's warning: 537 MB once decoded
_SUFFIXES = {
    "images": (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]+:/+\S")


# --- lists ----------------------------------------------------------------------------------------


def list_inputs(source: Path, kind: str = "images", column: str | None = None) -> Sequence[Any]:
    """List images, texts or sounds (``"audio"``) of any source."""
    _reject_urls([str(source)])
    if _is_container(source, kind):
        return Column(_open_container(source), kind, column, source)
    suffix, suffixes = source.suffix.lower(), _SUFFIXES.get(kind, ())
    is_table = suffix in TABLE_SUFFIXES
    if column is not None and not (is_table and source.is_file()):
        raise NNNormError(f"{source} isn't a table with a column {column!r}; leave out the column")
    if suffix in suffixes:
        return [source]
    if suffixes and source.is_dir():
        found = sorted(path for path in source.rglob("*") if path.suffix.lower() in suffixes)
        if not found:
            raise NNNormError(f"{source} has no {kind} ({', '.join(suffixes)}); check the path")
        return found
    if suffix == ".json":
        tables = ", ".join(TABLE_SUFFIXES)
        raise NNNormError(f"{source} is JSON; expected an entry per line, or a table ({tables})")
    check_file(source, "file or folder" if suffixes else "file")
    entries = read_column(source, column) if is_table else read_lines(source)
    if kind == "texts":
        return entries
    _reject_urls(entries)
    return [source.parent / entry for entry in entries]


def _reject_urls(entries: Sequence[str]) -> None:
    for entry in entries:
        if _URL.match(entry):
            raise NNNormError(
                f"{entry} is a URL; download the files first (img2dataset writes tar files, which "
                "can be encoded directly)"
            )


class Column(Sequence[Any]):
    """A column of a data set: texts, Pillow images, or the bytes of sounds."""

    def __init__(self, rows: Any, kind: str, column: str | None, source: Path) -> None:
        datasets = require("datasets", "datasets")
        kinds = {"images": datasets.Image, "audio": datasets.Audio, "texts": datasets.Value}
        own = {name: what for name, what in rows.features.items() if not name.startswith("__")}
        fits = [name for name, what in own.items() if isinstance(what, kinds[kind])]
        name = column or (fits[0] if len(fits) == 1 else None)
        if name is None or name not in rows.features:
            what = "choose a column" if column is None else f"there is no column {column!r}"
            raise NNNormError(f"{kind}: {source}: {what}; it has: {', '.join(rows.features)}")
        if kind == "audio":
            rows = rows.cast_column(name, datasets.Audio(decode=False))
        self._rows, self._name, self._source = rows, name, source

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        if row >= len(self):
            raise IndexError(row)
        try:
            found = self._rows[row][self._name]
        except Exception as error:  # Pillow's readers raise their own kinds of error
            words = f"{self._source}: row {row} can't be read ({first_line(error)})"
            raise NNNormError(words) from error
        if isinstance(found, dict):
            found = found["bytes"] or found["path"]
        if found is None:
            raise NNNormError(f"{self._source}: row {row} has no {self._name}; remove the row")
        return found

    def keys(self) -> list[str] | None:
        """Return the keys of webdataset, or None."""
        return list(self._rows["__key__"]) if "__key__" in self._rows.features else None

    def __str__(self) -> str:
        return f"{self._source}, column {self._name}, {self._rows._fingerprint}"


def _is_container(source: Path, kind: str) -> bool:
    saved = any((source / name).is_file() for name in ("state.json", "dataset_dict.json"))
    if saved or source.suffix.lower() == ".tar":
        return True
    # A folder of images may also have a tar file.
    suffixes = {path.suffix.lower() for path in source.rglob("*")}
    return any(source.glob("*.tar")) and suffixes.isdisjoint(_SUFFIXES.get(kind, ()))


def _open_container(source: Path) -> Any:
    datasets = require("datasets", "datasets")
    datasets.disable_progress_bars()
    files = [str(file) for file in ([source] if source.is_file() else sorted(source.glob("*.tar")))]
    if not files and not source.is_dir():
        raise NNNormError(f"there is no file {source}; check the path")
    try:
        if files:
            rows = datasets.load_dataset("webdataset", data_files=files, split="train")
        else:
            rows = datasets.load_from_disk(str(source))
    except Exception as error:  # the library and its readers raise many kinds
        words = f"{source} can't be read as a data set ({first_line(error)}); is it complete?"
        raise NNNormError(words) from error
    if isinstance(rows, dict):
        raise NNNormError(f"{source} has splits; pass the folder of one: {', '.join(rows)}")
    return rows


# --- files ----------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """An image or sound that can't be used: its position in the list, and the reason."""

    row: int
    reason: str


def check_inputs(
    items: Sequence[Any],
    kind: str = "images",
    *,
    skip: bool = False,
    progress: Progress | None = None,
) -> list[Problem]:
    """Raise an error if image or sound files can't be used; with `skip`, return them.

    The headers are checked, and with `skip` also the pixels of images.
    """
    problems = []
    with quiet_pillow():
        for row, item in enumerate(items):
            if isinstance(item, (str, os.PathLike)):
                try:
                    if kind == "audio":
                        _call_soundfile("info", item)
                    else:
                        with _opened(item) as image:
                            if skip:
                                image.load()
                except NNNormError as error:
                    problems.append(Problem(row, str(error)))
            if progress is not None:
                progress(row + 1, len(items))
    if problems and (not skip or len(problems) == len(items)):
        what = "sounds" if kind == "audio" else kind
        raise NNNormError(
            f"{problems[0].reason} ({len(problems):,} of {len(items):,} {what} can't be used)"
        )
    return problems


def _check_file(path: Path, what: str) -> None:
    if not path.is_file():
        problem = "it is a folder or a device" if path.exists() else "there is no such file"
        raise NNNormError(f"{what} {path}: {problem}; check the path")


# --- images ---------------------------------------------------------------------------------------


def open_image(source: Any) -> Any:
    """Open and decode an image in RGB, from a path or a Pillow image."""
    with quiet_pillow():
        return decode_image(source)


def decode_image(source: Any) -> Any:
    """Do the work of `open_image`, in threads: the caller silences Pillow's warnings."""
    if isinstance(source, require("PIL.Image", "encoders").Image):
        return _to_rgb(source, "an image")
    if not isinstance(source, (str, os.PathLike)):
        raise NNNormError(f"an image must be a path or a Pillow image; got {type(source).__name__}")
    with _opened(source) as image:
        return _to_rgb(image, f"image {source}")


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings in all threads; enter it once, outside the threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


@contextmanager
def _opened(source: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an image and check its header, without reading its pixels."""
    pillow = require("PIL.Image", "encoders")
    path = Path(source)
    _check_file(path, "image")
    try:
        with pillow.open(path) as image:
            _check_header(image, f"image {path}")
            yield image
    except NNNormError:
        raise
    except Exception as error:  # each of Pillow's readers raises its own kind of error
        words = f"image {path} can't be read ({first_line(error)}); is it too large or truncated?"
        raise NNNormError(words) from error


def _to_rgb(image: Any, name: str) -> Any:
    _check_header(image, name)
    if image.mode == "RGB":  # a copy would hold the GIL
        image.load()
        return image
    return image.convert("RGB")


def _check_header(image: Any, name: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        size = f"{width} x {height} pixels; at most {MAX_PIXELS:,} pixels"
        raise NNNormError(f"{name} is too large ({size}); scale it down")
    if image.mode[0] in "IF":  # Pillow would clip their values, which makes most of them white
        mode = f"more than 8 bits per channel (Pillow's mode {image.mode})"
        raise NNNormError(f"{name} has {mode}; save it as 8-bit RGB or gray first")


# --- sounds ---------------------------------------------------------------------------------------


def read_sound(source: Any, rate: int) -> FloatArray:
    """Read a sound as mono float32 at `rate`, from a path, the bytes of a file, or samples."""
    name = f"sound {source}" if isinstance(source, (str, os.PathLike)) else "a sound"
    if isinstance(source, (str, os.PathLike, bytes)):
        channels, found = _call_soundfile("read", source, dtype="float32", always_2d=True)
        samples = channels.mean(axis=1)
        if found != rate and len(samples):
            samples = require("scipy.signal", "audio").resample_poly(samples, rate, found)
    else:
        samples = np.asarray(source)
        if samples.ndim != 1:
            raise NNNormError(f"{name} must be mono, shape (n_samples,); got {samples.shape}")
    if len(samples) == 0:
        raise NNNormError(f"{name} is empty; remove it")
    if not np.isfinite(samples).all():
        raise NNNormError(f"{name} has samples that are not finite; convert it again")
    return np.asarray(samples, dtype=np.float32)


def _call_soundfile(function: str, source: Any, **options: Any) -> Any:
    soundfile, name = require("soundfile", "audio"), "a sound"
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    else:
        name = f"sound {source}"
        _check_file(Path(source), "sound")
    try:
        return getattr(soundfile, function)(source, **options)
    except (soundfile.SoundFileError, OSError) as error:
        words = f"{name} can't be read ({first_line(error)}); is it truncated, or not a sound?"
        raise NNNormError(words) from error
