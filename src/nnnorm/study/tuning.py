"""Which method and which numbers? Whole grids in one pass, on held-out queries.

`tune` scans each bank once, multiplies queries and gallery once, and reads every cell's R@1 from
that. "No correction" is always among the cells. Two ways to choose are always reported: the maximum
(the paper's way), and the one-standard-error rule, which does not chase noise: of all cells within
one paired standard error of the best it takes the most sensible (for NNN the nearest to α = 0.6 and
k = a sixteenth of the bank; elsewhere the one in the middle of those cells), and "no correction"
where that beats every cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError
from nnnorm.io import Progress, Source, check_same_dim, open_embeddings
from nnnorm.methods import METHOD_NAMES, MethodName, Sinkhorn, choose_reference_k, make_method
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.study.evaluation import Evaluation, count_above, evaluate
from nnnorm.study.gated import GateWatch
from nnnorm.study.grid import Bank, Grid, Setting, find_active, make_settings
from nnnorm.study.intervals import Interval, interval_of_difference
from nnnorm.study.sweep import sweep_hits
from nnnorm.study.truth import Truth, clusters_of, open_truth

__all__ = ["Cell", "Select", "Tuning", "check_methods", "choose", "tune"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Select = Literal["one-standard-error", "max"]
_UNGATED = {"qbnorm": "is", "dualdis": "dualis"}
_TWO_BANKS = ("dualis", "dualdis", "sinkhorn")


@dataclass(frozen=True)
class Cell:
    """One setting and how it did on the tuning queries.

    Attributes
    ----------
    method : str
    params : dict
    recall_at_1 : float
    recall_at_5, recall_at_10 : float or None
        For the best cells and for no correction.
    """

    method: MethodName
    params: Mapping[str, Any]
    recall_at_1: float
    recall_at_5: float | None = None
    recall_at_10: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without what was not measured.

        Examples
        --------
        >>> Cell("csls", {"reference_k": 10}, 0.5).to_dict()
        {'method': 'csls', 'params': {'reference_k': 10}, 'recall_at_1': 0.5}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, eq=False)
class Tuning:
    """All cells, the chosen one, and how sure we are of it.

    Attributes
    ----------
    grid : tuple of Cell
        Every setting; "none" comes first.
    best : Cell
        What `select` chose.
    best_by_rule, best_by_maximum : Cell
        Both ways of choosing.
    uncorrected : Cell
    bias : Bias
        Of `best`, for the gallery that was tuned on.
    gain : Interval
        Paired difference in R@1 between `best` and no correction, on the tuning queries.
    select : str
    n_queries, n_references : int
    """

    grid: tuple[Cell, ...]
    best: Cell
    best_by_rule: Cell
    best_by_maximum: Cell
    uncorrected: Cell
    bias: Bias
    gain: Interval
    select: Select
    n_queries: int
    n_references: int

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> tune(np.eye(4), np.eye(4), np.eye(4), [0, 1, 2, 3]).to_dict()["n_queries"]
        4
        """
        return {
            "best": self.best.to_dict(),
            "best_by_rule": self.best_by_rule.to_dict(),
            "best_by_maximum": self.best_by_maximum.to_dict(),
            "uncorrected": self.uncorrected.to_dict(),
            "gain": asdict(self.gain),
            "select": self.select,
            "n_queries": self.n_queries,
            "n_references": self.n_references,
            "grid": [cell.to_dict() for cell in self.grid],
        }


def tune(
    gallery: Source,
    references: Source,
    queries: Source,
    truth: Any,
    methods: Sequence[MethodName] | Literal["all"] = ("nnn",),
    *,
    gallery_references: Source | None = None,
    grids: Mapping[str, Grid] | None = None,
    select: Select = "one-standard-error",
    clusters: npt.ArrayLike | None = None,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Tuning:
    """Try every setting of some methods on queries with known answers, and choose one.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim)
        The bank; the queries should not be in it.
    queries : array or path, shape (n_queries, dim)
        Held out: neither references nor the queries that will be reported on.
    truth : array or list
        See `truth.open_truth`.
    methods : sequence of str, or "all"
        "all" leaves out dualis and dualdis where there is no gallery bank.
    gallery_references : array or path, shape (n_gallery_references, dim), optional
    grids : dict, optional
        Method name to ``{parameter: values}`` (or a list of such), instead of the paper's.
    select : {"one-standard-error", "max"}
        What `best` is chosen by; both choices are reported.
    clusters : int array, shape (n_queries,), optional
        Queries that belong together; by default those that share their right item.
    seed : int
        Of the bootstrap.
    memory_budget : int
    progress : callable, optional

    Returns
    -------
    Tuning

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gallery, references, queries = (rng.normal(size=(n, 8)) for n in (50, 80, 60))
    >>> tuning = tune(gallery, references, queries, np.arange(60) % 50)
    >>> len(tuning.grid), tuning.best.method in ("nnn", "none")
    (78, True)
    """
    if select not in ("one-standard-error", "max"):
        raise NNNormError(f"select must be 'one-standard-error' or 'max'; got {select!r}")
    items = open_embeddings(gallery, name="gallery")
    bank_rows = open_embeddings(references, name="references")
    asked = open_embeddings(queries, name="queries")
    gallery_bank = (
        None
        if gallery_references is None
        else open_embeddings(gallery_references, name="gallery_references")
    )
    check_same_dim(asked, items)
    right = open_truth(truth, n_queries=len(asked), n_gallery=len(items))
    groups = _open_clusters(clusters, right)
    names = check_methods(methods, gallery_bank is not None)
    settings, bank = make_settings(
        ("none", *names),
        items,
        bank_rows,
        gallery_references=gallery_bank,
        grids=grids,
        memory_budget=memory_budget,
        progress=progress,
    )
    hits, raw = _sweep(settings, bank, asked, right, memory_budget, progress)
    recalls = hits.mean(axis=1, dtype=np.float64)
    by_maximum = int(recalls.argmax())
    by_rule = choose(settings, hits, groups, len(bank_rows))
    chosen = by_rule if select == "one-standard-error" else by_maximum
    bias = _bias_of(settings[chosen], bank, memory_budget)
    cells = [
        Cell(setting.method, setting.params, float(recall))
        for setting, recall in zip(settings, recalls, strict=True)
    ]
    measured = evaluate(asked, items, right, bias, memory_budget=memory_budget)
    for number, evaluation in ((0, raw), (chosen, measured)):
        cells[number] = _with_recalls(cells[number], evaluation)
    return Tuning(
        grid=tuple(cells),
        best=cells[chosen],
        best_by_rule=cells[by_rule],
        best_by_maximum=cells[by_maximum],
        uncorrected=cells[0],
        bias=bias,
        gain=interval_of_difference(hits[chosen], hits[0], groups, seed=seed),
        select=select,
        n_queries=len(asked),
        n_references=len(bank_rows),
    )


def check_methods(
    methods: Sequence[MethodName] | Literal["all"], has_gallery_bank: bool
) -> list[MethodName]:
    """The methods to tune, without "none"; "all" is what can be tuned with the banks there are.

    Examples
    --------
    >>> check_methods("all", False)
    ['nnn', 'csls', 'dn', 'is', 'qbnorm', 'sinkhorn']
    """
    if methods == "all":
        skipped = () if has_gallery_bank else ("dualis", "dualdis")
        return [name for name in METHOD_NAMES if name not in ("none", *skipped)]
    if isinstance(methods, str):
        raise NNNormError(f"methods must be 'all' or a list of names; got {methods!r}")
    if not methods:
        raise NNNormError("methods is empty; name at least one, or 'all'")
    return [name for name in dict.fromkeys(methods) if name != "none"]


def _open_clusters(clusters: npt.ArrayLike | None, truth: Truth) -> npt.NDArray[Any]:
    groups = clusters_of(truth) if clusters is None else np.asarray(clusters)
    if groups.shape != (len(truth),):
        raise NNNormError(
            f"clusters must have one number per query; got {groups.shape} for {len(truth)}"
        )
    if (groups == groups[0]).all():
        raise NNNormError(
            "tuning needs at least two queries that do not belong together; got "
            f"{len(truth)} in one group"
        )
    return groups


def _sweep(
    settings: Sequence[Setting],
    bank: Bank,
    queries: Any,
    truth: Truth,
    memory_budget: int,
    progress: Progress | None,
) -> tuple[FloatArray, Evaluation]:
    """Hits of every setting ``(n_settings, n_queries)``, and where raw search put right items."""
    gated = [setting for setting in settings if setting.method in _UNGATED]
    watch = None
    if gated:
        banks = [bank.references]
        if bank.gallery_references and any(setting.method == "dualdis" for setting in gated):
            banks.append(bank.gallery_references)
        actives = (find_active(rows, bank.gallery, memory_budget) for rows in banks)
        watch = GateWatch(gated, bank, truth, *actives)
    above, tied = np.empty((2, len(truth.items)), dtype=np.int64)
    top1 = np.empty(len(truth), dtype=np.int64)

    def look(start: int, scores: FloatArray) -> None:
        stop = start + len(scores)
        pairs = slice(truth.starts[start], truth.starts[stop])
        above[pairs], tied[pairs] = count_above(scores, truth, start)
        top1[start:stop] = scores.argmax(axis=1)
        if watch is not None:
            watch.look(start, scores)

    # A gated setting shares the sweep of its ungated form.
    keys = [_ungated_key(setting) for setting in settings]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    unique = dict(zip(keys, settings, strict=True))
    swept = sweep_hits(
        queries,
        bank.gallery,
        truth,
        [unique[key].correction for key in places],
        memory_budget=memory_budget,
        progress=progress,
        look=look,
    )
    raw = swept[places[keys[0]]]
    hits = np.empty((len(settings), len(truth)), dtype=np.float32)
    for row, key, setting in zip(hits, keys, settings, strict=True):
        ungated = swept[places[key]]
        row[:] = watch.hits(setting, ungated, raw) if setting in gated and watch else ungated
    n_gallery = len(bank.gallery)
    return hits, Evaluation(truth, above, tied, top1, n_gallery, n_gallery)


def _ungated_key(setting: Setting) -> tuple[Any, ...]:
    return _UNGATED.get(setting.method, setting.method), *sorted(setting.params.items())


def choose(
    settings: Sequence[Setting], hits: FloatArray, clusters: npt.NDArray[Any], n_references: int
) -> int:
    """The one-standard-error rule, method by method; then the best of the methods' choices.

    Where no correction did better than every cell of a method, it is that method's choice.

    Parameters
    ----------
    settings : sequence of Setting
        The first is no correction.
    hits : ndarray, shape (n_settings, n_queries)
        As `sweep_hits` gives them.
    clusters : ndarray, shape (n_queries,)
    n_references : int

    Returns
    -------
    int
        The number of the chosen setting.

    Examples
    --------
    >>> import numpy as np
    >>> none = Setting("none", {}, 0.0, np.empty)
    >>> csls = Setting("csls", {"reference_k": 10}, 0.5, np.empty)
    >>> choose([none, csls], np.float32([[1, 0, 0], [1, 1, 0]]), np.arange(3), 100)
    1
    """
    choices = []
    for method in dict.fromkeys(setting.method for setting in settings):
        if method == "none" and len(settings) > 1:
            continue
        rows = [0, *(n for n, s in enumerate(settings) if s.method == method and n > 0)]
        choices.append(_choose_within(settings, hits, clusters, rows, n_references))
    return max(choices, key=lambda row: (hits[row].mean(dtype=np.float64), -row))


def _choose_within(
    settings: Sequence[Setting],
    hits: FloatArray,
    clusters: npt.NDArray[Any],
    rows: Sequence[int],
    n_references: int,
) -> int:
    # On a tie with no correction the cells stand in for the best: few queries tie easily.
    best = max(rows, key=lambda row: (hits[row].mean(dtype=np.float64), row > 0, -row))
    if best == 0:
        return 0
    near = [row for row in rows if _is_near(hits[best], hits[row], clusters)]
    corrected = [row for row in near if settings[row].method != "none"]
    if settings[corrected[0]].method == "nnn":
        k0 = choose_reference_k(n_references)

        def distance(row: int) -> float:
            params = settings[row].params
            steps = abs(np.log2(params["reference_k"] / k0))
            return float(steps + abs(params["alpha"] - 0.6) / 0.125)
    else:
        places = _places([settings[row].params for row in rows if settings[row].params])
        spots = np.array([[places[n][v] for n, v in settings[r].params.items()] for r in corrected])
        middle = spots.mean(axis=0)
        far = dict(zip(corrected, np.abs(spots - middle).sum(axis=1), strict=True))

        def distance(row: int) -> float:
            return float(far[row])

    return min(corrected, key=lambda row: (distance(row), -hits[row].mean(dtype=np.float64), row))


def _places(params: Sequence[Mapping[str, Any]]) -> dict[str, dict[Any, int]]:
    """For each parameter, the place of each of its values in order."""
    return {
        name: {v: place for place, v in enumerate(sorted({p[name] for p in params}))}
        for name in params[0]
    }


def _is_near(best: FloatArray, other: FloatArray, clusters: npt.NDArray[Any]) -> bool:
    """Whether `other` is within one clustered, paired standard error of `best`."""
    difference = (best - other).astype(np.float64)
    mean = difference.mean()
    _, members = np.unique(clusters, return_inverse=True)
    deviations = np.bincount(members, weights=difference - mean)
    n_clusters = len(deviations)
    error = np.sqrt((deviations**2).sum() * n_clusters / max(1, n_clusters - 1)) / len(best)
    # Where one cluster alone differs, both are equal: rounding may not decide that.
    return bool(mean <= error * (1 + 1e-6))


def _bias_of(setting: Setting, bank: Bank, memory_budget: int) -> Bias:
    """What fitting the setting would give, without another pass where the values are there."""
    method = make_method(setting.method, **setting.params)
    gallery_bank = bank.gallery_references if setting.method in _TWO_BANKS else None
    if setting.method in _UNGATED:
        return method.fit(
            bank.gallery,
            bank.references,
            gallery_references=gallery_bank,
            memory_budget=memory_budget,
        )
    bias = method.bias_from_values(
        setting.values(),
        weight=setting.weight,
        params=asdict(method) if isinstance(method, Sinkhorn) else setting.params,
        gallery=bank.gallery,
        references=bank.references,
    )
    if gallery_bank is None:
        return bias
    prints = {**bias.fingerprints, "gallery_references": gallery_bank.fingerprint}
    return replace(bias, fingerprints=prints)


def _with_recalls(cell: Cell, evaluation: Evaluation) -> Cell:
    recalls = (evaluation.recall(k) for k in (5, 10))
    return Cell(cell.method, cell.params, cell.recall_at_1, *recalls)
