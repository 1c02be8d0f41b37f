"""How to choose k and α: by the maximum, by the one-standard-error rule, or without any labels.

Splits two real sets at random many times. On each split both rules look at the same 50, 100, …
labelled validation queries and choose a cell of the paper's grid (or no correction); what they
chose, `NNN()` and two fixed settings are then measured on test queries that nobody has seen.

    python benchmarks/choosing.py             # measure, write JSON and plot, print the tables
    python benchmarks/choosing.py --tables    # print the tables of the stored JSON, and draw it

Flickr8k: the encoder was trained on the train photos, so those serve as the bank only; the 2,000
photos of its validation and test splits are halved at random, 1,000 to choose on and 1,000 to test
on. One pass over the bank gives the biases of all 2,000 and of every cell. Unsplash: 150 pairs
are the bank, 200 to choose on, 150 to test on, all at random.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from harness import add_options, can_measure, print_stored, store
from pictures import save_both
from real_sets import (
    DATA,
    RESULTS,
    ROOT,
    Direction,
    Flickr8k,
    Floats,
    GridOnPool,
    Ints,
    Pairs,
    machine,
    points,
    read_unsplash500,
    table,
    to_json,
    what_is_missing,
)

import nnnorm
from nnnorm.evaluation.metrics import evaluate
from nnnorm.evaluation.tuning import choose
from nnnorm.report.figure import BLUE, GREY, label_axes, make_panels

Cell: TypeAlias = dict[str, Any]

OUTPUT = RESULTS / "choosing.json"
PLOT = ROOT / "docs" / "images" / "choosing.png"
SEED = 2024
N_SPLITS = 100
SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
# The paper's default, and the gentle corner of its advice for banks out of distribution.
FIXED = {
    "paper": {"reference_k": 128, "alpha": 0.75},
    "gentle": {"reference_k": 8, "alpha": 0.25},
}

TITLES = {
    "flickr8k-image": "Flickr8k, captions find photos",
    "flickr8k-text": "Flickr8k, photos find captions",
    "flickr8k-image-coco": "Flickr8k photos, bank of COCO captions",
    "unsplash500-image": "Unsplash, texts find photos",
    "unsplash500-text": "Unsplash, photos find texts",
}
WITH_LABELS = {"rule": "one standard error", "maximum": "maximum"}
# The panels of the plot.
SHOWN = {
    "flickr8k-image": "Flickr8k photos",
    "flickr8k-text": "Flickr8k captions",
    "unsplash500-image": "Unsplash photos",
}
WITHOUT_LABELS = {
    "automatic": "automatic, `NNN()`",
    "paper": "fixed, k = 128, α = 0.75",
    "gentle": "fixed, k = 8, α = 0.25",
}


# --- the splits --------------------------------------------------------------------------------


class Split(NamedTuple):
    """One random split: which photos of a pool are for choosing and which for testing."""

    grid: GridOnPool
    validation: Ints
    test: Ints
    automatic: Floats  # (n_gallery,), what `NNN()` takes from the test gallery's scores
    n_references: int


def flickr8k_splits(
    pool: Pairs, direction: Direction, bank: Floats, n_splits: int
) -> Iterator[Split]:
    """Halves of the photos that the encoder has never seen; always the same bank."""
    grid = GridOnPool.scan(pool, direction, bank)
    # α comes from a sample of the gallery: for all photos at once it is the same to a hundredth.
    automatic = nnnorm.NNN().fit(pool.task(direction).gallery, bank).correction
    per_image = len(automatic) // len(pool.image)
    for number in range(n_splits):
        photos = np.random.default_rng([SEED, number]).permutation(len(pool.image))
        validation, test = np.sort(photos[:1000]), np.sort(photos[1000:])
        taken = automatic.reshape(-1, per_image)[test].ravel()
        yield Split(grid, validation, test, taken, len(bank))


def unsplash500_splits(pairs: Pairs, direction: Direction, n_splits: int) -> Iterator[Split]:
    """Another bank, validation and test each time."""
    for number in range(n_splits):
        photos = np.random.default_rng([SEED, number]).permutation(len(pairs.image))
        known, pool = pairs.some(photos[:150]), pairs.some(photos[150:])
        bank = known.text if direction == "image" else known.image
        test = np.arange(200, 350)
        gallery = pool.some(test).task(direction).gallery
        automatic = nnnorm.NNN().fit(gallery, bank).correction
        grid = GridOnPool.scan(pool, direction, bank)
        yield Split(grid, np.arange(200), test, automatic, len(bank))


def tasks(data: Path, n_splits: int) -> Iterator[tuple[str, Iterator[Split]]]:
    flickr8k = Flickr8k(data / "flickr8k")
    train = flickr8k.pairs.some(flickr8k.images("train"))
    unseen = flickr8k.pairs.some(flickr8k.images("val", "test"))
    yield "flickr8k-image", flickr8k_splits(unseen, "image", train.text, n_splits)
    yield "flickr8k-text", flickr8k_splits(unseen, "text", train.image, n_splits)
    yield "flickr8k-image-coco", flickr8k_splits(unseen, "image", flickr8k.coco, n_splits)
    pairs = read_unsplash500(data / "unsplash500")
    yield "unsplash500-image", unsplash500_splits(pairs, "image", n_splits)
    yield "unsplash500-text", unsplash500_splits(pairs, "text", n_splits)


# --- the measurement ---------------------------------------------------------------------------


def measure(name: str, splits: Iterator[Split]) -> Cell:
    """Test gains of every way to choose, one number per split."""
    baseline: list[float] = []
    gains: dict[str, list[float]] = {}
    chosen: dict[str, list[int]] = {}
    for number, split in enumerate(splits):
        settings = split.grid.settings
        test = split.grid.hits(split.test, [split.automatic]).mean(axis=1, dtype=np.float64)
        baseline.append(100 * test[0])
        params = [setting.params for setting in settings]
        rows = {name: params.index(fixed) for name, fixed in FIXED.items()}
        rows["automatic"] = len(settings)
        hits = split.grid.hits(split.validation)
        photo = np.repeat(np.arange(len(split.validation)), hits.shape[1] // len(split.validation))
        order = np.random.default_rng([SEED, number, 1]).permutation(hits.shape[1])
        for size in (size for size in SIZES if size <= len(order)):
            seen = np.sort(order[:size])
            some = np.ascontiguousarray(hits[:, seen])
            rows[f"rule {size}"] = choose(settings, some, photo[seen])
            rows[f"maximum {size}"] = int(some.mean(axis=1, dtype=np.float64).argmax())
        for label, row in rows.items():
            gains.setdefault(label, []).append(100 * float(test[row] - test[0]))
            chosen.setdefault(label, []).append(row)
    return {
        "task": name,
        "n_splits": len(baseline),
        "n_references": split.n_references,
        "n_test": hits_per_test(split),
        "uncorrected": round(float(np.mean(baseline)), 2),
        "gains": {label: np.round(values, 2).tolist() for label, values in gains.items()},
        "settings": {
            label: typical([settings[row].params for row in rows])
            for label, rows in chosen.items()
            if label not in WITHOUT_LABELS
        },
    }


def hits_per_test(split: Split) -> int:
    """Number of test queries."""
    queries = split.grid.pool.task(split.grid.direction).queries
    assert isinstance(queries, np.ndarray)
    return len(split.test) * len(queries) // len(split.grid.pool.image)


def typical(params: list[Any]) -> Cell:
    """How often no correction was chosen, and the spread of what was chosen otherwise."""
    corrected = [p for p in params if p]
    spread: Cell = {"none": len(params) - len(corrected)}
    for name in ("reference_k", "alpha") if corrected else ():
        values = [p[name] for p in corrected]
        quantiles = np.quantile(values, [0.1, 0.5, 0.9], method="nearest")
        spread[name] = quantiles.tolist()
    return spread


def measure_seen(flickr8k: Flickr8k) -> dict[str, float]:
    """R@1 where it proves nothing: 1,000 photos that the encoder was trained on."""
    photos = np.random.default_rng(SEED).permutation(flickr8k.images("train"))[:1000]
    seen = flickr8k.pairs.some(photos)
    directions = get_args(Direction)
    found = {}
    for direction in directions:
        queries, gallery, truth = seen.task(direction)
        found[direction] = round(100 * evaluate(queries, gallery, truth=truth).recall(1), 2)
    return found


def run(data: Path, n_splits: int) -> dict[str, Any]:
    started = time.perf_counter()
    seen = measure_seen(Flickr8k(data / "flickr8k"))
    cells = []
    for name, splits in tasks(data, n_splits):
        cells.append(measure(name, splits))
        print(f"{name}  {time.perf_counter() - started:.0f} s", file=sys.stderr)
    head = {"seed": SEED, "n_splits": n_splits, "seconds": round(time.perf_counter() - started)}
    return {**machine(), **head, "seen": seen, "cells": cells}


# --- the tables and the plot -------------------------------------------------------------------


def tables(results: dict[str, Any]) -> str:
    """The Markdown of `docs/choosing.md`, from the results alone."""
    cells, seen = results["cells"], results["seen"]
    note = (
        "Why no train photo is ever a test photo: among 1,000 of them the encoder finds "
        f"{seen['image']:.1f} % of the photos and {seen['text']:.1f} % of the captions."
    )
    return "\n\n".join([gain_table(cells), note, duel_table(cells), setting_table(cells)]) + "\n"


def columns(first: str, cells: list[Cell]) -> list[str]:
    return [first, *(TITLES[cell["task"]] for cell in cells)]


def gain_table(cells: list[Cell]) -> str:
    rows = [["R@1 without correction", *(f"{cell['uncorrected']:.2f}" for cell in cells)]]
    labels = dict(WITHOUT_LABELS)
    for size in SIZES:
        labels |= {f"{rule} {size}": f"{word}, {size:,}" for rule, word in WITH_LABELS.items()}
    for label, words in labels.items():
        rows.append([words, *(summary(cell["gains"].get(label)) for cell in cells)])
    note = (
        f"Mean gain in R@1 points over {cells[0]['n_splits']} random splits "
        "(in brackets: the worst split; the share of splits that came out worse than no correction)"
    )
    title = "### What each way of choosing gains on test queries"
    return f"{title}\n\n{note}.\n\n{table(columns('chosen by, labelled queries', cells), rows)}"


def summary(gains: list[float] | None) -> str:
    if gains is None:
        return ""
    values = np.array(gains)
    return (
        f"**{points(values.mean())}** ({points(values.min())}; {100 * np.mean(values < 0):.0f} %)"
    )


def duel_table(cells: list[Cell]) -> str:
    rows = []
    for size in SIZES:
        row = [f"{size:,}"]
        for cell in cells:
            rule, maximum = (cell["gains"].get(f"{name} {size}") for name in WITH_LABELS)
            if rule is None or maximum is None:
                row.append("")
                continue
            difference = np.array(rule) - np.array(maximum)
            row.append(
                f"**{points(difference.mean())}** "
                f"({(difference > 0).sum()} : {(difference < 0).sum()})"
            )
        rows.append(row)
    return (
        "### One standard error against maximum\n\nMean difference on the same splits "
        "(splits where the rule did better : where the maximum did).\n\n"
        + table(columns("labelled queries", cells), rows)
    )


def setting_table(cells: list[Cell]) -> str:
    labels: dict[str, str] = {}
    for size in SIZES:
        labels |= {f"{rule} {size}": f"{word}, {size:,}" for rule, word in WITH_LABELS.items()}
    rows = []
    for label, words in labels.items():
        rows.append([words, *(spread_words(cell["settings"].get(label)) for cell in cells)])
    return (
        "### What they choose\n\nMiddle 80 % of the chosen α and k; in brackets how often "
        "no correction was chosen, where it was.\n\n"
        + table(columns("chosen by, labelled queries", cells), rows)
    )


def spread_words(spread: Cell | None) -> str:
    if spread is None:
        return ""
    if "alpha" not in spread:
        return "no correction"
    (low, _, high), (least, _, most) = spread["alpha"], spread["reference_k"]
    none = f" ({spread['none']} ×)" if spread["none"] else ""
    return f"α {low:g}–{high:g}, k {least}–{most}{none}"


def draw(results: dict[str, Any], path: Path) -> None:
    """Mean test gain against the number of labelled queries; without labels as a line."""
    cells = {cell["task"]: cell for cell in results["cells"]}
    figure, panels = make_panels(3.6, len(SHOWN))
    for axes, (task, title) in zip(panels, SHOWN.items(), strict=True):
        cell = cells[task]
        sizes = [size for size in SIZES if f"rule {size}" in cell["gains"]]
        gains: npt.NDArray[np.float64] = np.array([cell["gains"][f"rule {s}"] for s in sizes])
        low, high = np.quantile(gains, [0.1, 0.9], axis=1)
        axes.fill_between(sizes, low, high, color=GREY, alpha=0.18, linewidth=0)
        axes.plot(sizes, gains.mean(axis=1), color=GREY, linewidth=2, marker="o")
        axes.axhline(np.mean(cell["gains"]["automatic"]), color=BLUE, linewidth=2.5)
        axes.axhline(0, color="#222222", linewidth=0.8)
        axes.set_xscale("log")
        shown = sizes[::2]
        axes.set_xticks(shown, [f"{s / 1000:g}k" if s >= 1000 else str(s) for s in shown])
        axes.minorticks_off()
        label_axes(axes, "", title, "")
    panels[0].set_ylabel("gain in R@1 on new queries, points", fontsize=10)
    words = {"xycoords": "axes fraction", "fontsize": 10, "fontweight": "bold"}
    panels[0].annotate("NNN(), no labels", (0.05, 0.93), color=BLUE, **words)
    panels[0].annotate("tuned on labels", (0.05, 0.85), color=GREY, **words)
    figure.suptitle(
        "Labels to tune on add little to a bank of one's own queries",
        x=0.01, ha="left", fontsize=11, fontweight="bold",
    )  # fmt: skip
    figure.supxlabel("labelled queries to tune on (band: middle 80 % of splits)", fontsize=10)
    save_both(figure, path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare ways of choosing k and α.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    add_options(parser, OUTPUT)
    parser.add_argument("--plot", type=Path, default=PLOT, help="the PNG file of the plot")
    parser.add_argument("--splits", type=int, default=N_SPLITS, help="random splits per task")
    arguments = parser.parse_args()
    if arguments.tables:
        return print_stored(arguments.output, tables, lambda stored: draw(stored, arguments.plot))
    if not can_measure(
        arguments.output, what_is_missing(arguments.data, "flickr8k", "unsplash500")
    ):
        return 1
    results = run(arguments.data, arguments.splits)
    store(arguments.output, to_json(results, "cells"))
    draw(results, arguments.plot)
    print(tables(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
