r"""Tables as LaTeX: plain ``tabular`` with booktabs, in a document that compiles by itself."""

from collections.abc import Sequence
from itertools import groupby

from nnnorm.report import Table

_LETTERS = str.maketrans(
    {character: f"\\{character}" for character in "%&_#${}"}
    | {character: f"${character}$" for character in "<>|"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"`": "'", '"': "''", "·": r"$\cdot$"}
    | {"−": "$-$", "±": r"$\pm$", "₁": "$_1$", "×": r"$\times$", "→": r"$\to$"}
    | {"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "τ": r"$\tau$", "Δ": r"$\Delta$"}
)
_PREAMBLE = r"""\documentclass{article}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}"""


def make_document(tables: Sequence[Table]) -> str:
    """Make a document of tables, each on a page of its own and no wider than it."""
    pages = [_make_page(table) for table in tables]
    return "\n\n".join([_PREAMBLE, *pages, r"\end{document}"]) + "\n"


def make_tabular(table: Table) -> str:
    """Make the tabular of a table, to be copied into a paper."""
    body = []
    for number, row in enumerate(table.rows):
        if (
            number
            and not row[0].startswith("  ")
            and any(r[0].startswith("  ") for r in table.rows)
        ):
            body.append(r"\addlinespace[2pt]")
        body.append(_make_line(row, {c for r, c in table.bold if r == number}))
    sides = "l" + "".join("l" if len(max(c, key=len)) > 30 else "r" for c in _columns(table))
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", *_make_groups(table.groups)]
    lines += [_make_line(table.columns), r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines)


def _columns(table: Table) -> list[tuple[str, ...]]:
    return list(zip(table.columns, *table.rows, strict=True))[1:]


def _make_page(table: Table) -> str:
    caption = " ".join([f"{table.title.rstrip('.')}.", *table.notes]).translate(_LETTERS)
    fitted = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    return "\n".join(
        [
            r"\noindent",
            fitted,
            f"{make_tabular(table)}}}",
            rf"\par\medskip {caption}",
            r"\clearpage",
        ]
    )


def _make_groups(groups: Sequence[str]) -> list[str]:
    """Make the line of the groups above the columns, and the rules below them."""
    if not any(groups):
        return []
    cells, rules, place = [], [], 1
    for group, some in groupby(groups):
        n_columns = len(list(some))
        if group:
            cells.append(rf"\multicolumn{{{n_columns}}}{{c}}{{{group.translate(_LETTERS)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + n_columns - 1}}}")
        else:
            cells += [""] * n_columns
        place += n_columns
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _make_line(cells: Sequence[str], bold: Sequence[int] | set[int] = ()) -> str:
    texts = [cell.translate(_LETTERS) for cell in cells]
    if texts[0].startswith("  "):  # a line that belongs to the row above
        texts[0] = rf"\quad {texts[0].lstrip()}"
    texts = [rf"\textbf{{{text}}}" if n in bold else text for n, text in enumerate(texts)]
    row = " & ".join(texts)
    # After the \\ of the row above, a bracket would be taken for its argument.
    return ("{}" if row.startswith("[") else "") + row + r" \\"
