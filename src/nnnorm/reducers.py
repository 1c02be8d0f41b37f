"""Reducers: the state of a strip of rows while its blocks of columns are read, one class each.

A reducer is made for a number of rows. It is updated with the blocks of these rows, from the first
column to the last, and returns the result of the strip. An update includes some rows of a block,
which it may overwrite, so threads can share one block. `scoring.py` reads the blocks.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
# exp of less is negligible next to the maximum's 1, and would be subnormal, which is slow.
LEAST_EXPONENT = np.float32(-80)
# Passes over pieces of this many scores (1 MB) stay in the cache and are long enough for threads
# to wait little; BLAS does not split rows of this many columns.
_CACHED_SCORES = 2**18
_CACHED_COLUMNS = 2**13


class Reducer(Protocol):
    """State of one strip of rows while its blocks are read."""

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        """Include some rows of a block, which may be overwritten there."""

    def finish(self) -> Any:
        """Return the result of the strip."""


class KeepBestValues:
    """The k best values of each row, best first: ``(n_rows, k)``."""

    def __init__(self, n_rows: int, k: int) -> None:
        self._k = k
        self._buffer = np.full((n_rows, 3 * k + 64), -np.inf, dtype=np.float32)
        self._filled = np.full(n_rows, k)
        self._threshold = np.full(n_rows, -np.inf, dtype=np.float32)

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
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
        """Merge a block with many better scores, such as the first one, by partitioning it."""
        k = self._k
        if block.shape[1] > k:
            block = np.partition(block, -k, axis=1)[:, -k:]
        both = block
        is_first = self._filled[rows].max() == k and self._threshold[rows].max() == -np.inf
        if not is_first or block.shape[1] < k:
            both = np.concatenate([self._buffer[rows], block], axis=1)
            both.partition(both.shape[1] - k, axis=1)
        self._buffer[rows, :k] = both[:, -k:]
        self._buffer[rows, k:] = -np.inf
        self._filled[rows] = k
        self._threshold[rows] = both[:, -k:].min(axis=1)

    def _compact(self, rows: IntArray) -> None:
        """Move the k best of some buffers to their front, and raise the thresholds."""
        if len(rows) == 0:
            return
        k = self._k
        best = np.partition(self._buffer[rows], -k, axis=1)[:, -k:]
        self._buffer[rows, :k] = best
        self._buffer[rows, k:] = -np.inf
        self._filled[rows] = k
        self._threshold[rows] = best[:, 0]

    def finish(self) -> FloatArray:
        self._compact(np.flatnonzero(self._filled > self._k))
        best = self._buffer[:, : self._k].copy()
        best.sort(axis=1)
        return best[:, ::-1]


class KeepBest:
    """The k best with their columns: two ``(n_rows, k)``."""

    def __init__(self, n_rows: int, k: int) -> None:
        self._values = np.full((n_rows, k), -np.inf, dtype=np.float32)
        # Places that are not filled yet stand behind all columns.
        self._columns = np.full((n_rows, k), np.iinfo(np.int64).max)

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        block = block[rows]
        n_rows, n_columns = block.shape
        values, columns = self._values[rows], self._columns[rows]
        k = values.shape[1]
        # A later column must exceed the k-th best so far: on a tie the lower column stays.
        is_better = block > values[:, -1:]
        if n_columns > k and np.count_nonzero(is_better) > 2 * n_rows * k:
            cut = np.partition(block, n_columns - k, axis=1)[:, n_columns - k]
            is_better &= block >= cut[:, None]
            # Very many scores may equal the cut.
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
        return self._values, self._columns


class KeepLogMeanExp:
    """Per row the maximum so far, M, and per β the sum of ``exp(β(s − M)) − 1``."""

    # Largest β·range/2 for which power sums are cheaper than exp.
    _SMALL = 4.0

    def __init__(self, n_rows: int, betas: Sequence[float]) -> None:
        self._betas = np.array(betas, dtype=np.float64)
        self._peak = np.full(n_rows, -np.inf, dtype=np.float32)
        self._excess = np.zeros((len(betas), n_rows))
        self._seen = 0

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        block = block[rows]
        peak = np.maximum(self._peak[rows], block.max(axis=1))
        if first_column:
            rise = np.outer(self._betas, peak.astype(np.float64) - self._peak[rows])
            self._excess[:, rows] *= np.exp(-rise)
            self._excess[:, rows] += first_column * np.expm1(-rise)
        self._peak[rows] = peak
        self._seen = first_column + block.shape[1]
        # In pieces, so that the passes over each stay in the cache.
        width = min(block.shape[1], _CACHED_COLUMNS)
        step = max(1, min(_CACHED_SCORES, block.size // 16) // width)
        for start in range(0, len(block), step):
            stop = min(start + step, len(block))
            piece = slice(rows.start + start, rows.start + stop)
            for first in range(0, block.shape[1], width):
                self._add(block[start:stop, first : first + width], piece)

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
    """Per β and row the sum of ``exp(β(s − middle)) − 1``, by power sums; `half` bounds the lag."""
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
    """Count the terms of the exponential series that float32 precision needs."""
    n_powers, term = 1, scale
    while term > 2e-8:
        n_powers += 1
        term *= scale / n_powers
    return n_powers


def _row_dots(left: FloatArray, right: FloatArray) -> FloatArray:
    """Compute ``Σ_j left_ij·right_ij`` by BLAS, several times faster than product and sum."""
    return np.asarray(np.matmul(left[:, None, :], right[:, :, None])[:, 0, 0])


class KeepBestAndLogs:
    """Both the k best values and the log-mean-exps, from the same blocks."""

    def __init__(self, n_rows: int, k: int, betas: Sequence[float]) -> None:
        self._values = KeepBestValues(n_rows, k) if k else None
        self._logs = KeepLogMeanExp(n_rows, betas) if len(betas) else None
        self._n_rows = n_rows

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        if self._values is not None:
            self._values.update(block, first_column, rows)
        if self._logs is not None:
            self._logs.update(block, first_column, rows)

    def finish(self) -> tuple[FloatArray, npt.NDArray[np.float64]]:
        best = self._values.finish() if self._values else np.empty((self._n_rows, 0), np.float32)
        return best, self._logs.finish() if self._logs else np.empty((0, self._n_rows))
