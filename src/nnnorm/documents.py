"""Long documents: items that are chunks of documents, which are ranked by their best chunk.

The maximum of many scores is higher than the maximum of few. So long documents are returned more
often than they are right; see `docs/guide/documents.md`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nnnorm.arrays import Ids, check_names
from nnnorm.embeddings import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Documents:
    """The document of each item; documents are numbered in the order in which they appear."""

    ids: Ids
    of_item: IntArray
    counts: IntArray

    @classmethod
    def open(cls, parents: Any, n_items: int, name: str = "gallery") -> "Documents":
        """Read one parent per item, a whole number or a string."""
        named = check_names(parents, n_items, "parents", name)
        _, first, number = np.unique(named, return_index=True, return_inverse=True)
        order = np.argsort(first)
        of_item = np.argsort(order)[number.ravel()]
        return cls(named[np.sort(first)], of_item, np.bincount(of_item))

    def __len__(self) -> int:
        return len(self.ids)

    def best(self, scores: FloatArray) -> FloatArray:
        """Reduce scores ``(n_queries, n_items)`` to the best of each document."""
        return np.asarray(np.maximum.reduceat(self._group(scores), self._starts, axis=1))

    def best_items(self, scores: FloatArray, found: IntArray) -> IntArray:
        """Return the best item of each document in `found`, shape ``(n_queries, k)``."""
        n_items, items = len(self.of_item), np.empty_like(found)
        for row, documents in enumerate(found):
            own = self._group(scores[row : row + 1])[0]
            is_best = own == np.repeat(np.maximum.reduceat(own, self._starts), self.counts)
            places = np.where(is_best, np.arange(n_items), n_items)
            items[row] = self._order[np.minimum.reduceat(places, self._starts)[documents]]
        return items

    def _group(self, scores: FloatArray) -> FloatArray:
        """Return scores with the chunks of each document in adjacent columns."""
        return scores if self._is_grouped else scores[:, self._order]

    @cached_property
    def _order(self) -> IntArray:
        return np.argsort(self.of_item, kind="stable")

    @cached_property
    def _starts(self) -> IntArray:
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _is_grouped(self) -> bool:
        return bool((np.diff(self.of_item) >= 0).all())
