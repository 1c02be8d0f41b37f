"""`Bias`: one number per item, with its provenance; `Popularity`: clicks to add to it.

A search ranks by ``s(q, r) − weight·values[r]``. The values belong to one gallery in one order, so
a bias records the size and fingerprint of that gallery and rejects any other. It is saved as one
`.safetensors` file (numbers and JSON, no code).

A correction can also push down items that people want often. ``bias + Popularity(clicks)`` adds
``weight·log(1 + clicks)`` to the corrected score, still as one number per item.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, FloatArray
from nnnorm.errors import NNNormError, check_number, check_type, first_line
from nnnorm.files import load_record, save_record
from nnnorm.version import __version__

# Beyond this, a score minus the correction may be infinite in float32.
_LARGEST_CORRECTION = 1e37


@dataclass(frozen=True, eq=False)
class Gate:
    """A part of a bias that applies only to queries whose raw best item is in an activation set."""

    values: FloatArray
    active: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        values = _freeze("gate values", self.values)
        self.__dict__.update(values=values, active=_freeze("gate", self.active, np.bool_))


@dataclass(frozen=True, eq=False)
class Popularity:
    """Clicks per item, to be added to a bias: ``bias + Popularity(clicks)``.

    The corrected score is ``s(q, r) − weight_b·m(r) + weight·log(1 + clicks[r])``, and ``weight_b``
    is the weight of the bias. A search that overrides the weight scales both parts: half the weight
    halves both, and 0 is the uncorrected search.

    Parameters
    ----------
    clicks : array, shape (n_gallery,)
        How often each item was clicked, bought or otherwise right; 0 for a new item.
    weight : float
        What one unit of log(1 + clicks) adds to a score. The default is for cosines. If you have
        labels, `tune` chooses the weight.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,)
        ``log(1 + clicks)``.

    Examples
    --------
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
                f"clicks must be counts of at least 0; item {bad[0]} has {clicks[bad[0]]:g}"
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
    """One number per item; ``weight · values`` is subtracted from the scores.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,), float32
        Finite and read-only.
    weight : float
        α for NNN, ½ for CSLS, λ for DN, 1 for other methods. A search can override it.
    method : str
        The command-line name: ``"nnn"``, ``"csls"``, ``"dn"``, …
    params : mapping
        The settings of the fit, including those that were chosen automatically. Read-only.
    n_references, dim : int or None
        Number of references, and of dimensions (None if the fit used scores).
    fingerprints : mapping
        Fingerprints of ``gallery``, ``references`` and ``gallery_references``; empty if the fit
        used scores.
    gates : tuple of Gate
        Empty, except for QBNorm and DualDIS, which correct only some queries.
    version, created : str
        Version of nnnorm and UTC time.
    reference_norms : (float, float) or None
        Smallest and largest norm of the references; None if the fit used scores.

    Examples
    --------
    >>> import numpy as np
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
                expected = f"a gate must have one entry per item, {values.shape}"
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
        bank = "" if self.n_references is None else f", {self.n_references:,} references"
        return f"Bias({self.method}: {len(self):,} items{bank}, {settings})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping can't be copied or sent to a worker process, and arrays would be
        # writable there, so a copy is built from its parts.
        parts = vars(self) | {"params": dict(self.params), "fingerprints": dict(self.fingerprints)}
        return type(self), tuple(parts[name] for name in self.__dataclass_fields__)

    def __add__(self, other: Popularity) -> "Bias":
        """Add a popularity, so items that are often right stay on top."""
        how = "since values of different banks do not add up"
        check_type("what is added to a bias", other, Popularity, how)
        if len(other) != len(self):
            raise NNNormError(
                f"clicks must have one number per item of the bias, {len(self)}; got {len(other)}"
            )
        if self.gates:
            raise NNNormError(
                f"a gated bias ({self.method}) decides per query, so popularity can't be "
                "added to it; fit the method without its gate"
            )
        if "popularity_weight" in self.params:
            raise NNNormError(
                "this bias already has a popularity part; add all clicks at once to the bias "
                "without it"
            )
        # A weight of 0 leaves nothing of the values: then they are those of the popularity alone.
        weight = self.weight or 1.0
        values = self.values if self.weight else np.zeros_like(self.values)
        added = values - (other.weight / weight) * other.values
        n_clicks = round(float(np.sum(other.clicks)))
        params = {**self.params, "popularity_weight": other.weight, "n_clicks": n_clicks}
        return replace(self, values=added.astype(np.float32), weight=weight, params=params)

    __radd__ = __add__

    @property
    def correction(self) -> FloatArray:
        """``weight · values``, shape ``(n_gallery,)``: what is subtracted from every score."""
        return np.multiply(self.values, np.float32(self.weight))

    @property
    def alpha(self) -> float:
        """The weight, under its name in the paper."""
        return self.weight

    @property
    def reference_k(self) -> int | None:
        """Number of references averaged per item; None for methods without k."""
        reference_k = self.params.get("reference_k")
        return None if reference_k is None else int(reference_k)

    def fits(self, gallery: Embeddings) -> bool:
        """Whether this bias was fitted on this gallery, as far as its fingerprints show."""
        expected = self.fingerprints.get("gallery")
        return len(gallery) == len(self) and expected in (None, gallery.fingerprint)

    def check_gallery(self, gallery: Embeddings) -> None:
        """Raise an error unless this bias was fitted on this gallery, in the same order."""
        if len(gallery) != len(self):
            raise NNNormError(
                f"this bias is for a gallery of {len(self)} items, but {gallery.name} has "
                f"{len(gallery)}; fit the bias again for this gallery"
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
            f"this bias was fitted on another gallery: {gallery.name} has as many items but other "
            "values or another order; fit the bias again for this gallery"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the bias, ready for JSON."""
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.safetensors` file, completely or not at all.

        Examples
        --------
        >>> import numpy as np, tempfile
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
    def load(cls, path: str | os.PathLike[str]) -> "Bias":
        """Read a file that `save` wrote.

        Examples
        --------
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
    """Return a weight for which ``weight · values`` fits float32, or raise an error."""
    used = check_number("weight", weight)
    largest = abs(used) * float(np.abs(np.asarray(values, dtype=np.float64)).max(initial=0))
    if largest > _LARGEST_CORRECTION:
        raise NNNormError(
            f"weight times bias reaches {largest:.3g}, beyond float32; use a smaller weight, or "
            "fit the bias on embeddings with smaller norms"
        )
    return used


def _freeze(what: str, given: npt.ArrayLike, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return a read-only copy of one finite number per item, or raise an error."""
    expected = f"{what} must be numbers, one per item, shape (n_gallery,)"
    try:
        values = np.array(given, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise NNNormError(f"{expected} ({first_line(error)})") from error
    if values.ndim != 1 or len(values) == 0:
        raise NNNormError(f"{expected}; got {values.shape}")
    if not np.isfinite(values).all():
        row = np.flatnonzero(~np.isfinite(values))[0]
        raise NNNormError(f"{what} must be finite; item {row} has {values[row]}")
    values.setflags(write=False)
    return values
