"""Parts on a Ray cluster: efficiency, memory of the workers, and the plan beside the clock.

Three questions, each measured in processes of their own:

- efficiency: Ray with two workers of one core each against one process on two cores, the same exact
  work, in turns. The parts alone are compared: settling is the same for both.
- memory and time: 2,000,000 items in float16 shards and 200,000 references on disk, the whole of
  `nnnorm fit --on ray`: approximate means of every reference, and the default bank of intents. The
  memory is the largest of any worker: all that is resident, and without mapped and shared pages.
- residual: how far means of a random part of a bank are from those of the whole, on real sets.

    python benchmarks/cluster.py --output benchmarks/results/cluster.json   # six minutes, 1.2 GB
    python benchmarks/cluster.py --exact    # also exact means of every reference: 25 minutes more
    python benchmarks/cluster.py --small    # a tenth of the items and references
    python benchmarks/cluster.py --tables   # print the stored results
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from paste import paste
from real_sets import DATA, RESULTS, Flickr8k, machine, read_judged, rows_of, table

import nnnorm
from nnnorm.approximate import residual
from nnnorm.cluster import (
    Machines,
    Plan,
    Share,
    Workload,
    fit_on_ray,
    make_plan,
    measure_rates,
    sampling_residual,
    settle,
)

OUTPUT = RESULTS / "cluster.json"
DIM, K = 256, 128
CORES = 2
METHOD = nnnorm.NNN(reference_k=K, alpha=0.5)


# --- embeddings ----------------------------------------------------------------------------------


def write_shards(folder: Path, n_rows: int, n_shards: int, seed: int, lean: float) -> None:
    """Rows around topics with a falling spectrum, in float16; items lean to one side: hubs."""
    rng = np.random.default_rng(0)
    scale = (np.arange(1, DIM + 1) ** -0.6).astype(np.float32)
    topics = scale * rng.standard_normal((2000, DIM), dtype=np.float32)
    side = scale * rng.standard_normal(DIM, dtype=np.float32)
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for number in range(n_shards):
        n = n_rows * (number + 1) // n_shards - n_rows * number // n_shards
        path = folder / f"img_emb_{number}.npy"
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(n, DIM))
        for start in range(0, n, 20_000):
            size = min(20_000, n - start)
            rows = scale * rng.standard_normal((size, DIM), dtype=np.float32)
            rows += topics[rng.integers(0, 2000, size)]
            rows += side * (lean * rng.gamma(2.0, 0.5, size=(size, 1))).astype(np.float32)
            out[start : start + size] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        out.flush()


# --- what is measured ----------------------------------------------------------------------------


class WorkerMemory:
    """Largest memory of any worker of Ray while the block runs, read from /proc."""

    def __enter__(self) -> "WorkerMemory":
        self.resident = self.own = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    if not _is_worker(status.parent):
                        continue
                    lines = dict(
                        line.split(":", 1)
                        for line in status.read_text().splitlines()
                        if ":" in line
                    )
                    sizes = [int(lines[key].split()[0]) * 1024 for key in ("VmHWM", "RssAnon")]
                except (OSError, KeyError, ValueError):
                    continue  # it ended just now
                self.resident, self.own = max(self.resident, sizes[0]), max(self.own, sizes[1])

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _is_worker(process: Path) -> bool:
    """Whether a process is a worker of Ray that this user runs."""
    return process.stat().st_uid == os.getuid() and (process / "cmdline").read_bytes().startswith(
        b"ray::"
    )


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure_efficiency(folder: Path, n_items: int, n_references: int, runs: int) -> dict[str, Any]:
    """Parts on Ray and in this process, in turns; the cluster is started once, before."""
    import ray

    write_shards(folder / "items", n_items, 4, seed=1, lean=1.0)
    write_shards(folder / "bank", n_references, 1, seed=2, lean=0.5)
    source, options = str(folder / "items"), {"duplicates": "keep", "solver": "exact"}
    seconds: dict[str, list[float]] = {"ray": [], "process": []}
    values = {}
    ray.init(
        address="local", num_cpus=CORES, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    try:
        for run in range(runs + 1):
            job = settle(source, folder / "bank", METHOD, folder=folder / f"job{run}", **options)
            other = settle(source, folder / "bank", METHOD, folder=folder / f"own{run}", **options)
            ways = {
                "ray": lambda job=job: values.update(ray=fit_on_ray(job, 8 * CORES).values),
                "process": lambda job=other: job.work(Share(1, 1)),
            }
            for name in ways if run % 2 else reversed(list(ways)):
                taken = seconds_of(ways[name])
                if run:  # the first run starts the workers
                    seconds[name].append(round(taken, 2))
            values["process"] = other.merge().values
            print({name: taken[-1:] for name, taken in seconds.items()}, file=sys.stderr)
    finally:
        ray.shutdown()
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    plan = predict(n_items, n_references).way("exact")
    return {
        "n_items": n_items,
        "n_references": n_references,
        "runs": seconds,
        "seconds": medians,
        "efficiency": round(medians["process"] / medians["ray"], 3),
        "equal": bool(np.array_equal(values["ray"], values["process"])),
        "predicted": round(plan.seconds - plan.seconds_once, 2),
    }


def measure_large(
    folder: Path, n_items: int, n_references: int, ways: list[str]
) -> list[dict[str, Any]]:
    """The whole of a fit on Ray: settled, valued, merged."""
    print("writing the embeddings", file=sys.stderr)
    write_shards(folder / "items", n_items, 16, seed=1, lean=1.0)
    write_shards(folder / "bank", n_references, 1, seed=2, lean=0.5)
    found = []
    for name in ways:
        plan = predict(n_items, n_references)
        way = plan.way(name)
        options: dict[str, Any] = {"memory_budget": 512 * 2**20}
        if name != "default":
            options |= {"duplicates": "keep", "solver": name}
        parts: dict[str, Any] = {}

        def fit(name: str = name, options: dict[str, Any] = options, parts: Any = parts) -> None:
            started = time.perf_counter()
            job = settle(
                str(folder / "items"), folder / "bank", METHOD, folder=folder / name, **options
            )
            parts["once"] = time.perf_counter() - started
            parts["bias"] = fit_on_ray(job, memory_budget=options["memory_budget"])

        with WorkerMemory() as memory:
            seconds = seconds_of(fit)
        bias = parts["bias"]
        run = {
            "way": name,
            "seconds": round(seconds, 1),
            "seconds_once": round(parts["once"], 1),
            "predicted": round(way.seconds, 1),
            "predicted_once": round(way.seconds_once, 1),
            "resident_mb": round(memory.resident / 1e6),
            "own_mb": round(memory.own / 1e6),
            "error_told": round(bias.params.get("error", 0.0), 4),
            "rates": asdict(plan.rates),
        }
        if name != "exact":
            run["residual"] = round(_residual(folder, name, bias), 4)
        print({key: value for key, value in run.items() if key != "rates"}, file=sys.stderr)
        found.append(run)
    return found


def predict(n_items: int, n_references: int) -> Plan:
    """The plan of this machine, calibrated now: other programs change what it can do."""
    work = Workload(n_items, n_references, DIM, K)
    return make_plan(work, Machines(1, CORES), measure_rates(DIM, K))


def _residual(folder: Path, name: str, bias: nnnorm.Bias) -> float:
    """Of the values of a sample of items, to exact means of the references that were used."""
    gallery = nnnorm.open_embeddings(folder / "items", fingerprint=False)
    some = np.sort(np.random.default_rng(3).choice(len(gallery), 1000, replace=False))
    bank = np.load(folder / name / "bank.npy", mmap_mode="r")
    exact = METHOD.fit(gallery.take(some), bank, duplicates="keep", solver="exact")
    return residual(bias.values[some], exact.values)


# --- how large a bank is enough ------------------------------------------------------------------


def measure_residuals(data: Path) -> list[dict[str, Any]]:
    """Means of a random share of a bank against those of the whole, three draws each."""
    rng = np.random.default_rng(0)
    found = []
    for name, items, bank in _sets(data):
        scores = items[:1000] @ bank.T
        for k in (16, 128):
            if k > len(bank) // 8:
                continue
            whole = _top_means(scores, k)
            for share in (0.125, 0.25, 0.5):
                errors = []
                for _ in range(3):
                    some = rng.permutation(len(bank))[: int(share * len(bank))]
                    errors.append(residual(_top_means(scores[:, some], round(share * k)), whole))
                expected = sampling_residual(round(share * k), share)
                found.append(
                    {
                        "set": name,
                        "n_references": len(bank),
                        "k": k,
                        "share": share,
                        "residual": round(float(np.mean(errors)), 4),
                        "expected": round(expected, 4),
                    }
                )
    return found


def _sets(data: Path) -> list[tuple[str, Any, Any]]:
    if not (data / "flickr8k").is_dir():
        return []
    flickr = Flickr8k(data / "flickr8k")
    test, train = flickr.images("test"), flickr.images("train")
    photos, captions = flickr.pairs.image, flickr.pairs.text
    sets = [
        ("Flickr8k, captions", photos[test], captions[rows_of(train, 5)]),
        ("Flickr8k, COCO captions", photos[test], flickr.coco),
        ("Flickr8k, photos", captions[rows_of(test, 5)], photos[train]),
    ]
    for name in ("cosqa", "apibench", "medquad", "bli_it-en"):
        if (data / name).is_dir():
            one = read_judged(data / name)
            sets.append((name, one.documents, one.queries if one.bank is None else one.bank))
    return sets


def _top_means(scores: Any, k: int) -> Any:
    return np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1)


# --- tables --------------------------------------------------------------------------------------

_NAMES = {
    "approximate": "approximate, every reference",
    "default": "default, 8,192 intents",
    "exact": "exact, every reference",
}


def tables(results: dict[str, Any]) -> str:
    """The Markdown tables of the stored results."""
    parts = []
    if "efficiency" in results:
        parts.append(_efficiency_table(results["efficiency"]))
    if "large" in results:
        parts.append(_large_table(results))
    if results.get("residuals"):
        parts.append(_residual_table(results["residuals"]))
    cpu, versions = results["machine"], results["versions"]
    parts.append(
        f"{cpu['cpu']}, {cpu['cores']} cores, numpy {versions['numpy']}, Ray {versions['ray']}."
    )
    return "\n\n".join(parts)


def _efficiency_table(found: dict[str, Any]) -> str:
    seconds = found["seconds"]
    rows = [
        ["one process, two threads", f"{seconds['process']:.1f}", "1"],
        ["Ray, two workers of one core", f"{seconds['ray']:.1f}", f"{found['efficiency']:.2f}"],
        ["the plan's prediction", f"{found['predicted']:.1f}", ""],
    ]
    same = "the same bits" if found["equal"] else "values that differ by rounding"
    return (
        f"{table(['parts of one job', 'seconds', 'efficiency'], rows)}\n\n"
        f"{found['n_items']:,} items, {found['n_references']:,} references, {DIM} dimensions, "
        f"k = {K}, exact: {same}. Medians of {len(found['runs']['ray'])} interleaved runs."
    )


def _large_table(results: dict[str, Any]) -> str:
    rows = [
        [
            _NAMES[run["way"]],
            f"{run['seconds']:,.0f}",
            f"{run['predicted']:,.0f}",
            f"{run['predicted'] / run['seconds'] - 1:+.0%}".replace("-", "−"),
            f"{run['seconds_once']:,.0f}",
            f"{run['predicted_once']:,.0f}",
            f"{run['resident_mb']:,}",
            f"{run['own_mb']:,}",
            f"{run['residual']:.1%}" if "residual" in run else "0",
        ]
        for run in results["large"]
    ]
    head = [
        "way", "seconds", "planned", "off by", "of these once", "planned", "worker, MB",
        "without shared pages, MB", "residual",
    ]  # fmt: skip
    return (
        f"{table(head, rows)}\n\n{results['n_items']:,} items in float16 shards, "
        f"{results['n_references']:,} references, {DIM} dimensions, k = {K}, from files to bias on "
        f"Ray with {CORES} workers of one core. Memory is the largest of any worker."
    )


def _residual_table(found: list[dict[str, Any]]) -> str:
    shares = sorted({one["share"] for one in found})
    by_case: dict[tuple[str, int, int], dict[float, dict[str, Any]]] = {}
    for one in found:
        by_case.setdefault((one["set"], one["n_references"], one["k"]), {})[one["share"]] = one
    rows = [
        [name, f"{n:,}", str(k), *(f"{some[share]['residual']:.2f}" for share in shares)]
        for (name, n, k), some in by_case.items()
    ]
    for k in sorted({one["k"] for one in found}):
        law = (sampling_residual(round(share * k), share) for share in shares)
        rows.append(["**√((1 − share) / (share·k))**", "", str(k), *(f"{one:.2f}" for one in law)])
    head = ["bank", "references", "k", *(f"1/{round(1 / share)} of it" for share in shares)]
    return (
        f"{table(head, rows)}\n\nResidual of the means of a random part, mean of three draws; up "
        "to 1,000 items."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of items and references")
    parser.add_argument("--exact", action="store_true", help="also exact means of every reference")
    parser.add_argument("--runs", type=int, default=3, help="of the comparison with one process")
    parser.add_argument("--only", choices=["efficiency", "large", "residuals"], action="append")
    parser.add_argument("--output", type=Path, help=f"JSON, such as {OUTPUT.name}")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the real sets")
    parser.add_argument("--folder", type=Path, help="for 1.2 GB of embeddings, for a while")
    parser.add_argument("--tables", action="store_true", help="print the stored results")
    options = parser.parse_args()
    if options.tables:
        print(tables(json.loads(OUTPUT.read_text(encoding="utf-8"))))
        return 0
    try:
        import ray
    except ModuleNotFoundError:
        print("this needs Ray: pip install 'nnnorm[ray]'", file=sys.stderr)
        return 1
    shrink = 10 if options.small else 1
    n_items, n_references = 2_000_000 // shrink, 200_000 // shrink
    parts = options.only or ["efficiency", "large", "residuals"]
    results: dict[str, Any] = {"n_items": n_items, "n_references": n_references}
    if options.output and options.output.is_file() and options.only:
        results = json.loads(options.output.read_text(encoding="utf-8"))
    results |= machine()
    results["versions"]["ray"] = ray.__version__
    is_stored = options.output is not None and options.output.resolve() == OUTPUT
    old = ""
    if is_stored and OUTPUT.is_file():
        old = tables(json.loads(OUTPUT.read_text(encoding="utf-8")))

    def keep(name: str, found: Any) -> None:
        """Write what is measured so far: a later part may fail."""
        results[name] = found
        if options.output:
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    if "residuals" in parts:
        keep("residuals", measure_residuals(options.data))
    if "efficiency" in parts:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            sizes = (100_000 // shrink, 50_000)
            keep("efficiency", measure_efficiency(Path(folder), *sizes, options.runs))
    if "large" in parts:
        ways = ["default", "approximate", *(["exact"] if options.exact else [])]
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            keep("large", measure_large(Path(folder), n_items, n_references, ways))
    print(tables(results))
    if is_stored and not paste("billion.md", old, tables(results)):
        print("docs/billion.md has other tables; put these there", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
