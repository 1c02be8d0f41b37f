"""Tables of measured results in the paper's layout, as LaTeX, and an overview.

A row has up to three lines: measured with the paper's rule, measured with the one-standard-error
rule, and printed in the paper. Recalls and precisions are in %, gains in points. Intervals are 95 %
intervals; they resample the captions of an image together.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from nnnorm.report import Table
from reproduction.material import EmbeddingFolder
from reproduction.paper import Cell, Figure, PaperTable, Value, load_paper
from reproduction.synthetic import NOTES

_DIGITS = {"kurtosis": 1, "mean_absolute_error": 1, "max": 0, "antihub_share": 1, "speedup": 2}
_RULE = "  1-SE rule"
_LINES = ("", _RULE, "  the paper")  # labels of a row's lines; the first line has the row's name
_RULES = (
    "Tuned by the paper's rule, the maximum over its grid; 1-SE rule: by the one-standard-error "
    "rule, which may choose no correction."
)
_Place: TypeAlias = tuple[str, tuple[str, str]]  # row, and group and heading of the column
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
    """Cells in the paper's layout, by row and column."""

    def __init__(self, table: PaperTable, cells: Mapping[_Place, Cell]) -> None:
        self._table, self._cells = table, cells
        self._figures = {
            (place, line): figure
            for place, cell in cells.items()
            for line, figure in zip(_LINES, self._list_figures(cell), strict=True)
            if figure is not None
        }

    def _list_figures(self, cell: Cell) -> tuple[Figure | None, ...]:
        """Return a cell's results, one for each line."""
        value, n_queries = cell.printed, self._table.n_queries
        printed = None if value is None else Figure(value)
        if n_queries is not None and isinstance(value, int | float):  # the ± of the paper
            half = 196 * (value / 100 * (1 - value / 100) / n_queries) ** 0.5
            printed = Figure(value, value - half, value + half)
        return cell.figure, cell.by_rule, printed

    def to_table(self, title: str, notes: Sequence[str]) -> Table:
        """Create the table, without rows that have no measured result."""
        rows: list[tuple[str, ...]] = []
        bold: set[tuple[int, int]] = set()
        columns = list(dict.fromkeys(column for _, column in self._cells))
        for row in dict.fromkeys(row for row, _ in self._cells):
            places = [(row, column) for column in columns]
            if not any((place, "") in self._figures for place in places):
                continue
            for line in _LINES:
                if any((place, line) in self._figures for place in places):
                    best = enumerate((self._is_best(place, line) for place in places), 1)
                    bold |= {(len(rows), number) for number, is_best in best if is_best}
                    rows.append((line or row, *(self._show(place, line) for place in places)))
        groups = tuple(group for group, _ in columns)
        if len(set(groups)) == 1 and len(groups) < len({cell.column for cell in self._table.cells}):
            groups = ()  # other data is only one data set, so it needs no heading
        return Table(
            title,
            ("", *(heading for _, heading in columns)),
            tuple(rows),
            tuple(notes),
            ("", *groups) if any(groups) else (),
            frozenset(bold),
        )

    def _show(self, place: _Place, line: str) -> str:
        figure = self._figures.get((place, line))
        if figure is None:
            return "" if line else "–"
        there, shows = self._cells[place].experiment, self._table.shows
        text = show_value(figure.value, there.metric)
        if isinstance(figure.value, tuple):
            return text
        if there.metric == "gain":
            return _signed(figure.value)
        if there.is_timed:
            return text + (" s" if there.metric == "seconds" else "x")
        if shows == "interval" and figure.low is not None and figure.high is not None:
            return f"{text} ± {(figure.high - figure.low) / 2:.2f}"
        before = self._original(place, line) if shows == "change" else None
        if before is None or there.method == "none":
            return text
        return f"{text} ({_signed(figure.value - before)})"

    def _original(self, place: _Place, line: str) -> float | None:
        """Return the uncorrected result of the same row and group of columns."""
        row, (group, _) = place
        for other, cell in self._cells.items():
            if (other[0], other[1][0], cell.experiment.method) == (row, group, "none"):
                figure = self._figures.get((other, "" if line == _RULE else line))
                if figure is not None and not isinstance(figure.value, tuple):
                    return figure.value
        return None

    def _is_best(self, place: _Place, line: str) -> bool:
        best, ranks = self._table.best, {}
        if best is None or line == _RULE or place not in self._cells:
            return False
        for rival in self._cells:
            if self._competes(rival, place, best) and (rival, line) in self._figures:
                value, metric = self._figures[rival, line].value, self._metric(rival)
                if not isinstance(value, tuple):  # rounded as printed; larger is better
                    ranks[rival] = round(value, _digits(metric)) * (-1 if best == "smaller" else 1)
        return len(ranks) > 1 and ranks.get(place) == max(ranks.values())

    def _competes(self, rival: _Place, place: _Place, best: str) -> bool:
        if best == "smaller":
            return rival[1] == place[1] and self._metric(rival) == self._metric(place)
        part = 0 if best == "group" else 1
        return rival[0] == place[0] and rival[1][part] == place[1][part]

    def _metric(self, place: _Place) -> str:
        return self._cells[place].experiment.metric


def lay_out(table: PaperTable, found: Found, notes: Sequence[str], *, other: bool) -> Table:
    """Create a table in the paper's layout, with the paper's results or the other data's names."""
    in_rows, placed = other and table.has_models_in_rows, {}
    for name, cells in found.items():
        for cell in cells:
            column = cell.fill_headings("Other" if in_rows else None)
            if other and column[0] == column[1]:
                column = ("", column[1])
            placed[name if in_rows else cell.row, column] = cell
    every = [cell for cells in found.values() for cell in cells]
    rules = [_RULES] if any(cell.by_rule is not None for cell in every) else []
    missing = dict.fromkeys(note for cells in found.values() for note in _missing_notes(cells))
    more = [*notes, *_used_notes(table, every), *missing]
    if other:
        first = "From other models and data than the paper's, so the results aren't comparable."
        own = [NOTES[table.name]] if table.name in NOTES else []
        title, listed = f"{table.heading} (here on other data)", [first, *rules, *own, *more]
    else:
        source = f"The paper: {load_paper().citation} ({load_paper().url}), {table.label}."
        title, listed = table.heading, [source, *rules, *table.notes, *more]
    return _Layout(table, placed).to_table(title, listed)


def _used_notes(table: PaperTable, cells: Sequence[Cell]) -> list[str]:
    """Describe the bank and setting, for tables for which the paper doesn't."""
    if table.name != "cross-attention":
        return []
    used = [(cell.experiment.model, cell.figure.used) for cell in cells if cell.figure]
    notes = (
        f"{model}: {about['n_references']:,} references ({100 * about['share']:g} % of train), "
        f"k = {about['reference_k']}, α = {about['alpha']:g}."
        for model, about in used
        if about
    )
    return list(dict.fromkeys(notes))


def _missing_notes(cells: Sequence[Cell]) -> list[str]:
    notes, n_cells = [], len(cells)
    without = [cell for cell in cells if cell.figure is None]
    # A cell that has a result can lack only the one of the one-standard-error rule.
    with_one = [cell for cell in cells if cell.figure is not None]
    for some, rule in ((without, ""), (with_one, " with the one-standard-error rule")):
        if missing := [cell.missing for cell in some if cell.missing is not None]:
            reasons = list(dict.fromkeys(missing))
            more = f" (and {len(reasons) - 1} similar)" if len(reasons) > 1 else ""
            why = f"{reasons[0]}{more}"
            are = "is" if len(missing) == 1 else "are"
            notes.append(f"{len(missing)} of {n_cells} cells {are} empty{rule}: {why}.")
        # Reasons may contain local paths, so only JSON and the terminal have them.
        if failed := [cell for cell in some if cell.failed is not None]:
            first = f"{failed[0].row}, {failed[0].column}"
            notes.append(f"{len(failed)} of {n_cells} cells failed{rule}, such as {first}.")
    return notes


def tabulate_overview(folder: EmbeddingFolder | None = None) -> Table:
    """List the paper's tables: the inputs of each, and how many of them exist."""
    rows = []
    for table in load_paper().tables:
        cells = [cell.experiment for cell in table.cells]
        needed = {(e.model, name): None for e in cells for name in (e.dataset, e.bank) if name}
        models, datasets = (list(dict.fromkeys(names)) for names in zip(*needed, strict=True))
        who = models[0] if len(models) == 1 else f"{len(models)} models"
        if cells[0].kind == "scores":
            who += "'s scores"
        there = "–"
        if folder is not None:
            there = f"{sum(folder.has(*pair) for pair in needed)} of {len(needed)}"
        rows.append((table.name, table.heading, f"{who} on {', '.join(datasets)}", there))
    notes = (
        "Run one with `python -m reproduction --table NAME --embeddings DIR`. A prefix (ablation, "
        "full, k-sweep, methods, settings) selects all tables that start with it, `all` every one.",
        "Without the paper's models, `--data shapes` runs any table on synthetic data.",
    )
    title = f"The paper's {len(rows)} tables and figures"
    return Table(title, ("table", "in the paper", "needs", "available"), tuple(rows), notes)


def show_value(value: Value, metric: str) -> str:
    """Format a result with the decimals of its metric."""
    if isinstance(value, tuple):
        alpha, reference_k = value
        return f"({alpha:g}, {reference_k})" if reference_k else "no correction"
    return f"{value:.{_digits(metric)}f}".replace("-", "−")


def _signed(value: float) -> str:
    """Format a change as in the paper; if it rounds to zero, it has no sign."""
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def _digits(metric: str) -> int:
    if metric.startswith(("bias@", "ks_", "robin", "seconds")):
        return 3
    return _DIGITS.get(metric, 2)


# --- LaTeX ----------------------------------------------------------------------------------------


def make_latex(tables: Sequence[Table]) -> str:
    """Create tabulars with booktabs rules, each with its title as a comment above."""
    return "\n\n".join(f"% {table.title}\n{_make_tabular(table)}" for table in tables) + "\n"


def _make_tabular(table: Table) -> str:
    sides = "l" + "r" * (len(table.columns) - 1)
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule"]
    if table.groups:
        spans = [(group, len(list(some))) for group, some in groupby(table.groups)]
        cells = [rf"\multicolumn{{{n}}}{{c}}{{{name.translate(_LETTERS)}}}" for name, n in spans]
        lines.append(" & ".join(cells) + r" \\")
    lines += [_make_line(table.columns), r"\midrule"]
    for n, row in enumerate(table.rows):
        lines.append(_make_line(row, {column for place, column in table.bold if place == n}))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _make_line(cells: Sequence[str], bold: Collection[int] = ()) -> str:
    texts = [cell.translate(_LETTERS) for cell in cells]
    if texts[0].startswith("  "):  # another line of the row above
        texts[0] = rf"\quad {texts[0].lstrip()}"
    texts = [rf"\textbf{{{text}}}" if n in bold else text for n, text in enumerate(texts)]
    return " & ".join(texts) + r" \\"
