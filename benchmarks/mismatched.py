"""Mismatched past queries, and what 64 recent queries from your own traffic add.

Every case has past queries and 64 unlabeled recent queries from the source of the test queries. The
past queries are your own, or those of another set, or from the opposite end of the first principal
axis (`cases.py`). z measures whether past and recent queries mix. *Switch*: if z > 3, the recent
queries alone, otherwise both. All rows are the third edition in naive NumPy, except the last one,
which is `Corrector.fit(…, recent=…)`.

    python benchmarks/mismatched.py             # measure, write JSON, print the tables
    python benchmarks/mismatched.py --tables    # print the tables of the stored JSON
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from automatic_rule import SHIPPED, points, run, table
from cases import SETS, Case, Floats, Judge, cases
from rules import THIRD, Material

import nnnorm

OUTPUT = Path(__file__).parent / "results" / "mismatched.json"
SEEDS = (200, 201, 202)
N_RECENT, LARGEST_Z = 64, 3.0
LABELS = ("past queries", "recent queries", "both", "switch", SHIPPED)
KINDS = ("own", "searched", "opposite", "mismatched")


def mismatch_z(past: Floats, recent: Floats, *, n_draws: int = 8) -> float:
    """How far two samples are from mixing: the share of 3 nearest neighbors from the same one."""
    rng = np.random.default_rng(0)
    size = min(len(past), len(recent), N_RECENT)
    found = []
    for _ in range(n_draws):
        samples = [rows[rng.choice(len(rows), size, replace=False)] for rows in (past, recent)]
        both = np.concatenate(samples)
        scores = both @ both.T
        np.fill_diagonal(scores, -np.inf)
        nearest = np.argpartition(-scores, 2, axis=1)[:, :3]
        is_recent = np.arange(2 * size) >= size
        share = (is_recent[nearest] == is_recent[:, None]).mean()
        found.append((share - 0.5) / (0.5 / np.sqrt(3 * size)))
    return float(np.mean(found))


def split_recent(case: Case, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Past and recent queries; own past queries give up the recent ones."""
    source = case.bank if case.own is None else case.own
    order = rng.permutation(len(source))
    recent = source[order[:N_RECENT]]
    return (source[order[N_RECENT:]] if case.own is None else case.bank), recent


def measure(data: Path, seeds: Sequence[int], labels: Sequence[str]) -> dict[str, Any]:
    """Gains of every case and seed."""
    cells = []
    for seed in seeds:
        judge = None
        for case in cases(data, seed):
            is_large = len(case.bank) > 8192 or case.search.name == "flickr8k/all-images"
            if case.kind not in KINDS or is_large or len(case.bank) <= 2 * N_RECENT:
                continue
            past, recent = split_recent(case, np.random.default_rng([seed, 6]))
            if judge is None or judge.search is not case.search:
                judge = Judge(case.search)
            z = mismatch_z(past, recent)
            banks = {"past queries": past, "recent queries": recent}
            banks["both"] = np.concatenate([recent, past])
            gallery = case.search.gallery
            gains = {
                label: round(float(judge.gains(THIRD(Material(gallery, rows))).mean()), 3)
                for label, rows in banks.items()
            }
            gains["switch"] = gains["recent queries" if z > LARGEST_Z else "both"]
            if SHIPPED in labels:
                shipped = fit_shipped(gallery, past, recent)
                gains[SHIPPED] = round(float(judge.gains(shipped).mean()), 3)
            where = {"case": case.name, "kind": case.kind, "seed": seed, "z": round(z, 2)}
            cells.append({**where, "gains": gains})
        print(f"seed {seed} measured", file=sys.stderr)
    return {"cells": cells}


def fit_shipped(gallery: Floats, past: Floats, recent: Floats) -> Floats:
    """`nnnorm.Corrector.fit(…, recent=…)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnnorm.NNNormWarning)
        corrector = nnnorm.Corrector.fit(gallery, past, recent=recent, normalize=False)
    return np.asarray(corrector.bias.correction)


def tables(results: dict[str, Any]) -> str:
    """Mean over cases (worst case; cases below −0.3), and how often z > 3."""
    by_case: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in results["cells"]:
        for label, gain in cell["gains"].items():
            by_case[cell["kind"], cell["case"]][label].append(gain)
    rows = []
    for label in results["cells"][0]["gains"]:
        row = [label]
        for kind in KINDS:
            means = np.array([np.mean(g[label]) for (k, _), g in by_case.items() if k == kind])
            n_lost = int((means < -0.3).sum())
            row.append(f"{points(means.mean())} ({points(means.min())}; {n_lost})")
        rows.append(row)
    above = ["z > 3"]
    for kind in KINDS:
        zs = np.array([cell["z"] for cell in results["cells"] if cell["kind"] == kind])
        above.append(f"{int((zs > LARGEST_Z).sum())} of {len(zs)}")
    return table(["mean (worst case; cases below −0.3)", *KINDS], [*rows, above]) + "\n"


def main() -> int:
    return run(
        "Measure mismatched past queries with 64 recent queries.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        labels=LABELS,
        sets=SETS,
    )


if __name__ == "__main__":
    sys.exit(main())
