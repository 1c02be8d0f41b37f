import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import NNNormError
from nnnorm.evaluation.metrics import clusters_of, open_truth


def opened(truth, n_queries=3, n_gallery=5):
    return open_truth(truth, n_queries=n_queries, n_gallery=n_gallery)


def as_lists(truth):
    return [truth.items[a:b].tolist() for a, b in zip(truth.starts, truth.starts[1:], strict=False)]


# --- the three forms -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "one_each",
    [[4, 0, 4], (4, 0, 4), np.array([4, 0, 4]), np.array([4, 0, 4], dtype=np.uint8)],
    ids=["list", "tuple", "array", "unsigned"],
)
def test_one_right_item_per_query(one_each):
    truth = opened(one_each)
    assert as_lists(truth) == [[4], [0], [4]]
    assert (len(truth), truth.counts.tolist()) == (3, [1, 1, 1])


def test_pairs_of_query_and_item_in_any_order():
    pairs = np.array([[2, 1], [0, 3], [1, 4], [0, 0]])
    truth = opened(pairs)
    assert as_lists(truth) == [[0, 3], [4], [1]]
    assert truth.queries.tolist() == [0, 0, 1, 2]
    assert truth.counts.tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    "lists",
    [
        [[3, 0], [4], [1]],
        ((3, 0), (4,), (1,)),
        [np.array([3, 0]), np.array([4]), np.array([1])],
        [[3, 0], 4, np.int64(1)],
    ],
    ids=["lists", "tuples", "arrays", "mixed with single numbers"],
)
def test_lists_of_the_right_items_of_each_query(lists):
    assert as_lists(opened(lists)) == [[0, 3], [4], [1]]


def test_an_opened_truth_is_opened_again_and_checked_anew():
    truth = opened([4, 0, 4])
    assert as_lists(opened(truth)) == as_lists(truth)
    with pytest.raises(NNNormError, match="truth names item 4, but there are 4 items"):
        opened(truth, n_gallery=4)
    with pytest.raises(NNNormError, match="truth names query 2, but there are 2 queries"):
        opened(truth, n_queries=2)
    with pytest.raises(NNNormError, match="query 3 has no right item"):
        opened(truth, n_queries=4)


@pytest.mark.slow
@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=8), st.randoms())
def test_all_forms_of_one_truth_are_the_same_truth(right, random):
    n_queries = len(right)
    lists = [random.sample(sorted(items), len(items)) for items in right]
    pairs = [(q, item) for q, items in enumerate(lists) for item in items]
    random.shuffle(pairs)
    expected = [sorted(items) for items in right]
    for truth in (lists, np.array(pairs)):
        assert as_lists(opened(truth, n_queries=n_queries, n_gallery=7)) == expected


def test_captions_of_one_image_are_one_cluster():
    image_of_caption = np.repeat([3, 0, 1], 2)
    clusters = clusters_of(opened(image_of_caption, n_queries=6))
    assert clusters.tolist() == [3, 3, 0, 0, 1, 1]


# --- bad truth -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "truth",
    [[0, 5, 1], [[0], [1, 5], [2]], np.array([[0, 0], [1, 5], [2, 1]])],
    ids=["one each", "lists", "pairs"],
)
def test_an_item_outside_the_gallery_is_named(truth):
    with pytest.raises(NNNormError, match=r"truth names item 5, but there are 5 items \(0 to 4\)$"):
        opened(truth)


@pytest.mark.parametrize("query", [3, -1])
def test_a_query_outside_the_range_is_named(query):
    with pytest.raises(
        NNNormError, match=rf"truth names query {query}, but there are 3 queries \(0 to 2\)$"
    ):
        opened(np.array([[0, 0], [1, 1], [2, 2], [query, 3]]))


@pytest.mark.parametrize(
    ("truth", "n_twice"),
    [
        (np.array([[0, 0], [1, 3], [2, 1], [1, 3]]), 1),
        (np.array([[0, 0], [1, 3], [2, 1], [1, 3], [1, 3]]), 2),
        ([[0], [3, 1, 3], [1]], 1),
    ],
)
def test_duplicated_pairs_are_counted_and_the_first_is_named(truth, n_twice):
    with pytest.raises(
        NNNormError,
        match=rf"truth names the pair \(query 1, item 3\) twice \({n_twice} duplicated pairs\); "
        "remove the copies",
    ):
        opened(truth)


@pytest.mark.parametrize(
    ("truth", "query", "n_without"),
    [
        ([[0], [], [2]], 1, 1),
        ([[], [], [2]], 0, 2),
        ([[], [], []], 0, 3),
        (np.array([[0, 1], [2, 1]]), 1, 1),
        (np.empty((0, 2), dtype=int), 0, 3),
    ],
)
def test_a_query_without_a_right_item_can_not_shrink_the_denominator(truth, query, n_without):
    with pytest.raises(
        NNNormError,
        match=rf"query {query} has no right item \({n_without} such queries\); name them, or leave",
    ):
        opened(truth)


@pytest.mark.parametrize(
    ("truth", "dtype"),
    [
        ([0.0, 1.0, 2.0], "float64"),
        (np.array([0, 1, 2], dtype=np.float32), "float32"),
        ([[0], [1.5], [2]], "float64"),
        (np.array([[0, 0.0], [1, 1.0], [2, 2.0]]), "float64"),
        ([True, False, True], "bool"),
        (["0", "1", "2"], "<U1"),
        ([0, None, 2], "object"),
    ],
)
def test_only_whole_numbers_name_items(truth, dtype):
    with pytest.raises(NNNormError, match=f"truth must hold whole numbers; got {dtype}$"):
        opened(truth)


@pytest.mark.parametrize("shape", [(), (3, 1), (3, 3), (3, 2, 1)])
def test_an_array_of_another_shape_is_refused_and_the_shapes_are_told(shape):
    with pytest.raises(NNNormError) as refused:
        opened(np.zeros(shape, dtype=int))
    assert str(refused.value) == (
        "truth must have shape (n_queries,) or (n_pairs, 2), or be a list of lists; "
        f"got shape {shape}"
    )


@pytest.mark.parametrize(
    "truth", [[[0], [[1, 2]], [3]], [[0], [[1], [2, 3]], [3]], [[0], np.zeros((2, 2), int), [3]]]
)
def test_lists_within_lists_within_lists_are_refused(truth):
    with pytest.raises(
        NNNormError,
        match="truth must have one flat list of items per query; that of query 1 holds lists",
    ):
        opened(truth)


@pytest.mark.parametrize("length", [2, 4])
def test_a_truth_of_another_length_says_both_numbers(length):
    with pytest.raises(
        NNNormError,
        match=f"truth must name one item per query; got {length} numbers for 3 queries",
    ):
        opened([0] * length)
    with pytest.raises(
        NNNormError, match=f"truth must have one list per query; got {length} for 3 queries"
    ):
        opened([[0]] * length)


def test_embeddings_in_place_of_a_truth_are_recognised():
    with pytest.raises(NNNormError, match=r"float64 of shape \(4, 8\), which look like embeddings"):
        open_truth(np.ones((4, 8)), n_queries=4, n_gallery=9)
