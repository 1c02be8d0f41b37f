"""`nnnorm explore`: a local page that shows hubs."""

import json
import sys
import time
import warnings
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from nnnorm import explore as explorer
from nnnorm.cli.app import command
from nnnorm.cli.options import Line
from nnnorm.cli.output import Answer, show_progress
from nnnorm.errors import NNNormWarning, require, warn

_SECONDS = 5  # between two lines of progress
_last = {"time": time.monotonic(), "share": 0.0, "pass": 1}


@command(
    "explore --gallery photos.npy --queries queries.npy --references past_queries.npy",
    like=explorer.open_material,
    images="Folder of pictures, in the order of the items.",
    metadata="A row per item, to filter by: a table or .json.",
    corrector="Corrector whose drift is shown.",
    truth=Line("Input", "Right items per query: .npy, or .json with lists."),
)
def explore(
    host: str = "127.0.0.1",
    port: int = 8765,
    browser: bool = True,
    export: Path | None = None,
    as_json: bool = False,
    **files: Any,
) -> Answer | None:
    """Explore hubs, results, settings and past queries on a local page, or show a demo."""
    opened = None
    if export is None:
        require("starlette", "explore")
        require("uvicorn", "explore")
        opened = explorer.listen(host, port)  # first, so a taken port is reported at once
    is_demo = all(value is None for value in files.values())
    material = explorer.demo_material() if is_demo else explorer.open_material(**files)
    for note in material.notes:
        warn(note)
    if opened is not None and host not in explorer.LOOPBACK:
        warn(
            f"the explorer listens on {host}: everyone who can reach this machine can see the "
            "data; leave out --host to listen on this machine only"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NNNormWarning)  # material.notes has those of the inputs
        with show_progress("Scoring") as bar:
            session = explorer.Session(material, progress=bar or _print_progress)
            if export is not None:
                written = explorer.record(session, export, bar or _print_progress)
        if opened is None:
            words = f"Written to {export}: {', '.join(written)}. Open {export}/index.html"
            return Answer({"folder": str(export), "files": written}, [words])
        name, number = opened.getsockname()[:2]
        shown = "localhost" if name in ("0.0.0.0", "::") else f"[{name}]" if ":" in name else name
        url, n_items = f"http://{shown}:{number}/", len(material.gallery)
        words = f"Explore {n_items:,} items at {url} (press Ctrl-C to stop)"
        typer.echo(json.dumps({"url": url, "n_items": n_items}) if as_json else words)
        if browser:
            webbrowser.open(url)
        with suppress(KeyboardInterrupt):
            explorer.serve(session, opened, host)
    return None


def _print_progress(done: int, total: int) -> None:
    """Print a line of progress every few seconds, if stderr isn't a terminal."""
    _last["pass"] += done / total < _last["share"]
    _last["share"] = done / total
    if time.monotonic() - _last["time"] >= _SECONDS:
        _last["time"] = time.monotonic()
        share = 100 * done / total
        print(f"Scoring, pass {_last['pass']}: {share:.0f} %", file=sys.stderr, flush=True)
