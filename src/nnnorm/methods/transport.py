"""Sinkhorn's balancing of gallery against references, streamed and in log space.

The plan is ``P_ij = u_i·exp(s_ij/τ)·v_j`` with uniform marginals: every item gets the same share of
the references, and every reference gives the same share. One pass over all scores does a whole
iteration, for several τ at once: a strip of rows gives its u and adds its plan to the sums of the
columns, from which the next v follows. The cost ``1 − s`` differs from ``−s`` by a constant, which
u absorbs.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Done,
    Products,
    Scores,
    fill_rows,
    in_threads,
)
from nnnorm.softmax import LEAST_EXPONENT, log_mean_exp

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Strip: TypeAlias = npt.NDArray[np.float32]


def transport_biases(
    scores: Scores,
    taus: Sequence[float],
    iterations: int,
    *,
    n_wanted: int | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """``−τ·log u`` of every row, up to a constant that puts it on the scale of a score."""
    n_rows, n_columns = scores.shape
    n_wanted = n_rows if n_wanted is None else n_wanted
    scales = [1 / tau for tau in taus]
    strips = _Strips(scores, memory_budget)
    done = Done(progress, (iterations - 1) * n_rows + n_wanted)
    log_v = -log_mean_exp(scores.transposed(), scales, memory_budget=memory_budget)
    for _ in range(iterations - 1):
        column_sums = np.zeros((len(taus), n_columns))
        for start, stop, strip in strips.read(n_rows):
            for scale, shift, sums in zip(scales, log_v, column_sums, strict=True):
                _balance_rows(strip, scale, shift.astype(np.float32), sums)
            done.add(stop - start)
        log_v -= np.log(column_sums * (n_columns / n_rows))
    # The last u of the rows that are wanted; other rows, and the next v, are not needed.
    row_logs = np.empty((len(taus), n_wanted))
    for start, stop, strip in strips.read(n_wanted):
        for scale, shift, logs in zip(scales, log_v, row_logs, strict=True):
            logs[start:stop] = _balance_rows(strip, scale, shift.astype(np.float32), None)
        done.add(stop - start)
    # Weighted so that the references' weights add up to one, −τ·log u is on a score's scale.
    peaks = log_v.max(axis=1)
    log_totals = peaks + np.log(np.exp(log_v - peaks[:, None]).sum(axis=1))
    return np.asarray((row_logs - log_totals[:, None]) * np.array(taus)[:, None])


class _Strips:
    """Whole rows of scores, strip by strip; as many as fit are multiplied only once."""

    def __init__(self, scores: Scores, memory_budget: int) -> None:
        self.scores, self._memory_budget = scores, memory_budget
        n_rows, n_columns = scores.shape
        # A strip of scores, and what exp and numpy's sums need in passing.
        bytes_per_row = 12 * n_columns + scores.row_bytes
        fits = memory_budget * 3 // 4 // bytes_per_row
        if fits == 0:
            raise NNNormError(
                f"a memory_budget of {memory_budget} bytes holds no row of {n_columns} scores; "
                "Sinkhorn needs at least that, give more"
            )
        self._size = min(n_rows, fits, max(64, 2**23 // n_columns))
        self._buffer = np.empty((self._size, n_columns), dtype=np.float32)
        self._held: list[Strip] = []
        self._spare = 0
        if isinstance(scores, Products):  # ready scores are read as fast from where they are
            self._spare = memory_budget * 3 // 4 - self._size * bytes_per_row

    def read(self, stop: int) -> Iterator[tuple[int, int, Strip]]:
        """The rows up to `stop`, as ``(first, last, scores)``; the scores must not be changed."""
        for number, first in enumerate(range(0, stop, self._size)):
            last = min(first + self._size, self.scores.shape[0])
            if number >= len(self._held):
                strip = self._buffer[: last - first]
                if number == len(self._held) and strip.nbytes <= self._spare:
                    self._spare -= strip.nbytes
                    strip = np.empty_like(strip)
                    self._held.append(strip)
                fill_rows(self.scores, first, strip, self._memory_budget)
            else:
                strip = self._held[number]
            wanted = min(last, stop)
            yield first, wanted, strip[: wanted - first]


def _balance_rows(
    strip: Strip, scale: float, shift: Strip, column_sums: FloatArray | None
) -> FloatArray:
    """Log of each row's sum of ``exp(scale·s + shift)``; adds the balanced rows to the columns."""
    row_logs = np.empty(len(strip))
    sums_of: dict[int, FloatArray] = {}
    step = max(1, 2**16 // strip.shape[1])  # pieces that stay in a core's cache

    def work(rows: slice) -> None:
        own_sums = np.zeros(strip.shape[1])
        buffer = np.empty((step, strip.shape[1]), dtype=np.float32)
        for start in range(rows.start, rows.stop, step):
            raw = strip[start : min(start + step, rows.stop)]
            piece = np.multiply(raw, np.float32(scale), out=buffer[: len(raw)])
            piece += shift
            peak = piece.max(axis=1)
            piece -= peak[:, None]
            np.maximum(piece, LEAST_EXPONENT, out=piece)
            np.exp(piece, out=piece)
            sums = piece.sum(axis=1)
            row_logs[start : start + len(piece)] = peak + np.log(sums)
            if column_sums is not None:
                # Not a BLAS product, whose threads would compete with these.
                own_sums += np.einsum("i,ij->j", 1 / sums, piece)
        sums_of[rows.start] = own_sums

    in_threads(work, strip)
    if column_sums is not None:
        for start in sorted(sums_of):  # in one order, so that every run gives the same bits
            np.add(column_sums, sums_of[start], out=column_sums)
    return row_logs
