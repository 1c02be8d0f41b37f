"""`PgvectorStore`: a table of PostgreSQL with vectors, as a collection.

A table that nnnorm creates has the columns ``id, embedding, nnnorm_bias``, one per key of the
metadata, and ``metadata`` for the rest; the note is its comment. Other tables can be read, or
adopted with one more column: their only column of vectors, their primary key, and the other columns
as metadata.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal
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
    make_items,
    quote_name,
)
from nnnorm.index.stores.database import BIAS
from nnnorm.index.stores.pgvector.connection import Session, is_idle, read_address
from nnnorm.index.stores.pgvector.question import (
    ASK_MARK,
    SCAN_ALL,
    Plan,
    Question,
    mark_of,
    mark_values,
    plain_id,
)
from nnnorm.index.stores.pgvector.table import TYPES, WHOLE, Catalogue, Table
from nnnorm.index.stores.pgvector.writing import (
    Layout,
    columns_to_write,
    copy_indexes,
    copy_rights,
    rows_to_write,
)
from nnnorm.index.stores.tables import OTHER, TableStore, check_condition, choose_columns

_LONGEST_NAME = 63  # a limit of PostgreSQL


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
    _known: Table | None = None

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
        self._session = self._begin({})
        self._metric_known: StoreMetric | None = None
        self._turns: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()

    @property
    def where(self) -> str:
        if self._is_given:
            return super().where
        known = read_address(self.address)
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
        return Facts(self._catalogue.find_width(table), self._metric(), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        columns = {
            name: TYPES[kind]
            for name, kind in choose_columns(
                sample.metadata, allows=lambda name: len(name.encode()) <= _LONGEST_NAME
            ).items()
        }
        own = "id", "text" if strings else "bigint"
        graph = self._new_graph()
        layout = Layout(*own, "embedding", self.options.dtype, width, columns, graph)
        self._create(layout, metric)

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        table = source._look() if isinstance(source, PgvectorStore) else None
        if not isinstance(source, PgvectorStore) or table is None or not table.vector:
            return self.create(width, metric, strings=strings, sample=sample)
        id_type = table.id_type
        if (id_type not in WHOLE) != strings:
            id_type = "text" if strings else "bigint"
        is_next = source.collection == self.collection
        base = table.base if is_next else self.options.dtype
        has_graph = is_next and table.graph is not None
        graph = table.graph if has_graph else self._new_graph()
        layout = Layout(table.id, id_type, table.vector, base, width, table.others, graph)
        self._create(layout, metric, source)

    def _new_graph(self) -> dict[str, str] | None:
        """Options of the graph of a new table, if it has one."""
        if self.options.kind != "hnsw":
            return None
        links, breadth = self.options.links, self.options.ef_construction
        return {"m": str(links), "ef_construction": str(breadth)}

    def _create(
        self, layout: Layout, metric: StoreMetric, source: "PgvectorStore | None" = None
    ) -> None:
        layout.check()
        if not self._run("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
            raise NNNormError(
                "this PostgreSQL has no pgvector; install the extension on the server (package "
                "postgresql-<version>-pgvector)"
            )
        self._check_name()
        with self._session.transaction():
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            self._run(layout.create_table(self._table))
            if source is not None and source.client is self.client:
                own = {layout.id, *layout.others}
                copy_indexes(self._run, source._table, self._table, own)
            if layout.graph is not None:
                self._run(layout.create_graph(self._table, metric))
            about = {"id": layout.id, "embedding": layout.vector, "packed": layout.is_packed}
            self._write_remark({"metric": metric, "note": None, **about})
        self._forget()

    def adopt(
        self, batches: Iterable[tuple[Ids, FloatArray]], default: float, note: Mapping[str, Any]
    ) -> None:
        table = self._found(self._look())
        if table.has_bias:
            raise NNNormError(f"{self.name} has a column {BIAS} already; refresh it instead")
        values = list(batches)
        with self._session.transaction():
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
        names = columns_to_write(table, items)
        listed = ", ".join(map(quote_name, names))
        changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quote_name, names[1:]))
        with self._translating(), self._session.transaction():
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
        with self._session.transaction():  # after an error, that of the caller goes on
            self._run(f"DELETE FROM {self._table} WHERE {self._is_any()}", [ids.tolist()])

    def set_values(
        self, batches: Iterable[tuple[Ids, FloatArray]], note: Mapping[str, Any]
    ) -> None:
        values = list(batches)
        with self._session.transaction():
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
            f"{BIAS if table.has_bias else 'NULL::real'}, {table.select_metadata()} "
            f"FROM {self._table} {after} ORDER BY {own} LIMIT %(batch)s",
            {"batch": batch, "last": last},
        ):
            ids, vectors, values, *known = zip(*rows, strict=True)
            last, after = ids[-1], f"{has_vector} AND {own} > %(last)s::{table.id_type}"
            described = [table.join_metadata(entry) for entry in zip(*known, strict=True)]
            yield make_items(list(map(plain_id, ids)), vectors, values, described)

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        table = self._found(self._look())
        rows = self._run(
            f"SELECT {quote_name(table.id)}, {table.select_metadata()} FROM {self._table} "
            f"WHERE {self._is_any()}",
            [ids.tolist()],
        )
        found = {plain_id(own): table.join_metadata(entry) for own, *entry in rows}
        return [found.get(own, {}) for own in ids.tolist()]

    # --- generations ---

    def mark(self) -> object:
        """The number of the table, and the transactions that last named and commented on it."""
        return self._run(ASK_MARK, mark_values(self._table))[0]

    def version(self) -> object:
        """Every change of a row, as its transaction numbers show: a scan without the vectors."""
        numbers = "sum(xmin::text::bigint), max(xmin::text::bigint)"
        return self._run(f"SELECT count(*), {numbers} FROM {self._table}")[0]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._session.transaction():
            self._check_snapshot()
            # What a refresh needs too; the application may write meanwhile.
            self._run(f"LOCK TABLE {self._table} IN SHARE UPDATE EXCLUSIVE MODE")
            yield

    def exchange(self) -> None:
        other = self.other()
        following = self._check_former(other, other._look())
        if not following.vector:
            own = quote_name(following.id)
            with self._session.transaction():
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
        with self._session.transaction():
            self._check_snapshot()
            copy_rights(self._run, self._table, other._table)
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

    def _copy_values(self, batches: list[tuple[Ids, FloatArray]], table: Table) -> None:
        """Put new values into a temporary table."""
        own = quote_name(table.id)
        self._run(
            f"CREATE TEMP TABLE nnnorm_values ({own} {table.id_type}, {BIAS} real) ON COMMIT DROP"
        )
        rows = (zip(ids.tolist(), values.tolist(), strict=True) for ids, values in batches)
        self._session.copy("COPY nnnorm_values FROM STDIN", chain.from_iterable(rows))

    def _take_values(self, table: Table) -> None:
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

    # --- facts about the table ---

    @property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self._session.run, self._table, self.name)

    def _look(self) -> Table | None:
        """Find the columns and the index, or return None if there is no such table."""
        if self._known is None:
            asked = self.options.id, self.options.embedding
            self._known = self._catalogue.find(*asked, may_be_values=self._is_other)
            if self._known is None and self._catalogue.is_hidden():
                raise self._outdated()
            if self._known is not None:
                self._metric_known = None
                if self._known.graph is not None:
                    self.is_graph, self.is_exact = True, False
                if self._known.base == "halfvec":
                    self.is_quantized, self.is_exact = True, False
        return self._known

    def _metric(self) -> StoreMetric:
        table = self._found(self._look())
        if self._metric_known is None:
            self._metric_known = self._catalogue.find_metric(table, self.options.metric)
        return self._metric_known

    def _has_string_ids(self) -> bool:
        return self._found(self._look()).id_type not in WHOLE

    def _is_any(self) -> str:
        table = self._found(self._look())
        return f"{quote_name(table.id)} = ANY(%s::{table.id_type}[])"

    def _find_ids(self, ids: Ids) -> set[Any]:
        own = quote_name(self._found(self._look()).id)
        statement = f"SELECT {own} FROM {self._table} WHERE {self._is_any()}"
        return {plain_id(row[0]) for row in self._run(statement, [ids.tolist()])}

    def _write_remark(self, remark: dict[str, Any]) -> None:
        literal = require("psycopg.sql", "pgvector").Literal(json.dumps({"nnnorm": remark}))
        text = literal.as_string(self.client)
        self._run(f"COMMENT ON TABLE {self._table} IS {text}")

    def _read_note(self) -> Any:
        return (self._catalogue.read_remark() or {}).get("note")

    def _write_note(self, note: dict[str, Any]) -> None:
        remark = {**(self._catalogue.read_remark() or {}), "metric": note["metric"], "note": note}
        with self._session.transaction():
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
        timeout = {} if "connect_timeout" in read_address(self.address) else {"connect_timeout": 10}
        self._session.settings.clear()
        self._forget()
        return psycopg.connect(self.address, autocommit=True, **timeout)

    def _run(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        return self._session.run(statement, values)

    def _begin(self, settings: dict[str, int]) -> Session:
        return Session(lambda: self.client, self._lock, self._translating, settings)

    def _twin(self) -> "PgvectorStore":
        twin = super()._twin()
        twin._session = twin._begin(self._session.settings)
        return twin

    def _errors(self) -> tuple[type[Exception], ...]:
        return (require("psycopg", "pgvector").Error,)

    def _check_snapshot(self) -> None:
        """Raise in a transaction of the caller that does not see what others changed since.

        Above READ COMMITTED it sees the rows of its beginning, under the names of today.
        """
        if not self._is_given or not self._session.has_snapshot():
            return
        if self._catalogue.is_renamed(self.actual.split(".")[-1]):
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

    def _copy(self, target: str, table: Table, items: Items) -> None:
        listed = ", ".join(map(quote_name, columns_to_write(table, items)))
        rows = rows_to_write(table, items, self.name)
        self._session.copy(f"COPY {target} ({listed}) FROM STDIN", rows)

    # --- searches ---

    def _ask(self, queries: FloatArray, k: int, weight: float | None, filter: Any) -> Found:
        """Search by the distance, or by the distance and the column of the bias."""
        with self._session.reading():
            question = self._question(self._plan(), k, weight, filter, self.client)
            answers = []
            with self._searching(question):
                for query in queries:
                    values = question.values(query)
                    found = self._run(question.statement, values)
                    if question.is_short(found):
                        with self._session.transaction():
                            self._run(SCAN_ALL)
                            found = self._run(question.statement, values)
                    answers.append(found)
                mark = mark_of(answers) or self.mark()
        return question.gather(answers, mark)

    async def _ask_async(
        self, client: Any, queries: FloatArray, k: int, weight: float | None, filter: Any
    ) -> Found:
        """The same through a connection of the caller, whose settings stay as they are."""
        plan = self._remembered()
        if plan is None:
            plan = await asyncio.to_thread(self._plan)
        question = self._question(plan, k, weight, filter, client)
        with self._translating():
            async with self._turn(client, is_whole=question.is_graph):
                return await question.ask(client, queries)

    def _question(
        self, plan: Plan, k: int, weight: float | None, filter: Any, client: Any
    ) -> Question:
        condition = None if filter is None else self._condition(filter, client)
        asked = k, weight, condition, self.returns_values, self.options.ef
        return Question(plan, self._table, *asked)

    @asynccontextmanager
    async def _turn(self, client: Any, *, is_whole: bool) -> AsyncIterator[None]:
        """Wait for other searches of a connection: its transactions can't overlap.

        The search is a transaction where it has to be one, or where it would begin one that makes
        writers wait until the caller ends it.
        """
        async with self._turns.setdefault(client, asyncio.Lock()):
            if is_whole or is_idle(client):
                async with client.transaction():
                    yield
            else:
                yield

    def _plan(self) -> Plan:
        """What a search has to know about the table, asking the server where that is not known."""
        table = self._found(self._look())
        version = self._session.version() if table.graph is not None else 0
        return Plan(table, self._metric(), version)

    def _remembered(self) -> Plan | None:
        """The same without asking the server; None where something is not known."""
        table, metric = self._known, self._metric_known
        version = self._session.settings.get("version") if table and table.graph is not None else 0
        if table is None or metric is None or version is None:
            return None
        return Plan(table, metric, version)

    def _condition(self, filter: Any, client: Any) -> str:
        composable = require("psycopg.sql", "pgvector").Composable
        is_made = isinstance(filter, composable)
        text = filter.as_string(client) if is_made else filter
        return check_condition(text, self.engine).replace("%", "%%")

    @contextmanager
    def _searching(self, question: Question) -> Iterator[None]:
        """Set the breadth of the search of a graph."""
        known, beam = self._session.settings, question.beam
        if not question.is_graph or (not self._is_given and known.get("beam") == beam):
            yield
            return
        with self._lock:
            if not self._is_given:
                for setting in question.settings:
                    self._run(f"SET {setting}")
                known["beam"] = beam
                yield
            else:  # the settings of the caller's connection stay as they are
                with self._session.transaction():
                    for setting in question.settings:
                        self._run(f"SET LOCAL {setting}")
                    yield
