"""A gallery in parquet files, corrected on many machines by a `Corrector` that is fitted already.

An item's bias depends on the item and the corrector only, so this is a map over rows: nothing is
shuffled, and any process may compute any rows. `transform_parquet` runs that map on Ray, one task
per file or group of row groups. `make_worker` returns the same map as a function of one batch, for
Spark, Ray Data and other engines.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from nnnorm.corrector import Corrector
from nnnorm.errors import (
    NNNormError,
    NNNormWarning,
    first_line,
    hide_secrets,
    require,
    show_url,
    warn,
)
from nnnorm.files import Progress, write_whole

Output: TypeAlias = Literal["bias", "vectors"]
Place: TypeAlias = str | os.PathLike[str]

_NAMES = {"bias": "nnnorm_bias", "vectors": "vector"}
_BATCH_ROWS = 8192
# A file with more rows is split between its row groups.
_TASK_ROWS = 2**17
# Of parquet's metadata: what a file was computed from.
_KEY = b"nnnorm"
_SUMMARY = "_nnnorm.json"


class _Shard(NamedTuple):
    """Row groups of one source file, and the file that their result goes to."""

    path: str
    groups: list[int]
    n_rows: int
    target: str
    about: dict[str, str]
    is_done: bool


def make_worker(
    corrector: Corrector,
    *,
    column: str = "embedding",
    ids: str = "id",
    groups: str | None = None,
    output: Output = "bias",
) -> Callable[[Any], Any]:
    """Return a function that maps one batch of items to their ids and bias values.

    `groups` is the column of their groups, for a corrector that was fitted with groups.
    """
    if output not in _NAMES:
        raise NNNormError(f'output must be "bias" or "vectors"; got {output!r}')

    needed = tuple(name for name in (ids, column, groups) if name is not None)

    def work(batch: Any) -> Any:
        pyarrow = require("pyarrow", "parquet")
        _check_columns(needed, list(getattr(batch, "column_names", batch)))
        is_pandas = hasattr(batch, "iloc")
        if is_pandas:
            batch = pyarrow.Table.from_pandas(batch[list(needed)], preserve_index=False)
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
    source: Place,
    destination: Place,
    *,
    column: str = "embedding",
    ids: str = "id",
    groups: str | None = None,
    output: Output = "bias",
    progress: Progress | None = None,
) -> int:
    """Compute bias values, or vectors to store, for a gallery in parquet files, on Ray."""
    make_worker(corrector, output=output)  # checks the output
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")  # read when Ray is imported
    ray, find = require("ray", "ray"), require("fsspec", "ray").core.url_to_fs
    about = {"corrector": corrector.fingerprint, "column": column, "ids": ids, "output": output}
    if groups is not None:
        about["groups_column"] = groups
    corrector.open_groups(
        None if groups is None else np.array([], dtype=str), 0
    )  # rejected before the work
    (fs, root), (other, place) = (find(os.fspath(one)) for one in (source, destination))
    shards = _find_shards(fs, root, other, place, about)
    left = [shard for shard in shards if not shard.is_done]
    total = sum(shard.n_rows for shard in shards)
    done = total - sum(shard.n_rows for shard in left)
    if left and other.exists(f"{place}/{_SUMMARY}"):
        other.rm(f"{place}/{_SUMMARY}")  # a destination that has it is complete
    is_ours = not ray.is_initialized()
    if is_ours:
        _start(ray)
    try:
        for n_rows in _run(ray, corrector, fs, other, left):
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
    except Exception as error:  # no memory for its store, no such cluster, a version that differs
        address = os.environ.get("RAY_ADDRESS", "")
        reason = hide_secrets(first_line(error), address)
        where = f" at {show_url(address)}" if address else ""
        raise NNNormError(
            f"Ray can't be started{where} ({reason}); check that `ray.init()` works here, and "
            "RAY_ADDRESS if it is set"
        ) from (error if reason == first_line(error) else None)


def _run(
    ray: Any, corrector: Corrector, fs: Any, other: Any, shards: list[_Shard]
) -> Iterator[int]:
    """Run a task per shard, a few more than there are cores at a time; yield numbers of rows."""
    options = {"num_cpus": 1, "max_retries": 5, "retry_exceptions": [OSError]}
    task = ray.remote(_transform).options(name="nnnorm", **options)
    kept = ray.put(corrector)
    waiting, flying, notes = shards[::-1], dict[Any, _Shard](), list[str]()
    n_most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        while waiting or flying:
            while waiting and len(flying) < n_most:
                shard = waiting.pop()
                flying[task.remote(kept, fs, other, shard)] = shard
            for ref in ray.wait(list(flying), timeout=2)[0]:  # so that Ctrl-C is noticed
                shard = flying.pop(ref)
                notes += ray.get(ref)
                yield shard.n_rows
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        said = f"{shard.path} failed ({first_line(cause)}); the same call continues where it ended"
        raise NNNormError(str(cause) if isinstance(cause, NNNormError) else said) from error
    finally:
        for ref in flying:
            ray.cancel(ref, force=True)
    if notes:
        warn(f"{notes[0]} ({len(notes):,} such warnings in {len(shards):,} tasks)")


def _transform(corrector: Corrector, fs: Any, other: Any, shard: _Shard) -> list[str]:
    """Write the result of one shard, on a worker; return the warnings."""
    threadpool_limits(1)  # Ray runs one task per core
    os.environ["OMP_NUM_THREADS"] = "1"
    column, ids, output = (shard.about[name] for name in ("column", "ids", "output"))
    groups = shard.about.get("groups_column")
    columns = {"column": column, "ids": ids, "groups": groups}
    work = make_worker(corrector, **columns, output=output)  # type: ignore[arg-type]
    pyarrow, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    with warnings.catch_warnings(record=True) as caught, _opened(fs, shard.path) as file:
        warnings.simplefilter("always", NNNormWarning)
        batches = file.iter_batches(
            _BATCH_ROWS, shard.groups, columns=[name for name in columns.values() if name]
        )
        table = pyarrow.Table.from_batches([work(batch) for batch in batches])
    table = table.replace_schema_metadata({_KEY: json.dumps(shard.about)})
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    _write(other, shard.target, content.getvalue().to_pybytes())
    return [f"{shard.path}: {one.message}" for one in caught]


# --- rows ----------------------------------------------------------------------------------------


def _check_columns(needed: tuple[str, ...], names: list[Any]) -> None:
    for name in needed:
        if name not in names:
            raise NNNormError(
                f"expected a column {name!r}; got {', '.join(map(str, names)) or 'no columns'}. "
                "Name the columns with column= and ids="
            )


def _read_rows(column: Any, ids: Any, dim: int) -> npt.NDArray[Any]:
    """Embeddings, shape (n_rows, dim); an error names the id of the first row that is wrong."""
    import pyarrow.compute

    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    column = getattr(column, "storage", column)  # of an extension type, such as Ray's tensors
    if not len(column):
        return np.empty((0, dim), dtype=np.float32)
    if not pyarrow.types.is_floating(getattr(column.type, "value_type", column.type)):
        raise NNNormError(f"expected embeddings as lists of floats; got {column.type}")
    lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy()
    rows = column.flatten().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dim)
    what = f"has {lengths[wrong[0]]} numbers" if len(wrong) else "is all zeros or has NaN"
    if not len(wrong):
        rows = rows.reshape(-1, dim)
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        wrong = np.flatnonzero(~(np.isfinite(squares) & (squares > 0)))
    if len(wrong):
        raise NNNormError(
            f"the item with id {ids[int(wrong[0])].as_py()!r} {what}; expected {dim} finite "
            "numbers. Remove it or encode it again"
        )
    return rows


# --- files ---------------------------------------------------------------------------------------


def _find_shards(fs: Any, root: str, other: Any, place: str, about: dict[str, str]) -> list[_Shard]:
    """Read the footers of all files, so that a missing column is noticed before the work."""
    is_file = fs.isfile(root)
    folder = root.rpartition("/")[0] if is_file else root
    found = [root] if is_file else sorted(fs.find(root)) if fs.isdir(root) else []
    names = [path[len(folder) + 1 :] for path in found if path.endswith(".parquet")]
    if not names:
        raise NNNormError(f"expected a .parquet file or a folder of them; got {root}")
    if place == folder or (not is_file and place.startswith(f"{folder}/")):
        raise NNNormError(f"the destination {place} is inside the source; choose another folder")
    known = set(other.find(place)) if other.isdir(place) else set()

    def look(name: str) -> list[_Shard]:
        path, shards = f"{folder}/{name}", []
        with _opened(fs, path) as file:
            needed = (about["column"], about["ids"], about.get("groups_column", about["ids"]))
            _check_columns(needed, file.schema_arrow.names)
            sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        runs = groupby(np.flatnonzero(sizes).tolist(), lambda n: starts[n] // _TASK_ROWS)
        for groups in [list(run) for _, run in runs]:
            n_rows = sum(sizes[n] for n in groups)
            part = "" if n_rows == starts[-1] else f"-{groups[0]:05d}"
            target = f"{place}/{name[:-8]}{part}.parquet"
            kept = {**about, "source": fs.ukey(path), "groups": str(groups)}
            is_done = target in known and _is_done(other, target, about, kept)
            shards.append(_Shard(path, groups, n_rows, target, kept, is_done))
        return shards

    with ThreadPoolExecutor(16) as pool:  # footers in an object store are many short waits
        shards = [shard for some in pool.map(look, names) for shard in some]
    targets = {shard.target for shard in shards}
    if strays := [path for path in known - targets if path.endswith(".parquet")]:
        raise NNNormError(f"{min(strays)} isn't a result of {root}; choose an empty destination")
    return shards


def _is_done(fs: Any, path: str, about: dict[str, str], kept: dict[str, str]) -> bool:
    """Whether a file has these results; raise if it has those of another call."""
    with _opened(fs, path) as file:
        found = json.loads((file.schema_arrow.metadata or {}).get(_KEY, b"{}"))
        if not about.items() <= found.items():
            raise NNNormError(
                "this file was not written with the same corrector and columns, and values of two "
                "correctors must not be mixed; choose an empty destination"
            )
    return bool(found == kept)


@contextmanager
def _opened(fs: Any, path: str) -> Iterator[Any]:
    """Open a parquet file; errors name it."""
    pyarrow, parquet = require("pyarrow", "ray"), require("pyarrow.parquet", "ray")
    try:
        with fs.open(path, "rb") as stream, parquet.ParquetFile(stream) as file:
            yield file
    except NNNormError as error:
        raise NNNormError(f"{path}: {error}") from error
    except pyarrow.ArrowInvalid as error:
        raise NNNormError(f"{path} can't be read as parquet ({first_line(error)})") from error


def _write(fs: Any, path: str, content: bytes) -> None:
    """Write a file that appears whole, on this machine or in an object store."""
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    if "file" in fs.protocol:
        write_whole(path, lambda file: file.write(content))
    else:
        fs.pipe_file(path, content)
