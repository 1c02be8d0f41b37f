"""The methods: each looks at a gallery and a bank of references and gives a `Bias`.

For a fixed query a term that does not depend on the item never changes the ranking. Take it away,
and every method here ranks by ``s(q, r) − b(r)`` (m_k: mean of the k best reference scores of an
item; L_β: log-mean-exp of β times its reference scores):

    none       Uncorrected        0
    nnn        NNN                α·m_k
    csls       CSLS               ½·m_k
    dn         DN                 λ·m_all
    is         InvertedSoftmax    L_β/β
    qbnorm     … gated            the same, for queries whose raw best item is in an activation set
    dualis     DualSoftmax        (L_βg(gallery bank) + L_βq(references)) / (βg + βq)
    dualdis    … gate             the same, each term behind its own activation set
    sinkhorn   Sinkhorn           τ·log Σ_j w_j·exp(s_j/τ), w from entropic transport

No method normalises embeddings. Values may differ from a paper's by a constant, which no ranking
sees; it is chosen so that all are on the scale of a score.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias, Gate, check_weight
from nnnorm.errors import NNNormError
from nnnorm.io import Embeddings, Progress, ScoreMatrix, Source, open_embeddings, open_matrix
from nnnorm.means import Solver, check_solver, means_by
from nnnorm.methods.automatic import choose_alpha, choose_reference_k, split_half_reliability
from nnnorm.methods.transport import transport_bias
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Matrix,
    Products,
    Scores,
    log_mean_exp,
    mean,
    top_k,
)

__all__ = [
    "CSLS",
    "DN",
    "METHOD_NAMES",
    "NNN",
    "DualSoftmax",
    "InvertedSoftmax",
    "Method",
    "MethodName",
    "Sinkhorn",
    "Uncorrected",
    "choose_reference_k",
    "make_method",
]

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Auto: TypeAlias = Literal["auto"]
GateForm: TypeAlias = Literal["paper", "safe"]
# Beyond this β the inverted softmax is the maximum to the last bit of a float32.
_LARGEST_BETA = 1e9


class _Fitted(NamedTuple):
    values: FloatArray
    weight: float
    params: Mapping[str, Any]
    gates: tuple[Gate, ...] = ()


class _Run(NamedTuple):
    memory_budget: int
    progress: Progress | None
    solver: Solver = "auto"
    quality: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"memory_budget": self.memory_budget, "progress": self.progress}

    def means(self, scores: Scores, reference_k: int) -> tuple[FloatArray, Mapping[str, Any]]:
        return means_by(self.solver, scores, reference_k, quality=self.quality, **self.options)


@dataclass(frozen=True)
class Method(ABC):
    """References in, `Bias` out. Subclasses are small frozen records of their parameters."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The command-line name."""

    @abstractmethod
    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        """Compute the bias from blocks of scores, shape (n_gallery, n_references)."""

    def fit(
        self,
        gallery: Source,
        references: Source,
        *,
        gallery_references: Source | None = None,
        solver: Solver = "auto",
        quality: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias of every gallery item from a bank of reference queries.

        Parameters
        ----------
        gallery : array or path, shape (n_gallery, dim)
            The items that are searched.
        references : array or path, shape (n_references, dim)
            Past queries, or queries of a training set; the test queries should not be in it.
        gallery_references : array or path, shape (n_gallery_references, dim), optional
            A bank of gallery-side items, for `DualSoftmax` and `Sinkhorn` only.
        solver : str
            Who computes the means of `NNN` and `CSLS`, see `nnnorm.means`: "auto" is exact,
            "approximate" many times faster on large banks; its error is among the bias's `params`.
        quality : int, optional
            Of the solvers that are not exact: how many lists an item looks into.
        memory_budget : int
            Bytes to use beyond the inputs and the answer, about 512 MB by default.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            With ``values`` of shape ``(n_gallery,)``.

        Examples
        --------
        >>> import numpy as np
        >>> gallery = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> references = np.array([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0]])
        >>> bias = NNN(reference_k=2, alpha=0.75).fit(gallery, references)
        >>> bias.values.round(2).tolist()
        [0.9, 0.7]
        """
        check_solver(solver, quality)
        if solver not in ("auto", "exact") and not isinstance(self, NNN | CSLS):
            raise NNNormError(
                f"solver {solver} computes means of best references, for nnn and csls; method "
                f"{self.name} needs solver exact"
            )
        items = open_embeddings(gallery, name="gallery")
        bank = open_embeddings(references, name="references")
        scores = Products(items, bank, memory_budget=memory_budget)
        fingerprints = {"gallery": items.fingerprint, "references": bank.fingerprint}
        gallery_scores = None
        if gallery_references is not None:
            gallery_bank = open_embeddings(gallery_references, name="gallery_references")
            gallery_scores = self._gallery_scores(items, bank, gallery_bank, memory_budget)
            fingerprints["gallery_references"] = gallery_bank.fingerprint
        run = _Run(memory_budget, progress, solver, quality)
        fitted = self._solve(scores, gallery_scores, run)
        return self._bias(fitted, len(bank), dim=items.dim, fingerprints=fingerprints)

    def fit_scores(
        self,
        scores: Source,
        gallery_scores: Source | None = None,
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Bias:
        """Compute the bias from ready scores, for scorers that are no dot product.

        Parameters
        ----------
        scores : array or path, shape (n_gallery, n_references)
            Score of every gallery item with every reference; higher is better.
        gallery_scores : array or path, optional
            For `DualSoftmax` shape ``(n_gallery, n_gallery_references)``: items against the gallery
            bank. For `Sinkhorn` shape ``(n_gallery_references, n_references)``: the gallery bank
            against the references.
        memory_budget : int
            Bytes to use beyond the inputs and the answer.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bias
            With ``values`` of shape ``(n_gallery,)`` and no fingerprint to check a gallery by.

        Examples
        --------
        >>> CSLS(reference_k=1).fit_scores([[0.5, 0.25], [0.0, -1.0]]).values.tolist()
        [0.5, 0.0]
        """
        matrix = open_matrix(scores, name="scores")
        gallery_matrix = None
        if gallery_scores is not None:
            gallery_matrix = self._gallery_matrix(
                matrix, open_matrix(gallery_scores, name="gallery_scores")
            )
        fitted = self._solve(Matrix(matrix), gallery_matrix, _Run(memory_budget, progress))
        return self._bias(fitted, matrix.shape[1])

    def bias_from_values(
        self,
        values: FloatArray,
        *,
        weight: float,
        params: Mapping[str, Any],
        gallery: Embeddings,
        references: Embeddings,
    ) -> Bias:
        """Make the `Bias` of values that were computed elsewhere for these embeddings.

        Examples
        --------
        >>> import numpy as np
        >>> items = open_embeddings(np.eye(2))
        >>> about = {"weight": 0.5, "params": {}, "gallery": items, "references": items}
        >>> NNN().bias_from_values(np.zeros(2), **about).n_references
        2
        """
        fingerprints = {"gallery": gallery.fingerprint, "references": references.fingerprint}
        fitted = _Fitted(values, weight, params)
        return self._bias(fitted, len(references), dim=gallery.dim, fingerprints=fingerprints)

    def _gallery_scores(
        self, gallery: Embeddings, references: Embeddings, bank: Embeddings, memory_budget: int
    ) -> Scores:
        """Scores of the gallery bank, in the methods that use one."""
        raise NNNormError(f"method {self.name} uses no gallery bank; leave out gallery_references")

    def _gallery_matrix(self, scores: ScoreMatrix, gallery_scores: ScoreMatrix) -> Scores:
        """Ready scores of the gallery bank, checked, in the methods that use one."""
        raise NNNormError(f"method {self.name} uses no gallery bank; leave out gallery_scores")

    def _bias(self, fitted: _Fitted, n_references: int | None, **about: Any) -> Bias:
        return Bias(
            values=np.asarray(fitted.values, dtype=np.float32),
            weight=fitted.weight,
            method=self.name,
            params=fitted.params,
            gates=fitted.gates,
            n_references=n_references,
            **about,
        )


@dataclass(frozen=True)
class Uncorrected(Method):
    """No correction: a bias of zeros, so that "none" is a method like any other.

    Examples
    --------
    >>> import numpy as np
    >>> Uncorrected().fit(np.eye(2), np.eye(2)).values.tolist()
    [0.0, 0.0]
    """

    @property
    def name(self) -> str:
        """``"none"``."""
        return "none"

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        return _Fitted(np.zeros(scores.shape[0]), 1.0, {})


@dataclass(frozen=True)
class NNN(Method):
    """Nearest Neighbor Normalization: ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024).

    Parameters
    ----------
    reference_k : int or "auto"
        How many of an item's best references are averaged; "auto" goes by the bank's size.
    alpha : float or "auto"
        The weight; "auto" goes by the bank's split-half reliability. See `automatic.py`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> bias = NNN().fit(rng.normal(size=(40, 8)), rng.normal(size=(100, 8)))
    >>> bias.params["reference_k"], 0 <= bias.weight <= 0.75
    (6, True)
    """

    reference_k: int | Auto = "auto"
    alpha: float | Auto = "auto"

    def __post_init__(self) -> None:
        if self.reference_k != "auto":
            _check_count("reference_k", self.reference_k)
        if self.alpha != "auto":
            check_weight(self.alpha, "alpha")

    @classmethod
    def paper(cls) -> "NNN":
        """Return the setting the paper found best most often: k = 128, α = 0.75.

        Examples
        --------
        >>> NNN.paper()
        NNN(reference_k=128, alpha=0.75)
        """
        return cls(reference_k=128, alpha=0.75)

    @property
    def name(self) -> str:
        """``"nnn"``."""
        return "nnn"

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        n_references = scores.shape[1]
        if self.reference_k == "auto":
            reference_k = choose_reference_k(n_references)
        else:
            reference_k = _check_reference_k(self.reference_k, n_references)
        params: dict[str, Any] = {"reference_k": reference_k}
        if self.alpha == "auto":
            reliability = split_half_reliability(
                scores, reference_k, memory_budget=run.memory_budget
            )
            alpha = choose_alpha(reliability, n_references)
            params |= {"alpha": alpha, "reliability": reliability}
        else:
            alpha = float(self.alpha)
            params["alpha"] = alpha
        values, about = run.means(scores, reference_k)
        return _Fitted(values, alpha, {**params, **about})


@dataclass(frozen=True)
class CSLS(Method):
    """Cross-domain Similarity Local Scaling: ``b(r) = ½·m_k(r)`` (Conneau et al., ICLR 2018).

    Parameters
    ----------
    reference_k : int
        How many of an item's best references are averaged.

    Examples
    --------
    >>> CSLS(reference_k=2).fit_scores([[0.25, 0.75, 0.0]]).correction.tolist()
    [0.25]
    """

    reference_k: int = 10

    def __post_init__(self) -> None:
        _check_count("reference_k", self.reference_k)

    @property
    def name(self) -> str:
        """``"csls"``."""
        return "csls"

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        reference_k = _check_reference_k(self.reference_k, scores.shape[1])
        values, about = run.means(scores, reference_k)
        return _Fitted(values, 0.5, {"reference_k": reference_k, **about})


@dataclass(frozen=True)
class DN(Method):
    """Distribution Normalization, not re-normalised: ``b(r) = λ·m_all(r)`` (Zhou et al., 2023).

    Parameters
    ----------
    weight : float
        λ. Published as ½ and used as ¼, ½ and 1, so sweep it.

    Examples
    --------
    >>> DN(weight=0.5).fit_scores([[0.25, 0.75]]).correction.tolist()
    [0.25]
    """

    weight: float = 0.5

    def __post_init__(self) -> None:
        check_weight(self.weight)

    @property
    def name(self) -> str:
        """``"dn"``."""
        return "dn"

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        params = {"weight": float(self.weight)}
        return _Fitted(mean(scores, **run.options), float(self.weight), params)


@dataclass(frozen=True)
class InvertedSoftmax(Method):
    """Inverted softmax: ``b(r) = L_β(r)/β``; gated it is QBNorm (Bogolin et al., CVPR 2022).

    Parameters
    ----------
    beta : float
        Inverse temperature. The right one depends on the scale of the scores; 0 is no correction.
    gated : bool
        QBNorm's dynamic form: correct only queries whose raw best item is the best of some
        reference too.

    Examples
    --------
    >>> InvertedSoftmax(beta=1e6).fit_scores([[0.25, 0.5]]).values.round(4).tolist()
    [0.5]
    """

    beta: float = 20.0
    gated: bool = False

    def __post_init__(self) -> None:
        _check_beta("beta", self.beta)

    @property
    def name(self) -> str:
        """``"qbnorm"`` where it is gated, else ``"is"``."""
        return "qbnorm" if self.gated else "is"

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        beta = float(self.beta)
        values = _soft_maximum(scores, beta, beta, run)
        gates = (Gate(values, _activation_set(scores, run)),) if self.gated else ()
        return _Fitted(values, 1.0, {"beta": beta}, gates)


@dataclass(frozen=True)
class DualSoftmax(Method):
    """DBNorm: softmax over two banks (Wang et al., EMNLP 2023), here as one bias.

    ``b(r) = [L_βg(gallery bank, r) + L_βq(references, r)] / (βg + βq)``.

    Parameters
    ----------
    beta_query : float
        Inverse temperature of the references (the papers' β2).
    beta_gallery : float
        Inverse temperature of the gallery bank (the papers' β1); 0 leaves `InvertedSoftmax`.
    gate : None, "paper" or "safe"
        None is DualIS. DualDIS corrects by each bank only for queries whose raw best item is in
        that bank's activation set: "paper" multiplies the published factors (a closed gate
        multiplies by the raw score, which turns the order round where scores are negative), "safe"
        leaves the closed gate's term out.

    Examples
    --------
    >>> import numpy as np
    >>> method = DualSoftmax(beta_query=50.0, beta_gallery=10.0)
    >>> method.fit(np.eye(3), np.eye(3), gallery_references=np.eye(3)).method
    'dualis'
    """

    beta_query: float
    beta_gallery: float
    gate: GateForm | None = None

    def __post_init__(self) -> None:
        _check_beta("beta_query", self.beta_query)
        _check_beta("beta_gallery", self.beta_gallery)
        if self.gate not in (None, "paper", "safe"):
            raise NNNormError(f"gate must be None, 'paper' or 'safe'; got {self.gate!r}")

    @property
    def name(self) -> str:
        """``"dualdis"`` where there is a gate, else ``"dualis"``."""
        return "dualdis" if self.gate else "dualis"

    def _gallery_scores(
        self, gallery: Embeddings, references: Embeddings, bank: Embeddings, memory_budget: int
    ) -> Scores:
        return Products(gallery, bank, memory_budget=memory_budget)

    def _gallery_matrix(self, scores: ScoreMatrix, gallery_scores: ScoreMatrix) -> Scores:
        if len(gallery_scores) != len(scores):
            raise NNNormError(
                "gallery_scores must have shape (n_gallery, n_gallery_references), with as many "
                f"rows as scores; got {gallery_scores.shape} and scores {scores.shape}"
            )
        return Matrix(gallery_scores)

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        if gallery_scores is None and (self.beta_gallery > 0 or self.gate == "paper"):
            raise NNNormError(
                f"method {self.name} needs a gallery bank (gallery_references, or gallery_scores "
                "for ready scores); without one use InvertedSoftmax (--method is)"
            )
        beta_query, beta_gallery = float(self.beta_query), float(self.beta_gallery)
        params = {"beta_query": beta_query, "beta_gallery": beta_gallery}
        total = beta_query + beta_gallery
        banks = [(scores, beta_query)]
        if gallery_scores is not None:
            banks.append((gallery_scores, beta_gallery))
        terms = [_soft_maximum(bank, beta, total, run) for bank, beta in banks]
        values = np.sum(terms, axis=0)
        if self.gate is None:
            return _Fitted(values, 1.0, params)
        gates = tuple(
            Gate(term, _activation_set(bank, run))
            for term, (bank, _) in zip(terms, banks, strict=True)
        )
        return _Fitted(values, 1.0, {**params, "gate": self.gate}, gates)


@dataclass(frozen=True)
class Sinkhorn(Method):
    """Entropic transport between gallery and references (DBSN: Pan et al., ACM MM 2025).

    ``b(r) = −τ·log u_r``, where u scales the gallery side of the plan that spreads the references
    evenly over the items. Equivalently an inverted softmax at β = 1/τ whose references are weighted
    so that none counts for more than its share. A gallery bank joins the gallery as further places
    where references may go.

    Parameters
    ----------
    tau : float
        Temperature, on the scale of the scores.
    iterations : int
        How often both marginals are balanced; each costs one pass over all scores.

    Examples
    --------
    >>> Sinkhorn(tau=0.1).fit_scores([[0.5, 0.5], [0.1, 0.1]]).values.round(2).tolist()
    [0.5, 0.1]
    """

    tau: float = 0.01
    iterations: int = 10

    def __post_init__(self) -> None:
        _check_number("tau", self.tau)
        if not 1e-6 <= self.tau <= 100:
            raise NNNormError(
                "tau must be between 1e-6 and 100 (beyond that float32 loses the bias); "
                f"got {self.tau}"
            )
        _check_count("iterations", self.iterations)

    @property
    def name(self) -> str:
        """``"sinkhorn"``."""
        return "sinkhorn"

    def _gallery_scores(
        self, gallery: Embeddings, references: Embeddings, bank: Embeddings, memory_budget: int
    ) -> Scores:
        return Products(gallery.joined(bank), references, memory_budget=memory_budget)

    def _gallery_matrix(self, scores: ScoreMatrix, gallery_scores: ScoreMatrix) -> Scores:
        if gallery_scores.shape[1] != scores.shape[1]:
            raise NNNormError(
                "gallery_scores must have shape (n_gallery_references, n_references), with as "
                f"many columns as scores; got {gallery_scores.shape} and scores {scores.shape}"
            )
        return Matrix(scores.joined(gallery_scores))

    def _solve(self, scores: Scores, gallery_scores: Scores | None, run: _Run) -> _Fitted:
        places = scores if gallery_scores is None else gallery_scores
        values = transport_bias(places, float(self.tau), self.iterations, **run.options)
        params = {"tau": float(self.tau), "iterations": int(self.iterations)}
        return _Fitted(values[: scores.shape[0]], 1.0, params)


# --- by name -----------------------------------------------------------------------------------

MethodName = Literal["none", "nnn", "csls", "dn", "is", "qbnorm", "dualis", "dualdis", "sinkhorn"]
METHOD_NAMES: Final[tuple[MethodName, ...]] = get_args(MethodName)
_BY_NAME: Final[dict[str, tuple[type[Method], dict[str, Any]]]] = {
    "none": (Uncorrected, {}),
    "nnn": (NNN, {}),
    "csls": (CSLS, {}),
    "dn": (DN, {}),
    "is": (InvertedSoftmax, {"gated": False}),
    "qbnorm": (InvertedSoftmax, {"gated": True}),
    "dualis": (DualSoftmax, {"gate": None}),
    "dualdis": (DualSoftmax, {}),
    "sinkhorn": (Sinkhorn, {}),
}


def make_method(name: MethodName, **params: Any) -> Method:
    """Make a method from its command-line name and its parameters.

    Parameters
    ----------
    name : str
        One of `METHOD_NAMES`.
    **params
        Those of its class; what is not given keeps its default.

    Returns
    -------
    Method

    Examples
    --------
    >>> make_method("nnn", reference_k=16, alpha=0.5)
    NNN(reference_k=16, alpha=0.5)
    >>> make_method("qbnorm")
    InvertedSoftmax(beta=20.0, gated=True)
    """
    if name not in _BY_NAME:
        raise NNNormError(f"method must be one of {', '.join(METHOD_NAMES)}; got {name!r}")
    kind, fixed = _BY_NAME[name]
    takes = [field.name for field in fields(kind) if field.name not in fixed]
    if unknown := [param for param in params if param not in takes]:
        raise NNNormError(
            f"method {name} takes {', '.join(takes) or 'no parameters'}; got {', '.join(unknown)}"
        )
    if name == "dualdis":
        params.setdefault("gate", "paper")
        if params["gate"] is None:
            raise NNNormError("method dualdis needs gate 'paper' or 'safe'; got None")
    needed = [p for p in ("beta_query", "beta_gallery") if p in takes and p not in params]
    if needed:
        raise NNNormError(f"method {name} needs {' and '.join(needed)}; there is no default")
    return kind(**fixed, **params)


# --- shared steps ------------------------------------------------------------------------------


def _soft_maximum(scores: Scores, beta: float, divisor: float, run: _Run) -> FloatArray:
    """``L_β / divisor`` per item; no correction at β = 0."""
    if beta == 0:
        return np.zeros(scores.shape[0])
    return np.divide(log_mean_exp(scores, [beta], **run.options)[0], divisor)


def _activation_set(scores: Scores, run: _Run) -> npt.NDArray[np.bool_]:
    """Items that are the raw best of at least one reference, shape (n_gallery,)."""
    best = top_k(scores.transposed(), 1, **run.options).indices[:, 0]
    active = np.zeros(scores.shape[0], dtype=bool)
    active[best] = True
    return active


def _check_number(what: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise NNNormError(f"{what} must be a number; got {value!r}")


def _check_count(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise NNNormError(f"{what} must be a whole number of at least 1; got {value!r}")


def _check_beta(what: str, beta: float) -> None:
    _check_number(what, beta)
    if not 0 <= beta <= _LARGEST_BETA or math.isnan(beta):
        raise NNNormError(
            f"{what} must be between 0 and 1e9 (beyond that it would overflow, and is the plain "
            f"maximum long before); got {beta}"
        )


def _check_reference_k(reference_k: int, n_references: int) -> int:
    if reference_k > n_references:
        raise NNNormError(
            f"reference_k is {reference_k}, but there are only {n_references} references; "
            "give more references or a smaller reference_k"
        )
    return int(reference_k)
