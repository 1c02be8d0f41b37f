"""Audits: how often items of each group are retrieved, before and after a correction.

Every item belongs to a group; `groups` counts them among the first items of each query. Here the
counts of an uncorrected and a corrected search stand side by side, as means with intervals over the
queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.embeddings import Source, open_embeddings
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.files import Progress
from nnnorm.ranking import search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.study.groups import measure_groups
from nnnorm.study.intervals import Interval, interval_of_difference, interval_of_mean

FloatArray: TypeAlias = npt.NDArray[np.float64]
# Shares that are fair: as in the gallery, the same for all, or given.
Target: TypeAlias = Literal["gallery", "equal"] | Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """The mean of one figure over all queries.

    Attributes
    ----------
    metric : str
    before : Interval
    after, change : Interval or None
        With a bias; `change` is paired.
    """

    metric: str
    before: Interval
    after: Interval | None = None
    change: Interval | None = None


@dataclass(frozen=True, eq=False)
class Audit:
    """How often each group is retrieved, query by query and on average.

    Attributes
    ----------
    groups : tuple of str
    target : dict
        The share of each group that counts as fair.
    difference : pair of str or None
        bias@k is (number of the first − number of the second)/k.
    queries : tuple of str
        Their names.
    before, after : dict
        Figure name to its value for each query, shape ``(n_queries,)``; `after` is empty without a
        bias.
    lines : tuple of Line
        The means, in the same order.
    n_gallery : int
    """

    groups: tuple[str, ...]
    target: Mapping[str, float]
    difference: tuple[str, str] | None
    queries: tuple[str, ...]
    before: Mapping[str, FloatArray] = field(repr=False)
    after: Mapping[str, FloatArray] = field(repr=False)
    lines: tuple[Line, ...]
    n_gallery: int

    def __repr__(self) -> str:
        groups = ", ".join(self.groups)
        return f"Audit({len(self.queries):,} queries, {self.n_gallery:,} items of {groups})"

    def line(self, metric: str) -> Line:
        """Return the means of one figure.

        Examples
        --------
        >>> audit(np.eye(2), np.eye(2), groups=["a", "b"], ks=[1]).line("bias@1").before.mean
        0.0
        """
        for line in self.lines:
            if line.metric == metric:
                return line
        known = ", ".join(line.metric for line in self.lines)
        raise NNNormError(f"this audit has no {metric!r}; it has {known}")

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, ready for JSON."""
        return {
            "groups": list(self.groups),
            "target": dict(self.target),
            "difference": self.difference,
            "n_queries": len(self.queries),
            "n_gallery": self.n_gallery,
            "means": [asdict(line) for line in self.lines],
            "queries": list(self.queries),
            "before": {name: values.tolist() for name, values in self.before.items()},
            "after": {name: values.tolist() for name, values in self.after.items()},
        }


@explain_arguments
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
    precision_ks: Sequence[int] = (1, 5),
    names: Sequence[str] | None = None,
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Audit:
    """Count groups among the first items of every query, before and after a correction.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        Questions that should not favour a group.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
        Adds the same figures after the correction, and the paired change.
    groups : sequence of str
        The group of every item.
    ks : sequence of int
        Numbers of first places to count in.
    difference : pair of str, optional
        bias@k is (number of the first − number of the second)/k; by default the two groups in
        alphabetical order where there are just two, and no bias@k where there are more.
    target : {"gallery", "equal"} or dict
        The shares that would be fair.
    labels, query_labels : sequence of str, optional
        What every item is and what every query asks for; adds precision@k.
    precision_ks : sequence of int
    names : sequence of str, optional
        Names of the queries; by default their labels, or numbers.
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
    kinds = _check_groups(groups, len(items))
    _check_ks(ks, len(items))
    if len(asked) < 2:
        raise NNNormError("an audit needs at least two queries, to tell a habit from a single case")
    shares = _open_target(target, groups, kinds)
    pair = _open_difference(difference, kinds)
    right = _open_labels(labels, query_labels, len(items), len(asked))
    depth = max(ks)
    if right is not None:
        _check_ks(precision_ks, len(items))
        depth = max(depth, *precision_ks)
    called = _open_names(names, query_labels, len(asked))

    def measure(some: Bias | None) -> dict[str, FloatArray]:
        ranking = search(
            asked, items, some, k=depth, memory_budget=memory_budget, progress=progress
        )
        found = measure_groups(ranking, groups, ks=ks, target=shares, difference=pair)
        if right is not None:
            is_right = right[0][ranking.indices] == right[1][:, None]
            found |= {f"precision@{k}": is_right[:, :k].mean(axis=1) for k in precision_ks}
        return found

    before = measure(None)
    after = {} if bias is None else measure(bias)
    lines = []
    for metric, values in before.items():
        mean = interval_of_mean(values, seed=seed)
        if bias is None:
            lines.append(Line(metric, mean))
        else:
            changed = interval_of_difference(after[metric], values, seed=seed)
            lines.append(Line(metric, mean, interval_of_mean(after[metric], seed=seed), changed))
    return Audit(kinds, shares, pair, called, before, after, tuple(lines), len(items))


# --- checks --------------------------------------------------------------------------------------


def _check_groups(groups: Sequence[str], n_gallery: int) -> tuple[str, ...]:
    if len(groups) != n_gallery:
        raise NNNormError(
            f"groups must name one group per item; got {len(groups)} for {n_gallery} items"
        )
    kinds = tuple(str(kind) for kind in np.unique(np.asarray(groups, dtype=str)))
    if len(kinds) < 2:
        raise NNNormError(f"an audit compares groups, but all items are of one: {kinds[0]!r}")
    if len(kinds) > 50:
        raise NNNormError(
            f"groups has {len(kinds)} different values, more than 50; is it the right column?"
        )
    return kinds


def _check_ks(ks: Sequence[int], n_gallery: int) -> None:
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= n_gallery:
            raise NNNormError(
                f"k must be a whole number from 1 to the gallery's {n_gallery} items; got {k!r}"
            )
    if len(ks) == 0:
        raise NNNormError("ks must name at least one k, such as (10,); got none")


def _open_target(target: Target, groups: Sequence[str], kinds: tuple[str, ...]) -> dict[str, float]:
    if target == "equal":
        return dict.fromkeys(kinds, 1 / len(kinds))
    if target == "gallery":
        return {kind: float(np.mean(np.asarray(groups, dtype=str) == kind)) for kind in kinds}
    if not isinstance(target, Mapping):
        raise NNNormError(f"target must be 'gallery', 'equal' or a dict of shares; got {target!r}")
    shares = {kind: target.get(kind, 0.0) for kind in kinds}
    if set(target) - set(kinds) or not all(share > 0 for share in shares.values()):
        raise NNNormError(
            f"target must give each group ({', '.join(kinds)}) a share above 0; got {dict(target)}"
        )
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise NNNormError(f"the shares of target must add up to 1; got {sum(shares.values()):g}")
    return {kind: float(share) for kind, share in shares.items()}


def _open_difference(
    difference: tuple[str, str] | None, kinds: tuple[str, ...]
) -> tuple[str, str] | None:
    if difference is None:
        return (kinds[0], kinds[1]) if len(kinds) == 2 else None
    if len(set(difference)) != 2 or not set(difference) <= set(kinds):
        raise NNNormError(
            f"difference must name two of the groups ({', '.join(kinds)}); got {difference}"
        )
    return difference


def _open_labels(
    labels: Sequence[str] | None, query_labels: Sequence[str] | None, n_gallery: int, n_queries: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    if labels is None and query_labels is None:
        return None
    if labels is None or query_labels is None:
        raise NNNormError(
            "precision needs both labels (of items) and query_labels; got one of them"
        )
    for name, some, wanted in (
        ("labels", labels, n_gallery),
        ("query_labels", query_labels, n_queries),
    ):
        if len(some) != wanted:
            raise NNNormError(f"{name} must have {wanted} entries; got {len(some)}")
    if strange := sorted(set(map(str, query_labels)) - set(map(str, labels))):
        raise NNNormError(f"a query asks for {strange[0]!r}, which no item is labelled with")
    return np.asarray(labels, dtype=str), np.asarray(query_labels, dtype=str)


def _open_names(
    names: Sequence[str] | None, query_labels: Sequence[str] | None, n_queries: int
) -> tuple[str, ...]:
    called = names if names is not None else query_labels
    if called is None:
        return tuple(f"query {number}" for number in range(n_queries))
    if len(called) != n_queries:
        raise NNNormError(f"names must have {n_queries} entries; got {len(called)}")
    return tuple(map(str, called))
