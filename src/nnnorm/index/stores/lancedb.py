"""LanceDB (`pip install 'nnnorm[lancedb]'`): a table in a folder, scanned or with an IVF index.

A table of LanceDB has no metric, only its index and each query have one, and a query without a
metric uses L2: here both state it. Its distances are 1 − product, the squared distance, 1 − cosine.

A table can't be renamed, but every write is one new version of it. Another generation is served by
overwriting the table with its rows in one version; the former rows are then copied to the table of
the other generation. After a kill in between, both hold the same generation, and the version before
it is copied when the other one is next opened.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np

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
    Store,
    StoreMetric,
    Way,
    gather_hits,
    make_items,
)
from nnnorm.index.stores.database import BIAS, METADATA, make_plain
from nnnorm.index.stores.tables import (
    Kind,
    TableStore,
    check_condition,
    choose_columns,
    join_entry,
    to_arrow_table,
)

_METRICS: dict[str, StoreMetric] = {"dot": "ip", "ip": "ip", "cosine": "cosine", "l2": "l2"}
_DISTANCES: dict[StoreMetric, str] = {"ip": "dot", "cosine": "cosine", "l2": "l2"}
_TYPES: dict[str, Kind] = {
    "int64": "integer",
    "double": "float",
    "bool": "boolean",
    "string": "text",
}
# Entries in the metadata of the field of the vectors.
_NOTE, _METRIC, _GENERATION, _PACKED = (
    f"nnnorm{end}" for end in ("", "_metric", "_generation", "_packed")
)


@dataclass(frozen=True, kw_only=True)
class LancedbOptions(TableOptions):
    """Options of LanceDB, whose default index IVF_PQ is quantised and not offered."""

    kind: Literal["flat", "ivf", "sq"] = option(
        "flat", "Index of a new table: a scan of every row, inverted lists, or those in 8 bits."
    )
    cells: int = option(0, "Number of inverted lists; 0 leaves it to LanceDB.")
    probes: int = option(20, "Inverted lists probed per query.", at_least=1)
    refine: int = option(0, "Times k rows of a quantised index that are compared again exactly.")
    id: str = option("id", "Column of the ids.")
    embedding: str = option("", "Column of the vectors; by default the only one.")


@dataclass(frozen=True)
class _Table:
    """What a search has to know about a table."""

    vector: str
    metric: StoreMetric
    has_bias: bool
    is_packed: bool  # whether a column holds the metadata that has no column, as JSON
    kinds: dict[str, Kind]  # columns of metadata
    strings: bool


class LancedbStore(TableStore):
    """A table of LanceDB.

    Parameters
    ----------
    place : str, PathLike or lancedb.DBConnection
        The database: a folder, an object store such as ``s3://bucket/folder``, or an open
        connection.
    """

    engine, product = "lancedb", "LanceDB"
    client_type, async_client_type = "DBConnection", "AsyncConnection"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    filters = 'a condition in SQL, such as "year > 1999"'
    options_type = LancedbOptions
    options: LancedbOptions
    _handle: Any = None
    _known: _Table | None = None

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if not self._is_given and not self.address:
            raise NNNormError(
                "the place of LanceDB must be a folder (lancedb:folder?table=photos), an object "
                "store or a connection; got none"
            )
        self.is_exact = self.options.kind == "flat"
        # One range of 8 bits serves all coordinates.
        self.is_quantized = self.has_one_range = self.options.kind == "sq"

    def facts(self) -> Facts | None:
        self._forget()
        handle = self._find()
        if handle is None:
            return None
        table = self._look()
        self.is_exact = self.is_exact and self._index() is None
        width = handle.schema.field(table.vector).type.list_size
        return Facts(width, table.metric, handle.count_rows())

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        arrow = require("pyarrow", "lancedb")
        kinds = {
            "integer": arrow.int64(),
            "float": arrow.float64(),
            "boolean": arrow.bool_(),
            "text": arrow.string(),
        }
        # LanceDB reads a dot as the path of a field, and keeps names with _ for itself.
        chosen = choose_columns(
            sample.metadata, allows=lambda name: "." not in name and name[0] != "_"
        )
        columns = [arrow.field(name, kinds[kind]) for name, kind in chosen.items()]
        self._create("vector", width, metric, columns, strings=strings)

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        if not isinstance(source, LancedbStore) or source._find() is None:
            return self.create(width, metric, strings=strings, sample=sample)
        table, schema = source._look(), source.table.schema
        columns = [schema.field(name) for name in table.kinds]
        name = self.options.embedding or table.vector
        self._create(name, width, metric, columns, strings=strings)

    def _create(
        self, vector: str, width: int, metric: StoreMetric, columns: list[Any], *, strings: bool
    ) -> None:
        arrow = require("pyarrow", "lancedb")
        is_packed = METADATA not in [column.name for column in columns]
        about = {
            _METRIC: metric,
            _GENERATION: secrets.token_hex(8),
            _PACKED: "1" if is_packed else "0",
        }
        own = arrow.string() if strings else arrow.int64()
        schema = arrow.schema(
            [
                arrow.field(self.options.id, own, nullable=False),
                arrow.field(vector, arrow.list_(arrow.float32(), width), metadata=about),
                arrow.field(BIAS, arrow.float32()),
                *columns,
                *([arrow.field(METADATA, arrow.string())] if is_packed else []),
            ]
        )
        with self._translating():
            self._handle = self.client.create_table(self.actual, schema=schema)
        self._known = None

    def add(self, items: Items) -> None:
        rows = self._to_arrow(items)
        with self._translating():
            self.table.add(rows)

    def upsert(self, items: Items) -> None:
        rows = self._to_arrow(items)
        with self._translating():
            merge = self.table.merge_insert(self.options.id)
            merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def delete(self, ids: Ids) -> None:
        with self._translating():
            self.table.delete(self._is_one_of(ids))

    def copy_rest(self, source: Store) -> None:
        """Index the columns of metadata as the source does."""
        if isinstance(source, LancedbStore):
            kinds = {"BTree": "BTREE", "Bitmap": "BITMAP", "LabelList": "LABEL_LIST"}
            config = require("lancedb.index", "lancedb")
            with self._translating():
                for index in source.table.list_indices():
                    if index.index_type in kinds and set(index.columns) <= set(self._look().kinds):
                        made = getattr(config, index.index_type)()
                        self.table.create_index(index.columns[0], config=made)

    def value_range(self) -> tuple[float, float] | None:
        if not self._look().has_bias:
            return None
        with self._translating():
            values = self.table.search().select([BIAS]).to_arrow()[BIAS].to_numpy()
        return (float(values.min()), float(values.max())) if len(values) else None

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        condition = None if filter is None else check_condition(filter, self.engine)
        hits = self._ask(queries, k, condition)
        if self._lacks(hits, len(queries), k, condition):
            hits = self._ask(queries, k, condition, is_exhaustive=True)
        return self._gather(hits, queries)

    async def search_async(
        self, client: Any, queries: FloatArray, k: int, filter: Any = None
    ) -> Found:
        condition = None if filter is None else check_condition(filter, self.engine)
        table = self._look()
        with self._translating():
            handle = await client.open_table(self.actual)
            version = await handle.version()
            asked = handle.vector_search(queries).column(table.vector)
            hits = (await self._limit(asked, k, condition).to_arrow()).to_pydict()
            if self._lacks(hits, len(queries), k, condition):
                asked = handle.vector_search(queries).column(table.vector)
                asked = self._limit(asked, k, condition, is_exhaustive=True)
                hits = (await asked.to_arrow()).to_pydict()
            after = await handle.version()
        # Where the table has changed meanwhile, no mark is that of the answer.
        mark = version if after == version else (version, after)
        return replace(self._gather(hits, queries), mark=mark)

    def _lacks(
        self, hits: dict[str, list[Any]], n_queries: int, k: int, condition: str | None
    ) -> bool:
        """Whether the probed lists may hold fewer rows that match than there are."""
        return condition is not None and len(hits[self.options.id]) < k * n_queries

    def _gather(self, hits: dict[str, list[Any]], queries: FloatArray) -> Found:
        table, own = self._look(), self.options.id
        # One list for all queries; a column tells them apart where there are several.
        of_query = hits["query_index"] if len(queries) > 1 else [0] * len(hits[own])
        rows: list[list[Hit]] = [[] for _ in queries]
        values = hits.get(BIAS, [None] * len(hits[own]))
        for query, *hit in zip(of_query, hits[own], hits["_distance"], values, strict=True):
            rows[query].append((hit[0], hit[1], hit[2]))
        return gather_hits(rows, lambda d: -d if table.metric == "l2" else 1 - d)

    def _ask(
        self, queries: FloatArray, k: int, condition: str | None, *, is_exhaustive: bool = False
    ) -> dict[str, list[Any]]:
        with self._translating():
            asked = self.table.search(queries, vector_column_name=self._look().vector)
            asked = self._limit(asked, k, condition, is_exhaustive=is_exhaustive)
            found: dict[str, list[Any]] = asked.to_arrow().to_pydict()
        return found

    def _limit(
        self, asked: Any, k: int, condition: str | None, *, is_exhaustive: bool = False
    ) -> Any:
        """State the metric of a query, what it returns, and which rows it compares."""
        table = self._look()
        has_bias = self.returns_values and table.has_bias
        wanted = [self.options.id, BIAS] if has_bias else [self.options.id]
        asked = (
            asked.distance_type(_DISTANCES[table.metric])
            .select([*wanted, "_distance"])
            .limit(k)
            .nprobes(self.options.probes)
        )
        if self.options.refine:
            asked = asked.refine_factor(self.options.refine)
        if condition is not None:
            asked = asked.where(condition)  # before the search, which is the default
        return asked.bypass_vector_index() if is_exhaustive else asked

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        handle, table, own = self.table, self._look(), self.options.id
        with self._translating():
            keys = handle.search().select([own]).to_arrow()[own].to_numpy()
        # By id: an optimisation of the table may change the order of its rows.
        order = np.argsort(keys, kind="stable")
        for start in range(0, len(order), batch):
            offsets = order[start : start + batch].tolist()
            with self._translating():
                rows = handle.take_offsets(offsets).to_arrow().to_pylist()
            rows.sort(key=lambda row: row[own])
            ids, vectors = ([row[name] for row in rows] for name in (self.options.id, table.vector))
            values = [row[BIAS] if table.has_bias else None for row in rows]
            yield make_items(ids, vectors, values, [_describe(table, row) for row in rows])

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        table, own = self._look(), self.options.id
        wanted = [own, *table.kinds, *([METADATA] if table.is_packed else [])]
        with self._translating():
            asked = self.table.search().where(self._is_one_of(ids)).select(wanted)
            rows = asked.limit(max(1, len(ids))).to_arrow().to_pylist()
        found = {row[own]: _describe(table, row) for row in rows}
        return [found.get(one, {}) for one in ids.tolist()]

    def save(self) -> None:
        """Build the index of the kind asked for once there are items, or add new ones to it."""
        with self._translating():
            if self._index() is not None:
                self.table.optimize()
            else:
                self._build_index({"ivf": "IvfFlat", "sq": "IvfSq"}.get(self.options.kind))

    def traps(self) -> list[str]:
        index, wanted = self._index(), _DISTANCES[self._look().metric]
        if index is None:
            return []
        problems = []
        if (measured := self._distance_of(index)) != wanted:
            problems.append(
                f"its index compares by {measured}, and queries by {wanted}: "
                "create the index again with that metric"
            )
        if any(code in index.index_type for code in ("Pq", "Sq", "Rq")) and not self.options.refine:
            problems.append(
                f"its index {index.index_type} is quantised: use IVF_FLAT, or refine what it finds"
            )
        return problems

    def close(self) -> None:
        self._handle = self._known = None
        if self._owns_client:
            self._client = None

    # --- generations ---

    def mark(self) -> object:
        """The version of the table."""
        return self.table.version

    def version(self) -> object:
        return self.mark()

    def exchange(self) -> None:
        other = self.other()
        self._check_former(other, other._find())
        index, former = self._index(), self.table.version
        with self._translating():
            self._overwrite(other.table)
            self._handle = self._known = None
            other._overwrite(self._open_version(former))
            for store in (self, other):
                store._build_index(None if index is None else index.index_type)

    def drop(self) -> None:
        if self._find() is not None:
            with self._translating():
                # A kill may leave some files of a table, which must not be served as a whole one.
                unnoted = {"path": self._column(), "metadata": {_NOTE: "null"}}
                self.table.update_field_metadata(unnoted)
                self.client.drop_table(self.actual)
        self._handle = self._known = None

    def other(self) -> "LancedbStore":
        twin = super().other()
        twin._handle = None
        return twin

    def _overwrite(self, rows: Any) -> None:
        """Replace all rows, the note and the generation by those of another table, at once."""
        batches = rows.search().to_batches(batch_size=BATCH)
        self.client.create_table(self.actual, batches, schema=rows.schema, mode="overwrite")

    def _open_version(self, version: int) -> Any:
        opened = self.client.open_table(self.actual)
        opened.checkout(version)
        return opened

    def _finish_exchange(self, handle: Any) -> Any:
        """Copy the former generation, where an exchange was killed before it did so."""
        served = self.other()._find()
        if served is None or _generation(served) != _generation(handle):
            return handle
        for version in sorted((one["version"] for one in served.list_versions()), reverse=True):
            former = self.other()._open_version(version)
            if _generation(former) != _generation(handle):
                self._overwrite(former)
                break
        return self.client.open_table(self.actual)

    # --- facts about the table ---

    @property
    def table(self) -> Any:
        """LanceDB's own table."""
        return self._found(self._find())

    def _find(self) -> Any:
        if self._handle is None:
            if "://" not in self.address and self._is_absent(Path(self.address)):
                return None
            with self._translating():
                try:
                    opened = self.client.open_table(self.actual)
                except (ValueError, FileNotFoundError) as error:
                    if "not found" not in str(error):
                        raise
                    return None
                self._handle = self._finish_exchange(opened) if self._is_other else opened
        return self._handle

    def _look(self) -> _Table:
        if self._known is None:
            schema, vector = self.table.schema, self._column()
            remarks = _remarks(schema, vector)
            is_ours = _METRIC in remarks
            is_packed = is_ours and METADATA in schema.names and remarks.get(_PACKED) != "0"
            taken = {self.options.id, vector, *([BIAS] if is_ours else [])}
            if is_packed:
                taken.add(METADATA)
            kinds = {
                field.name: _TYPES.get(str(field.type), "other")
                for field in schema
                if field.name not in taken
            }
            has_bias = is_ours and BIAS in schema.names
            strings = self._are_strings(schema)
            metric = self._metric(remarks)
            self._known = _Table(vector, metric, has_bias, is_packed, kinds, strings)
        return self._known

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

    def _metric(self, remarks: dict[str, str]) -> StoreMetric:
        """Metric of the note, else of the index, else LanceDB's default."""
        noted = remarks.get(_METRIC)
        if noted is None:
            index = self._index()
            noted = "l2" if index is None else self._distance_of(index)
        if noted not in _METRICS:
            raise NNNormError(f"{self.name} compares by {noted}; expected dot, l2 or cosine")
        return _METRICS[noted]

    def _index(self) -> Any:
        column, indexes = self._column(), self.table.list_indices()
        return next((index for index in indexes if list(index.columns) == [column]), None)

    def _build_index(self, kind: str | None) -> None:
        """Index the vectors; nothing where there are no rows, or no kind."""
        n_items = self.table.count_rows()
        if kind is None or not n_items:
            return
        config = getattr(require("lancedb.index", "lancedb"), kind)(
            distance_type=_DISTANCES[self._look().metric],
            num_partitions=min(self.options.cells, n_items) or None,
        )
        self.table.create_index(self._look().vector, config=config)

    def _distance_of(self, index: Any) -> str:
        return str(self.table.index_stats(index.name).distance_type).lower()

    def _are_strings(self, schema: Any) -> bool:
        own = self.options.id
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

    def _has_string_ids(self) -> bool:
        return self._look().strings

    def _find_ids(self, ids: Ids) -> set[Any]:
        with self._translating():
            asked = self.table.search().where(self._is_one_of(ids)).select([self.options.id])
            return set(asked.limit(len(ids)).to_arrow()[self.options.id].to_pylist())

    def _is_one_of(self, ids: Ids) -> str:
        quoted = ("'" + str(own).replace("'", "''") + "'" for own in ids.tolist())
        listed = ", ".join(quoted if ids.dtype.kind == "U" else map(str, ids.tolist()))
        return f"`{self.options.id}` IN ({listed})"

    def _read_note(self) -> Any:
        return _remarks(self.table.schema, self._column()).get(_NOTE)

    def _write_note(self, note: dict[str, Any]) -> None:
        remark = {_NOTE: json.dumps(note), _METRIC: note["metric"]}
        self.table.update_field_metadata({"path": self._column(), "metadata": remark})
        self._known = None

    def _to_arrow(self, items: Items) -> Any:
        """Make an Arrow table of items with the schema of the table."""
        arrow, table, schema = require("pyarrow", "lancedb"), self._look(), self.table.schema
        made = to_arrow_table(
            items,
            table.kinds,
            id=self.options.id,
            vector=table.vector,
            extra="lancedb",
            is_packed=table.is_packed,
            name=self.name,
        )
        columns = {
            field.name: _from_json(arrow, made[field.name], field.type)
            if table.kinds.get(field.name) == "other"
            else made[field.name].combine_chunks()
            for field in schema
            if field.name in made.column_names
        }
        absent = {
            field.name: arrow.nulls(len(items), field.type)
            for field in schema
            if field.name not in columns
        }
        return arrow.table({**columns, **absent}, schema=schema)

    # --- the database ---

    def _connect(self) -> Any:
        # The interval makes what another process writes visible at once.
        connect = require("lancedb", "lancedb").connect
        return connect(self.address, read_consistency_interval=timedelta(0))

    def _errors(self) -> tuple[type[Exception], ...]:
        return (RuntimeError, ValueError, OSError)


def _remarks(schema: Any, vector: str) -> dict[str, str]:
    found = schema.field(vector).metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


def _generation(handle: Any) -> str | None:
    """The generation that a table holds, whichever its column of vectors is."""
    key = _GENERATION.encode()
    notes = [field.metadata or {} for field in handle.schema]
    return next((one[key].decode() for one in notes if key in one), None)


def _describe(table: _Table, row: dict[str, Any]) -> dict[str, Any]:
    """Put the metadata of a row together; a table of the application keeps its empty fields."""
    if not table.is_packed:
        return make_plain({name: row[name] for name in table.kinds})
    known = [row[name] for name in table.kinds]
    return make_plain(join_entry(table.kinds, known, row[METADATA]))


def _from_json(arrow: Any, column: Any, kind: Any) -> Any:
    """Turn JSON into a column of another type; dates and the like are text in JSON."""
    values = [None if text is None else json.loads(text) for text in column.to_pylist()]
    try:
        return arrow.array(values, kind)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, TypeError):
        texts = [None if value is None else str(value) for value in values]
        return arrow.array(texts, arrow.string()).cast(kind)
