"""Exact means by the whole product: the plain way, on any subset of the rows.

`nnnorm.scoring.top_means` computes all rows. The functions here compute some of them: one strip on
the calling thread, for the race and for rows that pruning cannot settle, or all rows that a race
has left.
"""

import threading
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Done, Embeddings
from nnnorm.scoring import KeepBestValues, Products, top_means

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Scores per block: 4 MB stay in the cache of a core while they are read again.
_BLOCK_SCORES = 2**20


def exact_strip(
    items: FloatArray, columns: Embeddings, k: int, stop: threading.Event
) -> FloatArray:
    """Compute the mean of the k best scores of some items on the calling thread.

    Parameters
    ----------
    items : ndarray, shape (n_items, dim)
    columns : Embeddings, shape (n_columns, dim)
    k : int
    stop : threading.Event
        Ends the work early when it is set; the means are then of no use.

    Returns
    -------
    ndarray, shape (n_items,), float32

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = np.eye(3, dtype=np.float32)
    >>> exact_strip(rows, open_embeddings(rows), 2, threading.Event()).tolist()
    [0.5, 0.5, 0.5]
    """
    best = KeepBestValues(len(items), k)
    n_block = max(2048, _BLOCK_SCORES // len(items))
    for first in range(0, len(columns), n_block):
        if stop.is_set():
            break
        best.update(items @ columns.rows(first, min(first + n_block, len(columns))).T, first)
    return np.asarray(best.finish().mean(axis=1, dtype=np.float64), dtype=np.float32)


def remaining_means(
    scores: Products, k: int, rows: IntArray, *, memory_budget: int, done: Done
) -> FloatArray:
    """Compute the mean of the k best scores of some rows, on all threads.

    Parameters
    ----------
    scores : Products, shape (n_rows, n_columns)
    k : int
    rows : ndarray, shape (n,)
        Row numbers.
    memory_budget : int
        Bytes beyond the inputs and the result; an eighth of it holds rows.
    done : Done
        Counts scores.

    Returns
    -------
    ndarray, shape (n,), float32

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> scores = Products(open_embeddings(np.eye(3)), open_embeddings(np.eye(3)))
    >>> remaining_means(scores, 1, np.array([2]), memory_budget=2**24, done=Done(None, 3)).tolist()
    [1.0]
    """
    means = np.empty(len(rows), dtype=np.float32)
    n_chunk = max(1, memory_budget // 8 // (4 * scores.rows.dim))
    for start in range(0, len(rows), n_chunk):
        chunk = rows[start : start + n_chunk]
        counted = 0

        def report(n: int, _: int) -> None:
            nonlocal counted
            done.add(n - counted)
            counted = n

        means[start : start + len(chunk)] = top_means(
            scores.some_rows(chunk), k, memory_budget=memory_budget * 7 // 8, progress=report
        )
    return means
