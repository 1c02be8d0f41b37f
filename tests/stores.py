"""The engines of the contract (`test_index.py`): a new engine is a row here.

`make(folder, name)` gives a store of that name; called twice, it gives the same collection again,
as another process would find it. All run on the real engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faiss import omp_set_num_threads
from servers import pgvector, qdrant, qdrant_edge

from nnnorm.index import Store
from nnnorm.index.faiss import FaissStore

# Small searches gain nothing from threads, and threads that wait for a busy core lose much.
omp_set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """One engine serving one way; what is stated here is what the contract holds it to."""

    name: str
    make: Callable[[Path, str], Store]
    way: str
    recall: float = 1.0  # 1 means exact: the same ids and scores
    unit: bool = False  # whether this way needs unit norm (a re-rank where there is no dot product)
    tolerance: float = 1e-5  # of scores


def faiss(**options):
    return lambda folder, name: FaissStore(folder / f"{name}.faiss", **options)


CASES = [
    Case("faiss flat", faiss(), "ip"),
    Case("faiss flat", faiss(), "l2"),
    Case("faiss flat", faiss(), "rerank"),
    Case("faiss ivf", faiss(kind="ivf", probes=40), "ip", recall=0.99),
    Case("faiss hnsw", faiss(kind="hnsw", ef=1024), "l2", recall=0.99),
    Case("faiss sq", faiss(kind="sq"), "ip", recall=0.9, tolerance=0.02),
    Case("faiss sq refined", faiss(kind="sq", refine=4), "ip", recall=0.99),
    Case("faiss pq", faiss(kind="pq", part=1), "ip", recall=0.9, tolerance=0.15),
    Case("faiss pq refined", faiss(kind="pq", refine=8), "ip", recall=0.99),
    Case("pgvector flat", pgvector(), "ip"),
    Case("pgvector flat", pgvector(), "l2"),
    Case("pgvector flat", pgvector(), "cosine"),
    Case("pgvector flat", pgvector(), "rerank"),
    Case("pgvector flat", pgvector(), "column"),
    Case("pgvector hnsw", pgvector(kind="hnsw", ef=400), "l2", recall=0.99),
    Case("qdrant local", qdrant(), "ip"),
    Case("qdrant local", qdrant(), "cosine"),
    Case("qdrant-edge flat", qdrant_edge(kind="flat"), "ip"),
    Case("qdrant-edge flat", qdrant_edge(kind="flat"), "cosine"),
    Case("qdrant-edge flat", qdrant_edge(kind="flat"), "rerank"),
    Case("qdrant-edge hnsw", qdrant_edge(), "l2", recall=0.99),
]
