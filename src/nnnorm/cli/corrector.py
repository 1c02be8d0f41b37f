"""What a saved corrector is for: `extend` for items that come later, `drift` and `scan`."""

from pathlib import Path

import typer

from nnnorm import evaluation
from nnnorm.cli.app import command
from nnnorm.cli.core import describe_bias
from nnnorm.cli.output import Answer, check_output, read_ids, show_progress
from nnnorm.corrector import Corrector
from nnnorm.errors import NNNormError
from nnnorm.evaluation.outliers import DEFAULT_BUDGET, count_alerts
from nnnorm.report import tabulate_drift, tabulate_scan

# A scan that found something, for a cron job; 1 and 2 are taken by errors and wrong usage.
_FOUND = 3


@command(
    "extend --corrector corrector.safetensors --items new.npy -o new-bias.safetensors",
    output="Where the bias of these items goes (.safetensors).",
)
def extend(corrector: Path, items: Path, output: Path) -> Answer:
    """Compute the bias of new items, comparable with that of the corrector's gallery."""
    check_output(output, [corrector, items], ".safetensors")
    loaded = Corrector.load(corrector)
    with show_progress("Scoring the new items against the past queries") as progress:
        bias = loaded.bias_for(items, progress=progress)
    bias.save(output)
    return Answer({**bias.to_dict(), "output": str(output)}, [describe_bias(bias, output)])


@command(
    "drift --corrector corrector.safetensors --queries recent.npy",
    gallery="Items as they are now; default: a sample of the fit.",
)
def drift(corrector: Path, queries: Path, gallery: Path | None = None) -> Answer:
    """Compare the past queries with today's: exit code 0 fine, 3 refit soon, 4 refit now."""
    found = evaluation.measure_drift(corrector, queries, gallery=gallery)
    return Answer(found.to_dict(), [tabulate_drift(found)], code=found.exit_code)


@command(
    "scan --gallery photos.npy --references past_queries.npy -o outliers.txt",
    corrector="Instead of past queries: a corrector.",
    items="With --corrector: new items to screen.",
    output="Write the ids to remove (.txt or .json).",
)
def scan(
    gallery: Path | None = None,
    references: Path | None = None,
    corrector: Path | None = None,
    items: Path | None = None,
    ids: Path | None = None,
    budget: str | None = None,
    normalize: bool | None = None,
    output: Path | None = None,
) -> Answer:
    """Find items that look adversarial or corrupt: exit code 0 none, 3 some to remove."""
    check_output(output, [gallery, references, corrector, items, ids], ".txt", ".json")
    named = read_ids(ids)
    if items is None and gallery is None:
        raise NNNormError("give --gallery, or --items with --corrector")
    with show_progress("Judging the items") as progress:
        if items is None:
            budget = DEFAULT_BUDGET if budget is None else budget
            count_alerts(budget, 1)  # a wrong one is rejected before the work
            found = evaluation.scan(
                gallery,
                references,
                corrector=corrector,
                ids=named,
                budget=budget,
                normalize=normalize,
                progress=progress,
            )
        elif corrector is None or gallery is not None or references is not None:
            raise NNNormError(
                "--items are judged by a corrector alone; give --corrector and no --gallery or "
                "--references"
            )
        elif budget is not None:
            raise NNNormError("new items are judged each by itself, so --items takes no --budget")
        else:
            found = evaluation.screen(corrector, items, ids=named, progress=progress)
    if output is not None:
        found.save(output)
        typer.echo(f"The ids of {len(found.to_remove):,} items are in {output}", err=True)
    about = {**found.to_dict(), "output": None if output is None else str(output)}
    return Answer(about, [tabulate_scan(found)], code=_FOUND if found.to_remove else 0)
