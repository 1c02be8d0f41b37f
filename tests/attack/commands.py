"""All commands with valid arguments, which the fuzzer then damages.

Commands and options are read from the command line itself. A command's lines are its required
options with a healthy file each, and one more line for every other file that one of its options can
take. `MORE` has lines that need several options at once. If a line doesn't work, or an option takes
a file and has a name that is not in `FILES` or `OUTPUTS`, the tests fail and ask for it.
"""

import inspect
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

from typer.main import get_command

from nnnorm.cli.app import app, load_commands
from tests.attack.materials import APPLICATION, ENGINES, LIVING, SERVERS, living_url_of, url_of

_LIVING = tuple(map(living_url_of, LIVING))
_ITEMS = ("gallery.npy", "gallery.npz", "gallery.parquet", "shards")
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")

# Healthy values for every option that takes a file or a URL, by its name; the first is the usual.
FILES = {
    "gallery": _ITEMS,
    "queries": ("queries.npy", "queries.npz"),
    "references": ("references.npy", "bank.safetensors"),
    "gallery_references": ("others.npy",),
    "recent": ("others.npy",),
    "items": ("new.npy",),
    "bias": ("bias.safetensors",),
    "corrector": ("corrector.safetensors",),
    "truth": ("truth.npy", "truth.json", "qrels.txt"),
    "ranking": ("past-ranking.npz",), "labels": ("labels.txt", "labels.npy", "labels.json"),
    "query_ids": ("query-ids.npy",), "parents": ("parents.npy",),
    "ids": ("ids.npy", "ids.json", "ids.txt"),
    "clicks": ("clicks.npy",),
    "metadata": ("metadata.jsonl", "metadata.json"),
    "groups": tuple(f"groups{suffix}" for suffix in _TABLES),
    "log": (*(f"log{suffix}" for suffix in _TABLES), "references.npy"),
    "file": (*_ITEMS, *(f"{name}.safetensors" for name in ("bias", "bank", "corrector")),
             "ranking.npz"),
    "files": ("pairs.csv",),
    "images": ("pictures", "pictures.txt", "samples.tar"),
    "captions": ("items.txt",), "query_captions": ("asked.txt",),
    "reference_captions": ("past.txt",),
    "texts": ("captions.txt", "samples.tar"), "audio": ("sounds",),
    "beir": ("beir",),
    "validation_gallery": ("gallery.npz",), "validation_queries": ("queries.npz",),
    "validation_truth": ("truth.json",),
    "index": ("faiss:index-faiss",), "source": (url_of("sqlite"),), "target": ("faiss:out",),
    "url": tuple(map(url_of, (*ENGINES, *SERVERS))),
}  # fmt: skip
OUTPUTS = {"output": "out.safetensors", "save_corrector": "out-corrector.safetensors",
           "report": "out-report", "export": "out", "run_file": "out.run"}  # fmt: skip
# What a command takes instead; nothing if the option needs another, and has a line in `MORE`.
OWN = {
    ("evaluate", "query_ids"): (), ("evaluate", "parents"): (), ("search", "query_ids"): (),
    ("index search", "parents"): ("year",),
    ("tune", "gallery_references"): (),
    ("compare", "validation_gallery"): (), ("compare", "validation_queries"): (),
    ("compare", "validation_truth"): (),
    ("calibrate", "corrector"): (),
    ("index build", "url"): ("faiss:out", "sqlite:out?table=photos", "hnswlib:out", "usearch:out",
                             "duckdb:out?table=photos"),
    ("index add", "url"): _LIVING, ("index add", "gallery"): ("new.npy",),
    ("index add", "ids"): ("later-ids.npy", "later-ids.txt"),
    ("index add", "metadata"): ("later.jsonl",),
    ("index delete", "url"): _LIVING,
    ("index delete", "ids"): ("gone-ids.npy", "gone-ids.json", "gone-ids.txt"),
    ("index info", "url"): _LIVING, ("index rollback", "url"): _LIVING,
    ("index refresh", "url"): tuple(map(url_of, ("faiss", "usearch", "sqlite"))),
    ("index refresh", "ids"): (),
    ("index verify", "url"): tuple(map(url_of, ENGINES[:4])),
    ("index verify", "corrector"): ("former.safetensors",), ("index verify", "gallery"): (),
    ("index verify", "ids"): (),
    ("index copy", "corrector"): (), ("index copy", "references"): (),
    ("scan", "gallery"): (), ("scan", "references"): (), ("scan", "corrector"): (),
    ("scan", "items"): (), ("scan", "ids"): (),
    ("check", "query_ids"): (), ("tune", "query_ids"): (), ("compare", "query_ids"): (),
    ("drift", "groups"): (), ("drift", "queries"): ("others.npy",),
    ("extend", "groups"): (), ("index build", "groups"): (), ("index add", "groups"): (),
    ("index refresh", "groups"): (), ("index copy", "groups"): (),
}  # fmt: skip
_TASK = "--gallery gallery.npy --queries queries.npy"
_LEARN = f"{_TASK} --references references.npy"
_DUAL = "--gallery-references others.npy --method dualdis"
_QRELS = "--qrels qrels.txt --query-ids query-ids.npy"
MORE = {
    "fit": ["--gallery gallery.npy --references references.npy --method dualdis "
            "--set gallery_references=others.npy --set beta_query=5 "
            "--set beta_gallery=5 -o out.safetensors --json",
            "--gallery gallery.npy --references references.npy --recent others.npy "
            "--save-corrector out-corrector.safetensors -o out.safetensors --json"],
    "extend": ["--corrector grouped.safetensors --items gallery.npy --groups groups.jsonl "
               "-o out.safetensors --json"],
    "drift": ["--corrector grouped.safetensors --queries others.npy --gallery gallery.npy "
              "--groups groups.csv --json"],
    "check": [f"{_LEARN} --ids ids.json --json", f"{_LEARN} {_QRELS} --json"],
    "search": [f"{_TASK} --bias bias.safetensors -k 3 --ids ids.txt -o out.npz",
               f"{_TASK} -k 3 --query-ids query-ids.npy --run-file out.run --json"],
    "evaluate": [f"{_TASK} --qrels qrels.txt --query-ids query-ids.npy --json",
                 f"{_TASK} --qrels qrels.txt --parents parents.npy --json"],
    "calibrate": ["past-ranking.npz --labels labels.npy --corrector corrector.safetensors "
                  "-o out.safetensors --json"],
    "demo": ["-o out --json"],
    "bank": ["log.parquet --time day --count times --max-references 20 "
             "-o out.safetensors --json", "log.jsonl --add -o bank.safetensors --json"],
    "encode": ["model --images pictures --texts captions.txt -o out --json",
               "model --texts captions.csv:caption -o out --json",
               "model --texts captions.jsonl:caption -o out --json",
               "model-sounds --audio sounds -o out --json",
               "model --beir beir -o out --json"],
    "tune": [f"{_LEARN} --truth truth.json {_DUAL} --json", f"{_LEARN} {_QRELS} --json"],
    "compare": [f"{_LEARN} --truth truth.npy --validation-queries queries.npz "
                "--validation-truth truth.json --validation-gallery gallery.npz --json",
                f"{_LEARN} {_QRELS} --json"],
    "index build": ["faiss:out --gallery gallery.npy --corrector grouped.safetensors "
                    "--groups groups.csv --json"],
    "index add": ["faiss:index-grouped --gallery new.npy --corrector grouped.safetensors "
                  "--ids later-ids.npy --metadata later.jsonl --groups year --json",
                  f"{_LIVING[2]} --gallery new.npy --replace --ids later-ids.txt "
                  "--corrector corrector.safetensors --json",
                  f"{_LIVING[3]} --gallery later.parquet --corrector corrector.safetensors --json"],
    "index delete": [f"{_LIVING[0]} --ids gone-ids.txt --ignore-missing --json"],
    "index rollback": [f"{_LIVING[0]} --undo --json"],
    "index refresh": [f"{url_of('faiss')} --corrector grouped.safetensors --groups year --json",
                      f"{url_of('faiss')} --corrector corrector.safetensors --clicks clicks.npy "
                      "--ids numbers.npy --popularity-weight 0.01 --json"],
    "index verify": ["faiss:index-faiss --queries queries.npy --gallery gallery.npy "
                     "--corrector former.safetensors --ids numbers.npy -k 3 --json"],
    "index copy": [f"{url_of('usearch')} hnswlib:out --references references.npy "
                   "--groups year --json",
                   f"{url_of('usearch')} hnswlib:out --references references.npy --json",
                   f"{url_of('faiss')} usearch:out --corrector corrector.safetensors --json",
                   f"{APPLICATION} faiss:out --corrector corrector.safetensors --json"],
    "scan": ["--gallery gallery.npy --references references.npy --ids ids.npy -o out.txt --json",
             "--gallery gallery.parquet --references bank.safetensors -o out.json",
             "--corrector corrector.safetensors --items new.npy --json"],
    "explore": [f"{_LEARN} --truth truth.npy --ids ids.npy --metadata metadata.jsonl --export out",
                f"{_TASK} --corrector corrector.safetensors --export out",
                "--index faiss:index-faiss --queries queries.npz --references bank.safetensors "
                "--export out",
                f"{_LEARN} --captions items.txt --query-captions asked.txt --reference-captions "
                "past.txt --images pictures --metadata items.csv --export out"],
    "audit": [f"{_TASK} --groups groups.jsonl:group -k 3 --json"],
    "dataset": ["karpathy dataset_small.json --images pictures -o out --json",
                "coco captions_val2017.json --images pictures -o out --json",
                "table pairs.csv --images pictures --skip-broken -o out --json"],
}  # fmt: skip
# Commands that only have the lines above, since no single file makes a line.
_ONLY_MORE = ("demo", "encode", "scan", "explore", "dataset")
# Words that every line of a command needs on this little data.
_ALWAYS = {"search": "-k 3", "audit": "-k 3", "index search": "-k 3", "index verify": "-k 3",
           "index add": "--ids later-ids.npy",
           "index copy": "--references references.npy"}  # fmt: skip
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
    metavar: str | None

    def write(self, value):
        return [self.flag, value] if self.flag else [value]


@dataclass(frozen=True)
class Command:
    """A command, its options, and lines of healthy arguments."""

    name: str
    options: tuple[Option, ...]
    lines: tuple[tuple[str, ...], ...] = field(repr=False)


def walk_commands():
    """All commands of the package, by name."""
    load_commands()
    return {name: _make(name, command) for name, command in _leaves(get_command(app), ())}


def _leaves(group, path):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _make(name, command):
    kinds = inspect.signature(command.callback).parameters
    options = tuple(_option(one, kinds[one.name].annotation) for one in command.params)
    lines = [shlex.split(line) for line in MORE.get(name, [])]
    if name not in _ONLY_MORE:
        lines = _derive(name, options) + lines
    return Command(name, options, tuple(map(tuple, lines)))


def _option(parameter, annotation):
    flag = next((flag for flag in parameter.opts if flag.startswith("--")), None)
    (kind,) = {_KINDS.get(kind, "choice") for kind in _flat(get_args(annotation)[0])}
    return Option(parameter.name, flag, kind, parameter.required, parameter.metavar)


_KINDS = {int: "integer", float: "float", str: "text", Path: "path", bool: "boolean"}


def _flat(hint):
    """The types in a union or a list; a Literal is one type."""
    if get_origin(hint) in (list, Union, UnionType):
        for inner in get_args(hint):
            yield from _flat(inner)
    elif hint is not type(None):
        yield hint


def _derive(name, options):
    """The required options with a file each, and a line for every other file."""
    words = {one: one.write(_files(name, one)[0]) for one in options if one.required}
    always = [*shlex.split(_ALWAYS.get(name, "")), "--json"]

    def join(some):
        arguments = sorted(some, key=lambda one: one.flag is not None)  # they go first
        return [word for one in arguments for word in some[one]] + always

    lines = [join(words)]
    for one in options:
        if one.name in FILES and one.flag not in always:
            files = _files(name, one)[1 if one.required else 0 :]
            lines += [join({**words, one: one.write(file)}) for file in files]
    return lines


def _files(command, option):
    known = OWN.get((command, option.name), FILES.get(option.name))
    return (OUTPUTS[option.name],) if known is None else known


def unknown_options():
    """Options that take a file and whose name the tables here do not have."""
    known = {*FILES, *OUTPUTS}
    return [
        f"{command.name} {option.flag or option.name}"
        for command in walk_commands().values()
        for option in command.options
        if option.kind == "path" and option.name not in known
    ]
