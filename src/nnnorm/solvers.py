"""The solvers that compute m_k, the mean of each item's k best reference scores.

    solver        m_k           computed by
    exact         exact         numpy: the whole product, in blocks
    torch         exact         torch on the processor; "cuda" and "mps" on those devices
    approximate   approximate   inverted lists and a regression
    auto          exact if that takes less than about 30 seconds, otherwise approximate if its
                  measured error is at most 0.15, otherwise exact with a warning

`auto` first computes the exact means of a sample of items and extrapolates their processor time, so
the choice doesn't depend on the load of the machine. The `params` of a bias have the solver that
ran and, for approximate means, the quality and the error.

Approximate means: the references are clustered into inverted lists. Each item probes the lists
whose centroids score best with it, and one matrix product scores all items that probe a list. The
number of lists grows with the square root of the number of references. If there are fewer
references than items, four times as many references take twice the time. Otherwise, assigning
references to lists takes most of the time.

References in other lists are missed, for some items more than for others. So the exact m_k of a few
hundred items is computed, too. A ridge regression on these items predicts the missing part, given
the means that were found (over ranks 1, 2, 3–4, …) and the mean and standard deviation of the
item's scores with all centroids. Cross-validation on the same items measures the remaining error:
its standard deviation relative to that of m_k. A few items have large errors, which a sample may
miss, so three standard errors are added to the mean squared error.
"""

import itertools
import math
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

import numpy as np

from nnnorm import scoring
from nnnorm.embeddings import DoubleArray, Embeddings, FloatArray, IntArray
from nnnorm.errors import NNNormError, check_count, require, warn
from nnnorm.files import Progress, progress_bar
from nnnorm.scoring import Products, Sample, Scores, top_k, top_means

Solver = Literal["auto", "exact", "torch", "cuda", "mps", "approximate"]
SOLVER_NAMES: tuple[str, ...] = get_args(Solver)
# If the sample of items with known means is a larger share of the gallery, exact work skips it.
_LARGE_SAMPLE = 0.04
# Number of multiplications that take about a second, and largest time of exact work in seconds.
_QUICK, _LONG = 2**34, 30.0
# `auto` accepts approximate means up to this error, and this time relative to exact means.
_LARGEST_ERROR, _LARGEST_TIME = 0.15, 0.5
# The time of a score from inverted lists relative to one from the whole product. In
# benchmarks/million.py and benchmarks/approximate.py, it is 1.6 to 2.5.
_LIST_SCORE = 2.0
# Number of items with exact means to train on, chosen on the sets of benchmarks/approximate.py.
_N_TRAINING = 512
_SMALLEST_BANK = 8192
_RIDGE = 1e-3
_MARGIN = 3.0
# The scores of this many items with all centroids stay in the cache.
_PIECE = 1024


def check_solver(solver: str, quality: int | None) -> None:
    """Raise an error if the solver is unknown, or has no quality but one is given."""
    if solver not in SOLVER_NAMES:
        raise NNNormError(f"solver must be one of {', '.join(SOLVER_NAMES)}; got {solver!r}")
    if quality is not None and solver != "approximate":
        raise NNNormError(f"quality only applies to the solver approximate; got it with {solver}")
    if quality is not None:
        check_count("quality", quality)


def compute_means(
    solver: Solver,
    scores: Scores,
    k: int,
    *,
    quality: int | None = None,
    sample: Sample | None = None,
    progress: Progress | None = None,
) -> tuple[FloatArray, dict[str, Any]]:
    """Compute m_k of every row; `sample` has rows whose means are known already."""
    n_items, seconds = scores.shape[0], 0.0
    if isinstance(scores, Products) and solver != "exact":
        model = None
        if solver == "auto" and n_items * scores.shape[1] * scores.rows.dim > _QUICK:
            sample = sample or sample_means(scores, k)
            seconds = sample.seconds * n_items / len(sample.rows)
            if seconds > _LONG:
                model = _choose_model(scores, k, sample, seconds)
        elif solver == "approximate":
            quality = quality or choose_quality(n_items)
            if is_worth_lists(*scores.shape, k, quality):
                sample = sample or sample_means(scores, k)
                model = learn_lists(scores, k, quality, sample)
        elif solver != "auto":
            return _torch_means(scores, k, solver, progress), {"solver": solver}
        if model is not None:
            return model.means(scores, progress)
    bar: Any = nullcontext(progress)
    if progress is None and seconds > _LONG and sys.stderr.isatty():
        bar = progress_bar("Exact means")
    with bar as progress:
        if sample is None or not _LARGE_SAMPLE * n_items < len(sample.rows) < n_items:
            return top_means(scores, k, progress), {"solver": "exact"}
        others = np.delete(np.arange(n_items), sample.rows)
        means = np.empty(n_items, dtype=np.float32)
        means[sample.rows] = sample.exact
        means[others] = top_means(scores.some_rows(others), k, progress)
        return means, {"solver": "exact"}


def _choose_model(scores: Products, k: int, sample: Sample, seconds: float) -> "ListModel | None":
    """Find the lowest quality with a small enough error; None if exact means are better.

    `seconds` is the expected time of exact means.
    """
    n_scores = scores.shape[0] * scores.shape[1]
    quality, least_error, spent = choose_quality(scores.shape[0]), math.inf, 0.0
    while is_worth_lists(*scores.shape, k, quality):
        learning, probing = count_list_scores(*scores.shape, quality)
        spent += _LIST_SCORE * learning / n_scores
        if spent + _LIST_SCORE * probing / n_scores > _LARGEST_TIME:
            break
        model = learn_lists(scores, k, quality, sample)
        error = math.inf if model is None else model.error
        if error <= _LARGEST_ERROR:
            return model
        least_error = min(least_error, error)
        # The error falls at most as fast as the quality rises, so smaller steps would not help.
        excess = 1.0 if model is None else error / _LARGEST_ERROR
        quality = 2 ** max(quality.bit_length(), math.ceil(math.log2(quality * excess)))
    message = f"exact means will take about {timedelta(seconds=round(seconds))} (h:mm:ss)"
    if math.isfinite(least_error):
        message += (
            f"; approximate means would have an error of {100 * least_error:.0f} % of their "
            f"standard deviation, more than {100 * _LARGEST_ERROR:.0f} %. To use them anyway, pass "
            "solver='approximate' (--solver approximate)"
        )
    warn(message)
    return None


# --- torch -------------------------------------------------------------------------------------


def _torch_means(scores: Products, k: int, solver: str, progress: Progress | None) -> FloatArray:
    """Compute m_k exactly in float32 with torch; use about the memory budget on the device."""
    torch = require("torch", extra="torch")
    device = "cpu" if solver == "torch" else solver
    available = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if device in available and not available[device]():
        raise NNNormError(
            f"solver {device} needs such a device, but torch {torch.__version__} finds none; use "
            "solver exact, or install a torch that supports the device"
        )
    gallery, references, memory_budget = scores.rows, scores.columns, scores.memory_budget
    n_items, n_references = scores.shape
    n_block = max(4 * k, min(n_references, memory_budget // 4 // (4 * references.dim)))
    n_strip = max(1, min(n_items, 4096, memory_budget // 2 // (8 * (n_block + k + gallery.dim))))
    means = np.empty(n_items, dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, n_items, n_strip):
            stop = min(start + n_strip, n_items)
            items = torch.from_numpy(np.array(gallery.rows(start, stop))).to(device)
            best = items.new_empty((stop - start, 0))
            for first in range(0, n_references, n_block):
                last = min(first + n_block, n_references)
                block = torch.from_numpy(np.array(references.rows(first, last))).to(device)
                found = torch.topk(items @ block.T, min(k, last - first), sorted=False).values
                best = torch.cat([best, found], dim=1)
                best = torch.topk(best, min(k, best.shape[1]), sorted=False).values
                if progress is not None:
                    progress(start * n_references + (stop - start) * last, n_items * n_references)
            means[start:stop] = best.cpu().numpy().mean(axis=1, dtype=np.float64)
    return means


# --- approximate: a sample, and the expected work -----------------------------------------------


def sample_means(scores: Products, k: int, *, seed: int = 0) -> Sample:
    """Compute the exact means of up to 512 random items, at most a quarter of a small gallery."""
    n_items = scores.shape[0]
    n_sampled = min(_N_TRAINING, -(-n_items // 4))
    rows = np.sort(np.random.default_rng(seed).permutation(n_items)[:n_sampled])
    started = scoring.processor_time()
    exact = top_means(scores.some_rows(rows), k)
    return Sample(rows, exact, scoring.processor_time() - started)


def choose_quality(n_gallery: int) -> int:
    """Choose the number of inverted lists to probe: 32 for up to 100,000 items, 8 for more."""
    return 32 if n_gallery <= 100_000 else 8


def count_list_scores(n_gallery: int, n_references: int, quality: int) -> tuple[int, int]:
    """Count the scores needed to learn lists and regression, and those to probe all items."""
    n_lists = _count_lists(n_gallery, n_references, quality)
    learning = n_references * (n_lists + _N_TRAINING)
    return learning, n_gallery * (n_lists + quality * n_references // n_lists)


def is_worth_lists(n_gallery: int, n_references: int, k: int, quality: int) -> bool:
    """Return whether lists save scores and have enough candidates for k."""
    n_lists = _count_lists(n_gallery, n_references, quality)
    is_small = n_references < max(_SMALLEST_BANK, 8 * k) or n_gallery < 32
    too_few_candidates = 2 * quality * n_references < k * n_lists
    return not (is_small or too_few_candidates or 4 * quality > n_lists)


def _count_lists(n_gallery: int, n_references: int, quality: int) -> int:
    """Choose the number of lists L that minimizes the scores of assigning and probing."""
    least = (quality * n_references * n_gallery / (n_references + n_gallery)) ** 0.5
    return round(min(least, 4 * n_references**0.5))


# --- approximate: the model ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ListModel:
    """Inverted lists of a bank, and the regression that predicts the missing part."""

    lists: "InvertedLists"
    k: int
    quality: int
    weights: DoubleArray
    sample: Sample
    error: float

    def means(
        self, products: Products, progress: Progress | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Estimate m_k of the training gallery; also return solver, quality and error."""
        values, features, n_candidates = _probe(
            products, self.lists, self.k, self.quality, progress
        )
        values += _predict(self.weights, features).astype(np.float32)
        # Items with fewer than k candidates are computed exactly.
        short = np.flatnonzero(n_candidates < self.k)
        if len(short):
            values[short] = top_means(products.some_rows(short), self.k)
        values[self.sample.rows] = self.sample.exact
        return values, {"solver": "approximate", "quality": self.quality, "error": self.error}


def learn_lists(
    products: Products, k: int, quality: int, sample: Sample, *, seed: int = 0
) -> ListModel | None:
    """Learn lists and regression from a bank and a sample; None if lists would not help."""
    n_gallery, n_references = products.shape
    if not is_worth_lists(n_gallery, n_references, k, quality):
        return None
    rng = np.random.default_rng(seed)
    n_lists = _count_lists(n_gallery, n_references, quality)
    lists = InvertedLists(products.columns, n_lists, rng, products.memory_budget)
    some = products.some_rows(sample.rows)
    means, features, n_candidates = _probe(some, lists, k, quality)
    complete = n_candidates >= k
    if complete.sum() < len(sample.rows) / 2:
        return None
    weights, error = _learn_missed(features[complete], (sample.exact - means)[complete], rng)
    spread = float(sample.exact.std())
    return ListModel(lists, k, quality, weights, sample, error / spread if spread else 0.0)


# --- approximate: inverted lists ----------------------------------------------------------------


class InvertedLists:
    """References clustered into lists, each at most twice as long as the average."""

    def __init__(
        self, references: Embeddings, n_lists: int, rng: np.random.Generator, memory_budget: int
    ) -> None:
        n = len(references)
        sample = references.take(np.sort(rng.choice(n, min(n, 16 * n_lists), replace=False)))
        nearest = _nearest(references, _cluster(sample, n_lists, rng, memory_budget), memory_budget)
        self.order = np.argsort(nearest, kind="stable")
        longest = -(-2 * n // n_lists)
        starts = np.searchsorted(nearest[self.order], np.arange(n_lists + 1))
        self.edges = [
            (first, min(first + longest, last))
            for start, last in itertools.pairwise(map(int, starts))
            for first in range(start, last, longest)
        ]
        self.sizes = np.array([last - first for first, last in self.edges])
        self.longest = int(self.sizes.max())
        n_bytes = 4 * n * references.dim
        fits = n_bytes <= memory_budget // 2
        self._references = None if fits else references
        self._sorted = references.take(self.order) if fits else np.empty((0, 0), np.float32)
        self.held_bytes = n_bytes if fits else 0
        self.centroids = np.stack([self.rows(number).mean(axis=0) for number in range(len(self))])

    def __len__(self) -> int:
        return len(self.edges)

    def rows(self, number: int) -> FloatArray:
        """Return the references of a list, shape (n, dim)."""
        first, last = self.edges[number]
        if self._references is not None:
            return self._references.take(self.order[first:last])
        return self._sorted[first:last]

    def best_scores(
        self, items: FloatArray, lists: IntArray, k: int, scores: FloatArray, stop: threading.Event
    ) -> FloatArray:
        """Return the k best scores of items with the lists they probe, best first; 0 if missing."""
        # Scores are negated and empty slots +inf, because partitioning is much slower with -inf.
        scores.fill(np.inf)
        negated = -items
        rows, slots = np.divmod(np.arange(len(lists)), scores.shape[1])
        by_list = np.argsort(lists, kind="stable")
        edges = np.searchsorted(lists[by_list], np.arange(len(self) + 1))
        for number in range(len(self)):
            probing = by_list[edges[number] : edges[number + 1]]
            if len(probing) == 0 or stop.is_set():
                continue
            block = negated[rows[probing]] @ self.rows(number).T
            scores[rows[probing], slots[probing], : block.shape[1]] = block
        best = scores.reshape(len(items), -1)
        best.partition(k - 1, axis=1)
        best = -np.sort(best[:, :k], axis=1)
        return np.where(np.isfinite(best), best, np.float32(0))  # `means` repeats them exactly


def _cluster(
    sample: FloatArray, n_lists: int, rng: np.random.Generator, memory_budget: int
) -> FloatArray:
    """Find centroids with five rounds of k-means, which is enough for lists."""
    centroids = sample[rng.choice(len(sample), n_lists, replace=False)]
    rows = Embeddings([sample], "references")
    for _ in range(5):
        nearest = _nearest(rows, centroids, memory_budget)
        order = np.argsort(nearest, kind="stable")
        counts = np.bincount(nearest, minlength=n_lists)
        used = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[used]
        centroids = centroids.copy()
        centroids[used] = np.add.reduceat(sample[order], starts, axis=0) / counts[used, None]
    return centroids


def _nearest(rows: Embeddings, centroids: FloatArray, memory_budget: int) -> IntArray:
    """Find the closest centroid of every row."""
    offset = (centroids**2).sum(axis=1) / 2
    columns = Embeddings([centroids], "centroids")
    products = Products(rows, columns, offset=offset, memory_budget=memory_budget)
    return top_k(products, 1).indices[:, 0]


def best_lists(scores: FloatArray, n_probes: int) -> IntArray:
    """Find the lists with the best scores, unordered: ``(n_items, n_probes)``."""
    n_items, n_lists = scores.shape
    cut = n_lists - n_probes
    least = np.partition(scores, cut, axis=1)[:, cut, None]
    found = np.flatnonzero(scores >= least)  # several times faster than argpartition
    if len(found) > n_items * n_probes:  # ties
        return np.argpartition(scores, cut, axis=1)[:, cut:]
    return (found % n_lists).reshape(n_items, n_probes)


def _probe(
    products: Products, bank: InvertedLists, k: int, n_probes: int, progress: Progress | None = None
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return the mean of the k best scores found, features and number of candidates per item."""
    n_gallery, dim = products.rows.shape
    n_probes = min(n_probes, len(bank))
    edges = [0, *(2**power for power in range(k.bit_length()) if 2**power < k), k]
    ranks = list(itertools.pairwise(edges))  # 1, 2, 3–4, 5–8, … up to k
    features = np.empty((n_gallery, len(ranks) + 2), dtype=np.float32)
    means = np.empty(n_gallery, dtype=np.float32)
    n_candidates = np.empty(n_gallery, dtype=np.int64)
    shares = (bank.sizes / bank.sizes.sum()).astype(np.float32)
    n_workers = scoring.count_threads()
    # Bytes per item: its row as stored and in float32, and its scores with the lists it probes.
    per_item = 4 * (4 * dim + n_probes * bank.longest)
    left = products.memory_budget * 3 // 4 - bank.held_bytes
    n_strip = max(64, min(8192, left // (n_workers * per_item), -(-n_gallery // n_workers)))
    stop, own = threading.Event(), threading.local()
    done = scoring.Done(progress, n_gallery)

    def choose_lists(items: FloatArray, start: int) -> IntArray:
        """Choose every item's lists; store the mean and deviation over centroids as features."""
        by_centroid = items @ bank.centroids.T
        lists = best_lists(by_centroid, n_probes)
        here = slice(start, start + len(items))
        n_candidates[here] = bank.sizes[lists].sum(axis=1)
        mean = by_centroid @ shares
        np.square(by_centroid, out=by_centroid)
        features[here, -2] = mean
        features[here, -1] = np.sqrt(np.maximum(by_centroid @ shares - mean**2, 0))
        return lists

    def probe(start: int, end: int) -> None:
        items = products.rows.rows(start, end)
        pieces = range(0, len(items), _PIECE)
        lists = np.concatenate(
            [choose_lists(items[first : first + _PIECE], start + first) for first in pieces]
        ).ravel()
        if not hasattr(own, "scores"):  # once per thread, not per strip
            own.scores = np.empty((n_strip, n_probes, bank.longest), dtype=np.float32)
        best = bank.best_scores(items, lists, k, own.scores[: len(items)], stop)
        means[start:end] = best.mean(axis=1, dtype=np.float64)
        for column, (first, last) in enumerate(ranks):
            features[start:end, column] = best[:, first:last].mean(axis=1)
        done.add(end - start)

    for _ in scoring.strips_in_order(probe, n_gallery, n_strip, stop):
        pass
    return means, features, n_candidates


# --- approximate: the regression ----------------------------------------------------------------


def _learn_missed(
    features: FloatArray, missed: FloatArray, rng: np.random.Generator
) -> tuple[DoubleArray, float]:
    """Fit the regression for the missing part; also return its cross-validated error."""
    known = features.astype(np.float64)
    folds = rng.permutation(len(known)) % 8
    errors = np.empty(len(known))
    for fold in range(8):
        held_out = folds == fold
        weights = _fit_ridge(known[~held_out], missed[~held_out])
        errors[held_out] = missed[held_out] - _predict(weights, known[held_out])
    squares = (errors - errors.mean()) ** 2
    highest = squares.mean() + _MARGIN * squares.std() / len(squares) ** 0.5
    return _fit_ridge(known, missed), float(highest) ** 0.5


def _predict(weights: DoubleArray, features: FloatArray | DoubleArray) -> DoubleArray:
    return np.asarray(features @ weights[:-1] + weights[-1])


def _fit_ridge(features: DoubleArray, target: FloatArray) -> DoubleArray:
    """Fit a ridge regression that ignores constant features; return slopes and intercept."""
    center, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9 * (1 + np.abs(center)), scale, np.inf)
    standardized = (features - center) / scale
    gram = standardized.T @ standardized
    gram += _RIDGE * len(standardized) * np.eye(standardized.shape[1])
    mean = float(target.mean())
    slopes = np.linalg.solve(gram, standardized.T @ (target - mean)) / scale
    return np.append(slopes, mean - center @ slopes)
