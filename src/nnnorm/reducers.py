"""What is kept of a strip of rows while its columns pass by: one small class per question.

A reducer is made for a number of rows, sees the blocks of those rows from the first column to the
last (and may overwrite them), and gives the strip's answer. `topk.py` walks; these only look.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.threads import in_threads

__all__ = [
    "LEAST_EXPONENT",
    "KeepBest",
    "KeepBestAndLogs",
    "KeepBestValues",
    "KeepLogMeanExp",
    "KeepSum",
    "Reducer",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
# exp of less is nothing beside the maximum's 1, and would be subnormal, which is slow.
LEAST_EXPONENT = np.float32(-80)
# Passes over pieces of this many scores (256 kB) stay in a core's cache.
_CACHED_SCORES = 2**16


class Reducer(Protocol):
    """Keeps what is needed of one strip of rows while its columns pass by."""

    def update(self, block: FloatArray, first_column: int) -> None:
        """Take in a block; it may be overwritten."""

    def finish(self) -> Any:
        """Return the strip's answer."""


class KeepBestValues:
    """The k best values of each row, best first: ``(n_rows, k)``."""

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


class KeepBest:
    """The k best with their columns: two ``(n_rows, k)``.

    Equal scores keep the lower columns, at the cut too.
    """

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
        # Much faster than nonzero on two dimensions.
        rows, columns = np.divmod(np.flatnonzero(wanted), n_columns)
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


class KeepSum:
    """The sum of each row, ``(n_rows,)``."""

    def __init__(self, n_rows: int) -> None:
        self._sums = np.zeros(n_rows)

    def update(self, block: FloatArray, first_column: int) -> None:
        self._sums += block.sum(axis=1, dtype=np.float64)

    def finish(self) -> npt.NDArray[np.float64]:
        return self._sums


class KeepLogMeanExp:
    """Per row the maximum so far, M, and per β the sum of ``exp(β(s − M)) − 1``.

    Where ``β(M − s)`` stays small, that sum comes from the power sums of ``s − M``, which serve all
    such β at once (Taylor, to the last bit of a float32); elsewhere from ``exp``.
    """

    _SMALL = 0.5
    _N_POWERS = 8  # 0.5⁹/9! is 5e-9

    def __init__(self, n_rows: int, betas: Sequence[float]) -> None:
        self._betas = np.array(betas, dtype=np.float64)
        self._peak = np.full(n_rows, -np.inf, dtype=np.float32)
        self._excess = np.zeros((len(betas), n_rows))
        self._seen = 0

    def update(self, block: FloatArray, first_column: int) -> None:
        peak = np.maximum(self._peak, block.max(axis=1))
        if self._seen:
            rise = np.outer(self._betas, peak.astype(np.float64) - self._peak)
            self._excess *= np.exp(-rise)
            self._excess += self._seen * np.expm1(-rise)
        self._peak = peak
        self._seen += block.shape[1]
        in_threads(lambda rows: self._add_in_pieces(block, rows), block)

    def _add_in_pieces(self, block: FloatArray, rows: slice) -> None:
        """Piece by piece, so that the many passes over each stay in the processor's cache."""
        step = max(1, _CACHED_SCORES // block.shape[1])
        scratch = np.empty((min(step, rows.stop - rows.start), block.shape[1]), dtype=np.float32)
        for start in range(rows.start, rows.stop, step):
            piece = slice(start, min(start + step, rows.stop))
            self._add(block[piece], scratch[: piece.stop - start], piece)

    def _add(self, block: FloatArray, scratch: FloatArray, rows: slice) -> None:
        block -= self._peak[rows, None]
        reach = self._betas * -float(block.min())
        small = reach <= self._SMALL
        if small.any():
            powers = np.empty((self._N_POWERS, len(block)))
            scratch[...] = block
            for power in range(self._N_POWERS):
                if power:
                    scratch *= block
                powers[power] = scratch.sum(axis=1)
            orders = np.arange(1, self._N_POWERS + 1)
            taylor = self._betas[small, None] ** orders / np.cumprod(orders)
            self._excess[small, rows] += taylor @ powers
        for number in map(int, np.flatnonzero(~small)):
            np.multiply(block, np.float32(self._betas[number]), out=scratch)
            if reach[number] > -LEAST_EXPONENT:
                np.maximum(scratch, LEAST_EXPONENT, out=scratch)
            np.exp(scratch, out=scratch)
            sums = scratch.sum(axis=1).astype(np.float64)
            self._excess[number, rows] += sums - block.shape[1]

    def finish(self) -> npt.NDArray[np.float64]:
        peaks = np.outer(self._betas, self._peak.astype(np.float64))
        return np.asarray(peaks + np.log1p(self._excess / self._seen))


class KeepBestAndLogs:
    """Both the k best values and the log-mean-exps, from the same blocks."""

    def __init__(self, n_rows: int, k: int, betas: Sequence[float]) -> None:
        self._values = KeepBestValues(n_rows, k) if k else None
        self._logs = KeepLogMeanExp(n_rows, betas) if len(betas) else None
        self._n_rows = n_rows

    def update(self, block: FloatArray, first_column: int) -> None:
        if self._values is not None:
            self._values.update(block.copy() if self._logs else block, first_column)
        if self._logs is not None:
            self._logs.update(block, first_column)

    def finish(self) -> tuple[FloatArray, npt.NDArray[np.float64]]:
        best = self._values.finish() if self._values else np.empty((self._n_rows, 0), np.float32)
        return best, self._logs.finish() if self._logs else np.empty((0, self._n_rows))


def _partition(block: FloatArray, k: int) -> None:
    """Bring the k largest of each row to its end, in place."""
    cut = block.shape[1] - k
    if cut > 0:
        in_threads(lambda rows: block[rows].partition(cut, axis=1), block)
