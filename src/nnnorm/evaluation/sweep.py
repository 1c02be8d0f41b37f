"""Whole grids from one pass over each bank and one product of queries and gallery.

An item's 512 best reference scores, sorted, give every ``m_k`` by prefix means, and a bias is
linear in α; the log-mean-exps of every β come from the same pass. A `Setting` applies the formula
of its method when its correction is asked for, so a grid of hundreds costs a few vectors.

R@1 of all of them comes from one product. For a query, item j can only matter if it may win under
some correction. With ``lower`` and ``upper`` the least and greatest correction of each item (each
correction first centered, since a constant changes no ranking), item j stays below
``s_j − lower_j``, and some wrong item always reaches ``U = max_j (s_j − upper_j)``. So an item that
stays below U, or below the worst score of the right item, drops out at once, and a query whose U
exceeds the best score of its right item is lost everywhere. The few remaining pairs are compared
under every correction in the same float32 arithmetic that a search uses, so each cell equals its
own evaluation.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import References, describe_size
from nnnorm.embeddings import Embeddings, FloatArray
from nnnorm.errors import NNNormError
from nnnorm.evaluation.metrics import Evaluation, Truth, count_above
from nnnorm.files import Progress
from nnnorm.methods import (
    NNN,
    BankName,
    DualSoftmax,
    Factor,
    Grid,
    Method,
    MethodName,
    Statistics,
    find_method,
    make_method,
    multiply_factors,
)
from nnnorm.ranking import iterate_scores
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, in_threads

# Returns what is taken from every score, shape (n_gallery,), float32; called again when needed.
Correction: TypeAlias = Callable[[], FloatArray]
# The banks that gate a method, which of those gates are open, and the factors of the product.
_Case: TypeAlias = tuple[tuple[BankName, ...], tuple[bool, ...], tuple[Factor, ...]]


# --- the grid ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Setting:
    """One cell of a grid, with the statistics that all settings share."""

    method: Method
    params: Mapping[str, Any]
    statistics: Statistics

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name

    def correction(self) -> FloatArray:
        """What is taken from every score, shape ``(n_gallery,)``, in the arithmetic of `search`."""
        values = np.asarray(self.method.values(self.statistics), dtype=np.float32)
        return np.float32(self.method.weight) * values


def make_settings(
    methods: Sequence[MethodName],
    gallery: Embeddings,
    references: References | Embeddings,
    *,
    gallery_references: Embeddings | None = None,
    grids: Mapping[str, Grid] | None = None,
    **options: Any,
) -> list[Setting]:
    """Lay out the grids of some methods and scan the banks once for all of them."""
    grids = grids or {}
    check_grids(grids, methods)
    statistics = Statistics.of_embeddings(gallery, references, gallery_references, **options)
    cells = {
        method: params
        for name in methods
        for method, params in _cells(name, grids.get(name), statistics)
    }
    if NNN().name in methods and NNN().name not in grids:
        automatic = NNN().resolve(statistics)[0]
        if automatic.weight:
            cells.setdefault(automatic, automatic.params)
    statistics.prepare(cells)
    return [Setting(method, params, statistics) for method, params in cells.items()]


def check_grids(grids: Mapping[str, Grid] | None, methods: Sequence[MethodName]) -> None:
    """Raise if a grid was given for a method that was not asked for."""
    if unknown := [name for name in (grids or {}) if name not in methods]:
        raise NNNormError(
            f"a grid was given for {unknown[0]}, which is not among the methods "
            f"({', '.join(methods)})"
        )


def _cells(
    name: MethodName, grid: Grid | None, statistics: Statistics
) -> Iterator[tuple[Method, dict[str, Any]]]:
    """The method and parameters of every cell; the default grid leaves out k beyond the bank."""
    for params in _list_params(name, find_method(name)[1].grid if grid is None else grid):
        method = make_method(name, **params)
        if method.is_automatic:
            raise NNNormError(
                "the grid of nnn needs numbers for both reference_k and alpha, not auto"
            )
        if params.get("gate") == "safe":  # no sweep can share its partly open queries
            raise NNNormError(
                "dualdis can be tuned in its published form only; leave out gate 'safe'"
            )
        reference_k = getattr(method, "reference_k", 0)
        if reference_k <= statistics.n_references:
            yield method, params
        elif grid is not None:
            size = describe_size(statistics.provenance["n_references"], statistics.n_references)
            raise NNNormError(
                f"the grid of {name} has reference_k {reference_k}, but there are only {size}"
            )


def _list_params(name: MethodName, grid: Grid) -> Iterator[dict[str, Any]]:
    """The parameters of every cell, once each part of the grid has lists for the same ones."""
    parts = [grid] if isinstance(grid, Mapping) else list(grid)
    if not parts or (not all(parts) and find_method(name)[1].grid):
        raise NNNormError(f"the grid of {name} is empty; give each parameter at least one value")
    for axes in parts:
        is_same = isinstance(axes, Mapping) and set(axes) == set(parts[0])
        if not is_same or any(np.ndim(v) != 1 or not len(v) for v in axes.values()):
            raise NNNormError(
                f"the grid of {name} must be a dict of parameters to lists of values, or a list of "
                f"such with the same parameters; got {grid!r}"
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
    look: Callable[[int, FloatArray], None] | None = None,
) -> FloatArray:
    """Find whether the right item of each query comes first, under every correction."""
    hits = np.empty((len(corrections), len(queries)), dtype=np.float32)
    if 4 * len(corrections) * len(gallery) <= memory_budget // 4:
        corrections = [partial(np.asarray, correction()) for correction in corrections]
    bounds = _bounds(corrections, len(gallery))
    for start, scores in iterate_scores(
        queries, gallery, memory_budget=memory_budget // 2, progress=progress
    ):
        if look is not None:
            look(start, scores)

        def count(rows: slice, start: int = start, scores: FloatArray = scores) -> None:
            first = start + rows.start
            found = _strip_hits(scores[rows], truth, first, corrections, *bounds)
            hits[:, first : start + rows.stop] = found

        in_threads(count, scores)
    return hits


def _bounds(
    corrections: Sequence[Correction], n_gallery: int
) -> tuple[npt.NDArray[np.float64], FloatArray, FloatArray]:
    """Mean of each correction, and each item's least and greatest centered correction."""
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
    # Room for the rounding of centering, so that no pair is lost to it.
    slack = np.float32(4e-6 * largest)
    return means, lower - slack, upper + slack


def _strip_hits(
    scores: FloatArray,
    truth: Truth,
    start: int,
    corrections: Sequence[Correction],
    means: npt.NDArray[np.float64],
    lower: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Hits of a strip of queries under every correction, shape ``(n_corrections, n_strip)``."""
    first, last = truth.starts[start], truth.starts[start + len(scores)]
    items, rows = truth.items[first:last], truth.queries[first:last] - start
    starts = truth.starts[start : start + len(scores)] - first
    right = scores[rows, items]
    # The best right item of every query under every correction.
    best = np.empty((len(corrections), len(scores)), dtype=np.float32)
    for row, correction in zip(best, corrections, strict=True):
        row[:] = np.maximum.reduceat(right - correction()[items], starts)
    centered = best + means[:, None].astype(np.float32)
    # The wrong items that may be first under some correction.
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
            # A tie for the first place is won as often as a draw among the tied would be.
            n_wrong = np.bincount(tied, minlength=len(own))
            is_best = right - offset[items] == own[rows]
            n_right = np.bincount(rows[is_best], minlength=len(own))
            hit *= n_right / (n_right + n_wrong)
        hit[pair_rows[wrong > own[pair_rows]]] = 0
    return hits


# --- gated methods -------------------------------------------------------------------------------


class GateWatch:
    """Reads the raw scores of a sweep, and then gives the hits of gated methods."""

    def __init__(self, methods: Sequence[Method], statistics: Statistics, truth: Truth) -> None:
        self._statistics, self._truth = statistics, truth
        gated = [method for method in methods if method.gated_by]
        self._is_open = {
            bank: np.zeros(len(truth), dtype=bool) for method in gated for bank in method.gated_by
        }
        self._active = {bank: statistics.activation_set(bank) for bank in self._is_open}
        self._hits: dict[_Case, FloatArray] = {
            case: np.zeros(len(truth), dtype=np.float32)
            for method in gated
            for case in _closed_cases(method)
        }

    def look(self, start: int, scores: FloatArray) -> None:
        """Decide the gates of a strip's queries, and rank those for which some are closed."""
        some = slice(start, start + len(scores))
        for bank, active in self._active.items():
            self._is_open[bank][some] = active[scores.argmax(axis=1)]
        for (banks, pattern, factors), hits in self._hits.items():
            rows = np.flatnonzero(self._matches(banks, pattern, some))
            if len(rows):
                logs = [(f.beta, self._statistics.log_mean_exp(*f)) for f in factors]
                product = multiply_factors(scores[rows], logs, n_closed=pattern.count(False))
                hits[start + rows] = self._count(product, start + rows)

    def hits(self, method: Method, ungated: FloatArray, raw: FloatArray) -> FloatArray:
        """Hits of a method, from those of its ungated form and of no correction."""
        if not method.gated_by:
            return ungated
        all_open = (True,) * len(method.gated_by)
        hits = np.where(self._matches(method.gated_by, all_open), ungated, raw)
        for case in _closed_cases(method):
            rows = self._matches(*case[:2])
            hits[rows] = self._hits[case][rows]
        return hits

    def _matches(
        self, banks: Sequence[BankName], pattern: Sequence[bool], some: slice = slice(None)
    ) -> npt.NDArray[np.bool_]:
        """Which of some queries have their gates open and closed in this pattern."""
        pairs = zip(banks, pattern, strict=True)
        gates = [self._is_open[bank][some] == opened for bank, opened in pairs]
        return np.asarray(np.logical_and.reduce(gates))

    def _count(
        self, scores: npt.NDArray[np.float64], queries: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        truth = self._truth.some_queries(queries)
        # In the float32 of a search, so that what is a tie there is a tie here.
        above, tied = count_above(scores.astype(np.float32), truth, 0)
        n_gallery = scores.shape[1]
        return Evaluation(truth, above, tied, queries, n_gallery, n_gallery).hits(1)


def _closed_cases(method: Method) -> list[_Case]:
    """The products that DualDIS ranks by if some of its gates are closed; QBNorm has none."""
    if not isinstance(method, DualSoftmax):
        return []
    patterns = itertools.product((True, False), repeat=len(method.gated_by))
    return [
        (method.gated_by, pattern, method.closed_product(pattern))
        for pattern in patterns
        if not all(pattern)
    ]
