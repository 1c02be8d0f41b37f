"""What the system catalogue of PostgreSQL says of a table: columns, metric, index, and comment.

Of a table that nnnorm created or adopted, the comment names the columns; of others the columns of
ids and vectors are the primary key and the only column of vectors, or those that are asked for.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nnnorm.errors import NNNormError
from nnnorm.index.store import StoreMetric, quote_name
from nnnorm.index.stores.database import BIAS, METADATA
from nnnorm.index.stores.tables import Kind, check_metric, join_entry

# Runs a statement with its values and returns the rows.
Run = Callable[..., list[tuple[Any, ...]]]
# The operator of each metric: indexes only sort upwards, so `<#>` is minus the inner product.
OPERATORS: dict[StoreMetric, str] = {"ip": "<#>", "cosine": "<=>", "l2": "<->"}
WHOLE = ("smallint", "integer", "bigint")
TYPES: dict[Kind, str] = {
    "integer": "bigint",
    "float": "double precision",
    "boolean": "boolean",
    "text": "text",
}
_KINDS: dict[str, Kind] = {name: kind for kind, name in TYPES.items()}
_CLASSES: dict[str, StoreMetric] = {
    f"{kind}_{metric}_ops": metric for kind in ("vector", "halfvec") for metric in OPERATORS
}


@dataclass(frozen=True)
class Table:
    """The columns of a table, and what its comment and its index say."""

    id: str
    id_type: str
    vector: str  # empty for the former values of a table whose vectors stay as they are
    vector_type: str
    others: dict[str, str]  # the metadata: names and types
    has_bias: bool
    is_packed: bool  # whether a column holds the metadata that has no column, as JSON
    remark: dict[str, Any] | None
    indexed: StoreMetric | None
    graph: dict[str, str] | None  # options of the index, where there is one

    @property
    def base(self) -> str:
        """Type of the vectors without their width."""
        return self.vector_type.partition("(")[0]

    @property
    def kinds(self) -> dict[str, Kind]:
        """Kinds of the columns of metadata."""
        return {name: _KINDS.get(kind, "other") for name, kind in self.others.items()}

    def select_metadata(self) -> str:
        """Name the metadata in a SELECT: native types as they are, others as JSON (dates too)."""
        names = [
            quote_name(name) if kind != "other" else f"to_jsonb({quote_name(name)})"
            for name, kind in self.kinds.items()
        ]
        return ", ".join([*names, METADATA if self.is_packed else "NULL"])

    def join_metadata(self, values: Iterable[Any]) -> dict[str, Any]:
        """Put the metadata of a row together; a table of the application keeps empty fields."""
        *known, rest = values
        if not self.is_packed:
            return dict(zip(self.others, known, strict=True))
        return join_entry(self.others, known, rest)


@dataclass(frozen=True)
class Catalogue:
    """Asks the system catalogue about one table.

    Attributes
    ----------
    run : callable
        Runs a statement.
    table : str
        The quoted name of the table.
    name : str
        What the table is called in messages.
    """

    run: Run
    table: str
    name: str

    def find(self, id: str, embedding: str, *, may_be_values: bool) -> Table | None:
        """Describe the table, or return None where there is none in this snapshot.

        `id` and `embedding` are the columns that are asked for, empty for the usual ones. A table
        of an id and a bias is that of former values, where there may be such a table.
        """
        columns: dict[str, str] = dict(
            self.run(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE "
                "attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [self.table],
            )
        )
        if not columns:
            return None
        remark = self.read_remark()
        own, kind = next(iter(columns.items()))
        if may_be_values and list(columns) == [own, BIAS]:
            return Table(own, kind, "", "", {}, True, False, remark, None, None)
        own, vector = self._choose(columns, remark or {}, id, embedding)
        rows = self.run(
            "SELECT c.opcname, coalesce(r.reloptions, '{}') FROM pg_index i "
            "JOIN pg_opclass c ON c.oid = i.indclass[0] JOIN pg_class r ON r.oid = i.indexrelid "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
            "WHERE i.indrelid = to_regclass(%s) AND a.attname = %s ORDER BY i.indexrelid",
            [self.table, vector],
        )
        indexes = [(_CLASSES[name], given) for name, given in rows if name in _CLASSES]
        is_packed = remark is not None and remark.get("packed", True) and METADATA in columns
        taken = {own, vector, *((METADATA,) if is_packed else ())}
        has_bias = remark is not None and BIAS in columns
        if has_bias:
            taken.add(BIAS)
        return Table(
            own,
            columns[own],
            vector,
            columns[vector],
            {name: kind for name, kind in columns.items() if name not in taken},
            has_bias,
            is_packed,
            remark,
            indexes[0][0] if indexes else None,
            dict(one.split("=", 1) for one in indexes[0][1]) if indexes else None,
        )

    def is_hidden(self) -> bool:
        """Whether there is a table of this name that the snapshot does not show."""
        return self.run("SELECT to_regclass(%s)", [self.table])[0][0] is not None

    def is_renamed(self, name: str) -> bool:
        """Whether the table that has this name now had another one in the snapshot."""
        rows = self.run(
            "SELECT relname = %s FROM pg_class WHERE oid = to_regclass(%s)", [name, self.table]
        )
        return bool(rows) and not rows[0][0]

    def read_remark(self) -> dict[str, Any] | None:
        """Return metric and note in the comment of the table; None for any other comment."""
        rows = self.run("SELECT obj_description(to_regclass(%s), 'pg_class')", [self.table])
        try:
            remark = json.loads(rows[0][0] or "")["nnnorm"]
        except (ValueError, TypeError, KeyError):
            return None
        return remark if isinstance(remark, dict) and remark.get("metric") in OPERATORS else None

    def find_width(self, table: Table) -> int:
        """Return the width of the vectors; 0 for an empty table that does not say."""
        if "(" in table.vector_type:
            return int(table.vector_type.partition("(")[2].rstrip(")"))
        dims = f"vector_dims({quote_name(table.vector)})"
        rows = self.run(f"SELECT DISTINCT {dims} FROM {self.table} LIMIT 2")
        if len(rows) > 1:
            raise NNNormError(f"{self.name} holds vectors of several widths; expected one")
        return int(rows[0][0]) if rows else 0

    def find_metric(self, table: Table, asked: StoreMetric | str) -> StoreMetric:
        """Return the metric of the index, of the comment where there is none, or the given one."""
        stated = table.indexed or (table.remark or {}).get("metric")
        if stated and asked and stated != asked:
            raise NNNormError(
                f"{self.name} compares by {stated}, as its index or its comment says; got "
                f"metric={asked}"
            )
        if stated:
            known: StoreMetric = stated
            return known
        norm = f"vector_norm({quote_name(table.vector)}::vector)"
        rows = self.run(
            f"SELECT min({norm}), max({norm}) FROM (SELECT * FROM {self.table} LIMIT 1000) t"
        )
        return check_metric(asked, rows[0], self.name)

    def _choose(
        self, columns: dict[str, str], remark: dict[str, Any], id: str, embedding: str
    ) -> tuple[str, str]:
        """Choose the columns of ids and vectors: those asked for or noted, or the only ones."""
        keys = self.run(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND "
            "a.attnum = ANY(i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisprimary",
            [self.table],
        )
        vectors = [name for name, kind in columns.items() if kind.startswith(("vector", "halfvec"))]
        noted = [str(remark.get(what, "")) for what in ("id", "embedding")]
        asked = [
            given or (name if name in columns else "")
            for given, name in zip((id, embedding), noted, strict=True)
        ]
        own = self._pick("id", asked[0], list(columns), [key for (key,) in keys])
        vector = self._pick("embedding", asked[1], vectors, vectors)
        kind = columns[own]
        if kind not in (*WHOLE, "text", "uuid") and not kind.startswith("character varying"):
            raise NNNormError(
                f"the ids of {self.name} must be whole numbers, text or uuid; got {kind}"
            )
        return own, vector

    def _pick(self, what: str, asked: str, allowed: list[str], usual: list[str]) -> str:
        if asked and asked not in allowed:
            raise NNNormError(
                f"{self.name} has no {what} column {asked!r}; it has {', '.join(allowed) or 'none'}"
            )
        if not asked and len(usual) != 1:
            kind = "primary key of one column" if what == "id" else "one column of type vector"
            raise NNNormError(
                f"{self.name} must have a {kind}; it has {', '.join(usual) or 'none'}; name the "
                f"column with {what}="
            )
        return asked or usual[0]
