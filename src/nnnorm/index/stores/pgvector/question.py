"""One search of a table as SQL, through either kind of connection, and what comes back of it.

Each row that is found brings the mark of the table along, so that an answer shows which generation
it is of without another statement.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from nnnorm.index.store import FloatArray, Found, StoreMetric, gather_hits, quote_name
from nnnorm.index.stores.database import BIAS
from nnnorm.index.stores.pgvector.connection import tuple_rows
from nnnorm.index.stores.pgvector.table import OPERATORS, Table

Row = tuple[Any, ...]
SCAN_ALL = "SET LOCAL enable_indexscan = off"
# The number of a table, and the transactions that last gave it its name and last commented on it.
# The number alone would not do, because two exchanges bring the same one back; nor would the
# transactions, because one may write to both generations. Each is a query of its own, which the
# server answers once per search; as one with a join it takes longer to plan.
_MARK = (
    "to_regclass(%s)::oid::bigint, "
    "(SELECT xmin::text::bigint FROM pg_class WHERE oid = to_regclass(%s)), "
    "(SELECT xmin::text::bigint FROM pg_description WHERE objoid = to_regclass(%s) AND "
    "objsubid = 0 AND classoid = 'pg_class'::regclass)"
)
_N_IN_MARK = _MARK.count("%s")
ASK_MARK = f"SELECT {_MARK}"
_SCORES = {"ip": lambda d: -d, "cosine": lambda d: 1 - d, "l2": lambda d: -(d**2)}
_WIDEST_BEAM = 1000  # a limit of pgvector


class Plan(NamedTuple):
    """What a search has to know about a table."""

    table: Table
    metric: StoreMetric
    version: int  # of pgvector, where there is a graph


@dataclass(frozen=True)
class Question:
    """A search for the k best rows, without the queries.

    Attributes
    ----------
    plan : Plan
    table : str
        The quoted name of the table.
    k : int
    weight : float or None
        Of the column of the bias; None for a search by the distance alone.
    condition : str or None
        Which rows may come back, in SQL.
    with_bias : bool
        Whether the bias of each row comes back.
    ef : int
        Breadth of the search of a graph, at least.
    """

    plan: Plan
    table: str
    k: int
    weight: float | None
    condition: str | None
    with_bias: bool
    ef: int

    @property
    def is_graph(self) -> bool:
        """Whether a graph is searched."""
        return self.plan.table.graph is not None

    @cached_property
    def statement(self) -> str:
        """The search for one query: ids, distances, bias and mark of the nearest rows.

        The number of rows is written out: as a parameter it would make the server plan each search
        anew. What is the same for all rows is added to the nearest ones only.
        """
        table = self.plan.table
        vector, query = quote_name(table.vector), f"%s::{table.base}"
        if self.weight is None:
            asked = f"{vector} {OPERATORS[self.plan.metric]} {query}"
        else:
            asked = f"({vector} <#> {query}) + {float(self.weight)!r}::float8 * {BIAS}"
        where = "" if self.condition is None else f"WHERE {self.condition} "
        bias = f", {BIAS}" if self.with_bias and table.has_bias else ""
        return (
            f"SELECT found.*{'' if bias else ', NULL'}, {_MARK} FROM (SELECT "
            f"{quote_name(table.id)}, {asked} AS distance{bias} FROM {self.table} {where}"
            f"ORDER BY distance LIMIT {self.k:d}) found"
        )

    def values(self, query: FloatArray) -> list[str]:
        """Return the parameters of the statement: those of the mark come first in its text."""
        return [*mark_values(self.table), write_vector(query)]

    @property
    def beam(self) -> int:
        """Breadth of the search of a graph, which limits the number of rows that it returns."""
        return min(max(self.ef, self.k), _WIDEST_BEAM)

    @property
    def settings(self) -> list[str]:
        """What is set before a search of the graph."""
        settings = [f"hnsw.ef_search = {self.beam:d}"]
        if self.plan.version >= 8:
            settings.append("hnsw.iterative_scan = strict_order")
        return settings

    def is_short(self, found: list[Row]) -> bool:
        """Whether the graph may have given up: it does after 20,000 rows that a filter refuses."""
        return self.condition is not None and len(found) < self.k and self.is_graph

    def gather(self, answers: list[list[Row]], mark: object) -> Found:
        """Turn the rows of each query into arrays."""
        rows = [
            [(plain_id(i), d, m) for i, d, m, *_ in found if d is not None] for found in answers
        ]
        score = _SCORES[self.plan.metric if self.weight is None else "ip"]
        return replace(gather_hits(rows, score), mark=mark)

    async def ask(self, client: Any, queries: FloatArray) -> Found:
        """Search through an asynchronous connection, in the transaction that it is in."""

        async def run(statement: str, values: list[str] | None = None) -> list[Row]:
            async with client.cursor(row_factory=tuple_rows()) as cursor:
                await cursor.execute(statement, values)
                found: list[Row] = await cursor.fetchall() if values else []
            return found

        answers = []
        for setting in self.settings if self.is_graph else ():
            await run(f"SET LOCAL {setting}")
        for query in queries:
            values = self.values(query)
            found = await run(self.statement, values)
            if self.is_short(found):
                async with client.transaction(force_rollback=True):
                    await run(SCAN_ALL)
                    found = await run(self.statement, values)
            answers.append(found)
        mark = mark_of(answers)
        if mark is None:
            (mark,) = await run(ASK_MARK, mark_values(self.table))
        return self.gather(answers, mark)


def mark_of(answers: list[list[Row]]) -> Row | None:
    """Return the mark in the last answer, which is that of all if it has not changed, if any.

    Examples
    --------
    >>> mark_of([[(7, 0.5, None, 16384, 740, 741)]])
    (16384, 740, 741)
    """
    return answers[-1][0][3:] if answers and answers[-1] else None


def mark_values(table: str) -> list[str]:
    """Return the parameters of `ASK_MARK` for a quoted table.

    Examples
    --------
    >>> mark_values("photos")
    ['photos', 'photos', 'photos']
    """
    return [table] * _N_IN_MARK


def write_vector(vector: FloatArray) -> str:
    """Write a vector as pgvector reads it.

    Examples
    --------
    >>> import numpy as np
    >>> write_vector(np.float32([1, 0.5]))
    '[1.0, 0.5]'
    """
    return str(vector.tolist())


def plain_id(own: Any) -> int | str:
    """Return an id as a number or as text, of which a UUID is one.

    Examples
    --------
    >>> plain_id(7), plain_id("a")
    (7, 'a')
    """
    return own if isinstance(own, int) else str(own)
