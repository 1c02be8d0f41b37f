"""`nnnorm bank`: save the unique queries of a log, and add later logs."""

from pathlib import Path
from typing import Any

from nnnorm.bank import Bank
from nnnorm.cli.app import command
from nnnorm.cli.core import answer_bank
from nnnorm.cli.output import Answer, show_progress
from nnnorm.commands import write_command
from nnnorm.errors import NNNormError


@command(
    "bank queries.parquet --time asked_at -o bank.safetensors",
    output="Write the bank (.safetensors).",
)
def bank(
    log: Path,
    output: Path,
    column: str = "embedding",
    time: str | None = None,
    count: str | None = None,
    add: bool = False,
    forget_before: str | None = None,
    max_references: int | None = None,
    normalize: bool | None = None,
) -> Answer:
    """Save the unique queries of a log as a bank, or add a log to a bank."""
    fixed: dict[str, Any] = {"max_references": max_references, "normalize": normalize}
    if add and any(value is not None for value in fixed.values()):
        raise NNNormError(
            "--add keeps the --max-references and --normalize of the bank; leave them out, or make "
            "a new bank"
        )
    columns: dict[str, Any] = {"column": column, "times": time, "counts": count}
    with show_progress("Reading the log") as columns["progress"]:
        if add:
            kept = Bank.load(output)
            kept.add(log, **columns)
        else:
            kept = Bank.of(log, **columns, **fixed)
    if forget_before is not None:
        kept.forget(before=forget_before)
    kept.save(output)
    used = {"gallery": "GALLERY", "references": output, "-o": "bias.safetensors"}
    used["normalize"] = kept.normalized or None
    return answer_bank(kept, output, [] if add else [write_command("fit", used)])
