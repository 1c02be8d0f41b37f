"""Which solver computes m_k, the mean of each item's k best reference scores.

    solver        m_k is    computed by
    exact         exact     numpy: the whole product, block by block
    torch         exact     torch on the processor; "cuda" and "mps" on those devices
    approximate   close     inverted lists and a regression (`approximate.py`)
    auto          exact if that takes less than about 30 seconds, otherwise approximate if its
                  measured error is at most 0.15, otherwise exact with a warning

`auto` first computes the exact means of a sample of items and extrapolates their processor time, so
the decision doesn't depend on the machine or its load. The parameters of a bias have the solver
that ran and, for approximate means, the quality and the error. The error is measured on the sample,
with a margin (`approximate.py`).
"""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from nnnorm.approximate import (
    ListModel,
    choose_quality,
    count_list_scores,
    is_worth_lists,
    learn_lists,
    sample_means,
)
from nnnorm.embeddings import FloatArray
from nnnorm.errors import NNNormError, check_count, require, warn
from nnnorm.files import Progress
from nnnorm.scoring import (
    DEFAULT_MEMORY_BUDGET,
    Products,
    Sample,
    Scores,
    processor_time,
    top_means,
)

Solver = Literal["auto", "exact", "torch", "cuda", "mps", "approximate"]
SOLVER_NAMES: tuple[str, ...] = get_args(Solver)
# A sample of items with known means is left out of exact work if it is this share of the gallery.
_LARGE_SAMPLE = 0.04
# Multiplications that take about a second, and seconds that exact work may take.
_QUICK, _LONG = 2**34, 30.0
# What `auto` accepts of approximate means: error, and time relative to exact means.
_LARGEST_ERROR, _LARGEST_TIME = 0.15, 0.5
# Time of a score of inverted lists relative to one of the whole product: 1.6 to 2.5 in
# benchmarks/million.py and benchmarks/approximate.py.
_LIST_SCORE = 2.0


def check_solver(solver: str, quality: int | None) -> None:
    """Raise an error for an unknown solver, or a quality that the solver doesn't have."""
    if solver not in SOLVER_NAMES:
        raise NNNormError(f"solver must be one of {', '.join(SOLVER_NAMES)}; got {solver!r}")
    if quality is not None and solver != "approximate":
        raise NNNormError(f"quality is for the solver approximate; got it with {solver}")
    if quality is not None:
        check_count("quality", quality)


def compute_means(
    solver: Solver,
    scores: Scores,
    k: int,
    *,
    quality: int | None = None,
    sample: Sample | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
    clock: Callable[[], float] = processor_time,
) -> tuple[FloatArray, dict[str, Any]]:
    """Compute m_k of every row; `sample` are rows whose means are known."""
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    n_items = scores.shape[0]
    if isinstance(scores, Products) and solver != "exact":
        budget, model = memory_budget, None
        if solver == "auto" and n_items * scores.shape[1] * scores.rows.dim > _QUICK:
            sample = sample or sample_means(scores, k, memory_budget=budget, clock=clock)
            model = _choose_model(scores, k, sample, budget)
        elif solver == "approximate":
            quality = quality or choose_quality(n_items)
            if is_worth_lists(*scores.shape, k, quality):
                sample = sample or sample_means(scores, k, memory_budget=budget)
                model = learn_lists(scores, k, quality, sample, memory_budget=budget)
        elif solver != "auto":
            return _torch_means(scores, k, solver, **options), {"solver": solver}
        if model is not None:
            return model.means(scores, **options)
    if sample is None or not _LARGE_SAMPLE * n_items < len(sample.rows) < n_items:
        return top_means(scores, k, **options), {"solver": "exact"}
    others = np.delete(np.arange(n_items), sample.rows)
    means = np.empty(n_items, dtype=np.float32)
    means[sample.rows] = sample.exact
    means[others] = top_means(scores.some_rows(others), k, **options)
    return means, {"solver": "exact"}


def _choose_model(scores: Products, k: int, sample: Sample, memory_budget: int) -> ListModel | None:
    """Find the least quality with a small error that saves time, if exact means are slow."""
    seconds = sample.seconds * scores.shape[0] / len(sample.rows)
    if seconds <= _LONG:
        return None
    n_scores = scores.shape[0] * scores.shape[1]
    quality, least_error, spent = choose_quality(scores.shape[0]), math.inf, 0.0
    while is_worth_lists(*scores.shape, k, quality):
        learning, probing = count_list_scores(*scores.shape, quality)
        spent += _LIST_SCORE * learning / n_scores
        if spent + _LIST_SCORE * probing / n_scores > _LARGEST_TIME:
            break
        model = learn_lists(scores, k, quality, sample, memory_budget=memory_budget)
        error = math.inf if model is None else model.error
        if error <= _LARGEST_ERROR:
            return model
        least_error = min(least_error, error)
        # At best, the error falls as fast as the quality rises.
        excess = 1.0 if model is None else error / _LARGEST_ERROR
        quality = 2 ** max(quality.bit_length(), math.ceil(math.log2(quality * excess)))
    message = f"exact means will take about {_duration(seconds)}"
    if math.isfinite(least_error):
        message += (
            f"; approximate means would be off by {least_error:.0%} of their standard deviation "
            f"({_LARGEST_ERROR:.0%} is accepted). To use them all the same, pass "
            "solver='approximate' (--solver approximate)"
        )
    warn(message)
    return None


def _duration(seconds: float) -> str:
    """Round to two digits and name the unit: ``"40 seconds"``, ``"3.5 minutes"``."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return f"{max(1, round(seconds))} seconds"


# --- torch -------------------------------------------------------------------------------------


def _torch_means(
    scores: Products, k: int, solver: str, *, memory_budget: int, progress: Progress | None
) -> FloatArray:
    """Compute m_k exactly by torch, in float32, with about `memory_budget` bytes on the device."""
    torch = require("torch", extra="torch")
    device = "cpu" if solver == "torch" else solver
    available = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if device in available and not available[device]():
        raise NNNormError(
            f"solver {device} was asked for, but torch {torch.__version__} finds no such device; "
            "use solver exact, or install a torch that supports the device"
        )
    gallery, references = scores.rows, scores.columns
    n_items, n_references = scores.shape
    n_block = max(4 * k, min(n_references, memory_budget // 4 // (4 * references.dim)))
    n_strip = max(1, min(n_items, 4096, memory_budget // 2 // (8 * (n_block + k + gallery.dim))))
    means = np.empty(n_items, dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, n_items, n_strip):
            stop = min(start + n_strip, n_items)
            items = torch.from_numpy(np.array(gallery.rows(start, stop))).to(device)
            best = items.new_empty((stop - start, 0))
            for first in range(0, n_references, n_block):
                last = min(first + n_block, n_references)
                block = torch.from_numpy(np.array(references.rows(first, last))).to(device)
                found = torch.topk(items @ block.T, min(k, last - first), sorted=False).values
                best = torch.cat([best, found], dim=1)
                best = torch.topk(best, min(k, best.shape[1]), sorted=False).values
                if progress is not None:
                    progress(start * n_references + (stop - start) * last, n_items * n_references)
            means[start:stop] = best.cpu().numpy().mean(axis=1, dtype=np.float64)
    return means
