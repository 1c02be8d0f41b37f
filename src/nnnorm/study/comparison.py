"""Methods side by side, and banks of different sizes: tuned on validation, reported on test.

`compare` is the paper's full table: every method tuned in the same way, and its test figures with
paired, clustered intervals against no correction. `ablate` is the paper's ablation: the bank at
full size and smaller, of the same or of another distribution. Each bank is scanned once per
gallery. Without validation queries the figures are cross-fitted: each fifth of the queries is
reported with the setting that the others choose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nnnorm.bank import Bank, open_gallery_references, open_references, use_references
from nnnorm.bias import Bias
from nnnorm.dedup import (
    Duplicates,
    References,
    count_references,
    count_unique,
    drop_copies,
    is_sample,
)
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.files import Progress
from nnnorm.input_checks import check_inputs
from nnnorm.methods import NNN, NO_CORRECTION, Method, MethodName, Statistics
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.study.evaluation import Evaluation, evaluate, measure_gain
from nnnorm.study.grid import Grid, check_grids, prepare
from nnnorm.study.hubness import Hubness, count_occurrences, measure_hubness
from nnnorm.study.intervals import Interval, binomial_half_width
from nnnorm.study.splits import warn_of_mismatched_bank, warn_of_overlap
from nnnorm.study.tuning import Select, Trial, check_methods, check_select, try_settings


class Task(NamedTuple):
    """Queries with known answers in a gallery.

    Attributes
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    truth : array or list
        The right items, see `truth.open_truth`.
    """

    queries: Source
    gallery: Source
    truth: Any


@dataclass(frozen=True)
class Result:
    """The figures of one correction on the test queries.

    Attributes
    ----------
    method : str
    params : dict
        The chosen setting; empty where no correction was chosen. Of cross-fitted figures, what all
        queries together choose.
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
        """Return all fields, ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> evaluation = evaluate(np.eye(2), np.eye(2), truth=[0, 1])
        >>> make_result("none", {}, evaluation, None).to_dict()["recall_at_1"]
        1.0
        """
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Methods side by side on the same test queries; no correction comes first.

    Attributes
    ----------
    results : tuple of Result
    select : str
        The rule that chose the settings on validation.
    n_queries, n_gallery, n_references : int
    n_validation : int
        Number of validation queries; 0 where the figures are cross-fitted.
    n_unique : int or None
        Number of references that are no copies; None where all were used.
    references_sampled : bool
        Whether these are a random sample of more unique queries.
    """

    results: tuple[Result, ...]
    select: str
    n_queries: int
    n_gallery: int
    n_references: int
    n_validation: int
    n_unique: int | None = None
    references_sampled: bool = False

    def __repr__(self) -> str:
        names = ", ".join(result.method for result in self.results)
        return f"Comparison({self.n_queries:,} test queries; {names})"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON.

        Examples
        --------
        >>> Comparison((), "max", 5, 5, 9, 5).to_dict()["n_references"]
        9
        """
        return asdict(self)


@dataclass(frozen=True)
class AblationRow:
    """NNN with one bank, tuned on validation and automatic.

    Attributes
    ----------
    bank : str
        Name of the bank.
    share : float
        Share of the bank that was used.
    n_references : int
    tuned, automatic : Result
    n_unique : int or None
        Number of references that are no copies; None where all were used.
    references_sampled : bool
        Whether these are a random sample of more unique queries.
    """

    bank: str
    share: float
    n_references: int
    tuned: Result
    automatic: Result
    n_unique: int | None = None
    references_sampled: bool = False


@dataclass(frozen=True)
class Ablation:
    """NNN with banks of several sizes and kinds.

    Attributes
    ----------
    uncorrected : Result
    rows : tuple of AblationRow
    select : str
    n_queries, n_gallery : int
    n_validation : int
        Number of validation queries; 0 where the tuned figures are cross-fitted.
    """

    uncorrected: Result
    rows: tuple[AblationRow, ...]
    select: str
    n_queries: int
    n_gallery: int
    n_validation: int

    def __repr__(self) -> str:
        banks = ", ".join(dict.fromkeys(row.bank for row in self.rows))
        return f"Ablation({self.n_queries:,} test queries, {len(self.rows)} banks of {banks})"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON.

        Examples
        --------
        >>> import numpy as np
        >>> none = make_result("none", {}, evaluate(np.eye(2), np.eye(2), truth=[0, 1]), None)
        >>> Ablation(none, (), "max", 2, 2, 2).to_dict()["rows"]
        ()
        """
        return asdict(self)


@explain_arguments
def compare(
    gallery: Source,
    references: Source | Bank,
    *,
    queries: Source,
    truth: Any,
    validation: Task | None = None,
    gallery_references: Source | None = None,
    duplicates: Duplicates = "drop",
    methods: Sequence[MethodName] | Literal["all"] = "all",
    grids: Mapping[str, Grid] | None = None,
    select: Select = "one-standard-error",
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Comparison:
    """Tune every method on validation queries and report all of them on test queries.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim)
    queries : array or path, shape (n_queries, dim)
        The test queries.
    truth : array or list
        The right items, see `truth.open_truth`.
    validation : Task, optional
        Queries to tune on, in this or another gallery. Without it, the figures are cross-fitted:
        each fifth of the queries (by `seed`) gets the setting that the others choose.
    gallery_references : array or path, optional
        A bank of gallery-side items, for the methods that use one.
    duplicates : {"drop", "keep"}
        Whether copies in the bank count once, see `Method.fit`.
    methods : sequence of str, or "all"
    grids : dict, optional
        Method name to its grid, instead of the default grid.
    select : {"one-standard-error", "max"}
        The rule that chooses a setting of each method.
    seed : int
        Random seed of the folds and of the intervals.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gallery, references, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 30))
    >>> task = Task(queries, gallery, np.arange(30) % 20)
    >>> found = compare(
    ...     gallery,
    ...     references,
    ...     queries=queries,
    ...     truth=np.arange(30) % 20,
    ...     validation=task,
    ...     methods=["csls"],
    ... )
    >>> [result.method for result in found.results]
    ['none', 'csls']
    """
    check_select(select)
    bank = open_references(references, normalize=normalize)
    gallery_bank = open_gallery_references(gallery_references, normalize=normalize)
    names = check_methods(methods, gallery_bank is not None)
    check_grids(grids, [NO_CORRECTION, *names])
    test, held = _open_tasks(Task(queries, gallery, truth), validation, normalize)
    _warn_of_overlap(bank, test, held)
    check_inputs(test.gallery, bank, allow_gallery_rows=None, compare=False)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    used = use_references(references, bank, duplicates, progress)
    on = held or test
    trial = try_settings(
        names, on.gallery, used, gallery_bank, on.queries, on.truth, grids=grids, **options
    )
    chosen = [trial.settings[trial.choose(select, name)] for name in names]
    warn_of_mismatched_bank(bank, *test)
    reporter = _Reporter(test, seed, memory_budget)
    if held is None:
        evaluations = [trial.cross_fit(select, name, seed=seed) for name in names]
    else:
        statistics = _statistics_on_test(trial, test, used, gallery_bank, **options)
        prepare(statistics, [setting.method for setting in chosen])
        evaluations = [
            reporter.evaluate(setting.method.make_bias(statistics)) for setting in chosen
        ]
    results = [
        reporter.report(name, setting.params, evaluation)
        for name, setting, evaluation in zip(names, chosen, evaluations, strict=True)
    ]
    return Comparison(
        results=(reporter.uncorrected, *results),
        select=select,
        n_queries=len(test.queries),
        n_gallery=len(test.gallery),
        n_references=count_references(used),
        n_validation=0 if held is None else len(held.queries),
        n_unique=count_unique(used),
        references_sampled=is_sample(used),
    )


@explain_arguments
def ablate(
    gallery: Source,
    references: Source | Bank | Mapping[str, Source | Bank],
    *,
    queries: Source,
    truth: Any,
    validation: Task | None = None,
    duplicates: Duplicates = "drop",
    shares: Sequence[float] = (1.0, 0.5, 0.2, 0.1),
    select: Select = "one-standard-error",
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Ablation:
    """Report NNN with each bank at several sizes, tuned on validation and automatic.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim), or dict
        One bank, or names to banks, such as ``{"flickr": …, "coco": …}``.
    queries : array or path, shape (n_queries, dim)
        The test queries.
    truth : array or list
        The right items, see `truth.open_truth`.
    validation : Task, optional
        Queries to tune on; without it, the tuned figures are cross-fitted, as in `compare`.
    duplicates : {"drop", "keep"}
        Whether copies in each of the banks count once, see `Method.fit`.
    shares : sequence of float
        The shares of each bank to use, drawn at random by `seed`.
    select : {"one-standard-error", "max"}
    seed : int
        Random seed of the folds, of the shares and of the intervals.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Ablation

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> gallery, references, queries = (rng.normal(size=(n, 8)) for n in (20, 40, 30))
    >>> truth = np.arange(30) % 20
    >>> task = Task(queries, gallery, truth)
    >>> found = ablate(gallery, references, queries=queries, truth=truth, validation=task)
    >>> [row.n_references for row in found.rows]
    [40, 20, 8, 4]
    """
    check_select(select)
    if not shares or not all(0 < share <= 1 for share in shares):
        raise NNNormError(f"shares must be above 0 and at most 1; got {tuple(shares)}")
    banks = references if isinstance(references, Mapping) else {"references": references}
    if not banks:
        raise NNNormError("references names no bank; give at least one")
    opened = {
        name: open_references(source, name=f"references {name}", normalize=normalize)
        for name, source in banks.items()
    }
    test, held = _open_tasks(Task(queries, gallery, truth), validation, normalize)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    for bank in opened.values():
        _warn_of_overlap(bank, test, held)
        check_inputs(test.gallery, bank, allow_gallery_rows=None, compare=False)
    reporter = _Reporter(test, seed, memory_budget)
    rows = []
    for name, whole in opened.items():
        warn_of_mismatched_bank(whole, *test)
        order = np.random.default_rng(seed).permutation(len(whole))
        for share in shares:
            size = max(1, round(share * len(whole)))
            # The smaller banks are part of the larger ones.
            bank = whole if size == len(whole) else whole.subset(np.sort(order[:size]))
            used = drop_copies(bank, duplicates, progress)
            both = _report_bank(reporter, test, held, used, select, seed, options)
            counts = count_unique(used), is_sample(used)
            rows.append(AblationRow(name, float(share), size, *both, *counts))
    return Ablation(
        uncorrected=reporter.uncorrected,
        rows=tuple(rows),
        select=select,
        n_queries=len(test.queries),
        n_gallery=len(test.gallery),
        n_validation=0 if held is None else len(held.queries),
    )


def make_result(
    method: str, params: Mapping[str, Any], evaluation: Evaluation, gain: Interval | None
) -> Result:
    """Put together the figures of one evaluation.

    Examples
    --------
    >>> import numpy as np
    >>> make_result("none", {}, evaluate(np.eye(2), np.eye(2), truth=[0, 1]), None).hubness.max
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


def report_gain(
    method: str,
    params: Mapping[str, Any],
    evaluation: Evaluation,
    raw: Evaluation,
    *,
    seed: int = 0,
) -> Result:
    """Put together the figures of a correction, with its paired gain over the raw search.

    Examples
    --------
    >>> import numpy as np
    >>> raw = evaluate(np.eye(2), np.eye(2), truth=[0, 1])
    >>> report_gain("csls", {"reference_k": 1}, raw, raw).gain.mean
    0.0
    """
    return make_result(method, params, evaluation, measure_gain(evaluation, raw, seed=seed))


class _Reporter:
    """Figures of corrections on the test queries, each against no correction."""

    def __init__(self, task: Task, seed: int, memory_budget: int) -> None:
        self._task, self._seed, self._memory_budget = task, seed, memory_budget
        self._raw = self.evaluate(None)
        self.uncorrected = make_result(NO_CORRECTION, {}, self._raw, None)

    def evaluate(self, bias: Bias | None) -> Evaluation:
        """One correction on the test queries."""
        queries, gallery, truth = self._task
        return evaluate(queries, gallery, bias, truth=truth, memory_budget=self._memory_budget)

    def report(self, method: str, params: Mapping[str, Any], evaluation: Evaluation) -> Result:
        """The figures of one evaluation."""
        return report_gain(method, params, evaluation, self._raw, seed=self._seed)


def _report_bank(
    reporter: _Reporter,
    test: Task,
    held: Task | None,
    bank: References,
    select: Select,
    seed: int,
    options: dict[str, Any],
) -> tuple[Result, Result]:
    """NNN with one bank: tuned on the held-out queries or cross-fitted, and automatic."""
    nnn: Method = NNN()
    on = held or test
    trial = try_settings([nnn.name], on.gallery, bank, None, on.queries, on.truth, **options)
    best = trial.settings[trial.choose(select)]
    statistics = _statistics_on_test(trial, test, bank, None, **options)
    prepare(statistics, [best.method, nnn.settle(statistics)[0]])
    if held is None:
        tuned = trial.cross_fit(select, seed=seed)
    else:
        tuned = reporter.evaluate(best.method.make_bias(statistics))
    automatic = nnn.make_bias(statistics)
    return (
        reporter.report(best.name, best.params, tuned),
        reporter.report(nnn.name, automatic.params, reporter.evaluate(automatic)),
    )


def _statistics_on_test(
    trial: Trial, test: Task, bank: References, gallery_bank: Embeddings | None, **options: Any
) -> Statistics:
    """Statistics of the test gallery; those of the trial where it is the same gallery."""
    if trial.statistics.fingerprints["gallery"] == test.gallery.fingerprint:
        return trial.statistics
    return Statistics.of_embeddings(test.gallery, bank, gallery_bank, **options)


def _open_tasks(
    test: Task, validation: Task | None, normalize: bool | None
) -> tuple[Task, Task | None]:
    """Open test and validation; a gallery that is both is opened once."""
    opened = _open_task(test, "", normalize)
    if validation is None:
        return opened, None
    held = _open_task(validation, "validation ", normalize)
    same = validation.gallery is test.gallery
    return opened, held._replace(gallery=opened.gallery) if same else held


def _warn_of_overlap(bank: Embeddings, test: Task, held: Task | None) -> None:
    """Warn where references are among the test or the validation queries."""
    warn_of_overlap(bank, test.queries, stacklevel=5)
    if held is not None and held.queries.fingerprint != test.queries.fingerprint:
        warn_of_overlap(bank, held.queries, role="validation queries", stacklevel=5)


def _open_task(task: Task, role: str, normalize: bool | None) -> Task:
    queries, gallery = (
        open_embeddings(source, name=f"{role}{name}", normalize=normalize)
        for source, name in ((task.queries, "queries"), (task.gallery, "gallery"))
    )
    return Task(queries, gallery, task.truth)
