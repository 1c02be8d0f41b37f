"""What a search of an index returns, and the re-rank with its rule of certainty.

A search is written as steps: calls of the store that it waits for. They are run one after the
other (`run_steps`), or awaited (`run_steps_async`).
"""

import asyncio
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, warn
from nnnorm.index.recipe import Recipe
from nnnorm.index.store import FloatArray, Hit, Ids, Store, gather_hits
from nnnorm.ranking import Ranking

_T = TypeVar("_T")


class Step(NamedTuple):
    """A call that a search waits for."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


Steps: TypeAlias = Generator[Step, Any, _T]


def run_steps(steps: Steps[_T]) -> _T:
    """Run the steps of a search one after the other.

    Examples
    --------
    >>> def add():
    ...     three = yield Step(int, ("3",))
    ...     return 4 + three
    >>> run_steps(add())
    7
    """
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        answer = step.call(*step.arguments)


async def run_steps_async(steps: Steps[_T], store: Store, client: Any) -> _T:
    """Run the steps of a search without blocking the event loop.

    Searches of the store go through an asynchronous client, and what else there is to ask runs in
    a thread.

    Examples
    --------
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> def add():
    ...     three = yield Step(int, ("3",))
    ...     return 4 + three
    >>> asyncio.run(run_steps_async(add(), FaissStore(), None))
    7
    """
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result
        if step.call == store.search:
            answer = await store.search_async(client, *step.arguments)
        elif step.call == store.search_column:
            answer = await store.search_column_async(client, *step.arguments)
        elif step.call == store.facts:
            answer = None  # the client may see other items than the store's own
        else:
            answer = await asyncio.to_thread(step.call, *step.arguments)


@dataclass(frozen=True, eq=False, repr=False)
class IndexRanking(Ranking):
    """A `Ranking` with the ids that an index has for its items.

    There are fewer columns than k where there are fewer items. Where an approximate engine found
    fewer items for one query than for another, the score is ``-inf`` and the id −1 (or empty).

    Attributes
    ----------
    scores : ndarray, shape (n_queries, k), float32
        Corrected scores.
    ids : ndarray, shape (n_queries, k), int64 or str
        Ids of the items.
    indices : ndarray
        The same as `ids`: an index has no other numbers for its items.
    extra_fetches : int
        Number of further requests because a re-rank was not yet certain.
    n_fetched : int
        Largest number of hits that were fetched for a query.
    certain : ndarray, shape (n_queries,), bool
        False where a re-rank was cut off by `max_fetch` before the top k was certain, or where
        norms that differ slightly from 1 leave it open (engines with cosine or L2), or where the
        stored bias is not within the range that the index knows.
    metadata : list of lists of dict, or None
        Metadata of the hits of each query, where they were asked for.
    """

    ids: Ids = field(default_factory=lambda: np.empty((0, 0), dtype=np.int64))
    extra_fetches: int = 0
    n_fetched: int = 0
    certain: npt.NDArray[np.bool_] = field(default_factory=lambda: np.ones(0, dtype=bool))
    metadata: list[list[dict[str, Any]]] | None = None

    def __repr__(self) -> str:
        n_queries, k = self.scores.shape
        return f"IndexRanking({n_queries:,} queries, k={k}, with ids)"


def rank(ids: Ids, scores: FloatArray, k: int) -> IndexRanking:
    """Sort hits, best first, and drop columns where nothing was found for any query.

    Examples
    --------
    >>> import numpy as np
    >>> rank(np.array([[7, -1]]), np.float32([[0.5, -np.inf]]), 2).ids.tolist()
    [[7]]
    """
    width = min(k, scores.shape[1])
    if (scores[:, 1:] > scores[:, :-1]).any():  # cosine and L2 may tie where products do not
        order = np.argsort(-scores, axis=1, kind="stable")
        scores = np.take_along_axis(scores, order, axis=1)
        ids = np.take_along_axis(ids, order, axis=1)
    if not np.isfinite(scores[:, width - 1 : width]).any():
        width = int(np.isfinite(scores[:, :width]).sum(axis=1).max(initial=0))
    return IndexRanking(
        scores[:, :width],
        ids[:, :width],
        ids[:, :width],
        n_fetched=ids.shape[1],
        certain=np.ones(len(scores), dtype=bool),
    )


def rerank(
    store: Store,
    recipe: Recipe,
    queries: FloatArray,
    k: int,
    *,
    weight: float,
    limit: int,
    filter: Any = None,
    mark: object = None,
) -> Steps[tuple[IndexRanking, object]]:
    """Fetch by raw score, correct, and fetch more until no other item can be among the best.

    The mark of what was searched last comes back too, None where the engine does not return it;
    `mark` is that of the recipe.

    An item that was not fetched has at most the raw score of the last fetched one, and at least
    the smallest correction of any item. Where a fetched item has a bias outside of the range of the
    recipe, another program has changed the bias, and nothing is certain.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> from nnnorm.index.corrected import build_index
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> index = build_index("faiss:", np.eye(2), bias, way="rerank")
    >>> asked = np.float32([[0.8, 0.6]])
    >>> found = run_steps(rerank(index.store, index.recipe, asked, 1, weight=0.75, limit=2))
    >>> found[0].ids.tolist()
    [[1]]
    """
    smallest = min(weight * recipe.lowest, weight * recipe.highest)
    ids: list[Ids] = [np.empty(0)] * len(queries)
    scores: list[FloatArray] = [np.empty(0, dtype=np.float32)] * len(queries)
    # Whether no other item can be among the best, and whether the order of the best is certain.
    complete, settled = np.zeros((2, len(queries)), dtype=bool)
    fetch, rounds, n_fetched = min(max(4 * k, 64), limit), 0, 0
    is_stale = False
    while True:
        rows = np.flatnonzero(~complete)
        found = yield Step(store.search, (queries[rows], fetch, filter))
        values = found.values
        if values is None:
            if found.ids.size:
                raise NNNormError(f"{store.name} returned no bias values to re-rank with")
            values = np.zeros(found.ids.shape, dtype=np.float32)
        is_stale = is_stale or not recipe.has_in_range(values[np.isfinite(found.scores)])
        raw = recipe.read_scores(found.scores, queries[rows], weight)
        corrected = raw - np.float32(weight) * values
        doubt = 2 * recipe.doubt(raw)  # of two items, one may be too low and the other too high
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
        if fetch >= limit:  # these may be all items; only then, because some engines count slowly
            facts = yield Step(store.facts)
            complete |= facts is not None and fetch >= facts.n_items
            break
        fetch = min(2 * fetch, limit)
    hits: list[list[Hit]] = [
        list(zip(own.tolist(), best.tolist(), repeat(None)))
        for own, best in zip(ids, scores, strict=True)
    ]
    gathered = gather_hits(hits)
    searched = found.mark
    if is_stale and searched is None:
        searched = yield Step(store.mark)
    if is_stale and searched == mark:  # else the search is repeated
        warn(
            f"the bias that {store.name} stores is not within the range that was noted when it was "
            "built, so another program changed it, and the re-rank is not certain; open the index "
            "again, and change the bias with index.refresh (nnnorm index refresh)"
        )
    ranking = IndexRanking(
        gathered.scores,
        gathered.ids,
        gathered.ids,
        extra_fetches=rounds - 1,
        n_fetched=n_fetched,
        certain=complete & settled & (not is_stale),
    )
    return ranking, searched


def add_metadata(
    store: Store, ranking: IndexRanking, known: Mapping[Any, dict[str, Any]]
) -> Steps[IndexRanking]:
    """Add the metadata of the hits, asking the store for those that are not known yet.

    Examples
    --------
    >>> import numpy as np
    >>> ranking = rank(np.array([[7]]), np.float32([[0.5]]), 1)
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> run_steps(add_metadata(FaissStore(), ranking, {7: {"year": 1999}})).metadata
    [[{'year': 1999}]]
    """
    is_hit = np.isfinite(ranking.scores)
    found = dict(known)
    wanted = np.array([own for own in np.unique(ranking.ids[is_hit]).tolist() if own not in found])
    if len(wanted):
        entries = yield Step(store.metadata_of, (wanted,))
        found.update(zip(wanted.tolist(), entries, strict=True))
    rows = [
        [found[own] for own in ids[hits].tolist()]
        for ids, hits in zip(ranking.ids, is_hit, strict=True)
    ]
    return replace(ranking, metadata=rows)
