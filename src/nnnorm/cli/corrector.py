"""What a saved corrector is for: `extend` for items that arrive later, and `drift`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from nnnorm import evaluation
from nnnorm.cli.app import (
    SOURCE,
    Budget,
    Debug,
    Json,
    Queries,
    check_output,
    command,
    print_facts,
    print_json,
    show_progress,
)
from nnnorm.cli.core import facts_of_bias
from nnnorm.corrector import Corrector
from nnnorm.report import tabulate_drift

CorrectorFile = Annotated[Path, Option(help="A file made by `nnnorm fit --save-corrector`.")]


@command("extend --corrector corrector.safetensors --items new.npy -o new-bias.safetensors")
def extend(
    corrector: CorrectorFile,
    items: Annotated[Path, Option(help=f"Items that arrived later: {SOURCE}.")],
    output: Annotated[Path, Option("--output", "-o", help="Where the bias of these items goes.")],
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute the bias of new items, comparable with that of the gallery of the corrector."""
    check_output(output, ".safetensors", [corrector, items])
    loaded = Corrector.load(corrector)
    with show_progress("Scoring the new items against the references") as progress:
        bias = loaded.bias_for(items, memory_budget=memory_budget * 2**20, progress=progress)
    bias.save(output)
    if as_json:
        print_json({**bias.to_dict(), "output": str(output)})
        return
    print_facts(*facts_of_bias(bias, output))


@command("drift --corrector corrector.safetensors --queries recent.npy")
def drift(
    corrector: CorrectorFile,
    queries: Queries,
    gallery: Annotated[
        Path | None,
        Option(help=f"The items as they are now: {SOURCE}; by default a sample in the corrector."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tell whether the bank is still like today's queries: exit code 0 fine, 3 soon, 4 now."""
    found = evaluation.measure_drift(corrector, queries, gallery=gallery)
    if as_json:
        print_json(found.to_dict())
    else:
        tabulate_drift(found).print()
    raise typer.Exit(found.exit_code)
