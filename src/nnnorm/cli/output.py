"""Print results, progress and the commands to run next."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from nnnorm.commands import wrap_command
from nnnorm.errors import plural, printable, show_url

if TYPE_CHECKING:
    from nnnorm.files import Progress
    from nnnorm.ranking import Ranking

_ARRAYS = ("indices", "ids", "parents", "scores", "confidence")  # fields of a ranking
# An argument in Python with its option, as in "pass normalize=True (--normalize)".
_ARGUMENT = re.compile(r"\b(?:\w+=|(\w+)(?:=\S*)?(?= \(--(?:set |no-)?\1\b)) \((--[^()]*)\)")


def clean(text: object, keep: str = "") -> str:
    """Return text that is safe to print: no secrets of URLs, no control characters of data."""
    return printable(show_url(text), keep)


def count_columns() -> int:
    """Return the width of the output: that of the terminal, and 80 at most."""
    return min(80, get_terminal_size().columns)


def name_options(message: str) -> str:
    """Return a message with command-line options in place of Python arguments."""
    return _ARGUMENT.sub(r"\2", message)


class Facts(NamedTuple):
    """A title and one line per fact; facts that are None are left out."""

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
        # The title of a rich table would wrap to the width of the table.
        _console().print(clean(self.title), style="bold")
        _console().print(table)


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    With ``--json``, `about` is printed; otherwise `parts` (texts, tables, facts) and `next`
    (commands). `figures` maps file names to functions that draw them with `nnnorm.report.plots`.
    """

    about: Any
    parts: Sequence[Any] = ()
    next: Sequence[Sequence[str]] = ()
    figures: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    code: int = 0


def print_note(text: str, keep: str = "") -> None:
    """Print a note or an error on stderr; in a terminal, wrapped between words."""
    text = clean(text, keep)
    if sys.stderr.isatty() and not keep:
        width = get_terminal_size().columns
        text = fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)  # typer.echo would bypass a progress bar


def deliver(answer: Answer, as_json: bool, report: Path | None) -> None:
    """Write a report if there is a folder for it, then print JSON, or text and tables."""
    if report is not None:
        _write_report(answer, report)
    if as_json:
        typer.echo(json.dumps(answer.about, indent=2))
        return
    print_parts(answer.parts)
    if answer.next:
        typer.echo("\nNext:")
        for parts in answer.next:
            typer.echo(indent(wrap_command(list(map(clean, parts)), count_columns() - 2), "  "))


def _write_report(answer: Answer, folder: Path) -> None:
    from importlib.util import find_spec

    from nnnorm.files import staging, write_whole

    tables = [part.to_markdown() for part in answer.parts if hasattr(part, "to_markdown")]
    text = "\n\n".join(tables) + "\n"
    figures = answer.figures
    if find_spec("matplotlib") is None:
        print_note("Note: plots need matplotlib: pip install 'nnnorm[plots]'")
        figures = {}
    with staging(folder) as place:
        write_whole(place / "report.md", lambda file: file.write(text.encode()))
        for name, draw in figures.items():
            from nnnorm.report import plots

            plots.save_figure(draw(plots), place / name)
    print_note(f"Written to {folder}: {', '.join(['report.md', *figures])}")


def print_parts(parts: Sequence[Any]) -> None:
    """Print tables, facts and paragraphs in turn."""
    for number, part in enumerate(parts):
        if isinstance(part, str):
            _console().print(clean(part, keep="\n"))
        else:
            typer.echo("\n" * (number > 0), nl=False)
            part.print()
    print(end="", flush=True)  # before slow work


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


# --- progress ------------------------------------------------------------------------------------


@contextmanager
def show_progress(label: str, interrupted: str = "") -> Iterator["Progress | None"]:
    """Show a progress bar if stderr is a terminal; add `interrupted` to the message of Ctrl-C."""
    try:
        if not sys.stderr.isatty():
            yield None
            return
        from nnnorm.files import progress_bar

        with progress_bar(clean(label)) as bar:
            yield bar
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*filter(None, [interrupted])) from None


# --- rankings ------------------------------------------------------------------------------------


def answer_ranking(
    ranking: "Ranking", output: Path | None, about: dict[str, Any], *, corrected: bool = True
) -> Answer:
    """Save a ranking to `output`, or put all hits into the JSON."""
    about["n_queries"] = len(ranking)
    if output is not None:
        ranking.save(output)
    else:
        arrays = {name: getattr(ranking, name) for name in _ARRAYS}
        about |= {name: _plain(one.tolist()) for name, one in arrays.items() if one is not None}
    return Answer(about, [_tabulate(ranking, output, corrected)])


def _plain(value: Any) -> Any:
    """Return numbers for JSON: the digits of float32, and null for missing hits."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if value > -math.inf else None


def _tabulate(ranking: "Ranking", output: Path | None, corrected: bool) -> Any:
    """Return a table with the first hits of the first queries."""
    from nnnorm.report import Table

    known = {"document": ranking.parents, "id": ranking.ids, "index": ranking.indices}
    what, names = next((what, some) for what, some in known.items() if some is not None)
    (n_queries, k), shown = names.shape, min(10, len(names))
    hits = [
        [f"{name} {score:.3f}" if score > -math.inf else "–" for name, score in pairs] or ["–"]
        for query in range(shown)
        for pairs in [zip(names[query, :5], ranking.scores[query, :5], strict=True)]
    ]
    widths = [max(map(len, column)) + 2 for column in zip(*hits, strict=True)]
    fitting = [n for n in range(1, len(widths) + 1) if sum(widths[:n], start=5) <= count_columns()]
    columns, has_hits = max(fitting, default=1), (ranking.scores > -math.inf).any(axis=1)
    notes = []
    if k and (output is not None or n_queries > shown or k > columns):
        size = plural(n_queries, "query")
        note = f"Showing {shown} of {size}, {min(columns, k)} of {k} hits each. "
        more = f"All hits are in {output}." if output else "For all, use -o FILE or --json."
        notes.append(note + more)
    if n_empty := int((~has_hits).sum()):
        notes.append(f"{n_empty:,} of {n_queries:,} queries have no hits.")
    title = f"Best items ({what}, {'corrected score' if corrected else 'score'})"
    headings = ("query", *(str(place + 1) for place in range(columns)))
    rows = tuple((str(query), *cells[:columns]) for query, cells in enumerate(hits))
    return Table(title, headings, rows, tuple(notes))
