"""What goes wrong in engines, each shown on the engine itself, and what the adapter makes of it."""

import signal
import sys

import faiss
import hnswlib
import numpy as np
import pytest
import usearch.index

import nnnorm
from nnnorm.index import Items, build_index, open_index, open_store
from nnnorm.index.store import Sample
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.hnswlib import HnswlibStore
from nnnorm.index.stores.usearch import UsearchStore
from tests import stores  # noqa: F401 - one thread per engine
from tests.index.test_index import bias_of, exact, make_data
from tests.made import make_embeddings


def share_found(found, right):
    both = zip(np.asarray(found).tolist(), np.asarray(right).tolist(), strict=True)
    return sum(len(set(hits) & set(best)) for hits, best in both) / np.asarray(right).size


def test_hnswlib_calls_one_minus_the_product_a_distance():
    data = make_data(50, 5, 8, unit=False)
    engine = hnswlib.Index(space="ip", dim=8)
    engine.init_index(50)
    engine.add_items(data.gallery)
    _, distances = engine.knn_query(data.queries, 1)
    best = (data.queries @ data.gallery.T).max(axis=1)
    np.testing.assert_allclose(distances[:, 0], 1 - best, atol=1e-5)
    with pytest.warns(UserWarning, match="walks a graph"):
        index = build_index(HnswlibStore(), data.gallery, data.bias, way="ip")
    scores = index.search(data.queries, k=1, weight=0.0).scores[:, 0]
    np.testing.assert_allclose(scores, best, atol=1e-5)


def test_hnswlib_keeps_neither_dimension_nor_metric_in_its_file(tmp_path):
    engine = hnswlib.Index(space="cosine", dim=8)
    engine.init_index(50)
    engine.add_items(make_data(50, 5, 8, unit=True).gallery)
    engine.save_index(str(tmp_path / "mine.hnsw"))
    with pytest.raises(nnnorm.NNNormError, match=r"add them, as in hnswlib:photos\.hnsw\?dim=512"):
        open_store(f"hnswlib:{tmp_path}/mine.hnsw").facts()
    facts = open_store(f"hnswlib:{tmp_path}/mine.hnsw?dim=8&metric=cosine").facts()
    assert (facts.width, facts.metric, facts.n_items) == (8, "cosine", 50)


def test_hnswlib_gives_nothing_at_all_where_it_finds_fewer_than_k():
    data = make_data(400, 5, 8, unit=True)
    engine = hnswlib.Index(space="ip", dim=8)
    engine.init_index(400)
    engine.add_items(data.gallery, np.arange(400))
    for row in range(390):
        engine.mark_deleted(row)
    engine.set_ef(10)
    with pytest.raises(RuntimeError, match=r"2D array\. Probably ef or M is too small"):
        engine.knn_query(data.queries, 300)
    index = build_index(HnswlibStore(ef=10, threads=1), data.gallery, data.bias)
    index.delete(np.arange(390))
    ranking = index.search(data.queries, k=300)
    right = exact(data, k=10, keep=np.arange(400) >= 390).ids
    assert ranking.ids.tolist() == right.tolist()


def test_faiss_fills_empty_places_with_minus_one_and_a_huge_negative_score(tmp_path):
    data = make_data(200, 30, 8, unit=True)
    store = FaissStore(tmp_path / "photos.faiss", kind="ivf", cells=50, probes=1)
    index = build_index(store, data.gallery, data.bias)
    plain = faiss.read_index(str(tmp_path / "photos.faiss"))
    asked = np.zeros((30, plain.d), dtype=np.float32)
    asked[:, :9] = nnnorm.augment_queries(data.queries, data.bias)
    scores, labels = plain.search(asked, 50)
    assert scores.min() < -3e38
    assert labels.min() == -1
    ranking = index.search(data.queries, k=50)
    empty = ranking.ids == -1
    assert empty.any()
    assert not empty.all(axis=0).any()  # columns where nothing was found for anyone are not there
    assert np.isneginf(ranking.scores[empty]).all()
    assert (ranking.scores[~empty] > -10).all()


def test_product_quantisation_of_an_odd_dimension_is_filled_up(tmp_path):
    data = make_data(400, 30, 16, unit=True)  # 16 and one for the bias: 17
    with pytest.raises(RuntimeError, match="multiple of the number of subquantizers"):
        faiss.IndexPQ(17, 8, 8, faiss.METRIC_INNER_PRODUCT)
    path = tmp_path / "photos.faiss"
    build_index(FaissStore(path, kind="pq", refine=8), data.gallery, data.bias).close()
    assert faiss.read_index(str(path)).d == 18
    with open_index(FaissStore(path)) as index:
        assert index.store.facts().width == 17
        assert share_found(index.search(data.queries).ids, exact(data).ids) >= 0.99
        np.testing.assert_allclose(
            np.concatenate([batch.vectors for batch in index.scan()]), data.gallery, atol=1e-6
        )


@pytest.mark.parametrize(
    "factory", ["Flat", "IDMap,Flat", "IDMap2,Flat", "IVF4,Flat", "HNSW16", "IDMap2,HNSW16", "SQ8"]
)
def test_a_faiss_index_of_someone_else_is_read_as_it_is(factory, tmp_path):
    data = make_data(400, 10, 16, unit=True)
    mine = faiss.index_factory(16, factory, faiss.METRIC_INNER_PRODUCT)
    mine.train(data.gallery)
    ids = np.arange(400)
    if factory.startswith("ID"):
        ids = np.random.default_rng(1).permutation(400) * 5
        mine.add_with_ids(data.gallery, ids)
    else:
        mine.add(data.gallery)
    faiss.write_index(mine, str(tmp_path / "mine.faiss"))
    store = FaissStore(tmp_path / "mine.faiss")
    assert (store.facts().width, store.facts().n_items) == (16, 400)
    assert store.read_note() is None
    batches = list(store.scan(150))
    found = np.concatenate([batch.ids for batch in batches])
    assert found.tolist() == sorted(ids.tolist())
    rows = np.concatenate([batch.vectors for batch in batches])
    np.testing.assert_allclose(rows, data.gallery[np.argsort(ids)], atol=0.01)


@pytest.mark.parametrize(("kind", "width"), [("flat", 17), ("ivf", 24), ("hnsw", 24), ("sq", 24)])
def test_rows_of_faiss_fill_whole_32_bytes_but_in_a_flat_scan(kind, width, tmp_path):
    """Its 8-bit codes are compared one by one, not eight at a time, where 8 does not divide."""
    data = make_data(40, 5, 16, unit=True)
    path = tmp_path / "photos.faiss"
    index = build_index(FaissStore(path, kind=kind), data.gallery, data.bias)
    assert faiss.read_index(str(path)).d == width
    assert index.store.facts().width == 17


def test_faiss_hnsw_cannot_delete_and_says_so():
    data = make_data(20, 5, 8, unit=True)
    index = build_index(FaissStore(kind="hnsw"), data.gallery, data.bias)
    with pytest.raises(nnnorm.NNNormError, match="can't delete items; build it again without them"):
        index.delete([3])


@pytest.mark.slow
def test_the_bias_is_centred_and_scaled_for_eight_bits():
    """usearch's i8 has one step for all coordinates; an outlier costs the others their digits."""
    gallery, queries, references = make_embeddings(n_items=1000, n_past=1000)
    queries = queries[::17]
    bias = nnnorm.NNN().fit(gallery, references)
    right = nnnorm.search(queries, gallery, bias, k=10).indices

    def recall_of(scale, center=True):
        store = UsearchStore(dtype="i8", ef=1000, threads=1)
        store.has_one_range = False  # a rotation would hide a part of the difference
        if center:
            found = build_index(store, gallery, bias, scale=scale).search(queries).ids
        else:
            rows = nnnorm.augment_gallery(gallery, bias, target="cosine", scale=scale)
            store.create(66, "cosine", strings=False, sample=Sample(1000, lambda: rows))
            store.add(Items(np.arange(1000), rows))
            asked = nnnorm.augment_queries(queries, bias, target="cosine", scale=scale)
            found = store.search(asked, 10).ids
        return share_found(found, right)

    plain = UsearchStore(dtype="i8", ef=1000, threads=1)
    plain.create(64, "cosine", strings=False, sample=Sample(1000, lambda: gallery))
    plain.add(Items(np.arange(1000), gallery))
    raw = nnnorm.search(queries, gallery, k=10).indices
    uncorrected = share_found(plain.search(queries, 10).ids, raw)
    by_itself = recall_of(None)
    assert by_itself > uncorrected - 0.01
    assert by_itself > recall_of(0.25) + 0.02  # the query's coordinate is the outlier
    assert by_itself > recall_of(16.0) + 0.02  # the items' is
    assert by_itself > recall_of(4.0, center=False) + 0.01


def test_i8_of_usearch_normalises_so_only_equal_norms_serve():
    data = make_data(50, 5, 8, unit=False)
    with pytest.raises(
        nnnorm.NNNormError, match="usearch does not support the way 'ip'; it supports cosine"
    ):
        build_index(UsearchStore(dtype="i8"), data.gallery, data.bias, way="ip")


def test_a_graph_over_unequal_norms_is_warned_of_and_one_over_equal_norms_is_not(recwarn):
    data = make_data(50, 5, 8, unit=True)
    build_index(HnswlibStore(), data.gallery, data.bias)
    assert not recwarn.list
    other = make_data(50, 5, 8, unit=False)
    with pytest.warns(UserWarning, match=r"norms 0\.5.* to 1\.4.*: it will miss many items"):
        build_index(HnswlibStore(), other.gallery, other.bias)


@pytest.mark.parametrize(
    ("scheme", "library", "extra"),
    [
        ("faiss", "faiss", "faiss"),
        ("hnswlib", "hnswlib", "hnswlib"),
        ("usearch", "usearch", "usearch"),
        ("duckdb", "duckdb", "duckdb"),
        ("sqlite", "sqlite_vec", "sqlite-vec"),
        ("qdrant", "qdrant_client", "qdrant"),
        ("qdrant-edge", "qdrant_edge", "qdrant-edge"),
        ("lancedb", "lancedb", "lancedb"),
        ("chroma", "chromadb", "chroma"),
        ("milvus", "pymilvus", "milvus"),
        ("pgvector", "psycopg", "pgvector"),
    ],
)
def test_an_engine_that_is_not_installed_names_its_extra(
    scheme, library, extra, monkeypatch, tmp_path
):
    data = make_data(20, 5, 8, unit=True)
    store = open_store(f"{scheme}:{tmp_path}/photos.db")

    class Absent:
        def find_spec(self, name, *_):
            if name.partition(".")[0] == library:
                raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ImportError, match=rf"run: pip install 'nnnorm\[{extra}\]'"):
        build_index(store, data.gallery, data.bias)


def test_files_that_are_no_index_are_told_apart(tmp_path):
    for scheme in ("faiss", "usearch", "duckdb", "sqlite"):
        path = tmp_path / f"note.{scheme}"
        path.write_text("nothing that an engine wrote" * 50)
        with pytest.raises(nnnorm.NNNormError, match=r"can't be (read|opened).*another kind of"):
            open_index(f"{scheme}:{path}")


def test_a_second_file_that_belongs_to_another_index_is_refused(tmp_path):
    for name, size in (("a", 20), ("b", 30)):
        data = make_data(size, 5, 8, unit=True)
        build_index(FaissStore(tmp_path / f"{name}.faiss"), data.gallery, data.bias).close()
    (tmp_path / "a.faiss.nnnorm").write_bytes((tmp_path / "b.faiss.nnnorm").read_bytes())
    with pytest.raises(nnnorm.NNNormError, match=r"a\.faiss is not the file that was saved with"):
        open_index(FaissStore(tmp_path / "a.faiss"))
    (tmp_path / "a.faiss.nnnorm").write_bytes(b"short")
    with pytest.raises(nnnorm.NNNormError, match=r"a\.faiss\.nnnorm can't be read"):
        open_index(FaissStore(tmp_path / "a.faiss"))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["faiss:?kind=hnsw", "hnswlib:", "usearch:"])
def test_no_item_gets_lost_while_it_is_added(store):
    """usearch itself, adding from two threads, loses some in most such builds."""
    data = make_data(300, 10, 64, unit=True)
    for _ in range(10):
        index = build_index(store, data.gallery, data.bias)
        found = index.search(data.gallery, k=1, weight=0.0).ids
        np.testing.assert_array_equal(found[:, 0], np.arange(300))


@pytest.mark.parametrize(
    ("kind", "library", "method"),
    [
        (FaissStore, faiss.IndexIDMap2, "add_with_ids"),
        (HnswlibStore, hnswlib.Index, "add_items"),
        (UsearchStore, usearch.index.Index, "add"),
    ],
    ids=["faiss", "hnswlib", "usearch"],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_ctrl_c_around_the_engine_s_own_work_leaves_both_files_in_agreement(
    kind, library, method, after, tmp_path
):
    data = make_data(300, 10, 8, unit=True)
    ids = [f"photo {row}" for row in range(300)]
    work = getattr(library, method)

    def add_and_break(self, *args, **options):
        if not after:
            signal.raise_signal(signal.SIGINT)
        work(self, *args, **options)
        if after:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, method, add_and_break)
        with pytest.raises(KeyboardInterrupt):
            build_index(kind(tmp_path / "photos"), data.gallery, data.bias, ids=ids, way="rerank")
    again = kind(tmp_path / "photos")
    assert again.facts().n_items == 300  # what was begun is finished
    index = build_index(again, data.gallery, data.bias, ids=ids, way="rerank")
    assert len(index) == 300
    assert share_found(index.search(data.queries).ids, exact(data, ids=ids).ids) >= 0.99


def test_work_that_the_engine_did_not_finish_is_not_saved(tmp_path):
    data = make_data(300, 10, 8, unit=True)
    path = tmp_path / "photos.faiss"
    store = FaissStore(path, kind="hnsw")
    index = build_index(store, data.gallery[:200], bias_of(data, data.gallery[:200]))
    before = path.read_bytes()

    def add_half(self, rows, labels):
        work(self, rows[:50], labels[:50])
        raise RuntimeError("computation interrupted")

    work = faiss.IndexIDMap2.add_with_ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faiss.IndexIDMap2, "add_with_ids", add_half)
        new = data.gallery[200:]
        with pytest.raises(RuntimeError, match="interrupted"):
            index.add(new, bias_of(data, new), ids=range(200, 300))
    with pytest.raises(nnnorm.NNNormError, match="failed half-way, so it is not saved"):
        index.save()
    assert path.read_bytes() == before


def test_negative_ids_and_ids_of_another_kind_are_refused_where_labels_are_unsigned():
    data = make_data(3, 5, 8, unit=True)
    with pytest.raises(nnnorm.NNNormError, match="takes no negative ids; got -4"):
        build_index(FaissStore(), data.gallery, data.bias, ids=[-4, 1, 2])
    index = build_index(FaissStore(), data.gallery, data.bias, ids=["a", "b", "c"])
    with pytest.raises(nnnorm.NNNormError, match="are strings; got whole numbers"):
        index.add(data.gallery, data.bias, ids=[1, 2, 3])


def unequal(flickr8k):
    """Photos of Flickr8k with norms spread by e^±0.5, and what is the same with unit norm."""
    gallery = np.asarray(flickr8k.image["train"], dtype=np.float32)
    sizes = np.exp(0.5 * np.random.default_rng(0).normal(size=(len(gallery), 1)))
    rng = np.random.default_rng(1)
    queries, references = (
        np.asarray(flickr8k.caption[split], dtype=np.float32) for split in ("test", "train")
    )
    queries = queries[rng.choice(len(queries), 200, replace=False)]
    references = references[rng.choice(len(references), 2000, replace=False)]
    return gallery, (gallery * sizes).astype(np.float32), queries, references


@pytest.mark.slow
def test_on_photos_a_graph_over_unequal_norms_loses_items_and_equal_norms_do_not_help(flickr8k):
    equal, spread, queries, references = unequal(flickr8k)

    def recall_of(gallery, way):
        bias = nnnorm.NNN().fit(gallery, references)
        index = build_index(HnswlibStore(ef=64, threads=1), gallery, bias, way=way)
        right = nnnorm.search(queries, gallery, bias, k=10).indices
        return share_found(index.search(queries).ids, right)

    by_cosine = recall_of(equal, "ip")
    assert by_cosine > 0.99
    with pytest.warns(UserWarning, match="walks a graph"):
        by_product = recall_of(spread, "ip")
    with pytest.warns(UserWarning, match="walks a graph"):
        by_distance = recall_of(spread, "l2")
    assert by_product < by_cosine - 0.01
    assert by_distance < by_product - 0.1


@pytest.mark.slow
def test_on_photos_eight_bits_cost_the_corrected_search_what_they_cost_the_plain_one(flickr8k):
    gallery, _, queries, references = unequal(flickr8k)
    bias = nnnorm.NNN().fit(gallery, references)
    index = build_index(UsearchStore(dtype="i8", ef=500, threads=1), gallery, bias)
    right = nnnorm.search(queries, gallery, bias, k=10).indices
    corrected = share_found(index.search(queries).ids, right)
    plain = UsearchStore(dtype="i8", ef=500, threads=1)
    plain.create(gallery.shape[1], "cosine", strings=False, sample=Sample(1, lambda: gallery))
    plain.add(Items(np.arange(len(gallery)), gallery))
    raw = nnnorm.search(queries, gallery, k=10).indices
    assert corrected > 0.97
    assert corrected > share_found(plain.search(queries, 10).ids, raw) - 0.01


@pytest.mark.slow
def test_values_that_are_longer_than_the_items_do_not_lead_a_graph():
    gallery, queries, past = make_embeddings(n_items=2000, n_past=500, dim=32, seed=5)
    clicks = np.random.default_rng(0).zipf(1.5, size=2000)
    bias = nnnorm.NNN(32, 0.001).fit(gallery, past) + nnnorm.Popularity(clicks)
    assert np.ptp(bias.values) > 50
    right = nnnorm.search(queries[:200], gallery, bias, k=10).indices

    def recall(**options):
        index = build_index(FaissStore(kind="hnsw"), gallery, bias, **options)
        return share_found(index.search(queries[:200], k=10).ids, right)

    assert recall() >= 0.99
    assert recall(scale=1.0) < 0.9


@pytest.mark.slow
def test_a_rotation_keeps_the_bias_from_being_an_outlier_of_8_bits(flickr8k):
    """One range for all coordinates: what the bias takes of it, all others lose."""
    rows = flickr8k.image["train"][:2000], flickr8k.caption["train"][-3000:]
    gallery, captions = (nnnorm.open_embeddings(part, normalize=True) for part in rows)
    queries = captions.take(np.arange(300))
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(gallery, captions.take(np.arange(300, 3000)))
    plain = nnnorm.Bias(np.zeros(len(gallery)), 0.0, "nnn")

    def recall(used, *, rotates):
        store = UsearchStore(dtype="i8", ef=2000, threads=1)
        store.has_one_range = rotates
        index = build_index(store, gallery, used)
        assert (index.recipe.rotation is not None) == rotates
        right = nnnorm.search(queries, gallery, used, k=10).indices
        return share_found(index.search(queries).ids, right)

    assert UsearchStore(dtype="i8").has_one_range
    rotated = recall(bias, rotates=True)
    assert rotated >= recall(plain, rotates=False) - 0.01
    assert rotated > recall(bias, rotates=False)
