"""Hubness: the k-occurrence N_k, its statistics, and how far it is from a null model.

``N_k(i)`` is the number of queries with item i among their first k hits; its mean is
``k·n_queries/n_gallery``. The paper's table uses N_1: kurtosis (excess), MAE and max.

A hub is an item with at least twice the mean number of hits, and at least two. If items outnumber
queries, hubs don't show in top-1 hits, so N_10 is counted instead.

The null model assigns hits to items at random. Hits that are known to be right stay. If queries
belong together (captions of one picture, copies of one query) and have the same hit, they are
assigned to one random item, because the item isn't why they agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank
from nnnorm.bias import Bias
from nnnorm.dedup import NEAR_COPY, Duplicates, as_units
from nnnorm.embeddings import Embeddings, IntArray, Source, open_embeddings
from nnnorm.errors import NNNormError, quiet
from nnnorm.evaluation.metrics import Truth, open_truth, warn_of_mismatched_bank, warn_of_overlap
from nnnorm.evaluation.results import FloatArray, Record
from nnnorm.files import Progress
from nnnorm.input_checks import LIKE_ITEMS
from nnnorm.methods import NNN, open_references
from nnnorm.ranking import Ranking, search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.tables import check_ids

Severity = Literal["none", "mild", "moderate", "severe"]

# A robust z-score beyond this is an outlier, by Iglewicz and Hoaglin's rule of thumb.
_OUTLIER = 3.5
# Limits of docs/guide/does-it-help.md; galleries without hubs stay below the lowest.
_SEVERITIES: dict[float, Severity] = {0.25: "severe", 0.12: "moderate", 0.04: "mild"}
_SIGNIFICANT = 0.05
# Small galleries get more draws, which cost little; for a million items, twenty are enough.
_DRAWS, _FEWEST_DRAWS, _ITEMS_AT_MOST = 200, 20, 2 * 10**7
# Queries with the same hit are compared with at most this many of them.
_MOST_COMPARED = 2048


@dataclass(frozen=True)
class Hubness(Record):
    """Statistics of N_k over all items."""

    mean: float
    max: int
    mean_absolute_error: float
    kurtosis: float  # excess: 0 for a normal distribution
    skewness: float
    gini: float
    robin_hood: float  # share of hits to move until all items have the same number
    antihub_share: float  # share of items that are never retrieved
    hub_occurrence: float  # share of all hits that go to hubs


@dataclass(frozen=True)
class Hub(Record):
    """One item, its N_k, the share of these hits that are wrong, and the z-score of its bias."""

    item: int
    occurrences: int
    wrong_share: float | None = None
    bias_z: float | None = None


@dataclass(frozen=True)
class Hubs(Record):
    """How far the hits of a search are from the null model."""

    severity: Severity
    beyond_chance: float
    p_value: float
    item: int  # the most retrieved item
    most: int
    most_by_chance: float
    n_never: int
    n_never_by_chance: float
    k: int = 1

    @property
    def places(self) -> str:
        """The places that count as retrieved, in words."""
        return name_places(self.k)


# --- counting ------------------------------------------------------------------------------------


def count_occurrences(ranking: Ranking | npt.ArrayLike, n_gallery: int) -> IntArray:
    """Count ``N_k`` of every item in a ranking, shape ``(n_queries, k)`` or ``(n_queries,)``."""
    indices = np.asarray(ranking.indices if isinstance(ranking, Ranking) else ranking)
    counts = np.bincount(indices[indices != -1], minlength=n_gallery)  # −1: no hit
    if len(counts) > n_gallery:
        raise NNNormError(
            f"the ranking names item {indices.max()}, but the gallery has {n_gallery} items"
        )
    return counts.astype(np.int64)


def places_to_count(n_queries: int, n_gallery: int) -> int:
    """Return the k of N_k that shows hubs: 1, or 10 if items outnumber queries."""
    return 1 if n_queries >= n_gallery else min(10, n_gallery)


def name_places(k: int) -> str:
    """Say which hits count as retrieved."""
    return "top-1" if k == 1 else f"in the top {k}"


def find_hubs(occurrences: npt.ArrayLike) -> IntArray:
    """Find the items with at least twice the mean number of hits, and two at least."""
    counts = np.asarray(occurrences)
    return np.flatnonzero(counts >= hub_hits(counts))


def hub_hits(occurrences: npt.ArrayLike) -> float:
    """Return the number of hits that make an item a hub: twice the mean, and at least two."""
    return 2 * max(1.0, float(np.asarray(occurrences).mean()))


def measure_hubness(occurrences: npt.ArrayLike) -> Hubness:
    """Compute statistics of ``N_k``, shape ``(n_gallery,)``, from `count_occurrences`."""
    counts = np.asarray(occurrences, dtype=np.float64)
    if counts.ndim != 1 or not (counts >= 0).all() or not 0 < counts.sum() < np.inf:
        raise NNNormError(
            "occurrences must have one count per item, of at least 0, with at least one hit; "
            f"got shape {counts.shape}"
        )
    n_gallery, total, mean = len(counts), counts.sum(), counts.mean()
    deviation = counts - mean
    variance = (deviation**2).mean()
    ranks = np.arange(1, n_gallery + 1)
    return Hubness(
        mean=float(mean),
        max=int(counts.max()),
        mean_absolute_error=float(np.abs(deviation).mean()),
        # A constant N_k has no shape: both moments are 0, not 0/0.
        kurtosis=float((deviation**4).mean() / variance**2 - 3) if variance > 0 else 0.0,
        skewness=float((deviation**3).mean() / variance**1.5) if variance > 0 else 0.0,
        gini=float(((2 * ranks - n_gallery - 1) * np.sort(counts)).sum() / (n_gallery * total)),
        robin_hood=float(np.abs(deviation).sum() / (2 * total)),
        antihub_share=float((counts == 0).mean()),
        hub_occurrence=float(counts[find_hubs(counts)].sum() / total),
    )


def compare_occurrences(before: npt.ArrayLike, after: npt.ArrayLike) -> tuple[float, float]:
    """Return the statistic and p-value of a Kolmogorov–Smirnov test between two ``N_k``."""
    first, second = np.sort(np.asarray(before)), np.sort(np.asarray(after))
    values = np.concatenate([first, second])
    below = [np.searchsorted(some, values, side="right") / len(some) for some in (first, second)]
    statistic = float(np.abs(below[0] - below[1]).max())
    size = np.sqrt(len(first) * len(second) / (len(first) + len(second)))
    x = (size + 0.12 + 0.11 / size) * statistic
    if x < 0.2:
        return statistic, 1.0
    terms = np.arange(1, 101)
    p_value = 2 * ((-1.0) ** (terms - 1) * np.exp(-2 * terms**2 * x**2)).sum()
    return statistic, float(np.clip(p_value, 0, 1))


def find_rescued(
    before: npt.ArrayLike, after: npt.ArrayLike, truth: Truth, hubs: npt.ArrayLike
) -> IntArray:
    """Find queries whose top-1 was a wrong hub and is right afterwards, clearest first."""
    was, now = np.asarray(before), np.asarray(after)
    among = np.isin(was, hubs)
    rescued = among[:, 0] & ~truth.holds(was[:, 0]) & truth.holds(now[:, 0])
    clear = among.sum(axis=1) - np.isin(now, hubs).sum(axis=1)
    order = np.argsort(-clear, kind="stable")
    return order[rescued[order]]


def robust_z(values: npt.ArrayLike) -> FloatArray:
    """Compute ``0.6745·(v − median)/MAD`` of every value; zeros if all are equal."""
    numbers = np.asarray(values, dtype=np.float64)
    deviation = numbers - np.median(numbers)
    spread = np.median(np.abs(deviation))
    if spread == 0:
        # If more than half of the values are equal, the mean deviation is used.
        spread = np.abs(deviation).mean() * 0.8453
    return np.asarray(0.6745 * deviation / spread) if spread > 0 else np.zeros_like(deviation)


# --- the null model ------------------------------------------------------------------------------


def expect_occurrences(n_hits: int, n_gallery: int, most: int) -> FloatArray:
    """Return how many items would have 0, 1, … `most` hits if hits were assigned at random."""
    if n_gallery == 1:
        return np.where(np.arange(most + 1) == n_hits, 1.0, 0.0)
    expected = np.zeros(most + 1)
    for n in range(min(most, n_hits) + 1):
        ways = math.lgamma(n_hits + 1) - math.lgamma(n + 1) - math.lgamma(n_hits - n + 1)
        logarithm = ways - n * math.log(n_gallery) + (n_hits - n) * math.log1p(-1 / n_gallery)
        expected[n] = n_gallery * math.exp(logarithm)
    return expected


def judge_hubs(
    hits: npt.ArrayLike,
    n_gallery: int,
    *,
    truth: Any = None,
    queries: Embeddings | None = None,
    seed: int = 0,
) -> Hubs:
    """Compare the hits of every item, shape ``(n_queries, k)``, with the null model."""
    found = np.asarray(hits, dtype=np.int64)
    found = found[:, None] if found.ndim == 1 else found
    counts = count_occurrences(found, n_gallery)
    kept = np.zeros(n_gallery, dtype=np.int64)
    groups = np.ones(found.size, dtype=np.int64)
    if truth is not None:
        right = open_truth(truth, n_queries=len(found), n_gallery=n_gallery)
        is_right = right.holds(found)
        kept += np.bincount(found[is_right], minlength=n_gallery)
        pairs = right.clusters[:, None] * n_gallery + found
        groups = np.unique(pairs[~is_right], return_counts=True)[1]
    elif queries is not None:
        groups = _sizes_of_groups(found, queries)
    sizes = np.stack(np.unique(groups, return_counts=True), axis=1)
    rng = np.random.default_rng(seed)
    n_draws = int(np.clip(_ITEMS_AT_MOST // n_gallery, _FEWEST_DRAWS, _DRAWS))
    found_by = [np.bincount(counts)]  # number of items with 0, 1, 2, … hits, here and by chance
    for _ in range(n_draws):
        draw = kept.copy()
        for size, times in sizes:
            draw += size * np.bincount(rng.integers(0, n_gallery, times), minlength=n_gallery)
        found_by.append(np.bincount(draw))
    longest = max(map(len, found_by))
    histograms = np.stack([np.pad(one, (0, longest - len(one))) for one in found_by])
    shares = histograms.cumsum(axis=1) / n_gallery
    # Moving a hit changes two counts: one goes down, the other goes up.
    per_move = n_gallery / (2 * max(1, found.size - kept.sum()))
    distances = per_move * np.abs(shares - shares[1:].mean(axis=0)).sum(axis=1)
    distance, by_chance = float(distances[0]), distances[1:]
    squares = histograms @ np.arange(longest) ** 2
    is_even = squares[0] <= squares[1:].mean()
    beyond = 0.0 if is_even else max(0.0, distance - float(by_chance.mean()))
    p_value = 1.0 if is_even else float((1 + (by_chance >= distance).sum()) / (1 + n_draws))
    severity: Severity = "none"
    if p_value <= _SIGNIFICANT:
        severity = next((name for least, name in _SEVERITIES.items() if beyond >= least), "none")
    return Hubs(
        severity=severity,
        beyond_chance=beyond,
        p_value=p_value,
        item=int(counts.argmax()),
        most=int(counts.max()),
        most_by_chance=float(np.mean([len(one) - 1 for one in found_by[1:]])),
        n_never=int(histograms[0, 0]),
        n_never_by_chance=float(histograms[1:, 0].mean()),
        k=found.shape[1],
    )


def _sizes_of_groups(hits: IntArray, queries: Embeddings) -> IntArray:
    """Return the sizes of groups of near-duplicate queries with the same hit."""
    items, of_query = hits.ravel(), np.repeat(np.arange(len(hits)), hits.shape[1])
    order = np.argsort(items, kind="stable")
    starts = np.flatnonzero(np.diff(items[order], prepend=-1))
    sizes = []
    for rows in np.split(of_query[order], starts[1:]):
        units = as_units(queries.take(rows))
        is_near = units @ units[:_MOST_COMPARED].T > NEAR_COPY
        first = np.where(is_near.any(axis=1), is_near.argmax(axis=1), np.arange(len(rows)))
        sizes.append(np.unique(first, return_counts=True)[1])
    return np.concatenate(sizes)


# --- diagnosis ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis(Record):
    """Hubness of a gallery under a set of queries, before and after a correction."""

    _rows = "hubs"

    before: Hubness
    null_model: Hubs
    hubs: tuple[Hub, ...]
    after: Hubness | None = None
    null_model_after: Hubs | None = None
    hubs_after: tuple[int, ...] = ()
    ks_statistic: float | None = None  # Kolmogorov–Smirnov test of N_k before and after
    ks_p_value: float | None = None
    outliers: tuple[int, ...] = ()
    method: str | None = None
    n_queries: int
    n_gallery: int
    k: int
    occurrences: IntArray = field(repr=False)
    occurrences_after: IntArray | None = field(default=None, repr=False)
    ids: tuple[Any, ...] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        after = "" if self.after is None else f", {self.after.max:,} after {self.method}"
        sizes = f"{self.n_queries:,} queries, {self.n_gallery:,} items"
        return f"Diagnosis({sizes}, most retrieved {self.before.max:,} times{after})"

    def name_item(self, item: int) -> str:
        """Return the id of an item, or its row number if there are no ids."""
        return str(item if self.ids is None else self.ids[item])

    def to_dict(self) -> dict[str, Any]:
        """Return all results except the counts of single items, ready for JSON."""
        found = super().to_dict()
        if self.ids is not None:
            for hub in found["hubs"]:
                hub["id"] = self.name_item(hub["item"])
            found["outlier_ids"] = [self.name_item(item) for item in self.outliers]
        return found


def diagnose(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    references: Source | Bank | None = None,
    duplicates: Duplicates = "drop",
    truth: Any = None,
    ids: Sequence[Any] | None = None,
    k: int | None = None,
    most: int = 10,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Diagnosis:
    """Count how often every item is retrieved, and list those that are retrieved too often.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        A sample of the queries that the search gets.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
        Adds the same results after this correction.
    references : array or path, shape (n_references, dim), optional
        Past queries, instead of a bias: NNN is fitted to them with automatic settings.
    duplicates : {"drop", "keep"}
        Whether near-duplicates count once; see `Method.fit`.
    truth : array or list, optional
        The right items; see `open_truth`. Adds the share of a hub's hits that are wrong.
    ids : sequence, optional
        Ids of the items, shown instead of row numbers; by default those of the gallery, if any.
    k : int, optional
        Number of hits that count as retrieved; by default 1, or 10 if items outnumber queries,
        because hubs don't show in so few top-1 hits.
    most : int
        Number of hubs to list.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import numpy as np
    >>> found = diagnose(np.array([[1.0, 0.1], [1.0, 0.2]]), np.eye(2), ids=["red", "blue"])
    >>> found.name_item(found.hubs[0].item)
    'red'
    """
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    names = open_ids(ids, items)
    run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    if references is not None:
        if bias is not None:
            raise NNNormError("pass either a bias or references, not both")
        bank = open_references(references, normalize=normalize)
        warn_of_overlap(bank, asked)
        with quiet(LIKE_ITEMS):  # checked below, with the queries
            bias = NNN().fit(items, bank, duplicates=duplicates, **run)
        warn_of_mismatched_bank(bank, asked, items, truth)
    k = places_to_count(len(asked), len(items)) if k is None else k

    def count(some: Bias | None) -> tuple[IntArray, IntArray, Hubs]:
        """Search; return the hits, ``N_k``, and its comparison with the null model."""
        hits = search(asked, items, some, k=k, **run).indices
        hubs = judge_hubs(hits, len(items), truth=truth, queries=asked)
        return hits, count_occurrences(hits, len(items)), hubs

    hits, counts, null_model = count(None)
    listed = np.argsort(-counts, kind="stable")[:most]
    listed = listed[counts[listed] > 0]
    wrong_shares = bias_z = [None] * len(listed)
    if truth is not None:
        right = open_truth(truth, n_queries=len(asked), n_gallery=len(items))
        wrong = np.bincount(hits[~right.holds(hits)], minlength=len(items))
        wrong_shares = (wrong[listed] / counts[listed]).tolist()
    found: dict[str, Any] = {}
    if bias is not None:
        _, after, null_model_after = count(bias)
        z = robust_z(bias.values)
        bias_z = z[listed].tolist()
        far = np.argsort(-np.abs(z), kind="stable")
        found = {
            "after": measure_hubness(after),
            "null_model_after": null_model_after,
            "hubs_after": tuple(after[listed].tolist()),
            "outliers": tuple(far[np.abs(z[far]) >= _OUTLIER].tolist()),
            "method": bias.method,
            "occurrences_after": after,
        }
        found["ks_statistic"], found["ks_p_value"] = compare_occurrences(counts, after)
    columns = (listed.tolist(), counts[listed].tolist(), wrong_shares, bias_z)
    return Diagnosis(
        before=measure_hubness(counts),
        null_model=null_model,
        hubs=tuple(Hub(*row) for row in zip(*columns, strict=True)),
        n_queries=len(asked),
        n_gallery=len(items),
        k=k,
        occurrences=counts,
        ids=names,
        **found,
    )


def open_ids(ids: Sequence[Any] | None, gallery: Embeddings) -> tuple[Any, ...] | None:
    """Return these ids of the items, else those of the gallery, if any."""
    found = gallery.ids if ids is None else check_ids(ids, len(gallery), name=gallery.name)
    return None if found is None else tuple(found.tolist())
