"""Percentile intervals by resampling, clustered and paired.

Captions of one image are not independent, so whole clusters are drawn, and two corrections are
compared on the same draws: the interval is of the mean difference per query. Clusters that add the
same (five captions can only give 0 to 5 hits) are drawn together by one multinomial, which is the
same distribution and takes milliseconds where drawing one by one takes minutes.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError

FloatArray: TypeAlias = npt.NDArray[np.float64]
_MANY_KINDS = 512
_DRAWS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Interval:
    """A mean with its percentile interval.

    Attributes
    ----------
    mean, low, high : float
    p_value : float or None
        For differences: how often a resampled difference has the other sign, two-sided.
    """

    mean: float
    low: float
    high: float
    p_value: float | None = None

    @property
    def includes_zero(self) -> bool:
        """Whether the data are compatible with no difference."""
        return self.low <= 0 <= self.high


def interval_of_mean(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Compute the percentile interval of the mean over queries, by resampling clusters.

    Parameters
    ----------
    values : array, shape (n_queries,)
        Per-query metric, such as `Evaluation.hits`.
    clusters : int array, shape (n_queries,), optional
        Queries with the same number are drawn together; without it each stands alone.
    confidence : float
        0.95 for a 95 % interval.
    n_resamples : int
    seed : int

    Returns
    -------
    Interval

    Examples
    --------
    >>> interval = interval_of_mean([0.0, 1.0] * 50)
    >>> interval.mean, 0.3 < interval.low < 0.5 < interval.high < 0.7
    (0.5, True)
    """
    per_query = _check_values(values, "values")
    means = _resample(per_query, clusters, n_resamples, seed)
    low, high = _percentiles(means, confidence)
    return Interval(float(per_query.mean()), low, high)


def interval_of_difference(
    values: npt.ArrayLike,
    baseline: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Compute the paired interval of ``mean(values − baseline)``, with a p-value.

    Parameters
    ----------
    values, baseline : array, shape (n_queries,)
        Per-query metrics of two corrections, in the same order of queries.
    clusters : int array, shape (n_queries,), optional
        Queries with the same number are drawn together.
    confidence : float
    n_resamples : int
    seed : int

    Returns
    -------
    Interval
        With ``p_value``, two-sided, never below 1/n_resamples.

    Examples
    --------
    >>> interval_of_difference([1.0] * 20, [0.0] * 20).low
    1.0
    """
    first, second = _check_values(values, "values"), _check_values(baseline, "baseline")
    if len(first) != len(second):
        raise NNNormError(
            f"a paired comparison needs the same queries; got {len(first)} and {len(second)} values"
        )
    difference = first - second
    means = _resample(difference, clusters, n_resamples, seed)
    low, high = _percentiles(means, confidence)
    rarer = min((means <= 0).sum(), (means >= 0).sum())
    p_value = min(1.0, 2 * (float(rarer) + 1) / (n_resamples + 1))
    return Interval(float(difference.mean()), low, high, p_value)


def binomial_half_width(proportion: float, n_queries: int) -> float:
    """Compute the ± of the paper, ``1.96·sqrt(p(1 − p)/n)``, as if queries were independent.

    Examples
    --------
    >>> round(100 * binomial_half_width(0.3045, 25_000), 2)
    0.57
    """
    if not 0 <= proportion <= 1 or n_queries < 1:
        raise NNNormError(
            "a proportion must be from 0 to 1 (30.45 % is 0.3045), of at least 1 query; "
            f"got {proportion} of {n_queries}"
        )
    return float(1.96 * np.sqrt(proportion * (1 - proportion) / n_queries))


def is_near(best: npt.ArrayLike, other: npt.ArrayLike, clusters: npt.NDArray[Any]) -> bool:
    """Whether `other` is within one clustered, paired standard error of `best`.

    Examples
    --------
    >>> is_near([1, 1, 0, 0], [1, 0, 0, 0], np.arange(4)), is_near([1, 1], [0, 0], np.arange(2))
    (True, False)
    """
    difference = np.subtract(best, other, dtype=np.float64)
    mean = difference.mean()
    _, members = np.unique(clusters, return_inverse=True)
    deviations = np.bincount(members, weights=difference - mean)
    n_clusters = len(deviations)
    error = np.sqrt((deviations**2).sum() * n_clusters / max(1, n_clusters - 1)) / len(difference)
    # Where one cluster alone differs, both are equal: rounding may not decide that.
    return bool(mean <= error * (1 + 1e-6))


def _check_values(values: npt.ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise NNNormError(f"{name} must have one number per query; got shape {array.shape}")
    if not np.isfinite(array).all():
        raise NNNormError(f"{name} must be finite; query {np.argmin(np.isfinite(array))} is not")
    return array


def _percentiles(means: FloatArray, confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise NNNormError(f"confidence must be between 0 and 1, such as 0.95; got {confidence}")
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def _resample(
    values: FloatArray, clusters: npt.ArrayLike | None, n_resamples: int, seed: int
) -> FloatArray:
    """Means of resampled queries, shape ``(n_resamples,)``."""
    if not isinstance(n_resamples, (int, np.integer)) or n_resamples < 1:
        raise NNNormError(f"n_resamples must be a whole number of at least 1; got {n_resamples!r}")
    rng = np.random.default_rng(seed)
    sums, sizes = _cluster_sums(values, clusters)
    n_clusters = len(sums)
    if n_clusters < 2:
        raise NNNormError(
            "an interval needs at least two queries that do not belong together; got one group"
        )
    kinds, times = np.unique(np.stack([sums, sizes], axis=1), axis=0, return_counts=True)
    if len(kinds) <= _MANY_KINDS:
        drawn = rng.multinomial(n_clusters, times / n_clusters, size=n_resamples) @ kinds
        return np.asarray(drawn[:, 0] / drawn[:, 1])
    means = np.empty(n_resamples)
    step = max(1, _DRAWS_AT_ONCE // n_clusters)
    for start in range(0, n_resamples, step):
        stop = min(start + step, n_resamples)
        draws = rng.integers(0, n_clusters, size=(stop - start, n_clusters), dtype=np.int32)
        means[start:stop] = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    return means


def _cluster_sums(values: FloatArray, clusters: Any) -> tuple[FloatArray, FloatArray]:
    if clusters is None:
        return values, np.ones_like(values)
    numbers = np.asarray(clusters)
    if numbers.shape != values.shape:
        raise NNNormError(
            f"clusters must have one number per query; got {numbers.shape} for {len(values)}"
        )
    _, members = np.unique(numbers, return_inverse=True)
    sums = np.bincount(members, weights=values).astype(np.float64)
    return sums, np.bincount(members).astype(np.float64)
