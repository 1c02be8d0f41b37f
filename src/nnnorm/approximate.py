"""m_k for large banks in sublinear time: look near each item only, then learn what that misses.

The references are sorted into lists of similar ones. An item is scored against the lists whose
centres it likes best, all items of a list in one matrix product. The number of lists grows as the
root of the bank, so while the bank is smaller than the gallery, four times the references cost
twice the time; beyond that filling the lists, once, takes over. What lies in other lists is missed,
and more for some items than for others. So the exact m_k of a few hundred items is computed too,
and teaches a small ridge regression to foretell what is missed from what was found (the means over
ranks 1, 2, 3–4, …) and from the mean and spread of the item's scores with all centres. The same
items tell the error that is left, by cross-validation.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError
from nnnorm.scores import DEFAULT_MEMORY_BUDGET, Products, Progress
from nnnorm.threads import count_threads, strips_in_order
from nnnorm.topk import top_k, top_means

__all__ = ["Estimate", "approximate_means", "choose_quality", "residual"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Chosen on the sets of benchmarks/approximate.py: fewer items make the regression unsure.
_N_TEACHERS = 512
_SMALLEST_BANK = 8192
_RIDGE = 1e-3
_GROUP = 32


@dataclass(frozen=True, eq=False)
class Estimate:
    """Approximate means with what is known of their error.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,), float32
    error : float
        Standard deviation of the error over that of m_k itself, a constant error aside; 0 where
        the values are exact.
    n_exact : int
        Items whose value is exact.
    """

    values: FloatArray
    error: float
    n_exact: int


def approximate_means(
    gallery: Embeddings,
    references: Embeddings,
    k: int,
    *,
    quality: int | None = None,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Estimate:
    """Estimate the mean of every item's k best reference scores, looking near each item only.

    Parameters
    ----------
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings, shape (n_references, dim)
    k : int
    quality : int, optional
        Lists that every item looks into. Twice as many take less than twice as long and leave
        about half of the error. By default what `choose_quality` says.
    seed : int
        Of the lists and of the items that teach.
    memory_budget : int
        Bytes beyond the inputs and the answer.
    progress : callable, optional

    Returns
    -------
    Estimate
        Exact where the bank is so small that lists would save nothing.

    Examples
    --------
    >>> from nnnorm.embeddings import open_embeddings
    >>> rng = np.random.default_rng(0)
    >>> rows = lambda n: open_embeddings(rng.normal(size=(n, 16)).astype(np.float32))
    >>> estimate = approximate_means(rows(2000), rows(20_000), 64, quality=32)
    >>> estimate.values.shape, 0 < estimate.error < 0.2
    ((2000,), True)
    """
    n_gallery, n_references = len(gallery), len(references)
    quality = choose_quality(n_gallery) if quality is None else quality
    if not isinstance(quality, int) or quality < 1:
        raise NNNormError(f"quality must be a whole number of at least 1; got {quality!r}")
    products = Products(gallery, references, memory_budget=memory_budget)
    n_lists = _count_lists(n_gallery, n_references, quality)
    is_small = n_references < max(_SMALLEST_BANK, 8 * k) or n_gallery < 32
    too_few = 2 * quality * n_references < k * n_lists
    if is_small or too_few or 4 * quality > n_lists:
        exact = top_means(products, k, memory_budget=memory_budget, progress=progress)
        return Estimate(exact, 0.0, n_gallery)
    rng = np.random.default_rng(seed)
    bank = _Lists(references, n_lists, rng, memory_budget)
    found = _look_near(gallery, bank, k, quality, memory_budget, progress)
    # Too few candidates make no mean of k: those items are computed exactly, and teach nothing.
    is_short = found.n_candidates < k
    able = np.flatnonzero(~is_short)
    if len(able) < n_gallery // 2:
        return Estimate(top_means(products, k, memory_budget=memory_budget), 0.0, n_gallery)
    teachers = np.sort(rng.permutation(able)[: min(_N_TEACHERS, n_gallery // 4)])
    exact_rows = np.union1d(teachers, np.flatnonzero(is_short))
    exact = top_means(products.some_rows(exact_rows), k, memory_budget=memory_budget)
    missed = exact[np.searchsorted(exact_rows, teachers)] - found.means[teachers]
    foretold, error = _learn(found.features, teachers, missed, rng)
    values = found.means + foretold
    values[exact_rows] = exact
    spread = float(exact.std())
    error = error / spread if spread else 0.0
    return Estimate(values, error, len(exact_rows))


def choose_quality(n_gallery: int) -> int:
    """32 lists for each of up to 100,000 items, and 8 beyond, where time is what matters.

    Examples
    --------
    >>> choose_quality(5000), choose_quality(1_000_000)
    (32, 8)
    """
    return 32 if n_gallery <= 100_000 else 8


def _count_lists(n_gallery: int, n_references: int, quality: int) -> int:
    """As many as take the least time: n·L scores to fill them, n_gallery·(L + quality·n/L) to look.

    The square root of ``quality·n`` for a gallery that is larger than the bank; fewer, and so a
    better look, where filling the lists is what takes the time.
    """
    least = (quality * n_references * n_gallery / (n_references + n_gallery)) ** 0.5
    return round(min(least, 4 * n_references**0.5))


def residual(values: npt.ArrayLike, exact: npt.ArrayLike) -> float:
    """Standard deviation of the difference, over that of the exact values: no constant counts.

    Examples
    --------
    >>> residual([1.5, 2.5, 3.5], [1.0, 2.0, 3.0])
    0.0
    """
    estimated, right = (np.asarray(each, dtype=np.float64) for each in (values, exact))
    spread = float(right.std())
    return float((estimated - right).std()) / spread if spread else 0.0


class _Lists:
    """A bank sorted into lists of similar rows, none much longer than the average."""

    def __init__(
        self,
        references: Embeddings,
        n_lists: int,
        rng: np.random.Generator,
        memory_budget: int,
    ) -> None:
        n = len(references)
        some = np.sort(rng.choice(n, min(n, 16 * n_lists), replace=False))
        sample = references.take(some)
        centres = _cluster(sample, n_lists, rng, memory_budget)
        nearest = _nearest(references, centres, memory_budget)
        self.order = np.argsort(nearest, kind="stable")
        self.longest = -(-2 * n // n_lists)
        starts = np.searchsorted(nearest[self.order], np.arange(n_lists + 1))
        self.edges = [
            (first, min(first + self.longest, last))
            for start, last in itertools.pairwise(starts)
            for first in range(int(start), int(last), self.longest)
        ]
        self._references = references
        self.held_bytes = 4 * n * references.dim
        fits = self.held_bytes <= memory_budget // 2
        self._sorted = _sort_rows(references, self.order) if fits else None
        self.held_bytes *= fits
        self.centres = np.stack([self.rows(number).mean(axis=0) for number in range(len(self))])

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def sizes(self) -> IntArray:
        """How many references each list holds."""
        return np.array([last - first for first, last in self.edges])

    def rows(self, number: int) -> FloatArray:
        """References of a list, shape (n, dim)."""
        first, last = self.edges[number]
        if self._sorted is not None:
            return self._sorted[first:last]
        return self._references.take(self.order[first:last])


def _sort_rows(references: Embeddings, order: IntArray) -> FloatArray:
    """Rows in that order, read one after another: faster than jumping about in a mapped file."""
    ordered = np.empty(references.shape, dtype=np.float32)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    for start, block in references.blocks():
        ordered[place[start : start + len(block)]] = block
    return ordered


def _cluster(
    sample: FloatArray, n_lists: int, rng: np.random.Generator, memory_budget: int
) -> FloatArray:
    """A few rounds of k-means: the lists need not be perfect."""
    centres = sample[rng.choice(len(sample), n_lists, replace=False)]
    rows = Embeddings([sample], name="references")
    for _ in range(5):
        nearest = _nearest(rows, centres, memory_budget)
        order = np.argsort(nearest, kind="stable")
        counts = np.bincount(nearest, minlength=n_lists)
        used = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[used]
        centres = centres.copy()
        centres[used] = np.add.reduceat(sample[order], starts, axis=0) / counts[used, None]
    return centres


def _nearest(rows: Embeddings, centres: FloatArray, memory_budget: int) -> IntArray:
    """The centre at the least distance from every row."""
    offset = (centres**2).sum(axis=1) / 2
    products = Products(rows, Embeddings([centres], name="centres"), offset=offset)
    return top_k(products, 1, memory_budget=memory_budget).indices[:, 0]


@dataclass(frozen=True, eq=False)
class _Found:
    """What was seen of every item: the mean of the k best, features, and among how many."""

    means: FloatArray
    features: FloatArray
    n_candidates: IntArray


def _look_near(
    gallery: Embeddings,
    bank: _Lists,
    k: int,
    n_probes: int,
    memory_budget: int,
    progress: Progress | None,
) -> _Found:
    n_gallery, dim = gallery.shape
    n_probes = min(n_probes, len(bank))
    ranks = _rank_edges(k)
    features = np.empty((n_gallery, len(ranks) + 2), dtype=np.float32)
    means = np.empty(n_gallery, dtype=np.float32)
    n_candidates = np.empty(n_gallery, dtype=np.int64)
    sizes = bank.sizes
    shares = (sizes / sizes.sum()).astype(np.float32)
    n_workers = count_threads()
    # Per item: its row, the scores of its lists, and three times those of the centres.
    per_item = 4 * (2 * dim + n_probes * bank.longest + 3 * len(bank))
    left = memory_budget * 3 // 4 - bank.held_bytes
    n_strip = max(64, min(8192, left // (n_workers * per_item), -(-n_gallery // n_workers)))
    stop, lock, done = threading.Event(), threading.Lock(), [0]

    def look(start: int, end: int) -> None:
        items = gallery.rows(start, end)
        of_centres = items @ bank.centres.T
        lists = _best_lists(of_centres, n_probes).ravel()
        rows, slots = np.divmod(np.arange(len(lists)), n_probes)
        # Negated, with the empty places at +inf: partitioning is many times slower with -inf.
        scores = np.full((len(items), n_probes, bank.longest), np.inf, dtype=np.float32)
        negated = -items
        by_list = np.argsort(lists, kind="stable")
        edges = np.searchsorted(lists[by_list], np.arange(len(bank) + 1))
        for number in range(len(bank)):
            who = by_list[edges[number] : edges[number + 1]]
            if len(who) == 0 or stop.is_set():
                continue
            block = negated[rows[who]] @ bank.rows(number).T
            scores[rows[who], slots[who], : block.shape[1]] = block
        n_candidates[start:end] = sizes[lists].reshape(len(items), n_probes).sum(axis=1)
        best = scores.reshape(len(items), -1)
        best.partition(k - 1, axis=1)
        best = -np.sort(best[:, :k], axis=1)
        best = np.where(np.isfinite(best), best, np.float32(0))  # too few: exact later
        means[start:end] = best.mean(axis=1, dtype=np.float64)
        for column, (first, last) in enumerate(ranks):
            features[start:end, column] = best[:, first:last].mean(axis=1)
        mean = of_centres @ shares
        np.square(of_centres, out=of_centres)
        features[start:end, -2] = mean
        features[start:end, -1] = np.sqrt(np.maximum(of_centres @ shares - mean**2, 0))
        if progress is not None:
            with lock:
                done[0] += end - start
                progress(done[0], n_gallery)

    for _ in strips_in_order(look, n_gallery, n_strip, stop):
        pass
    return _Found(means, features, n_candidates)


def _rank_edges(k: int) -> list[tuple[int, int]]:
    """Ranks 1, 2, 3–4, 5–8, … up to k."""
    edges = [0, *(2**power for power in range(k.bit_length()) if 2**power < k), k]
    return list(itertools.pairwise(edges))


def _best_lists(scores: FloatArray, n_probes: int) -> IntArray:
    """Every item's best lists, in no order, shape (n_items, n_probes).

    Lists are taken in groups. The best are in the groups with the best maxima, so that only a few
    hundred need a second look: several times faster than `argpartition` over all.
    """
    n_items, n_lists = scores.shape
    n_groups = -(-n_lists // _GROUP)
    if n_groups <= n_probes:
        return np.argpartition(-scores, n_probes - 1, axis=1)[:, :n_probes]
    padded = np.full((n_items, _GROUP, n_groups), -np.inf, dtype=np.float32)
    padded.reshape(n_items, -1)[:, :n_lists] = scores
    maxima = padded.max(axis=1)
    groups = np.argpartition(-maxima, n_probes - 1, axis=1)[:, :n_probes]
    lists = (groups[:, :, None] + n_groups * np.arange(_GROUP)).reshape(n_items, -1)
    close = np.take_along_axis(padded.reshape(n_items, -1), lists, axis=1)
    best = np.argpartition(-close, n_probes - 1, axis=1)[:, :n_probes]
    return np.take_along_axis(lists, best, axis=1)


def _learn(
    features: FloatArray, teachers: IntArray, missed: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    """Foretell what every item's mean misses, and how far off that is where it was not taught."""
    lessons = features[teachers].astype(np.float64)
    folds = rng.permutation(len(teachers)) % 8
    left = np.empty(len(teachers))
    for fold in range(8):
        held = folds == fold
        foretell = _ridge(lessons[~held], missed[~held])
        left[held] = missed[held] - foretell(lessons[held])
    return _ridge(lessons, missed)(features).astype(np.float32), float(left.std())


def _ridge(
    lessons: npt.NDArray[np.float64], target: npt.NDArray[Any]
) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.float64]]:
    """A linear function of the features, from which constant ones are left out."""
    centre, scale = lessons.mean(axis=0), lessons.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(centre)), scale, np.inf)
    known = (lessons - centre) / scale
    middle = float(target.mean())
    gram = known.T @ known + _RIDGE * len(known) * np.eye(known.shape[1])
    slopes = np.linalg.solve(gram, known.T @ (target - middle)) / scale

    def foretell(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return np.asarray((rows - centre) @ slopes + middle)

    return foretell
