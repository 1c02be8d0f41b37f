"""Query logs, read in parts: an embedding per row, and optional columns of times and counts.

Parquet needs pyarrow; CSV and TSV hold an embedding as the text of a list, ``[0.1, 0.2]`` with or
without commas, and JSONL as a list. Times are numbers, or dates (ISO 8601, UTC where there is no
offset; also 20260501, as a text or a number), and never both. Errors name the file and the row.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import read_batches
from nnnorm.errors import NNNormError
from nnnorm.tables import TABLE_SUFFIXES, read_rows

FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
# Whether times are numbers of any unit, or dates, which become seconds since 1970.
Clock = Literal["numbers", "dates"]

_PART_ROWS = 8192


class LogPart(NamedTuple):
    """Rows of a log."""

    start: int
    rows: FloatArray
    times: DoubleArray | None
    counts: IntArray | None
    clock: Clock | None


def read_log(
    path: str | os.PathLike[str],
    *,
    column: str = "embedding",
    time: str | None = None,
    count: str | None = None,
) -> Iterator[LogPart]:
    """Read a query log in parts of bounded size."""
    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise NNNormError(
            f"{path}: a log must end in {', '.join(TABLE_SUFFIXES[:-1])} or {TABLE_SUFFIXES[-1]}; "
            f"got the suffix {suffix!r}"
        )
    others = [name for name in (time, count) if name is not None]
    parts = _parquet_parts if suffix == ".parquet" else _text_parts
    start, clock, dim = 0, None, None
    for rows, columns in parts(Path(path), column, others):
        times = counts = None
        if dim not in (None, rows.shape[1]):
            raise NNNormError(
                f"{path}: all embeddings must share dim; row {start} and later have "
                f"{rows.shape[1]} numbers, row 0 has {dim}"
            )
        dim = rows.shape[1]
        if time is not None:
            times, found = read_times(columns[time], f"{path}, column {time}", start, clock)
            clock = found
        if count is not None:
            counts = read_counts(columns[count], f"{path}, column {count}", start)
        yield LogPart(start, np.ascontiguousarray(rows, dtype=np.float32), times, counts, clock)
        start += len(rows)
    if start == 0:
        raise NNNormError(f"{path} has no rows; is it cut short?")


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
        found: Clock = "dates"
        times = array.astype("datetime64[us]").astype(np.int64) / 1e6
        times[np.isnat(array)] = np.nan
    elif array.dtype.kind in "iuf":
        found, times = "numbers", array.astype(np.float64)
        if clock != "numbers" and (days := _read_days(times)) is not None:
            found, times = "dates", days
    else:
        pairs = [_read_moment(value, name, start + place) for place, value in enumerate(values)]
        times = np.array([moment for moment, _ in pairs], dtype=np.float64)
        if all(kind == "numbers" for _, kind in pairs) and len(pairs):
            return read_times(times, name, start, clock)
        found = clock or pairs[0][1]
        for place, (_, kind) in enumerate(pairs):
            if kind != found:
                _refuse_mixed(name, found, kind, start + place)
    if clock not in (None, found):
        _refuse_mixed(name, str(clock), found, start)
    if len(bad := np.flatnonzero(~np.isfinite(times))):
        raise NNNormError(f"{name} must be finite; row {start + bad[0]} has none")
    return times, found


def read_time(value: Any, name: str, clock: Clock | None = None) -> tuple[float, Clock]:
    """One time, as `read_times` reads them; with other times that are numbers, 20260501 is one."""
    array = np.asarray([value]) if isinstance(value, np.datetime64) else [value]
    is_number = clock == "numbers" and not isinstance(value, (bool, np.datetime64))
    if is_number and np.isfinite(_read_number(value)):
        return _read_number(value), "numbers"
    times, found = read_times(array, name)
    return float(times[0]), found


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


_Parts: TypeAlias = Iterator[tuple[npt.NDArray[Any], dict[str, Any]]]


def _parquet_parts(path: Path, column: str, others: Sequence[str]) -> _Parts:
    if not path.is_file():
        raise NNNormError(f"there is no file {path}; check the path")
    return read_batches(path, column, others)


def _text_parts(path: Path, column: str, others: Sequence[str]) -> _Parts:
    rows: list[FloatArray] = []
    cells: dict[str, list[Any]] = {name: [] for name in others}
    for where, row in read_rows(path, [column, *others]):
        rows.append(_read_embedding(path, where, row[column], column))
        if len(rows[-1]) != len(rows[0]):
            raise NNNormError(
                f"{path}: all embeddings must share dim; {where} has {len(rows[-1])} numbers, the "
                f"row before has {len(rows[0])}"
            )
        for name in others:
            cells[name].append(row[name])
        if len(rows) == _PART_ROWS:
            yield np.stack(rows), cells
            rows, cells = [], {name: [] for name in others}
    if rows:
        yield np.stack(rows), cells


def _read_embedding(path: Path, where: str, cell: Any, column: str) -> FloatArray:
    try:
        if isinstance(cell, str):
            cell = cell.strip("[] \t\n").replace(",", " ").split()
        numbers = np.array(cell, dtype=np.float32)
        if numbers.ndim == 1 and len(numbers):
            return numbers
    except (TypeError, ValueError):
        pass
    shown = repr(cell)[:40]
    raise NNNormError(
        f"{path}: {where} has no embedding in the column {column}; expected a list of numbers such "
        f"as [0.1, 0.2], got {shown}"
    )


def _read_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _read_moment(value: Any, name: str, row: int) -> tuple[float, Clock]:
    if isinstance(value, datetime):
        return _seconds(value), "dates"
    number = np.nan if isinstance(value, bool) else _read_number(value)
    if np.isfinite(number):
        return number, "numbers"
    try:
        return _seconds(datetime.fromisoformat(str(value).replace("Z", "+00:00"))), "dates"
    except ValueError:
        raise NNNormError(
            f"{name} must be numbers or dates such as 2026-05-01T12:00:00; row {row} has {value!r}"
        ) from None


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
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.timestamp()


def _refuse_mixed(name: str, expected: str, got: str, row: int) -> None:
    raise NNNormError(
        f"{name} must be all numbers or all dates; expected {expected}, but row {row} has {got}"
    )
