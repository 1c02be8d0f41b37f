"""sqlite-vec (`pip install 'nnnorm[sqlite-vec]'`): exact search in one SQLite file.

It has no inner product, so two extra coordinates make all norms equal, and its cosine or L2
gives the corrected order. It returns Euclidean distances and ``1 − cosine``.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import TableOptions
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Ids,
    Items,
    Sample,
    StoreMetric,
    gather_hits,
    make_items,
    quote_name,
)
from nnnorm.index.stores.database import BIAS, METADATA, DatabaseStore


class _Definition(NamedTuple):
    """Columns, width, metric and kind of ids, from the statement that created a table."""

    key: str
    vector: str
    width: int
    metric: StoreMetric
    strings: bool


class SqliteVecStore(DatabaseStore):
    """A `vec0` table in a SQLite file, or in memory.

    Parameters
    ----------
    place : str or PathLike
        The database file; nothing for a database in memory.
    """

    engine, product, noun = "sqlite-vec", "SQLite", "table"
    ways = ("cosine", "l2", "rerank")
    largest_k = 4096
    options_type = TableOptions
    _error: type[Exception] = sqlite3.Error

    @property
    def _table(self) -> str:
        return quote_name(self.collection)

    def facts(self) -> Facts | None:
        definition = self._define()
        if definition is None:
            return None
        ((n_items,),) = self._run(f"SELECT count(*) FROM {self._table}")
        return Facts(definition.width, definition.metric, n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        with self._translating(), self.client as client:
            client.execute(
                f"CREATE VIRTUAL TABLE {self._table} USING vec0("
                f"id {'text' if strings else 'integer'} primary key, "
                f"embedding float[{width}] distance_metric={'L2' if metric == 'l2' else metric}, "
                f"+{BIAS} float, +{METADATA} text)"
            )

    def add(self, items: Items) -> None:
        table = self._found(self._define())
        rows = zip(
            items.ids.tolist(),
            (row.tobytes() for row in items.vectors.astype("<f4")),
            items.value_list(),
            map(json.dumps, items.metadata_list()),
            strict=True,
        )
        columns = f"{table.key}, {table.vector}, {BIAS}, {METADATA}"
        statement = f"INSERT INTO {self._table} ({columns}) VALUES (?, ?, ?, ?)"
        with self._translating(), self.client as client:
            client.executemany(statement, rows)

    def delete(self, ids: Ids) -> None:
        statement = f"DELETE FROM {self._table} WHERE {self._found(self._define()).key} = ?"
        with self._translating(), self.client as client:
            client.executemany(statement, ((own,) for own in ids.tolist()))

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        table = self._found(self._define())
        bias = BIAS if BIAS in self._columns() else "NULL"
        statement = (
            f"SELECT {table.key}, distance, {bias} FROM {self._table} "
            f"WHERE {table.vector} MATCH ? AND k = ?"
        )
        rows = [self._run(statement, (np.ascontiguousarray(row).tobytes(), k)) for row in queries]
        return gather_hits(rows, lambda d: 1 - d if table.metric == "cosine" else -(d**2))

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table, names = self._found(self._define()), self._columns()
        # One column holds all metadata only in a table that nnnorm created.
        ours = [name if name in names and BIAS in names else "NULL" for name in (BIAS, METADATA)]
        others = [name for name in names if name not in (table.key, table.vector, *ours)]
        listed = ", ".join([table.key, table.vector, *ours, *map(quote_name, others)])
        keys = self._run(f"SELECT {table.key} FROM {self._table}")
        statement = f"SELECT {listed} FROM {self._table} WHERE {table.key} = ?"
        for start in range(0, len(keys), batch):
            # One by one: a cursor left open would lock a target in the same file.
            rows = [row for key in keys[start : start + batch] for row in self._run(statement, key)]
            if len(rows) != len(keys[start : start + batch]):
                raise NNNormError(f"{self.name} changed while it was read; start again")
            ids, vectors, values, known, *rest = zip(*rows, strict=True)
            described = [
                {**json.loads(entry or "{}"), **dict(zip(others, more, strict=True))}
                for entry, *more in zip(known, *rest, strict=True)
            ]
            decoded = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(rows), table.width)
            yield make_items(ids, decoded, values, described)

    # --- facts about the table ---

    def _define(self) -> _Definition | None:
        if self._client is None and not (self.address and Path(self.address).exists()):
            return None
        rows = self._run("SELECT sql FROM sqlite_master WHERE name = ?", (self.collection,))
        if not rows:
            return None
        text = rows[0][0]
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
        return _Definition(own, vector.group(1), int(vector.group(2)), metric, strings)

    def _columns(self) -> list[str]:
        """Columns of the table, without those that `vec0` hides."""
        rows = self._run(f"PRAGMA table_info({self._table})")
        return [row[1] for row in rows if row[1] not in ("distance", "k")]

    def _has_string_ids(self) -> bool:
        return self._found(self._define()).strings

    def _find_ids(self, ids: Ids) -> set[Any]:
        key = self._found(self._define()).key
        statement = f"SELECT {key} FROM {self._table} WHERE {key} = ?"
        return {row[0] for own in ids.tolist() for row in self._run(statement, (own,))}

    def _read_note(self) -> Any:
        table = quote_name(f"{self.collection}_nnnorm")
        columns = self._run(f"PRAGMA table_info({table})")
        if [column[1] for column in columns] != ["one", "note"]:  # none, or another table
            return None
        return next((row[0] for row in self._run(f"SELECT note FROM {table}")), None)

    def _write_note(self, note: dict[str, Any]) -> None:
        table = quote_name(f"{self.collection}_nnnorm")
        with self.client as client:
            client.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (one INTEGER PRIMARY KEY, note TEXT NOT NULL)"
            )
            client.execute(f"INSERT OR REPLACE INTO {table} VALUES (1, ?)", (json.dumps(note),))

    # --- the connection ---

    def _connect(self) -> Any:
        extension = require("sqlite_vec", "sqlite-vec")
        # Many builds of Python can't load an extension; sqlean.py can.
        can_load = hasattr(sqlite3.Connection, "enable_load_extension")
        driver: Any = sqlite3 if can_load else require("sqlean", "sqlite-vec")
        self._error = driver.Error
        opened = driver.connect(self.address or ":memory:")
        try:
            opened.enable_load_extension(True)
            extension.load(opened)
            opened.enable_load_extension(False)
            opened.execute("SELECT count(*) FROM sqlite_master")
        except driver.Error:
            opened.close()
            raise
        return opened

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, self._error)

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        client = self.client
        with self._translating():
            return client.execute(statement, values).fetchall()
