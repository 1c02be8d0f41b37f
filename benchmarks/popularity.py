"""Measures clicks with the correction, under traffic that follows Zipf's law.

The galleries are Flickr8k's 1,000 test photos and the shapes. A log has 6,000 queries: captions 0
to 3 of photos drawn by Zipf's law, with a little noise. Its first half is the past queries, and
their right items are the clicks. The second half tunes the weight of the popularity. Test queries
are captions 4 with the same popularity, and the tables have their gains in R@1.

    python benchmarks/popularity.py             # measure, write JSON, print the tables
    python benchmarks/popularity.py --tables    # print the tables of the stored JSON
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from cases import EXPONENTS, N_LOG, as_floats
from real_sets import RESULTS, Flickr8k, Floats, points, run_benchmark, table

import nnnorm
from nnnorm.datasets import load_shapes

OUTPUT = RESULTS / "popularity.json"
SEEDS = (100, 101, 102, 103, 104)
WEIGHTS = (0.02, 0.05)


def read_items(data: Path) -> dict[str, tuple[Floats, Floats]]:
    """Return five captions of every item, and the items."""
    flickr8k, shapes = Flickr8k(data / "flickr8k"), load_shapes()
    test = flickr8k.pairs.some(flickr8k.images("test"))
    return {
        "flickr8k": (as_floats(test.text).reshape(len(test.image), 5, -1), as_floats(test.image)),
        "shapes": (shapes.queries.reshape(len(shapes.gallery), 5, -1), shapes.gallery),
    }


def measure(data: Path, seed: int) -> dict[str, Any]:
    warnings.simplefilter("ignore", nnnorm.NNNormWarning)
    cells = []
    for name, (captions, gallery) in read_items(data).items():
        n_items = len(gallery)
        for exponent in EXPONENTS:
            rng = np.random.default_rng([seed, 8, round(10 * exponent)])
            traffic = (1 / np.arange(1, n_items + 1) ** exponent)[rng.permutation(n_items)]
            traffic /= traffic.sum()
            items = rng.choice(n_items, N_LOG, p=traffic)
            log = captions[items, rng.integers(0, 4, N_LOG)]
            noise = as_floats(rng.normal(size=log.shape))
            log = as_floats(log + np.float32(np.sqrt(1 / 0.95**2 - 1)) * noise)
            half = N_LOG // 2
            clicks = np.bincount(items[:half], minlength=n_items)
            bias = nnnorm.NNN().fit(gallery, log[:half])
            tuning = nnnorm.tune(
                gallery, log[:half], queries=log[half:], truth=items[half:], clicks=clicks
            )
            scores = captions[:, 4] @ gallery.T

            def recall(correction: Any, scores: Floats = scores, traffic: Any = traffic) -> float:
                hits = (scores - correction).argmax(axis=1) == np.arange(len(scores))
                return float(100 * (hits * traffic).sum())

            biases = {"`NNN()`": bias.correction}
            biases |= {
                f"with clicks, weight {w:g}": (
                    bias + nnnorm.Popularity(clicks, weight=w)
                ).correction
                for w in WEIGHTS
            }
            biases["tuned, with clicks"] = tuning.bias.correction
            without = recall(0)
            gains = {label: round(recall(b) - without, 4) for label, b in biases.items()}
            where = {"set": name, "exponent": exponent, "seed": seed}
            weight = tuning.popularity.weight if tuning.popularity else 0
            cells.append({**where, "without": round(without, 4), "weight": weight, "gains": gains})
            print(f"{name} {exponent} seed {seed}: {gains}", file=sys.stderr)
    return {"cells": cells}


def tables(results: dict[str, Any]) -> str:
    """Return mean gains over the seeds, and the weights that were chosen."""
    parts, cells = [], results["cells"]
    for name, title in (("flickr8k", "Flickr8k"), ("shapes", "Shapes")):
        rows = []
        some = {e: [c for c in cells if (c["set"], c["exponent"]) == (name, e)] for e in EXPONENTS}
        for label in cells[0]["gains"]:
            means = [np.mean([c["gains"][label] for c in some[e]]) for e in EXPONENTS]
            rows.append([label, *(points(float(mean)) for mean in means)])
        chosen = [np.median([c["weight"] for c in some[e]]) for e in EXPONENTS]
        rows.append(["weight that `tune` chose (median)", *(f"{w:g}" for w in chosen)])
        columns = [f"{title}, Zipf exponent", *(f"{e:g}" for e in EXPONENTS)]
        parts.append(table(columns, rows))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    return run_benchmark(
        "Measure clicks with the correction.",
        OUTPUT,
        measure,
        tables,
        seeds=SEEDS,
        sets=("flickr8k",),
    )


if __name__ == "__main__":
    sys.exit(main())
