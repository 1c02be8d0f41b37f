"""Documents of tables compile and fit their pages; and the reader that says so can fail."""

import pytest

from nnnorm.report import Table, make_document
from nnnorm.reproduce.paper import load_paper
from nnnorm.reproduce.results import Figure
from nnnorm.reproduce.run import Outcome
from nnnorm.reproduce.tables import lay_out_beside_paper
from tests.latex import assert_compiles, find_faults


def printed_table(table):
    """A table of the paper as it is printed there, as if every figure was measured again."""
    outcomes = [
        Outcome(
            c.row, c.column, c.experiment, Figure(c.printed), None, c.printed, Figure(c.printed)
        )
        for c in table.cells
        if c.printed is not None
    ]
    return lay_out_beside_paper(table, outcomes)


@pytest.fixture(scope="module")
def document():
    tables = [table for table in load_paper().tables if table.cells[0].printed is not None]
    return make_document([printed_table(table) for table in tables])


@pytest.mark.slow
def test_all_tables_of_the_paper_with_all_models_compile_and_fit_a_page(document, tmp_path):
    (tmp_path / "paper.tex").write_text(document, encoding="utf-8")
    assert_compiles(tmp_path / "paper.tex")
    assert document.count(r"\begin{longtable}") == 20
    assert document.count(r"\clearpage") >= 14


def test_a_table_of_long_words_is_broken_into_lines(tmp_path):
    words = " ".join(["suspicious"] * 40)
    rows = tuple((f"item {n}", "9.1", words) for n in range(120))
    table = Table("Long", ("id", "suspicion", "reasons"), rows)
    (tmp_path / "long.tex").write_text(make_document([table]), encoding="utf-8")
    assert_compiles(tmp_path / "long.tex")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (r"\end{longtable}", "", "not closed"),
        (r"\bottomrule", r"\bottomline", "unknown command bottomline"),
        ("65.26", "65.26 & 1", "cells in 9 columns"),
        (r"\multicolumn{4}", r"\multicolumn{5}", "cells in 9 columns"),
        (r"\textbf{65.26", r"\textbf65.26", "not balanced"),
        ("CLIP ft. COCO", "CLIP ✓", "letter"),
        ("CLIP ft. COCO", "CLIP $x", "not balanced"),
        ("58.82", "58.82 ± very" + 120 * "y", "pt wide"),
        (r"{booktabs,longtable}", "{booktabs}", "packages"),
    ],
)
def test_the_reader_can_fail(document, old, new, fault):
    assert old in document
    assert find_faults(document) == []
    assert any(fault in found for found in find_faults(document.replace(old, new, 1)))
