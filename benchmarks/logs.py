"""Raw query logs as banks: what repeated and nearly repeated queries do to the correction.

A log of 6,000 queries over the 1,000 test pictures of Flickr8k and of the shapes, whose popularity
follows Zipf's law, is given as the bank just as it is. The traffic that is measured asks for the
same pictures with the same popularity, by a caption that is not in the log.

At an exponent of 1.0 one picture has an eighth of the traffic, at 1.2 nearly a quarter, so that
seeds differ by points, by the luck of which pictures are popular. So `NNN()` is measured on 40
further logs too, also without that luck: the gain in the same traffic of a bank that has every
caption once, less its gain where all pictures are asked for equally often, is known without any log
and is subtracted. On average over all orders of the pictures it is 0, so that the mean stays the
same.

    python benchmarks/logs.py             # measure, write JSON, print the tables
    python benchmarks/logs.py --tables    # print the tables of the stored JSON
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import EXPONENTS, Judge, log_cases, log_sets
from real_sets import RESULTS, Floats, points, run_benchmark, table
from rules import FIRST, SECOND, Contestant, Material, shipped

OUTPUT = RESULTS / "logs.json"
SEEDS = (100, 101, 102, 103, 104)
# What is added to a seed for each of its further logs.
FURTHER = tuple(range(1000, 9000, 1000))
SETS = {"flickr8k": "Flickr8k", "shapes": "Shapes"}
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
    return {"cells": cells, "further": list(measure_further(data, seed))}


def measure_further(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    """`NNN()` on further logs."""
    steady = steady_corrections(data)
    for number in (seed + more for more in FURTHER):
        yield from gain_and_luck(data, number, steady)


def steady_corrections(data: Path) -> dict[str, Floats]:
    """`NNN()` of each set on a bank that has every caption once."""
    return {
        name: shipped(Material(gallery, captions[:, :4].reshape(-1, captions.shape[2])))
        for name, (captions, gallery) in log_sets(data).items()
    }


def gain_and_luck(
    data: Path, number: int, steady: dict[str, Floats], exponents: Sequence[float] = EXPONENTS
) -> Iterator[dict[str, Any]]:
    """`NNN()` on the logs of one draw: its gain, and how much of that is luck."""
    for name, exponent, is_varied, case in log_cases(data, number, exponents):
        judge = Judge(case)
        gain = judge.gain(shipped(Material(case.gallery, case.bank)))
        evenly = judge.hits(steady[name]).mean() - judge.hits(None).mean()
        luck = judge.gain(steady[name]) - 100 * float(evenly)
        where = {"set": name, "exponent": exponent, "varied": is_varied, "seed": number}
        yield {**where, "gain": round(gain, 4), "luck": round(luck, 4)}


def tables(results: dict[str, Any]) -> str:
    """One table per set and kind of repeats: mean gains over the seeds, the worst in brackets."""
    parts = []
    cells = results["cells"]
    for name, title in SETS.items():
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
    parts.append("### `NNN()` on 40 further logs\n\n" + further_table(results["further"]))
    return "\n\n".join(parts) + "\n"


def further_table(cells: list[dict[str, Any]]) -> str:
    """Mean gains with their standard errors, as they are and without luck."""
    rows = []
    for name, title in SETS.items():
        for is_varied, repeats in ((False, "equal"), (True, "varied")):
            for luck, label in ((0, "gain"), (1, "without luck")):
                row = [f"{title}, {repeats}: {label}"]
                for exponent in EXPONENTS:
                    spot = name, exponent, is_varied
                    gains = np.array(
                        [
                            cell["gain"] - luck * cell["luck"]
                            for cell in cells
                            if (cell["set"], cell["exponent"], cell["varied"]) == spot
                        ]
                    )
                    error = gains.std(ddof=1) / np.sqrt(len(gains))
                    row.append(f"{points(float(gains.mean()))} ± {error:.2f}")
                rows.append(row)
    return table(["Zipf exponent", *(f"{exponent:g}" for exponent in EXPONENTS)], rows)


SHOWN = {
    "first rule": "#b3452c",
    "first rule, copies dropped": "#d9a441",
    "`NNN()`": "#1f6f8b",
}


def draw(results: dict[str, Any], figure: Any) -> None:
    """Mean gain by exponent over seeds and kinds of repeats, with its standard error."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (name, title) in zip(axes, SETS.items(), strict=True):
        for label, colour in SHOWN.items():
            gains = np.array(
                [
                    [
                        np.mean([c["gains"][label] for c in results["cells"] if where(c) == spot])
                        for spot in ((name, exponent, seed) for seed in results["seeds"])
                    ]
                    for exponent in EXPONENTS
                ]
            )
            error = gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1])
            axis.errorbar(
                EXPONENTS, gains.mean(axis=1), error, color=colour, marker="o", capsize=3,
                label=label.strip("`"),
            )  # fmt: skip
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(EXPONENTS)
        axis.grid(axis="y", color="#e4e4e4", linewidth=0.7)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    figure.supxlabel("Zipf exponent of the traffic", fontsize=10)
    figure.supylabel("gain in R@1, points", fontsize=10)


def where(cell: dict[str, Any]) -> tuple[str, float, int]:
    return cell["set"], cell["exponent"], cell["seed"]


def main() -> int:
    return run_benchmark(
        "Measure raw query logs as banks.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        sets=("flickr8k",),
        draw=draw,
    )


if __name__ == "__main__":
    sys.exit(main())
