"""Tables: CSV, TSV, JSONL and columns of parquet; lists of lines, JSON, ids, and query logs.

CSV and TSV are UTF-8, with or without a BOM. The first line is the header. Cells are quoted as in
RFC 4180: a cell in double quotes may hold separators and line breaks, and a quote in it is doubled.
Every row has as many cells as the header, blank lines are skipped, spaces around a cell are
dropped. JSONL has one object per line; its values are texts or numbers. Errors name the line.

A query log is a table with an embedding per row, and optional columns of times and counts. CSV and
TSV hold an embedding as the text of a list, ``[0.1, 0.2]`` with or without commas, and JSONL as a
list. Times are dates (ISO 8601, UTC if there is no offset; also 20260501), or seconds since 1970.
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

from nnnorm.arrays import Ids, read_batches, read_cells
from nnnorm.errors import NNNormError, first_line

FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
PathLike: TypeAlias = str | os.PathLike[str]
# Names the columns to read, given the header.
_Choose: TypeAlias = Callable[[list[str]], Sequence[str]]
# Where a row is ("line 3"), and its chosen cells.
_Rows: TypeAlias = Iterator[tuple[str, dict[str, Any]]]

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = (*_SEPARATORS, ".jsonl", ".parquet")
_PART_ROWS = 8192  # of a log


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
    if not text:
        raise NNNormError(f"{path} is empty; expected at least one line")
    lines = text.split("\n")
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


def _check_columns(path: PathLike, needed: Sequence[str], header: list[str]) -> Sequence[str]:
    if missing := [name for name in needed if name not in header]:
        raise NNNormError(
            f"{path} needs the column{'s' if len(needed) > 1 else ''} {', '.join(needed)}; "
            f"{missing[0]} is not there, it has: {', '.join(header) or 'none'}"
        )
    return needed


def _read(path: PathLike, choose: _Choose, needed: Sequence[str] | None) -> dict[str, list[str]]:
    """Read the chosen columns; those of `needed` (all, if None) must have a value in every row."""
    columns: dict[str, list[str]] = {}
    for where, row in _rows(path, choose):
        for name, cell in row.items():
            is_nan = isinstance(cell, float) and math.isnan(cell)
            if is_nan or isinstance(cell, (dict, list, bytes)):
                shown = "NaN" if is_nan else f"the type {type(cell).__name__}"
                raise NNNormError(
                    f"{path}: {where} has {shown} in the column {name}; expected a text or a number"
                )
            text = "" if cell is None else str(cell).strip()
            if not text and (needed is None or name in needed):
                raise NNNormError(f"{path}: {where} has nothing in the column {name}")
            columns.setdefault(name, []).append(text)
    if not columns:
        raise NNNormError(f"{path} has no rows; is it cut short?")
    return columns


def _rows(path: PathLike, wanted: _Choose | Sequence[str]) -> _Rows:
    """Read rows of the columns that are named, one by one, or of those chosen from the header."""

    def choose(header: list[str]) -> Sequence[str]:
        return wanted(header) if callable(wanted) else _check_columns(path, wanted, header)

    suffix = _check_suffix(path, "table")
    if suffix == ".parquet":
        _check_there(path)
        cells = read_cells(Path(path), choose)
        for number, row in enumerate(zip(*cells.values(), strict=True)):
            yield f"row {number}", dict(zip(cells, row, strict=True))
        return
    with _open_text(path) as file:
        if suffix != ".jsonl":
            yield from _separated(path, file, _SEPARATORS[suffix], choose)
        elif callable(wanted):  # the header has the keys of all objects
            found = list(_objects(path, file))
            names = choose(list(dict.fromkeys(key for _, entry in found for key in entry)))
            yield from (
                (where, {name: entry.get(name) for name in names}) for where, entry in found
            )
        else:
            for where, entry in _objects(path, file):
                yield where, {name: entry[name] for name in choose(list(entry))}


def _check_suffix(path: PathLike, what: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise NNNormError(
            f"{path}: a {what} must end in {', '.join(TABLE_SUFFIXES[:-1])} or "
            f"{TABLE_SUFFIXES[-1]}; got the suffix {suffix!r}"
        )
    return suffix


def _separated(path: PathLike, file: TextIO, separator: str, choose: _Choose) -> _Rows:
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


def _objects(path: PathLike, file: TextIO) -> Iterator[tuple[str, dict[str, Any]]]:
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
    except UnicodeDecodeError as error:
        with open(path, "rb") as lines:
            is_utf8 = (line == line.decode(errors="ignore").encode() for line in lines)
            number = 1 + next(n for n, is_good in enumerate(is_utf8) if not is_good)
        raise NNNormError(
            f"{path}: line {number} is not UTF-8 text ({first_line(error)}); save the file as UTF-8"
        ) from error


def check_ids(ids: Any, n_items: int, *, name: str = "gallery") -> Ids:
    """Return ids as an array of int64 or str, or raise unless there is a different one per item."""
    # An object array keeps the values apart that numpy would turn into strings: ["a", 1].
    array = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    if array.shape != (n_items,):
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}, shape ({n_items},); got "
            f"shape {array.shape}"
        )
    values = array.tolist()
    texts = [value for value in values if isinstance(value, str)]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
            raise NNNormError(
                f"ids must be one whole number or string per item of {name}; got {value!r}"
            )
    if 0 < len(texts) < n_items:
        raise NNNormError(
            f"ids of {name} mix whole numbers and strings (such as {texts[0]!r}); give all of them "
            "as strings"
        )
    try:
        checked: Ids = np.array(values, dtype=str if texts else np.int64)
    except OverflowError:
        raise NNNormError(f"ids of {name} must fit in 64 bits with a sign") from None
    kinds, first, counts = np.unique(checked, return_index=True, return_counts=True)
    if len(kinds) != n_items:
        twice = int(np.argmax(counts > 1))
        places = np.flatnonzero(checked == kinds[twice])
        raise NNNormError(
            f"ids of {name} must be unique, but {kinds[twice]} occurs at positions {first[twice]} "
            f"and {places[1]}; give each item an id of its own"
        )
    return checked


# --- query logs ----------------------------------------------------------------------------------


class LogPart(NamedTuple):
    """Rows of a log; times are -inf if there are none."""

    start: int
    rows: FloatArray
    times: DoubleArray
    counts: IntArray


def is_log(source: Any) -> bool:
    """Whether a source is a file that `read_log` reads; other parquet is a set of shards."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    suffix = Path(source).suffix.lower()
    return suffix in TABLE_SUFFIXES and (suffix != ".parquet" or os.path.isfile(source))


def read_log(
    path: PathLike, *, column: str = "embedding", time: str | None = None, count: str | None = None
) -> Iterator[LogPart]:
    """Read a query log in parts of bounded size."""
    others = [name for name in (time, count) if name is not None]
    if Path(path).suffix.lower() == ".parquet":
        parts = read_batches(Path(path), column, others)
    else:
        parts = _text_parts(path, column, others)
    start, dim = 0, None
    for rows, columns in parts:
        times, counts = np.full(len(rows), -np.inf), np.ones(len(rows), np.int64)
        if dim not in (None, rows.shape[1]):
            raise NNNormError(
                f"{path}: all embeddings must share dim; row {start} and later have "
                f"{rows.shape[1]} numbers, row 0 has {dim}"
            )
        dim = rows.shape[1]
        if time is not None:
            times = read_times(columns[time], f"{path}, column {time}", start)
        if count is not None:
            counts = read_counts(columns[count], f"{path}, column {count}", start)
        yield LogPart(start, np.ascontiguousarray(rows, dtype=np.float32), times, counts)
        start += len(rows)
    if start == 0:
        raise NNNormError(f"{path} has no rows; is it cut short?")


def _text_parts(
    path: PathLike, column: str, others: Sequence[str]
) -> Iterator[tuple[FloatArray, dict[str, Any]]]:
    found = _rows(path, [column, *others])
    while part := list(islice(found, _PART_ROWS)):
        rows = [_read_embedding(path, where, row[column], column) for where, row in part]
        for (where, _), row in zip(part, rows, strict=True):
            if len(row) != len(rows[0]):
                raise NNNormError(
                    f"{path}: all embeddings must share dim; {where} has {len(row)} numbers, "
                    f"{part[0][0]} has {len(rows[0])}"
                )
        yield np.stack(rows), {name: [row[name] for _, row in part] for name in others}


def _read_embedding(path: PathLike, where: str, cell: Any, column: str) -> FloatArray:
    try:
        if isinstance(cell, str):
            cell = cell.strip("[] \t\n").replace(",", " ").split()
        numbers = np.array(cell, dtype=np.float32)
        if numbers.ndim == 1 and len(numbers):
            return numbers
    except (TypeError, ValueError):
        pass
    raise NNNormError(
        f"{path}: {where} has no embedding in the column {column}; expected a list of numbers such "
        f"as [0.1, 0.2], got {repr(cell)[:40]}"
    )


def read_times(values: Any, name: str, start: int = 0) -> DoubleArray:
    """Seconds since 1970 of dates, or of numbers that are such seconds."""
    expected = f"{name} must be dates such as 2026-05-01T12:00:00, or seconds since 1970"
    return _read_numbers(values, _read_seconds, expected, start)


def read_counts(values: Any, name: str, start: int = 0) -> IntArray:
    """Counts as int64, each at least 1."""
    expected = f"{name} must be whole numbers of at least 1"
    return _read_numbers(values, _read_count, expected, start).astype(np.int64)


def _read_numbers(
    values: Any, read: Callable[[Any], float], expected: str, start: int
) -> DoubleArray:
    array = values if hasattr(values, "dtype") else np.array(values, dtype=object)
    array = np.asarray(array)
    if array.ndim != 1:
        raise NNNormError(f"{expected}, one per row; got shape {array.shape}")
    if array.dtype.kind == "M":
        array = array.astype("datetime64[us]")
    numbers = np.full(len(array), np.nan)
    for place, value in enumerate(array.tolist()):
        with suppress(TypeError, ValueError):
            numbers[place] = read(value)
        if not math.isfinite(numbers[place]):
            raise NNNormError(f"{expected}; row {start + place} has {value!r}")
    return numbers


def _read_seconds(value: Any) -> float:
    if isinstance(value, datetime):
        moment = value
    else:
        text = str(value)
        # Eight digits are a day such as 20260501: as seconds they would be in 1970 to 1973.
        if not (len(text) == 8 and text.isdigit()):
            with suppress(ValueError):
                return float(text)
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _read_count(value: Any) -> float:
    number = float(value)
    return number if 1 <= number < 2**53 and number.is_integer() else math.nan
