"""Measures all cells of NNN's grid on Flickr8k, to check the paper's claims about k and α.

`flickr8k.py` runs this module. `measure_grid` counts R@1, R@5 and R@10 of all 110 cells on the
validation and the test split. Neighboring cells differ little, so the best cell is also found for
resampled photos. `vary_gallery` and `vary_model` make the search easier or harder, for the claim
about baseline scores.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from real_sets import Direction, Flickr8k, Floats, GridOnPool, Pairs, points, table

import nnnorm
from nnnorm.evaluation.comparison import Task
from nnnorm.evaluation.metrics import Evaluation, count_strip, open_truth
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

NAMES = {"image": "image, Flickr8k captions", "image-coco": "image, COCO captions", "text": "text"}


# --- the measurement ---------------------------------------------------------------------------


def count_hits(task: Task, references: Floats) -> Counts:
    """Return R@1, R@5 and R@10 hits per photo of every cell, shape (n_cells, 3, n_photos)."""
    queries, gallery = (nnnorm.open_embeddings(rows) for rows in (task.queries, task.gallery))
    truth = open_truth(task.truth, n_queries=len(queries), n_gallery=len(gallery))
    bank, grids = nnnorm.open_embeddings(references), {"nnn": PAPER_GRID}
    settings = make_settings(("none", "nnn"), gallery, bank, grids=grids)
    scores = nnnorm.ranking.score_matrix(queries, gallery)
    n_photos = min(len(queries), len(gallery))
    counts = np.empty((len(settings), len(RECALLS), n_photos))
    for count, setting in zip(counts, settings, strict=True):
        ranks = count_strip(scores - setting.correction(), truth, 0)
        evaluation = Evaluation.of_strips(truth, [ranks], len(gallery))
        for row, k in zip(count, RECALLS, strict=True):
            row[:] = evaluation.hits(k).reshape(n_photos, -1).mean(axis=1)
    return counts


def measure_grid(name: str, validation: Task, test: Task, references: Floats) -> Record:
    """Measure the whole grid on both splits, and its best cell for resampled photos."""
    splits = {"val": validation, "test": test}
    counts = {split: count_hits(task, references) for split, task in splits.items()}
    both = np.concatenate([count[:, 0] for count in counts.values()], axis=1)
    return {
        "task": name,
        "recalls": {  # percent; first "none", then every α for each k
            split: (100 * count.mean(axis=2)).round(3).T.tolist() for split, count in counts.items()
        },
        "best": find_best(both),
    }


def find_best(hits: Counts) -> Record:
    """Return the best cell of hits (n_cells, n_photos), "none" first, and its spread."""
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
    """Return (k, α) of a cell; its number doesn't count "none"."""
    return KS[number // len(ALPHAS)], ALPHAS[number % len(ALPHAS)]


def vary_gallery(flickr8k: Flickr8k) -> list[Record]:
    """Measure easier and harder searches: the 2,000 unseen photos in galleries of several sizes."""
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
    """Measure another model: one half of Unsplash is the bank, the other half the gallery."""
    records = []
    words = {"image": "texts find photos", "text": "photos find texts"}
    for direction in get_args(Direction):
        # The bank has fewer than 512 rows, so cells with k = 512 stay at zero and are never best.
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
    """Return the tables of these results as Markdown."""
    return f"{best_table(grids)}\n\n{gallery_table(galleries)}"


def gains_of(grid: Record, k: int, split: str) -> Counts:
    """Return gains in R@k over no correction, shape (n_k, n_alpha)."""
    recalls = np.array(grid["recalls"][split][RECALLS.index(k)])
    return np.asarray((recalls[1:] - recalls[0]).reshape(len(KS), len(ALPHAS)))


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
    columns += ["best α, photos resampled", "best k, photos resampled"]
    return (
        "### Best setting by R@1\n\nFor the last two columns, the 2,000 photos of both splits were "
        f"resampled {N_RESAMPLES:,} times: median (middle 80 %).\n\n" + table(columns, rows)
    )


def gallery_table(galleries: list[Record]) -> str:
    rows = []
    for gallery in galleries:
        gains = np.array(gallery["gains"]).reshape(len(KS), len(ALPHAS))
        gentle, strong = gains[KS.index(8), 0], gains[KS.index(128), ALPHAS.index(0.75)]
        row = [gallery["gallery"], f"{gallery['uncorrected']:.2f}", points(gains.max())]
        rows.append([*row, *spread_columns(gallery["best"]), points(gentle), points(strong)])
    columns = ["gallery", "R@1 without correction", "best gain", "best cell"]
    columns += ["best α, photos resampled", "best k, photos resampled"]
    columns += ["gain at k = 8, α = 0.25", "gain at k = 128, α = 0.75"]
    return (
        "### Easier and harder searches\n\nFor Flickr8k, the 2,000 photos of both splits are "
        "divided into galleries of several sizes. For Unsplash (CLIP), there are 250 items and "
        "250 past queries.\n\n" + table(columns, rows)
    )
