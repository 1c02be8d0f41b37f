"""The correction inside any vector index: one extra dimension, or two.

Store ``[r, m]`` and ask ``[q, −α]``: an index that compares by inner product then ranks by the
corrected score. One more coordinate makes all stored norms equal, and cosine and L2 do the same.
"""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias, check_weight
from nnnorm.errors import NNNormError
from nnnorm.io import Source, open_embeddings

__all__ = ["Target", "augment_gallery", "augment_queries", "count_extra", "extend_rows"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Target = Literal["ip", "cosine", "l2"]


def augment_gallery(
    gallery: Source,
    bias: Bias,
    *,
    target: Target = "ip",
    center: bool = False,
    scale: float = 1.0,
) -> FloatArray:
    """Extend items by their bias, for an index that is asked with `augment_queries`.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias
        Fitted on this gallery, without gates.
    target : {"ip", "cosine", "l2"}
        What the index compares by. "ip" adds one coordinate, ``[r, m]``; the others one more,
        which makes all stored norms equal, so that cosine, L2 and inner product give one order.
    center : bool
        Store ``m − mean(m)``. Scores then come out higher by ``weight·mean(m)``, the same for all.
    scale : float
        Store ``scale·m`` and ask ``−weight/scale``: a quantised index (int8, binary) wants the
        extra coordinates of items and queries about as large as the others.

    Returns
    -------
    ndarray, shape (n_gallery, dim + 1) or (n_gallery, dim + 2), float32

    Examples
    --------
    >>> import numpy as np
    >>> augment_gallery(np.eye(2), Bias(np.array([0.25, 0.5]), 1.0, "nnn")).tolist()
    [[1.0, 0.0, 0.25], [0.0, 1.0, 0.5]]
    """
    _check_augmentable(bias, target, scale)
    items = open_embeddings(gallery, name="gallery")
    bias.check_gallery(items)
    shift = float(bias.values.mean(dtype=np.float64)) if center else 0.0
    augmented = np.empty((len(items), items.dim + count_extra(target)), dtype=np.float32)
    for start, block in items.blocks():
        augmented[start : start + len(block), : items.dim] = block
    augmented[:, items.dim] = scale * (bias.values.astype(np.float64) - shift)
    if target != "ip":
        squares = _squares(augmented[:, : items.dim + 1])
        augmented[:, -1] = np.sqrt(squares.max() - squares)
    return augmented


def extend_rows(
    rows: FloatArray,
    values: FloatArray,
    *,
    target: Target,
    shift: float,
    scale: float,
    radius: float,
) -> FloatArray:
    """Extend some rows the way an index was built: one shift, scale and radius for all its items.

    Parameters
    ----------
    rows : ndarray, shape (n_rows, dim)
    values : ndarray, shape (n_rows,)
        The items' bias.
    target : {"ip", "cosine", "l2"}
    shift, scale : float
        ``scale·(m − shift)`` is stored.
    radius : float
        The norm that all stored rows get; not used by "ip".

    Returns
    -------
    ndarray, shape (n_rows, dim + 1) or (n_rows, dim + 2), float32

    Examples
    --------
    >>> import numpy as np
    >>> rows, values = np.float32([[0.0, 2.0]]), np.float32([3.0])
    >>> extend_rows(rows, values, target="l2", shift=2.0, scale=1.0, radius=3.0).tolist()
    [[0.0, 2.0, 1.0, 2.0]]
    """
    stored = scale * (values.astype(np.float64) - shift)
    kept = np.column_stack([rows, stored]).astype(np.float32)
    if target == "ip":
        return kept
    room = radius**2 - _squares(kept)
    if (room < 0).any():
        row = int(room.argmin())
        raise NNNormError(
            f"item {row} has the norm {np.sqrt(radius**2 - room[row]):.4g} with its bias, but this "
            f"index has room for {radius:.4g}; build it anew with this item"
        )
    return np.column_stack([kept, np.sqrt(room)]).astype(np.float32)


def count_extra(target: Target) -> int:
    """How many coordinates a target adds: one for "ip", two for "cosine" and "l2".

    Examples
    --------
    >>> count_extra("ip"), count_extra("l2")
    (1, 2)
    """
    return 1 if target == "ip" else 2


def augment_queries(
    queries: Source,
    bias: Bias,
    *,
    weight: float | None = None,
    target: Target = "ip",
    scale: float = 1.0,
) -> FloatArray:
    """Extend queries by the weight, for an index that holds `augment_gallery`.

    The weight stands on the query's side, so it changes without touching the index.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
    bias : Bias
        The one the gallery was extended by.
    weight : float, optional
        Instead of the bias's own weight.
    target : {"ip", "cosine", "l2"}
        As for the gallery.
    scale : float
        As for the gallery.

    Returns
    -------
    ndarray, shape (n_queries, dim + 1) or (n_queries, dim + 2), float32

    Examples
    --------
    >>> import numpy as np
    >>> augment_queries(np.eye(2), Bias(np.array([0.25, 0.5]), 0.75, "nnn")).tolist()
    [[1.0, 0.0, -0.75], [0.0, 1.0, -0.75]]
    """
    _check_augmentable(bias, target, scale)
    asked = open_embeddings(queries, name="queries")
    if bias.dim is not None and asked.dim != bias.dim:
        raise NNNormError(
            f"{asked.name} and the bias's gallery must share dim; got {asked.dim} and {bias.dim}. "
            "Were they encoded by different models?"
        )
    used = bias.weight if weight is None else check_weight(weight)
    extra = np.zeros((len(asked), count_extra(target)), dtype=np.float32)
    extra[:, 0] = -used / scale
    return np.hstack([asked.rows(0, len(asked)), extra])


def _check_augmentable(bias: Bias, target: str, scale: float) -> None:
    if target not in ("ip", "cosine", "l2"):
        raise NNNormError(f"target must be 'ip', 'cosine' or 'l2'; got {target!r}")
    if check_weight(scale, "scale") <= 0:
        raise NNNormError(f"scale must be positive; got {scale}")
    if bias.gates:
        raise NNNormError(
            f"a gated bias ({bias.method}) decides per query and can't be stored as a dimension; "
            "use search, or fit the method without its gate"
        )


def _squares(rows: FloatArray) -> npt.NDArray[np.float64]:
    return np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
