"""Threads of our own: for what numpy does on one core, and for whole strips of work.

BLAS and we take turns. `in_threads` spreads one numpy pass over the cores between two products that
BLAS spread itself. `strips_in_order` is the better way where there are rows enough: every thread
takes strips of its own, multiplies them with a BLAS held to one thread, and reduces them while they
are in its cache; nobody waits for anybody.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

__all__ = ["count_threads", "in_threads", "on_a_worker", "strips_in_order"]

_T = TypeVar("_T")
_here = threading.local()


def in_threads(work: Callable[[slice], None], block: npt.NDArray[Any]) -> None:
    """Do `work` on slices of a block's rows; numpy lets go of the interpreter while it computes.

    Examples
    --------
    >>> block = np.ones((4, 3))
    >>> in_threads(lambda rows: block[rows].fill(2.0), block)
    >>> float(block.sum())
    24.0
    """
    n_threads = 1 if getattr(_here, "is_worker", False) else count_threads()
    if n_threads == 1 or block.size < 2**18 or len(block) < n_threads:
        work(slice(0, len(block)))
        return
    edges = np.linspace(0, len(block), n_threads + 1).astype(int)
    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    for _ in _pool(n_threads).map(work, slices):
        pass


def strips_in_order(
    work: Callable[[int, int], Any], n_rows: int, n_strip: int, stop: threading.Event
) -> Iterator[tuple[int, int, Any]]:
    """Yield ``(start, stop, work(start, stop))`` of all strips, worked on by all threads.

    Parameters
    ----------
    work : callable
        Should look at `stop` now and then, and end early when it is set.
    n_rows, n_strip : int
    stop : threading.Event
        Set when the caller goes away before the end.

    Examples
    --------
    >>> list(strips_in_order(lambda start, stop: stop - start, 5, 2, threading.Event()))
    [(0, 2, 2), (2, 4, 2), (4, 5, 1)]
    """

    def run(first: int, last: int) -> Any:
        _here.is_worker = True
        try:
            return None if stop.is_set() else work(first, last)
        finally:
            _here.is_worker = False

    strips = [(start, min(start + n_strip, n_rows)) for start in range(0, n_rows, n_strip)]
    n_threads = count_threads()
    with _one_blas_thread(), _workers(n_threads) as pool:
        futures: list[Future[Any]] = []
        try:
            for number, (start, end) in enumerate(strips):
                # A few strips ahead of the reader, so that waiting answers stay few.
                while len(futures) < min(len(strips), number + 2 * n_threads):
                    futures.append(pool.submit(run, *strips[len(futures)]))
                yield start, end, futures[number].result()
        finally:
            stop.set()


def on_a_worker(work: Callable[[], _T]) -> _T:
    """Do `work` on one worker, so with a BLAS of one thread and nothing of the caller's changed.

    Examples
    --------
    >>> on_a_worker(threading.current_thread) is threading.current_thread()
    False
    """
    ((_, _, found),) = strips_in_order(lambda *_: work(), 1, 1, threading.Event())
    return cast(_T, found)


def count_threads() -> int:
    """OMP_NUM_THREADS where it is set, else the cores we may use.

    Examples
    --------
    >>> count_threads() >= 1
    True
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Limit:
    """How many hold BLAS to one thread now, and what lets it go again."""

    lock = threading.Lock()
    holders = 0
    release: Any = None


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread until the last who asked for it is done."""
    with _Limit.lock:
        _Limit.holders += 1
        if _Limit.holders == 1:
            _Limit.release = _blas().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.holders -= 1
            if _Limit.holders == 0:
                _Limit.release.restore_original_limits()


def _workers(n_threads: int) -> ThreadPoolExecutor:
    # A BLAS on OpenMP counts threads for each thread by itself: every worker has to say it too.
    return ThreadPoolExecutor(
        n_threads,
        thread_name_prefix="nnnorm",
        initializer=lambda: _blas().limit(limits=1, user_api="blas"),
    )


@lru_cache(maxsize=1)
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@lru_cache(maxsize=1)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="nnnorm")


def _start_anew() -> None:
    """A forked child inherits pools without their threads, and limits that nobody will lift."""
    _pool.cache_clear()
    _Limit.lock, _Limit.holders = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
