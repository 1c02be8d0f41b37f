"""A race between the whole product and pruning, on the first strips of the real work.

    rows in the plan's order
    ┌──────────────┬───────────────────────────────┬──────────────┐
    │ pruned ►     │   left to the faster of both  │     ◄ exact  │
    └──────────────┴───────────────────────────────┴──────────────┘

In every round both compute strips of the same length at the same time, on threads of their own. The
race ends as soon as one is clearly faster; strips grow from round to round, and the last round
decides by any margin. Every row that was computed keeps its mean, so that only the difference in
speed is lost. The clock is the processor time of the thread that computes a strip, and the fastest
strip counts, so that other programs on the machine hardly matter.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
_ROUNDS = ((96, 1.75), (192, 1.4), (384, 1.15), (768, 1.15), (768, 1.0))
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
    front, back = 0, len(order)
    seconds_per_row = {"exact": np.inf, "pruned": np.inf}
    n_skipped = sum(_FIRST_SHARE * length <= len(order) for length in {n for n, _ in _ROUNDS[1:]})
    for length, margin in _ROUNDS[n_skipped:]:
        n_pairs = max(1, min(count_threads() // 2, len(order) // (_FIRST_SHARE * length)))
        if back - front < 4 * n_pairs * length:
            break  # so few rows are left that another round would not pay
        strips: list[tuple[str, Strip, IntArray]] = []
        for _ in range(n_pairs):
            strips.append(("exact", exact, order[back - length : back]))
            strips.append(("pruned", pruned, order[front : front + length]))
            front, back = front + length, back - length
        for name, seconds in _compute(strips, means, clock):
            seconds_per_row[name] = min(seconds_per_row[name], seconds)
        faster, slower = sorted(seconds_per_row.values())
        if slower >= margin * faster:
            break
    return seconds_per_row["pruned"] < seconds_per_row["exact"], order[front:back]


def _compute(
    strips: Sequence[tuple[str, Strip, IntArray]], means: FloatArray, clock: Callable[[], float]
) -> Iterator[tuple[str, float]]:
    """Compute strips on all threads, and yield the name and the seconds per row of each."""
    stop = threading.Event()

    def work(number: int, end: int) -> float:
        _, strip, rows = strips[number]
        started = clock()
        means[rows] = strip(rows, stop)
        return (clock() - started) / len(rows)

    timed = strips_in_order(work, len(strips), 1, stop)
    yield from ((strips[number][0], seconds) for number, _, seconds in timed)
