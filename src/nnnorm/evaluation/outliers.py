"""Outliers: items that look adversarial or corrupt, judged without labels.

The sum of an item's signals (`evaluation.signals`) is its score; a budget bounds the number of
alerts. Zeros, constants and odd norms are faults, whatever they do to queries. `scan` judges all
items of a gallery by each other and by past queries, `screen` judges new items by a corrector.
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

from nnnorm.bank import Bank, open_references, use_references
from nnnorm.corrector import Corrector
from nnnorm.dedup import used_rows
from nnnorm.embeddings import (
    Embeddings,
    Source,
    ValidRows,
    check_same_norms,
    open_embeddings,
    open_valid,
)
from nnnorm.errors import NNNormError
from nnnorm.evaluation.drift import open_corrector
from nnnorm.evaluation.signals import SIGNALS, DoubleArray, Expected, IntArray, Numbers
from nnnorm.files import Progress, write_whole
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.tables import check_ids

Verdict = Literal["fine", "watch", "remove"]
# A share ("0.2%", 0.002) or a number of alerts.
Budget: TypeAlias = str | float | int

DEFAULT_BUDGET = "0.2%"
# A share of a small gallery is no alert at all; so many are looked at in any gallery.
LEAST_ALERTS = 5
# Sums of six robust z; docs/scan.md has what clean and adversarial items reach.
WATCH, REMOVE = 10.0, 17.0
# The z from which a signal is a reason of its own.
_NOTABLE = 3.0
# Norms this close to 1 are unit norms that were rounded.
_UNIT = 5e-3
# Share of the rows with unit norms from which the others are faults.
_MOSTLY = 0.9
# A norm this many times larger or smaller than the median is odd, if norms vary at all.
_ODD_NORM = 4.0


@dataclass(frozen=True)
class Outlier:
    """One item that is not fine; rows that are broken have no score and no signals."""

    item: int
    id: Any  # the row if items have no ids
    verdict: Verdict
    reasons: tuple[str, ...]
    score: float | None
    signals: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**vars(self), "reasons": list(self.reasons), "signals": dict(self.signals)}


@dataclass(frozen=True, eq=False)
class Scan:
    """The verdicts on items; the outliers come with the worst first, broken rows before all."""

    outliers: tuple[Outlier, ...]
    scores: DoubleArray = field(repr=False)
    signals: Mapping[str, DoubleArray] = field(repr=False)
    n_items: int
    n_references: int
    budget: int | None
    ids: npt.NDArray[Any] | None = field(default=None, repr=False)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict on every item."""
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
        """The rows of all items that are not to be removed."""
        return np.flatnonzero([verdict != "remove" for verdict in self.verdicts])

    def count(self, verdict: Verdict) -> int:
        """Count the items with a verdict."""
        return self.verdicts.count(verdict)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: counts and outliers; items that are fine are not listed."""
        return {
            "n_items": self.n_items,
            "n_references": self.n_references,
            "budget": self.budget,
            **{verdict: self.count(verdict) for verdict in ("fine", "watch", "remove")},
            "outliers": [outlier.to_dict() for outlier in self.outliers],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ids of `to_remove`: a JSON list, or text with one per line."""
        path, ids = Path(path), self.to_remove
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


def scan(
    gallery: Source,
    references: Source | Bank | None = None,
    *,
    corrector: Corrector | str | os.PathLike[str] | None = None,
    ids: Sequence[Any] | None = None,
    budget: Budget = DEFAULT_BUDGET,
    normalize: bool | None = None,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Scan:
    """Judge the items of a gallery: fine, to be watched, or to be taken out.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
        The items that are searched. Rows of zeros or NaN are reported, not rejected.
    references : Bank, array or path, shape (n_references, dim)
        Past queries.
    corrector : Corrector or path, optional
        In place of the references: its bank is used, and rows are opened as it needs them.
    ids : sequence of int or of str, optional
        One per item.
    budget : str, float or int
        The largest number of alerts: ``"0.2%"`` or 0.002 of the items (five at least), or a whole
        number. Broken rows are reported besides.
    normalize : bool, optional
        As in `open_embeddings`.
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
    >>> planted = shapes.references[1000:1400].mean(axis=0, keepdims=True)
    >>> gallery = np.concatenate([shapes.gallery, planted / np.linalg.norm(planted)])
    >>> found = scan(gallery, shapes.references[:1000])
    >>> found.outliers[0].item, found.outliers[0].verdict
    (1000, 'remove')
    """
    if (references is None) == (corrector is None):
        raise NNNormError(
            "scan needs references (past queries), or a corrector in their place; got "
            + ("neither" if corrector is None else "both")
        )
    if corrector is None:
        items = open_valid(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        check_same_norms(items.embeddings, past, normalize=normalize)
        bank = used_rows(use_references(references, past, "drop", progress))
    else:
        loaded = open_corrector(corrector)
        items, bank = loaded.open_valid(gallery, "gallery"), loaded.bank
    alerts = count_alerts(budget, items.n_rows)
    faults = _find_odd_norms(items.embeddings)
    # Rows with norms of their own would move what is usual.
    honest = np.setdiff1d(np.arange(len(items.embeddings)), list(faults))
    landmarks = items.embeddings if not faults else items.embeddings.subset(honest)
    options: dict[str, Any] = {"seed": seed, "memory_budget": memory_budget}
    expected = Expected(landmarks, bank, progress=progress, **options)
    own = np.full(len(items.embeddings), -1)
    own[honest[expected.chosen]] = np.arange(len(expected.chosen))
    return _judge(expected, items, faults, ids, own=own, budget=alerts, progress=progress)


def screen(
    corrector: Corrector | str | os.PathLike[str],
    items: Source,
    *,
    ids: Sequence[Any] | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Judge new items before they are added, by a corrector's past queries and sample of items."""
    corrector = open_corrector(corrector)
    rows = corrector.open_valid(items, "items")
    unit = True if corrector.unit and not rows.embeddings.normalized else None
    faults = _find_odd_norms(rows.embeddings, unit=unit, norms=corrector.item_norms)
    sample = corrector.sample.astype(np.float32)
    known = open_embeddings(sample, name="items", normalize=corrector.normalize)
    return _judge(Expected(known, corrector.bank), rows, faults, ids, progress=progress)


def count_alerts(budget: Budget, n_items: int) -> int:
    """Count the alerts that a budget ("0.2%", 0.002 or 20) allows; a share, five at least."""
    wrong = NNNormError(
        "budget must be a share of the items such as '0.2%' or 0.002, or a whole number of "
        f"alerts; got {budget!r}"
    )
    text = str(budget).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise wrong from None
    if isinstance(budget, bool) or not math.isfinite(number) or number <= 0:
        raise wrong
    is_share = text.endswith("%") or number < 1
    share = number / 100 if text.endswith("%") else number
    if (share > 1) if is_share else (number != int(number)):
        raise wrong
    if is_share:
        return min(n_items, max(LEAST_ALERTS, math.floor(share * n_items + 1e-9)))
    return min(n_items, int(number))


def _find_odd_norms(
    items: Embeddings, *, unit: bool | None = None, norms: tuple[float, float] | None = None
) -> dict[int, str]:
    """Constant rows, norms unlike all others, and other norms among unit ones: faults by row."""
    lengths, faults = np.empty(len(items)), {}
    for start, block in items.blocks():
        lengths[start : start + len(block)] = np.linalg.norm(block, axis=1)
        if items.dim > 2:
            for row in np.flatnonzero(np.ptp(block, axis=1) == 0):
                faults[start + int(row)] = "all its entries are equal"
    is_unit = np.abs(lengths - 1) <= _UNIT
    if unit or (unit is None and norms is None and is_unit.mean() >= _MOSTLY):
        odd, words = ~is_unit, "where others have unit norms"
    else:
        low, high = (float(np.median(lengths)),) * 2 if norms is None else norms
        odd = (lengths > _ODD_NORM * high) | (lengths * _ODD_NORM < low)
        words = f"where others have {low:.3g}" + (f" to {high:.3g}" if high > low else "")
    found = {int(row): f"its norm is {lengths[row]:.3g}, {words}" for row in np.flatnonzero(odd)}
    return faults | found


def _judge(
    expected: Expected,
    sound: ValidRows,
    faults: Mapping[int, str],
    ids: Sequence[Any] | None,
    *,
    own: IntArray | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Give every item a verdict; `own` and `faults` are those of the rows of `sound`."""
    n_items = sound.n_rows
    names = check_ids(ids, n_items, name=sound.embeddings.name) if ids is not None else sound.ids
    numbers = expected.measure(sound.embeddings, own, progress)
    z = expected.compare(numbers)
    signals = {name: np.full(n_items, np.nan) for name in SIGNALS}
    for name in SIGNALS:
        signals[name][sound.rows] = z[name]
    broken = dict(sound.faults)
    broken |= {int(sound.rows[row]): words for row, words in faults.items()}
    scores = np.full(n_items, np.inf)
    scores[sound.rows] = sum(z.values())
    scores[list(broken)] = np.inf

    def name_of(item: int) -> Any:
        return item if names is None else names[item].item()

    outliers = [
        Outlier(item, name_of(item), "remove", (broken[item],), None, {}) for item in sorted(broken)
    ]
    order = np.argsort(-scores, kind="stable")[len(broken) :][:budget]
    for item in order[scores[order] >= WATCH].tolist():
        verdict: Verdict = "remove" if scores[item] >= REMOVE else "watch"
        own_signals = {name: round(float(signals[name][item]), 2) for name in SIGNALS}
        place = int(np.searchsorted(sound.rows, item))
        reasons = _reasons(expected, numbers, place, own_signals)
        score = round(float(scores[item]), 2)
        outliers.append(Outlier(item, name_of(item), verdict, reasons, score, own_signals))
    return Scan(tuple(outliers), scores, signals, n_items, expected.n_references, budget, names)


def _reasons(
    expected: Expected, numbers: Numbers, place: int, signals: Mapping[str, float]
) -> tuple[str, ...]:
    """The signals in words, strongest first: those that are notable, or the strongest."""
    usual = expected.medians
    words = {
        "bias": "its scores with the references are {z:.1f} spreads above the median item's",
        "neighbours": "its scores with the references are {z:.1f} spreads above those of items "
        "with as close neighbours",
        "intents": f"{numbers.intents[place]:.0f} of {expected.n_topics} topics of the bank "
        f"retrieve it; a usual item, {usual['intents']}",
        "firsts": f"{numbers.firsts[place]:,.0f} of {expected.n_references:,} references have it "
        f"in first place; a usual item, {usual['firsts']}",
        "blends": f"{numbers.blends[place]:,.0f} of {expected.n_blends:,} blends of two queries "
        f"have it in first place; a usual item, {usual['blends']}",
        "side": "it lies {z:.1f} spreads from the other items towards the queries",
    }
    ordered = sorted(SIGNALS, key=lambda name: -signals[name])
    notable = [name for name in ordered if signals[name] >= _NOTABLE] or ordered[:1]
    reasons = [words[name].format(z=signals[name]) for name in notable]
    n_copies = int((numbers.leader == numbers.leader[place]).sum())
    if numbers.leader[place] >= 0 and n_copies > 1:
        reasons.append(f"it is one of {n_copies:,} near copies")
    return tuple(reasons)
