"""Measures how well confidence and raw scores predict that the first hit is right, on 11 sets.

Half of the items that answer test queries are removed from the gallery, so that about half of the
queries have no right first hit. A set without separate past queries is split at random: half past
queries, half test queries. Measured per split:

- AUROC of "the first hit is right": raw top score, corrected top score, raw margin (top score minus
  the mean of hits 2 to 11) and confidence. The raw columns are about the first hit of the raw
  search, the others about that of the corrected one. "In gallery" is the AUROC of "the gallery has
  an answer".
- Expected calibration error (ECE) with 300 labels: ten groups of equal size by probability, the
  mean of |mean probability − share right|, on queries without labels; the mean over the splits.
  "ECE by chance" is the mean ECE of perfect probabilities on as many queries.
- Without labels and with the whole gallery: the share of new queries whose confidence is below the
  5 % quantile of the past queries.

The share of the mean in the formula is compared on two halves of the test queries, `A` and `B`,
which were fixed before any measurement. 0.9 is the best on A by 0.001. 0.8 is used because lower
shares are better for CLIP on the splits reported here. Past queries are those of the other half,
without their labels.

    python benchmarks/confidence.py             # measure, write JSON, print the tables
    python benchmarks/confidence.py --tables    # print the tables of the stored JSON
"""

import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cases import SETS, Floats, Ints, load, load_set
from real_sets import RESULTS, run_benchmark, table

import nnnorm
from nnnorm.calibration import bin_probabilities

OUTPUT = RESULTS / "confidence.json"
SEEDS = tuple(range(100, 110))
# The seeds of the measurement that the share was chosen with.
N_CHOICES, N_CHOICE_TEST = 5, 2500
SHARES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
N_LABELS, N_TEST, N_KEPT = 300, 4000, 100
COLUMNS = ("raw top", "corrected top", "raw margin", "confidence")
COLUMNS += ("there: raw top", "there: confidence")
# Headers of the table, and names of the sets.
SHOWN = ("top raw score", "top corrected score", "raw margin", "confidence")
SHOWN += ("in gallery: top raw score", "in gallery: confidence")
NAMES = {
    "flickr8k": "Flickr8k",
    "unsplash500": "Unsplash (CLIP)",
    "clip_coco500": "COCO (CLIP)",
    "amazon1293": "Amazon (CLIP)",
    "cosqa": "CoSQA",
    "apibench": "APIBench",
    "medquad": "MedQuAD",
    "nl2bash": "NL2Bash",
    "clinc150": "CLINC150",
    "bli_it-en": "Italian–English",
    "bli_zh-en": "Chinese–English",
}


class Data(NamedTuple):
    """Return queries with their right items, the gallery, and past queries if the set has any."""

    queries: Floats
    gallery: Floats
    right: dict[int, set[int]]
    bank: Floats | None


def read(data: Path, name: str) -> Data:
    folder = data / name
    if name == "flickr8k":
        images, captions = load(folder / "image.npy"), load(folder / "caption.npy")
        train, test = (np.load(folder / f"{part}_images.npy") for part in ("train", "test"))
        queries = captions[(5 * test[:, None] + np.arange(5)).ravel()]
        right = {row: {row // 5} for row in range(len(queries))}
        bank = captions[5 * np.random.default_rng(0).choice(train, 4000, replace=False) + 1]
        return Data(queries, images[test], right, bank)
    queries, items, pairs = load_set(data, name)
    right = {}
    for query, item in pairs.tolist():
        right.setdefault(query, set()).add(item)
    own = folder / "bank.npy"
    return Data(queries, items, right, load(own) if own.is_file() else None)


class Split(NamedTuple):
    """A gallery without half of the answers, its bias, and the test queries."""

    gallery: Floats
    rows: Ints  # row numbers of the gallery in the whole one
    bias: nnnorm.Bias
    test: Ints


def split(made: Data, past: Floats, test: Ints, rng: np.random.Generator) -> Split:
    answers = np.array(sorted(set().union(*(made.right[int(one)] for one in test))))
    gone = rng.choice(answers, len(answers) // 2, replace=False)
    rows = np.setdiff1d(np.arange(len(made.gallery)), gone)
    gallery = made.gallery[rows]
    return Split(gallery, rows, nnnorm.NNN().fit(gallery, past), test)


def halve(made: Data, n_past: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """Return past queries, and the numbers of the test queries."""
    order = rng.permutation(np.array(sorted(made.right)))
    if made.bank is not None:
        return made.bank, order[:N_TEST]
    return made.queries[order[:n_past]], order[n_past:][:N_TEST]


def ask(made: Data, drawn: Split, bias: nnnorm.Bias | None) -> tuple[nnnorm.Ranking, Any]:
    """Return the hits of the test queries, and whether the first one is right."""
    found = nnnorm.search(made.queries[drawn.test], drawn.gallery, bias, k=11)
    first = drawn.rows[found.indices[:, 0]].tolist()
    hits = zip(drawn.test.tolist(), first, strict=True)
    return found, np.array([item in made.right[query] for query, item in hits])


def auroc(values: npt.ArrayLike, labels: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a right hit is above a wrong one; ties count half."""
    given = np.asarray(values)
    ordered = np.sort(given[~labels])
    below = sum(np.searchsorted(ordered, given[labels], side) for side in ("left", "right")) / 2
    return float(below.mean() / len(ordered))


def compare(made: Data, drawn: Split) -> dict[str, float]:
    raw, raw_right = ask(made, drawn, None)
    found, right = ask(made, drawn, drawn.bias)
    margin = raw.scores[:, 0] - raw.scores[:, 1:].mean(axis=1)
    shares = {
        f"{share:g}": found.scores[:, 0] - share * found.scores[:, :10].mean(axis=1)
        for share in SHARES
    }
    kept = set(drawn.rows.tolist())
    is_there = np.array([not kept.isdisjoint(made.right[int(query)]) for query in drawn.test])
    values = {
        "there: raw top": auroc(raw.scores[:, 0], is_there),
        "there: confidence": auroc(found.confidence, is_there),
        "raw top": auroc(raw.scores[:, 0], raw_right),
        "corrected top": auroc(found.scores[:, 0], right),
        "raw margin": auroc(margin, raw_right),
        "confidence": auroc(found.confidence, right),
        **{name: auroc(score, right) for name, score in shares.items()},
        "right": float(right.mean()),
    }
    return {name: round(value, 4) for name, value in values.items()}


def calibrate(made: Data, drawn: Split, rng: np.random.Generator) -> dict[str, Any]:
    found, right = ask(made, drawn, drawn.bias)
    order = rng.permutation(len(right))
    known, new = order[:N_LABELS], order[N_LABELS:]
    fitted = nnnorm.calibrate(found.confidence[known], right[known])
    chances = fitted.probability(found.confidence[new])
    simulated = [measure_ece(chances, rng.random(len(new)) < chances) for _ in range(200)]
    return {
        "n_test": len(new),
        "ece": round(measure_ece(chances, right[new]), 4),
        "by_chance": round(float(np.mean(simulated)), 4),
        "bins": bin_widths(chances, right[new]),
        "limit": round(float(np.quantile(simulated, 0.95)), 4),
        "brier": round(float(((chances - right[new]) ** 2).mean()), 4),
        "brier_constant": round(float(((right[known].mean() - right[new]) ** 2).mean()), 4),
    }


def measure_ece(chances: npt.NDArray[np.float64], labels: npt.NDArray[np.bool_]) -> float:
    bins = bin_probabilities(chances, labels)
    return sum(size * abs(mean - share) for mean, share, size in bins) / len(chances)


def bin_widths(
    chances: npt.NDArray[np.float64], labels: npt.NDArray[np.bool_]
) -> list[list[float]]:
    """Return size, sum of probabilities and number of right ones of ten groups of equal width."""
    group = np.minimum((10 * chances).astype(int), 9)
    sums = [np.bincount(group, weights, 10) for weights in (None, chances, labels)]
    return [[round(float(one), 3) for one in some] for some in sums]


def measure_unlabeled(made: Data, past: Floats, test: Ints) -> float:
    """Return the share of new queries below the past queries' 5 % quantile, all items searched."""
    bias = nnnorm.NNN().fit(made.gallery, past)
    own, new = (
        nnnorm.search(rows, made.gallery, bias, k=1).confidence
        for rows in (past, made.queries[test])
    )
    return round(float((new < nnnorm.calibrate(own).quantile(0.05)).mean()), 4)


def measure(data: Path, seed: int) -> dict[str, Any]:
    warnings.simplefilter("ignore", nnnorm.NNNormWarning)
    cells = []
    for number, name in enumerate(SETS):
        made = read(data, name)
        n_queries = len(made.right)
        rng = np.random.default_rng([seed, 29, number])
        past, test = halve(made, n_queries // 2, rng)
        values = compare(made, split(made, past, test, rng))
        unlabeled = measure_unlabeled(made, past, test)
        # Small sets are left with 300 labels and 100 test queries.
        past, test = halve(made, min(n_queries // 2, n_queries - N_LABELS - N_KEPT), rng)
        fitted = calibrate(made, split(made, past, test, rng), rng)
        cells.append(
            {"set": name, "seed": seed, "auroc": values, "unlabeled": unlabeled, "labels": fitted}
        )
        print(f"{name} seed {seed}: {values['confidence']} {fitted['ece']}", file=sys.stderr)
    number = seed - SEEDS[0]
    return {"cells": cells, "choice": choose(data, number) if 0 <= number < N_CHOICES else []}


def choose(data: Path, seed: int) -> list[dict[str, Any]]:
    """Return the AUROC of every share on both halves of the test queries."""
    found = []
    for name in SETS:
        made = read(data, name)
        order = np.random.default_rng(29).permutation(np.array(sorted(made.right)))
        halves = dict(zip("AB", np.split(order, [len(order) // 2]), strict=True))
        for half, other in ("AB", "BA"):
            rng = np.random.default_rng([seed, half == "B"])
            past = made.queries[halves[other]] if made.bank is None else made.bank
            values = compare(made, split(made, past, halves[half][:N_CHOICE_TEST], rng))
            found.append({"set": name, "half": half, "seed": seed, "auroc": values})
    return found


def mean_of(records: list[dict[str, Any]], name: str, column: str) -> float:
    return float(np.mean([one["auroc"][column] for one in records if one["set"] == name]))


def tables(results: dict[str, Any]) -> str:
    """Return the table of the AUROC of every set."""
    cells, lines = results["cells"], []
    means = {name: {c: mean_of(cells, name, c) for c in COLUMNS} for name in SETS}
    for name, row in means.items():
        right = f"{100 * mean_of(cells, name, 'right'):.0f}"
        lines.append((NAMES[name], right, *(show(row[column]) for column in COLUMNS)))
    overall = [np.mean([row[column] for row in means.values()]) for column in COLUMNS]
    lines.append(("mean", "", *map(show, overall)))
    return table(("set", "first hit right, %", *SHOWN), lines) + "\n"


def calibration_table(cells: list[dict[str, Any]]) -> str:
    """How well 300 labels calibrate each set, and how many queries are below the bound."""
    lines = []
    for name in SETS:
        of_set = [one for one in cells if one["set"] == name]
        fits = [one["labels"] for one in of_set]
        single = [key for key in fits[0] if key != "bins"]
        mean = {key: float(np.mean([one[key] for one in fits])) for key in single}
        lines.append(
            (
                NAMES[name],
                f"{mean['n_test']:,.0f}",
                show(mean["ece"]),
                show(mean["by_chance"]),
                f"{100 * np.mean([one['unlabeled'] for one in of_set]):.1f}",
            )
        )
    columns = ("set", "test queries", "ECE", "ECE by chance", "below the 5 % bound, %")
    return table(columns, lines)


def all_tables(results: dict[str, Any]) -> str:
    """Return the table of the page, then two that are only printed: calibration, and the share."""
    lines = []
    for share in map("{:g}".format, SHARES):
        cells_of = []
        for half in "AB":
            of_half = [one for one in results["choice"] if one["half"] == half]
            both = [
                (mean_of(of_half, name, share), mean_of(of_half, name, "raw margin"))
                for name in SETS
            ]
            cells_of += [show(np.mean([own for own, _ in both]), 4)]
            cells_of += [show(min(own - raw for own, raw in both))]
        lines.append((share, *cells_of))
    columns = ("share", "A: mean AUROC", "A: worst − raw margin", "B: mean AUROC")
    chosen = table((*columns, "B: worst − raw margin"), lines)
    title = "### The share of the mean, on two halves of the queries"
    calibrated = f"### Probabilities from 300 labels\n\n{calibration_table(results['cells'])}"
    return f"{tables(results)}\n{calibrated}\n\n{title}\n\n{chosen}\n"


def show(value: float, digits: int = 3) -> str:
    """Format a number without its leading zero.

    >>> show(0.8124), show(-0.02)
    ('.812', '−.020')
    """
    return f"{value:.{digits}f}".replace("-", "−").replace("0.", ".", 1)


def main() -> int:
    """Run the command line."""
    text = "Measure AUROC and calibration of confidence on real embeddings."
    return run_benchmark(text, OUTPUT, measure, all_tables, seeds=SEEDS, sets=SETS)


if __name__ == "__main__":
    sys.exit(main())
