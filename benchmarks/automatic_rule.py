"""Compares the automatic settings of `NNN()` with earlier editions on every real set.

Every rule is naive NumPy (`rules.py`), except the last one, which is `nnnorm.NNN()` itself. The
kinds of cases are in `cases.py`.

Gains are points above no correction. Intervals are 95 % bootstrap intervals over the test queries,
paired if two rules are compared.

    python benchmarks/automatic_rule.py             # measure, write JSON, print the tables
    python benchmarks/automatic_rule.py --tables    # print the tables of the stored JSON
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import CHOSEN_ON, DATA, SETS, SMALL, Floats, Ints, Judge, cases
from harness import collapsed
from rules import CSLS, FIRST, PROPOSAL, SECOND, THIRD, Material, View, shipped

OUTPUT = Path(__file__).parent / "results" / "automatic_rule.json"
SEEDS = (100, 101)
KINDS = ("own", "searched", "opposite", "mismatched", "concentrated")
SECOND_EDITION, THIRD_EDITION = "second edition", "third edition"
KEPT, SHIPPED = "third, near-duplicates kept", "`NNN()`"
CSLS_LABEL = "CSLS (reference_k = 10, alpha = ½)"
N_BOOTSTRAP = 1000

RULES: dict[str, Callable[[Material], Floats]] = {
    "first edition": FIRST,
    CSLS_LABEL: CSLS,
    SECOND_EDITION: SECOND,
    "first proposal": PROPOSAL,
    THIRD_EDITION: THIRD,
    "third, no gate": replace(THIRD, gate=None),
    "third, gate on c alone": replace(THIRD, gate=(0, -0.1, 0.1)),
    "third, coverage of all": replace(THIRD, group=None),
    "third, no spread": replace(THIRD, spread=None),
    "third, alpha up to 0.5": replace(THIRD, alpha=0.5),
    "third, no reliability": replace(THIRD, power=0),
    "third, reference_k up to 32": replace(THIRD, per_item=0),
    "third, not centered": replace(THIRD, view=View(is_centered=False)),
    KEPT: replace(THIRD, view=View(copies=None)),
    SHIPPED: shipped,
}
# There are many cases with few past queries, so only these rules are measured on them.
ON_SMALL = (
    "first edition",
    CSLS_LABEL,
    SECOND_EDITION,
    THIRD_EDITION,
    "third, no reliability",
    SHIPPED,
)


class Gains:
    """The gain of every rule on the test queries of one case, over all draws."""

    def __init__(self, kind: str, is_chosen_on: bool) -> None:
        self.kind, self.is_chosen_on = kind, is_chosen_on
        self.ids: list[Ints] = []
        self.gains: list[Floats] = []
        self.settings: list[dict[str, float]] = []

    def add(self, ids: Ints, gains: Floats, settings: dict[str, float]) -> None:
        """Add gains, with a row per rule and a column per query."""
        self.ids.append(ids)
        self.gains.append(gains)
        self.settings.append(settings)

    def bootstrap(self, rng: np.random.Generator) -> Floats:
        """Return the mean, and those of `N_BOOTSTRAP` samples of the queries; columns are rules."""
        queries, place = np.unique(np.concatenate(self.ids), return_inverse=True)
        gains = np.concatenate(self.gains, axis=1)
        sums = np.stack([np.bincount(place, row, len(queries)) for row in gains], axis=1)
        counts = np.bincount(place, minlength=len(queries))
        shares = np.full(len(queries), 1 / len(queries))
        drawn = rng.multinomial(len(queries), shares, N_BOOTSTRAP)
        weights = np.concatenate([np.ones((1, len(queries)), dtype=np.int64), drawn])
        return np.asarray((weights @ sums) / (weights @ counts)[:, None])


def measure(data: Path, seeds: Sequence[int], labels: Sequence[str]) -> dict[str, Any]:
    """Measure every case with every seed, and summarize the results."""
    return summarize(gather(data, seeds, labels), labels)


def gather(
    data: Path, seeds: Sequence[int], labels: Sequence[str], sets: Sequence[str] = (*SETS, "shapes")
) -> dict[str, Gains]:
    """Measure every case with every seed; cases of all Flickr8k images aren't random, so once."""
    found: dict[str, Gains] = {}
    for seed in seeds:
        judge, known = None, None
        for case in cases(data, seed):
            name = f"{case.kind}: {case.name}"
            is_known = case.search.name == "flickr8k/all-images" and name in found
            if case.search.set not in sets or is_known:
                continue
            if judge is None or judge.search is not case.search:
                judge = Judge(case.search)
            known = material = Material(case.search.gallery, case.bank, known)
            gains = np.stack([judge.gains(RULES[one](material)) for one in used(labels, case.kind)])
            chosen = THIRD.choose(material) | {"without": float(judge.without.mean())}
            gathered = found.setdefault(name, Gains(case.kind, case.search.set in CHOSEN_ON))
            gathered.add(case.search.ids, gains, chosen | {"given": len(case.bank)})
        print(f"seed {seed} measured", file=sys.stderr)
    return found


def used(labels: Sequence[str], kind: str) -> list[str]:
    """Return the rules to measure on cases of this kind."""
    return [label for label in labels if kind != "small" or label in ON_SMALL]


def summarize(found: dict[str, Gains], labels: Sequence[str]) -> dict[str, Any]:
    """Compute means and 95 % intervals of every case, and of the mean over each kind of cases."""
    rng = np.random.default_rng(0)
    records, samples = [], {}
    for name, gains in found.items():
        columns = gains.bootstrap(rng).T
        sampled = samples[name] = dict(zip(used(labels, gains.kind), columns, strict=True))
        settings = {
            key: round(float(np.mean([drawn[key] for drawn in gains.settings])), 3)
            for key in gains.settings[0]
        }
        records.append(
            {
                "case": name.partition(": ")[2],
                "kind": gains.kind,
                "chosen_on": gains.is_chosen_on,
                "queries": len(np.unique(np.concatenate(gains.ids))),
                **settings,
                "gains": {label: round(float(s[0]), 3) for label, s in sampled.items()},
                "interval": interval(sampled[THIRD_EDITION]),
                "over_second": interval(sampled[THIRD_EDITION] - sampled[SECOND_EDITION]),
                "over_kept": interval(sampled[THIRD_EDITION] - sampled[KEPT])
                if KEPT in sampled
                else None,
            }
        )
    groups = {}
    for title, kinds in {
        **{kind: (kind,) for kind in KINDS},
        "at home": ("own", "searched"),
    }.items():
        some = [sampled for name, sampled in samples.items() if found[name].kind in kinds]
        second, third, kept = (
            np.mean([sampled[label] for sampled in some], axis=0)
            for label in (SECOND_EDITION, THIRD_EDITION, KEPT)
        )
        groups[title] = {
            "second": interval(second),
            "third": interval(third),
            "difference": interval(third - second),
            "ratio": interval(third / second),
            "over_kept": interval(third - kept),
        }
    return {"groups": groups, "cases": records}


def interval(sampled: Floats) -> list[float]:
    """Return the mean, and the middle 95 % of its samples."""
    return [
        round(float(value), 3) for value in (sampled[0], *np.percentile(sampled[1:], (2.5, 97.5)))
    ]


def tables(results: dict[str, Any]) -> str:
    """Return the tables of the stored results as Markdown."""
    records = results["cases"]
    parts = [
        editions(results["groups"], records),
        collapsed("Rules, by kind of past queries", summary(records)),
        collapsed(
            "The half of the data sets that most constants were chosen on, and the other half",
            halves(records),
        ),
        collapsed("Few past queries", small(records)),
    ]
    return "\n\n".join(parts) + "\n"


def all_tables(results: dict[str, Any]) -> str:
    """Return the page's tables, then those of sets and near-duplicates, which are only printed."""
    sets = "### Own past queries, by set\n\n" + own_sets(results["cases"])
    copies = "### Near-duplicates, dropped and kept\n\n" + near_copies(results)
    return "\n".join((tables(results), sets, "", copies, ""))


def gains_of(records: Sequence[dict[str, Any]], label: str, *kinds: str) -> Floats:
    return np.array([r["gains"][label] for r in records if r["kind"] in kinds])


def losses(values: Floats) -> float:
    return float(values[values < 0].sum())


def summary(records: list[dict[str, Any]]) -> str:
    """Mean over cases (worst case; sum of losses) of every kind."""
    labels = dict(next(r["gains"] for r in records if r["kind"] == "own"))
    del labels["first proposal"]  # replaced by the third edition
    rows = []
    for label in labels:
        row = [label]
        for kind in KINDS:
            values = gains_of(records, label, kind)
            row.append(
                f"{points(values.mean())} ({points(values.min())}; {points(losses(values))})"
            )
        rows.append(row)
    sizes = [len(gains_of(records, next(iter(labels)), kind)) for kind in KINDS]
    titles = [f"{kind} ({size})" for kind, size in zip(KINDS, sizes, strict=True)]
    return table(["mean (worst case; sum of losses)", *titles], rows)


def editions(groups: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Return the second and the third edition, with intervals; means are rounded only once."""
    for kind, group in groups.items():
        kinds = ("own", "searched") if kind == "at home" else (kind,)
        for key, label in (("second", SECOND_EDITION), ("third", THIRD_EDITION)):
            group[key] = [gains_of(records, label, *kinds).mean(), *group[key][1:]]
    rows = [
        ["own and searched" if kind == "at home" else kind,
         *(with_interval(group[key]) for key in ("second", "third", "difference")),
         f"{group['ratio'][0]:.2f} [{group['ratio'][1]:.2f}, {group['ratio'][2]:.2f}]"
         if kind in ("own", "searched", "at home") else ""]
        for kind, group in groups.items()
    ]  # fmt: skip
    titles = ["second edition", "third edition", "difference", "ratio"]
    return table(["mean over cases [95 % interval]", *titles], rows)


def halves(records: list[dict[str, Any]]) -> str:
    rows = []
    for label in ("second edition", THIRD_EDITION):
        row = [label]
        for is_chosen_on in (True, False):
            some = [r for r in records if r["chosen_on"] == is_chosen_on]
            for kinds in (("own", "searched"), ("opposite", "mismatched")):
                values = gains_of(some, label, *kinds)
                row.append(f"{points(values.mean())} ({points(losses(values))})")
        rows.append(row)
    titles = [
        f"{half}: {what}"
        for half in ("chosen on", "others")
        for what in ("own, searched", "opposite, mismatched")
    ]
    return table(["mean (sum of losses)", *titles], rows)


def own_sets(records: list[dict[str, Any]]) -> str:
    rows = [
        [
            r["case"],
            f"{r['queries']:,}",
            f"{r['k']:.0f}",
            f"{r['alpha']:.2f}",
            f"{r['without']:.1f}",
            with_interval(r["interval"]),
            with_interval(r["over_second"]),
        ]
        for r in records
        if r["kind"] in ("own", "searched")
    ]
    titles = ["queries", "reference_k", "alpha", "without", "third"]
    return table(["set/gallery@past queries", *titles, "third − second"], rows)


def small(records: list[dict[str, Any]]) -> str:
    rows = []
    some = [r for r in records if r["kind"] == "small"]
    for label in (label for label in some[0]["gains"] if label != "third, no reliability"):
        row = [label]
        for size in SMALL:
            values = np.array([r["gains"][label] for r in some if r["given"] == size])
            row.append(f"{points(values.mean())} ({points(values.min())})")
        rows.append(row)
    return table(["mean (worst case)", *(str(size) for size in SMALL)], rows)


def near_copies(results: dict[str, Any]) -> str:
    rows = [
        [
            r["case"],
            f"{100 * (1 - r['n'] / r['given']):.1f} %",
            points(r["gains"][KEPT]),
            points(r["gains"][THIRD_EDITION]),
            with_interval(r["over_kept"]),
        ]
        for r in results["cases"]
        if r["kind"] in ("own", "searched") and r["n"] < 0.8 * r["given"]
    ]
    rows.append(["all", "", "", "", with_interval(results["groups"]["at home"]["over_kept"])])
    return table(["set/gallery@past queries", "dropped", "kept", "unique", "difference"], rows)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with right-aligned numbers."""
    lines = [titles, [":--", *["--:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def points(gain: float) -> str:
    """Format a difference in points, with its sign.

    >>> points(-0.254), points(0.001)
    ('−0.25', '0.00')
    """
    return f"{gain:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")


def with_interval(values: Sequence[float]) -> str:
    """Format a mean and its interval, in points."""
    mean, low, high = map(points, values)
    return f"{mean} [{low}, {high}]"


def run(
    description: str,
    output: Path,
    measure: Callable[[Path, Sequence[int], Sequence[str]], dict[str, Any]],
    tables: Callable[[dict[str, Any]], str],
    *,
    seeds: Sequence[int],
    labels: Sequence[str],
    sets: Sequence[str],
) -> int:
    """Run the command line of a benchmark of rules on random cases; return the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    parser.add_argument("--output", type=Path, default=output, help="the JSON file of the results")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help="of the draws")
    parser.add_argument("--naive", action="store_true", help="leave out nnnorm.NNN() itself")
    parser.add_argument("--tables", action="store_true", help="print the tables of --output")
    arguments = parser.parse_args()
    if not arguments.tables:
        missing = [name for name in sets if not (arguments.data / name).is_dir()]
        if missing:
            print(
                f"there is no {' and no '.join(missing)} in {arguments.data}; give the folder of "
                "the embedding sets with --data, or print the stored tables with --tables",
                file=sys.stderr,
            )
            return 1
        rules = [label for label in labels if not arguments.naive or label != SHIPPED]
        started = time.process_time()
        results = measure(arguments.data, arguments.seeds, rules)
        head = {"seeds": arguments.seeds, "processor_seconds": round(time.process_time() - started)}
        store(arguments.output, head | results)
    if not arguments.output.is_file():
        print(f"there are no results in {arguments.output}; measure first", file=sys.stderr)
        return 1
    print(tables(json.loads(arguments.output.read_text(encoding="utf-8"))), end="")
    return 0


def store(path: Path, results: dict[str, Any]) -> None:
    """Return JSON with a line per case."""
    *head, last = results
    records = ",\n".join(json.dumps(record) for record in results[last])
    start = json.dumps({key: results[key] for key in head})[:-1]
    path.write_text(f'{start}, "{last}": [\n{records}\n]}}\n', encoding="utf-8")


def main() -> int:
    return run(
        "Compare the automatic rules on every real set.",
        OUTPUT,
        measure,
        all_tables,
        seeds=SEEDS,
        labels=[*RULES],
        sets=SETS,
    )


if __name__ == "__main__":
    sys.exit(main())
