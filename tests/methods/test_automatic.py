import numpy as np
import pytest

from nnnorm import NNN, NNNormError, NNNormWarning, open_embeddings
from nnnorm.io import open_matrix
from nnnorm.methods import Statistics
from nnnorm.methods.automatic import RULES, density_correlation, is_narrow, split_half_reliability
from nnnorm.scoring import Matrix, Products
from tests import reference


def reliability(scores, reference_k, **options):
    return split_half_reliability(
        Matrix(open_matrix(scores, name="scores")), reference_k, **options
    )


@pytest.mark.parametrize(
    ("rule", "n_references", "reference_k"),
    [
        *(("second", n, k) for n, k in [(1, 1), (7, 7), (64, 8), (160, 10), (30_455, 32)]),
        *(("first", n, k) for n, k in [(1, 1), (3, 3), (64, 4), (160, 10), (30_455, 128)]),
        *(("paper", n, k) for n, k in [(1, 1), (127, 127), (30_455, 128)]),
    ],
)
def test_reference_k_is_a_share_of_the_bank_within_limits(rule, n_references, reference_k):
    assert RULES[rule].choose_reference_k(n_references) == reference_k


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


@pytest.mark.parametrize(
    ("rule", "k", "largest", "power"), [("second", 20, 0.5, 0.5), ("first", 20, 0.75, 1)]
)
def test_what_was_chosen_stands_in_the_bias(rng, rule, k, largest, power):
    scores = rng.normal(size=(300, 1)) + rng.normal(size=(300, 320))
    bias = NNN(rule=rule).fit_scores(scores)
    assert bias.params["reference_k"] == k
    assert bias.params["rule"] == rule
    assert bias.weight == bias.params["alpha"]
    assert bias.weight == pytest.approx(largest * bias.params["reliability"] ** power * 320 / 328)
    assert 0.5 < bias.params["reliability"] < 1


def cloud(rng, n_rows, dim=32):
    """Unit rows that are denser in one direction, none of them nearly a copy of another."""
    rows = rng.normal(size=(n_rows, dim)) + 0.5 * np.abs(rng.normal(size=(n_rows, 1)))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("n_references", [5, 60, 700])
def test_the_second_rule_is_its_naive_form(rng, n_references):
    gallery, references = cloud(rng, 300), cloud(rng, n_references)
    bias = NNN().fit(gallery, references)
    expected, alpha, c = reference.second_rule(gallery, references, bias.params["reliability"])
    np.testing.assert_allclose(bias.values, expected, atol=2e-6)
    assert bias.weight == pytest.approx(alpha, abs=1e-5)
    assert bias.params["density"] == pytest.approx(c, abs=1e-5)
    assert bias.params["center"] is True


def test_the_papers_rule_is_its_setting_and_as_many_references_as_there_are(rng):
    gallery, references = cloud(rng, 50), cloud(rng, 200)
    paper = NNN(rule="paper").fit(gallery, references)
    np.testing.assert_array_equal(paper.values, NNN.paper().fit(gallery, references).values)
    chosen = {name: paper.params[name] for name in ("reference_k", "alpha", "rule")}
    assert chosen == {"reference_k": 128, "alpha": 0.75, "rule": "paper"}
    assert "center" not in paper.params
    assert NNN(rule="paper").fit(gallery, references[:40]).params["reference_k"] == 40


@pytest.mark.parametrize("solver", ["exact", "approximate", "torch"])
def test_every_solver_centres(rng, solver):
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


def test_ready_scores_are_centred_by_the_mean_of_each_reference(rng):
    gallery, references = cloud(rng, 90), cloud(rng, 400)
    ready = NNN(16, 0.5, center=True).fit_scores(gallery @ references.T)
    direct = NNN(16, 0.5, center=True).fit(gallery, references)
    np.testing.assert_allclose(ready.values, direct.values, atol=1e-6)


def test_a_centre_may_be_given_so_that_new_items_get_the_numbers_of_a_whole_fit(rng):
    gallery, references = open_embeddings(cloud(rng, 90)), open_embeddings(cloud(rng, 400))
    whole = Statistics.of_embeddings(gallery, references)
    settled, _ = NNN().settle(whole)
    some = np.array([3, 80])
    new = Statistics.of_embeddings(gallery.subset(some), references, known={"center": whole.center})
    np.testing.assert_allclose(settled.values(new), settled.values(whole)[some], atol=1e-6)


def test_a_bank_that_covers_a_part_of_the_gallery_has_a_low_c_and_fit_says_so(rng):
    gallery, references = cloud(rng, 1000), cloud(rng, 8000)
    # Far from the middle of the cloud, and on one side of it.
    narrow = references[np.argsort(2 * references.mean(axis=1) * 32**0.5 - references[:, 0])[:300]]
    assert NNN().fit(gallery, references).params["density"] > 0.4
    with pytest.warns(NNNormWarning, match="cover only a part of the gallery"):
        bias = NNN().fit(gallery, narrow)
    assert is_narrow(bias.params["density"], bias.params["reliability"], 1000)
    assert bias.weight < 0.3


def test_c_does_not_depend_on_the_items_that_are_their_own_neighbours(rng):
    rows = open_embeddings(cloud(rng, 200) * rng.uniform(0.2, 5, size=(200, 1)), normalize=False)
    references = open_embeddings(cloud(rng, 60))
    scores = np.asarray(rows) @ np.asarray(rows).T
    np.fill_diagonal(scores, -np.inf)
    means = reference.m_k(np.asarray(rows) @ np.asarray(references).T, 8)
    expected = np.corrcoef(means, reference.m_k(scores, 10))[0, 1]
    found = density_correlation(Products(rows, references), rows, 8)
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"rule": "third"}, "rule must be one of second, first, paper; got 'third'"),
        ({"center": "yes"}, "center must be True, False or \"auto\"; got 'yes'"),
    ],
)
def test_a_wrong_rule_is_named(params, words):
    with pytest.raises(NNNormError, match=words):
        NNN(**params)


def test_numbers_override_one_at_a_time(rng):
    scores = rng.normal(size=(300, 1)) + rng.normal(size=(300, 320))
    fixed_k = NNN(reference_k=7).fit_scores(scores)
    assert fixed_k.params["reference_k"] == 7
    assert "reliability" in fixed_k.params
    fixed_alpha = NNN(alpha=0.3).fit_scores(scores)
    expected = {"reference_k": 20, "alpha": 0.3, "center": True, "rule": "second"}
    assert fixed_alpha.params == {**expected, "solver": "exact"}
    assert "center" not in NNN(center=False).fit_scores(scores).params
    assert "center" not in NNN(7, 0.3).fit_scores(scores).params


def test_a_bank_of_one_reference_corrects_nothing(rng):
    bias = NNN().fit(rng.normal(size=(20, 4)), rng.normal(size=(1, 4)))
    assert bias.weight == 0.0


def test_the_choice_is_the_same_every_time(rng):
    scores = rng.normal(size=(300, 320))
    assert NNN().fit_scores(scores).params == NNN().fit_scores(scores).params
