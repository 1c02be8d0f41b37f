"""Who computes m_k: one name for each way, the same answer from all but the last two.

    auto          pruned where a look at the data says that this is faster, exact elsewhere
    exact         numpy: the whole product
    pruned        numpy, exact too: the part of the product that matters (`pruned.py`)
    torch         torch on the processor, exact; "cuda" and "mps" on those devices
    approximate   inverted lists and a regression (`approximate.py`): for banks of 100,000 and more
    faiss-ivf     Faiss's inverted lists, the paper's way

Whatever is not exact says so among the bias's parameters, with its error as measured on a sample of
the gallery.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io import Progress
from nnnorm.means.approximate import approximate_means, choose_quality, residual
from nnnorm.means.pruned import screened_means
from nnnorm.means.pruning_plan import plan_screen
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores, top_means

__all__ = ["SOLVER_NAMES", "Solver", "check_solver", "means_by"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Solver = Literal["auto", "exact", "pruned", "torch", "cuda", "mps", "approximate", "faiss-ivf"]
SOLVER_NAMES: tuple[str, ...] = get_args(Solver)
_INEXACT = ("approximate", "faiss-ivf")
# A product of fewer multiply-adds takes a second; a look for something better, a quarter of one.
_WORTH_A_LOOK = 10**11
# Expected time over that of the whole product: some room for a look that was too rosy.
_WORTH_SCREENING = 0.8
# Items on which the error of somebody else's approximation is measured.
_N_CHECKED = 256


def check_solver(solver: str, quality: int | None) -> None:
    """Raise where there is no such solver, or a quality for one that has none.

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
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> tuple[FloatArray, Mapping[str, Any]]:
    """Compute m_k of every row by the solver that is asked for.

    Parameters
    ----------
    solver : str
        From `SOLVER_NAMES`.
    scores : Products or Matrix, shape (n_gallery, n_references)
        A ready matrix can only be read by "exact".
    k : int
    quality : int, optional
        Lists that an item looks into, in the solvers that are not exact; by default
        `choose_quality` of the gallery.
    memory_budget : int
    progress : callable, optional

    Returns
    -------
    values : ndarray, shape (n_gallery,), float32
    about : dict
        What the bias should say of them: nothing, or the solver, its quality and its error.

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
    if solver in ("auto", "pruned") and isinstance(scores, Products):
        screen = None
        if solver == "pruned" or scores.rows.dim * math.prod(scores.shape) > _WORTH_A_LOOK:
            screen = plan_screen(scores, k, memory_budget=memory_budget)
        if screen is not None and (solver == "pruned" or screen.cost < _WORTH_SCREENING):
            return screened_means(scores, k, screen, **options), {}
        solver = "exact"  # too little to screen, or nothing to gain
    if solver in ("auto", "exact"):
        return top_means(scores, k, **options), {}
    if not isinstance(scores, Products):
        raise NNNormError(
            f"solver {solver} multiplies embeddings itself; ready scores need solver exact"
        )
    quality = choose_quality(scores.shape[0]) if quality is None else quality
    if solver == "approximate":
        done = approximate_means(scores.rows, scores.columns, k, quality=quality, **options)
        return done.values, {"solver": solver, "quality": quality, "error": done.error}
    if solver == "faiss-ivf":
        from nnnorm.means.faiss import ivf_means

        values = ivf_means(scores.rows, scores.columns, k, quality=quality, **options)
        error = _error_on_a_sample(values, scores, k, memory_budget)
        return values, {"solver": solver, "quality": quality, "error": error}
    from nnnorm.means.torch import torch_means

    device = "cpu" if solver == "torch" else solver
    return torch_means(scores.rows, scores.columns, k, device=device, **options), {}


def _error_on_a_sample(values: FloatArray, scores: Scores, k: int, memory_budget: int) -> float:
    n_items = scores.shape[0]
    some = np.linspace(0, n_items - 1, min(n_items, _N_CHECKED)).astype(np.int64)
    exact = top_means(scores.some_rows(some), k, memory_budget=memory_budget)
    return residual(values[some], exact)
