"""Results as tables: `Table`, for a terminal and Markdown, and one function per result.

Recalls are shown in percent, differences in points, with the interval in brackets. If a terminal is
too narrow for a table, optional columns are left out, or groups of columns are printed below each
other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnnorm import evaluation
from nnnorm.calibration import Calibration
from nnnorm.dedup import describe_size
from nnnorm.errors import plural, printable
from nnnorm.evaluation.hubness import name_places
from nnnorm.methods import NO_CORRECTION, describe_setting

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_LONG = 24  # letters: longer cells are wrapped between words if need be
_NOT_CHOSEN = "not chosen"
_INCLUDES_ZERO = "An interval that includes 0 shows no gain."
_RULES = {"max": "the maximum of R@1", "one-standard-error": "the one-standard-error rule"}
# With more queries than this, an audit lists only the most uneven ones.
MANY_QUERIES, _MOST_UNEVEN = 40, 10
LIMITS = (
    "What this does not show: whether the groups are right for the items, what happens beyond "
    "these queries and these items, or that a search is fair. An average near 0 can hide queries "
    "that lean opposite ways: see |bias|."
)


@dataclass(frozen=True)
class Table:
    """A titled table of strings, with notes below it.

    A column may belong to a group of columns, and a cell may be the best of its kind, which is
    bold. Optional columns are left out if a terminal is narrow.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    bold: frozenset[tuple[int, int]] = frozenset()
    optional: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Make every text printable: names of items and groups come from data."""
        for name in ("columns", "notes", "groups"):
            object.__setattr__(self, name, tuple(map(printable, getattr(self, name))))
        object.__setattr__(self, "rows", tuple(tuple(map(printable, row)) for row in self.rows))
        object.__setattr__(self, "title", printable(self.title))

    def to_markdown(self) -> str:
        """Render as a Markdown table with its title and notes."""
        rule = "|".join(":--" if place == 0 else "--:" for place in range(len(self.columns)))
        lines = [f"**{self.title}**", "", f"| {' | '.join(self._headings())} |", f"|{rule}|"]
        for number, row in enumerate(self.rows):
            cells = [cell.replace("|", "/") for cell in row]
            cells = [f"**{c}**" if (number, n) in self.bold else c for n, c in enumerate(cells)]
            lines.append(f"| {' | '.join(cells)} |")
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)

    def print(self) -> None:
        """Print to the terminal; groups of columns that do not fit stand below each other."""
        from rich.console import Console

        # A name in square brackets is a name, not a style.
        console = Console(highlight=False, markup=False, emoji=False)
        if self.title:  # a title of the table itself would wrap to the width of the table
            console.print(self.title, style="bold")
        every = list(range(len(self.columns))) if self.rows else []
        widths = self._widths()
        if sum(min(width, _LONG) + 2 for width in widths) - 2 <= console.width:
            console.print(self._to_rich(every, widths))
        elif not self.groups:
            needed = [n for n in every if self.columns[n] not in self.optional]
            console.print(self._to_rich(needed, widths))
        else:
            for group in dict.fromkeys(self.groups[1:]):
                shown = [n for n in every if self.groups[n] in ("", group)]
                console.print(group, self._to_rich(shown, widths), sep="\n")
        if self.notes:
            console.print("", *self.notes, sep="\n")

    def _headings(self) -> list[str]:
        """The headings of the columns, with that of their group."""
        both = zip(self.groups or self.columns, self.columns, strict=True)
        return [f"{group}: {name}" if self.groups and group else name for group, name in both]

    def _widths(self) -> list[int]:
        """The width of each column; headings are wrapped if they don't fit in 80 columns."""
        from rich.cells import cell_len

        columns = list(zip(self._headings(), *self.rows, strict=True))
        whole = [max(map(cell_len, column)) for column in columns]
        if sum(whole) + 2 * len(whole) <= 80:
            return whole
        return [max(map(cell_len, [*heading.split(), *cells])) for heading, *cells in columns]

    def _to_rich(self, places: Sequence[int], widths: Sequence[int]) -> "RichTable":
        """Some columns, without the rows that have nothing in them."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
        table = RichTable(show_edge=False, pad_edge=False, **look)
        headings = self._headings() if len(places) == len(self.columns) else self.columns
        for place in places:
            cells = [row[place] for row in self.rows]
            is_text = any(cell[:1].isalpha() for cell in cells) or widths[place] > _LONG
            if place == 0 or is_text:
                table.add_column(headings[place], overflow="fold")
            else:
                table.add_column(headings[place], justify="right", width=widths[place])
        for number, row in enumerate(self.rows):
            if any(row[place] for place in places[1:]):
                bold = ("bold" if (number, place) in self.bold else "" for place in places)
                table.add_row(*(Text(row[n], style) for n, style in zip(places, bold, strict=True)))
        return table


# --- methods, banks, settings --------------------------------------------------------------------


def tabulate_results(
    results: Sequence[evaluation.Result], title: str, notes: Sequence[str] = ()
) -> Table:
    """Make one row per correction: R@K, the gain with its interval, and hubness."""
    rows = []
    for result in results:
        setting = describe_setting(result.method, result.params)
        if result.gain is not None and not result.params and result.method != NO_CORRECTION:
            setting = _NOT_CHOSEN
        cells = *_recalls(result), show_gain(result.gain), str(result.hubness.max)
        rows.append((result.method, setting, *cells))
    notes = [*notes, f"most: how often the most retrieved item is top-1. {_INCLUDES_ZERO}"]
    if any(row[1] == _NOT_CHOSEN for row in rows):
        notes.append(f"{_NOT_CHOSEN}: no setting did better than no correction, which is used.")
    columns = ("method", "setting", "R@1", "R@5", "R@10", "gain in R@1", "most")
    return Table(title, columns, tuple(rows), tuple(notes), optional=("R@5",))


def tabulate_comparison(comparison: evaluation.Comparison) -> Table:
    """Make a table of methods, one row each."""
    title = (
        f"Methods on {comparison.n_queries:,} test queries, {comparison.n_gallery:,} items, "
        f"{_bank_size(comparison)}"
    )
    rule = _RULES[comparison.select]
    tuned = f"tuned on {comparison.n_validation:,} validation queries ({rule})"
    if not comparison.n_validation:
        tuned = (
            "cross-fitted: each fifth of the queries uses the setting chosen on the others "
            f"({rule}); the setting shown was chosen on all of them"
        )
    note = (
        f"Each method {tuned}. R@K in %, gains in points with 95 % paired intervals, queries of "
        "one item drawn together."
    )
    return tabulate_results(comparison.results, title, [note])


def tabulate_tuning(tuning: evaluation.Tuning) -> Table:
    """Make a table of no correction and the chosen settings."""
    chosen = {"one standard error": tuning.best_by_rule, "maximum": tuning.best_by_maximum}
    if tuning.best_by_rule is tuning.best_by_maximum:
        chosen = {"both rules": tuning.best_by_rule}
    elif tuning.between not in (None, 1):  # chosen for the best alone: no other is comparable
        chosen = {mark: cell for mark, cell in chosen.items() if cell is tuning.best}
    if tuning.uncorrected not in chosen.values():
        chosen = {"": tuning.uncorrected, **chosen}
    rows = []
    for mark, cell in chosen.items():
        setting = describe_setting(cell.method, cell.params)
        rows.append((cell.method, setting, *_recalls(cell), mark))
    title = f"{len(tuning.grid):,} settings on {tuning.n_queries:,} queries, {_bank_size(tuning)}"
    notes = []
    if tuning.between is not None and tuning.best.method != NO_CORRECTION:
        notes.append(f"Weight of the differences between groups: {tuning.between:g}.")
    if tuning.popularity is not None:
        weight, recall = tuning.popularity.weight, _percent(tuning.popularity.recall_at_1)
        notes.append(f"Popularity from clicks: weight {weight:g}, with which R@1 is {recall}.")
    best = f"{tuning.best.method} {describe_setting(tuning.best.method, tuning.best.params)}"
    if tuning.best.method == NO_CORRECTION:
        best = "no correction; no setting is better"
    elif tuning.select != "max" and tuning.n_near > 1:
        best += f", of {tuning.n_near:,} settings within one standard error of the best"
    notes.append(f"Chosen by {_RULES[tuning.select]}: {best.strip()}.")
    if tuning.best.method != NO_CORRECTION or tuning.popularity is not None:
        notes.append(
            f"In-sample, on the queries it was chosen on: {show_gain(tuning.gain)} points of R@1."
        )
    if tuning.cross_fitted is not None:
        notes.append(
            "Cross-fitted, each fifth of the queries with the setting chosen on the others: "
            f"{show_gain(tuning.cross_fitted)}. {_INCLUDES_ZERO}"
        )
    columns = ("method", "setting", "R@1", "R@5", "R@10", "chosen by")
    return Table(title, columns, tuple(rows), tuple(notes))


# --- hubs, drift, outliers, check ----------------------------------------------------------------


def tabulate_diagnosis(diagnosis: evaluation.Diagnosis) -> tuple[Table, Table]:
    """Make a table of how hits are spread, and one of the hubs."""
    null = diagnosis.null_model
    statistics = [some for some in (diagnosis.before, diagnosis.after) if some]
    models = [some for some in (null, diagnosis.null_model_after) if some]
    found = " before, ".join(model.severity for model in models).replace("none", "none visible")
    when = " after" if len(models) > 1 else ""
    notes = [f"Hubs in {plural(diagnosis.n_queries, 'query')}: {found}{when}."]
    if diagnosis.k > 1 and diagnosis.n_queries < diagnosis.n_gallery:
        notes.append(
            "With fewer queries than items, the top 10 are counted. To see small hubs, pass about "
            "as many queries as items."
        )
    most = f"hits of the most retrieved item; by chance {null.most_by_chance:,.0f}"
    never = f"items that are never retrieved; by chance {null.n_never_by_chance:,.0f}"
    shares = (f"{100 * some.hub_occurrence:.1f} %" for some in statistics)
    rows = (
        (most, *(f"{model.most:,}" for model in models)),
        (never, *(f"{model.n_never:,}" for model in models)),
        ("hits that go to hubs (at least twice the mean)", *shares),
        ("hits beyond chance", *(f"{100 * model.beyond_chance:.1f} %" for model in models)),
    )
    if diagnosis.outliers:
        listed = ", ".join(map(diagnosis.name_item, diagnosis.outliers[:10]))
        more = ", …" if len(diagnosis.outliers) > 10 else ""
        notes.append(
            f"{len(diagnosis.outliers)} items have a bias far from all others (corrupt, or very "
            f"strong hubs): {listed}{more}."
        )
    title = (
        f"How often each of {diagnosis.n_gallery:,} items is {null.places} for "
        f"{plural(diagnosis.n_queries, 'query')}"
    )
    columns = ("", "before", "after")[: 1 + len(models)]
    hubs = diagnosis.hubs
    wrong = [hub.wrong_share for hub in hubs if hub.wrong_share is not None]
    cells = {
        "item": [diagnosis.name_item(hub.item) for hub in hubs],
        "hits": [f"{hub.occurrences:,}" for hub in hubs],
        "hits after": [f"{hits:,}" for hits in diagnosis.hubs_after],
        "wrong hits": [f"{100 * share:.0f} %" for share in wrong],
        "z-score of bias": [_signed(hub.bias_z) for hub in hubs if hub.bias_z is not None],
    }
    known = {column: values for column, values in cells.items() if values}
    listed_hubs = _of_columns(f"The {len(hubs)} most retrieved items", known)
    return Table(title, columns, rows, tuple(notes)), listed_hubs


def tabulate_drift(drift: evaluation.Drift) -> Table:
    """Create a table that compares today's queries with a corrector, the verdict first."""
    cells = {"z of today's and past queries, 0 if alike": _signed(drift.z).removeprefix("+")}
    if drift.agreement is not None:
        cells["agreement of their biases"] = f"{drift.agreement:.2f}".replace("-", "−")
    for when, share in (
        ("without a correction", drift.hub_share_uncorrected),
        ("with this corrector", drift.hub_share),
        ("after a refit", drift.hub_share_refitted),
    ):
        cells[f"hits that go to hubs {when}"] = f"{100 * share:.1f} %"
    verdict = drift.verdict.capitalize()
    title = f"{verdict}: {drift.n_queries:,} queries, {drift.n_references:,} past queries"
    notes = [f"{reason[0].upper()}{reason[1:]}." for reason in drift.reasons]
    notes.append(
        f"Hubs: items that are {name_places(drift.k)} at least twice as often as average, of "
        f"{drift.n_items:,} items (without --gallery, a sample). Compare shares only for equal "
        "numbers of queries and items."
    )
    return Table(title, ("", "today"), tuple(cells.items()), tuple(notes))


def tabulate_calibration(calibration: Calibration) -> Table:
    """Make a row per bound: min_confidence, and what it means."""
    curve, found = calibration.curve, calibration
    if curve is None:
        title = f"Confidence of {found.n_queries:,} queries, without labels"
        bounds = [found.quantile(share) for share in (0.01, 0.05, 0.1, 0.25, 0.5)]
    else:
        right = f"{100 * curve.n_right / curve.n_labels:.0f} % of the first hits right"
        title = f"Confidence of {found.n_queries:,} queries, {right}"
        bounds = [] if curve.slope <= 0 else [found.threshold(p) for p in (0.3, 0.5, 0.7, 0.8, 0.9)]
    columns = {"min confidence": [f"{bound:.4g}" for bound in bounds]}
    notes = []
    if curve is not None:
        columns["first hit right"] = [f"{100 * float(found.probability(b)):.0f} %" for b in bounds]
        errors = f"Brier score {curve.brier_score:.3f}, calibration error"
        notes = [f"{errors} {curve.calibration_error:.3f} on labels held out."]
    columns["queries below"] = [f"{100 * float(found.share_below(b)):.0f} %" for b in bounds]
    return _of_columns(title, columns, notes)


def tabulate_scan(scan: evaluation.Scan) -> Table:
    """Make one row per outlier: verdict, score, and the reasons."""
    n_bad, n_watched = scan.count("remove"), scan.count("watch")
    found = f"{n_bad:,} to remove" if n_bad else "Nothing to remove"
    found += f" and {n_watched:,} to watch" if n_watched else ""
    title = f"{found} among {scan.n_items:,} items"
    rows = []
    for outlier in scan.outliers:
        score = "" if outlier.score is None else f"{outlier.score:.1f}"
        rows.append((str(outlier.id), score, outlier.verdict, "; ".join(outlier.reasons)))
    notes: tuple[str, ...] = ()
    if scan.budget is not None and sum(bool(row[1]) for row in rows) >= scan.budget:
        notes = (f"All {scan.budget:,} alerts of the budget are used; a larger one may show more.",)
    return Table(title, ("id", "score", "verdict", "reasons"), tuple(rows), notes)


def tabulate_check(check: evaluation.Check) -> Table:
    """Make a row per search: uncorrected, corrected, and by chance."""
    searches = {"uncorrected": check, "NNN, automatic": check.automatic, "NNN, tuned": check.tuned}
    shown = {name: one for name, one in searches.items() if one is not None}
    hubs, has_truth = check.hubs, check.recall_at_1 is not None
    columns = {"": [*shown, "by chance"]}
    if has_truth:
        columns["R@1"] = [*(_percent(one.recall_at_1) for one in shown.values()), ""]
        gains = (show_gain(getattr(one, "gain", None)) for one in shown.values())
        columns["gain in R@1"] = [*gains, ""]
    all_hubs = [one.hubs for one in shown.values()]
    columns |= {
        "most": [*(f"{one.most:,}" for one in all_hubs), f"{hubs.most_by_chance:.0f}"],
        "never": [*(f"{one.n_never:,}" for one in all_hubs), f"{hubs.n_never_by_chance:,.0f}"],
        "beyond chance": [*(f"{100 * one.beyond_chance:.0f} %" for one in all_hubs), "0 %"],
    }
    title = f"{plural(check.n_queries, 'query')}, {check.n_gallery:,} items"
    if check.n_references is not None:
        title += f", {plural(check.n_references, 'past query')}"
    notes = (
        f"most: hits of the most retrieved item, {check.hubs.places}; never: items without hits. "
        f"By chance: every {'wrong ' if has_truth else ''}hit is assigned to a random item "
        "(queries that belong together, to the same one). Beyond chance: the share of these hits "
        "that would have to move to look random.",
        "R@1: queries with a right item as top-1, %. Gains in points, with 95 % paired intervals, "
        "queries of one item drawn together."
        if has_truth
        else "Popular items also look like hubs here.",
    )
    return _of_columns(title, columns, notes)


# --- audits --------------------------------------------------------------------------------------


def tabulate_audit(audit: evaluation.Audit) -> tuple[Table, Table]:
    """Make a table of the means with their intervals, and one of the single queries."""
    with_after = bool(audit.after)
    rows = []
    for line in audit.means:
        row = [line.metric, line.before.show(3, 1, sign="")]
        if line.after is not None and line.change is not None:
            row += [line.after.show(3, 1, sign=""), line.change.show(3, 1)]
        rows.append(tuple(row))
    sign = f"bias@k is ({' − '.join(audit.difference)})/k. " if audit.difference else ""
    fair = ", ".join(f"{group} {share:.3g}" for group, share in audit.target.items())
    paired = "; changes are paired" if with_after else ""
    note = f"{sign}Target shares: {fair}. 95 % intervals by resampling queries{paired}."
    title = f"Groups retrieved for {len(audit.queries):,} queries out of {audit.n_gallery:,} items"
    columns = ("mean over queries", "before", *(("after", "change") if with_after else ()))
    means = Table(title, columns, tuple(rows), (note, LIMITS), optional=("after",))
    return means, _tabulate_queries(audit)


def _tabulate_queries(audit: evaluation.Audit) -> Table:
    shown = [line.metric for line in audit.means if line.metric.startswith(("bias@", "precision"))]
    shown = shown or [line.metric for line in audit.means if line.metric.startswith("max skew")]
    order = np.arange(len(audit.queries))
    title = "Query by query"
    if len(order) > MANY_QUERIES:
        order = np.argsort(-np.abs(audit.before[shown[0]]), kind="stable")[:_MOST_UNEVEN]
        title = f"The {_MOST_UNEVEN} queries with the largest {shown[0]}, of {len(audit.queries):,}"
    steps = " before → after" if audit.after else ""
    both = [some for some in (audit.before, audit.after) if some]
    rows = []
    for query in order:
        cells = [" → ".join(f"{some[metric][query]:.2f}" for some in both) for metric in shown]
        rows.append((audit.queries[query], *(cell.replace("-", "−") for cell in cells)))
    return Table(title, ("query", *(f"{metric}{steps}" for metric in shown)), tuple(rows))


# --- numbers -------------------------------------------------------------------------------------


def _of_columns(
    title: str, columns: Mapping[str, Sequence[str]], notes: Sequence[str] = ()
) -> Table:
    return Table(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), tuple(notes))


def _bank_size(result: evaluation.Comparison | evaluation.Tuning) -> str:
    return describe_size(result.n_references, result.n_unique, result.references_sampled)


def _recalls(result: evaluation.Result | evaluation.Cell) -> tuple[str, ...]:
    return tuple(map(_percent, (result.recall_at_1, result.recall_at_5, result.recall_at_10)))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def show_gain(gain: evaluation.Interval | None) -> str:
    """Write a gain in points, with its interval."""
    return "" if gain is None else gain.show()
