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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import References, describe_size, drop_copies
from nnnorm.embeddings import Embeddings, ScoreMatrix, check_same_dim
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.methods.automatic import Evidence, measure
from nnnorm.methods.transport import transport_biases
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Matrix,
    Products,
    Scores,
    one_blas_thread,
    scan,
    top_k,
)
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
class _Log:
    beta: float
    bank: BankName


@dataclass(frozen=True)
class _Transport:
    tau: float
    iterations: int


_Request: TypeAlias = _Mean | _Log | _Transport


class Statistics:
    """Statistics of a gallery's scores, each computed once.

    `provenance` is what a `Bias` says about the gallery and the references, and `counted` what its
    `params` say about unique queries. `about` has the solver of the last m_k.
    """

    def __init__(
        self,
        scores: Scores,
        gallery_bank: Embeddings | ScoreMatrix | None = None,
        *,
        center: npt.NDArray[np.float32] | None = None,
        counted: Mapping[str, Any] | None = None,
        solver: Solver = "auto",
        quality: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
        **provenance: Any,
    ) -> None:
        self.scores, self.gallery_bank = scores, gallery_bank
        self.n_gallery, self.n_references = scores.shape
        self.provenance = {"n_references": self.n_references, **provenance}
        self.counted = dict(counted or {})
        self.options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
        self.about: dict[str, Any] = {}
        self.solver: Solver = solver
        self._quality = quality
        if center is not None:
            self.center = center
        self._kept: dict[_Request, tuple[FloatArray, dict[str, Any]]] = {}
        self._evidence: dict[tuple[int, bool], Evidence] = {}
        self._active: dict[BankName, BoolArray] = {}

    @classmethod
    def of_embeddings(
        cls,
        gallery: Embeddings,
        references: References | Embeddings,
        gallery_references: Embeddings | None = None,
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        **options: Any,
    ) -> "Statistics":
        """Statistics of the products of embeddings."""
        if isinstance(references, Embeddings):
            references = drop_copies(references, "keep")
        prints = {"gallery": gallery.fingerprint, "references": references.fingerprint}
        if gallery_references is not None:
            check_same_dim(gallery, gallery_references)
            prints["gallery_references"] = gallery_references.fingerprint
        return cls(
            Products(gallery, references.embeddings, memory_budget=memory_budget),
            gallery_references,
            n_references=references.n_given,
            counted=references.params,
            dim=gallery.dim,
            fingerprints=prints,
            reference_norms=references.embeddings.norm_range,
            memory_budget=memory_budget,
            **options,
        )

    @cached_property
    def center(self) -> npt.NDArray[np.float32]:
        """What is subtracted from the items if they are centered: by default their mean."""
        return self.scores.center()

    @cached_property
    def gallery_scores(self) -> Scores:
        """Scores of the gallery with the gallery bank, (n_gallery, n_gallery_references)."""
        bank = self.gallery_bank
        if isinstance(bank, Embeddings) and isinstance(self.scores, Products):
            budget = self.options["memory_budget"]
            return Products(self.scores.rows, bank, memory_budget=budget)
        if not isinstance(bank, ScoreMatrix):
            raise NNNormError("this needs a gallery bank; give gallery_references")
        if len(bank) != self.n_gallery:
            raise NNNormError(
                "gallery_scores must have shape (n_gallery, n_gallery_references), with as many "
                f"rows as scores; got {bank.shape} and scores {self.scores.shape}"
            )
        return Matrix(bank)

    @cached_property
    def joined_scores(self) -> Scores:
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

    @cached_property
    def centered_scores(self) -> Scores:
        """Scores with the references of the items less `center`."""
        return self.scores.centered(self.center)

    # --- what formulas ask for ---------------------------------------------------------------

    def mean_of_best(self, reference_k: int, *, is_centered: bool = False) -> FloatArray:
        """``m_k``, shape ``(n_gallery,)``."""
        return self._get(_Mean(reference_k, is_centered))

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
        return self._mean_of_all

    @cached_property
    def _mean_of_all(self) -> FloatArray:
        return self.scores.mean()

    def activation_set(self, bank: BankName = "references") -> BoolArray:
        """Items that are the best item of at least one row of a bank, shape ``(n_gallery,)``."""
        if bank not in self._active:
            scores = self.scores if bank == "references" else self.gallery_scores
            best = top_k(scores.transposed(), 1, **self.options)
            self._active[bank] = np.zeros(self.n_gallery, dtype=bool)
            self._active[bank][best.indices[:, 0]] = True
        return self._active[bank]

    # --- what the automatic rule asks for ----------------------------------------------------

    def evidence(self, reference_k: int, *, is_centered: bool) -> Evidence:
        """What references and gallery show about the settings of `NNN`."""
        key = reference_k, is_centered
        if key not in self._evidence:
            self.check_reference_k(reference_k)
            scores = self.centered_scores if is_centered else self.scores
            budget = self.options["memory_budget"]
            with one_blas_thread():
                found = measure(scores, self.scores, reference_k, memory_budget=budget)
            self._evidence[key] = found
        return self._evidence[key]

    def check_reference_k(self, reference_k: int) -> None:
        """Raise if k is larger than the bank."""
        if reference_k > self.n_references:
            size = describe_size(self.provenance["n_references"], self.n_references)
            raise NNNormError(
                f"reference_k is {reference_k}, but there are only {size}; give more references or "
                "a smaller reference_k"
            )

    # --- computing ---------------------------------------------------------------------------

    def prepare(self, methods: Iterable["Method"]) -> None:
        """Compute what the formulas of several settings ask for, in one pass over each bank."""
        asked: list[_Request] = []
        for method in methods:
            asked += _Asked(method, self).requests
        self._compute(dict.fromkeys(asked))

    def _get(self, request: _Request) -> FloatArray:
        if request not in self._kept:
            self._compute([request])
        values, about = self._kept[request]
        self.about |= about
        return values

    def _compute(self, requests: Iterable[_Request]) -> None:
        transports: dict[int, list[_Transport]] = {}
        passes: dict[tuple[BankName, bool], list[_Mean | _Log]] = {}
        for request in requests:
            if request in self._kept:
                continue
            if isinstance(request, _Transport):
                transports.setdefault(request.iterations, []).append(request)
            elif isinstance(request, _Mean):
                self.check_reference_k(request.reference_k)
                passes.setdefault(("references", request.is_centered), []).append(request)
            else:
                passes.setdefault((request.bank, False), []).append(request)
        for (bank, is_centered), some in passes.items():
            scores = self.scores if bank == "references" else self.gallery_scores
            self._scan(self.centered_scores if is_centered else scores, some)
        for iterations, balanced in transports.items():
            taus = [request.tau for request in balanced]
            options = {"n_wanted": self.n_gallery, **self.options}
            found = transport_biases(self.joined_scores, taus, iterations, **options)
            self._kept |= {
                request: (values, {}) for request, values in zip(balanced, found, strict=True)
            }

    def _scan(self, scores: Scores, requests: list[_Mean | _Log]) -> None:
        """Compute means and log-mean-exps of one bank: in one pass, or each mean by the solver."""
        if self.solver not in ("auto", "exact") or (self.solver == "auto" and len(requests) == 1):
            for request in requests:
                if isinstance(request, _Mean):
                    k = int(request.reference_k)
                    evidence = self._evidence.get((k, request.is_centered))
                    sample = None if evidence is None else evidence.sample
                    options = {"quality": self._quality, "sample": sample, **self.options}
                    self._kept[request] = compute_means(self.solver, scores, k, **options)
            requests = [request for request in requests if request not in self._kept]
        if not requests:
            return
        ks: dict[int, FloatArray] = {}
        betas: dict[float, FloatArray] = {}
        for request in requests:
            if isinstance(request, _Mean):
                ks[int(request.reference_k)] = np.empty(self.n_gallery, dtype=np.float32)
            else:
                betas[request.beta] = np.empty(self.n_gallery)
        largest = max(ks, default=0)
        for start, stop, (best, logs) in scan(scores, k=largest, betas=list(betas), **self.options):
            for k, means in ks.items():
                means[start:stop] = best[:, :k].mean(axis=1, dtype=np.float64)
            for values, log in zip(betas.values(), logs, strict=True):
                values[start:stop] = log
        for request in requests:
            if isinstance(request, _Mean):
                self._kept[request] = ks[int(request.reference_k)], {"solver": "exact"}
            else:
                self._kept[request] = betas[request.beta], {}


class _Asked(Statistics):
    """Notes what the formula of a method asks for, and answers with zeros."""

    def __init__(self, method: "Method", real: Statistics) -> None:
        self.n_gallery, self.requests = 1, list[_Request]()
        self._method, self._real, has_means = method, real, False
        method.parts(self)
        for request in self.requests:
            has_means |= isinstance(request, _Mean)
        if "gallery_references" in method.gated_by:
            self._check_gallery_bank()
        if real.solver not in ("auto", "exact") and not has_means:
            raise NNNormError(
                f"solver {real.solver} computes means of the best references, which method "
                f"{method.name} does not use; leave out solver"
            )

    def __getattr__(self, name: str) -> Any:
        raise NNNormError(
            f"the formula of method {self._method.name} asks for {name}; it may use mean_of_best, "
            "mean_of_all, log_mean_exp and transport"
        )

    def mean_of_all(self) -> FloatArray:
        return np.zeros(1)

    def _get(self, request: _Request) -> FloatArray:
        if isinstance(request, _Log) and request.bank == "gallery_references":
            self._check_gallery_bank()
        self.requests.append(request)
        return np.zeros(1)

    def _check_gallery_bank(self) -> None:
        if self._real.gallery_bank is None:
            raise NNNormError(
                f"method {self._method.name} needs a gallery bank (gallery_references, or "
                "gallery_scores for ready scores); without one use InvertedSoftmax (--method is)"
            )
