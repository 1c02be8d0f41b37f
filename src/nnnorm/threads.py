"""Threads for passes that numpy makes on one core, and for whole strips of work.

`in_threads` splits one numpy pass over a block among the cores, between two matrix products that
BLAS runs on all of them. `strips_in_order` is faster where there are enough rows: every thread
multiplies strips of its own with a BLAS limited to one thread, and reduces them while they are in
its cache, so that threads never wait for each other.
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

_T = TypeVar("_T")
_here = threading.local()


def in_threads(work: Callable[[slice], None], block: npt.NDArray[Any]) -> None:
    """Call `work` on slices of a block's rows in threads; numpy releases the GIL meanwhile."""
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
    """Compute strips of rows on all threads, and yield ``(start, stop, work(start, stop))``."""

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
                # Only a few strips ahead of the consumer, so that few results are held.
                while len(futures) < min(len(strips), number + 2 * n_threads):
                    futures.append(pool.submit(run, *strips[len(futures)]))
                yield start, end, futures[number].result()
        finally:
            stop.set()


def on_a_worker(work: Callable[[], _T]) -> _T:
    """Call `work` on a worker thread, with BLAS limited to one thread."""
    ((_, _, found),) = strips_in_order(lambda *_: work(), 1, 1, threading.Event())
    return cast(_T, found)


def count_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, else the number of usable cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Limit:
    """Number of callers that limit BLAS now, and the handle that ends the limit."""

    lock = threading.Lock()
    holders = 0
    release: Any = None


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread until the last caller has left."""
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
    # A BLAS on OpenMP has one limit per thread, so every worker sets its own.
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


def _reset() -> None:
    """Reset a forked child, which inherits pools without threads and limits without owners."""
    _pool.cache_clear()
    _Limit.lock, _Limit.holders = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
