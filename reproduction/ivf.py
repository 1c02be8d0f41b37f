"""m_k by Faiss's inverted lists, the paper's index (`pip install faiss-cpu`)."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import MissingExtraError

FloatArray: TypeAlias = npt.NDArray[np.float32]
_BLOCK = 8192  # items per search


def build_ivf(references: FloatArray) -> Any:
    """Build an index of the references with about 4·√n inverted lists."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("the runtime table needs Faiss: pip install faiss-cpu") from error
    n_references, dim = references.shape
    n_lists = max(1, min(n_references, round(4 * n_references**0.5)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, n_lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # small banks need no warning
    index.train(references)
    index.add(references)
    return index


def ivf_means(
    gallery: FloatArray, references: FloatArray, k: int, *, index: Any, n_probe: int
) -> FloatArray:
    """Return the mean of the k best scores that the index finds for every item."""
    index.nprobe = min(n_probe, index.nlist)
    means = np.empty(len(gallery), dtype=np.float32)
    for start in range(0, len(gallery), _BLOCK):
        block = gallery[start : start + _BLOCK]
        found, ids = index.search(block, k)
        short = (ids < 0).any(axis=1)
        if short.any():
            found[short] = np.partition(block[short] @ references.T, -k, axis=1)[:, -k:]
        means[start : start + len(block)] = found.mean(axis=1, dtype=np.float64)
    return means
