"""Times the responses of the explorer for one client and for 50.

The data are synthetic unit rows (512 dimensions, 500 topics, some of them hubs), with 5,000 and
100,000 items. Sliders are moved over loopback to new settings, and every view is timed. After a
warm-up that fills the caches, 50 clients move sliders for a minute. The memory of the server is
read at the start, after a third, and at the end.

    python benchmarks/explore.py [--small] [--seconds 60] [--output FILE.json]
    python benchmarks/explore.py --tables     # print the tables of the stored JSON
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from real_sets import RESULTS, Floats, machine, table

from nnnorm import open_embeddings
from nnnorm.evaluation import open_truth
from nnnorm.explore import Material, Session, listen, serve

OUTPUT = RESULTS / "explore.json"
DIM, N_TOPICS = 512, 500
SIZES = {5_000: 5_000, 100_000: 10_000}
VIEWS = ("search", "hubs", "quality", "map/values")
N_CLIENTS = 50


def make_material(n_items: int, n_queries: int, n_references: int = 20_000) -> Material:
    """Draw items and queries of the same topics; items share a direction, so there are hubs."""
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(N_TOPICS, DIM)).astype(np.float32)
    shared = rng.normal(size=DIM).astype(np.float32)

    def rows(which: Any, noise: float, common: Any = 0.0) -> Floats:
        made = topics[which] + noise * rng.standard_normal((len(which), DIM), dtype=np.float32)
        made += np.asarray(common, dtype=np.float32).reshape(-1, 1) * shared
        return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), dtype=np.float32)

    of_item = rng.integers(0, N_TOPICS, n_items)
    gallery = rows(of_item, 1.0, rng.gamma(2.0, 0.25, n_items))
    truth = rng.integers(0, n_items, n_queries)
    queries = gallery[truth] + 0.11 * rng.standard_normal((n_queries, DIM), dtype=np.float32)
    queries += 0.3 * rows(of_item[truth], 1.0, np.full(n_queries, 0.4))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    references = rows(rng.integers(0, N_TOPICS, n_references), 1.2, np.full(n_references, 0.5))
    return Material(
        gallery=open_embeddings(gallery, name="gallery"),
        queries=open_embeddings(queries.astype(np.float32), name="queries"),
        references=open_embeddings(references, name="references"),
        truth=open_truth(truth, n_queries=n_queries, n_gallery=n_items),
        captions=[f"item {n} of topic {topic}" for n, topic in enumerate(of_item)],
    )


def run_server(n_items: int, n_queries: int) -> int:
    started = time.perf_counter()
    session = Session(make_material(n_items, n_queries))
    seconds = time.perf_counter() - started
    session.map.result()  # the first map is not a move of a slider
    opened = listen(port=0)
    print(json.dumps({"port": opened.getsockname()[1], "seconds": seconds}), flush=True)
    serve(session, opened)
    return 0


class Server:
    """The explorer in a separate process."""

    def __init__(self, n_items: int, n_queries: int) -> None:
        command = [sys.executable, __file__, "--serve", str(n_items), str(n_queries)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Server":
        assert self.process.stdout is not None
        about = json.loads(self.process.stdout.readline())
        self.url, self.seconds = f"http://127.0.0.1:{about['port']}/api", about["seconds"]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def memory_mb(self) -> float:
        """Return the resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(one for one in status.splitlines() if one.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024


def settings(rng: np.random.Generator) -> dict[str, Any]:
    k = int(rng.choice([1, 2, 4, 8, 16, 32, 64, 128]))
    return {"reference_k": k, "alpha": float(rng.integers(0, 61)) / 40, "center": "false"}


def wait_until_quiet(client: Any, url: str) -> None:
    """Wait until the work at the start of the server is done."""
    for path in ("scan", "grid"):
        while not client.get(f"{url}/{path}").json()["ready"]:
            time.sleep(1)


def measure_moves(n_items: int, n_queries: int, moves: int) -> dict[str, Any]:
    import httpx

    rng = np.random.default_rng(1)
    with Server(n_items, n_queries) as server, httpx.Client(timeout=120) as client:
        wait_until_quiet(client, server.url)
        times: dict[str, list[float]] = {name: [] for name in VIEWS}
        for _ in range(moves):
            for name in VIEWS:
                params = settings(rng)
                if name == "search":
                    params["query"] = int(rng.integers(0, n_queries))
                started = time.perf_counter()
                client.get(f"{server.url}/{name}", params=params).raise_for_status()
                times[name].append(1000 * (time.perf_counter() - started))
        return {
            "n_items": n_items,
            "n_queries": n_queries,
            "start_seconds": round(server.seconds, 1),
            "memory_mb": round(server.memory_mb()),
            "median_ms": {name: round(statistics.median(some), 1) for name, some in times.items()},
            "p95_ms": {
                name: round(float(np.quantile(some, 0.95)), 1) for name, some in times.items()
            },
        }


async def _move(url: str, seed: int, until: float, times: list[float], errors: list[str]) -> None:
    import httpx

    rng = np.random.default_rng(seed)
    async with httpx.AsyncClient(timeout=60) as client:
        while time.perf_counter() < until:
            name = str(rng.choice(["search", "hubs", "quality"]))
            params = settings(rng)
            if name == "search":
                params["query"] = int(rng.integers(0, 5000))
            started = time.perf_counter()
            try:
                answer = await client.get(f"{url}/{name}", params=params)
                if answer.status_code != 200:
                    errors.append(answer.text[:200])
            except httpx.HTTPError as error:
                errors.append(repr(error))
            times.append(1000 * (time.perf_counter() - started))
            await asyncio.sleep(float(rng.uniform(0.3, 0.9)))  # like a person who drags a slider


async def _all_clients(server: Server, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    errors: list[str] = []
    memory = [server.memory_mb()]
    until = time.perf_counter() + seconds
    clients = [
        asyncio.create_task(_move(server.url, n, until, times, errors)) for n in range(N_CLIENTS)
    ]
    await asyncio.sleep(seconds / 3)
    memory.append(server.memory_mb())
    await asyncio.gather(*clients)
    memory.append(server.memory_mb())
    return {
        "n_clients": N_CLIENTS,
        "seconds": seconds,
        "n_requests": len(times),
        "n_errors": len(errors),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(float(np.quantile(times, 0.95)), 1),
        "memory_mb": [round(one) for one in memory],
    }


def measure_load(n_items: int, n_queries: int, seconds: float) -> dict[str, Any]:
    import httpx

    with Server(n_items, n_queries) as server:
        with httpx.Client(timeout=120) as client:
            wait_until_quiet(client, server.url)
        asyncio.run(_all_clients(server, seconds / 3))  # fills the caches
        return {"n_items": n_items, **asyncio.run(_all_clients(server, seconds))}


def tables(results: dict[str, Any]) -> str:
    """Return the tables of the stored results as Markdown."""
    rows = [
        [
            f"{one['n_items']:,}",
            *(f"{one['median_ms'][name]:.0f} ({one['p95_ms'][name]:.0f})" for name in VIEWS),
            f"{one['start_seconds']:.0f}",
            f"{one['memory_mb']:,}",
        ]
        for one in results["moves"]
    ]
    names = ("search", "hubs", "quality", "map")
    columns = ["items", *(f"{name}, ms" for name in names), "start, s", "memory, MB"]
    load = results["load"]
    before, third, after = load["memory_mb"]
    loaded = [
        [
            f"{load['n_clients']} for {load['seconds']:.0f} s",
            f"{load['n_requests']:,}",
            str(load["n_errors"]),
            f"{load['median_ms']:.0f}",
            f"{load['p95_ms']:.0f}",
            f"{before:,}, {third:,}, {after:,}",
        ]
    ]
    heads = ["clients", "requests", "errors", "median, ms", "p95, ms"]
    heads.append("memory at the start, after a third, at the end, MB")
    return table(columns, rows) + "\n\n" + table(heads, loaded) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="only 5,000 items and ten seconds")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--tables", action="store_true", help="print the stored tables")
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return run_server(*options.serve)
    if options.tables:
        print(tables(json.loads(options.output.read_text(encoding="utf-8"))), end="")
        return 0
    sizes = dict(list(SIZES.items())[: 1 if options.small else None])
    results = {
        "machine": machine(),
        "load_average": os.getloadavg()[1],  # other programs affect all times
        "versions": {name: version(name) for name in ("numpy", "starlette", "uvicorn")},
        "moves": [measure_moves(n, asked, options.moves) for n, asked in sizes.items()],
        "load": measure_load(5_000, 5_000, 10.0 if options.small else options.seconds),
    }
    if not options.small:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(tables(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
