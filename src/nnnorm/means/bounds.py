"""Heads: the few rotated coordinates of an embedding that hold most of every score.

Embeddings fill their space unevenly. In the basis of the second moments of items and references
together, the first coordinates (the head) hold nearly all of a scalar product, and the rest can't
add more than the product of the two lengths that are left: Cauchy and Schwarz. So a fraction of the
work bounds every score; `pruned.py` makes exact means of that, and `approximate.py` quick ones.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import on_a_worker

__all__ = [
    "N_BOUNDS",
    "Heads",
    "Reached",
    "bounding_heads",
    "bounds_of",
    "principal_basis",
    "squares",
    "turn",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
# Some columns, and which of them reach the floor of which row.
Reached: TypeAlias = Iterator[tuple[slice | npt.NDArray[np.int64], npt.NDArray[np.bool_]]]

# Coordinates of a bounding head that hold lengths: what the rest has left, and rounding.
N_BOUNDS = 2
_N_SAMPLED = 4096
_ROUNDING = 2.0**-24
# Rounding of numbers so small that float32 has few bits left for them.
_SMALLEST = 1e-38


def principal_basis(rows: Embeddings, columns: Embeddings, rng: np.random.Generator) -> FloatArray:
    """Orthonormal directions, those that hold most of the scores first.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    columns : Embeddings, shape (n_columns, dim)
    rng : Generator
        A sample of each side is looked at.

    Returns
    -------
    ndarray, shape (dim, dim), float32
        A direction per column.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> flat = open_embeddings([[0.1, 3.0], [-0.1, 3.0], [0.1, 2.0]])
    >>> abs(principal_basis(flat, flat, np.random.default_rng(0))).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    moments = np.zeros((rows.dim, rows.dim))
    for side in (rows, columns):
        some = rng.choice(len(side), min(len(side), _N_SAMPLED), replace=False)
        sample = side.take(np.sort(some))
        sample = sample / (np.abs(sample).max() or 1)  # so that no square is too large
        moment = (sample.T @ sample).astype(np.float64)
        moments += moment / (moment.trace() or 1)
    # Many threads take longer than one for it, where another program runs beside us.
    _, directions = on_a_worker(lambda: np.linalg.eigh(moments))
    return np.ascontiguousarray(directions[:, ::-1], dtype=np.float32)


def bounding_heads(embeddings: FloatArray, directions: FloatArray, *, is_item: bool) -> FloatArray:
    """Heads whose products are never less than the scores.

    Parameters
    ----------
    embeddings : ndarray, shape (n, dim)
    directions : ndarray, shape (dim, width)
        The first of a basis.
    is_item : bool
        The two sides of a product carry the allowance for rounding differently.

    Returns
    -------
    ndarray, shape (n, width + 2), float32
        ``[x·V, |x − V·Vᵀx|, |x|]``; an item's last coordinate is the share of the lengths that
        rounding may take, by the worst case of every sum involved.

    Examples
    --------
    >>> x = np.array([[0.8, 0.6]], dtype=np.float32)
    >>> first = np.array([[1.0], [0.0]], dtype=np.float32)
    >>> item, reference = (bounding_heads(x, first, is_item=side) for side in (True, False))
    >>> 1.0 <= (item @ reference.T).item() < 1.0001
    True
    """
    dim, width = directions.shape
    heads = np.empty((len(embeddings), width + N_BOUNDS), dtype=np.float32)
    np.matmul(embeddings, directions, out=heads[:, :width])
    heads[:, width:] = _lengths(squares(embeddings), heads[:, :width], dim, is_item)
    return heads


class Heads:
    """Bounding heads of references.

    Parameters
    ----------
    n_rows, width : int
        Of all heads, bounds not counted.
    block : int
        References that are looked through at a time.

    Attributes
    ----------
    nbytes : int

    Examples
    --------
    >>> rows = np.array([[0.8, 0.6], [-1.0, 0.0]], dtype=np.float32)
    >>> first = np.array([[1.0], [0.0]], dtype=np.float32)
    >>> heads = Heads(2, 1, block=2)
    >>> heads.fill(0, bounding_heads(rows, first, is_item=False))
    >>> item, floor = bounding_heads(rows[:1], first, is_item=True), np.array([0.9], np.float32)
    >>> for columns, reached in heads.reached(item, floor, threading.Event()):
    ...     print(columns, reached.tolist())
    slice(0, 2, None) [[True, False]]
    """

    def __init__(self, n_rows: int, width: int, block: int) -> None:
        self._heads = np.empty((n_rows, width + N_BOUNDS), dtype=np.float32)
        self._block = block
        self.nbytes = self._heads.nbytes

    def fill(self, start: int, heads: FloatArray) -> None:
        """Take in heads of references."""
        self._heads[start : start + len(heads)] = heads

    def products(self, heads: FloatArray) -> FloatArray:
        """Multiply heads of items with all of them: ``(n_items, n_rows)``."""
        return heads @ self._heads.T

    def reached(self, heads: FloatArray, floors: FloatArray, stop: threading.Event) -> Reached:
        """Yield which references may reach the floors of items.

        Parameters
        ----------
        heads : ndarray, shape (n_items, width + 2)
        floors : ndarray, shape (n_items,)
        stop : Event
            Set when nobody wants to know any more.

        Yields
        ------
        columns : slice
        reached : ndarray, shape (n_items, n), bool
        """
        buffer = np.empty(len(heads) * self._block, dtype=np.float32)
        for first in range(0, len(self._heads), self._block):
            if stop.is_set():
                return
            block = self._heads[first : first + self._block]
            bounds = buffer[: len(heads) * len(block)].reshape(len(heads), len(block))
            np.matmul(heads, block.T, out=bounds)
            yield slice(first, first + len(block)), bounds >= floors[:, None]


def bounds_of(
    items: FloatArray, references: FloatArray, basis: FloatArray, widths: Iterable[int]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield what heads of each width make of all scores: likely ones, and bounds.

    Parameters
    ----------
    items : ndarray, shape (n_items, dim)
    references : ndarray, shape (n_references, dim)
    basis : ndarray, shape (dim, dim)
    widths : sequence of int
        Rising.

    Yields
    ------
    likely, bounds : ndarray, shape (n_items, n_references)
        Products of heads without and with the lengths that are left, overwritten by the next.

    Examples
    --------
    >>> x = np.array([[0.8, 0.6]], dtype=np.float32)
    >>> for likely, bounds in bounds_of(x, -x, np.eye(2, dtype=np.float32), [1, 2]):
    ...     print(likely.round(2).tolist(), bounds.round(2).tolist())
    [[-0.64]] [[-0.28]]
    [[-1.0]] [[-1.0]]
    """
    turned = items @ basis, references @ basis
    wholes = squares(items), squares(references)
    likely = np.zeros((len(items), len(references)), dtype=np.float32)
    bounds = np.empty_like(likely)
    done = 0
    for width in widths:
        likely += np.matmul(turned[0][:, done:width], turned[1][:, done:width].T, out=bounds)
        done = width
        item_lengths, reference_lengths = (
            _lengths(whole, head[:, :width], len(basis), is_item)
            for whole, head, is_item in zip(wholes, turned, (True, False), strict=True)
        )
        np.matmul(item_lengths, reference_lengths.T, out=bounds)
        bounds += likely
        yield likely, bounds


def turn(embeddings: Embeddings, directions: FloatArray) -> Embeddings:
    """Turn all rows into the coordinates along some directions.

    Parameters
    ----------
    embeddings : Embeddings, shape (n, dim)
    directions : ndarray, shape (dim, width)

    Returns
    -------
    Embeddings, shape (n, width)
        Held in memory.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> turn(open_embeddings([[0.8, 0.6]]), np.array([[0.0], [1.0]], np.float32)).shape
    (1, 1)
    """
    turned = np.empty((len(embeddings), directions.shape[1]), dtype=np.float32)
    for start, block in embeddings.blocks():
        np.matmul(block, directions, out=turned[start : start + len(block)])
    return Embeddings([turned], name=embeddings.name)


def squares(rows: FloatArray) -> npt.NDArray[np.float64]:
    """Squared length of every row.

    Examples
    --------
    >>> squares(np.array([[3.0, 4.0]], dtype=np.float32)).tolist()
    [25.0]
    """
    sums = np.einsum("ij,ij->i", rows, rows)
    if sums.min(initial=1) < 1e-25 or sums.max(initial=1) > 1e25:
        # The square of a short row is nothing in float32, and that of a long one infinite.
        return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return sums.astype(np.float64)


def _lengths(
    whole: npt.NDArray[np.float64], head: FloatArray, dim: int, is_item: bool
) -> FloatArray:
    """What is left of every row beyond its head, and its whole length: ``(n, 2)``."""
    lengths = np.empty((len(head), N_BOUNDS), dtype=np.float32)
    left = np.maximum(whole - squares(head), 0)
    # A float32 sum of n products is wrong by n roundings of the two lengths at most: that of the
    # row's squares by dim, that of the head's by fewer, and so is each of the head's coordinates,
    # which count twice; directions are not quite at right angles either.
    roundings = (4 + 2 * np.sqrt(head.shape[1])) * dim
    lengths[:, 0] = np.sqrt(left + roundings * _ROUNDING * whole) + _SMALLEST
    lengths[:, 1] = np.sqrt(whole)
    if is_item:
        lengths[:, 1] *= 4 * dim * np.sqrt(head.shape[1]) * _ROUNDING
    return lengths
