"""The commands that measure a search: check, evaluate, diagnose, tune, compare, ablate.

Each takes files, prints a table (or JSON), and writes Markdown and plots where asked. Outputs are
checked before the work begins.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from nnnorm import evaluation
from nnnorm.bias import Bias
from nnnorm.cli.app import (
    SOURCE,
    AllowGalleryRows,
    BiasFile,
    Budget,
    Debug,
    Figures,
    Gallery,
    IdsFile,
    Inputs,
    Json,
    Queries,
    References,
    Report,
    Seed,
    Weight,
    check_output,
    command,
    print_command,
    print_json,
    read_ids,
    show_progress,
    write_command,
)
from nnnorm.cli.core import DuplicatesOption, GalleryReferences
from nnnorm.corrector import Corrector, check_method
from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError
from nnnorm.methods import (
    METHOD_NAMES,
    NNN,
    NO_CORRECTION,
    Method,
    MethodName,
    find_method,
    label_method,
    make_method,
)
from nnnorm.popularity import Popularity
from nnnorm.report import (
    tabulate_ablation,
    tabulate_check,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_results,
    tabulate_tuning,
)

_TRUTH = ".npy with the right item of each query or (query, item) pairs, or .json with lists"
TruthFile = Annotated[Path, Option(help=f"Right items: {_TRUTH}.")]
Methods = Annotated[
    list[str] | None,
    Option("--method", help=f"May be given several times: {', '.join(METHOD_NAMES)}."),
]
SelectOption = Annotated[
    evaluation.Select, Option(help="The rule that chooses a setting of the grid.")
]


@dataclass(frozen=True)
class Validation:
    """The options that name other queries to tune on."""

    validation_gallery: Annotated[
        Path | None, Option(help="Gallery of the validation queries, if it is another.")
    ] = None
    validation_queries: Annotated[
        Path | None, Option(help="Queries to tune on; by default the figures are cross-fitted.")
    ] = None
    validation_truth: Annotated[Path | None, Option(help="Right items of those queries.")] = None

    def open(self, items: Embeddings, inputs: Inputs) -> Any:
        """Open the validation task; None where no validation files were given."""
        gallery, queries, truth = astuple(self)
        if gallery is None and queries is None and truth is None:
            return None
        if queries is None or truth is None:
            raise NNNormError("validation needs both --validation-queries and --validation-truth")
        if gallery is not None:
            items = inputs.open(gallery, "validation gallery")
        return evaluation.Task(
            inputs.open(queries, "validation queries"), items, evaluation.read_truth(truth)
        )


@command(
    "check --gallery photos.npy --queries queries.npy --references past_queries.npy "
    "--truth truth.npy"
)
def check(
    gallery: Gallery,
    queries: Queries,
    references: Annotated[
        Path | None, Option(help=f"Past queries: {SOURCE}, or a bank made by `nnnorm bank`.")
    ] = None,
    truth: Annotated[Path | None, Option(help=f"Right items: {_TRUTH}.")] = None,
    recent: Annotated[
        Path | None, Option(help="Recent queries of one's own, which join the bank and judge it.")
    ] = None,
    ids: IdsFile = None,
    duplicates: DuplicatesOption = "drop",
    allow_gallery_rows: AllowGalleryRows = False,
    explain: Annotated[
        bool,
        Option("--explain", help="Also print the figures behind the report, and what they mean."),
    ] = False,
    seed: Seed = 0,
    *,
    inputs: Inputs,
    memory_budget: Budget = 512,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say whether there are hubs, whether a correction helps, and what to do next."""
    items = inputs.open(gallery, "gallery")
    with show_progress("Checking") as progress:
        found = evaluation.check(
            items,
            inputs.open_references(references) if references else None,
            queries=inputs.open(queries, "queries"),
            truth=evaluation.read_truth(truth) if truth else None,
            recent=inputs.open(recent, "recent") if recent else None,
            ids=read_ids(ids),
            duplicates=duplicates,
            allow_gallery_rows=allow_gallery_rows,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    files = {"gallery": gallery, "references": references, "recent": recent}
    given = {"duplicates": duplicates, "allow_gallery_rows": allow_gallery_rows}
    commands = _next_commands(found, files | given, queries, truth, inputs)
    if as_json:
        print_json(found.to_dict() | {"next": [" ".join(parts) for parts in commands]})
        return
    typer.echo(found.summary())
    if explain:
        typer.echo()
        tabulate_check(found).print()
    if commands:
        typer.echo("Next:")
    for parts in commands:
        print_command(parts)


def _next_commands(
    found: evaluation.Check,
    files: dict[str, Any],
    queries: Path,
    truth: Path | None,
    inputs: Inputs,
) -> list[list[str]]:
    """What to run next, with the files of this check."""
    end, gallery = inputs.repeat(), files["gallery"]
    if found.verdict == "unknown":
        made = {"": queries, "-o": "bank.safetensors"}
        made |= {"normalize": inputs.normalize is True, "no_normalize": inputs.normalize is False}
        used = {"gallery": gallery, "references": "bank.safetensors", "-o": "bias.safetensors"}
        return [write_command("bank build", made), write_command("fit", used, end)]
    if found.recommended is None:
        return []
    setting = found.tuned.params if found.recommended == "tuned" and found.tuned else {}
    search = {"gallery": gallery, "queries": queries}
    bias = {"bias": "bias.safetensors"}
    lines = [_fit_command(files, NNN().name, setting, end)]
    if truth is not None and not setting:  # in-sample otherwise
        lines.append(write_command("evaluate", {**search, "truth": truth, **bias}, end))
    return [*lines, write_command("search", search | bias, end)]


def _plots_of(tuning: evaluation.Tuning) -> Figures:
    if not any({"reference_k", "alpha"} <= set(cell.params) for cell in tuning.grid):
        return {}
    return {"grid.png": lambda p: p.plot_grid(tuning)}


def _fit_command_of(chosen: evaluation.Cell, files: dict[str, Any], end: str) -> list[str]:
    """The command that fits a setting again; nothing where no correction was chosen."""
    if chosen.method == NO_CORRECTION:
        return []
    if find_method(chosen.method)[0].gallery_bank == "unused":
        files = files | {"gallery_references": None}
    return _fit_command(files, chosen.method, chosen.params, end)


def _fit_command(
    files: Mapping[str, Any], method: MethodName, params: Mapping[str, Any], end: str
) -> list[str]:
    """The command that fits a setting; numbers are written so that they are read as the same."""
    is_automatic = method == NNN().name and not params
    options = {k: value for k, value in files.items() if value != "drop" or not is_automatic}
    if method != NNN().name:
        options["method"] = method
    setting = {name: value if value is True else repr(value) for name, value in params.items()}
    return write_command("fit", {**options, **setting, "-o": "bias.safetensors"}, end)


@command(
    "evaluate --gallery photos.npy --queries captions.npy --truth truth.npy --bias bias.safetensors"
)
def evaluate(
    gallery: Gallery,
    queries: Queries,
    truth: TruthFile,
    bias: BiasFile = None,
    weight: Weight = None,
    seed: Seed = 0,
    *,
    inputs: Inputs,
    memory_budget: Budget = 512,
    report: Report,
) -> None:
    """Measure R@1, R@5, R@10 and more, before and after a correction."""
    report.check()
    loaded = Bias.load(bias) if bias else None
    if loaded is None and weight is not None:
        raise NNNormError("--weight needs --bias; give one, or leave out --weight")
    items = inputs.open(gallery, "gallery")
    asked = inputs.open(queries, "queries")
    right = evaluation.read_truth(truth)
    budget = memory_budget * 2**20
    with show_progress("Evaluating") as progress:
        options: Any = {"truth": right, "memory_budget": budget, "progress": progress}
        raw = evaluation.evaluate(asked, items, **options)
        evaluations = [raw]
        results = [evaluation.make_result(NO_CORRECTION, {}, raw, None)]
        if loaded is not None:
            done = evaluation.evaluate(asked, items, loaded, weight=weight, **options)
            evaluations.append(done)
            params = _with_weight(loaded, weight)
            results.append(evaluation.report_gain(loaded.method, params, done, raw, seed=seed))
    others = [evaluation.mean_metrics(one) for one in evaluations]
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
    if loaded is not None and weight is not None:
        notes.append(f"Measured with the weight {weight:g}; that of the bias is {loaded.weight:g}.")
    title = f"{len(asked):,} queries, {len(items):,} items"
    figures: Figures = {}
    if loaded is not None:
        counts = [evaluation.count_occurrences(e.top1, e.n_gallery) for e in evaluations]
        labels = ("uncorrected", label_method(loaded.method))
        figures = {"occurrences.png": lambda p: p.plot_occurrences(*counts, labels=labels)}
    used = None if loaded is None else loaded.weight if weight is None else weight
    both = [
        {**result.to_dict(), "weight": some, **means}
        for result, some, means in zip(results, (None, used), others, strict=False)
    ]
    about = {"n_queries": len(asked), "n_gallery": len(items), "results": both}
    report.deliver([tabulate_results(results, title, notes)], about, figures)


@command("diagnose --gallery photos.npy --queries queries.npy --references past_queries.npy")
def diagnose(
    gallery: Gallery,
    queries: Queries,
    bias: BiasFile = None,
    references: Annotated[
        Path | None, Option(help="Instead of a bias: fit the automatic NNN from this bank.")
    ] = None,
    duplicates: DuplicatesOption = "drop",
    truth: Annotated[Path | None, Option(help=f"Right items: {_TRUTH}.")] = None,
    ids: IdsFile = None,
    k: Annotated[
        int | None,
        Option(
            "-k",
            "--k",
            help="Places that count as retrieved.",
            show_default="1; 10 if items outnumber queries",
        ),
    ] = None,
    most: Annotated[int, Option(help="Number of hubs to list.", min=1)] = 10,
    *,
    inputs: Inputs,
    memory_budget: Budget = 512,
    report: Report,
) -> None:
    """Show the items that come back too often, before and after a correction."""
    report.check()
    if bias and references:
        raise NNNormError("give --bias or --references, not both")
    loaded = Bias.load(bias) if bias else None
    items = inputs.open(gallery, "gallery")
    asked = inputs.open(queries, "queries")
    bank = inputs.open_references(references) if references else None
    with show_progress("Counting") as progress:
        found = evaluation.diagnose(
            asked,
            items,
            loaded,
            references=bank,
            duplicates=duplicates,
            truth=evaluation.read_truth(truth) if truth else None,
            ids=read_ids(ids),
            k=k,
            most=most,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    labels = ("uncorrected", label_method(found.method) if found.method else "")
    counts = (found.occurrences, found.occurrences_after)
    figures: Figures = {
        "occurrences.png": lambda p: p.plot_occurrences(*counts, labels=labels, k=found.k)
    }
    report.deliver(tabulate_diagnosis(found), found.to_dict(), figures)


@command(
    "tune --gallery photos.npy --references past_queries.npy --queries captions.npy "
    "--truth truth.npy -o bias.safetensors"
)
def tune(
    gallery: Gallery,
    references: References,
    queries: Queries,
    truth: TruthFile,
    gallery_references: GalleryReferences = None,
    duplicates: DuplicatesOption = "drop",
    method: Methods = None,
    select: SelectOption = "one-standard-error",
    clicks: Annotated[
        Path | None,
        Option(help="Clicks of every item (.npy, or text with one per line): a popularity to add."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the chosen bias there.")
    ] = None,
    save_corrector: Annotated[
        Path | None,
        Option(help="Write a corrector of the chosen setting, for items that arrive later."),
    ] = None,
    seed: Seed = 0,
    *,
    inputs: Inputs,
    memory_budget: Budget = 512,
    report: Report,
) -> None:
    """Try a grid of settings on queries with known answers, and choose one."""
    report.check()
    methods = _check_names(method) or ("nnn",)
    read = [gallery, references, queries, truth, gallery_references, clicks]
    if output is not None:
        check_output(output, ".safetensors", read)
    if save_corrector is not None:
        check_output(save_corrector, ".safetensors", [*read, output])
        for name in methods:
            check_method(_first_of_grid(name))
    items = inputs.open(gallery, "gallery")
    bank = inputs.open_references(references)
    asked = inputs.open(queries, "queries")
    second = inputs.open(gallery_references, "gallery_references") if gallery_references else None
    counted = read_ids(clicks, "clicks")
    with show_progress("Trying every setting") as progress:
        tuning = evaluation.tune(
            items,
            bank,
            queries=asked,
            truth=evaluation.read_truth(truth),
            methods=methods,
            gallery_references=second,
            duplicates=duplicates,
            clicks=counted,
            select=select,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
        bias = tuning.bias
        if save_corrector is not None:
            options: Any = {"duplicates": duplicates, "memory_budget": memory_budget * 2**20}
            corrector = _fit_tuned(tuning, items, bank, second, **options, progress=progress)
            corrector.save(save_corrector)
            bias = corrector.bias
            if tuning.popularity is not None and tuning.popularity.weight:
                bias = bias + Popularity(counted, tuning.popularity.weight)
    if output is not None:
        bias.save(output)
        typer.echo(f"The chosen bias is in {output}", err=True)
    if save_corrector is not None:
        typer.echo(f"A corrector of that setting is in {save_corrector}", err=True)
    written = {"output": output, "corrector": save_corrector}
    about = tuning.to_dict() | {name: path and str(path) for name, path in written.items()}
    files: dict[str, Any] = {
        "gallery": gallery,
        "references": references,
        "gallery_references": gallery_references,
        "duplicates": duplicates,
    }
    parts = _fit_command_of(tuning.best, files, inputs.repeat())
    about["fit"] = " ".join(parts) or None
    report.deliver([tabulate_tuning(tuning)], about, _plots_of(tuning))
    if parts and not report.as_json:
        without = " (without the popularity, which is in the file of -o)" if clicks else ""
        typer.echo(f"\nTo fit this setting again{without}:")
        print_command(parts)


def _fit_tuned(
    tuning: evaluation.Tuning,
    items: Embeddings,
    bank: Any,
    gallery_references: Embeddings | None,
    **options: Any,
) -> Corrector:
    """A corrector of the chosen setting."""
    chosen = make_method(tuning.best.method, **tuning.best.params)
    if chosen.gallery_bank == "unused":
        gallery_references = None
    return Corrector.fit(
        items,
        bank,
        chosen,
        gallery_references=gallery_references,
        allow_gallery_rows=True,  # which was warned of
        **options,
    )


@command(
    "compare --gallery photos.npy --references past_queries.npy --queries captions.npy "
    "--truth truth.npy"
)
def compare(
    gallery: Gallery,
    references: References,
    queries: Queries,
    truth: TruthFile,
    gallery_references: GalleryReferences = None,
    duplicates: DuplicatesOption = "drop",
    *,
    validation: Validation,
    method: Methods = None,
    select: SelectOption = "one-standard-error",
    seed: Seed = 0,
    inputs: Inputs,
    memory_budget: Budget = 512,
    report: Report,
) -> None:
    """Tune every method on validation queries and report all on test queries."""
    report.check()
    methods = _check_names(method) or "all"
    items = inputs.open(gallery, "gallery")
    asked = inputs.open(queries, "queries")
    task = validation.open(items, inputs)
    bank = inputs.open_references(references)
    second = inputs.open(gallery_references, "gallery_references") if gallery_references else None
    with show_progress("Comparing") as progress:
        comparison = evaluation.compare(
            items,
            bank,
            queries=asked,
            truth=evaluation.read_truth(truth),
            validation=task,
            gallery_references=second,
            duplicates=duplicates,
            methods=methods,
            select=select,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    figures: Figures = {"gains.png": lambda p: p.plot_gains(comparison)}
    report.deliver([tabulate_comparison(comparison)], comparison.to_dict(), figures)


@command(
    "ablate --gallery photos.npy --queries captions.npy --truth truth.npy "
    "--references own=past_queries.npy --references web=other_queries.npy"
)
def ablate(
    gallery: Gallery,
    references: Annotated[
        list[str], Option(help="A bank, as FILE or NAME=FILE; may be given several times.")
    ],
    queries: Queries,
    truth: TruthFile,
    duplicates: DuplicatesOption = "drop",
    *,
    validation: Validation,
    share: Annotated[
        list[float] | None,
        Option(help="Share of each bank; may be given several times. Default: 1, 0.5, 0.2, 0.1."),
    ] = None,
    select: SelectOption = "one-standard-error",
    seed: Seed = 0,
    inputs: Inputs,
    memory_budget: Budget = 512,
    report: Report,
) -> None:
    """Measure NNN with smaller and other banks, tuned and automatic."""
    report.check()
    items = inputs.open(gallery, "gallery")
    asked = inputs.open(queries, "queries")
    task = validation.open(items, inputs)
    banks = {
        name: inputs.open_references(
            file, "references" if len(references) == 1 else f"references {name}"
        )
        for name, file in _name_banks(references).items()
    }
    with show_progress("Trying every bank") as progress:
        ablation = evaluation.ablate(
            items,
            banks,
            queries=asked,
            truth=evaluation.read_truth(truth),
            validation=task,
            duplicates=duplicates,
            shares=share or (1.0, 0.5, 0.2, 0.1),
            select=select,
            seed=seed,
            memory_budget=memory_budget * 2**20,
            progress=progress,
        )
    figures: Figures = {"bank-size.png": lambda p: p.plot_bank_size(ablation)}
    report.deliver([tabulate_ablation(ablation)], ablation.to_dict(), figures)


# --- input ---------------------------------------------------------------------------------------


def _with_weight(bias: Bias, weight: float | None) -> dict[str, Any]:
    """The parameters of a bias, with the weight that is used in place of its own."""
    if weight is None:
        return dict(bias.params)
    return {
        name: weight if name in ("alpha", "weight") else value
        for name, value in bias.params.items()
    }


def _first_of_grid(name: MethodName) -> Method:
    grid = find_method(name)[1].grid
    first = grid if isinstance(grid, Mapping) else grid[0]
    return make_method(name, **{param: values[0] for param, values in first.items()})


def _check_names(names: list[str] | None) -> list[MethodName]:
    if unknown := [name for name in names or [] if name not in METHOD_NAMES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(METHOD_NAMES)}", param_hint="--method"
        )
    return names or []


def _name_banks(references: list[str]) -> dict[str, Path]:
    """Names of banks to their files; a name that is given twice is refused."""
    banks: dict[str, Path] = {}
    for name, file in map(_name_and_file, references):
        if name in banks:
            raise typer.BadParameter(
                f"two banks are named {name!r}, {banks[name]} and {file}; give each a name of its "
                "own, as NAME=FILE",
                param_hint="--references",
            )
        banks[name] = file
    return banks


def _name_and_file(text: str) -> tuple[str, Path]:
    """Read NAME=FILE, or FILE alone, whose stem is then the name."""
    name, equals, file = text.partition("=")
    if not equals:
        return Path(text).stem, Path(text)
    if not (name and file):
        raise typer.BadParameter(f"expected NAME=FILE, got {text!r}", param_hint="--references")
    return name, Path(file)
