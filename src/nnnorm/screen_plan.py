"""Whether and how to screen (`screen.py`): tried on a few items and references, and costed.

Costs are work per score, in multiply-adds: of the products of heads, of looking at them, of
fetching and scoring what is wanted, and of items that will not prove their floors. Heads of several
widths are tried, as they are and, where this machine is quick at int8, coded (`codes.py`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.codes import CodedHeads, coded_width, coded_widths, mixed
from nnnorm.heads import N_BOUNDS, bounding_heads, bounds_of, principal_basis
from nnnorm.int8 import Int8, fastest_int8
from nnnorm.order import similar_together
from nnnorm.scores import DEFAULT_MEMORY_BUDGET, Products
from nnnorm.screen import BLOCK, GROUP, LOOK_PLAIN, N_SAMPLED, Room, Screen, floors_of
from nnnorm.threads import count_threads, on_a_worker
from nnnorm.topk import check_k

__all__ = ["plan_screen"]

FloatArray: TypeAlias = npt.NDArray[np.float32]

_N_TRIED = 12  # groups
# Where more items than this want too much each, the gallery is not even put in order; nor where
# that would take more than this share of the whole product.
_HOPELESS, _TOO_LONG = 0.8, 0.2
# Work of a look at a bound, in multiply-adds; what making and coding heads takes over making them.
# Measured on two cores.
_LOOK, _CODING = 35, 1.4
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
    >>> from nnnorm.embeddings import open_embeddings
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
    int8 = fastest_int8()
    if int8 is not None and not int8.is_quick(dim):
        int8 = None
    few = scores.rows.take(rng.choice(n_rows, min(n_rows, GROUP), replace=False))

    def is_hopeless(widest: int) -> bool:
        wants = _wants(few, references[::8], basis, widest, k / n_columns)
        return bool((wants > room.most_share).mean() > _HOPELESS)

    ordering = _ORDER * min(1, n_rows / _LARGE) * count_threads() / n_columns
    widest = None if is_hopeless(room.widest) else room.widest
    coded = coded_widths(room.widest_coded) if int8 is not None else []
    coded = [width for width in coded if not is_hopeless(width)]
    if not (widest or coded) or ordering > _TOO_LONG * (dim + LOOK_PLAIN):
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
        making = dim / n_rows * (1 if one.int8 is None else _CODING)
        cost += one.width * (making + N_SAMPLED / n_columns)  # heads, floors
        return float(cost + ordering + _LOOK + one.work), bool(is_whole.any())

    tries = []
    if widest is not None:
        tries.append(_tries(items, references, basis, widest))
    if int8 is not None and coded:
        tries.append(_coded_tries(items, references, basis, coded, int8))
    found = min((_cheapest(some, cost_of) for some in tries), key=lambda found: found[0])
    cost, directions, by = found
    return Screen(directions, order, sample, cost / (dim + LOOK_PLAIN), room.is_widened, by)


@dataclass(frozen=True, eq=False)
class _Try:
    """Heads of one width, tried on some items and references."""

    directions: FloatArray
    work: float  # for a product, in multiply-adds of float32
    likely: FloatArray
    reached: Callable[[FloatArray], npt.NDArray[np.bool_]]  # from floors
    int8: Int8 | None = None

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
        yield _Try(first, width, likely, partial(_reach, bounds))


def _coded_tries(
    items: FloatArray, references: FloatArray, basis: FloatArray, widths: list[int], int8: Int8
) -> Iterator[_Try]:
    for width in widths:
        directions = on_a_worker(partial(mixed, basis[:, :width]))
        asking = bounding_heads(items, directions, is_item=True)
        asked = bounding_heads(references, directions, is_item=False)
        coded = CodedHeads(len(asked), int8, BLOCK)
        coded.fill(0, asked)
        likely = asking[:, :width] @ asked[:, :width].T
        yield _Try(
            directions,
            int8.work_of(coded_width(width)),
            likely,
            partial(_reach_coded, coded, asking),
            int8,
        )


def _reach(bounds: FloatArray, floors: FloatArray) -> npt.NDArray[np.bool_]:
    return bounds >= floors[:, None]


def _reach_coded(coded: CodedHeads, heads: FloatArray, floors: FloatArray) -> npt.NDArray[np.bool_]:
    blocks = coded.reached(heads, floors, threading.Event())
    return on_a_worker(lambda: np.hstack([block for _, block in blocks]))


def _cheapest(
    tries: Iterable[_Try], cost_of: Callable[[_Try], tuple[float, bool]]
) -> tuple[float, FloatArray, Int8 | None]:
    """Cost, directions and int8 of the cheapest try, from narrow to wide as long as it may pay."""
    best: tuple[float, FloatArray, Int8 | None] = np.inf, np.empty((0, 0), np.float32), None
    for one in tries:
        cost, is_wanting = cost_of(one)
        if cost < best[0]:
            best = cost, one.directions, one.int8
        elif not is_wanting:
            break  # wider heads save less than they cost
    return best


def _wants(
    items: FloatArray, references: FloatArray, basis: FloatArray, width: int, share: float
) -> FloatArray:
    """The share of references that every item wants by itself; its group will want more."""
    ((likely, bounds),) = bounds_of(items, references, basis, [width])
    return np.asarray((bounds >= floors_of(likely, share)[:, None]).mean(axis=1), dtype=np.float32)
