"""Choose a method and its settings on labeled queries, with whole grids in one pass.

A `Trial` scans each bank once, multiplies queries and gallery once, and computes the R@1 of every
cell from that. "No correction" is always among the cells. The choices of two rules are reported.
The maximum is the paper's rule. The one-standard-error rule is less sensitive to noise: of all
cells within one paired standard error of the best, it chooses the most typical one, or "no
correction" if that beats every cell. For NNN, the most typical cell is the one nearest to the
automatic settings for this bank; for other methods, it is in the middle of these cells.
Cross-fitting measures what a choice is worth on other queries: each fifth of the queries gets the
setting chosen on the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank
from nnnorm.bias import Bias, Popularity
from nnnorm.dedup import Duplicates, References, drop_copies
from nnnorm.embeddings import Embeddings, FloatArray, Source
from nnnorm.errors import NNNormError, quiet, warn
from nnnorm.evaluation.metrics import (
    Evaluation,
    Truth,
    count_strip,
    evaluate,
    open_task,
    warn_of_other_items,
)
from nnnorm.evaluation.results import Interval, Record, interval_of_difference, is_near, split_folds
from nnnorm.evaluation.sweep import Correction, Setting, make_settings, sweep_hits
from nnnorm.files import Progress
from nnnorm.methods import METHODS, NNN, NO_CORRECTION, MethodName, describe_setting, find_method
from nnnorm.methods.base import Grid, open_groups
from nnnorm.methods.groups import Groups
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

Select = Literal["one-standard-error", "max"]
# Weights of the differences between groups, the default first.
_BETWEEN = (1.0, 0.75, 1.25, 0.5, 1.5, 0.25, 0.0)
# Weights of a popularity, for cosines. On Flickr8k with Zipf-distributed traffic, 0.05 was best and
# 0.12 too large. They are multiplied by the norms of queries and items.
_WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)


@dataclass(frozen=True)
class Cell(Record):
    """One setting and its recall on the tuning queries; only some cells have R@5 and R@10."""

    method: MethodName
    params: Mapping[str, Any]
    recall_at_1: float
    recall_at_5: float | None = None
    recall_at_10: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that were measured, ready for JSON."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


@dataclass(frozen=True, eq=False)
class PopularityChoice(Record):
    """The weights of a popularity that were tried, and the chosen one."""

    weight: float
    recall_at_1: float
    grid: tuple[dict[str, float], ...]


@dataclass(frozen=True, eq=False)
class Tuning(Record):
    """All cells, the chosen one, its bias, and the interval of its gain."""

    _rows = "grid"

    grid: tuple[Cell, ...]
    best: Cell
    best_by_rule: Cell
    best_by_maximum: Cell
    uncorrected: Cell
    bias: Bias = field(repr=False)
    gain: Interval
    select: Select
    n_queries: int
    n_references: int
    n_unique: int | None = None
    references_sampled: bool = False
    between: float | None = None
    popularity: PopularityChoice | None = None
    cross_fitted: Interval | None = None
    n_near: int = 0

    def __repr__(self) -> str:
        setting = describe_setting(self.best.method, self.best.params)
        best = f"{self.best.method} {setting}, R@1 {100 * self.best.recall_at_1:.1f} %"
        return f"Tuning({len(self.grid):,} settings, {self.n_queries:,} queries, best: {best})"


class Trial:
    """All settings of some methods, measured on the same queries; the first is no correction."""

    def __init__(
        self,
        methods: Sequence[MethodName],
        gallery: Embeddings,
        references: References,
        gallery_references: Embeddings | None,
        queries: Embeddings,
        truth: Truth,
        *,
        grids: Mapping[str, Grid] | None = None,
        groups: Groups | None = None,
        **options: Any,
    ) -> None:
        """Measure all settings in one pass over each input."""
        self.queries, self.gallery, self.options = queries, gallery, options
        self.clusters, self.groups = truth.clusters, groups
        if len(np.unique(self.clusters)) < 2:
            raise NNNormError("tuning needs queries that ask for at least two different items")
        named, banks = (NO_CORRECTION, *methods), (references, gallery_references)
        self.settings = make_settings(named, gallery, *banks, grids=grids, groups=groups, **options)
        self.statistics = self.settings[0].statistics
        # A gated setting shares the sweep of its ungated form.
        ungated = [replace(one.method, **one.method.variants[0].fixed) for one in self.settings]
        unique = dict(zip(ungated, self.settings, strict=True))
        corrections = [setting.correction for setting in unique.values()]
        ranks: list[Any] = []

        def count(start: int, scores: FloatArray) -> None:
            ranks.append(count_strip(scores, truth, start))

        swept = sweep_hits(queries, gallery, truth, corrections, visit=count, **options)
        hits_of = dict(zip(unique, swept, strict=True))
        self.hits = np.stack([hits_of[method] for method in ungated])  # (n_settings, n_queries)
        self.raw = Evaluation.of_strips(truth, ranks, len(gallery))
        self._evaluations = {0: self.raw}
        self._close_gates()
        self.n_cells = len(self.settings)
        self._variants: dict[int, list[int]] = {}

    def _close_gates(self) -> None:
        """Set the hits of queries for which a gate is closed.

        They depend on the parameters of the open gates only, so settings share their evaluations.
        """
        shared: dict[tuple[Any, ...], npt.NDArray[Any]] = {}
        for number, setting in enumerate(self.settings):
            sets = [self.statistics.activation_set(bank) for bank in setting.method.gated_by]
            active = [items[self.raw.top1] for items in sets]
            for pattern in product((True, False), repeat=len(active)):
                gates = zip(active, pattern, strict=True)
                rows = np.all([gate == opened for gate, opened in gates], axis=0)
                if all(pattern) or not rows.any():
                    continue
                # The first parameters are those of the gates, in the same order.
                key = (setting.method.name, *compress(vars(setting.method).items(), pattern))
                if key not in shared:
                    shared[key] = self.evaluation(number).hits(1)
                self.hits[number, rows] = shared[key][rows]

    def choose(
        self,
        select: Select,
        method: MethodName | None = None,
        among: npt.NDArray[np.bool_] | slice = slice(None),
    ) -> int:
        """Return the number of the chosen setting, of one or all methods, on some queries."""
        named = enumerate(self.settings[: self.n_cells])
        rows = [row for row, one in named if row == 0 or method in (None, one.method.name)]
        hits = self.hits[rows][:, among]
        if select == "max":
            number = rows[int(hits.mean(axis=1, dtype=np.float64).argmax())]
        else:
            tried = [self.settings[row] for row in rows]
            number = rows[choose(tried, hits, self.clusters[among])]
        return number if self.groups is None or number == 0 else self._weigh_groups(number, among)

    def _weigh_groups(self, number: int, among: npt.NDArray[np.bool_] | slice) -> int:
        """Choose the weight of the groups too; return the number of the setting with it."""
        if number not in self._variants:
            others = [replace(self.settings[number], between=weight) for weight in _BETWEEN[1:]]
            first = len(self.settings)
            self._variants[number] = [number, *range(first, first + len(others))]
            self.settings += others
            self.hits = np.concatenate([self.hits, self.sweep([one.correction for one in others])])
        rows = self._variants[number]
        return rows[_first_near_best(self.hits[rows][:, among], self.clusters[among])]

    def cell_of(self, number: int) -> int:
        """Return the number of the cell that a setting is a variant of, or its own."""
        return next((cell for cell, rows in self._variants.items() if number in rows), number)

    def sweep(self, corrections: Sequence[Correction]) -> FloatArray:
        """Return the hits@1 of the tuning queries with each of the corrections."""
        return sweep_hits(self.queries, self.gallery, self.raw.truth, corrections, **self.options)

    def evaluation(self, number: int) -> Evaluation:
        """Evaluate a setting on the tuning queries, as `evaluate` does; results are cached."""
        known = self._evaluations
        if number not in known:
            options: dict[str, Any] = {"truth": self.raw.truth, **self.options}
            bias = self.settings[number].bias()
            with quiet():  # the task has been checked
                known[number] = evaluate(self.queries, self.gallery, bias, **options)
        return known[number]

    def cross_fit(
        self, select: Select, method: MethodName | None = None, *, seed: int = 0
    ) -> Evaluation:
        """Evaluate each fold of the queries with the setting chosen on the other folds."""
        folds = split_folds(self.clusters, seed=seed)
        chosen = [self.choose(select, method, folds != fold) for fold in range(folds.max() + 1)]
        found = [self.evaluation(number) for number in chosen]
        of_pair = folds[self.raw.truth.queries], np.arange(len(self.raw.truth.items))
        return replace(
            self.raw,
            above=np.stack([one.above for one in found])[of_pair],
            tied=np.stack([one.tied for one in found])[of_pair],
            top1=np.stack([one.top1 for one in found])[folds, np.arange(len(folds))],
        )


def tune(
    gallery: Source,
    references: Source | Bank,
    *,
    queries: Source,
    truth: Any,
    methods: Sequence[MethodName] | Literal["all"] = ("nnn",),
    groups: npt.ArrayLike | None = None,
    gallery_references: Source | None = None,
    duplicates: Duplicates = "drop",
    clicks: npt.ArrayLike | None = None,
    grids: Mapping[str, Grid] | None = None,
    select: Select = "one-standard-error",
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Tuning:
    """Try all settings of one or more methods on labeled queries, and choose one.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : Bank, array or path, shape (n_references, dim)
        Past queries. They shouldn't include `queries`.
    queries : array or path, shape (n_queries, dim)
        Labeled queries, neither among the references nor among those that you report results on.
    truth : array or list
        The right items; see `open_truth`.
    methods : sequence of str, or "all"
        "all" skips methods that need `gallery_references` if there are none.
    groups : array, shape (n_gallery,), optional
        One label per item of a mixed gallery; see `Method.fit`. ``between`` is chosen too.
    gallery_references : array or path, shape (n_gallery_references, dim), optional
        Gallery-side references, for methods that use them.
    duplicates : {"drop", "keep"}
        Whether near-duplicates count once; see `Method.fit`.
    clicks : array, shape (n_gallery,), optional
        How often each item was right in the past, without these queries. `tune` also chooses the
        weight of a `Popularity`, which is added to the bias.
    grids : dict, optional
        Maps method names to ``{parameter: values}`` (or a list of them), instead of the default
        grids.
    select : {"one-standard-error", "max"}
        The rule that chooses `best`. The result has the choices of both rules.
    seed : int
        Random seed of the bootstrap.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Tuning

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gallery, references, queries = (rng.normal(size=(n, 8)) for n in (50, 80, 60))
    >>> tuning = tune(gallery, references, queries=queries, truth=np.arange(60) % 50)
    >>> len(tuning.grid), tuning.best.method in ("nnn", "none")
    (100, True)
    """
    names = check_choice(methods, select, gallery_references is not None)
    given = gallery, queries, references, gallery_references, truth
    items, asked, bank, second, right = open_task(*given, normalize)
    if clicks is not None:
        names = _check_clicks(clicks, len(items), names, is_all=methods == "all")
    used = drop_copies(bank, duplicates, progress)
    labeled = open_groups(groups, len(items))
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    trial = Trial(names, items, used, second, asked, right, grids=grids, groups=labeled, **options)
    warn_of_other_items(bank, items, trial.raw, **options)
    by_rule, by_maximum = trial.choose("one-standard-error"), trial.choose("max")
    chosen = by_rule if select == "one-standard-error" else by_maximum
    crossed = trial.cross_fit(select, seed=seed) if clicks is None else None
    best, others = trial.hits[by_maximum], trial.hits[1 : trial.n_cells]
    n_near = sum(is_near(best, hits, trial.clusters) for hits in others)
    bias, measured = trial.settings[chosen].bias(), trial.evaluation(chosen)
    numbers, cells = list(range(trial.n_cells)), []
    numbers[trial.cell_of(chosen)] = chosen
    for number in numbers:
        setting = trial.settings[number]
        recalls = [trial.evaluation(number).recall(k) for k in (5, 10) if number in (0, chosen)]
        recall_at_1 = float(trial.hits[number].mean(dtype=np.float64))
        cells.append(Cell(setting.method.name, setting.params, recall_at_1, *recalls))
    gain, popularity = measured.gain_over(trial.raw, seed=seed), None
    if clicks is not None:
        popularity, bias, after = _choose_popularity(trial, bias, clicks)
        gain = interval_of_difference(after, trial.raw.hits(1), trial.clusters, seed=seed)
    return Tuning(
        grid=tuple(cells),
        best=cells[trial.cell_of(chosen)],
        best_by_rule=cells[trial.cell_of(by_rule)],
        best_by_maximum=cells[trial.cell_of(by_maximum)],
        uncorrected=cells[0],
        bias=bias,
        gain=gain,
        cross_fitted=None if crossed is None else crossed.gain_over(trial.raw, seed=seed),
        n_near=n_near,
        select=select,
        n_queries=len(asked),
        n_references=used.n_given,
        **used.params,
        between=None if labeled is None else trial.settings[chosen].between,
        popularity=popularity,
    )


def check_choice(
    methods: Sequence[MethodName] | Literal["all"], select: str, has_gallery_bank: bool
) -> list[MethodName]:
    """Return the methods to tune; "all" skips those that need a bank that isn't given."""
    if select not in ("one-standard-error", "max"):
        raise NNNormError(f"select must be 'one-standard-error' or 'max'; got {select!r}")
    if methods == "all":
        kinds = [kind for kind in METHODS if has_gallery_bank or kind.gallery_bank != "needed"]
        methods = [variant.name for kind in kinds for variant in kind.variants]
    if isinstance(methods, str) or not methods:
        raise NNNormError(f"methods must be 'all' or a list of names; got {methods!r}")
    return [name for name in dict.fromkeys(methods) if name != NO_CORRECTION]


# --- choosing ------------------------------------------------------------------------------------


def choose(settings: Sequence[Setting], hits: FloatArray, clusters: npt.NDArray[Any]) -> int:
    """Apply the one-standard-error rule to each method, and return the best choice."""
    means, choices = hits.mean(axis=1, dtype=np.float64), []
    for name in dict.fromkeys(setting.method.name for setting in settings[1:]):
        rows = [row for row, setting in enumerate(settings) if row and setting.method.name == name]
        best = max(rows, key=lambda row: (means[row], -row))
        if means[best] <= means[0]:  # no correction wins ties
            choices.append(0)
        else:
            near = [row for row in rows if is_near(hits[best], hits[row], clusters)]
            far = dict(zip(near, _distances(settings, near, rows).tolist(), strict=True))
            choices.append(min(near, key=lambda row: (far[row], -means[row], row)))
    return max(choices, key=lambda row: (means[row], -row), default=0)


def _distances(
    settings: Sequence[Setting], near: Sequence[int], rows: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the grid steps from each near cell to the automatic setting, or to the middle."""
    first = settings[near[0]]
    if isinstance(first.method, NNN):
        usual = NNN().resolve(first.statistics)[0]
        ks = np.array([settings[row].params["reference_k"] for row in near])
        weights = np.array([settings[row].method.weight for row in near])
        far = np.abs(np.log2(ks / usual.reference_k)) + np.abs(weights - usual.weight) / 0.125
        return np.asarray(far)
    tried = [settings[row].params for row in rows]
    values = {name: sorted({params[name] for params in tried}) for name in tried[0]}
    spots = np.array([[values[n].index(v) for n, v in settings[r].params.items()] for r in near])
    return np.asarray(np.abs(spots - spots.mean(axis=0)).sum(axis=1))


def _first_near_best(hits: FloatArray, clusters: npt.NDArray[Any]) -> int:
    """Return the first row of hits within one paired standard error of the best."""
    best = hits[int(hits.mean(axis=1, dtype=np.float64).argmax())]
    return next(number for number, row in enumerate(hits) if is_near(best, row, clusters))


# --- popularity ----------------------------------------------------------------------------------


def _check_clicks(
    clicks: npt.ArrayLike, n_gallery: int, methods: Sequence[MethodName], *, is_all: bool
) -> list[MethodName]:
    """Return the methods that a popularity can be added to."""
    if (n_clicks := len(Popularity(clicks))) != n_gallery:
        raise NNNormError(f"clicks must have {n_gallery} numbers, one per item; got {n_clicks}")
    # A name of a method fixes or presets only gates.
    variants = [find_method(name)[1] for name in methods]
    gated = [one.name for one in variants if any({**one.fixed, **one.preset}.values())]
    if gated and not is_all:
        raise NNNormError(
            f"{gated[0]} decides per query, so it takes no clicks; leave out one of them"
        )
    return [name for name in methods if name not in gated]


def _choose_popularity(
    trial: Trial, bias: Bias, clicks: npt.ArrayLike
) -> tuple[PopularityChoice, Bias, FloatArray]:
    """Choose the smallest weight within one paired standard error of the best, by R@1."""
    scale = float(np.mean(trial.gallery.norm_range) * np.mean(trial.queries.norm_range))
    weights = [float(f"{weight * scale:.3g}") for weight in _WEIGHTS]
    biases = [bias, *(bias + Popularity(clicks, weight=weight) for weight in weights[1:])]
    hits = trial.sweep([partial(np.asarray, one.correction) for one in biases])
    chosen = _first_near_best(hits, trial.clusters)
    pairs = zip(weights, hits.mean(axis=1, dtype=np.float64).tolist(), strict=True)
    grid = tuple({"weight": weight, "recall_at_1": recall} for weight, recall in pairs)
    if chosen == len(weights) - 1:
        warn(
            f"the best popularity weight is the largest one tried, {weights[-1]:g}; to "
            "try larger ones, use bias + Popularity(clicks, weight=…)"
        )
    return PopularityChoice(**grid[chosen], grid=grid), biases[chosen], hits[chosen]
