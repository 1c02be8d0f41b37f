"""Embeddings and texts out of parquet files.

Needs pyarrow (`pip install 'nnnorm[parquet]'`). Embeddings are the column `embedding`, a list of
floats per row, read in batches straight into one array of the column's own float type, so a float16
file stays float16 in memory.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require

__all__ = ["read_embedding_column", "read_text_columns"]

COLUMN = "embedding"


def read_embedding_column(path: Path, name: str) -> npt.NDArray[Any]:
    """Read the column `embedding` of a parquet file as an array ``(n_rows, dim)``.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        What messages call it.

    Returns
    -------
    ndarray, shape (n_rows, dim)
        In the column's own float type.

    Examples
    --------
    >>> read_embedding_column(Path("photos.parquet"), "gallery")  # doctest: +SKIP
    array([[...]], dtype=float32)
    """
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            return _read_column(pyarrow, file, name)
    except NNNormError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise NNNormError(
            f"{name} can't be read as parquet ({first_line(error)}); "
            "is it cut short, or another kind of file?"
        ) from error


def read_text_columns(
    path: Path, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Read columns of text; see `datasets.table.read_columns`.

    Examples
    --------
    >>> read_text_columns(Path("metadata_0.parquet"), ["image_path", "caption"])  # doctest: +SKIP
    {'image_path': ['1.jpg'], 'caption': ['a cat']}
    """
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path) as file:
            header = file.schema_arrow.names
            if missing := [name for name in needed if name not in header]:
                raise NNNormError(
                    f"{path} needs the columns {', '.join(needed)}; {', '.join(missing)} is not "
                    f"there, it has: {', '.join(header) or 'none'}"
                )
            wanted = [name for name in (*needed, *optional) if name in header]
            table = file.read(columns=wanted)
    except NNNormError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise NNNormError(
            f"{path} can't be read as parquet ({first_line(error)}); "
            "is it cut short, or another kind of file?"
        ) from error
    columns: dict[str, list[str]] = {}
    for name in wanted:
        cells = table.column(name).to_pylist()
        if name in needed and None in cells:
            raise NNNormError(f"{path}: row {cells.index(None)} has nothing in the column {name}")
        columns[name] = ["" if cell is None else str(cell) for cell in cells]
    return columns


def _read_column(pyarrow: Any, file: Any, name: str) -> npt.NDArray[Any]:
    schema = file.schema_arrow
    if schema.names.count(COLUMN) != 1:
        raise NNNormError(
            f"{name} needs one column named {COLUMN!r}; it has {', '.join(schema.names) or 'none'}"
        )
    kind = schema.field(COLUMN).type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not (is_list or pyarrow.types.is_fixed_size_list(kind)) or not pyarrow.types.is_floating(
        kind.value_type
    ):
        raise NNNormError(f"{name}: column {COLUMN!r} must be a list of floats; it is {kind}")
    n_rows = file.metadata.num_rows
    whole: npt.NDArray[Any] = np.empty((0, 0), dtype=f"f{kind.value_type.bit_width // 8}")
    start = 0
    for batch in file.iter_batches(columns=[COLUMN]):
        column = batch.column(0)
        if column.null_count:
            row = start + next(i for i in range(len(column)) if not column[i].is_valid)
            raise NNNormError(f"{name}: column {COLUMN!r} is empty in row {row}; remove that row")
        lengths = np.asarray(column.value_lengths()) if is_list else np.array([kind.list_size])
        if start == 0 and len(column):
            whole = np.empty((n_rows, int(lengths[0])), dtype=whole.dtype)
        if len(wrong := np.flatnonzero(lengths != whole.shape[1])):
            raise NNNormError(
                f"{name}: all rows of {COLUMN!r} must share dim; row {start + wrong[0]} has "
                f"{lengths[wrong[0]]} numbers, row 0 has {whole.shape[1]}"
            )
        values = column.flatten().to_numpy(zero_copy_only=False)
        whole[start : start + len(column)] = values.reshape(len(column), -1)
        start += len(column)
    if start != n_rows:  # rows that were never read must not pass for embeddings
        raise ValueError(f"{n_rows} rows announced, {start} found")
    return whole
