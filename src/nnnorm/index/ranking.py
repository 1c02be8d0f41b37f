"""What a search of an index returns, and the re-rank with its rule of certainty."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.index.recipe import Recipe
from nnnorm.index.store import Ids, Store
from nnnorm.ranking import Ranking

__all__ = ["IndexRanking", "rank", "rerank"]

FloatArray: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class IndexRanking(Ranking):
    """A `Ranking` whose `indices` are the caller's own ids, whole numbers or strings.

    It has fewer columns than k where there are fewer items. A place that an approximate engine
    left empty for one query has the score ``-inf`` and the id −1 (or an empty string).

    Attributes
    ----------
    extra_fetches : int
        How often the engine was asked again because a re-rank was not yet certain.
    n_fetched : int
        The most hits that were fetched for a query.
    certain : ndarray, shape (n_queries,), bool
        False where a re-rank was cut off by `max_fetch` before the top k was certain, or where
        norms that are not quite 1, in an engine of cosine or L2, leave it open.
    """

    extra_fetches: int = 0
    n_fetched: int = 0
    certain: npt.NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, dtype=bool))


def rank(ids: Ids, scores: FloatArray, k: int) -> IndexRanking:
    """Best first, without columns where nothing was found for any query.

    Examples
    --------
    >>> import numpy as np
    >>> rank(np.array([[7, -1]]), np.float32([[0.5, -np.inf]]), 2).indices.tolist()
    [[7]]
    """
    width = min(k, scores.shape[1])
    if (scores[:, 1:] > scores[:, :-1]).any():  # cosine and L2 may tie where the product does not
        order = np.argsort(-scores, axis=1, kind="stable")
        scores = np.take_along_axis(scores, order, axis=1)
        ids = np.take_along_axis(ids, order, axis=1)
    if not np.isfinite(scores[:, width - 1 : width]).any():
        width = int(np.isfinite(scores[:, :width]).sum(axis=1).max(initial=0))
    return IndexRanking(
        scores[:, :width],
        ids[:, :width],
        n_fetched=ids.shape[1],
        certain=np.ones(len(scores), dtype=bool),
    )


def rerank(
    store: Store, recipe: Recipe, queries: FloatArray, k: int, *, weight: float, limit: int
) -> IndexRanking:
    """Fetch by raw score, correct, and fetch more until no item outside can get in.

    An item outside the fetched ones has at most the raw score of the last of them, and at
    least the smallest correction that any item has. Once all items are fetched, none is outside.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> from nnnorm.index.corrected import build_index
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> index = build_index("faiss:", np.eye(2), bias, way="rerank")
    >>> asked = np.float32([[0.8, 0.6]])
    >>> rerank(index.store, index.recipe, asked, 1, weight=0.75, limit=2).indices.tolist()
    [[1]]
    """
    smallest = min(weight * recipe.lowest, weight * recipe.highest)
    ids: list[Ids] = [np.empty(0)] * len(queries)
    scores: list[FloatArray] = [np.empty(0, dtype=np.float32)] * len(queries)
    # Whether no item outside can get in, and whether those inside are told apart.
    complete, settled = np.zeros((2, len(queries)), dtype=bool)
    fetch, rounds, n_fetched = min(max(4 * k, 64), limit), 0, 0
    n_items: int | None = None
    while True:
        rows = np.flatnonzero(~complete)
        found = store.search(queries[rows], fetch)
        values = found.values
        if values is None:
            if found.ids.size:
                raise NNNormError(f"{store.name} gave back no bias values to re-rank with")
            values = np.zeros(found.ids.shape, dtype=np.float32)
        raw = recipe.read_scores(found.scores, queries[rows], weight)
        corrected = raw - np.float32(weight) * values
        doubt = 2 * recipe.doubt(raw)  # one item may be underrated, the other overrated
        for place, row in enumerate(rows):
            is_hit = np.isfinite(raw[place])
            order = np.argsort(-corrected[place][is_hit], kind="stable")
            best = corrected[place][is_hit][order]
            ids[row], scores[row] = found.ids[place][is_hit][order[:k]], best[:k]
            outside = raw[place, -1:] - smallest + doubt[place]
            complete[row] = len(best) < fetch or best[:k][-1] >= outside[0]
            settled[row] = (
                not doubt[place] or len(best) <= k or best[k - 1] - best[k] >= doubt[place]
            )
        rounds, n_fetched = rounds + 1, max(n_fetched, found.ids.shape[1])
        if complete.all():
            break
        if n_items is None:  # only where it matters: some engines count slowly
            facts = store.facts()
            n_items = 0 if facts is None else facts.n_items
        complete |= fetch >= n_items
        if complete.all() or fetch >= limit:
            break
        fetch = min(2 * fetch, limit, n_items)
    width = max(len(row) for row in ids)
    kind = np.int64 if all(row.dtype.kind in "if" for row in ids) else str
    nothing: Any = -1 if kind is np.int64 else ""
    table = [[*row.tolist(), *[nothing] * (width - len(row))] for row in ids]
    padded = [[*row.tolist(), *[-np.inf] * (width - len(row))] for row in scores]
    return IndexRanking(
        np.array(padded, dtype=np.float32).reshape(len(queries), width),
        np.array(table, dtype=kind).reshape(len(queries), width),
        extra_fetches=rounds - 1,
        n_fetched=n_fetched,
        certain=complete & settled,
    )
