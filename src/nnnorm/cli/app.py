"""The app: its commands, their help, and the handling of errors and results.

An error prints one sentence and exits with code 1. Usage errors exit with code 2, Ctrl-C with code
130. `--debug` adds a traceback. Results go to stdout, progress and notes to stderr. `--help` is
fast, because the module of a command is imported when it runs, and other packages inside functions.
"""

import functools
import inspect
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperArgument, TyperCommand, TyperGroup

from nnnorm.cli.options import FOLDER, GROUPS, LINES, MEANT, Line, make_option
from nnnorm.cli.output import Answer, clean, deliver, name_options, print_note
from nnnorm.commands import wrap_command
from nnnorm.errors import MissingExtraError, NNNormError, NNNormWarning, first_line, keep_interrupts
from nnnorm.version import __version__

# Exceptions that Typer handles. The third class in the MRO of BadParameter is the base class of
# usage errors, which some versions of Typer don't export.
_NOT_OURS: Any = (BrokenPipeError, typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])


# The module and the help line of every command, common commands first.
COMMANDS = {
    "demo": ("demo", "Try nnnorm on data that ships with the package."),
    "check": ("evaluation", "Report hubs, the expected effect, and what to do next."),
    "fit": ("core", "Compute the bias of every item from past queries."),
    "search": ("core", "Run an exact search, corrected by a bias."),
    "explore": ("explore", "Explore hubs, results and settings in your browser."),
    "index": ("index", "Run the corrected search in your vector database."),
    "bank": ("core", "Save the unique past queries of a log in a file."),
    "extend": ("corrector", "Compute the bias of new items."),
    "drift": ("corrector", "Check whether past queries still match today's."),
    "calibrate": ("corrector", "Convert the confidence of searches to probabilities."),
    "scan": ("corrector", "Find items that look adversarial or corrupt."),
    "evaluate": ("evaluation", "Measure R@k and hubs before and after a correction."),
    "tune": ("evaluation", "Choose settings on labeled queries."),
    "compare": ("evaluation", "Tune all methods and compare them on test queries."),
    "audit": ("evaluation", "Count how often each group of items is retrieved."),
    "encode": ("data", "Encode images, texts or sounds as embeddings."),
    "dataset": ("data", "List the images, captions and splits of a data set."),
    "info": ("core", "Show versions, or what a file contains."),
}


def load_commands(name: str = "") -> None:
    """Import the module of a command, or all modules if no command has that name."""
    for module, _ in [COMMANDS[name]] if name in COMMANDS else COMMANDS.values():
        import_module(f"nnnorm.cli.{module}")


class HelpfulGroup(TyperGroup):
    """A group of commands; without a command, it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help if there are no arguments."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class _Group(HelpfulGroup):
    """The root group; it imports commands when they run, and handles their errors."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept `--debug` anywhere on the command line."""
        if "--debug" in args:
            ctx.obj = "debug"
        with _clean_usage_errors():
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
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with warnings.catch_warnings(), keep_interrupts(), _clean_usage_errors():
                _show_warnings_as_notes()
                return super().invoke(ctx)
        except _NOT_OURS:  # a closed pipe, or an error that Typer prints
            raise
        except (Exception, KeyboardInterrupt) as error:
            if ctx.obj == "debug":
                print_note("".join(traceback.format_exception(error)), keep="\n")
            print_note(f"Error: {_explain(error)}")
            # 130 is what shells return after Ctrl-C.
            raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1) from error


@contextmanager
def _clean_usage_errors() -> Iterator[None]:
    """Make the text of a usage error printable, which Typer shows."""
    try:
        yield
    except _NOT_OURS as error:
        if hasattr(error, "message"):
            said = re.sub("Value error, |, unable to .*", "", error.message)
            error.message = clean(said.replace("Input should", "it should"))
        raise


def _explain(error: BaseException) -> str:
    """Return the sentence to print for an error."""
    if isinstance(error, KeyboardInterrupt):
        return "; ".join(["interrupted", *map(str, error.args)])
    if isinstance(error, (NNNormError, MissingExtraError)):
        return name_options(str(error))
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); pass fewer rows, or set memory_budget= in Python"
    if isinstance(error, OSError):
        from nnnorm.files import is_disk_full

        if is_disk_full(error):
            return f"the disk is full ({error}); free some space and run the command again"
        return f"{error}; check the path, its permissions and the free space"
    return (
        f"unexpected {type(error).__name__} ({first_line(error)}); this is a bug in nnnorm or in "
        "one of its libraries: run the command again with --debug, and report the output"
    )


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_note(self.format(record), keep="\n")


def _show_warnings_as_notes() -> None:
    """Print nnnorm's warnings on stderr, once each; those of other libraries don't change."""
    usual, shown = warnings.showwarning, set()

    def show(message: Any, category: type[Warning], *about: Any, **more: Any) -> None:
        if issubclass(category, NNNormWarning):
            if str(message) not in shown:
                print_note(f"Note: {name_options(str(message))}")
            shown.add(str(message))
        else:
            usual(clean(message, keep="\n"), category, *about, **more)

    logging.lastResort = _Log(logging.WARNING)  # of libraries without a handler of their own
    warnings.showwarning = show
    warnings.simplefilter("always", NNNormWarning)


app = typer.Typer(
    cls=_Group,
    help="Make embedding search return the right item instead of the popular one.",
    epilog="Start with nnnorm demo. For your own files, see nnnorm check --help.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": 80},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, Option("--debug", help="Show the traceback of an error (any command).")
    ] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


class _Command(TyperCommand):
    """A command whose help lists options in groups, and required options in the usage."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; suggest the option for a wrong one, and options for bare files."""
        flags: dict[str, Any] = {name: part for part in self.params for name in part.opts}
        for given in (word.partition("=")[0] for word in args if word.startswith("-")):
            meant = next((flag for flag in MEANT.get(given, ()) if flag in flags), None)
            if meant and given not in flags:
                ctx.fail(f"No such option: {given}; use {meant}: {flags[meant].help}")
        takes_files = any(isinstance(part, TyperArgument) for part in self.params)
        if args and not args[0].startswith("-") and not takes_files and "--gallery" in flags:
            ctx.fail(f"got {args[0]!r}, but files are passed as options, such as --gallery FILE")
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments and required options, for the usage line."""
        words = []
        for part in self.params:
            name, _ = show_option(part)
            if part.required:
                words.append(re.sub(", --[a-z]+", "", name))
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
    """Return the flags and the help line of an option or argument."""
    if isinstance(part, TyperArgument):
        return part.metavar or "", part.help or ""
    names = "/".join((", ".join(part.opts), *part.secondary_opts))
    if part.is_flag:
        return names, part.help
    is_shown = part.default is None or part.help.startswith(f"{part.default},")
    default = "" if is_shown else f" [default: {part.default}]"
    return f"{names} {part.metavar}", part.help + default


_REPORT = Parameter("report", Parameter.KEYWORD_ONLY, default=None, annotation=Path | None)
_JSON = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=bool)


def command(
    example: str,
    group: typer.Typer = app,
    *,
    like: Callable[..., Any] | None = None,
    report: bool = False,
    **lines: str | Line,
) -> Callable[[Callable[..., Answer | None]], Any]:
    """Register a function as a command.

    Its parameters become options, with the help lines of `options.LINES` or `lines`. The parameters
    of the function `like` replace its ``**`` parameter, and ``--json`` is added. Outputs are
    checked first. The answer is printed, and with ``--report`` also written to a folder.
    """

    def register(function: Callable[..., Answer | None]) -> Any:
        wanted = dict(inspect.signature(function).parameters)
        if like is not None:  # the function's own options take precedence
            wanted.popitem()
            shared = inspect.signature(like).parameters.values()
            wanted = {one.name: one for one in shared if one.kind != one.KEYWORD_ONLY} | wanted
        wants_json = "as_json" in wanted
        wanted |= {one.name: one for one in ([_REPORT, _JSON] if report else [_JSON])}
        shown = {name: _line_of(name, lines) for name in LINES if name in wanted}

        @functools.wraps(function)
        def run(**given: Any) -> None:
            folder = given.pop("report", None)
            as_json = given["as_json"] if wants_json else given.pop("as_json")
            _check_outputs(shown, given)
            with ExitStack() as stack:
                if folder is not None:
                    from nnnorm.files import filling

                    stack.enter_context(filling(folder))
                answer = function(**given)
                if answer is not None:
                    if "output" in given and shown["output"] != FOLDER:
                        answer.about["output"] = given["output"] and str(given["output"])
                    deliver(answer, as_json, folder)
                    raise typer.Exit(answer.code)

        options = [make_option(wanted[name], line) for name, line in shown.items()]
        vars(run)["__signature__"] = inspect.Signature(options)
        run.__annotations__ = {option.name: option.annotation for option in options}
        # Typer truncates a summary that isn't passed as `short_help`.
        summary = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        parts = re.split(" (?=-)", f"Example: nnnorm {example}")
        epilog = f"\b\n{wrap_command(parts, 76)}"  # \b: the lines stay as they are
        return group.command(cls=_Command, short_help=summary, epilog=epilog)(run)

    return register


def _check_outputs(lines: Mapping[str, Line], given: Mapping[str, Any]) -> None:
    """Raise an error unless outputs can be written and differ from inputs and each other."""
    files = [(lines[name], path) for name, path in given.items() if isinstance(path, Path)]
    inputs = [os.path.realpath(path) for line, path in files if line.group == "Input"]
    outputs: list[str] = []
    for line, path in files:
        if line.group == "Output" and line.value != "FOLDER":
            from nnnorm.files import check_writable

            target = str(check_writable(path))
            is_input = any(_is_same(target, one) for one in inputs)
            if is_input or target in outputs:
                what = "is one of the inputs" if is_input else "is given for two outputs"
                raise NNNormError(f"{path} {what} and would be overwritten; choose another name")
            suffixes = re.findall(r"\.[a-z]+\b", line.help)
            if suffixes and path.suffix not in suffixes:
                raise NNNormError(f"the output must end in {' or '.join(suffixes)}; got {path}")
            outputs.append(target)


def _is_same(target: str, other: str) -> bool:
    """Whether both are one file: macOS and Windows ignore case, and a file may have two names."""
    is_there = os.path.exists(target) and os.path.exists(other)
    return target == other or (is_there and os.path.samefile(target, other))


def _line_of(name: str, lines: dict[str, str | Line]) -> Line:
    """Return the help line of an option, or the command's own line."""
    own = lines.get(name) or LINES[name]
    return replace(LINES[name], help=own) if isinstance(own, str) else own
