"""Lists of images, texts and sounds from folders, text files and tables.

A folder gives all its images (or sounds), including those of subfolders, sorted by name. A text
file has one entry per line; a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`) has a column of entries.
Paths in a file are relative to the folder of that file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nnnorm.errors import NNNormError
from nnnorm.io import TABLE_SUFFIXES, read_column, read_lines

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SOUNDS = (".wav", ".flac", ".ogg", ".mp3")


def list_files(source: Path, kind: str = "images", column: str | None = None) -> list[Path]:
    """List the images (or the ``"audio"``) of a folder, a list file or a table.

    Parameters
    ----------
    source : Path
        A folder, a table with a column of paths, a text file with a path per line, or one file.
    kind : {"images", "audio"}
        The files of a folder to list.
    column : str, optional
        The column of a table; may be left out if there is only one.

    Returns
    -------
    list of Path
        Not yet opened.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "b.png").write_bytes(b""), (folder / "a.png").write_bytes(b"")
    >>> [path.name for path in list_files(folder)]
    ['a.png', 'b.png']
    """
    suffixes = _IMAGES if kind == "images" else _SOUNDS
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


def list_texts(source: Path, column: str | None = None) -> list[str]:
    r"""List the texts of a file with one text per line, or of a column of a table.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "captions.csv"
    >>> _ = path.write_text('id,caption\n1,"a dog, running"\n')
    >>> list_texts(path, "caption")
    ['a dog, running']
    """
    return _entries(source, "texts", column)


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


def _entries(source: Path, kind: str, column: str | None) -> list[str]:
    suffix = source.suffix.lower()
    if source.is_dir():
        raise NNNormError(f"{kind}: {source} is a folder; expected a file with a text per line")
    if not source.is_file():
        raise NNNormError(f"{kind}: there is no file or folder {source}; check the path")
    if suffix in TABLE_SUFFIXES:
        return read_column(source, column)
    if suffix == ".json":
        raise NNNormError(
            f"{kind}: {source} is JSON; expected a text file with an entry per line, or a table "
            f"({', '.join(TABLE_SUFFIXES)})"
        )
    _refuse_column(source, column)
    return read_lines(source)


def _refuse_column(source: Path, column: str | None) -> None:
    if column is not None:
        raise NNNormError(f"{source} is not a table and has no column {column!r}; leave it out")
