"""Parquet files: the columns `embedding` and `id`, and columns of text.

Needs pyarrow (`pip install 'nnnorm[parquet]'`). Embeddings are a list of floats per row, read in
batches directly into one array of the column's own float type, so that a float16 file stays
float16 in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.files import check_memory

Ids: TypeAlias = npt.NDArray[Any]

_COLUMN, _IDS = "embedding", "id"
# 8 MB of embeddings of 512 dimensions in float16.
_BATCH_ROWS = 8192
_LEAST_BYTES = 2  # of a value: float16


def read_embedding_column(path: Path, name: str) -> tuple[npt.NDArray[Any], Ids | str | None]:
    """Read the columns `embedding` and, if there is one, `id` of a parquet file."""
    with _open_parquet(path, name) as (pyarrow, file):
        _check_size(file, (_COLUMN, _IDS), name)
        return _read_column(pyarrow, file, name), _read_ids(pyarrow, file)


def read_id_column(path: Path, name: str) -> Ids | str | None:
    """Read the column `id` of a parquet file, as `read_embedding_column` does."""
    with _open_parquet(path, name) as (pyarrow, file):
        _check_size(file, (_IDS,), name)
        return _read_ids(pyarrow, file)


class ParquetRows:
    """Rows of the column `embedding` of a parquet file, read by row groups when asked for."""

    ndim = 2

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        with _open_parquet(path, name) as (pyarrow, file):
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
            batches = _embedding_batches(pyarrow, file, _COLUMN, name, n_rows=1)
            _, some = next(batches, (None, np.empty((0, 0), dtype=np.float32)))
        self.dtype = some.dtype
        self.shape = int(self._starts[-1]), some.shape[1]
        self._held: tuple[int, npt.NDArray[Any]] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        wanted = np.arange(len(self))[rows]
        found = np.empty((len(wanted), self.shape[1]), dtype=self.dtype)
        groups = np.searchsorted(self._starts, wanted, "right") - 1
        for group in np.unique(groups):
            here = np.flatnonzero(groups == group)
            found[here] = self._read_group(int(group))[wanted[here] - self._starts[group]]
        return found

    def _read_group(self, number: int) -> npt.NDArray[Any]:
        held = self._held  # one at a time: rows are read in order
        if held is not None and held[0] == number:
            return held[1]
        with _open_parquet(self._path, self._name) as (pyarrow, file):
            check_memory(_announced(file.metadata.row_group(number), (_COLUMN,)), self._name)
            batches = _embedding_batches(pyarrow, file, _COLUMN, self._name, row_groups=[number])
            rows = np.concatenate([some for _, some in batches])
        if rows.shape[1] != self.shape[1]:
            raise NNNormError(
                f"{self._name}: all rows of {_COLUMN!r} must share dim; got {self.shape[1]} and "
                f"{rows.shape[1]}"
            )
        self._held = number, rows
        return rows


def read_cells(path: Path, choose: Callable[[list[str]], Sequence[str]]) -> dict[str, list[Any]]:
    """Read columns of a parquet file as Python values; `choose` names them, given the header."""
    with _open_parquet(path, str(path)) as (_, file):
        header = file.schema_arrow.names
        chosen = list(choose(header))
        if twice := [name for name in chosen if header.count(name) > 1]:
            raise NNNormError(f"{path} has the column {twice[0]} twice; rename one of them")
        _check_size(file, chosen, str(path))
        table = file.read(columns=chosen)
        return {column: table.column(column).to_pylist() for column in chosen}


def read_batches(
    path: Path, column: str, others: Sequence[str]
) -> Iterator[tuple[npt.NDArray[Any], dict[str, Any]]]:
    """Read embeddings and other columns of a parquet file in batches."""
    with _open_parquet(path, str(path)) as (pyarrow, file):
        _check_size(file, (column, *others), f"a row group of {path}", at_once=False)
        for batch, rows in _embedding_batches(pyarrow, file, column, str(path), others):
            yield rows, {name: _as_values(pyarrow, batch.column(name)) for name in others}


def _check_size(file: Any, columns: Sequence[str], name: str, *, at_once: bool = True) -> None:
    """Raise where columns announce more than fits in memory, however well it is packed."""
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    sizes = [_announced(group, columns) for group in groups]
    check_memory((sum if at_once else max)(sizes or [0]), name)


def _announced(group: Any, columns: Sequence[str]) -> int:
    """Bytes of some columns of a row group, packed or not, whichever is more."""
    found = [
        column
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema.partition(".")[0] in columns
    ]
    n_values = sum(column.num_values for column in found)
    return max(_LEAST_BYTES * n_values, sum(column.total_uncompressed_size for column in found))


def _as_values(pyarrow: Any, column: Any) -> Any:
    """A column without gaps as an array, where it holds numbers or times; else a list."""
    types, kind = pyarrow.types, column.type
    if column.null_count:
        return column.to_pylist()
    if types.is_timestamp(kind) or types.is_date(kind):
        return np.asarray(column.cast(pyarrow.timestamp("us")))
    if types.is_integer(kind) or types.is_floating(kind):
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


@contextmanager
def _open_parquet(path: Path, name: str) -> Iterator[tuple[Any, Any]]:
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # not all of it at once
            yield pyarrow, file
    except NNNormError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise NNNormError(
            f"{name} can't be read as parquet ({first_line(error)}); "
            "is it cut short, or another kind of file?"
        ) from error


def _read_ids(pyarrow: Any, file: Any) -> Ids | str | None:
    n_columns = file.schema_arrow.names.count(_IDS)
    if n_columns == 0 or file.metadata.num_rows == 0:
        return None
    if n_columns > 1:
        return f"there are {n_columns} columns of that name"
    kind, types = file.schema_arrow.field(_IDS).type, pyarrow.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (is_text or types.is_integer(kind)) or kind == pyarrow.uint64():
        return f"it is of type {kind}, and ids are int64 or strings"
    column = file.read(columns=[_IDS]).column(_IDS)
    if column.null_count:
        return f"it is empty in {column.null_count} of {len(column)} rows"
    return np.array(column.to_pylist(), str if is_text else np.int64)


def _read_column(pyarrow: Any, file: Any, name: str) -> npt.NDArray[Any]:
    n_rows = file.metadata.num_rows
    whole: npt.NDArray[Any] | None = None
    start = 0
    for _, rows in _embedding_batches(pyarrow, file, _COLUMN, name):
        if whole is None:
            check_memory(n_rows * rows.nbytes // len(rows), name)
            whole = np.empty((n_rows, rows.shape[1]), dtype=rows.dtype)
        whole[start : start + len(rows)] = rows
        start += len(rows)
    if start != n_rows:  # rows that were never read must not pass for embeddings
        raise ValueError(f"{n_rows} rows announced, {start} found")
    return np.empty((0, 0), dtype=np.float32) if whole is None else whole


def _embedding_batches(
    pyarrow: Any,
    file: Any,
    column: str,
    name: str,
    others: Sequence[str] = (),
    *,
    n_rows: int = _BATCH_ROWS,
    row_groups: Sequence[int] | None = None,
) -> Iterator[tuple[Any, npt.NDArray[Any]]]:
    """Batches with a column of embeddings and some others, and the embeddings of each."""
    schema = file.schema_arrow
    for needed in (column, *others):
        if schema.names.count(needed) != 1:
            raise NNNormError(
                f"{name} needs one column named {needed!r}; it has "
                f"{', '.join(schema.names) or 'none'}"
            )
    kind = schema.field(column).type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not (is_list or pyarrow.types.is_fixed_size_list(kind)) or not pyarrow.types.is_floating(
        kind.value_type
    ):
        raise NNNormError(f"{name}: column {column!r} must be a list of floats; it is {kind}")
    start, dim = 0, None
    for batch in file.iter_batches(n_rows, row_groups=row_groups, columns=[column, *others]):
        found = batch.column(column)
        if not len(found):
            continue
        if found.null_count:
            row = start + next(i for i in range(len(found)) if not found[i].is_valid)
            raise NNNormError(f"{name}: column {column!r} is empty in row {row}; remove that row")
        lengths = np.asarray(found.value_lengths()) if is_list else np.array([kind.list_size])
        dim = int(lengths[0]) if dim is None else dim
        if len(wrong := np.flatnonzero(lengths != dim)):
            raise NNNormError(
                f"{name}: all rows of {column!r} must share dim; row {start + wrong[0]} has "
                f"{lengths[wrong[0]]} numbers, row 0 has {dim}"
            )
        values = found.flatten().to_numpy(zero_copy_only=False)
        yield batch, values.reshape(len(found), -1)
        start += len(found)
