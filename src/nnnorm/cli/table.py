"""`nnnorm table`: a bias as sharded parquet, keyed by id, for engines that join it to their own."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from nnnorm.bias import Bias
from nnnorm.cli.app import (
    Debug,
    HelpfulGroup,
    IdsFile,
    Json,
    app,
    command,
    print_json,
    read_ids,
)
from nnnorm.cluster import BiasTable, ShardMove, find_moved, open_table, refresh_table, write_table
from nnnorm.report import Table

table_app = typer.Typer(
    cls=HelpfulGroup,
    help="Keep a bias as sharded parquet, keyed by id, for very large tables.",
    short_help="Keep a bias as sharded parquet, keyed by id, for very large tables.",
    rich_markup_mode=None,
)
app.add_typer(table_app, name="table")

BiasArgument = Annotated[
    Path, Argument(help="A file, or a folder of files, made by `nnnorm fit` or `nnnorm merge`.")
]


@command("table write bias.safetensors -o bias-table --ids ids.npy", table_app)
def write(
    bias: BiasArgument,
    output: Annotated[Path, Option("--output", "-o", metavar="FOLDER", help="Made if needed.")],
    ids: IdsFile = None,
    shards: Annotated[
        int | None, Option(help="Number of files; by default one per million items.", min=1)
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a bias as parquet files with the columns id and nnnorm_bias."""
    table = write_table(Bias.load(bias), output, ids=read_ids(ids), n_shards=shards)
    if as_json:
        print_json(_describe(table))
        return
    typer.echo(
        f"{len(table):,} items in {len(table.files):,} shards in {output}; search with "
        f"score - {table.weight:.4g} x nnnorm_bias"
    )


@command("table refresh bias-table --bias newer.safetensors --tolerance 0.01", table_app)
def refresh(
    table: Annotated[Path, Argument(metavar="FOLDER", help="Made by `nnnorm table write`.")],
    bias: Annotated[Path, Option(help="A newer bias of the same items.")],
    tolerance: Annotated[
        float, Option(help="Change of an item's correction, in units of the score.")
    ] = 0.01,
    dry_run: Annotated[bool, Option("--dry-run", help="Tell what moved, and write nothing.")] = (
        False
    ),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write only the shards in which an item moved by more than a tolerance."""
    opened, newer = open_table(table), Bias.load(bias)
    work = find_moved if dry_run else refresh_table
    moves = [move for move in work(opened, newer, tolerance=tolerance) if move.n_moved]
    if as_json:
        print_json(
            {
                "n_shards": len(opened.files),
                "weight": newer.weight,
                "written": not dry_run,
                "moved": [asdict(move) for move in moves],
            }
        )
        return
    _tabulate(moves, opened, newer, tolerance, dry_run).print()


def _describe(table: BiasTable) -> dict[str, Any]:
    shards = zip(table.files, table.sizes, strict=True)
    return {
        "weight": table.weight,
        "n_items": len(table),
        "shards": [{"file": file, "n_items": n} for file, n in shards],
    }


def _tabulate(
    moves: list[ShardMove], table: BiasTable, bias: Bias, tolerance: float, dry_run: bool
) -> Table:
    done = "would be written" if dry_run else "written"
    title = f"{len(moves):,} of {len(table.files):,} shards {done}"
    rows = tuple(
        (move.file, f"{move.n_items:,}", f"{move.n_moved:,}", f"{move.largest:.4f}",
         f"{move.typical:.4f}")
        for move in moves
    )  # fmt: skip
    notes = (
        f"In all others no correction moved by more than {tolerance:g}. The weight is "
        f"{bias.weight:.4g}, and was {table.weight:.4g}.",
    )
    return Table(title, ("shard", "items", "moved", "largest change", "typical"), rows, notes)
