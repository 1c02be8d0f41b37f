import multiprocessing
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from nnnorm import NNNormError, scoring
from nnnorm.embeddings import open_embeddings, open_matrix
from nnnorm.scoring import (
    Matrix,
    Products,
    count_threads,
    in_threads,
    strips_in_order,
    top_k,
    top_means,
)
from nnnorm.softmax import log_mean_exp
from tests import reference

BUDGET = 2**20  # the smallest allowed: many blocks even on small problems


def products(rows, columns, budget=BUDGET, **kw):
    return Products(open_embeddings(rows), open_embeddings(columns), memory_budget=budget, **kw)


def matrix(scores):
    return Matrix(open_matrix(scores, name="scores"))


@pytest.fixture
def blocks(monkeypatch):
    """Make blocks tiny, so that small problems cross many borders."""

    def set_sizes(n_strip, n_block):
        monkeypatch.setattr(scoring, "_plan", lambda *_: (n_strip, n_block))

    return set_sizes


@pytest.mark.slow
@settings(max_examples=40)
@given(
    n_strip=st.integers(1, 30),
    n_block=st.integers(1, 70),
    k=st.integers(1, 57),
)
def test_block_size_changes_nothing(n_strip, n_block, k):
    rng = np.random.default_rng(3)
    rows, columns = rng.normal(size=(23, 12)), rng.normal(size=(57, 12))
    scores = rows @ columns.T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_plan", lambda *_: (n_strip, n_block))
        found = top_k(products(rows, columns), k)
        means = top_means(products(rows, columns), k)
        logs = log_mean_exp(products(rows, columns), [0.01, 3.0])
    np.testing.assert_array_equal(found.indices, reference.rank(scores, k))
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :k], atol=1e-5)
    np.testing.assert_allclose(means, reference.m_k(scores, k), atol=1e-5)
    for log, beta in zip(logs, [0.01, 3.0], strict=True):
        expected = reference.log_sum_exp(scores, beta) - np.log(57)
        np.testing.assert_allclose(log, expected, rtol=2e-6, atol=1e-7)


@given(
    scores=st.lists(st.lists(st.integers(-2, 2), min_size=9, max_size=9), min_size=1, max_size=5),
    k=st.integers(1, 9),
    n_block=st.integers(1, 9),
)
def test_equal_scores_stand_in_the_order_of_their_columns(scores, k, n_block):
    dense = np.array(scores, dtype=float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_plan", lambda *_: (2, n_block))
        found = top_k(matrix(dense), k)
    np.testing.assert_array_equal(found.indices, reference.rank(dense, k))
    np.testing.assert_array_equal(found.scores, -np.sort(-dense, axis=1)[:, :k])


def test_a_row_of_one_single_value_gives_the_first_columns():
    found = top_k(matrix(np.full((3, 5000), 0.25)), 7)
    np.testing.assert_array_equal(found.indices, np.tile(np.arange(7), (3, 1)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_dtype_order_and_mapping_change_nothing(tmp_path, small, dtype, order):
    gallery, references = small.gallery.astype(dtype), small.references.astype(dtype)
    expected = reference.m_k(gallery.astype(float) @ references.astype(float).T, 5)
    np.save(tmp_path / "gallery.npy", np.asarray(gallery, order=order))
    np.save(tmp_path / "references.npy", np.asarray(references, order=order))
    arrays = products(np.asarray(gallery, order=order), np.asarray(references, order=order))
    mapped = products(tmp_path / "gallery.npy", tmp_path / "references.npy")
    for scores in (arrays, mapped):
        np.testing.assert_allclose(top_means(scores, 5), expected, atol=1e-6)


def test_thread_count_changes_nothing(rng, monkeypatch):
    rows, columns = rng.normal(size=(600, 16)), rng.normal(size=(3000, 16))
    answers = []
    for n_threads in (1, 2, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(n_threads))
        with threadpool_limits(n_threads):
            scores = products(rows, columns, 2**26)
            answers.append((top_means(scores, 20), log_mean_exp(scores, [5.0])[0]))
    for means, logs in answers[1:]:
        np.testing.assert_allclose(means, answers[0][0], atol=1e-6)
        np.testing.assert_allclose(logs, answers[0][1], rtol=1e-6)


@pytest.mark.parametrize("beta", [1e-3, 0.05, 1.0, 20.0, 400.0, 1e4])
def test_log_mean_exp_keeps_its_digits_from_tiny_to_huge_beta(rng, beta):
    scores = rng.normal(size=(40, 3000)) * 0.1 + 0.3
    expected = (reference.log_sum_exp(np.float32(scores).astype(float), beta) - np.log(3000)) / beta
    got = log_mean_exp(matrix(np.float32(scores)), [beta])[0] / beta
    np.testing.assert_allclose(got, expected, atol=3e-7)


def test_log_mean_exp_survives_a_maximum_that_rises_from_block_to_block(blocks):
    blocks(2, 3)
    scores = np.linspace(-2, 3, 40)[None, :] * np.array([[1.0], [-1.0]])
    for beta in (0.01, 1.0, 300.0):
        expected = reference.log_sum_exp(scores, beta) - np.log(40)
        np.testing.assert_allclose(log_mean_exp(matrix(scores), [beta])[0], expected, rtol=1e-5)


def test_transposing_exchanges_rows_and_columns(small):
    dense = small.gallery @ small.references.T
    for scores in (products(small.gallery, small.references), matrix(dense)):
        assert scores.transposed().shape == (57, 23)
        np.testing.assert_array_equal(
            top_k(scores.transposed(), 4).indices, reference.rank(dense.T, 4)
        )


def test_progress_runs_from_nothing_to_everything(small, blocks):
    blocks(5, 10)
    calls = []
    top_means(
        products(small.gallery, small.references),
        3,
        progress=lambda done, n: calls.append((done, n)),
    )
    done = [d for d, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == (23 * 57, 23 * 57)


def test_a_budget_below_a_megabyte_is_refused(small):
    with pytest.raises(NNNormError, match="memory_budget must be at least"):
        top_k(products(small.gallery, small.references, budget=1000), 5)


# --- threads -------------------------------------------------------------------------------------


def halve(queue=None):
    block = np.full((2000, 500), 2.0)
    in_threads(lambda rows: np.multiply(block[rows], 0.5, out=block[rows]), block)
    if queue is not None:
        queue.put(float(block.mean()))
    return block


def test_every_row_is_worked_on_once():
    assert (halve() == 1.0).all()


def test_an_error_in_a_thread_reaches_the_caller():
    def fail(rows):
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        in_threads(fail, np.zeros((2000, 500)))


def test_omp_num_threads_sets_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert count_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert count_threads() >= 1


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    halve()  # the parent has a pool now
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=halve, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=600) == 1.0
        child.join(600)
    finally:
        child.kill()
        child.join()
    assert child.exitcode == 0


def blas_threads():
    """Threads of the BLAS that numpy uses; libraries that were loaded later do not count."""
    return [library["num_threads"] for library in scoring._blas().select(user_api="blas").info()]


def test_strips_come_in_order_whichever_is_done_first(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    another_is_done = threading.Event()

    def work(start, stop):
        if start == 0:
            assert another_is_done.wait(600)
        another_is_done.set()
        return stop - start

    assert list(strips_in_order(work, 10, 3, threading.Event())) == [
        (0, 3, 3), (3, 6, 3), (6, 9, 3), (9, 10, 1),
    ]  # fmt: skip


def test_blas_is_held_to_one_thread_until_the_last_caller_is_done():
    before = blas_threads()
    first, second = (
        strips_in_order(lambda *_: blas_threads(), 4, 1, threading.Event()) for _ in "ab"
    )
    assert set(next(first)[2]) == {1}
    assert set(next(second)[2]) == {1}
    first.close()
    assert set(next(second)[2]) == {1}
    second.close()
    assert blas_threads() == before


def test_an_error_in_a_strip_reaches_the_caller_and_stops_the_others(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    begun = []

    def work(start, stop):
        begun.append(start)
        if start == 0:
            raise ValueError("in a strip")

    with pytest.raises(ValueError, match="in a strip"):
        list(strips_in_order(work, 1000, 1, threading.Event()))
    assert len(begun) < 10


def test_results_that_were_used_are_not_held(monkeypatch):
    """A grid keeps the 512 best scores of a strip: all strips at once would be gigabytes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    made = []

    def work(start, stop):
        result = np.empty(stop - start)
        made.append(weakref.ref(result))
        return result

    for _ in strips_in_order(work, 100, 1):
        assert sum(result() is not None for result in made) <= 8
