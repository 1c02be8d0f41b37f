"""A document of all tables has balanced LaTeX, and compiles where pdflatex is installed."""

import re
import shutil
import subprocess

import pytest

from nnnorm.report import Table
from reproduction.latex import make_document, make_tabular
from reproduction.paper import load_paper
from reproduction.results import Figure
from reproduction.run import Outcome
from reproduction.tables import lay_out


@pytest.fixture(scope="module")
def tables():
    """The paper's tables as printed there, as if every figure was measured again."""
    made = []
    for table in load_paper().tables:
        outcomes = [
            Outcome(
                c.row, c.column, c.experiment, Figure(c.printed), None, c.printed, Figure(c.printed)
            )
            for c in table.cells
            if c.printed is not None
        ]
        if outcomes:
            made.append(lay_out(table, {"ours": outcomes}, [], stand_ins=False))
    return made


def n_cells(line):
    cells = line.removesuffix(r"\\").split(" & ")
    spans = (re.match(r"\\multicolumn\{(\d+)\}", cell) for cell in cells)
    return sum(int(span.group(1)) if span else 1 for span in spans)


def test_every_line_of_every_table_has_a_cell_per_column(tables):
    for table in tables:
        lines = [line for line in make_tabular(table).splitlines() if line.endswith(r"\\")]
        assert len(lines) == len(table.rows) + 1 + bool(table.groups)
        assert {n_cells(line) for line in lines} == {len(table.columns)}, table.title


def test_the_document_is_balanced_and_has_no_letter_that_latex_lacks(tables):
    document = make_document(tables)
    plain = re.sub(r"\\[%&_#${}]", "", document)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert {c for c in plain if ord(c) > 126} <= set("–…é")
    assert document.count(r"\begin{tabular}") == document.count(r"\end{tabular}") == len(tables)


def test_special_characters_and_bold_cells_are_written_for_latex():
    table = Table("50 %", ("", "a_b"), (("x & y", "−1"),), bold=frozenset({(0, 1)}))
    assert r"x \& y & \textbf{$-$1} \\" in make_tabular(table)
    assert "50 \\%." in make_document([table])


@pytest.mark.slow
def test_the_document_compiles(tables, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    (tmp_path / "all.tex").write_text(make_document(tables), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout.decode("latin-1")[-2000:]
