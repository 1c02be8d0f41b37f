"""How fast this machine is: the real solvers, timed for a few seconds on made embeddings.

Everything is counted in seconds of processor time, so that other programs on the machine hardly
matter, and given per core. The embeddings have topics and a falling spectrum, as those of real
models have, because the approximate solver gains from both.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm.approximate import count_list_scores, learn_lists, sample_means
from nnnorm.cluster.planning import Line, Rates
from nnnorm.copies import MOST_INTENTS, find_intents
from nnnorm.io import Embeddings, open_embeddings
from nnnorm.scoring import Products, count_threads, top_means

_T = TypeVar("_T")
Half: TypeAlias = npt.NDArray[np.float16]

_REPEATS = 3
_READ_VALUES = 2**23
_N_TOPICS = 500
# Lists of these rows keep about as many dimensions as those of real models, 0.3 to 0.45.
_SPECTRUM = -0.6
_BLOCK = 8192
# Wider rows are not measured, since they may not fit the memory: work grows with the width.
_MOST_DIM = 1024
# Items times dimensions from which on the approximate solver projects with the smaller bank, as it
# does with all galleries that need a cluster.
_LIST_WORK = 50_000_000
# Lists to probe per item, as with all galleries that need a cluster.
_QUALITY = 8


class Sizes(NamedTuple):
    """How much is measured; tests measure less.

    Attributes
    ----------
    exact_items : int
    exact_banks : (int, int)
        Numbers of references of exact means.
    list_items : int
    list_banks : (int, int)
        Numbers of references of approximate means.
    intents : int
        References beyond those that fill a bank.
    """

    exact_items: int
    exact_banks: tuple[int, int]
    list_items: int
    list_banks: tuple[int, int]
    intents: int

    @classmethod
    def of(cls, dim: int) -> "Sizes":
        """What takes about ten seconds, with enough items for lists of projected rows."""
        list_items = min(max(_LIST_WORK // dim, 50_000), 200_000)
        return cls(2048, (4096, 16_384), list_items, (32_768, 131_072), 8192)


def measure_rates(dim: int, reference_k: int, *, sizes: Sizes | None = None) -> Rates:
    """Time the solvers on this machine, for about ten seconds at 512 dimensions.

    Parameters
    ----------
    dim, reference_k : int
        Of the work that is planned. Where k is more than a part of a bank that is measured, that
        part is averaged; rows of more than 1,024 dimensions are not measured, but scaled.
    sizes : Sizes, optional
        How much is measured.

    Returns
    -------
    Rates
        Of one core.

    Examples
    --------
    >>> rates = measure_rates(16, 8, sizes=Sizes(256, (512, 1024), 2048, (8192, 16_384), 256))
    >>> rates.exact.at(1000) > 0 and rates.probe.at(1000) > 0
    True
    """
    if dim > _MOST_DIM:
        return _widen(measure_rates(_MOST_DIM, reference_k, sizes=sizes), dim / _MOST_DIM)
    sizes = Sizes.of(dim) if sizes is None else sizes
    make = _Maker(dim)
    bank = make.rows(max(*sizes.list_banks, *sizes.exact_banks))
    items = make.rows(max(sizes.list_items, sizes.exact_items))
    learn, probe, width = _time_lists(items[: sizes.list_items], bank, reference_k, sizes)
    read, sign = _time_reading(items[: max(1, _READ_VALUES // dim)])
    return Rates(
        exact=_time_exact(items[: sizes.exact_items], bank, reference_k, sizes),
        learn=learn,
        probe=probe,
        read=read,
        sign=sign,
        intent=_time_intents(make.rows(MOST_INTENTS + sizes.intents)),
        width=width,
        cores=count_threads(),
    )


def _widen(rates: Rates, factor: float) -> Rates:
    """The rates of rows that are wider by a factor; those of bytes and shares stay."""

    def steeper(line: Line) -> Line:
        return replace(line, slope=line.slope * factor)

    return replace(
        rates,
        exact=steeper(rates.exact),
        learn=steeper(rates.learn),
        probe=steeper(rates.probe),
        intent=rates.intent * factor,
    )


class _Maker:
    """Unit rows around topics in float16, with a spectrum that falls as real ones do."""

    def __init__(self, dim: int) -> None:
        self._rng = np.random.default_rng(0)
        self._scale = (np.arange(1, dim + 1) ** _SPECTRUM).astype(np.float32)
        self._topics = self._scale * self._rng.standard_normal((_N_TOPICS, dim), dtype=np.float32)

    def rows(self, n: int) -> Half:
        made = np.empty((n, len(self._scale)), dtype=np.float16)
        for start in range(0, n, _BLOCK):
            size = min(_BLOCK, n - start)
            rows = self._rng.standard_normal((size, len(self._scale)), dtype=np.float32)
            rows *= self._scale
            rows += self._topics[self._rng.integers(0, _N_TOPICS, size)]
            made[start : start + size] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return made


def _time_exact(items: Half, bank: Half, k: int, sizes: Sizes) -> Line:
    """Seconds of an item, by the number of references."""
    opened = open_embeddings(items)
    products = [Products(opened, _open_bank(bank[:n])) for n in sizes.exact_banks]
    seconds = [
        [_time(partial(top_means, one, min(k, one.shape[1] // 4)))[0] for one in products]
        for _ in range(_REPEATS)
    ]
    least = np.min(seconds, axis=0) / len(items)
    return Line.through(list(zip(sizes.exact_banks, least.tolist(), strict=True)))


def _time_lists(items: Half, bank: Half, k: int, sizes: Sizes) -> tuple[Line, Line, float]:
    """Seconds of learning lists and of an item that probes them, by scores; width of the rows."""
    opened, learning, probing, width = open_embeddings(items), [], [], 1.0
    for n_references in sizes.list_banks:
        products = Products(opened, _open_bank(bank[:n_references]))
        counted = count_list_scores(len(items), n_references, _QUALITY)
        few = min(k, n_references // 64)
        sample = sample_means(products, few)
        seconds, model = _time(partial(learn_lists, products, few, _QUALITY, sample))
        learning.append((counted.build + counted.train, seconds))
        if model is not None:
            probing.append(
                (counted.probe / len(items), _time(partial(model.means, products))[0] / len(items))
            )
    return Line.through(learning), Line.through(probing), width


def _time_reading(items: Half) -> tuple[float, float]:
    """Seconds per byte of opening a file with its checks, and of its fingerprint besides."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.npy"
        np.save(path, items)
        read, signed = (
            min(_time_of_thread(partial(open_embeddings, path, fingerprint=both)) for _ in range(3))
            for both in (False, True)
        )
    return read / items.nbytes, max(signed - read, 0.0) / items.nbytes


def _time_intents(log: Half) -> float:
    """Seconds per reference of finding the intents of a bank that is full."""
    filling, all_of_it = (
        _time(partial(find_intents, open_embeddings(log[:n])))[0] for n in (MOST_INTENTS, len(log))
    )
    return max(all_of_it - filling, 0.0) / (len(log) - MOST_INTENTS)


def _open_bank(rows: Half) -> Embeddings:
    """References as a worker holds them, in float32."""
    return open_embeddings(rows.astype(np.float32))


def _time_of_thread(work: Callable[[], object]) -> float:
    """Processor seconds of the calling thread, for what one core does."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _time(work: Callable[[], _T]) -> tuple[float, _T]:
    """Processor seconds of some work, and its result."""
    started = time.process_time()
    done = work()
    return time.process_time() - started, done
