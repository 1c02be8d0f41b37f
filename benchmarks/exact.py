"""Exact fits against everybody else's, and against the bare matrix product, in one run.

Synthetic clustered embeddings (those of `sweep.py`), k = 128, at the size of Flickr30k (1,000
items, 29,000 references), COCO with a fifth of its captions (5,000 × 113,000) and with all of them
(5,000 × 566,000), 512 dimensions. The runs of all engines are interleaved; medians and ratios
count. The softmax rows compare one DBNorm fit with the published arithmetic done plainly: the whole
score matrix, one exp per score and bank. Then search with and without a correction, and how fast
this machine multiplies at all.

    python benchmarks/exact.py [--small] [--runs 3] [--output FILE.json]
    python benchmarks/exact.py --tables    # print the stored results
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from real_sets import RESULTS, Floats, machine, table
from sweep import make_rows

import nnnorm
from nnnorm.engines import means_by
from nnnorm.scores import Products

OUTPUT = RESULTS / "exact.json"
K = 128
SIZES = {
    "Flickr30k": (1000, 29_000, 5800),
    "COCO, a fifth": (5000, 113_000, 22_600),
    "COCO, all": (5000, 566_000, 0),
}
OURS, PRODUCT = "nnnorm, float32", "the product alone (numpy)"
DUAL, PLAINLY = "nnnorm, DualIS", "DBNorm, plainly"


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

    def by_engine(engine: Any) -> Callable[[], Floats]:
        return lambda: means_by(engine, _products(gallery, references), K)[0]

    def knn() -> Floats:
        scores, _ = faiss.knn(gallery, references, K, metric=faiss.METRIC_INNER_PRODUCT)
        return np.asarray(scores.mean(axis=1))

    def scikit() -> Floats:
        # Unit rows: the distance tells the score.
        found = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(references)
        return np.asarray((1 - found.kneighbors(gallery)[0] ** 2 / 2).mean(axis=1))

    return {
        OURS: by_engine("float32"),
        PRODUCT: product,
        "the product alone (torch)": torch_product,
        "nnnorm, torch": by_engine("torch"),
        f"nnn-retrieval {version('nnn-retrieval')} (torch)": peer,
        f"faiss.knn {version('faiss-cpu')}": knn,
        f"scikit-learn {version('scikit-learn')}, brute force": scikit,
    }


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
    """4,096 × 512 × 8,192 in every arithmetic at hand."""
    import torch

    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(n, 512)).astype(np.float32) for n in (4096, 8192))
    small, large = (torch.from_numpy((30 * rows).astype(np.int8)) for rows in (left, right))
    tensors = torch.from_numpy(left), torch.from_numpy(right)
    return {
        "float32, numpy": lambda: left @ right.T,
        "float32, torch": lambda: tensors[0] @ tensors[1].T,
        "int8, torch": lambda: torch._int_mm(small, large.T),
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


def measure(sizes: dict[str, tuple[int, int, int]], n_runs: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, (n_items, n_references, n_bank) in sizes.items():
        rows = make_rows(n_items, n_references, max(n_bank, 1), 512, seed=0)
        gallery, references = rows["gallery"], rows["references"]
        jobs = fits(gallery, references)
        if n_bank:
            jobs |= softmax_fits(gallery, references, rows["gallery_references"])
        times: dict[str, list[float]] = {job: [] for job in jobs}
        values: dict[str, Any] = {}
        # The largest takes minutes: once, and the ratios are steady.
        for run in range(n_runs if n_references < 500_000 else 1):
            for job, work in jobs.items():
                started = time.perf_counter()
                values[job] = work()
                times[job].append(round(time.perf_counter() - started, 3))
                print(f"{name}, run {run + 1}: {job} {times[job][-1]:.2f} s", file=sys.stderr)
        results[name] = {
            "n_items": n_items,
            "n_references": n_references,
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
        size = f"{measured['n_items']:,} items × {measured['n_references']:,} references"
        parts.append(f"**{name}**: {size}\n\n{table(head, rows)}")
    search = {job: statistics.median(times) for job, times in results["search"].items()}
    parts.append(
        f"**Search**, {results['n_queries']:,} queries in 5,000 items, k = 10: uncorrected "
        f"{search['uncorrected']:.2f} s, corrected {search['corrected']:.2f} s, "
        f"{search['corrected'] / search['uncorrected']:.2f} times as long."
    )
    rows = [
        [job, f"{2 * 4096 * 512 * 8192 / statistics.median(times) / 1e9:,.0f}"]
        for job, times in results["products"].items()
    ]
    parts.append("**What the machine can do**\n\n" + table(["product", "10⁹ operations/s"], rows))
    cpu, versions = results["machine"], results["versions"]
    parts.append(
        f"Medians of {results['runs']} interleaved runs (the largest: one), {cpu['cpu']}, "
        f"{cpu['cores']} cores, numpy {versions['numpy']}, torch {versions['torch']}."
    )
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the smallest size only")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, help=f"JSON, such as {OUTPUT.name}")
    parser.add_argument("--tables", action="store_true", help="print the stored results")
    options = parser.parse_args()
    if options.tables:
        print(tables(json.loads(OUTPUT.read_text(encoding="utf-8"))))
        return 0
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", module="nnn")
    sizes = dict(list(SIZES.items())[:1]) if options.small else SIZES
    about = machine()
    about["versions"]["torch"] = version("torch")
    n_queries = 5000 if options.small else 25_000
    results = {
        "sizes": measure(sizes, options.runs),
        "search": interleaved(searches(n_queries), 2 * options.runs + 1),
        "products": interleaved(products(), options.runs),
        "n_queries": n_queries,
        "runs": options.runs,
        "seed": 0,
        **about,
    }
    print(tables(results))
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
