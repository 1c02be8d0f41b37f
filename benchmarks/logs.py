"""Raw query logs as past queries: what repeated and nearly repeated queries do to the correction.

A log of 6,000 queries over the 1,000 test items of Flickr8k and of the synthetic shapes, whose
popularity follows Zipf's law, is passed as it is. The test traffic asks for the same items with the
same popularity, by a caption that isn't in the log.

At an exponent of 1.0 one item has an eighth of the traffic, so gains differ by points from log to
log. Most of that is known without any log: with a bias from every caption once, the gain in this
traffic, less the gain if all items are asked for equally often. It averages to 0 over all orders
of the items and is subtracted.

    python benchmarks/logs.py             # measure, write JSON, print the table
    python benchmarks/logs.py --tables    # print the table of the stored JSON
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from automatic_rule import SHIPPED, points, run, table
from cases import EXPONENTS, Floats, Judge, captions_of_items, log_cases
from rules import FIRST, SECOND, THIRD, Material, Rule, View, shipped

OUTPUT = Path(__file__).parent / "results" / "logs.json"
SEEDS = tuple(range(100, 110))
RULES: dict[str, Callable[[Material], Floats]] = {
    "first edition": FIRST,
    "second edition": SECOND,
    "third edition": THIRD,
    "third, near copies kept": Rule(view=View(copies=None)),
    SHIPPED: shipped,
}


def measure(data: Path, seeds: Sequence[int], labels: Sequence[str]) -> dict[str, Any]:
    """Gains of every log, and how much of each is luck."""
    steady = {
        name: {
            label: RULES[label](Material(gallery, captions[:, :4].reshape(-1, captions.shape[2])))
            for label in labels
        }
        for name, (captions, gallery) in captions_of_items(data).items()
    }
    cells = []
    for seed in seeds:
        for name, exponent, is_varied, case in log_cases(data, seed):
            judge, material = Judge(case.search), Material(case.search.gallery, case.bank)
            assert case.traffic is not None
            gains, luck = {}, {}
            for label in labels:
                gains[label] = round(float(judge.gains(RULES[label](material)) @ case.traffic), 4)
                even = judge.gains(steady[name][label])
                luck[label] = round(float(even @ case.traffic - even.mean()), 4)
            where = {"set": name, "exponent": exponent, "varied": is_varied, "seed": seed}
            n_unique = len(material.rows(View()))
            cells.append({**where, "unique": n_unique, "gains": gains, "luck": luck})
        print(f"seed {seed} measured", file=sys.stderr)
    return {"cells": cells}


def tables(results: dict[str, Any]) -> str:
    """Mean gains without luck, and their standard errors over the logs."""
    parts = []
    cells = results["cells"]
    for name, title in (("flickr8k", "Flickr8k"), ("shapes", "Shapes")):
        for is_varied, repeats in ((False, "equal"), (True, "varied")):
            some = [c for c in cells if (c["set"], c["varied"]) == (name, is_varied)]
            by_exponent = [[c for c in some if c["exponent"] == e] for e in EXPONENTS]
            rows = []
            for label in cells[0]["gains"]:
                gains = [
                    np.array([c["gains"][label] - c["luck"][label] for c in same])
                    for same in by_exponent
                ]
                rows.append(
                    [
                        label,
                        *(
                            f"{points(g.mean())} ± {g.std(ddof=1) / np.sqrt(len(g)):.2f}"
                            for g in gains
                        ),
                    ]
                )
            unique = [f"{np.mean([c['unique'] for c in same]):,.0f}" for same in by_exponent]
            rows.append(["unique queries of 6,000", *unique])
            columns = ["Zipf exponent", *(f"{exponent:g}" for exponent in EXPONENTS)]
            parts.append(f"### {title}, {repeats} repeats\n\n" + table(columns, rows))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    return run(
        "Measure raw query logs as past queries.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        labels=[*RULES],
        sets=("flickr8k",),
    )


if __name__ == "__main__":
    sys.exit(main())
