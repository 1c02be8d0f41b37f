"""Time to compute biases, from all scores or with an index of the references, as in table A5.

All scores are computed on the processor, or with torch on another device. The index is Faiss's
inverted lists (`pip install faiss-cpu`), as in the paper, and always on the processor. Building it
isn't counted, because a bank needs it only once. Times are the best of three, to reduce the effect
of other programs.
"""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnnorm import NNN, Bias, NNNormError
from nnnorm.embeddings import FloatArray
from nnnorm.errors import require

T = TypeVar("T")
DEVICES = ("cpu", "cuda", "mps")


class Timed(NamedTuple):
    """A bias, and the seconds that its computation took."""

    bias: Bias
    seconds: float


def describe_device(device: str) -> str:
    """Describe the hardware; raise an error if this machine doesn't have it."""
    processor = f"the processor ({_name_processor()}, {os.cpu_count()} threads)"
    if device == "cpu":
        return processor
    import torch

    if not (torch.cuda if device == "cuda" else torch.backends.mps).is_available():
        raise NNNormError(
            f"--device {device} needs such a device, but torch {torch.__version__} finds none; to "
            "use the processor, leave out --device"
        )
    name = f" ({torch.cuda.get_device_name()})" if device == "cuda" else ""
    return f"{device}{name}; the index on {processor}"


def _name_processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def time_exact(
    gallery: Any, references: Any, *, reference_k: int, alpha: float, device: str = "cpu"
) -> Timed:
    """Fit NNN from all scores."""
    solver: Any = "exact" if device == "cpu" else device
    method = NNN(reference_k, alpha)
    return Timed(*_time(lambda: method.fit(gallery, references, duplicates="keep", solver=solver)))


def time_index(gallery: Any, references: Any, *, reference_k: int, alpha: float) -> Timed:
    """Fit NNN with an index that was built beforehand."""
    items, bank = (np.ascontiguousarray(side, dtype=np.float32) for side in (gallery, references))
    index, n_probe = build_ivf(bank), 32 if len(items) <= 100_000 else 8
    values, seconds = _time(lambda: ivf_means(items, bank, reference_k, index, n_probe))
    about = {"reference_k": reference_k, "alpha": alpha, "solver": "faiss-ivf", "n_probe": n_probe}
    return Timed(Bias(values, alpha, "nnn", about), seconds)


def _time(work: Callable[[], T]) -> tuple[T, float]:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return result, min(times)


def build_ivf(references: FloatArray) -> Any:
    """Build an index of the references with about 4·√n inverted lists."""
    faiss = require("faiss", "faiss")
    n_references, dim = references.shape
    n_lists = max(1, min(n_references, round(4 * n_references**0.5)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, n_lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # Faiss would warn about small banks
    index.train(references)
    index.add(references)
    return index


def ivf_means(
    gallery: FloatArray, references: FloatArray, k: int, index: Any, n_probe: int
) -> FloatArray:
    """Return the mean of the k best scores that the index finds for every item."""
    index.nprobe = min(n_probe, index.nlist)
    found, ids = index.search(gallery, k)
    short = (ids < 0).any(axis=1)
    if short.any():
        found[short] = np.partition(gallery[short] @ references.T, -k, axis=1)[:, -k:]
    return np.asarray(found.mean(axis=1, dtype=np.float64), dtype=np.float32)
