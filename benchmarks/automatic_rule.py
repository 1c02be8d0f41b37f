"""The automatic rules of `NNN()` on every real set: own banks, odd banks, small banks.

- *Own banks* of 250, 1,000 and 4,000 queries, or half of a set's queries, on all image and text
  sets.
- *Stress*: concentrated traffic, foreign banks (both in `cases.py`), raw query logs.
- *Small banks* of 8 to 128 own queries, automatic and tuned: `tune` sees the queries of half of the
  items, and the gain is that of the others.

Gains are points above no correction, of R@1, or of the mean of hit@1 and nDCG@10 for text. Each
case is averaged over the seeds first. The constants of the second rule were chosen on seeds 0 and 1
and on the sets named in `CHOSEN_ON`; the others confirm them.

    python benchmarks/automatic_rule.py             # measure, write JSON, print the tables
    python benchmarks/automatic_rule.py --tables    # print the tables of the stored JSON
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from cases import Case, Judge, fewer_queries, log_cases, make_tasks, own_cases, stress_cases
from real_sets import RESULTS, points, run_benchmark, table
from rules import CSLS, FIRST, SECOND, Contestant, Material, shipped

import nnnorm
from nnnorm.methods import make_method

Values: TypeAlias = npt.NDArray[np.float64]

OUTPUT = RESULTS / "automatic_rule.json"
SEEDS = (100, 101, 102, 103, 104)
SMALL = (8, 16, 32, 64, 128)
CSLS_LABEL = "CSLS (k = 10, α = ½)"
CHOSEN_ON = ("flickr8k", "unsplash500", "apibench", "bli_zh-en", "coco@")
CONTESTANTS: dict[str, Contestant] = {
    "first rule": FIRST,
    "first rule, copies dropped": replace(FIRST, copies=SECOND.copies),
    CSLS_LABEL: CSLS,
    "second rule": SECOND,
    "second rule, copies kept": replace(SECOND, copies=None),
    "second rule, not centred": replace(SECOND, centred=False),
    "second rule without c": replace(SECOND, gate=None),
    "second rule, k = 10": replace(SECOND, smallest=10, largest=10),
    "second rule, k = n/32": replace(SECOND, share=32),
    "second rule, k up to 128": replace(SECOND, largest=128),
    "`NNN()`": shipped,
}
GROUPS: dict[str, Callable[[str], bool]] = {
    "own, images": lambda kind: kind == "own-image",
    "own, text": lambda kind: kind == "own-text",
    "concentrated": lambda kind: kind == "concentrated",
    "foreign": lambda kind: kind == "foreign",
    "logs": lambda kind: kind == "log",
}


def all_cases(data: Path, seed: int) -> Iterator[Case]:
    logs = (case for *_, case in log_cases(data, seed, exponents=(0.8, 1.2)))
    return chain(own_cases(data, seed), stress_cases(data, seed), logs)


def measure(data: Path, seed: int) -> dict[str, Any]:
    cells = []
    for case in all_cases(data, seed):
        judge = Judge(fewer_queries(case, seed))
        material = Material(case.gallery, case.bank)
        gains = {label: round(judge.gain(c(material)), 4) for label, c in CONTESTANTS.items()}
        where = {"case": case.name, "kind": case.kind, "seed": seed}
        cells.append({**where, "without": judge.without, "gains": gains})
        print(f"{case.name}  seed {seed}  {gains['`NNN()`']:+.2f}", file=sys.stderr)
    return {"cells": cells, "small": list(measure_small(data, seed))}


def measure_small(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Small own banks; the queries of half of the items are for tuning."""
    rng = np.random.default_rng([seed, 7])
    for name, task in make_tasks(data, seed):
        metric, queries, gallery, pairs, pool = task
        asked, first = np.unique(pairs[:, 0], return_index=True)
        groups = rng.permutation(np.unique(pairs[first, 1]))
        is_held = np.isin(pairs[first, 1], groups[: len(groups) // 2])
        held, rest = asked[is_held][:2000], asked[~is_held][:2000]
        truth = [pairs[pairs[:, 0] == query, 1].tolist() for query in held]
        for size in (size for size in SMALL if size <= len(pool)):
            bank = pool[rng.choice(len(pool), size, replace=False)]
            kind = "own-image" if metric == "r1" else "own-text"
            case = Case(f"{name}@{size}", kind, metric, queries, gallery, pairs, bank)
            judge = Judge(some_queries(case, rest))
            material = Material(gallery, bank)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", nnnorm.NNNormWarning)
                tuning = nnnorm.tune(
                    gallery, bank, queries=queries[held], truth=truth, normalize=False
                )
                best = tuning.best_by_maximum
                maximum = make_method(best.method, **best.params).fit(
                    gallery, bank, normalize=False
                )
            corrections = {
                "first rule": FIRST(material),
                "`NNN()`": shipped(material),
                "tuned, one standard error": tuning.bias.correction,
                "tuned, maximum": maximum.correction,
            }
            gains = {label: round(judge.gain(c), 4) for label, c in corrections.items()}
            yield {"case": case.name, "size": size, "seed": seed, "gains": gains}


def some_queries(case: Case, some: npt.NDArray[np.int64]) -> Case:
    place = np.full(len(case.queries), -1)
    place[some] = np.arange(len(some))
    kept = case.pairs[place[case.pairs[:, 0]] >= 0]
    pairs = np.stack([place[kept[:, 0]], kept[:, 1]], axis=1)
    return replace(case, queries=case.queries[some], pairs=pairs)


def by_case(cells: list[dict[str, Any]], label: str) -> dict[str, float]:
    """Mean gain of each case over the seeds."""
    found = defaultdict(list)
    for cell in cells:
        found[cell["case"]].append(cell["gains"][label])
    return {case: float(np.mean(gains)) for case, gains in found.items()}


def losses(values: Values) -> float:
    return float(values[values < 0].sum())


def tables(results: dict[str, Any]) -> str:
    cells, labels = results["cells"], list(results["cells"][0]["gains"])
    parts = [
        "### All sets\n\n" + summary(cells, labels),
        "### The half that the constants were chosen on, and the other\n\n" + halves(cells, labels),
        "### Set by set, own banks\n\n" + own_sets(cells),
        "### Small banks\n\n" + small(results["small"]),
    ]
    return "\n\n".join(parts) + "\n"


def summary(cells: list[dict[str, Any]], labels: list[str]) -> str:
    """Mean (worst; cases below −0.1) of every kind of bank, and what all stress losses add to."""
    rows = []
    for label in labels:
        row, stress = [label], 0.0
        for group in GROUPS.values():
            values = of_group(cells, label, group)
            if group is not GROUPS["own, images"] and group is not GROUPS["own, text"]:
                stress += losses(values)
            n_lost = int((values < -0.1).sum())
            row.append(f"{points(values.mean())} ({points(values.min())}; {n_lost})")
        rows.append([*row, points(stress)])
    n_cases = [len(of_group(cells, labels[0], group)) for group in GROUPS.values()]
    titles = [f"{name} ({n})" for name, n in zip(GROUPS, n_cases, strict=True)]
    return table(["mean (worst case; cases below −0.1)", *titles, "stress losses added"], rows)


def halves(cells: list[dict[str, Any]], labels: list[str]) -> str:
    """The gain at home and the losses under stress, as shares of those of the first rule."""
    rows = []
    for label in labels:
        row = [label]
        for is_chosen in (True, False):
            some = [cell for cell in cells if is_of_first_half(cell["case"]) == is_chosen]
            for name in ("own, images", "own, text"):
                own, first = (of_group(some, one, GROUPS[name]) for one in (label, labels[0]))
                row.append(f"{own.mean() / first.mean():.2f}")
            stress, first = (
                of_group(some, one, lambda kind: not kind.startswith("own"))
                for one in (label, labels[0])
            )
            row.append(f"{losses(stress) / losses(first):.2f}")
        rows.append(row)
    titles = [
        f"{half}: {what}"
        for half in ("chosen on", "other")
        for what in ("images", "text", "stress losses")
    ]
    return table(["share of the first rule's", *titles], rows)


def is_of_first_half(case: str) -> bool:
    return any(name in case for name in CHOSEN_ON) and "clip_coco500" not in case


def of_group(cells: list[dict[str, Any]], label: str, group: Callable[[str], bool]) -> Values:
    some = [cell for cell in cells if group(cell["kind"])]
    return np.array(list(by_case(some, label).values()))


def own_sets(cells: list[dict[str, Any]]) -> str:
    own = [cell for cell in cells if cell["kind"].startswith("own")]
    without = defaultdict(list)
    for cell in own:
        without[cell["case"]].append(cell["without"])
    columns = {label: by_case(own, label) for label in ("first rule", CSLS_LABEL, "`NNN()`")}
    rows = [
        [case, f"{np.mean(before):.1f}", *(points(column[case]) for column in columns.values())]
        for case, before in without.items()
    ]
    return table(["set@references", "without", *columns], rows)


def small(cells: list[dict[str, Any]]) -> str:
    rows = []
    for label in cells[0]["gains"]:
        row = [label]
        for size in SMALL:
            means = by_case([cell for cell in cells if cell["size"] == size], label)
            worst = min(means, key=lambda case: means[case])
            mean = float(np.mean(list(means.values())))
            row.append(f"{points(mean)} ({points(means[worst])}, {worst.partition('@')[0]})")
        rows.append(row)
    return table(["mean over sets (worst set)", *(str(size) for size in SMALL)], rows)


def main() -> int:
    return run_benchmark(
        "Measure the automatic rules of NNN() on every set.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
    )


if __name__ == "__main__":
    sys.exit(main())
