"""Exact fits against everybody else's, and against the bare matrix product, in one run.

Embeddings are made with topics, hubs and a spectrum that falls as Flickr8k's does (`--spectrum`
shows both), k = 128, at the size of Flickr30k (1,000 items, 29,000 references), COCO with a fifth
of its captions (5,000 × 113,000) and with all of them (5,000 × 566,000), 512 dimensions. Two more
sets show what depends on the data: the clusters of `sweep.py`, in which all directions weigh the
same, and Flickr8k itself (all photos, its captions and COCO's, 256 dimensions) where it is at hand.
The runs of all solvers are interleaved, in random order; medians and ratios count. The softmax rows
compare one DBNorm fit with the published arithmetic done plainly: the whole score matrix, one exp
per score and bank. Then search with and without a correction, and how fast this machine multiplies
at all.

kiez asks for an older numpy than ours, so it runs beside us in an environment of its own:

    python -m venv kiez && kiez/bin/pip install kiez "scikit-learn<1.6" "numpy<2"

    python benchmarks/exact.py [--small] [--runs 3] [--output FILE.json] [--plot FILE.png]
                               [--kiez kiez/bin/python]
    python benchmarks/exact.py --tables    # print the stored results
    python benchmarks/exact.py --spectrum
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from real_sets import DATA, RESULTS, Floats, machine, table
from sweep import make_rows

import nnnorm
from nnnorm.means.bounds import principal_basis
from nnnorm.means.dispatch import means_by
from nnnorm.scoring.blocks import Products

OUTPUT = RESULTS / "exact.json"
K = 128
SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4)
SIZES = {
    "Flickr30k": (1000, 29_000, 5800),
    "COCO, a fifth": (5000, 113_000, 22_600),
    "COCO, all": (5000, 566_000, 0),
}
FLAT, REAL = "COCO, a fifth, flat spectrum", "Flickr8k"
OURS, PRODUCT = "nnnorm", "the product alone (numpy)"
PLOT = RESULTS.parents[1] / "docs" / "images" / "exact.png"
DUAL, PLAINLY = "nnnorm, DualIS", "DBNorm, plainly"


def make_falling(n_items: int, n_references: int, dim: int, seed: int) -> tuple[Floats, Floats]:
    """Topics of topics; the first directions hold as much of a score as Flickr8k's first do."""
    rng = np.random.default_rng(seed)
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
    rows = make_rows(n_items, n_references, 1, 512, seed=0)
    return rows["gallery"], rows["references"]


def read_real() -> tuple[Floats, Floats]:
    """All photos of Flickr8k; its captions and COCO's."""
    names = ("image", "caption", "coco_caption")
    image, caption, coco = (np.load(DATA / "flickr8k" / f"{name}.npy") for name in names)
    photos, captions, foreign = (
        np.asarray(nnnorm.open_embeddings(rows.reshape(-1, rows.shape[-1]), normalize=True))
        for rows in (image, caption, coco)
    )
    return photos, np.concatenate([captions, foreign])


def spectrum(items: Floats, references: Floats) -> list[float]:
    """What the rest of a score can be at most, beyond a share of the directions: mean of pairs."""
    sides = [nnnorm.open_embeddings(rows[:20_000]) for rows in (items, references)]
    basis = principal_basis(*sides, np.random.default_rng(0))
    left = []
    for share in SHARES:
        first = basis[:, : int(share * len(basis))]
        lengths = [
            np.sqrt(np.maximum(1 - np.square(rows[:20_000] @ first).sum(axis=1), 0)).mean()
            for rows in (items, references)
        ]
        left.append(float(np.prod(lengths)))
    return left


def fits(gallery: Floats, references: Floats) -> dict[str, Callable[[], Floats | None]]:
    """Everybody who can compute m_k, by name; those who give no values give None."""
    import faiss
    import torch
    from sklearn.neighbors import NearestNeighbors

    with contextlib.redirect_stdout(io.StringIO()):  # it prints at import
        from nnn import NNNRanker, NNNRetriever

    def peer() -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            NNNRanker(
                NNNRetriever(gallery.shape[1]),
                gallery,
                references,
                alternate_ks=K,
                alternate_weight=0.75,
                batch_size=256,
                use_gpu=False,
            )

    def product() -> None:
        for start in range(0, len(references), 8192):
            gallery @ references[start : start + 8192].T

    def torch_product() -> None:
        items, bank = torch.from_numpy(gallery), torch.from_numpy(references)
        for start in range(0, len(items), 512):
            items[start : start + 512] @ bank.T

    def by_solver(solver: Any) -> Callable[[], Floats]:
        return lambda: means_by(solver, _products(gallery, references), K)[0]

    def knn() -> Floats:
        scores, _ = faiss.knn(gallery, references, K, metric=faiss.METRIC_INNER_PRODUCT)
        return np.asarray(scores.mean(axis=1))

    def scikit() -> Floats:
        # Unit rows: the distance tells the score.
        found = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(references)
        return np.asarray((1 - found.kneighbors(gallery)[0] ** 2 / 2).mean(axis=1))

    return {
        OURS: by_solver("auto"),
        "nnnorm, solver exact": by_solver("exact"),
        "nnnorm, solver torch": by_solver("torch"),
        PRODUCT: product,
        "the product alone (torch)": torch_product,
        f"nnn-retrieval {version('nnn-retrieval')} (torch)": peer,
        f"faiss.knn {version('faiss-cpu')}": knn,
        f"scikit-learn {version('scikit-learn')}, brute force": scikit,
    }


# The fit of its CSLS is the same job: the k references nearest to every item. Unit rows again.
_KIEZ = """
import sys, warnings
from importlib.metadata import version
import numpy as np
from kiez import Kiez
warnings.simplefilter("ignore")
gallery, references = (np.load(sys.argv[1] + "/" + name) for name in ("g.npy", "r.npy"))
print(version("kiez"), flush=True)
for line in sys.stdin:
    found = Kiez(
        n_candidates=int(line), algorithm="SklearnNN", hubness="CSLS",
        algorithm_kwargs={"algorithm": "brute", "metric": "sqeuclidean"},
    ).fit(references, gallery)
    np.save(sys.argv[1] + "/m.npy", (1 - found.hubness.r_dist_train_ / 2).mean(axis=1))
    print("done", flush=True)
"""


@contextlib.contextmanager
def kiez_fit(
    python: str | None, gallery: Floats, references: Floats
) -> Iterator[dict[str, Callable[[], Floats | None]]]:
    """A process that has everything loaded and waits to be asked."""
    if python is None:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/g.npy", gallery)
        np.save(f"{folder}/r.npy", references)
        command = [python, "-c", _KIEZ, folder]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            asked, answers = process.stdin, process.stdout
            if not (its_version := answers.readline().strip()):
                raise RuntimeError("kiez does not start; its message stands above")
            name = f"kiez {its_version}, CSLS"

            def fit() -> Floats:
                print(K, file=asked, flush=True)
                if answers.readline() != "done\n":
                    raise RuntimeError("kiez failed; its message stands above")
                return np.asarray(np.load(f"{folder}/m.npy"))

            yield {name: fit}
            asked.close()


def softmax_fits(
    gallery: Floats, references: Floats, bank: Floats
) -> dict[str, Callable[[], Floats | None]]:
    method = nnnorm.DualSoftmax(beta_query=50.0, beta_gallery=5.0)

    def plainly() -> Floats:
        sums = [
            np.log(np.exp(beta * (gallery @ rows.T)).sum(axis=1)) - np.log(len(rows))
            for rows, beta in ((references, 50.0), (bank, 5.0))
        ]
        return np.asarray(sum(sums) / 55.0)

    return {
        DUAL: lambda: method.fit(gallery, references, gallery_references=bank).values,
        PLAINLY: plainly,
    }


def searches(n_queries: int) -> dict[str, Callable[[], Any]]:
    """The same search without and with a correction."""
    rows = make_rows(5000, n_queries, 1, 512, seed=0)
    gallery, queries = (nnnorm.open_embeddings(rows[name]) for name in ("gallery", "references"))
    bias = nnnorm.NNN.paper().fit(gallery, rows["queries"])
    return {
        "uncorrected": lambda: nnnorm.search(queries, gallery, k=10),
        "corrected": lambda: nnnorm.search(queries, gallery, bias, k=10),
    }


def products() -> dict[str, Callable[[], Any]]:
    """4,096 × 512 × 8,192 by numpy and by torch."""
    import torch

    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(n, 512)).astype(np.float32) for n in (4096, 8192))
    tensors = [torch.from_numpy(rows) for rows in (left, right)]
    out = np.empty((4096, 8192), dtype=np.float32)
    floats = torch.from_numpy(out)
    return {
        "float32, numpy": lambda: np.matmul(left, right.T, out=out),
        "float32, torch": lambda: torch.mm(tensors[0], tensors[1].T, out=floats),
    }


def interleaved(jobs: dict[str, Callable[[], Any]], n_runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {job: [] for job in jobs}
    for _ in range(n_runs):
        for job, work in jobs.items():
            started = time.perf_counter()
            work()
            times[job].append(round(time.perf_counter() - started, 4))
    return times


def _products(gallery: Floats, references: Floats) -> Products:
    return Products(nnnorm.open_embeddings(gallery), nnnorm.open_embeddings(references))


def measure(names: list[str], n_runs: int, kiez: str | None) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in names:
        n_bank = 0
        if name == REAL:
            gallery, references = read_real()
        elif name == FLAT:
            gallery, references = make_flat(*SIZES["COCO, a fifth"][:2])
        else:
            n_items, n_references, n_bank = SIZES[name]
            gallery, references = make_falling(n_items, n_references, 512, seed=0)
        (n_items, dim), n_references = gallery.shape, len(references)
        with kiez_fit(kiez, gallery, references) as its:
            jobs = fits(gallery, references) | its
            if n_bank:
                bank = make_falling(n_bank, 1, dim, seed=0)[0]
                jobs |= softmax_fits(gallery, references, bank)
            times: dict[str, list[float]] = {job: [] for job in jobs}
            values: dict[str, Any] = {}
            # The largest takes minutes: once, and the ratios are steady.
            for run in range(n_runs if n_references < 500_000 else 1):
                # In another order every time: what a job leaves behind slows down the next.
                for job in np.random.default_rng(run).permutation(list(jobs)).tolist():
                    started = time.perf_counter()
                    values[job] = jobs[job]()
                    times[job].append(round(time.perf_counter() - started, 3))
                    print(f"{name}, run {run + 1}: {job} {times[job][-1]:.2f} s", file=sys.stderr)
        results[name] = {
            "n_items": n_items,
            "n_references": n_references,
            "dim": dim,
            "seconds": times,
            "largest_difference": {
                job: float(np.abs(each - values[_partner(job)]).max())
                for job, each in values.items()
                if each is not None and job not in (OURS, DUAL)
            },
        }
    return results


def _partner(job: str) -> str:
    """Ours that does the same job."""
    return DUAL if job in (DUAL, PLAINLY) else OURS


def tables(results: dict[str, Any]) -> str:
    """The Markdown tables of the stored results."""
    parts = []
    for name, measured in results["sizes"].items():
        median = {job: statistics.median(times) for job, times in measured["seconds"].items()}
        rows = []
        for job, seconds in median.items():
            difference = measured["largest_difference"].get(job)
            rows.append(
                [
                    job,
                    f"{seconds:.2f}",
                    f"{seconds / median[_partner(job)]:.2f}",
                    "" if difference is None else f"{difference:.0e}",
                ]
            )
        head = ["who", "seconds", "times ours", "largest difference"]
        size = (
            f"{measured['n_items']:,} items × {measured['n_references']:,} references, "
            f"{measured['dim']} dimensions"
        )
        parts.append(f"**{name}**: {size}\n\n{table(head, rows)}")
    search = {job: statistics.median(times) for job, times in results["search"].items()}
    parts.append(
        f"**Search**, {results['n_queries']:,} queries in 5,000 items, k = 10: uncorrected "
        f"{search['uncorrected']:.2f} s, corrected {search['corrected']:.2f} s, "
        f"{search['corrected'] / search['uncorrected']:.2f} times as long."
    )
    rows = [
        [job, f"{2 * 4096 * 512 * 8192 / min(times) / 1e9:,.0f}"]
        for job, times in results["products"].items()
    ]
    parts.append(
        "**What the machine can do**\n\n" + table(["product", "10⁹ operations/s, at best"], rows)
    )
    cpu, versions = results["machine"], results["versions"]
    parts.append(
        f"Medians of {results['runs']} interleaved runs (the largest: one), {cpu['cpu']}, "
        f"{cpu['cores']} cores, "
        + ", ".join(f"{name} {versions[name]}" for name in ("numpy", "torch"))
        + "."
    )
    return "\n\n".join(parts)


def spectra() -> str:
    """What is left of a score beyond a share of the directions, made and real."""
    sets = {"made": make_falling(5000, 60_000, 512, 0), "flat": make_flat(5000, 60_000)}
    if (DATA / "flickr8k").is_dir():
        sets[REAL] = read_real()
    rows = [[name, *(f"{left:.3f}" for left in spectrum(*pair))] for name, pair in sets.items()]
    return table(["left beyond", *(f"{share:.3f}" for share in SHARES)], rows)


def draw(results: dict[str, Any], path: Path) -> None:
    """Seconds at the size of a fifth of COCO, beside what the machine's products would take."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measured = results["sizes"]["COCO, a fifth"]
    n_operations = 2 * measured["n_items"] * measured["n_references"] * measured["dim"]
    seconds = {
        job: statistics.median(times)
        for job, times in measured["seconds"].items()
        if job not in (DUAL, PLAINLY)
    }
    jobs = sorted(seconds, key=lambda job: -seconds[job])
    colours = {OURS: "#0072b2", PRODUCT: "#999999", "the product alone (torch)": "#999999"}
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(
        jobs, [seconds[job] for job in jobs], color=[colours.get(job, "#cfd8dc") for job in jobs]
    )
    axes.bar_label(bars, [f"{seconds[job]:.1f}" for job in jobs], padding=4)
    peak = max(
        2 * 4096 * 512 * 8192 / min(times)
        for product, times in results["products"].items()
        if product.startswith("float32")
    )
    axes.axvline(n_operations / peak, color="#d55e00", linewidth=1, linestyle="--")
    axes.annotate(
        f"the whole product at this machine's\nfloat32 peak, {peak / 1e9:,.0f} · 10⁹ operations/s",
        (n_operations / peak, 0.98), (5, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", fontsize=9, color="#d55e00", va="top",
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("seconds")
    size = f"{measured['n_items']:,} items, {measured['n_references']:,} references"
    axes.set_title(f"Exact means of the {K} best: {size}, {measured['dim']} dimensions", loc="left")
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the smallest size only")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, help=f"JSON, such as {OUTPUT.name}")
    parser.add_argument("--plot", type=Path, help=f"PNG, such as {PLOT.name}")
    parser.add_argument("--kiez", metavar="PYTHON", help="a Python that has kiez, to compare it")
    parser.add_argument("--tables", action="store_true", help="print the stored results")
    parser.add_argument("--spectrum", action="store_true", help="made embeddings beside real ones")
    options = parser.parse_args()
    if options.tables:
        stored = json.loads(OUTPUT.read_text(encoding="utf-8"))
        print(tables(stored))
        if options.plot:
            draw(stored, options.plot)
        return 0
    if options.spectrum:
        print(spectra())
        return 0
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", module="nnn")
    names = ["Flickr30k"] if options.small else [*SIZES, FLAT]
    if not options.small and (DATA / "flickr8k").is_dir():
        names.append(REAL)
    about = machine()
    about["versions"] |= {"torch": version("torch")}
    n_queries = 5000 if options.small else 25_000
    results = {
        "sizes": measure(names, options.runs, options.kiez),
        "search": interleaved(searches(n_queries), 2 * options.runs + 1),
        "products": interleaved(products(), 2 * options.runs + 1),
        "n_queries": n_queries,
        "runs": options.runs,
        "seed": 0,
        **about,
    }
    print(tables(results))
    if options.plot:
        draw(results, options.plot)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
