"""Plots of results: occurrences of items, grids, bank sizes, gains with their intervals.

Every function takes results and returns a `matplotlib.figure.Figure` of its own, with the look that
`figure` gives to all. Blue is gain, orange is loss or before, grey is no correction or no clear
difference.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require
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
    name_lines,
    scale_log,
    separate_thousands,
    thin_out,
)
from nnnorm.report.figure import save_figure as save_figure
from nnnorm.study import (
    Ablation,
    Cell,
    Comparison,
    Interval,
    Result,
    Tuning,
    expect_occurrences,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]

_CURVES = (ORANGE, BLUE, "#009E73")  # before, after, another model
_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osD^vP"
_LOSS_TO_GAIN = ("#DE7326", "#F3C9A5", "#F7F7F7", "#AFD3E8", "#3B93C7")
_USUAL_ALPHAS = (0.25, 0.5, 1.0)
_MANY_BINS = 60
# Names of lines stand at their ends where they are few and short.
_FEW_NAMES, _SHORT_NAME = 3, 16
# Up to this many columns and rows the cells of a grid have room for their numbers.
_ROOM = (12, 16)


def plot_occurrences(
    before: npt.ArrayLike,
    after: npt.ArrayLike | None = None,
    other: npt.ArrayLike | None = None,
    *,
    labels: Sequence[str] = ("uncorrected", "NNN", "fine-tuned"),
    truth_per_item: npt.ArrayLike | None = None,
    title: str | None = None,
) -> "Figure":
    """Plot how many items come first for 0, 1, 2, … queries, before and after a correction.

    Hubs are the long tail on the right; the axis of items is logarithmic, so that one item shows.
    The dashed line is chance: as many hits, each on any item alike.

    Parameters
    ----------
    before, after : int array, shape (n_gallery,)
        N_1 of every item, from `count_occurrences`.
    other : int array, shape (n_gallery,), optional
        N_1 of another model, such as a fine-tuned one, for the same queries.
    labels : sequence of str
        Their names in the legend.
    truth_per_item : number or array, shape (n_gallery,), optional
        How many queries each item is the right answer to; the mean is marked.
    title : str, optional

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> figure = plot_occurrences([4, 0, 0, 0], [1, 1, 2, 0], truth_per_item=1)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['max 4', 'max 2', 'never first: 3 → 1 of 4 items']
    """
    figure, axes = make_figure(3.7)
    counts = _check_distributions({"before": before, "after": after, "other": other}, labels)
    right = None if truth_per_item is None else _mean_of_truth(truth_per_item, len(counts[0]))
    maxima = [int(each.max()) for each in counts]
    reach = max(*maxima, right or 0, 1)
    width = 1 + max(maxima) // _MANY_BINS
    edges = np.arange(0, max(maxima) + width + 1, width) - 0.5
    heights = [np.histogram(each, edges)[0] for each in counts]
    axes.set(
        yscale="log",
        xlim=(-0.5 - 0.01 * reach, 1.04 * reach + 1),
        ylim=(0.7, 2.2 * max(height.max() for height in heights)),
    )
    for number, (height, top) in enumerate(zip(heights, maxima, strict=True)):
        look: dict[str, Any] = (
            {"facecolor": "#F2C29B", "fill": True, "linewidth": 0}
            if number == 0
            else {"edgecolor": _CURVES[number], "linewidth": 2 if number == 1 else 1.4}
        )
        axes.stairs(height, edges, label=labels[number], zorder=2 + number, **look)
        # Labels that would touch stand one above the other.
        close = [n for n in range(number + 1, len(maxima)) if abs(maxima[n] - top) < 0.12 * reach]
        spot = (top, 1.25 * float(height[top // width]))
        _mark_maximum(axes, spot, f"max {top:,}", _CURVES[number], 6 + 12 * len(close))
    by_chance = _chance(int(counts[0].sum()), len(counts[0]), edges)
    look = {"color": GREY, "linewidth": 1.5, "linestyle": (0, (4, 2)), "zorder": 4}
    axes.stairs(by_chance, edges, baseline=None, label="by chance", **look)
    never = " → ".join(f"{(each == 0).sum():,}" for each in counts)
    _write_in_corner(axes, f"never first: {never} of {len(counts[0]):,} items")
    if right is not None:
        name = f"right answers: {right:,.3g} per item"
        axes.axvline(right, color=INK, linewidth=1.2, linestyle=":", label=name)
    label_axes(
        axes,
        title or f"How often does each of {len(counts[0]):,} items come first?",
        "queries that get the item first",
        "items, log scale" if width == 1 else f"items in steps of {width} queries, log scale",
    )
    separate_thousands(axes.xaxis)
    separate_thousands(axes.yaxis)
    axes.yaxis.set_minor_locator(require("matplotlib.ticker", "plots").NullLocator())
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


def _mark_maximum(
    axes: "Axes", spot: tuple[float, float], text: str, colour: str, above: int
) -> None:
    halo = require("matplotlib.patheffects", "plots").withStroke(linewidth=3, foreground="white")
    axes.plot(*spot, marker="v", color=colour, markersize=5, zorder=5)
    axes.annotate(
        text,
        spot,
        xytext=(0, above),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        color=colour,
        path_effects=[halo],
    )


def _write_in_corner(axes: "Axes", text: str) -> None:
    axes.text(
        0.99,
        0.97,
        text,
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=11,
        fontweight="bold",
        color=INK,
    )


def _chance(n_hits: int, n_items: int, edges: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """Items per bin if every hit fell on any item alike; below a hundredth of an item, nothing."""
    items = expect_occurrences(n_hits, n_items, int(edges[-1] + 0.5) - 1)
    found = items.reshape(-1, int(edges[1] - edges[0])).sum(axis=1)
    return np.where(found < 0.01, np.nan, found)


def plot_grid(tuning: Tuning) -> "Figure":
    """Plot R@1 of every (α, k) of NNN as a map: blue above no correction, orange below.

    Parameters
    ----------
    tuning : Tuning
        With NNN among its methods.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import tune
    >>> tuning = tune(np.eye(4), np.eye(4), queries=np.eye(4), truth=[0, 1, 2, 3])
    >>> plot_grid(tuning).axes[0].get_title(loc="left")
    'R@1 on 4 tuning queries; no correction: 100.00 %'
    """
    require("matplotlib", "plots")
    cells = _nnn_cells(tuning)
    ks = sorted({cell.params["reference_k"] for cell in cells})
    alphas = sorted({cell.params["alpha"] for cell in cells})
    recalls = np.full((len(alphas), len(ks)), np.nan)
    for cell in cells:
        recalls[_place(cell, alphas, ks)] = 100 * cell.recall_at_1
    baseline = 100 * tuning.uncorrected.recall_at_1
    gain, loss = np.nanmax(recalls) - baseline, baseline - np.nanmin(recalls)
    # As much colour for a point lost as for a point gained; far losses may run off the scale.
    reach = max(gain, loss / 4, 0.1)
    colours = require("matplotlib.colors", "plots")
    figure, axes = make_figure(1.9 + 0.29 * min(max(len(alphas), 4), 16))
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(recalls),
        cmap=colours.LinearSegmentedColormap.from_list("loss to gain", _LOSS_TO_GAIN),
        norm=colours.Normalize(baseline - reach, baseline + reach),
        edgecolors="white",
        linewidth=1,
    )
    if len(ks) <= _ROOM[0] and len(alphas) <= _ROOM[1]:
        for (row, column), recall in np.ndenumerate(recalls):
            if np.isfinite(recall):
                look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5}
                axes.text(column + 0.5, row + 0.5, f"{recall:.1f}", color=INK, **look)
    _add_colour_bar(axes, mesh, baseline, extend="min" if loss > reach else "neither")
    handles = _mark_best(axes, tuning, alphas, ks)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    columns, rows = thin_out(ks, 12), thin_out(alphas, 16)
    axes.set_xticks([n + 0.5 for n in columns], [f"{ks[n]:,}" for n in columns])
    axes.set_yticks([n + 0.5 for n in rows], [_short(alphas[n]) for n in rows])
    label_axes(
        axes,
        f"R@1 on {tuning.n_queries:,} tuning queries; no correction: {baseline:.2f} %",
        "k, references averaged per item",
        "α, weight of the correction",
    )
    add_legend(figure, handles)
    return figure


def _add_colour_bar(axes: "Axes", mesh: Any, baseline: float, extend: str) -> None:
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05, aspect=28, extend=extend)
    bar.set_label("R@1, %", color=INK, fontsize=10)
    bar.ax.tick_params(colors=INK, labelsize=9, length=0)
    bar.ax.axhline(baseline, color=INK, linewidth=1)
    bar.outline.set_visible(False)


def _mark_best(
    axes: "Axes", tuning: Tuning, alphas: Sequence[float], ks: Sequence[int]
) -> list[Any]:
    """Frame the cells that each rule chooses, and return what the legend shows of them."""
    patches = require("matplotlib.patches", "plots")
    handles = []
    for cell, name, style, inset in (
        (tuning.best_by_rule, "best by one-standard-error rule", "-", 0.03),
        (tuning.best_by_maximum, "best by maximum", (0, (2.5, 1.5)), 0.1),
    ):
        label = f"{name}: {_describe(cell)}, {100 * cell.recall_at_1:.2f} %"
        look: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 1.8}
        look["linestyle"] = style
        if _is_on_map(cell):
            row, column = _place(cell, alphas, ks)
            x, y = inset * min(1, len(ks) / 4), inset * min(1, len(alphas) / 4)
            box = ((column + x, row + y), 1 - 2 * x, 1 - 2 * y)
            axes.add_patch(patches.Rectangle(*box, label=label, **look))
        else:  # there is no cell to mark
            look["edgecolor"] = "none"
        handles.append(patches.Patch(label=label, **look))
    return handles


def _short(alpha: float) -> str:
    """The number as it is, or what a rule chose to three places."""
    return f"{alpha:g}" if len(f"{alpha:g}") <= len("0.0625") else f"{alpha:.3f}"


def plot_reference_k(tuning: Tuning, alphas: Sequence[float] | None = None) -> "Figure":
    """Plot R@1 against k at fixed α, one line per α.

    Parameters
    ----------
    tuning : Tuning
        With NNN among its methods.
    alphas : sequence of float, optional
        Which of the grid's α; by default 0.25, 0.5 and 1, or up to four others if none is there.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import tune
    >>> tuning = tune(np.eye(4), np.eye(4), queries=np.eye(4), truth=[0, 1, 2, 3])
    >>> [line.get_label() for line in plot_reference_k(tuning, [0.5]).axes[0].lines]
    ['no correction', 'α = 0.5']
    """
    require("matplotlib", "plots")
    cells = _nnn_cells(tuning)
    present = sorted({cell.params["alpha"] for cell in cells})
    if alphas is None:
        alphas = _find(present, _USUAL_ALPHAS) or [present[n] for n in thin_out(present, 4)]
    chosen = _find(present, alphas)
    if len(chosen) < max(1, len(alphas)):
        tried = ", ".join(f"{alpha:g}" for alpha in present)
        raise NNNormError(f"alphas must be among those that were tried ({tried}); got {alphas}")
    figure, axes = make_figure(3.7)
    _draw_baseline(axes, tuning.uncorrected.recall_at_1)
    baseline, noise = (
        100 * tuning.uncorrected.recall_at_1,
        50 * (tuning.gain.high - tuning.gain.low),
    )
    axes.axhspan(baseline - noise, baseline + noise, color=PALE, alpha=0.6, zorder=0)
    shades = require("matplotlib", "plots").colormaps["viridis"]
    ks: list[int] = []
    ends: list[tuple[float, float, str, Any]] = []
    for number, alpha in enumerate(chosen):
        line = sorted(
            (cell.params["reference_k"], 100 * cell.recall_at_1)
            for cell in cells
            if cell.params["alpha"] == alpha
        )
        axes.plot(
            *zip(*line, strict=True),
            color=shades(0.75 * number / max(1, len(chosen) - 1)),
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=5,
            linewidth=1.8,
            label=f"α = {alpha:g}",
        )
        ends.append((*line[-1], f"α = {alpha:g}", axes.lines[-1].get_color()))
        ks.extend(k for k, _ in line)
    scale_log(axes, ks, base=2)
    name_lines(axes, ends)
    label_axes(
        axes,
        f"How many references to average? ({tuning.n_queries:,} tuning queries)",
        "k, references averaged per item; grey: within the noise of no correction",
        "right item first, % (R@1)",
    )
    return figure


def plot_bank_size(ablation: Ablation) -> "Figure":
    """Plot R@1 against the size of the bank: NNN's own rule with its interval, and tuned beside.

    Intervals are of the paired gain over no correction, so a band that does not touch the grey line
    is a clear gain or loss.

    Parameters
    ----------
    ablation : Ablation

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import Task, ablate
    >>> rng = np.random.default_rng(0)
    >>> gallery, bank, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 30))
    >>> truth = np.arange(30) % 20
    >>> task = Task(queries, gallery, truth)
    >>> found = ablate(gallery, bank, queries=queries, truth=truth, validation=task)
    >>> plot_bank_size(found).axes[0].get_xlabel()
    'past queries in the bank'
    """
    figure, axes = make_figure(4.2)
    if not ablation.rows:
        raise NNNormError("the ablation holds no bank, so there is nothing to plot")
    lines = require("matplotlib.lines", "plots")
    baseline = 100 * ablation.uncorrected.recall_at_1
    _draw_baseline(axes, ablation.uncorrected.recall_at_1)
    names = list(dict.fromkeys(row.bank for row in ablation.rows))
    handles, ends = [], []
    for number, name in enumerate(names):
        rows = sorted((r for r in ablation.rows if r.bank == name), key=lambda r: r.n_references)
        sizes = [row.n_references for row in rows]
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "zorder": 4}
        automatic, low, high = _recalls([row.automatic for row in rows], baseline)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        if len(rows) == 1:  # a band needs two sizes
            axes.vlines(sizes, low, high, color=colour, alpha=0.15, linewidth=12)
        axes.plot(sizes, automatic, linewidth=2.2, markersize=7, label=f"{name}, own rule", **look)
        tuned, _, _ = _recalls([row.tuned for row in rows], baseline)
        thin: dict[str, Any] = {"linewidth": 1.2, "linestyle": "--", "alpha": 0.8, "color": colour}
        axes.plot(sizes, tuned, label=f"{name}, tuned", **thin)
        ends.append((sizes[-1], automatic[-1], name, colour))
        handles.append(lines.Line2D([], [], linewidth=2.2, markersize=7, label=name, **look))
    scale_log(axes, [row.n_references for row in ablation.rows], base=10)
    label_axes(
        axes,
        f"How many past queries are enough? ({ablation.n_queries:,} test queries)",
        "past queries in the bank",
        "right item first, % (R@1)",
    )
    if len(names) <= _FEW_NAMES and max(map(len, names)) <= _SHORT_NAME:
        name_lines(axes, ends)
        handles = []
    handles += [
        lines.Line2D([], [], color=INK, linewidth=2.2, label="NNN's own rule"),
        lines.Line2D([], [], color=INK, linewidth=1.2, linestyle="--", label="tuned on labels"),
        axes.lines[0],
    ]
    add_legend(figure, handles, "bands: 95 % interval of the gain over no correction")
    return figure


def plot_gains(comparison: Comparison) -> "Figure":
    """Plot the gain in R@1 of every method over no correction, with its 95 % interval.

    An interval that includes 0 is grey with a hollow mark: the data do not show a difference.

    Parameters
    ----------
    comparison : Comparison

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import Task, compare
    >>> rng = np.random.default_rng(0)
    >>> gallery, bank, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 30))
    >>> known = {"queries": queries, "truth": np.arange(30) % 20}
    >>> task = Task(queries, gallery, known["truth"])
    >>> found = compare(gallery, bank, **known, validation=task, methods=["csls"])
    >>> figure = plot_gains(found)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['CSLS']
    """
    require("matplotlib", "plots")
    rows = [(result, result.gain) for result in comparison.results if result.gain is not None]
    if not rows:
        raise NNNormError("the comparison holds no method besides no correction; compare some")
    rows.sort(key=lambda row: -row[1].mean)
    figure, axes = make_figure(1.4 + 0.31 * len(rows))
    axes.grid(visible=False)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.axvline(0, color=INK, linewidth=1, zorder=1.5)
    for place, (result, gain) in enumerate(rows):
        colour = GREY if gain.includes_zero else BLUE if gain.mean > 0 else ORANGE
        is_nnn = result.method == NNN().name
        if is_nnn:
            axes.axhspan(place - 0.42, place + 0.42, color="#EAF3F9", zorder=0)
        width = 3.5 if is_nnn else 2
        axes.hlines(place, 100 * gain.low, 100 * gain.high, color=colour, linewidth=width)
        axes.plot(
            100 * gain.mean,
            place,
            color=colour,
            marker="o",
            markersize=9 if is_nnn else 7,
            markerfacecolor="white" if gain.includes_zero else colour,
            markeredgewidth=1.5,
        )
        axes.text(
            1.03,
            place,
            f"{100 * result.recall_at_1:.2f}",
            transform=axes.get_yaxis_transform(),
            va="center_baseline",
            fontsize=10,
            color=INK,
        )
    axes.text(1.03, -0.75, "R@1, %", transform=axes.get_yaxis_transform(), fontsize=9, color=GREY)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [label_method(result.method) for result, _ in rows])
    for label, (result, _) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if result.method == NNN().name else "normal")
    axes.xaxis.set_major_formatter(lambda value, _: _signed(value))
    unclear = "; hollow: includes 0" if any(gain.includes_zero for _, gain in rows) else ""
    baseline = [100 * result.recall_at_1 for result in comparison.results if result.gain is None]
    label_axes(
        axes,
        "Gain in R@1 over no correction" + (f" ({baseline[0]:.2f} %)" if baseline else ""),
        f"points of R@1 on {comparison.n_queries:,} queries, 95 % interval{unclear}",
        "",
    )
    return figure


def _signed(value: float) -> str:
    return f"{value:+.4g}".replace("-", "−") if round(value, 9) else "0"


def _draw_baseline(axes: "Axes", recall: float) -> None:
    axes.axhline(100 * recall, color=GREY, linewidth=1.5, label="no correction", zorder=1.5)


def _is_on_map(cell: Cell) -> bool:
    return {"reference_k", "alpha"} <= set(cell.params)


def _nnn_cells(tuning: Tuning) -> list[Cell]:
    cells = [cell for cell in tuning.grid if _is_on_map(cell)]
    if not cells:
        raise NNNormError("this tuning has no cells of NNN to plot; tune with 'nnn' among methods")
    return cells


def _place(cell: Cell, alphas: Sequence[float], ks: Sequence[int]) -> tuple[int, int]:
    return alphas.index(cell.params["alpha"]), ks.index(cell.params["reference_k"])


def _describe(cell: Cell) -> str:
    if not cell.params:
        return label_method(cell.method)
    setting = describe_setting(cell.method, cell.params, ", ", " = ")
    return setting if _is_on_map(cell) else f"{label_method(cell.method)} with {setting}"


def _recalls(results: Sequence[Result], baseline: float) -> tuple[FloatArray, ...]:
    """R@1 in percent, and the ends of its gain's interval above `baseline`."""
    gains = [result.gain or Interval(0.0, 0.0, 0.0) for result in results]
    return (
        np.array([100 * result.recall_at_1 for result in results]),
        np.array([baseline + 100 * gain.low for gain in gains]),
        np.array([baseline + 100 * gain.high for gain in gains]),
    )


def _find(present: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Those of `present` that equal a wanted one up to rounding, in the order wanted."""
    return [there for value in wanted for there in present if np.isclose(there, value)]


def _check_distributions(
    given: dict[str, npt.ArrayLike | None], labels: Sequence[str]
) -> list[IntArray]:
    counts = [_check_counts(some, name) for name, some in given.items() if some is not None]
    if len({len(some) for some in counts}) > 1:
        sizes = " and ".join(str(len(some)) for some in counts)
        raise NNNormError(f"before and after must be of the same gallery; got {sizes} items")
    if isinstance(labels, str) or len(labels) < len(counts):
        raise NNNormError(f"labels must name {len(counts)} distributions; got {labels!r}")
    return counts


def _check_counts(occurrences: npt.ArrayLike, name: str) -> IntArray:
    counts = np.asarray(occurrences)
    if counts.ndim != 1 or len(counts) == 0 or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise NNNormError(
            f"{name} must have one count per item, whole and at least 0; "
            f"got {counts.dtype} {counts.shape}"
        )
    return counts.astype(np.int64)


def _mean_of_truth(truth_per_item: npt.ArrayLike, n_gallery: int) -> float:
    numbers = np.asarray(truth_per_item, dtype=np.float64)
    if numbers.shape not in ((), (n_gallery,)) or not (numbers >= 0).all():
        raise NNNormError(
            f"truth_per_item must be one number of at least 0, or one for each of {n_gallery} "
            f"items; got shape {numbers.shape}"
        )
    return float(numbers.mean())
