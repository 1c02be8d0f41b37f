"""Audits: how often items of each group are retrieved, before and after a correction.

For each query, the first k items are counted by group. The counts are compared with each other
(bias@k) or with a target (shares, skew@k, NDKL). Means before and after the correction have
bootstrap intervals over queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from nnnorm.bias import Bias
from nnnorm.embeddings import DoubleArray, Source, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.evaluation.results import Interval, Record, interval_of_difference, interval_of_mean
from nnnorm.files import Progress
from nnnorm.ranking import Ranking, search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

# Fair shares: those of the gallery, equal shares, or your own.
Target: TypeAlias = Literal["gallery", "equal"] | Mapping[str, float]

_PRECISION_KS = (1, 5)


@dataclass(frozen=True)
class Line(Record):
    """The mean of one metric over all queries: before and after a bias, and the paired change."""

    metric: str
    before: Interval
    after: Interval | None = None
    change: Interval | None = None


@dataclass(frozen=True, eq=False)
class Audit(Record):
    """How often each group is retrieved, query by query (`before`, `after`) and on average."""

    _rows = "means"

    groups: tuple[str, ...]
    target: Mapping[str, float]
    difference: tuple[str, str] | None
    queries: tuple[str, ...]
    before: Mapping[str, DoubleArray]
    after: Mapping[str, DoubleArray]
    means: tuple[Line, ...]
    n_gallery: int

    def __repr__(self) -> str:
        groups = ", ".join(self.groups)
        return f"Audit({len(self.queries):,} queries, {self.n_gallery:,} items of {groups})"

    def line(self, metric: str) -> Line:
        """Return the means of one metric."""
        lines = {line.metric: line for line in self.means}
        if metric not in lines:
            raise NNNormError(f"this audit has no {metric!r}; it has {', '.join(lines)}")
        return lines[metric]

    def to_dict(self) -> dict[str, Any]:
        """Return all results, ready for JSON."""
        return super().to_dict() | {"n_queries": len(self.queries)}


def audit(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    groups: Sequence[str],
    ks: Sequence[int] = (10,),
    difference: tuple[str, str] | None = None,
    target: Target = "gallery",
    labels: Sequence[str] | None = None,
    query_labels: Sequence[str] | None = None,
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Audit:
    """Count groups among the first hits of each query, before and after a correction.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        Queries that shouldn't favor a group.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
        Adds the metrics after this correction, and the paired change.
    groups : sequence of str
        The group of every item.
    ks : sequence of int
        Numbers of hits to count.
    difference : pair of str, optional
        bias@k is (number of the first − number of the second)/k; by default the two groups in
        alphabetical order if there are just two, and no bias@k if there are more.
    target : {"gallery", "equal"} or dict
        The shares that would be fair.
    labels, query_labels : sequence of str, optional
        The label of each item, and the one that each query asks for; adds precision@1 and
        precision@5.
    seed : int
        Random seed of the intervals.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Audit

    Examples
    --------
    >>> gallery = np.array([[1.0, 0.2], [1.0, 0.1], [0.1, 1.0], [0.0, 1.0]])
    >>> queries = np.array([[1.0, 0.0], [0.9, 0.1]])
    >>> groups = ["m", "m", "f", "f"]
    >>> audit(queries, gallery, groups=groups, ks=[2]).line("bias@2").before.mean
    -1.0
    """
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    if len(asked) < 2:
        raise NNNormError("an audit needs at least two queries; got one: pass more queries")
    for name, given, n_wanted in (
        ("groups", groups, len(items)),
        ("labels", labels, len(items)),
        ("query_labels", query_labels, len(asked)),
    ):
        if given is not None and len(given) != n_wanted:
            raise NNNormError(f"{name} must have {n_wanted:,} entries; got {len(given):,}")
    if (labels is None) != (query_labels is None):
        raise NNNormError("precision needs both labels and query_labels; got one of them")
    kinds = tuple(np.unique(np.asarray(groups, dtype=str)).tolist())
    if not 2 <= len(kinds) <= 50:
        raise NNNormError(
            f"groups must have 2 to 50 different values; got {len(kinds)}, such as {kinds[0]!r}. "
            "Is it the right column?"
        )
    shares = _open_target(target, np.asarray(groups, dtype=str), kinds)
    if difference is None and len(kinds) == 2:
        difference = (kinds[0], kinds[1])
    if difference is not None and (len(set(difference)) != 2 or not set(difference) <= set(kinds)):
        raise NNNormError(
            f"difference must name two of the groups ({', '.join(kinds)}); got {difference}"
        )
    all_ks = [*ks, *(() if labels is None else _PRECISION_KS)]
    if len(ks) == 0 or not all(k in range(1, len(items) + 1) for k in all_ks):
        raise NNNormError(f"ks (-k) must be whole numbers from 1 to {len(items)}; got {all_ks}")
    item_labels, wanted = (
        np.asarray(() if some is None else some, dtype=str) for some in (labels, query_labels)
    )
    if unknown := sorted(set(wanted) - set(item_labels)):
        raise NNNormError(f"a query asks for {str(unknown[0])!r}, but no item has that label")

    run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}

    def measure(some: Bias | None) -> dict[str, DoubleArray]:
        ranking = search(asked, items, some, k=max(all_ks), **run)
        found = measure_groups(ranking, groups, ks, shares, difference)
        if labels is not None:
            is_right = item_labels[ranking.indices] == wanted[:, None]
            found |= {f"precision@{k}": is_right[:, :k].mean(axis=1) for k in _PRECISION_KS}
        return found

    before = measure(None)
    after = {} if bias is None else measure(bias)
    lines = []
    for metric, values in before.items():
        figures = [interval_of_mean(some[metric], seed=seed) for some in (before, after) if some]
        if after:
            figures.append(interval_of_difference(after[metric], values, seed=seed))
        lines.append(Line(metric, *figures))
    numbered = [f"query {n}" for n in range(len(asked))]
    called = tuple(map(str, numbered if query_labels is None else query_labels))
    return Audit(kinds, shares, difference, called, before, after, tuple(lines), len(items))


def _open_target(target: Target, groups: Any, kinds: tuple[str, ...]) -> dict[str, float]:
    if target == "equal":
        return dict.fromkeys(kinds, 1 / len(kinds))
    if target == "gallery":
        return {kind: float(np.mean(groups == kind)) for kind in kinds}
    shares = dict(target) if isinstance(target, Mapping) else {}
    is_whole = abs(sum(shares.values()) - 1) <= 1e-6 and min(shares.values(), default=0) > 0
    if not is_whole or set(shares) != set(kinds):
        raise NNNormError(
            f"target must be 'gallery', 'equal', or a share above 0 for each of "
            f"{', '.join(kinds)}, adding up to 1; got {target!r}"
        )
    return {kind: float(shares[kind]) for kind in kinds}


def measure_groups(
    ranking: Ranking,
    groups: Sequence[str],
    ks: Sequence[int],
    target: Mapping[str, float],
    difference: tuple[str, str] | None = None,
) -> dict[str, DoubleArray]:
    """Compute the metrics of groups for each query of a ranking, shape ``(n_queries,)`` each."""
    values, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    kinds = values.tolist()
    counts = (codes[ranking.indices][:, :, None] == np.arange(len(kinds))).cumsum(axis=1)
    fair = np.array([target[kind] for kind in kinds])
    found: dict[str, DoubleArray] = {}
    for k in ks if difference else ():
        first, second = (kinds.index(group) for group in difference or ())
        bias = (counts[:, k - 1, first] - counts[:, k - 1, second]) / k
        found |= {f"bias@{k}": bias, f"|bias|@{k}": np.abs(bias)}
    for k in ks:
        shares = counts[:, k - 1] / k
        # An absent group counts as a share of 1/k, or as its target if that is smaller.
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
