"""usearch (`pip install 'nnnorm[usearch]'`): a graph, by inner product.

By default, usearch stores bf16, which loses part of the correction; here it stores f32. If several
threads add items, some are never found (usearch issue 735), so one thread adds them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.backend import FloatArray, GraphOptions, Ids, Layout, whole
from nnnorm.index.folder import FolderBackend, Labels, Loaded


@dataclass(frozen=True, kw_only=True)
class UsearchOptions(GraphOptions):
    """Options of usearch, which calls them connectivity and expansions."""

    ef_construction: int = whole(128)
    threads: int = whole(0, at_least=0, at_most=1024)


class UsearchBackend(FolderBackend):
    """A usearch index."""

    engine, options_type = "usearch", UsearchOptions
    options: UsearchOptions
    created_by = ("links", "ef_construction")

    def _create(self, layout: Layout) -> Any:
        made = require("usearch.index", "usearch").Index
        graph = {"connectivity": self.options.links, "expansion_add": self.options.ef_construction}
        return made(ndim=layout.width, metric="ip", dtype="f32", **graph)

    def _load(self, path: Path, width: int) -> Any:
        return require("usearch.index", "usearch").Index.restore(str(path))

    def _dump(self, index: Any, path: Path) -> None:
        index.save(str(path))

    def _copy(self, index: Any) -> Any:
        return index.copy()

    def _add(self, index: Any, labels: Labels, vectors: FloatArray) -> None:
        index.add(labels.astype(np.uint64), vectors, threads=1)

    def _remove(self, index: Any, labels: Labels) -> None:
        index.remove(labels.astype(np.uint64))

    def _vectors(self, index: Any, labels: Labels) -> FloatArray:
        return np.array(index.get(labels.astype(np.uint64)), dtype=np.float32)

    def _find(self, loaded: Loaded, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        if (needed := max(self.options.ef, k)) > loaded.breadth:
            loaded.index.expansion_search = loaded.breadth = needed
        found = loaded.index.search(queries, k, threads=self.options.threads)
        labels = np.array(found.keys).astype(np.int64).reshape(len(queries), -1)
        distances = np.array(found.distances, dtype=np.float32).reshape(len(queries), -1)
        counts = np.atleast_1d(getattr(found, "counts", len(found)))
        empty = np.arange(labels.shape[1]) >= counts[:, None]
        return np.where(empty, -1, labels), np.where(empty, 0, 1 - distances)

    def _read_file(self, path: Path) -> tuple[Ids, FloatArray]:
        index = self._load(path, 0)
        if index is None:
            raise NNNormError(f"{path} isn't a usearch index; check the path")
        keys = index.keys.__array__(np.uint64)  # np.array passes `copy`, which it doesn't take
        return keys.astype(np.int64), np.array(index.get(keys), dtype=np.float32)
