"""Every table of the paper on stand-ins: the shapes that ship, and Flickr8k.

    python benchmarks/reproduce.py            # measure (a minute or two), write JSON and the page
    python benchmarks/reproduce.py --tables   # print the tables of the stored JSON

The same as `nnnorm reproduce --table all --stand-in shapes --stand-in flickr8k=FOLDER`, kept for
`docs/reproduce.md`. The embeddings are read from `../shared/data` beside the repository (or
`--data`), never copied.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from harness import add_options, can_measure, print_stored, store
from paste import paste
from real_sets import DATA, RESULTS, machine, to_json, what_is_missing

from nnnorm.report import Table
from nnnorm.reproduce.material import NotThere
from nnnorm.reproduce.paper import Experiment, load_paper
from nnnorm.reproduce.results import read_figure
from nnnorm.reproduce.run import Outcome, Runner, run_table
from nnnorm.reproduce.standins import open_stand_in
from nnnorm.reproduce.tables import describe, lay_out_stand_ins
from nnnorm.reproduce.trends import Trend, find_trends, tabulate_trends

Record: TypeAlias = dict[str, Any]
OUTPUT = RESULTS / "reproduce.json"


def run(data: Path) -> Record:
    results: list[Record] = []
    runners = {}
    for text in ("shapes", f"flickr8k={data / 'flickr8k'}"):
        name, material = open_stand_in(text)
        runners[name] = runner = Runner(lambda *_, material=material: material)
        for table in load_paper().tables:
            outcomes = run_table(runner, table, stand_in=name, keep_going=False)
            results.append(
                {"table": table.name, "stand_in": name, "cells": [o.to_dict() for o in outcomes]}
            )
            print(name, table.name, file=sys.stderr)
    trends = [asdict(trend) for trend in find_trends(runners, stand_ins=True)]
    chosen = [choice for name, runner in runners.items() for choice in compare_rules(name, runner)]
    return {
        **machine(),
        "device": runner.runs_on,
        "cpu_seconds": round(time.process_time()),
        "trends": trends,
        "rules": chosen,
        "results": results,
    }


def compare_rules(name: str, runner: Runner) -> list[Record]:
    """R@1 on test of every tuned experiment, by three rules.

    The maximum with no correction among the candidates is how these tables were tuned before.
    """
    found: dict[str, Record] = {}
    for table in load_paper().tables:
        for cell in table.cells:
            there = replace(cell.experiment.as_stand_in(name), metric="recall_at_1")
            if not there.is_tuned or str(there) in found:
                continue
            try:
                paper = runner.measure(there).value
            except NotThere:
                continue
            plain = replace(there, method="none", bank=None, share=1.0)
            before = runner.measure(plain).value
            was_none = runner.tuning(there).best_by_maximum.method == "none"
            by_rule = runner.measure(replace(there, select="one-standard-error")).value
            found[str(there)] = {
                "experiment": f"{name}, {there.direction} retrieval, {describe(there)}",
                "uncorrected": before,
                "maximum or none": before if was_none else paper,
                "maximum, as in the paper": paper,
                "1-SE rule": by_rule,
            }
    return list(found.values())


def rules_table(chosen: list[Record]) -> str:
    """Experiments that the change of the rule moved, and the means of all."""
    columns = ("uncorrected", "maximum or none", "maximum, as in the paper", "1-SE rule")
    rows = [one for one in chosen if one["maximum or none"] != one["maximum, as in the paper"]]
    means = {name: sum(one[name] for one in chosen) / len(chosen) for name in columns}
    rows.append({"experiment": f"mean of all {len(chosen)}", **means})
    made = Table(
        "",
        ("R@1, %", *columns),
        tuple((row["experiment"], *(f"{row[name]:.2f}" for name in columns)) for row in rows),
    )
    return made.to_markdown().partition("\n\n")[2]


def tables(results: Record) -> str:
    """The Markdown of `docs/reproduce.md`; tables that are the same on stand-ins come once."""
    made: dict[frozenset[Any], list[str]] = {}
    texts: dict[frozenset[Any], str] = {}
    for table in load_paper().tables:
        found = {
            record["stand_in"]: [read_outcome(cell) for cell in record["cells"]]
            for record in results["results"]
            if record["table"] == table.name
        }
        where = [f"Timed on {results['device']}."] if table.is_timed else []
        shown = lay_out_stand_ins(table, found, where)
        # That stand-ins are others, and what the rules are, is said once per page.
        notes = tuple(n for n in shown.notes[1:] if not n.startswith("Tuned by the paper's rule"))
        shown = replace(shown, notes=notes)
        rows = frozenset(map(frozenset, shown.rows))
        made.setdefault(rows, []).append(f"`{table.name}`, {table.heading}")
        texts.setdefault(rows, shown.to_markdown().partition("\n\n")[2])
    parts = [
        "\n".join(f"### {heading}" for heading in headings) + f"\n\n{texts[rows]}"
        for rows, headings in made.items()
    ]
    trends = tabulate_trends([Trend(**trend) for trend in results["trends"]])
    summary = trends.to_markdown().partition("\n\n")[2]
    rules = rules_table(results["rules"])
    return "\n\n".join(
        [
            f"### The rule that tunes, on test\n\n{rules}",
            f"### `trends`: {trends.title}\n\n{summary}",
            *parts,
        ]
    )


def read_outcome(record: Record) -> Outcome:
    figures = {name: record[name] for name in ("figure", "by_rule")}
    read = {name: some and read_figure(some) for name, some in figures.items()}
    return Outcome(**{**record, "experiment": Experiment(**record["experiment"]), **read})


def main() -> int:
    parser = argparse.ArgumentParser(description="Every table of the paper on stand-ins.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    add_options(parser, OUTPUT)
    arguments = parser.parse_args()
    if arguments.tables:
        return print_stored(arguments.output, tables)
    if not can_measure(arguments.output, what_is_missing(arguments.data, "flickr8k")):
        return 1
    text = to_json(run(arguments.data), "trends", "rules", "results")
    made, old = tables(json.loads(text)), ""
    if arguments.output.is_file():
        old = tables(json.loads(arguments.output.read_text(encoding="utf-8")))
    store(arguments.output, text)
    print(made)
    if arguments.output == OUTPUT and not paste("reproduce.md", old, made):
        print("docs/reproduce.md has other tables; put these there", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
