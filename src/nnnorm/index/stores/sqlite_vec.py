"""sqlite-vec (`pip install 'nnnorm[sqlite-vec]'`): exact search in one SQLite file.

It has no inner product, so two extra coordinates make all norms equal, and its cosine or L2
gives the corrected order. It returns Euclidean distances and ``1 − cosine``.

Keys of the metadata are metadata columns of `vec0`, which a search compares before it counts its k
hits. These columns can't be empty: an item without a value has 0 or an empty text there, and the
column of the rest names what is absent.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.files import check_regular
from nnnorm.index.options import TableOptions
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Ids,
    Items,
    Metadata,
    Sample,
    Store,
    StoreMetric,
    gather_hits,
    make_items,
    quote_name,
)
from nnnorm.index.stores.database import BIAS, METADATA
from nnnorm.index.stores.tables import (
    Kind,
    TableStore,
    check_condition,
    choose_columns,
    dump_rest,
    join_entry,
    split_entry,
)

_MOST_COLUMNS = 16  # limit of vec0
_KINDS: dict[str, Kind] = {
    "integer": "integer",
    "int": "integer",
    "float": "float",
    "double": "float",
    "boolean": "boolean",
    "bool": "boolean",
    "text": "text",
}
_EMPTY: dict[Kind, Any] = {"integer": 0, "float": 0.0, "boolean": 0, "text": ""}
_ABSENT = "nnnorm_absent"
# The column of the rest in a copy of a table that has a column `metadata` of its own.
_REST = "nnnorm_rest"
# Words of the definition of a table, which vec0 would not take for the name of a column.
_RESERVED = {"rowid", "distance", "k", "partition", "primary", "key", *_KINDS}
# Tables in which vec0 keeps what a table holds.
_SHADOWS = r"_(info|chunks|rowids|auxiliary|(vector_chunks|metadatachunks|metadatatext)\d+|nnnorm)"
_NOTE, _GAPS = 1, 2  # rows of the table of the note
_GAPS_TEXT = "some items lack values of columns that can't be empty"


@dataclass(frozen=True)
class _Definition:
    """Columns, width, metric and kind of ids, from the statement that created a table."""

    key: str
    vector: str
    width: int
    metric: StoreMetric
    strings: bool
    columns: dict[str, Kind]  # columns that a search can filter by, and that can't be empty
    auxiliary: list[str]  # further columns, in their order
    parts: tuple[str, ...]  # the definitions of both

    @property
    def rest(self) -> str:
        """The column with the metadata that have no column, in a table that nnnorm created."""
        if _REST in self.auxiliary:
            return _REST
        return METADATA if {BIAS, METADATA} <= set(self.auxiliary) else ""

    @property
    def own_parts(self) -> list[str]:
        """The definitions of the columns of metadata."""
        taken = {BIAS, self.rest}
        return [part for part in self.parts if part.lstrip("+").split()[0] not in taken]

    @property
    def free_rest(self) -> str:
        """Name of the column of the rest in a copy."""
        return _REST if METADATA in self.kinds else METADATA

    @property
    def kinds(self) -> dict[str, Kind]:
        """All columns of metadata."""
        others = [name for name in self.auxiliary if name not in (BIAS, self.rest)]
        return {**self.columns, **dict.fromkeys(others, "other")}


class SqliteVecStore(TableStore):
    """A `vec0` table in a SQLite file, or in memory.

    Parameters
    ----------
    place : str, PathLike or sqlite3.Connection
        The database file, an open connection, which stays open, or nothing for a database in
        memory.
    """

    engine, product, client_type = "sqlite-vec", "SQLite", "Connection"
    ways = ("cosine", "l2", "rerank")
    filters, rewrites_values, is_exact = 'a condition in SQL, such as "year > 1999"', True, True
    largest_k = 4096
    options_type = TableOptions
    _error: type[Exception] = sqlite3.Error
    _known: _Definition | None = None
    _n_notes = 0  # that this store has written

    @property
    def _table(self) -> str:
        return quote_name(self.actual)

    def facts(self) -> Facts | None:
        self._forget()
        table = self._define()
        if table is None:
            return None
        ((n_items,),) = self._run(f"SELECT count(*) FROM {self._table}")
        return Facts(table.width, table.metric, n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        columns = choose_columns(
            sample.metadata,
            at_most=_MOST_COLUMNS,
            allows=lambda name: (
                bool(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)) and name.lower() not in _RESERVED
            ),
        )
        parts = [f"{name} {kind}" for name, kind in columns.items()]
        self._create(width, metric, parts, METADATA, strings=strings)

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        table = source._define() if isinstance(source, SqliteVecStore) else None
        if table is None:
            return self.create(width, metric, strings=strings, sample=sample)
        self._create(width, metric, table.own_parts, table.free_rest, strings=strings)

    def _create(
        self, width: int, metric: StoreMetric, parts: Sequence[str], rest: str, *, strings: bool
    ) -> None:
        listed = [
            f"id {'text' if strings else 'integer'} primary key",
            f"embedding float[{width}] distance_metric={'L2' if metric == 'l2' else metric}",
            *parts,
            f"+{BIAS} float",
            f"+{rest} text",
        ]
        with self._transaction():
            self._run(f"CREATE VIRTUAL TABLE {self._table} USING vec0({', '.join(listed)})")
        self._forget()

    def add(self, items: Items) -> None:
        with self._transaction():
            self._insert(items)

    def upsert(self, items: Items) -> None:
        with self._transaction():
            self.delete(items.ids)
            self._insert(items)

    def delete(self, ids: Ids) -> None:
        statement = f"DELETE FROM {self._table} WHERE {self._found(self._define()).key} = ?"
        with self._transaction():
            self._run_all(statement, ((own,) for own in ids.tolist()))

    def set_values(
        self, batches: Iterable[tuple[Ids, FloatArray]], note: Mapping[str, Any]
    ) -> None:
        pairs = [
            pair
            for ids, values in batches
            for pair in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        table, other, former = self._found(self._define()), self.other(), self.read_note()
        with self._transaction():
            other.drop()
            other._create(
                table.width, table.metric, table.own_parts, table.free_rest, strings=table.strings
            )
            copy = self._found(other._define())
            theirs, ours = (
                [one.key, one.vector, *table.kinds, BIAS, one.rest] for one in (copy, table)
            )
            self._run(
                f"INSERT INTO {other._table} ({', '.join(map(quote_name, theirs))}) "
                f"SELECT {', '.join(map(quote_name, ours))} FROM {self._table}"
            )
            if former is not None:
                other._write_note(former)
            if self._has_gaps():
                other._write_row(_GAPS, _GAPS_TEXT)
            self._run_all(
                f"UPDATE {self._table} SET {BIAS} = ? WHERE {table.key} = ?",
                ((value, own) for own, value in pairs),
            )
            self._write_note(dict(note))

    def value_range(self) -> tuple[float, float] | None:
        table = self._found(self._define())
        if BIAS not in table.auxiliary:
            return None
        # Where vec0 keeps it: a scan of vec0 itself takes 20 times as long.
        column = f"value{table.auxiliary.index(BIAS):02d}"
        shadow = quote_name(f"{self.actual}_auxiliary")
        ((low, high),) = self._run(f"SELECT min({column}), max({column}) FROM {shadow}")
        return None if low is None else (low, high)

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        table = self._found(self._define())
        bias = BIAS if self.returns_values and BIAS in table.auxiliary else "NULL"
        statement = (
            f"SELECT {table.key}, distance, {bias} FROM {self._table} "
            f"WHERE {table.vector} MATCH ? AND k = ?"
        )
        asked = [(np.ascontiguousarray(row).tobytes(), k) for row in queries]
        if filter is None:
            rows = [self._run(statement, one) for one in asked]
        else:
            condition = check_condition(filter, self.engine)
            slow = f"{statement} AND {table.key} IN ({self._matching(table, condition)})"
            quick = None if self._has_gaps() else f"{statement} AND {condition}"
            rows = [self._search_filtered(quick, slow, one) for one in asked]
        return gather_hits(rows, lambda d: 1 - d if table.metric == "cosine" else -(d**2))

    def _search_filtered(self, quick: str | None, slow: str, asked: tuple[bytes, int]) -> list[Any]:
        """Compare columns while searching; where vec0 can't, list the matching items first.

        vec0 compares single columns with values. SQLite applies anything else to the k hits, so
        that fewer come back, unless vec0 refuses it.
        """
        if quick is not None:
            try:
                with self._lock:
                    found = self.client.execute(quick, asked).fetchall()
                if len(found) == asked[1]:
                    return found
            except self._errors():  # of the condition, which the other statement reports
                pass
        return self._run(slow, asked)

    def _matching(self, table: _Definition, condition: str) -> str:
        """Select the ids of items that meet a condition; absent values are NULL in it."""
        if not table.rest or not self._has_gaps():
            return f"SELECT {table.key} FROM {self._table} WHERE {condition}"
        absent = f"SELECT value FROM json_each({table.rest}, '$.{_ABSENT}')"
        columns = [
            f'CASE WHEN \'{name}\' IN ({absent}) THEN NULL ELSE "{name}" END AS "{name}"'
            for name in table.columns
        ]
        listed = ", ".join([table.key, *columns, *map(quote_name, table.auxiliary)])
        return f"SELECT {table.key} FROM (SELECT {listed} FROM {self._table}) WHERE {condition}"

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table = self._found(self._define())
        bias = BIAS if BIAS in table.auxiliary else "NULL"
        listed = f"{table.key}, {table.vector}, {bias}, {_described(table)}"
        keys = self._run(f"SELECT {table.key} FROM {self._table}")
        statement = f"SELECT {listed} FROM {self._table} WHERE {table.key} = ?"
        for start in range(0, len(keys), batch):
            # One by one: a cursor left open would lock a target in the same file.
            rows = [row for key in keys[start : start + batch] for row in self._run(statement, key)]
            if len(rows) != len(keys[start : start + batch]):
                raise NNNormError(f"{self.name} changed while it was read; start again")
            ids, vectors, values, *known = zip(*rows, strict=True)
            described = [_describe(table, entry) for entry in zip(*known, strict=True)]
            decoded = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(rows), table.width)
            yield make_items(ids, decoded, values, described)

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        table = self._found(self._define())
        statement = f"SELECT {_described(table)} FROM {self._table} WHERE {table.key} = ?"
        found = (self._run(statement, (own,)) for own in ids.tolist())
        return [_describe(table, rows[0]) if rows else {} for rows in found]

    # --- generations ---

    def mark(self) -> object:
        """Numbers that change when another connection has written, or this one has renamed.

        SQLite counts the writes of other connections, and the tables that any has created, renamed
        or dropped, which `exchange` and `set_values` do; notes that this store writes are counted
        here.
        """
        with self._lock:
            return self.version(), self._run("PRAGMA schema_version")[0], self._n_notes

    def version(self) -> object:
        """A number that SQLite changes when another connection has written to the file."""
        return self._run("PRAGMA data_version")[0]

    def transaction(self) -> AbstractContextManager[None]:
        return self._transaction()

    def exchange(self) -> None:
        other, between = self.other(), f"{self.collection}_nnnorm_between"
        self._check_former(other, other._define())
        with self._transaction():
            self._rename(self.actual, between)
            self._rename(other.actual, self.actual)
            self._rename(between, other.actual)
            self._forget()

    def drop(self) -> None:
        if self._define() is not None:
            with self._transaction():
                self._run(f"DROP TABLE {self._table}")
                self._run(f"DROP TABLE IF EXISTS {self._notes}")
        self._forget()

    def _rename(self, old: str, new: str) -> None:
        """Rename a table with the tables in which vec0 keeps what it holds."""
        pattern = re.compile(f"{re.escape(old)}{_SHADOWS}")
        names = [name for (name,) in self._run("SELECT name FROM sqlite_master WHERE type='table'")]
        for name in [old, *filter(pattern.fullmatch, names)]:
            renamed = quote_name(new + name[len(old) :])
            self._run(f"ALTER TABLE {quote_name(name)} RENAME TO {renamed}")

    # --- facts about the table ---

    def _define(self) -> _Definition | None:
        known = self._known  # once: another thread may forget it
        if known is None:
            if self._client is None and not (self.address and Path(self.address).exists()):
                return None
            rows = self._run("SELECT sql FROM sqlite_master WHERE name = ?", (self.actual,))
            known = self._known = self._read_definition(rows[0][0]) if rows else None
        return known

    def _read_definition(self, text: str) -> _Definition:
        vector = re.search(r"(\w+)\s+(?:float|f32)\[(\d+)\]([^,)]*)", text, re.IGNORECASE)
        key = re.search(r"(\w+)\s+(integer|text)\s+primary\s+key", text, re.IGNORECASE)
        if vector is None or " vec0" not in text:
            raise NNNormError(
                f"{self.name} is no vec0 table with a float vector; it was created by: {text}"
            )
        words = vector.group(3).lower()
        if "l1" in words:
            raise NNNormError(f"{self.name} compares by L1; expected cosine or L2")
        metric: StoreMetric = "cosine" if "cosine" in words else "l2"
        own, strings = ("rowid", False) if key is None else (key[1], key[2].lower() == "text")
        columns: dict[str, Kind] = {}
        auxiliary, parts = [], []
        for part in map(str.strip, text[text.index("(") + 1 : text.rindex(")")].split(",")):
            column = re.fullmatch(r"(\+?)\s*(\w+)\s+(\w+)(\s+partition\s+key)?", part, re.I)
            if column is not None:
                parts.append(part)
                if column[1]:
                    auxiliary.append(column[2])
                else:
                    columns[column[2]] = _KINDS.get(column[3].lower(), "other")
        return _Definition(
            own,
            vector.group(1),
            int(vector.group(2)),
            metric,
            strings,
            columns,
            auxiliary,
            tuple(parts),
        )

    def _has_string_ids(self) -> bool:
        return self._found(self._define()).strings

    def _find_ids(self, ids: Ids) -> set[Any]:
        key = self._found(self._define()).key
        statement = f"SELECT {key} FROM {self._table} WHERE {key} = ?"
        return {row[0] for own in ids.tolist() for row in self._run(statement, (own,))}

    @property
    def _notes(self) -> str:
        return quote_name(f"{self.actual}_nnnorm")

    def _read_row(self, row: int) -> Any:
        """A row of the table of the note; None where there is none, or another table."""
        columns = self._run(f"PRAGMA table_info({self._notes})")
        if [column[1] for column in columns] != ["one", "note"]:
            return None
        rows = self._run(f"SELECT note FROM {self._notes} WHERE one = ?", (row,))
        return next((found[0] for found in rows), None)

    def _write_row(self, row: int, text: str) -> None:
        with self._transaction():
            self._run(
                f"CREATE TABLE IF NOT EXISTS {self._notes} "
                "(one INTEGER PRIMARY KEY, note TEXT NOT NULL)"
            )
            self._run(f"INSERT OR REPLACE INTO {self._notes} VALUES (?, ?)", (row, text))

    def _read_note(self) -> Any:
        return self._read_row(_NOTE)

    def _write_note(self, note: dict[str, Any]) -> None:
        with self._lock:
            self._write_row(_NOTE, json.dumps(note))
            self._n_notes += 1

    def _has_gaps(self) -> bool:
        """Whether items were stored without a value for a column that can't be empty."""
        return self._read_row(_GAPS) is not None

    # --- the connection ---

    def _connect(self) -> Any:
        # Many builds of Python can't load an extension; sqlean.py can.
        can_load = hasattr(sqlite3.Connection, "enable_load_extension")
        driver: Any = sqlite3 if can_load else require("sqlean", "sqlite-vec")
        self._error = driver.Error
        if self.address and not self.address.startswith(":"):
            check_regular(self.address)
        opened = driver.connect(self.address or ":memory:", check_same_thread=False)
        try:
            self._load(opened)
            opened.execute("SELECT count(*) FROM sqlite_master")
        except driver.Error:
            opened.close()
            raise
        return opened

    @property
    def client(self) -> Any:
        opened = super().client
        if self._is_given and self._error is sqlite3.Error:
            self._error = type(opened).Error
            try:
                opened.execute("SELECT vec_version()")
            except self._error:
                self._load(opened)
        return opened

    def _load(self, opened: Any) -> None:
        extension = require("sqlite_vec", "sqlite-vec")
        if not hasattr(opened, "enable_load_extension"):
            raise NNNormError(
                "this connection can't load sqlite-vec, because its Python was built without "
                "extensions; connect with sqlean (pip install sqlean.py)"
            )
        opened.enable_load_extension(True)
        extension.load(opened)
        opened.enable_load_extension(False)

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, self._error)

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock:
            client = self.client
            with self._translating():
                return client.execute(statement, values).fetchall()

    def _run_all(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._lock, self._translating():
            self.client.executemany(statement, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; inside the transaction of the caller, where there is one."""
        with self._lock:
            client = self.client
            if client.in_transaction:
                yield
                return
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                if client.in_transaction:
                    client.execute("ROLLBACK")
                raise

    def _insert(self, items: Items) -> None:
        table = self._found(self._define())
        split = [self._fill(table, entry) for entry in items.metadata_list()]
        if any(gaps for _, gaps in split):
            self._write_row(_GAPS, _GAPS_TEXT)
        names = [table.key, table.vector, *table.kinds]
        has_bias = BIAS in table.auxiliary or items.values is not None
        own = [*([BIAS] if has_bias else []), *([table.rest] if table.rest else [])]
        rows = (
            (
                own_id,
                vector.tobytes(),
                *known[:-1],
                *([value] if has_bias else []),
                *(known[-1:] if table.rest else []),
            )
            for own_id, vector, value, (known, _) in zip(
                items.ids.tolist(),
                items.vectors.astype("<f4"),
                items.value_list(),
                split,
                strict=True,
            )
        )
        listed = ", ".join(map(quote_name, [*names, *own]))
        marks = ", ".join("?" * (len(names) + len(own)))
        self._run_all(f"INSERT INTO {self._table} ({listed}) VALUES ({marks})", rows)

    def _fill(self, table: _Definition, entry: Metadata) -> tuple[list[Any], bool]:
        """The values of all columns and of the rest, and whether one had to be filled in."""
        values, rest = split_entry(entry, table.kinds, is_packed=bool(table.rest))
        absent = [
            name
            for name, value in zip(table.kinds, values, strict=True)
            if value is None and name in table.columns
        ]
        if absent:
            rest[_ABSENT] = absent
        if rest and not table.rest:
            raise NNNormError(
                f"{self.name} has no column for some metadata of an item: {json.dumps(rest)}; "
                "leave these out"
            )
        filled = [
            _EMPTY.get(table.kinds[name], "") if name in absent else value
            for name, value in zip(table.kinds, values, strict=True)
        ]
        return [*filled, dump_rest(rest)], bool(absent)


def _described(table: _Definition) -> str:
    return ", ".join([*map(quote_name, table.kinds), table.rest or "NULL"])


def _describe(table: _Definition, values: Iterable[Any]) -> dict[str, Any]:
    """Put the metadata of a row together; a table of the application keeps its empty fields."""
    *known, rest = values
    typed = [
        bool(value) if kind == "boolean" and value is not None else value
        for value, kind in zip(known, table.kinds.values(), strict=True)
    ]
    if not table.rest:
        return dict(zip(table.kinds, typed, strict=True))
    others = json.loads(rest or "{}")
    absent = others.pop(_ABSENT, [])
    kept = {
        name: value for name, value in zip(table.kinds, typed, strict=True) if name not in absent
    }
    return join_entry(kept, kept.values(), others)
