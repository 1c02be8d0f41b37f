"""Streamed reductions over a score matrix that is never held whole; every method uses them.

                      columns (references, or the gallery in a search)
                    ┌─────────┬─────────┬─────────┐
    rows            │    ·    │    ·    │    ·    │ ─► reducer: update, update, update, finish
    (gallery, or    ├─────────┼─────────┼─────────┤
    the queries)    │    ·    │    ·    │    ·    │ ─► reducer …
                    └─────────┴─────────┴─────────┘

`blocks.py` computes blocks, `reduce_rows` visits them within a memory budget, and a reducer
(`reducers.py`) keeps the k best of each row (`top_k`), their means (`top_means`) or log-mean-exps
for many β (`log_mean_exp`). Every thread computes strips of its own; with too few rows for that,
BLAS splits each block among its threads. Results do not depend on block size, threads or budget
beyond float32 rounding.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io import Done, Progress
from nnnorm.scoring.blocks import DEFAULT_MEMORY_BUDGET, Products, Scores
from nnnorm.scoring.reducers import (
    KeepBest,
    KeepBestAndLogs,
    KeepBestValues,
    KeepLogMeanExp,
    KeepSum,
    Reducer,
)
from nnnorm.scoring.threads import count_threads, strips_in_order

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Blocks of this many scores (32 MB) reach the full speed of BLAS.
_BLOCK_SCORES = 8 * 2**20
_SMALLEST_BUDGET = 2**20
# With less memory per thread than this, all threads share one strip.
_WORKER_BUDGET = 16 * 2**20


class TopK(NamedTuple):
    """The best `k` of each row, best first.

    Attributes
    ----------
    scores : ndarray, shape (n_rows, k), float32
    indices : ndarray, shape (n_rows, k), int64
        Column numbers; equal scores are in the order of their columns.
    """

    scores: FloatArray
    indices: IntArray


# --- reductions --------------------------------------------------------------------------------


def top_k(
    scores: Scores,
    k: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> TopK:
    """Find the k best columns of every row exactly; ties go to the lower column.

    Parameters
    ----------
    scores : Products or Matrix, shape (n_rows, n_columns)
    k : int
        At most n_columns.
    memory_budget : int
        Bytes beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    TopK
        ``scores`` and ``indices``, both ``(n_rows, k)``.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows, columns = open_embeddings([[1.0, 0.0]]), open_embeddings([[0.2, 1.0], [0.9, 0.1]])
    >>> top_k(Products(rows, columns), 1).indices.tolist()
    [[1]]
    """
    n_rows, n_columns = scores.shape
    check_k(k, n_columns)
    found = TopK(np.empty((n_rows, k), np.float32), np.empty((n_rows, k), np.int64))
    # Per score: the partitioned copy and the mask. Per row: 3k candidates with their sort keys.
    for start, stop, best in reduce_rows(
        scores,
        lambda n: KeepBest(n, k),
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

    Means or sums of the values thus never need ``(n_rows, k)`` in memory.

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring.blocks import Matrix
    >>> scores = Matrix(open_matrix([[0.1, 0.9, 0.5]], name="scores"))
    >>> [best.round(1).tolist() for _, _, best in top_values(scores, 2)]
    [[[0.9, 0.5]]]
    """
    check_k(k, scores.shape[1])
    return reduce_rows(
        scores,
        lambda n: KeepBestValues(n, k),
        bytes_per_score=5,  # the first block is partitioned in a copy; the mask
        bytes_per_row=4 * (10 * k + 128),
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
    """Compute the mean of the k best values of every row: ``m_k``, shape ``(n_rows,)``.

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring.blocks import Matrix
    >>> top_means(Matrix(open_matrix([[0.25, 1.0, 0.5]], name="scores")), 2).tolist()
    [0.75]
    """
    means = np.empty(scores.shape[0], dtype=np.float32)
    for start, stop, best in top_values(scores, k, memory_budget=memory_budget, progress=progress):
        means[start:stop] = best.mean(axis=1, dtype=np.float64)
    return means


def scan(
    scores: Scores,
    *,
    k: int,
    betas: Sequence[float],
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Iterator[tuple[int, int, FloatArray, npt.NDArray[np.float64]]]:
    """Yield the k best values and the log-mean-exps of strips of rows from one product.

    Yields
    ------
    start, stop : int
    best : ndarray, shape (n_strip, k)
        Best first; no columns if `k` is 0.
    logs : ndarray, shape (n_betas, n_strip)

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring.blocks import Matrix
    >>> scores = Matrix(open_matrix([[0.5, 0.25]], name="scores"))
    >>> [(best.tolist(), logs.tolist()) for _, _, best, logs in scan(scores, k=1, betas=[0.0])]
    [([[0.5]], [[0.0]])]
    """
    if k:
        check_k(k, scores.shape[1])
    for start, stop, (best, logs) in reduce_rows(
        scores,
        lambda n: KeepBestAndLogs(n, k, betas),
        bytes_per_score=6,
        bytes_per_row=4 * (10 * k + 128) + 24 * (len(betas) + 2),
        memory_budget=memory_budget,
        progress=progress,
        narrowest=max(1, k),
    ):
        yield start, stop, best, logs


def mean(
    scores: Scores,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Compute the mean of every row, shape ``(n_rows,)``.

    For products this is ``rows · mean(columns)``: one pass over each side.

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring.blocks import Matrix
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
        KeepSum,
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
    """Compute ``log( mean_j exp(β·s_ij) )`` for every row and β, shape ``(n_betas, n_rows)``.

    The literature has the sum in place of the mean. The difference, ``log n``, is the same for
    every item and changes no ranking, while the mean stays accurate as β → 0. The running maximum
    of the row prevents overflow, and power sums keep precision where ``β·s`` is small.

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring.blocks import Matrix
    >>> scores = Matrix(open_matrix([[0.3, 0.3]], name="scores"))
    >>> log_mean_exp(scores, [0.0, 400.0]).round(3).tolist()
    [[0.0], [120.0]]
    """
    out = np.empty((len(betas), scores.shape[0]))
    for start, stop, logs in reduce_rows(
        scores,
        lambda n: KeepLogMeanExp(n, betas),
        bytes_per_score=2,
        bytes_per_row=24 * (len(betas) + 2),
        memory_budget=memory_budget,
        progress=progress,
    ):
        out[:, start:stop] = logs
    return out


def check_k(k: int, n_columns: int) -> None:
    """Raise `NNNormError` unless 1 ≤ k ≤ n_columns.

    Examples
    --------
    >>> check_k(3, 10)
    """
    if not 1 <= k <= n_columns:
        raise NNNormError(f"k must be between 1 and the {n_columns} columns there are; got {k}")


# --- blocks and strips -------------------------------------------------------------------------


def reduce_rows(
    scores: Scores,
    make_reducer: Callable[[int], Reducer],
    *,
    bytes_per_score: int,
    bytes_per_row: int,
    memory_budget: int,
    progress: Progress | None = None,
    narrowest: int = 1,
) -> Iterator[tuple[int, int, Any]]:
    """Visit all scores once, strip by strip, within the memory budget.

    Parameters
    ----------
    scores : Products or Matrix
    make_reducer : callable
        Called with the number of rows of a strip.
    bytes_per_score, bytes_per_row : int
        Memory of the reducer beyond the block itself.
    memory_budget : int
        Bytes beyond the inputs.
    progress : callable, optional
    narrowest : int
        The reducer is inefficient on blocks narrower than a few times this.

    Yields
    ------
    start, stop, result
        In the order of rows.

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring.blocks import Matrix
    >>> scores = Matrix(open_matrix([[1.0, 2.0], [3.0, 4.0]], name="scores"))
    >>> options = {"bytes_per_score": 0, "bytes_per_row": 16, "memory_budget": 2**20}
    >>> [sums.tolist() for _, _, sums in reduce_rows(scores, KeepSum, **options)]
    [[3.0, 7.0]]
    """
    n_rows, n_columns = scores.shape
    if memory_budget < _SMALLEST_BUDGET:
        raise NNNormError(
            f"memory_budget must be at least {_SMALLEST_BUDGET} bytes (1 MB); got {memory_budget}"
        )
    n_workers = count_threads()
    if n_rows < 128 * n_workers or memory_budget < _WORKER_BUDGET * n_workers:
        n_workers = 1  # one strip at a time, on the threads of BLAS
    needs = 4 + bytes_per_score, bytes_per_row, memory_budget // n_workers, narrowest
    n_strip, n_block = _plan(scores, *needs)
    if n_workers > 1:
        n_strip = _even_strips(n_rows, n_strip, n_workers, scores.column_bytes == 0)
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
            reducer.update(read(first, last, out), first)
            done.add(out.size)
        return reducer.finish()

    if n_workers > 1:
        yield from strips_in_order(reduce, n_rows, n_strip, stop)
        return
    for start in range(0, n_rows, n_strip):
        end = min(start + n_strip, n_rows)
        yield start, end, reduce(start, end)


def _plan(
    scores: Scores, bytes_per_score: int, bytes_per_row: int, memory_budget: int, narrowest: int
) -> tuple[int, int]:
    """Choose rows per strip and columns per block so that all allocations fit the budget."""
    n_rows, n_columns = scores.shape
    # A quarter is left for a bank converted to float32 (`Products`) and numpy's temporaries.
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


def _even_strips(n_rows: int, n_strip: int, n_workers: int, columns_are_free: bool) -> int:
    """Equal strips, the same number per thread; larger if columns are converted every time."""
    n_strip = min(n_strip, 1280 if columns_are_free else 4096)
    n_strips = -(-n_rows // n_strip)
    return -(-n_rows // (-(-n_strips // n_workers) * n_workers))
