"""k and alpha without labels: what `NNN()` uses when it is given no numbers.

    k      max(clamp(n/16, 8, 32), 3·n/|G|), at most n/2     (n unique past queries, |G| items)
    alpha  0.6 · √reliability · n/(n + 16) · min(1, 1.25/spread)³ · clip((t + 0.1)/0.2, 0, 1)
    t      c + ¼·ln(coverage)

- *Reliability*: how well one half of the past queries predicts the biases from the other half.
  m_k is a noisy measurement, and the weight of a noisy measurement shrinks with its reliability.
- *c*: correlation over items between m_k and the density of the gallery around the item (the mean
  of its 10 best scores with other items). If queries are spread like the items, crowded items
  score high with them too.
- *Coverage*: exp(entropy) of the items that groups of 64 past queries find first, relative to the
  largest value it can have. Mismatched queries find the same few items.
- *Spread*: how much m_k varies between items, compared with how much the density does. Queries from
  one part of what is asked tilt m_k along their mean, and it varies more.
- The gallery's mean is subtracted from its rows before they are scored (centering).

`docs/automatic-rule.md` has the measurements behind each constant.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.approximate import Sample, processor_time
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores, top_k

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.int64]

LARGEST_ALPHA = 0.6
_CAUTION = 16
_USUAL_SPREAD = 1.25
_CLOSED_T, _OPEN_T = -0.1, 0.1
_N_ITEMS = 512
_N_SPLITS = 8
_N_NEIGHBORS = 10
_N_CANDIDATES = 16_384
_GROUP, _N_GROUPS = 64, 16


class Evidence(NamedTuple):
    """What past queries and a gallery show about the settings; see the module."""

    reliability: float
    density: float | None = None
    coverage: float | None = None
    spread: float | None = None
    # The items that were looked at, with their m_k.
    sample: Sample | None = None

    @property
    def t(self) -> float | None:
        """``c + ¼·ln(coverage)``."""
        if self.density is None or self.coverage is None:
            return None
        return self.density + math.log(self.coverage) / 4

    @property
    def match(self) -> float:
        """How well the past queries match the gallery: the last two factors of alpha, 0 to 1."""
        if self.t is None or self.spread is None:
            return 1.0
        gate = min(1.0, max(0.0, (self.t - _CLOSED_T) / (_OPEN_T - _CLOSED_T)))
        return gate * min(1.0, _USUAL_SPREAD / self.spread) ** 3

    def to_params(self) -> dict[str, float]:
        """The measurements for the `params` of a bias."""
        measured = {} if self.t is None else {**self._asdict(), "match": self.match}
        measured.pop("sample", None)
        return {**measured, "reliability": self.reliability}


def choose_reference_k(n_references: int, n_gallery: int) -> int:
    """Choose k by the numbers of unique past queries and of items."""
    base = min(32, max(8, n_references // 16))
    return max(1, min(n_references // 2, max(base, 3 * n_references // n_gallery)))


def choose_alpha(evidence: Evidence, n_references: int) -> float:
    """Choose alpha by what was measured and the number of unique past queries."""
    alpha = LARGEST_ALPHA * math.sqrt(evidence.reliability)
    alpha *= n_references / (n_references + _CAUTION) * evidence.match
    return round(alpha, 3)  # so that the printed setting is the one that was used


def is_mismatched(params: Mapping[str, Any], n_references: int, n_gallery: int) -> bool:
    """Whether past queries don't match the gallery, and too few of either are not the reason."""
    is_clear = n_references >= 16 and n_gallery >= 100 and params.get("reliability", 0) >= 0.5
    return is_clear and params.get("match", 1) < 0.5


def measure(
    scores: Scores,
    raw: Scores,
    reference_k: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Evidence:
    """Measure on samples what the settings depend on."""
    n_gallery, n_references = scores.shape
    if n_references < 2 or n_gallery < 3:
        return Evidence(0.0)
    items = _draw(n_gallery, _N_ITEMS)
    some = scores.some_rows(items)
    # The best of each half are among the best of the whole: twice as many, and a margin.
    n_best = min(n_references, 2 * reference_k + 64)
    started = processor_time()
    best, indices = top_k(some, n_best, memory_budget=memory_budget)
    seconds = processor_time() - started
    reliability = _split_half_reliability(best, indices, n_references, reference_k)
    if not isinstance(some, Products) or not isinstance(raw, Products):
        return Evidence(reliability)
    rows = some.rows.rows(0, len(items))
    candidates = np.union1d(items, _draw(n_gallery, _N_CANDIDATES))
    others = raw.rows.take(candidates)
    near = rows @ others.T
    of_items = float(near.std())
    near[np.arange(len(items)), np.searchsorted(candidates, items)] = -np.inf
    n_near = min(_N_NEIGHBORS, len(candidates) - 1)
    density = np.partition(near, -n_near, axis=1)[:, -n_near:].mean(axis=1, dtype=np.float64)
    means = best[:, :reference_k].mean(axis=1, dtype=np.float64)
    shuffled = np.random.default_rng(0).permutation(n_references)[: _GROUP * _N_GROUPS]
    queries = raw.columns.take(shuffled)
    of_scores, spread = float((rows @ queries.T).std()), 1.0
    if min(of_scores, of_items, means.std(), density.std()) > 0:
        spread = float((means.std() / of_scores) / (density.std() / of_items))
    return Evidence(
        reliability,
        _correlation(means, density),
        _coverage((queries @ others.T).argmax(axis=1), len(candidates)),
        spread,
        Sample(items, means.astype(np.float32), seconds),
    )


def _split_half_reliability(
    best: npt.NDArray[np.float32], indices: IntArray, n_references: int, reference_k: int
) -> float:
    """Correlation of the m_{k/2} of random halves, stepped up by Spearman-Brown ``2r/(1+r)``."""
    half_k = max(1, reference_k // 2)
    rng = np.random.default_rng(0)
    correlations = []
    for _ in range(_N_SPLITS):
        in_first = np.zeros(n_references, dtype=bool)
        in_first[rng.permutation(n_references)[: n_references // 2]] = True
        halves = []
        for is_here in (in_first[indices], ~in_first[indices]):
            is_here &= is_here.cumsum(axis=1) <= half_k
            sums = np.where(is_here, best, 0).sum(axis=1, dtype=np.float64)
            halves.append(sums / np.maximum(1, is_here.sum(axis=1)))
        correlations.append(_correlation(*halves))
    r = float(np.mean(correlations))
    return 2 * r / (1 + r) if r > 0 else 0.0


def _coverage(first: IntArray, n_items: int) -> float:
    """Mean over groups of queries of exp(entropy) of what they find first, over its maximum."""
    found = []
    for start in range(0, max(1, len(first) - _GROUP + 1), _GROUP):
        group = first[start : start + _GROUP]
        shares = np.unique(group, return_counts=True)[1] / len(group)
        found.append(np.exp(-(shares * np.log(shares)).sum()) / min(len(group), n_items))
    return float(np.mean(found))


def _draw(n_rows: int, most: int) -> IntArray:
    """At most so many random row numbers, in order."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, most, replace=False))


def _correlation(first: FloatArray, second: FloatArray) -> float:
    if first.std() > 0 and second.std() > 0:
        return float(np.corrcoef(first, second)[0, 1])
    return 0.0
