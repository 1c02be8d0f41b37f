"""Every solver gives the same means, or reports its error."""

import itertools
import warnings
from functools import cache, partial

import numpy as np
import pytest

import nnnorm
from nnnorm import CSLS, DN, NNN, NNNormError
from nnnorm.errors import NNNormWarning
from nnnorm.means import dispatch
from nnnorm.means.approximate import Cost, residual
from nnnorm.means.dispatch import SOLVER_NAMES, means_by
from nnnorm.means.race import race
from nnnorm.scoring.blocks import Matrix, Products
from nnnorm.scoring.topk import top_means
from tests.means.test_approximate import topics


@pytest.fixture(scope="module")
def problem():
    return topics(1200, 17_000)


@pytest.fixture(scope="module")
def exact_means(problem):
    return cache(lambda k: top_means(Products(*problem), k))


@pytest.mark.parametrize("solver", ["auto", "exact", "pruned", "torch"])
@pytest.mark.parametrize("k", [1, 50])
def test_an_exact_solver_gives_the_exact_means_and_reports_nothing(problem, exact_means, solver, k):
    values, about = means_by(solver, Products(*problem), k)
    np.testing.assert_allclose(values, exact_means(k), atol=1e-6)
    assert about == {}


@pytest.fixture
def raced(monkeypatch):
    """Races with a given outcome, and how many rows were left after each."""
    left = []

    def run(*arguments, is_pruned):
        _, rest = race(*arguments)
        left.append(len(rest))
        return is_pruned, rest

    def arrange(is_pruned):
        monkeypatch.setattr(dispatch, "is_worth_planning", lambda _: True)
        monkeypatch.setattr(dispatch, "_MOST_WORK", np.inf)
        monkeypatch.setattr(dispatch, "race", partial(run, is_pruned=is_pruned))
        return left

    return arrange


@pytest.mark.slow
@pytest.mark.parametrize("is_pruned", [True, False])
@pytest.mark.parametrize("is_stored", [True, False])
def test_auto_gives_the_exact_means_whichever_way_wins(problem, raced, is_pruned, is_stored):
    left = raced(is_pruned)
    if is_stored:
        problem = [nnnorm.open_embeddings(np.asarray(side).astype(np.float16)) for side in problem]
    scores, steps = Products(*problem), []
    means, about = means_by("auto", scores, 20, progress=lambda *step: steps.append(step))
    np.testing.assert_allclose(means, top_means(scores, 20), atol=1e-6)
    assert about == {}
    assert len(left) == 1
    assert 0 < left[0] < 1200
    assert steps[-1] == (1200 * 17_000, 1200 * 17_000)
    assert steps == sorted(steps)


@pytest.mark.slow
def test_auto_within_a_small_budget_is_the_same(problem, raced):
    for is_pruned in (True, False):
        raced(is_pruned)
        scores = Products(*problem)
        means, _ = means_by("auto", scores, 20, memory_budget=24 * 2**20)
        np.testing.assert_allclose(means, top_means(scores, 20), atol=1e-6)


def test_auto_does_not_race_small_work(problem, monkeypatch):
    monkeypatch.setattr(dispatch, "plan_pruning", None)  # a call would fail
    means_by("auto", Products(*problem), 20)


@pytest.mark.slow
def test_auto_does_not_set_up_pruning_that_can_save_nothing(monkeypatch):
    monkeypatch.setattr(dispatch, "is_worth_planning", lambda _: True)
    monkeypatch.setattr(dispatch, "Pruning", None)  # a call would fail
    rng = np.random.default_rng(0)
    flat = [nnnorm.open_embeddings(rng.normal(size=(n, 48))) for n in (300, 17_000)]
    means, _ = means_by("auto", Products(*flat), 20)
    np.testing.assert_array_equal(means, top_means(Products(*flat), 20))


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock that is 3 seconds further at every reading."""
    readings = itertools.count(0, 3.0)
    monkeypatch.setattr(dispatch.time, "perf_counter", lambda: next(readings))


@pytest.mark.parametrize("solver", ["auto", "exact", "pruned", "torch"])
def test_work_of_more_than_a_minute_is_announced_with_an_alternative(
    monkeypatch, slow_clock, solver
):
    monkeypatch.setattr(dispatch, "expected_cost", lambda *_: Cost(0.02, 0.11))
    monkeypatch.setattr(dispatch, "_LONG", 2.0)
    gallery, references = topics(600, 17_000)
    words = (
        r"take about \d+ seconds in all; solver='approximate' \(--solver approximate\) should take "
    )
    with pytest.warns(NNNormWarning, match=words + r"about \d seconds.* about 11% of") as seen:
        means_by(solver, Products(gallery, references), 20)
    assert len(seen) == 1


def test_nothing_is_announced_where_the_alternative_saves_little(monkeypatch, slow_clock):
    monkeypatch.setattr(dispatch, "_LONG", 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        means_by("exact", Products(*topics(600, 5000)), 20)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 seconds"), (61.0, "61 seconds"), (214.0, "3.6 minutes"), (9000.0, "2.5 hours")],
)
def test_durations_are_rounded(seconds, words):
    assert dispatch._duration(seconds) == words


@pytest.mark.parametrize("solver", ["auto", "exact", "pruned"])
def test_exact_solvers_check_k(problem, solver):
    with pytest.raises(NNNormError, match="k must be between 1 and the 17000 columns"):
        means_by(solver, Products(*problem), 0)


@pytest.mark.parametrize("budget", [2**20, 2**22])
def test_torch_within_a_small_budget_is_the_same(problem, budget):
    scores = Products(*problem)
    values, _ = means_by("torch", scores, 30, memory_budget=budget)
    np.testing.assert_allclose(values, top_means(scores, 30), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["approximate", "faiss-ivf"])
def test_an_inexact_solver_reports_its_error(problem, solver):
    gallery, references = problem
    options = {"solver": solver, "quality": 16, "duplicates": "keep"}
    bias = NNN(reference_k=32, alpha=0.5).fit(gallery, references, **options)
    exact = top_means(Products(gallery, references), 32)
    error = residual(bias.values, exact)
    assert bias.params["solver"] == solver
    assert bias.params["quality"] == 16
    assert bias.params["error"] == pytest.approx(error, rel=0.5)
    assert 0 < error < 0.2


@pytest.mark.slow
def test_faiss_pads_short_lists_and_we_do_not_average_that_in(problem):
    gallery, references = problem
    # One list of 400 holds about 25 references.
    values, _ = means_by("faiss-ivf", Products(gallery, references), 200, quality=1)
    exact = top_means(Products(gallery, references), 200)
    np.testing.assert_allclose(values, exact, atol=1e-5)


@pytest.mark.slow
def test_what_a_solver_reports_survives_the_file(problem, tmp_path):
    bias = CSLS().fit(*problem, solver="approximate")
    bias.save(tmp_path / "bias.safetensors")
    loaded = nnnorm.Bias.load(tmp_path / "bias.safetensors")
    assert loaded.params == {**bias.params}
    assert loaded.params["solver"] == "approximate"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_missing_is_named(problem, device):
    torch = pytest.importorskip("torch")
    devices = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if devices[device].is_available():
        pytest.skip(f"there is a {device} device here")
    with pytest.raises(NNNormError, match=f"solver {device} was asked for, but torch .* finds no"):
        means_by(device, Products(*problem), 5)


def test_ready_scores_need_the_exact_solver():
    ready = Matrix(nnnorm.open_embeddings(np.ones((3, 5))))
    with pytest.raises(NNNormError, match="ready scores need solver exact"):
        means_by("approximate", ready, 2)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (NNN(), {"solver": "gpu"}, f"solver must be one of {', '.join(SOLVER_NAMES)}; got 'gpu'"),
        (NNN(), {"quality": 4}, "quality is for the solvers approximate and faiss-ivf; got it "),
        (NNN(), {"solver": "faiss-ivf", "quality": 0}, "whole number of at least 1; got 0"),
        (DN(), {"solver": "approximate"}, "which method dn does not use; leave out solver"),
    ],
)
def test_what_can_not_be_is_one_sentence(problem, method, options, words):
    with pytest.raises(NNNormError, match=words):
        method.fit(*problem, **options)
