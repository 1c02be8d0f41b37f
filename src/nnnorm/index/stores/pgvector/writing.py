"""How a table is made and filled: its columns and indexes, and items as rows of a ``COPY``."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nnnorm.errors import NNNormError
from nnnorm.index.store import Items, StoreMetric, quote_name
from nnnorm.index.stores.database import BIAS, METADATA
from nnnorm.index.stores.pgvector.question import write_vector
from nnnorm.index.stores.pgvector.table import Run, Table
from nnnorm.index.stores.tables import take_columns

# Limits of pgvector.
_WIDEST_INDEX = {"vector": 2000, "halfvec": 4000}


@dataclass(frozen=True)
class Layout:
    """The columns of a new table, and the options of the graph on its vectors, if any."""

    id: str
    id_type: str
    vector: str
    base: str
    width: int
    others: Mapping[str, str]
    graph: Mapping[str, str] | None

    @property
    def is_packed(self) -> bool:
        """Whether a column holds the metadata that has no column, as JSON."""
        return METADATA not in self.others

    def check(self) -> None:
        """Raise where there are more dimensions than a graph of pgvector takes."""
        if self.graph is not None and self.width > _WIDEST_INDEX[self.base]:
            raise NNNormError(
                f"the hnsw index of pgvector takes at most {_WIDEST_INDEX[self.base]} dimensions, "
                f"and these embeddings need {self.width} with the correction; use kind='flat', or "
                "fewer dimensions"
            )

    def create_table(self, table: str) -> str:
        """Return the statement that creates a table, whose quoted name is given.

        Examples
        --------
        >>> Layout("id", "bigint", "clip", "vector", 3, {"by": "text"}, None).create_table("a")
        'CREATE TABLE a ("id" bigint PRIMARY KEY, "clip" vector(3) NOT NULL, nnnorm_bias real, ...
        """
        columns = [
            f"{quote_name(self.id)} {self.id_type} PRIMARY KEY",
            f"{quote_name(self.vector)} {self.base}({self.width:d}) NOT NULL",
            f"{BIAS} real",
            *(f"{quote_name(name)} {kind}" for name, kind in self.others.items()),
            *([f"{METADATA} jsonb"] if self.is_packed else []),
        ]
        return f"CREATE TABLE {table} ({', '.join(columns)})"

    def create_graph(self, table: str, metric: StoreMetric) -> str:
        """Return the statement that creates the graph."""
        given = ", ".join(f"{name} = {value}" for name, value in (self.graph or {}).items())
        return (
            f"CREATE INDEX ON {table} USING hnsw ({quote_name(self.vector)} "
            f"{self.base}_{metric}_ops)" + (f" WITH ({given})" if given else "")
        )


def copy_indexes(run: Run, source: str, target: str, columns: set[str]) -> None:
    """Create the indexes of a table on these columns for another one too, as they are there.

    Examples
    --------
    >>> def run(statement, values=None):
    ...     if statement.startswith("CREATE"):
    ...         print(statement)
    ...     return [("CREATE INDEX years ON photos USING btree (year)", ["year"])]
    >>> copy_indexes(run, "photos", "copies", {"year"})
    CREATE INDEX ON copies USING btree (year)
    """
    rows = run(
        "SELECT pg_get_indexdef(i.indexrelid), array_agg(a.attname::text) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) WHERE "
        "i.indrelid = to_regclass(%s) AND NOT i.indisprimary AND i.indexprs IS NULL AND "
        "i.indpred IS NULL GROUP BY i.indexrelid ORDER BY i.indexrelid",
        [source],
    )
    for definition, names in rows:
        if set(names) <= columns:
            unique = "UNIQUE " if definition.startswith("CREATE UNIQUE") else ""
            using = definition[definition.index(" USING ") :].replace("%", "%%")
            run(f"CREATE {unique}INDEX ON {target}{using}")


def copy_rights(run: Run, source: str, target: str) -> None:
    """Give roles the rights on one table that they have on another one.

    Examples
    --------
    >>> def run(statement, values=None):
    ...     if statement.startswith("GRANT"):
    ...         print(statement)
    ...     return [("reader", "SELECT")]
    >>> copy_rights(run, "photos", "copies")
    GRANT SELECT ON copies TO reader
    """
    for grantee, right in run(
        "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, "
        "privilege_type FROM pg_class c, aclexplode(c.relacl) "
        "WHERE c.oid = to_regclass(%s) AND grantee <> c.relowner",
        [source],
    ):
        run(f"GRANT {right} ON {target} TO {grantee}")


def columns_to_write(table: Table, items: Items) -> list[str]:
    """Return the columns that are written: without metadata, those of the application stay.

    Examples
    --------
    >>> import numpy as np
    >>> table = Table("id", "bigint", "clip", "vector(2)", {}, True, True, None, None, None)
    >>> columns_to_write(table, Items(np.array([7]), np.float32([[0.5, 1.0]])))
    ['id', 'clip', 'nnnorm_bias', 'metadata']
    """
    names = [table.id, table.vector]
    if table.has_bias or items.values is not None:
        names.append(BIAS)
    if table.is_packed or items.metadata is not None:
        names += table.others
    return [*names, METADATA] if table.is_packed else names


def rows_to_write(table: Table, items: Items, name: str) -> Iterator[list[Any]]:
    """Return the values of `columns_to_write` for each item; `name` is the table in messages.

    Metadata that have no column are refused here, before anything is sent.

    Examples
    --------
    >>> import numpy as np
    >>> table = Table("id", "bigint", "clip", "vector(2)", {}, True, True, None, None, None)
    >>> items = Items(np.array([7]), np.float32([[0.5, 1.0]]), np.float32([0.25]))
    >>> list(rows_to_write(table, items, "pgvector table photos"))
    [[7, '[0.5, 1.0]', 0.25, None]]
    """
    names = columns_to_write(table, items)
    rest = take_columns(items, table.kinds, is_packed=table.is_packed, name=name)
    as_json = [kind in ("json", "jsonb") for kind in table.others.values()]
    n_first = 2 + (BIAS in names)
    first = zip(
        items.ids.tolist(), map(write_vector, items.vectors), items.value_list(), strict=True
    )

    def write(row: tuple[Any, ...], more: list[Any]) -> list[Any]:
        known = [
            json.dumps(value) if is_json and value is not None else value
            for value, is_json in zip(more, [*as_json, False], strict=True)
        ]
        return [*row[:n_first], *known][: len(names)]

    return map(write, first, rest)
