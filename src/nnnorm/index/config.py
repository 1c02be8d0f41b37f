"""`IndexConfig`: the correction of an index, and the checks of ids and metadata.

Only this module calls a corrector's transforms. A config has everything that a search needs, so you
can search an index without its corrector.
"""

import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from nnnorm.augmentation import Augmentation
from nnnorm.bias import Bias, check_correction
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, has_surrogates
from nnnorm.index.backend import KINDS, FloatArray, Ids, Items, Kind, Metadata, Metric, Mode
from nnnorm.ranking import warn_of_scale
from nnnorm.tables import check_ids

FORMAT = "nnnorm.index/2"
_LONGEST_ID = 1000
# Columns of nnnorm's tables, and system columns of databases.
_RESERVED = {
    *("id", "embedding", "bias", "metadata", "key", "norm", "vector", "distance", "score"),
    *("rowid", "oid", "ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"),
}
_MOST_COLUMNS = 50
_DEEPEST = 100  # levels of metadata
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
_NEAR_ONE = 4  # powers of two
_FEW = 64  # rows that are checked without opening them as embeddings


@dataclass(frozen=True)
class IndexConfig:
    """The correction and the layout of a version."""

    version: int
    corrector: str
    method: str
    weight: float
    reference_k: int | None
    dim: int
    unit: bool
    mode: Mode
    metric: Metric
    string_ids: bool
    columns: dict[str, Kind]
    created: dict[str, Any]
    augmentation: Augmentation
    bias_range: Sequence[float]
    reference_norms: Sequence[float] | None
    rotated: bool
    previous: int | None = None
    popularity: float | None = None
    alpha: float | None = None  # differs from the weight if there are groups
    stretch: float = 1.0

    @classmethod
    def from_dict(cls, stored: dict[str, Any], name: str) -> "IndexConfig":
        """Read the result of `to_dict`, or raise an error."""
        about = dict(stored)
        try:
            if about.pop("format", None) != FORMAT:
                raise TypeError
            return cls(**about | {"augmentation": Augmentation(**about["augmentation"])})
        except (TypeError, KeyError):
            problem = f"the index metadata of {name} is damaged, or of another version of nnnorm"
            raise NNNormError(f"{problem}; build the index again") from None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    @property
    def width(self) -> int:
        """Dimension of the stored vectors."""
        return self.dim + (2 if self.mode == "augmented" else 0)

    # --- items ---

    def transform_items(
        self, rows: FloatArray, values: FloatArray
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the vectors to store, and in mode ``column`` the column of the bias."""
        if self.mode == "column":
            return rows, values
        vectors = self.augmentation.extend_items(rows, values)
        vectors = np.multiply(vectors, np.float32(self.stretch))
        return (vectors @ _rotation(self.width) if self.rotated else vectors), None

    def restore_items(self, items: Items) -> Items:
        """Convert stored items to their original rows and biases."""
        if self.mode == "column":
            return items
        vectors = items.vectors @ _rotation(self.width).T if self.rotated else items.vectors
        restored = self.augmentation.split_items(vectors / self.stretch)
        return Items(items.ids, *restored, items.metadata)

    # --- queries ---

    def open_queries(self, queries: Source, name: str) -> FloatArray:
        """Return the rows of queries, of unit norm if the items are."""
        if (few := self._open_few(queries)) is not None:
            return few
        opened = open_embeddings(
            queries, name="queries", normalize=self.unit or None, fingerprint=False
        )
        if opened.dim != self.dim:
            raise NNNormError(
                f"queries and the items of {name} must have the same dimension; got "
                f"{opened.dim} and {self.dim}. Were they encoded by different models?"
            )
        if not self.unit:
            norms: Any = self.reference_norms and tuple(self.reference_norms)  # JSON has lists
            known = np.array(self.bias_range, dtype=np.float32)
            warn_of_scale(Bias(known, 1.0, self.method, reference_norms=norms), opened, self.weight)
        return opened.rows(0, len(opened))

    def _open_few(self, queries: Source) -> FloatArray | None:
        """Return a few unit rows without most checks, which take longer than a search."""
        if not (self.unit and isinstance(queries, np.ndarray) and queries.dtype.kind == "f"):
            return None
        if queries.ndim != 2 or queries.shape[1] != self.dim or not 0 < len(queries) <= _FEW:
            return None
        norms = np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64))
        if not (norms.min() > 1e-6 and norms.max() < 1e6):  # also NaN
            return None
        return (queries / norms[:, None]).astype(np.float32)

    def use_weight(self, weight: float | None) -> float:
        """Return the weight to use; raise an error if the correction overflows float32."""
        return self.weight if weight is None else check_correction(weight, self.bias_range)

    def transform_queries(self, rows: FloatArray, weight: float) -> FloatArray:
        """Return the vectors to send to the engine."""
        if self.mode == "column":
            return rows
        asked = self.augmentation.extend_queries(rows, weight)
        asked = np.multiply(asked, np.float32(self._query_stretch))
        return asked @ _rotation(self.width) if self.rotated else asked

    def read_scores(self, scores: FloatArray, asked: FloatArray, weight: float) -> FloatArray:
        """Convert the engine's scores to corrected scores."""
        if self.mode == "column":
            return scores
        if self.metric == "ip":
            scores = scores / (self.stretch * self._query_stretch)
        asked = asked / self._query_stretch
        return self.augmentation.read_scores(scores, asked, weight, self.metric)

    @property
    def _query_stretch(self) -> float:
        return _inverse(self.reference_norms[1]) if self.reference_norms else 1.0


def describe_corrector(corrector: Corrector) -> dict[str, Any]:
    """Return the fields of a config that describe the corrector."""
    bias = corrector.bias
    return {
        "corrector": corrector.fingerprint,
        "method": bias.method,
        "weight": bias.weight,
        "alpha": bias.params.get("alpha"),
        "reference_k": bias.params.get("reference_k"),
        "dim": corrector.dim,
        "unit": corrector.unit or corrector.normalize,
        "augmentation": corrector.augmentation,
        "stretch": _inverse(corrector.augmentation.radius),
        "bias_range": (float(bias.values.min()), float(bias.values.max())),
        "reference_norms": bias.reference_norms,
    }


def _inverse(norm: float) -> float:
    """Return a power of two that makes a norm about 1 if it is far from it.

    Some engines compute one minus the product, in which tiny products would be rounded away.
    """
    exponent = round(math.log2(norm))
    return 2.0**-exponent if abs(exponent) > _NEAR_ONE else 1.0


@lru_cache(maxsize=4)
def _rotation(width: int) -> FloatArray:
    """Return a fixed random orthogonal matrix, shape ``(width, width)``."""
    matrix, triangle = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))
    # The signs of a decomposition depend on the library.
    turned = (matrix * np.where(np.diag(triangle) < 0, -1.0, 1.0)).astype(np.float32)
    turned.setflags(write=False)
    return turned


def bias_values(corrector: Corrector, rows: Embeddings, groups: Any = None) -> FloatArray:
    """Return the bias of items; the bias of the corrector's own gallery is reused."""
    known = corrector.bias
    is_own = known.fingerprints.get("gallery") is not None and known.fits(rows)
    return known.values if is_own and groups is None else corrector.values_for(rows, groups)


def read_groups(groups: Any, ids: Ids, metadata: Sequence[Metadata]) -> Any:
    """Return the groups of items, given as a list, by id, or as a metadata key."""
    items, problem = ids.tolist(), "groups has no label for the item {!r}; add it"
    if isinstance(groups, str):
        problem = f"the metadata of item {{!r}} has no key {groups!r} with its group; add it"
        pairs = zip(items, metadata, strict=True)
        groups = {own: entry[groups] for own, entry in pairs if groups in entry}
    if not isinstance(groups, Mapping):
        return groups
    if missing := [own for own in items if own not in groups]:
        raise NNNormError(problem.format(missing[0]))
    return [groups[own] for own in items]


@dataclass(frozen=True)
class CollectionInfo:
    """The result of `nnnorm index info`."""

    name: str
    n_items: int
    dim: int
    version: int
    corrector: str
    method: str
    weight: float
    alpha: float | None
    mode: Mode
    can_roll_back: bool
    is_rolled_back: bool


# --- checks of ids and metadata ---


def check_item_ids(ids: Any, n_items: int | None = None, name: str = "gallery") -> Ids:
    """Return ids that every engine can store, or raise an error."""
    listed = np.array(ids, dtype=object)
    for own in listed.ravel().tolist():
        if isinstance(own, str) and not (0 < len(own) <= _LONGEST_ID and _is_text(own)):
            raise NNNormError(
                f"an id must be a whole number, or text of 1 to {_LONGEST_ID} characters without "
                f"null characters or surrogates; got {own!r:.60}"
            )
    return check_ids(ids, listed.size if n_items is None else n_items, name=name)


def check_metadata(metadata: Sequence[Metadata] | None, n_items: int) -> list[dict[str, Any]]:
    """Return plain JSON metadata per item, or raise an error before anything is written."""
    entries = [{} for _ in range(n_items)] if metadata is None else list(metadata)
    if len(entries) != n_items:
        raise NNNormError(f"metadata must have {n_items} entries, one per item; got {len(entries)}")
    checked = []
    for row, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not all(map(_is_key, entry)):
            raise NNNormError(
                f"metadata of item {row} must be a mapping with text keys that don't begin with "
                f"nnnorm_; got {reprlib.repr(entry)}"
            )
        reject = partial(_reject, row)
        checked.append({key: to_json(value, reject) for key, value in entry.items()})
    return checked


def _reject(row: int, value: Any) -> Any:
    raise NNNormError(
        f"metadata of item {row} must be JSON: finite numbers, 64-bit integers, text without null "
        f"characters or surrogates, at most {_DEEPEST} levels; got {reprlib.repr(value)}"
    )


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and bool(key) and _is_text(key) and not key.startswith("nnnorm_")


def to_json(value: Any, otherwise: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return a value that every engine stores unchanged; call `otherwise` for other values."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":  # not dates
        value = value.item()
    for kind in (str, int, float):  # enums and other subclasses: some engines don't know them
        if isinstance(value, kind) and not isinstance(value, bool):
            value = getattr(kind, f"__{kind.__name__}__")(value)
    if depth <= _DEEPEST:
        if isinstance(value, (list, tuple)):
            return [to_json(one, otherwise, depth + 1) for one in value]
        if isinstance(value, Mapping) and all(isinstance(k, str) and _is_text(k) for k in value):
            return {key: to_json(one, otherwise, depth + 1) for key, one in value.items()}
    is_whole = isinstance(value, int) and -(2**63) <= value < 2**63
    is_number = is_whole or (isinstance(value, float) and math.isfinite(value))
    if value is None or is_number or (isinstance(value, str) and _is_text(value)):
        return value
    return otherwise(value)


def _is_text(value: str) -> bool:
    """Whether every engine can store a text: no null characters, no lone surrogates."""
    return "\0" not in value and not has_surrogates(value)


def choose_columns(metadata: Iterable[Metadata]) -> dict[str, Kind]:
    """Choose the keys that get a column: plain names with values of one kind."""
    kinds: dict[str, set[Kind | None]] = {}
    for entry in metadata:
        for name, value in entry.items():
            if value is not None:
                kinds.setdefault(name, set()).add(KINDS.get(type(value)))
    chosen: dict[str, Kind] = {}
    taken = set(_RESERVED)
    for name, found in kinds.items():
        kind = found.pop() if len(found) == 1 else None
        is_free = _NAME.fullmatch(name) and name.lower() not in taken
        if kind is not None and is_free and len(chosen) < _MOST_COLUMNS:
            chosen[name] = kind
            taken.add(name.lower())
    return chosen
