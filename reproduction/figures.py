"""The paper's figures: histograms of top-1 counts, bias by occupation, and hits of queries.

Figure 2 shows a hub that is top-1 for unrelated queries, and figure 3 a query for an occupation.
This module finds such queries: those whose top-1 is a wrong hub before and the right item after,
and those with the most uneven groups before.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nnnorm.evaluation import count_occurrences, find_hubs, find_rescued
from nnnorm.report import plots
from reproduction.material import EmbeddingFolder, Shown
from reproduction.paper import Cell, Experiment, PaperTable, find_fine_tuned
from reproduction.run import Runner

Figures: TypeAlias = dict[str, Callable[[], Any]]
_PLACES, _QUERIES = 10, 4


def find_figures(
    runner: Runner,
    table: PaperTable,
    cells: Sequence[Cell],
    prefix: str = "",
    folder: EmbeddingFolder | None = None,
) -> Figures:
    """Return the figures that belong to a table, as functions that draw them."""
    after = [c.experiment for c in cells if c.figure and c.experiment.method == "nnn"]
    if not after:
        return {}
    if table.name == "gender":
        return {
            f"{prefix}gender.png": lambda: plots.plot_audit(runner.groups(after[0])),
            f"{prefix}gender-first-ten.png": lambda: draw_groups(runner, after[0]),
        }
    figures: Figures = {}
    by_direction = {there.direction: there for there in reversed(after)}
    if table.name in ("hubness", "cross-attention"):
        for direction, there in by_direction.items():
            draw = partial(draw_histogram, runner, there, folder)
            figures[f"{prefix}{table.name}-{direction}.png"] = draw
    if table.name == "hubness":
        figures[f"{prefix}hubs-first-ten.png"] = lambda: draw_rescued(runner, by_direction["image"])
    return figures


def draw_histogram(runner: Runner, there: Experiment, folder: EmbeddingFolder | None) -> Any:
    """Draw the counts before and after, and those of the fine-tuned model if available."""
    before, after = (runner.occurrences(replace(there, method=how)) for how in ("none", "nnn"))
    third, labels = None, ["uncorrected", "NNN"]
    model = find_fine_tuned(there.model, there.dataset)
    if model is not None and folder is not None and folder.has(model, there.dataset):
        third = runner.occurrences(replace(there, model=model, method="none"))
        labels.append(model)
    title = f"{there.model}, {there.direction} retrieval: how often each item is top-1"
    return plots.plot_occurrences(before, after, third, labels=labels, title=title)


def draw_rescued(runner: Runner, experiment: Experiment) -> Any:
    """Draw queries whose top-1 is a hub without NNN and right with it."""
    before = runner.search(replace(experiment, method="none"), _PLACES)
    after = runner.search(experiment, _PLACES)
    shown, right = runner.show(experiment)
    counts = count_occurrences(before.indices[:, :1], len(shown.items))
    hubs = frozenset(map(int, find_hubs(counts)))
    first: dict[int, int] = {}  # one query per hub, to show several hubs
    for query in find_rescued(before.indices, after.indices, right, list(hubs)):
        first.setdefault(int(before.indices[query, 0]), int(query))
    found = [
        plots.Hits(
            f"{shown.queries[query]} - the hub is top-1 for {counts[hub]} queries",
            before.indices[query].tolist(),
            after.indices[query].tolist(),
            frozenset(map(int, right.items[right.starts[query] : right.starts[query + 1]])),
        )
        for hub, query in list(first.items())[:_QUERIES]
    ]
    found = found or [plots.Hits("no query whose top-1 was a hub is right now", [])]

    def color(hits: plots.Hits, item: int) -> str | None:
        return plots.GREEN if item in hits.right else plots.ORANGE if item in hubs else None

    return plots.plot_hits(found, _show(shown), color, "green: the right item, orange: a hub")


def draw_groups(runner: Runner, experiment: Experiment) -> Any:
    """Draw the queries with the most uneven first ten, each item framed by its group."""
    about, before = runner.search_groups(replace(experiment, method="none"), _PLACES)
    _, after = runner.search_groups(experiment, _PLACES)
    one, other = about.difference
    colors = {one: plots.ORANGE, other: plots.BLUE}
    groups = np.array(about.groups)[before.indices]
    lean = np.abs((groups == one).sum(axis=1) - (groups == other).sum(axis=1))
    found = [
        plots.Hits(about.shown.queries[q], before.indices[q].tolist(), after.indices[q].tolist())
        for q in np.argsort(-lean, kind="stable")[:_QUERIES]
    ]
    note = f"orange: {one}, blue: {other}"
    return plots.plot_hits(
        found, _show(about.shown), lambda _, item: colors.get(about.groups[item]), note
    )


def _show(shown: Shown) -> Callable[[int], Any]:
    return shown.picture or (lambda item: shown.items[item])
