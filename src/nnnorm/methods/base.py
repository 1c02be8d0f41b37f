"""What every method is: parameters in a frozen record, a formula over `Statistics`, `fit`.

A method's file holds all that is particular to it: the formula, the names and labels it goes by,
the default grid, which banks it uses, its gates. `fit`, the grids of `evaluation` and the tables of
`report` read those facts from there.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank import (
    Bank,
    is_bank,
    open_gallery_references,
    open_references,
    use_references,
)
from nnnorm.bias import Bias, Gate
from nnnorm.dedup import Duplicates
from nnnorm.embeddings import Source, check_same_norms, open_embeddings, open_matrix
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress
from nnnorm.input_checks import check_inputs
from nnnorm.methods.automatic import is_mismatched
from nnnorm.methods.statistics import BankName, Needs, Statistics
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.solvers import Solver, check_solver

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
# As in scikit-learn: values per parameter, all combined; or several such, one after the other.
Grid: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
GalleryBank: TypeAlias = Literal["refused", "optional", "needed"]
POWERS_OF_TWO = tuple(2**power for power in range(10))


@dataclass(frozen=True)
class Variant:
    """A command-line name of a method."""

    name: str
    label: str
    grid: Grid = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    preset: Mapping[str, Any] = field(default_factory=dict)


class Factor(NamedTuple):
    """A factor ``exp(β·s − L_β)`` of a gated product, L_β being over one bank."""

    beta: float
    bank: BankName


@dataclass(frozen=True)
class Method(ABC):
    """A correction method: references in, `Bias` out. Subclasses are records of parameters."""

    variants: ClassVar[tuple[Variant, ...]]
    # Short signs of the parameters, for tables.
    symbols: ClassVar[Mapping[str, str]] = MappingProxyType({})
    gallery_bank: ClassVar[GalleryBank] = "refused"
    # Whether an item's value follows from the item and the banks alone, whatever else is searched.
    values_each_item: ClassVar[bool] = True
    # Whether the formula is m_k, which solvers other than the exact one compute too.
    uses_means: ClassVar[bool] = False

    def __new__(cls, *_: Any, **params: Any) -> "Method":
        """Make an empty record; its generated ``__init__`` would call `k` an unexpected keyword."""
        names = [part.name for part in fields(cls)]
        if unknown := [param for param in params if param not in names]:
            meant = "reference_k" if unknown[0] in ("k", "n_neighbors") else ""
            hint = f"did you mean {meant!r}?" if meant in names else f"it has {', '.join(names)}"
            raise NNNormError(f"{cls.__name__} has no argument {unknown[0]!r}; {hint}")
        return super().__new__(cls)

    # --- facts of a method -------------------------------------------------------------------

    @property
    def variant(self) -> Variant:
        """The name that these parameters go by."""
        return self.variants[0]

    @property
    def name(self) -> str:
        """The command-line name."""
        return self.variant.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that its name does not imply, as plain numbers for JSON."""
        given = ((part, getattr(self, part.name)) for part in fields(self))
        return {
            part.name: float(value) if part.type is float else _plain(value)
            for part, value in given
            if part.name not in self.variant.fixed
        }

    def to_dict(self) -> dict[str, Any]:
        """Name and every parameter, also those that `params` leaves out as saying nothing new."""
        names = [part.name for part in fields(self) if part.name not in self.variant.fixed]
        return {"name": self.name, "params": {k: getattr(self, k) for k in names} | self.params}

    @property
    def weight(self) -> float:
        """The weight of the bias values."""
        return 1.0

    @property
    def needs(self) -> Needs:
        """The statistics of the formula that can be computed for many settings at once."""
        return Needs()

    @property
    def needs_gallery_bank(self) -> bool:
        """Whether there is no fit without a gallery bank."""
        return self.gallery_bank == "needed"

    @property
    def is_automatic(self) -> bool:
        """Whether fit chooses a parameter; then near copies among the references are dropped."""
        return False

    @property
    def gated_by(self) -> tuple[BankName, ...]:
        """The banks whose activation sets decide per query whether a part of the bias applies."""
        return ()

    @property
    def ungated(self) -> "Method":
        """The method that is applied where every gate is open."""
        return self

    def closed_product(self, is_open: Sequence[bool]) -> tuple[Factor, ...] | None:
        """The factors of a query for which some gate is closed; None where it ranks by raw score.

        Every closed gate multiplies such a product by the raw score.
        """
        return None

    def resolve(self, statistics: Statistics) -> tuple["Method", dict[str, Any]]:
        """Replace automatic parameters by numbers; also return what they were chosen by."""
        return self, {}

    @classmethod  # noqa: B027 - `Statistics.prepare` is enough for most
    def share_work(cls, methods: Sequence["Method"], statistics: Statistics) -> None:
        """Compute at once what several settings share beyond their `needs`, and keep it."""

    @abstractmethod
    def values(self, statistics: Statistics) -> FloatArray:
        """The formula: a bias value per item, shape ``(n_gallery,)``."""

    def gates(self, statistics: Statistics) -> tuple[Gate, ...]:
        """The parts of the bias that apply to some queries only."""
        return ()

    # --- fitting -----------------------------------------------------------------------------

    def fit(
        self,
        gallery: Source,
        references: Source | Bank,
        *,
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
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            A bank of gallery-side items, for `DualSoftmax` and `Sinkhorn` only.
        duplicates : {"drop", "keep"}, optional
            "drop" leaves out near copies of earlier references (cosine above 0.88), so that popular
            queries count once; the `params` of the bias have ``n_unique``. "keep" uses every row,
            as the paper does. The default is "drop" for automatic settings and "keep" if all
            numbers are given.
        allow_gallery_rows : bool
            Whether references may be rows of the gallery, which is refused by default: an item's
            best reference would be the item itself.
        solver : str
            Computes the means of `NNN` and `CSLS`: "exact", "torch", "cuda", "mps",
            "approximate", or "auto": exact if that takes less than about 30 seconds, otherwise
            approximate if its measured error is at most 0.15. The `params` of the bias have the
            ``solver`` that ran, and the ``quality`` and ``error`` of approximate means.
        quality : int, optional
            Number of inverted lists to probe per item, for the solver "approximate".
        normalize : bool, optional
            True divides every row by its norm (cosine). False means raw inner products. None
            means raw inner products too, with a warning where norms vary.
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
        statistics = self.open(
            gallery,
            references,
            gallery_references=gallery_references,
            duplicates=duplicates,
            allow_gallery_rows=allow_gallery_rows,
            solver=solver,
            quality=quality,
            normalize=normalize,
            memory_budget=memory_budget,
            progress=progress,
        )
        bias = self.make_bias(statistics)
        warn_of_mismatch(bias.params, bias.n_references or 0, len(bias))
        return bias

    def open(
        self,
        gallery: Source,
        references: Source | Bank,
        *,
        gallery_references: Source | None = None,
        duplicates: Duplicates | None = None,
        allow_gallery_rows: bool = False,
        solver: Solver = "auto",
        quality: int | None = None,
        normalize: bool | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Statistics:
        """Open and check the inputs of `fit`, which the arguments are those of."""
        check_solver(solver, quality)
        if solver not in ("auto", "exact") and not self.uses_means:
            raise NNNormError(
                f"solver {solver} computes means of the best references, which method {self.name} "
                "does not use; leave out solver"
            )
        self.check_gallery_bank(gallery_references is not None, "gallery_references")
        bank = open_gallery_references(gallery_references, normalize=normalize)
        items = open_embeddings(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        for other in (past, bank):
            if other is not None:
                check_same_norms(items, other, normalize=normalize)
        check_inputs(items, past, allow_gallery_rows=allow_gallery_rows)
        return Statistics.of_embeddings(
            items,
            use_references(references, past, self.duplicates_for(references, duplicates), progress),
            bank,
            solver=solver,
            quality=quality,
            memory_budget=memory_budget,
            progress=progress,
        )

    def duplicates_for(
        self, references: Source | Bank, duplicates: Duplicates | None
    ) -> Duplicates:
        """What `duplicates` means if it is not given: a saved bank has no copies to keep."""
        if duplicates is None:
            return "drop" if self.is_automatic or is_bank(references) else "keep"
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
        self.check_gallery_bank(gallery_scores is not None, "gallery_scores")
        bank = None
        if gallery_scores is not None:
            bank = open_matrix(gallery_scores, name="gallery_scores")
        matrix = open_matrix(scores, name="scores")
        options = {"memory_budget": memory_budget, "progress": progress}
        return self.make_bias(Statistics.of_scores(matrix, bank, **options))

    def make_bias(self, statistics: Statistics) -> Bias:
        """Apply the formula to statistics that may be shared with other settings.

        Examples
        --------
        >>> from nnnorm import CSLS
        >>> from nnnorm.embeddings import open_matrix
        >>> statistics = Statistics.of_scores(open_matrix([[0.5, 0.25, 0.0]], name="scores"))
        >>> CSLS(reference_k=2).make_bias(statistics).values.tolist()
        [0.375]
        """
        settled, chosen = self.resolve(statistics)
        values = np.asarray(settled.values(statistics), dtype=np.float32)
        facts = settled.facts(statistics, chosen, statistics.about if self.uses_means else {})
        return Bias(values=values, gates=settled.gates(statistics), **facts)

    def facts(
        self, statistics: Statistics, chosen: Mapping[str, Any], about: Mapping[str, Any]
    ) -> dict[str, Any]:
        """All of a bias but its numbers.

        Parameters
        ----------
        statistics : Statistics
        chosen : mapping
            What `resolve` returned beside this method.
        about : mapping
            What the solver reports about m_k.
        """
        prints = dict(statistics.fingerprints)
        if self.gallery_bank == "refused":
            prints.pop("gallery_references", None)
        return {
            "weight": self.weight,
            "method": self.name,
            "params": {**self.params, **chosen, **about, **statistics.counted},
            "n_references": statistics.n_given or statistics.n_references,
            "dim": statistics.dim,
            "fingerprints": prints,
            "reference_norms": statistics.reference_norms,
        }

    def check_gallery_bank(self, is_given: bool, argument: str = "gallery_references") -> None:
        """Raise where a gallery bank is missing, or is given to a method that uses none."""
        if is_given and self.gallery_bank == "refused":
            raise NNNormError(f"method {self.name} uses no gallery bank; leave out {argument}")
        if self.needs_gallery_bank and not is_given:
            raise NNNormError(
                f"method {self.name} needs a gallery bank (gallery_references, or gallery_scores "
                "for ready scores); without one use InvertedSoftmax (--method is)"
            )


def warn_of_mismatch(params: Mapping[str, Any], n_references: int, n_gallery: int) -> None:
    """Warn if the automatic weight was reduced because the references do not match the gallery."""
    if is_mismatched(params, n_references, n_gallery):
        warn(
            "the past queries don't resemble what this gallery is searched for, so the correction "
            f"is reduced to {params['match']:.0%}; give past queries of this very search, or a "
            "few dozen recent ones (recent=)"
        )


# --- checks of parameters, shared by several methods ---------------------------------------------


def check_number(what: str, value: float) -> None:
    """Raise unless the value is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise NNNormError(f"{what} must be a number; got {value!r}")


def check_count(what: str, value: int, at_most: int | None = None) -> None:
    """Raise unless the value is a whole number of at least 1, and at most `at_most` if given."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise NNNormError(f"{what} must be a whole number of at least 1; got {value!r}")
    if at_most is not None and value > at_most:
        raise NNNormError(f"{what} must be at most {at_most:,}; got {value!r}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
