import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import NNNormError, NNNormWarning, Task, ablate, compare, diagnose, tune
from nnnorm.evaluation.bootstrap import split_folds
from nnnorm.evaluation.truth import clusters_of, count_overlap, open_truth


def truth_of(lists, n_gallery=50):
    return open_truth(lists, n_queries=len(lists), n_gallery=n_gallery)


# --- folds ---------------------------------------------------------------------------------------


@given(
    items=st.lists(st.integers(0, 49), min_size=2, max_size=80).filter(lambda i: len(set(i)) > 1),
    seed=st.integers(0, 999),
)
def test_queries_of_one_item_share_their_fold_and_folds_are_of_one_size(items, seed):
    clusters = clusters_of(truth_of(items))
    folds = split_folds(clusters, seed=seed)
    labels = np.unique(clusters)
    of_label = [np.unique(folds[clusters == label]) for label in labels]
    assert all(len(found) == 1 for found in of_label)
    sizes = np.bincount(np.concatenate(of_label))
    assert len(sizes) == min(5, len(labels))
    assert sizes.max() - sizes.min() <= 1


def test_folds_are_by_their_seed():
    clusters = np.repeat(np.arange(40), 5)
    first, again, other = (split_folds(clusters, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_queries_that_all_belong_together_cannot_be_split():
    with pytest.raises(NNNormError, match="can't be split; got one group of 3 queries"):
        split_folds(np.zeros(3))


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
