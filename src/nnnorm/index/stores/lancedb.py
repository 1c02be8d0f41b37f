"""LanceDB (`pip install 'nnnorm[lancedb]'`): a table in a folder, scanned or with an IVF index.

A table of LanceDB has no metric, only its index and each query have one, and a query without a
metric uses L2: here both state it. Its distances are 1 − product, the squared distance, 1 − cosine.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import TableOptions, option
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Hit,
    Ids,
    Items,
    Sample,
    StoreMetric,
    Way,
    gather_hits,
    make_items,
)
from nnnorm.index.stores.database import BIAS, METADATA, DatabaseStore, make_plain, to_arrow

_METRICS: dict[str, StoreMetric] = {"dot": "ip", "ip": "ip", "cosine": "cosine", "l2": "l2"}
_DISTANCES: dict[StoreMetric, str] = {"ip": "dot", "cosine": "cosine", "l2": "l2"}


@dataclass(frozen=True, kw_only=True)
class LancedbOptions(TableOptions):
    """Options of LanceDB, whose default index IVF_PQ is quantised and not offered."""

    kind: Literal["flat", "ivf"] = option(
        "flat", "Index of a new table: a scan of every row, or inverted lists (IVF_FLAT)."
    )
    cells: int = option(0, "Number of inverted lists; 0 leaves it to LanceDB.")
    probes: int = option(20, "Inverted lists probed per query.", at_least=1)
    id: str = option("id", "Column of the ids.")
    embedding: str = option("", "Column of the vectors; by default the only one.")


class LancedbStore(DatabaseStore):
    """A table of LanceDB.

    Parameters
    ----------
    place : str or PathLike
        The database: a folder, or an object store such as ``s3://bucket/folder``.
    """

    engine, product, noun = "lancedb", "LanceDB", "table"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    options_type = LancedbOptions
    options: LancedbOptions
    _table: Any = None

    def facts(self) -> Facts | None:
        table = self._find()
        if table is None:
            return None
        kind = table.schema.field(self._column()).type
        return Facts(kind.list_size, self._metric(), table.count_rows())

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        arrow = require("pyarrow", "lancedb")
        about = {"nnnorm_metric": metric}
        schema = arrow.schema(
            [
                arrow.field("id", arrow.string() if strings else arrow.int64(), nullable=False),
                arrow.field("vector", arrow.list_(arrow.float32(), width), metadata=about),
                arrow.field(BIAS, arrow.float32()),
                arrow.field(METADATA, arrow.string()),
            ]
        )
        with self._translating():
            self._table = self.client.create_table(self.collection, schema=schema)

    def add(self, items: Items) -> None:
        table = self.table
        with self._translating():
            table.add(to_arrow(items, self.options.id, self._column(), "lancedb", table.schema))

    def delete(self, ids: Ids) -> None:
        with self._translating():
            self.table.delete(self._is_one_of(ids))

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        table, metric, own = self.table, self._metric(), self.options.id
        wanted = [own, BIAS] if self._is_ours() else [own]
        with self._translating():
            hits = (
                table.search(queries, vector_column_name=self._column())
                .distance_type(_DISTANCES[metric])
                .select([*wanted, "_distance"])
                .limit(max(1, min(k, table.count_rows())))
                .nprobes(self.options.probes)
                .to_arrow()
                .to_pydict()
            )
        # One list for all queries; a column tells them apart where there are several.
        of_query = hits["query_index"] if len(queries) > 1 else [0] * len(hits[own])
        rows: list[list[Hit]] = [[] for _ in queries]
        values = hits.get(BIAS, [None] * len(hits[own]))
        for query, *hit in zip(of_query, hits[own], hits["_distance"], values, strict=True):
            rows[query].append((hit[0], hit[1], hit[2]))
        return gather_hits(rows, lambda d: -d if metric == "l2" else 1 - d)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table, column, ours = self.table, self._column(), self._is_ours()
        n_items = table.count_rows()
        for start in range(0, n_items, batch):
            offsets = list(range(start, min(start + batch, n_items)))
            with self._translating():
                rows = table.take_offsets(offsets).to_arrow().to_pylist()
            rows = [{key: row[key] for key in row if key[0] != "_"} for row in rows]
            ids, vectors = ([row.pop(name) for row in rows] for name in (self.options.id, column))
            values = [row.pop(BIAS, None) for row in rows]
            known = [json.loads(r[METADATA] or "{}") if ours else make_plain(r) for r in rows]
            yield make_items(ids, vectors, values, known)

    def save(self) -> None:
        """Build the index of kind "ivf" once there are items, or add new ones to it."""
        n_items = self.table.count_rows()
        with self._translating():
            if self._index() is not None:
                self.table.optimize()
            elif self.options.kind == "ivf" and n_items:
                config = require("lancedb.index", "lancedb").IvfFlat(
                    distance_type=_DISTANCES[self._metric()],
                    num_partitions=min(self.options.cells, n_items) or None,
                )
                self.table.create_index(self._column(), config=config)

    def traps(self) -> list[str]:
        index, wanted = self._index(), _DISTANCES[self._metric()]
        if index is None:
            return []
        problems = []
        if (measured := self._distance_of(index)) != wanted:
            problems.append(
                f"its index compares by {measured}, and queries by {wanted}: "
                "create the index again with that metric"
            )
        if any(code in index.index_type for code in ("Pq", "Sq", "Rq")):
            problems.append(
                f"its index {index.index_type} is quantised: use IVF_FLAT, or refine what it finds"
            )
        return problems

    def close(self) -> None:
        self._table = self._client = None

    # --- facts about the table ---

    @property
    def table(self) -> Any:
        """LanceDB's own table."""
        return self._found(self._find())

    def _find(self) -> Any:
        if self._table is None:
            if "://" not in self.address and self._is_absent(Path(self.address)):
                return None
            with self._translating():
                try:
                    self._table = self.client.open_table(self.collection)
                except (ValueError, FileNotFoundError) as error:
                    if "not found" not in str(error):
                        raise
        return self._table

    def _column(self) -> str:
        """Choose the column of vectors: the one asked for, or the only one."""
        kinds = require("pyarrow", "lancedb").types
        known = [
            field.name
            for field in self.table.schema
            if kinds.is_fixed_size_list(field.type) and kinds.is_floating(field.type.value_type)
        ]
        asked = self.options.embedding
        if asked in known:
            return asked
        if asked or len(known) != 1:
            what = f"no vectors {asked!r}" if asked else f"{len(known)}"
            raise NNNormError(
                f"{self.name} must have one column of vectors, and has {what}; name it with "
                f"embedding=: {', '.join(known) or 'there is none'}"
            )
        return known[0]

    def _remarks(self) -> dict[str, str]:
        found = self.table.schema.field(self._column()).metadata or {}
        return {key.decode(): value.decode() for key, value in found.items()}

    def _is_ours(self) -> bool:
        return "nnnorm_metric" in self._remarks()

    def _metric(self) -> StoreMetric:
        """Metric of the note, else of the index, else LanceDB's default."""
        noted = self._remarks().get("nnnorm_metric")
        if noted is None:
            index = self._index()
            noted = "l2" if index is None else self._distance_of(index)
        if noted not in _METRICS:
            raise NNNormError(f"{self.name} compares by {noted}; expected dot, l2 or cosine")
        return _METRICS[noted]

    def _index(self) -> Any:
        column, indexes = self._column(), self.table.list_indices()
        return next((index for index in indexes if list(index.columns) == [column]), None)

    def _distance_of(self, index: Any) -> str:
        return str(self.table.index_stats(index.name).distance_type).lower()

    def _has_string_ids(self) -> bool:
        schema, own = self.table.schema, self.options.id
        if own not in schema.names:
            raise NNNormError(
                f"{self.name} has no column {own}; name the column of the ids with id=: "
                f"{', '.join(schema.names)}"
            )
        kind = str(schema.field(own).type)
        if kind not in ("string", "large_string") and "int" not in kind:
            raise NNNormError(
                f"the ids of {self.name} must be whole numbers or strings; got {kind}"
            )
        return "string" in kind

    def _find_ids(self, ids: Ids) -> set[Any]:
        with self._translating():
            asked = self.table.search().where(self._is_one_of(ids)).select([self.options.id])
            return set(asked.limit(len(ids)).to_arrow()[self.options.id].to_pylist())

    def _is_one_of(self, ids: Ids) -> str:
        quoted = ("'" + str(own).replace("'", "''") + "'" for own in ids.tolist())
        listed = ", ".join(quoted if ids.dtype.kind == "U" else map(str, ids.tolist()))
        return f"`{self.options.id}` IN ({listed})"

    def _read_note(self) -> Any:
        return self._remarks().get("nnnorm")

    def _write_note(self, note: dict[str, Any]) -> None:
        remark = {"nnnorm": json.dumps(note), "nnnorm_metric": note["metric"]}
        self.table.update_field_metadata({"path": self._column(), "metadata": remark})

    # --- the database ---

    def _connect(self) -> Any:
        # The interval makes what another process writes visible at once.
        connect = require("lancedb", "lancedb").connect
        return connect(self.address, read_consistency_interval=timedelta(0))

    def _errors(self) -> tuple[type[Exception], ...]:
        return (RuntimeError, ValueError, OSError)
