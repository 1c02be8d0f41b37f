"""Measures the peak memory of a fit on memory-mapped files.

Every 5 ms, the script reads how much anonymous memory (RssAnon, which excludes mapped files) the
process has allocated since the start. It needs Linux. By default, it measures `NNN().fit`. With
`--tune`, it measures the grid of `tune` on 1,000 queries instead, whose peak should be below 192 MB
for a budget of 128 MB with `--n-references 50000 --dim 512`.

    python benchmarks/memory.py [--tune] [--n-gallery N] [--n-references N] [--dim N] [--budget MB]
"""

import argparse
import json
import platform
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import nnnorm


def write_embeddings(path: Path, n_rows: int, dim: int, seed: int) -> None:
    """Write random unit rows as a float16 `.npy`, in pieces."""
    rng = np.random.default_rng(seed)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(n_rows, dim))
    for start in range(0, n_rows, 10_000):
        rows = rng.normal(size=(min(10_000, n_rows - start), dim))
        out[start : start + len(rows)] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    out.flush()


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon; this needs Linux")


class Peak:
    """Measures the largest anonymous memory while the block runs."""

    def __enter__(self) -> "Peak":
        self.before = self.highest = anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def extra_mb(self) -> float:
        """Return the peak minus the memory at the start."""
        return (self.highest - self.before) / 2**20


def measure(n_gallery: int, n_references: int, dim: int, budget_mb: int, *, is_tune: bool) -> Any:
    budget = budget_mb * 2**20
    with tempfile.TemporaryDirectory() as folder:
        gallery, references = Path(folder, "gallery.npy"), Path(folder, "references.npy")
        write_embeddings(gallery, n_gallery, dim, seed=0)
        write_embeddings(references, n_references, dim, seed=1)
        rows = np.arange(0, n_gallery, n_gallery // 1000)
        noise = np.random.default_rng(2).normal(size=(len(rows), dim)) / dim**0.5
        queries = np.load(gallery, mmap_mode="r")[rows] + noise
        started = time.perf_counter()
        with Peak() as peak:
            if is_tune:
                asked = {"queries": queries, "truth": rows, "normalize": True}
                bias = nnnorm.tune(gallery, references, memory_budget=budget, **asked).bias
            else:
                bias = nnnorm.NNN().fit(gallery, references, memory_budget=budget)
        seconds = time.perf_counter() - started
    return {
        "call": "tune" if is_tune else "fit",
        "n_gallery": n_gallery,
        "n_references": n_references,
        "dim": dim,
        "budget_mb": budget_mb,
        "peak_extra_mb": round(peak.extra_mb, 1),
        "seconds": round(seconds, 2),
        "params": dict(bias.params),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "nnnorm": nnnorm.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="measure the grid of tune instead")
    parser.add_argument("--n-gallery", type=int, default=200_000)
    parser.add_argument("--n-references", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--budget", type=int, help="in MB; by default 512, with --tune 128")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        print("this benchmark reads /proc and needs Linux", file=sys.stderr)
        return 1
    sizes = options.n_gallery, options.n_references, options.dim
    budget = options.budget or (128 if options.tune else 512)
    result = measure(*sizes, budget, is_tune=options.tune)
    print("| call | gallery x references | budget MB | peak extra MB | seconds |")
    print("|---|---|---|---|---|")
    print(
        f"| {result['call']} | {result['n_gallery']:,} x {result['n_references']:,} x "
        f"{result['dim']} float16, mapped | {result['budget_mb']} | {result['peak_extra_mb']} "
        f"| {result['seconds']} |"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
