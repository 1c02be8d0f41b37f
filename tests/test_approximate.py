"""Approximate means are close to the exact ones, report their error and keep to the budget."""

from typing import NamedTuple

import numpy as np
import pytest

from nnnorm import open_embeddings, solvers
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, top_means
from nnnorm.solvers import choose_quality, learn_lists, sample_means

pytestmark = pytest.mark.slow


def topics(n_items, n_references, dim=48, seed=0):
    """Rows of two levels of topics whose directions matter less and less, as in real embeddings."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, dim + 1) ** -0.5
    broad, narrow = rng.normal(size=(20, dim)) * scale, rng.normal(size=(300, dim)) * scale
    parent = rng.integers(0, 20, size=300)

    def draw(n):
        topic = rng.integers(0, 300, size=n)
        rows = broad[parent[topic]] + 0.8 * narrow[topic] + 0.8 * scale * rng.normal(size=(n, dim))
        return open_embeddings((rows / np.linalg.norm(rows, axis=1, keepdims=True)), name="made")

    return draw(n_items), draw(n_references)


def residual(values, exact):
    """Standard deviation of the error relative to that of the exact values."""
    estimated, right = (np.asarray(each, dtype=np.float64) for each in (values, exact))
    return (estimated - right).std() / right.std()


class Estimate(NamedTuple):
    values: np.ndarray
    error: float


def approximate_means(
    gallery, references, k, *, quality=None, seed=0, memory_budget=DEFAULT_MEMORY_BUDGET
):
    """What `solver="approximate"` does, with a seed; None if exact means are preferable."""
    products = Products(gallery, references, memory_budget=memory_budget)
    sample = sample_means(products, k, seed=seed)
    quality = quality or choose_quality(len(gallery))
    model = learn_lists(products, k, quality, sample, seed=seed)
    if model is None:
        return None
    return Estimate(model.means(products)[0], model.error)


@pytest.fixture(scope="module")
def problem():
    gallery, references = topics(3000, 30_000)
    return gallery, references, top_means(Products(gallery, references), 64)


def test_the_default_leaves_a_small_part_of_the_spread(problem):
    gallery, references, exact = problem
    assert residual(approximate_means(gallery, references, 64).values, exact) < 0.03


def test_by_default_a_large_gallery_probes_fewer_lists():
    assert [choose_quality(n) for n in (10, 100_000, 100_001)] == [32, 32, 8]


def test_more_quality_leaves_less(problem):
    gallery, references, exact = problem
    left = [
        residual(approximate_means(gallery, references, 64, quality=q).values, exact)
        for q in (2, 8, 32)
    ]
    assert left[0] > 1.5 * left[1] > 2.25 * left[2]


@pytest.mark.parametrize("quality", [2, 8, 32])
def test_the_reported_error_is_seldom_too_low_and_not_far_too_high(problem, quality):
    gallery, references, exact = problem
    estimate = approximate_means(gallery, references, 64, quality=quality)
    made = residual(estimate.values, exact)
    assert 0.8 * made < estimate.error < 2.5 * made


def test_the_same_seed_gives_the_same_values_and_another_seed_others(problem):
    gallery, references, _ = problem
    first, again, other = (
        approximate_means(gallery, references, 64, seed=seed).values for seed in (1, 1, 2)
    )
    np.testing.assert_allclose(first, again, atol=1e-6)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("n_items", "n_references", "quality"), [(500, 3000, 8), (20, 20_000, 8), (500, 8000, 100)]
)
def test_there_is_no_model_where_lists_would_save_nothing(n_items, n_references, quality):
    gallery, references = topics(n_items, n_references)
    assert approximate_means(gallery, references, 16, quality=quality) is None


@pytest.fixture
def short_lists(monkeypatch):
    """Lists of 47 on average for a bank of 9,000."""
    monkeypatch.setattr(solvers, "_count_lists", lambda *_: 190)


def test_there_is_no_model_where_most_lists_are_too_short_for_k(short_lists):
    gallery, references = topics(400, 9000)
    # One list is never enough for 150, and seldom for 60.
    for k in (60, 150):
        assert approximate_means(gallery, references, k, quality=1) is None


def test_a_few_items_whose_lists_are_too_short_are_exact_among_the_others(short_lists):
    gallery, references = topics(2000, 9000)
    estimate = approximate_means(gallery, references, 64, quality=2)
    exact = top_means(Products(gallery, references), 64)
    n_exact = np.isclose(estimate.values, exact, atol=1e-6).sum()
    assert 600 < n_exact < 1500  # 500 of them are training items
    assert residual(estimate.values, exact) < 0.5


def test_a_budget_that_holds_no_sorted_bank_gives_the_same(problem):
    gallery, references, _ = problem
    some = Products(gallery, references).some_rows(np.arange(600)).rows
    wide, narrow = (
        approximate_means(some, references, 64, memory_budget=budget).values
        for budget in (2**29, 2**23)
    )
    np.testing.assert_allclose(wide, narrow, atol=1e-5)


def test_stored_halves_and_shards_are_read_as_they_are(problem, tmp_path):
    gallery, references, _ = problem
    halves = np.asarray(references).astype(np.float16)
    np.save(tmp_path / "bank_0.npy", halves[:11_000])
    np.save(tmp_path / "bank_1.npy", halves[11_000:])
    whole = approximate_means(gallery, open_embeddings(halves), 64).values
    mapped = open_embeddings(tmp_path, name="references")
    np.testing.assert_allclose(approximate_means(gallery, mapped, 64).values, whole, atol=1e-6)


def test_approximate_means_with_many_copies_are_still_close():
    gallery, _ = topics(600, 10)
    references = open_embeddings(np.tile(np.asarray(gallery)[:3], (4000, 1)))
    estimate = approximate_means(gallery, references, 32)
    exact = top_means(Products(gallery, references), 32)
    np.testing.assert_allclose(estimate.values, exact, atol=1e-4)


def test_a_gallery_of_equal_items_has_no_spread_to_miss():
    gallery, references = topics(2, 9000)
    same = open_embeddings(np.tile(np.asarray(gallery)[:1], (300, 1)))
    estimate = approximate_means(same, references, 32, quality=8)
    exact = top_means(Products(same, references), 32)
    np.testing.assert_allclose(estimate.values, exact, atol=1e-4)
    assert estimate.error == 0.0


def test_rows_that_are_no_unit_vectors_work_too():
    gallery, references = topics(1500, 20_000)
    rng = np.random.default_rng(0)
    long, bank = (
        open_embeddings(np.asarray(rows) * rng.uniform(0.5, 30, size=(len(rows), 1)))
        for rows in (gallery, references)
    )
    exact = top_means(Products(long, bank), 32)
    assert residual(approximate_means(long, bank, 32, quality=16).values, exact) < 0.1
