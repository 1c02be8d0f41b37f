"""What a living collection needs of Qdrant, Qdrant Edge, Chroma and Milvus, on the real engine.

Two generations and their exchange, also after a kill at any step; upserts that replace; filters in
the engine's own language; clients and collections that are the caller's own.
"""

import asyncio
import os
import shutil
import sys
import threading

import chromadb
import numpy as np
import pytest
import qdrant_edge
from pymilvus import DataType, MilvusClient
from qdrant_client import QdrantClient, models

import nnnorm
from nnnorm.index import Items, build_index, export_index, open_index, open_store
from nnnorm.index.store import Sample
from nnnorm.index.stores.chroma import ChromaStore
from nnnorm.index.stores.milvus import MilvusStore
from nnnorm.index.stores.qdrant import QdrantStore
from nnnorm.index.stores.qdrant_edge import QdrantEdgeStore
from tests.index.living import make_context, start_server
from tests.index.test_index import make_data
from tests.index.test_index_servers import chroma_server
from tests.servers import clear_memory, in_memory, release_milvus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning"),
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning"),
]
URLS = {
    "qdrant": "qdrant:{}/q?collection=photos",
    "qdrant-edge": "qdrant-edge:{}/edge?kind=flat",
    "chroma": "chroma:{}/chroma?collection=photos&ef=500",
    "milvus": "milvus:{}/milvus.db?collection=photos",
}
FILTERS = {
    "qdrant": models.Filter(must=[models.FieldCondition(key="year", range=models.Range(gte=40))]),
    "qdrant-edge": qdrant_edge.Filter(
        must=[qdrant_edge.FieldCondition("year", range=qdrant_edge.RangeFloat(gte=40))]
    ),
    "chroma": {"year": {"$gte": 40}},
    "milvus": "year >= 40",
}
AS_JSON = {
    "qdrant": '{"must": [{"key": "year", "range": {"gte": 40}}]}',
    "qdrant-edge": '{"must": [{"key": "year", "range": {"gte": 40}}]}',
    "chroma": '{"year": {"$gte": 40}}',
    "milvus": "year >= 40",
}
every_engine = pytest.mark.parametrize("engine", URLS)
NOTE = {"format": "nnnorm.index/1", "generation": "old"}


@pytest.fixture
def folder(tmp_path):
    yield in_memory(tmp_path)
    clear_memory()


@pytest.fixture
def data():
    return make_data(60, 7, 9, unit=True)


def make(engine, folder):
    return open_store(URLS[engine].format(folder))


def rows(n, *, start=0, seed=0, values=True):
    vectors = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    ids = np.arange(start, start + n)
    known = [{"year": int(own), "title": f"Photo {own}"} for own in ids]
    return Items(ids, vectors, vectors[:, 0].copy() if values else None, known)


def fill(store, items, note=NOTE):
    store.create(8, "ip", strings=False, sample=Sample(len(items), lambda: items.vectors))
    store.write_note(note)
    store.add(items)
    store.save()
    return store


def best(store, items, k=1, **options):
    """The ids that a store finds for the vectors of these items."""
    return store.search(items.vectors, k, **options).ids


def nearest(items, queries, k=1):
    return items.ids[np.argsort(-(queries.vectors @ items.vectors.T), axis=1)[:, :k]]


def contents(store):
    return {
        own: (vector, None if batch.values is None else float(batch.values[place]), dict(known))
        for batch in store.scan(25)
        for place, (own, vector, known) in enumerate(
            zip(batch.ids.tolist(), batch.vectors, batch.metadata_list(), strict=True)
        )
    }


def check_contents(store, items):
    found = contents(store)
    assert sorted(found) == sorted(items.ids.tolist())
    for place, own in enumerate(items.ids.tolist()):
        vector, value, known = found[own]
        np.testing.assert_allclose(vector, items.vectors[place], atol=1e-6)
        assert known == items.metadata_list()[place]
        if items.values is not None:
            assert value == pytest.approx(float(items.values[place]))


# --- upserts --------------------------------------------------------------------------------------


@every_engine
def test_an_upsert_adds_and_replaces_vectors_values_and_all_metadata(engine, folder):
    store = fill(make(engine, folder), rows(60))
    new = rows(20, start=50, seed=1)
    new = Items(new.ids, new.vectors, new.values, [{"place": f"shelf {i}"} for i in new.ids])
    store.upsert(new)
    assert store.facts().n_items == 70
    old = rows(60).take(np.arange(50))
    check_contents(
        store,
        Items(
            *map(
                np.concatenate,
                zip(
                    (old.ids, old.vectors, old.values),
                    (new.ids, new.vectors, new.values),
                    strict=True,
                ),
            ),
            [*old.metadata, *new.metadata],
        ),
    )
    assert store.metadata_of(np.array([55, 3])) == [
        {"place": "shelf 55"},
        {"year": 3, "title": "Photo 3"},
    ]
    store.close()


def test_an_upsert_without_a_document_removes_that_of_chroma(folder):
    store = fill(make("chroma", folder), rows(3))
    new = rows(3, seed=1)
    texts = [{"chroma:document": f"text {i}", "tags": ["a", "b"]} for i in new.ids]
    store.upsert(Items(new.ids, new.vectors, new.values, texts))
    check_contents(store, Items(new.ids, new.vectors, new.values, texts))
    store.upsert(new)
    check_contents(store, new)
    store.close()


# --- filters --------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("written", [FILTERS, AS_JSON], ids=["object", "json"])
def test_a_filter_gives_k_hits_among_those_that_match(engine, written, folder):
    items = rows(60)
    store = fill(make(engine, folder), items)
    assert store.filters
    queries = rows(7, seed=2)
    found = best(store, queries, k=10, filter=written[engine])
    matching = items.take(items.ids >= 40)
    np.testing.assert_array_equal(found, nearest(matching, queries, 10))
    store.close()


WRONG = {
    "qdrant": {"mustt": []},
    "qdrant-edge": {"mustt": []},
    "chroma": {"year": {"$after": 1}},
    "milvus": "year >",
}


@every_engine
def test_a_filter_that_the_engine_refuses_is_one_sentence(engine, folder):
    store = fill(make(engine, folder), rows(5))
    with pytest.raises(nnnorm.NNNormError) as caught:
        store.search(rows(1).vectors, 3, WRONG[engine])
    assert "\n" not in str(caught.value)
    if engine != "milvus":
        with pytest.raises(nnnorm.NNNormError, match=r"the filter must be .* in JSON; got"):
            store.search(rows(1).vectors, 3, "{year")
    store.close()


def test_the_embedded_engine_reads_the_servers_conditions(folder):
    store = fill(make("qdrant-edge", folder), rows(60))

    def ids(**conditions):
        found = store.search(rows(1).vectors, 60, conditions)
        return sorted(found.ids[0].tolist())

    assert ids(must={"key": "title", "match": {"value": "Photo 7"}}) == [7]
    assert ids(should=[{"key": "year", "match": {"any": [3, 5]}}, {"has_id": [9]}]) == [3, 5, 9]
    assert ids(must=[{"key": "year", "match": {"except": list(range(58))}}]) == [58, 59]
    young = {"key": "year", "range": {"lt": 3}}
    assert ids(must=[{"should": [young, {"key": "year", "range": {"gt": 57}}]}]) == [
        0,
        1,
        2,
        58,
        59,
    ]
    assert ids(must=[young], must_not=[{"key": "year", "match": {"value": 1}}]) == [0, 2]
    store.close()


# --- generations ----------------------------------------------------------------------------------


@every_engine
def test_an_exchange_serves_the_other_generation_and_can_be_undone(engine, folder):
    old, new = rows(40), rows(60, seed=1)
    store = fill(make(engine, folder), old)
    other = store.other()
    assert other.facts() is None
    fill(other, new, {**NOTE, "generation": "new"})
    check_contents(store, old)

    for served, kept, name in ((new, old, "new"), (old, new, "old"), (new, old, "new")):
        store.exchange()
        check_contents(store, served)
        check_contents(store.other(), kept)
        assert store.read_note()["generation"] == name
        store.close()
        store = make(engine, folder)  # as another process would find it
        check_contents(store, served)
        assert store.read_note()["generation"] == name
    store.other().drop()
    assert store.other().facts() is None
    check_contents(store, new)
    store.drop()
    assert store.facts() is None
    store.drop()
    store.close()


@every_engine
def test_a_dropped_collection_takes_both_generations_with_it(engine, folder):
    store = fill(make(engine, folder), rows(10))
    fill(store.other(), rows(10, seed=1))
    store.drop()
    assert store.facts() is None
    fill(store, rows(5))
    assert store.facts().n_items == 5
    assert store.other().facts() is None
    store.close()


@every_engine
def test_a_reader_stays_with_the_generation_that_it_opened(engine, folder):
    old, new = rows(40), rows(40, seed=1)
    writer = fill(make(engine, folder), old)
    fill(writer.other(), new, {**NOTE, "generation": "new"})
    reader = make(engine, folder)
    check_contents(reader, old)
    writer.exchange()
    check_contents(reader, old)
    assert reader.read_note()["generation"] == "old"
    with pytest.raises(nnnorm.NNNormError, match="was refreshed or rolled back since"):
        reader.upsert(old)
    with pytest.raises(nnnorm.NNNormError, match="was refreshed or rolled back since"):
        reader.delete(old.ids[:1])
    writer.other().drop()
    with pytest.raises(nnnorm.NNNormError, match="was refreshed again since it was opened"):
        reader.search(old.vectors, 3)
    reader.close()
    check_contents(reader, new)
    reader.close()
    writer.close()


@every_engine
def test_searches_of_many_threads_see_only_the_old_or_only_the_new(engine, folder):
    old, new = rows(40), rows(40, start=1000, seed=1)
    writer = fill(make(engine, folder), old)
    fill(writer.other(), new)
    seen, done, errors = set(), threading.Event(), []

    def read():
        try:
            while not done.is_set():
                store = make(engine, folder)
                found = best(store, old, k=10)
                kinds = set((found >= 1000).ravel().tolist())
                assert len(kinds) == 1
                right = new if kinds.pop() else old
                np.testing.assert_array_equal(found, nearest(right, old, 10))
                seen.add(right is new)
                store.close()
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for one in readers:
        one.start()
    for _ in range(5):
        writer.exchange()
    writer.other()
    done.set()
    for one in readers:
        one.join()
    assert not errors
    writer.close()


def die(url, part, step, method):
    """Run a method of a store, and end before a step of it."""
    renames = ("os.rename", "os.rmdir", "os.remove", "nnnorm.rename")  # replace is a rename
    done, modify = [0], chromadb.Collection.modify

    def count(event, args):
        done[0] += event in renames
        if done[0] == step:
            os._exit(9)

    def modify_and_tell(*args, **options):
        sys.audit("nnnorm.rename")
        return modify(*args, **options)

    chromadb.Collection.modify = modify_and_tell
    store = open_store(url)
    store = store.other() if part == "other" else store
    store.facts()
    sys.addaudithook(count)
    getattr(store, method)()


@pytest.fixture(scope="session")
def children():
    start_server()


def kill(engine, folder, step, method, part="served"):
    """Run a method in another process, which dies before a step of it."""
    release_milvus()
    arguments = (URLS[engine].format(folder), part, step, method)
    child = make_context().Process(target=die, args=arguments)
    child.start()
    child.join(120)
    assert child.exitcode == 9


STEPS = [
    ("qdrant", 1),
    ("milvus", 1),
    *((e, s) for e in ("qdrant-edge", "chroma") for s in (1, 2, 3)),
]


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize(("engine", "step"), STEPS)
def test_an_exchange_that_is_killed_leaves_one_generation_whole(engine, step, folder):
    old, new = rows(40), rows(60, seed=1)
    store = fill(make(engine, folder), old)
    fill(store.other(), new, {**NOTE, "generation": "new"})
    store.close()
    kill(engine, folder, step, "exchange")
    store = make(engine, folder)
    served = {"old": old, "new": new}[store.read_note()["generation"]]
    kept = new if served is old else old
    check_contents(store, served)
    check_contents(store.other(), kept)
    store.exchange()
    check_contents(store, kept)
    store.close()


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("step", [1, 2, 9])
def test_a_shard_whose_removal_was_killed_is_gone(step, folder):
    store = fill(make("qdrant-edge", folder), rows(40))
    fill(store.other(), rows(60, seed=1))
    store.close()
    kill("qdrant-edge", folder, step, "drop", "other")
    store = make("qdrant-edge", folder)
    assert (store.other().facts() is None) == (step > 1)
    check_contents(store, rows(40))
    store.other().drop()
    fill(store.other(), rows(5))
    store.exchange()
    check_contents(store, rows(5))
    store.close()


def test_milvus_lite_that_died_at_the_end_of_a_flush_has_no_item_twice(folder):
    """It removes its log of writes last, and reads it again where it is still there."""
    store, new = fill(make("milvus", folder), rows(40)), rows(20, start=40, seed=1)
    store.upsert(new)
    logs = list((folder / "milvus.db").glob("collections/*/wal/*.arrow"))
    written = [log.read_bytes() for log in logs]
    assert logs
    store.save()
    store.close()
    release_milvus()
    for log, content in zip(logs, written, strict=True):
        assert not log.exists()
        log.write_bytes(content)
    store = make("milvus", folder)
    assert store.facts().n_items == 60
    assert sorted(contents(store)) == list(range(60))
    found = best(store, new, k=20).tolist()
    assert all(len(set(ids)) == 20 for ids in found)
    store.close()


def test_milvus_lite_that_died_while_it_wrote_has_what_it_had_written(folder):
    """The log of writes that are in no data file is kept."""
    store = fill(make("milvus", folder), rows(40))
    store.upsert(rows(20, start=40, seed=1))
    copied = folder / "copied.db"
    shutil.copytree(folder / "milvus.db", copied)
    found = MilvusStore(copied, "photos")
    assert found.facts().n_items == 60
    found.close()
    store.close()


def test_a_folder_that_milvus_lite_can_not_open_is_one_sentence(folder, caplog):
    damaged = folder / "milvus.db"
    damaged.write_text("no folder")
    with pytest.raises(nnnorm.NNNormError, match="can't be opened by Milvus") as caught:
        make("milvus", folder).facts()
    assert "\n" not in str(caught.value)
    assert not caplog.records


def test_a_generation_that_milvus_was_killed_while_creating_is_replaced(folder, data, monkeypatch):
    corrector = nnnorm.Corrector.fit(data.gallery, data.references)
    index = build_index(make("milvus", folder), data.gallery, corrector)
    with monkeypatch.context() as patch:
        patch.setattr(MilvusClient, "create_index", lambda *_, **__: sys.exit("killed"))
        with pytest.raises(SystemExit):
            index.refresh(nnnorm.Corrector.fit(data.gallery, unit_rows(90)))
    index.close()
    refreshed(open_index(make("milvus", folder)), data).close()


# --- collections of the caller --------------------------------------------------------------------


def sparse(own):
    return {"indices": [own, own + 100], "values": [0.5, 0.25]}


def three_vectors(gallery):
    """Points with the vector to correct, another one, and a sparse one."""
    return [
        {"id": own, "image": row.tolist(), "text": [1.0, 0.0, float(own)], "words": sparse(own)}
        for own, row in enumerate(gallery)
    ]


def fill_qdrant(folder, gallery):
    client = QdrantClient(path=str(folder / "q"))
    client.create_collection(
        "mine",
        vectors_config={
            "image": models.VectorParams(size=9, distance=models.Distance.DOT),
            "text": models.VectorParams(size=3, distance=models.Distance.EUCLID),
        },
        sparse_vectors_config={"words": models.SparseVectorParams()},
    )
    points = [
        models.PointStruct(
            id=one["id"],
            vector={
                "image": one["image"],
                "text": one["text"],
                "words": models.SparseVector(**one["words"]),
            },
            payload={"year": one["id"]},
        )
        for one in three_vectors(gallery)
    ]
    client.upsert("mine", points)
    client.close()
    return QdrantStore(folder / "q", "mine", vector="image"), QdrantStore(folder / "q", "copy")


def fill_edge(folder, gallery):
    (folder / "mine").mkdir()
    distance = qdrant_edge.Distance
    config = qdrant_edge.EdgeConfig(
        vectors={
            "image": qdrant_edge.EdgeVectorParams(size=9, distance=distance.Dot),
            "text": qdrant_edge.EdgeVectorParams(size=3, distance=distance.Euclid),
        },
        sparse_vectors={"words": qdrant_edge.EdgeSparseVectorParams()},
    )
    shard = qdrant_edge.EdgeShard.create(str(folder / "mine"), config)
    points = [
        qdrant_edge.Point(
            one["id"],
            {
                "image": one["image"],
                "text": one["text"],
                "words": qdrant_edge.SparseVector(**one["words"]),
            },
            {"year": one["id"]},
        )
        for one in three_vectors(gallery)
    ]
    operation = qdrant_edge.UpdateOperation
    shard.update(operation.upsert_points(points))
    shard.update(operation.create_field_index("year", qdrant_edge.PayloadSchemaType.Integer))
    shard.close()
    source = QdrantEdgeStore(folder / "mine", vector="image", kind="flat")
    return source, QdrantEdgeStore(folder / "copy", kind="flat")


def fill_milvus(folder, gallery):
    client = MilvusClient(str(folder / "m.db"))
    schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
    schema.add_field("key", DataType.INT64, is_primary=True)
    schema.add_field("image", DataType.FLOAT_VECTOR, dim=9)
    schema.add_field("text", DataType.FLOAT_VECTOR, dim=3)
    schema.add_field("words", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_field("year", DataType.INT16)
    schema.add_field("title", DataType.VARCHAR, max_length=40, nullable=True)
    schema.add_field(
        "tags", DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=4, max_length=20
    )
    schema.add_field("price", DataType.DOUBLE, default_value=2.5)
    index = client.prepare_index_params()
    index.add_index("image", index_type="FLAT", metric_type="IP")
    index.add_index("text", index_type="HNSW", metric_type="L2")
    index.add_index("words", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    index.add_index("year", index_type="INVERTED")
    client.create_collection("mine", schema=schema, index_params=index)
    rows = [
        {
            "key": one["id"],
            "image": one["image"],
            "text": one["text"],
            "words": dict(zip(one["words"]["indices"], one["words"]["values"], strict=True)),
            "year": one["id"],
            "tags": ["red" if one["id"] % 2 else "blue"],
            "shelf": f"shelf {one['id'] // 10}",
        }
        for one in three_vectors(gallery)
    ]
    client.insert("mine", rows)
    client.close()
    place = folder / "m.db"
    return MilvusStore(place, "mine", vector="image"), MilvusStore(place, "copy")


def exported(source, target, data):
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery, data.references)
    index = export_index(source, target, bias=bias, ids=np.arange(len(data.gallery)))
    right = nnnorm.search(data.queries, data.gallery, bias, k=5).indices
    assert index.search(data.queries, k=5).ids.tolist() == right.tolist()
    return index


def unit_rows(n):
    drawn = np.random.default_rng(5).normal(size=(n, 9))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def refreshed(index, data):
    """The same index after a refresh by another bank, which streams all items once more."""
    new = nnnorm.Corrector.fit(data.gallery, unit_rows(90))
    index.refresh(new)
    exact = nnnorm.search(data.queries, data.gallery, new.bias_of(data.gallery), k=5)
    assert index.search(data.queries, k=5).ids.tolist() == exact.indices.tolist()
    return index


def test_a_copy_of_a_qdrant_collection_keeps_its_other_vectors(folder, data):
    index = exported(*fill_qdrant(folder, data.gallery), data)
    for _ in range(2):
        client = index.store.client
        (point,) = client.retrieve("copy", [7], with_vectors=True)
        assert set(point.vector) == {"image", "text", "words"}
        assert point.vector["text"] == [1.0, 0.0, 7.0]
        assert point.vector["words"] == models.SparseVector(**sparse(7))
        assert point.payload == {"year": 7}
        nearest = client.query_points("copy", query=[1.0, 0.0, 30.2], using="text", limit=1)
        assert nearest.points[0].id == 30
        refreshed(index, data)
    index.close()


def test_a_copy_of_a_shard_keeps_its_other_vectors_and_payload_indexes(folder, data):
    index = exported(*fill_edge(folder, data.gallery), data)
    for _ in range(2):
        shard = index.store.client
        (point,) = shard.retrieve([7], True, True)
        assert point.vector["text"] == [1.0, 0.0, 7.0]
        assert point.vector["words"].indices == [7, 107]
        assert set(shard.info().payload_schema) == {"year"}
        refreshed(index, data)
    index.close()


def test_a_copy_of_a_milvus_collection_keeps_fields_types_and_indexes(folder, data):
    index = exported(*fill_milvus(folder, data.gallery), data)
    for _ in range(2):
        client = index.store.client
        fields = {f["name"]: f for f in client.describe_collection("copy")["fields"]}
        assert fields["year"]["type"] == DataType.INT16
        assert fields["title"]["params"]["max_length"] == 40
        assert fields["image"]["params"]["dim"] == 10
        assert fields["text"]["params"]["dim"] == 3
        assert set(client.list_indexes("copy")) == {"image", "text", "words", "year"}
        # The filters of the application find what they found before.
        for wanted in ("year >= 50", "shelf == 'shelf 3'", "array_contains(tags, 'red')"):
            before = client.query("mine", filter=wanted, output_fields=["key"])
            after = client.query("copy", filter=wanted, output_fields=["key"])
            assert len(after) > 0
            assert {row["key"] for row in after} == {row["key"] for row in before}
        named = ["words", "text", "price", "title"]
        (row,) = client.get("copy", [7], output_fields=named)
        assert row["words"] == {7: 0.5, 107: 0.25}
        assert (row["text"], row["price"], row["title"]) == ([1.0, 0.0, 7.0], 2.5, None)
        found = index.search(data.queries, k=5, filter="year >= 50", with_metadata=True)
        assert found.ids.min() >= 50
        assert found.metadata[0][0]["shelf"] == "shelf 5"
        refreshed(index, data)
    index.close()


def test_metadata_whose_names_milvus_needs_survive(folder):
    known = [{"id": "seven", "embedding": [1, 2], "nnnorm_bias": "?", "nnnorm_json": {"a": None}}]
    items = rows(1)
    items = Items(items.ids, items.vectors, items.values, known)
    store = fill(make("milvus", folder), items)
    check_contents(store, items)
    assert store.metadata_of(items.ids) == known
    store.close()


# --- clients of the caller ------------------------------------------------------------------------


def own_milvus(folder):
    client = MilvusClient(str(folder / "m.db"))
    return client, MilvusStore(client, "photos"), lambda: client.list_collections()


def own_qdrant(folder):
    client = QdrantClient(":memory:")
    return client, QdrantStore(client, "photos"), lambda: client.get_collections()


def own_chroma(folder):
    client = chromadb.PersistentClient(str(folder / "c"))
    return client, ChromaStore(client, "photos", ef=500), lambda: client.list_collections()


@pytest.mark.parametrize("make_own", [own_milvus, own_qdrant, own_chroma])
def test_a_client_of_the_caller_is_used_and_left_open(make_own, folder, data):
    client, store, ask = make_own(folder)
    index = build_index(store, data.gallery, data.bias)
    assert index.store.client is client
    right = nnnorm.search(data.queries, data.gallery, data.bias, k=5).indices
    assert index.search(data.queries, k=5).ids.tolist() == right.tolist()
    refreshed(index, data)
    index.close()
    ask()
    assert f"of the given {store.client_type}" in store.name
    assert len(open_index(type(store)(client, "photos"))) == 60


def test_a_client_of_another_engine_is_refused():
    with pytest.raises(
        nnnorm.NNNormError, match="must be an address, a path or a MilvusClient; got QdrantClient"
    ):
        MilvusStore(QdrantClient(":memory:"))


# --- what was built before there were generations -------------------------------------------------


def old_qdrant(folder):
    client = QdrantClient(path=str(folder / "q"))
    client.create_collection("photos", models.VectorParams(size=10, distance="Dot"))
    client.close()


def old_milvus(folder):
    client = MilvusClient(str(folder / "milvus.db"))
    schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=10)
    schema.add_field("metadata", DataType.JSON)
    index = client.prepare_index_params()
    index.add_index("embedding", index_type="FLAT", metric_type="IP")
    client.create_collection(
        "photos", schema=schema, index_params=index, properties={"nnnorm": "null"}
    )
    client.close()


@pytest.mark.parametrize(("engine", "make_old"), [("qdrant", old_qdrant), ("milvus", old_milvus)])
def test_a_collection_of_the_plain_name_works_and_its_copy_is_refreshed(
    engine, make_old, folder, data
):
    make_old(folder)
    known = [{"year": own} for own in range(60)]
    corrector = nnnorm.Corrector.fit(data.gallery, data.references)
    build_index(make(engine, folder), data.gallery[:40], corrector, metadata=known[:40]).close()
    with open_index(make(engine, folder)) as index:
        index.add(data.gallery[40:50], corrector, ids=range(40, 50), metadata=known[40:50])
        index.upsert(data.gallery[45:], corrector, ids=range(45, 60), metadata=known[45:])
        index.delete([3])
        index.add(data.gallery[3:4], corrector, ids=[3], metadata=known[3:4])
        bias = corrector.bias_of(data.gallery)
        right = nnnorm.search(data.queries, data.gallery, bias, k=5).indices
        found = index.search(data.queries, k=5, with_metadata=True)
        assert found.ids.tolist() == right.tolist()
        assert found.metadata[0] == [known[own] for own in found.ids[0]]
        other = nnnorm.Corrector.fit(data.gallery, unit_rows(90))
        with pytest.raises(nnnorm.NNNormError, match="copy it once with nnnorm index export"):
            index.refresh(other)
        assert index.search(data.queries, k=5).ids.tolist() == right.tolist()
        copy = type(index.store)(index.store.place, "copy")
        with export_index(index.store, copy) as better:
            refreshed(better, data)
            if engine == "milvus":
                ids = [row["id"] for row in copy.client.query("copy", filter="year >= 55")]
                assert sorted(ids) == [55, 56, 57, 58, 59]


def test_the_note_beside_an_older_shard_moves_into_it(folder, data):
    build_index(make("qdrant-edge", folder), data.gallery, data.bias).close()
    beside = folder / "edge.nnnorm"
    (folder / "edge" / "nnnorm-note.json").rename(beside)
    with open_index(make("qdrant-edge", folder)) as index:
        refreshed(index, data)
        assert not beside.exists()
        index.rollback()
        right = nnnorm.search(data.queries, data.gallery, data.bias, k=5).indices
        assert index.search(data.queries, k=5).ids.tolist() == right.tolist()


# --- threads, async, few bits ---------------------------------------------------------------------


@every_engine
def test_one_index_answers_many_threads_while_items_are_replaced(engine, folder, data):
    index = build_index(make(engine, folder), data.gallery, data.bias)
    right = nnnorm.search(data.queries, data.gallery, data.bias, k=5).indices.tolist()
    wrong = []

    def read():
        for _ in range(10):
            found = index.search(data.queries, k=5).ids.tolist()
            if found != right:
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for one in readers:
        one.start()
    for _ in range(5):
        index.upsert(data.gallery, data.bias, ids=range(60))
    for one in readers:
        one.join()
    assert not wrong
    index.close()


def test_a_chroma_server_lives_and_its_asynchronous_client_asks_the_same(tmp_path, data):
    with chroma_server(tmp_path / "served") as address:
        with build_index(f"chroma://{address}/photos?ef=500", data.gallery, data.bias) as index:
            refreshed(index, data)
            index.rollback()
            right = nnnorm.search(data.queries, data.gallery, data.bias, k=5).indices.tolist()
            assert index.search(data.queries, k=5).ids.tolist() == right
            asked = index.ask(data.queries)

        async def search():
            host, _, port = address.partition(":")
            client = await chromadb.AsyncHttpClient(host, port=int(port))
            photos = await client.get_collection("photos", embedding_function=None)
            return await photos.query(query_embeddings=asked, n_results=5)

        found = asyncio.run(search())["ids"]
        assert [list(map(int, row)) for row in found] == right


def clustered(n, seed):
    """Unit rows that share a direction and have a falling spectrum, as real embeddings do."""
    basis = np.random.default_rng(9).normal(size=(128, 128)) * np.linspace(1, 0.1, 128)
    drawn = np.random.default_rng(seed).normal(size=(n, 128)) @ basis + 1.5
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def test_a_copy_of_a_shard_of_few_bits_is_as_good_as_the_shard(folder):
    gallery, references, queries = (clustered(n, seed) for seed, n in enumerate((3000, 1000, 50)))
    (folder / "mine").mkdir()
    codes = qdrant_edge.ScalarQuantizationConfig(type=qdrant_edge.ScalarType.Int8, quantile=0.99)
    params = qdrant_edge.EdgeVectorParams(
        size=128, distance=qdrant_edge.Distance.Dot, quantization_config=codes
    )
    config = qdrant_edge.EdgeConfig(
        vectors=params,
        hnsw_config=qdrant_edge.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10),
        optimizers=qdrant_edge.EdgeOptimizersConfig(indexing_threshold=10),
    )
    shard = qdrant_edge.EdgeShard.create(str(folder / "mine"), config)
    points = [qdrant_edge.Point(own, row) for own, row in enumerate(gallery.tolist())]
    shard.update(qdrant_edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.close()

    def recall(found, exact):
        return np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, exact.indices, strict=True)])

    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(gallery, references)
    source = QdrantEdgeStore(folder / "mine", ef=500)
    before = recall(source.search(queries, 10).ids, nnnorm.search(queries, gallery, k=10))
    with export_index(source, QdrantEdgeStore(folder / "copy", ef=500), bias=bias) as index:
        assert index.store.is_quantized
        assert index.recipe.rotation is not None
        exact = nnnorm.search(queries, gallery, bias, k=10)
        assert recall(index.search(queries, k=10).ids, exact) >= before - 0.01


def test_milvus_knows_codes_of_few_bits_by_the_type_of_the_index(folder):
    client = MilvusClient(str(folder / "m.db"))
    for kind, few in (("IVF_SQ8", True), ("HNSW", False), ("FLAT", False)):
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("v", DataType.FLOAT_VECTOR, dim=9)
        index = client.prepare_index_params()
        index.add_index("v", index_type=kind, metric_type="IP", params={"nlist": 4})
        client.create_collection(kind.lower(), schema=schema, index_params=index)
        store = MilvusStore(client, kind.lower())
        assert store.is_quantized == few
        assert store.is_exact == (kind == "FLAT")
        copy = MilvusStore(client, "copy")
        copy.imitate(store)
        assert copy.is_quantized == few
    client.close()
