"""What every method is: parameters in a frozen record, a formula over `Statistics`, `fit`.

A method's file holds all that is particular to it. `csls.py` is the model: a record with its
parameters, the names and the default grid in `variants`, and the formula, `values`. A method may
also have a `weight`, choose its parameters in `resolve`, use a second bank (`gallery_bank`), or
correct some queries only (`gated_by`).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank
from nnnorm.bias import Bias, Gate
from nnnorm.dedup import Duplicates, drop_copies
from nnnorm.embeddings import Embeddings, Source, check_same_norms, open_embeddings, open_matrix
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress
from nnnorm.input_checks import check_inputs
from nnnorm.methods.groups import add_offsets, open_groups
from nnnorm.methods.statistics import BankName, Statistics
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.solvers import Solver, check_solver

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
# As in scikit-learn: values per parameter, all combined; or several such, one after the other.
Grid: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
POWERS_OF_TWO = tuple(2**power for power in range(10))


@dataclass(frozen=True)
class Variant:
    """A command-line name of a method, with the parameters that it fixes or presets."""

    name: str
    label: str
    grid: Grid = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    preset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method(ABC):
    """A correction method: references in, `Bias` out. Subclasses are records of parameters."""

    variants: ClassVar[tuple[Variant, ...]]
    # Short signs of the parameters, for tables.
    symbols: ClassVar[Mapping[str, str]] = MappingProxyType({})
    gallery_bank: ClassVar[Literal["unused", "optional", "needed"]] = "unused"
    # Whether an item's value follows from the item and the banks alone, whatever else is searched.
    values_each_item: ClassVar[bool] = True
    # Whether `weight` is the part of the values that is taken, so that groups can have another.
    is_weighted: ClassVar[bool] = False

    def __new__(cls, *_: Any, **params: Any) -> "Method":
        """Make an empty record; its generated ``__init__`` would call `k` an unexpected keyword."""
        names = list(cls.__dataclass_fields__)
        if unknown := sorted(params.keys() - names):
            meant = "reference_k" if unknown[0] in ("k", "n_neighbors") else ""
            hint = f"did you mean {meant!r}?" if meant in names else f"it has {', '.join(names)}"
            raise NNNormError(f"{cls.__name__} has no argument {unknown[0]!r}; {hint}")
        return super().__new__(cls)

    # --- what a method may define ------------------------------------------------------------

    @abstractmethod
    def values(self, statistics: Statistics) -> FloatArray:
        """The formula: a bias value per item, shape ``(n_gallery,)``."""

    @property
    def weight(self) -> float:
        """The weight of the bias values."""
        return 1.0

    @property
    def is_automatic(self) -> bool:
        """Whether fit chooses a parameter; then near copies among the references are dropped."""
        return False

    def resolve(self, statistics: Statistics) -> tuple["Method", dict[str, Any]]:
        """Replace automatic parameters by numbers; also return what they were chosen by."""
        return self, {}

    @property
    def gated_by(self) -> tuple[BankName, ...]:
        """The banks whose activation sets decide per query which `parts` of the bias apply."""
        return ()

    def parts(self, statistics: Statistics) -> list[FloatArray]:
        """The terms that add up to the values, one for each gate."""
        return [self.values(statistics)]

    # --- what follows from it ----------------------------------------------------------------

    @property
    def variant(self) -> Variant:
        """The name that these parameters go by."""
        for variant in self.variants:
            if variant.fixed.items() <= vars(self).items():
                break
        return variant

    @property
    def name(self) -> str:
        """The command-line name."""
        return self.variant.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that its name does not imply, as plain numbers for JSON."""
        params = {}
        for part in fields(self):
            if part.name not in self.variant.fixed:
                value = getattr(self, part.name)
                plain = value.item() if isinstance(value, np.generic) else value
                params[part.name] = float(plain) if part.type is float else plain
        return params

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, from which `make_method` makes the same method."""
        return {"name": self.name, "params": self.params}

    def make_bias(self, statistics: Statistics, chosen: Mapping[str, Any] | None = None) -> Bias:
        """Apply the formula to statistics that may be shared with other settings.

        `chosen` is what the parameters of a resolved method were chosen by.
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
        values = np.asarray(self.values(statistics), dtype=np.float32)
        bias = Bias(
            values=values,
            weight=self.weight,
            method=self.name,
            params=params,
            gates=tuple(gates),
            **statistics.provenance(uses_gallery_bank=self.gallery_bank != "unused"),
        )
        if (groups := statistics.groups) is None or not self.is_weighted:
            return bias
        bias = replace(bias, params={**bias.params, "between": groups.between})
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
        """Compute the bias of every gallery item from a bank of reference queries.

        Parameters
        ----------
        gallery : array or path, shape (n_gallery, dim)
            The items that are searched.
        references : Bank, array or path, shape (n_references, dim)
            Past queries, or queries of a training set. They should not include the test queries.
        groups : array, shape (n_gallery,), optional
            A label per item, if the gallery is mixed: photos and texts, languages, sources. Groups
            are then found alike, and the weight of the method applies within them. The values are
            the whole correction, with a weight of 1; ``params["groups"]`` has the offsets. For
            `NNN`, `CSLS` and `DN`.
        between : float
            The weight of the differences between groups: 0 leaves them as they are.
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            A bank of gallery-side items, for `DualSoftmax` and `Sinkhorn` only.
        duplicates : {"drop", "keep"}, optional
            "drop" leaves out near copies of earlier references (cosine above 0.88), so that popular
            queries count once; the `params` of the bias have ``n_unique``. "keep" uses every row,
            as the paper does. The default is "drop" for automatic settings and "keep" if all
            numbers are given.
        allow_gallery_rows : bool
            Whether references may be rows of the gallery, which is rejected by default: an
            item's best reference would be the item itself.
        solver : str
            Computes the means of `NNN` and `CSLS`: "exact", "torch", "cuda", "mps",
            "approximate", or "auto": exact if that takes less than about 30 seconds, otherwise
            approximate if its measured error is at most 0.15. The `params` of the bias have the
            ``solver`` that ran, and the ``quality`` and ``error`` of approximate means.
        quality : int, optional
            Number of inverted lists to probe per item, for the solver "approximate".
        normalize : bool, optional
            True divides every row by its norm (cosine). False means raw inner products. None
            means raw inner products too, with a warning if norms vary.
        memory_budget : int
            Bytes to use beyond the inputs and the result, about 512 MB by default.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            With ``values`` of shape ``(n_gallery,)``.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import NNN
        >>> gallery = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> references = np.array([[0.8, 0.6], [0.0, 1.0], [0.0, 1.0]])
        >>> NNN(reference_k=2, alpha=0.75).fit(gallery, references).values.round(2).tolist()
        [0.4, 1.0]
        """
        items, past, bank = self.open_inputs(
            gallery, references, gallery_references, solver, quality, normalize
        )
        check_inputs(items, past, allow_gallery_rows=allow_gallery_rows)
        statistics = Statistics(
            items,
            drop_copies(past, self.duplicates_for(past, duplicates), progress),
            bank,
            groups=open_groups(groups, len(items), between),
            solver=solver,
            quality=quality,
            memory_budget=memory_budget,
            progress=progress,
        )
        bias = self.make_bias(statistics)
        warn_of_mismatch(bias)
        return bias

    def open_inputs(
        self,
        gallery: Source,
        references: Source | Bank,
        gallery_references: Source | None,
        solver: Solver,
        quality: int | None,
        normalize: bool | None,
    ) -> tuple[Embeddings, Embeddings, Embeddings | None]:
        """Open gallery, references and gallery bank, once it is clear that the method uses them."""
        check_solver(solver, quality)
        items = open_embeddings(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        check_same_norms(items, past, normalize=normalize)
        if gallery_references is None:
            return items, past, None
        self._check_gallery_bank("gallery_references")
        bank = open_embeddings(gallery_references, name="gallery_references", normalize=normalize)
        check_same_norms(items, bank, normalize=normalize)
        return items, past, bank

    def duplicates_for(self, past: Embeddings, duplicates: Duplicates | None) -> Duplicates:
        """What `duplicates` means if it is not given: a saved bank has no copies to keep."""
        if duplicates is None:
            return "drop" if self.is_automatic or past.counts is not None else "keep"
        return duplicates

    def fit_scores(
        self,
        scores: Source,
        gallery_scores: Source | None = None,
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias from ready scores, for scorers that are not an inner product.

        Parameters
        ----------
        scores : array or path, shape (n_gallery, n_references)
            Score of every gallery item with every reference; higher is better.
        gallery_scores : array or path, optional
            For `DualSoftmax` shape ``(n_gallery, n_gallery_references)``: items against the gallery
            bank. For `Sinkhorn` shape ``(n_gallery_references, n_references)``: the gallery bank
            against the references.
        memory_budget : int
            Bytes to use beyond the inputs and the result.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            With ``values`` of shape ``(n_gallery,)`` and no fingerprint of a gallery.

        Examples
        --------
        >>> from nnnorm import CSLS
        >>> CSLS(reference_k=1).fit_scores([[0.5, 0.25], [0.0, -1.0]]).values.tolist()
        [0.5, 0.0]
        """
        bank = None
        if gallery_scores is not None:
            self._check_gallery_bank("gallery_scores")
            bank = open_matrix(gallery_scores, name="gallery_scores")
        opened = open_matrix(scores, name="scores")
        options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
        return self.make_bias(Statistics(opened, gallery_bank=bank, **options))

    def _check_gallery_bank(self, argument: str) -> None:
        if self.gallery_bank == "unused":
            raise NNNormError(f"method {self.name} uses no gallery bank; leave out {argument}")


def open_references(
    references: Source | Bank, *, name: str = "references", normalize: bool | None = None
) -> Embeddings:
    """Open a bank, or the file of one, or what `open_embeddings` opens."""
    source = references
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".safetensors":
        source = Bank.load(source)
    if isinstance(source, Bank):
        source = source.embeddings()
    return open_embeddings(source, name=name, normalize=normalize)


def is_mismatched(params: Mapping[str, Any], n_references: int, n_gallery: int) -> bool:
    """Whether past queries don't match the gallery, and too few of either are not the reason."""
    is_clear = n_references >= 16 and n_gallery >= 100 and params.get("reliability", 0) >= 0.5
    return is_clear and params.get("match", 1) < 0.5


def warn_of_mismatch(bias: Bias) -> None:
    """Warn if the automatic weight was reduced because the references do not match the gallery."""
    if is_mismatched(bias.params, bias.n_references or 0, len(bias)):
        warn(
            "the past queries don't resemble what this gallery is searched for, so the correction "
            f"is reduced to {bias.params['match']:.0%}; pass past queries of this search, or a few "
            "dozen recent ones (recent=, --recent), or, if items of several kinds are mixed, "
            "groups (--groups)"
        )


def check_count(what: str, value: int, at_most: int | None = None) -> None:
    """Raise unless the value is a whole number of at least 1, and at most `at_most` if given."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise NNNormError(f"{what} must be a whole number of at least 1; got {value!r}")
    if at_most is not None and value > at_most:
        raise NNNormError(f"{what} must be at most {at_most:,}; got {value!r}")
