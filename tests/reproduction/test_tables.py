"""Tables as people read them: in the paper's shape, a line per cell, the overview, and LaTeX."""

import re
from dataclasses import replace

import pytest

from nnnorm.report import Table
from reproduction.paper import Cell, Experiment, Figure, find_tables, load_paper
from reproduction.tables import (
    lay_out,
    make_latex,
    show_value,
)

PLAIN = Experiment("recall_at_1", "CLIP", "coco")


def cell(row="CLIP", column="COCO: original", there=PLAIN, printed=None, **measured):
    return Cell(row, column, there, printed, "", "{model}", **measured)


def laid_out(*cells, name="image-retrieval"):
    (table,) = find_tables([name])
    return lay_out(table, {"ours": cells}, [], other=False)


def test_what_is_missing_or_failed_is_a_note_without_paths_of_this_machine():
    figure = Figure(30.1)
    made = laid_out(
        cell(figure=figure, failed="/home/me/x.npy: out of memory"),
        cell("BLIP", figure=figure, missing="there is no bank"),
        cell("SigLIP", failed="out of memory"),
        cell("BEiT-3", missing="there are no images in x"),
    )
    assert [row[:2] for row in made.rows] == [("CLIP", "30.10"), ("BLIP", "30.10")]
    assert "aclanthology.org" in made.notes[0]
    assert "tab:image_retrieval_results" in made.notes[0]
    rule = "with the one-standard-error rule"
    assert made.notes[-4:] == (
        "1 of 4 cells is empty: there are no images in x.",
        "1 of 4 cells failed, such as SigLIP, COCO: original.",
        f"1 of 4 cells is empty {rule}: there is no bank.",
        f"1 of 4 cells failed {rule}, such as CLIP, COCO: original.",
    )


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("setting", (0.75, 128), "(0.75, 128)"),
        ("setting", (0.0, 0), "no correction"),
        ("max", 34, "34"),
        ("kurtosis", 9.46, "9.5"),
        ("bias@6", -0.2, "−0.200"),
        ("seconds", 0.123, "0.123"),
        ("recall_at_1", 30.1, "30.10"),
    ],
)
def test_figures_are_written_as_their_kind_is(metric, value, text):
    assert show_value(value, metric) == text


def test_figure_a1_names_the_bank_and_settings_that_were_used():
    (table,) = find_tables(["cross-attention"])
    there = table.cells[1].experiment
    used = {"bank": "coco", "share": 0.2, "n_references": 5000, "reference_k": 64, "alpha": 0.75}
    made = laid_out(cell(there=there, figure=Figure(66.0, used=used)), name=table.name)
    assert made.notes[-1] == "BLIP ITM: 5,000 references (20 % of train), k = 64, α = 0.75."


# --- in the paper's shape ------------------------------------------------------------------------


def printed(name):
    """A table as the paper prints it: the printed figures in the place of measured ones."""
    (table,) = find_tables([name])
    return laid_out(*(replace(one, figure=Figure(one.printed)) for one in table.cells), name=name)


def bold_of(table, row):
    return [table.rows[row][column] for place, column in sorted(table.bold) if place == row]


def test_table_1_has_the_columns_changes_and_bold_figures_of_the_paper():
    table = printed("image-retrieval")
    assert table.groups == ("", *["Flickr30k retrieval"] * 4, *["COCO retrieval"] * 4)
    assert table.columns == ("", *("Original", "DBNorm", "NNN Flickr", "NNN COCO") * 2)
    assert table.rows[1] == (
        *("  the paper", "58.82", "65.26 (+6.4)", "64.60 (+5.8)", "63.70 (+4.9)"),
        *("30.43", "37.82 (+7.4)", "33.45 (+3.0)", "37.53 (+7.1)"),
    )
    assert bold_of(table, 1) == ["65.26 (+6.4)", "37.82 (+7.4)"]
    names = [row[0] for row in table.rows]
    large = 1 + names.index("BEiT-3 Large ft. Flickr")
    assert bold_of(table, large) == ["88.04", "58.88 (+2.5)"]  # the original is the best here


def test_table_3_has_the_smaller_of_two_bold_and_the_change_signed():
    table = printed("outliers")
    assert table.groups == ("", "CLIP", "CLIP", "BLIP", "BLIP")
    assert table.columns == ("", "COCO", "Flickr", "COCO", "Flickr")
    rows = {row[0]: row[1:] for row in table.rows[::2]}
    assert rows["Kurtosis (NNN)"] == ("9.5", "1.1", "12.3", "1.9")
    assert rows["Δ accuracy"] == ("+7.4", "+6.5", "+1.8", "+1.2")
    bold_rows = {table.rows[place - place % 2][0] for place, _ in table.bold}
    assert bold_rows == {"Kurtosis (NNN)", "MAE (NNN)", "Max (NNN)"}


def test_full_tables_have_the_printed_intervals_and_the_best_of_each_recall_bold():
    table = printed("full-flickr30k-image")
    assert table.groups[1::3] == ("Flickr", "Flickr, NNN w/ Flickr", "Flickr, NNN w/ COCO")
    assert table.rows[1][1] == "58.82 ± 1.36"
    assert bold_of(table, 1) == ["65.52 ± 1.32", "87.84 ± 0.91", "93.00 ± 0.71"]


def test_other_tables_have_the_words_and_units_of_the_paper():
    assert printed("runtime").rows[1][:4] == ("  the paper", "22.690 s", "0.410 s", "55.26x")
    assert printed("settings-image").rows[0][1:3] == ("(0.75, 128)", "(0.75, 16)")
    assert printed("k-sweep-image").columns[1:4] == ("Original", "k = 1", "4")
    assert printed("ablation-coco-text").columns[2:4] == ("NNN (full)", "NNN (50%)")


def test_both_rules_and_the_paper_are_lines_of_a_model():
    (table,) = find_tables(["image-retrieval"])
    cells = {(one.row, one.column): one for one in table.cells}
    original, nnn = cells["CLIP", "COCO: original"], cells["CLIP", "COCO: NNN, COCO bank"]
    found = [
        replace(original, figure=Figure(30.0)),
        replace(nnn, figure=Figure(29.9), by_rule=Figure(30.0)),
        replace(cells["SigLIP", "COCO: original"], missing="there are no images in x"),
    ]
    made = laid_out(*found)
    assert made.rows == (
        ("CLIP", "30.00", "29.90 (−0.1)"),  # a loss is a loss
        ("  1-SE rule", "", "30.00 (0.0)"),
        ("  the paper", "30.43", "37.53 (+7.1)"),
    )
    assert any("maximum over its grid" in note for note in made.notes)
    assert made.notes[-1].startswith("1 of 3 cells is empty")


def test_other_data_take_the_place_of_models_and_the_bank_is_named():
    (table,) = find_tables(["image-retrieval"])
    found = {}
    for name in ("shapes", "flickr8k"):
        cells = [c for c in table.cells if c.row == "CLIP" and c.experiment.dataset == "coco"]
        found[name] = [
            replace(c, experiment=c.experiment.on_other_data(name), figure=Figure(c.printed))
            for c in cells
        ]
    made = lay_out(table, found, [], other=True)
    assert made.columns == ("", "Original", "DBNorm", "NNN other bank", "NNN own bank")
    assert made.groups == ()
    assert [row[0] for row in made.rows][::2] == ["shapes", "flickr8k"]
    assert made.notes[0].startswith("From other models and data than the paper's")


# --- LaTeX ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    """The paper's tables as printed there, as if every figure was measured again."""
    drawn = ("hubness",)  # plots, of which nothing is printed
    return [printed(table.name) for table in load_paper().tables if table.name not in drawn]


def n_cells(line):
    cells = line.removesuffix(r"\\").split(" & ")
    spans = (re.match(r"\\multicolumn\{(\d+)\}", one) for one in cells)
    return sum(int(span.group(1)) if span else 1 for span in spans)


def test_every_line_of_every_latex_table_has_a_cell_per_column(tables):
    for table in tables:
        lines = [line for line in make_latex([table]).splitlines() if line.endswith(r"\\")]
        assert len(lines) == len(table.rows) + 1 + bool(table.groups)
        assert {n_cells(line) for line in lines} == {len(table.columns)}, table.title


def test_the_tabulars_are_balanced_and_have_no_letter_that_latex_lacks(tables):
    document = re.sub(r"(?m)^% .*$", "", make_latex(tables))  # titles are comments
    plain = re.sub(r"\\[%&_#${}]", "", document)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert {c for c in plain if ord(c) > 126} <= set("–…é")
    assert document.count(r"\begin{tabular}") == document.count(r"\end{tabular}") == len(tables)


def test_special_characters_and_bold_cells_are_written_for_latex():
    table = Table("50 %", ("", "a_b"), (("x & y", "−1"),), bold=frozenset({(0, 1)}))
    assert r"x \& y & \textbf{$-$1} \\" in make_latex([table])
