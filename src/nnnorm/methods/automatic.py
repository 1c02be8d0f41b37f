"""k and α without labels: what `NNN()` chooses when it is given no numbers.

``reference_k`` is a sixteenth of the bank, between 4 and 128. ``alpha`` is 0.75 times the bank's
split-half reliability: m_k is a noisy measurement of an item's hub offset, and the slope on a noisy
measurement shrinks by its reliability. A handful of references may agree by luck, so it is taken as
if eight further references with no correlation at all had been seen. A bank of a few dozen past
queries already helps, and one too small to tell does next to nothing instead of harm. The figures
are in `docs/automatic-rule.md`.
"""

import numpy as np

from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Scores, top_k

_LARGEST_ALPHA = 0.75
_DOUBTFUL_REFERENCES = 8
_N_ITEMS = 512
_N_SPLITS = 8


def choose_reference_k(n_references: int) -> int:
    """A sixteenth of the bank, at least 4 and at most 128, and never more than there is.

    Examples
    --------
    >>> [choose_reference_k(n) for n in (2, 32, 1000, 25_000)]
    [2, 4, 62, 128]
    """
    return min(n_references, 128, max(4, n_references // 16))


def choose_alpha(reliability: float, n_references: int) -> float:
    """``0.75 · reliability · n/(n + 8)``.

    Parameters
    ----------
    reliability : float
        Of the bias, from `split_half_reliability`.
    n_references : int
        Size of the bank it was measured on.

    Returns
    -------
    float

    Examples
    --------
    >>> [choose_alpha(1.0, n) for n in (8, 24_992)]
    [0.375, 0.74976]
    """
    return _LARGEST_ALPHA * reliability * n_references / (n_references + _DOUBTFUL_REFERENCES)


def split_half_reliability(
    scores: Scores,
    reference_k: int,
    *,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> float:
    """How well one half of the bank predicts the biases that the other half gives.

    The bank is split at random a few times; the correlation r between the two halves' ``m_{k/2}``
    over (a sample of) the gallery is averaged and extrapolated to the whole bank by the
    Spearman–Brown formula ``2r/(1+r)``.

    Parameters
    ----------
    scores : Products or Matrix, shape (n_gallery, n_references)
    reference_k : int
        The k whose bias is judged.
    seed : int
        Of the random splits.
    memory_budget : int
        Bytes beyond the inputs.

    Returns
    -------
    float
        Between 0 (noise, or nothing to compare) and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.io import open_matrix
    >>> from nnnorm.scoring import Matrix
    >>> hubs = np.linspace(0, 1, 50)[:, None] + np.zeros(32)
    >>> round(split_half_reliability(Matrix(open_matrix(hubs, name="scores")), 4), 3)
    1.0
    """
    n_gallery, n_references = scores.shape
    half_k = max(1, reference_k // 2)
    if n_references < 2 or n_gallery < 3:
        return 0.0
    if n_gallery > _N_ITEMS:
        items = np.linspace(0, n_gallery - 1, _N_ITEMS).astype(np.int64)
        scores = scores.some_rows(items)
    # The best of each half are among the best of the whole: twice as many, and a margin.
    n_best = min(n_references, 2 * reference_k + 32)
    best, indices = top_k(scores, n_best, memory_budget=memory_budget)
    rng = np.random.default_rng(seed)
    correlations = []
    for _ in range(_N_SPLITS):
        in_first = np.zeros(n_references, dtype=bool)
        in_first[rng.permutation(n_references)[: n_references // 2]] = True
        belongs = in_first[indices]
        first, second = (_mean_of_first(best, part, half_k) for part in (belongs, ~belongs))
        if first.std() > 0 and second.std() > 0:
            correlations.append(np.corrcoef(first, second)[0, 1])
        else:
            correlations.append(0.0)
    r = float(np.mean(correlations))
    return 2 * r / (1 + r) if r > 0 else 0.0


def _mean_of_first(
    best: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    belongs: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    half_k: int,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean of the first `half_k` values of each row among those that belong to a half."""
    counted = belongs & (belongs.cumsum(axis=1) <= half_k)
    sums = np.where(counted, best, 0).sum(axis=1, dtype=np.float64)
    return np.asarray(sums / np.maximum(1, counted.sum(axis=1)))
