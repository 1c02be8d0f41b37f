"""`Bank`: past queries kept in a file and updated as new ones come.

A bank keeps every unique query once (`dedup`), with how often and when it was asked. It keeps all
of them, or with `max_references` a random sample that prefers recent queries if there is a
half-life. It is saved as one `.safetensors` file with unit rows in float16, replaced as a whole. A
call that fails changes nothing.

Adding A and then B gives the bank of A and B at once, as far as equal rows are concerned. Beyond
4,096 rows, which near copies are found may depend on how the rows were divided into calls.
"""

import math
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import (
    NEAR_COPY,
    Deduplicator,
    Duplicates,
    References,
    UniqueRows,
    append_rows,
    check_duplicates,
    describe_unique,
    draw_luck,
    drop_copies,
    warn_of_few_rows,
)
from nnnorm.embeddings import (
    EQUAL_NORMS,
    Embeddings,
    Source,
    measure_rows,
    open_embeddings,
)
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress, damaged, load_record, save_record
from nnnorm.tables import Clock, LogPart, read_counts, read_log, read_time, read_times
from nnnorm.version import __version__

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.int64]

_MAKER = "nnnorm bank"
# What a file keeps next to the arrays; all else in it follows from these.
_SETTINGS = (
    *("n_seen", "n_forgotten", "created", "normalized"),
    *("half_life", "max_references", "seed", "clock"),
)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_A_DAY = 86400.0  # times without an offset may be local ones, up to 14 hours before UTC


class _Kept(NamedTuple):
    """Arrays with one entry per unique query, and room for more."""

    rows: npt.NDArray[Any]
    norms: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    last_seen: npt.NDArray[Any]

    def first(self, n: int | IntArray) -> "_Kept":
        return _Kept(*(some[:n] if isinstance(n, int) else some[n] for some in self))


class Bank:
    """Past queries, every unique one once.

    Made by `Bank.of`, `Bank.from_log` or `Bank.load`. `add` and `forget` change it in place.

    Examples
    --------
    >>> import numpy as np, nnnorm
    >>> monday = np.array([[1.0, 0.0, 0.0], [0.99, 0.1, 0.0], [0.0, 1.0, 0.0]])
    >>> bank = nnnorm.Bank.of(monday, normalize=True)
    >>> bank
    Bank(2 unique of 3 queries, dim 3, normalized)
    >>> bank.add(np.array([[0.0, 0.0, 1.0]]))
    >>> nnnorm.NNN(reference_k=1, alpha=0.5).fit(np.eye(3)[:2], bank, normalize=True).values
    array([1., 1.], dtype=float32)
    """

    def __init__(self, kept: _Kept, about: dict[str, Any] | None = None) -> None:
        if about is None:
            raise NNNormError(
                "a bank is made by Bank.of(references), Bank.from_log(path) or Bank.load(path); "
                f"got a {type(kept).__name__}"
            )
        self._kept, self._n, self._about = kept, len(kept.rows), about
        self._found: Deduplicator | None = None
        self._opened: Embeddings | None = None

    @classmethod
    def of(
        cls,
        references: Source,
        *,
        times: Any = None,
        counts: Any = None,
        half_life: float | str | timedelta | None = None,
        max_references: int | None = None,
        seed: int = 0,
        normalize: bool | None = None,
        progress: Progress | None = None,
    ) -> "Bank":
        """Make a bank of an array or a file.

        Parameters
        ----------
        references : array or path, shape (n_references, dim)
            Past queries, in the order in which they came.
        times : sequence, optional
            When each came: numbers of any unit, or dates. Needed for `half_life` and `forget`.
        counts : sequence of int, optional
            How often each was asked.
        half_life : float, str or timedelta, optional
            After this time without being asked, a query is half as likely to be kept. Only used if
            there are more unique queries than `max_references`. With dates a timedelta or a text
            such as ``"30d"`` (also s, m, h and w), with times that are numbers a number.
        max_references : int, optional
            If there are more unique queries, keep a random sample of this size. By default all are
            kept.
        seed : int
            Random seed of the sample.
        normalize : bool, optional
            True divides every row by its norm, now and in `add`; see `open_embeddings`.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Bank

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3), times=["2026-05-01"] * 3, half_life="30d")
        Bank(3 unique of 3 queries, dim 3, seen 2026-05-01)
        """
        opened = open_embeddings(references, name="references", normalize=normalize)
        parts = _split_rows(opened, times, counts)
        settings = (half_life, max_references, seed, opened.normalized)
        bank, _ = cls._make(parts, settings, opened.name, len(opened), progress)
        return bank

    @classmethod
    def from_log(
        cls,
        path: str | os.PathLike[str],
        *,
        column: str = "embedding",
        time: str | None = None,
        count: str | None = None,
        half_life: float | str | timedelta | None = None,
        max_references: int | None = None,
        seed: int = 0,
        normalize: bool | None = None,
        progress: Progress | None = None,
    ) -> "Bank":
        """Make a bank of a query log, read in parts within bounded memory.

        Parameters
        ----------
        path : str or PathLike
            ``.parquet``, ``.csv``, ``.tsv`` or ``.jsonl``, in the order in which queries came.
        column : str
            The column of embeddings: a list of numbers in every row.
        time, count : str, optional
            The columns that say when a query came and how often.
        half_life, max_references, seed, normalize, progress
            As in `of`; `progress` is called with ``(done, done)``, as the length is not known.

        Returns
        -------
        Bank

        Examples
        --------
        >>> Bank.from_log("queries.parquet", time="asked_at")  # doctest: +SKIP
        Bank(55,123 unique of 1,000,000 queries, dim 512, seen 2026-01-01 to 2026-05-31)
        """
        parts = read_log(path, column=column, time=time, count=count)
        settings = (half_life, max_references, seed, bool(normalize))
        bank, (low, high) = cls._make(parts, settings, str(path), None, progress)
        if normalize is None and high - low > EQUAL_NORMS * high:
            warn(
                f"rows of {path} have norms {low:.3g} to {high:.3g}, so the bank is for raw inner "
                "products; for cosine pass normalize=True (--normalize), and if inner products "
                "are meant, normalize=False (--no-normalize)"
            )
        return bank

    @classmethod
    def _make(
        cls,
        parts: Iterator[LogPart],
        settings: tuple[Any, Any, Any, bool],
        name: str,
        total: int | None,
        progress: Progress | None,
    ) -> tuple["Bank", tuple[float, float]]:
        """Make a bank of the parts of an array or a log, and return the range of their norms."""
        half_life, max_references, seed, normalized = settings
        _check_whole("seed", seed, 0)
        if max_references is not None:
            _check_whole("max_references", max_references, 1)
        first = next(parts)
        about = {
            "n_seen": 0,
            "n_forgotten": 0,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "normalized": normalized,
            "half_life": _read_half_life(half_life, first.clock),
            "max_references": None if max_references is None else int(max_references),
            "seed": int(seed),
            "clock": first.clock,
        }
        rows, single = np.empty((0, first.rows.shape[1]), np.float16), np.empty(0, np.float32)
        bank = cls(_Kept(rows, single, single.astype(np.int64), single.astype(float)), about)
        return bank, bank._absorb(chain([first], parts), name, total, progress)

    # --- what it holds -----------------------------------------------------------------------

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        facts = [f"{describe_unique(len(self), self.is_sample)} of {self.n_seen:,} queries"]
        facts.append(f"dim {self.dim}")
        if self.normalized:
            facts.append("normalized")
        if self._about["clock"] is not None:
            facts.append(f"seen {describe_times(self)}")
        return f"Bank({', '.join(facts)})"

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self._kept.rows.shape[1])

    @property
    def n_seen(self) -> int:
        """Number of queries that were added so far, copies and forgotten ones included."""
        return int(self._about["n_seen"])

    @property
    def n_forgotten(self) -> int:
        """Number of queries that `forget` dropped, copies included."""
        return int(self._about["n_forgotten"])

    @property
    def is_sample(self) -> bool:
        """Whether these are a random sample of more unique queries."""
        return int(self.counts.sum()) < self.n_seen - self.n_forgotten

    @property
    def normalized(self) -> bool:
        """Whether rows are divided by their norms."""
        return bool(self._about["normalized"])

    @property
    def rows(self) -> FloatArray:
        """The unique queries in the order of arrival, read-only, shape ``(n_unique, dim)``.

        Unit rows in float16 if the bank is normalized, else float32 with the norms they had.
        """
        rows: FloatArray = self._kept.rows[: self._n]
        if not self.normalized:
            rows = rows.astype(np.float32) * self._kept.norms[: self._n, None]
        rows.setflags(write=False)
        return rows

    @property
    def counts(self) -> IntArray:
        """How many queries each unique query stands for, shape ``(n_unique,)``."""
        return self._kept.counts[: self._n].copy()

    @property
    def last_seen(self) -> npt.NDArray[Any] | None:
        """When each was last asked: float64 or datetime64; None without times."""
        seen = self._kept.last_seen[: self._n]
        if self._about["clock"] == "dates":
            return np.asarray((seen * 1e6).round().astype("datetime64[us]"))
        return None if self._about["clock"] is None else seen.copy()

    @property
    def fingerprint(self) -> str:
        """Of the rows, as `Embeddings.fingerprint`; another row or order gives another."""
        return self.embeddings().fingerprint

    def embeddings(self) -> Embeddings:
        """The rows as a method or a search reads them.

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3)).embeddings().shape
        (3, 3)
        """
        if self._opened is None:
            self._opened = open_embeddings(self.rows, name="references", normalize=self.normalized)
        return self._opened

    def to_dict(self) -> dict[str, Any]:
        """Everything but the numbers of single queries, ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3), counts=[3, 1, 1]).to_dict()["n_seen"]
        5
        """
        seen, has_times = self._kept.last_seen[: self._n], self._about["clock"] is not None
        return {
            "n_unique": len(self),
            "references_sampled": self.is_sample,
            "dim": self.dim,
            **self._about,
            "oldest_seen": float(seen.min()) if has_times else None,
            "last_seen": float(seen.max()) if has_times else None,
            "near_copy": NEAR_COPY,
            "fingerprint": self.fingerprint,
            "version": __version__,
        }

    # --- change ------------------------------------------------------------------------------

    def add(
        self,
        queries: Source,
        *,
        times: Any = None,
        counts: Any = None,
        progress: Progress | None = None,
    ) -> None:
        """Add queries that came later.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
        times, counts : sequence, optional
            As in `of`; times are needed if and only if the bank has them.
        progress : callable, optional
            Called with ``(done, total)``.

        Examples
        --------
        >>> import numpy as np
        >>> bank = Bank.of(np.eye(3)[:2])
        >>> bank.add(np.eye(3))
        >>> len(bank), bank.counts.tolist()
        (3, [2, 2, 1])
        """
        opened = open_embeddings(queries, name="queries", normalize=self.normalized)
        parts = _split_rows(opened, times, counts, self._about["clock"])
        self._absorb(parts, opened.name, len(opened), progress)

    def add_log(
        self,
        path: str | os.PathLike[str],
        *,
        column: str = "embedding",
        time: str | None = None,
        count: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Add the queries of a log; the arguments are those of `from_log`.

        Examples
        --------
        >>> bank.add_log("june.parquet", time="asked_at")  # doctest: +SKIP
        """
        parts = read_log(path, column=column, time=time, count=count)
        self._absorb(parts, str(path), None, progress)

    def forget(self, *, before: Any) -> None:
        """Drop the queries that were last asked before a time.

        Parameters
        ----------
        before : float, str, datetime or datetime64
            A time of the kind that the bank has: a number, or a date.

        Examples
        --------
        >>> import numpy as np
        >>> bank = Bank.of(np.eye(3), times=[1, 2, 3])
        >>> bank.forget(before=2)
        >>> len(bank)
        2
        """
        own_clock = self._about["clock"]
        if own_clock is None:
            raise NNNormError(
                "this bank has no times, so nothing can be forgotten by age; build it with times "
                "(--time)"
            )
        limit, clock = read_time(before, "before", own_clock)
        _check_clock(clock, own_clock, "before")
        is_kept = self._kept.last_seen[: self._n] >= limit
        if not is_kept.any():
            raise NNNormError(
                f"before {before} would leave none of the {len(self):,} unique queries, which were "
                f"seen {describe_times(self)}; give an earlier time"
            )
        self._about["n_forgotten"] += int(self.counts[~is_kept].sum())
        self._keep(np.flatnonzero(is_kept))

    def _keep(self, which: IntArray) -> None:
        self._kept, self._n = self._kept.first(which), len(which)
        self._found = self._opened = None

    def _absorb(
        self, parts: Iterable[LogPart], name: str, total: int | None, progress: Progress | None
    ) -> tuple[float, float]:
        """Add parts, and return the range of their norms; if one is bad, nothing changes."""
        before, n_before = self._kept, self._n
        self._kept = before._replace(counts=before.counts.copy(), last_seen=before.last_seen.copy())
        n_seen, low, high, latest = 0, np.inf, 0.0, -np.inf
        most: Any = self._about["max_references"] or np.inf
        try:
            for part in parts:
                norms = self._check(part, name)
                low, high = min(low, float(norms.min())), max(high, float(norms.max()))
                counts = np.ones(len(norms), np.int64) if part.counts is None else part.counts
                times = np.zeros(len(norms)) if part.times is None else part.times
                self._add_rows(part.rows, norms, counts, times)
                if self._n > 2 * most:
                    self._sample(most)
                n_seen, latest = n_seen + int(counts.sum()), max(latest, float(times.max()))
                if progress is not None:
                    done = part.start + len(part.rows)
                    progress(done, total or done)
            if self._n > most:
                self._sample(most)
            if n_before and not self.normalized:
                _check_norms(low, high, before.norms[:n_before], name)
        except BaseException:
            self._kept, self._n, self._found = before, n_before, None
            raise
        self._opened = None
        self._about["n_seen"] += n_seen
        if self._about["clock"] == "dates" and latest > datetime.now(UTC).timestamp() + _A_DAY:
            warn(
                f"{name} has rows dated in the future, up to "
                f"{str(np.datetime64(int(latest), 's'))[:10]}; they count as the latest until "
                "then, and forget does not drop them; correct their times"
            )
        return low, high

    def _check(self, part: LogPart, name: str) -> npt.NDArray[np.float32]:
        """The norms of rows that this bank can take."""
        if part.rows.shape[1] != self.dim:
            raise NNNormError(
                f"{name} has dim {part.rows.shape[1]}, but the bank has {self.dim}; were they "
                "encoded by different models?"
            )
        _check_clock(part.clock, self._about["clock"], name)
        norms = measure_rows(part.rows, name, part.start)
        if not norms.all():
            row = part.start + int(np.argmin(norms))
            raise NNNormError(f"{name} row {row} is all zeros; a failed encoding? Remove it")
        return norms

    def _add_rows(self, rows: Any, norms: Any, counts: IntArray, times: Any) -> None:
        if self._found is None:
            self._found = Deduplicator(lambda slots: self._kept.rows[slots], self._n)
        added = self._found.add(rows)
        new = _Kept(added.rounded[added.new], norms[added.new], 0 * added.new, times[added.new])
        self._kept = _Kept(
            *(append_rows(old, self._n, more) for old, more in zip(self._kept, new, strict=True))
        )
        self._n = len(self._found)
        np.add.at(self._kept.counts, added.slots, counts)
        np.maximum.at(self._kept.last_seen, added.slots, times)

    def _sample(self, most: int) -> None:
        """Keep a random sample, each query with the same probability or by its age."""
        span, kept = self._about["half_life"], self._kept.first(self._n)
        rate = 0.0 if span is None else math.log(2) / span
        priority = draw_luck(kept.rows, self._about["seed"]) + rate * kept.last_seen
        self._keep(np.sort(np.argsort(-priority, kind="stable")[:most]))

    # --- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one `.safetensors` file, whole or not at all.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "bank.safetensors"
        >>> Bank.of(np.eye(3)).save(path)
        >>> len(Bank.load(path))
        3
        """
        save_record(path, "bank", self._kept.first(self._n)._asdict(), self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Bank":
        """Read a file that `save` wrote.

        Examples
        --------
        >>> Bank.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no bank file nowhere.safetensors; ...
        """
        arrays, about = load_record(path, "bank", _MAKER)
        try:
            kept = _Kept(*(np.array(arrays[name]) for name in _Kept._fields))
            return cls(kept, {name: about[name] for name in _SETTINGS})
        except KeyError as error:
            raise damaged(path, "bank", _MAKER, error) from error


def describe_times(bank: Bank) -> str:
    """The oldest and latest of the times at which queries were last seen; empty without times."""
    seen = bank.last_seen
    if seen is None:
        return ""
    ends = [seen.min(), seen.max()]
    shown = [f"{end:.15g}" if seen.dtype.kind == "f" else str(end)[:10] for end in ends]
    return " to ".join(dict.fromkeys(shown))


# --- past queries in any form ------------------------------------------------------------------


def open_references(
    references: Source | Bank, *, name: str = "references", normalize: bool | None = None
) -> Embeddings:
    """Open a bank, or the file of one, or what `open_embeddings` opens."""
    bank = _read_bank(references)
    source = references if bank is None else bank.embeddings()
    return open_embeddings(source, name=name, normalize=normalize)


def open_gallery_references(
    source: Source | None, *, normalize: bool | None = None
) -> Embeddings | None:
    """Open gallery-side items, if they are given."""
    if source is None:
        return None
    return open_embeddings(source, name="gallery_references", normalize=normalize)


def use_references(
    references: Source | Bank,
    opened: Embeddings,
    duplicates: Duplicates = "drop",
    progress: Progress | None = None,
) -> References:
    """What a method is fitted on: the rows of a bank, or what `drop_copies` leaves."""
    bank = _read_bank(references)
    if bank is None:
        return drop_copies(opened, duplicates, progress)
    check_duplicates(duplicates)
    if duplicates == "keep":
        raise NNNormError(
            "a bank keeps every unique query once, so it has no duplicates to keep; leave out "
            'duplicates, or give the queries themselves with duplicates="keep"'
        )
    n_queries = bank.n_seen - bank.n_forgotten
    everything = np.arange(len(bank))
    unique = UniqueRows(opened, everything, bank.counts, n_queries, opened.fingerprint)
    warn_of_few_rows(unique)
    return unique


def is_bank(references: Any) -> bool:
    """Whether references are a bank or the file of one."""
    if isinstance(references, (str, os.PathLike)):
        return Path(references).suffix == ".safetensors"
    return isinstance(references, Bank)


def _read_bank(references: Any) -> Bank | None:
    """A bank, or the bank in a file of one; None for anything else."""
    if isinstance(references, (str, os.PathLike)) and is_bank(references):
        return Bank.load(references)
    return references if isinstance(references, Bank) else None


# --- input -------------------------------------------------------------------------------------


def _split_rows(
    opened: Embeddings, times: Any, counts: Any, clock: Clock | None = None
) -> Iterator[LogPart]:
    """The parts of an array; times and counts are checked before the first."""
    when = how_often = None
    if times is not None:
        when, clock = read_times(times, "times", clock=clock)
    else:
        clock = None
    if counts is not None:
        how_often = read_counts(counts, "counts")
    for name, given in (("times", when), ("counts", how_often)):
        if given is not None and len(given) != len(opened):
            raise NNNormError(
                f"{name} must have one entry per row; got {len(given)} for {len(opened)} rows of "
                f"{opened.name}"
            )
    for start, rows in opened.blocks():
        part = slice(start, start + len(rows))
        asked = None if how_often is None else how_often[part]
        yield LogPart(start, rows, None if when is None else when[part], asked, clock)


def _read_half_life(value: float | str | timedelta | None, clock: Clock | None) -> float | None:
    """The half-life in the unit of the times, seconds for dates."""
    if value is None:
        return None
    if clock is None:
        raise NNNormError("half_life needs times (--time); give both or none")
    text = f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value).strip()
    unit = _UNITS.get(text[-1:])
    try:
        span = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        span = np.nan
    if not (np.isfinite(span) and span > 0) or (unit is None) != (clock == "numbers"):
        raise NNNormError(
            f"half_life must be above 0, with a unit ({', '.join(_UNITS)}) such as 30d if times "
            f"are dates, and a plain number if they are numbers; got {value!r} for {clock}"
        )
    return float(span)


def _check_whole(name: str, value: Any, least: int) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise NNNormError(f"{name} must be a whole number of at least {least}; got {value!r}")


def _check_clock(given: Clock | None, expected: Clock | None, name: str) -> None:
    """Raise if times are not of the kind that the bank has."""
    if given != expected:
        words = {None: "no times", "numbers": "times that are numbers", "dates": "dates"}
        raise NNNormError(
            f"{name} has {words[given]}, but the bank has {words[expected]}; time stamps must be "
            "of one kind"
        )


def _check_norms(low: float, high: float, norms: FloatArray, name: str) -> None:
    """Raise if the bank has equal norms, and what is added does not share them."""
    own_low, own_high = float(norms.min()), float(norms.max())
    if own_high - own_low > EQUAL_NORMS * own_high:
        return  # raw inner products are meant
    if max(high, own_high) - min(low, own_low) > EQUAL_NORMS * max(high, own_high):
        raise NNNormError(
            f"{name} has norms {low:.3g} to {high:.3g}, but all rows of the bank have about "
            f"{own_high:.3g}; normalize the rows first, or build the bank with normalize=True "
            "(--normalize)"
        )
