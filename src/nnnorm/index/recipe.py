"""How the correction was built into a collection: `Recipe`, kept as a note beside the vectors.

With it a collection can be opened by anyone: it says what is stored, what to ask, and how the
engine's own scores become ``s(q, r) − weight·m(r)`` again.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import Target, count_extra, extend_rows
from nnnorm.bias import Bias
from nnnorm.errors import NNNormError
from nnnorm.index.store import Engine, Items, Metadata, StoreMetric, Way, check_way
from nnnorm.io import Embeddings

__all__ = ["MetadataPrint", "Recipe", "make_recipe", "refuse_gates"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
_FORMAT = "nnnorm.index/1"
# Room for items that come later and are a little longer, or have a larger bias.
_HEADROOM = 1.05
_TARGETS = get_args(Target)
# Norms that differ by more than this make graph search lose items.
_EQUAL = 0.01
# Norms this near to 1 are 1 but for rounding.
_ROUNDING = 1e-5
# Numbers of two fits on the same data differ by less, whatever machine or threads made them.
_SAME = 1e-5


@dataclass(frozen=True)
class Recipe:
    """What is stored, and what to ask.

    Attributes
    ----------
    dim : int
        Of the embeddings, without extra coordinates.
    way : {"ip", "cosine", "l2", "rerank", "column"}
    metric : {"ip", "cosine", "l2"}
        What the collection compares by.
    weight : float
        Of the bias; a search may override it.
    method : str
        That made the bias.
    shift, scale : float
        ``scale·(m − shift)`` is the extra coordinate.
    radius : float
        Norm of all stored vectors (ways "cosine" and "l2").
    lowest, highest : float
        Range of the bias over all items: when a re-rank is certain.
    shortest, longest : float
        Range of the norms of the gallery.
    gallery, metadata : str or None
        Fingerprints of the gallery it was built from, and of what else is known of its items.
    state : {"part", "whole"}
        Whether all items are in.
    """

    dim: int
    way: Way
    metric: StoreMetric
    weight: float
    method: str
    shift: float
    scale: float
    radius: float
    lowest: float
    highest: float
    shortest: float
    longest: float
    gallery: str | None
    metadata: str | None = None
    state: str = "part"

    @property
    def width(self) -> int:
        """Coordinates of a stored vector."""
        return self.dim + (0 if self.target is None else count_extra(self.target))

    @property
    def has_equal_norms(self) -> bool:
        """Whether the gallery's norms are about the same, as graphs want them.

        The coordinate that makes stored norms equal ("l2", "cosine") does not help a graph: its
        search is then among norms instead of meanings.
        """
        return self.longest - self.shortest <= _EQUAL * self.longest

    @property
    def target(self) -> Target | None:
        """The way, where it adds coordinates."""
        return self.way if self.way in _TARGETS else None  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, note: Mapping[str, Any], name: str) -> "Recipe":
        """Read a note, or say what is wrong with it."""
        if note.get("format") != _FORMAT:
            raise NNNormError(
                f"{name} has a note of another format ({note.get('format')!r}, not {_FORMAT}); "
                "was it built by another version of nnnorm?"
            )
        known = {field.name: note[field.name] for field in fields(cls) if field.name in note}
        try:
            return cls(**known)
        except TypeError as error:
            lacks = next(field.name for field in fields(cls) if field.name not in note)
            raise NNNormError(
                f"the note of {name} lacks {lacks!r}; build the collection anew"
            ) from error

    def is_like(self, other: "Recipe") -> bool:
        """Whether both are the same but for rounding: a bias fitted again may differ by that."""
        pairs = [(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        return all(
            math.isclose(own, its, rel_tol=_SAME, abs_tol=_SAME)
            if isinstance(own, float)
            else own == its
            for own, its in pairs
        )

    def span(self, other: "Recipe") -> "Recipe":
        """The same, for items of the other recipe too."""
        return replace(
            self,
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
        )

    def pack(self, items: Items) -> Items:
        """Raw items with their values, as the store keeps them."""
        values = items.values
        if values is None:
            raise NNNormError("items need their bias values; got none")
        if self.target is None:
            return items
        vectors = extend_rows(
            items.vectors,
            values,
            target=self.target,
            shift=self.shift,
            scale=self.scale,
            radius=self.radius,
        )
        return Items(items.ids, vectors, None, items.metadata)

    def unpack(self, items: Items) -> Items:
        """What the store keeps, as raw items with their values."""
        if self.target is None:
            return items
        stored = items.vectors
        if self.metric == "cosine":  # some engines keep the direction alone
            stored = stored * (self.radius / np.linalg.norm(stored, axis=1, keepdims=True))
        values = stored[:, self.dim] / np.float32(self.scale) + np.float32(self.shift)
        raw = np.ascontiguousarray(stored[:, : self.dim], dtype=np.float32)
        return Items(items.ids, raw, values.astype(np.float32), items.metadata)

    def widen(self, gallery: Embeddings, values: FloatArray) -> "Recipe":
        """The same, once these items with these values have come in."""
        low, high = gallery.norm_range
        if self.way == "rerank":
            _check_rerank(self.metric, low, high, gallery.name)
        return replace(
            self,
            lowest=min(self.lowest, float(values.min())),
            highest=max(self.highest, float(values.max())),
            shortest=min(self.shortest, low),
            longest=max(self.longest, high),
        )

    def ask(self, queries: FloatArray, weight: float) -> FloatArray:
        """Queries as the store wants them."""
        if self.target is None:
            return queries
        extra = np.zeros((len(queries), count_extra(self.target)), dtype=np.float32)
        extra[:, 0] = -weight / self.scale
        return np.hstack([queries, extra])

    def doubt(self, products: FloatArray) -> FloatArray:
        """How far raw scores of a re-rank, ``(n_queries, n_hits)``, may be off, for each query.

        Cosine and L2 don't tell an item's norm, which is taken for 1; the gallery's norms may
        differ from that a little.
        """
        far = max(abs(self.shortest - 1), abs(self.longest - 1))
        if self.metric == "ip" or far <= _ROUNDING:
            return np.zeros(len(products), dtype=np.float32)
        if self.metric == "l2":
            off = max(abs(self.shortest**2 - 1), abs(self.longest**2 - 1)) / 2
            return np.full(len(products), off, dtype=np.float32)
        found = np.where(np.isfinite(products), np.abs(products), 0)
        return (far * found.max(axis=1, initial=0)).astype(np.float32)

    def read_scores(self, scores: FloatArray, asked: FloatArray, weight: float) -> FloatArray:
        """The store's own scores back to inner products, and those to corrected scores.

        For ways without extra coordinates: to raw ones.
        """
        products = scores.astype(np.float64)
        if self.metric != "ip":
            norms = np.linalg.norm(asked.astype(np.float64), axis=1)[:, None]
            if self.metric == "cosine":
                products = products * norms * self.radius
            else:
                products = (norms**2 + self.radius**2 + products) / 2
        if self.target is not None:
            products = products - weight * self.shift
        return products.astype(np.float32)


class MetadataPrint:
    """Fingerprint of what is known of items, taken in as they come.

    Examples
    --------
    >>> MetadataPrint().take([{"year": 1999}, {}]).value
    '65ebd17336981be9'
    >>> MetadataPrint().take([{}, {}]).value  # nothing is known
    """

    def __init__(self) -> None:
        self._digest, self._is_empty = hashlib.sha256(), True

    def take(self, metadata: Iterable[Metadata]) -> "MetadataPrint":
        """Some more items, in their order."""
        for entry in metadata:
            self._is_empty = self._is_empty and not entry
            text = json.dumps(dict(entry), sort_keys=True, default=str)
            self._digest.update(f"{text}\n".encode())
        return self

    @property
    def value(self) -> str | None:
        """Of all that was taken in; None where no item has any."""
        return None if self._is_empty else self._digest.hexdigest()[:16]


def make_recipe(
    store: Engine | type[Engine],
    gallery: Embeddings,
    bias: Bias,
    *,
    way: Way | None = None,
    scale: float | None = None,
) -> Recipe:
    """Choose how to serve this gallery in that store.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> bias = Bias(np.array([0.25, 0.5]), 0.75, "nnn")
    >>> recipe = make_recipe(FaissStore(), open_embeddings(np.eye(2)), bias)
    >>> recipe.way, recipe.width, recipe.shift
    ('ip', 3, 0.375)
    """
    bias.check_gallery(gallery)
    refuse_gates(bias)
    low, high = gallery.norm_range
    chosen = store.ways[0] if way is None else check_way(way, store)
    metric = _choose_metric(store, chosen)
    if chosen == "rerank":
        others = ", ".join(way for way in store.ways if way != "rerank")
        _check_rerank(metric, low, high, gallery.name, f", or use another way: {others}")
    values = bias.values.astype(np.float64)
    shift = float(values.mean())
    if scale is None:
        scale = _choose_scale(values, bias.weight) if store.is_quantized else 1.0
    if not (math.isfinite(scale) and scale > 0):
        raise NNNormError(f"scale must be positive; got {scale}")
    largest = float(np.abs(values - shift).max()) * scale
    radius = _HEADROOM * math.hypot(high, largest) if chosen in ("cosine", "l2") else 1.0
    return Recipe(
        dim=gallery.dim,
        way=chosen,
        metric=metric,
        weight=bias.weight,
        method=bias.method,
        shift=shift,
        scale=scale,
        radius=radius,
        lowest=float(values.min()),
        highest=float(values.max()),
        shortest=low,
        longest=high,
        gallery=gallery.fingerprint,
    )


def refuse_gates(bias: Bias) -> None:
    """Raise for a bias that decides per query.

    Examples
    --------
    >>> import numpy as np
    >>> refuse_gates(Bias(np.array([0.25, 0.5]), 0.75, "nnn"))
    """
    if bias.gates:
        raise NNNormError(
            f"a gated bias ({bias.method}) decides per query and can't be stored in an index; "
            "use nnnorm.search, or fit the method without its gate"
        )


def _check_rerank(
    metric: StoreMetric, low: float, high: float, name: str, or_else: str = ""
) -> None:
    if metric != "ip" and max(abs(low - 1), abs(high - 1)) > _EQUAL:
        raise NNNormError(
            f"a re-rank of hits by {metric} needs unit norm, but {name} has norms {low:.4g} to "
            f"{high:.4g}; normalise them (bias and queries too){or_else}"
        )


def _choose_metric(store: Engine | type[Engine], way: Way) -> StoreMetric:
    if way in get_args(StoreMetric):
        return way  # type: ignore[return-value]
    if way == "column":
        return "ip"
    return next(metric for metric in ("ip", "cosine", "l2") if metric in store.ways)


def _choose_scale(values: npt.NDArray[np.float64], weight: float) -> float:
    """Share the outlier between both sides: ``scale·std(m)`` of items, ``weight/scale`` of queries.

    Engines that quantise both have one step for all coordinates; the largest decides it.
    """
    spread = float(values.std())
    return math.sqrt(abs(weight) / spread) if spread > 0 and weight != 0 else 1.0
