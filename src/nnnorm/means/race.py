"""A race between the whole product and pruning, on the first strips of the real work.

    rows in the plan's order
    ┌──────────────┬───────────────────────────────┬──────────────┐
    │ pruned ►     │   left to the faster of both  │     ◄ exact  │
    └──────────────┴───────────────────────────────┴──────────────┘

In every round both compute strips of the same length at the same time, on threads of their own; the
one that is done first goes on while it would otherwise wait. The race ends as soon as one is
clearly faster; strips grow from round to round, and the last round decides by any margin. Every row
that was computed keeps its mean, so that only the difference in speed is lost. The clock is the
processor time of the thread that computes a strip, and the fastest strip counts, so that other
programs on the machine hardly matter.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.scoring import count_threads, strips_in_order

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
# Computes the means of some rows on the calling thread.
Strip: TypeAlias = Callable[[IntArray, threading.Event], FloatArray]

# Rows per strip, and how much faster the winner must be to end the race there. The whole product
# is less efficient on short strips, which the first margins allow for.
_ROUNDS = ((96, 1.5), (192, 1.3), (384, 1.15), (768, 1.15), (768, 1.0))
# The race begins with the longest strip that is at most one part in this many of the rows.
_FIRST_SHARE = 32


def race(
    exact: Strip,
    pruned: Strip,
    order: IntArray,
    means: FloatArray,
    *,
    clock: Callable[[], float] = time.thread_time,
) -> tuple[bool, IntArray]:
    """Let both ways compute some rows each, and find out which one is faster.

    Parameters
    ----------
    exact, pruned : callable
        Called with row numbers and an event that ends the work early; return the means of the rows.
    order : ndarray, shape (n_rows,)
        Row numbers. Pruning takes them from the front, the whole product from the back.
    means : ndarray, shape (n_rows,)
        Receives the means of the rows that were computed.
    clock : callable
        Seconds, read on the thread that does the strip.

    Returns
    -------
    is_pruned : bool
        Whether pruning is faster.
    rest : ndarray
        The rows that are left, in their order.

    Examples
    --------
    >>> def strip(rows, stop):
    ...     return rows.astype(np.float32)
    >>> means = np.zeros(9000, dtype=np.float32)
    >>> _, rest = race(strip, strip, np.arange(9000), means)
    >>> bool((means[: rest[0]] == np.arange(rest[0])).all())
    True
    """
    lanes = _Lanes(order, means, {"exact": exact, "pruned": pruned}, clock)
    n_skipped = sum(_FIRST_SHARE * length <= len(order) for length in {n for n, _ in _ROUNDS[1:]})
    for length, margin in _ROUNDS[n_skipped:]:
        n_pairs = max(1, min(count_threads() // 2, len(order) // (_FIRST_SHARE * length)))
        if len(lanes.rest) < 4 * n_pairs * length:
            break  # so few rows are left that another round would not pay
        lanes.compute(length, n_pairs)
        faster, slower = sorted(lanes.seconds_per_row.values())
        if slower >= margin * faster:
            break
    seconds = lanes.seconds_per_row
    return seconds["pruned"] < seconds["exact"], lanes.rest


class _Lanes:
    """The rows between the two competitors, and the best time of each.

    Attributes
    ----------
    seconds_per_row : dict
        By name, of the fastest strip so far.
    """

    def __init__(
        self,
        order: IntArray,
        means: FloatArray,
        ways: Mapping[str, Strip],
        clock: Callable[[], float],
    ) -> None:
        self._order, self._means, self._ways, self._clock = order, means, ways, clock
        self._front, self._back = 0, len(order)
        self._n_running = 0
        self._lock = threading.Lock()
        self.seconds_per_row = dict.fromkeys(ways, float("inf"))

    @property
    def rest(self) -> IntArray:
        """The rows that are left, in their order."""
        return self._order[self._front : self._back]

    def compute(self, length: int, n_pairs: int) -> None:
        """Compute and time strips of this length on all threads."""
        names = n_pairs * ("exact", "pruned")
        stop = threading.Event()

        def work(number: int, _: int) -> None:
            name = names[number]
            with self._lock:
                self._n_running += 1
                rows = self._take(name, length)
            started = self._clock()
            try:
                self._means[rows] = self._ways[name](rows, stop)
            finally:
                with self._lock:
                    self._n_running -= 1
            seconds = (self._clock() - started) / length
            with self._lock:
                self.seconds_per_row[name] = min(self.seconds_per_row[name], seconds)
            self._go_on(name, length, stop)

        for _ in strips_in_order(work, len(names), 1, stop):
            pass

    def _go_on(self, name: str, length: int, stop: threading.Event) -> None:
        """Compute further rows, untimed, as long as the thread would otherwise wait for another.

        Short strips, so that the other thread hardly waits in its turn.
        """
        while not stop.is_set():
            with self._lock:
                if not self._n_running or len(self.rest) < 4 * length:
                    return
                rows = self._take(name, length // 2)
            self._means[rows] = self._ways[name](rows, stop)

    def _take(self, name: str, length: int) -> IntArray:
        if name == "pruned":
            self._front += length
            return self._order[self._front - length : self._front]
        self._back -= length
        return self._order[self._back : self._back + length]
