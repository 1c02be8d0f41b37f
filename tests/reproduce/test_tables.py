import pytest

from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import Experiment, find_tables, load_paper
from nnnorm.reproduce.run import Figure, Outcome
from nnnorm.reproduce.tables import (
    describe,
    list_material,
    tabulate_beside_paper,
    tabulate_overview,
    tabulate_stand_ins,
)
from tests.made import make_paper_folder

PLAIN = Experiment("recall_at_1", "CLIP", "coco")


def beside(*outcomes, name="image-retrieval"):
    (table,) = find_tables([name])
    return tabulate_beside_paper(table, outcomes)


def test_our_figure_stands_beside_the_paper_s_with_its_interval_and_the_difference():
    table = beside(
        Outcome("CLIP", "COCO: original", PLAIN, Figure(30.1, 29.5, 30.7), None, 30.43),
        Outcome("SigLIP", "COCO: original", PLAIN, None, "there are no images in x", 47.15),
    )
    assert table.rows == (("CLIP", "COCO: original", "30.10 [29.50, 30.70]", "", "30.43", "−0.33"),)
    assert "aclanthology.org" in table.notes[0]
    assert "tab:image_retrieval_results" in table.notes[0]
    assert table.notes[-1] == "No figure for 1 of 2 cells: there are no images in x."


@pytest.mark.parametrize(
    ("metric", "figure", "printed", "cells"),
    [
        ("setting", Figure((0.75, 128)), (0.5, 16), ("(0.75, 128)", "(0.5, 16)", "")),
        ("setting", Figure((0.0, 0)), (0.5, 16), ("no correction", "(0.5, 16)", "")),
        ("max", Figure(34), 48.0, ("34", "48", "−14")),
        ("kurtosis", Figure(9.46), 9.5, ("9.5", "9.5", "−0.04")),
        ("bias@6", Figure(-0.2, -0.3, -0.1), 0.348, ("−0.200 [−0.300, −0.100]", "0.348", "−0.548")),
        ("seconds", Figure(0.123), 22.69, ("0.123", "22.690", "−22.567")),
        ("robin_hood", Figure(0.3), None, ("0.300", "", "")),
    ],
)
def test_figures_are_written_as_their_kind_is(metric, figure, printed, cells):
    there = Experiment(metric, "CLIP", "coco", method="nnn", bank="coco")
    _, _, ours, by_rule, *theirs = beside(Outcome("CLIP", "x", there, figure, None, printed)).rows[
        0
    ]
    assert (ours, *theirs) == cells
    assert by_rule == ""


def test_stand_ins_are_columns_and_what_one_lacks_is_a_dash():
    (table,) = find_tables(["gender"])
    there = [
        Experiment("bias@6", name, name, method="nnn", bank="own", params={"alpha": 0.75})
        for name in ("shapes", "flickr8k")
    ]
    made = tabulate_stand_ins(
        table,
        {
            "shapes": [Outcome("bias@6", "NNN", there[0], Figure(0.1, 0.0, 0.2))],
            "flickr8k": [Outcome("bias@6", "NNN", there[1], None, "it has no groups")],
        },
    )
    assert made.columns == ("", "shapes", "flickr8k")
    assert made.rows == (("bias@6, NNN, α = 0.75", "0.100 [0.000, 0.200]", "–"),)
    assert made.notes[0].startswith("Other models and data than the paper's")
    assert "sizes in the place of genders" in made.notes[1]
    assert made.notes[2] == "No figure for 1 of 1 cells: it has no groups."


def test_different_experiments_of_a_stand_in_have_different_words():
    for table in load_paper().tables:
        several = len({cell.experiment.direction for cell in table.cells}) > 1
        words = {}
        for cell in table.cells:
            there = cell.experiment.as_stand_in("shapes")
            label = describe(there) + (there.direction if several else "")
            assert words.setdefault(label, there) == there, (table.name, label)


def test_the_overview_says_what_each_table_needs_and_what_is_there(tmp_path):
    folder = EmbeddingFolder(make_paper_folder(tmp_path))
    rows = {row[0]: row for row in tabulate_overview(folder).rows}
    assert len(rows) == 21
    assert rows["k-sweep-image"][2:] == ("14 models on coco", "1 of 14")
    assert rows["gender"][2:] == ("CLIP on visogender, coco", "2 of 2")
    assert rows["cross-attention"][2:] == ("BLIP ITM's scores on coco", "1 of 1")
    assert {row[-1] for row in tabulate_overview().rows} == {"–"}


def test_a_table_needs_its_foreign_banks_too():
    (table,) = find_tables(["full-flickr30k-image"])
    assert ("SigLIP", "coco") in list_material(table)
