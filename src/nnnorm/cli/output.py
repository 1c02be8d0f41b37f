"""What commands read beyond embeddings, and how results, progress and next commands are shown."""

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from nnnorm.errors import NNNormError, first_line, printable, show_url

if TYPE_CHECKING:
    from nnnorm.files import Progress
    from nnnorm.ranking import Ranking

_COLUMNS = 80  # of the narrowest terminal that is written for


def clean(text: object, keep: str = "") -> str:
    """Write text that may hold names from data, or URLs, for a terminal: no secrets, no escapes."""
    return printable(show_url(text), keep)


class Facts(NamedTuple):
    """A title and below it a line for each fact; those that are None are left out."""

    title: str
    facts: Mapping[str, Any]

    def print(self) -> None:
        """Print to the terminal."""
        from rich.table import Table

        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for name, value in self.facts.items():
            if value is not None:
                lines = value if isinstance(value, list) else [value]
                shown = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in lines]
                table.add_row(f"  {clean(name)}", "\n".join(map(clean, shown)))
        # Not the table's own title, which would wrap to its width.
        _console().print(clean(self.title), style="bold")
        _console().print(table)


@dataclass(frozen=True)
class Answer:
    """What a command found.

    `about` is printed with ``--json``, `parts` (texts, tables, facts) and `next` (commands)
    without. `figures` are file names and functions that draw them with the module of plots.
    """

    about: Any
    parts: Sequence[Any] = ()
    next: Sequence[Sequence[str]] = ()
    figures: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    code: int = 0


def check_report(folder: Path | None) -> None:
    """Check before the work that its report can be written."""
    if folder is not None:
        from nnnorm.files import make_folder

        make_folder(folder)


def print_note(text: str, keep: str = "") -> None:
    """Print a note, or an error, on stderr."""
    typer.echo(clean(text, keep), err=True)


def deliver(answer: Answer, as_json: bool, folder: Path | None) -> None:
    """Write a report if asked, then print JSON, or everything for people."""
    if folder is not None:
        _write_report(answer, folder)
    if as_json:
        typer.echo(json.dumps(answer.about, indent=2))
        return
    print_parts(answer.parts)
    if answer.next:
        typer.echo("\nNext:")
        for parts in answer.next:
            print_command(parts)


def _write_report(answer: Answer, folder: Path) -> None:
    from importlib.util import find_spec

    from nnnorm.files import write_whole

    tables = [part.to_markdown() for part in answer.parts if hasattr(part, "to_markdown")]
    text = "\n\n".join(tables) + "\n"
    write_whole(folder / "report.md", lambda file: file.write(text.encode()))
    names = ["report.md"]
    if find_spec("matplotlib") is None:
        print_note("Note: plots need matplotlib: pip install 'nnnorm[plots]'")
    else:
        from nnnorm.report import plots

        for name, draw in answer.figures.items():
            plots.save_figure(draw(plots), folder / name)
            names.append(name)
    print_note(f"Written to {folder}: {', '.join(names)}")


def print_parts(parts: Sequence[Any]) -> None:
    """Print tables, facts and paragraphs in turn."""
    for part in parts:
        if isinstance(part, str):
            _console().print(clean(part, keep="\n"))
        else:
            part.print()
    print(end="", flush=True)  # what comes next may take long


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


# --- commands to run next ------------------------------------------------------------------------


def write_command(name: str, options: Mapping[str, Any]) -> list[str]:
    """Write a command as a shell takes it, in parts that belong together."""
    parts = [f"nnnorm {name}"]
    for option, given in options.items():
        flag = option if option.startswith("-") else f"--{option.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, bool):
                parts.append(flag if value else f"--no{flag[1:]}")
            elif value is not None:
                text = shlex.quote(str(value))
                parts.append(f"{flag} {text}" if option else text)
    return parts


def print_command(parts: Sequence[str]) -> None:
    """Print a command, in several lines that a shell takes as one if it is long."""
    rows = [f"  {parts[0]}"]
    for part in map(clean, parts[1:]):
        if len(rows[-1]) + len(part) + len("  \\") > _COLUMNS:
            rows.append("     ")
        rows[-1] += f" {part}"
    typer.echo(" \\\n".join(rows))


# --- input ---------------------------------------------------------------------------------------


def check_output(output: Path | None, inputs: Sequence[Path | None], *suffixes: str) -> None:
    """Reject an output that can't be written, has another suffix, or is one of the inputs."""
    if output is None:
        return
    from nnnorm.files import check_writable

    target = check_writable(output)
    if any(path is not None and os.path.realpath(path) == str(target) for path in inputs):
        raise NNNormError(
            f"{output} is one of the inputs and would be overwritten; choose another name"
        )
    if suffixes and output.suffix not in suffixes:
        raise NNNormError(f"the output must end in {' or '.join(suffixes)}; got {output}")


def read_ids(path: Path | None, what: str = "ids") -> Any:
    """Read ids, or clicks, from a .npy file, a JSON list, or a text file with one per line."""
    if path is None:
        return None
    from nnnorm.arrays import map_npy
    from nnnorm.tables import read_json

    is_name = what != "clicks"
    kind, one = ("whole numbers or strings", "id") if is_name else ("numbers", "number")
    expected = f".npy of {kind}, a .json list, or text with one {one} per line"
    if not path.is_file():
        raise NNNormError(f"there is no file of {what} {path}; expected {expected}")
    if path.suffix == ".json":
        ids = read_json(path, f"a list of {what}")
        if not isinstance(ids, list):
            raise NNNormError(f"{path} must hold a list of {what}; got {type(ids).__name__}")
        if nested := [one for one in ids if isinstance(one, (dict, list))]:
            raise NNNormError(f"{path} must hold a flat list of {what}; it has {nested[0]!r:.60}")
        return ids
    if path.suffix == ".npy":
        array = map_npy(path)
        if array.ndim != 1:
            raise NNNormError(
                f"{path}: {what} must be one-dimensional; got shape {array.shape}, expected "
                f"{expected}"
            )
        return array
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (ValueError, OSError) as error:
        raise NNNormError(
            f"{path} can't be read as {what} ({first_line(error)}); expected {expected}"
        ) from error


def read_groups(given: Path | None) -> Any:
    """Read labels as `read_ids` does, or a column of a table: TABLE:COLUMN."""
    from nnnorm.tables import TABLE_SUFFIXES, read_column

    if given is None:
        return None
    table, column = split_column(given)
    is_table = table.suffix in TABLE_SUFFIXES and table.is_file()
    return read_column(table, column) if is_table else read_ids(given, "groups")


def split_column(given: Path) -> tuple[Path, str | None]:
    """Split TABLE:COLUMN; a path that exists as it is has no column."""
    table, _, column = str(given).rpartition(":")
    if given.exists() or not (table and column and Path(table).exists()):
        return given, None
    return Path(table), column


def read_settings(pairs: Sequence[str] | None, **others: str | None) -> dict[str, Any]:
    """Read NAME=VALUE pairs, and options of such values: numbers, true and false, or words."""
    found = {name: _read_value(text) for name, text in others.items() if text is not None}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise typer.BadParameter(
                f"expected NAME=VALUE, such as center=true; got {pair!r}", param_hint="--set"
            )
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--set")
        found[name] = _read_value(text)
    return found


def _read_value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


# --- progress ------------------------------------------------------------------------------------


@contextmanager
def show_progress(label: str, interrupted: str = "") -> Iterator["Progress | None"]:
    """A bar on stderr while that is a terminal; `interrupted` is what a Ctrl-C leaves."""
    try:
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(escape(clean(label)), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*filter(None, [interrupted])) from None


# --- rankings ------------------------------------------------------------------------------------


def answer_ranking(
    ranking: "Ranking", output: Path | None, about: dict[str, Any], *, corrected: bool = True
) -> Answer:
    """Save a ranking to a file if one is given; else all of it is in the JSON."""
    about |= {"n_queries": len(ranking.scores), "output": None if output is None else str(output)}
    if output is not None:
        ranking.save(output)
    else:
        about["indices"] = ranking.indices.tolist()
        for name in ("ids", "parents"):
            if (names := getattr(ranking, name)) is not None:
                about[name] = names.tolist()
        about["scores"] = [
            # JSON has no infinities, which stand for places without an item.
            [float(f"{score:.7g}") if score > -math.inf else None for score in row]
            for row in ranking.scores
        ]
        if ranking.confidence is not None:
            about["confidence"] = [
                float(f"{one:.7g}") if one > -math.inf else None for one in ranking.confidence
            ]
    return Answer(about, [_tabulate(ranking, output, corrected)])


def _tabulate(ranking: "Ranking", output: Path | None, corrected: bool) -> Any:
    """The first hits of the first queries."""
    from nnnorm.report import Table

    known = {"document": ranking.parents, "id": ranking.ids, "index": ranking.indices}
    what, names = next((what, some) for what, some in known.items() if some is not None)
    (n_queries, k), shown = names.shape, min(10, len(names))
    hits = [
        [f"{name} {score:.3f}" if score > -math.inf else "–" for name, score in pairs]
        for query in range(shown)
        for pairs in [zip(names[query, :5], ranking.scores[query, :5], strict=True)]
    ]
    widths = [max(map(len, column)) + 2 for column in zip(*hits, strict=True)]
    fitting = [n for n in range(1, len(widths) + 1) if sum(widths[:n], start=5) <= _COLUMNS]
    columns = max(fitting, default=1)
    rows = [(str(query), *cells[:columns]) for query, cells in enumerate(hits)]
    score = "corrected score" if corrected else "score"
    notes: tuple[str, ...] = ()
    if output is not None or n_queries > shown or k > columns:
        note = f"Shown: {shown} of {n_queries:,} queries, {columns} of {k} places; "
        notes = (note + (f"all are in {output}" if output else "-o FILE or --json gives all"),)
    if n_empty := int((ranking.scores[:, 0] == -math.inf).sum()):
        notes += (f"{n_empty:,} of {n_queries:,} queries have no hits.",)
    title = f"Best items ({what}, {score})"
    headings = ("query", *(str(place + 1) for place in range(columns)))
    return Table(title, headings, tuple(rows), notes)
