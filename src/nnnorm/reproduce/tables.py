"""Tables of measured figures: in the paper's own shape, or one line per cell; and an overview.

In the paper's shape a row has up to three lines: measured with the paper's rule, measured with the
one-standard-error rule, and printed in the paper. Recalls and precisions are in %, gains in points;
intervals are 95 % intervals, with the captions of an image resampled together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nnnorm.evaluation import binomial_half_width
from nnnorm.methods import describe_setting, label_method
from nnnorm.report import Table
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import Experiment, PaperCell, PaperTable, load_paper
from nnnorm.reproduce.results import Figure
from nnnorm.reproduce.run import Outcome
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
# The lines of a row in the paper's shape.
_Line = Literal["ours", "by rule", "printed"]
_LINES: dict[_Line, str] = {"ours": "", "by rule": "  1-SE rule", "printed": "  the paper"}
_BY_RULE = ", 1-SE rule"
_RULES = (
    "Tuned by the paper's rule, the maximum over its grid; 1-SE rule: by the one-standard-error "
    "rule, which may choose no correction."
)


@dataclass
class _Layout:
    """Cells of a table in the paper's shape, by row, line and column."""

    table: PaperTable
    figures: dict[tuple[str, _Line, tuple[str, str]], Figure] = field(default_factory=dict)
    experiments: dict[tuple[str, tuple[str, str]], Experiment] = field(default_factory=dict)
    rows: dict[str, None] = field(default_factory=dict)
    columns: dict[tuple[str, str], None] = field(default_factory=dict)

    def add(self, row: str, column: tuple[str, str], outcome: Outcome) -> None:
        """Put the figures of an outcome into their places."""
        self.rows.setdefault(row)
        self.columns.setdefault(column)
        self.experiments[row, column] = outcome.experiment
        printed = None
        if outcome.printed is not None:
            printed = _with_printed_interval(outcome.printed, self.table)
        both = {"ours": outcome.figure, "by rule": outcome.by_rule, "printed": printed}
        for line in _LINES:
            if (figure := both[line]) is not None:
                self.figures[row, line, column] = figure

    def to_table(self, title: str, notes: Sequence[str]) -> Table:
        """Make the table, without the rows that nothing was measured of."""
        rows: list[tuple[str, ...]] = []
        bold: set[tuple[int, int]] = set()
        for row in self.rows:
            if not any((row, "ours", column) in self.figures for column in self.columns):
                continue
            for line, words in _LINES.items():
                if any((row, line, column) in self.figures for column in self.columns):
                    places = enumerate(self.columns, 1)
                    bold |= {(len(rows), n) for n, c in places if self._is_best(row, line, c)}
                    cells = (self._show(row, line, column) for column in self.columns)
                    rows.append((words or row, *cells))
        groups = tuple(group for group, _ in self.columns)
        if len(set(groups)) == 1 and len(groups) < len({cell.column for cell in self.table.cells}):
            groups = ()  # stand-ins have one data set, which needs no heading
        return Table(
            title,
            ("", *(heading for _, heading in self.columns)),
            tuple(rows),
            tuple(notes),
            ("", *groups) if any(groups) else (),
            frozenset(bold),
        )

    def _show(self, row: str, line: _Line, column: tuple[str, str]) -> str:
        figure = self.figures.get((row, line, column))
        there = self.experiments.get((row, column))
        if figure is None or there is None:
            return "–" if line == "ours" else ""
        text = show_figure(Figure(figure.value), there.metric)
        if there.metric == "gain":
            return _signed(figure.value)
        if there.metric in ("seconds", "speedup"):
            return text + (" s" if there.metric == "seconds" else "x")
        if self.table.shows == "interval" and figure.low is not None and figure.high is not None:
            return f"{text} ± {(figure.high - figure.low) / 2:.2f}"
        if self.table.shows == "change" and there.method != "none":
            before = self._original(row, line, column)
            if before is not None and not isinstance(figure.value, tuple):
                return f"{text} ({_signed(figure.value - before)})"
        return text

    def _original(self, row: str, line: _Line, column: tuple[str, str]) -> float | None:
        """The uncorrected figure of the same row and group of columns."""
        source: _Line = "printed" if line == "printed" else "ours"
        for other in self.columns:
            there = self.experiments.get((row, other))
            if there is not None and other[0] == column[0] and there.method == "none":
                figure = self.figures.get((row, source, other))
                if figure is not None and not isinstance(figure.value, tuple):
                    return figure.value
        return None

    def _is_best(self, row: str, line: _Line, column: tuple[str, str]) -> bool:
        if self.table.best is None or line == "by rule":
            return False
        rivals = [self._rank(*place, line) for place in self._rivals(row, column)]
        ours = self._rank(row, column, line)
        known = [rank for rank in rivals if rank is not None]
        return len(known) > 1 and ours is not None and ours == max(known)

    def _rivals(self, row: str, column: tuple[str, str]) -> list[tuple[str, tuple[str, str]]]:
        """The cells that a cell is compared with, itself among them."""
        if self.table.best == "smaller":
            metric = self.experiments[row, column].metric
            there = self.experiments.items()
            return [p for p, e in there if p[1] == column and e.metric == metric]
        part = 0 if self.table.best == "group" else 1
        return [(row, other) for other in self.columns if other[part] == column[part]]

    def _rank(self, row: str, column: tuple[str, str], line: _Line) -> float | None:
        """The figure as it is printed, larger for better."""
        figure = self.figures.get((row, line, column))
        if figure is None or isinstance(figure.value, tuple):
            return None
        value = round(figure.value, _digits(self.experiments[row, column].metric))
        return -value if self.table.best == "smaller" else value


def lay_out_beside_paper(
    table: PaperTable, outcomes: Sequence[Outcome], notes: Sequence[str] = ()
) -> Table:
    """Lay out measured figures in the paper's shape, with the printed ones in lines below.

    Examples
    --------
    >>> there = Experiment("recall_at_1", "CLIP", "coco")
    >>> outcome = Outcome("CLIP", "COCO: original", there, Figure(30.4), None, 30.43)
    >>> lay_out_beside_paper(load_paper().tables[0], [outcome]).rows
    (('CLIP', '30.40'), ('  the paper', '30.43'))
    """
    layout = _Layout(table)
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    for outcome in outcomes:
        cell = cells[outcome.row, outcome.column]
        layout.add(outcome.row, cell.fill_headings(outcome.experiment), outcome)
    paper = load_paper()
    source = f"The paper: {paper.citation} ({paper.url}), {table.label}."
    return layout.to_table(
        table.heading,
        [source, *_rule_notes(outcomes), *table.notes, *notes, *_missing_notes(outcomes)],
    )


def lay_out_stand_ins(
    table: PaperTable, found: Mapping[str, Sequence[Outcome]], notes: Sequence[str] = ()
) -> Table:
    """Lay out the figures of stand-ins in the paper's shape: each takes the place of a model.

    Examples
    --------
    >>> there = Experiment("recall_at_1", "shapes", "shapes")
    >>> outcome = Outcome("CLIP", "Flickr30k: original", there, Figure(21.36))
    >>> lay_out_stand_ins(load_paper().tables[0], {"shapes": [outcome]}).rows
    (('shapes', '21.36'),)
    """
    layout = _Layout(table)
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    missing: list[str] = []
    for name, outcomes in found.items():
        for outcome in outcomes:
            cell = cells[outcome.row, outcome.column]
            row = name if table.has_models_in_rows else outcome.row
            layout.add(row, _stand_in_headings(table, cell, outcome.experiment), outcome)
        missing += [note for note in _missing_notes(outcomes) if note not in missing]
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    return layout.to_table(
        f"{table.heading}, with stand-ins",
        (
            "Other models and data than the paper's, so not comparable with it.",
            *_rule_notes(every),
            *((NOTES[table.name],) if table.name in NOTES else ()),
            *notes,
            *missing,
        ),
    )


def _stand_in_headings(table: PaperTable, cell: PaperCell, there: Experiment) -> tuple[str, str]:
    """A stand-in names a row; where rows are no models, it names a column."""
    group, heading = cell.fill_headings(there, "Stand-in" if table.has_models_in_rows else None)
    return ("", heading) if group == heading else (group, heading)


def _rule_notes(outcomes: Sequence[Outcome]) -> list[str]:
    return [_RULES] if any(outcome.by_rule is not None for outcome in outcomes) else []


def _with_printed_interval(printed: float | tuple[float, int], table: PaperTable) -> Figure:
    """The printed figure, with the ± that the paper prints where a table has them."""
    if isinstance(printed, tuple) or table.n_queries is None:
        return Figure(printed)
    half = 100 * binomial_half_width(printed / 100, table.n_queries)
    return Figure(printed, printed - half, printed + half)


def _signed(value: float | tuple[float, int]) -> str:
    """A change as the paper prints it; a change that rounds to nothing has no sign."""
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


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


def tabulate_beside_paper(
    table: PaperTable, outcomes: Sequence[Outcome], notes: Sequence[str] = ()
) -> Table:
    """Tabulate measured figures next to the paper's, a row per cell that was measured.

    Examples
    --------
    >>> there = Experiment("recall_at_1", "CLIP", "coco")
    >>> outcome = Outcome("CLIP", "original", there, Figure(30.40, 29.6, 31.2), None, 30.43)
    >>> tabulate_beside_paper(load_paper().tables[0], [outcome]).rows[0]
    ('CLIP', 'original', '30.40 [29.60, 31.20]', '', '30.43', '−0.03')
    """
    rows = []
    for outcome in outcomes:
        if outcome.figure is not None:
            metric, printed = outcome.experiment.metric, outcome.printed
            theirs = "" if printed is None else show_figure(Figure(printed), metric)
            by_rule = "" if outcome.by_rule is None else show_figure(outcome.by_rule, metric)
            ours = show_figure(outcome.figure, metric)
            difference = _difference(outcome.figure, outcome)
            rows.append((outcome.row, outcome.column, ours, by_rule, theirs, difference))
    paper = load_paper()
    source = f"The paper: {paper.citation} ({paper.url}), {table.label}."
    return Table(
        table.heading,
        ("", "figure", "ours", "1-SE rule", "the paper's", "difference"),
        tuple(rows),
        (source, *_rule_notes(outcomes), *table.notes, *notes, *_missing_notes(outcomes)),
    )


def tabulate_stand_ins(
    table: PaperTable, found: Mapping[str, Sequence[Outcome]], notes: Sequence[str] = ()
) -> Table:
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
    missing: list[str] = []
    for name, outcomes in found.items():
        several = len({outcome.experiment.direction for outcome in outcomes}) > 1
        for outcome in outcomes:
            label = describe(outcome.experiment)
            if several:
                label = f"{outcome.experiment.direction} retrieval: {label}"
            for words, figure in ((label, outcome.figure), (f"{label}{_BY_RULE}", outcome.by_rule)):
                if words == label or figure is not None:
                    labels.setdefault(words)
                if figure is not None:
                    cells[words, name] = show_figure(figure, outcome.experiment.metric)
        missing += [note for note in _missing_notes(outcomes) if note not in missing]
    rows = [(label, *(cells.get((label, name), "–") for name in found)) for label in labels]
    return Table(
        f"{table.heading}, with stand-ins",
        ("", *found),
        tuple(rows),
        (
            "Other models and data than the paper's, so not comparable with it.",
            *_rule_notes([outcome for outcomes in found.values() for outcome in outcomes]),
            *((NOTES[table.name],) if table.name in NOTES else ()),
            *notes,
            *missing,
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
        "stands for all that begin so (ablation, full, k-sweep, methods, settings), `trends` for "
        "what the paper says of its settings in words, and `all` for everything.",
        "Without the paper's models: `--stand-in shapes` runs any of them on data that ship.",
    )
    return Table(
        f"The paper's {len(rows)} tables and figures",
        ("table", "in the paper", "needs", "there"),
        tuple(rows),
        notes,
    )


def _missing_notes(outcomes: Sequence[Outcome]) -> list[str]:
    notes, n_cells = [], len(outcomes)
    without = [outcome for outcome in outcomes if outcome.figure is None]
    # What has a figure can lack only that of the second rule.
    with_one = [outcome for outcome in outcomes if outcome.figure is not None]
    for some, rule in ((without, ""), (with_one, " by the one-standard-error rule")):
        missing = [outcome.missing for outcome in some if outcome.missing is not None]
        if missing:
            reasons = list(dict.fromkeys(missing))
            more = f" (and {len(reasons) - 1} more of the kind)" if len(reasons) > 1 else ""
            why = f"{reasons[0]}{more}"
            notes.append(f"No figure{rule} for {len(missing)} of {n_cells} cells: {why}.")
        # Reasons of failures may name files of this machine; they stand in JSON and on the
        # terminal.
        if failed := [outcome for outcome in some if outcome.failed is not None]:
            first = f"{failed[0].row}, {failed[0].column}"
            notes.append(f"{len(failed)} of {n_cells} cells failed{rule}, such as {first}.")
    return notes


def show_figure(figure: Figure, metric: str) -> str:
    """Show a figure with the decimals of its metric, and its interval.

    Examples
    --------
    >>> show_figure(Figure(30.4, 29.5, 31.3), "recall_at_1")
    '30.40 [29.50, 31.30]'
    """
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
