"""Scores in blocks: products of embeddings, or a ready matrix.

`Products` and `Matrix` both implement `Scores`: a matrix that is read a block at a time and never
held whole. `topk.py` reduces the blocks.
"""

import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.io import Embeddings, check_same_dim

__all__ = ["DEFAULT_MEMORY_BUDGET", "Done", "Matrix", "Products", "Progress", "Scores"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Called with (work done, work in all).
Progress: TypeAlias = Callable[[int, int], None]

DEFAULT_MEMORY_BUDGET = 512 * 2**20


class Done:
    """Adds up the work of all threads and reports it to `progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._lock, self._done = threading.Lock(), 0

    def add(self, n: int) -> None:
        """Add `n` to the work that is done."""
        if self._progress is None:
            return
        with self._lock:
            self._done += n
            self._progress(self._done, self._total)


class Scores(Protocol):
    """A score matrix that is read in blocks: ``shape``, and ``strip`` to read some rows."""

    shape: tuple[int, int]
    row_bytes: int
    column_bytes: int

    def strip(self, start: int, stop: int) -> "Strip":
        """Return a function that reads blocks of the rows ``start:stop``."""

    def some_rows(self, indices: IntArray) -> "Scores":
        """Give the scores of some rows only."""

    def transposed(self) -> "Scores":
        """Give the same scores with rows and columns exchanged."""


Strip: TypeAlias = Callable[[int, int, FloatArray], FloatArray]


class Products:
    """Scores ``rows · columnsᵀ − offset``, block by block.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    columns : Embeddings, shape (n_columns, dim)
    offset : ndarray, shape (n_columns,), optional
        Subtracted from every row: a bias.
    memory_budget : int
        Bytes. Columns that must be converted or normalised are held as float32 if they take at
        most a quarter.
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
        self.shape = len(rows), len(columns)
        self.rows, self.columns, self.offset = rows, columns, offset
        self._memory_budget = memory_budget
        fits = 4 * len(columns) * columns.dim <= memory_budget // 4
        self._keeps_widened = fits and not columns.in_memory
        self._widened: FloatArray | None = None
        self._lock = threading.Lock()
        # Reading a block that is not in memory makes the stored piece and the float32 one.
        self.row_bytes = 0 if rows.in_memory else 8 * rows.dim
        self.column_bytes = 0 if columns.in_memory or fits else 8 * columns.dim

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop`` once; the function multiplies them by some columns."""
        block = self.rows.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> FloatArray:
            np.matmul(block, self._columns(first, last).T, out=out)
            if self.offset is not None:
                out -= self.offset[first:last]
            return out

        return read

    def some_rows(self, indices: IntArray) -> "Products":
        """Give the scores of some rows only."""
        rows = Embeddings([self.rows.take(indices)], name=self.rows.name)
        return Products(rows, self.columns, memory_budget=self._memory_budget)

    def transposed(self) -> "Products":
        """Columns as rows; an offset belongs to columns, so it may not be there."""
        return Products(self.columns, self.rows, memory_budget=self._memory_budget)

    def _columns(self, first: int, last: int) -> FloatArray:
        if not self._keeps_widened:
            return self.columns.rows(first, last)
        with self._lock:  # the first thread widens, the others wait for it
            if self._widened is None:
                self._widened = self.columns.rows(0, len(self.columns))
        return self._widened[first:last]


class Matrix:
    """Ready scores from any scorer: shape ``(n_rows, n_columns)``."""

    def __init__(self, scores: Embeddings, *, is_transposed: bool = False) -> None:
        self._scores = scores
        self._is_transposed = is_transposed
        self.shape = scores.shape[::-1] if is_transposed else scores.shape
        self.row_bytes = 4 * self.shape[1]
        self.column_bytes = 0

    def strip(self, start: int, stop: int) -> Strip:
        """Read rows ``start:stop`` once; the function cuts columns out of them."""
        if self._is_transposed:
            rows = np.empty((stop - start, self.shape[1]), dtype=np.float32)
            for first_row, block in self._scores.blocks():
                rows[:, first_row : first_row + len(block)] = block[:, start:stop].T
        else:
            rows = self._scores.rows(start, stop)

        def read(first: int, last: int, out: FloatArray) -> FloatArray:
            out[...] = rows[:, first:last]
            return out

        return read

    def some_rows(self, indices: IntArray) -> "Matrix":
        """Give the scores of some rows only."""
        return Matrix(Embeddings([self._scores.take(indices)], name=self._scores.name))

    def transposed(self) -> "Matrix":
        """Give the same scores with rows and columns exchanged, without a copy."""
        return Matrix(self._scores, is_transposed=not self._is_transposed)
