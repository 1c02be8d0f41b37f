"""The one door for embeddings: every source is opened here, and checked.

Arrays, tensors, `.npy` (memory-mapped), `.npz`, parquet and folders of shards become `Embeddings`:
an immutable matrix that is read in float32 blocks and never copied whole. One read of every row
finds NaNs, zero rows, norms and the fingerprint, and keeps what it found. Rows are normalised only
with `normalize=True`, nothing is changed in place, nothing is unpickled.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import Found, read_source
from nnnorm.errors import NNNormError, warn
from nnnorm.parquet import Ids

FloatArray: TypeAlias = npt.NDArray[np.float32]

_BLOCK_BYTES = 16 * 2**20

Metric = Literal["ip", "cosine"]
# An array, a tensor, a path, or what `open_embeddings` returned.
Source: TypeAlias = Any

_NO_ROLE = "embeddings"
_UNIT_NORM_TOLERANCE = 5e-3
# Norms that differ by more than this share of the largest suggest that cosine was meant.
_EQUAL_NORMS = 0.01
# Products of two such sides come near the smallest float32, or vanish.
_LEAST_NORM = 1e-15

IntArray: TypeAlias = npt.NDArray[np.int64]


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


class _Measured:
    """The result of reading every row once, shared by all views of the same values."""

    norms: FloatArray | None = None
    digest: str | None = None
    # Of the rows as they are, and of the rows divided by their norms.
    means: tuple[FloatArray, FloatArray] | None = None


class Embeddings(StoredMatrix):
    """A checked, immutable matrix of embeddings, read in float32 blocks.

    Made by `open_embeddings`. The values stay where they are (in memory or in the mapped file)
    until a block of rows is read. Norms and fingerprint are computed once and kept.

    Parameters
    ----------
    parts : list of ndarray, each of shape (n_part, dim)
    name : str
        The name of the argument, for messages.
    """

    def __init__(
        self,
        parts: list[npt.NDArray[Any]],
        *,
        name: str,
        path: str | None = None,
        divisors: FloatArray | None = None,
        center: FloatArray | None = None,
        ids: Ids | None = None,
        measured: _Measured | None = None,
    ) -> None:
        super().__init__(parts, role=name, path=path, divisors=divisors, center=center)
        self._ids = ids
        self._measured = _Measured() if measured is None else measured

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + (", normalized)" if self.normalized else ")")

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self.shape[1]

    @property
    def ids(self) -> Ids | None:
        """The id of every row, int64 or str, from the column `id` of parquet files; else None."""
        return self._ids

    @property
    def normalized(self) -> bool:
        """Whether rows are divided by their norms when they are read."""
        return self._divisors is not None

    @property
    def norm_range(self) -> tuple[float, float]:
        """Smallest and largest norm of the rows as they are read.

        Examples
        --------
        >>> open_embeddings(np.array([[3.0, 4.0], [0.0, 1.0]]), normalize=False).norm_range
        (1.0, 5.0)
        """
        norms = self._stored_norms()
        if self._divisors is not None:
            norms = norms / self._divisors
        return float(norms.min()), float(norms.max())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of shape and float32 values, the same for every file format and dtype.

        The stored values are hashed, before normalisation (which may differ in the last bit between
        machines); a suffix tells whether rows are normalised.
        """
        if self._measured.digest is None:
            self._measure(fingerprint=True)
        return f"{self._measured.digest}{':unit' if self.normalized else ''}"

    def _measure(self, *, fingerprint: bool) -> FloatArray:
        """Read every row once: check it, and keep its norm and, on request, the fingerprint."""
        norms = np.empty(len(self), dtype=np.float32)
        totals = np.zeros((2, self.dim))
        digest = hashlib.sha256(f"{len(self)}x{self.dim}".encode())
        for start, block in self._blocks(self._widened):
            found = norms[start : start + len(block)] = measure_rows(block, self.name, start)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                totals[0] += block.sum(axis=0, dtype=np.float64)
                # Zeros are rejected below. BLAS takes three times as long for one row.
                totals[1] += np.einsum("i,ij->j", 1 / found, block)
            if fingerprint:
                digest.update(np.asarray(block, dtype="<f4").data)
        if norms.min() == 0:
            zero = np.flatnonzero(norms == 0)
            raise NNNormError(
                f"{self.name} row {zero[0]} is all zeros ({len(zero)} such of {len(self)} rows) "
                "and scores 0 with everything; a failed encoding? Remove or re-encode such rows"
            )
        norms.flags.writeable = False
        self._measured.norms = norms
        raw, unit = (totals / len(self)).astype(np.float32)
        self._measured.means = raw, unit
        if fingerprint:
            self._measured.digest = digest.hexdigest()[:32]
        return norms

    def _stored_norms(self) -> FloatArray:
        norms = self._measured.norms
        return self._measure(fingerprint=False) if norms is None else norms

    def _view(self, name: str, normalize: bool) -> "Embeddings":
        """Return the same rows under another name, or normalised; nothing is read or copied."""
        divisors = self._stored_norms() if normalize and not self.normalized else self._divisors
        return Embeddings(
            self._parts,
            name=name,
            path=self._path,
            divisors=divisors,
            ids=self._ids,
            measured=self._measured,
        )

    def mean(self) -> FloatArray:
        """Return the mean of the rows, shape ``(dim,)``, from the read that opened them.

        Examples
        --------
        >>> open_embeddings(np.eye(2)).mean().tolist()
        [0.5, 0.5]
        """
        means, divisors = self._measured.means, self._divisors
        if means is not None and (divisors is None or divisors is self._measured.norms):
            return means[0 if divisors is None else 1]
        total = np.zeros(self.dim)
        for _, block in self.blocks():
            total += block.sum(axis=0, dtype=np.float64)
        return np.asarray(total / len(self), dtype=np.float32)

    def centred(self, center: FloatArray) -> "Embeddings":
        """Return a view whose rows have `center` subtracted when they are read.

        It is for products only: norms and fingerprint are those of the rows before.

        Examples
        --------
        >>> open_embeddings(np.eye(2)).centred(np.float32([0.5, 0.5])).rows(0, 1).tolist()
        [[0.5, -0.5]]
        """
        return Embeddings(
            self._parts,
            name=self._role,
            path=self._path,
            divisors=self._divisors,
            center=center,
            ids=self._ids,
            measured=self._measured,
        )

    def subset(self, indices: npt.NDArray[np.integer[Any]]) -> "Embeddings":
        """Return the rows at `indices`, in that order, copied, under the same name."""
        measured = _Measured()
        if self._measured.norms is not None and not self.normalized:
            measured.norms = self._measured.norms[indices]
        ids = None if self._ids is None else self._ids[indices]
        return Embeddings(
            [self.take(indices)], name=self._role, path=self._path, ids=ids, measured=measured
        )

    def joined(self, other: "Embeddings") -> "Embeddings":
        """Return the rows of `self` followed by the rows of `other`, without a copy."""
        check_same_dim(self, other)
        pair = (self, other)
        measured, divisors = _Measured(), None
        if self._measured.norms is not None and other._measured.norms is not None:
            measured.norms = np.concatenate([self._measured.norms, other._measured.norms])
        if self.normalized or other.normalized:
            ones = (np.ones(len(side), dtype=np.float32) for side in pair)
            kept = zip((self._divisors, other._divisors), ones, strict=True)
            divisors = np.concatenate([one if own is None else own for own, one in kept])
        name = f"{self.name} and {other.name}"
        parts = [*self._parts, *other._parts]
        return Embeddings(parts, name=name, divisors=divisors, measured=measured)


def open_embeddings(
    source: Source,
    *,
    name: str | None = None,
    normalize: bool | None = None,
    metric: Metric = "ip",
    fingerprint: bool = True,
) -> Embeddings:
    """Open and check embeddings, in one read.

    Parameters
    ----------
    source : array, tensor, str, PathLike or Embeddings
        Shape ``(n_rows, dim)``, float16, float32 or float64: a numpy array, anything with
        ``__array__`` or DLPack (torch tensors), a path to ``.npy`` (memory-mapped), ``.npz`` (its
        only array, or the one named ``embedding``), ``.parquet`` (column ``embedding``), or a
        folder of such shards in clip-retrieval's layout.
    name : str, optional
        The name of the argument, for messages: ``"gallery"``, ``"queries"``, ``"references"``. The
        first name that is given stays.
    normalize : bool, optional
        True divides every row by its norm when it is read, so that scores are cosines. False keeps
        raw inner products. None does so too, with a warning if norms differ by more than 1 %.
    metric : {"ip", "cosine"}
        With ``"cosine"`` rows must have unit norm, unless they are normalised here.
    fingerprint : bool
        Whether to compute the fingerprint in the same read, at about four times the cost of the
        other checks. If False, it is computed in a read of its own when it is first used.

    Returns
    -------
    Embeddings
        If `source` is one already, a view of it (normalised, or named if it had no name), or
        itself if nothing changes; nothing is read again.

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
    if normalize is not None and not isinstance(normalize, (bool, np.bool_)):
        raise NNNormError(f"normalize must be True, False or None; got {normalize!r}")
    if isinstance(source, Embeddings):
        if source.normalized and normalize is not None and not normalize:
            raise NNNormError(
                f"the rows of {source.name} are normalised already, but normalize is False; leave "
                "out normalize, or open the original array or path again"
            )
        opened = source
        # A name that was given stays: "the items of photos.faiss" says more than "gallery".
        role = name if name is not None and source._role == _NO_ROLE else source._role
        if role != source._role or (normalize and not source.normalized):
            opened = source._view(role, bool(normalize))
    else:
        opened = _open(source, _NO_ROLE if name is None else name, fingerprint)
        if normalize:
            opened = opened._view(opened._role, True)
        else:
            _check_tiny(opened)
            if normalize is None and metric == "ip":
                _warn_of_norms(opened)
    if metric == "cosine" and not opened.normalized:
        low, high = opened.norm_range
        if max(1 - low, high - 1) > _UNIT_NORM_TOLERANCE:
            raise NNNormError(
                f"cosine was asked for, but the rows of {opened.name} do not have unit norm (norms "
                f"{low:.4g} to {high:.4g}); normalise them, or pass normalize=True (--normalize)"
            )
    return opened


def check_same_dim(first: Embeddings, second: Embeddings) -> None:
    """Raise unless both have the same number of columns."""
    if first.dim != second.dim:
        raise NNNormError(
            f"{first.name} and {second.name} must share dim; got {first.name} {first.shape} and "
            f"{second.name} {second.shape}. Were they encoded by different models?"
        )


def check_same_norms(
    first: Embeddings, second: Embeddings, *, normalize: bool | None = None
) -> None:
    """Raise where one side is normalised and the other has no unit norms."""
    if _has_unit_norms(first) == _has_unit_norms(second):
        return
    unit, other = (first, second) if _has_unit_norms(first) else (second, first)
    low, high = other.norm_range
    norms = f"norms {low:.3g} to {high:.3g}"
    if unit.normalized:
        raise NNNormError(
            f"{unit.name} is normalised and {other.name} is not ({norms}); pass normalize=True "
            "(--normalize) for both, or open both without it"
        )
    # Norms that differ within one side have been warned of when it was opened.
    if normalize is None and high - low <= _EQUAL_NORMS * high:
        warn(
            f"{unit.name} has unit norms and {other.name} does not ({norms}); for cosine pass "
            "normalize=True (--normalize), and if inner products are meant, normalize=False "
            "(--no-normalize)"
        )


def measure_rows(block: FloatArray, name: str, start: int = 0) -> FloatArray:
    """Norms of rows, shape ``(n_rows,)``; raise where a value is not finite."""
    squares = np.einsum("ij,ij->i", block, block)
    # A NaN or infinite entry always shows in its row's sum of squares.
    if not np.isfinite(squares).all():
        raise_not_finite(name, start, block)
        row = np.flatnonzero(~np.isfinite(squares))[0]
        raise NNNormError(
            f"{name} row {start + row} is too large for float32 products (its entries reach "
            f"{np.abs(block[row]).max():.3g}); scale the embeddings down"
        )
    norms: FloatArray = np.sqrt(squares)
    if squares.min() < 1e-30:  # may have underflowed: these few again, in float64
        tiny = squares < 1e-30
        norms[tiny] = np.sqrt((block[tiny].astype(np.float64) ** 2).sum(axis=1))
    return norms


def _has_unit_norms(embeddings: Embeddings) -> bool:
    if embeddings.normalized:
        return True
    low, high = embeddings.norm_range
    return max(1 - low, high - 1) <= _EQUAL_NORMS


def _open(source: Source, name: str, fingerprint: bool) -> Embeddings:
    if isinstance(source, StoredMatrix):
        raise NNNormError(
            f"{name} must be embeddings of shape (n_rows, dim); got ready scores, opened as "
            f"{source.name}"
        )
    opened = _check(read_source(source, name), name)
    opened._measure(fingerprint=fingerprint)
    return opened


def _check(found: Found, name: str) -> Embeddings:
    for part in found.parts:
        if part.dtype.kind in "iu" and part.dtype.itemsize > 1:
            raise NNNormError(
                f"{found.name} holds integers ({part.dtype}, shape {part.shape}), which look like "
                "truth or row numbers; expected embeddings of shape (n_rows, dim), float16, "
                "float32 or float64. Were the arguments swapped?"
            )
    hint = found.hint or "convert with .astype(numpy.float32)"
    check_form(found.parts, found.name, "(n_rows, dim)", hint)
    return Embeddings(found.parts, name=name, path=found.path, ids=found.ids)


def _check_tiny(opened: Embeddings) -> None:
    _, high = opened.norm_range
    if high < _LEAST_NORM:
        raise NNNormError(
            f"rows of {opened.name} have norms of {high:.3g} at most, too small for float32 "
            "products (all scores would be about 0); scale the embeddings up, or pass "
            "normalize=True (--normalize)"
        )


def _warn_of_norms(opened: Embeddings) -> None:
    low, high = opened.norm_range
    if high - low > _EQUAL_NORMS * high:
        warn(
            f"rows of {opened.name} have norms {low:.3g} to {high:.3g}, so scores are raw inner "
            "products; for cosine pass normalize=True (--normalize), and if inner products are "
            "meant, normalize=False (--no-normalize)"
        )


class ScoreMatrix(StoredMatrix):
    """A matrix of scores, shape ``(n_rows, n_columns)``, read in float32 blocks. Immutable."""

    def joined(self, other: "ScoreMatrix") -> "ScoreMatrix":
        """Return the rows of `self` followed by the rows of `other`, without a copy."""
        role = f"{self.name} and {other.name}"
        return ScoreMatrix([*self._parts, *other._parts], role=role)


def open_matrix(source: Source, *, name: str) -> ScoreMatrix:
    """Open ready scores: an array or path as in `open_embeddings`, where zero rows are valid."""
    if isinstance(source, ScoreMatrix):
        return source
    if isinstance(source, Embeddings):
        raise NNNormError(
            f"{name} must be ready scores of shape (n_gallery, n_references); got embeddings, "
            f"opened as {source.name}. Multiply them first, or use fit"
        )
    found = read_source(source, name)
    hint = found.hint or "convert with .astype(numpy.float32)"
    check_form(found.parts, found.name, "(n_gallery, n_references)", hint)
    opened = ScoreMatrix(found.parts, role=name, path=found.path)
    for start, block in opened.blocks():
        if not np.isfinite(block).all():
            raise_not_finite(found.name, start, block)
    return opened


class ValidRows(NamedTuple):
    """The rows of a source that can be used."""

    embeddings: Embeddings
    rows: IntArray
    n_rows: int
    faults: dict[int, str]
    ids: Ids | None


def open_valid(source: Source, *, name: str, normalize: bool | None = None) -> ValidRows:
    """Open embeddings without their broken rows."""
    try:
        opened = open_embeddings(source, name=name, normalize=normalize)
        return ValidRows(opened, np.arange(len(opened)), len(opened), {}, opened.ids)
    except NNNormError:
        if isinstance(source, StoredMatrix):
            raise
        parts, _, path, ids, _ = read_source(source, name)
        if any(part.dtype.kind != "f" or part.ndim != 2 or not part.size for part in parts):
            raise
        faults = _find_faults(StoredMatrix(parts, role=name))
        n_rows = sum(len(part) for part in parts)
        if not 0 < len(faults) < n_rows:
            raise
    rows = np.setdiff1d(np.arange(n_rows), list(faults))
    # The rows between two broken ones are a view, so that nothing is copied.
    starts = np.cumsum([0, *(len(part) for part in parts)])
    sound = [
        piece
        for part, start in zip(parts, starts, strict=False)
        for piece in _without(part, [row - start for row in faults if 0 <= row - start < len(part)])
    ]
    return ValidRows(
        open_embeddings(Embeddings(sound, name=name, path=path), name=name, normalize=normalize),
        rows,
        n_rows,
        faults,
        ids,
    )


def _find_faults(matrix: StoredMatrix) -> dict[int, str]:
    faults = {}
    for start, block in matrix.blocks():
        squares = (block.astype(np.float64) ** 2).sum(axis=1)
        for row in np.flatnonzero(~np.isfinite(squares) | (squares == 0)):
            is_zero = squares[row] == 0
            faults[start + int(row)] = (
                "it is all zeros" if is_zero else "it has entries that are not finite"
            )
    return faults


def _without(part: npt.NDArray[np.floating], places: list[int]) -> list[npt.NDArray[np.floating]]:
    pieces, first = [], 0
    for place in [*sorted(places), len(part)]:
        if place > first:
            pieces.append(part[first:place])
        first = place + 1
    return pieces
