import multiprocessing
import sys
import threading

import numpy as np
import pytest

from nnnorm.scoring import threads
from nnnorm.scoring.threads import count_threads, in_threads, strips_in_order


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


def test_the_environment_decides_how_many(monkeypatch):
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
    return [library["num_threads"] for library in threads._blas().select(user_api="blas").info()]


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


def test_a_thread_with_a_strip_of_its_own_starts_no_others(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    slices = []
    block = np.zeros((2000, 500))
    list(strips_in_order(lambda *_: in_threads(slices.append, block), 1, 1, threading.Event()))
    assert slices == [slice(0, 2000)]


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


def test_closing_the_iteration_stops_the_work(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    begun = []
    strips = strips_in_order(lambda start, _: begun.append(start), 1000, 1, threading.Event())
    next(strips)
    strips.close()
    assert len(begun) < 10
