"""What a living collection needs of Qdrant, Qdrant Edge, Chroma and Milvus, on the real engine.

Two generations and their exchange, also after a kill at any step; upserts that replace; filters in
the engine's own language; clients and collections that are the caller's own.
"""

import subprocess
import sys
import threading

import numpy as np
import pytest
import qdrant_edge
from milvus_lite.server_manager import server_manager_instance
from qdrant_client import models

import nnnorm
from nnnorm.index import Items, open_store
from nnnorm.index.store import Sample
from tests.index.test_index import make_data
from tests.servers import clear_memory, in_memory

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


KILLED = """
import os, sys
from nnnorm.index import open_store
url, part, step, method = sys.argv[1:]
done = 0

def die(event, args):
    global done
    if event in ("os.rename", "os.rmdir", "os.remove", "nnnorm.rename"):  # replace is a rename
        done += 1
        if done == int(step):
            os._exit(9)

if url.startswith("chroma"):
    from chromadb.api.models.Collection import Collection
    before = Collection.modify

    def modify(*args, **kwargs):
        sys.audit("nnnorm.rename")
        return before(*args, **kwargs)

    Collection.modify = modify
store = open_store(url)
store = store.other() if part == "other" else store
store.facts()
sys.addaudithook(die)
getattr(store, method)()
"""


def kill(engine, folder, step, method, part="served"):
    """Run a method in another process, which dies before a step of it."""
    server_manager_instance.release_all()  # the Milvus Lite of this process, which has the file
    program = [sys.executable, "-c", KILLED, URLS[engine].format(folder), part, str(step), method]
    assert subprocess.run(program, check=False).returncode == 9


STEPS = [
    ("qdrant", 1),
    ("milvus", 1),
    *((e, s) for e in ("qdrant-edge", "chroma") for s in (1, 2, 3)),
]


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
