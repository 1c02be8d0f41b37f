"""m_k of large banks in sublinear time: inverted lists, corrected by a regression.

The references are clustered into inverted lists. Each item probes the lists whose centroids score
best, and all items that probe a list are scored in one matrix product. The number of lists grows
with the square root of the bank, so while the bank is smaller than the gallery, four times the
references take twice the time; beyond that, assigning references to lists dominates.

References in other lists are missed, more so for some items than for others. The exact m_k of a few
hundred items is therefore computed as well. A ridge regression predicts from them what is missed,
given what was found (means over ranks 1, 2, 3–4, …) and the mean and standard deviation of the
item's scores with all centroids. Cross-validation on the same items measures the error that
remains.
"""

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io import Done, Embeddings, Progress
from nnnorm.means.bounds import joint_moments, principal_basis, project
from nnnorm.means.inverted_lists import InvertedLists, best_lists
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Products,
    count_threads,
    strips_in_order,
    top_means,
)

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Items with exact means to train on; chosen on the sets of benchmarks/approximate.py.
_N_TRAINING = 512
_SMALLEST_BANK = 8192
_RIDGE = 1e-3
# Projections may add half of the error that the lists leave, see `expected_error`.
_PROJECTION_SHARE = 0.5
_N_SAMPLED_ITEMS, _N_SAMPLED = 256, 16_384
# Multiply-adds with centroids from which on it pays to look for shorter vectors.
_WORTH_PROJECTING = 2 * 10**10
# Items whose scores with all centroids stay in the cache.
_PIECE = 1024


@dataclass(frozen=True, eq=False)
class Estimate:
    """Approximate means and their error.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,), float32
    error : float
        Standard deviation of the error relative to that of m_k; a constant error does not count.
        0 if the values are exact.
    n_exact : int
        Number of items whose value is exact.
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
    """Estimate the mean of every item's k best reference scores.

    Parameters
    ----------
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings, shape (n_references, dim)
    k : int
    quality : int, optional
        Number of inverted lists to probe per item. Twice as many take less than twice the time
        and leave about two thirds of the error. The default is `choose_quality(n_gallery)`.
    seed : int
        Random seed of the lists and of the training items.
    memory_budget : int
        Bytes beyond the inputs and the result.
    progress : callable, optional

    Returns
    -------
    Estimate
        Exact if the bank is so small that lists would save nothing.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rng = np.random.default_rng(0)
    >>> rows = lambda n: open_embeddings(rng.normal(size=(n, 16)).astype(np.float32))
    >>> estimate = approximate_means(rows(2000), rows(20_000), 64, quality=32)
    >>> estimate.values.shape, 0 < estimate.error < 0.2
    ((2000,), True)
    """
    products = Products(gallery, references, memory_budget=memory_budget)
    model = learn_lists(products, k, quality=quality, seed=seed, memory_budget=memory_budget)
    if model is None:
        exact = top_means(products, k, memory_budget=memory_budget, progress=progress)
        return Estimate(exact, 0.0, len(gallery))
    return model.estimate(products, first_row=0, memory_budget=memory_budget, progress=progress)


@dataclass(frozen=True, eq=False)
class ListModel:
    """Inverted lists of a bank, and the regression that corrects what they miss.

    Both are learnt from a sample of a gallery. The estimate of an item then follows from the item
    alone, so that a gallery may be valued in parts.

    Attributes
    ----------
    lists : InvertedLists
    directions : ndarray, shape (dim, width), or None
        Onto which items and references are projected.
    k, quality : int
    ridge : Ridge
        Predicts what is missed from what is found.
    training : ndarray, shape (n_training,)
        Rows of the gallery that were learnt from; they keep their exact means.
    exact : ndarray, shape (n_training,), float32
        The exact means of these rows.
    error : float
        As in `Estimate`.
    """

    lists: InvertedLists
    directions: FloatArray | None
    k: int
    quality: int
    ridge: "Ridge"
    training: IntArray
    exact: FloatArray
    error: float

    def estimate(
        self,
        products: Products,
        *,
        first_row: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Estimate:
        """Estimate m_k of some items.

        Parameters
        ----------
        products : Products, shape (n_items, n_references)
        first_row : int, optional
            Row number in the gallery of the first item, if they are consecutive rows of it.
        memory_budget : int
        progress : callable, optional
        """
        found = _probe(
            products.rows,
            self.directions,
            self.lists,
            self.k,
            self.quality,
            memory_budget,
            progress,
        )
        values = found.means + self.ridge.predict(found.features).astype(np.float32)
        # Items with fewer than k candidates are computed exactly.
        short = np.flatnonzero(found.n_candidates < self.k)
        if len(short):
            values[short] = top_means(
                products.some_rows(short), self.k, memory_budget=memory_budget
            )
        n_exact = len(short)
        if first_row is not None:
            places = self.training - first_row
            is_here = (places >= 0) & (places < len(values))
            values[places[is_here]] = self.exact[is_here]
            n_exact += int(is_here.sum())
        return Estimate(values, self.error, n_exact)

    def means(self, products: Products, **options: Any) -> FloatArray:
        """Estimate m_k of some items, as `estimate` does."""
        return self.estimate(products, **options).values

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything but the bank, as arrays; `from_arrays` reads them."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "order": self.lists.order,
            "edges": np.array(self.lists.edges, dtype=np.int64),
            "numbers": np.array([self.k, self.quality], dtype=np.int64),
            "ridge": np.stack([self.ridge.centre, self.ridge.slopes]),
            "training": self.training,
            "exact": self.exact,
            "floats": np.array([self.ridge.intercept, self.error]),
        }
        return arrays if self.directions is None else arrays | {"directions": self.directions}

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, npt.NDArray[Any]],
        references: Embeddings,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> "ListModel":
        """Read what `to_arrays` gave; the bank must be the same."""
        directions = arrays.get("directions")
        edges = [(int(first), int(last)) for first, last in arrays["edges"]]
        rows = _ProjectedBank(references, directions)
        lists = InvertedLists.restore(
            rows.embeddings, arrays["order"], edges, memory_budget, rows.held_bytes
        )
        k, quality = (int(number) for number in arrays["numbers"])
        intercept, error = (float(number) for number in arrays["floats"])
        ridge = Ridge(arrays["ridge"][0], arrays["ridge"][1], intercept)
        return cls(lists, directions, k, quality, ridge, arrays["training"], arrays["exact"], error)


def learn_lists(
    products: Products,
    k: int,
    *,
    quality: int | None = None,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> ListModel | None:
    """Learn lists and regression from a bank and a sample of the gallery.

    Parameters
    ----------
    products : Products, shape (n_gallery, n_references)
    k, quality, seed, memory_budget
        As in `approximate_means`.

    Returns
    -------
    ListModel or None
        None if the bank is so small, or the items have so few candidates, that exact means are
        preferable.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rng = np.random.default_rng(0)
    >>> rows = lambda n: open_embeddings(rng.normal(size=(n, 16)).astype(np.float32))
    >>> model = learn_lists(Products(rows(2000), rows(20_000)), 64, quality=32)
    >>> model.k, len(model.training)
    (64, 500)
    """
    n_gallery, n_references = products.shape
    quality = choose_quality(n_gallery) if quality is None else quality
    if not isinstance(quality, int) or quality < 1:
        raise NNNormError(f"quality must be a whole number of at least 1; got {quality!r}")
    if not _is_worth_lists(n_gallery, n_references, k, quality):
        return None
    rng = np.random.default_rng(seed)
    n_lists = _count_lists(n_gallery, n_references, quality)
    directions = None
    if n_gallery * n_lists * products.rows.dim > _WORTH_PROJECTING:
        directions = _find_projection(products, k, quality, seed, memory_budget)
    bank = _ProjectedBank(products.columns, directions)
    lists = InvertedLists(bank.embeddings, n_lists, rng, memory_budget, bank.held_bytes)
    del bank  # the lists hold a sorted copy
    n_training = min(_N_TRAINING, n_gallery // 4)
    some = rng.permutation(n_gallery)[: 2 * n_training]
    found = _probe(products.rows.subset(some), directions, lists, k, quality, memory_budget, None)
    # Items with fewer than k candidates are not trained on.
    complete = np.flatnonzero(found.n_candidates >= k)
    if len(complete) < n_training:
        return None
    chosen = complete[:n_training]
    chosen = chosen[np.argsort(some[chosen])]
    training = some[chosen]
    exact = top_means(products.some_rows(training), k, memory_budget=memory_budget)
    missed = exact - found.means[chosen]
    ridge, error = _learn_missed(found.features[chosen], missed, rng)
    spread = float(exact.std())
    error = error / spread if spread else 0.0
    return ListModel(lists, directions, k, quality, ridge, training, exact, error)


class _ProjectedBank:
    """The references as the lists hold them, and the bytes that a projection of them takes."""

    def __init__(self, references: Embeddings, directions: FloatArray | None) -> None:
        self.embeddings, self.held_bytes = references, 0
        if directions is not None:
            self.embeddings = project(references, directions)
            self.held_bytes = 4 * len(references) * directions.shape[1]


def choose_quality(n_gallery: int) -> int:
    """Choose how many inverted lists to probe: 32 for up to 100,000 items, 8 for more.

    Examples
    --------
    >>> choose_quality(5000), choose_quality(1_000_000)
    (32, 8)
    """
    return 32 if n_gallery <= 100_000 else 8


class Cost(NamedTuple):
    """Expected cost of approximate means.

    Attributes
    ----------
    time : float
        Relative to the time of exact means.
    error : float
        As in `Estimate`.
    """

    time: float
    error: float


def expected_cost(n_gallery: int, n_references: int, k: int) -> Cost | None:
    """Estimate time and error at the default quality; None if less than half is saved.

    The time counts scores: references and items with centroids, items with the references of the
    lists they probe, training items with all references. Such a score takes about twice as long as
    one of the whole product (1.6 to 2.5 times in benchmarks/million.py and
    benchmarks/approximate.py).

    Examples
    --------
    >>> cost = expected_cost(1_000_000, 500_000, 128)
    >>> round(cost.time, 2), round(cost.error, 2)
    (0.02, 0.11)
    >>> expected_cost(1000, 5000, 128) is None
    True
    """
    quality = choose_quality(n_gallery)
    if not _is_worth_lists(n_gallery, n_references, k, quality):
        return None
    counted = count_list_scores(n_gallery, n_references, quality)
    time = 2 * sum(counted) / (n_gallery * n_references)
    return Cost(time, expected_error(quality)) if time < 0.5 else None


class ListScores(NamedTuple):
    """Scores that approximate means compute, by phase.

    Attributes
    ----------
    build : int
        References with centroids.
    train : int
        Training items with all references.
    probe : int
        Items with centroids, and with the references of the lists they probe.
    """

    build: int
    train: int
    probe: int


def count_list_scores(n_gallery: int, n_references: int, quality: int) -> ListScores:
    """Count the scores of approximate means.

    Examples
    --------
    >>> count_list_scores(1_000_000, 500_000, 8)
    ListScores(build=816500000, train=256000000, probe=4082000000)
    """
    n_lists = _count_lists(n_gallery, n_references, quality)
    return ListScores(
        n_references * n_lists,
        n_references * _N_TRAINING,
        n_gallery * (n_lists + quality * n_references // n_lists),
    )


def expected_error(quality: int) -> float:
    """Error that lists and regression leave on the sets of benchmarks/approximate.py.

    Examples
    --------
    >>> round(expected_error(8), 2), round(expected_error(32), 2)
    (0.11, 0.05)
    """
    return float(0.44 * quality**-0.65)


def _is_worth_lists(n_gallery: int, n_references: int, k: int, quality: int) -> bool:
    n_lists = _count_lists(n_gallery, n_references, quality)
    is_small = n_references < max(_SMALLEST_BANK, 8 * k) or n_gallery < 32
    too_few_candidates = 2 * quality * n_references < k * n_lists
    return not (is_small or too_few_candidates or 4 * quality > n_lists)


def _count_lists(n_gallery: int, n_references: int, quality: int) -> int:
    """Choose the number of lists L that minimises the scores of assigning and probing.

    Assigning takes n·L scores and probing n_gallery·(L + quality·n/L). The minimum is about
    ``√(quality·n)`` for a gallery larger than the bank, and fewer lists for a smaller one.
    """
    least = (quality * n_references * n_gallery / (n_references + n_gallery)) ** 0.5
    return round(min(least, 4 * n_references**0.5))


def residual(values: npt.ArrayLike, exact: npt.ArrayLike) -> float:
    """Compute the standard deviation of the error relative to that of the exact values.

    A constant error does not count, since it changes no ranking.

    Examples
    --------
    >>> residual([1.5, 2.5, 3.5], [1.0, 2.0, 3.0])
    0.0
    """
    estimated, right = (np.asarray(each, dtype=np.float64) for each in (values, exact))
    spread = float(right.std())
    return float((estimated - right).std()) / spread if spread else 0.0


def _find_projection(
    products: Products, k: int, quality: int, seed: int, memory_budget: int
) -> FloatArray | None:
    """Find the fewest directions whose scores are accurate enough, or None.

    Their error is measured on a sample, and may be half of the error that the lists leave.
    """
    rng = np.random.default_rng(seed)
    (n_items, n_references), dim = products.shape, products.rows.dim
    n_sampled = min(n_references, _N_SAMPLED, memory_budget // (16 * dim))
    basis = principal_basis(joint_moments(products.rows, products.columns, rng))
    items = products.rows.take(rng.integers(0, n_items, min(n_items, _N_SAMPLED_ITEMS))) @ basis
    references = products.columns.take(rng.integers(0, n_references, n_sampled)) @ basis
    n_best = max(1, round(k * n_sampled / n_references))
    exact = _top_mean(items @ references.T, n_best)
    widest = min(dim * 3 // 4, memory_budget // (8 * n_references))
    for width in range(max(8, dim // 8), widest + 1, max(8, dim // 16)):
        short = _top_mean(items[:, :width] @ references[:, :width].T, n_best)
        # A constant factor is corrected by the regression.
        unexplained = (1 - np.corrcoef(short, exact)[0, 1] ** 2) ** 0.5
        if unexplained < _PROJECTION_SHARE * expected_error(quality):
            return np.ascontiguousarray(basis[:, :width])
    return None


def _top_mean(scores: FloatArray, k: int) -> FloatArray:
    return np.asarray(np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1))


@dataclass(frozen=True, eq=False)
class _Found:
    """Per item: mean of the k best scores found, features, and number of candidates."""

    means: FloatArray
    features: FloatArray
    n_candidates: IntArray


def _probe(
    gallery: Embeddings,
    directions: FloatArray | None,
    bank: InvertedLists,
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
    # Per item: its row as read and as projected, and its scores with the lists it probes.
    per_item = 4 * (4 * dim + n_probes * bank.longest)
    left = memory_budget * 3 // 4 - bank.held_bytes
    n_strip = max(64, min(8192, left // (n_workers * per_item), -(-n_gallery // n_workers)))
    stop, done, own = threading.Event(), Done(progress, n_gallery), threading.local()

    def choose_lists(items: FloatArray, start: int) -> IntArray:
        """Choose every item's lists; mean and deviation over all centroids are features."""
        by_centroid = items @ bank.centroids.T
        lists = best_lists(by_centroid, n_probes)
        here = slice(start, start + len(items))
        n_candidates[here] = sizes[lists].sum(axis=1)
        mean = by_centroid @ shares
        np.square(by_centroid, out=by_centroid)
        features[here, -2] = mean
        features[here, -1] = np.sqrt(np.maximum(by_centroid @ shares - mean**2, 0))
        return lists

    def probe(start: int, end: int) -> None:
        items = gallery.rows(start, end)
        if directions is not None:
            items = items @ directions
        pieces = range(0, len(items), _PIECE)
        lists = np.concatenate(
            [choose_lists(items[first : first + _PIECE], start + first) for first in pieces]
        ).ravel()
        if not hasattr(own, "scores"):  # allocating it per strip would take a third of the time
            own.scores = np.empty((n_strip, n_probes, bank.longest), dtype=np.float32)
        best = _score_lists(items, lists, bank, k, own.scores[: len(items)], stop)
        means[start:end] = best.mean(axis=1, dtype=np.float64)
        for column, (first, last) in enumerate(ranks):
            features[start:end, column] = best[:, first:last].mean(axis=1)
        done.add(end - start)

    for _ in strips_in_order(probe, n_gallery, n_strip, stop):
        pass
    return _Found(means, features, n_candidates)


def _score_lists(
    items: FloatArray,
    lists: IntArray,
    bank: InvertedLists,
    k: int,
    scores: FloatArray,
    stop: threading.Event,
) -> FloatArray:
    """The k best scores of every item with the lists it probes, falling; 0 where there are fewer.

    `scores` of shape ``(n_items, n_probes, longest)`` is overwritten; `lists` has all lists of the
    first item, then those of the second, and so on.
    """
    # Negated, with empty slots at +inf: partitioning is many times slower with -inf.
    scores.fill(np.inf)
    negated = -items
    rows, slots = np.divmod(np.arange(len(lists)), scores.shape[1])
    by_list = np.argsort(lists, kind="stable")
    edges = np.searchsorted(lists[by_list], np.arange(len(bank) + 1))
    for number in range(len(bank)):
        probing = by_list[edges[number] : edges[number + 1]]
        if len(probing) == 0 or stop.is_set():
            continue
        block = negated[rows[probing]] @ bank.rows(number).T
        scores[rows[probing], slots[probing], : block.shape[1]] = block
    best = scores.reshape(len(items), -1)
    best.partition(k - 1, axis=1)
    best = -np.sort(best[:, :k], axis=1)
    return np.where(np.isfinite(best), best, np.float32(0))  # those are computed exactly later


def _rank_edges(k: int) -> list[tuple[int, int]]:
    """Split ranks into 1, 2, 3–4, 5–8, … up to k."""
    edges = [0, *(2**power for power in range(k.bit_length()) if 2**power < k), k]
    return list(itertools.pairwise(edges))


def _learn_missed(
    features: FloatArray, missed: FloatArray, rng: np.random.Generator
) -> tuple["Ridge", float]:
    """Learn to predict what an item's mean misses; also return the cross-validated error."""
    known = features.astype(np.float64)
    folds = rng.permutation(len(known)) % 8
    errors = np.empty(len(known))
    for fold in range(8):
        held_out = folds == fold
        ridge = _fit_ridge(known[~held_out], missed[~held_out])
        errors[held_out] = missed[held_out] - ridge.predict(known[held_out])
    return _fit_ridge(known, missed), float(errors.std())


class Ridge(NamedTuple):
    """A ridge regression: ``(features − centre) · slopes + intercept``.

    Attributes
    ----------
    centre, slopes : ndarray, shape (n_features,), float64
    intercept : float
    """

    centre: npt.NDArray[np.float64]
    slopes: npt.NDArray[np.float64]
    intercept: float

    def predict(self, features: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Predict the target of every row of features."""
        return np.asarray((features - self.centre) @ self.slopes + self.intercept)


def _fit_ridge(features: npt.NDArray[np.float64], target: npt.NDArray[Any]) -> Ridge:
    """Fit a ridge regression that ignores constant features."""
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(centre)), scale, np.inf)
    standardized = (features - centre) / scale
    intercept = float(target.mean())
    gram = standardized.T @ standardized
    gram += _RIDGE * len(standardized) * np.eye(standardized.shape[1])
    slopes = np.linalg.solve(gram, standardized.T @ (target - intercept)) / scale
    return Ridge(centre, slopes, intercept)
