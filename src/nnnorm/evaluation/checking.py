"""`check`: are there hubs, will a correction help, which one, and what to do next.

What every other function measures by itself, put together. Hubs are compared with a null model
(`hubness`). Without labels the past queries say what to expect: whether their halves agree
(reliability), whether they are like the queries (z), and what becomes of the hubs. With labels the
gain is measured on all queries: NNN's automatic rule uses no labels, and a tuned setting is
cross-fitted. The gains are those of `evaluate`, `tune` and `compare` to the last digit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank, open_references, use_references
from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.dedup import Duplicates, References
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, quiet
from nnnorm.evaluation.bootstrap import Interval
from nnnorm.evaluation.diagnosis import open_ids
from nnnorm.evaluation.hubness import Hubs, judge_hubs, places_to_count
from nnnorm.evaluation.metrics import Evaluation, evaluate, measure_gain
from nnnorm.evaluation.truth import clusters_of, one_per_cluster, open_truth, warn_of_overlap
from nnnorm.evaluation.tuning import try_settings
from nnnorm.files import Progress
from nnnorm.input_checks import (
    FEW_QUERIES,
    LIKE_ITEMS,
    MISMATCH_WARNING_Z,
    mismatch_z,
    warn_of_items,
)
from nnnorm.methods import NNN, MethodName, is_mismatched, make_method
from nnnorm.ranking import search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

Hits: TypeAlias = npt.NDArray[np.int64]
Verdict = Literal["correct", "try", "leave", "unknown"]
Expectation = Literal["help", "little", "unclear"]

_WITHOUT_LABELS: dict[Expectation, Verdict] = {
    "help": "correct",
    "unclear": "try",
    "little": "leave",
}
# Halves of a bank that agree less than this say more about themselves than about the items.
_LEAST_RELIABLE = 0.5
# All of six changes for the better are the fewest that a sign test takes for more than chance.
FEWEST_CHANGED = 6
# If none of so many change, fewer than one in a hundred do (95 %).
_FEWEST_LABELS = 300
# A correction that gives fewer queries another first item changes nothing that matters.
_LEAST_MOVED = 0.005
# Points of R@1 that an interval must be able to tell from 0 to be of use.
_WORTH_SEEING = 0.01


@dataclass(frozen=True)
class Measured:
    """One correction on the queries, compared with none; gains need labels."""

    method: MethodName
    params: dict[str, Any]  # empty if no correction was chosen
    hubs: Hubs
    recall_at_1: float | None = None
    gain: Interval | None = None
    n_changed: int | None = None  # right items whose queries are answered better or worse

    @property
    def is_sure(self) -> bool:
        """Whether the gain is not 0, and more than a handful of right items show it."""
        if self.gain is None or self.n_changed is None:
            return False
        return self.n_changed >= FEWEST_CHANGED and not self.gain.includes_zero


@dataclass(frozen=True, kw_only=True)
class Check:
    """A verdict, what it rests on, and what to do next."""

    verdict: Verdict
    hubs: Hubs  # of the search as it is
    expectation: Expectation | None = None
    moved: float | None = None  # share of queries that get another first item
    reasons: tuple[str, ...] = ()
    reliability: float | None = None
    density: float | None = None
    z: float | None = None
    recall_at_1: float | None = None
    automatic: Measured | None = None
    tuned: Measured | None = None
    recommended: Literal["automatic", "tuned"] | None = None
    better: Interval | None = None  # tuned against automatic, in R@1
    n_queries: int
    n_gallery: int
    n_references: int | None = None
    n_needed: int | None = None
    next: tuple[str, ...] = ()
    ids: tuple[Any, ...] | None = field(default=None, repr=False)

    @property
    def chosen(self) -> Measured | None:
        """The recommended correction."""
        return None if self.recommended is None else getattr(self, self.recommended)

    def name_item(self, item: int) -> str:
        """Return the id of an item, or its row number if there are no ids."""
        return str(item if self.ids is None else self.ids[item])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the ids, ready for JSON."""
        found = {name: value for name, value in asdict(self).items() if name != "ids"}
        if self.ids is not None:
            found["hubs"]["id"] = self.name_item(self.hubs.item)
        return found


def check(
    gallery: Source,
    references: Source | Bank | None = None,
    *,
    queries: Source,
    truth: Any = None,
    recent: Source | None = None,
    ids: Sequence[Any] | None = None,
    duplicates: Duplicates = "drop",
    allow_gallery_rows: bool = False,
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Check:
    """Judge the hubs of a search, and whether a correction helps, in one verdict.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : Bank, array or path, shape (n_references, dim), optional
        Past queries. Without them, only the hubs are judged.
    queries : array or path, shape (n_queries, dim)
        A sample of the queries that the search gets, none of them among the references.
    truth : array or list, optional
        The right items of the queries, see `truth.open_truth`: the gain is measured.
    recent : array or path, shape (n_recent, dim), optional
        Recent queries of one's own, which join the bank and judge it, as in `Corrector.fit`.
    ids : sequence, optional
        Id of every item, shown instead of its row number; by default the ids of the gallery if it
        has any.
    duplicates, allow_gallery_rows : optional
        Whether copies in the bank count once, and whether references may be rows of the gallery,
        see `Method.fit`.
    seed : int
        Random seed of chance, of the folds and of the intervals.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Check

    Examples
    --------
    >>> from nnnorm import load_shapes
    >>> shapes = load_shapes()
    >>> known = {"queries": shapes.queries, "truth": shapes.truth}
    >>> found = check(shapes.gallery, shapes.references, **known)
    >>> found.verdict, found.hubs.severity, found.chosen.gain.low > 0
    ('correct', 'moderate', True)
    """
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    names = open_ids(ids, items)
    if references is None and recent is not None:
        raise NNNormError("recent queries judge a bank; give references too")
    run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    searched = _Search(asked, items, truth, seed, run)
    about: dict[str, Any] = {
        "hubs": searched.hubs,
        "recall_at_1": None if searched.raw is None else searched.raw.recall(1),
        "n_queries": len(asked),
        "n_gallery": len(items),
        "ids": names,
    }
    if references is None:
        return _without_references(about)
    bank = open_references(references, normalize=normalize)
    warn_of_overlap(bank, asked)
    if recent is not None:
        recent = open_embeddings(recent, name="recent", normalize=items.normalized or None)
        if truth is not None:  # without labels nothing is measured on them
            warn_of_overlap(recent, asked)
    given = references if isinstance(references, Bank) else bank
    fit: dict[str, Any] = {"duplicates": duplicates, "allow_gallery_rows": allow_gallery_rows}
    bias = _fit(items, given, recent, fit | run)
    z = bias.params.get("mismatch_z") if recent is not None else searched.mismatch_z(bank)
    automatic, evaluation, moved = searched.measure(bias)
    with_items = recent is None and not allow_gallery_rows and warn_of_items(bank, items, asked)
    expectation, reasons = _expect(bias, moved, None if recent is not None else z, with_items)
    tuned = better = None
    if evaluation is not None and recent is None:
        with quiet():  # of what was warned of above
            used = use_references(references, bank, duplicates, progress)
        tuned, better = searched.tune(used, evaluation)
    verdict, recommended = _judge(expectation, automatic, tuned, better)
    options: dict[str, Any] = {"normalize": normalize} if normalize is not None else {}
    chosen = tuned if recommended == "tuned" else None
    options |= {"duplicates": duplicates} if chosen or duplicates == "keep" else {}
    options |= {"allow_gallery_rows": True} if allow_gallery_rows else {}
    return Check(
        verdict=verdict,
        expectation=expectation,
        moved=moved,
        reasons=reasons,
        reliability=bias.params.get("reliability"),
        density=bias.params.get("density"),
        z=z,
        automatic=automatic,
        tuned=tuned,
        recommended=recommended,
        better=better,
        n_references=bias.n_references,
        n_needed=_count_needed(automatic, len(asked)),
        next=_next_lines(chosen, recent is not None, options) if recommended else (),
        **about,
    )


class _Search:
    """The search of some queries, without a correction and with several."""

    def __init__(
        self, queries: Embeddings, gallery: Embeddings, truth: Any, seed: int, run: dict[str, Any]
    ) -> None:
        self._queries, self._gallery, self._seed, self._run = queries, gallery, seed, run
        sizes = {"n_queries": len(queries), "n_gallery": len(gallery)}
        self._truth = None if truth is None else open_truth(truth, **sizes)
        self._k = places_to_count(**sizes)
        self.raw = self._evaluate(None)
        self._hits = self._find(None, self.raw)
        self.hubs = self._judge(self._hits)

    def _evaluate(self, bias: Bias | None) -> Evaluation | None:
        if self._truth is None:
            return None
        return evaluate(self._queries, self._gallery, bias, truth=self._truth, **self._run)

    def _find(self, bias: Bias | None, evaluation: Evaluation | None) -> Hits:
        """The first items of every query, as many as hubs are counted in."""
        if evaluation is not None and self._k == 1:
            return evaluation.top1[:, None]
        return search(self._queries, self._gallery, bias, k=self._k, **self._run).indices

    def _judge(self, hits: Hits) -> Hubs:
        about: dict[str, Any] = {"truth": self._truth, "seed": self._seed}
        return judge_hubs(hits, len(self._gallery), queries=self._queries, **about)

    def mismatch_z(self, references: Embeddings) -> float | None:
        """Z between the references and the queries; None if there are too few to tell."""
        queries = self._queries
        if self._truth is not None:
            queries = one_per_cluster(queries, self._truth)
        z = mismatch_z(references, queries)
        return None if math.isnan(z) else z

    def measure(self, bias: Bias) -> tuple[Measured, Evaluation | None, float]:
        """One correction, and the share of queries to which it gives another first item."""
        evaluation = self._evaluate(bias)
        hits = self._find(bias, evaluation)
        figures = self._figures(bias.method, bias.params, evaluation, hits)
        return figures, evaluation, float((hits[:, 0] != self._hits[:, 0]).mean())

    def tune(self, used: References, automatic: Evaluation) -> tuple[Measured, Interval]:
        """NNN tuned on the labels, cross-fitted, and its difference to the automatic one."""
        trial = try_settings(
            [NNN().name], self._gallery, used, None, self._queries, self._truth, **self._run
        )
        number = trial.choose("one-standard-error")
        best, evaluation = (
            trial.settings[number],
            trial.cross_fit("one-standard-error", seed=self._seed),
        )
        hits = self._find(trial.bias(number) if number else None, trial.evaluation(number))
        figures = self._figures(best.name, best.params, evaluation, hits)
        return figures, measure_gain(evaluation, automatic, seed=self._seed)

    def _figures(
        self, method: str, params: Mapping[str, Any], evaluation: Evaluation | None, hits: Hits
    ) -> Measured:
        hubs = self._judge(hits)
        if evaluation is None or self.raw is None:
            return Measured(method, dict(params), hubs)
        gain = measure_gain(evaluation, self.raw, seed=self._seed)
        is_other = evaluation.hits(1) != self.raw.hits(1)
        n_changed = len(np.unique(clusters_of(self.raw.truth)[is_other]))
        return Measured(method, dict(params), hubs, evaluation.recall(1), gain, n_changed)


def _fit(
    gallery: Embeddings, references: Embeddings | Bank, recent: Source | None, how: dict[str, Any]
) -> Bias:
    """What the command `fit` makes of the same inputs."""
    # The verdict says what these mean.
    with quiet("the past queries don't resemble"), quiet(LIKE_ITEMS):
        if recent is None:
            return NNN().fit(gallery, references, **how)
        return Corrector.fit(gallery, references, NNN(), recent=recent, **how).bias


def _expect(
    bias: Bias, moved: float, z: float | None, with_items: bool
) -> tuple[Expectation, tuple[str, ...]]:
    """What a bank promises without labels, and why no more."""
    reliability = bias.params.get("reliability", 0.0)
    reasons = []
    if with_items:
        reasons.append("the references are items, not queries, which does harm")
    elif z is not None and z > MISMATCH_WARNING_Z:
        reasons.append("the references are not like the queries, which may do harm")
    if is_mismatched(bias.params, bias.n_references or 0, len(bias)):
        reasons.append("the past queries don't resemble what this gallery is searched for")
    n_queries = bias.params.get("n_unique", bias.n_references or 0)
    if n_queries < FEW_QUERIES:
        reasons.append(f"{n_queries} past queries are too few to judge by")
    elif reliability < _LEAST_RELIABLE:
        reasons.append("the references do not tell hubs from noise")
    if moved < _LEAST_MOVED:
        return "little", (*reasons, "the correction changes next to nothing")
    return ("unclear" if reasons else "help"), tuple(reasons)


def _judge(
    expectation: Expectation, automatic: Measured, tuned: Measured | None, better: Interval | None
) -> tuple[Verdict, Literal["automatic", "tuned"] | None]:
    best = automatic
    recommended: Literal["automatic", "tuned"] = "automatic"
    if tuned is not None and tuned.params and tuned.is_sure and better and better.low > 0:
        best, recommended = tuned, "tuned"
    verdict: Verdict
    if best.gain is None:  # no labels
        verdict = _WITHOUT_LABELS[expectation]
    elif not best.is_sure:
        verdict = "leave" if expectation == "little" else "try"
    else:
        verdict = "correct" if best.gain.mean > 0 else "leave"
    return verdict, None if verdict == "leave" else recommended


def _count_needed(measured: Measured, n_queries: int) -> int | None:
    """Labelled queries that would tell one point of R@1 from none, where these are too few."""
    gain = measured.gain
    if gain is None or measured.is_sure:
        return None
    if not gain.includes_zero or gain.low == gain.high:  # so few changed that it has no width
        return _FEWEST_LABELS if n_queries < _FEWEST_LABELS else None
    half_width = (gain.high - gain.low) / 2
    if half_width <= _WORTH_SEEING:
        return None
    return math.ceil(n_queries * (half_width / _WORTH_SEEING) ** 2)


def _without_references(about: dict[str, Any]) -> Check:
    hubs = about["hubs"]
    # Small hubs don't show without labels, nor in fewer queries than items.
    if hubs.severity == "none" and hubs.k == 1 and about["recall_at_1"] is not None:
        return Check(verdict="leave", **about)
    lines = ("bank = nnnorm.Bank.of(queries)", "bias = nnnorm.NNN().fit(gallery, bank)")
    return Check(verdict="unknown", next=lines, **about)


def _next_lines(
    tuned: Measured | None, with_recent: bool, options: Mapping[str, Any]
) -> tuple[str, ...]:
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    also = f", normalize={options['normalize']}" if "normalize" in options else ""
    method = "nnnorm.NNN()"
    if tuned is not None:
        method = f"nnnorm.{make_method(tuned.method, **tuned.params)!r}"
    fit = f"bias = {method}.fit(gallery, references{more})"
    if with_recent:
        fit = f"bias = nnnorm.Corrector.fit(gallery, references, recent=recent{more}).bias"
    return fit, f"nnnorm.search(queries, gallery, bias, k=10{also})"
