"""The contract of all engines: the corrected search inside them is the exact corrected search.

Each test runs on every row of `stores.py`, on the real engine.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

import nnnorm
from nnnorm.index import (
    CorrectedIndex,
    adopt_index,
    build_index,
    export_index,
    open_index,
    open_store,
    verify_index,
)
from nnnorm.index.payloads import make_payloads
from nnnorm.index.store import check_ids, gather_hits
from tests.stores import CASES, parametrize

# The contract's norms are unequal on purpose; a test of its own is about this warning.
pytestmark = pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning")
each = parametrize(CASES)


def make_data(n_gallery, n_queries, dim, *, unit, seed=0, bank=None):
    """Items of unequal norms (unless `unit`) with a bias that changes the ranking."""
    rng = np.random.default_rng(seed)
    lean = rng.normal(size=dim)
    gallery = rng.normal(size=(n_gallery, dim)) + rng.gamma(1.0, 0.5, (n_gallery, 1)) * lean
    queries, references = (rng.normal(size=(n, dim)) + lean for n in (n_queries, 200))
    sizes = 1.0 if unit else rng.uniform(0.5, 1.5, (n_gallery, 1))
    rows = [
        part / np.linalg.norm(part, axis=1, keepdims=True)
        for part in (gallery, queries, references)
    ]
    gallery, queries, references = (part.astype(np.float32) for part in rows)
    gallery = (gallery * sizes).astype(np.float32)
    references = references if bank is None else bank
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(gallery, references, normalize=False)
    return SimpleNamespace(gallery=gallery, queries=queries, references=references, bias=bias)


def bias_of(data, items):
    """The bias of other items from the same bank."""
    return nnnorm.NNN(reference_k=16, alpha=0.75).fit(items, data.references, normalize=False)


@pytest.fixture
def data(case):
    return make_data(300, 40, 13, unit=case.unit)


def exact(data, *, k=10, weight=None, ids=None, keep=None):
    """The right ids and scores by the naive lines, over the rows that `keep` leaves."""
    used = data.bias.weight if weight is None else weight
    keep = np.ones(len(data.gallery), dtype=bool) if keep is None else keep
    scores = data.queries @ data.gallery[keep].T - used * data.bias.values[keep]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    names = (np.arange(len(data.gallery)) if ids is None else np.asarray(ids))[keep]
    return SimpleNamespace(ids=names[best], names=names.tolist(), all_scores=scores)


def check(case, ranking, right):
    """The same ids where the engine is exact, else as many as stated; true scores everywhere."""
    assert ranking.ids.shape == right.ids.shape
    assert (ranking.scores[:, 1:] <= ranking.scores[:, :-1]).all()
    row_of = {name: row for row, name in enumerate(right.names)}
    rows = np.array([[row_of[name] for name in found] for found in ranking.ids.tolist()])
    scores = np.take_along_axis(right.all_scores, rows, axis=1)
    np.testing.assert_allclose(ranking.scores, scores, atol=case.tolerance)
    if case.recall == 1:  # the last bits of a score differ between processors
        best = -np.sort(-right.all_scores, axis=1)[:, : rows.shape[1]]
        np.testing.assert_allclose(scores, best, atol=2e-6)
        return
    both = zip(ranking.ids.tolist(), right.ids.tolist(), strict=True)
    found = sum(len(set(hits) & set(best)) for hits, best in both)
    assert found / right.ids.size >= case.recall


@each
def test_an_index_ranks_as_the_exact_corrected_search_does(case, store, data):
    with build_index(store(), data.gallery, data.bias, way=case.way) as index:
        ranking = index.search(data.queries, k=10)
    raw = (data.queries @ data.gallery.T).argmax(axis=1)
    assert (ranking.ids[:, 0] != raw).mean() > 0.2  # the correction matters in these data
    check(case, ranking, exact(data))


@pytest.mark.slow
@each
def test_a_larger_gallery_keeps_its_recall(case, store):
    larger = make_data(2000, 100, 33, unit=case.unit, seed=1)
    with build_index(store(), larger.gallery, larger.bias, way=case.way) as index:
        check(case, index.search(larger.queries, k=10), exact(larger))


@each
def test_the_weight_changes_without_a_new_index(case, store, data):
    with build_index(store(), data.gallery, data.bias, way=case.way) as index:
        for weight in (0.0, 0.3, 1.5):
            ranking = index.search(data.queries, weight=weight)
            check(case, ranking, exact(data, weight=weight))


@each
def test_another_process_finds_the_index_again(case, store, data):
    build_index(store(), data.gallery, data.bias, way=case.way).close()
    with open_index(store()) as index:
        assert index.recipe.way == case.way
        assert len(index) == len(data.gallery)
        check(case, index.search(data.queries), exact(data))


@each
def test_fewer_items_than_k_give_fewer_columns(case, store, data):
    few = make_data(4, 3, 13, unit=case.unit)
    with build_index(store(), few.gallery, few.bias, way=case.way) as index:
        check(case, index.search(few.queries, k=10), exact(few))


@each
def test_one_item_and_one_query(case, store, data):
    one = make_data(1, 1, 13, unit=case.unit)
    with build_index(store(), one.gallery, one.bias, way=case.way) as index:
        check(case, index.search(one.queries, k=10), exact(one))


@each
@pytest.mark.parametrize("kind", ["int", "str"])
def test_ids_are_the_callers_own(case, store, data, kind):
    ids = [10**12 + 7 * row for row in range(300)]
    if kind == "str":
        ids = [f"photo/{number}.jpg" for number in ids]
    build_index(store(), data.gallery, data.bias, ids=ids, way=case.way).close()
    with open_index(store()) as index:
        check(case, index.search(data.queries), exact(data, ids=ids))


@each
def test_what_was_put_in_comes_out_with_ids_and_metadata(case, store, data):
    ids = [5000 - row for row in range(300)]
    metadata = [{"title": f"Photo {row}", "year": 1900 + row} for row in range(300)]
    build_index(store(), data.gallery, data.bias, ids=ids, metadata=metadata, way=case.way).close()
    with open_index(store()) as index:
        batches = list(index.scan(batch=128))
    assert max(len(batch) for batch in batches) <= 128
    rows = {int(i): row for row, i in enumerate(np.concatenate([b.ids for b in batches]))}
    assert sorted(rows) == sorted(ids)
    order = [rows[i] for i in ids]
    close = 0.15 if index.store.is_quantized else 1e-6
    vectors = np.concatenate([batch.vectors for batch in batches])[order]
    values = np.concatenate([batch.values for batch in batches])[order]
    np.testing.assert_allclose(vectors, data.gallery, atol=close)
    np.testing.assert_allclose(values, data.bias.values, atol=close)
    described = [entry for batch in batches for entry in batch.metadata]
    assert [dict(described[row]) for row in order] == metadata


@each
def test_items_go_and_come_back(case, store, data):
    ids = np.arange(300) * 3 + 11
    index = build_index(store(), data.gallery, data.bias, ids=ids, way=case.way)
    gone = exact(data, k=3, ids=ids).ids[:5].ravel()  # what the first queries would find
    gone = np.unique(gone)
    if not index.store.can_delete:
        with pytest.raises(nnnorm.NNNormError, match="can't delete items; build it again"):
            index.delete(gone)
        return
    index.delete(gone)
    index.save()
    index.close()
    kept = ~np.isin(ids, gone)
    with open_index(store()) as index:
        assert len(index) == kept.sum()
        check(case, index.search(data.queries), exact(data, ids=ids, keep=kept))
        back = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery[~kept], data.references)
        index.add(data.gallery[~kept], back, ids=ids[~kept])
        index.save()
    with open_index(store()) as index:
        check(case, index.search(data.queries), exact(data, ids=ids))


@each
def test_an_index_without_items_finds_nothing(case, store, data):
    few = make_data(3, 2, 13, unit=case.unit)
    with build_index(store(), few.gallery, few.bias, way=case.way) as index:
        if index.store.can_delete:
            index.delete([0, 1, 2])
            assert index.search(few.queries).ids.shape == (2, 0)
            assert len(index) == 0


@each
def test_a_build_that_was_interrupted_goes_on_where_it_stopped(case, store, data, monkeypatch):
    import nnnorm.index.fill as fill

    monkeypatch.setattr(fill, "BATCH", 64)
    broken = store()
    add, calls = broken.add, []

    def add_and_break(items):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(items)
        add(items)

    broken.add = add_and_break
    with pytest.raises(KeyboardInterrupt):
        build_index(broken, data.gallery, data.bias, way=case.way)
    broken.close()
    with pytest.raises(nnnorm.NNNormError, match=r"was not finished \(128 items are in it\)"):
        open_index(store())
    index = build_index(store(), data.gallery, data.bias, way=case.way)
    check(case, index.search(data.queries), exact(data))
    assert len(index) == 300
    index.close()


@each
def test_an_index_that_is_there_is_never_written_over(case, store, data):
    build_index(store(), data.gallery, data.bias, way=case.way).close()
    other = make_data(300, 40, 13, unit=case.unit, seed=9)
    with pytest.raises(nnnorm.NNNormError, match=r"already has 300 items.*choose another name"):
        build_index(store(), other.gallery, other.bias, way=case.way)
    wider = make_data(300, 40, 17, unit=case.unit)
    with pytest.raises(nnnorm.NNNormError, match="embeddings of dim 17 need"):
        build_index(store(), wider.gallery, wider.bias, way=case.way)
    with open_index(store()) as index:
        check(case, index.search(data.queries), exact(data))


@each
def test_a_collection_that_compares_otherwise_is_refused(case, store, data):
    index = build_index(store(), data.gallery, data.bias, way=case.way)
    metric = index.recipe.metric  # what the collection was made for
    other = next((way for way in ("ip", "l2", "cosine") if way != metric), None)
    if other not in index.store.ways:
        with pytest.raises(nnnorm.NNNormError, match=f"does not support the way '{other}'"):
            build_index(store("new"), data.gallery, data.bias, way=other)
    else:
        with pytest.raises(nnnorm.NNNormError, match=f"compares by {metric}.*needs {other}"):
            build_index(index.store, data.gallery, data.bias, way=other)
    index.close()


@each
def test_a_collection_that_is_missing_is_named(case, store, data):
    with pytest.raises(nnnorm.NNNormError, match=f"there is no {case.name.split()[0]}"):
        open_index(store("nowhere"))


@each
def test_duplicate_ids_are_refused_and_nothing_is_added(case, store, data):
    with pytest.raises(nnnorm.NNNormError, match="unique, but 7 occurs at positions 0 and 299"):
        build_index(store(), data.gallery, data.bias, ids=[7, *range(100, 398), 7], way=case.way)
    assert store().facts() is None
    index = build_index(store(), data.gallery, data.bias, way=case.way)
    new = make_data(2, 1, 13, unit=case.unit, seed=5, bank=data.references)
    with pytest.raises(nnnorm.NNNormError, match="already has the id 299"):
        index.add(new.gallery, new.bias, ids=[300, 299])
    assert len(index) == 300
    if index.store.can_delete:
        with pytest.raises(nnnorm.NNNormError, match="has no item with the id 400"):
            index.delete([400])
    index.close()


@each
def test_a_bias_of_another_gallery_and_queries_of_another_model_are_refused(case, store, data):
    other = make_data(300, 40, 13, unit=case.unit, seed=4)
    with pytest.raises(nnnorm.NNNormError, match="was fitted on another gallery"):
        build_index(store(), data.gallery, other.bias, way=case.way)
    assert store().facts() is None
    with build_index(store(), data.gallery, data.bias, way=case.way) as index:
        with pytest.raises(nnnorm.NNNormError, match="must share dim; got 9 and 13"):
            index.search(np.ones((2, 9), dtype=np.float32))
        new = make_data(2, 1, 9, unit=case.unit)
        with pytest.raises(nnnorm.NNNormError, match="must share dim; got 9 and 13"):
            index.add(new.gallery, new.bias, ids=[900, 901])
        with pytest.raises(nnnorm.NNNormError, match="k must be a whole number from 1; got 0"):
            index.search(data.queries, k=0)


# --- what all engines share ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ip", "l2"])
def test_an_index_and_augment_gallery_store_the_same_rows(way):
    data = make_data(50, 5, 13, unit=False)
    index = build_index("faiss:", data.gallery, data.bias, way=way)
    stored = np.concatenate([batch.vectors for batch in index.store.scan()])
    rows = nnnorm.augment_gallery(data.gallery, data.bias, target=way, center=True)
    np.testing.assert_array_equal(stored[:, :14], rows[:, :14])
    asked = nnnorm.augment_queries(data.queries, data.bias, target=way)
    np.testing.assert_array_equal(index.recipe.ask(data.queries, data.bias.weight), asked)
    if way == "l2":  # an index leaves room for longer items
        norms = np.linalg.norm(stored, axis=1)
        np.testing.assert_allclose(norms, index.recipe.radius, rtol=1e-6)
        assert (norms > np.linalg.norm(rows, axis=1)).all()


def test_rows_are_normalised_where_that_is_asked_for():
    data = make_data(50, 5, 13, unit=False)
    unit = nnnorm.open_embeddings(data.gallery, normalize=True)
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(unit, data.references)
    index = build_index("faiss:", data.gallery, bias, normalize=True)
    ranking = index.search(7 * data.queries, normalize=True)
    right = nnnorm.search(data.queries, unit, bias, k=10)
    assert ranking.ids.tolist() == right.indices.tolist()
    np.testing.assert_allclose(ranking.scores, right.scores, atol=1e-5)
    given = {"gallery": data.gallery, "bias": bias, "normalize": True}
    assert verify_index(index, 7 * data.queries, **given).is_good
    rows = nnnorm.augment_gallery(data.gallery, bias, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(rows[:, :13], axis=1), 1, atol=1e-6)
    with pytest.raises(nnnorm.NNNormError, match="fitted on normalised rows"):
        build_index("faiss:", data.gallery, bias)


def test_a_ranking_of_an_index_has_ids_and_survives_the_disk(tmp_path):
    data = make_data(50, 5, 13, unit=True)
    names = [f"photo {row}" for row in range(50)]
    index = build_index("faiss:", data.gallery, data.bias, ids=names)
    ranking = index.search(data.queries)
    assert repr(index) == "CorrectedIndex(faiss in memory: nnn, way 'ip')"
    assert repr(ranking) == "IndexRanking(5 queries, k=10, with ids)"
    assert ranking.ids.tolist() == exact(data, ids=names).ids.tolist()
    ranking.save(tmp_path / "ranking.npz")
    saved = nnnorm.Ranking.load(tmp_path / "ranking.npz")
    assert saved.indices.tolist() == ranking.ids.tolist()
    np.testing.assert_array_equal(saved.scores, ranking.scores)


def save_parquet(path, data, ids):
    vectors = pyarrow.array(data.gallery.tolist())
    pyarrow.parquet.write_table(pyarrow.table({"id": ids, "embedding": vectors}), path)


@pytest.mark.parametrize("ids", [[f"p{row}" for row in range(20)], list(range(500, 520))])
def test_items_keep_the_ids_of_their_file(tmp_path, ids):
    small, file = make_data(20, 5, 6, unit=True), tmp_path / "gallery.parquet"
    save_parquet(file, small, ids)
    index = build_index("faiss:", file, small.bias)
    right = nnnorm.search(small.queries, file, small.bias, k=3)
    assert index.search(small.queries, k=3).ids.tolist() == right.ids.tolist()
    assert set(right.ids.ravel().tolist()) <= set(ids)
    assert verify_index(index, small.queries, gallery=file, bias=small.bias).is_good
    documents = make_payloads("turbopuffer", "photos", file, small.bias).documents()
    assert [document["id"] for document in documents] == ids
    with pytest.raises(nnnorm.NNNormError, match=f"already has the id {ids[0]!r}"):
        index.add(file, small.bias)
    given = build_index("faiss:", file, small.bias, ids=range(20))
    assert given.search(small.queries, k=3).ids.tolist() == right.indices.tolist()


@pytest.mark.parametrize("wrong", [5, None, Path("photos.faiss"), np.eye(2)])
def test_what_names_no_index_is_answered_with_the_order(wrong):
    order = r"got \w+\. .* the order is \(url, gallery, bias\)"
    for call in (open_index, open_store, lambda url: build_index(url, "faiss:", "faiss:")):
        with pytest.raises(nnnorm.NNNormError, match=order):
            call(wrong)


def test_what_is_no_bias_is_answered():
    small = make_data(20, 5, 6, unit=True)
    index = build_index("faiss:", small.gallery, small.bias)
    bank, asked = small.references, small.queries
    message = r"bias must be a Bias, from a method's fit or Bias\.load\(path\); got ndarray"
    for call in (
        lambda: build_index("faiss:", small.gallery, bank),
        lambda: adopt_index("faiss:", small.gallery, bank),
        lambda: index.add(small.gallery, bank, ids=range(100, 120)),
        lambda: verify_index(index, asked, gallery=small.gallery, bias=bank),
        lambda: export_index(index.store, "sqlite:", bias=bank),
        lambda: make_payloads("vespa", "photos", small.gallery, bank),
        lambda: nnnorm.augment_gallery(small.gallery, bank),
        lambda: nnnorm.augment_queries(asked, bank),
    ):
        with pytest.raises(nnnorm.NNNormError, match=message):
            call()


def test_a_misspelt_argument_is_answered():
    for call in (open_index, open_store):
        with pytest.raises(nnnorm.NNNormError, match=f"{call.__name__} has no argument 'foo'"):
            call("faiss:photos.faiss", foo=1)


def test_a_store_shows_its_engine_and_collection():
    assert repr(open_store("faiss:photos.faiss")) == "<FaissStore: faiss photos.faiss>"


def test_a_gated_bias_can_not_be_stored(small):
    gated = nnnorm.InvertedSoftmax(gated=True).fit(small.gallery, small.references)
    with pytest.raises(nnnorm.NNNormError, match="decides per query and can't be stored"):
        build_index("faiss:", small.gallery, gated)


def test_a_url_names_an_engine_that_exists_and_options_it_has(small):
    with pytest.raises(nnnorm.NNNormError, match="there is no engine 'excel'"):
        open_index("excel:photos.xls")
    with pytest.raises(nnnorm.NNNormError, match=r"'photos.faiss' names no engine"):
        open_index("photos.faiss")
    with pytest.raises(nnnorm.NNNormError, match="faiss has no option 'colour'; it has adopt"):
        open_index("faiss:photos.faiss?colour=red")


def test_ids_are_whole_numbers_or_strings_one_per_item():
    assert check_ids(np.array(["a", "b"], dtype=object), 2).dtype.kind == "U"
    with pytest.raises(nnnorm.NNNormError, match=r"string per item of gallery; got 0\.5"):
        check_ids([0.5, 1.5], 2)
    with pytest.raises(nnnorm.NNNormError, match=r"per item of gallery, shape \(3,\)"):
        check_ids([1, 2], 3)
    with pytest.raises(nnnorm.NNNormError, match="must fit in 64 bits"):
        check_ids(np.array([2**63], dtype=np.uint64), 1)


def test_places_that_stay_empty_have_no_score():
    found = gather_hits([[("a", 0.5, 0.1)], []])
    assert found.ids.tolist() == [["a"], [""]]
    assert found.scores.tolist() == [[0.5], [-np.inf]]
    assert gather_hits([[], []]).ids.shape == (2, 0)


def test_a_rerank_says_how_often_it_fetched_again_and_where_it_is_not_certain():
    data = make_data(3000, 20, 13, unit=True)
    index = build_index("faiss:", data.gallery, data.bias, way="rerank")
    ranking = index.search(data.queries, k=10, weight=0.2)
    assert ranking.extra_fetches > 0
    assert ranking.certain.all()
    assert ranking.n_fetched < 3000
    assert ranking.ids.tolist() == exact(data, weight=0.2).ids.tolist()
    cut = index.search(data.queries, k=10, max_fetch=10)
    assert (cut.extra_fetches, cut.n_fetched) == (0, 10)
    assert not cut.certain.any()
    uncorrected = index.search(data.queries, k=10, weight=0.0)
    assert uncorrected.extra_fetches == 0
    assert isinstance(index, CorrectedIndex)


def test_new_items_need_a_bias_by_the_same_method_and_room_for_their_norm():
    data = make_data(50, 5, 13, unit=True)
    new = make_data(3, 5, 13, unit=True, seed=2, bank=data.references)
    index = build_index("faiss:", data.gallery, data.bias, way="l2")
    other = nnnorm.CSLS(reference_k=5).fit(new.gallery, data.references)
    with pytest.raises(nnnorm.NNNormError, match="have a bias by nnn, the new ones by csls"):
        index.add(new.gallery, other, ids=[100, 101, 102])
    with pytest.raises(nnnorm.NNNormError, match="pass ids="):
        index.add(new.gallery, new.bias)
    long = new.gallery * np.float32([[1], [1], [3]])
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(long, data.references)
    with pytest.raises(nnnorm.NNNormError, match=r"item 2 has the norm 3.* build it again"):
        index.add(long, bias, ids=[100, 101, 102])
    assert len(index) == 50


def test_a_rerank_stays_certain_when_items_with_a_smaller_bias_come_in():
    data = make_data(2000, 20, 13, unit=True)
    order = np.argsort(-data.bias.values)  # the last come in last
    first, last = order[:1900], order[1900:]

    def part(rows):
        bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery[rows], data.references)
        return data.gallery[rows], bias

    index = build_index("faiss:", *part(first), ids=first, way="rerank")
    index.add(*part(last), ids=last)
    ranking = index.search(data.queries)
    assert ranking.certain.all()
    assert ranking.ids.tolist() == exact(data).ids.tolist()


def test_a_rerank_that_fetched_every_item_is_certain():
    data = make_data(100, 20, 13, unit=True)
    index = build_index("faiss:", data.gallery, data.bias, way="rerank")
    ranking = index.search(data.queries, k=10, weight=9.0, max_fetch=100)
    assert ranking.n_fetched == 100
    assert ranking.certain.all()
    assert ranking.ids.tolist() == exact(data, weight=9.0).ids.tolist()
    assert not index.search(data.queries, k=10, weight=9.0, max_fetch=99).certain.any()


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("spread", [0.009, 0.0])
def test_a_rerank_of_norms_that_are_not_quite_one_claims_no_more_than_it_knows(metric, spread):
    """Cosine and L2 don't tell an item's norm, and 1 % of it can change places."""
    data = make_data(300, 100, 13, unit=True)
    sizes = 1 + spread * np.random.default_rng(0).choice([-1, 1], size=(300, 1))
    data.gallery = (data.gallery * sizes).astype(np.float32)
    data.bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery, data.references)
    store = open_store("sqlite:")
    store.ways = (metric, "rerank")  # it would take cosine by itself
    ranking = build_index(store, data.gallery, data.bias, way="rerank").search(data.queries)
    right = exact(data).ids
    both = zip(ranking.ids.tolist(), right.tolist(), strict=True)
    is_right = np.array([set(hits) == set(best) for hits, best in both])
    assert is_right[ranking.certain].all()
    assert is_right.all() == (spread == 0)
    assert ranking.certain.all() == (spread == 0)
    assert ranking.certain.any()


def test_new_items_widen_what_the_index_knows_of_its_norms():
    data, new = make_data(50, 5, 13, unit=True), make_data(3, 5, 13, unit=True, seed=2)
    long = new.gallery * np.float32([[0.5], [1], [2]])
    bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(long, data.references)
    index = build_index("faiss:", data.gallery, data.bias)
    assert index.recipe.has_equal_norms
    index.add(long, bias, ids=[100, 101, 102])
    assert (index.recipe.shortest, index.recipe.longest) == pytest.approx((0.5, 2))
    assert not index.recipe.has_equal_norms
    assert index.store.read_note()["longest"] == pytest.approx(2)
    other = build_index("sqlite:", data.gallery, data.bias, way="rerank")
    with pytest.raises(nnnorm.NNNormError, match=r"re-rank of hits by cosine needs unit norm"):
        other.add(long, bias, ids=[100, 101, 102])
    assert len(other) == 50


# Values of one origin only stand side by side


def test_new_items_of_another_bank_or_k_are_refused():
    data = make_data(50, 5, 13, unit=True)
    new = make_data(8, 5, 13, unit=True, seed=2, bank=data.references)
    index = build_index("faiss:", data.gallery, data.bias)
    ids = range(100, 108)
    others = [
        nnnorm.NNN(reference_k=16, alpha=0.75).fit(new.gallery, data.references[:150]),
        nnnorm.NNN(reference_k=8, alpha=0.75).fit(new.gallery, data.references),
        nnnorm.NNN(reference_k=16, alpha=0.75, center=True).fit(new.gallery, data.references),
        nnnorm.Bias(new.bias.values, 0.75, "nnn"),
    ]
    for other in others:
        with pytest.raises(nnnorm.NNNormError, match="do not mix with those of faiss in memory"):
            index.add(new.gallery, other, ids=ids)
    assert len(index) == 50
    lighter = nnnorm.NNN(reference_k=16, alpha=0.5).fit(new.gallery, data.references)
    index.add(new.gallery, lighter, ids=ids)  # the weight is on the side of the queries
    assert len(index) == 58


def test_a_centred_bias_needs_a_corrector_for_later_items():
    data = make_data(50, 5, 13, unit=True)
    method = nnnorm.NNN(reference_k=16, alpha=0.75, center=True)
    index = build_index("faiss:", data.gallery, method.fit(data.gallery, data.references))
    new = make_data(8, 5, 13, unit=True, seed=2).gallery
    with pytest.raises(nnnorm.NNNormError, match="nnnorm fit --save-corrector"):
        index.add(new, method.fit(new, data.references), ids=range(100, 108))


def test_what_is_not_known_of_an_index_is_said():
    data = make_data(50, 5, 13, unit=True)
    index = build_index("faiss:", data.gallery, nnnorm.Bias(data.bias.values, 0.75, "nnn"))
    new = make_data(8, 5, 13, unit=True, seed=2, bank=data.references)
    with pytest.warns(nnnorm.NNNormWarning, match="where the values .* come from is not known"):
        index.add(new.gallery, new.bias, ids=range(100, 108))


def test_a_copy_of_an_index_takes_the_items_of_the_same_corrector(tmp_path):
    data = make_data(50, 5, 13, unit=True)
    corrector = nnnorm.Corrector.fit(data.gallery, data.references, nnnorm.NNN(16, 0.75))
    build_index(f"faiss:{tmp_path}/a.faiss", data.gallery, corrector.bias).close()
    new = make_data(8, 5, 13, unit=True, seed=2).gallery
    nnnorm.export_index(f"faiss:{tmp_path}/a.faiss", f"sqlite:{tmp_path}/b.db").close()
    again = {"bias": corrector.bias, "ids": range(50)}
    nnnorm.export_index(f"faiss:{tmp_path}/a.faiss", f"sqlite:{tmp_path}/c.db", **again).close()
    other = nnnorm.NNN(16, 0.75).fit(new, data.references[:100])
    for name in ("b", "c"):
        with open_index(f"sqlite:{tmp_path}/{name}.db") as index:
            assert index.recipe.corrector == corrector.fingerprint
            with pytest.raises(nnnorm.NNNormError, match="from no corrector"):
                index.add(new, other, ids=range(100, 108))
            index.add(new, corrector.bias_of(new), ids=range(100, 108))
            assert len(index) == 58


def test_a_popularity_of_another_weight_is_refused():
    data = make_data(50, 5, 13, unit=True)
    new = make_data(8, 5, 13, unit=True, seed=2, bank=data.references)
    clicks = nnnorm.Popularity(np.arange(50), weight=0.05)
    index = build_index("faiss:", data.gallery, data.bias + clicks)
    ids, few = range(100, 108), np.arange(8)
    with pytest.raises(nnnorm.NNNormError, match=r"has the weight 0.5 .* add it with the same"):
        index.add(new.gallery, new.bias + nnnorm.Popularity(few, weight=0.5), ids=ids)
    with pytest.warns(nnnorm.NNNormWarning, match=r"the new items \(4\) have no clicks"):
        index.add(new.gallery[:4], bias_of(data, new.gallery[:4]), ids=ids[:4])
    later = bias_of(data, new.gallery[4:]) + nnnorm.Popularity(few[4:], weight=0.05)
    index.add(new.gallery[4:], later, ids=ids[4:])
    plain = build_index("faiss:", data.gallery, data.bias)
    with pytest.raises(nnnorm.NNNormError, match="add it with the same weights"):
        plain.add(new.gallery, new.bias + nnnorm.Popularity(few, weight=0.5), ids=ids)


def test_an_index_of_clicks_alone_takes_new_items_without_any():
    data = make_data(50, 5, 13, unit=True)
    corrector = nnnorm.Corrector.fit(data.gallery, data.references, nnnorm.NNN(16, 0.0))
    bias = corrector.bias + nnnorm.Popularity(np.arange(50) % 3, weight=0.05)
    index = build_index("faiss:", data.gallery, bias)
    new = make_data(8, 5, 13, unit=True, seed=2).gallery
    with pytest.warns(nnnorm.NNNormWarning, match=r"the new items \(8\) have no clicks"):
        index.add(new, corrector.bias_of(new), ids=range(100, 108))
    found = index.search(data.queries, k=58)
    scores = dict(zip(found.ids[0].tolist(), found.scores[0].tolist(), strict=True))
    for row, item in enumerate(new):
        assert scores[100 + row] == pytest.approx(float(data.queries[0] @ item), abs=1e-5)
