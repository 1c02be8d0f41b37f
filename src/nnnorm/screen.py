"""Exact m_k for less than the whole product: heads screen, full embeddings decide.

    1  items are put in groups of similar ones
    2  a sample of the bank guesses each item's floor: a score that its k best should all reach
    3  products of bounding heads (`heads.py`) tell which references may reach the floor of any item
       of a group
    4  those are scored in full, the whole group in one product; the k best are the answer

What the guarantee is: a reference that is left out has a bound below the floor, so its score is
below too, whatever the data, worst-case rounding included. An item proves its floor by finding k
scores that reach it; one that can't is scored in full against the whole bank. So the means are
those of the whole product but for the order in which a float32 sum is added up.

How much it saves depends on the data alone: much where the spectrum falls, as it does in real
embeddings; nothing where all directions weigh the same. `plan_screen` looks at a sample and says
which it is.
"""

import threading
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings
from nnnorm.heads import N_BOUNDS, bounding_heads, bounds_of, principal_basis
from nnnorm.order import similar_together
from nnnorm.reducers import KeepBestValues
from nnnorm.scores import DEFAULT_MEMORY_BUDGET, Done, Products, Progress
from nnnorm.threads import count_threads, strips_in_order
from nnnorm.topk import check_k

__all__ = ["Screen", "plan_screen", "screened_means"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

_GROUP = 24
_STRIP = 20 * _GROUP
_BLOCK, _FETCHED = 2048, 1024
_N_SAMPLED, _N_TRIED = 8192, 12
# Where more items than this want too much each, the gallery is not even put in order; nor where
# that would take more than this share of the whole product.
_HOPELESS, _TOO_LONG = 0.8, 0.2
# Work per pair besides a product's multiply-adds, in multiply-adds; measured on two cores.
_LOOK_PLAIN, _LOOK, _FETCH, _FETCH_STORED = 60, 35, 500, 2500
# Multiply-adds of one core in the time in which a row of a large gallery finds its group, and how
# large that is. More cores make it no quicker.
_ORDER, _LARGE = 400_000, 8192


@dataclass(frozen=True, eq=False)
class Screen:
    """How to screen: made by `plan_screen`.

    Attributes
    ----------
    directions : ndarray, shape (dim, width)
        What heads are made of.
    order : ndarray, shape (n_rows,)
        Rows, similar ones together; as they are where nothing can be gained.
    sample : ndarray, shape (n_sampled,)
        Columns that guess the floors.
    cost : float
        Expected time over that of the whole product; infinite where nothing can be gained.
    is_widened : bool
        Whether stored columns are held as float32.
    """

    directions: FloatArray
    order: IntArray
    sample: IntArray
    cost: float
    is_widened: bool = False


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
    dim, room = scores.rows.dim, _Room(n_columns, scores.columns, memory_budget)
    has_few = n_columns < 2 * _N_SAMPLED or room.most_wanted < 4 * k
    if has_few or room.widest < 16 or scores.offset is not None:
        return None
    rng = np.random.default_rng(0)
    basis = principal_basis(scores.rows, scores.columns, rng)
    sample = np.sort(rng.choice(n_columns, _N_SAMPLED, replace=False))
    references = scores.columns.take(sample)
    # Widths that are whole for the processor once the bounds are added.
    widths = 16 * np.unique(np.linspace(1, room.widest // 16, 8).astype(int)) - N_BOUNDS
    some = scores.rows.take(rng.choice(n_rows, min(n_rows, _GROUP), replace=False))
    wants = _wants(some, references[::8], basis, widths[-1], k / n_columns)
    is_hopeless = (wants > room.most_share).mean() > _HOPELESS
    ordering = _ORDER * min(1, n_rows / _LARGE) * count_threads() / n_columns
    if is_hopeless or ordering > _TOO_LONG * (dim + _LOOK_PLAIN):
        return Screen(basis[:, :14].copy(), np.arange(n_rows), sample, np.inf, room.is_widened)
    order = similar_together(
        scores.rows, basis[:, :64], group=_GROUP, memory_budget=memory_budget // 4
    )
    n_groups = max(1, n_rows // _GROUP)
    n_tried = min(_N_TRIED, n_groups, max(1, memory_budget // (4 * 13 * _GROUP * _N_SAMPLED)))
    tried = rng.choice(n_groups, n_tried, replace=False)[:, None] * _GROUP
    tried = np.minimum(tried + np.arange(_GROUP), n_rows - 1)
    items = scores.rows.take(order[tried.ravel()])
    n_best = max(1, round(k * len(references) / n_columns))
    least = np.partition(items @ references.T, -n_best, axis=1)[:, -n_best]
    best, least_cost = 0, np.inf
    for width, (likely, bounds) in zip(
        widths, bounds_of(items, references, basis, widths), strict=True
    ):
        floors = _floors(likely.copy(), k / n_columns)
        reached = (bounds >= floors[:, None]).reshape(len(tried), _GROUP, -1)
        wanted = reached.any(axis=1).mean(axis=1)
        is_whole = wanted > room.most_share
        unproven = np.where(np.repeat(is_whole, _GROUP), 1.0, least < floors).mean()
        fetched = np.where(is_whole, 0.0, wanted).mean()
        cost = fetched * (dim + room.fetch) + unproven * (dim + _LOOK_PLAIN)
        cost += ordering + _LOOK + width * (1 + dim / n_rows + _N_SAMPLED / n_columns)
        if cost < least_cost:
            best, least_cost = width, cost
        elif not is_whole.any():
            break  # wider heads save less than they cost
    directions = np.ascontiguousarray(basis[:, :best])
    expected = float(least_cost / (dim + _LOOK_PLAIN))
    return Screen(directions, order, sample, expected, room.is_widened)


def screened_means(
    scores: Products,
    k: int,
    screen: Screen,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Mean of the k best values of every row, as `top_means` has it.

    Parameters
    ----------
    scores : Products, shape (n_rows, n_columns)
    k : int
    screen : Screen
    memory_budget : int
        Bytes beyond the inputs and the answer.
    progress : callable, optional

    Returns
    -------
    ndarray, shape (n_rows,), float32

    Examples
    --------
    >>> from nnnorm.embeddings import open_embeddings
    >>> from nnnorm.topk import top_means
    >>> rng = np.random.default_rng(0)
    >>> rows, columns = (rng.normal(size=(n, 32)) * 0.9 ** np.arange(32) for n in (10, 20_000))
    >>> scores = Products(open_embeddings(rows), open_embeddings(columns))
    >>> found = screened_means(scores, 5, plan_screen(scores, 5))
    >>> bool(np.allclose(found, top_means(scores, 5), atol=1e-5))
    True
    """
    n_rows, n_columns = scores.shape
    room = _Room(n_columns, scores.columns, memory_budget)
    bank = _Bank(scores.columns, k, screen, room.most_wanted)
    means = np.empty(n_rows, dtype=np.float32)
    n_strip = room.n_strip(bank.held_bytes, k, -(-n_rows // count_threads()))
    stop, done = threading.Event(), Done(progress, n_rows * n_columns)

    def work(start: int, end: int) -> None:
        rows = screen.order[start:end]
        means[rows] = bank.means(scores.rows.take(rows), stop)
        if not stop.is_set():
            done.add((end - start) * n_columns)

    for _ in strips_in_order(work, n_rows, n_strip, stop):
        pass
    return means


def _floors(likely: FloatArray, share: float) -> FloatArray:
    """A score per item that a share of the whole bank should reach, from scores with a sample.

    Rarely too high: an item that finds fewer than k pays for the whole bank. `likely` is
    partitioned in place.
    """
    expected = share * likely.shape[1]
    rank = int(np.ceil(expected + 2.5 * np.sqrt(expected) + 1))
    likely.partition(-rank, axis=1)
    return likely[:, -rank].copy()


def _wants(
    items: FloatArray, references: FloatArray, basis: FloatArray, width: int, share: float
) -> FloatArray:
    """The share of references that every item wants by itself; its group will want more."""
    ((likely, bounds),) = bounds_of(items, references, basis, [width])
    return np.asarray((bounds >= _floors(likely, share)[:, None]).mean(axis=1), dtype=np.float32)


class _Room:
    """What the memory budget has room for."""

    def __init__(self, n_columns: int, columns: Embeddings, memory_budget: int) -> None:
        self._n_columns, self._dim, self._budget = n_columns, columns.dim, memory_budget
        held = memory_budget * 3 // 4
        # Beside columns held as float32 there should be room for heads of a quarter of them.
        self.is_widened = not columns.in_memory and 5 * n_columns * columns.dim <= held
        room = held - 4 * n_columns * columns.dim if self.is_widened else memory_budget // 2
        # Heads of more than half are seldom worth their while.
        self.widest = min(max(16, columns.dim // 2), columns.dim, room // (4 * n_columns))
        self.fetch = _FETCH if self.is_widened or columns.in_memory else _FETCH_STORED
        self._worker = memory_budget // (8 * count_threads())
        # A group that wants more had better be scored with all.
        worth_fetching = min(0.4, (columns.dim + _LOOK_PLAIN) / (columns.dim + self.fetch))
        self.most_wanted = min(int(worth_fetching * n_columns), self._worker // (4 * _GROUP))
        self.most_share = self.most_wanted / n_columns

    def n_strip(self, held_bytes: int, k: int, most: int) -> int:
        """Rows per strip: whole groups."""
        left = (self._budget - held_bytes) // count_threads() - self._worker
        left -= 12 * _FETCHED * self._dim  # a group's references, as stored and as float32
        # Its scores with the sample, a block with its mask, its group's wants, the best of all.
        per_row = 4 * _N_SAMPLED + 6 * _BLOCK + self._n_columns // _GROUP + 4 * (10 * k + 128)
        return max(1, min(_STRIP, most, left // per_row) // _GROUP) * _GROUP


class _Bank:
    """References with their heads, and the way from a strip of items to their means."""

    def __init__(self, columns: Embeddings, k: int, screen: Screen, most_wanted: int) -> None:
        self._k, self._directions, self._most_wanted = k, screen.directions, most_wanted
        dim, width = screen.directions.shape
        self._heads = np.empty((len(columns), width + N_BOUNDS), dtype=np.float32)
        held = np.empty(columns.shape if screen.is_widened else (0, dim), dtype=np.float32)

        def fill(start: int, end: int) -> None:
            block = columns.rows(start, end)
            heads = bounding_heads(block, screen.directions, is_item=False)
            self._heads[start:end] = heads
            if screen.is_widened:
                held[start:end] = block

        for _ in strips_in_order(fill, len(columns), _N_SAMPLED, threading.Event()):
            pass
        self._columns = Embeddings([held], name=columns.name) if screen.is_widened else columns
        self.held_bytes = self._heads.nbytes + held.nbytes
        self._sample = self._heads[screen.sample]
        self._sample[:, width:] = 0  # the likeliest scores, not the highest possible
        self._share = k / len(columns)

    def means(self, items: FloatArray, stop: threading.Event) -> FloatArray:
        """Find the means of a strip."""
        heads = bounding_heads(items, self._directions, is_item=True)
        floors = _floors(heads @ self._sample.T, self._share)
        starts = np.arange(0, len(items), _GROUP)
        wanted = self._wanted(heads, floors, starts, stop)
        # Fresh memory for every group would cost more than the products made in it.
        references = np.empty((_FETCHED, items.shape[1]), dtype=np.float32)
        scores = np.empty(_GROUP * self._most_wanted, dtype=np.float32)
        means = np.empty(len(items), dtype=np.float32)
        unproven: list[int] = []
        for start, columns in zip(starts, wanted, strict=True):
            if stop.is_set():
                return means
            group = slice(start, start + _GROUP)
            best = self._best(items[group], np.flatnonzero(columns), references, scores)
            if best is None:
                unproven += range(start, min(start + _GROUP, len(items)))
                continue
            means[group] = best.mean(axis=1, dtype=np.float64)
            unproven += (start + np.flatnonzero(best.min(axis=1) < floors[group])).tolist()
        if unproven:
            means[unproven] = self._in_full(items[unproven], stop)
        return means

    def _wanted(
        self, heads: FloatArray, floors: FloatArray, starts: IntArray, stop: threading.Event
    ) -> npt.NDArray[np.bool_]:
        """Which references may reach the floor of a group's item: ``(n_groups, n_columns)``."""
        wanted = np.zeros((len(starts), len(self._heads)), dtype=bool)
        buffer = np.empty(len(heads) * _BLOCK, dtype=np.float32)
        n_whole = len(heads) // _GROUP * _GROUP
        for first in range(0, len(self._heads), _BLOCK):
            if stop.is_set():
                break
            block = self._heads[first : first + _BLOCK]
            bounds = buffer[: len(heads) * len(block)].reshape(len(heads), len(block))
            np.matmul(heads, block.T, out=bounds)
            reached = bounds >= floors[:, None]
            here = wanted[:, first : first + _BLOCK]
            whole = reached[:n_whole].reshape(-1, _GROUP, len(block))
            whole.any(axis=1, out=here[: len(whole)])
            if n_whole < len(heads):
                reached[n_whole:].any(axis=0, out=here[-1])
        return wanted

    def _best(
        self,
        items: FloatArray,
        columns: IntArray,
        references: FloatArray,
        scores: FloatArray,
    ) -> FloatArray | None:
        """The k best scores of every item of a group with these references."""
        if not self._k <= len(columns) <= self._most_wanted:
            return None
        scores = scores[: len(items) * len(columns)].reshape(len(items), len(columns))
        for first in range(0, len(columns), _FETCHED):
            here = columns[first : first + _FETCHED]
            taken = self._columns.take(here, out=references[: len(here)])
            np.matmul(items, taken.T, out=scores[:, first : first + _FETCHED])
        cut = len(columns) - self._k
        scores.partition(cut, axis=1)
        return scores[:, cut:]

    def _in_full(self, items: FloatArray, stop: threading.Event) -> FloatArray:
        best = KeepBestValues(len(items), self._k)
        for first in range(0, len(self._heads), _BLOCK):
            if stop.is_set():
                break
            last = min(first + _BLOCK, len(self._heads))
            best.update(items @ self._columns.rows(first, last).T, first)
        return np.asarray(best.finish().mean(axis=1, dtype=np.float64), dtype=np.float32)
