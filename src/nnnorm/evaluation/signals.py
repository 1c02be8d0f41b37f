"""Signals: what an item does to past queries, compared with what is usual.

An item that was made to be found differs from honest ones:

    bias         the mean of its 16 best scores with the references
    neighbours   the same, beyond what items with as close neighbors in the gallery get
    intents      number of topics of the references with a query that has it among its ten best
    firsts       number of references that have it in first place
    blends       number of blends of two references that have it in first place
    side         how far it lies from the gallery towards the references

`Expected` learns from a part of a gallery, the *landmarks*, what is usual, and measures any items
against that: those of the gallery, or new ones. Every number becomes a robust z. Near copies share
the counts of one of them, so that a hub can't hide among its own copies.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import as_units
from nnnorm.embeddings import Embeddings, check_same_dim, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.files import Progress
from nnnorm.reducers import KeepBestValues
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Done, Products, reduce_rows, top_k

FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

SIGNALS = ("bias", "neighbours", "intents", "firsts", "blends", "side")
COUNTS = ("intents", "firsts", "blends")

# The work is bounded by these, whatever the sizes of gallery and bank; the figures of docs/scan.md
# are measured with them.
_MOST_LANDMARKS = _MOST_REFERENCES = 8192
_N_BLENDS = 4096
# Weight of the second reference of a blend.
_BLEND = 0.5
_REFERENCE_K = 16
# Places that count as retrieved; one is too few to see topics in a bank of some thousands.
_PLACES = 10
_N_NEIGHBOURS = 10
# Items this close, as a cosine, are copies of each other.
_COPY = 0.98
_MOST_TOPICS = 64
# Rows of a product of landmarks with landmarks: 16 MB at most.
_BLOCK_ROWS = 512
# Items whose neighbors are found at once; the neighbors of all would take more than the budget.
_CHUNK_ROWS = 16384
_N_FOLDS = 5
_SHRINKAGE = 0.1
# Products of other block sizes differ in the last bits.
_ROUNDING = 1e-6
# Fewer items or references have no spread to judge by.
_FEWEST = 8
# z stops here on either side: one signal alone does not make up for all others.
_LEAST_Z, _LARGEST_Z = -3.0, 1000.0


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of items before they are compared with anything."""

    bias: DoubleArray
    density: DoubleArray
    intents: DoubleArray
    firsts: DoubleArray
    blends: DoubleArray
    side: DoubleArray
    # The landmark that an item is a copy of, or is itself; −1 if there is none.
    leader: IntArray


class Expected:
    """What is usual for an item of a gallery, by past queries; made once, asked for any items."""

    def __init__(
        self,
        landmarks: Embeddings,
        references: Embeddings,
        *,
        seed: int = 0,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> None:
        check_same_dim(landmarks, references)
        for rows in (landmarks, references):
            if len(rows) < _FEWEST:
                raise NNNormError(
                    f"{rows.name} has {len(rows)} rows; {_FEWEST} or more are needed to tell what "
                    "is usual"
                )
        rng = np.random.default_rng(seed)
        self._memory_budget = memory_budget
        chosen = _choose(landmarks, _MOST_LANDMARKS, rng)
        bank = references.take(_choose(references, _MOST_REFERENCES, rng))
        items = landmarks.take(chosen)
        is_first = _first_of_copies(items)
        self.chosen, items = chosen[is_first], items[is_first]
        self._rows, self._units = _open(items, "landmarks"), _open(as_units(items), "landmarks")
        self._references = _open(bank, "references")
        self._topics = _find_topics(bank, rng)
        self._blends = _open(_blend(bank, rng), "blends")
        self.n_references, self.n_blends = len(bank), len(self._blends)
        self.n_topics = int(self._topics.max()) + 1
        work = self.n_references + self.n_blends
        self._work_per_item = work + len(items)
        done = Done(progress, (work + self._work_per_item) * len(items))
        tops = self._thresholds(self._references, _PLACES, done)
        self._first, self._retrieved = tops[:, 0].copy(), tops[:, -1].copy()
        self._first_of_blends = self._thresholds(self._blends, 1, done)[:, 0].copy()
        self._sides = _Sides(items, bank, rng)
        self._of_landmarks = self._measure(self._rows, np.arange(len(items)), done)
        self._line = _fit_line(self._of_landmarks.density, self._of_landmarks.bias)
        self._usual = {n: _usual(values) for n, values in self._raw(self._of_landmarks).items()}
        self.medians = {n: int(np.median(getattr(self._of_landmarks, n))) for n in COUNTS}

    def _thresholds(self, queries: Embeddings, n_places: int, done: Done) -> FloatArray:
        """The scores at the first places of each query's ranking of the landmarks."""
        found = top_k(
            Products(queries, self._rows, memory_budget=self._memory_budget),
            min(n_places, len(self._rows)),
            memory_budget=self._memory_budget,
        ).scores
        done.add(len(queries) * len(self._rows))
        return np.asarray(found - _ROUNDING * np.abs(found))

    def measure(
        self, items: Embeddings, own: IntArray | None = None, progress: Progress | None = None
    ) -> Numbers:
        """Measure items in one pass over references, blends and landmarks."""
        own = np.full(len(items), -1) if own is None else own
        rest = np.flatnonzero(own < 0)
        done = Done(progress, self._work_per_item * len(items))
        if 2 * len(rest) <= len(items):  # the others have been measured as landmarks
            known = vars(self._of_landmarks)
            measured = Numbers(**{name: values[own] for name, values in known.items()})
            if len(rest):
                some = self._measure(items.subset(rest), own[rest], done)
                for name, values in vars(some).items():
                    getattr(measured, name)[rest] = values
        else:
            measured = self._measure(items, own, done)
        copies = np.flatnonzero(measured.leader >= 0)
        shared = {name: getattr(measured, name).copy() for name in COUNTS}
        for name, values in shared.items():
            leaders = getattr(self._of_landmarks, name)[measured.leader[copies]]
            values[copies] = np.maximum(values[copies], leaders)
        return replace(measured, **shared)

    def compare(self, numbers: Numbers) -> dict[str, DoubleArray]:
        """Turn numbers into robust z, by signal."""
        found = {}
        for name, values in self._raw(numbers).items():
            median, spread = self._usual[name]
            z = (values - median) / spread if spread else np.zeros(len(values))
            found[name] = np.clip(z, _LEAST_Z, _LARGEST_Z)
        return found

    def _raw(self, numbers: Numbers) -> dict[str, DoubleArray]:
        """The numbers on scales on which honest items are about evenly spread."""
        return {
            "bias": numbers.bias,
            "neighbours": numbers.bias - self._line[0] - self._line[1] * numbers.density,
            "intents": np.log1p(numbers.intents),
            "firsts": np.sqrt(numbers.firsts + 0.5),
            "blends": np.sqrt(numbers.blends + 0.5),
            "side": numbers.side,
        }

    def _measure(self, items: Embeddings, own: IntArray, done: Done) -> Numbers:
        n_items, k = len(items), self._reference_k
        bias, intents, firsts, blends = (np.empty(n_items) for _ in range(4))

        def reduce(
            columns: Embeddings, make: Callable[[int], Any], per_row: int
        ) -> Iterator[tuple[slice, Any]]:
            for start, stop, found in reduce_rows(
                Products(items, columns, memory_budget=self._memory_budget),
                make,
                bytes_per_score=5,
                bytes_per_row=per_row,
                memory_budget=self._memory_budget,
                narrowest=k,
            ):
                yield slice(start, stop), found
                done.add((stop - start) * len(columns))

        def keep_topics(n: int) -> _KeepTopics:
            return _KeepTopics(n, k, self._retrieved, self._topics, self._first)

        for part, found in reduce(
            self._references, keep_topics, 4 * (10 * k + 128) + self.n_topics
        ):
            bias[part] = found[0].mean(axis=1, dtype=np.float64)
            intents[part], firsts[part] = found[1:]
        for part, counts in reduce(
            self._blends, lambda n: _KeepCounts(n, self._first_of_blends), 16
        ):
            blends[part] = counts
        density, leader = self._neighbours(items, own, done)
        side = np.concatenate(
            [
                self._sides.project(block, leader[start : start + len(block)])
                for start, block in items.blocks()
            ]
        )
        return Numbers(bias, density, intents, firsts, blends, side, leader)

    @property
    def _reference_k(self) -> int:
        return min(_REFERENCE_K, max(1, self.n_references // 4))

    def _neighbours(
        self, items: Embeddings, own: IntArray, done: Done
    ) -> tuple[DoubleArray, IntArray]:
        """Mean cosine with the nearest other landmarks, and the landmark an item is a copy of."""
        k = min(_N_NEIGHBOURS + 1, len(self._units))
        density, leader = np.empty(len(items)), own.copy()
        for start in range(0, len(items), _CHUNK_ROWS):
            part = slice(start, min(start + _CHUNK_ROWS, len(items)))
            units = _open(as_units(items.rows(part.start, part.stop)), "items")
            found = top_k(Products(units, self._units), k, memory_budget=self._memory_budget)
            is_self = found.indices == own[part, None]
            # Copies say nothing about how dense a place is: many of them would make it look so.
            is_other = ~is_self & (found.scores <= _COPY)
            n_others = is_other.sum(axis=1)
            sums = np.where(is_other, found.scores, 0).sum(axis=1, dtype=np.float64)
            density[part] = np.where(n_others > 0, sums / np.maximum(n_others, 1), _COPY)
            is_copy = (own[part] < 0) & (found.scores[:, 0] > _COPY)
            leader[part] = np.where(is_copy, found.indices[:, 0], own[part])
            done.add(len(units) * len(self._units))
        return density, leader


class _KeepTopics:
    """Of a strip of items: best scores, number of topics that retrieve them, first places."""

    def __init__(
        self, n_rows: int, k: int, retrieved: FloatArray, topics: IntArray, first: FloatArray
    ) -> None:
        self._best, self._firsts = KeepBestValues(n_rows, k), _KeepCounts(n_rows, first)
        self._retrieved, self._topics = retrieved, topics
        self._found = np.zeros((n_rows, int(topics.max()) + 1), dtype=bool)

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        last = first_column + block.shape[1]
        hits = np.flatnonzero(block[rows] >= self._retrieved[first_column:last])
        places, columns = np.divmod(hits, block.shape[1])
        self._found[rows.start + places, self._topics[first_column + columns]] = True
        self._firsts.update(block, first_column, rows)
        self._best.update(block, first_column, rows)

    def finish(self) -> tuple[FloatArray, IntArray, DoubleArray]:
        return self._best.finish(), self._found.sum(axis=1), self._firsts.finish()


class _KeepCounts:
    """Of a strip of items: the number of columns in which they reach a threshold."""

    def __init__(self, n_rows: int, thresholds: FloatArray) -> None:
        self._thresholds, self._counts = thresholds, np.zeros(n_rows)

    def update(self, block: FloatArray, first_column: int, rows: slice) -> None:
        reached = block[rows] >= self._thresholds[first_column : first_column + block.shape[1]]
        self._counts[rows] += np.count_nonzero(reached, axis=1)

    def finish(self) -> DoubleArray:
        return self._counts


class _Sides:
    """Linear discriminants between gallery and references, each from four fifths of the rows."""

    def __init__(self, items: FloatArray, references: FloatArray, rng: np.random.Generator) -> None:
        self._fold_of = rng.permutation(len(items)) % _N_FOLDS
        of_reference = rng.permutation(len(references)) % _N_FOLDS
        directions, usual = [], []
        for fold in range(_N_FOLDS):
            known = items[self._fold_of != fold], references[of_reference != fold]
            directions.append(_discriminant(*known))
            usual.append(_usual(items[self._fold_of == fold] @ directions[-1]))
        self._directions = np.stack(directions, axis=1)
        self._medians = np.array([median for median, _ in usual])
        self._spreads = np.array([spread or 1.0 for _, spread in usual])

    def project(self, rows: FloatArray, leader: IntArray) -> DoubleArray:
        """How far rows lie towards the references, in spreads of the landmarks."""
        scores = (rows @ self._directions - self._medians) / self._spreads
        fold = np.where(leader >= 0, self._fold_of[leader], 0)
        own = np.take_along_axis(scores, fold[:, None], axis=1)[:, 0]
        return np.where(leader >= 0, own, scores.mean(axis=1))


def _discriminant(items: FloatArray, references: FloatArray) -> DoubleArray:
    apart = references.mean(axis=0, dtype=np.float64) - items.mean(axis=0, dtype=np.float64)
    within = np.atleast_2d((np.cov(items.T) + np.cov(references.T)) / 2)
    usual = float(np.trace(within)) / len(within)
    within = (1 - _SHRINKAGE) * within + np.eye(len(within)) * (_SHRINKAGE * usual + 1e-12)
    return np.asarray(np.linalg.solve(within, apart))


def _usual(values: DoubleArray) -> tuple[float, float]:
    """Median and upper spread; counts have heavier tails above than the median deviation says."""
    median, high = np.quantile(values, [0.5, 0.9])
    spread = max(1.4826 * float(np.median(np.abs(values - median))), (high - median) / 1.2816)
    if spread == 0:
        spread = 1.2533 * float(np.abs(values - median).mean())
    return float(median), float(spread)


def _choose(rows: Embeddings, most: int, rng: np.random.Generator) -> IntArray:
    if len(rows) <= most:
        return np.arange(len(rows))
    return np.sort(rng.choice(len(rows), most, replace=False))


def _open(rows: FloatArray, name: str) -> Embeddings:
    rows = np.ascontiguousarray(rows)
    return open_embeddings(rows, name=name, normalize=False, fingerprint=False)


def _first_of_copies(rows: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether no earlier row is a near copy; all rows if too few would be left."""
    units = as_units(rows)
    is_first = np.ones(len(rows), dtype=bool)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = units[start : start + _BLOCK_ROWS]
        near = block @ units[: start + len(block)].T > _COPY
        is_first[start : start + len(block)] = ~np.tril(near, start - 1).any(axis=1)
    return is_first if is_first.sum() >= _FEWEST else np.ones(len(rows), dtype=bool)


def _find_topics(rows: FloatArray, rng: np.random.Generator) -> IntArray:
    """The topic of each reference, by eight rounds of spherical k-means."""
    units = as_units(rows)
    n_topics = max(2, min(_MOST_TOPICS, len(units) // 10))
    centers = units[rng.permutation(len(units))[:n_topics]]
    for _ in range(8):
        sums = np.zeros_like(centers)
        np.add.at(sums, (units @ centers.T).argmax(axis=1), units)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centers = np.where(norms > 0, sums / np.maximum(norms, 1e-12), centers)
    return np.asarray((units @ centers.T).argmax(axis=1))


def _blend(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    """References, each with half of another one added, of the norm of the first."""
    rounds = [rng.permutation(len(rows)) for _ in range(-(-_N_BLENDS // len(rows)))]
    first = np.concatenate(rounds)[:_N_BLENDS]
    second = (first + rng.integers(1, len(rows), size=len(first))) % len(rows)
    blends = rows[first] + _BLEND * rows[second]
    norms = np.linalg.norm(blends, axis=1)
    is_used = norms > 0  # opposite references cancel out
    scale = np.linalg.norm(rows[first[is_used]], axis=1) / norms[is_used]
    return np.asarray(blends[is_used] * scale[:, None], dtype=np.float32)


def _fit_line(x: DoubleArray, y: DoubleArray) -> DoubleArray:
    """Intercept and slope by least squares, without the rows that are far from the line."""
    columns = np.stack([np.ones(len(x)), x], axis=1)
    used = np.ones(len(x), dtype=bool)
    line: DoubleArray = np.zeros(2)
    for _ in range(5):
        line = np.asarray(np.linalg.lstsq(columns[used], y[used], rcond=None)[0])
        rest = np.abs(y - columns @ line)
        used = rest <= 3 * 1.4826 * np.median(rest) + 1e-12
    return line
