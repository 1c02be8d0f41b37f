"""Unique queries: every past query counts once, however often and in how many wordings it came.

Query logs repeat themselves. Without this step the k best references of a popular item would be k
copies of one query, and popularity would pass for hubness.

A row is a copy if it equals an earlier row, or if its cosine with an earlier unique row is above
`NEAR_COPY`. A hash finds equal rows. Near copies are looked for if there are at most 32,768 rows,
or if random rows have at least two near copies each on average. With fewer, popular queries hardly
change a mean, and the search takes as long as scoring 2,000 items.

Up to 4,096 rows, every row is compared with all others. Beyond that, rows are projected to 64
dimensions, each unique row belongs to the cell of the closest of some √n sampled rows, and a new
row is compared with the rows of about 10 cells close to it. The time grows with n·√n, and a few
percent of the near copies are missed.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, FloatArray, IntArray, measure_rows
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress
from nnnorm.scoring import strips_in_order

Duplicates = Literal["drop", "keep"]
Half: TypeAlias = npt.NDArray[np.float16]
_Cells: TypeAlias = npt.NDArray[np.uint16]
# Row, other row, cosine.
_Pairs: TypeAlias = tuple[IntArray, IntArray, FloatArray]

# Two wordings of one query have a cosine of about 0.9 and more in CLIP-like models, and captions of
# one picture by different people about 0.7: docs/automatic-rule.md has the figures.
NEAR_COPY = 0.88

_EXACT_ROWS = 4096
# Whether near copies are looked for: number of rows, rows sampled, near copies per sampled row.
_FEW_ROWS, _N_SAMPLED, _FEW_COPIES = 2**15, 128, 2.0
_BATCH_VALUES = 2**24  # 32,768 rows of 512 dimensions
_STRIP_ROWS = 1024
_TILE = 2**18
_N_PROJECTED = 64
_N_PROBES, _MORE_PROBES = 10, 40
# A projected squared distance has a standard deviation of 17 %: 1.4 loses 1 % at the threshold.
_SLACK = 1.4
# More near pairs per row than this are a flood of copies; the rows are then split.
_MOST_PAIRS = 16
_TINY = np.float32(1e-20)
# Fewer unique rows than this, if nine in ten rows were copies, may come from a model that puts all
# texts close together, and not from a log that repeats itself.
_FEW_UNIQUE = 32


def round_rows(rows: FloatArray) -> Half:
    """Unit rows in float16: the form in which rows are compared and `Bank` keeps them."""
    return as_units(rows).astype(np.float16) + np.float16(0)  # -0 becomes 0


def as_units(rows: npt.NDArray[Any]) -> FloatArray:
    """Rows divided by their norms, in float32."""
    wide = np.asarray(rows, dtype=np.float32)
    return np.asarray(wide / measure_rows(wide, "rows")[:, None]) if len(wide) else wide


def hash_rows(rows: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint64]:
    """A number per row, the same for equal rows."""
    n_rows, dim = rows.shape
    weights = np.random.default_rng(0).integers(2**63, size=-(-dim // 2), dtype=np.uint64) * 2 + 1
    hashes = np.empty(n_rows, dtype=np.uint64)
    buffer = np.zeros((256, 2 * len(weights)), dtype=np.float32)
    for start in range(0, n_rows, len(buffer)):  # in the cache of a core
        some = rows[start : start + len(buffer)]
        np.add(some, np.float32(0), out=buffer[: len(some), :dim])  # -0 becomes 0
        words = buffer[: len(some)].view(np.uint64)
        # The upper half of a word alone would only change the upper half of the sum.
        hashes[start : start + len(some)] = (words ^ (words >> np.uint64(32))) @ weights
    return hashes


def draw_luck(rows: Half, seed: int) -> npt.NDArray[np.float64]:
    """A Gumbel number per row, from its values and the seed: the highest are a random sample."""
    key = str(seed).encode()
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8, key=key).digest() for row in rows]
    shares = ((np.frombuffer(b"".join(digests), dtype="<u8") >> np.uint64(11)) + 0.5) / 2**53
    return np.asarray(-np.log(-np.log(shares)))


def append_rows(array: npt.NDArray[Any], n: int, more: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Put `more` after the first `n` rows; an array that is too short is copied to a longer one."""
    if n + len(more) > len(array):
        longer = np.empty((max(n + len(more), 2 * n), *more.shape[1:]), dtype=more.dtype)
        if n:
            longer[:n] = array[:n]
        array = longer
    array[n : n + len(more)] = more
    return array


class _Grid:
    """Cells of points: every point belongs to one, and searches those that score nearly as well."""

    def __init__(self, sample: FloatArray, n_cells: int) -> None:
        self.n_cells = n_cells
        # Points less their mean decide, so that no center attracts all of them.
        self._mean = sample.mean(axis=0)
        self._centers = as_units(sample[:n_cells] - self._mean + _TINY).T
        self._gaps = [np.inf, np.inf]
        if n_cells > 1:
            scores = self._score(sample[n_cells:])
            gaps = (scores.max(axis=1, keepdims=True) - scores).ravel()
            places = [min(n * len(scores), len(gaps) - 1) for n in (_N_PROBES, _MORE_PROBES)]
            self._gaps = [float(gap) for gap in np.partition(gaps, places)[places]]

    def _score(self, points: FloatArray) -> FloatArray:
        return np.asarray((points[:, : len(self._mean)] - self._mean) @ self._centers)

    def assign(self, points: FloatArray, more: bool = False) -> tuple[_Cells, IntArray, _Cells]:
        """The cell of every point, and pairs of a point and a cell to search, or more of them."""
        scores = self._score(points)
        cells = scores.argmax(axis=1)
        least = scores[np.arange(len(cells)), cells] - np.float32(self._gaps[more])
        probing, probed = np.divmod(np.flatnonzero(scores >= least[:, None]), self.n_cells)
        return cells.astype(np.uint16), probing, probed.astype(np.uint16)

    def by_cell(self, numbers: IntArray, cells: _Cells) -> list[IntArray]:
        """The numbers in each cell, in their order."""
        edges = np.bincount(cells, minlength=self.n_cells).cumsum()[:-1]
        return np.split(numbers[np.argsort(cells, kind="stable")], edges)


class _Batch(NamedTuple):
    """Different rows that arrive at once, and where they are in a grid."""

    rows: FloatArray
    points: FloatArray
    cells: _Cells
    probing: IntArray
    probed: _Cells


class Added(NamedTuple):
    """What became of a batch: the slot of every row, which rows are new, and all rows rounded."""

    slots: IntArray
    new: IntArray
    rounded: Half


class Deduplicator:
    """Finds unique rows among rows that arrive in batches; the n-th unique row gets slot n."""

    def __init__(self, read: Callable[[IntArray], npt.NDArray[Any]], n_slots: int = 0) -> None:
        self._read, self._n = read, n_slots
        self._slot_of: dict[int, int] = {}
        for part in _slices(n_slots):
            slots = np.arange(part.start, part.stop)
            self._slot_of.update(zip(hash_rows(read(slots)).tolist(), slots.tolist(), strict=True))
        self._grid = _Grid(np.ones((1, 1), np.float32), 1)
        self._axes: FloatArray | None = None
        self._made_for, self._closest = 0, 0.0
        self._points, self._cells = np.empty((0, 0), np.float32), np.empty(0, np.uint16)

    def __len__(self) -> int:
        return self._n

    def add(self, rows: FloatArray) -> Added:
        """Add a batch of rows in the order of arrival."""

        def prepare(start: int, stop: int) -> tuple[Half, npt.NDArray[np.uint64]]:
            some = round_rows(rows[start:stop])
            return some, hash_rows(some)

        rounded, keys = _joined(_in_strips(prepare, len(rows)))
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        slots = np.array([self._slot_of.get(key, -1) for key in keys[first].tolist()])
        is_unseen = slots < 0
        unseen, n_before = np.sort(first[is_unseen]), self._n
        found, new = np.empty(0, np.int64), np.empty(0, np.int64)
        if len(unseen):
            batch = self._locate(rows if len(unseen) == len(rows) else rows[unseen])
            found, new = self._place(batch)
        slots[is_unseen] = found[np.searchsorted(unseen, first[is_unseen])]
        new = unseen[new]
        self._slot_of.update(zip(keys[new].tolist(), range(n_before, self._n), strict=True))
        return Added(slots[inverse], new, rounded)

    # --- where rows are ----------------------------------------------------------------------

    def _locate(self, rows: FloatArray) -> _Batch:
        """Project rows and find their cells; make new cells if there are too few."""
        if is_too_many := self._n + len(rows) > self._made_for:
            self._choose_axes(rows.shape[1], self._n + len(rows))
        points = np.concatenate(_in_strips(lambda a, b: self._project(rows[a:b]), len(rows)))
        if is_too_many:
            self._make_grid(points)
        return _Batch(rows, points, *self._assign(points))

    def _assign(self, points: FloatArray, more: bool = False) -> tuple[_Cells, IntArray, _Cells]:
        found = _in_strips(lambda a, b: self._grid.assign(points[a:b], more), len(points))
        for number, (_, probing, _) in enumerate(found):
            probing += number * _STRIP_ROWS
        return cast(tuple[_Cells, IntArray, _Cells], _joined(found))

    def _choose_axes(self, dim: int, n_rows: int) -> None:
        """Choose the projection for so many rows and up to four times as many to come."""
        self._made_for = _EXACT_ROWS if n_rows <= _EXACT_ROWS else 4 * n_rows
        self._axes, self._closest = None, 1.01 * (NEAR_COPY - 1)
        if n_rows > _EXACT_ROWS and dim > 1.5 * _N_PROJECTED:
            axes, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, _N_PROJECTED)))
            self._axes = (axes * np.sqrt(dim / _N_PROJECTED)).astype(np.float32)
            self._closest = _SLACK * (NEAR_COPY - 1)
        unique = [self._read(np.arange(part.start, part.stop)) for part in _slices(self._n)]
        unique = [self._project(rows.astype(np.float32)) for rows in unique]
        empty = np.empty((0, (dim if self._axes is None else _N_PROJECTED) + 2), np.float32)
        self._points = np.concatenate([empty, *unique])

    def _make_grid(self, points: FloatArray) -> None:
        """Make cells, and find those of the unique rows so far."""
        n = self._n + len(points)
        n_cells = 1 if n <= _EXACT_ROWS else min(round(1.5 * self._made_for**0.5), 2**15)
        drawn = np.random.default_rng(0).permutation(n)[: 4 * n_cells]
        sample = points[np.maximum(drawn - self._n, 0)]
        sample[drawn < self._n] = self._points[drawn[drawn < self._n]]
        # Centers that are copies of one query would divide its copies among several cells.
        swapped, is_copy = _swapped(sample).T, np.zeros(len(sample), dtype=bool)
        for part in _slices(len(sample)):
            is_close = sample[part] @ swapped[:, : part.stop] > self._closest
            is_copy[part] = np.tril(is_close, part.start - 1).any(axis=1)
        sample = sample[~is_copy]
        # Half of the projected columns find the same cell nearly as often as all of them.
        n_columns = sample.shape[1] - 2 if self._axes is None else _N_PROJECTED // 2
        self._grid = _Grid(sample[:, :n_columns], max(1, min(n_cells, len(sample) // 2)))
        cells = [self._grid.assign(self._points[part])[0] for part in _slices(self._n)]
        self._cells = np.concatenate([np.empty(0, np.uint16), *cells])

    def _project(self, rows: FloatArray) -> FloatArray:
        """Points: projected unit rows and two more columns, 1 and minus half the squared norm."""
        norms = measure_rows(rows, "rows")[:, None]
        rows = rows if self._axes is None else rows @ self._axes
        points = np.ones((len(rows), rows.shape[1] + 2), dtype=np.float32)
        np.divide(rows, norms, out=points[:, :-2])
        points[:, -1] = -0.5 * np.einsum("ij,ij->i", points[:, :-2], points[:, :-2])
        return points

    # --- which rows are near -----------------------------------------------------------------

    def _place(self, batch: _Batch) -> tuple[IntArray, IntArray]:
        """Find the slot of every row, and which rows got a new one."""
        found = np.full(len(batch.rows), -1, dtype=np.int64)
        new: list[IntArray] = [np.empty(0, np.int64)]
        n_before = self._n

        def read_new(slots: IntArray) -> FloatArray:
            return batch.rows[np.concatenate(new)[slots - n_before]]

        def match(
            batch: _Batch, which: IntArray, first: int, read: Callable[[IntArray], Any]
        ) -> IntArray:
            """Note the most similar unique row from a slot on; return the rows without one."""
            others = np.arange(first, self._n)
            points, cells = self._points, self._cells[first : self._n]
            near, slots, cosines = self._pairs(batch, which, others, cells, points, read)
            order = np.lexsort((-slots, cosines))
            found[near[order]] = slots[order]  # the last of several stays
            return which[found[which] < 0]

        def admit(which: IntArray) -> None:
            """Make the first of near rows unique, in the order of arrival."""
            most, n_unique = _MOST_PAIRS * (len(which) + 256), self._n
            cells, rows = batch.cells[which], batch.rows.__getitem__
            pairs = self._pairs(batch, which, which, cells, batch.points, rows, most)
            if len(pairs[0]) > most:
                half = len(which) // 2
                admit(which[:half])
                admit(match(batch, which[half:], n_unique, read_new))
                return
            first, second, cosines = pairs
            later, earlier = np.maximum(first, second), np.minimum(first, second)
            order = np.lexsort((earlier, later))
            best: dict[int, tuple[float, int]] = {}
            ordered = (some[order].tolist() for some in (later, earlier, cosines))
            for row, other, cosine in zip(*ordered, strict=True):
                if other not in best and cosine > best.get(row, (0.0, 0))[0]:
                    best[row] = cosine, other
            unique = which[~np.isin(which, list(best))]
            found[unique] = np.arange(self._n, self._n + len(unique))
            for row, (_, other) in best.items():
                found[row] = found[other]
            new.append(unique)
            self._points = append_rows(self._points, self._n, batch.points[unique])
            self._cells = append_rows(self._cells, self._n, batch.cells[unique])
            self._n += len(unique)

        left = match(batch, np.arange(len(batch.rows)), 0, self._read)
        if 0 < 2 * len(left) < len(batch.rows):
            # Most rows of a raw log are copies, so a few percent missed would add up.
            _, probing, probed = self._assign(batch.points[left], more=True)
            wider = batch._replace(probing=left[probing], probed=probed)
            left = match(wider, left, 0, self._read)
        admit(left)
        return found, np.concatenate(new)

    def _pairs(
        self,
        batch: _Batch,
        which: IntArray,
        others: IntArray,
        cells: _Cells,
        points: FloatArray,
        read: Callable[[IntArray], Any],
        most: float = np.inf,
    ) -> _Pairs:
        """Near pairs of some rows of a batch and others, or those found first if too many."""
        is_chosen = np.zeros(len(batch.rows), dtype=bool)
        is_chosen[which] = True
        is_chosen = is_chosen[batch.probing]
        mine = self._grid.by_cell(batch.probing[is_chosen], batch.probed[is_chosen])
        theirs = self._grid.by_cell(others, cells)

        def search(start: int, end: int) -> _Pairs:
            pairs, loose, n_pairs = [_NO_PAIRS], [_NO_PAIRS[:2]], 0
            for rows, members in zip(mine[start:end], theirs[start:end], strict=True):
                swapped = _swapped(points.take(members, axis=0))
                step = max(1, min(_STRIP_ROWS, _TILE // max(1, len(members))))
                for at in range(0, len(rows) if len(members) else 0, step):
                    part = rows[at : at + step]
                    products = batch.points.take(part, axis=0) @ swapped.T
                    close = np.flatnonzero(products > self._closest)
                    if others is which and len(close):
                        close = close[part[close // len(members)] != members[close % len(members)]]
                    if not len(close):
                        continue
                    # Of a model that puts all texts close together, most pairs are close.
                    if 64 * len(close) < products.size:
                        a, b = np.divmod(close, len(members))
                        loose.append((part[a], members[b]))
                        continue
                    cosines = as_units(batch.rows[part]) @ as_units(read(members)).T
                    if others is which:
                        cosines[part[:, None] == members] = 0
                    a, b = np.nonzero(cosines > NEAR_COPY)
                    pairs.append((part[a], members[b], cosines[a, b]))
                    n_pairs += len(a)
                    if n_pairs > most:
                        return cast(_Pairs, _joined(pairs))
            first, second = _joined(loose)
            for some in _slices(len(first)):
                left, right = as_units(batch.rows[first[some]]), as_units(read(second[some]))
                cosines = np.einsum("ij,ij->i", left, right)
                near = np.flatnonzero(cosines > NEAR_COPY)
                pairs.append((first[some][near], second[some][near], cosines[near]))
            return cast(_Pairs, _joined(pairs))

        found, n_found, n_cells = [_NO_PAIRS], 0, self._grid.n_cells
        for _, _, pairs in strips_in_order(search, n_cells, -(-n_cells // 16), threading.Event()):
            found.append(pairs)
            n_found += len(pairs[0])
            if n_found > most:
                break
        return cast(_Pairs, _joined(found))


_NO_PAIRS: _Pairs = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)


def _swapped(points: FloatArray) -> FloatArray:
    points = points.copy()
    points[:, -2:] = points[:, :-3:-1].copy()
    return points


def _slices(n_rows: int) -> Iterator[slice]:
    return (slice(at, min(at + _STRIP_ROWS, n_rows)) for at in range(0, n_rows, _STRIP_ROWS))


def _in_strips(work: Callable[[int, int], Any], n_rows: int) -> list[Any]:
    stop = threading.Event()
    return [found for _, _, found in strips_in_order(work, n_rows, _STRIP_ROWS, stop)]


def _joined(parts: list[Any]) -> Any:
    return tuple(np.concatenate(some) for some in zip(*parts, strict=True))


@dataclass(frozen=True, eq=False)
class UniqueRows:
    """The unique rows of past queries."""

    embeddings: Embeddings
    rows: IntArray
    counts: IntArray
    n_rows: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def is_sample(self) -> bool:
        """Whether these are a random sample of more unique rows."""
        return int(self.counts.sum()) < self.n_rows


# What a method is fitted on: all rows, or the unique ones.
References: TypeAlias = Embeddings | UniqueRows


def unique_rows(references: Embeddings, progress: Progress | None = None) -> UniqueRows:
    """Find the unique rows of past queries."""
    if len(references) <= _EXACT_ROWS:
        originals = find_originals(references.rows(0, len(references)))
        rows, counts = np.unique(originals, return_counts=True)
    else:
        hashes = np.concatenate([hash_rows(block) for _, block in references.blocks()])
        _, rows, counts = np.unique(hashes, return_index=True, return_counts=True)
        order = np.argsort(rows)
        rows, counts = rows[order], counts[order]
        if len(rows) <= _FEW_ROWS or _count_near_copies(references, rows) >= _FEW_COPIES:
            rows, counts = _search(references, progress)
    kept_rows = references if len(rows) == len(references) else references.subset(rows)
    return UniqueRows(kept_rows, rows, counts, len(references), references.fingerprint)


def find_originals(rows: FloatArray) -> IntArray:
    """The number of the unique row that each row is a copy of, or its own: all are compared."""
    units, originals = as_units(rows), np.arange(len(rows))
    is_unique = np.zeros(len(rows), dtype=bool)
    for part in _slices(len(rows)):
        cosines = units[part] @ units[: part.stop].T
        for row, near in enumerate(cosines, part.start):
            near *= is_unique[: part.stop]
            if near.max() > NEAR_COPY:
                originals[row] = near.argmax()
            else:
                is_unique[row] = True
    return originals


def _count_near_copies(references: Embeddings, rows: IntArray) -> float:
    """Estimate how many near copies among different rows a random one has."""
    drawn = np.random.default_rng(0).choice(rows, _N_SAMPLED, replace=False, shuffle=False)
    sampled = as_units(references.take(drawn))
    is_first = np.zeros(len(references), dtype=bool)
    is_first[rows] = True

    def count(start: int, stop: int) -> int:
        block = references.rows(start, stop)
        least = NEAR_COPY * measure_rows(block, "rows")
        is_near = sampled @ block.T > least
        return int(np.count_nonzero(is_near[:, is_first[start:stop]]))

    return sum(_in_strips(count, len(references))) / _N_SAMPLED - 1


def _search(references: Embeddings, progress: Progress | None) -> tuple[IntArray, IntArray]:
    """Find the rows that are no near copies, and how many rows each stands for."""
    rows = np.empty(0, dtype=np.int64)
    found = Deduplicator(lambda slots: references.take(rows[slots]))
    slots = np.empty(len(references), dtype=np.int64)
    size = max(1, _BATCH_VALUES // references.dim)
    for start in range(0, len(references), size):
        n_before, stop = len(found), min(start + size, len(references))
        added = found.add(references.rows(start, stop))
        slots[start:stop] = added.slots
        rows = append_rows(rows, n_before, added.new + start)
        if progress is not None:
            progress(stop, len(references))
    return rows[: len(found)], np.bincount(slots)


def drop_copies(
    references: Embeddings, duplicates: Duplicates = "drop", progress: Progress | None = None
) -> References:
    """Return the unique rows, which a bank has already, or every row if duplicates are kept."""
    if duplicates not in ("drop", "keep"):
        raise NNNormError(f"duplicates must be 'drop' or 'keep'; got {duplicates!r}")
    if references.counts is None and duplicates == "keep":
        return references
    if references.counts is None:
        unique = unique_rows(references, progress)
    elif duplicates == "drop":
        everything, n_rows = np.arange(len(references)), references.n_queries
        unique = UniqueRows(
            references, everything, references.counts, n_rows, references.fingerprint
        )
    else:
        raise NNNormError(
            "a bank keeps every unique query once, so it has no duplicates to keep; leave out "
            'duplicates, or give the queries themselves with duplicates="keep"'
        )
    if not unique.is_sample and len(unique) < min(_FEW_UNIQUE, unique.n_rows / 10):
        warn(
            f"only {len(unique):,} of the {unique.n_rows:,} rows of {unique.embeddings.name} are "
            f"unique queries: the others have a cosine above {NEAR_COPY} with one of these and "
            "count as copies; if your model puts different queries this close together, pass the "
            'queries themselves with duplicates="keep" (--duplicates keep)'
        )
    return unique


def used_rows(references: References) -> Embeddings:
    """The rows that a method is fitted on."""
    return references.embeddings if isinstance(references, UniqueRows) else references


def count_references(references: References) -> int:
    """Number of past queries that were given, copies included."""
    return references.n_rows if isinstance(references, UniqueRows) else len(references)


def is_sample(references: References) -> bool:
    """Whether the rows are a random sample of more unique rows."""
    return isinstance(references, UniqueRows) and references.is_sample


def count_params(references: References) -> dict[str, Any]:
    """What the `params` of a bias say about unique queries; nothing if every row is used."""
    if not isinstance(references, UniqueRows):
        return {}
    sampled = {"references_sampled": True} if references.is_sample else {}
    return {"n_unique": len(references)} | sampled


def describe_unique(n_unique: int, sampled: bool = False) -> str:
    """A number of unique queries in words: ``412 unique``, ``412 sampled``."""
    return f"{n_unique:,} {'sampled' if sampled else 'unique'}"


def describe_size(n_references: int, n_unique: int | None, sampled: bool = False) -> str:
    """A number of references in words, with the number of unique ones if that differs."""
    size = f"{n_references:,} references"
    if n_unique is None or n_unique == n_references:
        return size
    return f"{size} ({describe_unique(n_unique, sampled)})"
