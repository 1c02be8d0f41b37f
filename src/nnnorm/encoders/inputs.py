"""Lists of images, texts and sounds out of what people have: folders, list files, tables.

A folder gives all its images (or sounds), subfolders too, in the order of their names. A list file
has one entry per line; a table (`.csv`, `.tsv`) has a column of them. Paths in a file are meant
from where that file lies.
"""

import csv
from pathlib import Path
from typing import Any

from nnnorm.errors import NNNormError, first_line

__all__ = ["list_files", "list_texts"]

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
_TABLES = {".csv": ",", ".tsv": "\t"}


def list_files(source: Path, kind: str = "images", column: str | None = None) -> list[Path]:
    """List the images (or the ``"audio"``) of a folder, a list file or a table.

    Parameters
    ----------
    source : Path
        A folder, ``.csv`` or ``.tsv`` with a column of paths, or a text file of paths; or one file.
    kind : {"images", "audio"}
        Which files of a folder count.
    column : str, optional
        Of a table.

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
    r"""List the texts of a file with one per line, or of a column of a table.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "captions.csv"
    >>> _ = path.write_text('id,caption\n1,"a dog, running"\n')
    >>> list_texts(path, "caption")
    ['a dog, running']
    """
    return _entries(source, "texts", column)


def _entries(source: Path, kind: str, column: str | None) -> list[str]:
    if source.is_dir():
        raise NNNormError(f"{kind}: {source} is a folder; expected a file with a text per line")
    if not source.is_file():
        raise NNNormError(f"{kind}: there is no file or folder {source}; check the path")
    delimiter = _TABLES.get(source.suffix.lower())
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            if delimiter is not None:
                table = csv.DictReader(file, delimiter=delimiter, strict=True)
                entries = _read_column(table, source, column)
            else:
                _refuse_column(source, column)
                text = file.read().replace("\r\n", "\n").removesuffix("\n")
                entries = text.split("\n") if text else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise NNNormError(
            f"{kind}: {source} can't be read as UTF-8 text ({first_line(error)}); "
            "expected one entry per line, or a table (.csv, .tsv)"
        ) from error
    if not entries:
        raise NNNormError(f"{kind}: {source} is empty; expected at least one entry")
    empty = [place for place, entry in enumerate(entries) if not entry.strip()]
    if empty:
        raise NNNormError(
            f"{kind} ({source}): entry {empty[0] + 1} is empty ({len(empty)} such); every row "
            "needs one: remove or fill it"
        )
    return entries


def _read_column(table: Any, source: Path, column: str | None) -> list[str]:
    names = list(table.fieldnames or [])
    if column is None and len(names) == 1:
        column = names[0]
    if column not in names:
        wanted = "say which column" if column is None else f"there is no column {column!r}"
        raise NNNormError(f"{source}: {wanted}; it has {', '.join(names) or 'none'}")
    rows = list(table)
    for number, row in enumerate(rows, start=1):
        if any(cell.strip() for cell in row.get(None, ())):  # a text with a comma would be cut
            raise NNNormError(
                f"{source}: row {number} has more cells than the header's {len(names)}; put a text "
                'with a comma in quotes, "like, this"'
            )
    return [row[column] or "" for row in rows]


def _refuse_column(source: Path, column: str | None) -> None:
    if column is not None:
        raise NNNormError(f"{source} is no table, so it has no column {column!r}; leave it out")
