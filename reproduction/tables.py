"""Tables of measured figures: in the paper's own shape, one line per cell, and an overview.

In the paper's shape a row has up to three lines: measured with the paper's rule, measured with the
one-standard-error rule, and printed in the paper. Recalls and precisions are in %, gains in points;
intervals are 95 % intervals, with the captions of an image resampled together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nnnorm.report import Table
from reproduction.material import EmbeddingFolder
from reproduction.paper import Experiment, PaperTable, load_paper
from reproduction.results import Figure
from reproduction.run import Outcome
from reproduction.standins import NOTES

METHODS = {"none": "no correction", "nnn": "NNN", "dn": "DN", "dualis": "DualIS"}
METHODS["dualdis"] = "DualDIS"
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
_Line = Literal["ours", "by rule", "printed"]
_LINES: dict[_Line, str] = {"ours": "", "by rule": "  1-SE rule", "printed": "  the paper"}
_RULES = (
    "Tuned by the paper's rule, the maximum over its grid; 1-SE rule: by the one-standard-error "
    "rule, which may choose no correction."
)
_Column: TypeAlias = tuple[str, str]  # group and heading
Found: TypeAlias = Mapping[str, Sequence[Outcome]]


@dataclass
class _Layout:
    """Cells of a table in the paper's shape, by row, line and column."""

    table: PaperTable
    figures: dict[tuple[str, _Line, _Column], Figure] = field(default_factory=dict)
    experiments: dict[tuple[str, _Column], Experiment] = field(default_factory=dict)
    rows: dict[str, None] = field(default_factory=dict)
    columns: dict[_Column, None] = field(default_factory=dict)

    def add(self, row: str, column: _Column, outcome: Outcome) -> None:
        self.rows.setdefault(row)
        self.columns.setdefault(column)
        self.experiments[row, column] = outcome.experiment
        printed = None if outcome.printed is None else self._printed(outcome.printed)
        both = {"ours": outcome.figure, "by rule": outcome.by_rule, "printed": printed}
        for line in _LINES:
            if (figure := both[line]) is not None:
                self.figures[row, line, column] = figure

    def _printed(self, value: float | tuple[float, int]) -> Figure:
        """Return the printed figure, with the ± that the paper prints in some tables."""
        if isinstance(value, tuple) or self.table.n_queries is None:
            return Figure(value)
        half = 196 * (value / 100 * (1 - value / 100) / self.table.n_queries) ** 0.5
        return Figure(value, value - half, value + half)

    def to_table(self, title: str, notes: Sequence[str]) -> Table:
        """Make the table, without the rows of which nothing was measured."""
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

    def _show(self, row: str, line: _Line, column: _Column) -> str:
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

    def _original(self, row: str, line: _Line, column: _Column) -> float | None:
        """Return the uncorrected figure of the same row and group of columns."""
        source: _Line = "printed" if line == "printed" else "ours"
        for other in self.columns:
            there = self.experiments.get((row, other))
            if there is not None and other[0] == column[0] and there.method == "none":
                figure = self.figures.get((row, source, other))
                if figure is not None and not isinstance(figure.value, tuple):
                    return figure.value
        return None

    def _is_best(self, row: str, line: _Line, column: _Column) -> bool:
        if self.table.best is None or line == "by rule":
            return False
        if self.table.best == "smaller":
            metric = self.experiments[row, column].metric
            there = self.experiments.items()
            rivals = [p for p, e in there if p[1] == column and e.metric == metric]
        else:
            part = 0 if self.table.best == "group" else 1
            rivals = [(row, other) for other in self.columns if other[part] == column[part]]
        ranks = [self._rank(*place, line) for place in rivals]
        known = [rank for rank in ranks if rank is not None]
        ours = self._rank(row, column, line)
        return len(known) > 1 and ours is not None and ours == max(known)

    def _rank(self, row: str, column: _Column, line: _Line) -> float | None:
        """Return the figure as it is printed, larger for better."""
        figure = self.figures.get((row, line, column))
        if figure is None or isinstance(figure.value, tuple):
            return None
        value = round(figure.value, _digits(self.experiments[row, column].metric))
        return -value if self.table.best == "smaller" else value


def lay_out(table: PaperTable, found: Found, notes: Sequence[str], *, stand_ins: bool) -> Table:
    """Lay out figures in the paper's shape, with its own below, or by name of the stand-ins."""
    layout = _Layout(table)
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    in_rows = table.has_models_in_rows
    for name, outcomes in found.items():
        for outcome in outcomes:
            cell, row = cells[outcome.row, outcome.column], outcome.row
            dataset = "Stand-in" if stand_ins and in_rows else None
            column = cell.fill_headings(outcome.experiment, dataset)
            if stand_ins:
                row = name if in_rows else row
                column = ("", column[1]) if column[0] == column[1] else column
            layout.add(row, column, outcome)
    return layout.to_table(*_title_and_notes(table, found, notes, stand_ins=stand_ins))


def list_cells(table: PaperTable, found: Found, notes: Sequence[str], *, stand_ins: bool) -> Table:
    """List every measured cell with its interval, and the difference from the paper's figure."""
    rows = []
    for name, outcomes in found.items():
        for outcome in outcomes:
            figure, printed, metric = outcome.figure, outcome.printed, outcome.experiment.metric
            if figure is None:
                continue
            difference = ""
            if isinstance(printed, int | float) and isinstance(figure.value, int | float):
                digits = _digits(metric)
                change = f"{figure.value - printed:+.{digits and max(digits, 2)}f}"
                difference = change.replace("-", "−")
            rows.append(
                (
                    f"{name}, {outcome.experiment.direction}" if stand_ins else outcome.row,
                    describe(outcome.experiment) if stand_ins else outcome.column,
                    show_figure(figure, metric),
                    "" if outcome.by_rule is None else show_figure(outcome.by_rule, metric),
                    "" if printed is None else show_figure(Figure(printed), metric),
                    difference,
                )
            )
    columns = ("", "figure", "ours", "1-SE rule", "the paper's", "difference")
    title, every = _title_and_notes(table, found, notes, stand_ins=stand_ins)
    return Table(title, columns, tuple(rows), tuple(every))


def _title_and_notes(
    table: PaperTable, found: Found, notes: Sequence[str], *, stand_ins: bool
) -> tuple[str, list[str]]:
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    rules = [_RULES] if any(outcome.by_rule is not None for outcome in every) else []
    missing: list[str] = []
    for outcomes in found.values():
        missing += [note for note in _missing_notes(outcomes) if note not in missing]
    more = [*notes, *_used_notes(table, every), *missing]
    if stand_ins:
        first = "Other models and data than the paper's, so not comparable with it."
        own = [NOTES[table.name]] if table.name in NOTES else []
        return f"{table.heading}, with stand-ins", [first, *rules, *own, *more]
    paper = load_paper()
    source = f"The paper: {paper.citation} ({paper.url}), {table.label}."
    return table.heading, [source, *rules, *table.notes, *more]


def _used_notes(table: PaperTable, outcomes: Sequence[Outcome]) -> list[str]:
    """Say which bank and setting were used where the paper does not."""
    if table.name != "cross-attention":
        return []
    notes = []
    for outcome in outcomes:
        used = outcome.figure and outcome.figure.used
        if used:
            notes.append(
                f"{outcome.experiment.model}: {used['n_references']:,} references "
                f"({100 * used['share']:g} % of train), k = {used['reference_k']}, "
                f"α = {used['alpha']:g}."
            )
    return list(dict.fromkeys(notes))


def _missing_notes(outcomes: Sequence[Outcome]) -> list[str]:
    notes, n_cells = [], len(outcomes)
    without = [outcome for outcome in outcomes if outcome.figure is None]
    # A cell with a figure can lack only that of the second rule.
    with_one = [outcome for outcome in outcomes if outcome.figure is not None]
    for some, rule in ((without, ""), (with_one, " by the one-standard-error rule")):
        missing = [outcome.missing for outcome in some if outcome.missing is not None]
        if missing:
            reasons = list(dict.fromkeys(missing))
            more = f" (and {len(reasons) - 1} more of the kind)" if len(reasons) > 1 else ""
            why = f"{reasons[0]}{more}"
            notes.append(f"No figure{rule} for {len(missing)} of {n_cells} cells: {why}.")
        # Reasons of failures may name files of this machine; they are in JSON and on the terminal.
        if failed := [outcome for outcome in some if outcome.failed is not None]:
            first = f"{failed[0].row}, {failed[0].column}"
            notes.append(f"{len(failed)} of {n_cells} cells failed{rule}, such as {first}.")
    return notes


def tabulate_overview(folder: EmbeddingFolder | None = None) -> Table:
    """Tabulate the paper's tables: what each needs, and how much of it exists."""
    rows = []
    for table in load_paper().tables:
        needed = table.list_material()
        models = list(dict.fromkeys(model for model, _ in needed))
        datasets = list(dict.fromkeys(dataset for _, dataset in needed))
        who = models[0] if len(models) == 1 else f"{len(models)} models"
        if table.cells[0].experiment.kind == "scores":
            who += "'s scores"
        there = "–"
        if folder is not None:
            there = f"{sum(folder.has(*pair) for pair in needed)} of {len(needed)}"
        rows.append((table.name, table.heading, f"{who} on {', '.join(datasets)}", there))
    notes = (
        "Run one with `python -m reproduction --table NAME --embeddings DIR`; the beginning of a "
        "name stands for all that begin so (ablation, full, k-sweep, methods, settings), `trends` "
        "for what the paper says of its settings in words, and `all` for everything.",
        "Without the paper's models: `--stand-in shapes` runs any of them on data that ship.",
    )
    title = f"The paper's {len(rows)} tables and figures"
    return Table(title, ("table", "in the paper", "needs", "there"), tuple(rows), notes)


def describe(experiment: Experiment) -> str:
    """Describe an experiment in a few words, without its model and data set."""
    metric, params = experiment.metric, experiment.params
    if metric.startswith("recall_at_"):
        words = [f"R@{metric.removeprefix('recall_at_')}"]
    else:
        words = [_METRICS.get(metric, metric)]
    if metric not in ("setting", "speedup"):
        words.append(METHODS[experiment.method])
    if experiment.bank == "other":
        words.append("other bank")
    elif metric == "setting":
        words.append("own bank")
    if params and experiment.method == "nnn":
        words.append(f"k = {params['reference_k']}, α = {params['alpha']:g}")
    elif experiment.share < 1 and experiment.method != "none":
        words.append(f"{100 * experiment.share:.3g} % of the bank")
    if experiment.search == "index":
        words.append("by index")
    return ", ".join(words)


def show_figure(figure: Figure, metric: str) -> str:
    """Show a figure with the decimals of its metric, and its interval."""
    if isinstance(figure.value, tuple):
        alpha, reference_k = figure.value
        return f"({alpha:g}, {reference_k})" if reference_k else "no correction"
    digits = _digits(metric)
    text = f"{figure.value:.{digits}f}"
    if figure.low is not None and figure.high is not None:
        text += f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
    return text.replace("-", "−")


def _signed(value: float | tuple[float, int]) -> str:
    """Return a change as the paper prints it; one that rounds to nothing has no sign."""
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def _digits(metric: str) -> int:
    if metric.startswith(("bias@", "ks_", "robin", "seconds")):
        return 3
    return _DIGITS.get(metric, 2)
