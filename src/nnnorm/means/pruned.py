"""Exact means from part of the product: upper bounds rule most references out.

    1  items are put in groups of similar ones (`grouping.py`)
    2  scores with a sample of the references estimate a threshold per item, which its k best scores
       should reach
    3  bounds (`bounds.py`) tell which references may reach the threshold of an item of a group: the
       group's candidates
    4  the group is scored against its candidates in one product, and the k best scores are kept

Why this is exact: a reference that is ruled out has an upper bound below the threshold, so its
score is below the threshold as well, whatever the data, worst-case rounding included. If an item
has k scores that reach its threshold, they are its k best. Any other item is scored against all
references. The means thus equal those of the whole product up to the order of a float32 sum.

How much is saved depends on the data alone: much where the spectrum falls steeply, nothing where
all directions have the same variance. `pruning_plan.py` estimates it on a sample.
"""

import threading
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Done, Embeddings, Progress
from nnnorm.means.bounds import bounding_vectors
from nnnorm.means.exact import exact_strip
from nnnorm.means.grouping import group_similar
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Products,
    count_threads,
    strips_in_order,
)

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Items that share their candidates, and references whose scores estimate the thresholds.
GROUP_SIZE, N_SAMPLED = 24, 8192
# References per product of bounds, items per strip, candidates gathered at a time.
_BLOCK, _STRIP, _GATHERED = 2048, 20 * GROUP_SIZE, 1024
# A group with a larger share of candidates is scored against all references: gathering costs about
# as much as the product it saves.
_MOST_CANDIDATES = 0.3


@dataclass(frozen=True, eq=False)
class PruningPlan:
    """How to prune, as `plan_pruning` (`pruning_plan.py`) chose it.

    Attributes
    ----------
    directions : ndarray, shape (dim, width)
        Directions of the bounds.
    sample : ndarray, shape (n_sampled,)
        Columns that estimate the thresholds.
    work : float
        Expected multiply-adds relative to the whole product; infinite where too few references
        can be ruled out.
    is_widened : bool
        Whether columns that are not stored as float32 are converted once and held.
    """

    directions: FloatArray
    sample: IntArray
    work: float
    is_widened: bool = False


def pruned_means(
    scores: Products,
    k: int,
    plan: PruningPlan,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Compute the mean of the k best scores of every row, as `top_means` does.

    Parameters
    ----------
    scores : Products, shape (n_rows, n_columns)
    k : int
    plan : PruningPlan
    memory_budget : int
        Bytes beyond the inputs and the result.
    progress : callable, optional

    Returns
    -------
    ndarray, shape (n_rows,), float32

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> from nnnorm.means.pruning_plan import plan_pruning
    >>> from nnnorm.scoring import top_means
    >>> rng = np.random.default_rng(0)
    >>> rows, columns = (rng.normal(size=(n, 32)) * 0.9 ** np.arange(32) for n in (10, 20_000))
    >>> scores = Products(open_embeddings(rows), open_embeddings(columns))
    >>> found = pruned_means(scores, 5, plan_pruning(scores, 5))
    >>> bool(np.allclose(found, top_means(scores, 5), atol=1e-5))
    True
    """
    means = np.empty(scores.shape[0], dtype=np.float32)
    done = Done(progress, scores.shape[0] * scores.shape[1])
    pruning = Pruning(scores, k, plan, memory_budget)
    pruning.fill(means, pruning.order, done)
    return means


def estimate_thresholds(sampled: FloatArray, share: float) -> FloatArray:
    """Estimate a score per item that a given share of all references reaches.

    The estimate errs on the low side: an item with fewer than k scores above its threshold is
    scored against all references.

    Parameters
    ----------
    sampled : ndarray, shape (n_items, n_sampled)
        Scores with a sample of the references; partitioned in place.
    share : float

    Returns
    -------
    ndarray, shape (n_items,)

    Examples
    --------
    >>> estimate_thresholds(np.arange(1000, dtype=np.float32)[None], 0.01).tolist()  # rank 19
    [981.0]
    """
    expected = share * sampled.shape[1]
    rank = int(np.ceil(expected + 2.5 * np.sqrt(expected) + 1))
    sampled.partition(-rank, axis=1)
    return sampled[:, -rank].copy()


class MemoryPlan:
    """What fits into the memory budget.

    Parameters
    ----------
    columns : Embeddings, shape (n_columns, dim)
    memory_budget : int

    Attributes
    ----------
    widest : int
        Largest width of the bounds.
    is_widened : bool
        Whether columns that are not float32 in memory can be held as float32.
    most_candidates : int
        Most candidates of a group.
    """

    def __init__(self, columns: Embeddings, memory_budget: int) -> None:
        n_columns, dim = columns.shape
        self._shape, self._budget = columns.shape, memory_budget
        three_quarters = memory_budget * 3 // 4
        # Bounds of a quarter of the width should fit beside columns that are held as float32.
        self.is_widened = not columns.in_memory and 5 * n_columns * dim <= three_quarters
        left = three_quarters - 4 * n_columns * dim if self.is_widened else memory_budget // 2
        # Bounds of more than half of the width seldom save anything.
        self.widest = min(max(16, dim // 2), dim, left // (4 * n_columns))
        self._per_thread = memory_budget // (8 * count_threads())
        self.most_candidates = min(
            int(_MOST_CANDIDATES * n_columns), self._per_thread // (4 * GROUP_SIZE)
        )

    def n_bounded(self, width: int) -> int:
        """Columns whose bounds are computed at a time: whole blocks."""
        row_bytes = 4 * (self._shape[1] + 3 * width)
        return max(1, min(N_SAMPLED, self._per_thread // row_bytes) // _BLOCK) * _BLOCK

    def n_strip(self, held_bytes: int, k: int, most: int) -> int:
        """Rows per strip: whole groups."""
        n_columns, dim = self._shape
        left = (self._budget - held_bytes) // count_threads() - self._per_thread
        left -= 12 * _GATHERED * dim  # candidates as stored and as float32
        # Per row: sampled scores, a block of bounds with its mask, a share of the group's
        # candidates, the best scores of rows that are scored in full, four numbers per block.
        per_row = 4 * N_SAMPLED + 6 * _BLOCK + n_columns // GROUP_SIZE + 4 * (10 * k + 128)
        per_row += 32 * n_columns // _BLOCK
        return max(1, min(_STRIP, most, left // per_row) // GROUP_SIZE) * GROUP_SIZE


class Pruning:
    """References with their bounds, and the means of rows by pruning.

    Parameters
    ----------
    scores : Products, shape (n_rows, n_columns)
    k : int
    plan : PruningPlan
    memory_budget : int

    Attributes
    ----------
    order : ndarray, shape (n_rows,)
        Row numbers, similar rows together.
    """

    def __init__(self, scores: Products, k: int, plan: PruningPlan, memory_budget: int) -> None:
        columns, memory = scores.columns, MemoryPlan(scores.columns, memory_budget)
        self._rows, self._k, self._directions = scores.rows, k, plan.directions
        self._most_candidates = memory.most_candidates
        dim, width = plan.directions.shape
        self.order = np.arange(scores.shape[0])
        if np.isfinite(plan.work):
            self.order = group_similar(
                scores.rows,
                plan.directions[:, :64],
                group_size=GROUP_SIZE,
                memory_budget=memory_budget // 4,
            )
        held = np.empty(columns.shape if plan.is_widened else (0, dim), dtype=np.float32)
        sample = bounding_vectors(columns.take(plan.sample), plan.directions, is_item=False)
        self._sample = sample[:, :width].copy()
        self._bounds = np.empty((len(columns), sample.shape[1]), dtype=np.float32)

        def bound(start: int, end: int) -> None:
            block = columns.rows(start, end)
            self._bounds[start:end] = bounding_vectors(block, plan.directions, is_item=False)
            if plan.is_widened:
                held[start:end] = block

        for _ in strips_in_order(bound, len(columns), memory.n_bounded(width), threading.Event()):
            pass
        self._columns = Embeddings([held], name=columns.name) if plan.is_widened else columns
        held_bytes = self._bounds.nbytes + held.nbytes
        most = -(-scores.shape[0] // count_threads())
        self._n_strip = memory.n_strip(held_bytes, k, most)

    def fill(self, means: FloatArray, rows: IntArray, done: Done) -> None:
        """Compute the means of these rows on all threads and write them into `means`."""
        stop = threading.Event()

        def work(start: int, end: int) -> None:
            means[rows[start:end]] = self.strip(rows[start:end], stop)
            if not stop.is_set():
                done.add((end - start) * len(self._columns))

        for _ in strips_in_order(work, len(rows), self._n_strip, stop):
            pass

    def strip(self, rows: IntArray, stop: threading.Event) -> FloatArray:
        """Compute the means of a strip of rows on the calling thread."""
        items = self._rows.take(rows)
        vectors = bounding_vectors(items, self._directions, is_item=True)
        sampled = vectors[:, : self._sample.shape[1]] @ self._sample.T
        thresholds = estimate_thresholds(sampled, self._k / len(self._columns))
        candidates = self._candidates(vectors, thresholds, stop)
        # Buffers that are allocated once: fresh memory per group costs more than its product.
        gathered = np.empty((_GATHERED, items.shape[1]), dtype=np.float32)
        scores = np.empty(GROUP_SIZE * self._most_candidates, dtype=np.float32)
        means = np.empty(len(items), dtype=np.float32)
        unproven: list[int] = []
        for number, columns in enumerate(candidates):
            if stop.is_set():
                return means
            start = number * GROUP_SIZE
            group = slice(start, start + GROUP_SIZE)
            best = self._best(items[group], np.flatnonzero(columns), gathered, scores)
            if best is None:
                unproven += range(start, min(start + GROUP_SIZE, len(items)))
                continue
            means[group] = best.mean(axis=1, dtype=np.float64)
            unproven += (start + np.flatnonzero(best.min(axis=1) < thresholds[group])).tolist()
        if unproven:
            means[unproven] = exact_strip(items[unproven], self._columns, self._k, stop)
        return means

    def exact_strip(self, rows: IntArray, stop: threading.Event) -> FloatArray:
        """Compute the means of a strip from the whole product, on the calling thread."""
        return exact_strip(self._rows.take(rows), self._columns, self._k, stop)

    def _candidates(
        self, vectors: FloatArray, thresholds: FloatArray, stop: threading.Event
    ) -> npt.NDArray[np.bool_]:
        """Which references may reach a threshold in a group: ``(n_groups, n_columns)``."""
        n_whole, n_rest = divmod(len(vectors), GROUP_SIZE)
        candidates = np.zeros((n_whole + (n_rest > 0), len(self._columns)), dtype=bool)
        buffer = np.empty(len(vectors) * _BLOCK, dtype=np.float32)
        for first in range(0, len(self._columns), _BLOCK):
            if stop.is_set():
                break
            block = self._bounds[first : first + _BLOCK]
            bounds = buffer[: len(vectors) * len(block)].reshape(len(vectors), len(block))
            np.matmul(vectors, block.T, out=bounds)
            reaches = bounds >= thresholds[:, None]
            columns = slice(first, first + len(block))
            whole = reaches[: n_whole * GROUP_SIZE].reshape(n_whole, GROUP_SIZE, len(block))
            candidates[:n_whole, columns] = whole.any(axis=1)
            if n_rest:
                candidates[-1, columns] = reaches[n_whole * GROUP_SIZE :].any(axis=0)
        return candidates

    def _best(
        self, items: FloatArray, columns: IntArray, gathered: FloatArray, scores: FloatArray
    ) -> FloatArray | None:
        """The k best scores of a group with its candidates; None if there are too few or many."""
        if not self._k <= len(columns) <= self._most_candidates:
            return None
        scores = scores[: len(items) * len(columns)].reshape(len(items), len(columns))
        for first in range(0, len(columns), _GATHERED):
            here = columns[first : first + _GATHERED]
            taken = self._columns.take(here, out=gathered[: len(here)])
            np.matmul(items, taken.T, out=scores[:, first : first + _GATHERED])
        cut = len(columns) - self._k
        scores.partition(cut, axis=1)
        return scores[:, cut:]
