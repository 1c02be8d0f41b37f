"""Comparison of a live index with the exact corrected search, and likely causes of a difference.

First the note is compared with the bias that the index should have (bank, k, normalisation,
weight), then stored vectors and values with those of the gallery. The same queries then go to the
index and to the exact search: the ids give recall@k, the scores of the hits give the error, and
together they usually show what else went wrong.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import check_storable, fit_augmentation
from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.index.corrected import CorrectedIndex, IndexRanking, open_index
from nnnorm.index.recipe import make_recipe
from nnnorm.index.store import FloatArray, Ids, Store, Way, name_items
from nnnorm.index.urls import open_store
from nnnorm.index.values import Correction, open_correction, open_items
from nnnorm.ranking import search

_GOOD_RECALL = 0.99
_GOOD_SCORE = 1e-3  # of the spread of the scores
# Distance of a stored vector from the right one, as a share of its norm, that is rounding.
_NEAR, _NEAR_IN_FEW_BITS = 1e-2, 0.3


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
    n_compared : int
        Number of stored vectors that were compared with the gallery; 0 without one, where the index
        was only compared with what it holds itself.
    problems : tuple of str
        Likely causes of a difference, one sentence each; empty where there is none.
    """

    recall: float
    score_error: float
    n_queries: int
    n_items: int
    k: int
    extra_fetches: int
    n_compared: int
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
    bias: Correction | None = None,
    ids: Any = None,
    k: int = 10,
    weight: float | None = None,
    sample: int = 200,
    vectors: int = 20_000,
    seed: int = 0,
    normalize: bool | None = None,
) -> Verification:
    """Compare a live index with the exact corrected search on some queries.

    Parameters
    ----------
    index : CorrectedIndex or str
        An index, or its URL, which is opened and closed again.
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim), optional
        What the index should hold. Without it the index is compared with the items that it holds
        itself, which does not show whether they are right.
    bias : Corrector, path or Bias, optional
        The correction that the index should have: a corrector, or its file, which gives the values
        of any items; or the bias of the gallery, which goes together with it.
    ids : sequence of int or str, optional
        Ids of the rows of the gallery, by default those of its file, or 0…n−1.
    k : int
        Number of hits per query.
    weight : float, optional
        Ask with another weight than that of the bias.
    sample : int
        Number of queries to ask, chosen at random.
    vectors : int
        Largest number of stored vectors to compare with the gallery.
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
                vectors=vectors,
                seed=seed,
                normalize=normalize,
            )
    if not isinstance(index, CorrectedIndex):
        raise NNNormError(
            "index must be a CorrectedIndex, from build_index or open_index, or its URL; got "
            f"{type(index).__name__}. The order is (index, queries)"
        )
    given = None if bias is None else open_correction(bias)
    if gallery is None and isinstance(given, Bias):
        raise NNNormError("a bias goes together with its gallery; give both, or a corrector")
    if gallery is not None and given is None:
        raise NNNormError("gallery and bias go together; give both or neither")
    asked = index.recipe.open_queries(queries, normalize, index.store.name)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(asked), min(sample, len(asked)), replace=False))
    some = asked[rows]
    names, items, expected = _open_expected(index, gallery, given, ids, normalize)
    problems = [] if given is None else _about_origin(index, items, expected, weight)
    n_compared, of_stored = 0, list[str]()
    if given is not None and vectors > 0:
        n_compared, of_stored = _about_stored(index, names, items, expected, vectors)
    used = expected.weight if weight is None else weight
    right = search(some, items, expected, k=min(k, len(items)), weight=used)
    found = index.search(some, k=k, weight=used)
    found_rows = _find_rows(found.ids, names)
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
        n_compared=n_compared if gallery is not None else 0,
        problems=(),
    )
    problems += _about_items(index, found, found_rows, len(names))
    if not problems and result.score_error > _GOOD_SCORE * scale and known.any():
        problems += _name_scores(index, found, known, raw, values, used, scale)
    problems = problems or of_stored
    if not problems and result.score_error > _GOOD_SCORE * scale and known.any():
        problems += _describe_scores(index, found, known, raw - used * values, result, scale)
    if not problems and result.recall < (1.0 if index.store.is_exact else _GOOD_RECALL):
        problems += _about_recall(index, found, result)
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


def _about_origin(
    index: CorrectedIndex, items: Embeddings, bias: Bias, weight: float | None
) -> list[str]:
    """Compare what the note says of the bias with the bias that is expected."""
    recipe, problems = index.recipe, []
    rebuild = "refresh the index (nnnorm index refresh), or build it again"
    if recipe.method != bias.method:
        problems.append(f"the bias of the index is by {recipe.method}, not by {bias.method}")
    elif None not in (recipe.reference_k, bias.reference_k) and (
        recipe.reference_k != bias.reference_k
    ):
        problems.append(
            f"the index averages {recipe.reference_k} references per item, the bias "
            f"{bias.reference_k}: {rebuild}"
        )
    popularity = bias.params.get("popularity_weight") or None
    if (recipe.popularity or None) != popularity:
        problems.append(
            f"the bias of the index has {_name_popularity(recipe.popularity)} added, the one that "
            f"is expected {_name_popularity(popularity)}: give the gallery and "
            "corrector.bias_of(gallery) + popularity, or refresh the index with the clicks (nnnorm "
            "index refresh --clicks)"
        )
    if recipe.unit and not items.normalized and not _has_unit_norms(items):
        problems.append(
            "the items of the index were divided by their norms, those of the gallery were not: "
            "pass normalize=True (--normalize)"
        )
    bank = bias.fingerprints.get("references")
    if None not in (recipe.bank, bank) and recipe.bank != bank and not problems:
        own, new = str(recipe.bank), str(bank)
        is_same = own.partition(":")[0] == new.partition(":")[0]
        problems.append(
            "the references of the index were normalised otherwise than those of the bias: "
            f"{rebuild}"
            if is_same
            else f"the index has the values of another bank of references: {rebuild}"
        )
    corrector = bias.fingerprints.get("corrector")
    if None not in (recipe.corrector, corrector) and recipe.corrector != corrector:
        problems = problems or [f"the index has the values of another corrector: {rebuild}"]
    if weight is None and abs(recipe.weight - bias.weight) > 1e-6 * max(1, abs(bias.weight)):
        problems.append(
            f"the index was built with the weight {recipe.weight:.4g}, but the bias has "
            f"{bias.weight:.4g}: {rebuild}, or pass weight= to each search"
        )
    return problems


def _about_stored(
    index: CorrectedIndex,
    names: Ids,
    items: Embeddings,
    bias: Bias,
    limit: int,
) -> tuple[int, list[str]]:
    """Compare stored vectors and values with those of the gallery, and count what differs."""
    row_of = {name: row for row, name in enumerate(names.tolist())}
    wrong_vectors, wrong_values, out_of_range = list[Any](), list[Any](), 0
    near = _NEAR_IN_FEW_BITS if index.store.is_quantized else _NEAR
    n_compared = 0
    for batch in index.scan():
        kept = np.array([own in row_of for own in batch.ids.tolist()], dtype=bool)
        there = batch.take(kept)
        if len(there):
            rows = np.array([row_of[own] for own in there.ids.tolist()], dtype=np.int64)
            right, values = items.take(rows), bias.values[rows]
            size = np.linalg.norm(right, axis=1).clip(min=1e-12)
            away = np.linalg.norm(there.vectors - right, axis=1) / size
            wrong_vectors += there.ids[away > near].tolist()
            if there.values is not None:
                room = near * max(float(np.ptp(bias.values)), 1e-3)
                wrong_values += there.ids[np.abs(there.values - values) > room].tolist()
                in_range = [index.recipe.has_in_range(value) for value in there.values[:, None]]
                out_of_range += len(there) - sum(in_range)
        n_compared += len(there)
        if n_compared >= limit:
            break
    problems = []
    if 0 < len(wrong_vectors) < n_compared / 2:  # scores say more of a mistake in all of them
        problems.append(
            f"{len(wrong_vectors)} of {n_compared} stored vectors are not those of the gallery "
            f"(such as that of the id {wrong_vectors[0]}): they were lost or changed; upsert these "
            "items again"
        )
    elif wrong_values and not wrong_vectors:
        problems.append(
            f"{len(wrong_values)} of {n_compared} stored bias values are not those of this bias "
            f"(such as that of the id {wrong_values[0]}): they come from another fit; refresh the "
            "index (nnnorm index refresh)"
        )
    if out_of_range and index.recipe.way == "rerank":
        problems.append(
            f"{out_of_range} stored bias values are outside of the range that the index knows, so "
            "that a re-rank is not certain; refresh the index (nnnorm index refresh)"
        )
    return n_compared, problems


def _name_popularity(weight: float | None) -> str:
    return f"a popularity of weight {weight:g}" if weight else "no popularity"


def _has_unit_norms(items: Embeddings) -> bool:
    low, high = items.norm_range
    return max(1 - low, high - 1) <= 5e-3


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


def _name_scores(
    index: CorrectedIndex,
    found: IndexRanking,
    known: npt.NDArray[np.bool_],
    raw: FloatArray,
    values: FloatArray,
    weight: float,
    scale: float,
) -> list[str]:
    """Find the one mistake that explains all returned scores, if there is one."""
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
    guesses = {
        "scores are uncorrected: the coordinate of the bias is missing, or the query has 0 there": (
            raw[known]
        ),
        "scores are distances, 1 − product: subtract them from 1": 1 - right,
        "scores have the wrong sign: the engine returns minus the product": -right,
    }
    close = 0.02 * scale
    return [text for text, guess in guesses.items() if np.abs(got - guess).max() < close][:1]


def _describe_scores(
    index: CorrectedIndex,
    found: IndexRanking,
    known: npt.NDArray[np.bool_],
    expected: FloatArray,
    result: Verification,
    scale: float,
) -> list[str]:
    """Say what is left where scores are wrong for no reason that has a name."""
    got, right, error = found.scores[known], expected[known], result.score_error
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


def _about_recall(index: CorrectedIndex, found: IndexRanking, result: Verification) -> list[str]:
    store, recipe = index.store, index.recipe
    if not found.certain.all():
        return [
            f"the re-rank was cut off for {(~found.certain).sum()} of {result.n_queries} queries "
            f"after {found.n_fetched} hits: increase max_fetch, or use a way with extra coordinates"
        ]
    if problems := store.traps():
        return problems
    if store.is_exact:
        missing = round((1 - result.recall) * result.n_queries * result.k)
        return [
            f"{missing} hits are missing, though {store.engine} compares every item here: some "
            "items are stored without the right vector; compare them with the gallery "
            "(--gallery), and upsert them again"
        ]
    if store.is_graph and not recipe.has_equal_norms:
        return [
            f"the index walks a graph over unequal norms ({recipe.shortest:.3g} to "
            f"{recipe.longest:.3g}): normalise the embeddings where cosine was meant, or "
            "increase ef"
        ]
    if store.is_quantized:
        return ["numbers are stored in few bits: re-score the hits (refine), or use float32"]
    return ["the approximate search is too narrow: increase ef, probes or candidates"]


def _open_expected(
    index: CorrectedIndex,
    gallery: Source | None,
    given: Corrector | Bias | None,
    ids: Any,
    normalize: bool | None,
) -> tuple[Ids, Embeddings, Bias]:
    """Ids, items and bias that the index should have; its own where no gallery is given."""
    if gallery is None:
        names, items, expected = _read_index(index)
        if isinstance(given, Corrector):
            held = Embeddings([items.rows(0, len(items))], name=items.name)
            items, expected = open_items(held, given, name=items.name, normalize=None)
        return names, items, expected
    if normalize is None and index.recipe.unit and isinstance(given, Corrector):
        normalize = True
    items, expected = open_items(
        gallery,
        given,  # type: ignore[arg-type]  # a gallery without a bias was refused
        name="gallery",
        normalize=normalize,
    )
    return name_items(items, ids), items, expected


def _find_rows(found: Ids, names: Ids) -> npt.NDArray[np.int64]:
    """Rows of the gallery that were found, -1 for ids that it does not have."""
    row_of = {name: row for row, name in enumerate(names.tolist())}
    rows = [[row_of.get(name, -1) for name in row] for row in found.tolist()]
    return np.array(rows, dtype=np.int64).reshape(len(found), -1)


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
