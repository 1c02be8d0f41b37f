"""Times exact fits: the solvers `exact` and `auto`, compared with nnn-retrieval in one run.

There are three kinds of data: synthetic embeddings with a spectrum like Flickr8k's or a flat one
(5,000 items, 512 dimensions, 1,000 to 500,000 references), and, if available, Flickr8k itself
(8,091 photos, 65,469 captions of Flickr8k and COCO, 256 dimensions). Runs are interleaved in random
order, and the table has medians and their ratios.

    python benchmarks/exact.py [--small] [--runs 3] [--output FILE.json]    # about half an hour
    python benchmarks/exact.py --tables    # print the tables of the stored results
"""

import argparse
import contextlib
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import run_command
from real_sets import DATA, RESULTS, Floats, machine, table, what_is_missing

import nnnorm
from nnnorm.scoring import Products
from nnnorm.solvers import compute_means

OUTPUT = RESULTS / "exact.json"
KS = (10, 128, 512)
N_ITEMS, DIM = 5000, 512
SIZES = (1000, 10_000, 100_000, 500_000)
SOLVERS = ("exact", "auto")
PEER = "nnn-retrieval"
# Repeat up to this many times as often, while a median is this many times the fastest run.
MOST_ROUNDS, SCATTER = 3, 1.08
LARGE = 500_000  # with this many references or more, measure one k
# Other programs affect short jobs more, so these run more often.
MORE_RUNS = {1000: 20, 10_000: 7, 65_469: 5, 100_000: 3}


def make_falling(n_items: int, n_references: int, dim: int = DIM) -> tuple[Floats, Floats]:
    """Draw two levels of clusters, with a spectrum like Flickr8k's."""
    rng = np.random.default_rng(0)
    held = 1 - np.exp(-4 * (np.arange(dim + 1) / dim) ** 0.8)
    scale = np.sqrt(dim * np.diff(held)).astype(np.float32)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype(np.float32)
    broad, narrow, (lean,) = (
        scale * rng.standard_normal((n, dim), dtype=np.float32) for n in (60, 3000, 1)
    )
    parent, share = rng.integers(0, 60, 3000), rng.gamma(0.7, size=3000)

    def rows(n: int, pull: npt.NDArray[np.float64]) -> Floats:
        topic = rng.choice(3000, n, p=share / share.sum())
        made = broad[parent[topic]] + 0.8 * narrow[topic] + lean * pull.astype(np.float32)
        made += 0.8 * scale * rng.standard_normal((n, dim), dtype=np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True) @ turn

    items = rows(n_items, rng.gamma(2.0, 0.25, size=(n_items, 1)))
    return items, rows(n_references, np.full((n_references, 1), 0.6))


def make_flat(n_items: int, n_references: int) -> tuple[Floats, Floats]:
    """Draw 400 clusters with the same variance in all directions."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((400, DIM), dtype=np.float32)

    def rows(n: int, noise: float) -> Floats:
        made = np.float32(noise) * rng.standard_normal((n, DIM), dtype=np.float32)
        made += centres[rng.integers(0, 400, n)]
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return made

    return rows(n_items, 1.0), rows(n_references, 4.0)


def read_real(data: Path) -> tuple[Floats, Floats]:
    """Return all photos of Flickr8k as items, and captions of Flickr8k and COCO as references."""
    names = ("image", "caption", "coco_caption")
    image, caption, coco = (np.load(data / "flickr8k" / f"{name}.npy") for name in names)
    photos, captions, others = (
        np.asarray(nnnorm.open_embeddings(rows.reshape(-1, rows.shape[-1]), normalize=True))
        for rows in (image, caption, coco)
    )
    return photos, np.concatenate([captions, others])


def banks(is_small: bool, data: Path) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield name, items and references of every set."""
    n_items, sizes = (1000, (1000, 20_000)) if is_small else (N_ITEMS, SIZES)
    for name, make in (("falling", make_falling), ("flat", make_flat)):
        items, references = make(n_items, max(sizes))
        for n_references in sizes:
            yield name, items, references[:n_references]
    if is_small:
        return
    if reason := what_is_missing(data, "flickr8k"):
        print(f"Flickr8k is skipped: {reason}", file=sys.stderr)
        return
    yield "Flickr8k", *read_real(data)


def jobs(gallery: Floats, references: Floats, k: int) -> dict[str, Callable[[], Floats | None]]:
    """Return functions that compute m_k, by name; nnn-retrieval doesn't return its means."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints when it is imported
        from nnn import NNNRanker, NNNRetriever

    def peer() -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            NNNRanker(
                NNNRetriever(gallery.shape[1]),
                gallery,
                references,
                alternate_ks=k,
                alternate_weight=0.75,
                batch_size=256,
                use_gpu=False,
            )

    def by(solver: Any) -> Callable[[], Floats]:
        scores = Products(nnnorm.open_embeddings(gallery), nnnorm.open_embeddings(references))
        return lambda: compute_means(solver, scores, k)[0]

    return {**{solver: by(solver) for solver in SOLVERS}, PEER: peer}


def measure(gallery: Floats, references: Floats, k: int, n_runs: int) -> dict[str, Any]:
    """Interleave runs of all jobs; also compare their means with those of the whole product.

    If the times of a job vary, other programs disturbed it. Then more runs are added, and the
    medians are over all runs.
    """
    work = jobs(gallery, references, k)
    seconds: dict[str, list[float]] = {job: [] for job in work}
    means: dict[str, Any] = {}
    for run in range(MOST_ROUNDS * n_runs):
        if run % n_runs == 0 and run and not is_scattered(seconds):
            break
        for job in np.random.default_rng(run).permutation(list(work)).tolist():
            started = time.perf_counter()
            means[job] = work[job]()
            seconds[job].append(round(time.perf_counter() - started, 4))
    difference = max(float(np.abs(means[job] - means["exact"]).max()) for job in SOLVERS)
    return {"k": k, "seconds": seconds, "largest_difference": difference}


def is_scattered(seconds: dict[str, list[float]]) -> bool:
    """Return whether the median run of a job took much longer than its fastest."""
    return any(statistics.median(times) > SCATTER * min(times) for times in seconds.values())


def run(is_small: bool, n_runs: int, data: Path) -> list[dict[str, Any]]:
    rows = []
    for name, gallery, references in banks(is_small, data):
        n_references = len(references)
        for k in (128,) if n_references >= LARGE else KS:
            n = MORE_RUNS.get(n_references, 1) * n_runs
            row = {
                "data": name,
                "n_items": len(gallery),
                "n_references": n_references,
                "dim": gallery.shape[1],
                **measure(gallery, references, k, n),
            }
            rows.append(row)
            print(name, n_references, k, medians(row), file=sys.stderr)
    return rows


def medians(row: dict[str, Any]) -> dict[str, float]:
    return {job: statistics.median(times) for job, times in row["seconds"].items()}


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    head = [
        "data", "references", "exact, s", f"{PEER}, s", f"{PEER} / exact",
    ]  # fmt: skip
    lines: list[list[str]] = []
    for row in (row for row in results["rows"] if row["k"] == 128):
        median = medians(row)
        lines.append(
            [
                row["data"],
                f"{row['n_references']:,}",
                *(f"{median[job]:.3g}" for job in ("exact", PEER)),
                f"{median[PEER] / median['exact']:.1f}",
            ]
        )
    sizes: dict[str, dict[str, None]] = {}
    for row in results["rows"]:
        size = f"{row['n_items']:,} items, {row['dim']} dimensions"
        sizes.setdefault(size, {})[row["data"]] = None
    cpu, versions = results["machine"], results["versions"]
    return (
        f"{table(head, lines)}\n\n"
        + "; ".join(f"{', '.join(names)}: {size}" for size, names in sizes.items())
        + f". k = 128. Medians of interleaved runs. {cpu['cpu']}, {cpu['cores']} cores, numpy "
        f"{versions['numpy']}, torch {versions['torch']}, {PEER} {versions[PEER]}."
    )


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", module="nnn")
    about = machine()
    about["versions"] |= {name: version(name) for name in ("torch", PEER)}
    return {"rows": run(options.small, options.runs, options.data), "seed": 0, **about}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="use 1,000 items, for a minute")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    return run_command(parser, OUTPUT, measure_all, tables, "speed.md")


if __name__ == "__main__":
    sys.exit(main())
