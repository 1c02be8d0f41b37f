"""m_k by Faiss's inverted lists, as in the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import require
from nnnorm.io import Embeddings, Progress
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, top_means

FloatArray: TypeAlias = npt.NDArray[np.float32]


def build_ivf(references: Embeddings) -> Any:
    """Build a Faiss index with about 4·√n inverted lists, once per bank.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)

    Returns
    -------
    faiss.IndexIVFFlat

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> build_ivf(open_embeddings(np.eye(9))).nlist
    9
    """
    faiss = require("faiss", extra="faiss")
    n_references, dim = len(references), references.dim
    n_lists = max(1, min(n_references, round(4 * n_references**0.5)))
    quantizer = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFFlat(quantizer, dim, n_lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # small banks need no warning
    rows = np.array(references.rows(0, n_references))
    index.train(rows)
    index.add(rows)
    return index


def ivf_means(
    gallery: Embeddings,
    references: Embeddings,
    k: int,
    *,
    quality: int,
    index: Any = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Compute the mean of the k best scores that an inverted-list index finds for every item.

    If the lists that an item probes hold fewer than k references, Faiss pads with index −1 and
    score −3.4e38; such items are computed exactly instead.

    Parameters
    ----------
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings, shape (n_references, dim)
    k : int
    quality : int
        Number of inverted lists to probe per item (``nprobe``), of about 4·√n.
    index : faiss.IndexIVFFlat, optional
        Index of these references from `build_ivf`; built here by default.
    memory_budget : int
        Bytes for the items that are computed exactly. Faiss itself holds all references.
    progress : callable, optional

    Returns
    -------
    ndarray, shape (n_gallery,), float32

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = open_embeddings(np.eye(8))
    >>> ivf_means(rows, rows, 2, quality=8).tolist()
    [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    """
    n_items = len(gallery)
    index = build_ivf(references) if index is None else index
    index.nprobe = min(quality, index.nlist)
    means = np.empty(n_items, dtype=np.float32)
    is_short = np.empty(n_items, dtype=bool)
    for start in range(0, n_items, 8192):
        stop = min(start + 8192, n_items)
        found, ids = index.search(np.array(gallery.rows(start, stop)), k)
        is_short[start:stop] = (ids < 0).any(axis=1)
        means[start:stop] = found.mean(axis=1, dtype=np.float64)
        if progress is not None:
            progress(stop, n_items)
    if is_short.any():
        scores = Products(gallery, references, memory_budget=memory_budget)
        short = np.flatnonzero(is_short)
        means[short] = top_means(scores.some_rows(short), k, memory_budget=memory_budget)
    return means


@dataclass(frozen=True, eq=False)
class IVFModel:
    """A Faiss index of a bank, for `dispatch.py`.

    Attributes
    ----------
    index : faiss.IndexIVFFlat
    k, quality : int
    """

    index: Any
    k: int
    quality: int

    @classmethod
    def learn(cls, references: Embeddings, k: int, quality: int) -> "IVFModel":
        """Build the index of a bank."""
        return cls(build_ivf(references), k, quality)

    def means(
        self,
        products: Products,
        *,
        first_row: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> FloatArray:
        """Compute the means of some items by the index."""
        return ivf_means(
            products.rows,
            products.columns,
            self.k,
            quality=self.quality,
            index=self.index,
            memory_budget=memory_budget,
            progress=progress,
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The index with its bank, as arrays; `from_arrays` reads them."""
        faiss = require("faiss", extra="faiss")
        numbers = np.array([self.k, self.quality], dtype=np.int64)
        return {"index": faiss.serialize_index(self.index), "numbers": numbers}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "IVFModel":
        """Read what `to_arrays` gave."""
        faiss = require("faiss", extra="faiss")
        k, quality = (int(number) for number in arrays["numbers"])
        return cls(faiss.deserialize_index(arrays["index"]), k, quality)
