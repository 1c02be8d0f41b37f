import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import NNNormError
from nnnorm.evaluation.metrics import open_truth


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
    with pytest.raises(NNNormError, match="truth names item 4, but there are 4"):
        opened(truth, n_gallery=4)
    with pytest.raises(NNNormError, match="truth names query 2, but there are 2"):
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
    clusters = opened(image_of_caption, n_queries=6).clusters
    assert clusters.tolist() == [3, 3, 0, 0, 1, 1]


# --- bad truth -----------------------------------------------------------------------------------

TWICE = r"truth names the pair \(query 1, item 3\) twice \({} duplicated pairs\); remove the copies"
ALONE = r"query {} has no right item \({} such queries\); add the right items, leave out"
OUTSIDE = r"truth names item 5, but there are 5 \(0 to 4\)$"
NO_QUERY = r"truth names query {}, but there are 3 \(0 to 2\)$"
WHOLE = "truth must hold whole numbers; got {}$"
SHAPES = r"truth must have shape \(3,\), one item per query, or \(n_pairs, 2\), .* got shape \("
FLAT = "truth must have flat lists of items; query 1 has lists"


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ([0, 5, 1], OUTSIDE),
        ([1, 5, 2], OUTSIDE[:-1] + "; subtract 1, because the first is 0$"),
        ([0, -1, 1], r"names item -1, but .*; leave out queries without a right item$"),
        ([[0], [1, 5], [2]], OUTSIDE),
        (np.array([[0, 0], [1, 5], [2, 1]]), OUTSIDE),
        (np.array([[0, 0], [1, 1], [2, 2], [3, 3]]), NO_QUERY.format(3)),
        (np.array([[0, 0], [1, 1], [2, 2], [-1, 3]]), NO_QUERY.format(-1)),
        (np.array([[0, 0], [1, 3], [2, 1], [1, 3], [1, 3]]), TWICE.format(2)),
        ([[0], [3, 1, 3], [1]], TWICE.format(1)),
        ([[0], [], [2]], ALONE.format(1, 1)),
        ([[], [], []], ALONE.format(0, 3)),
        (np.array([[0, 1], [2, 1]]), ALONE.format(1, 1)),
        (np.empty((0, 2), dtype=int), ALONE.format(0, 3)),
        ([0.0, 1.0, 2.0], WHOLE.format("float64")),
        ([[0], [1.5], [2]], WHOLE.format("float64")),
        ([True, False, True], WHOLE.format("bool")),
        (["0", "1", "2"], WHOLE.format("<U1")),
        ([0, None, 2], WHOLE.format("object")),
        (np.array(0), SHAPES),
        (np.zeros((3, 1), dtype=int), SHAPES + r"3, 1\)"),
        ([[0], [[1], [2, 3]], [3]], FLAT),
        ([[0], np.zeros((2, 2), int), [3]], FLAT),
        ([0, 0], SHAPES + r"2,\)"),
        ([0] * 5, r"got shape \(5,\). Were queries and gallery swapped\?"),
        ([[0]] * 4, "truth must have 3 lists, one per query; got 4"),
        (np.ones((3, 8)), r"float64 of shape \(3, 8\), which look like embeddings"),
    ],
)
def test_a_bad_truth_is_rejected_with_what_is_wrong(truth, words):
    with pytest.raises(NNNormError, match=words):
        opened(truth)
