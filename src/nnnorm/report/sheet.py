"""Contact sheets: rows of pictures or captions with a label, drawn with numpy alone.

The 5×9 bitmap font has lower case letters, digits and a few marks, so that rows can be labelled
without a font library. `draw_hits` shows what queries find, before and after a correction;
`read_tile` reads a picture from a file, with Pillow (`pip install 'nnnorm[images]'`).
"""

import os
import unicodedata
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require

Bytes: TypeAlias = npt.NDArray[np.uint8]
Colour: TypeAlias = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (34, 34, 34)
GREY: Colour = (110, 110, 110)
HAIRLINE: Colour = (214, 214, 214)
GREEN: Colour = (0, 158, 115)
ORANGE: Colour = (213, 94, 0)
BLUE: Colour = (0, 114, 178)

# Each letter with its nine rows of five bits, leftmost pixel first; the last two rows are below the
# baseline.
_FONT = """
    a00000e010f110f0000 b1010161911111e0000 c00000e1010110e0000 d01010d1311110f0000
    e00000e111f100e0000 f0609081c0808080000 g00000d1311130d010e h101016191111110000
    i04000c0404040e0000 j02000602020202120c k101012141814120000 l0c04040404040e0000
    m00001a151511110000 n000016191111110000 o00000e1111110e0000 p0000161911111e1010
    q00000d1311110f0101 r000016191010100000 s00000e100e011e0000 t08081c080809060000
    u0000111111130d0000 v00001111110a040000 w0000111115150a0000 x0000110a040a110000
    y0000111111130d010e z00001f0204081f0000 00e11131519110e0000 1040c040404040e0000
    20e11010204081f0000 31f02040201110e0000 402060a121f02020000 51f101e0101110e0000
    60608101e11110e0000 71f0102040808080000 80e11110e11110e0000 90e11110f01020c0000
    ,000000000006060408 .00000000000c0c0000 :000c0c000c0c000000 -0000001f0000000000
    %181902040813030000 _000000000000001f00 '040400000000000000 (020404040404020000
    )080404040404080000 /010102040810100000 =00001f001f00000000 +0004041f0404000000
    ?0e1101020400040000 !040404040400040000 #0a0a1f0a1f0a0a0000
"""
_GLYPHS = {glyph[0]: bytes.fromhex(glyph[1:]) for glyph in _FONT.split()}
_GAP = 10
_FRAME = 4
_LETTER = 2  # pixels per dot of the font
_LINE = 96  # letters of a caption that are shown
TILE = 96  # pixels of a picture on a sheet


class Row(NamedTuple):
    """One row of a sheet: a heading, or pictures (or lines of text) with a label.

    Attributes
    ----------
    label : str
        Text before the pictures; a row with nothing else is a heading with this text.
    pictures : sequence of ndarray, shape (resolution, resolution, 3)
    frames : sequence of colour or None
        One per picture, or the colour of each line.
    lines : sequence of str
        Captions in the place of pictures.
    """

    label: str
    pictures: Sequence[Bytes] = ()
    frames: Sequence[Colour | None] = ()
    lines: Sequence[str] = ()


class Hits(NamedTuple):
    """A query and the first items that it finds.

    Attributes
    ----------
    query : str
    before : sequence of int
        Items without a correction.
    after : sequence of int or None
        Items with it.
    right : collection of int
        The items that are right, where that is known.
    """

    query: str
    before: Sequence[int]
    after: Sequence[int] | None = None
    right: Collection[int] = ()


def draw_text(text: str, *, scale: int = _LETTER, colour: Colour = INK) -> Bytes:
    """Draw a line of text, shape ``(9·scale, 6·scale·len(text), 3)``; unknown letters are blanks.

    Examples
    --------
    >>> draw_text("a red star").shape
    (18, 120, 3)
    """
    if not text:
        raise NNNormError("text is empty; give at least one letter")
    # An accent is left out, and its letter stays.
    plain = [c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c)]
    rows = [_GLYPHS.get(letter, bytes(9)) for letter in plain or " "]
    bits = np.unpackbits(np.array([list(row) for row in rows], dtype=np.uint8)[:, :, None], axis=2)
    dots = np.pad(bits[:, :, 3:], ((0, 0), (0, 0), (0, 1))).transpose(1, 0, 2).reshape(9, -1)
    dots = np.kron(dots, np.ones((scale, scale), dtype=np.uint8))
    ink, paper = (np.array(tone, dtype=np.uint8) for tone in (colour, PAPER))
    return np.where(dots[:, :, None] == 1, ink, paper)


def draw_sheet(rows: Sequence[Row]) -> Bytes:
    """Draw rows of pictures and headings, one below the other.

    Parameters
    ----------
    rows : sequence of Row

    Returns
    -------
    ndarray, shape (height, width, 3), uint8

    Examples
    --------
    >>> picture = np.zeros((24, 24, 3), dtype=np.uint8)
    >>> draw_sheet([Row("two of a kind"), Row("all", [picture, picture], [GREEN, None])]).ndim
    3
    """
    if not rows:
        raise NNNormError("a sheet needs at least one row; got none")
    labels = [row.label for row in rows if len(row.pictures) or len(row.lines)]
    indent = 6 * _LETTER * max((len(label) for label in labels), default=0) + _GAP
    strips = [_draw_row(row, indent) for row in rows]
    width = max(strip.shape[1] for strip in strips) + 2 * _GAP
    whole = []
    for strip in strips:
        right = width - strip.shape[1] - _GAP
        whole.append(np.pad(strip, ((_GAP, 0), (_GAP, right), (0, 0)), constant_values=PAPER[0]))
    return np.pad(np.concatenate(whole), ((0, _GAP), (0, 0), (0, 0)), constant_values=PAPER[0])


def draw_hits(
    found: Sequence[Hits],
    show: Callable[[int], Bytes | str],
    frame: Callable[[Hits, int], Colour | None],
    legend: str,
) -> Bytes:
    """Draw what queries find: the query, and its first items before and after a correction.

    Parameters
    ----------
    found : sequence of Hits
    show : callable
        Returns the picture of an item, ``(resolution, resolution, 3)``, or its caption.
    frame : callable
        Returns the colour of the frame, or of the caption, of an item that a query found.
    legend : str
        The meaning of the colours.

    Returns
    -------
    ndarray, shape (height, width, 3), uint8

    Examples
    --------
    >>> hits = [Hits("a red star", [3, 1], [1, 3], right=[1])]
    >>> sheet = draw_hits(hits, lambda item: f"picture {item}", frame_right, "green: right")
    >>> sheet.shape[2]
    3
    """
    rows = []
    for hits in found:
        rows.append(Row(_shorten(hits.query)))
        both = [("" if hits.after is None else "before", hits.before), ("after", hits.after or ())]
        for label, items in both:
            if not items:
                continue
            tiles = [show(item) for item in items]
            frames = [frame(hits, item) for item in items]
            pictures = [tile for tile in tiles if not isinstance(tile, str)]
            lines = [
                _shorten(f"{place} {tile}")
                for place, tile in enumerate(tiles, 1)
                if isinstance(tile, str)
            ]
            rows.append(Row(label, pictures, frames, lines))
    return draw_sheet([*rows, Row(legend)] if legend else rows)


def frame_right(hits: Hits, item: int) -> Colour | None:
    """Return green for a right item, and no frame for any other.

    Examples
    --------
    >>> frame_right(Hits("a star", [1, 2], right=[2]), 1) is None
    True
    """
    return GREEN if item in hits.right else None


def read_tile(path: str | os.PathLike[str], pixels: int = TILE) -> Bytes:
    """Read a picture from a file, scaled to fit a square, with white margins.

    Examples
    --------
    >>> read_tile("nowhere.png")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: the picture nowhere.png can't be read (there is no such file); ...
    """
    pillow = require("PIL.Image", "images")
    try:
        if not Path(path).is_file():
            raise NNNormError("there is no such file")
        with warnings.catch_warnings():
            # Pillow refuses pictures of a size that is an attack, and warns of half of it.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            with pillow.open(path) as picture:
                picture.draft("RGB", (pixels, pixels))
                whole = picture.convert("RGB")
                scale = pixels / max(whole.size)
                small = whole.resize([max(1, round(scale * side)) for side in whole.size])
    except Exception as error:  # each of Pillow's readers raises its own kind of error
        raise NNNormError(
            f"the picture {path} can't be read ({first_line(error)}); give the pictures of these "
            "items, in their order"
        ) from error
    tile = np.full((pixels, pixels, 3), PAPER[0], dtype=np.uint8)
    top, left = (pixels - small.height) // 2, (pixels - small.width) // 2
    tile[top : top + small.height, left : left + small.width] = np.asarray(small)
    return tile


def _shorten(text: str) -> str:
    words = " ".join(text.split()) or " "
    return words if len(words) <= _LINE else f"{words[: _LINE - 3]}..."


def _draw_row(row: Row, indent: int) -> Bytes:
    if len(row.lines):
        return _draw_lines(row, indent)
    if not len(row.pictures):
        # Space above a heading attaches it to the rows that follow.
        return np.pad(draw_text(row.label), ((_GAP, 0), (0, 0), (0, 0)), constant_values=PAPER[0])
    framed = []
    for picture, frame in zip(row.pictures, row.frames or [None] * len(row.pictures), strict=True):
        height, width = picture.shape[:2]
        tile = np.empty((height + 2 * _FRAME, width + 2 * _FRAME, 3), dtype=np.uint8)
        tile[:] = PAPER if frame is None else frame
        if frame is None:  # a hairline marks the edge of a white picture
            tile[_FRAME - 1 : 1 - _FRAME, _FRAME - 1 : 1 - _FRAME] = HAIRLINE
        tile[_FRAME:-_FRAME, _FRAME:-_FRAME] = picture
        framed.append(np.pad(tile, ((0, 0), (0, _GAP), (0, 0)), constant_values=PAPER[0]))
    strip = np.concatenate(framed, axis=1)
    return _add_label(strip, row.label, indent, (len(strip) - 9 * _LETTER) // 2)


def _draw_lines(row: Row, indent: int) -> Bytes:
    """Captions one below the other, in the colours of their frames."""
    frames = row.frames or [None] * len(row.lines)
    drawn = [draw_text(t, colour=c or INK) for t, c in zip(row.lines, frames, strict=True)]
    width = max(line.shape[1] for line in drawn)
    padded = []
    for line in drawn:
        sides = ((0, 4), (0, width - line.shape[1]), (0, 0))
        padded.append(np.pad(line, sides, constant_values=PAPER[0]))
    return _add_label(np.concatenate(padded), row.label, indent, 0)


def _add_label(strip: Bytes, text: str, indent: int, top: int) -> Bytes:
    margin = np.full((strip.shape[0], indent, 3), PAPER[0], dtype=np.uint8)
    if text:
        label = draw_text(text, colour=GREY)
        margin[top : top + len(label), : label.shape[1]] = label
    return np.concatenate([margin, strip], axis=1)
