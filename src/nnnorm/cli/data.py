"""Embeddings and data sets: `nnnorm encode` and `nnnorm dataset`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nnnorm import datasets, encoders
from nnnorm.cli.app import command
from nnnorm.cli.inputs import split_column
from nnnorm.cli.options import FOLDER
from nnnorm.cli.output import Answer, Facts, show_progress
from nnnorm.commands import write_command
from nnnorm.encoders import Encoder, Modality
from nnnorm.errors import NNNormError, warn
from nnnorm.files import make_folder, write_whole

_SHOWN = ("folder", "n_rows", "dim", "dtype", "n_resumed", "n_texts_cut", "model", "normalization")


@command(
    "encode openai/clip-vit-base-patch32 --images photos/ --texts captions.csv:caption "
    "-o embeddings",
    output=FOLDER,
)
def encode(
    model: str,
    output: Path,
    images: Path | None = None,
    texts: Path | None = None,
    audio: Path | None = None,
    beir: Path | None = None,
    split: str = "test",
    library: encoders.Library | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: encoders.Dtype = "float32",
    batch_size: int = 32,
) -> Answer:
    """Encode images, texts or sounds as embeddings with a model."""
    sources: dict[Modality, Path | None] = {"images": images, "texts": texts, "audio": audio}
    given = {modality: source for modality, source in sources.items() if source is not None}
    if bool(given) == (beir is not None):
        raise NNNormError("pass at least one of --images, --texts and --audio, or only --beir")
    parts: dict[str, _Part] = {}
    for modality, source in given.items():
        table, column = split_column(source)
        parts[modality] = _Part(modality, encoders.list_inputs(table, modality, column), output)
    if beir is not None:
        read = datasets.read_beir(beir, split)
        queries = f"queries-{split}"
        parts["corpus"] = _Part("texts", read.documents, output / "corpus", read.document_ids)
        parts[queries] = _Part("texts", read.queries, output / queries, read.query_ids)
    options: dict[str, Any] = {"library": library, "revision": revision}
    with show_progress(f"Loading {model}"):
        encoder = encoders.load_encoder(model, device=device, dtype=dtype, **options)
    for part in parts.values():
        encoder.check_modality(part.modality)
    written = {name: _run(encoder, part, batch_size) for name, part in parts.items()}
    shown = [
        Facts(f"Embeddings of {name}", {fact: about[fact] for fact in _SHOWN if fact in about})
        for name, about in written.items()
    ]
    commands = []
    folders = [about["folder"] for name, about in written.items() if name != "texts"]
    if beir is not None:
        files = {"gallery": folders[0], "queries": folders[1], "qrels": read.qrels}
        commands = [write_command("evaluate", files)]
    elif folders and "texts" in written:
        files = {"gallery": folders[0], "queries": written["texts"]["folder"]}
        commands = [write_command("check", files)]
    return Answer(written, shown, commands)


class _Part(NamedTuple):
    """Items of one modality, the folder for their embeddings, and their ids."""

    modality: Modality
    items: Sequence[Any]
    folder: Path
    ids: Sequence[str] | None = None


def _run(encoder: Encoder, part: _Part, batch_size: int) -> dict[str, Any]:
    """Encode the items of a part."""
    left, n_items = "finished work is kept; run the same command to continue", len(part.items)
    options: dict[str, Any] = {"ids": part.ids, "batch_size": batch_size}
    with show_progress(f"Encoding {n_items:,} {part.modality}", left) as options["progress"]:
        done = encoders.encode_to_folder(encoder, part.modality, part.items, part.folder, **options)
    encoder.warn_of_cut(done.about.get("n_texts_cut", 0), n_items)
    return {"folder": str(done.folder), "n_resumed": done.n_resumed, **done.about}


# --- data sets -----------------------------------------------------------------------------------


@command(
    "dataset karpathy dataset_flickr30k.json --images flickr30k-images -o embeddings",
    images="Folder with the images.",
    output=FOLDER,
)
def dataset(
    kind: Literal["karpathy", "coco", "table"],
    files: list[Path],
    output: Path,
    images: Path | None = None,
    skip_broken: bool = False,
) -> Answer:
    """List the images, captions and splits of a data set, for `nnnorm encode`."""
    if kind != "coco" and len(files) > 1:
        raise NNNormError(f"{kind} takes one file; got {len(files)}")
    if output.exists():
        make_folder(output)  # an unwritable folder fails before all images are checked
    root = Path(os.path.realpath(images or Path()))
    if kind == "coco":
        found = datasets.read_coco(files, root)
    else:
        read = datasets.read_karpathy if kind == "karpathy" else datasets.read_table
        found = read(files[0], root)
    main = output / f"{found.name}.json"
    if os.path.realpath(main) in map(os.path.realpath, files):
        raise NNNormError(f"{main} is an input and would be overwritten; choose another -o")
    with show_progress("Checking images") as progress:
        problems = encoders.check_inputs(found.images, skip=skip_broken, progress=progress)
    broken = [f"{found.images[problem.row]}\t{problem.reason}\n" for problem in problems]
    found = found.without_images([problem.row for problem in problems])
    written = datasets.save_pairs(found, make_folder(output))
    if broken:
        skipped = output / f"{found.name}-skipped.txt"
        write_whole(skipped, lambda file: file.write("".join(broken).encode()))
        n_skipped = "1 image is" if len(broken) == 1 else f"{len(broken):,} images are"
        warn(f"{n_skipped} left out; see {skipped}")
        written += (skipped,)
    about: dict[str, Any] = {
        "n_images": len(found.images),
        "n_captions": len(found.captions),
        "splits": {split: len(rows) for split, rows in found.splits.items()},
        "n_skipped": len(broken),
        "files": [str(path) for path in written],
    }
    splits = ", ".join(f"{name} {n:,}" for name, n in about["splits"].items())
    shown = Facts(found.name, {**about, "splits": splits or None})
    lists = {"": "MODEL", "images": written[1], "texts": written[2]}
    lists["-o"] = output / "MODEL" / found.name
    return Answer(about, [shown], [write_command("encode", lists)])
