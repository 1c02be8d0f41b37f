"""The right items of each query, and recall and other metrics from their ranks.

A `Truth` is created from one item per query, from pairs, or from lists of items. A query without a
right item raises an error, so it can't be missing from an average. Metrics are computed per query
and then averaged. R@K counts a query if any of its right items is among the first K (also called
success@K or hit rate). Ties count as the mean over all orders, so equal scores give the result of
chance. A `Ranking` is evaluated in its own order.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import map_npy
from nnnorm.bias import Bias
from nnnorm.dedup import hash_rows
from nnnorm.documents import Documents
from nnnorm.embeddings import Embeddings, IntArray, Source, check_same_dim, open_embeddings
from nnnorm.errors import NNNormError, check_count, warn
from nnnorm.evaluation.results import FloatArray, Interval, Record, interval_of_difference
from nnnorm.files import PathLike, Progress
from nnnorm.input_checks import check_inputs, warn_of_mismatch
from nnnorm.methods import open_references
from nnnorm.ranking import (
    GivesBias,
    Ranking,
    describe_scales,
    iterate_scores,
    search,
    take_bias,
    warn_of_scale,
)
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, in_threads
from nnnorm.tables import read_json

# Up to this many right items per query, each is compared with all scores; beyond, they are sorted.
_FEW = 16


@dataclass(frozen=True, eq=False)
class Truth:
    """The right items: those of query q are ``items[starts[q]:starts[q + 1]]``, sorted.

    `grades` has a grade of at least 1 per item, for nDCG; without it, all grades are equal.
    """

    starts: IntArray
    items: IntArray
    grades: IntArray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> IntArray:
        """Number of right items of each query, shape ``(n_queries,)``."""
        return np.diff(self.starts)

    @property
    def queries(self) -> IntArray:
        """The query of each pair, shape ``(n_pairs,)``."""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def clusters(self) -> IntArray:
        """A number per query, shared by queries with the same first right item."""
        return self.items[self.starts[:-1]]

    @property
    def one_per_cluster(self) -> IntArray:
        """The first query of each cluster."""
        return np.unique(self.clusters, return_index=True)[1]

    def holds(self, items: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether items of each query are right, shape ``(n_queries,)`` or ``(n_queries, k)``."""
        step = 1 + max(int(items.max(initial=0)), int(self.items.max(initial=0)))
        query = np.arange(len(self)).reshape(-1, *[1] * (items.ndim - 1))
        return np.isin(query * step + items, self.queries * step + self.items)

    def some_queries(self, queries: IntArray) -> "Truth":
        """Return the truth of some queries only, renumbered in that order."""
        counts = self.counts[queries]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.repeat(self.starts[queries] - starts[:-1], counts) + np.arange(starts[-1])
        grades = None if self.grades is None else self.grades[places]
        return Truth(starts, self.items[places], grades)


def open_truth(truth: Any, *, n_queries: int, n_gallery: int) -> Truth:
    """Return a `Truth` from an item per query, (query, item) pairs, or a list per query."""
    grades = None
    if isinstance(truth, str | os.PathLike):
        truth = read_truth(truth)
    if isinstance(truth, Truth):
        queries, items, grades = truth.queries, truth.items, truth.grades
    elif isinstance(truth, (list, tuple)) and any(np.ndim(right) for right in map(_row, truth)):
        rows = [np.atleast_1d(_row(right)) for right in truth]
        if len(rows) != n_queries:
            raise NNNormError(f"truth must have {n_queries} lists, one per query; got {len(rows)}")
        if deep := [query for query, row in enumerate(rows) if row.ndim > 1]:
            raise NNNormError(f"truth must have flat lists of items; query {deep[0]} has lists")
        rows = [row if len(row) else row.astype(np.int64) for row in rows]
        queries = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        items = np.concatenate(rows)
    else:
        array = np.asarray(truth)
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] > 2:
            raise NNNormError(
                f"truth must hold item numbers; got {array.dtype} of shape {array.shape}, which "
                "look like embeddings. Were the arguments swapped?"
            )
        is_pairs = array.ndim == 2 and array.shape[1] == 2
        if not is_pairs and array.shape != (n_queries,):
            is_swapped = array.shape == (n_gallery,)
            raise NNNormError(
                f"truth must have shape ({n_queries},), one item per query, or (n_pairs, 2), or be "
                f"a list of lists; got shape {array.shape}"
                + (". Were queries and gallery swapped?" if is_swapped else "")
            )
        queries, items = array.T if is_pairs else (np.arange(n_queries), array)
    return make_truth(queries, items, n_queries, n_gallery, grades)


def _row(right: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(right)
    except ValueError:  # lists of different lengths
        return np.empty((0, 0))


def make_truth(
    queries: Any, items: Any, n_queries: int, n_gallery: int, grades: IntArray | None
) -> Truth:
    """Check and sort pairs of query and right item."""
    for what, numbers, limit in (("query", queries, n_queries), ("item", items, n_gallery)):
        if numbers.dtype.kind not in "iu":
            raise NNNormError(f"truth must hold whole numbers; got {numbers.dtype}")
        if len(bad := numbers[(numbers < 0) | (numbers >= limit)]):
            hint = ""
            if numbers.min() == 1 and numbers.max() == limit:
                hint = "; subtract 1, because the first is 0"
            elif what == "item" and bad[0] == -1:
                hint = "; leave out queries without a right item"
            there_are = f"there are {limit} (0 to {limit - 1})"
            raise NNNormError(f"truth names {what} {bad[0]}, but {there_are}{hint}")
    queries, items = queries.astype(np.int64), items.astype(np.int64)
    order = np.lexsort((items, queries))
    queries, items = queries[order], items[order]
    grades = None if grades is None else grades[order]
    if len(twice := np.flatnonzero((np.diff(queries) == 0) & (np.diff(items) == 0))):
        raise NNNormError(
            f"truth names the pair (query {queries[twice[0]]}, item {items[twice[0]]}) twice "
            f"({len(twice)} duplicated pairs); remove the copies"
        )
    counts = np.bincount(queries, minlength=n_queries)
    if (counts == 0).any():
        raise NNNormError(
            f"query {counts.argmin()} has no right item ({(counts == 0).sum()} such queries); "
            "add the right items, leave out these queries, or pass qrels, which may do so"
        )
    return Truth(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), items, grades)


def read_truth(path: PathLike) -> Any:
    """Read a truth file: `.npy` of shape (n_queries,) or (n_pairs, 2), or `.json` with lists."""
    file = Path(path)
    if not file.is_file():
        raise NNNormError(f"there is no truth file {path}; check the path")
    if file.suffix not in (".npy", ".json"):
        raise NNNormError(
            "a truth file must be .npy, .json, or qrels (lines of query, 0, item and grade); got "
            f"{path}: save the item numbers of a table with numpy.save"
        )
    if file.suffix == ".npy":
        return np.array(map_npy(file))
    lists = read_json(file, "a truth with a list per query")
    if not isinstance(lists, list):
        raise NNNormError(f"{path} must hold a list per query; got {type(lists).__name__}")
    return lists


# --- ranks of the right items --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluation(Record):
    """The ranks of the right items, per pair of query and right item, and the metrics."""

    truth: Truth
    above: IntArray
    tied: IntArray
    top1: IntArray
    n_gallery: int
    depth: int

    @classmethod
    def of_strips(cls, truth: Truth, strips: Iterable[Any], n_gallery: int) -> "Evaluation":
        """Create an evaluation from the results of `count_strip` for all queries."""
        above, tied, top1 = (np.concatenate(parts) for parts in zip(*strips, strict=True))
        return cls(truth, above, tied, top1, n_gallery, n_gallery)

    def __len__(self) -> int:
        return len(self.truth)

    def __repr__(self) -> str:
        return f"Evaluation({len(self):,} queries, R@1 {100 * self.recall(1):.1f} %)"

    def to_dict(self) -> dict[str, Any]:
        """Return the means of the metrics, ready for JSON."""
        sizes = {"n_queries": len(self), "n_gallery": self.n_gallery}
        return {**sizes, **mean_metrics(self, [k for k in (1, 5, 10) if k <= self.depth])}

    @cached_property
    def _first(self) -> tuple[IntArray, IntArray, IntArray]:
        """Per query: items above its best right item, the size of its tie, right items in it."""
        starts = self.truth.starts[:-1]
        above = np.minimum.reduceat(self.above, starts)
        best = self.above == np.repeat(above, self.truth.counts)
        right = np.add.reduceat(best.astype(np.int64), starts)
        tied = np.maximum.reduceat(np.where(best, self.tied, 0), starts)
        return above, tied, right

    def hits(self, k: int) -> FloatArray:
        """Return 1 per query with a right item among the first k, else 0; between for ties."""
        k = self._check_depth(k)
        above, tied, right = self._first
        hits = (above < k).astype(np.float64)
        for q in np.flatnonzero((tied > 1) & (above < k) & (above + tied > k)):
            places, group, good = int(k - above[q]), int(tied[q]), int(right[q])
            hits[q] = 1 - math.comb(group - good, places) / math.comb(group, places)
        return hits

    def recall(self, k: int) -> float:
        """Return R@K: the mean of `hits` over all queries."""
        return float(self.hits(k).mean())

    def gain_over(self, raw: "Evaluation", *, seed: int = 0) -> Interval:
        """Return the paired gain in R@1 over another search, as in all reports."""
        return interval_of_difference(self.hits(1), raw.hits(1), raw.truth.clusters, seed=seed)

    def fractions(self, k: int) -> FloatArray:
        """Return the share of each query's right items that are among the first k."""
        k = self._check_depth(k)
        inside = np.clip((k - self.above) / self.tied, 0, 1)
        return self._per_query(inside) / self.truth.counts

    def reciprocal_ranks(self) -> FloatArray:
        """Return the reciprocal rank of each query's first right item; the mean is MRR."""
        self._check_depth(self.n_gallery)
        above, tied, right = self._first
        out = 1.0 / (above + 1)
        for q in np.flatnonzero(tied > right):
            group, good = int(tied[q]), int(right[q])
            passed = np.arange(group - good + 1)
            none_yet = np.cumprod((group - good - passed[1:] + 1) / (group - passed[1:] + 1))
            first_here = np.concatenate([[1.0], none_yet]) * good / (group - passed)
            out[q] = (first_here / (above[q] + 1 + passed)).sum()
        return np.asarray(out)

    def ranks(self) -> FloatArray:
        """Return the rank of each query's first right item, from 1."""
        self._check_depth(self.n_gallery)
        above, tied, right = self._first
        return np.asarray(above + (tied + 1) / (right + 1))

    def ndcg(self, k: int) -> FloatArray:
        """Return the nDCG of the first k hits, per query; grades are the gains."""
        k, truth = self._check_depth(k), self.truth
        discounts = np.concatenate([[0], np.cumsum(1 / np.log2(np.arange(k) + 2))])
        upto = discounts[np.minimum(self.above + self.tied, k)]
        gains = (upto - discounts[np.minimum(self.above, k)]) / self.tied
        if truth.grades is None:
            return self._per_query(gains) / discounts[np.minimum(truth.counts, k)]
        grades = truth.grades.astype(np.float64)
        best_first = grades[np.lexsort((-grades, truth.queries))]
        places = np.arange(len(best_first)) - np.repeat(truth.starts[:-1], truth.counts)
        steps = np.diff(discounts, append=discounts[-1])[np.minimum(places, k)]
        return self._per_query(gains * grades) / self._per_query(best_first * steps)

    def _per_query(self, pairs: FloatArray) -> FloatArray:
        return np.asarray(np.add.reduceat(pairs, self.truth.starts[:-1]))

    def _check_depth(self, k: int) -> int:
        """Return k, at most n_gallery; raise an error if the ranking is shorter."""
        check_count("k", k)
        if min(k, self.n_gallery) > self.depth:
            raise NNNormError(
                f"this needs the top {k} hits, but the ranking has {self.depth}; "
                "search with a larger k, or evaluate the embeddings"
            )
        return int(min(k, self.n_gallery))


def evaluate(
    queries: Source,
    gallery: Source,
    bias: Bias | GivesBias | None = None,
    *,
    truth: Any,
    weight: float | None = None,
    parents: npt.ArrayLike | None = None,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Evaluation:
    """Find the ranks of the right items in a corrected search.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias or Corrector, optional
        Without it, the search is uncorrected.
    truth : array or list
        The right items; see `open_truth`.
    weight : float, optional
        Replaces the weight of the bias.
    parents : array of int or str, shape (n_gallery,), optional
        The document of each item, if items are chunks. The truth then has numbers of documents,
        in the order of their first appearance here.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import numpy as np
    >>> evaluate(np.eye(3), np.eye(3), truth=[0, 1, 2]).recall(1)
    1.0
    """
    used, gallery, normalize = take_bias(bias, queries, gallery, normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    documents = None if parents is None else Documents.open(parents, len(items), items.name)
    n_items = len(items) if documents is None else len(documents)
    right = open_truth(truth, n_queries=len(asked), n_gallery=n_items)
    if documents is None:
        warn_of_shuffled_truth(asked, items, right)
    if used is not None:
        warn_of_scale(used, asked, used.weight if weight is None else weight)
    counted = []
    run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    for start, scores in iterate_scores(asked, items, used, weight=weight, **run):
        compared = scores if documents is None else documents.best(scores)
        counted.append(count_strip(compared, right, start))
    return Evaluation.of_strips(right, counted, n_items)


def evaluate_ranking(ranking: Ranking, truth: Any, *, n_gallery: int) -> Evaluation:
    """Evaluate a ranking in its own order."""
    n_queries, depth = ranking.indices.shape
    if (largest := ranking.indices.max()) >= n_gallery:
        raise NNNormError(
            f"the ranking names item {largest}, but the gallery has {n_gallery} items; "
            "was another gallery searched?"
        )
    right = open_truth(truth, n_queries=n_queries, n_gallery=n_gallery)
    above = np.full(len(right.items), n_gallery, dtype=np.int64)
    pairs, places = np.nonzero(ranking.indices[right.queries] == right.items[:, None])
    above[pairs] = places
    top1 = ranking.indices[:, 0].astype(np.int64)
    return Evaluation(right, above, np.ones_like(above), top1, n_gallery, depth)


def count_strip(
    scores: npt.NDArray[np.float32], truth: Truth, start: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Count items above and tied with each right item; also return each query's top-1 item."""
    stop = start + len(scores)
    first, last = truth.starts[start], truth.starts[stop]
    items, rows = truth.items[first:last], truth.queries[first:last] - start
    offsets = truth.starts[start : stop + 1] - first
    right = scores[rows, items]
    above, tied = np.empty((2, len(items)), dtype=np.int64)

    def count(some: slice) -> None:
        for row in range(some.start, some.stop):
            pairs = slice(offsets[row], offsets[row + 1])
            if pairs.stop - pairs.start <= _FEW:
                for pair in range(pairs.start, pairs.stop):
                    above[pair] = np.count_nonzero(scores[row] > right[pair])
                    tied[pair] = np.count_nonzero(scores[row] == right[pair])
            else:
                ordered = np.sort(scores[row])
                left = np.searchsorted(ordered, right[pairs], side="left")
                beyond = np.searchsorted(ordered, right[pairs], side="right")
                above[pairs], tied[pairs] = len(ordered) - beyond, beyond - left

    in_threads(count, scores)
    return above, tied, scores.argmax(axis=1)


def mean_metrics(evaluation: Evaluation, ks: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """Return the means of the metrics over all queries, by their names in reports."""
    ks = [min(k, evaluation.n_gallery) for k in ks]
    out = {f"recall_at_{k}": evaluation.recall(k) for k in ks}
    if evaluation.depth >= evaluation.n_gallery:
        out["mrr"] = float(evaluation.reciprocal_ranks().mean())
        out["median_rank"] = float(np.median(evaluation.ranks()))
    out[f"ndcg_at_{ks[-1]}"] = float(evaluation.ndcg(ks[-1]).mean())
    return out


# --- checks of the past queries ------------------------------------------------------------------

# Maximum number of past queries to search, and standard errors of a difference beyond noise.
_MOST_PAST, _FAR = 4096, 2.5
# Queries whose right items are compared; with fewer, chance decides.
_MOST_COMPARED, _FEWEST_COMPARED = 512, 16
# If the queries ask for more than this share of the items, past queries do too.
_NEARLY_ALL = 0.9
# With fewer items among the wrong hits, their share of right items is noise.
_FEWEST_WRONG = 10


def warn_of_shuffled_truth(queries: Embeddings, gallery: Embeddings, truth: Truth) -> None:
    """Warn if queries score their right items no higher than the right items of other queries."""
    some = truth.one_per_cluster
    some = some[np.linspace(0, len(some) - 1, min(len(some), _MOST_COMPARED)).astype(np.int64)]
    if len(some) < _FEWEST_COMPARED:
        return
    scores = queries.take(some) @ gallery.take(truth.clusters[some]).T
    own = scores.diagonal()[:, None]
    above = ((scores > own).mean(axis=1) + (scores >= own).mean(axis=1)) / 2
    if above.mean() > 0.5 - 3 * above.std() / math.sqrt(len(some)):
        warn(
            f"{queries.name} score their right items no higher than those of other queries; check "
            "that the truth has the order of the queries and the row numbers of the gallery"
        )


def warn_of_overlap(references: Embeddings, queries: Embeddings, role: str = "queries") -> float:
    """Warn if references equal queries that results are measured on; return the queries' share."""
    known, asked = (
        np.concatenate([hash_rows(block) for _, block in rows.blocks()])
        for rows in (references, queries)
    )
    if n_common := np.isin(known, asked).sum():
        what = "pass others" if n_common == len(known) else "leave them out if you can"
        warn(
            f"{n_common:,} of the {len(references):,} rows of {references.name} are among the "
            f"{role}, which overstates the result; {what}"
        )
    return float(np.isin(asked, known).mean())


def warn_of_mismatched_bank(
    references: Embeddings, queries: Embeddings, gallery: Embeddings, truth: Any = None
) -> None:
    """Warn if references and queries have different scales, or seem to be of different sources."""
    for rows in (references, queries):
        check_same_dim(rows, gallery)
    if problem := describe_scales(references.norm_range, queries):
        warn(problem)
    if truth is not None:
        right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        queries = queries.subset(right.one_per_cluster)
    warn_of_mismatch(references, queries, gallery)


def asks_for_others(bank: Embeddings, items: Embeddings, raw: Evaluation, **options: Any) -> bool:
    """Whether past queries find the right items of the queries less often than expected.

    Queries find the right items of other queries by chance. Past queries of the same kind find them
    at least as often, because some ask for them. Hits of the same item aren't independent.
    """
    right = np.unique(raw.truth.items)
    one_each = raw.truth.one_per_cluster
    wrong = raw.top1[one_each[~raw.truth.holds(raw.top1)[one_each]]]
    if len(right) > _NEARLY_ALL * len(items) or len(np.unique(wrong)) < _FEWEST_WRONG:
        return False
    some = bank.subset(np.linspace(0, len(bank) - 1, min(len(bank), _MOST_PAST)).astype(np.int64))
    past = search(some, items, k=1, **options).indices[:, 0]
    shares = [np.isin(found, right).mean() for found in (past, wrong)]
    variance = 0.0
    for found in (past, wrong):
        named, counts = np.unique(found, return_counts=True)
        errors = np.isin(named, right) - np.mean(shares)
        variance += float(np.square(errors * counts / len(found)).sum())
    return bool(shares[1] - shares[0] > _FAR * math.sqrt(variance))


def warn_of_other_items(
    bank: Embeddings, items: Embeddings, raw: Evaluation, **options: Any
) -> None:
    """Warn if gains on these queries may be inflated; see `asks_for_others`."""
    if asks_for_others(bank, items, raw, **options):
        warn(
            "past queries and queries ask for different items, so gains may be inflated; "
            "`nnnorm check` also measures the gain among the items that the queries ask for"
        )


def open_task(
    gallery: Any, queries: Any, references: Any, second: Any, truth: Any, normalize: bool | None
) -> tuple[Embeddings, Embeddings, Embeddings, Embeddings | None, Truth]:
    """Open all inputs; warn if references are queries or items, or don't match the queries.

    `second` is the array of gallery references, if any.
    """
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    bank = open_references(references, normalize=normalize)
    right = open_truth(truth, n_queries=len(asked), n_gallery=len(items))
    for rows in (asked, bank):
        check_same_dim(rows, items)
    warn_of_shuffled_truth(asked, items, right)
    warn_of_overlap(bank, asked)
    check_inputs(items, bank, allow_gallery_rows=None, compare=False)
    warn_of_mismatched_bank(bank, asked, items, right)
    if second is not None:
        second = open_embeddings(second, name="gallery_references", normalize=normalize)
    return items, asked, bank, second, right
