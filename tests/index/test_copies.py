"""Copies of collections that an application made with the engine's own client, and `rerank`."""

import contextlib
import sqlite3

import numpy as np
import psycopg
import pytest

import nnnorm
from nnnorm.index import ENGINES, copy_index
from nnnorm.index.engines.pgvector import PgvectorBackend
from tests import servers
from tests.index.engines import DIM, FIRST, expected, world

NAMES = [f"photo {row}" for row in FIRST]
YEARS = [1900 + row for row in FIRST]


def rows():
    return world().items[list(FIRST)]


def faiss_file(folder):
    import faiss

    index = faiss.index_factory(DIM, "IDMap2,Flat", faiss.METRIC_INNER_PRODUCT)
    ids = np.array(FIRST) * 3 - 5
    index.add_with_ids(rows(), ids)
    faiss.write_index(index, str(folder / "mine.faiss"))
    return f"faiss:{folder}/mine.faiss", ids.tolist(), None


def hnswlib_file(folder):
    import hnswlib

    index = hnswlib.Index(space="cosine", dim=DIM)  # the file of any space is read alike
    index.init_index(max_elements=len(FIRST))
    index.add_items(rows(), YEARS)
    index.save_index(str(folder / "mine.hnsw"))
    return f"hnswlib:{folder}/mine.hnsw?dim={DIM}", YEARS, None


def usearch_file(folder):
    from usearch.index import Index

    index = Index(ndim=DIM, metric="ip", dtype="f32")
    index.add(np.array(YEARS), rows())
    index.save(str(folder / "mine.usearch"))
    return f"usearch:{folder}/mine.usearch", YEARS, None


def sqlite_table(folder):
    import sqlite_vec

    driver = sqlite3 if hasattr(sqlite3.Connection, "enable_load_extension") else None
    if driver is None:
        import sqlean as driver
    connection = driver.connect(folder / "shop.db")
    connection.enable_load_extension(True)
    sqlite_vec.load(connection)
    columns = f"name text primary key, clip float[{DIM}], year integer"
    connection.execute(f"CREATE VIRTUAL TABLE shop USING vec0({columns})")
    given = zip(NAMES, (row.tobytes() for row in rows()), YEARS, strict=True)
    connection.executemany("INSERT INTO shop VALUES (?, ?, ?)", given)
    connection.commit()
    connection.close()
    url = f"sqlite:{folder}/shop.db?table=shop&id=name&embedding=clip"
    return url, NAMES, [{"year": year} for year in YEARS]


def duckdb_table(folder):
    import duckdb

    with duckdb.connect(folder / "shop.duckdb") as connection:
        connection.execute(f"CREATE TABLE shop (id VARCHAR, clip FLOAT[{DIM}], year INTEGER)")
        given = zip(NAMES, rows().tolist(), YEARS, strict=True)
        connection.executemany("INSERT INTO shop VALUES (?, ?, ?)", list(map(list, given)))
    url = f"duckdb:{folder}/shop.duckdb?table=shop&embedding=clip"
    return url, NAMES, [{"year": year} for year in YEARS]


def pgvector_table(folder):
    address = servers.new_database(folder)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute(f"CREATE TABLE shop (id text, clip vector({DIM}), year int, at date)")
        for name, row, year in zip(NAMES, rows().tolist(), YEARS, strict=True):
            values = name, str(row), year, f"{year}-01-02"
            connection.execute("INSERT INTO shop VALUES (%s, %s, %s, %s)", values)
        connection.execute("INSERT INTO shop (id) VALUES ('without a vector')")
    backend = PgvectorBackend(address, table="shop", embedding="clip")
    return backend, NAMES, [{"year": year, "at": f"{year}-01-02"} for year in YEARS]


def lancedb_table(folder):
    import lancedb

    given = zip(NAMES, rows().tolist(), YEARS, strict=True)
    listed = [{"id": name, "vector": row, "year": year} for name, row, year in given]
    lancedb.connect(folder / "lance").create_table("shop", listed)
    return f"lancedb:{folder}/lance?table=shop", NAMES, [{"year": year} for year in YEARS]


def qdrant_collection(folder):
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=folder / "qdrant")
    vectors = {
        "clip": models.VectorParams(size=DIM, distance="Cosine"),
        "sound": models.VectorParams(size=2, distance="Dot"),
    }
    client.create_collection("shop", vectors_config=vectors)
    points = [
        models.PointStruct(
            id=own, vector={"clip": row, "sound": [0.5, 1]}, payload={"year": year, "tags": ["a"]}
        )
        for own, row, year in zip(FIRST, rows().tolist(), YEARS, strict=True)
    ]
    client.upsert("shop", points)
    client.close()
    entries = [{"year": year, "tags": ["a"]} for year in YEARS]
    return f"qdrant:{folder}/qdrant?collection=shop&vector=clip", list(FIRST), entries


def chroma_collection(folder):
    import chromadb

    client = chromadb.PersistentClient(str(folder / "chroma"))
    made = client.create_collection("shop", embedding_function=None)
    entries = [{"year": year} for year in YEARS]
    made.add(ids=NAMES, embeddings=rows(), metadatas=entries, documents=NAMES)
    named = [{**one, "chroma_document": name} for one, name in zip(entries, NAMES, strict=True)]
    return f"chroma:{folder}/chroma?collection=shop", NAMES, named


def milvus_collection(folder):
    from pymilvus import MilvusClient

    client = MilvusClient(str(folder / "milvus.db"))
    client.create_collection("shop", DIM, metric_type="IP", consistency_level="Strong")
    given = zip(FIRST, rows().tolist(), YEARS, strict=True)
    client.insert("shop", [{"id": own, "vector": row, "year": year} for own, row, year in given])
    client.close()
    entries = [{"year": year} for year in YEARS]
    return f"milvus:{folder}/milvus.db?collection=shop", list(FIRST), entries


MAKERS = {
    "faiss": faiss_file,
    "hnswlib": hnswlib_file,
    "usearch": usearch_file,
    "sqlite": sqlite_table,
    "duckdb": duckdb_table,
    "pgvector": pgvector_table,
    "lancedb": lancedb_table,
    "qdrant": qdrant_collection,
    "chroma": chroma_collection,
    "milvus": milvus_collection,
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_collection_of_an_application_is_copied_with_its_metadata(engine, tmp_path):
    source, ids, entries = MAKERS[engine](tmp_path)
    made = world()
    has_dates = "at" in (entries or [{}])[0]
    told = pytest.warns(nnnorm.NNNormWarning, match="60 values .* aren't JSON, such as datetime")
    with told if has_dates else contextlib.nullcontext():
        copied = copy_index(source, "faiss:", made.correctors[0])
    with copied as copy:
        order = np.argsort(np.concatenate([part.ids for part in copy.scan()]))
        found = [entry for part in copy.scan() for entry in part.metadata]
        wanted = entries or [{}] * len(ids)
        assert [found[row] for row in order] == [wanted[row] for row in np.argsort(ids)]
        hits = copy.search(made.queries, k=5)
        best, scores, _ = expected(FIRST, 0, k=5)
        assert hits.ids.tolist() == [[ids[row] for row in some] for some in best.tolist()]
        np.testing.assert_allclose(hits.scores, scores, atol=1e-5)


def test_a_copy_needs_one_correction_and_a_source():
    with pytest.raises(nnnorm.NNNormError, match="or a corrector; got neither"):
        copy_index("faiss:a", "faiss:b")
    with pytest.raises(nnnorm.NNNormError, match="there is no faiss nowhere to copy"):
        copy_index("faiss:nowhere", "faiss:", world().correctors[0])


def test_hits_of_an_engine_are_reranked_and_say_whether_they_are_certain():
    made = world()
    values, weight = made.values[0], made.correctors[0].weight
    scores = made.queries @ made.items.T
    best = np.argsort(-(scores - weight * values), axis=1)[:, :10]
    n_certain = []
    for n_fetched in (10, 100, len(values)):
        ids = np.argsort(-scores, axis=1)[:, :n_fetched]
        raw = np.take_along_axis(scores, ids, axis=1)
        bounds = (values.min(), values.max())
        found = nnnorm.rerank(ids, raw, values[ids], weight=weight, bias_range=bounds)
        is_right = (found.ids == best).all(axis=1)
        assert is_right[found.certain].all()
        n_certain.append(int(found.certain.sum()))
    assert is_right.all()
    assert n_certain[0] <= n_certain[1] <= n_certain[2]
    assert n_certain[2] > n_certain[0]
    with pytest.raises(nnnorm.NNNormError, match="must have the same shape"):
        nnnorm.rerank([[1]], [[1.0]], [[1.0]], weight=1, bias_range=(0, 1), k=2)
