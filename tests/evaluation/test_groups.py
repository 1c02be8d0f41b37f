"""Groups among the first items of a ranking, compared with definitions in plain Python."""

import math

import numpy as np
import pytest

from nnnorm.evaluation.groups import measure_groups
from nnnorm.ranking import Ranking, search


def naive(row, groups, k, target):
    """Skew and NDKL of one ranking, straight from their definitions."""
    skews = {}
    for group, fair in target.items():
        share = sum(groups[item] == group for item in row[:k]) / k
        skews[group] = math.log((share or min(1 / k, fair)) / fair)
    total = weights = 0.0
    for i in range(1, k + 1):
        divergence = 0.0
        for group, fair in target.items():
            share = sum(groups[item] == group for item in row[:i]) / i
            if share:
                divergence += share * math.log(share / fair)
        total += divergence / math.log2(i + 1)
        weights += 1 / math.log2(i + 1)
    return skews, total / weights


def test_skew_and_ndkl_follow_their_definitions(rng):
    groups = rng.choice(["a", "b", "c"], size=40, p=[0.6, 0.3, 0.1])
    target = {"a": 0.5, "b": 0.25, "c": 0.25}
    ranking = search(rng.normal(size=(7, 8)), rng.normal(size=(40, 8)), k=12)
    found = measure_groups(ranking, groups, ks=[3, 12], target=target)
    for query, row in enumerate(ranking.indices):
        for k in (3, 12):
            skews, ndkl = naive(row, groups, k, target)
            for group, skew in skews.items():
                assert found[f"skew of {group}@{k}"][query] == pytest.approx(skew)
            assert found[f"max skew@{k}"][query] == pytest.approx(max(skews.values()))
        assert found["ndkl@12"][query] == pytest.approx(ndkl)
    shares = sum(found[f"share of {group}@12"] for group in "abc")
    np.testing.assert_allclose(shares, 1)


def test_a_rare_group_that_does_not_come_is_not_said_to_come_too_often():
    """One item of 4 would be five times a share of 5 %."""
    ranking = Ranking(np.zeros((1, 4), np.float32), np.array([[0, 1, 2, 3]]))
    target = {"common": 0.95, "rare": 0.05}
    found = measure_groups(ranking, ["common"] * 4 + ["rare"], ks=[4], target=target)
    assert found["skew of rare@4"][0] == 0
    assert found["max skew@4"][0] == pytest.approx(math.log(1 / 0.95))
