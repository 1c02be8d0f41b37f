"""What all plots share: the figure, its colours, axes and legend, and how it is written.

Needs matplotlib (`pip install 'nnnorm[plots]'`), imported only when a figure is made; pyplot and
its global state are never touched. The colours are safe for colour-blind readers.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nnnorm.errors import NNNormError, require
from nnnorm.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH = 6.4  # inches: 960 pixels at 150 dpi, still readable when shown at 800
_DPI = 150
INK, GREY, PALE = "#222222", "#6E6E6E", "#E6E6E6"
BLUE, ORANGE = "#0072B2", "#D55E00"


def make_figure(height: float) -> tuple["Figure", "Axes"]:
    """Make a figure with one panel.

    Examples
    --------
    >>> make_figure(3.0)[0].get_size_inches().tolist()
    [6.4, 3.0]
    """
    figure, (axes,) = make_panels(height, 1)
    return figure, axes


def make_panels(height: float, n_panels: int) -> tuple["Figure", list["Axes"]]:
    """Make a figure with clean axes side by side, independent of pyplot's state.

    Examples
    --------
    >>> len(make_panels(3.0, 2)[1])
    2
    """
    require("matplotlib", "plots")
    figure: Figure = require("matplotlib.figure", "plots").Figure(
        figsize=(_WIDTH, height), facecolor="white", layout="constrained"
    )
    require("matplotlib.backends.backend_agg", "plots").FigureCanvasAgg(figure)
    panels: list[Axes] = []
    for number in range(n_panels):
        shared = panels[0] if panels else None
        axes = figure.add_subplot(1, n_panels, number + 1, facecolor="white", sharey=shared)
        style_axes(axes)
        panels.append(axes)
    return figure, panels


def style_axes(axes: "Axes", grid: Literal["x", "y"] = "y") -> None:
    """Give axes the look of all plots: no frame, pale lines along one axis.

    Examples
    --------
    >>> figure, (axes,) = make_panels(3.0, 1)
    >>> style_axes(axes, grid="x")
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color("#BBBBBB")
    axes.tick_params(colors=INK, labelsize=9.5, length=0)
    axes.set_axisbelow(True)
    axes.grid(visible=False)
    axes.grid(axis=grid, color=PALE, linewidth=0.8)


def label_axes(axes: "Axes", title: str, x: str, y: str) -> None:
    """Set the title and the labels of both axes.

    Examples
    --------
    >>> figure, (axes,) = make_panels(3.0, 1)
    >>> label_axes(axes, "Hubs", "times first", "items")
    """
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)


def add_legend(figure: "Figure", handles: Sequence[Any], note: str | None = None) -> None:
    """Put a legend below the axes, in as many columns as there is room for.

    Examples
    --------
    >>> figure, (axes,) = make_panels(3.0, 1)
    >>> add_legend(figure, axes.plot([0, 1], [0, 1], label="NNN"))
    """
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            title=note,
            title_fontsize=9,
            frameon=False,
            fontsize=9.5,
            labelcolor=INK,
        )
        legend.get_title().set_color(GREY)
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            break
        legend.remove()


def name_lines(axes: "Axes", ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Write the names of lines at their right ends, one above the other where these are close.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    ends : sequence of tuples
        x, y, name and colour of each.

    Examples
    --------
    >>> figure, axes = make_figure(3.0)
    >>> name_lines(axes, [(1.0, 0.5, "NNN", BLUE)])
    >>> axes.texts[0].get_text()
    'NNN'
    """
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    places: list[float] = []
    for _, y, _, _ in ordered:
        places.append(max([y, *(place + 0.06 * (high - low) for place in places[-1:])]))
    above = max(0.0, places[-1] - high)
    for (x, _, name, colour), place in zip(ordered, places, strict=True):
        axes.annotate(
            name,
            (x, place - above),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
            color=colour,
            annotation_clip=False,
        )


def scale_log(axes: "Axes", values: Sequence[int], base: int) -> None:
    """Scale x by logarithms, with plain numbers: all values for base 2, round ones for base 10.

    Examples
    --------
    >>> figure, axes = make_figure(3.0)
    >>> scale_log(axes, [1, 2, 4], base=2)
    >>> axes.get_xticks().tolist()
    [1, 2, 4]
    """
    ticker = require("matplotlib.ticker", "plots")
    axes.set_xscale("log", base=base)
    low, high = min(values), max(values)
    spare = (high / low) ** 0.04 if high > low else 2
    axes.set_xlim(low / spare, high * spare)
    if base == 2:
        present = sorted(set(values))
        axes.set_xticks([present[n] for n in thin_out(present, 12)])
    else:
        subs = (1, 2, 3, 5) if high < 30 * low else (1, 2, 5) if high < 300 * low else (1, 3)
        axes.xaxis.set_major_locator(ticker.LogLocator(base=10, subs=subs))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.tick_params(axis="x", length=4, color="#BBBBBB")
    separate_thousands(axes.xaxis)


def separate_thousands(axis: Any) -> None:
    """Write the numbers of an axis with commas, and millions as such.

    Examples
    --------
    >>> figure, axes = make_figure(3.0)
    >>> separate_thousands(axes.xaxis)
    >>> axes.xaxis.get_major_formatter()(12_000)
    '12,000'
    """
    axis.set_major_formatter(
        lambda value, _: f"{value / 1e6:,.10g} M" if value >= 1e6 else f"{value:,.10g}"
    )


def thin_out(values: Sequence[Any], most: int) -> range:
    """Places of at most `most` of the values, evenly spread.

    Examples
    --------
    >>> thin_out("abcdefg", 3)
    range(0, 7, 3)
    """
    return range(0, len(values), -(-len(values) // most))


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG (150 dpi), SVG or PDF, by the suffix, whole or not at all.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : str or PathLike
        Ending in .png, .svg or .pdf.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "empty.png"
    >>> save_figure(make_panels(3.0, 1)[0], path)
    >>> path.read_bytes()[1:4]
    b'PNG'
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    # A date inside would make equal figures differ.
    undated: dict[str, dict[str, Any]] = {
        "png": {},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
    }
    if kind not in undated:
        raise NNNormError(
            f"cannot write {path}: a figure's file must end in .png, .svg or .pdf; "
            f"got {f'.{kind}' if kind else 'no ending'}"
        )
    write_whole(
        path, lambda file: figure.savefig(file, format=kind, dpi=_DPI, metadata=undated[kind])
    )
