"""Pictures or captions that queries find, before and after a correction."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nnnorm.errors import NNNormError
from nnnorm.report.figure import GREY, INK, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = "#009E73"
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
    """Draw what queries find: the query, then its first items before and after a correction."""
    if not found:
        raise NNNormError("there are no hits to draw; give at least one query")
    figure, axes = make_figure(1.0)
    axes.set_axis_off()
    top, width = 0.0, 1.0
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
                    words = _shorten(f"{place + 1} {one}")
                    place_of = (_LABEL, top + _LINE)
                    axes.text(*place_of, words, fontsize=8, color=tone or INK, parse_math=False)
                    top += _LINE
                else:
                    left = _LABEL + 1.04 * place
                    _draw_tile(axes, one, left, top, tone)
                    width = max(width, left + 1.04)
            if shown and not isinstance(shown[0], str):
                top += 1.06
    if note:
        top += _HEADING
        axes.text(0, top - 0.12, note, fontsize=8, color=GREY)
    width = max(width, _LABEL + 10.4)
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
