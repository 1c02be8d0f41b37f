"""`Corrector`: a method with its settings and past queries, for current and later items.

    Corrector.fit(gallery, references) ─► .bias               the bias of its gallery
                                          .bias_for           the bias of any other items
                                          .transform_items    rows to store in any engine
                                          .transform_queries  rows to search that engine with

Bias values are comparable only if references, k and normalization are the same. A corrector keeps
all three, so you can add later items to an index that already has values. References are stored in
float16. All values are computed from the rounded rows, so a corrector returns the same numbers
before and after it is saved.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm import embeddings
from nnnorm.augmentation import Augmentation, Target, bound_augmentation
from nnnorm.bank import Bank
from nnnorm.bias import Bias, Popularity, check_correction
from nnnorm.calibration import Calibration
from nnnorm.dedup import Duplicates, drop_copies
from nnnorm.embeddings import Embeddings, FloatArray, Source, check_same_dim, open_embeddings
from nnnorm.errors import NNNormError, check_number, check_type, quiet, warn
from nnnorm.files import PathLike, Progress, load_record, save_record
from nnnorm.input_checks import MISMATCH_Z, check_inputs, mismatch_z
from nnnorm.methods import NNN, describe_setting, make_method
from nnnorm.methods.base import Method, Statistics, open_groups, open_references, warn_of_mismatch
from nnnorm.methods.groups import Labels, name_groups, offsets_of, open_labels
from nnnorm.ranking import measure_confidence, search, warn_of_scale
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.solvers import Solver, check_solver

Rows: TypeAlias = npt.NDArray[np.floating[Any]]

# Number of gallery items kept for `nnnorm drift`: enough to compare rankings, and 1 MB in float16
# with 512 dimensions.
_N_SAMPLE = 1024
# Number of queries used to count changed top-1 items after a refit.
_N_QUERIES = 1024
# On six real sets, the median value of new items from the same source was within 0.7 standard
# deviations of the gallery's. On five sets, the median of random rows or of rows from another model
# was 4.5 to 9 standard deviations away.
_FAR = 4.0
# With fewer new items than this, the median may be far away by chance.
_FEWEST_CHECKED = 8
# Labels are checked if so many of the sampled items are nearest to the mean of their own group, and
# each group has so many of them. A warning needs more than this share of wrong labels.
_APART, _FEWEST_OF_A_GROUP, _MOST_WRONG = 0.99, 16, 0.1
# Norms this close to 1 are unit norms that were rounded, for example to float16.
_UNIT = 5e-3
# Without normalization, later items may be longer than the longest gallery item by this factor.
_HEADROOM = 1.25
# If float16 changes a row by more than this share of its norm, the row is outside its range.
_HALF_ERROR = 2e-3
_MAKER = "nnnorm fit --save-corrector"


@dataclass(frozen=True)
class RefitReport:
    """How far the biases of a gallery moved in a refit.

    Attributes
    ----------
    correlation : float
        Correlation of the previous and the new biases; 0 if one of them is constant.
    mean_shift : float
        Mean correction (weight · bias) after the refit minus the mean before it.
    changed_top1 : float
        Share of queries with another top-1 item.
    n_items, n_queries : int
        Number of items and queries that were compared.
    """

    correlation: float
    mean_shift: float
    changed_top1: float
    n_items: int
    n_queries: int


@dataclass(frozen=True, eq=False, repr=False)
class Corrector:
    """A fitted correction: computes the bias of any item from past queries.

    Some items score too high for almost every query: they are hubs. An item's bias is one number
    that estimates how inflated its scores are, from its best scores with past queries. A corrected
    search ranks items by ``score − weight · bias``.

    Create a corrector with `Corrector.fit` or `Corrector.load`. It keeps a method, its settings and
    the past queries, so that it can compute the bias of new items, too. To correct a vector engine,
    store the rows of `transform_items` and search with the rows of `transform_queries`. To search
    in memory, pass the corrector to `search`.

    Attributes
    ----------
    method : Method
        The method, such as `NNN`, with the settings that the fit chose.
    asked : Method
        The method that you passed to `fit`. `refit` chooses its automatic settings again.
    bank : Embeddings, shape (n_references, dim)
        The past queries that were used; see `duplicates` and `recent` in `fit`.
    bias : Bias
        The bias of the gallery that was passed to `fit`.
    normalize : bool
        Whether rows are divided by their norms.
    unit : bool
        Whether all rows have unit norms, with or without normalization.
    augmentation : Augmentation
        How `transform_items` and `transform_queries` extend rows.
    item_norms : (float, float)
        Smallest and largest norm of the gallery's rows.
    duplicates : {"drop", "keep"}
        Whether near-duplicate past queries count once. `refit` uses the same value.
    sample : ndarray, shape (n_sample, dim)
        A sample of the gallery, for `nnnorm drift`.
    center : ndarray, shape (dim,), or None
        The gallery's mean, if the method subtracts it from the items.
    bank_of_items : Embeddings, shape (n_gallery_references, dim), or None
        Items that `DualSoftmax` compares the gallery with.
    sample_groups : tuple of str
        The groups of the sample, if the corrector was fitted with groups.
    calibration : Calibration or None
        Converts the confidence of searches to probabilities; see `with_calibration`.
    refit_report : RefitReport or None
        After a `refit`: how far the biases moved. It isn't saved.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Corrector
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
    bank: Embeddings
    bias: Bias
    normalize: bool
    unit: bool
    augmentation: Augmentation
    item_norms: tuple[float, float]
    duplicates: Duplicates
    sample: Rows
    center: FloatArray | None = None
    bank_of_items: Embeddings | None = None
    sample_groups: tuple[str, ...] = ()
    calibration: Calibration | None = None
    refit_report: RefitReport | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for rows in (self.sample, self.center):
            if rows is not None:
                rows.flags.writeable = False
        prints = {**self.bias.fingerprints, "corrector": self.fingerprint}
        object.__setattr__(self, "bias", replace(self.bias, fingerprints=prints))

    def __repr__(self) -> str:
        rows = "normalized" if self.normalize else "unit" if self.unit else "raw"
        setting = f"{self.method.name} {describe_setting(self.method.name, self.method.params)}"
        return f"Corrector({setting.strip()}, {self.bias.past_queries}, dim {self.dim}, {rows})"

    # --- fit and refit -----------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        gallery: Source,
        references: Source | Bank,
        method: Method = NNN(),  # noqa: B008 - frozen
        *,
        groups: npt.ArrayLike | None = None,
        between: float = 1.0,
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
        """Fit a method on a gallery and past queries.

        Parameters
        ----------
        gallery : array or path, shape (n_gallery, dim)
            The embeddings of the items that are searched.
        references : Bank, array or path, shape (n_references, dim)
            Past queries, embedded by the same model.
        method : Method
            By default `NNN` with automatic settings. `Sinkhorn` and the gated methods are rejected,
            because they can't compute the bias of a new item.
        groups : array, shape (n_gallery,), optional
            For a mixed gallery: one label per item, such as "photo" or "text"; see `Method.fit`.
            Later items need labels, too, from the same groups.
        between : float
            With groups: the weight of the differences between groups.
        recent : array or path, shape (n_recent, dim), optional
            A few dozen queries from your own traffic. Pass them if the references come from another
            source. If both match, both are used; otherwise, only the recent queries are used.
            ``bias.params`` has the choice as ``past_queries`` ("both" or "recent"), and
            ``mismatch_z``, which is above 3 if they don't match.
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            For `DualSoftmax`: items to compare the gallery with.
        duplicates : {"drop", "keep"}, optional
            "drop" counts near-duplicate references once; see `Method.fit`.
        allow_gallery_rows : bool
            Whether references may be rows of the gallery; see `Method.fit`.
        solver, quality : optional
            How the means of this gallery are computed; see `Method.fit`. The means of later items
            are always exact.
        normalize : bool, optional
            True divides every row by its norm, including later items and queries. If all rows have
            unit norms without it, later rows with other norms are rejected.
        memory_budget : int
            Bytes to use beyond the inputs and the result, 512 MB by default.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Corrector

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector, NNN
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> Corrector.fit(gallery, references, NNN(4, 0.5), normalize=True)
        Corrector(nnn reference_k=4 alpha=0.5, 99 past queries, dim 8, normalized)
        """
        check_method(method)
        check_solver(solver, quality)
        items, past, second = method.open_inputs(gallery, references, gallery_references, normalize)
        duplicates = method.duplicates_for(past, duplicates)
        own = None
        if recent is not None:
            own = open_embeddings(recent, name="recent", normalize=normalize)
            embeddings.check_like_norms(own.name, own.norm_range, past.norm_range, "references")
        check_inputs(items, past, own, allow_gallery_rows=allow_gallery_rows)
        used, about = drop_copies(past, duplicates, progress), dict[str, Any]()
        if own is not None:
            z = mismatch_z(used.embeddings, own)
            if z > MISMATCH_Z:
                about = {"past_queries": "recent", "mismatch_z": z}
                used = drop_copies(own, duplicates)
            else:
                about = {"past_queries": "both", "mismatch_z": None if math.isnan(z) else z}
                joined = drop_copies(own.joined(used.embeddings), duplicates)
                n_given = used.n_given + len(own)
                used = replace(joined, n_given=n_given, is_sample=used.is_sample)
        bank = _keep(used.embeddings, "references", items.normalized)
        if second is not None:
            second = _keep(second, "gallery_references", items.normalized)
        labeled = open_groups(groups, len(items), between)
        options: dict[str, Any] = {"groups": labeled, "solver": solver, "quality": quality}
        options |= {"memory_budget": memory_budget, "progress": progress}
        kept = replace(used, embeddings=bank, fingerprint=bank.fingerprint)
        statistics = Statistics(items, kept, second, **options)
        resolved, chosen = method.resolve(statistics)
        bias = resolved.make_bias(statistics, chosen | about)
        warn_of_mismatch(bias)
        center = items.mean() if getattr(resolved, "center", False) else None
        banks = [bank] if second is None else [bank, second]
        unit = all(_has_unit_norms(rows) for rows in (items, *banks))
        norms = items.norm_range
        some = np.linspace(0, len(items) - 1, min(len(items), _N_SAMPLE)).astype(np.int64)
        longest = _longest_norm(norms, unit)
        return cls(
            method=resolved,
            asked=method,
            bank=bank,
            bias=bias,
            normalize=items.normalized,
            unit=unit,
            augmentation=bound_augmentation(bias, resolved.weight, banks, longest, center),
            item_norms=norms,
            duplicates=duplicates,
            sample=_round_to_half(items.take(some)),
            center=center,
            bank_of_items=second,
            sample_groups=() if labeled is None else tuple(labeled.labels[some].tolist()),
        )

    def refit(
        self,
        references: Source | Bank,
        *,
        gallery: Source,
        groups: npt.ArrayLike | None = None,
        recent: Source | None = None,
        gallery_references: Source | None = None,
        duplicates: Duplicates | None = None,
        **options: Any,
    ) -> "Corrector":
        """Fit the same method with newer past queries, and measure how far the biases moved.

        Automatic settings and the center are computed again, so pass the gallery, too. Don't mix
        the values of the previous and the new corrector: index all items again.

        Parameters
        ----------
        references : Bank, array or path, shape (n_references, dim)
            The newer past queries.
        gallery : array or path, shape (n_gallery, dim)
            The current items.
        groups : array, shape (n_gallery,), optional
            The labels of the items, if the corrector was fitted with groups.
        recent : array or path, shape (n_recent, dim), optional
            As in `fit`. It isn't saved: pass it again if you passed it to `fit`.
        gallery_references, duplicates : optional
            As in `fit`. By default, those of this corrector.
        **options
            `allow_gallery_rows`, `solver`, `quality`, `memory_budget` and `progress` of `fit`.

        Returns
        -------
        Corrector
            Its `refit_report` compares it with this one.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector, NNN
        >>> rng = np.random.default_rng(0)
        >>> gallery, old, new = (rng.normal(size=(n, 8)) for n in (40, 99, 99))
        >>> first = Corrector.fit(gallery, old, NNN(4, 0.5), normalize=True)
        >>> second = first.refit(np.concatenate([old, new]), gallery=gallery)
        >>> 0.5 < second.refit_report.correlation < 1, second.refit_report.n_items
        (True, 40)
        """
        items = self.open(gallery, "gallery")
        old = self.bias_for(items, groups=groups)
        if self.calibration is not None:
            warn("the calibration isn't valid for the new corrector; call calibrate again")
        if recent is None and "past_queries" in self.bias.params:
            warn(
                "this corrector was fitted with recent queries, but this refit has none, so all "
                "past queries are used without a check that they match; to check them, pass "
                "recent= again"
            )
        # None accepts a normalized bank if all rows have unit norms; False would reject it.
        normalize = True if self.normalize else None if self.unit else False
        past = open_references(references, normalize=normalize)
        second = self.bank_of_items if gallery_references is None else gallery_references
        kept: dict[str, Any] = {"recent": recent, "groups": groups, "gallery_references": second}
        kept |= {"between": self.bias.params.get("between", 1.0), "normalize": normalize}
        # A bank has no duplicates, so "keep" would be rejected.
        kept["duplicates"] = duplicates or (self.duplicates if past.counts is None else "drop")
        new = Corrector.fit(items, past, self.asked, **kept, **options)
        asked = new.bank if recent is None else new.open(recent, "recent")
        return replace(new, refit_report=_report(old, new.bias, items, asked))

    # --- facts -------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """Number of dimensions of the embeddings."""
        return self.bank.dim

    @property
    def longest(self) -> float:
        """Largest norm that an item may have."""
        return _longest_norm(self.item_norms, self.unit)

    @property
    def weight(self) -> float:
        """The weight of the bias; see `transform_queries` to search with another one."""
        return self.bias.weight

    @property
    def groups(self) -> dict[str, float] | None:
        """The offset of each group, if the corrector was fitted with groups."""
        return self.bias.params.get("groups")

    @cached_property
    def references(self) -> Rows:
        """The rows of `bank` as saved, shape (n_references, dim), float16, read-only."""
        return _round_to_half(self.bank.parts[0])

    @cached_property
    def gallery_references(self) -> Rows | None:
        """The rows of `bank_of_items` as saved, read-only."""
        return None if self.bank_of_items is None else _round_to_half(self.bank_of_items.parts[0])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of past queries, settings, normalization, center and augmentation.

        Mix values or rows from two correctors only if their fingerprints are equal.
        """
        about = {
            "method": [self.method.name, self.method.params],
            "normalize": self.normalize,
            "unit": self.unit,
            "augmentation": asdict(self.augmentation),
            "references": self.bank.fingerprint,
            "gallery_references": self.bank_of_items and self.bank_of_items.fingerprint,
        }
        if self.groups is not None:
            about["groups"] = self.groups
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        if self.center is not None:
            digest.update(np.asarray(self.center, dtype="<f4").tobytes())
        return digest.hexdigest()[:32]

    # --- items and queries -------------------------------------------------------------------

    def bias_for(
        self,
        items: Source,
        *,
        groups: npt.ArrayLike | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias of any items with the same past queries and settings.

        Parameters
        ----------
        items : array or path, shape (n_items, dim)
            The items, new or old.
        groups : array, shape (n_items,), optional
            The group of each item, if the corrector was fitted with groups.
        memory_budget : int
            Bytes to use beyond the inputs and the result, 512 MB by default.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            Mix its values only with those that have the same ``fingerprints["corrector"]``.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> parts = [corrector.bias_for(part).values for part in (gallery[:7], gallery[7:])]
        >>> np.allclose(np.concatenate(parts), corrector.bias.values, atol=1e-6)
        True
        """
        opened = self.open(items, "items")
        values = self.values_for(opened, groups, memory_budget=memory_budget, progress=progress)
        params = dict(self.bias.params)
        if "solver" in params:
            params["solver"] = "exact"
            params.pop("quality", None)
            params.pop("error", None)
        prints = {**self.bias.fingerprints, "gallery": opened.fingerprint}
        return replace(self.bias, values=values, params=params, fingerprints=prints, created="")

    def transform_items(
        self,
        items: Source,
        *,
        groups: npt.ArrayLike | None = None,
        popularity: Popularity | None = None,
    ) -> FloatArray:
        """Return the rows to store in a vector engine: items with two more columns.

        The first column has the bias. The second one makes all norms equal, so inner product,
        cosine and L2 all rank by the corrected score. Search with rows of `transform_queries`.

        Parameters
        ----------
        items : array or path, shape (n_items, dim)
            The items, new or old.
        groups : array, shape (n_items,), optional
            The group of each item, if the corrector was fitted with groups.
        popularity : Popularity, optional
            Clicks of these items. Frequently clicked items then rank higher. You can store rows
            with and without clicks in one index, if all clicks have the same weight. For large
            weights, see `with_room`.

        Returns
        -------
        ndarray, shape (n_items, dim + 2), float32

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> stored = Corrector.fit(gallery, references, normalize=True).transform_items(gallery)
        >>> bool(np.ptp(np.linalg.norm(stored, axis=1)) < 1e-6)
        True
        """
        opened = self.open(items, "items")
        values = self.values_for(opened, groups)
        if popularity is not None:
            values = self._add_clicks(values, popularity, opened)
        return self.augmentation.extend_all(opened, values)

    def transform_queries(self, queries: Source, *, weight: float | None = None) -> FloatArray:
        """Return the rows to search a vector engine with: queries with two more columns.

        The first column has the weight of the bias, the second one is 0. The weight is part of the
        query, so you can change it without storing items again.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
            The queries to search for.
        weight : float, optional
            Replaces the corrector's weight; 0 is the uncorrected search.

        Returns
        -------
        ndarray, shape (n_queries, dim + 2), float32

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector, NNN
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, NNN(4, 0.5), normalize=True)
        >>> corrector.transform_queries(np.eye(8)[:1]).tolist()
        [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0]]
        """
        opened = self.open(queries, "queries")
        used = check_correction(self.weight if weight is None else weight, self.bias.values)
        warn_of_scale(self.bias, opened, used)
        return self.augmentation.extend_queries(opened.rows(0, len(opened)), used)

    def confidence(
        self, scores: npt.ArrayLike, queries: npt.ArrayLike, *, metric: Target = "ip"
    ) -> FloatArray:
        """Compute the confidence of searches that you ran with your engine's own client.

        Confidence compares queries: the higher it is, the more likely the first hit is right. See
        `Ranking`.

        Parameters
        ----------
        scores : array, shape (n_queries, n_hits)
            The engine's scores for rows of `transform_items`, best first. Fetch 10 hits or more.
        queries : array, shape (n_queries, dim + 2)
            Rows from `transform_queries`.
        metric : {"ip", "cosine", "l2"}
            Whether scores are inner products, cosines or squared distances.

        Returns
        -------
        ndarray, shape (n_queries,), float32

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector, search
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> stored, asked = corrector.transform_items(gallery), corrector.transform_queries(gallery)
        >>> scores = -np.sort(-(asked @ stored.T), axis=1)[:, :10]
        >>> exact = search(gallery, gallery, corrector.bias, normalize=True)
        >>> np.allclose(corrector.confidence(scores, asked), exact.confidence, atol=1e-5)
        True
        """
        given = np.asarray(scores, dtype=np.float64)
        asked = np.asarray(queries, dtype=np.float32)
        if given.ndim != 2 or asked.shape != (len(given), self.dim + 2):
            raise NNNormError(
                "scores must have the shape (n_queries, n_hits), and queries that of "
                f"transform_queries, (n_queries, {self.dim + 2}); got {given.shape} and "
                f"{asked.shape}"
            )
        if np.isnan(given).any():
            raise NNNormError("scores must not be NaN; for a missing hit, pass -inf (inf for l2)")
        if metric not in get_args(Target):
            raise NNNormError(f"metric must be 'ip', 'cosine' or 'l2'; got {metric!r}")
        weights = -asked[:, [self.dim]] * self.augmentation.scale
        return measure_confidence(self.augmentation.read_scores(given, asked, weights, metric))

    def with_room(self, popularity: Popularity, *, growth: float = 1000) -> "Corrector":
        """Return a corrector that can store items with many clicks.

        All stored rows have the same norm, which limits how large a bias with clicks can be. The
        returned corrector uses a larger norm. Call this method before you store the first item, and
        don't mix rows of the two correctors: their fingerprints differ.

        Parameters
        ----------
        popularity : Popularity
            The current clicks, with the weight that you will use.
        growth : float
            Factor by which the largest number of clicks may grow later.

        Returns
        -------
        Corrector

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector, NNN, Popularity
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, NNN(4, 0.5), normalize=True)
        >>> clicks = Popularity(np.arange(40), weight=0.5)
        >>> corrector.with_room(clicks).transform_items(gallery, popularity=clicks).shape
        (40, 10)
        """
        self._check_weighted()
        check_type("popularity", popularity, Popularity, "such as Popularity(clicks, weight=0.02)")
        check_number("growth", growth, 1, 1e12)
        most = math.log1p(growth * float(np.max(popularity.clicks)))
        wider = self.augmentation.widened(self.longest, popularity.weight / self.weight * most)
        return replace(self, augmentation=wider, refit_report=None)

    def with_calibration(self, calibration: Calibration) -> "Corrector":
        """Return this corrector with a calibration, to save both in one file.

        A calibration converts the confidence of a search to the probability that its first hit is
        right.

        Parameters
        ----------
        calibration : Calibration
            From `calibrate`, for the confidence of searches with this corrector.

        Returns
        -------
        Corrector
            With the same fingerprint, because biases and rows don't change.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Corrector
        >>> from nnnorm import calibrate, search
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, references, normalize=True)
        >>> found = search(references, gallery, corrector.bias, normalize=True)
        >>> corrector.with_calibration(calibrate(found.confidence)).calibration.n_queries
        99
        """
        how = "from calibrate(confidence, is_right)"
        check_type("calibration", calibration, Calibration, how)
        return replace(self, calibration=calibration)

    def open(self, source: Source, name: str) -> Embeddings:
        """Open rows, and check that they fit this corrector.

        Parameters
        ----------
        source : array or path, shape (n_rows, dim)
            Items or queries.
        name : {"items", "gallery", "queries", "recent"}
            What the rows are. The norms of items are compared with those of the fitted gallery,
            those of queries with the references.

        Returns
        -------
        Embeddings
        """
        rows = open_embeddings(source, name=name, normalize=self._normalizes(source))
        check_same_dim(rows, self.bank)
        if self.unit:
            if not rows.normalized and not _has_unit_norms(rows):
                got = embeddings.describe_norms(rows.norm_range)
                raise NNNormError(
                    f"rows of {rows.name} must have norm 1, like all rows of this corrector; got "
                    f"{got}: normalize them, or fit the corrector with "
                    "normalize=True (--normalize)"
                )
        else:
            role = "items" if name in ("items", "gallery") else "references"
            known = self.item_norms if role == "items" else self.bank.norm_range
            of_corrector = f"{role} of the corrector"
            embeddings.check_like_norms(rows.name, rows.norm_range, known, of_corrector)
        return rows

    def _normalizes(self, source: Source) -> bool:
        """Whether to normalize rows; rows that were opened as normalized stay so."""
        given = isinstance(source, Embeddings) and source.normalized
        return self.normalize or (given and self.unit)

    def open_groups(self, groups: npt.ArrayLike | None, n_items: int) -> Labels | None:
        """Return the labels of items; raise unless they are given if and only if needed."""
        if self.groups is None and groups is None:
            return None
        if self.groups is None:
            raise NNNormError(
                "this corrector was fitted without groups; leave out groups, or fit it with them"
            )
        if groups is None:
            raise NNNormError(
                f"this corrector was fitted with groups ({name_groups(self.groups)}); pass groups "
                "(--groups), one label per item"
            )
        return open_labels(groups, n_items)

    def open_valid(self, source: Source, name: str) -> embeddings.ValidRows:
        """Open the valid rows of items; the caller checks their norms."""
        with quiet():  # the caller reports unusual norms
            found = embeddings.open_valid(source, name=name, normalize=self._normalizes(source))
        check_same_dim(found.embeddings, self.bank)
        return found

    def values_for(
        self, items: Embeddings, groups: npt.ArrayLike | None, **options: Any
    ) -> FloatArray:
        """Compute values with group offsets; warn if they are far from those of the gallery."""
        labels = self.open_groups(groups, len(items))
        # The approximate solver learns from all items, so a value would depend on other items.
        banks, center = (self.bank, self.bank_of_items), self.center
        statistics = Statistics(items, *banks, center=center, solver="exact", **options)
        values = np.asarray(self.method.values(statistics), dtype=np.float32)
        if labels is not None and self.groups is not None:
            values = np.float32(self.method.weight) * values + offsets_of(labels, self.groups)
            self._warn_of_labels(items, labels)
            return values
        known = self.bias.values
        spread = float(known.std(dtype=np.float64))
        away = abs(float(np.median(values)) - float(np.median(known)))
        if len(items) >= _FEWEST_CHECKED and away > _FAR * spread > 0:
            warn(
                f"the median bias of {items.name} is {away / spread:.0f} standard deviations from "
                "that of the corrector's gallery; check that the same model encoded both"
            )
        return values

    def _warn_of_labels(self, items: Embeddings, labels: Labels) -> None:
        """Warn if many items are nearer to another group's mean, in a gallery where few are."""
        sample, known = self.sample.astype(np.float32), np.array(self.sample_groups)
        names, counts = np.unique(known, return_counts=True)
        if len(names) < 2 or counts.min() < _FEWEST_OF_A_GROUP:
            return
        means = np.stack([sample[known == name].mean(axis=0) for name in names])
        lengths = np.square(means).sum(axis=1)

        def nearest(rows: FloatArray) -> Labels:
            return names[(2 * rows @ means.T - lengths).argmax(axis=1)]

        if (nearest(sample) == known).mean() < _APART:
            return
        found = np.concatenate([nearest(block) for _, block in items.blocks()])
        if (n_wrong := int((found != labels).sum())) > _MOST_WRONG * len(items):
            row = int((found != labels).argmax())
            warn(
                f"{n_wrong:,} of {len(items):,} {items.name} look like another group than their "
                f"label: item {row} is labeled {labels[row]}, but looks like {found[row]}; check "
                "the labels"
            )

    def _check_weighted(self) -> None:
        if self.weight == 0:
            raise NNNormError(
                "this corrector has weight 0, so its queries ignore popularity; call "
                "augment_gallery and augment_queries of nnnorm.augmentation with the bias "
                "corrector.bias_for(items) + popularity"
            )

    def _add_clicks(
        self, values: FloatArray, popularity: Popularity, items: Embeddings
    ) -> FloatArray:
        """Add clicks to values; raise an error if the sum doesn't fit in the stored rows."""
        self._check_weighted()
        added = (Bias(values, self.weight, self.method.name) + popularity).values
        kept = self.augmentation
        beyond = kept.scale * np.abs(added.astype(np.float64) - kept.shift)
        row = int(beyond.argmax())
        if beyond[row] ** 2 + items.norm_range[1] ** 2 > kept.radius**2:
            clicks = np.asarray(popularity.clicks)[row]
            raise NNNormError(
                f"item {row} of {items.name} has {clicks:,.0f} clicks, more than the stored rows "
                f"can represent with a weight of {popularity.weight:g}; store all items again with "
                "corrector.with_room(popularity), or use a smaller weight"
            )
        return added

    # --- files -------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the corrector, ready for JSON."""
        plain = ("weight", "dim", "normalize", "unit", "duplicates", "longest", "fingerprint")
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: getattr(self, name).to_dict() for name in ("method", "asked", "bias")},
            "n_references": len(self.bank),
            "augmentation": asdict(self.augmentation),
            "item_norms": list(self.item_norms),
            **({} if self.groups is None else {"sample_groups": list(self.sample_groups)}),
            **({} if self.calibration is None else {"calibration": self.calibration.to_dict()}),
        }

    def save(self, path: PathLike) -> None:
        """Save the corrector as a `.safetensors` file; if that fails, nothing changes.

        Parameters
        ----------
        path : str or PathLike
            The file. An existing one is replaced.

        Examples
        --------
        >>> import numpy as np
        >>> import tempfile
        >>> from nnnorm import Corrector
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
    def load(cls, path: PathLike) -> "Corrector":
        """Load a corrector from a file that `save` wrote.

        Parameters
        ----------
        path : str or PathLike
            The `.safetensors` file.

        Returns
        -------
        Corrector

        Examples
        --------
        >>> from nnnorm import Corrector
        >>> Corrector.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no corrector file nowhere.safetensors; ...
        """
        return load_record(path, "corrector", _MAKER, cls.from_dict)

    @classmethod
    def from_dict(cls, arrays: Mapping[str, Rows], about: Mapping[str, Any]) -> "Corrector":
        """Create a corrector from its arrays and the result of `to_dict`."""
        kept = {name: about[name] for name in ("normalize", "unit", "duplicates")}
        for name in ("method", "asked"):
            kept[name] = make_method(about[name]["name"], **about[name]["params"])
        if "gallery_references" in arrays:
            name = "gallery_references"
            kept["bank_of_items"] = _keep(arrays[name], name, about["normalize"])
        if "calibration" in about:
            kept["calibration"] = Calibration.from_dict(about["calibration"])
        return cls(
            bank=_keep(arrays["references"], "references", about["normalize"]),
            bias=Bias.from_dict(arrays, about["bias"]),
            augmentation=Augmentation(**about["augmentation"]),
            item_norms=tuple(about["item_norms"]),
            sample=arrays["sample"],
            center=arrays.get("center"),
            sample_groups=tuple(about.get("sample_groups", ())),
            **kept,
        )


# A corrector, or the path of its file.
Correction: TypeAlias = Corrector | PathLike


def open_corrector(given: Correction) -> Corrector:
    """Return a corrector; if its path is given, load it."""
    if isinstance(given, (str, os.PathLike)):
        return Corrector.load(given)
    how = "from Corrector.fit(gallery, references), or the path of its file"
    check_type("corrector", given, Corrector, how)
    return given


def check_method(method: Method) -> None:
    """Raise an error if the method can't compute the bias of new items."""
    check_type("method", method, Method, "such as NNN()")
    if method.gated_by:
        raise NNNormError(
            f"a Corrector computes the bias of later items, but method {method.name} depends on "
            "the best items of each query; use it without its gate, or use nnn"
        )
    if not method.values_each_item:
        raise NNNormError(
            f"a Corrector computes the bias of later items, but method {method.name} balances "
            "all items of a gallery at once; use nnn, csls, dn or is"
        )


def _round_to_half(rows: FloatArray) -> Rows:
    """Return read-only rows in float16, or unchanged if they are outside its range."""
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    lost = np.linalg.norm(rows - half.astype(np.float32), axis=1)
    is_close = lost <= _HALF_ERROR * np.linalg.norm(rows, axis=1)
    kept = half if is_close.all() else rows.copy()
    kept.flags.writeable = False
    return kept


def _keep(source: Embeddings | Rows, name: str, normalize: bool) -> Embeddings:
    """Return a bank with the values that will be saved, rounded to float16, in float32."""
    kept = _round_to_half(np.asarray(source)).astype(np.float32)
    return open_embeddings(kept, name=name, normalize=normalize)


def _has_unit_norms(rows: Embeddings) -> bool:
    low, high = rows.norm_range
    return max(1 - low, high - 1) <= _UNIT


def _longest_norm(norms: tuple[float, float], unit: bool) -> float:
    """Return the largest norm that a later item may have; `norms` is the range of the gallery."""
    return 1 + _UNIT if unit else _HEADROOM * norms[1]


def _report(old: Bias, new: Bias, items: Embeddings, asked: Embeddings) -> RefitReport:
    """Compare two biases of the same items, by their values and by the top-1 items of queries."""
    rows = np.linspace(0, len(asked) - 1, min(len(asked), _N_QUERIES)).astype(np.int64)
    some = open_embeddings(asked.take(rows), name="queries", normalize=items.normalized)
    first = [search(some, items, bias, k=1).indices for bias in (old, new)]
    before, after = (bias.values.astype(np.float64) for bias in (old, new))
    is_flat = before.std() == 0 or after.std() == 0
    return RefitReport(
        correlation=0.0 if is_flat else float(np.corrcoef(before, after)[0, 1]),
        mean_shift=new.weight * float(after.mean()) - old.weight * float(before.mean()),
        changed_top1=float((first[0] != first[1]).mean()),
        n_items=len(items),
        n_queries=len(some),
    )
