"""usearch (`pip install 'nnnorm[usearch]'`): a graph in memory and in one file.

By default usearch stores bf16, about three digits, which hides a part of the correction; here it
stores f32. It returns ``1 − product`` as a distance. Adding from several threads leaves items that
no search finds (usearch issue 735), so items are added by one thread.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import ef, ef_construction, links, option, threads
from nnnorm.index.store import FloatArray, Place, Sample, StoreMetric, Way
from nnnorm.index.stores.local import Labels, LocalOptions, LocalStore

_METRICS: dict[str, StoreMetric] = {"ip": "ip", "cos": "cosine", "l2sq": "l2"}


@dataclass(frozen=True, kw_only=True)
class UsearchOptions(LocalOptions):
    """Options of usearch, whose own names are connectivity and expansions."""

    dtype: Literal["f32", "f16", "bf16", "i8"] = option(
        "f32", "How a new index stores numbers; `i8` supports the way `cosine` only."
    )
    links: int = links(32)
    ef_construction: int = ef_construction(128)
    ef: int = ef()
    threads: int = threads("Threads of a search; 0 uses all cores. Items are added by one.")


class UsearchStore(LocalStore):
    """A usearch index in memory, and in a file where there is a path.

    Parameters
    ----------
    place : str or PathLike, optional
        A file that `Index.save` wrote, or that `save` will write.
    """

    engine = "usearch"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    is_graph = True
    options_type = UsearchOptions
    options: UsearchOptions

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        if self.options.dtype == "i8":  # it divides every vector by its norm
            self._set_i8()

    def _set_i8(self) -> None:
        self.ways = ("cosine",)
        self.is_quantized = self.has_one_range = self.is_lossy = True

    def _take_settings(self, source: "UsearchStore") -> None:
        graph = source._index
        taken: dict[str, Any] = {
            "dtype": str(graph.dtype).rpartition(".")[2].lower(),
            "links": graph.connectivity,
            "ef_construction": graph.expansion_add,
        }
        self.options = replace(self.options, **taken)
        if taken["dtype"] == "i8":
            self._set_i8()

    def _create(self, width: int, metric: StoreMetric, sample: Sample) -> None:
        # Multiples of 8 are faster: 264 numbers take less time than 257.
        self._settings = {"padding": -width % 8}
        self._index = require("usearch.index", "usearch").Index(
            ndim=width + self._padding,
            metric=next(own for own, known in _METRICS.items() if known == metric),
            dtype=self.options.dtype,
            connectivity=self.options.links,
            expansion_add=self.options.ef_construction,
        )

    def traps(self) -> list[str]:
        self._open()
        kind = str(self._index.dtype).rpartition(".")[2].lower()
        if kind == "f32" or self._note is not None:  # then it was asked for
            return []
        return [f"it stores {kind}, the default of usearch: build it with dtype=f32"]

    def _load(self, path: Path) -> Any:
        usearch = require("usearch.index", "usearch")
        index = usearch.Index.restore(str(path))
        if index is None:
            raise ValueError("no usearch header")
        if str(index.dtype).lower().endswith("i8"):
            self._set_i8()
        return index

    def _dump(self, path: Path) -> None:
        self._index.save(str(path))

    def _describe(self) -> tuple[int, StoreMetric]:
        kind = str(self._index.metric_kind).rpartition(".")[2].lower()
        if kind not in _METRICS:
            raise NNNormError(
                f"{self.name} compares by {kind}; expected inner product, cosine or L2"
            )
        return self._index.ndim - self._padding, _METRICS[kind]

    def _labels(self) -> Labels:
        return np.array(self._index.keys, dtype=np.int64)

    def _add(self, labels: Labels, vectors: FloatArray) -> None:
        self._index.add(labels.astype(np.uint64), self._encode(vectors), threads=1)

    def _remove(self, labels: Labels) -> None:
        self._index.remove(labels.astype(np.uint64))

    def _search(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        self._index.expansion_search = max(self.options.ef, k)
        found = self._index.search(self._encode(queries), k, threads=self.options.threads)
        labels = np.array(found.keys).astype(np.int64).reshape(len(queries), -1)
        distances = np.array(found.distances, dtype=np.float32).reshape(len(queries), -1)
        counts = np.atleast_1d(getattr(found, "counts", len(found)))
        empty = np.arange(labels.shape[1]) >= counts[:, None]
        distances[empty] = 0  # uninitialised memory
        scores = -distances if self._describe()[1] == "l2" else 1 - distances
        return np.where(empty, -1, labels), scores

    def _encode(self, rows: FloatArray) -> npt.NDArray[Any]:
        """Pad rows, and round them to whole numbers where the index stores these.

        usearch itself divides a row by its norm first, and then uses a quarter of the range of 8
        bits. The cosine is the same whatever the length, so that each row can have all of it.
        """
        padded = self._pad(rows)
        if not self.is_quantized:
            return padded
        largest = np.abs(padded).max(axis=1, keepdims=True)
        return np.rint(padded * (127 / np.maximum(largest, 1e-30))).astype(np.int8)

    def _vectors(self, labels: Labels) -> FloatArray:
        rows = np.array(self._index.get(labels.astype(np.uint64)), dtype=np.float32)
        return np.ascontiguousarray(rows[:, : self._describe()[0]])
