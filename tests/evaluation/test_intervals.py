import tracemalloc

import numpy as np
import pytest
import scipy

from nnnorm import NNNormError
from nnnorm.evaluation import results
from nnnorm.evaluation.results import (
    Interval,
    binomial_half_width,
    interval_of_difference,
    interval_of_mean,
)


def width(interval):
    return interval.high - interval.low


def naive_means(values, clusters, n_resamples, rng):
    """Draw whole clusters with replacement, put their queries together, take the mean."""
    members = [np.flatnonzero(clusters == number) for number in np.unique(clusters)]
    means = []
    for _ in range(n_resamples):
        drawn = [members[i] for i in rng.integers(0, len(members), size=len(members))]
        means.append(values[np.concatenate(drawn)].mean())
    return np.array(means)


def captions(rng, n_images=60, per_image=5, spread=1.0):
    """Hits of captions whose image makes them all easy or all hard, and the image of each."""
    easy = rng.beta(1 / spread, 1 / spread, size=n_images)
    hits = rng.random((n_images, per_image)) < easy[:, None]
    return hits.ravel().astype(float), np.repeat(np.arange(n_images), per_image)


def uneven(rng):
    """Clusters of 1 to 9 queries, each with its own mean."""
    sizes = rng.integers(1, 10, size=40)
    clusters = np.repeat(rng.permutation(1000)[:40], sizes)
    hits = rng.random(len(clusters)) < np.repeat(rng.random(40), sizes)
    order = rng.permutation(len(clusters))
    return hits[order].astype(float), clusters[order]


PROBLEMS = {
    "captions of images": captions,
    "clusters of many sizes": uneven,
    "every query alone": lambda rng: (captions(rng)[0], np.arange(300)),
    "values of many kinds": lambda rng: (rng.gamma(2.0, size=550), np.arange(550)),
}


@pytest.fixture(params=PROBLEMS.values(), ids=PROBLEMS.keys())
def problem(request, rng):
    return request.param(rng)


# --- the same as resampling one by one -----------------------------------------------------------


@pytest.mark.slow
def test_intervals_and_resampled_means_are_those_of_a_naive_loop(problem, rng):
    values, clusters = problem
    expected = naive_means(values, clusters, 3000, rng)
    interval = interval_of_mean(values, clusters)
    assert interval.mean == pytest.approx(values.mean())
    # A percentile of 3000 draws is itself uncertain by about 5 % of the standard deviation.
    np.testing.assert_allclose(
        (interval.low, interval.high),
        np.percentile(expected, [2.5, 97.5]),
        atol=0.2 * expected.std(),
    )
    found = results._resample(values, clusters, 10_000, 0)
    error = expected.std() * np.sqrt(1 / 3000 + 1 / 10_000)
    assert abs(found.mean() - expected.mean()) < 4 * error
    assert found.std() == pytest.approx(expected.std(), rel=0.06)
    assert scipy.stats.ks_2samp(np.round(found, 9), np.round(expected, 9)).pvalue > 1e-3


# --- clusters and pairs --------------------------------------------------------------------------


def test_clusters_widen_the_interval_when_captions_of_an_image_go_together(rng):
    hits, images = captions(rng, n_images=400, spread=5.0)
    clustered, alone = interval_of_mean(hits, images), interval_of_mean(hits)
    assert clustered.mean == alone.mean
    # Five captions that nearly always agree count little more than one: close to sqrt(5).
    assert 1.7 < width(clustered) / width(alone) < np.sqrt(5) + 0.1


# --- p-values ------------------------------------------------------------------------------------


def test_no_difference_at_all_has_p_one(rng):
    hits, images = captions(rng)
    interval = interval_of_difference(hits, hits, images)
    assert interval == Interval(0.0, 0.0, 0.0, 1.0)
    assert interval.includes_zero


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sure_difference_has_the_smallest_p_there_is(rng, sign):
    baseline = rng.random(100)
    interval = interval_of_difference(baseline + sign * (1 + rng.random(100)), baseline)
    assert 1 / 10_000 <= interval.p_value == pytest.approx(2 / 10_001)
    assert not interval.includes_zero


@pytest.mark.slow
def test_a_p_value_is_that_of_the_sign_of_the_mean(rng):
    # Means of many differences are nearly normal: compare with the z-test of the same data.
    noise = rng.integers(0, 20, size=2000).astype(float)
    noise = (noise - noise.mean()) / noise.std()
    for z in (-2.5, -2.0, 0.0, 1.0, 2.0):
        found = interval_of_difference(noise + z / np.sqrt(2000), np.zeros(2000))
        expected = 2 * scipy.stats.norm.sf(abs(z))
        # Half of p is counted among the 10,000 draws, so it has a binomial error.
        error = 2 * np.sqrt(expected / 2 * (1 - expected / 2) / 10_000)
        assert found.p_value == pytest.approx(expected, abs=3 * error)


# --- seeds, sizes, edges -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("n_kinds", ["few", "many"])
def test_the_same_seed_gives_the_same_answer_and_another_another(rng, n_kinds):
    values = rng.random(600) if n_kinds == "many" else rng.integers(0, 2, 600) * 1.0
    assert interval_of_mean(values) == interval_of_mean(values)
    assert interval_of_mean(values, seed=7) == interval_of_mean(values, seed=7)
    first, second = (results._resample(values, None, 100, seed) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_constant_values_have_no_width():
    interval = interval_of_mean([0.25] * 40, np.repeat(np.arange(8), 5))
    assert (interval.mean, interval.low, interval.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(("values", "clusters"), [([1.0], None), ([1.0, 0.0], [3, 3])])
def test_one_group_of_queries_has_no_interval(values, clusters):
    words = "an interval needs queries that ask for at least two different items"
    with pytest.raises(NNNormError, match=words):
        interval_of_mean(values, clusters)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hits", "reciprocal ranks"])
def test_ten_thousand_resamples_of_coco_need_little_memory(rng, kind):
    values, images = captions(rng, n_images=5000)
    if kind == "reciprocal ranks":
        values = rng.random(25_000)
    tracemalloc.start()
    try:
        interval_of_mean(values, images)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * 2**20  # drawn at once they would be 400 MB, and 2 GB without clusters


# --- the ± that the paper prints -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("percent", "n_queries", "printed"),
    [(30.45, 25_000, 0.57), (50.02, 5_000, 1.39), (97.20, 1_000, 1.02)],
)
def test_the_binomial_half_width_is_what_the_paper_prints(percent, n_queries, printed):
    assert round(100 * binomial_half_width(percent / 100, n_queries), 2) == printed


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [[0, 1], [[0], [1], [2]], 0])
def test_clusters_of_another_shape_are_refused(clusters):
    with pytest.raises(NNNormError) as refused:
        interval_of_mean([0, 1, 1], clusters)
    assert "must have one finite number per query; got (3,) and" in str(refused.value)
