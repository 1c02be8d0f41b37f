"""Statistics of every item's scores against a bank: what the methods' formulas are made of.

    m_k     mean of the k best reference scores of an item; the items may be centred first
    m_all   mean of all of them
    L_β     log-mean-exp: the log of the mean of exp(β·s)
    A       activation set: the items that are the best item of at least one row of a bank

Each is computed when it is first asked for, and kept. `Statistics.prepare` computes those of many
settings in one pass over each bank, so that a whole grid costs no more than one fit.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import References, count_params, count_references, describe_size, used_rows
from nnnorm.embeddings import Embeddings, ScoreMatrix, check_same_dim
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Matrix,
    Products,
    Scores,
    TopK,
    log_mean_exp,
    scan,
    top_k,
)
from nnnorm.solvers import Solver, compute_means, measure_error

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
BankName = Literal["references", "gallery_references"]
# How the gallery bank joins the scores: as further columns beside the references, or as further
# rows below the gallery.
_Side: TypeAlias = Literal["columns", "rows"]
_T = TypeVar("_T")


class Needs(NamedTuple):
    """The statistics of a formula that one pass over a bank gives for many settings at once."""

    reference_k: int | None = None
    beta: float = 0.0
    beta_gallery: float = 0.0
    is_centred: bool = False


class Statistics:
    """Statistics of a gallery's scores, each computed once."""

    def __init__(
        self,
        scores: Scores,
        bank_scores: Callable[[_Side], Scores] | None = None,
        *,
        dim: int | None = None,
        fingerprints: dict[str, str] | None = None,
        reference_norms: tuple[float, float] | None = None,
        n_given: int | None = None,
        counted: Mapping[str, Any] | None = None,
        known: Mapping[Hashable, Any] | None = None,
        solver: Solver = "auto",
        quality: int | None = None,
        given: Scores | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> None:
        self.scores, self._bank_scores = scores, bank_scores
        self.n_gallery, self.n_references = scores.shape
        self.dim, self.fingerprints = dim, fingerprints or {}
        self.reference_norms = reference_norms
        self.n_given = n_given
        self.counted = dict(counted or {})
        self.about: dict[str, Any] = {}
        self._abouts: dict[Hashable, dict[str, Any]] = {}
        self.options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
        self._solver: Solver = solver
        self._quality = quality
        self._given = given
        self.kept: dict[Hashable, Any] = dict(known or {})

    @classmethod
    def of_embeddings(
        cls,
        gallery: Embeddings,
        references: References,
        gallery_references: Embeddings | None = None,
        *,
        given: Embeddings | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        **options: Any,
    ) -> "Statistics":
        """Statistics of the products of embeddings; `references` may be a sample of `given`."""
        prints = {"gallery": gallery.fingerprint, "references": references.fingerprint}
        rows, counted = used_rows(references), count_params(references)
        if counted:
            options |= {"n_given": count_references(references), "counted": counted}
        bank_scores = None
        if gallery_references is not None:
            check_same_dim(gallery, gallery_references)
            prints["gallery_references"] = gallery_references.fingerprint

            def bank_scores(side: _Side, bank: Embeddings = gallery_references) -> Scores:
                if side == "columns":
                    return Products(gallery, bank, memory_budget=memory_budget)
                return Products(gallery.joined(bank), rows, memory_budget=memory_budget)

        scores = Products(gallery, rows, memory_budget=memory_budget)
        if given is not None:
            options["given"] = Products(gallery, given, memory_budget=memory_budget)
        options["reference_norms"] = rows.norm_range
        options |= {"dim": gallery.dim, "fingerprints": prints, "memory_budget": memory_budget}
        return cls(scores, bank_scores, **options)

    @classmethod
    def of_scores(
        cls, scores: ScoreMatrix, gallery_scores: ScoreMatrix | None = None, **options: Any
    ) -> "Statistics":
        """Statistics of ready scores."""
        bank_scores = None
        if gallery_scores is not None:

            def bank_scores(side: _Side, ready: ScoreMatrix = gallery_scores) -> Scores:
                if side == "columns":
                    if len(ready) != len(scores):
                        raise NNNormError(
                            "gallery_scores must have shape (n_gallery, n_gallery_references), with"
                            f" as many rows as scores; got {ready.shape} and scores {scores.shape}"
                        )
                    return Matrix(ready)
                if ready.shape[1] != scores.shape[1]:
                    raise NNNormError(
                        "gallery_scores must have shape (n_gallery_references, n_references), with "
                        f"as many columns as scores; got {ready.shape} and scores {scores.shape}"
                    )
                return Matrix(scores.joined(ready))

        return cls(Matrix(scores), bank_scores, **options)

    @property
    def has_gallery_bank(self) -> bool:
        """Whether a gallery bank was given."""
        return self._bank_scores is not None

    @property
    def gallery_scores(self) -> Scores:
        """Scores of the gallery against the gallery bank, (n_gallery, n_gallery_references)."""
        return self._scores_of("gallery_references")

    @property
    def joined_scores(self) -> Scores:
        """Scores against the references of the gallery and, below it, the gallery bank if any."""
        return self.scores if self._bank_scores is None else self._bank_scores("rows")

    @property
    def gallery(self) -> Embeddings | None:
        """The items; None where scores were given."""
        return self.scores.rows if isinstance(self.scores, Products) else None

    @property
    def center(self) -> npt.NDArray[np.float32]:
        """What is subtracted from the items where they are centred: by default their mean."""
        return self.keep("center", self.scores.center)

    def scores_for_means(self, is_centred: bool) -> Scores:
        """Scores against the references, of the centred items or of the items as they are."""
        if not is_centred:
            return self.scores
        return self.keep("centred", lambda: self.scores.centred(self.center))

    def keep(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return what `make` gave when this key was first asked for."""
        if key not in self.kept:
            self.kept[key] = make()
        return cast(_T, self.kept[key])

    def mean_of_best(self, reference_k: int, *, is_centred: bool = False) -> FloatArray:
        """``m_k``, shape ``(n_gallery,)``."""
        self.check_reference_k(reference_k)
        k = int(reference_k)
        key = "mean", k, is_centred

        def compute() -> FloatArray:
            scores = self.scores_for_means(is_centred)
            values, about = compute_means(
                self._solver, scores, k, quality=self._quality, **self.options
            )
            if self._given is not None:
                given = self._given.centred(self.center) if is_centred else self._given
                budget = self.options["memory_budget"]
                about["error"] = measure_error(values, given, k, memory_budget=budget)
            self._abouts[key] = about
            return values

        values = self.keep(key, compute)
        self.about = self._abouts.get(key, {"solver": "exact"})
        return values

    def check_reference_k(self, reference_k: int) -> None:
        """Raise where k is larger than the bank."""
        if reference_k > self.n_references:
            size = describe_size(self.n_given or self.n_references, self.n_references)
            raise NNNormError(
                f"reference_k is {reference_k}, but there are only {size}; give more references or "
                "a smaller reference_k"
            )

    def mean_of_all(self) -> FloatArray:
        """``m_all``, shape ``(n_gallery,)``."""
        return self.keep("mean of all", self.scores.mean)

    def log_mean_exp(self, beta: float, bank: BankName = "references") -> FloatArray:
        """``L_β`` over a bank, shape ``(n_gallery,)``; zeros for β = 0."""
        scores = self._scores_of(bank)
        if beta == 0:
            return np.zeros(self.n_gallery)
        return self.keep(
            ("log", bank, float(beta)),
            lambda: log_mean_exp(scores, [float(beta)], **self.options)[0],
        )

    def best_items(self, bank: BankName = "references") -> TopK:
        """Score and number of the best item of every row of a bank, both ``(n_rows, 1)``."""
        return self.keep(
            ("best", bank),
            lambda: top_k(self._scores_of(bank).transposed(), 1, **self.options),
        )

    def activation_set(self, bank: BankName = "references") -> BoolArray:
        """Items that are the best item of at least one row of a bank, shape ``(n_gallery,)``."""
        active = np.zeros(self.n_gallery, dtype=bool)
        active[self.best_items(bank).indices[:, 0]] = True
        return active

    def prepare(self, needs: Iterable[Needs]) -> None:
        """Compute what several settings need in one pass over each bank."""
        asked = list(needs)
        for is_centred in (False, True):
            some = {need.reference_k for need in asked if need.is_centred == is_centred}
            ks = {k for k in some if k and ("mean", k, is_centred) not in self.kept}
            betas = set() if is_centred else {need.beta for need in asked}
            self._scan("references", ks, betas, is_centred)
        self._scan("gallery_references", set(), {need.beta_gallery for need in asked})

    def _scan(
        self, bank: BankName, ks: set[int], betas: set[float], is_centred: bool = False
    ) -> None:
        new = sorted(beta for beta in betas if beta and ("log", bank, beta) not in self.kept)
        if len(ks) + len(new) < 2:
            return
        means = {k: np.empty(self.n_gallery, dtype=np.float32) for k in ks}
        all_logs = np.empty((len(new), self.n_gallery))
        scores = self.scores_for_means(True) if is_centred else self._scores_of(bank)
        for start, stop, best, logs in scan(
            scores, k=max(ks, default=0), betas=new, **self.options
        ):
            for k, values in means.items():
                values[start:stop] = best[:, :k].mean(axis=1, dtype=np.float64)
            all_logs[:, start:stop] = logs
        self.kept |= {("mean", k, is_centred): values for k, values in means.items()}
        self.kept |= {("log", bank, b): logs for b, logs in zip(new, all_logs, strict=True)}

    def _scores_of(self, bank: BankName) -> Scores:
        if bank == "references":
            return self.scores
        if self._bank_scores is None:
            raise NNNormError("this needs a gallery bank; give gallery_references")
        return self._bank_scores("columns")
