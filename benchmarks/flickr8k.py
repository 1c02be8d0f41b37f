"""Repeats the paper's experiment on Flickr8k: methods, numbers of past queries, and four claims.

Methods are tuned on the validation split and measured on the test split, 1,000 photos each. Past
queries are the train split or, for image retrieval, captions of COCO. All cells of NNN's grid are
measured to check the paper's claims about k and α for this small encoder.

    python benchmarks/flickr8k.py                             # measure, write JSON, print tables
    python benchmarks/flickr8k.py --tables                    # print the tables of the stored JSON
    python benchmarks/flickr8k.py --write-splits ../splits    # only write the files of each split

Pass the folder of the embeddings with `--data`.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import flickr8k_trends as trends
import numpy as np
import numpy.typing as npt
from harness import add_options, can_measure, collapsed, print_stored, store
from real_sets import (
    DATA,
    RESULTS,
    Direction,
    Flickr8k,
    Floats,
    machine,
    points,
    read_unsplash500,
    table,
    to_json,
    what_is_missing,
)

from nnnorm.evaluation.comparison import Task, make_result
from nnnorm.evaluation.metrics import evaluate
from nnnorm.evaluation.tuning import Select, tune
from nnnorm.files import write_whole
from nnnorm.methods import METHOD_NAMES, NNN, NO_CORRECTION, find_method, make_method

Record: TypeAlias = dict[str, Any]

OUTPUT = RESULTS / "flickr8k.json"
SELECTS: tuple[Select, ...] = ("one-standard-error", "max")
METHODS = [name for name in METHOD_NAMES if name != NO_CORRECTION]
# With a gallery bank, Sinkhorn would take longer than all other methods together.
TWO_BANKS = [name for name in METHODS if find_method(name)[0].gallery_bank == "needed"]

TITLES = {
    "image": "Image retrieval, training captions as past queries",
    "image-coco": "Image retrieval, COCO captions as past queries (mismatched)",
    "text": "Text retrieval, training photos as past queries",
}


class Setup(NamedTuple):
    """One retrieval task with its banks of past queries."""

    name: str
    test: Task
    validation: Task
    references: Floats
    gallery_references: Floats


def make_setups(flickr8k: Flickr8k) -> list[Setup]:
    splits = {s: flickr8k.pairs.some(flickr8k.images(s)) for s in ("train", "val", "test")}
    train = splits["train"]

    def setup(name: str, direction: Direction, references: Floats, others: Floats) -> Setup:
        test, validation = (splits[split].task(direction) for split in ("test", "val"))
        return Setup(name, test, validation, references, others)

    return [
        setup("image", "image", train.text, train.image),
        setup("image-coco", "image", flickr8k.coco, train.image),
        setup("text", "text", train.image, train.text),
    ]


def write_splits(flickr8k: Flickr8k, folder: Path) -> None:
    """Write the files that `nnnorm compare` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, npt.NDArray[Any]] = {"coco_captions": flickr8k.coco}
    for split in ("train", "val", "test"):
        pairs = flickr8k.pairs.some(flickr8k.images(split))
        arrays |= {f"{split}_images": pairs.image, f"{split}_captions": pairs.text}
        if split != "train":
            arrays[f"{split}_photo_of_caption"] = pairs.task("image").truth
            arrays[f"{split}_captions_of_photo"] = pairs.task("text").truth
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        write_whole(path, partial(np.save, arr=array))
        print(f"{path}  {array.shape}")


# --- methods and banks -------------------------------------------------------------------------


def compare_methods(setup: Setup) -> list[Record]:
    """Run `compare` with both rules for settings; each method is tuned only once."""
    name, test, validation, references, others = setup
    raw = evaluate(test.queries, test.gallery, truth=test.truth)
    results = {select: [make_result("none", {}, raw)] for select in SELECTS}
    for method in METHODS:
        second = others if method in TWO_BANKS else None
        queries, gallery, truth = validation
        tuning = tune(
            gallery,
            references,
            queries=queries,
            truth=truth,
            methods=(method,),
            gallery_references=second,
        )
        cells = (tuning.best_by_rule, tuning.best_by_maximum)
        for select, cell in zip(SELECTS, cells, strict=True):
            chosen = make_method(cell.method, **cell.params)
            bank = second if cell.params else None  # no correction was best
            bias = chosen.fit(test.gallery, references, gallery_references=bank)
            corrected = evaluate(test.queries, test.gallery, bias, truth=test.truth)
            results[select].append(make_result(method, cell.params, corrected, raw))
    sizes = {"n_queries": len(raw), "n_gallery": raw.n_gallery, "n_references": len(references)}
    return [
        {"task": name, "select": select, **sizes, "results": [r.to_dict() for r in some]}
        for select, some in results.items()
    ]


def ablate_banks(name: str, setups: list[Setup]) -> Record:
    """Measure NNN with 100, 50, 20 and 10 % of each bank; smaller ones are part of larger ones."""
    test, validation = setups[0].test, setups[0].validation
    raw = evaluate(test.queries, test.gallery, truth=test.truth)
    rows = []
    for setup in setups:
        order = np.random.default_rng(0).permutation(len(setup.references))
        for share in (1.0, 0.5, 0.2, 0.1):
            bank = setup.references[np.sort(order[: round(share * len(order))])]
            known = {"queries": validation.queries, "truth": validation.truth}
            best = tune(validation.gallery, bank, **known).best
            row = {
                "bank": "coco" if setup.name == "image-coco" else "flickr8k",
                "share": share,
                "n_references": len(bank),
            }
            fits = {"tuned": make_method(best.method, **best.params), "automatic": NNN()}
            for how, method in fits.items():
                bias = method.fit(test.gallery, bank, duplicates="drop")
                found = evaluate(test.queries, test.gallery, bias, truth=test.truth)
                params = best.params if how == "tuned" else bias.params
                row[how] = make_result(method.name, params, found, raw).to_dict()
            rows.append(row)
    return {"task": name, "uncorrected": make_result("none", {}, raw).to_dict(), "rows": rows}


def run(data: Path) -> Record:
    started = time.perf_counter()
    flickr8k = Flickr8k(data / "flickr8k")
    setups = make_setups(flickr8k)
    directions = {"image": setups[:2], "text": setups[2:]}
    results: Record = {"comparisons": [], "ablations": [], "grids": [], "galleries": []}
    for setup in setups:
        results["comparisons"] += compare_methods(setup)
        tasks = (setup.validation, setup.test)
        results["grids"].append(trends.measure_grid(setup.name, *tasks, setup.references))
        print(f"{TITLES[setup.name]}  {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for name, some in directions.items():
        results["ablations"].append(ablate_banks(name, some))
    results["galleries"] += trends.vary_gallery(flickr8k)
    results["galleries"] += trends.vary_model(read_unsplash500(data / "unsplash500"))
    return {**machine(), "seconds": round(time.perf_counter() - started), **results}


# --- the tables --------------------------------------------------------------------------------


def tables(results: Record) -> str:
    """Return the tables of `docs/flickr8k.md` as Markdown."""
    parts = ["## Methods side by side"]
    for task, title in TITLES.items():
        some = comparison_table([c for c in results["comparisons"] if c["task"] == task])
        parts.append(f"{title}: {some}" if task == "image" else collapsed(title, some))
    parts.append("## Fewer past queries, and mismatched ones")
    parts.append(
        "The percentages are shares of the training split (flickr8k) or of the COCO captions. "
        "Here, duplicates among the past queries are dropped; above, they aren't."
    )
    for task, words in (("image", "Image retrieval"), ("text", "Text retrieval")):
        some = [ablation for ablation in results["ablations"] if ablation["task"] == task]
        parts.append(collapsed(words, ablation_table(some)))
    return "\n\n".join(parts) + "\n"


def all_tables(results: Record) -> str:
    """Return the tables of the page, and then the best settings, which are only printed."""
    best = trends.tables(results["grids"], results["galleries"])
    return f"{tables(results)}\n## Best settings\n\n{best}\n"


def comparison_table(comparisons: list[Record]) -> str:
    rule = comparisons[0]
    columns = ["method", "tuned setting", "R@1", "R@5", "R@10", "gain in R@1", "most top-1 hits"]
    rows = [
        [result["method"], *result_columns(result), str(result["hubness"]["max"])]
        for result in rule["results"]
    ]
    sizes = (
        f"{rule['n_queries']:,} test queries, {rule['n_gallery']:,} items, "
        f"{rule['n_references']:,} past queries."
    )
    return f"{sizes}\n\n{table(columns, rows)}"


def result_columns(result: Record) -> list[str]:
    recalls = (f"{100 * result[f'recall_at_{k}']:.2f}" for k in (1, 5, 10))
    setting = setting_words(result["params"])
    if not setting and result["gain"] is not None:
        setting = "no correction"
    return [setting, *recalls, interval_words(result["gain"])]


def setting_words(params: Mapping[str, Any]) -> str:
    short = {"reference_k": "k", "alpha": "α", "weight": "λ", "beta": "β", "tau": "τ"}
    short |= {"beta_query": "β_q", "beta_gallery": "β_g"}
    words = [f"{short[n]} = {v:.4g}" for n, v in params.items() if n in short]
    return ", ".join([*words, *(["centered"] if params.get("center") is True else [])])


def interval_words(gain: Record | None) -> str:
    if gain is None:
        return ""
    mean, low, high = (points(100 * gain[name]) for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def ablation_table(ablations: list[Record]) -> str:
    columns = ["past queries", "number", "tuned setting", "R@1, tuned", "gain, tuned"]
    columns += ["R@1, automatic", "gain, automatic"]
    rows = []
    for rule in ablations[0]["rows"]:
        tuned = setting_words(rule["tuned"]["params"]) or "no correction"
        row = [f"{rule['bank']} {100 * rule['share']:.0f} %", f"{rule['n_references']:,}", tuned]
        rows.append([*row, *recall_and_gain(rule["tuned"]), *recall_and_gain(rule["automatic"])])
    return table(columns, rows)


def recall_and_gain(result: Record) -> list[str]:
    return [f"{100 * result['recall_at_1']:.2f}", interval_words(result["gain"])]


def main() -> int:
    parser = argparse.ArgumentParser(description="The paper's experiment on Flickr8k.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    add_options(parser, OUTPUT)
    parser.add_argument(
        "--write-splits",
        type=Path,
        metavar="DIR",
        help="only write the .npy files that `nnnorm compare` takes",
    )
    arguments = parser.parse_args()
    if arguments.tables:
        return print_stored(arguments.output, all_tables)
    needed = ["flickr8k"] if arguments.write_splits else ["flickr8k", "unsplash500"]
    missing = what_is_missing(arguments.data, *needed)
    if arguments.write_splits is not None and missing is None:
        write_splits(Flickr8k(arguments.data / "flickr8k"), arguments.write_splits)
        return 0
    if not can_measure(arguments.output, missing):
        return 1
    results = run(arguments.data)
    text = to_json(results, "comparisons", "ablations", "grids", "galleries")
    store(arguments.output, text)
    print(all_tables(json.loads(text)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
