"""The commands that measure a search: check, evaluate, tune, compare, audit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from nnnorm import evaluation
from nnnorm.bias import Bias
from nnnorm.cli.app import command
from nnnorm.cli.output import (
    Answer,
    check_output,
    read_ids,
    read_settings,
    show_progress,
    write_command,
)
from nnnorm.dedup import Duplicates
from nnnorm.embeddings import open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.methods import (
    NNN,
    NO_CORRECTION,
    MethodName,
    find_method,
    label_method,
)
from nnnorm.report import (
    tabulate_audit,
    tabulate_check,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_results,
    tabulate_tuning,
)
from nnnorm.tables import read_columns

_CHECK_SETTINGS = ("duplicates", "allow_gallery_rows", "seed", "memory_budget")


@command(
    "check --gallery photos.npy --queries queries.npy --references past_queries.npy "
    "--truth truth.npy",
    settings="Another setting: allow_gallery_rows=true; repeatable.",
)
def check(
    gallery: Path,
    queries: Path,
    references: Path | None = None,
    truth: Path | None = None,
    recent: Path | None = None,
    ids: Path | None = None,
    settings: list[str] | None = None,
    normalize: bool | None = None,
    explain: bool = False,
) -> Answer:
    """Report whether there are hubs, whether a correction helps, and what to do next."""
    given = read_settings(settings)
    if unknown := [name for name in given if name not in _CHECK_SETTINGS]:
        raise NNNormError(f"check takes --set {', '.join(_CHECK_SETTINGS)}; got {unknown[0]}")
    with show_progress("Checking") as progress:
        found = evaluation.check(
            gallery,
            references,
            queries=queries,
            truth=_read_truth(truth),
            recent=recent,
            ids=read_ids(ids),
            normalize=normalize,
            progress=progress,
            **given,
        )
    files = {"gallery": gallery, "references": references, "recent": recent}
    kept = ("duplicates", "allow_gallery_rows")
    given = {name: value for name, value in given.items() if name in kept}
    commands = _next_commands(found, files, given, queries, truth, normalize)
    about = found.to_dict() | {"next": [" ".join(parts) for parts in commands]}
    explained = ["", tabulate_check(found)] if explain else []
    return Answer(about, [found.summary(), *explained], commands)


def _next_commands(
    found: evaluation.Check,
    files: dict[str, Any],
    settings: Mapping[str, Any],
    queries: Path,
    truth: Path | None,
    normalize: bool | None,
) -> list[list[str]]:
    """What to run next, with the files of this check."""
    end = {"normalize": normalize}
    if found.verdict == "unknown":
        made = {"": queries, "-o": "bank.safetensors"}
        used = {"gallery": files["gallery"], "references": "bank.safetensors"}
        fit = {**used, "-o": "bias.safetensors"}
        return [write_command("bank", made | end), write_command("fit", fit | end)]
    if found.recommended is None:
        return []
    tuned = found.tuned if found.recommended == "tuned" else None
    params = {**tuned.params, "duplicates": "drop"} if tuned else {}
    search = {"gallery": files["gallery"], "queries": queries}
    bias = {"bias": "bias.safetensors"}
    lines = [_fit_command(files, NNN().name, {**params, **settings}, normalize)]
    if truth is not None and not tuned:  # in-sample otherwise
        lines.append(write_command("evaluate", {**search, "truth": truth, **bias, **end}))
    return [*lines, write_command("search", search | bias | end)]


def _fit_command(
    files: Mapping[str, Any], method: MethodName, params: Mapping[str, Any], normalize: bool | None
) -> list[str]:
    """The command that fits a setting; numbers are written so that they are read as the same."""
    plain = ("reference_k", "alpha", "duplicates")
    parts = write_command("fit", files)
    if method != NNN().name:
        parts.append(f"--method {method}")
    for name, value in params.items():
        text = str(value).lower() if isinstance(value, (bool, str)) else repr(value)
        parts.append(
            f"--{name.replace('_', '-')} {text}" if name in plain else f"--set {name}={text}"
        )
    return [*parts, *write_command("", {"-o": "bias.safetensors", "normalize": normalize})[1:]]


@command(
    "evaluate --gallery photos.npy --queries captions.npy --truth truth.npy "
    "--bias bias.safetensors",
    report=True,
)
def evaluate(
    gallery: Path,
    queries: Path,
    truth: Path | None = None,
    bias: Path | None = None,
    ids: Path | None = None,
    hubs: int | None = None,
    normalize: bool | None = None,
) -> Answer:
    """Measure R@k, and count and list hubs, before and after a correction."""
    loaded = Bias.load(bias) if bias else None
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    right, named = _read_truth(truth), read_ids(ids)
    about: dict[str, Any] = {"n_queries": len(asked), "n_gallery": len(items)}
    tables: list[Any] = []
    figures: dict[str, Any] = {}
    with show_progress("Evaluating") as progress:
        if right is not None:
            table, about["results"] = _measure(asked, items, loaded, right, progress)
            tables.append(table)
        if right is None or hubs:
            found = evaluation.diagnose(
                asked, items, loaded, truth=right, ids=named, most=hubs or 10, progress=progress
            )
            tables += tabulate_diagnosis(found)
            about["hubs"] = found.to_dict()
            counts = (found.occurrences, found.occurrences_after)
            labels = ("uncorrected", label_method(found.method) if found.method else "")
            figures["occurrences.png"] = lambda p: p.plot_occurrences(
                *counts, labels=labels, k=found.k
            )
    return Answer(about, tables, figures=figures)


def _measure(
    queries: Any, items: Any, bias: Bias | None, truth: Any, progress: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """The table of R@k before and after a bias, and the same for programs."""
    options = {"truth": truth, "progress": progress}
    raw = evaluation.evaluate(queries, items, **options)
    rows: list[tuple[Any, Any, float | None]]
    rows = [(raw, evaluation.make_result(NO_CORRECTION, {}, raw), None)]
    if bias is not None:
        done = evaluation.evaluate(queries, items, bias, **options)
        result = evaluation.make_result(bias.method, dict(bias.params), done, raw)
        rows.append((done, result, bias.weight))
    notes, programs = [], []
    for found, result, weight in rows:
        means = evaluation.mean_metrics(found)
        gains = ", ".join(
            f"nDCG@{name.removeprefix('ndcg_at_')} {value:.4f}"
            for name, value in means.items()
            if name.startswith("ndcg_at_")
        )
        notes.append(
            f"{label_method(result.method)}: MRR {means['mrr']:.4f}, median rank "
            f"{means['median_rank']:g}, {gains}"
        )
        programs.append({**result.to_dict(), "weight": weight, **means})
    title = f"{len(queries):,} queries, {len(items):,} items"
    return tabulate_results([result for _, result, _ in rows], title, notes), programs


@command(
    "tune --gallery photos.npy --references past_queries.npy --queries captions.npy "
    "--truth truth.npy -o bias.safetensors",
    report=True,
    output="Write the chosen bias (.safetensors).",
    clicks="Clicks per item, to add a popularity.",
)
def tune(
    gallery: Path,
    references: Path,
    queries: Path,
    truth: Path,
    gallery_references: Path | None = None,
    clicks: Path | None = None,
    methods: list[str] | None = None,
    duplicates: Duplicates = "drop",
    select: evaluation.Select = "one-standard-error",
    normalize: bool | None = None,
    output: Path | None = None,
) -> Answer:
    """Try a grid of settings on queries with known answers, and choose one."""
    read = [gallery, references, queries, truth, gallery_references, clicks]
    check_output(output, read, ".safetensors")
    with show_progress("Trying every setting") as progress:
        tuning = evaluation.tune(
            gallery,
            references,
            queries=queries,
            truth=_read_truth(truth),
            methods=methods or ["nnn"],
            gallery_references=gallery_references,
            duplicates=duplicates,
            clicks=read_ids(clicks, "clicks"),
            select=select,
            normalize=normalize,
            progress=progress,
        )
    if output is not None:
        tuning.bias.save(output)
        typer.echo(f"The chosen bias is in {output}", err=True)
    best = tuning.best
    commands = []
    if best.method != NO_CORRECTION:
        files: dict[str, Any] = {"gallery": gallery, "references": references}
        if find_method(best.method)[0].gallery_bank != "unused":
            files["gallery_references"] = gallery_references
        given = {**best.params, "duplicates": duplicates}
        commands = [_fit_command(files, best.method, given, normalize)]
    about = tuning.to_dict() | {"output": None if output is None else str(output)}
    about["fit"] = " ".join(commands[0]) if commands else None
    return Answer(about, [tabulate_tuning(tuning)], commands, _plots_of(tuning))


def _plots_of(tuning: evaluation.Tuning) -> dict[str, Any]:
    if not any({"reference_k", "alpha"} <= set(cell.params) for cell in tuning.grid):
        return {}
    return {"grid.png": lambda p: p.plot_grid(tuning)}


@command(
    "compare --gallery photos.npy --references past_queries.npy --queries captions.npy "
    "--truth truth.npy",
    report=True,
)
def compare(
    gallery: Path,
    references: Path,
    queries: Path,
    truth: Path,
    gallery_references: Path | None = None,
    validation_gallery: Path | None = None,
    validation_queries: Path | None = None,
    validation_truth: Path | None = None,
    methods: list[str] | None = None,
    duplicates: Duplicates = "drop",
    select: evaluation.Select = "one-standard-error",
    normalize: bool | None = None,
) -> Answer:
    """Tune every method on validation queries and report all on test queries."""
    task = None
    if validation_queries is not None and validation_truth is not None:
        task = evaluation.Task(
            validation_queries, validation_gallery or gallery, _read_truth(validation_truth)
        )
    elif validation_gallery or validation_queries or validation_truth:
        raise NNNormError("validation needs both --validation-queries and --validation-truth")
    with show_progress("Comparing") as progress:
        comparison = evaluation.compare(
            gallery,
            references,
            queries=queries,
            truth=_read_truth(truth),
            validation=task,
            gallery_references=gallery_references,
            duplicates=duplicates,
            methods=methods or "all",
            select=select,
            normalize=normalize,
            progress=progress,
        )
    figures = {"gains.png": lambda p: p.plot_gains(comparison)}
    return Answer(comparison.to_dict(), [tabulate_comparison(comparison)], figures=figures)


@command(
    "audit --gallery photos.npy --queries questions.npy --groups people.csv "
    "--group-column gender -k 10 --bias bias.safetensors",
    report=True,
)
def audit(
    gallery: Path,
    queries: Path,
    groups: Path,
    bias: Path | None = None,
    group_column: str = "group",
    label_column: str | None = None,
    query_table: Path | None = None,
    ks: list[int] | None = None,
    difference: str | None = None,
    target_shares: str = "gallery",
    normalize: bool | None = None,
) -> Answer:
    """Count how often each group is retrieved, before and after a correction."""
    given = _read_groups(groups, group_column, label_column, query_table)
    given |= {"ks": ks or [10], "target": _read_target(target_shares)}
    given["difference"] = difference and tuple(difference.split(","))
    loaded = Bias.load(bias) if bias else None
    with show_progress("Counting groups") as progress:
        found = evaluation.audit(
            queries, gallery, loaded, normalize=normalize, progress=progress, **given
        )
    correction = None if loaded is None else {"method": loaded.method, **loaded.params}
    figures = {"audit.png": lambda p: p.plot_audit(found)}
    return Answer({**found.to_dict(), "correction": correction}, tabulate_audit(found), (), figures)


# --- input ---------------------------------------------------------------------------------------


def _read_truth(path: Path | None) -> Any:
    return None if path is None else evaluation.read_truth(path)


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
