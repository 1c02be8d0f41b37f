"""Upper bounds on scores from a few rotated coordinates.

In the basis of the second moments of items and references together, the first coordinates hold most
of every inner product. The remaining ones cannot add more than the product of the two residual
norms (Cauchy–Schwarz). `bounding_vectors` appends that norm to the first coordinates, so that the
inner product of two short vectors is an upper bound on the score, float32 rounding included.
`pruned.py` uses the bounds for exact means, `approximate.py` uses the basis alone.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.scoring import on_a_worker

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Coordinates of a bounding vector that hold norms: the residual norm and the rounding allowance.
N_NORMS = 2
_N_SAMPLED = 2048
_ROUNDING = 2.0**-24
# Absolute rounding error of subnormal numbers.
_SMALLEST = 1e-38


def joint_moments(
    rows: Embeddings, columns: Embeddings, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Compute the second moments of both sides together, each side with a trace of 1.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    columns : Embeddings, shape (n_columns, dim)
    rng : Generator
        Draws up to 2,048 vectors from each side.

    Returns
    -------
    ndarray, shape (dim, dim)

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> flat = open_embeddings([[0.0, 3.0], [0.0, 2.0]])
    >>> joint_moments(flat, flat, np.random.default_rng(0)).round(3).tolist()
    [[0.0, 0.0], [0.0, 2.0]]
    """
    moments = np.zeros((rows.dim, rows.dim))
    for side in (rows, columns):
        some = rng.choice(len(side), min(len(side), _N_SAMPLED), replace=False)
        sample = side.take(np.sort(some))
        sample = sample / (np.abs(sample).max() or 1)  # so that squares do not overflow
        moment = (sample.T @ sample).astype(np.float64)
        moments += moment / (moment.trace() or 1)
    return moments


def principal_basis(moments: npt.NDArray[np.float64]) -> FloatArray:
    """Compute the eigenvectors of second moments, largest eigenvalue first.

    Parameters
    ----------
    moments : ndarray, shape (dim, dim)

    Returns
    -------
    ndarray, shape (dim, dim), float32
        One direction per column.

    Examples
    --------
    >>> abs(principal_basis(np.diag([0.1, 3.0]))).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    # With several threads the decomposition is slower than with one on a busy machine.
    _, directions = on_a_worker(lambda: np.linalg.eigh(moments))
    return np.ascontiguousarray(directions[:, ::-1], dtype=np.float32)


def bounding_vectors(
    embeddings: FloatArray, directions: FloatArray, *, is_item: bool
) -> FloatArray:
    """Compute short vectors whose inner products are never less than the scores.

    Parameters
    ----------
    embeddings : ndarray, shape (n, dim)
    directions : ndarray, shape (dim, width)
        The first directions of a basis.
    is_item : bool
        Items carry the allowance for rounding, references the norm it is multiplied by.

    Returns
    -------
    ndarray, shape (n, width + 2), float32
        ``[x·V, |x − V·Vᵀx|, |x|]``. An item's last coordinate is ``|x|`` times the largest relative
        rounding error of the sums involved.

    Examples
    --------
    >>> x = np.array([[0.8, 0.6]], dtype=np.float32)
    >>> first = np.array([[1.0], [0.0]], dtype=np.float32)
    >>> item, reference = (bounding_vectors(x, first, is_item=side) for side in (True, False))
    >>> 1.0 <= (item @ reference.T).item() < 1.0001
    True
    """
    dim, width = directions.shape
    vectors = np.empty((len(embeddings), width + N_NORMS), dtype=np.float32)
    np.matmul(embeddings, directions, out=vectors[:, :width])
    vectors[:, width:] = _norms(squared_norms(embeddings), vectors[:, :width], dim, is_item)
    return vectors


def bounds_by_width(
    items: FloatArray, references: FloatArray, basis: FloatArray, widths: Iterable[int]
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield partial scores and upper bounds for a rising number of coordinates.

    Parameters
    ----------
    items : ndarray, shape (n_items, dim)
    references : ndarray, shape (n_references, dim)
    basis : ndarray, shape (dim, dim)
    widths : iterable of int
        Numbers of coordinates, rising.

    Yields
    ------
    partial, bounds : ndarray, shape (n_items, n_references)
        Inner products of the first coordinates, and upper bounds on the scores. Both arrays are
        overwritten by the next step.

    Examples
    --------
    >>> x = np.array([[0.8, 0.6]], dtype=np.float32)
    >>> for partial, bounds in bounds_by_width(x, -x, np.eye(2, dtype=np.float32), [1, 2]):
    ...     print(partial.round(2).tolist(), bounds.round(2).tolist())
    [[-0.64]] [[-0.28]]
    [[-1.0]] [[-1.0]]
    """
    rotated = items @ basis, references @ basis
    squares = squared_norms(items), squared_norms(references)
    partial = np.zeros((len(items), len(references)), dtype=np.float32)
    bounds = np.empty_like(partial)
    done = 0
    for width in widths:
        partial += np.matmul(rotated[0][:, done:width], rotated[1][:, done:width].T, out=bounds)
        done = width
        item_norms, reference_norms = (
            _norms(square, side[:, :width], len(basis), is_item)
            for square, side, is_item in zip(squares, rotated, (True, False), strict=True)
        )
        np.matmul(item_norms, reference_norms.T, out=bounds)
        bounds += partial
        yield partial, bounds


def project(embeddings: Embeddings, directions: FloatArray) -> Embeddings:
    """Project all rows onto some directions.

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
    >>> project(open_embeddings([[0.8, 0.6]]), np.array([[0.0], [1.0]], np.float32)).shape
    (1, 1)
    """
    projected = np.empty((len(embeddings), directions.shape[1]), dtype=np.float32)
    for start, block in embeddings.blocks():
        np.matmul(block, directions, out=projected[start : start + len(block)])
    return Embeddings([projected], name=embeddings.name)


def squared_norms(rows: FloatArray) -> npt.NDArray[np.float64]:
    """Compute the squared norm of every row.

    Examples
    --------
    >>> squared_norms(np.array([[3.0, 4.0]], dtype=np.float32)).tolist()
    [25.0]
    """
    sums = np.einsum("ij,ij->i", rows, rows)
    if sums.min(initial=1) < 1e-25 or sums.max(initial=1) > 1e25:
        # These squares underflow or overflow in float32.
        return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return sums.astype(np.float64)


def _norms(
    squares: npt.NDArray[np.float64], projected: FloatArray, dim: int, is_item: bool
) -> FloatArray:
    """Residual norm and full norm of every row, rounded up: ``(n, 2)``."""
    norms = np.empty((len(projected), N_NORMS), dtype=np.float32)
    residual = np.maximum(squares - squared_norms(projected), 0)
    # A float32 sum of n products is off by at most n roundings of the two norms: the sum of the
    # row's squares by dim, that of the projected squares by fewer, and each projected coordinate
    # too, which counts twice; the directions are not perfectly orthogonal either.
    roundings = (4 + 2 * np.sqrt(projected.shape[1])) * dim
    norms[:, 0] = np.sqrt(residual + roundings * _ROUNDING * squares) + _SMALLEST
    norms[:, 1] = np.sqrt(squares)
    if is_item:
        norms[:, 1] *= 4 * dim * np.sqrt(projected.shape[1]) * _ROUNDING
    return norms
