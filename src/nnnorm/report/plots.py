"""Results as plots: occurrences of items, grids, gains, audits, and hits of queries.

Every function returns a new `matplotlib.figure.Figure`. Blue is gain, orange is loss or before,
grey is no correction or no clear difference; the colors are safe for color-blind readers. Needs
matplotlib (`pip install 'nnnorm[plots]'`), which is imported when a figure is created. pyplot isn't
used.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.calibration import Calibration
from nnnorm.errors import NNNormError, require
from nnnorm.evaluation import Audit, Cell, Comparison, Tuning, expect_occurrences
from nnnorm.evaluation.hubness import name_places
from nnnorm.files import write_whole
from nnnorm.methods import NNN, describe_setting, label_method
from nnnorm.report.tables import MANY_QUERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 6.4  # inches: 960 pixels at 150 dpi, still readable when shown at 800
_DPI = 150
# A date inside would make equal figures differ.
_UNDATED: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
INK, GREY, PALE = "#222222", "#6E6E6E", "#E6E6E6"
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def make_figure(height: float) -> tuple["Figure", "Axes"]:
    """Make a figure with one panel."""
    figure, (axes,) = make_panels(height, 1)
    return figure, axes


def make_panels(height: float, n_panels: int) -> tuple["Figure", list["Axes"]]:
    """Make a figure with clean axes next to each other, independent of pyplot's state."""
    require("matplotlib", "plots")
    look: dict[str, Any] = {"facecolor": "white", "layout": "constrained"}
    figure = require("matplotlib.figure", "plots").Figure(figsize=(_WIDTH, height), **look)
    require("matplotlib.backends.backend_agg", "plots").FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, n_panels, sharey=True, squeeze=False)[0])
    for axes in panels:
        style_axes(axes)
    return figure, panels


def style_axes(axes: "Axes", grid: Literal["x", "y"] = "y") -> None:
    """Give axes the look of all plots: no frame, pale lines along one axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color("#BBBBBB")
    axes.tick_params(colors=INK, labelsize=9.5, length=0)
    axes.set_axisbelow(True)
    axes.grid(visible=False)
    axes.grid(axis=grid, color=PALE, linewidth=0.8)


def label_axes(axes: "Axes", title: str, x: str, y: str) -> None:
    """Set the title and the labels of both axes."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)


def add_legend(figure: "Figure", handles: Sequence[Any], note: str | None = None) -> None:
    """Add a legend below the axes, in as many columns as fit."""
    look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "labelcolor": INK}
    look |= {"title": note, "title_fontsize": 9}
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)
        legend.get_title().set_color(GREY)
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            break
        legend.remove()


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG (150 dpi), SVG or PDF, by the suffix."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in _UNDATED:
        raise NNNormError(f"a figure must end in .png, .svg or .pdf; got {path}")
    metadata = _UNDATED[kind]
    write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=_DPI, metadata=metadata))


# --- results ------------------------------------------------------------------------------------

_LOSS_TO_GAIN = ("#DE7326", "#F3C9A5", "#F7F7F7", "#AFD3E8", "#3B93C7")
_MANY_BINS = 60
# Up to this many columns and rows, the cells of a grid show their numbers.
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
    for some in counts:
        if some.shape != (n_items,) or some.dtype.kind not in "iu" or some.min() < 0:
            got = f"{some.dtype} {some.shape}"
            raise NNNormError(f"counts must be one whole number per item, {n_items}; got {got}")
    reach = max(1, *(int(some.max()) for some in counts))
    width = 1 + reach // _MANY_BINS
    edges = np.arange(0, reach + width + 1, width) - 0.5
    filled: dict[str, Any] = {"facecolor": "#F2C29B", "fill": True, "linewidth": 0}
    looks = (filled, *({"edgecolor": color, "linewidth": 2} for color in (BLUE, GREEN)))
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
    where["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the grid
    axes.text(0.99, 0.97, f"never: {never} of {n_items:,} items", fontweight="bold", **where)
    places = name_places(k)
    steps = "" if width == 1 else f" in steps of {width} queries"
    title = title or f"How often each of {n_items:,} items is {places}"
    label_axes(axes, title, f"queries for which the item is {places}", f"items{steps}, log scale")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


def plot_grid(tuning: Tuning) -> "Figure":
    """Plot R@1 of every (α, k) of NNN as a map: blue above no correction, orange below."""
    cells = [cell for cell in tuning.grid if _is_on_map(cell)]
    if not cells:
        raise NNNormError("this tuning has no cells of NNN to plot; tune with 'nnn' among methods")
    alphas, ks = (_of_several(cells, name) for name in ("alpha", "reference_k"))

    def place(cell: Cell) -> tuple[int, int, bool]:
        """The nearest row and column, and whether it is that setting."""
        alpha, k = cell.params["alpha"], cell.params["reference_k"]
        row = int(np.argmin(np.abs(np.subtract(alphas, alpha))))
        column = int(np.argmin(np.abs(np.log(ks) - np.log(k))))
        return row, column, (alpha, k) == (alphas[row], ks[column])

    figure, axes = make_figure(1.9 + 0.29 * min(max(len(alphas), 4), 16))
    recalls = np.full((len(alphas), len(ks)), np.nan)
    for cell in cells:
        row, column, is_exact = place(cell)
        if is_exact:
            recalls[row, column] = 100 * cell.recall_at_1
    baseline = 100 * tuning.uncorrected.recall_at_1
    gain, loss = np.nanmax(recalls) - baseline, baseline - np.nanmin(recalls)
    # As much color for a point lost as for a point gained; far losses may run off the scale.
    reach = max(gain, loss / 4, 0.1)
    color_map = require("matplotlib.colors", "plots").LinearSegmentedColormap
    look: dict[str, Any] = {"cmap": color_map.from_list("loss to gain", _LOSS_TO_GAIN)}
    look |= {"vmin": baseline - reach, "vmax": baseline + reach, "edgecolors": "white"}
    mesh = axes.pcolormesh(np.ma.masked_invalid(recalls), **look)
    if len(ks) <= _ROOM[0] and len(alphas) <= _ROOM[1]:
        look = {"ha": "center", "va": "center", "fontsize": 8.5, "color": INK}
        for (row, column), recall in np.ndenumerate(recalls):
            if np.isfinite(recall):
                axes.text(column + 0.5, row + 0.5, f"{recall:.1f}", **look)
    bar = figure.colorbar(mesh, ax=axes, extend="min" if loss > reach else "neither", aspect=28)
    bar.set_label("R@1, %", color=INK, fontsize=10)
    bar.ax.axhline(baseline, color=INK, linewidth=1)
    patches = require("matplotlib.patches", "plots")
    handles = []
    for cell, name, style, inset in (
        (tuning.best_by_rule, "one-standard-error rule", "-", 0.03),
        (tuning.best_by_maximum, "maximum", ":", 0.1),
    ):
        look = {"fill": False, "linewidth": 1.8, "linestyle": style, "edgecolor": INK}
        what = describe_setting(cell.method, cell.params, ", ")
        if _is_on_map(cell):
            row, column, is_exact = place(cell)
            what = what if is_exact else f"near {what}"
            corner, size = (column + inset, row + inset), 1 - 2 * inset
            axes.add_patch(patches.Rectangle(corner, size, size, **look))
        else:
            what = f"{label_method(cell.method)} {what}".strip()
        label = f"{name}: {what}, {100 * cell.recall_at_1:.2f} %"
        handles.append(patches.Patch(label=label, **look))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    columns = range(0, len(ks), -(-len(ks) // 12))
    rows = range(0, len(alphas), -(-len(alphas) // 16))
    axes.set_xticks([n + 0.5 for n in columns], [f"{ks[n]:,}" for n in columns])
    axes.set_yticks([n + 0.5 for n in rows], [f"{alphas[n]:.4g}" for n in rows])
    title = f"R@1 on {tuning.n_queries:,} tuning queries; no correction: {baseline:.2f} %"
    label_axes(axes, title, "reference_k, past queries per item", "alpha, weight of the bias")
    add_legend(figure, handles)
    return figure


def plot_gains(comparison: Comparison) -> "Figure":
    """Plot the gain in R@1 of every method over no correction, with its 95 % interval."""
    rows = [(result, result.gain) for result in comparison.results if result.gain is not None]
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
    points = f"points of R@1 on {comparison.n_queries:,} queries, 95 % interval{unclear}"
    baseline = 100 * comparison.results[0].recall_at_1
    label_axes(axes, f"Gain in R@1 over no correction ({baseline:.2f} %)", points, "")
    return figure


def plot_audit(audit: Audit) -> "Figure":
    """Plot bias@k, or max skew@k, of each query before and after, with the means as lines."""
    names = [name for name in audit.before if name.startswith("bias@")]
    metrics = (names or [name for name in audit.before if name.startswith("max skew")])[:3]
    is_few = len(audit.queries) <= MANY_QUERIES
    figure, panels = make_panels(1.6 + 0.19 * len(audit.queries) if is_few else 3.8, len(metrics))
    order = np.argsort(audit.before[metrics[0]], kind="stable")
    places = np.arange(len(order))
    for axes, metric in zip(panels, metrics, strict=True):
        values = [some[metric] for some in (audit.before, audit.after) if some]
        if is_few and len(values) == 2:  # a dot before and a dot after, joined, for each query
            was, now = (some[order] for some in values)
            axes.hlines(places, was, now, color="#C9C9C9", linewidth=2, zorder=1)
        looks = (("before", ORANGE, "o", 52), ("after", BLUE, "D", 18))
        for some, (name, color, marker, size) in zip(values, looks, strict=False):
            look: dict[str, Any] = {"color": color, "label": name, "zorder": 3}
            if is_few:
                axes.scatter(some[order], places, s=size, marker=marker, **look)
            else:  # each sorted by itself
                axes.plot(np.sort(some), places, linewidth=2, **look)
            axes.axvline(some.mean(), color=color, linestyle="--", label=f"mean {name}")
        label_axes(axes, "", metric, "")
    panels[0].set_title("Groups retrieved per query", loc="left", fontweight="bold")
    if is_few:
        panels[0].set_yticks(places, [audit.queries[query] for query in order], fontsize=8.5)
    else:
        panels[0].set(ylabel="queries, sorted", yticks=[])
    note = f"bias@k = ({' − '.join(audit.difference)})/k" if audit.difference else None
    add_legend(figure, panels[0].get_legend_handles_labels()[0], note)
    return figure


def plot_reliability(calibration: Calibration) -> "Figure":
    """Plot how often the first hit was right against its probability, on labels held out."""
    curve = calibration.curve
    if curve is None:
        raise NNNormError("a calibration without labels has no probabilities to plot")
    means, shares, sizes = (np.array(column) for column in zip(*curve.bins, strict=True))
    figure, axes = make_figure(4.2)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="perfect calibration")
    error = np.sqrt(shares * (1 - shares) / sizes)
    axes.errorbar(means, shares, error, color=BLUE, fmt="o-", label="a tenth of the labels, ± 1 SE")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    title = f"{curve.n_labels:,} labels; calibration error {curve.calibration_error:.3f}"
    label_axes(axes, title, "probability that the first hit is right", "share of right first hits")
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


def _of_several(cells: Sequence[Cell], name: str) -> list[float]:
    """The values of a parameter that have a row or column of cells, not just one."""
    found = Counter(cell.params[name] for cell in cells)
    return sorted(one for one in found if found[one] >= min(2, max(found.values())))


def _is_on_map(cell: Cell) -> bool:
    return {"reference_k", "alpha"} <= set(cell.params)


# --- what queries find ---------------------------------------------------------------------------

_INCHES = 0.56  # of a tile
_LABEL, _HEADING, _LINE = 1.1, 0.75, 0.36  # widths and heights in tiles
_LONGEST = 88  # characters of a line


class Hits(NamedTuple):
    """A query and the first items that it finds."""

    query: str
    before: Sequence[int]
    after: Sequence[int] | None = None
    right: Collection[int] = ()


def plot_hits(
    found: Sequence[Hits],
    show: Callable[[int], Any],
    color: Callable[[Hits, int], str | None],
    note: str = "",
) -> "Figure":
    """Draw the hits of queries: the query, then its first items before and after a correction."""
    if not found:
        raise NNNormError("there are no hits to draw; pass at least one query")
    figure, axes = make_figure(1.0)
    axes.set_axis_off()
    top, width = 0.0, _LABEL + 10.4
    for hits in found:
        top += _HEADING
        axes.text(0, top - 0.12, _shorten(hits.query), fontsize=9, color=INK, parse_math=False)
        for label, items in (("before", hits.before), ("after", hits.after or ())):
            shown = [show(item) for item in items]
            if shown and hits.after is not None:
                axes.text(0, top + _LINE, label, fontsize=8, color=GREY)
            for place, (item, one) in enumerate(zip(items, shown, strict=True)):
                tone = color(hits, item)
                if isinstance(one, str):
                    top += _LINE
                    words = _shorten(f"{place + 1} {one}")
                    axes.text(_LABEL, top, words, fontsize=8, color=tone or INK, parse_math=False)
                else:
                    left = _LABEL + 1.04 * place
                    _draw_tile(axes, one, left, top, tone)
                    width = max(width, left + 1.04)
            if shown and not isinstance(shown[0], str):
                top += 1.06
    if note:
        top += _HEADING
        axes.text(0, top - 0.12, note, fontsize=8, color=GREY)
    axes.set(xlim=(-0.05, width), ylim=(top + 0.2, 0), aspect="equal")
    figure.set_size_inches(_INCHES * width, _INCHES * (top + 0.2))
    return figure


def _draw_tile(axes: Any, picture: Any, left: float, top: float, tone: str | None) -> None:
    """Draw a picture in a square of side 1, in its own proportions, with a frame."""
    height, width = picture.shape[:2]
    wide, high = width / max(height, width), height / max(height, width)
    x, y = left + (1 - wide) / 2, top + (1 - high) / 2
    axes.imshow(picture, extent=(x, x + wide, y + high, y), aspect="auto", zorder=2)
    edge = {"edgecolor": tone or "#D6D6D6", "linewidth": 2.5 if tone else 0.8}
    corners = [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)]
    axes.fill(*zip(*corners, strict=True), facecolor="none", zorder=3, **edge)


def _shorten(text: str) -> str:
    words = " ".join(text.split()) or " "
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
