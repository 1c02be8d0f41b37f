"""Banks from elsewhere, and what 64 recent queries of one's own are worth.

Each case has a bank and 64 unlabelled queries from the source of the test queries. Own banks come
from that source too; foreign banks are COCO captions for Flickr8k's pictures, the opposite end of
each set's first principal axis, another platform (APIBench) or short searches (shapes). Where bank
and recent queries do not mix (z > 3), the *switch* uses the recent queries alone; *weighed* uses
all of them, with a reliability that the recent queries measure. Elsewhere the two are the same.

64 queries are few, and a case has as few as 100 test queries, so that the mean of five draws is
uncertain by several tenths of a point: foreign banks are measured on ten further seeds too. The
weighing was chosen on seeds 300, 302, … 312, before any of the others were measured.

    python benchmarks/foreign.py             # measure, write JSON, print the tables
    python benchmarks/foreign.py --tables    # print the tables of the stored JSON
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from cases import Case, Judge, fewer_queries, own_cases, stress_cases
from real_sets import RESULTS, Floats, points, run_benchmark, table
from rules import FIRST, SECOND, Contestant, Material, find_leaders, shipped_with_recent

from nnnorm import open_embeddings
from nnnorm.foreign import FOREIGN_Z, foreign_z

OUTPUT = RESULTS / "foreign.json"
SEEDS = (100, 101, 102, 103, 104)
# What is added to a seed for its further draws.
FURTHER = (5, 10)
N_RECENT = 64
RECENT, SHIPPED = "second rule, recent", "`NNN()`, recent="
# A contestant is a way to make a bank and a rule.
CONTESTANTS: dict[str, tuple[str, Contestant]] = {
    "first rule, bank": ("bank", FIRST),
    "first rule, switch": ("switch", FIRST),
    "second rule, bank": ("bank", SECOND),
    RECENT: ("recent", SECOND),
    "second rule, both": ("both", SECOND),
    "second rule, switch": ("switch", SECOND),
}


def split_recent(case: Case, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """``(bank, recent)``: an own bank gives up the recent queries."""
    source = case.bank if case.recent is None else case.recent
    order = rng.permutation(len(source))
    recent = source[order[:N_RECENT]]
    return (source[order[N_RECENT:]] if case.recent is None else case.bank), recent


def cases(data: Path, seed: int) -> Iterator[Case]:
    for case in chain(own_cases(data, seed), stress_cases(data, seed)):
        if case.kind != "concentrated" and (case.recent is not None or len(case.bank) > 128):
            yield fewer_queries(case, seed)


def measure(data: Path, seed: int) -> dict[str, Any]:
    cells = []
    for case in cases(data, seed):
        bank, recent = split_recent(case, np.random.default_rng([seed, 6]))
        z = foreign_z(*(open_embeddings(rows, normalize=True) for rows in (bank, recent)))
        judge = Judge(case)
        banks = {"bank": bank, "recent": recent, "both": np.concatenate([recent, bank])}
        made = {which: Material(case.gallery, rows) for which, rows in banks.items()}
        made["switch"] = made["recent" if z > FOREIGN_Z else "both"]
        gains = {
            label: round(judge.gain(contestant(made[which])), 4)
            for label, (which, contestant) in CONTESTANTS.items()
        }
        n_recent = len(find_leaders(recent, SECOND.copies or 1)) if z > FOREIGN_Z else 0
        weighed = {
            "second rule, weighed": SECOND(made["both"], n_recent),
            SHIPPED: shipped_with_recent(case.gallery, bank, recent),
        }
        gains |= {label: round(judge.gain(c), 4) for label, c in weighed.items()}
        where = {"case": case.name, "kind": case.kind, "seed": seed, "z": round(z, 2)}
        cells.append({**where, "without": judge.without, "gains": gains})
        print(f"{case.name}  seed {seed}  z {z:.1f}", file=sys.stderr)
    return {"cells": cells, "further": list(measure_further(data, seed))}


def measure_further(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Foreign banks, and what is made of 64 recent queries, with and without the bank."""
    for number in (seed + more for more in FURTHER):
        for case in (case for case in cases(data, number) if case.kind == "foreign"):
            bank, recent = split_recent(case, np.random.default_rng([number, 6]))
            judge = Judge(case)
            corrections = {
                RECENT: SECOND(Material(case.gallery, recent)),
                SHIPPED: shipped_with_recent(case.gallery, bank, recent),
            }
            gains = {label: round(judge.gain(c), 4) for label, c in corrections.items()}
            yield {"case": case.name, "kind": case.kind, "seed": number, "gains": gains}


GROUPS: dict[str, Callable[[str, str], bool]] = {
    "own banks": lambda kind, case: kind.startswith("own"),
    "COCO captions": lambda kind, case: case.startswith("coco"),
    "opposite ends": lambda kind, case: case.startswith("axis"),
    "other platform": lambda kind, case: case.startswith("apibench-"),
    "short searches": lambda kind, case: case.startswith("searches"),
}


ByCase: TypeAlias = dict[tuple[str, str], dict[str, list[float]]]


def sort_by_case(cells: list[dict[str, Any]]) -> ByCase:
    by_case: ByCase = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        for label, gain in cell["gains"].items():
            by_case[cell["kind"], cell["case"]][label].append(gain)
    return by_case


def summary_table(by_case: ByCase, labels: Sequence[str], groups: Sequence[str]) -> str:
    rows = []
    for label in labels:
        row = [label]
        for group in (GROUPS[name] for name in groups):
            means = [np.mean(g[label]) for (k, c), g in by_case.items() if group(k, c)]
            losses = sum(mean < -0.1 for mean in means)
            row.append(f"{points(float(np.mean(means)))} ({points(float(min(means)))}; {losses})")
        rows.append(row)
    return table(["mean (worst case; cases below −0.1)", *groups], rows)


def further_tables(results: dict[str, Any]) -> str:
    """Foreign banks over all seeds, with standard errors of the case means."""
    foreign = [cell for cell in results["cells"] if cell["kind"] == "foreign"]
    by_case = sort_by_case(foreign + results["further"])
    summary = summary_table(by_case, (RECENT, SHIPPED), list(GROUPS)[1:])
    rows = []
    for (_, case), gains in by_case.items():
        row = [case]
        for label in (RECENT, SHIPPED):
            error = _error(
                [np.mean(g) for g in _by_seed(foreign + results["further"], case, label)]
            )
            row.append(f"{points(float(np.mean(gains[label])))} ± {error:.2f}")
        rows.append(row)
    return f"{summary}\n\n{table(['case', RECENT, SHIPPED], rows)}"


def _by_seed(cells: list[dict[str, Any]], case: str, label: str) -> list[list[float]]:
    """Small sets are split several times per seed, and these belong together."""
    found: dict[int, list[float]] = defaultdict(list)
    for cell in (cell for cell in cells if cell["case"] == case):
        found[cell["seed"]].append(cell["gains"][label])
    return list(found.values())


def _error(means: Sequence[Any]) -> float:
    return float(np.std(means, ddof=1) / np.sqrt(len(means)))


def tables(results: dict[str, Any]) -> str:
    cells = results["cells"]
    by_case, labels = sort_by_case(cells), list(cells[0]["gains"])
    summary = summary_table(by_case, labels, list(GROUPS))
    flagged = [
        [
            name,
            f"{sum(c['z'] > FOREIGN_Z for c in some)} of {len(some)}",
            f"{min(c['z'] for c in some):.1f} to {max(c['z'] for c in some):.1f}",
        ]
        for name, group in GROUPS.items()
        if (some := [c for c in cells if group(c["kind"], c["case"])])
    ]
    z_table = table(["banks", f"z > {FOREIGN_Z:g}", "z"], flagged)
    detail = table(
        ["case", *labels],
        [
            [case, *(points(float(np.mean(gains[label]))) for label in labels)]
            for (_, case), gains in by_case.items()
        ],
    )
    further = further_tables(results)
    return (
        f"{summary}\n\n{z_table}\n\n### Foreign banks over 15 seeds\n\n{further}\n\n"
        f"### Case by case\n\n{detail}\n"
    )


SHOWN = {
    "first rule, bank": "#b3452c",
    "second rule, bank": "#d9a441",
    SHIPPED: "#1f6f8b",
}


def draw(results: dict[str, Any], figure: Any) -> None:
    """Mean gain of every case, by group."""
    axis = figure.subplots()
    for place, group in enumerate(GROUPS.values()):
        some = [cell for cell in results["cells"] if group(cell["kind"], cell["case"])]
        for shift, (label, colour) in zip((-0.2, 0, 0.2), SHOWN.items(), strict=True):
            by_case = defaultdict(list)
            for cell in some:
                by_case[cell["case"]].append(cell["gains"][label])
            means = [float(np.mean(gains)) for gains in by_case.values()]
            across = np.full(len(means), place + shift)
            axis.scatter(across, means, s=14, color=colour, alpha=0.6, linewidths=0)
            axis.plot([place + shift - 0.07, place + shift + 0.07], [np.mean(means)] * 2,
                      color=colour, linewidth=2.5, label=label.replace("`", "")
                      if place == 0 else None)  # fmt: skip
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(GROUPS)), list(GROUPS))
    axis.set_ylabel("gain, points")
    axis.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, loc="lower right")


def main() -> int:
    return run_benchmark(
        "Measure foreign banks and the switch.", OUTPUT, measure, tables, seeds=SEEDS, draw=draw
    )


if __name__ == "__main__":
    sys.exit(main())
