"""What engines share when they read: parts of lists, and ids and hits as arrays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnnorm.index.backend import Hits, Ids

BATCH = 1000  # items read from an engine at once


def chunks(values: Any, size: int) -> Iterator[Any]:
    """Split something that can be sliced into parts of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def gather(rows: Sequence[Sequence[tuple[Any, float]]], *, string_ids: bool) -> Hits:
    """Make hits of ``(id, score)`` pairs per query."""
    widest = max(map(len, rows), default=0)
    ids = np.full((len(rows), widest), "" if string_ids else -1, dtype=object)
    scores = np.full((len(rows), widest), -np.inf, dtype=np.float32)
    for row, found in enumerate(rows):
        for place, (own, score) in enumerate(found):
            ids[row, place], scores[row, place] = own, score
    return Hits(ids.astype(str if string_ids else np.int64), scores)


def to_ids(ids: Sequence[Any]) -> Ids:
    """Return ids read from an engine as an array of int64 or str."""
    if all(isinstance(own, int) and not isinstance(own, bool) for own in ids):
        return np.array(ids, dtype=np.int64)
    return np.array([str(own) for own in ids], dtype=str).reshape(len(ids))
