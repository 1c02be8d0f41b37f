"""Exact m_k for less than the whole product: heads screen, full embeddings decide.

    1  items are put in groups of similar ones
    2  a sample of the bank guesses each item's floor: a score that its k best should all reach
    3  products of bounding heads (`bounds.py`) tell which references may reach the floor of any
       item of a group
    4  those are scored in full, the whole group in one product; the k best are the answer

What the guarantee is: a reference that is left out has a bound below the floor, so its score is
below too, whatever the data, worst-case rounding included. An item proves its floor by finding k
scores that reach it; one that can't is scored in full against the whole bank. So the means are
those of the whole product but for the order in which a float32 sum is added up.

How much it saves depends on the data alone: much where the spectrum falls, as it does in real
embeddings; nothing where all directions weigh the same. `pruning_plan.py` looks at a
sample and says which it is.
"""

import threading
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Done, Embeddings, Progress
from nnnorm.means.bounds import Heads, bounding_heads
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    KeepBestValues,
    Products,
    count_threads,
    strips_in_order,
)

__all__ = [
    "BLOCK",
    "GROUP",
    "LOOK_PLAIN",
    "N_SAMPLED",
    "Room",
    "Screen",
    "floors_of",
    "screened_means",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Items that are scored together, references looked through at a time, and those that guess floors.
GROUP, BLOCK, N_SAMPLED = 24, 2048, 8192
_STRIP, _FETCHED = 20 * GROUP, 1024
# Work per score besides its multiply-adds, in multiply-adds, measured on two cores: looking through
# a whole product, and fetching what is scored in full, from memory or from where it is stored.
LOOK_PLAIN, _FETCH, _FETCH_STORED = 60, 500, 2500


@dataclass(frozen=True, eq=False)
class Screen:
    """How to screen: made by `plan_screen` (`pruning_plan.py`).

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
    >>> from nnnorm.io import open_embeddings
    >>> from nnnorm.means.pruning_plan import plan_screen
    >>> from nnnorm.scoring import top_means
    >>> rng = np.random.default_rng(0)
    >>> rows, columns = (rng.normal(size=(n, 32)) * 0.9 ** np.arange(32) for n in (10, 20_000))
    >>> scores = Products(open_embeddings(rows), open_embeddings(columns))
    >>> found = screened_means(scores, 5, plan_screen(scores, 5))
    >>> bool(np.allclose(found, top_means(scores, 5), atol=1e-5))
    True
    """
    n_rows, n_columns = scores.shape
    room = Room(n_columns, scores.columns, memory_budget)
    bank = _Bank(scores.columns, k, screen, room)
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


def floors_of(likely: FloatArray, share: float) -> FloatArray:
    """A score per item that a share of the whole bank should reach, from scores with a sample.

    Rarely too high: an item that finds fewer than k pays for the whole bank.

    Parameters
    ----------
    likely : ndarray, shape (n_items, n_sampled)
        Partitioned in place.
    share : float

    Returns
    -------
    ndarray, shape (n_items,)

    Examples
    --------
    >>> floors_of(np.arange(1000, dtype=np.float32)[None], 0.01).tolist()  # the 19th of 1,000
    [981.0]
    """
    expected = share * likely.shape[1]
    rank = int(np.ceil(expected + 2.5 * np.sqrt(expected) + 1))
    likely.partition(-rank, axis=1)
    return likely[:, -rank].copy()


class Room:
    """What the memory budget has room for.

    Parameters
    ----------
    n_columns : int
    columns : Embeddings, shape (n_columns, dim)
    memory_budget : int

    Attributes
    ----------
    widest : int
        Width of the widest heads.
    is_widened : bool
        Whether stored columns can be held as float32.
    fetch : int
        Work of fetching a column, in multiply-adds.
    most_wanted, most_share : int and float
        Columns, and the share of all, that a group may want; with more it is scored with all.
    """

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
        worth_fetching = min(0.4, (columns.dim + LOOK_PLAIN) / (columns.dim + self.fetch))
        self.most_wanted = min(int(worth_fetching * n_columns), self._worker // (4 * GROUP))
        self.most_share = self.most_wanted / n_columns

    def n_filled(self, width: int) -> int:
        """Columns whose heads are made at a time: whole blocks."""
        row_bytes = 4 * (self._dim + 3 * width)
        return max(1, min(N_SAMPLED, self._worker // row_bytes) // BLOCK) * BLOCK

    def n_strip(self, held_bytes: int, k: int, most: int) -> int:
        """Rows per strip: whole groups."""
        left = (self._budget - held_bytes) // count_threads() - self._worker
        left -= 12 * _FETCHED * self._dim  # a group's references, as stored and as float32
        # Its scores with the sample, a block with its mask, its group's wants, the best of all;
        # then four numbers for every block.
        per_row = 4 * N_SAMPLED + 6 * BLOCK + self._n_columns // GROUP + 4 * (10 * k + 128)
        per_row += 32 * self._n_columns // BLOCK
        return max(1, min(_STRIP, most, left // per_row) // GROUP) * GROUP


class _Bank:
    """References with their heads, and the way from a strip of items to their means."""

    def __init__(self, columns: Embeddings, k: int, screen: Screen, room: Room) -> None:
        self._k, self._directions, self._most_wanted = k, screen.directions, room.most_wanted
        dim, width = screen.directions.shape
        self._heads = Heads(len(columns), width, BLOCK)
        held = np.empty(columns.shape if screen.is_widened else (0, dim), dtype=np.float32)

        def fill(start: int, end: int) -> None:
            block = columns.rows(start, end)
            self._heads.fill(start, bounding_heads(block, screen.directions, is_item=False))
            if screen.is_widened:
                held[start:end] = block

        for _ in strips_in_order(fill, len(columns), room.n_filled(width), threading.Event()):
            pass
        self._columns = Embeddings([held], name=columns.name) if screen.is_widened else columns
        self.held_bytes = self._heads.nbytes + held.nbytes
        sample = bounding_heads(columns.take(screen.sample), screen.directions, is_item=False)
        sample[:, width:] = 0  # the likeliest scores, not the highest possible
        self._sample = Heads(len(sample), width, BLOCK)
        self._sample.fill(0, sample)
        self._share = k / len(columns)

    def means(self, items: FloatArray, stop: threading.Event) -> FloatArray:
        """Find the means of a strip."""
        heads = bounding_heads(items, self._directions, is_item=True)
        floors = floors_of(self._sample.products(heads), self._share)
        starts = np.arange(0, len(items), GROUP)
        wanted = self._wanted(heads, floors, starts, stop)
        # Fresh memory for every group would cost more than the products made in it.
        references = np.empty((_FETCHED, items.shape[1]), dtype=np.float32)
        scores = np.empty(GROUP * self._most_wanted, dtype=np.float32)
        means = np.empty(len(items), dtype=np.float32)
        unproven: list[int] = []
        for start, columns in zip(starts, wanted, strict=True):
            if stop.is_set():
                return means
            group = slice(start, start + GROUP)
            best = self._best(items[group], np.flatnonzero(columns), references, scores)
            if best is None:
                unproven += range(start, min(start + GROUP, len(items)))
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
        wanted = np.zeros((len(starts), len(self._columns)), dtype=bool)
        n_whole = len(heads) // GROUP
        for columns, reached in self._heads.reached(heads, floors, stop):
            whole = reached[: n_whole * GROUP].reshape(n_whole, GROUP, reached.shape[1])
            wanted[:n_whole, columns] = whole.any(axis=1)
            if n_whole < len(starts):
                wanted[-1, columns] = reached[n_whole * GROUP :].any(axis=0)
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
        for first in range(0, len(self._columns), BLOCK):
            if stop.is_set():
                break
            last = min(first + BLOCK, len(self._columns))
            best.update(items @ self._columns.rows(first, last).T, first)
        return np.asarray(best.finish().mean(axis=1, dtype=np.float64), dtype=np.float32)
