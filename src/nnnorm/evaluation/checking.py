"""`check`: report hubs, whether a correction helps, which one, and what to do next.

Hubs are compared with a null model (`hubness`). Without labels, the expected effect is estimated
from the past queries: whether their halves agree (reliability), whether they resemble the queries
(z), and how the correction changes the hubs. With labels, the gain is measured on all queries.
Automatic settings use no labels, and tuned settings are cross-fitted. The gains equal those of
`evaluate`, `tune` and `compare`.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nnnorm import input_checks, methods
from nnnorm.bank import Bank
from nnnorm.bias import Bias
from nnnorm.dedup import Duplicates, drop_copies
from nnnorm.embeddings import EQUAL_NORMS, Source, open_embeddings
from nnnorm.errors import NNNormError, plural, quiet, warn
from nnnorm.evaluation.clusters import FAR_APART, find_clusters
from nnnorm.evaluation.hubness import Hubs, judge_hubs, open_ids, places_to_count
from nnnorm.evaluation.metrics import (
    Evaluation,
    asks_for_others,
    evaluate,
    open_truth,
    warn_of_overlap,
)
from nnnorm.evaluation.results import Interval, Record
from nnnorm.evaluation.tuning import Trial
from nnnorm.files import Progress
from nnnorm.methods import NNN, MethodName
from nnnorm.methods.base import describe_mismatch, is_mismatched
from nnnorm.ranking import describe_scales, search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

Verdict = Literal["correct", "try", "leave", "unknown"]
Expectation = Literal["help", "little", "unclear", "unknown"]
Recommended = Literal["automatic", "tuned", "mixed"] | None

_UNBROKEN = "\N{NO-BREAK SPACE}"  # between a name and its number
# The verdict without labels and the description of each expectation.
_EXPECTATIONS: dict[Any, tuple[Verdict, str]] = {
    "help": ("correct", "Likely to help if your queries cover the whole gallery"),
    "little": ("leave", "Little effect expected"),
    "unclear": ("try", "Unclear whether it helps"),
    "unknown": ("unknown", "Too little data to see an effect"),
}
# Six changes, all for the better, are the fewest that pass a sign test.
_FEWEST_CHANGED = 6
# If none of so many queries change, fewer than 1 % of all queries do (95 %).
_FEWEST_LABELS = 300
# Share of queries with a new top-1 item below which the effect doesn't matter.
_LEAST_MOVED = 0.005
# With fewer queries, the effect is unknown; with fewer past queries, the gain is small.
_FEW = 64
# An item in this share of the results is more likely corrupt than a hub.
_MOST_OF_A_HUB = 1 / 3
# If past queries contain almost all queries, the files were probably the same.
_MOST_OVERLAP = 0.9
# The gain in R@1 that a useful interval can distinguish from 0.
_WORTH_SEEING = 0.01


@dataclass(frozen=True)
class Measured(Record):
    """The effect of one correction on the queries; gains need labels."""

    method: MethodName
    params: dict[str, Any]  # empty if no correction was chosen
    hubs: Hubs
    moved: float  # share of queries with a different top-1 item
    recall_at_1: float | None = None
    gain: Interval | None = None
    n_changed: int | None = None  # right items with a query that gained or lost its hit

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes 0, and enough right items show the gain."""
        is_many = (self.n_changed or 0) >= _FEWEST_CHANGED
        return self.gain is not None and is_many and not self.gain.includes_zero


@dataclass(frozen=True)
class Mixed(Measured):
    """The effect of a correction that uses two clusters of unlabeled items as groups."""

    sizes: tuple[int, int] = (0, 0)
    items: tuple[int, int] = (0, 0)  # an item of each
    apart: float = 0.0  # difference of their mean biases, in standard deviations within a cluster
    has_both: bool = True  # whether both have right items


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """The recommendation of `check`, its numbers, and what to do next; `print` shows a report."""

    verdict: Verdict
    hubs: Hubs  # of the uncorrected search
    expectation: Expectation | None = None
    reasons: tuple[str, ...] = ()
    reliability: float | None = None
    density: float | None = None
    z: float | None = None
    recall_at_1: float | None = None
    automatic: Measured | None = None
    tuned: Measured | None = None
    mixed: Mixed | None = None
    recommended: Recommended = None
    better: Interval | None = None  # gain in R@1 of tuned over automatic settings
    # If past queries ask for other items: the gain among the items that the queries ask for.
    within: Interval | None = None
    overlap: float = 0.0  # share of the queries that are among the past queries
    n_queries: int
    n_gallery: int
    n_references: int | None = None
    n_unique: int | None = None
    norms: tuple[float, float] | None = None  # of the items, if they differ
    n_needed: int | None = None
    next: tuple[str, ...] = ()
    ids: tuple[Any, ...] | None = field(default=None, repr=False)

    @property
    def chosen(self) -> Measured | None:
        """The recommended correction."""
        return None if self.recommended is None else getattr(self, self.recommended)

    @property
    def is_mismatched(self) -> bool:
        """Whether the past queries come from another source, and no labels show that they help."""
        return self.verdict == "try" and (self.z or 0) > input_checks.MISMATCH_WARNING_Z

    @property
    def is_repetitive(self) -> bool:
        """Whether most past queries repeat others."""
        return 2 * (self.n_unique or math.inf) < (self.n_references or 0)

    @property
    def is_inflated(self) -> bool:
        """Whether past queries contain the queries, or the gain is smaller among their items."""
        is_smaller = self.within is not None and self.within.mean < _mean(self.automatic)
        return is_smaller or self.overlap > _MOST_OVERLAP

    def name_item(self, item: int) -> str:
        """Return the id of an item, or its row number if there are no ids."""
        return str(item if self.ids is None else self.ids[item])

    def to_dict(self) -> dict[str, Any]:
        """Return all results, ready for JSON."""
        found = super().to_dict()
        if self.ids is not None:
            found["hubs"]["id"] = self.name_item(self.hubs.item)
        return found

    def __repr__(self) -> str:
        sizes = f"{self.n_queries:,} queries, {self.n_gallery:,} items"
        return f"Check({self.verdict!r}, hubs {self.hubs.severity}, {sizes})"

    def __str__(self) -> str:
        lines = [f"{'' if place else 'Next':14}{line}" for place, line in enumerate(self.next)]
        return "\n".join([self.summary(), *lines])

    def summary(self, columns: int = 80) -> str:
        """Return the report without the lines of code to run next."""
        texts = {
            "Verdict": self._describe_verdict(),
            "Hubs": self._describe_hubs(),
            "Past queries": self._describe_references(),
            "Effect": self._describe_effect(),
        }
        if self.mixed is not None:
            texts["Groups"] = self._describe_groups(self.mixed)
        wrapper = textwrap.TextWrapper(columns, subsequent_indent=14 * " ", break_on_hyphens=False)
        lines = [wrapper.fill(f"{label:14}{text}") for label, text in texts.items()]
        return "\n".join(lines).replace(_UNBROKEN, " ")

    def _describe_verdict(self) -> str:
        text = self._describe_choice()
        if self.norms is not None and self.recommended:
            low, high = self.norms
            text += (
                f" Your items have norms from {low:.3g} to {high:.3g}. If your scores are cosines, "
                "run this again with --normalize (normalize=True)."
            )
        return text

    def _describe_choice(self) -> str:
        chosen = self.chosen
        if self.n_references is None and self.verdict == "unknown":
            return "Unknown without past queries. Save today's queries to use them later."
        if self.verdict == "unknown":
            few = "past queries" if (self.n_unique or 0) < _FEW else "queries"
            return f"Unknown with so few {few}. Collect a few hundred, and run this again."
        if chosen is None:
            why = "there are no hubs to remove" if self.expectation is None else "no gain is shown"
            if self.automatic and self.automatic.is_sure and _mean(self.automatic) < 0:
                why = "it makes results worse here"
            elif self.expectation == "little":
                why = "it would change almost nothing"
            return f"No correction needed: {why}."
        setting = methods.describe_setting(chosen.method, chosen.params, ", ")
        label = methods.label_method(chosen.method)
        how = f"{label}(), the automatic settings ({setting})"
        if self.recommended == "tuned":
            how = f"{label}({setting}), tuned on your labels"
        elif self.recommended == "mixed":
            how = f"{label} with groups"
        if self.verdict == "correct":
            return f"Use {how}."
        if self.is_mismatched:
            return "Don't use these past queries. Replace them, or add recent queries of your own."
        how += "" if self.recommended == "mixed" else ","
        if self.recall_at_1 is None:
            return f"Try {how} and label some queries to see whether it helps."
        why = "its gain may be inflated" if self.is_inflated else "no gain is shown yet"
        return f"Try {how} in an A/B test; {why}."

    def _describe_groups(self, mixed: Mixed) -> str:
        sizes, items = mixed.sizes, [self.name_item(item) for item in mixed.items]
        text = (
            f"Your items form two groups: {sizes[0]:,} like item {items[0]} and {sizes[1]:,} like "
            f"item {items[1]}. Their mean biases differ by {mixed.apart:.1f} times the spread "
            "within a group. Pass one label per item with --groups (groups=). With these two "
            f"groups, {100 * mixed.moved:.0f} % of the queries get a different top-1"
        )
        if mixed.gain is not None:
            text += f". Gain in R@1, in points: {_show_gain(mixed.gain)}"
        if not mixed.has_both:
            text += (
                ". The right items of all labeled queries are in one group, so R@1 can't show the "
                "effect on the other. Label queries for both"
            )
        return f"{text}."

    def _describe_hubs(self) -> str:
        hubs = self.hubs
        found = f"None visible in {plural(self.n_queries, 'query')}"
        text = (
            f"{found if hubs.severity == 'none' else hubs.severity.capitalize()}. "
            f"Item {self.name_item(hubs.item)} is {hubs.places} for "
            f"{plural(hubs.most, 'query')} ({hubs.most_by_chance:,.0f} by chance); "
            f"{hubs.n_never:,} of {self.n_gallery:,} items are never {hubs.places} "
            f"({hubs.n_never_by_chance:,.0f} by chance)."
        )
        if hubs.most > max(_MOST_OF_A_HUB * self.n_queries, 3 * hubs.most_by_chance):
            text += " So many hits may mean that the item is corrupt: run nnnorm scan."
        if hubs.k > 1:
            text += " To see small hubs, pass about as many queries as items."
        elif hubs.severity == "none" and self.recall_at_1 is None:
            text += " Without labels, small hubs can't be seen."
        return text

    def _describe_references(self) -> str:
        if self.n_references is None:
            return "None given."
        measured = [
            f"{name}{_UNBROKEN}{getattr(self, name):.2f}".replace("-", "−")
            for name in ("reliability", "density", "z")
            if getattr(self, name) is not None
        ]
        why = ", and ".join(self.reasons) or "they match your queries and items"
        unique = f", {self.n_unique:,} of them unique" if self.is_repetitive else ""
        return f"{self.n_references:,}{unique}. {why[0].upper()}{why[1:]} ({', '.join(measured)})."

    def _describe_effect(self) -> str:
        if self.expectation is None or self.automatic is None:
            return "Unknown without past queries."
        after, gain = self.automatic.hubs, self.automatic.gain
        text = (
            f"{100 * self.automatic.moved:.0f} % of the queries get a different top-1. The most "
            f"retrieved item goes from {plural(self.hubs.most, 'hit')} to {after.most:,}, and "
            f"items without hits from {self.hubs.n_never:,} to {after.n_never:,}."
        )
        if self.mixed is not None:
            text = f"Without groups, {text}"
        if gain is None:
            if self.is_repetitive:
                text += (
                    " If a few items dominate your traffic, the correction may push them down: "
                    "label some queries, or add clicks."
                )
            return f"{_EXPECTATIONS[self.expectation][1]}: {text}"
        gains = f"R@1 is {100 * (self.recall_at_1 or 0):.1f} %. Gain, in points: {_show_gain(gain)}"
        gains += " with automatic settings"
        if self.tuned is not None and self.tuned.gain is not None:
            none = "" if self.tuned.params else ", which is no correction"
            gains += f", {_show_gain(self.tuned.gain)} with tuned settings (cross-fitted){none}"
        text = f"{gains}. {text}"
        if self.within is not None:
            which = "gain" if self.is_inflated else "tuned gain"
            text += (
                f" The {which} may be inflated, because your past queries and these queries ask "
                "for different items. Among the items that these queries ask for, automatic "
                f"settings gain {_show_gain(self.within)}."
            )
        if not self.automatic.is_sure and not gain.includes_zero:
            text += f" Only {self.automatic.n_changed} right items show it, too few to be sure."
        if self.n_needed is not None and not (self.chosen and self.chosen.is_sure):
            rounded = float(f"{self.n_needed:.2g}")
            text += (
                f" Too few labels: to detect a gain of 1 point, you need about {rounded:,.0f} "
                f"queries, not {self.n_queries:,}."
            )
        return text


def _show_gain(gain: Interval) -> str:
    return f"{gain.show()}{' (includes 0)' if gain.includes_zero else ''}"


def _mean(measured: Measured | None) -> float:
    return 0.0 if measured is None or measured.gain is None else measured.gain.mean


def check(
    gallery: Source,
    references: Source | Bank | None = None,
    *,
    queries: Source,
    truth: Any = None,
    groups: npt.ArrayLike | None = None,
    ids: Sequence[Any] | None = None,
    duplicates: Duplicates = "drop",
    allow_gallery_rows: bool = False,
    seed: int = 0,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Check:
    """Measure the hubs of a search, and recommend a correction or none.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : Bank, array or path, shape (n_references, dim), optional
        Past queries. Without them, only hubs are measured.
    queries : array or path, shape (n_queries, dim)
        A sample of today's queries. They shouldn't be among the references.
    truth : array or list, optional
        The right items of the queries, to measure the gain; see `open_truth`.
    groups : array, shape (n_gallery,), optional
        One label per item of a mixed gallery; see `Method.fit`. Without labels, `mixed` has two
        clusters of items if their mean biases are far apart.
    ids : sequence, optional
        Ids of the items, shown instead of row numbers; by default those of the gallery, if any.
    duplicates, allow_gallery_rows : optional
        Whether near-duplicates count once, and whether references may be rows of the gallery; see
        `Method.fit`.
    seed : int
        Random seed of the null model, of the folds and of the intervals.
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
    sizes = {"n_queries": len(asked), "n_gallery": len(items)}
    right = None if truth is None else open_truth(truth, **sizes)
    k = places_to_count(**sizes)
    run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}

    def run_search(
        bias: Bias | None, found: Evaluation | None = None
    ) -> tuple[Evaluation | None, npt.NDArray[Any]]:
        """Search with a correction; return the evaluation, if there are labels, and the hits."""
        if found is None and right is not None:
            found = evaluate(asked, items, bias, truth=right, **run)
        if found is not None and k == 1:
            return found, found.top1[:, None]
        return found, search(asked, items, bias, k=k, **run).indices

    def measure(found: Evaluation | None, hits: npt.NDArray[Any]) -> dict[str, Any]:
        """Compare a corrected search with the uncorrected one."""
        hubs = judge_hubs(hits, len(items), truth=right, queries=asked, seed=seed)
        about: dict[str, Any] = {"hubs": hubs, "moved": float((hits[:, 0] != firsts).mean())}
        if raw is not None and found is not None:
            is_other = found.hits(1) != raw.hits(1)
            about["n_changed"] = len(np.unique(raw.truth.clusters[is_other]))
            about |= {"recall_at_1": found.recall(1), "gain": found.gain_over(raw, seed=seed)}
        return about

    raw, hits = run_search(None)
    firsts = hits[:, 0]
    as_it_is = judge_hubs(hits, len(items), truth=right, queries=asked, seed=seed)
    recall = None if raw is None else raw.recall(1)
    about: dict[str, Any] = {"hubs": as_it_is, "recall_at_1": recall, **sizes}
    about["ids"] = open_ids(ids, items)
    if references is None:
        # Small hubs don't show without labels, nor in fewer queries than items.
        if as_it_is.severity == "none" and k == 1 and right is not None:
            return Check(verdict="leave", **about)
        lines = ("bank = nnnorm.Bank.of(queries)", "nnnorm.Corrector.fit(gallery, bank)")
        return Check(verdict="unknown", next=lines, **about)
    bank = methods.open_references(references, normalize=normalize)
    about["overlap"] = overlap = warn_of_overlap(bank, asked)
    if problem := describe_scales(bank.norm_range, asked):
        raise NNNormError(problem + input_checks.hint_of_swap(asked, items))
    fit: dict[str, Any] = {"duplicates": duplicates, "allow_gallery_rows": allow_gallery_rows}
    # The verdict covers these warnings.
    with quiet("the past queries don't match"), quiet(input_checks.LIKE_ITEMS):
        bias = NNN().fit(items, bank, groups=groups, **fit, **run)
    unrelated = asked if right is None else asked.subset(right.one_per_cluster)
    z = input_checks.mismatch_z(bank, unrelated)
    with_items = not allow_gallery_rows and input_checks.warn_of_items(bank, items, asked)
    if z > input_checks.MISMATCH_WARNING_Z and (hint := input_checks.hint_of_swap(asked, items)):
        warn(f"{bank.name} do not look like the queries{hint}")
    corrected, hits = run_search(bias)
    automatic = Measured(bias.method, dict(bias.params), **measure(corrected, hits))
    doubts = []
    if overlap > _MOST_OVERLAP:
        doubts.append("they contain your queries, so their effect may be overstated")
    if with_items:
        doubts.append("they are items, not queries, which makes results worse")
    elif z > input_checks.MISMATCH_WARNING_Z:
        doubts.append("they don't resemble your queries, which may make results worse")
    expectation, reasons = _expect(bias, automatic, doubts, len(asked))
    about |= {"expectation": expectation, "automatic": automatic}
    labels, apart = None, 0.0
    if groups is None:
        labels, apart = find_clusters(items, bank, bias.reference_k or 1)
    if labels is not None and apart > FAR_APART:
        with quiet():
            named = np.where(labels, "second", "first")
            bias = NNN().fit(items, bank, groups=named, **fit, **run)
        n_second = int(labels.sum())
        about["mixed"] = mixed = Mixed(
            bias.method,
            dict(bias.params),
            **measure(*run_search(bias)),
            sizes=(len(items) - n_second, n_second),
            items=(int(labels.argmin()), int(labels.argmax())),
            apart=apart,
            has_both=right is None or len(np.unique(labels[right.items])) == 2,
        )
        # A difference between groups looks like mismatched past queries.
        reasons = _expect(bias, mixed, doubts, len(asked))[1]
    elif right is not None and raw is not None and corrected is not None:
        with quiet():  # the same warnings as above
            used = drop_copies(bank, duplicates, progress)
        labeled = methods.open_groups(groups, len(items))
        trial = Trial([NNN().name], items, used, None, asked, right, groups=labeled, **run)
        number = trial.choose("one-standard-error")
        crossed = trial.cross_fit("one-standard-error", seed=seed)
        best = trial.settings[number]
        _, hits = run_search(best.bias() if number else None, trial.evaluation(number))
        params = {**best.params, **({} if best.between == 1 else {"between": best.between})}
        about["tuned"] = Measured(best.method.name, params, **measure(crossed, hits))
        about["better"] = crossed.gain_over(corrected, seed=seed)
        if asks_for_others(bank, items, raw, **run):
            rows = np.unique(right.items)
            some = replace(right, items=np.searchsorted(rows, right.items))
            known = None if groups is None else np.asarray(groups)[rows]
            asked_for = items.subset(rows)
            with quiet():
                own = NNN().fit(asked_for, bank, groups=known, **fit, **run)
            before, after = (
                evaluate(asked, asked_for, one, truth=some, **run) for one in (None, own)
            )
            about["within"] = after.gain_over(before, seed=seed)
    low, high = items.norm_range
    report = Check(
        verdict="unknown",
        reasons=reasons,
        reliability=bias.params.get("reliability"),
        density=bias.params.get("density"),
        z=None if math.isnan(z) else z,
        n_references=bias.n_references,
        n_unique=bias.params.get("n_unique"),
        norms=(low, high) if normalize is None and high - low > EQUAL_NORMS * high else None,
        n_needed=_count_needed(automatic, len(asked)),
        **about,
    )
    verdict, recommended = _choose_verdict(report, automatic)
    report = replace(report, verdict=verdict, recommended=recommended)
    if recommended is None:
        return report
    options: dict[str, Any] = {"recent": "queries"} if report.is_mismatched else {}
    options |= {"groups": "groups"} if groups is not None or recommended == "mixed" else {}
    options |= {} if normalize is None else {"normalize": normalize}
    is_tuned = recommended == "tuned"
    options |= {"duplicates": repr(duplicates)} if is_tuned or duplicates == "keep" else {}
    options |= {"allow_gallery_rows": True} if allow_gallery_rows else {}
    return replace(report, next=_next_lines(report.tuned if is_tuned else None, options))


def _expect(
    bias: Bias, measured: Measured, doubts: list[str], n_queries: int
) -> tuple[Expectation, tuple[str, ...]]:
    """Return the expected effect without labels, and all reasons to doubt it."""
    reliability = bias.params.get("reliability", 0.0)
    reasons = list(doubts)
    if is_mismatched(bias):
        reasons.append(f"they {describe_mismatch(bias)}")
    n_unique = bias.params.get("n_unique", bias.n_references or 0)
    if n_unique < _FEW:
        few = "they" if n_unique == bias.n_references else f"{n_unique:,} unique queries"
        reasons.append(f"{few} are too few for more than a small gain")
    elif reliability < input_checks.LEAST_RELIABLE:
        reasons.append("they can't distinguish hubs from noise")
    if measured.moved < _LEAST_MOVED and min(n_unique, n_queries) < _FEW:
        return "unknown", tuple(reasons)
    if measured.moved < _LEAST_MOVED:
        return "little", (*reasons, "the correction changes almost nothing")
    return ("unclear" if reasons else "help"), tuple(reasons)


def _choose_verdict(found: Check, automatic: Measured) -> tuple[Verdict, Recommended]:
    tuned, mixed, within = found.tuned, found.mixed, found.within
    if mixed is not None and mixed.gain is None:
        return "try", "mixed"
    best = automatic
    recommended: Recommended = "automatic"
    # If past queries ask for other items, tuning chooses too large a weight.
    is_better = found.better is not None and found.better.low > 0
    is_better = within is None and (is_better or not automatic.is_sure)
    if is_better and tuned is not None and tuned.params and tuned.is_sure:
        best, recommended = tuned, "tuned"
    if mixed is not None and mixed.is_sure and _mean(mixed) > max(0.0, _mean(automatic)):
        best, recommended = mixed, "mixed"
    verdict, _ = _EXPECTATIONS[found.expectation]
    if best.is_sure:
        verdict = "correct" if _mean(best) > 0 else "leave"
    elif best.gain is not None and verdict != "unknown":
        verdict = "leave" if found.expectation == "little" else "try"
    is_seen = found.overlap > _MOST_OVERLAP
    if verdict == "correct" and (is_seen or (within is not None and within.low <= 0)):
        verdict = "try"
    # Mismatched past queries that change nothing show nothing about others.
    if not best.is_sure and (found.z or 0) > input_checks.MISMATCH_WARNING_Z:
        verdict = "try"
    return verdict, None if verdict in ("leave", "unknown") else recommended


def _count_needed(measured: Measured, n_queries: int) -> int | None:
    """Return how many labeled queries can show a gain of a point of R@1; None if these can."""
    gain = measured.gain
    if gain is None or measured.is_sure:
        return None
    if not gain.includes_zero or gain.low == gain.high:  # too few changes for an interval
        return _FEWEST_LABELS if n_queries < _FEWEST_LABELS else None
    half_width = (gain.high - gain.low) / 2
    if half_width <= _WORTH_SEEING:
        return None
    return math.ceil(n_queries * (half_width / _WORTH_SEEING) ** 2)


def _next_lines(tuned: Measured | None, options: dict[str, Any]) -> tuple[str, str]:
    params = {} if tuned is None else dict(tuned.params)
    options |= {"between": params.pop("between")} if "between" in params else {}
    more = "".join(f", {name}={value}" for name, value in options.items())
    also = f", normalize={options['normalize']}" if "normalize" in options else ""
    method = "" if tuned is None else f", nnnorm.{methods.make_method(tuned.method, **params)!r}"
    fit = f"corrector = nnnorm.Corrector.fit(gallery, references{method}{more})"
    return fit, f"nnnorm.search(queries, gallery, corrector, k=10{also})"
