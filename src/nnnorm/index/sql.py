"""Base class of SQL engines: a version is a table, and another table lists the versions.

nnnorm_indexes(name, version, config, served)   the swap is one UPDATE
photos_v2_f10c9a(id, embedding, bias, …)         metadata keys are columns, the rest is JSON
photos                                           a view of the served version, in most engines
"""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from nnnorm.index.backend import (
    BATCH,
    KINDS,
    ClientBackend,
    FloatArray,
    Hits,
    Ids,
    Items,
    Kind,
    Layout,
    Metadata,
    Options,
    Pairs,
    chunks,
)

_LISTED = 500  # ids in one statement: old versions of SQLite accept 999


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    """`table` is the index; `id` and `embedding` are columns of a table that is copied."""

    table: str = "items"
    id: str = "id"
    embedding: str = "embedding"


class SqlBackend(ClientBackend):
    """An index in the tables of a database, through one connection that threads share."""

    filters = 'a condition in SQL, such as "year > 1999"'
    is_exact = True
    mark: ClassVar[str] = "?"  # stands for a parameter
    begin: ClassVar[str] = "BEGIN"  # starts a transaction
    types: ClassVar[tuple[str, str, str, str]]  # whole numbers, floats, booleans and text
    has_views: ClassVar[bool] = True
    _is_inside = False  # whether a transaction is open

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        super().__init__(place, **options)
        self._columns_of: dict[str, Mapping[str, Kind]] = {}

    # --- defined by each engine ---

    @abstractmethod
    def _vector_type(self, width: int) -> str:
        """Return the type of the column of vectors."""

    @abstractmethod
    def _insert(self, version: str, names: list[str], rows: Iterable[list[Any]]) -> None:
        """Insert rows; the second value of a row is a vector."""

    @abstractmethod
    def _select(self, version: str, vector: FloatArray, k: int, where: str, weight: float) -> Pairs:
        """Return ids and scores of the k best rows."""

    @abstractmethod
    def _has_table(self, name: str) -> bool:
        """Whether there is a table or view of this name."""

    def _read_vector(self, column: str) -> str:
        """Return the expression that reads a vector."""
        return column

    def _decode(self, vectors: Sequence[Any]) -> FloatArray:
        """Convert vectors that were read to an array."""
        return np.array(vectors, dtype=np.float32)

    # --- statements ---

    def _execute(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        done = self.client.execute(statement, values)
        return done.fetchall() if done.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run statements all or nothing, one thread at a time; may be nested."""
        with self._turn:
            if self._is_inside or getattr(self.client, "in_transaction", False):
                yield
                return
            self._execute(self.begin, [])
            self._is_inside = True
            try:
                yield
                self._execute("COMMIT", [])
            except BaseException:
                with suppress(Exception):  # a commit that failed has rolled back already
                    self._execute("ROLLBACK", [])
                raise
            finally:
                self._is_inside = False

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with self._turn:
            return self._execute(statement.replace("?", self.mark), values)

    def _among(self, statement: str, ids: Ids) -> list[tuple[Any, ...]]:
        """Run a statement that ends with a condition on ids, some ids at a time."""
        found = []
        for some in chunks(ids.tolist(), _LISTED):
            found += self.run(f"{statement} IN ({', '.join('?' * len(some))})", *some)
        return found

    def _table(self, version: str) -> str:
        return quote_name(f"{self.options.table}_{version}")

    # --- versions ---

    def _listed(self, column: str, condition: str = "", *values: str) -> list[Any]:
        """Read a column of the list of versions; empty before the first index is built."""
        if self.is_absent() or not self._has_table("nnnorm_indexes"):
            return []
        statement = f"SELECT {column} FROM nnnorm_indexes WHERE name = ? {condition}"
        return [row[0] for row in self.run(statement, self.options.table, *values)]

    def is_taken(self) -> bool:
        return not self.is_absent() and self._has_table(self.options.table)

    def served(self) -> str | None:
        found = self._listed("version", "AND served = 1")
        return found[0] if found else None

    def versions(self) -> list[str]:
        return self._listed("version", "ORDER BY version")

    def create(self, version: str, layout: Layout) -> None:
        types = dict(zip(get_args(Kind), self.types, strict=True))
        listed = [
            f"id {types['text' if layout.string_ids else 'integer']} PRIMARY KEY NOT NULL",
            f"embedding {self._vector_type(layout.width)} NOT NULL",
            f"bias {types['float']}",
            *(f"{quote_name(name)} {types[kind]}" for name, kind in layout.columns.items()),
            "metadata TEXT",
        ]
        with self.transaction():
            self.run(
                "CREATE TABLE IF NOT EXISTS nnnorm_indexes (name TEXT, version TEXT, config "
                "TEXT, served INTEGER NOT NULL, PRIMARY KEY (name, version))"
            )
            self._create_table(version, listed, layout)
            values = self.options.table, version
            self.run("INSERT INTO nnnorm_indexes VALUES (?, ?, NULL, 0)", *values)
        self._columns_of[version] = layout.columns

    def _create_table(self, version: str, columns: list[str], layout: Layout) -> None:
        self.run(f"CREATE TABLE {self._table(version)} ({', '.join(columns)})")

    def finish(self, version: str, config: dict[str, Any]) -> None:
        statement = "UPDATE nnnorm_indexes SET config = ? WHERE name = ? AND version = ?"
        self.run(statement, json.dumps(config), self.options.table, version)

    def read_config(self, version: str) -> Any:
        found = self._listed("config", "AND version = ?", version)
        return json.loads(found[0] or "null") if found else None

    def _columns(self, version: str) -> Mapping[str, Kind]:
        if version not in self._columns_of:
            config = self.read_config(version)
            if config is None:
                raise self.missing()
            self._columns_of[version] = config["columns"]
        return self._columns_of[version]

    def swap(self, version: str) -> None:
        with self.transaction():
            statement = "UPDATE nnnorm_indexes SET served = CASE WHEN version = ? THEN 1 ELSE 0 END"
            self.run(f"{statement} WHERE name = ?", version, self.options.table)
            if self.has_views:
                view = quote_name(self.options.table)
                self.run(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {self._table(version)}")

    def drop(self, version: str) -> None:
        with self.transaction():
            self._drop_table(version)
            statement = "DELETE FROM nnnorm_indexes WHERE name = ? AND version = ?"
            self.run(statement, self.options.table, version)

    def _drop_table(self, version: str) -> None:
        self.run(f"DROP TABLE IF EXISTS {self._table(version)}")

    @contextmanager
    def write(self, version: str) -> Iterator[str]:
        with self.transaction():
            yield version

    # --- items ---

    def add(self, version: str, items: Items) -> None:
        columns = self._columns(version)
        bias = [None] * len(items) if items.bias is None else items.bias.tolist()
        rows = (
            [own, vector, value, *split_columns(entry, columns)]
            for (own, vector, entry), value in zip(items, bias, strict=True)
        )
        with self.transaction():
            self._insert(version, ["id", "embedding", "bias", *columns, "metadata"], rows)

    def delete(self, version: str, ids: Ids) -> None:
        with self.transaction():
            self._among(f"DELETE FROM {self._table(version)} WHERE id", ids)

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        columns = self._columns(version)
        listed = ", ".join(map(quote_name, ["id", *columns, "metadata"]))
        rows = self._among(f"SELECT {listed} FROM {self._table(version)} WHERE id", ids)
        return {own: join_columns(columns, values) for own, *values in rows}

    def count(self, version: str) -> int:
        return int(self.run(f"SELECT count(*) FROM {self._table(version)}")[0][0])

    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        where = ""
        if filter is not None:
            if not isinstance(filter, str) or not filter.strip() or _is_json(filter):
                raise self.wrong_filter(filter)
            where = f"WHERE ({filter})"
        rows = []
        for vector in vectors:
            with self._turn:
                rows.append(self._select(version, vector, k, where, weight))
        return Hits.read(rows)

    def scan(self, version: str | None) -> Iterator[Items]:
        if version is None:
            yield from self._scan_table()
            return
        last: list[Any] = []
        columns = self._columns(version)
        names = [self._read_vector("embedding"), *map(quote_name, ["bias", *columns, "metadata"])]
        asked = f"SELECT id, {', '.join(names)} FROM {self._joined(version)}"
        page = f"ORDER BY id LIMIT {BATCH}"
        while rows := self.run(f"{asked} {'WHERE id > ?' if last else ''} {page}", *last):
            ids, vectors, bias, *known = zip(*rows, strict=True)
            entries = [join_columns(columns, values) for values in zip(*known, strict=True)]
            values = None if bias[0] is None else np.array(bias, dtype=np.float32)
            yield Items.read(ids, self._decode(vectors), entries, values)
            last = [ids[-1]]

    def _joined(self, version: str) -> str:
        """Return the table of a version, with its vectors."""
        return self._table(version)

    def _scan_table(self) -> Iterator[Items]:
        """Yield the rows of a table of the application; all other columns are metadata."""
        own, vector = self.options.id, self.options.embedding
        table = quote_name(self.options.table)
        with self.transaction():
            asked = self.client.execute(f"SELECT * FROM {table} LIMIT 0")
            columns: list[str] = [column[0] for column in asked.description]
        if own not in columns or vector not in columns:
            has = f"must have the columns {own} and {vector}; it has {', '.join(columns)}"
            raise self.error(f"{has}: name yours with id= and embedding=")
        others = [name for name in columns if name not in (own, vector)]
        listed = ", ".join([self._read_vector(quote_name(vector)), *map(quote_name, others)])
        rows = self.run(f"SELECT {quote_name(own)}, {listed} FROM {table}")
        rows = [row for row in rows if row[1] is not None]
        for some in chunks(rows, BATCH):
            ids, vectors = [row[0] for row in some], [row[1] for row in some]
            entries = [dict(zip(others, row[2:], strict=True)) for row in some]
            yield Items.read(ids, self._decode(vectors), entries)


def _is_json(filter: str) -> bool:
    """Whether a filter is one of other engines."""
    try:
        return isinstance(json.loads(filter), (dict, list))
    except ValueError:
        return False


def quote_name(name: str) -> str:
    """Quote the name of a table or column; a schema before a dot is quoted by itself."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def split_columns(entry: Metadata, columns: Mapping[str, Kind]) -> list[Any]:
    """Return the values of the columns, then the rest as JSON, or None if nothing is left."""
    rest, values = dict(entry), []
    for name, kind in columns.items():
        fits = name in rest and KINDS.get(type(rest[name])) == kind
        values.append(rest.pop(name) if fits else None)
    return [*values, json.dumps(rest) if rest else None]


def join_columns(columns: Mapping[str, Kind], values: Sequence[Any]) -> dict[str, Any]:
    """Undo `split_columns`."""
    *known, rest = values
    entry = {
        name: bool(value) if kind == "boolean" else value
        for (name, kind), value in zip(columns.items(), known, strict=True)
        if value is not None
    }
    return entry | (json.loads(rest) if isinstance(rest, str) else rest or {})
