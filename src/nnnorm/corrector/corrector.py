"""`Corrector`: a method, its settings and its bank, kept together for items of next week.

Bias values are comparable within one bank, k and normalisation only. A corrector keeps all of
these, so that items that arrive later get values that fit in with those that are indexed:

    Corrector.fit(gallery, references) ─► .bias        the values of its gallery
                                          .bias_of     the values of any items
                                          .items       rows to store in any engine
                                          .queries     rows to ask it

The reference rows are rounded to float16 before anything is computed from them, so that a corrector
that was saved and loaded gives the same numbers as before.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import Augmentation
from nnnorm.bank import Bank, open_references, use_references
from nnnorm.bias import Bias, check_correction, check_weight
from nnnorm.copies import (
    Duplicates,
    Intents,
    References,
    count_params,
    count_references,
    is_sample,
    used_rows,
    without_copies,
)
from nnnorm.errors import NNNormError, NNNormWarning, explain_arguments, warn
from nnnorm.foreign import FOREIGN_Z, foreign_z
from nnnorm.io import (
    Embeddings,
    Progress,
    Sound,
    Source,
    check_entries,
    check_same_norms,
    damaged,
    load_record,
    open_embeddings,
    open_sound,
    save_record,
)
from nnnorm.means import Solver
from nnnorm.methods import NNN, Method, Statistics, describe_setting, find_method, make_method
from nnnorm.popularity import Popularity
from nnnorm.ranking import search, warn_of_scale
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.signals import Expected
from nnnorm.suspects import Scan, find_stray_norms, judge

FloatArray: TypeAlias = npt.NDArray[np.float32]
Rows: TypeAlias = npt.NDArray[np.floating[Any]]

_MAKER = "nnnorm fit --save-corrector"
_KINDS = {
    "method": dict,
    "asked": dict,
    "normalize": bool,
    "unit": bool,
    "augmentation": dict,
    "longest": float,
    "fingerprint": str,
    "bias": dict,
}
# Norms this close to 1 are unit norms that were rounded, as float16 does.
_UNIT = 5e-3
# Norms that differ by less than this share of the largest count as equal, as in `open_embeddings`.
_EQUAL_NORMS = 0.01
# Later items of raw embeddings may be longer than those of the gallery by this factor.
_HEADROOM = 1.25
# Bounds of the values hold exactly; this is for the rounding of float32.
_ROUNDING = 1e-4
# A row that float16 changes by more than this share of its norm is beyond its range.
_HALF_ERROR = 2e-3
# Items of the gallery that are kept for `nnnorm drift`: enough to compare rankings, 1 MB at most.
_N_SAMPLE = 1024
# Queries by which `refit` counts how many first places change.
_N_ASKED = 1024
# The median value of new items of one's own was within 0.7 standard deviations of the gallery's on
# six real sets, that of random rows or of another model of the same width 4.5 to 9 away on five.
_FAR = 4.0
# Fewer items than this may well all be unusual.
_FEWEST_JUDGED = 8
# Parameters of a bias that say what was made of the references, and so hold for later items too.
_OF_THE_BANK = ("n_intents", "intents_sampled", "bank", "bank_z")


@dataclass(frozen=True)
class Moved:
    """How far the values of a gallery moved when a corrector was fitted again.

    Attributes
    ----------
    correlation : float
        Between old and new values; 1 means that items kept their places.
    mean_shift : float
        New minus old mean correction. It changes no ranking by itself, but the two must not mix.
    changed_first_places : float
        Share of the queries whose first item changes.
    n_items, n_queries : int
        What these were measured on.
    """

    correlation: float
    mean_shift: float
    changed_first_places: float
    n_items: int
    n_queries: int


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
    moved : Moved or None
        After a `refit`: how far the values moved. It is not saved.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gallery, references, new, queries = (rng.normal(size=(n, 8)) for n in (40, 99, 5, 3))
    >>> corrector = Corrector.fit(gallery, references, normalize=True)
    >>> corrector.bias_of(new).values.shape
    (5,)
    >>> corrector.items(new).shape, corrector.queries(queries).shape
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
    moved: Moved | None = field(default=None, compare=False)

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
    @explain_arguments
    def fit(
        cls,
        gallery: Source,
        references: Source | Bank,
        method: Method = NNN(),  # noqa: B008 - frozen
        *,
        recent: Source | None = None,
        gallery_references: Source | None = None,
        duplicates: Duplicates = "drop",
        own_rows: bool = False,
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
            A few dozen queries of one's own, without labels, where the bank may come from
            elsewhere. They join it; where both do not seem to be of one source, they also measure
            its reliability, by which `NNN()` chooses α. Methods that measure none are then fitted
            on the recent queries alone. The `params` of the bias have ``bank``, "both" or "recent",
            and ``bank_z``, how far both are from one source (above 3 they are not).
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            A bank of gallery-side items, for `DualSoftmax`.
        duplicates, own_rows : optional
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
        Corrector(nnn k=4 α=0.5, 95 references of 8 dimensions, normalized)
        """
        check_method(method)
        items = open_embeddings(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        used = use_references(references, past, duplicates, progress)
        choice = _Choice(used_rows(used), count_references(used), count_params(used))
        if recent is not None:
            own = open_embeddings(recent, name="recent", normalize=normalize)
            _check_norms(own, past.norm_range, "references")
            choice = _choose_bank(used, own, duplicates, method)
        first = _keep(choice.references, items)
        second = None
        if gallery_references is not None:
            name = "gallery_references"
            opened = open_embeddings(gallery_references, name=name, normalize=normalize)
            second = _keep(opened, items)
        banks = [
            _open_kept(rows, name, items.normalized)
            for rows, name in ((first, "references"), (second, "gallery_references"))
            if rows is not None
        ]
        bias = method.fit(
            items,
            banks[0],
            gallery_references=banks[1] if len(banks) > 1 else None,
            duplicates="keep",  # what is left of them
            own_rows=own_rows,
            solver=solver,
            quality=quality,
            normalize=normalize,
            memory_budget=memory_budget,
            progress=progress,
        )
        if choice.n_doubting:
            bias = method.weigh_by_recent(bias, items, banks[0], choice.n_doubting)
        bias = replace(bias, n_references=choice.n_given, params={**bias.params, **choice.params})
        settled = _settled(bias.method, bias.params)
        center = items.mean() if getattr(settled, "center", False) is True else None
        unit = all(_has_unit_norms(rows) for rows in (items, *banks))
        norms = items.norm_range
        some = np.linspace(0, len(items) - 1, min(len(items), _N_SAMPLE)).astype(np.int64)
        corrector = cls(
            method=settled,
            asked=method,
            references=first,
            bias=bias,
            normalize=items.normalized,
            unit=unit,
            augmentation=_augment(banks, _longest(norms, unit), center, bias),
            item_norms=norms,
            duplicates=duplicates,
            sample=_halve(items.take(some)),
            center=center,
            gallery_references=second,
        )
        return replace(corrector, bias=corrector._sign(bias))

    @explain_arguments
    def refit(
        self,
        references: Source | Bank,
        *,
        gallery: Source,
        recent: Source | None = None,
        gallery_references: Source | None = None,
        duplicates: Duplicates | None = None,
        own_rows: bool = False,
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
        recent, gallery_references, duplicates, own_rows, solver, memory_budget, progress : optional
            As in `fit`; the second bank and `duplicates` stay as they are if none is given.

        Returns
        -------
        Corrector
            With `moved`.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, old, new = (rng.normal(size=(n, 8)) for n in (40, 99, 99))
        >>> first = Corrector.fit(gallery, old, NNN(4, 0.5), normalize=True)
        >>> second = first.refit(np.concatenate([old, new]), gallery=gallery)
        >>> 0.5 < second.moved.correlation < 1, second.moved.n_items
        (True, 40)
        """
        items = self.open(gallery, "gallery")
        if recent is None and "bank" in self.bias.params:
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
            own_rows=own_rows,
            solver=solver,
            # A bank that is normalised suits unit rows too, which False would refuse.
            normalize=True if self.normalize else None if self.unit else False,
            memory_budget=memory_budget,
            progress=progress,
        )
        asked = new.bank if recent is None else new.open(recent, "recent")
        return replace(new, moved=_compare(self.bias_of(items), new.bias, items, asked))

    # --- what it keeps -----------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """Number of dimensions of the embeddings."""
        return int(self.references.shape[1])

    @property
    def longest(self) -> float:
        """Largest norm of an item that the radius of the augmentation has room for."""
        return _longest(self.item_norms, self.unit)

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
        return _open_kept(self.references, "references", self.normalize)

    @cached_property
    def bank_of_items(self) -> Embeddings | None:
        """The second bank, opened."""
        if self.gallery_references is None:
            return None
        return _open_kept(self.gallery_references, "gallery_references", self.normalize)

    # --- items and queries -------------------------------------------------------------------

    @explain_arguments
    def bias_of(
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
        >>> parts = [corrector.bias_of(part).values for part in (gallery[:7], gallery[7:])]
        >>> np.allclose(np.concatenate(parts), corrector.bias.values, atol=1e-6)
        True
        """
        opened = self.open(items, "items")
        bias = self._bias_of(opened, memory_budget=memory_budget, progress=progress)
        self._warn_of_other_values(bias, opened)
        return bias

    @explain_arguments
    def admit(
        self,
        items: Source,
        *,
        ids: Sequence[Any] | None = None,
        progress: Progress | None = None,
    ) -> Scan:
        """Judge new items before they get in: by the bank, and by the items that are kept.

        Each item is judged by itself, so that the verdicts do not depend on what else arrives.

        Parameters
        ----------
        items : array or path, shape (n_items, dim)
            Rows of zeros or NaN are reported, not refused, and so are norms that do not fit.
        ids : sequence of int or of str, optional
            One per item.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Scan
            Its ``kept`` are the rows to add, its ``suspects`` the others, with the reasons.

        Examples
        --------
        >>> from nnnorm import load_shapes
        >>> shapes = load_shapes()
        >>> corrector = Corrector.fit(shapes.gallery[:800], shapes.references[:2000])
        >>> planted = shapes.references[4000:4400].mean(axis=0)
        >>> new = np.stack([shapes.gallery[900], planted / np.linalg.norm(planted)])
        >>> corrector.admit(new, ids=["photo", "hub"]).quarantined
        ['hub']
        """
        rows = self.open_sound(items, "items")
        unit = True if self.unit and not rows.embeddings.normalized else None
        faults = find_stray_norms(rows.embeddings, unit=unit, norms=self.item_norms)
        return judge(self._expected, rows, faults=faults, ids=ids, progress=progress)

    @cached_property
    def _expected(self) -> Expected:
        return Expected(_open_kept(self.sample, "items", self.normalize), self.bank)

    @explain_arguments
    def items(self, items: Source, *, popularity: Popularity | None = None) -> FloatArray:
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
        >>> stored = Corrector.fit(gallery, references, normalize=True).items(gallery)
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
        bias = self.bias_of(opened)
        if popularity is not None:
            self._check_weight()
            bias = bias + popularity
            self._check_room(opened, bias, popularity)
        values = bias.values
        stored = np.empty((len(opened), self.dim + self.augmentation.n_extra), dtype=np.float32)
        for start, block in opened.blocks():
            rows = slice(start, start + len(block))
            stored[rows] = self.augmentation.extend_items(block, values[rows])
        return stored

    @explain_arguments
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
        >>> corrector.with_room(clicks).items(gallery, popularity=clicks).shape
        (40, 10)
        """
        self._check_weight()
        if not isinstance(popularity, Popularity):
            raise NNNormError(
                "popularity must be a Popularity, such as Popularity(clicks, weight=0.02); got "
                f"{type(popularity).__name__}"
            )
        if not isinstance(growth, (int, float)) or not 1 <= growth < math.inf:
            raise NNNormError(
                f"growth must be a finite number of at least 1, such as 1000; got {growth!r}"
            )
        most = math.log1p(growth * float(np.max(popularity.clicks)))
        old = self.augmentation
        far = math.sqrt(max(0.0, (old.radius / (1 + _ROUNDING)) ** 2 - self.longest**2))
        far += old.scale * popularity.weight / self.weight * most
        radius = (1 + _ROUNDING) * math.hypot(self.longest, far)
        wider = replace(self, augmentation=replace(old, radius=radius), moved=None)
        return replace(wider, bias=wider._sign(self.bias))

    def _check_weight(self) -> None:
        """Raise where queries carry no weight, so that no popularity would count."""
        if self.weight == 0:
            raise NNNormError(
                "this corrector has the weight 0, so that its queries ignore all values and a "
                "popularity would not count; store augment_gallery(items, corrector.bias_of(items) "
                "+ popularity) and ask with augment_queries"
            )

    def _check_room(self, items: Embeddings, bias: Bias, popularity: Popularity) -> None:
        """Raise where clicks make a value larger than the norm of the stored rows allows."""
        kept = self.augmentation
        beyond = kept.scale * np.abs(bias.values.astype(np.float64) - kept.shift)
        row = int(beyond.argmax())
        if beyond[row] ** 2 + items.norm_range[1] ** 2 > kept.radius**2:
            clicks = np.asarray(popularity.clicks)[row]
            raise NNNormError(
                f"{items.name}: the rows of this corrector have no room for the {clicks:,.0f} "
                f"clicks of item {row} with a weight of {popularity.weight:g}; store all items "
                "again with corrector.with_room(popularity), or use a smaller weight"
            )

    @explain_arguments
    def queries(self, queries: Source, *, weight: float | None = None) -> FloatArray:
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
        >>> corrector.queries(np.eye(8)[:1]).tolist()
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
        if self.unit and not rows.normalized and not _has_unit_norms(rows):
            raise NNNormError(
                f"the rows of {rows.name} do not have unit norm (norms {low:.4g} to {high:.4g}), "
                "but all rows of this corrector do; normalise them, or fit the corrector with "
                "normalize=True (--normalize)"
            )
        if not self.unit and name in ("items", "gallery"):
            _check_norms(rows, self.item_norms, "items")
        elif not self.unit:
            _check_norms(rows, self.bank.norm_range, "references")
        return rows

    def open_sound(self, source: Source, name: str) -> Sound:
        """Open the rows of items that can be used; norms are left to the caller.

        Parameters
        ----------
        source : array or path, shape (n_rows, dim)
        name : {"items", "gallery"}

        Returns
        -------
        Sound

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> corrector.open_sound(gallery * (np.arange(40) > 0)[:, None], "items").faults
        {0: 'it is all zeros'}
        """
        given = source.normalized if isinstance(source, Embeddings) else False
        with warnings.catch_warnings():  # odd norms are among the verdicts
            warnings.simplefilter("ignore", NNNormWarning)
            normalize = self.normalize or (given and self.unit)
            found = open_sound(source, name=name, normalize=normalize)
        self._check_dim(found.embeddings)
        return found

    def _check_dim(self, rows: Embeddings) -> None:
        if rows.dim != self.dim:
            raise NNNormError(
                f"{rows.name} and the references of the corrector must share dim; got {rows.dim} "
                f"and {self.dim}. Were they encoded by different models?"
            )

    def _bias_of(self, items: Embeddings, **options: Any) -> Bias:
        if self.center is not None:
            options["known"] = {"center": self.center}
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
        arrays, about = load_record(path, "corrector", _MAKER)
        try:
            check_entries(about, _KINDS)
            corrector = cls(
                method=make_method(about["method"]["name"], **about["method"]["params"]),
                asked=make_method(about["asked"]["name"], **about["asked"]["params"]),
                references=arrays["references"],
                bias=Bias.from_dict(arrays, about["bias"]),
                normalize=about["normalize"],
                unit=about["unit"],
                augmentation=Augmentation(**about["augmentation"]),
                item_norms=tuple(about["item_norms"]),
                duplicates=about["duplicates"],
                sample=arrays["sample"],
                center=arrays.get("center"),
                gallery_references=arrays.get("gallery_references"),
            )
            fingerprint = about["fingerprint"]
        except NNNormError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise damaged(path, "corrector", _MAKER, error) from error
        if corrector.fingerprint != fingerprint:
            raise NNNormError(
                f"{path} is a damaged corrector file (its numbers are not those that were saved); "
                f"make it again with: {_MAKER}"
            )
        return corrector


# --- the method ----------------------------------------------------------------------------------


def check_method(method: Method) -> None:
    """Raise unless the method gives each item a value of its own, as a corrector needs.

    Examples
    --------
    >>> check_method(NNN())
    """
    if not isinstance(method, Method):
        raise NNNormError(f"method must be a method such as NNN(); got {type(method).__name__}")
    if method.gated_by:
        raise NNNormError(
            f"method {method.name} decides per query, by which items are the best of the whole "
            "gallery, so later items have no value of their own; use it without its gate, or nnn"
        )
    if not method.values_each_item:
        raise NNNormError(
            f"method {method.name} balances all items of a gallery at once, so later items have no "
            "value of their own; use nnn, csls, dn or is"
        )


def _settled(name: str, params: Mapping[str, Any]) -> Method:
    """The method with the numbers that a fit chose, from the parameters of its bias."""
    kind, variant = find_method(name)
    names = {part.name for part in fields(kind)} - set(variant.fixed)
    method = make_method(name, **{key: params[key] for key in names if key in params})
    return make_method(name, **method.params)  # without what only an automatic choice needs


# --- the bank and its bounds ---------------------------------------------------------------------


class _Choice(NamedTuple):
    """What a corrector is fitted on.

    Attributes
    ----------
    references : Embeddings, shape (n_references, dim)
        Without copies.
    n_given : int
        Number of rows before copies were dropped.
    params : dict
        What the `params` of the bias say of them.
    n_doubting : int
        Number of recent queries among the references, which come first, where the others are
        foreign to them; else 0.
    """

    references: Embeddings
    n_given: int
    params: dict[str, Any]
    n_doubting: int = 0


def _choose_bank(
    used: References, recent: Embeddings, duplicates: Duplicates, method: Method
) -> _Choice:
    """The recent queries with the bank, or alone; copies among all of them count once.

    A bank that is foreign to the recent queries is used with them where the method can weigh its
    reliability by them.
    """
    bank = used_rows(used)
    z = foreign_z(bank, recent)
    if z > FOREIGN_Z and not method.weighs_reliability:
        alone = without_copies(recent, duplicates)
        params = {**count_params(alone), "bank": "recent", "bank_z": z}
        return _Choice(used_rows(alone), len(recent), params)
    both, n_recent = without_copies(recent.joined(bank), duplicates), len(recent)
    n_given = count_references(used) + n_recent
    if isinstance(both, Intents):
        n_recent = int((both.rows < n_recent).sum())
    sampled = {"intents_sampled": True} if is_sample(used) else {}
    chosen = {"bank": "both", "bank_z": None if math.isnan(z) else z}
    params = {**count_params(both), **sampled, **chosen}
    return _Choice(used_rows(both), n_given, params, n_recent if z > FOREIGN_Z else 0)


def _keep(bank: Embeddings, gallery: Embeddings) -> Rows:
    """The rows of a bank as they are saved."""
    if gallery.normalized or bank.normalized:
        check_same_norms(gallery, bank)
    return _halve(bank.rows(0, len(bank)))


def _halve(rows: FloatArray) -> Rows:
    """Rows in float16, or unchanged where that has too small a range for them."""
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    lost = np.linalg.norm(rows - half.astype(np.float32), axis=1)
    is_close = lost <= _HALF_ERROR * np.linalg.norm(rows, axis=1)
    return half if is_close.all() else rows.copy()


def _open_kept(rows: Rows, name: str, normalize: bool) -> Embeddings:
    return open_embeddings(rows.astype(np.float32), name=name, normalize=normalize)


def _has_unit_norms(rows: Embeddings) -> bool:
    low, high = rows.norm_range
    return max(1 - low, high - 1) <= _UNIT


def _check_norms(rows: Embeddings, norms: tuple[float, float], what: str) -> None:
    """Raise where the rows of the corrector have equal norms, and these do not share them."""
    (low, high), (least, most) = rows.norm_range, norms
    if most - least > _EQUAL_NORMS * most:
        return  # raw inner products are meant
    if low < (1 - _EQUAL_NORMS) * least or high > (1 + _EQUAL_NORMS) * most:
        raise NNNormError(
            f"{rows.name} has norms {low:.4g} to {high:.4g}, but all {what} of the corrector have "
            f"about {most:.4g}; scale them alike, or fit with normalize=True (--normalize)"
        )


def _longest(norms: tuple[float, float], unit: bool) -> float:
    return 1 + _UNIT if unit else _HEADROOM * norms[1]


def _augment(
    banks: Iterable[Embeddings], longest: float, center: FloatArray | None, bias: Bias
) -> Augmentation:
    """Shift, scale and radius with room for every item that is no longer than `longest`.

    Every method's value is between the mean and the largest of an item's scores with a bank, which
    bounds it for any item: ``|r|·max|q|`` from above and ``−|r|·|mean q|`` from below.
    """
    shift = float(bias.values.mean(dtype=np.float64))
    highest, lowest, largest = shift, shift, 0.0
    for bank in banks:
        mean, (_, norm) = bank.mean(), bank.norm_range
        along = np.zeros(1)
        if center is not None:
            along = np.concatenate([block @ center for _, block in bank.blocks()])
        highest = max(highest, longest * norm - float(along.min()))
        lowest = min(lowest, -longest * float(np.linalg.norm(mean)) - float(along.mean()))
        largest = max(largest, norm)
    # The stored value is about as large as the other coordinates; a power of two is exact.
    scale = 2.0 ** -min(16, max(-16, round(math.log2(largest))))
    far = scale * max(highest - shift, shift - lowest)
    return Augmentation("l2", shift, scale, radius=(1 + _ROUNDING) * math.hypot(longest, far))


def _compare(old: Bias, new: Bias, items: Embeddings, asked: Embeddings) -> Moved:
    rows = np.linspace(0, len(asked) - 1, min(len(asked), _N_ASKED)).astype(np.int64)
    some = open_embeddings(asked.take(rows), name="queries", normalize=items.normalized)
    first = [search(some, items, bias, k=1).indices for bias in (old, new)]
    before, after = (bias.values.astype(np.float64) for bias in (old, new))
    is_flat = before.std() == 0 or after.std() == 0
    return Moved(
        correlation=0.0 if is_flat else float(np.corrcoef(before, after)[0, 1]),
        mean_shift=new.weight * float(after.mean()) - old.weight * float(before.mean()),
        changed_first_places=float((first[0] != first[1]).mean()),
        n_items=len(items),
        n_queries=len(some),
    )
