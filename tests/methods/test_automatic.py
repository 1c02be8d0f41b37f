import numpy as np
import pytest

from nnnorm import NNN
from nnnorm.io import open_matrix
from nnnorm.methods.automatic import choose_reference_k, split_half_reliability
from nnnorm.scoring.blocks import Matrix


def reliability(scores, reference_k, **options):
    return split_half_reliability(
        Matrix(open_matrix(scores, name="scores")), reference_k, **options
    )


@pytest.mark.parametrize(
    ("n_references", "reference_k"),
    [(1, 1), (3, 3), (8, 4), (64, 4), (160, 10), (2048, 128), (30_455, 128)],
)
def test_reference_k_is_a_sixteenth_of_the_bank_within_limits(n_references, reference_k):
    assert choose_reference_k(n_references) == reference_k


def test_noise_is_not_reliable_and_true_offsets_are(rng):
    noise = rng.normal(size=(400, 64))
    offsets = 3 * rng.normal(size=(400, 1))
    assert reliability(noise, 4) < 0.25
    assert reliability(noise + offsets, 4) > 0.95


def test_reliability_is_what_a_second_bank_would_confirm(rng):
    # Spearman-Brown steps half banks up to the whole: it must predict the correlation of the
    # biases of two independent whole banks.
    offsets = 0.7 * rng.normal(size=(3000, 1))
    first, second = (offsets + rng.normal(size=(3000, 64)) for _ in range(2))
    means = [-np.sort(-bank, axis=1)[:, :8].mean(axis=1) for bank in (first, second)]
    expected = np.corrcoef(*means)[0, 1]
    assert reliability(first, 8) == pytest.approx(expected, abs=0.06)


def test_the_sample_of_a_large_gallery_tells_the_same(rng):
    scores = 0.7 * rng.normal(size=(5000, 1)) + rng.normal(size=(5000, 200))
    sampled = reliability(scores, 12)
    whole = np.mean([reliability(scores[start::10], 12) for start in range(10)])
    assert sampled == pytest.approx(whole, abs=0.04)


@pytest.mark.parametrize("shape", [(5, 1), (1, 50), (2, 50)])
def test_nothing_to_compare_means_no_trust(shape, rng):
    assert reliability(rng.normal(size=shape), 1) == 0.0


def test_constant_scores_mean_no_trust():
    assert reliability(np.full((30, 40), 0.3), 4) == 0.0


def test_what_was_chosen_stands_in_the_bias(rng):
    scores = rng.normal(size=(300, 1)) + rng.normal(size=(300, 320))
    bias = NNN().fit_scores(scores)
    assert bias.params["reference_k"] == 20
    assert bias.weight == bias.params["alpha"]
    assert bias.weight == pytest.approx(0.75 * bias.params["reliability"] * 320 / 328)
    assert 0.5 < bias.params["reliability"] < 1


def test_numbers_override_one_at_a_time(rng):
    scores = rng.normal(size=(300, 1)) + rng.normal(size=(300, 320))
    fixed_k = NNN(reference_k=7).fit_scores(scores)
    assert fixed_k.params["reference_k"] == 7
    assert "reliability" in fixed_k.params
    fixed_alpha = NNN(alpha=0.3).fit_scores(scores)
    assert fixed_alpha.params == {"reference_k": 20, "alpha": 0.3}


def test_a_bank_of_one_reference_corrects_nothing(rng):
    bias = NNN().fit(rng.normal(size=(20, 4)), rng.normal(size=(1, 4)))
    assert bias.weight == 0.0


def test_the_choice_is_the_same_every_time(rng):
    scores = rng.normal(size=(300, 320))
    assert NNN().fit_scores(scores).params == NNN().fit_scores(scores).params
