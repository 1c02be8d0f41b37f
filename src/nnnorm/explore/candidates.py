"""The first hits of many queries under any correction, from a few candidates of each query.

Moving a slider needs the same ranking under other corrections. The product of queries and gallery
is computed once per *anchor* (no correction, and a few corrections within the range of the
sliders), and the best items of each query under each anchor are kept with their raw scores. Under
another correction the candidates are ranked again.

Let t_0 and t_a be the scores below which items were not kept, without a correction and under the
anchor a. An item that isn't a candidate of a query scores at most
``(1 − λ)·t_0 + λ·t_a + max_r(λ·c_a(r) − c(r))`` under the correction c, for any λ from 0 to 1. A
query whose k-th candidate is above that has its exact answer; the others are searched again, unless
there are too many of them, in which case their number is reported.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.embeddings import Embeddings, FloatArray, StoredMatrix
from nnnorm.files import Progress
from nnnorm.ranking import Ranking, search
from nnnorm.scoring import Matrix, top_k

IntArray: TypeAlias = npt.NDArray[np.int32]
# Scores that are computed again for queries whose candidates do not suffice: some 0.1 s.
_MOST_AGAIN = 10_000_000
# Room for the rounding of scores.
_SLACK = 2e-6


class Answer(NamedTuple):
    """The first hits of all queries, and how many queries may not be exact."""

    ranking: Ranking
    n_uncertain: int


class Candidates:
    """Candidates of every query, made once."""

    def __init__(
        self,
        queries: Embeddings,
        gallery: Embeddings,
        anchors: Sequence[Bias],
        *,
        depth: int,
        progress: Progress | None = None,
    ) -> None:
        self._queries, self._gallery = queries, gallery
        depth = min(depth, len(gallery))
        self._is_complete = depth == len(gallery)
        # Each anchor's correction, and the scores below which items were not kept.
        self._anchors: list[tuple[FloatArray, FloatArray]] = []
        items, scores = [], []
        for bias in [None] if self._is_complete else [None, *anchors]:
            found = search(queries, gallery, bias, k=depth, progress=progress)
            correction = np.zeros(len(gallery), np.float32) if bias is None else bias.correction
            self._anchors.append((correction, found.scores[:, -1].copy()))
            items.append(found.indices.astype(np.int32))
            scores.append(found.scores + correction[found.indices])
        self._items, self._scores = _merge(np.hstack(items), np.hstack(scores))

    def rank(self, bias: Bias | None, k: int) -> Answer:
        """Return the k first items of every query under a correction."""
        if bias is not None and bias.gates:  # decided by whole rows
            return Answer(search(self._queries, self._gallery, bias, k=k), 0)
        scores = self._scores if bias is None else self._scores - bias.correction[self._items]
        best = top_k(Matrix(StoredMatrix([scores], "scores")), k)
        found = np.take_along_axis(self._items, best.indices, axis=1).astype(np.int64)
        ranking = Ranking(best.scores, found)
        again = np.flatnonzero(~self._is_certain(bias, best.scores[:, -1]))
        if len(again) * len(self._gallery) > _MOST_AGAIN:
            return Answer(ranking, len(again))
        if len(again):
            exact = search(self._queries.subset(again), self._gallery, bias, k=k)
            ranking.scores[again], ranking.indices[again] = exact.scores, exact.indices
        return Answer(ranking, 0)

    def _is_certain(self, bias: Bias | None, last: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether no other item can be above the last place of each query."""
        if self._is_complete or bias is None:
            return np.ones(len(last), dtype=bool)
        raw = self._anchors[0][1]
        bound = np.full(len(last), np.inf, dtype=np.float32)
        for correction, cutoffs in self._anchors:
            share = _share(bias.correction, correction)
            rest = float((np.float32(share) * correction - bias.correction).max())
            np.minimum(bound, (1 - share) * raw + share * cutoffs + rest, out=bound)
        return np.asarray(last >= bound + _SLACK * np.maximum(1, np.abs(bound)))


def _share(correction: FloatArray, anchor: FloatArray) -> float:
    """The part of an anchor that comes nearest to a correction, between 0 and 1."""
    centered = anchor - anchor.mean()
    size = float(centered @ centered)
    if size == 0:
        return 0.0
    return float(np.clip(float(centered @ (correction - correction.mean())) / size, 0, 1))


def _merge(items: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """Sort the candidates of each row by item, and leave out those that are there twice."""
    order = np.argsort(items, axis=1, kind="stable")
    items = np.take_along_axis(items, order, axis=1)
    scores = np.take_along_axis(scores, order, axis=1)
    is_twice = np.zeros(items.shape, dtype=bool)
    is_twice[:, 1:] = items[:, 1:] == items[:, :-1]
    scores[is_twice] = -np.inf
    widest = int((~is_twice).sum(axis=1).max())
    # Those that are left out go to the end; the others stay in the order of their items, which
    # decides between equal scores.
    order = np.argsort(is_twice, axis=1, kind="stable")[:, :widest]
    scores = np.ascontiguousarray(np.take_along_axis(scores, order, axis=1))
    return np.take_along_axis(items, order, axis=1), scores
