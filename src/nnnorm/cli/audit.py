"""The audit command: how often groups of items are retrieved."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from nnnorm import evaluation
from nnnorm.bank import open_references
from nnnorm.bias import Bias
from nnnorm.cli.app import (
    SOURCE,
    BiasFile,
    Gallery,
    Inputs,
    Queries,
    Report,
    Seed,
    command,
    number_or_auto,
    show_progress,
)
from nnnorm.dedup import Duplicates
from nnnorm.errors import NNNormError
from nnnorm.methods import NNN
from nnnorm.report import plot_audit, tabulate_audit
from nnnorm.tables import read_columns


@command(
    "audit --gallery photos.npy --queries questions.npy --groups people.csv "
    "--group-column gender -k 10 --references past_queries.npy"
)
def audit(
    gallery: Gallery,
    queries: Queries,
    groups: Annotated[
        Path, Option(help="Table (.csv, .tsv, .jsonl, .parquet) with a row per item.")
    ],
    group_column: Annotated[str, Option(help="Column of the groups.")] = "group",
    label_column: Annotated[
        str | None, Option(help="Column with the label of each item; adds precision@k.")
    ] = None,
    query_table: Annotated[
        Path | None,
        Option(help="Table with a row per query: name, and label (with --label-column)."),
    ] = None,
    k: Annotated[
        list[int] | None,
        Option("-k", "--k", help="Number of first places; may be given several times."),
    ] = None,
    difference: Annotated[str | None, Option(help="Groups of bias@k, as A,B: (A - B)/k.")] = None,
    target: Annotated[str, Option(help="Fair shares: gallery, equal, or A=0.5,B=0.5.")] = "gallery",
    bias: BiasFile = None,
    references: Annotated[
        Path | None, Option(help=f"Instead of a bias: fit NNN from this bank, {SOURCE}.")
    ] = None,
    reference_k: Annotated[str | None, Option(help="With --references: a number or auto.")] = None,
    alpha: Annotated[str | None, Option(help="With --references: a number or auto.")] = None,
    duplicates: Annotated[
        Duplicates | None,
        Option(help="With --references: drop uses unique queries only. [drop]"),
    ] = None,
    seed: Seed = 0,
    *,
    inputs: Inputs,
    report: Report,
) -> None:
    """Count how often each group is retrieved, before and after a correction."""
    report.check()
    if bias and references:
        raise NNNormError("give --bias or --references, not both")
    if references is None and (reference_k or alpha or duplicates):
        raise NNNormError(
            "--reference-k, --alpha and --duplicates need --references; give it, or leave them out"
        )
    given = _read_groups(groups, group_column, label_column, query_table)
    given |= {"ks": k or [10], "target": _read_target(target)}
    given["difference"] = _read_pair(difference)
    items = inputs.open(gallery, "gallery")
    asked = inputs.open(queries, "queries")
    loaded = Bias.load(bias) if bias else None
    with show_progress("Counting groups") as progress:
        if references is not None:
            bank = inputs.open_references(references)
            evaluation.warn_of_overlap(open_references(bank), asked)
            method = NNN(
                number_or_auto("--reference-k", reference_k or "auto", int),
                number_or_auto("--alpha", alpha or "auto", float),
            )
            loaded = method.fit(items, bank, duplicates=duplicates or "drop", progress=progress)
        found = evaluation.audit(asked, items, loaded, seed=seed, progress=progress, **given)
    correction = None if loaded is None else {"method": loaded.method, **loaded.params}
    about = {**found.to_dict(), "correction": correction}
    report.deliver(tabulate_audit(found), about, {"audit.png": lambda _: plot_audit(found)})


def _read_groups(
    groups: Path, group_column: str, label_column: str | None, query_table: Path | None
) -> dict[str, Any]:

    labels = () if label_column is None else (label_column,)
    columns = read_columns(groups, (group_column, *labels))
    given: dict[str, Any] = {"groups": columns[group_column]}
    if query_table is not None:
        about = read_columns(query_table, ("label",) if labels else ("name",), ("name",))
        given["names"] = about.get("name", about.get("label"))
        if label_column is not None:
            given |= {"labels": columns[label_column], "query_labels": about["label"]}
    elif label_column is not None:
        raise NNNormError("--label-column needs --query-table, with the label of each query")
    return given


def _read_target(text: str) -> Any:
    if text in ("gallery", "equal"):
        return text
    try:
        return {name: float(share) for name, share in (p.split("=") for p in text.split(","))}
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither gallery nor equal nor shares such as A=0.5,B=0.5",
            param_hint="--target",
        ) from None


def _read_pair(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise typer.BadParameter(
            f"expected two groups as A,B; got {text!r}", param_hint="--difference"
        )
    return first.strip(), second.strip()
