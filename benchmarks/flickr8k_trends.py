"""NNN's grid on Flickr8k, laid open: what the paper's trends in k and α look like cell by cell.

A part of `flickr8k.py`, which runs it. `lay_open` counts R@1, R@5 and R@10 of all 110 cells on the
validation and the test split; the best cell is found anew for photos drawn anew, because on so flat
a hilltop a single best cell says little. `vary_gallery` and `vary_model` make the search easier and
harder, for the trend that speaks of baseline scores.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from real_sets import Direction, Flickr8k, Floats, GridOnPool, Pairs, points, table

import nnnorm
from nnnorm.evaluation.comparison import Task
from nnnorm.evaluation.metrics import Evaluation, count_above, open_truth
from nnnorm.evaluation.sweep import make_settings
from nnnorm.methods import PAPER_GRID

Counts: TypeAlias = npt.NDArray[np.float64]
Record: TypeAlias = dict[str, Any]

KS: Sequence[int] = PAPER_GRID["reference_k"]
ALPHAS: Sequence[float] = PAPER_GRID["alpha"]
RECALLS = (1, 5, 10)
SEED = 2024
N_RESAMPLES = 2000
GALLERY_SIZES = (50, 100, 250, 500, 1000, 2000)
N_SHUFFLES = 5
N_UNSPLASH_SPLITS = 20

NAMES = {"image": "image, Flickr8k bank", "image-coco": "image, COCO bank", "text": "text"}


# --- the measurement ---------------------------------------------------------------------------


def count_hits(task: Task, references: Floats) -> Counts:
    """R@1, R@5 and R@10 hits per photo of every cell, shape (n_cells, 3, n_photos)."""
    queries, gallery = (nnnorm.open_embeddings(rows) for rows in (task.queries, task.gallery))
    truth = open_truth(task.truth, n_queries=len(queries), n_gallery=len(gallery))
    bank, grids = nnnorm.open_embeddings(references), {"nnn": PAPER_GRID}
    settings = make_settings(("none", "nnn"), gallery, bank, grids=grids)
    scores = nnnorm.ranking.score_matrix(queries, gallery)
    n_photos = min(len(queries), len(gallery))
    counts = np.empty((len(settings), len(RECALLS), n_photos))
    for count, setting in zip(counts, settings, strict=True):
        above, tied = count_above(scores - setting.correction(), truth, 0)
        nobody = np.zeros(len(queries), dtype=np.int64)
        evaluation = Evaluation(truth, above, tied, nobody, len(gallery), len(gallery))
        for row, k in zip(count, RECALLS, strict=True):
            row[:] = evaluation.hits(k).reshape(n_photos, -1).mean(axis=1)
    return counts


def lay_open(name: str, validation: Task, test: Task, references: Floats) -> Record:
    """The whole grid on both splits, and where its best cell lies when photos are drawn anew."""
    splits = {"val": validation, "test": test}
    counts = {split: count_hits(task, references) for split, task in splits.items()}
    both = np.concatenate([count[:, 0] for count in counts.values()], axis=1)
    return {
        "task": name,
        "recalls": {  # per cent; "none" first, then k by k, every α
            split: (100 * count.mean(axis=2)).round(3).T.tolist() for split, count in counts.items()
        },
        "best": find_best(both),
    }


def find_best(hits: Counts) -> Record:
    """The best cell of hits (n_cells, n_photos), "none" first, and its spread by resampling."""
    gains = hits[1:] - hits[0]
    n_photos = gains.shape[1]
    rng = np.random.default_rng(SEED)
    weights = rng.multinomial(n_photos, np.full(n_photos, 1 / n_photos), N_RESAMPLES)
    ks, alphas = zip(*map(cell_of, (gains @ weights.T).argmax(axis=0)), strict=True)
    return {
        "cell": cell_of(int(gains.mean(axis=1).argmax())),
        "alpha": np.quantile(alphas, [0.1, 0.5, 0.9], method="nearest").tolist(),
        "reference_k": np.quantile(ks, [0.1, 0.5, 0.9], method="nearest").tolist(),
    }


def cell_of(number: int) -> tuple[int, float]:
    """(k, α) of a cell, counted without "none"."""
    return KS[number // len(ALPHAS)], ALPHAS[number % len(ALPHAS)]


def vary_gallery(flickr8k: Flickr8k) -> list[Record]:
    """Easier and harder galleries: the 2,000 unseen photos cut into galleries of several sizes."""
    pool = flickr8k.pairs.some(flickr8k.images("val", "test"))
    bank = flickr8k.pairs.some(flickr8k.images("train")).text
    grid = GridOnPool.scan(pool, "image", bank)
    records = []
    for size in GALLERY_SIZES:
        hits = np.zeros((len(grid.settings), len(pool.image)))
        for number in range(N_SHUFFLES if size < len(pool.image) else 1):
            photos = np.random.default_rng([SEED, size, number]).permutation(len(pool.image))
            for part in photos.reshape(-1, size):
                hits[:, part] += grid.hits(part).reshape(len(hits), size, -1).mean(axis=2)
        hits /= number + 1
        records.append({"gallery": f"Flickr8k, {size:,} photos", **summarise_gallery(hits)})
    return records


def vary_model(pairs: Pairs) -> list[Record]:
    """Another model on another set: half of Unsplash as the bank, the other half as the gallery."""
    records = []
    words = {"image": "texts find photos", "text": "photos find texts"}
    for direction in get_args(Direction):
        # 512 is more than this bank holds: those cells stay at zero and are never the best.
        hits = np.zeros((1 + len(KS) * len(ALPHAS), len(pairs.image)))
        asked = np.zeros(len(pairs.image))
        for number in range(N_UNSPLASH_SPLITS):
            photos = np.random.default_rng([SEED, number]).permutation(len(pairs.image))
            known, part = pairs.some(photos[:250]), photos[250:]
            bank = known.text if direction == "image" else known.image
            grid = GridOnPool.scan(pairs.some(part), direction, bank)
            won = grid.hits(np.arange(len(part)))
            hits[: len(won), part] += won
            asked[part] += 1
        records.append(
            {"gallery": f"Unsplash, {words[direction]}", **summarise_gallery(hits / asked)}
        )
    return records


def summarise_gallery(hits: Counts) -> Record:
    recalls = 100 * hits.mean(axis=1)
    best = find_best(hits)
    return {
        "uncorrected": round(float(recalls[0]), 2),
        "gains": (recalls[1:] - recalls[0]).round(3).tolist(),
        "best": best,
    }


# --- the tables --------------------------------------------------------------------------------


def tables(grids: list[Record], galleries: list[Record]) -> str:
    """All that these results say, as Markdown."""
    parts = [best_table(grids), alpha_table(grids), k_table(grids), transfer_table(grids)]
    return "\n\n".join([*parts, recall_table(grids), gallery_table(galleries)])


def gains_of(grid: Record, k: int, split: str) -> Counts:
    """Gains in R@k over no correction, shape (n_k, n_alpha)."""
    recalls = np.array(grid["recalls"][split][RECALLS.index(k)])
    return np.asarray((recalls[1:] - recalls[0]).reshape(len(KS), len(ALPHAS)))


def mean_gains(grid: Record, k: int = 1) -> Counts:
    """The same, the mean of validation and test."""
    return (gains_of(grid, k, "val") + gains_of(grid, k, "test")) / 2


def words_of(cell: tuple[int, float]) -> str:
    return f"k = {cell[0]}, α = {cell[1]:g}"


def best_cell(gains: Counts) -> tuple[int, float]:
    return cell_of(int(gains.argmax()))


def spread_columns(best: Record) -> list[str]:
    alpha, reference_k = best["alpha"], best["reference_k"]
    return [
        words_of(best["cell"]),
        f"{alpha[1]:g} ({alpha[0]:g}–{alpha[2]:g})",
        f"{reference_k[1]} ({reference_k[0]}–{reference_k[2]})",
    ]


def best_table(grids: list[Record]) -> str:
    rows = []
    for grid in grids:
        cells = (words_of(best_cell(gains_of(grid, 1, split))) for split in ("val", "test"))
        rows.append([NAMES[grid["task"]], *cells, *spread_columns(grid["best"])])
    columns = ["retrieval", "best on validation", "best on test", "best on both"]
    columns += ["best α, photos drawn anew", "best k, photos drawn anew"]
    return (
        "### Where the best cell lies\n\nBy R@1. The last columns draw the 2,000 photos of both "
        f"splits anew {N_RESAMPLES:,} times: median (middle 80 %).\n\n" + table(columns, rows)
    )


def alpha_table(grids: list[Record]) -> str:
    rows = []
    for grid in grids:
        gains = mean_gains(grid)
        for k in (2, 8, 32, 128, 512):
            values = gains[KS.index(k)]
            cells = [points(gain) for gain in values]
            cells[int(values.argmax())] = f"**{cells[int(values.argmax())]}**"
            rows.append([NAMES[grid["task"]], str(k), *cells])
    columns = ["retrieval", "k", *(f"α = {alpha:g}" for alpha in ALPHAS)]
    return (
        "### Along α\n\nGain in R@1 points, mean of validation and test; the best of each row "
        "is bold.\n\n" + table(columns, rows)
    )


def k_table(grids: list[Record]) -> str:
    rows = []
    for grid in grids:
        gains = mean_gains(grid)
        for alpha in (0.5, 0.75):
            values = gains[:, ALPHAS.index(alpha)]
            rows.append([NAMES[grid["task"]], f"{alpha:g}", *map(points, values)])
    columns = ["retrieval", "α", *(f"k = {k}" for k in KS)]
    return "### Along k\n\nGain in R@1 points, mean of validation and test.\n\n" + table(
        columns, rows
    )


def transfer_table(grids: list[Record]) -> str:
    by_task = {grid["task"]: grid for grid in grids}
    rows = []
    for task, other in (("image", "text"), ("text", "image")):
        row = [NAMES[task]]
        for source in (task, other):
            cell = best_cell(gains_of(by_task[source], 1, "val"))
            gains = gains_of(by_task[task], 1, "test")
            row += [words_of(cell), points(gains[KS.index(cell[0]), ALPHAS.index(cell[1])])]
        rows.append(row)
    columns = ["tested on", "its own best on validation", "gain", "the other's", "gain "]
    gentle = slice(0, ALPHAS.index(0.75) + 1)
    image, text = (mean_gains(by_task[task])[:, gentle] for task in ("image", "text"))
    agreement = np.corrcoef(ranks(image), ranks(text))[0, 1]
    return (
        "### From one direction to the other\n\nGain in R@1 points on test. Over the "
        f"{image.size} cells with α up to 0.75 the two directions' gains have a rank correlation "
        f"of {agreement:.2f}.\n\n" + table(columns, rows)
    )


def ranks(values: Counts) -> Counts:
    return values.ravel().argsort().argsort().astype(np.float64)


def recall_table(grids: list[Record]) -> str:
    rows = []
    for grid in grids:
        row = [NAMES[grid["task"]], words_of(best_cell(gains_of(grid, 1, "val")))]
        for target in (1, 5, 10):
            cell = best_cell(gains_of(grid, target, "val"))
            place = KS.index(cell[0]), ALPHAS.index(cell[1])
            asked = RECALLS if target == 1 else (target,)
            row += [points(gains_of(grid, k, "test")[place]) for k in asked]
        rows.append(row)
    columns = ["retrieval", "best R@1 on validation", "R@1", "R@5", "R@10"]
    columns += ["R@5 if tuned for it", "R@10 if tuned for it"]
    return "### What tuning for R@1 does to R@5 and R@10\n\nGains in points on test.\n\n" + table(
        columns, rows
    )


def gallery_table(galleries: list[Record]) -> str:
    rows = []
    for gallery in galleries:
        gains = np.array(gallery["gains"]).reshape(len(KS), len(ALPHAS))
        gentle, strong = gains[KS.index(8), 0], gains[KS.index(128), ALPHAS.index(0.75)]
        row = [gallery["gallery"], f"{gallery['uncorrected']:.2f}", points(gains.max())]
        rows.append([*row, *spread_columns(gallery["best"]), points(gentle), points(strong)])
    columns = ["gallery", "R@1 without correction", "best gain", "best cell"]
    columns += ["best α, photos drawn anew", "best k, photos drawn anew"]
    columns += ["gain at k = 8, α = 0.25", "gain at k = 128, α = 0.75"]
    return (
        "### Easier and harder searches\n\nFlickr8k: the same captions and bank, the 2,000 unseen "
        "photos cut into galleries of several sizes. Unsplash: CLIP, 250 photos and a bank of "
        "250.\n\n" + table(columns, rows)
    )
