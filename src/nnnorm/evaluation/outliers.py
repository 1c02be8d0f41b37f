"""Outliers: items that look adversarial or corrupt, found without labels.

Six signals distinguish adversarial items from other items:

    bias         the mean of the item's 16 best scores with the past queries
    neighbors    the bias, compared with items whose neighbors in the gallery are as close
    topics       number of topics of past queries that have the item in the top ten of a query
    firsts       number of past queries whose top-1 is the item
    blends       number of blends of two past queries whose top-1 is the item
    side         how far the item lies from the gallery toward the past queries

`Expected` measures typical values on a sample of a gallery, the *landmarks*. Items of the gallery
(`scan`) or new items (`screen`) are compared with them. Each signal becomes a robust z, and their
sum is an item's score. A budget limits the number of alerts. Near-duplicates share one count, so a
hub can't hide among its own copies. Zeros, constants and unusual norms are always reported.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from nnnorm import embeddings
from nnnorm.arrays import Ids
from nnnorm.bank import Bank
from nnnorm.corrector import Correction, open_corrector
from nnnorm.dedup import as_units, drop_copies
from nnnorm.embeddings import DoubleArray, Embeddings, FloatArray, IntArray, Source, ValidRows
from nnnorm.errors import NNNormError
from nnnorm.evaluation.results import Record
from nnnorm.files import PathLike, Progress, write_whole
from nnnorm.methods import open_references
from nnnorm.ranking import search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, count_threads, draw_rows, strips_in_order
from nnnorm.tables import check_ids

Verdict = Literal["fine", "watch", "remove"]
# A share ("0.2%", 0.002) or a number of alerts.
Budget: TypeAlias = str | float | int

_REASONS = {
    "bias": "its scores with past queries are {z:.1f} spreads above the median item's",
    "neighbors": "its scores with past queries are {z:.1f} spreads above those of items with "
    "equally close neighbors",
    "topics": "{n:,} of {of} topics retrieve it (a typical item: {usual})",
    "firsts": "it is top-1 for {n:,} of {of:,} past queries (a typical item: {usual})",
    "blends": "it is top-1 for {n:,} of {of:,} blends of past queries (a typical item: {usual})",
    "side": "it is {z:.1f} standard deviations closer to past queries than other items",
}
SIGNALS = tuple(_REASONS)
DEFAULT_BUDGET = "0.2%"
# A share always allows this many alerts, because in a small gallery it may be less than one.
LEAST_ALERTS = 5
# Limits of the sum of six robust z; docs/outliers.md has sums of clean and adversarial items.
WATCH, REMOVE = 10.0, 17.0
# Signals with at least this z are listed as reasons.
_NOTABLE = 3.0
# Norms this close to 1 are rounded unit norms.
_UNIT = 5e-3
# If this share of the rows has unit norms, other norms are faults.
_MOSTLY = 0.9
# If norms vary, a norm this many times larger or smaller than the median is a fault.
_ODD_NORM = 4.0

# Measurements of an item. `leader` is the landmark that it equals or copies, or −1.
_NUMBERS = ("bias", "density", "topics", "firsts", "blends", "side", "leader")
_COUNTS = ("topics", "firsts", "blends")
# These limit the work for any size of gallery and bank. docs/outliers.md was measured with them.
_MOST_LANDMARKS = _MOST_REFERENCES = 8192
_N_BLENDS = 4096
# Weight of the second reference of a blend.
_BLEND = 0.5
_REFERENCE_K = 16
# Top hits that count as retrieved. With one, a few thousand past queries don't show topics.
_PLACES = 10
_N_NEIGHBORS = 10
# Items this close, as a cosine, are copies of each other.
_COPY = 0.98
_MOST_TOPICS = 64
# Rows that are multiplied with all landmarks or references at once.
_STRIP_ROWS = 256
_N_FOLDS = 5
_SHRINKAGE = 0.1
# Products of blocks of different sizes differ in the last bits.
_ROUNDING = 1e-6
# Fewer items or references are too few to estimate a spread.
_FEWEST = 8
# z is limited to this range, so one signal alone can't outweigh all others.
_LEAST_Z, _LARGEST_Z = -3.0, 1000.0


@dataclass(frozen=True)
class Outlier(Record):
    """An item to watch or to remove; broken rows have no score and no signals."""

    item: int
    id: Any  # the row if items have no ids
    verdict: Verdict
    reasons: tuple[str, ...]
    score: float | None
    signals: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Scan(Record):
    """The result of a scan; its outliers are sorted: broken rows first, then the worst items."""

    _rows = "outliers"

    outliers: tuple[Outlier, ...]
    scores: DoubleArray = field(repr=False)
    signals: Mapping[str, DoubleArray] = field(repr=False)
    n_items: int
    n_references: int
    budget: int | None
    ids: Ids | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        n_bad, n_watched = self.count("remove"), self.count("watch")
        return f"Scan({self.n_items:,} items, {n_bad:,} to remove, {n_watched:,} to watch)"

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of every item."""
        found: list[Verdict] = ["fine"] * self.n_items
        for outlier in self.outliers:
            found[outlier.item] = outlier.verdict
        return found

    @property
    def to_remove(self) -> list[Any]:
        """The ids (or rows) of the items to remove."""
        return [outlier.id for outlier in self.outliers if outlier.verdict == "remove"]

    @property
    def kept(self) -> IntArray:
        """The rows of all items except those to remove."""
        return np.flatnonzero([verdict != "remove" for verdict in self.verdicts])

    def count(self, verdict: Verdict) -> int:
        """Count the items with a verdict."""
        return self.verdicts.count(verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return counts and outliers, ready for JSON; fine items aren't listed."""
        counts = {verdict: self.count(verdict) for verdict in ("fine", "watch", "remove")}
        return super().to_dict() | counts

    def save(self, path: PathLike) -> None:
        """Write the ids of `to_remove`: a JSON list, or text with one per line."""
        path, ids = Path(path), self.to_remove
        if path.suffix not in (".txt", ".json"):
            raise NNNormError(f"the file of ids must end in .txt or .json; got {path}")
        text = json.dumps(ids, ensure_ascii=False) + "\n"
        if path.suffix == ".txt":
            if broken := [one for one in map(str, ids) if one.strip().splitlines() != [one]]:
                raise NNNormError(f"{broken[0]!r} can't be a line of {path}; write a .json file")
            text = "".join(f"{one}\n" for one in ids)
        write_whole(path, lambda file: file.write(text.encode()))


def scan(
    gallery: Source,
    references: Source | Bank | None = None,
    *,
    corrector: Correction | None = None,
    ids: Sequence[Any] | None = None,
    budget: Budget = DEFAULT_BUDGET,
    normalize: bool | None = None,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Scan:
    """Find adversarial and corrupt items: each item is fine, to watch, or to remove.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
        The items to check. Rows of zeros or NaN are reported, not rejected.
    references : Bank, array or path, shape (n_references, dim)
        Past queries.
    corrector : Corrector or path, optional
        Replaces the references: its past queries and its normalization are used.
    ids : sequence of int or of str, optional
        One per item.
    budget : str, float or int
        The maximum number of alerts: ``"0.2%"`` or 0.002 of the items (at least five), or a whole
        number. Corrupt rows don't count.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`. Not with a corrector.
    seed : int
        Random seed of samples, topics and blends.
    memory_budget : int
        Bytes to use beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Scan

    Examples
    --------
    >>> from nnnorm import load_shapes
    >>> shapes = load_shapes()
    >>> adversarial = shapes.references[1000:1400].mean(axis=0, keepdims=True)
    >>> gallery = np.concatenate([shapes.gallery, adversarial / np.linalg.norm(adversarial)])
    >>> found = scan(gallery, shapes.references[:1000])
    >>> found.outliers[0].item, found.outliers[0].verdict
    (1000, 'remove')
    """
    if (references is None) == (corrector is None):
        got = "neither" if corrector is None else "both"
        raise NNNormError(f"scan needs references (past queries) or a corrector; got {got}")
    if corrector is not None and normalize is not None:
        raise NNNormError("a corrector sets the normalization; leave out normalize (--normalize)")
    if corrector is None:
        items = embeddings.open_valid(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        embeddings.check_same_norms(items.embeddings, past, normalize=normalize)
        bank = drop_copies(past, "drop", progress).embeddings
    else:
        loaded = open_corrector(corrector)
        items, bank = loaded.open_valid(gallery, "gallery"), loaded.bank
    alerts = count_alerts(budget, items.n_rows)
    faults = _find_odd_norms(items.embeddings)
    # Rows with faults would distort the typical values.
    sound = np.setdiff1d(np.arange(len(items.embeddings)), list(faults))
    landmarks = items.embeddings.subset(sound) if faults else items.embeddings
    expected = Expected(landmarks, bank, seed, memory_budget=memory_budget, progress=progress)
    return _compare(expected, items, faults, ids, alerts)


def screen(
    corrector: Correction,
    items: Source,
    *,
    ids: Sequence[Any] | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Scan new items before you add them, with a corrector's past queries and item sample."""
    corrector = open_corrector(corrector)
    rows = corrector.open_valid(items, "items")
    unit = True if corrector.unit and not rows.embeddings.normalized else None
    faults = _find_odd_norms(rows.embeddings, unit=unit, norms=corrector.item_norms)
    sample = corrector.sample.astype(np.float32)
    known = embeddings.open_embeddings(sample, name="items", normalize=corrector.normalize)
    return _compare(Expected(known, corrector.bank, progress=progress), rows, faults, ids, None)


def count_alerts(budget: Budget, n_items: int) -> int:
    """Return the number of alerts of a budget ("0.2%", 0.002 or 20); at least five for a share."""
    text = str(budget).strip()
    is_percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        number = math.nan
    is_share = is_percent or number < 1
    if not (0 < number <= 1 if is_share else number % 1 == 0):
        raise NNNormError(
            "budget must be a share of the items such as '0.2%' or 0.002, or a whole number of "
            f"alerts; got {budget!r}"
        )
    if is_share:
        number = max(LEAST_ALERTS, math.floor(number * n_items + 1e-9))
    return min(n_items, int(number))


def _find_odd_norms(
    items: Embeddings, *, unit: bool | None = None, norms: tuple[float, float] | None = None
) -> dict[int, str]:
    """Return the faults of rows: constant rows, and norms that differ from the others."""
    lengths, faults = np.empty(len(items)), {}
    for start, block in items.blocks():
        lengths[start : start + len(block)] = np.linalg.norm(block, axis=1)
        if items.dim > 2:
            for row in np.flatnonzero(np.ptp(block, axis=1) == 0):
                faults[start + int(row)] = "all its entries are equal"
    is_unit = np.abs(lengths - 1) <= _UNIT
    if unit or (unit is None and norms is None and is_unit.mean() >= _MOSTLY):
        odd, words = ~is_unit, "others have unit norms"
    else:
        low, high = (float(np.median(lengths)),) * 2 if norms is None else norms
        odd = (lengths > _ODD_NORM * high) | (lengths * _ODD_NORM < low)
        words = f"others have {low:.3g}" + (f" to {high:.3g}" if high > low else "")
    found = {int(row): f"its norm is {lengths[row]:.3g}, {words}" for row in np.flatnonzero(odd)}
    return faults | found


def _compare(
    expected: "Expected", valid: ValidRows, faults: Mapping[int, str], ids: Any, budget: int | None
) -> Scan:
    """Compare items with what is expected; `faults` has the rows of `valid.embeddings`."""
    n_items = valid.n_rows
    names = check_ids(ids, n_items, name=valid.embeddings.name) if ids is not None else valid.ids
    numbers = expected.measure(valid.embeddings.rows, len(valid.embeddings))
    signals = {name: np.full(n_items, np.nan) for name in SIGNALS}
    for name, values in expected.compare(numbers).items():
        signals[name][valid.rows] = values
    broken = dict(valid.faults) | {int(valid.rows[row]): words for row, words in faults.items()}
    scores = np.sum(list(signals.values()), axis=0)
    scores[list(broken)] = np.inf
    outliers = []
    most = n_items if budget is None else len(broken) + budget
    order = np.argsort(-scores, kind="stable")[:most]
    for item in order[scores[order] >= WATCH].tolist():
        name = item if names is None else names[item].item()
        if item in broken:
            outliers.append(Outlier(item, name, "remove", (broken[item],), None, {}))
            continue
        verdict: Verdict = "remove" if scores[item] >= REMOVE else "watch"
        own_signals = {name: round(float(signals[name][item]), 2) for name in SIGNALS}
        reasons = expected.explain(numbers, int(np.searchsorted(valid.rows, item)), own_signals)
        score = round(float(scores[item]), 2)
        outliers.append(Outlier(item, name, verdict, reasons, score, own_signals))
    return Scan(tuple(outliers), scores, signals, n_items, expected.n_references, budget, names)


# --- typical items -------------------------------------------------------------------------------


class Expected:
    """Typical measurements of the items of a gallery, which other items are compared with."""

    def __init__(
        self, landmarks: Embeddings, references: Embeddings, seed: int = 0, **run: Any
    ) -> None:
        embeddings.check_same_dim(landmarks, references)
        for rows in (landmarks, references):
            if len(rows) < _FEWEST:
                raise NNNormError(f"scan needs {_FEWEST} rows of {rows.name}; got {len(rows)}")
        rng = np.random.default_rng(seed)
        items = landmarks.take(draw_rows(len(landmarks), _MOST_LANDMARKS, rng))
        bank = references.take(draw_rows(len(references), _MOST_REFERENCES, rng))
        items = items[_first_of_copies(items)]
        topics = _find_topics(bank, rng)
        order = np.argsort(topics, kind="stable")
        self._topic_starts = np.flatnonzero(np.diff(topics[order], prepend=-1))
        self._blends = _blend(bank, rng)
        self._sides = _Sides(items, bank, rng)
        self._references, self.n_references = bank[order], len(bank)
        self._units = as_units(items)
        # A strip holds its scores and their order, 12 bytes each, on every thread.
        per_row = 12 * max(len(bank), len(items)) * count_threads()
        budget = run.get("memory_budget", DEFAULT_MEMORY_BUDGET)
        self._n_strip = int(np.clip(budget // (2 * per_row), 8, _STRIP_ROWS))
        self._progress: Progress | None = run.get("progress")

        def find_best(queries: FloatArray, k: int) -> FloatArray:
            """Return the scores of the best landmarks of every query."""
            best = search(queries, items, k=min(k, len(items)), normalize=False, **run).scores
            return np.asarray(best - _ROUNDING * np.abs(best), dtype=np.float32)

        best = find_best(self._references, _PLACES)
        self._first, self._retrieved = best[:, 0], best[:, -1]
        self._first_of_blends = find_best(self._blends, 1)[:, 0]
        self._of_landmarks: dict[str, DoubleArray] = {}
        self._of_landmarks = self.measure(lambda *rows: items[slice(*rows)], len(items))
        self._line = _fit_line(self._of_landmarks["density"], self._of_landmarks["bias"])
        self._usual = {n: _usual(values) for n, values in self._raw(self._of_landmarks).items()}

    def compare(self, numbers: Mapping[str, DoubleArray]) -> dict[str, DoubleArray]:
        """Convert measurements to a robust z per signal."""
        found = {}
        for name, values in self._raw(numbers).items():
            median, spread = self._usual[name]
            z = (values - median) / spread if spread else np.zeros(len(values))
            found[name] = np.clip(z, _LEAST_Z, _LARGEST_Z)
        return found

    def explain(
        self, numbers: Mapping[str, DoubleArray], place: int, z: Mapping[str, float]
    ) -> tuple[str, ...]:
        """Describe the notable signals of an item, or else its strongest one, strongest first."""
        sizes = len(self._topic_starts), self.n_references, len(self._blends)
        total = dict(zip(_COUNTS, sizes, strict=True))
        ordered = sorted(SIGNALS, key=lambda name: -z[name])
        reasons = []
        for name in [name for name in ordered if z[name] >= _NOTABLE] or ordered[:1]:
            about = {"z": z[name]}
            if name in _COUNTS:
                usual = int(np.median(self._of_landmarks[name]))
                about = {"n": int(numbers[name][place]), "of": total[name], "usual": usual}
            reasons.append(_REASONS[name].format(**about))
        leader = numbers["leader"]
        n_copies = int((leader == leader[place]).sum())
        if leader[place] >= 0 and n_copies > 1:
            reasons.append(f"it is one of {n_copies:,} near-duplicates")
        return tuple(reasons)

    def _raw(self, numbers: Mapping[str, DoubleArray]) -> dict[str, DoubleArray]:
        """Return the measurements, rescaled so that those of typical items spread evenly."""
        return {
            "bias": numbers["bias"],
            "neighbors": numbers["bias"] - self._line[0] - self._line[1] * numbers["density"],
            "topics": np.log1p(numbers["topics"]),
            "firsts": np.sqrt(numbers["firsts"] + 0.5),
            "blends": np.sqrt(numbers["blends"] + 0.5),
            "side": numbers["side"],
        }

    def measure(
        self, read: Callable[[int, int], FloatArray], n_rows: int
    ) -> dict[str, DoubleArray]:
        """Measure rows in one pass over references, blends and landmarks; copies share counts."""
        k = min(_REFERENCE_K, max(1, self.n_references // 4))

        def work(start: int, stop: int) -> DoubleArray:
            rows = read(start, stop)
            scores = rows @ self._references.T
            is_retrieved = scores >= self._retrieved
            topics = np.logical_or.reduceat(is_retrieved, self._topic_starts, axis=1).sum(axis=1)
            firsts = np.count_nonzero(scores >= self._first, axis=1)
            scores.partition(self.n_references - k, axis=1)
            bias = scores[:, -k:].mean(axis=1, dtype=np.float64)
            blends = np.count_nonzero(rows @ self._blends.T >= self._first_of_blends, axis=1)
            density, leader = self._neighbors(as_units(rows))
            side = self._sides.project(rows, leader)
            return np.stack([bias, density, topics, firsts, blends, side, leader])

        parts = []
        for _, stop, found in strips_in_order(work, n_rows, self._n_strip):
            parts.append(found)
            if self._progress is not None:
                self._progress(stop, n_rows)
        numbers = dict(zip(_NUMBERS, np.concatenate(parts, axis=1), strict=True))
        copies = np.flatnonzero(numbers["leader"] >= 0)
        leaders = numbers["leader"][copies].astype(np.int64)
        for name in _COUNTS if self._of_landmarks else ():
            shared = self._of_landmarks[name][leaders]
            numbers[name][copies] = np.maximum(numbers[name][copies], shared)
        return numbers

    def _neighbors(self, units: FloatArray) -> tuple[DoubleArray, IntArray]:
        """Return the mean cosine with the nearest other landmarks, and the leader of each row."""
        k = min(_N_NEIGHBORS + 1, len(self._units))
        cosines = units @ self._units.T
        places = np.argpartition(cosines, len(self._units) - k, axis=1)[:, -k:]
        best = np.take_along_axis(cosines, places, axis=1)
        # Copies are left out, because they would inflate the density.
        is_other = best <= _COPY
        n_others = is_other.sum(axis=1)
        sums = np.where(is_other, best, 0).sum(axis=1, dtype=np.float64)
        density = np.where(n_others > 0, sums / np.maximum(n_others, 1), _COPY)
        nearest = np.take_along_axis(places, best.argmax(axis=1)[:, None], axis=1)[:, 0]
        return density, np.where(best.max(axis=1) > _COPY, nearest, -1)


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
        self._medians, spreads = np.array(usual).T
        self._spreads = np.where(spreads > 0, spreads, 1.0)

    def project(self, rows: FloatArray, leader: IntArray) -> DoubleArray:
        """Return how far rows lie toward the references, in spreads of the landmarks."""
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
    """Return the median and the spread of the upper half; counts have a heavy upper tail."""
    median, high = np.quantile(values, [0.5, 0.9])
    spread = max(1.4826 * float(np.median(np.abs(values - median))), (high - median) / 1.2816)
    if spread == 0:
        spread = 1.2533 * float(np.abs(values - median).mean())
    return float(median), float(spread)


def _first_of_copies(rows: FloatArray) -> IntArray:
    """Return which rows aren't copies of earlier ones; all rows if too few would be left."""
    units = as_units(rows)
    is_first = np.ones(len(rows), dtype=bool)
    for start in range(0, len(rows), _STRIP_ROWS):
        block = units[start : start + _STRIP_ROWS]
        near = block @ units[: start + len(block)].T > _COPY
        is_first[start : start + len(block)] = ~np.tril(near, start - 1).any(axis=1)
    return np.flatnonzero(is_first) if is_first.sum() >= _FEWEST else np.arange(len(rows))


def _find_topics(rows: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return the topic of each reference, from eight rounds of spherical k-means."""
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
    """Return each reference plus half of another one, scaled to the norm of the first."""
    rounds = [rng.permutation(len(rows)) for _ in range(-(-_N_BLENDS // len(rows)))]
    first = np.concatenate(rounds)[:_N_BLENDS]
    second = (first + rng.integers(1, len(rows), size=len(first))) % len(rows)
    blends = rows[first] + _BLEND * rows[second]
    norms = np.linalg.norm(blends, axis=1)
    is_used = norms > 0  # opposite references cancel out
    scale = np.linalg.norm(rows[first[is_used]], axis=1) / norms[is_used]
    return np.asarray(blends[is_used] * scale[:, None], dtype=np.float32)


def _fit_line(x: DoubleArray, y: DoubleArray) -> DoubleArray:
    """Return intercept and slope by least squares, without rows far from the line."""
    columns = np.stack([np.ones(len(x)), x], axis=1)
    used = np.ones(len(x), dtype=bool)
    line: DoubleArray = np.zeros(2)
    for _ in range(5):
        line = np.asarray(np.linalg.lstsq(columns[used], y[used], rcond=None)[0])
        rest = np.abs(y - columns @ line)
        used = rest <= 3 * 1.4826 * np.median(rest) + 1e-12
    return line
