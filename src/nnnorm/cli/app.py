"""What the commands share: the app itself, options, errors, progress and printing.

A user's mistake is one sentence and exit code 1, wrong usage exit code 2; a traceback needs
`--debug`. Results go to stdout, progress and notes to stderr. `COMMANDS` says which module has
which command; it is imported when the command is asked for. Rooms are imported inside functions
here, so that the help, and the first words of a command, are there at once.
"""

import codecs
import functools
import inspect
import io
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import typer
from typer import Option
from typer.core import TyperGroup
from typer.models import OptionInfo, ParameterInfo

from nnnorm.errors import (
    MissingExtraError,
    NNNormError,
    NNNormWarning,
    first_line,
    keep_interrupts,
    require,
)
from nnnorm.version import __version__

if TYPE_CHECKING:
    from nnnorm.bank import Bank
    from nnnorm.embeddings import Embeddings
    from nnnorm.files import Progress
    from nnnorm.ranking import Ranking

# Ends and usage errors; the third in the line of BadParameter is the base of all usage errors,
# which is not exported by every version of Typer.
_NOT_OURS: tuple[type[BaseException], ...] = (
    BrokenPipeError,
    typer.Exit,
    typer.Abort,
    typer.BadParameter.__mro__[2],
)


def _show_odd_names(error: UnicodeError) -> tuple[str, int]:
    """Escape the bytes of a file name that are no text; other characters are the terminal's."""
    if isinstance(error, UnicodeEncodeError):
        wrong = error.object[error.start : error.end]
        if all("\ud800" <= letter <= "\udfff" for letter in wrong):
            return wrong.encode("ascii", "backslashreplace").decode(), error.end
    raise error


codecs.register_error("nnnorm", _show_odd_names)


# Every command, its module, and its line of the help, in the order in which people need them.
COMMANDS = {
    "demo": ("demo", "See it work on data that ships with the package."),
    "check": ("evaluation", "Do I have hubs, does a correction help, what next?"),
    "fit": ("core", "Compute the bias of every item from past queries."),
    "search": ("core", "Search a gallery exactly, corrected by a bias."),
    "explore": ("explore", "Look at hubs, results and settings on a local page."),
    "index": ("index", "Run the corrected search inside an existing engine."),
    "bank": ("bank", "Keep a bank of past queries: every unique query once."),
    "extend": ("corrector", "Compute the bias of new items."),
    "drift": ("corrector", "Tell whether the bank is still like today's queries."),
    "scan": ("scan", "Find items that look planted or broken."),
    "evaluate": ("evaluation", "Measure R@1, R@5, R@10 before and after a correction."),
    "diagnose": ("evaluation", "Show the items that come back too often."),
    "tune": ("evaluation", "Choose a setting on queries with known answers."),
    "compare": ("evaluation", "Tune every method, and report all on test queries."),
    "ablate": ("evaluation", "Measure NNN with smaller and other banks."),
    "audit": ("audit", "Count how often each group of items is retrieved."),
    "encode": ("encode", "Turn images, texts or sounds into embeddings."),
    "dataset": ("dataset", "Write a data set's captions, pairs and splits as lists."),
    "info": ("core", "Show versions and the active BLAS, or what a file holds."),
}


def load_commands(name: str = "") -> None:
    """Import the module of a command, or those of all where there is none of that name."""
    for module, _ in [COMMANDS[name]] if name in COMMANDS else COMMANDS.values():
        import_module(f"nnnorm.cli.{module}")


class HelpfulGroup(TyperGroup):
    """Answers a group of commands without a command with its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help where there are no arguments."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class _Group(HelpfulGroup):
    """Imports a command when it is asked for; turns errors into one sentence and exit code 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in self.commands:
            load_commands(name)
            self.commands = typer.main.get_group(app).commands
        return super().get_command(ctx, name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="nnnorm")
        try:
            with warnings.catch_warnings(), keep_interrupts():
                _show_warnings_as_notes()
                return super().invoke(ctx)
        except _NOT_OURS:
            raise  # the reader went away, or Typer explains it: not ours to explain
        except (Exception, KeyboardInterrupt) as error:
            if ctx.obj == "debug":
                raise
            message = str(error)
            if isinstance(error, KeyboardInterrupt):
                message = "interrupted"
            elif isinstance(error, MemoryError):
                message = f"out of memory ({error}); try a smaller --memory-budget"
            elif isinstance(error, OSError):
                message = f"{error}; check the path, its permissions and the space there is"
            elif isinstance(error, UnicodeEncodeError):
                message = (
                    f"this terminal can't show a character ({first_line(error)}); set PYTHONUTF8=1"
                )
            elif not isinstance(error, (NNNormError, MissingExtraError)):
                message = (
                    f"unexpected {type(error).__name__} ({first_line(error)}); this is a fault of "
                    "nnnorm or of a library below it: run it again with --debug, and report it"
                )
            typer.echo(f"Error: {message}", err=True)
            raise typer.Exit(1) from error


def _show_warnings_as_notes() -> None:
    """Our own warnings become lines on stderr, once; those of other libraries stay as they are."""
    usual, shown = warnings.showwarning, set()

    def show(message: Any, category: type[Warning], *about: Any, **more: Any) -> None:
        if issubclass(category, NNNormWarning):
            if str(message) not in shown:
                typer.echo(f"Note: {message}", err=True)
            shown.add(str(message))
        else:
            usual(message, category, *about, **more)

    warnings.showwarning = show
    warnings.simplefilter("always", NNNormWarning)


app = typer.Typer(
    cls=_Group,
    help="Make embedding search return the right item instead of the popular one.",
    epilog="A first look: nnnorm demo. With files of your own: nnnorm check --help",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _remember_debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.find_root().obj = "debug"
    return value


_COLUMNS = 80  # of the narrowest terminal that is written for
SOURCE = ".npy, .npz, .parquet or a folder of shards"
Gallery = Annotated[Path, Option(help=f"Items that are searched: {SOURCE}.")]
Queries = Annotated[Path, Option(help=f"Queries: {SOURCE}.")]
References = Annotated[
    Path, Option(help=f"Past queries: {SOURCE}, or a bank made by `nnnorm bank`.")
]
AllowGalleryRows = Annotated[
    bool, Option("--allow-gallery-rows", help="Allow references that are rows of the gallery.")
]
BiasFile = Annotated[Path | None, Option(help="A file made by `nnnorm fit`.")]
Seed = Annotated[int, Option(help="Random seed of splits and intervals.", min=0)]
Weight = Annotated[float | None, Option(help="Replaces the weight of the bias.")]
IdsFile = Annotated[
    Path | None,
    Option(help="Ids of the items: .npy, a .json list, or a text file with one per line."),
]
Normalize = Annotated[
    bool | None,
    Option(
        "--normalize/--no-normalize",
        help="Divide every row of every input by its norm, or compare raw inner products.",
    ),
]
Budget = Annotated[int, Option(help="Memory to use beyond the inputs, in MB.", min=1)]
Json = Annotated[bool, Option("--json", help="Print JSON for programs.")]
Debug = Annotated[
    bool, Option("--debug", help="Show the traceback of an error.", callback=_remember_debug)
]


# Names of files, and functions that make the figures from the module of plots.
Figures: TypeAlias = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Inputs:
    """The options that decide how embeddings are opened."""

    normalize: Normalize = None

    def repeat(self) -> str:
        """The options that were given, to end another command with."""
        return {None: "", True: " --normalize", False: " --no-normalize"}[self.normalize]

    def open(self, path: Path, name: str) -> "Embeddings":
        """Open embeddings of the command line."""
        from nnnorm.embeddings import open_embeddings

        return open_embeddings(path, name=name, normalize=self.normalize)

    def open_references(self, path: Path, name: str = "references") -> "Embeddings | Bank":
        """Open past queries, or load a bank of them."""
        from nnnorm.bank import Bank

        return Bank.load(path) if path.suffix == ".safetensors" else self.open(path, name)


@dataclass(frozen=True)
class Report:
    """The options that decide where the tables and plots of a study go."""

    markdown: Annotated[Path | None, Option(help="Write the table to this Markdown file.")] = None
    plots: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write plots there (made if needed).")
    ] = None
    as_json: Json = False
    debug: Debug = False

    def check(self) -> None:
        """Check before the work that its results can be written."""
        from nnnorm.files import check_writable, make_folder

        if self.markdown is not None:
            check_writable(self.markdown)
        if self.plots is not None:
            require("matplotlib", "plots")
            make_folder(self.plots)

    def deliver(self, tables: Sequence[Any], result: Any, figures: Figures | None = None) -> None:
        """Write Markdown and plots where asked, then print the tables, or JSON."""
        from nnnorm.files import write_whole

        if self.markdown is not None:
            text = "\n\n".join(table.to_markdown() for table in tables) + "\n"
            write_whole(self.markdown, lambda file: file.write(text.encode()))
        if self.plots is not None:
            from nnnorm.report import plots as drawing

            for name, draw in (figures or {}).items():
                drawing.save_figure(draw(drawing), self.plots / name)
                typer.echo(f"Plot: {self.plots / name}", err=True)
        if self.as_json:
            print_json(result)
            return
        for place, table in enumerate(tables):
            if place:
                typer.echo()
            table.print()


def command(example: str, group: typer.Typer = app) -> Callable[[Callable[..., None]], Any]:
    """Make a function a command, with shared options and an example at the end of its help."""

    def register(function: Callable[..., None]) -> Any:
        # Typer cuts a summary that is not given as such.
        summary = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        return group.command(short_help=summary, epilog=f"Example: nnnorm {example}")(
            _spread_options(function)
        )

    return register


# What stands for a value in the help; choices stand for themselves.
_VALUES = {Path: "FILE", int: "N", float: "NUMBER", str: "TEXT"}


def _name_value(name: str, annotation: Any) -> Any:
    """Give an option or an argument a name for its value that a reader understands."""
    kind, *found = get_args(annotation)
    kinds = [inner for inner in _inner_types(kind) if inner in _VALUES]
    for info in found:
        if kinds and isinstance(info, ParameterInfo) and info.metavar is None:
            is_option = isinstance(info, OptionInfo)
            info.metavar = _VALUES[kinds[0]] if is_option else name.upper()
    return annotation


def _inner_types(kind: Any) -> Iterator[Any]:
    """A type, and those it is made of: ``list[str] | None`` holds ``str``."""
    yield kind
    for inner in get_args(kind):
        yield from _inner_types(inner)


def _spread_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter that is a dataclass of options by those options, for Typer."""
    signature = inspect.signature(function)
    options: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if is_dataclass(group := parameter.annotation):
            groups[name] = group
            options += [
                parameter.replace(name=field.name, default=field.default, annotation=field.type)
                for field in fields(group)
            ]
        else:
            options.append(parameter)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    options = [
        option.replace(annotation=_name_value(option.name, option.annotation)) for option in options
    ]
    vars(run)["__signature__"] = signature.replace(parameters=options)
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def write_command(name: str, options: Mapping[str, Any], end: str = "") -> list[str]:
    """Write a command as a shell takes it, in parts that belong together."""
    parts = [f"nnnorm {name}"]
    for option, value in options.items():
        if value is None or value is False:
            continue
        flag = option if option.startswith("-") else f"--{option.replace('_', '-')}"
        words = [flag] if option else []
        words += [] if value is True else [shlex.quote(str(value))]
        parts.append(" ".join(words))
    return [*parts, end.strip()] if end else parts


def print_command(parts: Sequence[str]) -> None:
    """Print a command, in several lines that a shell takes as one where it is long."""
    rows = [f"  {parts[0]}"]
    for part in parts[1:]:
        if len(rows[-1]) + len(part) + len("  \\") > _COLUMNS:
            rows.append("     ")
        rows[-1] += f" {part}"
    typer.echo(" \\\n".join(rows))


def check_output(output: Path, suffix: str, inputs: list[Path | None], *more: str) -> None:
    """Refuse an output that can't be written, is of another kind, or is one of the inputs."""
    from nnnorm.files import check_writable

    target = check_writable(output)
    if any(path is not None and os.path.realpath(path) == str(target) for path in inputs):
        raise NNNormError(f"{output} is one of the inputs and would be lost; choose another name")
    if output.suffix not in (suffix, *more):
        raise NNNormError(f"the output must end in {' or '.join((suffix, *more))}; got {output}")


def read_ids(path: Path | None, what: str = "ids") -> Any:
    """Read ids, or clicks, from a .npy file, a JSON list, or a text file with one per line."""
    if path is None:
        return None
    from nnnorm.arrays import read_npy
    from nnnorm.tables import read_json

    kind, one = ("whole numbers or strings", "id") if what == "ids" else ("numbers", "number")
    expected = f".npy of {kind}, a .json list, or text with one {one} per line"
    if not path.is_file():
        raise NNNormError(f"there is no file of {what} {path}; expected {expected}")
    if path.suffix == ".json":
        ids = read_json(path, f"a list of {what}")
        if not isinstance(ids, list):
            raise NNNormError(f"{path} must hold a list of {what}; got {type(ids).__name__}")
        return ids
    try:
        if path.suffix == ".npy":
            return read_npy(path)
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (ValueError, OSError) as error:
        raise NNNormError(
            f"{path} can't be read as {what} ({first_line(error)}); expected {expected}"
        ) from error


def number_or_auto(option: str, text: str | None, kind: type) -> Any:
    """Read a number, or the word auto."""
    if text is None or text == "auto":
        return text
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise typer.BadParameter(f"{text!r} is neither {what} nor 'auto'", param_hint=option) from (
            None
        )


@contextmanager
def show_progress(label: str) -> Iterator["Progress | None"]:
    """A bar on stderr while that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class PlainSteps:
    """Prints steps of long work as plain lines, one in `every` seconds, for a file or a pipe."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        every: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every, self._clock = write, every, clock
        self._last = clock()

    def __call__(self, text: str) -> None:
        """Print the step, unless another one was printed a short while ago."""
        now = self._clock()
        if now - self._last >= self._every:
            self._last = now
            self._write(f"{text} …")


@contextmanager
def show_steps() -> Iterator[Callable[[str], None] | None]:
    """What is being done, on stderr: one line that changes, or now and then a line in a file."""
    if not sys.stderr.isatty():
        yield PlainSteps(lambda line: typer.echo(line, err=True))
        return
    from rich.console import Console

    with Console(stderr=True).status("Starting") as status:
        yield lambda text: status.update(f"{text} …")


def print_story(parts: Iterable[Any]) -> None:
    """Print tables and paragraphs in turn."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part)
        else:
            part.print()
    sys.stdout.flush()  # what comes next may take long


def print_json(value: Any) -> None:
    """Print for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print a title and below it a line for each fact, under the name a person would give it."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for name, value in facts.items():
        if value is not None:
            table.add_row(f"  {name}", f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(title, style="bold")  # not the table's own title, which would wrap to its width
    console.print(table)


def print_ranking(ranking: "Ranking", output: Path | None, *, corrected: bool = True) -> None:
    """Print the first places of the first queries."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names = ranking.indices if ranking.ids is None else ranking.ids
    (n_queries, k), shown = names.shape, min(10, len(names))
    columns = min(5, k)
    console = Console(highlight=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("query", justify="right")
    for place in range(columns):
        table.add_column(f"{place + 1}", justify="right")
    for query in range(shown):
        pairs = zip(names[query], ranking.scores[query], strict=True)
        cells = [f"{escape(str(name))} [dim]{score:.3f}[/dim]" for name, score in pairs]
        table.add_row(str(query), *cells[:columns])
    what = "index" if ranking.ids is None else "id"
    score = "corrected score" if corrected else "score"
    console.print(f"Best items ({what}, {score})", style="bold", markup=False)
    console.print(table)
    if output is not None:
        typer.echo(f"All {n_queries:,} x {k} are in {output}", err=True)
    elif n_queries > shown or k > columns:
        typer.echo(
            f"Shown: {shown} of {n_queries:,} queries, {columns} of {k} places; "
            "-o FILE or --json gives all",
            err=True,
        )
