"""Hostile ids, keys and values are stored unchanged, or rejected before a write.

`NNNORM_EXAMPLES=200` tries 200 collections per engine.
"""

import contextlib
import enum
import functools
import itertools
import json
import os
import re
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import nnnorm
from nnnorm.index import build_index, open_backend
from nnnorm.index.backend import Layout
from tests.index.engines import ENGINES, build, parametrize, world

EXAMPLES = int(os.environ.get("NNNORM_EXAMPLES", "12"))
NAMES = [
    "x'] or id != '' or id in ['x",
    "O'Neil",
    'quo"te',
    "back\\slash\\",
    "new\nline",
    "tab\t, \r and  spaces ",
    "%s ? {ids} $1 %% ; DROP TABLE photos --",
    "größe 写真 \U0001f4f7 \u202e \ufeff",
    "\x1b]0;title\x07\x7f",
    "7",
    "-1",
    "None",
    "nan",
    "\\N",
    "00000000-0000-4000-8000-000000000000",
    str(uuid5(NAMESPACE_URL, "nnnorm:7")),  # the point of "7" in Qdrant
    "c" * 1000,
]
# Columns of our tables, of their databases, and fields of engines.
KEYS = [
    *NAMES,
    *("id", "embedding", "bias", "metadata", "key", "norm", "vector", "rowid", "oid", "score"),
    *(
        "xmin",
        "ctid",
        "tableoid",
        "_rowid",
        "_distance",
        "distance",
        "k",
        "$meta",
        "count(*)",
        "pk",
    ),
    *("select", "Select", "order", "year", "YEAR", "chroma:document", "#document", "$and", "a.b"),
]
text = st.one_of(st.sampled_from(NAMES), st.text(max_size=8), st.text("\0a\ud800'\\", max_size=4))
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63 - 1, -(2**63), 2**63, 2**70, 2**53 + 1]),
    st.floats(),
    text,
)
ODD = [
    *(b"b", 1j, {1}, object, range(2), np.array([1]), np.float32(0.1), np.int64(7), np.int64(-1)),
    *(np.uint64(2**63), np.float64("nan"), np.bool_(True), np.str_("s"), np.bytes_(b"b")),
    *(np.datetime64("2026-01-01", "ns"), np.timedelta64(3, "ns"), np.longdouble(1), (1, "a")),
    *(enum.IntEnum("Whole", "A").A, enum.StrEnum("Word", "A").A, type("Real", (float,), {})(1.5)),
    *(float("nan"), float("inf"), -0.0, 5e-324, 2**63, 2**63 - 1, 2**70, -(2**63), -(2**63) - 1),
    123456789.123456789,
    *("nul \0", "\ud800", "", "x" * 70_000, [], {}, [[[]]], {"a": {"b": [1.5]}}, {1: 1}, {"\0": 1}),
]
DEEP = [functools.reduce(lambda part, _: [part], range(depth), []) for depth in (90, 2000)]
ENTRIES = [
    {},
    {"text": "Sea", "whole": 7, "number": 2.5, "yes": True, "no": False, "none": None},
    {"text": 'it\'s a "quote"\n', "whole": -(2**62), "number": 2.0, "yes": "another kind"},
    {"whole": "another kind", "number": 2, "Text": "other case", "with space": 1},
    *({"a": value} for value in (*ODD, *DEEP)),
    *({key: 1} for key in ("", 1, None, "\0", "\udfff", "nnnorm_id", "nnnorm_json")),
    *(["a"], "text", None, 7),
]
values = st.recursive(
    plain | st.sampled_from(ODD),
    lambda part: st.lists(part, max_size=2) | st.dictionaries(text, part, max_size=2),
)
keys = st.one_of(st.sampled_from(KEYS), text)
items = st.dictionaries(text, st.dictionaries(keys, values, max_size=4), min_size=2, max_size=6)


def is_text(value):
    return "\0" not in value and not any("\ud800" <= one <= "\udfff" for one in value)


def read(value):
    """What is stored of a value; raises ValueError if that would be another value."""
    if isinstance(value, np.generic) and not isinstance(value, (np.timedelta64, np.datetime64)):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [read(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {read(key): read(one) for key, one in value.items()}
    is_whole = isinstance(value, int) and -(2**63) <= value < 2**63
    is_float = isinstance(value, float) and np.isfinite(value)
    if value is None or is_whole or is_float or (isinstance(value, str) and is_text(value)):
        return value
    raise ValueError(value)


def read_entries(entries):
    """What is stored of ids and metadata, or None if they are to be rejected."""
    try:
        known = {own: read(entry) for own, entry in entries.items()}
    except (ValueError, RecursionError):
        return None
    names = [name for entry in known.values() if isinstance(entry, dict) for name in entry]
    is_good = all(isinstance(entry, dict) for entry in known.values())
    is_good = is_good and all(name and not name.startswith("nnnorm_") for name in names)
    return (
        known if is_good and all(0 < len(own) <= 1000 and is_text(own) for own in known) else None
    )


def put(write, entries):
    """Write items, or see one sentence about them; returns what should be there now."""
    given = {"ids": list(entries), "metadata": list(entries.values())}
    known, rows = read_entries(entries), world().items[: len(entries)]
    if known is not None:
        return write(rows, **given), known
    with pytest.raises(nnnorm.NNNormError, match=r"an id must be|metadata") as caught:
        write(rows, **given)
    assert "\n" not in str(caught.value)
    return None, {}


def shown(entries):
    """2 isn't 2.0, and 1 isn't True; but 0.0 is -0.0, which SQLite doesn't keep."""
    texts = {own: json.dumps(entry, sort_keys=True) for own, entry in entries.items()}
    return {own: re.sub(r"-0\.0\b", "0.0", text) for own, text in texts.items()}


def check_holds(index, known):
    stored = {
        own: entry
        for part in index.scan()
        for own, entry in zip(part.ids.tolist(), part.metadata, strict=True)
    }
    assert shown(stored) == shown(known)
    kinds = {type(value) for entry in stored.values() for value in entry.values()}
    assert kinds <= {str, bool, int, float, list, dict, type(None)}
    hits = index.search(world().queries[:1], k=100, with_metadata=True)
    assert shown(dict(zip(hits.ids[0].tolist(), hits.metadata[0], strict=True))) == shown(known)


@pytest.mark.slow
@parametrize(ENGINES)
def test_hostile_ids_and_metadata_come_back_equal_or_are_rejected(case, tmp_path):
    numbers = itertools.count()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # an engine is too slow to shrink with
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(items, items)
    @example({own: {} for own in NAMES}, {"7": {}})
    @example({"a": dict.fromkeys(KEYS, 1.5), "b": dict.fromkeys(KEYS[::2], "t")}, {"c": {}})
    def run(first, second):
        url = case.at(tmp_path, f"photos{next(numbers)}")
        about = {"corrector": world().correctors[0]}
        index, known = put(functools.partial(build_index, url, **about), first)
        if index is None:
            with contextlib.closing(open_backend(url)) as backend:
                assert (backend.served(), backend.versions()) == (None, [])
            return
        with index:
            check_holds(index, known)
            known |= put(index.upsert, second)[1]
            check_holds(index, known)
            assert index.present(list(known)).all()
            for own in list(known)[:-1]:
                index.delete([own])
                known.pop(own)
                assert len(index) == len(known)
            check_holds(index, known)

    run()


@parametrize(ENGINES)
def test_any_metadata_come_back_equal_or_are_rejected_before_a_write(case, tmp_path):
    about = {"corrector": world().correctors[0]}
    write = functools.partial(build_index, case.at(tmp_path), **about)
    index, known = put(write, {f"first {row}": entry for row, entry in enumerate(ENTRIES[:4])})
    with index:
        for row, entry in enumerate(ENTRIES):
            known |= put(index.add, {f"item {row}": entry})[1]
            assert len(index) == len(known)
        check_holds(index, known)
        index.refresh(world().correctors[1])
        check_holds(index, known)


WRONG = ["'", "(" * 2000, "nope = 1", "x" * 100_000, "[{}]", '[["a"]]', "null", "\0", "\ud800"]
WRONG += [b"x", 5, [[1]], {1: 2}, {"must": 5}, object()]


@parametrize(ENGINES)
def test_a_wrong_filter_is_one_short_sentence(case, tmp_path):
    with build(case, tmp_path) as index:
        for given in WRONG:
            with contextlib.suppress(nnnorm.NNNormError):  # such as a key that no item has
                index.search(world().queries[:1], 3, filter=given)
                continue
            with pytest.raises(nnnorm.NNNormError) as caught:
                index.search(world().queries[:1], 3, filter=given)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 1000
        assert len(index.search(world().queries[:1], 3).ids) == 1


APPLICATION = [case for case in ENGINES if case.engine in ("duckdb", "pgvector", "sqlite")]


@parametrize(APPLICATION)
def test_a_view_of_the_application_is_not_replaced(case, tmp_path):
    url = case.at(tmp_path)
    name = url.rpartition("table=")[2]
    with contextlib.closing(open_backend(url)) as backend:
        backend.run(f'CREATE VIEW "{name}" AS SELECT 7 AS seven')
        with contextlib.suppress(nnnorm.NNNormError):
            build(case, tmp_path)
        assert backend.run(f'SELECT * FROM "{name}"') == [(7,)]


@parametrize(APPLICATION)
def test_a_filter_in_json_is_not_sent_to_a_database(case, tmp_path):
    with build(case, tmp_path) as index:
        for given in ('{"row": 3}', ' [{"row": 3}]'):
            with pytest.raises(nnnorm.NNNormError, match="must be a condition in SQL, such as"):
                index.search(world().queries, filter=given)


SERVERS = [case for case in ENGINES if case.engine in ("lancedb", "qdrant", "milvus", "chroma")]


@parametrize(SERVERS)
def test_a_collection_of_the_application_with_a_like_name_stays(case, tmp_path):
    with contextlib.closing(open_backend(case.at(tmp_path))) as backend:
        layout = Layout(3, True, {}, 1, np.empty((0, 3), np.float32))
        backend.create("v1_202401", layout)
        names = backend._list_names()
    with build(case, tmp_path) as index:
        index.refresh(world().correctors[1])
        assert set(names) <= set(index.backend._list_names())
