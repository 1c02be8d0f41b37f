"""Which solver computes m_k, and what the bias reports about its error.

    solver        m_k is    computed by
    exact         exact     numpy: the whole product, block by block
    pruned        exact     numpy: the part of the product that bounds cannot rule out
    auto          exact     the faster of the two, see `_auto_means`
    torch         exact     torch on the processor; "cuda" and "mps" on those devices
    approximate   close     inverted lists and a regression, for banks of 100,000 and more
    faiss-ivf     close     Faiss's inverted lists, as in the paper

A solver that is not exact learns from the bank and a sample of the gallery (`learn_means`), and
reports its error, measured on such a sample, in the parameters of the bias. What was learnt values
any part of the gallery.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, NNNormWarning
from nnnorm.io import Done, Embeddings, Progress
from nnnorm.means.approximate import (
    ListModel,
    choose_quality,
    expected_cost,
    learn_lists,
    residual,
)
from nnnorm.means.exact import remaining_means
from nnnorm.means.pruned import Pruning, pruned_means
from nnnorm.means.pruning_plan import is_worth_planning, plan_pruning
from nnnorm.means.race import race
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores, top_means

FloatArray: TypeAlias = npt.NDArray[np.float32]
Solver = Literal["auto", "exact", "pruned", "torch", "cuda", "mps", "approximate", "faiss-ivf"]
SOLVER_NAMES: tuple[str, ...] = get_args(Solver)
_INEXACT = ("approximate", "faiss-ivf")
# Pruning with more multiply-adds than this, relative to the whole product, does not enter the race:
# its set-up would be lost.
_MOST_WORK = 0.8
# Items on which the error of Faiss's lists is measured.
_N_CHECKED = 256
# Work that takes longer than a minute is announced, once its rate was observed for three seconds.
_LONG, _OBSERVED = 60.0, 3.0


def check_solver(solver: str, quality: int | None) -> None:
    """Raise `NNNormError` for an unknown solver, or a quality that the solver does not have.

    Examples
    --------
    >>> check_solver("approximate", 16)
    """
    if solver not in SOLVER_NAMES:
        raise NNNormError(f"solver must be one of {', '.join(SOLVER_NAMES)}; got {solver!r}")
    if quality is None:
        return
    if solver not in _INEXACT:
        raise NNNormError(
            f"quality is for the solvers {' and '.join(_INEXACT)}; got it with {solver}, which is "
            "exact"
        )
    if not isinstance(quality, int) or isinstance(quality, bool) or quality < 1:
        raise NNNormError(f"quality must be a whole number of at least 1; got {quality!r}")


def means_by(
    solver: Solver,
    scores: Scores,
    k: int,
    *,
    quality: int | None = None,
    learnt: "Learnt | None" = None,
    first_row: int | None = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> tuple[FloatArray, Mapping[str, Any]]:
    """Compute m_k of every row with the given solver.

    Parameters
    ----------
    solver : str
        One of `SOLVER_NAMES`.
    scores : Products or Matrix, shape (n_gallery, n_references)
        A matrix of ready scores needs "auto" or "exact".
    k : int
    quality : int, optional
        Number of inverted lists to probe per item, for the solvers that are not exact. The default
        depends on the size of the gallery, see `choose_quality`.
    learnt : Learnt, optional
        What `learn_means` gave for the whole gallery, where these rows are a part of it.
    first_row : int, optional
        Number of the first row in that gallery; None where they are other rows.
    memory_budget : int
        Bytes beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    values : ndarray, shape (n_gallery,), float32
    about : dict
        Parameters for the bias: empty, or the solver, its quality and its error.

    Warns
    -----
    NNNormWarning
        If exact work on the processor will take more than a minute and "approximate" would be
        faster.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = open_embeddings(np.eye(3))
    >>> values, about = means_by("exact", Products(rows, rows), 2)
    >>> values.tolist(), about
    ([0.5, 0.5, 0.5], {})
    """
    check_solver(solver, quality)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    if not isinstance(scores, Products):
        if solver not in ("auto", "exact"):
            raise NNNormError(
                f"solver {solver} multiplies embeddings itself; ready scores need solver exact"
            )
        return top_means(scores, k, **options), {}
    if solver not in _INEXACT:
        if solver not in ("cuda", "mps"):  # "approximate" runs on the processor, at another rate
            options["progress"] = _announce_long_work(progress, scores, k)
        return _exact_means(solver, scores, k, **options), {}
    if learnt is None:
        learnt = _learn(solver, scores, k, quality, memory_budget)
    if learnt.model is None:
        return top_means(scores, k, **options), learnt.about
    return learnt.model.means(scores, first_row=first_row, **options), learnt.about


class Model(Protocol):
    """What a solver learnt from a bank and a sample of the gallery; values any items."""

    def means(
        self,
        products: Products,
        *,
        first_row: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> FloatArray:
        """Compute the means of some items."""

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything but the bank, as arrays."""


class Learnt(NamedTuple):
    """What a solver that is not exact learnt of a bank and a gallery.

    Attributes
    ----------
    about : dict
        Parameters for the bias: the solver, its quality and its error.
    model : Model or None
        None where exact means are preferable.
    """

    about: Mapping[str, Any]
    model: Model | None


def learn_means(
    solver: Solver,
    scores: Scores,
    k: int,
    *,
    quality: int | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Learnt | None:
    """Learn what a solver that is not exact needs of the whole gallery; None for exact solvers.

    Parameters
    ----------
    solver, scores, k, quality, memory_budget
        As in `means_by`.

    Returns
    -------
    Learnt or None

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = open_embeddings(np.eye(3))
    >>> learn_means("exact", Products(rows, rows), 2) is None
    True
    """
    check_solver(solver, quality)
    if solver not in _INEXACT or not isinstance(scores, Products):
        return None
    return _learn(solver, scores, k, quality, memory_budget)


def _learn(
    solver: Solver, scores: Products, k: int, quality: int | None, memory_budget: int
) -> Learnt:
    quality = choose_quality(scores.shape[0]) if quality is None else quality
    model: Any
    if solver == "approximate":
        model = learn_lists(scores, k, quality=quality, memory_budget=memory_budget)
        error = 0.0 if model is None else model.error
    else:
        from nnnorm.means.faiss import IVFModel

        model = IVFModel.learn(scores.columns, k, quality)
        error = _error_on_a_sample(model, scores, k, memory_budget)
    return Learnt({"solver": solver, "quality": quality, "error": error}, model)


def restore_means(
    about: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    references: Embeddings,
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Learnt:
    """Make `Learnt` again from its `about` and the arrays of its model.

    Parameters
    ----------
    about : mapping
    arrays : mapping
        Empty where there was no model.
    references : Embeddings, shape (n_references, dim)
        The bank that was learnt from.
    memory_budget : int

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> restore_means({"solver": "approximate"}, {}, open_embeddings(np.eye(3))).model is None
    True
    """
    if not arrays:
        return Learnt(about, None)
    if about["solver"] == "approximate":
        return Learnt(about, ListModel.from_arrays(arrays, references, memory_budget))
    from nnnorm.means.faiss import IVFModel

    return Learnt(about, IVFModel.from_arrays(arrays))


def _exact_means(solver: Solver, scores: Products, k: int, **options: Any) -> FloatArray:
    if solver == "exact":
        return top_means(scores, k, **options)
    if solver == "auto":
        return _auto_means(scores, k, **options)
    if solver == "pruned":
        plan = plan_pruning(scores, k, memory_budget=options["memory_budget"])
        if plan is None:
            return top_means(scores, k, **options)
        return pruned_means(scores, k, plan, **options)
    from nnnorm.means.torch import torch_means

    device = "cpu" if solver == "torch" else solver
    return torch_means(scores.rows, scores.columns, k, device=device, **options)


def _auto_means(
    scores: Products, k: int, *, memory_budget: int, progress: Progress | None
) -> FloatArray:
    """Compute exact means the faster way.

    1. The whole product, if it is so small that planning would take a noticeable part of its time.
    2. The whole product, if a sample of items and references shows that bounds rule out too little.
    3. Otherwise a race on the first rows of the real work (`race.py`); the winner goes on.
    """
    plan = None
    if is_worth_planning(scores):
        plan = plan_pruning(scores, k, memory_budget=memory_budget)
    if plan is None or plan.work > _MOST_WORK:
        return top_means(scores, k, memory_budget=memory_budget, progress=progress)
    n_rows, n_columns = scores.shape
    means = np.empty(n_rows, dtype=np.float32)
    done = Done(progress, n_rows * n_columns)
    pruning = Pruning(scores, k, plan, memory_budget)
    is_pruned, rest = race(pruning.exact_strip, pruning.strip, pruning.order, means)
    done.add((n_rows - len(rest)) * n_columns)
    if is_pruned:
        pruning.fill(means, rest, done)
        return means
    del pruning  # the whole product may use its memory
    rest = np.sort(rest)
    means[rest] = remaining_means(scores, k, rest, memory_budget=memory_budget, done=done)
    return means


def _error_on_a_sample(model: Model, scores: Products, k: int, memory_budget: int) -> float:
    n_items = scores.shape[0]
    some = np.linspace(0, n_items - 1, min(n_items, _N_CHECKED)).astype(np.int64)
    sample = scores.some_rows(some)
    exact = top_means(sample, k, memory_budget=memory_budget)
    return residual(model.means(sample, memory_budget=memory_budget), exact)


def _announce_long_work(
    progress: Progress | None, scores: Products, k: int
) -> Callable[[int, int], None]:
    """Wrap `progress` so that work of more than a minute is announced with an alternative."""
    started, is_known = time.perf_counter(), False

    def report(done: int, total: int) -> None:
        nonlocal is_known
        if progress is not None:
            progress(done, total)
        elapsed = time.perf_counter() - started
        if is_known or elapsed < _OBSERVED:
            return
        is_known = True
        expected = elapsed * total / done
        cheaper = expected_cost(*scores.shape, k)
        if expected > _LONG and cheaper is not None:
            warnings.warn(
                f"exact means will take about {_duration(expected)} in all; solver='approximate' "
                f"(--solver approximate) should take about {_duration(cheaper.time * expected)}, "
                f"with an error of about {cheaper.error:.0%} of their standard deviation",
                NNNormWarning,
                stacklevel=2,
            )

    return report


def _duration(seconds: float) -> str:
    """Round to two digits and name the unit: ``"40 seconds"``, ``"3.5 minutes"``."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{max(1, round(seconds))} seconds"
