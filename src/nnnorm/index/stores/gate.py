"""Order among threads and Ctrl-C while an index in memory changes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets many readers in, or one writer, who may come in again."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers, self._writer, self._depth = 0, 0, 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Come in with other readers."""
        with self._condition:
            mine = self._writer == threading.get_ident()
            self._condition.wait_for(lambda: mine or not self._writer)
            self._readers += not mine
        try:
            yield
        finally:
            if not mine:
                with self._condition:
                    self._readers -= 1
                    self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Come in alone."""
        own = threading.get_ident()
        with self._condition:
            if self._writer != own:
                self._condition.wait_for(lambda: not self._writer and not self._readers)
            self._writer, self._depth = own, self._depth + 1
        try:
            yield
        finally:
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
