"""pgvector in PostgreSQL (`pip install 'nnnorm[pgvector]'`): exact or HNSW, and the SQL to paste.

A table of ours has the columns ``id, embedding, nnnorm_bias, metadata``; the note is its comment.
Anyone's table can be read: its one vector column, its primary key, and the rest as metadata.
The operator ``<#>`` gives minus the inner product, because indexes only sort upwards.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.store import (
    BATCH,
    Facts,
    Found,
    Ids,
    Items,
    Sample,
    Store,
    StoreMetric,
    Way,
    pad_rows,
    read_json_note,
)

__all__ = ["PgvectorKind", "PgvectorStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
PgvectorKind = Literal["flat", "hnsw"]
_OPERATORS: dict[StoreMetric, str] = {"ip": "<#>", "cosine": "<=>", "l2": "<->"}
_CLASSES: dict[StoreMetric, str] = {
    "ip": "vector_ip_ops",
    "cosine": "vector_cosine_ops",
    "l2": "vector_l2_ops",
}
_WIDEST_INDEX, _WIDEST_BEAM = 2000, 1000  # pgvector's own limits
_WHOLE = ("smallint", "integer", "bigint")


class PgvectorStore(Store):
    """A table of PostgreSQL with the extension pgvector.

    Parameters
    ----------
    address : str
        What libpq takes: ``postgresql://user@host/database``; empty for its environment variables.
    table : str
        May have a schema: ``shop.photos``.
    kind : {"flat", "hnsw"}
        Of a new table: no index, so that every search is exact, or pgvector's graph.
    links, ef_construction, ef : int
        Of "hnsw"; `ef` also applies to a table that has such an index already.
    id, embedding : str, optional
        Columns of someone else's table, where there are several.
    """

    engine = "pgvector"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank", "column")

    def __init__(
        self,
        address: str = "",
        table: str = "items",
        *,
        kind: PgvectorKind = "flat",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 100,
        id: str = "",  # noqa: A002 - as in SQL
        embedding: str = "",
    ) -> None:
        if kind not in get_args(PgvectorKind):
            raise NNNormError(
                f"kind must be one of {', '.join(get_args(PgvectorKind))}; got {kind!r}"
            )
        self._address, self._table = address, table
        self._links, self._ef_construction, self._ef = links, ef_construction, ef
        self._id, self._embedding = id, embedding
        self.is_graph = kind == "hnsw"
        self._connection: Any = None
        self._forget()

    def _forget(self) -> None:
        """What was looked up of the table, and said to the server."""
        self._columns: dict[str, str] | None = None
        self._chosen: tuple[str, str] | None = None
        self._beam = 0

    @classmethod
    def from_url(
        cls,
        place: str,
        *,
        table: str = "items",
        host: str = "",
        kind: PgvectorKind = "flat",
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 100,
        id: str = "",  # noqa: A002
        embedding: str = "",
    ) -> "PgvectorStore":
        """``pgvector://user@host:5432/database?table=photos``; `host` may be a socket's folder."""
        address = f"postgresql:{place}" if place else ""
        if host:
            address = f"{address or 'postgresql://'}?host={host}"
        return cls(
            address,
            table,
            kind=kind,
            links=links,
            ef_construction=ef_construction,
            ef=ef,
            id=id,
            embedding=embedding,
        )

    @property
    def name(self) -> str:
        known = require("psycopg.conninfo", "pgvector").conninfo_to_dict(self._address)
        place = "/".join(str(known[key]) for key in ("host", "dbname") if known.get(key))
        return f"pgvector table {self._table}{f' of {place}' if place else ''}"

    def facts(self) -> Facts | None:
        self._forget()
        if self._look() is None:
            return None
        (n_items,) = self._run("SELECT count(*) FROM {table}")[0]
        return Facts(self._width(), self._metric(), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        if self.is_graph and width > _WIDEST_INDEX:
            raise NNNormError(
                f"pgvector's hnsw takes at most {_WIDEST_INDEX} numbers, and these embeddings need "
                f"{width} with the correction; use kind='flat', or fewer dimensions"
            )
        if not self._run("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            raise NNNormError(
                "this PostgreSQL has no pgvector; install the extension on the server (package "
                "postgresql-<version>-pgvector)"
            )
        with self._connect().transaction():
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._run(
                f"CREATE TABLE {{table}} (id {'text' if strings else 'bigint'} PRIMARY KEY, "
                f"embedding vector({width:d}) NOT NULL, nnnorm_bias real, metadata jsonb)"
            )
            if self.is_graph:
                self._run(
                    f"CREATE INDEX ON {{table}} USING hnsw (embedding {_CLASSES[metric]}) "
                    f"WITH (m = {self._links:d}, ef_construction = {self._ef_construction:d})"
                )
            self._remark({"metric": metric, "note": None})
        self._forget()

    def add(self, items: Items) -> None:
        self._check_ids(items.ids)
        rows = zip(
            items.ids.tolist(),
            map(_literal, items.vectors),
            [None] * len(items) if items.values is None else items.values.tolist(),
            [None] * len(items) if items.metadata is None else map(_json, items.metadata),
            strict=True,
        )
        statement = self._compose("COPY {table} (id, embedding, nnnorm_bias, metadata) FROM STDIN")
        with self._telling(), self._connect().cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if (ids.dtype.kind == "U") == self._has_whole_ids():
            return np.zeros(len(ids), dtype=bool)
        found = self._run(f"SELECT {{id}} FROM {{table}} WHERE {self._is_any()}", [ids.tolist()])
        there = {self._own(row[0]) for row in found}
        return np.array([name in there for name in ids.tolist()], dtype=bool)

    def delete(self, ids: Ids) -> None:
        self._run(f"DELETE FROM {{table}} WHERE {self._is_any()}", [ids.tolist()])

    def search(self, queries: FloatArray, k: int) -> Found:
        metric = self._metric()
        distance = f"{{vector}} {_OPERATORS[metric]} %s::vector"
        return self._ask(distance, queries, k, metric)

    def search_column(self, queries: FloatArray, k: int, weight: float) -> Found:
        distance = f"({{vector}} <#> %s::vector) + {float(weight)!r}::float8 * nnnorm_bias"
        return self._ask(distance, queries, k, "ip")

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        ours = self._read_remark() is not None
        # All other columns of someone else's table, as JSON: dates and the like become strings.
        rest = "metadata" if ours else "to_jsonb(t) - %(id)s - %(vector)s"
        bias = "nnnorm_bias" if ours else "NULL::real"
        after, names = "", self._names()
        last: Any = None
        while True:
            rows = self._run(
                f"SELECT {{id}}, {{vector}}::real[], {bias}, {rest} FROM {{table}} t {after} "
                "ORDER BY {id} LIMIT %(batch)s",
                {"batch": batch, "last": last, "id": names[0], "vector": names[1]},
            )
            if not rows:
                return
            ids, vectors, values, known = zip(*rows, strict=True)
            last, after = ids[-1], f"WHERE {{id}} > %(last)s::{self._id_type()}"
            yield Items(
                np.array([self._own(value) for value in ids]),
                np.array(vectors, dtype=np.float32),
                None if None in values else np.array(values, dtype=np.float32),
                [entry or {} for entry in known] if any(known) else None,
            )

    def read_note(self) -> dict[str, Any] | None:
        remark = self._read_remark()
        return None if remark is None else read_json_note(remark.get("note"))

    def write_note(self, note: Mapping[str, Any]) -> None:
        self._remark({"metric": note["metric"], "note": dict(note)})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._forget()

    # --- what the catalogue says ---

    def _look(self) -> dict[str, str] | None:
        """Columns and their types, or None if there is no such table."""
        if self._columns is None:
            rows = self._run(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid "
                "= to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [self._quoted()],
            )
            self._columns = dict(rows) or None
        return self._columns

    def _names(self) -> tuple[str, str]:
        """The id's column and the vector's."""
        if self._chosen is None:
            self._chosen = self._choose()
        return self._chosen

    def _choose(self) -> tuple[str, str]:
        columns = self._look()
        if columns is None:
            raise NNNormError(f"there is no {self.name}; check the name, or build it first")
        vectors = [name for name, kind in columns.items() if kind.startswith("vector")]
        keys = self._run(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND "
            "a.attnum = ANY(i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisprimary",
            [self._quoted()],
        )
        chosen = []
        for what, given, known in (
            ("id", self._id, [row[0] for row in keys]),
            ("embedding", self._embedding, vectors),
        ):
            if given and given not in (columns if what == "id" else vectors):
                raise NNNormError(
                    f"{self.name} has no {what} column {given!r}; it has {', '.join(columns)}"
                )
            if not given and len(known) != 1:
                kind = "primary key of one column" if what == "id" else "one column of type vector"
                raise NNNormError(
                    f"{self.name} must have a {kind}; it has {', '.join(known) or 'none'}; name "
                    f"the column with {what}="
                )
            chosen.append(given or known[0])
        return chosen[0], chosen[1]

    def _width(self) -> int:
        kind = (self._look() or {})[self._names()[1]]
        if "(" in kind:
            return int(kind.partition("(")[2].rstrip(")"))
        rows = self._run("SELECT DISTINCT vector_dims({vector}) FROM {table} LIMIT 2")
        if len(rows) > 1:
            raise NNNormError(f"{self.name} holds vectors of several widths; expected one")
        return int(rows[0][0]) if rows else 0

    def _metric(self) -> StoreMetric:
        """Of the index; of our remark where there is no index; else by inner product."""
        rows = self._run(
            "SELECT c.opcname FROM pg_index i JOIN pg_opclass c ON c.oid = i.indclass[0] JOIN "
            "pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = to_regclass(%s) AND a.attname = %s",
            [self._quoted(), self._names()[1]],
        )
        indexed = [metric for metric, kind in _CLASSES.items() if (kind,) in rows]
        if indexed:
            return indexed[0]
        remark = self._read_remark()
        return "ip" if remark is None else remark["metric"]

    def _id_type(self) -> str:
        kind = (self._look() or {})[self._names()[0]]
        if kind not in (*_WHOLE, "text", "uuid") and not kind.startswith("character varying"):
            raise NNNormError(
                f"the ids of {self.name} must be whole numbers, text or uuid; got {kind}"
            )
        return kind

    def _has_whole_ids(self) -> bool:
        return self._id_type() in _WHOLE

    def _own(self, value: Any) -> Any:
        return value if isinstance(value, int) else str(value)

    def _is_any(self) -> str:
        return f"{{id}} = ANY(%s::{self._id_type()}[])"

    def _check_ids(self, ids: Ids) -> None:
        strings = ids.dtype.kind == "U"
        if strings == self._has_whole_ids():
            kinds = ("whole numbers", "strings") if strings else ("strings", "whole numbers")
            raise NNNormError(f"the ids of {self.name} are {kinds[0]}; got {kinds[1]}")

    def _read_remark(self) -> dict[str, Any] | None:
        rows = self._run("SELECT obj_description(to_regclass(%s), 'pg_class')", [self._quoted()])
        try:
            remark = json.loads(rows[0][0] or "")["nnnorm"]
        except (ValueError, TypeError, KeyError):  # no comment, or someone else's
            return None
        return remark if isinstance(remark, dict) and remark.get("metric") in _OPERATORS else None

    def _remark(self, remark: dict[str, Any]) -> None:
        text = require("psycopg.sql", "pgvector").Literal(json.dumps({"nnnorm": remark}))
        self._run("COMMENT ON TABLE {table} IS {text}", text=text)

    # --- talking to the server ---

    def _connect(self) -> Any:
        psycopg = require("psycopg", "pgvector")
        if self._connection is None or self._connection.closed:
            self._beam = 0
            try:
                self._connection = psycopg.connect(
                    self._address, autocommit=True, **self._patience(psycopg)
                )
            except psycopg.Error as error:
                raise NNNormError(
                    f"PostgreSQL can't be reached for {self.name} ({first_line(error)}); check the "
                    "address, and that the server runs"
                ) from error
        return self._connection

    def _patience(self, psycopg: Any) -> dict[str, Any]:
        given = psycopg.conninfo.conninfo_to_dict(self._address)
        return {} if "connect_timeout" in given else {"connect_timeout": 10}

    def _quoted(self) -> str:
        return str(self._identifier(self._table).as_string(None))

    def _identifier(self, name: str) -> Any:
        return require("psycopg.sql", "pgvector").Identifier(*name.split("."))

    def _compose(self, statement: str, **parts: Any) -> Any:
        """SQL with names in it: {table}, {id}, {vector}."""
        names = {}
        if "{id}" in statement or "{vector}" in statement:
            item_id, vector = self._names()
            sql = require("psycopg.sql", "pgvector")
            names = {"id": sql.Identifier(item_id), "vector": sql.Identifier(vector)}
        names["table"] = self._identifier(self._table)
        return require("psycopg.sql", "pgvector").SQL(statement).format(**names, **parts)

    def _run(self, statement: str, values: Any = None, **parts: Any) -> list[tuple[Any, ...]]:
        composed = self._compose(statement, **parts)
        connection = self._connect()
        with self._telling():
            done = connection.execute(composed, values)
            return done.fetchall() if done.description else []

    def _ask(self, distance: str, queries: FloatArray, k: int, metric: StoreMetric) -> Found:
        self._widen_beam(k)
        ours = self._read_remark() is not None
        bias = "nnnorm_bias" if ours else "NULL::real"
        statement = self._compose(
            f"SELECT {{id}}, {distance} AS distance, {bias} FROM {{table}} ORDER BY distance "
            "LIMIT %s"
        )
        ids, scores, values = [], [], []
        with self._telling():
            for query in queries:
                rows = self._connect().execute(statement, [_literal(query), k]).fetchall()
                ids.append([self._own(row[0]) for row in rows])
                scores.append([_score(row[1], metric) for row in rows])
                values.append([row[2] for row in rows])
        has_values = not any(value is None for row in values for value in row)
        return pad_rows(ids, scores, values if has_values else None)

    def _widen_beam(self, k: int) -> None:
        """An HNSW search gives no more rows than its beam is wide, unless it may go on."""
        beam = min(max(self._ef, k), _WIDEST_BEAM)
        if beam == self._beam:
            return
        version = self._run("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
        self._run(f"SET hnsw.ef_search = {beam:d}")
        if version and tuple(int(part) for part in version[0][0].split(".")[:2]) >= (0, 8):
            self._run("SET hnsw.iterative_scan = strict_order")
        self._beam = beam

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """PostgreSQL's errors in one sentence."""
        psycopg = require("psycopg", "pgvector")
        try:
            yield
        except psycopg.Error as error:
            raise NNNormError(f"{self.name}: PostgreSQL says: {first_line(error)}") from error


def _literal(vector: FloatArray) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _json(metadata: Mapping[str, Any]) -> str:
    return json.dumps(dict(metadata))


def _score(distance: float, metric: StoreMetric) -> float:
    if metric == "cosine":
        return 1 - distance
    return -(distance**2) if metric == "l2" else -distance
