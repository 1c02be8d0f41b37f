"""An order of rows in which neighbours are similar, so that groups of them want the same."""

import threading
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import count_threads, strips_in_order

__all__ = ["similar_together"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

_N_LOOKED_AT = 4096
# Rows among which groups are gathered: the steps' cost grows with it, and so does likeness.
_N_PART = 8192


def similar_together(
    rows: Embeddings, directions: FloatArray, *, group: int, memory_budget: int
) -> IntArray:
    """Put rows in an order in which groups of neighbours are similar.

    Many rows are halved again and again, along the direction in which a part is longest. In a part
    that is small enough, the row farthest from the middle gathers those in nearly its direction
    from there, then the next does.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    directions : ndarray, shape (dim, width)
        Along which to look.
    group : int
        Rows in a group.
    memory_budget : int
        Where it is short, rows are ordered slab by slab.

    Returns
    -------
    ndarray, shape (n_rows,), int64

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = open_embeddings([[1.0, 0.1], [-1.0, 0.1], [0.9, 0.1], [-0.9, 0.1]])
    >>> first = np.array([[1.0], [0.0]], dtype=np.float32)
    >>> order = similar_together(rows, first, group=2, memory_budget=2**20)
    >>> sorted(order[:2].tolist()) in ([0, 2], [1, 3])
    True
    """
    width, room = directions.shape[1], memory_budget // 2
    # A row's coordinates, twice, and what is made of them; in a thread's part, four times.
    n_slab = max(1, room // (8 * width + 64) // group) * group
    n_part = min(_N_PART, room // (16 * width + 64) // count_threads())
    n_part = max(1, n_part // group) * group
    order = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), n_slab):
        stop = min(start + n_slab, len(rows))
        places = _coordinates(rows, start, stop, directions)
        order[start:stop] = start + _order(places, group, n_part)
    return order


def _coordinates(rows: Embeddings, start: int, stop: int, directions: FloatArray) -> FloatArray:
    places = np.empty((stop - start, directions.shape[1]), dtype=np.float32)
    for first in range(start, stop, 8192):
        last = min(first + 8192, stop)
        np.matmul(rows.rows(first, last), directions, out=places[first - start : last - start])
    places /= np.abs(places).max() or 1  # so that no square is too large
    return places


def _order(places: FloatArray, group: int, n_part: int) -> IntArray:
    order = np.arange(len(places))
    large, small = [(0, len(places))], []
    while large:
        first, last = large.pop()
        part = order[first:last]
        if len(part) <= n_part:
            small.append((first, last))
            continue
        longest = _longest(places[part[:: -(-len(part) // _N_LOOKED_AT)]])
        middle = -(-len(part) // group) // 2 * group
        order[first:last] = part[np.argpartition(places[part] @ longest, middle)]
        large += [(first, first + middle), (first + middle, last)]

    def gather(number: int, _: int) -> None:
        first, last = small[number]
        part = order[first:last]
        order[first:last] = part[_gather(places[part], group)]

    for _ in strips_in_order(gather, len(small), 1, threading.Event()):
        pass
    return order


def _gather(places: FloatArray, group: int) -> IntArray:
    """Whoever is farthest from the middle leads a group of those in nearly the same direction."""
    places = places - places.mean(axis=0)
    lengths = np.linalg.norm(places, axis=1)
    left = np.argsort(-lengths, kind="stable")
    rest = places[left] / (lengths[left, None] + np.float32(1e-30))
    groups = []
    while len(left) > group:
        cut = len(left) - group
        nearest = np.argpartition(rest @ rest[0], cut)[cut:]
        nearest = np.argpartition(rest @ rest[nearest].mean(axis=0), cut)[cut:]
        groups.append(left[nearest])
        is_left = np.ones(len(left), dtype=bool)
        is_left[nearest] = False
        left, rest = left[is_left], rest[is_left]
    return np.concatenate([*groups, left])


def _longest(places: FloatArray) -> FloatArray:
    """The direction of the largest variance, about."""
    places = places - places.mean(axis=0)
    longest = places[np.argmax(np.einsum("ij,ij->i", places, places))]
    for _ in range(4):
        longest = longest / (np.linalg.norm(longest) + np.float32(1e-30))
        longest = places.T @ (places @ longest)
    return longest
