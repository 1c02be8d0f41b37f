"""pgvector in PostgreSQL (`pip install 'nnnorm[pgvector]'`): exact search or HNSW, in plain SQL.

A table that nnnorm creates has the columns ``id, embedding, nnnorm_bias, metadata``; the note is
its comment. Other tables can be read: their only vector column, their primary key, and the other
columns as metadata. The operator ``<#>`` is minus the inner product: indexes only sort upwards.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import TableOptions, ef, ef_construction, links, option
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
    quote_name,
)
from nnnorm.index.stores.database import BIAS, METADATA, DatabaseStore
from nnnorm.index.urls import show_url

_OPERATORS: dict[StoreMetric, str] = {"ip": "<#>", "cosine": "<=>", "l2": "<->"}
_CLASSES: dict[str, StoreMetric] = {
    "vector_ip_ops": "ip",
    "vector_cosine_ops": "cosine",
    "vector_l2_ops": "l2",
}
_SCORES = {"ip": lambda d: -d, "cosine": lambda d: 1 - d, "l2": lambda d: -(d**2)}
_WIDEST_INDEX, _WIDEST_BEAM = 2000, 1000  # limits of pgvector
_WHOLE = ("smallint", "integer", "bigint")


@dataclass(frozen=True, kw_only=True)
class PgvectorOptions(TableOptions):
    """Options of pgvector; the table may have a schema, as in ``shop.photos``."""

    kind: Literal["flat", "hnsw"] = option(
        "flat", "Index of a new table: none, so that every search is exact, or a graph."
    )
    links: int = links(at_most=100)
    ef_construction: int = ef_construction(at_most=1000)
    ef: int = ef(100)
    id: str = option("", "Column of the ids; by default the primary key.")
    embedding: str = option("", "Column of the vectors; by default the only one.")
    host: str = option("", "Server, or the folder of its socket, where the URL does not name it.")


class _Table(NamedTuple):
    """The two columns that matter, and their types."""

    id: str
    id_type: str
    vector: str
    vector_type: str


class PgvectorStore(DatabaseStore):
    """A table of PostgreSQL with the extension pgvector.

    Parameters
    ----------
    place : str
        What libpq takes: ``postgresql://user@host/database``; empty for its environment variables.
    """

    engine, product, noun = "pgvector", "PostgreSQL", "table"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank", "column")
    options_type = PgvectorOptions
    options: PgvectorOptions

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if self.address.startswith("/"):  # the rest of a URL
            slashes = "" if self.address.startswith("//") else "//"
            self.address = f"postgresql:{slashes}{self.address}"
        if self.options.host:
            self.address = f"{self.address or 'postgresql://'}?host={self.options.host}"
        self.is_server, self.is_graph = True, self.options.kind == "hnsw"
        self._beam = 0
        self._known: _Table | None = None
        self._table = ".".join(map(quote_name, self.collection.split(".")))

    @property
    def where(self) -> str:
        known = self._read_address()
        shown = "/".join(str(known[key]) for key in ("host", "dbname") if known.get(key))
        return shown or "the default server"

    def facts(self) -> Facts | None:
        self._known = None
        table = self._look()
        if table is None:
            return None
        ((n_items,),) = self._run(f"SELECT count(*) FROM {self._table}")
        return Facts(self._width(table), self._metric(table), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        if self.is_graph and width > _WIDEST_INDEX:
            raise NNNormError(
                f"the hnsw index of pgvector takes at most {_WIDEST_INDEX} dimensions, and these "
                f"embeddings need {width} with the correction; use kind='flat', or fewer dimensions"
            )
        if not self._run("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            raise NNNormError(
                "this PostgreSQL has no pgvector; install the extension on the server (package "
                "postgresql-<version>-pgvector)"
            )
        with self.client.transaction():
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._run(
                f"CREATE TABLE {self._table} (id {'text' if strings else 'bigint'} PRIMARY KEY, "
                f"embedding vector({width:d}) NOT NULL, {BIAS} real, {METADATA} jsonb)"
            )
            if self.is_graph:
                operators = next(name for name, known in _CLASSES.items() if known == metric)
                self._run(
                    f"CREATE INDEX ON {self._table} USING hnsw (embedding {operators}) WITH "
                    f"(m = {self.options.links}, ef_construction = {self.options.ef_construction})"
                )
            self._write_remark({"metric": metric, "note": None})
        self._known = None

    def add(self, items: Items) -> None:
        known = items.metadata_list() if items.metadata is not None else [None] * len(items)
        rows = zip(
            items.ids.tolist(),
            map(_literal, items.vectors),
            items.value_list(),
            [None if entry is None else json.dumps(entry) for entry in known],
            strict=True,
        )
        statement = f"COPY {self._table} (id, embedding, {BIAS}, {METADATA}) FROM STDIN"
        with self._translating(), self.client.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def delete(self, ids: Ids) -> None:
        self._run(f"DELETE FROM {self._table} WHERE {self._is_any()}", [ids.tolist()])

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        metric = self._metric(self._found(self._look()))
        return self._ask(f"{{vector}} {_OPERATORS[metric]} %s::vector", queries, k, metric)

    def search_column(
        self, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        corrected = f"({{vector}} <#> %s::vector) + {float(weight)!r}::float8 * {BIAS}"
        return self._ask(corrected, queries, k, "ip")

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table, ours = self._found(self._look()), self._read_remark() is not None
        own = quote_name(table.id)
        # The other columns of a table that nnnorm did not create, as JSON: dates become strings.
        rest = METADATA if ours else "to_jsonb(t) - %(id)s - %(vector)s"
        after, last = "", None
        while rows := self._run(
            f"SELECT {own}, {quote_name(table.vector)}::real[], {BIAS if ours else 'NULL::real'}, "
            f"{rest} FROM {self._table} t {after} ORDER BY {own} LIMIT %(batch)s",
            {"batch": batch, "last": last, "id": table.id, "vector": table.vector},
        ):
            ids, vectors, values, known = zip(*rows, strict=True)
            last, after = ids[-1], f"WHERE {own} > %(last)s::{table.id_type}"
            yield make_items(list(map(_plain, ids)), vectors, values, [m or {} for m in known])

    # --- facts about the table, from the system catalogue ---

    def _look(self) -> _Table | None:
        """Find the columns, or return None if there is no such table."""
        if self._known is None:
            columns = dict(
                self._run(
                    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE "
                    "attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
                    "ORDER BY attnum",
                    [self._table],
                )
            )
            if columns:
                own, vector = self._choose(columns)
                self._known = _Table(own, columns[own], vector, columns[vector])
        return self._known

    def _choose(self, columns: dict[str, str]) -> tuple[str, str]:
        """Choose the columns of ids and vectors: those asked for, or the only ones."""
        keys = self._run(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND "
            "a.attnum = ANY(i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisprimary",
            [self._table],
        )
        vectors = [name for name, kind in columns.items() if kind.startswith("vector")]
        own = self._pick("id", self.options.id, list(columns), [key for (key,) in keys])
        vector = self._pick("embedding", self.options.embedding, vectors, vectors)
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

    def _metric(self, table: _Table) -> StoreMetric:
        """Metric of the index, of the comment where there is no index, else the inner product."""
        rows = self._run(
            "SELECT c.opcname FROM pg_index i JOIN pg_opclass c ON c.oid = i.indclass[0] JOIN "
            "pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = to_regclass(%s) AND a.attname = %s",
            [self._table, table.vector],
        )
        indexed = [metric for name, metric in _CLASSES.items() if (name,) in rows]
        remark = None if indexed else self._read_remark()
        return indexed[0] if indexed else "ip" if remark is None else remark["metric"]

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
        self._run(f"COMMENT ON TABLE {self._table} IS {literal.as_string(self.client)}")

    def _read_note(self) -> Any:
        return (self._read_remark() or {}).get("note")

    def _write_note(self, note: dict[str, Any]) -> None:
        self._write_remark({"metric": note["metric"], "note": note})

    # --- the server ---

    @property
    def client(self) -> Any:
        if self._client is not None and self._client.closed:
            self._client, self._beam = None, 0
        return super().client

    def _connect(self) -> Any:
        psycopg = require("psycopg", "pgvector")
        timeout = {} if "connect_timeout" in self._read_address() else {"connect_timeout": 10}
        self._beam, self._known = 0, None
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
        client = self.client
        with self._translating():
            done = client.execute(statement, values)
            return done.fetchall() if done.description else []

    def _ask(self, distance: str, queries: FloatArray, k: int, metric: StoreMetric) -> Found:
        self._widen_beam(k)
        table = self._found(self._look())
        bias = "NULL::real" if self._read_remark() is None else BIAS
        statement = (
            f"SELECT {quote_name(table.id)}, {distance.format(vector=quote_name(table.vector))} AS "
            f"distance, {bias} FROM {self._table} ORDER BY distance LIMIT %s"
        )
        rows = [self._run(statement, [_literal(query), k]) for query in queries]
        return gather_hits(
            [[(_plain(i), d, m) for i, d, m in row] for row in rows], _SCORES[metric]
        )

    def _widen_beam(self, k: int) -> None:
        """Set the breadth of an HNSW search, which limits the number of rows that it returns."""
        beam = min(max(self.options.ef, k), _WIDEST_BEAM)
        self.client  # noqa: B018 - a new connection has a beam of its own
        if beam == self._beam:
            return
        version = self._run("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        self._run(f"SET hnsw.ef_search = {beam:d}")
        if version and tuple(int(part) for part in version[0][0].split(".")[:2]) >= (0, 8):
            self._run("SET hnsw.iterative_scan = strict_order")
        self._beam = beam


def _literal(vector: FloatArray) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _plain(own: Any) -> int | str:
    return own if isinstance(own, int) else str(own)
