"""How the correction was built into a collection: `Recipe`, stored as a note with the vectors.

With the recipe a collection can be opened without any other file: it records what is stored, what
to ask, and how the engine's own scores become ``s(q, r) − weight·m(r)`` again.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import Augmentation, Target, check_storable
from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, warn
from nnnorm.files import check_entries
from nnnorm.index.store import Engine, FloatArray, Items, Metadata, StoreMetric, Way, check_way
from nnnorm.methods import find_method
from nnnorm.ranking import warn_of_scale
from nnnorm.version import __version__

_FORMAT = "nnnorm.index/1"
# Room for later items that are a little longer or have a larger bias.
_HEADROOM = 1.05
# Room for a larger bias of later items where numbers have few bits, of which the bound that a
# corrector knows would take too many.
_HEADROOM_OF_BIAS = 1.5
# Norms that differ by more than this make graph search lose items.
_EQUAL = 0.01
# Norms this close to 1 differ from it by rounding only.
_ROUNDING = 1e-5
# Queries whose norms differ from 1 by less than this are unit rows that were rounded.
_UNIT = 5e-3
# Queries that are opened in the short way.
_FEW = 64
# Random seed of the rotation.
_SEED = 0
# Parameters of methods that weigh values, or that only chose other parameters.
_WEIGHTS = {"alpha", "weight", "rule"}
# Entries that change when items are added to a collection.
_CHANGED_BY_ADD = ("lowest", "highest", "shortest", "longest", "added", "clicks")
# Two fits on the same data differ by less than this, on any machine and number of threads.
_SAME = 1e-5


@dataclass(frozen=True)
class Recipe:
    """What is stored in a collection, and what to ask.

    Attributes
    ----------
    dim : int
        Dimension of the embeddings, without extra coordinates.
    way : {"ip", "cosine", "l2", "rerank", "column"}
        How the correction is served.
    metric : {"ip", "cosine", "l2"}
        Metric of the collection.
    weight : float
        Weight of the bias; a search may override it.
    method : str
        Name of the method that fitted the bias.
    shift, scale, radius : float
        The numbers of the `Augmentation`, for ways with extra coordinates.
    lowest, highest : float
        Range of the bias over all items, which decides when a re-rank is certain.
    shortest, longest : float
        Range of the norms of the gallery.
    gallery, metadata, corrector, bank : str or None
        Fingerprints of the gallery, of the metadata of its items, of the corrector that the bias
        came from, and of its references.
    origin : str or None
        Fingerprint of all that decides values but the items, see `origin_of`.
    reference_k : int or None
        How many references were averaged per item.
    reference_low, reference_high : float or None
        Range of the norms of the references, which queries should share.
    unit : bool
        Whether the items were divided by their norms, so that queries have to be too.
    rotation : int or None
        Random seed of the rotation of stored vectors, where there is one.
    popularity : float or None
        The weight of a popularity that was added to the bias.
    clicks : str or None
        Fingerprint of the clicks that a refresh added, by which the same one is known again.
    state : {"part", "whole"}
        Whether all items have been written.
    added : str or None
        Fingerprint of what was added last, by which an interrupted `add` is continued.
    generation : int
        Number of the generation: a refresh gives the new one a larger number than any before.
    version : str or None
        Version of nnnorm that built the collection.
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
    corrector: str | None = None
    origin: str | None = None
    popularity: float | None = None
    clicks: str | None = None
    state: str = "part"
    bank: str | None = None
    reference_k: int | None = None
    reference_low: float | None = None
    reference_high: float | None = None
    unit: bool = False
    rotation: int | None = None
    added: str | None = None
    generation: int = 0
    version: str | None = None

    @cached_property
    def augmentation(self) -> Augmentation | None:
        """The extra coordinates, for ways that add some."""
        if self.way not in get_args(Target):
            return None
        return Augmentation(self.way, self.shift, self.scale, self.radius)  # type: ignore[arg-type]

    @property
    def width(self) -> int:
        """Number of coordinates of a stored vector."""
        return self.dim + (0 if self.augmentation is None else self.augmentation.n_extra)

    @property
    def has_equal_norms(self) -> bool:
        """Whether the norms of the gallery are about equal, as graph search needs.

        The coordinate that makes stored norms equal ("l2", "cosine") does not help a graph, whose
        search then compares norms rather than directions.
        """
        return self.longest - self.shortest <= _EQUAL * self.longest

    def to_dict(self) -> dict[str, Any]:
        """Return the note, ready for JSON."""
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, note: Mapping[str, Any], name: str) -> "Recipe":
        """Read a note; `name` is the collection in messages."""
        if note.get("format") != _FORMAT:
            raise NNNormError(
                f"{name} has a note of another format ({note.get('format')!r}, not {_FORMAT}); "
                "was it built by another version of nnnorm?"
            )
        known = {field.name: note[field.name] for field in fields(cls) if field.name in note}
        try:
            check_entries(known, get_type_hints(cls))
        except TypeError as error:
            raise NNNormError(
                f"the note of {name} is damaged ({error}); build the collection again"
            ) from error
        try:
            return cls(**known)
        except TypeError as error:
            lacks = next(field.name for field in fields(cls) if field.name not in note)
            raise NNNormError(
                f"the note of {name} lacks {lacks!r}; build the collection again"
            ) from error

    def is_like(self, other: "Recipe") -> bool:
        """Whether both are equal up to rounding, as for a bias that was fitted again."""
        left_out = ("version", "generation")
        names = [field.name for field in fields(self) if field.name not in left_out]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return all(
            math.isclose(own, its, rel_tol=_SAME, abs_tol=_SAME)
            if isinstance(own, float) and isinstance(its, float)
            else own == its
            for own, its in pairs
        )

    def has_in_range(self, values: FloatArray) -> bool:
        """Whether values are within the known range of the bias, up to rounding."""
        room = _SAME * max(abs(self.lowest), abs(self.highest), 1e-3)
        low, high = self.lowest - room, self.highest + room
        return bool(((values >= low) & (values <= high)).all())

    def span(self, other: "Recipe") -> "Recipe":
        """Extend the ranges of bias and norms to those of the other recipe."""
        return replace(
            self,
            lowest=min(self.lowest, other.lowest),
            highest=max(self.highest, other.highest),
            shortest=min(self.shortest, other.shortest),
            longest=max(self.longest, other.longest),
        )

    def packs_like(self, other: "Recipe") -> bool:
        """Whether items that were packed by the other recipe may stand beside those of this one.

        That is so for the same generation, to which other programs may have added items.
        """
        return replace(self, **{name: getattr(other, name) for name in _CHANGED_BY_ADD}) == other

    def widen(self, gallery: Embeddings, values: FloatArray) -> "Recipe":
        """Extend all ranges to new items with these bias values."""
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

    def check_unit(self, items: Embeddings, name: str) -> None:
        """Raise for items that are not of unit norm where those of the collection are."""
        low, high = items.norm_range
        if self.unit and not items.normalized and max(1 - low, high - 1) > _UNIT:
            raise NNNormError(
                f"the items of {name} were divided by their norms, but {items.name} has norms "
                f"{low:.4g} to {high:.4g}; pass normalize=True (--normalize), with a bias of such "
                "rows"
            )

    def check_origin(self, bias: Bias, name: str) -> None:
        """Raise unless the values of this bias may stand beside those of the collection."""
        own, new = self.corrector, bias.fingerprints.get("corrector")
        popularity = bias.params.get("popularity_weight")
        if popularity is not None and (popularity, bias.weight) != (self.popularity, self.weight):
            raise NNNormError(
                f"the popularity of the new items has the weight {popularity:g} beside a bias of "
                f"{bias.weight:g}, that of {name} {self.popularity or 0:g} beside {self.weight:g}; "
                "add it with the same weights"
            )
        if own != new:
            raise NNNormError(
                f"the items of {name} have a bias from {_name(own)}, the new ones from "
                f"{_name(new)}, and such values do not mix; use Corrector.bias_of (nnnorm extend) "
                "of the same corrector"
            )
        if bias.method != self.method:
            raise NNNormError(
                f"the items of {name} have a bias by {self.method}, the new ones by {bias.method}; "
                "fit the new ones by the same method and references"
            )
        given = origin_of(bias)
        if self.origin is None and given is not None:
            warn(
                f"where the values of {name} come from is not known, so whether the new ones fit "
                "in is not checked; they have to be of the same bank, k and normalisation"
            )
        elif self.origin is not None and given != self.origin:
            unknown = "from an unknown source" if given is None else "another bank or setting"
            raise NNNormError(
                f"the bias of the new items is {unknown}, and its values do not mix with those of "
                f"{name}; build the index with the bias of a Corrector (nnnorm fit "
                "--save-corrector), and take its bias_of (nnnorm extend) for new items"
            )

    def pack(self, items: Items) -> Items:
        """Turn raw items with their values into what the store keeps."""
        if items.values is None:
            raise NNNormError("items need their bias values; got none")
        if self.augmentation is None:
            return items
        vectors = self.augmentation.extend_items(items.vectors, items.values)
        return Items(items.ids, self._rotate(vectors), None, items.metadata)

    def unpack(self, items: Items) -> Items:
        """Turn what the store keeps into raw items with their values."""
        if self.augmentation is None:
            return items
        vectors = items.vectors
        if self.rotation is not None:
            vectors = vectors @ rotation_of(self.width, self.rotation).T
        return Items(items.ids, *self.augmentation.split_items(vectors), items.metadata)

    def ask(self, queries: FloatArray, weight: float) -> FloatArray:
        """Turn queries into what the store is asked."""
        if self.augmentation is None:
            return queries
        return self._rotate(self.augmentation.extend_queries(queries, weight))

    def _rotate(self, rows: FloatArray) -> FloatArray:
        return rows if self.rotation is None else rows @ rotation_of(self.width, self.rotation)

    def open_queries(self, queries: Source, normalize: bool | None, name: str) -> FloatArray:
        """Return the rows of queries for the collection `name`: of unit norm where its items are.

        Queries of another scale than the references of the bias are warned of.
        """
        wanted = True if self.unit and normalize is None else normalize
        asked = open_embeddings(queries, name="queries", normalize=wanted, fingerprint=False)
        if asked.dim != self.dim:
            raise NNNormError(
                f"{asked.name} and the items of {name} must share dim; got {asked.dim} and "
                f"{self.dim}. Were they encoded by different models?"
            )
        low, high = asked.norm_range
        if self.unit and not asked.normalized and max(1 - low, high - 1) > _UNIT:
            raise NNNormError(
                f"the items of {name} were divided by their norms, and {asked.name} has norms "
                f"{low:.4g} to {high:.4g}; leave out normalize=False, so that queries are divided "
                "by theirs too"
            )
        if not self.unit and self.reference_low is not None and self.reference_high is not None:
            norms = self.reference_low, self.reference_high
            bounds = np.array([self.lowest, self.highest], dtype=np.float32)
            known = Bias(bounds, 1.0, self.method, reference_norms=norms)
            warn_of_scale(known, asked, self.weight)
        return asked.rows(0, len(asked))

    def open_few(self, queries: Source, normalize: bool | None) -> FloatArray | None:
        """Open a few plain rows without ceremony; None where there is anything to say of them.

        A search of one query takes less time than all of the checks of `open_queries`.
        """
        if not (isinstance(queries, np.ndarray) and queries.dtype in (np.float32, np.float64)):
            return None
        if queries.ndim != 2 or queries.shape[1] != self.dim or not 0 < len(queries) <= _FEW:
            return None
        norms = np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64))
        low, high = float(norms.min()), float(norms.max())
        if not (1e-6 < low <= high < 1e6):  # also NaN
            return None
        if normalize or (self.unit and normalize is None):
            return (queries / norms[:, None]).astype(np.float32)
        least, most = self.reference_low or low, self.reference_high or high
        is_usual = 0.9 * least <= low and high <= 1.1 * most and high - low <= _EQUAL * high
        if not is_usual or (self.unit and max(1 - low, high - 1) > _UNIT):
            return None
        return np.array(queries, dtype=np.float32)

    def doubt(self, products: FloatArray) -> FloatArray:
        """Bound the error of the raw scores of a re-rank, ``(n_queries, n_hits)``, per query.

        Cosine and L2 do not give the norm of an item, which is taken as 1; the norms of the
        gallery may differ from that a little.
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
        """Turn the store's own scores into inner products, and those into corrected scores.

        Ways without extra coordinates give raw scores.
        """
        products = scores.astype(np.float64)
        if self.metric != "ip":
            norms = np.linalg.norm(asked.astype(np.float64), axis=1)[:, None]
            if self.metric == "cosine":
                products = products * norms * self.radius
            else:
                products = (norms**2 + self.radius**2 + products) / 2
        if self.augmentation is not None:
            products = products - weight * self.shift
        return products.astype(np.float32)


class MetadataPrint:
    """Fingerprint of the metadata of items, computed as they are read.

    Examples
    --------
    >>> MetadataPrint().take([{"year": 1999}, {}]).value
    '65ebd17336981be9'
    >>> MetadataPrint().take([{}, {}]).value  # no item has any
    """

    def __init__(self) -> None:
        self._digest, self._is_empty = hashlib.sha256(), True

    def take(self, metadata: Iterable[Metadata]) -> "MetadataPrint":
        """Add some more items, in their order."""
        for entry in metadata:
            self._is_empty = self._is_empty and not entry
            text = json.dumps(dict(entry), sort_keys=True, default=str)
            self._digest.update(f"{text}\n".encode())
        return self

    @property
    def value(self) -> str | None:
        """The fingerprint; None where no item has metadata."""
        return None if self._is_empty else self._digest.hexdigest()[:16]


def make_recipe(
    store: Engine | type[Engine],
    gallery: Embeddings,
    bias: Bias,
    *,
    way: Way | None = None,
    scale: float | None = None,
    corrector: Corrector | None = None,
) -> Recipe:
    """Choose how to serve a gallery in a store.

    With the corrector that the bias came from, there is room for every item that it may give a
    value to; otherwise for items that are a little longer, or have a little more of a bias.

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
    check_storable(bias)
    bias.check_gallery(gallery)
    low, high = gallery.norm_range
    chosen = store.ways[0] if way is None else check_way(way, store)
    metric = _choose_metric(store, chosen)
    if chosen == "rerank":
        others = ", ".join(way for way in store.ways if way != "rerank")
        _check_rerank(metric, low, high, gallery.name, f", or use another way: {others}")
    values = bias.values.astype(np.float64)
    known = None if corrector is None or store.is_quantized or scale else corrector.augmentation
    if known is not None and corrector is not None and "popularity_weight" in bias.params:
        known = _balance(known, values, bias.weight, corrector.longest)
    shift = float(values.mean()) if known is None else known.shift
    room = 1.0 if corrector is None else _HEADROOM_OF_BIAS
    largest = float(np.abs(values - shift).max())
    if scale is None and (store.is_quantized or largest > high):
        # Values that are longer than the items would lead a graph instead of them. All stored
        # vectors are as long as the longest, where norms are made equal.
        equal = store.is_quantized and chosen in ("cosine", "l2")
        scale = _choose_scale(room * largest if equal else float(values.std()), bias.weight)
    scale = 1.0 if scale is None else float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise NNNormError(f"scale must be positive; got {scale}")
    largest *= scale
    radius = _HEADROOM * math.hypot(high, room * largest) if chosen in ("cosine", "l2") else 1.0
    if known is not None and chosen in get_args(Target):
        scale, radius = known.scale, 1.0 if chosen == "ip" else known.radius
    norms = bias.reference_norms or (None, None)
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
        corrector=bias.fingerprints.get("corrector"),
        origin=origin_of(bias),
        popularity=bias.params.get("popularity_weight"),
        bank=bias.fingerprints.get("references"),
        reference_k=bias.reference_k,
        reference_low=norms[0],
        reference_high=norms[1],
        unit=gallery.normalized or (corrector is not None and corrector.unit),
        rotation=_SEED if store.has_one_range and chosen in get_args(Target) else None,
        version=__version__,
    )


@lru_cache(maxsize=4)
def rotation_of(width: int, seed: int) -> FloatArray:
    """Return a random orthogonal matrix, shape ``(width, width)``; the same for the same seed.

    Examples
    --------
    >>> turned = rotation_of(3, 0)
    >>> np.allclose(turned @ turned.T, np.eye(3), atol=1e-6)
    True
    """
    drawn = np.random.default_rng(seed).normal(size=(width, width))
    matrix, triangle = np.linalg.qr(drawn)
    # Libraries differ in the signs of a decomposition.
    turned = (matrix * np.where(np.diag(triangle) < 0, -1.0, 1.0)).astype(np.float32)
    turned.setflags(write=False)
    return turned


def origin_of(bias: Bias) -> str | None:
    """Fingerprint of all that decides the values of any item: banks, method, settings, centre.

    None where that is not known, as for values that were made by hand.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import NNN
    >>> items, bank = -np.eye(4), np.eye(4)
    >>> first, second = (NNN(2, 0.5).fit(items[part], bank) for part in ([0, 1], [2, 3]))
    >>> origin_of(first) == origin_of(second) != origin_of(NNN(1, 0.5).fit(items, bank))
    True
    """
    prints = {name: print_ for name, print_ in bias.fingerprints.items() if name != "gallery"}
    if not prints:
        return None
    kind, _ = find_method(bias.method)
    names = {part.name for part in fields(kind)} - _WEIGHTS
    about = {name: bias.params[name] for name in sorted(names) if name in bias.params}
    if about.get("center") is True and "corrector" not in prints:
        # Its mean was taken off; a bias that does not name its gallery has a centre of its own.
        prints["center"] = bias.fingerprints.get("gallery") or bias.created
    about |= {"duplicates": "drop" if "n_unique" in bias.params else "keep"}
    text = json.dumps([bias.method, about, prints], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _name(corrector: str | None) -> str:
    return "no corrector" if corrector is None else f"corrector {corrector[:8]}"


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


def _choose_scale(spread: float, weight: float) -> float:
    """Balance the outlier: ``scale·spread`` in items against ``weight/scale`` in queries.

    Engines that quantise both use one step for all coordinates, which the largest one sets.
    """
    return math.sqrt(abs(weight) / spread) if spread > 0 and weight != 0 else 1.0


def _balance(
    known: Augmentation, values: npt.NDArray[np.float64], weight: float, longest: float
) -> Augmentation:
    """Choose shift and scale anew where clicks make values longer than items; the room stays."""
    shift = float(values.mean())
    if np.abs(values - shift).max() <= longest:
        return known
    scale = _choose_scale(float(values.std()), weight)
    room = math.sqrt(max(0.0, known.radius**2 - longest**2)) / known.scale
    reach = scale * (room + abs(shift - known.shift))
    radius = (1 + _ROUNDING) * math.hypot(longest, reach)
    return replace(known, shift=shift, scale=scale, radius=radius)
