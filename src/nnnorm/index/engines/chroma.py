"""Chroma (`pip install 'nnnorm[chroma]'`): a folder, or a server; always a graph (HNSW).

Chroma has no aliases: the collection with the name of the index is empty, and its metadata names
the served one. Ids are text in Chroma. When a collection is copied, its documents become the
metadata ``chroma_document``.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from nnnorm.errors import require
from nnnorm.index.backend import BATCH, FloatArray, GraphOptions, Hits, Ids, Items, Layout, chunks
from nnnorm.index.server import ServerBackend, ServerOptions, join_fields, split_fields

_MOST = 5000  # items in a request, because Chroma's SQLite accepts about 32,000 values
_SERVED = "nnnorm_served"


@dataclass(frozen=True, kw_only=True)
class ChromaOptions(ServerOptions, GraphOptions):
    """Options of a new index, including `ef`: in Chroma, searches can't change it."""


class ChromaBackend(ServerBackend):
    """An index in Chroma."""

    engine, options_type = "chroma", ChromaOptions
    filters = "a Chroma where clause, as a mapping or in JSON"
    largest_k = 30_000
    builtin_errors = (OSError, RuntimeError, ValueError, TypeError, KeyError)
    options: ChromaOptions
    created_by = ("links", "ef_construction", "ef")

    def _connect(self) -> Any:
        chromadb = require("chromadb", "chroma")
        if not self.is_server:
            return chromadb.PersistentClient(self.address)
        parts, headers = urlsplit(self.address), {}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        return chromadb.HttpClient(
            parts.hostname, port=parts.port or 8000, ssl=parts.scheme == "https", headers=headers
        )

    def close(self) -> None:
        # Chroma's client doesn't close the connections to its server.
        session = getattr(getattr(self._client, "_server", None), "_session", None)
        super().close()
        if session is not None and isinstance(self.place, str):
            session.close()

    def _get(self, name: str) -> Any:
        return self.client.get_collection(name, embedding_function=None)

    # --- versions ---

    def _list_names(self) -> list[str]:
        return [one.name for one in self.client.list_collections()]

    def _served_name(self) -> str | None:
        if self.collection not in self._list_names():
            return None
        return str((self._get(self.collection).metadata or {}).get(_SERVED, "")) or None

    def _write_config(self, name: str, config: dict[str, Any] | None) -> None:
        found = self._get(name)
        found.modify(metadata={**found.metadata, "nnnorm": json.dumps(config)})

    def _read_config(self, name: str) -> Any:
        return json.loads(self._get(name).metadata.get("nnnorm") or "null")

    def _delete(self, name: str) -> None:
        self.client.delete_collection(name)

    def create(self, version: str, layout: Layout) -> None:
        graph = {"space": "ip", "max_neighbors": self.options.links, "ef_search": self.options.ef}
        graph["ef_construction"] = self.options.ef_construction
        about = {"nnnorm_ids": "text" if layout.string_ids else "numbers"}
        options = {"configuration": {"hnsw": graph}, "metadata": about}
        self.client.create_collection(self._name(version), embedding_function=None, **options)

    def swap(self, version: str) -> None:
        served = {_SERVED: self._name(version)}
        if self.collection in self._list_names():
            self._get(self.collection).modify(metadata=served)
        else:
            self.client.create_collection(self.collection, metadata=served, embedding_function=None)

    # --- items ---

    def _own(self, found: Any) -> type[int] | type[str]:
        return int if (found.metadata or {}).get("nnnorm_ids") == "numbers" else str

    def add(self, version: str, items: Items) -> None:
        found = self._get(self._name(version))
        for part in chunks(items, _MOST):
            kept = [split_fields(entry, _is_field, float) or None for entry in part.metadata]
            names = list(map(str, part.ids.tolist()))
            found.add(names, part.vectors, kept if any(kept) else None)

    def delete(self, version: str, ids: Ids) -> None:
        found = self._get(self._name(version))
        for names in chunks(list(map(str, ids.tolist())), _MOST):
            found.delete(ids=names)

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        found = self._get(self._name(version))
        own, entries = self._own(found), dict[Any, dict[str, Any]]()
        for names in chunks(list(map(str, ids.tolist())), _MOST):
            rows = found.get(ids=names, include=["metadatas"])
            pairs = zip(rows["ids"], rows["metadatas"], strict=True)
            entries.update((own(name), join_fields(entry)) for name, entry in pairs)
        return entries

    def count(self, version: str) -> int:
        return int(self._get(self._name(version)).count())

    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        found = self._get(self._name(version))
        own, rows = self._own(found), []
        where = json.loads(filter) if isinstance(filter, str) else filter
        for some in chunks(vectors, max(1, self.largest_k // k)):
            asked = {"n_results": k, "where": where, "include": ["distances"]}
            hits = found.query(query_embeddings=some, **asked)
            for ids, distances in zip(hits["ids"], hits["distances"], strict=True):
                rows.append([(own(i), 1 - d) for i, d in zip(ids, distances, strict=True)])
        return Hits.read(rows)

    def scan(self, version: str | None) -> Iterator[Items]:
        found = self._get(self._name(version))
        own = self._own(found)
        parts = ["embeddings", "metadatas", "documents"]
        for start in range(0, found.count(), BATCH):
            rows = found.get(limit=BATCH, offset=start, include=parts)
            entries = [
                join_fields(entry) | ({} if text is None else {"chroma_document": text})
                for entry, text in zip(rows["metadatas"], rows["documents"], strict=True)
            ]
            yield Items.read(list(map(own, rows["ids"])), rows["embeddings"], entries)


def _is_field(name: str, value: Any) -> bool:
    """Whether Chroma stores a value unchanged."""
    return isinstance(value, (str, bool, int, float)) and not name.startswith(("chroma", "#", "$"))
