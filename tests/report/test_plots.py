"""Plots show the numbers of the results and are saved completely."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from nnnorm import Bias, NNNormError
from nnnorm.errors import MissingExtraError
from nnnorm.evaluation.comparison import Comparison, Result
from nnnorm.evaluation.hubness import measure_hubness
from nnnorm.evaluation.results import Interval
from nnnorm.evaluation.tuning import Cell, Tuning, tune
from nnnorm.report.plots import plot_gains, plot_grid, plot_occurrences, save_figure

pytestmark = pytest.mark.slow


matplotlib = pytest.importorskip("matplotlib", reason="needs nnnorm[plots]")

BEFORE = np.array([0, 0, 0, 0, 1, 1, 2, 2, 4, 30])
AFTER = np.array([2, 3, 3, 4, 4, 4, 4, 5, 5, 6])
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6E6E6E"
NO_GAIN = Interval(0.0, 0.0, 0.0, 1.0)


def make_tuning(ks, alphas, uncorrected=0.5):
    """Every (k, α) of NNN with an R@1 of its own; the maximum is the last cell."""
    none = Cell("none", {}, uncorrected)
    settings = [{"reference_k": k, "alpha": alpha} for k in ks for alpha in alphas]
    cells = [Cell("nnn", each, 0.48 + 0.001 * n) for n, each in enumerate(settings)]
    return Tuning(
        grid=(none, *cells),
        best=cells[0],
        best_by_rule=cells[0],
        best_by_maximum=cells[-1],
        uncorrected=none,
        bias=Bias(np.zeros(3), 1.0, "nnn"),
        gain=NO_GAIN,
        select="one-standard-error",
        n_queries=5000,
        n_references=1000,
    )


def make_result(method, recall, gain):
    return Result(method, {}, recall, recall, recall, 0.01, gain, measure_hubness([1, 1]))


NONE = make_result("none", 0.2, None)
GAINS = {
    "nnn": Interval(0.02, 0.01, 0.03),
    "csls": Interval(0.03, -0.001, 0.05),
    "dn": Interval(-0.02, -0.03, -0.01),
    "my own": Interval(0.001, 0.0, 0.002),
}


def make_comparison(gains=GAINS):
    results = [make_result(name, 0.2 + gain.mean, gain) for name, gain in gains.items()]
    return Comparison((NONE, *results), "max", 25_000, 5000, 30_000, 5000)


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def title_of(figure):
    return figure.axes[0].get_title(loc="left")


def is_colour(colour, name):
    return matplotlib.colors.same_color(colour, name)


def ends_of(collection):
    """Both ends of every line of a collection, shape (n_lines, 2, 2)."""
    return np.array([path.vertices for path in collection.get_paths()])


# --- occurrences ---------------------------------------------------------------------------------


def test_histograms_count_the_items_of_every_occurrence():
    figure = plot_occurrences(BEFORE, AFTER)
    (axes,) = figure.axes
    assert len(axes.patches) == 3
    for patch, counts in zip(axes.patches[:2], (BEFORE, AFTER), strict=True):
        values, edges, _ = patch.get_data()
        assert values.tolist() == np.bincount(counts, minlength=31).tolist()
        assert edges.tolist() == [n - 0.5 for n in range(32)]
    assert axes.get_yscale() == "log"
    assert legend_of(figure) == ["uncorrected, max 30", "NNN, max 6", "by chance"]
    assert title_of(figure) == "How often each of 10 items is top-1"
    assert axes.get_xlabel() == "queries for which the item is top-1"
    assert axes.get_ylabel() == "items, log scale"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1]],), r"one whole number per item, 1; got int64 \(1, 1\)"),
        (([1, -1],), "must be one whole number per item"),
        (([1.5],), "got float64"),
        (([1, 2], [1]), r"per item, 2; got int64 \(1,\)"),
    ],
)
def test_what_are_no_occurrences_is_refused(arguments, words):
    with pytest.raises(NNNormError, match=words):
        plot_occurrences(*arguments)


# --- grid ----------------------------------------------------------------------------------------


def test_the_grid_has_every_cell_in_its_place(small):
    tuning = tune(small.gallery, small.references, queries=small.queries, truth=np.arange(11))
    tried = [cell.params["alpha"] for cell in tuning.grid[1:]]
    (alone,) = (cell for cell in tuning.grid[1:] if tried.count(cell.params["alpha"]) == 1)
    figure = plot_grid(replace(tuning, best_by_rule=alone))  # automatic, between two rows
    axes = figure.axes[0]
    mesh = axes.collections[0].get_array()
    ks = [int(label.get_text()) for label in axes.get_xticklabels()]
    shown = [float(label.get_text()) for label in axes.get_yticklabels()]
    alphas = sorted(set(tried) - {alone.params["alpha"]})
    assert ks == [1, 2, 4, 8, 16, 32]
    assert shown == pytest.approx(alphas, abs=5e-4)
    assert len(alphas) == 14
    cells = [cell for cell in tuning.grid[1:] if cell is not alone]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    for cell in cells:
        column, row = ks.index(cell.params["reference_k"]), alphas.index(cell.params["alpha"])
        assert mesh[row, column] == 100 * cell.recall_at_1
        assert texts[column + 0.5, row + 0.5] == f"{100 * cell.recall_at_1:.1f}"
    assert mesh.count() == len(texts) == len(cells) == len(tuning.grid) - 2
    nearest = min(alphas, key=lambda alpha: abs(alpha - alone.params["alpha"]))
    assert f": near reference_k={alone.params['reference_k']}," in legend_of(figure)[0]
    frame = axes.patches[0].get_bbox()
    assert frame.y0 < alphas.index(nearest) + 0.5 < frame.y1


def test_a_tuning_without_nnn_is_rejected():
    tuning = make_tuning([1], [0.5])
    with pytest.raises(NNNormError, match="tune with 'nnn' among methods"):
        plot_grid(replace(tuning, grid=tuning.grid[:1]))


# --- gains ---------------------------------------------------------------------------------------


def test_the_forest_has_one_row_per_method_best_first():
    figure = plot_gains(make_comparison())
    axes = figure.axes[0]
    names = [label.get_text().partition("  ")[0] for label in axes.get_yticklabels()]
    assert names == ["CSLS", "NNN", "my own", "DN"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    expected = [GAINS[name] for name in ("csls", "nnn", "my own", "dn")]
    assert [line.get_xdata()[0] for line in dots] == [100 * gain.mean for gain in expected]
    assert [line.get_ydata()[0] for line in dots] == [0, 1, 2, 3]
    ends = np.concatenate([ends_of(collection) for collection in axes.collections])
    np.testing.assert_allclose(ends[:, :, 0], [[100 * g.low, 100 * g.high] for g in expected])
    assert axes.yaxis_inverted()
    assert title_of(figure) == "Gain in R@1 over no correction (20.00 %)"


def test_an_interval_that_includes_zero_is_grey_and_hollow():
    axes = plot_gains(make_comparison()).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    for line, colour in zip(dots, (GREY, BLUE, GREY, ORANGE), strict=True):
        assert is_colour(line.get_color(), colour)
        assert is_colour(line.get_markerfacecolor(), "white" if colour == GREY else colour)
    assert axes.get_xlabel() == "points of R@1 on 25,000 queries, 95 % interval; hollow: includes 0"


# --- all of them ---------------------------------------------------------------------------------

NINE = {f"{name} {n}": gain for n in range(3) for name, gain in list(GAINS.items())[:3]}
FIGURES = {
    "occurrences": lambda: plot_occurrences(BEFORE, AFTER),
    "near maxima": lambda: plot_occurrences(BEFORE, np.minimum(BEFORE, 29)),
    "a long tail": lambda: plot_occurrences(BEFORE * 1234, AFTER),
    "the usual grid": lambda: plot_grid(make_tuning(2 ** np.arange(10), np.arange(2, 13) / 8)),
    "one cell": lambda: plot_grid(make_tuning([16], [0.5])),
    "a large grid": lambda: plot_grid(make_tuning(range(1000, 1030), np.arange(30) / 20)),
    "one method": lambda: plot_gains(make_comparison({"nnn": GAINS["nnn"]})),
    "three methods": lambda: plot_gains(make_comparison(dict(list(GAINS.items())[:3]))),
    "nine methods": lambda: plot_gains(make_comparison(NINE)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off_and_no_tick_labels_touch(name):
    figure = FIGURES[name]()
    figure.set_dpi(150)
    figure.canvas.draw()
    assert figure.bbox.width == 960
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < width + 0.02
    assert box.y1 < height + 0.02
    axes = figure.axes[0]
    for axis, side in ((axes.xaxis, 0), (axes.yaxis, 1)):
        low, high = sorted(axis.get_view_interval())
        shown = [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
        assert shown
        intervals = [label.get_window_extent().get_points()[:, side] for label in shown]
        intervals.sort(key=lambda ends: ends[0])
        for first, second in pairwise(intervals):
            assert first[1] < second[0]


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("figure.png", b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"),
        ("figure.PNG", b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"),
        ("figure.svg", b"<?xml", b"</svg>\n"),
        ("figure.pdf", b"%PDF-", b"%%EOF\n"),
    ],
)
def test_the_suffix_decides_the_kind_of_file(tmp_path, name, start, end):
    save_figure(plot_occurrences(BEFORE), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(start)
    assert content.endswith(end)
    assert len(content) > 5000


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_equal_figures_are_equal_files(tmp_path, suffix):
    paths = [tmp_path / f"{n}.{suffix}" for n in range(2)]
    for path in paths:
        save_figure(plot_occurrences(BEFORE), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("name", ["a.jpg", "a"])
def test_another_suffix_is_refused_with_those_that_are_known(tmp_path, name):
    with pytest.raises(NNNormError, match=rf"must end in \.png, \.svg or \.pdf; got .*{name}$"):
        save_figure(plot_occurrences(BEFORE), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# --- matplotlib ----------------------------------------------------------------------------------


def test_without_matplotlib_a_figure_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nnnorm\[plots\]'"):
        plot_occurrences(BEFORE)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_pyplot_is_never_imported(tmp_path):
    code = (
        "import sys; from nnnorm.report.plots import *; figure = plot_occurrences([1, 3], [2, 2]);"
        f"[save_figure(figure, {str(tmp_path)!r} + '/a.' + s) for s in ('png', 'svg', 'pdf')];"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert run(code).stdout == "False\n"
