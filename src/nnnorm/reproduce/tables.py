"""Tables of measured figures, next to the paper's or of stand-ins, and an overview of all tables.

A difference is the measured figure minus the paper's. Recalls and precisions are in %, gains in
points; intervals are 95 % intervals, with the captions of an image resampled together.
"""

from collections.abc import Mapping, Sequence

from nnnorm.methods import describe_setting, label_method
from nnnorm.report import Table
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import Experiment, PaperTable, load_paper
from nnnorm.reproduce.run import Figure, Outcome
from nnnorm.reproduce.standins import NOTES

_METRICS = {
    "gain": "gain in R@1",
    "setting": "best (α, k)",
    "mean_absolute_error": "MAE",
    "antihub_share": "never first, %",
    "robin_hood": "Robin Hood index",
    "speedup": "speed-up by the index",
    "ks_p_value": "p of Kolmogorov–Smirnov",
}
_DIGITS = {"kurtosis": 1, "mean_absolute_error": 1, "max": 0, "antihub_share": 1, "speedup": 2}


def describe(experiment: Experiment) -> str:
    """Describe an experiment in a few words, without its model and data set.

    Examples
    --------
    >>> params = {"reference_k": 4, "alpha": 0.75}
    >>> describe(Experiment("recall_at_1", "CLIP", "coco", "image", "nnn", "own", params=params))
    'R@1, NNN, k = 4, α = 0.75'
    """
    metric = experiment.metric
    if metric.startswith("recall_at_"):
        words = [f"R@{metric.removeprefix('recall_at_')}"]
    else:
        words = [_METRICS.get(metric, metric)]
    if metric not in ("setting", "speedup"):
        words.append(label_method(experiment.method))
    if experiment.bank == "other":
        words.append("other bank")
    elif metric == "setting":
        words.append("own bank")
    if experiment.params and experiment.method != "none":
        words.append(describe_setting(experiment.method, experiment.params, ", ", " = "))
    elif experiment.share < 1 and experiment.method != "none":
        words.append(f"{100 * experiment.share:.3g} % of the bank")
    if experiment.search == "index":
        words.append("by index")
    return ", ".join(words)


def tabulate_beside_paper(table: PaperTable, outcomes: Sequence[Outcome]) -> Table:
    """Tabulate measured figures next to the paper's, a row per cell that was measured.

    Examples
    --------
    >>> there = Experiment("recall_at_1", "CLIP", "coco")
    >>> outcome = Outcome("CLIP", "original", there, Figure(30.40, 29.6, 31.2), None, 30.43)
    >>> tabulate_beside_paper(load_paper().tables[0], [outcome]).rows[0]
    ('CLIP', 'original', '30.40 [29.60, 31.20]', '30.43', '−0.03')
    """
    rows = []
    for outcome in outcomes:
        if outcome.figure is not None:
            metric, printed = outcome.experiment.metric, outcome.printed
            theirs = "" if printed is None else _number(Figure(printed), metric)
            ours = _number(outcome.figure, metric)
            rows.append(
                (outcome.row, outcome.column, ours, theirs, _difference(outcome.figure, outcome))
            )
    paper = load_paper()
    notes = [f"The paper: {paper.citation} ({paper.url}), {table.label}.", *table.notes]
    return Table(
        table.heading,
        ("", "figure", "ours", "the paper's", "difference"),
        tuple(rows),
        (*notes, *_missing_notes(outcomes)),
    )


def tabulate_stand_ins(table: PaperTable, found: Mapping[str, Sequence[Outcome]]) -> Table:
    """Tabulate the figures of stand-ins, a column for each.

    Examples
    --------
    >>> there = Experiment("recall_at_1", "shapes", "shapes")
    >>> outcome = Outcome("CLIP", "original", there, Figure(21.36, 20.2, 22.5))
    >>> tabulate_stand_ins(load_paper().tables[0], {"shapes": [outcome]}).rows
    (('R@1, no correction', '21.36 [20.20, 22.50]'),)
    """
    labels: dict[str, None] = {}
    cells: dict[tuple[str, str], str] = {}
    notes: list[str] = []
    for name, outcomes in found.items():
        several = len({outcome.experiment.direction for outcome in outcomes}) > 1
        for outcome in outcomes:
            label = describe(outcome.experiment)
            if several:
                label = f"{outcome.experiment.direction} retrieval: {label}"
            labels.setdefault(label)
            if outcome.figure is not None:
                cells[label, name] = _number(outcome.figure, outcome.experiment.metric)
        notes += [note for note in _missing_notes(outcomes) if note not in notes]
    rows = [(label, *(cells.get((label, name), "–") for name in found)) for label in labels]
    return Table(
        f"{table.heading}, with stand-ins",
        ("", *found),
        tuple(rows),
        (
            "Other models and data than the paper's, so not comparable with it.",
            *((NOTES[table.name],) if table.name in NOTES else ()),
            *notes,
        ),
    )


def list_material(table: PaperTable) -> list[tuple[str, str]]:
    """List the models and data sets of which a table needs embeddings.

    Examples
    --------
    >>> from nnnorm.reproduce.paper import find_tables
    >>> list_material(find_tables(["gender"])[0])
    [('CLIP', 'visogender'), ('CLIP', 'coco')]
    """
    needed: dict[tuple[str, str], None] = {}
    for cell in table.cells:
        about = cell.experiment
        needed.setdefault((about.model, about.dataset))
        if about.bank is not None:
            needed.setdefault((about.model, about.bank))
    return list(needed)


def tabulate_overview(folder: EmbeddingFolder | None = None) -> Table:
    """Tabulate the paper's tables: what each needs, and how much of it exists.

    Examples
    --------
    >>> overview = tabulate_overview()
    >>> overview.rows[0][1:3]
    ('Table 1: Image R@1, Flickr30k and COCO', '14 models on flickr30k, coco')
    """
    rows = []
    for table in load_paper().tables:
        needed = list_material(table)
        models = list(dict.fromkeys(model for model, _ in needed))
        datasets = list(dict.fromkeys(dataset for _, dataset in needed))
        who = models[0] if len(models) == 1 else f"{len(models)} models"
        if table.cells[0].experiment.kind == "scores":
            who += "'s scores"
        there = "–"
        if folder is not None:
            present = [pair for pair in needed if folder.has(*pair)]
            there = f"{len(present)} of {len(needed)}"
        needs = f"{who} on {', '.join(datasets)}"
        rows.append((table.name, table.heading, needs, there))
    notes = (
        "Run one with `nnnorm reproduce --table NAME --embeddings DIR`; the beginning of a name "
        "stands for all that begin so (ablation, full, k-sweep, methods, settings), and `all` for "
        "all.",
        "Without the paper's models: `--stand-in shapes` runs any of them on data that ship.",
    )
    return Table(
        f"The paper's {len(rows)} tables and figures",
        ("table", "in the paper", "needs", "there"),
        tuple(rows),
        notes,
    )


def _missing_notes(outcomes: Sequence[Outcome]) -> list[str]:
    missing = [outcome for outcome in outcomes if outcome.figure is None]
    if not missing:
        return []
    reasons = list(dict.fromkeys(outcome.missing or "" for outcome in missing))
    more = f" (and {len(reasons) - 1} more of the kind)" if len(reasons) > 1 else ""
    return [f"No figure for {len(missing)} of {len(outcomes)} cells: {reasons[0]}{more}."]


def _number(figure: Figure, metric: str) -> str:
    if isinstance(figure.value, tuple):
        alpha, reference_k = figure.value
        return f"({alpha:g}, {reference_k})" if reference_k else "no correction"
    digits = _digits(metric)
    text = f"{figure.value:.{digits}f}"
    if figure.low is not None and figure.high is not None:
        text += f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
    return text.replace("-", "−")


def _difference(figure: Figure, outcome: Outcome) -> str:
    printed = outcome.printed
    if printed is None or isinstance(printed, tuple) or isinstance(figure.value, tuple):
        return ""
    digits = _digits(outcome.experiment.metric)
    return f"{figure.value - printed:+.{digits and max(digits, 2)}f}".replace("-", "−")


def _digits(metric: str) -> int:
    """Return the number of decimals that the paper prints."""
    if metric.startswith(("bias@", "ks_", "robin", "seconds")):
        return 3
    return _DIGITS.get(metric, 2)
