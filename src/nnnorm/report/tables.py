"""Results as tables: for a terminal, for Markdown, for LaTeX.

Each result becomes one `Table` of plain strings, so that all three forms say the same. Recalls are
shown in per cent, differences in points, with the interval in brackets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnnorm.study import Ablation, Cell, Comparison, Diagnosis, Interval, Result, Tuning

__all__ = [
    "Table",
    "tabulate_ablation",
    "tabulate_comparison",
    "tabulate_diagnosis",
    "tabulate_results",
    "tabulate_tuning",
]

_LEFT = ("setting", "tuned", "chosen by", "in the paper", "needs", "figure")
_COLUMNS = 80  # of the narrowest terminal that tables are made for
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "%&_#${}"}
    | {character: f"${character}$" for character in "<>|"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"`": r"\textasciigrave{}", '"': "''"}
    | {"−": "$-$", "±": r"$\pm$", "₁": "$_1$"}
    | {"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "τ": r"$\tau$"}
)


@dataclass(frozen=True)
class Table:
    """A titled table of strings, with notes below it.

    Attributes
    ----------
    title : str
    columns : tuple of str
        The first is set to the left, the others to the right.
    rows : tuple of tuple of str
    notes : tuple of str
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """Render as a Markdown table with its title and notes.

        Examples
        --------
        >>> print(Table("Gains", ("method", "R@1"), (("nnn", "21.5"),)).to_markdown())
        **Gains**
        <BLANKLINE>
        | method | R@1 |
        |:--|--:|
        | nnn | 21.5 |
        """
        rule = "|".join(":--" if place == 0 else "--:" for place in range(len(self.columns)))
        lines = [f"**{self.title}**", "", f"| {' | '.join(self.columns)} |", f"|{rule}|"]
        lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)

    def to_latex(self) -> str:
        r"""Render as a LaTeX table (booktabs).

        Examples
        --------
        >>> print(Table("Gains", ("method", "R@1, %"), (("nnn", "21.5"),)).to_latex())
        \begin{table}
        \centering
        \begin{tabular}{lr}
        \toprule
        method & R@1, \% \\
        \midrule
        nnn & 21.5 \\
        \bottomrule
        \end{tabular}
        \caption{Gains}
        \end{table}
        """

        def line(cells: Sequence[str]) -> str:
            row = " & ".join(cell.translate(_LATEX) for cell in cells)
            # After the \\ of the row above, a bracket would be taken for its argument.
            return ("{}" if row.startswith("[") else "") + row + r" \\"

        title = f"{self.title}." if self.notes else self.title
        caption = " ".join([title, *self.notes]).translate(_LATEX)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{{''.join(map(self._side, range(len(self.columns))))}}}",
                r"\toprule",
                line(self.columns),
                r"\midrule",
                *(line(row) for row in self.rows),
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{caption}}}",
                r"\end{table}",
            ]
        )

    def print(self) -> None:
        """Print to the terminal."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for place, column in enumerate(self.columns):
            table.add_column(
                column.strip(),
                justify="left" if self._side(place) == "l" else "right",
                overflow="fold",
                no_wrap=column.startswith(("R@", "gain")) or column == "table",
            )
        for row in self.rows:
            table.add_row(*row)
        # A name in square brackets is a name, not a style.
        console = Console(highlight=False, markup=False, emoji=False)
        whole = console.measure(table, options=console.options.update(max_width=10_000)).maximum
        if console.width >= min(whole, _COLUMNS):
            console.print(table)
        else:  # words would be cut into letters
            console.print(f"{self.title}\n{self._one_figure_per_line()}")
        for note in self.notes:
            console.print(note)

    def _side(self, place: int) -> str:
        """Where a column is set: figures to the right, words to the left."""
        return "l" if place == 0 or self.columns[place] in _LEFT else "r"

    def _one_figure_per_line(self) -> str:
        lines = []
        for name, *cells in self.rows:
            figures = zip(self.columns[1:], cells, strict=True)
            lines += [name, *(f"  {column}: {cell}" for column, cell in figures if cell), ""]
        return "\n".join(lines)


def tabulate_results(results: Sequence[Result], title: str, notes: Sequence[str] = ()) -> Table:
    """One row per correction: R@K, the gain with its interval, and hubness.

    Examples
    --------
    >>> tabulate_results([], "Nothing yet").rows
    ()
    """
    columns = ("method", "setting", "R@1", "R@5", "R@10", "gain in R@1", "max N₁")
    return Table(title, columns, tuple(_result_row(result) for result in results), tuple(notes))


def tabulate_comparison(comparison: Comparison) -> Table:
    """Methods side by side.

    Examples
    --------
    >>> tabulate_comparison(Comparison((), "max", 5000, 1000, 30455, 5000)).title
    'Methods on 5,000 test queries, 1,000 items, 30,455 references'
    """
    title = (
        f"Methods on {comparison.n_queries:,} test queries, {comparison.n_gallery:,} items, "
        f"{comparison.n_references:,} references"
    )
    notes = [
        f"Each method tuned on {comparison.n_validation:,} validation queries "
        f"({_select_words(comparison.select)}). R@K in %, gains in points with 95 % paired "
        "intervals, queries of one item drawn together.",
        *_doubt_notes(comparison.results),
    ]
    return tabulate_results(comparison.results, title, notes)


def tabulate_ablation(ablation: Ablation) -> Table:
    """Banks side by side: tuned and automatic NNN at every size.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import make_result
    >>> from nnnorm.study import evaluate
    >>> none = make_result("none", {}, evaluate(np.eye(2), np.eye(2), [0, 1]), None)
    >>> tabulate_ablation(Ablation(none, (), "max", 2, 2, 2)).rows[0][3]
    '100.00'
    """
    columns = ("bank", "refs", "tuned", "R@1", "gain", "gain, automatic")
    rows = [("none", "0", "", _percent(ablation.uncorrected.recall_at_1), "", "")]
    for row in ablation.rows:
        rows.append(
            (
                f"{row.bank} {100 * row.share:.3g} %",
                f"{row.n_references:,}",
                _params(row.tuned.params) or row.tuned.method,
                _percent(row.tuned.recall_at_1),
                _gain(row.tuned.gain),
                _gain(row.automatic.gain),
            )
        )
    title = f"NNN by bank, {ablation.n_queries:,} test queries, {ablation.n_gallery:,} items"
    note = (
        f"Tuned on {ablation.n_validation:,} validation queries "
        f"({_select_words(ablation.select)}); automatic uses no labels. R@1 in %, gains in points "
        "over no correction with 95 % paired intervals."
    )
    return Table(title, columns, tuple(rows), (note,))


def tabulate_tuning(tuning: Tuning, *, most: int = 10) -> Table:
    """The choices, no correction, and the best other cells.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import tune
    >>> tuning = tune(np.eye(4), np.eye(4), np.eye(4), [0, 1, 2, 3])
    >>> tabulate_tuning(tuning).rows[0][0]
    'none'
    """
    marks = [
        (tuning.uncorrected, ""),
        (tuning.best_by_rule, "one standard error"),
        (tuning.best_by_maximum, "maximum"),
    ]
    rows = [_cell_row(cell, mark, tuning.uncorrected) for cell, mark in marks]
    shown = [cell for cell, _ in marks]
    others = sorted(
        (cell for cell in tuning.grid if not any(cell is other for other in shown)),
        key=lambda cell: -cell.recall_at_1,
    )
    rows += [_cell_row(cell, "", tuning.uncorrected) for cell in others[:most]]
    title = (
        f"{len(tuning.grid):,} settings on {tuning.n_queries:,} queries, "
        f"{tuning.n_references:,} references"
    )
    best = f"{tuning.best.method} {_params(tuning.best.params)}".strip()
    notes = [
        f"Chosen by {_select_words(tuning.select)}: {best}, "
        f"gain {_gain(tuning.gain)} points of R@1 on these queries "
        f"(p = {tuning.gain.p_value:.3g})."
    ]
    if tuning.gain.includes_zero:
        notes.append(
            "That interval includes 0: on these queries the gain can't be told from chance."
        )
    columns = ("method", "setting", "R@1", "against none", "R@5", "R@10", "chosen by")
    return Table(title, columns, tuple(rows), tuple(notes))


def tabulate_diagnosis(diagnosis: Diagnosis) -> tuple[Table, Table]:
    """The statistics of N_k, and the hubs by name.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import diagnose
    >>> statistics, hubs = tabulate_diagnosis(diagnose(np.eye(3), np.eye(3)))
    >>> hubs.rows[0][:2]
    ('0', '1')
    """
    words = {
        "mean": "mean",
        "max": "most retrieved item",
        "mean_absolute_error": "mean absolute error",
        "kurtosis": "excess kurtosis",
        "skewness": "skewness",
        "gini": "Gini",
        "robin_hood": "Robin Hood",
        "antihub_share": "share of items that never come",
        "hub_occurrence": "share of hits that go to hubs",
    }
    before = diagnosis.before.to_dict()
    after = diagnosis.after.to_dict() if diagnosis.after else None
    columns = ("", "before") if after is None else ("", "before", "after")
    rows = []
    for name, label in words.items():
        values = [before[name]] if after is None else [before[name], after[name]]
        rows.append((label, *(f"{v:,}" if isinstance(v, int) else f"{v:.3f}" for v in values)))
    notes = []
    if diagnosis.ks_p_value is not None:
        notes.append(
            f"Kolmogorov–Smirnov between before and after: {diagnosis.ks_statistic:.3f} "
            f"(p = {diagnosis.ks_p_value:.2g})."
        )
    if diagnosis.outliers:
        listed = ", ".join(map(str, diagnosis.outliers[:10]))
        more = ", …" if len(diagnosis.outliers) > 10 else ""
        notes.append(
            f"{len(diagnosis.outliers)} items have a bias far from all others (poisoned, "
            f"degenerate, or very strong hubs): {listed}{more}."
        )
    title = (
        f"N_{diagnosis.k}: how often {diagnosis.n_gallery:,} items come back for "
        f"{diagnosis.n_queries:,} queries"
    )
    return Table(title, columns, tuple(rows), tuple(notes)), _hub_table(diagnosis)


def _hub_table(diagnosis: Diagnosis) -> Table:
    columns = ["item", f"N_{diagnosis.k}"]
    with_after = bool(diagnosis.hubs_after)
    with_truth = any(hub.wrong_share is not None for hub in diagnosis.hubs)
    with_bias = any(hub.bias_z is not None for hub in diagnosis.hubs)
    columns += ["after"] * with_after + ["wrong"] * with_truth + ["bias z"] * with_bias
    rows = []
    for place, hub in enumerate(diagnosis.hubs):
        row = [str(hub.item), str(hub.occurrences)]
        if with_after:
            row.append(str(diagnosis.hubs_after[place]))
        if with_truth:
            row.append(f"{100 * (hub.wrong_share or 0):.0f} %")
        if with_bias:
            row.append(f"{hub.bias_z or 0:+.1f}")
        rows.append(tuple(row))
    return Table(f"The {len(rows)} most retrieved items", tuple(columns), tuple(rows))


def _result_row(result: Result) -> tuple[str, ...]:
    return (
        result.method,
        _params(result.params),
        f"{_percent(result.recall_at_1)} ± {100 * result.half_width:.2f}",
        _percent(result.recall_at_5),
        _percent(result.recall_at_10),
        _gain(result.gain),
        str(result.hubness.max),
    )


def _cell_row(cell: Cell, mark: str, uncorrected: Cell) -> tuple[str, ...]:
    difference = cell.recall_at_1 - uncorrected.recall_at_1
    others = ("" if r is None else _percent(r) for r in (cell.recall_at_5, cell.recall_at_10))
    against = "" if cell is uncorrected else _points(difference)
    return (cell.method, _params(cell.params), _percent(cell.recall_at_1), against, *others, mark)


def _doubt_notes(results: Sequence[Result]) -> list[str]:
    doubtful = [r.method for r in results if r.gain is not None and r.gain.includes_zero]
    if not doubtful:
        return []
    return [f"The interval includes 0 for {', '.join(doubtful)}: no gain is shown there."]


def _select_words(select: str) -> str:
    return "the maximum of R@1" if select == "max" else "the one-standard-error rule"


def _params(params: Mapping[str, Any]) -> str:
    short = {"reference_k": "k", "alpha": "α", "weight": "λ", "beta": "β", "tau": "τ"}
    short |= {"beta_query": "βq", "beta_gallery": "βg"}
    return " ".join(
        f"{short[name]}={value if isinstance(value, int) else f'{value:.4g}'}"
        for name, value in params.items()
        if name in short
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _points(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def _gain(gain: Interval | None) -> str:
    if gain is None:
        return ""
    low, high = (_points(end).lstrip("+") for end in (gain.low, gain.high))
    return f"{_points(gain.mean)} [{low}, {high}]"
