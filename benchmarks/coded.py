"""Screened fits with heads as float32 and as int8, and how much of the latter int8 products take.

On a processor with VNNI or AMX the int8 products take a fraction of the time they take on one
without; everything else stays. So both parts are shown: "the rest" is what a coded fit comes to
where products cost next to nothing. The plan believes that int8 is five times as quick as float32,
whatever this machine says, so that heads are coded at all.

    python benchmarks/coded.py [--runs 3] [--output FILE.json]    # about two minutes
    python benchmarks/coded.py --tables                           # print the stored results
"""

import argparse
import json
import statistics
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from exact import DATA, FLAT, REAL, SIZES, K, make_falling, make_flat, read_real
from real_sets import RESULTS, Floats, machine, table

import nnnorm
from nnnorm import screen_plan
from nnnorm.int8 import Int8, int8_by
from nnnorm.scores import Products
from nnnorm.screen import screened_means
from nnnorm.threads import count_threads
from nnnorm.topk import top_means

OUTPUT = RESULTS / "coded.json"
_AS_ON_VNNI = (0.0, 0.2)


class Clock:
    """Seconds in int8 products, of all threads together."""

    def __init__(self, int8: Int8) -> None:
        self.seconds, self._lock = 0.0, threading.Lock()

        def multiply(items: Any, packed: Any) -> Any:
            started = time.perf_counter()
            found = int8.multiply(items, packed)
            with self._lock:
                self.seconds += time.perf_counter() - started
            return found

        self.int8 = replace(int8, multiply=multiply, work=_AS_ON_VNNI)


def fit(scores: Products, int8: Int8 | None) -> tuple[float, int, Floats]:
    """Seconds, width of heads (0 where nothing was screened) and means."""
    screen_plan.fastest_int8 = lambda: int8
    started = time.perf_counter()
    screen = screen_plan.plan_screen(scores, K)
    if screen is None or screen.cost == np.inf:
        means = top_means(scores, K)
        return time.perf_counter() - started, 0, means
    means = screened_means(scores, K, screen)
    return time.perf_counter() - started, screen.directions.shape[1], means


def measure(gallery: Floats, references: Floats, n_runs: int) -> dict[str, Any]:
    scores = Products(nnnorm.open_embeddings(gallery), nnnorm.open_embeddings(references))
    names = "float32", "coded", "products", "difference"
    found: dict[str, list[float]] = {name: [] for name in names}
    clock = Clock(int8_by("numkong"))
    for _ in range(n_runs):
        plain, width, means = fit(scores, None)
        clock.seconds = 0.0
        coded, coded_width, coded_means = fit(scores, clock.int8)
        difference = float(np.abs(coded_means - means).max())
        values = plain, coded, clock.seconds / count_threads(), difference
        for name, value in zip(names, values, strict=True):
            found[name].append(value)
    return {**found, "width": width, "coded_width": coded_width, "dim": gallery.shape[1]}


def tables(results: dict[str, Any]) -> str:
    rows = []
    for name, found in results["sets"].items():
        plain, coded, products = (
            statistics.median(found[key]) for key in ("float32", "coded", "products")
        )
        width = f"{found['width']}" if found["width"] else "whole product"
        seconds = [f"{value:.2f}" for value in (coded, products, coded - products)]
        head = [name, str(found["dim"]), width, f"{plain:.2f}", str(found["coded_width"])]
        rows.append([*head, *seconds, f"{max(found['difference']):.0e}"])
    head = ["set", "dim", "heads, float32", "s", "heads, int8", "s", "of it int8 products"]
    cpu, versions = results["machine"], results["versions"]
    return (
        table([*head, "the rest", "largest difference"], rows)
        + f"\n\nMedians of {results['runs']} runs, {cpu['cpu']}, {cpu['cores']} cores, "
        + f"numpy {versions['numpy']}, numkong {versions['numkong']}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, help=f"JSON, such as {OUTPUT.name}")
    parser.add_argument("--tables", action="store_true", help="print the stored results")
    options = parser.parse_args()
    if options.tables:
        print(tables(json.loads(OUTPUT.read_text(encoding="utf-8"))))
        return 0
    n_items, n_references, _ = SIZES["COCO, a fifth"]
    sets = {
        "COCO, a fifth": lambda: make_falling(n_items, n_references, 512, seed=0),
        FLAT: lambda: make_flat(n_items, n_references),
    }
    if (DATA / "flickr8k").is_dir():
        sets[REAL] = read_real
    about = machine()
    about["versions"] |= {"numkong": version("numkong")}
    results = {
        "sets": {name: measure(*make(), options.runs) for name, make in sets.items()},
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
