"""The command `nnnorm encode`: turns images, texts and sounds into folders of embeddings."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from nnnorm.cli.app import Debug, Json, command, print_facts, print_json, show_progress, show_steps
from nnnorm.encoders import (
    Dtype,
    Encoder,
    Library,
    Modality,
    encode_to_folder,
    list_inputs,
    load_encoder,
)
from nnnorm.errors import NNNormError

_FILES = "Folder, text file with a path per line, table, tar files, or saved data set"


@command(
    "encode openai/clip-vit-base-patch32 --images photos/ --texts captions.csv "
    "--text-column caption -o embeddings"
)
def encode(
    model: Annotated[str, Argument(help="Folder of a model, or name on the hub.")],
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
        str | None, Option(help="Column of the texts' table or data set.")
    ] = None,
    audio: Annotated[Path | None, Option(help=f"{_FILES}.")] = None,
    audio_column: Annotated[
        str | None, Option(help="Column of the sounds' table or data set.")
    ] = None,
    library: Annotated[
        Library | None, Option(help="Needed only if the model's files don't show it.")
    ] = None,
    revision: Annotated[
        str | None, Option(help="Branch, tag or commit of a model on the hub.")
    ] = None,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[Dtype, Option(help="Type of weights and computation.")] = "float32",
    batch_size: Annotated[int, Option(help="Items per forward pass.", min=1)] = 32,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Turn images, texts or sounds into embeddings with a model."""
    wanted = _list_items(
        {
            "images": (images, image_column),
            "texts": (texts, text_column),
            "audio": (audio, audio_column),
        }
    )
    with show_steps() as step:
        if step is not None:
            step(f"Loading {model}")
        encoder = load_encoder(
            model, library=library, revision=revision, device=device, dtype=dtype
        )
    for modality in wanted:
        encoder.check_modality(modality)
    written: dict[Modality, dict[str, Any]] = {}
    for modality, items in wanted.items():
        written[modality] = _run(encoder, modality, items, output, batch_size)
    if as_json:
        print_json(written)
        return
    shown = ("folder", "n_rows", "dim", "dtype", "n_resumed", "n_texts_cut", "model")
    for modality, about in written.items():
        facts = {name: about[name] for name in (*shown, "normalization") if name in about}
        print_facts(f"Embeddings of {modality}", facts)
    found = [modality for modality in written if modality != "texts"]
    if found and "texts" in written:
        gallery, queries = (shlex.quote(written[m]["folder"]) for m in (found[0], "texts"))
        typer.echo(f"\nNext: nnnorm diagnose --gallery {gallery} --queries {queries}", err=True)


def _list_items(
    sources: dict[Modality, tuple[Path | None, str | None]],
) -> dict[Modality, Sequence[Any]]:
    """List the items of each modality for which a source was given."""
    wanted: dict[Modality, Sequence[Any]] = {}
    for modality, (source, column) in sources.items():
        if source is None and column is not None:
            option = modality.removesuffix("s")
            raise NNNormError(f"--{option}-column needs its table; give it, or leave it out")
        if source is not None:
            wanted[modality] = list_inputs(source, modality, column)
    if not wanted:
        raise NNNormError("nothing to encode; give --images, --texts or --audio")
    return wanted


def _run(
    encoder: Encoder, modality: Modality, items: Sequence[Any], output: Path, batch_size: int
) -> dict[str, Any]:
    """Encode the items of one modality."""
    try:
        with show_progress(f"Encoding {len(items):,} {modality}") as progress:
            done = encode_to_folder(
                encoder, modality, items, output, batch_size=batch_size, progress=progress
            )
    except KeyboardInterrupt:
        raise NNNormError(
            "interrupted; finished work is kept: the same command continues it"
        ) from None
    if n_cut := done.about.get("n_texts_cut"):
        typer.echo(
            f"Note: {n_cut} of {len(items)} texts are longer than the {encoder.context} tokens "
            f"that {encoder.name} reads; they were cut",
            err=True,
        )
    return {"folder": str(done.folder), "n_resumed": done.n_resumed, **done.about}
