"""Log-mean-exps and Sinkhorn's iterations, in one pass over scores in blocks.

A log-mean-exp is ``log( mean_j exp(β·s_ij) )``; one pass over the scores computes it for many β.

Sinkhorn balances the gallery against the references. The plan is ``P_ij = u_i·exp(s_ij/τ)·v_j``
with uniform marginals: all items have the same total, and all references too. One pass over all
scores is a whole iteration, for several τ at once: it computes u for each strip of rows, and adds
the strip's part of the plan to the sums of the columns. These sums determine the next v. The cost
``1 − s`` differs from ``−s`` by a constant, which u absorbs.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from nnnorm import scoring
from nnnorm.embeddings import DoubleArray, FloatArray
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.scoring import Products, Scores

# Smaller exponents are negligible compared with the maximum's 1, and exp would return subnormal
# numbers, which are slow.
LEAST_EXPONENT = np.float32(-80)
# Pieces of this many scores (1 MB) stay in the cache, and are large enough that threads rarely wait
# for each other. BLAS does not split rows of this many columns.
_CACHED_SCORES = 2**18
_CACHED_COLUMNS = 2**13


def scan(
    scores: Scores, *, k: int, betas: Sequence[float] = (), progress: Progress | None = None
) -> Iterator[tuple[int, int, tuple[FloatArray, DoubleArray]]]:
    """Yield ``(start, stop, (best, logs))`` for strips of rows, from one product.

    ``best`` has the k best values of each row, best first, and ``logs`` has a row per β.
    """
    # Best values need the bytes of `top_means`, and logs those of pieces in the cache.
    needs = 4 * (10 * k + 128) * (k > 0) + 24 * (len(betas) + 2) * (len(betas) > 0)
    return scoring.reduce_rows(
        scores,
        partial(KeepBestAndLogs, k=k, betas=betas),
        bytes_per_score=(5 if k else 1) + (len(betas) > 0),
        bytes_per_row=needs,
        narrowest=k if k or not betas else 1,
        progress=progress,
    )


def log_mean_exp(scores: Scores, betas: Sequence[float]) -> DoubleArray:
    """Compute ``log( mean_j exp(β·s_ij) )`` for every row and β, shape ``(n_betas, n_rows)``."""
    out = np.empty((len(betas), scores.shape[0]))
    for start, stop, (_, logs) in scan(scores, k=0, betas=betas):
        out[:, start:stop] = logs
    return out


class KeepLogMeanExp:
    """Reducer that stores the current maximum M of each row, and Σ ``exp(β(s − M)) − 1`` per β."""

    # Largest β·range/2 for which power sums are faster than exp.
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
        # Small pieces stay in the cache.
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

    def finish(self) -> DoubleArray:
        """Return the result of the strip."""
        peaks = np.outer(self._betas, self._peak.astype(np.float64))
        return np.asarray(peaks + np.log1p(self._excess / self._seen))


def _sum_exp_excess(
    scores: FloatArray, middle: FloatArray, half: float, betas: DoubleArray
) -> DoubleArray:
    """Return Σ ``exp(β(s − middle)) − 1`` per β and row by power sums; ``|s − middle| ≤ half``."""
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
    """Compute ``Σ_j left_ij·right_ij`` with BLAS, several times faster than product and sum."""
    return np.asarray(np.matmul(left[:, None, :], right[:, :, None])[:, 0, 0])


class KeepBestAndLogs:
    """Reducer that finds both the k best values and the log-mean-exps, from the same blocks."""

    def __init__(self, n_rows: int, k: int, betas: Sequence[float]) -> None:
        self._values = scoring.KeepBestValues(n_rows, k) if k else None
        self._logs = KeepLogMeanExp(n_rows, betas) if len(betas) else None
        self._n_rows = n_rows

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        """Include some rows of a block."""
        if self._values is not None:
            self._values.update(block, first_column, rows)
        if self._logs is not None:
            self._logs.update(block, first_column, rows)

    def finish(self) -> tuple[FloatArray, DoubleArray]:
        """Return the result of the strip."""
        best = self._values.finish() if self._values else np.empty((self._n_rows, 0), np.float32)
        return best, self._logs.finish() if self._logs else np.empty((0, self._n_rows))


# --- entropic transport --------------------------------------------------------------------------


def transport_biases(
    scores: Scores,
    taus: Sequence[float],
    iterations: int,
    *,
    n_wanted: int,
    progress: Progress | None = None,
) -> DoubleArray:
    """Compute ``−τ·log u`` of every row, plus a constant that puts it on the scale of a score."""
    n_rows, n_columns = scores.shape
    scales = [1 / tau for tau in taus]
    strips = _Strips(scores)
    done = scoring.Done(progress, (iterations - 1) * n_rows + n_wanted)
    log_v = -log_mean_exp(scores.transposed(), scales)
    for _ in range(iterations - 1):
        column_sums = np.zeros((len(taus), n_columns))
        for start, stop, strip in strips.read(n_rows):
            for scale, shift, sums in zip(scales, log_v, column_sums, strict=True):
                _balance_rows(strip, scale, shift.astype(np.float32), sums)
            done.add(stop - start)
        log_v -= np.log(column_sums * (n_columns / n_rows))
    # Compute the last u of the wanted rows; other rows and the next v are not needed.
    row_logs = np.empty((len(taus), n_wanted))
    for start, stop, strip in strips.read(n_wanted):
        for scale, shift, logs in zip(scales, log_v, row_logs, strict=True):
            logs[start:stop] = _balance_rows(strip, scale, shift.astype(np.float32), None)
        done.add(stop - start)
    # If the references' weights add up to one, −τ·log u is on the scale of a score.
    peaks = log_v.max(axis=1)
    log_totals = peaks + np.log(np.exp(log_v - peaks[:, None]).sum(axis=1))
    return np.asarray((row_logs - log_totals[:, None]) * np.array(taus)[:, None])


class _Strips:
    """Whole rows of scores in strips; those that fit in memory are multiplied only once."""

    def __init__(self, scores: Scores) -> None:
        self.scores, memory_budget = scores, scores.memory_budget
        n_rows, n_columns = scores.shape
        # Bytes for a strip of scores, and for temporary arrays of exp and sums.
        bytes_per_row = 12 * n_columns + scores.row_bytes
        fits = memory_budget * 3 // 4 // bytes_per_row
        if fits == 0:
            raise NNNormError(
                f"Sinkhorn needs a row of {n_columns} scores, so memory_budget must be at least "
                f"{-(-4 * bytes_per_row // 3)} bytes; got {memory_budget}"
            )
        self._size = min(n_rows, fits, max(64, 2**23 // n_columns))
        self._buffer = np.empty((self._size, n_columns), dtype=np.float32)
        self._held: list[FloatArray] = []
        self._spare = 0
        if isinstance(scores, Products):  # a copy of given scores would save no time
            self._spare = memory_budget * 3 // 4 - self._size * bytes_per_row

    def read(self, stop: int) -> Iterator[tuple[int, int, FloatArray]]:
        """Yield the rows up to `stop` as ``(first, last, scores)``; don't change the scores."""
        for number, first in enumerate(range(0, stop, self._size)):
            last = min(first + self._size, self.scores.shape[0])
            if number >= len(self._held):
                strip = self._buffer[: last - first]
                if number == len(self._held) and strip.nbytes <= self._spare:
                    self._spare -= strip.nbytes
                    strip = np.empty_like(strip)
                    self._held.append(strip)
                scoring.fill_rows(self.scores, first, strip)
            else:
                strip = self._held[number]
            wanted = min(last, stop)
            yield first, wanted, strip[: wanted - first]


def _balance_rows(
    strip: FloatArray, scale: float, shift: FloatArray, column_sums: DoubleArray | None
) -> DoubleArray:
    """Return the log of Σ ``exp(scale·s + shift)`` per row; add the balanced rows to columns."""
    row_logs = np.empty(len(strip))
    sums_of: dict[int, DoubleArray] = {}
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
                # A BLAS product would start threads that compete with these.
                own_sums += np.einsum("i,ij->j", 1 / sums, piece)
        sums_of[rows.start] = own_sums

    scoring.in_threads(work, strip)
    if column_sums is not None:
        for start in sorted(sums_of):  # in a fixed order, so that all runs return the same bits
            np.add(column_sums, sums_of[start], out=column_sums)
    return row_logs
