"""`nnnorm scan`: items of a gallery, or new ones, that look planted or broken."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from nnnorm import evaluation
from nnnorm.cli.app import (
    SOURCE,
    Budget,
    Debug,
    IdsFile,
    Json,
    Normalize,
    Seed,
    check_output,
    command,
    print_json,
    read_ids,
    show_progress,
)
from nnnorm.errors import NNNormError
from nnnorm.evaluation.outliers import DEFAULT_BUDGET, Scan, count_alerts
from nnnorm.report import tabulate_scan

# A scan that found something, for a cron job; 1 and 2 are taken by errors and wrong usage.
_FOUND = 3


@command("scan --gallery photos.npy --references past_queries.npy -o outliers.txt")
def scan(
    gallery: Annotated[Path | None, Option(help=f"Items that are searched: {SOURCE}.")] = None,
    references: Annotated[
        Path | None, Option(help=f"Past queries: {SOURCE}, or a bank made by `nnnorm bank`.")
    ] = None,
    corrector: Annotated[
        Path | None, Option(help="In place of the references: `nnnorm fit --save-corrector`.")
    ] = None,
    items: Annotated[
        Path | None, Option(help=f"With a corrector: new items, before they get in: {SOURCE}.")
    ] = None,
    ids: IdsFile = None,
    budget: Annotated[
        str | None,
        Option(
            help="Largest number of alerts: a share such as 0.2% (five at least), or a number.",
            show_default=DEFAULT_BUDGET,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Write the ids to remove: .txt, one per line, or .json."),
    ] = None,
    normalize: Normalize = None,
    seed: Seed = 0,
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find items that look adversarial or corrupt: exit code 0 none, 3 some to remove."""
    if output is not None:
        check_output(output, ".txt", [gallery, references, corrector, items, ids], ".json")
    named = read_ids(ids)
    with show_progress("Judging the items") as progress:
        if items is not None:
            if corrector is None or gallery is not None or references is not None:
                raise NNNormError(
                    "--items are judged by a corrector alone; give --corrector and no --gallery "
                    "or --references"
                )
            if budget is not None:
                raise NNNormError(
                    "new items are judged each by itself, so --items takes no --budget"
                )
            found = evaluation.screen(corrector, items, ids=named, progress=progress)
        else:
            if gallery is None:
                raise NNNormError("give --gallery, or --items with --corrector")
            budget = DEFAULT_BUDGET if budget is None else budget
            count_alerts(budget, 1)  # a wrong one is refused before the work
            found = evaluation.scan(
                gallery,
                references,
                corrector=corrector,
                ids=named,
                budget=budget,
                normalize=normalize,
                seed=seed,
                memory_budget=memory_budget * 2**20,
                progress=progress,
            )
    _deliver(found, output, as_json)
    raise typer.Exit(_FOUND if found.to_remove else 0)


def _deliver(found: Scan, output: Path | None, as_json: bool) -> None:
    if output is not None:
        found.save(output)
    if as_json:
        print_json({**found.to_dict(), "output": None if output is None else str(output)})
        return
    tabulate_scan(found).print()
    if output is not None:
        typer.echo(f"The ids of {len(found.to_remove):,} items are in {output}", err=True)
