"""The corrected search inside an engine: `build_index`, `open_index`, and what they return.

This serves all engines; the file of an engine only stores and finds (`store.py`). The weight is
part of the query, so it can change with each search and never needs a new index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnnorm.augmentation import check_storable
from nnnorm.bias import Bias, check_correction, check_weight
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.index.fill import check_fits, cut, fill_store, make_sample
from nnnorm.index.ranking import IndexRanking, rank, rerank
from nnnorm.index.recipe import MetadataPrint, Recipe, make_recipe
from nnnorm.index.store import (
    BATCH,
    Facts,
    Ids,
    Items,
    Metadata,
    Store,
    Way,
    check_ids,
    check_metadata,
    name_items,
)
from nnnorm.index.urls import open_store
from nnnorm.io import Progress, Source, open_embeddings

_MOST_FETCHED = 10_000


class CorrectedIndex:
    """A collection in some engine that ranks by ``s(q, r) − weight·m(r)``.

    Returned by `build_index` and `open_index`; also a context manager that closes the engine.

    Attributes
    ----------
    store : Store
        The engine's collection.
    recipe : Recipe
        How the correction was built in.
    """

    def __init__(self, store: Store, recipe: Recipe) -> None:
        self.store = store
        self.recipe = recipe

    def __repr__(self) -> str:
        recipe = self.recipe
        return f"CorrectedIndex({self.store.name}: {recipe.method}, way {recipe.way!r})"

    def __enter__(self) -> "CorrectedIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return _facts(self.store).n_items

    @explain_arguments
    def search(
        self,
        queries: Source,
        *,
        k: int = 10,
        weight: float | None = None,
        max_fetch: int = _MOST_FETCHED,
        normalize: bool | None = None,
    ) -> IndexRanking:
        """Find the k best items of every query by the corrected score.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
        k : int
            Number of hits per query; fewer where there are fewer items.
        weight : float, optional
            Replaces the weight of the bias; nothing is re-indexed.
        max_fetch : int
            Largest number of hits that a re-rank fetches per query; `IndexRanking.certain` is False
            where that was too few.
        normalize : bool, optional
            Divide every query by its norm; see `open_embeddings`.

        Returns
        -------
        IndexRanking
        """
        asked = open_embeddings(queries, name="queries", normalize=normalize)
        if asked.dim != self.recipe.dim:
            raise NNNormError(
                f"{asked.name} and the items of {self.store.name} must share dim; got {asked.dim} "
                f"and {self.recipe.dim}. Were they encoded by different models?"
            )
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise NNNormError(f"k must be a whole number from 1; got {k}")
        most = self.store.largest_k
        if most is not None and k > most:
            raise NNNormError(f"{self.store.engine} returns at most {most} hits; got k={k}")
        used = self.recipe.weight if weight is None else check_weight(weight)
        check_correction(used, [self.recipe.lowest, self.recipe.highest])
        rows = asked.rows(0, len(asked))
        if self.recipe.way == "rerank":
            limit = max(int(k), min(max_fetch, most or max_fetch))
            return rerank(self.store, self.recipe, rows, int(k), weight=used, limit=limit)
        if self.recipe.way == "column":
            found = self.store.search_column(rows, int(k), used)
            scores = found.scores
        else:
            vectors = self.recipe.ask(rows, used)
            found = self.store.search(vectors, int(k))
            scores = self.recipe.read_scores(found.scores, vectors, used)
        return rank(found.ids, scores, int(k))

    @explain_arguments
    def add(
        self,
        gallery: Source,
        bias: Bias,
        *,
        ids: Any = None,
        metadata: Sequence[Metadata] | None = None,
        normalize: bool | None = None,
    ) -> None:
        """Add items with a bias that was fitted on them by the same method and references.

        Engines that live in memory need a `save` afterwards.

        Parameters
        ----------
        gallery : array or path, shape (n_new, dim)
        bias : Bias
            Fitted on these items.
        ids : sequence of int or str
            By default those of the file of the gallery. None of them may be in the index yet.
        metadata : sequence of mappings, optional
            One per item.
        normalize : bool, optional
            Divide every row by its norm; see `open_embeddings`.
        """
        check_storable(bias)
        items = open_embeddings(gallery, name="new items", normalize=normalize)
        if items.dim != self.recipe.dim:
            raise NNNormError(
                f"new items and those of {self.store.name} must share dim; got {items.dim} and "
                f"{self.recipe.dim}. Were they encoded by different models?"
            )
        bias.check_gallery(items)
        self.recipe.check_origin(bias, self.store.name)
        if ids is None and items.ids is None:
            raise NNNormError("new items need ids that are not in the index yet; pass ids=")
        named = name_items(items, ids, name="new items")
        self.store.check_new(named)
        there = self.store.present(named)
        if there.any():
            raise NNNormError(
                f"{store_has(self.store, named[there])}; ids must be unique: delete first, or "
                "choose other ids"
            )
        # In an index of a popularity alone, a bias of weight 0 is no popularity.
        is_nothing = bias.weight == 0 and self.recipe.popularity is not None
        values = np.zeros_like(bias.values) if is_nothing else bias.values
        batches = cut(items, values, named, check_metadata(metadata, len(items)))
        packed = [self.recipe.pack(batch) for batch in batches]  # all of them fit, or none is added
        self.recipe = self.recipe.widen(items, values)
        # Before the items: the certainty of a re-rank depends on it.
        self.store.write_note(self.recipe.to_dict())
        for batch in packed:
            self.store.add(batch)

    @explain_arguments
    def delete(self, ids: Any) -> None:
        """Delete items by id; all of them must exist."""
        if not self.store.can_delete:
            raise NNNormError(
                f"{self.store.name} can't delete items; build it again without them, or use "
                "another kind of index"
            )
        array = np.atleast_1d(np.asarray(ids))
        named = check_ids(array, len(array), name="the items to delete")
        there = self.store.present(named)
        if not there.all():
            raise NNNormError(
                f"{self.store.name} has no item with the id {named[~there][0].item()!r}; "
                "nothing was deleted"
            )
        self.store.delete(named)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        """Yield all items as they were given: ids, raw vectors, bias values, metadata."""
        for items in self.store.scan(batch):
            yield self.recipe.unpack(items)

    def save(self) -> None:
        """Make everything durable (engines that live in memory write their file)."""
        self.store.save()

    def close(self) -> None:
        """Close files and connections; nothing is saved by this."""
        self.store.close()


@explain_arguments
def build_index(
    store: "Store | str",
    gallery: Source,
    bias: Bias,
    *,
    ids: Any = None,
    metadata: Sequence[Metadata] | None = None,
    way: Way | None = None,
    scale: float | None = None,
    normalize: bool | None = None,
    progress: Progress | None = None,
) -> CorrectedIndex:
    """Store a gallery and its bias in an engine, so that the engine ranks by the corrected score.

    Parameters
    ----------
    store : Store or str
        A collection of an engine, or its URL (``"faiss:photos.faiss"``). It must not exist yet, or
        be empty with the right width and metric, or be the result of the same build, interrupted.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias
        Fitted on this gallery, without gates.
    ids : sequence of int or str, optional
        One per item, by default those of the file of the gallery, or 0…n−1.
    metadata : sequence of mappings, optional
        One per item, stored with it.
    way : {"ip", "cosine", "l2", "rerank", "column"}, optional
        How the correction is served; by default the best way of the engine.
    scale : float, optional
        Scale of the coordinate of the bias; by default 1, or balanced for a quantised engine.
    normalize : bool, optional
        Divide every row by its norm; see `open_embeddings`.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    CorrectedIndex
        Already saved.

    Examples
    --------
    >>> import numpy as np
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> index = build_index("faiss:", np.array([[1.0, 0.0], [0.6, 0.8]]), bias, ids=[70, 80])
    >>> index.search(np.array([[0.96, 0.28]]), k=1).ids.tolist()
    [[80]]
    """
    opened = open_store(store)
    check_storable(bias)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    named = name_items(items, ids)
    described = check_metadata(metadata, len(items))
    recipe = make_recipe(opened, items, bias, way=way, scale=scale)
    recipe = replace(recipe, metadata=MetadataPrint().take(described or ()).value)

    whole = fill_store(
        opened,
        recipe,
        cut(items, bias.values, named, described),
        ids=named,
        sample=make_sample(recipe, items, bias.values, named),
        progress=progress,
    )
    return CorrectedIndex(opened, whole)


@explain_arguments
def open_index(store: "Store | str") -> CorrectedIndex:
    """Open a collection that `build_index` or `export_index` built.

    Examples
    --------
    >>> open_index("faiss:nowhere.faiss")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no faiss nowhere.faiss; ...
    """
    opened = open_store(store)
    facts = _facts(opened)
    note = opened.read_note()
    if note is None:
        raise NNNormError(
            f"{opened.name} holds no correction (no note of nnnorm); make a corrected copy with "
            "nnnorm index export, or build an index with nnnorm index build"
        )
    recipe = Recipe.from_dict(note, opened.name)
    check_fits(opened, facts, recipe)
    if recipe.state != "whole":
        raise NNNormError(
            f"{opened.name} was not finished ({facts.n_items} items are in it); run the same build "
            "or export again, which continues where it stopped"
        )
    return CorrectedIndex(opened, recipe)


# --- checks ------------------------------------------------------------------------------------


def _facts(store: Store) -> Facts:
    facts = store.facts()
    if facts is None:
        raise NNNormError(
            f"there is no {store.name}; check the name, or build it with nnnorm index build"
        )
    return facts


def store_has(store: Store, ids: Ids) -> str:
    """Return the beginning of a message: which ids exist already.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> store_has(FaissStore("photos.faiss"), np.array([7, 8]))
    'faiss photos.faiss already has the id 7 and 1 other'
    """
    others = len(ids) - 1
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    return f"{store.name} already has the id {ids[0].item()!r}{more}"
