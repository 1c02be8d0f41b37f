"""What the paper says in words about its settings, in its own figures and in measured ones.

The paper finds four trends (appendix B.1): (1) smaller α and k for references of another
distribution; (2) small α and k where uncorrected scores are high; (3) settings that transfer
between image and text retrieval; (4) at α = 0.75, little depends on k. And section 3.1 says that
tuning DBNorm takes 100 times the compute of NNN. The paper's figures here are computed from its
printed tables.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import TypeAlias

import numpy as np

from nnnorm.report import Table
from reproduction.paper import GRIDS, Cell, Experiment, Value, find_tables
from reproduction.run import Runner, run_cell

Setting: TypeAlias = tuple[float, int]
_LIKE = 0.25  # two α are alike if they differ by no more: two steps of the paper's grid
_DBNORM = "dualis"
_NONE = "–"
_COUNTED = "settings to try: DBNorm over NNN"  # from the grids, without any measurement


@dataclass(frozen=True)
class Trend:
    """A statement in figures: computed from the paper's tables, and ours by name of the source."""

    words: str
    printed: str
    ours: dict[str, str]

    @property
    def is_measured(self) -> bool:
        """Whether any figure of ours is measured."""
        return self.words != _COUNTED and any(text != _NONE for text in self.ours.values())


def find_trends(runners: dict[str, Runner], *, other: bool) -> tuple[list[Trend], list[Cell]]:
    """Compute the trends with one or several runners, and return every figure they needed."""
    sources = {"": _Source(None, None)}
    for name, runner in runners.items():
        sources[name] = _Source(runner, name if other else None)
    rows: dict[str, dict[str, str]] = {}
    for name, source in sources.items():
        for words, text in _summarize(source):
            rows.setdefault(words, {})[name] = text
    trends = [
        Trend(words, texts[""], {name: texts[name] for name in runners})
        for words, texts in rows.items()
    ]
    return trends, [cell for source in sources.values() for cell in source.done.values()]


def tabulate_trends(trends: Sequence[Trend]) -> Table:
    """Tabulate the trends, the paper's figures first."""
    names = list(trends[0].ours)
    rows = tuple((t.words, t.printed, *(t.ours[name] for name in names)) for t in trends)
    notes = (
        "The paper's figures are computed from its tables 1, 2 and A1 to A4; 100 is its own word. "
        "Correlations are Spearman's, over models and data sets.",
        "Our tuning computes the statistics of a whole grid in one pass over each bank, so its "
        "times don't grow with the number of settings as the paper's do.",
    )
    columns = ("", "the paper", *names)
    return Table("The paper's four trends, and the cost of tuning DBNorm", columns, rows, notes)


class _Source:
    """Figures of experiments: printed ones, or measured ones."""

    def __init__(self, runner: Runner | None, data: str | None) -> None:
        self.runner, self._data = runner, data
        self.done: dict[Experiment, Cell] = {}

    def cells(
        self, *tables: str, methods: Sequence[str] = ("none", "nnn")
    ) -> list[tuple[Experiment, Value]]:
        """Return the experiments of some tables with their figures, each experiment once."""
        found: dict[Experiment, Value | None] = {}
        for table in find_tables(tables):
            for cell in table.cells:
                there = cell.experiment
                if there.method not in methods:
                    continue
                if self._data is not None:
                    there = there.on_other_data(self._data)
                if there not in found:
                    found[there] = cell.printed if self.runner is None else self.value(there)
        return [(there, value) for there, value in found.items() if value is not None]

    def value(self, there: Experiment) -> Value | None:
        """Measure an experiment; None if that is not possible, or nothing is measured."""
        if self.runner is None:
            return None
        if there not in self.done:
            words = (
                f"{there.dataset}, {there.direction} retrieval: {there.metric} of {there.method}"
            )
            cell = Cell(there.model, words, there)
            self.done[there] = run_cell(self.runner, cell, by_rule=False)
        figure = self.done[there].figure
        return None if figure is None else figure.value


def _summarize(source: _Source) -> Iterable[tuple[str, str]]:
    settings = [(e, s) for e, s in source.cells("settings") if isinstance(s, tuple)]
    own = [(there, setting) for there, setting in settings if _is_own(there)]
    other = [setting for there, setting in settings if not _is_own(there)]
    yield "(1) own bank: median setting", _medians([setting for _, setting in own])
    yield "(1) other bank: median setting", _medians(other)
    found = source.cells("image-retrieval", "text-retrieval", methods=["none"])
    before = {_place_of(there): value for there, value in found if isinstance(value, float)}
    for name, place in (("α", 0), ("k", 1)):
        pairs = [(before.get(_place_of(e)), setting[place]) for e, setting in own]
        yield f"(2) correlation of uncorrected R@1 and best {name}", _correlate(pairs)
    yield "(3) same α ± 0.25 for images and texts", _agreement(settings)
    yield "(3) R@1 with the other direction's setting", _transfer(source, own)
    sweeps = _sweeps(source)
    yield "(4) α = 0.75: gain with k = 1", _points(sweeps, lambda r: r[1] - r[0])
    yield "(4) α = 0.75: gain with k = 8", _points(sweeps, lambda r: r[8] - r[0])
    yield "(4) α = 0.75: spread of R@1, k = 8 to 128", _points(sweeps, _spread)
    n_nnn, n_dbnorm = (
        sum(prod(map(len, part.values())) for part in parts)
        for parts in ([GRIDS["nnn"]], GRIDS[_DBNORM])
    )
    yield _COUNTED, f"{n_dbnorm / n_nnn:.1f}×"
    yield "compute of tuning: DBNorm over NNN", _compare_cost(source, own)


def _is_own(there: Experiment) -> bool:
    return there.bank in ("own", there.dataset)


def _place_of(there: Experiment) -> tuple[str, str, str]:
    return there.model, there.dataset, there.direction


def _medians(settings: Sequence[Setting]) -> str:
    if not settings:
        return _NONE
    alphas, ks = zip(*settings, strict=True)
    return f"α {median(alphas):g}, k {median(ks):g}"


def _correlate(pairs: Sequence[tuple[float | None, float]]) -> str:
    """Return Spearman's correlation of four pairs or more: three are always nearly in order."""
    known = [(x, y) for x, y in pairs if x is not None]
    if len(known) < 4 or min(len(set(side)) for side in zip(*known, strict=True)) < 2:
        return _NONE
    first, second = (_rank(side) for side in zip(*known, strict=True))
    return f"{np.corrcoef(first, second)[0, 1]:.2f}".replace("-", "−")


def _rank(values: Sequence[float]) -> list[float]:
    """Return ranks from 0; equal values share the mean of theirs."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def _agreement(settings: Sequence[tuple[Experiment, Setting]]) -> str:
    both: dict[tuple[str, str, str | None], list[float]] = {}
    for there, (alpha, _) in settings:
        both.setdefault((there.model, there.dataset, there.bank), []).append(alpha)
    pairs = [alphas for alphas in both.values() if len(alphas) == 2]
    n_alike = sum(abs(one - other) <= _LIKE for one, other in pairs)
    return f"{n_alike} of {len(pairs)}" if pairs else _NONE


def _transfer(source: _Source, own: Sequence[tuple[Experiment, Setting]]) -> str:
    """Return the mean change in R@1 if the setting was tuned for the other direction."""
    by_place = {_place_of(there): (there, setting) for there, setting in own}
    changes = []
    for (model, dataset, direction), (there, setting) in by_place.items():
        other = by_place.get((model, dataset, "text" if direction == "image" else "image"))
        if other is not None:
            tuned, moved = (
                source.value(
                    replace(there, metric="recall_at_1", params={"reference_k": k, "alpha": alpha})
                )
                for alpha, k in (setting, other[1])
            )
            if isinstance(tuned, float) and isinstance(moved, float):
                changes.append(moved - tuned)
    return f"{sum(changes) / len(changes):+.2f} points".replace("-", "−") if changes else _NONE


def _sweeps(source: _Source) -> list[dict[int, float]]:
    """Return R@1 by k at α = 0.75, uncorrected under 0, for each model and direction."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for there, value in source.cells("k-sweep"):
        if isinstance(value, float):
            k = (there.params or {}).get("reference_k", 0)
            found.setdefault(_place_of(there), {})[k] = value
    return [sweep for sweep in found.values() if {0, 1, 8, 128} <= set(sweep)]


def _spread(sweep: dict[int, float]) -> float:
    values = [value for k, value in sweep.items() if k >= 8]
    return max(values) - min(values)


def _points(
    sweeps: Sequence[dict[int, float]], measure: Callable[[dict[int, float]], float]
) -> str:
    if not sweeps:
        return _NONE
    return f"{median(map(measure, sweeps)):+.2f} points".replace("-", "−")


def _compare_cost(source: _Source, own: Sequence[tuple[Experiment, Setting]]) -> str:
    if source.runner is None:
        return "100×"
    there = next((e for e, _ in own if e.direction == "image"), None)
    if there is None:
        return _NONE
    slow, fast = (
        source.value(replace(there, metric="tuning_seconds", method=method, share=0.2))
        for method in (_DBNORM, "nnn")
    )
    known = isinstance(slow, float) and isinstance(fast, float)
    return f"{slow / fast:.1f}×" if known else _NONE  # type: ignore[operator]
