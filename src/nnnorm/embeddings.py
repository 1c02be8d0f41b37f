"""Embeddings: opens, checks and reads every source of embeddings.

Arrays, tensors, `.npy` (memory-mapped), `.npz`, parquet and folders of shards become `Embeddings`:
an immutable matrix that is read in float32 blocks and never copied as a whole. Each row is read
once to check it and to compute norms, mean and fingerprint, which are stored. Rows are normalized
only with `normalize=True`. Nothing is changed in place or unpickled.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import Ids, read_files
from nnnorm.errors import NNNormError, first_line, warn

FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# An array, a tensor, a path, or `Embeddings`.
Source: TypeAlias = Any
Range: TypeAlias = tuple[float, float]

_BLOCK_BYTES = 16 * 2**20
_NO_NAME = "embeddings"
# If norms differ by more than this share of the largest, the user may have meant cosine.
EQUAL_NORMS = 0.01
# Advice for arrays of other types, by the kind of their dtype.
_HINTS = {
    "i": "these look like truth or row numbers, so check the order of the arguments",
    "O": "pass the numbers alone: frame[columns].to_numpy(), or numpy.stack(column) of lists",
    "U": "encode texts first: nnnorm.encoders.load_encoder(MODEL).encode_texts(texts)",
}
# The product of two rows with smaller norms may underflow in float32.
_LEAST_NORM = 1e-15


@dataclass(frozen=True, eq=False, repr=False)
class StoredMatrix:
    """Rows in parts, read in float32 blocks; an immutable view that copies nothing.

    Parameters
    ----------
    parts : list of ndarray, each of shape (n_part, n_columns)
    name : str
        The name in messages: the argument, such as ``"gallery"``, and the path if any.
    divisors : ndarray, shape (n_rows,), optional
        Every row is divided by its entry when it is read.
    center : ndarray, shape (n_columns,), optional
        Subtracted from every row, after the division.
    """

    parts: list[npt.NDArray[Any]]
    name: str
    divisors: FloatArray | None = None
    center: FloatArray | None = None
    # Of mapped files when they were opened: inode, size and time of the last change.
    stamps: Mapping[str, tuple[int, int, int]] | None = None
    starts: IntArray = field(init=False)
    shape: tuple[int, int] = field(init=False)
    dim: int = field(init=False)
    # Whether rows are divided by their norms when they are read.
    normalized: bool = field(init=False)
    # Whether blocks are views of one float32 array, so that reading them takes no time.
    in_memory: bool = field(init=False)

    def __post_init__(self) -> None:
        starts, part = np.cumsum([0, *map(len, self.parts)]), self.parts[0]
        is_changed = self.divisors is not None or self.center is not None
        is_plain = part.dtype == np.float32 and part.dtype.isnative and part.flags.c_contiguous
        self.__dict__.update(
            starts=starts,
            stamps=_stamp(self.parts) if self.stamps is None else self.stamps,
            shape=(int(starts[-1]), int(part.shape[1])),
            dim=int(part.shape[1]),
            normalized=self.divisors is not None,
            in_memory=is_plain and len(self.parts) == 1 and not is_changed,
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        normalized = ", normalized" if self.normalized else ""
        return f"{type(self).__name__}({self.name}: {len(self)} x {self.dim}{normalized})"

    def rows(self, start: int, stop: int) -> FloatArray:
        """Read rows ``start:stop`` as a C-ordered float32 array."""
        if stop - start == len(self):
            self.check_unchanged()
        if self.in_memory:
            return np.asarray(self.parts[0][start:stop])
        first = min(int(np.searchsorted(self.starts, start, "right")), len(self.parts)) - 1
        pieces: list[npt.NDArray[Any]] = []
        for part, offset in zip(self.parts[first:], self.starts[first:], strict=False):
            if pieces and offset >= stop:
                break
            pieces.append(part[max(start - offset, 0) : stop - offset])
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        with np.errstate(over="ignore"):  # too large a float64 becomes inf, which is rejected
            block = np.ascontiguousarray(whole, dtype=np.float32)
        if self.divisors is not None:
            block = block / self.divisors[start:stop, None]
        return block if self.center is None else block - self.center

    def take(self, indices: npt.NDArray[np.integer[Any]]) -> FloatArray:
        """Copy the rows at `indices`, in that order, as float32 ``(len(indices), n_columns)``."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"indices must be below the {len(self)} rows of {self.name}")
        if self.in_memory:
            return np.take(self.parts[0], indices, axis=0)
        taken = np.empty((len(indices), self.dim), dtype=np.float32)
        part_of = np.searchsorted(self.starts, indices, "right") - 1
        with np.errstate(over="ignore"):
            for number in np.unique(part_of):
                here = np.flatnonzero(part_of == number)
                taken[here] = self.parts[number][indices[here] - self.starts[number]]
        if self.divisors is not None:
            taken /= self.divisors[indices, None]
        if self.center is not None:
            taken -= self.center
        return taken

    def blocks(self) -> Iterator[tuple[int, FloatArray]]:
        """Yield all rows in order, as ``(start, block)`` with blocks of about 16 MB."""
        step = max(1, _BLOCK_BYTES // (4 * self.dim))
        for start in range(0, len(self), step):
            yield start, self.rows(start, min(start + step, len(self)))
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise an error if a mapped file has changed since it was opened."""
        now = _stamp(self.parts)
        for path, (inode, *content) in (self.stamps or {}).items():
            if path in now and now[path][0] == inode and list(now[path][1:]) != content:
                raise NNNormError(
                    f"{self.name} changed on disk after it was opened, so its rows may be "
                    "inconsistent; open it again, and replace files instead of writing into them"
                )

    def column_means(self) -> DoubleArray:
        """Compute the mean of every column, in one read."""
        total = sum(block.sum(axis=0, dtype=np.float64) for _, block in self.blocks())
        return np.asarray(total / len(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = self.rows(0, len(self))
        if dtype is not None and np.dtype(dtype) != whole.dtype:
            return whole.astype(dtype)
        return whole.copy() if copy else whole


class _Measured:
    """Measurements from one read of every row, shared by all views of the same values."""

    norms: FloatArray | None = None
    digest: str | None = None
    # Mean of the original rows, and mean of the rows divided by their norms.
    means: tuple[FloatArray, FloatArray] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(StoredMatrix):
    """A checked, immutable matrix of embeddings, read in float32 blocks.

    Create it with `open_embeddings`. Values stay in the original array or the mapped file. Norms
    and fingerprint are computed once.

    Attributes
    ----------
    name : str
        The name in messages: the argument, such as ``"gallery"``, and the path if any.
    shape : (int, int)
        Number of rows and of dimensions.
    dim : int
        Number of dimensions.
    normalized : bool
        Whether rows are divided by their norms when they are read.
    ids : ndarray, shape (n_rows,), or None
        The ids of the rows, int64 or str, from the column `id` of parquet files or `ids.txt`.
    counts : ndarray, shape (n_rows,), or None
        For the rows of a `Bank`: the number of past queries that each row represents.
    n_queries : int
        For the rows of a `Bank`: the number of past queries.
    """

    ids: Ids | None = None
    counts: IntArray | None = None
    n_queries: int = 0
    measured: _Measured = field(default_factory=_Measured)

    @property
    def norm_range(self) -> Range:
        """Smallest and largest norm of the rows; about 1 if they are normalized.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import open_embeddings
        >>> open_embeddings(np.array([[3.0, 4.0], [0.0, 1.0]]), normalize=False).norm_range
        (1.0, 5.0)
        """
        norms = self._measure()
        if self.divisors is not None:
            norms = norms / self.divisors
        return float(norms.min()), float(norms.max())

    @property
    def fingerprint(self) -> str:
        """Hash (SHA-256) of shape and float32 values, the same for every file format and dtype.

        The values before normalization are hashed, because normalized ones may differ in the last
        bit between machines. The suffix ":unit" shows that rows are normalized. If a file has
        changed since it was opened, this raises an error.
        """
        self._measure(fingerprint=True)
        self.check_unchanged()
        return f"{self.measured.digest}{':unit' if self.normalized else ''}"

    def _measure(self, *, fingerprint: bool = False) -> FloatArray:
        """Read and check every row once; store norms, means and, if requested, the fingerprint."""
        kept = self.measured
        if kept.norms is not None and (kept.digest is not None or not fingerprint):
            return kept.norms
        norms = np.empty(len(self), dtype=np.float32)
        totals = np.zeros((2, self.dim))
        digest = hashlib.sha256(f"{len(self)}x{self.dim}".encode())
        stored = replace(self, divisors=None, center=None)
        for start, block in stored.blocks():
            found = norms[start : start + len(block)] = measure_rows(block)
            with np.errstate(all="ignore"):  # invalid rows are rejected below
                totals[0] += block.sum(axis=0, dtype=np.float64)
                # For a single row, BLAS takes three times as long.
                totals[1] += np.einsum("i,ij->j", 1 / found, block)
            if fingerprint:
                digest.update(np.asarray(block, dtype="<f4").data)
        check_rows(norms, stored.take, self.name)
        norms.flags.writeable = False
        raw, unit = (totals / len(self)).astype(np.float32)
        kept.norms, kept.means = norms, (raw, unit)
        if fingerprint:
            kept.digest = digest.hexdigest()[:32]
        return norms

    def mean(self) -> FloatArray:
        """Return the mean of the rows, shape ``(dim,)``.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import open_embeddings
        >>> open_embeddings(np.eye(2)).mean().tolist()
        [0.5, 0.5]
        """
        means = self.measured.means
        if means is not None and (self.divisors is None or self.divisors is self.measured.norms):
            return means[self.normalized]
        return self.column_means().astype(np.float32)

    def subset(self, indices: npt.NDArray[np.integer[Any]]) -> "Embeddings":
        """Return a copy of the rows at `indices`, in that order, with the same name."""
        measured = _Measured()
        if self.measured.norms is not None and not self.normalized:
            measured.norms = self.measured.norms[indices]
        ids = None if self.ids is None else self.ids[indices]
        return Embeddings([self.take(indices)], self.name, ids=ids, measured=measured)

    def joined(self, other: "Embeddings") -> "Embeddings":
        """Return the rows of `self` followed by the rows of `other`, without a copy."""
        check_same_dim(self, other)
        sides, measured, divisors = (self, other), _Measured(), None
        measured.norms = np.concatenate([side._measure() for side in sides])
        if self.normalized or other.normalized:
            divisors = np.concatenate(
                [np.ones(len(s), np.float32) if s.divisors is None else s.divisors for s in sides]
            )
        name = f"{self.name} and {other.name}"
        return Embeddings([*self.parts, *other.parts], name, divisors=divisors, measured=measured)


def open_embeddings(
    source: Source,
    *,
    name: str | None = None,
    normalize: bool | None = None,
    fingerprint: bool = True,
) -> Embeddings:
    """Open and check embeddings, so that several calls can use them without further checks.

    All functions that take embeddings accept arrays and paths, and open them with this function.
    Call it yourself if you use the same embeddings more than once.

    Parameters
    ----------
    source : array, tensor, str, PathLike or Embeddings
        Embeddings of shape ``(n_rows, dim)``, as float16, float32 or float64: a numpy array,
        anything with ``__array__`` or DLPack (torch tensors), or a path. The path is a ``.npy``
        file (which is memory-mapped), a ``.npz`` file (its only array, or the one named
        ``embedding``), a ``.parquet`` file (its column ``embedding``), or a folder of numbered
        files as clip-retrieval writes it.
    name : str, optional
        The name for messages: ``"gallery"``, ``"queries"`` or ``"references"``. If the embeddings
        already have a name, it stays.
    normalize : bool, optional
        True divides every row by its norm, so scores are cosines. False uses raw inner products.
        None uses them too, with a warning if norms differ by more than 1 %.
    fingerprint : bool
        Whether to compute the fingerprint now, which takes about four times as long as the other
        checks. If False, it is computed when it is first used.

    Returns
    -------
    Embeddings
        A view of the values: don't change an array or its ids after you open it. If a file changes
        after you open it, a fit raises an error. If `source` is already an `Embeddings`, no check
        is repeated.

    Raises
    ------
    NNNormError
        If the embeddings can't be used. The message has what was expected, what arrived, and what
        to do.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> open_embeddings(np.eye(3), name="gallery").shape
    (3, 3)
    >>> open_embeddings(np.ones((2, 4)), normalize=True).rows(0, 1).tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """
    if normalize is not None and not isinstance(normalize, (bool, np.bool_)):
        raise NNNormError(f"normalize must be True, False or None; got {normalize!r}")
    if isinstance(source, Embeddings):
        if source.normalized and normalize is not None and not normalize:
            raise NNNormError(
                f"rows of {source.name} are already normalized, but normalize is False; leave out "
                "normalize, or open the original array or path again"
            )
        opened = source
        # An existing name stays: "the items of photos.faiss" is clearer than "gallery".
        if f"{source.name} (".startswith(f"{_NO_NAME} (") and name is not None:
            opened = replace(opened, name=source.name.replace(_NO_NAME, name, 1))
    elif isinstance(source, StoredMatrix):
        raise NNNormError(
            f"{name or _NO_NAME} must be embeddings of shape (n_rows, dim); got a matrix of "
            f"scores, opened as {source.name}: pass it to fit_scores"
        )
    else:
        parts, full, ids = _read_source(source, name or _NO_NAME)
        opened = Embeddings(parts, full, ids=ids)
        opened._measure(fingerprint=fingerprint)
        if not normalize:
            check_norms(opened.name, *opened.norm_range, warn_of_norms=normalize is None)
    if normalize and not opened.normalized:
        opened = replace(opened, divisors=opened._measure())
    return opened


def _stamp(parts: list[npt.NDArray[Any]]) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of mapped files that still exist."""
    found = {}
    for part in parts:
        if isinstance(part, np.memmap) and part.mode == "r" and part.filename is not None:
            with suppress(FileNotFoundError):
                one = os.stat(part.filename)
                found[str(part.filename)] = one.st_ino, one.st_size, one.st_mtime_ns
    return found


def _read_source(
    source: Source, name: str, expected: str = "(n_rows, dim)"
) -> tuple[list[npt.NDArray[Any]], str, Ids | None]:
    """Read an array of any library, or files; return float matrices, their name, and ids if any."""
    ids = None
    if isinstance(source, (str, os.PathLike)):
        parts, name, ids = read_files(source, name)
    elif isinstance(source, np.ma.MaskedArray):
        raise NNNormError(f"{name} is a masked array; fill it or drop the masked rows first")
    else:
        try:
            has_dlpack_only = not hasattr(source, "__array__") and hasattr(source, "__dlpack__")
            parts = [np.from_dlpack(source) if has_dlpack_only else np.asarray(source)]
        except Exception as error:  # each array library raises its own errors
            raise NNNormError(
                f"{name} can't be read as a numpy array ({type(source).__name__}: "
                f"{first_line(error)}); pass a float array on the CPU "
                "(torch: tensor.detach().cpu().float())"
            ) from error
    for part in parts:
        kind, is_wide = part.dtype.kind, part.dtype.itemsize > 1
        if kind == "O" and part.ndim == 0:
            got = "None" if source is None else f"a {type(source).__name__}"
            order = "; the order is (queries, gallery, bias)" if got == "a Bias" else ""
            raise NNNormError(f"{name} must be an array or a path; got {got}{order}")
        if kind != "f" or part.dtype.itemsize not in (2, 4, 8):
            hint = _HINTS.get("i" if kind == "u" and is_wide else kind) if is_wide else None
            raise NNNormError(
                f"{name} must be float16, float32 or float64; got {part.dtype}, shape "
                f"{part.shape}: {hint or 'convert with .astype(numpy.float32)'}"
            )
        if part.ndim != 2:
            hint = f"; a row must have shape (1, {part.size})" if part.ndim == 1 else ""
            got = f"got shape {part.shape}{hint}"
            raise NNNormError(f"{name} must have two dimensions {expected}; {got}")
        if 0 in part.shape:
            raise NNNormError(
                f"{name} must have at least one row and column; got shape {part.shape}"
            )
        if part.shape[1] != parts[0].shape[1]:
            raise NNNormError(
                f"{name}: all shards must have the same dimension; got {parts[0].shape[1]} and "
                f"{part.shape[1]}"
            )
    return parts, name, ids


def describe_norms(norms: Range) -> str:
    """Describe the norms of rows: ``norms of 0.5 to 2``, or ``norms of 1``."""
    return f"norms of {' to '.join(dict.fromkeys(f'{norm:.3g}' for norm in norms))}"


def check_norms(name: str, low: float, high: float, *, warn_of_norms: bool) -> None:
    """Raise if all norms are too small; if requested, warn if they differ."""
    if high < _LEAST_NORM:
        raise NNNormError(
            f"rows of {name} have norms of at most {high:.3g}, so small that all scores would be "
            "about 0 in float32; scale the embeddings up, or pass normalize=True (--normalize)"
        )
    if warn_of_norms and high - low > EQUAL_NORMS * high:
        warn(
            f"rows of {name} have {describe_norms((low, high))}, so scores are raw inner "
            "products; for cosine, pass normalize=True (--normalize); to keep inner products, pass "
            "normalize=False (--no-normalize)"
        )


def check_same_dim(first: Embeddings, second: Embeddings) -> None:
    """Raise an error unless both have the same number of columns."""
    if first.dim != second.dim:
        raise NNNormError(
            f"{first.name} and {second.name} must have the same dimension; got shapes "
            f"{first.shape} and {second.shape}. Were they encoded by different models?"
        )


def check_same_norms(
    first: Embeddings, second: Embeddings, *, normalize: bool | None = None
) -> None:
    """Raise or warn if one side has norm 1 and the other doesn't."""
    if first.normalized and second.normalized:
        return
    ranges = first.norm_range, second.norm_range
    is_unit = [max(1 - low, high - 1) <= EQUAL_NORMS for low, high in ranges]
    if is_unit[0] == is_unit[1]:
        return
    unit, other = (first, second) if is_unit[0] else (second, first)
    low, high = other.norm_range
    message = (
        f"rows of {unit.name} have norm 1, but rows of {other.name} have "
        f"{describe_norms(other.norm_range)}; for cosine, pass normalize=True (--normalize); for "
        "inner products, pass normalize=False (--no-normalize)"
    )
    if unit.normalized:
        raise NNNormError(message)
    # If norms differ within one side, `check_norms` has already warned.
    if normalize is None and high - low <= EQUAL_NORMS * high:
        warn(message)


def check_like_norms(name: str, norms: Range, known: Range, what: str) -> None:
    """Raise an error if the known rows have equal norms and later rows don't."""
    (low, high), (least, most) = norms, known
    if most - least > EQUAL_NORMS * most:
        return  # the user chose raw inner products
    if low < (1 - EQUAL_NORMS) * least or high > (1 + EQUAL_NORMS) * most:
        raise NNNormError(
            f"rows of {name} have {describe_norms(norms)}, but all {what} have norms of "
            f"about {most:.4g}; scale both the same way, or use normalize=True (--normalize) for "
            "all of them"
        )


def measure_rows(block: FloatArray) -> FloatArray:
    """Return the norms of rows; a norm isn't finite if an entry or the sum of squares isn't."""
    squares = np.einsum("ij,ij->i", block, block)
    norms: FloatArray = np.sqrt(squares)
    tiny = np.flatnonzero(squares < 1e-30)  # may have underflowed, so repeat these in float64
    if len(tiny):
        norms[tiny] = np.sqrt((block[tiny].astype(np.float64) ** 2).sum(axis=1))
    return norms


def check_rows(
    norms: npt.NDArray[Any], take: Callable[[IntArray], FloatArray], name: str, start: int = 0
) -> None:
    """Raise an error that describes the first row whose norm is 0 or not finite, if any."""
    bad = np.flatnonzero(~((norms > 0) & (norms < np.inf)))
    if not len(bad):
        return
    row, values = start + bad[0], take(bad[:1])[0]
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        is_nan = np.isnan(values[wrong[0]])
        what = "NaN" if is_nan else "infinity (or a number too large for float32)"
        raise NNNormError(
            f"{name} must be finite; row {row} has {what} in column {wrong[0]}. "
            "Remove or re-encode that row"
        )
    if values.any():
        raise NNNormError(
            f"{name} row {row} is too large for float32 products (its entries reach "
            f"{np.abs(values).max():.3g}); scale the embeddings down"
        )
    n_zero = np.count_nonzero(norms == 0)
    raise NNNormError(
        f"{name} row {row} is all zeros ({n_zero} of {len(norms)} rows are), so all its scores "
        "would be 0; did the encoding fail? Remove or re-encode such rows"
    )


def open_matrix(source: Source, *, name: str) -> StoredMatrix:
    """Open a matrix of scores: an array or path as in `open_embeddings`; zero rows are valid."""
    if isinstance(source, Embeddings):
        raise NNNormError(
            f"{name} must have the shape (n_gallery, n_references); got embeddings, opened as "
            f"{source.name}: pass them to fit, or multiply them first"
        )
    if isinstance(source, StoredMatrix):
        return source
    parts, name, _ = _read_source(source, name, "(n_gallery, n_references)")
    opened = StoredMatrix(parts, name)
    for start, block in opened.blocks():
        is_finite = np.isfinite(block).all(axis=1)
        check_rows(np.where(is_finite, 1, np.nan), block.__getitem__, name, start)
    return opened


class ValidRows(NamedTuple):
    """The valid rows of a source: their row numbers, and the faults of the others by row number."""

    embeddings: Embeddings
    rows: IntArray
    n_rows: int
    faults: dict[int, str]
    ids: Ids | None


def open_valid(source: Source, *, name: str, normalize: bool | None = None) -> ValidRows:
    """Open embeddings without their invalid rows."""
    try:
        opened = open_embeddings(source, name=name, normalize=normalize)
        return ValidRows(opened, np.arange(len(opened)), len(opened), {}, opened.ids)
    except NNNormError:
        if isinstance(source, StoredMatrix):
            raise
        parts, full, ids = _read_source(source, name)
        whole = StoredMatrix(parts, full)
        norms = np.concatenate([measure_rows(block) for _, block in whole.blocks()])
        is_valid = (norms > 0) & (norms < np.inf)
        if is_valid.all() or not is_valid.any():
            raise
    words = {True: "it is all zeros", False: "it has entries that are not finite or too large"}
    faults = {int(row): words[bool(norms[row] == 0)] for row in np.flatnonzero(~is_valid)}
    # The rows between two broken ones are a view, so nothing is copied.
    valid = []
    for part, start in zip(parts, whole.starts, strict=False):
        broken = np.flatnonzero(~is_valid[start : start + len(part)])
        edges = pairwise([-1, *broken, len(part)])
        valid += [part[before + 1 : after] for before, after in edges if after > before + 1]
    left = open_embeddings(Embeddings(valid, full), normalize=normalize)
    return ValidRows(left, np.flatnonzero(is_valid), len(whole), faults, ids)
