import multiprocessing
import sys

import numpy as np
import pytest

from nnnorm.threads import count_threads, in_threads


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
    assert queue.get(timeout=60) == 1.0
    child.join(60)
    assert child.exitcode == 0
