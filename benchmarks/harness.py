"""Shared code of the benchmarks: options, results as JSON, and tables."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paste import paste

from nnnorm import NNNormError
from nnnorm.files import check_writable, write_whole


def add_options(parser: argparse.ArgumentParser, output: Path | None = None) -> None:
    """Add the options ``--output``, with an optional default, and ``--tables``."""
    parser.add_argument("--output", type=Path, default=output, help="the JSON file of the results")
    parser.add_argument(
        "--tables", action="store_true", help="only print the tables of stored results"
    )


def print_stored(
    path: Path,
    tables: Callable[[dict[str, Any]], str],
    draw: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Print the tables of stored results, and plot them; return the exit code."""
    if not path.is_file():
        print(f"there are no results in {path}; measure first", file=sys.stderr)
        return 1
    stored = json.loads(path.read_text(encoding="utf-8"))
    print(tables(stored).rstrip("\n"))
    if draw is not None:
        draw(stored)
    return 0


def can_measure(output: Path | None, missing: str | None = None) -> bool:
    """Return whether all data exist and results can be written; otherwise, print the reason."""
    if missing is not None:
        print(missing, file=sys.stderr)
        return False
    try:
        if output is not None:
            check_writable(output)
    except NNNormError as error:
        print(error, file=sys.stderr)
        return False
    return True


def store(path: Path | None, results: dict[str, Any] | str) -> None:
    """Write results, or their JSON, unless `path` is None."""
    if path is not None:
        text = results if isinstance(results, str) else as_json(results)
        write_whole(path, lambda file: file.write(text.encode()))


def as_json(results: dict[str, Any]) -> str:
    """Return JSON with a line per value, but lists of numbers on one line."""
    text = json.dumps(results, indent=1) + "\n"
    return re.sub(r"\[([\s\d.,e+-]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def collapsed(title: str, content: str) -> str:
    """Return a long table that a page shows after a click."""
    return f"<details markdown>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def run_command(
    parser: argparse.ArgumentParser,
    stored: Path,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    tables: Callable[[dict[str, Any]], str],
    page: str | None = None,
) -> int:
    """Measure and print tables, and store the results with ``--output``; return the exit code.

    Parameters
    ----------
    parser : ArgumentParser
        With the options of `measure`.
    stored : Path
        The results for ``--tables`` if ``--output`` isn't given.
    measure : callable
        Given the options, returns the results.
    tables : callable
        The Markdown of the results.
    page : str, optional
        Page of docs/ whose tables are replaced when `stored` is.
    """
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.tables:
        return print_stored(arguments.output or stored, tables)
    if not can_measure(arguments.output):
        return 1
    results = measure(arguments)
    is_stored = arguments.output is not None and arguments.output.resolve() == stored
    is_stored = is_stored and stored.is_file()
    old = tables(json.loads(stored.read_text(encoding="utf-8"))) if is_stored and page else ""
    store(arguments.output, results)
    if old and page and not paste(page, old, tables(results)):
        print(f"docs/{page} has another table; put this one there", file=sys.stderr)
    print(tables(results).rstrip("\n"))
    return 0
