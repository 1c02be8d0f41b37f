"""Tables and a plot of an audit: the means, and the queries one by one, before and after."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnnorm.errors import NNNormError
from nnnorm.report.figure import BLUE, GREY, ORANGE, add_legend, label_axes, make_panels
from nnnorm.report.table import Table
from nnnorm.study import Audit, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Beyond so many queries, a table shows the most uneven ones and a plot their distribution.
_MANY = 40
LIMITS = (
    "What this does not show: whether the groups are right for the people in the pictures, what "
    "happens beyond these queries and these items, or that a search is fair. An average near 0 can "
    "hide queries that lean opposite ways: see |bias|."
)


def tabulate_audit(audit: Audit) -> tuple[Table, Table]:
    """Make a table of the means with their intervals, and one of the single queries.

    Examples
    --------
    >>> from nnnorm.study import audit
    >>> means, queries = tabulate_audit(audit(np.eye(2), np.eye(2), groups=["a", "b"], ks=[1]))
    >>> means.rows[0][:2]
    ('bias@1', '0.000 [−1.000, 1.000]')
    """
    with_after = bool(audit.after)
    columns = ("mean over queries", "before", *(("after", "change") if with_after else ()))
    rows = []
    for line in audit.lines:
        change = _interval(line.change, signed=True)
        more = (_interval(line.after), change) if with_after else ()
        rows.append((line.metric, _interval(line.before), *more))
    sign = f"bias@k is ({' − '.join(audit.difference)})/k. " if audit.difference else ""
    fair = ", ".join(f"{group} {share:.3g}" for group, share in audit.target.items())
    means = Table(
        f"Groups retrieved for {len(audit.queries):,} queries out of {audit.n_gallery:,} items",
        columns,
        tuple(rows),
        (
            f"{sign}Target shares: {fair}. 95 % intervals by resampling queries"
            + ("; changes are paired." if with_after else "."),
            LIMITS,
        ),
    )
    return means, _tabulate_queries(audit)


def _tabulate_queries(audit: Audit) -> Table:
    shown = [line.metric for line in audit.lines if line.metric.startswith(("bias@", "precision"))]
    shown = shown or [line.metric for line in audit.lines if line.metric.startswith("max skew")]
    order = np.arange(len(audit.queries))
    title = "Query by query"
    if len(order) > _MANY:
        order = np.argsort(-np.abs(audit.before[shown[0]]), kind="stable")[:_MANY]
        title = f"The {_MANY} queries with the largest {shown[0]}, of {len(audit.queries):,}"
    steps = " before → after" if audit.after else ""
    rows = []
    for query in order:
        cells = []
        for metric in shown:
            values = [some[metric][query] for some in (audit.before, audit.after) if some]
            cells.append(" → ".join(f"{value:.2f}".replace("-", "−") for value in values))
        rows.append((audit.queries[query], *cells))
    return Table(title, ("query", *(f"{metric}{steps}" for metric in shown)), tuple(rows))


def plot_audit(audit: Audit, metrics: Sequence[str] | None = None) -> "Figure":
    """Plot each query's figure before and after, one panel per figure, with the means as lines.

    Parameters
    ----------
    audit : Audit
    metrics : sequence of str, optional
        At most three; by default bias@k for each k, or the greatest skew.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from nnnorm.study import audit
    >>> figure = plot_audit(audit(np.eye(2), np.eye(2), groups=["a", "b"], ks=[1]))
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['bias@1']
    """
    if metrics is None:
        names = list(audit.before)
        metrics = [name for name in names if name.startswith("bias@")][:3]
        metrics = metrics or [name for name in names if name.startswith("max skew")][:3]
    if not 1 <= len(metrics) <= 3:
        raise NNNormError(f"a plot shows one to three figures; got {len(metrics)}")
    for metric in metrics:
        audit.line(metric)  # raises with the figures that there are
    few = len(audit.queries) <= _MANY
    height = 1.6 + 0.19 * len(audit.queries) if few else 3.8
    figure, panels = make_panels(height, len(metrics))
    for number, (axes, metric) in enumerate(zip(panels, metrics, strict=True)):
        if few:
            _draw_queries(axes, audit, metric, order_by=metrics[0], named=number == 0)
        else:
            _draw_distribution(axes, audit, metric)
        _draw_means(axes, audit, metric)
        title = "Groups retrieved, query by query" if number == 0 else ""
        label_axes(axes, title, metric, "queries" if not few and number == 0 else "")
    handles, _ = panels[0].get_legend_handles_labels()
    note = f"bias@k = ({' − '.join(audit.difference)})/k" if audit.difference else None
    add_legend(figure, handles, note)
    return figure


def _draw_queries(axes: "Axes", audit: Audit, metric: str, *, order_by: str, named: bool) -> None:
    """A dot before and a dot after, joined, for each query; the largest `order_by` on top."""
    order = np.argsort(audit.before[order_by], kind="stable")
    places = np.arange(len(order))
    before = audit.before[metric][order]
    axes.scatter(before, places, s=52, color=ORANGE, zorder=3, label="before")
    if audit.after:
        after = audit.after[metric][order]
        axes.hlines(places, before, after, color="#C9C9C9", linewidth=2, zorder=2)
        axes.scatter(after, places, s=18, color=BLUE, marker="D", zorder=4, label="after")
    axes.set_ylim(-0.7, len(order) - 0.3)
    if named:
        axes.set_yticks(places, [audit.queries[query] for query in order])
        axes.tick_params(axis="y", labelsize=8.5)
    else:
        axes.tick_params(axis="y", labelleft=False)


def _draw_distribution(axes: "Axes", audit: Audit, metric: str) -> None:
    both = [values[metric] for values in (audit.before, audit.after) if values]
    edges = np.histogram_bin_edges(np.concatenate(both), bins=21)
    looks = ({"facecolor": "#F2C29B", "fill": True}, {"edgecolor": BLUE, "linewidth": 2})
    for values, look, label in zip(both, looks, ("before", "after"), strict=False):
        axes.stairs(np.histogram(values, edges)[0], edges, label=label, **look)  # type: ignore[arg-type]


def _draw_means(axes: "Axes", audit: Audit, metric: str) -> None:
    line = audit.line(metric)
    if metric.startswith(("bias@", "skew", "max skew")):
        axes.axvline(0, color=GREY, linewidth=1)
    axes.axvline(line.before.mean, color=ORANGE, linestyle="--", label="mean before")
    if line.after is not None:
        axes.axvline(line.after.mean, color=BLUE, linestyle="--", label="mean after")


def _interval(interval: Interval | None, *, signed: bool = False) -> str:
    if interval is None:
        return ""
    # Adding 0 makes the −0.000 of a sum's last bits 0.000.
    mean, low, high = (round(end, 3) + 0.0 for end in (interval.mean, interval.low, interval.high))
    form = "+.3f" if signed else ".3f"
    return f"{mean:{form}} [{low:.3f}, {high:.3f}]".replace("-", "−")
