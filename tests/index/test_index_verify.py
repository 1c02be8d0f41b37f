"""`verify_index` says how good a live index is, and names the trap it fell into."""

import faiss
import numpy as np
import pytest
from usearch.index import Index as UsearchIndex

import nnnorm
from nnnorm.index import adopt_index, build_index, open_index, verify_index
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.hnswlib import HnswlibStore
from nnnorm.index.stores.usearch import UsearchStore
from tests import stores  # noqa: F401 - one thread per engine
from tests.index.test_index import make_data


@pytest.fixture
def data():
    return make_data(1000, 60, 32, unit=True, seed=3)


def problem_of(index, data, **options):
    result = verify_index(index, data.queries, gallery=data.gallery, bias=data.bias, **options)
    assert not result.is_good
    assert len(result.problems) == 1
    return result, result.problems[0]


def test_a_good_index_has_no_problems(data):
    index = build_index(FaissStore(), data.gallery, data.bias)
    result = verify_index(index, data.queries, gallery=data.gallery, bias=data.bias, sample=50)
    assert (result.recall, result.n_queries, result.n_items) == (1.0, 50, 1000)
    assert result.score_error < 1e-5
    assert result.is_good
    assert result.to_dict()["problems"] == []
    by_itself = verify_index(index, data.queries, weight=0.2)
    assert (by_itself.recall, by_itself.is_good) == (1.0, True)


def test_an_index_may_be_named_by_its_url(data, tmp_path):
    url = f"sqlite:{tmp_path / 'photos.db'}"
    build_index(url, data.gallery, data.bias).close()
    result = verify_index(url, data.queries, gallery=data.gallery, bias=data.bias, k=3, sample=7)
    assert (result.recall, result.k, result.n_queries) == (1.0, 3, 7)
    with pytest.raises(nnnorm.NNNormError, match=r"got ndarray\. The order is \(index, queries\)"):
        verify_index(data.queries, url)


def test_a_gated_bias_is_refused_before_the_index_is_blamed(data):
    index = build_index(FaissStore(), data.gallery, data.bias)
    gated = nnnorm.InvertedSoftmax(gated=True).fit(data.gallery, data.references)
    with pytest.raises(nnnorm.NNNormError, match=r"a gated bias .* can't be stored in an index"):
        verify_index(index, data.queries, gallery=data.gallery, bias=gated)


def test_ids_that_are_not_rows_are_given(data):
    index = build_index(FaissStore(), data.gallery, data.bias, ids=range(5000, 6000))
    right = {"gallery": data.gallery, "bias": data.bias}
    assert verify_index(index, data.queries, **right, ids=range(5000, 6000)).is_good
    result = verify_index(index, data.queries, **right)
    assert result.recall == 0
    assert "are no items of the gallery (such as the id 5" in result.problems[0]


def test_bf16_that_usearch_takes_by_itself_is_named(data, tmp_path):
    mine = UsearchIndex(ndim=33, metric="ip")  # as its documentation begins
    assert "bf16" in str(mine.dtype).lower()
    mine.add(np.arange(1000, dtype=np.uint64), nnnorm.augment_gallery(data.gallery, data.bias))
    mine.save(str(tmp_path / "mine.usearch"))
    index = adopt_index(UsearchStore(tmp_path / "mine.usearch"), data.gallery, data.bias)
    result, problem = problem_of(index, data)
    assert "stores bf16, the default of usearch: build it with dtype=f32" in problem
    assert result.score_error > 1e-3
    ours = build_index(UsearchStore(), data.gallery, data.bias)
    good = verify_index(ours, data.queries, gallery=data.gallery, bias=data.bias)
    assert good.score_error < 1e-5


def test_a_narrow_search_is_named(data):
    index = build_index(HnswlibStore(links=4, ef=4, threads=1), data.gallery, data.bias)
    result, problem = problem_of(index, data)
    assert result.recall < 0.95
    assert "too narrow: increase ef" in problem


def test_a_graph_over_unequal_norms_is_named_and_warned_of(data):
    sizes = np.exp(np.random.default_rng(0).normal(size=(1000, 1))).astype(np.float32)
    data.gallery = data.gallery * sizes
    data.bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery, data.references)
    with pytest.warns(UserWarning, match="walks a graph, and the gallery has norms .*normalise"):
        index = build_index(HnswlibStore(ef=10, threads=1), data.gallery, data.bias)
    result, problem = problem_of(index, data)
    assert result.recall < 0.9
    assert "a graph over unequal norms" in problem


def test_codes_of_few_bits_are_named(data):
    index = build_index(FaissStore(kind="pq"), data.gallery, data.bias)
    result, problem = problem_of(index, data)
    assert result.recall < 0.99
    assert "stored in few bits" in problem


def test_a_rerank_that_was_cut_off_is_named(data, monkeypatch):
    index = build_index(FaissStore(), data.gallery, data.bias, way="rerank")
    search = index.search
    monkeypatch.setattr(index, "search", lambda *a, **o: search(*a, **o, max_fetch=10))
    assert "the re-rank was cut off for" in problem_of(index, data)[1]


def test_norms_that_are_not_quite_one_are_named_where_a_rerank_takes_them_for_it(data):
    sizes = np.random.default_rng(0).choice([0.991, 1.009], size=(1000, 1)).astype(np.float32)
    data.gallery = data.gallery * sizes
    data.bias = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery, data.references)
    index = build_index("sqlite:", data.gallery, data.bias, way="rerank")
    _, problem = problem_of(index, data, sample=10)
    assert "assumes unit norm, and norms are 0.991 to 1.009" in problem


def test_an_index_filled_by_hand_is_taken_for_what_it_is(data, tmp_path):
    def hold(rows, metric=faiss.METRIC_INNER_PRODUCT):
        mine = faiss.IndexFlat(rows.shape[1], metric)
        mine.add(rows)
        faiss.write_index(mine, str(tmp_path / "mine.faiss"))
        return FaissStore(tmp_path / "mine.faiss")

    rows = nnnorm.augment_gallery(data.gallery, data.bias)
    right = {"gallery": data.gallery, "bias": data.bias}
    adopted = adopt_index(hold(rows), data.gallery, data.bias)
    assert verify_index(adopted, data.queries, **right).is_good
    rows_l2 = nnnorm.augment_gallery(data.gallery, data.bias, target="l2")
    adopted = adopt_index(hold(rows_l2, faiss.METRIC_L2), data.gallery, data.bias, way="l2")
    assert verify_index(adopted, data.queries, **right).is_good

    without = rows.copy()
    without[:, -1] = 0
    adopted = adopt_index(hold(without), data.gallery, data.bias)
    assert "scores are uncorrected" in problem_of(adopted, data)[1]
    adopted = adopt_index(hold(-rows), data.gallery, data.bias)
    assert "wrong sign" in problem_of(adopted, data)[1]
    normalised = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    adopted = adopt_index(hold(normalised), data.gallery, data.bias)
    assert "normalises its vectors" in problem_of(adopted, data)[1]
    with pytest.raises(nnnorm.NNNormError, match="holds vectors of 32 numbers, but items of dim"):
        adopt_index(hold(data.gallery), data.gallery, data.bias)
    with pytest.raises(nnnorm.NNNormError, match="holds no correction"):
        open_index(hold(rows))


def test_items_that_are_missing_are_counted(data):
    index = build_index(FaissStore(), data.gallery, data.bias)
    index.delete(np.arange(20))
    result = verify_index(index, data.queries, gallery=data.gallery, bias=data.bias)
    assert "holds 980 items, the gallery 1000" in result.problems[0]


def test_gallery_and_bias_go_together(data):
    index = build_index(FaissStore(), data.gallery, data.bias)
    with pytest.raises(nnnorm.NNNormError, match="go together; give both or neither"):
        verify_index(index, data.queries, gallery=data.gallery)


def test_copies_of_an_item_are_as_right_as_the_item(data):
    gallery, values = np.tile(data.gallery, (5, 1)), np.tile(data.bias.values, 5)
    bias = nnnorm.Bias(values, data.bias.weight, data.bias.method)
    result = verify_index(build_index(FaissStore(), gallery, bias), data.queries, k=7)
    assert result.is_good
    assert result.recall == 1


# The real cause is named before rankings are compared


def test_an_index_of_another_weight_bank_or_k_is_named(data):
    light = nnnorm.NNN(reference_k=16, alpha=0.1).fit(data.gallery, data.references)
    _, problem = problem_of(build_index(FaissStore(), data.gallery, light), data)
    assert "built with the weight 0.1, but the bias has 0.75" in problem
    other = nnnorm.NNN(reference_k=16, alpha=0.75).fit(data.gallery, data.references[:100])
    _, problem = problem_of(build_index(FaissStore(), data.gallery, other), data)
    assert "values of another bank of references: refresh the index" in problem
    narrow = nnnorm.NNN(reference_k=4, alpha=0.75).fit(data.gallery, data.references)
    _, problem = problem_of(build_index(FaissStore(kind="sq"), data.gallery, narrow), data)
    assert "averages 4 references per item, the bias 16" in problem
    by_hand = nnnorm.Bias(other.values, 0.75, "nnn")
    _, problem = problem_of(build_index(HnswlibStore(threads=1), data.gallery, by_hand), data)
    assert "stored bias values are not those of this bias" in problem


def lose(index, n):
    """Replace some vectors inside the engine by zeros, as a crash or another program might."""
    bare = faiss.downcast_index(index.store._index.index)
    rows = faiss.rev_swig_ptr(bare.get_xb(), bare.ntotal * bare.d).reshape(bare.ntotal, bare.d)
    rows[np.random.default_rng(0).choice(bare.ntotal, n, replace=False)] = 0


def test_an_exact_engine_has_to_find_every_hit():
    data = make_data(6000, 100, 32, unit=True, seed=3)
    index = build_index(FaissStore(), data.gallery, data.bias)
    lose(index, 53)
    result, problem = problem_of(index, data)
    assert 0.98 < result.recall < 1
    assert "53 of 6000 stored vectors are not those of the gallery" in problem
    assert result.n_compared == 6000
    result, problem = problem_of(index, data, vectors=0)
    assert "hits are missing, though faiss compares every item" in problem


def test_a_corrector_is_enough_to_compare_what_is_stored(data):
    corrector = nnnorm.Corrector.fit(data.gallery, data.references, nnnorm.NNN(16, 0.75))
    other = nnnorm.Corrector.fit(data.gallery, data.references[:100], nnnorm.NNN(16, 0.75))
    index = build_index(FaissStore(), data.gallery, corrector)
    assert verify_index(index, data.queries, bias=corrector).is_good
    assert verify_index(index, data.queries, bias=corrector, gallery=data.gallery).is_good
    result = verify_index(index, data.queries, bias=other)
    assert "another bank of references" in result.problems[0]
    with pytest.raises(nnnorm.NNNormError, match="a bias goes together with its gallery"):
        verify_index(index, data.queries, bias=data.bias)
