"""The base of all methods: `Method`, a dataclass of parameters with a formula and `fit`.

Each method has one file. See `csls.py` for an example: a dataclass with the parameters, the names
and default grid in `variants`, and the formula in `values`. A method may also define a `weight`,
choose its parameters in `resolve`, use a second bank (`gallery_bank`), or correct only some queries
(`gated_by`).

Formulas use `Statistics` of every item's scores with a bank:

    m_k     mean of the item's k best reference scores; the items may be centered first
    m_all   mean of all its reference scores
    L_β     log-mean-exp: the log of the mean of exp(β·s)
    u       entropic transport between the items and the references
    A       activation set: the items that are the best item of at least one row of a bank

Each statistic is computed when a formula first uses it, and stored. To measure many settings,
`Statistics.prepare` runs their formulas on an empty copy, records the statistics that they use, and
computes all of them in one pass over each bank. So a whole grid takes no longer than one fit.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm import embeddings
from nnnorm.bank import Bank
from nnnorm.bias import Bias, Gate
from nnnorm.dedup import Duplicates, References, describe_size, drop_copies
from nnnorm.embeddings import BoolArray, Embeddings, Source, StoredMatrix, open_embeddings
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress
from nnnorm.input_checks import check_inputs
from nnnorm.methods.groups import Groups, add_offsets
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Matrix, Products, Scores, top_k
from nnnorm.softmax import scan, transport_biases
from nnnorm.solvers import Solver, check_solver, compute_means

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
BankName = Literal["references", "gallery_references"]
# As in scikit-learn: the values of each parameter, all combined; or a list of such grids.
Grid: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
POWERS_OF_TWO = tuple(2**power for power in range(10))


# --- statistics of scores ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """A statistic that a formula uses; `number` is k, β or τ."""

    kind: Literal["mean", "mean of all", "log", "transport"]
    number: float = 0
    bank: BankName = "references"
    is_centered: bool = False
    iterations: int = 0


class Statistics:
    """Statistics of a gallery's scores with a bank, or of given scores; each is computed once."""

    def __init__(
        self,
        gallery: StoredMatrix,
        references: References | Embeddings | None = None,
        gallery_bank: StoredMatrix | None = None,
        *,
        center: npt.NDArray[np.float32] | None = None,
        groups: Groups | None = None,
        solver: Solver = "auto",
        quality: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> None:
        if isinstance(references, Embeddings):
            references = References(references, len(references), references.fingerprint)
        self.gallery, self.references, self.gallery_bank = gallery, references, gallery_bank
        self.scores: Scores
        if not isinstance(gallery, Embeddings):
            self.scores = Matrix(gallery, memory_budget=memory_budget)
        elif references is not None:
            self.scores = Products(gallery, references.embeddings, memory_budget=memory_budget)
            if isinstance(gallery_bank, Embeddings):
                embeddings.check_same_dim(gallery, gallery_bank)
        self.n_gallery: int = self.scores.shape[0]
        self.n_references: int = self.scores.shape[1]
        # The number of references as passed, including near-duplicates that were dropped.
        self.n_given = self.n_references if references is None else references.n_given
        self.groups, self.solver, self.quality = groups, solver, quality
        self.memory_budget, self.progress = memory_budget, progress
        # Measurements of the automatic rule of `NNN`, by k and whether items are centered.
        self.evidence: dict[tuple[int, bool], Any] = {}
        self._center = center
        self._kept: dict[_Request, FloatArray] = {}
        self._solved: dict[_Request, dict[str, Any]] = {}
        self._active: dict[BankName, BoolArray] = {}
        # If this is a list, statistics are recorded here instead of computed; see `prepare`.
        self._recorded: list[_Request] | None = None

    def subset(self, rows: npt.NDArray[np.int64]) -> "Statistics":
        """Return statistics of some items, without groups."""
        items: Any = self.gallery  # always embeddings, because fits on scores take no groups
        own = items.subset(rows)
        return Statistics(own, self.references, memory_budget=self.memory_budget)

    @cached_property
    def centered_scores(self) -> Scores:
        """Reference scores of the centered items; the center is their mean unless it was given."""
        return self.scores.centered(self._center)

    # --- statistics for formulas -------------------------------------------------------------

    def mean_of_best(self, reference_k: int, *, is_centered: bool = False) -> FloatArray:
        """Return ``m_k``, shape ``(n_gallery,)``."""
        return self._get(_Request("mean", int(reference_k), is_centered=is_centered))

    def log_mean_exp(self, beta: float, bank: BankName = "references") -> FloatArray:
        """Return ``L_β`` over a bank, shape ``(n_gallery,)``; zeros for β = 0."""
        if beta == 0:
            return np.zeros(self.n_gallery)
        return self._get(_Request("log", float(beta), bank))

    def transport(self, tau: float, iterations: int) -> FloatArray:
        """Return ``−τ·log u`` of entropic transport, shape ``(n_gallery,)``."""
        return self._get(_Request("transport", float(tau), iterations=iterations))

    def mean_of_all(self) -> FloatArray:
        """Return ``m_all``, shape ``(n_gallery,)``."""
        return self._get(_Request("mean of all"))

    def activation_set(self, bank: BankName = "references") -> BoolArray:
        """Return which items are the best item of a row of a bank, shape ``(n_gallery,)``."""
        if bank not in self._active:
            best = top_k(self._scores_with(bank).transposed(), 1, self.progress)
            self._active[bank] = np.zeros(self.n_gallery, dtype=bool)
            self._active[bank][best.indices[:, 0]] = True
        return self._active[bank]

    # --- computing ---------------------------------------------------------------------------

    def prepare(self, methods: Iterable["Method"]) -> dict[str, Any]:
        """Compute the statistics that the formulas of some settings use; return the solvers."""
        needed: list[_Request] = []
        for method in methods:
            recorder = copy(self)
            recorder._recorded, recorder.n_gallery = [], 1
            method.values(recorder)
            if self.groups is not None and not (method.is_weighted or method.name == "none"):
                raise NNNormError(
                    f"method {method.name} takes no groups; use nnn, csls or dn, or leave them out"
                )
            if method.gallery_bank == "needed" and self.gallery_bank is None:
                banks = {request.bank for request in recorder._recorded}
                if "gallery_references" in banks.union(method.gated_by):
                    raise NNNormError(
                        f"method {method.name} needs a gallery bank; pass gallery_references "
                        "(gallery_scores for a fit on scores), or use InvertedSoftmax (--method is)"
                    )
            kinds = {request.kind for request in recorder._recorded}
            if self.solver not in ("auto", "exact") and "mean" not in kinds:
                raise NNNormError(
                    f"solver {self.solver} computes means of the best references, which method "
                    f"{method.name} does not use; leave out solver"
                )
            needed += recorder._recorded
        self._compute(needed)
        solved: dict[str, Any] = {}
        for request in needed:
            solved |= self._solved.get(request, {})
        return solved

    def too_few_references(self, reference_k: float) -> NNNormError:
        """Return the error for a k that is larger than the bank."""
        size = describe_size(self.n_given, self.n_references)
        return NNNormError(
            f"reference_k is {reference_k}, but there are only {size}; pass more, or a "
            "smaller reference_k"
        )

    def _get(self, request: _Request) -> FloatArray:
        if self._recorded is not None:
            self._recorded.append(request)
            return np.zeros(1)
        if request not in self._kept:
            self._compute([request])
        return self._kept[request]

    def _compute(self, requests: Iterable[_Request]) -> None:
        """Compute statistics that aren't stored yet, in one pass over each kind of scores."""
        passes: dict[Any, list[_Request]] = {}
        for request in dict.fromkeys(requests):
            if request.kind == "mean" and request.number > self.n_references:
                raise self.too_few_references(request.number)
            if request not in self._kept:
                # One pass computes all k and β of a bank; another one computes all τ.
                key = request.kind == "mean of all", replace(request, kind="log", number=0)
                passes.setdefault(key, []).append(request)
        for (is_mean_of_all, shared), some in passes.items():
            if is_mean_of_all:
                self._kept[some[0]] = self.scores.mean()
            elif shared.iterations:
                taus = [request.number for request in some]
                options: dict[str, Any] = {"n_wanted": self.n_gallery, "progress": self.progress}
                found = transport_biases(self._joined_scores(), taus, shared.iterations, **options)
                self._kept |= dict(zip(some, found, strict=True))
            elif shared.is_centered:
                self._scan(self.centered_scores, some)
            else:
                self._scan(self._scores_with(shared.bank), some)

    def _scan(self, scores: Scores, requests: list[_Request]) -> None:
        """Compute means and log-mean-exps of one bank, in one pass or each mean with the solver."""
        means = [one for one in requests if one.kind == "mean"]
        logs = [one for one in requests if one.kind != "mean"]
        if self.solver not in ("auto", "exact") or len(means) == len(requests) == 1:
            for one in means:
                k = int(one.number)
                evidence = self.evidence.get((k, one.is_centered))
                sample = None if evidence is None else evidence.sample
                about: dict[str, Any] = {"quality": self.quality, "sample": sample}
                solved = compute_means(self.solver, scores, k, **about, progress=self.progress)
                self._kept[one], self._solved[one] = solved
            means = []
        if not means and not logs:
            return
        found: dict[_Request, FloatArray] = {}
        found |= {one: np.empty(self.n_gallery, np.float32) for one in means}
        found |= {one: np.empty(self.n_gallery) for one in logs}
        ks, betas = [int(one.number) for one in means], [one.number for one in logs]
        parts = scan(scores, k=max(ks, default=0), betas=betas, progress=self.progress)
        for start, stop, (best, some_logs) in parts:
            for one, k in zip(means, ks, strict=True):
                found[one][start:stop] = best[:, :k].mean(axis=1, dtype=np.float64)
            for one, log in zip(logs, some_logs, strict=True):
                found[one][start:stop] = log
        self._kept |= found
        self._solved |= {one: {"solver": "exact"} for one in means}

    def _scores_with(self, bank: BankName) -> Scores:
        """Return the scores of the gallery with the references, or with the gallery bank."""
        gallery, second = self.gallery, self.gallery_bank
        if bank == "references":
            return self.scores
        if isinstance(second, Embeddings) and isinstance(gallery, Embeddings):
            return Products(gallery, second, memory_budget=self.memory_budget)
        return self._ready(second, 0, "(n_gallery, n_gallery_references), with as many rows")

    def _joined_scores(self) -> Scores:
        """Return the reference scores of the gallery, followed by those of its bank if any."""
        scores, bank = self.scores, self.gallery_bank
        if isinstance(bank, Embeddings) and isinstance(scores, Products):
            return replace(scores, rows=scores.rows.joined(bank))
        if bank is None or not isinstance(scores, Matrix):
            return scores
        below = self._ready(bank, 1, "(n_gallery_references, n_references), with as many columns")
        joined = StoredMatrix([*scores.matrix.parts, *below.matrix.parts], "scores")
        return replace(scores, matrix=joined)

    def _ready(self, bank: Any, axis: int, expected: str) -> Matrix:
        """Return given scores of a gallery bank; raise unless they match the scores' shape."""
        if bank.shape[axis] != self.scores.shape[axis]:
            raise NNNormError(
                f"gallery_scores must have shape {expected} as scores; got {bank.shape}, and "
                f"scores {self.scores.shape}"
            )
        return Matrix(bank, memory_budget=self.memory_budget)


# --- methods -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A command-line name of a method; `fixed` parameters can't change, `preset` ones can."""

    name: str
    label: str
    grid: Grid = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    preset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method(ABC):
    """A correction method: computes the bias of every item from past queries.

    Subclasses are frozen dataclasses of parameters, such as ``NNN(reference_k=32, alpha=0.5)``.
    """

    variants: ClassVar[tuple[Variant, ...]]
    # The parameters that tables and reports show.
    shown: ClassVar[tuple[str, ...]] = ()
    gallery_bank: ClassVar[Literal["unused", "optional", "needed"]] = "unused"
    # Whether an item's value depends only on the item and the banks, and not on other items.
    values_each_item: ClassVar[bool] = True
    # Whether `weight` is a factor of the values, so that groups can have offsets of another weight.
    is_weighted: ClassVar[bool] = False

    def __new__(cls, *_: Any, **params: Any) -> "Method":
        """Reject unknown parameters with a hint, which the generated ``__init__`` can't give."""
        names = [part.name for part in fields(cls)]
        if unknown := sorted(params.keys() - names):
            meant = "reference_k" if unknown[0] in ("k", "n_neighbors") else ""
            takes = f"it takes {', '.join(names) or 'none'}"
            hint = f"did you mean {meant!r}?" if meant in names else takes
            raise NNNormError(f"{cls.__name__} has no parameter {unknown[0]!r}; {hint}")
        return super().__new__(cls)

    # --- definitions of a method -------------------------------------------------------------

    @abstractmethod
    def values(self, statistics: Statistics) -> FloatArray:
        """Return the bias value of every item by the method's formula, shape ``(n_gallery,)``."""

    @property
    def weight(self) -> float:
        """The weight of the bias values."""
        return 1.0

    @property
    def is_automatic(self) -> bool:
        """Whether `fit` chooses a parameter; if so, near-duplicate references are dropped."""
        return False

    def resolve(self, statistics: Statistics) -> tuple["Method", dict[str, Any]]:
        """Return the method with its automatic parameters set, and the measurements behind them."""
        return self, {}

    @property
    def gated_by(self) -> tuple[BankName, ...]:
        """The banks whose activation sets determine which `parts` of the bias apply to a query."""
        return ()

    def parts(self, statistics: Statistics) -> list[FloatArray]:
        """Return the terms that add up to the values, one for each gate."""
        return [self.values(statistics)]

    # --- derived properties ------------------------------------------------------------------

    @property
    def variant(self) -> Variant:
        """The variant with these parameters."""
        return next(one for one in self.variants if one.fixed.items() <= vars(self).items())

    @property
    def name(self) -> str:
        """The command-line name, such as ``"nnn"``."""
        return self.variant.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that the name does not imply, as plain numbers for JSON."""
        params = {}
        for part in fields(self):
            if part.name not in self.variant.fixed:
                value = getattr(self, part.name)
                plain = value.item() if isinstance(value, np.generic) else value
                params[part.name] = float(plain) if part.type is float else plain
        return params

    def to_dict(self) -> dict[str, Any]:
        """Return name and parameters as a dictionary, which `make_method` converts back."""
        return {"name": self.name, "params": self.params}

    def make_bias(self, statistics: Statistics, chosen: Mapping[str, Any] | None = None) -> Bias:
        """Apply the formula to statistics, which other settings may share.

        `chosen` has the measurements that `resolve` returned; they are added to the params.
        """
        if self.is_automatic:
            resolved, chosen = self.resolve(statistics)
            return resolved.make_bias(statistics, chosen)
        params = {**self.params, **(chosen or {}), **statistics.prepare([self])}
        if statistics.references is not None:
            params |= statistics.references.params
        gates = []
        if self.gated_by:
            parts = zip(self.gated_by, self.parts(statistics), strict=True)
            gates = [Gate(part, statistics.activation_set(bank)) for bank, part in parts]
        gallery, references = statistics.gallery, statistics.references
        about: dict[str, Any] = {"n_references": statistics.n_given}
        if references is not None and isinstance(gallery, Embeddings):
            prints = {"gallery": gallery.fingerprint, "references": references.fingerprint}
            if self.gallery_bank != "unused" and isinstance(statistics.gallery_bank, Embeddings):
                prints["gallery_references"] = statistics.gallery_bank.fingerprint
            norms = references.embeddings.norm_range
            about |= {"dim": gallery.dim, "fingerprints": prints, "reference_norms": norms}
        values = np.asarray(self.values(statistics), dtype=np.float32)
        groups = statistics.groups if self.is_weighted else None
        if groups is not None:
            params["between"] = groups.between
        bias = Bias(values, self.weight, self.name, params, gates=tuple(gates), **about)
        if groups is None:
            return bias
        return add_offsets(bias, groups.offsets(self, values, statistics), groups.labels)

    # --- fitting -----------------------------------------------------------------------------

    def fit(
        self,
        gallery: Source,
        references: Source | Bank,
        *,
        groups: npt.ArrayLike | None = None,
        between: float = 1.0,
        gallery_references: Source | None = None,
        duplicates: Duplicates | None = None,
        allow_gallery_rows: bool = False,
        solver: Solver = "auto",
        quality: int | None = None,
        normalize: bool | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias of every item of a gallery from past queries.

        Parameters
        ----------
        gallery : array or path, shape (n_gallery, dim)
            The embeddings of the items that are searched.
        references : Bank, array or path, shape (n_references, dim)
            Past queries, embedded by the same model, or queries of a training set. They must not
            include the queries that you measure the result on.
        groups : array, shape (n_gallery,), optional
            For a mixed gallery: one label per item, such as "photo" or "text", a language or a
            source. Groups whose scores with past queries differ then get the same mean score, and
            the weight of the method applies within groups. The returned values are the whole
            correction, with a weight of 1. ``bias.params["groups"]`` has the offset of each group.
            For `NNN`, `CSLS` and `DN`.
        between : float
            With groups: the weight of the differences between groups. 1 removes them, 0 leaves them
            as they are.
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            A gallery bank, for `DualSoftmax` and `Sinkhorn` only: items to compare the gallery
            with.
        duplicates : {"drop", "keep"}, optional
            "drop" leaves out references that nearly equal earlier ones (cosine above 0.88), so
            that frequent queries count once; ``bias.params["n_unique"]`` has the number of the
            others. "keep" uses every row, as in the paper. The default is "drop" if the method
            chooses a setting, and "keep" if you pass all settings.
        allow_gallery_rows : bool
            Whether references may be rows of the gallery. By default, such references are rejected,
            because an item's best reference would be the item itself.
        solver : str
            How to compute the means of `NNN` and `CSLS`: "exact", "torch", "cuda", "mps",
            "approximate" or "auto". "auto" is exact if that takes less than about 30 seconds,
            otherwise approximate if its measured error is at most 0.15. ``bias.params`` has the
            ``solver`` that ran, and the ``quality`` and ``error`` of approximate means.
        quality : int, optional
            For the solver "approximate": number of inverted lists to probe per item.
        normalize : bool, optional
            True divides every row by its norm, so scores are cosines. False uses raw inner
            products. None uses them too, with a warning if norms differ.
        memory_budget : int
            Bytes to use beyond the inputs and the result, 512 MB by default.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            Its ``values`` have the shape ``(n_gallery,)``.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import NNN
        >>> gallery = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> references = np.array([[0.8, 0.6], [0.0, 1.0], [0.0, 1.0]])
        >>> NNN(reference_k=2, alpha=0.75).fit(gallery, references).values.round(2).tolist()
        [0.4, 1.0]
        """
        check_solver(solver, quality)
        items, past, bank = self.open_inputs(gallery, references, gallery_references, normalize)
        check_inputs(items, past, allow_gallery_rows=allow_gallery_rows)
        used = drop_copies(past, self.duplicates_for(past, duplicates), progress)
        labeled = open_groups(groups, len(items), between)
        run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
        run |= {"solver": solver, "quality": quality}
        bias = self.make_bias(Statistics(items, used, bank, groups=labeled, **run))
        warn_of_mismatch(bias)
        return bias

    def open_inputs(
        self,
        gallery: Source,
        references: Source | Bank,
        gallery_references: Source | None,
        normalize: bool | None,
    ) -> tuple[Embeddings, Embeddings, Embeddings | None]:
        """Open gallery, references and gallery bank; raise if the method uses no gallery bank."""
        items = open_embeddings(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        embeddings.check_same_dim(items, past)
        embeddings.check_same_norms(items, past, normalize=normalize)
        if gallery_references is None:
            return items, past, None
        self._check_gallery_bank("gallery_references")
        bank = open_embeddings(gallery_references, name="gallery_references", normalize=normalize)
        embeddings.check_same_norms(items, bank, normalize=normalize)
        return items, past, bank

    def duplicates_for(self, past: Embeddings, duplicates: Duplicates | None) -> Duplicates:
        """Return `duplicates`, or its default: "drop" for automatic settings and banks."""
        return duplicates or ("drop" if self.is_automatic or past.counts is not None else "keep")

    def fit_scores(
        self,
        scores: Source,
        gallery_scores: Source | None = None,
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias from scores of your own, such as those of a model with cross-attention.

        Parameters
        ----------
        scores : array or path, shape (n_gallery, n_references)
            The score of every item with every past query; higher is better.
        gallery_scores : array or path, optional
            For `DualSoftmax`, shape ``(n_gallery, n_gallery_references)``: the scores of the items
            with the gallery bank. For `Sinkhorn`, shape ``(n_gallery_references, n_references)``:
            the scores of the gallery bank with the past queries.
        memory_budget : int
            Bytes to use beyond the inputs and the result, 512 MB by default.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            Its ``values`` have the shape ``(n_gallery,)``. It has no fingerprints, so a search can
            only check the number of items.

        Examples
        --------
        >>> from nnnorm import CSLS
        >>> CSLS(reference_k=1).fit_scores([[0.5, 0.25], [0.0, -1.0]]).values.tolist()
        [0.5, 0.0]
        """
        bank = None
        if gallery_scores is not None:
            self._check_gallery_bank("gallery_scores")
            bank = embeddings.open_matrix(gallery_scores, name="gallery_scores")
        opened = embeddings.open_matrix(scores, name="scores")
        statistics = Statistics(
            opened, gallery_bank=bank, memory_budget=memory_budget, progress=progress
        )
        return self.make_bias(statistics)

    def _check_gallery_bank(self, argument: str) -> None:
        if self.gallery_bank == "unused":
            raise NNNormError(f"method {self.name} uses no gallery bank; leave out {argument}")


def open_references(references: Source | Bank, *, normalize: bool | None = None) -> Embeddings:
    """Open past queries: a bank, its file, or any source that `open_embeddings` takes."""
    source = references
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".safetensors":
        source = Bank.load(source)
    if isinstance(source, Bank):
        source = source.embeddings()
    return open_embeddings(source, name="references", normalize=normalize)


def open_groups(labels: Any, n_items: int, between: float = 1.0) -> Groups | None:
    """Return the groups of a gallery; None without labels."""
    if labels is not None:
        return Groups(labels, n_items, between)
    if between != 1:
        raise NNNormError(f"between={between} needs groups, got None; pass groups, or leave it out")
    return None


def is_mismatched(bias: Bias) -> bool:
    """Whether past queries don't match the gallery; False if there are too few of either."""
    is_large = (bias.n_references or 0) >= 16 and len(bias) >= 100
    reliability, match = bias.params.get("reliability", 0), bias.params.get("match", 1)
    return is_large and reliability >= 0.5 and match < 0.5


def describe_mismatch(bias: Bias) -> str:
    """Describe past queries that don't match the gallery, as the end of a sentence."""
    few = bias.n_references is not None and bias.n_references < 64
    too_few = f", or {bias.n_references} are too few to show it" if few else ""
    return f"don't match this gallery{too_few}"


def warn_of_mismatch(bias: Bias) -> None:
    """Warn if the automatic weight was reduced because past queries don't match the gallery."""
    if is_mismatched(bias):
        warn(
            f"the past queries {describe_mismatch(bias)}, so the correction is reduced to "
            f"{100 * bias.params['match']:.0f} %; pass more past queries from this search, or a "
            "few dozen recent ones as recent (--recent); for a mixed gallery, pass groups "
            "(--groups)"
        )
