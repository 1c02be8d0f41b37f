"""Embeddings and data sets: `nnnorm encode` and `nnnorm dataset`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nnnorm import datasets
from nnnorm.cli.app import command
from nnnorm.cli.inputs import split_column
from nnnorm.cli.options import FOLDER
from nnnorm.cli.output import Answer, Facts, print_note, show_progress
from nnnorm.commands import write_command
from nnnorm.encoders import (
    Dtype,
    Encoder,
    Library,
    Modality,
    check_inputs,
    encode_to_folder,
    list_inputs,
    load_encoder,
)
from nnnorm.errors import NNNormError
from nnnorm.files import make_folder, write_whole


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
    library: Library | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    batch_size: int = 32,
) -> Answer:
    """Encode images, texts or sounds as embeddings with a model."""
    sources: dict[Modality, Path | None] = {"images": images, "texts": texts, "audio": audio}
    given = {modality: source for modality, source in sources.items() if source is not None}
    if bool(given) == (beir is not None):
        raise NNNormError("pass --images, --texts and --audio, any of them, or else --beir")
    found = None if beir is None else datasets.read_beir(beir, split)
    wanted: dict[Modality, Sequence[Any]] = {}
    for modality, source in given.items():
        table, column = split_column(source)
        wanted[modality] = list_inputs(table, modality, column)
    options: dict[str, Any] = {"library": library, "revision": revision}
    with show_progress(f"Loading {model}"):
        encoder = load_encoder(model, device=device, dtype=dtype, **options)
    if found:
        return _encode_beir(encoder, found, split, output, batch_size)
    for modality in wanted:
        encoder.check_modality(modality)
    written = {
        modality: _run(encoder, modality, items, output, batch_size)
        for modality, items in wanted.items()
    }
    shown = [_show(f"Embeddings of {modality}", about) for modality, about in written.items()]
    others = [modality for modality in written if modality != "texts"]
    commands = []
    if others and "texts" in written:
        files = {"gallery": written[others[0]]["folder"], "queries": written["texts"]["folder"]}
        commands = [write_command("check", files)]
    return Answer(written, shown, commands)


def _encode_beir(
    encoder: Encoder, found: datasets.Beir, split: str, output: Path, batch_size: int
) -> Answer:
    """Encode the documents, and the queries of a split, each into a folder of its own."""
    sides = {
        "corpus": (found.documents, found.document_ids),
        f"queries-{split}": (found.queries, found.query_ids),
    }
    written = {
        name: _run(encoder, "texts", texts, output / name, batch_size, ids)
        for name, (texts, ids) in sides.items()
    }
    shown = [_show(f"{found.name}, {name}", about) for name, about in written.items()]
    gallery, queries = (about["folder"] for about in written.values())
    files = {"gallery": gallery, "queries": queries, "qrels": found.qrels}
    return Answer(written, shown, [write_command("evaluate", files)])


def _show(title: str, about: dict[str, Any]) -> Facts:
    names = ("folder", "n_rows", "dim", "dtype", "n_resumed", "n_texts_cut", "model")
    kept = (*names, "normalization")
    return Facts(title, {name: about[name] for name in kept if name in about})


def _run(
    encoder: Encoder,
    modality: Modality,
    items: Sequence[Any],
    output: Path,
    batch_size: int,
    ids: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Encode the items of one modality."""
    left = "finished work is kept: the same command continues it"
    with show_progress(f"Encoding {len(items):,} {modality}", left) as progress:
        done = encode_to_folder(
            encoder, modality, items, output, ids=ids, batch_size=batch_size, progress=progress
        )
    if n_cut := done.about.get("n_texts_cut"):
        print_note(
            f"Note: {n_cut} of {len(items)} texts are longer than the {encoder.context} tokens "
            f"that {encoder.name} reads; they were cut"
        )
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
    """Write a data set's images, captions, pairs and splits as plain lists."""
    if kind != "coco" and len(files) > 1:
        raise NNNormError(f"{kind} takes one file; got {len(files)}")
    if output.exists():
        make_folder(output)  # fails before all images are checked if it can't be written to
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
        problems = check_inputs(found.images, skip=skip_broken, progress=progress)
    broken = [f"{found.images[problem.row]}\t{problem.reason}\n" for problem in problems]
    found = found.without_images([problem.row for problem in problems])
    written = datasets.save_pairs(found, make_folder(output))
    if broken:
        skipped = output / f"{found.name}-skipped.txt"
        write_whole(skipped, lambda file: file.write("".join(broken).encode()))
        n_skipped = "1 image is" if len(broken) == 1 else f"{len(broken):,} images are"
        print_note(f"Note: {n_skipped} left out; see {skipped}")
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
