"""A matrix as it is stored, in memory or on disk, read in float32 blocks and never copied whole.

`StoredMatrix` is what `Embeddings` and `ScoreMatrix` have in common: rows in one or several parts
(arrays, mapped files, shards), each of its own float type. It is immutable, and no row is changed
in place. What the values mean, and whether they are valid, is decided in the subclasses.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError

FloatArray: TypeAlias = npt.NDArray[np.float32]

_BLOCK_BYTES = 16 * 2**20


class StoredMatrix:
    """Rows in parts, read in float32 blocks.

    Parameters
    ----------
    parts : list of ndarray, each of shape (n_part, n_columns)
    role : str
        The name of the argument, such as ``"gallery"``.
    path : str, optional
        Where the values were read from.
    divisors : ndarray, shape (n_rows,), optional
        Every row is divided by its entry when it is read.
    center : ndarray, shape (n_columns,), optional
        Subtracted from every row, after the division.
    """

    def __init__(
        self,
        parts: list[npt.NDArray[Any]],
        *,
        role: str,
        path: str | None = None,
        divisors: FloatArray | None = None,
        center: FloatArray | None = None,
    ) -> None:
        self._parts, self._role, self._path = parts, role, path
        self._divisors, self._center = divisors, center
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {len(self)} x {self.shape[1]})"

    @property
    def name(self) -> str:
        """The name in messages: the role, and the path if there is one."""
        return self._role if self._path is None else f"{self._role} ({self._path})"

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_rows, n_columns)``."""
        return len(self), int(self._parts[0].shape[1])

    @property
    def in_memory(self) -> bool:
        """Whether blocks are views of one float32 array, so that reading a block costs nothing."""
        part = self._parts[0]
        return (
            len(self._parts) == 1
            and isinstance(part, np.ndarray)
            and part.dtype == np.float32
            and part.dtype.isnative
            and part.flags.c_contiguous
            and self._divisors is None
            and self._center is None
        )

    def rows(self, start: int, stop: int) -> FloatArray:
        """Read rows ``start:stop`` as a C-ordered float32 array."""
        if self.in_memory:
            return np.asarray(self._parts[0][start:stop])
        block = self._widened(start, stop)
        if self._divisors is not None:
            block = block / self._divisors[start:stop, None]
        return block if self._center is None else block - self._center

    def _widened(self, start: int, stop: int) -> FloatArray:
        first = min(int(np.searchsorted(self._starts, start, "right")), len(self._parts)) - 1
        pieces: list[npt.NDArray[Any]] = []
        for part, offset in zip(self._parts[first:], self._starts[first:], strict=False):
            if pieces and offset >= stop:
                break
            pieces.append(part[max(start - offset, 0) : stop - offset])
        block = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        with np.errstate(over="ignore"):  # a float64 beyond float32 is found by the finite check
            return np.ascontiguousarray(block, dtype=np.float32)

    def take(
        self, indices: npt.NDArray[np.integer[Any]], *, out: FloatArray | None = None
    ) -> FloatArray:
        """Copy the rows at `indices`, in that order, as float32 ``(len(indices), n_columns)``."""
        taken = np.empty((len(indices), self.shape[1]), dtype=np.float32) if out is None else out
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"indices must be below the {len(self)} rows of {self.name}")
        if self.in_memory:  # "clip" is the mode that needs no copy of its own
            return np.take(self._parts[0], indices, axis=0, out=taken, mode="clip")
        part_of = np.searchsorted(self._starts, indices, "right") - 1
        with np.errstate(over="ignore"):
            for number in np.unique(part_of):
                here = np.flatnonzero(part_of == number)
                taken[here] = self._parts[number][indices[here] - self._starts[number]]
        if self._divisors is not None:
            taken /= self._divisors[indices, None]
        if self._center is not None:
            taken -= self._center
        return taken

    def blocks(self) -> Iterator[tuple[int, FloatArray]]:
        """Read all rows in order, as ``(start, block)`` of about 16 MB."""
        return self._blocks(self.rows)

    def _blocks(self, read: Any) -> Iterator[tuple[int, FloatArray]]:
        step = max(1, _BLOCK_BYTES // (4 * self.shape[1]))
        for start in range(0, len(self), step):
            yield start, read(start, min(start + step, len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = self.rows(0, len(self))
        if dtype is not None and np.dtype(dtype) != whole.dtype:
            return whole.astype(dtype)
        return whole.copy() if copy else whole


def check_form(parts: list[npt.NDArray[Any]], name: str, expected: str, hint: str) -> None:
    """Raise unless all parts are float matrices with rows and as many columns."""
    for part in parts:
        if part.dtype.kind != "f" or part.dtype.itemsize not in (2, 4, 8):
            raise NNNormError(
                f"{name} must be float16, float32 or float64; got {part.dtype}: {hint}"
            )
        if part.ndim != 2:
            hint = "; a single row needs [None, :]" if part.ndim == 1 else ""
            raise NNNormError(
                f"{name} must have two dimensions {expected}; got shape {part.shape}{hint}"
            )
        if 0 in part.shape:
            raise NNNormError(f"{name} is empty: got shape {part.shape}, need a row and a column")
        if part.shape[1] != parts[0].shape[1]:
            raise NNNormError(
                f"{name}: all shards must share dim; got {parts[0].shape[1]} and {part.shape[1]}"
            )


def raise_not_finite(name: str, start: int, block: FloatArray) -> None:
    """Raise an error that names the first value of a block that is not finite, if there is one."""
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        row, column = bad[0]
        what = "NaN" if np.isnan(block[row, column]) else "infinity (or a number beyond float32)"
        raise NNNormError(
            f"{name} must be finite; row {start + row} has {what} in column {column}. "
            "Remove or re-encode that row"
        )
