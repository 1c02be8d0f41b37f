"""VisoGender's figures on 230 synthetic pictures with known results, and other audits."""

from fractions import Fraction

import numpy as np
import pytest

from nnnorm import Bias, NNNormError
from nnnorm.evaluation import audit
from tests.made import make_visogender


@pytest.fixture(scope="module")
def visogender():
    return make_visogender()


def run(made, bias=None):
    return audit(
        made.queries,
        made.gallery,
        bias,
        groups=made.genders,
        ks=(6, 10),
        difference=("masculine", "feminine"),
        target="equal",
        labels=made.occupations,
        query_labels=made.asked,
    )


def test_visogender_before_the_correction_is_what_counting_by_hand_gives(visogender):
    found = run(visogender)
    assert found.n_gallery == 230
    assert found.groups == ("feminine", "masculine")
    # Ten jobs with the men first, eight with a wrong man on top, five with ten wrong women.
    by_hand = {
        "bias@6": Fraction(10 * 4 + 8 * 2 - 5 * 6, 6 * 23),
        "bias@10": Fraction(10 * 0 + 8 * 2 - 5 * 10, 10 * 23),
        "|bias|@6": Fraction(10 * 4 + 8 * 2 + 5 * 6, 6 * 23),
        "precision@1": Fraction(10, 23),
        "precision@5": Fraction(10 * 5 + 8 * 4, 5 * 23),
    }
    for metric, value in by_hand.items():
        assert found.line(metric).before.mean == pytest.approx(float(value)), metric
    np.testing.assert_allclose(found.before["bias@6"][[0, 10, 18]], [4 / 6, 2 / 6, -1])
    np.testing.assert_allclose(found.before["precision@5"][[0, 10, 18]], [1, 0.8, 0])


def test_visogender_after_the_correction_is_what_counting_by_hand_gives(visogender):
    """The eleven pictures that come where they don't belong are pushed out of every answer."""
    values = np.zeros(230)
    values[visogender.hubs] = 1000
    found = run(visogender, Bias(values, 1.0, "nnn"))
    # Of the two jobs that own the pictures pushed out, only men are left; eight stay as they were.
    by_hand = {
        "bias@6": Fraction(2 * 6 + 8 * 4, 6 * 23),
        "bias@10": Fraction(2 * 10, 10 * 23),
        "precision@1": Fraction(23, 23),
        "precision@5": Fraction(22 * 5 + 4, 5 * 23),
    }
    for metric, value in by_hand.items():
        line = found.line(metric)
        assert line.after.mean == pytest.approx(float(value)), metric
        assert line.change.mean == pytest.approx(line.after.mean - line.before.mean)
        assert line.change.low <= line.change.mean <= line.change.high


def test_a_search_that_mirrors_the_target_has_no_skew_and_a_fair_one_no_bias():
    gallery, groups = np.eye(4), ["a", "b", "a", "b"]
    found = audit(np.eye(4), gallery, groups=groups, ks=[4])
    assert found.target == {"a": 0.5, "b": 0.5}
    for metric in ("bias@4", "skew of a@4", "skew of b@4", "max skew@4"):
        assert found.line(metric).before.mean == 0
    assert found.line("ndkl@4").before.mean > 0  # the first place belongs to one group always


def test_targets_are_the_gallery_equal_or_given(rng):
    gallery, queries = rng.normal(size=(10, 4)), rng.normal(size=(3, 4))
    groups = ["a"] * 8 + ["b"] * 2
    share = lambda target: audit(queries, gallery, groups=groups, ks=[5], target=target).target  # noqa: E731
    assert share("gallery") == {"a": 0.8, "b": 0.2}
    assert share("equal") == {"a": 0.5, "b": 0.5}
    assert share({"b": 0.1, "a": 0.9}) == {"a": 0.9, "b": 0.1}


def test_bias_at_k_needs_two_groups_and_its_sign_their_order(rng):
    gallery, queries = rng.normal(size=(9, 4)), rng.normal(size=(3, 4))
    groups = ["a", "b", "c"] * 3
    assert not any("bias" in name for name in audit(queries, gallery, groups=groups, ks=[5]).before)
    one, other = (
        audit(queries, gallery, groups=groups, ks=[5], difference=pair).before["bias@5"]
        for pair in (("a", "c"), ("c", "a"))
    )
    np.testing.assert_array_equal(one, -other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": ["a"] * 9}, "groups must have 10 entries; got 9"),
        ({"groups": ["a"] * 10}, "must have 2 to 50 different values; got 1"),
        ({"ks": [11]}, "whole numbers from 1 to 10; got .11."),
        ({"target": {"a": 0.5, "b": 0.4}}, "adding up to 1; got"),
        ({"target": "fair"}, "must be 'gallery', 'equal', or a share"),
        ({"difference": ("a", "x")}, "must name two of the groups \\(a, b\\)"),
        ({"labels": ["x"] * 10}, "needs both labels and query_labels; got one of them"),
        ({"labels": ["x"] * 10, "query_labels": ["x", "y", "x"]}, "a query asks for 'y'"),
        ({"queries": np.ones((1, 4))}, "at least two queries"),
    ],
)
def test_input_that_does_not_fit_is_refused(rng, change, words):
    given = {
        "queries": rng.normal(size=(3, 4)),
        "gallery": rng.normal(size=(10, 4)),
        "groups": ["a", "b"] * 5,
        "ks": [5],
    } | change
    with pytest.raises(NNNormError, match=words):
        audit(given.pop("queries"), given.pop("gallery"), groups=given.pop("groups"), **given)
