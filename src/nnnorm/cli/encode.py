"""The command `nnnorm encode`: turns images, texts and sounds into folders of embeddings."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from nnnorm.cli.app import Debug, Json, command, print_facts, print_json, show_progress, show_steps
from nnnorm.encoders import (
    Direction,
    Dtype,
    Encoder,
    Library,
    Listing,
    Modality,
    Share,
    list_inputs,
    load_encoder,
    match_to_files,
    plan_encoding,
)
from nnnorm.errors import NNNormError
from nnnorm.io import TABLE_SUFFIXES

_FILES = "Folder, text file with a path per line, table, tar files, or saved data set"


@command(
    "encode openai/clip-vit-base-patch32 --images photos/ --texts captions.csv "
    "--text-column caption -o embeddings"
)
def encode(
    model: Annotated[
        str, Argument(help="Folder, checkpoint (ALBEF, BEiT-3, BLIP) or name on the hub.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="FOLDER", help="Folder for the embeddings.")
    ],
    images: Annotated[Path | None, Option(help=f"{_FILES}.")] = None,
    image_column: Annotated[
        str | None, Option(help="Column of the images' table or data set.")
    ] = None,
    texts: Annotated[
        Path | None,
        Option(help="Text file with a text per line, table, tar files, or saved data set."),
    ] = None,
    text_column: Annotated[
        str | None,
        Option(help="Column of the texts' table or data set; for tar files, a key of the .json."),
    ] = None,
    audio: Annotated[Path | None, Option(help=f"{_FILES}.")] = None,
    audio_column: Annotated[
        str | None, Option(help="Column of the sounds' table or data set.")
    ] = None,
    library: Annotated[
        Library | None, Option(help="Needed only if the model's files do not show it.")
    ] = None,
    revision: Annotated[
        str | None, Option(help="Branch, tag or commit of a model on the hub.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        Option(help="For checkpoints: vocab.txt of ALBEF and BLIP, beit3.spm of BEiT-3."),
    ] = None,
    image_size: Annotated[
        int | None, Option(help="For checkpoints: instead of the size used in training.", min=1)
    ] = None,
    raw_texts: Annotated[
        bool, Option("--raw-texts", help="BLIP: don't clean texts as its authors do.")
    ] = False,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[Dtype, Option(help="Type of weights and computation.")] = "float32",
    batch_size: Annotated[
        int, Option(help="Items per forward pass; halved where it does not fit.", min=1)
    ] = 32,
    matching: Annotated[
        Direction | None,
        Option(help="BLIP: scores of its matching head instead; what is retrieved."),
    ] = None,
    references: Annotated[
        Path | None,
        Option(help="With --matching: past texts (image) or images (text), matched as well."),
    ] = None,
    shortlist: Annotated[
        int | None,
        Option(help="With --matching: the most similar items to match per query. [256]", min=1),
    ] = None,
    shard: Annotated[
        str | None,
        Option(help="Part of the work: 2/4 is the second of four processes with one output."),
    ] = None,
    shard_rows: Annotated[
        int, Option(help="Rows per file, the most that an interruption can lose.", min=1)
    ] = 1024,
    resume: Annotated[bool, Option("--resume", help="Resume interrupted work.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn images, texts or sounds into embeddings with a model.

    A table is a .csv, .tsv, .jsonl or .parquet file. Tar files are those of webdataset and
    img2dataset: one, a range such as {00000..00010}.tar, or a folder of them. A saved data set is a
    folder written by save_to_disk of Hugging Face's datasets.
    """
    share = None if shard is None else Share.read(shard)
    if matching is None and (references is not None or shortlist is not None):
        raise NNNormError("--references and --shortlist are for --matching; leave them out")
    if matching is not None and (images is None or texts is None or audio or share):
        raise NNNormError(
            "--matching needs --images and --texts, and takes no --audio and no --shard"
        )
    wanted = _list_items(
        {
            "images": (images, image_column),
            "texts": (texts, text_column),
            "audio": (audio, audio_column),
        }
    )
    with show_steps() as step:
        say = step or (lambda text: None)
        say(f"Loading {model}")
        encoder = load_encoder(
            model,
            library=library,
            revision=revision,
            tokenizer=tokenizer,
            image_size=image_size,
            device=device,
            dtype=dtype,
            clean_texts=not raw_texts,
        )
        for modality in wanted:
            encoder.check_modality(modality)
        plans = []
        for modality, (items, ids) in wanted.items() if matching is None else ():
            say(f"Checking {len(items):,} {modality}")
            options: Any = {"shard_rows": shard_rows, "resume": resume, "ids": ids, "share": share}
            plans.append(plan_encoding(encoder, modality, items, output, **options))
    if matching is None:
        _encode(encoder, plans, batch_size, as_json)
    else:
        column = text_column if matching == "image" else image_column
        _match(
            encoder,
            wanted,
            output,
            as_json,
            direction=matching,
            references=_list_references(references, matching, column),
            shortlist=shortlist or 256,
            batch_size=batch_size,
            resume=resume,
        )


def _encode(encoder: Encoder, plans: list[Any], batch_size: int, as_json: bool) -> None:
    """Encode what was planned, and print what was written."""
    written: dict[Modality, dict[str, Any]] = {}
    for plan in plans:
        written[plan.modality] = _run(plan, batch_size, n_before=len(written))
        if n_cut := written[plan.modality].get("n_texts_cut"):
            typer.echo(
                f"Note: {n_cut} of {len(plan.items)} texts are longer than the "
                f"{encoder.longest_text} that {encoder.name} reads; they were cut",
                err=True,
            )
    if as_json:
        print_json(written)
    else:
        _print_written(written)


def _list_items(
    sources: dict[Modality, tuple[Path | None, str | None]],
) -> dict[Modality, Listing]:
    """List the items of each modality for which a source was given."""
    wanted: dict[Modality, Listing] = {}
    for modality, (source, column) in sources.items():
        if source is None and column is not None:
            option = modality.removesuffix("s")
            raise NNNormError(f"--{option}-column needs its table; give it, or leave it out")
        if source is not None:
            wanted[modality] = list_inputs(source, modality, column)
    if not wanted:
        raise NNNormError("nothing to encode; give --images, --texts or --audio")
    return wanted


def _list_references(source: Path | None, matching: Direction, column: str | None) -> Any:
    """List past queries; a column is meant for them too if they are in a table."""
    if source is None:
        return None
    has_columns = source.is_dir() or source.suffix.lower() in (*TABLE_SUFFIXES, ".tar")
    kind: Modality = "texts" if matching == "image" else "images"
    return list_inputs(source, kind, column if has_columns else None).items


def _match(
    encoder: Encoder, wanted: dict[Modality, Listing], output: Path, as_json: bool, **options: Any
) -> None:
    """Match images with texts; what was matched before an interruption is kept."""
    images, texts = wanted["images"].items, wanted["texts"].items
    try:
        with show_progress("Matching images with texts") as progress:
            done = match_to_files(encoder, images, texts, output, progress=progress, **options)
    except KeyboardInterrupt:
        raise NNNormError(
            "interrupted; finished work is kept: resume it with the same command and --resume"
        ) from None
    files = [str(path) for path in done.files]
    about = {"files": files, "n_resumed": done.n_resumed, **done.about}
    if as_json:
        print_json(about)
        return
    shown = ("direction", "n_images", "n_texts", "n_references", "shortlist", "n_resumed", "model")
    facts = {"files": "\n".join(files)} | {name: about[name] for name in shown}
    print_facts("Scores of the matching head", facts)


def _run(plan: Any, batch_size: int, n_before: int) -> dict[str, Any]:
    """Encode the items of a plan; what was encoded before an interruption is kept."""
    try:
        with show_progress(f"Encoding {len(plan.items):,} {plan.modality}") as progress:
            done = plan.run(batch_size=batch_size, progress=progress)
    except KeyboardInterrupt:
        kept = "finished work is kept: resume it with the same command and --resume"
        if not (n_before or plan.growing.exists()):
            kept = "nothing was written yet"
        raise NNNormError(f"interrupted; {kept}") from None
    facts = {"folder": str(done.folder), "n_resumed": done.n_resumed, "n_missing": done.n_missing}
    if done.seconds:
        facts |= {"seconds": round(done.seconds, 3), "model_seconds": round(done.model_seconds, 3)}
        facts["model_share"] = round(done.model_seconds / done.seconds, 3)
    return {**facts, **done.about}


def _print_written(written: dict[Modality, dict[str, Any]]) -> None:
    shown = ("folder", "n_rows", "dim", "dtype", "n_resumed", "n_texts_cut", "model")
    for modality, about in written.items():
        facts = {name: about[name] for name in (*shown, "normalisation") if name in about}
        if "seconds" in about:
            facts["time"] = (
                f"{about['seconds']:,.1f} s, {about['model_share']:.0%} of it in the model"
            )
        print_facts(f"Embeddings of {modality}", facts)
        if about["n_missing"]:
            typer.echo(
                f"Note: {about['n_missing']:,} of {about['n_rows']:,} {modality} are left to the "
                "other shards; the last one completes the folder",
                err=True,
            )
    if any(about["n_missing"] for about in written.values()):
        return
    items = [modality for modality in written if modality != "texts"]
    if items and "texts" in written:
        gallery, queries = (shlex.quote(written[m]["folder"]) for m in (items[0], "texts"))
        typer.echo(f"\nNext: nnnorm diagnose --gallery {gallery} --queries {queries}", err=True)
