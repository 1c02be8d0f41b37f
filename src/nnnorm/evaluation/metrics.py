"""Recall and other metrics: per query first, then averages over all queries.

R@K is that of this literature: a query counts if any of its right items is among the first K
(elsewhere: success@K, hit rate), and the denominator is always all queries. Items with equal scores
are counted as if their order were drawn at random: each metric is its expectation, so a search that
scores everything alike gets what chance gives, not what the order of rows gives. A `Ranking` keeps
the order it has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.embeddings import Source, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.evaluation.bootstrap import Interval, interval_of_difference
from nnnorm.evaluation.truth import Truth, clusters_of, open_truth
from nnnorm.files import Progress
from nnnorm.ranking import Ranking, iterate_scores
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, in_threads

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
# Right items per query up to which each is compared with its row; beyond, the row is sorted.
_FEW = 16


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The ranks of the right items, per pair of query and right item, and the metrics."""

    truth: Truth
    above: IntArray
    tied: IntArray
    top1: IntArray
    n_gallery: int
    depth: int

    def __len__(self) -> int:
        return len(self.truth)

    def __repr__(self) -> str:
        return f"Evaluation({len(self):,} queries, R@1 {100 * self.recall(1):.1f} %)"

    @cached_property
    def _first(self) -> tuple[IntArray, IntArray, IntArray]:
        """Per query: items above its best right item, the size of that tie, right items in it."""
        starts = self.truth.starts[:-1]
        above = np.minimum.reduceat(self.above, starts)
        best = self.above == np.repeat(above, self.truth.counts)
        right = np.add.reduceat(best.astype(np.int64), starts)
        tied = np.maximum.reduceat(np.where(best, self.tied, 0), starts)
        return above, tied, right

    def hits(self, k: int) -> FloatArray:
        """Whether any right item is among the first k, per query: 0 or 1, between on a tie."""
        k = self._check_depth(k)
        above, tied, right = self._first
        hits = (above < k).astype(np.float64)
        for q in np.flatnonzero((tied > 1) & (above < k) & (above + tied > k)):
            places, group, good = int(k - above[q]), int(tied[q]), int(right[q])
            hits[q] = 1 - math.comb(group - good, places) / math.comb(group, places)
        return hits

    def recall(self, k: int) -> float:
        """R@K of this literature: the mean of `hits`, over all queries."""
        return float(self.hits(k).mean())

    def fractions(self, k: int) -> FloatArray:
        """Share of a query's right items that are among the first k, per query."""
        k = self._check_depth(k)
        inside = np.clip((k - self.above) / self.tied, 0, 1)
        return self._per_query(inside) / self.truth.counts

    def reciprocal_ranks(self) -> FloatArray:
        """Reciprocal rank of the first right item, per query; the mean is MRR."""
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
        """Rank of the first right item, from 1, per query."""
        self._check_depth(self.n_gallery)
        above, tied, right = self._first
        return np.asarray(above + (tied + 1) / (right + 1))

    def ndcg(self, k: int) -> FloatArray:
        """Normalized discounted cumulative gain of the first k, per query."""
        k = self._check_depth(k)
        discounts = np.concatenate([[0], np.cumsum(1 / np.log2(np.arange(k) + 2))])
        upto = discounts[np.minimum(self.above + self.tied, k)]
        gains = (upto - discounts[np.minimum(self.above, k)]) / self.tied
        return self._per_query(gains) / discounts[np.minimum(self.truth.counts, k)]

    def _per_query(self, pairs: FloatArray) -> FloatArray:
        return np.asarray(np.add.reduceat(pairs, self.truth.starts[:-1]))

    def _check_depth(self, k: int) -> int:
        """Return k, at most n_gallery; raise if the ranking is shorter."""
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise NNNormError(f"k must be a whole number of at least 1; got {k!r}")
        if min(k, self.n_gallery) > self.depth:
            raise NNNormError(
                f"this needs the first {k} places, but the ranking holds {self.depth}; "
                "search with a larger k, or evaluate the embeddings"
            )
        return int(min(k, self.n_gallery))


class Counter:
    """Counts the ranks of right items while the rows of all queries pass by."""

    def __init__(self, truth: Truth, n_gallery: int) -> None:
        self._truth, self._n_gallery = truth, n_gallery
        self._above, self._tied = np.empty((2, len(truth.items)), dtype=np.int64)
        self._top1 = np.empty(len(truth), dtype=np.int64)

    def look(self, start: int, scores: npt.NDArray[np.float32]) -> None:
        """Count in the whole rows of the queries from `start` on."""
        stop = start + len(scores)
        pairs = slice(self._truth.starts[start], self._truth.starts[stop])
        self._above[pairs], self._tied[pairs] = count_above(scores, self._truth, start)
        self._top1[start:stop] = scores.argmax(axis=1)

    def evaluation(self) -> Evaluation:
        """The result, once all rows have passed."""
        sizes = self._n_gallery, self._n_gallery
        return Evaluation(self._truth, self._above, self._tied, self._top1, *sizes)


def evaluate(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    truth: Any,
    weight: float | None = None,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Evaluation:
    """Find the ranks of the right items in a corrected search, streamed.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
        Without one the search is uncorrected.
    truth : array or list
        The right items, see `truth.open_truth`.
    weight : float, optional
        Replaces the weight of the bias.
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
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    right = open_truth(truth, n_queries=len(asked), n_gallery=len(items))
    counter = Counter(right, len(items))
    for start, scores in iterate_scores(
        asked, items, bias, weight=weight, memory_budget=memory_budget, progress=progress
    ):
        counter.look(start, scores)
    return counter.evaluation()


def evaluate_ranking(ranking: Ranking, truth: Any, *, n_gallery: int) -> Evaluation:
    """Evaluate a ready ranking in the order it has, up to its k places."""
    n_queries, depth = ranking.indices.shape
    if (largest := ranking.indices.max()) >= n_gallery:
        raise NNNormError(
            f"the ranking names item {largest}, but the gallery has {n_gallery} items; "
            "was another gallery searched?"
        )
    right = open_truth(truth, n_queries=n_queries, n_gallery=n_gallery)
    above = np.full(len(right.items), n_gallery, dtype=np.int64)
    found = ranking.indices[right.queries] == right.items[:, None]
    pairs, places = np.nonzero(found)
    above[pairs] = places
    top1 = ranking.indices[:, 0].astype(np.int64)
    return Evaluation(right, above, np.ones_like(above), top1, n_gallery, depth)


def measure_gain(
    evaluation: Evaluation,
    raw: Evaluation,
    *,
    clusters: npt.NDArray[Any] | None = None,
    seed: int = 0,
) -> Interval:
    """Compute the paired difference in R@1 between two searches; every command reports this one."""
    groups = clusters_of(raw.truth) if clusters is None else clusters
    return interval_of_difference(evaluation.hits(1), raw.hits(1), groups, seed=seed)


def join_folds(evaluations: Sequence[Evaluation], folds: IntArray) -> Evaluation:
    """Take the queries of each fold from an evaluation of its own."""
    truth = evaluations[0].truth
    of_pair = folds[truth.queries], np.arange(len(truth.items))
    above, tied = (
        np.stack([getattr(one, name) for one in evaluations])[of_pair] for name in ("above", "tied")
    )
    top1 = np.stack([one.top1 for one in evaluations])[folds, np.arange(len(folds))]
    return replace(evaluations[0], above=above, tied=tied, top1=top1)


def count_above(
    scores: npt.NDArray[np.float32], truth: Truth, start: int
) -> tuple[IntArray, IntArray]:
    """Count the items above and level with each right item, for queries from `start` on."""
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
    return above, tied


def mean_metrics(evaluation: Evaluation, ks: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """Average the metrics over all queries, by the names used in every report."""
    if len(ks) == 0:
        raise NNNormError("ks must name at least one k, such as (1, 5, 10); got none")
    ks = [min(k, evaluation.n_gallery) for k in ks]
    out = {f"recall_at_{k}": evaluation.recall(k) for k in ks}
    if evaluation.depth >= evaluation.n_gallery:
        out["mrr"] = float(evaluation.reciprocal_ranks().mean())
        out["median_rank"] = float(np.median(evaluation.ranks()))
    out[f"ndcg_at_{ks[-1]}"] = float(evaluation.ndcg(ks[-1]).mean())
    return out
