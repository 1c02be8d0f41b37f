"""Milvus (`pip install 'nnnorm[milvus]'`): a file (Milvus Lite), or a server.

Every search states the metric, because Milvus Lite accepts any other without an error. Milvus
accepts an id twice as well, so `add` is only called with new ones. Metadata are fields, so that a
filter finds them by name. The note is a property of the collection, and the name of a collection
that nnnorm creates is an alias.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from nnnorm.errors import NNNormError, NNNormWarning, first_line, require
from nnnorm.index.options import ServerOptions, ef, ef_construction, links, option
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Hit,
    Ids,
    Items,
    Sample,
    Store,
    StoreMetric,
    Way,
    gather_hits,
    make_items,
)
from nnnorm.index.stores.database import BIAS, METADATA, AliasedStore, Entry, other_vectors

_METRICS: dict[str, StoreMetric] = {"IP": "ip", "COSINE": "cosine", "L2": "l2"}
# Properties of a collection: the note, the field of the vector that is corrected, and whether
# metadata are fields. Earlier versions kept them in one JSON field.
_NOTE, _VECTOR, _LAYOUT = "nnnorm", "nnnorm_vector", "nnnorm_fields"
# Field for metadata whose names other fields have.
_REST = "nnnorm_json"
_LONGEST_NAME = 65535
_QUERIES = 1000  # in one request
# The format of Milvus Lite's own files that is known here.
_MANIFEST_FORMAT = 2
_STRONG: dict[str, Any] = {"consistency_level": "Strong"}
# Whether errors become sentences of ours, so that the traceback that pymilvus logs is left out.
_IS_TRANSLATED = ContextVar("is_translated", default=False)


@dataclass(frozen=True, kw_only=True)
class MilvusOptions(ServerOptions):
    """Options of Milvus; a collection's name has letters, digits and underscores."""

    kind: Literal["flat", "hnsw"] = option(
        "flat", "Index of a new collection: a scan of every item, or a graph."
    )
    links: int = links()
    ef_construction: int = ef_construction()
    ef: int = ef()
    vector: str = option("", "Field of the vectors, in a collection with several.")


@dataclass(frozen=True)
class _Schema:
    """What a search needs to know of a collection."""

    fields: Mapping[str, Mapping[str, Any]]
    key: str
    vector: str
    others: tuple[str, ...]  # further fields of vectors
    index: Mapping[str, Any]
    is_dynamic: bool
    is_old: bool  # metadata in one JSON field

    @property
    def strings(self) -> bool:
        return bool(self.fields[self.key]["type"].name != "INT64")

    @property
    def index_type(self) -> str:
        return str(self.index["index_type"])


class MilvusStore(AliasedStore):
    """A collection of Milvus.

    Parameters
    ----------
    place : str, PathLike or MilvusClient
        A file whose name ends in ``.db``, a server (``http://localhost:19530``), or a client, which
        `close` leaves open. The token of a server is read from the environment variable
        ``MILVUS_TOKEN``.
    """

    engine, product, key_variable = "milvus", "Milvus", "MILVUS_TOKEN"
    client_type, async_client_type = "MilvusClient", "AsyncMilvusClient"
    filters = "an expression of Milvus, such as 'year > 1999'"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    largest_k = 16384
    options_type = MilvusOptions
    options: MilvusOptions

    _known: _Schema | None = None
    _model: _Schema | None = None  # of the collection that this one will be like

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if not self._is_given and not self.is_server and not self.address.endswith(".db"):
            raise NNNormError(
                "the place of Milvus must be a file that ends in .db, or the address of a server "
                f"(http://localhost:19530); got {self.where!r}"
            )
        self.is_graph = self.options.kind == "hnsw"

    def facts(self) -> Facts | None:
        name = self._find()
        if name is None or (self._is_other and not self._has_indexes(name)):
            return None  # the latter is left of a refresh that was killed, and dropped by the next
        self._known = None
        schema = self._schema()
        with self._translating():
            (row,) = self.client.query(name, filter="", output_fields=["count(*)"], **_STRONG)
        width = schema.fields[schema.vector]["params"]["dim"]
        return Facts(width, self._metric(schema), row["count(*)"])

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        kinds = require("pymilvus", "milvus").DataType
        graph = {"M": self.options.links, "efConstruction": self.options.ef_construction}
        vector = self.options.vector or "embedding"
        # Metadata are dynamic fields, and so is the bias: only some ways of serving store it.
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=True)
        if strings:
            schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=_LONGEST_NAME)
        else:
            schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field(vector, kinds.FLOAT_VECTOR, dim=width)
        index = self.client.prepare_index_params()
        index.add_index(
            vector,
            index_type=self.options.kind.upper(),
            metric_type=metric.upper(),
            params=graph if self.is_graph else {},
        )
        self._create(schema, index, vector)

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        """Create an empty collection with the fields and indexes of `source`."""
        known = source._schema() if isinstance(source, MilvusStore) else None
        if not isinstance(source, MilvusStore) or known is None or known.is_old:
            self.create(width, metric, strings=strings, sample=sample)
            return
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=True)
        index = self.client.prepare_index_params()
        kept = [name for name in known.fields if not _is_computed(known.fields[name])]
        if len(kept) < len(known.fields):
            computed = ", ".join(name for name in known.fields if name not in kept)
            warnings.warn(
                f"{source.name} has fields that its functions fill ({computed}), which are not "
                f"copied; add them to {self.name} with the client of Milvus",
                NNNormWarning,
                stacklevel=2,
            )
        for name in kept:
            settings = _read_settings(known.fields[name])
            if name == known.vector:
                settings["dim"] = width
            schema.add_field(name, **settings)
        with source._translating():
            names = source.client.list_indexes(source.actual)
            listed = [source.client.describe_index(source.actual, name) for name in names]
        for one in listed:
            if one["field_name"] in kept:
                metrics = {"metric_type": one["metric_type"]} if one.get("metric_type") else {}
                if one["field_name"] == known.vector:
                    metrics = {"metric_type": metric.upper()}
                index.add_index(
                    one["field_name"],
                    index_type=one["index_type"],
                    index_name=one["index_name"],
                    params={name: value for name, value in one.items() if name not in _STATISTICS},
                    **metrics,
                )
        self._create(schema, index, known.vector)

    def _create(self, schema: Any, index: Any, vector: str) -> None:
        name = self._new_generation()
        with self._translating():
            self.client.create_collection(
                name,
                schema=schema,
                index_params=index,
                properties={_NOTE: "null", _LAYOUT: "own", _VECTOR: vector},
                **_STRONG,
            )
            self._serve(name)

    def add(self, items: Items) -> None:
        self._write(self.client.insert, items)

    def upsert(self, items: Items) -> None:
        # Milvus Lite merges the fields of an upsert into the old ones, and its insert replaces.
        is_lite = str(self.client.get_server_version()).startswith("milvus_lite")
        self._write(self.client.insert if is_lite else self.client.upsert, items)

    def _write(self, write: Any, items: Items) -> None:
        self.check_served()
        schema = self._schema()
        rows = []
        for own, vector, known, value, others in zip(
            items.ids.tolist(),
            items.vectors.tolist(),
            items.metadata_list(),
            items.value_list(),
            other_vectors(items),
            strict=True,
        ):
            row = {METADATA: known} if schema.is_old else _to_fields(known, schema)
            row |= {schema.key: own, schema.vector: vector}
            row |= {name: others[name] for name in schema.others if name in others}
            rows.append(row if value is None else row | {BIAS: value})
        with self._translating():
            write(self.actual, rows)

    def delete(self, ids: Ids) -> None:
        self.check_served()
        with self._translating():
            self.client.delete(self.actual, ids=ids.tolist())

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        hits: list[Any] = []
        for asked in self._requests(queries, k, filter):
            with self._translating():
                hits += self.client.search(self.actual, **asked)
        return self._gather(hits)

    async def search_async(
        self, client: Any, queries: FloatArray, k: int, filter: Any = None
    ) -> Found:
        hits: list[Any] = []
        for asked in self._requests(queries, k, filter):
            with self._translating():
                hits += await client.search(self.actual, **asked)
        return self._gather(hits)

    def _requests(self, queries: FloatArray, k: int, filter: Any) -> Iterator[dict[str, Any]]:
        """What the client is asked, some queries at a time."""
        schema = self._schema()
        is_graph = schema.index_type.startswith("HNSW")
        params = {"ef": max(self.options.ef, k)} if is_graph else {}
        for start in range(0, len(queries), _QUERIES):
            yield {
                "data": queries[start : start + _QUERIES].tolist(),
                "anns_field": schema.vector,
                "limit": k,
                "filter": filter or "",
                # With none, Milvus Lite returns all of them, vectors too.
                "output_fields": self._fields(schema) or [schema.key],
                "search_params": {"metric_type": schema.index["metric_type"], "params": params},
                **_STRONG,
            }

    def _fields(self, schema: _Schema) -> list[str]:
        return [BIAS] if self.returns_values and schema.is_dynamic else []

    def _gather(self, hits: list[Any]) -> Found:
        schema = self._schema()
        rows: list[list[Hit]] = []
        for row in hits:
            # The first look at a hit decodes all fields of all hits, which takes longer than this.
            has_values = bool(self._fields(schema))
            values = [hit["entity"].get(BIAS) for hit in row] if has_values else repeat(None)
            rows.append(list(zip(row.ids, row.distances, values, strict=False)))
        sign = -1 if self._metric(schema) == "l2" else 1
        return gather_hits(rows, lambda number: sign * number)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        schema = self._schema()
        with self._translating(), _quiet():  # it reports that it has no timestamp
            pages = self.client.query_iterator(
                self.actual, batch_size=batch, output_fields=["*"], **_STRONG
            )
        try:
            while rows := self._next_page(pages):
                ids, vectors = ([row.pop(n) for row in rows] for n in (schema.key, schema.vector))
                values = [row.pop(BIAS, None) for row in rows]
                yield make_items(ids, vectors, values, [_to_metadata(row, schema) for row in rows])
        finally:
            pages.close()

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        schema = self._schema()
        with self._translating():
            rows = self.client.get(
                self.actual, ids=list(dict.fromkeys(ids.tolist())), output_fields=["*"], **_STRONG
            )
        left_out = (schema.key, schema.vector, BIAS)
        found = {
            row[schema.key]: dict(
                _to_metadata({n: v for n, v in row.items() if n not in left_out}, schema)
            )
            for row in rows
        }
        return [found.get(own, {}) for own in ids.tolist()]

    def save(self) -> None:
        with self._translating():
            self.client.flush(self.actual)

    # --- facts about the collection ---

    def imitate(self, source: Store) -> None:
        if isinstance(source, MilvusStore):
            self._model = source._schema()

    @property
    def is_quantized(self) -> bool:  # type: ignore[override]
        schema = self._model if self._find() is None else self._schema()
        return schema is not None and any(part in schema.index_type for part in _CODES)

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        schema = None if self._find() is None else self._schema()
        kind = self.options.kind.upper() if schema is None else schema.index_type
        return kind in ("FLAT", "BRUTE_FORCE")

    def _next_page(self, pages: Any) -> list[dict[str, Any]]:
        with self._translating():
            return [dict(row) for row in pages.next()]

    def _about(self) -> dict[str, Any]:
        with self._translating():
            about: dict[str, Any] = self.client.describe_collection(self.actual)
        return about

    def _schema(self) -> _Schema:
        """The schema of the last look; the first one also loads the collection."""
        if self._known is not None:
            return self._known
        about = self._about()
        fields = {field["name"]: field for field in about["fields"]}
        properties = about.get("properties") or {}
        vector = self._choose_vector(fields, self.options.vector or properties.get(_VECTOR, ""))
        with self._translating():
            self.client.load_collection(self.actual)
            names = self.client.list_indexes(self.actual, field_name=vector)
            if not names:
                raise NNNormError(f"{self.name} has no index on {vector}; create one first")
            index = self.client.describe_index(self.actual, names[0])
        is_ours = _NOTE in properties and _LAYOUT not in properties
        self._known = _Schema(
            fields,
            key=next(name for name, field in fields.items() if field.get("is_primary")),
            vector=vector,
            others=tuple(
                name for name, f in fields.items() if _is_vector(f["type"]) and name != vector
            ),
            index=index,
            is_dynamic=bool(about.get("enable_dynamic_field")) or BIAS in fields,
            is_old=is_ours and METADATA in fields,
        )
        return self._known

    def _choose_vector(self, fields: Mapping[str, Mapping[str, Any]], asked: str) -> str:
        known = [name for name, field in fields.items() if field["type"].name == "FLOAT_VECTOR"]
        if asked in known:
            return asked
        if asked or len(known) != 1:
            what = f"no vector {asked!r}" if asked else f"{len(known)} fields of float vectors"
            raise NNNormError(
                f"{self.name} has {what}; choose one with vector=: {', '.join(known) or 'none'}"
            )
        return known[0]

    def _metric(self, schema: _Schema) -> StoreMetric:
        metric = schema.index["metric_type"]
        if metric not in _METRICS:
            raise NNNormError(f"{self.name} compares by {metric}; expected {', '.join(_METRICS)}")
        return _METRICS[metric]

    def _has_string_ids(self) -> bool:
        return self._schema().strings

    def _find_ids(self, ids: Ids) -> set[Any]:
        key = self._schema().key
        listed = json.dumps(ids.tolist(), ensure_ascii=False)
        with self._translating():
            found = self.client.query(
                self.actual, filter=f"{key} in {listed}", output_fields=[key], **_STRONG
            )
        return {row[key] for row in found}

    def _read_note(self) -> Any:
        return (self._about().get("properties") or {}).get(_NOTE)

    def _write_note(self, note: dict[str, Any]) -> None:
        self.check_served()
        self.client.alter_collection_properties(self.actual, properties={_NOTE: json.dumps(note)})

    # --- the alias ---

    def _forget(self) -> None:
        super()._forget()
        self._known = None

    def _is_missing(self) -> bool:
        return self._is_absent(Path(self.address))

    def _find_alias(self) -> str | None:
        if self.collection not in self.client.list_aliases("")["aliases"]:
            return None
        return str(self.client.describe_alias(self.collection)["collection_name"])

    def _point_alias(self, target: str) -> None:
        if self._find_alias() is None:
            self.client.create_alias(target, self.collection)
        else:
            self.client.alter_alias(target, self.collection)

    def _drop_alias(self) -> None:
        self.client.drop_alias(self.collection)

    def _list_collections(self) -> list[str]:
        return list(self.client.list_collections())

    def _drop_collection(self, name: str) -> None:
        self.client.drop_collection(name)

    def _mark_dropped(self, name: str) -> None:
        # Milvus Lite removes one file after the other.
        self.client.alter_collection_properties(name, properties={_NOTE: "null"})

    def _has_indexes(self, name: str) -> bool:
        with self._translating():
            return bool(self.client.list_indexes(name))

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
        _finish_flushes(Path(self.address))
        # Milvus Lite hangs up on the pings of an idle client, and gRPC reports that on stderr.
        quiet = {"grpc.keepalive_permit_without_calls": False}
        with _quiet():  # it reports a folder that it can't open with a traceback
            return client(self.address, grpc_options=quiet)

    def _errors(self) -> tuple[type[Exception], ...]:
        return (require("pymilvus", "milvus").MilvusException, OSError)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        logging.getLogger("pymilvus.decorators").addFilter(_is_left_to_the_log)
        former = _IS_TRANSLATED.set(True)
        try:
            with super()._translating():
                yield
        finally:
            _IS_TRANSLATED.reset(former)

    def _quote(self, error: Exception) -> str:
        return str(getattr(error, "message", "")).partition("\n")[0] or first_line(error)


# Parts of the names of index types that store numbers in few bits.
_CODES = ("SQ", "PQ", "RABITQ", "SCANN")
# What Milvus says about an index beside its parameters.
_STATISTICS = {
    "field_name",
    "index_name",
    "index_type",
    "metric_type",
    "total_rows",
    "indexed_rows",
    "pending_index_rows",
    "state",
}


def _is_vector(kind: Any) -> bool:
    return kind.name.endswith("_VECTOR")


def _is_computed(field: Mapping[str, Any]) -> bool:
    return bool(field.get("is_function_output"))


def _read_settings(field: Mapping[str, Any]) -> dict[str, Any]:
    """What `add_field` needs for a field like this one."""
    settings = {"datatype": field["type"], **field.get("params", {})}
    for name in ("is_primary", "nullable", "is_partition_key", "element_type"):
        if field.get(name):
            settings[name] = field[name]
    if getattr(field.get("element_type"), "name", "") == "VARCHAR":
        settings.setdefault("max_length", _LONGEST_NAME)
    default = field.get("default_value")
    if default is not None:
        settings["default_value"] = getattr(default, default.WhichOneof("data"))
    return settings


def _to_fields(metadata: dict[str, Any], schema: _Schema) -> dict[str, Any]:
    """Metadata as fields of their own; those whose names are taken go into one of them."""
    taken = {schema.key, schema.vector, BIAS, _REST}
    rest = {name: metadata.pop(name) for name in taken & metadata.keys()}
    return metadata | {_REST: rest} if rest else metadata


def _to_metadata(row: dict[str, Any], schema: _Schema) -> dict[str, Any]:
    """The rest of a row as metadata, with its other vectors."""
    others = {name: row.pop(name) for name in schema.others if name in row}
    known = row[METADATA] if schema.is_old else row | (row.pop(_REST, None) or {})
    return Entry(known, others) if others else known


def _is_left_to_the_log(record: logging.LogRecord) -> bool:
    return not _IS_TRANSLATED.get()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs of pymilvus and Milvus Lite, which have tracebacks in them."""
    loggers = [logging.getLogger(name) for name in ("pymilvus", "milvus_lite", "grpc")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, former in zip(loggers, before, strict=True):
            logger.setLevel(former)


def _finish_flushes(folder: Path) -> None:
    """Remove the logs of writes that Milvus Lite has in its data files already.

    It removes them last when it flushes. Where it is killed before that, it reads them again, and
    each of their items is there twice.
    """
    manifests = list(folder.glob("collections/*/manifest.json"))
    if not manifests or (lock := _take_lock(folder / "LOCK")) is None:
        return  # another process, or this one, has it open
    try:
        for manifest in manifests:
            with suppress(OSError, ValueError, KeyError, TypeError):
                about = json.loads(manifest.read_text(encoding="utf-8"))
                if about["manifest_format_version"] != _MANIFEST_FORMAT:
                    continue
                for log in manifest.parent.glob("wal/wal_*.arrow"):
                    if int(log.stem.rpartition("_")[2]) < about["active_wal_number"]:
                        log.unlink()
    finally:
        os.close(lock)


def _take_lock(path: Path) -> int | None:
    """Lock a file until it is closed; None where that can't be done."""
    try:
        import fcntl

        opened = os.open(path, os.O_RDWR)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened
