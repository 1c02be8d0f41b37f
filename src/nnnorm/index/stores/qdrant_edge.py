"""Qdrant's embedded engine (`pip install 'nnnorm[qdrant-edge]'`): a shard in a folder, no server.

The index is that of the server: `save` builds its graph once there are enough vectors. The note is
a file beside the folder. A shard can be open once, so stores of the same folder share it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.options import Options, ef, ef_construction, option
from nnnorm.index.store import FloatArray, Ids, Place, Sample, StoreMetric
from nnnorm.index.stores.points import DISTANCES, PAYLOAD, Described, Point, PointStore, Shared
from nnnorm.io import write_whole

_SHARDS = Shared()


@dataclass(frozen=True, kw_only=True)
class QdrantEdgeOptions(Options):
    """Options of Qdrant Edge."""

    kind: Literal["hnsw", "flat"] = option(
        "hnsw", "Search: through the graph, once there is one, or a scan of every point."
    )
    links: int = option(16, "Links per point in the graph of a new shard (HNSW's m).", at_most=512)
    ef_construction: int = ef_construction()
    ef: int = ef()
    vector: str = option("", "Name of the vector, in a shard with named ones.")


class QdrantEdgeStore(PointStore):
    """A shard of Qdrant Edge.

    Parameters
    ----------
    place : str or PathLike
        Folder of the shard.
    """

    engine, product = "qdrant-edge", "Qdrant Edge"
    options_type = QdrantEdgeOptions
    options: QdrantEdgeOptions

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self.is_graph = self.options.kind == "hnsw"
        self._path = Path(self.address)

    @property
    def name(self) -> str:
        return f"{self.engine} {self.where}"

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        edge = require("qdrant_edge", "qdrant-edge")
        self._using = self.options.vector
        distance = getattr(edge.Distance, DISTANCES[metric])
        config = edge.EdgeConfig(
            vectors=self._name_vector(edge.EdgeVectorParams(size=width, distance=distance)),
            hnsw_config=edge.HnswIndexConfig(
                m=self.options.links,
                ef_construct=self.options.ef_construction,
                full_scan_threshold=10_000,
            ),
        )
        with self._translating():
            self._path.mkdir(parents=True, exist_ok=True)
            shard = edge.EdgeShard.create(str(self._path), config)
        self._client = _SHARDS.take(os.path.abspath(self._path), lambda: shard)

    def save(self) -> None:
        """Build the graph where it is due, and write everything to disk."""
        with self._translating():
            self.client.optimize()
            self.client.flush()

    # --- points ---

    def _describe(self) -> Described | None:
        config = self._path / "edge_config.json"
        if not config.exists():
            return None
        try:
            about = json.loads(config.read_text(encoding="utf-8"))
            self._using = self._choose_vector(list(about["vectors"]), self.options.vector)
            vectors = about["vectors"][self._using]
            width, distance = vectors["size"], vectors["distance"]
            codes = vectors.get("quantization_config") or about.get("quantization_config") or ()
            kinds = [*codes]
            if vectors.get("datatype", "float32") != "float32":
                kinds.append(vectors["datatype"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, NNNormError):
                raise
            raise NNNormError(
                f"{config} can't be read as the configuration of a shard ({first_line(error)})"
            ) from error
        with self._translating():
            n_points = self.client.info().points_count
        return Described(width, distance, n_points, " and ".join(kinds))

    def _upsert(self, points: Sequence[Point]) -> None:
        edge = require("qdrant_edge", "qdrant-edge")
        some = [edge.Point(p.id, self._name_vector(p.vector), dict(p.payload)) for p in points]
        with self._translating():
            self.client.update(edge.UpdateOperation.upsert_points(some))

    def _find_ids(self, ids: Ids) -> set[Any]:
        with self._translating():
            return {_plain(point.id) for point in self.client.retrieve(ids.tolist(), False, False)}

    def _erase(self, ids: list[Any]) -> None:
        operation = require("qdrant_edge", "qdrant-edge").UpdateOperation
        with self._translating():
            self.client.update(operation.delete_points(ids))

    def _query(self, queries: FloatArray, k: int) -> list[list[Point]]:
        edge = require("qdrant_edge", "qdrant-edge")
        params = edge.SearchParams(hnsw_ef=max(self.options.ef, k), exact=not self.is_graph)
        requests = [
            edge.QueryRequest(
                limit=k,
                query=edge.Query.Nearest(query, using=self._using or None),
                with_payload=PAYLOAD,
                params=params,
            )
            for query in queries.tolist()
        ]
        with self._translating():
            answers = self.client.query_batch(edge.QueryBatchRequest(requests))
        return [
            [Point(_plain(hit.id), [], hit.payload or {}, hit.score) for hit in hits]
            for hits in answers
        ]

    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        request = require("qdrant_edge", "qdrant-edge").ScrollRequest(
            limit=batch, offset=offset, with_payload=True, with_vector=True
        )
        with self._translating():
            found, following = self.client.scroll(request)
        return [
            Point(_plain(one.id), self._pick_vector(one.vector), one.payload or {}) for one in found
        ], following

    # --- the shard, and the file beside it ---

    @property
    def _note_path(self) -> Path:
        return self._path.with_name(self._path.name + ".nnnorm")

    def _read_note(self) -> Any:
        if not self._note_path.exists():
            return None
        try:
            return json.loads(self._note_path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise NNNormError(
                f"{self._note_path} is no note of nnnorm ({first_line(error)}); restore it "
                "together with the shard, or build the shard again"
            ) from error

    def _write_note(self, note: dict[str, Any]) -> None:
        text = json.dumps(note, indent=2).encode()
        write_whole(self._note_path, lambda file: file.write(text))

    def _connect(self) -> Any:
        shard = require("qdrant_edge", "qdrant-edge").EdgeShard
        return _SHARDS.take(os.path.abspath(self._path), lambda: shard.load(str(self._path)))

    def _disconnect(self, client: Any) -> None:
        if _SHARDS.release(os.path.abspath(self._path)):
            client.flush()
            client.close()

    def _errors(self) -> tuple[type[Exception], ...]:
        require("qdrant_edge", "qdrant-edge")
        return (Exception,)  # its own have no class of their own


def _plain(point_id: Any) -> int | str:
    """The engine's UUID objects as strings."""
    return point_id if isinstance(point_id, int) else str(point_id)
