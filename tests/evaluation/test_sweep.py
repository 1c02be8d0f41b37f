import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnnorm import Bias, open_embeddings
from nnnorm.evaluation.metrics import evaluate, open_truth
from nnnorm.evaluation.sweep import sweep_hits

pytestmark = pytest.mark.slow

# Small whole numbers: products and differences are exact, and ties are everywhere.
INTEGERS = "small whole numbers"
NORMAL = "normal numbers"
CONSTANT = "all scores alike"
CORRECTIONS = {
    "none": lambda rng, n: np.zeros(n),
    "whole numbers": lambda rng, n: rng.integers(-2, 3, size=n),
    "a few halves": lambda rng, n: rng.integers(0, 2, size=n) / 2,
    "normal": lambda rng, n: rng.normal(size=n),
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-7,
    "all negative": lambda rng, n: -rng.random(n) - 5,
    "large": lambda rng, n: rng.normal(size=n) * 1e4,
    "huge": lambda rng, n: rng.normal(size=n) * 1e20,
    "far away": lambda rng, n: rng.normal(size=n) + 1e5,
    "one item sinks": lambda rng, n: np.where(np.arange(n) == n // 2, 1e6, 0.0),
    "one item rises": lambda rng, n: np.where(np.arange(n) == n // 3, -1e6, 0.0),
}


def embeddings(rng, kind, n, dim):
    if kind == CONSTANT:
        return np.ones((n, dim), dtype=np.float32)
    if kind == NORMAL:
        return rng.normal(size=(n, dim)).astype(np.float32)
    rows = rng.integers(-2, 3, size=(n, dim)).astype(np.float32)
    rows[(rows == 0).all(axis=1), 0] = 1  # a row of zeros is no embedding
    return rows


@st.composite
def problems(draw, kinds=(INTEGERS, NORMAL, CONSTANT)):
    """Queries, gallery, lists of right items and a dozen corrections, often tiny, never square."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_queries, n_gallery = draw(st.integers(1, 14)), draw(st.integers(1, 17))
    dim, kind = draw(st.integers(1, 4)), draw(st.sampled_from(kinds))
    queries, gallery = (embeddings(rng, kind, n, dim) for n in (n_queries, n_gallery))
    most = draw(st.integers(1, n_gallery))
    lists = [
        sorted(rng.choice(n_gallery, size=rng.integers(1, most + 1), replace=False).tolist())
        for _ in range(n_queries)
    ]
    names = draw(st.lists(st.sampled_from(sorted(CORRECTIONS)), min_size=1, max_size=12))
    corrections = np.array([CORRECTIONS[name](rng, n_gallery) for name in names], np.float32)
    return queries, gallery, lists, corrections


def callables(corrections):
    return [lambda values=values: values for values in corrections]


def sweep(queries, gallery, lists, corrections, **options):
    truth = open_truth(lists, n_queries=len(queries), n_gallery=len(gallery))
    asked, items = open_embeddings(queries), open_embeddings(gallery)
    return sweep_hits(asked, items, truth, callables(corrections), **options)


def evaluate_each(queries, gallery, lists, corrections):
    """One evaluation per correction: what the sweep must equal."""
    return np.array(
        [
            evaluate(queries, gallery, Bias(values, 1.0, "nnn"), truth=lists).hits(1)
            for values in corrections
        ]
    )


def naive(queries, gallery, lists, corrections):
    """The share of right items among those in first place, by the definition."""
    out = []
    for values in corrections:
        scores = queries @ gallery.T - values
        is_first = scores == scores.max(axis=1, keepdims=True)
        shares = [is_first[q, right].sum() / is_first[q].sum() for q, right in enumerate(lists)]
        out.append(shares)
    return np.array(out)


# --- every row is its own evaluation -------------------------------------------------------------


@settings(max_examples=150)
@given(problems())
def test_every_row_of_the_sweep_is_the_evaluation_of_its_correction(problem):
    np.testing.assert_allclose(sweep(*problem), evaluate_each(*problem), rtol=1e-6)


@settings(max_examples=100)
@given(problems(kinds=(INTEGERS, CONSTANT)))
def test_every_row_is_the_share_of_right_items_among_those_in_first_place(problem):
    np.testing.assert_allclose(sweep(*problem), naive(*problem), rtol=1e-6)


# --- what may not matter -------------------------------------------------------------------------


@given(
    problem=problems(kinds=(INTEGERS, CONSTANT)),
    budget=st.sampled_from([1, 64, 500, 3000, 2**20]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_neither_strips_nor_blocks_nor_the_budget_change_a_hit(problem, budget, dtype):
    queries, gallery, lists, corrections = problem
    wide = sweep(queries, gallery, lists, corrections)
    narrow = sweep(
        queries.astype(dtype), gallery.astype(dtype), lists, corrections, memory_budget=budget
    )
    np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize("n_threads", ["1", "3", "8"])
def test_the_number_of_threads_changes_no_hit(rng, monkeypatch, n_threads):
    queries, gallery = (embeddings(rng, INTEGERS, n, 5) for n in (701, 400))
    lists = rng.integers(0, 400, size=(701, 2)).tolist()
    lists = [sorted(set(right)) for right in lists]
    corrections = rng.integers(-3, 4, size=(6, 400)).astype(np.float32)
    monkeypatch.setenv("OMP_NUM_THREADS", n_threads)
    np.testing.assert_allclose(
        sweep(queries, gallery, lists, corrections),
        naive(queries, gallery, lists, corrections),
        rtol=1e-6,
    )
