"""Times `transform_parquet` on two Ray workers, compared with one process with two threads.

Both read parquet files, compute bias values and write parquet files, interleaved in one run. CPU
time includes all workers and this process. Unlike wall-clock time, it doesn't depend on the load of
the machine.

    python benchmarks/distributed.py --output benchmarks/results/distributed.json   # five minutes
    python benchmarks/distributed.py --small     # a fifth of the items
    python benchmarks/distributed.py --tables    # print the stored results
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from harness import run_command
from real_sets import RESULTS, machine, table

import nnnorm
from nnnorm.distributed import make_worker, transform_parquet

DIM, K, CORES, N_FILES = 256, 128, 2, 16


def make_rows(n_rows: int, seed: int) -> Any:
    """Draw unit rows with a falling spectrum."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, DIM), dtype=np.float32)
    rows *= (np.arange(1, DIM + 1) ** -0.4).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def write_items(folder: Path, items: Any) -> None:
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(items)), N_FILES)):
        values = pyarrow.array(items[part].astype(np.float16).ravel())
        lists = pyarrow.FixedSizeListArray.from_arrays(values, DIM)
        rows = pyarrow.table({"id": part, "embedding": lists})
        pyarrow.parquet.write_table(rows, folder / f"part-{number:05d}.parquet")


def in_one_process(corrector: nnnorm.Corrector, source: Path, target: Path) -> None:
    work = make_worker(corrector)
    target.mkdir()
    for path in sorted(source.iterdir()):
        result = work(pyarrow.parquet.read_table(path))
        pyarrow.parquet.write_table(result, target / path.name)


def processor_seconds() -> float:
    """Return the CPU time of this process and of Ray's workers."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(b"ray::"):
                ticks += sum(map(int, (process / "stat").read_text().split(")")[1].split()[11:13]))
        except OSError:  # the process has ended
            continue
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import ray

    n_items = 12_000 if options.small else 60_000
    corrector = nnnorm.Corrector.fit(
        make_rows(5000, 3),
        make_rows(20_000, 2),
        nnnorm.NNN(K, 0.5),
        duplicates="keep",
        allow_gallery_rows=True,
    )
    ways = {"process": in_one_process, "ray": transform_parquet}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    work: dict[str, list[float]] = {name: [] for name in ways}
    quiet: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    os.environ.pop("OMP_NUM_THREADS", None)  # one process uses both cores
    # By default, other programs have priority over Ray's workers.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray.init("local", num_cpus=CORES, **quiet)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_items(folder / "items", make_rows(n_items, 1))
        for run in range(options.runs + 1):  # the first run includes the start of the workers
            for name in ways if run % 2 else reversed(list(ways)):
                started, used = time.perf_counter(), processor_seconds()
                ways[name](corrector, folder / "items", folder / f"{name}{run}")
                if run:
                    wall[name].append(round(time.perf_counter() - started, 2))
                    work[name].append(round(processor_seconds() - used, 2))
            print({name: (wall[name][-1:], work[name][-1:]) for name in ways}, file=sys.stderr)
        found = [
            pyarrow.parquet.read_table(folder / f"{name}{options.runs}")["nnnorm_bias"].to_numpy()
            for name in ways
        ]
    ray.shutdown()
    about = machine()
    about["versions"]["ray"] = ray.__version__
    return {
        **about,
        "n_items": n_items,
        "n_references": len(corrector.references),
        "wall": wall,
        "processor": work,
        "largest_difference": float(np.abs(found[0] - found[1]).max()),
        "load": round(os.getloadavg()[0], 1),
    }


def tables(results: dict[str, Any]) -> str:
    """Return the table of the results as Markdown."""
    rows = []
    for name, label in (("process", "one process, two threads"), ("ray", "Ray, two workers")):
        cells = []
        for column in (results["wall"], results["processor"]):
            own, base = (statistics.median(column[one]) for one in (name, "process"))
            cells.append(f"{own:.1f} ({base / own:.2f})")
        rows.append([label, *cells])
    cpu = results["machine"]
    head = ["run", "seconds (efficiency)", "processor seconds (efficiency)"]
    return (
        f"{table(head, rows)}\n\n{results['n_items']:,} items in {N_FILES} parquet files, "
        f"{results['n_references']:,} past queries, {DIM} dimensions, reference_k = {K}. Medians "
        f"of {len(results['wall']['ray'])} interleaved runs. {cpu['cpu']}, {cpu['cores']} cores, "
        f"Ray {results['versions']['ray']}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a fifth of the items")
    parser.add_argument("--runs", type=int, default=3)
    stored = RESULTS / "distributed.json"
    return run_command(parser, stored, measure, tables, "many-machines.md")


if __name__ == "__main__":
    sys.exit(main())
