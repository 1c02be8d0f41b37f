from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnnorm import open_embeddings
from nnnorm.evaluation.metrics import evaluate, open_truth
from nnnorm.evaluation.sweep import GateWatch, make_settings
from nnnorm.methods import make_method
from tests import reference

GRIDS = {
    "qbnorm": {"beta": [0.0, 0.5, 5.0, 60.0]},
    "dualdis": {"beta_query": [0.0, 3.0, 40.0], "beta_gallery": [0.0, 2.0]},
}


def make_problem(seed, *, negative=True):
    """Mostly positive scores and small banks, so that queries of all four kinds are there."""
    rng = np.random.default_rng(seed)
    parts = (rng.normal(size=(n, 6)) * 0.3 + 0.2 for n in (40, 12, 60, 10))
    gallery, references, queries, bank = (part.astype(np.float32) for part in parts)
    if negative:
        queries[::2] *= -1  # where the published product turns the order round
    # The right item is among the first few, so that some queries hit and some miss.
    order = np.argsort(-(queries @ gallery.T), axis=1)
    lists = [
        rng.choice(order[q, :6], size=rng.integers(1, 4), replace=False).tolist() for q in range(60)
    ]
    return SimpleNamespace(
        gallery=gallery, references=references, queries=queries, bank=bank, lists=lists
    )


def watch_over(problem, methods=("qbnorm", "dualdis"), strip=60):
    """A watch that has looked at all queries, and the settings it watches."""
    gallery, references, bank = (
        open_embeddings(rows) for rows in (problem.gallery, problem.references, problem.bank)
    )
    truth = open_truth(problem.lists, n_queries=60, n_gallery=40)
    settings = make_settings(
        methods,
        gallery,
        references,
        gallery_references=bank,
        grids={name: GRIDS[name] for name in methods},
    )
    watch = GateWatch([s.method for s in settings], settings[0].statistics, truth)
    raw = problem.queries @ problem.gallery.T
    for start in range(0, 60, strip):
        watch.look(start, raw[start : start + strip])
    return watch, settings


def hits_of(problem, method, params):
    """Hits of a fitted method, and of no correction where it is 'none'."""
    extra = {"gallery_references": problem.bank} if method.startswith("dual") else {}
    bias = make_method(method, **params).fit(
        problem.gallery, problem.references, duplicates="keep", **extra
    )
    return evaluate(problem.queries, problem.gallery, bias, truth=problem.lists).hits(1)


def ungated_of(problem, setting):
    return hits_of(problem, {"qbnorm": "is", "dualdis": "dualis"}[setting.name], setting.params)


def watched(problem, **options):
    """Hits of every setting by the watch."""
    watch, settings = watch_over(problem, **options)
    raw = hits_of(problem, "none", {})
    return [(s, watch.hits(s.method, ungated_of(problem, s), raw)) for s in settings]


def opened(problem):
    """Whether each query's raw best item is in the activation sets, shape (2, n_queries)."""
    best = (problem.queries.astype(float) @ problem.gallery.astype(float).T).argmax(axis=1)
    return np.array(
        [
            reference.activation_set(problem.gallery.astype(float) @ rows.astype(float).T)[best]
            for rows in (problem.references, problem.bank)
        ]
    )


def first_is_right(scores, lists):
    return np.array([row.argmax() in right for row, right in zip(scores, lists, strict=True)])


@pytest.fixture(params=[True, False], ids=["some scores negative", "scores positive"])
def problem(request):
    made = make_problem(3, negative=request.param)
    kinds = {tuple(pair) for pair in opened(made).T.tolist()}
    assert len(kinds) == 4, "the problem must have queries of all four kinds"
    return made


# --- the watch tells what a gated search does ----------------------------------------------------


@pytest.mark.parametrize("method", ["qbnorm", "dualdis"])
def test_the_hits_of_every_setting_are_those_of_its_gated_search(problem, method):
    for setting, hits in watched(problem, methods=(method,)):
        np.testing.assert_allclose(hits, hits_of(problem, method, setting.params), rtol=1e-6)


@pytest.mark.slow
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), negative=st.booleans())
def test_the_hits_are_those_of_the_gated_search_on_any_data(seed, negative):
    problem = make_problem(seed, negative=negative)
    for setting, hits in watched(problem):
        expected = hits_of(problem, setting.name, setting.params)
        np.testing.assert_allclose(hits, expected, rtol=1e-6)


def test_the_hits_of_qbnorm_are_those_of_the_published_formula(problem):
    raw = problem.queries.astype(float) @ problem.gallery.astype(float).T
    scores = problem.gallery.astype(float) @ problem.references.astype(float).T
    for setting, hits in watched(problem, methods=("qbnorm",)):
        beta = setting.params["beta"]
        published = reference.dis(raw, scores, beta) if beta else raw
        np.testing.assert_array_equal(hits, first_is_right(published, problem.lists))


def test_the_hits_of_dualdis_are_those_of_the_published_product(problem):
    raw = problem.queries.astype(float) @ problem.gallery.astype(float).T
    banks = [
        problem.gallery.astype(float) @ rows.astype(float).T
        for rows in (problem.references, problem.bank)
    ]
    both = opened(problem).all(axis=0)
    for setting, hits in watched(problem, methods=("dualdis",)):
        betas = setting.params["beta_query"], setting.params["beta_gallery"]
        published = reference.dual_dis(raw, *banks, *betas)
        expected = first_is_right(published, problem.lists)
        if not any(betas):
            # With both β 0 and both gates open the product is constant; that is no correction.
            expected[both] = first_is_right(raw, problem.lists)[both]
        np.testing.assert_array_equal(hits, expected)


# --- the four kinds of queries -------------------------------------------------------------------


# --- what may not matter -------------------------------------------------------------------------
