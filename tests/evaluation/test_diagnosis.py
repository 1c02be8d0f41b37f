import numpy as np
import pytest

import nnnorm
from nnnorm import NNN, Bias, NNNormError, search
from nnnorm.evaluation import measure_drift
from nnnorm.evaluation.hubness import (
    compare_occurrences,
    count_occurrences,
    diagnose,
    measure_hubness,
    robust_z,
)
from tests import made


@pytest.fixture(scope="module")
def hubs():
    """Made embeddings with hubs: gallery (60, 16), queries (300, 16), references (200, 16)."""
    return made.make_embeddings(n_items=60, n_past=40, dim=16)


@pytest.fixture(scope="module")
def bias(hubs):
    gallery, _, references = hubs
    return NNN(reference_k=8, alpha=0.75).fit(gallery, references)


def counts_of(queries, gallery, bias=None, k=1):
    return count_occurrences(search(queries, gallery, bias, k=k), len(gallery))


# --- before and after ----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 60])
def test_every_figure_is_that_of_a_direct_search(hubs, bias, k):
    gallery, queries, _ = hubs
    found = diagnose(queries, gallery, bias=bias, k=k)
    before, after = counts_of(queries, gallery, k=k), counts_of(queries, gallery, bias, k=k)
    np.testing.assert_array_equal(found.occurrences, before)
    np.testing.assert_array_equal(found.occurrences_after, after)
    assert found.before == measure_hubness(before)
    assert found.after == measure_hubness(after)
    assert (found.ks_statistic, found.ks_p_value) == compare_occurrences(before, after)
    assert found.null_model.n_never == (before == 0).sum()
    assert found.null_model_after.n_never == (after == 0).sum()
    assert found.hubs_after == tuple(after[hub.item] for hub in found.hubs)
    assert (found.n_queries, found.n_gallery, found.k) == (300, 60, k)


def test_without_a_bias_there_is_no_after(hubs):
    gallery, queries, _ = hubs
    found = diagnose(queries, gallery)
    assert found.after is None
    assert found.occurrences_after is None
    assert (found.ks_statistic, found.ks_p_value, found.null_model_after) == (None, None, None)
    assert (found.hubs_after, found.outliers) == ((), ())
    assert all(hub.bias_z is None and hub.wrong_share is None for hub in found.hubs)


# --- the hubs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4])
def test_hubs_tell_how_often_how_wrongly_and_how_biased(hubs, bias, k):
    gallery, queries, _ = hubs
    truth = np.arange(300) // 5
    found = diagnose(queries, gallery, bias=bias, truth=truth, k=k, most=7)
    ranking = search(queries, gallery, k=k)
    counts = counts_of(queries, gallery, k=k)
    assert [hub.occurrences for hub in found.hubs] == sorted(counts, reverse=True)[:7]
    for hub in found.hubs:
        asked = np.flatnonzero((ranking.indices == hub.item).any(axis=1))
        assert hub.occurrences == len(asked)
        assert hub.wrong_share == pytest.approx(np.mean(truth[asked] != hub.item))
        assert hub.bias_z == pytest.approx(robust_z(bias.values)[hub.item])


# --- for programs --------------------------------------------------------------------------------


# --- bad input -----------------------------------------------------------------------------------


def test_ids_stand_for_rows_in_hubs_and_outliers(hubs):
    gallery, queries, _ = hubs
    values = np.full(len(gallery), 0.1)
    values[:3] += [9.0, 0.01, -0.01]
    ids = [f"photo-{row}" for row in range(len(gallery))]
    found = diagnose(queries, gallery, Bias(values, 0.1, "nnn"), ids=ids)
    shown = found.to_dict()
    assert [hub["id"] for hub in shown["hubs"]] == [ids[hub.item] for hub in found.hubs]
    assert shown["outlier_ids"][0] == "photo-0"
    with pytest.raises(NNNormError, match="ids must be one whole number or string per item of"):
        diagnose(queries, gallery, ids=["a", "b"])


def test_references_stand_for_the_automatic_bias(hubs):
    gallery, queries, references = hubs
    fitted = diagnose(queries, gallery, NNN().fit(gallery, references))
    assert diagnose(queries, gallery, references=references).to_dict() == fitted.to_dict()
    with pytest.raises(NNNormError, match="pass either a bias or references, not both"):
        diagnose(queries, gallery, NNN().fit(gallery, references), references=references)


@pytest.mark.slow
def test_drift_diagnose_and_check_count_the_same_hubs_also_with_fewer_queries_than_items():
    shapes = nnnorm.load_shapes()
    corrector = nnnorm.Corrector.fit(shapes.gallery, shapes.references[::10])
    for n_queries, k in ((600, 10), (1200, 1), (5000, 1)):
        queries = shapes.queries[:n_queries]
        drift = measure_drift(corrector, queries, gallery=shapes.gallery)
        found = diagnose(queries, shapes.gallery, corrector.bias)
        checked = nnnorm.check(shapes.gallery, shapes.references[::10], queries=queries)
        assert (found.k, found.null_model) == (k, checked.hubs)
        assert drift.hub_share == found.after.hub_occurrence
        assert drift.hub_share_uncorrected == found.before.hub_occurrence
        assert drift.hub_share < drift.hub_share_uncorrected < 0.6
