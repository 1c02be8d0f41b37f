"""Whether and how to screen (`pruned.py`): tried on a few items and references, and costed.

Costs are work per score, in multiply-adds: of the products of heads, of looking at them, of
fetching and scoring what is wanted, and of items that will not prove their floors. Heads of several
widths are tried.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.means.bounds import N_BOUNDS, bounds_of, principal_basis
from nnnorm.means.grouping import similar_together
from nnnorm.means.pruned import GROUP, LOOK_PLAIN, N_SAMPLED, Room, Screen, floors_of
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, check_k, count_threads

__all__ = ["plan_screen"]

FloatArray: TypeAlias = npt.NDArray[np.float32]

_N_TRIED = 12  # groups
# Where more items than this want too much each, the gallery is not even put in order; nor where
# that would take more than this share of the whole product.
_HOPELESS, _TOO_LONG = 0.8, 0.2
# Work of a look at a bound, in multiply-adds, measured on two cores.
_LOOK = 35
# Multiply-adds of one core in the time in which a row of a large gallery finds its group, and how
# large that is. More cores make it no quicker.
_ORDER, _LARGE = 400_000, 8192


def plan_screen(
    scores: Products, k: int, *, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> Screen | None:
    """Choose how wide heads should be, by what a sample of items and references would cost.

    Parameters
    ----------
    scores : Products, shape (n_rows, n_columns)
    k : int
    memory_budget : int
        Heads of all columns have to fit into half of it. Columns that are stored as something
        else than float32 are widened once if both fit into three quarters. A sample of 8,192
        columns is looked at twice, whatever the budget.

    Returns
    -------
    Screen or None
        None if there is no room, or too little to screen: fewer than 16,384 columns, or k above
        a tenth of them (less where dim is small). Scores with an offset are not screened either.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> few = open_embeddings(np.eye(4))
    >>> plan_screen(Products(few, few), 1) is None
    True
    """
    n_rows, n_columns = scores.shape
    check_k(k, n_columns)
    dim, room = scores.rows.dim, Room(n_columns, scores.columns, memory_budget)
    has_few = n_columns < 2 * N_SAMPLED or room.most_wanted < 4 * k
    if has_few or room.widest < 16 or scores.offset is not None:
        return None
    rng = np.random.default_rng(0)
    basis = principal_basis(scores.rows, scores.columns, rng)
    sample = np.sort(rng.choice(n_columns, N_SAMPLED, replace=False))
    references = scores.columns.take(sample)
    few = scores.rows.take(rng.choice(n_rows, min(n_rows, GROUP), replace=False))
    wants = _wants(few, references[::8], basis, room.widest, k / n_columns)
    is_hopeless = (wants > room.most_share).mean() > _HOPELESS
    ordering = _ORDER * min(1, n_rows / _LARGE) * count_threads() / n_columns
    if is_hopeless or ordering > _TOO_LONG * (dim + LOOK_PLAIN):
        return Screen(basis[:, :14].copy(), np.arange(n_rows), sample, np.inf, room.is_widened)
    order = similar_together(
        scores.rows, basis[:, :64], group=GROUP, memory_budget=memory_budget // 4
    )
    n_groups = max(1, n_rows // GROUP)
    n_tried = min(_N_TRIED, n_groups, max(1, memory_budget // (4 * 13 * GROUP * N_SAMPLED)))
    tried = rng.choice(n_groups, n_tried, replace=False)[:, None] * GROUP
    tried = np.minimum(tried + np.arange(GROUP), n_rows - 1)
    items = scores.rows.take(order[tried.ravel()])
    n_best = max(1, round(k * len(references) / n_columns))
    least = np.partition(items @ references.T, -n_best, axis=1)[:, -n_best]

    def cost_of(one: _Try) -> tuple[float, bool]:
        """Work per score, in multiply-adds, and whether a group wants so much that it gets all."""
        floors = floors_of(one.likely.copy(), k / n_columns)
        reached = one.reached(floors).reshape(n_tried, GROUP, -1)
        wanted = reached.any(axis=1).mean(axis=1)
        is_whole = wanted > room.most_share
        unproven = np.where(np.repeat(is_whole, GROUP), 1.0, least < floors).mean()
        fetched = np.where(is_whole, 0.0, wanted).mean()
        cost = fetched * (dim + room.fetch) + unproven * (dim + LOOK_PLAIN)
        cost += one.width * (1 + dim / n_rows + N_SAMPLED / n_columns)  # products, heads, floors
        return float(cost + ordering + _LOOK), bool(is_whole.any())

    cost, directions = _cheapest(_tries(items, references, basis, room.widest), cost_of)
    return Screen(directions, order, sample, cost / (dim + LOOK_PLAIN), room.is_widened)


@dataclass(frozen=True, eq=False)
class _Try:
    """Heads of one width, tried on some items and references."""

    directions: FloatArray
    likely: FloatArray
    reached: Callable[[FloatArray], npt.NDArray[np.bool_]]  # from floors

    @property
    def width(self) -> int:
        return self.directions.shape[1]


def _tries(
    items: FloatArray, references: FloatArray, basis: FloatArray, widest: int
) -> Iterator[_Try]:
    # Widths that are whole for the processor once the bounds are added.
    widths = 16 * np.unique(np.linspace(1, widest // 16, 8).astype(int)) - N_BOUNDS
    tried = bounds_of(items, references, basis, widths)
    for width, (likely, bounds) in zip(widths, tried, strict=True):
        first = np.ascontiguousarray(basis[:, :width])
        yield _Try(first, likely, partial(_reach, bounds))


def _reach(bounds: FloatArray, floors: FloatArray) -> npt.NDArray[np.bool_]:
    return bounds >= floors[:, None]


def _cheapest(
    tries: Iterable[_Try], cost_of: Callable[[_Try], tuple[float, bool]]
) -> tuple[float, FloatArray]:
    """Cost and directions of the cheapest try, from narrow to wide as long as it may pay."""
    best: tuple[float, FloatArray] = np.inf, np.empty((0, 0), np.float32)
    for one in tries:
        cost, is_wanting = cost_of(one)
        if cost < best[0]:
            best = cost, one.directions
        elif not is_wanting:
            break  # wider heads save less than they cost
    return best


def _wants(
    items: FloatArray, references: FloatArray, basis: FloatArray, width: int, share: float
) -> FloatArray:
    """The share of references that every item wants by itself; its group will want more."""
    ((likely, bounds),) = bounds_of(items, references, basis, [width])
    return np.asarray((bounds >= floors_of(likely, share)[:, None]).mean(axis=1), dtype=np.float32)
