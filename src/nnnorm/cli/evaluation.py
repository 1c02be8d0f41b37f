"""The commands that measure a search: check, evaluate, tune, compare, audit."""

from pathlib import Path
from typing import Any, Literal

from nnnorm import evaluation
from nnnorm.bias import Bias
from nnnorm.cli.app import command
from nnnorm.cli.inputs import check_settings, read_groups, read_settings
from nnnorm.cli.output import Answer, count_columns, print_note, show_progress
from nnnorm.commands import write_command, write_fit
from nnnorm.dedup import Duplicates
from nnnorm.documents import Documents
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.errors import NNNormError, plural
from nnnorm.methods import NO_CORRECTION, find_method, label_method
from nnnorm.report import tables
from nnnorm.tables import read_ids

_NO_QRELS = (".npy", ".json", ".npz", ".csv", ".jsonl", ".parquet")
# Settings of `check` for `--set`; `fit` has the first two as well.
_CHECK_SETTINGS = ("duplicates", "allow_gallery_rows", "seed", "memory_budget")


def _read_task(
    gallery: Path,
    queries: Path,
    truth: Path | None = None,
    ids: Path | None = None,
    query_ids: Path | None = None,
    normalize: bool | None = None,
    *,
    parents: Any = None,
) -> tuple[Embeddings, Embeddings, Any]:
    """Open gallery, queries and truth. Qrels use ids, and may have no line for some queries."""
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    given = read_ids(query_ids), read_ids(ids)  # files are checked even if only qrels need them
    if truth is None or truth.suffix in _NO_QRELS:
        if query_ids is not None:
            raise NNNormError("--query-ids applies only to qrels; leave it out")
        return items, asked, None if truth is None else evaluation.read_truth(truth)
    named = [
        next(some for some in (own, side.ids, range(len(side))) if some is not None)
        for own, side in zip(given, (asked, items), strict=True)
    ]
    if parents is not None:
        named[1] = Documents.open(parents, len(items), items.name).ids
    qrels = evaluation.read_qrels(truth)
    rows, right = evaluation.truth_of_qrels(qrels, query_ids=named[0], ids=named[1])
    return items, asked if len(rows) == len(asked) else asked.subset(rows), right


@command(
    "check --gallery photos.npy --queries queries.npy --references past_queries.npy "
    "--truth truth.npy",
    like=_read_task,
    settings="Other settings, such as seed=1; repeatable.",
)
def check(
    references: Path | None = None,
    groups: Path | None = None,
    settings: list[str] | None = None,
    explain: bool = False,
    **task: Any,
) -> Answer:
    """Report whether there are hubs, whether a correction helps, and what to do next."""
    given = read_settings(settings)
    check_settings(given, "check", _CHECK_SETTINGS)
    items, asked, right = _read_task(**task)
    options: dict[str, Any] = {"groups": read_groups(groups), "ids": read_ids(task["ids"]), **given}
    options |= {"queries": asked, "truth": right, "normalize": task["normalize"]}
    with show_progress("Checking") as options["progress"]:
        found = evaluation.check(items, references, **options)
    files = {"gallery": task["gallery"], "references": references, "groups": groups}
    kept = {name: given[name] for name in _CHECK_SETTINGS[:2] if name in given}
    commands = _next_commands(found, files, kept, task)
    about = found.to_dict() | {"next": [" ".join(parts) for parts in commands]}
    explained = [tables.tabulate_check(found)] if explain else []
    return Answer(about, [found.summary(count_columns()), *explained], commands)


def _next_commands(
    found: evaluation.Check, files: dict[str, Any], settings: dict[str, Any], task: dict[str, Any]
) -> list[list[str]]:
    """Return the commands to run next, with the files of this check."""
    end = {"normalize": task["normalize"]}
    if found.n_references is None and found.verdict == "unknown":
        made = {"": task["queries"], "-o": "bank.safetensors"}
        fit = {"gallery": files["gallery"], "references": made["-o"], "-o": "bias.safetensors"}
        return [write_command("bank", made | end), write_command("fit", fit | end)]
    if found.recommended is None:
        return []
    if found.recommended == "mixed":
        files["groups"] = "GROUPS"
    if found.is_mismatched:
        files["recent"] = task["queries"]
    tuned = found.tuned if found.recommended == "tuned" else None
    params = {**tuned.params, "duplicates": "drop"} if tuned else {}
    lines = [write_fit(files, "nnn", {**params, **settings}, **end)]
    bias = {"bias": "bias.safetensors"} | end
    if task["truth"] is not None and not tuned:  # tuned settings would be measured in-sample
        lines.append(write_command("evaluate", task | bias))
    search = {name: task[name] for name in ("gallery", "queries")}
    return [*lines, write_command("search", search | bias)]


@command(
    "evaluate --gallery photos.npy --queries captions.npy --truth truth.npy "
    "--bias bias.safetensors",
    like=_read_task,
    report=True,
)
def evaluate(
    bias: Path | None = None, parents: Path | None = None, hubs: int | None = None, **task: Any
) -> Answer:
    """Measure R@k, or list hubs, before and after a correction."""
    loaded = Bias.load(bias) if bias else None
    named, owners = read_ids(task["ids"]), read_ids(parents, "parents")
    if owners is not None and (task["truth"] is None or hubs):
        raise NNNormError("--parents needs --truth and doesn't apply to --hubs; leave out one")
    items, asked, right = _read_task(**task, parents=owners)
    about: dict[str, Any] = {"n_queries": len(asked), "n_gallery": len(items)}
    shown: list[Any] = []
    figures: dict[str, Any] = {}
    options: dict[str, Any] = {"truth": right}
    with show_progress("Evaluating") as options["progress"]:
        if right is not None:
            table, about["results"] = _measure(asked, items, loaded, parents=owners, **options)
            shown.append(table)
        if right is None or hubs:
            options |= {"ids": named, "most": hubs or 10}
            found = evaluation.diagnose(asked, items, loaded, **options)
            shown += tables.tabulate_diagnosis(found)
            about["hubs"] = found.to_dict()
            counts = (found.occurrences, found.occurrences_after)
            labels = ("uncorrected", label_method(found.method) if found.method else "")
            figures["occurrences.png"] = lambda plots: plots.plot_occurrences(
                *counts, labels=labels, k=found.k
            )
    return Answer(about, shown, figures=figures)


def _measure(
    queries: Any, items: Any, bias: Bias | None, **options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a table of R@k before and after a bias, and the same results for JSON."""
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
        *_, (ndcg, value) = means.items()
        notes.append(
            f"{label_method(result.method)}: MRR {means['mrr']:.4f}, median rank "
            f"{means['median_rank']:g}, nDCG@{ndcg.removeprefix('ndcg_at_')} {value:.4f}"
        )
        programs.append({**result.to_dict(), "weight": weight, **means})
    title = f"{plural(len(queries), 'query')}, {len(items):,} items"
    return tables.tabulate_results([result for _, result, _ in rows], title, notes), programs


@command(
    "tune --gallery photos.npy --references past_queries.npy --queries captions.npy "
    "--truth truth.npy -o bias.safetensors",
    like=_read_task,
    report=True,
    output="Write the chosen bias (.safetensors).",
    clicks="Clicks per item, to protect popular items.",
)
def tune(
    references: Path,
    truth: Path,
    groups: Path | None = None,
    gallery_references: Path | None = None,
    clicks: Path | None = None,
    methods: list[str] | None = None,
    duplicates: Duplicates = "drop",
    select: evaluation.Select = "one-standard-error",
    output: Path | None = None,
    **task: Any,
) -> Answer:
    """Try a grid of settings on labeled queries, and choose one."""
    items, asked, right = _read_task(**task, truth=truth)
    options: dict[str, Any] = {"groups": read_groups(groups), "clicks": read_ids(clicks, "clicks")}
    options |= {"gallery_references": gallery_references, "methods": methods or ["nnn"]}
    options |= {"duplicates": duplicates, "select": select, "normalize": task["normalize"]}
    with show_progress("Trying every setting") as options["progress"]:
        tuning = evaluation.tune(items, references, queries=asked, truth=right, **options)
    if output is not None:
        tuning.bias.save(output)
        print_note(f"Wrote the chosen bias to {output}")
    best, commands = tuning.best, []
    if clicks is not None and output is None:
        print_note("`fit` takes no clicks: to save the chosen bias with them, pass -o")
    if best.method == "nnn" or (best.method != NO_CORRECTION and clicks is None):
        files = {"gallery": task["gallery"], "references": references, "groups": groups}
        between = {} if tuning.between in (None, 1) else {"between": tuning.between}
        given = {**best.params, **between, "duplicates": duplicates}
        if gallery_references and find_method(best.method)[0].gallery_bank != "unused":
            given["gallery_references"] = gallery_references
        commands = [write_fit(files, best.method, given, task["normalize"])]
    about = {**tuning.to_dict(), "fit": " ".join(commands[0]) if commands else None}
    if commands and tuning.popularity is not None:
        about["fit"] = None  # it would not include the clicks
        used = {"": "INDEX", "corrector": "corrector.safetensors", "clicks": clicks}
        weight = {"popularity_weight": tuning.popularity.weight}
        commands = [
            ["-o hubs.safetensors" if part.startswith("-o") else part for part in commands[0]],
            write_command("index refresh", used | weight),
        ]
    has_map = any({"reference_k", "alpha"} <= set(cell.params) for cell in tuning.grid)
    figures = {"grid.png": lambda plots: plots.plot_grid(tuning)} if has_map else {}
    return Answer(about, [tables.tabulate_tuning(tuning)], commands, figures)


@command(
    "compare --gallery photos.npy --references past_queries.npy --queries captions.npy "
    "--truth truth.npy",
    like=_read_task,
    report=True,
)
def compare(
    references: Path,
    truth: Path,
    gallery_references: Path | None = None,
    validation_gallery: Path | None = None,
    validation_queries: Path | None = None,
    validation_truth: Path | None = None,
    methods: list[str] | None = None,
    duplicates: Duplicates = "drop",
    select: evaluation.Select = "one-standard-error",
    **task: Any,
) -> Answer:
    """Tune all methods on validation queries and compare them on test queries."""
    held_out, normalize = None, task["normalize"]
    if validation_queries is not None and validation_truth is not None:
        side = validation_gallery or task["gallery"], validation_queries, validation_truth
        other, asked, right = _read_task(*side, normalize=normalize)
        held_out = evaluation.Task(asked, other, right)
    elif validation_gallery or validation_queries or validation_truth:
        raise NNNormError("validation needs --validation-queries and --validation-truth; pass both")
    items, asked, right = _read_task(**task, truth=truth)
    options: dict[str, Any] = {"validation": held_out, "gallery_references": gallery_references}
    options |= {"methods": methods or "all", "duplicates": duplicates, "select": select}
    with show_progress("Comparing") as options["progress"]:
        comparison = evaluation.compare(
            items, references, queries=asked, truth=right, normalize=normalize, **options
        )
    figures = {"gains.png": lambda plots: plots.plot_gains(comparison)}
    return Answer(comparison.to_dict(), [tables.tabulate_comparison(comparison)], figures=figures)


@command(
    "audit --gallery photos.npy --queries questions.npy --groups people.csv:gender "
    "-k 10 --bias bias.safetensors",
    report=True,
)
def audit(
    gallery: Path,
    queries: Path,
    groups: Path,
    bias: Path | None = None,
    ks: list[int] | None = None,
    difference: str | None = None,
    target_shares: Literal["gallery", "equal"] = "gallery",
    normalize: bool | None = None,
) -> Answer:
    """Count how often each group is retrieved, before and after a correction."""
    options: dict[str, Any] = {"groups": read_groups(groups), "ks": ks or [10]}
    options |= {"difference": difference and tuple(difference.split(",")), "target": target_shares}
    loaded = Bias.load(bias) if bias else None
    with show_progress("Counting groups") as options["progress"]:
        found = evaluation.audit(queries, gallery, loaded, normalize=normalize, **options)
    correction = None if loaded is None else {"method": loaded.method, **loaded.params}
    about = {**found.to_dict(), "correction": correction}
    figures = {"audit.png": lambda plots: plots.plot_audit(found)}
    return Answer(about, tables.tabulate_audit(found), figures=figures)
