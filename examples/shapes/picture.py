"""Draw the picture in the README: one hub before, three right pictures after.

    python examples/shapes/picture.py    # writes docs/images/hub-light.png and hub-dark.png

The same hub is top-1 for three captions without a correction. With automatic settings, the right
picture is. Needs matplotlib: `pip install 'nnnorm[plots]'`.
"""

import textwrap
from pathlib import Path

import matplotlib
import numpy as np

import nnnorm

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Circle, FancyBboxPatch

IMAGES = Path(__file__).parents[2] / "docs" / "images"
INK = {"light": "#1f2328", "dark": "#e6edf3"}
ORANGE, GREEN, BADGE = "#d9730d", "#00966d", "#6e7781"
ROWS, SHOWN = 3, 3
SIDE, STEP, TOP = (
    66,
    80,
    66,
)  # pixels: size of a picture, distance to the next, space above the first
LEFT, RIGHT = 205, 480  # left edges of the pictures without and with the correction
WIDTH, HEIGHT = RIGHT + SHOWN * STEP, TOP + ROWS * STEP
TEXT = 12  # points: readable on a phone, at half the width


def find_rows(shapes):
    """Find a hub, how often it is top-1, and three captions for which it no longer is.

    Returns
    -------
    hub, n_first : int
    rows : list of (caption, right item, first items without, first items with)
    """
    bias = nnnorm.NNN().fit(shapes.gallery, shapes.references)
    before = nnnorm.search(shapes.queries, shapes.gallery, k=SHOWN).indices
    after = nnnorm.search(shapes.queries, shapes.gallery, bias, k=SHOWN).indices
    counts = np.bincount(before[:, 0], minlength=len(shapes.gallery))
    found = {}
    for query in np.flatnonzero((before[:, 0] != shapes.truth) & (after[:, 0] == shapes.truth)):
        row = shapes.captions[query], int(shapes.truth[query]), before[query], after[query]
        of_item = found.setdefault(int(before[query, 0]), {})
        of_item[row[1]] = min(row, of_item.get(row[1], row), key=lambda row: len(row[0]))
    hub = max(found, key=lambda item: (len(found[item]), counts[item]))
    rows = sorted(found[hub].values(), key=lambda row: len(row[0]))  # read fastest
    return hub, int(counts[hub]), rows[:ROWS]


def draw(shapes, theme, hub, n_first, rows):
    """Draw the picture in the colors of a theme; see `find_rows`."""
    figure = plt.figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=200)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.axis("off")

    def write(x, y, text, color=None, **more):
        axes.text(x, y, text, color=color or INK[theme], va="center", **more)

    def frame(x, y, side, color):
        box = {"boxstyle": "round,pad=0,rounding_size=6", "linewidth": 0}
        axes.add_patch(FancyBboxPatch((x, y), side, side, facecolor=color, **box))

    fair = len(shapes.queries) // len(shapes.gallery)
    frame(2, 4, 16, ORANGE)
    write(25, 12, f"a hub: top-1 for {n_first} queries; {fair} would be fair", fontsize=TEXT)
    frame(440, 4, 16, GREEN)
    write(463, 12, "the right picture", fontsize=TEXT)
    for x, name in ((2, "query"), (LEFT - 5, "without nnnorm"), (RIGHT - 5, "with nnnorm")):
        write(x, 44, name, fontsize=TEXT, weight="bold")
    for number, (caption, right, before, after) in enumerate(rows):
        y = TOP + number * STEP
        lines = "\n".join(textwrap.wrap(f"“{caption}”", 21))
        write(2, y + SIDE / 2, lines, fontsize=TEXT, linespacing=1.2)
        for start, items in ((LEFT, before), (RIGHT, after)):
            for place, item in enumerate(items):
                x = start + place * STEP
                color = ORANGE if item == hub else GREEN if item == right else None
                edge = 5 if color else 0.5  # a thin line around white pictures
                frame(x - edge, y - edge, SIDE + 2 * edge, color or BADGE)
                picture = shapes.draw(int(item), 2 * SIDE)
                axes.imshow(picture, extent=(x, x + SIDE, y + SIDE, y), zorder=2)
                axes.add_patch(Circle((x - 1, y - 1), 9, facecolor=color or BADGE, zorder=3))
                number = {"color": "white", "ha": "center", "weight": "bold", "fontsize": 8}
                axes.text(x - 1, y - 0.5, place + 1, va="center", zorder=4, **number)
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    return figure


def main():
    shapes = nnnorm.load_shapes()
    found = find_rows(shapes)
    for theme in INK:
        figure = draw(shapes, theme, *found)
        path = IMAGES / f"hub-{theme}.png"
        figure.savefig(path, transparent=True)
        print(f"{path}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
