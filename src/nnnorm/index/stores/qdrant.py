"""Qdrant through its client (`pip install 'nnnorm[qdrant]'`): a server, or a folder (local mode).

A server walks a graph; local mode compares with every point and is exact. A folder can be open in
one client at a time, so stores of the same folder share it, one call after the other. The name of
a collection that nnnorm creates is an alias.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import ServerOptions, ef, ef_construction, option
from nnnorm.index.store import FloatArray, Found, Ids, Items, Sample, Store, StoreMetric
from nnnorm.index.stores.database import AliasedStore, read_filter
from nnnorm.index.stores.points import (
    DISTANCES,
    PAYLOAD,
    Described,
    Payload,
    Point,
    PointStore,
    Shared,
)

_NUMBERS = 1_000_000  # in one request: a server takes 32 MB at most
_VECTOR = "nnnorm_vector"  # metadata of a collection: the name of the vector that is corrected
_FOLDERS = Shared()
atexit.register(_FOLDERS.close)  # a client that is left open complains when Python ends
# Local mode is not made for threads: one call at a time.
_LOCKS: "weakref.WeakKeyDictionary[Any, threading.RLock]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class QdrantOptions(ServerOptions):
    """Options of Qdrant."""

    kind: Literal["hnsw", "flat"] = option(
        "hnsw", "Search of a server: through its graph, or a scan of every point, as in a folder."
    )
    links: int = option(
        16, "Links per point in the graph of a new collection (HNSW's m).", at_most=512
    )
    ef_construction: int = ef_construction()
    ef: int = ef()
    vector: str = option("", "Name of the vector, in a collection with named ones.")


class QdrantStore(AliasedStore, PointStore):
    """A collection of a Qdrant server or of a folder.

    Parameters
    ----------
    place : str, PathLike or QdrantClient
        A server (``http://localhost:6333``), a folder, or a client, which `close` leaves open. The
        key of a server is read from the environment variable ``QDRANT_API_KEY``.
    """

    engine, product, key_variable = "qdrant", "Qdrant", "QDRANT_API_KEY"
    client_type, async_client_type = "QdrantClient", "AsyncQdrantClient"
    filters = "a Filter of qdrant_client.models, or the same as a mapping or in JSON"
    options_type = QdrantOptions
    options: QdrantOptions

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if not self._owns_client:
            about = place.init_options
            self.is_server = not about["path"] and about["location"] != ":memory:"
        self.is_graph = self.is_server and self.options.kind == "hnsw"
        self.keeps_vectors = self.is_exact = not self.is_server

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        models = require("qdrant_client.models", "qdrant")
        self._using = self.options.vector
        vector = models.VectorParams(size=width, distance=models.Distance(DISTANCES[metric]))
        self._create(
            vectors_config=self._name_vector(vector),
            hnsw_config=models.HnswConfigDiff(
                m=self.options.links, ef_construct=self.options.ef_construction
            ),
        )

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        """Create an empty collection with the other vectors and payload indexes of `source`."""
        if not isinstance(source, QdrantStore):
            self.create(width, metric, strings=strings, sample=sample)
            return
        models = require("qdrant_client.models", "qdrant")
        source._know()
        with source._translating():
            about = source.client.get_collection(source.actual)
        config = about.config
        named = config.params.vectors
        others = dict(named) if isinstance(named, dict) else {"": named}
        vector = others.pop(source._using).model_copy(
            update={"size": width, "distance": models.Distance(DISTANCES[metric])}
        )
        self._using = self.options.vector or source._using
        self._create(
            vectors_config=self._name_vector(vector, others),
            sparse_vectors_config=config.params.sparse_vectors,
            hnsw_config=models.HnswConfigDiff(**config.hnsw_config.model_dump()),
            quantization_config=config.quantization_config,
            on_disk_payload=config.params.on_disk_payload,
        )
        for field, index in (about.payload_schema or {}).items():
            with self._translating():
                self.client.create_payload_index(
                    self.actual, field, field_schema=index.params or index.data_type
                )

    def add(self, items: Items) -> None:
        self.check_served()
        super().add(items)

    def delete(self, ids: Ids) -> None:
        self.check_served()
        super().delete(ids)

    def _create(self, **settings: Any) -> None:
        name = self._new_generation()
        with self._translating():
            self.client.create_collection(name, metadata={_VECTOR: self._using}, **settings)
            self._serve(name)

    # --- the alias ---

    def _forget(self) -> None:
        super()._forget()
        self._using, self._known, self._codes = "", None, None

    def _is_missing(self) -> bool:
        return self._is_absent(Path(self.address) / "meta.json")

    def _find_alias(self) -> str | None:
        aliases = self.client.get_aliases().aliases
        return next(
            (one.collection_name for one in aliases if one.alias_name == self.collection), None
        )

    def _point_alias(self, target: str) -> None:
        models = require("qdrant_client.models", "qdrant")
        removed = models.DeleteAliasOperation(
            delete_alias=models.DeleteAlias(alias_name=self.collection)
        )
        created = models.CreateAliasOperation(
            create_alias=models.CreateAlias(collection_name=target, alias_name=self.collection)
        )
        is_new = self._find_alias() is None
        self.client.update_collection_aliases([created] if is_new else [removed, created])

    def _drop_alias(self) -> None:
        models = require("qdrant_client.models", "qdrant")
        alias = models.DeleteAlias(alias_name=self.collection)
        self.client.update_collection_aliases([models.DeleteAliasOperation(delete_alias=alias)])

    def _list_collections(self) -> list[str]:
        return [one.name for one in self.client.get_collections().collections]

    def _drop_collection(self, name: str) -> None:
        self.client.delete_collection(name)

    def _mark_dropped(self, name: str) -> None:
        # A folder loses its points before its list of collections is written.
        self.client.update_collection(name, metadata={"nnnorm": None})

    # --- points ---

    def _describe(self) -> Described | None:
        name = self._find()
        if name is None:
            return None
        with self._translating():
            config = self.client.get_collection(name).config
            n_points = self.client.count(name, exact=True).count
        vectors = config.params.vectors
        if isinstance(vectors, dict):
            noted = (config.metadata or {}).get(_VECTOR, "")
            self._using = self._choose_vector(list(vectors), self.options.vector or noted)
            vectors = vectors[self._using]
        if vectors is None:
            raise NNNormError(f"{self.name} has no dense vectors")
        codes = vectors.quantization_config or config.quantization_config
        kinds = [next(iter(codes.model_dump()))] if codes is not None else []
        if vectors.datatype not in (None, "float32"):
            kinds.append(vectors.datatype.value)
        return Described(vectors.size, vectors.distance.value, n_points, " and ".join(kinds))

    def _upsert(self, points: Sequence[Point]) -> None:
        struct = require("qdrant_client.models", "qdrant").PointStruct
        step = max(1, _NUMBERS // max(1, len(points[0].vector))) if points else 1
        for start in range(0, len(points), step):
            some = [
                struct(
                    id=point.id,
                    vector=self._name_vector(point.vector, point.others),
                    payload=dict(point.payload),
                )
                for point in points[start : start + step]
            ]
            with self._translating():
                self.client.upsert(self.actual, some, wait=True)

    def _find_ids(self, ids: Ids) -> set[Any]:
        with self._translating():
            found = self.client.retrieve(self.actual, ids.tolist(), with_payload=False)
        return {point.id for point in found}

    def _erase(self, ids: list[Any]) -> None:
        with self._translating():
            self.client.delete(self.actual, ids, wait=True)

    def _payloads(self, ids: list[Any]) -> dict[Any, Mapping[str, Any]]:
        with self._translating():
            found = self.client.retrieve(self.actual, ids, with_payload=True)
        return {point.id: point.payload or {} for point in found}

    def _query(self, queries: FloatArray, k: int, filter: Any, payload: Payload) -> list[list[Any]]:
        calls = self._calls(queries, k, filter, payload)
        with self._translating():
            answers = [getattr(self.client, name)(self.actual, **given) for name, given in calls]
        return _list_hits(answers)

    async def search_async(
        self, client: Any, queries: FloatArray, k: int, filter: Any = None
    ) -> Found:
        self._know()
        for payload in (self._payload(), PAYLOAD):
            calls = self._calls(queries, k, filter, payload)
            with super()._translating():  # without the lock of local mode
                answers = [await getattr(client, n)(self.actual, **given) for n, given in calls]
            hits = _list_hits(answers)
            if not self._lacks_names(hits, payload):
                break
        return self._gather(hits)

    def _calls(
        self, queries: FloatArray, k: int, filter: Any, payload: Payload
    ) -> list[tuple[str, dict[str, Any]]]:
        """The methods of a client that find the hits, with their arguments."""
        models = require("qdrant_client.models", "qdrant")
        wanted = read_filter(filter, self.filters)
        if isinstance(wanted, Mapping):
            with self._translating():
                wanted = models.Filter(**wanted)
        params = None  # local mode has none
        if self.is_server:
            params = models.SearchParams(
                hnsw_ef=max(self.options.ef, k), exact=self.options.kind == "flat"
            )
        about: dict[str, Any] = {
            "using": self._using or None,
            "limit": k,
            "with_payload": payload,
        }
        if len(queries) == 1 or not self.is_server:  # a batch of local mode only copies it
            about |= {"query_filter": wanted, "search_params": params}
            return [("query_points", {"query": query, **about}) for query in queries.tolist()]
        requests = [
            models.QueryRequest(query=query, filter=wanted, params=params, **about)
            for query in queries.tolist()
        ]
        return [("query_batch_points", {"requests": requests})]

    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        with self._translating():
            found, following = self.client.scroll(
                self.actual, limit=batch, offset=offset, with_payload=True, with_vectors=True
            )
        return [self._make_point(one.id, one.vector, one.payload) for one in found], following

    # --- the client ---

    def _read_note(self) -> Any:
        with self._translating():
            config = self.client.get_collection(self.actual).config
        return (config.metadata or {}).get("nnnorm")

    def _write_note(self, note: dict[str, Any]) -> None:
        self.check_served()
        self.client.update_collection(self.actual, metadata={"nnnorm": note})  # others stay

    def _connect(self) -> Any:
        client = require("qdrant_client", "qdrant").QdrantClient
        if not self.is_server:
            folder = os.path.abspath(self.address)
            return _FOLDERS.take(
                folder, lambda: client(path=self.address, force_disable_check_same_thread=True)
            )
        key = os.environ.get(self.key_variable)
        return client(url=self.address, api_key=key, check_compatibility=False, timeout=60)

    def _disconnect(self, client: Any) -> None:
        if self.is_server or _FOLDERS.release(os.path.abspath(self.address)):
            client.close()

    def _errors(self) -> tuple[type[Exception], ...]:
        exceptions = require("qdrant_client.http.exceptions", "qdrant")
        return (exceptions.ApiException, RuntimeError, ValueError, OSError)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        lock: Any = nullcontext()
        if self._client is not None and not self.is_server:
            lock = _LOCKS.setdefault(self._client, threading.RLock())
        with lock, super()._translating():
            yield

    def _quote(self, error: Exception) -> str:
        return " ".join(str(error).split())

    def _translate(self, error: Exception) -> NNNormError:
        exceptions = require("qdrant_client.http.exceptions", "qdrant")
        if isinstance(error, (exceptions.UnexpectedResponse, ValueError)):
            return super()._translate(error)
        return self._unreachable(error)


def _list_hits(answers: list[Any]) -> list[list[Any]]:
    """The hits of each query, from the answer to one of them or to a batch."""
    every = [
        one for answer in answers for one in (answer if isinstance(answer, list) else [answer])
    ]
    return [one.points for one in every]
