"""Faiss (`pip install 'nnnorm[faiss]'`): flat, IVF, HNSW, scalar- and product-quantised indexes.

Labels are the caller's ids (`IndexIDMap2`, or IVF's own). Product quantisation needs a dimension
that its parts divide, which one extra coordinate breaks: rows are padded with zeros, also where
that is only faster. HNSW can't delete.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.options import ef, ef_construction, links, option
from nnnorm.index.store import FloatArray, Place, Sample, StoreMetric, Way
from nnnorm.index.stores.local import Labels, LocalOptions, LocalStore

# Codes of 8 bits cover the range of the first items and this share of it on either side. Where
# later items lie outside, the range grows by a larger share, so that this happens seldom.
_MARGIN, _GROWTH = 0.1, 0.25


@dataclass(frozen=True, kw_only=True)
class FaissOptions(LocalOptions):
    """Options of Faiss."""

    kind: Literal["flat", "ivf", "hnsw", "sq", "pq"] = option(
        "flat", "Index type; `sq` stores 8 bits per number, `pq` 8 bits per `part` numbers."
    )
    links: int = links(32)
    ef_construction: int = ef_construction()
    ef: int = ef()
    cells: int = option(0, "Number of inverted lists of `ivf`; 0 means 4·√n.")
    probes: int = option(0, "Inverted lists of `ivf` probed per query; 0 means an eighth of them.")
    part: int = option(2, "Numbers per byte of `pq`.", at_least=1, at_most=256)
    refine: int = option(
        0,
        "For `sq` and `pq`: fetch this many times k by the codes and score those by float32 "
        "vectors, which are stored too; 0 stores the codes only.",
    )


class FaissStore(LocalStore):
    """A Faiss index in memory, and in a file where there is a path.

    Parameters
    ----------
    place : str or PathLike, optional
        A file that `faiss.write_index` wrote, or that `save` will write.
    """

    engine = "faiss"
    ways: tuple[Way, ...] = ("ip", "l2", "rerank")
    _parts = (
        *LocalStore._parts,
        "options",
        "_refine",
        "_kind",
        "can_delete",
        "is_graph",
        "is_exact",
    )
    options_type = FaissOptions
    options: FaissOptions

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self._refine = self.options.refine
        self._set_kind(self.options.kind)

    def _set_kind(self, kind: str) -> None:
        self._kind = kind
        self.can_delete = kind != "hnsw" and not self._refine  # Faiss has no removal there
        self.is_graph = kind == "hnsw"
        self.is_quantized = kind in ("sq", "pq")
        self.is_exact = kind == "flat"
        self.is_lossy = self.is_quantized and not self._refine

    def _create(self, width: int, metric: StoreMetric, sample: Sample) -> None:
        faiss = require("faiss", "faiss")
        by = faiss.METRIC_INNER_PRODUCT if metric == "ip" else faiss.METRIC_L2
        # Scalar quantisers are fast only with multiples of 8. A flat scan reads zeros too: 257
        # numbers take 1 % longer than 256, 264 take 4 %.
        multiple = {"pq": self.options.part, "flat": 1}.get(self._kind, 8)
        self._settings = {"padding": -width % multiple}
        total = width + self._padding
        if self._kind == "hnsw":
            bare = faiss.IndexHNSWFlat(total, self.options.links, by)
            bare.hnsw.efConstruction = self.options.ef_construction
        elif self._kind == "ivf":
            n_items = sample.n_items
            cells = self.options.cells or max(1, min(int(4 * n_items**0.5), n_items // 39))
            if cells > max(n_items, 256):
                raise NNNormError(
                    f"the option cells must be at most the number of items, {n_items}; got {cells}"
                )
            quantizer = faiss.IndexFlat(total, by)
            bare = faiss.IndexIVFFlat(quantizer, total, cells, by)
            bare.cp.min_points_per_centroid = 1
            bare.set_direct_map_type(faiss.DirectMap.Hashtable)
        elif self._kind == "sq":
            bare = faiss.IndexScalarQuantizer(total, faiss.ScalarQuantizer.QT_8bit, by)
            bare.sq.rangestat_arg = _MARGIN
        elif self._kind == "pq":
            bare = faiss.IndexPQ(total, total // self.options.part, 8, by)
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

    def _take_settings(self, source: "FaissStore") -> None:
        bare = source._bare(source._index)
        taken: dict[str, Any] = {"kind": source._kind, "refine": source._refine}
        if source._kind == "hnsw":
            taken["links"] = bare.hnsw.nb_neighbors(1)
            taken["ef_construction"] = bare.hnsw.efConstruction
        elif source._kind == "ivf":
            taken["cells"] = bare.nlist
        elif source._kind == "pq":
            taken["part"] = bare.d // bare.pq.M
        self.options = replace(self.options, **taken)
        self._refine = source._refine
        self._set_kind(source._kind)

    def _load(self, path: Path) -> Any:
        faiss = require("faiss", "faiss")
        index = faiss.read_index(str(path))
        inside, bare = self._inside(index), self._bare(index)
        if isinstance(inside, faiss.IndexRefine):
            self._refine = self._refine or int(inside.k_factor)
        if isinstance(bare, faiss.IndexIVF):
            bare.set_direct_map_type(faiss.DirectMap.Hashtable)
        kinds: list[tuple[str, Any]] = [
            ("hnsw", faiss.IndexHNSW),
            ("ivf", faiss.IndexIVF),
            ("sq", faiss.IndexScalarQuantizer),
            ("pq", faiss.IndexPQ),
        ]
        self._set_kind(next((name for name, kind in kinds if isinstance(bare, kind)), "flat"))
        return index

    def _dump(self, path: Path) -> None:
        require("faiss", "faiss").write_index(self._index, str(path))

    def _describe(self) -> tuple[int, StoreMetric]:
        faiss = require("faiss", "faiss")
        metrics: dict[int, StoreMetric] = {faiss.METRIC_INNER_PRODUCT: "ip", faiss.METRIC_L2: "l2"}
        if self._index.metric_type not in metrics:
            raise NNNormError(
                f"{self.name} compares by the Faiss metric {self._index.metric_type}; expected "
                "inner product or L2"
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
        return np.arange(self._index.ntotal)  # an index that others wrote without ids

    def _add(self, labels: Labels, vectors: FloatArray) -> None:
        rows = self._pad(vectors)
        if self._kind == "sq":
            self._cover(rows)
        self._index.add_with_ids(rows, labels)

    def _cover(self, rows: FloatArray) -> None:
        """Widen the range of the codes where new rows lie outside, which would cut them off.

        The stored rows are encoded again. In coordinates whose range stays as it is, that gives the
        same codes.
        """
        faiss = require("faiss", "faiss")
        bare = self._bare(self._index)
        low, span = faiss.vector_to_array(bare.sq.trained).reshape(2, -1)
        high = low + span
        lowest, highest = rows.min(axis=0), rows.max(axis=0)
        more = _GROWTH * np.maximum(span, np.maximum(highest, high) - np.minimum(lowest, low))
        new_low = np.where(lowest < low, lowest - more, low)
        new_high = np.where(highest > high, highest + more, high)
        if (new_low == low).all() and (new_high == high).all():
            return
        stored = bare.reconstruct_n(0, bare.ntotal) if bare.ntotal else None
        trained = np.concatenate([new_low, new_high - new_low]).astype(np.float32)
        faiss.copy_array_to_vector(trained, bare.sq.trained)
        if stored is not None:
            bare.reset()
            bare.add(stored)

    def _remove(self, labels: Labels) -> None:
        self._index.remove_ids(require("faiss", "faiss").IDSelectorArray(labels))

    def _search(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        bare = self._bare(self._index)
        if self._kind == "hnsw":
            bare.hnsw.efSearch = max(self.options.ef, k)
        elif self._kind == "ivf":
            bare.nprobe = self.options.probes or -(-bare.nlist // 8)
        if self._refine and self.is_quantized:
            self._inside(self._index).k_factor = self._refine
        scores, labels = self._index.search(self._pad(queries), k)
        return labels, scores if self._describe()[1] == "ip" else -scores

    def _vectors(self, labels: Labels) -> FloatArray:
        index, places = self._index, labels
        id_map_2 = require("faiss", "faiss").IndexIDMap2
        if hasattr(index, "id_map") and not isinstance(index, id_map_2):  # written by others
            order = np.argsort(self._labels())
            places = order[np.searchsorted(self._labels(), labels, sorter=order)]
            index = self._inside(index)
        width = self._describe()[0]
        if len(places) == 0:
            return np.empty((0, width), dtype=np.float32)
        rows = np.stack([index.reconstruct(int(place)) for place in places])
        return np.ascontiguousarray(rows[:, :width])

    @staticmethod
    def _inside(index: Any) -> Any:
        """The index under the id map."""
        downcast = require("faiss", "faiss").downcast_index
        return downcast(index.index) if hasattr(index, "id_map") else index

    def _bare(self, index: Any) -> Any:
        """The index under the id map and the refinement."""
        faiss = require("faiss", "faiss")
        inside = self._inside(index)
        refined = isinstance(inside, faiss.IndexRefine)
        return faiss.downcast_index(inside.base_index) if refined else inside
