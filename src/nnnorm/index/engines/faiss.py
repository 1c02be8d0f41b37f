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
_LOST = 2e-3  # float16 changes a vector by less than this share of its norm, SQ8 by more
# PQ needs a multiple of its number as the dimension. SQ needs one of 16 for its SIMD code, without
# which it takes 8 times as long.
_NUMBER = re.compile(r"PQ(\d+)|SQ")
_TRANSFORM = re.compile(r"(Pad|PCA|OPQ|RR|ITQ|L2norm)")


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
        self.is_exact = self.options.factory == "Flat"

    def _create(self, layout: Layout) -> Any:
        faiss = require("faiss", "faiss")
        factory = self.options.factory
        try:
            padded = _pad(factory, layout.width)
            index = faiss.index_factory(layout.width, padded, faiss.METRIC_INNER_PRODUCT)
            if hasattr(inner := _inner(index), "hnsw"):
                inner.hnsw.efConstruction = self.options.ef_construction
            if not index.is_trained:
                index.train(layout.sample)
            is_full = self._keeps(index, layout.sample)
        except RuntimeError:
            raise NNNormError(
                "the option factory must be an index factory string of Faiss, such as Flat or "
                f"HNSW32; got {factory!r}, which Faiss rejects for {layout.n_items:,} items of "
                f"{layout.width} dimensions"
            ) from None
        if not is_full:
            raise NNNormError(
                f"the factory {factory!r:.60} doesn't store full vectors, which a refresh needs; "
                "add ,RFlat to it"
            )
        return index

    def _keeps(self, index: Any, sample: FloatArray) -> bool:
        """Whether an empty index will return vectors as they were added, or in float16."""
        rows = 0.6 * sample[:8] + 0.3 * sample[::-1][:8]  # no rows that it was trained on
        probe, labels = self._copy(index), np.arange(len(rows))
        self._add(probe, labels, rows)
        lost = np.linalg.norm(self._vectors(probe, labels) - rows, axis=1)
        return bool((lost <= _LOST * np.linalg.norm(rows, axis=1)).all())

    def _load(self, path: Path, width: int) -> Any:
        return require("faiss", "faiss").read_index(str(path))

    def _dump(self, index: Any, path: Path) -> None:
        require("faiss", "faiss").write_index(index, str(path))

    def _copy(self, index: Any) -> Any:
        return require("faiss", "faiss").clone_index(index)

    def _add(self, index: Any, labels: Labels, vectors: FloatArray) -> None:
        index.add(np.ascontiguousarray(vectors))

    def _vectors(self, index: Any, labels: Labels) -> FloatArray:
        lists = require("faiss", "faiss").try_extract_index_ivf(index)
        if lists is not None and lists.direct_map.no():
            lists.make_direct_map()
        return index.reconstruct_batch(labels)

    def _find(self, loaded: Loaded, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        faiss, index = require("faiss", "faiss"), loaded.index
        inner = _inner(index)
        chosen: dict[str, Any] = {}
        if len(loaded.labels) < len(loaded.alive):
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
            # This kind can't skip items.
            return self._compare(loaded, loaded.labels, queries, k)
        else:
            params = faiss.SearchParameters(**chosen) if chosen else None
        if isinstance(index, faiss.IndexRefine):
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


def _pad(factory: str, width: int) -> str:
    """Add the number of zero columns that a quantizer needs to a factory string."""
    found = _NUMBER.search(factory)
    if found is None or _TRANSFORM.match(factory):
        return factory
    step = int(found[1] or 16)
    return factory if width % step == 0 else f"Pad{-(-width // step) * step},{factory}"


def _inner(index: Any) -> Any:
    """Return the index that searches, without its refinement and padding."""
    faiss = require("faiss", "faiss")
    if isinstance(index, faiss.IndexRefine):
        index = faiss.downcast_index(index.base_index)
    if isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index
