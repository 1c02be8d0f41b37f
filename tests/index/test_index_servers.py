"""What the databases do that would spoil the correction, each shown on the real engine.

Collections that someone else filled, with the engine's own client, are the sources here.
"""

import contextlib
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import chromadb
import lancedb
import numpy as np
import psycopg
import pyarrow
import pytest
import qdrant_edge
from lancedb.index import IvfFlat, IvfPq
from pymilvus import DataType, MilvusClient
from qdrant_client import QdrantClient, models

import nnnorm
from nnnorm.index import Items, build_index, export_index, open_index, open_store, verify_index
from nnnorm.index.store import Sample
from nnnorm.index.stores.chroma import ChromaStore
from nnnorm.index.stores.lancedb import LancedbStore
from nnnorm.index.stores.milvus import MilvusStore
from nnnorm.index.stores.pgvector import PgvectorStore
from nnnorm.index.stores.qdrant import QdrantStore
from nnnorm.index.stores.qdrant_edge import QdrantEdgeStore
from tests.index.test_index import bias_of, check, exact, make_data
from tests.servers import clear_memory, in_memory, new_database, postgres, unique

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning"),
    pytest.mark.filterwarnings("ignore:the references seem to cover only a part"),
]
EXACT = SimpleNamespace(recall=1, tolerance=1e-5)
NAMES = [f"shelf {row}/photo.jpg" for row in range(60)]


@pytest.fixture
def data():
    return make_data(60, 7, 9, unit=False)


@pytest.fixture
def folder(tmp_path):
    yield in_memory(tmp_path)
    clear_memory()


@pytest.fixture
def table(tmp_path):
    return unique(tmp_path, "photos")


@pytest.fixture
def sql():
    with psycopg.connect(postgres(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield connection.execute


def text(vector):
    return str(np.asarray(vector).tolist())


def contents(store):
    """Ids, vectors and metadata of a collection, in the order of the ids."""
    batches = list(store.scan(25))
    ids = np.concatenate([batch.ids for batch in batches])
    order = np.argsort(ids)
    known = [dict(entry) for batch in batches for entry in batch.metadata]
    vectors = np.concatenate([batch.vectors for batch in batches])[order]
    return ids[order].tolist(), vectors, [known[row] for row in order]


def check_export(source, target, data, *, ids, gallery=None):
    """A corrected copy of someone else's collection: same ids and metadata, right ranking."""
    gallery = data.gallery if gallery is None else gallery
    before = contents(source)
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(gallery, data.references)
    with export_index(source, target, bias=bias, ids=ids) as index:
        copied = SimpleNamespace(gallery=gallery, queries=data.queries, bias=bias)
        case = SimpleNamespace(recall=1, tolerance=1e-4)
        check(case, index.search(data.queries, k=5), exact(copied, k=5, ids=ids))
        after = list(index.scan())
    known = {i: m for batch in after for i, m in zip(batch.ids, batch.metadata, strict=True)}
    assert [dict(known[i]) for i in before[0]] == before[2]
    still = contents(source)
    assert (still[0], still[2]) == (before[0], before[2])
    np.testing.assert_array_equal(still[1], before[1])
    assert source.read_note() is None
    source.close()


# --- all of them ---------------------------------------------------------------------------------

PLACES = {
    "pgvector": lambda folder: PgvectorStore(postgres(), unique(folder, "ways")),
    "qdrant": lambda folder: QdrantStore(folder / "q", "ways"),
    "qdrant-edge": lambda folder: QdrantEdgeStore(folder / "edge", kind="flat"),
    "lancedb": lambda folder: LancedbStore(folder / "lance", "ways"),
    "chroma": lambda folder: ChromaStore(folder / "chroma", "ways", ef=500),
    "milvus": lambda folder: MilvusStore(folder / "milvus.db", "ways"),
}


@pytest.mark.parametrize("way", ["ip", "l2", "cosine", "rerank"])
@pytest.mark.parametrize("engine", PLACES)
def test_every_way_of_an_engine_gives_the_exact_ranking(engine, way, folder, data):
    with build_index(PLACES[engine](folder), data.gallery, data.bias, ids=NAMES, way=way) as index:
        check(EXACT, index.search(data.queries, k=5), exact(data, k=5, ids=NAMES))
        read = {
            i: v for batch in index.scan(25) for i, v in zip(batch.ids, batch.values, strict=True)
        }
    np.testing.assert_allclose([read[name] for name in NAMES], data.bias.values, atol=1e-6)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("qdrant://127.0.0.1:{}/photos", "Qdrant can't be reached at http://127.0.0.1"),
        ("chroma://127.0.0.1:{}/photos", "Chroma can't be reached at http://127.0.0.1"),
        ("milvus://127.0.0.1:{}/photos", "Milvus can't be reached at http://127.0.0.1"),
        (
            "pgvector://postgres@127.0.0.1:{}/shop?table=photos",
            "PostgreSQL can't be reached at 127.0.0.1/shop",
        ),
    ],
    ids=["qdrant", "chroma", "milvus", "pgvector"],
)
def test_a_server_that_is_not_there_is_one_sentence(url, sentence, data):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = url.format(taken.getsockname()[1])
        with pytest.raises(nnnorm.NNNormError, match=f"{sentence}.*that the server runs") as told:
            open_index(address)
        assert "\n" not in str(told.value)
        with pytest.raises(nnnorm.NNNormError, match=sentence):
            build_index(address, data.gallery, data.bias)


@pytest.mark.parametrize("engine", PLACES)
def test_ids_of_another_kind_are_refused(engine, folder, data):
    with build_index(PLACES[engine](folder), data.gallery, data.bias, ids=NAMES) as index:
        new = make_data(1, 1, 9, unit=False, bank=data.references)
        with pytest.raises(nnnorm.NNNormError, match="are strings; got whole numbers"):
            index.add(new.gallery, new.bias, ids=[7])
        assert not index.store.present(np.array([7])).any()
        assert len(index) == 60


@pytest.mark.parametrize("engine", PLACES)
def test_looking_for_a_collection_makes_nothing(engine, tmp_path):
    assert PLACES[engine](tmp_path / "nowhere").facts() is None
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("qdrant://box:6333/photos", "qdrant collection photos of http://box:6333"),
        ("qdrant://box/photos?https=true", "qdrant collection photos of https://box"),
        ("qdrant:folder?collection=photos", "qdrant collection photos of folder"),
        ("qdrant-edge:/folder/photos", "qdrant-edge /folder/photos"),
        ("chroma:///folder?collection=photos", "chroma collection photos of /folder"),
        ("chroma://box:8000/photos", "chroma collection photos of http://box:8000"),
        ("milvus:photos.db?collection=photos", "milvus collection photos of photos.db"),
        ("milvus://box:19530/photos", "milvus collection photos of http://box:19530"),
        ("lancedb:folder?table=photos", "lancedb table photos of folder"),
        ("pgvector://me:secret@box/shop?table=photos", "pgvector table photos of box/shop"),
        ("pgvector://me@/shop?table=a.b&host=/run/pg", "pgvector table a.b of /run/pg/shop"),
    ],
)
def test_a_url_names_a_collection_and_no_message_a_password(url, name):
    assert open_store(url).name == name


@pytest.mark.parametrize("engine", ["pgvector", "qdrant", "qdrant-edge", "lancedb", "milvus"])
def test_an_unknown_kind_is_refused(engine):
    with pytest.raises(nnnorm.NNNormError, match=r"kind must be one of .*; got 'tree'"):
        open_store(f"{engine}:photos.db?kind=tree")


# --- Qdrant ---------------------------------------------------------------------------------------


def fill_qdrant(folder, data, distance):
    client = QdrantClient(path=str(folder / "qdrant"))
    client.create_collection("mine", models.VectorParams(size=9, distance=distance))
    points = [
        models.PointStruct(id=7 * row, vector=vector, payload={"tags": ["a", {"n": row}]})
        for row, vector in enumerate(data.gallery.tolist())
    ]
    client.upsert("mine", points)
    client.close()
    return QdrantStore(folder / "qdrant", "mine"), [7 * row for row in range(60)]


def test_qdrants_cosine_collections_normalise_what_they_store(folder, data):
    shard = qdrant_edge.EdgeShard.create(
        str(folder),
        qdrant_edge.EdgeConfig(
            vectors=qdrant_edge.EdgeVectorParams(size=9, distance=qdrant_edge.Distance.Cosine)
        ),
    )
    points = [qdrant_edge.Point(row, vector) for row, vector in enumerate(data.gallery.tolist())]
    shard.update(qdrant_edge.UpdateOperation.upsert_points(points))
    shard.close()
    store = QdrantEdgeStore(folder)
    (items,) = store.scan()
    np.testing.assert_allclose(np.linalg.norm(items.vectors, axis=1), 1, atol=1e-5)
    assert np.ptp(np.linalg.norm(data.gallery, axis=1)) > 0.5
    # So one more coordinate would be scaled with each item: such a collection is refused for it.
    narrow = make_data(60, 7, 8, unit=False)
    with pytest.raises(nnnorm.NNNormError, match=r"compares by cosine.*'ip' needs ip"):
        build_index(store, narrow.gallery, narrow.bias, way="ip")
    store.close()


def test_a_qdrant_collection_keeps_ids_and_payload_in_its_corrected_copy(folder, data):
    source, ids = fill_qdrant(folder, data, models.Distance.DOT)
    check_export(source, QdrantStore(folder / "qdrant", "corrected"), data, ids=ids)


@pytest.mark.filterwarnings("ignore:whether this bias was fitted on the items:UserWarning")
def test_a_corrected_copy_of_a_cosine_collection_ranks_by_cosine(folder, data):
    source, ids = fill_qdrant(folder, data, models.Distance.COSINE)
    unit = data.gallery / np.linalg.norm(data.gallery, axis=1, keepdims=True)
    target = QdrantStore(folder / "qdrant", "corrected")
    check_export(source, target, data, ids=ids, gallery=unit)


def test_names_become_uuids_and_stay_readable(folder, data):
    own = ["3f2504e0-4f89-41d3-9a0c-0305e82c3301", *NAMES[1:]]
    with build_index(
        QdrantStore(folder / "q", "photos"), data.gallery, data.bias, ids=own, way="rerank"
    ) as index:
        client = index.store.client
        found = client.retrieve("photos", [own[0]])
        assert "nnnorm_id" not in found[0].payload
        assert client.count("photos").count == 60
        check(EXACT, index.search(data.queries, k=5), exact(data, k=5, ids=own))


def test_a_name_is_found_among_numbers_that_another_program_wrote_first(folder, data):
    store = QdrantStore(folder / "q", "photos")
    with build_index(store, data.gallery, data.bias) as index:
        first = index.search(data.queries, k=5)  # numbers only, so nothing else is asked for
        vector = index.store.client.retrieve("photos", [first.ids[0, 0].item()], with_vectors=True)
        named = {"id": "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "vector": vector[0].vector}
        point = models.PointStruct(**named, payload={"nnnorm_id": "beach"})
        index.store.client.upsert("photos", [point])
        assert "beach" in index.search(data.queries[:1], k=5).ids[0, :2].tolist()
        assert "beach" in index.search(data.queries[:1], k=5).ids[0, :2].tolist()


def test_named_vectors_are_chosen_by_name(folder, data):
    client = QdrantClient(path=str(folder / "q"))
    params = models.VectorParams(size=9, distance=models.Distance.DOT)
    client.create_collection("mine", {"image": params, "text": params})
    client.upsert(
        "mine",
        [
            models.PointStruct(id=row, vector={"image": v, "text": v[::-1]}, payload={"row": row})
            for row, v in enumerate(data.gallery.tolist())
        ],
    )
    client.close()
    store = QdrantStore(folder / "q", "mine")
    with pytest.raises(nnnorm.NNNormError, match="has 2 kinds of vectors; choose one with vector="):
        store.facts()
    store.close()
    with pytest.raises(nnnorm.NNNormError, match=r"has no vector 'sound'.*image, text"):
        QdrantStore(folder / "q", "mine", vector="sound").facts()
    _, vectors, known = contents(QdrantStore(folder / "q", "mine", vector="text"))
    np.testing.assert_array_equal(vectors, data.gallery[:, ::-1])
    assert known == [{"row": row} for row in range(60)]


@pytest.mark.parametrize("kind", ["qdrant", "edge"])
def test_a_corrected_collection_may_have_a_named_vector(kind, folder, data):
    for vector in ("image", ""):  # named when it is made, and found as the only one afterwards
        if kind == "qdrant":
            store = QdrantStore(folder / "q", "photos", vector=vector)
        else:
            store = QdrantEdgeStore(folder / "shard", vector=vector)
        with build_index(store, data.gallery, data.bias) if vector else open_index(store) as index:
            check(EXACT, index.search(data.queries, k=5), exact(data, k=5))


def test_the_embedded_engine_ranks_right_through_its_graph(folder):
    larger = make_data(2000, 30, 33, unit=True)
    folder.mkdir(exist_ok=True)
    config = qdrant_edge.EdgeConfig(
        vectors=qdrant_edge.EdgeVectorParams(size=34, distance=qdrant_edge.Distance.Dot),
        hnsw_config=qdrant_edge.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=1),
        optimizers=qdrant_edge.EdgeOptimizersConfig(indexing_threshold=1),
    )
    qdrant_edge.EdgeShard.create(str(folder / "shard"), config).close()
    with build_index(QdrantEdgeStore(folder / "shard"), larger.gallery, larger.bias) as index:
        assert index.store.client.info().indexed_vectors_count >= 1000  # a graph was built
        case = SimpleNamespace(recall=0.99, tolerance=1e-5)
        check(case, index.search(larger.queries), exact(larger))


def test_a_quantised_shard_is_named_as_a_trap(folder):
    larger = make_data(2000, 30, 33, unit=True)
    folder.mkdir(exist_ok=True)

    def make(name, **options):
        config = qdrant_edge.EdgeConfig(
            vectors=qdrant_edge.EdgeVectorParams(size=34, distance=qdrant_edge.Distance.Dot),
            hnsw_config=qdrant_edge.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=1),
            optimizers=qdrant_edge.EdgeOptimizersConfig(indexing_threshold=1),
            **options,
        )
        qdrant_edge.EdgeShard.create(str(folder / name), config).close()
        return build_index(QdrantEdgeStore(folder / name, ef=10), larger.gallery, larger.bias)

    right = {"gallery": larger.gallery, "bias": larger.bias}
    codes = qdrant_edge.BinaryQuantizationConfig()
    with make("binary", quantization_config=codes) as index:
        result = verify_index(index, larger.queries, **right)
        assert result.recall < 0.9
        assert (
            "stored in few bits (binary), and the coordinate of the bias is" in result.problems[0]
        )
    with make("plain") as index:
        assert index.store.traps() == []


def test_a_quantised_collection_is_named_as_a_trap(folder):
    """Local mode says what the collection of a server would be; it stores float32 itself."""
    client = QdrantClient(path=str(folder / "q"))
    codes = models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8)
    )
    params = {"size": 9, "distance": models.Distance.DOT, "datatype": models.Datatype.FLOAT16}
    client.create_collection("mine", models.VectorParams(**params, quantization_config=codes))
    client.create_collection("plain", models.VectorParams(size=9, distance=models.Distance.DOT))
    client.close()
    store = QdrantStore(folder / "q", "mine")
    assert "in few bits (scalar and float16)" in store.traps()[0]
    store.close()
    assert QdrantStore(folder / "q", "plain").traps() == []


# --- pgvector -------------------------------------------------------------------------------------


def fill_table(sql, table, data, more=""):
    sql(
        f"CREATE TABLE {table} (photo_id uuid PRIMARY KEY, clip vector(9), taken date, "
        f"price numeric(8, 2){more})"
    )
    ids = [f"00000000-0000-4000-8000-{row:012d}" for row in range(60)]
    for row, own in enumerate(ids):
        sql(
            f"INSERT INTO {table} VALUES (%s, %s, %s, %s)",
            [own, text(data.gallery[row]), f"2024-01-{1 + row % 28:02d}", f"{row}.50"],
        )
    return ids


def test_pgvectors_operator_gives_minus_the_product(sql, table, data):
    with build_index(PgvectorStore(postgres(), table), data.gallery, data.bias) as index:
        asked = np.append(data.queries[0], -data.bias.weight)
        own = sql(
            f"SELECT id, embedding <#> %s::vector FROM {table} ORDER BY 2 LIMIT 5", [text(asked)]
        ).fetchall()
        ranking = index.search(data.queries[:1], k=5)
    assert [row[0] for row in own] == ranking.ids[0].tolist()
    shift = data.bias.weight * index.recipe.shift
    np.testing.assert_allclose([-row[1] - shift for row in own], ranking.scores[0], atol=1e-5)


def test_a_table_keeps_its_ids_and_columns_in_its_corrected_copy(sql, table, data):
    ids = fill_table(sql, table, data)
    source = PgvectorStore(postgres(), table, metric="ip")
    check_export(source, PgvectorStore(postgres(), f"{table}_new"), data, ids=ids)
    known = contents(source)[2]
    assert known[3] == {"taken": "2024-01-04", "price": 3.5}
    source.close()


def test_columns_that_could_be_meant_are_asked_for(sql, table, data):
    fill_table(sql, table, data, more=", dino vector(9)")
    with pytest.raises(nnnorm.NNNormError, match=r"has clip, dino; name the column with embedding"):
        PgvectorStore(postgres(), table).facts()
    assert PgvectorStore(postgres(), table, embedding="clip", metric="l2").facts().width == 9
    with pytest.raises(nnnorm.NNNormError, match="has no embedding column 'sift'"):
        PgvectorStore(postgres(), table, embedding="sift").facts()
    sql(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, DROP COLUMN dino")
    with pytest.raises(nnnorm.NNNormError, match="must have a primary key of one column"):
        PgvectorStore(postgres(), table).facts()
    assert len(contents(PgvectorStore(postgres(), table, id="photo_id"))[0]) == 60


@pytest.mark.parametrize(
    ("operators", "metric"),
    [("vector_ip_ops", "ip"), ("vector_cosine_ops", "cosine"), ("vector_l2_ops", "l2")],
)
def test_a_tables_metric_is_that_of_its_index(sql, table, data, operators, metric):
    fill_table(sql, table, data)
    with pytest.raises(nnnorm.NNNormError, match="does not state its metric, and its vectors have"):
        PgvectorStore(postgres(), table).facts()
    assert PgvectorStore(postgres(), table, metric="l2").facts().metric == "l2"
    sql(f"CREATE INDEX ON {table} USING hnsw (clip {operators})")
    assert PgvectorStore(postgres(), table).facts().metric == metric


def test_the_corrected_search_uses_the_index(sql, table, data):
    store = PgvectorStore(postgres() + "&options=-c%20enable_seqscan%3Doff", table, kind="hnsw")
    with build_index(store, data.gallery, data.bias) as index:
        check(EXACT, index.search(data.queries, k=5), exact(data, k=5))
    sql("SET enable_seqscan = off")
    plan = sql(
        f"EXPLAIN SELECT id FROM {table} ORDER BY embedding <#> %s::vector LIMIT 5",
        [text(np.zeros(10))],
    ).fetchall()
    assert f"Index Scan using {table}_embedding_idx" in plan[1][0]


def test_a_graph_that_is_too_wide_for_pgvector_is_named(table):
    wide = make_data(3, 1, 2000, unit=True)
    store = PgvectorStore(postgres(), table, kind="hnsw")
    with pytest.raises(nnnorm.NNNormError, match=r"at most 2000 dimensions.*need 2001"):
        build_index(store, wide.gallery, wide.bias)
    assert store.facts() is None
    store.close()


def test_what_postgresql_refuses_is_one_sentence(sql, table, data):
    sql(f"CREATE TABLE {table} (id bigint PRIMARY KEY, embedding vector(9))")
    with pytest.raises(nnnorm.NNNormError, match=r"PostgreSQL says: .*nnnorm_bias"):
        build_index(PgvectorStore(postgres(), table), data.gallery, data.bias, way="rerank")


def test_the_sql_of_the_page_gives_the_corrected_ranking(tmp_path):
    """All statements of docs/engines/pgvector.md, on the table that its Python makes."""
    page = (Path(__file__).parents[2] / "docs/engines/pgvector.md").read_text(encoding="utf-8")
    python = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    statements = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    names = {"address": new_database(tmp_path)}
    exec("\n".join(python[1:-1]), names)  # the first starts a server, the last stops it
    run, bias, ran = names["connection"].execute, names["bias"], []
    run("SET enable_seqscan = off")
    for statement in "\n".join(statements).split(";"):
        if "SELECT" in statement:
            found = []
            for query in np.asarray(names["queries"]):
                filled = statement.replace(":query", f"'{text(query)}'")
                rows = run(filled.replace(":alpha", repr(bias.weight)).encode()).fetchall()
                found.append([row[0] for row in rows])
                assert rows[0][1] == f"Photo {rows[0][0]}"
            both = zip(found, names["right"].tolist(), strict=True)
            assert sum(len(set(hits) & set(best)) for hits, best in both) >= 99
            ran.append("SELECT")
        elif "CREATE TABLE" in statement:  # what the export made
            made = statement.replace("photos_corrected", "photos_as_shown")
            run(made.encode())
            shown, real = (
                run(
                    "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
                    " WHERE attrelid = to_regclass(%s) AND attnum > 0 ORDER BY attnum",
                    [name],
                ).fetchall()
                for name in ("photos_as_shown", "photos_corrected")
            )
            assert shown == real
            ran.append("TABLE")
        elif statement.strip():
            run(statement.encode())
            ran.append("INDEX")
            plan = "EXPLAIN " + statements[1].split(";")[1]
            asked = plan.replace(":query", f"'{text(np.zeros(64))}'").replace(":alpha", "0.5")
            assert "Index Scan using photos_nnnorm" in str(run(asked.encode()).fetchall())
    assert ran == ["SELECT", "INDEX", "SELECT", "TABLE", "SELECT"]
    names["connection"].close()


# --- LanceDB --------------------------------------------------------------------------------------


def fill_lance(folder, data):
    rows = {
        "id": [f"p{row:02d}" for row in range(60)],
        "vector": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(data.gallery.ravel()), 9),
        "year": list(range(1960, 2020)),
    }
    return lancedb.connect(folder / "lance").create_table("mine", pyarrow.table(rows))


def test_lancedb_compares_by_l2_where_a_query_says_nothing(folder, data):
    with build_index(LancedbStore(folder / "lance", "photos"), data.gallery, data.bias) as index:
        table = index.store.table
        asked = index.recipe.ask(data.queries[:1], data.bias.weight)[0]
        silent = table.search(asked).limit(5).to_arrow()["id"].to_pylist()
        said = table.search(asked).distance_type("dot").limit(5).to_arrow()["id"].to_pylist()
        right = exact(data, k=5).ids[0].tolist()
        assert said == right
        assert silent != right
        assert index.search(data.queries[:1], k=5).ids[0].tolist() == right


def test_an_index_of_another_metric_is_named_as_a_trap(folder, data):
    with build_index(
        LancedbStore(folder / "lance", "photos", kind="ivf", cells=2), data.gallery, data.bias
    ) as index:
        table = index.store.table
        assert table.index_stats("vector_idx").distance_type == "dot"
        assert index.store.traps() == []
        table.create_index("vector", config=IvfFlat(distance_type="l2", num_partitions=2))
        assert "its index compares by l2, and queries by dot" in index.store.traps()[0]
        check(EXACT, index.search(data.queries, k=5), exact(data, k=5))  # it falls back


def test_a_quantised_index_is_named_as_a_trap(folder):
    larger = make_data(300, 5, 15, unit=True)
    with build_index(LancedbStore(folder / "lance"), larger.gallery, larger.bias) as index:
        config = IvfPq(distance_type="dot", num_partitions=1, num_sub_vectors=4)
        index.store.table.create_index("vector", config=config)
        assert "IvfPq is quantised" in index.store.traps()[0]


def test_a_lance_table_keeps_ids_and_columns_in_its_corrected_copy(folder, data):
    table = fill_lance(folder, data)
    table.create_index("vector", config=IvfFlat(distance_type="dot", num_partitions=2))
    ids = [f"p{row:02d}" for row in range(60)]
    source = LancedbStore(folder / "lance", "mine")
    assert source.facts().metric == "ip"
    check_export(source, LancedbStore(folder / "lance", "corrected"), data, ids=ids)
    assert contents(source)[2][1] == {"year": 1961}


def test_ids_that_a_source_has_twice_are_named(folder, data):
    """LanceDB has no unique keys."""
    table = fill_lance(folder, data)
    table.add(table.to_arrow().slice(7, 1))
    source = LancedbStore(folder / "lance", "mine")
    target = LancedbStore(folder / "lance", "corrected")
    with pytest.raises(nnnorm.NNNormError, match=r"ids of lancedb .*mine.* unique, but p07 occurs"):
        export_index(source, target, references=data.references)
    assert target.facts() is None
    assert source.facts().n_items == 61


def test_lance_columns_that_are_missing_are_asked_for(folder, data):
    fill_lance(folder, data)
    with pytest.raises(
        nnnorm.NNNormError, match="has no column key; name the column of the ids with id"
    ):
        LancedbStore(folder / "lance", "mine", id="key").present(np.array(["a"]))
    with pytest.raises(nnnorm.NNNormError, match=r"has no vectors 'clip'.*embedding=: vector"):
        LancedbStore(folder / "lance", "mine", embedding="clip").facts()


# --- Chroma ---------------------------------------------------------------------------------------


def fill_chroma(client, data):
    mine = client.create_collection(
        "mine", configuration={"hnsw": {"space": "ip", "ef_search": 500}}, embedding_function=None
    )
    mine.add(
        ids=NAMES,
        embeddings=data.gallery,
        metadatas=[{"year": 1960 + row, "is_old": row < 9} for row in range(60)],
        documents=[f"a photo of {row} things" for row in range(60)],
    )
    return mine


def test_chroma_returns_one_minus_the_product(folder, data):
    store = ChromaStore(folder / "chroma", "photos", ef=500)
    with build_index(store, data.gallery, data.bias) as index:
        asked = index.recipe.ask(data.queries[:1], data.bias.weight)
        own = store.found.query(query_embeddings=asked, n_results=5)
        ranking = index.search(data.queries[:1], k=5)
    assert own["ids"][0] == [str(i) for i in ranking.ids[0]]
    products = 1 - np.array(own["distances"][0]) - data.bias.weight * index.recipe.shift
    np.testing.assert_allclose(products, ranking.scores[0], atol=1e-5)


def test_chroma_passes_over_ids_that_are_there_and_we_say_so(folder, data):
    with build_index(ChromaStore(folder / "c", "photos"), data.gallery, data.bias) as index:
        own = index.store.found
        own.add(ids=["5"], embeddings=np.ones((1, 10), dtype=np.float32))
        np.testing.assert_allclose(
            own.get(ids=["5"], include=["embeddings"])["embeddings"][0][:9],
            data.gallery[5],
            atol=1e-6,
        )
        new = bias_of(data, data.gallery[:1])
        with pytest.raises(nnnorm.NNNormError, match="already has the id 5"):
            index.add(data.gallery[:1], new, ids=[5])


def test_a_chroma_collection_keeps_ids_metadata_and_documents(folder, data):
    client = chromadb.PersistentClient(folder / "chroma")
    fill_chroma(client, data)
    source = ChromaStore(folder / "chroma", "mine")
    target = ChromaStore(folder / "chroma", "corrected", ef=500)
    check_export(source, target, data, ids=NAMES)
    copy = client.get_collection("corrected", embedding_function=None)
    found = copy.get(where={"year": 1963})  # metadata can still be filtered by
    assert found["ids"] == [NAMES[3]]
    assert found["documents"] == ["a photo of 3 things"]


def test_metadata_that_chroma_has_no_kind_for_survives(folder, data):
    known = [{"tags": ["a", row], "none": None, "size": 2**70, "n": 1.5} for row in range(60)]
    with build_index(
        ChromaStore(folder / "c", "photos"), data.gallery, data.bias, metadata=known
    ) as index:
        assert contents(index.store)[2] == known


def test_more_hits_than_chromas_database_takes_at_once(folder):
    larger = make_data(1100, 40, 9, unit=True)
    store = ChromaStore(folder / "c", "photos", ef=1100)
    with build_index(store, larger.gallery, larger.bias, way="rerank") as index:
        assert index.search(larger.queries, k=1000).ids.shape == (40, 1000)


@contextlib.contextmanager
def chroma_server(folder):
    """Serve a folder; where another process took the port in between, on another port."""
    code = "from chromadb.cli.cli import app; app()"
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(
            [sys.executable, "-c", code, "run", "--path", str(folder), "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while server.poll() is None:
                try:
                    open_store(f"chroma://127.0.0.1:{port}/photos").facts()
                except nnnorm.NNNormError:  # not yet
                    time.sleep(0.2)
                    continue
                yield f"127.0.0.1:{port}"
                return
        finally:
            server.kill()
            server.wait()
    pytest.fail("the server of Chroma ended by itself five times")


def test_a_chroma_server_does_the_same(tmp_path, data):
    with chroma_server(tmp_path / "served") as address:
        url = f"chroma://{address}/photos?ef=500"
        build_index(url, data.gallery, data.bias, ids=NAMES).close()
        with open_index(url) as index:
            check(EXACT, index.search(data.queries, k=5), exact(data, k=5, ids=NAMES))


# --- Milvus ---------------------------------------------------------------------------------------


def test_milvus_takes_an_id_twice_and_we_do_not(folder, data):
    with build_index(MilvusStore(folder / "m.db", "photos"), data.gallery, data.bias) as index:
        own = index.store.client
        row = {"id": 900, "embedding": [0.0] * 10, "metadata": {}}
        assert own.insert("photos", [row])["insert_count"] == 1
        assert own.insert("photos", [row])["insert_count"] == 1  # no word of it
        new = bias_of(data, data.gallery[:1])
        with pytest.raises(nnnorm.NNNormError, match="already has the id 900"):
            index.add(data.gallery[:1], new, ids=[900])


def test_milvus_lite_compares_by_whatever_a_search_says(folder, data):
    store = MilvusStore(folder / "m.db", "photos")
    store.create(9, "ip", strings=False, sample=Sample(60, lambda: data.gallery))
    store.add(Items(np.arange(60), data.gallery))  # not flushed yet, so without an index
    asked = {"collection_name": "photos", "data": data.queries[:1].tolist(), "limit": 3}
    own = store.client
    other = own.search(**asked, search_params={"metric_type": "L2"})[0]
    squared = ((data.gallery - data.queries[0]) ** 2).sum(axis=1)
    np.testing.assert_allclose([hit["distance"] for hit in other], np.sort(squared)[:3], rtol=1e-5)
    products = np.sort(data.gallery @ data.queries[0])[::-1][:3]
    np.testing.assert_allclose(store.search(data.queries[:1], 3).scores[0], products, rtol=1e-5)
    store.close()


def test_a_milvus_collection_keeps_ids_and_fields_in_its_corrected_copy(folder, data):
    client = MilvusClient(str(folder / "m.db"))
    schema = client.create_schema(enable_dynamic_field=True)
    schema.add_field("sku", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("clip", DataType.FLOAT_VECTOR, dim=9)
    schema.add_field("year", DataType.INT64)
    index = client.prepare_index_params()
    index.add_index("clip", index_type="FLAT", metric_type="IP")
    client.create_collection("mine", schema=schema, index_params=index)
    client.insert(
        "mine",
        [
            {"sku": name, "clip": vector, "year": 1960 + row, "tags": {"n": [row]}}
            for row, (name, vector) in enumerate(zip(NAMES, data.gallery.tolist(), strict=True))
        ],
    )
    source = MilvusStore(folder / "m.db", "mine")
    check_export(source, MilvusStore(folder / "m.db", "corrected"), data, ids=NAMES)
    assert {"year": 1963, "tags": {"n": [3]}} in contents(source)[2]
    client.close()


def test_a_filter_that_milvus_refuses_is_one_sentence_without_its_log(folder, data, caplog):
    index = build_index(MilvusStore(folder / "milvus.db", "filters"), data.gallery, data.bias)
    with pytest.raises(nnnorm.NNNormError, match="Milvus says: unexpected character '='"):
        index.search(data.queries[:1], k=3, filter="a=")
    assert [one for one in caplog.records if one.name.startswith("pymilvus")] == []
    index.close()


def test_a_file_of_milvus_must_say_that_it_is_one():
    with pytest.raises(nnnorm.NNNormError, match=r"that ends in \.db.*got 'photos'"):
        open_store("milvus:photos?collection=photos")
