"""Sinkhorn's balancing of gallery against references, streamed and in log space.

The plan is ``P_ij = u_i·exp(s_ij/τ)·v_j`` with uniform marginals: every item gets the same share of
the references, every reference gives the same share. One pass over all scores does a whole
iteration: a strip of rows settles its u, and at once adds its plan to the columns' sums, from which
the next v follows. The cost ``1 − s`` differs from ``−s`` by a constant, which u absorbs.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.scores import DEFAULT_MEMORY_BUDGET, Progress, Scores
from nnnorm.topk import log_mean_exp

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
    >>> from nnnorm.embeddings import open_matrix
    >>> from nnnorm.scores import Matrix
    >>> scores = Matrix(open_matrix([[0.2, 0.2]], name="scores"))
    >>> transport_bias(scores, 0.01, 10).round(3).tolist()
    [0.2]
    """
    n_rows, n_columns = scores.shape
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
            plan = buffer[: stop - start]
            for first in range(0, n_columns, n_block):
                last = min(first + n_block, n_columns)
                read(first, last, plan[:, first:last])
            plan *= np.float32(1 / tau)
            plan += shift
            peak = plan.max(axis=1)
            plan -= peak[:, None]
            np.exp(plan, out=plan)
            sums = plan.sum(axis=1)
            row_logs[start:stop] = peak + np.log(sums)
            plan /= sums[:, None]
            column_sums += plan.sum(axis=0)
            if progress is not None:
                progress(iteration * n_rows + stop, iterations * n_rows)
        if iteration < iterations - 1:
            log_v -= np.log(column_sums * (n_columns / n_rows))
    # Weighted so that the references' weights add up to one, -τ·log u is on a score's scale.
    log_total = log_v.max() + np.log(np.exp(log_v - log_v.max()).sum())
    return np.asarray(tau * (row_logs - log_total))
