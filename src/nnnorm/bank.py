"""`Bank`: past queries in a file that you update.

A bank has each unique query once (`dedup`), with the number of times and the last time it was
asked. With `max_references`, it keeps a random sample, which prefers recent queries if there is a
half-life. It is saved as one `.safetensors` file with unit rows in float16. A
call that fails changes nothing.

Adding A and then B gives the same equal rows as adding both at once. Beyond 4,096 rows, the
near-duplicates that are found may depend on how rows are divided into calls.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import (
    NEAR_COPY,
    UniqueRows,
    describe_unique,
    draw_luck,
)
from nnnorm.embeddings import (
    Embeddings,
    IntArray,
    Source,
    check_like_norms,
    check_norms,
    measure_rows,
    open_embeddings,
)
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress, load_record, save_record
from nnnorm.tables import TABLE_SUFFIXES, LogPart, is_log, read_counts, read_log, read_times
from nnnorm.version import __version__

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]

_MAKER = "nnnorm bank"
# Fields that a file has next to the arrays; all others are derived from these.
_SETTINGS = (
    *("n_seen", "n_forgotten", "created", "normalized"),
    *("half_life", "max_references", "seed"),
)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_A_DAY = 86400.0  # times without an offset may be local ones, up to 14 hours before UTC


class _Kept(NamedTuple):
    """Arrays with one entry per unique query; times are -inf if there are none."""

    rows: npt.NDArray[Any]
    norms: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    last_seen: npt.NDArray[Any]

    def take(self, which: IntArray) -> "_Kept":
        return _Kept(*(some[which] for some in self))


class Bank:
    """Unique past queries, with the number of times each was asked.

    Create one with `Bank.of` or `Bank.load`. `add` and `forget` change it in place.

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

    def __init__(self, kept: _Kept, about: dict[str, Any]) -> None:
        self._kept, self._about = kept, about
        self._opened: Embeddings | None = None

    @classmethod
    def of(
        cls,
        references: Source,
        *,
        times: Any = None,
        counts: Any = None,
        column: str = "embedding",
        half_life: float | str | timedelta | None = None,
        max_references: int | None = None,
        seed: int = 0,
        normalize: bool | None = None,
        progress: Progress | None = None,
    ) -> "Bank":
        """Create a bank from an array, a file of embeddings, or a query log.

        Parameters
        ----------
        references : array or path, shape (n_references, dim)
            Past queries in order. A query log (``.parquet``, ``.csv``, ``.tsv`` or ``.jsonl``) is
            read in parts, with limited memory.
        times : sequence or str, optional
            When each query was asked: dates, or seconds since 1970. For a log, the name of a
            column. Needed for `half_life` and `forget`.
        counts : sequence of int or str, optional
            How often each query was asked. For a log, the name of a column.
        column : str
            The column of a log that has the embeddings, a list of numbers per row.
        half_life : float, str or timedelta, optional
            After this time without being asked, a query is half as likely to be kept. Only used if
            there are more unique queries than `max_references`. A timedelta, a text such as
            ``"30d"`` (also s, m, h and w), or seconds.
        max_references : int, optional
            If there are more unique queries, keep a random sample of this size. By default all are
            kept.
        seed : int
            Random seed of the sample.
        normalize : bool, optional
            True divides every row by its norm, now and in `add`; see `open_embeddings`.
        progress : callable, optional
            Called with ``(done, total)``; for a log, with ``(done, done)``.

        Returns
        -------
        Bank

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3), times=["2026-05-01"] * 3, half_life="30d")
        Bank(3 unique of 3 queries, dim 3, seen 2026-05-01)
        >>> Bank.of("queries.parquet", times="asked_at")  # doctest: +SKIP
        Bank(55,123 unique of 1,000,000 queries, dim 512, seen 2026-01-01 to 2026-05-31)
        """
        _check_whole("seed", seed, 0)
        if max_references is not None:
            _check_whole("max_references", max_references, 1)
        given = _open(references, "references", times, counts, column, normalize)
        about = {
            "n_seen": 0,
            "n_forgotten": 0,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "normalized": given.normalized,
            "half_life": _read_half_life(half_life, times is not None),
            "max_references": None if max_references is None else int(max_references),
            "seed": int(seed),
        }
        first = next(given.parts)
        rows = np.empty((0, first.rows.shape[1]), np.float16)
        empty = _Kept(rows, np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0))
        bank = cls(empty, about)
        low, high = bank._absorb(given._replace(parts=chain([first], given.parts)), progress)
        if given.n_rows is None and not normalize:
            check_norms(given.name, low, high, warn_of_norms=normalize is None)
        return bank

    # --- what it holds -----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._kept.rows)

    def __repr__(self) -> str:
        facts = [f"{describe_unique(len(self), self.is_sample)} of {self.n_seen:,} queries"]
        facts.append(f"dim {self.dim}")
        if self.normalized:
            facts.append("normalized")
        if self.last_seen is not None:
            facts.append(f"seen {describe_times(self)}")
        return f"Bank({', '.join(facts)})"

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self._kept.rows.shape[1])

    @property
    def n_seen(self) -> int:
        """Number of queries added so far, including copies and forgotten ones."""
        return int(self._about["n_seen"])

    @property
    def n_forgotten(self) -> int:
        """Number of queries that `forget` dropped, including copies."""
        return int(self._about["n_forgotten"])

    @property
    def is_sample(self) -> bool:
        """Whether the bank is a random sample of the unique queries."""
        return int(self.counts.sum()) < self.n_seen - self.n_forgotten

    @property
    def normalized(self) -> bool:
        """Whether rows are divided by their norms."""
        return bool(self._about["normalized"])

    @property
    def rows(self) -> FloatArray:
        """The unique queries in the order of arrival, read-only, shape ``(n_unique, dim)``.

        Unit rows in float16 if the bank is normalized, otherwise float32 rows with their own norms.
        """
        rows: FloatArray = self._kept.rows[:]
        if not self.normalized:
            rows = rows.astype(np.float32) * self._kept.norms[:, None]
        rows.setflags(write=False)
        return rows

    @property
    def counts(self) -> IntArray:
        """How often each unique query was asked, shape ``(n_unique,)``."""
        return self._kept.counts.copy()

    @property
    def last_seen(self) -> npt.NDArray[np.datetime64] | None:
        """When each query was last asked, datetime64 in UTC; None without times."""
        seen = self._kept.last_seen
        return None if np.isneginf(seen[0]) else (seen * 1e6).round().astype("datetime64[us]")

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the rows and their order, as in `Embeddings.fingerprint`."""
        return self.embeddings().fingerprint

    def embeddings(self) -> Embeddings:
        """The rows as `Embeddings`.

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3)).embeddings().shape
        (3, 3)
        """
        if self._opened is None:
            opened = open_embeddings(self.rows, name="references", normalize=self.normalized)
            n_queries = self.n_seen - self.n_forgotten
            self._opened = replace(opened, counts=self.counts, n_queries=n_queries)
        return self._opened

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the bank, ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3), counts=[3, 1, 1]).to_dict()["n_seen"]
        5
        """
        seen, has_times = self._kept.last_seen, self.last_seen is not None
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
        column: str = "embedding",
        progress: Progress | None = None,
    ) -> None:
        """Add later queries.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
        times, counts, column, progress : optional
            As in `of`. Pass times if and only if the bank has them.

        Examples
        --------
        >>> import numpy as np
        >>> bank = Bank.of(np.eye(3)[:2])
        >>> bank.add(np.eye(3))
        >>> len(bank), bank.counts.tolist()
        (3, [2, 2, 1])
        """
        given = _open(queries, "queries", times, counts, column, self.normalized)
        if (times is None) != (self.last_seen is None):
            has, lacks = ("the bank", given.name) if times is None else (given.name, "the bank")
            raise NNNormError(f"{has} has times and {lacks} has none; pass times (--time) to both")
        self._absorb(given, progress)

    def forget(self, *, before: Any) -> None:
        """Drop queries that were last asked before a time.

        Parameters
        ----------
        before : float, str, datetime or datetime64
            A date, or seconds since 1970.

        Examples
        --------
        >>> import numpy as np
        >>> bank = Bank.of(np.eye(3), times=["2026-05-01", "2026-05-02", "2026-05-03"])
        >>> bank.forget(before="2026-05-02")
        >>> len(bank)
        2
        """
        if self.last_seen is None:
            raise NNNormError(
                "this bank has no times, so nothing can be forgotten by age; build it with times "
                "(--time)"
            )
        is_kept = self._kept.last_seen >= read_times([before], "before")[0]
        if not is_kept.any():
            raise NNNormError(
                f"before {before} would leave none of the {len(self):,} unique queries, which were "
                f"seen {describe_times(self)}; pass an earlier time"
            )
        self._about["n_forgotten"] += int(self.counts[~is_kept].sum())
        self._kept, self._opened = self._kept.take(np.flatnonzero(is_kept)), None

    def _absorb(self, given: "_Given", progress: Progress | None) -> tuple[float, float]:
        """Add queries and return the range of their norms; if one is invalid, nothing changes."""
        kept, unique = self._kept, None
        n_seen, low, high, latest = 0, np.inf, 0.0, -np.inf
        most: Any = self._about["max_references"] or np.inf
        for start, rows, times, counts in given.parts:
            norms = self._check(rows, given.name, start)
            if unique is None:
                unique = UniqueRows(kept.rows)
            slots, new = unique.add(rows)
            arrays = (norms[new], np.zeros_like(new), times[new])
            longer = (np.concatenate(pair) for pair in zip(kept[1:], arrays, strict=True))
            kept = _Kept(unique.rows, *longer)
            np.add.at(kept.counts, slots, counts)
            np.maximum.at(kept.last_seen, slots, times)
            if len(kept.rows) > 2 * most:
                kept, unique = self._sample(kept, most), None
            low, high = min(low, float(norms.min())), max(high, float(norms.max()))
            n_seen, latest = n_seen + int(counts.sum()), max(latest, float(times.max()))
            if progress is not None:
                progress(start + len(rows), given.n_rows or start + len(rows))
        if len(self) and not self.normalized:
            own = float(self._kept.norms.min()), float(self._kept.norms.max())
            check_like_norms(given.name, (low, high), own, "rows of the bank")
        self._kept, self._opened = self._sample(kept, most), None
        self._about["n_seen"] += n_seen
        if latest > datetime.now(UTC).timestamp() + _A_DAY:
            warn(
                f"{given.name} has rows dated in the future, up to "
                f"{str(np.datetime64(int(latest), 's'))[:10]}; they count as the latest until "
                "then, and forget does not drop them; correct their times (dates, or seconds "
                "since 1970)"
            )
        return low, high

    def _check(self, rows: npt.NDArray[np.float32], name: str, start: int) -> FloatArray:
        """The norms of rows that this bank accepts."""
        if rows.shape[1] != self.dim:
            raise NNNormError(
                f"{name} has dim {rows.shape[1]}, but the bank has {self.dim}; were they encoded "
                "by different models?"
            )
        norms = measure_rows(rows, name, start)
        if not norms.all():
            row = start + int(np.argmin(norms))
            raise NNNormError(f"{name} row {row} is all zeros; did the encoding fail? Remove it")
        return norms

    def _sample(self, kept: _Kept, most: float) -> _Kept:
        """Keep a random sample, each query with the same probability or by its age."""
        if len(kept.rows) <= most:
            return kept
        priority, span = draw_luck(kept.rows, self._about["seed"]), self._about["half_life"]
        if span is not None:
            priority += math.log(2) / span * kept.last_seen
        return kept.take(np.sort(np.argsort(-priority, kind="stable")[: int(most)]))

    # --- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.safetensors` file, completely or not at all.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "bank.safetensors"
        >>> Bank.of(np.eye(3)).save(path)
        >>> len(Bank.load(path))
        3
        """
        save_record(path, "bank", self._kept._asdict(), self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Bank":
        """Read a file that `save` wrote.

        Examples
        --------
        >>> Bank.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no bank file nowhere.safetensors; ...
        """

        def build(arrays: dict[str, Any], about: dict[str, Any]) -> Bank:
            kept = _Kept(*(arrays[name] for name in _Kept._fields))
            return cls(kept, {name: about[name] for name in _SETTINGS})

        return load_record(path, "bank", _MAKER, build)


def describe_times(bank: Bank) -> str:
    """The oldest and latest of the days at which queries were last seen; empty without times."""
    seen = bank.last_seen
    if seen is None:
        return ""
    return " to ".join(dict.fromkeys(str(end)[:10] for end in (seen.min(), seen.max())))


# --- input -------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """Queries for a bank, in parts; the length of a log isn't known."""

    parts: Iterator[LogPart]
    name: str
    n_rows: int | None
    normalized: bool


def _open(
    source: Source, role: str, times: Any, counts: Any, column: str, normalize: bool | None
) -> _Given:
    """Open an array, embeddings in files, or a log, whose times and counts are columns."""
    given = {"times": times, "counts": counts}
    if is_log(source):
        for name, value in given.items():
            if value is not None and not isinstance(value, str):
                raise NNNormError(f"{name} of {source} must be a column's name; got {value!r}")
        parts = read_log(source, column=column, time=times, count=counts)
        return _Given(parts, str(source), None, bool(normalize))
    opened = open_embeddings(source, name=role, normalize=normalize)
    when, how_often = np.full(len(opened), -np.inf), np.ones(len(opened), np.int64)
    for name, value in given.items():
        if isinstance(value, str):
            raise NNNormError(
                f"{opened.name} contains only embeddings, so there is no column {value!r} for "
                f"{name}; pass a log ({', '.join(TABLE_SUFFIXES)})"
            )
    if times is not None:
        when = read_times(times, "times")
    if counts is not None:
        how_often = read_counts(counts, "counts")
    for name, array in (("times", when), ("counts", how_often)):
        if len(array) != len(opened):
            raise NNNormError(
                f"{name} must have one entry per row; got {len(array)} for {len(opened)} rows of "
                f"{opened.name}"
            )

    def split() -> Iterator[LogPart]:
        for start, rows in opened.blocks():
            part = slice(start, start + len(rows))
            yield LogPart(start, rows, when[part], how_often[part])

    return _Given(split(), opened.name, len(opened), opened.normalized)


def _read_half_life(value: float | str | timedelta | None, has_times: bool) -> float | None:
    """The half-life in seconds."""
    if value is None:
        return None
    if not has_times:
        raise NNNormError("half_life needs times (--time); pass both or none")
    text = f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value).strip()
    unit = _UNITS.get(text[-1:])
    try:
        span = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        span = np.nan
    if not (np.isfinite(span) and span > 0):
        raise NNNormError(
            f"half_life must be above 0, in seconds or with a unit ({', '.join(_UNITS)}) such as "
            f"30d; got {value!r}"
        )
    return float(span)


def _check_whole(name: str, value: Any, least: int) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise NNNormError(f"{name} must be a whole number of at least {least}; got {value!r}")
