"""Screened means are the exact means, whatever the data does; only their cost depends on it."""

import dataclasses

import numpy as np
import pytest

import nnnorm
import nnnorm.means.grouping as order_module
import nnnorm.means.pruned as screen_module
from nnnorm.means.bounds import bounding_heads, bounds_of, principal_basis
from nnnorm.means.grouping import similar_together
from nnnorm.means.pruned import screened_means
from nnnorm.means.pruning_plan import plan_screen
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
    """Scores that tie in hundreds."""
    return np.random.default_rng(5).normal(size=(60, DIM))[rng.integers(0, 60, n)]


def near_copies(rng, n):
    """Scores that differ in the last bits of a float32."""
    return copies(rng, n) * (1 + 1e-6 * rng.normal(size=(n, 1)))


def all_lengths(rng, n):
    """Rows of lengths from a thousandth to a thousand."""
    return falling(rng, n) * 10.0 ** rng.uniform(-3, 3, size=(n, 1))


def tiny(rng, n):
    """Rows whose squared lengths are nothing in float32."""
    return against_the_heads(rng, n) * 1e-23


def next_to_nothing(rng, n):
    """Numbers for which float32 has few bits left."""
    return against_the_heads(rng, n) * 1e-43


def huge(rng, n):
    return clustered(rng, n) * 1e15


def against_the_heads(rng, n):
    """Nearly all rows in a few directions; the best scores of some items lie in the others."""
    rows = falling(rng, n, by=0.5)
    some = rng.permutation(n)[: n // 100]
    rows[some, -6:] += 3 * rng.normal(size=(len(some), 6))
    return rows


def flat(rng, n):
    return rng.normal(size=(n, DIM))


DATA = [
    falling, clustered, copies, near_copies, all_lengths, tiny, next_to_nothing, huge,
    against_the_heads, flat,
]  # fmt: skip


def make(data, *, normalize=False):
    rng = np.random.default_rng(0)
    rows, columns = data(rng, N_ITEMS), data(rng, N_REFERENCES)
    if data in (tiny, next_to_nothing):
        columns *= (
            1e23 if data is tiny else 1e43
        )  # the product of two such rows is nothing for anybody
    return Products(
        nnnorm.open_embeddings(rows, normalize=normalize),
        nnnorm.open_embeddings(columns, normalize=normalize),
    )


def lengths(scores):
    """What a score of an item may be, so what its rounding is measured by."""
    columns = scores.columns.rows(0, N_REFERENCES).astype(np.float64)
    rows = scores.rows.rows(0, scores.shape[0]).astype(np.float64)
    return np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=1).max()


# --- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
def test_no_score_is_above_its_bound_at_any_width(data):
    scores = make(data)
    items, references = scores.rows.rows(0, 50), scores.columns.rows(0, 4000)
    basis = principal_basis(scores.rows, scores.columns, np.random.default_rng(0))
    exact = items.astype(np.float64) @ references.astype(np.float64).T
    widths = [1, 2, 7, 16, DIM - 1, DIM]
    for _, bounds in bounds_of(items, references, basis, widths):
        assert (bounds >= exact).all()


def test_a_bound_is_close_where_the_head_holds_nearly_everything():
    scores = make(falling, normalize=True)
    items, references = scores.rows.rows(0, 50), scores.columns.rows(0, 4000)
    basis = principal_basis(scores.rows, scores.columns, np.random.default_rng(0))
    exact = items @ references.T
    slack = [
        (bounds - exact).max() for _, bounds in bounds_of(items, references, basis, [8, 16, 32])
    ]
    assert slack[0] > slack[1] > slack[2]
    assert slack[2] < 0.02


def test_bounds_of_a_width_are_products_of_heads():
    scores = make(clustered)
    items, references = scores.rows.rows(0, 9), scores.columns.rows(0, 70)
    basis = principal_basis(scores.rows, scores.columns, np.random.default_rng(0))
    ((likely, bounds),) = bounds_of(items, references, basis, [10])
    first = basis[:, :10]
    item_heads = bounding_heads(items, first, is_item=True)
    product = item_heads @ bounding_heads(references, first, is_item=False).T
    np.testing.assert_allclose(bounds, product, rtol=1e-5, atol=1e-5)
    likely_product = (items @ first) @ (references @ first).T
    np.testing.assert_allclose(likely, likely_product, rtol=1e-5, atol=1e-4)


def test_a_basis_is_orthonormal_and_puts_the_longest_direction_first():
    scores = make(falling)
    basis = principal_basis(scores.rows, scores.columns, np.random.default_rng(0))
    np.testing.assert_allclose(basis.T @ basis, np.eye(DIM), atol=1e-5)
    energy = np.square(scores.columns.rows(0, N_REFERENCES) @ basis).sum(axis=0)
    assert (np.diff(energy[:20]) < 0).all()


# --- the means ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("k", [1, K, 500])
def test_screened_means_are_the_exact_means(data, k):
    scores = make(data)
    found = screened_means(scores, k, plan_screen(scores, k))
    wrong = np.abs(found - top_means(scores, k)) / lengths(scores)
    assert wrong.max() < 1e-6


@pytest.mark.parametrize("n_items", [1, 23, 24, 25, 48])
def test_any_number_of_items_will_do(n_items):
    scores = make(clustered).some_rows(np.arange(n_items))
    found = screened_means(scores, K, plan_screen(scores, K))
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_a_floor_that_was_guessed_too_high_is_noticed_and_costs_only_time():
    scores = make(clustered)
    screen = plan_screen(scores, K)
    every = scores.rows.rows(0, N_ITEMS) @ scores.columns.rows(0, N_REFERENCES).T
    # A sample of the best references only, though it should be one of all.
    best = np.argsort(-every.max(axis=0))[: len(screen.sample)]
    found = screened_means(scores, K, dataclasses.replace(screen, sample=np.sort(best)))
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_a_floor_that_was_guessed_too_low_costs_only_time():
    scores = make(clustered)
    screen = plan_screen(scores, K)
    every = scores.rows.rows(0, N_ITEMS) @ scores.columns.rows(0, N_REFERENCES).T
    worst = np.argsort(every.max(axis=0))[: len(screen.sample)]
    found = screened_means(scores, K, dataclasses.replace(screen, sample=np.sort(worst)))
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
    screen = plan_screen(scores, K)
    assert screen.is_widened
    for is_widened in (True, False):
        screen = dataclasses.replace(screen, is_widened=is_widened)
        found = screened_means(scores, K, screen)
        np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_a_small_budget_gives_the_same_means():
    scores = make(falling)
    budget = 20 * 2**20
    screen = plan_screen(scores, K, memory_budget=budget)
    assert 4 * N_REFERENCES * (screen.directions.shape[1] + 2) <= budget // 2
    found = screened_means(scores, K, screen, memory_budget=budget)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5, atol=1e-5)


def test_opposite_tails_make_floors_too_high_and_the_plan_counts_what_that_costs(monkeypatch):
    rng = np.random.default_rng(0)
    head, tail = rng.normal(size=(30, 8)), 0.5 * rng.normal(size=(30, DIM - 8))
    topic, past = rng.integers(0, 30, N_ITEMS), rng.integers(0, 30, N_REFERENCES)
    rows = np.hstack([head[topic], tail[topic]]) + 0.01 * rng.normal(size=(N_ITEMS, DIM))
    columns = np.hstack([head[past], -tail[past]]) + 0.01 * rng.normal(size=(N_REFERENCES, DIM))
    scores = Products(nnnorm.open_embeddings(rows), nnnorm.open_embeddings(columns))
    screen = plan_screen(scores, K)
    found = screened_means(scores, K, screen)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)
    narrow = dataclasses.replace(screen, directions=screen.directions[:, :6].copy())
    in_full, unproven = screen_module._Bank._in_full, []

    def note(bank, items, stop):
        unproven.append(len(items))
        return in_full(bank, items, stop)

    monkeypatch.setattr(screen_module._Bank, "_in_full", note)
    found = screened_means(scores, K, narrow)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)
    assert sum(unproven) == N_ITEMS
    assert screen.cost > 1


def test_a_group_that_wants_too_much_is_scored_with_everything():
    scores = make(flat)
    screen = plan_screen(scores, K)
    narrow = dataclasses.replace(screen, directions=screen.directions[:, :1].copy())
    found = screened_means(scores, K, narrow)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5)


def test_what_the_caller_s_progress_raises_comes_out():
    scores = make(falling)

    def full(done, total):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        screened_means(scores, K, plan_screen(scores, K), progress=full)


@pytest.mark.parametrize("k", [0, -1, N_REFERENCES + 1])
def test_k_is_checked(k):
    with pytest.raises(nnnorm.NNNormError, match="k must be between 1 and the 17000 columns"):
        plan_screen(make(falling), k)


def test_progress_counts_every_score_once():
    scores = make(falling)
    seen = []
    screened_means(
        scores, K, plan_screen(scores, K), progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (N_ITEMS * N_REFERENCES,) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# --- the plan -----------------------------------------------------------------------------------


def test_a_falling_spectrum_is_cheap_and_a_flat_one_is_not():
    cheap, dear = (plan_screen(make(data, normalize=True), K) for data in (falling, flat))
    assert cheap.cost < 1 < dear.cost


def halves(n, first, second):
    """Rows of which half have one spectrum and half the other."""
    rng = np.random.default_rng(n)
    rows = [rng.normal(size=(n // 2, len(side))) * side for side in (first, second)]
    return nnnorm.open_embeddings(np.concatenate(rows))


def test_heads_are_wide_enough_for_both_halves_of_a_mixed_gallery():
    narrow, wide = (np.full(256, 0.004) for _ in range(2))
    narrow[:12] = 0.85 ** np.arange(12)
    wide[12:92] = 0.3 * 0.97 ** np.arange(80)
    sides = (halves(n, narrow, wide) for n in (600, N_REFERENCES))
    screen = plan_screen(Products(*sides), 5)
    assert screen.directions.shape[1] > 40  # 14 are enough for the first half
    assert screen.cost < 0.6


def test_a_gallery_of_which_half_is_flat_is_not_given_up():
    falls = 0.9 ** np.arange(256)
    bank = halves(N_REFERENCES, *2 * [np.hypot(falls, 0.2)])
    screen = plan_screen(Products(halves(600, falls, np.ones(256)), bank), 5)
    assert screen.cost < np.inf
    assert screen.order.tolist() != list(range(600))


def test_a_plan_that_can_t_pay_is_given_up_before_items_are_ordered():
    screen = plan_screen(make(flat, normalize=True), K)
    assert screen.cost == np.inf
    assert screen.order.tolist() == list(range(N_ITEMS))


def test_a_large_gallery_of_short_rows_is_not_put_in_order_for_a_small_bank():
    rng = np.random.default_rng(0)
    rows, columns = (nnnorm.open_embeddings(falling(rng, n)) for n in (9000, N_REFERENCES))
    assert plan_screen(Products(rows, columns), K).cost == np.inf


@pytest.mark.parametrize(
    ("n_references", "k", "budget"),
    [(10_000, 5, 2**29), (17_000, 3000, 2**29), (17_000, 5, 2**20)],
    ids=["too few references", "k too large", "no room for heads"],
)
def test_there_is_no_plan_where_there_is_nothing_to_gain(n_references, k, budget):
    rng = np.random.default_rng(0)
    rows, columns = (nnnorm.open_embeddings(falling(rng, n)) for n in (40, n_references))
    assert plan_screen(Products(rows, columns), k, memory_budget=budget) is None


def test_scores_with_an_offset_are_not_screened():
    scores = make(falling)
    offset = np.ones(N_REFERENCES, dtype=np.float32)
    assert plan_screen(Products(scores.rows, scores.columns, offset=offset), K) is None


@pytest.mark.parametrize("n_threads", [1, 4, 16])
def test_many_threads_share_the_room_there_is(monkeypatch, n_threads):
    for module in ("pruned", "pruning_plan"):
        monkeypatch.setattr(f"nnnorm.means.{module}.count_threads", lambda: n_threads)
    scores = make(falling)
    screen = plan_screen(scores, K)
    found = screened_means(scores, K, screen)
    np.testing.assert_allclose(found, top_means(scores, K), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
@pytest.mark.parametrize(
    ("budget", "n_part"),
    [(2**20, 8192), (2**16, 8192), (2**20, 80)],
    ids=["at once", "slab by slab", "halved first"],
)
def test_every_item_stands_in_the_order_once_and_similar_ones_together(
    monkeypatch, scale, budget, n_part
):
    rng = np.random.default_rng(0)
    scores = make(clustered, normalize=True)
    rows = nnnorm.open_embeddings(scores.rows.rows(0, N_ITEMS) * np.float32(scale))
    basis = principal_basis(scores.rows, scores.columns, rng)
    monkeypatch.setattr(order_module, "_N_PART", n_part)
    order = similar_together(rows, basis[:, :32], group=24, memory_budget=budget)
    assert sorted(order) == list(range(N_ITEMS))
    rows = scores.rows.take(order)
    inside = [rows[start : start + 24] @ rows[start : start + 24].T for start in range(0, 288, 24)]
    assert np.mean(inside) > np.mean(rows @ rows.T) + 0.15
