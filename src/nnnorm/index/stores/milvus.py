"""Milvus (`pip install 'nnnorm[milvus]'`): a file (Milvus Lite), or a server.

The metric is said with every search: Milvus Lite would take another one without a word. Inserting
an id twice is no error for Milvus either, so `add` is only called with new ones. The note is a
property of the collection.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.store import (
    BATCH,
    Facts,
    Found,
    Ids,
    Items,
    Sample,
    Store,
    StoreMetric,
    Way,
    pad_rows,
    read_json_note,
)

__all__ = ["MilvusKind", "MilvusStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
MilvusKind = Literal["flat", "hnsw"]
_METRICS: dict[StoreMetric, str] = {"ip": "IP", "cosine": "COSINE", "l2": "L2"}
_BIAS, _METADATA, _NOTE = "nnnorm_bias", "metadata", "nnnorm"
_LONGEST_NAME = 65535
_QUERIES = 1000  # in one request


class MilvusStore(Store):
    """A collection of Milvus.

    Parameters
    ----------
    place : str or PathLike
        A file whose name ends in ``.db``, or a server (``http://localhost:19530``). A server's
        token is read from the environment variable ``MILVUS_TOKEN``.
    collection : str
        Letters, digits and underscores.
    kind : {"flat", "hnsw"}
        Of a new collection: compare with every item, or walk a graph.
    links, ef_construction, ef : int
        Of "hnsw"; `ef` also applies to a collection that has such an index already.
    """

    engine = "milvus"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    largest_k = 16384

    def __init__(
        self,
        place: str | os.PathLike[str],
        collection: str = "items",
        *,
        kind: MilvusKind = "flat",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
    ) -> None:
        if kind not in get_args(MilvusKind):
            kinds = ", ".join(get_args(MilvusKind))
            raise NNNormError(f"kind must be one of {kinds}; got {kind!r}")
        self._place, self._collection = str(place), collection
        self._is_server = self._place.startswith(("http://", "https://"))
        if not self._is_server and not self._place.endswith(".db"):
            raise NNNormError(
                f"a file of Milvus Lite must end in .db, or else be a server's address "
                f"(http://localhost:19530); got {self._place!r}"
            )
        self._kind, self._links = kind, links
        self._ef_construction, self._ef = ef_construction, ef
        self.is_graph = kind == "hnsw"
        # Milvus Lite hangs up on the pings of a client that waits, and gRPC says so on stderr.
        quiet = {"grpc.keepalive_permit_without_calls": False}
        self._calls = {} if self._is_server else {"grpc_options": quiet}
        self._client: Any = None

    @classmethod
    def from_url(
        cls,
        place: str,
        *,
        collection: str = "",
        https: bool = False,
        kind: MilvusKind = "flat",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
    ) -> "MilvusStore":
        """``milvus:photos.db?collection=photos``, or ``milvus://host:19530/photos``."""
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
        )

    @property
    def name(self) -> str:
        return f"milvus collection {self._collection} of {self._place}"

    def facts(self) -> Facts | None:
        if not self._is_server and self._client is None and not Path(self._place).exists():
            return None  # a client would make the file
        with self._telling():
            if not self._connect().has_collection(self._collection):
                return None
        fields = self._fields()
        with self._telling():
            (row,) = self._connect().query(
                self._collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
            )
        return Facts(fields[self._column(fields)]["params"]["dim"], self._metric(), row["count(*)"])

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        pymilvus = require("pymilvus", "milvus")
        kinds = pymilvus.DataType
        client = self._connect()
        with self._telling():
            # The bias is a dynamic field: only some ways of serving store it.
            schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
            if strings:
                schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=_LONGEST_NAME)
            else:
                schema.add_field("id", kinds.INT64, is_primary=True)
            schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=width)
            schema.add_field(_METADATA, kinds.JSON)
            index = client.prepare_index_params()
            graph = {"M": self._links, "efConstruction": self._ef_construction}
            index.add_index(
                "embedding",
                index_type=self._kind.upper(),
                metric_type=_METRICS[metric],
                params=graph if self.is_graph else {},
            )
            client.create_collection(
                self._collection,
                schema=schema,
                index_params=index,
                consistency_level="Strong",
                properties={_NOTE: "null"},
            )

    def add(self, items: Items) -> None:
        fields = self._fields()
        strings = items.ids.dtype.kind == "U"
        if strings != self._has_strings(fields):
            kinds = ("whole numbers", "strings") if strings else ("strings", "whole numbers")
            raise NNNormError(f"the ids of {self.name} are {kinds[0]}; got {kinds[1]}")
        rows = []
        for row, (own, vector) in enumerate(
            zip(items.ids.tolist(), items.vectors.tolist(), strict=True)
        ):
            known = {} if items.metadata is None else dict(items.metadata[row])
            entry = {self._key(fields): own, self._column(fields): vector, _METADATA: known}
            if items.values is not None:
                entry[_BIAS] = float(items.values[row])
            rows.append(entry)
        with self._telling():
            self._connect().insert(self._collection, rows)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        fields = self._fields()
        if (ids.dtype.kind == "U") != self._has_strings(fields):
            return np.zeros(len(ids), dtype=bool)
        key = self._key(fields)
        with self._telling():
            found = self._connect().query(
                self._collection,
                filter=f"{key} in {json.dumps(ids.tolist(), ensure_ascii=False)}",
                output_fields=[key],
                consistency_level="Strong",
            )
        there = {row[key] for row in found}
        return np.array([name in there for name in ids.tolist()], dtype=bool)

    def delete(self, ids: Ids) -> None:
        with self._telling():
            self._connect().delete(self._collection, ids=ids.tolist())

    def search(self, queries: FloatArray, k: int) -> Found:
        fields, metric = self._fields(), self._metric()
        key = self._key(fields)
        hits: list[Any] = []
        for start in range(0, len(queries), _QUERIES):
            with self._telling():
                hits += self._connect().search(
                    self._collection,
                    data=queries[start : start + _QUERIES].tolist(),
                    anns_field=self._column(fields),
                    limit=k,
                    output_fields=[_BIAS] if _METADATA in fields else [],
                    search_params={
                        "metric_type": _METRICS[metric],
                        "params": {"ef": max(self._ef, k)} if self._has_graph() else {},
                    },
                    consistency_level="Strong",
                )
        values = [[hit["entity"].get(_BIAS) for hit in row] for row in hits]
        return pad_rows(
            [[hit[key] for hit in row] for row in hits],
            [
                [-hit["distance"] if metric == "l2" else hit["distance"] for hit in row]
                for row in hits
            ],
            None if any(None in row for row in values) else values,
        )

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        fields = self._fields()
        key, column = self._key(fields), self._column(fields)
        ours = _NOTE in self._properties()
        with self._telling(), _quiet():
            pages = self._connect().query_iterator(
                self._collection, batch_size=batch, output_fields=["*"], consistency_level="Strong"
            )
        try:
            while True:
                with self._telling():
                    rows = [dict(row) for row in pages.next()]
                if not rows:
                    return
                ids = np.array([row.pop(key) for row in rows])
                vectors = np.array([row.pop(column) for row in rows], dtype=np.float32)
                values = [row.pop(_BIAS, None) for row in rows]
                known = [row[_METADATA] if ours else row for row in rows]
                yield Items(
                    ids,
                    vectors,
                    None if None in values else np.array(values, dtype=np.float32),
                    known if any(known) else None,
                )
        finally:
            pages.close()

    def read_note(self) -> dict[str, Any] | None:
        return read_json_note(self._properties().get(_NOTE))

    def write_note(self, note: Mapping[str, Any]) -> None:
        with self._telling():
            self._connect().alter_collection_properties(
                self._collection, properties={_NOTE: json.dumps(dict(note))}
            )
        if self.read_note() != dict(note):
            raise NNNormError(
                "this Milvus keeps no properties of collections, where the correction is noted; "
                "use a later version"
            )

    def save(self) -> None:
        with self._telling():
            self._connect().flush(self._collection)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- what the collection says ---

    def _properties(self) -> dict[str, str]:
        with self._telling():
            return self._connect().describe_collection(self._collection).get("properties") or {}

    def _fields(self) -> dict[str, dict[str, Any]]:
        with self._telling():
            about = self._connect().describe_collection(self._collection)
            self._connect().load_collection(self._collection)
        return {field["name"]: field for field in about["fields"]}

    def _key(self, fields: dict[str, dict[str, Any]]) -> str:
        return next(name for name, field in fields.items() if field.get("is_primary"))

    def _column(self, fields: dict[str, dict[str, Any]]) -> str:
        dense = require("pymilvus", "milvus").DataType.FLOAT_VECTOR
        known = [name for name, field in fields.items() if field["type"] == dense]
        if len(known) != 1:
            raise NNNormError(
                f"{self.name} must have one field of float vectors; it has "
                f"{', '.join(known) or 'none'}"
            )
        return known[0]

    def _has_strings(self, fields: dict[str, dict[str, Any]]) -> bool:
        whole = require("pymilvus", "milvus").DataType.INT64
        return bool(fields[self._key(fields)]["type"] != whole)

    def _index(self) -> dict[str, Any]:
        column = self._column(self._fields())
        with self._telling():
            names = self._connect().list_indexes(self._collection, field_name=column)
            if not names:
                raise NNNormError(f"{self.name} has no index on {column}; make one first")
            return self._connect().describe_index(self._collection, names[0])

    def _metric(self) -> StoreMetric:
        measured = self._index()["metric_type"]
        found = [metric for metric, name in _METRICS.items() if name == measured]
        if not found:
            raise NNNormError(f"{self.name} compares by {measured}; expected IP, COSINE or L2")
        return found[0]

    def _has_graph(self) -> bool:
        return bool(self._index()["index_type"] == "HNSW")

    # --- the client ---

    def _connect(self) -> Any:
        if self._client is None:
            pymilvus = require("pymilvus", "milvus")
            token = os.environ.get("MILVUS_TOKEN", "") if self._is_server else ""
            try:
                self._client = pymilvus.MilvusClient(self._place, token=token, **self._calls)
            except (pymilvus.MilvusException, OSError) as error:
                raise NNNormError(
                    f"Milvus can't be reached at {self._place} ({_said(error)}); check the "
                    f"{'address, and that the server runs' if self._is_server else 'file'}"
                ) from error
        return self._client

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Milvus' errors in one sentence."""
        pymilvus = require("pymilvus", "milvus")
        try:
            yield
        except pymilvus.MilvusException as error:
            raise NNNormError(f"{self.name}: Milvus says: {_said(error)}") from error


def _said(error: Exception) -> str:
    """The sentence in Milvus' own wrapping."""
    return str(getattr(error, "message", "")).partition("\n")[0] or first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Milvus Lite has no time of its own to give to an iterator, and pymilvus warns of that."""
    logger = logging.getLogger("pymilvus")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
