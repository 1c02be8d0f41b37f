"""Pruned means are the exact means for any data; only the work depends on the data."""

import dataclasses

import numpy as np
import pytest

import nnnorm
import nnnorm.means.grouping as grouping
import nnnorm.means.pruned as pruned
from nnnorm.io import Embeddings
from nnnorm.means.bounds import bounding_vectors, bounds_by_width, joint_moments, principal_basis
from nnnorm.means.grouping import group_similar
from nnnorm.means.pruned import pruned_means
from nnnorm.means.pruning_plan import is_worth_planning, plan_pruning
from nnnorm.scoring.blocks import Products
from nnnorm.scoring.topk import top_means

pytestmark = pytest.mark.slow


N_ITEMS, N_REFERENCES, DIM, K = 300, 17_000, 48, 20


def falling(rng, n, *, by=0.8):
    return rng.normal(size=(n, DIM)) * by ** np.arange(DIM)


def clustered(rng, n):
    centres = np.random.default_rng(5).normal(size=(40, DIM))
    return centres[rng.integers(0, 40, n)] + 0.3 * falling(rng, n)


def copies(rng, n):
    """Hundreds of equal scores."""
    return np.random.default_rng(5).normal(size=(60, DIM))[rng.integers(0, 60, n)]


def near_copies(rng, n):
    """Scores that differ in the last bits of a float32."""
    return copies(rng, n) * (1 + 1e-6 * rng.normal(size=(n, 1)))


def all_lengths(rng, n):
    """Rows of lengths from a thousandth to a thousand."""
    return falling(rng, n) * 10.0 ** rng.uniform(-3, 3, size=(n, 1))


def tiny(rng, n):
    """Rows whose squared norms are zero in float32."""
    return against_the_bounds(rng, n) * 1e-23


def next_to_nothing(rng, n):
    """Subnormal numbers, for which float32 has few bits."""
    return against_the_bounds(rng, n) * 1e-43


def huge(rng, n):
    return clustered(rng, n) * 1e15


def against_the_bounds(rng, n):
    """Nearly all rows in a few directions; the best scores of some items lie in the others."""
    rows = falling(rng, n, by=0.5)
    some = rng.permutation(n)[: n // 100]
    rows[some, -6:] += 3 * rng.normal(size=(len(some), 6))
    return rows


def flat(rng, n):
    return rng.normal(size=(n, DIM))


DATA = [
    falling, clustered, copies, near_copies, all_lengths, tiny, next_to_nothing, huge,
    against_the_bounds, flat,
]  # fmt: skip


def make(data, *, normalize=False):
    rng = np.random.default_rng(0)
    rows, columns = data(rng, N_ITEMS), data(rng, N_REFERENCES)
    if data in (tiny, next_to_nothing):
        columns *= 1e23 if data is tiny else 1e43  # so that products are not zero in float32
    if data in (tiny, next_to_nothing):  # which `open_embeddings` refuses
        return Products(as_embeddings(rows), as_embeddings(columns))
    return Products(
        nnnorm.open_embeddings(rows, normalize=normalize),
        nnnorm.open_embeddings(columns, normalize=normalize),
    )


def as_embeddings(rows):
    return Embeddings([rows.astype(np.float32)], name="rows")


def lengths(scores):
    """The largest score that an item may have, relative to which rounding is measured."""
    columns = scores.columns.rows(0, N_REFERENCES).astype(np.float64)
    rows = scores.rows.rows(0, scores.shape[0]).astype(np.float64)
    return np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=1).max()


# --- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
def test_no_score_is_above_its_bound_at_any_width(data):
    scores = make(data)
    items, references = scores.rows.rows(0, 50), scores.columns.rows(0, 4000)
    basis = principal_basis(joint_moments(scores.rows, scores.columns, np.random.default_rng(0)))
    exact = items.astype(np.float64) @ references.astype(np.float64).T
    widths = [1, 2, 7, 16, DIM - 1, DIM]
    for _, bounds in bounds_by_width(items, references, basis, widths):
        assert (bounds >= exact).all()


def test_a_bound_is_tight_where_the_first_coordinates_hold_nearly_everything():
    scores = make(falling, normalize=True)
    items, references = scores.rows.rows(0, 50), scores.columns.rows(0, 4000)
    basis = principal_basis(joint_moments(scores.rows, scores.columns, np.random.default_rng(0)))
    exact = items @ references.T
    slack = [
        (bounds - exact).max()
        for _, bounds in bounds_by_width(items, references, basis, [8, 16, 32])
    ]
    assert slack[0] > slack[1] > slack[2]
    assert slack[2] < 0.02


def test_bounds_of_a_width_are_products_of_bounding_vectors():
    scores = make(clustered)
    items, references = scores.rows.rows(0, 9), scores.columns.rows(0, 70)
    basis = principal_basis(joint_moments(scores.rows, scores.columns, np.random.default_rng(0)))
    ((partial, bounds),) = bounds_by_width(items, references, basis, [10])
    first = basis[:, :10]
    item_vectors = bounding_vectors(items, first, is_item=True)
    product = item_vectors @ bounding_vectors(references, first, is_item=False).T
    np.testing.assert_allclose(bounds, product, rtol=1e-5, atol=1e-5)
    partial_product = (items @ first) @ (references @ first).T
    np.testing.assert_allclose(partial, partial_product, rtol=1e-5, atol=1e-4)


def test_a_basis_is_orthonormal_and_sorted_by_variance():
    scores = make(falling)
    basis = principal_basis(joint_moments(scores.rows, scores.columns, np.random.default_rng(0)))
    np.testing.assert_allclose(basis.T @ basis, np.eye(DIM), atol=1e-5)
    energy = np.square(scores.columns.rows(0, N_REFERENCES) @ basis).sum(axis=0)
    assert (np.diff(energy[:20]) < 0).all()


# --- the means ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("k", [1, K, 500])
def test_pruned_means_are_the_exact_means(data, k):
    scores = make(data)
    found = pruned_means(scores, k, plan_pruning(scores, k))
    wrong = np.abs(found - top_means(scores, k)) / lengths(scores)
    assert wrong.max() < 1e-6


@pytest.mark.parametrize("n_items", [1, 23, 24, 25, 48])
def test_any_number_of_items_will_do(n_items):
    scores = make(clustered).some_rows(np.arange(n_items))
    found = pruned_means(scores, K, plan_pruning(scores, K))
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_a_threshold_that_is_too_high_is_noticed_and_costs_only_time():
    scores = make(clustered)
    plan = plan_pruning(scores, K)
    every = scores.rows.rows(0, N_ITEMS) @ scores.columns.rows(0, N_REFERENCES).T
    # A sample of the best references only instead of a random one.
    best = np.argsort(-every.max(axis=0))[: len(plan.sample)]
    found = pruned_means(scores, K, dataclasses.replace(plan, sample=np.sort(best)))
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_a_threshold_that_is_too_low_costs_only_time():
    scores = make(clustered)
    plan = plan_pruning(scores, K)
    every = scores.rows.rows(0, N_ITEMS) @ scores.columns.rows(0, N_REFERENCES).T
    worst = np.argsort(every.max(axis=0))[: len(plan.sample)]
    found = pruned_means(scores, K, dataclasses.replace(plan, sample=np.sort(worst)))
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_stored_columns_are_widened_once_if_there_is_room_and_read_where_they_are_if_not(
    tmp_path, dtype
):
    rng = np.random.default_rng(0)
    for name, n in (("gallery", N_ITEMS), ("bank", N_REFERENCES)):
        np.save(tmp_path / f"{name}.npy", clustered(rng, n).astype(dtype))
    scores = Products(
        nnnorm.open_embeddings(tmp_path / "gallery.npy", normalize=True),
        nnnorm.open_embeddings(tmp_path / "bank.npy", normalize=True),
    )
    plan = plan_pruning(scores, K)
    assert plan.is_widened
    for is_widened in (True, False):
        plan = dataclasses.replace(plan, is_widened=is_widened)
        found = pruned_means(scores, K, plan)
        np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_a_small_budget_gives_the_same_means():
    scores = make(falling)
    budget = 20 * 2**20
    plan = plan_pruning(scores, K, memory_budget=budget)
    assert 4 * N_REFERENCES * (plan.directions.shape[1] + 2) <= budget // 2
    found = pruned_means(scores, K, plan, memory_budget=budget)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5, atol=1e-5)


def test_opposite_residuals_make_thresholds_too_high_and_the_plan_counts_that_work(monkeypatch):
    rng = np.random.default_rng(0)
    head, tail = rng.normal(size=(30, 8)), 0.5 * rng.normal(size=(30, DIM - 8))
    topic, past = rng.integers(0, 30, N_ITEMS), rng.integers(0, 30, N_REFERENCES)
    rows = np.hstack([head[topic], tail[topic]]) + 0.01 * rng.normal(size=(N_ITEMS, DIM))
    columns = np.hstack([head[past], -tail[past]]) + 0.01 * rng.normal(size=(N_REFERENCES, DIM))
    scores = Products(nnnorm.open_embeddings(rows), nnnorm.open_embeddings(columns))
    plan = plan_pruning(scores, K)
    found = pruned_means(scores, K, plan)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)
    narrow = dataclasses.replace(plan, directions=plan.directions[:, :6].copy())
    in_full, unproven = pruned.exact_strip, []

    def note(items, *rest):
        unproven.append(len(items))
        return in_full(items, *rest)

    monkeypatch.setattr(pruned, "exact_strip", note)
    found = pruned_means(scores, K, narrow)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)
    assert sum(unproven) == N_ITEMS
    assert plan.work > 1


def test_a_group_with_too_many_candidates_is_scored_against_all_references():
    scores = make(flat)
    plan = plan_pruning(scores, K)
    narrow = dataclasses.replace(plan, directions=plan.directions[:, :1].copy())
    found = pruned_means(scores, K, narrow)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_what_the_caller_s_progress_raises_comes_out():
    scores = make(falling)

    def full(done, total):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        pruned_means(scores, K, plan_pruning(scores, K), progress=full)


@pytest.mark.parametrize("k", [0, -1, N_REFERENCES + 1])
def test_k_is_checked(k):
    with pytest.raises(nnnorm.NNNormError, match="k must be between 1 and the 17000 columns"):
        plan_pruning(make(falling), k)


def test_progress_counts_every_score_once():
    scores = make(falling)
    seen = []
    pruned_means(
        scores, K, plan_pruning(scores, K), progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (N_ITEMS * N_REFERENCES,) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# --- the plan -----------------------------------------------------------------------------------


def test_a_falling_spectrum_saves_work_and_a_flat_one_does_not():
    little, much = (plan_pruning(make(data, normalize=True), K) for data in (falling, flat))
    assert little.work < 1 < much.work


def halves(n, first, second):
    """Rows of which half have one spectrum and half the other."""
    rng = np.random.default_rng(n)
    rows = [rng.normal(size=(n // 2, len(side))) * side for side in (first, second)]
    return nnnorm.open_embeddings(np.concatenate(rows))


def test_bounds_are_wide_enough_for_both_halves_of_a_mixed_gallery():
    narrow, wide = (np.full(256, 0.004) for _ in range(2))
    narrow[:12] = 0.85 ** np.arange(12)
    wide[12:92] = 0.3 * 0.97 ** np.arange(80)
    sides = (halves(n, narrow, wide) for n in (600, N_REFERENCES))
    plan = plan_pruning(Products(*sides), 5)
    assert plan.directions.shape[1] > 40  # 14 are enough for the first half
    assert plan.work < 0.6


def test_a_gallery_of_which_half_is_flat_is_not_given_up():
    falls = 0.9 ** np.arange(256)
    bank = halves(N_REFERENCES, *2 * [np.hypot(falls, 0.2)])
    plan = plan_pruning(Products(halves(600, falls, np.ones(256)), bank), 5)
    assert plan.work < np.inf


def test_a_flat_spectrum_is_recognised_before_anything_is_grouped(monkeypatch):
    monkeypatch.setattr("nnnorm.means.pruning_plan.group_similar", None)  # a call would fail
    monkeypatch.setattr(pruned, "group_similar", None)
    scores = make(flat, normalize=True)
    plan = plan_pruning(scores, K)
    assert plan.work == np.inf
    np.testing.assert_allclose(pruned_means(scores, K, plan), top_means(scores, K), rtol=1e-5)


def test_the_work_counts_the_grouping_of_a_large_gallery_for_a_small_bank():
    rng = np.random.default_rng(0)
    columns = nnnorm.open_embeddings(falling(rng, N_REFERENCES))
    work = [
        plan_pruning(Products(nnnorm.open_embeddings(falling(rng, n)), columns), K).work
        for n in (1000, 9000)
    ]
    assert work[1] > work[0] + 0.1


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "is_worth"), [(5000, 29_000, False), (50_000, 500_000, True)]
)
def test_a_plan_is_made_only_where_it_is_cheap_beside_the_whole_product(
    monkeypatch, n_rows, n_columns, is_worth
):
    monkeypatch.setattr("nnnorm.means.pruning_plan.count_threads", lambda: 2)
    rows, columns = (
        nnnorm.open_embeddings(np.broadcast_to(np.float16(1), (n, 512))) for n in (2, 3)
    )
    scores = Products(rows, columns)
    scores.shape = n_rows, n_columns
    assert is_worth_planning(scores) == is_worth


@pytest.mark.parametrize(
    ("n_references", "k", "budget"),
    [(10_000, 5, 2**29), (17_000, 3000, 2**29), (17_000, 5, 2**20)],
    ids=["too few references", "k too large", "no memory for bounds"],
)
def test_there_is_no_plan_where_there_is_nothing_to_gain(n_references, k, budget):
    rng = np.random.default_rng(0)
    rows, columns = (nnnorm.open_embeddings(falling(rng, n)) for n in (40, n_references))
    assert plan_pruning(Products(rows, columns), k, memory_budget=budget) is None


def test_scores_with_an_offset_are_not_pruned():
    scores = make(falling)
    offset = np.ones(N_REFERENCES, dtype=np.float32)
    assert plan_pruning(Products(scores.rows, scores.columns, offset=offset), K) is None


@pytest.mark.parametrize("n_threads", [1, 4, 16])
def test_many_threads_share_the_memory_budget(monkeypatch, n_threads):
    for module in ("pruned", "pruning_plan"):
        monkeypatch.setattr(f"nnnorm.means.{module}.count_threads", lambda: n_threads)
    scores = make(falling)
    plan = plan_pruning(scores, K)
    found = pruned_means(scores, K, plan)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
@pytest.mark.parametrize(
    ("budget", "part_size"),
    [(2**20, 8192), (2**16, 8192), (2**20, 80)],
    ids=["at once", "slab by slab", "halved first"],
)
def test_every_item_is_in_the_order_once_and_similar_items_are_neighbours(
    monkeypatch, scale, budget, part_size
):
    rng = np.random.default_rng(0)
    scores = make(clustered, normalize=True)
    rows = as_embeddings(scores.rows.rows(0, N_ITEMS) * np.float32(scale))
    basis = principal_basis(joint_moments(scores.rows, scores.columns, rng))
    monkeypatch.setattr(grouping, "_PART_SIZE", part_size)
    order = group_similar(rows, basis[:, :32], group_size=24, memory_budget=budget)
    assert sorted(order) == list(range(N_ITEMS))
    rows = scores.rows.take(order)
    inside = [rows[start : start + 24] @ rows[start : start + 24].T for start in range(0, 288, 24)]
    assert np.mean(inside) > np.mean(rows @ rows.T) + 0.15
