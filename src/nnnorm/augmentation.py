"""The correction in a vector index: one or two extra coordinates per row.

For an item r with bias m, store ``[r, m]``. For a query q, search with ``[q, −α]``. Their inner
product is the corrected score. A second extra coordinate makes all stored norms equal, so cosine
and L2 rank in the same order. `Augmentation` computes these coordinates for `Corrector`, the
indexes and the functions here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias, check_correction
from nnnorm.embeddings import Embeddings, FloatArray, Source, open_embeddings
from nnnorm.errors import NNNormError, check_type

Target = Literal["ip", "cosine", "l2"]
# A squared norm may exceed the limit by this share, because of rounding.
_ROUNDING = 1e-6
# Added to the radius: the bounds of the values are exact, but float32 rounds.
_MARGIN = 1e-4


@dataclass(frozen=True)
class Augmentation:
    """Computes the extra coordinates of items and queries that contain the correction."""

    target: Target = "ip"
    shift: float = 0.0
    scale: float = 1.0
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.target not in get_args(Target):
            raise NNNormError(f"target must be 'ip', 'cosine' or 'l2'; got {self.target!r}")

    @property
    def n_extra(self) -> int:
        """Number of extra coordinates: one for "ip", two for "cosine" and "l2"."""
        return 1 if self.target == "ip" else 2

    def extend_all(self, items: Embeddings, values: FloatArray) -> FloatArray:
        """Extend all items, in blocks."""
        stored = np.empty((len(items), items.dim + self.n_extra), dtype=np.float32)
        for start, block in items.blocks():
            rows = slice(start, start + len(block))
            stored[rows] = self.extend_items(block, values[rows])
        return stored

    def extend_items(self, rows: FloatArray, values: FloatArray) -> FloatArray:
        """Extend rows ``(n, dim)`` by their bias ``(n,)`` to stored rows ``(n, dim + n_extra)``."""
        stored = (self.scale * (values.astype(np.float64) - self.shift)).astype(np.float32)
        if self.target == "ip":
            return np.column_stack([rows, stored])
        limit = self.radius**2
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        squares += stored.astype(np.float64) ** 2
        if (squares > limit * (1 + _ROUNDING)).any():
            raise NNNormError(
                f"an item with its bias must have a norm of at most {self.radius:.4g}; got "
                f"{math.sqrt(squares.max()):.4g}: fit again with this item in the gallery"
            )
        rest = np.sqrt((limit - squares).clip(min=0)).astype(np.float32)
        return np.column_stack([rows, stored, rest])

    def extend_queries(self, queries: FloatArray, weight: float) -> FloatArray:
        """Extend queries ``(n, dim)`` by the weight to ``(n, dim + n_extra)``."""
        dim = queries.shape[1]
        extended = np.zeros((len(queries), dim + self.n_extra), dtype=np.float32)
        extended[:, :dim], extended[:, dim] = queries, -weight / self.scale
        return extended

    def split_items(self, stored: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Undo `extend_items`, including for rows that a cosine index has normalized."""
        if self.target == "cosine":
            stored = stored * (self.radius / np.linalg.norm(stored, axis=1, keepdims=True))
        dim = stored.shape[1] - self.n_extra
        values = stored[:, dim] / np.float32(self.scale) + np.float32(self.shift)
        rows = np.ascontiguousarray(stored[:, :dim], dtype=np.float32)
        return rows, values.astype(np.float32)

    def read_scores(
        self, scores: npt.ArrayLike, queries: FloatArray, weight: float | FloatArray, metric: Target
    ) -> FloatArray:
        """Return the corrected scores, given an engine's scores ``(n, k)`` of extended queries.

        For the metric "l2", the engine's scores are squared distances.
        """
        products = np.asarray(scores, dtype=np.float64)
        norms = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None]
        if metric == "cosine":
            products = products * norms * self.radius
        elif metric == "l2":
            products = (norms**2 + self.radius**2 - products) / 2
        return (products - weight * self.shift).astype(np.float32)

    def widened(self, longest: float, extra: float) -> "Augmentation":
        """Return an augmentation whose radius allows values that are larger by `extra`."""
        far = math.sqrt(max(0.0, (self.radius / (1 + _MARGIN)) ** 2 - longest**2))
        far += self.scale * extra
        return replace(self, radius=(1 + _MARGIN) * math.hypot(longest, far))


def bound_augmentation(
    bias: Bias,
    weight: float,
    banks: Iterable[Embeddings],
    longest: float,
    center: FloatArray | None,
) -> Augmentation:
    """Choose shift, scale and radius so that all items of norm up to `longest` can be stored.

    An item's value is a mean of its scores with rows of `banks`; if `center` is given, it is
    subtracted from the item first. With groups, the value is multiplied by `weight`, and the offset
    of the item's group is added.
    """
    offsets = bias.params.get("groups", {"": 0.0}).values()
    within = weight if "groups" in bias.params else 1.0
    shift = float(bias.values.mean(dtype=np.float64))
    highest, lowest, largest = shift, shift, 0.0
    for bank in banks:
        mean, (_, norm) = bank.mean(), bank.norm_range
        along = np.zeros(1)
        if center is not None:
            along = np.concatenate([block @ center for _, block in bank.blocks()])
        high = longest * norm - float(along.min())
        low = -longest * float(np.linalg.norm(mean)) - float(along.mean())
        highest = max(highest, within * high + max(offsets))
        lowest = min(lowest, within * low + min(offsets))
        largest = max(largest, norm)
    # The scale makes the stored value about as large as the other coordinates. It is a power of
    # two, so scaling is exact.
    scale = 2.0 ** -round(math.log2(largest))
    far = scale * max(highest - shift, shift - lowest)
    return Augmentation("l2", shift, scale, radius=(1 + _MARGIN) * math.hypot(longest, far))


def augment_gallery(
    gallery: Source, bias: Bias, *, target: Target = "ip", normalize: bool | None = None
) -> FloatArray:
    """Return items with extra coordinates for their bias, to store in a vector index.

    Search this index with the rows of `augment_queries`. To add items later, use a `Corrector`
    instead.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
        The items.
    bias : Bias
        A bias that was fitted on this gallery, without gates.
    target : {"ip", "cosine", "l2"}
        Metric of the index. "ip" adds one coordinate, the bias. "cosine" and "l2" add a second one,
        which makes all stored norms equal. That norm depends on the gallery, so with these two, you
        can't mix rows of several calls.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.

    Returns
    -------
    ndarray, shape (n_gallery, dim + 1) or (n_gallery, dim + 2), float32

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> from nnnorm.augmentation import augment_gallery
    >>> augment_gallery(np.eye(2), Bias(np.array([0.25, 0.5]), 1.0, "nnn")).tolist()
    [[1.0, 0.0, 0.25], [0.0, 1.0, 0.5]]
    """
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    check_storable(bias)
    bias.check_gallery(items)
    augmentation = Augmentation(target)
    if target != "ip":
        squares = bias.values.astype(np.float64) ** 2
        for start, block in items.blocks():
            squares[start : start + len(block)] += np.einsum("ij,ij->i", block, block, dtype="f8")
        augmentation = Augmentation(target, radius=math.sqrt(squares.max()))
    return augmentation.extend_all(items, bias.values)


def augment_queries(
    queries: Source,
    bias: Bias,
    *,
    weight: float | None = None,
    target: Target = "ip",
    normalize: bool | None = None,
) -> FloatArray:
    """Return queries with extra coordinates, to search an index of `augment_gallery` rows.

    The weight is part of the query, so you can change it without a new index.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        The queries to search for.
    bias : Bias
        The bias that you passed to `augment_gallery`.
    weight : float, optional
        Replaces the weight of the bias; 0 is the uncorrected search.
    target : {"ip", "cosine", "l2"}
        The same as for `augment_gallery`.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.

    Returns
    -------
    ndarray, shape (n_queries, dim + 1) or (n_queries, dim + 2), float32

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> from nnnorm.augmentation import augment_queries
    >>> augment_queries(np.eye(2), Bias(np.array([0.25, 0.5]), 0.75, "nnn")).tolist()
    [[1.0, 0.0, -0.75], [0.0, 1.0, -0.75]]
    """
    check_storable(bias)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    if bias.dim is not None and asked.dim != bias.dim:
        raise NNNormError(
            f"{asked.name} and the bias's gallery must have the same dimension; got {asked.dim} "
            f"and {bias.dim}. Were they encoded by different models?"
        )
    used = check_correction(bias.weight if weight is None else weight, bias.values)
    return Augmentation(target).extend_queries(asked.rows(0, len(asked)), used)


def check_storable(bias: Bias) -> None:
    """Raise an error if the bias corrects only some queries: an index can't do this."""
    check_type("bias", bias, Bias, "from a method's fit or Bias.load(path)")
    if bias.gates:
        raise NNNormError(
            f"a gated bias ({bias.method}) corrects only some queries, so an index can't store it; "
            "use nnnorm.search, or fit the method without its gate"
        )
