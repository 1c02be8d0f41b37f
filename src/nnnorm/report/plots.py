"""Plots of results: occurrences of items, grids, bank sizes, gains with their intervals, audits.

Every function takes results and returns a `matplotlib.figure.Figure` of its own, with the look that
`figure` gives to all. Blue is gain, orange is loss or before, grey is no correction or no clear
difference.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require
from nnnorm.evaluation import (
    Ablation,
    Audit,
    Cell,
    Comparison,
    Result,
    Tuning,
    expect_occurrences,
)
from nnnorm.methods import NNN, describe_setting, label_method
from nnnorm.report.figure import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    add_legend,
    label_axes,
    make_figure,
    make_panels,
    separate_thousands,
    style_axes,
)
from nnnorm.report.figure import save_figure as save_figure
from nnnorm.report.tables import MANY_QUERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FloatArray: TypeAlias = npt.NDArray[np.float64]

_COLORS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osD^vP"
_LOSS_TO_GAIN = ("#DE7326", "#F3C9A5", "#F7F7F7", "#AFD3E8", "#3B93C7")
_FILLED: dict[str, Any] = {"facecolor": "#F2C29B", "fill": True, "linewidth": 0}
_MANY_BINS = 60
# Up to this many columns and rows the cells of a grid have room for their numbers.
_ROOM = (12, 16)


def plot_occurrences(
    before: npt.ArrayLike,
    after: npt.ArrayLike | None = None,
    other: npt.ArrayLike | None = None,
    *,
    labels: Sequence[str] = ("uncorrected", "NNN", "fine-tuned"),
    title: str | None = None,
    k: int = 1,
) -> "Figure":
    """Plot how many items are retrieved for 0, 1, 2, … queries, before and after a correction."""
    figure, axes = make_figure(3.7)
    counts = [np.asarray(some) for some in (before, after, other) if some is not None]
    n_items = len(counts[0])
    if any(
        some.shape != (n_items,) or some.dtype.kind not in "iu" or some.min() < 0 for some in counts
    ):
        raise NNNormError(
            "before and after must have one count per item of the same gallery; got "
            + " and ".join(f"{some.dtype} {some.shape}" for some in counts)
        )
    reach = max(1, *(int(some.max()) for some in counts))
    width = 1 + reach // _MANY_BINS
    edges = np.arange(0, reach + width + 1, width) - 0.5
    looks = (_FILLED, *({"edgecolor": color, "linewidth": 2} for color in (BLUE, "#009E73")))
    for some, look, label, color in zip(counts, looks, labels, (ORANGE, BLUE, INK), strict=False):
        height, _ = np.histogram(some, edges)
        axes.stairs(height, edges, label=f"{label}, max {some.max():,}", **look)
        axes.plot(some.max(), 1.25 * height[some.max() // width], marker="v", color=color)
    by_chance = expect_occurrences(int(counts[0].sum()), n_items, int(edges[-1] + 0.5) - 1)
    by_chance = by_chance.reshape(-1, width).sum(axis=1)
    by_chance = np.where(by_chance < 0.01, np.nan, by_chance)
    look = {"color": GREY, "linewidth": 1.5, "linestyle": (0, (4, 2))}
    axes.stairs(by_chance, edges, baseline=None, label="by chance", **look)
    axes.set(yscale="log", xlim=(-0.5 - 0.01 * reach, 1.04 * reach + 1))
    axes.set_ylim(bottom=0.7)
    never = " → ".join(f"{(some == 0).sum():,}" for some in counts)
    where: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top"}
    axes.text(0.99, 0.97, f"never: {never} of {n_items:,} items", fontweight="bold", **where)
    places = "first" if k == 1 else f"among the first {k}"
    label_axes(
        axes,
        title or f"How often does each of {n_items:,} items come {places}?",
        f"queries that get the item {places}",
        "items, log scale" if width == 1 else f"items in steps of {width} queries, log scale",
    )
    separate_thousands(axes.xaxis)
    separate_thousands(axes.yaxis)
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


def plot_grid(tuning: Tuning) -> "Figure":
    """Plot R@1 of every (α, k) of NNN as a map: blue above no correction, orange below."""
    cells = _nnn_cells(tuning)
    ks = sorted({cell.params["reference_k"] for cell in cells})
    alphas = sorted({cell.params["alpha"] for cell in cells})
    figure, axes = make_figure(1.9 + 0.29 * min(max(len(alphas), 4), 16))
    recalls = np.full((len(alphas), len(ks)), np.nan)
    for cell in cells:
        place = alphas.index(cell.params["alpha"]), ks.index(cell.params["reference_k"])
        recalls[place] = 100 * cell.recall_at_1
    baseline = 100 * tuning.uncorrected.recall_at_1
    gain, loss = np.nanmax(recalls) - baseline, baseline - np.nanmin(recalls)
    # As much color for a point lost as for a point gained; far losses may run off the scale.
    reach = max(gain, loss / 4, 0.1)
    colors = require("matplotlib.colors", "plots")
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(recalls),
        cmap=colors.LinearSegmentedColormap.from_list("loss to gain", _LOSS_TO_GAIN),
        norm=colors.Normalize(baseline - reach, baseline + reach),
        edgecolors="white",
    )
    if len(ks) <= _ROOM[0] and len(alphas) <= _ROOM[1]:
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "color": INK}
        for (row, column), recall in np.ndenumerate(recalls):
            if np.isfinite(recall):
                axes.text(column + 0.5, row + 0.5, f"{recall:.1f}", **look)
    bar = figure.colorbar(mesh, ax=axes, extend="min" if loss > reach else "neither", aspect=28)
    bar.set_label("R@1, %", color=INK, fontsize=10)
    bar.ax.axhline(baseline, color=INK, linewidth=1)
    patches = require("matplotlib.patches", "plots")
    handles = []
    for cell, name, style, inset in (
        (tuning.best_by_rule, "best by one-standard-error rule", "-", 0.03),
        (tuning.best_by_maximum, "best by maximum", ":", 0.1),
    ):
        look = {"fill": False, "linewidth": 1.8, "linestyle": style, "edgecolor": INK}
        if _is_on_map(cell):
            row, column = alphas.index(cell.params["alpha"]), ks.index(cell.params["reference_k"])
            corner, size = (column + inset, row + inset), 1 - 2 * inset
            axes.add_patch(patches.Rectangle(corner, size, size, **look))
        label = f"{name}: {_describe(cell)}, {100 * cell.recall_at_1:.2f} %"
        handles.append(patches.Patch(label=label, **look))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    columns, rows = (
        range(0, len(some), -(-len(some) // most)) for some, most in ((ks, 12), (alphas, 16))
    )
    axes.set_xticks([n + 0.5 for n in columns], [f"{ks[n]:,}" for n in columns])
    axes.set_yticks([n + 0.5 for n in rows], [f"{alphas[n]:.4g}" for n in rows])
    label_axes(
        axes,
        f"R@1 on {tuning.n_queries:,} tuning queries; no correction: {baseline:.2f} %",
        "k, references averaged per item",
        "α, weight of the correction",
    )
    add_legend(figure, handles)
    return figure


def plot_reference_k(tuning: Tuning, alphas: Sequence[float] = (0.25, 0.5, 1.0)) -> "Figure":
    """Plot R@1 against k at fixed α, one line per α; all that were tried if none of these was."""
    cells = _nnn_cells(tuning)
    tried = sorted({cell.params["alpha"] for cell in cells})
    chosen = [alpha for alpha in tried if np.isclose(alpha, alphas).any()] or tried
    figure, axes = make_figure(3.7)
    _draw_baseline(axes, tuning.uncorrected.recall_at_1)
    baseline = 100 * tuning.uncorrected.recall_at_1
    noise = 50 * (tuning.gain.high - tuning.gain.low)
    axes.axhspan(baseline - noise, baseline + noise, color=PALE, alpha=0.6, zorder=0)
    for number, alpha in enumerate(chosen):
        line = sorted(
            (cell.params["reference_k"], 100 * cell.recall_at_1)
            for cell in cells
            if cell.params["alpha"] == alpha
        )
        axes.plot(*zip(*line, strict=True), label=f"α = {alpha:g}", **_look(number))
    axes.set_xscale("log", base=2)
    separate_thousands(axes.xaxis)
    label_axes(
        axes,
        f"How many references to average? ({tuning.n_queries:,} tuning queries)",
        "k, references averaged per item; grey: within the noise of no correction",
        "right item first, % (R@1)",
    )
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


def plot_bank_size(ablation: Ablation) -> "Figure":
    """Plot R@1 against the number of past queries: automatic with its interval, and tuned."""
    figure, axes = make_figure(4.2)
    _draw_baseline(axes, ablation.uncorrected.recall_at_1)
    baseline = 100 * ablation.uncorrected.recall_at_1
    for number, name in enumerate(dict.fromkeys(row.bank for row in ablation.rows)):
        rows = sorted((r for r in ablation.rows if r.bank == name), key=lambda r: r.n_references)
        sizes = [row.n_references for row in rows]
        automatic, tuned = ([100 * one.recall_at_1 for one in some] for some in _both(rows))
        ends = [(r.automatic.gain.low, r.automatic.gain.high) for r in rows if r.automatic.gain]
        low, high = baseline + 100 * np.array(ends).T
        look = _look(number)
        if len(rows) == 1:  # a band needs two sizes
            axes.vlines(sizes, low, high, color=look["color"], alpha=0.15, linewidth=12)
        axes.fill_between(sizes, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(sizes, automatic, label=name, **look)
        thin = look | {"linewidth": 1.2, "linestyle": "--", "marker": ""}
        axes.plot(sizes, tuned, label=f"{name}, tuned", **thin)
    axes.set_xscale("log")
    separate_thousands(axes.xaxis)
    label_axes(
        axes,
        f"How many past queries are enough? ({ablation.n_queries:,} test queries)",
        "past queries in the bank",
        "right item first, % (R@1)",
    )
    handles = [line for line in axes.lines if line.get_linestyle() == "-"]
    note = "dashed: tuned on labels; bands: 95 % interval of the gain over no correction"
    add_legend(figure, handles, note)
    return figure


def plot_gains(comparison: Comparison) -> "Figure":
    """Plot the gain in R@1 of every method over no correction, with its 95 % interval."""
    rows = [(result, result.gain) for result in comparison.results if result.gain is not None]
    if not rows:
        raise NNNormError("the comparison holds no method besides no correction; compare some")
    rows.sort(key=lambda row: -row[1].mean)
    figure, axes = make_figure(1.4 + 0.31 * len(rows))
    style_axes(axes, grid="x")
    axes.axvline(0, color=INK, linewidth=1, zorder=1.5)
    for place, (result, gain) in enumerate(rows):
        color = GREY if gain.includes_zero else BLUE if gain.mean > 0 else ORANGE
        width = 3.5 if result.method == NNN().name else 2
        axes.hlines(place, 100 * gain.low, 100 * gain.high, color=color, linewidth=width)
        fill = "white" if gain.includes_zero else color
        axes.plot(100 * gain.mean, place, "o", color=color, markerfacecolor=fill, markersize=8)
    names = [f"{label_method(one.method)}  {100 * one.recall_at_1:.2f} %" for one, _ in rows]
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), names)
    unclear = "; hollow: includes 0" if any(gain.includes_zero for _, gain in rows) else ""
    baseline = [100 * result.recall_at_1 for result in comparison.results if result.gain is None]
    label_axes(
        axes,
        "Gain in R@1 over no correction" + (f" ({baseline[0]:.2f} %)" if baseline else ""),
        f"points of R@1 on {comparison.n_queries:,} queries, 95 % interval{unclear}",
        "",
    )
    return figure


def plot_audit(audit: Audit, metrics: Sequence[str] | None = None) -> "Figure":
    """Plot each query's figure before and after, one panel per figure, with the means as lines."""
    if metrics is None:
        names = [name for name in audit.before if name.startswith("bias@")]
        metrics = (names or [name for name in audit.before if name.startswith("max skew")])[:3]
    if not 1 <= len(metrics) <= 3:
        raise NNNormError(f"a plot shows one to three figures; got {len(metrics)}")
    lines = [audit.line(metric) for metric in metrics]
    is_few = len(audit.queries) <= MANY_QUERIES
    figure, panels = make_panels(1.6 + 0.19 * len(audit.queries) if is_few else 3.8, len(metrics))
    order = np.argsort(audit.before[metrics[0]], kind="stable")
    for axes, line in zip(panels, lines, strict=True):
        before = audit.before[line.metric][order]
        after = audit.after[line.metric][order] if audit.after else None
        if is_few:
            _draw_queries(axes, before, after)
        else:
            both = [before] if after is None else [before, after]
            edges = np.histogram_bin_edges(np.concatenate(both), bins=21)
            looks = (_FILLED, {"edgecolor": BLUE, "linewidth": 2})
            for values, look, label in zip(both, looks, ("before", "after"), strict=False):
                axes.stairs(np.histogram(values, edges)[0], edges, label=label, **look)
        axes.axvline(line.before.mean, color=ORANGE, linestyle="--", label="mean before")
        if line.after is not None:
            axes.axvline(line.after.mean, color=BLUE, linestyle="--", label="mean after")
        label_axes(axes, "", line.metric, "")
    panels[0].set_title("Groups retrieved, query by query", loc="left", fontweight="bold")
    if is_few:
        names = [audit.queries[query] for query in order]
        panels[0].set_yticks(range(len(order)), names, fontsize=8.5)
    else:
        panels[0].set_ylabel("queries")
    note = f"bias@k = ({' − '.join(audit.difference)})/k" if audit.difference else None
    add_legend(figure, panels[0].get_legend_handles_labels()[0], note)
    return figure


def _draw_queries(axes: "Axes", before: FloatArray, after: FloatArray | None) -> None:
    """A dot before and a dot after, joined, for each query."""
    places = np.arange(len(before))
    axes.scatter(before, places, s=52, color=ORANGE, zorder=3, label="before")
    if after is not None:
        axes.hlines(places, before, after, color="#C9C9C9", linewidth=2, zorder=2)
        axes.scatter(after, places, s=18, color=BLUE, marker="D", zorder=4, label="after")


def _draw_baseline(axes: "Axes", recall: float) -> None:
    axes.axhline(100 * recall, color=GREY, linewidth=1.5, label="no correction", zorder=1.5)


def _look(number: int) -> dict[str, Any]:
    color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)]
    return {"color": color, "marker": marker, "markersize": 6, "linewidth": 2}


def _both(rows: Sequence[Any]) -> tuple[list[Result], list[Result]]:
    return [row.automatic for row in rows], [row.tuned for row in rows]


def _is_on_map(cell: Cell) -> bool:
    return {"reference_k", "alpha"} <= set(cell.params)


def _nnn_cells(tuning: Tuning) -> list[Cell]:
    cells = [cell for cell in tuning.grid if _is_on_map(cell)]
    if not cells:
        raise NNNormError("this tuning has no cells of NNN to plot; tune with 'nnn' among methods")
    return cells


def _describe(cell: Cell) -> str:
    if not cell.params:
        return label_method(cell.method)
    setting = describe_setting(cell.method, cell.params, ", ", " = ")
    return setting if _is_on_map(cell) else f"{label_method(cell.method)} with {setting}"
