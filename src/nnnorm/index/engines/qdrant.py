"""Qdrant through its client (`pip install 'nnnorm[qdrant]'`): a server, or a folder (local mode).

A server searches a graph. Local mode compares every point, so it is exact; only one process can
use it at a time. The name of the index is an alias. Ids other than whole numbers from 0 become
UUIDs, and the payload has the original ids.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from nnnorm.errors import require
from nnnorm.index.backend import BATCH, FloatArray, Hits, Ids, Items, Layout, chunks, whole
from nnnorm.index.server import ServerBackend, ServerOptions, join_fields

_NUMBERS = 1_000_000  # in one request: a server takes 32 MB at most
_ID = "nnnorm_id"


@dataclass(frozen=True, kw_only=True)
class QdrantOptions(ServerOptions):
    """`kind` and `ef` apply to searches, `vector` to a collection to copy."""

    kind: Literal["hnsw", "flat"] = "hnsw"
    links: int = whole(16, at_most=512)
    ef_construction: int = whole(100, at_least=4)
    ef: int = whole(128)
    quantize: Literal["no", "int8"] = "no"
    vector: str = ""


class QdrantBackend(ServerBackend):
    """An index in Qdrant."""

    engine, options_type, key_variable = "qdrant", QdrantOptions, "QDRANT_API_KEY"
    filters = "a Filter of qdrant_client.models, or the same as a mapping or in JSON"
    options: QdrantOptions
    created_by = ("links", "ef_construction", "quantize")

    def configure(self) -> None:
        self.has_one_range = self.options.quantize == "int8"

    @property
    def _models(self) -> Any:
        return require("qdrant_client.models", "qdrant")

    def _connect(self) -> Any:
        client = require("qdrant_client", "qdrant").QdrantClient
        if not self.is_server:
            return _Shared(client(path=self.address, force_disable_check_same_thread=True))
        key = os.environ.get(self.key_variable)
        return client(url=self.address, api_key=key, check_compatibility=False, timeout=60)

    # --- versions ---

    def _list_names(self) -> list[str]:
        return [one.name for one in self.client.get_collections().collections]

    def _served_name(self) -> str | None:
        aliases = self.client.get_aliases().aliases
        return {one.alias_name: one.collection_name for one in aliases}.get(self.collection)

    def _write_config(self, name: str, config: dict[str, Any] | None) -> None:
        self.client.update_collection(name, metadata={"nnnorm": config})

    def _read_config(self, name: str) -> Any:
        return (self.client.get_collection(name).config.metadata or {}).get("nnnorm")

    def _delete(self, name: str) -> None:
        self.client.delete_collection(name)

    def create(self, version: str, layout: Layout) -> None:
        models, codes = self._models, None
        if self.options.quantize == "int8":
            scalar = models.ScalarQuantizationConfig(type="int8", always_ram=True)
            codes = models.ScalarQuantization(scalar=scalar)
        about, built = models.VectorParams(size=layout.width, distance="Dot"), self.options
        graph = models.HnswConfigDiff(m=built.links, ef_construct=built.ef_construction)
        options = {"hnsw_config": graph, "quantization_config": codes}
        self.client.create_collection(self._name(version), vectors_config=about, **options)

    def swap(self, version: str) -> None:
        models = self._models
        removed = models.DeleteAlias(alias_name=self.collection)
        made = models.CreateAlias(collection_name=self._name(version), alias_name=self.collection)
        steps = [models.CreateAliasOperation(create_alias=made)]
        if self.served() is not None:
            steps.insert(0, models.DeleteAliasOperation(delete_alias=removed))
        self.client.update_collection_aliases(steps)

    # --- items ---

    def add(self, version: str, items: Items) -> None:
        struct = self._models.PointStruct
        for part in chunks(items, max(1, _NUMBERS // items.vectors.shape[1])):
            points = [
                struct(id=_point_id(own), vector=vector.tolist(), payload={**entry, _ID: own})
                for own, vector, entry in part
            ]
            self.client.upsert(self._name(version), points, wait=True)

    def upsert(self, version: str, items: Items) -> None:
        self.add(version, items)

    def delete(self, version: str, ids: Ids) -> None:
        points = [_point_id(own) for own in ids.tolist()]
        self.client.delete(self._name(version), points, wait=True)

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        points = [_point_id(own) for own in ids.tolist()]
        found = self.client.retrieve(self._name(version), points, with_payload=True)
        return {_own_id(point): join_fields(point.payload) for point in found}

    def count(self, version: str) -> int:
        return int(self.client.count(self._name(version), exact=True).count)

    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        models, about = self._models, getattr(self.client, "init_options", {})
        how = {"hnsw_ef": max(self.options.ef, k), "exact": self.options.kind == "flat"}
        # Local mode warns about params.
        is_local = about.get("path") or about.get("location") == ":memory:"
        params = None if is_local else models.SearchParams(**how)
        asked = {"filter": self._filter(filter), "params": params, "with_payload": [_ID]}
        requests = [models.QueryRequest(query=one, limit=k, **asked) for one in vectors.tolist()]
        answers = self.client.query_batch_points(self._name(version), requests)
        rows = [[(_own_id(hit), hit.score) for hit in answer.points] for answer in answers]
        return Hits.read(rows)

    def _filter(self, filter: Any) -> Any:
        try:
            given = json.loads(filter) if isinstance(filter, str) else filter
            return self._models.Filter(**given) if isinstance(given, Mapping) else given
        except (ValueError, TypeError):
            raise self.wrong_filter(filter) from None

    def scan(self, version: str | None) -> Iterator[Items]:
        offset: Any = None
        while True:
            points, offset = self.client.scroll(
                self._name(version), limit=BATCH, offset=offset, with_vectors=True
            )
            if points:
                vectors = [one.vector for one in points]
                if isinstance(vectors[0], dict):  # of a copied collection with named vectors
                    vectors = [one[self.choose_vector(list(one))] for one in vectors]
                entries = [join_fields(one.payload) for one in points]
                yield Items.read([_own_id(one) for one in points], vectors, entries)
            if offset is None:
                return


class _Shared:
    """A client in local mode, which isn't thread-safe: calls run one at a time."""

    def __init__(self, client: Any) -> None:
        self._client, self._lock = client, threading.RLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                return found(*args, **options)

        return call if callable(found) else found


def _point_id(own: int | str) -> int | str:
    if isinstance(own, int) and own >= 0:
        return own
    with suppress(ValueError, AttributeError):  # text that is a UUID stays as it is
        given = UUID(own)  # type: ignore[arg-type]
        if str(given) == own and given.version != 5:  # version 5 may be the UUID of another text
            return own
    return str(uuid5(NAMESPACE_URL, f"nnnorm:{own}"))


def _own_id(point: Any) -> int | str:
    return (point.payload or {}).get(_ID, point.id)
