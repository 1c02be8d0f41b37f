"""Queries as they arrive: an array or a log in parts, each checked and added to the leaders."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank.times import check_same_clock
from nnnorm.copies import Leaders, round_rows
from nnnorm.errors import NNNormError, warn
from nnnorm.io import Clock, Embeddings, LogPart, Progress, measure_rows, read_counts, read_times

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]

# Norms that differ by less than this share of the largest count as equal, as in `open_embeddings`.
_EQUAL_NORMS = 0.01
# Times without an offset may be local ones, up to 14 hours before UTC.
_CLOCKS_DIFFER = 86400.0


def split_rows(
    opened: Embeddings, times: Any, counts: Any, clock: Clock | None = None
) -> Iterator[LogPart]:
    """The parts of an array; times and counts are checked before the first.

    Parameters
    ----------
    opened : Embeddings, shape (n_rows, dim)
    times, counts : sequence or None
        One entry per row.
    clock : {"numbers", "dates"}, optional
        What times must be.

    Yields
    ------
    LogPart

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> next(split_rows(open_embeddings(np.eye(3)), [1, 2, 3], None)).clock
    'numbers'
    """
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
        yield LogPart(
            start,
            rows,
            None if when is None else when[part],
            None if how_often is None else how_often[part],
            clock,
        )


class Added(NamedTuple):
    """What `add_parts` added.

    Attributes
    ----------
    n_queries : int
        Number of queries, by their counts.
    clock : {"numbers", "dates"} or None
        What their times are.
    low, high : float
        Smallest and largest norm.
    latest : float
        The last of their times; -inf without times.
    """

    n_queries: int
    clock: Clock | None
    low: float
    high: float
    latest: float

    @property
    def has_equal_norms(self) -> bool:
        """Whether all norms are about the same."""
        return self.high - self.low <= _EQUAL_NORMS * self.high


def add_parts(
    leaders: Leaders,
    parts: Iterable[LogPart],
    name: str,
    *,
    clock: Clock | None,
    total: int | None = None,
    progress: Progress | None = None,
) -> Added:
    """Add parts to leaders, which are changed in place.

    Parameters
    ----------
    leaders : Leaders
    parts : iterable of LogPart
    name : str
        For messages.
    clock : {"numbers", "dates"} or None
        What times must be; leaders without rows take those of the first part.
    total : int, optional
        Number of rows, where it is known.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Added

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> leaders = Leaders(3, most=9, seed=0)
    >>> parts = split_rows(open_embeddings(np.eye(3)), None, [5, 1, 1])
    >>> add_parts(leaders, parts, "queries", clock=None).n_queries, len(leaders)
    (7, 3)
    """
    n_queries, low, high, latest = 0, np.inf, 0.0, -np.inf
    for part in parts:
        if part.rows.shape[1] != leaders.dim:
            raise NNNormError(
                f"{name} has dim {part.rows.shape[1]}, but the bank has {leaders.dim}; were they "
                "encoded by different models?"
            )
        if leaders.n_rows == 0:
            clock = part.clock
        check_same_clock(part.clock, clock, name)
        norms = measure_rows(part.rows, name, part.start)
        if not norms.all():
            row = part.start + int(np.argmin(norms))
            raise NNNormError(f"{name} row {row} is all zeros; a failed encoding? Remove it")
        low, high = min(low, float(norms.min())), max(high, float(norms.max()))
        leaders.add(round_rows(part.rows), part.times, part.counts, norms)
        if part.times is not None:
            latest = max(latest, float(part.times.max()))
        n_queries += len(part.rows) if part.counts is None else int(part.counts.sum())
        if progress is not None:
            done = part.start + len(part.rows)
            progress(done, total or done)
    return Added(n_queries, clock, low, high, latest)


def check_norms(added: Added, norms: FloatArray, name: str) -> None:
    """Raise where the bank has equal norms, and what is added does not share them.

    Parameters
    ----------
    added : Added
    norms : ndarray, shape (n_intents,)
        Of the rows that were there before.
    name : str
        For messages.

    Examples
    --------
    >>> check_norms(Added(1, None, 5.0, 5.0, 0.0), np.array([1.0, 2.0]), "queries")
    """
    low, high = added.low, added.high
    own_low, own_high = (float(some(norms)) for some in (np.min, np.max))
    if own_high - own_low > _EQUAL_NORMS * own_high:
        return  # raw inner products are meant
    if max(high, own_high) - min(low, own_low) > _EQUAL_NORMS * max(high, own_high):
        raise NNNormError(
            f"{name} has norms {low:.3g} to {high:.3g}, but all rows of the bank have about "
            f"{own_high:.3g}; normalise the rows first, or build the bank with normalize=True "
            "(--normalize)"
        )


def warn_of_future(added: Added, name: str) -> None:
    """Warn of dates that are not there yet.

    Examples
    --------
    >>> warn_of_future(Added(1, "dates", 1.0, 1.0, latest=0.0), "queries")
    """
    now = datetime.now(UTC).timestamp()
    if added.clock == "dates" and added.latest > now + _CLOCKS_DIFFER:
        day = str(np.datetime64(int(added.latest), "s"))[:10]
        warn(
            f"{name} has rows dated in the future, up to {day}; they count as the latest until "
            "then, and forget does not drop them; correct their times"
        )
