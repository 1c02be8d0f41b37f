"""`Table`: a titled table of plain strings, for a terminal and Markdown.

A column may belong to a group of columns, and a cell may be the best of its kind, which is bold.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

_LEFT = ("setting", "tuned", "chosen by", "in the paper", "needs", "figure", "verdict", "reasons")
# Columns of settings and intervals, which can't be read in parts.
_WHOLE = ("table", "setting", "tuned", "before", "after", "change")
_NAME = 8  # letters of a name that a column keeps on one line
_COLUMNS = 80  # of the narrowest terminal that tables are made for


@dataclass(frozen=True)
class Table:
    """A titled table of strings, with notes below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bold: frozenset[tuple[int, int]] = frozenset()

    def to_markdown(self) -> str:
        """Render as a Markdown table with its title and notes."""
        rule = "|".join(":--" if place == 0 else "--:" for place in range(len(self.columns)))
        lines = [f"**{self.title}**", "", f"| {' | '.join(self._headings())} |", f"|{rule}|"]
        for number, row in enumerate(self.rows):
            cells = [cell.replace("|", "/") for cell in row]
            cells = [f"**{c}**" if (number, n) in self.bold else c for n, c in enumerate(cells)]
            lines.append(f"| {' | '.join(cells)} |")
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)

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
