"""k, α and centring without labels: what `NNN()` chooses when it is given no numbers.

    k   n/share references, between a least and a largest number     (n: references in the bank)
    α   alpha · reliability^power · n/(n + 8) · clip((c − low)/(high − low), 0, 1)

*Reliability* is how well one half of the bank predicts the biases that the other half gives: m_k is
a noisy measurement of an item's hub offset, and the weight of a noisy measurement shrinks with its
reliability. A handful of references may agree by luck, so it is taken as if eight further ones had
been seen that say nothing. *c* is the correlation over items between m_k and the density of the
gallery around the item, which is m_k with the other items as the bank: an item in a dense place
scores high with any queries that are spread as the items are, so a bank for which this does not
hold covers a part of the gallery only. *Centred*:
the mean of the gallery is taken from its rows before they are scored with the bank. The figures are
in `docs/automatic-rule.md`.
"""

from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores, top_k, top_means

_DOUBTFUL_REFERENCES = 8
_N_ITEMS = 512
_N_SPLITS = 8
_N_NEIGHBOURS = 10
# Neighbours are looked for among so many items: more hardly change a correlation over 512 of them.
_N_CANDIDATES = 16_384
# More than half of the mismatched and narrow banks of `benchmarks/automatic_rule.py` are below this
# by two standard errors, and no own one.
_LOW_DENSITY = 0.3
# A bank that is mostly noise has a low c as well, but it is not narrow, only small.
_LEAST_RELIABILITY = 0.5

RuleName = Literal["second", "first", "paper"]


class AutomaticRule(NamedTuple):
    """The numbers of a rule; see the module.

    Attributes
    ----------
    share, smallest, largest : int
        k is n/share, between the two.
    alpha : float
        The largest weight.
    power : float
        Of the reliability; 0 where it is not used.
    gate : (float, float) or None
        c where α is 0, and where it is not reduced.
    is_centred : bool
    """

    share: int
    smallest: int
    largest: int
    alpha: float
    power: float
    gate: tuple[float, float] | None
    is_centred: bool

    def choose_reference_k(self, n_references: int) -> int:
        """Choose k by the size of the bank.

        Examples
        --------
        >>> [RULES["second"].choose_reference_k(n) for n in (2, 32, 400, 25_000)]
        [2, 8, 25, 32]
        """
        return min(n_references, self.largest, max(self.smallest, n_references // self.share))

    def choose_alpha(
        self, reliability: float, n_references: int, density: float | None = None
    ) -> float:
        """Choose α by the reliability of the bank, its size, and c where that is known.

        Examples
        --------
        >>> [RULES["first"].choose_alpha(1.0, n) for n in (8, 24_992)]
        [0.375, 0.74976]
        """
        if not self.power:
            return self.alpha
        alpha = self.alpha * reliability**self.power
        alpha *= n_references / (n_references + _DOUBTFUL_REFERENCES)
        if self.gate is not None and density is not None:
            low, high = self.gate
            alpha *= min(1.0, max(0.0, (density - low) / (high - low)))
        return float(alpha)


RULES: Final[dict[RuleName, AutomaticRule]] = {
    "second": AutomaticRule(16, 8, 32, 0.5, 0.5, (0.0, 0.4), True),
    "first": AutomaticRule(16, 4, 128, 0.75, 1.0, None, False),
    "paper": AutomaticRule(1, 128, 128, 0.75, 0.0, None, False),
}


def split_half_reliability(
    scores: Scores,
    reference_k: int,
    *,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> float:
    """How well one half of the bank predicts the biases that the other half gives.

    The bank is split at random a few times; the correlation r between the two halves' ``m_{k/2}``
    over (a sample of) the gallery is averaged and extrapolated to the whole bank by the
    Spearman–Brown formula ``2r/(1+r)``.

    Parameters
    ----------
    scores : Products or Matrix, shape (n_gallery, n_references)
    reference_k : int
        The k whose bias is judged.
    seed : int
        Of the random splits.
    memory_budget : int
        Bytes beyond the inputs.

    Returns
    -------
    float
        Between 0 (noise, or nothing to compare) and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring import Matrix
    >>> hubs = np.linspace(0, 1, 50)[:, None] + np.zeros(32)
    >>> round(split_half_reliability(Matrix(open_matrix(hubs, name="scores")), 4), 3)
    1.0
    """
    n_gallery, n_references = scores.shape
    half_k = max(1, reference_k // 2)
    if n_references < 2 or n_gallery < 3:
        return 0.0
    if n_gallery > _N_ITEMS:
        scores = scores.some_rows(_spread(n_gallery, _N_ITEMS))
    # The best of each half are among the best of the whole: twice as many, and a margin.
    n_best = min(n_references, 2 * reference_k + 32)
    best, indices = top_k(scores, n_best, memory_budget=memory_budget)
    rng = np.random.default_rng(seed)
    correlations = []
    for _ in range(_N_SPLITS):
        in_first = np.zeros(n_references, dtype=bool)
        in_first[rng.permutation(n_references)[: n_references // 2]] = True
        belongs = in_first[indices]
        halves = (_mean_of_first(best, part, half_k) for part in (belongs, ~belongs))
        correlations.append(_correlation(*halves))
    return _step_up(float(np.mean(correlations)))


def density_correlation(
    scores: Products,
    gallery: Embeddings,
    reference_k: int,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> float:
    """Correlation over items between m_k and the density of the gallery around the item.

    The density is the mean of the 10 best scores with the other items, so that the gallery stands
    in for the bank. Both are computed for a sample of the items, centred or not.

    Parameters
    ----------
    scores : Products, shape (n_gallery, n_references)
        Those that m_k is the mean of, centred or not.
    gallery : Embeddings, shape (n_gallery, dim)
        As they are searched.
    reference_k : int
    memory_budget : int
        Bytes beyond the inputs.

    Returns
    -------
    float
        Between −1 and 1; 0 where there is nothing to compare.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = np.random.default_rng(0).normal(size=(300, 8)) + np.linspace(0, 2, 300)[:, None]
    >>> items, bank = open_embeddings(rows[::2], normalize=True), open_embeddings(rows[1::2])
    >>> density_correlation(Products(items, bank), items, 8) > 0.5
    True
    """
    n_gallery = len(gallery)
    if n_gallery < 3:
        return 0.0
    items = _spread(n_gallery, _N_ITEMS)
    candidates = np.union1d(items, _spread(n_gallery, _N_CANDIDATES))
    some = scores.some_rows(items)
    near = Products(some.rows, gallery.subset(candidates), memory_budget=memory_budget)
    n_near = min(_N_NEIGHBOURS, len(candidates) - 1)
    # An item may not be its own nearest where norms vary: it is left out by its place.
    best, indices = top_k(near, n_near + 1, memory_budget=memory_budget)
    is_other = candidates[indices] != items[:, None]
    density = _mean_of_first(best, is_other, n_near)
    means = top_means(some, reference_k, memory_budget=memory_budget)
    return _correlation(means, density)


def is_narrow(density: float, reliability: float, n_gallery: int) -> bool:
    """Whether a bank seems to cover only a part of the gallery.

    Two standard errors of c are allowed for, and fewer than 100 items are not judged.

    Examples
    --------
    >>> is_narrow(0.1, 0.9, 10_000), is_narrow(0.1, 0.9, 50), is_narrow(0.1, 0.2, 10_000)
    (True, False, False)
    """
    if n_gallery < 100 or reliability < _LEAST_RELIABILITY:
        return False
    return bool(density + 2 / np.sqrt(min(n_gallery, _N_ITEMS)) < _LOW_DENSITY)


def _step_up(r: float) -> float:
    """The reliability of a whole bank from that of its halves, by Spearman and Brown."""
    return 2 * r / (1 + r) if r > 0 else 0.0


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
