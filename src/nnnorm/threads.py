"""Threads of our own for what numpy does on one core, as many as BLAS would take."""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["count_threads", "in_threads"]


def in_threads(work: Callable[[slice], None], block: npt.NDArray[Any]) -> None:
    """Do `work` on slices of a block's rows; numpy lets go of the interpreter while it computes.

    Examples
    --------
    >>> block = np.ones((4, 3))
    >>> in_threads(lambda rows: block[rows].fill(2.0), block)
    >>> float(block.sum())
    24.0
    """
    n_threads = count_threads()
    if n_threads == 1 or block.size < 2**18 or len(block) < n_threads:
        work(slice(0, len(block)))
        return
    edges = np.linspace(0, len(block), n_threads + 1).astype(int)
    slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    for _ in _pool(n_threads).map(work, slices):
        pass


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


@lru_cache(maxsize=1)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="nnnorm")


# A forked child inherits the pool without its threads: it must make its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
