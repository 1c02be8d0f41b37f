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
from nnnorm.reducers import KeepBestValues
from nnnorm.scores import DEFAULT_MEMORY_BUDGET, Products, Progress
from nnnorm.threads import count_threads, strips_in_order

__all__ = ["Screen", "plan_screen", "screened_means"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

_GROUP = 24
_STRIP = 20 * _GROUP
_BLOCK = 2048
_N_SAMPLED, _N_TRIED = 8192, 4
# Work per pair besides a product's multiply-adds, in multiply-adds; measured (docs/speed.md).
_LOOK_PLAIN, _LOOK, _FETCH, _FETCH_STORED = 60, 35, 500, 2500
# The part of the budget that columns and their heads may take.
_HELD = 0.75


@dataclass(frozen=True, eq=False)
class Screen:
    """How to screen: made by `plan_screen`.

    Attributes
    ----------
    directions : ndarray, shape (dim, width)
        What heads are made of.
    order : ndarray, shape (n_rows,)
        Rows, similar ones together.
    sample : ndarray, shape (n_sampled,)
        Columns that guess the floors.
    cost : float
        Expected time over that of the whole product.
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
        Heads of all columns have to fit into half of it; columns that are stored as something
        else than float32 are widened once if there is room for both.

    Returns
    -------
    Screen or None
        None if there is no room, or too little to screen.

    Examples
    --------
    >>> from nnnorm.embeddings import open_embeddings
    >>> few = open_embeddings(np.eye(4))
    >>> plan_screen(Products(few, few), 1) is None
    True
    """
    n_rows, n_columns = scores.shape
    dim = scores.rows.dim
    # Beside columns held as float32 there should be room for heads of a quarter of their width.
    is_widened = not scores.columns.in_memory and 5 * n_columns * dim <= memory_budget * _HELD
    room = memory_budget * _HELD - 4 * n_columns * dim if is_widened else memory_budget // 2
    widest = min(dim, int(room) // (4 * n_columns))
    is_full = count_threads() * _worker_bytes(n_columns, dim) > memory_budget // 4
    if is_full or widest < 16 or n_columns < max(2 * _N_SAMPLED, 8 * k):
        return None
    widths = 16 * np.unique(np.linspace(1, widest // 16, 16).astype(int)) - N_BOUNDS
    rng = np.random.default_rng(0)
    basis = principal_basis(scores.rows, scores.columns, rng)
    order = _similar_together(scores.rows, basis[:, :32])
    sample = np.sort(rng.choice(n_columns, _N_SAMPLED, replace=False))
    groups = np.linspace(0, max(0, n_rows - _GROUP), _N_TRIED).astype(int)
    items = scores.rows.take(order[(groups[:, None] + np.arange(_GROUP)).ravel() % n_rows])
    references = scores.columns.take(sample[::2])
    n_best = max(1, round(k * len(references) / n_columns))
    floors = np.partition(items @ references.T, -n_best, axis=1)[:, -n_best, None]
    fetch = _FETCH if is_widened or scores.columns.in_memory else _FETCH_STORED
    costs = []
    for bounds in bounds_of(items, references, basis, widths):
        fetched = (bounds >= floors).reshape(_N_TRIED, _GROUP, -1).any(axis=1).mean()
        costs.append(_LOOK + fetched * (dim + fetch))
    costs = (widths * (1 + dim / n_rows + _N_SAMPLED / n_columns) + costs) / (dim + _LOOK_PLAIN)
    best = int(np.argmin(costs))
    directions = np.ascontiguousarray(basis[:, : widths[best]])
    return Screen(directions, order, sample, float(costs[best]), is_widened)


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
    bank = _Bank(scores.columns, k, screen)
    means = np.empty(n_rows, dtype=np.float32)
    n_workers = count_threads()
    left = (memory_budget - bank.held_bytes) // n_workers - _worker_bytes(n_columns, bank.dim)
    # Per row: its scores with the sample, a block with its mask, its share of what is wanted.
    n_strip = left // (4 * _N_SAMPLED + 6 * _BLOCK + n_columns // _GROUP)
    n_strip = max(_GROUP, min(_STRIP, -(-n_rows // n_workers), n_strip) // _GROUP * _GROUP)
    stop, lock, done = threading.Event(), threading.Lock(), [0]

    def work(start: int, end: int) -> None:
        rows = screen.order[start:end]
        means[rows] = bank.means(scores.rows.take(rows), stop)
        if progress is not None:
            with lock:
                done[0] += (end - start) * n_columns
                progress(done[0], n_rows * n_columns)

    for _ in strips_in_order(work, n_rows, n_strip, stop):
        pass
    return means


def _worker_bytes(n_columns: int, dim: int) -> int:
    """A group's references, as stored and as float32, and its scores with all there are."""
    return 8 * _BLOCK * dim + 4 * _GROUP * n_columns


class _Bank:
    """References with their heads, and the way from a strip of items to their means."""

    def __init__(self, columns: Embeddings, k: int, screen: Screen) -> None:
        self._k, self._directions = k, screen.directions
        self.dim, width = screen.directions.shape
        self._heads = np.empty((len(columns), width + N_BOUNDS), dtype=np.float32)
        held = np.empty(columns.shape if screen.is_widened else (0, self.dim), dtype=np.float32)
        for start, block in columns.blocks():
            here = slice(start, start + len(block))
            self._heads[here] = bounding_heads(block, screen.directions, is_item=False)
            if screen.is_widened:
                held[here] = block
        self._columns = Embeddings([held], name=columns.name) if screen.is_widened else columns
        self.held_bytes = self._heads.nbytes + held.nbytes
        self._sample = self._heads[screen.sample]
        self._sample[:, width:] = 0  # the likeliest scores, not the highest possible
        expected = k * len(screen.sample) / len(columns)
        self._rank = int(np.ceil(expected + 2.5 * np.sqrt(expected) + 1))

    def means(self, items: FloatArray, stop: threading.Event) -> FloatArray:
        """Find the means of a strip."""
        heads = bounding_heads(items, self._directions, is_item=True)
        floors = self._guess_floors(heads)
        starts = np.arange(0, len(items), _GROUP)
        wanted = self._wanted(heads, floors, starts, stop)
        # Fresh memory for every group would cost more than the products made in it.
        references = np.empty((_BLOCK, items.shape[1]), dtype=np.float32)
        scores = np.empty(_GROUP * len(self._heads), dtype=np.float32)
        means = np.empty(len(items), dtype=np.float32)
        unproven: list[int] = []
        for start, columns in zip(starts, wanted, strict=True):
            group = slice(start, start + _GROUP)
            best = self._best(items[group], np.flatnonzero(columns), references, scores, stop)
            if best is None:
                unproven += range(start, min(start + _GROUP, len(items)))
                continue
            means[group] = best.mean(axis=1, dtype=np.float64)
            unproven += (start + np.flatnonzero(best.min(axis=1) < floors[group])).tolist()
        if unproven:
            means[unproven] = self._in_full(items[unproven], stop)
        return means

    def _guess_floors(self, heads: FloatArray) -> FloatArray:
        scores = heads @ self._sample.T
        cut = scores.shape[1] - self._rank
        scores.partition(cut, axis=1)
        return scores[:, cut].copy()

    def _wanted(
        self, heads: FloatArray, floors: FloatArray, starts: IntArray, stop: threading.Event
    ) -> npt.NDArray[np.bool_]:
        """Which references may reach the floor of a group's item: ``(n_groups, n_columns)``."""
        wanted = np.empty((len(starts), len(self._heads)), dtype=bool)
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
        stop: threading.Event,
    ) -> FloatArray | None:
        """The k best scores of every item of a group with these references."""
        if len(columns) < self._k:
            return None
        scores = scores[: len(items) * len(columns)].reshape(len(items), len(columns))
        for first in range(0, len(columns), _BLOCK):
            if stop.is_set():
                break
            here = columns[first : first + _BLOCK]
            taken = self._columns.take(here, out=references[: len(here)])
            np.matmul(items, taken.T, out=scores[:, first : first + _BLOCK])
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


def _similar_together(rows: Embeddings, directions: FloatArray) -> IntArray:
    """Put rows in an order in which groups of neighbours are similar: halved again and again.

    A part is cut at its middle along the direction in which it is longest.
    """
    places = np.empty((len(rows), directions.shape[1]), dtype=np.float32)
    for start, block in rows.blocks():
        np.matmul(block, directions, out=places[start : start + len(block)])
    order = np.arange(len(rows))
    parts = [(0, len(rows))]
    while parts:
        first, last = parts.pop()
        n_groups = -(-(last - first) // _GROUP)
        if n_groups < 2:
            continue
        part = order[first:last]
        here = places[part]
        here -= here.mean(axis=0)
        longest = here[np.argmax(np.einsum("ij,ij->i", here, here))]
        for _ in range(4):
            longest = here.T @ (here @ longest)
            longest /= np.linalg.norm(longest) + np.float32(1e-30)
        middle = n_groups // 2 * _GROUP
        order[first:last] = part[np.argpartition(here @ longest, middle)]
        parts += [(first, first + middle), (first + middle, last)]
    return order
