"""`Table`: a titled table of plain strings, for a terminal, Markdown and LaTeX.

A column may belong to a group of columns, and a cell may be the best of its kind, which is bold.
`make_document` puts tables into a LaTeX document that compiles by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_LEFT = ("setting", "tuned", "chosen by", "in the paper", "needs", "figure", "verdict", "reasons")
# Columns of settings and intervals, which can't be read in parts.
_WHOLE = ("table", "setting", "tuned", "before", "after", "change")
_NAME = 8  # letters of a name that a column keeps on one line
_COLUMNS = 80  # of the narrowest terminal that tables are made for
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "%&_#${}"}
    | {character: f"${character}$" for character in "<>|"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"`": "'", '"': "''", "·": r"$\cdot$"}
    | {"−": "$-$", "±": r"$\pm$", "₁": "$_1$", "×": r"$\times$", "→": r"$\to$"}
    | {"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "τ": r"$\tau$", "Δ": r"$\Delta$"}
)
# A4 across with margins of 15 mm, in points, and what a letter takes at each size, with room to
# spare for capitals and bold.
_PAGE = 756.0
_LETTERS = {"footnotesize": 5.0, "scriptsize": 4.6, "tiny": 4.0}
_LINES = {"footnotesize": 9.5, "scriptsize": 8.0, "tiny": 6.0}  # points from line to line
_PAGE_HEIGHT = 500.0
_BETWEEN = 6.0  # points between two columns
_PROSE = 30  # letters beyond which a column is words that may be broken into lines
_PREAMBLE = r"""\documentclass{article}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs,longtable}
\setlength{\LTcapwidth}{\textwidth}
\begin{document}"""


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
    groups : tuple of str
        The heading above each column, empty for none; neighbours that share one stand together.
    bold : frozenset of (row, column)
        The cells that are the best of their kind.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bold: frozenset[tuple[int, int]] = frozenset()

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
        lines = [f"**{self.title}**", "", f"| {' | '.join(self._headings())} |", f"|{rule}|"]
        for number, row in enumerate(self.rows):
            cells = [cell.replace("|", "/") for cell in row]
            cells = [f"**{c}**" if (number, n) in self.bold else c for n, c in enumerate(cells)]
            lines.append(f"| {' | '.join(cells)} |")
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)

    def to_latex(self) -> str:
        r"""Render as a LaTeX table (booktabs, longtable), in letters small enough for a page.

        Examples
        --------
        >>> print(Table("Gains", ("method", "R@1, %"), (("nnn", "21.5"),)).to_latex())
        {\footnotesize\setlength{\tabcolsep}{3pt}
        \begin{longtable}{lr}
        \caption*{Gains}\\
        \toprule
        method & R@1, \% \\
        \midrule
        \endfirsthead
        \toprule
        method & R@1, \% \\
        \midrule
        \endhead
        \bottomrule
        \endfoot
        nnn & 21.5 \\
        \end{longtable}}
        """
        title = f"{self.title}." if self.notes and not self.title.endswith(".") else self.title
        caption = " ".join([title, *self.notes]).translate(_LATEX)
        size, kinds = self._fit_page()
        head = [r"\toprule", *self._latex_groups(), _latex_line(self.columns), r"\midrule"]
        body = []
        has_lines_below = any(row[0].startswith("  ") for row in self.rows)
        for number, row in enumerate(self.rows):
            if has_lines_below and number and not row[0].startswith("  "):
                body.append(r"\addlinespace[2pt]")
            bold = {column for place, column in self.bold if place == number}
            body.append(_latex_line(row, bold))
        return "\n".join(
            [
                rf"{{\{size}\setlength{{\tabcolsep}}{{{_BETWEEN / 2:g}pt}}",
                rf"\begin{{longtable}}{{{kinds}}}",
                rf"\caption*{{{caption}}}\\",
                *(*head, r"\endfirsthead", *head, r"\endhead", r"\bottomrule", r"\endfoot"),
                *body,
                r"\end{longtable}}",
            ]
        )

    def _latex_groups(self) -> list[str]:
        """The line of the groups above the columns, and the rules below them."""
        if not any(self.groups):
            return []
        cells, rules, place = [], [], 1
        for group, some in groupby(self.groups):
            last = place + len(list(some)) - 1
            words = group.translate(_LATEX)
            cells.append(rf"\multicolumn{{{last - place + 1}}}{{c}}{{{words}}}" if group else "")
            cells += [""] * (0 if group else last - place)
            if group:
                rules.append(rf"\cmidrule(lr){{{place}-{last}}}")
            place = last + 1
        return [" & ".join(cells) + r" \\", " ".join(rules)]

    def _fit_page(self) -> tuple[str, str]:
        """The largest letters with which the table fits a page, and the kinds of its columns."""
        widths = [max(map(len, texts)) for texts in zip(self.columns, *self.rows, strict=True)]
        room = _PAGE - _BETWEEN * len(widths)
        sides = [self._side(place) for place in range(len(widths))]
        for size, letter in _LETTERS.items():
            if letter * sum(widths) <= room:
                return size, "".join(sides)
        prose = [place for place, width in enumerate(widths) if width > _PROSE]
        size, letter = "scriptsize", _LETTERS["scriptsize"]
        left = room - letter * sum(width for n, width in enumerate(widths) if n not in prose)
        total = sum(widths[place] for place in prose)
        for place in prose:
            share = max(left, 0.2 * room) * widths[place] / total
            sides[place] = rf"p{{{share:.0f}pt}}"
        return size, "".join(sides)

    def _guess_height(self) -> float:
        """The height of the table in LaTeX, in points, about."""
        size, _ = self._fit_page()
        line, letter = _LINES[size], _LETTERS[size]
        n_captions = 1 + letter * sum(map(len, (self.title, *self.notes))) // _PAGE
        n_lines = n_captions + len(self.rows) + (5 if self.groups else 4)
        return line * n_lines + 2 * len(self.rows) + 24

    def _headings(self) -> list[str]:
        """The headings of the columns, with that of their group."""
        groups = self.groups or ("",) * len(self.columns)
        both = zip(groups, self.columns, strict=True)
        return [f"{group}: {column}" if group else column for group, column in both]

    def print(self) -> None:
        """Print to the terminal."""
        from rich.console import Console

        # A name in square brackets is a name, not a style.
        console = Console(highlight=False, markup=False, emoji=False)
        if self.title:  # a title of the table itself would wrap to the width of the table
            console.print(self.title, style="bold")
        parts = [self] if self._fits(console) else self._split_groups()
        if all(part._fits(console) for part in parts):
            for part in parts:
                if part is not self:
                    console.print(part.title)
                console.print(part._make_rich(console.width))
        else:  # words would be cut into letters
            console.print(self._one_figure_per_line())
        for note in self.notes:
            console.print(note)

    def _make_rich(self, width: int) -> "RichTable":
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        least = self._least_widths()
        # Space between columns goes before words are cut.
        is_wide = bool(self.groups) or width >= sum(least) + 2 * len(least) + 1
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, int(is_wide), 0, 0), pad_edge=False)
        for place, heading in enumerate(self._headings()):
            table.add_column(
                heading.strip(),
                justify="left" if self._side(place) == "l" else "right",
                overflow="fold",
                no_wrap=_is_whole(heading),
                width=least[place] if self.groups else None,
            )
        for number, row in enumerate(self.rows):
            styles = ("bold" if (number, place) in self.bold else "" for place in range(len(row)))
            table.add_row(*(Text(*both) for both in zip(row, styles, strict=True)))
        return table

    def _fits(self, console: "Console") -> bool:
        wide = console.options.update(max_width=10_000)
        whole = console.measure(self._make_rich(console.width), options=wide).maximum
        between = 2 if self.groups else 1  # a table in groups is never squeezed
        least = sum(self._least_widths()) + between * (len(self.columns) + 1)
        return console.width >= max(min(whole, _COLUMNS), least)

    def _split_groups(self) -> "list[Table]":
        """One table per group of columns, without the rows that say nothing there."""
        parts = []
        for group in dict.fromkeys(self.groups[1:]):
            places = [0, *(n for n, name in enumerate(self.groups) if n and name == group)]
            kept = [n for n, row in enumerate(self.rows) if any(row[place] for place in places[1:])]
            bold = {
                (kept.index(row), places.index(column))
                for row, column in self.bold
                if row in kept and column in places
            }
            parts.append(
                Table(
                    group,
                    tuple(self.columns[place] for place in places),
                    tuple(tuple(self.rows[n][place] for place in places) for n in kept),
                    bold=frozenset(bold),
                )
            )
        return parts or [self]

    def _side(self, place: int) -> str:
        """The alignment of a column: figures to the right, words to the left."""
        return "l" if place == 0 or self.columns[place] in _LEFT else "r"

    def _least_widths(self) -> list[int]:
        """The widths below which columns that must stay whole would be cut."""
        widths = []
        for heading, *cells in zip(self._headings(), *self.rows, strict=True):
            words = heading.split()
            if _is_whole(heading):
                texts, most = [heading, *cells], None
            elif self.groups:  # many figures side by side are read by their columns
                texts, most = [*words, *cells], None
            else:
                texts, most = [*words, *(word for cell in cells for word in cell.split())], _NAME
            width = max(map(len, texts), default=0)
            widths.append(width if most is None else min(width, most))
        return widths

    def _one_figure_per_line(self) -> str:
        lines = []
        for name, *cells in self.rows:
            figures = zip(self._headings()[1:], cells, strict=True)
            lines += [name, *(f"  {column}: {cell}" for column, cell in figures if cell), ""]
        return "\n".join(lines)


def _is_whole(column: str) -> bool:
    return column.startswith(("R@", "gain")) or column in _WHOLE


def make_document(tables: Sequence[Table]) -> str:
    r"""Make a LaTeX document of tables, which compiles by itself and fits its pages.

    Examples
    --------
    >>> text = make_document([Table("Gains", ("method", "R@1"), (("nnn", "21.5"),))])
    >>> text.splitlines()[0], text.splitlines()[-1]
    ('\\documentclass{article}', '\\end{document}')
    """
    parts, used = [_PREAMBLE], 0.0
    for table in tables:
        height = table._guess_height()
        # A table that fits a page of its own is not begun at the foot of another one.
        if used and used + height > _PAGE_HEIGHT:
            parts.append(r"\clearpage")
            used = 0.0
        parts.append(table.to_latex())
        used = (used + height) % _PAGE_HEIGHT
    return "\n\n".join([*parts, r"\end{document}"]) + "\n"


def _latex_line(cells: Sequence[str], bold: Sequence[int] | set[int] = ()) -> str:
    texts = [cell.translate(_LATEX) for cell in cells]
    if texts[0].startswith("  "):  # a line that belongs to the row above
        texts[0] = rf"\quad {texts[0].lstrip()}"
    texts = [rf"\textbf{{{text}}}" if n in bold else text for n, text in enumerate(texts)]
    row = " & ".join(texts)
    # After the \\ of the row above, a bracket would be taken for its argument.
    return ("{}" if row.startswith("[") else "") + row + r" \\"
