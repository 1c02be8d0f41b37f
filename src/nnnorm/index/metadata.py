"""What engines share: metadata as columns or fields, and what is read as ids, hits and parts."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError
from nnnorm.index.backend import Hits, Ids, Kind, Metadata

BATCH = 1000  # items read from an engine at once
RESERVED = {"id", "embedding", "bias", "metadata", "key", "rowid", "vector", "distance", "score"}
_MOST_COLUMNS = 50
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
_KINDS: dict[type, Kind] = {bool: "boolean", int: "integer", float: "float", str: "text"}


def check_metadata(metadata: Sequence[Metadata] | None, n_items: int) -> list[dict[str, Any]]:
    """Return plain JSON metadata per item, or raise before anything is written."""
    if metadata is None:
        return [{} for _ in range(n_items)]
    entries = list(metadata)
    if len(entries) != n_items:
        raise NNNormError(
            f"metadata must have one entry per item; got {len(entries):,} for {n_items:,} items"
        )
    checked = []
    for row, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise NNNormError(
                f"metadata of item {row} must be a mapping; got {type(entry).__name__}"
            )
        plain = {}
        for key, value in entry.items():
            if not isinstance(key, str) or not is_text(key) or not key or key[:7] == "nnnorm_":
                raise NNNormError(
                    f"metadata keys must be text that doesn't begin with nnnorm_; item {row} has "
                    f"{key!r:.60}"
                )
            plain[key] = _plain(value, f"metadata {key!r:.60} of item {row}")
        checked.append(plain)
    return checked


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(one, name) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) and is_text(key) for key in value):
        return {key: _plain(one, name) for key, one in value.items()}
    if value is None or isinstance(value, bool):
        return value
    fits = isinstance(value, int) and -(2**63) <= value < 2**63
    fits = fits or (isinstance(value, float) and math.isfinite(value))
    if not fits and not (isinstance(value, str) and is_text(value)):
        raise NNNormError(f"{name} must be a JSON value; got {value!r:.60}")
    return value


def is_text(value: str) -> bool:
    """Whether every engine can hold it: no null characters, no lone surrogates."""
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def choose_columns(metadata: Iterable[Metadata]) -> dict[str, Kind]:
    """Choose the keys that get a column: plain names whose values are of one kind."""
    kinds: dict[str, set[Kind | None]] = {}
    for entry in metadata:
        for name, value in entry.items():
            if value is not None:
                kinds.setdefault(name, set()).add(_KINDS.get(type(value)))
    chosen: dict[str, Kind] = {}
    taken = set(RESERVED)
    for name, found in kinds.items():
        kind = found.pop() if len(found) == 1 else None
        if kind is not None and _NAME.fullmatch(name) and name.lower() not in taken:
            chosen[name] = kind
            taken.add(name.lower())
        if len(chosen) == _MOST_COLUMNS:
            break
    return chosen


def split_columns(entry: Metadata, columns: Mapping[str, Kind]) -> list[Any]:
    """Return the values of the columns, then the rest as JSON, or None if nothing is left."""
    rest, values = dict(entry), []
    for name, kind in columns.items():
        fits = name in rest and _KINDS.get(type(rest[name])) == kind
        values.append(rest.pop(name) if fits else None)
    return [*values, json.dumps(rest) if rest else None]


def join_columns(columns: Mapping[str, Kind], values: Sequence[Any]) -> dict[str, Any]:
    """Undo `split_columns`."""
    *known, rest = values
    entry = {
        name: bool(value) if kind == "boolean" else value
        for (name, kind), value in zip(columns.items(), known, strict=True)
        if value is not None
    }
    return entry | (json.loads(rest) if isinstance(rest, str) else rest or {})


def split_fields(entry: Metadata, is_field: Callable[[str, Any], bool]) -> dict[str, Any]:
    """Return the fields that an engine can hold, and the others as JSON in one more field."""
    known = {name: value for name, value in entry.items() if is_field(name, value)}
    rest = {name: value for name, value in entry.items() if name not in known}
    return known | ({"nnnorm_json": json.dumps(rest)} if rest else {})


def join_fields(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Undo `split_fields`; other fields of nnnorm are left out."""
    known = {name: value for name, value in (fields or {}).items() if name[:7] != "nnnorm_"}
    return known | json.loads((fields or {}).get("nnnorm_json") or "{}")


def make_plain(value: Any) -> Any:
    """Turn a value of an application's own collection into JSON: dates and the like are text."""
    if isinstance(value, Mapping):
        return {str(key): make_plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return [make_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# --- reading ---


def chunks(values: Any, size: int) -> Iterator[Any]:
    """Split something that can be sliced into parts of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def gather(rows: Sequence[Sequence[tuple[Any, float]]]) -> Hits:
    """Make hits of ``(id, score)`` pairs per query."""
    widest = max(map(len, rows), default=0)
    is_text = any(isinstance(own, str) for row in rows for own, _ in row[:1])
    missing = ("" if is_text else -1, -np.inf)
    full = [[*row, *[missing] * (widest - len(row))] for row in rows]
    ids = np.array([own for row in full for own, _ in row], dtype=str if is_text else np.int64)
    scores = np.array([score for row in full for _, score in row], dtype=np.float32)
    return Hits(ids.reshape(len(rows), widest), scores.reshape(len(rows), widest))


def to_ids(ids: Sequence[Any]) -> Ids:
    """Return ids read from an engine as an array of int64 or str."""
    if all(isinstance(own, int) and not isinstance(own, bool) for own in ids):
        return np.array(ids, dtype=np.int64)
    return np.array([str(own) for own in ids], dtype=str).reshape(len(ids))
