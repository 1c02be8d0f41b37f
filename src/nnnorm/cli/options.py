"""All options of the command line: their groups, help lines and flags.

A command's function has plain parameters, such as ``gallery: Path``. `app.command` converts them to
options with this table, in its order. A command may replace a line.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Argument, Option

GROUPS = ("Input", "Settings", "Output")
# Placeholders of values in the help, unless the table has another.
_VALUES = {Path: "FILE", int: "N", float: "NUMBER", str: "TEXT"}


@dataclass(frozen=True)
class Line:
    """The help of an option. `flags` replaces its own flag, `value` its placeholder."""

    group: str
    help: str
    value: str | None = None
    flags: tuple[str, ...] = ()
    least: int | None = None
    is_argument: bool = False


_input = partial(Line, "Input")
_argument = partial(Line, "Input", is_argument=True)
_setting = partial(Line, "Settings")
_output = partial(Line, "Output")

LINES = {
    # --- input
    "url": _argument("Index, such as faiss:photos or sqlite:a.db?table=photos.", "URL"),
    "source": _argument("URL of the existing collection; it isn't changed.", "SOURCE"),
    "target": _argument("URL of the corrected copy.", "TARGET"),
    "log": _argument("Past queries, oldest first: table or embeddings.", "LOG"),
    "model": _argument("Folder of a model, or its name on Hugging Face.", "MODEL"),
    "kind": _argument("karpathy, coco or table.", "KIND"),
    "files": _argument("File to read; for coco, one per split.", "FILES"),
    "file": _argument("Bias, bank, corrector, ranking or embeddings.", "FILE"),
    "ranking": _argument("Written by `nnnorm search -o` or `nnnorm index search -o`.", "RANKING"),
    "gallery": _input("Items to search: .npy, .npz, .parquet or a folder."),
    "queries": _input("Queries: .npy, .npz, .parquet or a folder."),
    "references": _input("Past queries in the same formats, or a bank."),
    "truth": _input("Right items: .npy, .json or qrels.", flags=("--truth", "--qrels")),
    "bias": _input("Bias written by `nnnorm fit`."),
    "corrector": _input("Corrector written by `nnnorm fit --save-corrector`."),
    "recent": _input("Recent queries from your own traffic."),
    "gallery_references": _input("More items, for dualis, dualdis and sinkhorn."),
    "ids": _input("Ids of the items: .npy, .json, or one per line."),
    "labels": _input("Per query, 1 if its first hit is right, else 0."),
    "parents": _input("Document of each item: .npy, .json, one per line."),
    "query_ids": _input("Ids of the queries, as in the qrels."),
    "clicks": _input("Clicks per item: .npy, or one per line."),
    "items": _input("New items: .npy, .npz, .parquet or a folder."),
    "metadata": _input("One JSON object per item: .jsonl or .json."),
    "validation_gallery": _input("Gallery of the validation queries, if different."),
    "validation_queries": _input("Queries to tune on; default: cross-fitting."),
    "validation_truth": _input("Right items of the validation queries."),
    "groups": _input("Group of each item: one per line, or TABLE:COLUMN."),
    "images": _input("Images: folder, list of paths, TABLE:COLUMN, tar files."),
    "texts": _input("Texts: one per line, TABLE:COLUMN, tar files."),
    "audio": _input("Sounds: folder, list of paths, TABLE:COLUMN, tar files."),
    "beir": _input("BEIR folder: corpus, queries, qrels.", "FOLDER"),
    "split": _input("Split to encode: queries of qrels/NAME.tsv.", "NAME"),
    "column": _input("Column with the embeddings.", "NAME"),
    "time": _input("Column with times: dates, or seconds since 1970.", "NAME"),
    "count": _input("Column with the number of times a query was asked.", "NAME"),
    "index": _input("URL of an index, instead of --gallery.", "URL"),
    "captions": _input("Texts of the items: one per line, or a table."),
    "query_captions": _input("Texts of the queries."),
    "reference_captions": _input("Texts of the past queries."),
    "encoder": _input("Model for queries that you type.", "MODEL"),
    "normalize": _input("Divide all rows by their norms."),
    # --- settings
    "k": _setting("Hits per query.", flags=("-k", "--k"), least=1),
    "ks": _setting("Count the first N items; repeatable.", "N", flags=("-k", "--k")),
    "weight": _setting("Weight of the bias; 0 turns it off."),
    "min_confidence": _setting("Return no hits for queries below this confidence."),
    "method": _setting("nnn, csls, dn, is, qbnorm, dualis, dualdis, sinkhorn.", "NAME"),
    "methods": _setting("Method to try, such as csls; repeatable.", "NAME", flags=("--method",)),
    "reference_k": _setting("Past queries averaged per item, or auto.", "N"),
    "alpha": _setting("Weight of the bias, or auto.", "NUMBER"),
    "duplicates": _setting("Near-duplicate past queries.", "drop|keep"),
    "solver": _setting("auto, exact, approximate, torch, cuda or mps.", "NAME"),
    "settings": _setting("Other settings; repeatable.", "NAME=VALUE", flags=("--set",)),
    "select": _setting("one-standard-error, or max.", "RULE"),
    "only": _setting("Filter, as in Python, or JSON: '{\"year\": 2007}'.", flags=("--filter",)),
    "replace": _setting("Replace items whose ids are in the index."),
    "ignore_missing": _setting("Skip ids that the index doesn't have."),
    "popularity_weight": _setting("Weight of log(1 + clicks). [default: 0.02]"),
    "undo": _setting("Return to the newer version."),
    "add": _setting("Add the queries to the bank in --output."),
    "max_references": _setting("Keep a sample of this many unique queries.", least=1),
    "forget_before": _setting("Drop queries last asked before this time.", "TIME"),
    "budget": _setting("Maximum number or share of alerts. [default: 0.2%]", "SHARE"),
    "hubs": _setting("List this many hubs; default: 10 without --truth."),
    "target_shares": _setting("Target shares: gallery or equal.", "SHARES", flags=("--target",)),
    "difference": _setting("Two groups to compare: bias@k = (A - B)/k.", "A,B"),
    "library": _setting("Library, if the files don't identify it.", "NAME"),
    "revision": _setting("Branch, tag or commit on Hugging Face."),
    "device": _setting("auto, cpu, cuda, cuda:1, mps."),
    "dtype": _setting("float32, bfloat16 or float16.", "TYPE"),
    "batch_size": _setting("Items per forward pass.", least=1),
    "skip_broken": _setting("Decode all images; leave out those that can't be read."),
    "host": _setting("Address to listen on.", "ADDRESS"),
    "port": _setting("Port; 0 picks a free one.", least=0),
    "browser": _setting("Open the page in a browser."),
    # --- output
    "output": _output("File to write.", flags=("-o", "--output")),
    "save_corrector": _output("Also write a corrector (.safetensors)."),
    "run_file": _output("Also write a TREC run file."),
    "export": _output("Write a static page instead of serving one.", "FOLDER"),
    "report": _output("Write report.md, and plots if there are any.", "FOLDER"),
    "explain": _output("Also print all numbers and what they mean."),
    "as_json": _output("Print JSON.", flags=("--json",)),
}

# Mistaken options and settings, and what to suggest instead: the first that the command has.
MEANT = {
    **dict.fromkeys(("-k", "--k", "k"), ("--reference-k", "reference_k")),
    **dict.fromkeys(("--references", "--past-queries"), ("--references", "--corrector", "--bias")),
    **dict.fromkeys(("--labels", "--truth"), ("--truth", "--labels")),
    **dict.fromkeys(("--items", "--gallery"), ("--gallery", "--items")),
    **dict.fromkeys(("--bias", "--corrector"), ("--bias", "--corrector")),
    "centre": ("center",),
}

# An output of several files.
FOLDER = _output("Folder to write to.", "FOLDER", flags=("-o", "--output"))


def make_option(parameter: Parameter, line: Line) -> Parameter:
    """Convert a parameter of a function to an option or argument of Typer."""
    kinds = [kind for kind in _inner_types(parameter.annotation) if kind in _VALUES]
    value = line.value or (_VALUES[kinds[0]] if kinds else None)
    flag = f"--{parameter.name.replace('_', '-')}"
    about: dict[str, Any] = {"help": line.help, "metavar": value, "rich_help_panel": line.group}
    info: Any
    if line.is_argument:
        info = Argument(**about)
    else:
        is_switch = bool in _inner_types(parameter.annotation)
        both = is_switch and parameter.default is not False
        flags = line.flags or (f"{flag}/--no{flag[1:]}" if both else flag,)
        info = Option(*flags, **about, min=line.least)
    return parameter.replace(
        annotation=Annotated[parameter.annotation, info], kind=Parameter.KEYWORD_ONLY
    )


def _inner_types(kind: Any) -> Iterator[Any]:
    """Yield a type and the types in it: for ``list[str] | None``, also ``str``."""
    yield kind
    for inner in get_args(kind):
        yield from _inner_types(inner)
