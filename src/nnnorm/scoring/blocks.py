"""Scores in blocks: products of embeddings, or a ready matrix.

`Products` and `Matrix` are two forms of one thing, `Scores`: a matrix that is read a block at a
time and never held whole. The reductions of these blocks are in `topk.py`.
"""

import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings, ScoreMatrix, check_same_dim

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

DEFAULT_MEMORY_BUDGET = 512 * 2**20


class Scores(Protocol):
    """A matrix of scores that is read in blocks."""

    shape: tuple[int, int]
    row_bytes: int
    column_bytes: int

    def strip(self, start: int, stop: int) -> "Strip":
        """Prepare rows ``start:stop``; the function returned reads some columns of them."""

    def some_rows(self, indices: IntArray) -> "Scores":
        """Return the scores of some rows only."""

    def transposed(self) -> "Scores":
        """Return the same scores with rows and columns exchanged."""

    def center(self) -> FloatArray:
        """Return what `centred` subtracts so that every column has mean 0."""

    def centred(self, center: FloatArray) -> "Scores":
        """Return the scores after subtracting a center from the rows."""


Strip: TypeAlias = Callable[[int, int, FloatArray], FloatArray]


class _Columns:
    """The columns of a product, widened to float32 once if a quarter of the budget holds them."""

    def __init__(self, columns: Embeddings, memory_budget: int) -> None:
        self.columns, self.memory_budget = columns, memory_budget
        self.fits = 4 * len(columns) * columns.dim <= memory_budget // 4
        self._widened: FloatArray | None = None
        self._lock = threading.Lock()

    def read(self, first: int, last: int) -> FloatArray:
        if self.columns.in_memory or not self.fits:
            return self.columns.rows(first, last)
        with self._lock:  # the first thread widens, the others wait for it
            if self._widened is None:
                self._widened = self.columns.rows(0, len(self.columns))
        return self._widened[first:last]


class Products:
    """Scores ``rows · columnsᵀ − offset``, block by block.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    columns : Embeddings, shape (n_columns, dim)
    offset : ndarray, shape (n_columns,), optional
        Subtracted from every row: a bias.
    memory_budget : int
        Columns that are not float32 in memory are kept widened if they take at most a quarter.
    """

    def __init__(
        self,
        rows: Embeddings,
        columns: Embeddings,
        *,
        offset: FloatArray | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        check_same_dim(rows, columns)
        self._set(rows, _Columns(columns, memory_budget), offset)

    def _set(self, rows: Embeddings, held: _Columns, offset: FloatArray | None) -> None:
        self.rows, self.columns, self.offset, self._held = rows, held.columns, offset, held
        self.shape = len(rows), len(held.columns)
        # Reading a block that is not in memory allocates the stored piece and the float32 one.
        self.row_bytes = 0 if rows.in_memory else 8 * rows.dim
        self.column_bytes = 0 if held.columns.in_memory or held.fits else 8 * rows.dim

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop`` once; the function multiplies them by some columns."""
        block = self.rows.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> FloatArray:
            np.matmul(block, self._held.read(first, last).T, out=out)
            if self.offset is not None:
                out -= self.offset[first:last]
            return out

        return read

    def some_rows(self, indices: IntArray) -> "Products":
        """Return the scores of some rows only, without the offset; columns are not read again."""
        some = object.__new__(Products)
        some._set(self.rows.subset(indices), self._held, None)
        return some

    def transposed(self) -> "Products":
        """Return the products with rows and columns exchanged, without the offset."""
        return Products(self.columns, self.rows, memory_budget=self._held.memory_budget)

    def center(self) -> FloatArray:
        """Return the mean of the rows, shape ``(dim,)``."""
        return self.rows.mean()

    def centred(self, center: FloatArray) -> "Products":
        """Return the products of the rows less `center`; columns are not read again."""
        some = object.__new__(Products)
        some._set(self.rows.centred(center), self._held, self.offset)
        return some


class Matrix:
    """Ready scores less an offset per column, from any scorer: shape ``(n_rows, n_columns)``."""

    def __init__(
        self,
        scores: ScoreMatrix,
        *,
        is_transposed: bool = False,
        offset: FloatArray | None = None,
    ) -> None:
        self._scores, self.offset = scores, offset
        self._is_transposed = is_transposed
        self.shape = scores.shape[::-1] if is_transposed else scores.shape
        self.row_bytes = 4 * self.shape[1]
        self.column_bytes = 0

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop`` once; the function copies some columns of them."""
        if self._is_transposed:
            rows = np.empty((stop - start, self.shape[1]), dtype=np.float32)
            for first_row, block in self._scores.blocks():
                rows[:, first_row : first_row + len(block)] = block[:, start:stop].T
        else:
            rows = self._scores.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> FloatArray:
            out[...] = rows[:, first:last]
            if self.offset is not None:
                out -= self.offset[first:last]
            return out

        return read

    def some_rows(self, indices: IntArray) -> "Matrix":
        """Return the scores of some rows only."""
        some = ScoreMatrix([self._scores.take(indices)], role=self._scores.name)
        return Matrix(some, offset=self.offset)

    def transposed(self) -> "Matrix":
        """Return the ready scores with rows and columns exchanged, without a copy."""
        return Matrix(self._scores, is_transposed=not self._is_transposed)

    def center(self) -> FloatArray:
        """Return the mean of every column, shape ``(n_columns,)``."""
        total = np.zeros(self.shape[1])
        for _, block in self._scores.blocks():
            total += block.sum(axis=0, dtype=np.float64)
        return np.asarray(total / self.shape[0], dtype=np.float32)

    def centred(self, center: FloatArray) -> "Matrix":
        """Return the scores with `center` subtracted from every row."""
        return Matrix(self._scores, offset=center)
