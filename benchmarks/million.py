"""Measures large fits with `solver="auto"`: time, memory, and error relative to exact means.

Embeddings with two levels of topics and a falling spectrum are memory-mapped float16 files; "noise"
has no structure. The time is that from opened files to the bias, including fingerprints, with the
default memory budget. Exact means are computed for 2,000 items, and their time is scaled. Memory is
the peak of the process without mapped files.

    python benchmarks/million.py --case medium    # 20,000 x 200,000 x 128; a minute
    python benchmarks/million.py --case large     # 1,000,000 x 100,000 x 256; 0.6 GB of disk
    python benchmarks/million.py --case million   # 1,000,000 x 500,000 x 512; 1.6 GB of disk
    python benchmarks/million.py --case noise     # 300,000 x 200,000 x 256; about six minutes
    python benchmarks/million.py --tables         # print the stored results
"""

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from harness import run_command
from memory import Peak
from real_sets import RESULTS, machine, residual, table

import nnnorm
from nnnorm.scoring import Products, top_means

OUTPUT = RESULTS / "million.json"
K, N_SAMPLE = 128, 2000
CASES = {
    "small": (5000, 50_000, 64),
    "medium": (20_000, 200_000, 128),
    "large": (1_000_000, 100_000, 256),
    "million": (1_000_000, 500_000, 512),
    "noise": (300_000, 200_000, 256),
}


def write_embeddings(path: Path, n: int, dim: int, *, is_item: bool, is_noise: bool) -> None:
    """Draw two levels of topics; references share a direction, and items have it to some degree."""
    rng = np.random.default_rng(0)
    scale = (np.arange(1, dim + 1) ** -0.5).astype(np.float32)
    scale /= np.sqrt((scale**2).mean())
    broad = scale * rng.standard_normal((60, dim), dtype=np.float32)
    narrow = scale * rng.standard_normal((3000, dim), dtype=np.float32)
    parent, lean = rng.integers(0, 60, 3000), rng.standard_normal(dim, dtype=np.float32)
    share = rng.gamma(0.7, size=3000)
    rng = np.random.default_rng(1 if is_item else 2)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(n, dim))
    for start in range(0, n, 50_000):
        size = min(50_000, n - start)
        rows = rng.standard_normal((size, dim), dtype=np.float32)
        if not is_noise:
            topic = rng.choice(3000, size, p=share / share.sum())
            pull = rng.gamma(2.0, 0.25, size=(size, 1)) if is_item else np.full((size, 1), 0.6)
            rows = 0.8 * scale * rows + broad[parent[topic]] + 0.8 * narrow[topic]
            rows += lean * pull.astype(np.float32)
        out[start : start + size] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    out.flush()


def measure(folder: Path, case: str) -> dict[str, Any]:
    n_items, n_references, dim = CASES[case]
    for name, n in (("gallery", n_items), ("references", n_references)):
        is_item, is_noise = name == "gallery", case == "noise"
        path = folder / f"{name}.npy"
        write_embeddings(path, n, dim, is_item=is_item, is_noise=is_noise)
    gallery, references = (
        nnnorm.open_embeddings(folder / f"{name}.npy", name=name)
        for name in ("gallery", "references")
    )
    with Peak() as peak, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started, cpu = time.perf_counter(), time.process_time()
        method = nnnorm.NNN(reference_k=K, alpha=0.75)
        bias = method.fit(gallery, references, duplicates="keep")
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    some = np.sort(np.random.default_rng(3).choice(n_items, N_SAMPLE, replace=False))
    started, exact_cpu = time.perf_counter(), time.process_time()
    exact = top_means(Products(gallery, references).some_rows(some), K)
    scaled = n_items / N_SAMPLE
    run = {
        "case": case,
        "n_items": n_items,
        "n_references": n_references,
        "dim": dim,
        "exact_seconds": round((time.perf_counter() - started) * scaled, 1),
        "exact_processor_seconds": round((time.process_time() - exact_cpu) * scaled, 1),
        "seconds": round(seconds, 2),
        "processor_seconds": round(cpu, 1),
        "residual": round(residual(bias.values[some], exact), 4),
        "megabytes": round(peak.extra_mb),
        "solver": bias.params["solver"],
        "quality": bias.params.get("quality"),
        "error": round(bias.params.get("error", 0.0), 4),
        "warnings": [str(one.message) for one in caught],
    }
    print(run, file=sys.stderr)
    return run


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    rows: list[list[Any]] = [
        [
            f"{run['n_items']:,} × {run['n_references']:,} × {run['dim']}",
            run["solver"] + (f", quality {run['quality']}" if run["quality"] else ""),
            f"{run['seconds']:,.0f} ({run['processor_seconds']:,.0f})",
            f"{run['exact_seconds']:,.0f} ({run['exact_processor_seconds']:,.0f})",
            f"{run['residual']:.3f}",
            f"{run['error']:.3f}",
            f"{run['megabytes']:,}",
        ]
        for run in results["runs"]
    ]
    head = [
        "items × references × dimensions", "solver that ran", "seconds (processor)",
        "exact (processor), estimated", "residual", "error reported", "memory, MB",
    ]  # fmt: skip
    cpu = results["machine"]
    return (
        f"{table(head, rows)}\n\nk = {K}, memory budget 512 MB. {cpu['cpu']}, "
        f"{cpu['cores']} cores, numpy {results['versions']['numpy']}."
    )


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for case in options.case:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            runs.append(measure(Path(folder), case))
    return {"runs": runs, "k": K, "seed": 0, **machine()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=["medium", "million"])
    parser.add_argument("--folder", type=Path, help="for up to 1.6 GB of temporary files")
    return run_command(parser, OUTPUT, measure_all, tables, "speed.md")


if __name__ == "__main__":
    sys.exit(main())
