"""Vectors as the libraries pass them, lists of floats, extended by a corrector.

An item gets the two coordinates that carry its bias, a query those that carry the weight. No
vectors give no vectors: libraries ask for embeddings of empty lists, and a corrector rejects them.
"""

from collections.abc import Sequence

import numpy as np

from nnnorm.augmentation import Target
from nnnorm.corrector import Corrector
from nnnorm.errors import check_number

Vector = list[float]


def check_query_weight(weight: float | None) -> float | None:
    """Return a weight that replaces that of a corrector, None for no other; raise for a bad one."""
    return None if weight is None else check_number("weight", weight)


def extend_items(corrector: Corrector, vectors: Sequence[Sequence[float]]) -> list[Vector]:
    """Extend item vectors by their bias, for the store."""
    if not len(vectors):
        return []
    rows: list[Vector] = corrector.transform_items(np.asarray(vectors, dtype=np.float32)).tolist()
    return rows


def measure_confidence(
    corrector: Corrector,
    scores: Sequence[float | None],
    query: Sequence[float],
    metric: Target,
) -> float | None:
    """Confidence of one search in a store, None without hits; `query` is an extended one."""
    if not len(scores):
        return None
    given = np.array([scores], dtype=np.float64)  # None becomes NaN, which is rejected
    return float(corrector.confidence(given, [query], metric=metric)[0])


def extend_query(
    corrector: Corrector, vector: Sequence[float], weight: float | None = None
) -> Vector:
    """Extend one query vector by the weight, for a store of extended items."""
    row: Vector = corrector.transform_queries(
        np.asarray([vector], dtype=np.float32), weight=weight
    )[0].tolist()
    return row
