"""Tables that live: filters, upserts, new values, two generations, native columns, threads.

All on the real engines, at the level of a store; `test_living.py` holds what all engines promise.
"""

import datetime
import re
import threading
from types import SimpleNamespace

import duckdb
import numpy as np
import psycopg
import pyarrow
import pytest
import sqlean
import sqlite_vec as extension
from psycopg.rows import dict_row, namedtuple_row

import nnnorm
from nnnorm.index import Items, Store, adopt_table
from nnnorm.index.store import Sample
from nnnorm.index.stores.duckdb import DuckdbStore
from nnnorm.index.stores.lancedb import LancedbStore
from nnnorm.index.stores.pgvector import PgvectorStore
from nnnorm.index.stores.sqlite_vec import SqliteVecStore
from tests.servers import in_memory, lancedb, pgvector, postgres, unique
from tests.stores import duckdb as make_duckdb
from tests.stores import sqlite_vec as make_sqlite

N, WIDTH = 400, 8


def lancedb_itself():
    import lancedb  # takes a second, and only tests that are slow need it

    return lancedb


MAKERS = {
    "pgvector": pgvector(),
    "pgvector hnsw": pgvector(kind="hnsw", ef=400),
    "duckdb": make_duckdb,
    "sqlite-vec": make_sqlite,
    "lancedb": lancedb(),
    "lancedb ivf": lancedb(kind="ivf", cells=4, probes=1),
}
SQL = ("pgvector", "duckdb", "sqlite-vec")


def engines(*names):
    """Run a test on these engines; all but those in a file are slow."""
    quick = ("duckdb", "sqlite-vec")
    marks = {name: () if name in quick else (pytest.mark.slow,) for name in MAKERS}
    chosen = [pytest.param(name, marks=marks[name]) for name in names or MAKERS]
    return pytest.mark.parametrize("name", chosen)


def describe(row):
    entry = {
        "year": 1990 + row % 10,
        "title": f"Photo {row}",
        "size": row / 4,
        "open": row % 3 == 0,
    }
    if row % 7 == 0:
        entry["tags"] = ["sea", row]
    if row % 50 == 49:  # as it happens: without a value, or with one of another kind
        entry["year"], entry["size"] = None, "large"
    if row % 50 == 48:
        del entry["title"]
    return entry


@pytest.fixture
def items():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(N, WIDTH)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    values = rng.uniform(size=N).astype(np.float32)
    return Items(np.arange(N), rows, values, [describe(row) for row in range(N)])


def note(of="first", metric="cosine", **more):
    return {"format": "nnnorm.index/1", "metric": metric, "of": of, "state": "whole", **more}


def metric_of(store):
    return "cosine" if store.engine == "sqlite-vec" else "ip"


def fill(store, items, of="first"):
    sample = Sample(len(items), lambda: items.vectors, items.metadata or ())
    strings = items.ids.dtype.kind == "U"
    store.create(items.vectors.shape[1], metric_of(store), strings=strings, sample=sample)
    store.add(items)
    store.write_note(note(of, metric_of(store)))
    store.save()
    return store


@pytest.fixture
def open_store(name, tmp_path):
    """Open the same table, again and again, as other processes would."""
    opened = []

    def open_again():
        opened.append(MAKERS[name](tmp_path, "photos"))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


def contents(store):
    batches = list(store.scan())
    ids = np.concatenate([batch.ids for batch in batches])
    order = np.argsort(ids, kind="stable")
    known = [entry for batch in batches for entry in batch.metadata_list()]
    return SimpleNamespace(
        ids=ids[order].tolist(),
        vectors=np.concatenate([batch.vectors for batch in batches])[order],
        values=np.concatenate([batch.value_list() for batch in batches])[order].tolist(),
        metadata=[known[row] for row in order],
    )


def best(items, query, keep, k=10):
    """The k nearest of those that a filter keeps, one by one."""
    scores = items.vectors @ query
    rows = [row for row in np.argsort(-scores, kind="stable") if keep(items.metadata[row])]
    return items.ids[rows[:k]].tolist()


# --- metadata as columns --------------------------------------------------------------------------


@engines()
def test_metadata_come_back_exactly_as_they_were_given(open_store, items):
    store = fill(open_store(), items)
    assert contents(store).metadata == items.metadata
    some = items.ids[[3, 49, 7, 48]]
    assert open_store().metadata_of(some) == [items.metadata[row] for row in some]
    assert [type(v) for v in store.metadata_of(some)[0].values()] == [int, str, float, bool]


@pytest.mark.slow
def test_metadata_are_columns_of_postgresql(tmp_path, items):
    store = fill(MAKERS["pgvector"](tmp_path, "photos"), items)
    rows = store.client.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 3",
        [unique(tmp_path, "photos")],
    ).fetchall()
    assert rows == [
        *(("year", "bigint"), ("title", "text"), ("size", "double precision")),
        *(("open", "boolean"), ("metadata", "jsonb")),
    ]
    store.close()


def test_metadata_are_columns_of_duckdb_and_sqlite(tmp_path, items):
    fill(MAKERS["duckdb"](tmp_path, "photos"), items).close()
    with duckdb.connect(tmp_path / "photos.duckdb") as own:
        found = own.execute("SELECT count(*) FROM photos WHERE year = 1993 AND open").fetchall()
    assert found == [(len([e for e in items.metadata if e["year"] == 1993 and e["open"]]),)]
    store = fill(MAKERS["sqlite-vec"](tmp_path, "photos"), items)
    (made,) = store.client.execute("SELECT sql FROM sqlite_master WHERE name='photos'").fetchone()
    assert "year integer, title text, size float, open boolean, +nnnorm_bias" in made
    store.close()


@pytest.mark.slow
def test_metadata_are_columns_of_lancedb(tmp_path, items):
    fill(MAKERS["lancedb"](tmp_path, "photos"), items).close()
    table = lancedb_itself().connect(in_memory(tmp_path) / "lance").open_table("photos")
    types = {field.name: str(field.type) for field in table.schema}
    assert types | {"year": "int64", "title": "string", "size": "double", "open": "bool"} == types
    assert table.count_rows("year = 1993") == 40


@engines()
def test_keys_that_can_be_no_column_are_kept_too(open_store, items):
    odd = {"a b": 1, "x.y": 2, "ID": 3, "metadata": {"deep": [1]}, "k": 4, 'q"': "5", "rowid": 6}
    odd |= {"nnnorm_bias": 7, "select": 8, "x" * 70: 9, "big": 2**70, "distance": 10, "_x": 11}
    few = Items(items.ids[:2], items.vectors[:2], items.values[:2], [odd, {"a b": None}])
    assert contents(fill(open_store(), few)).metadata == [odd, {"a b": None}]


# --- filters --------------------------------------------------------------------------------------

CONDITIONS = {
    "year = 1993": lambda e: e["year"] == 1993,
    "year <> 1993": lambda e: e["year"] not in (None, 1993),
    "year < 1992 AND size > 20": lambda e: _less(e, 1992) and _larger(e, 20),
    "year = 1993 OR title = 'Photo 8'": lambda e: e["year"] == 1993 or e.get("title") == "Photo 8",
    "title LIKE '%7'": lambda e: e.get("title", "").endswith("7"),
    "title IS NULL": lambda e: "title" not in e,
    "coalesce(year, 2050) > 2000": lambda e: e["year"] is None,
}


def _less(entry, year):
    return entry["year"] is not None and entry["year"] < year


def _larger(entry, size):
    return not isinstance(entry["size"], str) and entry["size"] > size


@engines()
def test_a_filter_leaves_k_hits_where_k_match(name, open_store, items):
    store = fill(open_store(), items)
    assert store.filters.startswith("a condition in SQL")
    for condition, keep in CONDITIONS.items():
        found = store.search(items.vectors[:5], 10, filter=condition)
        right = [best(items, query, keep) for query in items.vectors[:5]]
        width = len(right[0])
        if name == "lancedb ivf":  # as many, of the lists that it probes
            assert np.isfinite(found.scores[:, :width]).all()
            assert all(keep(items.metadata[own]) for own in found.ids[:, :width].flat)
        else:
            assert found.ids[:, :width].tolist() == right, condition
        assert not np.isfinite(found.scores[:, width:]).any()


@engines("pgvector", "duckdb")
def test_a_filter_limits_the_search_by_a_column_too(open_store, items):
    store = fill(open_store(), items)
    found = store.search_column(items.vectors[:1], 10, 0.5, filter="year = 1993")
    scores = items.vectors @ items.vectors[0] - 0.5 * items.values
    rows = [row for row in np.argsort(-scores) if items.metadata[row]["year"] == 1993]
    assert found.ids[0].tolist() == rows[:10]


@engines()
def test_what_is_no_condition_is_answered(open_store, items):
    store = fill(open_store(), items)
    with pytest.raises(nnnorm.NNNormError, match=r"is a condition in SQL, such as .*got \{'year'"):
        store.search(items.vectors[:1], 3, filter={"year": 1993})
    with pytest.raises(nnnorm.NNNormError, match=r"says: .*yaer"):
        store.search(items.vectors[:1], 3, filter="yaer = 1993")
    assert len(store.search(items.vectors[:1], 3, filter="title LIKE '%%'").ids[0]) == 3


def test_sqlite_compares_columns_while_it_searches(tmp_path, items):
    """An application's own statement finds k hits, which the JSON of former versions did not."""
    whole = Items(items.ids[:40], items.vectors[:40], None, items.metadata[:40])
    store = fill(MAKERS["sqlite-vec"](tmp_path, "photos"), whole)
    own = "SELECT id FROM photos WHERE embedding MATCH ? AND k = 4 AND year = 1993"
    assert len(store.client.execute(own, [items.vectors[0].tobytes()]).fetchall()) == 4
    store.close()


@pytest.mark.slow
def test_a_rare_match_is_found_behind_a_graph(tmp_path, items):
    store = fill(MAKERS["pgvector hnsw"](tmp_path, "photos"), items)
    store.client.execute("SET hnsw.max_scan_tuples = 5")
    store.client.execute("SET hnsw.ef_search = 5")
    found = store.search(items.vectors[:2], 4, filter="title IN ('Photo 1', 'Photo 2', 'Photo 3')")
    assert sorted(found.ids[1].tolist()) == [-1, 1, 2, 3] or sorted(found.ids[1]) == [1, 2, 3]
    store.close()


@pytest.mark.slow
def test_a_filter_of_postgresql_may_hold_parameters(tmp_path, items):
    store = fill(MAKERS["pgvector"](tmp_path, "photos"), items)
    chosen = psycopg.sql.SQL("title = {}").format("Photo 3' OR true --")
    assert store.search(items.vectors[:1], 3, filter=chosen).ids.size == 0
    chosen = psycopg.sql.SQL("title = {}").format("Photo 3")
    assert store.search(items.vectors[:1], 3, filter=chosen).ids.tolist() == [[3]]
    store.close()


# --- upserts and values ---------------------------------------------------------------------------


@engines()
def test_an_upsert_replaces_and_adds_at_once(open_store, items):
    store, reader = fill(open_store(), items), open_store()
    reader.facts()
    new = Items(
        np.array([3, N]), items.vectors[[7, 8]], np.float32([2.5, 3.5]), [{"year": 1}, {"by": "me"}]
    )
    store.upsert(new)
    found = contents(reader)
    assert found.ids == list(range(N + 1))
    assert (found.metadata[3], found.metadata[N]) == ({"year": 1}, {"by": "me"})
    assert (found.values[3], found.values[N], found.values[4]) == (2.5, 3.5, items.values[4])
    np.testing.assert_array_equal(found.vectors[[3, N]], items.vectors[[7, 8]])
    assert sorted(reader.search(items.vectors[8:9], 2).ids[0].tolist()) == [8, N]


@engines(*SQL)
def test_new_values_are_there_at_once_and_the_former_come_back(open_store, items):
    store, reader = fill(open_store(), items), open_store()
    assert store.rewrites_values
    mark = reader.mark()
    new = items.values + 1
    store.set_values([(items.ids[:99], new[:99]), (items.ids[99:], new[99:])], note("second"))
    for again in range(3):
        assert reader.mark() != mark
        mark = reader.mark()
        expected = (note("second"), new) if again % 2 == 0 else (note("first"), items.values)
        assert reader.read_note()["of"] == expected[0]["of"]
        found = contents(reader)
        np.testing.assert_allclose(found.values, expected[1])
        np.testing.assert_array_equal(found.vectors, items.vectors)
        assert found.metadata == items.metadata
        np.testing.assert_allclose(
            reader.value_range(), (min(found.values), max(found.values)), rtol=1e-6
        )
        store.exchange()


@engines("pgvector", "sqlite-vec", "lancedb")
def test_a_mark_does_not_come_back_with_the_generation(open_store, items):
    store, reader = fill(open_store(), items), open_store()
    fill(store.other(), items)
    marks = [reader.mark()]
    for _ in range(3):
        store.exchange()
        marks.append(reader.mark())
    assert len(set(marks)) == 4


@engines(*SQL)
def test_new_values_are_all_there_or_none(open_store, items):
    store = fill(open_store(), items)

    def broken():
        yield items.ids[:99], items.values[:99] + 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        store.set_values(broken(), note("second"))
    with pytest.raises((nnnorm.NNNormError, TypeError)):
        store.set_values([(items.ids, items.values + 1)], note("second", odd=object()))
    assert contents(store).values == items.values.tolist()
    assert open_store().read_note()["of"] == "first"


# --- generations ----------------------------------------------------------------------------------


def next_generation(store, items):
    """Fill the other generation with the same items, turned around."""
    other = store.other()
    other.drop()
    turned = Items(items.ids, items.vectors[::-1].copy(), items.values[::-1], items.metadata)
    sample = Sample(N, lambda: items.vectors, items.metadata)
    other.create_like(store, WIDTH, metric_of(store), strings=False, sample=sample)
    other.add(turned)
    other.write_note(note("second", metric_of(store)))
    other.save()
    return turned


@engines()
def test_two_generations_are_exchanged_at_once(open_store, items):
    store, reader = fill(open_store(), items), open_store()
    assert store.other().facts() is None
    turned = next_generation(store, items)
    assert contents(reader).vectors.tolist() == items.vectors.tolist()
    mark = reader.mark()
    for again in range(3):
        store.exchange()
        assert reader.mark() != mark
        mark = reader.mark()
        served, former = (turned, items) if again % 2 == 0 else (items, turned)
        assert reader.read_note()["of"] == ("second" if served is turned else "first")
        np.testing.assert_array_equal(contents(reader).vectors, served.vectors)
        np.testing.assert_array_equal(contents(reader.other()).vectors, former.vectors)
        assert contents(reader).metadata == items.metadata
        hits = reader.search(served.vectors[:3], 1, filter="size < 1").ids
        assert hits.tolist() == [[0], [1], [2]]
        store.upsert(Items(items.ids[:1], served.vectors[:1], served.values[:1], [describe(0)]))
    store.other().drop()
    store.other().drop()
    assert store.facts().n_items == N
    store.drop()
    assert open_store().facts() is None


@engines()
def test_a_generation_that_is_missing_or_a_part_is_not_served(open_store, items):
    store = fill(open_store(), items)
    with pytest.raises(nnnorm.NNNormError, match="has no former generation; a refresh keeps one"):
        store.exchange()
    next_generation(store, items)
    store.other().write_note(note("second", metric_of(store), state="part"))
    with pytest.raises(nnnorm.NNNormError, match="only a part of a generation"):
        store.exchange()
    assert store.read_note()["of"] == "first"


@pytest.mark.slow
@engines(*SQL)
def test_an_exchange_that_is_interrupted_leaves_the_former_one(open_store, items, monkeypatch):
    store = fill(open_store(), items)
    next_generation(store, items)
    run, asked, most = store._run, [], []

    def interrupted(statement, *values):
        asked.append(statement)
        if len(asked) == len(most):
            raise KeyboardInterrupt
        return run(statement, *values)

    for _ in range(60):
        asked.clear()
        most.append(True)
        monkeypatch.setattr(store, "_run", interrupted)
        try:
            store.exchange()
        except KeyboardInterrupt:
            monkeypatch.undo()
            again = open_store()
            assert again.read_note()["of"] == "first"
            np.testing.assert_array_equal(contents(again).vectors, items.vectors)
            again.close()
        else:
            break
    monkeypatch.undo()
    assert any("RENAME" in statement for statement in asked)
    assert open_store().read_note()["of"] == "second"


@pytest.mark.slow
def test_lancedb_finishes_an_exchange_that_was_killed(tmp_path, items, monkeypatch):
    store = fill(MAKERS["lancedb"](tmp_path, "photos"), items)
    turned = next_generation(store, items)
    with monkeypatch.context() as patched:
        patched.setattr(LancedbStore, "_open_version", None)  # after the first of two steps
        with pytest.raises(TypeError):
            store.exchange()
    store = MAKERS["lancedb"](tmp_path, "photos")
    assert store.read_note()["of"] == "second"
    assert store.other().read_note()["of"] == "first"
    store.exchange()
    np.testing.assert_array_equal(contents(store).vectors, items.vectors)
    np.testing.assert_array_equal(contents(store.other()).vectors, turned.vectors)


@pytest.mark.slow
def test_roles_of_postgresql_may_read_the_next_generation_too(tmp_path, items):
    store = fill(MAKERS["pgvector"](tmp_path, "photos"), items)
    role, run = unique(tmp_path, "reader"), store.client.execute
    run(f"CREATE ROLE {role}")
    run(f"GRANT SELECT ON {store.actual} TO {role}")
    next_generation(store, items)
    store.exchange()
    (may,) = run("SELECT has_table_privilege(%s, %s, 'SELECT')", [role, store.actual]).fetchone()
    assert may
    run(f"DROP OWNED BY {role}")
    run(f"DROP ROLE {role}")
    store.close()


@pytest.mark.slow
def test_a_name_that_leaves_no_room_for_another_generation_is_refused(items):
    store = PgvectorStore(postgres(), "x" * 55)
    with pytest.raises(nnnorm.NNNormError, match="at most 50 bytes, because its other generation"):
        fill(store, items)
    store.close()


@engines("pgvector hnsw")
def test_the_next_generation_has_the_index_of_the_former(open_store, items, tmp_path):
    fill(open_store(), items)
    store = MAKERS["pgvector"](tmp_path, "photos")  # as a URL without options
    next_generation(store, items)
    store.exchange()
    query = "SELECT indexdef FROM pg_indexes WHERE tablename = %s ORDER BY 1"
    indexes = store.client.execute(query, [store.actual]).fetchall()
    assert re.search(r"USING hnsw \(embedding vector_ip_ops\) WITH \(m=.?16", str(indexes))
    store.close()


# --- threads and connections ----------------------------------------------------------------------


@pytest.mark.slow
@engines()
def test_many_threads_search_one_store(open_store, items):
    store = fill(open_store(), items)
    right = store.search(items.vectors, 5).ids
    found, wrong = {}, []

    def search(part):
        try:
            for row in range(part, N, 8):
                found[row] = store.search(items.vectors[row : row + 1], 5).ids[0]
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=search, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_array_equal([found[row] for row in range(N)], right)


def connect_sqlite(path):
    opened = sqlean.connect(path)
    opened.enable_load_extension(True)
    extension.load(opened)
    return opened


CONNECTIONS = {
    "pgvector": lambda folder: psycopg.connect(postgres(), autocommit=True),
    "duckdb": lambda folder: duckdb.connect(folder / "own.duckdb"),
    "sqlite-vec": lambda folder: connect_sqlite(folder / "own.db"),
    "lancedb": lambda folder: lancedb_itself().connect(folder / "lance"),
}
KINDS = {
    "pgvector": PgvectorStore,
    "duckdb": DuckdbStore,
    "sqlite-vec": SqliteVecStore,
    "lancedb": LancedbStore,
}


@engines(*CONNECTIONS)
def test_a_connection_of_the_caller_is_used_and_stays_open(name, tmp_path, items):
    connection = CONNECTIONS[name](tmp_path)
    store = fill(KINDS[name](connection, table=unique(tmp_path, "own")), items)
    assert store.search(items.vectors[:1], 1).ids.tolist() == [[0]]
    next_generation(store, items)
    store.exchange()
    store.close()
    again = KINDS[name](connection, table=unique(tmp_path, "own"))
    assert again.facts().n_items == N
    assert again.read_note()["of"] == "second"
    assert "the given " in again.name
    again.other().drop()
    again.drop()
    if name != "lancedb":
        connection.execute("SELECT 1")
        connection.close()
    with pytest.raises(nnnorm.NNNormError, match=r"must be an address, a path or a .*; got int"):
        KINDS[name](7)


@pytest.mark.slow
def test_what_is_written_belongs_to_the_transaction_of_the_caller(tmp_path, items):
    with psycopg.connect(postgres()) as connection:
        store = fill(PgvectorStore(connection, unique(tmp_path, "own")), items)
        assert store.facts().n_items == N
        connection.rollback()
        assert PgvectorStore(connection, unique(tmp_path, "own")).facts() is None
        fill(store, items)
        connection.commit()
        store.upsert(items.take(items.ids < 7))
        store.search(items.vectors[:1], 5)
        store.set_values([(items.ids, items.values + 1)], note("second"))
        connection.rollback()
        assert store.read_note()["of"] == "first"
        assert store.value_range()[1] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_what_only_reads_leaves_an_idle_connection_idle(kind, tmp_path, items):
    table = unique(tmp_path, "own")
    fill(PgvectorStore(postgres(), table, kind=kind), items).close()
    with psycopg.connect(postgres()) as connection:
        store = PgvectorStore(connection, table)
        for read in (
            store.facts,
            store.mark,
            store.read_note,
            lambda: store.search(items.vectors[:2], 5, filter="year > 1990"),
            lambda: store.search(items.vectors[:2], 5, filter="year > 9999"),
            lambda: store.metadata_of(items.ids[:2]),
            lambda: list(store.scan()),
        ):
            read()
            assert connection.info.transaction_status.name == "IDLE"
        with pytest.raises(nnnorm.NNNormError, match="PostgreSQL says"):
            store.search(items.vectors[:1], 5, filter="no_such_column > 1")
        assert connection.info.transaction_status.name == "IDLE"
        connection.execute("SELECT 1")  # the transaction of the caller goes on
        store.search(items.vectors[:1], 5)
        assert connection.info.transaction_status.name == "INTRANS"


@pytest.mark.slow
@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
def test_a_connection_may_have_rows_of_its_own(factory, tmp_path, items):
    with psycopg.connect(postgres(), autocommit=True, row_factory=factory) as connection:
        store = fill(PgvectorStore(connection, unique(tmp_path, "own")), items)
        assert store.search(items.vectors[:9], 1).ids[:, 0].tolist() == items.ids[:9].tolist()
        assert contents(store).metadata == items.metadata
        assert store.read_note()["of"] == "first"


@pytest.mark.slow
def test_a_search_sends_one_statement_to_postgresql(tmp_path, items):
    class Counting(psycopg.Cursor):
        def execute(self, *args, **kwargs):
            sent.append(args)
            return super().execute(*args, **kwargs)

    fill(MAKERS["pgvector"](tmp_path, "photos"), items).close()
    sent = []
    with psycopg.connect(postgres(), autocommit=True, cursor_factory=Counting) as connection:
        store = PgvectorStore(connection, unique(tmp_path, "photos"))
        store.search(items.vectors[:1], 5)
        sent.clear()
        store.search(items.vectors[:1], 5)
        assert len(sent) == 1


def test_a_search_sends_one_statement_to_sqlite(tmp_path, items):
    store, sent = fill(MAKERS["sqlite-vec"](tmp_path, "photos"), items), []
    store.search(items.vectors[:1], 5)
    store.client.set_trace_callback(sent.append)
    store.search(items.vectors[:1], 5)
    assert len([statement for statement in sent if "photos_" not in statement]) == 1
    store.close()


# --- tables of the application, and of former versions --------------------------------------------


def test_a_sqlite_table_of_a_former_version_still_works(tmp_path):
    own = connect_sqlite(tmp_path / "photos.db")
    own.execute(
        "CREATE VIRTUAL TABLE photos USING vec0(id integer primary key, embedding float[2] "
        "distance_metric=cosine, +nnnorm_bias float, +metadata text)"
    )
    vectors = np.float32([[1, 0], [0, 1]])
    for row in (0, 1):
        own.execute(
            "INSERT INTO photos VALUES (?, ?, 0.5, ?)",
            [row, vectors[row].tobytes(), f'{{"year": {1990 + row}}}'],
        )
    own.commit()
    own.close()
    check_former(MAKERS["sqlite-vec"](tmp_path, "photos"), "metadata->>'year' = 1991")


def test_a_duckdb_table_of_a_former_version_still_works(tmp_path):
    with duckdb.connect(tmp_path / "photos.duckdb") as own:
        own.execute(
            "CREATE TABLE photos (id BIGINT PRIMARY KEY, embedding FLOAT[2] NOT NULL, "
            "nnnorm_bias FLOAT, metadata JSON)"
        )
        own.execute(
            "INSERT INTO photos VALUES (0, [1, 0], 0.5, '{\"year\": 1990}'), "
            "(1, [0, 1], 0.5, '{\"year\": 1991}')"
        )
    check_former(MAKERS["duckdb"](tmp_path, "photos"), "metadata->>'year' = '1991'")


@pytest.mark.slow
def test_a_postgresql_table_of_a_former_version_still_works(tmp_path):
    table = unique(tmp_path, "photos")
    with psycopg.connect(postgres(), autocommit=True) as own:
        own.execute("CREATE EXTENSION IF NOT EXISTS vector")
        own.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, embedding vector(2) NOT NULL, "
            "nnnorm_bias real, metadata jsonb)"
        )
        own.execute(
            f"INSERT INTO {table} VALUES (0, '[1,0]', 0.5, '{{\"year\": 1990}}'), "
            "(1, '[0,1]', 0.5, '{\"year\": 1991}')"
        )
        own.execute(
            f"""COMMENT ON TABLE {table} IS '{{"nnnorm": {{"metric": "ip", "note": null}}}}'"""
        )
    check_former(MAKERS["pgvector"](tmp_path, "photos"), "metadata->>'year' = '1991'")


def check_former(store: Store, condition):
    assert contents(store).metadata == [{"year": 1990}, {"year": 1991}]
    assert store.search(np.float32([[1, 0]]), 2, filter=condition).ids.tolist() == [[1]]
    new = Items(np.array([7]), np.float32([[0.6, 0.8]]), np.float32([0.25]), [{"year": 5}])
    store.upsert(new)
    assert contents(store).metadata[2] == {"year": 5}
    store.close()


def fill_application(run, table, vector="vector"):
    run("CREATE EXTENSION IF NOT EXISTS vector")
    run(
        f"CREATE TABLE {table} (sku text PRIMARY KEY, clip {vector}(3), taken date, tags text[], "
        "price numeric(8, 2), about jsonb, sold integer NOT NULL DEFAULT 0)"
    )
    run(f"CREATE INDEX ON {table} (taken)")
    for row in range(6):
        angle = [float(np.cos(row)), float(np.sin(row)), 0]
        run(
            f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                *(f"s{row}", str(angle), datetime.date(2024, 1, 1 + row), ["a", f"b{row}"]),
                *(f"{row}.50", f'{{"deep": [{row}]}}', row),
            ],
        )
    return [f"s{row}" for row in range(6)]


@pytest.mark.slow
def test_a_copy_keeps_the_columns_and_indexes_of_postgresql(tmp_path):
    names = [unique(tmp_path, end) for end in ("old", "new")]
    store = PgvectorStore(postgres(), names[0])
    run = store.client.execute
    fill_application(run, names[0])
    copied = PgvectorStore(store.client, names[1])
    (items,) = store.scan()
    copied.create_like(store, 3, "ip", strings=True, sample=Sample(6, lambda: items.vectors))
    copied.add(items)
    rows = [
        run(f"SELECT sku, taken, tags, price, about, sold FROM {name} ORDER BY sku").fetchall()
        for name in names
    ]
    assert rows[0] == rows[1]
    kinds = [
        run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0",
            [name],
        ).fetchall()
        for name in names
    ]
    assert set(kinds[0]) < set(kinds[1])
    indexes = run("SELECT indexdef FROM pg_indexes WHERE tablename = %s", [names[1]]).fetchall()
    assert "USING btree (taken)" in str(indexes)
    old = "tags @> ARRAY['b3'] AND taken > '2024-01-02'"
    assert copied.search(np.float32([[1, 0, 0]]), 5, filter=old).ids.tolist() == [["s3"]]
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("vector", ["vector", "halfvec"])
def test_a_table_of_the_application_is_adopted_in_place(tmp_path, vector):
    """Its own INSERTs go on, its rows stay as they are, and a refresh keeps the former values."""
    table = unique(tmp_path, "photos")
    store = PgvectorStore(postgres(), table)
    run = store.client.execute
    ids = fill_application(run, table, vector)
    columns = "sku, clip, taken, tags, price, about, sold"
    before = run(f"SELECT {columns} FROM {table} ORDER BY sku").fetchall()
    values = np.linspace(0, 1, 6, dtype=np.float32)
    store.adopt([(np.array(ids), values)], 0.5, note(metric="ip", way="column"))
    assert run(f"SELECT {columns} FROM {table} ORDER BY sku").fetchall() == before
    run(f"INSERT INTO {table} (sku, clip) VALUES ('s6', '[0,0,1]')")
    with pytest.raises(psycopg.errors.NotNullViolation):
        run(f"INSERT INTO {table} (sku, clip, nnnorm_bias) VALUES ('s7', '[0,0,1]', NULL)")

    opened = PgvectorStore(postgres(), table)
    assert opened.facts().metric == "ip"
    found = opened.search_column(np.float32([[1, 0, 0]]), 7, 1.0)
    right = np.cos(np.arange(6)) - values
    order = np.argsort(-np.append(right, -0.5))
    assert found.ids[0].tolist() == [f"s{row}" for row in order]
    np.testing.assert_allclose(found.scores[0], np.append(right, -0.5)[order], atol=2e-3)
    opened.set_values([(np.array(ids), values + 1)], note("second", metric="ip", way="column"))
    assert dict(run(f"SELECT sku, nnnorm_bias FROM {table}").fetchall())["s5"] == 2.0
    run(f"INSERT INTO {table} (sku, clip) VALUES ('s8', '[0,0,1]')")
    biases = dict(run(f"SELECT sku, nnnorm_bias FROM {table}").fetchall())
    assert biases["s8"] == pytest.approx((values.sum() + 6 + 0.5) / 7)
    opened.exchange()
    biases = dict(run(f"SELECT sku, nnnorm_bias FROM {table}").fetchall())
    assert (biases["s5"], biases["s8"]) == (1.0, pytest.approx(0.5))
    assert opened.read_note()["of"] == "first"
    # An upsert changes vector and bias, and leaves the rest to the application.
    new = Items(np.array(["s1", "s9"]), np.float32([[0, 1, 0], [1, 0, 0]]), np.float32([3, 4]))
    opened.upsert(new)
    assert run(f"SELECT tags, sold, nnnorm_bias FROM {table} WHERE sku = 's1'").fetchone() == (
        ["a", "b1"],
        1,
        3.0,
    )
    assert run(f"SELECT sold, nnnorm_bias FROM {table} WHERE sku = 's9'").fetchone() == (0, 4.0)
    with pytest.raises(nnnorm.NNNormError, match="has a column nnnorm_bias already"):
        opened.adopt([], 0.5, note(metric="ip"))
    opened.close()
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pgvector", "duckdb"])
def test_an_adopted_table_is_an_index_that_is_refreshed_and_rolled_back(engine, tmp_path):
    """The application's rows and own inserts stay; a row without a vector is left alone."""
    rng = np.random.default_rng(1)
    gallery, *banks = (rng.normal(size=(n, 6)).astype(np.float32) for n in (50, 80, 80))
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    queries = banks[0][:9] / np.linalg.norm(banks[0][:9], axis=1, keepdims=True)
    methods = nnnorm.NNN(8, 0.75), nnnorm.NNN(4, 0.5)
    correctors = [
        nnnorm.Corrector.fit(gallery, bank, method, normalize=True)
        for bank, method in zip(banks, methods, strict=True)
    ]
    table = unique(tmp_path, "photos")
    connection = CONNECTIONS[engine](tmp_path)
    kind = "FLOAT[6]" if engine == "duckdb" else "vector(6)"
    if engine == "pgvector":
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    connection.execute(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY, title text, embedding {kind})"
    )
    for row, vector in enumerate(gallery.tolist()):
        connection.execute(f"INSERT INTO {table} VALUES ({row}, 'Photo {row}', '{vector}')")
    if engine == "pgvector":
        connection.execute(f"INSERT INTO {table} (id, title) VALUES (99, 'not yet encoded')")
    index = adopt_table(KINDS[engine](connection, table), correctors[0])

    def right(corrector):
        bias = corrector.bias_of(gallery)
        return nnnorm.search(queries, gallery, bias, k=5, normalize=True).indices.tolist()

    assert index.search(queries, k=5).ids.tolist() == right(correctors[0])
    index.refresh(correctors[1])
    assert index.search(queries, k=5).ids.tolist() == right(correctors[1])
    index.rollback()
    assert index.search(queries, k=5).ids.tolist() == right(correctors[0])
    found = index.search(queries[:1], k=5, filter="title = 'Photo 7'", with_metadata=True)
    assert found.metadata[0] == [{"title": "Photo 7"}]
    new = -gallery[:1]
    index.upsert(new, correctors[0], ids=[7])
    assert index.search(new, k=1, weight=0).ids.tolist() == [[7]]
    title = connection.execute(f"SELECT title FROM {table} WHERE id = 7").fetchone()
    assert title == ("Photo 7",)
    connection.close()


def test_only_tables_with_the_way_column_are_adopted(tmp_path):
    bias = nnnorm.Bias(np.zeros(2), 0.75, "nnn")
    with pytest.raises(nnnorm.NNNormError, match="can't get the bias as a column"):
        adopt_table(f"sqlite:{tmp_path}/a.db", bias)
    with pytest.raises(nnnorm.NNNormError, match="there is no duckdb table photos"):
        adopt_table(f"duckdb:{tmp_path}/a.duckdb?table=photos", bias)
    with duckdb.connect(tmp_path / "own.duckdb") as own:
        own.execute(
            "CREATE TABLE photos AS "
            "SELECT i AS id, [i, 1]::FLOAT[2] AS embedding FROM range(2) t(i)"
        )
        with pytest.raises(nnnorm.NNNormError, match="needs unit norm here"):
            adopt_table(DuckdbStore(own, "photos", metric="cosine"), bias)
        with pytest.raises(nnnorm.NNNormError, match="and none is for the id 0"):
            adopt_table(DuckdbStore(own, "photos", metric="ip"), bias, ids=[1, 2])
        index = adopt_table(DuckdbStore(own, "photos", metric="ip"), bias, ids=[1, 0])
        assert index.recipe.way == "column"


def test_a_duckdb_table_is_adopted_in_place(tmp_path):
    with duckdb.connect(tmp_path / "own.duckdb") as own:
        own.execute(
            "CREATE TABLE photos AS SELECT i AS id, [cos(i), sin(i)]::FLOAT[2] AS embedding, "
            "DATE '2024-01-01' + i::INT AS taken FROM range(5) t(i)"
        )
        store = DuckdbStore(own, "photos")
        values = np.linspace(0, 1, 5, dtype=np.float32)
        store.adopt([(np.arange(5), values)], 0.5, note(metric="ip"))
        own.execute("INSERT INTO photos (id, embedding) VALUES (7, [1, 0])")
        assert own.execute("SELECT nnnorm_bias FROM photos WHERE id = 7").fetchone() == (0.5,)
        found = store.search_column(np.float32([[1, 0]]), 6, 1.0, filter="id < 7")
        assert found.ids[0].tolist() == np.argsort(values - np.cos(np.arange(5))).tolist()
        copied = DuckdbStore(own, "copied")
        (items,) = store.scan()
        copied.create_like(store, 2, "ip", strings=False, sample=Sample(6, lambda: items.vectors))
        copied.add(items)
        both = [
            own.execute(f"SELECT id, taken FROM {t} ORDER BY id").fetchall()
            for t in ("photos", "copied")
        ]
        assert both[0] == both[1]


@pytest.mark.slow
def test_a_copy_keeps_the_types_and_indexes_of_lancedb(tmp_path):
    db = lancedb_itself().connect(tmp_path / "lance")
    day = datetime.date(2024, 5, 6)
    table = db.create_table(
        "mine",
        pyarrow.table(
            {
                "id": [1, 2],
                "vector": pyarrow.array([[1, 0], [0, 1]], pyarrow.list_(pyarrow.float32(), 2)),
                "taken": [day, None],
                "tags": [["a"], []],
                "metadata": ["its own", None],
            }
        ),
    )
    table.create_index("taken", config=lancedb_itself().index.BTree())
    source, copied = LancedbStore(db, "mine"), LancedbStore(db, "copied")
    (items,) = source.scan()
    copied.create_like(source, 2, "ip", strings=False, sample=Sample(2, lambda: items.vectors))
    copied.add(items)
    copied.copy_rest(source)
    rows = db.open_table("copied").to_arrow().select(["id", "taken", "tags", "metadata"])
    assert rows.to_pylist() == table.to_arrow().select(rows.column_names).to_pylist()
    assert [index.columns for index in db.open_table("copied").list_indices()] == [["taken"]]
    hits = copied.search(np.float32([[0, 1]]), 2, filter="taken > date '2024-01-01'")
    assert hits.ids.tolist() == [[1]]


def test_a_copy_keeps_the_columns_of_sqlite(tmp_path):
    own = connect_sqlite(tmp_path / "own.db")
    own.execute(
        "CREATE VIRTUAL TABLE mine USING vec0(user text partition key, clip float[2] "
        "distance_metric=cosine, year integer, open boolean, +metadata text)"
    )
    for row in range(20):
        vector = np.float32([np.cos(row), np.sin(row)]).tobytes()
        own.execute(
            "INSERT INTO mine(rowid, user, clip, year, open, metadata) VALUES (?, ?, ?, ?, ?, ?)",
            [row + 1, "me", vector, 1990 + row, row % 2, "its own"],
        )
    source, copied = SqliteVecStore(own, "mine"), SqliteVecStore(own, "copied")
    (items,) = source.scan()
    copied.create_like(source, 2, "cosine", strings=False, sample=Sample(20, lambda: items.vectors))
    copied.add(items)
    assert contents(copied).metadata == contents(source).metadata
    old = "user = 'me' AND year > 1999 AND open = true"
    found = copied.search(np.float32([[1, 0]]), 5, filter=old)
    assert found.ids.shape == (1, 5)
    own.close()


def test_a_duckdb_table_without_a_metric_is_asked_for_it(tmp_path):
    with duckdb.connect(tmp_path / "own.duckdb") as own:
        own.execute("CREATE TABLE photos (id BIGINT, embedding FLOAT[2])")
        own.execute("INSERT INTO photos VALUES (1, [1, 0]), (2, [0, 1])")
        assert DuckdbStore(own, "photos").facts().metric == "ip"  # all metrics are alike
        own.execute("INSERT INTO photos VALUES (3, [0, 3])")
        with pytest.raises(nnnorm.NNNormError, match=r"norms such as 1 and 3.*metric=cosine"):
            DuckdbStore(own, "photos").facts()
        assert DuckdbStore(own, "photos", metric="cosine").facts().metric == "cosine"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_half_precision_is_read_and_written(tmp_path, items, kind):
    table = unique(tmp_path, "half")
    options = {"dtype": "halfvec", "kind": kind, "ef": 400}
    store = fill(PgvectorStore(postgres(), table, **options), items)
    assert store.is_quantized
    assert not store.is_exact
    opened = PgvectorStore(postgres(), table)
    assert opened.facts().width == WIDTH
    assert opened.is_quantized
    assert opened.is_graph == (kind == "hnsw")
    np.testing.assert_allclose(contents(opened).vectors, items.vectors, atol=1e-3)
    assert opened.search(items.vectors, 1).ids[:, 0].tolist() == items.ids.tolist()
    next_generation(opened, items)
    opened.exchange()
    assert opened.is_quantized
    rows = opened.client.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = "
        "to_regclass(%s) AND attname = 'embedding'",
        [table],
    )
    assert rows.fetchone() == ("halfvec(8)",)
    opened.close()
    store.close()


@pytest.mark.slow
def test_lancedb_in_8_bits_is_refined(tmp_path, items):
    folder = in_memory(tmp_path) / "lance"
    store = fill(LancedbStore(folder, "photos", kind="sq", cells=1, refine=4), items)
    assert store.is_quantized
    assert store.traps() == []
    assert store.search(items.vectors, 1).ids[:, 0].tolist() == items.ids.tolist()
    (index,) = store.table.list_indices()
    assert index.index_type == "IvfSq"
    assert "is quantised" in LancedbStore(folder, "photos").traps()[0]
