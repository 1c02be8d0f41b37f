"""The one door for arrays: whatever holds embeddings comes in here, and comes out checked.

Arrays, tensors, `.npy` (memory-mapped), `.npz`, parquet and folders of shards become `Embeddings`:
a matrix that is read in float32 blocks and never copied whole. Every row is looked at once, in a
stream: two dimensions, finite, no zero row, and unit norm where cosine was asked for. Nothing is
normalised unless `normalize=True` says so, nothing is changed in place, nothing is unpickled.
"""

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io.arrays import read_array, read_path

__all__ = [
    "Embeddings",
    "Metric",
    "Source",
    "check_same_dim",
    "norm_range",
    "open_embeddings",
    "open_matrix",
]

Metric = Literal["ip", "cosine"]
FloatArray: TypeAlias = npt.NDArray[np.float32]
# An array, a tensor, a path, or what `open_embeddings` returned.
Source: TypeAlias = Any

_NO_ROLE = "embeddings"
_BLOCK_BYTES = 16 * 2**20
_UNIT_NORM_TOLERANCE = 5e-3


class Embeddings:
    """A checked matrix of embeddings, read in float32 blocks.

    Made by `open_embeddings`. The numbers stay where they are (in memory or in the mapped file)
    until a block of rows is asked for. Open once and search often: checks and fingerprint are made
    once per object.

    Attributes
    ----------
    name : str
        What messages call it: the role, and the path where there is one.
    normalized : bool
        Whether rows are divided by their norms as they are read.
    """

    def __init__(
        self, parts: list[npt.NDArray[Any]], *, name: str, norms: FloatArray | None = None
    ) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self._norms = norms
        self.name = name

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        unit = ", normalized" if self.normalized else ""
        return f"Embeddings({self.name}: {len(self)} x {self.dim}{unit})"

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self._parts[0].shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_rows, dim)``."""
        return len(self), self.dim

    @property
    def normalized(self) -> bool:
        """Whether rows come out with unit norm because `normalize=True` was asked for."""
        return self._norms is not None

    @property
    def in_memory(self) -> bool:
        """Whether blocks are views of one float32 array, so that reading a block costs nothing."""
        part = self._parts[0]
        return (
            len(self._parts) == 1
            and part.dtype == np.float32
            and part.dtype.isnative
            and part.flags.c_contiguous
            and not self.normalized
        )

    def rows(self, start: int, stop: int) -> FloatArray:
        """Rows ``start:stop`` as a C-ordered float32 array; may be a view, so don't write to it."""
        if self.in_memory:
            return np.asarray(self._parts[0][start:stop])
        first = min(int(np.searchsorted(self._starts, start, "right")), len(self._parts)) - 1
        pieces: list[npt.NDArray[Any]] = []
        for part, offset in zip(self._parts[first:], self._starts[first:], strict=False):
            if pieces and offset >= stop:
                break
            pieces.append(part[max(start - offset, 0) : stop - offset])
        block = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        with np.errstate(over="ignore"):  # a float64 beyond float32 is found by the finite check
            widened: FloatArray = np.ascontiguousarray(block, dtype=np.float32)
        if self._norms is not None:
            widened = widened / self._norms[start:stop, None]
        return widened

    def take(
        self, indices: npt.NDArray[np.integer[Any]], *, out: FloatArray | None = None
    ) -> FloatArray:
        """Copy the rows at `indices`, in that order, as float32 ``(len(indices), dim)``.

        Into `out` if it is given, which spares fresh memory.
        """
        taken = np.empty((len(indices), self.dim), dtype=np.float32) if out is None else out
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"no such row among the {len(self)} of {self.name}")
        if self.in_memory:  # "clip" is the mode that needs no copy of its own
            return np.take(self._parts[0], indices, axis=0, out=taken, mode="clip")
        part_of = np.searchsorted(self._starts, indices, "right") - 1
        with np.errstate(over="ignore"):
            for number in np.unique(part_of):
                here = np.flatnonzero(part_of == number)
                taken[here] = self._parts[number][indices[here] - self._starts[number]]
        if self._norms is not None:
            taken /= self._norms[indices, None]
        return taken

    def blocks(self) -> Iterator[tuple[int, FloatArray]]:
        """All rows in order, as ``(start, block)`` of about 16 MB."""
        step = max(1, _BLOCK_BYTES // (4 * self.dim))
        for start in range(0, len(self), step):
            yield start, self.rows(start, min(start + step, len(self)))

    def joined(self, other: "Embeddings") -> "Embeddings":
        """Rows of `self` followed by rows of `other`, without copying either."""
        check_same_dim(self, other)
        norms = None
        if self._norms is not None or other._norms is not None:
            ones = (np.ones(len(e), dtype=np.float32) for e in (self, other))
            pair = zip((self._norms, other._norms), ones, strict=True)
            norms = np.concatenate([one if kept is None else kept for kept, one in pair])
        name = f"{self.name} and {other.name}"
        return Embeddings([*self._parts, *other._parts], name=name, norms=norms)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of shape and float32 values, the same whatever file or dtype carried them.

        The stored values are hashed, before any normalisation (which may differ in the last bit
        between machines); `normalized` is told by the suffix.
        """
        digest = hashlib.sha256(f"{len(self)}x{self.dim}".encode())
        for _, block in Embeddings(self._parts, name=self.name).blocks():
            digest.update(np.asarray(block, dtype="<f4").data)
        return digest.hexdigest()[:32] + (":unit" if self.normalized else "")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = self.rows(0, len(self))
        if dtype is not None and np.dtype(dtype) != whole.dtype:
            return whole.astype(dtype)
        return whole.copy() if copy else whole


def open_embeddings(
    source: Source,
    *,
    name: str = _NO_ROLE,
    normalize: bool | None = None,
    metric: Metric = "ip",
) -> Embeddings:
    """Open and check embeddings, wherever they are.

    Parameters
    ----------
    source : array, tensor, str, PathLike or Embeddings
        Shape ``(n_rows, dim)``, float16, float32 or float64: a numpy array, anything with
        ``__array__`` or DLPack (torch tensors), a path to ``.npy`` (memory-mapped), ``.npz`` (its
        only array, or the one named ``embedding``), ``.parquet`` (column ``embedding``), or a
        folder of such shards in clip-retrieval's layout.
    name : str
        The role, for messages: ``"gallery"``, ``"queries"``, ``"references"``.
    normalize : bool
        Divide every row by its norm as it is read. Never done silently.
    metric : {"ip", "cosine"}
        With ``"cosine"`` the rows must have unit norm, unless `normalize` makes it so.

    Returns
    -------
    Embeddings
        Opened once, its checks and fingerprint are not made again.

    Raises
    ------
    NNNormError
        With one sentence: what was expected, what arrived, what to do.

    Examples
    --------
    >>> import numpy as np
    >>> open_embeddings(np.eye(3), name="gallery").shape
    (3, 3)
    >>> open_embeddings(np.ones((2, 4)), normalize=True).rows(0, 1).tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """
    if metric not in ("ip", "cosine"):
        raise NNNormError(f"metric must be 'ip' or 'cosine'; got {metric!r}")
    if isinstance(source, Embeddings):
        opened = source
        if source.name == _NO_ROLE:
            source.name = name  # messages can now say which of the arrays they mean
        if normalize and not source.normalized:
            opened = Embeddings(source._parts, name=source.name, norms=_check_rows(source))
        elif metric == "ip":
            return source
    else:
        opened = _open(source, name, kind="embeddings")
        norms = _check_rows(opened)
        if normalize:
            opened = Embeddings(opened._parts, name=opened.name, norms=norms)
    if metric == "cosine" and not opened.normalized:
        norms = _check_rows(opened)
        if np.abs(norms - 1).max() > _UNIT_NORM_TOLERANCE:
            raise NNNormError(
                f"cosine was asked for, but the rows of {opened.name} do not have unit norm (norms "
                f"{norms.min():.4g} to {norms.max():.4g}); normalise them, or pass normalize=True "
                "(--normalize)"
            )
    return opened


def open_matrix(source: Source, *, name: str) -> Embeddings:
    """Open a ready score matrix: the same door, but rows of zeros are allowed.

    Examples
    --------
    >>> open_matrix([[0.0, 0.0], [0.5, 0.1]], name="scores").shape
    (2, 2)
    """
    if isinstance(source, Embeddings):
        return source
    opened = _open(source, name, kind="scores")
    for start, block in opened.blocks():
        if not np.isfinite(block).all():
            _raise_not_finite(opened, start, block)
    return opened


def check_same_dim(first: Embeddings, second: Embeddings) -> None:
    """Raise unless both have the same number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> check_same_dim(open_embeddings(np.eye(2)), open_embeddings(np.eye(2)))
    """
    if first.dim != second.dim:
        raise NNNormError(
            f"{first.name} and {second.name} must share dim; got {first.name} {first.shape} and "
            f"{second.name} {second.shape}. Were they encoded by different models?"
        )


def norm_range(embeddings: Embeddings) -> tuple[float, float]:
    """Smallest and largest row norm, streamed.

    Examples
    --------
    >>> import numpy as np
    >>> norm_range(open_embeddings(np.array([[3.0, 4.0], [0.0, 1.0]])))
    (1.0, 5.0)
    """
    norms = _check_rows(embeddings)
    return float(norms.min()), float(norms.max())


def _check_rows(opened: Embeddings) -> FloatArray:
    """Norms of all rows ``(n_rows,)``, once every row has been found finite and not zero."""
    norms = np.empty(len(opened), dtype=np.float32)
    for start, block in opened.blocks():
        squares = np.einsum("ij,ij->i", block, block)
        # A NaN or infinite entry always shows in its row's sum of squares.
        if not np.isfinite(squares).all():
            _raise_not_finite(opened, start, block)
        lengths = np.sqrt(squares)
        if squares.min() < 1e-30:  # may have underflowed: these few again, in float64
            tiny = squares < 1e-30
            lengths[tiny] = np.sqrt((block[tiny].astype(np.float64) ** 2).sum(axis=1))
        norms[start : start + len(block)] = lengths
    if norms.min() == 0:
        zero = np.flatnonzero(norms == 0)
        raise NNNormError(
            f"{opened.name} row {zero[0]} is all zeros ({len(zero)} such of {len(opened)} rows) "
            "and scores 0 with everything; a failed encoding? Remove or re-encode such rows"
        )
    return norms


def _raise_not_finite(opened: Embeddings, start: int, block: FloatArray) -> None:
    bad = np.argwhere(~np.isfinite(block))
    if len(bad) == 0:
        row = np.flatnonzero(~np.isfinite(np.einsum("ij,ij->i", block, block)))[0]
        raise NNNormError(
            f"{opened.name} row {start + row} is too large for float32 products (its entries reach "
            f"{np.abs(block[row]).max():.3g}); scale the embeddings down"
        )
    row, column = bad[0]
    what = "NaN" if np.isnan(block[row, column]) else "infinity (or a number beyond float32)"
    raise NNNormError(
        f"{opened.name} must be finite; row {start + row} has {what} in column {column}. "
        "Remove or re-encode that row"
    )


def _open(source: Source, name: str, *, kind: str) -> Embeddings:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name = f"{name} ({path})"
        parts = read_path(path, name)
    else:
        parts = [read_array(source, name)]
    for part in parts:
        _check_form(part, name, kind)
        if part.shape[1] != parts[0].shape[1]:
            raise NNNormError(
                f"{name}: all shards must share dim; got {parts[0].shape[1]} and {part.shape[1]}"
            )
    return Embeddings(parts, name=name)


def _check_form(array: npt.NDArray[Any], name: str, kind: str) -> None:
    expected = "(n_rows, dim)" if kind == "embeddings" else "(n_gallery, n_references)"
    if array.dtype.kind != "f" or array.dtype.itemsize not in (2, 4, 8):
        hint = (
            "object arrays are never unpickled"
            if array.dtype.kind == "O"
            else "convert with .astype(numpy.float32)"
        )
        raise NNNormError(f"{name} must be float16, float32 or float64; got {array.dtype}: {hint}")
    if array.ndim != 2:
        hint = "; a single row needs [None, :]" if array.ndim == 1 else ""
        raise NNNormError(
            f"{name} must have two dimensions {expected}; got shape {array.shape}{hint}"
        )
    if 0 in array.shape:
        raise NNNormError(f"{name} is empty: got shape {array.shape}, need a row and a column")
