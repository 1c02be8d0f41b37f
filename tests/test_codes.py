"""Coded heads screen as heads do: nothing that matters is left out, and the means are the same."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
from test_screen import DATA, DIM, N_REFERENCES, K, falling, flat, lengths, make

import nnnorm
import nnnorm.screen_plan as plan_module
from nnnorm.codes import CodedHeads, coded_width, coded_widths, mixed, widest_coded
from nnnorm.heads import Heads, bounding_heads, principal_basis
from nnnorm.int8 import int8_by
from nnnorm.scores import Products
from nnnorm.screen import screened_means
from nnnorm.screen_plan import plan_screen
from nnnorm.topk import top_means

WAYS = ["numkong", "torch"]


def as_if_quick(name="numkong"):
    return dataclasses.replace(int8_by(name), work=(0.0, 0.01))


def reached_of(heads, items, floors, n_columns):
    found = np.zeros((len(items), n_columns), dtype=bool)
    for columns, reached in heads.reached(items, floors, threading.Event()):
        found[:, columns] = reached
    return found


def heads_of(scores, width, n_items=40, n_references=3000):
    basis = principal_basis(scores.rows, scores.columns, np.random.default_rng(0))
    directions = mixed(basis[:, :width])
    items, references = scores.rows.rows(0, n_items), scores.columns.rows(0, n_references)
    exact = items.astype(np.float64) @ references.astype(np.float64).T
    return (
        exact,
        bounding_heads(items, directions, is_item=True),
        bounding_heads(references, directions, is_item=False),
    )


# --- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 7, DIM])
@pytest.mark.parametrize("data", DATA)
def test_whatever_reaches_a_floor_is_found(data, width, way):
    exact, items, references = heads_of(make(data), width)
    coded = CodedHeads(len(references), int8_by(way), block=512)
    for start in range(0, len(references), 1024):
        coded.fill(start, references[start : start + 1024])
    for rank in (1, 10, 1000):
        floors = np.partition(exact, -rank, axis=1)[:, -rank]  # exactly those of a score
        found = reached_of(coded, items, floors, len(references))
        assert found[exact >= floors[:, None]].all()


def made_heads(rows, last):
    """Heads that hold everything of rows; `last` is their length, or what rounding may take."""
    left = np.zeros(len(rows))
    return np.column_stack([rows, left, np.broadcast_to(last, len(rows))]).astype(np.float32)


def residual(row):
    """What is lost when a row is coded with a step of its own, as a direction."""
    step = np.abs(row).max() / 127
    lost = row - step * np.rint(row / step)
    return lost / np.linalg.norm(lost)


def is_reached(items, references, row):
    """Whether reference `row` is found where the floor is the very score it has with the item."""
    coded = CodedHeads(len(references), int8_by("numkong"), block=64)
    lengths = np.linalg.norm(references, axis=1)
    asked = made_heads(references, lengths)
    coded.fill(0, asked)
    asking = made_heads(items, 0.0)
    floor = asking[:, :-2].astype(np.float64) @ asked[row, :-2].astype(np.float64)
    return bool(reached_of(coded, asking, floor, len(references))[0, row])


def test_a_reference_along_what_its_item_lost_is_found():
    rng = np.random.default_rng(0)
    for _ in range(200):
        item = rng.normal(size=8)
        far = 1000 * residual(item)  # long, among short ones
        references = np.vstack([0.1 * rng.normal(size=(20, 8)), far])
        assert is_reached(item[None], references, 20)


def test_a_reference_that_lost_along_its_item_is_found():
    rng = np.random.default_rng(0)
    for _ in range(200):
        reference = rng.normal(size=8)
        item = residual(reference)
        largest = np.abs(reference).max()
        coded_exactly = largest * rng.choice([-1, 0, 1], size=(20, 8))  # they lose nothing
        coded_exactly[:, 0] = largest
        assert is_reached(item[None], np.vstack([coded_exactly, reference]), 20)


def test_what_is_left_beyond_heads_is_never_rounded_down():
    rng = np.random.default_rng(0)
    for _ in range(200):
        item, reference = (made_heads(rng.normal(size=(1, 8)), last) for last in (0.0, 1.0))
        item[0, -2], reference[0, -2] = 10 ** rng.uniform(-3, 3, size=2)
        reference[0, -1] = np.linalg.norm(reference[0, :-1])
        coded = CodedHeads(1, int8_by("numkong"), block=1)
        coded.fill(0, reference)
        floor = item[:, :-1].astype(np.float64) @ reference[0, :-1].astype(np.float64)
        assert reached_of(coded, item, floor, 1).all()


def test_whoever_stops_gets_no_more_blocks():
    _, items, references = heads_of(make(flat), DIM)
    coded = CodedHeads(len(references), int8_by("numkong"), block=512)
    coded.fill(0, references)
    stop = threading.Event()
    blocks = coded.reached(items, np.zeros(len(items), dtype=np.float32), stop)
    next(blocks)
    stop.set()
    assert list(blocks) == []


@pytest.mark.parametrize("width", [24, DIM])
def test_codes_find_little_more_than_heads_do(width):
    exact, items, references = heads_of(make(flat, normalize=True), width)
    plain = Heads(len(references), width, block=512)
    coded = CodedHeads(len(references), int8_by("numkong"), block=512)
    for heads in (plain, coded):
        heads.fill(0, references)
    floors = np.partition(exact, -30, axis=1)[:, -30].astype(np.float32)
    share, more = (reached_of(h, items, floors, len(references)).mean() for h in (plain, coded))
    assert share <= more < share + 0.04


@pytest.mark.parametrize("data", DATA)
def test_products_of_codes_are_those_of_heads_nearly_in_some_order(data):
    _, items, references = heads_of(make(data), DIM)
    references[:, DIM:] = 0
    coded = CodedHeads(len(references), int8_by("numkong"), block=512)
    coded.fill(0, references)
    found, expected = coded.products(items), items @ references.T
    assert found.dtype == np.float32
    lengths = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (items, references))
    longest = next(lengths) * next(lengths).max()
    wrong = np.abs(np.sort(found, axis=1) - np.sort(expected, axis=1)).max(axis=1) / longest
    assert wrong.max() < 0.01


def test_items_and_references_of_nothing_but_zeros_are_coded():
    rows = np.zeros((3, 8), dtype=np.float32)
    directions = np.eye(8, dtype=np.float32)
    coded = CodedHeads(3, int8_by("numkong"), block=2)
    coded.fill(0, bounding_heads(rows, directions, is_item=False))
    items = bounding_heads(rows, directions, is_item=True)
    assert reached_of(coded, items, np.zeros(3, dtype=np.float32), 3).all()
    assert not reached_of(coded, items, np.ones(3, dtype=np.float32), 3).any()


def test_mixed_directions_span_the_same_and_share_it_evenly():
    directions = np.eye(64, dtype=np.float32)[:, :32]
    turned = mixed(directions)
    np.testing.assert_allclose(turned.T @ turned, np.eye(32), atol=1e-6)
    row = np.array([1.0, *np.zeros(63)], dtype=np.float32)
    assert np.linalg.norm(row @ turned) == pytest.approx(1.0, abs=1e-6)
    assert np.abs(row @ turned).max() < 0.7


@pytest.mark.parametrize(
    ("widest", "widths"),
    [
        (20, [20]),
        (60, [60]),
        (64, [60]),
        (256, [60, 124, 188, 252]),
        (300, [60, 124, 188, 252, 300]),
    ],
)
def test_widths_are_whole_for_the_processor_but_for_the_widest(widest, widths):
    assert coded_widths(widest) == widths
    for width in widths[:-1]:
        assert coded_width(width) == width + 4


# --- the means ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("k", [1, K, 500])
def test_screened_means_are_the_exact_means(data, k, way, monkeypatch):
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: as_if_quick(way))
    scores = make(data)
    screen = plan_screen(scores, k)
    screen = dataclasses.replace(screen, directions=mixed(screen.directions), int8=int8_by(way))
    wrong = np.abs(screened_means(scores, k, screen) - top_means(scores, k)) / lengths(scores)
    assert wrong.max() < 1e-6


@pytest.mark.parametrize("n_items", [1, 23, 25])
@pytest.mark.parametrize("n_references", [16_384, 17_000])
def test_any_number_of_items_and_references_will_do(n_items, n_references):
    rng = np.random.default_rng(0)
    sides = (nnnorm.open_embeddings(falling(rng, n)) for n in (n_items, n_references))
    scores = Products(*sides)
    screen = plan_screen(scores, K)
    screen = dataclasses.replace(screen, int8=int8_by("numkong"))
    np.testing.assert_allclose(screened_means(scores, K, screen), top_means(scores, K), rtol=1e-5)


# --- the plan -----------------------------------------------------------------------------------


def wide(n_items, n_references, dim=256):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(n, dim)) for n in (n_items, n_references))
    return Products(*(nnnorm.open_embeddings(some, normalize=True) for some in rows))


def test_where_int8_is_quick_even_a_flat_spectrum_is_screened(monkeypatch):
    scores = wide(3000, N_REFERENCES)
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: None)
    assert plan_screen(scores, 5).cost == np.inf
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: as_if_quick())
    screen = plan_screen(scores, 5)
    assert screen.int8.name == "numkong"
    assert screen.cost < 0.9
    np.testing.assert_allclose(screened_means(scores, 5, screen), top_means(scores, 5), rtol=1e-5)


@pytest.mark.parametrize("work", [(0.0, 0.9), (np.inf, np.inf)])
def test_where_int8_is_slow_nothing_is_coded(monkeypatch, work):
    slow = dataclasses.replace(int8_by("numkong"), work=work)
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: slow)
    assert plan_screen(make(falling), K).int8 is None


@pytest.mark.parametrize("dim", [8, 60, 61, 512])
def test_codes_fit_into_the_room_there_is(dim):
    for row_bytes in range(0, 700, 50):
        width = widest_coded(dim, row_bytes)
        assert width <= dim
        if width:
            coded = CodedHeads(2048, int8_by("numkong"), block=2048)
            coded.fill(0, np.ones((2048, width + 2), dtype=np.float32))
            assert 2048 * width < coded.nbytes <= 2048 * row_bytes
    assert width == dim


def test_within_a_small_budget_the_means_are_the_same(monkeypatch):
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: as_if_quick())
    scores, budget = wide(3000, N_REFERENCES), 40 * 2**20
    screen = plan_screen(scores, 5, memory_budget=budget)
    assert screen.int8 is not None
    found = screened_means(scores, 5, screen, memory_budget=budget)
    np.testing.assert_allclose(found, top_means(scores, 5), rtol=1e-5)


def test_where_not_even_the_narrowest_codes_fit_heads_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: as_if_quick())
    screen = plan_screen(make(falling), 5, memory_budget=2 * 80 * N_REFERENCES)
    assert screen.int8 is None


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_leaves_torch_as_it_is(monkeypatch, way):
    monkeypatch.setattr(plan_module, "fastest_int8", lambda: as_if_quick(way))
    scores = wide(1500, N_REFERENCES, dim=128)
    before = torch.get_num_threads()
    with torch.inference_mode():
        plan_screen(scores, 5)
    assert torch.get_num_threads() == before
    screen = plan_screen(scores, 5)
    assert screen.int8 is not None
    np.testing.assert_allclose(screened_means(scores, 5, screen), top_means(scores, 5), rtol=1e-5)
