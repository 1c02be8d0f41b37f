"""LanceDB (`pip install 'nnnorm[lancedb]'`): a folder or an object store, by inner product.

Every version is a table. The table with the name of the index has one row, the name of the served
version, and is overwritten in one commit.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnnorm.errors import require
from nnnorm.index.backend import BATCH, FloatArray, Hits, Ids, Items, Layout, Options, chunks, whole
from nnnorm.index.server import ServerBackend
from nnnorm.index.sql import join_columns, split_columns

_SERVED = "nnnorm_served"
# The kinds of metadata, by type in Arrow.
_KINDS = {"int64": "integer", "double": "float", "bool": "boolean", "string": "text"}


@dataclass(frozen=True, kw_only=True)
class LancedbOptions(Options):
    """`kind` of a new index; `probes` of a search; `id`, `embedding` of a copy."""

    table: str = "items"
    kind: Literal["flat", "ivf"] = "flat"
    probes: int = whole(20)
    id: str = "id"
    embedding: str = "vector"


class LancedbBackend(ServerBackend):
    """An index in LanceDB."""

    engine, options_type = "lancedb", LancedbOptions
    filters = 'a condition in SQL, such as "year > 1999"'
    atomic_writes = True
    options: LancedbOptions
    created_by = ("kind",)

    def configure(self) -> None:
        self._tables: dict[str, Any] = {}  # open tables, which show what others write
        self.is_exact = self.options.kind == "flat"

    def lock_file(self) -> Path | None:
        if not self.address or "://" in self.address:
            return None
        return Path(f"{self.address.rstrip('/')}.lock")

    def _connect(self) -> Any:
        # With this interval, writes of other processes show at once.
        connect = require("lancedb", "lancedb").connect
        return connect(self.address, read_consistency_interval=timedelta(0))

    def close(self) -> None:
        super().close()
        self._tables.clear()

    def _table(self, name: str) -> Any:
        if name == self.collection or name not in self._tables:
            self._tables[name] = self.client.open_table(name)
        return self._tables[name]

    # --- versions ---

    def _list_names(self) -> list[str]:
        return list(self.client.list_tables(limit=2**31 - 1).tables)

    def _served_name(self) -> str | None:
        if self.collection not in self._list_names():
            return None
        table = self._table(self.collection)
        is_ours = _SERVED in table.schema.names
        return str(table.to_arrow()[_SERVED].to_pylist()[0]) if is_ours else None

    def _write_config(self, name: str, config: dict[str, Any] | None) -> None:
        stored = {"path": "metadata", "metadata": {"nnnorm": json.dumps(config)}}
        self._table(name).update_field_metadata(stored)

    def _read_config(self, name: str) -> Any:
        about = self._table(name).schema.field("metadata").metadata or {}
        return json.loads(about.get(b"nnnorm", b"null"))

    def _delete(self, name: str) -> None:
        self.client.drop_table(name)
        self._tables.pop(name, None)

    def create(self, version: str, layout: Layout) -> None:
        arrow = require("pyarrow", "lancedb")
        types = {kind: arrow.type_for_alias(alias) for alias, kind in _KINDS.items()}
        fields = [
            arrow.field("id", types["text" if layout.string_ids else "integer"], nullable=False),
            arrow.field("vector", arrow.list_(arrow.float32(), layout.width)),
            *(arrow.field(name, types[kind]) for name, kind in layout.columns.items()),
            arrow.field("metadata", arrow.string()),
        ]
        self.client.create_table(self._name(version), schema=arrow.schema(fields))

    def finish(self, version: str, config: dict[str, Any]) -> None:
        if self.options.kind == "ivf":
            made = require("lancedb.index", "lancedb").IvfFlat(distance_type="dot")
            self._table(self._name(version)).create_index("vector", config=made)
        super().finish(version, config)

    def swap(self, version: str) -> None:
        row = require("pyarrow", "lancedb").table({_SERVED: [self._name(version)]})
        mode = "create" if self.served() is None else "overwrite"
        self.client.create_table(self.collection, row, mode=mode)

    # --- items ---

    def _to_arrow(self, table: Any, items: Items) -> Any:
        arrow, schema = require("pyarrow", "lancedb"), table.schema
        columns = _columns(schema)
        rows = zip(*(split_columns(entry, columns) for entry in items.metadata), strict=True)
        flat = arrow.array(np.ascontiguousarray(items.vectors).ravel())
        vectors = arrow.FixedSizeListArray.from_arrays(flat, items.vectors.shape[1])
        types = schema.types[2:]
        made = [arrow.array(list(one), kind) for one, kind in zip(rows, types, strict=True)]
        ids = arrow.array(items.ids.tolist())
        return arrow.Table.from_arrays([ids, vectors, *made], schema=schema)

    def add(self, version: str, items: Items) -> None:
        table = self._table(self._name(version))
        table.add(self._to_arrow(table, items))

    def upsert(self, version: str, items: Items) -> None:
        table = self._table(self._name(version))
        merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(self._to_arrow(table, items))

    def delete(self, version: str, ids: Ids) -> None:
        self._table(self._name(version)).delete(_chosen(ids))

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        table, rows = self._table(self._name(version)), []
        columns = _columns(table.schema)
        for some in chunks(ids, BATCH):
            asked = table.search().where(_chosen(some)).limit(BATCH)
            rows += asked.select(["id", *columns, "metadata"]).to_arrow().to_pylist()
        return {own: join_columns(columns, values) for own, *values in map(dict.values, rows)}

    def count(self, version: str) -> int:
        return int(self._table(self._name(version)).count_rows())

    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        table, rows = self._table(self._name(version)), []
        for vector in vectors:
            asked = table.search(vector, vector_column_name="vector").distance_type("dot")
            asked = asked.select(["id", "_distance"]).limit(k).nprobes(self.options.probes)
            if filter is not None:
                asked = asked.where(filter)  # by default, applied before the search
            found = asked.to_arrow()
            if filter is not None and len(found) < k and not self.is_exact:
                found = asked.bypass_vector_index().to_arrow()
            scores = [1 - distance for distance in found["_distance"].to_pylist()]
            rows.append(list(zip(found["id"].to_pylist(), scores, strict=True)))
        return Hits.read(rows)

    def scan(self, version: str | None) -> Iterator[Items]:
        table = self._table(self._name(version))
        own, vector = ("id", "vector") if version else (self.options.id, self.options.embedding)
        if missing := {own, vector} - set(table.schema.names):
            has = f"has no column {', '.join(missing)}; it has {', '.join(table.schema.names)}"
            raise self.error(f"{has}: name yours with id= and embedding=")
        for batch in table.search().to_batches(batch_size=BATCH):
            rows = batch.to_pylist()
            ids = [row.pop(own) for row in rows]
            vectors = [row.pop(vector) for row in rows]
            if version:
                columns = _columns(table.schema)
                rows = [join_columns(columns, list(row.values())) for row in rows]
            if ids:
                yield Items.read(ids, vectors, rows)


def _columns(schema: Any) -> dict[str, Any]:
    """Return the columns of metadata: all fields but id, vector and the other metadata."""
    return {field.name: _KINDS[str(field.type)] for field in list(schema)[2:-1]}


def _chosen(ids: Ids) -> str:
    """Return the condition that chooses these ids; SQL doubles a quote."""
    quoted = ("'" + str(own).replace("'", "''") + "'" for own in ids.tolist())
    return f"id IN ({', '.join(quoted if ids.dtype.kind == 'U' else map(str, ids.tolist()))})"
