"""Log-mean-exps of scores, ``log( mean_j exp(β·s_ij) )`` for many β, from one pass over them."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.files import Progress
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, KeepBestValues, Scores, reduce_rows

FloatArray: TypeAlias = npt.NDArray[np.float32]
# exp of less is negligible next to the maximum's 1, and would be subnormal, which is slow.
LEAST_EXPONENT = np.float32(-80)
# Passes over pieces of this many scores (1 MB) stay in the cache and are long enough for threads
# to wait little; BLAS does not split rows of this many columns.
_CACHED_SCORES = 2**18
_CACHED_COLUMNS = 2**13


def scan(
    scores: Scores,
    *,
    k: int,
    betas: Sequence[float] = (),
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Iterator[tuple[int, int, tuple[FloatArray, npt.NDArray[np.float64]]]]:
    """Yield ``(start, stop, (best, logs))`` of strips of rows, from one product.

    ``best`` has the k best values of each row, best first, and ``logs`` a row per β.
    """
    # Best values need what those of `top_means` do; logs need pieces in the cache.
    needs = 4 * (10 * k + 128) * (k > 0) + 24 * (len(betas) + 2) * (len(betas) > 0)
    return reduce_rows(
        scores,
        partial(KeepBestAndLogs, k=k, betas=betas),
        bytes_per_score=(5 if k else 1) + (len(betas) > 0),
        bytes_per_row=needs,
        memory_budget=memory_budget,
        progress=progress,
        narrowest=k if k or not betas else 1,
    )


def log_mean_exp(scores: Scores, betas: Sequence[float], **options: Any) -> npt.NDArray[np.float64]:
    """Compute ``log( mean_j exp(β·s_ij) )`` for every row and β, shape ``(n_betas, n_rows)``."""
    out = np.empty((len(betas), scores.shape[0]))
    for start, stop, (_, logs) in scan(scores, k=0, betas=betas, **options):
        out[:, start:stop] = logs
    return out


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
        """Include some rows of a block."""
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
        """Return the result of the strip."""
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
        """Include some rows of a block."""
        if self._values is not None:
            self._values.update(block, first_column, rows)
        if self._logs is not None:
            self._logs.update(block, first_column, rows)

    def finish(self) -> tuple[FloatArray, npt.NDArray[np.float64]]:
        """Return the result of the strip."""
        best = self._values.finish() if self._values else np.empty((self._n_rows, 0), np.float32)
        return best, self._logs.finish() if self._logs else np.empty((0, self._n_rows))
