"""`nnnorm bank`: make a bank of past queries from a log, add to it, show it."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from nnnorm.bank import Bank, describe_times
from nnnorm.cli.app import (
    Debug,
    HelpfulGroup,
    Json,
    Normalize,
    app,
    check_output,
    command,
    print_facts,
    print_json,
    show_progress,
)
from nnnorm.dedup import describe_unique
from nnnorm.errors import NNNormError
from nnnorm.tables import TABLE_SUFFIXES

bank_app = typer.Typer(
    cls=HelpfulGroup,
    help="Keep a bank of past queries: every unique query once, from any log.",
    short_help="Keep a bank of past queries: every unique query once, from any log.",
    rich_markup_mode=None,
)
app.add_typer(bank_app, name="bank")

LogFile = Annotated[
    Path,
    Argument(
        help="Queries in the order they came: a log (.parquet, .csv, .tsv, .jsonl), or embeddings "
        "alone (.npy, .npz, a folder of shards)."
    ),
]
BankFile = Annotated[Path, Argument(help="A file made by `nnnorm bank build`.")]
Column = Annotated[str, Option(help="Column of the log with the embeddings.")]
Time = Annotated[
    str | None,
    Option(help="Column of the log with the times: numbers, or dates (ISO, or 20260501)."),
]
Count = Annotated[str | None, Option(help="Column of the log with the number of times asked.")]


@command("bank build queries.parquet --time asked_at --half-life 30d -o bank.safetensors", bank_app)
def build(
    log: LogFile,
    output: Annotated[Path, Option("--output", "-o", help="Where the bank goes.")],
    column: Column = "embedding",
    time: Time = None,
    count: Count = None,
    half_life: Annotated[
        str | None,
        Option(
            help="With --max-references: time after which a query is half as likely to be kept, "
            "such as 30d; if times are numbers, a number in their unit."
        ),
    ] = None,
    max_references: Annotated[
        int | None, Option(help="Keep a random sample of this many unique queries.", min=1)
    ] = None,
    seed: Annotated[int, Option(help="Random seed of the sample.", min=0)] = 0,
    normalize: Normalize = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a bank of the unique queries of a log."""
    check_output(output, ".safetensors", [log])
    options: dict[str, Any] = {"half_life": half_life, "max_references": max_references}
    options |= {"seed": seed, "normalize": normalize}
    with show_progress("Reading the log") as progress:
        if _is_table(log):
            options |= {"column": column, "time": time, "count": count}
            bank = Bank.from_log(log, **options, progress=progress)
        else:
            _refuse_columns(log, time, count)
            bank = Bank.of(log, **options, progress=progress)
    bank.save(output)
    _show(bank, output, as_json)
    if not as_json:
        typer.echo(
            f"\nNext: nnnorm fit --gallery GALLERY --references {shlex.quote(str(output))}"
            f"{' --normalize' if bank.normalized else ''} -o bias.safetensors",
            err=True,
        )


@command("bank add bank.safetensors today.parquet --time asked_at", bank_app)
def add(
    bank: BankFile,
    log: LogFile,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Where the bank goes; by default its own file.")
    ] = None,
    column: Column = "embedding",
    time: Time = None,
    count: Count = None,
    forget_before: Annotated[
        str | None, Option(help="Then drop the queries that were last asked before this time.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Add the queries of a log to a bank."""
    target = bank if output is None else output
    check_output(target, ".safetensors", [log])
    loaded = Bank.load(bank)
    with show_progress("Reading the log") as progress:
        if _is_table(log):
            loaded.add_log(log, column=column, time=time, count=count, progress=progress)
        else:
            _refuse_columns(log, time, count)
            loaded.add(log, progress=progress)
    if forget_before is not None:
        loaded.forget(before=forget_before)
    loaded.save(target)
    _show(loaded, target, as_json)


@command("bank info bank.safetensors", bank_app)
def info(bank: BankFile, as_json: Json = False, debug: Debug = False) -> None:
    """Show what a bank holds."""
    _show(Bank.load(bank), bank, as_json)


def describe_bank(bank: Bank, path: Path) -> tuple[str, dict[str, Any]]:
    """Title and facts of a bank for people; `to_dict` has everything for programs."""
    about = bank.to_dict()
    size = f"{len(bank):,}"
    if bank.is_sample and about["max_references"] is not None:
        size += f", a random sample: at most {about['max_references']:,} are kept"
    often = int(bank.counts.max())
    facts = {
        "unique queries": size,
        "most asked": f"{often:,} times, {often / bank.n_seen:.1%} of all queries",
        "embeddings": f"{bank.dim} dimensions{', normalised' if bank.normalized else ''}",
        "last asked": describe_times(bank) or None,
        "half-life": _describe_half_life(about),
        "fingerprint": about["fingerprint"],
        "made": f"{about['created'][:16].replace('T', ' ')} UTC",
    }
    unique = describe_unique(len(bank), bank.is_sample)
    return f"{path}: {unique} of {bank.n_seen:,} queries", facts


def _describe_half_life(about: dict[str, Any]) -> str | None:
    span = about["half_life"]
    if span is None or about["clock"] == "numbers":
        return None if span is None else f"{span:.15g}, in the unit of the times"
    return f"{span / 86400:.3g} days"


def _show(bank: Bank, path: Path, as_json: bool) -> None:
    if as_json:
        print_json({**bank.to_dict(), "output": str(path)})
    else:
        print_facts(*describe_bank(bank, path))


def _is_table(log: Path) -> bool:
    return log.suffix.lower() in TABLE_SUFFIXES


def _refuse_columns(log: Path, time: str | None, count: str | None) -> None:
    if time is not None or count is not None:
        raise NNNormError(
            f"{log} holds embeddings alone, so there is no column for --time or --count; give a "
            f"log ({', '.join(TABLE_SUFFIXES)})"
        )
