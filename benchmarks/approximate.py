"""Time and error of approximate biases with many past queries.

The embeddings are synthetic: 20,000 items, 200,000 references, 256 dimensions, k = 128 (`--small`:
a tenth of the items and a fifth of the references). They have two levels of topics and a spectrum
like Flickr8k's. Queries of a topic are on one side of it, so there are hubs. All methods are timed
in interleaved runs. Their times include building an index and fitting a regression. On
Flickr8k, the default of `solver="approximate"` is compared with the exact bias over ten seeds.

    python benchmarks/approximate.py             # about four minutes on two free cores
    python benchmarks/approximate.py --tables    # print the tables of the stored JSON
    python benchmarks/approximate.py --small     # seconds; stores and draws nothing
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import faiss
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
    Ints,
    Pairs,
    machine,
    points,
    residual,
    table,
    to_json,
    what_is_missing,
)

import nnnorm
from nnnorm import solvers
from nnnorm.embeddings import Embeddings
from nnnorm.evaluation.metrics import open_truth
from nnnorm.evaluation.sweep import sweep_hits
from nnnorm.report import plots
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, top_means
from nnnorm.solvers import (
    InvertedLists,
    ListModel,
    choose_quality,
    learn_lists,
    sample_means,
)

OUTPUT = RESULTS / "approximate.json"
PLOT = ROOT / "docs" / "images" / "approximate.png"
SEED = 2024
N_RUNS = 3
N_SEEDS = 10
K, ALPHA = 128, 0.75
N_TEACHERS = 512
EFFORTS = {"ivf": (8, 32), "ivf-brief": (8, 32), "graph": (128, 256)}
QUALITIES = (4, 8, 16, 32)
BOTH = (8, 16)  # also without the regression, and on half of the bank
LINKS = 8  # of a point in the graph, each way; twice as many take twice as long to build


# --- synthetic embeddings ----------------------------------------------------------------------


class Problem(NamedTuple):
    """A gallery, a bank of past queries, and new queries with their right items."""

    gallery: Embeddings
    references: Embeddings
    queries: Embeddings
    asked: Ints


def make_problem(n_items: int, n_references: int, dim: int = 256) -> Problem:
    """Draw items and queries of 1,000 topics in 20 fields, queries on one side of their field."""
    rng = np.random.default_rng(SEED)
    scale = ((1 + (16 * np.arange(dim) / dim) ** 2) ** -0.5).astype(np.float32)

    def noise(n: int) -> Floats:
        return rng.standard_normal((n, dim), dtype=np.float32) * scale

    def unit(rows: Floats) -> Embeddings:
        return nnnorm.open_embeddings(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    field = rng.integers(0, 20, size=1000)
    topics = noise(20)[field] + 0.8 * noise(1000)
    leans = noise(20)[field]
    topic, past = rng.integers(0, 1000, size=n_items), rng.integers(0, 1000, size=n_references)
    items = topics[topic] + 0.8 * noise(n_items)
    asked = np.sort(rng.permutation(n_items)[: n_items // 2])
    queries = items[asked] + leans[topic[asked]] + 1.7 * noise(len(asked))
    references = (topics + leans)[past] + 0.8 * noise(n_references) + 1.7 * noise(n_references)
    return Problem(unit(items), unit(references), unit(queries), asked)


# --- the methods -------------------------------------------------------------------------------


class Way(NamedTuple):
    """One method with one setting: seconds to build shared parts, and a function that finishes."""

    family: str
    setting: str
    built: float
    finish: Callable[[], Floats]


FAMILIES = {
    "exact": "exact",
    "sample": "random sample",
    "moments": "random sample and moments",
    "ivf": "Faiss IVF",
    "ivf-brief": "Faiss IVF, trained briefly",
    "graph": "graph (Faiss HNSW)",
    "bare": "nnnorm, lists alone",
    "half": "nnnorm, lists on half of the past queries",
    "lists": "nnnorm",
}
# The name of each family's setting.
SETTINGS = {
    "exact": "",
    "sample": "share",
    "moments": "share",
    "ivf": "nprobe",
    "ivf-brief": "nprobe",
    "graph": "efSearch",
    "bare": "quality",
    "half": "quality",
    "lists": "quality",
}


# Color, marker and name in the plot, and the point and offset of the name; nnnorm is drawn last.
LOOKS = {
    "sample": ("#8A8A8A", "o", "random sample of past queries", 0, (10, -2)),
    "ivf-brief": (plots.ORANGE, "s", "Faiss IVF", -1, (-4, -18)),
    "lists": (plots.BLUE, "D", "nnnorm, by quality", 1, (-135, -5)),
}


class Faiss:
    """Faiss's indexes of the bank, built once, because that takes longer than the rest of a run."""

    def __init__(self, references: Embeddings) -> None:
        rows = np.array(references.rows(0, len(references)))
        n, dim = rows.shape
        self.indexes: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        for name in ("ivf", "ivf-brief", "graph"):
            started = time.perf_counter()
            if name == "graph":
                index = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_INNER_PRODUCT)
            else:
                # As in the paper, or with as few lists, rows and rounds as nnnorm.
                is_brief = name == "ivf-brief"
                n_lists = round((2 if is_brief else 4) * n**0.5)
                quantizer, metric = faiss.IndexFlatIP(dim), faiss.METRIC_INNER_PRODUCT
                index = faiss.IndexIVFFlat(quantizer, dim, n_lists, metric)
                index.cp.min_points_per_centroid = 1
                if is_brief:
                    index.cp.niter, index.cp.max_points_per_centroid = 5, 16
                index.train(rows)
            index.add(rows)
            self.indexes[name] = index
            self.seconds[name] = time.perf_counter() - started


def ways(problem: Problem, indexes: Faiss, seed: int) -> Iterator[Way]:
    """Yield every method with its settings; `finish` does the work."""
    gallery, references = problem.gallery, problem.references
    yield Way("exact", "", 0.0, lambda: top_means(Products(gallery, references), K))
    for part in (5, 15, 50):
        for family in ("sample", "moments"):
            finish = partial(by_sample, problem, 1 / part, seed, with_moments=family == "moments")
            yield Way(family, f"1/{part}", 0.0, finish)
    for family, index in indexes.indexes.items():
        for effort in EFFORTS[family]:
            finish = partial(by_index, problem, index, effort)
            yield Way(family, str(effort), indexes.seconds[family], finish)
    for quality in QUALITIES:
        yield Way("lists", str(quality), 0.0, partial(by_lists, problem, quality, seed))
        if quality in BOTH:
            yield Way("half", str(quality), 0.0, partial(by_half, problem, quality, seed))
    for quality in BOTH:
        started = time.perf_counter()
        bank = make_lists(problem, references, quality, np.random.default_rng(seed))
        seconds = time.perf_counter() - started
        yield Way("bare", str(quality), seconds, partial(by_bare_lists, problem, bank, quality))


def by_sample(problem: Problem, share: float, seed: int, *, with_moments: bool) -> Floats:
    """Compute m_k with a random part of the bank, and a k that is smaller by the same factor."""
    rng = np.random.default_rng(seed)
    gallery, references = problem.gallery, problem.references
    some = np.sort(rng.permutation(len(references))[: round(share * len(references))])
    sample = nnnorm.open_embeddings(references.take(some))
    values = prefix_means(Products(gallery, sample), K * share)
    if not with_moments:
        return values
    columns = [values, *moments(gallery, references), *moments(gallery, sample)]
    return learned(problem, values, np.stack(columns, axis=1), rng)


def prefix_means(scores: Products, k: float) -> Floats:
    """Return the mean of the k best of every row; if k isn't whole, interpolate."""
    whole = int(k)
    lower, upper = top_means(scores, whole), top_means(scores, whole + 1)
    return lower + np.float32(k - whole) * (upper - lower)


def moments(gallery: Embeddings, bank: Embeddings) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of every item's scores, without computing the scores."""
    total, square = np.zeros(bank.dim), np.zeros((bank.dim, bank.dim))
    for _, block in bank.blocks():
        total += block.sum(axis=0)
        square += block.T @ block
    mean = (total / len(bank)).astype(np.float32)
    spread = (square / len(bank)).astype(np.float32) - np.outer(mean, mean)
    items = gallery.rows(0, len(gallery))
    return items @ mean, np.sqrt(np.maximum(((items @ spread) * items).sum(axis=1), 0))


def learned(problem: Problem, values: Floats, features: Floats, rng: np.random.Generator) -> Floats:
    """Add the prediction of a regression on features, fitted on the exact values of some items."""
    teachers = np.sort(rng.permutation(len(values))[:N_TEACHERS])
    scores = Products(problem.gallery, problem.references).some_rows(teachers)
    exact = top_means(scores, K)
    missed = exact - values[teachers]
    weights, _ = solvers._learn_missed(features[teachers], missed, rng)
    values = values + solvers._predict(weights, features).astype(np.float32)
    values[teachers] = exact
    return values


def by_index(problem: Problem, index: Any, effort: int) -> Floats:
    """Return the mean of the scores that Faiss finds; items with fewer than k are exact."""
    gallery = problem.gallery
    if hasattr(index, "hnsw"):
        index.hnsw.efSearch = effort
    else:
        index.nprobe = effort
    found, ids = index.search(np.array(gallery.rows(0, len(gallery))), K)
    means = found.mean(axis=1, dtype=np.float64).astype(np.float32)
    return with_exact(problem, means, np.flatnonzero((ids < 0).any(axis=1)))


def with_exact(problem: Problem, values: Floats, items: Ints) -> Floats:
    """Compute the values of items exactly if too few references were found."""
    if len(items):
        scores = Products(problem.gallery, problem.references).some_rows(items)
        values[items] = top_means(scores, K)
    return values


def by_lists(problem: Problem, quality: int, seed: int) -> Floats:
    """Return the means of `solver="approximate"`."""
    products = Products(problem.gallery, problem.references)
    model = learn(products, quality, seed)
    return top_means(products, K) if model is None else model.means(products)[0]


def learn(products: Products, quality: int, seed: int) -> ListModel | None:
    return learn_lists(products, K, quality, sample_means(products, K, seed=seed), seed=seed)


def make_lists(
    problem: Problem, references: Embeddings, quality: int, rng: np.random.Generator
) -> Any:
    n_lists = solvers._count_lists(len(problem.gallery), len(references), quality)
    return InvertedLists(references, n_lists, rng, DEFAULT_MEMORY_BUDGET)


def by_bare_lists(problem: Problem, bank: Any, quality: int) -> Floats:
    """Return the same without the regression: the mean of the scores that were found."""
    means, _, n_candidates = probe(problem, bank, K, quality)
    return with_exact(problem, means, np.flatnonzero(n_candidates < K))


def by_half(problem: Problem, quality: int, seed: int) -> Floats:
    """Use lists over every second reference, k/2, and a regression fitted on the whole bank."""
    rng = np.random.default_rng(seed)
    references = problem.references
    some = np.sort(rng.permutation(len(references))[: len(references) // 2])
    half = nnnorm.open_embeddings(references.take(some))
    lists = make_lists(problem, half, quality, rng)
    means, features, n_candidates = probe(problem, lists, K // 2, quality)
    values = learned(problem, means, features, rng)
    return with_exact(problem, values, np.flatnonzero(n_candidates < K // 2))


def probe(problem: Problem, bank: Any, k: int, quality: int) -> Any:
    return solvers._probe(Products(problem.gallery, problem.references), bank, k, quality)


# --- the measurement ---------------------------------------------------------------------------


def measure_made(problem: Problem, n_runs: int) -> list[dict[str, Any]]:
    """Measure seconds, error and R@1 of every method, in interleaved runs with different seeds."""
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    values: list[Floats] = []
    indexes = Faiss(problem.references)
    for run in range(n_runs):
        exact: Floats | None = None
        for family, setting, built, finish in ways(problem, indexes, seed=run):
            started = time.perf_counter()
            found = finish()
            seconds = built + time.perf_counter() - started
            exact = found if exact is None else exact
            blank = {"family": family, "setting": setting, "building": [], "seconds": []}
            cell = cells.setdefault((family, setting), {**blank, "residual": [], "rows": []})
            cell["building"].append(round(built, 3))
            cell["seconds"].append(round(seconds, 3))
            cell["residual"].append(round(residual(found, exact), 4))
            cell["rows"].append(len(values))
            values.append(found)
            print(f"run {run + 1}: {family} {setting} {seconds:.2f} s", file=sys.stderr)
    nothing = np.zeros(len(problem.gallery), dtype=np.float32)
    right = open_truth(
        problem.asked, n_queries=len(problem.queries), n_gallery=len(problem.gallery)
    )
    corrections = [nothing, *(np.float32(ALPHA) * found for found in values)]
    makers = [partial(np.asarray, row) for row in corrections]
    hits = 100 * sweep_hits(problem.queries, problem.gallery, right, makers).astype(np.float64)
    for cell in cells.values():
        mine = hits[1:][cell.pop("rows")].mean(axis=0)
        cell["recall"] = round(float(mine.mean()), 3)
        # Standard error over queries of the difference from the exact values.
        spread = (mine - hits[1]).std() / len(mine) ** 0.5
        cell["standard_error"] = round(float(spread), 3)
    uncorrected = {"family": "none", "setting": "", "recall": round(float(hits[0].mean()), 3)}
    return [uncorrected, *cells.values()]


def flickr8k_tasks(data: Path) -> Iterator[tuple[str, Pairs, Direction, Floats, bool]]:
    flickr8k = Flickr8k(data / "flickr8k")
    train, test = (flickr8k.pairs.some(flickr8k.images(split)) for split in ("train", "test"))
    yield "captions find photos, train captions", test, "image", train.text, False
    yield "captions find photos, COCO captions", test, "image", flickr8k.coco, False
    yield "photos find captions, train photos", test, "text", train.image, False
    yield "the same, forced to use lists", test, "text", train.image, True


def measure_flickr8k(data: Path, n_seeds: int) -> list[dict[str, Any]]:
    """Measure R@1 with approximate and exact values."""
    cells = []
    for name, pairs, direction, rows, is_forced in flickr8k_tasks(data):
        task = pairs.task(direction)
        queries, gallery, references = map(
            nnnorm.open_embeddings, (task.queries, task.gallery, rows)
        )
        products = Products(gallery, references)
        exact = top_means(products, K)
        smallest = 0 if is_forced else solvers._SMALLEST_BANK
        with mock.patch.object(solvers, "_SMALLEST_BANK", smallest):
            quality = choose_quality(len(gallery))
            models = [learn(products, quality, seed) for seed in range(n_seeds)]
        estimates = [exact if model is None else model.means(products)[0] for model in models]
        biases = [np.zeros_like(exact), *(np.float32(ALPHA) * one for one in (exact, *estimates))]
        truth = open_truth(task.truth, n_queries=len(queries), n_gallery=len(gallery))
        makers = [partial(np.asarray, bias) for bias in biases]
        hits = sweep_hits(queries, gallery, truth, makers).astype(np.float64)
        recall = 100 * hits.mean(axis=1)
        cells.append(
            {
                "task": name,
                "n_gallery": len(gallery),
                "n_references": len(references),
                "n_queries": len(queries),
                "uncorrected": round(float(recall[0]), 3),
                "paper": np.round(recall[1:], 3).tolist(),
                "residual": [round(residual(each, exact), 4) for each in estimates],
                "reported": [round(0.0 if model is None else model.error, 4) for model in models],
            }
        )
        print(f"flickr8k: {name}", file=sys.stderr)
    return cells


def run(data: Path, n_runs: int, is_small: bool) -> dict[str, Any]:
    started = time.perf_counter()
    flickr8k = measure_flickr8k(data, 2 if is_small else N_SEEDS)
    sizes = (2000, 40_000) if is_small else (20_000, 200_000)
    problem = make_problem(*sizes)
    made = measure_made(problem, n_runs)
    about = machine()
    about["versions"]["faiss"] = faiss.__version__
    return {
        **about,
        "seed": SEED,
        "runs": n_runs,
        "k": K,
        "alpha": ALPHA,
        "sizes": {
            "gallery": len(problem.gallery),
            "references": len(problem.references),
            "queries": len(problem.queries),
            "dim": problem.gallery.dim,
        },
        "seconds": round(time.perf_counter() - started),
        "made": made,
        "flickr8k": flickr8k,
    }


# --- the tables and the plot -------------------------------------------------------------------


def tables(results: dict[str, Any]) -> str:
    """Return the Markdown of the section in `docs/speed.md`."""
    return made_table(results) + "\n"


def all_tables(results: dict[str, Any]) -> str:
    """Return the table of the page, and then that of Flickr8k, which is only printed."""
    return f"{tables(results)}\n{flickr8k_table(results)}\n"


def in_order(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the table, grouped by family, the least exact setting first."""
    order = list(FAMILIES)
    known = [cell for cell in cells if cell["family"] in order]
    return sorted(
        known, key=lambda c: (order.index(c["family"]), float(Fraction(c["setting"] or 0)))
    )


def made_table(results: dict[str, Any]) -> str:
    sizes, cells = results["sizes"], in_order(results["made"])
    exact = cells[0]
    default = str(choose_quality(sizes["gallery"]))
    rows = []
    shown = ("exact", "sample", "ivf", "ivf-brief", "graph", "lists")
    for cell in (cell for cell in cells if cell["family"] in shown):
        seconds, built = (statistics.median(cell[key]) for key in ("seconds", "building"))
        name, unit = FAMILIES[cell["family"]], SETTINGS[cell["family"]]
        if cell["family"] == "lists" and cell["setting"] == default:
            name = f"**{name}**"
        error, loss = "0", f"{cell['recall']:.2f}"
        if cell is not exact:
            error = f"{np.mean(cell['residual']):.3f}"
            loss = f"{points(cell['recall'] - exact['recall'])} ± {cell['standard_error']:.2f}"
        rows.append(
            [
                f"{name}, {unit} {cell['setting']}" if unit else name,
                f"{seconds:.2f}",
                f"{built:.2f}" if built else "",
                error,
                loss,
            ]
        )
    columns = ("method", "seconds", "building", "residual", "R@1")
    note = (
        f"{sizes['gallery']:,} items, {sizes['references']:,} past queries, {sizes['dim']} "
        f"dimensions, k = {results['k']}, α = {results['alpha']}. R@1 is measured on "
        f"{sizes['queries']:,} queries (uncorrected: {results['made'][0]['recall']:.2f}). "
        "Below the first row, it is the difference from the exact fit, with its standard error. "
        f"Medians of {results['runs']} interleaved runs, {machine_words(results)}."
    )
    return f"### Time and error\n\n{table(columns, rows)}\n\n{note}"


def machine_words(results: dict[str, Any]) -> str:
    versions = results["versions"]
    return (
        f"{results['machine']['cores']} cores, numpy {versions['numpy']}, Faiss {versions['faiss']}"
    )


def flickr8k_table(results: dict[str, Any]) -> str:
    columns = (
        "gallery and bank",
        "references",
        "R@1, no correction",
        f"exact R@1, α = {results['alpha']}",
        "difference",
        "residual",
        "error reported",
    )
    rows = []
    for cell in results["flickr8k"]:
        row = [cell["task"], f"{cell['n_references']:,}", f"{cell['uncorrected']:.2f}"]
        exact, *found = cell["paper"]
        row += [f"{exact:.2f}", difference_words(np.array(found) - exact)]
        row += [f"{np.mean(cell[key]):.3f}" for key in ("residual", "reported")]
        rows.append(row)
    n_seeds = len(results["flickr8k"][0]["reported"])
    note = (
        f"Mean difference over {n_seeds} seeds, k = {results['k']} (in brackets the lowest and the "
        "highest of them)."
    )
    return f"### The default on Flickr8k\n\n{table(columns, rows)}\n\n{note}"


def difference_words(differences: npt.NDArray[np.float64]) -> str:
    mean, low, high = map(points, (differences.mean(), differences.min(), differences.max()))
    return f"**{mean}** ({low} to {high})"


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot the loss in R@1 against seconds, for the most useful methods."""
    figure, (axes,) = plots.make_panels(3.9, 1)
    cells = in_order(results["made"])
    exact = cells[0]
    axes.axhspan(-0.1, 0.1, color="#E6F1EC", zorder=0)
    axes.axhline(0, color=plots.GREY, linewidth=1, zorder=1)
    for family, (colour, marker, name, end, place) in LOOKS.items():
        mine = [cell for cell in cells if cell["family"] == family]
        seconds = [statistics.median(cell["seconds"]) for cell in mine]
        losses = [cell["recall"] - exact["recall"] for cell in mine]
        is_ours = family == "lists"
        size, width = (8, 0) if is_ours else (6, 1.6)
        axes.plot(seconds, losses, color=colour, marker=marker, markersize=size, linewidth=width)
        if is_ours:
            # The setting 4 shows a quality that is too low.
            of_use = [place for place, cell in enumerate(mine) if int(cell["setting"]) >= 8]
            fastest, slowest = (f(seconds[n] for n in of_use) for f in (min, max))
            most, least = (f(losses[n] for n in of_use) for f in (min, max))
            for cell, x, y in zip(mine, seconds, losses, strict=True):
                at = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
                axes.annotate(cell["setting"], (x, y), fontsize=9, color=colour, **at)
        axes.annotate(
            name,
            (seconds[end], losses[end]),
            xytext=place,
            textcoords="offset points",
            fontsize=10,
            fontweight="bold" if is_ours else "normal",
            color=colour,
        )
    whole = statistics.median(exact["seconds"])
    axes.plot([whole], [0], marker="*", color="#222222", markersize=14, zorder=5)
    axes.annotate("exact", (whole, 0), xytext=(-4, 10), textcoords="offset points", fontsize=10)
    axes.set_xscale("log")
    medians = [statistics.median(c["seconds"]) for c in cells if c["family"] in (*LOOKS, "exact")]
    ticks = [s for s in (0.5, 1, 2, 5, 10, 20, 50) if s <= max(medians) * 1.5]
    axes.set_xticks(ticks, [f"{second:g}" for second in ticks])
    axes.minorticks_off()
    axes.set_xlim(min(medians) * 0.8, max(medians) * 1.6)
    plots.label_axes(
        axes,
        f"Quality 8 to 32: {whole / slowest:.0f} to {whole / fastest:.0f} times faster, "
        f"{-least:.1f} to {-most:.1f} points lost",
        "seconds on a log scale, building included; band: within a tenth of a point",
        "change in R@1 from exact, points",
    )
    save_both(figure, path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare approximations of m_k for many past queries."
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    add_options(parser, OUTPUT)
    parser.add_argument("--plot", type=Path, default=PLOT, help="the PNG file of the plot")
    parser.add_argument("--runs", type=int, default=N_RUNS, help="interleaved runs")
    parser.add_argument(
        "--small", action="store_true", help="a small bank, two seeds; only print the tables"
    )
    arguments = parser.parse_args()
    if arguments.tables:
        return print_stored(
            arguments.output, all_tables, lambda stored: draw(stored, arguments.plot)
        )
    if not can_measure(arguments.output, what_is_missing(arguments.data, "flickr8k")):
        return 1
    results = run(arguments.data, arguments.runs, arguments.small)
    if not arguments.small:
        store(arguments.output, to_json(results, "made", "flickr8k"))
        draw(results, arguments.plot)
    print(all_tables(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
