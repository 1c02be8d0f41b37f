"""sqlite-vec (`pip install 'nnnorm[sqlite-vec]'`): exact search in one SQLite file, by cosine.

Vectors are in a `vec0` table, everything else in a plain table, so a filter can be any SQL
condition.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.files import check_regular
from nnnorm.index.backend import FloatArray, Ids, Layout, Pairs
from nnnorm.index.sql import SqlBackend, TableOptions, quote_name


class SqliteVecBackend(SqlBackend):
    """An index in a SQLite file."""

    engine, options_type = "sqlite-vec", TableOptions
    metric, begin = "cosine", "BEGIN IMMEDIATE"
    types = "INTEGER", "REAL", "BOOLEAN", "TEXT"
    has_views = False
    largest_k = 4096

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        super().__init__(place, **options)
        if self._client is not None:
            _load(self._client)

    def lock_file(self) -> Path | None:
        return Path(f"{self.address}.lock") if self.address else None

    def _connect(self) -> Any:
        # Many builds of Python can't load extensions; sqlean.py can.
        can_load = hasattr(sqlite3.Connection, "enable_load_extension")
        driver: Any = sqlite3 if can_load else require("sqlean", "sqlite-vec")
        if self.address:
            check_regular(self.address)
        opened = driver.connect(
            self.address or ":memory:", check_same_thread=False, isolation_level=None, timeout=60
        )
        try:
            opened.execute("SELECT count(*) FROM sqlite_master")  # fails unless it's a database
            _load(opened)
        except Exception:
            opened.close()
            raise
        return opened

    def _vector_type(self, width: int) -> str:
        return "BLOB"

    def _vectors(self, version: str) -> str:
        return quote_name(f"{self.options.table}_{version}_vectors")

    def _create_table(self, version: str, columns: list[str], layout: Layout) -> None:
        own, _, *others = columns
        listed = ["key INTEGER PRIMARY KEY", own.replace("PRIMARY KEY", "UNIQUE"), *others]
        self.run(
            f"CREATE VIRTUAL TABLE {self._vectors(version)} USING "
            f"vec0(embedding float[{layout.width}] distance_metric=cosine)"
        )
        self.run(f"CREATE TABLE {self._table(version)} ({', '.join(listed)})")

    def _drop_table(self, version: str) -> None:
        super()._drop_table(version)
        self.run(f"DROP TABLE IF EXISTS {self._vectors(version)}")

    def _insert(self, version: str, names: list[str], rows: Iterable[list[Any]]) -> None:
        kept = [name for name in names if name != "embedding"]
        listed, marks = ", ".join(map(quote_name, kept)), ", ".join("?" * len(kept))
        statement = f"INSERT INTO {self._table(version)} ({listed}) VALUES ({marks})"
        put = f"INSERT INTO {self._vectors(version)} (rowid, embedding) VALUES (?, ?)"
        for own, vector, *others in rows:
            blob = np.ascontiguousarray(vector, dtype="<f4").tobytes()
            cursor = self.client.execute(statement, [own, *others])
            self.client.execute(put, [cursor.lastrowid, blob])

    def delete(self, version: str, ids: Ids) -> None:
        with self.transaction():
            rows = self._among(f"SELECT key FROM {self._table(version)} WHERE id", ids)
            statement = f"DELETE FROM {self._vectors(version)} WHERE rowid = ?"
            self.client.executemany(statement, rows)
            super().delete(version, ids)

    def _select(self, version: str, vector: FloatArray, k: int, where: str, weight: float) -> Pairs:
        table, blob = self._table(version), np.ascontiguousarray(vector, dtype="<f4").tobytes()
        among = f"AND rowid IN (SELECT key FROM {table} {where})" if where else ""
        statement = (
            f"SELECT i.id, 1 - v.distance FROM (SELECT rowid, distance FROM "
            f"{self._vectors(version)} WHERE embedding MATCH ? AND k = ? {among}) v "
            f"JOIN {table} i ON i.key = v.rowid ORDER BY v.distance"
        )
        return self._execute(statement, [blob, k])

    def _joined(self, version: str) -> str:
        # A vec0 table has hidden columns, such as k, which metadata may have too.
        vectors = f"(SELECT rowid, embedding FROM {self._vectors(version)})"
        return f"{self._table(version)} i JOIN {vectors} v ON v.rowid = i.key"

    def _decode(self, vectors: Sequence[Any]) -> FloatArray:
        joined = np.frombuffer(b"".join(vectors), dtype="<f4")
        return joined.reshape(len(vectors), -1).astype(np.float32)

    def _has_table(self, name: str) -> bool:
        tables = "sqlite_master WHERE type = 'table'"
        return bool(self.run(f"SELECT 1 FROM {tables} AND name = ?", name))


def _load(opened: Any) -> None:
    extension = require("sqlite_vec", "sqlite-vec")
    if not hasattr(opened, "enable_load_extension"):
        raise NNNormError(
            "this connection can't load sqlite-vec, because its Python was built without "
            "extensions; connect with sqlean (pip install sqlean.py)"
        )
    opened.enable_load_extension(True)
    extension.load(opened)
    opened.enable_load_extension(False)
