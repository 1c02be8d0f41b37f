"""Suspects: items that look planted or broken, judged without labels.

The sum of an item's signals (`nnnorm.signals`) is its suspicion; a budget bounds the number of
alerts. Zeros, constants and stray norms are faults, whatever they do to queries.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, Sound
from nnnorm.errors import NNNormError
from nnnorm.files import Progress, write_whole
from nnnorm.signals import SIGNALS, DoubleArray, Expected, IntArray, Measured
from nnnorm.tables import check_ids

Verdict = Literal["fine", "watch", "quarantine"]
# A share ("0.2%", 0.002) or a number of alerts.
Budget: TypeAlias = str | float | int

DEFAULT_BUDGET = "0.2%"
# A share of a small gallery is no alert at all; so many are looked at in any gallery.
LEAST_ALERTS = 5
# Sums of six robust z; docs/scan.md has what clean and planted items reach.
WATCH, QUARANTINE = 10.0, 17.0
# The z from which a signal is a reason of its own.
_NOTABLE = 3.0
# Norms this close to 1 are unit norms that were rounded.
_UNIT = 5e-3
# Share of the rows with unit norms from which the others are faults.
_MOSTLY = 0.9
# A norm this many times larger or smaller than the median is odd, where norms vary at all.
_ODD_NORM = 4.0


@dataclass(frozen=True)
class Suspect:
    """One item that is not fine.

    Attributes
    ----------
    item : int
        Its row.
    id : int or str
        Its id; the row where items have no ids.
    verdict : {"watch", "quarantine"}
    reasons : tuple of str
    suspicion : float or None
        The sum of the signals; None for a row that is broken.
    signals : dict of str to float
        Robust z of every signal; empty for a row that is broken.
    """

    item: int
    id: Any
    verdict: Verdict
    reasons: tuple[str, ...]
    suspicion: float | None
    signals: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON.

        Examples
        --------
        >>> Suspect(3, "a", "watch", ("near",), 9.0, {}).to_dict()["id"]
        'a'
        """
        return {**vars(self), "reasons": list(self.reasons), "signals": dict(self.signals)}


@dataclass(frozen=True, eq=False)
class Scan:
    """The verdicts on the items of a gallery, or on new ones.

    Attributes
    ----------
    suspects : tuple of Suspect
        Items that are not fine, most suspicious first; broken rows lead.
    suspicion : ndarray, shape (n_items,)
        The sum of the signals of every item; infinite for broken rows.
    signals : dict of str to ndarray, shape (n_items,)
        Robust z of every signal; NaN for broken rows.
    n_items, n_references : int
        What was judged, and against what; references are those that were used.
    budget : int or None
        The largest number of alerts, broken rows aside.
    ids : ndarray, shape (n_items,), or None
    """

    suspects: tuple[Suspect, ...]
    suspicion: DoubleArray = field(repr=False)
    signals: Mapping[str, DoubleArray] = field(repr=False)
    n_items: int
    n_references: int
    budget: int | None
    ids: npt.NDArray[Any] | None = field(default=None, repr=False)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on every item."""
        found: list[Verdict] = ["fine"] * self.n_items
        for suspect in self.suspects:
            found[suspect.item] = suspect.verdict
        return found

    @property
    def quarantined(self) -> list[Any]:
        """The ids (or rows) of the items to take out."""
        return [suspect.id for suspect in self.suspects if suspect.verdict == "quarantine"]

    @property
    def kept(self) -> IntArray:
        """The rows of all items that are not quarantined."""
        return np.flatnonzero([verdict != "quarantine" for verdict in self.verdicts])

    def count(self, verdict: Verdict) -> int:
        """Count the items with a verdict."""
        return self.verdicts.count(verdict)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: counts and suspects; items that are fine are not listed."""
        counts = {verdict: self.count(verdict) for verdict in ("fine", "watch", "quarantine")}
        return {
            "n_items": self.n_items,
            "n_references": self.n_references,
            "budget": self.budget,
            **counts,
            "suspects": [suspect.to_dict() for suspect in self.suspects],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ids of `quarantined`: a JSON list, or text with one per line."""
        path, ids = Path(path), self.quarantined
        if path.suffix == ".json":
            text = json.dumps(ids, ensure_ascii=False) + "\n"
        elif path.suffix == ".txt":
            if broken := [one for one in map(str, ids) if one.strip().splitlines() != [one]]:
                raise NNNormError(
                    f"the id {broken[0]!r} can't be a line of {path}; write a .json file"
                )
            text = "".join(f"{one}\n" for one in ids)
        else:
            raise NNNormError(f"a list of items must end in .txt or .json; got {path}")
        write_whole(path, lambda file: file.write(text.encode()))


def count_alerts(budget: Budget, n_items: int) -> int:
    """Count the alerts that a budget allows; a share allows five at least.

    Parameters
    ----------
    budget : str, float or int
        ``"0.2%"``, a share between 0 and 1 such as 0.002, or a whole number of alerts.
    n_items : int

    Returns
    -------
    int

    Examples
    --------
    >>> [count_alerts(budget, 10_000) for budget in ("0.2%", 0.01, 3, "7")]
    [20, 100, 3, 7]
    >>> count_alerts("0.2%", 500)
    5
    """
    wrong = NNNormError(
        "budget must be a share of the items such as '0.2%' or 0.002, or a whole number of "
        f"alerts; got {budget!r}"
    )
    text = str(budget).strip()
    is_percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise wrong from None
    if isinstance(budget, bool) or not math.isfinite(number) or number <= 0:
        raise wrong
    if is_percent or number < 1:
        share = number / 100 if is_percent else number
        if share > 1:
            raise wrong
        return min(n_items, max(LEAST_ALERTS, math.floor(share * n_items + 1e-9)))
    if number != int(number):
        raise wrong
    return min(n_items, int(number))


def find_stray_norms(
    items: Embeddings,
    *,
    unit: bool | None = None,
    norms: tuple[float, float] | None = None,
) -> dict[int, str]:
    """Find constant rows, norms unlike all others, and other norms among unit ones.

    Parameters
    ----------
    items : Embeddings, shape (n_items, dim)
    unit : bool, optional
        Whether all norms must be 1; by default, where nine in ten are.
    norms : (float, float), optional
        Smallest and largest usual norm; by default, the median of these items is usual.

    Returns
    -------
    dict of int to str
        What is wrong, by row.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = np.concatenate([np.eye(12), 3 * np.eye(12)[:1]])
    >>> find_stray_norms(open_embeddings(rows, normalize=False))
    {12: 'its norm is 3, where others have unit norms'}
    """
    lengths, faults = np.empty(len(items)), {}
    for start, block in items.blocks():
        lengths[start : start + len(block)] = np.linalg.norm(block, axis=1)
        if items.dim > 2:
            for row in np.flatnonzero(np.ptp(block, axis=1) == 0):
                faults[start + int(row)] = "all its entries are equal"
    is_unit = np.abs(lengths - 1) <= _UNIT
    if unit or (unit is None and norms is None and is_unit.mean() >= _MOSTLY):
        stray, words = ~is_unit, "where others have unit norms"
    else:
        low, high = (float(np.median(lengths)),) * 2 if norms is None else norms
        stray = (lengths > _ODD_NORM * high) | (lengths * _ODD_NORM < low)
        words = f"where others have {low:.3g}" + (f" to {high:.3g}" if high > low else "")
    found = {int(row): f"its norm is {lengths[row]:.3g}, {words}" for row in np.flatnonzero(stray)}
    return faults | found


def judge(
    expected: Expected,
    sound: Sound,
    *,
    own: IntArray | None = None,
    faults: Mapping[int, str] | None = None,
    budget: int | None = None,
    ids: Sequence[Any] | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Give every item a verdict.

    Parameters
    ----------
    expected : Expected
    sound : Sound
        The items.
    own : ndarray, shape (n_sound,), optional
        The number of the landmark that each sound item is, −1 where it is none.
    faults : dict of int to str, optional
        What is wrong with rows besides those of `sound`, by sound row.
    budget : int, optional
        The largest number of alerts, broken rows aside; none by default.
    ids : sequence, optional
        Of all items.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Scan

    Examples
    --------
    >>> from nnnorm import load_shapes, open_embeddings
    >>> from nnnorm.embeddings import open_sound
    >>> shapes = load_shapes()
    >>> items, bank = (open_embeddings(rows) for rows in (shapes.gallery, shapes.references[:900]))
    >>> rows = np.stack([shapes.gallery[0], shapes.gallery[0] * 0])
    >>> judge(Expected(items, bank), open_sound(rows, name="items")).verdicts
    ['fine', 'quarantine']
    """
    n_items = sound.n_rows
    names = check_ids(ids, n_items, name=sound.embeddings.name) if ids is not None else sound.ids
    measured = expected.measure(sound.embeddings, own, progress)
    z = expected.compare(measured)
    signals = {name: np.full(n_items, np.nan) for name in SIGNALS}
    suspicion = np.full(n_items, np.inf)
    for name in SIGNALS:
        signals[name][sound.rows] = z[name]
    suspicion[sound.rows] = sum(z.values())
    broken = {**sound.faults}
    broken |= {int(sound.rows[row]): words for row, words in (faults or {}).items()}
    suspicion[list(broken)] = np.inf
    n_copies = np.bincount(measured.leader[measured.leader >= 0], minlength=1)

    def name_of(item: int) -> Any:
        return item if names is None else names[item].item()

    suspects = [
        Suspect(item, name_of(item), "quarantine", (broken[item],), None, {})
        for item in sorted(broken)
    ]
    order = np.argsort(-suspicion, kind="stable")[len(broken) :]
    for item in order[: len(order) if budget is None else budget]:
        total = float(suspicion[item])
        if total < WATCH:
            break
        place = int(np.searchsorted(sound.rows, item))
        verdict: Verdict = "quarantine" if total >= QUARANTINE else "watch"
        own_signals = {name: round(float(signals[name][item]), 2) for name in SIGNALS}
        reasons = _reasons(expected, measured, place, own_signals, n_copies)
        suspects.append(
            Suspect(int(item), name_of(int(item)), verdict, reasons, round(total, 2), own_signals)
        )
    return Scan(tuple(suspects), suspicion, signals, n_items, expected.n_references, budget, names)


def _reasons(
    expected: Expected,
    measured: Measured,
    place: int,
    signals: Mapping[str, float],
    n_copies: IntArray,
) -> tuple[str, ...]:
    """The signals in words, strongest first: those that are notable, or the strongest."""
    n_topics, n_blends = expected.n_topics, expected.n_blends
    usual = {name: expected.usual(name) for name in ("intents", "firsts", "blends")}
    words = {
        "bias": "its scores with the references are {z:.1f} spreads above the median item's",
        "neighbours": "its scores with the references are {z:.1f} spreads above those of items "
        "with as close neighbours",
        "intents": f"{measured.intents[place]:.0f} of {n_topics} topics of the bank retrieve it; "
        f"a usual item, {usual['intents']}",
        "firsts": f"{measured.firsts[place]:,.0f} of {expected.n_references:,} references have it "
        f"in first place; a usual item, {usual['firsts']}",
        "blends": f"{measured.blends[place]:,.0f} of {n_blends:,} blends of two queries have it in "
        f"first place; a usual item, {usual['blends']}",
        "side": "it lies {z:.1f} spreads from the other items towards the queries",
    }
    ordered = sorted(SIGNALS, key=lambda name: -signals[name])
    notable = [name for name in ordered if signals[name] >= _NOTABLE] or ordered[:1]
    reasons = [words[name].format(z=signals[name]) for name in notable]
    leader = measured.leader[place]
    if leader >= 0 and n_copies[leader] > 1:
        reasons.append(f"it is one of {n_copies[leader]:,} near copies")
    return tuple(reasons)
