"""Every command of the package with healthy arguments, which the fuzzer then damages.

Commands and options are read from the command line itself. A command that is missing from `LINES`
gets a line made from the names of its required options, and an input file that no line has gets a
line of its own. Where such a line does not work, or a file option has a name that is not known
here, the tests fail and ask for a line.
"""

import inspect
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

from nnnorm.cli import app, load_commands
from tests.attack.materials import APPLICATION, ENGINES, LIVING, SERVERS, living_url_of, url_of

_EVERY = (*ENGINES, *SERVERS)
_TASK = "--gallery gallery.npy --queries queries.npy"
_VALIDATION = (
    "--validation-queries queries.npz --validation-truth truth.json "
    "--validation-gallery gallery.npz"
)
_LEARN = "--gallery gallery.npy --references references.npy --queries queries.npy"

LINES = {
    "fit": [
        "--gallery gallery.npy --references references.npy -o out.safetensors --json",
        "--gallery gallery.npz --references bank.safetensors -o out.safetensors --json",
        "--gallery gallery.parquet --references references.npy -o out.safetensors --json",
        "--gallery shards --references references.npy --normalize -o out.safetensors --json",
        "--gallery gallery.npy --references references.npy --gallery-references others.npy "
        "--method dualdis --beta-query 5 --beta-gallery 5 -o out.safetensors --json",
        "--gallery gallery.npy --references references.npy --recent others.npy "
        "--save-corrector out-corrector.safetensors -o out.safetensors --json",
        "--gallery gallery.npy --references references.npy --method sinkhorn -o out.safetensors",
    ],
    "search": [
        f"{_TASK} --bias bias.safetensors -k 3 --json",
        "--gallery gallery.parquet --queries queries.npz -k 3 --ids ids.npy --json",
        f"{_TASK} --bias bias.safetensors -k 3 --ids ids.json --json",
        f"{_TASK} --bias bias.safetensors -k 3 --ids ids.txt -o out.npz",
    ],
    "info": [
        "gallery.npy --json", "gallery.npz --json", "gallery.parquet --json", "shards --json",
        "bias.safetensors --json", "bank.safetensors", "corrector.safetensors --json",
        "ranking.npz --json",
    ],
    "demo": ["-o out --json"],
    "bank build": [
        "log.parquet --time day --count times --half-life 30d -o out.safetensors --json",
        "log.csv --time day -o out.safetensors --json",
        "log.tsv --count times -o out.safetensors --json",
        "log.jsonl --time day --count times -o out.safetensors --json",
        "references.npy -o out.safetensors --json",
    ],
    "bank add": [
        "bank.safetensors log.jsonl -o out.safetensors --json",
        "bank.safetensors references.npy -o out.safetensors",
    ],
    "bank info": ["bank.safetensors --json"],
    "extend": ["--corrector corrector.safetensors --items new.npy -o out.safetensors --json"],
    "drift": [
        "--corrector corrector.safetensors --queries queries.npy --json",
        "--corrector corrector.safetensors --queries queries.npy --gallery gallery.npy",
    ],
    "encode": [
        "model --images pictures --texts captions.txt -o out --json",
        "model --images pictures.txt -o out --json",
        "model --images samples.tar -o out --json",
        "model --texts samples.tar -o out --json",
        "model --texts captions.csv --text-column caption -o out --json",
        "model --texts captions.jsonl --text-column caption -o out --json",
        "model-sounds --audio sounds -o out --json",
    ],
    "check": [
        f"{_LEARN} --truth truth.npy --json",
        f"{_LEARN} --recent others.npy --ids ids.json --json",
        f"{_TASK} --references bank.safetensors",
        f"{_TASK} --truth truth.json --json",
    ],
    "evaluate": [
        f"{_TASK} --truth truth.npy --bias bias.safetensors --json",
        f"{_TASK} --truth truth.json --json",
        f"{_TASK} --truth truth.npy --bias bias.safetensors --markdown out.md",
    ],
    "diagnose": [
        f"{_TASK} --bias bias.safetensors --truth truth.npy --ids ids.json --json",
        f"{_LEARN} --json",
        f"{_TASK} --references bank.safetensors",
    ],
    "tune": [
        f"{_LEARN} --truth truth.npy --clicks clicks.npy -o out.safetensors --json",
        f"{_LEARN} --truth truth.json --gallery-references others.npy --method dualdis --json",
    ],
    "compare": [
        f"{_LEARN} --truth truth.npy --gallery-references others.npy --json",
        f"{_LEARN} --truth truth.npy {_VALIDATION} --json",
    ],
    "ablate": [
        "--gallery gallery.npy --references a=references.npy --references b=others.npy "
        "--queries queries.npy --truth truth.npy --share 0.5 --json",
        f"{_LEARN} --truth truth.npy {_VALIDATION} --json",
    ],
    "index build": [
        "faiss:out --gallery gallery.npy --corrector corrector.safetensors --ids ids.npy "
        "--metadata metadata.jsonl --json",
        "sqlite:out?table=photos --gallery gallery.parquet --corrector corrector.safetensors "
        "--metadata metadata.json --json",
        "hnswlib:out --gallery gallery.npy --corrector corrector.safetensors --ids ids.txt --json",
        "usearch:out --gallery gallery.npy --corrector corrector.safetensors --json",
        "duckdb:out?table=photos --gallery gallery.npy --corrector corrector.safetensors --json",
    ],
    "index add": [
        f"{living_url_of('faiss')} --gallery new.npy --corrector corrector.safetensors "
        "--ids later-ids.npy --metadata later.jsonl --json",
        f"{living_url_of('sqlite')} --gallery new.npy --replace --ids later-ids.txt "
        "--corrector corrector.safetensors",
        f"{living_url_of('duckdb')} --gallery later.parquet "
        "--corrector corrector.safetensors --json",
    ],
    "index delete": [
        f"{living_url_of(engine)} --ids gone-ids.{kind} --json"
        for engine, kind in zip(LIVING, ("npy", "json", "txt", "npy"), strict=True)
    ]
    + [f"{living_url_of('faiss')} --ids gone-ids.txt --ignore-missing --json"],
    "index info": [f"{living_url_of(engine)} --json" for engine in LIVING],
    "index rollback": [
        *(f"{living_url_of(engine)} --json" for engine in LIVING),
        f"{living_url_of('faiss')} --undo --json",
    ],
    "index refresh": [
        *(
            f"{url_of(engine)} --corrector corrector.safetensors --json"
            for engine in ("faiss", "usearch", "sqlite")
        ),
        f"{url_of('faiss')} --corrector corrector.safetensors --clicks clicks.npy "
        "--ids numbers.npy --popularity-weight 0.01 --json",
    ],
    "index search": [f"{url_of(engine)} --queries queries.npy -k 3 --json" for engine in _EVERY],
    "index verify": [
        "faiss:index-faiss --queries queries.npy --gallery gallery.npy "
        "--corrector former.safetensors --ids numbers.npy -k 3 --json",
        *(f"{url_of(engine)} --queries queries.npy -k 3 --json" for engine in ENGINES[:4]),
    ],
    "index copy": [
        f"{url_of('sqlite')} faiss:out --references references.npy --json",
        f"{url_of('usearch')} hnswlib:out --references references.npy --json",
        f"{url_of('faiss')} usearch:out --corrector corrector.safetensors --json",
        f"{APPLICATION} faiss:out --corrector corrector.safetensors --json",
    ],
    "scan": [
        "--gallery gallery.npy --references references.npy --ids ids.npy -o out.txt --json",
        "--gallery gallery.parquet --references bank.safetensors -o out.json",
        "--corrector corrector.safetensors --items new.npy --json",
    ],
    "explore": [
        f"{_LEARN} --truth truth.npy --ids ids.npy --metadata metadata.jsonl --export out",
        f"{_TASK} --corrector corrector.safetensors --recent others.npy --export out",
        "--index faiss:index-faiss --queries queries.npz --references bank.safetensors "
        "--export out",
        f"{_LEARN} --captions items.txt --query-captions asked.txt --reference-captions past.txt "
        "--images pictures --metadata items.csv --export out",
    ],
    "audit": [
        f"{_TASK} --groups groups.csv -k 3 --json",
        f"{_TASK} --groups groups.tsv -k 3 --bias bias.safetensors --json",
        f"{_TASK} --groups groups.jsonl --label-column label --query-table asked.csv -k 3 --json",
        f"{_LEARN} --groups groups.parquet -k 3 --difference a,b --json",
    ],
    "dataset": [
        "karpathy dataset_small.json --images pictures -o out --json",
        "coco captions_val2017.json --images pictures --decode -o out --json",
        "table pairs.csv --images pictures --skip-broken -o out --json",
        "clip-retrieval clip -o out --json",
    ],
}  # fmt: skip

# A healthy value for every option that takes a file or a URL, by its name.
FILES = {
    "gallery": "gallery.npy", "queries": "queries.npy", "references": "references.npy",
    "gallery_references": "others.npy", "recent": "others.npy", "items": "new.npy",
    "bias": "bias.safetensors", "bank": "bank.safetensors", "corrector": "corrector.safetensors",
    "truth": "truth.npy", "ids": "ids.npy", "clicks": "clicks.npy", "metadata": "metadata.jsonl",
    "groups": "groups.csv", "query_table": "asked.csv",
    "log": "log.csv", "file": "gallery.npy", "files": "pairs.csv",
    "images": "pictures",
    "captions": "item-captions.txt", "query_captions": "query-captions.txt",
    "reference_captions": "captions.txt", "texts": "captions.txt",
    "audio": "sounds",
    "validation_gallery": "gallery.npz", "validation_queries": "queries.npz",
    "validation_truth": "truth.json", "index": "faiss:index-faiss", "source": "faiss:index-faiss",
    "url": "faiss:index-faiss",
}  # fmt: skip
OUTPUTS = {
    "output": "out.safetensors", "markdown": "out.md", "plots": "out-plots",
    "save_corrector": "out-corrector.safetensors", "target": "faiss:out",
    "export": "out",
}  # fmt: skip
NOT_AT_HAND: set[tuple[str, str]] = set()
# They change the index, so what it answers afterwards is a part of their answer.
CHANGING = ("index add", "index delete", "index refresh", "index rollback")
# They take seconds each, for the libraries they load or the work they do.
SLOW = ("demo", "encode", "explore")


@dataclass(frozen=True)
class Option:
    """An option or argument of a command."""

    name: str
    flag: str | None  # None for an argument
    kind: str  # "integer", "float", "text", "path", "choice", "boolean"
    required: bool


@dataclass(frozen=True)
class Command:
    """A command, its options, and lines of healthy arguments."""

    name: str
    options: tuple[Option, ...]
    lines: tuple[tuple[str, ...], ...] = field(repr=False)


def walk_commands():
    """All commands of the package, by name."""
    load_commands()
    return {name: _make(name, function) for name, function in _leaves(app, ())}


def _leaves(group, path):
    for one in group.registered_commands:
        name = one.name or one.callback.__name__.replace("_", "-")
        yield " ".join([*path, name]), one.callback
    for inner in group.registered_groups:
        yield from _leaves(inner.typer_instance, (*path, inner.name))


def _make(name, function):
    parameters = inspect.signature(function).parameters.values()
    options = tuple(_option(one) for one in parameters if one.name != "debug")
    lines = [shlex.split(line) for line in LINES.get(name) or [_derive(options)]]
    for option in options:
        is_input = option.flag and option.name in FILES
        is_input = is_input and (name, option.name) not in NOT_AT_HAND
        if is_input and not any(option.flag in line for line in lines):
            lines.append([*lines[0], option.flag, FILES[option.name]])
    return Command(name, options, tuple(map(tuple, lines)))


def _option(parameter):
    hint, info = get_args(parameter.annotation)[:2]
    kinds = {kind for kind in _flat(hint) if kind is not type(None)}
    (kind,) = {_KINDS.get(kind, "choice") for kind in kinds}
    # Typer keeps the first name where a default would be.
    written = [info.default, *(getattr(info, "param_decls", None) or ())]
    names = [name for name in written if isinstance(name, str) and name.startswith("--")]
    flag = names[0] if names else f"--{parameter.name.replace('_', '-')}"
    is_option = type(info).__name__ == "OptionInfo"
    required = parameter.default is parameter.empty
    return Option(parameter.name, flag if is_option else None, kind, required)


_KINDS = {int: "integer", float: "float", str: "text", Path: "path", bool: "boolean"}


def _flat(hint):
    """The types in a union or a list; a Literal is one type."""
    if get_origin(hint) in (list, Union, UnionType):
        for inner in get_args(hint):
            yield from _flat(inner)
    else:
        yield hint


def _derive(options):
    """A line from the names of the required options."""
    words = []
    for option in options:
        if option.required:
            words += [option.flag] if option.flag else []
            words.append((FILES | OUTPUTS).get(option.name, "x"))
    return shlex.join(words)


def unknown_options():
    """Options that take a file and whose name the tables here do not have."""
    known = {*FILES, *OUTPUTS}
    return [
        f"{command.name} {option.flag or option.name}"
        for command in walk_commands().values()
        for option in command.options
        if option.kind == "path" and option.name not in known
    ]
