"""Scores in blocks, and reductions of a score matrix that is never in memory as a whole.

                      columns (references, or the gallery in a search)
                    ┌─────────┬─────────┬─────────┐
    rows            │    ·    │    ·    │    ·    │ ─► reducer: update, update, update, finish
    (gallery, or    ├─────────┼─────────┼─────────┤
    the queries)    │    ·    │    ·    │    ·    │ ─► reducer …
                    └─────────┴─────────┴─────────┘

`Products` and `Matrix` compute blocks, and `reduce_rows` visits them within a memory budget. A
reducer finds the k best scores of each row (`top_k`) or their mean (`top_means`); the reducer of
log-mean-exps is in `softmax.py`. Each strip of rows has its own reducer, which is updated with the
strip's blocks from the first column to the last. An update takes some rows of a block, which it may
overwrite, so threads can share one block.

If there are enough rows, every thread multiplies its own strips, with BLAS limited to one thread,
and reduces them while they are in its cache. So threads never wait for each other
(`strips_in_order`). Otherwise, BLAS splits each block among its threads, and `in_threads` splits
the work between two products. Except for float32 rounding, results don't depend on block size,
threads or memory budget.
"""

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnnorm.embeddings import Embeddings, FloatArray, IntArray, StoredMatrix, check_same_dim
from nnnorm.errors import NNNormError
from nnnorm.files import Progress

Strip: TypeAlias = Callable[[int, int, FloatArray], None]

DEFAULT_MEMORY_BUDGET = 512 * 2**20
# With blocks of this many scores (32 MB), BLAS reaches its full speed.
_BLOCK_SCORES = 8 * 2**20
_SMALLEST_BUDGET = 2**20
# If there is less memory per thread, all threads share one strip.
_WORKER_BUDGET = 16 * 2**20


# --- scores in blocks --------------------------------------------------------------------------


@dataclass(eq=False)
class Products:
    """Scores ``rows · columnsᵀ − offset`` of embeddings; the offset, one per column, is a bias."""

    rows: Embeddings
    columns: Embeddings
    offset: FloatArray | None = None
    memory_budget: int = DEFAULT_MEMORY_BUDGET

    def __post_init__(self) -> None:
        rows, columns = self.rows, self.columns
        check_same_dim(rows, columns)
        self.shape = len(rows), len(columns)
        if not columns.in_memory and 4 * len(columns) * columns.dim <= self.memory_budget // 4:
            widened = columns.rows(0, len(columns))  # to float32, once for all strips
            columns.check_unchanged()
            self.columns = Embeddings([widened], columns.name)
        # Reading a block from disk allocates the stored values and their float32 copy.
        self.row_bytes = 0 if rows.in_memory else 8 * rows.dim
        self.column_bytes = 0 if self.columns.in_memory else 8 * rows.dim

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop``, and return a function that multiplies them by some columns."""
        block = self.rows.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> None:
            np.matmul(block, self.columns.rows(first, last).T, out=out)
            if self.offset is not None:
                out -= self.offset[first:last]

        return read

    def check_unchanged(self) -> None:
        """Raise an error if a mapped file has changed since it was opened."""
        self.rows.check_unchanged()
        self.columns.check_unchanged()

    def some_rows(self, indices: IntArray) -> "Products":
        """Return the scores of some rows only, without the offset."""
        return Products(self.rows.subset(indices), self.columns, memory_budget=self.memory_budget)

    def transposed(self) -> "Products":
        """Return the products with rows and columns exchanged, without the offset."""
        return Products(self.columns, self.rows, memory_budget=self.memory_budget)

    def mean(self) -> FloatArray:
        """Return the mean score of every row, without the offset, in one pass over each side."""
        center = self.columns.column_means()
        return np.concatenate([(block @ center).astype("f4") for _, block in self.rows.blocks()])

    def centered(self, center: FloatArray | None) -> "Products":
        """Return products of centered rows; `center`, shape ``(dim,)``, defaults to their mean."""
        rows = replace(self.rows, center=self.rows.mean() if center is None else center)
        return Products(rows, self.columns, memory_budget=self.memory_budget)


@dataclass(eq=False)
class Matrix:
    """Existing scores minus an offset per column, shape ``(n_rows, n_columns)``."""

    matrix: StoredMatrix
    is_transposed: bool = False
    offset: FloatArray | None = None
    memory_budget: int = DEFAULT_MEMORY_BUDGET
    column_bytes = 0

    def __post_init__(self) -> None:
        self.shape = self.matrix.shape[::-1] if self.is_transposed else self.matrix.shape
        self.row_bytes = 4 * self.shape[1]

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop``, and return a function that copies some columns of them."""
        if self.is_transposed:
            rows = np.empty((stop - start, self.shape[1]), dtype=np.float32)
            for first_row, block in self.matrix.blocks():
                rows[:, first_row : first_row + len(block)] = block[:, start:stop].T
        else:
            rows = self.matrix.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> None:
            out[...] = rows[:, first:last]
            if self.offset is not None:
                out -= self.offset[first:last]

        return read

    def check_unchanged(self) -> None:
        """Raise an error if a mapped file has changed since it was opened."""
        self.matrix.check_unchanged()

    def some_rows(self, indices: IntArray) -> "Matrix":
        """Return the scores of some rows only."""
        some = StoredMatrix([self.matrix.take(indices)], self.matrix.name)
        return replace(self, matrix=some)

    def transposed(self) -> "Matrix":
        """Return the scores with rows and columns exchanged, without a copy."""
        return replace(self, is_transposed=not self.is_transposed, offset=None)

    def mean(self) -> FloatArray:
        """Return the mean score of every row, without the offset."""
        means = [block.mean(axis=1, dtype=np.float64) for _, block in self.matrix.blocks()]
        return np.concatenate(means).astype(np.float32)

    def centered(self, center: FloatArray | None) -> "Matrix":
        """Return the scores minus `center`, one number per column, by default its mean."""
        if center is None:
            center = self.matrix.column_means().astype(np.float32)
        return replace(self, offset=center)


# A matrix of scores that is read in blocks.
Scores: TypeAlias = Products | Matrix


def fill_rows(scores: Scores, start: int, out: FloatArray) -> None:
    """Compute whole rows from `start` on; columns that need conversion are read in blocks."""
    read, n_block = scores.strip(start, start + len(out)), out.shape[1]
    if scores.column_bytes:
        n_block = max(1, min(n_block, scores.memory_budget // 8 // scores.column_bytes))
    for first in range(0, out.shape[1], n_block):
        last = min(first + n_block, out.shape[1])
        read(first, last, out[:, first:last])
    scores.check_unchanged()


# --- reductions --------------------------------------------------------------------------------


class TopK(NamedTuple):
    """The best `k` of each row, best first."""

    scores: FloatArray
    indices: IntArray


class Sample(NamedTuple):
    """Random items, their exact means, and the processor time that these took."""

    rows: IntArray
    exact: FloatArray
    seconds: float


def top_k(scores: Scores, k: int, progress: Progress | None = None) -> TopK:
    """Find the k best columns of every row; ties go to the lower column."""
    n_rows = scores.shape[0]
    found = TopK(np.empty((n_rows, k), np.float32), np.empty((n_rows, k), np.int64))
    # Bytes per row: 3k candidates with their sort keys.
    for start, stop, best in _reduce_best(scores, KeepBest, k, 64 * (3 * k + 64), progress):
        found.scores[start:stop], found.indices[start:stop] = best
    return found


def top_means(scores: Scores, k: int, progress: Progress | None = None) -> FloatArray:
    """Compute the mean of the k best values of every row: ``m_k``, shape ``(n_rows,)``."""
    means = np.empty(scores.shape[0], dtype=np.float32)
    for start, stop, best in _reduce_best(scores, KeepBestValues, k, 4 * (10 * k + 128), progress):
        means[start:stop] = best.mean(axis=1, dtype=np.float64)
    return means


def _reduce_best(
    scores: Scores, kind: Any, k: int, bytes_per_row: int, progress: Progress | None
) -> Iterator[tuple[int, int, Any]]:
    # Bytes per score: a partitioned copy and a mask.
    needs: dict[str, Any] = {"bytes_per_score": 5, "bytes_per_row": bytes_per_row, "narrowest": k}
    return reduce_rows(scores, partial(kind, k=k), **needs, progress=progress)


class KeepBestValues:
    """Reducer that finds the k best values of each row, best first: ``(n_rows, k)``."""

    def __init__(self, n_rows: int, k: int) -> None:
        self._k = k
        self._buffer = np.full((n_rows, 3 * k + 64), -np.inf, dtype=np.float32)
        self._filled = np.full(n_rows, k)
        self._threshold = np.full(n_rows, -np.inf, dtype=np.float32)

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        """Include some rows of a block."""
        block = block[rows]
        k, size = self._k, self._buffer.shape[1]
        better = block > self._threshold[rows, None]
        if np.count_nonzero(better) > k * len(block):
            self._merge(block, rows)
            return
        found = np.flatnonzero(better)  # much faster than nonzero on two dimensions
        places, columns = np.divmod(found, block.shape[1])
        counts = np.bincount(places, minlength=len(block))
        if counts.max() > size - k:
            self._merge(block, rows)
            return
        self._compact(rows.start + np.flatnonzero(self._filled[rows] + counts > size))
        starts = self._filled[rows] - (np.cumsum(counts) - counts)
        slots = np.arange(len(found)) + starts[places]
        self._buffer[places + rows.start, slots] = block[places, columns]
        self._filled[rows] += counts

    def _merge(self, block: FloatArray, rows: slice) -> None:
        """Merge a block that has many better scores, such as the first one, by partitioning."""
        k = self._k
        if block.shape[1] > k:
            block = np.partition(block, -k, axis=1)[:, -k:]
        both = block
        is_first = self._filled[rows].max() == k and self._threshold[rows].max() == -np.inf
        if not is_first or block.shape[1] < k:
            both = np.concatenate([self._buffer[rows], block], axis=1)
            both.partition(both.shape[1] - k, axis=1)
        self._store(rows, both[:, -k:])

    def _compact(self, rows: IntArray) -> None:
        """Move the k best of some buffers to their front, and raise the thresholds."""
        if len(rows):
            self._store(rows, np.partition(self._buffer[rows], -self._k, axis=1)[:, -self._k :])

    def _store(self, rows: slice | IntArray, best: FloatArray) -> None:
        self._buffer[rows, : self._k] = best
        self._buffer[rows, self._k :] = -np.inf
        self._filled[rows] = self._k
        self._threshold[rows] = best.min(axis=1)

    def finish(self) -> FloatArray:
        """Return the result of the strip."""
        self._compact(np.flatnonzero(self._filled > self._k))
        best = self._buffer[:, : self._k].copy()
        best.sort(axis=1)
        return best[:, ::-1]


class KeepBest:
    """Reducer that finds the k best values of each row and their columns, both ``(n_rows, k)``."""

    def __init__(self, n_rows: int, k: int) -> None:
        self._values = np.full((n_rows, k), -np.inf, dtype=np.float32)
        # Empty slots are sorted after all columns.
        self._columns = np.full((n_rows, k), np.iinfo(np.int64).max)

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        """Include some rows of a block."""
        block = block[rows]
        n_rows, n_columns = block.shape
        values, columns = self._values[rows], self._columns[rows]
        k = values.shape[1]
        # A later column must exceed the current k-th best: on a tie, the lower column stays.
        is_better = block > values[:, -1:]
        if n_columns > k and np.count_nonzero(is_better) > 2 * n_rows * k:
            cut = np.partition(block, n_columns - k, axis=1)[:, n_columns - k]
            is_better &= block >= cut[:, None]
            # Many scores may equal the cut.
            for row in np.flatnonzero(np.count_nonzero(is_better, axis=1) > 2 * k + 64):
                equal = np.flatnonzero(is_better[row] & (block[row] == cut[row]))
                is_better[row, equal[k:]] = False
        # Much faster than nonzero on two dimensions.
        places, found = np.divmod(np.flatnonzero(is_better), n_columns)
        if len(places) == 0:
            return
        of_row = np.concatenate([np.repeat(np.arange(n_rows), k), places])
        all_columns = np.concatenate([columns.ravel(), found + first_column])
        all_values = np.concatenate([values.ravel(), block[places, found]])
        order = np.lexsort((all_columns, -all_values, of_row))
        of_row = of_row[order]
        kept = order[np.arange(len(order)) - np.searchsorted(of_row, of_row) < k]
        self._values[rows] = all_values[kept].reshape(n_rows, k)
        self._columns[rows] = all_columns[kept].reshape(n_rows, k)

    def finish(self) -> tuple[FloatArray, IntArray]:
        """Return the result of the strip."""
        return self._values, self._columns


# --- blocks and strips -------------------------------------------------------------------------


class Reducer(Protocol):
    """Reduces one strip of rows while its blocks are read."""

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        """Include some rows of a block, which may be overwritten there."""

    def finish(self) -> Any:
        """Return the result of the strip."""


def reduce_rows(
    scores: Scores,
    make_reducer: Callable[[int], Reducer],
    *,
    bytes_per_score: int,
    bytes_per_row: int,
    narrowest: int = 1,
    progress: Progress | None = None,
) -> Iterator[tuple[int, int, Any]]:
    """Visit all scores once, strip by strip, and yield ``(start, stop, result)`` in row order.

    If memory allows, a block has at least `narrowest` columns, such as k for the k best.
    """
    n_rows, n_columns = scores.shape
    memory_budget = scores.memory_budget
    if memory_budget < _SMALLEST_BUDGET:
        raise NNNormError(
            f"memory_budget must be at least {_SMALLEST_BUDGET} bytes (1 MB); got {memory_budget}"
        )
    n_workers = count_threads()
    if n_rows < 128 * n_workers or memory_budget < _WORKER_BUDGET * n_workers:
        n_workers = 1  # one strip at a time, with the threads of BLAS
    needs = 4 + bytes_per_score, bytes_per_row, memory_budget // n_workers, narrowest
    n_strip, n_block = _plan(scores, *needs)
    if n_workers > 1:
        # Strips of equal size, the same number per thread; larger if each strip converts columns.
        n_strip = min(n_strip, 4096 if scores.column_bytes else 1280)
        n_turns = -(-n_rows // (n_strip * n_workers))
        n_strip = -(-n_rows // (n_turns * n_workers))
    stop, done = threading.Event(), Done(progress, n_rows * n_columns)

    def reduce(first_row: int, last_row: int) -> Any:
        n = last_row - first_row
        buffer = np.empty(n * min(n_block, n_columns), dtype=np.float32)
        read = scores.strip(first_row, last_row)
        reducer = make_reducer(n)
        for first in range(0, n_columns, n_block):
            if stop.is_set():
                return None
            last = min(first + n_block, n_columns)
            out = buffer[: n * (last - first)].reshape(n, last - first)
            read(first, last, out)
            if n_workers > 1:
                reducer.update(out, first, slice(0, n))
            else:
                in_threads(partial(reducer.update, out, first), out)
            done.add(out.size)
        return reducer.finish()

    if n_workers > 1:
        yield from strips_in_order(reduce, n_rows, n_strip, stop)
    else:
        for start in range(0, n_rows, n_strip):
            end = min(start + n_strip, n_rows)
            yield start, end, reduce(start, end)
    scores.check_unchanged()


def _plan(
    scores: Scores, bytes_per_score: int, bytes_per_row: int, memory_budget: int, narrowest: int
) -> tuple[int, int]:
    """Choose rows per strip and columns per block, so that all allocations fit in the budget."""
    n_rows, n_columns = scores.shape
    # A quarter is reserved for a bank converted to float32 (`Products`) and temporary arrays.
    free = memory_budget * 3 // 4
    n_block = min(n_columns, max(2048, 16 * narrowest))
    n_block = max(1, min(n_block, free // (4 * max(1, scores.column_bytes))))
    free -= n_block * scores.column_bytes
    per_row = n_block * bytes_per_score + bytes_per_row + scores.row_bytes
    n_strip = min(n_rows, max(1, free // per_row), max(1024, _BLOCK_SCORES // n_block))
    # Few rows, such as a handful of queries, allow wider blocks.
    free -= n_strip * per_row
    wider = (_BLOCK_SCORES // n_strip, n_block + free // max(1, n_strip * bytes_per_score * 2))
    if scores.column_bytes == 0:
        n_block = min(n_columns, max(n_block, min(wider)))
    return n_strip, n_block


# --- threads -----------------------------------------------------------------------------------


def in_threads(work: Callable[[slice], None], block: FloatArray) -> None:
    """Call `work` on slices of a block's rows in threads; numpy releases the GIL."""
    n_threads = count_threads()
    if n_threads == 1 or block.size < 2**18 or len(block) < n_threads:
        work(slice(0, len(block)))
        return
    edges = np.linspace(0, len(block), n_threads + 1).astype(int)
    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    with ThreadPoolExecutor(n_threads, "nnnorm") as pool:
        list(pool.map(work, slices))  # re-raises errors of threads


def strips_in_order(
    work: Callable[[int, int], Any], n_rows: int, n_strip: int, stop: threading.Event | None = None
) -> Iterator[tuple[int, int, Any]]:
    """Compute strips of rows on all threads, and yield ``(start, stop, work(start, stop))``.

    `stop` is set when the caller needs no more results; `work` may check it.
    """
    starts, n_threads = range(0, n_rows, n_strip), count_threads()
    # If BLAS uses OpenMP, the limit is per thread, so every worker sets it.
    pool = ThreadPoolExecutor(n_threads, "nnnorm", _limit_blas)
    with one_blas_thread(), pool:
        futures: deque[Future[Any]] = deque()
        try:
            for number, start in enumerate(starts):
                # Workers are only a few strips ahead of the consumer, to limit memory.
                for ahead in starts[number + len(futures) : number + 2 * n_threads]:
                    futures.append(pool.submit(work, ahead, min(ahead + n_strip, n_rows)))
                yield start, min(start + n_strip, n_rows), futures.popleft().result()
        finally:
            if stop is not None:
                stop.set()
            pool.shutdown(cancel_futures=True)


def draw_rows(n_rows: int, most: int, rng: np.random.Generator | None = None) -> IntArray:
    """Draw at most `most` random row numbers, in order."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort((rng or np.random.default_rng(0)).choice(n_rows, most, replace=False))


def count_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, otherwise the number of available cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_time() -> float:
    """Return the processor seconds of this process, divided by the number of threads.

    The difference of two calls is the time that the work between them takes on free cores.
    """
    return time.process_time() / count_threads()


def _limit_blas() -> Any:
    return _blas().limit(limits=1, user_api="blas")


class _Limit:
    """Number of callers that currently limit BLAS, and the handle that ends the limit."""

    lock = threading.Lock()
    holders = 0
    release: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread until the last caller exits."""
    with _Limit.lock:
        _Limit.holders += 1
        if _Limit.holders == 1:
            _Limit.release = _limit_blas()
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.holders -= 1
            if _Limit.holders == 0:
                _Limit.release.restore_original_limits()


@lru_cache(maxsize=1)
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _reset() -> None:
    """Reset the limit in a forked child process, where it would never be released."""
    _Limit.lock, _Limit.holders = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


class Done:
    """Counts the work of all threads, and passes the sum to a progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._lock, self._done = threading.Lock(), 0

    def add(self, n: int) -> None:
        """Count `n` more units of work."""
        if self._progress is None:
            return
        with self._lock:
            self._done += n
            self._progress(self._done, self._total)
