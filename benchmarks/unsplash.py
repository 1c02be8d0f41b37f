"""What the automatic NNN gains with CLIP: 500 photos of Unsplash and their texts.

The pairs are halved at random. Each half is searched with its own texts (or photos), and the other
half is its bank, so that no query, item or right answer is in the bank. Each pair is thus tested
once per halving, with 250 items to choose from; intervals resample pairs, over all halvings.

    python benchmarks/unsplash.py             # measure, write JSON, print the table: a few seconds
    python benchmarks/unsplash.py --tables    # print the table of the stored JSON
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from real_sets import RESULTS, points, read_unsplash500, run_benchmark, table

import nnnorm
from nnnorm.study import interval_of_mean

OUTPUT = RESULTS / "unsplash.json"
SEEDS = tuple(range(100, 120))


def measure(data: Path, seed: int) -> dict[str, list[Any]]:
    """The pairs that are found at once without a correction, and those it wins and loses."""
    warnings.simplefilter("ignore", nnnorm.NNNormWarning)
    pairs = read_unsplash500(data / "unsplash500")
    order = np.random.default_rng([seed, 17]).permutation(len(pairs.image))
    halves = np.array_split(order, 2)
    cells = []
    for direction, queries, items in (
        ("texts find photos", pairs.text, pairs.image),
        ("photos find texts", pairs.image, pairs.text),
    ):
        found = np.zeros((2, len(order)), dtype=bool)
        for half, other in (halves, halves[::-1]):
            truth = np.arange(len(half))
            bias = nnnorm.NNN().fit(items[half], queries[other], normalize=True)
            for row, correction in enumerate((None, bias)):
                ranking = nnnorm.search(queries[half], items[half], correction, k=1, normalize=True)
                found[row, half] = ranking.indices[:, 0] == truth
        won, lost = np.flatnonzero(found[1] & ~found[0]), np.flatnonzero(found[0] & ~found[1])
        cell = {"direction": direction, "n_pairs": len(order), "n_right": int(found[0].sum())}
        cells.append({**cell, "won": won.tolist(), "lost": lost.tolist()})
    return {"cells": cells}


def summarise(results: dict[str, Any], direction: str) -> dict[str, float]:
    """R@1 without and with the correction and the interval of the gain, in per cent."""
    cells = [cell for cell in results["cells"] if cell["direction"] == direction]
    gains = np.zeros(cells[0]["n_pairs"])
    for cell in cells:
        gains[cell["won"]] += 1
        gains[cell["lost"]] -= 1
    interval = interval_of_mean(100 * gains / len(cells))
    without = 100 * float(np.mean([cell["n_right"] / cell["n_pairs"] for cell in cells]))
    gain = {"gain": interval.mean, "low": interval.low, "high": interval.high}
    return {"without": without, "with": without + interval.mean, **gain}


def tables(results: dict[str, Any]) -> str:
    rows = []
    for direction in dict.fromkeys(cell["direction"] for cell in results["cells"]):
        found = summarise(results, direction)
        gain = f"{points(found['gain'])} [{points(found['low'])}, {points(found['high'])}]"
        rows.append([direction, f"{found['without']:.2f}", f"{found['with']:.2f}", gain])
    columns = ["CLIP ViT-B/32, Unsplash", "R@1 without", "with `NNN()`", "gain, 95 % interval"]
    return table(columns, rows) + "\n"


def main() -> int:
    return run_benchmark(
        "Measure what the automatic NNN gains with CLIP on Unsplash.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        sets=("unsplash500",),
    )


if __name__ == "__main__":
    sys.exit(main())
