"""Milvus (`pip install 'nnnorm[milvus]'`): a file (Milvus Lite), or a server.

Every search passes the metric, because Milvus Lite accepts a wrong one without an error. Metadata
is stored in dynamic fields, so filters find it by name. The name of the index is an alias.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from nnnorm.errors import NNNormError, require
from nnnorm.index.backend import BATCH, FloatArray, GraphOptions, Hits, Ids, Items, Layout, chunks
from nnnorm.index.server import ServerBackend, ServerOptions, join_fields, split_fields

_NUMBERS = 4_000_000  # in one request: a server takes 64 MB at most
_LONGEST = 65_535
_QUERIES = 1000
# Other characters, including other control characters, need no escape.
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_STRONG: dict[str, Any] = {"consistency_level": "Strong"}


@dataclass(frozen=True, kw_only=True)
class MilvusOptions(ServerOptions, GraphOptions):
    """`kind`, `links`, `ef_construction` of a new index; `vector` of a collection to copy."""

    kind: Literal["flat", "hnsw"] = "flat"
    vector: str = ""


class MilvusBackend(ServerBackend):
    """An index in Milvus."""

    engine, options_type, key_variable = "milvus", MilvusOptions, "MILVUS_TOKEN"
    filters = "a Milvus expression, such as 'year > 1999'"
    largest_k = 16_384
    options: MilvusOptions
    created_by = ("kind", "links", "ef_construction")

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        super().__init__(place, **options)
        self._in_memory: set[str] = set()
        if self.address and not self.is_server and not self.address.endswith(".db"):
            raise NNNormError(f"milvus needs a .db file or a server; got {self.address}")
        if not re.fullmatch(r"[A-Za-z_]\w*", self.collection, re.ASCII):
            expected = "the option collection of milvus must be a name of letters, digits and _"
            raise NNNormError(f"{expected}; got {self.collection!r:.60}")

    def configure(self) -> None:
        self.is_exact = self.options.kind == "flat"

    def _connect(self) -> Any:
        client = require("pymilvus", "milvus").MilvusClient
        # Both log tracebacks of errors that they raise, and pymilvus a warning about Milvus Lite.
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not self.is_server:
            # Milvus Lite rejects the pings of an idle client, which gRPC reports on stderr.
            return client(self.address, grpc_options={"grpc.keepalive_permit_without_calls": False})
        parts, token = urlsplit(self.address), os.environ.get(self.key_variable, "")
        if parts.username is not None:  # pymilvus doesn't read them from an address
            token = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        host = parts.netloc.rpartition("@")[2]
        return client(f"{parts.scheme}://{host}", token=token)

    # --- versions ---

    def _list_names(self) -> list[str]:
        return list(self.client.list_collections())

    def _served_name(self) -> str | None:
        if self.collection not in self.client.list_aliases("")["aliases"]:
            return None
        return str(self.client.describe_alias(self.collection)["collection_name"])

    def _write_config(self, name: str, config: dict[str, Any] | None) -> None:
        self.client.alter_collection_properties(name, properties={"nnnorm": json.dumps(config)})

    def _read_config(self, name: str) -> Any:
        about = self.client.describe_collection(name).get("properties") or {}
        return json.loads(about.get("nnnorm") or "null")

    def _delete(self, name: str) -> None:
        self.client.drop_collection(name)

    def create(self, version: str, layout: Layout) -> None:
        kinds = require("pymilvus", "milvus").DataType
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=True)
        kind = {"datatype": kinds.VARCHAR, "max_length": _LONGEST}
        kind = kind if layout.string_ids else {"datatype": kinds.INT64}
        schema.add_field("id", is_primary=True, **kind)
        schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=layout.width)
        index = self.client.prepare_index_params()
        about: dict[str, Any] = {"index_type": self.options.kind.upper(), "metric_type": "IP"}
        graph = {"M": self.options.links, "efConstruction": self.options.ef_construction}
        index.add_index("embedding", **about, params={} if self.is_exact else graph)
        self.client.create_collection(
            self._name(version), schema=schema, index_params=index, **_STRONG
        )

    def swap(self, version: str) -> None:
        point = self.client.create_alias if self.served() is None else self.client.alter_alias
        point(self._name(version), self.collection)

    # --- items ---

    def _loaded(self, version: str | None) -> str:
        """Load a collection into memory, as Milvus requires for a search; return its name."""
        name = self._name(version)
        if name not in self._in_memory:
            self.client.load_collection(name)
            self._in_memory.add(name)
        return name

    def _query(self, version: str | None, chosen: str, fields: str = "*", **page: Any) -> Any:
        name, options = self._loaded(version), {"output_fields": [fields], **_STRONG, **page}
        return self.client.query(name, filter=chosen, **options)

    def add(self, version: str, items: Items) -> None:
        for part in chunks(items, max(1, _NUMBERS // items.vectors.shape[1])):
            rows = [
                {**split_fields(entry, _is_field), "id": own, "embedding": vector.tolist()}
                for own, vector, entry in part
            ]
            self.client.insert(self._name(version), rows)

    def delete(self, version: str, ids: Ids) -> None:
        for chosen in _chosen(ids):
            self.client.delete(self._loaded(version), filter=chosen)

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        found = [row for chosen in _chosen(ids) for row in self._query(version, chosen)]
        return {row["id"]: _to_metadata(row, "id", "embedding") for row in found}

    def count(self, version: str) -> int:
        (row,) = self._query(version, "", "count(*)")
        return int(row["count(*)"])

    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        params = {} if self.is_exact else {"ef": max(self.options.ef, k)}
        asked = {"limit": k, "filter": filter or "", "output_fields": ["id"], **_STRONG}
        asked["search_params"] = {"metric_type": "IP", "params": params}
        rows: list[list[tuple[Any, float]]] = []
        for some in chunks(vectors.tolist(), _QUERIES):
            found = self.client.search(self._loaded(version), data=some, **asked)
            rows += [list(zip(row.ids, row.distances, strict=True)) for row in found]
        return Hits.read(rows)

    def scan(self, version: str | None) -> Iterator[Items]:
        fields = self.client.describe_collection(self._loaded(version))["fields"]
        key = next(field["name"] for field in fields if field.get("is_primary"))
        vectors = [field["name"] for field in fields if field["type"].name == "FLOAT_VECTOR"]
        wanted = self.choose_vector(vectors)
        # pymilvus has an iterator, but it doesn't escape ids in its expressions.
        after = ""
        while rows := self._query(version, after, limit=BATCH, iterator="True"):
            entries = [_to_metadata(row, key, *vectors) for row in rows]
            yield Items.read([row[key] for row in rows], [row[wanted] for row in rows], entries)
            after = f"{key} > {_quoted(rows[-1][key])}"


def _quoted(own: int | str) -> str:
    return f'"{own.translate(_ESCAPES)}"' if isinstance(own, str) else str(own)


def _chosen(ids: Ids) -> Iterator[str]:
    """Yield expressions that choose these ids; Milvus Lite has no parameters of expressions."""
    for some in chunks(list(map(_quoted, ids.tolist())), BATCH):
        yield f"id in [{', '.join(some)}]"


def _is_field(name: str, value: Any) -> bool:
    """Whether Milvus stores a dynamic field unchanged."""
    is_name = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and name not in ("id", "embedding")
    return bool(is_name) and isinstance(value, (str, bool, int, float))


def _to_metadata(row: Any, *left_out: str) -> dict[str, Any]:
    return join_fields({name: row[name] for name in row if name not in left_out})
