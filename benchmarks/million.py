"""A million items against half a million references: the approximate solver, and how it grows.

Embeddings with two levels of topics and a falling spectrum are written as float16 and mapped. The
exact fit is timed on a sample of the gallery and scaled; the approximate fit is run in full, from
opened files to bias, fingerprints included, on banks of several sizes. Memory is what the process
holds besides mapped files, at its peak.

    python benchmarks/million.py [--small] [--output FILE.json] [--plot FILE.png]
    python benchmarks/million.py --tables    # print the stored results
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from memory import Peak
from nnnorm.means.approximate import residual
from nnnorm.scoring.blocks import Products
from nnnorm.scoring.topk import top_means
from pictures import save_both
from real_sets import RESULTS, machine, table

import nnnorm

OUTPUT = RESULTS / "million.json"
PLOT = RESULTS.parents[1] / "docs" / "images" / "million.png"
BUDGET = 2 * 2**30
K, DIM = 128, 512


def write_embeddings(path: Path, n: int, *, is_item: bool, seed: int) -> None:
    """Topics of topics; references lean one way, items more or less so: those are the hubs."""
    rng = np.random.default_rng(0)
    scale = (np.arange(1, DIM + 1) ** -0.5).astype(np.float32)
    scale /= np.sqrt((scale**2).mean())
    broad = scale * rng.standard_normal((60, DIM), dtype=np.float32)
    narrow = scale * rng.standard_normal((3000, DIM), dtype=np.float32)
    parent, lean = rng.integers(0, 60, 3000), rng.standard_normal(DIM, dtype=np.float32)
    share = rng.gamma(0.7, size=3000)
    rng = np.random.default_rng(seed)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(n, DIM))
    for start in range(0, n, 50_000):
        size = min(50_000, n - start)
        topic = rng.choice(3000, size, p=share / share.sum())
        rows = broad[parent[topic]] + 0.8 * narrow[topic]
        rows += 0.8 * scale * rng.standard_normal((size, DIM), dtype=np.float32)
        pull = rng.gamma(2.0, 0.25, size=(size, 1)) if is_item else np.full((size, 1), 0.6)
        rows += lean * pull.astype(np.float32)
        out[start : start + size] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    out.flush()


def measure(folder: Path, n_items: int, banks: list[int], n_sample: int) -> dict[str, Any]:
    write_embeddings(folder / "gallery.npy", n_items, is_item=True, seed=1)
    write_embeddings(folder / "bank.npy", max(banks), is_item=False, seed=2)
    stored = np.load(folder / "bank.npy", mmap_mode="r")
    some = np.sort(np.random.default_rng(3).choice(n_items, n_sample, replace=False))
    runs = []
    for n_references in sorted(banks):
        gallery = nnnorm.open_embeddings(folder / "gallery.npy", name="gallery")
        references = nnnorm.open_embeddings(stored[:n_references], name="references")
        started = time.perf_counter()
        sample = Products(gallery, references, memory_budget=BUDGET).some_rows(some)
        exact = top_means(sample, K, memory_budget=BUDGET)
        exact_seconds = (time.perf_counter() - started) * n_items / n_sample
        method = nnnorm.NNN(reference_k=K, alpha=0.75)
        with Peak() as peak:
            started = time.perf_counter()
            bias = method.fit(gallery, references, solver="approximate", memory_budget=BUDGET)
            seconds = time.perf_counter() - started
        run = {
            "n_references": n_references,
            "exact_seconds": round(exact_seconds, 1),
            "seconds": round(seconds, 2),
            "residual": round(residual(bias.values[some], exact), 4),
            "error_told": round(bias.params["error"], 4),
            "megabytes": round(peak.extra_mb),
        }
        print(run, file=sys.stderr)
        runs.append(run)
    sizes, seconds_of = ([run[name] for run in runs] for name in ("n_references", "seconds"))
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds_of), 1)[0])
    return {"n_items": n_items, "runs": runs, "exponent": round(exponent, 3)}


def tables(results: dict[str, Any]) -> str:
    """The Markdown table of the stored results."""
    rows: list[list[Any]] = [
        [
            f"{run['n_references']:,}",
            f"{run['exact_seconds']:,.0f}",
            f"{run['seconds']:.1f}",
            f"{run['exact_seconds'] / run['seconds']:.0f}",
            f"{100 * run['residual']:.1f} %",
            f"{100 * run['error_told']:.1f} %",
            f"{run['megabytes']:,}",
        ]
        for run in results["runs"]
    ]
    head = [
        "references", "exact, s (scaled)", "approximate, s", "times faster",
        "residual", "error reported", "memory, MB",
    ]  # fmt: skip
    cpu = results["machine"]
    return (
        f"{table(head, rows)}\n\n{results['n_items']:,} items, {DIM} dimensions, k = {K}; time "
        f"grows as the bank to the power of {results['exponent']:.2f}. Memory is what was held "
        f"beside mapped files. {cpu['cpu']}, {cpu['cores']} cores, numpy "
        f"{results['versions']['numpy']}."
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Seconds against the size of the bank, exact and approximate, on two logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    sizes = np.array([run["n_references"] for run in results["runs"]])
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for name, label, colour in (
        ("exact_seconds", "exact (float32)", "#7f7f7f"),
        ("seconds", "approximate", "#0072b2"),
    ):
        seconds = np.array([run[name] for run in results["runs"]])
        slope, start = np.polyfit(np.log(sizes), np.log(seconds), 1)
        axes.plot(sizes, np.exp(start) * sizes**slope, "--", color=colour, linewidth=1)
        label = f"{label}: grows as the bank to the power of {slope:.2f}"
        axes.plot(sizes, seconds, "o", color=colour, markersize=7, label=label)
        for size, second in zip(sizes, seconds, strict=True):
            axes.annotate(
                f"{second:,.0f} s", (size, second), (0, -16), textcoords="offset points",
                ha="center", fontsize=9, color=colour,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="references", ylabel="seconds")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(sizes[0] * 0.85, sizes[-1] * 1.15)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.7, high * 2.5)
    axes.set_yticks([t for t in (1, 10, 100, 1000, 10_000) if low < t < high])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"One fit of {results['n_items']:,} items", loc="left")
    FigureCanvasAgg(figure)
    save_both(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="50,000 items, smaller banks")
    parser.add_argument("--output", type=Path, help=f"JSON, such as {OUTPUT.name}")
    parser.add_argument("--plot", type=Path, help=f"PNG, such as {PLOT.name}")
    parser.add_argument("--folder", type=Path, help="for 1.6 GB of embeddings, for a while")
    parser.add_argument("--tables", action="store_true", help="print the stored results")
    options = parser.parse_args()
    if options.tables:
        stored = json.loads(OUTPUT.read_text(encoding="utf-8"))
        print(tables(stored))
        if options.plot:
            draw(stored, options.plot)
        return 0
    n_items, shrink = (50_000, 4) if options.small else (1_000_000, 1)
    banks = [n // shrink for n in (62_500, 125_000, 250_000, 500_000)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measured = measure(Path(folder), n_items, banks, 2000)
    results = {**measured, "k": K, "dim": DIM, "seed": 0, **machine()}
    print(tables(results))
    if options.plot:
        draw(results, options.plot)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
