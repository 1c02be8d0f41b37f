"""Qdrant through its client (`pip install 'nnnorm[qdrant]'`): a server, or a folder (local mode).

A server walks a graph; local mode compares with every point and is exact. A folder belongs to one
client at a time, so stores of the same folder share one.
"""

import atexit
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.store import Sample, StoreMetric, read_json_note
from nnnorm.index.stores.points import BIAS, DISTANCES, NAME, Described, Point, PointStore

__all__ = ["QdrantKind", "QdrantStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
QdrantKind = Literal["hnsw", "flat"]
_NUMBERS = 1_000_000  # in one request: a server takes 32 MB at most
# Open clients of folders, and how many stores use them.
_FOLDERS: dict[str, tuple[Any, int]] = {}


@atexit.register
def _close_folders() -> None:
    """A client that is left open complains when Python ends."""
    while _FOLDERS:
        _FOLDERS.popitem()[1][0].close()


class QdrantStore(PointStore):
    """A collection of a Qdrant server or of a folder.

    Parameters
    ----------
    place : str or PathLike
        A server (``http://localhost:6333``) or a folder. A server's key is read from the
        environment variable ``QDRANT_API_KEY``.
    collection : str
    kind : {"hnsw", "flat"}
        Whether a server walks its graph or compares with every point. A folder always does that.
    links, ef_construction, ef : int
        Of a server's graph; the first two of a new collection.
    vector : str, optional
        Name of the vector, in a collection with named ones.
    """

    engine = "qdrant"

    def __init__(
        self,
        place: str | os.PathLike[str],
        collection: str = "items",
        *,
        kind: QdrantKind = "hnsw",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
        vector: str = "",
    ) -> None:
        if kind not in get_args(QdrantKind):
            raise NNNormError(
                f"kind must be one of {', '.join(get_args(QdrantKind))}; got {kind!r}"
            )
        self._place, self._collection, self._asked = str(place), collection, vector
        self._is_server = self._place.startswith(("http://", "https://"))
        self._exact = kind == "flat"
        self._links, self._ef_construction, self._ef = links, ef_construction, ef
        self.is_graph = self._is_server and not self._exact
        self.keeps_vectors = not self._is_server
        self._client: Any = None
        self._using: str | None = None  # the vector's name, once looked up

    @classmethod
    def from_url(
        cls,
        place: str,
        *,
        collection: str = "",
        https: bool = False,
        kind: QdrantKind = "hnsw",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
        vector: str = "",
    ) -> "QdrantStore":
        """``qdrant://host:6333/photos``, or ``qdrant:folder?collection=photos``."""
        if place.startswith("//"):
            host, _, name = place[2:].partition("/")
            place, collection = f"http{'s' if https else ''}://{host}", collection or name
        return cls(
            place,
            collection or "items",
            kind=kind,
            links=links,
            ef_construction=ef_construction,
            ef=ef,
            vector=vector,
        )

    @property
    def name(self) -> str:
        return f"qdrant collection {self._collection} of {self._place}"

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        models = require("qdrant_client.models", "qdrant")
        params = models.VectorParams(size=width, distance=models.Distance(DISTANCES[metric]))
        self._using = self._asked or None
        with self._telling():
            self._open().create_collection(
                self._collection,
                vectors_config={self._asked: params} if self._asked else params,
                hnsw_config=models.HnswConfigDiff(
                    m=self._links, ef_construct=self._ef_construction
                ),
            )

    def read_note(self) -> dict[str, Any] | None:
        with self._telling():
            config = self._open().get_collection(self._collection).config
        return read_json_note((config.metadata or {}).get("nnnorm"))

    def write_note(self, note: Mapping[str, Any]) -> None:
        with self._telling():
            self._open().update_collection(self._collection, metadata={"nnnorm": dict(note)})
        if self.read_note() != dict(note):
            raise NNNormError(
                "this Qdrant server keeps no metadata of collections, where the correction is "
                "noted; use version 1.16 or later"
            )

    def close(self) -> None:
        client, self._client, self._using = self._client, None, None
        if client is None:
            return
        if self._is_server:
            client.close()
            return
        key = os.path.abspath(self._place)
        shared, users = _FOLDERS.pop(key)
        if users > 1:
            _FOLDERS[key] = shared, users - 1
        else:
            shared.close()

    # --- points ---

    def _describe(self) -> Described | None:
        if not self._is_server and not (Path(self._place) / "meta.json").exists():
            return None  # a client would make the folder
        with self._telling():
            client = self._open()
            if not client.collection_exists(self._collection):
                return None
            config = client.get_collection(self._collection).config
            n_points = client.count(self._collection, exact=True).count
        vectors = config.params.vectors
        if isinstance(vectors, dict):
            self._using = self._choose_vector(list(vectors), self._asked)
            vectors = vectors[self._using]
        if vectors is None:
            raise NNNormError(f"{self.name} has no dense vectors")
        codes = vectors.quantization_config or config.quantization_config
        kinds = [next(iter(codes.model_dump()))] if codes is not None else []
        if vectors.datatype not in (None, "float32"):
            kinds.append(vectors.datatype.value)
        return Described(vectors.size, vectors.distance.value, n_points, " and ".join(kinds))

    def _upsert(self, points: Sequence[Point]) -> None:
        models = require("qdrant_client.models", "qdrant")
        step = max(1, _NUMBERS // max(1, len(points[0].vector))) if points else 1
        for start in range(0, len(points), step):
            some = [
                models.PointStruct(
                    id=point.id,
                    vector={self._using: point.vector} if self._using else point.vector,
                    payload=dict(point.payload),
                )
                for point in points[start : start + step]
            ]
            with self._telling():
                self._open().upsert(self._collection, some, wait=True)

    def _known(self, ids: list[Any]) -> set[Any]:
        with self._telling():
            found = self._open().retrieve(self._collection, ids, with_payload=False)
        return {point.id for point in found}

    def _erase(self, ids: list[Any]) -> None:
        with self._telling():
            self._open().delete(self._collection, ids, wait=True)

    def _query(self, queries: FloatArray, k: int) -> list[list[Point]]:
        models = require("qdrant_client.models", "qdrant")
        params = None  # local mode has none
        if self._is_server:
            params = models.SearchParams(hnsw_ef=max(self._ef, k), exact=self._exact)
        requests = [
            models.QueryRequest(
                query=query,
                using=self._using,
                limit=k,
                params=params,
                with_payload=[BIAS, NAME],
            )
            for query in queries.tolist()
        ]
        with self._telling():
            answers = self._open().query_batch_points(self._collection, requests)
        return [
            [Point(hit.id, [], hit.payload or {}, hit.score) for hit in answer.points]
            for answer in answers
        ]

    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        with self._telling():
            found, following = self._open().scroll(
                self._collection,
                limit=batch,
                offset=offset,
                with_payload=True,
                with_vectors=[self._using] if self._using else True,
            )
        points = []
        for one in found:
            vector = one.vector[self._using] if self._using else one.vector
            points.append(Point(one.id, vector, one.payload or {}))
        return points, following

    # --- the client ---

    def _open(self) -> Any:
        if self._client is not None:
            return self._client
        qdrant_client = require("qdrant_client", "qdrant")
        if self._is_server:
            self._client = qdrant_client.QdrantClient(
                url=self._place,
                api_key=os.environ.get("QDRANT_API_KEY"),
                check_compatibility=False,
                timeout=60,
            )
        else:
            key = os.path.abspath(self._place)
            shared, users = _FOLDERS.get(key, (None, 0))
            with self._telling():
                self._client = shared or qdrant_client.QdrantClient(path=self._place)
            _FOLDERS[key] = self._client, users + 1
        return self._client

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Qdrant's errors in one sentence."""
        refused = require("qdrant_client.http.exceptions", "qdrant")
        try:
            yield
        except refused.ResponseHandlingException as error:
            raise NNNormError(
                f"Qdrant can't be reached at {self._place} ({first_line(error)}); check the "
                "address, and that the server runs"
            ) from error
        except refused.UnexpectedResponse as error:
            said = " ".join(str(error).split())
            raise NNNormError(f"{self.name}: Qdrant says: {said}") from error
        except (RuntimeError, OSError) as error:
            raise NNNormError(
                f"{self._place} can't be opened as a folder of Qdrant ({first_line(error)})"
            ) from error
