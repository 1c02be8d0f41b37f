"""Captions of scenes by a small grammar, and short searches by another.

`write_captions` says in a sentence what one to three of a scene's things are and where they stand:
"a small red star above a blue ring". As people do, it leaves things out, has several words for one
thing, and never says all. `write_searches` is what people type into a search box: no articles, the
noun first, no order: "star red small, ring blue". Both use the same words, so one text tower reads
both; as references for the first, the second are out of distribution.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random

import numpy.typing as npt

from nnnorm.datasets.scenes import Thing, read_scene

__all__ = ["split_words", "word_pairs", "write_captions", "write_searches"]

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
# Words that carry little of their own; pairs reach across them.
_LIGHT = frozenset(["a", "an", "the", "is", "of", "to", "at", "in", "on", "there", "with", "it"])


def write_captions(scene: npt.ArrayLike, n_captions: int = 5, *, seed: int = 0) -> list[str]:
    """Write captions of a scene: one to three of its things, and where they stand.

    Parameters
    ----------
    scene : array, shape (10,), uint8
        From `make_scenes`.
    n_captions : int
    seed : int
        The same seed writes the same captions.

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
    """Write short searches for a scene, as typed into a search box.

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


def split_words(text: str) -> list[str]:
    """Cut a text into its words: letters, in lower case.

    Examples
    --------
    >>> split_words("A red star, above the ring.")
    ['a', 'red', 'star', 'above', 'the', 'ring']
    """
    return re.findall(r"[^\W_]+", text.lower())


def word_pairs(words: Sequence[str]) -> list[str]:
    """Neighbouring words, across articles and other light words.

    Examples
    --------
    >>> word_pairs(["a", "star", "above", "a", "ring"])
    ['star above', 'above ring']
    """
    heavy = [word for word in words if word not in _LIGHT]
    return [f"{first} {second}" for first, second in pairwise(heavy)]


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
    name, place = _name(thing, rng, colour=0.95, size=0.6), _place(thing, rng)
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
    one, other = (_name(thing, rng, colour=0.9, size=0.35) for thing in (first, second))
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
        one, two, three = (_name(thing, rng, colour=0.8, size=0.2) for thing in named)
        return f"{one} between {two} and {three}"
    one, two, three = (_name(thing, rng, colour=0.8, size=0.2) for thing in named)
    forms = (
        f"{one}, {two} and {three}",
        f"a picture of {one}, {two} and {three}",
        f"{one} {_relation(named[0], named[1], rng)} {two} and {three} {_place(named[2], rng)}",
        f"{one} {_relation(named[0], named[1], rng)} {two}, {_also(named[2], three, rng)}",
    )
    return rng.choice(forms)


def _also(thing: Thing, name: str, rng: Random) -> str:
    return rng.choice((f"and {name}", f"and {name} {_place(thing, rng)}"))


def _name(thing: Thing, rng: Random, *, colour: float, size: float) -> str:
    words = []
    if rng.random() < size:
        words.append(rng.choice(_SIZES[thing.size]))
    if rng.random() < colour:
        words.append(thing.colour)
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
    """Where the first stands, seen from the second."""
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
        words = [rng.choice(_NOUNS.get(thing.shape, (thing.shape,))), thing.colour]
        if rng.random() < 0.5:
            words.insert(rng.choice((1, 2)), rng.choice(_SIZES[thing.size]))
        parts.append(" ".join(words))
    if rng.random() < 0.3:
        parts.append(f"{background} background")
    return rng.choice((", ", " ")).join(parts)
