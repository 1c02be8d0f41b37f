"""Hubness: the k-occurrence N_k and its statistics.

``N_k(i)`` is the number of queries that have item i among their first k; its mean is
``k·n_queries/n_gallery``. The paper's table uses N_1: kurtosis (excess), MAE and max.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError
from nnnorm.ranking import Ranking
from nnnorm.study.truth import Truth, open_truth

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
# A robust z-score beyond this is an outlier, by Iglewicz and Hoaglin's rule of thumb.
_OUTLIER = 3.5
HUB = 3  # a hub comes first this many times as often as is fair


@dataclass(frozen=True)
class Hubness:
    """Statistics of the k-occurrence over all items.

    Attributes
    ----------
    mean : float
        ``k·n_queries/n_gallery``.
    max : int
        N_k of the most retrieved item.
    mean_absolute_error : float
        Mean distance of N_k from its mean.
    kurtosis : float
        Excess kurtosis: 0 for a normal distribution.
    skewness : float
    gini : float
        0 where all items are retrieved equally often, near 1 where one item takes all hits.
    robin_hood : float
        Share of all hits that would have to be moved to make all equal.
    antihub_share : float
        Share of items that are never retrieved.
    hub_occurrence : float
        Share of all hits that go to items with N_k of at least twice the mean.
    """

    mean: float
    max: int
    mean_absolute_error: float
    kurtosis: float
    skewness: float
    gini: float
    robin_hood: float
    antihub_share: float
    hub_occurrence: float

    def to_dict(self) -> dict[str, float]:
        """Return all statistics by name, ready for JSON.

        Examples
        --------
        >>> measure_hubness([1, 1]).to_dict()["max"]
        1
        """
        return asdict(self)


@dataclass(frozen=True)
class Hub:
    """One item, how often it is retrieved, and how often wrongly.

    Attributes
    ----------
    item : int
        Gallery row.
    occurrences : int
        N_k.
    wrong_share : float or None
        Share of those hits that are wrong, where a truth is given.
    bias_z : float or None
        Robust z-score of its bias, where a bias is given.
    """

    item: int
    occurrences: int
    wrong_share: float | None = None
    bias_z: float | None = None


def count_occurrences(ranking: Ranking | npt.ArrayLike, n_gallery: int) -> IntArray:
    """Count ``N_k`` of every item.

    Parameters
    ----------
    ranking : Ranking or int array, shape (n_queries, k) or (n_queries,)
    n_gallery : int

    Returns
    -------
    ndarray, shape (n_gallery,), int64

    Examples
    --------
    >>> count_occurrences([[0], [0], [2]], 3).tolist()
    [2, 0, 1]
    """
    indices = np.asarray(ranking.indices if isinstance(ranking, Ranking) else ranking)
    if indices.size == 0 or indices.dtype.kind not in "iu":
        raise NNNormError(f"a ranking must hold item numbers; got {indices.dtype} {indices.shape}")
    if indices.min() < 0 or indices.max() >= n_gallery:
        raise NNNormError(
            f"the ranking names item {indices.max() if indices.min() >= 0 else indices.min()}, "
            f"but the gallery has {n_gallery} items"
        )
    return np.bincount(indices.ravel().astype(np.int64), minlength=n_gallery).astype(np.int64)


def measure_hubness(occurrences: npt.ArrayLike) -> Hubness:
    """Compute statistics of ``N_k``.

    Parameters
    ----------
    occurrences : int array, shape (n_gallery,)
        From `count_occurrences`.

    Returns
    -------
    Hubness

    Examples
    --------
    >>> measure_hubness([4, 0, 0, 0]).robin_hood
    0.75
    """
    counts = _check_counts(occurrences, "occurrences")
    if counts.sum() == 0:
        raise NNNormError(
            f"occurrences must have at least one hit; got {len(counts)} items with none"
        )
    n_gallery, total, mean = len(counts), counts.sum(), counts.mean()
    deviation = counts - mean
    variance = (deviation**2).mean()
    ordered = np.sort(counts)
    ranks = np.arange(1, n_gallery + 1)
    return Hubness(
        mean=float(mean),
        max=int(counts.max()),
        mean_absolute_error=float(np.abs(deviation).mean()),
        # A constant N_k has no shape: both moments are 0, not 0/0.
        kurtosis=float((deviation**4).mean() / variance**2 - 3) if variance > 0 else 0.0,
        skewness=float((deviation**3).mean() / variance**1.5) if variance > 0 else 0.0,
        gini=float(((2 * ranks - n_gallery - 1) * ordered).sum() / (n_gallery * total)),
        robin_hood=float(np.abs(deviation).sum() / (2 * total)),
        antihub_share=float((counts == 0).mean()),
        hub_occurrence=float(counts[counts >= 2 * mean].sum() / total),
    )


def expect_occurrences(n_queries: int, n_gallery: int, most: int) -> FloatArray:
    """Expect the number of items with ``N_1`` = 0, 1, … if queries chose items at random.

    ``n_gallery·C(n_queries, n)·p^n·(1 − p)^(n_queries − n)`` with ``p = 1/n_gallery``.

    Parameters
    ----------
    n_queries, n_gallery : int
    most : int
        The largest N_1 that is wanted.

    Returns
    -------
    ndarray, shape (most + 1,), float64

    Examples
    --------
    >>> expect_occurrences(2, 2, 2).tolist()
    [0.5, 1.0, 0.5]
    """
    if n_queries < 0 or n_gallery < 1:
        raise NNNormError(f"queries and items are needed; got {n_queries} and {n_gallery}")
    if n_gallery == 1:
        return np.where(np.arange(most + 1) == n_queries, 1.0, 0.0)
    expected = np.zeros(most + 1)
    for n in range(min(most, n_queries) + 1):
        ways = math.lgamma(n_queries + 1) - math.lgamma(n + 1) - math.lgamma(n_queries - n + 1)
        logarithm = ways - n * math.log(n_gallery) + (n_queries - n) * math.log1p(-1 / n_gallery)
        expected[n] = n_gallery * math.exp(logarithm)
    return expected


def compare_occurrences(before: npt.ArrayLike, after: npt.ArrayLike) -> tuple[float, float]:
    """Run a Kolmogorov–Smirnov test between two distributions of ``N_k``.

    The p-value is the asymptotic one with Stephens' correction; with ties, as counts have, it errs
    on the side of "no difference".

    Parameters
    ----------
    before, after : int array, shape (n_gallery,)

    Returns
    -------
    statistic, p_value : float

    Examples
    --------
    >>> compare_occurrences([0, 1, 2], [0, 1, 2])
    (0.0, 1.0)
    """
    first, second = _check_counts(before, "before"), _check_counts(after, "after")
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate([first, second])
    below = [
        np.searchsorted(sample, values, side="right") / len(sample) for sample in (first, second)
    ]
    statistic = float(np.abs(below[0] - below[1]).max())
    size = np.sqrt(len(first) * len(second) / (len(first) + len(second)))
    return statistic, _kolmogorov((size + 0.12 + 0.11 / size) * statistic)


def list_hubs(
    ranking: Ranking,
    n_gallery: int,
    *,
    truth: Any = None,
    bias: Bias | None = None,
    most: int = 10,
) -> list[Hub]:
    """List the most retrieved items, most first.

    Parameters
    ----------
    ranking : Ranking, shape (n_queries, k)
    n_gallery : int
    truth : array or list, optional
        Adds which hits are wrong, see `truth.open_truth`.
    bias : Bias, optional
        Adds how far the bias of each hub lies from the others.
    most : int
        Number of items to list.

    Returns
    -------
    list of Hub

    Examples
    --------
    >>> import numpy as np
    >>> ranking = Ranking(np.zeros((3, 1), np.float32), np.array([[1], [1], [0]]))
    >>> list_hubs(ranking, 2, truth=[1, 0, 0])[0]
    Hub(item=1, occurrences=2, wrong_share=0.5, bias_z=None)
    """
    counts = count_occurrences(ranking, n_gallery)
    if bias is not None and len(bias) != n_gallery:
        raise NNNormError(
            f"this bias is for a gallery of {len(bias)} items, but n_gallery is {n_gallery}; "
            "pass the bias of the gallery that was searched"
        )
    order = np.lexsort((np.arange(n_gallery), -counts))[:most]
    wrong = None if truth is None else _count_wrong(ranking, n_gallery, truth)
    z = None if bias is None else robust_z(bias.values)
    return [
        Hub(
            item=int(item),
            occurrences=int(counts[item]),
            wrong_share=None if wrong is None else float(wrong[item] / counts[item]),
            bias_z=None if z is None else float(z[item]),
        )
        for item in order
        if counts[item] > 0
    ]


def find_hubs(occurrences: npt.ArrayLike) -> IntArray:
    """Find the items that come first at least `HUB` times, and `HUB` times as often as is fair.

    Parameters
    ----------
    occurrences : int array, shape (n_gallery,)

    Returns
    -------
    ndarray of int
        Item numbers.

    Examples
    --------
    >>> find_hubs([5, 34, 2, 3, 0, 1]).tolist()
    [1]
    """
    counts = _check_counts(occurrences, "occurrences")
    return np.flatnonzero(counts >= HUB * max(1.0, counts.mean()))


def find_rescued(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    truth: Truth,
    hubs: npt.ArrayLike,
) -> IntArray:
    """Find queries whose first hit was a wrong hub and is right after, the clearest first.

    Clear are those whose first places held many hubs that are gone.

    Parameters
    ----------
    before, after : int array, shape (n_queries, k)
        The first items of every query, without and with a correction.
    truth : Truth
    hubs : int array

    Returns
    -------
    ndarray of int
        Query numbers.

    Examples
    --------
    >>> right = open_truth([2, 1], n_queries=2, n_gallery=3)
    >>> find_rescued([[0, 2], [1, 0]], [[2, 0], [1, 2]], right, [0]).tolist()
    [0]
    """
    was, now = np.asarray(before), np.asarray(after)
    among = np.isin(was, hubs)
    rescued = among[:, 0] & ~truth.holds(was[:, 0]) & truth.holds(now[:, 0])
    clear = among.sum(axis=1) - np.isin(now, hubs).sum(axis=1)
    order = np.argsort(-clear, kind="stable")
    return order[rescued[order]]


def find_outliers(bias: Bias, *, threshold: float = _OUTLIER) -> IntArray:
    """Find items whose bias is far from all others: poisoned, degenerate, or very strong hubs.

    Parameters
    ----------
    bias : Bias
    threshold : float
        Absolute robust z-score from which an item counts.

    Returns
    -------
    ndarray, shape (n_outliers,), int64
        Gallery rows, farthest first.

    Examples
    --------
    >>> import numpy as np
    >>> find_outliers(Bias(np.array([0.1, 0.11, 0.12, 0.13, 0.9]), 1.0, "nnn")).tolist()
    [4]
    """
    z = np.abs(robust_z(bias.values))
    order = np.argsort(-z, kind="stable")
    return np.asarray(order[z[order] >= threshold])


def robust_z(values: npt.ArrayLike) -> FloatArray:
    """Compute ``0.6745·(v − median)/MAD`` of every value; zeros where all are equal.

    Examples
    --------
    >>> robust_z([1.0, 2.0, 3.0]).tolist()
    [-0.6745, 0.0, 0.6745]
    """
    numbers = np.asarray(values, dtype=np.float64)
    deviation = numbers - np.median(numbers)
    spread = np.median(np.abs(deviation))
    if spread == 0:
        # More than half are equal; the others are judged by the mean distance instead.
        spread = np.abs(deviation).mean() * 0.8453
    return np.asarray(0.6745 * deviation / spread) if spread > 0 else np.zeros_like(deviation)


def _check_counts(occurrences: npt.ArrayLike, name: str) -> FloatArray:
    counts = np.asarray(occurrences, dtype=np.float64)
    if counts.ndim != 1 or len(counts) == 0:
        raise NNNormError(f"{name} must have one count per item; got shape {counts.shape}")
    if len(bad := np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)))):
        raise NNNormError(
            f"{name} must be counts of at least 0; item {bad[0]} has {counts[bad[0]]:g}"
        )
    return counts


def _count_wrong(ranking: Ranking, n_gallery: int, truth: Any) -> IntArray:
    n_queries = len(ranking.indices)
    right = open_truth(truth, n_queries=n_queries, n_gallery=n_gallery)
    keys = right.queries * n_gallery + right.items
    hits = np.arange(n_queries)[:, None] * n_gallery + ranking.indices
    is_wrong = ~np.isin(hits, keys)
    return np.bincount(ranking.indices[is_wrong], minlength=n_gallery).astype(np.int64)


def _kolmogorov(x: float) -> float:
    """Survival function of Kolmogorov's distribution."""
    if x < 0.2:
        return 1.0
    terms = np.arange(1, 101)
    return float(np.clip(2 * ((-1.0) ** (terms - 1) * np.exp(-2 * terms**2 * x**2)).sum(), 0, 1))
