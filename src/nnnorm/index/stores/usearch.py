"""usearch (`pip install 'nnnorm[usearch]'`): a graph in memory and in one file.

Left to itself it stores bf16, three digits, and the correction drowns in the rounding; here it is
asked for f32. It returns ``1 − product`` and calls that a distance. Adding from several threads
leaves items that no search finds again (its issue 735), so here one thread adds.
"""

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require
from nnnorm.index.store import Sample, StoreMetric, Way
from nnnorm.index.stores.local import LocalStore

__all__ = ["Precision", "UsearchStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]
Precision = Literal["f32", "f16", "bf16", "i8"]
_METRICS: dict[StoreMetric, str] = {"ip": "ip", "cosine": "cos", "l2": "l2sq"}


class UsearchStore(LocalStore):
    """A usearch index in memory, and in a file where there is a path.

    Parameters
    ----------
    path : str or PathLike, optional
        A file that `Index.save` wrote, or that `save` will write.
    dtype : {"f32", "f16", "bf16", "i8"}
        How a new index stores numbers; "i8" serves the way "cosine" alone.
    links : int
        Of each item (usearch's connectivity).
    ef_construction, ef : int
        Breadth of the search while building and searching (its expansions).
    threads : int
        Of a search; 0 takes all cores. One thread builds, whatever this says.
    """

    engine = "usearch"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    is_graph = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        dtype: Precision = "f32",
        links: int = 32,
        ef_construction: int = 128,
        ef: int = 128,
        threads: int = 0,
    ) -> None:
        super().__init__(path)
        if dtype not in get_args(Precision):
            raise NNNormError(
                f"dtype must be one of {', '.join(get_args(Precision))}; got {dtype!r}"
            )
        self._dtype: Precision = dtype
        if dtype == "i8":  # every vector is normalised first, which equal norms survive
            self.ways, self.is_quantized = ("cosine",), True
        self._threads = threads
        self._links, self._ef_construction, self._ef = links, ef_construction, ef

    def _create(self, width: int, metric: StoreMetric, sample: Sample) -> None:
        # Whole eights are quick: of 256 numbers and one, it compares 264 faster than 257.
        self._settings = {"padding": -width % 8}
        self._index = require("usearch.index", "usearch").Index(
            ndim=width + self._padding,
            metric=_METRICS[metric],
            dtype=self._dtype,
            connectivity=self._links,
            expansion_add=self._ef_construction,
        )

    def traps(self) -> list[str]:
        self._open()
        kind = str(self._index.dtype).rpartition(".")[2].lower()
        if kind == "f32" or self._note is not None:  # who asked for few bits knows it
            return []
        return [f"it stores {kind}, usearch's choice where none is made: build it with dtype=f32"]

    def _load(self, path: Path) -> Any:
        usearch = require("usearch.index", "usearch")
        index = usearch.Index.restore(str(path))
        if index is None:
            raise ValueError("no usearch header")
        if str(index.dtype).lower().endswith("i8"):
            self.is_quantized = True
        return index

    def _dump(self, path: Path) -> None:
        self._index.save(str(path))

    def _describe(self) -> tuple[int, StoreMetric]:
        kind = str(self._index.metric_kind).rpartition(".")[2].lower()
        metrics: dict[str, StoreMetric] = {"ip": "ip", "cos": "cosine", "l2sq": "l2"}
        if kind not in metrics:
            raise NNNormError(
                f"{self.name} compares by {kind}; expected inner product, cosine or L2"
            )
        return self._index.ndim - self._padding, metrics[kind]

    def _labels(self) -> Labels:
        return np.array(self._index.keys, dtype=np.int64)

    def _add(self, labels: Labels, vectors: FloatArray) -> None:
        self._index.add(labels.astype(np.uint64), self._pad(vectors), threads=1)

    def _remove(self, labels: Labels) -> None:
        self._index.remove(labels.astype(np.uint64))

    def _search(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        self._index.expansion_search = max(self._ef, k)
        found = self._index.search(self._pad(queries), k, threads=self._threads)
        labels = np.array(found.keys).astype(np.int64).reshape(len(queries), -1)
        distances = np.array(found.distances, dtype=np.float32).reshape(len(queries), -1)
        counts = np.atleast_1d(getattr(found, "counts", len(found)))
        empty = np.arange(labels.shape[1]) >= counts[:, None]
        distances[empty] = 0  # whatever was in memory
        scores = -distances if self._describe()[1] == "l2" else 1 - distances
        return np.where(empty, -1, labels), scores

    def _vectors(self, labels: Labels) -> FloatArray:
        rows = np.array(self._index.get(labels.astype(np.uint64)), dtype=np.float32)
        return np.ascontiguousarray(rows[:, : self._describe()[0]])
