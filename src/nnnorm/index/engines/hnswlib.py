"""hnswlib (`pip install 'nnnorm[hnswlib]'`): a graph, by inner product.

hnswlib returns distances, ``1 − product``; they are converted back to products.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.backend import FloatArray, GraphOptions, Ids, Layout, whole
from nnnorm.index.folder import FolderBackend, Labels, Loaded


@dataclass(frozen=True, kw_only=True)
class HnswlibOptions(GraphOptions):
    """Options of hnswlib; `dim` is the dimension of a file to copy."""

    threads: int = whole(0, at_least=0, at_most=1024)
    dim: int = whole(0, at_least=0)


class HnswlibBackend(FolderBackend):
    """An hnswlib index."""

    engine, options_type = "hnswlib", HnswlibOptions
    options: HnswlibOptions
    created_by = ("links", "ef_construction")

    def _create(self, layout: Layout) -> Any:
        index = require("hnswlib", "hnswlib").Index(space="ip", dim=layout.width)
        built = {"M": self.options.links, "ef_construction": self.options.ef_construction}
        index.init_index(max_elements=max(1, layout.n_items), **built)
        return index

    def _load(self, path: Path, width: int) -> Any:
        index = require("hnswlib", "hnswlib").Index(space="ip", dim=width)
        index.load_index(str(path))
        return index

    def _dump(self, index: Any, path: Path) -> None:
        index.save_index(str(path))

    def _copy(self, index: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            self._dump(index, Path(folder) / "index")
            return self._load(Path(folder) / "index", index.dim)

    def _add(self, index: Any, labels: Labels, vectors: FloatArray) -> None:
        needed = index.get_current_count() + len(labels)
        if needed > index.get_max_elements():
            index.resize_index(max(needed, index.get_max_elements() * 5 // 4))
        index.add_items(vectors, labels, num_threads=self.options.threads or -1)

    def _remove(self, index: Any, labels: Labels) -> None:
        for label in labels.tolist():
            index.mark_deleted(label)

    def _vectors(self, index: Any, labels: Labels) -> FloatArray:
        found = index.get_items(labels) if len(labels) else []
        return np.array(found, dtype=np.float32).reshape(len(labels), -1)

    def _find(self, loaded: Loaded, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        if (needed := max(self.options.ef, k)) > loaded.breadth:
            loaded.index.set_ef(needed)
            loaded.breadth = needed
        try:
            threads = self.options.threads or -1
            labels, distances = loaded.index.knn_query(queries, k, num_threads=threads)
        except RuntimeError:  # it found fewer than k
            return self._compare(loaded, loaded.labels, queries, k)
        return labels.astype(np.int64), 1 - distances

    def _read_file(self, path: Path) -> tuple[Ids, FloatArray]:
        if not self.options.dim:
            raise NNNormError(f"{path} doesn't store its dimension; add it, as in {path}?dim=512")
        index = self._load(path, self.options.dim)
        ids = np.array(index.get_ids_list(), dtype=np.int64)
        return ids, self._vectors(index, ids)
