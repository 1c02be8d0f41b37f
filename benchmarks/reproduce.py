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
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from paste import paste
from real_sets import DATA, RESULTS, machine, what_is_missing

import nnnorm
from nnnorm.io.files import check_writable, write_whole
from nnnorm.reproduce.paper import Experiment, load_paper
from nnnorm.reproduce.run import Figure, Outcome, Runner, run_table
from nnnorm.reproduce.standins import open_stand_in
from nnnorm.reproduce.tables import tabulate_stand_ins

Record: TypeAlias = dict[str, Any]
OUTPUT = RESULTS / "reproduce.json"


def run(data: Path) -> Record:
    results: list[Record] = []
    for text in ("shapes", f"flickr8k={data / 'flickr8k'}"):
        name, material = open_stand_in(text)
        runner = Runner(lambda *_, material=material: material)
        for table in load_paper().tables:
            outcomes = run_table(runner, table, stand_in=name)
            results.append(
                {"table": table.name, "stand_in": name, "cells": [o.to_dict() for o in outcomes]}
            )
            print(name, table.name, file=sys.stderr)
    return {**machine(), "cpu_seconds": round(time.process_time()), "results": results}


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
        shown = tabulate_stand_ins(table, found)
        shown = replace(shown, notes=shown.notes[1:])  # that stand-ins are others: once per page
        rows = frozenset(shown.rows)
        made.setdefault(rows, []).append(f"`{table.name}`, {table.heading}")
        texts.setdefault(rows, shown.to_markdown().partition("\n\n")[2])
    return "\n\n".join(
        "\n".join(f"### {heading}" for heading in headings) + f"\n\n{texts[rows]}"
        for rows, headings in made.items()
    )


def read_outcome(record: Record) -> Outcome:
    figure = record["figure"]
    if figure is not None:
        value = figure["value"]
        figure = Figure(**{**figure, "value": tuple(value) if isinstance(value, list) else value})
    return Outcome(**{**record, "experiment": Experiment(**record["experiment"]), "figure": figure})


def to_json(results: Record) -> str:
    """One line per table and stand-in."""
    head = {key: value for key, value in results.items() if key != "results"}
    lines = ",\n".join("  " + json.dumps(record) for record in results["results"])
    return json.dumps(head, indent=1)[:-2] + f',\n "results": [\n{lines}\n ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description="Every table of the paper on stand-ins.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the JSON file of the results")
    parser.add_argument(
        "--tables", action="store_true", help="measure nothing: print the tables of --output"
    )
    arguments = parser.parse_args()
    if arguments.tables:
        if not arguments.output.is_file():
            print(f"there are no results in {arguments.output}; measure first", file=sys.stderr)
            return 1
        print(tables(json.loads(arguments.output.read_text(encoding="utf-8"))))
        return 0
    if missing := what_is_missing(arguments.data, "flickr8k"):
        print(missing, file=sys.stderr)
        return 1
    try:
        check_writable(arguments.output)
    except nnnorm.NNNormError as error:
        print(error, file=sys.stderr)
        return 1
    text = to_json(run(arguments.data))
    made, old = tables(json.loads(text)), ""
    if arguments.output.is_file():
        old = tables(json.loads(arguments.output.read_text(encoding="utf-8")))
    write_whole(arguments.output, lambda file: file.write(text.encode()))
    print(made)
    if arguments.output == OUTPUT and not paste("reproduce.md", old, made):
        print("docs/reproduce.md has other tables; put these there", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
