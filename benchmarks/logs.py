"""Raw query logs as banks: what repeated and nearly repeated queries do to the correction.

A log of 6,000 queries over the 1,000 test pictures of Flickr8k and of the shapes, whose popularity
follows Zipf's law, is given as the bank just as it is. The traffic that is measured asks for the
same pictures with the same popularity, by a caption that is not in the log. At an exponent of 1.2
one picture has a fifth of the traffic, so single seeds differ by points.

    python benchmarks/logs.py             # measure, write JSON, print the tables
    python benchmarks/logs.py --tables    # print the tables of the stored JSON
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import EXPONENTS, Judge, log_cases
from real_sets import RESULTS, points, run_benchmark, table
from rules import FIRST, SECOND, Contestant, Material, shipped

OUTPUT = RESULTS / "logs.json"
SEEDS = (100, 101, 102, 103, 104)
CONTESTANTS: dict[str, Contestant] = {
    "first rule": FIRST,
    "first rule, copies dropped": replace(FIRST, copies=SECOND.copies),
    "second rule": SECOND,
    "second rule, copies kept": replace(SECOND, copies=None),
    "second rule, k = 10": replace(SECOND, smallest=10, largest=10),
    "second rule, k up to 64": replace(SECOND, largest=64),
    "second rule, not centred": replace(SECOND, centred=False),
    "`NNN()`": shipped,
}


def measure(data: Path, seed: int) -> dict[str, Any]:
    cells = []
    for name, exponent, is_varied, case in log_cases(data, seed):
        judge, material = Judge(case), Material(case.gallery, case.bank)
        gains = {label: round(judge.gain(c(material)), 4) for label, c in CONTESTANTS.items()}
        n_intents = len(material.without_copies(SECOND.copies))
        where = {"set": name, "exponent": exponent, "varied": is_varied, "seed": seed}
        cells.append({**where, "intents": n_intents, "without": judge.without, "gains": gains})
        print(f"{case.name}  seed {seed}  {gains['second rule']:+.2f}", file=sys.stderr)
    return {"cells": cells}


def tables(results: dict[str, Any]) -> str:
    """One table per set and kind of repeats: mean gains over the seeds, the worst in brackets."""
    parts = []
    cells = results["cells"]
    for name, title in (("flickr8k", "Flickr8k"), ("shapes", "Shapes")):
        for is_varied, repeats in ((False, "equal"), (True, "varied")):
            rows = []
            some = [c for c in cells if (c["set"], c["varied"]) == (name, is_varied)]
            for label in cells[0]["gains"]:
                row = [label]
                for exponent in EXPONENTS:
                    gains = [c["gains"][label] for c in some if c["exponent"] == exponent]
                    row.append(f"{points(float(np.mean(gains)))} ({points(min(gains))})")
                rows.append(row)
            intents = [
                np.mean([c["intents"] for c in some if c["exponent"] == exponent])
                for exponent in EXPONENTS
            ]
            rows.append(["intents of 6,000 queries", *(f"{n:,.0f}" for n in intents)])
            columns = ["Zipf exponent", *(f"{exponent:g}" for exponent in EXPONENTS)]
            parts.append(f"### {title}, {repeats} repeats\n\n" + table(columns, rows))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    return run_benchmark(
        "Measure raw query logs as banks.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        sets=("flickr8k",),
    )


if __name__ == "__main__":
    sys.exit(main())
