"""Streamed reductions over a score matrix that is never held whole: what every method stands on.

                      columns (references, or the gallery in a search)
                    ┌─────────┬─────────┬─────────┐
    rows            │    ·    │    ·    │    ·    │ ─► reducer: update, update, update, finish
    (gallery, or    ├─────────┼─────────┼─────────┤
    the queries)    │    ·    │    ·    │    ·    │ ─► reducer …
                    └─────────┴─────────┴─────────┘

`Products` (embeddings x embeddings) and `Matrix` (scores somebody else computed) hand out blocks;
`reduce_rows` walks them so that memory stays under a budget; a reducer keeps what it needs of each
strip of rows: the k best values (`top_k`, `top_means`), the same with column numbers, or the
log-mean-exp for many β (`log_mean_exp`). Blocks are multiplied by the threads of BLAS and reduced
by as many threads of our own. Results do not depend on block size, threads or budget beyond the
last bit of a float32 product.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, check_same_dim
from nnnorm.errors import NNNormError

__all__ = [
    "DEFAULT_MEMORY_BUDGET",
    "Matrix",
    "Products",
    "Progress",
    "Scores",
    "TopK",
    "log_mean_exp",
    "mean",
    "top_k",
    "top_means",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
# Called with (work done, work in all); never more than about a hundred times a second.
Progress: TypeAlias = Callable[[int, int], None]

DEFAULT_MEMORY_BUDGET = 512 * 2**20
# Blocks of this many scores (32 MB) run at the full speed of BLAS; larger ones gain nothing.
_BLOCK_SCORES = 8 * 2**20
_SMALLEST_BUDGET = 2**20


class Scores(Protocol):
    """Where blocks of scores come from: ``shape``, and ``strip`` to read some rows."""

    shape: tuple[int, int]
    row_bytes: int
    column_bytes: int

    def strip(self, start: int, stop: int) -> "Strip":
        """Get ready to read rows ``start:stop``."""

    def some_rows(self, indices: IntArray) -> "Scores":
        """Give the scores of some rows only."""

    def transposed(self) -> "Scores":
        """Give the same scores with rows and columns exchanged."""


Strip: TypeAlias = Callable[[int, int, FloatArray], FloatArray]


class Products:
    """Scores ``rows · columnsᵀ − offset``, block by block.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    columns : Embeddings, shape (n_columns, dim)
    offset : ndarray, shape (n_columns,), optional
        Taken away from every row: a bias.
    memory_budget : int
        A bank that has to be widened or normalised is kept widened if it takes at most a quarter.
    """

    def __init__(
        self,
        rows: Embeddings,
        columns: Embeddings,
        *,
        offset: FloatArray | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        check_same_dim(rows, columns)
        self.shape = len(rows), len(columns)
        self.rows, self.columns, self._offset = rows, columns, offset
        self._memory_budget = memory_budget
        fits = 4 * len(columns) * columns.dim <= memory_budget // 4
        self._keeps_widened = fits and not columns.in_memory
        self._widened: FloatArray | None = None
        # Reading a block that is not in memory makes the stored piece and the float32 one.
        self.row_bytes = 0 if rows.in_memory else 8 * rows.dim
        self.column_bytes = 0 if columns.in_memory or fits else 8 * columns.dim

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop`` once; the function multiplies them by some columns."""
        block = self.rows.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> FloatArray:
            np.matmul(block, self._columns(first, last).T, out=out)
            if self._offset is not None:
                out -= self._offset[first:last]
            return out

        return read

    def some_rows(self, indices: IntArray) -> "Products":
        """Give the scores of some rows only."""
        rows = Embeddings([self.rows.take(indices)], name=self.rows.name)
        return Products(rows, self.columns, memory_budget=self._memory_budget)

    def transposed(self) -> "Products":
        """Columns as rows; an offset belongs to columns, so it may not be there."""
        return Products(self.columns, self.rows, memory_budget=self._memory_budget)

    def _columns(self, first: int, last: int) -> FloatArray:
        if not self._keeps_widened:
            return self.columns.rows(first, last)
        if self._widened is None:
            self._widened = self.columns.rows(0, len(self.columns))
        return self._widened[first:last]


class Matrix:
    """Scores that are there already, from any scorer: shape ``(n_rows, n_columns)``."""

    def __init__(self, scores: Embeddings, *, is_transposed: bool = False) -> None:
        self._scores = scores
        self._is_transposed = is_transposed
        self.shape = scores.shape[::-1] if is_transposed else scores.shape
        self.row_bytes = 4 * self.shape[1]
        self.column_bytes = 0

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop`` once; the function cuts columns out of them."""
        if self._is_transposed:
            blocks = [block[:, start:stop].T for _, block in self._scores.blocks()]
            rows = np.concatenate(blocks, axis=1)
        else:
            rows = self._scores.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> FloatArray:
            out[...] = rows[:, first:last]
            return out

        return read

    def some_rows(self, indices: IntArray) -> "Matrix":
        """Give the scores of some rows only."""
        return Matrix(Embeddings([self._scores.take(indices)], name=self._scores.name))

    def transposed(self) -> "Matrix":
        """Give the same scores with rows and columns exchanged, without a copy."""
        return Matrix(self._scores, is_transposed=not self._is_transposed)


class TopK(NamedTuple):
    """The best `k` of each row, best first.

    Attributes
    ----------
    scores : ndarray, shape (n_rows, k), float32
    indices : ndarray, shape (n_rows, k), int64
        Column numbers; equal scores stand in the order of their columns.
    """

    scores: FloatArray
    indices: IntArray


# --- what may be asked -------------------------------------------------------------------------


def top_k(
    scores: Scores,
    k: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> TopK:
    """Find the k best columns of every row, exactly, ties by the lower column.

    Parameters
    ----------
    scores : Products or Matrix, shape (n_rows, n_columns)
    k : int
        At most n_columns.
    memory_budget : int
        Bytes beyond the inputs and the answer.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    TopK
        ``scores`` and ``indices``, both ``(n_rows, k)``.

    Examples
    --------
    >>> from nnnorm.embeddings import open_embeddings
    >>> rows, columns = open_embeddings([[1.0, 0.0]]), open_embeddings([[0.2, 1.0], [0.9, 0.1]])
    >>> top_k(Products(rows, columns), 1).indices.tolist()
    [[1]]
    """
    n_rows, n_columns = scores.shape
    _check_k(k, n_columns)
    found = TopK(np.empty((n_rows, k), np.float32), np.empty((n_rows, k), np.int64))
    # Per score: the partitioned copy and the mask. Per row: 3k candidates with their sort keys.
    for start, stop, best in reduce_rows(
        scores,
        lambda n: _TopIndexed(n, k),
        bytes_per_score=5,
        bytes_per_row=64 * (3 * k + 64),
        memory_budget=memory_budget,
        progress=progress,
        narrowest=k,
    ):
        found.scores[start:stop], found.indices[start:stop] = best
    return found


def top_values(
    scores: Scores,
    k: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Iterator[tuple[int, int, FloatArray]]:
    """Yield the k best values of strips of rows, best first: ``(start, stop, (n, k))``.

    A stream, so that a caller who wants means or sums never holds ``(n_rows, k)``.

    Examples
    --------
    >>> from nnnorm.embeddings import open_matrix
    >>> scores = Matrix(open_matrix([[0.1, 0.9, 0.5]], name="scores"))
    >>> [best.round(1).tolist() for _, _, best in top_values(scores, 2)]
    [[[0.9, 0.5]]]
    """
    _check_k(k, scores.shape[1])
    return reduce_rows(
        scores,
        lambda n: _TopValues(n, k),
        bytes_per_score=0,
        bytes_per_row=4 * 6 * k,
        memory_budget=memory_budget,
        progress=progress,
        narrowest=k,
    )


def top_means(
    scores: Scores,
    k: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Mean of the k best values of every row: ``m_k``, shape ``(n_rows,)``.

    Examples
    --------
    >>> from nnnorm.embeddings import open_matrix
    >>> top_means(Matrix(open_matrix([[0.25, 1.0, 0.5]], name="scores")), 2).tolist()
    [0.75]
    """
    means = np.empty(scores.shape[0], dtype=np.float32)
    for start, stop, best in top_values(scores, k, memory_budget=memory_budget, progress=progress):
        means[start:stop] = best.mean(axis=1, dtype=np.float64)
    return means


def mean(
    scores: Scores,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Mean of every row, shape ``(n_rows,)``.

    For products this is ``rows · mean(columns)``: one pass over each side.

    Examples
    --------
    >>> from nnnorm.embeddings import open_matrix
    >>> mean(Matrix(open_matrix([[0.25, 0.75]], name="scores"))).tolist()
    [0.5]
    """
    means = np.empty(scores.shape[0], dtype=np.float32)
    if isinstance(scores, Products):
        total = sum(block.sum(axis=0, dtype=np.float64) for _, block in scores.columns.blocks())
        centre = np.asarray(total / scores.shape[1])
        for start, block in scores.rows.blocks():
            means[start : start + len(block)] = block @ centre
        return means
    for start, stop, sums in reduce_rows(
        scores,
        _Sum,
        bytes_per_score=0,
        bytes_per_row=16,
        memory_budget=memory_budget,
        progress=progress,
    ):
        means[start:stop] = sums / scores.shape[1]
    return means


def log_mean_exp(
    scores: Scores,
    betas: Sequence[float],
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> npt.NDArray[np.float64]:
    """``log( mean_j exp(β·s_ij) )`` for every row and every β: shape ``(n_betas, n_rows)``.

    The mean where the literature writes the sum: the difference, ``log n``, is the same for every
    item and so changes no ranking, while the mean stays exact as β → 0. Computed from the row's
    running maximum, so nothing overflows, and from ``expm1`` where ``β·s`` is small, so nothing
    drowns in the 1 of ``exp``.

    Examples
    --------
    >>> from nnnorm.embeddings import open_matrix
    >>> scores = Matrix(open_matrix([[0.3, 0.3]], name="scores"))
    >>> log_mean_exp(scores, [0.0, 400.0]).round(3).tolist()
    [[0.0], [120.0]]
    """
    out = np.empty((len(betas), scores.shape[0]))
    for start, stop, logs in reduce_rows(
        scores,
        lambda n: _LogMeanExp(n, betas),
        bytes_per_score=4,
        bytes_per_row=16 * (len(betas) + 2),
        memory_budget=memory_budget,
        progress=progress,
    ):
        out[:, start:stop] = logs
    return out


# --- the walk ----------------------------------------------------------------------------------


class _Reducer(Protocol):
    """Keeps what is needed of one strip of rows while its columns pass by."""

    def update(self, block: FloatArray, first_column: int) -> None:
        """Take in a block; it may be overwritten."""

    def finish(self) -> Any:
        """Return the strip's answer."""


def reduce_rows(
    scores: Scores,
    make_reducer: Callable[[int], _Reducer],
    *,
    bytes_per_score: int,
    bytes_per_row: int,
    memory_budget: int,
    progress: Progress | None = None,
    narrowest: int = 1,
) -> Iterator[tuple[int, int, Any]]:
    """Walk all scores once, strip by strip, within the budget.

    Parameters
    ----------
    scores : Products or Matrix
    make_reducer : callable
        Called with the number of rows of a strip.
    bytes_per_score, bytes_per_row : int
        What the reducer needs beyond the block itself.
    memory_budget : int
        Bytes beyond the inputs.
    progress : callable, optional
    narrowest : int
        Blocks narrower than a few times this would waste the reducer's work.

    Yields
    ------
    start, stop, answer
        In the order of rows.
    """
    n_rows, n_columns = scores.shape
    n_strip, n_block = _plan(scores, 4 + bytes_per_score, bytes_per_row, memory_budget, narrowest)
    buffer = np.empty(n_strip * n_block, dtype=np.float32)
    for start in range(0, n_rows, n_strip):
        stop = min(start + n_strip, n_rows)
        read = scores.strip(start, stop)
        reducer = make_reducer(stop - start)
        for first in range(0, n_columns, n_block):
            last = min(first + n_block, n_columns)
            out = buffer[: (stop - start) * (last - first)].reshape(stop - start, last - first)
            reducer.update(read(first, last, out), first)
            if progress is not None:
                progress(start * n_columns + (stop - start) * last, n_rows * n_columns)
        yield start, stop, reducer.finish()


def _plan(
    scores: Scores, bytes_per_score: int, bytes_per_row: int, memory_budget: int, narrowest: int
) -> tuple[int, int]:
    """Rows per strip and columns per block, so that all that is allocated fits the budget."""
    if memory_budget < _SMALLEST_BUDGET:
        raise NNNormError(
            f"memory_budget must be at least {_SMALLEST_BUDGET} bytes (1 MB); got {memory_budget}"
        )
    n_rows, n_columns = scores.shape
    # A quarter is left to a widened bank (`Products`) and to what numpy allocates in passing.
    free = memory_budget * 3 // 4
    n_block = min(n_columns, max(2048, 16 * narrowest))
    n_block = max(1, min(n_block, free // (4 * max(1, scores.column_bytes))))
    free -= n_block * scores.column_bytes
    per_row = n_block * bytes_per_score + bytes_per_row + scores.row_bytes
    n_strip = min(n_rows, max(1, free // per_row), max(1024, _BLOCK_SCORES // n_block))
    # Few rows (a handful of queries) leave room for wider blocks.
    free -= n_strip * per_row
    wider = (_BLOCK_SCORES // n_strip, n_block + free // max(1, n_strip * bytes_per_score * 2))
    if scores.column_bytes == 0:
        n_block = min(n_columns, max(n_block, min(wider)))
    return n_strip, n_block


def _check_k(k: int, n_columns: int) -> None:
    if not 1 <= k <= n_columns:
        raise NNNormError(f"k must be between 1 and the {n_columns} columns there are; got {k}")


# --- reducers ----------------------------------------------------------------------------------


class _TopValues:
    def __init__(self, n_rows: int, k: int) -> None:
        self._k = k
        self._best = np.empty((n_rows, 0), dtype=np.float32)

    def update(self, block: FloatArray, first_column: int) -> None:
        _partition(block, self._k)
        self._best = np.concatenate([self._best, block[:, -self._k :]], axis=1)
        _partition(self._best, self._k)
        self._best = self._best[:, -self._k :]

    def finish(self) -> FloatArray:
        best = np.array(self._best)
        best.sort(axis=1)
        return best[:, ::-1]


class _TopIndexed:
    """The k best with their columns; equal scores keep the lower columns, at the cut too."""

    def __init__(self, n_rows: int, k: int) -> None:
        self._k = k
        self._n_rows = n_rows
        self._rows = np.empty(0, dtype=np.int64)
        self._columns = np.empty(0, dtype=np.int64)
        self._values = np.empty(0, dtype=np.float32)
        self._floor = np.full(n_rows, -np.inf, dtype=np.float32)

    def update(self, block: FloatArray, first_column: int) -> None:
        n_columns = block.shape[1]
        # A later column must beat the k-th best so far: on a tie the lower column stays.
        wanted = block > self._floor[:, None]
        if n_columns > self._k and np.count_nonzero(wanted) > 2 * self._n_rows * self._k:
            cut = block.copy()
            _partition(cut, self._k)
            wanted &= block >= cut[:, -self._k, None]
            self._thin_out_ties(block, wanted, cut[:, -self._k])
        rows, columns = np.nonzero(wanted)
        values = block[rows, columns]
        rows = np.concatenate([self._rows, rows])
        columns = np.concatenate([self._columns, columns + first_column])
        values = np.concatenate([self._values, values])
        order = np.lexsort((columns, -values, rows))
        rows = rows[order]
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        kept = order[place < self._k]
        self._rows, self._columns = rows[place < self._k], columns[kept]
        self._values = values[kept]
        last = self._values[place[place < self._k] == self._k - 1]
        if len(last) == self._n_rows:
            self._floor = last

    def _thin_out_ties(
        self, block: FloatArray, wanted: npt.NDArray[np.bool_], cut: FloatArray
    ) -> None:
        """Where very many scores equal the cut, keep only the first that can be needed."""
        crowded = np.flatnonzero(np.count_nonzero(wanted, axis=1) > 2 * self._k + 64)
        for row in crowded:
            equal = np.flatnonzero(wanted[row] & (block[row] == cut[row]))
            wanted[row, equal[self._k :]] = False

    def finish(self) -> tuple[FloatArray, IntArray]:
        shape = self._n_rows, self._k
        return self._values.reshape(shape), self._columns.reshape(shape)


class _Sum:
    def __init__(self, n_rows: int) -> None:
        self._sums = np.zeros(n_rows)

    def update(self, block: FloatArray, first_column: int) -> None:
        self._sums += block.sum(axis=1, dtype=np.float64)

    def finish(self) -> npt.NDArray[np.float64]:
        return self._sums


class _LogMeanExp:
    """Per row the maximum so far, M, and per β the sum of ``exp(β(s − M)) − 1``."""

    def __init__(self, n_rows: int, betas: Sequence[float]) -> None:
        self._betas = [float(beta) for beta in betas]
        self._peak = np.full(n_rows, -np.inf, dtype=np.float32)
        self._excess = np.zeros((len(betas), n_rows))
        self._seen = 0

    def update(self, block: FloatArray, first_column: int) -> None:
        peak = np.maximum(self._peak, block.max(axis=1))
        if self._seen:
            for excess, beta in zip(self._excess, self._betas, strict=True):
                rise = beta * (peak.astype(np.float64) - self._peak)
                excess *= np.exp(-rise)
                excess += self._seen * np.expm1(-rise)
        self._peak = peak
        self._seen += block.shape[1]
        scratch = np.empty_like(block)
        in_threads(lambda rows: self._add(block[rows], scratch[rows], rows), block)

    def _add(self, block: FloatArray, scratch: FloatArray, rows: slice) -> None:
        block -= self._peak[rows, None]
        lowest = float(block.min())
        for excess, beta in zip(self._excess, self._betas, strict=True):
            np.multiply(block, np.float32(beta), out=scratch)
            if beta * lowest > -0.5:
                np.expm1(scratch, out=scratch)
                excess[rows] += scratch.sum(axis=1)
            else:
                np.exp(scratch, out=scratch)
                excess[rows] += scratch.sum(axis=1).astype(np.float64) - block.shape[1]

    def finish(self) -> npt.NDArray[np.float64]:
        peaks = np.outer(self._betas, self._peak.astype(np.float64))
        return np.asarray(peaks + np.log1p(self._excess / self._seen))


def _partition(block: FloatArray, k: int) -> None:
    """Bring the k largest of each row to its end, in place."""
    cut = block.shape[1] - k
    if cut > 0:
        in_threads(lambda rows: block[rows].partition(cut, axis=1), block)


def in_threads(work: Callable[[slice], None], block: FloatArray) -> None:
    """Do `work` on slices of rows; numpy lets go of the interpreter while it computes."""
    n_threads = count_threads()
    if n_threads == 1 or block.size < 2**18 or len(block) < n_threads:
        work(slice(0, len(block)))
        return
    edges = np.linspace(0, len(block), n_threads + 1).astype(int)
    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    for _ in _pool(n_threads).map(work, slices):
        pass


def count_threads() -> int:
    """As many as BLAS would take: OMP_NUM_THREADS where it is set, else the cores we may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="nnnorm")
