"""Time of one query with `index.search` and with the engine's own client.

Each engine stores synthetic unit rows (5,000 items, 256 dimensions) with the correction. Single
queries alternate between `index.search` and the engine's own call, which gets the vector of
`index.transform_queries`. Both return 10 hits. The table has medians of the wall-clock time,
and the difference in CPU time of this process (without that of a server).

    python benchmarks/calls.py [--engine NAME] [--calls 300] [--output FILE.json]
    python benchmarks/calls.py --tables     # print the table of the stored JSON
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from engines import QUICK, postgres, unit
from harness import run_command
from real_sets import RESULTS, Floats, machine, table
from threadpoolctl import threadpool_limits

import nnnorm
from nnnorm.index import CorrectedIndex, build_index

OUTPUT = RESULTS / "calls.json"
K = 10
CLOCKS = ("cpu", "wall")
# A function that sends one query with the engine's own client.
Call: TypeAlias = Callable[[Floats], Any]


def own_index(index: CorrectedIndex) -> Any:
    """Return the library's index object of the current version."""
    loaded: Any = index.backend
    return loaded._open(loaded.served()).index


def served(index: CorrectedIndex) -> str:
    """Return the name of the engine's own collection."""
    return f"photos_{index.backend.served()}"


def faiss_call(index: CorrectedIndex) -> Call:
    import faiss

    faiss.omp_set_num_threads(1)  # waiting threads would count as CPU time
    own = own_index(index)
    if hasattr(own, "hnsw"):
        own.hnsw.efSearch = 128
    return lambda row: own.search(row[None], K)


def hnswlib_call(index: CorrectedIndex) -> Call:
    own = own_index(index)
    own.set_ef(128)
    return lambda row: own.knn_query(row[None], K, num_threads=1)


def usearch_call(index: CorrectedIndex) -> Call:
    own = own_index(index)
    own.expansion_search = 128
    return lambda row: own.search(row[None], K, threads=1)


def client_of(index: CorrectedIndex) -> Any:
    return getattr(index.backend, "client")  # noqa: B009


def qdrant_call(index: CorrectedIndex) -> Call:
    client = client_of(index)
    return lambda row: client.query_points("photos", query=row.tolist(), limit=K)


def chroma_call(index: CorrectedIndex) -> Call:
    own = client_of(index).get_collection(served(index), embedding_function=None)
    return lambda row: own.query(query_embeddings=row[None], n_results=K)


def milvus_call(index: CorrectedIndex) -> Call:
    client = client_of(index)
    params: dict[str, Any] = {"metric_type": "IP", "params": {"ef": 128}}
    return lambda row: client.search(
        "photos", data=[row.tolist()], limit=K, search_params=params, consistency_level="Strong"
    )


def sqlite_call(index: CorrectedIndex) -> Call:
    own, name = client_of(index), f"{served(index)}_vectors"
    text = f"SELECT rowid, distance FROM {name} WHERE embedding MATCH ? AND k = ?"
    return lambda row: own.execute(text, (row.tobytes(), K)).fetchall()


def duckdb_call(index: CorrectedIndex) -> Call:
    own, width, weight = client_of(index), index.config.width, index.config.weight
    text = (
        f"SELECT id, array_inner_product(embedding, ?::FLOAT[{width}]) - {weight} * bias s "
        f"FROM photos ORDER BY s DESC LIMIT {K}"
    )
    return lambda row: own.execute(text, [row.tolist()]).fetchall()


def pgvector_call(index: CorrectedIndex) -> Call:
    own = client_of(index)
    text = "SELECT id, embedding <#> %s::vector FROM photos ORDER BY 2 LIMIT %s"
    return lambda row: own.execute(text, (str(row.tolist()), K)).fetchall()


def lancedb_call(index: CorrectedIndex) -> Call:
    own = client_of(index).open_table(served(index))
    return lambda row: own.search(row).distance_type("dot").limit(K).to_arrow()


ENGINES: dict[str, tuple[str, str, Callable[[CorrectedIndex], Call]]] = {
    "faiss": ("faiss:{}", "photos", faiss_call),
    "faiss hnsw": ("faiss:{}?factory=HNSW32", "photos", faiss_call),
    "hnswlib": ("hnswlib:{}?threads=1", "photos", hnswlib_call),
    "usearch": ("usearch:{}?threads=1", "photos", usearch_call),
    "sqlite-vec": ("sqlite:{}?table=photos", "photos.db", sqlite_call),
    "duckdb": ("duckdb:{}?table=photos", "photos.duckdb", duckdb_call),
    "pgvector": ("{postgres}&table=photos", "", pgvector_call),
    "lancedb": ("lancedb:{}?table=photos", "lance", lancedb_call),
    "qdrant local": ("qdrant:{}?collection=photos", "qdrant", qdrant_call),
    "chroma": ("chroma:{}?collection=photos", "chroma", chroma_call),
    "milvus lite": ("milvus:{}?collection=photos", "photos.db", milvus_call),
    "milvus lite hnsw": ("milvus:{}?collection=photos&kind=hnsw", "photos.db", milvus_call),
}


def measure(
    name: str, rows: dict[str, Floats], corrector: nnnorm.Corrector, n_calls: int
) -> dict[str, Any]:
    url, file, make_call = ENGINES[name]
    with tempfile.TemporaryDirectory(prefix="nnnorm-", dir=QUICK) as folder:
        place = str(Path(folder) / file)
        address = postgres() if "{postgres}" in url else ""
        with build_index(url.format(place, postgres=address), rows["gallery"], corrector) as index:
            call = make_call(index)
            asked = index.transform_queries(rows["queries"])
            times: dict[str, list[tuple[float, float]]] = {"index": [], "own": []}
            for turn in range(-n_calls // 10, n_calls):
                one = turn % len(asked)
                query, vector = rows["queries"][one : one + 1], asked[one]
                # The second call benefits from warm caches, so the order alternates.
                for side in ("index", "own") if turn % 2 else ("own", "index"):
                    started = time.process_time(), time.perf_counter()
                    index.search(query, k=K) if side == "index" else call(vector)
                    ended = time.process_time(), time.perf_counter()
                    if turn >= 0:
                        times[side].append((ended[0] - started[0], ended[1] - started[1]))
    result: dict[str, Any] = {"engine": name}
    for side, taken in times.items():
        for clock, values in zip(CLOCKS, zip(*taken, strict=True), strict=True):
            result[f"{side}_{clock}_ms"] = round(1000 * statistics.median(values), 4)
    return result


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    rows = [
        [
            row["engine"],
            *(f"{row[f'{side}_wall_ms']:.2f}" for side in ("own", "index")),
            f"{row['index_cpu_ms'] - row['own_cpu_ms']:+.2f}",
        ]
        for row in results["engines"]
    ]
    columns = ["engine", "own client, ms", "`index.search`, ms", "added CPU time, ms"]
    return table(columns, rows) + "\n"


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    n_items, dim = 5000, 256
    rng = np.random.default_rng(0)
    drawn = {"gallery": n_items, "references": 2000, "queries": 50}
    rows = {name: unit(rng.normal(size=(n, dim))) for name, n in drawn.items()}
    method = nnnorm.NNN(16, 0.75)
    corrector = nnnorm.Corrector.fit(rows["gallery"], rows["references"], method)
    found = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graphs have a low recall on random rows
        for name in arguments.engine or ENGINES:
            found.append(measure(name, rows, corrector, arguments.calls))
            print(found[-1], file=sys.stderr)
    return {**machine(), "n_items": n_items, "dim": dim, "k": K, "engines": found}


def main() -> int:
    parser = argparse.ArgumentParser(description="Time one query through an index.")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this engine")
    parser.add_argument("--calls", type=int, default=300)
    return run_command(parser, OUTPUT, measure_all, tables)


if __name__ == "__main__":
    sys.exit(main())
