"""Statistics of every item's scores with a bank: what the methods' formulas are made of.

    m_k     mean of the k best reference scores of an item; the items may be centered first
    m_all   mean of all of them
    L_β     log-mean-exp: the log of the mean of exp(β·s)
    u       entropic transport between the items and the references (`transport`)
    A       activation set: the items that are the best item of at least one row of a bank

Each is computed when it is first asked for, and kept. `Statistics.prepare` reads from the formulas
of many settings what they ask for, and computes it in one pass over each bank, so a whole grid
costs no more than one fit.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import References, describe_size, drop_copies
from nnnorm.embeddings import Embeddings, ScoreMatrix, check_same_dim
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.methods.groups import Groups
from nnnorm.methods.transport import transport_biases
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Matrix, Products, Scores, top_k
from nnnorm.softmax import scan
from nnnorm.solvers import Solver, compute_means

if TYPE_CHECKING:
    from nnnorm.methods.base import Method

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
BankName = Literal["references", "gallery_references"]


@dataclass(frozen=True)
class _Mean:
    reference_k: int
    is_centered: bool


@dataclass(frozen=True)
class _MeanOfAll:
    pass


@dataclass(frozen=True)
class _Log:
    beta: float
    bank: BankName


@dataclass(frozen=True)
class _Transport:
    tau: float
    iterations: int


_Request: TypeAlias = _Mean | _MeanOfAll | _Log | _Transport


class Statistics:
    """Statistics of a gallery's scores with a bank, or of ready scores; each is computed once."""

    def __init__(
        self,
        gallery: Embeddings | ScoreMatrix,
        references: References | Embeddings | None = None,
        gallery_bank: Embeddings | ScoreMatrix | None = None,
        *,
        center: npt.NDArray[np.float32] | None = None,
        groups: Groups | None = None,
        solver: Solver = "auto",
        quality: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> None:
        if isinstance(references, Embeddings):
            references = drop_copies(references, "keep")
        self.gallery, self.references, self.gallery_bank = gallery, references, gallery_bank
        self.scores: Scores
        if isinstance(gallery, ScoreMatrix):
            self.scores = Matrix(gallery)
        elif references is not None:
            self.scores = Products(gallery, references.embeddings, memory_budget=memory_budget)
            if isinstance(gallery_bank, Embeddings):
                check_same_dim(gallery, gallery_bank)
        self.n_gallery: int = self.scores.shape[0]
        self.n_references: int = self.scores.shape[1]
        self.groups = groups
        self.solver: Solver = solver
        self.quality = quality
        self.options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
        # What the automatic rule of `NNN` measured, by k and whether items are centered.
        self.evidence: dict[tuple[int, bool], Any] = {}
        self._center = center
        self._kept: dict[_Request, FloatArray] = {}
        self._solved: dict[_Request, dict[str, Any]] = {}
        self._active: dict[BankName, BoolArray] = {}
        # What a formula asked for, in the copy that it is tried on.
        self._asked: list[_Request] | None = None

    @property
    def n_given(self) -> int:
        """The number of references, of which near copies may have been dropped."""
        return self.n_references if self.references is None else self.references.n_given

    def subset(self, rows: npt.NDArray[np.int64]) -> "Statistics":
        """Statistics of some of the items, without groups."""
        items: Any = self.gallery  # embeddings: ready scores have no groups
        budget = self.options["memory_budget"]
        return Statistics(items.subset(rows), self.references, memory_budget=budget)

    def provenance(self, *, uses_gallery_bank: bool) -> dict[str, Any]:
        """What a `Bias` says about gallery and banks; of ready scores only how many there are."""
        gallery, references, bank = self.gallery, self.references, self.gallery_bank
        if not isinstance(gallery, Embeddings) or references is None:
            return {"n_references": self.n_references}
        prints = {"gallery": gallery.fingerprint, "references": references.fingerprint}
        if uses_gallery_bank and isinstance(bank, Embeddings):
            prints["gallery_references"] = bank.fingerprint
        return {
            "n_references": references.n_given,
            "dim": gallery.dim,
            "fingerprints": prints,
            "reference_norms": references.embeddings.norm_range,
        }

    @cached_property
    def centered_scores(self) -> Scores:
        """Scores with the references of the items less their center, by default their mean."""
        return self.scores.centered(self._center)

    # --- what formulas ask for ---------------------------------------------------------------

    def mean_of_best(self, reference_k: int, *, is_centered: bool = False) -> FloatArray:
        """``m_k``, shape ``(n_gallery,)``."""
        return self._get(_Mean(int(reference_k), is_centered))

    def log_mean_exp(self, beta: float, bank: BankName = "references") -> FloatArray:
        """``L_β`` over a bank, shape ``(n_gallery,)``; zeros for β = 0."""
        if beta == 0:
            return np.zeros(self.n_gallery)
        return self._get(_Log(float(beta), bank))

    def transport(self, tau: float, iterations: int) -> FloatArray:
        """``−τ·log u`` of entropic transport, shape ``(n_gallery,)``."""
        return self._get(_Transport(float(tau), iterations))

    def mean_of_all(self) -> FloatArray:
        """``m_all``, shape ``(n_gallery,)``."""
        return self._get(_MeanOfAll())

    def activation_set(self, bank: BankName = "references") -> BoolArray:
        """Items that are the best item of at least one row of a bank, shape ``(n_gallery,)``."""
        if bank not in self._active:
            best = top_k(self._scores_with(bank).transposed(), 1, **self.options)
            self._active[bank] = np.zeros(self.n_gallery, dtype=bool)
            self._active[bank][best.indices[:, 0]] = True
        return self._active[bank]

    # --- computing ---------------------------------------------------------------------------

    def prepare(self, methods: Iterable["Method"]) -> dict[str, Any]:
        """Compute what the formulas of some settings ask for; return which solvers ran."""
        asked: list[_Request] = []
        for method in methods:
            tried = copy(self)
            tried._asked, tried.n_gallery = [], 1
            method.values(tried)
            if self.groups is not None and not (method.is_weighted or method.name == "none"):
                raise NNNormError(
                    f"method {method.name} takes no groups; use nnn, csls or dn, or leave them out"
                )
            if method.gallery_bank == "needed" and self.gallery_bank is None:
                banks = {request.bank for request in tried._asked if isinstance(request, _Log)}
                if "gallery_references" in banks.union(method.gated_by):
                    raise NNNormError(
                        f"method {method.name} needs a gallery bank (gallery_references, or "
                        "gallery_scores for ready scores); without one use InvertedSoftmax "
                        "(--method is)"
                    )
            if self.solver not in ("auto", "exact") and not any(
                isinstance(request, _Mean) for request in tried._asked
            ):
                raise NNNormError(
                    f"solver {self.solver} computes means of the best references, which method "
                    f"{method.name} does not use; leave out solver"
                )
            asked += tried._asked
        self._compute(asked)
        solved: dict[str, Any] = {}
        for request in asked:
            solved |= self._solved.get(request, {})
        return solved

    def check_reference_k(self, reference_k: int) -> None:
        """Raise if k is larger than the bank."""
        if reference_k > self.n_references:
            size = describe_size(self.n_given, self.n_references)
            raise NNNormError(
                f"reference_k is {reference_k}, but there are only {size}; pass more references or "
                "a smaller reference_k"
            )

    def _get(self, request: _Request) -> FloatArray:
        if self._asked is not None:
            self._asked.append(request)
            return np.zeros(1)
        if request not in self._kept:
            self._compute([request])
        return self._kept[request]

    def _compute(self, requests: Iterable[_Request]) -> None:
        transports: dict[int, list[_Transport]] = {}
        passes: dict[tuple[BankName, bool], list[_Mean | _Log]] = {}
        for request in dict.fromkeys(requests):
            if request in self._kept:
                continue
            if isinstance(request, _Transport):
                transports.setdefault(request.iterations, []).append(request)
            elif isinstance(request, _MeanOfAll):
                self._kept[request] = self.scores.mean()
            elif isinstance(request, _Mean):
                self.check_reference_k(request.reference_k)
                passes.setdefault(("references", request.is_centered), []).append(request)
            else:
                passes.setdefault((request.bank, False), []).append(request)
        for (bank, is_centered), some in passes.items():
            self._scan(self.centered_scores if is_centered else self._scores_with(bank), some)
        for iterations, balanced in transports.items():
            taus = [request.tau for request in balanced]
            options = {"n_wanted": self.n_gallery, **self.options}
            found = transport_biases(self._joined_scores(), taus, iterations, **options)
            self._kept |= dict(zip(balanced, found, strict=True))

    def _scan(self, scores: Scores, requests: list[_Mean | _Log]) -> None:
        """Compute means and log-mean-exps of one bank: in one pass, or each mean by the solver."""
        by_solver = self.solver not in ("auto", "exact")
        by_solver |= self.solver == "auto" and len(requests) == 1
        means: dict[_Mean, FloatArray] = {}
        logs: dict[_Log, FloatArray] = {}
        for request in requests:
            if isinstance(request, _Log):
                logs[request] = np.empty(self.n_gallery)
            elif by_solver:
                evidence = self.evidence.get((request.reference_k, request.is_centered))
                sample = None if evidence is None else evidence.sample
                options = {"quality": self.quality, "sample": sample, **self.options}
                solved = compute_means(self.solver, scores, request.reference_k, **options)
                self._kept[request], self._solved[request] = solved
            else:
                means[request] = np.empty(self.n_gallery, dtype=np.float32)
                self._solved[request] = {"solver": "exact"}
        if not means and not logs:
            return
        largest = max((request.reference_k for request in means), default=0)
        betas = [request.beta for request in logs]
        for start, stop, (best, found) in scan(scores, k=largest, betas=betas, **self.options):
            for request, values in means.items():
                best_k = best[:, : request.reference_k]
                values[start:stop] = best_k.mean(axis=1, dtype=np.float64)
            for values, log in zip(logs.values(), found, strict=True):
                values[start:stop] = log
        self._kept.update(list(means.items()))
        self._kept.update(list(logs.items()))

    def _scores_with(self, bank: BankName) -> Scores:
        """Scores of the gallery with the references, or with the gallery bank."""
        if bank == "references":
            return self.scores
        second = self.gallery_bank
        if isinstance(second, Embeddings) and isinstance(self.gallery, Embeddings):
            budget = self.options["memory_budget"]
            return Products(self.gallery, second, memory_budget=budget)
        if not isinstance(second, ScoreMatrix):
            raise NNNormError("this needs a gallery bank; pass gallery_references")
        if len(second) != self.n_gallery:
            raise NNNormError(
                "gallery_scores must have shape (n_gallery, n_gallery_references), with as many "
                f"rows as scores; got {second.shape} and scores {self.scores.shape}"
            )
        return Matrix(second)

    def _joined_scores(self) -> Scores:
        """Scores with the references of the gallery and, below it, the gallery bank if any."""
        scores, bank = self.scores, self.gallery_bank
        if isinstance(bank, Embeddings) and isinstance(scores, Products):
            budget = self.options["memory_budget"]
            return Products(scores.rows.joined(bank), scores.columns, memory_budget=budget)
        if not isinstance(bank, ScoreMatrix) or not isinstance(scores, Matrix):
            return scores
        if bank.shape[1] != self.n_references:
            raise NNNormError(
                "gallery_scores must have shape (n_gallery_references, n_references), with as many "
                f"columns as scores; got {bank.shape} and scores {scores.shape}"
            )
        return Matrix(scores.matrix.joined(bank))
