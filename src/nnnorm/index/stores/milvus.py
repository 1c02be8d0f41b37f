"""Milvus (`pip install 'nnnorm[milvus]'`): a file (Milvus Lite), or a server.

Every search states the metric, because Milvus Lite accepts any other without an error. Milvus
accepts an id twice as well, so `add` is only called with new ones. The note is a property of the
collection.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.options import ServerOptions, ef, ef_construction, links, option
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Ids,
    Items,
    Place,
    Sample,
    StoreMetric,
    Way,
    gather_hits,
    make_items,
)
from nnnorm.index.stores.database import BIAS, METADATA, DatabaseStore

_METRICS: dict[str, StoreMetric] = {"IP": "ip", "COSINE": "cosine", "L2": "l2"}
_NOTE = "nnnorm"
_LONGEST_NAME = 65535
_QUERIES = 1000  # in one request
_STRONG: dict[str, Any] = {"consistency_level": "Strong"}


@dataclass(frozen=True, kw_only=True)
class MilvusOptions(ServerOptions):
    """Options of Milvus; a collection's name has letters, digits and underscores."""

    kind: Literal["flat", "hnsw"] = option(
        "flat", "Index of a new collection: a scan of every item, or a graph."
    )
    links: int = links()
    ef_construction: int = ef_construction()
    ef: int = ef()


class MilvusStore(DatabaseStore):
    """A collection of Milvus.

    Parameters
    ----------
    place : str or PathLike
        A file whose name ends in ``.db``, or a server (``http://localhost:19530``). The token of a
        server is read from the environment variable ``MILVUS_TOKEN``.
    """

    engine, product, key_variable = "milvus", "Milvus", "MILVUS_TOKEN"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    largest_k = 16384
    options_type = MilvusOptions
    options: MilvusOptions

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if not self.is_server and not self.address.endswith(".db"):
            raise NNNormError(
                "the place of Milvus must be a file that ends in .db, or the address of a server "
                f"(http://localhost:19530); got {self.where!r}"
            )
        self.is_graph = self.options.kind == "hnsw"

    def facts(self) -> Facts | None:
        if self._is_absent(Path(self.address)):
            return None
        with self._translating():
            if not self.client.has_collection(self.collection):
                return None
        fields = self._fields()
        with self._translating():
            (row,) = self.client.query(
                self.collection, filter="", output_fields=["count(*)"], **_STRONG
            )
        width = fields[self._column(fields)]["params"]["dim"]
        return Facts(width, self._metric(self._index(fields)), row["count(*)"])

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        kinds = require("pymilvus", "milvus").DataType
        graph = {"M": self.options.links, "efConstruction": self.options.ef_construction}
        client = self.client
        with self._translating():
            # The bias is a dynamic field: only some ways of serving store it.
            schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
            if strings:
                schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=_LONGEST_NAME)
            else:
                schema.add_field("id", kinds.INT64, is_primary=True)
            schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=width)
            schema.add_field(METADATA, kinds.JSON)
            index = client.prepare_index_params()
            index.add_index(
                "embedding",
                index_type=self.options.kind.upper(),
                metric_type=metric.upper(),
                params=graph if self.is_graph else {},
            )
            client.create_collection(
                self.collection,
                schema=schema,
                index_params=index,
                properties={_NOTE: "null"},
                **_STRONG,
            )

    def add(self, items: Items) -> None:
        fields = self._fields()
        key, column = self._key(fields), self._column(fields)
        rows = [
            {key: own, column: vector, METADATA: known, **({} if value is None else {BIAS: value})}
            for own, vector, known, value in zip(
                items.ids.tolist(),
                items.vectors.tolist(),
                items.metadata_list(),
                items.value_list(),
                strict=True,
            )
        ]
        with self._translating():
            self.client.insert(self.collection, rows)

    def delete(self, ids: Ids) -> None:
        with self._translating():
            self.client.delete(self.collection, ids=ids.tolist())

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        fields = self._fields()
        key, index = self._key(fields), self._index(fields)
        params = {"ef": max(self.options.ef, k)} if index["index_type"] == "HNSW" else {}
        hits: list[Any] = []
        for start in range(0, len(queries), _QUERIES):
            with self._translating():
                hits += self.client.search(
                    self.collection,
                    data=queries[start : start + _QUERIES].tolist(),
                    anns_field=self._column(fields),
                    limit=k,
                    output_fields=[BIAS] if METADATA in fields else [],
                    search_params={"metric_type": index["metric_type"], "params": params},
                    **_STRONG,
                )
        rows = [[(hit[key], hit["distance"], hit["entity"].get(BIAS)) for hit in h] for h in hits]
        sign = -1 if self._metric(index) == "l2" else 1
        return gather_hits(rows, lambda number: sign * number)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        fields, ours = self._fields(), _NOTE in self._properties()
        key, column = self._key(fields), self._column(fields)
        with self._translating(), _quiet():
            pages = self.client.query_iterator(
                self.collection, batch_size=batch, output_fields=["*"], **_STRONG
            )
        try:
            while rows := self._next_page(pages):
                ids, vectors = ([row.pop(name) for row in rows] for name in (key, column))
                values = [row.pop(BIAS, None) for row in rows]
                yield make_items(ids, vectors, values, [r[METADATA] if ours else r for r in rows])
        finally:
            pages.close()

    def save(self) -> None:
        with self._translating():
            self.client.flush(self.collection)

    # --- facts about the collection ---

    def _next_page(self, pages: Any) -> list[dict[str, Any]]:
        with self._translating():
            return [dict(row) for row in pages.next()]

    def _properties(self) -> dict[str, str]:
        with self._translating():
            return self.client.describe_collection(self.collection).get("properties") or {}

    def _fields(self) -> dict[str, dict[str, Any]]:
        with self._translating():
            about = self.client.describe_collection(self.collection)
            self.client.load_collection(self.collection)
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

    def _index(self, fields: dict[str, dict[str, Any]]) -> dict[str, Any]:
        column = self._column(fields)
        with self._translating():
            names = self.client.list_indexes(self.collection, field_name=column)
            if not names:
                raise NNNormError(f"{self.name} has no index on {column}; create one first")
            return self.client.describe_index(self.collection, names[0])

    def _metric(self, index: dict[str, Any]) -> StoreMetric:
        if index["metric_type"] not in _METRICS:
            raise NNNormError(
                f"{self.name} compares by {index['metric_type']}; expected {', '.join(_METRICS)}"
            )
        return _METRICS[index["metric_type"]]

    def _has_string_ids(self) -> bool:
        fields = self._fields()
        return bool(
            fields[self._key(fields)]["type"] != require("pymilvus", "milvus").DataType.INT64
        )

    def _find_ids(self, ids: Ids) -> set[Any]:
        key = self._key(self._fields())
        listed = json.dumps(ids.tolist(), ensure_ascii=False)
        with self._translating():
            found = self.client.query(
                self.collection, filter=f"{key} in {listed}", output_fields=[key], **_STRONG
            )
        return {row[key] for row in found}

    def _read_note(self) -> Any:
        return self._properties().get(_NOTE)

    def _write_note(self, note: dict[str, Any]) -> None:
        self.client.alter_collection_properties(
            self.collection, properties={_NOTE: json.dumps(note)}
        )

    # --- the client ---

    def _connect(self) -> Any:
        client = require("pymilvus", "milvus").MilvusClient
        if self.is_server:
            parts = urlsplit(self.address)
            token = os.environ.get(self.key_variable, "")
            if parts.username is not None:  # pymilvus does not read them from an address
                token = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            host = parts.netloc.rpartition("@")[2]
            return client(f"{parts.scheme}://{host}", token=token)
        # Milvus Lite hangs up on the pings of an idle client, and gRPC reports that on stderr.
        quiet = {"grpc.keepalive_permit_without_calls": False}
        return client(self.address, grpc_options=quiet)

    def _errors(self) -> tuple[type[Exception], ...]:
        return (require("pymilvus", "milvus").MilvusException, OSError)

    def _quote(self, error: Exception) -> str:
        return str(getattr(error, "message", "")).partition("\n")[0] or first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence pymilvus, which warns that Milvus Lite has no timestamp for an iterator."""
    logger = logging.getLogger("pymilvus")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
