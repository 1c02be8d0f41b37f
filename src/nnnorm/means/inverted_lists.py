"""A bank sorted into lists of similar references: what `approximate.py` looks into."""

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import Products, top_k

__all__ = ["Lists", "best_lists"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]


class Lists:
    """A bank sorted into lists of similar rows, none much longer than the average.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    n_lists : int
    rng : Generator
    memory_budget : int
        A sorted copy is made if it takes at most half of what `held_bytes` leaves of it.
    held_bytes : int
        What the references themselves take of it.
    """

    def __init__(
        self,
        references: Embeddings,
        n_lists: int,
        rng: np.random.Generator,
        memory_budget: int,
        held_bytes: int = 0,
    ) -> None:
        n = len(references)
        some = np.sort(rng.choice(n, min(n, 16 * n_lists), replace=False))
        sample = references.take(some)
        centres = _cluster(sample, n_lists, rng, memory_budget)
        nearest = _nearest(references, centres, memory_budget)
        self.order = np.argsort(nearest, kind="stable")
        self.longest = -(-2 * n // n_lists)
        starts = np.searchsorted(nearest[self.order], np.arange(n_lists + 1))
        self.edges = [
            (first, min(first + self.longest, last))
            for start, last in itertools.pairwise(starts)
            for first in range(int(start), int(last), self.longest)
        ]
        n_bytes = 4 * n * references.dim
        fits = n_bytes <= memory_budget // 2 and n_bytes + held_bytes <= memory_budget * 3 // 4
        self._references = None if fits else references
        self._sorted = np.empty((0, references.dim), dtype=np.float32)
        if fits:
            self._sorted = _sort_rows(references, self.order)
        self.held_bytes = n_bytes if fits else held_bytes
        self.centres = np.stack([self.rows(number).mean(axis=0) for number in range(len(self))])

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def sizes(self) -> IntArray:
        """How many references each list holds."""
        return np.array([last - first for first, last in self.edges])

    def rows(self, number: int) -> FloatArray:
        """References of a list, shape (n, dim)."""
        first, last = self.edges[number]
        if self._references is not None:
            return self._references.take(self.order[first:last])
        return self._sorted[first:last]


def _sort_rows(references: Embeddings, order: IntArray) -> FloatArray:
    """Rows in that order, read one after another: faster than jumping about in a mapped file."""
    ordered = np.empty(references.shape, dtype=np.float32)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    for start, block in references.blocks():
        ordered[place[start : start + len(block)]] = block
    return ordered


def _cluster(
    sample: FloatArray, n_lists: int, rng: np.random.Generator, memory_budget: int
) -> FloatArray:
    """A few rounds of k-means: the lists need not be perfect."""
    centres = sample[rng.choice(len(sample), n_lists, replace=False)]
    rows = Embeddings([sample], name="references")
    for _ in range(5):
        nearest = _nearest(rows, centres, memory_budget)
        order = np.argsort(nearest, kind="stable")
        counts = np.bincount(nearest, minlength=n_lists)
        used = np.flatnonzero(counts)
        starts = (np.cumsum(counts) - counts)[used]
        centres = centres.copy()
        centres[used] = np.add.reduceat(sample[order], starts, axis=0) / counts[used, None]
    return centres


def _nearest(rows: Embeddings, centres: FloatArray, memory_budget: int) -> IntArray:
    """The centre at the least distance from every row."""
    offset = (centres**2).sum(axis=1) / 2
    products = Products(rows, Embeddings([centres], name="centres"), offset=offset)
    return top_k(products, 1, memory_budget=memory_budget).indices[:, 0]


def best_lists(scores: FloatArray, n_probes: int) -> IntArray:
    """Every item's best lists, in no order, shape (n_items, n_probes).

    Parameters
    ----------
    scores : ndarray, shape (n_items, n_lists)
        Of items with the centres.
    n_probes : int

    Examples
    --------
    >>> best_lists(np.array([[0.1, 0.9, 0.5]], dtype=np.float32), 2).tolist()
    [[1, 2]]
    """
    n_items, n_lists = scores.shape
    cut = n_lists - n_probes
    least = np.partition(scores, cut, axis=1)[:, cut, None]
    found = np.flatnonzero(scores >= least)  # several times faster than argpartition
    if len(found) > n_items * n_probes:  # ties
        return np.argpartition(scores, cut, axis=1)[:, cut:]
    return (found % n_lists).reshape(n_items, n_probes)
