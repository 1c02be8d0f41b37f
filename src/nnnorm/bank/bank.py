"""`Bank`: reference queries fit for use, kept from day to day.

A bank takes queries as they come (arrays, files, logs), counts every intent once (`copies`), keeps
a bounded number of intents, the recent ones rather than the old ones if it is given a half-life,
and forgets on request. The order of arrival is all that matters: adding A and then B equals adding
both at once. It is saved as one `.safetensors` file with unit rows in float16, written whole or not
at all. A call that fails changes nothing.
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank.arrivals import Added, add_parts, check_norms, split_rows, warn_of_future
from nnnorm.bank.times import check_same_clock, read_half_life
from nnnorm.copies import MOST_INTENTS, SAME_INTENT, Leaders, describe_intents
from nnnorm.errors import NNNormError, explain_arguments, warn
from nnnorm.io import (
    Clock,
    Embeddings,
    LogPart,
    Progress,
    Source,
    check_entries,
    damaged,
    load_record,
    open_embeddings,
    read_log,
    read_time,
    save_record,
)
from nnnorm.version import __version__

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.int64]

_MAKER = "nnnorm bank build"
_KINDS = {
    "n_seen": int,
    "n_forgotten": int,
    "n_rows": int,
    "dim": int,
    "normalized": bool,
    "most": int | None,
    "seed": int,
    "half_life": float | None,
    "clock": str | None,
    "fingerprint": str,
    "created": str,
}


class Bank:
    """Reference queries, one per intent.

    Made by `Bank.of`, `Bank.from_log` or `Bank.load`. `add` and `forget` change it in place.

    Examples
    --------
    >>> import numpy as np, nnnorm
    >>> monday = np.array([[1.0, 0.0, 0.0], [0.99, 0.1, 0.0], [0.0, 1.0, 0.0]])
    >>> bank = nnnorm.Bank.of(monday, normalize=True)
    >>> bank
    Bank(2 intents from 3 queries, dim 3, normalized)
    >>> bank.add(np.array([[0.0, 0.0, 1.0]]))
    >>> nnnorm.NNN(reference_k=1, alpha=0.5).fit(np.eye(3)[:2], bank, normalize=True).values
    array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        leaders: Leaders,
        *,
        normalized: bool,
        clock: Clock | None = None,
        half_life: float | None = None,
        seed: int = 0,
        n_seen: int = 0,
        n_forgotten: int = 0,
        created: str = "",
    ) -> None:
        if not isinstance(leaders, Leaders):
            raise NNNormError(
                "a bank is made by Bank.of(references), Bank.from_log(path) or Bank.load(path); "
                f"got a {type(leaders).__name__}"
            )
        self._leaders, self._clock = leaders, clock
        self._n_seen, self._n_forgotten = n_seen, n_forgotten
        self._normalized, self._half_life, self._seed = normalized, half_life, seed
        self._created = created or _now()
        self._opened: Embeddings | None = None

    @classmethod
    @explain_arguments
    def of(
        cls,
        references: Source,
        *,
        times: Any = None,
        counts: Any = None,
        half_life: float | str | timedelta | None = None,
        most: int = MOST_INTENTS,
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
            After this time without being asked, an intent is half as likely to be kept: with dates
            a timedelta or a text such as ``"30d"`` (also s, m, h and w), with times that are
            numbers a number in their unit. Matters only where there are more than `most` intents.
        most : int
            Number of intents to keep; 8,192 by default.
        seed : int
            Random seed of which intents are kept.
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
        Bank(3 intents from 3 queries, dim 3, seen 2026-05-01)
        """
        opened = open_embeddings(references, name="references", normalize=normalize)
        parts = split_rows(opened, times, counts)
        first = next(parts)
        span = read_half_life(half_life, first.clock)
        leaders = _make_leaders(opened.dim, span, most, seed)
        bank = cls(leaders, normalized=opened.normalized, half_life=span, seed=seed)
        bank._absorb(chain([first], parts), opened.name, len(opened), progress)
        return bank

    @classmethod
    @explain_arguments
    def from_log(
        cls,
        path: str | os.PathLike[str],
        *,
        column: str = "embedding",
        time: str | None = None,
        count: str | None = None,
        half_life: float | str | timedelta | None = None,
        most: int = MOST_INTENTS,
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
        half_life, most, seed, normalize, progress
            As in `of`; `progress` is called with ``(done, done)``, as the length is not known.

        Returns
        -------
        Bank

        Examples
        --------
        >>> Bank.from_log("queries.parquet", time="asked_at", half_life="30d")  # doctest: +SKIP
        Bank(8,192 sampled intents from 1,000,000 queries, dim 512, seen 2026-01-01 to 2026-05-31)
        """
        parts = read_log(path, column=column, time=time, count=count)
        first = next(parts)
        span = read_half_life(half_life, first.clock)
        leaders = _make_leaders(first.rows.shape[1], span, most, seed)
        bank = cls(leaders, normalized=bool(normalize), half_life=span, seed=seed)
        added = bank._absorb(chain([first], parts), str(path), None, progress)
        if normalize is None and not added.has_equal_norms:
            warn(
                f"rows of {path} have norms {added.low:.3g} to {added.high:.3g}, so the bank is "
                "for raw inner products; for cosine pass normalize=True (--normalize), and if "
                "inner products are meant, normalize=False (--no-normalize)"
            )
        return bank

    # --- what it holds -----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._leaders)

    def __repr__(self) -> str:
        intents = describe_intents(len(self), self.is_sample)
        facts = [f"{intents} from {self.n_seen:,} queries", f"dim {self.dim}"]
        if self.normalized:
            facts.append("normalized")
        if self._clock is not None:
            facts.append(f"seen {describe_times(self)}")
        return f"Bank({', '.join(facts)})"

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self._leaders.dim

    @property
    def n_seen(self) -> int:
        """Number of queries that were added so far, copies and forgotten ones included."""
        return self._n_seen

    @property
    def n_forgotten(self) -> int:
        """Number of queries whose intents `forget` dropped."""
        return self._n_forgotten

    @property
    def is_sample(self) -> bool:
        """Whether there were more intents than are kept, so that these are a random part."""
        return int(self.counts.sum()) < self.n_seen - self.n_forgotten

    @property
    def normalized(self) -> bool:
        """Whether rows are divided by their norms."""
        return self._normalized

    @property
    def rows(self) -> FloatArray:
        """One row per intent in the order of arrival, read-only, shape ``(n_intents, dim)``.

        Unit rows in float16 where the bank is normalised, else float32 with the norms they had.
        """
        rows: FloatArray = self._leaders.rows
        if not self.normalized:
            rows = rows.astype(np.float32) * self._leaders.norms[:, None]
        rows.setflags(write=False)
        return rows

    @property
    def counts(self) -> IntArray:
        """How many queries each intent stands for, shape ``(n_intents,)``."""
        return self._leaders.counts

    @property
    def last_seen(self) -> npt.NDArray[Any] | None:
        """When each intent was last asked: float64 or datetime64; None without times."""
        seen = self._leaders.last_seen
        if self._clock == "dates":
            return np.asarray((seen * 1e6).round().astype("datetime64[us]"))
        return None if self._clock is None else seen

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
        """Everything but the numbers of single intents, ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> Bank.of(np.eye(3), counts=[3, 1, 1]).to_dict()["n_seen"]
        5
        """
        seen = self._leaders.last_seen
        return {
            "n_intents": len(self),
            "intents_sampled": self.is_sample,
            "n_seen": self.n_seen,
            "n_forgotten": self.n_forgotten,
            "n_rows": self._leaders.n_rows,
            "dim": self.dim,
            "normalized": self.normalized,
            "most": self._leaders.most,
            "seed": self._seed,
            "half_life": self._half_life,
            "clock": self._clock,
            "oldest_seen": None if self._clock is None else float(seen.min()),
            "last_seen": None if self._clock is None else float(seen.max()),
            "same_intent": SAME_INTENT,
            "fingerprint": self.fingerprint,
            "created": self._created,
            "version": __version__,
        }

    # --- change ------------------------------------------------------------------------------

    @explain_arguments
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
        parts = split_rows(opened, times, counts, self._clock)
        self._absorb(parts, opened.name, len(opened), progress)

    @explain_arguments
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

    @explain_arguments
    def forget(self, *, before: Any) -> None:
        """Drop the intents that were last asked before a time.

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
        if self._clock is None:
            raise NNNormError(
                "this bank has no times, so nothing can be forgotten by age; build it with times "
                "(--time)"
            )
        limit, clock = read_time(before, "before", self._clock)
        check_same_clock(clock, self._clock, "before")
        is_kept = self._leaders.last_seen >= limit
        if not is_kept.any():
            raise NNNormError(
                f"before {before} would leave none of the {len(self):,} intents, which were seen "
                f"{describe_times(self)}; give an earlier time"
            )
        self._n_forgotten += int(self.counts[~is_kept].sum())
        self._leaders.keep(np.flatnonzero(is_kept))
        self._opened = None

    def _absorb(
        self, parts: Iterable[LogPart], name: str, total: int | None, progress: Progress | None
    ) -> Added:
        """Add parts to a copy of the leaders, which takes their place once all went well."""
        leaders = self._leaders.copy()
        is_new = leaders.n_rows == 0
        added = add_parts(leaders, parts, name, clock=self._clock, total=total, progress=progress)
        if not (is_new or self.normalized):
            check_norms(added, self._leaders.norms, name)
        self._leaders, self._clock, self._opened = leaders, added.clock, None
        self._n_seen += added.n_queries
        warn_of_future(added, name)
        return added

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
        leaders = self._leaders
        arrays: dict[str, npt.NDArray[Any]] = {
            "rows": leaders.rows,
            "norms": leaders.norms,
            "counts": leaders.counts,
            "last_seen": leaders.last_seen,
        }
        save_record(path, "bank", arrays, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Bank":
        """Read a file that `save` wrote; what is added then has the effect it would have had.

        Examples
        --------
        >>> Bank.load("nowhere.safetensors")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no bank file nowhere.safetensors; ...
        """
        arrays, about = load_record(path, "bank", _MAKER)
        try:
            check_entries(about, _KINDS)
            seed, span = about["seed"], about["half_life"]
            leaders = Leaders(about["dim"], most=about["most"], seed=seed, half_life=span)
            order = ("rows", "last_seen", "counts", "norms")
            leaders.restore(about["n_rows"], *(arrays[name] for name in order))
            kept = {name: about[name] for name in ("normalized", "clock", "n_seen", "created")}
            # Banks that were saved before this was counted lack it.
            kept["n_forgotten"] = about.get("n_forgotten", 0)
            return cls(leaders, half_life=span, seed=seed, **kept)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise damaged(path, "bank", _MAKER, error) from error


def describe_times(bank: Bank) -> str:
    """The oldest and latest of the times at which intents were last seen; empty without times.

    Examples
    --------
    >>> import numpy as np
    >>> describe_times(Bank.of(np.eye(2), times=["2026-05-01", "2026-05-09"]))
    '2026-05-01 to 2026-05-09'
    """
    seen = bank.last_seen
    if seen is None:
        return ""
    ends = [seen.min(), seen.max()]
    shown = [f"{end:.15g}" if seen.dtype.kind == "f" else str(end)[:10] for end in ends]
    return " to ".join(dict.fromkeys(shown))


def _make_leaders(dim: int, half_life: float | None, most: int, seed: int) -> Leaders:
    for name, value, least in (("most", most, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise NNNormError(f"{name} must be a whole number of at least {least}; got {value!r}")
    return Leaders(dim, most=int(most), seed=int(seed), half_life=half_life)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
