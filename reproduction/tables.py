"""Tables of measured figures: in the paper's own shape, an overview, and as LaTeX.

In the paper's shape a row has up to three lines: measured with the paper's rule, measured with the
one-standard-error rule, and printed in the paper. Recalls and precisions are in %, gains in points;
intervals are 95 % intervals, with the captions of an image resampled together.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from nnnorm.report import Table
from reproduction.material import EmbeddingFolder
from reproduction.paper import Cell, Figure, PaperTable, Value, load_paper
from reproduction.synthetic import NOTES

_DIGITS = {"kurtosis": 1, "mean_absolute_error": 1, "max": 0, "antihub_share": 1, "speedup": 2}
_Line = Literal["ours", "by rule", "printed"]
_LINES: dict[_Line, str] = {"ours": "", "by rule": "  1-SE rule", "printed": "  the paper"}
_RULES = (
    "Tuned by the paper's rule, the maximum over its grid; 1-SE rule: by the one-standard-error "
    "rule, which may choose no correction."
)
_Column: TypeAlias = tuple[str, str]  # group and heading
Found: TypeAlias = Mapping[str, Sequence[Cell]]
_LETTERS = str.maketrans(
    {character: f"\\{character}" for character in "%&_#${}"}
    | {character: f"${character}$" for character in "<>|"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"`": "'", '"': "''", "·": r"$\cdot$"}
    | {"−": "$-$", "±": r"$\pm$", "₁": "$_1$", "×": r"$\times$", "→": r"$\to$"}
    | {"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "τ": r"$\tau$", "Δ": r"$\Delta$"}
)


class _Layout:
    """Cells in the paper's shape, by row and column."""

    def __init__(self, table: PaperTable) -> None:
        self._table = table
        self.cells: dict[tuple[str, _Column], Cell] = {}

    def to_table(self, title: str, notes: Sequence[str]) -> Table:
        """Make the table, without the rows of which nothing was measured."""
        rows: list[tuple[str, ...]] = []
        bold: set[tuple[int, int]] = set()
        columns = list(dict.fromkeys(column for _, column in self.cells))
        for row in dict.fromkeys(row for row, _ in self.cells):
            if not any(self._figure(row, "ours", column) for column in columns):
                continue
            for line, words in _LINES.items():
                if any(self._figure(row, line, column) for column in columns):
                    places = enumerate(columns, 1)
                    bold |= {(len(rows), n) for n, c in places if self._is_best(row, line, c)}
                    shown = (self._show(row, line, column) for column in columns)
                    rows.append((words or row, *shown))
        groups = tuple(group for group, _ in columns)
        if len(set(groups)) == 1 and len(groups) < len({cell.column for cell in self._table.cells}):
            groups = ()  # other data have one data set, which needs no heading
        return Table(
            title,
            ("", *(heading for _, heading in columns)),
            tuple(rows),
            tuple(notes),
            ("", *groups) if any(groups) else (),
            frozenset(bold),
        )

    def _figure(self, row: str, line: _Line, column: _Column) -> Figure | None:
        cell = self.cells.get((row, column))
        if cell is None:
            return None
        if line == "ours":
            return cell.figure
        if line == "by rule":
            return cell.by_rule
        value, n_queries = cell.printed, self._table.n_queries
        if n_queries is not None and isinstance(value, int | float):  # the ± of the paper
            half = 196 * (value / 100 * (1 - value / 100) / n_queries) ** 0.5
            return Figure(value, value - half, value + half)
        return None if value is None else Figure(value)

    def _show(self, row: str, line: _Line, column: _Column) -> str:
        figure = self._figure(row, line, column)
        if figure is None:
            return "–" if line == "ours" else ""
        there = self.cells[row, column].experiment
        text = show_value(figure.value, there.metric)
        if isinstance(figure.value, tuple):
            return text
        if there.metric == "gain":
            return _signed(figure.value)
        if there.metric in ("seconds", "speedup"):
            return text + (" s" if there.metric == "seconds" else "x")
        if self._table.shows == "interval" and figure.low is not None and figure.high is not None:
            return f"{text} ± {(figure.high - figure.low) / 2:.2f}"
        if self._table.shows == "change" and there.method != "none":
            before = self._original(row, line, column)
            if before is not None:
                return f"{text} ({_signed(figure.value - before)})"
        return text

    def _original(self, row: str, line: _Line, column: _Column) -> float | None:
        """Return the uncorrected figure of the same row and group of columns."""
        source: _Line = "printed" if line == "printed" else "ours"
        for (other_row, other), cell in self.cells.items():
            if other_row == row and other[0] == column[0] and cell.experiment.method == "none":
                figure = self._figure(row, source, other)
                if figure is not None and not isinstance(figure.value, tuple):
                    return figure.value
        return None

    def _is_best(self, row: str, line: _Line, column: _Column) -> bool:
        best = self._table.best
        if best is None or line == "by rule" or (row, column) not in self.cells:
            return False
        if best == "smaller":
            metric = self.cells[row, column].experiment.metric
            rivals = [
                place
                for place, cell in self.cells.items()
                if place[1] == column and cell.experiment.metric == metric
            ]
        else:
            part = 0 if best == "group" else 1
            rivals = [p for p in self.cells if p[0] == row and p[1][part] == column[part]]
        ranks = {place: self._rank(*place, line) for place in rivals}
        known = [rank for rank in ranks.values() if rank is not None]
        return len(known) > 1 and ranks[row, column] == max(known)

    def _rank(self, row: str, column: _Column, line: _Line) -> float | None:
        """Return the figure as it is printed, larger for better."""
        figure = self._figure(row, line, column)
        if figure is None or isinstance(figure.value, tuple):
            return None
        value = round(figure.value, _digits(self.cells[row, column].experiment.metric))
        return -value if self._table.best == "smaller" else value


def lay_out(table: PaperTable, found: Found, notes: Sequence[str], *, other: bool) -> Table:
    """Lay out figures in the paper's shape, with its own below, or by name of the other data."""
    layout = _Layout(table)
    in_rows = other and table.has_models_in_rows
    for name, cells in found.items():
        for cell in cells:
            column = cell.fill_headings("Other" if in_rows else None)
            if other and column[0] == column[1]:
                column = ("", column[1])
            layout.cells[name if in_rows else cell.row, column] = cell
    return layout.to_table(*_title_and_notes(table, found, notes, other=other))


def _title_and_notes(
    table: PaperTable, found: Found, notes: Sequence[str], *, other: bool
) -> tuple[str, list[str]]:
    every = [cell for cells in found.values() for cell in cells]
    rules = [_RULES] if any(cell.by_rule is not None for cell in every) else []
    missing: list[str] = []
    for cells in found.values():
        missing += [note for note in _missing_notes(cells) if note not in missing]
    more = [*notes, *_used_notes(table, every), *missing]
    if other:
        first = "Other models and data than the paper's, so not comparable with it."
        own = [NOTES[table.name]] if table.name in NOTES else []
        return f"{table.heading}, on other data", [first, *rules, *own, *more]
    paper = load_paper()
    source = f"The paper: {paper.citation} ({paper.url}), {table.label}."
    return table.heading, [source, *rules, *table.notes, *more]


def _used_notes(table: PaperTable, cells: Sequence[Cell]) -> list[str]:
    """Say which bank and setting were used where the paper does not."""
    if table.name != "cross-attention":
        return []
    notes = []
    for cell in cells:
        used = cell.figure and cell.figure.used
        if used:
            notes.append(
                f"{cell.experiment.model}: {used['n_references']:,} references "
                f"({100 * used['share']:g} % of train), k = {used['reference_k']}, "
                f"α = {used['alpha']:g}."
            )
    return list(dict.fromkeys(notes))


def _missing_notes(cells: Sequence[Cell]) -> list[str]:
    notes, n_cells = [], len(cells)
    without = [cell for cell in cells if cell.figure is None]
    # A cell with a figure can lack only that of the second edition.
    with_one = [cell for cell in cells if cell.figure is not None]
    for some, rule in ((without, ""), (with_one, " by the one-standard-error rule")):
        missing = [cell.missing for cell in some if cell.missing is not None]
        if missing:
            reasons = list(dict.fromkeys(missing))
            more = f" (and {len(reasons) - 1} more of the kind)" if len(reasons) > 1 else ""
            why = f"{reasons[0]}{more}"
            notes.append(f"No figure{rule} for {len(missing)} of {n_cells} cells: {why}.")
        # Reasons of failures may name files of this machine; they are in JSON and on the terminal.
        if failed := [cell for cell in some if cell.failed is not None]:
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
        "name stands for all that begin so (ablation, full, k-sweep, methods, settings), and "
        "`all` for everything.",
        "Without the paper's models: `--data shapes` runs any of them on synthetic data that ship.",
    )
    title = f"The paper's {len(rows)} tables and figures"
    return Table(title, ("table", "in the paper", "needs", "there"), tuple(rows), notes)


def show_value(value: Value, metric: str) -> str:
    """Show a figure with the decimals of its metric."""
    if isinstance(value, tuple):
        alpha, reference_k = value
        return f"({alpha:g}, {reference_k})" if reference_k else "no correction"
    return f"{value:.{_digits(metric)}f}".replace("-", "−")


def _signed(value: float) -> str:
    """Return a change as the paper prints it; one that rounds to nothing has no sign."""
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def _digits(metric: str) -> int:
    if metric.startswith(("bias@", "ks_", "robin", "seconds")):
        return 3
    return _DIGITS.get(metric, 2)


# --- LaTeX ----------------------------------------------------------------------------------------


def make_latex(tables: Sequence[Table]) -> str:
    """Make plain tabulars with booktabs' rules, each below its title as a comment."""
    return "\n\n".join(f"% {table.title}\n{_make_tabular(table)}" for table in tables) + "\n"


def _make_tabular(table: Table) -> str:
    sides = "l" + "r" * (len(table.columns) - 1)
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule"]
    if table.groups:
        groups = [
            (group.translate(_LETTERS), len(list(some))) for group, some in groupby(table.groups)
        ]
        cells = [rf"\multicolumn{{{n_columns}}}{{c}}{{{group}}}" for group, n_columns in groups]
        lines.append(" & ".join(cells) + r" \\")
    lines += [_make_line(table.columns), r"\midrule"]
    for n, row in enumerate(table.rows):
        lines.append(_make_line(row, {column for place, column in table.bold if place == n}))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _make_line(cells: Sequence[str], bold: Collection[int] = ()) -> str:
    texts = [cell.translate(_LETTERS) for cell in cells]
    if texts[0].startswith("  "):  # a line that belongs to the row above
        texts[0] = rf"\quad {texts[0].lstrip()}"
    texts = [rf"\textbf{{{text}}}" if n in bold else text for n, text in enumerate(texts)]
    # After the \\ of the row above, a bracket would be taken for its argument.
    return ("{}" if texts[0].startswith("[") else "") + " & ".join(texts) + r" \\"
