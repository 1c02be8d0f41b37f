"""One function per result: each makes a `Table` of it.

Recalls are shown in per cent, differences in points, with the interval in brackets.
"""

from collections.abc import Sequence

from nnnorm.dedup import describe_size
from nnnorm.methods import NO_CORRECTION, describe_setting
from nnnorm.report.table import Table
from nnnorm.study import Ablation, Cell, Comparison, Diagnosis, Drift, Interval, Result, Tuning
from nnnorm.suspects import Scan

_NOT_CHOSEN = "not chosen"
_INCLUDES_ZERO = "; that interval includes 0, so the gain can't be told from chance."
# The statistics of N_k for people, and how each is shown.
_STATISTICS = {
    "hub_occurrence": ("hits that go to items with at least twice the mean", ".1%"),
    "robin_hood": ("Robin Hood index: hits to move until all items have as many", ".1%"),
    "gini": ("Gini coefficient: 0 all alike, 1 one item has all hits", ".3f"),
    "mean_absolute_error": ("mean absolute error", ".3f"),
    "kurtosis": ("excess kurtosis", ".3f"),
    "skewness": ("skewness", ".3f"),
}


def tabulate_results(results: Sequence[Result], title: str, notes: Sequence[str] = ()) -> Table:
    """Make one row per correction: R@K, the gain with its interval, and hubness.

    Examples
    --------
    >>> tabulate_results([], "Nothing yet").rows
    ()
    """
    columns = ("method", "setting", "R@1", "R@5", "R@10", "gain in R@1", "max N₁")
    doubtful = [r.method for r in results if r.gain is not None and r.gain.includes_zero]
    notes = [*notes, "max N₁: how often the most retrieved item comes first."]
    if any(_setting_of(result) == _NOT_CHOSEN for result in results):
        notes.append(f"{_NOT_CHOSEN}: no setting did better than no correction, which is used.")
    notes += _doubt_notes(doubtful)
    return Table(title, columns, tuple(_result_row(result) for result in results), tuple(notes))


def tabulate_comparison(comparison: Comparison) -> Table:
    """Make a table of methods side by side.

    Examples
    --------
    >>> tabulate_comparison(Comparison((), "max", 5000, 1000, 30455, 5000)).title
    'Methods on 5,000 test queries, 1,000 items, 30,455 references'
    """
    unique = comparison.n_unique, comparison.references_sampled
    title = (
        f"Methods on {comparison.n_queries:,} test queries, {comparison.n_gallery:,} items, "
        f"{describe_size(comparison.n_references, *unique)}"
    )
    notes = [
        f"{_tuned_on('Each method', comparison)}. R@K in %, gains in points with 95 % paired "
        "intervals, queries of one item drawn together.",
    ]
    return tabulate_results(comparison.results, title, notes)


def _tuned_on(what: str, study: Comparison | Ablation) -> str:
    rule = _select_words(study.select)
    if study.n_validation:
        return f"{what} tuned on {study.n_validation:,} validation queries ({rule})"
    return (
        f"{what} cross-fitted: each fifth of the queries has the setting that the others choose "
        f"({rule}); the setting shown is what all of them choose"
    )


def tabulate_ablation(ablation: Ablation) -> Table:
    """Make a table of banks side by side, with tuned and automatic NNN at every size.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import evaluate, make_result
    >>> none = make_result("none", {}, evaluate(np.eye(2), np.eye(2), truth=[0, 1]), None)
    >>> tabulate_ablation(Ablation(none, (), "max", 2, 2, 2)).rows[0][4]
    '100.00'
    """
    columns = ("bank", "refs", "used", "tuned", "R@1", "gain", "gain, automatic")
    rows = [("none", "0", "0", "", _percent(ablation.uncorrected.recall_at_1), "", "")]
    for row in ablation.rows:
        rows.append(
            (
                f"{row.bank} {100 * row.share:.3g} %",
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
    doubtful = [
        f"{row.bank} {100 * row.share:.3g} % ({kind})"
        for row in ablation.rows
        for kind, result in (("tuned", row.tuned), ("automatic", row.automatic))
        if result.gain is not None and result.gain.includes_zero
    ]
    return Table(title, columns, tuple(rows), (note, *_doubt_notes(doubtful)))


def tabulate_tuning(tuning: Tuning, *, most: int = 10) -> Table:
    """Make a table of no correction, the chosen cells, and the best other cells.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import tune
    >>> tuning = tune(np.eye(4), np.eye(4), queries=np.eye(4), truth=[0, 1, 2, 3])
    >>> tabulate_tuning(tuning).rows[0][0]
    'none'
    """
    chosen = [
        (tuning.best_by_rule, "one standard error"),
        (tuning.best_by_maximum, "maximum"),
    ]
    if tuning.best_by_rule is tuning.best_by_maximum:
        chosen = [(tuning.best_by_rule, "both rules")]
    marks = [(cell, mark) for cell, mark in chosen if cell is not tuning.uncorrected]
    none = [mark for cell, mark in chosen if cell is tuning.uncorrected]
    marks.insert(0, (tuning.uncorrected, "".join(none)))
    rows = [_cell_row(cell, mark, tuning.uncorrected) for cell, mark in marks]
    shown = [cell for cell, _ in marks]
    others = sorted(
        (cell for cell in tuning.grid if not any(cell is other for other in shown)),
        key=lambda cell: -cell.recall_at_1,
    )
    rows += [_cell_row(cell, "", tuning.uncorrected) for cell in others[:most]]
    title = (
        f"{len(tuning.grid):,} settings on {tuning.n_queries:,} queries, "
        f"{describe_size(tuning.n_references, tuning.n_unique, tuning.references_sampled)}"
    )
    notes = [f"Chosen by {_select_words(tuning.select)}: {_tell_choice(tuning)}"]
    if tuning.popularity is not None:
        weight = tuning.popularity.weight
        recall = _percent(tuning.popularity.recalls[weight])
        notes.insert(0, f"Popularity from clicks: weight {weight:g}, with which R@1 is {recall}.")
    notes += _tell_gains(tuning)
    best = tuning.best_by_maximum.recall_at_1
    n_equal = sum(cell.recall_at_1 == best for cell in tuning.grid) - 1
    if n_equal:
        notes.append(
            f"{n_equal:,} other {'setting has' if n_equal == 1 else 'settings have'} the same R@1 "
            "as the maximum; of equals the first of the grid is taken, no correction before all."
        )
    columns = ("method", "setting", "R@1", "against none", "R@5", "R@10", "chosen by")
    return Table(title, columns, tuple(rows), tuple(notes))


def _tell_choice(tuning: Tuning) -> str:
    if tuning.best.method == NO_CORRECTION:
        return "no correction, which no setting beats on these queries."
    setting = describe_setting(tuning.best.method, tuning.best.params)
    text = f"{tuning.best.method} {setting}".strip()
    if tuning.select == "max" or tuning.n_near < 2:
        return f"{text}."
    return f"{text}, of {tuning.n_near:,} settings that are within one standard error of the best."


def _tell_gains(tuning: Tuning) -> list[str]:
    """The gain on the queries of the choice, and on others; whether chance explains them."""
    if tuning.best.method == NO_CORRECTION and tuning.popularity is None:
        gains = []
    else:
        gains = [
            f"In-sample, on the queries it was chosen on: {show_gain(tuning.gain)} points of R@1 "
            f"(p = {tuning.gain.p_value:.3g}, in-sample too)"
            + (_INCLUDES_ZERO if tuning.gain.includes_zero else ".")
        ]
    if tuning.cross_fitted is not None:
        gains.append(
            "Cross-fitted, each fifth of the queries with the setting that the others choose: "
            f"{show_gain(tuning.cross_fitted)}"
            + (_INCLUDES_ZERO if tuning.cross_fitted.includes_zero else ".")
        )
    return gains


def tabulate_diagnosis(diagnosis: Diagnosis) -> tuple[Table, Table]:
    """Make a table of the statistics of N_k, and one of the hubs.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.study import diagnose
    >>> statistics, hubs = tabulate_diagnosis(diagnose(np.eye(3), np.eye(3)))
    >>> hubs.rows[0][:2]
    ('0', '1')
    """
    both = [(diagnosis.before, diagnosis.chance)]
    if diagnosis.after is not None and diagnosis.chance_after is not None:
        both.append((diagnosis.after, diagnosis.chance_after))
    columns = ("", "before", "after")[: 1 + len(both)]
    chance = diagnosis.chance
    rows = [
        (
            f"hits of the most retrieved item; by chance {chance.most_by_chance:,.0f}",
            *(f"{hubs.most:,}" for _, hubs in both),
        ),
        (
            f"times as often as the mean ({diagnosis.before.mean:.3g})",
            *(f"{statistics.max / statistics.mean:.1f}" for statistics, _ in both),
        ),
        (
            f"items that are never retrieved; by chance {chance.n_never_by_chance:,.0f}",
            *(f"{hubs.n_never:,}" for _, hubs in both),
        ),
        (
            "that is, of all items",
            *(_share(statistics.antihub_share) for statistics, _ in both),
        ),
        ("hits beyond chance", *(_share(hubs.beyond_chance) for _, hubs in both)),
    ]
    for name, (label, form) in _STATISTICS.items():
        values = (format(statistics.to_dict()[name], form) for statistics, _ in both)
        rows.append((label, *(value.replace("%", " %") for value in values)))
    notes = [
        f"Hubs: {chance.severity}" + (f", then {both[1][1].severity}." if len(both) > 1 else ".")
    ]
    if diagnosis.ks_p_value is not None:
        notes.append(
            "Kolmogorov–Smirnov test between before and after: statistic "
            f"{diagnosis.ks_statistic:.3f} (p = {diagnosis.ks_p_value:.2g})."
        )
    if diagnosis.outliers:
        listed = ", ".join(map(diagnosis.name_item, diagnosis.outliers[:10]))
        more = ", …" if len(diagnosis.outliers) > 10 else ""
        notes.append(
            f"{len(diagnosis.outliers)} items have a bias far from all others (poisoned, "
            f"degenerate, or very strong hubs): {listed}{more}."
        )
    places = "first" if diagnosis.k == 1 else f"among the first {diagnosis.k}"
    title = (
        f"How often each of {diagnosis.n_gallery:,} items comes {places} for "
        f"{diagnosis.n_queries:,} queries"
    )
    return Table(title, columns, tuple(rows), tuple(notes)), _hub_table(diagnosis)


def tabulate_drift(drift: Drift) -> Table:
    """Make a table of what today's queries say about a corrector, its verdict first.

    Examples
    --------
    >>> from nnnorm.study import Drift
    >>> found = Drift("fine", (), 0.1, 0.0, None, 0.2, 0.3, None, 9, None, 64, 99, 40)
    >>> tabulate_drift(found).title
    'Fine: 64 queries against a bank of 99'
    """
    rows = [
        ("z: queries against bank, 0 as of one source", f"{drift.z:.1f}".replace("-", "−")),
        ("distance of the means, in spreads of the bank", f"{drift.mean_shift:.2f}"),
    ]
    if drift.agreement is not None:
        agreement = f"{drift.agreement:.2f}".replace("-", "−")
        rows.append(("biases of today's queries agree with the bank's", agreement))
    for label, share in (
        ("hits on hubs without a correction", drift.hub_share_uncorrected),
        ("hits on hubs with this corrector", drift.hub_share),
        ("hits on hubs after a refit", drift.hub_share_refitted),
    ):
        if share is not None:
            rows.append((label, f"{100 * share:.0f} %"))
    verdict = drift.verdict.capitalize()
    title = f"{verdict}: {drift.n_queries:,} queries against a bank of {drift.n_references:,}"
    notes = [f"{reason[0].upper()}{reason[1:]}." for reason in drift.reasons]
    notes.append(
        f"Hubs: items with at least twice the mean number of hits among the first places, counted "
        f"over {drift.n_items:,} items."
    )
    return Table(title, ("", "today"), tuple(rows), tuple(notes))


def tabulate_scan(scan: Scan) -> Table:
    """Make one row per suspect: verdict, suspicion, and the reasons.

    Examples
    --------
    >>> import numpy as np
    >>> tabulate_scan(Scan((), np.zeros(2), {}, 2, 99, 5)).title
    'Nothing to quarantine among 2 items, by 99 references'
    """
    n_bad, n_watched = (scan.count(verdict) for verdict in ("quarantine", "watch"))
    found = f"{n_bad:,} to quarantine" if n_bad else "Nothing to quarantine"
    found += f" and {n_watched:,} to watch" if n_watched else ""
    title = f"{found} among {scan.n_items:,} items, by {scan.n_references:,} references"
    rows = tuple(
        (
            str(suspect.id),
            "" if suspect.suspicion is None else f"{suspect.suspicion:.1f}",
            suspect.verdict,
            "; ".join(suspect.reasons),
        )
        for suspect in scan.suspects
    )
    notes = []
    n_alerts = sum(suspect.suspicion is not None for suspect in scan.suspects)
    if scan.budget is not None and n_alerts >= scan.budget:
        notes.append(
            f"All {scan.budget:,} alerts of the budget are used; a larger one may show more."
        )
    return Table(title, ("id", "suspicion", "verdict", "reasons"), rows, tuple(notes))


def _hub_table(diagnosis: Diagnosis) -> Table:
    """One row per hub; columns that nothing is known of are left out."""
    cells = {
        "item": [diagnosis.name_item(hub.item) for hub in diagnosis.hubs],
        "hits": [f"{hub.occurrences:,}" for hub in diagnosis.hubs],
        "hits after": [f"{hits:,}" for hits in diagnosis.hubs_after],
        "wrong hits": [
            f"{100 * hub.wrong_share:.0f} %"
            for hub in diagnosis.hubs
            if hub.wrong_share is not None
        ],
        "z-score of bias": [
            _signed(hub.bias_z) for hub in diagnosis.hubs if hub.bias_z is not None
        ],
    }
    shown = {column: values for column, values in cells.items() if values}
    rows = tuple(zip(*shown.values(), strict=True))
    return Table(f"The {len(rows)} most retrieved items", tuple(shown), rows)


def _result_row(result: Result) -> tuple[str, ...]:
    return (
        result.method,
        _setting_of(result),
        f"{_percent(result.recall_at_1)} ± {100 * result.half_width:.2f}",
        _percent(result.recall_at_5),
        _percent(result.recall_at_10),
        show_gain(result.gain),
        str(result.hubness.max),
    )


def _setting_of(result: Result) -> str:
    if result.gain is not None and not result.params and result.method != NO_CORRECTION:
        return _NOT_CHOSEN
    return describe_setting(result.method, result.params)


def _cell_row(cell: Cell, mark: str, uncorrected: Cell) -> tuple[str, ...]:
    difference = cell.recall_at_1 - uncorrected.recall_at_1
    others = ("" if r is None else _percent(r) for r in (cell.recall_at_5, cell.recall_at_10))
    against = "" if cell is uncorrected else show_points(difference)
    setting = describe_setting(cell.method, cell.params)
    return (cell.method, setting, _percent(cell.recall_at_1), against, *others, mark)


def _doubt_notes(doubtful: Sequence[str]) -> list[str]:
    if not doubtful:
        return []
    return [f"The interval includes 0 for {', '.join(doubtful)}: no gain is shown there."]


def _select_words(select: str) -> str:
    return "the maximum of R@1" if select == "max" else "the one-standard-error rule"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def show_points(share: float) -> str:
    """Write a difference of shares in points, with its sign.

    Examples
    --------
    >>> show_points(-0.0125)
    '−1.25'
    """
    return _signed(100 * share, ".2f")


def _signed(value: float, form: str = ".1f") -> str:
    return f"{value:+{form}}".replace("-", "−")


def show_gain(gain: Interval | None) -> str:
    """Write a gain in points, with its interval.

    Examples
    --------
    >>> show_gain(Interval(0.01, 0.001, 0.019))
    '+1.00 [0.10, 1.90]'
    """
    if gain is None:
        return ""
    low, high = (show_points(end).lstrip("+") for end in (gain.low, gain.high))
    return f"{show_points(gain.mean)} [{low}, {high}]"
