"""Heads as 8-bit whole numbers: the same bounds, from a product of int8.

A head is rounded to whole steps: every item has a step of its own, and so has every block of
references, which holds those of about the same size. What rounding took from either is known, so
Cauchy and Schwarz bound what it does to a score; the length that is left beyond the head is rounded
up, and rides along in the product.

    head · head′  ≤  step·step′·(codes · codes′)  +  lost·|x′|  +  reach·lost′

The last two terms are at most those of the block's worst reference. So an item has one floor per
block, a whole number, and a look is one comparison of whole numbers.
"""

import threading
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.heads import N_BOUNDS, Reached, squares
from nnnorm.int8 import Int8

__all__ = ["CodedHeads", "coded_width", "coded_widths", "mixed", "widest_coded"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Floats: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int8]

# Coordinates that hold the length that is left, and the steps of one unit of theirs.
_N_LEFT, _UNIT = 4, 2
# Rows are filled up to whole lots of this many numbers, for which processors have instructions.
_LOT = 64
_LARGEST = 127
_SMALLEST_STEP = 1e-35
# Beside a code: its column's number, and what who multiplies adds.
_MORE_BYTES = 28


def coded_width(width: int) -> int:
    """Numbers in a code of heads of this width.

    Examples
    --------
    >>> [coded_width(width) for width in (60, 61, 512)]
    [64, 128, 576]
    """
    return -(-(width + _N_LEFT) // _LOT) * _LOT


def widest_coded(dim: int, row_bytes: int) -> int:
    """The widest heads whose codes fit into so many bytes a row; 0 where none do.

    Examples
    --------
    >>> [widest_coded(512, row_bytes) for row_bytes in (1000, 500, 70)]
    [512, 444, 0]
    """
    return max(0, min(dim, (row_bytes - _MORE_BYTES) // _LOT * _LOT - _N_LEFT))


def coded_widths(widest: int) -> list[int]:
    """Widths of heads worth trying, rising: those that waste nothing, and about the widest.

    Examples
    --------
    >>> coded_widths(512), coded_widths(100)
    ([60, 124, 252, 380, 508], [60, 100])
    """
    n_lots = (widest + _N_LEFT) // _LOT
    widths = {_LOT * n - _N_LEFT for n in np.linspace(1, n_lots, 5).astype(int).tolist() if n_lots}
    if widest > max(widths, default=0) + _N_LEFT:
        widths.add(widest)
    return sorted(widths)


def mixed(directions: FloatArray) -> FloatArray:
    """Directions of the same span, along which rows are about equally long: one step suits all.

    Parameters
    ----------
    directions : ndarray, shape (dim, width)

    Returns
    -------
    ndarray, shape (dim, width), float32

    Examples
    --------
    >>> turned = mixed(np.eye(3, dtype=np.float32)[:, :2])
    >>> np.allclose(turned.T @ turned, np.eye(2), atol=1e-6), turned.shape
    (True, (3, 2))
    """
    width = directions.shape[1]
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    return np.ascontiguousarray(directions @ turn, dtype=np.float32)


class CodedHeads:
    """Bounding heads of references, coded; `heads.py` has `Heads`, as they are.

    Parameters
    ----------
    n_rows : int
        Of all heads.
    int8 : Int8
    block : int
        References that are looked through at a time.

    Examples
    --------
    >>> from nnnorm.heads import bounding_heads
    >>> from nnnorm.int8 import int8_by
    >>> rows = np.array([[0.8, 0.6], [-1.0, 0.0]], dtype=np.float32)
    >>> coded = CodedHeads(2, int8_by("numkong"), block=2)
    >>> coded.fill(0, bounding_heads(rows, np.eye(2, dtype=np.float32), is_item=False))
    >>> item = bounding_heads(rows[:1], np.eye(2, dtype=np.float32), is_item=True)
    >>> for columns, reached in coded.reached(item, np.array([0.9]), threading.Event()):
    ...     print(columns[reached[0]].tolist())
    [0]
    """

    def __init__(self, n_rows: int, int8: Int8, block: int) -> None:
        self._int8, self._block, self._n_rows = int8, block, n_rows
        n_blocks = -(-n_rows // block)
        self._packed: list[Any] = n_blocks * [None]
        self._columns: list[npt.NDArray[np.int64]] = n_blocks * [np.empty(0, dtype=np.int64)]
        self._steps, self._lost, self._longest = np.zeros((3, n_blocks))

    @property
    def nbytes(self) -> int:
        """What they hold."""
        kept = (*self._packed, *self._columns)
        return sum(int(some.nbytes) for some in kept if some is not None)

    def fill(self, start: int, heads: FloatArray) -> None:
        """Take in heads of references; all but the last call bring whole blocks."""
        steps = _steps(heads)
        order = np.argsort(steps)
        for first in range(0, len(heads), self._block):
            number, rows = (start + first) // self._block, order[first : first + self._block]
            self._steps[number] = steps[rows[-1]]
            codes, lost, _ = _code(heads[rows], np.full(len(rows), self._steps[number]))
            self._packed[number] = self._int8.pack(codes)
            self._columns[number] = start + rows
            self._lost[number] = lost.max()
            self._longest[number] = heads[rows, -1].max()

    def products(self, heads: FloatArray) -> FloatArray:
        """Multiply heads of items with all of them, about, in no order: ``(n_items, n_rows)``."""
        steps = _steps(heads)
        codes, _, _ = _code(heads, steps)
        products = np.empty((len(heads), self._n_rows), dtype=np.float32)
        first = 0
        for step, packed in zip(self._steps, self._packed, strict=True):
            block = self._int8.multiply(codes, packed)
            last = first + block.shape[1]
            per_row = (steps * step)[:, None]
            np.multiply(
                block, per_row.astype(np.float32), out=products[:, first:last], dtype=np.float32
            )
            first = last
        return products

    def reached(self, heads: FloatArray, floors: FloatArray, stop: threading.Event) -> Reached:
        """Yield which references may reach the floors of items.

        Parameters
        ----------
        heads : ndarray, shape (n_items, width + 2)
        floors : ndarray, shape (n_items,)
        stop : Event
            Set when nobody wants to know any more.

        Yields
        ------
        columns : ndarray, shape (n,)
        reached : ndarray, shape (n_items, n), bool
        """
        steps = _steps(heads)
        codes, lost, reach = _code(heads, steps)
        allowed = np.outer(lost + heads[:, -1], self._longest) + np.outer(reach, self._lost)
        least = (floors[:, None] - allowed) / np.outer(steps, self._steps)
        least = np.ceil(least - 1e-6 * np.abs(least)).clip(-(2**31), 2**31 - 1)
        thresholds = least.astype(np.int32)
        for number, packed in enumerate(self._packed):
            if stop.is_set():
                return
            products = self._int8.multiply(codes, packed)
            yield self._columns[number], products >= thresholds[:, number, None]


def _steps(heads: FloatArray) -> Floats:
    """The smallest steps with which heads can be coded."""
    largest = np.abs(heads[:, :-N_BOUNDS]).max(axis=1).astype(np.float64) / _LARGEST
    left = heads[:, -N_BOUNDS].astype(np.float64) / (_UNIT * (_LARGEST - 2))
    return np.asarray(np.maximum(np.maximum(largest, left), _SMALLEST_STEP))


def _code(heads: FloatArray, steps: Floats) -> tuple[Codes, Floats, Floats]:
    """Codes, what they lost of the heads, and how long what is left of the heads may be."""
    head, width = heads[:, :-N_BOUNDS], heads.shape[1] - N_BOUNDS
    codes = np.zeros((len(heads), coded_width(width)), dtype=np.int8)
    per_row = steps.astype(np.float32)[:, None]
    whole = np.rint(head / per_row).clip(-_LARGEST, _LARGEST)
    units = np.ceil(heads[:, -N_BOUNDS] / (_UNIT * steps) * (1 + 1e-6))
    codes[:, :width], codes[:, width : width + _N_LEFT] = whole, units[:, None]
    # Whatever is rounded in the following is far less than a ten-thousandth, or a millionth.
    lengths = np.sqrt(squares(head))
    lost = 1.0001 * np.sqrt(squares(head - whole * per_row)) + 1e-6 * lengths
    return codes, lost, lengths + lost
