"""Chroma (`pip install 'nnnorm[chroma]'`): a folder, or a server; always a graph (HNSW).

Chroma's distance for inner products is 1 − product. Its ids are strings: a collection that nnnorm
creates notes where they were integers. Chroma skips existing ids without an error, so `add` is only
called with new ones. Documents are kept as metadata under Chroma's own key.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

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
from nnnorm.index.stores.database import BIAS, DatabaseStore

# What Chroma can't keep (lists, mappings, None) goes under this key of an item's metadata.
_OTHER = "nnnorm_json"
_DOCUMENT = "chroma:document"
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
    place : str or PathLike
        A folder, or a server (``http://localhost:8000``).
    """

    engine, product = "chroma", "Chroma"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    is_graph = True
    keeps_vectors = False
    largest_k: int = 30_000  # hits of one request: its SQLite takes no more variables
    options_type = ChromaOptions
    options: ChromaOptions

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
            self.client.create_collection(
                self.collection,
                configuration={"hnsw": graph},
                metadata=about,
                embedding_function=None,
            )

    def add(self, items: Items) -> None:
        known = items.metadata_list()
        documents = [entry.pop(_DOCUMENT, None) for entry in known]
        kept = [_flatten(entry) for entry in known]
        for entry, value in zip(kept, items.value_list(), strict=True):
            if value is not None:
                entry[BIAS] = value
        with self._translating():
            self.found.add(
                ids=list(map(str, items.ids.tolist())),
                embeddings=items.vectors,
                metadatas=[entry or None for entry in kept] if any(kept) else None,
                documents=documents if any(one is not None for one in documents) else None,
            )

    def delete(self, ids: Ids) -> None:
        with self._translating():
            self.found.delete(ids=list(map(str, ids.tolist())))

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        found = self.found
        own, metric = self._own(found), self._metric(found)
        rows: list[list[Hit]] = []
        step = max(1, self.largest_k // k)
        for start in range(0, len(queries), step):
            with self._translating():
                hits = found.query(
                    query_embeddings=queries[start : start + step],
                    n_results=k,
                    include=["distances", "metadatas"],
                )
            for columns in zip(hits["ids"], hits["distances"], hits["metadatas"], strict=True):
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
            nothing = [None] * len(rows["ids"])
            metadatas = [entry or {} for entry in rows["metadatas"] or nothing]
            known = [
                {**_unflatten(entry), **({} if text is None else {_DOCUMENT: text})}
                for entry, text in zip(metadatas, rows["documents"] or nothing, strict=True)
            ]
            values = [entry.get(BIAS) for entry in metadatas]
            yield make_items(list(map(own, rows["ids"])), rows["embeddings"], values, known)

    # --- facts about the collection ---

    @property
    def found(self) -> Any:
        """Chroma's own collection, as it is now."""
        return self._found(self._find())

    def _find(self) -> Any:
        if self._is_absent(Path(self.address) / "chroma.sqlite3"):
            return None
        missing = require("chromadb.errors", "chroma").NotFoundError
        with self._translating():
            try:
                return self.client.get_collection(self.collection, embedding_function=None)
            except missing:
                return None

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
        return (self.found.metadata or {}).get("nnnorm")

    def _write_note(self, note: dict[str, Any]) -> None:
        found = self.found
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
