"""What all plots share: the figure, its colors, axes and legend, and how it is written.

Needs matplotlib (`pip install 'nnnorm[plots]'`), imported only when a figure is made; pyplot and
its global state are never touched. The colors are safe for color-blind readers.
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
# A date inside would make equal figures differ.
_UNDATED: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
INK, GREY, PALE = "#222222", "#6E6E6E", "#E6E6E6"
BLUE, ORANGE = "#0072B2", "#D55E00"


def make_figure(height: float) -> tuple["Figure", "Axes"]:
    """Make a figure with one panel."""
    figure, (axes,) = make_panels(height, 1)
    return figure, axes


def make_panels(height: float, n_panels: int) -> tuple["Figure", list["Axes"]]:
    """Make a figure with clean axes next to each other, independent of pyplot's state."""
    require("matplotlib", "plots")
    figure: Figure = require("matplotlib.figure", "plots").Figure(
        figsize=(_WIDTH, height), facecolor="white", layout="constrained"
    )
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
    """Put a legend below the axes, in as many columns as there is room for."""
    look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "labelcolor": INK}
    look |= {"title": note, "title_fontsize": 9}
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)
        legend.get_title().set_color(GREY)
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            break
        legend.remove()


def separate_thousands(axis: Any) -> None:
    """Write the numbers of an axis with commas, and millions as such."""
    axis.set_major_formatter(
        lambda value, _: f"{value / 1e6:,.10g} M" if value >= 1e6 else f"{value:,.10g}"
    )


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG (150 dpi), SVG or PDF, by the suffix, whole or not at all."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in _UNDATED:
        raise NNNormError(
            f"cannot write {path}: a figure's file must end in .png, .svg or .pdf; "
            f"got {f'.{kind}' if kind else 'no ending'}"
        )
    metadata = _UNDATED[kind]
    write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=_DPI, metadata=metadata))
