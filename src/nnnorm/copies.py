"""Copies and near copies of one intent, found in one pass: every intent counts once in a bank.

Query logs repeat themselves, and the k best references of a popular item would be k copies of one
query: popularity would pass for hubness. So rows are taken in the order in which they arrive. A row
whose cosine with a kept row, its *leader*, is above `SAME_INTENT` is a copy and is counted there;
any other row becomes a leader itself. Above a size limit the leader of the lowest priority leaves.

The result is that of the naive loop, row by row, whatever the sizes of the blocks: products in
float32 only find candidates, and every decision is made in float64 on rows rounded to float16, the
form in which `Bank` keeps them. So adding A and then B equals adding A and B at once.
"""

import hashlib
import heapq
import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, warn
from nnnorm.io import Embeddings, Progress
from nnnorm.scoring import on_a_worker, strips_in_order

Duplicates = Literal["drop", "keep"]
Half: TypeAlias = npt.NDArray[np.float16]
FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
# Pairs of row numbers, and their cosines.
_Pairs: TypeAlias = tuple[IntArray, IntArray, DoubleArray]

# Two wordings of one query have a cosine of about 0.9 and more in CLIP-like models, and captions of
# one picture by different people about 0.7: docs/automatic-rule.md has the figures.
SAME_INTENT = 0.88
# Gains stop growing at about 4,000 references; twice that leaves room for galleries with many
# topics, and bounds the work of a fit and the size of a bank (8 MB at 512 dimensions).
MOST_INTENTS = 8192
# Fewer intents than this, from a bank of which nine in ten rows were copies, may be a model that
# puts all texts close together, and not a log that repeats itself.
_FEW_INTENTS = 32

_SLOTS = ("_rows", "_units", "_counts", "_arrivals", "_seen", "_luck", "_norms")
_BLOCK_ROWS = 2048
# Rows of a product that one thread computes and looks through at once: 8 MB with 8,192 leaders.
_STRIP_ROWS = 256
# Rounding of float32 products and projections stays below this; float64 decides what is closer.
_MARGIN = 1e-4
_N_PRINCIPAL = 64
# With fewer leaders, or fewer dimensions, the product itself costs less than a bound on it.
_LEAST_LEADERS, _LEAST_DIM = 512, 192
# Share of the pairs that a bound may leave before the whole product costs less.
_MOST_LEFT = 0.01


@dataclass(frozen=True, eq=False)
class Intents:
    """The rows of a bank that stand for one intent each.

    Attributes
    ----------
    embeddings : Embeddings, shape (n_intents, dim)
        One row per intent, in the order of arrival.
    rows : ndarray, shape (n_intents,), int64
        Their row numbers in the bank.
    counts : ndarray, shape (n_intents,), int64
        Number of rows that each stands for, itself included. Rows whose intent was left out because
        of the size limit are not counted.
    n_rows : int
        Number of rows of the whole bank; of a `Bank`, the queries that were not forgotten.
    fingerprint : str
        Of the whole bank.
    """

    embeddings: Embeddings
    rows: IntArray
    counts: IntArray
    n_rows: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def is_sample(self) -> bool:
        """Whether there were more intents, and these are a random part of them."""
        return int(self.counts.sum()) < self.n_rows


# What a method is fitted on: all rows of a bank, or one per intent.
References: TypeAlias = Embeddings | Intents


def find_intents(
    references: Embeddings,
    *,
    most: int = MOST_INTENTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Intents:
    """Find one row per intent.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    most : int
        Number of intents to keep; of more, a random part is kept.
    seed : int
        Random seed of that part.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Intents

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> log = np.array([[1.0, 0.0], [0.99, 0.14], [0.0, 1.0], [1.0, 0.0]])
    >>> intents = find_intents(open_embeddings(log, name="references"))
    >>> intents.rows.tolist(), intents.counts.tolist()
    ([0, 2], [3, 1])
    """
    leaders = Leaders(references.dim, most=most, seed=seed)
    for start, block in references.blocks():
        leaders.add(round_rows(block))
        if progress is not None:
            progress(start + len(block), len(references))
    rows = leaders.arrivals
    kept = references if len(rows) == len(references) else references.subset(rows)
    return Intents(kept, rows, leaders.counts, len(references), references.fingerprint)


def without_copies(
    references: Embeddings, duplicates: Duplicates = "drop", progress: Progress | None = None
) -> References:
    """Return one row per intent, or with ``duplicates="keep"`` every row.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> len(without_copies(rows)), len(without_copies(rows, "keep"))
    (4, 8)
    """
    check_duplicates(duplicates)
    if duplicates == "keep":
        return references
    intents = find_intents(references, progress=progress)
    warn_of_few_intents(intents)
    return intents


def check_duplicates(duplicates: Duplicates) -> None:
    """Raise for anything but "drop" and "keep".

    Examples
    --------
    >>> check_duplicates("some")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: duplicates must be 'drop' or 'keep'; got 'some'
    """
    if duplicates not in ("drop", "keep"):
        raise NNNormError(f"duplicates must be 'drop' or 'keep'; got {duplicates!r}")


def warn_of_few_intents(intents: Intents) -> None:
    """Warn where so much counts as copies that different queries may be among them.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> warn_of_few_intents(find_intents(open_embeddings(np.eye(4), name="references")))
    """
    if not intents.is_sample and len(intents) < min(_FEW_INTENTS, intents.n_rows / 10):
        warn(
            f"the {intents.n_rows:,} rows of {intents.embeddings.name} are {len(intents):,} "
            f"intents: all others are closer than a cosine of {SAME_INTENT} to one of these and "
            "count as copies; if they are different queries of a model that puts all texts close "
            'together, fit on the queries themselves with duplicates="keep" (--duplicates keep)'
        )


def used_rows(references: References) -> Embeddings:
    """The rows that a method is fitted on.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> len(used_rows(without_copies(rows))), used_rows(rows) is rows
    (4, True)
    """
    return references.embeddings if isinstance(references, Intents) else references


def count_intents(references: References) -> int | None:
    """Number of intents; None where every row is used.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> count_intents(without_copies(rows)), count_intents(rows)
    (4, None)
    """
    return len(references) if isinstance(references, Intents) else None


def count_references(references: References) -> int:
    """Number of references that were given, copies included.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> count_references(without_copies(rows)), count_references(rows)
    (8, 8)
    """
    return references.n_rows if isinstance(references, Intents) else len(references)


def is_sample(references: References) -> bool:
    """Whether the rows are a random part of the intents, because there are more than are kept.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> is_sample(find_intents(rows, most=3)), is_sample(without_copies(rows)), is_sample(rows)
    (True, False, False)
    """
    return isinstance(references, Intents) and references.is_sample


def count_params(references: References) -> dict[str, Any]:
    """What the `params` of a bias say of the intents; nothing where every row is used.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> count_params(without_copies(rows)), count_params(find_intents(rows, most=3))
    ({'n_intents': 4}, {'n_intents': 3, 'intents_sampled': True})
    """
    if not isinstance(references, Intents):
        return {}
    return {"n_intents": len(references)} | (
        {"intents_sampled": True} if references.is_sample else {}
    )


def describe_intents(n_intents: int, sampled: bool = False) -> str:
    """A number of intents in words.

    Examples
    --------
    >>> describe_intents(412), describe_intents(8192, sampled=True)
    ('412 intents', '8,192 sampled intents')
    """
    return f"{n_intents:,} {'sampled ' if sampled else ''}intents"


def describe_size(n_references: int, n_intents: int | None, sampled: bool = False) -> str:
    """The size of a bank in words, with the number of intents where that is another.

    Examples
    --------
    >>> describe_size(6000, 412), describe_size(57, 57)
    ('6,000 references (412 intents)', '57 references')
    """
    size = f"{n_references:,} references"
    if n_intents is None or n_intents == n_references:
        return size
    return f"{size} ({describe_intents(n_intents, sampled)})"


def round_rows(rows: FloatArray) -> Half:
    """Unit rows in float16: the form in which intents are compared and kept.

    Examples
    --------
    >>> round_rows(np.float32([[3.0, 4.0], [0.0, -2.0]])).tolist()
    [[0.60009765625, 0.7998046875], [0.0, -1.0]]
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64)).astype(np.float32)
    units = (rows / norms[:, None]).astype(np.float16)
    bits = units.view(np.uint16)
    bits[bits == 0x8000] = 0  # makes -0 the 0 that it equals
    return units


def as_units(rows: npt.NDArray[Any]) -> FloatArray:
    """Rows divided by their norms, in float32.

    Examples
    --------
    >>> as_units(np.float16([[3.0, 4.0], [0.0, -2.0]])).round(4).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, -1.0]]
    """
    wide = rows.astype(np.float32)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))


class Leaders:
    """Leaders of all rows that were added so far, and how often and when each was seen.

    A leader's priority is a Gumbel number drawn from a hash of its values and the seed, plus its
    age in half-lives times ln 2. Keeping the highest is sampling without replacement: each intent
    with the same probability, or, with a half-life, half as likely for every half-life that it was
    not seen.

    Parameters
    ----------
    dim : int
    most : int
        Number of leaders to keep.
    seed : int
    half_life : float, optional
        In the unit of the times.
    """

    def __init__(
        self, dim: int, *, most: int = MOST_INTENTS, seed: int = 0, half_life: float | None = None
    ) -> None:
        self.dim, self.most = dim, most
        self._rate = 0.0 if half_life is None else math.log(2) / half_life
        self._key = str(seed).encode()
        self.n_rows = 0
        self._n = 0
        # One entry per slot; a leader that leaves hands its slot to the one that comes.
        self._rows = np.empty((0, dim), dtype=np.float16)
        self._units = np.empty((0, dim), dtype=np.float32)
        self._counts = np.empty(0, dtype=np.int64)
        self._arrivals = np.empty(0, dtype=np.int64)
        self._seen = np.empty(0, dtype=np.float64)
        self._luck = np.empty(0, dtype=np.float64)
        self._norms = np.empty(0, dtype=np.float32)
        self._digests: list[bytes] = []
        self._slot_of: dict[bytes, int] = {}
        # (priority, arrival, slot), lowest first; made when the size limit is reached. Priorities
        # only grow, so an outdated entry is put right when it comes up.
        self._heap: list[tuple[float, int, int]] | None = None
        self._bound = _Bound(dim)

    def __len__(self) -> int:
        return self._n

    @property
    def _order(self) -> IntArray:
        return np.argsort(self._arrivals[: self._n])

    @property
    def rows(self) -> Half:
        """Unit rows in the order of arrival, shape ``(n, dim)``."""
        return np.asarray(self._rows[self._order])

    @property
    def arrivals(self) -> IntArray:
        """The number of each leader's row among all that were added."""
        return np.asarray(self._arrivals[self._order])

    @property
    def counts(self) -> IntArray:
        """How often each was seen."""
        return np.asarray(self._counts[self._order])

    @property
    def last_seen(self) -> DoubleArray:
        """The latest time at which each was seen; 0 where no times were given."""
        return np.asarray(self._seen[self._order])

    @property
    def norms(self) -> FloatArray:
        """The norm of each row before it was rounded; 1 where no norms were given."""
        return np.asarray(self._norms[self._order])

    def copy(self) -> "Leaders":
        """A copy that can be changed by itself."""
        return deepcopy(self)

    def keep(self, chosen: npt.NDArray[Any]) -> None:
        """Keep the chosen ones of the leaders in the order of arrival, and drop all others."""
        slots = self._order[chosen]
        self._heap = None
        for name in _SLOTS:
            setattr(self, name, getattr(self, name)[slots])
        self._digests = [self._digests[slot] for slot in slots]
        self._slot_of = {digest: slot for slot, digest in enumerate(self._digests)}
        self._n = len(slots)
        self._bound = _Bound(self.dim)

    def restore(
        self, n_rows: int, rows: Half, last_seen: DoubleArray, counts: IntArray, norms: FloatArray
    ) -> None:
        """Take leaders as they were, in the order of arrival, instead of finding them anew."""
        shapes = [some.shape for some in (rows, last_seen, counts, norms)]
        if shapes != [(len(rows), self.dim), *[(len(rows),)] * 3] or rows.dtype != np.float16:
            raise ValueError(f"arrays of shapes {shapes}")
        self._n, self.n_rows = len(rows), n_rows
        self._rows, self._units = rows.copy(), as_units(rows)
        self._seen, self._counts, self._norms = last_seen.copy(), counts.copy(), norms.copy()
        self._arrivals = np.arange(-len(rows), 0)  # before any that will come
        self._digests = [self._digest(row) for row in rows]
        self._luck = np.array([_draw(digest) for digest in self._digests])
        self._slot_of = {digest: slot for slot, digest in enumerate(self._digests)}

    def add(
        self,
        rows: Half,
        times: DoubleArray | None = None,
        counts: IntArray | None = None,
        norms: FloatArray | None = None,
    ) -> None:
        """Add rows in the order of arrival, as `round_rows` gives them."""
        when = np.zeros(len(rows)) if times is None else times
        how_often = np.ones(len(rows), dtype=np.int64) if counts is None else counts
        lengths = np.ones(len(rows), dtype=np.float32) if norms is None else norms

        def add_all() -> None:
            for start in range(0, len(rows), _BLOCK_ROWS):
                part = slice(start, start + _BLOCK_ROWS)
                about = (some[part].tolist() for some in (when, how_often, lengths))
                self._add_block(rows[part], *about)

        # Thousands of small products: threads of BLAS would only wait for each other.
        on_a_worker(add_all)

    def _add_block(
        self, rows: Half, times: list[float], counts: list[int], norms: list[float]
    ) -> None:
        digests = [self._digest(row) for row in rows]
        number_of: dict[bytes, int] = {}
        numbers = [number_of.setdefault(digest, len(number_of)) for digest in digests]
        _, firsts = np.unique(numbers, return_index=True)
        block = _Block(self, rows[firsts], list(number_of))
        latest = np.full(len(firsts), -np.inf)
        np.maximum.at(latest, numbers, times)
        block.look_ahead(latest)
        for number, time, count, norm in zip(numbers, times, counts, norms, strict=True):
            slot = int(block.best[number])
            if slot < 0:
                slot = self._admit(block, number, time)
                if slot >= 0:
                    self._norms[slot] = norm
            if slot >= 0:
                self._counts[slot] += count
                if time > self._seen[slot]:
                    self._seen[slot] = time
            self.n_rows += 1

    def _admit(self, block: "_Block", number: int, time: float) -> int:
        """Make a row a leader, and return its slot; -1 where its own priority is the lowest."""
        luck = block.luck[number]
        slot, is_full = self._n, self._n >= self.most
        if is_full:
            lowest, arrival, slot = self._lowest()
            if (luck + self._rate * time, self.n_rows) < (lowest, arrival):
                return -1
            del self._slot_of[self._digests[slot]]
        else:
            self._make_room()
            self._digests.append(b"")
            self._n += 1
        self._rows[slot], self._units[slot] = block.rows[number], block.units[number]
        self._counts[slot], self._arrivals[slot] = 0, self.n_rows
        self._seen[slot], self._luck[slot] = time, luck
        self._digests[slot] = block.digests[number]
        self._slot_of[block.digests[number]] = slot
        self._bound.put(slot, self._units[slot])
        if is_full and self._heap is not None:
            heapq.heapreplace(self._heap, (luck + self._rate * time, self.n_rows, slot))
            block.lose(slot)
        block.gain(number, slot)
        return slot

    def _make_room(self) -> None:
        if self._n < len(self._rows):
            return
        size = min(self.most, max(64, 2 * self._n))
        for name in _SLOTS:
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]), dtype=old.dtype)
            new[: self._n] = old[: self._n]
            setattr(self, name, new)

    def _lowest(self) -> tuple[float, int, int]:
        """Priority, arrival and slot of the leader that leaves next."""
        if self._heap is None:
            priorities = self._luck[: self._n] + self._rate * self._seen[: self._n]
            arrivals = self._arrivals[: self._n].tolist()
            self._heap = list(zip(priorities.tolist(), arrivals, range(self._n), strict=True))
            heapq.heapify(self._heap)
        while True:
            priority, arrival, slot = self._heap[0]
            now = float(self._luck[slot] + self._rate * self._seen[slot])
            if now == priority:
                return priority, arrival, slot
            heapq.heapreplace(self._heap, (now, arrival, slot))

    def _digest(self, row: Half) -> bytes:
        return hashlib.blake2b(row.tobytes(), digest_size=16, key=self._key).digest()

    def near(self, rows: Half, units: FloatArray) -> _Pairs:
        """Pairs of rows and slots whose cosine is above `SAME_INTENT`."""
        leaders = self._units[: self._n]
        places = self._bound.screen(units, leaders)
        return _confirm(rows, units, self._rows[: self._n], leaders, places)


class _Block:
    """The different rows of one block: the leader of each, now, and what will be if that leaves.

    `best` is the slot of the most similar leader of each row, -1 where it has none.
    """

    def __init__(self, leaders: Leaders, rows: Half, digests: list[bytes]) -> None:
        self.leaders, self.rows, self.digests = leaders, rows, digests
        self.units = as_units(rows)
        self.luck = [_draw(digest) for digest in digests]
        slots = [leaders._slot_of.get(digest, -1) for digest in digests]
        self.best = np.array(slots, dtype=np.int64)
        self.cosines = np.where(self.best < 0, -np.inf, np.inf)
        # Further leaders of a row: (cosine, -arrival, slot).
        self._others: defaultdict[int, list[tuple[float, int, int]]] = defaultdict(list)
        new = np.flatnonzero(self.best < 0)
        found, slot, cosine = leaders.near(rows[new], self.units[new])
        for number, near, alike in zip(
            new[found].tolist(), slot.tolist(), cosine.tolist(), strict=True
        ):
            self._offer(number, near, alike)
        # Rows near a row that may become a leader, found for all of these at once.
        self._ahead: dict[int, tuple[IntArray, DoubleArray]] = {}

    def look_ahead(self, latest: DoubleArray) -> None:
        """Compare the rows that may become leaders with all others.

        Parameters
        ----------
        latest : ndarray
            The last time of each row within the block.
        """
        leaders = self.leaders
        may_lead = self.best < 0
        if len(leaders) >= leaders.most:
            may_lead &= np.array(self.luck) + leaders._rate * latest >= leaders._lowest()[0]
        numbers = np.flatnonzero(may_lead)
        found, others, cosines = self._compare(numbers)
        edges = np.searchsorted(found, np.arange(len(numbers) + 1))
        for place, number in enumerate(numbers.tolist()):
            part = slice(edges[place], edges[place + 1])
            self._ahead[number] = others[part], cosines[part]

    def _compare(self, numbers: IntArray) -> _Pairs:
        units = self.units[numbers]
        places = _dense(units, self.units)
        return _confirm(self.rows[numbers], units, self.rows, self.units, places)

    def _offer(self, number: int, slot: int, cosine: float) -> None:
        arrival = int(self.leaders._arrivals[slot])
        self._others[number].append((cosine, -arrival, slot))
        best = int(self.best[number])
        rival = (self.cosines[number], -int(self.leaders._arrivals[best]))
        if best < 0 or (cosine, -arrival) > rival:
            self.best[number], self.cosines[number] = slot, cosine

    def gain(self, number: int, slot: int) -> None:
        """Note that a row of the block became a leader."""
        if number not in self._ahead:
            _, others, cosines = self._compare(np.array([number]))
            self._ahead[number] = others, cosines
        for other, cosine in zip(*(part.tolist() for part in self._ahead[number]), strict=True):
            if other != number:
                self._offer(other, slot, cosine)
        self.best[number], self.cosines[number] = slot, np.inf

    def lose(self, slot: int) -> None:
        """Note that the leader which had this slot has left."""
        for number in np.flatnonzero(self.best == slot).tolist():
            self.best[number], self.cosines[number] = -1, -np.inf
            left = [
                found
                for found in self._others[number]
                if self.leaders._arrivals[found[2]] == -found[1]
            ]
            if left:
                self.cosines[number], _, self.best[number] = max(left)


class _Bound:
    """Which pairs can be near, from a few principal dimensions of the leaders.

    With orthonormal axes Q, h = uQ and ρ = ‖u − uQQᵀ‖, Cauchy and Schwarz give
    ``u·v ≤ [h, ρ]·[h', ρ']``. The axes decide how fast this is, never what is found.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._axes = np.empty((dim, 0), dtype=np.float32)
        self._made_for = 0
        self._projected = np.empty((0, 1), dtype=np.float32)

    @property
    def _is_useful(self) -> bool:
        return self._axes.shape[1] > 0

    def put(self, slot: int, unit: FloatArray) -> None:
        """Note a new leader."""
        if not self._is_useful:
            return
        if slot >= len(self._projected):
            wider = np.zeros((2 * slot, self._projected.shape[1]), dtype=np.float32)
            wider[: len(self._projected)] = self._projected
            self._projected = wider
        self._projected[slot] = self._project(unit[None])[0]

    def screen(self, units: FloatArray, leaders: FloatArray) -> IntArray:
        """Places of the product of rows and leaders that may be near, as flat numbers."""
        n_leaders = len(leaders)
        if n_leaders < _LEAST_LEADERS or self._dim < _LEAST_DIM:
            return _dense(units, leaders)
        if n_leaders >= 2 * self._made_for:
            self._make_axes(leaders)
        if not self._is_useful:
            return _dense(units, leaders)
        places = _dense(self._project(units), self._projected[:n_leaders])
        if len(places) > _MOST_LEFT * n_leaders * max(len(units), 1000):
            self._axes = self._axes[:, :0]  # until there are twice as many leaders
        return places

    def _make_axes(self, leaders: FloatArray) -> None:
        start = np.random.default_rng(0).standard_normal((self._dim, _N_PRINCIPAL))
        axes = start.astype(np.float32)
        for _ in range(2):
            axes = np.linalg.qr(leaders.T @ (leaders @ axes))[0]
        self._axes, self._made_for = axes, len(leaders)
        self._projected = self._project(leaders)

    def _project(self, units: FloatArray) -> FloatArray:
        projected = np.empty((len(units), self._axes.shape[1] + 1), dtype=np.float32)
        np.matmul(units, self._axes, out=projected[:, :-1])
        left = 1 - np.einsum("ij,ij->i", projected[:, :-1], projected[:, :-1])
        projected[:, -1] = np.sqrt(np.maximum(left, 0) + np.float32(1e-5))
        return projected


def _dense(first: FloatArray, second: FloatArray) -> IntArray:
    """Places of a product that are above the threshold, less the margin of rounding."""

    def look(start: int, stop: int) -> IntArray:
        scores = first[start:stop] @ second.T
        places = np.flatnonzero(scores.ravel() > SAME_INTENT - _MARGIN)
        return np.asarray(places + start * len(second))

    if len(first) <= _STRIP_ROWS:
        return look(0, len(first))
    strips = strips_in_order(look, len(first), _STRIP_ROWS, threading.Event())
    return np.concatenate([places for _, _, places in strips])


def _confirm(
    rows: Half, units: FloatArray, others: Half, other_units: FloatArray, places: IntArray
) -> _Pairs:
    """Pairs at these places whose cosine is above the threshold: in float32, then in float64."""
    first, second = np.divmod(places, max(1, len(others)))
    near = [np.empty(0, dtype=bool)]
    for part in _parts(len(places)):
        products = np.einsum("ij,ij->i", units[first[part]], other_units[second[part]])
        near.append(products > SAME_INTENT - _MARGIN)
    is_near = np.concatenate(near)
    first, second = first[is_near], second[is_near]
    cosines = np.empty(len(first))
    for part in _parts(len(first)):
        pair = (rows[first[part]], others[second[part]])
        a, b = (some.astype(np.float32).astype(np.float64) for some in pair)
        squares = np.einsum("ij,ij->i", a, a) * np.einsum("ij,ij->i", b, b)
        cosines[part] = np.einsum("ij,ij->i", a, b) / np.sqrt(squares)
    is_near = cosines > SAME_INTENT
    return first[is_near], second[is_near], cosines[is_near]


def _parts(n_rows: int) -> Iterator[slice]:
    return (slice(start, start + 1024) for start in range(0, n_rows, 1024))


def _draw(digest: bytes) -> float:
    """A Gumbel number from a hash."""
    share = ((int.from_bytes(digest[:8], "little") >> 11) + 0.5) / 2**53
    return -math.log(-math.log(share))
