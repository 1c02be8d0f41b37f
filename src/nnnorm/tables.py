"""Tables (CSV, TSV, JSONL, parquet), text files, JSON, ids, and query logs.

CSV and TSV files are UTF-8, with or without a BOM. The first line is the header. Cells are quoted
as in RFC 4180: a cell in double quotes may contain separators and line breaks, and quotes in it are
doubled. Every row has as many cells as the header. Blank lines and spaces around a cell are
ignored. A JSONL file has one object per line, with text or numbers as values. Errors name the line.

A query log is a table with an embedding per row, and optional columns of times and counts. In CSV
and TSV, an embedding is the text of a list, ``[0.1, 0.2]``, with or without commas. In JSONL, it is
a list. Times are dates or seconds since 1970. Dates are ISO 8601 (or like 20260501), in UTC if they
have no offset.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import Ids, check_columns, check_names, map_npy, read_batches, read_cells
from nnnorm.errors import NNNormError, first_line
from nnnorm.files import PathLike, check_file, reading

FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
# The position of a row ("line 3"), and its cells.
_Rows: TypeAlias = Iterator[tuple[str, dict[str, Any]]]

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = (*_SEPARATORS, ".jsonl", ".parquet")
_PART_ROWS = 8192  # rows of a log to read at a time


def read_columns(
    path: PathLike, needed: Sequence[str] | None = (), optional: Sequence[str] | None = ()
) -> dict[str, list[str]]:
    """Read columns of a CSV, TSV, JSONL or parquet file as text.

    Columns in `needed` must have a value in every row; None means the only column of the table.
    Missing values of columns in `optional` are empty; None means all other columns.
    """

    def choose(header: list[str]) -> list[str]:
        if needed is None and len(header) != 1:
            raise NNNormError(f"{path}: name a column; it has: {', '.join(header) or 'none'}")
        check_columns(path, header if needed is None else needed, header)
        wanted = header if needed is None or optional is None else (*needed, *optional)
        return [name for name in dict.fromkeys(wanted) if name in header]

    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise NNNormError(
            f"{path}: a table must have the suffix {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}; got the suffix {suffix!r}"
        )
    if suffix == ".parquet":
        check_file(path)
        cells = read_cells(Path(path), choose)
        places = [f"row {number}" for number in range(len(next(iter(cells.values()), [])))]
    else:
        rows = list(_text_rows(path))
        places = [where for where, _ in rows]
        header = list(dict.fromkeys(name for _, row in rows for name in row))
        names = choose(header) if rows else ()
        cells = {name: [row.get(name) for _, row in rows] for name in names}
    if not places:
        raise NNNormError(f"{path} has no rows; is it truncated?")
    return {
        name: [
            _as_text(cell, f"{path}: {where}", name, needed is None or name in needed)
            for where, cell in zip(places, column, strict=True)
        ]
        for name, column in cells.items()
    }


def read_column(path: PathLike, column: str | None = None) -> list[str]:
    """Read one column of a table as text; if there is only one, its name isn't needed."""
    (cells,) = read_columns(path, None if column is None else [column]).values()
    return cells


def read_lines(path: PathLike) -> list[str]:
    """Read a text file with one entry per line."""
    with _open_text(path) as file:
        text = file.read().replace("\r\n", "\n").removesuffix("\n")
    if not text:
        raise NNNormError(f"{path} is empty; expected at least one line")
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise NNNormError(f"{path}: line {number} is empty; fill or remove it")
    return lines


def read_json(path: PathLike, what: str) -> Any:
    """Read a JSON file; if it can't be read, raise an error with the reason."""
    check_file(path, hint=f"expected {what}")
    with reading(path, f"JSON with {what}"):
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))


def read_objects(path: PathLike) -> list[dict[str, Any]]:
    """Read a JSON list of objects, or a .jsonl file with one per line."""
    if Path(path).suffix.lower() == ".jsonl":
        with _open_text(path) as file:
            return [entry for _, entry in _objects(path, file)]
    entries = read_json(path, "a list of objects")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise NNNormError(f"{path} must contain a JSON list with one object per item")
    return entries


def _as_text(cell: Any, where: str, name: str, is_needed: bool) -> str:
    is_nan = isinstance(cell, float) and math.isnan(cell)
    if is_nan or isinstance(cell, (dict, list, bytes)):
        shown = "NaN" if is_nan else f"the type {type(cell).__name__}"
        raise NNNormError(f"{where} has {shown} in the column {name}; expected text or a number")
    text = "" if cell is None else str(cell).strip()
    if is_needed and not text:
        raise NNNormError(f"{where} has nothing in the column {name}")
    return text


def _text_rows(path: PathLike) -> _Rows:
    """Yield the rows of a CSV, TSV or JSONL file."""
    with _open_text(path) as file:
        separator = _SEPARATORS.get(Path(path).suffix.lower())
        if separator is None:
            yield from _objects(path, file)
        else:
            yield from _separated(path, csv.DictReader(file, delimiter=separator, strict=True))


def _separated(path: PathLike, reader: "csv.DictReader[str]") -> _Rows:
    try:
        header = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        check_columns(path, [name for name in header if name], header)
        for row in reader:
            where, more = f"line {reader.line_num}", row.pop(None, [])
            if None in row.values() or any(cell.strip() for cell in more):
                n_cells = len(more) + sum(cell is not None for cell in row.values())
                raise NNNormError(
                    f"{path}: {where} has {n_cells} cells, but the header has {len(header)}; put "
                    'text that contains a separator in quotes, "like, this"'
                )
            yield where, dict(row)
    except csv.Error as error:
        raise NNNormError(
            f"{path}: line {reader.reader.line_num} can't be read ({error}); a cell that starts "
            'with a quote must end with one, and quotes inside it are doubled: "a ""gray"" cat"'
        ) from error


def _objects(path: PathLike, file: TextIO) -> _Rows:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError(f"got the type {type(entry).__name__}")
        except (ValueError, RecursionError) as error:
            raise NNNormError(
                f"{path}: line {number} is not a JSON object ({first_line(error)}); expected one "
                'object per line, such as {"caption": "a dog"}'
            ) from error
        yield f"line {number}", entry


@contextmanager
def _open_text(path: PathLike) -> Iterator[TextIO]:
    """Open a UTF-8 file for reading; if it isn't UTF-8, raise an error that names the line."""
    check_file(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        with open(path, "rb") as lines:
            is_utf8 = (line == line.decode(errors="ignore").encode() for line in lines)
            number = 1 + next(n for n, is_good in enumerate(is_utf8) if not is_good)
        raise NNNormError(
            f"{path}: line {number} is not UTF-8 text ({first_line(error)}); save the file as UTF-8"
        ) from error


def read_ids(path: Path | None, what: str = "ids") -> Any:
    """Read ids, labels or clicks from a .npy file, a JSON list, or a text with one per line."""
    if path is None:
        return None
    expected = f"expected a .npy file, a .json list, or text with one of the {what} per line"
    check_file(path, f"file of {what}", expected)
    if path.suffix == ".json":
        ids = read_json(path, f"a list of {what}")
        if not isinstance(ids, list) or any(isinstance(one, (dict, list)) for one in ids):
            raise NNNormError(f"{path} must be a list of {what}, without lists or objects in it")
        return ids
    if path.suffix != ".npy":
        with reading(path, what):
            text = path.read_text(encoding="utf-8-sig")
            return text.removesuffix("\n").split("\n") if text else []
    array = map_npy(path)
    if array.ndim != 1 or array.dtype.kind == "V":
        got = f"{path} has the shape {array.shape} and the type {array.dtype!s:.60}"
        raise NNNormError(f"{what} must be numbers or text, one per item; {got}")
    return array


def check_ids(ids: Any, n_items: int, *, name: str = "gallery") -> Ids:
    """Return ids as an array of int64 or str; raise an error unless each item has its own."""
    checked = check_names(ids, n_items, "ids", name)
    kinds, counts = np.unique(checked, return_counts=True)
    if len(kinds) != n_items:
        twice = kinds[np.argmax(counts > 1)]
        first, second = np.flatnonzero(checked == twice)[:2]
        raise NNNormError(
            f"ids of {name} must be unique, but {twice} occurs at positions {first} and {second}; "
            "give each item its own id"
        )
    return checked


# --- query logs ----------------------------------------------------------------------------------


class LogPart(NamedTuple):
    """Rows of a log; if it has no times, they are -inf."""

    start: int
    rows: FloatArray
    times: DoubleArray
    counts: IntArray


def is_log(source: Any) -> bool:
    """Whether `read_log` can read a source; other parquet paths are sets of shards."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    suffix = Path(source).suffix.lower()
    return suffix in TABLE_SUFFIXES and (suffix != ".parquet" or os.path.isfile(source))


def read_log(
    path: PathLike, *, column: str = "embedding", time: str | None = None, count: str | None = None
) -> Iterator[LogPart]:
    """Read a query log in parts of bounded size."""
    needed = [name for name in (column, time, count) if name is not None]
    is_text = Path(path).suffix.lower() != ".parquet"
    named = Path(path), str(path)
    parts = _text_parts(path, needed) if is_text else read_batches(*named, lambda _: needed)
    start = 0
    for _, rows, columns in parts:
        times, counts = np.full(len(rows), -np.inf), np.ones(len(rows), np.int64)
        if time is not None:
            times = read_times(columns[time], f"{path}, column {time}", start)
        if count is not None:
            counts = read_counts(columns[count], f"{path}, column {count}", start)
        yield LogPart(start, np.ascontiguousarray(rows, dtype=np.float32), times, counts)
        start += len(rows)
    if start == 0:
        raise NNNormError(f"{path} has no rows; is it truncated?")


def _text_parts(
    path: PathLike, needed: Sequence[str]
) -> Iterator[tuple[int, FloatArray, dict[str, Any]]]:
    """Yield batches like `read_batches`; the number of rows isn't known, so it is 0."""
    column, *others = needed
    found, dim = _text_rows(path), None
    while part := list(islice(found, _PART_ROWS)):
        rows = []
        for where, row in part:
            check_columns(path, needed, list(row))
            rows.append(_read_embedding(f"{path}: {where}", row[column], column))
            dim = dim or len(rows[0])
            if len(rows[-1]) != dim:
                raise NNNormError(
                    f"{path}: all embeddings must have the same dimension; {where} has "
                    f"{len(rows[-1])} numbers, but the first row has {dim}"
                )
        yield 0, np.stack(rows), {name: [row[name] for _, row in part] for name in others}


def _read_embedding(where: str, cell: Any, column: str) -> FloatArray:
    with suppress(TypeError, ValueError):
        if isinstance(cell, str):
            cell = cell.strip("[] \t\n").replace(",", " ").split()
        numbers = np.array(cell, dtype=np.float32)
        if numbers.ndim == 1 and len(numbers):
            return numbers
    raise NNNormError(
        f"{where} has no embedding in the column {column}; expected a list of numbers such as "
        f"[0.1, 0.2], got {repr(cell)[:40]}"
    )


def read_times(values: Any, name: str, start: int = 0) -> DoubleArray:
    """Convert dates, or numbers of seconds since 1970, to seconds since 1970."""
    expected = f"{name} must be dates such as 2026-05-01T12:00:00, or seconds since 1970"
    return _read_numbers(values, _read_seconds, expected, start)


def read_counts(values: Any, name: str, start: int = 0) -> IntArray:
    """Convert counts to int64; raise an error unless each is at least 1."""
    expected = f"{name} must be whole numbers of at least 1"
    return _read_numbers(values, _read_count, expected, start).astype(np.int64)


def _read_numbers(values: Any, read: Callable[[Any], float], what: str, start: int) -> DoubleArray:
    array = np.asarray(values) if hasattr(values, "dtype") else np.array(values, dtype=object)
    if array.ndim != 1:
        raise NNNormError(f"{what}, one per row; got shape {array.shape}")
    if array.dtype.kind == "M":
        array = array.astype("datetime64[us]")
        if read is _read_seconds and not np.isnat(array).any():
            return np.asarray(array.astype(np.int64) / 1e6)
    numbers = np.full(len(array), np.nan)
    for place, value in enumerate(array.tolist()):
        with suppress(TypeError, ValueError):
            numbers[place] = read(value)
        if not math.isfinite(numbers[place]):
            got = f"row {start + place} has" if len(array) > 1 else "got"
            raise NNNormError(f"{what}; {got} {value!r}")
    return numbers


def _read_seconds(value: Any) -> float:
    if isinstance(value, datetime):
        moment = value
    else:
        text = f"{value:.15g}" if isinstance(value, float) else str(value)
        # Eight digits are a date such as 20260501. As seconds, they would be in 1970 to 1973.
        if not (len(text) == 8 and text.isdigit()):
            with suppress(ValueError):
                return float(value if isinstance(value, float) else text)
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _read_count(value: Any) -> float:
    number = float(value)
    return number if 1 <= number < 2**53 and number.is_integer() else math.nan
