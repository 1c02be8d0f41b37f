"""Hubs against chance: how often items would come first if hits fell on items at random.

Hits that are known to be right stay where they are; all others are dealt out anew, each item being
equally likely. Queries that belong together (captions of one picture, copies of one query in a log)
and hit the same item are dealt as one, since they agree for a reason that is not the item. The
distance between the counts and those that chance gives is the share of the hits dealt out that
would have to move to another item: 0 where there are no hubs, near 1 where one item takes all.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import NEAR_COPY, as_units
from nnnorm.embeddings import Embeddings
from nnnorm.study.hubness import count_occurrences
from nnnorm.study.truth import clusters_of, open_truth

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Severity = Literal["none", "mild", "moderate", "severe"]

# The sizes of docs/check.md: a gallery without hubs stays below the first one.
_SEVERITIES: tuple[tuple[float, Severity], ...] = (
    (0.25, "severe"),
    (0.12, "moderate"),
    (0.04, "mild"),
)
_SIGNIFICANT = 0.05
# More deals of small galleries cost nothing; of a million items, twenty tell enough.
_DEALS, _FEWEST_DEALS, _ITEMS_AT_MOST = 200, 20, 2 * 10**7
# Of an item that comes first more often than this, copies are looked for among so many queries.
_MOST_COMPARED = 2048


@dataclass(frozen=True)
class Hubs:
    """How far the hits of a search are from chance.

    Attributes
    ----------
    severity : {"none", "mild", "moderate", "severe"}
        By `beyond_chance`, and "none" where chance alone gives as much in one of twenty cases.
    beyond_chance : float
        Share of the hits (with a truth, of those that are not right) that would have to move to
        another item to look like chance; 0 where counts are more even than chance.
    p_value : float
        How often chance alone is as far from its own mean.
    item : int
        The most retrieved item.
    most : int
        Number of its hits.
    most_by_chance : float
        Number of hits of the most retrieved item by chance.
    n_never : int
        Number of items without any hit.
    n_never_by_chance : float
        Number of items without any hit by chance.
    """

    severity: Severity
    beyond_chance: float
    p_value: float
    item: int
    most: int
    most_by_chance: float
    n_never: int
    n_never_by_chance: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON.

        Examples
        --------
        >>> judge_hubs(np.arange(50), 50).to_dict()["severity"]
        'none'
        """
        return asdict(self)


def judge_hubs(
    hits: npt.ArrayLike,
    n_gallery: int,
    *,
    truth: Any = None,
    queries: Embeddings | None = None,
    seed: int = 0,
) -> Hubs:
    """Compare the hits of every item with what chance gives.

    Parameters
    ----------
    hits : int array, shape (n_queries,) or (n_queries, k)
        The items that each query retrieves.
    n_gallery : int
    truth : array or list, optional
        The right items, see `truth.open_truth`. Hits that are right are no sign of a hub, and
        queries that share their right item belong together.
    queries : Embeddings, shape (n_queries, dim), optional
        Without a truth: copies of one query belong together.
    seed : int
        Random seed of the deals.

    Returns
    -------
    Hubs

    Examples
    --------
    >>> hits = np.arange(100)
    >>> judge_hubs(hits, 100).severity, judge_hubs(hits // 10, 100).severity
    ('none', 'severe')
    """
    found = np.asarray(hits, dtype=np.int64)
    found = found[:, None] if found.ndim == 1 else found
    counts = count_occurrences(found, n_gallery)
    kept, groups = _deal_of(found, n_gallery, truth, queries)
    rng = np.random.default_rng(seed)
    n_deals = int(np.clip(_ITEMS_AT_MOST // n_gallery, _FEWEST_DEALS, _DEALS))
    deals = [_deal(kept, groups, rng) for _ in range(n_deals)]
    longest = max(int(counts.max()), *(int(deal.max()) for deal in deals)) + 1
    shares = np.stack([_shares_up_to(deal, longest) for deal in deals])
    usual = shares.mean(axis=0)
    # Two counts per move: one item has a hit less, another one more.
    per_move = n_gallery / (2 * max(1, found.size - kept.sum()))
    by_chance = per_move * np.abs(shares - usual).sum(axis=1)
    distance = per_move * np.abs(_shares_up_to(counts, longest) - usual).sum()
    is_even = (counts**2).sum() <= np.mean([(deal**2).sum() for deal in deals])
    beyond = 0.0 if is_even else max(0.0, float(distance - by_chance.mean()))
    p_value = 1.0 if is_even else float((1 + (by_chance >= distance).sum()) / (1 + n_deals))
    return Hubs(
        severity=_severity(beyond, p_value),
        beyond_chance=beyond,
        p_value=p_value,
        item=int(counts.argmax()),
        most=int(counts.max()),
        most_by_chance=float(np.mean([deal.max() for deal in deals])),
        n_never=int((counts == 0).sum()),
        n_never_by_chance=float(np.mean([(deal == 0).sum() for deal in deals])),
    )


def _severity(beyond: float, p_value: float) -> Severity:
    if p_value > _SIGNIFICANT:
        return "none"
    return next((name for least, name in _SEVERITIES if beyond >= least), "none")


def _deal_of(
    hits: IntArray, n_gallery: int, truth: Any, queries: Embeddings | None
) -> tuple[IntArray, dict[int, int]]:
    """Hits of every item that stay, and how many groups of each size are dealt out."""
    n_queries = len(hits)
    of_query = np.repeat(np.arange(n_queries), hits.shape[1])
    items, kept = hits.ravel(), np.zeros(n_gallery, dtype=np.int64)
    if truth is None:
        sizes = _sizes_without_truth(items, of_query, queries)
    else:
        right = open_truth(truth, n_queries=n_queries, n_gallery=n_gallery)
        keys = right.queries * n_gallery + right.items
        is_right = np.isin(of_query * n_gallery + items, keys)
        kept = np.bincount(items[is_right], minlength=n_gallery).astype(np.int64)
        pairs = clusters_of(right)[of_query] * n_gallery + items
        sizes = np.unique(pairs[~is_right], return_counts=True)[1]
    return kept, dict(zip(*np.unique(sizes, return_counts=True), strict=True))


def _sizes_without_truth(
    items: IntArray, of_query: IntArray, queries: Embeddings | None
) -> IntArray:
    """Sizes of the groups of queries that hit one item and are copies of each other."""
    if queries is None:
        return np.ones(len(items), dtype=np.int64)
    order = np.argsort(items, kind="stable")
    starts = np.flatnonzero(np.diff(items[order], prepend=-1))
    sizes = []
    for place in np.split(of_query[order], starts[1:]):
        sizes.append(_sizes_of_copies(queries, place) if len(place) > 1 else np.ones(1, np.int64))
    return np.concatenate(sizes)


def _sizes_of_copies(queries: Embeddings, rows: IntArray) -> IntArray:
    units = as_units(queries.take(rows[:_MOST_COMPARED]))
    # Each belongs to the first that is near, which is the row itself at the latest.
    leaders, sizes = np.unique((units @ units.T > NEAR_COPY).argmax(axis=1), return_counts=True)
    n_alone = 0
    for start in range(_MOST_COMPARED, len(rows), _MOST_COMPARED):
        more = as_units(queries.take(rows[start : start + _MOST_COMPARED]))
        is_near = more @ units[leaders].T > NEAR_COPY
        has_one = is_near.any(axis=1)
        sizes += np.bincount(is_near.argmax(axis=1)[has_one], minlength=len(leaders))
        n_alone += int((~has_one).sum())
    return np.concatenate([sizes, np.ones(n_alone, dtype=np.int64)])


def _deal(kept: IntArray, groups: dict[int, int], rng: np.random.Generator) -> IntArray:
    counts = kept.copy()
    for size, times in groups.items():
        counts += size * np.bincount(rng.integers(0, len(kept), times), minlength=len(kept))
    return counts


def _shares_up_to(counts: IntArray, longest: int) -> FloatArray:
    """Share of the items with at most 0, 1, 2, … hits."""
    return np.asarray(np.cumsum(np.bincount(counts, minlength=longest)) / len(counts))
