from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnnorm
from nnnorm import (
    NNN,
    Bias,
    DualSoftmax,
    InvertedSoftmax,
    NNNormError,
    NNNormWarning,
    Ranking,
    evaluation,
    open_embeddings,
    rerank,
    search,
)
from nnnorm.augmentation import augment_gallery, augment_queries
from nnnorm.ranking import score_matrix
from tests import reference


@pytest.fixture
def bias(small):
    return NNN(reference_k=5, alpha=0.75).fit(small.gallery, small.references)


def corrected(small, bias, weight=None):
    weight = bias.weight if weight is None else weight
    raw = small.queries.astype(float) @ small.gallery.astype(float).T
    return raw - weight * bias.values.astype(float)


def test_a_corrector_notices_swapped_arguments_and_evaluates():
    rng = np.random.default_rng(3)
    gallery, references, queries = (rng.normal(size=(n, 16)) for n in (60, 80, 40))
    corrector = nnnorm.Corrector.fit(gallery, references, normalize=True)
    with pytest.raises(nnnorm.NNNormError, match="queries and gallery look swapped"):
        search(gallery, queries, corrector)
    truth = np.arange(40)
    found = nnnorm.evaluate(queries, gallery, corrector, truth=truth)
    right = nnnorm.evaluate(queries, gallery, corrector.bias, truth=truth, normalize=True)
    np.testing.assert_array_equal(found.top1, right.top1)
    figures = found.to_dict()
    assert figures["recall_at_1"] == right.recall(1)
    assert figures["n_gallery"] == 60


def test_a_ranking_is_a_table_of_hits():
    pytest.importorskip("pandas")
    shown = search(np.eye(3)[:2], np.eye(3), k=2, ids=["a", "b", "c"]).to_pandas()
    assert shown.columns.tolist() == ["query", "rank", "item", "score"]
    assert shown.loc[shown["rank"] == 1, "item"].tolist() == ["a", "b"]


def test_a_search_ranks_by_score_minus_weighted_bias(small, bias):
    expected = corrected(small, bias)
    found = search(small.queries, small.gallery, bias, k=7)
    np.testing.assert_array_equal(found.indices, reference.rank(expected, 7))
    np.testing.assert_allclose(found.scores, -np.sort(-expected, axis=1)[:, :7], atol=1e-6)
    assert (found.scores.dtype, found.indices.dtype) == (np.float32, np.int64)


def test_a_weight_overrides_the_biases_own(small, bias):
    for weight in (0.0, 0.3, -1.0, 2.0):
        found = search(small.queries, small.gallery, bias, k=23, weight=weight)
        expected = reference.rank(corrected(small, bias, weight), 23)
        np.testing.assert_array_equal(found.indices, expected)


def test_ties_go_to_the_lower_index():
    gallery = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = search(np.array([[1.0, 0.0]]), gallery, k=4)
    assert found.indices.tolist() == [[1, 2, 4, 0]]


def test_the_dense_matrix_holds_the_same_scores(small, bias):
    dense = score_matrix(small.queries, small.gallery, bias)
    np.testing.assert_allclose(dense, corrected(small, bias), atol=1e-6)
    found = search(small.queries, small.gallery, bias, k=23)
    np.testing.assert_allclose(
        found.scores, np.take_along_axis(dense, found.indices, axis=1), atol=1e-6
    )
    np.testing.assert_allclose(
        score_matrix(small.queries, small.gallery), small.queries @ small.gallery.T, atol=1e-6
    )


# --- the correction as extra dimensions ----------------------------------------------------------


def nearest(target, items, asked, k):
    """What an index of that kind does, in float64."""
    items, asked = items.astype(float), asked.astype(float)
    if target == "l2":
        return reference.rank(-((asked[:, None, :] - items[None]) ** 2).sum(axis=2), k)
    if target == "cosine":
        items = items / np.linalg.norm(items, axis=1, keepdims=True)
        asked = asked / np.linalg.norm(asked, axis=1, keepdims=True)
    return reference.rank(asked @ items.T, k)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ip", "cosine", "l2"])
@given(weight=st.one_of(st.none(), st.floats(0.0, 1.5)), seed=st.integers(0, 5))
def test_augmented_vectors_rank_as_the_search_does(target, weight, seed):
    rng = np.random.default_rng(seed)
    gallery, references, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 9))
    bias = NNN(reference_k=3, alpha=0.75).fit(gallery, references)
    items = augment_gallery(gallery, bias, target=target)
    asked = augment_queries(queries, bias, weight=weight, target=target)
    expected = search(queries, gallery, bias, k=20, weight=weight)
    np.testing.assert_array_equal(nearest(target, items, asked, 20), expected.indices)


def test_inner_products_of_augmented_vectors_are_the_corrected_scores(small):
    bias = DualSoftmax(20.0, 5.0).fit(
        small.gallery, small.references, gallery_references=small.gallery_references
    )
    items, asked = augment_gallery(small.gallery, bias), augment_queries(small.queries, bias)
    assert items.shape == (23, 13)
    assert asked.shape == (11, 13)
    np.testing.assert_allclose(asked @ items.T, corrected(small, bias), atol=1e-6)


# --- a ranking on disk ---------------------------------------------------------------------------


def test_a_ranking_file_that_is_none_is_rejected(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", other=np.eye(2))
    for name, kind in (("text.npz", ".npz"), ("other.npz", "a ranking")):
        words = rf"can't be read as {kind} .* another kind of file"
        with pytest.raises(NNNormError, match=words):
            Ranking.load(tmp_path / name)
    with pytest.raises(NNNormError, match="there is no ranking file"):
        Ranking.load(tmp_path / "missing.npz")


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, -1, 24, 2.0, True])
def test_k_out_of_range_says_both_numbers(small, k):
    with pytest.raises(
        NNNormError, match=rf"from 1 to 23, the number of items of gallery; got {k}"
    ):
        search(small.queries, small.gallery, k=k)


def test_queries_of_another_dim_are_rejected(small, bias):
    with pytest.raises(
        NNNormError, match=r"queries and gallery must have the same dimension; .*\(11, 5\)"
    ):
        search(small.queries[:, :5], small.gallery)
    with pytest.raises(NNNormError, match="must have the same dimension; got 5 and 12"):
        augment_queries(small.queries[:, :5], bias)


def test_a_bias_of_another_gallery_is_rejected(small, bias):
    with pytest.raises(NNNormError, match="fitted on 23 items, but gallery has 20; fit the"):
        search(small.queries, small.gallery[:20], bias)
    for other in (small.gallery[::-1], small.gallery + 1e-3):
        for use in (
            lambda g: search(small.queries, g, bias),
            lambda g: score_matrix(small.queries, g, bias),
            lambda g: augment_gallery(g, bias),
        ):
            with pytest.raises(NNNormError, match="this bias was fitted on another gallery"):
                use(other)


def test_a_bias_of_normalized_rows_is_rejected_for_raw_ones_and_says_why(small):
    unit = open_embeddings(small.gallery, normalize=True)
    bias = NNN(reference_k=5, alpha=0.5).fit(unit, small.references, normalize=True)
    search(small.queries, unit, bias, normalize=True)
    with pytest.raises(NNNormError, match="fitted on normalized rows, but gallery is not normal"):
        search(small.queries, small.gallery, bias)


def test_normalized_and_raw_rows_are_not_searched_together(small):
    unit = open_embeddings(small.gallery, name="gallery", normalize=True)
    with pytest.raises(NNNormError, match="gallery have norm 1, but rows of queries"):
        search(5 * small.queries, unit)
    with pytest.raises(NNNormError, match="gallery have norm 1, but rows of references"):
        NNN().fit(unit, 5 * small.references)


def unit_rows(array):
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def test_references_on_another_scale_than_a_unit_gallery_are_warned_of(small):
    gallery, references = unit_rows(small.gallery), 100 * unit_rows(small.references)
    with pytest.warns(NNNormWarning, match="gallery have norm 1, but rows of references"):
        NNN().fit(gallery, references)
    NNN().fit(gallery, references, normalize=False)  # warnings are errors here
    NNN().fit(gallery, references, normalize=True)


def test_queries_on_another_scale_than_the_references_are_warned_of(small, tmp_path):
    gallery, queries = unit_rows(small.gallery), unit_rows(small.queries)
    method = NNN(reference_k=5, alpha=0.5)
    bias = method.fit(gallery, 100 * unit_rows(small.references), normalize=False)
    bias.save(tmp_path / "bias.safetensors")
    for one in (bias, Bias.load(tmp_path / "bias.safetensors")):
        truth = np.zeros(len(queries), np.int64)
        for use in (search, score_matrix, partial(nnnorm.evaluate, truth=truth)):
            with pytest.warns(NNNormWarning, match="past queries have norms of 100, so corr"):
                use(queries, gallery, one)
    search(100 * queries, gallery, bias)  # warnings are errors here
    search(queries, gallery, bias, weight=0)


def test_weights_must_be_finite_numbers_and_need_a_bias(small, bias):
    with pytest.raises(NNNormError, match="weight needs a bias"):
        search(small.queries, small.gallery, weight=0.5)
    with pytest.raises(NNNormError, match=r"weight must be a number from .* got nan"):
        search(small.queries, small.gallery, bias, weight=float("nan"))


def test_a_gated_bias_is_no_extra_dimension(small):
    gated = InvertedSoftmax(gated=True).fit(small.gallery, small.references)
    for use in (
        lambda: augment_gallery(small.gallery, gated),
        lambda: augment_queries(small.queries, gated),
    ):
        with pytest.raises(NNNormError, match=r"gated bias \(qbnorm\) corrects only some queries"):
            use()


def test_the_published_dual_dis_takes_no_weight(small):
    bias = DualSoftmax(20.0, 5.0, gate="paper").fit(
        small.gallery, small.references, gallery_references=small.gallery_references
    )
    with pytest.raises(NNNormError, match="leave out weight"):
        search(small.queries, small.gallery, bias, weight=0.5)


def test_other_things_than_a_bias_are_rejected(small):
    with pytest.raises(NNNormError, match=r"must be a Bias, .* Bias\.load\(path\); got str"):
        search(small.queries, small.gallery, "bias.safetensors")
    with pytest.raises(NNNormError, match=r"weight must be a number from .*; got 1e"):
        search(small.queries, small.gallery, Bias(np.zeros(23), 1.0, "nnn"), weight=1e39)


def test_unknown_targets_are_rejected(small, bias):
    with pytest.raises(NNNormError, match="target must be 'ip', 'cosine' or 'l2'; got 'dot'"):
        augment_gallery(small.gallery, bias, target="dot")


def test_a_bias_from_ready_scores_fits_any_gallery_of_its_size(small):
    bias = NNN(reference_k=2, alpha=0.5).fit_scores(small.gallery @ small.references.T)
    assert len(search(small.queries, small.gallery, bias, k=3).indices) == 11
    assert isinstance(bias, Bias)


# --- ids, normalization, wrong arguments ----------------------------------------------------------


@pytest.mark.parametrize("ids", [np.arange(23) + 100, [f"photo-{n}" for n in range(23)]])
@pytest.mark.parametrize("gated", [False, True])
def test_a_ranking_has_the_ids_of_its_hits_and_saves_them(small, tmp_path, ids, gated):
    bias = InvertedSoftmax(gated=gated).fit(small.gallery, small.references)
    found = search(small.queries, small.gallery, bias, k=3, ids=ids)
    np.testing.assert_array_equal(found.ids, np.asarray(ids)[found.indices])
    found.save(tmp_path / "ranking.npz")
    back = Ranking.load(tmp_path / "ranking.npz")
    for name in ("ids", "indices", "scores"):
        np.testing.assert_array_equal(getattr(back, name), getattr(found, name))


@pytest.mark.parametrize("ids", [range(22), np.zeros((23, 2)), np.zeros(23), [None] * 23])
def test_ids_are_one_whole_number_or_string_per_item(small, ids):
    with pytest.raises(NNNormError, match="one whole number or string per item of gallery"):
        search(small.queries, small.gallery, ids=ids)


def test_normalize_makes_it_a_cosine_search(small, bias):
    unit = [
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (small.queries, small.gallery)
    ]
    expected = search(*unit, k=23)
    found = search(small.queries, small.gallery, k=23, normalize=True)
    np.testing.assert_array_equal(found.indices, expected.indices)
    dense = score_matrix(small.queries, small.gallery, normalize=True)
    np.testing.assert_allclose(dense, unit[0] @ unit[1].T, atol=1e-6)


def test_queries_and_gallery_in_the_wrong_order_are_named(small, bias):
    with pytest.raises(NNNormError, match="queries and gallery look swapped"):
        search(small.gallery, small.queries, bias)


# --- confidence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 10, 23])
@pytest.mark.parametrize("method", [NNN(5, 0.75), InvertedSoftmax(gated=True)])
def test_confidence_comes_from_the_ten_best_whatever_k_is(small, k, method):
    bias = method.fit(small.gallery, small.references)
    expected = reference.confidence(score_matrix(small.queries, small.gallery, bias))
    found = search(small.queries, small.gallery, bias, k=k)
    assert (found.confidence.dtype, found.scores.shape[1]) == (np.float32, k)
    np.testing.assert_allclose(found.confidence, expected, atol=1e-6)


def test_a_gallery_of_fewer_than_ten_items_is_compared_with_all_of_them(small):
    found = search(small.queries, small.gallery[:4], k=2)
    raw = small.queries @ small.gallery[:4].T
    np.testing.assert_allclose(found.confidence, reference.confidence(raw), atol=1e-6)


@pytest.mark.parametrize("ids", [None, range(100, 123), [f"item {n}" for n in range(23)]])
def test_queries_below_a_confidence_have_no_hits(small, bias, ids, tmp_path):
    everything = search(small.queries, small.gallery, bias, k=4, ids=ids)
    bound = float(np.median(everything.confidence))
    found = search(small.queries, small.gallery, bias, k=4, ids=ids, min_confidence=bound)
    below = everything.confidence < bound
    assert 0 < below.sum() < len(below)
    np.testing.assert_array_equal(found.confidence, everything.confidence)
    np.testing.assert_array_equal(found.indices[~below], everything.indices[~below])
    np.testing.assert_array_equal(found.scores[~below], everything.scores[~below])
    assert (found.indices[below] == -1).all()
    assert (found.scores[below] == -np.inf).all()
    if ids is not None:
        missing = "" if isinstance(ids, list) else -1
        assert set(found.ids[below].ravel().tolist()) == {missing}
        np.testing.assert_array_equal(found.ids[~below], everything.ids[~below])
    found.save(tmp_path / "found.npz")
    np.testing.assert_array_equal(Ranking.load(tmp_path / "found.npz").confidence, found.confidence)


def test_a_query_without_hits_is_a_miss_and_feeds_no_hub(small):
    with pytest.warns(NNNormWarning, match="no query reaches min_confidence, so none has hits"):
        found = search(small.queries, small.gallery, k=1, min_confidence=1e6)
    assert evaluation.count_occurrences(found, 23).sum() == 0
    truth = np.arange(len(small.queries)) % 23
    assert evaluation.evaluate_ranking(found, truth, n_gallery=23).recall(1) == 0


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), "0.1", True])
def test_a_bound_of_the_confidence_is_a_finite_number(small, bound):
    with pytest.raises(NNNormError, match=r"min_confidence must be a number .*; got"):
        search(small.queries, small.gallery, min_confidence=bound)


def test_distances_and_hits_without_a_bias_are_not_reranked_silently(small, bias):
    raw = search(small.queries, small.gallery, k=20)
    values, known = bias.values[raw.indices], {"weight": 0.5, "bias_range": (-1, 1)}
    with pytest.warns(NNNormWarning, match="scores rise along the fetched hits, as distances do"):
        rerank(raw.indices, 1 - raw.scores, values, **known)
    values[3, 5] = np.nan
    with pytest.raises(NNNormError, match="got NaN or infinity: look up the bias of every"):
        rerank(raw.indices, raw.scores, values, **known)


def test_hits_that_are_reranked_have_the_confidence_of_a_search(small, bias):
    raw = search(small.queries, small.gallery, k=23)
    ends = (float(bias.values.min()), float(bias.values.max()))
    values = bias.values[raw.indices]
    found = rerank(raw.indices, raw.scores, values, weight=bias.weight, bias_range=ends, k=2)
    expected = search(small.queries, small.gallery, bias, k=2)
    np.testing.assert_array_equal(found.ids, expected.indices)
    np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-6)


def test_a_corrector_searches_its_own_gallery_and_any_other(rng):
    gallery, references, queries = (rng.normal(size=(n, 16)) for n in (50, 200, 5))
    corrector = nnnorm.Corrector.fit(gallery, references, normalize=True)
    found = nnnorm.search(queries, gallery, corrector, k=3)
    exact = nnnorm.search(queries, gallery, corrector.bias, k=3, normalize=True)
    np.testing.assert_array_equal(found.indices, exact.indices)
    other = rng.normal(size=(30, 16))
    found = nnnorm.search(queries, other, corrector, k=3)
    exact = nnnorm.search(queries, other, corrector.bias_for(other), k=3, normalize=True)
    np.testing.assert_array_equal(found.indices, exact.indices)
    with pytest.raises(nnnorm.NNNormError, match="normalize is False"):  # the corrector's is True
        nnnorm.search(queries, other, corrector, k=3, normalize=False)


def test_a_ranking_iterates_over_the_hits_of_each_query():
    found = nnnorm.search(np.eye(2), np.eye(2), k=1, ids=["a", "b"])
    assert list(found) == [[("a", 1.0)], [("b", 1.0)]]
    assert list(nnnorm.search(np.eye(2), np.eye(2), k=1, min_confidence=9)) == [[], []]
