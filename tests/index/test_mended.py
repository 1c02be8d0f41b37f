"""What went wrong without a word in living indexes, each shown on the engine itself."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import duckdb
import faiss
import hnswlib
import numpy as np
import pytest
import usearch.index

import nnnorm
from nnnorm.index import build_index, export_index, open_index
from nnnorm.index.stores.duckdb import DuckdbStore
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.hnswlib import HnswlibStore
from nnnorm.index.stores.sqlite_vec import SqliteVecStore
from nnnorm.index.stores.usearch import UsearchStore
from tests import stores  # noqa: F401 - one thread per engine
from tests.index.test_index import exact, make_data


@pytest.fixture
def data():
    made = make_data(300, 40, 16, unit=True)
    made.corrector = nnnorm.Corrector.fit(made.gallery, made.references, nnnorm.NNN(16, 0.75))
    made.bias = made.corrector.bias
    return made


# --- what belongs together -----------------------------------------------------------------------


def test_the_corrector_of_an_index_gives_later_items_their_bias(data, tmp_path):
    data.corrector.save(tmp_path / "corrector.safetensors")
    first = slice(0, 200)
    index = build_index("faiss:", data.gallery[first], data.corrector, way="l2")
    index.add(data.gallery[200:250], data.corrector, ids=range(200, 250))
    index.add(data.gallery[250:], tmp_path / "corrector.safetensors", ids=range(250, 300))
    assert index.search(data.queries).ids.tolist() == exact(data).ids.tolist()
    other = nnnorm.Corrector.fit(data.gallery, data.references[:100], nnnorm.NNN(16, 0.75))
    with pytest.raises(nnnorm.NNNormError, match="such values do not mix"):
        index.add(data.gallery[:1], other, ids=[999])
    with pytest.raises(nnnorm.NNNormError, match="such values do not mix"):
        index.upsert(data.gallery[:1], other, ids=[7])
    index.upsert(data.gallery[:2], data.corrector, ids=[7, 999], metadata=[{"new": True}, {}])
    found = index.search(data.gallery[:1], k=300, weight=0, with_metadata=True)
    scores = dict(zip(found.ids[0].tolist(), found.scores[0].tolist(), strict=True))
    assert scores[7] == pytest.approx(scores[0]) == pytest.approx(1)
    assert scores[999] == pytest.approx(scores[1])
    assert found.metadata[0][found.ids[0].tolist().index(7)] == {"new": True}
    recipe = index.recipe
    assert (recipe.corrector, recipe.weight) == (data.corrector.fingerprint, data.corrector.weight)
    assert recipe.reference_k == 16
    assert recipe.version == nnnorm.__version__


@pytest.mark.parametrize("way", ["ip", "l2"])
def test_rows_of_pack_are_what_the_engine_s_own_client_writes(data, tmp_path, way):
    """Rows of augment_gallery are not: an index stores the bias centred."""
    path = tmp_path / "photos.faiss"
    build_index(f"faiss:{path}", data.gallery[:250], data.corrector, way=way).close()
    with open_index(f"faiss:{path}") as index:
        packed = index.pack(data.gallery[250:], data.corrector, ids=range(250, 300))
        asked = index.ask(data.queries)
    mine = faiss.read_index(str(path))
    mine.add_with_ids(packed.vectors, packed.ids)
    faiss.write_index(mine, str(path))
    _, labels = mine.search(asked, 10)
    assert labels.tolist() == exact(data).ids.tolist()
    with pytest.raises(nnnorm.NNNormError, match=r"another program changed it.*\?adopt=true"):
        open_index(f"faiss:{path}")
    with open_index(f"faiss:{path}?adopt=true") as index:
        assert len(index) == 300
        assert index.search(data.queries).ids.tolist() == exact(data).ids.tolist()
        index.save()
    with open_index(f"faiss:{path}") as index:
        assert len(index) == 300


@pytest.mark.parametrize("scheme", ["hnswlib", "usearch"])
def test_other_programs_may_delete_and_add_in_graphs_too(data, tmp_path, scheme):
    path = tmp_path / "photos"
    with build_index(f"{scheme}:{path}", data.gallery[:250], data.corrector, way="l2") as index:
        packed = index.pack(data.gallery[250:], data.corrector, ids=range(250, 300))
    if scheme == "hnswlib":
        mine = hnswlib.Index(space="l2", dim=18)
        mine.load_index(str(path), max_elements=300)
        mine.add_items(packed.vectors, packed.ids)
        mine.save_index(str(path))
    else:
        mine = usearch.index.Index.restore(str(path))
        rows = np.zeros((50, mine.ndim), dtype=np.float32)
        rows[:, :18] = packed.vectors
        mine.add(packed.ids.astype(np.uint64), rows)
        mine.save(str(path))
    with open_index(f"{scheme}:{path}?adopt=true&ef=1024") as index:
        found = index.search(data.queries).ids
    assert (found == exact(data).ids).mean() > 0.99


def test_names_can_not_be_adopted_where_another_program_added_items(data, tmp_path):
    path, names = tmp_path / "photos.faiss", [f"photo {row}" for row in range(250)]
    with build_index(f"faiss:{path}", data.gallery[:250], data.corrector, ids=names) as index:
        packed = index.pack(data.gallery[250:], data.corrector)
    mine = faiss.read_index(str(path))
    mine.add_with_ids(packed.vectors, packed.ids + 250)
    faiss.write_index(mine, str(path))
    with pytest.raises(nnnorm.NNNormError, match="has 50 items that another program added"):
        open_index(f"faiss:{path}?adopt=true")


# --- queries of unit norm ------------------------------------------------------------------------


def test_queries_are_made_unit_where_the_items_were(data, tmp_path):
    sizes = np.random.default_rng(0).uniform(1, 4, (300, 1)).astype(np.float32)
    mine = hnswlib.Index(space="cosine", dim=16)
    mine.init_index(300)
    mine.add_items(data.gallery * sizes)
    mine.save_index(str(tmp_path / "mine.hnsw"))
    source = f"hnswlib:{tmp_path}/mine.hnsw?dim=16&metric=cosine"
    index = export_index(source, "faiss:", references=data.references)
    assert index.recipe.unit
    right = index.search(data.queries)
    raw = index.search(data.queries, weight=0)
    assert right.ids.tolist() != raw.ids.tolist()
    for size in (0.1, 10):
        assert index.search(size * data.queries).ids.tolist() == right.ids.tolist()
    with pytest.raises(nnnorm.NNNormError, match="were divided by their norms, and queries has"):
        index.search(10 * data.queries, normalize=False)


def test_queries_of_another_scale_are_warned_of(data):
    index = build_index("faiss:", data.gallery, data.bias)
    with pytest.warns(nnnorm.NNNormWarning, match="on another scale"):
        index.search(10 * data.queries)


# --- a re-rank claims no more than it knows ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the bias that duckdb")
@pytest.mark.parametrize("reopens", [False, True])
def test_a_rerank_does_not_trust_bounds_that_another_program_changed(data, tmp_path, reopens):
    path = tmp_path / "photos.duckdb"
    index = build_index(DuckdbStore(path), data.gallery, data.bias, way="rerank")
    rng = np.random.default_rng(0)
    moved = (data.bias.values - rng.uniform(0, 0.6, 300)).astype(np.float32)
    client = index.store.client
    client.execute("CREATE TEMP TABLE moved (id BIGINT, value FLOAT)")
    client.executemany("INSERT INTO moved VALUES (?, ?)", list(enumerate(moved.tolist())))
    client.execute("UPDATE items SET nnnorm_bias = value FROM moved WHERE items.id = moved.id")
    if reopens:
        index.close()
        index = open_index(DuckdbStore(path))
    data.bias = nnnorm.Bias(moved, data.bias.weight, "nnn")
    ranking = index.search(data.queries, k=3)
    both = zip(ranking.ids.tolist(), exact(data, k=3).ids.tolist(), strict=True)
    is_right = np.array([found == right for found, right in both])
    assert is_right[ranking.certain].all()
    index.close()


# --- files ---------------------------------------------------------------------------------------


def test_an_export_closes_its_source(data, tmp_path, monkeypatch):
    path, closed = tmp_path / "photos.db", []
    build_index(f"sqlite:{path}", data.gallery, data.bias).close()
    close = SqliteVecStore.close
    monkeypatch.setattr(SqliteVecStore, "close", lambda own: (closed.append(own.name), close(own)))
    index = export_index(f"sqlite:{path}", "faiss:")
    assert closed == [SqliteVecStore(path).name]
    assert len(index) == 300
    duckdb_path = tmp_path / "photos.duckdb"
    export_index(f"sqlite:{path}", f"duckdb:{duckdb_path}").close()
    with pytest.raises(nnnorm.NNNormError, match="already has 300 items"):
        export_index(f"duckdb:{duckdb_path}", f"sqlite:{path}")
    duckdb.connect(duckdb_path).close()


@pytest.mark.parametrize("kind", [FaissStore, HnswlibStore, UsearchStore])
def test_a_stop_between_two_files_leaves_one_of_both_states(data, tmp_path, kind, monkeypatch):
    """Whatever is renamed last, the files that are found belong together."""
    replaced = os.replace
    for n_renames in range(8):
        path = tmp_path / f"{n_renames}"
        index = build_index(kind(path), data.gallery, data.bias, way="l2")
        index.delete([0, 1, 2])
        left = [n_renames]

        def replace_and_stop(source, target, left=left):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            replaced(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace_and_stop)
            stopped = False
            try:
                index.save()
            except KeyboardInterrupt:
                stopped = True
        with open_index(kind(path)) as again:
            assert len(again) in (297, 300)
            again.search(data.queries)
            again.delete([9])
            again.save()
        with open_index(kind(path)) as again:
            assert len(again) in (296, 299)
        if not stopped:
            break
    else:
        pytest.fail("a save renames more files than it should")


def test_the_other_s_recipe_is_never_used(data, tmp_path):
    """Files of two indexes, one of each."""
    for name, rows in (("a", slice(0, 150)), ("b", slice(150, 300))):
        build_index(f"faiss:{tmp_path}/{name}.faiss", data.gallery[rows], data.corrector).close()
    (tmp_path / "b.faiss").replace(tmp_path / "a.faiss")
    with pytest.raises(nnnorm.NNNormError, match="is not the file that was saved with"):
        open_index(f"faiss:{tmp_path}/a.faiss")


@pytest.mark.slow
def test_ctrl_c_inside_a_faiss_graph_saves_no_broken_one(tmp_path):
    data = make_data(3000, 50, 32, unit=True)
    store = lambda: FaissStore(tmp_path / "photos.faiss", kind="hnsw", ef_construction=300)  # noqa: E731
    for delay in (0.05, 0.3, 0.8):
        stop = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        stop.start()

        def build_and_wait():
            build_index(store(), data.gallery, data.bias).close()
            time.sleep(30)

        with pytest.raises(KeyboardInterrupt):
            build_and_wait()
        stop.join()
        try:
            index = build_index(store(), data.gallery, data.bias)
        except nnnorm.NNNormError as error:
            assert "is finished already" in str(error)  # noqa: PT017
            index = open_index(store())
        with index:
            assert len(index) == 3000
            both = zip(index.search(data.queries).ids, exact(data).ids, strict=True)
            assert np.mean([np.isin(found, right).mean() for found, right in both]) > 0.98
        for file in tmp_path.iterdir():
            file.unlink()


# --- filters, threads, the switch ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "way"),
    [
        (FaissStore, "ip"),
        (FaissStore, "l2"),
        (FaissStore, "rerank"),
        (HnswlibStore, "l2"),
        (HnswlibStore, "rerank"),
        (UsearchStore, "cosine"),
    ],
)
def test_a_filter_returns_k_hits_where_k_items_match(data, store, way):
    metadata = [{"year": 2000 + row % 30} for row in range(300)]
    index = build_index(store(), data.gallery, data.corrector, way=way, metadata=metadata)
    keep = np.arange(300) % 30 == 7
    right = exact(data, keep=keep).ids.tolist()
    wanted = ({"year": 2007}, lambda entry: entry["year"] == 2007, np.flatnonzero(keep))
    for chosen in wanted:
        ranking = index.search(data.queries, filter=chosen, with_metadata=True)
        assert ranking.ids.tolist() == right
        assert all(entry == {"year": 2007} for row in ranking.metadata for entry in row)
    assert index.search(data.queries, filter={"year": 1999}).ids.shape == (40, 0)
    assert index.search(data.queries, filter=[]).ids.shape == (40, 0)
    with pytest.raises(nnnorm.NNNormError, match=r"the filter of .* is the ids that may come back"):
        index.search(data.queries, filter=7)


@pytest.mark.parametrize("store", [FaissStore, HnswlibStore, UsearchStore])
def test_many_threads_search_while_one_writes(data, store, tmp_path):
    build_index(store(tmp_path / "photos"), data.gallery, data.corrector, way="l2").close()
    with open_index(store(tmp_path / "photos")) as index, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(index.search, data.queries, k=10) for _ in range(60)]
        for row in range(300, 330):
            index.add(-data.gallery[row - 300 : row - 299], data.corrector, ids=[row])
            index.delete([row])
        found = [answer.result().ids for answer in asked]
    for ids in found:
        assert np.isin(ids, np.arange(330)).all()


def test_a_weight_of_0_is_a_switch_and_a_brake(data):
    """Half of the queries without the correction, and all of them at once, without a new index."""
    index = build_index("faiss:", data.gallery, data.corrector)
    raw = nnnorm.search(data.queries, data.gallery, k=10)
    off = index.search(data.queries, weight=0)
    assert off.ids.tolist() == raw.indices.tolist()
    np.testing.assert_allclose(off.scores, raw.scores, atol=1e-6)
    on = index.search(data.queries)
    assert on.ids.tolist() == exact(data).ids.tolist()
