"""Sinkhorn's balancing of gallery against references, streamed and in log space.

The plan is ``P_ij = u_i·exp(s_ij/τ)·v_j`` with uniform marginals: every item gets the same share of
the references, every reference gives the same share. One pass over all scores does a whole
iteration: a strip of rows settles its u, and at once adds its plan to the columns' sums, from which
the next v follows. The cost ``1 − s`` differs from ``−s`` by a constant, which u absorbs.
"""

import threading
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io import Progress, open_matrix
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    LEAST_EXPONENT,
    Matrix,
    Products,
    Scores,
    in_threads,
    log_mean_exp,
)

__all__ = ["transport_bias"]

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]


def transport_bias(
    scores: Scores,
    tau: float,
    iterations: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """``−τ·log u`` of every row, up to a constant that puts it on the scale of a score.

    Parameters
    ----------
    scores : Products or Matrix, shape (n_rows, n_columns)
    tau : float
        Temperature.
    iterations : int
        Times that both marginals are balanced, columns first.
    memory_budget : int
        Bytes beyond the inputs.
    progress : callable, optional

    Returns
    -------
    ndarray, shape (n_rows,)

    Examples
    --------
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring import Matrix
    >>> scores = Matrix(open_matrix([[0.2, 0.2]], name="scores"))
    >>> transport_bias(scores, 0.01, 10).round(3).tolist()
    [0.2]
    """
    n_rows, n_columns = scores.shape
    to_hold = n_rows * (4 * n_columns + scores.row_bytes) + n_columns * scores.column_bytes
    if isinstance(scores, Products) and to_hold <= memory_budget // 4:
        # Every iteration reads all scores: where they fit, they are multiplied once.
        scores = _hold(scores)
        memory_budget -= to_hold
    # Two arrays of a strip's scores (the block, and what exp and numpy's sums need in passing).
    n_strip = memory_budget * 3 // 4 // (12 * n_columns + scores.row_bytes)
    if n_strip == 0:
        raise NNNormError(
            f"a memory_budget of {memory_budget} bytes holds no row of {n_columns} scores; "
            "Sinkhorn needs at least that, give more"
        )
    n_strip = min(n_rows, n_strip, max(64, 2**23 // n_columns))
    n_block = n_columns
    if scores.column_bytes:
        n_block = max(1, min(n_columns, memory_budget // 8 // scores.column_bytes))
    log_v = -log_mean_exp(scores.transposed(), [1 / tau], memory_budget=memory_budget)[0]
    row_logs = np.empty(n_rows)
    buffer = np.empty((n_strip, n_columns), dtype=np.float32)
    for iteration in range(iterations):
        column_sums = np.zeros(n_columns)
        shift = log_v.astype(np.float32)
        for start in range(0, n_rows, n_strip):
            stop = min(start + n_strip, n_rows)
            read = scores.strip(start, stop)
            strip = buffer[: stop - start]
            for first in range(0, n_columns, n_block):
                last = min(first + n_block, n_columns)
                read(first, last, strip[:, first:last])
            logs, sums = _balance_rows(strip, 1 / tau, shift)
            row_logs[start:stop] = logs
            column_sums += sums
            if progress is not None:
                progress(iteration * n_rows + stop, iterations * n_rows)
        if iteration < iterations - 1:
            log_v -= np.log(column_sums * (n_columns / n_rows))
    # Weighted so that the references' weights add up to one, -τ·log u is on a score's scale.
    log_total = log_v.max() + np.log(np.exp(log_v - log_v.max()).sum())
    return np.asarray(tau * (row_logs - log_total))


def _hold(scores: Scores) -> Matrix:
    held = np.empty(scores.shape, dtype=np.float32)
    scores.strip(0, len(held))(0, held.shape[1], held)
    return Matrix(open_matrix(held, name="scores"))


def _balance_rows(
    strip: npt.NDArray[np.float32], scale: float, shift: npt.NDArray[np.float32]
) -> tuple[FloatArray, FloatArray]:
    """Log of each row's sum of ``exp(scale·s + shift)``, and the columns' sums of balanced rows."""
    row_logs = np.empty(len(strip))
    column_sums = np.zeros(strip.shape[1])
    lock = threading.Lock()
    step = max(1, 2**16 // strip.shape[1])  # pieces that stay in a core's cache

    def work(rows: slice) -> None:
        own_sums = np.zeros(strip.shape[1])
        for start in range(rows.start, rows.stop, step):
            piece = strip[start : min(start + step, rows.stop)]
            piece *= np.float32(scale)
            piece += shift
            peak = piece.max(axis=1)
            piece -= peak[:, None]
            np.maximum(piece, LEAST_EXPONENT, out=piece)
            np.exp(piece, out=piece)
            sums = piece.sum(axis=1)
            row_logs[start : start + len(piece)] = peak + np.log(sums)
            piece /= sums[:, None]  # not a BLAS product: its threads would fight with these
            own_sums += piece.sum(axis=0)
        with lock:
            np.add(column_sums, own_sums, out=column_sums)

    in_threads(work, strip)
    return row_logs, column_sums
