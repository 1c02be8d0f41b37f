"""Chroma (`pip install 'nnnorm[chroma]'`): a folder, or a server; always a graph (HNSW).

Chroma's distance for inner products is 1 − product. Its ids are strings: a collection that nnnorm
creates notes where they were integers. Chroma skips existing ids without an error, so `add` is only
called with new ones. Documents are kept as metadata under Chroma's own key. Chroma has no aliases:
two generations exchange their names in three steps, and the next open finishes what was killed.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import ServerOptions, ef, ef_construction, links
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Hit,
    Ids,
    Items,
    Sample,
    StoreMetric,
    Way,
    gather_hits,
    make_items,
)
from nnnorm.index.stores.database import BIAS, DatabaseStore, read_filter

# What Chroma can't keep (lists, mappings, None) goes under this key of an item's metadata.
_OTHER = "nnnorm_json"
_DOCUMENT = "chroma:document"
# Ends of the names of the generation that is not served, and of one that is on its way there.
_UNSERVED, _PARKED = "-nnnorm-other", "-nnnorm-parked"
_LARGEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class ChromaOptions(ServerOptions):
    """Options of Chroma, all of a new collection; Chroma fixes `ef` there too."""

    links: int = links()
    ef_construction: int = ef_construction()
    ef: int = ef()


class ChromaStore(DatabaseStore):
    """A collection of Chroma.

    Parameters
    ----------
    place : str, PathLike or Client
        A folder, a server (``http://localhost:8000``), or a client, which `close` leaves open.
    """

    engine, product = "chroma", "Chroma"
    client_type, async_client_type = "ClientAPI", "AsyncClientAPI"
    filters = "a where of Chroma, as a mapping or in JSON"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    is_graph = True
    keeps_vectors = False
    largest_k: int = 30_000  # hits of one request: its SQLite takes no more variables
    options_type = ChromaOptions
    options: ChromaOptions
    # Chroma's own collection as it was found first; an exchange of names leaves it as it is.
    _handle: Any = None

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        # The same collection, of asynchronous clients.
        self._handles: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def facts(self) -> Facts | None:
        found = self._find()
        if found is None:
            return None
        with self._translating():
            n_items = found.count()
            width = (found.metadata or {}).get("nnnorm_width")
            if width is None:
                first = found.get(limit=1, include=["embeddings"])["embeddings"]
                width = len(first[0]) if len(first) else 0
        return Facts(width, self._metric(found), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        graph = {
            "space": metric,
            "max_neighbors": self.options.links,
            "ef_construction": self.options.ef_construction,
            "ef_search": self.options.ef,
        }
        about = {"nnnorm_width": width, "nnnorm_ids": "strings" if strings else "numbers"}
        with self._translating():
            self._handle = self.client.create_collection(
                self.collection + (_UNSERVED if self._is_other else ""),
                configuration={"hnsw": graph},
                metadata=about,
                embedding_function=None,
            )

    def add(self, items: Items) -> None:
        self.check_served()
        known = items.metadata_list()
        documents = [entry.pop(_DOCUMENT, None) for entry in known]
        self._write(self.found.add, items, known, documents)

    def upsert(self, items: Items) -> None:
        self.check_served()
        names = list(map(str, items.ids.tolist()))
        with self._translating():
            rows = self.found.get(ids=names, include=["metadatas", "documents"])
        texts = zip(rows["ids"], rows["documents"], strict=True)
        written = {name for name, text in texts if text is not None}
        before = dict(zip(rows["ids"], rows["metadatas"], strict=True))
        known = items.metadata_list()
        documents = [entry.pop(_DOCUMENT, None) for entry in known]
        # Chroma merges: a field goes where it is None, but a document only with its item.
        gone = [
            n for n, text in zip(names, documents, strict=True) if text is None and n in written
        ]
        if gone:
            with self._translating():
                self.found.delete(ids=gone)
        self._write(self.found.upsert, items, known, documents, before)

    def _write(
        self,
        write: Any,
        items: Items,
        known: list[dict[str, Any]],
        documents: list[str | None],
        before: Mapping[str, Any] | None = None,
    ) -> None:
        names = list(map(str, items.ids.tolist()))
        kept = []
        for name, entry, value in zip(names, known, items.value_list(), strict=True):
            new = _flatten(entry) | ({} if value is None else {BIAS: value})
            kept.append(dict.fromkeys((before or {}).get(name) or ()) | new)
        with self._translating():
            write(
                ids=names,
                embeddings=items.vectors,
                metadatas=[entry or None for entry in kept] if any(kept) else None,
                documents=documents if any(one is not None for one in documents) else None,
            )

    def delete(self, ids: Ids) -> None:
        self.check_served()
        with self._translating():
            self.found.delete(ids=list(map(str, ids.tolist())))

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        found, answers = self.found, []
        for asked in self._requests(queries, k, filter):
            with self._translating():
                answers.append(found.query(**asked))
        return self._gather(answers)

    async def search_async(
        self, client: Any, queries: FloatArray, k: int, filter: Any = None
    ) -> Found:
        answers = []
        with self._translating():
            found = await self._find_async(client)
            for asked in self._requests(queries, k, filter):
                answers.append(await found.query(**asked))
        return self._gather(answers)

    async def _find_async(self, client: Any) -> Any:
        """The collection of this generation, through an asynchronous client."""
        missing = require("chromadb.errors", "chroma").NotFoundError
        found = self._handles.get(client)
        for end in ("", _UNSERVED, _PARKED):
            if found is not None and found.id == self.found.id:
                self._handles[client] = found
                return found
            with suppress(missing):
                name = self.collection + end
                found = await client.get_collection(name, embedding_function=None)
        if found is None or found.id != self.found.id:
            raise self._gone()
        return found

    def _requests(self, queries: FloatArray, k: int, filter: Any) -> Iterator[dict[str, Any]]:
        """What the collection is asked, some queries at a time."""
        where = read_filter(filter, self.filters)
        fields = ["distances", "metadatas"] if self.returns_values else ["distances"]
        step = max(1, self.largest_k // k)
        for start in range(0, len(queries), step):
            some = queries[start : start + step]
            yield {"query_embeddings": some, "n_results": k, "where": where, "include": fields}

    def _gather(self, answers: list[Any]) -> Found:
        own, metric = self._own(self.found), self._metric(self.found)
        rows: list[list[Hit]] = []
        for hits in answers:
            known = hits["metadatas"] or [[None] * len(ids) for ids in hits["ids"]]
            for columns in zip(hits["ids"], hits["distances"], known, strict=True):
                rows.append(
                    [(own(i), d, (m or {}).get(BIAS)) for i, d, m in zip(*columns, strict=True)]
                )
        return gather_hits(rows, lambda d: -d if metric == "l2" else 1 - d)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        found = self.found
        own = self._own(found)
        for start in range(0, found.count(), batch):
            with self._translating():
                rows = found.get(
                    limit=batch, offset=start, include=["embeddings", "metadatas", "documents"]
                )
            values = [(entry or {}).get(BIAS) for entry in rows["metadatas"]]
            ids = list(map(own, rows["ids"]))
            yield make_items(ids, rows["embeddings"], values, _described(rows))

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        names = list(map(str, ids.tolist()))
        with self._translating():
            rows = self.found.get(
                ids=list(dict.fromkeys(names)), include=["metadatas", "documents"]
            )
        known = dict(zip(rows["ids"], _described(rows), strict=True))
        return [known.get(name, {}) for name in names]

    # --- generations ---

    def other(self) -> "ChromaStore":
        twin = self._twin()
        twin._handle = None
        return twin

    def mark(self) -> object:
        """The collection that this store stays with, until it exchanges both itself."""
        return str(getattr(self._handle, "id", ""))

    def exchange(self) -> None:
        self.check_served()
        served = self.found
        if self._get(_UNSERVED) is None:
            raise NNNormError(f"{self.name} has no other generation; refresh it first")
        with self._translating():
            served.modify(name=self.collection + _PARKED)
        self._settle()
        self._handle = None

    def drop(self) -> None:
        self._handle = None
        if self._is_missing():
            return
        self._settle()
        for end in [_UNSERVED] if self._is_other else [_UNSERVED, ""]:
            if self._get(end) is not None:
                with self._translating():
                    self.client.delete_collection(self.collection + end)

    def close(self) -> None:
        super().close()
        self._handle = None

    def _settle(self) -> None:
        """Finish an exchange of names that was killed, or that another process is about to."""
        for _ in range(5):
            parked = self._get(_PARKED)
            if parked is None:
                return
            served, other = self._get(""), self._get(_UNSERVED)
            with suppress(require("chromadb.errors", "chroma").ChromaError):
                if served is None:
                    (other or parked).modify(name=self.collection)
                elif other is None:
                    parked.modify(name=self.collection + _UNSERVED)

    def _get(self, end: str) -> Any:
        missing = require("chromadb.errors", "chroma").NotFoundError
        with self._translating():
            try:
                return self.client.get_collection(self.collection + end, embedding_function=None)
            except missing:
                return None

    def check_served(self) -> None:
        """Raise before a write to a generation that is not served any more."""
        if self._is_other or self._handle is None:
            return
        served = self._get("")
        if served is None or served.id != self._handle.id:
            raise NNNormError(
                f"{self.name} was refreshed or rolled back since it was opened; open it again, so "
                "that nothing is written to the generation that is not served"
            )

    # --- facts about the collection ---

    @property
    def found(self) -> Any:
        """Chroma's own collection."""
        return self._found(self._find())

    def _is_missing(self) -> bool:
        return self._is_absent(Path(self.address) / "chroma.sqlite3")

    def _find(self) -> Any:
        found = self._handle  # once: another thread may forget it
        if found is None and not self._is_missing():
            end = _UNSERVED if self._is_other else ""
            found = self._get(end)
            if found is None:
                self._settle()
                found = self._get(end)
            self._handle = found
        return found

    def _look_again(self) -> Any:
        """Chroma's collection as it is now, under whichever name."""
        known = self.found
        for end in ("", _UNSERVED, _PARKED):
            now = self._get(end)
            if now is not None and now.id == known.id:
                self._handle = now
                return now
        raise self._gone()

    def _gone(self) -> NNNormError:
        return NNNormError(
            f"{self.name} was refreshed again since it was opened, and the generation that it had "
            "then is removed; open it again"
        )

    def _translate(self, error: Exception) -> NNNormError:
        missing = require("chromadb.errors", "chroma").NotFoundError
        if isinstance(error, missing) and self._handle is not None:
            return self._gone()
        return super()._translate(error)

    def _metric(self, found: Any) -> StoreMetric:
        settings = found.configuration_json or {}
        space = (settings.get("hnsw") or settings.get("spann") or {}).get("space", "l2")
        if space not in ("ip", "cosine", "l2"):
            raise NNNormError(f"{self.name} compares by {space}; expected ip, cosine or l2")
        return space

    def _own(self, found: Any) -> type[int] | type[str]:
        """What the ids were before Chroma made strings of them."""
        return int if (found.metadata or {}).get("nnnorm_ids") == "numbers" else str

    def _has_string_ids(self) -> bool:
        return self._own(self.found) is str

    def _find_ids(self, ids: Ids) -> set[Any]:
        found = self.found
        with self._translating():
            names = found.get(ids=list(map(str, ids.tolist())), include=[])["ids"]
        return set(map(self._own(found), names))

    def _read_note(self) -> Any:
        return (self._look_again().metadata or {}).get("nnnorm")

    def _write_note(self, note: dict[str, Any]) -> None:
        self.check_served()
        found = self._look_again()
        found.modify(metadata={**(found.metadata or {}), "nnnorm": json.dumps(note)})

    # --- the client ---

    def _connect(self) -> Any:
        chromadb = require("chromadb", "chroma")
        if not self.is_server:
            return chromadb.PersistentClient(self.address)
        parts = urlsplit(self.address)
        headers = {}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        return chromadb.HttpClient(
            parts.hostname, port=parts.port or 8000, ssl=parts.scheme == "https", headers=headers
        )

    def _errors(self) -> tuple[type[Exception], ...]:
        errors = require("chromadb.errors", "chroma")
        if self._client is None:
            return (Exception,)  # opening raises whatever its parts raise
        return (errors.ChromaError, ValueError, TypeError, OSError)


def _described(rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metadata of rows, with their documents."""
    return [
        _unflatten(entry or {}) | ({} if text is None else {_DOCUMENT: text})
        for entry, text in zip(rows["metadatas"], rows["documents"], strict=True)
    ]


def _flatten(metadata: dict[str, Any]) -> dict[str, Any]:
    """Keep what Chroma can filter by, and put the rest into one string."""
    plain = {
        key: value
        for key, value in metadata.items()
        if isinstance(value, (str, bool, float))
        or (isinstance(value, int) and abs(value) <= _LARGEST)
    }
    rest = {key: value for key, value in metadata.items() if key not in plain}
    return {**plain, _OTHER: json.dumps(rest)} if rest else plain


def _unflatten(metadata: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in metadata.items() if key not in (BIAS, _OTHER)}
    return {**plain, **json.loads(metadata.get(_OTHER, "{}"))}
