"""Contact sheets of the paper's figures: the first ten items before and after NNN.

Figure 2 shows a surfer, a hub that answers the queries of others; figure 3 a query for an
occupation. Here the queries are found: those that a hub had answered and that are right after, and
those whose groups are the most uneven before.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.evaluation import count_occurrences, find_hubs, find_rescued
from nnnorm.report import BLUE, ORANGE, Colour, Hits, draw_hits, frame_right
from nnnorm.reproduce.material import Shown
from nnnorm.reproduce.paper import Experiment
from nnnorm.reproduce.run import Runner

Bytes: TypeAlias = npt.NDArray[np.uint8]
_PLACES = 10
_QUERIES = 4


def draw_rescued(runner: Runner, experiment: Experiment) -> Bytes:
    """Draw queries that a hub answers without NNN and that are right with it.

    Parameters
    ----------
    runner : Runner
    experiment : Experiment
        With NNN.

    Returns
    -------
    ndarray, shape (height, width, 3), uint8

    Examples
    --------
    >>> from nnnorm.reproduce.standins import open_stand_in
    >>> name, shapes = open_stand_in("shapes")
    >>> params = {"reference_k": 64, "alpha": 0.75}
    >>> there = Experiment("recall_at_1", name, name, "image", "nnn", "own", params=params)
    >>> draw_rescued(Runner(lambda *_: shapes), there).shape[2]
    3
    """
    before, after = _search_both(experiment, lambda there: runner.search(there, _PLACES))
    shown, right = runner.show(experiment)
    counts = count_occurrences(before.indices[:, :1], len(shown.items))
    hubs = frozenset(map(int, find_hubs(counts)))
    rescued = find_rescued(before.indices, after.indices, right, list(hubs))
    found = []
    for query in _apart(rescued, before.indices[:, 0])[:_QUERIES]:
        items = right.items[right.starts[query] : right.starts[query + 1]]
        hub = before.indices[query, 0]
        found.append(
            Hits(
                f"{shown.queries[query]} - the hub comes first {counts[hub]} times",
                before.indices[query].tolist(),
                after.indices[query].tolist(),
                frozenset(map(int, items)),
            )
        )
    if not found:
        found = [Hits("no query was answered by a hub and is right now", [])]

    def frame(hits: Hits, item: int) -> Colour | None:
        return frame_right(hits, item) or (ORANGE if item in hubs else None)

    return draw_hits(found, _show(shown), frame, "green: the right item, orange: a hub")


def draw_groups(runner: Runner, experiment: Experiment) -> Bytes:
    """Draw the queries with the most uneven first ten, each item framed by its group.

    Examples
    --------
    >>> from nnnorm.reproduce.standins import open_stand_in
    >>> name, shapes = open_stand_in("shapes")
    >>> params = {"reference_k": 16, "alpha": 0.75}
    >>> there = Experiment("bias@10", name, name, "image", "nnn", "own", params=params)
    >>> draw_groups(Runner(lambda *_: shapes), there).shape[2]
    3
    """
    (about, before), (_, after) = _search_both(
        experiment, lambda there: runner.search_groups(there, _PLACES)
    )
    one, other = about.difference
    colours = {one: ORANGE, other: BLUE}
    groups = np.array(about.groups)[before.indices]
    lean = np.abs((groups == one).sum(axis=1) - (groups == other).sum(axis=1))
    found = [
        Hits(
            about.shown.queries[query],
            before.indices[query].tolist(),
            after.indices[query].tolist(),
        )
        for query in np.argsort(-lean, kind="stable")[:_QUERIES]
    ]
    return draw_hits(
        found,
        _show(about.shown),
        lambda _, item: colours.get(about.groups[item]),
        f"orange: {one}, blue: {other}",
    )


def _search_both(experiment: Experiment, search: Callable[[Experiment], Any]) -> tuple[Any, Any]:
    return search(replace(experiment, method="none")), search(experiment)


def _show(shown: Shown) -> Callable[[int], Bytes | str]:
    picture = shown.picture
    return (lambda item: shown.items[item]) if picture is None else picture


def _apart(queries: npt.NDArray[np.int64], hubs: npt.NDArray[np.int64]) -> list[int]:
    """One query per hub, so that a sheet shows several."""
    first: dict[int, int] = {}
    for query in queries:
        first.setdefault(int(hubs[query]), int(query))
    return list(first.values())
