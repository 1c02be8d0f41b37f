"""What is kept of a strip of rows while its columns pass by: one small class per question.

A reducer is made for a number of rows, sees the blocks of those rows from the first column to the
last (and may overwrite them), and gives the strip's answer. `topk.py` walks; these only look.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.scoring.threads import count_threads, in_threads

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
# Passes over pieces of this many scores (1 MB) stay in the cache, and last long enough that threads
# seldom wait for each other; rows this short get no thread of their own from BLAS.
_CACHED_SCORES = 2**18
_CACHED_COLUMNS = 2**13


class Reducer(Protocol):
    """Keeps what is needed of one strip of rows while its columns pass by."""

    def update(self, block: FloatArray, first_column: int) -> None:
        """Take in a block; it may be overwritten."""

    def finish(self) -> Any:
        """Return the strip's answer."""


class KeepBestValues:
    """The k best values of each row, best first: ``(n_rows, k)``.

    After the first columns few scores beat the k-th best so far of their row. Those few go on a
    shelf beside the best, and only when it is full are the k best found anew.
    """

    def __init__(self, n_rows: int, k: int) -> None:
        self._k = k
        self._shelf = np.full((n_rows, 3 * k + 64), -np.inf, dtype=np.float32)
        self._filled = np.full(n_rows, k)
        self._floor = np.full(n_rows, -np.inf, dtype=np.float32)

    def update(self, block: FloatArray, first_column: int) -> None:
        in_threads(lambda rows: self._add(block[rows], rows), block)

    def _add(self, block: FloatArray, rows: slice) -> None:
        k, room = self._k, self._shelf.shape[1]
        better = block > self._floor[rows, None]
        if np.count_nonzero(better) > k * len(block):
            self._merge(block, rows)
            return
        found = np.flatnonzero(better)  # much faster than nonzero on two dimensions
        places, columns = np.divmod(found, block.shape[1])
        counts = np.bincount(places, minlength=len(block))
        if counts.max() > room - k:
            self._merge(block, rows)
            return
        self._tidy(rows.start + np.flatnonzero(self._filled[rows] + counts > room))
        starts = self._filled[rows] - (np.cumsum(counts) - counts)
        slots = np.arange(len(found)) + starts[places]
        self._shelf[places + rows.start, slots] = block[places, columns]
        self._filled[rows] += counts

    def _merge(self, block: FloatArray, rows: slice) -> None:
        """Where many are better, as in the first columns, the best of the block are found first."""
        k = self._k
        if block.shape[1] > k:
            block = np.partition(block, -k, axis=1)[:, -k:]
        both = np.concatenate([self._shelf[rows], block], axis=1)
        both.partition(both.shape[1] - k, axis=1)
        self._shelf[rows, :k] = both[:, -k:]
        self._shelf[rows, k:] = -np.inf
        self._filled[rows] = k
        self._floor[rows] = both[:, -k]

    def _tidy(self, rows: IntArray) -> None:
        """Bring the k best of some shelves to their front, and raise what it takes to join them."""
        if len(rows) == 0:
            return
        k = self._k
        best = np.partition(self._shelf[rows], -k, axis=1)[:, -k:]
        self._shelf[rows, :k] = best
        self._shelf[rows, k:] = -np.inf
        self._filled[rows] = k
        self._floor[rows] = best[:, 0]

    def finish(self) -> FloatArray:
        self._tidy(np.arange(len(self._shelf)))
        best = self._shelf[:, : self._k].copy()
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

    A β that is small beside the spread of the scores is served by their power sums, one set for all
    such β (Taylor about the middle of the row's piece, to the last bits of a float32); any other by
    ``exp``, which costs as much as a dozen powers.
    """

    # Up to here the powers are cheaper than one more exp.
    _SMALL = 4.0

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
        width = min(block.shape[1], _CACHED_COLUMNS)
        step = max(1, min(_CACHED_SCORES, block.size // (8 * count_threads())) // width)
        for start in range(rows.start, rows.stop, step):
            piece = slice(start, min(start + step, rows.stop))
            for first in range(0, block.shape[1], width):
                self._add(block[piece, first : first + width], piece)

    def _add(self, scores: FloatArray, rows: slice) -> None:
        least, most = scores.min(axis=1), scores.max(axis=1)
        half = max(float((most - least).max()) / 2, 1e-30)
        small = self._betas * half <= self._SMALL
        if small.any():
            middle = least + (most - least) / 2
            excess = _sum_exp_excess(scores, middle, half, self._betas[small])
            below = np.outer(self._betas[small], middle.astype(np.float64) - self._peak[rows])
            excess *= np.exp(below)
            excess += scores.shape[1] * np.expm1(below)
            self._excess[small, rows] += excess
        if small.all():
            return
        lag = scores - self._peak[rows, None]
        reach = -float(lag.min())
        scaled = np.empty_like(lag)
        for number in map(int, np.flatnonzero(~small)):
            np.multiply(lag, np.float32(self._betas[number]), out=scaled)
            if self._betas[number] * reach > -LEAST_EXPONENT:
                np.maximum(scaled, LEAST_EXPONENT, out=scaled)
            np.exp(scaled, out=scaled)
            sums = _row_dots(scaled, np.ones_like(scaled[:1])).astype(np.float64)
            self._excess[number, rows] += sums - scores.shape[1]

    def finish(self) -> npt.NDArray[np.float64]:
        peaks = np.outer(self._betas, self._peak.astype(np.float64))
        return np.asarray(peaks + np.log1p(self._excess / self._seen))


def _sum_exp_excess(
    scores: FloatArray, middle: FloatArray, half: float, betas: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Per β and row the sum of ``exp(β(s − middle)) − 1``, by power sums; `half` bounds the lag.

    The product of two neighbouring powers gives the next sum, so only half of the powers are made,
    and none is so small that it turns subnormal and slow.
    """
    scales = betas * half
    lag = scores - middle[:, None]
    lag /= np.float32(half)
    n_powers = _count_powers(float(scales.max()))
    sums = np.empty((n_powers, len(scores)))
    sums[0] = _row_dots(lag, np.ones_like(lag[:1]))
    power = lag
    for number in range(1, n_powers):
        raised = power if number % 2 else power * lag
        sums[number] = _row_dots(power, raised)
        power = raised
    orders = np.arange(1, n_powers + 1)
    weights = scales[:, None] ** orders / np.cumprod(orders.astype(np.float64))
    return np.asarray(weights @ sums)


def _count_powers(scale: float) -> int:
    """How many terms of exp's series leave less than the last bits of a float32."""
    n_powers, term = 1, scale
    while term > 2e-8:
        n_powers += 1
        term *= scale / n_powers
    return n_powers


def _row_dots(left: FloatArray, right: FloatArray) -> FloatArray:
    """``Σ_j left_ij·right_ij``, by BLAS: several times faster than a product and its sum."""
    return np.asarray(np.matmul(left[:, None, :], right[:, :, None])[:, 0, 0])


class KeepBestAndLogs:
    """Both the k best values and the log-mean-exps, from the same blocks."""

    def __init__(self, n_rows: int, k: int, betas: Sequence[float]) -> None:
        self._values = KeepBestValues(n_rows, k) if k else None
        self._logs = KeepLogMeanExp(n_rows, betas) if len(betas) else None
        self._n_rows = n_rows

    def update(self, block: FloatArray, first_column: int) -> None:
        if self._values is not None:
            self._values.update(block, first_column)
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
