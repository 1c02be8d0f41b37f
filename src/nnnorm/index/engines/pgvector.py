"""pgvector in PostgreSQL (`pip install 'nnnorm[pgvector]'`): exact search or HNSW, in plain SQL.

SELECT id FROM photos ORDER BY (embedding <#> $q) + $alpha * bias LIMIT 10
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from nnnorm.errors import NNNormError, require, show_url
from nnnorm.index.backend import FloatArray, Pairs, whole
from nnnorm.index.sql import SqlBackend, TableOptions, quote_name

_WIDEST = 1000  # the largest ef_search of pgvector
_LONGEST = 63 - len("_v999999_ffffff")  # names of PostgreSQL have 63 bytes


@dataclass(frozen=True, kw_only=True)
class PgvectorOptions(TableOptions):
    """`kind`, `links` and `ef_construction` of a new index; `ef` of every search."""

    kind: Literal["flat", "hnsw"] = "flat"
    links: int = whole(16, at_least=2, at_most=100)
    ef_construction: int = whole(64, at_least=4, at_most=1000)
    ef: int = whole(100)
    host: str = ""
    options: str = ""


class PgvectorBackend(SqlBackend):
    """An index in PostgreSQL."""

    engine, options_type = "pgvector", PgvectorOptions
    options: PgvectorOptions
    created_by = ("kind", "links", "ef_construction")
    mark = "%s"
    types = "bigint", "double precision", "boolean", 'text COLLATE "C"'

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        super().__init__(place, **options)
        table = self.options.table
        if len(table.split(".")[-1].encode()) > _LONGEST or "%" in table or "?" in table:
            expected = f"must have at most {_LONGEST} bytes, and no % or ?"
            raise NNNormError(f"the option table of pgvector {expected}; got {table!r:.60}")
        if self.address.startswith("/"):  # the rest of a URL
            slashes = "" if self.address.startswith("//") else "//"
            self.address = f"postgresql:{slashes}{self.address}"

    def configure(self) -> None:
        self.is_exact = self.options.kind == "flat"
        self.mode = "column" if self.is_exact else "augmented"

    def _connect(self) -> Any:
        psycopg = require("psycopg", "pgvector")
        names = [name for name in ("host", "options") if getattr(self.options, name)]
        given = {name: getattr(self.options, name) for name in names}
        try:
            place = psycopg.conninfo.make_conninfo(self.address, **given)
        except (psycopg.Error, ValueError):  # its text has the address, with its password
            raise NNNormError(
                f"{show_url(self.address)!r} can't be read as the address of a PostgreSQL server; "
                "expected //user@host:port/database, with special characters of a password "
                "percent-encoded (%2F for /)"
            ) from None
        return psycopg.connect(place, autocommit=True, connect_timeout=30)

    def is_absent(self) -> bool:
        return False  # a server, even if the address isn't a URL

    @contextmanager
    def writing(self) -> Iterator[None]:
        with super().writing():
            name = f"nnnorm {self.options.table}"
            self.run("SELECT pg_advisory_lock(hashtext(?))", name)
            try:
                yield
            finally:
                if not self.client.closed and self.client.info.transaction_status != 3:  # in error
                    self.run("SELECT pg_advisory_unlock(hashtext(?))", name)

    def _execute(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        rows = require("psycopg.rows", "pgvector").tuple_row
        # A transaction leaves the caller's connection idle; with autocommit, none is needed.
        whole = nullcontext() if self.client.autocommit else self.transaction()
        with whole, self.client.cursor(row_factory=rows) as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._turn, self.client.transaction():  # a savepoint inside another one
            yield

    def _vector_type(self, width: int) -> str:
        self.run("CREATE EXTENSION IF NOT EXISTS vector")
        return f"vector({width})"

    def finish(self, version: str, config: dict[str, Any]) -> None:
        if not self.is_exact:
            made = f"m = {self.options.links}, ef_construction = {self.options.ef_construction}"
            kind = f"hnsw (embedding vector_ip_ops) WITH ({made})"
            self.run(f"CREATE INDEX ON {self._table(version)} USING {kind}")
        super().finish(version, config)

    def _insert(self, version: str, names: list[str], rows: Iterable[list[Any]]) -> None:
        listed = ", ".join(map(quote_name, names))
        cursor = self.client.cursor()
        with cursor, cursor.copy(f"COPY {self._table(version)} ({listed}) FROM STDIN") as copy:
            for own, vector, *others in rows:
                copy.write_row([own, str(vector.tolist()), *others])

    def _select(self, version: str, vector: FloatArray, k: int, where: str, weight: float) -> Pairs:
        distance = "embedding <#> %s::vector"
        if weight and self.mode == "column":
            distance = f"({distance}) + {float(weight)!r} * bias"
        statement = (  # the distance is computed once
            f"SELECT id, {distance} AS nnnorm_distance FROM {self._table(version)} "
            f"{where.replace('%', '%%')} ORDER BY nnnorm_distance LIMIT {k}"
        )
        values = [str(vector.tolist())]
        if self.is_exact:
            found = self._execute(statement, values)
        else:
            with self.transaction():
                self.run(f"SET LOCAL hnsw.ef_search = {min(max(self.options.ef, k), _WIDEST)}")
                self.run("SET LOCAL hnsw.iterative_scan = strict_order")
                found = self._execute(statement, values)
                if len(found) < k:  # it gives up after 20,000 rows that a filter excludes
                    self.run("SET LOCAL enable_indexscan = off")
                    found = self._execute(statement, values)
        return [(own, -away) for own, away in found]

    def _read_vector(self, column: str) -> str:
        return f"{column}::real[]"

    def _has_table(self, name: str) -> bool:
        return self.run("SELECT to_regclass(?)", quote_name(name)) != [(None,)]
