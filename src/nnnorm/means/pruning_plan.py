"""Whether pruning can save work, and how wide its bounds should be: estimated on a small sample.

Everything here counts multiply-adds and candidates; nothing depends on the speed of a processor.
Which way is faster on this machine is decided by `race.py`.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings
from nnnorm.means.bounds import N_NORMS, bounds_by_width, joint_moments, principal_basis
from nnnorm.means.grouping import group_similar
from nnnorm.means.pruned import (
    GROUP_SIZE,
    N_SAMPLED,
    MemoryPlan,
    PruningPlan,
    estimate_thresholds,
)
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, check_k, count_threads, on_a_worker

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Items among which groups are formed, groups and references on which widths are tried.
_N_GROUPED, _N_TRIED, _N_TRIED_REFERENCES = 2048, 6, 2048
# Nothing can be saved if more than this share of single items have too many candidates.
_MOST_HOPELESS = 0.8
# Nor if the variance has the spread of more than this share of dim equal directions: bounds of at
# most half of the directions are then far above the scores.
_FLAT = 0.6
# A plan is made where it takes at most one part in this many of the whole product's time.
_PLAN_SHARE = 20


def is_worth_planning(scores: Products) -> bool:
    """Decide whether making a plan is cheap beside the whole product, by counting multiply-adds.

    On one thread a plan needs the second moments of 4,096 vectors, their eigenvectors (about
    20·dim³ multiply-adds), and bounds of the sample.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> few = open_embeddings(np.eye(4))
    >>> is_worth_planning(Products(few, few))
    False
    """
    (n_rows, n_columns), dim = scores.shape, scores.rows.dim
    planning = 4096 * dim**2 + 20 * dim**3 + 3 * _N_TRIED * GROUP_SIZE * _N_TRIED_REFERENCES * dim
    return n_rows * n_columns * dim / count_threads() >= _PLAN_SHARE * planning


def plan_pruning(
    scores: Products, k: int, *, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> PruningPlan | None:
    """Choose the width of the bounds that needs the fewest multiply-adds, on a sample.

    Parameters
    ----------
    scores : Products, shape (n_rows, n_columns)
    k : int
    memory_budget : int
        Bounds of all columns must fit into half of it. Columns that are not float32 in memory are
        converted once if they fit into three quarters together with the bounds. The plan itself
        reads 8,192 columns, whatever the budget.

    Returns
    -------
    PruningPlan or None
        None where pruning does not apply: fewer than 16,384 columns, a k above about a thirteenth
        of them, scores with an offset, or too little memory for bounds.

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> few = open_embeddings(np.eye(4))
    >>> plan_pruning(Products(few, few), 1) is None
    True
    """
    n_columns = scores.shape[1]
    check_k(k, n_columns)
    memory = MemoryPlan(scores.columns, memory_budget)
    has_few = n_columns < 2 * N_SAMPLED or memory.most_candidates < 4 * k
    if has_few or memory.widest < 16 or scores.offset is not None:
        return None
    # On one thread: BLAS with several threads would gain little and wait a lot on a busy machine.
    return on_a_worker(lambda: _plan(scores, k, memory))


def _plan(scores: Products, k: int, memory: MemoryPlan) -> PruningPlan:
    (n_rows, n_columns), dim = scores.shape, scores.rows.dim
    rng = np.random.default_rng(0)
    moments = joint_moments(scores.rows, scores.columns, rng)
    sample = np.sort(rng.choice(n_columns, N_SAMPLED, replace=False))
    n_effective = moments.trace() ** 2 / (moments**2).sum() if moments.any() else 1.0
    if n_effective > _FLAT * dim:
        narrow = np.eye(dim, 16 - N_NORMS, dtype=np.float32)
        return PruningPlan(narrow, sample, np.inf, memory.is_widened)
    basis = principal_basis(moments)
    references = scores.columns.take(sample[:: N_SAMPLED // _N_TRIED_REFERENCES])
    few = scores.rows.take(rng.choice(n_rows, min(n_rows, GROUP_SIZE), replace=False))
    most_share = memory.most_candidates / n_columns
    shares = _candidate_shares(few, references[::2], basis, memory.widest, k / n_columns)
    if (shares > most_share).mean() > _MOST_HOPELESS:
        narrow = basis[:, : 16 - N_NORMS].copy()
        return PruningPlan(narrow, sample, np.inf, memory.is_widened)
    items = _some_groups(scores.rows, basis[:, :64], rng)
    # The product of bounds, and once for all rows the bounds of the references, the thresholds and
    # the grouping, whose matrix–vector products count eightfold.
    per_width = 1 / dim + 1 / n_rows + N_SAMPLED / n_columns / dim
    grouping = 8 * 64 * min(n_rows, 8192) / GROUP_SIZE / (n_columns * dim)
    best_width, least_work = 0, np.inf
    # With their two norms these widths are multiples of 16, which matrix products prefer.
    widths = 16 * np.unique(np.linspace(1, memory.widest // 16, 8).astype(int)) - N_NORMS
    n_best = max(1, round(k * len(references) / n_columns))
    kth_best = np.partition(items @ references.T, -n_best, axis=1)[:, -n_best]
    for width, (partial, bounds) in zip(
        widths.tolist(), bounds_by_width(items, references, basis, widths), strict=True
    ):
        thresholds = estimate_thresholds(partial.copy(), k / n_columns)
        reaches = (bounds >= thresholds[:, None]).reshape(-1, GROUP_SIZE, len(references))
        share = reaches.any(axis=1).mean(axis=1)
        is_whole = share > most_share
        unproven = np.where(np.repeat(is_whole, GROUP_SIZE), 1.0, kth_best < thresholds).mean()
        # A candidate counts twice: it is gathered before it is multiplied.
        work = grouping + width * per_width + 2 * np.where(is_whole, 0.0, share).mean() + unproven
        if work < least_work:
            best_width, least_work = width, float(work)
        elif not is_whole.any():
            break  # wider bounds cost more than they save
    directions = np.ascontiguousarray(basis[:, :best_width])
    return PruningPlan(directions, sample, least_work, memory.is_widened)


def _some_groups(rows: Embeddings, directions: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Groups of similar items, formed among a sample of the rows."""
    some = np.sort(rng.choice(len(rows), min(len(rows), _N_GROUPED), replace=False))
    sample = Embeddings([rows.take(some)], name=rows.name)
    order = group_similar(sample, directions, group_size=GROUP_SIZE, memory_budget=2**26)
    n_groups = max(1, len(some) // GROUP_SIZE)
    tried = rng.choice(n_groups, min(_N_TRIED, n_groups), replace=False)[:, None] * GROUP_SIZE
    tried = np.minimum(tried + np.arange(GROUP_SIZE), len(some) - 1)
    return sample.take(order[tried.ravel()])


def _candidate_shares(
    items: FloatArray, references: FloatArray, basis: FloatArray, width: int, share: float
) -> FloatArray:
    """The share of references that are candidates of each single item."""
    ((partial, bounds),) = bounds_by_width(items, references, basis, [width])
    thresholds = estimate_thresholds(partial, share)
    return np.asarray((bounds >= thresholds[:, None]).mean(axis=1), dtype=np.float32)
