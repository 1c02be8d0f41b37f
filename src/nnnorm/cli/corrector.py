"""The commands that use a corrector: `extend`, `drift`, `calibrate` and `scan`."""

import math
from pathlib import Path
from typing import Any

import numpy as np

import nnnorm
from nnnorm import evaluation
from nnnorm.cli.app import command
from nnnorm.cli.core import describe_bias
from nnnorm.cli.inputs import read_groups
from nnnorm.cli.output import Answer, print_note, show_progress
from nnnorm.corrector import Corrector
from nnnorm.errors import NNNormError, plural
from nnnorm.evaluation.outliers import DEFAULT_BUDGET
from nnnorm.ranking import Ranking
from nnnorm.report.tables import tabulate_calibration, tabulate_drift, tabulate_scan
from nnnorm.tables import read_ids

# Exit code if there are items to remove; 1 and 2 mean errors and wrong usage.
_FOUND = 3


@command(
    "extend --corrector corrector.safetensors --items new.npy -o new-bias.safetensors",
    output="Write the bias of these items (.safetensors).",
)
def extend(corrector: Path, items: Path, output: Path, groups: Path | None = None) -> Answer:
    """Compute the bias of new items, comparable with that of the corrector's gallery."""
    labels, loaded = read_groups(groups), Corrector.load(corrector)
    with show_progress("Scoring the new items against the past queries") as progress:
        bias = loaded.bias_for(items, groups=labels, progress=progress)
    bias.save(output)
    return Answer(bias.to_dict(), [describe_bias(bias, output)])


@command(
    "drift --corrector corrector.safetensors --queries recent.npy",
    gallery="Current items; default: a sample from the fit.",
    groups="Groups of --gallery, if the corrector has groups.",
)
def drift(
    corrector: Path, queries: Path, gallery: Path | None = None, groups: Path | None = None
) -> Answer:
    """Compare past queries with today's. Exit code 0: fine, 3: refit soon, 4: refit now."""
    labels = read_groups(groups)
    found = evaluation.measure_drift(corrector, queries, gallery=gallery, groups=labels)
    return Answer(found.to_dict(), [tabulate_drift(found)], code=found.exit_code)


@command(
    "calibrate ranking.npz --labels right.txt --corrector c.safetensors -o new.safetensors",
    report=True,
    corrector="Corrector to add the calibration to.",
    output="With --corrector: write it (.safetensors).",
)
def calibrate(
    ranking: Path,
    labels: Path | None = None,
    corrector: Path | None = None,
    output: Path | None = None,
) -> Answer:
    """Convert the confidence of searches to probabilities; without labels, to percentiles."""
    if (corrector is None) != (output is None):
        raise NNNormError("--corrector and --output go together; pass both, or neither")
    confidence = Ranking.load(ranking).confidence
    if confidence is None:
        raise NNNormError(f"{ranking} has no confidence; search again and save the ranking with -o")
    given = read_ids(labels, "labels")
    if given is not None:  # any other word becomes NaN, which is rejected
        words = {"1": 1.0, "true": 1.0, "0": 0.0, "false": 0.0}
        given = [words.get(str(one).strip().lower(), math.nan) for one in np.atleast_1d(given)]
    made = nnnorm.calibrate(confidence, given)
    if corrector is not None and output is not None:
        Corrector.load(corrector).with_calibration(made).save(output)
    draw = {"reliability.png": lambda plots: plots.plot_reliability(made)} if made.curve else {}
    return Answer(made.to_dict(), [tabulate_calibration(made)], figures=draw)


@command(
    "scan --gallery photos.npy --references past_queries.npy -o outliers.txt",
    corrector="Corrector, instead of --references.",
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
    """Find items that look adversarial or corrupt. Exit code 0: none, 3: some to remove."""
    options: dict[str, Any] = {"ids": read_ids(ids)}
    if items is None and gallery is None:
        raise NNNormError("there are no items to scan; pass --gallery, or --items with --corrector")
    others = (gallery, references, budget, normalize)
    if items and (corrector is None or any(one is not None for one in others)):
        raise NNNormError(
            "--items needs --corrector, and no --gallery, --references, --budget or --normalize"
        )
    with show_progress("Scanning the items") as options["progress"]:
        if items is not None and corrector is not None:
            found = evaluation.screen(corrector, items, **options)
        else:
            options |= {"corrector": corrector, "normalize": normalize}
            found = evaluation.scan(gallery, references, budget=budget or DEFAULT_BUDGET, **options)
    if output is not None:
        found.save(output)
        print_note(f"Wrote {plural(len(found.to_remove), 'id')} to {output}")
    return Answer(found.to_dict(), [tabulate_scan(found)], code=_FOUND if found.to_remove else 0)
