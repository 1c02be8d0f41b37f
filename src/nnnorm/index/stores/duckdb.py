"""DuckDB (`pip install 'nnnorm[duckdb]'`): the correction in SQL, exact.

The bias is a column, and a query computes the corrected score::

    SELECT id, array_inner_product(embedding, $q) - $alpha * nnnorm_bias AS score
    FROM photos ORDER BY score DESC LIMIT 10

The ways with extra coordinates work too, for a table whose columns can't change.
"""

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.files import check_regular
from nnnorm.index.options import TableOptions, option
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Ids,
    Items,
    Sample,
    Store,
    StoreMetric,
    gather_hits,
    make_items,
    quote_name,
)
from nnnorm.index.stores.database import BIAS, METADATA, make_plain
from nnnorm.index.stores.tables import (
    Kind,
    TableStore,
    check_condition,
    check_metric,
    choose_columns,
    join_entry,
    to_arrow_table,
)

_SCORES: dict[StoreMetric, str] = {
    "ip": "array_inner_product({column}, {query})",
    "cosine": "array_cosine_similarity({column}, {query})",
    "l2": "-(array_distance({column}, {query}) ** 2)",
}
_TYPES: dict[Kind, str] = {
    "integer": "BIGINT",
    "float": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "VARCHAR",
}
_KINDS: dict[str, Kind] = {name: kind for kind, name in _TYPES.items()}
# What nnnorm knows about a table, in its comment beside the note.
_ABOUT = "nnnorm_table"
# Changes of notes and generations per database: only this process can make any while it is open.
_CHANGES: dict[str, int] = {}
# Held from the commit of a change until it is counted.
_COUNTING = threading.RLock()


@dataclass(frozen=True, kw_only=True)
class DuckdbOptions(TableOptions):
    """Options of DuckDB; all columns but these two are metadata."""

    id: str = option("id", "Column of the ids.")
    embedding: str = option("embedding", "Column of the vectors, of the type `FLOAT[dim]`.")
    metric: Literal["", "ip", "cosine", "l2"] = option(
        "", "Metric of the queries of an existing table that nnnorm did not create."
    )


@dataclass(frozen=True)
class _Table:
    """The columns of a table, and what its comment says."""

    width: int  # 0 for the former values of a table whose vectors stay as they are
    strings: bool
    others: dict[str, str]  # the metadata: names and types
    has_bias: bool
    is_packed: bool  # whether a column holds the metadata that has no column, as JSON
    metric: StoreMetric

    @property
    def kinds(self) -> dict[str, Kind]:
        return {name: _KINDS.get(kind, "other") for name, kind in self.others.items()}


class DuckdbStore(TableStore):
    """A table in a DuckDB file, or in memory.

    Parameters
    ----------
    place : str, PathLike or DuckDBPyConnection
        The database file, an open connection, which stays open and is in no transaction, or nothing
        for a database in memory.
    """

    engine, product, client_type = "duckdb", "DuckDB", "DuckDBPyConnection"
    ways = ("column", "ip", "l2", "cosine", "rerank")
    filters, rewrites_values, is_exact = 'a condition in SQL, such as "year > 1999"', True, True
    options_type = DuckdbOptions
    options: DuckdbOptions
    _known: _Table | None = None

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self._local = threading.local()
        self._id, self._embedding = map(quote_name, (self.options.id, self.options.embedding))

    @property
    def _table(self) -> str:
        return quote_name(self.actual)

    def facts(self) -> Facts | None:
        self._forget()
        table = self._look()
        if table is None:
            return None
        ((n_items,),) = self._run(f"SELECT count(*) FROM {self._table}")
        width = table.width or self._found(self.other()._look()).width
        return Facts(width, table.metric, n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        own = {self.options.id.lower(), self.options.embedding.lower()}
        chosen = choose_columns(sample.metadata, allows=lambda name: name.lower() not in own)
        columns = {name: _TYPES[kind] for name, kind in chosen.items()}
        self._create(width, strings=strings, columns=columns)

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        table = source._look() if isinstance(source, DuckdbStore) else None
        if table is None or not table.width:
            return self.create(width, metric, strings=strings, sample=sample)
        self._create(width, strings=strings, columns=table.others)

    def _create(self, width: int, *, strings: bool, columns: Mapping[str, str]) -> None:
        is_packed = METADATA not in {name.lower() for name in columns}
        listed = [
            f"{self._id} {'VARCHAR' if strings else 'BIGINT'} PRIMARY KEY",
            f"{self._embedding} FLOAT[{width}] NOT NULL",
            f"{BIAS} FLOAT",
            *(f"{quote_name(name)} {kind}" for name, kind in columns.items()),
            *([f"{METADATA} JSON"] if is_packed else []),
        ]
        with self._transaction():
            self._run(f"CREATE TABLE {self._table} ({', '.join(listed)})")
            self._comment({_ABOUT: {"packed": is_packed}})
        self._forget()

    def adopt(
        self, batches: Iterable[tuple[Ids, FloatArray]], default: float, note: Mapping[str, Any]
    ) -> None:
        if self._found(self._look()).has_bias:
            raise NNNormError(f"{self.name} has a column {BIAS} already; refresh it instead")
        values = list(batches)
        with self._transaction(is_change=True):
            self._run(
                f"ALTER TABLE {self._table} ADD COLUMN {BIAS} FLOAT DEFAULT {float(default)!r}"
            )
            self._copy_values(values)
            self._take_values()
            self._comment({**note, _ABOUT: {"packed": False, "adopted": True}})

    def add(self, items: Items) -> None:
        with self._transaction():
            self._insert(items)

    def upsert(self, items: Items) -> None:
        names = self._writable(items)
        changes = ", ".join(f"{name} = b.{name}" for name in map(quote_name, names[1:]))
        with self._transaction():
            self._insert(
                items,
                f"UPDATE {self._table} t SET {changes} FROM {{batch}} b "
                f"WHERE t.{self._id} = b.{self._id}",
                f"WHERE {self._id} NOT IN (SELECT {self._id} FROM {self._table})",
            )

    def delete(self, ids: Ids) -> None:
        self._run(f"DELETE FROM {self._table} WHERE {self._is_any()}", [ids.tolist()])

    def set_values(
        self, batches: Iterable[tuple[Ids, FloatArray]], note: Mapping[str, Any]
    ) -> None:
        values = list(batches)
        with self._transaction(is_change=True):
            self._copy_values(values)
            self._replace_values(note)

    def value_range(self) -> tuple[float, float] | None:
        ((low, high),) = self._run(f"SELECT min({BIAS}), max({BIAS}) FROM {self._table}")
        return None if low is None else (low, high)

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        return self._ask(queries, k, _SCORES[self._found(self._look()).metric], [], filter)

    def search_column(
        self, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        score = f"{_SCORES['ip']} - ?::FLOAT * {BIAS}"
        return self._ask(queries, k, score, [weight], filter)

    def _ask(
        self, queries: FloatArray, k: int, score: str, more: list[float], filter: Any
    ) -> Found:
        formula = score.format(column=self._embedding, query=f"?::FLOAT[{queries.shape[1]}]")
        bias = BIAS if self.returns_values and self._found(self._look()).has_bias else "NULL"
        where = "" if filter is None else f"WHERE {check_condition(filter, self.engine)} "
        statement = (
            f"SELECT {self._id}, {formula} AS score, {bias} FROM {self._table} {where}"
            f"ORDER BY score DESC LIMIT {k}"
        )
        found = (self._run(statement, [query, *more]) for query in queries.tolist())
        return gather_hits([[hit for hit in row if hit[1] is not None] for row in found])

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table = self._found(self._look())
        bias = BIAS if table.has_bias else "NULL"
        with self._translating():
            cursor = self.client.cursor()  # the connection may be used for other things meanwhile
            cursor.execute(
                f"SELECT {self._id}, {self._embedding}, {bias}, {_described(table)} "
                f"FROM {self._table} ORDER BY {self._id}"
            )
        while found := self._fetch(cursor, batch):
            ids, vectors, values, *known = zip(*found, strict=True)
            described = [_describe(table, entry) for entry in zip(*known, strict=True)]
            yield make_items(ids, vectors, values, described)

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        table = self._found(self._look())
        rows = self._run(
            f"SELECT {self._id}, {_described(table)} FROM {self._table} WHERE {self._is_any()}",
            [ids.tolist()],
        )
        found = {own: _describe(table, entry) for own, *entry in rows}
        return [found.get(own, {}) for own in ids.tolist()]

    # --- generations ---

    def mark(self) -> object:
        with _COUNTING:
            return _CHANGES.get(self._database, 0)

    def exchange(self) -> None:
        other = self.other()
        if not self._check_former(other, other._look()).width:
            with self._transaction(is_change=True):
                # Rows that the application has inserted since have the mean, as they had before.
                self._run(
                    f"CREATE TEMP TABLE nnnorm_values AS SELECT {self._id}, coalesce(f.{BIAS}, "
                    f"(SELECT avg({BIAS}) FROM {other._table})) AS {BIAS} "
                    f"FROM {self._table} LEFT JOIN {other._table} f USING ({self._id})"
                )
                self._replace_values(other.read_note() or {})
        else:
            between = quote_name(f"{self.collection}_nnnorm_between")
            with self._transaction(is_change=True):
                self._run(f"ALTER TABLE {self._table} RENAME TO {between}")
                self._run(f"ALTER TABLE {other._table} RENAME TO {self._table}")
                self._run(f"ALTER TABLE {between} RENAME TO {other._table}")

    def drop(self) -> None:
        if self._look() is not None:
            with self._transaction(is_change=True):
                self._run(f"DROP TABLE {self._table}")

    def _copy_values(self, batches: list[tuple[Ids, FloatArray]]) -> None:
        """Put new values into a temporary table."""
        arrow = require("pyarrow", "duckdb")
        named = [own for ids, _ in batches for own in ids.tolist()]
        values = np.concatenate([values for _, values in batches])
        made = arrow.table({self.options.id: named, BIAS: arrow.array(values, arrow.float32())})
        with self._registered(made) as name:
            self._run(f"CREATE TEMP TABLE nnnorm_values AS SELECT * FROM {name}")

    def _take_values(self) -> None:
        """Write the values of the temporary table."""
        self._run(
            f"UPDATE {self._table} t SET {BIAS} = v.{BIAS} FROM nnnorm_values v "
            f"WHERE t.{self._id} = v.{self._id}"
        )
        self._run("DROP TABLE nnnorm_values")

    def _replace_values(self, note: Mapping[str, Any]) -> None:
        """Keep the table, or the values of the application's, as it is; then take new values."""
        table, other, remark = self._found(self._look()), self.other(), self._read_comment()
        self._run(f"DROP TABLE IF EXISTS {other._table}")
        if remark.get(_ABOUT, {}).get("adopted"):
            self._run(
                f"CREATE TABLE {other._table} AS SELECT {self._id}, {BIAS} FROM {self._table}"
            )
        else:
            other._create(table.width, strings=table.strings, columns=table.others)
            self._run(f"INSERT INTO {other._table} BY NAME SELECT * FROM {self._table}")
        other._comment(remark)
        self._take_values()
        self._comment({**note, _ABOUT: remark.get(_ABOUT, {})})

    @cached_property
    def _file(self) -> str:
        return str(Path(self.address).resolve()) if self.address else ""

    @property
    def _database(self) -> str:
        return self._file or str(id(self._client))

    def _changed(self) -> None:
        _CHANGES[self._database] = _CHANGES.get(self._database, 0) + 1
        self._forget()

    # --- facts about the table ---

    def _look(self) -> _Table | None:
        """Find the columns, or return None if there is no such table."""
        known = self._known  # once: another thread may forget it
        if known is None:
            if self._client is None and not (self.address and Path(self.address).exists()):
                return None
            columns = dict(
                self._run(
                    "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? "
                    "ORDER BY column_index",
                    [self.actual],
                )
            )
            known = self._known = self._describe_table(columns) if columns else None
        return known

    def _describe_table(self, columns: dict[str, str]) -> _Table:
        remark = self._read_comment()
        own, vector = self.options.id, self.options.embedding
        strings = columns.get(own) == "VARCHAR"
        if self._is_other and list(columns) == [own, BIAS]:
            return _Table(0, strings, {}, True, False, remark.get("metric", "ip"))
        width = re.fullmatch(r"FLOAT\[(\d+)\]", columns.get(vector, ""))
        if width is None or own not in columns:
            listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise NNNormError(
                f"{self.name} needs a column {vector} of the type FLOAT[dim] and a column {own}; "
                f"it has {listed}"
            )
        has_bias = BIAS in columns
        is_packed = has_bias and METADATA in columns and remark.get(_ABOUT, {}).get("packed", True)
        taken = {own, vector, *([BIAS] if has_bias else []), *([METADATA] if is_packed else [])}
        others = {name: kind for name, kind in columns.items() if name not in taken}
        return _Table(
            int(width.group(1)), strings, others, has_bias, is_packed, self._metric(remark)
        )

    def _metric(self, remark: Mapping[str, Any]) -> StoreMetric:
        """Metric of the note: a table that is scanned has none of its own."""
        stated, asked = remark.get("metric"), self.options.metric
        if stated and asked and stated != asked:
            raise NNNormError(
                f"{self.name} compares by {stated}, as its note says; got metric={asked}"
            )
        if not stated and not asked:
            norm = f"sqrt(array_inner_product({self._embedding}, {self._embedding}))"
            rows = self._run(
                f"SELECT min({norm}), max({norm}) FROM (SELECT {self._embedding} FROM "
                f"{self._table} LIMIT 1000)"
            )
            asked = check_metric("", rows[0], self.name)
        return stated or asked  # type: ignore[return-value]

    def _has_string_ids(self) -> bool:
        return self._found(self._look()).strings

    def _is_any(self) -> str:
        return f"{self._id} IN (SELECT unnest(?))"

    def _find_ids(self, ids: Ids) -> set[Any]:
        statement = f"SELECT {self._id} FROM {self._table} WHERE {self._is_any()}"
        return {row[0] for row in self._run(statement, [ids.tolist()])}

    def _read_comment(self) -> dict[str, Any]:
        """The note, and what nnnorm knows about the table; empty for any other comment."""
        rows = self._run("SELECT comment FROM duckdb_tables() WHERE table_name = ?", [self.actual])
        try:
            remark = json.loads(rows[0][0] or "")
        except (ValueError, IndexError, RecursionError):
            return {}
        is_ours = isinstance(remark, dict) and (
            str(remark.get("format")).startswith("nnnorm.") or _ABOUT in remark
        )
        return remark if is_ours else {}

    def _comment(self, remark: Mapping[str, Any]) -> None:
        text = json.dumps(dict(remark)).replace("'", "''")
        self._run(f"COMMENT ON TABLE {self._table} IS '{text}'")

    def _read_note(self) -> Any:
        return {key: value for key, value in self._read_comment().items() if key != _ABOUT}

    def _write_note(self, note: dict[str, Any]) -> None:
        about = self._read_comment().get(_ABOUT)
        with self._transaction(is_change=True):
            self._comment(note if about is None else {**note, _ABOUT: about})

    # --- the connection ---

    def _connect(self) -> Any:
        if self.address:
            check_regular(self.address)
        return require("duckdb", "duckdb").connect(self.address or ":memory:")

    def _errors(self) -> tuple[type[Exception], ...]:
        return (require("duckdb", "duckdb").Error,)

    @property
    def _cursor(self) -> Any:
        """A connection of this thread to the same database; or the caller's, in turns."""
        client = self.client
        if self._is_given:
            return client
        if getattr(self._local, "client", None) is not client:
            self._local.client, self._local.cursor = client, client.cursor()
        return self._local.cursor

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock if self._is_given else nullcontext():
            cursor = self._cursor
            with self._translating():
                return cursor.execute(statement, list(values)).fetchall()

    @contextmanager
    def _transaction(self, *, is_change: bool = False) -> Iterator[None]:
        """All or nothing; a transaction inside another one is a part of it.

        A change is one of the note or the generation.
        """
        if getattr(self._local, "is_inside", False):
            yield
            return
        with self._lock:
            self._run("BEGIN TRANSACTION")
            self._local.is_inside = True
            try:
                with self._translating():
                    yield
                with _COUNTING if is_change else nullcontext():
                    self._run("COMMIT")
                    if is_change:
                        self._changed()
            except BaseException:
                with suppress(*self._errors()):
                    self._cursor.execute("ROLLBACK")
                raise
            finally:
                self._local.is_inside = False

    @contextmanager
    def _registered(self, batch: Any) -> Iterator[str]:
        """Make an Arrow table known to SQL."""
        cursor = self._cursor
        cursor.register("nnnorm_batch", batch)
        try:
            yield "nnnorm_batch"
        finally:
            cursor.unregister("nnnorm_batch")

    def _writable(self, items: Items) -> list[str]:
        """Columns that are written: without metadata, those of the application stay as they are."""
        table = self._found(self._look())
        names = [self.options.id, self.options.embedding]
        if table.has_bias or items.values is not None:
            names.append(BIAS)
        if table.is_packed or items.metadata is not None:
            names += table.others
        return [*names, METADATA] if table.is_packed else names

    def _insert(self, items: Items, before: str = "", where: str = "") -> None:
        table, names = self._found(self._look()), self._writable(items)
        made = to_arrow_table(
            items,
            table.kinds,
            id=self.options.id,
            vector=self.options.embedding,
            extra="duckdb",
            is_packed=table.is_packed,
            name=self.name,
        )
        chosen = ", ".join(
            f"CAST({quote_name(name)}::JSON AS {table.others[name]}) AS {quote_name(name)}"
            if table.kinds.get(name) == "other"
            else quote_name(name)
            for name in names
        )
        listed = ", ".join(map(quote_name, names))
        with self._registered(made) as name:
            batch = f"(SELECT {chosen} FROM {name})"
            if before:
                self._run(before.format(batch=batch))
            self._run(f"INSERT INTO {self._table} ({listed}) SELECT {listed} FROM {batch} {where}")

    def _fetch(self, cursor: Any, batch: int) -> list[Any]:
        with self._translating():
            return cursor.fetchmany(batch)


def _described(table: _Table) -> str:
    packed = METADATA if table.is_packed else "NULL"
    return ", ".join([*map(quote_name, table.others), packed])


def _describe(table: _Table, values: Iterable[Any]) -> dict[str, Any]:
    """Put the metadata of a row together; a table of the application keeps its empty fields."""
    *known, rest = values
    if not table.is_packed:
        return make_plain(dict(zip(table.others, known, strict=True)))
    return make_plain(join_entry(table.others, known, rest))
