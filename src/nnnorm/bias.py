"""`Bias`: one number per item, and how it was computed; `Popularity`: clicks to add to a bias.

A search ranks item r for query q by ``s(q, r) − weight·values[r]``. The values belong to one
gallery in one order, so a bias stores the size and fingerprint of that gallery and rejects any
other. A saved bias is one `.safetensors` file: numbers and JSON, but no code.

A correction can also push down items that people often want. ``bias + Popularity(clicks)`` adds
``weight·log(1 + clicks)`` to the corrected score. The result is still one number per item.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import describe_size
from nnnorm.embeddings import Embeddings, FloatArray
from nnnorm.errors import NNNormError, check_number, check_type, first_line
from nnnorm.files import PathLike, load_record, save_record
from nnnorm.version import __version__

# With a larger correction, the corrected score may be infinite in float32.
_LARGEST_CORRECTION = 1e37


@dataclass(frozen=True, eq=False)
class Gate:
    """A part of a bias for some queries only: those whose raw best item is in an activation set."""

    values: FloatArray
    active: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        values = _freeze("gate values", self.values)
        self.__dict__.update(values=values, active=_freeze("gate", self.active, np.bool_))


@dataclass(frozen=True, eq=False)
class Popularity:
    """Clicks per item, so that popular items stay on top: ``bias + Popularity(clicks)``.

    The corrected score is ``s(q, r) − bias.weight·bias.values[r] + weight·log(1 + clicks[r])``. If
    a search overrides the weight, that scales both parts: half the weight halves both, and 0 is the
    uncorrected search.

    Parameters
    ----------
    clicks : array, shape (n_gallery,)
        The number of times each item was clicked, bought or otherwise right; 0 for a new item.
    weight : float
        The amount that one unit of log(1 + clicks) adds to a score. The default is a guess for
        cosines. If you have labels, `tune` chooses the weight.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,)
        ``log(1 + clicks)``.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias, Popularity
    >>> hubs = Bias(np.array([0.5, 0.25]), weight=0.5, method="nnn")
    >>> both = hubs + Popularity([0, 99], weight=0.02)
    >>> (-both.correction).round(3).tolist(), both.params["popularity_weight"]
    ([-0.25, -0.033], 0.02)
    """

    clicks: npt.ArrayLike
    weight: float = 0.02

    def __post_init__(self) -> None:
        clicks = _freeze("clicks", self.clicks, np.float64)
        if len(bad := np.flatnonzero(clicks < 0)):
            raise NNNormError(
                f"clicks must be at least 0; item {bad[0]} has {clicks[bad[0]]:g}. Use 0 for items "
                "without clicks"
            )
        weight = check_number("the weight of a Popularity", self.weight, low=0)
        self.__dict__.update(clicks=clicks, weight=weight)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Popularity({len(self):,} items, weight={self.weight:g})"

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """``log(1 + clicks)``, shape ``(n_gallery,)``."""
        return np.log1p(np.asarray(self.clicks, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Bias:
    """One number per item of a gallery: how inflated the item's scores are.

    A corrected search subtracts ``weight · values`` from the scores of the items. Methods return a
    bias: ``NNN().fit(gallery, references)``. Pass it to `search`.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,), float32
        The bias of each item, finite and read-only.
    weight : float
        α for NNN, ½ for CSLS, λ for DN, 1 for other methods. A search can override it.
    method : str
        The command-line name of the method: ``"nnn"``, ``"csls"``, ``"dn"``, …
    params : mapping
        The settings of the fit, including automatic ones, and what they depend on. Read-only.
    n_references : int or None
        Number of past queries that were passed to the fit, including duplicates.
    dim : int or None
        Number of dimensions of the embeddings; None if the fit used scores.
    fingerprints : mapping
        Hashes of ``gallery``, ``references`` and ``gallery_references``, so that a search rejects
        another gallery; empty if the fit used scores.
    gates : tuple of Gate
        Empty, except for QBNorm and DualDIS, which correct only some queries.
    version, created : str
        The version of nnnorm that computed the bias, and the UTC time.
    reference_norms : (float, float) or None
        Smallest and largest norm of the references; None if the fit used scores.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> bias = Bias(np.array([0.2, 0.4]), weight=0.5, method="nnn")
    >>> bias.correction.round(3).tolist()
    [0.1, 0.2]
    """

    values: FloatArray
    weight: float
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    n_references: int | None = None
    dim: int | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    version: str = ""
    created: str = ""
    reference_norms: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        values = _freeze("bias values", self.values)
        for gate in self.gates:
            if not gate.values.shape == gate.active.shape == values.shape:
                expected = f"a gate must have one entry per item, shape {values.shape}"
                raise NNNormError(f"{expected}; got {gate.values.shape} and {gate.active.shape}")
        self.__dict__.update(
            values=values,
            weight=check_correction(self.weight, values),
            params=MappingProxyType(dict(self.params)),
            fingerprints=MappingProxyType(dict(self.fingerprints)),
            version=self.version or __version__,
            created=self.created or datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = {**self.params, "alpha": None, "weight": None}
        settings = f"weight={self.weight:.4g}"
        for name, value in shown.items():
            if isinstance(value, int | float | str):
                settings += f", {name}={value:{'.4g' if isinstance(value, float) else ''}}"
        bank = f", {self.past_queries}" if self.n_references else ""
        return f"Bias({self.method}: {len(self):,} items{bank}, {settings})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings can't be pickled, and unpickled arrays are writable. So a copy runs
        # the constructor again.
        parts = vars(self) | {"params": dict(self.params), "fingerprints": dict(self.fingerprints)}
        return type(self), tuple(parts[name] for name in self.__dataclass_fields__)

    def __add__(self, other: Popularity) -> "Bias":
        """Return the bias with clicks, so that popular items stay on top."""
        check_type("popularity", other, Popularity, "such as Popularity(clicks)")
        if len(other) != len(self):
            raise NNNormError(
                f"clicks must have one number per item of the bias, {len(self)}; got {len(other)}"
            )
        if self.gates:
            raise NNNormError(
                f"a gated bias ({self.method}) corrects only some queries, so popularity can't be "
                "added to it; fit the method without its gate"
            )
        if "popularity_weight" in self.params:
            raise NNNormError(
                "this bias already includes clicks; add all clicks at once to the bias without them"
            )
        # With a weight of 0, the values don't count: only the popularity is left.
        weight = self.weight or 1.0
        values = self.values if self.weight else np.zeros_like(self.values)
        added = values - (other.weight / weight) * other.values
        n_clicks = round(float(np.sum(other.clicks)))
        params = {**self.params, "popularity_weight": other.weight, "n_clicks": n_clicks}
        return replace(self, values=added.astype(np.float32), weight=weight, params=params)

    __radd__ = __add__

    @property
    def correction(self) -> FloatArray:
        """``weight · values``, subtracted from the scores of each item, shape ``(n_gallery,)``."""
        return np.multiply(self.values, np.float32(self.weight))

    @property
    def alpha(self) -> float:
        """The weight, by its name in the paper."""
        return self.weight

    @property
    def reference_k(self) -> int | None:
        """Number of references averaged per item; None for methods that don't average any."""
        reference_k = self.params.get("reference_k")
        return None if reference_k is None else int(reference_k)

    @property
    def past_queries(self) -> str:
        """The number of past queries in words: ``600 past queries (593 unique)``."""
        is_sample = self.params.get("references_sampled", False)
        return describe_size(self.n_references or 0, self.params.get("n_unique"), is_sample)

    def fits(self, gallery: Embeddings) -> bool:
        """Whether this bias was fitted on this gallery, by size and fingerprint."""
        expected = self.fingerprints.get("gallery")
        return len(gallery) == len(self) and expected in (None, gallery.fingerprint)

    def check_gallery(self, gallery: Embeddings) -> None:
        """Raise an error unless this bias was fitted on this gallery, with the same order."""
        if len(gallery) != len(self):
            raise NNNormError(
                f"this bias was fitted on {len(self):,} items, but {gallery.name} has "
                f"{len(gallery):,}; fit the bias again for this gallery"
            )
        if self.fits(gallery):
            return
        expected = self.fingerprints["gallery"]
        if expected.partition(":")[0] == gallery.fingerprint.partition(":")[0]:
            was, now = ("", "not ") if expected.endswith(":unit") else ("not ", "")
            raise NNNormError(
                f"this bias was fitted on {was}normalized rows, but {gallery.name} is {now}"
                "normalized here; use the same normalize (--normalize) for fit and search"
            )
        raise NNNormError(
            f"this bias was fitted on another gallery: {gallery.name} has the same size, but other "
            "values or another order; fit the bias again for this gallery"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the bias as a dictionary that `json.dumps` accepts."""
        return {
            "method": self.method,
            "params": dict(self.params),
            "weight": self.weight,
            "n_gallery": len(self),
            "n_references": self.n_references,
            "dim": self.dim,
            "fingerprints": dict(self.fingerprints),
            "n_active": [int(gate.active.sum()) for gate in self.gates],
            "version": self.version,
            "created": self.created,
            "reference_norms": self.reference_norms and list(self.reference_norms),
        }

    def save(self, path: PathLike) -> None:
        """Save the bias as a `.safetensors` file; if that fails, nothing changes.

        Parameters
        ----------
        path : str or PathLike
            The file. An existing one is replaced.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from nnnorm import Bias
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "bias.safetensors"
        >>> Bias(np.array([0.1, 0.2]), 0.5, "nnn").save(path)
        >>> Bias.load(path).weight
        0.5
        """
        arrays: dict[str, npt.NDArray[Any]] = {"values": self.values}
        for number, gate in enumerate(self.gates):
            arrays[f"gate.{number}.values"] = gate.values
            arrays[f"gate.{number}.active"] = gate.active
        save_record(path, "bias", arrays, self.to_dict())

    @classmethod
    def load(cls, path: PathLike) -> "Bias":
        """Load a bias from a file that `save` wrote.

        Parameters
        ----------
        path : str or PathLike
            The `.safetensors` file.

        Returns
        -------
        Bias

        Examples
        --------
        >>> from nnnorm import Bias
        >>> Bias.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no bias file nowhere.safetensors; ...
        """
        return load_record(path, "bias", "nnnorm fit", cls.from_dict)

    @classmethod
    def from_dict(cls, arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> "Bias":
        """Create a bias from its arrays and the result of `to_dict`."""
        gates = tuple(
            Gate(arrays[f"gate.{number}.values"], arrays[f"gate.{number}.active"])
            for number in range(len(about["n_active"]))
        )
        kept = {name: about[name] for name in cls.__dataclass_fields__ if name in about}
        norms = about["reference_norms"]
        kept["reference_norms"] = norms and tuple(norms)
        return cls(values=arrays["values"], gates=gates, **kept)


def check_correction(weight: float, values: npt.ArrayLike) -> float:
    """Return `weight`; raise an error if ``weight · values`` is too large for float32."""
    used = check_number("weight", weight)
    largest = abs(used) * float(np.abs(np.asarray(values, dtype=np.float64)).max(initial=0))
    if largest > _LARGEST_CORRECTION:
        raise NNNormError(
            f"weight · bias reaches {largest:.3g}, too large for float32; use a smaller weight, or "
            "fit the bias on embeddings with smaller norms"
        )
    return used


def _freeze(what: str, given: npt.ArrayLike, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return a read-only copy of one finite number per item, or raise an error."""
    expected = f"{what} must be one number per item, shape (n_gallery,)"
    try:
        values = np.array(given, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise NNNormError(f"{expected}: {first_line(error)}") from error
    if values.ndim != 1 or len(values) == 0:
        raise NNNormError(f"{expected}; got shape {values.shape}")
    if not np.isfinite(values).all():
        row = np.flatnonzero(~np.isfinite(values))[0]
        raise NNNormError(f"{what} must be finite; item {row} has {values[row]}")
    values.setflags(write=False)
    return values
