"""An order of rows in which neighbours are similar, so that a group shares its candidates."""

import threading
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import count_threads, strips_in_order

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

_N_SAMPLED = 4096
# Rows among which groups are formed: more rows give tighter groups and take longer per row.
_PART_SIZE = 8192


def group_similar(
    rows: Embeddings, directions: FloatArray, *, group_size: int, memory_budget: int
) -> IntArray:
    """Order rows so that each run of `group_size` rows is similar.

    A large set is split at the median along its direction of largest variance until the parts are
    small. Within a part, the row farthest from the mean is grouped with the rows in nearly the same
    direction, then the farthest of the remaining rows, and so on.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    directions : ndarray, shape (dim, width)
        Similarity is measured in these coordinates.
    group_size : int
    memory_budget : int
        Bytes. Where it is too small for all rows, slabs of rows are ordered one after another.

    Returns
    -------
    ndarray, shape (n_rows,), int64
        A permutation of the row numbers.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = open_embeddings([[1.0, 0.1], [-1.0, 0.1], [0.9, 0.1], [-0.9, 0.1]])
    >>> first = np.array([[1.0], [0.0]], dtype=np.float32)
    >>> order = group_similar(rows, first, group_size=2, memory_budget=2**20)
    >>> sorted(order[:2].tolist()) in ([0, 2], [1, 3])
    True
    """
    width, half = directions.shape[1], memory_budget // 2
    # Two copies of a slab's coordinates with temporaries; four copies of a part's per thread.
    slab_size = max(1, half // (8 * width + 64) // group_size) * group_size
    part_size = min(_PART_SIZE, half // (16 * width + 64) // count_threads())
    part_size = min(part_size, -(-len(rows) // count_threads()))  # work for every thread
    part_size = max(1, -(-part_size // group_size)) * group_size
    order = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), slab_size):
        stop = min(start + slab_size, len(rows))
        points = _coordinates(rows, start, stop, directions)
        order[start:stop] = start + _order(points, group_size, part_size)
    return order


def _coordinates(rows: Embeddings, start: int, stop: int, directions: FloatArray) -> FloatArray:
    points = np.empty((stop - start, directions.shape[1]), dtype=np.float32)
    for first in range(start, stop, 8192):
        last = min(first + 8192, stop)
        np.matmul(rows.rows(first, last), directions, out=points[first - start : last - start])
    points /= np.abs(points).max() or 1  # so that squares do not overflow
    return points


def _order(points: FloatArray, group_size: int, part_size: int) -> IntArray:
    order = np.arange(len(points))
    large, small = [(0, len(points))], []
    while large:
        first, last = large.pop()
        part = order[first:last]
        if len(part) <= part_size:
            small.append((first, last))
            continue
        direction = _direction_of_largest_variance(points[part[:: -(-len(part) // _N_SAMPLED)]])
        middle = -(-len(part) // group_size) // 2 * group_size
        order[first:last] = part[np.argpartition(points[part] @ direction, middle)]
        large += [(first, first + middle), (first + middle, last)]

    def group(number: int, _: int) -> None:
        first, last = small[number]
        part = order[first:last]
        order[first:last] = part[_greedy_groups(points[part], group_size)]

    for _ in strips_in_order(group, len(small), 1, threading.Event()):
        pass
    return order


def _greedy_groups(points: FloatArray, group_size: int) -> IntArray:
    """Group the row farthest from the mean with its nearest directions, again and again."""
    points = points - points.mean(axis=0)
    norms = np.linalg.norm(points, axis=1)
    left = np.argsort(-norms, kind="stable")
    rest = points[left] / (norms[left, None] + np.float32(1e-30))
    groups = []
    while len(left) > group_size:
        cut = len(left) - group_size
        nearest = np.argpartition(rest @ rest[0], cut)[cut:]
        nearest = np.argpartition(rest @ rest[nearest].mean(axis=0), cut)[cut:]
        groups.append(left[nearest])
        is_left = np.ones(len(left), dtype=bool)
        is_left[nearest] = False
        left, rest = left[is_left], rest[is_left]
    return np.concatenate([*groups, left])


def _direction_of_largest_variance(points: FloatArray) -> FloatArray:
    """Approximate the first principal component by four power iterations."""
    points = points - points.mean(axis=0)
    direction = points[np.argmax(np.einsum("ij,ij->i", points, points))]
    for _ in range(4):
        direction = direction / (np.linalg.norm(direction) + np.float32(1e-30))
        direction = points.T @ (points @ direction)
    return direction
