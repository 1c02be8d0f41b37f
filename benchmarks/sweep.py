"""Times a whole grid, relative to one fit and one evaluation.

Synthetic clustered embeddings at the size of COCO (25,000 queries, 5,000 items, 113,000 references,
22,600 gallery-side references, 512 dimensions; `--small` for a tenth of each). NNN's 110
settings are compared with one NNN fit + one evaluation, DBNorm's 441 with one DualIS fit + one
evaluation, in interleaved runs. The table has ratios of medians. "Naive" is the time to fit and
evaluate every setting separately, computed from the same medians.

    python benchmarks/sweep.py [--small] [--runs 3] [--output FILE.json]
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import run_command

import nnnorm
from nnnorm.evaluation.metrics import evaluate
from nnnorm.evaluation.tuning import tune
from nnnorm.methods import PAPER_GRID, find_method

Floats = npt.NDArray[np.float32]
RESULTS = Path(__file__).parent / "results" / "sweep.json"


def make_rows(
    n_items: int, n_references: int, n_bank: int, dim: int, seed: int
) -> dict[str, Floats]:
    """Draw items in 400 clusters; queries, references and hubs share a direction."""
    rng = np.random.default_rng(seed)
    centres, lean = rng.normal(size=(400, dim)), 0.8 * rng.normal(size=(1, dim))

    def items(n: int) -> npt.NDArray[np.float64]:
        return centres[rng.integers(0, 400, n)] + 0.7 * rng.normal(size=(n, dim))

    def unit(rows: npt.NDArray[np.float64], noise: float) -> Floats:
        rows = rows + noise * rng.normal(size=rows.shape)
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def pull(n: int) -> npt.NDArray[np.float64]:
        return lean * rng.gamma(2.0, 0.2, size=(n, 1))

    meaning = items(n_items)
    return {
        "gallery": unit(meaning + pull(n_items), 0.8),
        "queries": unit(np.repeat(meaning, 5, axis=0) + 0.6 * lean, 4.0),
        "references": unit(items(n_references) + 0.6 * lean, 4.0),
        "gallery_references": unit(items(n_bank) + pull(n_bank), 0.8),
    }


def make_problem(scale: float, dim: int, seed: int) -> dict[str, Any]:
    sizes = [int(n * scale) for n in (5000, 113_000, 22_600)]
    arrays = make_rows(*sizes, dim, seed)
    opened = {name: nnnorm.open_embeddings(rows, name=name) for name, rows in arrays.items()}
    return {**opened, "truth": np.repeat(np.arange(sizes[0]), 5)}


def jobs(problem: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    gallery, references = problem["gallery"], problem["references"]
    bank = {"gallery_references": problem["gallery_references"]}
    dual = nnnorm.DualSoftmax(beta_query=50.0, beta_gallery=5.0)
    coarse = {"dualis": find_method("dualis")[1].grid[0]}  # type: ignore[index]
    known = {"queries": problem["queries"], "truth": problem["truth"]}
    return {
        "nnn fit": lambda: nnnorm.NNN.paper().fit(gallery, references),
        "nnn evaluation": lambda: evaluate(
            problem["queries"],
            gallery,
            nnnorm.NNN.paper().fit_scores(_flat(gallery)),
            truth=problem["truth"],
        ),
        "nnn grid": lambda: tune(gallery, references, grids={"nnn": PAPER_GRID}, **known),
        "dualis fit": lambda: dual.fit(gallery, references, **bank),
        "dualis grid": lambda: tune(
            gallery, references, **known, methods=["dualis"], grids=coarse, **bank
        ),
    }


def _flat(gallery: nnnorm.embeddings.Embeddings) -> Floats:
    """Values that take no time to fit, so that only the evaluation is timed."""
    return np.zeros((len(gallery), 128), dtype=np.float32)


def measure(problem: dict[str, Any], n_runs: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    times: dict[str, list[float]] = {name: [] for name in jobs(problem)}
    n_settings: dict[str, int] = {}
    for run in range(n_runs):
        for name, job in jobs(problem).items():
            started = time.perf_counter()
            result = job()
            times[name].append(round(time.perf_counter() - started, 3))
            if name.endswith("grid"):
                n_settings[name] = len(result.grid)
            print(f"run {run + 1}: {name} {times[name][-1]:.2f} s", file=sys.stderr)
    return times, n_settings


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    median = {name: statistics.median(times) for name, times in results["seconds"].items()}
    lines = [
        "| grid | settings | one fit + one evaluation, s | whole grid, s | ratio | naive loop, s |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for method, label in (("nnn", "NNN"), ("dualis", "DBNorm (DualIS)")):
        once = median[f"{method} fit"] + median["nnn evaluation"]
        grid, n_settings = median[f"{method} grid"], results["n_settings"][f"{method} grid"]
        lines.append(
            f"| {label} | {n_settings} | {once:.2f} | {grid:.2f} | {grid / once:.2f} "
            f"| {n_settings * once:,.0f} |"
        )
    sizes = results["sizes"]
    lines += [
        "",
        f"{sizes['queries']:,} queries, {sizes['gallery']:,} items, {sizes['references']:,} "
        f"past queries, {sizes['gallery_references']:,} past items (DualIS), {sizes['dim']} "
        f"dimensions. Medians of {results['runs']} runs, {results['machine']}, "
        f"numpy {results['numpy']}.",
    ]
    return "\n".join(lines)


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    problem = make_problem(0.1 if arguments.small else 1.0, 512, seed=0)
    seconds, n_settings = measure(problem, arguments.runs)
    names = ("queries", "gallery", "references", "gallery_references")
    return {
        "sizes": {**{name: len(problem[name]) for name in names}, "dim": problem["gallery"].dim},
        "runs": arguments.runs,
        "seconds": seconds,
        "n_settings": n_settings,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "nnnorm": nnnorm.__version__,
        "seed": 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="use a tenth of each size")
    parser.add_argument("--runs", type=int, default=3)
    return run_command(parser, RESULTS, measure_all, tables)


if __name__ == "__main__":
    sys.exit(main())
