"""Compare methods that are tuned on validation queries and measured on test queries.

`compare` produces the paper's full table: every method is tuned in the same way, and its gain over
no correction has a paired, clustered interval. The bank is scanned once per gallery. Without
validation queries, results are cross-fitted: each fifth of the queries is measured with the setting
chosen on the others.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nnnorm.bank import Bank
from nnnorm.bias import Bias
from nnnorm.dedup import Duplicates, drop_copies
from nnnorm.embeddings import Source, open_embeddings
from nnnorm.evaluation.hubness import Hubness, count_occurrences, measure_hubness
from nnnorm.evaluation.metrics import (
    Evaluation,
    evaluate,
    open_task,
    open_truth,
    warn_of_other_items,
    warn_of_overlap,
)
from nnnorm.evaluation.results import Interval, Record, binomial_half_width
from nnnorm.evaluation.tuning import Select, Trial, check_choice
from nnnorm.files import Progress
from nnnorm.methods import NO_CORRECTION, Grid, MethodName, Statistics
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET


class Task(NamedTuple):
    """Queries, their gallery, and the right items.

    Attributes
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    truth : array or list
        The right items; see `open_truth`.
    """

    queries: Source
    gallery: Source
    truth: Any

    def __repr__(self) -> str:
        sides = (
            str(rows) if isinstance(rows, (str, os.PathLike)) else f"{len(rows):,}"
            for rows in (self.queries, self.gallery)
        )
        return "Task({} queries, {} items)".format(*sides)


@dataclass(frozen=True)
class Result(Record):
    """Results of one correction on the test queries."""

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
    """Results of methods on the same test queries; the first row is no correction."""

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
        shown = [f"{one.method} {100 * one.recall_at_1:.1f} %" for one in self.results]
        return f"Comparison({self.n_queries:,} test queries; R@1: {', '.join(shown)})"


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
    """Tune every method on validation queries, and measure all of them on test queries.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim)
    queries : array or path, shape (n_queries, dim)
        The test queries.
    truth : array or list
        The right items; see `open_truth`.
    validation : Task, optional
        Queries to tune on, in this or another gallery. Without it, results are cross-fitted: each
        fifth of the queries (by `seed`) gets the setting chosen on the others.
    gallery_references : array or path, optional
        Gallery-side references, for methods that use them.
    duplicates : {"drop", "keep"}
        Whether near-duplicates count once; see `Method.fit`.
    methods : sequence of str, or "all"
    grids : dict, optional
        Maps method names to grids that replace the default ones.
    select : {"one-standard-error", "max"}
        The rule that chooses the setting of each method.
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
    names = check_choice(methods, select, gallery_references is not None)
    given = gallery, queries, references, gallery_references, truth
    items, asked, bank, second, right = open_task(*given, normalize)
    tuned_on, tuned_in, known = asked, items, right
    if validation is not None:
        others = validation.queries, validation.gallery
        tuned_on = open_embeddings(others[0], name="validation queries", normalize=normalize)
        if others[1] is not gallery:
            tuned_in = open_embeddings(others[1], name="validation gallery", normalize=normalize)
        known = open_truth(validation.truth, n_queries=len(tuned_on), n_gallery=len(tuned_in))
        if tuned_on.fingerprint != asked.fingerprint:
            warn_of_overlap(bank, tuned_on, role="validation queries")
    used = drop_copies(bank, duplicates, progress)
    options: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    trial = Trial(names, tuned_in, used, second, tuned_on, known, grids=grids, **options)
    chosen = [trial.settings[trial.choose(select, name)] for name in names]
    statistics = trial.statistics
    if tuned_in.fingerprint != items.fingerprint:
        statistics = Statistics(items, used, second, **options)
        statistics.prepare([setting.method for setting in chosen])

    def measure(bias: Bias | None) -> Evaluation:
        return evaluate(asked, items, bias, truth=right, memory_budget=memory_budget)

    raw = trial.raw if validation is None else measure(None)
    warn_of_other_items(bank, items, raw, **options)
    results = [make_result(NO_CORRECTION, {}, raw)]
    for name, setting in zip(names, chosen, strict=True):
        if validation is None:
            found = trial.cross_fit(select, name, seed=seed)
        else:
            found = measure(setting.method.make_bias(statistics))
        results.append(make_result(name, setting.params, found, raw, seed))
    return Comparison(
        results=tuple(results),
        select=select,
        n_queries=len(asked),
        n_gallery=len(items),
        n_validation=0 if validation is None else len(tuned_on),
        n_references=used.n_given,
        **used.params,
    )


def make_result(
    method: str,
    params: Mapping[str, Any],
    evaluation: Evaluation,
    raw: Evaluation | None = None,
    seed: int = 0,
) -> Result:
    """Return the results of an evaluation, with its paired gain over the raw search."""
    at_1, at_5, at_10 = (evaluation.recall(k) for k in (1, 5, 10))
    half_width = binomial_half_width(at_1, len(evaluation))
    gain = None if raw is None else evaluation.gain_over(raw, seed=seed)
    hubness = measure_hubness(count_occurrences(evaluation.top1, evaluation.n_gallery))
    return Result(method, dict(params), at_1, at_5, at_10, half_width, gain, hubness)
