"""hnswlib (`pip install 'nnnorm[hnswlib]'`): a graph in memory and in one file.

hnswlib returns ``1 − product`` as a distance; scores here are products again. Its file contains
neither dimension nor metric: the file beside it does, or the options `dim` and `metric` do.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import ef, ef_construction, links, option, threads
from nnnorm.index.store import FloatArray, Sample, StoreMetric
from nnnorm.index.stores.local import Labels, LocalOptions, LocalStore


@dataclass(frozen=True, kw_only=True)
class HnswlibOptions(LocalOptions):
    """Options of hnswlib."""

    links: int = links(32)
    ef_construction: int = ef_construction()
    ef: int = ef()
    threads: int = threads("Number of threads; 0 uses all cores, 1 builds reproducibly.")
    dim: int = option(0, "Dimension of a file that nnnorm did not write.")
    metric: Literal["ip", "cosine", "l2"] = option(
        "ip", "Metric of a file that nnnorm did not write."
    )


class HnswlibStore(LocalStore):
    """An hnswlib index in memory, and in a file where there is a path.

    Parameters
    ----------
    place : str or PathLike, optional
        A file that `save_index` wrote, or that `save` will write.
    """

    engine = "hnswlib"
    ways = ("ip", "l2", "rerank")
    is_graph = True
    keeps_vectors = False
    options_type = HnswlibOptions
    options: HnswlibOptions

    @property
    def _threads(self) -> int:
        return self.options.threads or -1

    def _create(self, width: int, metric: StoreMetric, sample: Sample) -> None:
        self._settings = {"dim": width, "metric": metric, "deleted": []}
        self._index = require("hnswlib", "hnswlib").Index(space=metric, dim=width)
        self._index.init_index(
            max_elements=sample.n_items,
            M=self.options.links,
            ef_construction=self.options.ef_construction,
        )

    def _take_settings(self, source: "HnswlibStore") -> None:
        graph = source._index
        self.options = replace(self.options, links=graph.M, ef_construction=graph.ef_construction)

    def _load(self, path: Path) -> Any:
        if not self._settings:
            dim, metric = self.options.dim, self.options.metric
            if not dim:
                raise NNNormError(
                    f"{path} does not contain its dimension and metric (hnswlib keeps neither); "
                    "add them, as in hnswlib:photos.hnsw?dim=512&metric=cosine"
                )
            self._settings = {"dim": dim, "metric": metric, "deleted": []}
        index = require("hnswlib", "hnswlib").Index(
            space=self._settings["metric"], dim=self._settings["dim"]
        )
        index.load_index(str(path))
        return index

    def _dump(self, path: Path) -> None:
        self._index.save_index(str(path))

    def _describe(self) -> tuple[int, StoreMetric]:
        return self._settings["dim"], self._settings["metric"]

    def _labels(self) -> Labels:
        labels = np.array(self._index.get_ids_list(), dtype=np.int64)
        return np.setdiff1d(labels, np.array(self._settings["deleted"], dtype=np.int64))

    def _add(self, labels: Labels, vectors: FloatArray) -> None:
        deleted = set(self._settings["deleted"])
        back = [label for label in labels.tolist() if label in deleted]
        for label in back:
            self._index.unmark_deleted(label)
        self._settings["deleted"] = sorted(deleted - set(back))
        needed = self._index.get_current_count() + len(labels) - len(back)
        if needed > self._index.get_max_elements():
            self._index.resize_index(max(needed, 2 * self._index.get_max_elements()))
        self._index.add_items(vectors, labels, num_threads=self._threads)

    def _remove(self, labels: Labels) -> None:
        for label in labels.tolist():
            self._index.mark_deleted(label)
        self._settings["deleted"] = sorted({*self._settings["deleted"], *labels.tolist()})

    def _search(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        n_items = self._index.get_current_count()
        found = k
        for breadth in (max(self.options.ef, k), n_items):
            self._index.set_ef(breadth)
            try:
                labels, distances = self._index.knn_query(queries, k, num_threads=self._threads)
                break
            except RuntimeError:  # hnswlib raises where it finds fewer than k
                continue
        else:
            labels, distances, found = self._search_fewer(queries, k)
        scores = -distances if self._settings["metric"] == "l2" else 1 - distances
        labels = labels.astype(np.int64)
        if found < k:
            missing = ((0, 0), (0, k - found))
            labels, scores = np.pad(labels, missing, constant_values=-1), np.pad(scores, missing)
        return labels, scores

    def _search_fewer(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray, int]:
        while k > 1:
            k //= 2
            try:
                return *self._index.knn_query(queries, k, num_threads=self._threads), k
            except RuntimeError:
                continue
        return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32), 0

    def _vectors(self, labels: Labels) -> FloatArray:
        found = self._index.get_items(labels) if len(labels) else []
        return np.array(found, dtype=np.float32).reshape(len(labels), -1)
