"""Past queries from another source, and items passed as past queries.

*Recent queries.* Each case of `cases.py` has past queries and 64 recent, unlabeled ones from the
source of the test queries. The gain of `NNN()` is measured with the past queries, with the recent
queries alone, and with `Corrector.fit(…, recent=…)`. More cautious rules (`rules.py`) are measured
on the recent queries alone.

*Part of the gallery.* 250 past queries and the test queries ask for a random part of the items.
What `check` expects without labels is compared with what `NNN()` gains in R@1. "Different top-1
items" are those that the test queries find first, relative to the most there could be.

*Items as past queries.* Half of each set's items are searched. The past queries are items of the
other half, gallery rows with noise, or queries of which 40 % are gallery rows; own queries show the
false alarms. In columns "with queries", 64 queries are passed too, as in `check`, `tune` and with
`recent=`.

    python benchmarks/mismatch.py             # measure, write JSON, print the tables
    python benchmarks/mismatch.py --tables    # print the tables of the stored JSON
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cases import SETS, Case, Floats, Judge, Search, as_floats, cases, load_set
from real_sets import RESULTS, points, run_benchmark, table
from rules import THIRD, Material, shipped

import nnnorm
from nnnorm import open_embeddings
from nnnorm.input_checks import MISMATCH_Z, check_inputs, mismatch_z

OUTPUT = RESULTS / "mismatch.json"
SEEDS = (100, 101, 102, 103, 104)
KINDS = ("own", "searched", "opposite", "mismatched")
N_RECENT = 64
SIZES = (16, 64, 250, 1000, 4000)
PART_SETS, PARTS = ("clinc150", "apibench"), (1.0, 0.25)
N_PART_QUERIES, N_PART_DRAWS = 250, 5
CAUTION = {
    "n/(n + 16)": THIRD,
    "n/(n + 32)": replace(THIRD, doubt=32),
    "n/(n + 64)": replace(THIRD, doubt=64),
    "n/(n + 128)": replace(THIRD, doubt=128),
    "reliability instead of its root": replace(THIRD, power=1),
    "reference_k 16": replace(THIRD, smallest=16),
    "spread up to 1": replace(THIRD, spread=1.0),
    "gate from t = 0.1 to 0.3": replace(THIRD, gate=(0.25, 0.1, 0.3)),
    "no gate": replace(THIRD, gate=None),
}
BLOCK = 20  # consecutive rows that stay in one half, such as the captions of an image
N_DRAWS = 2


# --- recent queries ------------------------------------------------------------------------------


def split_recent(case: Case, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return ``(bank, recent)``; own past queries are divided into both."""
    source = case.bank if case.own is None else case.own
    order = rng.permutation(len(source))
    recent = source[order[:N_RECENT]]
    return (source[order[N_RECENT:]] if case.own is None else case.bank), recent


def recent_cases(data: Path, seed: int) -> Iterator[tuple[Case, Floats, Floats]]:
    """Yield ``(case, bank, recent)``."""
    for case in cases(data, seed):
        is_small = case.own is None and len(case.bank) <= 2 * N_RECENT
        if case.kind in KINDS and not is_small and case.search.name != "flickr8k/all-images":
            yield case, *split_recent(case, np.random.default_rng([seed, 6]))


def measure_recent(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    judge = None
    for case, bank, recent in recent_cases(data, seed):
        z = mismatch_z(*(open_embeddings(rows, normalize=True) for rows in (bank, recent)))
        if judge is None or judge.search is not case.search:
            judge = Judge(case.search)
        gallery = case.search.gallery
        corrections = {
            "past queries": shipped(Material(gallery, bank)),
            "recent queries": shipped(Material(gallery, recent)),
            "`recent=`": shipped_with_recent(gallery, bank, recent),
        }
        gains = {k: round(float(judge.gains(one).mean()), 3) for k, one in corrections.items()}
        print(f"{case.name}  seed {seed}  z {z:.1f}", file=sys.stderr)
        about = {"case": case.name, "kind": case.kind, "seed": seed, "z": round(z, 2)}
        yield {**about, "gains": gains}


def shipped_with_recent(gallery: Floats, bank: Floats, recent: Floats) -> Floats:
    """Measure `nnnorm.Corrector.fit(…, recent=…)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnnorm.NNNormWarning)
        corrector = nnnorm.Corrector.fit(gallery, bank, recent=recent, normalize=False)
    return np.asarray(corrector.bias.correction)


def mean_gains(cells: list[dict[str, Any]], kinds: Sequence[str]) -> list[dict[str, float]]:
    """Return the mean gain of every case over seeds, by rule."""
    by_case: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in (cell for cell in cells if cell["kind"] in kinds):
        by_case[cell["case"]].append(cell["gains"])
    return [
        {label: float(np.mean([gains[label] for gains in drawn])) for label in drawn[0]}
        for drawn in by_case.values()
    ]


def summarize(found: list[dict[str, float]], label: str) -> str:
    """Format the mean over cases, the worst case, and the number of cases below -0.3."""
    values = np.array([gains[label] for gains in found])
    return f"{points(values.mean())} ({points(values.min())}; {(values < -0.3).sum()})"


def recent_tables(cells: list[dict[str, Any]]) -> str:
    rows = []
    for kind in KINDS:
        found = mean_gains(cells, (kind,))
        flagged = [cell["z"] > MISMATCH_Z for cell in cells if cell["kind"] == kind]
        row = [kind, f"{len(found)}", f"{sum(flagged)} of {len(flagged)}"]
        rows.append([*row, *(summarize(found, label) for label in cells[0]["gains"])])
    head = ["kind of past queries", "cases", "z > 3", "past queries alone"]
    return table([*head, "recent queries alone", "`recent=`"], rows)


def measure_caution(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Return the gains of more cautious rules on the recent queries alone."""
    judge, known = None, {}
    for case, _, recent in recent_cases(data, seed):
        if judge is None or judge.search is not case.search:
            judge, known = Judge(case.search), {}
        if (key := recent.tobytes()) not in known:
            material = Material(case.search.gallery, recent)
            known[key] = {
                label: round(float(judge.gains(rule(material)).mean()), 3)
                for label, rule in CAUTION.items()
            }
        yield {"case": case.name, "kind": case.kind, "seed": seed, "gains": known[key]}


def caution_table(cells: list[dict[str, Any]]) -> str:
    groups = {"own, searched": KINDS[:2], "opposite, mismatched": KINDS[2:]}
    found = {title: mean_gains(cells, kinds) for title, kinds in groups.items()}
    rows = [[label, *(summarize(found[title], label) for title in groups)] for label in CAUTION]
    titles = [f"{title} ({len(found[title])})" for title in groups]
    return table(["rule on 64 recent queries", *titles], rows)


# --- queries that ask for a part of the gallery --------------------------------------------------


def measure_parts(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(PART_SETS):
        queries, gallery, pairs = load_set(data, name)
        whole = Search(name, "r1", queries, np.arange(len(queries)), gallery, pairs, queries,
                       is_searched=True)  # fmt: skip
        for draw in range(N_PART_DRAWS):
            rng = np.random.default_rng([seed, 8, number, draw])
            items = rng.permutation(np.unique(pairs[:, 1]))
            for part in PARTS:
                is_asked = np.isin(pairs[:, 1], items[: round(part * len(items))])
                past, test = np.array_split(rng.permutation(np.unique(pairs[is_asked, 0])), 2)
                tested, bank = whole.test(np.sort(test)), queries[past[:N_PART_QUERIES]]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", nnnorm.NNNormWarning)
                    found = nnnorm.check(gallery, bank, queries=tested.queries, normalize=False)
                judge = Judge(tested)
                gain = judge.gains(shipped(Material(gallery, bank))).mean()
                firsts = judge.scores.argmax(axis=1)
                cell = {"set": name, "part": part, "seed": seed, "expectation": found.expectation}
                share = len(np.unique(firsts)) / min(len(test), len(gallery))
                yield cell | {"top1": round(share, 3), "gain": round(float(gain), 3)}


def parts_table(cells: list[dict[str, Any]]) -> str:
    rows = []
    for name, part in dict.fromkeys((cell["set"], cell["part"]) for cell in cells):
        here = [cell for cell in cells if (cell["set"], cell["part"]) == (name, part)]
        gains, top1 = (np.array([cell[key] for cell in here]) for key in ("gain", "top1"))
        n_help = sum(cell["expectation"] == "help" for cell in here)
        gain = f"{points(gains.mean())} ({points(gains.min())})"
        row = [name, f"{part:.0%}", f"{top1.mean():.2f}", f"{n_help} of {len(here)}", gain]
        rows.append(row)
    head = ["set", "items asked for", "different top-1 items", "likely to help", "gain (worst)"]
    return table(head, rows)


# --- items as past queries -----------------------------------------------------------------------


def read_sides(data: Path) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield name, items and queries of every set, in both directions if both make sense."""

    def read(name: str) -> Floats:
        return as_floats(np.load(data / f"{name}.npy"))

    pairs = [("flickr8k", read("flickr8k/image"), read("flickr8k/caption"))]
    pairs += [("unsplash500", read("unsplash500/image"), read("unsplash500/text"))]
    pairs += [("clip_coco500", read("clip_coco500/documents"), read("clip_coco500/queries"))]
    unique = (np.load(data / f"amazon1293/unique_{side}_rows.npy") for side in ("image", "text"))
    image, text = read("amazon1293/image"), read("amazon1293/text")
    pairs += [("amazon1293", image[next(unique)], text[next(unique)])]
    for name, images, texts in pairs:
        yield f"{name}, images", images, texts
        yield f"{name}, texts", texts, images
    for name in ("cosqa", "medquad", "nl2bash", "bli_it-en", "bli_zh-en"):
        documents, queries = read(f"{name}/documents"), read(f"{name}/queries")
        yield name, documents, queries
        yield f"{name}, reversed", queries, documents
    for name in ("apibench", "clinc150"):
        yield name, read(f"{name}/documents"), read(f"{name}/queries")
    for name in ("clinc150", "bli_it-en", "bli_zh-en"):
        yield f"{name}, bank", read(f"{name}/documents"), read(f"{name}/bank")


def is_noticed(gallery: Floats, bank: Floats, queries: Floats | None = None) -> bool:
    """Return whether `fit`, or with queries `check`, `tune` or `recent=`, warns or raises."""
    items, past = (open_embeddings(rows, normalize=True) for rows in (gallery, bank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", nnnorm.NNNormWarning)
        asked = None if queries is None else open_embeddings(queries, normalize=True)
        check_inputs(items, past, asked, allow_gallery_rows=None)
    return any("repeated items" not in str(one.message) for one in caught)


def measure_items(data: Path, seed: int) -> Iterator[dict[str, Any]]:
    for number, (name, items, queries) in enumerate(read_sides(data)):
        rng = np.random.default_rng([seed, 7, number])
        for size in SIZES:
            for _ in range(N_DRAWS):
                half = rng.permutation(-(-len(items) // BLOCK)) % 2
                is_searched = np.repeat(half, BLOCK)[: len(items)] == 0
                gallery, others = items[is_searched], items[~is_searched]
                asked = queries[rng.permutation(len(queries))]
                own, recent = asked[N_RECENT:][:size], asked[:N_RECENT]
                banks = {"own": own}
                if size <= len(others):
                    banks["other items"] = others[rng.permutation(len(others))[:size]]
                if size <= len(gallery):
                    noise = rng.normal(scale=0.01, size=(size, items.shape[1])).astype(np.float32)
                    rows = gallery[rng.permutation(len(gallery))[:size]]
                    banks["noisy rows"] = as_floats(rows + noise)
                    n_rows = round(0.4 * size)
                    banks["40 % rows"] = np.concatenate([rows[:n_rows], own[n_rows:]])
                for kind, bank in banks.items():
                    cell: dict[str, Any] = {"set": name, "size": size, "bank": kind, "seed": seed}
                    cell["fit"] = is_noticed(gallery, bank)
                    if kind in ("own", "other items"):
                        cell["certain"] = is_noticed(gallery, bank, recent)
                    yield cell
        print(f"{name}  seed {seed}", file=sys.stderr)


def items_tables(cells: list[dict[str, Any]]) -> str:
    kinds = ("other items", "noisy rows", "40 % rows", "own")

    def count(some: list[dict[str, Any]], where: str) -> str:
        return f"{sum(cell[where] for cell in some)} of {len(some)}" if some else ""

    rows = []
    for size in dict.fromkeys(cell["size"] for cell in cells):
        here = [cell for cell in cells if cell["size"] == size]
        of = {kind: [c for c in here if c["bank"] == kind] for kind in kinds}
        # With 16 past queries, `fit` only compares rows.
        large = of["other items"] if size >= N_RECENT else []
        row = [str(size), count(large, "fit"), count(of["other items"], "certain")]
        row += [count(of[kind], "fit") for kind in kinds[1:3]]
        rows.append([*row, *(count(of["own"], where) for where in ("fit", "certain"))])
    head = ["items", "items, with queries", "noisy items", "40 % items", "own", "own, with queries"]
    return table(["past queries", *head], rows)


def measure(data: Path, seed: int) -> dict[str, Any]:
    return {
        "recent": list(measure_recent(data, seed)),
        "caution": list(measure_caution(data, seed)),
        "parts": list(measure_parts(data, seed)),
        "items": list(measure_items(data, seed)),
    }


def tables(results: dict[str, Any]) -> str:
    return (
        "### Recent queries\n\n"
        "The table shows the mean gain over cases, in points, with past queries alone, with 64\n"
        "recent queries alone, and with both (`recent=`). The worst case and the number of\n"
        "cases below −0.3 are in parentheses.\n"
        f"\n{recent_tables(results['recent'])}\n\n"
        "### Queries that ask for a part of the gallery\n\n"
        "In each draw, past queries and traffic ask for the same random part of the items.\n"
        "*Different top-1 items* is the number of items that are top-1 for some test query,\n"
        "relative to the maximum. *Likely to help* counts the draws in which `check`\n"
        "without labels prints these words. *Gain* is the mean over draws, with the worst draw in\n"
        "parentheses.\n"
        f"\n{parts_table(results['parts'])}\n\n"
        "### Items passed as past queries\n\n"
        "The table shows how often nnnorm warns if the past queries are items, items with\n"
        "noise, or 40 % items, and how often it mistakes *own* queries for items. In the columns\n"
        "*with queries*, nnnorm can compare the past queries with 64 queries.\n"
        f"\n{items_tables(results['items'])}\n"
    )


def all_tables(results: dict[str, Any]) -> str:
    """Return the page's tables, then rules for few recent queries, which are only printed."""
    return f"{tables(results)}\n### More cautious rules\n\n{caution_table(results['caution'])}\n"


def main() -> int:
    about = "Measure mismatched past queries, and items passed as past queries."
    return run_benchmark(about, OUTPUT, measure, all_tables, seeds=SEEDS, sets=SETS)


if __name__ == "__main__":
    sys.exit(main())
