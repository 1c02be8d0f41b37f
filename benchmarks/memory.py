"""Peak memory of a fit on memory-mapped files: 200,000 x 256 float16 items, 20,000 references.

Counts anonymous memory (RssAnon: what the process itself allocated, without mapped files) above
what it held before the fit, sampled every 5 ms. Linux only. The fit is the automatic NNN.

    python benchmarks/memory.py [--n-gallery N] [--n-references N] [--budget MB] [--json FILE]
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
    """Random unit rows as a float16 `.npy`, written in pieces."""
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
    """Largest anonymous memory while the block runs."""

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
        """What came on top of what was held before."""
        return (self.highest - self.before) / 2**20


def measure(n_gallery: int, n_references: int, dim: int, budget_mb: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        gallery, references = Path(folder, "gallery.npy"), Path(folder, "references.npy")
        write_embeddings(gallery, n_gallery, dim, seed=0)
        write_embeddings(references, n_references, dim, seed=1)
        started = time.perf_counter()
        with Peak() as peak:
            bias = nnnorm.NNN().fit(gallery, references, memory_budget=budget_mb * 2**20)
        seconds = time.perf_counter() - started
    return {
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
    parser.add_argument("--n-gallery", type=int, default=200_000)
    parser.add_argument("--n-references", type=int, default=20_000)
    parser.add_argument("--budget", type=int, default=512, help="MB")
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        print("this benchmark reads /proc and needs Linux", file=sys.stderr)
        return 1
    result = measure(options.n_gallery, options.n_references, 256, options.budget)
    print("| gallery x references | budget MB | peak extra MB | seconds |")
    print("|---|---|---|---|")
    print(
        f"| {result['n_gallery']:,} x {result['n_references']:,} x 256 float16, mapped "
        f"| {result['budget_mb']} | {result['peak_extra_mb']} | {result['seconds']} |"
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
