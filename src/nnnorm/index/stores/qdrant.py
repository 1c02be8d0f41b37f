"""Qdrant through its client (`pip install 'nnnorm[qdrant]'`): a server, or a folder (local mode).

A server walks a graph; local mode compares with every point and is exact. A folder can be open in
one client at a time, so stores of the same folder share it.
"""

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import ServerOptions, ef, ef_construction, option
from nnnorm.index.store import FloatArray, Ids, Place, Sample, StoreMetric
from nnnorm.index.stores.points import DISTANCES, PAYLOAD, Described, Point, PointStore, Shared

_NUMBERS = 1_000_000  # in one request: a server takes 32 MB at most
_FOLDERS = Shared()
atexit.register(_FOLDERS.close)  # a client that is left open complains when Python ends


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


class QdrantStore(PointStore):
    """A collection of a Qdrant server or of a folder.

    Parameters
    ----------
    place : str or PathLike
        A server (``http://localhost:6333``) or a folder. The key of a server is read from the
        environment variable ``QDRANT_API_KEY``.
    """

    engine, product, key_variable = "qdrant", "Qdrant", "QDRANT_API_KEY"
    options_type = QdrantOptions
    options: QdrantOptions

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self.is_graph = self.is_server and self.options.kind == "hnsw"
        self.keeps_vectors = not self.is_server

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        models = require("qdrant_client.models", "qdrant")
        self._using = self.options.vector
        with self._translating():
            self.client.create_collection(
                self.collection,
                vectors_config=self._name_vector(
                    models.VectorParams(size=width, distance=models.Distance(DISTANCES[metric]))
                ),
                hnsw_config=models.HnswConfigDiff(
                    m=self.options.links, ef_construct=self.options.ef_construction
                ),
            )

    # --- points ---

    def _describe(self) -> Described | None:
        if self._is_absent(Path(self.address) / "meta.json"):
            return None
        with self._translating():
            if not self.client.collection_exists(self.collection):
                return None
            config = self.client.get_collection(self.collection).config
            n_points = self.client.count(self.collection, exact=True).count
        vectors = config.params.vectors
        if isinstance(vectors, dict):
            self._using = self._choose_vector(list(vectors), self.options.vector)
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
                    id=point.id, vector=self._name_vector(point.vector), payload=dict(point.payload)
                )
                for point in points[start : start + step]
            ]
            with self._translating():
                self.client.upsert(self.collection, some, wait=True)

    def _find_ids(self, ids: Ids) -> set[Any]:
        with self._translating():
            found = self.client.retrieve(self.collection, ids.tolist(), with_payload=False)
        return {point.id for point in found}

    def _erase(self, ids: list[Any]) -> None:
        with self._translating():
            self.client.delete(self.collection, ids, wait=True)

    def _query(self, queries: FloatArray, k: int) -> list[list[Point]]:
        models = require("qdrant_client.models", "qdrant")
        params = None  # local mode has none
        if self.is_server:
            params = models.SearchParams(
                hnsw_ef=max(self.options.ef, k), exact=self.options.kind == "flat"
            )
        requests = [
            models.QueryRequest(
                query=query,
                using=self._using or None,
                limit=k,
                params=params,
                with_payload=PAYLOAD,
            )
            for query in queries.tolist()
        ]
        with self._translating():
            answers = self.client.query_batch_points(self.collection, requests)
        return [
            [Point(hit.id, [], hit.payload or {}, hit.score) for hit in answer.points]
            for answer in answers
        ]

    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        with self._translating():
            found, following = self.client.scroll(
                self.collection,
                limit=batch,
                offset=offset,
                with_payload=True,
                with_vectors=[self._using] if self._using else True,
            )
        return [
            Point(one.id, self._pick_vector(one.vector), one.payload or {}) for one in found
        ], following

    # --- the client ---

    def _read_note(self) -> Any:
        with self._translating():
            config = self.client.get_collection(self.collection).config
        return (config.metadata or {}).get("nnnorm")

    def _write_note(self, note: dict[str, Any]) -> None:
        self.client.update_collection(self.collection, metadata={"nnnorm": note})

    def _connect(self) -> Any:
        client = require("qdrant_client", "qdrant").QdrantClient
        if not self.is_server:
            folder = os.path.abspath(self.address)
            return _FOLDERS.take(folder, lambda: client(path=self.address))
        key = os.environ.get(self.key_variable)
        return client(url=self.address, api_key=key, check_compatibility=False, timeout=60)

    def _disconnect(self, client: Any) -> None:
        self._using = ""
        if self.is_server or _FOLDERS.release(os.path.abspath(self.address)):
            client.close()

    def _errors(self) -> tuple[type[Exception], ...]:
        exceptions = require("qdrant_client.http.exceptions", "qdrant")
        return (exceptions.ApiException, RuntimeError, OSError)

    def _quote(self, error: Exception) -> str:
        return " ".join(str(error).split())

    def _translate(self, error: Exception) -> NNNormError:
        exceptions = require("qdrant_client.http.exceptions", "qdrant")
        if isinstance(error, exceptions.UnexpectedResponse):
            return super()._translate(error)
        return self._unreachable(error)
