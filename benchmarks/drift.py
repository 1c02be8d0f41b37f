"""Measures `nnnorm drift` with more and more queries from another source.

The gallery is Flickr8k's test photos, and the past queries are one caption per training photo. Of
64 or 256 queries, a share are COCO captions and the others Flickr8k's test captions. In other rows,
past queries and queries come from the same or opposite ends of the first principal axis.

    python benchmarks/drift.py             # measure, write JSON, print the tables
    python benchmarks/drift.py --tables    # print the tables of the stored JSON
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from cases import as_floats
from real_sets import RESULTS, Flickr8k, Floats, run_benchmark, table

from nnnorm import Corrector
from nnnorm.evaluation import measure_drift

OUTPUT = RESULTS / "drift.json"
SEEDS = tuple(range(100, 110))
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SIZES = (64, 256)
FACTS = ("verdict", "z", "agreement", "hub_share_uncorrected", "hub_share", "hub_share_refitted")


def measure(data: Path, seed: int) -> dict[str, Any]:
    flickr8k = Flickr8k(data / "flickr8k")
    train = as_floats(flickr8k.pairs.some(flickr8k.images("train")).text)
    test = flickr8k.pairs.some(flickr8k.images("test"))
    gallery, captions = as_floats(test.image), as_floats(test.text)
    rng = np.random.default_rng([seed, 9])
    own = captions[::5][rng.permutation(len(gallery))]
    coco = as_floats(flickr8k.coco[rng.permutation(len(flickr8k.coco))[: max(SIZES)]])
    corrector = Corrector.fit(gallery, train[::5])
    cells = []

    def measure_case(case: str, corrector: Corrector, queries: Floats) -> None:
        found = measure_drift(corrector, queries).to_dict()
        cells.append(
            {"case": case, "n": len(queries), "seed": seed, **{f: found[f] for f in FACTS}}
        )

    for size in SIZES:
        for share in SHARES:
            n_other = round(share * size)
            mixed = np.concatenate([coco[:n_other], own[: size - n_other]])
            measure_case(f"{100 * share:g} % COCO", corrector, mixed)
    axis = np.linalg.eigh(np.cov(train.T))[1][:, -1]
    ends = [np.array_split(rows[np.argsort(rows @ axis)], 5) for rows in (train, captions)]
    narrow = Corrector.fit(gallery, ends[0][0])
    for size in SIZES:
        same, other = (ends[1][end][rng.permutation(1000)[:size]] for end in (0, 4))
        measure_case("both from the same end", narrow, same)
        measure_case("queries from the other end", narrow, other)
    return {"cells": cells}


def tables(results: dict[str, Any]) -> str:
    """Return counts of the results and medians over the seeds, for each number of queries."""
    parts = []
    for size in SIZES:
        rows = []
        some = [cell for cell in results["cells"] if cell["n"] == size]
        for case in dict.fromkeys(cell["case"] for cell in some):
            cells = [cell for cell in some if cell["case"] == case]
            verdicts = [
                str(sum(cell["verdict"] == verdict for cell in cells))
                for verdict in ("fine", "refit soon", "refit now")
            ]
            hubs = " / ".join(f"{100 * _median(cells, fact):.0f}" for fact in FACTS[3:])
            agreement = [cell for cell in cells if cell["agreement"] is not None]
            agrees = f"{_median(agreement, 'agreement'):.2f}" if agreement else "–"
            z = f"{_median(cells, 'z'):.1f}"
            rows.append([case, *verdicts, *(c.replace("-", "−") for c in (z, agrees)), hubs])
        columns = [f"{size} queries", "fine", "soon", "now", "z", "agreement", "hits on hubs, %"]
        parts.append(table(columns, rows))
    return "\n\n".join(parts) + "\n"


def _median(cells: list[dict[str, Any]], fact: str) -> float:
    return float(np.median([cell[fact] for cell in cells]))


def main() -> int:
    return run_benchmark("Measure drift.", OUTPUT, measure, tables, seeds=SEEDS, sets=("flickr8k",))


if __name__ == "__main__":
    sys.exit(main())
