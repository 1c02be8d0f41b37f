"""Extend vectors in the format of these libraries: lists of floats.

An item gets two coordinates with its bias, and a query two with the weight. Empty lists stay empty,
because libraries pass them and a corrector would reject them.
"""

from collections.abc import Sequence

import numpy as np

from nnnorm.augmentation import Target
from nnnorm.corrector import Correction, open_corrector
from nnnorm.errors import check_number

Vector = list[float]


class VectorCorrector:
    """A corrector of lists of floats; `weight` replaces its own."""

    def __init__(self, corrector: Correction, weight: float | None = None) -> None:
        self.corrector = open_corrector(corrector)
        self.weight = None if weight is None else check_number("weight", weight)

    def extend_items(self, vectors: Sequence[Sequence[float]]) -> list[Vector]:
        """Extend item vectors by their bias, for the store."""
        rows = np.asarray(vectors, dtype=np.float32)
        return list(self.corrector.transform_items(rows).tolist()) if len(rows) else []

    def extend_query(self, vector: Sequence[float]) -> Vector:
        """Extend one query vector by the weight, for a store of extended items."""
        row = np.asarray([vector], dtype=np.float32)
        return list(self.corrector.transform_queries(row, weight=self.weight)[0].tolist())

    def measure_confidence(
        self, scores: Sequence[float | None], query: Sequence[float], metric: Target
    ) -> float | None:
        """Return the confidence of a search, or None without hits; `query` is extended already."""
        if not len(scores):
            return None
        given = np.array([scores], dtype=np.float64)  # None becomes NaN, which is rejected
        return float(self.corrector.confidence(given, [query], metric=metric)[0])
