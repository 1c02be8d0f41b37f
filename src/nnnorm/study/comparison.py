"""Methods side by side, and banks of different sizes: tuned on validation, reported on test.

`compare` is the paper's full table: every method tuned the same way, its test figures with paired,
clustered intervals against no correction. `ablate` is its ablation: the bank at full size and
smaller, of the same or of another distribution. Both touch the test queries once, at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError
from nnnorm.io import Embeddings, Progress, Source, open_embeddings
from nnnorm.methods import NNN, MethodName, make_method
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.study.evaluation import Evaluation, evaluate
from nnnorm.study.grid import Grid, check_grids
from nnnorm.study.hubness import Hubness, count_occurrences, measure_hubness
from nnnorm.study.intervals import Interval, binomial_half_width, interval_of_difference
from nnnorm.study.truth import clusters_of
from nnnorm.study.tuning import Select, check_methods, tune

__all__ = ["Ablation", "AblationRow", "Comparison", "Result", "Task", "ablate", "compare"]


class Task(NamedTuple):
    """Queries with known answers in a gallery.

    Attributes
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    truth : array or list
        See `truth.open_truth`.
    """

    queries: Source
    gallery: Source
    truth: Any


@dataclass(frozen=True)
class Result:
    """How one correction did on the test queries.

    Attributes
    ----------
    method : str
    params : dict
    recall_at_1, recall_at_5, recall_at_10 : float
    half_width : float
        The binomial ± of R@1 that the paper prints.
    gain : Interval or None
        Paired, clustered difference in R@1 to no correction; None for no correction itself.
    hubness : Hubness
        Of N_1.
    """

    method: str
    params: Mapping[str, Any]
    recall_at_1: float
    recall_at_5: float
    recall_at_10: float
    half_width: float
    gain: Interval | None
    hubness: Hubness

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> evaluation = evaluate(np.eye(2), np.eye(2), [0, 1])
        >>> make_result("none", {}, evaluation, None).to_dict()["recall_at_1"]
        1.0
        """
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on the same test queries; "none" comes first.

    Attributes
    ----------
    results : tuple of Result
    select : str
        How settings were chosen on validation.
    n_queries, n_gallery, n_references, n_validation : int
    """

    results: tuple[Result, ...]
    select: str
    n_queries: int
    n_gallery: int
    n_references: int
    n_validation: int

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON.

        Examples
        --------
        >>> Comparison((), "max", 5, 5, 9, 5).to_dict()["n_references"]
        9
        """
        return asdict(self)


@dataclass(frozen=True)
class AblationRow:
    """NNN with one bank, tuned on validation and untuned.

    Attributes
    ----------
    bank : str
        Its name.
    share : float
        Of the bank that was used.
    n_references : int
    tuned, automatic : Result
    """

    bank: str
    share: float
    n_references: int
    tuned: Result
    automatic: Result


@dataclass(frozen=True)
class Ablation:
    """NNN with banks of several sizes and kinds.

    Attributes
    ----------
    uncorrected : Result
    rows : tuple of AblationRow
    select : str
    n_queries, n_gallery, n_validation : int
    """

    uncorrected: Result
    rows: tuple[AblationRow, ...]
    select: str
    n_queries: int
    n_gallery: int
    n_validation: int

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> none = make_result("none", {}, evaluate(np.eye(2), np.eye(2), [0, 1]), None)
        >>> Ablation(none, (), "max", 2, 2, 2).to_dict()["rows"]
        ()
        """
        return asdict(self)


def compare(
    test: Task,
    validation: Task,
    references: Source,
    *,
    gallery_references: Source | None = None,
    methods: Sequence[MethodName] | Literal["all"] = "all",
    grids: Mapping[str, Grid] | None = None,
    select: Select = "one-standard-error",
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Comparison:
    """Tune every method on validation and report it on test.

    Parameters
    ----------
    test, validation : Task
        Their galleries may differ; each bias is fitted for the gallery it is used on.
    references : array or path, shape (n_references, dim)
    gallery_references : array or path, optional
        For dualis, dualdis and sinkhorn.
    methods : sequence of str, or "all"
    grids : dict, optional
    select : {"one-standard-error", "max"}
    seed : int
    memory_budget : int
    progress : callable, optional

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gallery, bank, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 30))
    >>> task = Task(queries, gallery, np.arange(30) % 20)
    >>> [result.method for result in compare(task, task, bank, methods=["csls"]).results]
    ['none', 'csls']
    """
    bank = open_embeddings(references, name="references")
    gallery_bank = _open_optional(gallery_references)
    opened, checked = _open_task(test, "test"), _open_task(validation, "validation")
    names = check_methods(methods, gallery_bank is not None)
    check_grids(grids, ["none", *names])
    reporter = _Reporter(opened, seed, memory_budget)
    results = [reporter.uncorrected]
    n_validation = len(checked.queries)
    for name in names:
        tuning = tune(
            checked.gallery,
            bank,
            checked.queries,
            checked.truth,
            (name,),
            gallery_references=gallery_bank if name in _TWO_BANKS else None,
            grids={name: grids[name]} if grids and name in grids else None,
            select=select,
            seed=seed,
            memory_budget=memory_budget,
            progress=progress,
        )
        best = tuning.best
        bias = make_method(best.method, **best.params).fit(
            opened.gallery,
            bank,
            gallery_references=gallery_bank if best.method in _TWO_BANKS else None,
            memory_budget=memory_budget,
        )
        results.append(reporter.report(name, best.params, bias))
    return Comparison(
        results=tuple(results),
        select=select,
        n_queries=len(opened.queries),
        n_gallery=len(opened.gallery),
        n_references=len(bank),
        n_validation=n_validation,
    )


def ablate(
    test: Task,
    validation: Task,
    banks: Mapping[str, Source],
    *,
    shares: Sequence[float] = (1.0, 0.5, 0.2, 0.1),
    select: Select = "one-standard-error",
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Ablation:
    """NNN with each bank at several sizes, tuned on validation and automatic, on test.

    Parameters
    ----------
    test, validation : Task
    banks : dict
        Name to references, such as ``{"flickr": …, "coco": …}``.
    shares : sequence of float
        Random parts of each bank, by `seed`.
    select : {"one-standard-error", "max"}
    seed : int
    memory_budget : int
    progress : callable, optional

    Returns
    -------
    Ablation

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gallery, bank, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 30))
    >>> task = Task(queries, gallery, np.arange(30) % 20)
    >>> [row.n_references for row in ablate(task, task, {"own": bank}).rows]
    [40, 20, 8, 4]
    """
    if not isinstance(banks, Mapping):
        raise NNNormError(
            "banks must be a dict of names to references, such as {'own': references}; got "
            f"{type(banks).__name__}"
        )
    if not banks:
        raise NNNormError("ablate needs at least one bank of references; got none")
    if not shares or not all(0 < share <= 1 for share in shares):
        raise NNNormError(f"shares must be above 0 and at most 1; got {tuple(shares)}")
    opened, checked = _open_task(test, "test"), _open_task(validation, "validation")
    reporter = _Reporter(opened, seed, memory_budget)
    rows = []
    for name, source in banks.items():
        whole = open_embeddings(source, name=f"references {name}")
        order = np.random.default_rng(seed).permutation(len(whole))
        for share in shares:
            size = max(1, round(share * len(whole)))
            # The smaller banks lie inside the larger ones.
            bank = whole if size == len(whole) else _take(whole, np.sort(order[:size]))
            best = tune(
                checked.gallery,
                bank,
                checked.queries,
                checked.truth,
                select=select,
                seed=seed,
                memory_budget=memory_budget,
                progress=progress,
            ).best
            method = make_method(best.method, **best.params)
            tuned, automatic = (
                chosen.fit(opened.gallery, bank, memory_budget=memory_budget)
                for chosen in (method, NNN())
            )
            rows.append(
                AblationRow(
                    bank=name,
                    share=float(share),
                    n_references=size,
                    tuned=reporter.report(best.method, best.params, tuned),
                    automatic=reporter.report("nnn", automatic.params, automatic),
                )
            )
    return Ablation(
        uncorrected=reporter.uncorrected,
        rows=tuple(rows),
        select=select,
        n_queries=len(opened.queries),
        n_gallery=len(opened.gallery),
        n_validation=len(checked.queries),
    )


def make_result(
    method: str, params: Mapping[str, Any], evaluation: Evaluation, gain: Interval | None
) -> Result:
    """The figures of one evaluation.

    Examples
    --------
    >>> import numpy as np
    >>> make_result("none", {}, evaluate(np.eye(2), np.eye(2), [0, 1]), None).hubness.max
    1
    """
    recalls = [evaluation.recall(k) for k in (1, 5, 10)]
    return Result(
        method=method,
        params=dict(params),
        recall_at_1=recalls[0],
        recall_at_5=recalls[1],
        recall_at_10=recalls[2],
        half_width=binomial_half_width(recalls[0], len(evaluation)),
        gain=gain,
        hubness=measure_hubness(count_occurrences(evaluation.top1, evaluation.n_gallery)),
    )


_TWO_BANKS = ("dualis", "dualdis", "sinkhorn")


class _Reporter:
    """Evaluates biases on the test task, each against no correction."""

    def __init__(self, task: Task, seed: int, memory_budget: int) -> None:
        self._task, self._seed, self._memory_budget = task, seed, memory_budget
        self._raw = self._evaluate(None)
        self._clusters = clusters_of(self._raw.truth)
        self.uncorrected = make_result("none", {}, self._raw, None)

    def _evaluate(self, bias: Bias | None) -> Evaluation:
        queries, gallery, truth = self._task
        return evaluate(queries, gallery, truth, bias, memory_budget=self._memory_budget)

    def report(self, method: str, params: Mapping[str, Any], bias: Bias) -> Result:
        evaluation = self._evaluate(bias)
        gain = interval_of_difference(
            evaluation.hits(1), self._raw.hits(1), self._clusters, seed=self._seed
        )
        return make_result(method, params, evaluation, gain)


def _open_task(task: Task, name: str) -> Task:
    return Task(
        open_embeddings(task.queries, name=f"{name} queries"),
        open_embeddings(task.gallery, name=f"{name} gallery"),
        task.truth,
    )


def _open_optional(source: Source | None) -> Embeddings | None:
    return None if source is None else open_embeddings(source, name="gallery_references")


def _take(whole: Embeddings, rows: "np.ndarray[Any, np.dtype[np.int64]]") -> Embeddings:
    return whole.subset(rows)
