"""Qdrant's embedded engine (`pip install 'nnnorm[qdrant-edge]'`): a shard in a folder, no server.

The index is that of the server: `save` builds its graph once there are enough vectors. The note is
a file in the folder of the shard. A shard can be open once, so stores of the same folder share it.
The two generations are two folders, which exchange their names; the next open finishes an exchange
that was killed.
"""

import copy
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.files import write_whole
from nnnorm.index.options import Options, ef, ef_construction, option
from nnnorm.index.store import FloatArray, Ids, Items, Sample, Store, StoreMetric
from nnnorm.index.stores.database import read_filter
from nnnorm.index.stores.points import DISTANCES, Described, Payload, Point, PointStore

_T = TypeVar("_T")
_CONFIG, _NOTE = "edge_config.json", "nnnorm-note.json"
_VECTOR = "vector"  # entry of the note: the name of the vector that is corrected
# Ends of the names of folders: the generation that is not served, one on its way there, and one on
# its way out.
_OTHER, _PARKED, _DROPPED = ".nnnorm-other", ".nnnorm-parked", ".nnnorm-dropped"


@dataclass(eq=False)
class _Open:
    """A shard that is open in this process, wherever its folder is now."""

    folder: Path
    shard: Any
    users: int = 0

    def shut(self) -> None:
        self.shard.flush()
        self.shard.close()


_SHARDS: dict[Path, _Open] = {}
_MOVING = threading.RLock()  # held while shards are opened, closed and renamed


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
    filters = "a Filter of qdrant_edge, or one of Qdrant as a mapping or in JSON"
    options_type = QdrantEdgeOptions
    options: QdrantEdgeOptions

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self.is_graph = self.options.kind == "hnsw"
        self.is_exact = not self.is_graph
        self._path = Path(os.path.abspath(self.address))
        self._open: _Open | None = None
        self._opposite: QdrantEdgeStore | None = None

    @property
    def name(self) -> str:
        which = " (the generation that is not served)" if self._is_other else ""
        return f"{self.engine} {self.where}{which}"

    @property
    def folder(self) -> Path:
        """Folder of this generation, wherever an exchange has put it since it was opened."""
        if self._open is not None:
            return self._open.folder
        return self._named(_OTHER) if self._is_other else self._path

    @property
    def client(self) -> Any:
        """The engine's own shard."""
        with _MOVING:
            if self._open is None:
                with self._translating():
                    self._settle()
                    self._open = _SHARDS.get(self.folder) or self._load(self.folder)
                self._open.users += 1
            elif self._open.shard is None:
                raise NNNormError(
                    f"{self.name} was refreshed again since it was opened, and the generation that "
                    "it had then is removed; open it again"
                )
            return self._open.shard

    def close(self) -> None:
        """Close the shard, unless another store of this folder uses it."""
        if self._opposite is not None:
            opposite, self._opposite = self._opposite, None
            opposite.close()
        self._known, self._codes, self._using = None, None, ""
        with _MOVING:
            opened, self._open = self._open, None
            if opened is None or opened.shard is None:
                return
            opened.users -= 1
            if not opened.users:
                del _SHARDS[opened.folder]
                opened.shut()

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        self._using = self.options.vector
        self._create(
            {
                "vectors": {self._using: {"size": width, "distance": DISTANCES[metric]}},
                "sparse_vectors": {},
                "hnsw_config": {
                    "m": self.options.links,
                    "ef_construct": self.options.ef_construction,
                    "full_scan_threshold": 10_000,
                    "max_indexing_threads": 0,
                },
            }
        )

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        """Create an empty shard with the other vectors and payload indexes of `source`."""
        if not isinstance(source, QdrantEdgeStore):
            self.create(width, metric, strings=strings, sample=sample)
            return
        operation = require("qdrant_edge", "qdrant-edge").UpdateOperation
        source._know()
        about = source._configuration()
        changed = about["vectors"].pop(source._using)
        self._using = self.options.vector or source._using
        about["vectors"][self._using] = {
            **changed,
            "size": width,
            "distance": DISTANCES[metric],
        }
        self._create(about)
        for field, index in source.client.info().payload_schema.items():
            with self._translating():
                self.client.update(
                    operation.create_field_index(field, index.params or index.data_type)
                )

    def _create(self, about: dict[str, Any]) -> None:
        with _MOVING, self._translating():
            self._settle()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_file({})
            text = json.dumps(about).encode()
            # A shard is made from its configuration, which is all that a kill leaves here.
            write_whole(self.folder / _CONFIG, lambda file: file.write(text))
        _ = self.client

    def add(self, items: Items) -> None:
        self.check_served()
        super().add(items)

    def delete(self, ids: Ids) -> None:
        self.check_served()
        super().delete(ids)

    # --- generations ---

    def other(self) -> "QdrantEdgeStore":
        if self._opposite is None:
            self._opposite = copy.copy(self)
            self._opposite._is_other = not self._is_other
            self._opposite._open = self._opposite._opposite = None
            self._opposite._known = self._opposite._codes = None
        return self._opposite

    def mark(self) -> object:
        """The shard that this store stays with, until it exchanges both itself."""
        return self._open or ""

    def exchange(self) -> None:
        self.check_served()
        with _MOVING, self._translating():
            self._settle()
            places = self._path, self._named(_OTHER)
            if not (places[1] / _CONFIG).exists():
                raise NNNormError(f"{self.name} has no other generation; refresh it first")
            self._move_note()
            opened = [(_SHARDS.pop(place, None), place) for place in places]
            for one, _ in opened:
                if one is not None:
                    one.shut()
            try:
                places[0].rename(self._named(_PARKED))
                self._settle()
                places = places[::-1]
            finally:
                for (one, _), place in zip(opened, places, strict=True):
                    if one is not None:
                        one.folder, one.shard = place, self._load(place).shard
                        _SHARDS[place] = one
        self.close()

    def drop(self) -> None:
        with _MOVING, self._translating():
            self._settle()
            others = self._named(_OTHER)
            for place in [others] if self._is_other else [others, self._path]:
                one = _SHARDS.pop(place, None)
                if one is not None:
                    one.shut()
                    one.shard = None
                if place.exists():
                    place.rename(self._named(_DROPPED))
                    shutil.rmtree(self._named(_DROPPED))
            if not self._is_other:
                self._old_note_path.unlink(missing_ok=True)
        self.close()

    def _settle(self) -> None:
        """Finish what a kill interrupted: an exchange, or the removal of a folder."""
        parked, other = self._named(_PARKED), self._named(_OTHER)
        with _MOVING:
            if self._named(_DROPPED).exists():
                shutil.rmtree(self._named(_DROPPED))
            if parked.exists():
                if not self._path.exists():
                    (other if other.exists() else parked).rename(self._path)
                if parked.exists():
                    parked.rename(other)

    def _named(self, end: str) -> Path:
        return self._path.with_name(self._path.name + end)

    def _load(self, folder: Path) -> _Open:
        shard = require("qdrant_edge", "qdrant-edge").EdgeShard
        _SHARDS[folder] = _Open(folder, shard.load(str(folder)))
        return _SHARDS[folder]

    def check_served(self) -> None:
        """Raise before a write to a generation that is not served any more."""
        if self._open is not None and not self._is_other and self._open.folder != self._path:
            raise NNNormError(
                f"{self.name} was refreshed or rolled back since it was opened; open it again, so "
                "that nothing is written to the generation that is not served"
            )

    def save(self) -> None:
        """Build the graph where it is due, and write everything to disk."""
        with self._translating():
            self.client.optimize()
            self.client.flush()

    # --- points ---

    def _describe(self) -> Described | None:
        self._settle()
        if not (self.folder / _CONFIG).exists():
            return None
        about = self._configuration()
        try:
            noted = (self._read_file() or {}).get(_VECTOR, "")
            self._using = self._choose_vector(list(about["vectors"]), self.options.vector or noted)
            vectors = about["vectors"][self._using]
            width, distance = vectors["size"], vectors["distance"]
            codes = vectors.get("quantization_config") or about.get("quantization_config") or ()
            kinds = [*codes]
            if vectors.get("datatype", "float32") != "float32":
                kinds.append(vectors["datatype"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, NNNormError):
                raise
            raise self._unreadable(error) from error
        with self._translating():
            n_points = self._run(lambda shard: shard.info()).points_count
        return Described(width, distance, n_points, " and ".join(kinds))

    def _configuration(self) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads((self.folder / _CONFIG).read_text(encoding="utf-8"))
        except ValueError as error:
            raise self._unreadable(error) from error
        return about

    def _unreadable(self, error: Exception) -> NNNormError:
        return NNNormError(
            f"{self.folder / _CONFIG} can't be read as the configuration of a shard "
            f"({first_line(error)})"
        )

    def _run(self, call: Callable[[Any], _T]) -> _T:
        """Call the shard, again where an exchange has closed it and opened it elsewhere."""
        while True:
            shard = self.client
            try:
                return call(shard)
            except Exception:
                if self.client is shard:
                    raise

    def _upsert(self, points: Sequence[Point]) -> None:
        edge = require("qdrant_edge", "qdrant-edge")
        some = [
            edge.Point(p.id, self._name_vector(p.vector, p.others), dict(p.payload)) for p in points
        ]
        with self._translating():
            self.client.update(edge.UpdateOperation.upsert_points(some))

    def _find_ids(self, ids: Ids) -> set[Any]:
        with self._translating():
            found = self._run(lambda shard: shard.retrieve(ids.tolist(), False, False))
        return {_plain(point.id) for point in found}

    def _payloads(self, ids: list[Any]) -> dict[Any, Mapping[str, Any]]:
        with self._translating():
            found = self._run(lambda shard: shard.retrieve(ids, True, False))
        return {_plain(point.id): point.payload or {} for point in found}

    def _erase(self, ids: list[Any]) -> None:
        operation = require("qdrant_edge", "qdrant-edge").UpdateOperation
        with self._translating():
            self.client.update(operation.delete_points(ids))

    def _query(self, queries: FloatArray, k: int, filter: Any, payload: Payload) -> list[list[Any]]:
        edge = require("qdrant_edge", "qdrant-edge")
        wanted = read_filter(filter, self.filters)
        if isinstance(wanted, Mapping):
            wanted = _make_filter(edge, wanted)
        elif not isinstance(wanted, edge.Filter | None):
            raise NNNormError(f"the filter must be {self.filters}; got {type(wanted).__name__}")
        params = edge.SearchParams(hnsw_ef=max(self.options.ef, k), exact=not self.is_graph)
        requests = [
            edge.QueryRequest(
                limit=k,
                query=edge.Query.Nearest(query, using=self._using or None),
                filter=wanted,
                with_payload=payload,
                params=params,
            )
            for query in queries.tolist()
        ]
        with self._translating():
            if len(requests) == 1:  # a batch of one takes several times as long
                answers = [self._run(lambda shard: shard.query(requests[0]))]
            else:
                batch = edge.QueryBatchRequest(requests)
                answers = self._run(lambda shard: shard.query_batch(batch))
        return answers

    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        request = require("qdrant_edge", "qdrant-edge").ScrollRequest(
            limit=batch, offset=offset, with_payload=True, with_vector=True
        )
        with self._translating():
            found, following = self._run(lambda shard: shard.scroll(request))
        return [
            self._make_point(_plain(one.id), one.vector, one.payload) for one in found
        ], following

    # --- the note ---

    @property
    def _old_note_path(self) -> Path:
        """Where earlier versions put the note: beside the folder."""
        return self._named(".nnnorm")

    def _read_note(self) -> Any:
        note = self._read_file()
        return note and {name: entry for name, entry in note.items() if name != _VECTOR}

    def _read_file(self) -> dict[str, Any] | None:
        self._settle()
        path = self.folder / _NOTE
        if not path.exists() and self.folder == self._path:
            path = self._old_note_path
        if not path.exists():
            return None
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(note, dict):
                raise ValueError("it is no mapping")
        except ValueError as error:
            raise NNNormError(
                f"{path} is no note of nnnorm ({first_line(error)}); restore it "
                "together with the shard, or build the shard again"
            ) from error
        return note

    def _write_note(self, note: dict[str, Any]) -> None:
        self.check_served()
        self._know()  # the name of the vector
        self._write_file(note)
        if not self._is_other:
            self._old_note_path.unlink(missing_ok=True)

    def _write_file(self, note: dict[str, Any]) -> None:
        text = json.dumps({**note, _VECTOR: self._using}, indent=2).encode()
        write_whole(self.folder / _NOTE, lambda file: file.write(text))

    def _move_note(self) -> None:
        """Put the note into the folder of the shard, so that both move in one step."""
        note = None if (self._path / _NOTE).exists() else self._read_note()
        if note is not None:
            self._write_note(note)

    # --- the shard ---

    def _connect(self) -> Any:
        return self.client

    def _errors(self) -> tuple[type[Exception], ...]:
        require("qdrant_edge", "qdrant-edge")
        return (Exception,)  # its own have no class of their own


def _plain(point_id: Any) -> int | str:
    """The engine's UUID objects as strings."""
    return point_id if isinstance(point_id, int) else str(point_id)


def _make_filter(edge: Any, filter: Mapping[str, Any]) -> Any:
    """Make the engine's filter from one as the server takes it."""
    lists = {
        name: [_make_condition(edge, one) for one in _listed(filter[name])]
        for name in ("must", "should", "must_not")
        if filter.get(name)
    }
    if not lists or len(lists) != len(filter):
        raise NNNormError(
            "a filter of qdrant-edge that is written as a mapping has must, should and must_not; "
            f"got {', '.join(map(str, filter)) or 'nothing'}. Use qdrant_edge.Filter for others"
        )
    return edge.Filter(**lists)


def _make_condition(edge: Any, one: Mapping[str, Any]) -> Any:
    if "key" not in one:
        return (
            edge.HasIdCondition(set(one["has_id"])) if "has_id" in one else _make_filter(edge, one)
        )
    condition = dict(one)
    if "match" in condition:
        ((kind, wanted),) = condition["match"].items()
        makers = {
            "value": edge.MatchValue,
            "any": edge.MatchAny,
            "except": edge.MatchExcept,
            "text": edge.MatchText,
            "phrase": edge.MatchPhrase,
        }
        condition["match"] = makers[kind](wanted)
    if "range" in condition:
        is_date = any(isinstance(bound, str) for bound in condition["range"].values())
        condition["range"] = (edge.RangeDateTime if is_date else edge.RangeFloat)(
            **condition["range"]
        )
    return edge.FieldCondition(**condition)


def _listed(conditions: Any) -> list[Any]:
    return list(conditions) if isinstance(conditions, (list, tuple)) else [conditions]
