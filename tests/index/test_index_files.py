"""DuckDB and SQLite files that are locked, corrupt, read-only or someone else's."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
import sqlite_vec

import nnnorm
from nnnorm.index import build_index, export_index, open_index, open_store
from nnnorm.index.stores.chroma import ChromaStore
from nnnorm.index.stores.duckdb import DuckdbStore
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.sqlite_vec import SqliteVecStore
from tests.index.test_index import check, exact, make_data

driver = sqlite3
if not hasattr(sqlite3.Connection, "enable_load_extension"):
    import sqlean as driver

EXACT = SimpleNamespace(recall=1, tolerance=1e-5)


@pytest.fixture
def data():
    return make_data(300, 10, 13, unit=True)


def connect(path):
    connection = driver.connect(path)
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    return connection


def told(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_sqlite_file_that_someone_else_locked_is_one_sentence(data, tmp_path):
    url = f"sqlite:{tmp_path}/photos.db"
    build_index(url, data.gallery, data.bias).close()
    with open_index(url) as index:
        index.store.client.execute("PRAGMA busy_timeout = 0")
        other = driver.connect(tmp_path / "photos.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(nnnorm.NNNormError, match="SQLite says: database is locked") as error:
            index.delete([0])
        assert "sqlite-vec" in told(error)
        with pytest.raises(nnnorm.NNNormError, match="SQLite says: database is locked"):
            index.search(data.queries)
        other.rollback()
        other.close()
        index.delete([0])
        assert len(index) == 299


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_file_that_was_damaged_is_one_sentence(scheme, data, tmp_path):
    path = tmp_path / "photos.db"
    build_index(f"{scheme}:{path}", data.gallery, data.bias).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:20480] + bytes(len(whole) - 20480))  # a good beginning
    with pytest.raises(
        nnnorm.NNNormError, match=r"(SQLite|DuckDB) says: |can't be opened"
    ) as error:
        open_index(f"{scheme}:{path}").search(data.queries)
    told(error)
    path.write_bytes(whole[:8000])
    with pytest.raises(
        nnnorm.NNNormError, match=r"(SQLite|DuckDB) says: |can't be opened"
    ) as error:
        open_index(f"{scheme}:{path}").search(data.queries)
    told(error)


@pytest.mark.slow
def test_a_table_of_another_process_is_one_sentence(data, tmp_path):
    """DuckDB lets one process write."""
    path = tmp_path / "photos.duckdb"
    build_index(f"duckdb:{path}", data.gallery, data.bias).close()
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(nnnorm.NNNormError, match="another process writing to it") as error:
            open_index(f"duckdb:{path}")
        told(error)
        other.communicate("\n")
    with open_index(f"duckdb:{path}") as index:
        assert len(index) == 300


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_folder_that_is_not_there_is_one_sentence(scheme, data, tmp_path):
    with pytest.raises(nnnorm.NNNormError, match="can't be opened") as error:
        build_index(f"{scheme}:{tmp_path}/nowhere/photos.db", data.gallery, data.bias)
    told(error)


def test_a_connection_that_may_only_read_is_one_sentence(data, tmp_path):
    path = tmp_path / "photos.db"
    build_index(f"sqlite:{path}", data.gallery, data.bias).close()
    store = open_store(f"sqlite:{path}")
    with open_index(store) as index:
        store.client.execute("PRAGMA query_only = ON")
        with pytest.raises(nnnorm.NNNormError, match="SQLite says: attempt to write a readonly"):
            index.delete([0])
    own = duckdb.connect(tmp_path / "photos.duckdb")
    build_index(DuckdbStore(own), data.gallery, data.bias)
    own.close()
    with duckdb.connect(tmp_path / "photos.duckdb", read_only=True) as own:
        index = open_index(DuckdbStore(own))
        check(EXACT, index.search(data.queries), exact(data))
        with pytest.raises(nnnorm.NNNormError, match=r"DuckDB says: .*read-only"):
            index.delete([0])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files here")
def test_a_file_that_is_no_database_leaves_no_connection_open(tmp_path):
    path = tmp_path / "note.db"
    path.write_text("nothing that an engine wrote" * 50)
    with pytest.raises(nnnorm.NNNormError, match="can't be opened by SQLite"):
        SqliteVecStore(path).facts()
    assert str(path) not in [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]


@pytest.mark.slow
def test_someone_elses_tables_are_not_taken_for_notes(data, tmp_path):
    with connect(tmp_path / "own.db") as own:
        own.execute("CREATE VIRTUAL TABLE items USING vec0(id integer primary key, v float[13])")
        rows = [(row, vector.tobytes()) for row, vector in enumerate(data.gallery)]
        own.executemany("INSERT INTO items (id, v) VALUES (?, ?)", rows)
    for made in ("(note INT)", "(one INTEGER PRIMARY KEY, note TEXT NOT NULL)"):
        with connect(tmp_path / "own.db") as own:
            own.execute("DROP TABLE IF EXISTS items_nnnorm")
            own.execute(f"CREATE TABLE items_nnnorm {made}")
        with pytest.raises(nnnorm.NNNormError, match="holds no correction"):
            open_index(f"sqlite:{tmp_path}/own.db")
    with connect(tmp_path / "own.db") as own:
        own.execute("INSERT INTO items_nnnorm VALUES (1, 'photos of 2024')")
    with pytest.raises(nnnorm.NNNormError, match="holds no correction"):
        open_index(f"sqlite:{tmp_path}/own.db")

    with duckdb.connect(tmp_path / "own.duckdb") as own:
        own.execute("CREATE TABLE items (id INT, embedding FLOAT[13])")
        own.executemany("INSERT INTO items VALUES (?, ?)", list(enumerate(data.gallery.tolist())))
        for remark in ("our photos", '{"metric": "euclid"}', "[1]"):
            own.execute(f"COMMENT ON TABLE items IS '{remark}'")
            store = DuckdbStore(own)
            assert store.facts().metric == "ip"
            with pytest.raises(nnnorm.NNNormError, match="holds no correction"):
                open_index(store)


@pytest.mark.filterwarnings("ignore:the references seem to cover only a part")
def test_a_sqlite_table_keeps_a_metadata_column_of_its_own(data, tmp_path):
    with connect(tmp_path / "own.db") as own:
        own.execute(
            "CREATE VIRTUAL TABLE items USING vec0(id integer primary key, v float[13] "
            "distance_metric=cosine, year integer, +metadata text)"
        )
        rows = [(n, v.tobytes(), 1900 + n, "a dog") for n, v in enumerate(data.gallery)]
        own.executemany("INSERT INTO items (id, v, year, metadata) VALUES (?, ?, ?, ?)", rows)
    with export_index(
        f"sqlite:{tmp_path}/own.db", f"duckdb:{tmp_path}/new.duckdb", references=data.references
    ) as index:
        known = [dict(entry) for batch in index.scan() for entry in batch.metadata]
    assert known[7] == {"year": 1907, "metadata": "a dog"}


@pytest.mark.slow
def test_a_chroma_collection_of_someone_else_is_read_as_it_is(data, tmp_path):
    chromadb = pytest.importorskip("chromadb")
    client = chromadb.PersistentClient(tmp_path)
    made = client.create_collection(
        "older", metadata={"hnsw:space": "ip", "nnnorm": "ours"}, embedding_function=None
    )
    made.add(ids=["a", "b"], embeddings=data.gallery[:2])
    store = ChromaStore(tmp_path, "older")
    assert (store.facts().metric, store.facts().width) == ("ip", 13)
    assert store.read_note() is None
    with pytest.raises(nnnorm.NNNormError, match="holds no correction"):
        open_index(store)
    client.create_collection("empty", embedding_function=None)
    with pytest.raises(nnnorm.NNNormError, match="is empty; there is nothing to export"):
        export_index(ChromaStore(tmp_path, "empty"), "faiss:", references=data.references)
    store.close()


def test_codes_of_8_bits_cover_items_that_come_later():
    """The first items fill a small part of the space, and the later ones all of it."""
    rng = np.random.default_rng(4)
    first = rng.normal(size=(300, 16)) * 0.1 + 1
    later = rng.normal(size=(300, 16)) * 3
    first, later, queries, references = (
        (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        for rows in (first, later, rng.normal(size=(20, 16)), rng.normal(size=(200, 16)))
    )
    nnn = nnnorm.NNN(8, 0.75)
    index = build_index(FaissStore(kind="sq"), first, nnn.fit(first, references))
    for start in range(0, 300, 50):
        some = later[start : start + 50]
        index.add(some, nnn.fit(some, references), ids=range(300 + start, 350 + start))
    gallery = np.concatenate([first, later])
    right = nnnorm.search(queries, gallery, nnn.fit(gallery, references), k=10)
    found = index.search(queries, k=10)
    np.testing.assert_allclose(found.scores, right.scores, atol=0.02)
    same = [len({*a} & {*b}) for a, b in zip(found.ids, right.indices, strict=True)]
    assert np.mean(same) >= 9.5
