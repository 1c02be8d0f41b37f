"""Order among threads and Ctrl-C while an index in memory changes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets many readers in, or one writer, who may come in again.

    A Ctrl-C at any line of a thread must not keep that thread itself out.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers: dict[int, int] = {}  # how often each thread is inside
        self._writer, self._depth = 0, 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Come in with other readers."""
        own, readers, is_inside = threading.get_ident(), self._readers, False
        try:
            with self._condition:
                self._condition.wait_for(lambda: self._writer in (0, own))
                readers[own], is_inside = readers.get(own, 0) + 1, True
            yield
        finally:
            if is_inside:
                with self._condition:
                    readers[own] -= 1
                    if not readers[own]:
                        del readers[own]
                    self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Come in alone."""
        own, is_inside = threading.get_ident(), False
        try:
            with self._condition:
                self._condition.wait_for(
                    lambda: (
                        self._writer == own or not (self._writer or self._readers.keys() - {own})
                    )
                )
                self._writer, self._depth, is_inside = own, self._depth + 1, True
            yield
        finally:
            if is_inside:
                with self._condition:
                    self._depth -= 1
                    self._writer = own if self._depth else 0
                    self._condition.notify_all()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Hold a Ctrl-C back until the block has ended: graphs that it cuts off are broken.

    Examples
    --------
    >>> try:
    ...     with deferred_interrupts():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("done")
    ... except KeyboardInterrupt:
    ...     print("stopped")
    done
    stopped
    """
    former = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or former is not signal.default_int_handler:
        yield  # another thread gets no Ctrl-C, and another handler decides by itself
        return
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if caught:
        raise KeyboardInterrupt
