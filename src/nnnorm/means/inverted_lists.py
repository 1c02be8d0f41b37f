"""Inverted lists: references clustered by k-means, for `approximate.py` to probe."""

import itertools
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import Products, top_k

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]


class InvertedLists:
    """References clustered into lists, none more than twice as long as the average.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    n_lists : int
    rng : Generator
    memory_budget : int
        Bytes. The references are copied in the order of the lists if the copy fits.
    held_bytes : int
        Bytes of the budget that the references themselves take.

    Attributes
    ----------
    centroids : ndarray, shape (n_lists, dim)
    order : ndarray, shape (n_references,)
        Reference numbers, list by list.
    edges : list of (int, int)
        First and last position of every list in `order`.
    longest : int
        Most references in a list.
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
        centroids = _cluster(sample, n_lists, rng, memory_budget)
        nearest = _nearest(references, centroids, memory_budget)
        order = np.argsort(nearest, kind="stable")
        longest = -(-2 * n // n_lists)
        starts = np.searchsorted(nearest[order], np.arange(n_lists + 1))
        edges = [
            (first, min(first + longest, last))
            for start, last in itertools.pairwise(starts)
            for first in range(int(start), int(last), longest)
        ]
        self._hold(references, order, edges, memory_budget, held_bytes)

    @classmethod
    def restore(
        cls,
        references: Embeddings,
        order: IntArray,
        edges: Iterable[tuple[int, int]],
        memory_budget: int,
        held_bytes: int = 0,
    ) -> "InvertedLists":
        """Make the lists again from the same references and their `order` and `edges`."""
        lists = object.__new__(cls)
        lists._hold(references, order, list(edges), memory_budget, held_bytes)
        return lists

    def _hold(
        self,
        references: Embeddings,
        order: IntArray,
        edges: list[tuple[int, int]],
        memory_budget: int,
        held_bytes: int,
    ) -> None:
        self.order, self.edges = order, edges
        self.longest = max(last - first for first, last in edges)
        n_bytes = 4 * len(order) * references.dim
        fits = n_bytes <= memory_budget // 2 and n_bytes + held_bytes <= memory_budget * 3 // 4
        self._references = None if fits else references
        self._sorted = np.empty((0, references.dim), dtype=np.float32)
        if fits:
            self._sorted = _sort_rows(references, self.order)
        self.held_bytes = n_bytes if fits else held_bytes
        self.centroids = np.stack([self.rows(number).mean(axis=0) for number in range(len(self))])

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def sizes(self) -> IntArray:
        """Number of references in each list."""
        return np.array([last - first for first, last in self.edges])

    def rows(self, number: int) -> FloatArray:
        """Return the references of a list, shape (n, dim)."""
        first, last = self.edges[number]
        if self._references is not None:
            return self._references.take(self.order[first:last])
        return self._sorted[first:last]


def _sort_rows(references: Embeddings, order: IntArray) -> FloatArray:
    """Copy rows into an order; sequential reads are faster than random ones in a mapped file."""
    ordered = np.empty(references.shape, dtype=np.float32)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    for start, block in references.blocks():
        ordered[place[start : start + len(block)]] = block
    return ordered


def _cluster(
    sample: FloatArray, n_lists: int, rng: np.random.Generator, memory_budget: int
) -> FloatArray:
    """Run five rounds of k-means, which is enough for lists."""
    centroids = sample[rng.choice(len(sample), n_lists, replace=False)]
    rows = Embeddings([sample], name="references")
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
    """Find the centroid at the least distance from every row."""
    offset = (centroids**2).sum(axis=1) / 2
    products = Products(rows, Embeddings([centroids], name="centroids"), offset=offset)
    return top_k(products, 1, memory_budget=memory_budget).indices[:, 0]


def best_lists(scores: FloatArray, n_probes: int) -> IntArray:
    """Find the lists to probe for every item, unordered: shape (n_items, n_probes).

    Parameters
    ----------
    scores : ndarray, shape (n_items, n_lists)
        Scores of items with centroids.
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
