import itertools

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import NNN, Bias, DualSoftmax, InvertedSoftmax, NNNormError, search
from nnnorm.evaluation.metrics import (
    evaluate,
    evaluate_ranking,
    mean_metrics,
)
from nnnorm.ranking import score_matrix


def naive(order, right, k):
    """Hit, fraction, reciprocal rank, rank and nDCG of one query, as the textbooks have them."""
    places = [place for place, item in enumerate(order, start=1) if item in right]
    inside = [place for place in places if place <= k]
    ideal = range(1, min(len(right), k) + 1)
    gain = sum(1 / np.log2(place + 1) for place in inside)
    return (
        float(len(inside) > 0),
        len(inside) / len(right),
        1 / places[0],
        float(places[0]),
        gain / sum(1 / np.log2(place + 1) for place in ideal),
    )


def naive_all(scores, lists, k):
    orders = np.argsort(-scores, axis=1, kind="stable")
    return np.array(
        [naive(order, set(right), k) for order, right in zip(orders, lists, strict=True)]
    )


def measured(evaluation, k):
    """The same five columns, from the package."""
    return np.stack(
        [
            evaluation.hits(k),
            evaluation.fractions(k),
            evaluation.reciprocal_ranks(),
            evaluation.ranks(),
            evaluation.ndcg(k),
        ],
        axis=1,
    )


def embeddings_with(scores):
    """Queries and a gallery whose inner products are exactly these scores."""
    scores = np.asarray(scores, dtype=np.float32)
    n_queries, n_gallery = scores.shape
    # The last coordinate adds nothing; it keeps an item that scores 0 everywhere from being zero.
    queries = np.hstack([np.eye(n_queries), np.zeros((n_queries, 1))])
    return queries, np.hstack([scores.T, np.ones((n_gallery, 1))])


def lists_of(truth, n_queries):
    """Any form of truth as a list of lists."""
    if isinstance(truth, np.ndarray) and truth.ndim == 2:
        return [truth[truth[:, 0] == q, 1].tolist() for q in range(n_queries)]
    return [np.atleast_1d(right).tolist() for right in truth]


def random_lists(rng, n_queries, n_gallery, most):
    sizes = rng.integers(1, most + 1, size=n_queries)
    return [rng.choice(n_gallery, size=size, replace=False).tolist() for size in sizes]


TRUTHS = {
    "one item each": lambda rng, n_q, n_g: rng.integers(0, n_g, size=n_q),
    "pairs": lambda rng, n_q, n_g: rng.permutation(
        [(q, item) for q, right in enumerate(random_lists(rng, n_q, n_g, 3)) for item in right]
    ),
    "ragged lists": lambda rng, n_q, n_g: random_lists(rng, n_q, n_g, 5),
    "more right items than are compared one by one": lambda rng, n_q, n_g: random_lists(
        rng, n_q, n_g, n_g
    ),
}


@pytest.fixture(params=TRUTHS.values(), ids=TRUTHS.keys())
def make_truth(request, rng):
    return lambda n_queries, n_gallery: request.param(rng, n_queries, n_gallery)


# --- without ties --------------------------------------------------------------------------------


def test_every_metric_by_hand():
    scores = [[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.7, 0.6]]
    evaluation = evaluate(*embeddings_with(scores), truth=[[1, 3], [0]])
    assert evaluation.hits(1).tolist() == [0, 1]
    assert evaluation.hits(2).tolist() == [1, 1]
    assert evaluation.fractions(2).tolist() == [0.5, 1]
    assert evaluation.fractions(4).tolist() == [1, 1]
    assert evaluation.reciprocal_ranks().tolist() == [0.5, 1]
    assert evaluation.ranks().tolist() == [2, 1]
    gain, ideal = 1 / np.log2(3) + 1 / np.log2(5), 1 + 1 / np.log2(3)
    np.testing.assert_allclose(evaluation.ndcg(4), [gain / ideal, 1])
    assert evaluation.above.tolist() == [1, 3, 0]
    assert evaluation.tied.tolist() == [1, 1, 1]
    assert evaluation.top1.tolist() == [0, 0]
    assert (evaluation.recall(1), evaluation.recall(2)) == (0.5, 1.0)


@pytest.mark.parametrize("k", [1, 3, 10, 47])
def test_every_metric_is_that_of_ir_measures(rng, make_truth, k):
    n_queries, n_gallery = 29, 47
    queries, gallery = rng.normal(size=(n_queries, 8)), rng.normal(size=(n_gallery, 8))
    truth = make_truth(n_queries, n_gallery)
    ranks = np.argsort(np.argsort(-(queries @ gallery.T), axis=1), axis=1)
    run = [
        ir_measures.ScoredDoc(str(q), str(item), float(-ranks[q, item]))
        for q, item in itertools.product(range(n_queries), range(n_gallery))
    ]
    qrels = [
        ir_measures.Qrel(str(q), str(item), 1)
        for q, right in enumerate(lists_of(truth, n_queries))
        for item in right
    ]
    theirs = {
        ir_measures.Success @ k: lambda e: e.hits(k),
        ir_measures.R @ k: lambda e: e.fractions(k),
        ir_measures.RR: lambda e: e.reciprocal_ranks(),
        ir_measures.nDCG @ k: lambda e: e.ndcg(k),
    }
    expected = {measure: np.full(n_queries, np.nan) for measure in theirs}
    for value in ir_measures.iter_calc(list(theirs), qrels, run):
        expected[value.measure][int(value.query_id)] = value.value
    evaluation = evaluate(queries, gallery, truth=truth)
    for measure, ours in theirs.items():
        np.testing.assert_allclose(ours(evaluation), expected[measure], err_msg=str(measure))


def biases(small):
    bank = {"gallery_references": small.gallery_references}
    fit = (small.gallery, small.references)
    return {
        "nnn": NNN(reference_k=5, alpha=0.75).fit(*fit),
        "gated": InvertedSoftmax(gated=True).fit(*fit),
        "dual, gated": DualSoftmax(20.0, 5.0, gate="safe").fit(*fit, **bank),
        "dual, as published": DualSoftmax(20.0, 5.0, gate="paper").fit(*fit, **bank),
    }


@pytest.mark.parametrize("name", ["nnn", "gated", "dual, gated", "dual, as published"])
def test_corrected_metrics_are_the_naive_ones_of_the_dense_corrected_scores(small, rng, name):
    bias = biases(small)[name]
    lists = random_lists(rng, 11, 23, 4)
    dense = score_matrix(small.queries, small.gallery, bias).astype(float)
    evaluation = evaluate(small.queries, small.gallery, bias, truth=lists)
    np.testing.assert_allclose(measured(evaluation, 5), naive_all(dense, lists, 5))
    np.testing.assert_array_equal(evaluation.top1, dense.argmax(axis=1))


@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0, -1.0])
@pytest.mark.parametrize("name", ["nnn", "gated"])
def test_a_weight_overrides_the_biases_own(small, rng, name, weight):
    bias = biases(small)[name]
    lists = random_lists(rng, 11, 23, 4)
    dense = score_matrix(small.queries, small.gallery, bias, weight=weight).astype(float)
    evaluation = evaluate(small.queries, small.gallery, bias, truth=lists, weight=weight)
    np.testing.assert_allclose(measured(evaluation, 5), naive_all(dense, lists, 5))


# --- ties ----------------------------------------------------------------------------------------


@st.composite
def tied_queries(draw):
    """Scores of one query with many ties, its right items, and a k."""
    scores = draw(st.lists(st.integers(-1, 1), min_size=1, max_size=6))
    items = st.integers(0, len(scores) - 1)
    right = draw(st.sets(items, min_size=1))
    return scores, right, draw(st.integers(1, len(scores) + 2))


@given(tied_queries())
def test_every_metric_is_its_mean_over_all_orders_of_tied_items(problem):
    scores, right, k = problem
    orders = [
        order
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    expected = np.mean([naive(order, right, k) for order in orders], axis=0)
    evaluation = evaluate(*embeddings_with([scores]), truth=[sorted(right)])
    np.testing.assert_allclose(measured(evaluation, k)[0], expected, rtol=1e-12)


# --- what changes nothing ------------------------------------------------------------------------


def integer_problem(seed=0, n_queries=200, n_gallery=900):
    """Small whole numbers: float32 products are exact, and there are many ties."""
    rng = np.random.default_rng(seed)
    queries, gallery = rng.integers(-2, 3, size=(n_queries, 6)), rng.integers(-2, 3, (n_gallery, 6))
    queries[:, 0] = gallery[:, 0] = 1  # no row is all zeros
    lists = random_lists(rng, n_queries, n_gallery, min(n_gallery, 40))
    return queries.astype(np.float32), gallery.astype(np.float32), lists


def assert_same(first, second):
    for name in ("above", "tied", "top1"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    np.testing.assert_array_equal(measured(first, 10), measured(second, 10))


@pytest.mark.parametrize("corrected", [None, "nnn", "gated"])
@pytest.mark.filterwarnings("ignore:gallery has .* different rows")
def test_the_memory_budget_changes_nothing(corrected):
    queries, gallery, lists = integer_problem()
    bias = {
        None: None,
        "nnn": Bias(np.arange(len(gallery)) % 3, 1.0, "nnn"),
        "gated": InvertedSoftmax(gated=True).fit(gallery, queries[:50]),
    }[corrected]
    answers = [
        evaluate(queries, gallery, bias, truth=lists, memory_budget=budget)
        for budget in (2**16, 2**20, 2**29)
    ]
    for answer in answers[1:]:
        assert_same(answers[0], answer)


# --- a ready ranking -----------------------------------------------------------------------------


def test_a_whole_ranking_says_what_the_embeddings_say(small, make_truth):
    truth, bias = make_truth(11, 23), biases(small)["nnn"]
    ranking = search(small.queries, small.gallery, bias, k=23)
    from_ranking = evaluate_ranking(ranking, truth, n_gallery=23)
    assert_same(from_ranking, evaluate(small.queries, small.gallery, bias, truth=truth))


@pytest.mark.parametrize("k", [1, 4, 7])
def test_a_ranking_is_evaluated_as_far_as_it_reaches(small, make_truth, k):
    truth = make_truth(11, 23)
    shallow = evaluate_ranking(search(small.queries, small.gallery, k=7), truth, n_gallery=23)
    whole = evaluate(small.queries, small.gallery, truth=truth)
    for name in ("hits", "fractions", "ndcg"):
        np.testing.assert_array_equal(getattr(shallow, name)(k), getattr(whole, name)(k), name)
    np.testing.assert_array_equal(shallow.top1, whole.top1)


def test_a_ranking_shallower_than_asked_says_both_numbers(small):
    evaluation = evaluate_ranking(search(small.queries, small.gallery, k=5), [0] * 11, n_gallery=23)
    for ask, places in (
        (lambda: evaluation.hits(6), 6),
        (lambda: evaluation.recall(10), 10),
        (lambda: evaluation.fractions(6), 6),
        (lambda: evaluation.ndcg(100), 100),
        (evaluation.reciprocal_ranks, 23),
        (evaluation.ranks, 23),
        (lambda: mean_metrics(evaluation), 10),
    ):
        with pytest.raises(NNNormError) as refused:
            ask()
        assert str(refused.value) == (
            f"this needs the top {places} hits, but the ranking has 5; search with a "
            "larger k, or evaluate the embeddings"
        )


def test_a_ranking_of_another_gallery_is_refused(small):
    ranking = search(small.queries, small.gallery, k=23)
    with pytest.raises(
        NNNormError,
        match=r"the ranking names item 22, but the gallery has 9 items; was another gallery",
    ):
        evaluate_ranking(ranking, [0] * 11, n_gallery=9)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [24, 1000, 10**12])
def test_k_beyond_the_gallery_is_the_whole_gallery(small, k):
    lists = [[q, 22] for q in range(11)]
    for evaluation in (
        evaluate(small.queries, small.gallery, truth=lists),
        evaluate_ranking(search(small.queries, small.gallery, k=23), lists, n_gallery=23),
    ):
        assert (evaluation.hits(k) == 1).all()
        assert (evaluation.fractions(k) == 1).all()
        np.testing.assert_array_equal(evaluation.ndcg(k), evaluation.ndcg(23))


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "5", None])
def test_k_must_be_a_whole_number_of_at_least_one(small, k):
    evaluation = evaluate(small.queries, small.gallery, truth=[0] * 11)
    for metric in (evaluation.hits, evaluation.recall, evaluation.fractions, evaluation.ndcg):
        with pytest.raises(NNNormError, match=rf"k must be a whole number .* 1; got {k!r}"):
            metric(k)


# --- the averages --------------------------------------------------------------------------------


def test_the_averages_have_the_names_of_every_report(small, make_truth):
    evaluation = evaluate(small.queries, small.gallery, truth=make_truth(11, 23))
    assert mean_metrics(evaluation) == {
        "recall_at_1": evaluation.hits(1).mean(),
        "recall_at_5": evaluation.hits(5).mean(),
        "recall_at_10": evaluation.hits(10).mean(),
        "mrr": evaluation.reciprocal_ranks().mean(),
        "median_rank": np.median(evaluation.ranks()),
        "ndcg_at_10": evaluation.ndcg(10).mean(),
    }
    assert list(mean_metrics(evaluation, ks=(2, 7))) == [
        "recall_at_2", "recall_at_7", "mrr", "median_rank", "ndcg_at_7"
    ]  # fmt: skip
    assert all(type(value) is float for value in mean_metrics(evaluation).values())
