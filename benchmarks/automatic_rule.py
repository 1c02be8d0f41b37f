"""What `NNN()` is worth when nobody tunes it: its automatic k and α on two real embedding sets.

Draws random banks of 8 to 30,455 references and measures R@1 on test queries without correction,
with the automatic rule, with the paper's default (k = 128, α = 0.75) and with a rule that looks at
the bank's size only; for a bank out of distribution also with the paper's advice for such banks.
Every gain is paired: the same queries, with and without the correction. The intervals resample
images, because the five captions of one photo are not five independent queries.

    python benchmarks/automatic_rule.py                  # measure, write JSON, print the tables
    python benchmarks/automatic_rule.py --tables         # print the tables of the stored JSON

The embeddings are read from `../shared/data` beside the repository (or `--data`), never copied.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import nnnorm
from nnnorm.io.files import check_writable, write_whole

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int64]
Counts: TypeAlias = npt.NDArray[np.float64]
Cell: TypeAlias = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
OUTPUT = ROOT / "benchmarks" / "results" / "automatic_rule.json"

SEED = 20240
N_RESAMPLES = 4000
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
UNSPLASH_SIZES = (8, 16, 32, 64, 128, 250)
N_UNSPLASH_SPLITS = 200
PAPER_K, PAPER_ALPHA = 128, 0.75

COCO = "flickr8k-image-coco"
# The two corners of the paper's advice for a bank out of distribution: (reference_k, alpha).
ADVICE = {"advice_gentle": (8, 0.25), "advice_strong": (16, 0.5)}

TITLES = {
    "flickr8k-image": "Flickr8k, captions find images (our small dual encoder)",
    "flickr8k-text": "Flickr8k, images find captions (our small dual encoder)",
    "unsplash500-image": "Unsplash, texts find photos (CLIP ViT-B/32)",
    "unsplash500-text": "Unsplash, photos find texts (CLIP ViT-B/32)",
    COCO: "Out of distribution: Flickr8k images, a bank of COCO captions",
}


def n_banks(n_references: int, n_all: int) -> int:
    """Small banks differ most from each other, so more of them are drawn."""
    if n_references == n_all:
        return 1
    if n_references <= 16:
        return 200
    return 40 if n_references <= 128 else 20 if n_references <= 1024 else 5


# --- the sets ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """Test queries, a gallery and one bank; image numbers say which item answers which query."""

    scores: Floats  # (n_queries, n_gallery)
    query_image: Ints  # (n_queries,)
    gallery_image: Ints  # (n_gallery,)
    bank_scores: Floats  # (n_gallery, n_references)
    n_images: int

    def hits(self, correction: Floats | float) -> npt.NDArray[np.bool_]:
        """Whether each query's best item is a right one: R@1 is the mean."""
        best = np.subtract(self.scores, correction).argmax(axis=1)
        return np.equal(self.gallery_image[best], self.query_image)

    def per_image(self, values: Counts) -> Counts:
        """Sums of one value per query, by the query's image."""
        return np.asarray(np.bincount(self.query_image, values, self.n_images), np.float64)


@dataclass(frozen=True)
class Task:
    """A retrieval task: its bank sizes, and the trials of each."""

    name: str
    sizes: tuple[int, ...]
    trials: Callable[[int], Iterator[Trial]]


def load(path: Path) -> Floats:
    return np.load(path).astype(np.float32)


def captions_of(images: Ints) -> Ints:
    return (5 * images[:, None] + np.arange(5)).ravel()


class Side(NamedTuple):
    """Queries or gallery: embeddings, and the image each row belongs to."""

    embeddings: Floats
    image: Ints


def flickr8k(folder: Path) -> Iterator[Task]:
    """One test split; each trial draws another bank from the training split, or from COCO."""
    image, caption = load(folder / "image.npy"), load(folder / "caption.npy")
    train = np.load(folder / "train_images.npy")
    test = np.load(folder / "test_images.npy")
    n_images = len(test)
    images = Side(image[test], np.arange(n_images))
    captions = Side(caption[captions_of(test)], np.repeat(np.arange(n_images), 5))

    def task(name: str, queries: Side, gallery: Side, bank: Floats) -> Task:
        scores = queries.embeddings @ gallery.embeddings.T
        bank_scores = gallery.embeddings @ bank.T
        sizes = (*(n for n in SIZES if n < len(bank)), len(bank))

        def trials(n_references: int) -> Iterator[Trial]:
            for number in range(n_banks(n_references, len(bank))):
                rng = np.random.default_rng([SEED, n_references, number])
                drawn = rng.choice(len(bank), n_references, replace=False)
                drawn_scores = np.ascontiguousarray(bank_scores[:, drawn])
                yield Trial(scores, queries.image, gallery.image, drawn_scores, n_images)

        return Task(name, sizes, trials)

    yield task("flickr8k-image", captions, images, caption[captions_of(train)])
    yield task("flickr8k-text", images, captions, image[train])
    yield task(COCO, captions, images, load(folder / "coco_caption.npy"))


def unsplash500(folder: Path) -> Iterator[Task]:
    """Each trial splits the items anew: 50 % references, 20 % kept for tuning, 30 % test."""
    image, text = load(folder / "image.npy"), load(folder / "text.npy")

    def task(name: str, queries: Floats, gallery: Floats) -> Task:
        n_items = len(gallery)

        def trials(n_references: int) -> Iterator[Trial]:
            for number in range(N_UNSPLASH_SPLITS):
                items = np.random.default_rng([SEED, number]).permutation(n_items)
                drawn, test = items[:n_references], items[n_items * 7 // 10 :]
                yield Trial(
                    scores=queries[test] @ gallery[test].T,
                    query_image=test,
                    gallery_image=test,
                    bank_scores=gallery[test] @ queries[drawn].T,
                    n_images=n_items,
                )

        return Task(name, UNSPLASH_SIZES, trials)

    yield task("unsplash500-image", text, image)
    yield task("unsplash500-text", image, text)


# --- the measurement ---------------------------------------------------------------------------


def corrections(
    bank_scores: Floats, *, with_advice: bool
) -> tuple[dict[str, Floats], dict[str, float]]:
    """``α·m_k`` of each rule, and what the automatic one chose."""
    n_references = bank_scores.shape[1]
    automatic = nnnorm.NNN().fit_scores(bank_scores)
    paper = nnnorm.NNN(min(PAPER_K, n_references), PAPER_ALPHA).fit_scores(bank_scores)
    by_size = PAPER_ALPHA * n_references / (n_references + 32)
    rules = {
        "automatic": automatic.correction,
        "paper": paper.correction,
        "by_size": np.float32(by_size) * automatic.values,
    }
    for name, (reference_k, alpha) in ADVICE.items() if with_advice else ():
        method = nnnorm.NNN(min(reference_k, n_references), alpha)
        rules[name] = method.fit_scores(bank_scores).correction
    return rules, {"reference_k": automatic.params["reference_k"], "alpha": automatic.weight}


def measure(task: Task, n_references: int) -> Cell:
    """R@1 points gained by each rule over many banks of one size, with bootstrap intervals."""
    baseline: list[float] = []
    chosen: list[dict[str, float]] = []
    won: dict[str, list[Counts]] = {}  # per rule and bank: queries won (less those lost) per image
    asked: list[Counts] = []  # per bank: queries asked per image
    for trial in task.trials(n_references):
        before = trial.hits(0.0)
        baseline.append(100 * float(before.mean()))
        asked.append(trial.per_image(np.ones(len(before))))
        rules, choice = corrections(trial.bank_scores, with_advice=task.name == COCO)
        chosen.append(choice)
        for name, correction in rules.items():
            change = trial.hits(correction).astype(np.float64) - before
            won.setdefault(name, []).append(trial.per_image(change))
    cell: Cell = {
        "task": task.name,
        "n_references": n_references,
        "n_banks": len(baseline),
        "uncorrected": round(float(np.mean(baseline)), 2),
        "reference_k": int(chosen[0]["reference_k"]),
        "paper_reference_k": min(PAPER_K, n_references),
        "alphas": [round(choice["alpha"], 3) for choice in chosen],
    }
    for name, wins in won.items():
        cell[name] = summarise(np.array(wins), np.array(asked), in_full=name == "automatic")
    return cell


def summarise(won: Counts, asked: Counts, *, in_full: bool) -> Cell:
    """Gains from queries won and asked, both of shape (n_banks, n_images); in full: of every bank.

    Each bank has its own 95 % interval, over resampled images. The interval of the mean resamples
    images and banks, so it says what to expect of other queries *and* another bank.
    """
    n_all, n_images = won.shape
    rng = np.random.default_rng(SEED)
    images = rng.multinomial(n_images, np.full(n_images, 1 / n_images), N_RESAMPLES)
    banks = rng.multinomial(n_all, np.full(n_all, 1 / n_all), N_RESAMPLES)
    weights = images.astype(np.float32)  # whole numbers below 2**24: float32 is exact
    resampled_won = weights @ won.T.astype(np.float32)  # (n_resamples, n_banks)
    resampled_asked = weights @ asked.T.astype(np.float32)
    gains = 100 * won.sum(axis=1) / asked.sum(axis=1)
    low, high = np.percentile(100 * resampled_won / resampled_asked, [2.5, 97.5], axis=0)
    means = 100 * (banks * resampled_won).sum(axis=1) / (banks * resampled_asked).sum(axis=1)
    summary: Cell = {
        "mean": round(float(gains.mean()), 3),
        "interval": [round(float(end), 3) for end in np.percentile(means, [2.5, 97.5])],
        # One-sided, for "worse than no correction"; never 0, since the observed sample counts too.
        "p_worse": round((1 + int((means >= 0).sum())) / (1 + N_RESAMPLES), 5),
        "worst": round(float(gains.min()), 2),
        "significantly_worse": int((high < 0).sum()),
        "significantly_better": int((low > 0).sum()),
    }
    if in_full:
        lists = {"gains": gains, "low": low, "high": high}
        summary |= {name: values.round(2).tolist() for name, values in lists.items()}
    return summary


def run(data: Path) -> dict[str, Any]:
    started = time.perf_counter()
    cells = []
    for tasks in (flickr8k(data / "flickr8k"), unsplash500(data / "unsplash500")):
        for task in tasks:
            for n_references in task.sizes:
                cells.append(measure(task, n_references))
                gain = cells[-1]["automatic"]["mean"]
                print(f"{task.name}  {n_references:>6,}  {gain:+.2f}", file=sys.stderr)
    return {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "nnnorm": nnnorm.__version__,
        },
        "seed": SEED,
        "n_resamples": N_RESAMPLES,
        "seconds": round(time.perf_counter() - started),
        "cells": cells,
    }


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


# --- the tables --------------------------------------------------------------------------------


def tables(results: dict[str, Any]) -> str:
    """The Markdown of `docs/automatic-rule.md`, from the results alone."""
    by_task = {
        name: f"### {title}\n\n" + table([c for c in results["cells"] if c["task"] == name])
        for name, title in TITLES.items()
    }
    out_of_distribution = by_task.pop(COCO)
    parts = [*by_task.values(), verdict(results["cells"]), out_of_distribution]
    return "\n\n".join(parts) + "\n"


def table(cells: list[Cell]) -> str:
    before = sorted({f"{cell['uncorrected']:.2f}" for cell in cells})
    others = {"paper": "paper's default", "by_size": "by size only"}
    if cells[0]["task"] == COCO:
        others |= {name: f"k = {k}, α = {alpha}" for name, (k, alpha) in ADVICE.items()}
    titles = [
        *("references", "banks", "k, mean α", "automatic", "95 % interval", "worst bank"),
        *("worse / better", *others.values()),
    ]
    lines = [f"R@1 without correction: {' to '.join(before)}.", "", row(titles)]
    lines.append("|" + "---:|" * len(titles))
    for cell in cells:
        auto = cell["automatic"]
        columns = [
            f"{cell['n_references']:,}",
            f"{cell['n_banks']}",
            f"{cell['reference_k']}, {np.mean(cell['alphas']):.2f}",
            f"**{points(auto['mean'])}**",
            " to ".join(points(end) for end in auto["interval"]),
            points(auto["worst"]),
            f"{auto['significantly_worse']} / {auto['significantly_better']}",
        ]
        for name in others:
            clipped = "†" if name == "paper" and cell["paper_reference_k"] < PAPER_K else ""
            columns.append(f"{points(cell[name]['mean'])}{clipped} ({points(cell[name]['worst'])})")
        lines.append(row(columns))
    return "\n".join(lines)


def row(columns: list[str]) -> str:
    return "| " + " | ".join(columns) + " |"


def points(gain: float) -> str:
    return f"{gain:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")


def verdict(cells: list[Cell]) -> str:
    """How often a rule is significantly worse than no correction, in distribution."""
    inside = [cell for cell in cells if cell["task"] != COCO]
    total = sum(cell["n_banks"] for cell in inside)
    tiny = [cell for cell in inside if cell["n_references"] <= 16]
    n_tiny = sum(cell["n_banks"] for cell in tiny)
    lines = [
        "### Is it ever worse than doing nothing?",
        "",
        f"The {len(inside)} rows and {total:,} banks of the four tables in distribution.",
        "",
        row(
            [
                *("rule", "mean gain of the rows", "rows worse", "banks worse"),
                *("of 8 or 16 references", "the worst row", "banks better"),
            ]
        ),
        "|---|" + "---:|" * 6,
    ]
    labels = {"automatic": "**automatic**", "paper": "paper's default", "by_size": "by size only"}
    for rule, label in labels.items():
        worse, tiny_worse = (
            sum(cell[rule]["significantly_worse"] for cell in some) for some in (inside, tiny)
        )
        better = sum(cell[rule]["significantly_better"] for cell in inside)
        largest = max(cell[rule]["significantly_worse"] / cell["n_banks"] for cell in inside)
        columns = [
            label,
            points(float(np.mean([cell[rule]["mean"] for cell in inside]))),
            f"{holm([cell[rule]['p_worse'] for cell in inside], level=0.025)}",
            share(worse / total),
            share(tiny_worse / n_tiny),
            share(largest),
            share(better / total),
        ]
        lines.append(row(columns))
    return "\n".join(lines)


def share(part: float) -> str:
    return f"{100 * part:.1f} %"


def holm(p_values: list[float], *, level: float) -> int:
    """How many hypotheses Holm's step-down procedure rejects.

    >>> holm([0.001, 0.04, 0.02], level=0.05)
    3
    >>> holm([0.04, 0.04], level=0.05)
    0
    """
    rejected = 0
    for place, p in enumerate(sorted(p_values)):
        if p > level / (len(p_values) - place):
            break
        rejected += 1
    return rejected


def to_json(results: dict[str, Any]) -> str:
    """One line per cell: small, and a change shows as a change of that line."""
    head = {key: value for key, value in results.items() if key != "cells"}
    cells = ",\n".join("  " + json.dumps(cell, separators=(",", ":")) for cell in results["cells"])
    return json.dumps(head, indent=1)[:-2] + f',\n "cells": [\n{cells}\n ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the automatic rule of NNN().")
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
        print(tables(json.loads(arguments.output.read_text(encoding="utf-8"))), end="")
        return 0
    missing = [name for name in ("flickr8k", "unsplash500") if not (arguments.data / name).is_dir()]
    if missing:
        print(
            f"there is no {' and no '.join(missing)} in {arguments.data}; give the folder of the "
            "embedding sets with --data, or print the stored tables with --tables",
            file=sys.stderr,
        )
        return 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(arguments.output)
    results = run(arguments.data)
    write_whole(arguments.output, lambda file: file.write(to_json(results).encode()))
    print(tables(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
