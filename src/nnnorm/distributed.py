"""Apply a fitted `Corrector` to parquet files on many machines.

An item's bias depends only on the item and the corrector, so processes can share the rows in any
way. `transform_parquet` uses Ray, with one task per file or group of row groups. `make_worker`
returns a function for one batch, for Spark, Ray Data and other engines.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from nnnorm import errors
from nnnorm.corrector import Corrector
from nnnorm.errors import NNNormError, first_line, require, show_url, warn
from nnnorm.files import PathLike, Progress, write_whole

Output: TypeAlias = Literal["bias", "vectors"]

_NAMES = {"bias": "nnnorm_bias", "vectors": "vector"}
_BATCH_ROWS = 8192
# A file with more rows is split between its row groups.
_TASK_ROWS = 2**17
# The key of parquet's metadata that has the source and settings of a file.
_KEY = b"nnnorm"
_SUMMARY = "_nnnorm.json"


class _Shard(NamedTuple):
    """Row groups of one source file, and the file to write their result to."""

    path: str
    groups: list[int]
    n_rows: int
    target: str
    about: dict[str, Any]
    is_done: bool


def make_worker(
    corrector: Corrector,
    *,
    column: str = "embedding",
    ids: str = "id",
    groups: str | None = None,
    output: Output = "bias",
) -> Callable[[Any], Any]:
    """Return a function that maps a batch of items to their ids and bias values, or vectors.

    The batch is a pyarrow table or record batch, or a pandas frame. `column`, `ids` and `groups`
    are the names of its columns; `groups` is needed for a corrector that was fitted with groups.
    """
    if output not in _NAMES:
        raise NNNormError(f'output must be "bias" or "vectors"; got {output!r}')
    corrector.open_groups(None if groups is None else [], 0)  # raises if groups are missing
    needed = [name for name in (ids, column, groups) if name is not None]

    def work(batch: Any) -> Any:
        pyarrow = require("pyarrow", "parquet")
        _check_columns(needed, getattr(batch, "column_names", batch))
        is_pandas = hasattr(batch, "iloc")
        if is_pandas:
            batch = pyarrow.Table.from_pandas(batch[needed], preserve_index=False)
        rows = _read_rows(batch[column], batch[ids], corrector.dim)
        labels = None if groups is None else batch[groups].to_pylist()
        if output == "bias":
            values = corrector.bias_for(rows, groups=labels).values if len(rows) else rows[:, 0]
            made = pyarrow.array(values)
        else:
            vectors = corrector.transform_items(rows, groups=labels) if len(rows) else rows
            width = corrector.dim + corrector.augmentation.n_extra
            made = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), width)
        result = type(batch).from_pydict({ids: batch[ids], _NAMES[output]: made})
        return result.to_pandas() if is_pandas else result

    return work


def transform_parquet(
    corrector: Corrector,
    source: PathLike,
    destination: PathLike,
    *,
    column: str = "embedding",
    ids: str = "id",
    groups: str | None = None,
    output: Output = "bias",
    progress: Progress | None = None,
) -> int:
    """Compute bias values, or vectors to store, for a gallery in parquet files with Ray.

    Return the number of rows. If a previous call was interrupted, continue it.
    """
    work = make_worker(corrector, column=column, ids=ids, groups=groups, output=output)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")  # read when Ray is imported
    ray, find = require("ray", "ray"), require("fsspec", "ray").core.url_to_fs
    columns = [name for name in (ids, column, groups) if name is not None]
    about = {"corrector": corrector.fingerprint, "columns": columns, "output": output}
    (fs, root), (other, place) = (find(os.fspath(one)) for one in (source, destination))
    shards = _find_shards(fs, root, other, place, about)
    left = [shard for shard in shards if not shard.is_done]
    total = sum(shard.n_rows for shard in shards)
    done = total - sum(shard.n_rows for shard in left)
    if left and other.exists(f"{place}/{_SUMMARY}"):
        other.rm(f"{place}/{_SUMMARY}")  # its presence means that the destination is complete
    is_ours = not ray.is_initialized()
    if is_ours:
        _start(ray)
    try:
        for n_rows in _run(ray, work, fs, other, left):
            done += n_rows
            if progress is not None:
                progress(done, total)
    finally:
        if is_ours:
            ray.shutdown()
    summary = {**about, "method": corrector.method.to_dict(), "weight": corrector.weight}
    text = json.dumps({**summary, "n_rows": total, "n_files": len(shards)}, indent=1) + "\n"
    _write(other, f"{place}/{_SUMMARY}", text.encode())
    return total


# --- tasks ---------------------------------------------------------------------------------------


def _start(ray: Any) -> None:
    """Start Ray, or connect to the cluster of RAY_ADDRESS."""
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    except Exception as error:  # too little memory, no such cluster, another version of Ray
        user = os.environ.get("RAY_ADDRESS", "").rpartition("@")[0].rpartition("/")[2]
        said = errors.hide_secrets(first_line(error), "", user)
        raise NNNormError(
            f"Ray can't be started ({said}); check that `ray.init()` works "
            "here, and RAY_ADDRESS if it is set"
        ) from None  # the original error may contain the address, with a password


def _run(ray: Any, work: Any, fs: Any, other: Any, shards: list[_Shard]) -> Iterator[int]:
    """Run a task per shard, and yield its number of rows when it ends."""
    options = {"num_cpus": 1, "max_retries": 5, "retry_exceptions": [OSError]}
    task = ray.remote(_transform).options(name="nnnorm", **options)
    kept, notes = ray.put(work), list[str]()
    tasks = {task.remote(kept, fs, other, shard): shard for shard in shards}
    try:
        for ref in list(tasks):
            shard = tasks.pop(ref)
            notes += ray.get(ref)
            yield shard.n_rows
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        failed = (
            f"{show_url(shard.path)} failed ({first_line(cause)}); repeat the call to continue it"
        )
        raise NNNormError(str(cause) if isinstance(cause, NNNormError) else failed) from error
    finally:
        for ref in tasks:
            ray.cancel(ref, force=True)
    if notes:
        warn(f"{notes[0]} ({len(notes):,} such warnings in {len(shards):,} tasks)")


def _transform(work: Any, fs: Any, other: Any, shard: _Shard) -> list[str]:
    """Compute and write the result of one shard, on a worker; return the warnings."""
    threadpool_limits(1)  # Ray runs one task per core
    os.environ["OMP_NUM_THREADS"] = "1"
    pyarrow, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    with warnings.catch_warnings(record=True) as caught, _opened(fs, shard.path) as file:
        warnings.simplefilter("always", errors.NNNormWarning)
        batches = file.iter_batches(_BATCH_ROWS, shard.groups, columns=shard.about["columns"])
        table = pyarrow.Table.from_batches(map(work, batches))
    table = table.replace_schema_metadata({_KEY: json.dumps(shard.about)})
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    _write(other, shard.target, content.getvalue().to_pybytes())
    return [f"{show_url(shard.path)}: {one.message}" for one in caught]


# --- rows ----------------------------------------------------------------------------------------


def _check_columns(needed: list[str], names: Iterable[Any]) -> None:
    listed = [str(name) for name in names]
    for name in needed:
        if name not in listed:
            raise NNNormError(
                f"expected a column {name!r}; got {', '.join(listed) or 'no columns'}. "
                "Pass the names of your columns as column= and ids="
            )


def _read_rows(column: Any, ids: Any, dim: int) -> npt.NDArray[Any]:
    """Return embeddings, shape (n_rows, dim); raise an error with the id of an invalid row."""
    import pyarrow.compute

    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    column = getattr(column, "storage", column)  # unwraps extension types, such as Ray's tensors
    if not len(column):
        return np.empty((0, dim), dtype=np.float32)
    if not pyarrow.types.is_floating(getattr(column.type, "value_type", column.type)):
        raise NNNormError(f"expected embeddings as lists of floats; got {column.type}")
    lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy()
    rows, is_good = column.flatten().to_numpy(zero_copy_only=False), lengths == dim
    if is_good.all():
        rows = rows.reshape(-1, dim)
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        is_good = np.isfinite(squares) & (squares > 0)
    if not is_good.all():
        first = int(is_good.argmin())
        n_numbers = lengths[first]
        what = f"has {n_numbers} numbers" if n_numbers != dim else "is all zeros or has NaN"
        raise NNNormError(
            f"the item with id {ids[first].as_py()!r} {what}; expected {dim} finite numbers. "
            "Remove it or encode it again"
        )
    return rows


# --- files ---------------------------------------------------------------------------------------


def _find_shards(fs: Any, root: str, other: Any, place: str, about: dict[str, Any]) -> list[_Shard]:
    """List the shards of all files; raise an error if a file lacks a column."""
    found = [path for path in sorted(fs.find(root)) if path.endswith(".parquet")]
    if not found:
        raise NNNormError(f"expected a .parquet file or a folder of them; got {show_url(root)}")
    folder = root.rpartition("/")[0] if found == [root] else root
    if place == folder or place.startswith(f"{root}/"):
        raise NNNormError(f"the destination {place} is inside the source; choose another folder")
    known = {path for path in other.find(place) if path.endswith(".parquet")}

    def split(path: str) -> list[_Shard]:
        shards = []
        with _opened(fs, path) as file:
            _check_columns(about["columns"], file.schema_arrow.names)
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        runs = groupby(np.flatnonzero(sizes).tolist(), lambda n: starts[n] // _TASK_ROWS)
        for groups in [list(run) for _, run in runs]:
            n_rows = sum(sizes[n] for n in groups)
            part = "" if n_rows == starts[-1] else f"-{groups[0]:05d}"
            target = f"{place}{path[len(folder) : -8]}{part}.parquet"
            kept = {**about, "source": fs.ukey(path), "groups": str(groups)}
            is_done = target in known and _is_done(other, target, about, kept)
            shards.append(_Shard(path, groups, n_rows, target, kept, is_done))
        return shards

    with ThreadPoolExecutor(16) as pool:  # reading from an object store is mostly waiting
        shards = [shard for some in pool.map(split, found) for shard in some]
    if strays := known - {shard.target for shard in shards}:
        raise NNNormError(f"{min(strays)} isn't a result of {root}; choose an empty destination")
    return shards


def _is_done(fs: Any, path: str, about: dict[str, Any], kept: dict[str, Any]) -> bool:
    """Return whether a file has these results; raise an error if it has others."""
    with _opened(fs, path) as file:
        found = json.loads((file.schema_arrow.metadata or {}).get(_KEY, b"{}"))
        if not about.items() <= found.items():
            raise NNNormError(
                "this file was written with another corrector or other columns, and values of two "
                "correctors must not be mixed; choose an empty destination"
            )
    return bool(found == kept)


@contextmanager
def _opened(fs: Any, path: str) -> Iterator[Any]:
    """Open a parquet file; error messages contain its path."""
    pyarrow, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    try:
        with fs.open(path, "rb") as stream, parquet.ParquetFile(stream) as file:
            yield file
    except NNNormError as error:
        raise NNNormError(f"{show_url(path)}: {error}") from error
    except pyarrow.ArrowInvalid as error:
        raise NNNormError(
            f"{show_url(path)} can't be read as parquet ({first_line(error)})"
        ) from error


def _write(fs: Any, path: str, content: bytes) -> None:
    """Write a file atomically, on this machine or in an object store."""
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    if "file" in fs.protocol:
        write_whole(path, lambda file: file.write(content))
    else:
        fs.pipe_file(path, content)
