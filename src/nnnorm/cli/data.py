"""Embeddings and data sets: `nnnorm encode` and `nnnorm dataset`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nnnorm import datasets
from nnnorm.cli.app import command
from nnnorm.cli.options import FOLDER
from nnnorm.cli.output import Answer, Facts, print_note, show_progress, show_steps, write_command
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
    "encode openai/clip-vit-base-patch32 --images photos/ --texts captions.csv "
    "--text-column caption -o embeddings",
    output=FOLDER,
)
def encode(
    model: str,
    output: Path,
    images: Path | None = None,
    image_column: str | None = None,
    texts: Path | None = None,
    text_column: str | None = None,
    audio: Path | None = None,
    audio_column: str | None = None,
    beir: Path | None = None,
    split: str = "test",
    library: Library | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    batch_size: int = 32,
) -> Answer:
    """Encode images, texts or sounds as embeddings with a model."""
    sources: dict[Modality, tuple[Path | None, str | None]] = {
        "images": (images, image_column),
        "texts": (texts, text_column),
        "audio": (audio, audio_column),
    }
    found = None
    if beir is not None:
        if any(part for source in sources.values() for part in source):
            raise NNNormError("--beir has its own texts; leave out the other inputs")
        found = datasets.read_beir(beir, split)
    wanted = {} if found else _list_items(sources)
    with show_steps() as step:
        step(f"Loading {model}")
        encoder = load_encoder(
            model, library=library, revision=revision, device=device, dtype=dtype
        )
    if found:
        return _encode_beir(encoder, found, split, output, batch_size)
    for modality in wanted:
        encoder.check_modality(modality)
    written: dict[Modality, dict[str, Any]] = {}
    for modality, items in wanted.items():
        written[modality] = _run(encoder, modality, items, output, batch_size)
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


def _list_items(
    sources: dict[Modality, tuple[Path | None, str | None]],
) -> dict[Modality, Sequence[Any]]:
    """List the items of each modality for which a source was given."""
    wanted: dict[Modality, Sequence[Any]] = {}
    for modality, (source, column) in sources.items():
        if source is None and column is not None:
            option = modality.removesuffix("s")
            raise NNNormError(f"--{option}-column needs its table; pass it, or leave it out")
        if source is not None:
            wanted[modality] = list_inputs(source, modality, column)
    if not wanted:
        raise NNNormError("nothing to encode; pass --images, --texts, --audio or --beir")
    return wanted


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
    kind: Literal["karpathy", "coco", "table", "clip-retrieval"],
    files: list[Path],
    output: Path,
    images: Path | None = None,
    skip_broken: bool = False,
    decode: bool = False,
) -> Answer:
    """Write a data set's images, captions, pairs and splits as plain lists."""
    if kind == "clip-retrieval" and (images or skip_broken or decode):
        raise NNNormError(
            "clip-retrieval's folders hold embeddings, so no images are checked; leave out "
            "--images, --skip-broken and --decode"
        )
    if kind != "coco" and len(files) > 1:
        what = "folder" if kind == "clip-retrieval" else "file"
        raise NNNormError(f"{kind} takes one {what}; got {len(files)}")
    if output.exists():
        make_folder(output)  # fails before all images are checked if it can't be written to
    if kind == "clip-retrieval":
        web = datasets.read_clip_retrieval(files[0])
        facts = _facts_of(web.pairs, output, files)
        written = datasets.save_clip_retrieval(web, make_folder(output))
        pairs = {"gallery": written[4], "queries": files[0] / "text_emb", "truth": written[3]}
        return _answer_dataset(facts, written, 0, write_command("evaluate", pairs))
    root = Path(os.path.realpath(images or Path()))
    if kind == "coco":
        found = datasets.read_coco(files, root)
    else:
        read = datasets.read_karpathy if kind == "karpathy" else datasets.read_table
        found = read(files[0], root)
    with show_progress("Checking images") as progress:
        problems = check_inputs(found.images, skip=skip_broken, decode=decode, progress=progress)
    broken = [f"{found.images[problem.row]}\t{problem.reason}\n" for problem in problems]
    if broken:
        found = found.without_images([problem.row for problem in problems])
    facts = _facts_of(found, output, files)
    written = datasets.save_pairs(found, make_folder(output))
    name = written[0].stem
    if broken:
        skipped = output / f"{name}-skipped.txt"
        write_whole(skipped, lambda file: file.write("".join(broken).encode()))
        n_skipped = "1 image is" if len(broken) == 1 else f"{len(broken):,} images are"
        print_note(f"Note: {n_skipped} left out; see {skipped}")
        written += (skipped,)
    lists = {"": "MODEL", "images": written[1], "texts": written[2], "-o": output / "MODEL" / name}
    return _answer_dataset(facts, written, len(broken), write_command("encode", lists))


def _facts_of(pairs: datasets.Pairs, output: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Counts of a data set, whose list must not replace an input."""
    main = output / f"{pairs.name}.json"
    if os.path.realpath(main) in map(os.path.realpath, files):
        raise NNNormError(f"{main} is an input and would be overwritten; choose another -o")
    splits = {split: len(rows) for split, rows in pairs.splits.items()}
    return {"n_images": len(pairs.images), "n_captions": len(pairs.captions), "splits": splits}


def _answer_dataset(
    facts: dict[str, Any], written: Sequence[Path], n_skipped: int, following: list[str]
) -> Answer:
    about = {**facts, "n_skipped": n_skipped, "files": [str(path) for path in written]}
    splits = ", ".join(f"{name} {n:,}" for name, n in facts["splits"].items())
    shown = {**about, "splits": splits or None}
    return Answer(about, [Facts(written[0].stem, shown)], [following])
