"""Comparison of a live index with the exact corrected search, and likely causes of a difference.

The same queries go to the index and to the exact search. The ids give recall@k, the scores of the
hits give the error; together they usually show what went wrong.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import check_storable, fit_augmentation
from nnnorm.bias import Bias
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.index.corrected import CorrectedIndex, IndexRanking, open_index
from nnnorm.index.recipe import make_recipe
from nnnorm.index.store import FloatArray, Ids, Store, Way, name_items
from nnnorm.index.urls import open_store
from nnnorm.io import Embeddings, Source, open_embeddings
from nnnorm.ranking import search

_GOOD_RECALL = 0.99
_GOOD_SCORE = 1e-3  # of the spread of the scores


@dataclass(frozen=True)
class Verification:
    """What `verify_index` found.

    Attributes
    ----------
    recall : float
        Share of the exact top k that the index found.
    score_error : float
        Largest difference between a score of the index and the exact score of the same item.
    n_queries, n_items, k : int
    extra_fetches : int
        Number of further requests of a re-rank.
    problems : tuple of str
        Likely causes of a difference, one sentence each; empty where there is none.
    """

    recall: float
    score_error: float
    n_queries: int
    n_items: int
    k: int
    extra_fetches: int
    problems: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the result, ready for JSON."""
        return {**asdict(self), "problems": list(self.problems), "is_good": self.is_good}


@explain_arguments
def verify_index(
    index: CorrectedIndex | str,
    queries: Source,
    *,
    gallery: Source | None = None,
    bias: Bias | None = None,
    ids: Any = None,
    k: int = 10,
    weight: float | None = None,
    sample: int = 200,
    seed: int = 0,
    normalize: bool | None = None,
) -> Verification:
    """Compare a live index with the exact corrected search on some queries.

    Parameters
    ----------
    index : CorrectedIndex or str
        An index, or its URL, which is opened and closed again.
    queries : array or path, shape (n_queries, dim)
    gallery, bias : array or path, and Bias; optional
        What the index should hold. Without them the index itself is read, which does not show
        the error of numbers that it stores in few bits.
    ids : sequence of int or str, optional
        Ids of the rows of the gallery, by default those of its file, or 0…n−1.
    k : int
        Number of hits per query.
    weight : float, optional
        Replaces the weight of the bias.
    sample : int
        Number of queries to ask, chosen at random.
    seed : int
        Random seed.
    normalize : bool, optional
        Divide every row of the queries and the gallery by its norm; see `open_embeddings`.

    Returns
    -------
    Verification

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.index.corrected import build_index
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> index = build_index("faiss:", np.eye(2), bias)
    >>> verify_index(index, np.array([[0.8, 0.6]]), k=1).recall
    1.0
    """
    if isinstance(index, str):
        with open_index(index) as opened:
            return verify_index(
                opened,
                queries,
                gallery=gallery,
                bias=bias,
                ids=ids,
                k=k,
                weight=weight,
                sample=sample,
                seed=seed,
                normalize=normalize,
            )
    if not isinstance(index, CorrectedIndex):
        raise NNNormError(
            "index must be a CorrectedIndex, from build_index or open_index, or its URL; got "
            f"{type(index).__name__}. The order is (index, queries)"
        )
    if (gallery is None) != (bias is None):
        raise NNNormError("gallery and bias go together; give both or neither")
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(asked), min(sample, len(asked)), replace=False))
    some = asked.take(rows)
    if gallery is None or bias is None:
        names, items, expected = _read_index(index)
    else:
        check_storable(bias)
        items, expected = open_embeddings(gallery, name="gallery", normalize=normalize), bias
        expected.check_gallery(items)
        names = name_items(items, ids)
    used = index.recipe.weight if weight is None else weight
    right = search(some, items, expected, k=min(k, len(items)), weight=used)
    found = index.search(some, k=k, weight=used)
    row_of = {name: row for row, name in enumerate(names.tolist())}
    found_rows = np.array(
        [[row_of.get(name, -1) for name in row] for row in found.ids.tolist()], dtype=np.int64
    ).reshape(len(some), -1)
    known = (found_rows >= 0) & np.isfinite(found.scores)
    raw, values = _score(some, items, expected, found_rows)
    scale = float(np.ptp(right.scores)) or 1.0
    # Of items with the same score (copies), any is as right as the one in the exact ranking.
    is_right = known & (raw - used * values >= right.scores[:, -1:] - 1e-6 * scale)
    difference = np.where(known, np.abs(found.scores - (raw - used * values)), 0.0)
    result = Verification(
        recall=float(is_right.sum() / right.indices.size),
        score_error=float(difference.max(initial=0.0)),
        n_queries=len(some),
        n_items=len(names),
        k=k,
        extra_fetches=found.extra_fetches,
        problems=(),
    )
    problems = [
        *_about_items(index, found, found_rows, len(names)),
        *_about_scores(index, found, known, raw, values, used, result.score_error, scale),
    ]
    if result.recall < _GOOD_RECALL:
        problems += _about_recall(index, found, result, bool(problems))
    return replace(result, problems=tuple(problems))


@explain_arguments
def adopt_index(
    store: "Store | str",
    gallery: Source,
    bias: Bias,
    *,
    way: Way | None = None,
    normalize: bool | None = None,
) -> CorrectedIndex:
    """Open a collection that was filled with the rows of `augment_gallery`; nothing is written.

    Parameters
    ----------
    store : Store or str
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias
    way : {"ip", "cosine", "l2"}, optional
        The `target` of `augment_gallery`; by default the best way of the engine.
    normalize : bool, optional
        Divide every row by its norm; see `open_embeddings`.

    Returns
    -------
    CorrectedIndex

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import augment_gallery
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> from nnnorm.index.store import Items, Sample
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> store, rows = FaissStore(), augment_gallery(np.eye(2), bias)
    >>> store.create(3, "ip", strings=False, sample=Sample(2, lambda: rows))
    >>> store.add(Items(np.arange(2), rows))
    >>> adopt_index(store, np.eye(2), bias).search(np.array([[0.8, 0.6]]), k=1).ids.tolist()
    [[1]]
    """
    opened = open_store(store)
    check_storable(bias)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    recipe = make_recipe(opened, items, bias, way=way)
    if recipe.augmentation is None:
        raise NNNormError(f"a collection without a note can't be of the way {recipe.way!r}")
    facts = opened.facts()
    if facts is None:
        raise NNNormError(f"there is no {opened.name}; check the name")
    if facts.width != recipe.width:
        raise NNNormError(
            f"{opened.name} holds vectors of {facts.width} numbers, but items of dim {items.dim} "
            f"with their correction have {recipe.width} for the way {recipe.way!r}"
        )
    used = fit_augmentation(items, bias, target=recipe.augmentation.target)
    plain = replace(recipe, shift=used.shift, scale=used.scale, radius=used.radius)
    return CorrectedIndex(opened, plain)


# --- what may be wrong ----------------------------------------------------------------------------


def _about_items(
    index: CorrectedIndex, found: IndexRanking, rows: npt.NDArray[np.int64], n_items: int
) -> list[str]:
    problems = []
    strangers = (rows < 0) & np.isfinite(found.scores)
    if strangers.any():
        name = found.ids[strangers][0]
        problems.append(
            f"{strangers.sum()} of the hits are no items of the gallery (such as the id {name}): "
            "the index holds other items, or ids in another order; give --ids or build it again"
        )
    there = len(index)
    if there != n_items:
        problems.append(
            f"the index holds {there} items, the gallery {n_items}: add or delete the difference"
        )
    return problems


def _about_scores(
    index: CorrectedIndex,
    found: IndexRanking,
    known: npt.NDArray[np.bool_],
    raw: FloatArray,
    values: FloatArray,
    weight: float,
    error: float,
    scale: float,
) -> list[str]:
    """Find the mistake that explains the returned scores."""
    if error <= _GOOD_SCORE * scale or not known.any():
        return []
    problems = index.store.traps()
    if problems:
        return problems
    recipe = index.recipe
    if recipe.way == "rerank" and recipe.doubt(raw).any():
        return [
            f"the re-rank assumes unit norm, and norms are {recipe.shortest:.4g} to "
            f"{recipe.longest:.4g}: normalise the embeddings (bias and queries too)"
        ]
    got, right = found.scores[known], (raw - weight * values)[known]
    close = 0.02 * scale
    guesses = {
        "scores are uncorrected: the coordinate of the bias is missing, or the query has 0 there": (
            raw[known]
        ),
        "scores are distances, 1 − product: subtract them from 1": 1 - right,
        "scores have the wrong sign: the engine returns minus the product": -right,
    }
    for sentence, guess in guesses.items():
        if np.abs(got - guess).max() < close:
            return [sentence]
    slope = np.corrcoef(got, right)[0, 1] if len(got) > 2 and np.ptp(right) > 0 else 0.0
    if error > 0.1 * scale and slope < 0.999 and not index.store.is_quantized:
        return [
            "scores are not those of this gallery and bias: the collection normalises its vectors "
            "(a cosine collection filled for inner products), or holds another gallery"
        ]
    return [
        f"scores are wrong by up to {error:.2g}: numbers are stored in few bits; store float32, or "
        "re-score the hits (refine)"
    ]


def _about_recall(
    index: CorrectedIndex, found: IndexRanking, result: Verification, explained: bool
) -> list[str]:
    store, recipe = index.store, index.recipe
    if explained:
        return []
    if not found.certain.all():
        return [
            f"the re-rank was cut off for {(~found.certain).sum()} of {result.n_queries} queries "
            f"after {found.n_fetched} hits: increase max_fetch, or use a way with extra coordinates"
        ]
    if problems := store.traps():
        return problems
    if store.is_graph and not recipe.has_equal_norms:
        return [
            f"the index walks a graph over unequal norms ({recipe.shortest:.3g} to "
            f"{recipe.longest:.3g}): normalise the embeddings where cosine was meant, or "
            "increase ef"
        ]
    if store.is_quantized:
        return ["numbers are stored in few bits: re-score the hits (refine), or use float32"]
    return ["the approximate search is too narrow: increase ef, probes or candidates"]


def _read_index(index: CorrectedIndex) -> tuple[Ids, Embeddings, Bias]:
    batches = list(index.scan())
    if not batches:
        raise NNNormError(f"{index.store.name} is empty; there is nothing to verify")
    values = [batch.values for batch in batches if batch.values is not None]
    items = Embeddings([batch.vectors for batch in batches], name=index.store.name)
    recipe = index.recipe
    bias = Bias(np.concatenate(values), recipe.weight, recipe.method, dim=recipe.dim)
    return np.concatenate([batch.ids for batch in batches]), items, bias


def _score(
    queries: FloatArray, items: Embeddings, bias: Bias, rows: npt.NDArray[np.int64]
) -> tuple[FloatArray, FloatArray]:
    """Compute raw scores and bias values of hits; any number where the row is −1."""
    kept = np.unique(rows)
    kept = kept[kept >= 0]
    if len(kept) == 0:
        return np.zeros(rows.shape, np.float32), np.zeros(rows.shape, np.float32)
    vectors = items.take(kept)
    places = np.searchsorted(kept, rows.clip(min=int(kept[0]))).clip(max=len(kept) - 1)
    raw = np.einsum("qd,qkd->qk", queries, vectors[places])
    return raw, bias.values[kept[places]]
