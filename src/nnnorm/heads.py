"""Heads: the few rotated coordinates of an embedding that hold most of every score.

Embeddings fill their space unevenly. In the basis of the second moments of items and references
together, the first coordinates (the head) hold nearly all of a scalar product, and the rest can't
add more than the product of the two lengths that are left: Cauchy and Schwarz. So a fraction of the
work bounds every score, from real neighbours to hopeless pairs; `screen.py` makes exact means of
that, and `approximate.py` quick ones.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings

__all__ = ["N_BOUNDS", "bounding_heads", "bounds_of", "principal_basis"]

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Coordinates of a bounding head that hold lengths: what the rest has left, and rounding.
N_BOUNDS = 2
_N_SAMPLED = 4096
_ROUNDING = 2.0**-24


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
    >>> from nnnorm.embeddings import open_embeddings
    >>> flat = open_embeddings([[0.1, 3.0], [-0.1, 3.0], [0.1, 2.0]])
    >>> abs(principal_basis(flat, flat, np.random.default_rng(0))).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    moments = np.zeros((rows.dim, rows.dim))
    for side in (rows, columns):
        some = rng.choice(len(side), min(len(side), _N_SAMPLED), replace=False)
        sample = side.take(np.sort(some)).astype(np.float64)
        moments += sample.T @ sample / np.square(sample).sum()
    _, directions = np.linalg.eigh(moments)
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
    >>> 1.0 <= float(item @ reference.T) < 1.0001
    True
    """
    return _finish(embeddings, embeddings @ directions, is_item)


def bounds_of(
    items: FloatArray, references: FloatArray, basis: FloatArray, widths: Iterable[int]
) -> Iterator[FloatArray]:
    """Yield the bounds of all pairs by heads of each width: ``(n_items, n_references)``.

    Examples
    --------
    >>> x = np.array([[0.8, 0.6]], dtype=np.float32)
    >>> narrow, wide = bounds_of(x, -x, np.eye(2, dtype=np.float32), [1, 2])
    >>> (narrow.round(2).tolist(), wide.round(2).tolist())
    ([[-0.28]], [[-1.0]])
    """
    turned = items @ basis, references @ basis
    for width in widths:
        yield (
            _finish(items, turned[0][:, :width], True)
            @ _finish(references, turned[1][:, :width], False).T
        )


def _finish(embeddings: FloatArray, turned: FloatArray, is_item: bool) -> FloatArray:
    dim, width = embeddings.shape[1], turned.shape[1]
    heads = np.empty((len(embeddings), width + N_BOUNDS), dtype=np.float32)
    heads[:, :width] = turned
    squares = np.einsum("ij,ij->i", embeddings, embeddings)
    left = squares - np.einsum("ij,ij->i", turned, turned)
    # A sum of n products is wrong by n roundings of the lengths at most.
    heads[:, width] = np.sqrt(np.maximum(left, 0) + 4 * dim * _ROUNDING * squares)
    heads[:, width + 1] = np.sqrt(squares)
    if is_item:
        heads[:, width + 1] *= 4 * dim * np.sqrt(width) * _ROUNDING
    return heads
