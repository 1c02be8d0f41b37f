"""DuckDB (`pip install 'nnnorm[duckdb]'`): the correction in SQL, exact.

The bias is a column, and a query says what it means::

    SELECT id, array_inner_product(embedding, $q) - $alpha * nnnorm_bias AS score
    FROM photos ORDER BY score DESC LIMIT 10

The ways with extra coordinates work too, for a table whose columns can't change.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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

__all__ = ["DuckdbStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
_BIAS, _METADATA = "nnnorm_bias", "metadata"
_SCORES: dict[StoreMetric, str] = {
    "ip": "array_inner_product({column}, {query})",
    "cosine": "array_cosine_similarity({column}, {query})",
    "l2": "-(array_distance({column}, {query}) ** 2)",
}


class DuckdbStore(Store):
    """A table in a DuckDB file, or in memory.

    Parameters
    ----------
    path : str, PathLike or DuckDBPyConnection
        The database file, an open connection, or nothing for one in memory.
    table : str
    id, embedding : str
        Names of the two columns that every table has; all others are metadata.
    """

    engine = "duckdb"
    ways = ("column", "ip", "l2", "cosine", "rerank")

    def __init__(
        self,
        path: Any = "",
        *,
        table: str = "items",
        id: str = "id",  # noqa: A002 - as the column is called
        embedding: str = "embedding",
    ) -> None:
        self._table, self._id, self._embedding = table, id, embedding
        self._path: Path | None = None
        self._open: Any = None
        if isinstance(path, (str, os.PathLike)):
            self._path = Path(path) if str(path) else None
        else:
            self._open = path
        self._is_ours = self._open is None

    @property
    def name(self) -> str:
        return f"duckdb {self._path or 'in memory'} table {self._table}"

    @property
    def _connection(self) -> Any:
        if self._open is None:
            duckdb = require("duckdb", "duckdb")
            try:
                self._open = duckdb.connect(str(self._path) if self._path else ":memory:")
            except duckdb.Error as error:
                raise NNNormError(
                    f"{self._path} can't be opened by DuckDB ({first_line(error)}); is another "
                    "process writing to it, or is it another kind of file?"
                ) from error
        return self._open

    def facts(self) -> Facts | None:
        if self._is_ours and self._open is None and (not self._path or not self._path.exists()):
            return None
        columns = self._columns()
        if not columns:
            return None
        kind = columns.get(self._embedding, "missing")
        match = re.fullmatch(r"FLOAT\[(\d+)\]", kind)
        if match is None or self._id not in columns:
            raise NNNormError(
                f"{self.name} needs a column {self._embedding} of the type FLOAT[dim] and a column "
                f"{self._id}; it has {', '.join(f'{n} {kind}' for n, kind in columns.items())}"
            )
        query = f"SELECT count(*) FROM {quote_name(self._table)}"
        (n_items,) = self._one(query)
        # Nothing is fixed in a table that is scanned: what the note says is what was meant.
        metric = (self.read_note() or {}).get("metric", "ip")
        return Facts(int(match.group(1)), metric, n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        self._run(
            f"CREATE TABLE {quote_name(self._table)} ({quote_name(self._id)} "
            f"{'VARCHAR' if strings else 'BIGINT'} PRIMARY KEY, {quote_name(self._embedding)} "
            f"FLOAT[{width}] NOT NULL, {_BIAS} FLOAT, {_METADATA} JSON)"
        )

    def add(self, items: Items) -> None:
        arrow = require("pyarrow", "duckdb")
        strings = self._columns()[self._id] == "VARCHAR"
        check_kind(items.ids, strings=strings, name=self.name)
        n_items, width = items.vectors.shape
        flat = arrow.array(np.ascontiguousarray(items.vectors).ravel())
        metadata: Sequence[Mapping[str, Any]] = items.metadata or [{}] * n_items
        batch = arrow.table(
            {
                "id": items.ids.tolist(),
                "embedding": arrow.FixedSizeListArray.from_arrays(flat, width),
                "bias": arrow.array(
                    [None] * n_items if items.values is None else items.values, arrow.float32()
                ),
                "metadata": arrow.array(
                    [None] * n_items
                    if metadata is None
                    else [json.dumps(dict(m)) for m in metadata],
                    arrow.string(),
                ),
            }
        )
        names = ", ".join(map(quote_name, (self._id, self._embedding, _BIAS, _METADATA)))
        with self._telling():
            self._connection.register("nnnorm_batch", batch)
        self._run(f"INSERT INTO {quote_name(self._table)} ({names}) SELECT * FROM nnnorm_batch")
        self._connection.unregister("nnnorm_batch")

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        column = quote_name(self._id)
        if (self._columns()[self._id] == "VARCHAR") != (ids.dtype.kind == "U"):
            return np.zeros(len(ids), dtype=bool)
        rows = self._run(
            f"SELECT {column} FROM {quote_name(self._table)} WHERE {column} IN (SELECT unnest(?))",
            [ids.tolist()],
        )
        there = {row[0] for row in rows}
        return np.array([value in there for value in ids.tolist()], dtype=bool)

    def delete(self, ids: Ids) -> None:
        self._run(
            f"DELETE FROM {quote_name(self._table)} WHERE {quote_name(self._id)} IN "
            "(SELECT unnest(?))",
            [ids.tolist()],
        )

    def search(self, queries: FloatArray, k: int) -> Found:
        metric: StoreMetric = (self.read_note() or {}).get("metric", "ip")
        return self._search(queries, k, _SCORES[metric], [])

    def search_column(self, queries: FloatArray, k: int, weight: float) -> Found:
        return self._search(queries, k, f"{_SCORES['ip']} - ?::FLOAT * {_BIAS}", [weight])

    def _search(self, queries: FloatArray, k: int, score: str, more: list[float]) -> Found:
        formula = score.format(
            column=quote_name(self._embedding), query=f"?::FLOAT[{queries.shape[1]}]"
        )
        bias = _BIAS if _BIAS in self._columns() else "NULL"
        query = (
            f"SELECT {quote_name(self._id)}, {formula} AS score, {bias} "
            f"FROM {quote_name(self._table)} ORDER BY score DESC LIMIT {k}"
        )
        rows = [self._run(query, [vector, *more]) for vector in queries.tolist()]
        has_values = all(hit[2] is not None for row in rows for hit in row)
        return pad_rows(
            [[hit[0] for hit in row] for row in rows],
            [[hit[1] for hit in row] for row in rows],
            [[hit[2] for hit in row] for row in rows] if has_values else None,
        )

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        names = list(self._columns())
        # Only in a table of ours it is all metadata in one; someone else's is a column like others.
        packed = _METADATA if _BIAS in names else ""
        listed = ", ".join(map(quote_name, names))
        order = quote_name(self._id)
        with self._telling():
            cursor = self._connection.cursor()  # others may use the connection meanwhile
            cursor.execute(f"SELECT {listed} FROM {quote_name(self._table)} ORDER BY {order}")
        while rows := self._fetch(cursor, batch):
            columns = dict(zip(names, zip(*rows, strict=True), strict=True))
            ids = np.array(columns.pop(self._id))
            vectors = np.array(columns.pop(self._embedding), dtype=np.float32)
            values = columns.pop(_BIAS, (None,))
            described = columns.pop(packed, (None,) * len(rows))
            metadata = [
                {**json.loads(entry or "{}"), **_plain(dict(zip(columns, others, strict=True)))}
                for entry, others in zip(
                    described,
                    zip(*columns.values(), strict=True) if columns else [()] * len(rows),
                    strict=True,
                )
            ]
            kept = None if any(v is None for v in values) else np.array(values, dtype=np.float32)
            yield Items(ids, vectors, kept, metadata)

    def read_note(self) -> dict[str, Any] | None:
        query = "SELECT comment FROM duckdb_tables() WHERE table_name = ?"
        row = self._one(query, [self._table])
        return None if row is None else read_json_note(row[0])

    def write_note(self, note: Mapping[str, Any]) -> None:
        text = json.dumps(dict(note)).replace("'", "''")
        self._run(f"COMMENT ON TABLE {quote_name(self._table)} IS '{text}'")

    def close(self) -> None:
        if self._open is not None and self._is_ours:
            self._open.close()
            self._open = None

    def _run(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        connection = self._connection
        with self._telling():
            return connection.execute(query, list(values)).fetchall()

    def _one(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return next(iter(self._run(query, values)), None)

    def _fetch(self, cursor: Any, batch: int) -> list[Any]:
        with self._telling():
            return cursor.fetchmany(batch)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """DuckDB's errors in one sentence."""
        duckdb = require("duckdb", "duckdb")
        try:
            yield
        except duckdb.Error as error:
            raise NNNormError(f"{self.name}: DuckDB says: {first_line(error)}") from error

    def _columns(self) -> dict[str, str]:
        rows = self._run(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? "
            "ORDER BY column_index",
            [self._table],
        )
        return dict(rows)


def _plain(metadata: dict[str, Any]) -> dict[str, Any]:
    """Dates and the like become strings, so that any other engine can keep them."""
    return json.loads(json.dumps(metadata, default=str))
