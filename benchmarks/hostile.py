"""Measures how many adversarial hubs `nnnorm scan` finds, and the effect of the correction.

Adversarial items are added to photos of Flickr8k and Unsplash, and to the shapes. The attacker
knows the gallery and has other queries; the defender's past queries and the test queries belong to
other photos. Adversarial items are means of queries, or optimized by gradient ascent to be top-1
for as many queries as possible, of one topic or of all. "Disguised" ones are mixed
with an honest item until their robust z, as the attacker measures it, is below 3.

    python benchmarks/hostile.py             # measure, write JSON, print the tables
    python benchmarks/hostile.py --tables    # print the tables of the stored JSON
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases import as_floats
from real_sets import RESULTS, Flickr8k, Floats, Ints, read_unsplash500, rows_of, run_benchmark
from real_sets import table as make_table

import nnnorm
from nnnorm.evaluation.outliers import SIGNALS, WATCH, count_alerts

OUTPUT = RESULTS / "hostile.json"
# At least 100 hubs of each kind and set count; see `LEAST_HELD`.
SEEDS = {
    "flickr8k": (*range(110, 119),),
    "unsplash500": (102, 103, 106, 107),
    "shapes": (102, 103, 106, 107),
}
# Three times as many as alerts, because only few of the disguised ones have top-1 hits.
SHARES = (0.0001, 0.001, 0.002, 0.002, 0.002, 0.01, 0.05)
# With fewer than 1,000 items: one, two, and so on.
SMALL_SHARES = (0.001, 0.002, 0.005, 0.01, 0.05)
BUDGETS = ("0.2%", "0.4%", "1%")
KINDS = ("mean of a topic", "mean of 20 neighbors", "mean of all")
KINDS += ("gradient, a topic", "gradient, all")
NAMES = {"flickr8k": "Flickr8k", "unsplash500": "Unsplash", "shapes": "shapes"}
# Items with fewer top-1 hits than this don't count.
LEAST_HELD = 0.002


class Task(NamedTuple):
    """A gallery, the attacker's queries, the defender's bank, and test queries."""

    gallery: Floats
    attacker: Floats
    bank: nnnorm.Bank
    queries: Floats


# --- adversarial items --------------------------------------------------------------------------


def unit(rows: Floats) -> Floats:
    return as_floats(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def best_scores(queries: Floats, gallery: Floats) -> Floats:
    """Return the score of the top-1 hit of each query."""
    return nnnorm.search(queries, gallery, k=1).scores[:, 0]


def cluster(rows: Floats, n_topics: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    centres = rows[rng.permutation(len(rows))[:n_topics]]
    topics = np.zeros(len(rows), dtype=np.int64)
    for _ in range(10):
        topics = (rows @ centres.T).argmax(axis=1)
        means = [rows[topics == t].sum(axis=0) for t in range(n_topics)]
        filled = [m if m.any() else centres[t] for t, m in enumerate(means)]
        centres = unit(np.stack(filled))
    return centres, topics


def climb(start: Floats, queries: Floats, best: Floats, tau: float) -> Floats:
    """Optimize rows by gradient ascent to be top-1 for as many queries as possible."""
    rows = start.copy()
    n_steps = 60
    for step in range(n_steps):
        gap = np.clip((queries @ rows.T - best[:, None]) / tau, -50, 50)
        soft = 1 / (1 + np.exp(-gap))
        slope = (soft * (1 - soft)).T @ queries
        slope -= (slope * rows).sum(axis=1, keepdims=True) * rows
        norms = np.maximum(np.linalg.norm(slope, axis=1, keepdims=True), 1e-20)
        rows = unit(rows + 0.3 * (1 - step / n_steps) * slope / norms)
    return rows


def plant(kind: str, n: int, task: Task, best: Floats, rng: np.random.Generator) -> Floats:
    """Create n hubs of a kind from the attacker's queries."""
    queries, gallery = task.attacker, task.gallery
    if kind == "mean of 20 neighbors":
        near = nnnorm.search(queries[rng.permutation(len(queries))[:n]], queries, k=20).indices
        return unit(queries[near].mean(axis=1))
    if kind == "mean of all":
        size = max(20, len(queries) // 4)
        parts = [rng.permutation(len(queries))[:size] for _ in range(n)]
        return unit(np.stack([queries[part].mean(axis=0) for part in parts]))
    n_topics = max(8, n) if kind == "mean of a topic" else min(64, max(8, n))
    centres, topics = cluster(queries, min(n_topics, len(queries) // 2), rng)
    if kind == "mean of a topic":
        return centres[np.resize(rng.permutation(len(centres)), n)]
    made = []
    for group in np.array_split(np.arange(n), min(n, len(centres))):
        topic = np.flatnonzero(topics == len(made) % len(centres))
        is_wide = kind == "gradient, all" or len(topic) < 5
        some = rng.permutation(np.arange(len(queries)) if is_wide else topic)[:1000]
        start = gallery[rng.integers(len(gallery), size=len(group))]
        made.append(climb(start, queries[some], best[some], 0.05 if is_wide else 0.03))
    return np.concatenate(made)


def disguise(added: Floats, task: Task, rng: np.random.Generator) -> Floats:
    """Mix each hub with a similar honest item until its robust z is below 3 for the attacker."""
    queries = task.attacker[rng.permutation(len(task.attacker))[:4000]]
    k = min(16, len(queries) // 4)

    def mean_best(rows: Floats) -> Floats:
        return np.partition(rows @ queries.T, -k, axis=1)[:, -k:].mean(axis=1)

    usual = mean_best(task.gallery[rng.permutation(len(task.gallery))[:1000]])
    median = np.median(usual)
    spread = 1.4826 * np.median(np.abs(usual - median))
    near = nnnorm.search(added, task.gallery, k=5).indices
    weights = np.linspace(1, 0, 41)[:, None]
    hidden = []
    for row, items in zip(added, near, strict=True):
        honest = task.gallery[items[rng.integers(5)]]
        mixed = unit(weights * row + (1 - weights) * honest)
        below = np.flatnonzero((mean_best(mixed) - median) / spread < 3)
        hidden.append(mixed[below[0]] if len(below) else honest)
    return np.stack(hidden)


# --- measuring ---------------------------------------------------------------------------------


def read_task(data: Path, name: str, rng: np.random.Generator) -> Task:
    if name == "shapes":
        shapes = nnnorm.load_shapes()
        bank, attacker = np.array_split(rng.permutation(len(shapes.references)), 2)
        scenes = rng.permutation(len(shapes.gallery))[:900]
        rows = shapes.gallery[scenes], shapes.references[attacker], shapes.references[bank]
        return make_task(*(unit(as_floats(part)) for part in (*rows, shapes.queries)))
    pairs = Flickr8k(data / name).pairs if name == "flickr8k" else read_unsplash500(data / name)
    texts, n_texts = unit(as_floats(pairs.text)), len(pairs.text) // len(pairs.image)
    ends = (0.2, 0.6, 1.0) if name == "unsplash500" else (0.3, 0.7, 1.0)
    photos = np.split(
        rng.permutation(len(pairs.image)), [round(end * len(pairs.image)) for end in ends[:2]]
    )
    parts = [texts[rows_of(part, n_texts)] for part in photos]
    return make_task(unit(as_floats(pairs.image)), *parts)


def make_task(gallery: Floats, attacker: Floats, bank: Floats, queries: Floats) -> Task:
    return Task(gallery, attacker, nnnorm.Bank.of(bank), queries[:: max(1, len(queries) // 5000)])


def first_places(queries: Floats, gallery: Floats, bias: nnnorm.Bias | None) -> Floats:
    """Return the share of queries that each item is top-1 for."""
    first = nnnorm.search(queries, gallery, bias, k=1).indices[:, 0]
    return np.bincount(first, minlength=len(gallery)) / len(queries)


def measure_scan(task: Task, added: dict[tuple[str, bool], Floats]) -> list[dict[str, Any]]:
    """Scan and search a gallery with adversarial items; return one record per kind."""
    gallery = np.concatenate([task.gallery, *added.values()])
    found = nnnorm.scan(gallery, task.bank)
    bias = nnnorm.NNN().fit(gallery, task.bank)
    before, after = (first_places(task.queries, gallery, one) for one in (None, bias))
    orders = {"sum": found.scores, **found.signals}
    places = {name: np.argsort(np.argsort(-v, kind="stable")) for name, v in orders.items()}
    # Items with a low z are no alerts, even within the budget.
    places["sum"] = np.where(found.scores < WATCH, len(gallery), places["sum"])
    alerts = [count_alerts(budget, len(gallery)) for budget in BUDGETS]
    records, start = [], len(task.gallery)
    for (kind, is_hidden), rows in added.items():
        new = np.arange(start, start + len(rows))
        start += len(rows)
        holding = new[before[new] >= LEAST_HELD]
        records.append(
            {
                "kind": kind,
                "hidden": is_hidden,
                "n": len(gallery) - len(task.gallery),
                "alerts": alerts,
                "held_before": round(float(before[new].sum()), 5),
                "held_after": round(float(after[new].sum()), 5),
                "n_holding": len(holding),
                "found": {
                    name: [int((place[holding] < n).sum()) for n in alerts]
                    for name, place in places.items()
                },
                # If there are more adversarial items than alerts, all alerts should be adversarial.
                "adversarial_alerts": [int((places["sum"][new] < n).sum()) for n in alerts],
                "removed": len(set(found.to_remove) & set(holding.tolist())),
            }
        )
    return records


def galleries(
    task: Task, is_mixed: bool, rng: np.random.Generator
) -> Iterator[dict[tuple[str, bool], Floats]]:
    """Yield the kinds to add to each gallery: one kind, or all together if a scan takes long."""
    best = best_scores(task.attacker, task.gallery)
    shares = SHARES if len(task.gallery) > 1000 else SMALL_SHARES
    for n in filter(None, (round(share * len(task.gallery)) for share in shares)):
        if is_mixed:
            kinds = [(kind, is_hidden) for kind in KINDS for is_hidden in (False, True)]
            drawn = [kinds[place] for place in rng.permutation(len(kinds))]
            parts = [len(part) for part in np.array_split(np.arange(n), len(kinds)) if len(part)]
            together = {}
            for (kind, is_hidden), size in zip(drawn, parts, strict=False):
                rows = plant(kind, size, task, best, rng)
                together[kind, is_hidden] = disguise(rows, task, rng) if is_hidden else rows
            yield together
            continue
        for kind in KINDS:
            made = plant(kind, n, task, best, rng)
            yield {(kind, False): made}
            yield {(kind, True): disguise(made, task, rng)}


def measure(data: Path, seed: int) -> dict[str, Any]:
    cases, clean = [], []
    for number, name in enumerate(NAMES):
        if seed not in SEEDS[name]:
            continue
        rng = np.random.default_rng([seed, number])
        task = read_task(data, name, rng)
        about = {"set": name, "seed": seed}
        alone = nnnorm.scan(task.gallery, task.bank)
        clean.append(
            {
                **about,
                "n_items": len(task.gallery),
                "n_references": alone.n_references,
                "watch": alone.count("watch"),
                "remove": alone.count("remove"),
                "largest": round(float(alone.scores.max()), 2),
            }
        )
        for place, added in enumerate(galleries(task, name == "flickr8k", rng)):
            cases += [{**about, "gallery": place, **record} for record in measure_scan(task, added)]
    return {"cases": cases, "clean": clean}


# --- tables ------------------------------------------------------------------------------------


def within(cases: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [case for case in cases if all(case[key] == value for key, value in wanted.items())]


def count_galleries(cases: list[dict[str, Any]]) -> int:
    return len({(case["seed"], case["gallery"]) for case in cases})


def share_found(cases: list[dict[str, Any]], signal: str, budget: int) -> str:
    """Format the share found of items with top-1 hits, if they are not more than alerts."""
    cases = [case for case in cases if case["n"] <= case["alerts"][budget]]
    n_holding = sum(case["n_holding"] for case in cases)
    if n_holding == 0:
        return "–"
    found = sum(case["found"][signal][budget] for case in cases)
    return f"{100 * found / n_holding:.0f} % of {n_holding:,}"


def tables(results: dict[str, Any]) -> str:
    cases, parts = results["cases"], []
    rows = []
    for name, label in NAMES.items():
        hidden: list[tuple[dict[str, Any], str]] = [({"hidden": False}, "plain")]
        for wanted, words in (*hidden, ({"hidden": True}, "disguised")):
            some = within(cases, set=name, **wanted)
            found = [share_found(some, "sum", place) for place in range(len(BUDGETS))]
            rows.append([f"{label}, {words}", *found])
    parts.append(make_table(["adversarial hubs found", *(f"at {b}" for b in BUDGETS)], rows))
    rows = []
    for signal in (*SIGNALS, "sum"):
        some = [share_found(within(cases, set=name), signal, 0) for name in NAMES]
        rows.append([signal, *(one.partition(" of ")[0] for one in some)])
    parts.append(make_table(["signal, found at 0.2%", *NAMES.values()], rows))
    rows = []
    for name, label in NAMES.items():
        some = within(results["clean"], set=name)
        n_items = some[0]["n_items"]
        rows.append(
            [
                f"{label}, {n_items:,} items, {len(some)} draws",
                f"{np.mean([one['watch'] for one in some]):.1f}",
                f"{np.mean([one['remove'] for one in some]):.1f}",
            ]
        )
    parts.append(make_table(["clean gallery", "watch, mean", "remove, mean"], rows))
    rows = []
    for name, label in NAMES.items():
        numbers = {case["n"] for case in within(cases, set=name)}
        for n in (min(numbers), max(numbers)):
            cells = [show_held(cases, name, n, is_hidden) for is_hidden in (False, True)]
            rows.append([f"{label}, {n} adversarial", *cells])
    parts.append(make_table(["top-1 hits of adversarial items", "plain", "disguised"], rows))
    return "\n\n".join(parts) + "\n"


def held(cases: list[dict[str, Any]], name: str, n: int, is_hidden: bool) -> list[float]:
    """Format the share of top-1 hits, uncorrected and corrected, averaged over galleries."""
    group = within(cases, set=name, n=n, hidden=is_hidden)
    # The sum over kinds that are added together.
    sums = [sum(case[when] for case in group) for when in ("held_before", "held_after")]
    return [100 * one / max(1, count_galleries(group)) for one in sums]


def show_held(cases: list[dict[str, Any]], name: str, n: int, is_hidden: bool) -> str:
    before, after = held(cases, name, n, is_hidden)
    return f"{before:.1f} → {after:.1f} %"


def draw(results: dict[str, Any], figure: Any) -> None:
    """Plot the share that each signal finds, and the hits of disguised items."""
    from nnnorm.report.plots import BLUE, GREY, ORANGE, label_axes, style_axes

    figure.set_size_inches(9.4, 4.2)
    left, right = figure.subplots(1, 2)
    style_axes(left, grid="x")
    style_axes(right)
    legend = {"frameon": False, "fontsize": 9.5, "loc": "upper center"}
    legend |= {"bbox_to_anchor": (0.5, -0.16), "borderaxespad": 0}
    signals = ("sum", *SIGNALS)
    for place, (name, color) in enumerate(zip(NAMES, (BLUE, ORANGE, GREY), strict=True)):
        some = [c for c in within(results["cases"], set=name) if c["n"] <= c["alerts"][0]]
        n_holding = sum(c["n_holding"] for c in some)
        shares = [100 * sum(c["found"][s][0] for c in some) / n_holding for s in signals]
        at = -np.arange(len(signals)) - 0.27 * (place - 1)
        left.barh(at, shares, 0.25, label=NAMES[name], color=color)
        for y in at[np.array(shares) == 0]:  # nothing found, and not left out
            left.text(0.8, y, "0", color=color, fontsize=8, va="center")
    left.set_yticks(-np.arange(len(signals)), signals)
    left.set(xlim=(0, 100), ylim=(0.5 - len(signals), 0.6))
    title = "The sum of six signals finds nearly all hubs"
    label_axes(left, title, "adversarial hubs found at a budget of 0.2 %, in %", "")
    left.legend(ncols=3, **legend)
    names, before, after = [], [], []
    for name, label in NAMES.items():
        largest = max(case["n"] for case in within(results["cases"], set=name))
        pair = held(results["cases"], name, largest, True)
        names.append(f"{label},\n{largest} items")
        before.append(pair[0])
        after.append(pair[1])
    at = np.arange(len(names))
    right.bar(at - 0.2, before, 0.36, color=GREY, label="uncorrected")
    right.bar(at + 0.2, after, 0.36, color=BLUE, label="corrected")
    right.set_xticks(at, names)
    lost = [100 * (1 - one / other) for one, other in zip(after, before, strict=True)]
    title = f"Disguised items lose {min(lost):.0f} to {max(lost):.0f} % of their hits"
    label_axes(right, title, "", "top-1 hits of disguised items, %")
    right.legend(ncols=2, **legend)


def main() -> int:
    sets = ("flickr8k", "unsplash500")
    seeds = sorted({seed for some in SEEDS.values() for seed in some})
    return run_benchmark(
        "Find adversarial hubs.", OUTPUT, measure, tables, seeds=seeds, sets=sets, draw=draw
    )


if __name__ == "__main__":
    sys.exit(main())
