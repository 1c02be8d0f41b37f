"""What engines with tables share: native columns, two generations side by side, one connection.

A new table has one column per key whose values are all of one kind. What has no column, or does not
fit into it, is in one more column as JSON, so that every entry comes back as it was given.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.store import FloatArray, Ids, Items, Metadata
from nnnorm.index.stores.database import BIAS, METADATA, DatabaseStore

_T = TypeVar("_T", bound="TableStore")
_F = TypeVar("_F")

# "other" is a type that nnnorm never chooses, in a table of the application.
Kind = Literal["integer", "float", "boolean", "text", "other"]
# The other generation of a table, or its former bias values where vectors stay as they are.
OTHER = "_nnnorm_other"
# More keys than this are those of free-form documents rather than columns.
_MOST = 64
_TAKEN = {"id", "embedding", "vector", BIAS, METADATA}


class TableStore(DatabaseStore):
    """A table; the other generation is a second table of nearly the same name.

    What is known about the table is read once, and again after an error of the engine. Threads
    share one connection, and take turns.
    """

    noun = "table"
    _known: Any = None

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self._lock = threading.RLock()

    def adopt(
        self, batches: Iterable[tuple[Ids, FloatArray]], default: float, note: Mapping[str, Any]
    ) -> None:
        """Add the column of the bias to a table of the application, with values and the note.

        Rows that the application inserts later have the bias `default` until they get their own.
        For stores of the way "column".
        """
        raise NotImplementedError

    def other(self: _T) -> _T:
        twin = self._twin()
        twin._forget()
        return twin

    @property
    def actual(self) -> str:
        """Name of the engine's own table."""
        return self.collection + OTHER if self._is_other else self.collection

    def _check_former(self, other: "TableStore", found: _F | None) -> _F:
        """Return what was found of the other generation, or raise where it can't be served."""
        if found is None:
            raise NNNormError(
                f"{self.name} has no former generation; a refresh keeps one, and a build, an "
                "export or an add does not"
            )
        if (other.read_note() or {}).get("state") == "part":
            raise NNNormError(
                f"beside {self.name} there is only a part of a generation, from a refresh that was "
                "interrupted; run that refresh again"
            )
        return found

    def _forget(self) -> None:
        """Look everything up again when it is next needed."""
        self._known = None

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            with super()._translating():
                yield
        except NNNormError:
            self._forget()
            raise


def choose_columns(
    metadata: Iterable[Metadata],
    *,
    at_most: int = _MOST,
    allows: Callable[[str], bool] = lambda name: True,
) -> dict[str, Kind]:
    """Choose the columns of a new table from the metadata of some items.

    Names that differ in case only are one column to most engines, so the first one has it.

    Examples
    --------
    >>> choose_columns([{"year": 1999, "tags": ["a"]}, {"year": None, "title": "Sea", "id": 7}])
    {'year': 'integer', 'title': 'text'}
    >>> choose_columns([{"size": 1}, {"size": 1.5}, {"size": 2}, {"mixed": 1}, {"mixed": "one"}])
    {'size': 'float'}
    """
    kinds: dict[str, set[Kind]] = {}
    for entry in metadata:
        for name, value in entry.items():
            if value is not None:
                kinds.setdefault(name, set()).add(_kind_of(value))
    chosen: dict[str, Kind] = {}
    taken = set(_TAKEN)
    for name, found in kinds.items():
        kind: Kind = "float" if found == {"integer", "float"} else min(found)
        is_one = len(found) == 1 or kind == "float"
        if is_one and kind != "other" and name and name.lower() not in taken and allows(name):
            chosen[name] = kind
            taken.add(name.lower())
        if len(chosen) == at_most:
            break
    return chosen


def split_entry(
    entry: Metadata, columns: Mapping[str, Kind], *, is_packed: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Split the metadata of an item into the values of columns, and the rest.

    In a table that keeps the rest, a key without a value is part of it, which tells it from a key
    that is not there.

    Examples
    --------
    >>> split_entry({"year": 1999, "size": 2}, {"year": "integer", "size": "float"})
    ([1999, 2.0], {})
    >>> split_entry({"year": "unknown", "by": "me"}, {"year": "integer"})
    ([None], {'year': 'unknown', 'by': 'me'})
    """
    rest = dict(entry)
    values = []
    for name, kind in columns.items():
        value = rest.get(name)
        if value is not None and _fits(value, kind):
            values.append(float(value) if kind == "float" else value)
            del rest[name]
        else:
            values.append(None)
            if value is None and not is_packed:
                rest.pop(name, None)
    return values, rest


def join_entry(names: Iterable[str], values: Iterable[Any], rest: Any) -> dict[str, Any]:
    """Put the metadata of an item together again; `rest` is JSON, a mapping or None.

    Examples
    --------
    >>> join_entry(["year", "title"], [1999, None], '{"by": "me"}')
    {'year': 1999, 'by': 'me'}
    """
    known = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    others = json.loads(rest) if isinstance(rest, str) else rest
    return {**known, **(others or {})}


def dump_rest(rest: Mapping[str, Any]) -> str | None:
    """Write what has no column as JSON, or None where nothing is left.

    Examples
    --------
    >>> dump_rest({"tags": ["a"]}), dump_rest({})
    ('{"tags": ["a"]}', None)
    """
    return json.dumps(rest) if rest else None


def check_condition(filter: Any, engine: str) -> str:
    """Return a filter as a condition in parentheses, or raise unless it is text.

    Examples
    --------
    >>> check_condition("year > 1999", "duckdb")
    '(year > 1999)'
    >>> check_condition({"year": 1999}, "duckdb")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a filter of duckdb is a condition in SQL, such as ...
    """
    if not isinstance(filter, str) or not filter.strip():
        raise NNNormError(
            f'a filter of {engine} is a condition in SQL, such as "year > 1999"; got {filter!r}'
        )
    return f"({filter})"


def check_metric(metric: str, norms: Sequence[float | None], name: str) -> Any:
    """Return the metric of a table without an index: the given one, or any for unit vectors.

    `norms` are the smallest and the largest one of some vectors, None where there are none.

    Vectors of unit norm have one order by all three metrics. For others the order depends on the
    metric that the application uses in its queries, which only its author knows.

    Examples
    --------
    >>> check_metric("", (0.999, 1.0), "duckdb table photos"), check_metric("l2", (1, 9), "photos")
    ('ip', 'l2')
    >>> check_metric("", (0.5, 2.0), "duckdb table photos")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: duckdb table photos does not state its metric, ...
    """
    low, high = norms
    if metric or low is None or high is None:
        return metric or "ip"
    if max(abs(low - 1), abs(high - 1)) > 0.01:
        raise NNNormError(
            f"{name} does not state its metric, and its vectors have norms such as {low:.3g} and "
            f"{high:.3g}, so that each metric gives another order; name the one that your queries "
            "use with metric=ip, metric=cosine or metric=l2"
        )
    return "ip"


def take_columns(
    items: Items, columns: Mapping[str, Kind], *, is_packed: bool = True, name: str = ""
) -> list[list[Any]]:
    """Return the values of the columns per item, and the rest as JSON in the last place.

    Raises where there is a rest, and the table `name` keeps none.

    Examples
    --------
    >>> rows = [{"year": 1999}, {"by": "me"}]
    >>> take_columns(Items(np.arange(2), np.eye(2), None, rows), {"year": "integer"})
    [[1999, None], [None, '{"by": "me"}']]
    """
    split = [split_entry(entry, columns, is_packed=is_packed) for entry in items.metadata_list()]
    for own, (_, rest) in zip(items.ids.tolist(), split, strict=True):
        if rest and not is_packed:
            raise NNNormError(
                f"{name} has no column for some metadata of the item {own!r}: {json.dumps(rest)}; "
                "add the columns first, or leave these out"
            )
    return [[*values, dump_rest(rest)] for values, rest in split]


def to_arrow_table(
    items: Items,
    columns: Mapping[str, Kind],
    *,
    id: str,
    vector: str,
    extra: str,
    is_packed: bool = True,
    name: str = "",
) -> Any:
    """Make an Arrow table of items; columns of kind "other" hold JSON, as does that of the rest.

    `extra` is the extra of nnnorm that installs pyarrow; for the others see `take_columns`.

    Examples
    --------
    >>> items = Items(np.array([7]), np.float32([[0.5, 1.0]]), None, [{"year": 1999, "by": "me"}])
    >>> made = to_arrow_table(items, {"year": "integer"}, id="id", vector="clip", extra="duckdb")
    >>> made.drop_columns(["nnnorm_bias"]).to_pylist()
    [{'id': 7, 'clip': [0.5, 1.0], 'year': 1999, 'metadata': '{"by": "me"}'}]
    """
    arrow = require("pyarrow", extra)
    types = {"integer": arrow.int64(), "float": arrow.float64(), "boolean": arrow.bool_()}
    rows = take_columns(items, columns, is_packed=is_packed, name=name)
    flat = arrow.array(np.ascontiguousarray(items.vectors).ravel())
    made = {
        id: arrow.array(items.ids.tolist()),
        vector: arrow.FixedSizeListArray.from_arrays(flat, items.vectors.shape[1]),
        BIAS: arrow.array(items.value_list(), arrow.float32()),
    }
    for place, (column, kind) in enumerate(columns.items()):
        values = [row[place] for row in rows]
        if kind == "other":
            values = [None if value is None else json.dumps(value) for value in values]
        made[column] = arrow.array(values, types.get(kind, arrow.string()))
    if is_packed:
        made[METADATA] = arrow.array([row[-1] for row in rows], arrow.string())
    return arrow.table(made)


def _kind_of(value: Any) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    kinds: dict[type, Kind] = {int: "integer", float: "float", str: "text"}
    kind = kinds.get(type(value), "other")
    return kind if kind == "other" or _fits(value, kind) else "other"


def _fits(value: Any, kind: Kind) -> bool:
    if kind == "other":
        return True
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and -(2**63) <= value < 2**63
    if kind == "float":
        return isinstance(value, float) or (isinstance(value, int) and abs(value) <= 2**53)
    return isinstance(value, str) and "\0" not in value
