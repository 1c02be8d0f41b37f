"""Rules that choose reference_k and alpha without labels, in naive NumPy, and `nnnorm.NNN()`.

A rule gives every item r the bias alpha·m_k(r). m_k is the mean of the item's reference_k best
scores with the past queries. The third edition:

    reference_k  max(clamp(n/16, 8, 32), 3·n/|G|), at most n/2     (n unique queries, |G| items)
    alpha        0.6 · √reliability · n/(n + 16) · min(1, 1.25/spread)³ · clip((t + 0.1)/0.2, 0, 1)
    t            c + ¼·ln(coverage)

- *reliability*: the split-half reliability of m_k.
- *c*: the correlation of m_k with the density, the mean score of an item with its 10 nearest items.
- *spread*: how much m_k varies over items, relative to all scores with the past queries, divided by
  the same ratio of the density.
- *coverage*: exp(entropy of the top-1 items of 64 past queries) / min(64, |G|).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cases import Floats, Ints

import nnnorm

N_ITEMS, N_NEIGHBORS, N_HALVINGS, N_GROUPS = 512, 10, 8, 16
CUT = 8192  # the sample size of the second edition
_OF_GALLERY: tuple[Any, ...] = (
    "mean",
    *((name, is_centered) for name in ("density", "score spread") for is_centered in (True, False)),
)


def unique_rows(rows: Floats, threshold: float, *, n_at_once: int = 1000) -> Ints:
    """Return the rows whose cosine with all earlier ones that are kept is at most the threshold.

    >>> unique_rows(np.float32([[1, 0], [0.99, 0.14], [0, 1]]), 0.9).tolist()
    [0, 2]
    """
    kept: list[int] = []
    for start in range(0, len(rows), n_at_once):
        some = rows[start : start + n_at_once]
        is_new = np.ones(len(some), dtype=bool)
        if kept:
            is_new = (some @ rows[kept].T).max(axis=1) <= threshold
        new = np.flatnonzero(is_new)
        near = some[new] @ some[new].T > threshold
        left = np.ones(len(new), dtype=bool)
        for place, number in enumerate(new):
            if left[place]:
                kept.append(start + int(number))
                left &= ~near[place]
    return np.array(kept, dtype=np.int64)


@dataclass(frozen=True)
class View:
    """The past queries that a rule uses."""

    copies: float | None = 0.88
    is_centered: bool = True
    cut: int | None = None


class Material:
    """A gallery and past queries with unit rows, and their statistics, computed once."""

    def __init__(self, gallery: Floats, bank: Floats, known: "Material | None" = None) -> None:
        self.gallery, self.bank = gallery, bank
        rng = np.random.default_rng(0)
        n_items = len(gallery)
        self.sample = np.sort(rng.choice(n_items, min(n_items, N_ITEMS), replace=False))
        self._cache: dict[Any, Any] = {}
        if known is not None and known.gallery is gallery:
            self._cache = {key: known._cache[key] for key in _OF_GALLERY if key in known._cache}

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the stored result of `make` for this key; compute it at the first use."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    @property
    def mean(self) -> Floats:
        """Return the mean of the gallery."""
        return self.keep("mean", lambda: self.gallery.mean(axis=0))

    def rows(self, view: View) -> Floats:
        """Return the past queries that the view uses."""

        def make() -> Floats:
            rows = self.bank
            if view.cut is not None and len(rows) > view.cut:
                rng = np.random.default_rng(0)
                rows = rows[np.sort(rng.choice(len(rows), view.cut, replace=False))]
            return rows if view.copies is None else rows[unique_rows(rows, view.copies)]

        cut = view.cut if view.cut is not None and len(self.bank) > view.cut else None
        return self.keep((view.copies, cut), make)

    def scan(self, view: View) -> tuple[Floats, Floats, Ints]:
        """Return each item's best scores, the sample's scores, and each query's best item."""

        def make() -> tuple[Floats, Floats, Ints]:
            rows = self.rows(view)
            n = len(rows)
            n_best = min(n, max(128, 3 * n // len(self.gallery)))
            items = self.gallery - self.mean if view.is_centered else self.gallery
            best = np.empty((len(items), n_best), np.float32)
            top = np.full(n, -np.inf, np.float32)
            first = np.zeros(n, np.int64)
            step = max(1, 16_000_000 // n)
            for start in range(0, len(items), step):
                scores = items[start : start + step] @ rows.T
                place = scores.argmax(axis=0)
                value = scores[place, np.arange(n)]
                first[value > top] = start + place[value > top]
                top = np.maximum(top, value)
                if n_best < n:
                    scores.partition(n - n_best, axis=1)
                best[start : start + step] = -np.sort(-scores[:, -n_best:], axis=1)
            return best, items[self.sample] @ rows.T, first

        cut = view.cut if view.cut is not None and len(self.bank) > view.cut else None
        return self.keep(("scan", replace(view, cut=cut)), make)

    def density(self, is_centered: bool) -> Floats:
        """Return the mean score of the sampled items with their nearest other items."""

        def make() -> Floats:
            items = self.gallery[self.sample] - (self.mean if is_centered else 0)
            scores = items @ self.gallery.T
            self.keep(("score spread", is_centered), lambda: float(scores.std()))
            scores[np.arange(len(self.sample)), self.sample] = -np.inf
            return mean_of_best(scores, min(N_NEIGHBORS, len(self.gallery) - 1))

        return self.keep(("density", is_centered), make)

    def score_spread(self, is_centered: bool) -> float:
        """Return the standard deviation of the scores of the sampled items with all items."""
        self.density(is_centered)
        return float(self._cache["score spread", is_centered])

    def reliability(self, view: View, k: int) -> float:
        """Return the reliability of m_k over the sampled items."""
        scores = self.scan(view)[1]
        return self.keep(("reliability", view, k), lambda: reliability(scores, k))

    def coverage(self, view: View, group: int | None) -> float:
        """Return how evenly the top-1 items of some past queries (by default all) are spread."""
        first = self.scan(view)[2]
        if group is None:
            return coverage(first, len(self.gallery))
        first = first[np.random.default_rng(0).permutation(len(first))]
        starts = range(0, min(len(first), N_GROUPS * group) - group + 1, group) or [0]
        groups = [coverage(first[start : start + group], len(self.gallery)) for start in starts]
        return float(np.mean(groups))

    def spread(self, view: View, k: int) -> float:
        """Return how much m_k varies over the sampled items, compared with the density."""
        best, scores, _ = self.scan(view)
        of_density = self.density(view.is_centered).std() / self.score_spread(view.is_centered)
        of_means = best[self.sample, :k].mean(axis=1).std() / scores.std()
        return float(of_means / of_density) if of_density > 0 and of_means > 0 else 1.0

    def c(self, view: View, k: int) -> float:
        """Return the correlation of m_k with the density."""
        means = self.scan(view)[0][self.sample, :k].mean(axis=1)
        return correlation(means, self.density(view.is_centered))


def coverage(first: Ints, n_items: int) -> float:
    """Return exp(entropy) of the items, divided by its maximum."""
    share = np.bincount(first) / len(first)
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()) / min(len(first), n_items))


def reliability(scores: Floats, k: int) -> float:
    """Return the split-half reliability of m_k, with the Spearman–Brown formula 2r/(1+r)."""
    n_items, n = scores.shape
    if n < 2 or n_items < 3:
        return 0.0
    # The k/2 best of a half are almost always among the 2k + 64 best of all.
    half_k, n_top = max(1, k // 2), min(n, 2 * k + 64)
    top = np.argpartition(scores, n - n_top, axis=1)[:, n - n_top :]
    best = np.take_along_axis(scores, top, axis=1)
    order = np.argsort(-best, axis=1)
    top, best = (np.take_along_axis(values, order, axis=1) for values in (top, best))
    rng = np.random.default_rng(0)
    found = []
    for _ in range(N_HALVINGS):
        is_first = np.zeros(n, dtype=bool)
        is_first[rng.permutation(n)[: n // 2]] = True
        of_first = is_first[top]
        found.append(correlation(*(_mean(best, some, half_k) for some in (of_first, ~of_first))))
    r = float(np.mean(found))
    return 2 * r / (1 + r) if r > 0 else 0.0


def _mean(best: Floats, is_in: npt.NDArray[np.bool_], k: int) -> Floats:
    """Return the mean of the first k selected values of each row, or of all if there are fewer."""
    is_in = is_in & (is_in.cumsum(axis=1) <= k)
    return np.where(is_in, best, 0).sum(axis=1) / np.maximum(1, is_in.sum(axis=1))


def mean_of_best(scores: Floats, k: int) -> Floats:
    k = min(k, scores.shape[1])
    return np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1)


def correlation(first: Floats, second: Floats) -> float:
    if len(first) < 3 or first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


@dataclass(frozen=True)
class Rule:
    """A rule of the form above; the defaults are the third edition.

    Attributes
    ----------
    share, smallest, largest, per_item, most : float
        k is max(clamp(n/share, smallest, largest), per_item·n/|G|), at most most·n.
    alpha, power, doubt : float
        alpha · reliability^power · n/(n + doubt).
    gate : (float, float, float), optional
        Weight of ln(coverage) in t, and t at which the last factor is 0 and 1.
    group : int, optional
        Past queries per group for the coverage; None is all of them.
    spread : float, optional
        Alpha is reduced if the spread is larger.
    view : View
    """

    share: int = 16
    smallest: int = 8
    largest: int = 32
    per_item: float = 3
    most: float = 0.5
    alpha: float = 0.6
    power: float = 0.5
    doubt: float = 16
    gate: tuple[float, float, float] | None = (0.25, -0.1, 0.1)
    group: int | None = 64
    spread: float | None = 1.25
    view: View = View()

    def choose(self, material: Material) -> dict[str, float]:
        """Return n, k and alpha, and the measurements behind them."""
        n, n_items = len(material.rows(self.view)), len(material.gallery)
        k = min(max(n // self.share, self.smallest), self.largest)
        k = max(1, min(max(k, int(self.per_item * n / n_items)), int(self.most * n)))
        rel = material.reliability(self.view, k) if self.power else 1.0
        chosen = {"n": n, "k": k, "reliability": rel}
        alpha = self.alpha * rel**self.power * n / (n + self.doubt)
        if self.spread is not None:
            chosen["spread"] = material.spread(self.view, k)
            alpha *= min(1.0, self.spread / chosen["spread"]) ** 3
        if self.gate is not None:
            weight, low, high = self.gate
            chosen["c"] = material.c(self.view, k)
            chosen["coverage"] = material.coverage(self.view, self.group)
            t = chosen["c"] + weight * np.log(chosen["coverage"])
            alpha *= min(1.0, max(0.0, (t - low) / (high - low)))
        return chosen | {"alpha": float(alpha)}

    def __call__(self, material: Material) -> Floats:
        """Return the bias of every item."""
        chosen = self.choose(material)
        best = material.scan(self.view)[0]
        return np.float32(chosen["alpha"]) * best[:, : int(chosen["k"])].mean(axis=1)


AS_GIVEN = View(None, is_centered=False)
FIRST = Rule(16, 4, 128, 0, 1, 0.75, 1, 8, None, None, None, AS_GIVEN)
SECOND = Rule(
    per_item=0, most=1, alpha=0.5, doubt=8, gate=(0, 0, 0.4), spread=None, view=View(cut=CUT)
)
CSLS = Rule(1, 10, 10, 0, 1, 0.5, 0, 0, None, None, None, AS_GIVEN)
THIRD = Rule()
# The first proposal: without the spread, and with the coverage of all past queries.
PROPOSAL = Rule(alpha=0.5, doubt=8, gate=(0.25, -0.4, -0.2), group=None, spread=None)


def shipped(material: Material) -> Floats:
    """`nnnorm.NNN()` through its public API."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnnorm.NNNormWarning)  # many of these are unusual
        bias = nnnorm.NNN().fit(material.gallery, material.bank, normalize=False)
    return np.asarray(bias.correction)
