import numpy as np
import pytest

from nnnorm import NNN, NNNormError, NNNormWarning
from nnnorm.embeddings import open_matrix
from nnnorm.methods import Statistics
from nnnorm.methods.nnn import Evidence, choose_alpha, choose_reference_k, measure
from tests import reference


def reliability(scores, reference_k, **options):
    statistics = Statistics(open_matrix(scores, name="scores"), **options)
    return measure(statistics, reference_k, False).reliability


@pytest.mark.parametrize(
    ("n_references", "n_gallery", "reference_k"),
    [
        *[(1, 100, 1), (2, 100, 1), (3, 100, 1), (16, 100, 8), (100, 1000, 8)],
        *[(400, 1000, 25), (4000, 10**6, 32), (15_000, 150, 300), (10**6, 1, 500_000)],
    ],
)
def test_reference_k_grows_with_the_past_queries_per_item_up_to_half_of_them(
    n_references, n_gallery, reference_k
):
    assert choose_reference_k(n_references, n_gallery) == reference_k


@pytest.mark.parametrize(
    ("density", "coverage", "spread", "share"),
    [
        *[(0.4, 1.0, 1.0, 1.0), (0.3, 0.5, 1.25, 1.0), (0.0, 1.0, 1.0, 0.5)],
        *[(-0.1, 1.0, 1.0, 0.0), (0.2, 0.1, 1.0, 0.0), (0.4, 1.0, 2.5, 0.125)],
    ],
)
def test_alpha_shrinks_to_nothing_if_past_queries_do_not_match_the_gallery(
    density, coverage, spread, share
):
    alpha = choose_alpha(Evidence(0.81, density, coverage, spread), 92)
    assert alpha == pytest.approx(0.6 * 0.9 * 92 / 108 * share, abs=5e-4)


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


def test_a_sample_of_a_large_gallery_gives_the_same_result(rng):
    scores = 0.7 * rng.normal(size=(5000, 1)) + rng.normal(size=(5000, 200))
    sampled = reliability(scores, 12)
    whole = np.mean([reliability(scores[start::10], 12) for start in range(10)])
    assert sampled == pytest.approx(whole, abs=0.04)


@pytest.mark.parametrize("shape", [(5, 1), (1, 50), (2, 50)])
def test_with_too_few_rows_the_reliability_is_zero(shape, rng):
    assert reliability(rng.normal(size=shape), 1) == 0.0


def test_with_constant_scores_the_reliability_is_zero():
    assert reliability(np.full((30, 40), 0.3), 4) == 0.0


def test_the_bias_has_the_chosen_settings_and_the_measurements(rng):
    scores = rng.normal(size=(300, 1)) + rng.normal(size=(300, 320))
    bias = NNN().fit_scores(scores)
    assert bias.params["reference_k"] == 20
    assert bias.weight == bias.params["alpha"]
    expected = 0.6 * bias.params["reliability"] ** 0.5 * 320 / 336
    assert bias.weight == pytest.approx(expected, abs=5e-4)
    assert 0.5 < bias.params["reliability"] < 1


def cloud(rng, n_rows, dim=32):
    """Unit rows that are denser in one direction, none of them nearly a copy of another."""
    rows = rng.normal(size=(n_rows, dim)) + 0.5 * np.abs(rng.normal(size=(n_rows, 1)))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("n_references", [5, 60, 700, 4000])
def test_the_automatic_rule_is_its_naive_form(rng, n_references):
    gallery, references = cloud(rng, 300), cloud(rng, n_references)
    bias = NNN().fit(gallery, references, duplicates="keep")
    k, alpha, values = reference.automatic_rule(gallery.astype(float), references.astype(float))
    np.testing.assert_allclose(bias.values, values, atol=2e-6)
    assert bias.params["reference_k"] == k
    assert bias.weight == pytest.approx(alpha, abs=0.02 if n_references > 1024 else 2e-3)
    assert bias.params["center"] is True


@pytest.mark.parametrize("method", [NNN.paper(), NNN(reference_k=128, alpha=0.75)])
def test_explicit_numbers_are_the_paper_on_a_bank_with_copies(rng, method):
    gallery, references = cloud(rng, 50), np.repeat(cloud(rng, 100), 3, axis=0)
    bias = method.fit(gallery, references)
    expected = reference.m_k(gallery.astype(float) @ references.T.astype(float), 128)
    np.testing.assert_allclose(bias.values, expected, atol=2e-6)
    assert bias.weight == 0.75
    assert "center" not in bias.params
    assert "n_unique" not in bias.params


def test_the_printed_setting_reproduces_the_bias(rng):
    gallery, references = cloud(rng, 200), np.repeat(cloud(rng, 300), 2, axis=0)
    automatic = NNN().fit(gallery, references)
    k, alpha = automatic.params["reference_k"], automatic.params["alpha"]
    explicit = NNN(reference_k=k, alpha=alpha, center=True)
    assert repr(explicit) == f"NNN(reference_k={k}, alpha={alpha}, center=True)"
    again = eval(repr(explicit)).fit(gallery, references, duplicates="drop")
    np.testing.assert_array_equal(again.correction, automatic.correction)


@pytest.mark.parametrize("solver", ["exact", "approximate", "torch"])
def test_every_solver_centers(rng, solver):
    if solver == "torch":
        pytest.importorskip("torch")
    gallery, references = cloud(rng, 90), cloud(rng, 3000)
    bias = NNN(16, 0.5, center=True).fit(gallery, references, solver=solver)
    centred = (gallery - gallery.mean(axis=0)).astype(np.float64)
    expected = reference.m_k(centred @ references.T, 16)
    atol = 0.05 if solver == "approximate" else 1e-5
    np.testing.assert_allclose(bias.values, expected, atol=atol)


def test_a_normalised_float16_gallery_on_disk_is_centred_as_it_is_read(rng, tmp_path):
    rows = (3 * cloud(rng, 90)).astype(np.float16)
    np.save(tmp_path / "gallery.npy", rows)
    references = cloud(rng, 400)
    bias = NNN(16, 0.5, center=True).fit(tmp_path / "gallery.npy", references, normalize=True)
    unit = rows.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = reference.m_k((unit - unit.mean(axis=0)) @ references.T, 16)
    np.testing.assert_allclose(bias.values, expected, atol=1e-5)


def test_mismatched_past_queries_are_warned_of_and_change_little(rng):
    gallery = cloud(rng, 1000)
    # All on the far side of a few items: they find the same few first.
    mismatched = -gallery[:3].mean(axis=0) + 0.05 * rng.normal(size=(300, 32))
    with pytest.warns(NNNormWarning, match="past queries don't match this gallery"):
        bias = NNN().fit(gallery, mismatched, duplicates="keep", normalize=True)
    assert bias.params["match"] < 0.5
    assert bias.weight < 0.3


def test_a_wrong_parameter_is_named():
    with pytest.raises(NNNormError, match="center must be True, False or \"auto\"; got 'yes'"):
        NNN(center="yes")
    with pytest.raises(NNNormError, match=r"alpha must be a number from 0 to .*got -0\.5"):
        NNN(reference_k=8, alpha=-0.5)


def test_numbers_override_one_at_a_time(rng):
    scores = rng.normal(size=(300, 1)) + rng.normal(size=(300, 320))
    fixed_k = NNN(reference_k=7).fit_scores(scores)
    assert fixed_k.params["reference_k"] == 7
    assert "reliability" in fixed_k.params
    fixed_alpha = NNN(alpha=0.3).fit_scores(scores)
    expected = {"reference_k": 20, "alpha": 0.3, "center": True}
    assert fixed_alpha.params == {**expected, "solver": "exact"}
    assert "center" not in NNN(center=False).fit_scores(scores).params
    assert "center" not in NNN(7, 0.3).fit_scores(scores).params


@pytest.mark.parametrize("n_references", [1, 2, 3])
def test_a_handful_of_past_queries_changes_next_to_nothing(rng, n_references):
    bias = NNN().fit(cloud(rng, 20), cloud(rng, n_references))
    assert 1 <= bias.params["reference_k"] <= n_references
    assert bias.weight <= 0.6 * n_references / (n_references + 16)


def test_one_query_repeated_corrects_nothing(rng):
    with pytest.warns(NNNormWarning, match="500 rows of references"):
        bias = NNN().fit(cloud(rng, 20), np.repeat(cloud(rng, 1), 500, axis=0))
    assert bias.weight == 0.0


def test_a_gallery_of_one_item_corrects_nothing(rng):
    assert NNN().fit(cloud(rng, 1), cloud(rng, 500)).weight == 0.0
