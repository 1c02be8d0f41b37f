"""`nnnorm explore`, a local page on which hubs are seen, and `nnnorm demo`, the main job."""

import json
import sys
import time
import warnings
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nnnorm.cli.app import command
from nnnorm.cli.options import FOLDER, Line
from nnnorm.cli.output import Answer, print_parts, read_ids, show_progress, show_steps
from nnnorm.errors import NNNormError, NNNormWarning, require, warn

if TYPE_CHECKING:
    from socket import socket

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SECONDS = 5  # between two lines of progress
_LAST_LINE = [time.monotonic()]


@command("demo --output demo-output", output=FOLDER)
def demo(output: Path = Path("demo-output"), as_json: bool = False) -> Answer:
    """Show hubs before and after a correction, on data that ships with the package."""
    if not as_json:  # at once: the imports take a moment
        typer.echo("Hubs in a search for pictures, and what nnnorm does about them.\n")
        sys.stdout.flush()
    from nnnorm.demo import describe_demo, introduce_demo, run_demo

    if not as_json:
        print_parts([introduce_demo()])
    with show_steps() as step:
        done = run_demo(output, step=step)
    return Answer(done.to_dict(), [] if as_json else list(describe_demo(done)))


@command(
    "explore --gallery photos.npy --queries queries.npy --references past_queries.npy",
    images="Folder of pictures, in the order of the items.",
    metadata="A row per item, to filter by: a table or .json.",
    corrector="A corrector, whose drift is shown.",
    truth=Line("Input", "Right items per query: .npy, or .json with lists."),
)
def explore(
    gallery: Path | None = None,
    queries: Path | None = None,
    references: Path | None = None,
    truth: Path | None = None,
    index: str | None = None,
    corrector: Path | None = None,
    ids: Path | None = None,
    images: Path | None = None,
    captions: Path | None = None,
    query_captions: Path | None = None,
    reference_captions: Path | None = None,
    metadata: Path | None = None,
    encoder: str | None = None,
    normalize: bool | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    browser: bool = True,
    export: Path | None = None,
    as_json: bool = False,
) -> Answer | None:
    """Explore hubs, results, settings and past queries on a local page; without files, a demo."""
    if export is None:
        require("starlette", "explore")
        require("uvicorn", "explore")
    from nnnorm import explore as explorer

    files: dict[str, Any] = {
        "gallery": gallery,
        "queries": queries,
        "references": references,
        "truth": truth,
        "index": index,
        "corrector": corrector,
        "images": images,
        "captions": captions,
        "query_captions": query_captions,
        "reference_captions": reference_captions,
        "metadata": metadata,
    }
    opened = None
    if export is None:
        opened = explorer.listen(host, port)  # before the work, so that a port that is taken shows
    if any(value is not None for value in files.values()):
        files |= {"ids": read_ids(ids), "encoder": encoder, "normalize": normalize}
        material = explorer.open_material(**files)
    elif ids is not None or encoder is not None:
        raise NNNormError("--ids and --encoder need --gallery, --queries and --references")
    else:
        material = explorer.demo_material()
    for note in material.notes:
        warn(note)
    if opened is not None and host not in _LOOPBACK:
        warn(
            f"the explorer listens on {host}: everyone who can reach this machine can see the "
            "data; leave out --host to listen on this machine only"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NNNormWarning)  # the notes have those of the inputs
        with show_progress("Scoring") as bar:
            session = explorer.Session(material, progress=bar or _print_progress)
            if export is not None:
                written = explorer.record(session, export, bar or _print_progress)
        if opened is None:
            words = f"Written to {export}: {', '.join(written)}. Open {export}/index.html"
            return Answer({"folder": str(export), "files": written}, [words])
        url, n_items = _url_of(opened), len(material.gallery)
        words = f"Explore {n_items:,} items at {url} (Ctrl-C ends it)"
        typer.echo(json.dumps({"url": url, "n_items": n_items}) if as_json else words)
        if browser:
            webbrowser.open(url)
        explorer.serve(session, opened, host)
    return None


def _print_progress(done: int, total: int) -> None:
    """Print a line every few seconds, if there is no terminal to draw a bar on."""
    if time.monotonic() - _LAST_LINE[0] >= _SECONDS:
        _LAST_LINE[0] = time.monotonic()
        print(f"Scoring: {done / total:.0%} of this pass", file=sys.stderr, flush=True)


def _url_of(opened: "socket") -> str:
    name, number = opened.getsockname()[:2]
    shown = "localhost" if name in ("0.0.0.0", "::") else f"[{name}]" if ":" in name else name
    return f"http://{shown}:{number}/"
