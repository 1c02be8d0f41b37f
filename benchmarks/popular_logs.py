"""One cell of `logs.py` on many logs: `NNN()` where one picture has an eighth of the traffic.

At a Zipf exponent of 1.0 the gain of one log differs from that of the next by several points, so
that neither five logs nor forty tell whether the mean is above 0. These are 200, none of which was
seen when the rule was made.

    python benchmarks/popular_logs.py             # measure, write JSON, print the table
    python benchmarks/popular_logs.py --tables    # print the table of the stored JSON
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from logs import SETS, gain_and_luck, steady_corrections
from real_sets import RESULTS, points, run_benchmark, table

OUTPUT = RESULTS / "popular_logs.json"
SEEDS = range(200, 210)
PER_SEED = 20
EXPONENT = 1.0


def measure(data: Path, seed: int) -> dict[str, Any]:
    steady = steady_corrections(data)
    numbers = range(1000 * seed, 1000 * seed + PER_SEED)
    return {"cells": [c for n in numbers for c in gain_and_luck(data, n, steady, (EXPONENT,))]}


def tables(results: dict[str, Any]) -> str:
    """Mean gains with their standard errors, as they are and without luck."""
    rows = []
    for name, title in SETS.items():
        for is_varied, repeats in ((False, "equal"), (True, "varied")):
            some = [c for c in results["cells"] if (c["set"], c["varied"]) == (name, is_varied)]
            gains = np.array([cell["gain"] for cell in some])
            lucky = np.array([cell["luck"] for cell in some])
            row = [f"{title}, {repeats} repeats", f"{len(some)}"]
            for values in (gains, gains - lucky):
                error = values.std(ddof=1) / np.sqrt(len(values))
                row.append(f"{points(float(values.mean()))} ± {error:.2f}")
            rows.append([*row, points(float(np.median(gains)))])
    return table(["Zipf exponent 1", "logs", "gain", "without luck", "median"], rows) + "\n"


def main() -> int:
    return run_benchmark(
        "Measure one cell of the query logs on many of them.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        sets=("flickr8k",),
    )


if __name__ == "__main__":
    sys.exit(main())
