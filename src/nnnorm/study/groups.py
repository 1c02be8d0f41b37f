"""Groups of items among the first places of a ranking: counts, compared with a target.

For each query the first k items are counted by group, and the counts are compared with each other
(bias@k) or with a target (shares, skew@k, NDKL). Figures are per query; means are left to `audit`.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.ranking import Ranking

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


def count_groups(ranking: Ranking, groups: Sequence[str]) -> tuple[tuple[str, ...], IntArray]:
    """Count how many of the first 1, 2, … items of every query are of each group.

    Parameters
    ----------
    ranking : Ranking, shape (n_queries, k)
    groups : sequence of str
        The group of every item.

    Returns
    -------
    kinds : tuple of str
    counts : ndarray, shape (n_queries, k, n_groups), int64

    Examples
    --------
    >>> ranking = Ranking(np.zeros((1, 3), np.float32), np.array([[2, 0, 1]]))
    >>> count_groups(ranking, ["a", "b", "b"])[1][0].tolist()
    [[0, 1], [1, 1], [1, 2]]
    """
    kinds, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    seen = codes[ranking.indices][:, :, None] == np.arange(len(kinds))
    return tuple(str(kind) for kind in kinds), seen.cumsum(axis=1)


def measure_groups(
    ranking: Ranking,
    groups: Sequence[str],
    *,
    ks: Sequence[int],
    target: Mapping[str, float],
    difference: tuple[str, str] | None = None,
) -> dict[str, FloatArray]:
    """Compute figures of groups for every query of a ranking.

    For each k: ``bias`` = (n_a − n_b)/k of the two groups of `difference`, and its absolute value;
    ``share`` of each group; ``skew`` = ln(share/target), a group that is absent counted as one item
    (there is no logarithm of 0) but at most as its target, and the greatest of them; and for the
    greatest k ``ndkl``: the Kullback–Leibler divergence of the first 1, 2, … items from the target,
    weighted by 1/log2(i+1).

    Parameters
    ----------
    ranking : Ranking, shape (n_queries, at least max(ks))
    groups : sequence of str
    ks : sequence of int
    target : dict
        Share of each group, adding up to 1.
    difference : pair of str, optional

    Returns
    -------
    dict
        Figure name to values, shape ``(n_queries,)``.

    Examples
    --------
    >>> ranking = Ranking(np.zeros((1, 4), np.float32), np.array([[0, 1, 2, 3]]))
    >>> fair = {"f": 0.5, "m": 0.5}
    >>> found = measure_groups(ranking, ["m", "m", "m", "f"], ks=[4], target=fair)
    >>> {name: values.round(3).tolist() for name, values in found.items()}
    {'share of f@4': [0.25], 'share of m@4': [0.75], 'skew of f@4': [-0.693], ...}
    """
    kinds, counts = count_groups(ranking, groups)
    fair = np.array([target[kind] for kind in kinds])
    found: dict[str, FloatArray] = {}
    for k in ks if difference else ():
        first, second = (kinds.index(group) for group in difference or ())
        bias = (counts[:, k - 1, first] - counts[:, k - 1, second]) / k
        found |= {f"bias@{k}": bias, f"|bias|@{k}": np.abs(bias)}
    for k in ks:
        shares = counts[:, k - 1] / k
        # One item may already be more than the target's share of k: absent is never above target.
        skews = np.log(np.where(shares > 0, shares, np.minimum(1 / k, fair))) - np.log(fair)
        found |= {f"share of {kind}@{k}": shares[:, g] for g, kind in enumerate(kinds)}
        found |= {f"skew of {kind}@{k}": skews[:, g] for g, kind in enumerate(kinds)}
        found[f"max skew@{k}"] = skews.max(axis=1)
    depth = max(ks)
    places = np.arange(1, depth + 1)
    shares = counts[:, :depth] / places[:, None]
    logs = np.log(np.where(shares > 0, shares, 1.0))
    divergence = np.where(shares > 0, shares * (logs - np.log(fair)), 0.0).sum(axis=2)
    weights = 1 / np.log2(places + 1)
    found[f"ndkl@{depth}"] = np.asarray(divergence @ weights / weights.sum())
    return found
