"""One leader per intent, found in one pass over rows in the order in which they arrive.

A row whose cosine with a kept row, its *leader*, is above `SAME_INTENT` is a copy and is counted
there; any other row becomes a leader itself. Above a size limit the leader of the lowest priority
leaves. The result is that of the naive loop, row by row, whatever the sizes of the blocks: adding A
and then B equals adding A and B at once.
"""

import hashlib
import heapq
import math
from collections import defaultdict
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.copies.near import (
    Bound,
    DoubleArray,
    FloatArray,
    Half,
    IntArray,
    Pairs,
    as_units,
    confirm,
    find_candidates,
)
from nnnorm.scoring import on_a_worker

# Gains stop growing at about 4,000 references; twice that leaves room for galleries with many
# topics, and bounds the work of a fit and the size of a bank (8 MB at 512 dimensions).
MOST_INTENTS = 8192

_SLOTS = ("_rows", "_units", "_counts", "_arrivals", "_seen", "_luck", "_norms")
_BLOCK_ROWS = 2048


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
        self._bound = Bound(dim)

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
        self._bound = Bound(self.dim)

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

    def near(self, rows: Half, units: FloatArray) -> Pairs:
        """Pairs of rows and slots whose cosine is above `SAME_INTENT`."""
        leaders = self._units[: self._n]
        places = self._bound.screen(units, leaders)
        return confirm(rows, units, self._rows[: self._n], leaders, places)


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

    def _compare(self, numbers: IntArray) -> Pairs:
        units = self.units[numbers]
        places = find_candidates(units, self.units)
        return confirm(self.rows[numbers], units, self.rows, self.units, places)

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


def _draw(digest: bytes) -> float:
    """A Gumbel number from a hash."""
    share = ((int.from_bytes(digest[:8], "little") >> 11) + 0.5) / 2**53
    return -math.log(-math.log(share))
