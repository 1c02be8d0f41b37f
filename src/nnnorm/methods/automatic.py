"""k and alpha without labels: what `NNN()` uses when it is given no numbers.

    k      max(clamp(n/16, 8, 32), 3·n/|G|), at most n/2     (n unique past queries, |G| items)
    alpha  ½ · √reliability · n/(n + 8) · clip((t + 0.4)/0.2, 0, 1)
    t      c + ¼·ln(coverage)

- *Reliability*: how well one half of the past queries predicts the biases from the other half.
  m_k is a noisy measurement, and the weight of a noisy measurement shrinks with its reliability.
- *c*: correlation over items between m_k and the density of the gallery around the item (m_k with
  the other items as references). If the queries are spread like the items, crowded items score
  high with them too.
- *Coverage*: exp(entropy) of the items that the past queries find first, divided by the largest
  value it can have. Mismatched queries find the same few items.
- The gallery's mean is subtracted from its rows before they are scored (centering).

`docs/automatic-rule.md` has the measurements behind each constant.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores, top_k

LARGEST_ALPHA = 0.5
# Below this t, alpha shrinks; `fit` warns.
LOW_T = -0.2
_CLOSED_T = -0.4
_CAUTION = 8
_N_ITEMS = 512
_N_SPLITS = 8
_N_NEIGHBORS = 10
# Samples for density and coverage: more rows hardly change either.
_N_CANDIDATES = 16_384
_N_QUERIES = 2048


class Evidence(NamedTuple):
    """What a bank and a gallery show about the settings; see the module.

    Attributes
    ----------
    reliability : float
        Between 0 and 1.
    density, coverage : float or None
        c, between -1 and 1, and the coverage, between 0 and 1; None for ready scores, which do
        not show how close items are to each other.
    """

    reliability: float
    density: float | None = None
    coverage: float | None = None

    @property
    def t(self) -> float | None:
        """``c + ¼·ln(coverage)``: how well the past queries match the gallery."""
        if self.density is None or self.coverage is None:
            return None
        return self.density + math.log(self.coverage) / 4

    def to_params(self) -> dict[str, float]:
        """The measurements for the `params` of a bias."""
        found = {**self._asdict(), "t": self.t}
        return {name: value for name, value in found.items() if value is not None}


def choose_reference_k(n_references: int, n_gallery: int) -> int:
    """Choose k by the numbers of unique past queries and of items.

    Examples
    --------
    >>> [choose_reference_k(n, 1000) for n in (1, 16, 400, 25_000)]
    [1, 8, 25, 75]
    """
    base = min(32, max(8, n_references // 16))
    return max(1, min(n_references // 2, max(base, 3 * n_references // n_gallery)))


def choose_alpha(evidence: Evidence, n_references: int) -> float:
    """Choose alpha by what was measured and the number of unique past queries.

    Examples
    --------
    >>> [choose_alpha(Evidence(1.0, density=t, coverage=1.0), 24) for t in (0.5, -0.3, -0.5)]
    [0.375, 0.188, 0.0]
    """
    alpha = LARGEST_ALPHA * math.sqrt(evidence.reliability)
    alpha *= n_references / (n_references + _CAUTION)
    if evidence.t is not None:
        alpha *= min(1.0, max(0.0, (evidence.t - _CLOSED_T) / (LOW_T - _CLOSED_T)))
    return round(alpha, 3)  # so that the printed setting is the one that was used


def is_mismatched(t: float | None, reliability: float, n_gallery: int) -> bool:
    """Whether t is low, and few items or noise are not the reason.

    Examples
    --------
    >>> is_mismatched(-0.3, 0.9, 1000), is_mismatched(-0.3, 0.9, 50), is_mismatched(0.2, 0.9, 1000)
    (True, False, False)
    """
    return t is not None and t < LOW_T and reliability >= 0.5 and n_gallery >= 100


def measure(
    scores: Scores,
    raw: Scores,
    reference_k: int,
    *,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Evidence:
    """Measure reliability, density and coverage on samples.

    Parameters
    ----------
    scores : Products or Matrix, shape (n_gallery, n_references)
        Those that m_k is the mean of, centered or not.
    raw : Products or Matrix, shape (n_gallery, n_references)
        Those that a search ranks by.
    reference_k : int
    seed : int
        For the random halves.
    memory_budget : int
        Bytes beyond the inputs.
    """
    n_gallery, n_references = scores.shape
    if n_references < 2 or n_gallery < 3:
        return Evidence(0.0)
    items = _spread(n_gallery, _N_ITEMS)
    some = scores.some_rows(items)
    # The best of each half are among the best of the whole: twice as many, and a margin.
    n_best = min(n_references, 2 * reference_k + 32)
    best, indices = top_k(some, n_best, memory_budget=memory_budget)
    reliability = _split_half_reliability(best, indices, n_references, reference_k, seed)
    if not isinstance(some, Products) or not isinstance(raw, Products):
        return Evidence(reliability)
    candidates = np.union1d(items, _spread(n_gallery, _N_CANDIDATES))
    near = Products(some.rows, raw.rows.subset(candidates), memory_budget=memory_budget)
    density = _density_correlation(best[:, :reference_k], near, candidates, items, memory_budget)
    queries = raw.columns.subset(_spread(n_references, _N_QUERIES))
    found = top_k(
        Products(queries, near.columns, memory_budget=memory_budget), 1, memory_budget=memory_budget
    )
    return Evidence(reliability, density, _coverage(found.indices[:, 0], len(candidates)))


def _split_half_reliability(
    best: npt.NDArray[np.float32],
    indices: npt.NDArray[np.int64],
    n_references: int,
    reference_k: int,
    seed: int,
) -> float:
    """Correlation of the m_{k/2} of random halves, stepped up by Spearman-Brown ``2r/(1+r)``."""
    half_k = max(1, reference_k // 2)
    rng = np.random.default_rng(seed)
    correlations = []
    for _ in range(_N_SPLITS):
        in_first = np.zeros(n_references, dtype=bool)
        in_first[rng.permutation(n_references)[: n_references // 2]] = True
        belongs = in_first[indices]
        halves = (_mean_of_first(best, part, half_k) for part in (belongs, ~belongs))
        correlations.append(_correlation(*halves))
    r = float(np.mean(correlations))
    return 2 * r / (1 + r) if r > 0 else 0.0


def _density_correlation(
    best: npt.NDArray[np.float32],
    near: Products,
    candidates: npt.NDArray[np.int64],
    items: npt.NDArray[np.int64],
    memory_budget: int,
) -> float:
    """Correlation of m_k with the mean of the 10 best scores with other items."""
    n_near = min(_N_NEIGHBORS, len(candidates) - 1)
    # An item may not be its own nearest if norms vary: it is left out by its place.
    scores, indices = top_k(near, n_near + 1, memory_budget=memory_budget)
    density = _mean_of_first(scores, candidates[indices] != items[:, None], n_near)
    return _correlation(best.mean(axis=1, dtype=np.float64), density)


def _coverage(first: npt.NDArray[np.int64], n_items: int) -> float:
    """exp(entropy) of the items that queries find first, relative to its largest value."""
    shares = np.bincount(first) / len(first)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()) / min(len(first), n_items))


def _spread(n_rows: int, most: int) -> npt.NDArray[np.int64]:
    """At most so many row numbers, evenly spaced."""
    return np.linspace(0, n_rows - 1, min(n_rows, most)).astype(np.int64)


def _correlation(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> float:
    if first.std() > 0 and second.std() > 0:
        return float(np.corrcoef(first, second)[0, 1])
    return 0.0


def _mean_of_first(
    best: npt.NDArray[np.float32], belongs: npt.NDArray[np.bool_], n_first: int
) -> npt.NDArray[np.float64]:
    """Mean of the first `n_first` values of each row among those that belong."""
    counted = belongs & (belongs.cumsum(axis=1) <= n_first)
    sums = np.where(counted, best, 0).sum(axis=1, dtype=np.float64)
    return np.asarray(sums / np.maximum(1, counted.sum(axis=1)))
