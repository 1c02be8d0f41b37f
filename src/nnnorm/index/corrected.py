"""The corrected search inside an engine: `build_index`, `open_index`, and what they return.

This serves all engines; the file of an engine only stores and finds (`store.py`). The weight is
part of the query, so it can change with each search and never needs a new index.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nnnorm.bias import check_correction, check_weight
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Source
from nnnorm.errors import NNNormError, explain_arguments, keep_interrupts, warn
from nnnorm.files import Progress
from nnnorm.index.clicks import open_clicks
from nnnorm.index.fill import check_fits, cut, fill_store, make_sample
from nnnorm.index.generations import refresh, rollback
from nnnorm.index.ranking import (
    IndexRanking,
    Step,
    Steps,
    add_metadata,
    rank,
    rerank,
    run_steps,
    run_steps_async,
)
from nnnorm.index.recipe import MetadataPrint, Recipe, make_recipe
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Ids,
    Items,
    Metadata,
    Store,
    Way,
    check_async_client,
    check_ids,
    check_metadata,
    join_items,
    name_items,
    scan_generation,
)
from nnnorm.index.urls import open_store
from nnnorm.index.values import Correction, open_correction, open_corrector, open_items
from nnnorm.popularity import Popularity

_MOST_FETCHED = 10_000
# Searches until one falls between two changes of the generation, which are rare.
_ATTEMPTS = 100


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

    def __init__(self, store: Store, recipe: Recipe, mark: object = None) -> None:
        self.store = store
        store.returns_values = recipe.way == "rerank"
        self._served = _Served(recipe, store.mark() if mark is None else mark)

    @property
    def recipe(self) -> Recipe:
        """How the correction was built in."""
        return self._served.recipe

    @property
    def _mark(self) -> object:
        return self._served.mark

    def __repr__(self) -> str:
        recipe = self.recipe
        return f"CorrectedIndex({self.store.name}: {recipe.method}, way {recipe.way!r})"

    def __enter__(self) -> "CorrectedIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return _facts(self.store).n_items

    # --- searching -------------------------------------------------------------------------------

    @explain_arguments
    def search(
        self,
        queries: Source,
        *,
        k: int = 10,
        weight: float | None = None,
        filter: Any = None,
        with_metadata: bool = False,
        max_fetch: int = _MOST_FETCHED,
        normalize: bool | None = None,
    ) -> IndexRanking:
        """Find the k best items of every query by the corrected score.

        An answer comes from one generation of the collection, also while another process refreshes
        it: from the former one or from the new one.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
        k : int
            Number of hits per query; fewer where there are fewer items.
        weight : float, optional
            Replaces the weight of the bias; nothing is re-indexed. 0 switches the correction off.
        filter : optional
            Which items may come back, in the engine's own language; see the engine's page.
        with_metadata : bool
            Whether to return the metadata of the hits too.
        max_fetch : int
            Largest number of hits that a re-rank fetches per query; `IndexRanking.certain` is False
            where that was too few.
        normalize : bool, optional
            Divide every query by its norm; by default where the items were divided by theirs.

        Returns
        -------
        IndexRanking
        """
        rows = self._open_queries(queries, normalize)
        return run_steps(self._steps(rows, k, weight, filter, with_metadata, max_fetch))

    @explain_arguments
    async def search_async(
        self,
        queries: Source,
        *,
        k: int = 10,
        weight: float | None = None,
        filter: Any = None,
        with_metadata: bool = False,
        max_fetch: int = _MOST_FETCHED,
        normalize: bool | None = None,
        client: Any = None,
    ) -> IndexRanking:
        """Search as `search` does, without blocking the event loop.

        Parameters
        ----------
        queries, k, weight, filter, with_metadata, max_fetch, normalize :
            As in `search`.
        client : optional
            An asynchronous client of the engine, connected to the same collection, which is
            awaited: psycopg's or LanceDB's ``AsyncConnection``, ``AsyncQdrantClient``,
            ``AsyncMilvusClient``, or what Chroma's ``AsyncHttpClient`` returns. By default, and for
            other engines, the search runs in a thread.

        Returns
        -------
        IndexRanking

        Examples
        --------
        >>> import asyncio
        >>> import numpy as np
        >>> from nnnorm import Bias
        >>> bias = Bias(np.array([0.75, 0.25]), weight=0.5, method="nnn")
        >>> index = build_index("faiss:", np.eye(2), bias)
        >>> asyncio.run(index.search_async(np.float32([[0.8, 0.6]]), k=1)).ids.tolist()
        [[1]]
        """
        if client is None:
            return await asyncio.to_thread(
                self.search,
                queries,
                k=k,
                weight=weight,
                filter=filter,
                with_metadata=with_metadata,
                max_fetch=max_fetch,
                normalize=normalize,
            )
        check_async_client(self.store, client)
        rows = await asyncio.to_thread(self._open_queries, queries, normalize)
        steps = self._steps(rows, k, weight, filter, with_metadata, max_fetch)
        return await run_steps_async(steps, self.store, client)

    def _steps(
        self,
        rows: FloatArray,
        k: int,
        weight: float | None,
        filter: Any,
        with_metadata: bool,
        max_fetch: int,
    ) -> Steps[IndexRanking]:
        """Search until an answer comes from one generation."""
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise NNNormError(f"k must be a whole number from 1; got {k}")
        most = self.store.largest_k
        if most is not None and k > most:
            raise NNNormError(f"{self.store.engine} returns at most {most} hits; got k={k}")
        if filter is not None and not self.store.filters:
            raise NNNormError(
                f"{self.store.engine} has no filters; leave out the filter, or use another engine"
            )
        given = None if weight is None else check_weight(weight)
        former, noted = None, None
        for _ in range(_ATTEMPTS):
            # Once per search: another thread or task may read the next note meanwhile.
            served = self._served
            expected = served.mark
            ranking, mark = yield from self._search(
                served, rows, int(k), given, filter, max_fetch, with_metadata
            )
            marks = [] if mark is None else [mark]
            # Metadata are read after the hits, and by the store's own client.
            if expected is not None and (mark is None or with_metadata):
                marks.append((yield Step(self.store.mark)))
            if all(one == expected for one in marks):
                return ranking
            # The note was read after the former search: a client that lives would see as much.
            if mark is not None and mark == former and mark != noted:
                raise NNNormError(
                    f"the given client sees another generation of {self.store.name} than the index "
                    "does, as in a transaction that began before the last refresh; end that "
                    "transaction and search again, or leave out client="
                )
            former = mark
            noted = yield Step(self._read_note)  # the next generation is served since
        raise NNNormError(
            f"{self.store.name} changed during each of {_ATTEMPTS} searches; search it again when "
            "fewer programs write to it"
        )

    def _search(
        self,
        served: "_Served",
        rows: FloatArray,
        k: int,
        weight: float | None,
        filter: Any,
        max_fetch: int,
        with_metadata: bool,
    ) -> Steps[tuple[IndexRanking, object]]:
        """Search once, and return the mark of the hits too; None where it is not known."""
        store, recipe = self.store, served.recipe
        used = recipe.weight if weight is None else weight
        check_correction(used, [recipe.lowest, recipe.highest])
        known: dict[Any, dict[str, Any]] = {}
        if recipe.way == "rerank":
            limit = max(k, min(max_fetch, store.largest_k or max_fetch))
            asked = {"weight": used, "limit": limit, "filter": filter, "mark": served.mark}
            ranking, mark = yield from rerank(store, recipe, rows, k, **asked)
        else:
            if recipe.way == "column":
                found = yield Step(store.search_column, (rows, k, used, filter))
                scores = found.scores
            else:
                vectors = recipe.ask(rows, used)
                found = yield Step(store.search, (vectors, k, filter))
                scores = recipe.read_scores(found.scores, vectors, used)
            ranking, mark = rank(found.ids, scores, k), found.mark
            if with_metadata and found.metadata is not None:
                known = {
                    own: entry
                    for ids, entries in zip(found.ids.tolist(), found.metadata, strict=True)
                    for own, entry in zip(ids, entries, strict=False)
                }
        if with_metadata:
            ranking = yield from add_metadata(store, ranking, known)
        return ranking, mark

    @explain_arguments
    def ask(
        self, queries: Source, *, weight: float | None = None, normalize: bool | None = None
    ) -> FloatArray:
        """Return the vectors to send with the engine's own client, so that it ranks as `search`.

        Its scores are then those of the engine. In the ways "rerank" and "column" the vectors are
        the queries themselves, and the weight belongs into the formula.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
        weight : float, optional
            Replaces the weight of the bias.
        normalize : bool, optional
            As in `search`.

        Returns
        -------
        ndarray, shape (n_queries, width), float32

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bias
        >>> bias = Bias(np.array([0.75, 0.25]), weight=0.5, method="nnn")
        >>> build_index("faiss:", np.eye(2), bias).ask(np.eye(2)).tolist()
        [[1.0, 0.0, -0.5], [0.0, 1.0, -0.5]]
        """
        self._catch_up()
        rows = self._open_queries(queries, normalize)
        used = self.recipe.weight if weight is None else check_weight(weight)
        return self.recipe.ask(rows, used)

    def _open_queries(self, queries: Source, normalize: bool | None) -> FloatArray:
        few = self.recipe.open_few(queries, normalize)
        if few is not None:
            return few
        return self.recipe.open_queries(queries, normalize, self.store.name)

    # --- writing ---------------------------------------------------------------------------------

    @explain_arguments
    def add(
        self,
        gallery: Source,
        bias: Correction,
        *,
        ids: Any = None,
        metadata: Sequence[Metadata] | None = None,
        normalize: bool | None = None,
    ) -> None:
        """Add items. Engines that live in memory need a `save` afterwards.

        An interrupted `add` is continued by the same call.

        Parameters
        ----------
        gallery : array or path, shape (n_new, dim)
        bias : Corrector, path or Bias
            The corrector of this index, or its file, which gives the new items their bias; or a
            bias that was fitted on them by the same method, settings and references.
        ids : sequence of int or str
            By default those of the file of the gallery. None of them may be in the index yet.
        metadata : sequence of mappings, optional
            One per item.
        normalize : bool, optional
            Divide every row by its norm; see `open_embeddings`.
        """
        new = self._open_new(gallery, bias, ids, metadata, normalize)
        there = self.store.present(new.ids)
        is_continued = self.recipe.added == new.fingerprint
        if there.any() and not is_continued:
            raise NNNormError(
                f"{store_has(self.store, new.ids[there])}; ids must be unique: use upsert to "
                "replace items, or choose other ids"
            )
        self._note(new, added=new.fingerprint, clicks=None)
        for batch in new.batches:
            missing = ~self.store.present(batch.ids) if is_continued else np.ones(len(batch), bool)
            if missing.any():
                with self._writing(new):
                    self.store.add(batch.take(missing))

    @explain_arguments
    def upsert(
        self,
        gallery: Source,
        bias: Correction,
        *,
        ids: Any = None,
        metadata: Sequence[Metadata] | None = None,
        normalize: bool | None = None,
    ) -> None:
        """Add items, and replace those whose ids are in the index already.

        Engines that live in memory need a `save` afterwards.

        Parameters
        ----------
        gallery, bias, ids, metadata, normalize :
            As for `add`; an item that is replaced loses its metadata where none are given.
        """
        new = self._open_new(gallery, bias, ids, metadata, normalize)
        if not self.store.can_delete and self.store.present(new.ids).any():
            raise NNNormError(
                f"{self.store.name} can't replace items, because it can't delete; build it again, "
                "or use another kind of index"
            )
        self._note(new, added=None, clicks=None)
        for batch in new.batches:
            with self._writing(new):
                self.store.upsert(batch)

    @explain_arguments
    def delete(self, ids: Any) -> None:
        """Delete items by id; all of them must exist. See `add` for engines that live in memory."""
        if not self.store.can_delete:
            raise NNNormError(
                f"{self.store.name} can't delete items; build it again without them, or use "
                "another kind of index"
            )
        # An object array, as `check_ids` has it, so that lists inside of the list are named.
        array = np.atleast_1d(ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object))
        named = check_ids(array, len(array), name="the items to delete")
        there = self.store.present(named)
        if not there.all():
            raise NNNormError(
                f"{self.store.name} has no item with the id {named[~there][0].item()!r}; "
                "nothing was deleted"
            )
        self.store.delete(named)

    @explain_arguments
    def pack(
        self,
        gallery: Source,
        bias: Correction,
        *,
        ids: Any = None,
        metadata: Sequence[Metadata] | None = None,
        normalize: bool | None = None,
    ) -> Items:
        """Return items exactly as this index stores them, to write with the engine's own client.

        Parameters
        ----------
        gallery, bias, ids, metadata, normalize :
            As for `add`; ids are 0…n−1 where there are none.

        Returns
        -------
        Items
            With `vectors` of the width of the collection, and `values` where the bias is stored
            beside them.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bias
        >>> bias = Bias(np.array([0.75, 0.25]), weight=0.5, method="nnn")
        >>> index = build_index("faiss:", np.eye(2), bias)
        >>> index.pack(np.eye(2), bias, ids=[7, 8]).vectors.tolist()
        [[1.0, 0.0, 0.25], [0.0, 1.0, -0.25]]
        """
        new = self._open_new(gallery, bias, ids, metadata, normalize, needs_ids=False)
        # The range decides whether a re-rank is certain, and a refresh with the same clicks as
        # before has something to do again once these items are written.
        is_noted = new.recipe.way == "rerank" or new.recipe.clicks is not None
        if is_noted and replace(new.recipe, clicks=None) != self.recipe:
            self._note(new, clicks=None)
        return join_items(new.batches)

    def _open_new(
        self,
        gallery: Source,
        bias: Correction,
        ids: Any,
        metadata: Sequence[Metadata] | None,
        normalize: bool | None,
        needs_ids: bool = True,
    ) -> "_New":
        """Open new items, give them their bias, and pack all of them, before any is written."""
        self._catch_up()
        known = self.recipe
        given = open_correction(bias)
        items, own = open_items(gallery, given, name="new items", normalize=normalize)
        if items.dim != known.dim:
            raise NNNormError(
                f"new items and those of {self.store.name} must share dim; got {items.dim} and "
                f"{known.dim}. Were they encoded by different models?"
            )
        known.check_origin(own, self.store.name)
        known.check_unit(items, self.store.name)
        if known.popularity is not None and "popularity_weight" not in own.params:
            warn(
                f"the bias of {self.store.name} has a popularity of weight {known.popularity:g} "
                f"added, and the new items ({len(items):,}) have no clicks: they count 0, also "
                "where they replace others, until the next refresh with popularity= (--clicks); "
                "or pass corrector.bias_of(items) + Popularity(clicks, weight="
                f"{known.popularity:g}) as their bias"
            )
        if ids is None and items.ids is None and needs_ids:
            raise NNNormError("new items need ids that are not in the index yet; pass ids=")
        named = name_items(items, ids, name="new items")
        if needs_ids:
            self.store.check_new(named)
        described = check_metadata(metadata, len(items))
        # In an index of a popularity alone, a bias of weight 0 is no popularity.
        is_nothing = own.weight == 0 and known.popularity is not None
        values = np.zeros_like(own.values) if is_nothing else own.values
        recipe = known.widen(items, values)
        batches = [recipe.pack(batch) for batch in cut(items, values, named, described)]
        about = [items.fingerprint, named.tolist(), MetadataPrint().take(described or ()).value]
        fingerprint = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        return _New(named, batches, recipe, fingerprint)

    def _catch_up(self) -> None:
        """Read the note again where another connection has changed it or the generation."""
        if self.store.mark() != self._mark:
            self._read_note()

    @contextmanager
    def _writing(self, new: "_New") -> Iterator[None]:
        """Write new items or their note, unless they were packed for another generation."""
        with keep_interrupts(), self.store.transaction():
            self._catch_up()
            if not self.recipe.packs_like(new.recipe):
                raise NNNormError(
                    f"{self.store.name} was changed by another program, such as by a refresh, "
                    "while these items were prepared for it; repeat the add, or use upsert where "
                    "a part of them is in the index already"
                )
            yield

    def _note(self, new: "_New", **changes: Any) -> None:
        """Write the note, before any items: the certainty of a re-rank depends on it."""
        with self._writing(new):
            recipe = replace(self.recipe.span(new.recipe), **changes)
            if recipe == self.recipe:
                return
            self.store.write_note(recipe.to_dict())
            served = _Served(recipe, self.store.mark())
        self._served = served
        if self.store.read_note() != recipe.to_dict():  # the mark may be that of a later note
            self._read_note()

    # --- generations -----------------------------------------------------------------------------

    @explain_arguments
    def refresh(
        self,
        corrector: "Corrector | str | os.PathLike[str]",
        *,
        popularity: Popularity | None = None,
        gallery: Source | None = None,
        ids: Any = None,
        progress: Progress | None = None,
    ) -> None:
        """Give all items the bias of another corrector, or new clicks, at once for all readers.

        The new generation is written beside the one that is served, which stays as it is until both
        are exchanged in one step; it is then kept for `rollback`. An interrupted refresh is
        continued by the same call. Nothing else may write to the collection meanwhile.

        Parameters
        ----------
        corrector : Corrector or path
            The new corrector, or its file; with a popularity it may be the one of this index.
        popularity : Popularity, optional
            Clicks to add to the bias, as ``bias + popularity`` does; an index that has a popularity
            needs them at each refresh, and a weight of 0 takes it off. Items whose id has no clicks
            count 0, and clicks of ids that are not in the index are left out, with a warning.
        gallery : array or path, shape (n_gallery, dim), optional
            The original vectors of all items, for collections that store them in few bits.
        ids : sequence of int or str, optional
            Ids of the rows of the gallery, and of the clicks; by default those of the gallery's
            file, or 0…n−1, which then have to be all ids of the index.
        progress : callable, optional
            Called with ``(done, total)``.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import NNN
        >>> rng = np.random.default_rng(0)
        >>> gallery, bank = rng.normal(size=(4, 8)), rng.normal(size=(99, 8))
        >>> corrector = Corrector.fit(gallery, bank, NNN(4, 0.5), normalize=True)
        >>> index = build_index("faiss:", gallery, corrector, ids=["a", "b", "c", "d"])
        >>> clicks = Popularity([0, 20, 0, 999], weight=0.5)
        >>> index.refresh(corrector, popularity=clicks, ids=["d", "c", "b", "a"])
        >>> index.search(gallery[1:2], k=1).ids.tolist()
        [['a']]
        """
        opened = open_corrector(corrector)
        if ids is not None and gallery is None and popularity is None:
            raise NNNormError(
                "ids (--ids) are those of the rows of a gallery or of clicks; give gallery "
                "(--gallery) or popularity (--clicks) too, or leave out ids"
            )
        items = None if gallery is None else opened.open(gallery, "gallery")
        named = None if items is None else name_items(items, ids)
        of_clicks = ids if named is None else named
        self._catch_up()
        refresh(
            self.store,
            self.recipe,
            opened,
            gallery=items,
            ids=named,
            clicks=None if popularity is None else open_clicks(popularity, of_clicks),
            progress=progress,
        )
        self._read_note()

    @explain_arguments
    def rollback(self, *, undo: bool = False) -> None:
        """Serve the generation before the last `refresh` again, with the items that it had then.

        A call that is repeated, as after a kill, leaves that generation where it is, and warns.

        Parameters
        ----------
        undo : bool
            Serve the generation of the last `refresh` instead, which a rollback keeps.
        """
        if not rollback(self.store, undo=undo):
            which = "of" if undo else "before"
            other = "leave out undo (--undo)" if undo else "use undo=True (--undo)"
            warn(
                f"{self.store.name} serves the generation {which} the last refresh already; for "
                f"the other one {other}"
            )
        self._read_note()

    def _read_note(self) -> object:
        """Read the recipe of the generation that is served, and return its mark."""
        self._served = open_index(self.store)._served
        return self._served.mark

    # --- files -----------------------------------------------------------------------------------

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        """Yield all items as they were given: ids, raw vectors, bias values, metadata.

        All are of one generation; an error is raised where another one is served meanwhile.
        """
        self._catch_up()
        recipe, mark = self._served
        for items in scan_generation(self.store, mark, recipe.to_dict(), batch):
            yield recipe.unpack(items)

    def save(self) -> None:
        """Make everything durable (engines that live in memory write their file)."""
        self.store.save()

    def close(self) -> None:
        """Close files and connections; nothing is saved by this."""
        self.store.close()


class _Served(NamedTuple):
    """A recipe, and the mark of the generation that it describes, see `Store.mark`."""

    recipe: Recipe
    mark: object


class _New(NamedTuple):
    """New items, ready to be written."""

    ids: Ids
    batches: list[Items]
    recipe: Recipe  # that covers them
    fingerprint: str


@explain_arguments
def build_index(
    store: "Store | str",
    gallery: Source,
    bias: Correction,
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
    bias : Corrector, path or Bias
        A corrector, or its file, which gives these items their bias, and later ones too; or a bias
        that was fitted on this gallery, without gates.
    ids : sequence of int or str, optional
        One per item, by default those of the file of the gallery, or 0…n−1.
    metadata : sequence of mappings, optional
        One per item, stored with it.
    way : {"ip", "cosine", "l2", "rerank", "column"}, optional
        How the correction is served; by default the best way of the engine.
    scale : float, optional
        Scale of the coordinate of the bias; by default 1, or balanced for a quantised engine.
    normalize : bool, optional
        Divide every row by its norm, and later every query; see `open_embeddings`. A corrector
        knows that by itself.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    CorrectedIndex
        Already saved.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> index = build_index("faiss:", np.array([[1.0, 0.0], [0.6, 0.8]]), bias, ids=[70, 80])
    >>> index.search(np.array([[0.96, 0.28]]), k=1).ids.tolist()
    [[80]]
    """
    opened = open_store(store)
    given = open_correction(bias)
    items, own = open_items(gallery, given, name="gallery", normalize=normalize)
    named = name_items(items, ids)
    described = check_metadata(metadata, len(items))
    corrector = given if isinstance(given, Corrector) else None
    recipe = make_recipe(opened, items, own, way=way, scale=scale, corrector=corrector)
    recipe = replace(recipe, metadata=MetadataPrint().take(described or ()).value)

    whole = fill_store(
        opened,
        recipe,
        cut(items, own.values, named, described),
        ids=named,
        sample=make_sample(recipe, items, own.values, named, described),
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
    mark = opened.mark()  # before the note, so that a change in between is found out
    note = opened.read_note()
    if note is None and not facts.n_items:
        raise NNNormError(
            f"{opened.name} is empty and has no note of nnnorm: a build or export into it was not "
            "finished, or not begun; run it"
        )
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
    values = opened.value_range() if recipe.way == "rerank" else None
    if values is not None:  # other programs may have written some
        recipe = replace(recipe, lowest=values[0], highest=values[1])
    return CorrectedIndex(opened, recipe, mark)


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
