"""Batches for a model that does not wait: items are opened and prepared by threads.

    threads    open, decode, resize, normalise, in the order of the items
    model      whole batches, in order; halved for good where one does not fit into memory

A model on a device of its own computes while the threads prepare the next batches. A model on the
processor takes turns with them: its threads wait for each other in every layer, and each would
wait far longer beside threads that decode on the same cores. Pillow, numpy and libsndfile release
the interpreter while they work, so that threads use all cores. A few batches are held at most. An
item that can't be opened raises its error when its turn comes: what came before it is finished.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeAlias

from nnnorm.encoders.images import quiet_pillow
from nnnorm.encoders.weights import is_out_of_memory
from nnnorm.errors import NNNormError, warn
from nnnorm.scoring import count_threads

if TYPE_CHECKING:
    from nnnorm.encoders.encoder import Encoder, FloatArray, Modality

_Tasks: TypeAlias = list[Future[list[Any]]]
_Submit: TypeAlias = Callable[[tuple[int, int], int], _Tasks]

# Few items per task keep all threads busy; a task has a cost of its own.
_PER_TASK = 4
# Items that are prepared in one turn, and per thread: the last of a turn are waited for.
_PER_TURN, _PER_THREAD = 128, 8
# More threads than this wait for each other's Python.
_MOST_THREADS = 16


def prepare_ahead(
    encoder: "Encoder",
    modality: "Modality",
    items: Sequence[Any],
    batches: Sequence[tuple[int, int]],
) -> Generator[list[Any], None, None]:
    """Prepare batches of items in threads, and yield them in order.

    Parameters
    ----------
    encoder : Encoder
        Its `prepare` is called by the threads.
    modality : {"images", "texts", "audio"}
    items : sequence
    batches : sequence of (int, int)
        First item of every batch, and the one behind its last.

    Yields
    ------
    list
        The prepared items of a batch.

    Examples
    --------
    >>> from nnnorm.encoders import Encoder
    >>> list(prepare_ahead(Encoder(), "texts", ["a", "b", "c"], [(0, 2), (2, 3)]))
    [['a', 'b'], ['c']]
    """
    if modality == "texts":  # tokenizers have threads of their own, and are quick
        for start, stop in batches:
            yield [encoder.prepare(modality, item) for item in items[start:stop]]
        return

    def work(first: int, last: int) -> list[Any]:
        return [encoder.prepare(modality, item) for item in items[first:last]]

    n_threads = min(count_threads(), _MOST_THREADS)
    with (
        quiet_pillow(),
        ThreadPoolExecutor(n_threads, thread_name_prefix="nnnorm-prepare") as pool,
    ):

        def submit(batch: tuple[int, int], per_task: int) -> _Tasks:
            edges = [*range(*batch, per_task), batch[1]]
            return [pool.submit(work, *ends) for ends in itertools.pairwise(edges)]

        if encoder.is_on_cpu:
            prepared = _in_turns(submit, batches, max(_PER_TURN, _PER_THREAD * n_threads))
        else:
            prepared = _in_advance(submit, batches, 2 * n_threads)
        try:
            for tasks in prepared:
                yield [item for task in tasks for item in task.result()]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_turns(
    submit: _Submit, batches: Sequence[tuple[int, int]], n_items: int
) -> Iterator[_Tasks]:
    """Yield the tasks of each batch while none is running: so many items are prepared at once."""
    coming = deque(batches)
    while coming:
        turn: list[_Tasks] = []
        while coming and sum(map(len, turn)) < n_items:
            turn.append(submit(coming.popleft(), 1))
        wait([task for tasks in turn for task in tasks])
        yield from turn


def _in_advance(
    submit: _Submit, batches: Sequence[tuple[int, int]], n_tasks: int
) -> Iterator[_Tasks]:
    """Yield the tasks of each batch, with two batches and so many tasks at least under way."""
    ahead: deque[_Tasks] = deque()
    for batch in batches:
        ahead.append(submit(batch, _PER_TASK))
        if len(ahead) >= 3 and sum(map(len, ahead)) >= n_tasks:
            yield ahead.popleft()
    yield from ahead


class BatchRunner:
    """Runs a model on prepared batches, in smaller ones from the first that does not fit.

    Parameters
    ----------
    encoder : Encoder
    modality : {"images", "texts", "audio"}

    Attributes
    ----------
    seconds : float
        Time spent in the model.
    largest : int or None
        The largest batch that fits, if one did not.

    Examples
    --------
    >>> from nnnorm.encoders import Encoder
    >>> BatchRunner(Encoder(), "texts").seconds
    0.0
    """

    def __init__(self, encoder: "Encoder", modality: "Modality") -> None:
        self._encoder, self._modality = encoder, modality
        self.seconds = 0.0
        self.largest: int | None = None

    def run(self, prepared: Sequence[Any]) -> Iterator["FloatArray"]:
        """Embed a batch; yield its rows, in parts if it does not fit as a whole."""
        start = 0
        while start < len(prepared):
            part = list(prepared[start : start + (self.largest or len(prepared))])
            began = time.perf_counter()
            try:
                rows = self._encoder.embed_prepared(self._modality, part)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._halve(len(part), error)
                continue
            finally:
                self.seconds += time.perf_counter() - began
            start += len(part)
            yield rows

    def _halve(self, n_items: int, error: BaseException) -> None:
        name, what = self._encoder.name, self._modality
        if n_items == 1:
            raise NNNormError(
                f"{name} ran out of memory with a batch of one ({what}); free some memory, use "
                "--dtype bfloat16, or another device"
            ) from error
        self.largest = (n_items + 1) // 2
        self._encoder.free_memory()
        warn(
            f"{name} ran out of memory with {n_items} {what} at once; going on with "
            f"{self.largest} (--batch-size {self.largest})"
        )
