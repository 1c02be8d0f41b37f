"""LanceDB (`pip install 'nnnorm[lancedb]'`): a folder or an object store, by inner product.

Every version is a table. The table with the name of the index has one row, which names the served
one; it is overwritten in one commit.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.backend import FloatArray, Hits, Ids, Items, Kind, Layout
from nnnorm.index.metadata import join_columns, make_plain, split_columns
from nnnorm.index.options import Options, whole
from nnnorm.index.reading import BATCH, chunks, gather, to_ids
from nnnorm.index.server import ServerBackend

_SERVED, _CONFIG = "nnnorm_served", "nnnorm"


@dataclass(frozen=True, kw_only=True)
class LancedbOptions(Options):
    """`kind` and `cells` of a new index; `probes` of a search; `id`, `embedding` of a copy."""

    table: str = "items"
    kind: Literal["flat", "ivf"] = "flat"
    cells: int = whole(0, at_least=0)
    probes: int = whole(20)
    id: str = "id"
    embedding: str = "vector"


class LancedbBackend(ServerBackend):
    """An index in LanceDB."""

    engine, options_type = "lancedb", LancedbOptions
    filters = 'a condition in SQL, such as "year > 1999"'
    atomic_writes = shares_files = True
    options: LancedbOptions
    created_by = ("kind", "cells")

    def configure(self) -> None:
        self._tables: dict[str, Any] = {}  # open ones, which see what others write
        self.is_exact = self.options.kind == "flat"

    @property
    def collection(self) -> str:
        """Name of the index."""
        return self.options.table

    def lock_file(self) -> Path | None:
        if not self.address or "://" in self.address:
            return None
        return Path(f"{self.address.rstrip('/')}.lock")

    def _connect(self) -> Any:
        # The interval makes what another process writes visible at once.
        connect = require("lancedb", "lancedb").connect
        return connect(self.address, read_consistency_interval=timedelta(0))

    def close(self) -> None:
        self._client = None if isinstance(self.place, str) else self._client
        self._tables.clear()

    def errors(self) -> tuple[type[Exception], ...]:
        return (RuntimeError, ValueError, OSError)

    def _names(self) -> list[str]:
        if self._is_absent():
            return []
        page = self.client.list_tables()
        names: list[str] = page.tables
        while page.page_token:
            page = self.client.list_tables(page_token=page.page_token)
            names += page.tables
        return names

    def _table(self, version: str | None) -> Any:
        name = self._name(version)
        try:
            if version is None or name not in self._tables:
                self._tables[name] = self.client.open_table(name)
            return self._tables[name]
        except (ValueError, FileNotFoundError) as error:
            if "not found" not in str(error):
                raise
            raise NNNormError(
                f"there is no {self.name}; check the name, or open it again"
            ) from None

    # --- versions ---

    def is_taken(self) -> bool:
        return self.collection in self._names() and self.served() is None

    def served(self) -> str | None:
        if self.collection not in self._names():
            return None
        table = self._table(None)
        is_ours = _SERVED in table.schema.names
        return str(table.to_arrow()[_SERVED].to_pylist()[0]) if is_ours else None

    def versions(self) -> list[str]:
        return self._list_versions(self._names())

    def create(self, version: str, layout: Layout) -> None:
        arrow = require("pyarrow", "lancedb")
        types = arrow.int64(), arrow.float64(), arrow.bool_(), arrow.string()
        kinds = dict(zip(get_args(Kind), types, strict=True))
        fields = [
            arrow.field("id", kinds["text" if layout.string_ids else "integer"], nullable=False),
            arrow.field("vector", arrow.list_(arrow.float32(), layout.width)),
            *(arrow.field(name, kinds[kind]) for name, kind in layout.columns.items()),
            arrow.field("metadata", arrow.string(), metadata=_note(columns=dict(layout.columns))),
        ]
        self.client.create_table(self._name(version), schema=arrow.schema(fields))

    def finish(self, version: str, config: dict[str, Any]) -> None:
        table = self._table(version)
        if self.options.kind == "ivf":
            kind = require("lancedb.index", "lancedb").IvfFlat
            cells = min(self.options.cells, table.count_rows()) or None
            table.create_index("vector", config=kind(distance_type="dot", num_partitions=cells))
        stored = _note(config=config, columns=config["columns"])
        table.update_field_metadata({"path": "metadata", "metadata": stored})

    def _stored(self, table: Any) -> dict[str, Any]:
        found = table.schema.field("metadata").metadata or {}
        stored: dict[str, Any] = json.loads(found.get(_CONFIG.encode(), b"{}"))
        return stored

    def read_config(self, version: str) -> dict[str, Any] | None:
        if self._name(version) not in self._names():
            return None
        return self._stored(self._table(version)).get("config")

    def swap(self, version: str) -> None:
        arrow = require("pyarrow", "lancedb")
        row = arrow.table({_SERVED: [version]})
        mode = "create" if self.served() is None else "overwrite"
        self.client.create_table(self.collection, row, mode=mode)

    def drop(self, version: str) -> None:
        if self._name(version) in self._names():
            # A kill may leave some files of a table, which must not be served as a whole one.
            nothing = {"path": "metadata", "metadata": _note()}
            self._table(version).update_field_metadata(nothing)
            self.client.drop_table(self._name(version))
            self._tables.pop(self._name(version), None)

    # --- items ---

    def _to_arrow(self, table: Any, items: Items) -> Any:
        arrow, schema = require("pyarrow", "lancedb"), table.schema
        columns = self._stored(table)["columns"]
        rows = zip(*(split_columns(entry, columns) for entry in items.metadata), strict=True)
        flat = arrow.array(np.ascontiguousarray(items.vectors).ravel())
        vectors = arrow.FixedSizeListArray.from_arrays(flat, items.vectors.shape[1])
        made = [arrow.array(items.ids.tolist()), vectors]
        made += [
            arrow.array(list(values), field.type)
            for field, values in zip(list(schema)[2:], rows, strict=True)
        ]
        return arrow.Table.from_arrays(made, schema=schema)

    def add(self, version: str, items: Items) -> None:
        table = self._table(version)
        table.add(self._to_arrow(table, items))

    def upsert(self, version: str, items: Items) -> None:
        table = self._table(version)
        merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(self._to_arrow(table, items))

    def delete(self, version: str, ids: Ids) -> None:
        self._table(version).delete(_chosen(ids))

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        table, rows = self._table(version), []
        columns = self._stored(table)["columns"]
        for some in chunks(ids, BATCH):
            asked = table.search().where(_chosen(some)).limit(BATCH)
            rows += asked.select(["id", *columns, "metadata"]).to_arrow().to_pylist()
        return {row["id"]: _join(columns, row) for row in rows}

    def count(self, version: str) -> int:
        return int(self._table(version).count_rows())

    def search(
        self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float | None
    ) -> Hits:
        table, rows = self._table(version), []
        is_text = str(table.schema.field("id").type) == "string"
        for vector in vectors:
            asked = table.search(vector, vector_column_name="vector").distance_type("dot")
            asked = asked.select(["id", "_distance"]).limit(k).nprobes(self.options.probes)
            if filter is not None:
                asked = asked.where(filter)  # before the search, which is the default
            found = asked.to_arrow()
            if filter is not None and len(found) < k and not self.is_exact:
                found = asked.bypass_vector_index().to_arrow()
            scores = [1 - distance for distance in found["_distance"].to_pylist()]
            rows.append(list(zip(found["id"].to_pylist(), scores, strict=True)))
        return gather(rows, string_ids=is_text)

    def scan(self, version: str | None) -> Iterator[Items]:
        table = self._table(version)
        own, vector, columns = "id", "vector", None
        if version is None:
            own, vector = self.options.id, self.options.embedding
            if missing := {own, vector} - set(table.schema.names):
                raise NNNormError(
                    f"{self.name} has no column {', '.join(missing)}; name them with id= and "
                    f"embedding=: {', '.join(table.schema.names)}"
                )
        else:
            columns = self._stored(table)["columns"]
        for batch in table.search().to_batches(batch_size=BATCH):
            rows = batch.to_pylist()
            ids = to_ids([row.pop(own) for row in rows])
            vectors = np.array([row.pop(vector) for row in rows], dtype=np.float32)
            entries = [make_plain(row) if columns is None else _join(columns, row) for row in rows]
            if len(ids):
                yield Items(ids, vectors, None, entries)


def _note(**about: Any) -> dict[str, str]:
    return {_CONFIG: json.dumps(about)}


def _join(columns: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return join_columns(columns, [*(row[name] for name in columns), row["metadata"]])


def _chosen(ids: Ids) -> str:
    """Return the condition that chooses these ids; SQL doubles a quote."""
    quoted = ("'" + re.sub("'", "''", str(own)) + "'" for own in ids.tolist())
    return f"id IN ({', '.join(quoted if ids.dtype.kind == 'U' else map(str, ids.tolist()))})"
