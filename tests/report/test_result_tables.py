import dataclasses
import re

import numpy as np
import pytest

from nnnorm import Bias
from nnnorm.evaluation.comparison import Comparison, Result
from nnnorm.evaluation.hubness import diagnose, measure_hubness
from nnnorm.evaluation.results import Interval
from nnnorm.evaluation.tuning import Cell, Tuning, tune
from nnnorm.report.tables import (
    Table,
    tabulate_comparison,
    tabulate_diagnosis,
    tabulate_results,
    tabulate_tuning,
)
from tests import made

GAIN = Interval(0.0105, 0.0021, 0.0189, 0.012)
LOSS = Interval(-0.02, -0.0334, -0.0061, 0.004)
DOUBT = Interval(0.001, -0.004, 0.0061, 0.61)


def result(method, params, gain, recall=0.20547):
    hubness = measure_hubness([41, 3, 0, 0, 1])
    return Result(method, params, recall, 0.45, 1.0, 0.0112, gain, hubness)


def row_of(table, first):
    """A row by its first cell, as a dict of its columns."""
    (row,) = [row for row in table.rows if row[0] == first]
    return dict(zip(table.columns, row, strict=True))


@pytest.fixture
def comparison():
    results = (
        result("none", {}, None),
        result("nnn", {"reference_k": 128, "alpha": 0.75}, GAIN, 0.21597),
        result("dn", {"weight": 0.5}, LOSS, 0.18547),
        result("dualis", {"beta_query": 25.0, "beta_gallery": 0.00388}, DOUBT),
        result("sinkhorn", {"tau": 0.01, "iterations": 10}, DOUBT),
    )
    return Comparison(results, "one-standard-error", 5000, 1000, 30455, 4000)


@pytest.fixture(scope="module")
def tuning():
    gallery, queries, references = made.make_embeddings(n_items=40, n_past=30, dim=16)
    return tune(
        gallery, references, queries=queries, truth=np.arange(200) // 5, methods=["nnn", "csls"]
    )


@pytest.fixture(scope="module")
def diagnosis():
    gallery, queries, references = made.make_embeddings(n_items=40, n_past=30, dim=16)
    values = (gallery @ references.T).mean(axis=1)
    values[[3, 8]] = [9.0, -7.0]
    truth = np.arange(200) // 5
    return diagnose(queries, gallery, bias=Bias(values, 0.5, "nnn"), truth=truth, k=2)


@pytest.fixture
def tables(comparison, tuning, diagnosis):
    """One of each kind, and the two of a diagnosis without bias and truth."""
    alone = tabulate_diagnosis(diagnose(np.eye(3), np.eye(3)))
    return [
        tabulate_comparison(comparison),
        tabulate_tuning(tuning),
        *tabulate_diagnosis(diagnosis),
        *alone,
        tabulate_results([], "Nothing yet"),
    ]


# --- methods side by side ------------------------------------------------------------------------


def test_gains_have_a_sign_and_an_interval_in_points(comparison):
    table = tabulate_comparison(comparison)
    assert row_of(table, "nnn")["gain in R@1"] == "+1.05 [0.21, 1.89]"
    assert row_of(table, "dn")["gain in R@1"] == "−2.00 [−3.34, −0.61]"
    assert row_of(table, "dualis")["gain in R@1"] == "+0.10 [−0.40, 0.61]"
    assert row_of(table, "none")["gain in R@1"] == ""


def test_a_comparison_says_its_sizes_and_how_it_was_tuned(comparison):
    table = tabulate_comparison(comparison)
    assert table.title == "Methods on 5,000 test queries, 1,000 items, 30,455 past queries"
    assert "tuned on 4,000 validation queries (the one-standard-error rule)" in table.notes[0]
    by_maximum = tabulate_comparison(dataclasses.replace(comparison, select="max"))
    assert "(the maximum of R@1)" in by_maximum.notes[0]


def test_a_method_that_is_no_better_than_no_correction_is_called_not_chosen(comparison):
    none = dataclasses.replace(comparison.results[1], params={})
    table = tabulate_comparison(dataclasses.replace(comparison, results=(none,), n_validation=0))
    assert table.rows[0][1] == "not chosen"
    assert "not chosen: no setting did better than no correction, which is used." in table.notes
    assert "Each method cross-fitted: each fifth of the queries" in table.notes[0]


# --- a tuning ------------------------------------------------------------------------------------


def test_a_tuning_shows_no_correction_and_both_choices(tuning):
    table = tabulate_tuning(tuning)
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [cell["chosen by"] for cell in cells] == ["", "one standard error", "maximum"]
    for shown, cell in zip(
        cells, (tuning.uncorrected, tuning.best_by_rule, tuning.best_by_maximum), strict=True
    ):
        assert shown["method"] == cell.method
        assert shown["R@1"] == f"{100 * cell.recall_at_1:.2f}"


def make_tuning(gain, best, select="max"):
    none = Cell("none", {}, 0.5, 0.6, 0.7)
    grid = (none,) if best == "none" else (none, Cell("nnn", {"reference_k": 4, "alpha": 0.5}, 0.4))
    bias = Bias(np.zeros(3), 1.0, grid[-1].method)
    return Tuning(grid, grid[-1], grid[-1], none, none, bias, gain, select, 2000, 57)


def test_a_tuning_says_what_was_chosen_how_and_how_sure_it_is(tuning):
    table = tabulate_tuning(make_tuning(GAIN, "nnn"))
    assert table.title == "2 settings on 2,000 queries, 57 past queries"
    assert table.notes == (
        "Chosen by the maximum of R@1: nnn reference_k=4 alpha=0.5.",
        "In-sample, on the queries it was chosen on: +1.05 [0.21, 1.89] points of R@1.",
    )
    choice, _, crossed = tabulate_tuning(tuning).notes[:3]
    assert "the one-standard-error rule" in choice
    assert f"of {tuning.n_near} settings within one standard error of the best" in choice
    assert crossed.startswith("Cross-fitted, each fifth of the queries with the setting chosen")
    assert crossed.endswith("An interval that includes 0 shows no gain.")


def test_no_correction_may_be_what_was_chosen():
    table = tabulate_tuning(make_tuning(Interval(0.0, 0.0, 0.0, 1.0), "none"))
    assert [row[0] for row in table.rows] == ["none"]
    assert table.rows[0][-1] == "both rules"
    words = "Chosen by the maximum of R@1: no correction; no setting is better."
    assert table.notes == (words,)


# --- a diagnosis ---------------------------------------------------------------------------------


def test_a_diagnosis_shows_four_statistics_before_and_after(diagnosis):
    statistics, _ = tabulate_diagnosis(diagnosis)
    assert statistics.columns[1:] == ("before", "after")
    (label, *most), (never, *n_never), (_, *shares), (_, *beyond) = statistics.rows
    null, after = diagnosis.null_model, diagnosis.null_model_after
    assert label == f"hits of the most retrieved item; by chance {null.most_by_chance:.0f}"
    assert most == [str(diagnosis.before.max), str(diagnosis.after.max)]
    assert never.startswith("items that are never retrieved; by chance ")
    assert n_never == [
        str((n == 0).sum()) for n in (diagnosis.occurrences, diagnosis.occurrences_after)
    ]
    both = diagnosis.before, diagnosis.after
    assert shares == [f"{100 * some.hub_occurrence:.1f} %" for some in both]
    assert beyond == [f"{100 * some.beyond_chance:.1f} %" for some in (null, after)]
    assert statistics.title == "How often each of 40 items is in the top 2 for 200 queries"
    shown = f"{null.severity} before, {after.severity} after.".replace("none", "none visible")
    assert statistics.notes[0] == f"Hubs in 200 queries: {shown}"


def test_a_diagnosis_names_the_hubs(diagnosis):
    _, hubs = tabulate_diagnosis(diagnosis)
    assert hubs.columns == ("item", "hits", "hits after", "wrong hits", "z-score of bias")
    assert len(hubs.rows) == len(diagnosis.hubs) == 10
    for row, hub, after in zip(hubs.rows, diagnosis.hubs, diagnosis.hubs_after, strict=True):
        assert row[:3] == (str(hub.item), str(hub.occurrences), str(after))
        assert row[3] == f"{100 * hub.wrong_share:.0f} %"
        assert row[4] == f"{hub.bias_z:+.1f}".replace("-", "−")


# --- Markdown ------------------------------------------------------------------------------------


def markdown_rows(table):
    return [line for line in table.to_markdown().splitlines() if line.startswith("|")]


def test_every_row_of_a_markdown_table_has_as_many_cells_as_there_are_columns(tables):
    for table in tables:
        rows = markdown_rows(table)
        assert len(rows) == 2 + len(table.rows)
        assert {row.count("|") for row in rows} == {len(table.columns) + 1}
        assert re.fullmatch(r"\|:--(\|--:)*\|", rows[1])


def test_markdown_holds_title_cells_and_notes(comparison):
    table = tabulate_comparison(comparison)
    text = table.to_markdown()
    assert text.startswith(f"**{table.title}**\n\n| method |")
    assert "| nnn | reference_k=128 alpha=0.75 | 21.60 |" in text
    for note in table.notes:
        assert f"\n\n{note}" in text


# --- the terminal --------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_tables_can_be_printed_in_a_terminal_of_any_width(tables, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for table in tables:
        table.print()
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= int(columns)


def test_a_terminal_of_80_columns_loses_optional_columns_only(comparison, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    table = tabulate_comparison(comparison)
    table.print()
    out = capsys.readouterr().out
    assert "…" not in out
    for row in table.rows:
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            assert column in table.optional or all(word in out for word in cell.split())


@pytest.mark.parametrize("start", ["it", "339 of 4,096"])
def test_words_are_wrapped_and_names_are_kept_whole(capsys, monkeypatch, start):
    monkeypatch.setenv("COLUMNS", "80")
    words = f"{start} lies 4.2 spreads from the other items towards the queries; one of 12 copies"
    Table("", ("id", "score", "reasons"), (("photo_0012.jpg", "17.3", words),)).print()
    lines = capsys.readouterr().out.splitlines()
    assert f"photo_0012.jpg   17.3  {start} lies" in lines[2]
    assert " ".join(" ".join(lines[2:]).split()).endswith(words)


def test_intervals_are_never_wrapped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    interval = "−0.123 [−0.234, −0.012]"
    columns = ("mean over queries", "before", "after", "change")
    Table("", columns, (("x",) + (interval,) * 3,)).print()
    assert capsys.readouterr().out.count(interval) == 3


@pytest.mark.parametrize("name", ["[red]web", "[/red]", "[bold]x[/bold]", ":smile:", "a|b"])
def test_a_name_in_brackets_is_shown_as_it_is(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    Table(name, (name, "x"), ((name, "1"),), (name,)).print()
    assert capsys.readouterr().out.count(name) == 4


@pytest.mark.parametrize("columns", range(80, 160, 7))
def test_a_table_in_groups_is_split_by_them_before_a_figure_is_cut(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    figures = tuple(f"{n}0.{n}0 (+{n}.{n})" for n in range(1, 9))
    groups = ("", *["Flickr30k retrieval"] * 4, *["COCO retrieval"] * 4)
    headings = ("", *("Original", "DBNorm", "NNN Flickr", "NNN COCO") * 2)
    Table("T", headings, (("BEiT-3 Large ft. Flickr30k", *figures),), (), groups).print()
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert all(figure in shown for figure in figures)


def test_names_in_a_table_are_printable_and_stay_in_their_cell():
    table = Table("of \x1b[2J", ("id", "hits"), (("a\nb\x9b31m\u202e", "1"),), ("see \x07",))
    text = table.to_markdown()
    assert r"| a\nb\x9b31m\u202e | 1 |" in text
    assert text.replace("\n", "").isprintable()
