"""Which rows are so close that they count as one intent, and the form in which rows are compared.

Products in float32 only find candidates, and every decision is made in float64 on rows rounded to
float16, the form in which `Bank` keeps them.
"""

import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.scoring import strips_in_order

Half: TypeAlias = npt.NDArray[np.float16]
FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
# Pairs of row numbers, and their cosines.
Pairs: TypeAlias = tuple[IntArray, IntArray, DoubleArray]

# Two wordings of one query have a cosine of about 0.9 and more in CLIP-like models, and captions of
# one picture by different people about 0.7: docs/automatic-rule.md has the figures.
SAME_INTENT = 0.88

# Rows of a product that one thread computes and looks through at once: 8 MB with 8,192 leaders.
_STRIP_ROWS = 256
# Rounding of float32 products and projections stays below this; float64 decides what is closer.
_MARGIN = 1e-4
_N_PRINCIPAL = 64
# With fewer leaders, or fewer dimensions, the product itself costs less than a bound on it.
_LEAST_LEADERS, _LEAST_DIM = 512, 192
# Share of the pairs that a bound may leave before the whole product costs less.
_MOST_LEFT = 0.01


def round_rows(rows: FloatArray) -> Half:
    """Unit rows in float16: the form in which intents are compared and kept.

    Examples
    --------
    >>> round_rows(np.float32([[3.0, 4.0], [0.0, -2.0]])).tolist()
    [[0.60009765625, 0.7998046875], [0.0, -1.0]]
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64)).astype(np.float32)
    units = (rows / norms[:, None]).astype(np.float16)
    bits = units.view(np.uint16)
    bits[bits == 0x8000] = 0  # makes -0 the 0 that it equals
    return units


def as_units(rows: npt.NDArray[Any]) -> FloatArray:
    """Rows divided by their norms, in float32.

    Examples
    --------
    >>> as_units(np.float16([[3.0, 4.0], [0.0, -2.0]])).round(4).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, -1.0]]
    """
    wide = rows.astype(np.float32)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))


class Bound:
    """Which pairs can be near, from a few principal dimensions of the leaders.

    With orthonormal axes Q, h = uQ and ρ = ‖u − uQQᵀ‖, Cauchy and Schwarz give
    ``u·v ≤ [h, ρ]·[h', ρ']``. The axes decide how fast this is, never what is found.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._axes = np.empty((dim, 0), dtype=np.float32)
        self._made_for = 0
        self._projected = np.empty((0, 1), dtype=np.float32)

    @property
    def _is_useful(self) -> bool:
        return self._axes.shape[1] > 0

    def put(self, slot: int, unit: FloatArray) -> None:
        """Note a new leader."""
        if not self._is_useful:
            return
        if slot >= len(self._projected):
            wider = np.zeros((2 * slot, self._projected.shape[1]), dtype=np.float32)
            wider[: len(self._projected)] = self._projected
            self._projected = wider
        self._projected[slot] = self._project(unit[None])[0]

    def screen(self, units: FloatArray, leaders: FloatArray) -> IntArray:
        """Places of the product of rows and leaders that may be near, as flat numbers."""
        n_leaders = len(leaders)
        if n_leaders < _LEAST_LEADERS or self._dim < _LEAST_DIM:
            return find_candidates(units, leaders)
        if n_leaders >= 2 * self._made_for:
            self._make_axes(leaders)
        if not self._is_useful:
            return find_candidates(units, leaders)
        places = find_candidates(self._project(units), self._projected[:n_leaders])
        if len(places) > _MOST_LEFT * n_leaders * max(len(units), 1000):
            self._axes = self._axes[:, :0]  # until there are twice as many leaders
        return places

    def _make_axes(self, leaders: FloatArray) -> None:
        start = np.random.default_rng(0).standard_normal((self._dim, _N_PRINCIPAL))
        axes = start.astype(np.float32)
        for _ in range(2):
            axes = np.linalg.qr(leaders.T @ (leaders @ axes))[0]
        self._axes, self._made_for = axes, len(leaders)
        self._projected = self._project(leaders)

    def _project(self, units: FloatArray) -> FloatArray:
        projected = np.empty((len(units), self._axes.shape[1] + 1), dtype=np.float32)
        np.matmul(units, self._axes, out=projected[:, :-1])
        left = 1 - np.einsum("ij,ij->i", projected[:, :-1], projected[:, :-1])
        projected[:, -1] = np.sqrt(np.maximum(left, 0) + np.float32(1e-5))
        return projected


def find_candidates(first: FloatArray, second: FloatArray) -> IntArray:
    """Places of a product that are above the threshold, less the margin of rounding.

    Examples
    --------
    >>> rows = np.eye(2, dtype=np.float32)
    >>> find_candidates(rows, rows).tolist()
    [0, 3]
    """

    def look(start: int, stop: int) -> IntArray:
        scores = first[start:stop] @ second.T
        places = np.flatnonzero(scores.ravel() > SAME_INTENT - _MARGIN)
        return np.asarray(places + start * len(second))

    if len(first) <= _STRIP_ROWS:
        return look(0, len(first))
    strips = strips_in_order(look, len(first), _STRIP_ROWS, threading.Event())
    return np.concatenate([places for _, _, places in strips])


def confirm(
    rows: Half, units: FloatArray, others: Half, other_units: FloatArray, places: IntArray
) -> Pairs:
    """Pairs at these places whose cosine is above the threshold: in float32, then in float64.

    Examples
    --------
    >>> rows = round_rows(np.eye(2, dtype=np.float32))
    >>> first, second, cosines = confirm(rows, as_units(rows), rows, as_units(rows), np.arange(4))
    >>> first.tolist(), second.tolist(), cosines.tolist()
    ([0, 1], [0, 1], [1.0, 1.0])
    """
    first, second = np.divmod(places, max(1, len(others)))
    near = [np.empty(0, dtype=bool)]
    for part in _parts(len(places)):
        products = np.einsum("ij,ij->i", units[first[part]], other_units[second[part]])
        near.append(products > SAME_INTENT - _MARGIN)
    is_near = np.concatenate(near)
    first, second = first[is_near], second[is_near]
    cosines = np.empty(len(first))
    for part in _parts(len(first)):
        pair = (rows[first[part]], others[second[part]])
        a, b = (some.astype(np.float32).astype(np.float64) for some in pair)
        squares = np.einsum("ij,ij->i", a, a) * np.einsum("ij,ij->i", b, b)
        cosines[part] = np.einsum("ij,ij->i", a, b) / np.sqrt(squares)
    is_near = cosines > SAME_INTENT
    return first[is_near], second[is_near], cosines[is_near]


def _parts(n_rows: int) -> Iterator[slice]:
    return (slice(start, start + 1024) for start in range(0, n_rows, 1024))
