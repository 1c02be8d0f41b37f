"""Writing items to a store, from the start or where an interrupted run stopped.

Builds and exports share this. The note shows which gallery, bias and metadata a collection holds,
so that it is never mixed with others.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError, NNNormWarning, keep_interrupts
from nnnorm.files import Progress
from nnnorm.index.recipe import Recipe
from nnnorm.index.store import BATCH, Facts, FloatArray, Ids, Items, Metadata, Sample, Store

_LARGEST_SAMPLE = 65536
# Entries of metadata that show a store which fields there are.
_MOST_DESCRIBED = 1000


def fill_store(
    store: Store,
    recipe: Recipe,
    batches: Iterable[Items],
    *,
    ids: Ids,
    sample: Sample,
    like: Store | None = None,
    progress: Progress | None = None,
) -> Recipe:
    """Write raw items with their values to a store, or continue an interrupted run.

    `ids` are those of all batches, `like` the collection that they come from, if any. Returns the
    recipe of the finished collection.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias, open_embeddings
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> from nnnorm.index.recipe import make_recipe
    >>> store, bias = FaissStore(), Bias(np.array([0.25, 0.5]), 0.75, "nnn")
    >>> recipe = make_recipe(store, open_embeddings(np.eye(2)), bias)
    >>> items = Items(np.array([3, 4]), np.eye(2, dtype=np.float32), bias.values)
    >>> sample = Sample(2, lambda: recipe.pack(items).vectors)
    >>> fill_store(store, recipe, [items], ids=items.ids, sample=sample).state
    'whole'
    """
    facts = store.facts()
    store.check_new(ids)
    resumed = False
    if facts is None:
        _warn_of_graph(store, recipe)
        strings = ids.dtype.kind == "U"
        if like is None:
            store.create(recipe.width, recipe.metric, strings=strings, sample=sample)
        else:
            store.create_like(like, recipe.width, recipe.metric, strings=strings, sample=sample)
        store.write_note(recipe.to_dict())
    else:
        check_fits(store, facts, recipe)
        begun = _read_begun(store, recipe)
        is_part = begun is not None and begun.state == "part"
        resumed = is_part and _count_present(store, ids) == facts.n_items
        if facts.n_items and not resumed:
            if begun is not None and begun.state == "whole":
                raise NNNormError(
                    f"{store.name} is finished already ({facts.n_items} items); search it, or "
                    "choose another name"
                )
            raise NNNormError(
                f"{store.name} already has {facts.n_items} items, and not from an interrupted run "
                "of the same command; choose another name, or remove it first"
            )
        # Items were packed with the numbers of the first run, whose last bits may differ.
        recipe = recipe if begun is None or not resumed else begun.span(recipe)
        store.write_note(recipe.to_dict())
    done = 0
    try:
        for batch in batches:
            missing = ~store.present(batch.ids) if resumed else np.ones(len(batch), dtype=bool)
            if missing.any():
                with keep_interrupts():
                    store.add(recipe.pack(batch.take(missing)))
            done += len(batch)
            if progress is not None:
                progress(done, sample.n_items)
        if like is not None and type(like) is type(store):
            with keep_interrupts():
                store.copy_rest(like)
    except BaseException:
        # Keeps what was written, also where the engine holds it in memory until it is saved.
        with contextlib.suppress(NNNormError):
            store.save()
        raise
    whole = replace(recipe, state="whole")
    with keep_interrupts():
        store.write_note(whole.to_dict())
        store.save()
    return whole


def cut(
    gallery: Embeddings, values: FloatArray, ids: Ids, metadata: Sequence[Metadata] | None
) -> Iterator[Items]:
    """Cut a gallery into batches of raw items.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> values, ids = np.zeros(2, dtype=np.float32), np.arange(2)
    >>> [len(batch) for batch in cut(open_embeddings(np.eye(2)), values, ids, None)]
    [2]
    """
    for start in range(0, len(gallery), BATCH):
        stop = min(start + BATCH, len(gallery))
        yield Items(
            ids[start:stop],
            gallery.rows(start, stop),
            values[start:stop],
            None if metadata is None else metadata[start:stop],
        )


def make_sample(
    recipe: Recipe,
    gallery: Embeddings,
    values: FloatArray,
    ids: Ids,
    metadata: Sequence[Metadata] | None = None,
) -> Sample:
    """Announce a gallery to a store: its size, and evenly spaced rows as they will be stored.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias, open_embeddings
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> from nnnorm.index.recipe import make_recipe
    >>> gallery, bias = open_embeddings(np.eye(2)), Bias(np.array([0.25, 0.5]), 0.75, "nnn")
    >>> recipe = make_recipe(FaissStore(), gallery, bias)
    >>> make_sample(recipe, gallery, bias.values, np.arange(2)).vectors().shape
    (2, 3)
    """
    n_items = len(gallery)

    def vectors() -> FloatArray:
        rows = np.linspace(0, n_items - 1, min(n_items, _LARGEST_SAMPLE)).astype(np.int64)
        return recipe.pack(Items(ids[rows], gallery.take(rows), values[rows])).vectors

    return Sample(n_items, vectors, sample_metadata(metadata))


def sample_metadata(metadata: Sequence[Metadata] | None) -> list[Metadata]:
    """Return some entries, evenly spaced; none where no item has metadata.

    Examples
    --------
    >>> sample_metadata([{"year": 1999}, {}])
    [{'year': 1999}, {}]
    >>> sample_metadata([{}, {}])
    []
    """
    if not metadata:
        return []
    rows = np.unique(np.linspace(0, len(metadata) - 1, _MOST_DESCRIBED).astype(np.int64))
    some = [metadata[row] for row in rows.tolist()]
    return some if any(some) else []


def is_begun(store: Store, recipe: Recipe, ids: Ids) -> bool:
    """Whether a store holds a part, or all, of exactly these items by exactly this recipe.

    Examples
    --------
    >>> from nnnorm import Bias, open_embeddings
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> from nnnorm.index.recipe import make_recipe
    >>> bias, gallery = Bias(np.zeros(2), 0.75, "nnn"), open_embeddings(np.eye(2))
    >>> is_begun(FaissStore(), make_recipe(FaissStore(), gallery, bias), np.arange(2))
    False
    """
    facts = store.facts()
    if facts is None or (facts.width, facts.metric) != (recipe.width, recipe.metric):
        return False
    note = store.read_note()
    begun = None if note is None else Recipe.from_dict(note, store.name)
    is_same = begun is not None and begun.is_like(replace(recipe, state=begun.state))
    return is_same and _count_present(store, ids) == facts.n_items


def check_fits(store: Store, facts: Facts, recipe: Recipe) -> None:
    """Raise unless a collection has the metric and width that the recipe needs.

    Examples
    --------
    >>> from nnnorm import Bias, open_embeddings
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> from nnnorm.index.recipe import make_recipe
    >>> bias, gallery = Bias(np.zeros(2), 0.75, "nnn"), open_embeddings(np.eye(2))
    >>> check_fits(FaissStore(), Facts(3, "ip", 0), make_recipe(FaissStore(), gallery, bias))
    """
    if facts.metric != recipe.metric:
        raise NNNormError(
            f"{store.name} compares by {facts.metric}, but the way {recipe.way!r} needs "
            f"{recipe.metric}; choose another way or another collection"
        )
    if facts.width != recipe.width:
        raise NNNormError(
            f"{store.name} holds vectors of {facts.width} numbers, but embeddings of dim "
            f"{recipe.dim} need {recipe.width} for the way {recipe.way!r}; choose another "
            "collection, or embeddings of the same model"
        )


def _warn_of_graph(store: Store, recipe: Recipe) -> None:
    """Warn where the search of a graph would miss items because norms are unequal."""
    if store.is_graph and not recipe.has_equal_norms:
        warnings.warn(
            f"{store.name} walks a graph, and the gallery has norms {recipe.shortest:.3g} to "
            f"{recipe.longest:.3g}: it will miss many items; normalise the embeddings where cosine "
            "was meant, or increase ef and check with nnnorm index verify",
            NNNormWarning,
            stacklevel=5,  # the caller of build_index or export_index
        )


def _read_begun(store: Store, recipe: Recipe) -> Recipe | None:
    """Return the recipe of an earlier run of the same command, or None if it was another."""
    note = store.read_note()
    begun = None if note is None else Recipe.from_dict(note, store.name)
    if begun is None or not begun.is_like(
        replace(recipe, metadata=begun.metadata, state=begun.state)
    ):
        return None
    if begun.metadata != recipe.metadata and begun.state == "part":
        raise NNNormError(
            f"{store.name} holds a part of this from an interrupted run, but with other metadata; "
            "remove it, and start again"
        )
    return begun


def _count_present(store: Store, ids: Ids) -> int:
    """Count the ids that exist: all items of the collection, after an interrupted run."""
    starts = range(0, len(ids), BATCH)
    return sum(int(store.present(ids[start : start + BATCH]).sum()) for start in starts)
