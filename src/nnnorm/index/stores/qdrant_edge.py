"""Qdrant's embedded engine (`pip install 'nnnorm[qdrant-edge]'`): a shard in a folder, no server.

The same index as the server's: `save` lets it build its graph once there are enough vectors. The
note lies in a file beside the folder. A shard can be open once, so stores of a folder share it.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.store import Sample, StoreMetric
from nnnorm.index.stores.points import BIAS, DISTANCES, NAME, Described, Point, PointStore
from nnnorm.io import write_whole

__all__ = ["QdrantEdgeKind", "QdrantEdgeStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
QdrantEdgeKind = Literal["hnsw", "flat"]
_CONFIG = "edge_config.json"
# Open shards, and how many stores use them.
_SHARDS: dict[str, tuple[Any, int]] = {}


class QdrantEdgeStore(PointStore):
    """A shard of Qdrant Edge.

    Parameters
    ----------
    path : str or PathLike
        The shard's folder.
    kind : {"hnsw", "flat"}
        Whether a search walks the graph, where there is one yet, or compares with every point.
    links, ef_construction, ef : int
        Of the graph; the first two of a new shard.
    vector : str, optional
        Name of the vector, in a shard with named ones.
    """

    engine = "qdrant-edge"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        kind: QdrantEdgeKind = "hnsw",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
        vector: str = "",
    ) -> None:
        if kind not in get_args(QdrantEdgeKind):
            raise NNNormError(
                f"kind must be one of {', '.join(get_args(QdrantEdgeKind))}; got {kind!r}"
            )
        self._path, self._asked = Path(path), vector
        self._links, self._ef_construction, self._ef = links, ef_construction, ef
        self.is_graph = kind == "hnsw"
        self._shard: Any = None
        self._using = ""

    @property
    def name(self) -> str:
        return f"qdrant-edge {self._path}"

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        edge = require("qdrant_edge", "qdrant-edge")
        params = edge.EdgeVectorParams(
            size=width, distance=getattr(edge.Distance, DISTANCES[metric])
        )
        config = edge.EdgeConfig(
            vectors={self._asked: params} if self._asked else params,
            hnsw_config=edge.HnswIndexConfig(
                m=self._links, ef_construct=self._ef_construction, full_scan_threshold=10_000
            ),
        )
        self._using = self._asked
        with self._telling():
            self._path.mkdir(parents=True, exist_ok=True)
            self._share(edge.EdgeShard.create(str(self._path), config))

    def read_note(self) -> dict[str, Any] | None:
        path = self._note_path()
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise NNNormError(
                f"{path} is no note of nnnorm ({first_line(error)}); restore it together with the "
                "shard, or build the shard anew"
            ) from error

    def write_note(self, note: Mapping[str, Any]) -> None:
        text = json.dumps(dict(note), indent=2).encode()
        write_whole(self._note_path(), lambda file: file.write(text))

    def save(self) -> None:
        """Build what index is due, and write everything to the disk."""
        with self._telling():
            self._open().optimize()
            self._open().flush()

    def close(self) -> None:
        shard, self._shard = self._shard, None
        if shard is None:
            return
        key = os.path.abspath(self._path)
        shared, users = _SHARDS.pop(key)
        if users > 1:
            _SHARDS[key] = shared, users - 1
        else:
            shared.flush()
            shared.close()

    # --- points ---

    def _describe(self) -> Described | None:
        config = self._path / _CONFIG
        if not config.exists():
            return None
        try:
            about = json.loads(config.read_text(encoding="utf-8"))
            self._using = self._choose_vector(list(about["vectors"]), self._asked)
            vectors = about["vectors"][self._using]
            width, distance = vectors["size"], vectors["distance"]
            kinds = [
                *(vectors.get("quantization_config") or about.get("quantization_config") or ())
            ]
            if vectors.get("datatype", "float32") != "float32":
                kinds.append(vectors["datatype"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, NNNormError):
                raise
            raise NNNormError(
                f"{config} can't be read as the configuration of a shard ({first_line(error)})"
            ) from error
        with self._telling():
            n_points = self._open().info().points_count
        return Described(width, distance, n_points, " and ".join(kinds))

    def _upsert(self, points: Sequence[Point]) -> None:
        edge = require("qdrant_edge", "qdrant-edge")
        some = [
            edge.Point(
                point.id,
                {self._using: point.vector} if self._using else point.vector,
                dict(point.payload),
            )
            for point in points
        ]
        with self._telling():
            self._open().update(edge.UpdateOperation.upsert_points(some))

    def _known(self, ids: list[Any]) -> set[Any]:
        with self._telling():
            return {_plain(point.id) for point in self._open().retrieve(ids, False, False)}

    def _erase(self, ids: list[Any]) -> None:
        edge = require("qdrant_edge", "qdrant-edge")
        with self._telling():
            self._open().update(edge.UpdateOperation.delete_points(ids))

    def _query(self, queries: FloatArray, k: int) -> list[list[Point]]:
        edge = require("qdrant_edge", "qdrant-edge")
        params = edge.SearchParams(hnsw_ef=max(self._ef, k), exact=not self.is_graph)
        requests = [
            edge.QueryRequest(
                limit=k,
                query=edge.Query.Nearest(query, using=self._using or None),
                with_payload=[BIAS, NAME],
                params=params,
            )
            for query in queries.tolist()
        ]
        with self._telling():
            answers = self._open().query_batch(edge.QueryBatchRequest(requests))
        return [
            [Point(_plain(hit.id), [], hit.payload or {}, hit.score) for hit in hits]
            for hits in answers
        ]

    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        edge = require("qdrant_edge", "qdrant-edge")
        request = edge.ScrollRequest(
            limit=batch, offset=offset, with_payload=True, with_vector=True
        )
        with self._telling():
            found, following = self._open().scroll(request)
        points = []
        for one in found:
            vector = one.vector[self._using] if self._using else one.vector
            points.append(Point(_plain(one.id), vector, one.payload or {}))
        return points, following

    # --- the shard ---

    def _note_path(self) -> Path:
        return self._path.with_name(self._path.name + ".nnnorm")

    def _open(self) -> Any:
        if self._shard is None:
            shared = _SHARDS.get(os.path.abspath(self._path), (None, 0))[0]
            if shared is None:
                with self._telling():
                    edge = require("qdrant_edge", "qdrant-edge")
                    shared = edge.EdgeShard.load(str(self._path))
            self._share(shared)
        return self._shard

    def _share(self, shard: Any) -> None:
        key = os.path.abspath(self._path)
        _SHARDS[key] = shard, _SHARDS.get(key, (None, 0))[1] + 1
        self._shard = shard

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The engine's errors, all of the bare kind `Exception`, in one sentence."""
        try:
            yield
        except NNNormError:
            raise
        except Exception as error:
            raise NNNormError(f"{self.name}: Qdrant Edge says: {first_line(error)}") from error


def _plain(point_id: Any) -> int | str:
    """Whole numbers as they are; the engine's UUID objects as strings."""
    return point_id if isinstance(point_id, int) else str(point_id)
