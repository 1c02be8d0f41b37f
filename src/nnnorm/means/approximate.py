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

from nnnorm.errors import NNNormError
from nnnorm.io import Done, Embeddings, Progress
from nnnorm.means.bounds import principal_basis, turn
from nnnorm.means.inverted_lists import Lists, best_lists
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Products,
    count_threads,
    strips_in_order,
    top_means,
)

__all__ = ["Estimate", "approximate_means", "choose_quality", "residual"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Chosen on the sets of benchmarks/approximate.py: fewer items make the regression unsure.
_N_TEACHERS = 512
_SMALLEST_BANK = 8192
_RIDGE = 1e-3
# Heads may add half of the error that lists of a quality leave: about 0.44 / quality^0.65 there.
_SHORTENED = 0.22
_N_SAMPLED_ITEMS, _N_SAMPLED = 256, 16_384
# Multiply-adds with centres that take longer than looking for directions.
_WORTH_SHORTENING = 2 * 10**10
# Items whose scores with all centres stay in the processor's cache.
_PIECE = 1024


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
    >>> from nnnorm.io import open_embeddings
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
    directions = None
    if n_gallery * n_lists * gallery.dim > _WORTH_SHORTENING:
        directions = _shorten(products, k, quality, seed, memory_budget)
    if directions is None:
        bank = Lists(references, n_lists, rng, memory_budget)
    else:
        held_bytes = 4 * n_references * directions.shape[1]
        heads = turn(references, directions)
        bank = Lists(heads, n_lists, rng, memory_budget, held_bytes)
        del heads  # sorted by now
    found = _look_near(gallery, directions, bank, k, quality, memory_budget, progress)
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


def _shorten(
    products: Products, k: int, quality: int, seed: int, memory_budget: int
) -> FloatArray | None:
    """The directions of the shortest heads that do nearly as well as embeddings, if any do.

    What they do worse is measured on a sample, and may be half of what lists of this quality miss.
    """
    rng = np.random.default_rng(seed)
    (n_items, n_references), dim = products.shape, products.rows.dim
    n_sampled = min(n_references, _N_SAMPLED, memory_budget // (16 * dim))
    basis = principal_basis(products.rows, products.columns, rng)
    items = products.rows.take(rng.integers(0, n_items, min(n_items, _N_SAMPLED_ITEMS))) @ basis
    references = products.columns.take(rng.integers(0, n_references, n_sampled)) @ basis
    n_best = max(1, round(k * n_sampled / n_references))
    exact = _top_mean(items @ references.T, n_best)
    widest = min(dim * 3 // 4, memory_budget // (8 * n_references))
    for width in range(max(8, dim // 8), widest + 1, max(8, dim // 16)):
        short = _top_mean(items[:, :width] @ references[:, :width].T, n_best)
        # What differs by a factor is learned anyway.
        unexplained = (1 - np.corrcoef(short, exact)[0, 1] ** 2) ** 0.5
        if unexplained < _SHORTENED * quality**-0.65:
            return np.ascontiguousarray(basis[:, :width])
    return None


def _top_mean(scores: FloatArray, k: int) -> FloatArray:
    return np.asarray(np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1))


@dataclass(frozen=True, eq=False)
class _Found:
    """What was seen of every item: the mean of the k best, features, and among how many."""

    means: FloatArray
    features: FloatArray
    n_candidates: IntArray


def _look_near(
    gallery: Embeddings,
    directions: FloatArray | None,
    bank: Lists,
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
    # Per item: its row, as read and as head, and the scores of its lists.
    per_item = 4 * (4 * dim + n_probes * bank.longest)
    left = memory_budget * 3 // 4 - bank.held_bytes
    n_strip = max(64, min(8192, left // (n_workers * per_item), -(-n_gallery // n_workers)))
    stop, done, own = threading.Event(), Done(progress, n_gallery), threading.local()

    def look_at_centres(items: FloatArray, start: int) -> IntArray:
        """Choose every item's lists; its mean and spread over all centres are features."""
        of_centres = items @ bank.centres.T
        lists = best_lists(of_centres, n_probes)
        here = slice(start, start + len(items))
        n_candidates[here] = sizes[lists].sum(axis=1)
        mean = of_centres @ shares
        np.square(of_centres, out=of_centres)
        features[here, -2] = mean
        features[here, -1] = np.sqrt(np.maximum(of_centres @ shares - mean**2, 0))
        return lists

    def look(start: int, end: int) -> None:
        items = gallery.rows(start, end)
        if directions is not None:
            items = items @ directions
        pieces = range(0, len(items), _PIECE)
        lists = np.concatenate(
            [look_at_centres(items[first : first + _PIECE], start + first) for first in pieces]
        ).ravel()
        rows, slots = np.divmod(np.arange(len(lists)), n_probes)
        if not hasattr(own, "scores"):  # fresh memory for every strip would cost a third of all
            own.scores = np.empty((n_strip, n_probes, bank.longest), dtype=np.float32)
        # Negated, with the empty places at +inf: partitioning is many times slower with -inf.
        scores = own.scores[: len(items)]
        scores.fill(np.inf)
        negated = -items
        by_list = np.argsort(lists, kind="stable")
        edges = np.searchsorted(lists[by_list], np.arange(len(bank) + 1))
        for number in range(len(bank)):
            who = by_list[edges[number] : edges[number + 1]]
            if len(who) == 0 or stop.is_set():
                continue
            block = negated[rows[who]] @ bank.rows(number).T
            scores[rows[who], slots[who], : block.shape[1]] = block
        best = scores.reshape(len(items), -1)
        best.partition(k - 1, axis=1)
        best = -np.sort(best[:, :k], axis=1)
        best = np.where(np.isfinite(best), best, np.float32(0))  # too few: exact later
        means[start:end] = best.mean(axis=1, dtype=np.float64)
        for column, (first, last) in enumerate(ranks):
            features[start:end, column] = best[:, first:last].mean(axis=1)
        done.add(end - start)

    for _ in strips_in_order(look, n_gallery, n_strip, stop):
        pass
    return _Found(means, features, n_candidates)


def _rank_edges(k: int) -> list[tuple[int, int]]:
    """Ranks 1, 2, 3–4, 5–8, … up to k."""
    edges = [0, *(2**power for power in range(k.bit_length()) if 2**power < k), k]
    return list(itertools.pairwise(edges))


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
