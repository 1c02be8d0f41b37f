"""`nnnorm explore`: a local page on which hubs are seen, and seen to go."""

import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from nnnorm.cli.app import (
    SOURCE,
    Debug,
    IdsFile,
    Json,
    Normalize,
    command,
    read_ids,
    show_progress,
)
from nnnorm.errors import NNNormError, require, warn

if TYPE_CHECKING:
    from socket import socket

    from nnnorm.explore import Material

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@command("explore --gallery photos.npy --queries queries.npy --references past_queries.npy")
def explore(
    gallery: Annotated[Path | None, Option(help=f"Items that are searched: {SOURCE}.")] = None,
    queries: Annotated[Path | None, Option(help=f"Queries to look at: {SOURCE}.")] = None,
    references: Annotated[
        Path | None, Option(help=f"Past queries: {SOURCE}, or a bank made by `nnnorm bank`.")
    ] = None,
    truth: Annotated[
        Path | None, Option(help="Right items: .npy with numbers or pairs, or .json with lists.")
    ] = None,
    index: Annotated[
        str | None, Option(help="In place of a gallery: the URL of an index, such as faiss:FILE.")
    ] = None,
    corrector: Annotated[
        Path | None, Option(help="A corrector, whose drift is shown; its bank if none is given.")
    ] = None,
    recent: Annotated[
        Path | None, Option(help="Recent queries for the drift; by default the queries.")
    ] = None,
    ids: IdsFile = None,
    images: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Folder of pictures, one per item in the order of their names, or named by a "
            "column of the metadata (image, file, path).",
        ),
    ] = None,
    captions: Annotated[
        Path | None, Option(help="Texts of the items: one per line, or a table with caption.")
    ] = None,
    query_captions: Annotated[Path | None, Option(help="Texts of the queries, likewise.")] = None,
    reference_captions: Annotated[
        Path | None, Option(help="Texts of the past queries, likewise.")
    ] = None,
    metadata: Annotated[
        Path | None,
        Option(help="A row per item, to filter by: .csv, .tsv, .jsonl, .parquet or .json."),
    ] = None,
    encoder: Annotated[
        str | None, Option(help="Model for typed queries: a folder, a checkpoint, or a hub name.")
    ] = None,
    normalize: Normalize = None,
    host: Annotated[
        str, Option(help="Address to listen on; another than this machine is open to others.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="Port; 0 takes any that is free.", min=0, max=65535)] = 8765,
    browser: Annotated[bool, Option(help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Write a page that works from disk to this folder, and do not serve.",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Look at hubs, results, settings and the bank on a local page; without files, a demo."""
    if export is None:
        require("fastapi", "explore")
        require("uvicorn", "explore")
    from nnnorm import explore as room

    files: dict[str, Any] = {
        "gallery": gallery,
        "queries": queries,
        "references": references,
        "truth": truth,
        "index": index,
        "corrector": corrector,
        "recent": recent,
        "images": images,
        "captions": captions,
        "query_captions": query_captions,
        "reference_captions": reference_captions,
        "metadata": metadata,
    }
    opened = None
    if export is None:
        opened = room.listen(host, port)  # before the work, so that a port that is taken shows
    with show_progress("Reading and scoring") as progress:
        material = _open(files, ids, encoder, normalize)
        session = room.Session(material, progress=progress)
        if export is not None:
            written = room.record(session, export, progress)
    if opened is None:
        made = {"folder": str(export), "files": written}
        words = f"Written to {export}: {', '.join(written)}. Open {export}/index.html"
        typer.echo(json.dumps(made) if as_json else words)
        return
    if host not in _LOOPBACK:
        warn(
            f"the explorer listens on {host}: everyone who reaches this machine sees the data; "
            "leave out --host to keep it to yourself"
        )
    url = _url_of(opened)
    n_items = len(material.gallery)
    words = f"Explore {n_items:,} items at {url} (Ctrl-C ends it)"
    typer.echo(json.dumps({"url": url, "n_items": n_items}) if as_json else words)
    if browser:
        webbrowser.open(url)
    room.serve(session, opened, host)


def _open(
    files: dict[str, Any], ids: Path | None, encoder: str | None, normalize: bool | None
) -> "Material":
    """Open what is looked at, which is the data of the demo where no files are given."""
    from nnnorm import explore as room

    if any(value is not None for value in files.values()):
        material = room.open_material(
            **files, ids=read_ids(ids), encoder=encoder, normalize=normalize
        )
    elif ids is not None or encoder is not None:
        raise NNNormError("--ids and --encoder need --gallery, --queries and --references")
    else:
        material = room.demo_material()
    for note in material.notes:
        warn(note)
    return material


def _url_of(opened: "socket") -> str:
    name, number = opened.getsockname()[:2]
    shown = "localhost" if name in ("0.0.0.0", "::") else f"[{name}]" if ":" in name else name
    return f"http://{shown}:{number}/"
