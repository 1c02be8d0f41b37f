"""Contact sheets: rows of pictures with a line of text, and frames round some, with numpy alone.

The letters are a 5×7 bitmap font of lower case, digits and a few marks: enough to say what a row
shows where no font library is installed.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError

__all__ = ["GREEN", "GREY", "ORANGE", "Row", "draw_sheet", "draw_text"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Colour: TypeAlias = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (34, 34, 34)
GREY: Colour = (110, 110, 110)
GREEN: Colour = (0, 158, 115)
ORANGE: Colour = (213, 94, 0)

# Seven rows of five bits each, from the top, the leftmost pixel first.
_GLYPHS = {
    "a": "00000e010f110f",
    "b": "1010161911111e",
    "c": "00000e1010110e",
    "d": "01010d1311110f",
    "e": "00000e111f100e",
    "f": "0609081c080808",
    "g": "000f11110f010e",
    "h": "10101619111111",
    "i": "04000c0404040e",
    "j": "0200060202120c",
    "k": "10101214181412",
    "l": "0c04040404040e",
    "m": "00001a15151111",
    "n": "00001619111111",
    "o": "00000e1111110e",
    "p": "00001e111e1010",
    "q": "00000d130f0101",
    "r": "00001619101010",
    "s": "00000e100e011e",
    "t": "08081c08080906",
    "u": "0000111111130d",
    "v": "00001111110a04",
    "w": "0000111115150a",
    "x": "0000110a040a11",
    "y": "000011110f010e",
    "z": "00001f0204081f",
    "0": "0e11131519110e",
    "1": "040c040404040e",
    "2": "0e11010204081f",
    "3": "1f02040201110e",
    "4": "02060a121f0202",
    "5": "1f101e0101110e",
    "6": "0608101e11110e",
    "7": "1f010204080808",
    "8": "0e11110e11110e",
    "9": "0e11110f01020c",
    ",": "00000000060408",
    ".": "00000000000c0c",
    ":": "000c0c000c0c00",
    "-": "0000001f000000",
    "%": "18190204081303",
    " ": "00000000000000",
}
_GAP = 10
_FRAME = 4
_LETTER = 2  # pixels per dot of the font


class Row(NamedTuple):
    """One row of a sheet: a heading, or pictures with a label.

    Attributes
    ----------
    label : str
        Before the pictures; a row without pictures is a heading of this text.
    pictures : sequence of ndarray, shape (resolution, resolution, 3)
    frames : sequence of colour or None
        One per picture.
    """

    label: str
    pictures: Sequence[Bytes] = ()
    frames: Sequence[Colour | None] = ()


def draw_text(text: str, *, scale: int = _LETTER, colour: Colour = INK) -> Bytes:
    """Write a line, ``(7·scale, 6·scale·len(text), 3)``; a letter the font lacks is a blank.

    Examples
    --------
    >>> draw_text("a red star").shape
    (14, 120, 3)
    """
    if not text:
        raise NNNormError("text is empty; give at least one letter")
    rows = [bytes.fromhex(_GLYPHS.get(letter, _GLYPHS[" "])) for letter in text.lower()]
    bits = np.unpackbits(np.array([list(row) for row in rows], dtype=np.uint8)[:, :, None], axis=2)
    dots = np.pad(bits[:, :, 3:], ((0, 0), (0, 0), (0, 1))).transpose(1, 0, 2).reshape(7, -1)
    dots = np.kron(dots, np.ones((scale, scale), dtype=np.uint8))
    ink, paper = (np.array(tone, dtype=np.uint8) for tone in (colour, PAPER))
    return np.where(dots[:, :, None] == 1, ink, paper)


def draw_sheet(rows: Sequence[Row]) -> Bytes:
    """Lay out rows of pictures and headings, one below the other.

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
    labels = [row.label for row in rows if len(row.pictures)]
    indent = 6 * _LETTER * max((len(label) for label in labels), default=0) + _GAP
    strips = [_draw_row(row, indent) for row in rows]
    width = max(strip.shape[1] for strip in strips) + 2 * _GAP
    whole = []
    for strip in strips:
        right = width - strip.shape[1] - _GAP
        whole.append(np.pad(strip, ((_GAP, 0), (_GAP, right), (0, 0)), constant_values=PAPER[0]))
    return np.pad(np.concatenate(whole), ((0, _GAP), (0, 0), (0, 0)), constant_values=PAPER[0])


def _draw_row(row: Row, indent: int) -> Bytes:
    if not len(row.pictures):
        # Some air above a heading, so that it stands with what follows.
        return np.pad(draw_text(row.label), ((_GAP, 0), (0, 0), (0, 0)), constant_values=PAPER[0])
    framed = []
    for picture, frame in zip(row.pictures, row.frames or [None] * len(row.pictures), strict=True):
        height, width = picture.shape[:2]
        tile = np.empty((height + 2 * _FRAME, width + 2 * _FRAME, 3), dtype=np.uint8)
        tile[:] = PAPER if frame is None else frame
        tile[_FRAME:-_FRAME, _FRAME:-_FRAME] = picture
        framed.append(np.pad(tile, ((0, 0), (0, _GAP), (0, 0)), constant_values=PAPER[0]))
    strip = np.concatenate(framed, axis=1)
    margin = np.full((strip.shape[0], indent, 3), PAPER[0], dtype=np.uint8)
    label = draw_text(row.label, colour=GREY)
    top = (len(margin) - len(label)) // 2
    margin[top : top + len(label), : label.shape[1]] = label
    return np.concatenate([margin, strip], axis=1)
