"""What the correction costs inside each engine: recall and latency, with and without it.

The photos of Flickr8k, tiled to 100,000 items with noise, go into each engine twice: as they are,
and with the correction built in. Test captions ask both in turns, in batches, one thread where the
engine lets us say so. What runs in this process is timed by its own seconds of CPU, which leave out
what else the machine did; a server by the clock on the wall. Of several rounds the fastest counts;
latency is the median over the batches, and so is the ratio of the two sides. Recall is against the
exact search, uncorrected and corrected.

    python benchmarks/engines.py                        # measure all, write JSON, print the table
    python benchmarks/engines.py --engine faiss-hnsw    # measure some anew, keep the others
    python benchmarks/engines.py --tables               # print the table of the stored JSON

A new engine is a row in `ENGINES`. The embeddings are read from `../shared/data` (or `--data`).
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from real_sets import DATA, RESULTS, Flickr8k, Floats, machine, table, what_is_missing
from threadpoolctl import threadpool_limits

import nnnorm
from nnnorm.files import check_writable, write_whole
from nnnorm.index import CorrectedIndex, Items, build_index, open_index, open_store
from nnnorm.index.protocol import BATCH, Sample, Store, StoreMetric

Record: TypeAlias = dict[str, Any]

OUTPUT = RESULTS / "engines.json"
N_ITEMS, N_QUERIES, N_REFERENCES, K, ROUNDS = 100_000, 400, 10_000, 10, 7
NOISE = 0.5  # norm of what is added to a unit vector before it is normalised again


class Engine(NamedTuple):
    """A row: its URL (`{name}` is the collection, `{threads}` 0 for all of them), its package."""

    url: str
    package: str
    n_queries: int = N_QUERIES  # fewer where every item is compared
    per_batch: int = 50
    is_server: bool = False


ENGINES = {
    "faiss-flat": Engine("faiss:{folder}/{name}.faiss", "faiss-cpu", 100, 10),
    "faiss-ivf": Engine("faiss:{folder}/{name}.faiss?kind=ivf", "faiss-cpu"),
    "faiss-hnsw": Engine("faiss:{folder}/{name}.faiss?kind=hnsw", "faiss-cpu"),
    "faiss-sq": Engine("faiss:{folder}/{name}.faiss?kind=sq", "faiss-cpu", 100, 10),
    "faiss-pq": Engine("faiss:{folder}/{name}.faiss?kind=pq&refine=4", "faiss-cpu", 100, 10),
    "hnswlib": Engine("hnswlib:{folder}/{name}.hnsw?threads={threads}", "chroma-hnswlib"),
    "usearch": Engine("usearch:{folder}/{name}.usearch?threads={threads}", "usearch"),
    "duckdb": Engine("duckdb:{folder}/{name}.duckdb", "duckdb", 40, 10),
    "sqlite-vec": Engine("sqlite:{folder}/{name}.db", "sqlite-vec", 40, 10),
}


class Data(NamedTuple):
    """The tiled gallery, its bias, and captions that ask for it."""

    gallery: Floats
    queries: Floats
    bias: nnnorm.Bias


def make_data(folder: Path) -> Data:
    flickr8k = Flickr8k(folder)
    photos = flickr8k.pairs.image
    rng = np.random.default_rng(0)
    gallery = np.resize(photos, (N_ITEMS, photos.shape[1]))
    noise = rng.normal(size=gallery.shape).astype(np.float32)
    gallery = unit(gallery + NOISE * unit(noise))
    test, train = (flickr8k.pairs.some(flickr8k.images(split)).text for split in ("test", "train"))
    queries = unit(test[rng.choice(len(test), N_QUERIES, replace=False)])
    references = unit(train[rng.choice(len(train), N_REFERENCES, replace=False)])
    return Data(gallery, queries, nnnorm.NNN().fit(gallery, references))


def unit(rows: Floats) -> Floats:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def fill_plain(store: Store, gallery: Floats, metric: StoreMetric) -> None:
    """The gallery as it is, as a team has it before any correction."""
    vectors = Sample(len(gallery), lambda: gallery[::2])
    store.create(gallery.shape[1], metric, strings=False, sample=vectors)
    for start in range(0, len(gallery), BATCH):
        stop = min(start + BATCH, len(gallery))
        store.add(Items(np.arange(start, stop), gallery[start:stop]))
    store.save()


def measure(name: str, engine: Engine, data: Data) -> Record:
    """Build both, then ask them in turns."""
    queries = data.queries[: engine.n_queries]
    with tempfile.TemporaryDirectory(prefix="nnnorm-") as folder:

        def url(name: str, threads: int) -> str:
            return engine.url.format(folder=folder, name=name, threads=threads)

        started = time.perf_counter()
        index = build_index(url("corrected", 0), data.gallery, data.bias)
        index.close()
        built = time.perf_counter()
        plain = open_store(url("plain", 0))
        fill_plain(plain, data.gallery, index.recipe.metric)
        plain.close()
        seconds = {"seconds_to_build": round(built - started, 1)}
        seconds["seconds_to_build_plain"] = round(time.perf_counter() - built, 1)
        plain, index = open_store(url("plain", 1)), open_index(url("corrected", 1))
        with threadpool_limits(1):
            record = ask_in_turns(plain, index, queries, engine)
        index.close()
        plain.close()
    exact = nnnorm.search(queries, data.gallery, data.bias, k=K).indices
    exact_plain = nnnorm.search(queries, data.gallery, k=K).indices
    return {
        "engine": name,
        "url": re.sub(r"\{folder\}/|[?&]threads=\{threads\}", "", engine.url).format(name="photos"),
        "package": f"{engine.package} {version(engine.package)}",
        "way": index.recipe.way,
        "n_queries": len(queries),
        "per_batch": engine.per_batch,
        "clock": "wall" if engine.is_server else "cpu",
        "recall_plain": share(record.pop("ids_plain"), exact_plain),
        "recall": share(record.pop("ids"), exact),
        **record,
        **seconds,
    }


def ask_in_turns(plain: Store, index: CorrectedIndex, queries: Floats, engine: Engine) -> Record:
    batches = np.split(queries, range(engine.per_batch, len(queries), engine.per_batch))
    clock = time.perf_counter if engine.is_server else time.process_time
    sides: list[Callable[[Floats], Any]] = [
        lambda rows: plain.search(rows, K).ids,
        lambda rows: index.search(rows, k=K).indices,
    ]
    for side in sides:  # nothing cold is timed
        side(batches[0])
    seconds = np.empty((2, ROUNDS, len(batches)))
    ids: list[list[Any]] = [[], []]
    for turn in range(ROUNDS):
        for number, batch in enumerate(batches):
            for side in (0, 1) if (number + turn) % 2 else (1, 0):
                started = clock()
                found = sides[side](batch)
                seconds[side, turn, number] = (clock() - started) / len(batch)
                if turn == 0:
                    ids[side].append(found)
    fastest = seconds.min(axis=1)
    return {
        "ids_plain": np.concatenate(ids[0]),
        "ids": np.concatenate(ids[1]),
        "ms_plain": float(1e3 * np.median(fastest[0])),
        "ms": float(1e3 * np.median(fastest[1])),
        "ratio": float(np.median(fastest[1] / fastest[0])),
    }


def share(found: Any, exact: Any) -> float:
    both = zip(found.tolist(), exact.tolist(), strict=True)
    return sum(len(set(hits) & set(best)) for hits, best in both) / exact.size


def run(data: Path, names: list[str], stored: list[Record]) -> Iterator[Record]:
    """All results after each engine: one that fails or takes too long loses nothing."""
    made = make_data(data / "flickr8k")
    sizes = {"n_items": N_ITEMS, "dim": made.gallery.shape[1], "k": K}
    rows = {row["engine"]: row for row in stored}
    for name in names:
        rows[name] = measure(name, ENGINES[name], made)
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr)
        listed = [rows[known] for known in ENGINES if known in rows]
        yield {**machine(), **sizes, "weight": made.bias.weight, "engines": listed}


def tables(results: Record) -> str:
    """The Markdown table of `docs/engines/README.md`, from the results alone."""
    columns = ["engine and setting", "way", "recall@10 without", "with", "ms per query without"]
    columns += ["with", "latency", "tested version"]
    rows = [
        [
            f"`{row['url']}`",
            row["way"],
            f"{row['recall_plain']:.3f}",
            f"{row['recall']:.3f}",
            f"{row['ms_plain']:.3g}",
            f"{row['ms']:.3g}",
            f"{100 * (row['ratio'] - 1):+.1f} %",
            row["package"],
        ]
        for row in results["engines"]
    ]
    return table(columns, rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="What the correction costs inside each engine.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the JSON file of the results")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="only this one")
    parser.add_argument("--tables", action="store_true", help="print the table of --output")
    arguments = parser.parse_args()
    output: Path = arguments.output
    stored = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else None
    if arguments.tables:
        if stored is None:
            print(f"there are no results in {output}; measure first", file=sys.stderr)
            return 1
        print(tables(stored), end="")
        return 0
    if missing := what_is_missing(arguments.data, "flickr8k"):
        print(missing, file=sys.stderr)
        return 1
    check_writable(output)
    kept = stored["engines"] if stored is not None and arguments.engine else []
    for results in run(arguments.data, arguments.engine or list(ENGINES), kept):
        text = json.dumps(results, indent=1) + "\n"
        write_whole(output, lambda file, text=text: file.write(text.encode()))
    print(tables(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
