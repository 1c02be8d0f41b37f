"""Time to compute the biases, from all scores or with an index of the references, as in table A5.

All scores are computed on the processor, or by torch on another device; the index is always
searched on the processor. Building it is not counted, because a bank needs it only once. Times are
the least of three, which other work on the machine disturbs the least.
"""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnnorm import NNN, Bias, NNNormError, open_embeddings
from reproduction.ivf import build_ivf, ivf_means

T = TypeVar("T")
DEVICES = ("cpu", "cuda", "mps")


class Timed(NamedTuple):
    """A bias and the seconds that it took."""

    bias: Bias
    seconds: float


def check_device(device: str) -> None:
    """Raise unless this machine has the device."""
    if device == "cpu":
        return
    import torch

    if not (torch.cuda if device == "cuda" else torch.backends.mps).is_available():
        raise NNNormError(
            f"device {device} was asked for, but torch {torch.__version__} finds none on this "
            "machine; leave out --device to use the processor"
        )


def describe_device(device: str) -> str:
    """Describe what the runtime table runs on."""
    processor = f"the processor ({_name_processor()}, {os.cpu_count()} threads)"
    if device == "cuda":
        import torch

        return f"cuda ({torch.cuda.get_device_name()}); the index on {processor}"
    return processor if device == "cpu" else f"{device}; the index on {processor}"


def _name_processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def time_exact(
    gallery: Any, references: Any, *, reference_k: int, alpha: float, device: str = "cpu"
) -> Timed:
    """Fit NNN from all scores."""
    items, bank = open_embeddings(gallery), open_embeddings(references)
    solver: Any = "exact" if device == "cpu" else device
    method = NNN(reference_k, alpha)
    return Timed(*_time(lambda: method.fit(items, bank, duplicates="keep", solver=solver)))


def time_index(gallery: Any, references: Any, *, reference_k: int, alpha: float) -> Timed:
    """Fit NNN with an index that was built beforehand."""
    items, bank = (
        np.ascontiguousarray(open_embeddings(side), dtype=np.float32)
        for side in (gallery, references)
    )
    n_probe = 32 if len(items) <= 100_000 else 8
    index = build_ivf(bank)
    values, seconds = _time(
        lambda: ivf_means(items, bank, reference_k, index=index, n_probe=n_probe)
    )
    about = {"reference_k": reference_k, "alpha": alpha, "solver": "faiss-ivf", "n_probe": n_probe}
    return Timed(Bias(values, alpha, "nnn", about), seconds)


def _time(work: Callable[[], T]) -> tuple[T, float]:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return result, min(times)
