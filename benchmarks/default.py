"""Times `NNN().fit` with automatic settings, compared with one product of items and queries.

5,000 items, 113,000 past queries, 512 dimensions: no structure ("noise"), 400 clusters with a flat
spectrum, and two levels of topics with spectra that fall as Flickr8k's ("falling") and faster
("clustered"). In the second half of the table, 30 % of the past queries are copies of others: one
half is equal, the other has a cosine of 0.95. All jobs are interleaved in one process. The table
has ratios of medians.

    python benchmarks/default.py [--runs 3] [--output FILE.json]    # ten minutes on two free cores
    python benchmarks/default.py --tables    # print the tables of the stored results
"""

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from exact import PEER, make_falling, make_flat
from harness import run_command
from million import write_embeddings
from real_sets import RESULTS, Floats, machine, table

import nnnorm

OUTPUT = RESULTS / "default.json"
N_ITEMS, N_REFERENCES, DIM = 5000, 113_000, 512
K = 67  # the k that automatic settings choose
COPIES, COSINE = 0.3, 0.95


def make_topics(n_items: int, n_references: int, is_noise: bool = False) -> tuple[Floats, ...]:
    """Draw rows with two levels of topics, or without structure."""

    def make(n: int, is_item: bool) -> Floats:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.npy"
            write_embeddings(path, n, DIM, is_item=is_item, is_noise=is_noise)
            rows = np.load(path).astype(np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    return make(n_items, True), make(n_references, False)


MAKERS: dict[str, Callable[..., tuple[Floats, ...]]] = {
    "noise": lambda *sizes: make_topics(*sizes, is_noise=True),
    "flat": make_flat,
    "falling": make_falling,
    "clustered": make_topics,
}


def add_copies(rows: Floats) -> Floats:
    """Return the rows, some of them replaced by copies of others."""
    rng = np.random.default_rng(5)
    order, n_copies = rng.permutation(len(rows)), round(COPIES * len(rows))
    copies = rows[rng.choice(order[n_copies:], n_copies)]
    noise = rng.standard_normal(copies[::2].shape, dtype=np.float32)
    noise *= np.sqrt(1 / COSINE**2 - 1) / np.linalg.norm(noise, axis=1, keepdims=True)
    copies[::2] += noise
    rows = rows.copy()
    rows[order[:n_copies]] = copies / np.linalg.norm(copies, axis=1, keepdims=True)
    return rows


def jobs(gallery: Floats, references: Floats) -> dict[str, Callable[[], Any]]:
    with contextlib.redirect_stdout(io.StringIO()):  # it prints when it is imported
        from nnn import NNNRanker, NNNRetriever

    def multiply() -> None:
        for start in range(0, len(references), 8192):
            gallery @ references[start : start + 8192].T

    def peer() -> None:
        options = {"alternate_ks": K, "alternate_weight": 0.5, "batch_size": 256, "use_gpu": False}
        with contextlib.redirect_stderr(io.StringIO()):
            NNNRanker(NNNRetriever(DIM), gallery, references, **options)

    return {
        "plain product": multiply,
        "`NNN()`": lambda: nnnorm.NNN().fit(gallery, references),
        f"`NNN({K}, 0.5)`": lambda: nnnorm.NNN(K, 0.5).fit(gallery, references),
        PEER: peer,
    }


def measure(n_runs: int, spectra: list[str]) -> Iterator[dict[str, Any]]:
    for name in spectra:
        gallery, honest = MAKERS[name](N_ITEMS, N_REFERENCES)
        for is_copied in (False, True):
            references = add_copies(honest) if is_copied else honest
            for job in jobs(gallery, references[:9000]).values():
                job()  # a warm-up for imports and threads
            work = jobs(gallery, references)
            seconds: dict[str, list[list[float]]] = {job: [] for job in work}
            n_unique = None
            for run in range(n_runs):
                for job in np.random.default_rng(run).permutation(list(work)).tolist():
                    cpu, wall = time.process_time(), time.perf_counter()
                    found = work[job]()
                    took = time.process_time() - cpu, time.perf_counter() - wall
                    seconds[job].append([round(some, 3) for some in took])
                    n_unique = found.params["n_unique"] if job == "`NNN()`" else n_unique
            row = {"data": name, "copies": is_copied, "n_unique": n_unique, "seconds": seconds}
            print(row, file=sys.stderr)
            yield row


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    lines = []
    for row in results["rows"]:
        medians = {
            job: [statistics.median(some) for some in zip(*times, strict=True)]
            for job, times in row["seconds"].items()
        }
        plain, *others = medians.values()
        line = [row["data"] + (", copies" if row["copies"] else ""), f"{row['n_unique']:,}"]
        line.append(f"{plain[0]:.1f} ({plain[1]:.1f})")
        line += [f"{cpu / plain[0]:.2f} ({wall / plain[1]:.2f})" for cpu, wall in others]
        lines.append(line)
    jobs = list(results["rows"][0]["seconds"])
    head = ["data", "unique queries", f"{jobs[0]}, seconds", *jobs[1:]]
    cpu = results["machine"]
    return (
        f"{table(head, lines)}\n\n{N_ITEMS:,} items, {N_REFERENCES:,} past queries, {DIM} "
        "dimensions. Processor time (and wall time), in seconds for the plain product and relative "
        f"to it for the others. Medians of {len(results['rows'][0]['seconds'][jobs[0]])} "
        f"interleaved runs. {cpu['cpu']}, {cpu['cores']} cores, numpy "
        f"{results['versions']['numpy']}, {PEER} {results['versions'][PEER]}."
    )


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore")
    about = machine()
    about["versions"] |= {PEER: version(PEER)}
    return {"rows": list(measure(options.runs, options.data)), "seed": 0, **about}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", nargs="+", choices=MAKERS, default=list(MAKERS))
    return run_command(parser, OUTPUT, measure_all, tables, "speed.md")


if __name__ == "__main__":
    sys.exit(main())
