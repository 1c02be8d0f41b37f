"""sqlite-vec (`pip install 'nnnorm[sqlite-vec]'`): exact search in one SQLite file.

It knows no inner product, so two extra coordinates make all norms equal, and its cosine or L2
gives the corrected order. It returns Euclidean distances and ``1 − cosine``.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

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
    check_kind,
    pad_rows,
    quote_name,
    read_json_note,
)

__all__ = ["SqliteVecStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
_BIAS, _METADATA = "nnnorm_bias", "metadata"


class SqliteVecStore(Store):
    """A `vec0` table in a SQLite file, or in memory.

    Parameters
    ----------
    path : str or PathLike
        The database file; nothing for one in memory.
    table : str
    """

    engine = "sqlite-vec"
    ways = ("cosine", "l2", "rerank")
    largest_k = 4096

    def __init__(self, path: str | os.PathLike[str] = "", *, table: str = "items") -> None:
        self._path = Path(path) if str(path) else None
        self._table = table
        self._open: Any = None
        self._error: type[Exception] = sqlite3.Error

    @property
    def name(self) -> str:
        return f"sqlite-vec {self._path or 'in memory'} table {self._table}"

    @property
    def _connection(self) -> Any:
        if self._open is None:
            extension = require("sqlite_vec", "sqlite-vec")
            # Many builds of Python leave out what loads an extension; sqlean.py has it.
            can_load = hasattr(sqlite3.Connection, "enable_load_extension")
            driver: Any = sqlite3 if can_load else require("sqlean", "sqlite-vec")
            opened = None
            try:
                opened = driver.connect(str(self._path) if self._path else ":memory:")
                opened.enable_load_extension(True)
                extension.load(opened)
                opened.enable_load_extension(False)
                opened.execute("SELECT count(*) FROM sqlite_master")
            except driver.Error as error:
                if opened is not None:
                    opened.close()
                raise NNNormError(
                    f"{self._path} can't be opened by SQLite ({first_line(error)}); check the "
                    "path, and whether it is another kind of file"
                ) from error
            self._open, self._error = opened, driver.Error
        return self._open

    def _definition(self) -> tuple[str, str, int, StoreMetric] | None:
        """Names of the id and vector columns, width and metric, from the table's own words."""
        if self._open is None and (self._path is None or not self._path.exists()):
            return None
        row = self._one("SELECT sql FROM sqlite_master WHERE name = ?", (self._table,))
        if row is None:
            return None
        vector = re.search(r"(\w+)\s+(?:float|f32)\[(\d+)\]([^,)]*)", row[0], re.IGNORECASE)
        key = re.search(r"(\w+)\s+(?:integer|text)\s+primary\s+key", row[0], re.IGNORECASE)
        if vector is None or " vec0" not in row[0]:
            raise NNNormError(
                f"{self.name} is no vec0 table with a float vector; it was made by: {row[0]}"
            )
        words = vector.group(3).lower()
        if "l1" in words:
            raise NNNormError(f"{self.name} compares by L1; expected cosine or L2")
        metric: StoreMetric = "cosine" if "cosine" in words else "l2"
        return (key.group(1) if key else "rowid"), vector.group(1), int(vector.group(2)), metric

    def _known(self) -> tuple[str, str, int, StoreMetric]:
        definition = self._definition()
        if definition is None:
            raise NNNormError(f"there is no {self.name}; build it first")
        return definition

    def facts(self) -> Facts | None:
        definition = self._definition()
        if definition is None:
            return None
        query = f"SELECT count(*) FROM {quote_name(self._table)}"
        (n_items,) = self._one(query)
        return Facts(definition[2], definition[3], n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        with self._telling(), self._connection as connection:
            connection.execute(
                f"CREATE VIRTUAL TABLE {quote_name(self._table)} USING vec0("
                f"id {'text' if strings else 'integer'} primary key, "
                f"embedding float[{width}] distance_metric={'L2' if metric == 'l2' else metric}, "
                f"+{_BIAS} float, +{_METADATA} text)"
            )

    def add(self, items: Items) -> None:
        key, vector, _, _ = self._known()
        check_kind(items.ids, strings=self._has_strings(), name=self.name)
        values = [None] * len(items) if items.values is None else items.values.tolist()
        described = [json.dumps(dict(entry)) for entry in items.metadata or [{}] * len(items)]
        blobs = (row.tobytes() for row in items.vectors.astype("<f4"))
        rows = zip(items.ids.tolist(), blobs, values, described, strict=True)
        query = f"INSERT INTO {quote_name(self._table)} ({key}, {vector}, {_BIAS}, {_METADATA}) "
        with self._telling(), self._connection as connection:
            connection.executemany(query + "VALUES (?, ?, ?, ?)", rows)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        key = self._known()[0]
        if (ids.dtype.kind == "U") != self._has_strings():
            return np.zeros(len(ids), dtype=bool)
        query = f"SELECT 1 FROM {quote_name(self._table)} WHERE {key} = ?"
        found = (self._one(query, (name,)) for name in ids.tolist())
        return np.array([row is not None for row in found], dtype=bool)

    def delete(self, ids: Ids) -> None:
        key = self._known()[0]
        query = f"DELETE FROM {quote_name(self._table)} WHERE {key} = ?"
        with self._telling(), self._connection as connection:
            connection.executemany(query, ((name,) for name in ids.tolist()))

    def search(self, queries: FloatArray, k: int) -> Found:
        key, vector, _, metric = self._known()
        bias = _BIAS if _BIAS in self._columns() else "NULL"
        query = (
            f"SELECT {key}, distance, {bias} FROM {quote_name(self._table)} "
            f"WHERE {vector} MATCH ? AND k = ?"
        )
        rows = [self._run(query, (np.ascontiguousarray(row).tobytes(), k)) for row in queries]
        has_values = all(hit[2] is not None for row in rows for hit in row)

        def score(distance: float) -> float:
            return 1 - distance if metric == "cosine" else -(distance**2)

        return pad_rows(
            [[hit[0] for hit in row] for row in rows],
            [[score(hit[1]) for hit in row] for row in rows],
            [[hit[2] for hit in row] for row in rows] if has_values else None,
        )

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        key, vector, width, _ = self._known()
        others = [name for name in self._columns() if name not in (key, vector, _BIAS, _METADATA)]
        ours = [name if name in self._columns() else "NULL" for name in (_BIAS, _METADATA)]
        if ours == ["NULL", _METADATA]:  # someone else's own column
            ours[1], others = "NULL", [*others, _METADATA]
        listed = ", ".join([key, vector, *ours, *map(quote_name, others)])
        table = quote_name(self._table)
        keys = self._run(f"SELECT {key} FROM {table}")
        query = f"SELECT {listed} FROM {table} WHERE {key} = ?"
        for start in range(0, len(keys), batch):
            # One by one: a cursor left open would lock a target in the same file.
            rows = [self._one(query, one) for one in keys[start : start + batch]]
            if None in rows:
                raise NNNormError(f"{self.name} changed while it was read; start again")
            vectors = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.float32)
            values = [row[2] for row in rows]
            metadata = [
                {**json.loads(row[3] or "{}"), **dict(zip(others, row[4:], strict=True))}
                for row in rows
            ]
            yield Items(
                np.array([row[0] for row in rows]),
                vectors.reshape(len(rows), width),
                None if None in values else np.array(values, dtype=np.float32),
                metadata,
            )

    def read_note(self) -> dict[str, Any] | None:
        table = f"{self._table}_nnnorm"
        columns = self._run(f"PRAGMA table_info({quote_name(table)})")
        if [column[1] for column in columns] != ["one", "note"]:  # none, or someone else's
            return None
        row = self._one(f"SELECT note FROM {quote_name(table)}")
        return None if row is None else read_json_note(row[0])

    def write_note(self, note: Mapping[str, Any]) -> None:
        table = quote_name(f"{self._table}_nnnorm")
        with self._telling(), self._connection as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (one INTEGER PRIMARY KEY, note TEXT NOT NULL)"
            )
            connection.execute(
                f"INSERT OR REPLACE INTO {table} VALUES (1, ?)", (json.dumps(dict(note)),)
            )

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _run(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        connection = self._connection
        with self._telling():
            return connection.execute(query, values).fetchall()

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        """The first row, or None."""
        return next(iter(self._run(query, values)), None)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """SQLite's errors in one sentence."""
        try:
            yield
        except (sqlite3.Error, self._error) as error:
            raise NNNormError(f"{self.name}: SQLite says: {first_line(error)}") from error

    def _has_strings(self) -> bool:
        """Whether ids are text; a `vec0` table without a key of its own has row numbers."""
        query = "SELECT sql FROM sqlite_master WHERE name = ?"
        (made_by,) = self._one(query, (self._table,))
        return re.search(r"\w+\s+text\s+primary\s+key", made_by, re.IGNORECASE) is not None

    def _columns(self) -> list[str]:
        """Columns of the table, without those that `vec0` hides."""
        rows = self._run(f"PRAGMA table_info({quote_name(self._table)})")
        return [row[1] for row in rows if row[1] not in ("distance", "k")]
