"""`IndexConfig`: what an index knows about its correction, stored with each version.

It is the only place that calls a corrector's transforms. It also holds all that a search needs, so
an index can be searched without its corrector.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from nnnorm.augmentation import Augmentation
from nnnorm.bias import Bias, check_correction, check_weight
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.index.backend import FloatArray, Items, Kind, Metric, Mode
from nnnorm.ranking import warn_of_scale
from nnnorm.version import __version__

FORMAT = "nnnorm.index/2"
# What a refresh leaves as it is.
OF_THE_COLLECTION = ("mode", "metric", "string_ids", "columns", "created", "rotated")
_FEW = 64  # rows that are checked without opening them as embeddings


@dataclass(frozen=True)
class IndexConfig:
    """How a version was made."""

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
    shift: float
    scale: float
    radius: float
    lowest: float
    highest: float
    reference_norms: Sequence[float] | None
    rotated: bool
    previous: int | None = None
    popularity: float | None = None
    written_by: str = __version__

    @classmethod
    def make(cls, corrector: Corrector, **about: Any) -> "IndexConfig":
        """Describe a version whose items get their bias from this corrector."""
        bias, kept = corrector.bias, corrector.augmentation
        return cls(
            corrector=corrector.fingerprint,
            method=bias.method,
            weight=bias.weight,
            reference_k=bias.reference_k,
            dim=corrector.dim,
            unit=corrector.unit or corrector.normalize,
            shift=kept.shift,
            scale=kept.scale,
            radius=kept.radius,
            lowest=float(bias.values.min()),
            highest=float(bias.values.max()),
            reference_norms=bias.reference_norms,
            **about,
        )

    @classmethod
    def from_dict(cls, stored: dict[str, Any], name: str) -> "IndexConfig":
        """Read what `to_dict` wrote, or raise if it is something else."""
        about = dict(stored)
        try:
            if about.pop("format", None) != FORMAT:
                raise TypeError
            return cls(**about)
        except TypeError:
            raise NNNormError(
                f"the index metadata of {name} can't be read; it was written by another version of "
                "nnnorm, or is damaged: build the index again"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    @cached_property
    def _augmentation(self) -> Augmentation:
        return Augmentation("l2", self.shift, self.scale, self.radius)

    @property
    def width(self) -> int:
        """Dimension of the stored vectors."""
        return self.dim + (2 if self.mode == "augmented" else 0)

    # --- items ---

    def transform_items(
        self, rows: FloatArray, values: FloatArray
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the vectors to store, and the bias column if there is one."""
        if self.mode == "column":
            return rows, values
        return self._rotate(self._augmentation.extend_items(rows, values)), None

    def restore_items(self, items: Items) -> Items:
        """Turn stored items into the rows that were given, and their bias."""
        if self.mode == "column":
            return items
        vectors = items.vectors
        if self.rotated:
            vectors = vectors @ _rotation(self.width).T
        rows, values = self._augmentation.split_items(vectors)
        return Items(items.ids, rows, values, items.metadata)

    # --- queries ---

    def open_queries(self, queries: Source, name: str) -> FloatArray:
        """Return the rows of queries, of unit norm if the items are."""
        few = self._open_few(queries)
        if few is not None:
            return few
        opened = open_embeddings(
            queries, name="queries", normalize=self.unit or None, fingerprint=False
        )
        if opened.dim != self.dim:
            raise NNNormError(
                f"queries and the items of {name} must share dim; got {opened.dim} and {self.dim}. "
                "Were they encoded by different models?"
            )
        if not self.unit:
            bounds = np.array([self.lowest, self.highest], dtype=np.float32)
            norms: Any = self.reference_norms and tuple(self.reference_norms)  # JSON has lists
            known = Bias(bounds, 1.0, self.method, reference_norms=norms)
            warn_of_scale(known, opened, self.weight)
        return opened.rows(0, len(opened))

    def _open_few(self, queries: Source) -> FloatArray | None:
        """Open a few plain rows of unit items; a search of one query takes less than all checks."""
        if not (self.unit and isinstance(queries, np.ndarray) and queries.dtype.kind == "f"):
            return None
        if queries.ndim != 2 or queries.shape[1] != self.dim or not 0 < len(queries) <= _FEW:
            return None
        norms = np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64))
        if not (norms.min() > 1e-6 and norms.max() < 1e6):  # also NaN
            return None
        return (queries / norms[:, None]).astype(np.float32)

    def use_weight(self, weight: float | None) -> float:
        """Return a weight that replaces the corrector's, or raise if float32 can't hold it."""
        if weight is None:
            return self.weight
        used = check_weight(weight)
        check_correction(used, [self.lowest, self.highest])
        return used

    def transform_queries(self, rows: FloatArray, weight: float) -> FloatArray:
        """Return what the engine is asked."""
        if self.mode == "column":
            return rows
        return self._rotate(self._augmentation.extend_queries(rows, weight))

    def read_scores(self, scores: FloatArray, asked: FloatArray, weight: float) -> FloatArray:
        """Turn the engine's scores into corrected scores."""
        if self.mode == "column":
            return scores
        products = scores.astype(np.float64)
        if self.metric == "cosine":
            norms = np.linalg.norm(asked.astype(np.float64), axis=1)[:, None]
            products = products * norms * self.radius
        return (products - weight * self.shift).astype(np.float32)

    def _rotate(self, rows: FloatArray) -> FloatArray:
        return rows @ _rotation(self.width) if self.rotated else rows


@lru_cache(maxsize=4)
def _rotation(width: int) -> FloatArray:
    """Return a fixed random orthogonal matrix, shape ``(width, width)``."""
    matrix, triangle = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))
    # Libraries differ in the signs of a decomposition.
    turned = (matrix * np.where(np.diag(triangle) < 0, -1.0, 1.0)).astype(np.float32)
    turned.setflags(write=False)
    return turned


def bias_values(corrector: Corrector, rows: Embeddings) -> FloatArray:
    """Return the bias of items; that of the corrector's own gallery is known already."""
    known = corrector.bias
    is_own = known.fingerprints.get("gallery") is not None and known.fits(rows)
    return (known if is_own else corrector.bias_for(rows)).values


@dataclass(frozen=True)
class CollectionInfo:
    """What `nnnorm index info` prints."""

    name: str
    n_items: int
    dim: int
    version: int
    corrector: str
    method: str
    weight: float
    mode: Mode
    can_roll_back: bool
    is_rolled_back: bool
