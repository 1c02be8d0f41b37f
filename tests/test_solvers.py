"""Every solver gives the same means or reports its error, and `auto` reports its choice."""

import itertools
import warnings
from functools import cache

import numpy as np
import pytest

import nnnorm
from nnnorm import CSLS, DN, NNN, NNNormError, scoring, solvers
from nnnorm.errors import NNNormWarning
from nnnorm.methods import Statistics
from nnnorm.scoring import Products, top_means
from nnnorm.solvers import SOLVER_NAMES, compute_means
from tests.test_approximate import residual, topics


@pytest.fixture(scope="module")
def problem():
    return topics(1200, 17_000)


@pytest.fixture(scope="module")
def exact_means(problem):
    return cache(lambda k: top_means(Products(*problem), k))


@pytest.mark.parametrize("solver", ["auto", "exact", "torch"])
@pytest.mark.parametrize("k", [1, 50])
def test_an_exact_solver_gives_the_exact_means(problem, exact_means, solver, k):
    values, about = compute_means(solver, Products(*problem), k)
    np.testing.assert_allclose(values, exact_means(k), atol=1e-6)
    assert about == {"solver": "exact" if solver == "auto" else solver}


# --- auto ----------------------------------------------------------------------------------------


def ticking(seconds):
    """A clock that is some seconds further at every reading."""
    readings = itertools.count(0, seconds)
    return lambda: next(readings)


@pytest.fixture
def any_saving(monkeypatch):
    """Lists count as faster even on a problem as small as that of a test."""
    monkeypatch.setattr(solvers, "_LARGEST_TIME", np.inf)


def auto(problem, k=20, seconds=1000.0, **options):
    """Means of a problem that is large enough for a sample to be timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solvers, "_QUICK", 0)
        patch.setattr(scoring, "processor_time", ticking(seconds))
        return compute_means("auto", Products(*problem), k, **options)


def noise(n_items, n_references, dim=48):
    """Rows without any structure that lists could use."""
    rng = np.random.default_rng(0)
    return tuple(nnnorm.open_embeddings(rng.normal(size=(n, dim))) for n in (n_items, n_references))


def test_auto_is_exact_while_that_is_quick(problem, exact_means):
    values, about = auto(problem, seconds=0.01)
    assert about == {"solver": "exact"}
    np.testing.assert_allclose(values, exact_means(20), atol=1e-6)


@pytest.mark.slow
def test_auto_is_approximate_where_exact_is_slow_and_the_error_is_small(
    problem, exact_means, any_saving
):
    values, about = auto(problem)
    assert about["solver"] == "approximate"
    assert 0 < about["error"] <= 0.15
    assert about["error"] / 2.5 < residual(values, exact_means(20)) < 1.25 * about["error"]


@pytest.mark.slow
def test_auto_raises_the_quality_until_the_error_is_small(problem, any_saving, monkeypatch):
    monkeypatch.setattr(solvers, "choose_quality", lambda _: 1)
    _, about = auto(problem)
    assert about["solver"] == "approximate"
    assert about["quality"] > 1
    assert about["error"] <= 0.15


@pytest.mark.slow
def test_auto_is_exact_with_a_warning_where_approximate_means_are_far_off(any_saving):
    hard = noise(1000, 17_000)
    words = (
        r"exact means will take about \d+:\d\d:\d\d \(h:mm:ss\); approximate means would have "
        r"an error of [2-9]\d % of their standard deviation, more than 15 %.* solver='approximate'"
    )
    with pytest.warns(NNNormWarning, match=words) as seen:
        values, about = auto(hard)
    assert len(seen) == 1
    assert about == {"solver": "exact"}
    np.testing.assert_allclose(values, top_means(Products(*hard), 20), atol=1e-6)


def test_auto_is_exact_with_the_time_to_expect_where_lists_save_nothing(problem, exact_means):
    with pytest.warns(
        NNNormWarning, match=r"exact means will take about \d+:\d\d:\d\d \(h:mm:ss\)$"
    ):
        values, about = auto(problem)
    assert about == {"solver": "exact"}
    np.testing.assert_allclose(values, exact_means(20), atol=1e-6)


def test_auto_does_not_time_what_is_quick_anyway(problem, monkeypatch):
    monkeypatch.setattr(scoring, "processor_time", ticking(1000.0))
    _, about = compute_means("auto", Products(*problem), 20)
    assert about == {"solver": "exact"}


@pytest.mark.parametrize("seconds", [0.01, 1000.0])
def test_progress_ends_with_everything_done(problem, seconds):
    steps = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NNNormWarning)
        auto(problem, seconds=seconds, progress=lambda *step: steps.append(step))
    assert steps[-1] == (900 * 17_000, 900 * 17_000)  # the sample is known


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_exact_work_shows_its_progress_on_a_terminal_only(
    problem, monkeypatch, capsys, is_terminal
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.warns(NNNormWarning, match="exact means will take"):
        auto(problem)
    assert ("Exact means" in capsys.readouterr().err) == is_terminal
    auto(problem, seconds=0.01)
    assert capsys.readouterr().err == ""


# --- what a bias reports -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_approximate_solver_reports_its_quality_and_error(problem, exact_means):
    options = {"solver": "approximate", "quality": 8, "duplicates": "keep"}
    bias = NNN(reference_k=32, alpha=0.5).fit(*problem, **options)
    error = residual(bias.values, exact_means(32))
    assert bias.params["solver"] == "approximate"
    assert bias.params["quality"] == 8
    assert 0.8 * error < bias.params["error"] < 2.5 * error
    assert 0 < error < 0.2


def test_approximate_means_of_a_small_bank_are_exact_and_say_so(small):
    options = {"duplicates": "keep", "normalize": False}
    bias = CSLS(5).fit(small.gallery, small.references, solver="approximate", **options)
    exact = CSLS(5).fit(small.gallery, small.references, solver="exact", **options)
    np.testing.assert_array_equal(bias.values, exact.values)
    assert bias.params == exact.params
    assert bias.params["solver"] == "exact"


def test_methods_without_means_name_no_solver(small):
    assert "solver" not in DN().fit(small.gallery, small.references, normalize=False).params


@pytest.mark.parametrize(("solver", "expected"), [("auto", "exact"), ("approximate",) * 2])
def test_a_solver_that_was_asked_for_computes_every_mean_of_a_grid(problem, solver, expected):
    quality = 4 if solver == "approximate" else None
    statistics = Statistics(*problem, solver=solver, quality=quality)
    statistics.prepare([CSLS(20), CSLS(30)])
    found = [CSLS(k).make_bias(statistics).params["solver"] for k in (20, 30)]
    assert found == [expected, expected]


# --- torch, and what is rejected -----------------------------------------------------------------


@pytest.mark.parametrize("budget", [2**20, 2**22])
def test_torch_within_a_small_budget_is_the_same(problem, exact_means, budget):
    values, _ = compute_means("torch", Products(*problem, memory_budget=budget), 50)
    np.testing.assert_allclose(values, exact_means(50), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_missing_is_named(problem, device):
    torch = pytest.importorskip("torch")
    devices = {"cuda": torch.cuda, "mps": torch.backends.mps}
    if devices[device].is_available():
        pytest.skip(f"there is a {device} device here")
    with pytest.raises(NNNormError, match=f"solver {device} needs such a device, but torch .* fin"):
        compute_means(device, Products(*problem), 5)


@pytest.mark.parametrize("solver", ["auto", "exact", "torch", "approximate"])
def test_more_references_than_there_are_is_one_sentence_with_every_solver(solver):
    rows = np.random.default_rng(0).normal(size=(5, 8))
    with pytest.raises(NNNormError, match="reference_k is 6, but there are only 5 past queries"):
        CSLS(reference_k=6).fit(rows[:3], rows, solver=solver, normalize=True)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (NNN(), {"solver": "gpu"}, f"solver must be one of {', '.join(SOLVER_NAMES)}; got 'gpu'"),
        (NNN(), {"quality": 4}, "quality only applies to the solver approximate; got it with auto"),
        (NNN(), {"solver": "approximate", "quality": 2.5}, "whole number of at least 1; got 2.5"),
        (DN(), {"solver": "approximate"}, "which method dn does not use; leave out solver"),
    ],
)
def test_invalid_solvers_and_budgets_are_rejected(problem, method, options, words):
    with pytest.raises(NNNormError, match=words):
        method.fit(*problem, **options)
