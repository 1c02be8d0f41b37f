"""The commands that measure a search: evaluate, diagnose, tune, compare, ablate.

Each takes files, prints a table (or JSON), and writes Markdown and plots where asked. Outputs are
checked before the work begins, and references that are among the queries are counted and reported.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nnnorm.cli.app import (
    SOURCE,
    Budget,
    Debug,
    Gallery,
    Json,
    MetricOption,
    Normalize,
    app,
    check_output,
    open_input,
    print_json,
    show_progress,
)
from nnnorm.errors import NNNormError
from nnnorm.io import Embeddings
from nnnorm.methods import METHOD_NAMES, MethodName, find_method
from nnnorm.study import Select

_TRUTH = ".npy with the right item of each query or (query, item) pairs, or .json with lists"
_TWO_BANKS = [name for name in METHOD_NAMES if find_method(name)[0].gallery_bank != "refused"]
Queries = Annotated[Path, typer.Option(help=f"Queries: {SOURCE}.")]
TruthFile = Annotated[Path, typer.Option(help=f"Right items: {_TRUTH}.")]
References = Annotated[Path, typer.Option(help=f"Bank of past queries: {SOURCE}.")]
GalleryReferences = Annotated[
    Path | None, typer.Option(help=f"Bank of gallery-side items ({', '.join(_TWO_BANKS)}).")
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help=f"May be given several times: {', '.join(METHOD_NAMES)}."),
]
SelectOption = Annotated[Select, typer.Option(help="The rule that chooses a setting of the grid.")]
Seed = Annotated[int, typer.Option(help="Random seed of splits and intervals.", min=0)]
Markdown = Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")]
Plots = Annotated[Path | None, typer.Option(help="Write plots to this folder (made if needed).")]
ValidationGallery = Annotated[
    Path | None, typer.Option(help="Gallery of the validation queries, if it is another.")
]
ValidationQueries = Annotated[
    Path | None,
    typer.Option(help="Queries to tune on; by default the queries of half of the items."),
]
ValidationTruth = Annotated[Path | None, typer.Option(help="Right items of those queries.")]


@app.command(
    epilog="Example: nnnorm evaluate --gallery photos.npy --queries captions.npy "
    "--truth truth.npy --bias bias.safetensors"
)
def evaluate(
    gallery: Gallery,
    queries: Queries,
    truth: TruthFile,
    bias: Annotated[Path | None, typer.Option(help="A file made by `nnnorm fit`.")] = None,
    weight: Annotated[float | None, typer.Option(help="Replaces the weight of the bias.")] = None,
    seed: Seed = 0,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    markdown: Markdown = None,
    plots: Plots = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure R@1, R@5, R@10 and more, before and after a correction."""
    from nnnorm.bias import Bias
    from nnnorm.methods import NO_CORRECTION, label_method
    from nnnorm.report import tabulate_results
    from nnnorm.study import (
        count_occurrences,
        make_result,
        mean_metrics,
        read_truth,
        report_gain,
    )
    from nnnorm.study import evaluate as measure

    check_outputs(markdown, plots)
    loaded = Bias.load(bias) if bias else None
    if loaded is None and weight is not None:
        raise NNNormError("--weight needs --bias; give one, or leave out --weight")
    items = open_input(gallery, "gallery", normalize, metric)
    asked = open_input(queries, "queries", normalize, metric)
    right = read_truth(truth)
    budget = memory_budget * 2**20
    with show_progress("Evaluating") as progress:
        options: Any = {"truth": right, "memory_budget": budget, "progress": progress}
        raw = measure(asked, items, **options)
        evaluations = [raw]
        results = [make_result(NO_CORRECTION, {}, raw, None)]
        if loaded is not None:
            done = measure(asked, items, loaded, weight=weight, **options)
            evaluations.append(done)
            results.append(report_gain(loaded.method, loaded.params, done, raw, seed=seed))
    others = [mean_metrics(evaluation) for evaluation in evaluations]
    notes = [
        f"{label_method(result.method)}: MRR {means['mrr']:.4f}, median rank "
        f"{means['median_rank']:g}, "
        + ", ".join(
            f"nDCG@{name.removeprefix('ndcg_at_')} {value:.4f}"
            for name, value in means.items()
            if name.startswith("ndcg_at_")
        )
        for result, means in zip(results, others, strict=True)
    ]
    title = f"{len(asked):,} queries, {len(items):,} items"
    figures: list[tuple[str, Callable[[Any], Any]]] = []
    if loaded is not None:
        counts = [count_occurrences(e.top1, e.n_gallery) for e in evaluations]
        labels = ("uncorrected", label_method(loaded.method))
        figures = [("occurrences.png", lambda p: p.plot_occurrences(*counts, labels=labels))]
    deliver(
        [tabulate_results(results, title, notes)],
        {
            "n_queries": len(asked),
            "n_gallery": len(items),
            "results": [
                {**result.to_dict(), **means} for result, means in zip(results, others, strict=True)
            ],
        },
        as_json,
        markdown,
        plots,
        figures,
    )


@app.command(
    epilog="Example: nnnorm diagnose --gallery photos.npy --queries queries.npy "
    "--references past_queries.npy"
)
def diagnose(
    gallery: Gallery,
    queries: Queries,
    bias: Annotated[Path | None, typer.Option(help="A file made by `nnnorm fit`.")] = None,
    references: Annotated[
        Path | None, typer.Option(help="Instead of a bias: fit the automatic NNN from this bank.")
    ] = None,
    truth: Annotated[Path | None, typer.Option(help=f"Right items: {_TRUTH}.")] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            help="Text file with the id of each item, one per line, to show in place of rows."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Places that count as retrieved.")] = 1,
    most: Annotated[int, typer.Option(help="Number of hubs to list.", min=1)] = 10,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    markdown: Markdown = None,
    plots: Plots = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the items that come back too often, before and after a correction."""
    from nnnorm.bias import Bias
    from nnnorm.methods import label_method
    from nnnorm.report import tabulate_diagnosis
    from nnnorm.study import diagnose as look_for_hubs
    from nnnorm.study import read_truth

    check_outputs(markdown, plots)
    if bias and references:
        raise NNNormError("give --bias or --references, not both")
    loaded = Bias.load(bias) if bias else None
    items = open_input(gallery, "gallery", normalize, metric)
    asked = open_input(queries, "queries", normalize, metric)
    bank = open_input(references, "references", normalize, metric) if references else None
    with show_progress("Counting") as progress:
        found = look_for_hubs(
            asked,
            items,
            loaded,
            references=bank,
            truth=read_truth(truth) if truth else None,
            ids=ids.read_text(encoding="utf-8").splitlines() if ids else None,
            k=k,
            most=most,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    labels = ("uncorrected", label_method(found.method) if found.method else "")
    deliver(
        tabulate_diagnosis(found),
        found.to_dict(),
        as_json,
        markdown,
        plots,
        [
            (
                "occurrences.png",
                lambda p: p.plot_occurrences(
                    found.occurrences, found.occurrences_after, labels=labels
                ),
            )
        ],
    )


@app.command(
    epilog="Example: nnnorm tune --gallery photos.npy --references past_queries.npy "
    "--queries captions.npy --truth truth.npy -o bias.safetensors"
)
def tune(
    gallery: Gallery,
    references: References,
    queries: Queries,
    truth: TruthFile,
    gallery_references: GalleryReferences = None,
    method: Methods = None,
    select: SelectOption = "one-standard-error",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the chosen bias there.")
    ] = None,
    seed: Seed = 0,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    markdown: Markdown = None,
    plots: Plots = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Try a grid of settings on queries with known answers, and choose one."""
    from nnnorm.report import tabulate_tuning
    from nnnorm.study import read_truth
    from nnnorm.study import tune as try_all

    check_outputs(markdown, plots)
    if output is not None:
        inputs = [gallery, references, queries, truth, gallery_references]
        check_output(output, ".safetensors", inputs)
    items = open_input(gallery, "gallery", normalize, metric)
    bank = open_input(references, "references", normalize, metric)
    asked = open_input(queries, "queries", normalize, metric)
    gallery_bank = _open_bank(gallery_references, normalize, metric)
    warn_of_overlap(bank, asked)
    with show_progress("Trying every setting") as progress:
        tuning = try_all(
            items,
            bank,
            queries=asked,
            truth=read_truth(truth),
            methods=_check_names(method) or ("nnn",),
            gallery_references=gallery_bank,
            select=select,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    if output is not None:
        tuning.bias.save(output)
        typer.echo(f"The chosen bias is in {output}", err=True)
    has_map = any({"reference_k", "alpha"} <= set(cell.params) for cell in tuning.grid)
    figures: list[tuple[str, Callable[[Any], Any]]] = [
        ("grid.png", lambda p: p.plot_grid(tuning)),
        ("reference-k.png", lambda p: p.plot_reference_k(tuning)),
    ]
    about = {**tuning.to_dict(), "output": str(output) if output else None}
    deliver([tabulate_tuning(tuning)], about, as_json, markdown, plots, figures if has_map else [])


@app.command(
    epilog="Example: nnnorm compare --gallery photos.npy --references past_queries.npy "
    "--queries captions.npy --truth truth.npy"
)
def compare(
    gallery: Gallery,
    references: References,
    queries: Queries,
    truth: TruthFile,
    gallery_references: GalleryReferences = None,
    validation_gallery: ValidationGallery = None,
    validation_queries: ValidationQueries = None,
    validation_truth: ValidationTruth = None,
    method: Methods = None,
    select: SelectOption = "one-standard-error",
    seed: Seed = 0,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    markdown: Markdown = None,
    plots: Plots = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tune every method on validation queries and report all on test queries."""
    from nnnorm.report import tabulate_comparison
    from nnnorm.study import compare as run_all
    from nnnorm.study import read_truth

    check_outputs(markdown, plots)
    paths = (validation_gallery, validation_queries, validation_truth)
    items = open_input(gallery, "gallery", normalize, metric)
    asked = open_input(queries, "queries", normalize, metric)
    validation = _open_validation(paths, items, normalize, metric)
    bank = open_input(references, "references", normalize, metric)
    gallery_bank = _open_bank(gallery_references, normalize, metric)
    warn_of_overlap(bank, asked)
    with show_progress("Comparing") as progress:
        comparison = run_all(
            items,
            bank,
            queries=asked,
            truth=read_truth(truth),
            validation=validation,
            gallery_references=gallery_bank,
            methods=_check_names(method) or "all",
            select=select,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    deliver(
        [tabulate_comparison(comparison)],
        comparison.to_dict(),
        as_json,
        markdown,
        plots,
        [("gains.png", lambda p: p.plot_gains(comparison))],
    )


@app.command(
    epilog="Example: nnnorm ablate --gallery photos.npy --queries captions.npy "
    "--truth truth.npy --references own=past_queries.npy --references web=other_queries.npy"
)
def ablate(
    gallery: Gallery,
    references: Annotated[
        list[str],
        typer.Option(help="A bank, as FILE or NAME=FILE; may be given several times."),
    ],
    queries: Queries,
    truth: TruthFile,
    validation_gallery: ValidationGallery = None,
    validation_queries: ValidationQueries = None,
    validation_truth: ValidationTruth = None,
    share: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of each bank; may be given several times. Default: 1, 0.5, 0.2, 0.1."
        ),
    ] = None,
    select: SelectOption = "one-standard-error",
    seed: Seed = 0,
    normalize: Normalize = None,
    metric: MetricOption = "ip",
    memory_budget: Budget = 512,
    markdown: Markdown = None,
    plots: Plots = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure NNN with smaller and other banks, tuned and automatic."""
    from nnnorm.report import tabulate_ablation
    from nnnorm.study import ablate as run_all
    from nnnorm.study import read_truth

    check_outputs(markdown, plots)
    items = open_input(gallery, "gallery", normalize, metric)
    asked = open_input(queries, "queries", normalize, metric)
    paths = (validation_gallery, validation_queries, validation_truth)
    validation = _open_validation(paths, items, normalize, metric)
    banks = {
        name: open_input(
            file, "references" if len(references) == 1 else f"references {name}", normalize, metric
        )
        for name, file in map(_name_and_file, references)
    }
    for opened in banks.values():
        warn_of_overlap(opened, asked)
    with show_progress("Trying every bank") as progress:
        ablation = run_all(
            items,
            banks,
            queries=asked,
            truth=read_truth(truth),
            validation=validation,
            shares=share or (1.0, 0.5, 0.2, 0.1),
            select=select,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    deliver(
        [tabulate_ablation(ablation)],
        ablation.to_dict(),
        as_json,
        markdown,
        plots,
        [("bank-size.png", lambda p: p.plot_bank_size(ablation))],
    )


# --- input and output ----------------------------------------------------------------------------


def _check_names(names: list[str] | None) -> list[MethodName]:
    if unknown := [name for name in names or [] if name not in METHOD_NAMES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(METHOD_NAMES)}", param_hint="--method"
        )
    return names or []


def _open_bank(path: Path | None, normalize: bool | None, metric: Any) -> Embeddings | None:
    return None if path is None else open_input(path, "gallery_references", normalize, metric)


def _open_validation(
    paths: tuple[Path | None, Path | None, Path | None],
    items: Embeddings,
    normalize: bool | None,
    metric: Any,
) -> Any:
    """The validation task, or None where no validation files were given."""
    from nnnorm.study import Task, read_truth

    gallery, queries, truth = paths
    if queries is None and truth is None and gallery is None:
        return None
    if queries is None or truth is None:
        raise NNNormError("validation needs both --validation-queries and --validation-truth")
    if gallery is not None:
        items = open_input(gallery, "validation gallery", normalize, metric)
    asked = open_input(queries, "validation queries", normalize, metric)
    return Task(asked, items, read_truth(truth))


def _name_and_file(text: str) -> tuple[str, Path]:
    """Read NAME=FILE, or FILE alone, whose stem is then the name."""
    name, equals, file = text.partition("=")
    if not equals:
        return Path(text).stem, Path(text)
    if not (name and file):
        raise typer.BadParameter(f"expected NAME=FILE, got {text!r}", param_hint="--references")
    return name, Path(file)


def warn_of_overlap(references: Embeddings, queries: Embeddings) -> None:
    """Warn on stderr where references are among the queries."""
    from nnnorm.study import count_overlap

    if n_common := count_overlap(references, queries):
        typer.echo(
            f"Warning: {n_common:,} of the {len(references):,} rows of {references.name} are among "
            "the queries; a bank that includes the queries makes the result look too good",
            err=True,
        )


def check_outputs(markdown: Path | None, plots: Path | None) -> None:
    """Check before the work that its results can be written."""
    from nnnorm.errors import require
    from nnnorm.io import check_writable, make_folder

    if markdown is not None:
        check_writable(markdown)
    if plots is not None:
        require("matplotlib", "plots")
        make_folder(plots)


def deliver(
    tables: Sequence[Any],
    result: Any,
    as_json: bool,
    markdown: Path | None,
    plots: Path | None,
    figures: Sequence[tuple[str, Callable[[Any], Any]]],
) -> None:
    """Write Markdown and plots where asked, then print the tables, or JSON."""
    from nnnorm.io import write_whole

    if markdown is not None:
        text = "\n\n".join(table.to_markdown() for table in tables) + "\n"
        write_whole(markdown, lambda file: file.write(text.encode()))
    if plots is not None:
        from nnnorm.report import plots as drawing

        for name, draw in figures:
            drawing.save_figure(draw(drawing), plots / name)
            typer.echo(f"Plot: {plots / name}", err=True)
    if as_json:
        print_json(result)
        return
    for place, table in enumerate(tables):
        if place:
            typer.echo()
        table.print()
