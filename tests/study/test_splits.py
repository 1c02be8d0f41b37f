import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import NNNormError, NNNormWarning, Task, ablate, compare, diagnose, tune
from nnnorm.study.splits import count_overlap, split_items, split_queries
from nnnorm.study.truth import clusters_of, open_truth


def truth_of(lists, n_gallery=50):
    return open_truth(lists, n_queries=len(lists), n_gallery=n_gallery)


# --- items ---------------------------------------------------------------------------------------


@given(
    n_items=st.integers(20, 400),
    shares=st.lists(st.floats(0.06, 0.33), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_parts_are_disjoint_sorted_and_of_the_sizes_asked_for(n_items, shares, seed):
    parts = split_items(n_items, shares, seed=seed)
    assert len(parts) == len(shares)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < n_items
    for part, share in zip(parts, shares, strict=True):
        assert (np.diff(part) > 0).all()
        assert abs(len(part) - share * n_items) <= 1


@given(n_items=st.integers(10, 300), share=st.floats(0.1, 0.9), seed=st.integers(0, 99))
def test_shares_that_add_up_to_one_use_every_item(n_items, share, seed):
    parts = split_items(n_items, (share, 1 - share), seed=seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n_items))


def test_the_default_is_references_validation_and_test():
    assert [len(part) for part in split_items(1000)] == [500, 200, 300]


def test_what_is_left_over_goes_to_no_part():
    (part,) = split_items(100, (0.3,))
    assert len(part) == 30


def test_a_split_is_by_its_seed():
    first, again, other = (split_items(200, seed=seed) for seed in (7, 7, 8))
    for one, same, different in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, different)


def test_a_split_is_drawn_at_random_from_all_items():
    times = np.zeros(40)
    for seed in range(400):
        times[split_items(40, (0.5,), seed=seed)[0]] += 1
    # Binomial: 200 ± 10 for each item.
    assert abs(times - 200).max() < 50


@pytest.mark.parametrize(
    "shares", [(0.0, 0.5), (-0.1, 0.5), (0.6, 0.5), (1.1,), (float("nan"),), (0.5, float("nan"))]
)
def test_shares_must_be_positive_and_add_up_to_at_most_one(shares):
    with pytest.raises(
        NNNormError, match=r"shares must be positive and add up to at most 1; got \("
    ):
        split_items(100, shares)


def test_shares_that_add_up_to_one_but_for_rounding_are_allowed():
    assert sum(len(part) for part in split_items(1000, (0.1,) * 10)) == 1000


@pytest.mark.parametrize(("n_items", "shares"), [(0, (0.5,)), (1, (0.5, 0.5)), (4, (0.9, 0.1))])
def test_too_few_items_are_refused_with_their_number(n_items, shares):
    with pytest.raises(NNNormError, match=rf"{n_items} items are too few for shares of \("):
        split_items(n_items, shares)


# --- queries -------------------------------------------------------------------------------------


@given(
    items=st.lists(st.integers(0, 49), min_size=1, max_size=80).filter(lambda i: len(set(i)) > 3),
    share=st.floats(0.3, 0.7),
    seed=st.integers(0, 999),
)
def test_queries_of_one_item_stay_together_and_none_is_lost(items, share, seed):
    validation, test = split_queries(truth_of(items), share, seed=seed)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([validation, test])), np.arange(len(items))
    )
    of_validation, of_test = (set(np.array(items)[part].tolist()) for part in (validation, test))
    assert not of_validation & of_test
    assert abs(len(of_validation) - share * len(set(items))) <= 1


def test_queries_of_several_right_items_go_with_the_first():
    truth = truth_of([[3, 9], [3], [5, 3], [9], [9, 10], [10], [11], [12]])
    groups = clusters_of(truth)
    for seed in range(10):
        validation, test = split_queries(truth, seed=seed)
        assert not set(groups[validation]) & set(groups[test])


def test_a_split_of_queries_is_by_its_seed():
    truth = truth_of(np.repeat(np.arange(40), 5).tolist())
    first, again, other = (split_queries(truth, seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(first) == 100


def test_a_share_that_leaves_nothing_for_validation_or_test_is_refused():
    truth = truth_of([0, 0, 1, 1, 2])
    with pytest.raises(NNNormError, match=r"3 items are too few for shares of \(0.1,\)"):
        split_queries(truth, 0.1)
    for share in (0.9, 1.0):
        with pytest.raises(
            NNNormError, match=f"a share of {share} of 3 items leaves no query for test; give a sm"
        ):
            split_queries(truth, share)
    with pytest.raises(NNNormError, match="1 items are too few"):
        split_queries(truth_of([4, 4, 4]))


# --- references that are among the queries -------------------------------------------------------


@given(
    n_common=st.integers(0, 20),
    n_own=st.integers(0, 20),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_overlap_counts_the_references_that_are_among_the_queries(n_common, n_own, seed, dtype):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(20, 4)).astype(np.float32)
    own = rng.normal(size=(n_own + 1, 4)).astype(np.float32)
    references = rng.permutation(np.vstack([queries[:n_common], own]))
    assert count_overlap(references.astype(dtype), queries) == n_common


@given(seed=st.integers(0, 999))
def test_overlap_is_equality_number_for_number(seed):
    rng = np.random.default_rng(seed)
    queries, references = (rng.choice([-1.0, -0.0, 0.0, 1.0], size=(n, 3)) for n in (9, 14))
    queries[(queries == 0).all(axis=1)] = 1
    references[(references == 0).all(axis=1)] = 1
    expected = sum(any((row == asked).all() for asked in queries) for row in references)
    assert count_overlap(references, queries) == expected


def test_a_reference_that_is_there_twice_counts_twice():
    assert count_overlap(np.eye(3)[[0, 0, 1]], np.eye(3)[:1]) == 2


def test_nearly_the_same_is_not_the_same():
    references = np.eye(3, dtype=np.float32)
    assert count_overlap(references, np.nextafter(references, np.float32(2))) == 0


def test_overlap_reads_files(tmp_path):
    np.save(tmp_path / "references.npy", np.eye(5, dtype=np.float16))
    assert count_overlap(tmp_path / "references.npy", np.eye(5)[2:]) == 3


def _with_overlap():
    rng = np.random.default_rng(3)
    gallery, references, queries = (rng.normal(size=(n, 6)) for n in (20, 40, 40))
    references[:3] = queries[[1, 5, 30]]
    return gallery, references, {"queries": queries, "truth": np.arange(40) % 20}


@pytest.mark.parametrize("study", [tune, compare, ablate])
@pytest.mark.filterwarnings("ignore:no validation queries")
def test_references_among_the_queries_are_warned_of_in_python(study):
    gallery, references, asked = _with_overlap()
    with pytest.warns(NNNormWarning, match="3 of the 40 rows of .* are among the queries") as said:
        study(gallery, references, **asked)
    assert [w.filename for w in said if "are among" in str(w.message)] == [__file__]


def test_a_diagnosis_warns_of_references_among_the_queries():
    gallery, references, asked = _with_overlap()
    with pytest.warns(NNNormWarning, match="3 of the 40 rows of references are among") as said:
        diagnose(asked["queries"], gallery, references=references)
    assert [w.filename for w in said if "are among" in str(w.message)] == [__file__]


@pytest.mark.parametrize("study", [compare, ablate])
def test_references_among_the_validation_queries_are_warned_of(study):
    gallery, references, asked = _with_overlap()
    held = Task(asked["queries"], gallery, asked["truth"])
    test = {"queries": -asked["queries"], "truth": asked["truth"]}
    with pytest.warns(NNNormWarning, match="3 of the 40 rows .* the validation queries"):
        study(gallery, references, **test, validation=held)
