"""Faiss (`pip install 'nnnorm[faiss]'`), by inner product.

The kind of index is a factory string of Faiss: ``Flat``, ``HNSW32``, ``IVF256,Flat``,
``SQ8,RFlat``. HNSW can't remove items, so deleted items stay in the file until the next refresh,
and searches skip them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError, require
from nnnorm.index.backend import FloatArray, Ids, Layout, Options, whole
from nnnorm.index.folder import FolderBackend, Labels, Loaded

_REFINED = 4  # a quantized index first finds this many times k items
_BITS = re.compile(r"(?<!\w)(SQ(4|6|8)|\w*PQ\d|RaBitQ|ITQ|LSH)")


@dataclass(frozen=True, kw_only=True)
class FaissOptions(Options):
    """`factory` and `ef_construction` (of HNSW) of a new index; `ef` and `probes` of a search."""

    factory: str = "Flat"
    ef: int = whole(128, at_most=2**20)  # Faiss allocates a heap of this size per search
    ef_construction: int = whole(200)
    probes: int = whole(0, at_least=0)


class FaissBackend(FolderBackend):
    """A Faiss index."""

    engine, options_type = "faiss", FaissOptions
    options: FaissOptions

    created_by = ("factory", "ef_construction")

    def configure(self) -> None:
        factory = self.options.factory
        self.is_exact = factory == "Flat"
        if _BITS.search(factory) and not factory.endswith(",RFlat"):
            raise NNNormError(
                f"the factory {factory!r:.60} doesn't store full vectors, which a refresh needs; "
                "add ,RFlat to it"
            )

    def _create(self, layout: Layout) -> Any:
        faiss = require("faiss", "faiss")
        factory = self.options.factory
        try:
            index = faiss.index_factory(layout.width, factory, faiss.METRIC_INNER_PRODUCT)
            if hasattr(index, "hnsw"):
                index.hnsw.efConstruction = self.options.ef_construction
            if not index.is_trained:
                index.train(layout.sample)
        except RuntimeError:
            raise NNNormError(
                "the option factory must be an index factory string of Faiss, such as Flat or "
                f"HNSW32; got {factory!r}, which Faiss rejects for {layout.n_items:,} items of "
                f"{layout.width} dimensions"
            ) from None
        return index

    def _load(self, path: Path, width: int) -> Any:
        return require("faiss", "faiss").read_index(str(path))

    def _dump(self, index: Any, path: Path) -> None:
        require("faiss", "faiss").write_index(index, str(path))

    def _copy(self, index: Any) -> Any:
        return require("faiss", "faiss").clone_index(index)

    def _add(self, index: Any, labels: Labels, vectors: FloatArray) -> None:
        index.add(np.ascontiguousarray(vectors))

    def _vectors(self, index: Any, labels: Labels) -> FloatArray:
        faiss = require("faiss", "faiss")
        lists = faiss.try_extract_index_ivf(index)
        if lists is not None and lists.direct_map.no():
            lists.make_direct_map()
        found: FloatArray = index.reconstruct_batch(labels)
        return found

    def _find(self, loaded: Loaded, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        faiss, index = require("faiss", "faiss"), loaded.index
        is_refined = isinstance(index, faiss.IndexRefine)
        inner = faiss.downcast_index(index.base_index) if is_refined else index
        chosen: dict[str, Any] = {}
        if loaded.n_alive < len(loaded.alive):
            bits = np.packbits(loaded.alive, bitorder="little")
            chosen["sel"] = faiss.IDSelectorBitmap(bits)
        lists = faiss.try_extract_index_ivf(index)
        if lists is not None:
            chosen["nprobe"] = self.options.probes or -(-lists.nlist // 8)
            params = faiss.SearchParametersIVF(**chosen)
        elif hasattr(inner, "hnsw"):
            chosen["efSearch"] = max(self.options.ef, k)
            params = faiss.SearchParametersHNSW(**chosen)
        elif chosen and not hasattr(inner, "sq") and not isinstance(inner, faiss.IndexFlat):
            labels = np.flatnonzero(loaded.alive)  # this kind can't skip items
            return self._compare(loaded, labels, queries, k)
        else:
            params = faiss.SearchParameters(**chosen) if chosen else None
        if is_refined:
            params = faiss.IndexRefineSearchParameters(k_factor=_REFINED, base_index_params=params)
        scores, labels = index.search(np.ascontiguousarray(queries), k, params=params)
        return labels, np.ascontiguousarray(scores)

    def _read_file(self, path: Path) -> tuple[Ids, FloatArray]:
        faiss = require("faiss", "faiss")
        read = faiss.read_index(str(path))
        ids, bare = np.arange(read.ntotal), read
        if hasattr(read, "id_map"):  # a wrapper that owns the index
            ids, bare = faiss.vector_to_array(read.id_map), faiss.downcast_index(read.index)
        return ids, self._vectors(bare, np.arange(read.ntotal))
