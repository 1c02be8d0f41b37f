"""Unique queries: each past query counts once, no matter how often or in which words it was asked.

Query logs repeat queries. Without this step, the k best references of a popular item would be
copies of one query, and its bias would measure popularity.

A row is a copy if it equals an earlier row, or if its cosine with an earlier unique row is above
`NEAR_COPY` (a near-duplicate). A hash finds equal rows. Near-duplicates are searched for if there
are at most 32,768 rows, or if a random row has at least two of them on average. With fewer, popular
queries hardly change a mean, and the search takes as long as scoring 2,000 items.

Up to 4,096 rows, every row is compared with all others. With more rows, they are projected to 64
dimensions and clustered into about √n cells, and a new row is compared only with the unique rows of
about 10 cells close to it. The time grows with n·√n, and a few percent of the near-duplicates are
missed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, FloatArray, IntArray, measure_rows
from nnnorm.errors import NNNormError, plural, warn
from nnnorm.files import Progress
from nnnorm.scoring import strips_in_order

Duplicates = Literal["drop", "keep"]
Half: TypeAlias = npt.NDArray[np.float16]

# In CLIP-like models, two wordings of one query have a cosine of about 0.9 or more. Captions of one
# picture by different people have about 0.7. docs/automatic-rule.md has the figures.
NEAR_COPY = 0.88

_EXACT_ROWS = 4096
# Near-duplicates are searched for with at most this many rows, or at least this many of them per
# sampled row. `_N_SAMPLED` rows are compared with `_N_COMPARED`.
_FEW_ROWS, _FEW_COPIES = 2**15, 2.0
_N_SAMPLED, _N_COMPARED = 512, 2**14
_BATCH_ROWS, _STRIP_ROWS = 5120, 512
_TILE = 2**18
_N_PROJECTED = 64
_N_PROBES, _MORE_PROBES = 10, 40
# Squared distances after projection have a standard deviation of 17 %. With a threshold higher by
# this factor, 1 % of the pairs at the threshold are missed.
_SLACK = 1.4
_TINY = np.float32(1e-20)
# If nine in ten rows are copies and fewer unique rows than this are left, the log may repeat
# itself, or the model puts all texts close together.
_FEW_UNIQUE = 32


def as_units(rows: npt.NDArray[Any]) -> FloatArray:
    """Return the rows divided by their norms, in float32."""
    wide = np.asarray(rows, dtype=np.float32)
    return np.asarray(wide / measure_rows(wide)[:, None]) if len(wide) else wide


def hash_rows(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint64]:
    """Return a hash per row, the same for equal rows."""
    n_rows, dim = rows.shape
    weights = np.random.default_rng(0).integers(2**63, size=-(-dim // 2), dtype=np.uint64) * 2 + 1
    hashes = np.empty(n_rows, dtype=np.uint64)
    buffer = np.zeros((256, 2 * len(weights)), dtype=np.float32)
    for start in range(0, n_rows, len(buffer)):  # small blocks stay in the cache of a core
        some = rows[start : start + len(buffer)]
        np.add(some, np.float32(0), out=buffer[: len(some), :dim])  # -0 becomes 0
        words = buffer[: len(some)].view(np.uint64)
        # Without the xor, the upper half of a word would only change the upper half of the sum.
        hashes[start : start + len(some)] = (words ^ (words >> np.uint64(32))) @ weights
    return hashes


def append_rows(array: npt.NDArray[Any], n: int, more: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Put `more` after the first `n` rows, in a longer copy of the array if it is too short."""
    if n + len(more) > len(array):
        longer = np.empty((max(n + len(more), 2 * n), *more.shape[1:]), dtype=more.dtype)
        longer[:n] = array[:n]
        array = longer
    array[n : n + len(more)] = more
    return array


class UniqueRows:
    """Unique rows in float16; finds the unique row that each later row is a copy of."""

    def __init__(self, rows: Half) -> None:
        self._rows, self._n = rows, len(rows)
        self._slot_of = dict(zip(hash_rows(rows).tolist(), range(len(rows)), strict=True))
        self._axes: FloatArray | None = None
        self._closest = 1.01 * (NEAR_COPY - 1)
        self._points = _swapped(self._project(rows))
        self._made_for = _EXACT_ROWS
        self._cells = np.zeros(len(rows), dtype=np.uint16)
        self._mean, self._gaps = np.zeros(1, np.float32), (np.inf, np.inf)
        self._centers = np.zeros((1, 1), np.float32)

    @property
    def rows(self) -> Half:
        """The unique rows in the order in which they were added, each of norm 1."""
        return self._rows[: self._n]

    def add(self, rows: FloatArray) -> tuple[IntArray, IntArray]:
        """Add rows; return the number of each row's unique row, and which rows are new."""
        slots, new = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start in range(0, len(rows), _BATCH_ROWS):
            units = as_units(rows[start : start + _BATCH_ROWS])
            rounded = units.astype(np.float16)
            keys = hash_rows(rounded)
            _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
            found = np.array([self._slot_of.get(key, -1) for key in keys[first].tolist()])
            is_unseen = found < 0
            unseen, n_before = np.sort(first[is_unseen]), self._n
            if len(unseen) < len(units):
                units, rounded = units[unseen], rounded[unseen]
            placed, is_new = self._place(units, rounded)
            found[is_unseen] = placed[np.searchsorted(unseen, first[is_unseen])]
            unseen = unseen[is_new]
            numbers = range(n_before, self._n)
            self._slot_of.update(zip(keys[unseen].tolist(), numbers, strict=True))
            slots.append(found[inverse])
            new.append(start + unseen)
        return np.concatenate(slots), np.concatenate(new)

    def _place(self, units: FloatArray, rounded: Half) -> tuple[IntArray, IntArray]:
        """Return the number of each row's unique row, and which rows are new."""
        dim = units.shape[1]
        if self._axes is None and self._n + len(units) > _EXACT_ROWS and dim > 1.5 * _N_PROJECTED:
            axes, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, _N_PROJECTED)))
            self._axes = (axes * np.sqrt(dim / _N_PROJECTED)).astype(np.float32)
            self._closest = _SLACK * (NEAR_COPY - 1)
            self._points = _swapped(self._project(self.rows))
        if self._n > self._made_for:
            self._make_cells()
        points = self._project(units)
        found = np.full(len(units), -1, dtype=np.int64)
        self._match(units, points, found, self._gaps[0])
        if 0 < 2 * np.count_nonzero(found < 0) < len(units):
            # If most rows are copies, as in a raw log, the few percent that are missed add up.
            self._match(units, points, found, self._gaps[1])
        left = np.flatnonzero(found < 0)
        originals = find_originals(units[left], points[left], self._closest)
        is_new = originals == np.arange(len(left))
        found[left] = (self._n + np.cumsum(is_new) - 1)[originals]
        new = left[is_new]
        self._points = append_rows(self._points, self._n, _swapped(points[new]))
        self._cells = append_rows(self._cells, self._n, self._score(points[new]).argmax(axis=1))
        self._rows = append_rows(self._rows, self._n, rounded[new] + np.float16(0))
        self._n += len(new)
        return found, new

    def _project(self, units: npt.NDArray[Any]) -> FloatArray:
        """Return points: projected rows, and two columns with 1 and minus half the squared norm."""
        n_columns = units.shape[1] if self._axes is None else _N_PROJECTED
        points = np.ones((len(units), n_columns + 2), dtype=np.float32)
        for part in _slices(len(units)):
            rows = np.asarray(units[part], dtype=np.float32)
            points[part, :-2] = rows if self._axes is None else rows @ self._axes
        points[:, -1] = -0.5 * np.einsum("ij,ij->i", points[:, :-2], points[:, :-2])
        return points

    def _make_cells(self) -> None:
        """Choose cells for the current rows and up to four times as many."""
        self._made_for = 4 * self._n
        n_cells = min(round(1.5 * self._made_for**0.5), 2**15, self._n // 2)
        drawn = np.random.default_rng(0).permutation(self._n)[: 4 * n_cells]
        # With half of the projected columns, a copy is in the same cell nearly as often.
        n_columns = self._points.shape[1] - 2 if self._axes is None else _N_PROJECTED // 2
        sample = self._points[drawn, :n_columns]
        # The mean is subtracted, so that no center attracts all points.
        self._mean = sample.mean(axis=0)
        self._centers = as_units(sample[:n_cells] - self._mean + _TINY).T
        scores = self._score(sample[n_cells:])
        gaps = (scores.max(axis=1, keepdims=True) - scores).ravel()
        places = [min(n * len(scores), len(gaps) - 1) for n in (_N_PROBES, _MORE_PROBES)]
        self._gaps = tuple(np.partition(gaps, places)[places])
        cells = [self._score(self._points[part]).argmax(axis=1) for part in _slices(self._n)]
        self._cells = np.concatenate(cells).astype(np.uint16)

    def _score(self, points: FloatArray) -> FloatArray:
        """Return how well every point fits every cell."""
        return np.asarray((points[:, : len(self._mean)] - self._mean) @ self._centers)

    def _match(self, units: FloatArray, points: FloatArray, found: IntArray, gap: float) -> None:
        """For rows without a match, find the most similar unique row in the cells that fit best."""
        left = np.flatnonzero(found < 0)
        pairs = []
        for part in _slices(len(left)):
            scores = self._score(points[left[part]])
            is_probed = scores >= scores.max(axis=1, keepdims=True) - np.float32(gap)
            probing, probed = np.divmod(np.flatnonzero(is_probed), scores.shape[1])
            pairs.append((left[part][probing], probed.astype(np.uint16)))
        if not pairs or not self._n:
            return
        probing, probed = _joined(pairs)
        n_cells = self._centers.shape[1]
        mine = _by_cell(probing, probed, n_cells)
        theirs = _by_cell(np.arange(self._n), self._cells[: self._n], n_cells)

        def search(start: int, end: int) -> tuple[IntArray, IntArray, FloatArray]:
            near = [_NO_PAIRS]
            for rows, members in zip(mine[start:end], theirs[start:end], strict=True):
                others = self._points.take(members, axis=0)
                step = max(1, min(_STRIP_ROWS, _TILE // max(1, len(members))))
                for at in range(0, len(rows) if len(members) else 0, step):
                    part = rows[at : at + step]
                    close = np.flatnonzero(points.take(part, axis=0) @ others.T > self._closest)
                    # If a model puts all texts close together, most pairs are close.
                    if 64 * len(close) > len(part) * len(members):
                        cosines = units[part] @ self._rows[members].astype(np.float32).T
                        a, b = np.nonzero(cosines > NEAR_COPY)
                        near.append((part[a], members[b], cosines[a, b]))
                    elif len(close):
                        a, b = np.divmod(close, len(members))
                        right = self._rows[members[b]].astype(np.float32)
                        cosines = np.einsum("ij,ij->i", units[part[a]], right)
                        is_near = cosines > NEAR_COPY
                        near.append((part[a[is_near]], members[b[is_near]], cosines[is_near]))
            return _joined(near)

        strips = strips_in_order(search, n_cells, -(-n_cells // 16))
        near, slots, cosines = _joined([pairs for _, _, pairs in strips])
        order = np.lexsort((-slots, cosines))
        found[near[order]] = slots[order]  # the last one stays, which is the most similar


_NO_PAIRS = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)


def _swapped(points: FloatArray) -> FloatArray:
    """Swap the last two columns: products of both forms are minus half the squared distances."""
    return np.concatenate([points[:, :-2], points[:, :-3:-1]], axis=1)


def _by_cell(numbers: IntArray, cells: npt.NDArray[Any], n_cells: int) -> list[IntArray]:
    """Return the numbers in each cell, in their order."""
    edges = np.bincount(cells, minlength=n_cells).cumsum()[:-1]
    return np.split(numbers[np.argsort(cells, kind="stable")], edges)


def _slices(n_rows: int) -> Iterator[slice]:
    return (slice(at, min(at + _STRIP_ROWS, n_rows)) for at in range(0, n_rows, _STRIP_ROWS))


def _joined(parts: list[Any]) -> Any:
    return tuple(np.concatenate(some) for some in zip(*parts, strict=True))


@dataclass(frozen=True, eq=False)
class References:
    """The past queries of a fit: every row, or the unique ones."""

    embeddings: Embeddings
    n_given: int
    fingerprint: str
    # For unique rows: their numbers among the given rows, and the number of rows each represents.
    rows: IntArray | None = None
    counts: IntArray | None = None
    # Whether these are a random sample of a larger number of unique rows.
    is_sample: bool = False

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def params(self) -> dict[str, Any]:
        """Entries for the `params` of a bias; empty unless only unique rows are used."""
        sampled = {"references_sampled": True} if self.is_sample else {}
        return {} if self.counts is None else {"n_unique": len(self), **sampled}


def unique_rows(references: Embeddings, progress: Progress | None = None) -> References:
    """Return the unique rows of past queries; those of a bank are already unique."""
    if references.counts is not None:
        given, fingerprint = references.n_queries, references.fingerprint
        is_sample = int(references.counts.sum()) < given
        rows = np.arange(len(references))
        return References(references, given, fingerprint, rows, references.counts, is_sample)
    kept = references
    if len(references) <= _EXACT_ROWS:
        whole = references.rows(0, len(references))
        rows, counts = np.unique(find_originals(whole), return_counts=True)
        if not references.in_memory:
            kept = Embeddings([whole[rows]], references.name)  # avoids reading the source again
    elif len(references) <= _FEW_ROWS:
        rows, counts = _search(references, progress)
    else:
        hashes = np.concatenate([hash_rows(block) for _, block in references.blocks()])
        _, rows, counts = np.unique(hashes, return_index=True, return_counts=True)
        order = np.argsort(rows)
        rows, counts = rows[order], counts[order]
        has_copies = len(rows) <= _FEW_ROWS
        if not has_copies:  # estimate the number of near-duplicates of a random row
            rng, n_drawn = np.random.default_rng(0), min(len(rows), _N_COMPARED)
            units = as_units(references.take(rng.choice(rows, n_drawn, replace=False)))
            n_near = np.count_nonzero(units[:_N_SAMPLED] @ units.T > NEAR_COPY) - _N_SAMPLED
            has_copies = bool(n_near / _N_SAMPLED * len(rows) / n_drawn >= _FEW_COPIES)
        if has_copies:
            rows, counts = _search(references, progress)
    if len(kept) > len(rows):
        kept = references.subset(rows)
    return References(kept, len(references), references.fingerprint, rows, counts)


def find_originals(
    rows: FloatArray, points: FloatArray | None = None, closest: float = 0
) -> IntArray:
    """Return the number of the unique row that each row is a copy of, or its own number.

    All rows are compared with each other. With the points of unit rows, exact cosines are computed
    only for rows that have a close row before them.
    """
    units = rows if points is not None else as_units(rows)
    originals = np.arange(len(rows))
    is_unique = np.zeros(len(rows), dtype=bool)
    others = None if points is None else _swapped(points).T
    for start in range(0, len(units), _STRIP_ROWS):
        part = slice(start, min(start + _STRIP_ROWS, len(units)))
        doubtful = np.arange(part.start, part.stop)
        if points is not None and others is not None:
            is_close = points[part] @ others[:, : part.stop] > closest
            is_close[:, part.start :] &= np.tri(len(is_close), k=-1, dtype=bool)
            is_unique[part] = ~is_close.any(axis=1)
            doubtful = doubtful[~is_unique[part]]
        cosines = units[doubtful] @ units[: part.stop].T
        for row, near in zip(doubtful.tolist(), cosines, strict=True):
            near[:row] *= is_unique[:row]
            near[row:] = 0
            if near.max() > NEAR_COPY:
                originals[row] = near.argmax()
            else:
                is_unique[row] = True
    return originals


def _search(references: Embeddings, progress: Progress | None) -> tuple[IntArray, IntArray]:
    """Return the numbers of the unique rows, and the number of rows that each represents."""
    unique = UniqueRows(np.empty((0, references.dim), np.float16))
    slots, rows = [], []
    for start, block in references.blocks():
        found, new = unique.add(block)
        slots.append(found)
        rows.append(start + new)
        if progress is not None:
            progress(start + len(block), len(references))
    return np.concatenate(rows), np.bincount(np.concatenate(slots))


def drop_copies(
    references: Embeddings, duplicates: Duplicates = "drop", progress: Progress | None = None
) -> References:
    """Return the unique rows, or every row if duplicates are kept."""
    if duplicates not in ("drop", "keep"):
        raise NNNormError(f"duplicates must be 'drop' or 'keep'; got {duplicates!r}")
    if duplicates == "keep" and references.counts is not None:
        raise NNNormError(
            'duplicates="keep" needs all past queries, but a bank has only the unique ones; leave '
            "out duplicates, or pass the queries themselves"
        )
    if duplicates == "keep":
        return References(references, len(references), references.fingerprint)
    unique = unique_rows(references, progress)
    if not unique.is_sample and len(unique) < min(_FEW_UNIQUE, unique.n_given / 10):
        warn(
            f"only {len(unique):,} of the {unique.n_given:,} rows of {unique.embeddings.name} are "
            f"unique queries. The others have a cosine above {NEAR_COPY} with one of them, so they "
            "count as copies; if your model puts different queries this close together, pass the "
            'queries themselves with duplicates="keep" (fit --set duplicates=keep)'
        )
    return unique


def describe_unique(n_unique: int, sampled: bool = False) -> str:
    """Describe a number of unique queries: ``412 unique``, ``412 sampled``."""
    return f"{n_unique:,} {'sampled' if sampled else 'unique'}"


def describe_size(n_references: int, n_unique: int | None, sampled: bool = False) -> str:
    """Describe a number of past queries: ``500 past queries (412 unique)``."""
    size = plural(n_references, "past query")
    if n_unique is None or n_unique == n_references:
        return size
    return f"{size} ({describe_unique(n_unique, sampled)})"
