"""The engines of the contract (`test_index.py`): a new engine is a row here.

`make(folder, name)` gives a store of that name; called twice, it gives the same collection again,
as another process would find it. All run on the real engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from faiss import omp_set_num_threads

from nnnorm.index import Store
from nnnorm.index.stores.duckdb import DuckdbStore
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.hnswlib import HnswlibStore
from nnnorm.index.stores.sqlite_vec import SqliteVecStore
from nnnorm.index.stores.usearch import UsearchStore
from tests.servers import chroma, lancedb, milvus, pgvector, qdrant, qdrant_edge

# Small searches gain nothing from threads, and threads that wait for a busy core lose much.
omp_set_num_threads(1)


# Engines that the tests of a living index run on (`test_living.py`), and those among them whose
# collections several processes may open at once.
LIVING = {"faiss", "hnswlib", "usearch", "qdrant", "qdrant-edge", "chroma", "milvus"}
SHARED = {"faiss", "hnswlib", "usearch"}
LIVING |= {"duckdb", "sqlite-vec", "pgvector", "lancedb"}
SHARED |= {"sqlite-vec", "pgvector", "lancedb"}


@dataclass(frozen=True)
class Case:
    """One engine serving one way; what is stated here is what the contract holds it to."""

    name: str
    make: Callable[[Path, str], Store]
    way: str
    recall: float = 1.0  # 1 means exact: the same ids and scores
    unit: bool = False  # a re-rank needs unit norm where the engine has no inner product
    tolerance: float = 1e-5  # of scores
    later: float = 2  # times this, once there are items that codes were not trained on
    slow: bool = True  # left out of `make test-fast`

    @property
    def engine(self):
        return self.name.split()[0]


def faiss(**options):
    return lambda folder, name: FaissStore(folder / f"{name}.faiss", **options)


def hnswlib(**options):
    return lambda folder, name: HnswlibStore(folder / f"{name}.hnsw", threads=1, **options)


def usearch(**options):
    return lambda folder, name: UsearchStore(folder / f"{name}.usearch", threads=1, **options)


def duckdb(folder, name):
    return DuckdbStore(folder / "photos.duckdb", table=name)


def sqlite_vec(folder, name):
    return SqliteVecStore(folder / "photos.db", table=name)


def parametrize(cases):
    """Run a test on every case; one way of every engine in a file is quick."""
    slow = {True: [pytest.mark.slow], False: []}
    ids = [f"{case.name} {case.way}" for case in cases]
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=slow[case.slow]) for case in cases], ids=ids
    )


CASES = [
    Case("faiss flat", faiss(), "ip", slow=False),
    Case("faiss flat", faiss(), "l2"),
    Case("faiss flat", faiss(), "rerank"),
    Case("faiss ivf", faiss(kind="ivf", probes=40), "ip", recall=0.99),
    Case("faiss hnsw", faiss(kind="hnsw", ef=1024), "ip", recall=0.99),
    Case("faiss hnsw", faiss(kind="hnsw", ef=1024), "l2", recall=0.99),
    Case("faiss sq", faiss(kind="sq"), "ip", recall=0.95, tolerance=0.02, later=1),
    Case("faiss sq refined", faiss(kind="sq", refine=4), "ip", recall=0.99),
    Case("faiss pq", faiss(kind="pq", part=1), "ip", recall=0.9, tolerance=0.15, later=1),
    Case("faiss pq refined", faiss(kind="pq", refine=8), "ip", recall=0.99),
    Case("hnswlib", hnswlib(ef=1024), "l2", recall=0.99, slow=False),
    Case("hnswlib", hnswlib(ef=1024), "ip", recall=0.99, unit=True),
    Case("hnswlib", hnswlib(ef=1024), "rerank", recall=0.99),
    Case("usearch", usearch(ef=1024), "l2", recall=0.99, slow=False),
    Case("usearch", usearch(ef=2000), "cosine", recall=0.99),
    Case("usearch", usearch(ef=1024), "ip", recall=0.99, unit=True),
    Case("usearch", usearch(ef=1024), "rerank", recall=0.99),
    Case(
        "usearch i8", usearch(dtype="i8", ef=2000), "cosine", recall=0.95, tolerance=0.02, later=1
    ),
    Case("duckdb", duckdb, "column", slow=False),
    Case("duckdb", duckdb, "l2"),
    Case("duckdb", duckdb, "cosine"),
    Case("duckdb", duckdb, "rerank"),
    Case("sqlite-vec", sqlite_vec, "cosine", slow=False),
    Case("sqlite-vec", sqlite_vec, "l2"),
    Case("sqlite-vec", sqlite_vec, "rerank", unit=True),
    Case("pgvector flat", pgvector(), "ip"),
    Case("pgvector flat", pgvector(), "rerank"),
    Case("pgvector flat", pgvector(), "column"),
    Case("pgvector hnsw", pgvector(kind="hnsw", ef=400), "l2", recall=0.99),
    Case("qdrant local", qdrant(), "ip"),
    Case("qdrant-edge flat", qdrant_edge(kind="flat"), "cosine"),
    Case("qdrant-edge flat", qdrant_edge(kind="flat"), "rerank"),
    Case("qdrant-edge hnsw", qdrant_edge(), "l2", recall=0.99),
    Case("lancedb flat", lancedb(), "ip"),
    Case("lancedb flat", lancedb(), "rerank"),
    # Its cells are trained without a seed, so nearly all of them are probed.
    Case("lancedb ivf", lancedb(kind="ivf", cells=40, probes=39), "l2", recall=0.99),
    Case("chroma", chroma(ef=1024), "ip", recall=0.99, unit=True),
    Case("chroma", chroma(ef=1024), "l2", recall=0.99),
    Case("chroma", chroma(ef=1024), "rerank", recall=0.99),
    Case("milvus flat", milvus(), "ip"),
    Case("milvus hnsw", milvus(kind="hnsw", ef=1024), "l2", recall=0.99),
]
