"""The rules that choose k and α without labels, in naive NumPy, and `nnnorm.NNN()` beside them.

Every rule gives ``b(r)``, the number that is taken from the scores of item r:

    b(r) = α·m_k(r)                       m_k: mean of the k best scores with the bank
    α    = alpha · rel^power · n/(n + doubt) · clip((c − low)/(high − low), 0, 1)

over a bank without near copies: n leaders, where a row whose cosine with an earlier leader is above
`copies` is dropped. *rel* is the split-half reliability of m_k. *c* is the correlation over items
between m_k and the density of the gallery around the item: it is high for queries that are spread
as the items are, and low for a bank that covers a part of the gallery only.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from real_sets import Floats, Ints

import nnnorm

Contestant: TypeAlias = "Callable[[Material], Floats]"

N_ITEMS = 512
N_SPLITS = 8
N_NEIGHBOURS = 10


def find_leaders(rows: Floats, threshold: float, *, n_at_once: int = 1000) -> Ints:
    """Row numbers that are no near copy of an earlier leader.

    Examples
    --------
    >>> find_leaders(np.float32([[1, 0], [0.99, 0.14], [0, 1]]), 0.9).tolist()
    [0, 2]
    """
    leaders: list[int] = []
    for start in range(0, len(rows), n_at_once):
        some = rows[start : start + n_at_once]
        is_new = np.ones(len(some), dtype=bool)
        if leaders:
            is_new = (some @ rows[leaders].T).max(axis=1) <= threshold
        new = np.flatnonzero(is_new)
        near = some[new] @ some[new].T > threshold
        left = np.ones(len(new), dtype=bool)
        for place, number in enumerate(new):
            if left[place]:
                leaders.append(start + int(number))
                left &= ~near[place]
    return np.array(leaders, dtype=np.int64)


class Material:
    """A gallery and a bank, and what several rules need of them, computed once.

    Rows have unit norms.
    """

    def __init__(self, gallery: Floats, bank: Floats) -> None:
        self.gallery = gallery
        self.bank = bank
        self.sample = np.linspace(0, len(gallery) - 1, min(len(gallery), N_ITEMS)).astype(np.int64)
        self._banks: dict[float | None, Floats] = {None: bank}
        self._best: dict[Any, tuple[Floats, Floats]] = {}
        self._reliability: dict[Any, float] = {}

    @cached_property
    def mean(self) -> Floats:
        """Of the gallery."""
        return np.asarray(self.gallery.mean(axis=0))

    def density(self, centred: bool) -> Floats:
        """Mean score of the sampled items, centred or not, with their nearest other items."""
        items = self.gallery[self.sample]
        scores = (items - self.mean if centred else items) @ self.gallery.T
        scores[np.arange(len(self.sample)), self.sample] = -np.inf
        return _mean_of_best(scores, min(N_NEIGHBOURS, len(self.gallery) - 1))

    def without_copies(self, copies: float | None) -> Floats:
        """The leaders of the bank; all of it where `copies` is None."""
        if copies not in self._banks and copies is not None:
            self._banks[copies] = self.bank[find_leaders(self.bank, copies)]
        return self._banks[copies]

    def scores(self, copies: float | None, centred: bool) -> tuple[Floats, Floats]:
        """The best 128 scores of every item in order, and all scores of the sampled items."""
        key = copies, centred
        if key not in self._best:
            items = self.gallery - self.mean if centred else self.gallery
            scores = items @ self.without_copies(copies).T
            of_sample = scores[self.sample]
            n_best = min(128, scores.shape[1])
            scores.partition(scores.shape[1] - n_best, axis=1)
            best = np.sort(scores[:, -n_best:], axis=1)[:, ::-1]
            self._best[key] = np.ascontiguousarray(best), of_sample
        return self._best[key]

    def reliability(self, copies: float | None, centred: bool, reference_k: int) -> float:
        """Of m_k over the sampled items."""
        key = copies, centred, reference_k
        if key not in self._reliability:
            _, of_sample = self.scores(copies, centred)
            self._reliability[key] = reliability(of_sample, reference_k)
        return self._reliability[key]


def reliability(scores: Floats, reference_k: int, *, seed: int = 0) -> float:
    """Split-half reliability of m_k, stepped up by Spearman and Brown's 2r/(1+r)."""
    n_references = scores.shape[1]
    if n_references < 2:
        return 0.0
    rng = np.random.default_rng(seed)
    half_k = max(1, reference_k // 2)
    found = []
    for _ in range(N_SPLITS):
        order = rng.permutation(n_references)
        halves = order[: n_references // 2], order[n_references // 2 :]
        found.append(_correlation(*(_mean_of_best(scores[:, half], half_k) for half in halves)))
    r = float(np.mean(found))
    return 2 * r / (1 + r) if r > 0 else 0.0


def held_out_reliability(
    scores: Floats, n_recent: int, reference_k: int, recent_k: int, *, seed: int = 0
) -> float:
    """How well all others predict the biases of half of the recent queries, which come first."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(N_SPLITS):
        out = rng.permutation(n_recent)[: n_recent // 2]
        others = _mean_of_best(np.delete(scores, out, axis=1), reference_k)
        found.append(_correlation(others, _mean_of_best(scores[:, out], max(1, recent_k // 2))))
    r = float(np.mean(found))
    return 2 * r / (1 + r) if r > 0 else 0.0


def _mean_of_best(scores: Floats, k: int) -> Floats:
    k = min(k, scores.shape[1])
    return np.asarray(np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1))


def _correlation(first: Floats, second: Floats) -> float:
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


@dataclass(frozen=True)
class Rule:
    """A rule of the form above; see the module.

    Attributes
    ----------
    share, smallest, largest : int
        k is n/share, between the two.
    alpha, power, doubt : float
    copies : float, optional
        Cosine above which a reference is a copy of an earlier one; None keeps all.
    centred : bool
        Whether the gallery's mean is taken from its rows before they are scored with the bank.
    gate : tuple of float, optional
        (low, high) of the clip; None is no such factor.
    """

    share: int = 16
    smallest: int = 8
    largest: int = 32
    alpha: float = 0.5
    power: float = 0.5
    doubt: float = 8
    copies: float | None = 0.88
    centred: bool = True
    gate: tuple[float, float] | None = (0.0, 0.4)

    def reference_k(self, n_references: int) -> int:
        """The k of a bank of so many leaders."""
        return min(n_references, self.largest, max(self.smallest, n_references // self.share))

    def choose(self, material: Material, n_recent: int = 0) -> tuple[int, float]:
        """``(k, α)`` for a gallery and a bank, whose first rows may measure the reliability."""
        best, of_sample = material.scores(self.copies, self.centred)
        n_references = of_sample.shape[1]
        k = self.reference_k(n_references)
        if n_recent:
            rel = held_out_reliability(of_sample, n_recent, k, self.reference_k(n_recent))
        else:
            rel = material.reliability(self.copies, self.centred, k)
        alpha = self.alpha * rel**self.power * n_references / (n_references + self.doubt)
        if self.gate is not None:
            low, high = self.gate
            c = _correlation(best[material.sample, :k].mean(axis=1), material.density(self.centred))
            alpha *= min(1.0, max(0.0, (c - low) / (high - low)))
        return k, alpha

    def __call__(self, material: Material, n_recent: int = 0) -> Floats:
        """``b(r)`` of every item."""
        k, alpha = self.choose(material, n_recent)
        best, _ = material.scores(self.copies, self.centred)
        return np.asarray(np.float32(alpha) * best[:, :k].mean(axis=1))


FIRST = Rule(16, 4, 128, alpha=0.75, power=1, doubt=8, copies=None, centred=False, gate=None)


SECOND = Rule()
CSLS = Rule(1, 10, 10, power=0, doubt=0, copies=None, centred=False, gate=None)


def shipped(material: Material) -> Floats:
    """`nnnorm.NNN()` through its public API."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnnorm.NNNormWarning)  # these banks are meant to be odd
        bias = nnnorm.NNN().fit(material.gallery, material.bank, normalize=False)
    return np.asarray(bias.correction)


def shipped_with_recent(gallery: Floats, bank: Floats, recent: Floats) -> Floats:
    """`nnnorm.Corrector.fit(…, recent=…)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnnorm.NNNormWarning)
        corrector = nnnorm.Corrector.fit(gallery, bank, recent=recent, normalize=False)
    return np.asarray(corrector.bias.correction)


def as_floats(rows: npt.ArrayLike) -> Floats:
    """Float32 rows of unit norm."""
    wide = np.asarray(rows, dtype=np.float32)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))
