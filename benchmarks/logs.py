"""Measures raw query logs as past queries: the effect of repeated and nearly repeated queries.

A log has 6,000 queries over the 1,000 test items of Flickr8k or of the synthetic shapes, whose
popularity follows Zipf's law. It is passed unchanged. The test traffic asks for the same items with
the same popularity, with a caption that isn't in the log.

With an exponent of 1.0, one item has an eighth of the traffic; with 1.2, nearly a quarter. So gains
differ by points from log to log. These exponents are measured on five logs per seed, the others on
one.

    python benchmarks/logs.py             # measure, write JSON, print the table
    python benchmarks/logs.py --tables    # print the table of the stored JSON
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from automatic_rule import SHIPPED, points, run, table
from cases import EXPONENTS, Floats, Judge, log_cases
from rules import FIRST, SECOND, THIRD, Material, Rule, View, shipped

OUTPUT = Path(__file__).parent / "results" / "logs.json"
SEEDS = tuple(range(100, 110))
STEEP, N_LOGS = (1.0, 1.2), 5
RULES: dict[str, Callable[[Material], Floats]] = {
    "first edition": FIRST,
    "second edition": SECOND,
    "third edition": THIRD,
    "third, near-duplicates kept": Rule(view=View(copies=None)),
    SHIPPED: shipped,
}


def measure(data: Path, seeds: Sequence[int], labels: Sequence[str]) -> dict[str, Any]:
    """Measure the gains of every log."""
    cells = []
    for seed in seeds:
        for draw in range(N_LOGS):
            exponents = EXPONENTS if draw == 0 else STEEP
            for name, exponent, is_varied, case in log_cases(data, seed + 1000 * draw, exponents):
                judge, material = Judge(case.search), Material(case.search.gallery, case.bank)
                gains = {
                    label: round(float(judge.gains(RULES[label](material)) @ case.traffic), 4)
                    for label in labels
                }
                where = {"set": name, "exponent": exponent, "varied": is_varied}
                cells.append({**where, "unique": len(material.rows(View())), "gains": gains})
        print(f"seed {seed} measured", file=sys.stderr)
    return {"cells": cells}


def tables(results: dict[str, Any]) -> str:
    """Return the mean gains with equal repeats, and their standard errors over the logs."""
    return tables_of(results, "equal")


def all_tables(results: dict[str, Any]) -> str:
    """Return the tables of the page, and then those with varied repeats, which are only printed."""
    return tables_of(results, "equal") + "\n" + tables_of(results, "varied")


def tables_of(results: dict[str, Any], repeats: str) -> str:
    parts = []
    cells = results["cells"]
    for name, title in (("flickr8k", "Flickr8k"), ("shapes", "Shapes")):
        some = [c for c in cells if (c["set"], c["varied"]) == (name, repeats == "varied")]
        by_exponent = [[c for c in some if c["exponent"] == e] for e in EXPONENTS]
        rows = [
            [label, *(cell([c["gains"][label] for c in same]) for same in by_exponent)]
            for label in ("second edition", SHIPPED, "third, near-duplicates kept")
        ]
        rows.append(["unique queries of 6,000", *(f"{mean_unique(s):,.0f}" for s in by_exponent)])
        columns = ["Zipf exponent", *(f"{exponent:g}" for exponent in EXPONENTS)]
        parts.append(f"### {title}, {repeats} repeats\n\n" + table(columns, rows))
    return "\n\n".join(parts) + "\n"


def cell(gains: Sequence[float]) -> str:
    """Format mean and standard error."""
    error = np.std(gains, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
    return f"{points(float(np.mean(gains)))} ± {error:.2f}"


def mean_unique(cells: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([c["unique"] for c in cells]))


def main() -> int:
    return run(
        "Measure raw query logs as past queries.",
        OUTPUT,
        measure,
        all_tables,
        seeds=SEEDS,
        labels=[*RULES],
        sets=("flickr8k",),
    )


if __name__ == "__main__":
    sys.exit(main())
