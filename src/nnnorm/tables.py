"""Tables: CSV, TSV, JSONL and columns of parquet; lists of lines, JSON, ids, and query logs.

CSV and TSV are UTF-8, with or without a BOM. The first line is the header. Cells are quoted as in
RFC 4180: a cell in double quotes may hold separators and line breaks, and a quote in it is doubled.
Every row has as many cells as the header, blank lines are skipped, spaces around a cell are
dropped. JSONL has one object per line; its values are texts or numbers. Errors name the line.

A query log is a table with an embedding per row, and optional columns of times and counts. CSV and
TSV hold an embedding as the text of a list, ``[0.1, 0.2]`` with or without commas, and JSONL as a
list. Times are numbers, or dates (ISO 8601, UTC if there is no offset; also 20260501, as a text or
a number), and never both.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO, TypeAlias

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
# Whether times are numbers of any unit, or dates, which become seconds since 1970.
Clock = Literal["numbers", "dates"]

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
    """Rows of a log."""

    start: int
    rows: FloatArray
    times: DoubleArray | None
    counts: IntArray | None
    clock: Clock | None


def read_log(
    path: PathLike, *, column: str = "embedding", time: str | None = None, count: str | None = None
) -> Iterator[LogPart]:
    """Read a query log in parts of bounded size."""
    others = [name for name in (time, count) if name is not None]
    if _check_suffix(path, "log") == ".parquet":
        _check_there(path)
        parts = read_batches(Path(path), column, others)
    else:
        parts = _text_parts(path, column, others)
    start, clock, dim = 0, None, None
    for rows, columns in parts:
        times = counts = None
        if dim not in (None, rows.shape[1]):
            raise NNNormError(
                f"{path}: all embeddings must share dim; row {start} and later have "
                f"{rows.shape[1]} numbers, row 0 has {dim}"
            )
        dim = rows.shape[1]
        if time is not None:
            times, clock = read_times(columns[time], f"{path}, column {time}", start, clock)
        if count is not None:
            counts = read_counts(columns[count], f"{path}, column {count}", start)
        yield LogPart(start, np.ascontiguousarray(rows, dtype=np.float32), times, counts, clock)
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


def read_times(
    values: Any, name: str, start: int = 0, clock: Clock | None = None
) -> tuple[DoubleArray, Clock]:
    """Times as float64: numbers as they are, dates as seconds since 1970."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists among the values
        array = np.fromiter(values, dtype=object)
    if array.ndim != 1:
        raise NNNormError(f"{name} must be one time per row; got shape {array.shape}")
    if array.dtype.kind == "M":
        times = array.astype("datetime64[us]").astype(np.int64) / 1e6
        times[np.isnat(array)] = np.nan
        kinds: list[Clock] = ["dates"]
    elif array.dtype.kind in "iuf":
        times, kinds = array.astype(np.float64), ["numbers"]
    else:
        pairs = [_read_moment(value, name, start + place) for place, value in enumerate(values)]
        times = np.array([moment for moment, _ in pairs], dtype=np.float64)
        kinds = [kind for _, kind in pairs]
    if clock != "numbers" and "dates" not in kinds and (days := _read_days(times)) is not None:
        times, kinds = days, ["dates"]
    found = clock or kinds[0]
    for place, kind in enumerate(kinds):
        if kind != found:
            raise NNNormError(
                f"{name} must be all numbers or all dates; expected {found}, but row "
                f"{start + place} has {kind}"
            )
    if len(bad := np.flatnonzero(~np.isfinite(times))):
        raise NNNormError(f"{name} must be finite; row {start + bad[0]} has none")
    return times, found


def read_time(value: Any, name: str, clock: Clock | None = None) -> tuple[float, Clock]:
    """One time, as `read_times` reads them; with other times that are numbers, 20260501 is one."""
    if clock == "numbers" and math.isfinite(number := _read_number(value)):
        return number, clock
    times, found = read_times([value], name)
    return float(times[0]), found


def _read_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _read_moment(value: Any, name: str, row: int) -> tuple[float, Clock]:
    if math.isfinite(number := _read_number(value)) and not isinstance(value, bool):
        return number, "numbers"
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise NNNormError(
            f"{name} must be numbers or dates such as 2026-05-01T12:00:00; row {row} has {value!r}"
        ) from None
    return _seconds(moment), "dates"


def _read_days(numbers: DoubleArray) -> DoubleArray | None:
    """Seconds since 1970 of numbers such as 20260501; None unless all of them are such days."""
    if not len(numbers) or not ((numbers >= 1900_01_01) & (numbers <= 2100_12_31)).all():
        return None
    different, places = np.unique(numbers, return_inverse=True)
    try:
        days = [datetime.strptime(f"{number:.15g}", "%Y%m%d") for number in different.tolist()]
    except ValueError:
        return None
    return np.array([_seconds(day) for day in days])[places]


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def read_counts(values: Any, name: str, start: int = 0) -> IntArray:
    """Counts as int64, each at least 1."""
    try:
        numbers = np.asarray(values).astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array([_read_number(value) for value in values], dtype=np.float64)
    if numbers.ndim != 1:
        raise NNNormError(f"{name} must be one count per row; got shape {numbers.shape}")
    bad = np.flatnonzero(~((numbers >= 1) & (numbers == np.floor(numbers)) & (numbers < 2**53)))
    if len(bad):
        raise NNNormError(
            f"{name} must be whole numbers of at least 1; row {start + bad[0]} has "
            f"{values[bad[0]]!r}"
        )
    return numbers.astype(np.int64)
