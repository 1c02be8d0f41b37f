"""`Bank`: past queries in a file that you update.

A bank stores every unique query once (`dedup`), with the number of times it was asked and the last
time. It stores all of them, or a random sample with `max_references`. A saved bank is one
`.safetensors` file with unit rows in float16. If a call fails, nothing changes.

Equal rows are found however you divide them into calls. With more than 4,096 rows, which
near-duplicates are found may depend on that division.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm import embeddings
from nnnorm.dedup import NEAR_COPY, UniqueRows, describe_unique
from nnnorm.embeddings import Embeddings, IntArray, Source, open_embeddings
from nnnorm.errors import NNNormError, check_count, warn
from nnnorm.files import PathLike, Progress, load_record, save_record
from nnnorm.tables import TABLE_SUFFIXES, LogPart, is_log, read_counts, read_log, read_times
from nnnorm.version import __version__

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
# Queries in parts, their name in messages, and the number of rows, None for a log.
_Given: TypeAlias = tuple[Iterator[LogPart], str, int | None]

# Attributes that a file stores next to the arrays; all others are computed from these.
_SETTINGS = ("n_seen", "n_forgotten", "created", "normalized", "max_references", "seed")
_A_DAY = 86400.0  # a time without an offset may be a local time, up to 14 hours ahead of UTC
_YEAR_2000 = 946_684_800.0  # seconds since 1970; earlier times are probably in another unit


class _Kept(NamedTuple):
    """Arrays with one entry per unique query; without times, `last_seen` is -inf."""

    rows: npt.NDArray[Any]
    norms: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    last_seen: npt.NDArray[Any]

    def take(self, which: IntArray) -> "_Kept":
        return _Kept(*(some[which] for some in self))


@dataclass(eq=False, repr=False)
class Bank:
    """Past queries for a fit: each unique query once, with the number of times it was asked.

    Queries are near-duplicates if their cosine is above 0.88. A bank stores the first one of them,
    so frequent queries don't dominate the correction. To create a bank, use `Bank.of` or
    `Bank.load`. `add` and `forget` change it in place. Pass it as ``references`` to a fit.

    Attributes
    ----------
    n_seen : int
        Number of queries that were added, including duplicates.
    n_forgotten : int
        Number of queries that `forget` dropped, including duplicates.
    created : str
        UTC time at which the bank was created.
    normalized : bool
        Whether rows are divided by their norms.
    max_references : int or None
        Largest number of unique queries that the bank stores.
    seed : int
        Random seed of the sample, if there are more.

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

    _kept: _Kept
    n_seen: int
    n_forgotten: int
    created: str
    normalized: bool
    max_references: int | None
    seed: int
    _opened: Embeddings | None = None

    @classmethod
    def of(
        cls,
        references: Source,
        *,
        times: Any = None,
        counts: Any = None,
        column: str = "embedding",
        max_references: int | None = None,
        seed: int = 0,
        normalize: bool | None = None,
        progress: Progress | None = None,
    ) -> "Bank":
        """Create a bank from an array, a file of embeddings, or a query log.

        Parameters
        ----------
        references : array or path, shape (n_references, dim)
            Past queries, the oldest first. A query log is a ``.parquet``, ``.csv``, ``.tsv`` or
            ``.jsonl`` file with an embedding per row. It is read in parts, so it may be larger than
            memory.
        times : sequence or str, optional
            The time of each query: dates, or seconds since 1970. For a log, the name of a column.
            `forget` needs times.
        counts : sequence of int or str, optional
            The number of times each query was asked. For a log, the name of a column.
        column : str
            For a log: the column of embeddings, a list of numbers per row.
        max_references : int, optional
            If there are more unique queries, store a random sample of this size. By default, all
            are stored.
        seed : int
            Random seed of the sample.
        normalize : bool, optional
            True divides every row by its norm, here and in `add`; see `open_embeddings`.
        progress : callable, optional
            Called with ``(done, total)``; for a log, with ``(done, done)``.

        Returns
        -------
        Bank

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bank
        >>> Bank.of(np.eye(3), times=["2026-05-01"] * 3)
        Bank(3 unique of 3 queries, dim 3, seen 2026-05-01)
        >>> Bank.of("queries.parquet", times="asked_at")  # doctest: +SKIP
        Bank(55,123 unique of 1,000,000 queries, dim 512, seen 2026-01-01 to 2026-05-31)
        """
        is_unit = bool(normalize or getattr(references, "normalized", False))
        most = None if max_references is None else check_count("max_references", max_references)
        empty = np.empty((0, 0), np.float16), np.empty(0, np.float32), np.empty(0, np.int64)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        bank = cls(_Kept(*empty, np.empty(0)), 0, 0, created, is_unit, most, int(seed))
        given = _open(references, "references", times, counts, column, normalize)
        bank._absorb(given, normalize, progress)
        return bank

    # --- contents ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._kept.rows)

    def __repr__(self) -> str:
        facts = [f"{describe_unique(len(self), self.is_sample)} of {self.n_kept:,} queries"]
        facts.append(f"dim {self.dim}")
        if self.normalized:
            facts.append("normalized")
        if self.last_seen is not None:
            facts.append(f"seen {describe_times(self)}")
        return f"Bank({', '.join(facts)})"

    @property
    def dim(self) -> int:
        """Number of dimensions of the embeddings."""
        return int(self._kept.rows.shape[1])

    @property
    def is_sample(self) -> bool:
        """Whether the bank is a random sample of the unique queries."""
        return int(self._kept.counts.sum()) < self.n_kept

    @property
    def n_kept(self) -> int:
        """Number of past queries without forgotten ones."""
        return self.n_seen - self.n_forgotten

    @property
    def rows(self) -> FloatArray:
        """The unique queries in the order in which they were added, shape ``(n_unique, dim)``.

        If the bank is normalized, these are unit rows in float16, otherwise float32 rows with their
        original norms. The array is read-only.
        """
        rows: FloatArray = self._kept.rows[:]
        if not self.normalized:
            rows = rows.astype(np.float32) * self._kept.norms[:, None]
        rows.setflags(write=False)
        return rows

    @property
    def counts(self) -> IntArray:
        """The number of times each unique query was asked, shape ``(n_unique,)``."""
        return self._kept.counts.copy()

    @property
    def last_seen(self) -> npt.NDArray[np.datetime64] | None:
        """The last time each unique query was asked, as datetime64 in UTC; None without times."""
        seen = self._kept.last_seen
        return None if np.isneginf(seen[0]) else (seen * 1e6).round().astype("datetime64[us]")

    @property
    def fingerprint(self) -> str:
        """Hash of the rows and their order, as in `Embeddings.fingerprint`."""
        return self.embeddings().fingerprint

    def embeddings(self) -> Embeddings:
        """Return the rows as `Embeddings`.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bank
        >>> Bank.of(np.eye(3)).embeddings().shape
        (3, 3)
        """
        if self._opened is None:
            opened = open_embeddings(self.rows, name="references", normalize=self.normalized)
            self._opened = replace(opened, counts=self.counts, n_queries=self.n_kept)
        return self._opened

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the bank as a dictionary that `json.dumps` accepts.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bank
        >>> Bank.of(np.eye(3), counts=[3, 1, 1]).to_dict()["n_seen"]
        5
        """
        seen, has_times = self._kept.last_seen, self.last_seen is not None
        return {
            "n_unique": len(self),
            "references_sampled": self.is_sample,
            "dim": self.dim,
            **{name: getattr(self, name) for name in _SETTINGS},
            "oldest_seen": float(seen.min()) if has_times else None,
            "last_seen": float(seen.max()) if has_times else None,
            "near_copy": NEAR_COPY,
            "fingerprint": self.fingerprint,
            "version": __version__,
        }

    # --- changes -----------------------------------------------------------------------------

    def add(
        self,
        queries: Source,
        *,
        times: Any = None,
        counts: Any = None,
        column: str = "embedding",
        progress: Progress | None = None,
    ) -> None:
        """Add later queries, in place.

        Parameters
        ----------
        queries : array or path, shape (n_queries, dim)
            The new queries, or a query log.
        times, counts, column, progress : optional
            As in `of`. Pass `times` if and only if the bank has times.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bank
        >>> bank = Bank.of(np.eye(3)[:2])
        >>> bank.add(np.eye(3))
        >>> len(bank), bank.counts.tolist()
        (3, [2, 2, 1])
        """
        if (times is None) != (self.last_seen is None):
            has, lacks = ("the bank", "queries") if times is None else ("queries", "the bank")
            raise NNNormError(f"got times for {has}, none for {lacks}; pass times (--time) to both")
        given = _open(queries, "queries", times, counts, column, self.normalized)
        self._absorb(given, self.normalized, progress)

    def forget(self, *, before: Any) -> None:
        """Drop queries that were last asked before a time, in place.

        Parameters
        ----------
        before : float, str, datetime or datetime64
            A date, or seconds since 1970.

        Examples
        --------
        >>> import numpy as np
        >>> from nnnorm import Bank
        >>> bank = Bank.of(np.eye(3), times=["2026-05-01", "2026-05-02", "2026-05-03"])
        >>> bank.forget(before="2026-05-02")
        >>> len(bank)
        2
        """
        if self.last_seen is None:
            raise NNNormError("this bank has no times to forget by; build it with times (--time)")
        is_kept = self._kept.last_seen >= read_times([before], "before")[0]
        if not is_kept.any():
            raise NNNormError(
                f"all {len(self):,} unique queries are older than {before} (last asked "
                f"{describe_times(self)}), so forget would drop all of them; pass an earlier time"
            )
        self.n_forgotten += int(self.counts[~is_kept].sum())
        self._kept, self._opened = self._kept.take(np.flatnonzero(is_kept)), None

    def _absorb(self, given: _Given, normalize: bool | None, progress: Progress | None) -> None:
        """Add queries; if a row is invalid, raise an error and change nothing."""
        parts, name, n_rows = given
        kept, unique = self._kept, None
        n_seen, low, high, latest = 0, np.inf, 0.0, -np.inf
        most: Any = self.max_references or np.inf
        for start, rows, when, how_often in parts:
            if not len(kept.rows):
                kept = kept._replace(rows=np.empty((0, rows.shape[1]), np.float16))
            dim, own = rows.shape[1], kept.rows.shape[1]
            if dim != own:
                raise NNNormError(
                    f"{name} must have the dimension of the bank, {own}; got {dim}. Were they "
                    "encoded by different models?"
                )
            norms = embeddings.measure_rows(rows)
            embeddings.check_rows(norms, rows.__getitem__, name, start)
            unique = unique or UniqueRows(kept.rows)
            slots, new = unique.add(rows)
            more = _Kept(rows[:0], norms[new], np.zeros_like(new), when[new])
            longer = [np.concatenate(pair) for pair in zip(kept[1:], more[1:], strict=True)]
            kept = _Kept(unique.rows, *longer)
            np.add.at(kept.counts, slots, how_often)
            np.maximum.at(kept.last_seen, slots, when)
            if len(kept.rows) > 2 * most:
                kept, unique = self._sample(kept, most), None
            low, high = min(low, float(norms.min())), max(high, float(norms.max()))
            n_seen, latest = n_seen + int(how_often.sum()), max(latest, float(when.max()))
            if progress is not None:
                progress(start + len(rows), n_rows or start + len(rows))
        if n_rows is None and not normalize:
            embeddings.check_norms(name, low, high, warn_of_norms=normalize is None)
        if len(self) and not self.normalized:
            known = float(self._kept.norms.min()), float(self._kept.norms.max())
            embeddings.check_like_norms(name, (low, high), known, "rows of the bank")
        self._kept, self._opened = self._sample(kept, most), None
        self.n_seen += n_seen
        times = self._kept.last_seen[np.isfinite(self._kept.last_seen)]
        if len(times) and times.min() < _YEAR_2000 <= latest:
            warn(
                f"{name} are dated after 2000, and other queries of the bank before; correct the "
                "times (dates, or seconds since 1970)"
            )
        if latest > datetime.now(UTC).timestamp() + _A_DAY:
            warn(
                f"some rows of {name} are dated in the future, up to "
                f"{str(np.datetime64(int(latest), 's'))[:10]}, and forget won't drop them; correct "
                "their times (dates, or seconds since 1970)"
            )

    def _sample(self, kept: _Kept, most: float) -> _Kept:
        """Return a random sample of unique queries, each with the same probability."""
        if len(kept.rows) <= most:
            return kept
        # The luck of a row depends only on the row and the seed, not on the order of rows.
        seed = str(self.seed).encode()
        luck = [blake2b(row.tobytes(), digest_size=8, key=seed).digest() for row in kept.rows]
        order = np.argsort(np.frombuffer(b"".join(luck), dtype="<u8"))
        return kept.take(np.sort(order[-int(most) :]))

    # --- files -------------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Save the bank as a `.safetensors` file; if that fails, nothing changes.

        Parameters
        ----------
        path : str or PathLike
            The file. An existing one is replaced.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from nnnorm import Bank
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "bank.safetensors"
        >>> Bank.of(np.eye(3)).save(path)
        >>> len(Bank.load(path))
        3
        """
        save_record(path, "bank", self._kept._asdict(), self.to_dict())

    @classmethod
    def load(cls, path: PathLike) -> "Bank":
        """Load a bank from a file that `save` wrote.

        Parameters
        ----------
        path : str or PathLike
            The `.safetensors` file.

        Returns
        -------
        Bank

        Examples
        --------
        >>> from nnnorm import Bank
        >>> Bank.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no bank file nowhere.safetensors; ...
        """

        def build(arrays: dict[str, Any], about: dict[str, Any]) -> Bank:
            kept = _Kept(*(arrays[name] for name in _Kept._fields))
            return cls(kept, **{name: about[name] for name in _SETTINGS})

        return load_record(path, "bank", "nnnorm bank", build)


def describe_times(bank: Bank) -> str:
    """Describe when queries were last asked: ``2026-01-01 to 2026-05-31``; "" without times."""
    seen = bank.last_seen
    if seen is None:
        return ""
    return " to ".join(dict.fromkeys(str(end)[:10] for end in (seen.min(), seen.max())))


def _open(
    source: Source, role: str, times: Any, counts: Any, column: str, normalize: bool | None
) -> _Given:
    """Open an array, files of embeddings, or a query log."""
    given = {"times": times, "counts": counts}
    if is_log(source):
        for name, value in given.items():
            if value is not None and not isinstance(value, str):
                raise NNNormError(f"{name} must name a column of {source}; got {value!r:.60}")
        return read_log(source, column=column, time=times, count=counts), str(source), None
    opened = open_embeddings(source, name=role, normalize=normalize)
    for name, value in given.items():
        if isinstance(value, str):
            raise NNNormError(
                f"{opened.name} has only embeddings, but {name} names a column, {value!r}; pass a "
                f"query log ({', '.join(TABLE_SUFFIXES)}), or {name} as an array"
            )
    n_rows = len(opened)
    when = np.full(n_rows, -np.inf) if times is None else read_times(times, "times")
    how_often = np.ones(n_rows, np.int64) if counts is None else read_counts(counts, "counts")
    for name, array in (("times", when), ("counts", how_often)):
        if len(array) != n_rows:
            raise NNNormError(
                f"{name} must have one entry per row; got {len(array)} for {n_rows} rows of "
                f"{opened.name}"
            )
    parts = (
        LogPart(start, rows, when[start : start + len(rows)], how_often[start : start + len(rows)])
        for start, rows in opened.blocks()
    )
    return parts, opened.name, n_rows
