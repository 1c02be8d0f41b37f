import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import NNNormWarning, compare, tune
from nnnorm.evaluation import Task, diagnose
from nnnorm.evaluation.metrics import open_truth
from nnnorm.evaluation.results import split_folds


def truth_of(lists, n_gallery=50):
    return open_truth(lists, n_queries=len(lists), n_gallery=n_gallery)


# --- folds ---------------------------------------------------------------------------------------


@given(
    items=st.lists(st.integers(0, 49), min_size=2, max_size=80).filter(lambda i: len(set(i)) > 1),
    seed=st.integers(0, 999),
)
def test_queries_of_one_item_share_their_fold_and_folds_are_of_one_size(items, seed):
    clusters = truth_of(items).clusters
    folds = split_folds(clusters, seed=seed)
    labels = np.unique(clusters)
    of_label = [np.unique(folds[clusters == label]) for label in labels]
    assert all(len(found) == 1 for found in of_label)
    sizes = np.bincount(np.concatenate(of_label))
    assert len(sizes) == min(5, len(labels))
    assert sizes.max() - sizes.min() <= 1


# --- references that are among the queries -------------------------------------------------------


def _with_overlap():
    rng = np.random.default_rng(3)
    gallery, references, queries = (rng.normal(size=(n, 6)) for n in (20, 40, 40))
    references[:3] = queries[[1, 5, 30]]
    return gallery, references, {"queries": queries, "truth": np.arange(40) % 20}


@pytest.mark.parametrize("study", [tune, compare])
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


def test_references_among_the_validation_queries_are_warned_of():
    gallery, references, asked = _with_overlap()
    held = Task(asked["queries"], gallery, asked["truth"])
    test = {"queries": -asked["queries"], "truth": asked["truth"]}
    with pytest.warns(NNNormWarning, match="3 of the 40 rows .* the validation queries"):
        compare(gallery, references, **test, validation=held)
