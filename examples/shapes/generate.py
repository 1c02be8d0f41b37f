"""Scenes of colored shapes, their captions by a small grammar, and short searches by another.

`make_scenes` generates random scenes, all different.

`write_captions` describes one to three objects of a scene and their positions in a sentence: "a
small red star above a blue ring". Captions leave objects out, use several words for one object, and
are never complete. `write_searches` imitates the search box: no articles, the noun first, no order:
"star red small, ring blue". Both use one vocabulary, so that one text tower encodes both; searches
are out of distribution as references for captions.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.datasets.shapes import BACKGROUNDS, COLORS, SHAPES, SIZES, Thing, read_scene

_REPEATS = 1000  # repeated scenes in a row, after which drawing gives up

_NOUNS = {
    "circle": ("circle", "circle", "disc"),
    "diamond": ("diamond", "diamond", "rhombus"),
    "ring": ("ring", "ring", "hoop"),
    "cross": ("cross", "cross", "plus"),
    "moon": ("moon", "crescent"),
    "drop": ("drop", "drop", "teardrop"),
    "square": ("square", "square", "box"),
}
_SIZES = {"small": ("small", "small", "little", "tiny"), "big": ("big", "big", "large")}
_BACKGROUNDS = {
    "white": ("on a white background", "on white", "on white paper"),
    "sand": ("on a sandy background", "on sand", "on sand"),
    "mint": ("on a mint background", "on mint", "on a pale green background"),
    "navy": ("on a navy background", "on navy", "on a dark background"),
}
_ROWS = (("at the top", "in the top row"), (), ("at the bottom", "in the bottom row"))
_COLUMNS = (("on the left", "at the left edge"), (), ("on the right", "at the right edge"))
_CORNERS = {
    0: ("at the top left", "in the top left corner", "in the upper left"),
    2: ("at the top right", "in the top right corner", "in the upper right"),
    4: ("in the middle", "in the centre"),
    6: ("at the bottom left", "in the bottom left corner", "in the lower left"),
    8: ("at the bottom right", "in the bottom right corner", "in the lower right"),
}


def make_scenes(
    n_scenes: int,
    *,
    seed: int = 0,
    shapes: Sequence[str] | None = None,
    colors: Sequence[str] | None = None,
    counts: Sequence[int] = (2, 3, 4),
) -> npt.NDArray[np.uint8]:
    """Generate random scenes, all different, shape ``(n_scenes, 10)``."""
    rng = np.random.default_rng(seed)
    kinds = _numbers(shapes, SHAPES, "shape"), _numbers(colors, COLORS, "color")
    made: dict[bytes, npt.NDArray[np.uint8]] = {}
    repeats = 0
    while len(made) < n_scenes:
        scene = np.zeros(10, dtype=np.uint8)
        scene[0] = rng.integers(len(BACKGROUNDS))
        cells = rng.choice(9, size=rng.choice(counts), replace=False)
        shape, color = (rng.choice(allowed, size=len(cells)) for allowed in kinds)
        size = rng.integers(len(SIZES), size=len(cells))
        scene[1 + cells] = 1 + (shape * len(COLORS) + color) * len(SIZES) + size
        is_new = made.setdefault(scene.tobytes(), scene) is scene
        repeats = 0 if is_new else repeats + 1
        if repeats == _REPEATS:
            raise ValueError(f"there are not {n_scenes:,} different scenes of this kind")
    return np.stack(list(made.values())) if made else np.zeros((0, 10), dtype=np.uint8)


def _numbers(names: Sequence[str] | None, known: Any, what: str) -> npt.NDArray[np.int64]:
    known = list(known)
    if unknown := [name for name in names or [] if name not in known]:
        raise ValueError(f"{unknown[0]!r} is no {what}; there are {', '.join(known)}")
    return np.array([known.index(name) for name in names or known])


def write_captions(scene: npt.ArrayLike, n_captions: int = 5, *, seed: int = 0) -> list[str]:
    """Write captions of a scene: one to three of its objects, and their positions.

    Parameters
    ----------
    scene : array, shape (10,), uint8
        From `make_scenes`.
    n_captions : int
    seed : int
        Random seed; the same seed gives the same captions.

    Returns
    -------
    list of str

    Examples
    --------
    >>> write_captions([1, 0, 0, 0, 0, 84, 0, 0, 0, 7], 2, seed=3)
    ['...', '...']
    """
    rng = Random(seed)
    background, things = read_scene(scene)
    return [_caption(background, things, rng) for _ in range(n_captions)]


def write_searches(scene: npt.ArrayLike, n_searches: int = 5, *, seed: int = 0) -> list[str]:
    """Write short searches for a scene, as they are typed into a search box.

    Parameters
    ----------
    scene : array, shape (10,), uint8
    n_searches : int
    seed : int

    Returns
    -------
    list of str

    Examples
    --------
    >>> write_searches([1, 0, 0, 0, 0, 84, 0, 0, 0, 7], 2, seed=3)
    ['...', '...']
    """
    rng = Random(seed)
    background, things = read_scene(scene)
    return [_search(background, things, rng) for _ in range(n_searches)]


# --- the grammar of captions ---------------------------------------------------------------------


def _caption(background: str, things: Sequence[Thing], rng: Random) -> str:
    n_named = min(len(things), rng.choices((1, 2, 3), (0.3, 0.5, 0.2))[0])
    named = rng.sample(list(things), n_named)
    if n_named == 1:
        text = _one(named[0], rng)
    elif n_named == 2:
        text = _two(named[0], named[1], rng)
    else:
        text = _three(named, rng)
    if rng.random() < 0.2:
        text += f" {rng.choice(_BACKGROUNDS[background])}"
    return text


def _one(thing: Thing, rng: Random) -> str:
    name, place = _name(thing, rng, color=0.95, size=0.6), _place(thing, rng)
    forms = (
        f"{name} {place}",
        f"{name} {place}",
        f"there is {name} {place}",
        f"{place} {name}",
        f"a picture with {name} {place}",
        f"{name}",
    )
    return rng.choice(forms)


def _two(first: Thing, second: Thing, rng: Random) -> str:
    one, other = (_name(thing, rng, color=0.9, size=0.35) for thing in (first, second))
    relation, back = _relation(first, second, rng), _relation(second, first, rng)
    forms = (
        f"{one} {relation} {other}",
        f"{one} {relation} {other}",
        f"there is {one} {relation} {other}",
        f"{one} with {other} {back} it",
        f"{one} {_place(first, rng)} and {other} {_place(second, rng)}",
        f"{one} {_place(first, rng)} and {other}",
        f"{one} and {other}",
    )
    return rng.choice(forms)


def _three(named: Sequence[Thing], rng: Random) -> str:
    between = [thing for thing in named if _is_between(thing, named)]
    if between and rng.random() < 0.6:
        middle = between[0]
        named = [middle, *(thing for thing in named if thing != middle)]
        one, two, three = (_name(thing, rng, color=0.8, size=0.2) for thing in named)
        return f"{one} between {two} and {three}"
    one, two, three = (_name(thing, rng, color=0.8, size=0.2) for thing in named)
    forms = (
        f"{one}, {two} and {three}",
        f"a picture of {one}, {two} and {three}",
        f"{one} {_relation(named[0], named[1], rng)} {two} and {three} {_place(named[2], rng)}",
        f"{one} {_relation(named[0], named[1], rng)} {two}, {_also(named[2], three, rng)}",
    )
    return rng.choice(forms)


def _also(thing: Thing, name: str, rng: Random) -> str:
    return rng.choice((f"and {name}", f"and {name} {_place(thing, rng)}"))


def _name(thing: Thing, rng: Random, *, color: float, size: float) -> str:
    words = []
    if rng.random() < size:
        words.append(rng.choice(_SIZES[thing.size]))
    if rng.random() < color:
        words.append(thing.color)
    words.append(rng.choice(_NOUNS.get(thing.shape, (thing.shape,))))
    if rng.random() < 0.1:
        return " ".join(["the", *words])
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def _place(thing: Thing, rng: Random) -> str:
    if thing.cell in _CORNERS:
        return rng.choice(_CORNERS[thing.cell])
    row, column = divmod(thing.cell, 3)
    return rng.choice(_ROWS[row] or _COLUMNS[column])


def _relation(first: Thing, second: Thing, rng: Random) -> str:
    """Return the position of the first object relative to the second."""
    (row, column), (other_row, other_column) = divmod(first.cell, 3), divmod(second.cell, 3)
    words: list[str] = []
    if row != other_row:
        words += ["above", "over"] if row < other_row else ["below", "under"]
    if column != other_column:
        words += ["left of", "to the left of"] if column < other_column else []
        words += ["right of", "to the right of"] if column > other_column else []
    if abs(row - other_row) + abs(column - other_column) == 1:
        words += ["next to", "beside"]
    return rng.choice(words)


def _is_between(thing: Thing, named: Iterable[Thing]) -> bool:
    first, second = (other for other in named if other != thing)
    places = [divmod(other.cell, 3) for other in (first, thing, second)]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(places)]
    return steps[0] == steps[1]


# --- the grammar of searches ---------------------------------------------------------------------


def _search(background: str, things: Sequence[Thing], rng: Random) -> str:
    parts = []
    for thing in rng.sample(list(things), rng.choice((1, 2, 2))):
        words = [rng.choice(_NOUNS.get(thing.shape, (thing.shape,))), thing.color]
        if rng.random() < 0.5:
            words.insert(rng.choice((1, 2)), rng.choice(_SIZES[thing.size]))
        parts.append(" ".join(words))
    if rng.random() < 0.3:
        parts.append(f"{background} background")
    return rng.choice((", ", " ")).join(parts)
