"""A `Check` in words, and its figures in one short table."""

from nnnorm.methods import describe_setting, label_method
from nnnorm.report.table import Table
from nnnorm.report.tables import show_gain
from nnnorm.study import Check, Hubs, Interval, Measured

_EXPECTATIONS = {
    "help": "expected to help",
    "little": "little to expect",
    "unclear": "not clear that it helps",
}


def tell_check(check: Check) -> list[str]:
    """Describe a check in words, a line per question.

    Examples
    --------
    >>> import numpy as np
    >>> import nnnorm
    >>> found = nnnorm.check(np.eye(3), queries=np.eye(3))
    >>> tell_check(found)[0].partition(".")[0]
    'Hubs: none'
    """
    lines = [_tell_hubs(check), _tell_expectation(check)]
    if check.recall_at_1 is not None and check.automatic is not None:
        lines.append(_tell_gain(check, check.automatic))
    return [*lines, _tell_recommendation(check)]


def tabulate_check(check: Check) -> Table:
    """Make a row per search: as it is, corrected, and by chance.

    Examples
    --------
    >>> import numpy as np
    >>> import nnnorm
    >>> tabulate_check(nnnorm.check(np.eye(3), queries=np.eye(3))).rows[0][0]
    'as it is'
    """
    rows: list[tuple[str, ...]] = [_row("as it is", check.recall_at_1, None, check.hubs)]
    for name, one in (("NNN, own rule", check.automatic), ("NNN, tuned", check.tuned)):
        if one is not None:
            rows.append(_row(name, one.recall_at_1, one.gain, one.hubs))
    chance = f"{check.hubs.most_by_chance:.0f}", f"{check.hubs.n_never_by_chance:,.0f}"
    rows.append(("by chance", "", "", *chance, "0 %"))
    columns: tuple[str, ...] = ("", "R@1", "gain in R@1", "most", "never", "beyond chance")
    if check.recall_at_1 is None:
        columns, rows = columns[:1] + columns[3:], [row[:1] + row[3:] for row in rows]
    title = f"{check.n_queries:,} queries, {check.n_gallery:,} items"
    if check.n_references is not None:
        title += f", {check.n_references:,} references"
    return Table(title, columns, tuple(rows), tuple(_notes(check)))


def _tell_hubs(check: Check) -> str:
    hubs = check.hubs
    text = (
        f"Hubs: {hubs.severity}. Item {check.name_item(hubs.item)} comes first {hubs.most:,} "
        f"{'time' if hubs.most == 1 else 'times'}; by chance the most would be "
        f"{hubs.most_by_chance:,.0f}. {hubs.n_never:,} of {check.n_gallery:,} items never come "
        f"first; by chance {hubs.n_never_by_chance:,.0f}."
    )
    if hubs.severity == "none" and check.recall_at_1 is None:
        text += " Small hubs only show with labels (--truth)."
    return text


def _tell_expectation(check: Check) -> str:
    if check.expectation is None or check.automatic is None:
        return (
            "Correction: nothing can be said without past queries (--references). These queries "
            "can be the bank of the searches to come."
        )
    measured = [
        f"{name} {value:.2f}".replace("-", "−")
        for name, value in (
            ("reliability", check.reliability),
            ("density", check.density),
            ("z", check.z),
        )
        if value is not None
    ]
    why = ", and ".join(check.reasons) or "the bank fits queries and items"
    after = check.automatic.hubs
    return (
        f"Without labels: {_EXPECTATIONS[check.expectation]}: {why} ({', '.join(measured)}). NNN "
        f"gives {100 * (check.moved or 0):.0f} % of the queries another first item; the most is "
        f"then {after.most:,}, and {after.n_never:,} items never come first."
    )


def _tell_gain(check: Check, automatic: Measured) -> str:
    text = f"With labels: {_tell(automatic.gain)} by NNN's own rule, which uses no labels"
    if check.tuned is not None:
        chosen = "" if check.tuned.params else ", where no correction is chosen"
        text += f"; {_tell(check.tuned.gain)} when tuned on the labels (cross-fitted){chosen}"
    text += "."
    if automatic.gain is not None and not automatic.is_sure and not automatic.gain.includes_zero:
        text += f" Only {automatic.n_changed} right items show it, too few to tell it from chance."
    if check.n_needed is not None:
        text += (
            f" Too few labels: to tell 1 point from 0 takes about {_round(check.n_needed)} queries,"
            f" and these are {check.n_queries:,}."
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
        text += " (its own rule)."
    elif check.recommended == "tuned":
        text += f" (tuned, which adds {_tell(check.better)} to its own rule)."
    else:
        text += f" (its own rule; tuning adds {_tell(check.better)})."
    if check.verdict == "try" and check.recall_at_1 is not None:
        text += " No gain is shown yet: try it beside the search as it is."
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
    if check.expectation is None:
        return "There are no hubs to remove."
    return "No gain is shown."


def _notes(check: Check) -> list[str]:
    has_truth = check.recall_at_1 is not None
    what = "every first place that is not right" if has_truth else "every first place"
    notes = [
        "most: how often the most retrieved item comes first; never: items that never do. By "
        f"chance: {what} falls on any item alike (queries that belong together as one). Beyond "
        "chance: the share of those places that would have to move to look like that."
    ]
    if has_truth:
        notes.append(
            "R@1: queries with a right item first, %. Gains in points, with 95 % paired intervals, "
            "queries of one item drawn together."
        )
    else:
        notes.append("Items that are asked for more often than others look like hubs here too.")
    return notes


def _row(name: str, recall: float | None, gain: Interval | None, hubs: Hubs) -> tuple[str, ...]:
    return (
        name,
        "" if recall is None else f"{100 * recall:.2f}",
        show_gain(gain),
        f"{hubs.most:,}",
        f"{hubs.n_never:,}",
        f"{100 * hubs.beyond_chance:.0f} %",
    )


def _tell(gain: Interval | None) -> str:
    if gain is None:
        return "nothing"
    doubt = ", includes zero" if gain.includes_zero else ""
    return f"{show_gain(gain)[:-1]}{doubt}] points of R@1"


def _round(number: int) -> str:
    """Two digits: more would not be known."""
    return f"{float(f'{number:.2g}'):,.0f}"
