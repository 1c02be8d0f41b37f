"""The app itself: its commands, their help, and what becomes of errors and results.

A user's mistake is one sentence and exit code 1, wrong usage exit code 2, Ctrl-C exit code 130; a
traceback needs `--debug`. Results go to stdout, progress and notes to stderr. `COMMANDS` has the
module of each command, which is imported when the command is asked for; other packages are imported
inside functions here, so that the help is there at once.
"""

import codecs
import functools
import inspect
import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperArgument, TyperCommand, TyperGroup

from nnnorm.cli.options import GROUPS, LINES, Line, make_option
from nnnorm.cli.output import Answer, check_report, deliver
from nnnorm.errors import (
    MissingExtraError,
    NNNormError,
    NNNormWarning,
    first_line,
    keep_interrupts,
)
from nnnorm.version import __version__

# Ends and usage errors; the third in the line of BadParameter is the base of all usage errors,
# which is not exported by every version of Typer.
_NOT_OURS: tuple[type[BaseException], ...] = (
    BrokenPipeError,
    typer.Exit,
    typer.Abort,
    typer.BadParameter.__mro__[2],
)
INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


def _show_odd_names(error: UnicodeError) -> tuple[str, int]:
    """Escape the bytes of a file name that aren't text; other characters are the terminal's."""
    if isinstance(error, UnicodeEncodeError):
        wrong = error.object[error.start : error.end]
        if all("\ud800" <= letter <= "\udfff" for letter in wrong):
            return wrong.encode("ascii", "backslashreplace").decode(), error.end
    raise error


codecs.register_error("nnnorm", _show_odd_names)


# Every command, its module, and its line of the help, the common ones first.
COMMANDS = {
    "demo": ("explore", "See it work on data that ships with the package."),
    "check": ("evaluation", "Do I have hubs, does a correction help, what next?"),
    "fit": ("core", "Compute the bias of every item from past queries."),
    "search": ("core", "Search a gallery exactly, corrected by a bias."),
    "explore": ("explore", "Look at hubs, results and settings on a local page."),
    "index": ("index", "Run the corrected search inside an existing engine."),
    "bank": ("bank", "Keep the unique queries of a log, and add to them."),
    "extend": ("corrector", "Compute the bias of new items."),
    "drift": ("corrector", "Compare the past queries with today's: refit or not?"),
    "scan": ("corrector", "Find items that look adversarial or corrupt."),
    "evaluate": ("evaluation", "Measure R@k and hubs before and after a correction."),
    "tune": ("evaluation", "Choose a setting on queries with known answers."),
    "compare": ("evaluation", "Tune every method, and report all on test queries."),
    "audit": ("evaluation", "Count how often each group of items is retrieved."),
    "encode": ("data", "Turn images, texts or sounds into embeddings."),
    "dataset": ("data", "Write a data set's captions, pairs and splits as lists."),
    "info": ("core", "Show versions and the active BLAS, or what a file holds."),
}


def load_commands(name: str = "") -> None:
    """Import the module of a command, or those of all if none has that name."""
    for module, _ in [COMMANDS[name]] if name in COMMANDS else COMMANDS.values():
        import_module(f"nnnorm.cli.{module}")


class HelpfulGroup(TyperGroup):
    """Answers a group of commands without a command with its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class _Group(HelpfulGroup):
    """Imports a command when it is asked for; turns errors into one sentence and exit code 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `--debug` from anywhere on the line."""
        if "--debug" in args:
            ctx.obj = "debug"
        return super().parse_args(ctx, [word for word in args if word != "--debug"])

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
            raise  # the reader went away, or Typer explains it
        except (Exception, KeyboardInterrupt) as error:
            if ctx.obj == "debug":
                raise
            typer.echo(f"Error: {_explain(error)}", err=True)
            raise typer.Exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from error


def _explain(error: BaseException) -> str:
    """One sentence about an error."""
    if isinstance(error, KeyboardInterrupt):
        return "; ".join(["interrupted", *map(str, error.args)])
    if isinstance(error, (NNNormError, MissingExtraError)):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); try fewer rows, or memory_budget= in Python"
    if isinstance(error, OSError):
        return f"{error}; check the path, its permissions and the space there is"
    if isinstance(error, UnicodeEncodeError):
        return f"this terminal can't show a character ({first_line(error)}); set PYTHONUTF8=1"
    return (
        f"unexpected {type(error).__name__} ({first_line(error)}); this is a fault of nnnorm or "
        "of a library below it: run it again with --debug, and report it"
    )


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
    epilog="A first look: nnnorm demo. With your own files: nnnorm check --help",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": 80},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, Option("--debug", help="Show the traceback of an error; for every command.")
    ] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


class _Command(TyperCommand):
    """Shows its options in groups, one line each, and required ones in the usage."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write arguments and required options."""
        words = []
        for part in self.params:
            name, _ = show_option(part)
            if part.required:
                words.append(name.replace(", --output", ""))
        return [*words, "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of each group."""
        for group in GROUPS:
            if lines := [show_option(part) for part in self.options_of(group)]:
                with formatter.section(group):
                    formatter.write_dl(lines)

    def options_of(self, group: str) -> list[Any]:
        """The options and arguments of a group, in order."""
        return [part for part in self.params if getattr(part, "rich_help_panel", None) == group]


def show_option(part: Any) -> tuple[str, str]:
    """Return how an option or argument is written, and what it means."""
    if isinstance(part, TyperArgument):
        return part.metavar or "", part.help or ""
    names = "/".join((", ".join(part.opts), *part.secondary_opts))
    if part.is_flag:
        return names, part.help
    is_shown = part.default is None or part.help.startswith(f"{part.default},")  # first of a list
    default = "" if is_shown else f" [default: {part.default}]"
    return f"{names} {part.metavar}", part.help + default


def command(
    example: str, group: typer.Typer = app, *, report: bool = False, **lines: str | Line
) -> Callable[[Callable[..., Answer | None]], Any]:
    """Make a function a command.

    Its parameters become options, described by `options.LINES` or by `lines`, and ``--json`` is
    added. What it returns is printed, and written to the folder of ``--report`` if it has one.
    """

    def register(function: Callable[..., Answer | None]) -> Any:
        wanted = dict(inspect.signature(function).parameters)
        if report:
            wanted["report"] = Parameter(
                "report", Parameter.KEYWORD_ONLY, default=None, annotation=Path | None
            )
        wants_json = "as_json" in wanted
        wanted["as_json"] = Parameter(
            "as_json", Parameter.KEYWORD_ONLY, default=False, annotation=bool
        )

        @functools.wraps(function)
        def run(**given: Any) -> None:
            folder = given.pop("report", None)
            as_json = given["as_json"] if wants_json else given.pop("as_json")
            check_report(folder)
            answer = function(**given)
            if answer is not None:
                deliver(answer, as_json, folder)
                raise typer.Exit(answer.code)

        options = [
            make_option(parameter, _line_of(name, lines)) for name, parameter in wanted.items()
        ]
        vars(run)["__signature__"] = inspect.Signature(options)
        run.__annotations__ = {option.name: option.annotation for option in options}
        # Typer cuts a summary that is not given as such.
        summary = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        epilog = f"Example: nnnorm {example}"
        return group.command(cls=_Command, short_help=summary, epilog=epilog)(run)

    return register


def _line_of(name: str, lines: dict[str, str | Line]) -> Line:
    """The line of an option, with the command's own words if it has any."""
    own = lines.get(name) or LINES[name]
    return replace(LINES[name], help=own) if isinstance(own, str) else own
