"""The paper's figures in this repository equal those of its LaTeX source, if available."""

import re

import pytest

from nnnorm import NNNormError
from nnnorm.evaluation.results import binomial_half_width
from nnnorm.methods import METHOD_NAMES, make_method
from reproduction.paper import find_tables, load_paper
from tests.conftest import REAL_DATA


@pytest.fixture(scope="module")
def latex():
    for path in REAL_DATA.parent.glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        if "tab:image_retrieval_results" in text:
            return text
    pytest.skip(f"the paper's LaTeX is not here ({REAL_DATA.parent})")


def printed_tables(latex):
    """Label to the tables of that label, each a list of (heading, cells); A12 to A15 share two."""
    found = {}
    for body in re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", latex, flags=re.DOTALL):
        label = re.search(r"\\label\{(.*?)\}", body).group(1)
        inner = body.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
        rows = [[cell.strip() for cell in line.split("&")] for line in inner.split(r"\\")]
        rows = [row for row in rows if len(row) > 1]
        found.setdefault(label, []).append([(row[0], row[1:]) for row in rows])
    return found


def value_of(cell):
    """The number of a cell, or its (α, k)."""
    text = re.sub(r"\\textbf\{|[{}$]", "", cell)
    if pair := re.fullmatch(r"\(([\d.]+), (\d+)\)", text):
        return float(pair.group(1)), int(pair.group(2))
    return float(re.search(r"[-+]?\d+(\.\d+)?", text).group())


def test_every_table_of_the_latex_is_here_and_every_figure_is_the_printed_one(latex):
    printed = printed_tables(latex)
    assert sum(map(len, printed.values())) == 18
    n_checked = 0
    for table in load_paper().tables:
        if not table.label.startswith("tab:"):
            continue
        rows = printed[table.label].pop(0)
        cells = iter(table.cells)
        for heading, values in rows:
            for value in values:
                cell = next(cells)
                assert cell.printed == value_of(value), (table.name, cell.row, cell.column)
                if "model" in heading or "CLIP" in heading:
                    assert heading.startswith(cell.row)
                n_checked += 1
        assert next(cells, None) is None
    assert not any(printed.values()), "a table of the paper is missing here"
    assert n_checked == 1692


def test_the_figures_that_stand_in_the_text_are_the_printed_ones(latex):
    text = re.sub(r"\s+", " ", latex)
    assert "reduces from 0.348 to 0.072 for $n=6$, and from 0.270 to 0.078 for $n=10$" in text
    assert r"from $56.5\%$ to $69.6\%$ (Retrieval@1)" in text
    assert r"from $49.6\%$ to $56.5\%$ (Retrieval@5)" in text
    assert r"Image Recall@1 improves from $66.16\%$ to $66.24\%$" in text
    assert "p-value of 0.846" in text
    gender, cross = find_tables(["gender", "cross-attention"])
    assert [cell.printed for cell in gender.cells] == [
        0.348, 0.072, 0.270, 0.078, 56.5, 69.6, 49.6, 56.5,
    ]  # fmt: skip
    assert [cell.printed for cell in cross.cells] == [66.16, 66.24, 0.846]


def test_the_printed_intervals_are_binomial_as_the_note_says(latex):
    printed = printed_tables(latex)
    for name, n_queries in (("image", 25_000), ("text", 5_000)):
        (table,) = printed[f"tab:coco_{name}_retrieval_results"]
        for _, cells in table:
            for cell in cells:
                share, width = map(float, re.findall(r"\d+\.?\d*", cell))
                expected = 100 * binomial_half_width(share / 100, n_queries)
                assert width == pytest.approx(expected, abs=0.0051)
    assert all("1.96" in table.notes[0] for table in find_tables(["full"]))


def test_every_experiment_is_one_that_can_be_run():
    paper = load_paper()
    for table in paper.tables:
        assert table.cells, table.name
        for cell in table.cells:
            about = cell.experiment
            assert about.method in METHOD_NAMES
            assert about.model in paper.models
            assert about.dataset in ("flickr30k", "coco", "visogender")
            assert about.method == "none" or about.bank is not None
            assert 0 < about.share <= 1
            if about.params and about.method != "none":
                make_method(about.method, **about.params)


def test_the_paper_is_cited_by_its_anthology_number():
    assert load_paper().url == "https://aclanthology.org/2024.emnlp-main.1257/"
    assert len(set(load_paper().models.values())) == 15


def test_a_prefix_selects_all_tables_that_start_with_it():
    assert len(find_tables(["all"])) == 21
    assert [table.number for table in find_tables(["ablation"])] == ["A12", "A13", "A14", "A15"]
    assert [table.name for table in find_tables(["full-coco"])] == [
        "full-coco-image",
        "full-coco-text",
    ]
    with pytest.raises(NNNormError, match="there is no table 'tables'; choose from: image-ret"):
        find_tables(["tables"])
