"""The worker as a function of Spark's `mapInPandas`: DataFrames of items in, ids and values out.

Spark reads the gallery and decides which worker gets which rows; every worker loads the settled job
once and values what it is given. Nothing is shuffled. `bias_of_batches` needs pandas only, so that
any engine that maps over batches can use it; `bias_of_frame` wraps it for a DataFrame of Spark.
"""

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.cluster.files import JOB_FILE
from nnnorm.cluster.job import Job
from nnnorm.errors import NNNormError, explain_arguments, require
from nnnorm.io import find_place

# Of pandas; the library is only needed on the workers.
Batches: TypeAlias = Iterator[Any]
Folder: TypeAlias = str | os.PathLike[str]
BIAS = "nnnorm_bias"


@explain_arguments
def bias_of_batches(
    job: "Job | Folder", *, id_column: str = "id", embedding_column: str = "embedding"
) -> Callable[[Batches], Batches]:
    """Make a function that values batches of items.

    Parameters
    ----------
    job : path or Job
        The folder of a settled job, which every worker must be able to read, or the job itself,
        which is sent to the workers with its bank.
    id_column, embedding_column : str
        Columns of the batches: an id, and a list of floats.

    Returns
    -------
    callable
        Takes an iterator of pandas DataFrames and yields DataFrames with the ids and
        ``nnnorm_bias`` (float32), as `DataFrame.mapInPandas` of Spark wants it.

    Examples
    --------
    >>> frame.mapInPandas(bias_of_batches("job"), "id bigint, nnnorm_bias float")  # doctest: +SKIP
    """
    if isinstance(job, Job):
        _refuse_gates(job)

    def value(batches: Batches) -> Batches:
        pandas = require("pandas", "spark")
        settled = job if isinstance(job, Job) else _load(os.fspath(job), _read_head(job))
        for batch in batches:
            for column in (id_column, embedding_column):
                if column not in batch.columns:
                    raise NNNormError(
                        f"the items need a column {column!r}; they have "
                        f"{', '.join(map(str, batch.columns)) or 'none'}"
                    )
            values = np.empty(0, dtype=np.float32)
            if len(batch):
                values = settled.value(_stack(batch[embedding_column], batch[id_column])).values
            yield pandas.DataFrame({id_column: batch[id_column].to_numpy(), BIAS: values})

    return value


@explain_arguments
def bias_of_frame(
    frame: Any, job: "Job | Folder", *, id_column: str = "id", embedding_column: str = "embedding"
) -> Any:
    """Value every row of a DataFrame of Spark.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        With a column of ids and one of embeddings (`array<float>`).
    job, id_column, embedding_column
        As in `bias_of_batches`.

    Returns
    -------
    pyspark.sql.DataFrame
        The ids, of the type they have, and ``nnnorm_bias``; not computed yet.

    Examples
    --------
    >>> bias_of_frame(spark.read.parquet("items"), "job").write.parquet("bias")  # doctest: +SKIP
    """
    for column in (id_column, embedding_column):
        if column not in frame.columns:
            raise NNNormError(
                f"the items need a column {column!r}; they have {', '.join(frame.columns)}"
            )
    types = require("pyspark.sql.types", "spark")
    named = types.StructField(id_column, frame.schema[id_column].dataType)
    schema = types.StructType([named, types.StructField(BIAS, types.FloatType())])
    function = bias_of_batches(job, id_column=id_column, embedding_column=embedding_column)
    return frame.select(id_column, embedding_column).mapInPandas(function, schema)


@lru_cache(maxsize=1)
def _load(folder: str, head: bytes) -> Job:
    """A worker process values many partitions, and loads the job for the first of them."""
    job = Job.load(folder)
    _refuse_gates(job)
    return job


def _read_head(folder: Folder) -> bytes:
    """The description of a job, with its digest; it differs where another one took its place."""
    path = find_place(folder) / JOB_FILE
    if not path.exists():
        return b""  # which `Job.load` explains
    if not isinstance(path, Path):
        return path.read(8, 8 + int.from_bytes(path.read(0, 8), "little"))
    with path.open("rb") as file:  # safetensors: the length of the description comes first
        return file.read(int.from_bytes(file.read(8), "little"))


def _refuse_gates(job: Job) -> None:
    """Raise where the value of an item depends on which items are the best of the whole gallery."""
    if job.method.gated_by:
        raise NNNormError(
            f"method {job.method.name} has gates, which need the whole gallery, and batches are "
            "valued one by one; use nnnorm fit --shard and nnnorm merge, or a method without gates"
        )


def _stack(column: Any, ids: Any) -> npt.NDArray[Any]:
    """The embeddings of a batch as one array; a row that differs is named by its id."""
    rows = [np.empty(0) if row is None else np.asarray(row) for row in column]
    widths = [len(row) if row.ndim == 1 else 0 for row in rows]
    usual = max(set(widths), key=widths.count)
    for row, (width, own) in enumerate(zip(widths, ids, strict=True)):
        if width != usual or width == 0:
            what = "no embedding" if width == 0 else f"{width} numbers, the others {usual}"
            raise NNNormError(f"the item with the id {own!r} (row {row} of a batch) has {what}")
    return np.stack(rows)
