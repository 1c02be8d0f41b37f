"""Lists of images, texts and sounds from folders, text files, tables, tar files and data sets.

A folder gives all its images (or sounds), including those of subfolders, sorted by name. A text
file has one entry per line; a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`) has a column of entries.
Paths in a file are relative to the folder of that file. Tar files and folders of Hugging Face's
datasets are read in place (`containers.py`).
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nnnorm.encoders.containers import (
    Sample,
    Stored,
    expand_ranges,
    is_saved_dataset,
    list_saved_files,
    read_caption,
    read_samples,
    read_saved_texts,
)
from nnnorm.errors import NNNormError
from nnnorm.io import TABLE_SUFFIXES, read_column, read_lines

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
_ADDRESS = re.compile(r"(?i)[a-z][a-z0-9+.-]+:/+\S")


class Listing(NamedTuple):
    """What is to be encoded.

    Attributes
    ----------
    items : list
        Paths, texts or files inside tar files.
    ids : list of str or None
        The keys of the samples of tar files, which are unique; None for other inputs.
    """

    items: list[Any]
    ids: list[str] | None = None


def list_inputs(source: Path, kind: str = "images", column: str | None = None) -> Listing:
    """List images, texts or sounds of any source.

    Parameters
    ----------
    source : Path
        A folder, a table, a text file with an entry per line, one image or sound, a tar file, a
        range of them (``{00000..00010}.tar``), a folder of them, or a folder written by
        `save_to_disk` of Hugging Face's datasets.
    kind : {"images", "texts", "audio"}
    column : str, optional
        The column of a table or a data set; may be left out if there is only one. For texts of tar
        files, the key of the ``.json`` that holds the caption, instead of the ``.txt``.

    Returns
    -------
    Listing
        Not yet opened.

    Examples
    --------
    >>> list_inputs(Path("https://example.org/photos.txt"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: https:/example.org/photos.txt is an address in the network; ...
    """
    _refuse_addresses([str(source)])
    if tars := _find_tars(source, kind):
        return _list_samples(tars, kind, column)
    if kind == "texts":
        if source.is_dir() and is_saved_dataset(source):
            return Listing(read_saved_texts(source, column))
        return Listing(_entries(source, kind, column))
    if source.is_dir() and is_saved_dataset(source):
        return Listing(list_saved_files(source, column))
    return Listing(_list_paths(source, kind, column))


def list_files(source: Path, kind: str = "images", column: str | None = None) -> list[Any]:
    """List the images (or the ``"audio"``) of a source; see `list_inputs`.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "b.png").write_bytes(b""), (folder / "a.png").write_bytes(b"")
    >>> [path.name for path in list_files(folder)]
    ['a.png', 'b.png']
    """
    return list_inputs(source, kind, column).items


def list_texts(source: Path, column: str | None = None) -> list[str]:
    r"""List the texts of a source; see `list_inputs`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "captions.csv"
    >>> _ = path.write_text('id,caption\n1,"a dog, running"\n')
    >>> list_texts(path, "caption")
    ['a dog, running']
    """
    return list_inputs(source, "texts", column).items


def check_all(paths: Sequence[Any], check: Callable[[Any], Any], kind: str) -> None:
    """Check all files; raise the first error, with the number of files that can't be used.

    Examples
    --------
    >>> check_all(["a.png"], lambda path: None, "images")
    """
    errors = []
    for path in paths:
        try:
            check(path)
        except NNNormError as error:
            errors.append(error)
    if errors:
        raise NNNormError(f"{errors[0]} ({len(errors)} of {len(paths)} {kind} can't be used)")


def _suffixes(kind: str) -> tuple[str, ...]:
    return _IMAGES if kind == "images" else _SOUNDS


def _list_paths(source: Path, kind: str, column: str | None) -> list[Path]:
    suffixes = _suffixes(kind)
    if source.is_dir():
        _refuse_column(source, column)
        found = sorted(path for path in source.rglob("*") if path.suffix.lower() in suffixes)
        if not found:
            raise NNNormError(f"{kind}: {source} has no files of {', '.join(suffixes)}")
        return found
    if source.suffix.lower() in suffixes:
        _refuse_column(source, column)
        return [source]
    return [source.parent / entry for entry in _entries(source, kind, column)]


def _find_tars(source: Path, kind: str) -> list[Path]:
    """Return the tar files that a source names; none if it is another kind of source."""
    if source.is_dir():
        # A folder of pictures may hold a tar file beside them.
        found = sorted(source.glob("*.tar"))
        plain = kind != "texts" and found and any(source.glob("*")) and _has_files(source, kind)
        return [] if plain else found
    if source.suffix.lower() != ".tar":
        return []
    return [source] if source.exists() else expand_ranges(str(source))


def _has_files(folder: Path, kind: str) -> bool:
    return any(path.suffix.lower() in _suffixes(kind) for path in folder.rglob("*"))


def _list_samples(tars: Sequence[Path], kind: str, column: str | None) -> Listing:
    if kind != "texts" and column is not None:
        raise NNNormError(f"{tars[0]} is a tar file and has no column {column!r}; leave it out")
    items: list[Any] = []
    keys: list[tuple[Path, str]] = []
    failed: list[str] = []
    for tar in tars:
        for sample in read_samples(tar):
            keys.append((tar, sample.key))
            try:
                items.append(
                    read_caption(sample, column) if kind == "texts" else _find_member(sample, kind)
                )
            except NNNormError as error:
                failed.append(f"{tar}: {error}")
    if failed:
        raise NNNormError(f"{failed[0]} ({len(failed)} of {len(keys)} samples can't be used)")
    # A key may come again in another file, and its name in another folder; ids must differ.
    ids = [key for _, key in keys]
    if len(set(ids)) < len(ids):
        ids = [f"{tar.stem}/{key}" for tar, key in keys]
    if len(set(ids)) < len(ids):
        ids = [f"{tar.with_suffix('').as_posix()}/{key}" for tar, key in keys]
    return Listing(items, ids)


def _find_member(sample: Sample, kind: str) -> Stored:
    """Return the one image or sound of a sample."""
    suffixes = _suffixes(kind)
    found = [stored for name, stored in sample.members.items() if name in suffixes]
    if len(found) != 1:
        what = "image" if kind == "images" else "sound"
        amount = f"no {what}" if not found else f"{len(found)} {what}s"
        raise NNNormError(
            f"sample {sample.key} has {amount}; expected one of {', '.join(suffixes)}"
        )
    return found[0]


def _entries(source: Path, kind: str, column: str | None) -> list[str]:
    suffix = source.suffix.lower()
    if source.is_dir():
        raise NNNormError(f"{kind}: {source} is a folder; expected a file with a text per line")
    if not source.is_file():
        raise NNNormError(f"{kind}: there is no file or folder {source}; check the path")
    if suffix in TABLE_SUFFIXES:
        found = read_column(source, column)
    elif suffix == ".json":
        raise NNNormError(
            f"{kind}: {source} is JSON; expected a text file with an entry per line, or a table "
            f"({', '.join(TABLE_SUFFIXES)})"
        )
    else:
        _refuse_column(source, column)
        found = read_lines(source)
    if kind != "texts":
        _refuse_addresses(found)
    return found


def _refuse_addresses(entries: Sequence[str]) -> None:
    for entry in entries:
        if _ADDRESS.match(entry):
            raise NNNormError(
                f"{entry} is an address in the network; only files are encoded, since what an "
                "address gives may change or fail half-way: download them first (img2dataset "
                "writes tar files, which are read in place)"
            )


def _refuse_column(source: Path, column: str | None) -> None:
    if column is not None:
        raise NNNormError(f"{source} is not a table and has no column {column!r}; leave it out")
