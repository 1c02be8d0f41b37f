"""m_k by Faiss's inverted lists, the paper's vector index of the references."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.errors import require
from nnnorm.io import Embeddings
from nnnorm.scoring import Products, top_means


def build_ivf(references: Embeddings) -> Any:
    """Build a ``faiss.IndexIVFFlat`` with about 4·√n inverted lists."""
    faiss = require("faiss", extra="faiss")
    n_references, dim = references.shape
    n_lists = max(1, min(n_references, round(4 * n_references**0.5)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, n_lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # small banks need no warning
    rows = np.array(references.rows(0, n_references))
    index.train(rows)
    index.add(rows)
    return index


def ivf_means(
    gallery: Embeddings, references: Embeddings, k: int, *, quality: int, index: Any
) -> npt.NDArray[np.float32]:
    """Compute the mean of the k best scores that an index finds for every item.

    `quality` lists are probed per item (``nprobe``). If these hold fewer than k references, Faiss
    pads with index −1 and score −3.4e38; such items are computed exactly instead.
    """
    n_items = len(gallery)
    index.nprobe = min(quality, index.nlist)
    means = np.empty(n_items, dtype=np.float32)
    is_short = np.empty(n_items, dtype=bool)
    for start in range(0, n_items, 8192):
        stop = min(start + 8192, n_items)
        found, ids = index.search(np.array(gallery.rows(start, stop)), k)
        is_short[start:stop] = (ids < 0).any(axis=1)
        means[start:stop] = found.mean(axis=1, dtype=np.float64)
    short = np.flatnonzero(is_short)
    if len(short):
        means[short] = top_means(Products(gallery, references).some_rows(short), k)
    return means
