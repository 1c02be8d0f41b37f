"""Confidence converted to probabilities, or to shares of queries."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnnorm import NNN, Corrector, NNNormError, NNNormWarning, calibrate, search
from nnnorm.calibration import Calibration
from tests import reference


def labelled(n=400, slope=2.0, shift=0.3, seed=0):
    rng = np.random.default_rng(seed)
    confidence = 0.05 * rng.normal(size=n) + 0.1
    chance = 1 / (1 + np.exp(-slope * (confidence - 0.1) / 0.05 - shift))
    return confidence, rng.random(n) < chance


def test_probabilities_are_those_of_a_logistic_regression():
    confidence, is_right = labelled()
    curve = calibrate(confidence, is_right).curve
    intercept, slope = reference.logistic_regression(confidence, is_right)
    np.testing.assert_allclose([curve.intercept, curve.slope], [intercept, slope], rtol=0.01)
    assert (curve.n_labels, curve.n_right) == (400, int(is_right.sum()))


def test_probabilities_hold_for_other_queries_of_the_same_kind():
    later, was_right = labelled(50_000, seed=100)
    errors = []
    for seed in range(10):
        found = calibrate(*labelled(300, seed=seed)).probability(later)
        for part in np.array_split(np.argsort(found), 10):
            errors.append(abs(found[part].mean() - was_right[part].mean()))
    assert np.mean(errors) < 0.05


def test_the_score_and_the_error_are_those_of_labels_that_were_held_out():
    confidence, is_right = labelled(300)
    curve = calibrate(confidence, is_right).curve
    seen = calibrate(confidence, is_right).probability(confidence)
    assert ((seen - is_right) ** 2).mean() < curve.brier_score < 0.25
    assert [size for _, _, size in curve.bins] == [30] * 10
    error = sum(abs(mean - share) for mean, share, _ in curve.bins) / 10
    assert curve.calibration_error == pytest.approx(error)
    means = [mean for mean, _, _ in curve.bins]
    assert means == sorted(means)


def test_a_threshold_is_the_confidence_of_a_probability():
    found = calibrate(*labelled())
    for probability in (0.1, 0.5, 0.9):
        assert found.probability(found.threshold(probability)) == pytest.approx(probability)
    assert found.probability([[-np.inf, np.inf]]).tolist() == [[0, 1]]
    with pytest.raises(NNNormError, match="probability must be between 0 and 1; got 1"):
        found.threshold(1)
    with pytest.raises(NNNormError, match="got NaN"):
        found.probability([np.nan])


def test_without_labels_there_are_shares_of_queries_but_no_probabilities():
    confidence = np.random.default_rng(0).permutation(np.arange(1000.0))
    found = calibrate(confidence)
    assert repr(found) == "Calibration(1,000 queries, without labels, 0 to 999)"
    assert found.quantile(0.05) == pytest.approx(0.05 * 999)
    assert found.share_below(float(found.quantile(0.3))) == pytest.approx(0.3)
    assert found.share_below([-5, 5000]).tolist() == [0, 1]
    with pytest.raises(NNNormError, match="pass is_right to calibrate"):
        found.probability(0.5)
    with pytest.raises(NNNormError, match=r"share must be a number from 0 to 1; got 95"):
        found.quantile(95)
    with pytest.raises(NNNormError, match=r"share must be a number .*; got '5%'"):
        found.quantile("5%")


@settings(max_examples=40, deadline=None)
@given(st.integers(50, 300), st.integers(5, 45), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_any_labels_give_finite_numbers(n, n_right, scale, seed):
    """Also labels that a bound separates without an error, and confidence on any scale."""
    rng = np.random.default_rng(seed)
    confidence = scale * np.sort(rng.normal(size=n))
    found = calibrate(confidence, np.arange(n) >= n - n_right)
    assert np.isfinite(found.probability(confidence)).all()
    assert confidence[0] <= found.threshold(0.5) <= 2 * confidence[-1] - confidence[0]


@pytest.mark.filterwarnings("error")
def test_labels_that_confidence_does_not_separate_are_warned_of():
    confidence, is_right = labelled(slope=0.0)
    with pytest.warns(NNNormWarning, match="hardly separates .* 400 labels"):
        calibrate(confidence, is_right)
    with pytest.warns(NNNormWarning, match="hardly separates"):
        same = calibrate(np.full(300, 0.1), np.arange(300) % 3 == 0)
    np.testing.assert_allclose(same.probability([0.1, 0.2]), 1 / 3, atol=0.01)
    with pytest.raises(NNNormError, match="pass more labels"):
        same.threshold(0.5)
    with pytest.warns(NNNormWarning, match="in the order of the queries"):
        calibrate(-labelled()[0], labelled()[1])
    calibrate(*labelled())


@pytest.mark.parametrize(
    ("confidence", "is_right", "words"),
    [
        (np.zeros((3, 2)), None, r"one number per query; got shape \(3, 2\)$"),
        ("high", None, "confidence must be numbers.*; got str"),
        ([0.1, np.nan], None, "must be finite; leave out queries without hits"),
        (np.arange(60), np.ones(59), r"one label per query, shape \(60,\); got \(59,\)"),
        (np.arange(60), np.full(60, 0.5), "labels must be 1 or 0"),
        (np.arange(60), ["yes"] * 60, "labels must be 1 or 0"),
        (np.arange(60), np.ones(60), "got 60 right and 0 wrong: label more"),
        (np.arange(40), np.arange(40) < 20, "at least 50 labels"),
    ],
)
def test_other_input_is_rejected_in_a_sentence(confidence, is_right, words):
    with pytest.raises(NNNormError, match=words):
        calibrate(confidence, is_right)


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_scores_of_any_engine_give_the_confidence_of_the_search(small, metric, normalize):
    made = Corrector.fit(small.gallery, small.references, NNN(5, 0.6), normalize=normalize)
    stored = made.transform_items(small.gallery).astype(float)
    asked = made.transform_queries(small.queries, weight=0.3).astype(float)
    scores = asked @ stored.T
    if metric == "cosine":
        scores /= np.linalg.norm(asked, axis=1)[:, None] * np.linalg.norm(stored, axis=1)
    if metric == "l2":
        scores = -((asked[:, None] - stored) ** 2).sum(axis=2)
    best = -np.sort(-scores, axis=1)[:, :12] * (-1 if metric == "l2" else 1)
    options = {"weight": 0.3, "normalize": normalize}
    exact = search(small.queries, small.gallery, made.bias, **options)
    found = made.confidence(best, asked, metric=metric)
    np.testing.assert_allclose(found, exact.confidence, atol=1e-4)


def test_other_scores_are_rejected(small):
    made = Corrector.fit(small.gallery, small.references)
    asked = made.transform_queries(small.queries)
    with pytest.raises(NNNormError, match=r"queries that of transform_queries, \(n_queries, 14\)"):
        made.confidence(np.ones((len(asked), 10)), small.queries)
    with pytest.raises(NNNormError, match="metric must be 'ip', 'cosine' or 'l2'; got 'l1'"):
        made.confidence(np.ones((len(asked), 10)), asked, metric="l1")


@pytest.mark.parametrize("has_labels", [True, False])
def test_a_corrector_keeps_its_calibration(small, tmp_path, has_labels):
    confidence, is_right = labelled()
    made = calibrate(confidence, is_right if has_labels else None)
    plain = Corrector.fit(small.gallery, small.references)
    corrector = plain.with_calibration(made)
    corrector.save(tmp_path / "c.safetensors")
    again = Corrector.load(tmp_path / "c.safetensors")
    assert again.calibration == made
    assert again.fingerprint == plain.fingerprint
    assert Calibration.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert "calibration" not in plain.to_dict()
    with pytest.warns(NNNormWarning, match="the calibration isn't valid for the new corrector"):
        assert again.refit(small.references, gallery=small.gallery).calibration is None
    with pytest.raises(NNNormError, match=r"must be a Calibration, from calibrate.*; got float"):
        plain.with_calibration(0.5)
