"""Measures all methods on all real sets: pictures, text, code, dictionaries, in both directions.

A set without separate past queries is split in half at random, and each half serves as past queries
for the other. Sets of pairs are split by item, because items that answer past queries could never
be right. Each method runs with its defaults and tuned on the labels (cross-fitted in five folds,
one-standard-error rule). Gains are differences in R@1 per query, averaged over the splits.
Intervals are over queries, and those of one item are resampled together.

    python benchmarks/evidence.py                 # measure, write JSON, print the tables
    python benchmarks/evidence.py --tables --plot docs/images/evidence.png
"""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases import load_set
from real_sets import (
    RESULTS,
    Flickr8k,
    Floats,
    Ints,
    points,
    read_judged,
    read_unsplash500,
    run_benchmark,
    table,
)

import nnnorm
from nnnorm.datasets import load_shapes
from nnnorm.dedup import drop_copies
from nnnorm.evaluation import Interval, Task, interval_of_mean, judge_hubs, open_truth
from nnnorm.evaluation.tuning import Trial
from nnnorm.methods import label_method, make_method

OUTPUT = RESULTS / "evidence.json"
N_HALVINGS = 1
SMALL = 64
BETAS = (5.0, 10.0, 20.0, 40.0, 80.0)
# Values near those that the authors of each method recommend; NNN and CSLS have their whole grids.
GRIDS: dict[str, Any] = {
    "dn": {"weight": (0.25, 0.5, 1.0)},
    "is": {"beta": BETAS},
    "qbnorm": {"beta": BETAS},
    "dualis": {"beta_query": BETAS, "beta_gallery": (0.0, 5.0, 15.0)},
    "sinkhorn": {"tau": (0.01, 0.03, 0.1)},
}
METHODS = ("nnn", "csls", *GRIDS)
TITLES = {
    "flickr8k-image": "Flickr8k, captions find photos",
    "flickr8k-text": "Flickr8k, photos find captions",
    "unsplash500-image": "Unsplash (CLIP), texts find photos",
    "unsplash500-text": "Unsplash (CLIP), photos find texts",
    "clip_coco500-image": "COCO (CLIP), captions find photos",
    "clip_coco500-text": "COCO (CLIP), photos find captions",
    "amazon1293-image": "Amazon (CLIP), texts find products",
    "amazon1293-text": "Amazon (CLIP), products find texts",
    "shapes-image": "Shapes, captions find pictures",
    "shapes-text": "Shapes, pictures find captions",
    "medquad": "MedQuAD, questions find answers",
    "medquad-reverse": "MedQuAD, answers find questions",
    "cosqa": "CoSQA, searches find code",
    "cosqa-reverse": "CoSQA, code finds searches",
    "apibench": "APIBench, tasks find APIs",
    "apibench-tf": "APIBench, TensorFlow tasks only",
    "nl2bash": "NL2Bash, descriptions find commands",
    "nl2bash-reverse": "NL2Bash, commands find descriptions",
    "clinc150": "CLINC150, utterances find intents",
    "bli_it-en": "Italian words find English",
    "bli_it-en-reverse": "English words find Italian",
    "bli_zh-en": "Chinese words find English",
    "bli_zh-en-reverse": "English words find Chinese",
}


class Part(NamedTuple):
    """A search: queries of a set with their numbers, the gallery, and the banks."""

    rows: Ints
    task: Task
    bank: Floats
    gallery_bank: Floats | None = None
    items: Ints | None = None  # numbers of the gallery's items, if it is a part of the set


def unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def make_sets(data: Path, rng: np.random.Generator) -> Iterator[tuple[str, str, list[Part]]]:
    """Yield ``(name, bank, parts)`` for every set, direction and bank."""
    flickr8k = Flickr8k(data / "flickr8k")
    train, test = (flickr8k.pairs.some(flickr8k.images(split)) for split in ("train", "test"))
    shapes = load_shapes()
    pictures = shapes.gallery_references
    pairs = np.stack([shapes.truth, np.arange(len(shapes.truth))], axis=1)
    sides = unit(train.image), unit(train.text)
    whole = {
        "flickr8k-image": (test.task("image"), sides[1], sides[0]),
        "flickr8k-text": (test.task("text"), sides[0], sides[1]),
        "shapes-image": (
            Task(shapes.queries, shapes.gallery, shapes.truth),
            shapes.references,
            pictures,
        ),
        "shapes-text": (Task(shapes.gallery, shapes.queries, pairs), pictures, shapes.references),
    }
    for name, (task, bank, gallery_bank) in whole.items():
        yield name, "own", [whole_part(task, bank, gallery_bank)]
        yield name, f"{SMALL} queries", [whole_part(task, draw(bank, rng))]
        if name == "flickr8k-image":
            yield name, "COCO captions", [whole_part(task, unit(flickr8k.coco))]
        if name == "shapes-image":
            yield name, "short searches", [whole_part(task, shapes.other_references)]
    unsplash = read_unsplash500(data / "unsplash500")
    coco = read_judged(data / "clip_coco500")
    of_query = coco.pairs[np.argsort(coco.pairs[:, 0]), 1]
    for name, texts, images in (
        ("unsplash500", unsplash.text, unsplash.image),
        ("clip_coco500", coco.queries, coco.documents[of_query]),
    ):
        both = unit(texts), unit(images)
        for direction, asks, asked in (("image", *both), ("text", *both[::-1])):
            yield from with_small(f"{name}-{direction}", halve_pairs(asks, asked, rng), rng)
    others = rng.spawn(1)[0]  # doesn't use `rng`, so that its halves stay the same
    texts, images, pairs = load_set(data, "amazon1293")
    parts = halve(texts, images, pairs, others, is_apart=True)
    yield from with_small("amazon1293-image", parts, others)
    parts = halve(images, texts, pairs[:, ::-1], others, is_apart=True)
    yield from with_small("amazon1293-text", parts, others)
    for name in ("medquad", "cosqa", "apibench", "bli_it-en", "bli_zh-en", "nl2bash", "clinc150"):
        judged = read_judged(data / name)
        queries, documents = unit(judged.queries), unit(judged.documents)
        if judged.bank is None:
            parts = halve(queries, documents, judged.pairs, rng)
        else:
            parts = [whole_part(Task(queries, documents, judged.pairs), unit(judged.bank))]
        yield from with_small(name, parts, rng)
        if name == "clinc150":  # its items are the names of intents
            continue
        if judged.source is None:
            parts = halve(documents, queries, judged.pairs[:, ::-1], rng)
            yield from with_small(f"{name}-reverse", parts, others)
        else:
            some = judged.pairs[judged.source[judged.pairs[:, 0]] == 1]
            yield from with_small(f"{name}-tf", halve(queries, documents, some, rng), others)


def whole_part(task: Task, bank: Floats, gallery_bank: Floats | None = None) -> Part:
    queries, gallery = (unit(np.asarray(side)) for side in (task.queries, task.gallery))
    return Part(np.arange(len(queries)), Task(queries, gallery, task.truth), bank, gallery_bank)


def with_small(
    name: str, parts: list[Part], rng: np.random.Generator
) -> Iterator[tuple[str, str, list[Part]]]:
    yield name, "own", parts
    small = [part._replace(bank=draw(part.bank, rng), gallery_bank=None) for part in parts]
    yield name, f"{SMALL} queries", small


def halve_pairs(asks: Floats, asked: Floats, rng: np.random.Generator) -> list[Part]:
    """Yield halves of the pairs, each with its own items as the gallery."""
    parts = []
    for _ in range(2 * N_HALVINGS):
        halves = np.array_split(rng.permutation(len(asks)), 2)
        for known, test in (halves, halves[::-1]):
            task = Task(asks[test], asked[test], np.arange(len(test)))
            parts.append(Part(test, task, asks[known], asked[known], test))
    return parts


def halve(
    queries: Floats,
    gallery: Floats,
    pairs: Ints,
    rng: np.random.Generator,
    *,
    is_apart: bool = False,
) -> list[Part]:
    """Yield halves of the queries; the gallery is the whole one, or the right items of the half."""
    parts = []
    for _ in range(N_HALVINGS):
        halves = np.array_split(rng.permutation(np.unique(pairs[:, 0])), 2)
        for known, test in (halves, halves[::-1]):
            place = np.full(len(queries), -1)
            place[test] = np.arange(len(test))
            kept = pairs[place[pairs[:, 0]] >= 0]
            items = np.unique(kept[:, 1]) if is_apart else np.arange(len(gallery))
            truth = np.stack([place[kept[:, 0]], np.searchsorted(items, kept[:, 1])], axis=1)
            parts.append(Part(test, Task(queries[test], gallery[items], truth), queries[known]))
    return parts


def draw(bank: Floats, rng: np.random.Generator) -> Floats:
    return bank[rng.choice(len(bank), SMALL, replace=False)]


class Sums:
    """Means per query over the parts that contain it."""

    def __init__(self, n_queries: int) -> None:
        self.total, self.times = np.zeros(n_queries), np.zeros(n_queries)

    def add(self, rows: Ints, values: Any) -> None:
        """Add the values of the queries of one part."""
        self.total[rows] += values
        self.times[rows] += 1

    def interval(self, clusters: Ints) -> Interval:
        """Return the mean of every query that was measured."""
        asked = self.times > 0
        return interval_of_mean((self.total / np.maximum(1, self.times))[asked], clusters[asked])


def measure_parts(parts: list[Part], names: tuple[str, ...]) -> dict[str, Any]:
    """Measure R@1 and hubs of a search, and the gain of every method, default and tuned."""
    n_queries = 1 + max(int(part.rows.max()) for part in parts)
    clusters = np.arange(n_queries)
    gains: dict[str, Sums] = {}
    recalls, beyond, n_references = [], [], []
    for part in parts:
        queries, gallery, truth = part.task
        bank = nnnorm.open_embeddings(part.bank, name="references")
        used = drop_copies(bank)
        second = part.gallery_bank
        opened = None if second is None else nnnorm.open_embeddings(second)
        sides = nnnorm.open_embeddings(gallery), nnnorm.open_embeddings(queries)
        tried = [name for name in names if second is not None or name != "dualis"]
        grids = {name: grid for name, grid in GRIDS.items() if name in tried}
        right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        trial = Trial(tried, sides[0], used, opened, sides[1], right, grids=grids)
        raw = trial.evaluation(0)
        groups = trial.clusters
        clusters[part.rows] = groups if part.items is None else part.items[groups]
        recalls.append(raw.recall(1))
        hubs = judge_hubs(raw.top1, len(gallery), truth=raw.truth)
        beyond.append(hubs.beyond_chance)
        n_references.append(len(bank))
        for name in tried:
            found = {f"{name} tuned": trial.cross_fit("one-standard-error", name)}
            if name != "dualis":
                bias = make_method(name).fit(sides[0], bank)
                found[name] = nnnorm.evaluate(sides[1], sides[0], bias, truth=raw.truth)
            for label, evaluation in found.items():
                sums = gains.setdefault(label, Sums(n_queries))
                sums.add(part.rows, evaluation.hits(1) - raw.hits(1))
    intervals = {label: sums.interval(clusters) for label, sums in gains.items()}
    return {
        "n_queries": len(np.unique(np.concatenate([part.rows for part in parts]))),
        "n_gallery": len(parts[0].task.gallery),
        "n_references": int(np.mean(n_references)),
        "recall_at_1": round(100 * float(np.mean(recalls)), 2),
        "beyond_chance": round(float(np.mean(beyond)), 3),
        "gains": {
            label: [round(100 * value, 2) for value in (found.mean, found.low, found.high)]
            for label, found in intervals.items()
        },
    }


def measure(data: Path, seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnnorm.NNNormWarning)
        for name, bank, parts in make_sets(data, rng):
            names = METHODS if bank == "own" else ("nnn", "csls")
            rows.append({"set": name, "bank": bank, **measure_parts(parts, names)})
            print(f"{name}, {bank}", file=sys.stderr)
    return {"rows": rows}


# --- the tables and the plot -------------------------------------------------------------------


def tables(results: dict[str, Any]) -> str:
    """Return the tables of `docs/evidence.md` as Markdown."""
    rows = results["rows"]
    own = [row for row in rows if row["bank"] == "own"]
    return f"{main_table(rows)}\n\n{methods_table(own)}\n"


def main_table(rows: list[dict[str, Any]]) -> str:
    few = {row["set"]: row for row in rows if row["bank"] == f"{SMALL} queries"}
    columns = ["search", "items", "past queries", "R@1", "hubs, %", "NNN", "CSLS"]
    cells = []
    for row in (row for row in rows if row["bank"] != f"{SMALL} queries"):
        is_own = row["bank"] == "own"
        cells.append(
            (
                TITLES[row["set"]] + ("" if is_own else f" (past queries: {row['bank']})"),
                f"{row['n_gallery']:,}",
                f"{row['n_references']:,}",
                f"{row['recall_at_1']:.1f}",
                f"{100 * row['beyond_chance']:.0f}",
                *(show(row["gains"][label]) for label in ("nnn", "csls")),
                show(few[row["set"]]["gains"]["nnn"]) if is_own else "",
            )
        )
    return table([*columns, f"NNN, {SMALL} past queries"], cells)


def methods_table(rows: list[dict[str, Any]]) -> str:
    labels = [name for name in METHODS if name != "dualis"]
    labels += [f"{name} tuned" for name in METHODS]
    cells = []
    for label in labels:
        gains = [row["gains"][label] for row in rows if label in row["gains"]]
        means = [gain[0] for gain in gains]
        name, _, tuned = label.partition(" ")
        cells.append(
            (
                f"{label_method(name)}, {tuned or 'defaults'}",
                str(len(gains)),
                points(float(np.mean(means))),
                points(min(means)),
                str(sum(gain[1] > 0 for gain in gains)),
                str(sum(gain[2] < 0 for gain in gains)),
            )
        )
    columns = ("method", "searches", "mean gain", "worst gain", "gains", "losses")
    return table(columns, cells)


def show(gain: list[float]) -> str:
    mean, low, high = gain
    text = f"{points(mean)} [{points(low).lstrip('+')}, {points(high).lstrip('+')}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def draw_forest(results: dict[str, Any], figure: Any) -> None:
    """Plot one row per search: the gain of NNN with its interval, and with few past queries."""
    from matplotlib.lines import Line2D

    from nnnorm.report.plots import BLUE, GREY, ORANGE, label_axes, style_axes

    rows = sorted(
        (row for row in results["rows"] if row["bank"] == "own"),
        key=lambda row: -row["gains"]["nnn"][0],
    )
    few = {
        row["set"]: row["gains"]["nnn"][0]
        for row in results["rows"]
        if row["bank"] == f"{SMALL} queries"
    }
    figure.set_size_inches(8.6, 5.6)
    axes = figure.subplots()
    style_axes(axes, grid="x")
    for place, row in enumerate(rows):
        mean, low, high = row["gains"]["nnn"]
        colour = GREY if low <= 0 <= high else BLUE if mean > 0 else ORANGE
        face = "white" if colour == GREY else colour
        axes.hlines(place, low, high, color=colour, linewidth=2)
        axes.plot(mean, place, "o", color=colour, markerfacecolor=face, markersize=7)
        axes.plot(few[row["set"]], place, "D", color=GREY, markersize=4, zorder=3)
    axes.axvline(0, color="#222222", linewidth=1, zorder=1.5)
    axes.set_yticks(range(len(rows)), [TITLES[row["set"]] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    gains = [row["gains"]["nnn"] for row in rows]
    n_gains, n_losses = (sum(low > 0 for _, low, _ in gains), sum(high < 0 for *_, high in gains))
    title = f"NNN gains in {n_gains} of {len(rows)} searches and loses in {n_losses or 'none'}"
    label_axes(axes, title, "gain in R@1, points, with 95 % interval; automatic settings", "")
    marks = {
        "gain": {"marker": "o", "color": BLUE, "markersize": 7},
        "interval includes 0": {"marker": "o", "color": GREY, "markerfacecolor": "white"},
        f"gain with only {SMALL} past queries": {"marker": "D", "color": GREY, "markersize": 4},
    }
    lines = [Line2D([], [], linestyle="none", label=name, **mark) for name, mark in marks.items()]
    axes.legend(handles=lines, frameon=False, loc="lower right", fontsize=9.5)


def main() -> int:
    return run_benchmark(
        __doc__.partition("\n")[0], OUTPUT, measure, tables, seeds=(0,), draw=draw_forest
    )


if __name__ == "__main__":
    sys.exit(main())
