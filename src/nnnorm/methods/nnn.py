"""Nearest Neighbor Normalization, ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024).

`NNN()` sets k and alpha without labels, for n unique past queries and |G| items:

    k      max(clamp(n/16, 8, 32), 3·n/|G|), at most n/2
    alpha  0.6 · √reliability · n/(n + 16) · min(1, 1.25/spread)³ · clip((t + 0.1)/0.2, 0, 1)
    t      c + ¼·ln(coverage)

- *Reliability*: how well the biases from one half of the past queries predict those from the other
  half. m_k is a noisy measurement: the lower its reliability, the lower its weight.
- *c*: correlation over items between m_k and the density of the gallery around the item (the mean
  of its 10 best scores with other items). If past queries are distributed like the items, items in
  dense regions also score high with past queries.
- *Coverage*: exp(entropy) of the top-1 items of 64 past queries, relative to its maximum, averaged
  over groups of 64. Mismatched queries find the same few items.
- *Spread*: how much m_k varies between items, compared with how much the density varies. If past
  queries are about one topic, m_k varies more, along their mean.
- Items are centered: the gallery's mean is subtracted from its rows before they are scored.

`docs/automatic-rule.md` has the measurements behind each constant.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from nnnorm.embeddings import IntArray
from nnnorm.errors import NNNormError, check_count, check_number
from nnnorm.methods.base import POWERS_OF_TWO, FloatArray, Method, Statistics, Variant
from nnnorm.scoring import Products, Sample, draw_rows, one_blas_thread, processor_time, top_k

Auto: TypeAlias = Literal["auto"]

_PAPER_ALPHAS = tuple(float(alpha) for alpha in np.arange(0.25, 1.501, 0.125))
PAPER_GRID = {"reference_k": POWERS_OF_TWO, "alpha": _PAPER_ALPHAS}
# Small or mismatched banks need a lower alpha than the paper's lowest.
_GRID = {**PAPER_GRID, "alpha": (0.0625, 0.125, 0.1875, *_PAPER_ALPHAS), "center": (True,)}

_LARGEST_ALPHA = 0.6
_CAUTION = 16
_USUAL_SPREAD = 1.25
_CLOSED_T, _OPEN_T = -0.1, 0.1
_N_ITEMS = 512
_N_SPLITS = 8
_N_NEIGHBORS = 10
_N_CANDIDATES = 16_384
_GROUP, _N_GROUPS = 64, 16


@dataclass(frozen=True)
class NNN(Method):
    """Nearest Neighbor Normalization, the method of the paper (Chowdhury et al., EMNLP 2024).

    The correction of an item r is ``b(r) = α·m_k(r)``. ``m_k(r)`` is the mean of the item's k best
    scores with past queries (references), so it is high for hubs.

    ``NNN()`` chooses its settings from the past queries, without labels. If you pass both
    `reference_k` and `alpha`, this is the paper's method: every past query counts, including
    duplicates, and nothing is centered.

    Parameters
    ----------
    reference_k : int or "auto"
        k in the formula: number of past queries per item to average.
    alpha : float or "auto"
        α in the formula: the weight of the bias, at least 0. 0 is no correction.
    center : bool or "auto"
        Whether to subtract the gallery's mean from the items before they are scored with past
        queries. "auto" is True for automatic settings, and False if you pass both numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import NNN
    >>> rng = np.random.default_rng(0)
    >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(100, 8))
    >>> bias = NNN().fit(gallery, references, normalize=True)
    >>> bias.params["reference_k"], bias.values.shape
    (8, (40,))
    """

    reference_k: int | Auto = "auto"
    alpha: float | Auto = "auto"
    center: bool | Auto = "auto"

    variants = (Variant("nnn", "NNN", _GRID),)
    shown = ("reference_k", "alpha", "center")
    is_weighted = True

    def __post_init__(self) -> None:
        if self.reference_k != "auto":
            check_count("reference_k", self.reference_k)
        if self.alpha != "auto":
            check_number("alpha", self.alpha, low=0)  # less would favor hubs
        if self.center not in (True, False, "auto"):
            raise NNNormError(f'center must be True, False or "auto"; got {self.center!r}')
        if not self.is_automatic and self.center == "auto":
            object.__setattr__(self, "center", False)

    @classmethod
    def paper(cls) -> "NNN":
        """Return the setting that is best most often in the paper: k = 128, α = 0.75.

        Examples
        --------
        >>> from nnnorm import NNN
        >>> NNN.paper()
        NNN(reference_k=128, alpha=0.75)
        """
        return cls(reference_k=128, alpha=0.75)

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.params.items() if value != "auto")
        return f"NNN({', '.join(given)})"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; `center` only if it differs from what the others imply."""
        params = super().params
        if params["center"] == ("auto" if self.is_automatic else False):
            del params["center"]
        return params

    @property
    def is_automatic(self) -> bool:
        """Whether k or α is set automatically."""
        return "auto" in (self.reference_k, self.alpha)

    @property
    def weight(self) -> float:
        """The weight of the bias values, α."""
        if self.alpha == "auto":
            raise NNNormError(
                'alpha is "auto", so the weight is known only after a fit; use the weight of the '
                "bias (bias.weight), or pass a number as alpha"
            )
        return float(self.alpha)

    def resolve(self, statistics: Statistics) -> tuple["NNN", dict[str, Any]]:
        """Return the method with numbers instead of "auto", and the measurements behind them."""
        if not self.is_automatic:
            return self, {}
        center = self.center != False  # noqa: E712 - "auto" is on
        reference_k = self.reference_k
        if reference_k == "auto":
            reference_k = choose_reference_k(statistics.n_references, statistics.n_gallery)
        if self.alpha != "auto":
            return replace(self, reference_k=reference_k, center=center), {}
        key = reference_k, center
        if key not in statistics.evidence:
            statistics.evidence[key] = measure(statistics, *key)
        evidence: Evidence = statistics.evidence[key]
        alpha = choose_alpha(evidence, statistics.n_references)
        measured = {"reliability": evidence.reliability}
        if evidence.sample is not None:
            measured |= {**evidence._asdict(), "match": evidence.match}
            del measured["sample"]
        chosen = NNN(reference_k, alpha, center), measured
        if statistics.groups is None:
            return chosen
        # Differences between groups look like a mismatch with the whole gallery.
        within = _resolve_within(statistics.groups.parts(reference_k, statistics), *key)
        return max(chosen, within, key=lambda one: one[0].weight)

    def values(self, statistics: Statistics) -> FloatArray:
        """Return ``m_k``; its weight is α."""
        return statistics.mean_of_best(int(self.reference_k), is_centered=self.center is True)


# --- the automatic rule --------------------------------------------------------------------------


def _resolve_within(
    parts: Iterable[tuple[Statistics, int]], reference_k: int, center: bool
) -> tuple[NNN, dict[str, Any]]:
    """Return the automatic settings of each group, averaged by the sizes of the groups."""
    found, sizes = [], []
    for part, n_items in parts:
        chosen, measured = NNN(reference_k, center=center).resolve(part)
        found.append({"alpha": chosen.weight, **measured})
        sizes.append(n_items)
    if not found:
        return NNN(reference_k, 0.0, center), {}
    mean = {n: float(np.average([one[n] for one in found], weights=sizes)) for n in found[0]}
    return NNN(reference_k, round(mean.pop("alpha"), 3), center), mean


class Evidence(NamedTuple):
    """The measurements that the settings depend on; see the module docstring."""

    reliability: float
    density: float = 1.0
    coverage: float = 1.0
    spread: float = 1.0
    # The measured items with their m_k; None if only the reliability was measured.
    sample: Sample | None = None

    @property
    def match(self) -> float:
        """How well past queries match the gallery, 0 to 1: the last two factors of alpha."""
        t = self.density + math.log(self.coverage) / 4
        gate = min(1.0, max(0.0, (t - _CLOSED_T) / (_OPEN_T - _CLOSED_T)))
        return gate * min(1.0, _USUAL_SPREAD / self.spread) ** 3


def choose_reference_k(n_references: int, n_gallery: int) -> int:
    """Choose k, given the numbers of unique past queries and items."""
    base = min(32, max(8, n_references // 16))
    return max(1, min(n_references // 2, max(base, 3 * n_references // n_gallery)))


def choose_alpha(evidence: Evidence, n_references: int) -> float:
    """Choose alpha, given the measurements and the number of unique past queries."""
    alpha = _LARGEST_ALPHA * math.sqrt(evidence.reliability)
    alpha *= n_references / (n_references + _CAUTION) * evidence.match
    return round(alpha, 3)  # rounded, so that the printed setting is exactly the one in use


def measure(statistics: Statistics, reference_k: int, is_centered: bool) -> Evidence:
    """Measure reliability, density, coverage and spread on samples."""
    n_gallery, n_references = statistics.scores.shape
    if n_references < 2 or n_gallery < 3:
        return Evidence(0.0)
    if reference_k > n_references:
        raise statistics.too_few_references(reference_k)
    scores = statistics.centered_scores if is_centered else statistics.scores
    items = draw_rows(n_gallery, _N_ITEMS)
    some = scores.some_rows(items)
    # The best scores of each half are among these best scores of the whole, almost always.
    n_best = min(n_references, 2 * reference_k + 64)
    with one_blas_thread():  # for products this small, several threads are slower
        started = processor_time()
        best, indices = top_k(some, n_best)
        seconds = processor_time() - started
        reliability = _split_half_reliability(best, indices, n_references, reference_k)
        raw = statistics.scores
        if not isinstance(some, Products) or not isinstance(raw, Products):
            return Evidence(reliability)
        means = best[:, :reference_k].mean(axis=1, dtype=np.float64)
        sample = Sample(items, means.astype(np.float32), seconds)
        rows = some.rows.rows(0, len(items))
        return Evidence(reliability, *_match(raw, items, rows, means), sample)


def _match(
    raw: Products, items: IntArray, rows: FloatArray, means: FloatArray
) -> tuple[float, float, float]:
    """Return c, coverage and spread, given some items, their rows and their m_k."""
    n_gallery, n_references = raw.shape
    candidates = np.union1d(items, draw_rows(n_gallery, _N_CANDIDATES))
    others = raw.rows.take(candidates)
    near = rows @ others.T
    of_items = _spread(near)
    near[np.arange(len(items)), np.searchsorted(candidates, items)] = -np.inf
    n_near = min(_N_NEIGHBORS, len(candidates) - 1)
    near.partition(len(candidates) - n_near, axis=1)
    density = near[:, -n_near:].mean(axis=1, dtype=np.float64)
    del near
    shuffled = np.random.default_rng(0).permutation(n_references)[: _GROUP * _N_GROUPS]
    queries = raw.columns.take(shuffled)
    of_scores, spread = _spread(rows @ queries.T), 1.0
    if min(of_scores, of_items, means.std(), density.std()) > 0:
        spread = float((means.std() / of_scores) / (density.std() / of_items))
    first = (queries @ others.T).argmax(axis=1)
    coverages = []
    for start in range(0, max(1, len(first) - _GROUP + 1), _GROUP):
        group = first[start : start + _GROUP]
        shares = np.unique(group, return_counts=True)[1] / len(group)
        entropy = -(shares * np.log(shares)).sum()
        coverages.append(np.exp(entropy) / min(len(group), len(candidates)))
    return _correlation(means, density), float(np.mean(coverages)), spread


def _spread(scores: FloatArray) -> float:
    """Return the standard deviation, in float64 because squares of small scores may underflow."""
    mean = scores.mean(dtype=np.float64)
    square = np.einsum("ij,ij->", scores, scores, dtype=np.float64) / scores.size
    return math.sqrt(max(0.0, square - mean**2))


def _split_half_reliability(
    best: FloatArray, indices: IntArray, n_references: int, reference_k: int
) -> float:
    """Correlate m_{k/2} of random halves, and apply the Spearman–Brown formula ``2r/(1+r)``."""
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


def _correlation(first: FloatArray, second: FloatArray) -> float:
    if first.std() > 0 and second.std() > 0:
        return float(np.corrcoef(first, second)[0, 1])
    return 0.0
