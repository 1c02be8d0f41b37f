"""DuckDB (`pip install 'nnnorm[duckdb]'`): exact search in one file, in plain SQL.

SELECT id, array_inner_product(embedding, $q) - $alpha * bias AS score
FROM photos ORDER BY score DESC LIMIT 10
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from nnnorm.errors import require
from nnnorm.files import check_regular
from nnnorm.index.backend import FloatArray, Pairs
from nnnorm.index.sql import SqlBackend, TableOptions, quote_name


class DuckdbBackend(SqlBackend):
    """An index in a DuckDB file."""

    engine, options_type = "duckdb", TableOptions
    mode = "column"
    types = "BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR"

    def _connect(self) -> Any:
        if self.address:
            check_regular(self.address)
        return require("duckdb", "duckdb").connect(self.address or ":memory:")

    def _vector_type(self, width: int) -> str:
        return f"FLOAT[{width}]"

    def _insert(self, version: str, names: list[str], rows: Iterable[list[Any]]) -> None:
        arrow = require("pyarrow", "duckdb")
        columns: list[Any] = list(zip(*rows, strict=True))
        vectors = np.stack(columns[1]).astype(np.float32)
        flat = arrow.array(vectors.ravel())
        columns[1] = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        made = arrow.table([arrow.array(values) for values in columns], names=names)
        self.client.register("nnnorm_new", made)
        listed = ", ".join(map(quote_name, names))
        self.run(f"INSERT INTO {self._table(version)} ({listed}) SELECT {listed} FROM nnnorm_new")
        self.client.unregister("nnnorm_new")

    def _select(self, version: str, vector: FloatArray, k: int, where: str, weight: float) -> Pairs:
        score = f"array_inner_product(embedding, $1::FLOAT[{len(vector)}])"
        score += f" - {float(weight)!r} * bias" if weight else ""
        return self._execute(
            f"SELECT id, {score} AS nnnorm_score FROM {self._table(version)} {where} "
            f"ORDER BY nnnorm_score DESC LIMIT {k}",
            [vector.tolist()],
        )

    def _has_table(self, name: str) -> bool:
        tables = "information_schema.tables WHERE lower(table_name) = lower(?)"
        return bool(self.run(f"SELECT 1 FROM {tables}", name.rpartition(".")[2]))
