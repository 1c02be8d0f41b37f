"""pgvector in PostgreSQL (`pip install 'nnnorm[pgvector]'`): exact search or HNSW, in plain SQL.

A table that nnnorm creates has the columns ``id, embedding, nnnorm_bias``, one per key of the
metadata, and ``metadata`` for the rest; the note is its comment. Other tables can be read, or
adopted with one more column: their only column of vectors, their primary key, and the other columns
as metadata. The operator ``<#>`` is minus the inner product: indexes only sort upwards.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import TableOptions, ef, ef_construction, links, option
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
    Way,
    gather_hits,
    make_items,
    quote_name,
)
from nnnorm.index.stores.database import BIAS, METADATA
from nnnorm.index.stores.tables import (
    OTHER,
    Kind,
    TableStore,
    check_condition,
    check_metric,
    choose_columns,
    join_entry,
    take_columns,
)
from nnnorm.index.urls import show_url

_OPERATORS: dict[StoreMetric, str] = {"ip": "<#>", "cosine": "<=>", "l2": "<->"}
_CLASSES: dict[str, StoreMetric] = {
    f"{kind}_{metric}_ops": metric for kind in ("vector", "halfvec") for metric in _OPERATORS
}
_SCORES = {"ip": lambda d: -d, "cosine": lambda d: 1 - d, "l2": lambda d: -(d**2)}
_SCAN_ALL = "SET LOCAL enable_indexscan = off"
# Limits of pgvector and of PostgreSQL.
_WIDEST_INDEX, _WIDEST_BEAM, _LONGEST_NAME = {"vector": 2000, "halfvec": 4000}, 1000, 63
_WHOLE = ("smallint", "integer", "bigint")
_TYPES: dict[Kind, str] = {
    "integer": "bigint",
    "float": "double precision",
    "boolean": "boolean",
    "text": "text",
}
_KINDS: dict[str, Kind] = {name: kind for kind, name in _TYPES.items()}


@dataclass(frozen=True, kw_only=True)
class PgvectorOptions(TableOptions):
    """Options of pgvector; the table may have a schema, as in ``shop.photos``."""

    kind: Literal["flat", "hnsw"] = option(
        "flat", "Index of a new table: none, so that every search is exact, or a graph."
    )
    links: int = links(at_most=100)
    ef_construction: int = ef_construction(at_most=1000)
    ef: int = ef(100)
    dtype: Literal["vector", "halfvec"] = option(
        "vector", "Type of the vectors of a new table: 32 or 16 bits per number."
    )
    metric: Literal["", "ip", "cosine", "l2"] = option(
        "", "Metric of the queries of an existing table, where no index states it."
    )
    id: str = option("", "Column of the ids; by default the primary key.")
    embedding: str = option("", "Column of the vectors; by default the only one.")
    host: str = option("", "Server, or the folder of its socket, where the URL does not name it.")


# The number of a table, and the transactions that last gave it its name and last commented on it.
# The number alone would not do, because two exchanges bring the same one back; nor would the
# transactions, because one may write to both generations. Each is a query of its own, which the
# server answers once per search; as one with a join it takes longer to plan.
_MARK = (
    "to_regclass(%s)::oid::bigint, "
    "(SELECT xmin::text::bigint FROM pg_class WHERE oid = to_regclass(%s)), "
    "(SELECT xmin::text::bigint FROM pg_description WHERE objoid = to_regclass(%s) AND "
    "objsubid = 0 AND classoid = 'pg_class'::regclass)"
)
_ASK_MARK, _N_IN_MARK = f"SELECT {_MARK}", _MARK.count("%s")


@dataclass(frozen=True)
class _Table:
    """The columns of a table, and what its comment and its index say."""

    id: str
    id_type: str
    vector: str  # empty for the former values of a table whose vectors stay as they are
    vector_type: str
    others: dict[str, str]  # the metadata: names and types
    has_bias: bool
    is_packed: bool  # whether a column holds the metadata that has no column, as JSON
    remark: dict[str, Any] | None
    indexed: StoreMetric | None
    graph: dict[str, str] | None  # options of the index, where there is one

    @property
    def base(self) -> str:
        """Type of the vectors without their width."""
        return self.vector_type.partition("(")[0]

    @property
    def kinds(self) -> dict[str, Kind]:
        return {name: _KINDS.get(kind, "other") for name, kind in self.others.items()}


class _Plan(NamedTuple):
    """What a search has to know about a table."""

    table: _Table
    metric: StoreMetric
    version: int  # of pgvector, where there is a graph


class PgvectorStore(TableStore):
    """A table of PostgreSQL with the extension pgvector.

    Parameters
    ----------
    place : str or psycopg.Connection
        What libpq takes: ``postgresql://user@host/database``; empty for its environment variables.
        Or an open connection, which stays open; what is written then belongs to its transaction,
        and what is only read leaves it without one.
    """

    engine, product = "pgvector", "PostgreSQL"
    client_type, async_client_type = "Connection", "AsyncConnection"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank", "column")
    filters, rewrites_values = 'a condition in SQL, such as "year > 1999"', True
    options_type = PgvectorOptions
    options: PgvectorOptions
    _known: _Table | None = None

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if self.address.startswith("/"):  # the rest of a URL
            slashes = "" if self.address.startswith("//") else "//"
            self.address = f"postgresql:{slashes}{self.address}"
        if self.options.host:
            self.address = f"{self.address or 'postgresql://'}?host={self.options.host}"
        self.is_server, self.is_graph = True, self.options.kind == "hnsw"
        self.is_quantized = self.options.dtype == "halfvec"
        self.is_exact = not (self.is_graph or self.is_quantized)
        self._session: dict[str, int] = {}  # what was set on the connection
        self._metric_known: StoreMetric | None = None
        self._turns: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()

    @property
    def where(self) -> str:
        if self._is_given:
            return super().where
        known = self._read_address()
        shown = "/".join(str(known[key]) for key in ("host", "dbname") if known.get(key))
        return shown or "the default server"

    @property
    def _table(self) -> str:
        return ".".join(map(quote_name, self.actual.split(".")))

    def facts(self) -> Facts | None:
        self._forget()
        table = self._look()
        if table is None:
            return None
        # A row of the application may have no vector yet.
        counted = quote_name(table.vector) if table.vector else "*"
        ((n_items,),) = self._run(f"SELECT count({counted}) FROM {self._table}")
        if not table.vector:
            served = self._found(self.other().facts())
            return Facts(served.width, served.metric, n_items)
        return Facts(self._width(table), self._metric(), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        columns = {
            name: _TYPES[kind]
            for name, kind in choose_columns(
                sample.metadata, allows=lambda name: len(name.encode()) <= _LONGEST_NAME
            ).items()
        }
        own = ("id", "text" if strings else "bigint")
        self._create(width, metric, own, "embedding", self.options.dtype, columns)

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        table = source._look() if isinstance(source, PgvectorStore) else None
        if not isinstance(source, PgvectorStore) or table is None or not table.vector:
            return self.create(width, metric, strings=strings, sample=sample)
        own = table.id, table.id_type
        if (table.id_type not in _WHOLE) != strings:
            own = table.id, "text" if strings else "bigint"
        is_next = source.collection == self.collection
        base = table.base if is_next else self.options.dtype
        graph = table.graph if is_next else None
        self._create(width, metric, own, table.vector, base, table.others, source, graph)

    def _create(
        self,
        width: int,
        metric: StoreMetric,
        own: tuple[str, str],
        vector: str,
        base: str,
        others: Mapping[str, str],
        source: "PgvectorStore | None" = None,
        graph: dict[str, str] | None = None,
    ) -> None:
        if self.options.kind == "hnsw" and graph is None:
            graph = {"m": str(self.options.links)}
            graph["ef_construction"] = str(self.options.ef_construction)
        if graph is not None and width > _WIDEST_INDEX[base]:
            raise NNNormError(
                f"the hnsw index of pgvector takes at most {_WIDEST_INDEX[base]} dimensions, and "
                f"these embeddings need {width} with the correction; use kind='flat', or fewer "
                "dimensions"
            )
        if not self._run("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            raise NNNormError(
                "this PostgreSQL has no pgvector; install the extension on the server (package "
                "postgresql-<version>-pgvector)"
            )
        self._check_name()
        columns = [
            f"{quote_name(own[0])} {own[1]} PRIMARY KEY",
            f"{quote_name(vector)} {base}({width:d}) NOT NULL",
            f"{BIAS} real",
            *(f"{quote_name(name)} {kind}" for name, kind in others.items()),
        ]
        is_packed = METADATA not in others
        if is_packed:
            columns.append(f"{METADATA} jsonb")
        with self._transaction():
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._run(f"CREATE TABLE {self._table} ({', '.join(columns)})")
            if source is not None and source.client is self.client:
                self._copy_indexes(source, {own[0], *others})
            if graph is not None:
                given = ", ".join(f"{name} = {value}" for name, value in graph.items())
                self._run(
                    f"CREATE INDEX ON {self._table} USING hnsw ({quote_name(vector)} "
                    f"{base}_{metric}_ops)" + (f" WITH ({given})" if given else "")
                )
            about = {"id": own[0], "embedding": vector, "packed": is_packed}
            self._write_remark({"metric": metric, "note": None, **about})
        self._forget()

    def _copy_indexes(self, source: "PgvectorStore", columns: set[str]) -> None:
        """Create the indexes of the source on columns of metadata, as they are there."""
        rows = self._run(
            "SELECT pg_get_indexdef(i.indexrelid), array_agg(a.attname::text) FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) WHERE "
            "i.indrelid = to_regclass(%s) AND NOT i.indisprimary AND i.indexprs IS NULL AND "
            "i.indpred IS NULL GROUP BY i.indexrelid ORDER BY i.indexrelid",
            [source._table],
        )
        for definition, names in rows:
            if set(names) <= columns:
                unique = "UNIQUE " if definition.startswith("CREATE UNIQUE") else ""
                using = definition[definition.index(" USING ") :].replace("%", "%%")
                self._run(f"CREATE {unique}INDEX ON {self._table}{using}")

    def adopt(
        self, batches: Iterable[tuple[Ids, FloatArray]], default: float, note: Mapping[str, Any]
    ) -> None:
        table = self._found(self._look())
        if table.has_bias:
            raise NNNormError(f"{self.name} has a column {BIAS} already; refresh it instead")
        values = list(batches)
        with self._transaction():
            self._copy_values(values, table)
            self._run(
                f"ALTER TABLE {self._table} ADD COLUMN {BIAS} real NOT NULL "
                f"DEFAULT {float(default)!r}"
            )
            self._take_values(table)
            about = {"id": table.id, "embedding": table.vector, "packed": False, "adopted": True}
            self._write_remark({"metric": note["metric"], "note": dict(note), **about})
        self._forget()

    def add(self, items: Items) -> None:
        table = self._found(self._look())
        with self._translating(), self._lock:
            self._check_snapshot()
            self._copy(self._table, table, items)

    def upsert(self, items: Items) -> None:
        table = self._found(self._look())
        names = self._writable(table, items)
        listed = ", ".join(map(quote_name, names))
        changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quote_name, names[1:]))
        with self._translating(), self._transaction():
            self._check_snapshot()
            # Without the constraints of the table, which a row that is only changed may not meet.
            self._run(
                f"CREATE TEMP TABLE nnnorm_new ON COMMIT DROP AS SELECT {listed} FROM "
                f"{self._table} WITH NO DATA"
            )
            self._copy("nnnorm_new", table, items)
            self._run(
                f"INSERT INTO {self._table} ({listed}) SELECT {listed} FROM nnnorm_new "
                f"ON CONFLICT ({quote_name(table.id)}) DO UPDATE SET {changes}"
            )
            self._run("DROP TABLE nnnorm_new")

    def delete(self, ids: Ids) -> None:
        self._run(f"DELETE FROM {self._table} WHERE {self._is_any()}", [ids.tolist()])

    def set_values(
        self, batches: Iterable[tuple[Ids, FloatArray]], note: Mapping[str, Any]
    ) -> None:
        values = list(batches)
        with self._transaction():
            self._copy_values(values, self._found(self._look()))
            self._replace_values(dict(note))

    def value_range(self) -> tuple[float, float] | None:
        rows = self._run(f"SELECT min({BIAS}), max({BIAS}) FROM {self._table}")
        return None if rows[0][0] is None else rows[0]

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        return self._ask(queries, k, None, filter)

    def search_column(
        self, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        return self._ask(queries, k, weight, filter)

    async def search_async(
        self, client: Any, queries: FloatArray, k: int, filter: Any = None
    ) -> Found:
        return await self._ask_async(client, queries, k, None, filter)

    async def search_column_async(
        self, client: Any, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        return await self._ask_async(client, queries, k, weight, filter)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table = self._found(self._look())
        own, has_vector = quote_name(table.id), f"WHERE {quote_name(table.vector)} IS NOT NULL"
        after, last = has_vector, None
        while rows := self._run(
            f"SELECT {own}, {quote_name(table.vector)}::real[], "
            f"{BIAS if table.has_bias else 'NULL::real'}, {_described(table)} "
            f"FROM {self._table} {after} ORDER BY {own} LIMIT %(batch)s",
            {"batch": batch, "last": last},
        ):
            ids, vectors, values, *known = zip(*rows, strict=True)
            last, after = ids[-1], f"{has_vector} AND {own} > %(last)s::{table.id_type}"
            described = [_describe(table, entry) for entry in zip(*known, strict=True)]
            yield make_items(list(map(_plain, ids)), vectors, values, described)

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        table = self._found(self._look())
        rows = self._run(
            f"SELECT {quote_name(table.id)}, {_described(table)} FROM {self._table} "
            f"WHERE {self._is_any()}",
            [ids.tolist()],
        )
        found = {_plain(own): _describe(table, entry) for own, *entry in rows}
        return [found.get(own, {}) for own in ids.tolist()]

    # --- generations ---

    def mark(self) -> object:
        """The number of the table, and the transactions that last named and commented on it."""
        return self._run(_ASK_MARK, [self._table] * _N_IN_MARK)[0]

    def version(self) -> object:
        """Every change of a row, as its transaction numbers show: a scan without the vectors."""
        numbers = "sum(xmin::text::bigint), max(xmin::text::bigint)"
        return self._run(f"SELECT count(*), {numbers} FROM {self._table}")[0]

    def exchange(self) -> None:
        other = self.other()
        following = self._check_former(other, other._look())
        if not following.vector:
            own = quote_name(following.id)
            with self._transaction():
                # Rows that the application has inserted since have the mean, as they had before.
                self._run(
                    f"CREATE TEMP TABLE nnnorm_values ON COMMIT DROP AS SELECT {own}, coalesce("
                    f"f.{BIAS}, (SELECT avg({BIAS}) FROM {other._table}))::real AS {BIAS} "
                    f"FROM {self._table} LEFT JOIN {other._table} f USING ({own})"
                )
                self._replace_values(other.read_note() or {})
            return
        self._check_name()
        own, its = (quote_name(store.actual.split(".")[-1]) for store in (self, other))
        between = quote_name(f"{OTHER[1:]}_between")
        schema = "".join(f"{quote_name(part)}." for part in self.actual.split(".")[:-1])
        with self._transaction():
            self._check_snapshot()
            # Roles that may read the one may read the other.
            for grantee, right in self._run(
                "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, "
                "privilege_type FROM pg_class c, aclexplode(c.relacl) "
                "WHERE c.oid = to_regclass(%s) AND grantee <> c.relowner",
                [self._table],
            ):
                self._run(f"GRANT {right} ON {other._table} TO {grantee}")
            self._run(f"ALTER TABLE {self._table} RENAME TO {between}")
            self._run(f"ALTER TABLE {other._table} RENAME TO {own}")
            self._run(f"ALTER TABLE {schema}{between} RENAME TO {its}")
        self._forget()

    def drop(self) -> None:
        self._run(f"DROP TABLE IF EXISTS {self._table}")
        self._forget()

    def _check_name(self) -> None:
        """Raise where the name of the other generation is longer than PostgreSQL keeps."""
        longest = _LONGEST_NAME - len(OTHER)
        if len(self.collection.split(".")[-1].encode()) > longest:
            raise NNNormError(
                f"the name of a table of an index takes at most {longest} bytes, because its other "
                f"generation has {len(OTHER)} more; got {self.collection!r}"
            )

    def _copy_values(self, batches: list[tuple[Ids, FloatArray]], table: _Table) -> None:
        """Put new values into a temporary table."""
        own = quote_name(table.id)
        self._run(
            f"CREATE TEMP TABLE nnnorm_values ({own} {table.id_type}, {BIAS} real) ON COMMIT DROP"
        )
        statement = "COPY nnnorm_values FROM STDIN"
        with self._translating(), self.client.cursor() as cursor, cursor.copy(statement) as copy:
            for ids, values in batches:
                for row in zip(ids.tolist(), values.tolist(), strict=True):
                    copy.write_row(row)

    def _take_values(self, table: _Table) -> None:
        """Write the values of the temporary table."""
        own = quote_name(table.id)
        self._run(
            f"UPDATE {self._table} t SET {BIAS} = v.{BIAS} FROM nnnorm_values v "
            f"WHERE t.{own} = v.{own}"
        )
        self._run("DROP TABLE nnnorm_values")

    def _replace_values(self, note: dict[str, Any]) -> None:
        """Keep the table, or the values of the application's, as it is; then take new values."""
        table, other = self._found(self._look()), self.other()
        remark = table.remark or {"metric": self._metric()}
        self._check_name()
        self._run(f"DROP TABLE IF EXISTS {other._table}")
        if remark.get("adopted"):
            self._run(
                f"CREATE TABLE {other._table} AS SELECT {quote_name(table.id)}, {BIAS} "
                f"FROM {self._table}"
            )
        else:
            self._run(f"CREATE TABLE {other._table} (LIKE {self._table} INCLUDING ALL)")
            self._run(f"INSERT INTO {other._table} SELECT * FROM {self._table}")
        other._write_remark(remark)
        self._take_values(table)
        has_default = self._run(
            "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND "
            "atthasdef",
            [self._table, BIAS],
        )
        if has_default:  # last, because it makes readers wait
            ((mean,),) = self._run(f"SELECT avg({BIAS}) FROM {self._table}")
            if mean is not None:
                self._run(f"ALTER TABLE {self._table} ALTER {BIAS} SET DEFAULT {float(mean)!r}")
        self._write_remark({**remark, "note": note})
        self._forget()

    # --- facts about the table, from the system catalogue ---

    def _look(self) -> _Table | None:
        """Find the columns and the index, or return None if there is no such table."""
        if self._known is None:
            columns = dict(
                self._run(
                    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE "
                    "attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
                    "ORDER BY attnum",
                    [self._table],
                )
            )
            if not columns and self._run("SELECT to_regclass(%s)", [self._table])[0][0]:
                raise self._outdated()
            if columns:
                self._metric_known = None
                self._known = self._describe_table(columns)
                if self._known.graph is not None:
                    self.is_graph, self.is_exact = True, False
                if self._known.base == "halfvec":
                    self.is_quantized, self.is_exact = True, False
        return self._known

    def _describe_table(self, columns: dict[str, str]) -> _Table:
        remark = self._read_remark()
        own, kind = next(iter(columns.items()))
        if self._is_other and list(columns) == [own, BIAS]:
            return _Table(own, kind, "", "", {}, True, False, remark, None, None)
        own, vector = self._choose(columns, remark or {})
        rows = self._run(
            "SELECT c.opcname, coalesce(r.reloptions, '{}') FROM pg_index i "
            "JOIN pg_opclass c ON c.oid = i.indclass[0] JOIN pg_class r ON r.oid = i.indexrelid "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = to_regclass(%s) AND a.attname = %s ORDER BY i.indexrelid",
            [self._table, vector],
        )
        indexes = [(_CLASSES[name], given) for name, given in rows if name in _CLASSES]
        is_packed = remark is not None and remark.get("packed", True) and METADATA in columns
        taken = {own, vector, *((METADATA,) if is_packed else ())}
        has_bias = remark is not None and BIAS in columns
        if has_bias:
            taken.add(BIAS)
        return _Table(
            own,
            columns[own],
            vector,
            columns[vector],
            {name: kind for name, kind in columns.items() if name not in taken},
            has_bias,
            is_packed,
            remark,
            indexes[0][0] if indexes else None,
            dict(one.split("=", 1) for one in indexes[0][1]) if indexes else None,
        )

    def _choose(self, columns: dict[str, str], remark: dict[str, Any]) -> tuple[str, str]:
        """Choose the columns of ids and vectors: those asked for or noted, or the only ones."""
        keys = self._run(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND "
            "a.attnum = ANY(i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisprimary",
            [self._table],
        )
        vectors = [name for name, kind in columns.items() if kind.startswith(("vector", "halfvec"))]
        noted = {what: str(remark.get(what, "")) for what in ("id", "embedding")}
        asked = [
            getattr(self.options, what) or (name if name in columns else "")
            for what, name in noted.items()
        ]
        own = self._pick("id", asked[0], list(columns), [key for (key,) in keys])
        vector = self._pick("embedding", asked[1], vectors, vectors)
        kind = columns[own]
        if kind not in (*_WHOLE, "text", "uuid") and not kind.startswith("character varying"):
            raise NNNormError(
                f"the ids of {self.name} must be whole numbers, text or uuid; got {kind}"
            )
        return own, vector

    def _pick(self, what: str, asked: str, allowed: list[str], usual: list[str]) -> str:
        if asked and asked not in allowed:
            raise NNNormError(
                f"{self.name} has no {what} column {asked!r}; it has {', '.join(allowed) or 'none'}"
            )
        if not asked and len(usual) != 1:
            kind = "primary key of one column" if what == "id" else "one column of type vector"
            raise NNNormError(
                f"{self.name} must have a {kind}; it has {', '.join(usual) or 'none'}; name the "
                f"column with {what}="
            )
        return asked or usual[0]

    def _width(self, table: _Table) -> int:
        if "(" in table.vector_type:
            return int(table.vector_type.partition("(")[2].rstrip(")"))
        dims = f"vector_dims({quote_name(table.vector)})"
        rows = self._run(f"SELECT DISTINCT {dims} FROM {self._table} LIMIT 2")
        if len(rows) > 1:
            raise NNNormError(f"{self.name} holds vectors of several widths; expected one")
        return int(rows[0][0]) if rows else 0

    def _metric(self) -> StoreMetric:
        """Metric of the index, of the comment where there is no index, or the one that is given."""
        table = self._found(self._look())
        if self._metric_known is None:
            stated = table.indexed or (table.remark or {}).get("metric")
            asked = self.options.metric
            if stated and asked and stated != asked:
                raise NNNormError(
                    f"{self.name} compares by {stated}, as its index or its comment says; got "
                    f"metric={asked}"
                )
            if not stated:
                norm = f"vector_norm({quote_name(table.vector)}::vector)"
                rows = self._run(
                    f"SELECT min({norm}), max({norm}) FROM (SELECT * FROM {self._table} LIMIT 1000)"
                    " t"
                )
                stated = check_metric(asked, rows[0], self.name)
            self._metric_known = stated
        return self._metric_known

    def _has_string_ids(self) -> bool:
        return self._found(self._look()).id_type not in _WHOLE

    def _is_any(self) -> str:
        table = self._found(self._look())
        return f"{quote_name(table.id)} = ANY(%s::{table.id_type}[])"

    def _find_ids(self, ids: Ids) -> set[Any]:
        own = quote_name(self._found(self._look()).id)
        statement = f"SELECT {own} FROM {self._table} WHERE {self._is_any()}"
        return {_plain(row[0]) for row in self._run(statement, [ids.tolist()])}

    def _read_remark(self) -> dict[str, Any] | None:
        """Metric and note in the comment of the table; None for any other comment."""
        rows = self._run("SELECT obj_description(to_regclass(%s), 'pg_class')", [self._table])
        try:
            remark = json.loads(rows[0][0] or "")["nnnorm"]
        except (ValueError, TypeError, KeyError):
            return None
        return remark if isinstance(remark, dict) and remark.get("metric") in _OPERATORS else None

    def _write_remark(self, remark: dict[str, Any]) -> None:
        literal = require("psycopg.sql", "pgvector").Literal(json.dumps({"nnnorm": remark}))
        text = literal.as_string(self.client)
        self._run(f"COMMENT ON TABLE {self._table} IS {text}")

    def _read_note(self) -> Any:
        return (self._read_remark() or {}).get("note")

    def _write_note(self, note: dict[str, Any]) -> None:
        remark = {**(self._read_remark() or {}), "metric": note["metric"], "note": note}
        with self._transaction():
            self._check_snapshot()
            self._write_remark(remark)
        self._forget()

    # --- the server ---

    @property
    def client(self) -> Any:
        if self._client is not None and self._client.closed and self._owns_client:
            self._client = None
        return super().client

    def _connect(self) -> Any:
        psycopg = require("psycopg", "pgvector")
        timeout = {} if "connect_timeout" in self._read_address() else {"connect_timeout": 10}
        self._session.clear()
        self._forget()
        return psycopg.connect(self.address, autocommit=True, **timeout)

    def _read_address(self) -> dict[str, Any]:
        psycopg = require("psycopg", "pgvector")
        try:
            known: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(self.address)
        except (psycopg.Error, ValueError):  # it quotes the address, with its password
            raise NNNormError(
                f"{show_url(self.address)!r} can't be read as the address of a PostgreSQL server; "
                "expected //user@host:port/database, with special characters of a password "
                "percent-encoded (%2F for /)"
            ) from None
        return known

    def _errors(self) -> tuple[type[Exception], ...]:
        return (require("psycopg", "pgvector").Error,)

    def _run(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        if statement.startswith("SELECT"):
            with self._reading():
                return self._execute(statement, values)
        return self._execute(statement, values)

    def _execute(self, statement: str, values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            client = self.client
            with self._translating(), client.cursor(row_factory=_rows()) as cursor:
                cursor.execute(statement, values)
                return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Leave an idle connection of the caller idle, without locks that make writers wait."""
        if self.client.autocommit:
            yield
            return
        with self._lock:  # before the look: transactions of other threads are not the caller's
            if not _is_idle(self.client):
                yield
                return
            with self._translating(), self.client.transaction():
                yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, also for threads that share the connection."""
        with self._lock, self._translating():
            if _is_idle(self.client):  # a transaction of the caller begins, and ends it
                self._execute("SELECT 1", None)
            with self.client.transaction():
                yield

    def _check_snapshot(self) -> None:
        """Raise in a transaction of the caller that does not see what others changed since.

        Above READ COMMITTED it sees the rows of its beginning, under the names of today.
        """
        in_transaction = require("psycopg.pq", "pgvector").TransactionStatus.INTRANS
        if not self._is_given or self.client.info.transaction_status != in_transaction:
            return
        if self._run("SELECT current_setting('transaction_isolation')")[0][0].startswith("read"):
            return
        named = self._run(
            "SELECT relname = %s FROM pg_class WHERE oid = to_regclass(%s)",
            [self.actual.split(".")[-1], self._table],
        )
        if named and not named[0][0]:
            raise self._outdated()
        # PostgreSQL refuses it where a later transaction changed the row, as a refresh changes all.
        self._run(f"SELECT 1 FROM {self._table} LIMIT 1 FOR SHARE")

    def _outdated(self) -> NNNormError:
        return NNNormError(
            f"{self.name} was changed by another connection since this one began its transaction, "
            "which does not see that at its isolation level; end the transaction (commit or "
            "rollback) and try again"
        )

    def _translate(self, error: Exception) -> NNNormError:
        is_outdated = isinstance(error, require("psycopg", "pgvector").errors.SerializationFailure)
        return self._outdated() if is_outdated else super()._translate(error)

    def _writable(self, table: _Table, items: Items) -> list[str]:
        """Columns that are written: without metadata, those of the application stay as they are."""
        names = [table.id, table.vector]
        if table.has_bias or items.values is not None:
            names.append(BIAS)
        if table.is_packed or items.metadata is not None:
            names += table.others
        return [*names, METADATA] if table.is_packed else names

    def _copy(self, target: str, table: _Table, items: Items) -> None:
        names = self._writable(table, items)
        rest = take_columns(items, table.kinds, is_packed=table.is_packed, name=self.name)
        as_json = [kind in ("json", "jsonb") for kind in table.others.values()]
        n_first = 2 + (BIAS in names)
        statement = f"COPY {target} ({', '.join(map(quote_name, names))}) FROM STDIN"
        with self.client.cursor() as cursor, cursor.copy(statement) as copy:
            first = zip(
                items.ids.tolist(), map(_literal, items.vectors), items.value_list(), strict=True
            )
            for row, more in zip(first, rest, strict=True):
                known = [
                    json.dumps(value) if is_json and value is not None else value
                    for value, is_json in zip(more, [*as_json, False], strict=True)
                ]
                copy.write_row([*row[:n_first], *known][: len(names)])

    def _ask(self, queries: FloatArray, k: int, weight: float | None, filter: Any) -> Found:
        """Search by the distance, or by the distance and the column of the bias."""
        with self._reading():
            plan = self._plan()
            statement = self._statement(plan, k, weight, filter, self.client)
            answers = []
            with self._searching(plan, k):
                for query in queries:
                    values = self._values(query)
                    found = self._run(statement, values)
                    if filter is not None and len(found) < k and plan.table.graph is not None:
                        # The graph gives up after 20,000 rows that the filter refuses.
                        with self._transaction():
                            self._run(_SCAN_ALL)
                            found = self._run(statement, values)
                    answers.append(found)
                mark = _mark_of(answers) or self.mark()
        return _gather(answers, plan, weight, mark)

    async def _ask_async(
        self, client: Any, queries: FloatArray, k: int, weight: float | None, filter: Any
    ) -> Found:
        """The same through a connection of the caller, whose settings stay as they are."""
        plan = self._remembered()
        if plan is None:
            plan = await asyncio.to_thread(self._plan)
        statement = self._statement(plan, k, weight, filter, client)
        is_graph = plan.table.graph is not None

        async def run(statement: str, values: list[str] | None = None) -> list[tuple[Any, ...]]:
            async with client.cursor(row_factory=_rows()) as cursor:
                await cursor.execute(statement, values)
                found: list[tuple[Any, ...]] = await cursor.fetchall() if values else []
            return found

        answers = []
        with self._translating():
            async with self._turn(client, is_whole=is_graph):
                for setting in self._settings(plan, k) if is_graph else ():
                    await run(f"SET LOCAL {setting}")
                for query in queries:
                    values = self._values(query)
                    found = await run(statement, values)
                    if filter is not None and len(found) < k and is_graph:
                        async with client.transaction(force_rollback=True):
                            await run(_SCAN_ALL)
                            found = await run(statement, values)
                    answers.append(found)
                mark = _mark_of(answers)
                if mark is None:
                    (mark,) = await run(_ASK_MARK, [self._table] * _N_IN_MARK)
        return _gather(answers, plan, weight, mark)

    @asynccontextmanager
    async def _turn(self, client: Any, *, is_whole: bool) -> AsyncIterator[None]:
        """Wait for other searches of a connection: its transactions can't overlap.

        The search is a transaction where it has to be one, or where it would begin one that makes
        writers wait until the caller ends it.
        """
        async with self._turns.setdefault(client, asyncio.Lock()):
            if is_whole or _is_idle(client):
                async with client.transaction():
                    yield
            else:
                yield

    def _plan(self) -> _Plan:
        """What a search has to know about the table, asking the server where that is not known."""
        table = self._found(self._look())
        return _Plan(table, self._metric(), self._version() if table.graph is not None else 0)

    def _remembered(self) -> _Plan | None:
        """The same without asking the server; None where something is not known."""
        table, metric = self._known, self._metric_known
        version = self._session.get("version") if table and table.graph is not None else 0
        if table is None or metric is None or version is None:
            return None
        return _Plan(table, metric, version)

    def _statement(
        self, plan: _Plan, k: int, weight: float | None, filter: Any, client: Any
    ) -> str:
        """The search for one query: ids, distances, bias and mark of the nearest rows.

        The number of rows is written out: as a parameter it would make the server plan each search
        anew. What is the same for all rows is added to the nearest ones only.
        """
        table = plan.table
        vector, query = quote_name(table.vector), f"%s::{table.base}"
        if weight is None:
            asked = f"{vector} {_OPERATORS[plan.metric]} {query}"
        else:
            asked = f"({vector} <#> {query}) + {float(weight)!r}::float8 * {BIAS}"
        where = "" if filter is None else f"WHERE {self._condition(filter, client)} "
        bias = f", {BIAS}" if self.returns_values and table.has_bias else ""
        return (
            f"SELECT found.*{'' if bias else ', NULL'}, {_MARK} FROM (SELECT "
            f"{quote_name(table.id)}, {asked} AS distance{bias} FROM {self._table} {where}"
            f"ORDER BY distance LIMIT {k:d}) found"
        )

    def _values(self, query: FloatArray) -> list[str]:
        """The parameters of `_statement`, in the order of its text: those of the mark first."""
        return [self._table] * _N_IN_MARK + [_literal(query)]

    def _condition(self, filter: Any, client: Any) -> str:
        composable = require("psycopg.sql", "pgvector").Composable
        is_made = isinstance(filter, composable)
        text = filter.as_string(client) if is_made else filter
        return check_condition(text, self.engine).replace("%", "%%")

    @contextmanager
    def _searching(self, plan: _Plan, k: int) -> Iterator[None]:
        """Set the breadth of an HNSW search, which limits the number of rows that it returns."""
        beam = self._beam(k)
        is_set = not self._is_given and self._session.get("beam") == beam
        if plan.table.graph is None or is_set:
            yield
            return
        with self._lock:
            if not self._is_given:
                for setting in self._settings(plan, k):
                    self._run(f"SET {setting}")
                self._session["beam"] = beam
                yield
            else:  # the settings of the caller's connection stay as they are
                with self._transaction():
                    for setting in self._settings(plan, k):
                        self._run(f"SET LOCAL {setting}")
                    yield

    def _beam(self, k: int) -> int:
        return min(max(self.options.ef, k), _WIDEST_BEAM)

    def _settings(self, plan: _Plan, k: int) -> list[str]:
        """What is set before a search of the graph."""
        settings = [f"hnsw.ef_search = {self._beam(k):d}"]
        if plan.version >= 8:
            settings.append("hnsw.iterative_scan = strict_order")
        return settings

    def _version(self) -> int:
        """Version of pgvector: 1000 times the first number, and the second one."""
        known = self._session.get("version")
        if known is None:
            ((version,),) = self._run(
                "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
            )
            major, minor = (int(part) for part in version.split(".")[:2])
            known = self._session["version"] = 1000 * major + minor
        return known


def _rows() -> Any:
    """Rows as tuples, also of a connection of the caller that makes others."""
    return require("psycopg.rows", "pgvector").tuple_row


def _is_idle(client: Any) -> bool:
    """Whether the next statement would begin a transaction that only the caller ends."""
    if client.autocommit:
        return False
    idle = require("psycopg.pq", "pgvector").TransactionStatus.IDLE
    return bool(client.info.transaction_status == idle)


def _described(table: _Table) -> str:
    """The metadata in a SELECT: native types as they are, others as JSON (dates are strings)."""
    names = [
        quote_name(name) if kind != "other" else f"to_jsonb({quote_name(name)})"
        for name, kind in table.kinds.items()
    ]
    return ", ".join([*names, METADATA if table.is_packed else "NULL"])


def _describe(table: _Table, values: Iterable[Any]) -> dict[str, Any]:
    """Put the metadata of a row together; a table of the application keeps its empty fields."""
    *known, rest = values
    if not table.is_packed:
        return dict(zip(table.others, known, strict=True))
    return join_entry(table.others, known, rest)


def _mark_of(answers: list[list[tuple[Any, ...]]]) -> tuple[Any, ...] | None:
    """The mark in the last answer, which is that of all where it has not changed; None if empty."""
    return answers[-1][0][3:] if answers and answers[-1] else None


def _gather(
    answers: list[list[tuple[Any, ...]]], plan: _Plan, weight: float | None, mark: object
) -> Found:
    """Turn the rows of each query into arrays."""
    rows = [[(_plain(i), d, m) for i, d, m, *_ in found if d is not None] for found in answers]
    score = _SCORES[plan.metric if weight is None else "ip"]
    return replace(gather_hits(rows, score), mark=mark)


def _literal(vector: FloatArray) -> str:
    return str(vector.tolist())


def _plain(own: Any) -> int | str:
    return own if isinstance(own, int) else str(own)
