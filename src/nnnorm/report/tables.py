"""One function per result: each makes a `Table` of it, or lines of text.

Recalls are shown in percent, differences in points, with the interval in brackets.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nnnorm.dedup import describe_size
from nnnorm.evaluation import (
    Ablation,
    Audit,
    Cell,
    Check,
    Comparison,
    Diagnosis,
    Drift,
    Hubs,
    Interval,
    Measured,
    Result,
    Scan,
    Tuning,
)
from nnnorm.methods import NO_CORRECTION, describe_setting, label_method
from nnnorm.report.table import Table

_NOT_CHOSEN = "not chosen"
_RULES = {"max": "the maximum of R@1", "one-standard-error": "the one-standard-error rule"}
_INCLUDES_ZERO = "; that interval includes 0, so the gain can't be told from chance."
# The statistics of N_k for people, and how each is shown.
_STATISTICS = {
    "hub_occurrence": ("hits that go to hubs (at least twice the mean)", ".1%"),
    "robin_hood": ("Robin Hood index: hits to move until all items have as many", ".1%"),
    "gini": ("Gini coefficient: 0 all alike, 1 one item has all hits", ".3f"),
    "mean_absolute_error": ("mean absolute error", ".3f"),
    "kurtosis": ("excess kurtosis", ".3f"),
    "skewness": ("skewness", ".3f"),
}
_EXPECTATIONS = {
    "help": "expected to help",
    "little": "little to expect",
    "unclear": "not clear that it helps",
}
# Beyond so many queries, a table of an audit shows the most uneven ones.
MANY_QUERIES = 40
LIMITS = (
    "What this does not show: whether the groups are right for the people in the pictures, what "
    "happens beyond these queries and these items, or that a search is fair. An average near 0 can "
    "hide queries that lean opposite ways: see |bias|."
)


# --- methods, banks, settings --------------------------------------------------------------------


def tabulate_results(results: Sequence[Result], title: str, notes: Sequence[str] = ()) -> Table:
    """Make one row per correction: R@K, the gain with its interval, and hubness."""
    rows = []
    for result in results:
        setting = describe_setting(result.method, result.params)
        if result.gain is not None and not result.params and result.method != NO_CORRECTION:
            setting = _NOT_CHOSEN
        at_1 = f"{_percent(result.recall_at_1)} ± {_percent(result.half_width)}"
        others = _percent(result.recall_at_5), _percent(result.recall_at_10)
        most = str(result.hubness.max)
        rows.append((result.method, setting, at_1, *others, show_gain(result.gain), most))
    notes = [*notes, "max N₁: how often the most retrieved item comes first."]
    if any(row[1] == _NOT_CHOSEN for row in rows):
        notes.append(f"{_NOT_CHOSEN}: no setting did better than no correction, which is used.")
    notes += _doubt_notes({result.method: result.gain for result in results})
    columns = ("method", "setting", "R@1", "R@5", "R@10", "gain in R@1", "max N₁")
    return Table(title, columns, tuple(rows), tuple(notes))


def tabulate_comparison(comparison: Comparison) -> Table:
    """Make a table of methods, one row each."""
    unique = comparison.n_unique, comparison.references_sampled
    title = (
        f"Methods on {comparison.n_queries:,} test queries, {comparison.n_gallery:,} items, "
        f"{describe_size(comparison.n_references, *unique)}"
    )
    note = (
        f"{_tuned_on('Each method', comparison)}. R@K in %, gains in points with 95 % paired "
        "intervals, queries of one item drawn together."
    )
    return tabulate_results(comparison.results, title, [note])


def tabulate_ablation(ablation: Ablation) -> Table:
    """Make a table of banks, with tuned and automatic NNN at every size."""
    columns = ("bank", "refs", "used", "tuned", "R@1", "gain", "gain, automatic")
    rows = [("none", "0", "0", "", _percent(ablation.uncorrected.recall_at_1), "", "")]
    gains: dict[str, Interval | None] = {}
    for row in ablation.rows:
        name = f"{row.bank} {100 * row.share:.3g} %"
        gains |= {f"{name} (tuned)": row.tuned.gain, f"{name} (automatic)": row.automatic.gain}
        rows.append(
            (
                name,
                f"{row.n_references:,}",
                f"{row.n_references if row.n_unique is None else row.n_unique:,}",
                describe_setting(row.tuned.method, row.tuned.params) or row.tuned.method,
                _percent(row.tuned.recall_at_1),
                show_gain(row.tuned.gain),
                show_gain(row.automatic.gain),
            )
        )
    title = f"NNN by bank, {ablation.n_queries:,} test queries, {ablation.n_gallery:,} items"
    note = (
        f"{_tuned_on('NNN', ablation)}; automatic uses no labels. R@1 in %, gains in points "
        "over no correction with 95 % paired intervals."
    )
    if any(row.n_unique not in (None, row.n_references) for row in ablation.rows):
        note += " Used: unique references"
        has_samples = any(row.references_sampled for row in ablation.rows)
        note += ", or a random sample of them." if has_samples else "."
    return Table(title, columns, tuple(rows), (note, *_doubt_notes(gains)))


def tabulate_tuning(tuning: Tuning, *, most: int = 10) -> Table:
    """Make a table of no correction, the chosen cells, and the best other cells."""
    chosen = {
        "one standard error": tuning.best_by_rule,
        "maximum": tuning.best_by_maximum,
    }
    if tuning.best_by_rule is tuning.best_by_maximum:
        chosen = {"both rules": tuning.best_by_rule}
    marks = {id(tuning.uncorrected): ""} | {id(cell): mark for mark, cell in chosen.items()}
    ordered = sorted(tuning.grid, key=lambda cell: -cell.recall_at_1)
    shown = [tuning.uncorrected, *(c for c in chosen.values() if c is not tuning.uncorrected)]
    shown += [cell for cell in ordered if id(cell) not in marks][:most]
    rows = tuple(_cell_row(cell, marks.get(id(cell), ""), tuning.uncorrected) for cell in shown)
    title = (
        f"{len(tuning.grid):,} settings on {tuning.n_queries:,} queries, "
        f"{describe_size(tuning.n_references, tuning.n_unique, tuning.references_sampled)}"
    )
    notes = []
    if tuning.popularity is not None:
        weight = tuning.popularity.weight
        recall = _percent(tuning.popularity.recalls[weight])
        notes.append(f"Popularity from clicks: weight {weight:g}, with which R@1 is {recall}.")
    best = f"{tuning.best.method} {describe_setting(tuning.best.method, tuning.best.params)}"
    choice = f"Chosen by {_RULES[tuning.select]}: {best.strip()}"
    if tuning.best.method == NO_CORRECTION:
        choice = f"Chosen by {_RULES[tuning.select]}: no correction, which no setting beats"
    elif tuning.select != "max" and tuning.n_near > 1:
        choice += f", of {tuning.n_near:,} settings within one standard error of the best"
    notes.append(f"{choice}.")
    if tuning.best.method != NO_CORRECTION or tuning.popularity is not None:
        notes.append(
            f"In-sample, on the queries it was chosen on: {show_gain(tuning.gain)} points of R@1 "
            f"(p = {tuning.gain.p_value:.3g}, in-sample too)"
            + (_INCLUDES_ZERO if tuning.gain.includes_zero else ".")
        )
    if tuning.cross_fitted is not None:
        notes.append(
            "Cross-fitted, each fifth of the queries with the setting that the others choose: "
            f"{show_gain(tuning.cross_fitted)}"
            + (_INCLUDES_ZERO if tuning.cross_fitted.includes_zero else ".")
        )
    n_equal = sum(cell.recall_at_1 == ordered[0].recall_at_1 for cell in tuning.grid) - 1
    if n_equal:
        notes.append(
            f"{n_equal:,} other {'setting has' if n_equal == 1 else 'settings have'} the same R@1 "
            'as the maximum. Ties go to the first setting; "no correction" wins any tie.'
        )
    columns = ("method", "setting", "R@1", "against none", "R@5", "R@10", "chosen by")
    return Table(title, columns, rows, tuple(notes))


def _cell_row(cell: Cell, mark: str, uncorrected: Cell) -> tuple[str, ...]:
    others = ("" if r is None else _percent(r) for r in (cell.recall_at_5, cell.recall_at_10))
    against = "" if cell is uncorrected else show_points(cell.recall_at_1 - uncorrected.recall_at_1)
    setting = describe_setting(cell.method, cell.params)
    return (cell.method, setting, _percent(cell.recall_at_1), against, *others, mark)


def _tuned_on(what: str, study: Comparison | Ablation) -> str:
    if study.n_validation:
        return f"{what} tuned on {study.n_validation:,} validation queries ({_RULES[study.select]})"
    return (
        f"{what} cross-fitted: each fifth of the queries has the setting that the others choose "
        f"({_RULES[study.select]}); the setting shown is what all of them choose"
    )


def _doubt_notes(gains: Mapping[str, Interval | None]) -> list[str]:
    doubtful = [name for name, gain in gains.items() if gain is not None and gain.includes_zero]
    if not doubtful:
        return []
    return [f"The interval includes 0 for {', '.join(doubtful)}: no gain is shown there."]


# --- hubs, drift, outliers -----------------------------------------------------------------------


def tabulate_diagnosis(diagnosis: Diagnosis) -> tuple[Table, Table]:
    """Make a table of the statistics of N_k, and one of the hubs."""
    null = diagnosis.null_model
    statistics, models = [diagnosis.before], [null]
    notes = [f"Hubs: {null.severity}."]
    if diagnosis.after is not None and diagnosis.null_model_after is not None:
        statistics.append(diagnosis.after)
        models.append(diagnosis.null_model_after)
        notes = [f"Hubs: {null.severity}, then {models[1].severity}."]
    if diagnosis.k > 1 and diagnosis.n_queries < diagnosis.n_gallery:
        notes.append(_FEWER_QUERIES.format(n=diagnosis.n_gallery))
    rows = [
        (
            f"hits of the most retrieved item; by chance {null.most_by_chance:,.0f}",
            *(f"{hubs.most:,}" for hubs in models),
        ),
        (
            f"times as often as the mean ({diagnosis.before.mean:.3g})",
            *(f"{some.max / some.mean:.1f}" for some in statistics),
        ),
        (
            f"items that are never retrieved; by chance {null.n_never_by_chance:,.0f}",
            *(f"{hubs.n_never:,}" for hubs in models),
        ),
        ("that is, of all items", *(f"{100 * some.antihub_share:.1f} %" for some in statistics)),
        ("hits beyond chance", *(f"{100 * hubs.beyond_chance:.1f} %" for hubs in models)),
    ]
    for name, (label, form) in _STATISTICS.items():
        values = (format(some.to_dict()[name], form) for some in statistics)
        rows.append((label, *(value.replace("%", " %") for value in values)))
    if diagnosis.ks_p_value is not None:
        notes.append(
            "Kolmogorov–Smirnov test between before and after: statistic "
            f"{diagnosis.ks_statistic:.3f} (p = {diagnosis.ks_p_value:.2g})."
        )
    if diagnosis.outliers:
        listed = ", ".join(map(diagnosis.name_item, diagnosis.outliers[:10]))
        more = ", …" if len(diagnosis.outliers) > 10 else ""
        notes.append(
            f"{len(diagnosis.outliers)} items have a bias far from all others (corrupt, or very "
            f"strong hubs): {listed}{more}."
        )
    places = "first" if diagnosis.k == 1 else f"among the first {diagnosis.k}"
    title = (
        f"How often each of {diagnosis.n_gallery:,} items comes {places} for "
        f"{diagnosis.n_queries:,} queries"
    )
    columns = ("", "before", "after")[: 1 + len(models)]
    return Table(title, columns, tuple(rows), tuple(notes)), _hub_table(diagnosis)


_FEWER_QUERIES = (
    "With fewer queries than items, the first 10 places are counted; small hubs only show with "
    "more queries, about as many as the {n:,} items."
)


def _hub_table(diagnosis: Diagnosis) -> Table:
    """One row per hub; columns that nothing is known of are left out."""
    hubs = diagnosis.hubs
    wrong = [hub.wrong_share for hub in hubs if hub.wrong_share is not None]
    cells = {
        "item": [diagnosis.name_item(hub.item) for hub in hubs],
        "hits": [f"{hub.occurrences:,}" for hub in hubs],
        "hits after": [f"{hits:,}" for hits in diagnosis.hubs_after],
        "wrong hits": [f"{100 * share:.0f} %" for share in wrong],
        "z-score of bias": [_signed(hub.bias_z) for hub in hubs if hub.bias_z is not None],
    }
    shown = {column: values for column, values in cells.items() if values}
    rows = tuple(zip(*shown.values(), strict=True))
    return Table(f"The {len(rows)} most retrieved items", tuple(shown), rows)


def tabulate_drift(drift: Drift) -> Table:
    """Make a table of what today's queries say about a corrector, its verdict first."""
    cells = {
        "z: queries against bank, 0 as of one source": _signed(drift.z).removeprefix("+"),
        "distance of the means, in spreads of the bank": f"{drift.mean_shift:.2f}",
    }
    if drift.agreement is not None:
        agreement = f"{drift.agreement:.2f}".replace("-", "−")
        cells["biases of today's queries agree with the bank's"] = agreement
    for when, share in (
        ("without a correction", drift.hub_share_uncorrected),
        ("with this corrector", drift.hub_share),
        ("after a refit", drift.hub_share_refitted),
    ):
        if share is not None:
            cells[f"hits that go to hubs {when}"] = f"{100 * share:.1f} %"
    verdict = drift.verdict.capitalize()
    title = f"{verdict}: {drift.n_queries:,} queries against a bank of {drift.n_references:,}"
    notes = [f"{reason[0].upper()}{reason[1:]}." for reason in drift.reasons]
    notes.append(
        f"Hubs: items with at least twice the mean number of hits, counted over {drift.n_items:,} "
        "items, as `nnnorm evaluate` does."
    )
    return Table(title, ("", "today"), tuple(cells.items()), tuple(notes))


def tabulate_scan(scan: Scan) -> Table:
    """Make one row per outlier: verdict, score, and the reasons."""
    n_bad, n_watched = scan.count("remove"), scan.count("watch")
    found = f"{n_bad:,} to remove" if n_bad else "Nothing to remove"
    found += f" and {n_watched:,} to watch" if n_watched else ""
    title = f"{found} among {scan.n_items:,} items, by {scan.n_references:,} references"
    rows = []
    for outlier in scan.outliers:
        score = "" if outlier.score is None else f"{outlier.score:.1f}"
        rows.append((str(outlier.id), score, outlier.verdict, "; ".join(outlier.reasons)))
    notes: tuple[str, ...] = ()
    if scan.budget is not None and sum(bool(row[1]) for row in rows) >= scan.budget:
        notes = (f"All {scan.budget:,} alerts of the budget are used; a larger one may show more.",)
    return Table(title, ("id", "score", "verdict", "reasons"), tuple(rows), notes)


# --- check ---------------------------------------------------------------------------------------


def tell_check(check: Check) -> list[str]:
    """Describe a check in words, a line per question."""
    lines = [_tell_hubs(check), _tell_expectation(check)]
    if check.recall_at_1 is not None and check.automatic is not None:
        lines.append(_tell_gain(check, check.automatic))
    return [*lines, _tell_recommendation(check)]


def tabulate_check(check: Check) -> Table:
    """Make a row per search: as it is, corrected, and by chance."""
    rows: list[tuple[str, ...]] = [_row("as it is", check.recall_at_1, None, check.hubs)]
    for name, one in (("NNN, automatic", check.automatic), ("NNN, tuned", check.tuned)):
        if one is not None:
            rows.append(_row(name, one.recall_at_1, one.gain, one.hubs))
    chance = f"{check.hubs.most_by_chance:.0f}", f"{check.hubs.n_never_by_chance:,.0f}"
    rows.append(("by chance", "", "", *chance, "0 %"))
    columns: tuple[str, ...] = ("", "R@1", "gain in R@1", "most", "never", "beyond chance")
    has_truth = check.recall_at_1 is not None
    if not has_truth:
        columns, rows = columns[:1] + columns[3:], [row[:1] + row[3:] for row in rows]
    title = f"{check.n_queries:,} queries, {check.n_gallery:,} items"
    if check.n_references is not None:
        title += f", {check.n_references:,} references"
    notes = (
        f"most: hits of the most retrieved item, {_places(check.hubs)}; never: items without any. "
        f"By chance: every hit{' that is not right' if has_truth else ''} falls on any item alike "
        "(queries that belong together as one). Beyond chance: the share of those hits that would "
        "have to move to look like that.",
        "R@1: queries with a right item first, %. Gains in points, with 95 % paired intervals, "
        "queries of one item drawn together."
        if has_truth
        else "Items that are asked for more often than others look like hubs here too.",
    )
    return Table(title, columns, tuple(rows), notes)


def _row(name: str, recall: float | None, gain: Interval | None, hubs: Hubs) -> tuple[str, ...]:
    at_1 = "" if recall is None else _percent(recall)
    beyond = f"{100 * hubs.beyond_chance:.0f} %"
    return (name, at_1, show_gain(gain), f"{hubs.most:,}", f"{hubs.n_never:,}", beyond)


def _places(hubs: Hubs) -> str:
    return "in first place" if hubs.k == 1 else f"among the first {hubs.k}"


def _tell_hubs(check: Check) -> str:
    hubs = check.hubs
    text = (
        f"Hubs: {hubs.severity}. Item {check.name_item(hubs.item)} is {_places(hubs)} "
        f"{hubs.most:,} {'time' if hubs.most == 1 else 'times'}; by chance the most would be "
        f"{hubs.most_by_chance:,.0f}. {hubs.n_never:,} of {check.n_gallery:,} items never are; by "
        f"chance {hubs.n_never_by_chance:,.0f}."
    )
    if hubs.severity == "none" and check.recall_at_1 is None:
        text += " Small hubs only show with labels (--truth)."
    return text if hubs.k == 1 else f"{text} {_FEWER_QUERIES.format(n=check.n_gallery)}"


def _tell_expectation(check: Check) -> str:
    if check.expectation is None or check.automatic is None:
        return (
            "Correction: nothing can be said without past queries (--references). These queries "
            "can be the bank of the searches to come."
        )
    measured = [
        f"{name} {getattr(check, name):.2f}".replace("-", "−")
        for name in ("reliability", "density", "z")
        if getattr(check, name) is not None
    ]
    why = ", and ".join(check.reasons) or "the bank fits queries and items"
    after = check.automatic.hubs
    return (
        f"Without labels: {_EXPECTATIONS[check.expectation]}: {why} ({', '.join(measured)}). NNN "
        f"gives {100 * (check.moved or 0):.0f} % of the queries another first item; the most is "
        f"then {after.most:,}, and {after.n_never:,} items are never {_places(after)}."
    )


def _tell_gain(check: Check, automatic: Measured) -> str:
    text = f"With labels: {_tell(automatic.gain)} by automatic settings, which use no labels"
    if check.tuned is not None:
        chosen = "" if check.tuned.params else ", where no correction is chosen"
        text += f"; {_tell(check.tuned.gain)} when tuned on the labels (cross-fitted){chosen}"
    text += "."
    if automatic.gain is not None and not automatic.is_sure and not automatic.gain.includes_zero:
        text += f" Only {automatic.n_changed} right items show it, too few to tell it from chance."
    if check.n_needed is not None:
        rounded = float(f"{check.n_needed:.2g}")
        text += (
            f" Too few labels: to tell 1 point from 0 takes about {rounded:,.0f} queries, not "
            f"{check.n_queries:,}."
        )
    return text


def _tell_recommendation(check: Check) -> str:
    chosen = check.chosen
    if chosen is None:
        if check.verdict == "unknown":
            return "Recommended: keep these queries as a bank, and check again with --references."
        return f"Recommended: no correction. {_why_none(check)}"
    setting = describe_setting(chosen.method, chosen.params, ", ", " = ")
    text = f"Recommended: {label_method(chosen.method)}, {setting}"
    if check.better is None:
        text += " (automatic)."
    elif check.recommended == "tuned":
        text += f" (tuned, which adds {_tell(check.better)} to automatic settings)."
    else:
        text += f" (automatic; tuning adds {_tell(check.better)})."
    if check.verdict == "try" and check.recall_at_1 is not None:
        text += " No gain is shown yet: try it next to the search as it is."
    elif check.verdict == "try":
        text += " Label some queries to see whether it helps."
    return text


def _why_none(check: Check) -> str:
    automatic = check.automatic
    gain = automatic.gain if automatic is not None and automatic.is_sure else None
    if gain is not None and gain.high < 0:
        return "It does harm here."
    if check.expectation == "little":
        return "It would change next to nothing."
    return "There are no hubs to remove." if check.expectation is None else "No gain is shown."


def _tell(gain: Interval | None) -> str:
    if gain is None:
        return "nothing"
    doubt = ", includes zero" if gain.includes_zero else ""
    return f"{show_gain(gain)[:-1]}{doubt}] points of R@1"


# --- audits --------------------------------------------------------------------------------------


def tabulate_audit(audit: Audit) -> tuple[Table, Table]:
    """Make a table of the means with their intervals, and one of the single queries."""
    with_after = bool(audit.after)
    rows = []
    for line in audit.lines:
        more = (_interval(line.after), _interval(line.change, "+.3f")) if with_after else ()
        rows.append((line.metric, _interval(line.before), *more))
    sign = f"bias@k is ({' − '.join(audit.difference)})/k. " if audit.difference else ""
    fair = ", ".join(f"{group} {share:.3g}" for group, share in audit.target.items())
    note = f"{sign}Target shares: {fair}. 95 % intervals by resampling queries" + (
        "; changes are paired." if with_after else "."
    )
    title = f"Groups retrieved for {len(audit.queries):,} queries out of {audit.n_gallery:,} items"
    columns = ("mean over queries", "before", *(("after", "change") if with_after else ()))
    return Table(title, columns, tuple(rows), (note, LIMITS)), _tabulate_queries(audit)


def _tabulate_queries(audit: Audit) -> Table:
    shown = [line.metric for line in audit.lines if line.metric.startswith(("bias@", "precision"))]
    shown = shown or [line.metric for line in audit.lines if line.metric.startswith("max skew")]
    order = np.arange(len(audit.queries))
    title = "Query by query"
    if len(order) > MANY_QUERIES:
        order = np.argsort(-np.abs(audit.before[shown[0]]), kind="stable")[:MANY_QUERIES]
        title = f"The {MANY_QUERIES} queries with the largest {shown[0]}, of {len(audit.queries):,}"
    steps = " before → after" if audit.after else ""
    both = [some for some in (audit.before, audit.after) if some]
    rows = []
    for query in order:
        cells = [" → ".join(f"{some[metric][query]:.2f}" for some in both) for metric in shown]
        rows.append((audit.queries[query], *(cell.replace("-", "−") for cell in cells)))
    return Table(title, ("query", *(f"{metric}{steps}" for metric in shown)), tuple(rows))


def _interval(interval: Interval | None, form: str = ".3f") -> str:
    if interval is None:
        return ""
    # Adding 0 makes the −0.000 of a sum's last bits 0.000.
    mean, low, high = (round(end, 3) + 0.0 for end in (interval.mean, interval.low, interval.high))
    return f"{mean:{form}} [{low:.3f}, {high:.3f}]".replace("-", "−")


# --- numbers -------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _signed(value: float, form: str = ".1f") -> str:
    return f"{value:+{form}}".replace("-", "−")


def show_points(share: float) -> str:
    """Write a difference of shares in points, with its sign."""
    return _signed(100 * share, ".2f")


def show_gain(gain: Interval | None) -> str:
    """Write a gain in points, with its interval."""
    if gain is None:
        return ""
    low, high = (show_points(end).lstrip("+") for end in (gain.low, gain.high))
    return f"{show_points(gain.mean)} [{low}, {high}]"
