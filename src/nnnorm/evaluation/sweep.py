"""Evaluate whole grids with one pass over each bank and one product of queries and gallery.

The prefix means of an item's 512 best reference scores are its ``m_k`` for every k, and a bias is
linear in α. The log-mean-exps of every β come from the same pass. A `Setting` computes its
correction only when it is used, so hundreds of settings need the memory of a few vectors.

One product gives the R@1 of all settings. For a query, item j only matters if some correction can
make it top-1. Center each correction (a constant changes no ranking), and let ``lower`` and
``upper`` be the least and the greatest correction of each item. Then item j never scores more than
``s_j − lower_j``, and some wrong item always scores at least ``U = max_j (s_j − upper_j)``. Items
that stay below U, or below the worst score of the right item, are skipped. A query is a miss under
every correction if U exceeds the best score of its right item. The few remaining pairs are compared
under every correction in the float32 arithmetic of a search, so each cell equals its own
evaluation.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nnnorm.bias import Bias
from nnnorm.dedup import References
from nnnorm.embeddings import DoubleArray, Embeddings, FloatArray
from nnnorm.errors import NNNormError
from nnnorm.evaluation.metrics import Truth
from nnnorm.files import Progress
from nnnorm.methods import NNN, Grid, Method, MethodName, Statistics, find_method, make_method
from nnnorm.methods.groups import offsets_of
from nnnorm.ranking import iterate_scores
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, in_threads

# Returns the correction to subtract, shape (n_gallery,), float32. May be called several times.
Correction: TypeAlias = Callable[[], FloatArray]
# The mean of each correction, and each item's least and greatest centered correction.
Bounds: TypeAlias = tuple[DoubleArray, FloatArray, FloatArray]


# --- the grid ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Setting:
    """One cell of a grid, with the statistics that all settings share."""

    method: Method
    params: Mapping[str, Any]
    statistics: Statistics
    between: float = 1.0  # weight of the differences between groups

    def correction(self) -> FloatArray:
        """The correction to subtract, shape ``(n_gallery,)``, computed as in `search`."""
        values = np.asarray(self.method.values(self.statistics), dtype=np.float32)
        correction = np.float32(self.method.weight) * values
        if (groups := self.statistics.groups) is not None and self.method.is_weighted:
            groups.between = self.between
            offsets = groups.offsets(self.method, values, self.statistics)
            correction = correction + offsets_of(groups.labels, offsets)
        return correction

    def bias(self) -> Bias:
        """Return the bias of this setting."""
        if self.statistics.groups is not None:
            self.statistics.groups.between = self.between
        return self.method.make_bias(self.statistics)


def make_settings(
    methods: Sequence[MethodName],
    gallery: Embeddings,
    references: References | Embeddings,
    gallery_references: Embeddings | None = None,
    *,
    grids: Mapping[str, Grid] | None = None,
    **options: Any,
) -> list[Setting]:
    """Create the settings of some methods, and scan the banks once for all of them."""
    grids = grids or {}
    if unknown := [name for name in grids if name not in methods]:
        raise NNNormError(
            f"grids has {unknown[0]}, which isn't among the methods ({', '.join(methods)}); add it"
        )
    statistics = Statistics(gallery, references, gallery_references, **options)
    cells: dict[Method, Mapping[str, Any]] = {}
    for name in methods:
        cells.update(_cells(name, grids.get(name), statistics))
    if NNN().name in methods and NNN().name not in grids:
        automatic = NNN().resolve(statistics)[0]
        if automatic.weight:
            cells.setdefault(automatic, automatic.params)
    statistics.prepare(cells)
    return [Setting(method, params, statistics) for method, params in cells.items()]


def _cells(
    name: MethodName, grid: Grid | None, statistics: Statistics
) -> Iterator[tuple[Method, dict[str, Any]]]:
    """Yield each cell's method and parameters; a default grid skips a k above the bank's size."""
    for params in _list_params(name, find_method(name)[1].grid if grid is None else grid):
        method = make_method(name, **params)
        if method.is_automatic:
            raise NNNormError("the grid of nnn needs numbers for reference_k and alpha, not auto")
        if params.get("gate") == "safe":  # its gate can't share a sweep
            raise NNNormError("dualdis is tuned in its published form only; leave out gate 'safe'")
        reference_k = getattr(method, "reference_k", 0)
        if reference_k <= statistics.n_references:
            yield method, params
        elif grid is not None:
            raise statistics.too_few_references(reference_k)


def _list_params(name: MethodName, grid: Grid) -> Iterator[dict[str, Any]]:
    """Yield the parameters of every cell, after checking the grid."""
    parts = [grid] if isinstance(grid, Mapping) else list(grid)
    if not parts or (not all(parts) and find_method(name)[1].grid):
        raise NNNormError(f"the grid of {name} is empty; pass at least one value per parameter")
    for axes in parts:
        is_same = isinstance(axes, Mapping) and set(axes) == set(parts[0])
        if not is_same or any(np.ndim(v) != 1 or not len(v) for v in axes.values()):
            raise NNNormError(
                f"the grid of {name} must be a dict of parameters to lists of values, or a list of "
                f"such dicts with the same parameters; got {grid!r}"
            )
        for cell in itertools.product(*(axes[param] for param in parts[0])):
            plain = (value.item() if isinstance(value, np.generic) else value for value in cell)
            yield dict(zip(parts[0], plain, strict=True))


# --- the sweep -----------------------------------------------------------------------------------


def sweep_hits(
    queries: Embeddings,
    gallery: Embeddings,
    truth: Truth,
    corrections: Sequence[Correction],
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
    visit: Callable[[int, FloatArray], None] | None = None,
) -> FloatArray:
    """Return whether each query's right item is top-1, under every correction."""
    hits = np.empty((len(corrections), len(queries)), dtype=np.float32)
    if 4 * len(corrections) * len(gallery) <= memory_budget // 4:
        corrections = [partial(np.asarray, correction()) for correction in corrections]
    bounds = _bounds(corrections, len(gallery))
    run: dict[str, Any] = {"memory_budget": memory_budget // 2, "progress": progress}
    for start, scores in iterate_scores(queries, gallery, **run):
        if visit is not None:
            visit(start, scores)

        def count(rows: slice, start: int = start, scores: FloatArray = scores) -> None:
            first = start + rows.start
            found = _strip_hits(scores[rows], truth, first, corrections, bounds)
            hits[:, first : start + rows.stop] = found

        in_threads(count, scores)
    return hits


def _bounds(corrections: Sequence[Correction], n_gallery: int) -> Bounds:
    """Return each correction's mean, and each item's least and greatest centered correction."""
    means = np.empty(len(corrections))
    lower = np.full(n_gallery, np.inf, dtype=np.float32)
    upper = np.full(n_gallery, -np.inf, dtype=np.float32)
    largest = 1.0
    for number, correction in enumerate(corrections):
        values = correction()
        means[number] = values.mean(dtype=np.float64)
        largest = max(largest, float(np.abs(values).max()))
        centered = values - np.float32(means[number])
        np.minimum(lower, centered, out=lower)
        np.maximum(upper, centered, out=upper)
    # Slack for rounding, so no pair is lost.
    slack = np.float32(4e-6 * largest)
    return means, lower - slack, upper + slack


def _strip_hits(
    scores: FloatArray, truth: Truth, start: int, corrections: Sequence[Correction], bounds: Bounds
) -> FloatArray:
    """Return the hits of some queries under every correction, ``(n_corrections, n_strip)``."""
    means, lower, upper = bounds
    first, last = truth.starts[start], truth.starts[start + len(scores)]
    items, rows = truth.items[first:last], truth.queries[first:last] - start
    starts = truth.starts[start : start + len(scores)] - first
    right = scores[rows, items]
    # The best right item of every query under every correction.
    best = np.empty((len(corrections), len(scores)), dtype=np.float32)
    for row, correction in zip(best, corrections, strict=True):
        row[:] = np.maximum.reduceat(right - correction()[items], starts)
    centered = best + means[:, None].astype(np.float32)
    # The wrong items that may be top-1 under some correction.
    slack = 4e-6 * np.maximum(1, np.abs(scores).max(axis=1))
    bound = scores - upper
    bound[rows, items] = -np.inf
    always = bound.max(axis=1) - slack
    is_lost = always > centered.max(axis=0) + slack
    least = np.maximum(always, centered.min(axis=0) - slack)
    least[is_lost] = np.inf
    np.subtract(scores, lower, out=bound)
    bound[rows, items] = -np.inf
    pair_rows, pair_items = np.nonzero(bound >= least[:, None])
    pair_scores = scores[pair_rows, pair_items]
    hits = np.ones(best.shape, dtype=np.float32)
    hits[:, is_lost] = 0
    for hit, own, correction in zip(hits, best, corrections, strict=True):
        offset = correction()
        wrong = pair_scores - offset[pair_items]
        tied = pair_rows[wrong == own[pair_rows]]
        if len(tied):
            # A tie for top-1 counts as a random draw among the tied items.
            n_wrong = np.bincount(tied, minlength=len(own))
            is_best = right - offset[items] == own[rows]
            n_right = np.bincount(rows[is_best], minlength=len(own))
            hit *= n_right / (n_right + n_wrong)
        hit[pair_rows[wrong > own[pair_rows]]] = 0
    return hits
