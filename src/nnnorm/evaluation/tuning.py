"""Choosing a method and its parameters: whole grids in one pass, on held-out queries.

`try_settings` scans each bank once, multiplies queries and gallery once, and reads the R@1 of every
cell from that. "No correction" is always among the cells. Two ways to choose are always reported:
the maximum (the paper's way), and the one-standard-error rule, which does not chase noise: of all
cells within one paired standard error of the best it takes the most usual one (for NNN the nearest
to what its automatic rule chooses for this very bank; for other methods the one in the middle of
those cells), and "no correction" if that beats every cell. What a choice is worth on queries that
it was not made on is measured by cross-fitting: each fifth of the queries gets the setting that the
others choose.
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
from nnnorm.embeddings import Embeddings, FloatArray, Source, check_same_dim, open_embeddings
from nnnorm.errors import NNNormError, warn
from nnnorm.evaluation.metrics import Evaluation, check_bank, count_strip, evaluate, open_truth
from nnnorm.evaluation.results import Interval, Record, interval_of_difference, is_near, split_folds
from nnnorm.evaluation.sweep import Setting, make_settings, sweep_hits
from nnnorm.files import Progress
from nnnorm.methods import (
    METHOD_NAMES,
    NNN,
    NO_CORRECTION,
    Grid,
    MethodName,
    Statistics,
    describe_setting,
    find_method,
    make_method,
    open_groups,
    open_references,
)
from nnnorm.methods.groups import Groups
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

Select = Literal["one-standard-error", "max"]
# Weights of the differences between groups, the usual one first.
_BETWEEN = (1.0, 0.75, 1.25, 0.5, 1.5, 0.25, 0.0)
# Weights of a popularity for cosines: on Flickr8k 0.05 was the best of these under Zipf's traffic,
# and 0.12 too much. They are multiplied by the product of the norms of queries and items.
_WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)


@dataclass(frozen=True)
class Cell(Record):
    """One setting and its recall on the tuning queries; R@5 and R@10 of the best cells only."""

    method: MethodName
    params: Mapping[str, Any]
    recall_at_1: float
    recall_at_5: float | None = None
    recall_at_10: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without what was not measured."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


@dataclass(frozen=True, eq=False)
class PopularityChoice(Record):
    """The weights of a popularity that were tried, and the bias and hits of the chosen one."""

    bias: Bias = field(repr=False)
    hits: FloatArray = field(repr=False)
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
        best = f"{self.best.method} {setting}".strip()
        return (
            f"Tuning({len(self.grid):,} settings, {self.n_queries:,} queries, best: {best}, "
            f"R@1 {100 * self.best.recall_at_1:.1f} %)"
        )


@dataclass(frozen=True, eq=False)
class Trial:
    """Every setting of some methods, tried on the same queries; the first is no correction."""

    settings: list[Setting]
    hits: FloatArray  # (n_settings, n_queries)
    raw: Evaluation
    queries: Embeddings
    gallery: Embeddings
    memory_budget: int
    _evaluations: dict[int, Evaluation] = field(default_factory=dict, repr=False)

    @property
    def clusters(self) -> npt.NDArray[np.int64]:
        """A number per query, shared by those that have the same right item."""
        return self.raw.truth.clusters

    @property
    def statistics(self) -> Statistics:
        """The statistics of the gallery that all settings share."""
        return self.settings[0].statistics

    def choose(
        self,
        select: Select,
        method: MethodName | None = None,
        among: npt.NDArray[np.bool_] | slice = slice(None),
    ) -> int:
        """The number of the chosen setting, of all methods or of one, on some of the queries."""
        rows = [
            number
            for number, setting in enumerate(self.settings)
            if number == 0 or method is None or setting.name == method
        ]
        hits = self.hits[rows][:, among]
        if select == "max":
            return rows[int(hits.mean(axis=1, dtype=np.float64).argmax())]
        return rows[choose([self.settings[row] for row in rows], hits, self.clusters[among])]

    def bias(self, number: int) -> Bias:
        """The bias of a setting."""
        return self.settings[number].method.make_bias(self.statistics)

    def evaluation(self, number: int) -> Evaluation:
        """A setting on the queries it was tried on, measured as `evaluate` does, once."""
        if number == 0:
            return self.raw
        if number not in self._evaluations:
            self._evaluations[number] = evaluate(
                self.queries,
                self.gallery,
                self.bias(number),
                truth=self.raw.truth,
                memory_budget=self.memory_budget,
            )
        return self._evaluations[number]

    def cross_fit(
        self, select: Select, method: MethodName | None = None, *, seed: int = 0
    ) -> Evaluation:
        """Each fold of the queries with the setting that the other folds choose."""
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
    """Try every setting of some methods on queries with known answers, and choose one.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : Bank, array or path, shape (n_references, dim)
        The bank, which should not include the queries.
    queries : array or path, shape (n_queries, dim)
        Held out: neither references nor the queries that will be reported on.
    truth : array or list
        The right items, see `open_truth`.
    methods : sequence of str, or "all"
        "all" leaves out the methods that need a gallery bank if there is none.
    groups : array, shape (n_gallery,), optional
        A label per item of a mixed gallery, see `Method.fit`: ``between`` is chosen too.
    gallery_references : array or path, shape (n_gallery_references, dim), optional
        A bank of gallery-side items, for the methods that use one.
    duplicates : {"drop", "keep"}
        Whether copies in the bank count once, see `Method.fit`.
    clicks : array, shape (n_gallery,), optional
        How often each item was the right one in the past, apart from these queries: the weight of a
        `Popularity` is chosen, which is added to the bias.
    grids : dict, optional
        Method name to ``{parameter: values}`` (or a list of such), instead of the default grid.
    select : {"one-standard-error", "max"}
        The rule that chooses `best`; the choices of both rules are reported.
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
    check_select(select)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    bank = open_references(references, normalize=normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    gallery_bank = None
    if gallery_references is not None:
        gallery_bank = open_embeddings(
            gallery_references, name="gallery_references", normalize=normalize
        )
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    names = check_methods(methods, gallery_bank is not None)
    if clicks is not None:
        names = _check_clicks(clicks, len(items), names, is_all=methods == "all")
    right = open_truth(truth, n_queries=len(asked), n_gallery=len(items))
    check_bank(bank, asked, items, right)
    used = drop_copies(bank, duplicates, progress)
    labeled = open_groups(groups, len(items))
    trial = try_settings(
        names, items, used, gallery_bank, asked, right, grids=grids, groups=labeled, **options
    )
    by_rule, by_maximum = trial.choose("one-standard-error"), trial.choose("max")
    chosen = by_rule if select == "one-standard-error" else by_maximum
    cross_fitted = None
    if clicks is None:
        cross_fitted = trial.cross_fit(select, seed=seed).gain_over(trial.raw, seed=seed)
    n_near = sum(is_near(trial.hits[by_maximum], hits, trial.clusters) for hits in trial.hits[1:])
    if labeled is not None and chosen and _choose_between(trial, chosen, labeled) != 1:
        cross_fitted = None  # the weight was chosen on all queries
    bias, measured = trial.bias(chosen), trial.evaluation(chosen)
    cells = _list_cells(trial, {0: trial.raw, chosen: measured})
    gain, popularity = measured.gain_over(trial.raw, seed=seed), None
    if clicks is not None:
        popularity = _choose_popularity(trial, bias, clicks, **options)
        raw = trial.raw.hits(1)
        gain = interval_of_difference(popularity.hits, raw, trial.clusters, seed=seed)
        bias = popularity.bias
    return Tuning(
        grid=tuple(cells),
        best=cells[chosen],
        best_by_rule=cells[by_rule],
        best_by_maximum=cells[by_maximum],
        uncorrected=cells[0],
        bias=bias,
        gain=gain,
        cross_fitted=cross_fitted,
        n_near=n_near,
        select=select,
        n_queries=len(asked),
        n_references=used.n_given,
        **used.params,
        between=None if labeled is None else labeled.between,
        popularity=popularity,
    )


def try_settings(
    methods: Sequence[MethodName],
    gallery: Embeddings,
    references: References,
    gallery_references: Embeddings | None,
    queries: Embeddings,
    truth: Any,
    *,
    grids: Mapping[str, Grid] | None = None,
    groups: Groups | None = None,
    **options: Any,
) -> Trial:
    """Try no correction and every setting of some methods, from one pass over each input."""
    check_same_dim(queries, gallery)
    if gallery_references is not None:
        check_same_dim(gallery_references, gallery)
    right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
    if len(np.unique(right.clusters)) < 2:
        raise NNNormError(
            "tuning needs at least two queries from different groups; got "
            f"{len(right)} in one group"
        )
    settings = make_settings(
        (NO_CORRECTION, *methods),
        gallery,
        references,
        gallery_references=gallery_references,
        grids=grids,
        groups=groups,
        **options,
    )
    # A gated setting shares the sweep of its ungated form.
    ungated = [replace(one.method, **one.method.variants[0].fixed) for one in settings]
    unique = dict(zip(ungated, settings, strict=True))
    corrections = [setting.correction for setting in unique.values()]
    ranks: list[Any] = []

    def look(start: int, scores: FloatArray) -> None:
        ranks.append(count_strip(scores, right, start))

    swept = sweep_hits(queries, gallery, right, corrections, look=look, **options)
    hits_of = dict(zip(unique, swept, strict=True))
    hits = np.stack([hits_of[method] for method in ungated])
    budget = options.get("memory_budget", DEFAULT_MEMORY_BUDGET)
    raw = Evaluation.of_strips(right, ranks, len(gallery))
    trial = Trial(settings, hits, raw, queries, gallery, budget)
    _close_gates(trial)
    return trial


def _close_gates(trial: Trial) -> None:
    """Set the hits of queries for which a gate is closed.

    They depend on the parameters of the open gates only, so settings share their evaluations.
    """
    shared: dict[tuple[Any, ...], npt.NDArray[Any]] = {}
    for number, setting in enumerate(trial.settings):
        method = setting.method
        active = [trial.statistics.activation_set(bank)[trial.raw.top1] for bank in method.gated_by]
        for pattern in product((True, False), repeat=len(active)):
            rows = np.all(
                [gate == opened for gate, opened in zip(active, pattern, strict=True)], axis=0
            )
            if all(pattern) or not rows.any():
                continue
            # The first parameters are those of the gates, in the same order.
            key = (setting.name, *compress(vars(method).items(), pattern))
            if key not in shared:
                shared[key] = trial.evaluation(number).hits(1)
            trial.hits[number, rows] = shared[key][rows]


def check_select(select: str) -> None:
    """Raise unless there is such a rule."""
    if select not in ("one-standard-error", "max"):
        raise NNNormError(f"select must be 'one-standard-error' or 'max'; got {select!r}")


def check_methods(
    methods: Sequence[MethodName] | Literal["all"], has_gallery_bank: bool
) -> list[MethodName]:
    """The methods to tune, besides no correction; "all" is what the given banks suffice for."""
    if methods == "all":
        methods = [
            name
            for name in METHOD_NAMES
            if has_gallery_bank or find_method(name)[0].gallery_bank != "needed"
        ]
    if isinstance(methods, str) or not methods:
        raise NNNormError(f"methods must be 'all' or a list of names; got {methods!r}")
    return [name for name in dict.fromkeys(methods) if name != NO_CORRECTION]


# --- choosing ------------------------------------------------------------------------------------


def choose(settings: Sequence[Setting], hits: FloatArray, clusters: npt.NDArray[Any]) -> int:
    """Apply the one-standard-error rule to each method; return the best of these choices."""
    means, choices = hits.mean(axis=1, dtype=np.float64), []
    for name in dict.fromkeys(setting.name for setting in settings[1:]):
        rows = [row for row, setting in enumerate(settings) if row and setting.name == name]
        # On a tie with no correction the cells stand in for the best: few queries tie easily.
        best = max(rows, key=lambda row: (means[row], -row))
        if means[best] < means[0]:
            choices.append(0)
        else:
            near = [row for row in rows if is_near(hits[best], hits[row], clusters)]
            far = dict(zip(near, _distances(settings, near, rows), strict=True))
            choices.append(min(near, key=lambda row: (far[row], -means[row], row)))
    return max(choices, key=lambda row: (means[row], -row), default=0)


def _distances(
    settings: Sequence[Setting], near: Sequence[int], rows: Sequence[int]
) -> list[float]:
    """Steps of the grid between each near cell and the usual setting: automatic, or the middle."""
    first = settings[near[0]]
    if isinstance(first.method, NNN):
        usual = NNN().resolve(first.statistics)[0]
        ks = np.array([settings[row].params["reference_k"] for row in near])
        weights = np.array([settings[row].method.weight for row in near])
        steps = np.abs(np.log2(ks / usual.reference_k)) + np.abs(weights - usual.weight) / 0.125
        return [float(far) for far in steps]
    tried = [settings[row].params for row in rows]
    places = {
        name: {v: place for place, v in enumerate(sorted({params[name] for params in tried}))}
        for name in tried[0]
    }
    spots = np.array([[places[n][v] for n, v in settings[r].params.items()] for r in near])
    return [float(far) for far in np.abs(spots - spots.mean(axis=0)).sum(axis=1)]


def _list_cells(trial: Trial, evaluations: Mapping[int, Evaluation]) -> list[Cell]:
    """R@1 of every setting, and further recalls of those that were evaluated."""
    cells = []
    for number, (setting, hits) in enumerate(zip(trial.settings, trial.hits, strict=True)):
        recalls = [evaluations[number].recall(k) for k in (5, 10) if number in evaluations]
        at_1 = float(hits.mean(dtype=np.float64))
        cells.append(Cell(setting.name, setting.params, at_1, *recalls))
    return cells


def _choose_between(trial: Trial, number: int, groups: Groups) -> float:
    """Choose the weight nearest to 1 within one paired standard error of the best, by R@1."""
    corrections = []
    for between in _BETWEEN:
        groups.between = between
        corrections.append(partial(np.asarray, trial.settings[number].correction()))
    budget = trial.memory_budget
    hits = sweep_hits(
        trial.queries, trial.gallery, trial.raw.truth, corrections, memory_budget=budget
    )
    best = hits[int(hits.mean(axis=1, dtype=np.float64).argmax())]
    chosen = next(row for row in range(len(hits)) if is_near(best, hits[row], trial.clusters))
    groups.between, trial.hits[number] = _BETWEEN[chosen], hits[chosen]
    trial._evaluations.pop(number, None)
    return groups.between


# --- popularity ----------------------------------------------------------------------------------


def _check_clicks(
    clicks: npt.ArrayLike, n_gallery: int, methods: Sequence[MethodName], *, is_all: bool
) -> list[MethodName]:
    """The methods that a popularity can be added to."""
    if len(Popularity(clicks)) != n_gallery:
        raise NNNormError(
            f"clicks must have one number per item of the gallery, {n_gallery}; got "
            f"{len(Popularity(clicks))}"
        )
    gated = [name for name in methods if make_method(name).gated_by]
    if gated and not is_all:
        raise NNNormError(
            f"method {gated[0]} decides per query, so no popularity can be added to it; leave "
            "out clicks, or choose other methods"
        )
    return [name for name in methods if name not in gated]


def _choose_popularity(
    trial: Trial, bias: Bias, clicks: npt.ArrayLike, **options: Any
) -> PopularityChoice:
    """Choose the smallest weight within one paired standard error of the best, by R@1."""
    scale = float(np.mean(trial.gallery.norm_range) * np.mean(trial.queries.norm_range))
    weights = [float(f"{weight * scale:.3g}") for weight in _WEIGHTS]
    biases = [bias, *(bias + Popularity(clicks, weight=weight) for weight in weights[1:])]
    corrections = [partial(np.asarray, one.correction) for one in biases]
    hits = sweep_hits(trial.queries, trial.gallery, trial.raw.truth, corrections, **options)
    means = hits.mean(axis=1, dtype=np.float64)
    best = hits[int(means.argmax())]
    chosen = next(row for row in range(len(hits)) if is_near(best, hits[row], trial.clusters))
    pairs = zip(weights, means.tolist(), strict=True)
    grid = tuple({"weight": weight, "recall_at_1": recall} for weight, recall in pairs)
    if chosen == len(weights) - 1:
        warn(
            f"the largest weight of a popularity that was tried is the best one, {weights[-1]:g}; "
            "larger ones may be better still: bias + Popularity(clicks, weight=…)"
        )
    return PopularityChoice(biases[chosen], hits[chosen], **grid[chosen], grid=grid)
