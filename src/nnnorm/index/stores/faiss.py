"""Faiss (`pip install 'nnnorm[faiss]'`): Flat, IVF, HNSW, scalar- and product-quantised.

Labels are the caller's ids (`IndexIDMap2`, or IVF's own). Product quantisation wants a dimension
that its parts divide, which one extra coordinate spoils: zeros fill it up, also where it is only
faster so. HNSW can't delete.
"""

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require
from nnnorm.index.store import Sample, StoreMetric, Way
from nnnorm.index.stores.local import LocalStore

__all__ = ["FaissKind", "FaissStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]
FaissKind = Literal["flat", "ivf", "hnsw", "sq", "pq"]


class FaissStore(LocalStore):
    """A Faiss index in memory, and in a file where there is a path.

    Parameters
    ----------
    path : str or PathLike, optional
        A file that `faiss.write_index` wrote, or that `save` will write.
    kind : {"flat", "ivf", "hnsw", "sq", "pq"}
        Of a new index. "sq" stores 8 bits per number, "pq" 8 bits per two numbers.
    links : int
        Of each item, for "hnsw".
    ef_construction, ef : int
        Breadth of "hnsw" while building and searching.
    cells : int
        Of "ivf"; 0 takes 4·sqrt(n).
    probes : int
        Cells that a search of "ivf" looks into; 0 takes an eighth of them.
    part : int
        Coordinates per byte of "pq".
    refine : int
        Of a quantised kind: fetch so many times k by the codes and score those by float32 vectors,
        which are stored too. 0 keeps the codes alone.
    """

    engine = "faiss"
    ways: tuple[Way, ...] = ("ip", "l2", "rerank")

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        kind: FaissKind = "flat",
        links: int = 32,
        ef_construction: int = 100,
        ef: int = 128,
        cells: int = 0,
        probes: int = 0,
        part: int = 2,
        refine: int = 0,
    ) -> None:
        if kind not in get_args(FaissKind):
            raise NNNormError(f"kind must be one of {', '.join(get_args(FaissKind))}; got {kind!r}")
        super().__init__(path)
        self._kind: FaissKind = kind
        self._links, self._ef_construction, self._ef = links, ef_construction, ef
        self._cells, self._probes, self._part = cells, probes, part
        self._refine = refine
        self._set_flags(kind)

    def _set_flags(self, kind: FaissKind) -> None:
        self._kind = kind
        self.can_delete = kind != "hnsw" and not self._refine  # Faiss offers no more
        self.is_graph = kind == "hnsw"
        self.is_quantized = kind in ("sq", "pq")

    def _create(self, width: int, metric: StoreMetric, sample: Sample) -> None:
        faiss = require("faiss", "faiss")
        by = faiss.METRIC_INNER_PRODUCT if metric == "ip" else faiss.METRIC_L2
        # Scalar quantisers are quick with whole eights only. A flat scan reads every number, zeros
        # as well: 257 take 1 % longer than 256, 264 take 4 %.
        multiple = {"pq": self._part, "flat": 1}.get(self._kind, 8)
        self._settings = {"padding": -width % multiple}
        total = width + self._padding
        if self._kind == "hnsw":
            bare = faiss.IndexHNSWFlat(total, self._links, by)
            bare.hnsw.efConstruction = self._ef_construction
        elif self._kind == "ivf":
            n_items = sample.n_items
            cells = self._cells or max(1, min(int(4 * n_items**0.5), n_items // 39))
            quantizer = faiss.IndexFlat(total, by)
            bare = faiss.IndexIVFFlat(quantizer, total, cells, by)
            bare.cp.min_points_per_centroid = 1
            bare.set_direct_map_type(faiss.DirectMap.Hashtable)
        elif self._kind == "sq":
            bare = faiss.IndexScalarQuantizer(total, faiss.ScalarQuantizer.QT_8bit, by)
        elif self._kind == "pq":
            bare = faiss.IndexPQ(total, total // self._part, 8, by)
            bare.pq.cp.min_points_per_centroid = 1
        else:
            bare = faiss.IndexFlat(total, by)
        if self._refine and self.is_quantized:
            bare = faiss.IndexRefineFlat(bare)
            bare.k_factor = self._refine
        if not bare.is_trained:
            rows = self._pad(sample.vectors())
            # Product quantisation learns 256 centres and refuses fewer rows.
            bare.train(rows if len(rows) >= 256 else np.resize(rows, (256, total)))
        self._index = bare if self._kind == "ivf" else faiss.IndexIDMap2(bare)

    def _load(self, path: Path) -> Any:
        faiss = require("faiss", "faiss")
        index = faiss.read_index(str(path))
        inside, bare = self._inside(index), self._bare(index)
        if isinstance(inside, faiss.IndexRefine):
            self._refine = self._refine or int(inside.k_factor)
        if isinstance(bare, faiss.IndexIVF):
            bare.set_direct_map_type(faiss.DirectMap.Hashtable)
        kinds: list[tuple[FaissKind, Any]] = [
            ("hnsw", faiss.IndexHNSW),
            ("ivf", faiss.IndexIVF),
            ("sq", faiss.IndexScalarQuantizer),
            ("pq", faiss.IndexPQ),
        ]
        self._set_flags(next((name for name, kind in kinds if isinstance(bare, kind)), "flat"))
        return index

    def _dump(self, path: Path) -> None:
        require("faiss", "faiss").write_index(self._index, str(path))

    def _describe(self) -> tuple[int, StoreMetric]:
        faiss = require("faiss", "faiss")
        metrics: dict[int, StoreMetric] = {faiss.METRIC_INNER_PRODUCT: "ip", faiss.METRIC_L2: "l2"}
        if self._index.metric_type not in metrics:
            raise NNNormError(
                f"{self.name} compares by Faiss' metric {self._index.metric_type}; expected inner "
                "product or L2"
            )
        return self._index.d - self._padding, metrics[self._index.metric_type]

    def _labels(self) -> Labels:
        faiss = require("faiss", "faiss")
        if hasattr(self._index, "id_map"):
            return faiss.vector_to_array(self._index.id_map)
        if self._kind == "ivf":
            lists = self._index.invlists
            return np.concatenate(
                [
                    faiss.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell)).copy()
                    for cell in range(lists.nlist)
                    if lists.list_size(cell)
                ]
                or [np.arange(0)]
            )
        return np.arange(self._index.ntotal)  # someone else's index, without ids

    def _add(self, labels: Labels, vectors: FloatArray) -> None:
        self._index.add_with_ids(self._pad(vectors), labels)

    def _remove(self, labels: Labels) -> None:
        self._index.remove_ids(require("faiss", "faiss").IDSelectorArray(labels))

    def _search(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        bare = self._bare(self._index)
        if self._kind == "hnsw":
            bare.hnsw.efSearch = max(self._ef, k)
        elif self._kind == "ivf":
            bare.nprobe = self._probes or -(-bare.nlist // 8)
        if self._refine and self.is_quantized:
            self._inside(self._index).k_factor = self._refine
        scores, labels = self._index.search(self._pad(queries), k)
        return labels, scores if self._describe()[1] == "ip" else -scores

    def _vectors(self, labels: Labels) -> FloatArray:
        index, places = self._index, labels
        id_map_2 = require("faiss", "faiss").IndexIDMap2
        if hasattr(index, "id_map") and not isinstance(index, id_map_2):  # IndexIDMap, of others
            order = np.argsort(self._labels())
            places = order[np.searchsorted(self._labels(), labels, sorter=order)]
            index = self._inside(index)
        rows = np.stack([index.reconstruct(int(place)) for place in places])
        return np.ascontiguousarray(rows[:, : self._describe()[0]])

    @staticmethod
    def _inside(index: Any) -> Any:
        """What stands under the ids."""
        downcast = require("faiss", "faiss").downcast_index
        return downcast(index.index) if hasattr(index, "id_map") else index

    def _bare(self, index: Any) -> Any:
        """What stands under the ids and the refinement."""
        faiss = require("faiss", "faiss")
        inside = self._inside(index)
        refined = isinstance(inside, faiss.IndexRefine)
        return faiss.downcast_index(inside.base_index) if refined else inside
