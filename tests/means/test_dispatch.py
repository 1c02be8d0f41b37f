"""Every solver gives the same means, or says how far off it is."""

import numpy as np
import pytest

import nnnorm
from nnnorm import CSLS, DN, NNN, NNNormError
from nnnorm.means import dispatch as solvers
from nnnorm.means.approximate import residual
from nnnorm.means.dispatch import SOLVER_NAMES, means_by
from nnnorm.means.pruned import screened_means
from nnnorm.scoring.blocks import Matrix, Products
from nnnorm.scoring.topk import top_means
from tests.means.test_approximate import topics


@pytest.fixture(scope="module")
def problem():
    return topics(1200, 17_000)


@pytest.mark.parametrize("solver", ["auto", "exact", "pruned", "torch"])
@pytest.mark.parametrize("k", [1, 50])
def test_an_exact_engine_gives_the_exact_means_and_has_nothing_to_add(problem, solver, k):
    scores = Products(*problem)
    values, about = means_by(solver, scores, k)
    np.testing.assert_allclose(values, top_means(scores, k), atol=1e-6)
    assert about == {}


@pytest.mark.parametrize(("limit", "is_screened"), [(2.0, True), (0.0, False)])
def test_auto_screens_where_that_should_be_faster(problem, monkeypatch, limit, is_screened):
    seen = []

    def note(*arguments, **options):
        seen.append(1)
        return screened_means(*arguments, **options)

    monkeypatch.setattr(solvers, "screened_means", note)
    monkeypatch.setattr(solvers, "_WORTH_SCREENING", limit)
    scores = Products(*problem)
    for worth_a_look, n_seen in ((10**15, 0), (0, int(is_screened))):
        monkeypatch.setattr(solvers, "_WORTH_A_LOOK", worth_a_look)
        values, _ = means_by("auto", scores, 20)
        np.testing.assert_allclose(values, top_means(scores, 20), atol=1e-6)
        assert len(seen) == n_seen


@pytest.mark.parametrize("solver", ["auto", "exact", "pruned"])
def test_exact_engines_check_k(problem, solver):
    with pytest.raises(NNNormError, match="k must be between 1 and the 17000 columns"):
        means_by(solver, Products(*problem), 0)


@pytest.mark.parametrize("budget", [2**20, 2**22])
def test_torch_within_a_small_budget_is_the_same(problem, budget):
    scores = Products(*problem)
    values, _ = means_by("torch", scores, 30, memory_budget=budget)
    np.testing.assert_allclose(values, top_means(scores, 30), atol=1e-6)


@pytest.mark.parametrize("solver", ["approximate", "faiss-ivf"])
def test_an_inexact_engine_says_so_with_its_error(problem, solver):
    gallery, references = problem
    bias = NNN(reference_k=32, alpha=0.5).fit(gallery, references, solver=solver, quality=16)
    exact = top_means(Products(gallery, references), 32)
    error = residual(bias.values, exact)
    assert bias.params["solver"] == solver
    assert bias.params["quality"] == 16
    assert bias.params["error"] == pytest.approx(error, rel=0.5)
    assert 0 < error < 0.2


def test_faiss_pads_short_lists_and_we_do_not_average_that_in(problem):
    gallery, references = problem
    # One list of 400 holds about 25 references.
    values, _ = means_by("faiss-ivf", Products(gallery, references), 200, quality=1)
    exact = top_means(Products(gallery, references), 200)
    np.testing.assert_allclose(values, exact, atol=1e-5)


def test_what_an_engine_says_survives_the_file(problem, tmp_path):
    bias = CSLS().fit(*problem, solver="approximate")
    bias.save(tmp_path / "bias.safetensors")
    loaded = nnnorm.Bias.load(tmp_path / "bias.safetensors")
    assert loaded.params == {**bias.params}
    assert loaded.params["solver"] == "approximate"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_named(problem, device):
    torch = pytest.importorskip("torch")
    devices = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if devices[device].is_available():
        pytest.skip(f"there is a {device} device here")
    with pytest.raises(NNNormError, match=f"solver {device} was asked for, but torch .* sees no"):
        means_by(device, Products(*problem), 5)


def test_ready_scores_need_the_plain_engine():
    ready = Matrix(nnnorm.open_embeddings(np.ones((3, 5))))
    with pytest.raises(NNNormError, match="ready scores need solver exact"):
        means_by("approximate", ready, 2)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (NNN(), {"solver": "gpu"}, f"solver must be one of {', '.join(SOLVER_NAMES)}; got 'gpu'"),
        (NNN(), {"quality": 4}, "quality is for the solvers approximate and faiss-ivf; got it "),
        (NNN(), {"solver": "faiss-ivf", "quality": 0}, "whole number of at least 1; got 0"),
        (DN(), {"solver": "approximate"}, "for nnn and csls; method dn needs solver exact"),
    ],
)
def test_what_can_not_be_is_one_sentence(problem, method, options, words):
    with pytest.raises(NNNormError, match=words):
        method.fit(*problem, **options)
