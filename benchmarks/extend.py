"""Times the bias of new items, relative to the fit of the whole gallery.

Synthetic clustered embeddings (50,000 items, 8,192 references, 512 dimensions; `--small` for a
tenth). `Corrector.fit` and `Corrector.bias_for` with 0.1 %, 1 % and 10 % new items are timed in
interleaved runs. The table has ratios of medians.

    python benchmarks/extend.py [--small] [--runs 5] [--output FILE.json]
    python benchmarks/extend.py --tables     # print the table of the stored JSON
"""

import argparse
import statistics
import sys
import time
from typing import Any

from harness import run_command
from real_sets import RESULTS, machine, table
from sweep import make_rows

import nnnorm

OUTPUT = RESULTS / "extend.json"
SHARES = (0.001, 0.01, 0.1)


def measure(scale: float, n_runs: int) -> dict[str, Any]:
    n_items, n_references, dim = int(50_000 * scale), int(8192 * scale), 512
    rows = make_rows(n_items + n_items // 10, n_references, 1, dim, seed=0)
    gallery = nnnorm.open_embeddings(rows["gallery"][:n_items], name="gallery")
    references = nnnorm.open_embeddings(rows["references"], name="references")
    seconds: dict[str, list[float]] = {name: [] for name in ("fit", *map(str, SHARES))}
    for run in range(n_runs):
        started = time.perf_counter()
        corrector = nnnorm.Corrector.fit(gallery, references)
        seconds["fit"].append(time.perf_counter() - started)
        for share in SHARES:
            new = rows["gallery"][n_items : n_items + max(1, round(share * n_items))]
            started = time.perf_counter()
            corrector.bias_for(new)
            seconds[str(share)].append(time.perf_counter() - started)
        print(f"run {run + 1}: fit {seconds['fit'][-1]:.2f} s", file=sys.stderr)
    sizes = {"n_gallery": n_items, "n_references": n_references, "dim": dim}
    rounded = {name: [round(time, 5) for time in times] for name, times in seconds.items()}
    return {**machine(), **sizes, "seconds": rounded}


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    median = {name: statistics.median(times) for name, times in results["seconds"].items()}
    n_items = results["n_gallery"]
    rows = [[f"{n_items:,} (the fit)", f"{median['fit']:.2f}", "100 %"]]
    for share in SHARES:
        took = median[str(share)]
        label = f"{round(share * n_items):,} new ({100 * share:g} %)"
        rows.append([label, f"{took:.3f}", f"{100 * took / median['fit']:.2f} %"])
    return table(["items", "seconds", "share of the fit"], rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the bias of new items.")
    parser.add_argument("--small", action="store_true", help="use a tenth of the size")
    parser.add_argument("--runs", type=int, default=5)
    return run_command(
        parser, OUTPUT, lambda given: measure(0.1 if given.small else 1.0, given.runs), tables
    )


if __name__ == "__main__":
    sys.exit(main())
