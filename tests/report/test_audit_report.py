from dataclasses import replace

import numpy as np
import pytest

from nnnorm import Bias
from nnnorm.evaluation.groups import Line, audit
from nnnorm.evaluation.results import Interval
from nnnorm.report.plots import plot_audit
from nnnorm.report.tables import tabulate_audit
from tests.evaluation.test_audit import run as audit_visogender
from tests.made import make_visogender


@pytest.fixture(scope="module")
def found():
    made = make_visogender()
    values = np.zeros(230)
    values[made.hubs] = 1000
    return audit_visogender(made, Bias(values, 1.0, "nnn"))


def test_the_means_come_with_intervals_and_with_what_they_do_not_show(found):
    means, _ = tabulate_audit(found)
    row = next(row for row in means.rows if row[0] == "bias@6")
    assert row[1].startswith("0.188 [")
    assert row[2].startswith("0.319 [")
    assert row[3].startswith("+0.130 [−")
    assert "What this does not show" in means.notes[1]
    assert "Target shares: feminine 0.5, masculine 0.5" in means.notes[0]


def test_a_terminal_of_80_columns_shows_before_and_change(found, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    means, _ = tabulate_audit(found)
    means.print()
    shown = " ".join(capsys.readouterr().out.split())
    for row in means.rows:
        assert " ".join((row[0], row[1], row[3])) in shown


def test_a_change_in_the_last_bits_is_no_change_below_zero(found):
    line = Line("bias@6", *[Interval(-1e-17, -0.0, 0.2)] * 3)
    means, _ = tabulate_audit(replace(found, means=(line,)))
    assert means.rows[0][1:] == (*["0.000 [0.000, 0.200]"] * 2, "+0.000 [0.000, 0.200]")


def test_every_occupation_has_its_row(found):
    _, queries = tabulate_audit(found)
    assert len(queries.rows) == 23
    assert queries.columns[1] == "bias@6 before → after"
    assert queries.rows[18][:3] == ("job 18", "−1.00 → 0.00", "−1.00 → 0.00")


def test_of_many_queries_the_table_shows_the_most_uneven(rng):
    gallery, queries = rng.normal(size=(30, 6)), rng.normal(size=(100, 6))
    many = audit(queries, gallery, groups=["a", "b"] * 15, ks=[5])
    _, table = tabulate_audit(many)
    assert len(table.rows) == 10
    assert "of 100" in table.title
    shown = [abs(float(row[1].replace("−", "-"))) for row in table.rows]
    assert shown == sorted(shown, reverse=True)


@pytest.mark.slow
def test_the_plot_has_a_panel_per_k_and_a_dot_per_query(found):
    figure = plot_audit(found)
    assert [axes.get_xlabel() for axes in figure.axes] == ["bias@6", "bias@10"]
    before, after = (dots.get_offsets()[:, 0] for dots in figure.axes[0].collections[1:])
    np.testing.assert_allclose(np.sort(before), np.sort(found.before["bias@6"]))
    assert len(after) == 23
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()][-1].startswith("job ")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["before", "mean before", "after", "mean after"]


def test_many_queries_are_drawn_as_a_sorted_line_without_their_names(rng):
    many = audit(
        rng.normal(size=(100, 6)), rng.normal(size=(30, 6)), groups=["a", "b"] * 15, ks=[5]
    )
    (axes,) = plot_audit(many).axes
    assert axes.get_ylabel() == "queries, sorted"
    line, _ = axes.lines
    assert line.get_xdata().tolist() == sorted(many.before["bias@5"])


def test_three_groups_are_drawn_by_their_skew(rng):
    three = audit(
        rng.normal(size=(9, 6)), rng.normal(size=(30, 6)), groups=["a", "b", "c"] * 10, ks=[5]
    )
    assert plot_audit(three).axes[0].get_xlabel() == "max skew@5"
    assert tabulate_audit(three)[1].columns == ("query", "max skew@5")
