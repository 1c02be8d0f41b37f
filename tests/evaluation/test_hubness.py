import json

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st

from nnnorm import Bias, NNNormError, Ranking, search
from nnnorm.evaluation.hubness import (
    Hub,
    compare_occurrences,
    count_occurrences,
    diagnose,
    measure_hubness,
    robust_z,
)

counts_of_items = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)


def ranking_of(indices):
    indices = np.asarray(indices)
    return Ranking(np.zeros(indices.shape, np.float32), indices)


# --- N_k -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 23])
def test_occurrences_are_counted_one_by_one(small, k):
    ranking = search(small.queries, small.gallery, k=k)
    expected = [sum(item in row for row in ranking.indices.tolist()) for item in range(23)]
    occurrences = count_occurrences(ranking, 23)
    assert occurrences.tolist() == expected
    assert occurrences.dtype == np.int64
    assert occurrences.mean() == pytest.approx(k * 11 / 23)


# --- statistics ----------------------------------------------------------------------------------


def test_every_statistic_by_hand():
    # 8 queries, k = 1, 4 items: the mean is 2, and only item 0 has at least twice that.
    hubness = measure_hubness([5, 3, 0, 0])
    assert hubness.to_dict() == {
        "mean": 2.0,
        "max": 5,
        "mean_absolute_error": (3 + 1 + 2 + 2) / 4,
        "kurtosis": pytest.approx((81 + 1 + 16 + 16) / 4 / 4.5**2 - 3),
        "skewness": pytest.approx((27 + 1 - 8 - 8) / 4 / 4.5**1.5),
        "gini": pytest.approx((2 + 5 + 5 + 3 + 3 + 0) * 2 / 16 / (2 * 2)),
        "robin_hood": (3 + 1) / 8,
        "antihub_share": 0.5,
        "hub_occurrence": 5 / 8,
    }
    assert json.loads(json.dumps(hubness.to_dict())) == hubness.to_dict()


def test_a_hub_has_at_least_twice_the_mean_not_twice_k():
    # 12 queries and 4 items: the mean of N_1 is 3, so that 6 makes a hub and 5 does not.
    assert measure_hubness([6, 5, 1, 0]).hub_occurrence == 0.5
    assert measure_hubness([5, 5, 1, 1]).hub_occurrence == 0
    # 4 queries and 8 items: a single hit is twice the mean, and still no hub.
    assert measure_hubness([2, 1, 1, 0, 0, 0, 0, 0]).hub_occurrence == 0.5


@pytest.mark.parametrize(("count", "n_gallery"), [(1, 2), (3, 7), (7, 1000), (5, 1)])
def test_constant_counts_have_no_hubs_and_no_shape(count, n_gallery):
    hubness = measure_hubness([count] * n_gallery).to_dict()
    assert hubness.pop("mean") == hubness.pop("max") == count
    assert set(hubness.values()) == {0}


# --- two distributions ---------------------------------------------------------------------------


@pytest.mark.slow
@given(counts_of_items, counts_of_items)
def test_the_ks_statistic_is_scipys(before, after):
    assume(len(before) + len(after) > 2)  # SciPy divides by zero for one item each
    statistic, p_value = compare_occurrences(before, after)
    assert statistic == scipy.stats.ks_2samp(before, after, method="asymp").statistic
    assert 0 <= p_value <= 1
    assert compare_occurrences(after, before) == (statistic, p_value)


@pytest.mark.slow
@pytest.mark.parametrize(("n_items", "tolerance"), [(20, 0.03), (200, 0.015), (5000, 0.005)])
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0, 2.0])
def test_the_ks_p_value_is_scipys_asymptotic_one(rng, n_items, tolerance, shift):
    before = rng.poisson(5, size=n_items)
    after = rng.poisson(5 + 3 * shift / np.sqrt(n_items), size=n_items)
    expected = scipy.stats.ks_2samp(before, after, method="asymp").pvalue
    assert compare_occurrences(before, after)[1] == pytest.approx(expected, abs=tolerance)


# --- who the hubs are ----------------------------------------------------------------------------


def test_hubs_come_most_retrieved_first_and_ties_by_the_lower_index():
    queries = np.eye(6)[[4, 1, 4, 3, 1, 0]]
    assert diagnose(queries, np.eye(6)).hubs == (Hub(1, 2), Hub(4, 2), Hub(0, 1), Hub(3, 1))


# --- outliers ------------------------------------------------------------------------------------


def test_outliers_come_farthest_first_on_both_sides():
    values = np.array([0.10, -0.5, 0.11, 0.12, 0.13, 0.9, 0.14, 0.115])
    assert diagnose(np.eye(8), np.eye(8), Bias(values, 1.0, "nnn")).outliers == (5, 1)


@pytest.mark.slow
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30))
def test_robust_scores_are_iglewicz_and_hoaglins(values):
    deviation = np.array(values) - np.median(values)
    mad = scipy.stats.median_abs_deviation(values)
    mean_deviation = np.abs(deviation).mean()
    if mad > 0:
        expected = 0.6745 * deviation / mad
    elif mean_deviation > 0:
        expected = deviation / (1.253314 * mean_deviation)
    else:
        expected = np.zeros(len(values))
    np.testing.assert_allclose(robust_z(values), expected, rtol=2e-4)


# --- bad input -----------------------------------------------------------------------------------


def test_a_ranking_that_names_no_item_of_the_gallery_is_rejected():
    with pytest.raises(NNNormError, match="ranking names item 3, but the gallery has 3 items"):
        count_occurrences(ranking_of([[0, 1, 3]]), 3)


def test_counts_without_a_single_hit_are_refused():
    with pytest.raises(NNNormError, match="with at least one hit"):
        measure_hubness([0, 0])
