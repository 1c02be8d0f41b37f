"""Parquet files: the columns `embedding` and `id`, and columns of text.

Needs pyarrow (`pip install 'nnnorm[parquet]'`). Embeddings are a list of floats per row, read in
batches directly into one array of the column's own float type, so that a float16 file stays
float16 in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io.arrays import Ids

_COLUMN, _IDS = "embedding", "id"


def read_embedding_column(path: Path, name: str) -> tuple[npt.NDArray[Any], Ids | str | None]:
    """Read the columns `embedding` and, if there is one, `id` of a parquet file.

    Parameters
    ----------
    path : Path
    name : str
        The name in messages.

    Returns
    -------
    embeddings : ndarray, shape (n_rows, dim)
        In the column's own float type.
    ids : ndarray, shape (n_rows,), or str, or None
        int64 or str; None if there is no such column. A single str is the reason why the column
        can't be used.

    Examples
    --------
    >>> read_embedding_column(Path("photos.parquet"), "gallery")  # doctest: +SKIP
    (array([[...]], dtype=float32), array([17, 4, ...]))
    """
    with _open_parquet(path, name) as (pyarrow, file):
        return _read_column(pyarrow, file, name), _read_ids(pyarrow, file)


def read_cells(path: Path, choose: Callable[[list[str]], Sequence[str]]) -> dict[str, list[Any]]:
    """Read columns of a parquet file as Python values; `choose` names them, given the header.

    Examples
    --------
    >>> read_cells(Path("metadata_0.parquet"), lambda header: ["caption"])  # doctest: +SKIP
    {'caption': ['a cat', ...]}
    """
    with _open_parquet(path, str(path)) as (_, file):
        chosen = list(choose(file.schema_arrow.names))
        table = file.read(columns=chosen)
        return {column: table.column(column).to_pylist() for column in chosen}


@contextmanager
def _open_parquet(path: Path, name: str) -> Iterator[tuple[Any, Any]]:
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
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
    schema = file.schema_arrow
    if schema.names.count(_COLUMN) != 1:
        raise NNNormError(
            f"{name} needs one column named {_COLUMN!r}; it has {', '.join(schema.names) or 'none'}"
        )
    kind = schema.field(_COLUMN).type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not (is_list or pyarrow.types.is_fixed_size_list(kind)) or not pyarrow.types.is_floating(
        kind.value_type
    ):
        raise NNNormError(f"{name}: column {_COLUMN!r} must be a list of floats; it is {kind}")
    n_rows = file.metadata.num_rows
    whole: npt.NDArray[Any] = np.empty((0, 0), dtype=f"f{kind.value_type.bit_width // 8}")
    start = 0
    for batch in file.iter_batches(columns=[_COLUMN]):
        column = batch.column(0)
        if column.null_count:
            row = start + next(i for i in range(len(column)) if not column[i].is_valid)
            raise NNNormError(f"{name}: column {_COLUMN!r} is empty in row {row}; remove that row")
        lengths = np.asarray(column.value_lengths()) if is_list else np.array([kind.list_size])
        if start == 0 and len(column):
            whole = np.empty((n_rows, int(lengths[0])), dtype=whole.dtype)
        if len(wrong := np.flatnonzero(lengths != whole.shape[1])):
            raise NNNormError(
                f"{name}: all rows of {_COLUMN!r} must share dim; row {start + wrong[0]} has "
                f"{lengths[wrong[0]]} numbers, row 0 has {whole.shape[1]}"
            )
        values = column.flatten().to_numpy(zero_copy_only=False)
        whole[start : start + len(column)] = values.reshape(len(column), -1)
        start += len(column)
    if start != n_rows:  # rows that were never read must not pass for embeddings
        raise ValueError(f"{n_rows} rows announced, {start} found")
    return whole
