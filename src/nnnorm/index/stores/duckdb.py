"""DuckDB (`pip install 'nnnorm[duckdb]'`): the correction in SQL, exact.

The bias is a column, and a query computes the corrected score::

    SELECT id, array_inner_product(embedding, $q) - $alpha * nnnorm_bias AS score
    FROM photos ORDER BY score DESC LIMIT 10

The ways with extra coordinates work too, for a table whose columns can't change.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import TableOptions, option
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
from nnnorm.index.stores.database import BIAS, METADATA, DatabaseStore, make_plain, to_arrow

_SCORES: dict[StoreMetric, str] = {
    "ip": "array_inner_product({column}, {query})",
    "cosine": "array_cosine_similarity({column}, {query})",
    "l2": "-(array_distance({column}, {query}) ** 2)",
}


@dataclass(frozen=True, kw_only=True)
class DuckdbOptions(TableOptions):
    """Options of DuckDB; all columns but these two are metadata."""

    id: str = option("id", "Column of the ids.")
    embedding: str = option("embedding", "Column of the vectors, of the type `FLOAT[dim]`.")


class DuckdbStore(DatabaseStore):
    """A table in a DuckDB file, or in memory.

    Parameters
    ----------
    place : str, PathLike or DuckDBPyConnection
        The database file, an open connection, or nothing for a database in memory.
    """

    engine, product, noun = "duckdb", "DuckDB", "table"
    ways = ("column", "ip", "l2", "cosine", "rerank")
    options_type = DuckdbOptions
    options: DuckdbOptions

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        self._is_ours = isinstance(place, (str, os.PathLike))
        super().__init__(place if self._is_ours else "", *args, **options)
        self._client = None if self._is_ours else place
        self._table, self._id, self._embedding = map(
            quote_name, (self.collection, self.options.id, self.options.embedding)
        )

    def facts(self) -> Facts | None:
        if self._client is None and not (self.address and Path(self.address).exists()):
            return None
        columns = self._columns()
        if not columns:
            return None
        width = re.fullmatch(r"FLOAT\[(\d+)\]", columns.get(self.options.embedding, ""))
        if width is None or self.options.id not in columns:
            listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            raise NNNormError(
                f"{self.name} needs a column {self.options.embedding} of the type FLOAT[dim] and a "
                f"column {self.options.id}; it has {listed}"
            )
        ((n_items,),) = self._run(f"SELECT count(*) FROM {self._table}")
        return Facts(int(width.group(1)), self._metric(), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        self._run(
            f"CREATE TABLE {self._table} ({self._id} {'VARCHAR' if strings else 'BIGINT'} PRIMARY "
            f"KEY, {self._embedding} FLOAT[{width}] NOT NULL, {BIAS} FLOAT, {METADATA} JSON)"
        )

    def add(self, items: Items) -> None:
        columns = ", ".join((self._id, self._embedding, BIAS, METADATA))
        with self._translating():
            batch = to_arrow(items, self.options.id, self.options.embedding, "duckdb")
            self.client.register("nnnorm_batch", batch)
        self._run(f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM nnnorm_batch")
        self.client.unregister("nnnorm_batch")

    def delete(self, ids: Ids) -> None:
        self._run(f"DELETE FROM {self._table} WHERE {self._is_any()}", [ids.tolist()])

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        return self._ask(queries, k, _SCORES[self._metric()], [])

    def search_column(
        self, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        return self._ask(queries, k, f"{_SCORES['ip']} - ?::FLOAT * {BIAS}", [weight])

    def _ask(self, queries: FloatArray, k: int, score: str, more: list[float]) -> Found:
        formula = score.format(column=self._embedding, query=f"?::FLOAT[{queries.shape[1]}]")
        bias = BIAS if BIAS in self._columns() else "NULL"
        statement = (
            f"SELECT {self._id}, {formula} AS score, {bias} FROM {self._table} "
            f"ORDER BY score DESC LIMIT {k}"
        )
        return gather_hits([self._run(statement, [query, *more]) for query in queries.tolist()])

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        names = list(self._columns())
        # One column holds all metadata only in a table that nnnorm created.
        packed = METADATA if BIAS in names else ""
        listed = ", ".join(map(quote_name, names))
        with self._translating():
            cursor = self.client.cursor()  # the connection may be used for other things meanwhile
            cursor.execute(f"SELECT {listed} FROM {self._table} ORDER BY {self._id}")
        while found := self._fetch(cursor, batch):
            rows = [dict(zip(names, row, strict=True)) for row in found]
            ids, vectors = (
                [row.pop(name) for row in rows]
                for name in (self.options.id, self.options.embedding)
            )
            values = [row.pop(BIAS, None) for row in rows]
            known = [
                {**json.loads(row.pop(packed, None) or "{}"), **make_plain(row)} for row in rows
            ]
            yield make_items(ids, vectors, values, known)

    # --- facts about the table ---

    def _metric(self) -> StoreMetric:
        """Metric of the note: a table that is scanned has none of its own."""
        return (self.read_note() or {}).get("metric", "ip")

    def _columns(self) -> dict[str, str]:
        rows = self._run(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? "
            "ORDER BY column_index",
            [self.collection],
        )
        return dict(rows)

    def _has_string_ids(self) -> bool:
        return self._columns()[self.options.id] == "VARCHAR"

    def _is_any(self) -> str:
        return f"{self._id} IN (SELECT unnest(?))"

    def _find_ids(self, ids: Ids) -> set[Any]:
        statement = f"SELECT {self._id} FROM {self._table} WHERE {self._is_any()}"
        return {row[0] for row in self._run(statement, [ids.tolist()])}

    def _read_note(self) -> Any:
        statement = "SELECT comment FROM duckdb_tables() WHERE table_name = ?"
        return next((row[0] for row in self._run(statement, [self.collection])), None)

    def _write_note(self, note: dict[str, Any]) -> None:
        text = json.dumps(note).replace("'", "''")
        self._run(f"COMMENT ON TABLE {self._table} IS '{text}'")

    # --- the connection ---

    def _connect(self) -> Any:
        return require("duckdb", "duckdb").connect(self.address or ":memory:")

    def _disconnect(self, client: Any) -> None:
        if self._is_ours:
            client.close()
        else:
            self._client = client  # the caller's

    def _errors(self) -> tuple[type[Exception], ...]:
        return (require("duckdb", "duckdb").Error,)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        client = self.client
        with self._translating():
            return client.execute(statement, list(values)).fetchall()

    def _fetch(self, cursor: Any, batch: int) -> list[Any]:
        with self._translating():
            return cursor.fetchmany(batch)
