"""Methods side by side, and banks of different sizes: tuned on validation, reported on test.

`compare` is the paper's full table: every method tuned in the same way, and its test figures with
paired, clustered intervals against no correction. `ablate` is the paper's ablation: the bank at
full size and smaller, of the same or of another distribution. Each bank is scanned once per
gallery. Without validation queries the figures are cross-fitted: each fifth of the queries is
reported with the setting that the others choose.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nnnorm.bank import Bank
from nnnorm.bias import Bias
from nnnorm.dedup import Duplicates, References, drop_copies
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.evaluation.hubness import Hubness, count_occurrences, measure_hubness
from nnnorm.evaluation.metrics import Evaluation, check_bank, evaluate, warn_of_overlap
from nnnorm.evaluation.results import Interval, Record, binomial_half_width
from nnnorm.evaluation.tuning import Select, check_methods, check_select, try_settings
from nnnorm.files import Progress
from nnnorm.methods import NNN, NO_CORRECTION, Grid, MethodName, Statistics, open_references
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET


class Task(NamedTuple):
    """Queries with known answers in a gallery.

    Attributes
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    truth : array or list
        The right items, see `open_truth`.
    """

    queries: Source
    gallery: Source
    truth: Any


@dataclass(frozen=True)
class Result(Record):
    """The figures of one correction on the test queries."""

    method: str
    params: Mapping[str, Any]
    recall_at_1: float
    recall_at_5: float
    recall_at_10: float
    half_width: float  # the binomial ± of R@1 that the paper prints
    gain: Interval | None
    hubness: Hubness


@dataclass(frozen=True)
class Comparison(Record):
    """Methods side by side on the same test queries; the first row is no correction."""

    _rows = "results"

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


@dataclass(frozen=True)
class AblationRow(Record):
    """NNN with one bank, tuned on validation and automatic."""

    bank: str
    share: float
    n_references: int
    tuned: Result
    automatic: Result
    n_unique: int | None = None
    references_sampled: bool = False


@dataclass(frozen=True)
class Ablation(Record):
    """NNN with banks of several sizes and kinds."""

    _rows = "rows"

    uncorrected: Result
    rows: tuple[AblationRow, ...]
    select: str
    n_queries: int
    n_gallery: int
    n_validation: int

    def __repr__(self) -> str:
        banks = ", ".join(dict.fromkeys(row.bank for row in self.rows))
        return f"Ablation({self.n_queries:,} test queries, {len(self.rows)} banks of {banks})"


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
        The right items, see `open_truth`.
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
    bank = open_references(references, normalize=normalize)
    gallery_bank = None
    if gallery_references is not None:
        gallery_bank = open_embeddings(
            gallery_references, name="gallery_references", normalize=normalize
        )
    names = check_methods(methods, gallery_bank is not None)
    test = Task(queries, gallery, truth)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    study = _Study(test, validation, [bank], select, seed, normalize, **options)
    used = drop_copies(bank, duplicates, progress)
    results = study.run(names, used, gallery_bank, grids)
    return Comparison(
        results=(study.uncorrected, *results),
        n_references=used.n_given,
        **used.params,
        **study.about,
    )


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
        The right items, see `open_truth`.
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
    if not shares or not all(0 < share <= 1 for share in shares):
        raise NNNormError(f"shares must be above 0 and at most 1; got {tuple(shares)}")
    banks = references if isinstance(references, Mapping) else {"references": references}
    if not banks:
        raise NNNormError("references names no bank; pass at least one")
    opened = {
        name: open_references(source, name=f"references {name}", normalize=normalize)
        for name, source in banks.items()
    }
    test = Task(queries, gallery, truth)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    study = _Study(test, validation, opened.values(), select, seed, normalize, **options)
    rows = []
    for name, whole in opened.items():
        order = np.random.default_rng(seed).permutation(len(whole))
        for share in shares:
            size = max(1, round(share * len(whole)))
            # The smaller banks are part of the larger ones.
            bank = whole if size == len(whole) else whole.subset(np.sort(order[:size]))
            used = drop_copies(bank, duplicates, progress)
            tuned, automatic = study.run([NNN().name], used, with_automatic=True)
            rows.append(AblationRow(name, float(share), size, tuned, automatic, **used.params))
    return Ablation(study.uncorrected, tuple(rows), **study.about)


def make_result(
    method: str,
    params: Mapping[str, Any],
    evaluation: Evaluation,
    raw: Evaluation | None = None,
    seed: int = 0,
) -> Result:
    """Put together the figures of one evaluation, with its paired gain over the raw search."""
    at_1, at_5, at_10 = (evaluation.recall(k) for k in (1, 5, 10))
    half_width = binomial_half_width(at_1, len(evaluation))
    gain = None if raw is None else evaluation.gain_over(raw, seed=seed)
    hubness = measure_hubness(count_occurrences(evaluation.top1, evaluation.n_gallery))
    return Result(method, dict(params), at_1, at_5, at_10, half_width, gain, hubness)


class _OpenTask(NamedTuple):
    queries: Embeddings
    gallery: Embeddings
    truth: Any


class _Study:
    """Test queries, and other queries to tune on if there are any."""

    def __init__(
        self,
        test: Task,
        validation: Task | None,
        banks: Collection[Embeddings],
        select: Select,
        seed: int,
        normalize: bool | None,
        **options: Any,
    ) -> None:
        check_select(select)
        self._select, self._seed, self._options = select, seed, options
        self._test = self._on = _open_task(test, "", normalize)
        if validation is not None:
            self._on = _open_task(validation, "validation ", normalize)
            if validation.gallery is test.gallery:  # opened and scanned once
                self._on = self._on._replace(gallery=self._test.gallery)
        self._is_held_out = validation is not None
        for bank in banks:
            if self._on.queries.fingerprint != self._test.queries.fingerprint:
                warn_of_overlap(bank, self._on.queries, role="validation queries")
            check_bank(bank, *self._test)
        self._raw = self._evaluate(None)
        self.uncorrected = make_result(NO_CORRECTION, {}, self._raw)
        self.about: dict[str, Any] = {
            "select": select,
            "n_queries": len(self._test.queries),
            "n_gallery": len(self._test.gallery),
            "n_validation": 0 if validation is None else len(self._on.queries),
        }

    def run(
        self,
        names: Sequence[MethodName],
        bank: References,
        gallery_bank: Embeddings | None = None,
        grids: Mapping[str, Grid] | None = None,
        *,
        with_automatic: bool = False,
    ) -> list[Result]:
        """The chosen setting of each method on the test queries, and NNN's automatic one."""
        queries, gallery, truth = self._on
        trial = try_settings(
            names, gallery, bank, gallery_bank, queries, truth, grids=grids, **self._options
        )
        chosen = [trial.settings[trial.choose(self._select, name)] for name in names]
        statistics, test = trial.statistics, self._test
        if gallery.fingerprint != test.gallery.fingerprint:
            statistics = Statistics(test.gallery, bank, gallery_bank, **self._options)
            automatic = [NNN().resolve(statistics)[0]] if with_automatic else []
            statistics.prepare([*(setting.method for setting in chosen), *automatic])
        results = []
        for name, setting in zip(names, chosen, strict=True):
            if self._is_held_out:
                evaluation = self._evaluate(setting.method.make_bias(statistics))
            else:
                evaluation = trial.cross_fit(self._select, name, seed=self._seed)
            results.append(make_result(name, setting.params, evaluation, self._raw, self._seed))
        if with_automatic:
            bias = NNN().make_bias(statistics)
            found = self._evaluate(bias)
            results.append(make_result(bias.method, bias.params, found, self._raw, self._seed))
        return results

    def _evaluate(self, bias: Bias | None) -> Evaluation:
        queries, gallery, truth = self._test
        budget = self._options["memory_budget"]
        return evaluate(queries, gallery, bias, truth=truth, memory_budget=budget)


def _open_task(task: Task, role: str, normalize: bool | None) -> _OpenTask:
    queries = open_embeddings(task.queries, name=f"{role}queries", normalize=normalize)
    gallery = open_embeddings(task.gallery, name=f"{role}gallery", normalize=normalize)
    return _OpenTask(queries, gallery, task.truth)
