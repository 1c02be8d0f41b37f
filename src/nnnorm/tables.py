"""The one reader of CSV, TSV, JSONL and JSON, of columns of parquet files, and of lists of lines.

CSV and TSV are UTF-8, with or without a BOM. The first line is the header. Cells are quoted as in
RFC 4180: a cell in double quotes may hold separators and line breaks, and a quote in it is doubled.
Every row has as many cells as the header, blank lines are skipped, spaces around a cell are
dropped. JSONL has one object per line; its values are texts or numbers. Errors name the line.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from nnnorm.arrays import Ids, read_cells
from nnnorm.errors import NNNormError, first_line

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = (*_SEPARATORS, ".jsonl", ".parquet")
# Longer lines are not one object per line; the csv module bounds a cell at 131,072 characters.
_LONGEST_LINE = 2**24

PathLike: TypeAlias = str | os.PathLike[str]
# Names the columns to read, given the header.
_Choose: TypeAlias = Callable[[list[str]], Sequence[str]]
# Where a row is ("line 3"), and its chosen cells.
_Rows: TypeAlias = Iterator[tuple[str, dict[str, Any]]]


def read_columns(
    path: PathLike, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Read columns of a CSV, TSV, JSONL or parquet file as text."""

    def choose(header: list[str]) -> list[str]:
        _check_columns(path, needed, header)
        return [name for name in dict.fromkeys((*needed, *optional)) if name in header]

    return _read(path, choose, needed)


def read_column(path: PathLike, column: str | None = None) -> list[str]:
    """Read one column of a table as text; the name may be left out if there is only one."""

    def choose(header: list[str]) -> list[str]:
        name = header[0] if column is None and len(header) == 1 else column
        if name is None or name not in header:
            wanted = "name a column" if column is None else f"there is no column {column!r}"
            raise NNNormError(f"{path}: {wanted}; it has: {', '.join(header) or 'none'}")
        return [name]

    (cells,) = _read(path, choose, None).values()
    return cells


def read_all_columns(path: PathLike) -> dict[str, list[str]]:
    """Read all columns of a CSV, TSV, JSONL or parquet file as text; a missing value is empty."""
    return _read(path, lambda header: header, ())


def read_lines(path: PathLike) -> list[str]:
    """Read a text file with one entry per line."""
    with _open_text(path) as file:
        text = file.read().replace("\r\n", "\n").removesuffix("\n")
    lines = text.split("\n") if text else []
    if not lines:
        raise NNNormError(f"{path} is empty; expected at least one line")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise NNNormError(f"{path}: line {number} is empty; fill or remove it")
    return lines


def read_jsonl(path: PathLike) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line."""
    with _open_text(path) as file:
        return [entry for _, entry in _objects(path, file)]


def read_json(path: PathLike, what: str) -> Any:
    """Read a JSON file, or raise an error that says why it can't be read."""
    if not os.path.isfile(path):
        raise NNNormError(f"there is no file {path}; expected {what}")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise NNNormError(
            f"{path} can't be read as JSON ({first_line(error)}); expected {what}. "
            "Is it cut short, or another kind of file?"
        ) from error


def read_rows(path: PathLike, needed: Sequence[str]) -> _Rows:
    """Read columns of a CSV, TSV or JSONL file row by row, in bounded memory."""

    def choose(header: list[str]) -> Sequence[str]:
        return _check_columns(path, needed, header)

    suffix = Path(path).suffix.lower()
    with _open_text(path) as file:
        if suffix == ".jsonl":
            for where, entry in _objects(path, file):
                choose(list(entry))
                yield where, {name: entry[name] for name in needed}
        else:
            yield from _separated(Path(path), file, _SEPARATORS[suffix], choose)


def _check_columns(path: PathLike, needed: Sequence[str], header: list[str]) -> Sequence[str]:
    if missing := [name for name in needed if name not in header]:
        raise NNNormError(
            f"{path} needs the column{'s' if len(needed) > 1 else ''} {', '.join(needed)}; "
            f"{missing[0]} is not there, it has: {', '.join(header) or 'none'}"
        )
    return needed


def _read(path: PathLike, choose: _Choose, needed: Sequence[str] | None) -> dict[str, list[str]]:
    """Read the chosen columns; those of `needed` (all, if None) must have a value in every row."""
    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise NNNormError(
            f"{path}: a table must end in {', '.join(TABLE_SUFFIXES[:-1])} or {TABLE_SUFFIXES[-1]};"
            f" got the suffix {suffix!r}"
        )
    columns: dict[str, list[str]] = {}
    for where, row in _rows(Path(path), suffix, choose):
        for name, cell in row.items():
            text = _text(path, where, name, cell)
            if not text and (needed is None or name in needed):
                raise NNNormError(f"{path}: {where} has nothing in the column {name}")
            columns.setdefault(name, []).append(text)
    if not columns:
        raise NNNormError(f"{path} has no rows; is it cut short?")
    return columns


def _rows(path: Path, suffix: str, choose: _Choose) -> _Rows:
    if suffix == ".parquet":
        _check_there(path)
        cells = read_cells(path, choose)
        for number, row in enumerate(zip(*cells.values(), strict=True)):
            yield f"row {number}", dict(zip(cells, row, strict=True))
        return
    with _open_text(path) as file:
        if suffix == ".jsonl":
            yield from _chosen_keys(path, file, choose)
        else:
            yield from _separated(path, file, _SEPARATORS[suffix], choose)


def _separated(path: Path, file: TextIO, separator: str, choose: _Choose) -> _Rows:
    reader = csv.reader(file, delimiter=separator, strict=True)
    try:
        rows = ((f"line {reader.line_num}", row) for row in reader if row)
        header = [cell.strip() for cell in next(rows, ("", []))[1]]
        places = {name: header.index(name) for name in choose(header)}
        if twice := [name for name in places if header.count(name) > 1]:
            raise NNNormError(f"{path} has the column {twice[0]} twice; rename one of them")
        empty: str | None = None  # rows without a value are allowed at the end only
        for where, row in rows:
            if not any(cell.strip() for cell in row):
                empty = empty or where
                continue
            if empty:
                raise NNNormError(f"{path}: {empty} has no values; fill or remove it")
            if len(row) < len(header) or any(cell.strip() for cell in row[len(header) :]):
                raise NNNormError(
                    f"{path}: {where} has {len(row)} cells, the header {len(header)}; put a text "
                    'with a separator in quotes, "like, this"'
                )
            yield where, {name: row[place].strip() for name, place in places.items()}
    except csv.Error as error:
        raise NNNormError(
            f"{path}: line {reader.line_num} can't be read ({error}); a cell that begins with a "
            'quote must end with one, and quotes inside it are doubled: "a ""grey"" cat"'
        ) from error


def _chosen_keys(path: Path, file: TextIO, choose: _Choose) -> _Rows:
    found = list(_objects(path, file))
    names = choose(list(dict.fromkeys(key for _, entry in found for key in entry)))
    for where, entry in found:
        yield where, {name: entry.get(name) for name in names}


def _objects(path: PathLike, file: TextIO) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if not line.strip():
            continue
        try:
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"longer than {_LONGEST_LINE:,} characters")
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError(f"got {_kind(entry)}")
        except (ValueError, RecursionError) as error:
            raise NNNormError(
                f"{path}: line {number} is not a JSON object ({first_line(error)}); expected one "
                'object per line, such as {"caption": "a dog"}'
            ) from error
        yield f"line {number}", entry


def _text(path: PathLike, where: str, name: str, cell: Any) -> str:
    if isinstance(cell, (dict, list, bytes)) or (isinstance(cell, float) and math.isnan(cell)):
        raise NNNormError(
            f"{path}: {where} has {_kind(cell)} in the column {name}; expected a text or a number"
        )
    return "" if cell is None else str(cell).strip()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", type(None): "null", str: "a text"}
    return names.get(type(value), f"{value!r}")


def _check_there(path: PathLike) -> None:
    if os.path.isdir(path):
        raise NNNormError(f"{path} is a folder; expected a file")
    if not os.path.isfile(path):
        raise NNNormError(f"there is no file {path}; check the path")


@contextmanager
def _open_text(path: PathLike) -> Iterator[TextIO]:
    """Open a UTF-8 file for reading; a byte that is not UTF-8 is reported with its line."""
    _check_there(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise NNNormError(f"{path} can't be read ({error.strerror}); check it") from error
    except UnicodeDecodeError as error:
        raise NNNormError(
            f"{path}: line {_find_bad_line(path)} is not UTF-8 text ({first_line(error)}); save "
            "the file as UTF-8"
        ) from error


def _find_bad_line(path: PathLike) -> int:
    with open(path, "rb") as file:
        lines = enumerate(file, start=1)
        return next((n for n, line in lines if not _is_utf8(line)), 1)


def _is_utf8(line: bytes) -> bool:
    try:
        return line.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


def check_ids(ids: Any, n_items: int, *, name: str = "gallery") -> Ids:
    """Return ids as an array of int64 or str, or raise unless there is a different one per item."""
    # An object array keeps the values apart that numpy would turn into strings: ["a", 1].
    array = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    if array.shape != (n_items,):
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}, shape ({n_items},); got "
            f"shape {array.shape}"
        )
    if array.dtype.kind == "O":
        array = _narrowed(array, name)
    if array.dtype.kind not in "iuU":
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}; got {array.dtype}"
        )
    if array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max:
        raise NNNormError(f"ids of {name} must fit in 64 bits with a sign; got {array.max()}")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    kinds, first, count = np.unique(array, return_index=True, return_counts=True)
    if len(kinds) != n_items:
        twice = int(np.argmax(count > 1))
        places = np.flatnonzero(array == kinds[twice])
        raise NNNormError(
            f"ids of {name} must be unique, but {kinds[twice]} occurs at positions {first[twice]} "
            f"and {places[1]}; give each item an id of its own"
        )
    return array


def _narrowed(array: Ids, name: str) -> Ids:
    if all(isinstance(value, str) for value in array):
        return array.astype(str)
    wrong = [value for value in array if isinstance(value, bool) or not _is_whole(value)]
    strings = [value for value in wrong if isinstance(value, str)]
    if strings and len(strings) == len(wrong):
        raise NNNormError(
            f"ids of {name} mix whole numbers and strings (such as {strings[0]!r}); give all of "
            "them as strings"
        )
    if wrong:
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}; got {wrong[0]!r}"
        )
    try:
        return array.astype(np.int64)
    except OverflowError:
        raise NNNormError(f"ids of {name} must fit in 64 bits with a sign") from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer))
