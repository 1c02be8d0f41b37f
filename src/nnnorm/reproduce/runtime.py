"""Time to compute the biases, from all scores or with a vector index of the references.

All scores are computed on the processor, or by torch on another device. The index is that of the
paper (`pip install 'nnnorm[faiss]'`), and is always searched on the
processor. The time to build it is not counted, because a bank needs it only once. Times are the
least of three, which other work on the machine disturbs the least.
"""

import os
import platform
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError, require
from nnnorm.io import Source, open_embeddings
from nnnorm.methods import NNN
from nnnorm.reproduce.ivf import build_ivf, ivf_means
from nnnorm.solvers import Solver, choose_quality

T = TypeVar("T")
Device = Literal["cpu", "cuda", "mps"]
_REPEATS = 3


class Timed(NamedTuple):
    """A bias and the time to compute it, in seconds.

    Attributes
    ----------
    bias : Bias
    seconds : float
    """

    bias: Bias
    seconds: float


def check_device(device: Device) -> None:
    """Raise unless there is such a device.

    Examples
    --------
    >>> check_device("cpu")
    """
    if device == "cpu":
        return
    torch = require("torch", "torch")
    there = torch.cuda if device == "cuda" else torch.backends.mps
    if not there.is_available():
        raise NNNormError(
            f"device {device} was asked for, but torch {torch.__version__} finds none on this "
            "machine; leave out --device to use the processor"
        )


def describe_device(device: Device) -> str:
    """Describe what the runtime table runs on.

    Examples
    --------
    >>> describe_device("cpu").startswith("the processor (")
    True
    """
    processor = f"the processor ({_name_processor()}, {os.cpu_count()} threads)"
    if device == "cpu":
        return processor
    name = "mps"
    if device == "cuda":
        name = f"cuda ({require('torch', 'torch').cuda.get_device_name()})"
    return f"{name}; the index on {processor}"


def _name_processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def time_exact(
    gallery: Source,
    references: Source,
    *,
    reference_k: int,
    alpha: float,
    device: Device = "cpu",
) -> Timed:
    """Fit NNN from all scores.

    Examples
    --------
    >>> import numpy as np
    >>> time_exact(np.eye(3), np.eye(3), reference_k=1, alpha=0.5).bias.values.tolist()
    [1.0, 1.0, 1.0]
    """
    items = open_embeddings(gallery, name="gallery")
    bank = open_embeddings(references, name="references")
    method = NNN(reference_k, alpha)
    solver: Solver = "exact" if device == "cpu" else device
    bias, seconds = _time(lambda: method.fit(items, bank, duplicates="keep", solver=solver))
    return Timed(bias, seconds)


def time_index(
    gallery: Source,
    references: Source,
    *,
    reference_k: int,
    alpha: float,
    quality: int | None = None,
) -> Timed:
    """Fit NNN with an index built beforehand.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim)
    reference_k : int
    alpha : float
    quality : int, optional
        Number of inverted lists to probe per item; by default that of the solver "approximate".

    Returns
    -------
    Timed

    Examples
    --------
    >>> import numpy as np
    >>> time_index(np.eye(3), np.eye(3), reference_k=1, alpha=0.5).bias.weight
    0.5
    """
    items = open_embeddings(gallery, name="gallery")
    bank = open_embeddings(references, name="references")
    quality = choose_quality(len(items)) if quality is None else quality
    index = build_ivf(bank)
    values, seconds = _time(
        lambda: ivf_means(items, bank, reference_k, quality=quality, index=index)
    )
    about = {"solver": "faiss-ivf", "quality": quality}
    return Timed(
        Bias(values, alpha, "nnn", {"reference_k": reference_k, "alpha": alpha, **about}), seconds
    )


def _time(work: Callable[[], T]) -> tuple[T, float]:
    """The result of some work, and the least of its times."""
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return result, min(times)
