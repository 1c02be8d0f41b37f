"""Products of 8-bit whole numbers, where this machine is quicker at them than at float32.

Processors with dot-product instructions for int8 (VNNI, AMX) are two to five times as quick. Who
knows how to use them: numkong (`pip install 'nnnorm[int8]'`), and torch where a program has loaded
it anyway. `fastest_int8` tries both against float32 and tells who wins; on a processor without such
instructions, nobody.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import require
from nnnorm.threads import on_a_worker

__all__ = ["Int8", "fastest_int8", "int8_by"]

Codes: TypeAlias = npt.NDArray[np.int8]
IntArray: TypeAlias = npt.NDArray[np.int32]

# Quick is who takes no more than this share of float32's time.
_QUICK = 0.6
# Tries: rows, columns, width. The first is so small that even the slowest way ends soon.
_FIRST, *_TRIES = (16, 256, 512), (240, 1024, 128), (240, 1024, 512)


@dataclass(frozen=True)
class Int8:
    """Somebody who multiplies int8, exactly.

    Attributes
    ----------
    name : str
    pack : callable
        From codes of references, shape ``(n, width)``, to whatever `multiply` wants of them.
    multiply : callable
        From codes of items, shape ``(m, width)``, and packed references to int32 products,
        shape ``(m, n)``, which its next call on the same thread overwrites. To be called on
        workers of ours (`threads.py`): torch stays with one thread where it was called.
    work : tuple of two floats
        Of a score, and of each of its coordinates: in multiply-adds of float32 in the same time.
    """

    name: str
    pack: Callable[[Codes], Any]
    multiply: Callable[[Codes, Any], IntArray]
    work: tuple[float, float] = (np.inf, np.inf)

    def work_of(self, width: int) -> float:
        """Multiply-adds of float32 in the time of a score of this width.

        Examples
        --------
        >>> Int8("somebody", np.asarray, np.matmul, work=(10.0, 0.5)).work_of(100)
        60.0
        """
        return self.work[0] + self.work[1] * width

    def is_quick(self, width: int) -> bool:
        """Whether it is so much quicker than float32 that it makes up for what codes cost.

        Examples
        --------
        >>> Int8("somebody", np.asarray, np.matmul, work=(10.0, 0.5)).is_quick(512)
        True
        """
        return self.work_of(width) < _QUICK * width


def fastest_int8() -> Int8 | None:
    """Who multiplies int8 the fastest here: None if nobody can.

    Tried once per process (a twentieth of a second), and again when torch has been loaded.

    Examples
    --------
    >>> found = fastest_int8()
    >>> found is None or found.work_of(512) > 0
    True
    """
    return _fastest("torch" in sys.modules)


def int8_by(name: str) -> Int8:
    """Who has this name: "numkong" or "torch".

    Examples
    --------
    >>> int8_by("numkong").name
    'numkong'
    """
    return {"numkong": _numkong, "torch": _torch}[name]()


@lru_cache(maxsize=2)
def _fastest(has_torch: bool) -> Int8 | None:
    tried = []
    for name in ("numkong", "torch"):
        # Whatever ails somebody else's package (it may be too old), a fit goes on without it.
        with suppress(Exception):
            if has_torch if name == "torch" else find_spec(name) is not None:
                way = int8_by(name)
                tried.append(replace(way, work=_try(way)))
    best = min(tried, key=lambda way: way.work_of(_FIRST[-1]), default=None)
    return best if best is not None and np.isfinite(best.work[0]) else None


def _try(way: Int8) -> tuple[float, float]:
    """Measure its work on one thread of ours; without end where it is wrong, or far too slow."""
    return on_a_worker(lambda: _measure(way))


def _measure(way: Int8) -> tuple[float, float]:
    never = np.inf, np.inf
    if _work(way, *_FIRST) > 2 * _FIRST[-1]:
        return never
    narrow, wide = (_work(way, *sizes) for sizes in _TRIES)
    if not np.isfinite(narrow + wide):
        return never
    per_term = max(0.0, (wide - narrow) / (_TRIES[1][-1] - _TRIES[0][-1]))
    return max(0.0, wide - per_term * _TRIES[1][-1]), per_term


def _work(way: Int8, n_items: int, n_references: int, width: int) -> float:
    rng = np.random.default_rng(0)
    items, references = (
        rng.integers(-127, 128, size=(n, width), dtype=np.int8) for n in (n_items, n_references)
    )
    items[0], references[0], references[1] = 127, 127, -127
    left, right = items.astype(np.float32), references.astype(np.float32)
    packed = way.pack(references)
    # float32 is exact here: sums of whole numbers below 2^24.
    if not np.array_equal(way.multiply(items, packed), left @ right.T):
        return np.inf
    out = np.empty((n_items, n_references), dtype=np.float32)
    floats = _seconds(lambda: np.matmul(left, right.T, out=out))
    return width * _seconds(lambda: way.multiply(items, packed)) / floats


def _seconds(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _numkong() -> Int8:
    numkong = require("numkong", "int8")
    kept = threading.local()

    def multiply(items: Codes, packed: Any) -> IntArray:
        shape = len(items), packed.width
        out = getattr(kept, "out", None)  # fresh memory costs as much as a product
        if out is None or out.shape != shape:
            out = kept.out = numkong.empty(shape, dtype="int32")
        return np.asarray(numkong.dots_packed(items, packed, out=out))

    return Int8("numkong", numkong.dots_pack, multiply)


def _torch() -> Int8:
    from threadpoolctl import ThreadpoolController

    torch = require("torch", "torch")
    pools = ThreadpoolController()
    kept = threading.local()

    def multiply(items: Codes, packed: Any) -> IntArray:
        shape = len(items), packed.shape[1]
        out = getattr(kept, "out", None)
        if out is None or out.shape != shape:
            torch.get_num_threads()  # makes torch set its threads up, which would undo the next
            pools.limit(limits=1, user_api="openmp")  # of the calling thread alone
            out = kept.out = torch.empty(shape, dtype=torch.int32, device="cpu")
        return np.asarray(torch._int_mm(torch.from_numpy(items), packed, out=out).numpy())

    return Int8("torch", lambda codes: torch.from_numpy(codes).T, multiply)
