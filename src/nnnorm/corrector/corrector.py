"""The class: fit, refit, values and rows of any items, files.

Bias values are comparable within one bank, k and normalisation only. A corrector keeps all of
these, so that items that arrive later get values that fit in with those that are indexed:

    Corrector.fit(gallery, references) ─► .bias        the values of its gallery
                                          .bias_for     the values of any items
                                          .transform_items  rows to store in any engine
                                          .queries     rows to ask it
"""

import hashlib
import json
import os
import warnings
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import Augmentation
from nnnorm.bank import Bank, open_gallery_references
from nnnorm.bias import Bias, check_correction, check_weight
from nnnorm.corrector.bounds import (
    bound_augmentation,
    check_room,
    check_weighted,
    widen_augmentation,
)
from nnnorm.corrector.files import MAKER, load_fields
from nnnorm.corrector.method import check_method, resolved_method
from nnnorm.corrector.norms import check_norms, has_unit_norms, longest_norm
from nnnorm.corrector.references import (
    Rows,
    choose_references,
    keep_bank,
    open_kept,
    round_to_half,
)
from nnnorm.corrector.refit_report import RefitReport, report_refit
from nnnorm.dedup import Duplicates
from nnnorm.embeddings import Embeddings, Source, ValidRows, open_embeddings, open_valid
from nnnorm.errors import NNNormError, NNNormWarning, warn
from nnnorm.files import Progress, save_record
from nnnorm.methods import NNN, Method, Statistics, describe_setting
from nnnorm.popularity import Popularity
from nnnorm.ranking import warn_of_scale
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.solvers import Solver

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Items of the gallery that are kept for `nnnorm drift`: enough to compare rankings, 1 MB at most.
_N_SAMPLE = 1024
# The median value of new items of one's own was within 0.7 standard deviations of the gallery's on
# six real sets, that of random rows or of another model of the same width 4.5 to 9 away on five.
_FAR = 4.0
# Fewer items than this may well all be unusual.
_FEWEST_JUDGED = 8
# Parameters of a bias that say what was made of the references, and so hold for later items too.
_OF_THE_BANK = ("n_unique", "references_sampled", "past_queries", "mismatch_z")


@dataclass(frozen=True, eq=False, repr=False)
class Corrector:
    """A method with its settings and its bank; made by `Corrector.fit` or `Corrector.load`.

    Attributes
    ----------
    method : Method
        With the numbers that were settled at the fit.
    asked : Method
        As it was given; `refit` settles its numbers again.
    references : ndarray, shape (n_references, dim), float16
        The bank that was used: without copies, and after the choice between bank and recent
        queries. Read-only.
    bias : Bias
        Of the gallery of the fit.
    normalize : bool
        Whether rows are divided by their norms.
    unit : bool
        Whether all rows have unit norms, by themselves or because they are normalised.
    augmentation : Augmentation
        How `items` and `queries` are extended.
    item_norms : (float, float)
        Smallest and largest norm of the gallery.
    duplicates : {"drop", "keep"}
        Whether copies in the bank counted once; `refit` does the same.
    sample : ndarray, shape (n_sample, dim)
        Some items of the gallery, for `nnnorm drift`.
    center : ndarray, shape (dim,), or None
        The mean of the gallery, where the method takes it off.
    gallery_references : ndarray, shape (n_gallery_references, dim), or None
        For methods with a second bank.
    refit_report : RefitReport or None
        After a `refit`: how far the values moved. It is not saved.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gallery, references, new, queries = (rng.normal(size=(n, 8)) for n in (40, 99, 5, 3))
    >>> corrector = Corrector.fit(gallery, references, normalize=True)
    >>> corrector.bias_for(new).values.shape
    (5,)
    >>> corrector.transform_items(new).shape, corrector.transform_queries(queries).shape
    ((5, 10), (3, 10))
    """

    method: Method
    asked: Method
    references: Rows
    bias: Bias
    normalize: bool
    unit: bool
    augmentation: Augmentation
    item_norms: tuple[float, float]
    duplicates: Duplicates
    sample: Rows
    center: FloatArray | None = None
    gallery_references: Rows | None = None
    refit_report: RefitReport | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("references", "sample", "center", "gallery_references"):
            array = getattr(self, name)
            if array is not None:
                array.flags.writeable = False

    def __repr__(self) -> str:
        rows = "normalized" if self.normalize else "unit" if self.unit else "raw"
        setting = f"{self.method.name} {describe_setting(self.method.name, self.method.params)}"
        return (
            f"Corrector({setting.strip()}, {len(self.references):,} references of {self.dim} "
            f"dimensions, {rows})"
        )

    # --- making one --------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        gallery: Source,
        references: Source | Bank,
        method: Method = NNN(),  # noqa: B008 - frozen
        *,
        recent: Source | None = None,
        gallery_references: Source | None = None,
        duplicates: Duplicates | None = None,
        allow_gallery_rows: bool = False,
        solver: Solver = "auto",
        quality: int | None = None,
        normalize: bool | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> "Corrector":
        """Fit a method on a gallery and a bank, and keep what later items need.

        Parameters
        ----------
        gallery : array or path, shape (n_gallery, dim)
            The items that are searched.
        references : Bank, array or path, shape (n_references, dim)
            Past queries.
        method : Method
            One that gives each item a value of its own: any but `Sinkhorn` and the gated ones.
        recent : array or path, shape (n_recent, dim), optional
            A few dozen queries from your own traffic, without labels, if the references may come
            from elsewhere. If both seem to be of one source, both are used, otherwise the recent
            queries alone. The `params` of the bias have ``past_queries``, "both" or "recent", and
            ``mismatch_z``: above 3 the references are of another source.
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            A bank of gallery-side items, for `DualSoftmax`.
        duplicates, allow_gallery_rows : optional
            Whether copies in the bank count once, and whether references may be rows of the
            gallery, see `Method.fit`.
        solver, quality : optional
            How the means of this gallery are computed, see `Method.fit`; later items get exact
            ones.
        normalize : bool, optional
            True divides every row by its norm, also those of later items and queries. Rows that
            have unit norms anyway need none of it, and later rows without are refused.
        memory_budget : int
            Bytes to use beyond the inputs and the result.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Corrector

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> Corrector.fit(gallery, references, NNN(4, 0.5), normalize=True)
        Corrector(nnn k=4 α=0.5, 99 references of 8 dimensions, normalized)
        """
        check_method(method)
        items = open_embeddings(gallery, name="gallery", normalize=normalize)
        duplicates = method.duplicates_for(references, duplicates)
        chosen = choose_references(
            items,
            references,
            allow_gallery_rows=allow_gallery_rows,
            recent=recent,
            duplicates=duplicates,
            normalize=normalize,
            progress=progress,
        )
        given = open_gallery_references(gallery_references, normalize=normalize)
        first = keep_bank(chosen.references, items, "references")
        second = None if given is None else keep_bank(given, items, "gallery_references")
        banks = [kept.opened for kept in (first, second) if kept is not None]
        bias = method.fit(
            items,
            banks[0],
            gallery_references=banks[1] if len(banks) > 1 else None,
            duplicates="keep",  # what is left of them
            # With recent queries, the references have been checked.
            allow_gallery_rows=allow_gallery_rows or recent is not None,
            solver=solver,
            quality=quality,
            normalize=normalize,
            memory_budget=memory_budget,
            progress=progress,
        )
        bias = replace(bias, n_references=chosen.n_given, params={**bias.params, **chosen.params})
        settled = resolved_method(bias)
        center = items.mean() if getattr(settled, "center", False) is True else None
        unit = all(has_unit_norms(rows) for rows in (items, *banks))
        norms = items.norm_range
        some = np.linspace(0, len(items) - 1, min(len(items), _N_SAMPLE)).astype(np.int64)
        corrector = cls(
            method=settled,
            asked=method,
            references=first.rows,
            bias=bias,
            normalize=items.normalized,
            unit=unit,
            augmentation=bound_augmentation(banks, longest_norm(norms, unit), center, bias),
            item_norms=norms,
            duplicates=duplicates,
            sample=round_to_half(items.take(some)),
            center=center,
            gallery_references=None if second is None else second.rows,
        )
        return replace(corrector, bias=corrector._sign(bias))

    def refit(
        self,
        references: Source | Bank,
        *,
        gallery: Source,
        recent: Source | None = None,
        gallery_references: Source | None = None,
        duplicates: Duplicates | None = None,
        allow_gallery_rows: bool = False,
        solver: Solver = "auto",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> "Corrector":
        """Fit the same method with a newer bank, and measure how far the values moved.

        The automatic numbers and the centre are settled again, for which the gallery is needed.
        Values of the old and the new corrector must not be mixed: index all items again.

        Parameters
        ----------
        references : Bank, array or path, shape (n_references, dim)
            The newer bank.
        gallery : array or path, shape (n_gallery, dim)
            The items as they are now.
        recent, gallery_references, duplicates, allow_gallery_rows, solver, memory_budget : optional
        progress : callable, optional
            As in `fit`; the second bank and `duplicates` stay as they are if none is given.

        Returns
        -------
        Corrector
            With `refit_report`.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, old, new = (rng.normal(size=(n, 8)) for n in (40, 99, 99))
        >>> first = Corrector.fit(gallery, old, NNN(4, 0.5), normalize=True)
        >>> second = first.refit(np.concatenate([old, new]), gallery=gallery)
        >>> 0.5 < second.refit_report.correlation < 1, second.refit_report.n_items
        (True, 40)
        """
        items = self.open(gallery, "gallery")
        if recent is None and "past_queries" in self.bias.params:
            warn(
                "this corrector was fitted with recent queries that decided whether the bank is "
                "used, and the refit has none, so the new bank is used whatever it is like; pass "
                "recent= to decide again"
            )
        new = Corrector.fit(
            items,
            references,
            self.asked,
            recent=recent,
            gallery_references=(
                self.bank_of_items if gallery_references is None else gallery_references
            ),
            # A bank has no copies to keep.
            duplicates=duplicates or ("drop" if isinstance(references, Bank) else self.duplicates),
            allow_gallery_rows=allow_gallery_rows,
            solver=solver,
            # A bank that is normalised suits unit rows too, which False would refuse.
            normalize=True if self.normalize else None if self.unit else False,
            memory_budget=memory_budget,
            progress=progress,
        )
        asked = new.bank if recent is None else new.open(recent, "recent")
        return replace(new, refit_report=report_refit(self.bias_for(items), new.bias, items, asked))

    # --- what it keeps -----------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """Number of dimensions of the embeddings."""
        return int(self.references.shape[1])

    @property
    def longest(self) -> float:
        """Largest norm of an item that the radius of the augmentation has room for."""
        return longest_norm(self.item_norms, self.unit)

    @property
    def weight(self) -> float:
        """The weight of the values, on the query side: a search may use another."""
        return self.bias.weight

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that decides numbers: banks, settings, normalisation, centre, augmentation.

        Values and rows that two correctors give may be mixed only if their fingerprints are equal.
        """
        about = {
            "method": [self.method.name, self.method.params],
            "normalize": self.normalize,
            "unit": self.unit,
            "augmentation": asdict(self.augmentation),
            "references": self.bank.fingerprint,
            "gallery_references": self.bank_of_items and self.bank_of_items.fingerprint,
        }
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        if self.center is not None:
            digest.update(np.asarray(self.center, dtype="<f4").tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def bank(self) -> Embeddings:
        """The references, opened."""
        return open_kept(self.references, "references", self.normalize)

    @cached_property
    def bank_of_items(self) -> Embeddings | None:
        """The second bank, opened."""
        if self.gallery_references is None:
            return None
        return open_kept(self.gallery_references, "gallery_references", self.normalize)

    # --- items and queries -------------------------------------------------------------------

    def bias_for(
        self,
        items: Source,
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias of any items, as a fit with the same bank and settings would.

        Parameters
        ----------
        items : array or path, shape (n_items, dim)
        memory_budget : int
            Bytes to use beyond the inputs and the result.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            Its ``fingerprints["corrector"]`` tells which values it may be mixed with.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> parts = [corrector.bias_for(part).values for part in (gallery[:7], gallery[7:])]
        >>> np.allclose(np.concatenate(parts), corrector.bias.values, atol=1e-6)
        True
        """
        opened = self.open(items, "items")
        bias = self._bias_of(opened, memory_budget=memory_budget, progress=progress)
        self._warn_of_other_values(bias, opened)
        return bias

    def transform_items(self, items: Source, *, popularity: Popularity | None = None) -> FloatArray:
        """Extend items by their bias: the rows to store in an engine of any metric.

        All stored rows have the same norm, so that inner product, cosine and L2 give the same
        order, that of the corrected scores. Ask with what `queries` returns.

        Parameters
        ----------
        items : array or path, shape (n_items, dim)
        popularity : Popularity, optional
            Clicks of these items, added to their bias. Rows with and without clicks fit together;
            all of them need the same weight. See `with_room` for large weights.

        Returns
        -------
        ndarray, shape (n_items, dim + 2), float32

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> stored = Corrector.fit(gallery, references, normalize=True).transform_items(gallery)
        >>> bool(np.ptp(np.linalg.norm(stored, axis=1)) < 1e-6)
        True
        """
        opened = self.open(items, "items")
        high = opened.norm_range[1]
        if high > self.longest:
            raise NNNormError(
                f"{opened.name} has norms up to {high:.4g}, but the rows of this corrector have "
                f"room for norms up to {self.longest:.4g}; fit it again with these items in the "
                "gallery"
            )
        bias = self.bias_for(opened)
        if popularity is not None:
            check_weighted(self.weight)
            bias = bias + popularity
            check_room(opened, bias, popularity, self.augmentation)
        values = bias.values
        stored = np.empty((len(opened), self.dim + self.augmentation.n_extra), dtype=np.float32)
        for start, block in opened.blocks():
            rows = slice(start, start + len(block))
            stored[rows] = self.augmentation.extend_items(block, values[rows])
        return stored

    def with_room(self, popularity: Popularity, *, growth: float = 1000) -> "Corrector":
        """Return a corrector whose rows have room for items with clicks, before any are stored.

        The norm of all stored rows must be as large as the largest value of an item needs, now and
        later. It is part of the fingerprint: rows of the two correctors must not be mixed.

        Parameters
        ----------
        popularity : Popularity
            With the weight that is going to be used, and the clicks as they are now.
        growth : float
            By how much the largest number of clicks may grow.

        Returns
        -------
        Corrector

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, NNN(4, 0.5), normalize=True)
        >>> clicks = Popularity(np.arange(40), weight=0.5)
        >>> corrector.with_room(clicks).transform_items(gallery, popularity=clicks).shape
        (40, 10)
        """
        check_weighted(self.weight)
        augmentation = widen_augmentation(
            self.augmentation, popularity, growth, weight=self.weight, longest=self.longest
        )
        wider = replace(self, augmentation=augmentation, refit_report=None)
        return replace(wider, bias=wider._sign(self.bias))

    def transform_queries(self, queries: Source, *, weight: float | None = None) -> FloatArray:
        """Extend queries by the weight: the rows to ask an engine that holds `items`.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
        weight : float, optional
            Replaces the weight of the corrector; 0 is the uncorrected search.

        Returns
        -------
        ndarray, shape (n_queries, dim + 2), float32

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, NNN(4, 0.5), normalize=True)
        >>> corrector.transform_queries(np.eye(8)[:1]).tolist()
        [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0]]
        """
        opened = self.open(queries, "queries")
        used = self.weight if weight is None else check_weight(weight)
        check_correction(used, self.bias.values)
        warn_of_scale(self.bias, opened, used)
        return self.augmentation.extend_queries(opened.rows(0, len(opened)), used)

    def open(self, source: Source, name: str) -> Embeddings:
        """Open rows as this corrector needs them, or raise where they do not fit.

        Parameters
        ----------
        source : array or path, shape (n_rows, dim)
        name : {"items", "gallery", "queries", "recent"}
            The role: items are compared with the gallery of the fit, queries with the references.

        Returns
        -------
        Embeddings

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> Corrector.fit(gallery, references, normalize=True).open(gallery, "items").normalized
        True
        """
        given = source.normalized if isinstance(source, Embeddings) else False
        rows = open_embeddings(source, name=name, normalize=self.normalize or (given and self.unit))
        self._check_dim(rows)
        low, high = rows.norm_range
        if self.unit and not rows.normalized and not has_unit_norms(rows):
            raise NNNormError(
                f"the rows of {rows.name} do not have unit norm (norms {low:.4g} to {high:.4g}), "
                "but all rows of this corrector do; normalise them, or fit the corrector with "
                "normalize=True (--normalize)"
            )
        if not self.unit and name in ("items", "gallery"):
            check_norms(rows, self.item_norms, "items")
        elif not self.unit:
            check_norms(rows, self.bank.norm_range, "references")
        return rows

    def open_valid(self, source: Source, name: str) -> ValidRows:
        """Open the rows of items that can be used; norms are left to the caller.

        Parameters
        ----------
        source : array or path, shape (n_rows, dim)
        name : {"items", "gallery"}

        Returns
        -------
        ValidRows

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> corrector.open_valid(gallery * (np.arange(40) > 0)[:, None], "items").faults
        {0: 'it is all zeros'}
        """
        given = source.normalized if isinstance(source, Embeddings) else False
        with warnings.catch_warnings():  # odd norms are among the verdicts
            warnings.simplefilter("ignore", NNNormWarning)
            normalize = self.normalize or (given and self.unit)
            found = open_valid(source, name=name, normalize=normalize)
        self._check_dim(found.embeddings)
        return found

    def _check_dim(self, rows: Embeddings) -> None:
        if rows.dim != self.dim:
            raise NNNormError(
                f"{rows.name} and the references of the corrector must share dim; got {rows.dim} "
                f"and {self.dim}. Were they encoded by different models?"
            )

    def _bias_of(self, items: Embeddings, **options: Any) -> Bias:
        options["solver"] = "exact"  # the value of an item must not depend on the others
        options["center"] = self.center
        statistics = Statistics.of_embeddings(items, self.bank, self.bank_of_items, **options)
        return self._sign(self.method.make_bias(statistics))

    def _sign(self, bias: Bias) -> Bias:
        kept = {key: self.bias.params[key] for key in _OF_THE_BANK if key in self.bias.params}
        return replace(
            bias,
            n_references=self.bias.n_references,
            params={**bias.params, **kept},
            fingerprints={**bias.fingerprints, "corrector": self.fingerprint},
        )

    def _warn_of_other_values(self, bias: Bias, items: Embeddings) -> None:
        """Warn where the values are unlike those of the gallery, as those of another model are."""
        known = self.bias.values
        spread = float(known.std(dtype=np.float64))
        away = abs(float(np.median(bias.values)) - float(np.median(known)))
        if len(items) >= _FEWEST_JUDGED and away > _FAR * spread > 0:
            warn(
                f"the bias of {items.name} is {away / spread:.0f} standard deviations from that of "
                "the gallery of the corrector; were they encoded by another model?"
            )

    # --- files -------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything but the numbers, ready for JSON.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> corrector.to_dict()["n_references"]
        95
        """
        return {
            "method": self.method.to_dict(),
            "asked": self.asked.to_dict(),
            "weight": self.weight,
            "n_references": len(self.references),
            "dim": self.dim,
            "normalize": self.normalize,
            "unit": self.unit,
            "augmentation": asdict(self.augmentation),
            "item_norms": list(self.item_norms),
            "duplicates": self.duplicates,
            "longest": self.longest,
            "fingerprint": self.fingerprint,
            "bias": self.bias.to_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one `.safetensors` file, whole or not at all.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "corrector.safetensors"
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> corrector.save(path)
        >>> Corrector.load(path).fingerprint == corrector.fingerprint
        True
        """
        arrays: dict[str, Rows] = {"values": self.bias.values}
        for name in ("references", "sample", "center", "gallery_references"):
            if (array := getattr(self, name)) is not None:
                arrays[name] = array
        save_record(path, "corrector", arrays, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Corrector":
        """Read a file that `save` wrote.

        Examples
        --------
        >>> Corrector.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no corrector file nowhere.safetensors; ...
        """
        fields, fingerprint = load_fields(path)
        corrector = cls(**fields)
        if corrector.fingerprint != fingerprint:
            raise NNNormError(
                f"{path} is a damaged corrector file (its numbers are not those that were saved); "
                f"make it again with: {MAKER}"
            )
        return corrector
