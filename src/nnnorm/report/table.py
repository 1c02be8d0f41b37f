"""`Table`: a titled table of plain strings, for a terminal, Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

_LEFT = ("setting", "tuned", "chosen by", "in the paper", "needs", "figure", "verdict", "reasons")
# Columns of settings and intervals, which can't be read in parts.
_WHOLE = ("table", "setting", "tuned", "before", "after", "change")
_NAME = 8  # letters of a name that a column keeps on one line
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
        The first is aligned left, figures are aligned right.
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

        # A name in square brackets is a name, not a style.
        console = Console(highlight=False, markup=False, emoji=False)
        # Space between columns goes before words are cut.
        is_wide = console.width >= self._least_width() + len(self.columns)
        pad = int(is_wide)
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, pad, 0, 0), pad_edge=False)
        for place, column in enumerate(self.columns):
            table.add_column(
                column.strip(),
                justify="left" if self._side(place) == "l" else "right",
                overflow="fold",
                no_wrap=_is_whole(column),
            )
        for row in self.rows:
            table.add_row(*row)
        whole = console.measure(table, options=console.options.update(max_width=10_000)).maximum
        if self.title:  # a title of the table itself would wrap to the width of the table
            console.print(self.title, style="bold")
        if console.width >= max(min(whole, _COLUMNS), self._least_width()):
            console.print(table)
        else:  # words would be cut into letters
            console.print(self._one_figure_per_line())
        for note in self.notes:
            console.print(note)

    def _side(self, place: int) -> str:
        """The alignment of a column: figures to the right, words to the left."""
        return "l" if place == 0 or self.columns[place] in _LEFT else "r"

    def _least_width(self) -> int:
        """The width below which a column that must stay whole would be cut."""
        widths = []
        for column, *cells in zip(self.columns, *self.rows, strict=True):
            texts = [column, *cells]
            words = [word for text in texts for word in text.split()]
            whole = _is_whole(column)
            widths.append(max(map(len, texts if whole else words), default=0))
            if not whole:
                widths[-1] = min(widths[-1], _NAME)
        return sum(widths) + len(widths)

    def _one_figure_per_line(self) -> str:
        lines = []
        for name, *cells in self.rows:
            figures = zip(self.columns[1:], cells, strict=True)
            lines += [name, *(f"  {column}: {cell}" for column, cell in figures if cell), ""]
        return "\n".join(lines)


def _is_whole(column: str) -> bool:
    return column.startswith(("R@", "gain")) or column in _WHOLE
