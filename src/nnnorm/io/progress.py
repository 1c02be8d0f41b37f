"""Progress of long work: a callback, and a counter that several threads may share."""

import threading
from collections.abc import Callable
from typing import TypeAlias

# Called with (work done, work in all).
Progress: TypeAlias = Callable[[int, int], None]


class Done:
    """Counts work of all threads and reports it to a callback.

    Examples
    --------
    >>> done = Done(lambda n, total: print(f"{n} of {total}"), 10)
    >>> done.add(4)
    4 of 10
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._lock, self._done = threading.Lock(), 0

    def add(self, n: int) -> None:
        """Count `n` more units of work."""
        if self._progress is None:
            return
        with self._lock:
            self._done += n
            self._progress(self._done, self._total)
