"""Lists of images, texts and sounds from folders, text files, tables, tar files and data sets.

A folder gives all its images (or sounds), including those of subfolders, sorted by name. A text
file has one entry per line; a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`) has a column of entries.
Paths in a file are relative to the folder of that file. Tar files of webdataset and folders written
by `save_to_disk` are opened by Hugging Face's `datasets`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.tables import TABLE_SUFFIXES, read_column, read_lines

_SUFFIXES = {
    "images": (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
_URL = re.compile(r"(?i)[a-z][a-z0-9+.-]+:/+\S")


def list_inputs(source: Path, kind: str = "images", column: str | None = None) -> Sequence[Any]:
    """List images, texts or sounds of any source."""
    _reject_urls([str(source)])
    if _is_container(source, kind):
        return _Column(_open_container(source), kind, column, source)
    if kind == "texts":
        return _entries(source, kind, column)
    suffixes = _SUFFIXES[kind]
    if source.is_dir():
        _reject_column(source, column)
        found = sorted(path for path in source.rglob("*") if path.suffix.lower() in suffixes)
        if not found:
            raise NNNormError(f"{kind}: {source} has no files of {', '.join(suffixes)}")
        return found
    if source.suffix.lower() in suffixes:
        _reject_column(source, column)
        return [source]
    return [source.parent / entry for entry in _entries(source, kind, column)]


def list_files(source: Path, kind: str = "images", column: str | None = None) -> Sequence[Any]:
    """List the images (or the ``"audio"``) of a source; see `list_inputs`."""
    return list_inputs(source, kind, column)


def list_texts(source: Path, column: str | None = None) -> list[str]:
    r"""List the texts of a source; see `list_inputs`."""
    return list(list_inputs(source, "texts", column))


def list_ids(items: Sequence[Any]) -> list[str] | None:
    """Return the keys of the samples of tar files; None for other inputs."""
    return items.keys() if isinstance(items, _Column) else None


class _Column(Sequence[Any]):
    """A column of a data set: texts, Pillow images, or the bytes of sounds."""

    def __init__(self, rows: Any, kind: str, column: str | None, source: Path) -> None:
        datasets = require("datasets", "datasets")
        kinds = {
            "images": datasets.Image,
            "audio": datasets.Audio,
            "texts": datasets.Value,
        }
        fits = [name for name, what in rows.features.items() if isinstance(what, kinds[kind])]
        fits = [name for name in fits if not name.startswith("__")]
        name = column or (fits[0] if len(fits) == 1 else None)
        if name is None or name not in rows.features:
            what = "name a column" if column is None else f"there is no column {column!r}"
            raise NNNormError(f"{kind}: {source}: {what}; it has: {', '.join(rows.features)}")
        if kind == "audio":
            rows = rows.cast_column(name, datasets.Audio(decode=False))
        self._rows, self._name, self._source = rows, name, source

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        try:
            found = self._rows[row][self._name]
        except Exception as error:  # Pillow's readers raise their own kinds of error
            raise NNNormError(
                f"{self._source}: row {row} can't be read ({first_line(error)})"
            ) from error
        if isinstance(found, dict):
            found = found["bytes"] or found["path"]
        if found is None:
            raise NNNormError(f"{self._source}: row {row} has nothing in column {self._name}")
        return found

    def keys(self) -> list[str] | None:
        """Return the keys of webdataset."""
        return list(self._rows["__key__"]) if "__key__" in self._rows.features else None

    def __str__(self) -> str:
        return f"{self._source}, column {self._name}, {self._rows._fingerprint}"


def _is_container(source: Path, kind: str) -> bool:
    if source.suffix.lower() == ".tar":
        return True
    if not source.is_dir():
        return False
    if any((source / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return True
    # A folder of pictures may hold a tar file next to them.
    plain = _SUFFIXES.get(kind, ())
    return any(source.glob("*.tar")) and not any(
        path.suffix.lower() in plain for path in source.rglob("*")
    )


def _open_container(source: Path) -> Any:
    datasets = require("datasets", "datasets")
    datasets.disable_progress_bars()
    try:
        if source.is_dir() and not any(source.glob("*.tar")):
            rows = datasets.load_from_disk(str(source))
        else:
            files = [source] if source.is_file() else sorted(source.glob("*.tar"))
            if not files:
                raise NNNormError(f"there is no file {source}; check the path")
            rows = datasets.load_dataset(
                "webdataset", data_files=[str(file) for file in files], split="train"
            )
    except NNNormError:
        raise
    except Exception as error:  # the library and its readers raise many kinds
        raise NNNormError(
            f"{source} can't be read as a data set ({first_line(error)}); is it complete?"
        ) from error
    if isinstance(rows, dict):
        raise NNNormError(
            f"{source} has the splits {', '.join(rows)}; name the folder of one of them"
        )
    return rows


def _entries(source: Path, kind: str, column: str | None) -> list[str]:
    if source.is_dir():
        raise NNNormError(f"{kind}: {source} is a folder; expected a file with a text per line")
    if not source.is_file():
        raise NNNormError(f"{kind}: there is no file or folder {source}; check the path")
    if source.suffix.lower() in TABLE_SUFFIXES:
        found = read_column(source, column)
    elif source.suffix.lower() == ".json":
        raise NNNormError(
            f"{kind}: {source} is JSON; expected a text file with an entry per line, or a table "
            f"({', '.join(TABLE_SUFFIXES)})"
        )
    else:
        _reject_column(source, column)
        found = read_lines(source)
    if kind != "texts":
        _reject_urls(found)
    return found


def _reject_urls(entries: Sequence[str]) -> None:
    for entry in entries:
        if _URL.match(entry):
            raise NNNormError(
                f"{entry} is a URL; download its files first (img2dataset writes tar files, which "
                "can be encoded as they are)"
            )


def _reject_column(source: Path, column: str | None) -> None:
    if column is not None:
        raise NNNormError(f"{source} is not a table and has no column {column!r}; leave it out")
