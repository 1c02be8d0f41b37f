"""`CorrectedIndex`, and the functions that build, open and copy one, for all engines.

A new version is filled next to the served one, then one atomic swap serves it, and the previous
version is kept. A kill at any moment leaves the previous version or the new one. A rollback is
another swap.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nnnorm.bias import Bias, Popularity
from nnnorm.corrector import Correction, Corrector, open_corrector
from nnnorm.embeddings import FloatArray, Source
from nnnorm.errors import NNNormError, check_count, check_type, warn
from nnnorm.files import Progress
from nnnorm.index.backend import Backend, Hits, Ids, Items, Layout, Metadata, keep_errors
from nnnorm.index.config import (
    CollectionInfo,
    IndexConfig,
    bias_values,
    check_item_ids,
    check_metadata,
    choose_columns,
    describe_corrector,
    read_groups,
    to_json,
)
from nnnorm.index.engines import open_backend
from nnnorm.ranking import N_COMPARED, check_min_confidence, drop_hits, measure_confidence

_BATCH = 4096  # items transformed at once
_SAMPLE = 65_536  # vectors that an engine may train on
_ATTEMPTS = 5
# Of 500 items, graphs find 99.8 % of the 10 best if norms differ by a factor of 10, 96 % if by 100.
_MOST_UNEVEN = 20


class _State(NamedTuple):
    """The name and the config of a version."""

    version: str
    config: IndexConfig


class CorrectedIndex:
    """A collection in some engine that ranks by ``s(q, r) − weight·m(r)``."""

    def __init__(self, backend: Backend, corrector: Corrector | None = None) -> None:
        self.backend = backend
        self._correctors: dict[str, Corrector] = {}
        with backend.translating():
            self._state = self._read_state()
        if corrector is not None:
            built = self.config.corrector
            if corrector.fingerprint != built:
                raise backend.error(
                    f"was built by corrector {built[:8]}; got corrector "
                    f"{corrector.fingerprint[:8]}. Open it with its own corrector, or refresh it"
                )
            self._correctors[built] = corrector

    def __repr__(self) -> str:
        return f"CorrectedIndex({self.backend.name}: {self.config.method}, {self.config.mode})"

    def __enter__(self) -> "CorrectedIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self.backend.translating():
            return self.backend.count(self._state.version)

    @property
    def config(self) -> IndexConfig:
        """The config of the served version."""
        return self._state.config

    @property
    def corrector(self) -> Corrector | None:
        """The corrector of the served version, if the index was opened with it."""
        return self._correctors.get(self.config.corrector)

    def close(self) -> None:
        """Close the engine, unless you passed its client. All changes are saved already."""
        with self.backend.translating():
            self.backend.close()

    def reload(self) -> None:
        """Switch to the version that is served now, with its current items."""
        with self.backend.translating():
            self._state = self._read_state()

    def info(self) -> CollectionInfo:
        """Describe the served version: corrector, number of items, whether rollback is possible."""
        with self.backend.translating():
            older, newer = self._neighbors(self._state)
        shared = ("dim", "version", "corrector", "method", "weight", "alpha", "mode")
        return CollectionInfo(
            name=self.backend.name,
            n_items=len(self),
            **{name: getattr(self.config, name) for name in shared},
            can_roll_back=older is not None,
            is_rolled_back=older is None and newer is not None,
        )

    def _read_state(self) -> _State:
        for _ in range(_ATTEMPTS):  # meanwhile, another process may swap and drop
            version = self.backend.served()
            if version is None:
                problem = f"there is no index {self.backend.name}"
                raise NNNormError(f"{problem}; check the name, or build it first")
            if (stored := self.backend.read_config(version)) is not None:
                config = IndexConfig.from_dict(stored, self.backend.name)
                if config.created != self.backend.created:
                    self.backend.restore_options(config.created)
                return _State(version, config)
        raise self.backend.error("has no index metadata; build the index again")

    def _finished(self) -> dict[int, _State]:
        """Return all finished versions, by number."""
        known = {}
        for version in self.backend.versions():
            if stored := self.backend.read_config(version):
                config = IndexConfig.from_dict(stored, self.backend.name)
                known[config.version] = _State(version, config)
        return known

    def _neighbors(self, state: _State) -> tuple[_State | None, _State | None]:
        """Return the previous version, and the newer one that a rollback left."""
        known = self._finished()
        newer = [n for n, one in known.items() if one.config.previous == state.config.version]
        return known.get(state.config.previous or 0), known[max(newer)] if newer else None

    # --- searching -------------------------------------------------------------------------------

    def search(
        self,
        queries: Source,
        k: int = 10,
        *,
        weight: float | None = None,
        min_confidence: float | None = None,
        filter: Any = None,
        with_metadata: bool = False,
        parents: str | None = None,
    ) -> Hits:
        """Find the k best items of every query by the corrected score, with its confidence.

        `parents` is the metadata key with the document of a chunk. With it, the k best documents
        are returned, ranked by their best chunk.
        """
        k = check_count("k", k, self.backend.largest_k, f"the limit of {self.backend.engine}")
        least = check_min_confidence(min_confidence)
        if parents is not None:
            return self._search_documents(queries, k, parents, least, weight=weight, filter=filter)
        wanted = keep_errors(filter) if callable(filter) else filter
        rows = self.config.open_queries(queries, self.backend.name)
        left = _ATTEMPTS
        while True:
            left -= 1
            version, config = state = self._state
            used = config.use_weight(weight)
            asked = config.transform_queries(rows, used)
            try:
                with self.backend.translating():
                    found = self.backend.search(version, asked, max(k, N_COMPARED), wanted, used)
                    scores = config.read_scores(found.scores, asked, used)
                    hits = _take_best(found.ids, scores, k, least)
                    return self._with_metadata(version, hits) if with_metadata else hits
            except NNNormError:
                if not left or not self._is_gone(state):
                    raise
                self.reload()

    def _search_documents(
        self, queries: Source, k: int, key: str, least: float, **options: Any
    ) -> Hits:
        """Fetch more hits until they include enough documents or there are no more."""
        wanted, n_items = max(k, N_COMPARED), len(self)
        most = max(1, min(n_items, self.backend.largest_k or n_items))
        n_fetched = min(4 * wanted, most)
        while True:
            hits = self.search(queries, n_fetched, with_metadata=True, **options)
            found = _best_chunks(hits, key, self.backend.name)
            pairs = zip(found, hits.metadata or [], strict=True)
            n_short = sum(len(docs) < wanted <= n_fetched == len(got) for docs, got in pairs)
            if not n_short or n_fetched == most:
                break
            n_fetched = min(4 * n_fetched, most)
        if n_short and most < n_items:
            warn(
                f"{self.backend.engine} returns at most {most} hits; for {n_short:,} queries, they "
                f"are from fewer than {wanted} documents, so documents may be missing"
            )
        chunks = Hits.read([[chunk[:2] for chunk in row.values()] for row in found])
        best = _take_best(chunks.ids, chunks.scores, k, least)
        parents = Hits.read([[(parent, 0.0) for parent in row] for row in found]).ids[:, :k]
        n_hits = (best.scores > -np.inf).sum(axis=1)
        drop_hits(n_hits == 0, parents)
        entries = [[entry for *_, entry in row.values()] for row in found]
        metadata = [row[:n] for row, n in zip(entries, n_hits.tolist(), strict=True)]
        return replace(best, metadata=metadata, parents=parents)

    def _with_metadata(self, version: str, hits: Hits) -> Hits:
        found = hits.scores > -np.inf
        ids = np.unique(hits.ids[found])
        known = self.backend.lookup(version, ids) if len(ids) else {}
        rows = [row[is_hit].tolist() for row, is_hit in zip(hits.ids, found, strict=True)]
        return replace(hits, metadata=[[known.get(own, {}) for own in row] for row in rows])

    def _is_gone(self, state: _State) -> bool:
        """Whether the version of a failed search was dropped, after two more refreshes."""
        if self._state is not state:
            return True
        with contextlib.suppress(NNNormError), self.backend.translating():
            return state.version not in self.backend.versions()
        return False

    async def search_async(self, queries: Source, k: int = 10, **options: Any) -> Hits:
        """Search as `search` does, in a thread, without blocking the event loop."""
        return await asyncio.to_thread(self.search, queries, k, **options)

    def transform_queries(self, queries: Source, *, weight: float | None = None) -> FloatArray:
        """Return the vectors to search with in the engine's own client, ``(n_queries, width)``."""
        config = self.config
        rows = config.open_queries(queries, self.backend.name)
        return config.transform_queries(rows, config.use_weight(weight))

    def scan(self) -> Iterator[Items]:
        """Yield all items in batches: their original rows, biases and metadata."""
        version, config = self._state
        with self.backend.translating():
            for items in self.backend.scan(version):
                yield config.restore_items(items)

    # --- changing items --------------------------------------------------------------------------

    def add(
        self,
        rows: Source,
        *,
        ids: Any = None,
        groups: Any = None,
        metadata: Sequence[Metadata] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Add items. They are durable when the call returns.

        For a corrector with groups, `groups` has one label per item, or is a metadata key.
        `overwrite` replaces items whose ids are in the index.
        """
        opened, corrector = self.config, self.corrector
        if corrector is None:
            raise NNNormError(
                f"to add items, open {self.backend.name} with its corrector "
                f"{opened.corrector[:8]}: open_index(url, corrector=…)"
            )
        items = corrector.open(rows, "items")
        named = items.ids if ids is None else ids
        if named is None:
            raise NNNormError("new items need ids; pass ids= (--ids), one per row")
        given = check_item_ids(named, len(items), items.name)
        entries = check_metadata(metadata, len(items))
        values = corrector.values_for(items, read_groups(groups, given, entries))
        with self._writing(given, opened) as (version, config):
            if not overwrite and (there := self.backend.present(version, given)).any():
                raise self.backend.error(
                    f"has the id {given[there][0].item()!r} already; use upsert (--replace) to "
                    "replace items, or choose other ids"
                )
            vectors, bias = config.transform_items(items.rows(0, len(items)), values)
            write = self.backend.upsert if overwrite else self.backend.add
            write(version, Items(given, vectors, bias, entries))

    def upsert(self, rows: Source, **given: Any) -> None:
        """Add items, and replace those whose ids are in the index; parameters as in `add`."""
        self.add(rows, overwrite=True, **given)

    def delete(self, ids: Any) -> None:
        """Delete items by id. All ids must be in the index."""
        given = check_item_ids(ids, name="the list")
        with self._writing(given, self.config) as (version, _):
            if not (there := self.backend.present(version, given)).all():
                own = given[~there][0].item()
                raise self.backend.error(f"has no item {own!r}; nothing was deleted")
            self.backend.delete(version, given)

    def present(self, ids: Any) -> Any:
        """Return which of these ids are in the index, shape ``(n_ids,)``."""
        given = check_item_ids(ids, name="the list")
        version, config = self._state
        if (given.dtype.kind == "U") != config.string_ids:
            return np.zeros(len(given), dtype=bool)
        with self.backend.translating():
            return self.backend.present(version, given)

    @contextmanager
    def _writing(self, ids: Ids, opened: IndexConfig) -> Iterator[_State]:
        """Lock the index to change these items, if the engine can lock; yield what to write to."""
        backend = self.backend
        with backend.writing():
            _, config = newest = self._read_state()
            if config.corrector != opened.corrector:
                problem = "was refreshed or rolled back since it was opened"
                raise backend.error(f"{problem}; open it again, with its new corrector")
            if (ids.dtype.kind == "U") != config.string_ids:
                kinds = ("text", "whole numbers")[:: 1 if config.string_ids else -1]
                raise NNNormError(f"ids of {backend.name} are {kinds[0]}; got {kinds[1]}")
            with backend.write(newest.version) as version:
                yield _State(version, config)
            if backend.served() != version:
                problem = "was refreshed by another process, and this change may be lost"
                raise backend.error(f"{problem}; open the index again and repeat the call")
            self._state = _State(version, config)

    # --- versions --------------------------------------------------------------------------------

    def refresh(
        self,
        corrector: Correction,
        *,
        groups: Any = None,
        popularity: Popularity | None = None,
        ids: Any = None,
        progress: Progress | None = None,
    ) -> None:
        """Replace the bias of all items by that of another corrector, in one atomic step.

        For a corrector with groups, `groups` is a metadata key, or a dict from id to label.
        """
        new = open_corrector(corrector)
        backend = self.backend
        with backend.writing():
            self._state = state = self._read_state()
            if new.dim != state.config.dim:
                raise NNNormError(
                    f"the corrector and the items of {backend.name} must have the same dimension; "
                    f"got {new.dim} and {state.config.dim}. Were they encoded by different models?"
                )
            if popularity is None and state.config.popularity is not None:
                warn(
                    f"the clicks of {backend.name} are dropped; to keep them, pass popularity= "
                    "(--clicks)"
                )
            n_items = len(self)
            clicks = {} if popularity is None else self._read_clicks(popularity, ids)
            finished = self._finished()
            config = replace(
                state.config,
                **describe_corrector(new),
                version=1 + max(finished),
                previous=state.config.version,
                popularity=None if popularity is None else popularity.weight,
            )

            def parts() -> Iterator[Items]:
                for stored in backend.scan(state.version):
                    items = state.config.restore_items(stored)
                    rows = new.open(items.vectors, "items")
                    values = new.values_for(rows, read_groups(groups, items.ids, items.metadata))
                    if popularity is not None:
                        counts = [clicks.get(own, 0.0) for own in items.ids.tolist()]
                        bias = Bias(values, new.weight, config.method)
                        values = (bias + Popularity(counts, popularity.weight)).values
                    made = config.transform_items(rows.rows(0, len(rows)), values)
                    yield Items(items.ids, *made, items.metadata)

            finished[state.config.version] = state
            _keep_only(backend, *(one.version for one in finished.values()))
            version = _fill(backend, config, parts(), n_items, progress, state.version)
            _keep_only(backend, version, state.version)
            self._correctors[new.fingerprint] = new
            self._state = _State(version, config)

    def _read_clicks(self, popularity: Popularity, ids: Any) -> dict[Any, float]:
        """Return clicks by id; those of unknown items are left out, with a warning."""
        check_type("popularity", popularity, Popularity, "such as Popularity(clicks, weight=0.02)")
        if ids is None and len(popularity) != len(self):
            counts = f"{len(popularity):,} for {len(self):,} items"
            raise NNNormError(
                f"clicks without ids must have one entry per item; got {counts}: pass ids= (--ids)"
            )
        named = check_item_ids(range(len(self)) if ids is None else ids, len(popularity), "clicks")
        there = self.present(named)
        if not there.all():
            which = f"{(~there).sum():,} of {len(named):,} ids of the clicks"
            problem = f"{which} aren't in {self.backend.name}, such as {named[~there][0].item()!r}"
            if not there.any():
                raise NNNormError(f"{problem}; pass the ids of its items")
            warn(f"{problem}; their clicks are left out")
        return dict(zip(named.tolist(), np.asarray(popularity.clicks).tolist(), strict=True))

    def rollback(self, *, undo: bool = False) -> None:
        """Serve the version before the last refresh again; `undo` returns to the newer one."""
        with self.backend.writing():
            state = self._read_state()
            older, newer = self._neighbors(state)
            if older is None and newer is None:
                raise self.backend.error("has no previous version; a refresh keeps one")
            target = (newer if undo else older) or state
            if target.version != state.version:
                self.backend.swap(target.version)
            self._state = target


def _take_best(ids: Ids, scores: FloatArray, k: int, min_confidence: float) -> Hits:
    """Sort hits by corrected score, because cosines may be tied, and keep the k best."""
    if (scores[:, 1:] > scores[:, :-1]).any():
        order = np.argsort(-scores, axis=1, kind="stable")
        ids, scores = (np.take_along_axis(one, order, axis=1) for one in (ids, scores))
    confidence = measure_confidence(scores)
    ids, scores = ids[:, :k].copy(), scores[:, :k].copy()
    drop_hits(confidence < min_confidence, ids, scores)
    return Hits(ids, scores, confidence=confidence)


def _best_chunks(hits: Hits, key: str, name: str) -> list[dict[Any, tuple[Any, float, Any]]]:
    """Return the best chunk of every document per query: its id, score and metadata."""
    found: list[dict[Any, tuple[Any, float, Any]]] = [{} for _ in range(len(hits))]
    for row, entries in enumerate(hits.metadata or []):
        chunks = zip(hits.ids[row].tolist(), hits.scores[row].tolist(), entries, strict=False)
        for own, score, entry in chunks:
            if key not in entry:
                problem = f"the metadata of item {own!r} of {name} has no key {key!r}"
                raise NNNormError(f"{problem} with its document; pass another key")
            found[row].setdefault(entry[key], (own, score, entry))
    return found


# --- building, opening and copying ---------------------------------------------------------------


def build_index(
    url: str | Backend,
    gallery: Source,
    corrector: Correction,
    *,
    ids: Any = None,
    metadata: Sequence[Metadata] | None = None,
    groups: Any = None,
    progress: Progress | None = None,
) -> CorrectedIndex:
    """Store a gallery in an engine that then ranks by the corrected score.

    Parameters
    ----------
    url : str or Backend
        Engine and collection, such as ``faiss:photos`` or ``qdrant://localhost:6333/photos``.
    gallery : array or path, shape (n_items, dim)
    corrector : Corrector or path
        Computes the bias of each item, including later ones.
    ids : sequence of int or str, optional
        By default, the ids in the gallery's file, or 0…n−1.
    metadata : sequence of mappings, optional
        One per item; values are JSON.
    groups : sequence or str, optional
        For a corrector with groups: one label per item, or the metadata key with the label.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    CorrectedIndex

    Examples
    --------
    >>> from nnnorm import Corrector, load_shapes
    >>> shapes = load_shapes()
    >>> corrector = Corrector.fit(shapes.gallery[:800], shapes.references)
    >>> index = build_index("faiss:", shapes.gallery[:800], corrector)
    >>> index.add(shapes.gallery[800:], ids=range(800, len(shapes.gallery)))
    >>> len(index) == len(shapes.gallery)
    True
    """
    backend, used = open_backend(url), open_corrector(corrector)
    items = used.open(gallery, "gallery")
    named = items.ids if ids is None else ids
    given = np.arange(len(items)) if named is None else check_item_ids(named, len(items))
    entries = check_metadata(metadata, len(items))
    values = bias_values(used, items, read_groups(groups, given, entries))

    low, high = items.norm_range
    if not backend.is_exact and high > _MOST_UNEVEN * low:
        warn(
            f"{items.name} has norms from {low:.3g} to {high:.3g}; {backend.engine} isn't exact, "
            "and may miss the best items of such rows: verify the index, normalize the rows, or "
            "use an exact engine"
        )

    config = IndexConfig(
        **describe_corrector(used),
        version=1,
        mode=backend.mode,
        metric=backend.metric,
        string_ids=given.dtype.kind == "U",
        columns=choose_columns(entries),
        created=backend.created,
        rotated=backend.has_one_range,
    )

    def parts() -> Iterator[Items]:
        for start in range(0, len(items), _BATCH):
            part = slice(start, start + _BATCH)
            rows = items.rows(start, min(start + _BATCH, len(items)))
            yield Items(given[part], *config.transform_items(rows, values[part]), entries[part])
        items.check_unchanged()

    with backend.translating():
        _check_free(backend)  # before creating a lock file next to other files
    with backend.writing():
        _check_free(backend)
        _keep_only(backend)
        _fill(backend, config, parts(), len(items), progress, None)
    return CorrectedIndex(backend, used)


def open_index(url: str | Backend, corrector: Correction | None = None) -> CorrectedIndex:
    """Open an index.

    Parameters
    ----------
    url : str or Backend
    corrector : Corrector or path, optional
        The corrector of the index, for `CorrectedIndex.add`; another one is rejected. You don't
        need it to search.

    Returns
    -------
    CorrectedIndex

    Examples
    --------
    >>> open_index("faiss:nowhere")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no index faiss nowhere; ...
    """
    used = None if corrector is None else open_corrector(corrector)
    return CorrectedIndex(open_backend(url), used)


def copy_index(
    source: str | Backend,
    target: str | Backend,
    corrector: Correction | None = None,
    *,
    references: Any = None,
    groups: str | None = None,
    progress: Progress | None = None,
) -> CorrectedIndex:
    """Copy an existing collection with its ids and metadata, and correct the copy.

    Parameters
    ----------
    source : str or Backend
        A collection of your application, or an index. It isn't changed.
    target : str or Backend
        The copy, in the same engine or another one.
    corrector : Corrector or path, optional
    references : array, path or Bank, shape (n_references, dim), optional
        Past queries to fit a corrector on, instead of `corrector`.
    groups : str, optional
        The metadata key with the group of each item, for the fit or for the corrector.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    CorrectedIndex

    Examples
    --------
    >>> from nnnorm import Corrector, load_shapes
    >>> shapes = load_shapes()
    >>> corrector = Corrector.fit(shapes.gallery, shapes.references)
    >>> index = build_index("faiss:", shapes.gallery, corrector)
    >>> len(copy_index(index.backend, "sqlite:", corrector)) == len(shapes.gallery)
    True
    """
    if (corrector is None) == (references is None):
        got = "neither" if corrector is None else "both"
        raise NNNormError(f"copy needs references (past queries) or a corrector; got {got}")
    there = open_backend(source)
    backend = there if isinstance(target, str) and target == source else open_backend(target)
    with there.translating():
        served = there.served()
        if served is None and there.is_absent():
            raise NNNormError(f"there is no {there.name} to copy; check the path")
        read = list(there.scan(None) if served is None else CorrectedIndex(there).scan())
    if not read:
        raise there.error("has no items to copy")
    if there is not backend and isinstance(source, str):
        there.close()
    items, changed = Items.join(read), list[Any]()

    def convert(value: Any) -> Any:
        if isinstance(value, (set, np.ndarray)):
            return to_json(list(value), convert)
        changed.append(value)
        return None if isinstance(value, float) else str(value)

    metadata = [to_json(dict(entry), convert) for entry in items.metadata]
    if changed:
        warn(
            f"{len(changed):,} values in the metadata of {there.name} aren't JSON, such as "
            f"{changed[0]!r:.60}; they are copied as text, and NaN and infinity as null"
        )
    labels = read_groups(groups, items.ids, metadata)
    if corrector is None:
        corrector = Corrector.fit(items.vectors, references, groups=labels)
    options = {"ids": items.ids, "metadata": metadata, "groups": labels}
    return build_index(backend, items.vectors, corrector, progress=progress, **options)


def _fill(
    backend: Backend,
    config: IndexConfig,
    parts: Iterator[Items],
    n_items: int,
    progress: Progress | None,
    previous: str | None,
) -> str:
    """Fill a version with all items, and serve it; after an error, remove it."""
    version = backend.name_version(config.version)
    first: list[Items] = []
    for part in parts:
        first.append(part)
        if sum(map(len, first)) >= _SAMPLE:
            break
    sample = np.concatenate([np.empty((0, config.width), np.float32), *(p.vectors for p in first)])
    layout = Layout(config.width, config.string_ids, config.columns, n_items, sample)
    try:
        backend.create(version, layout)
        done = 0
        for part in itertools.chain(first, parts):
            backend.add(version, part)
            done += len(part)
            if progress is not None:
                keep_errors(progress)(done, n_items)
        backend.finish(version, config.to_dict())
        if (found := backend.count(version)) != n_items or done != n_items:
            problem = f"should have {n_items:,} items in its new version; got {found:,}"
            raise backend.error(f"{problem}; nothing was changed: run the call again")
        if backend.served() != previous or (previous and backend.count(previous) != n_items):
            raise backend.error("was changed by another process during this call; run it again")
        backend.swap(version)
    except BaseException:
        with contextlib.suppress(Exception):
            if backend.served() != version:
                backend.drop(version)
        raise
    return version


def _check_free(backend: Backend) -> None:
    if backend.served() is not None or backend.is_taken():
        raise backend.error("already exists; refresh it, or choose another name")


def _keep_only(backend: Backend, *kept: str) -> None:
    """Drop unfinished and old versions."""
    for version in backend.versions():
        if version not in kept:
            backend.drop(version)
