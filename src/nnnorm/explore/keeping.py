"""Answers that are kept, and work that is done once: for many requests at the same time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

from nnnorm.errors import NNNormError

_T = TypeVar("_T")


class Kept:
    """The latest answers by key; simultaneous requests for one key are computed once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the answer for a key, which is made by the first request for it."""
        with self._lock:
            future = self._found.get(key)
            is_new = future is None
            if future is None:
                future = self._found[key] = Future()
            self._found.move_to_end(key)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        if is_new:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:  # the next request tries again
                    self._found.pop(key, None)
                future.set_exception(error)
        return cast(_T, future.result())


class Later(Generic[_T]):
    """Work that is done once, in a thread of its own, while other requests are answered."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make, self._future = make, Future[_T]()
        self._lock, self._is_started = threading.Lock(), False

    @property
    def is_ready(self) -> bool:
        """Whether the work is done; asking starts it."""
        self.start()
        return self._future.done()

    def start(self) -> None:
        """Start the work, unless it was started."""
        with self._lock:
            if self._is_started:
                return
            self._is_started = True
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self) -> _T:
        """Return the result, once it is there, or raise the error of the work."""
        self.start()
        return self._future.result()

    def result(self) -> _T | None:
        """Return the result, once it is there; None where the inputs are too small for the work."""
        try:
            return self.wait()
        except NNNormError:
            return None

    def _run(self) -> None:
        try:
            self._future.set_result(self._make())
        except BaseException as error:
            self._future.set_exception(error)
