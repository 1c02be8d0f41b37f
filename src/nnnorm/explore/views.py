"""What each view of the page shows, from the functions of the package.

Every function returns a description for JSON and arrays for `pack`. Items are described once per
answer, under ``items``; arrays hold their numbers.
"""

import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.dedup import NEAR_COPY, UniqueRows, as_units, describe_size, unique_rows
from nnnorm.embeddings import ScoreMatrix
from nnnorm.errors import NNNormError
from nnnorm.evaluation import (
    clusters_of,
    evaluate_ranking,
    expect_occurrences,
    interval_of_difference,
    interval_of_mean,
    list_hubs,
    measure_drift,
    measure_hubness,
    robust_z,
)
from nnnorm.evaluation.outliers import Outlier
from nnnorm.explore.served import Served
from nnnorm.explore.session import Session
from nnnorm.input_checks import MISMATCH_Z, mismatch_z
from nnnorm.methods import Method, describe_setting
from nnnorm.ranking import Ranking, search
from nnnorm.scoring import Matrix, top_k
from nnnorm.version import __version__

FloatArray: TypeAlias = npt.NDArray[np.float32]
Which = Literal["any", "won", "lost"]
View: TypeAlias = tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]
N_HUBS = 30
# The verdict on items where the inputs are too small for `scan`.
NOT_SCANNED = "not scanned"
_N_SHOWN = 12
_N_WRONG = 200
# Items this close, as a cosine, are shown as near copies.
_NEAR_COPY = 0.98
_MOST_COPIES = 5000
_N_GROUPS = 12
# Enough for the width of an interval on a screen; the reports of `evaluation` draw more.
_N_RESAMPLES = 1000


class Views:
    """The answers of the page, one method per view."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def about(self) -> dict[str, Any]:
        """Describe the data, the methods with their controls, and the filters."""
        session = self.session
        material = session.material
        intents = session.used if isinstance(session.used, UniqueRows) else None
        return {
            "version": __version__,
            "n_gallery": len(material.gallery),
            "n_queries": len(material.queries),
            "n_sampled": len(session.chosen),
            "n_references": len(material.references) if intents is None else intents.n_rows,
            "n_unique": len(session.used),
            "dim": material.gallery.dim,
            "has_truth": material.truth is not None,
            "has_pictures": material.pictures is not None,
            "can_encode": material.encode is not None,
            "has_query_captions": material.query_captions is not None,
            "is_demo": not material.options,
            "served": None if material.served is None else material.served.describe(),
            "examples": list(material.examples),
            "example": session.choose_example(),
            "filters": session.filters,
            "notes": list(material.notes),
            "methods": [
                {
                    "name": name,
                    "label": session.open_method(name, {}).variant.label,
                    "knobs": [vars(knob) for knob in session.knobs(name)],
                }
                for name in session.offered
            ],
            "automatic": _automatic(session),
        }

    def queries(
        self, method: Method, *, text: str = "", which: Which = "any", seed: int = 0, k: int = 8
    ) -> dict[str, Any]:
        """Draw queries at random: of all, of those that a setting wins or loses, or with a text."""
        session = self.session
        material = session.material
        wanted = text.lower().split()
        rows = np.arange(len(material.queries))
        if which != "any":
            rows = session.find_won(method)[which == "lost"]
        if wanted:
            if material.query_captions is None:
                raise NNNormError("the queries have no texts; give --query-captions")
            texts = ((row, material.query_captions[row].lower()) for row in rows.tolist())
            rows = np.array(
                [row for row, one in texts if all(word in one for word in wanted)], np.int64
            )
        some = rows
        if len(rows) > k:
            some = np.random.default_rng(seed).choice(rows, k, replace=False)
        return {
            "n_found": len(rows),
            "queries": [
                {"query": int(row), "text": material.describe_query(int(row))} for row in some
            ],
        }

    def search(
        self,
        method: Method,
        *,
        query: int | None = None,
        text: str | None = None,
        item: int | None = None,
        where: Mapping[str, str] | None = None,
        k: int = _N_SHOWN,
    ) -> View:
        """Show the first places of one query, before and after."""
        session = self.session
        material = session.material
        row, asked, right = _open_query(session, query, text, item)
        mask = session.mask(where or {})
        n_right = len(right)
        if mask is not None:
            right = [one for one in right if mask[one]]
        n_items = len(material.gallery) if mask is None else int(mask.sum())
        k = min(k, n_items)
        scores = [_masked(session.score(row, some), mask) for some in (None, method)]
        before, after = (top_k(_matrix(one), k) for one in scores)
        shown = np.union1d(before.indices[0], after.indices[0])
        shown = np.union1d(shown, np.array(right, dtype=np.int64))
        ranks = [_ranks(one, shown) for one in scores]
        first = session.count_first(None)
        about = {
            "query": asked,
            "right": right,
            "n_filtered_out": n_right - len(right),
            "n_items": n_items,
            "setting": _setting(session, method),
            "items": _items(session, shown),
        }
        places = {int(one): place for place, one in enumerate(shown)}
        return about, {
            "before": before.indices[0],
            "after": after.indices[0],
            "before_scores": before.scores[0],
            "after_scores": after.scores[0],
            "before_now": ranks[1][[places[int(one)] for one in before.indices[0]]],
            "after_was": ranks[0][[places[int(one)] for one in after.indices[0]]],
            "right_ranks": np.array(
                [[some[places[one]] for one in right] for some in ranks], dtype=np.int64
            ),
            "before_first": first[before.indices[0]],
            "after_first": first[after.indices[0]],
        }

    def hubs(self, method: Method, where: Mapping[str, str] | None = None) -> View:
        """Show how often items come first, before and after, and the worst hubs."""
        session = self.session
        n_items, n_queries = len(session.gallery), len(session.queries)
        counts = [session.count_first(some) for some in (None, method)]
        mask = session.mask(where or {})
        answer = session.rank(method)
        bias = session.bias_for(method)
        most = int(max(some.max() for some in counts))
        was_never, is_never = (some == 0 for some in counts)
        if mask is not None:
            was_never, is_never = was_never & mask, is_never & mask
        is_back = was_never & (counts[1] > 0)
        never, back = (_draw(session, some) for some in (is_never, is_back))
        hubs = _list_hubs(session, bias, mask)
        is_ready = session.scan.is_ready  # before the verdicts: the page asks again until it is
        outliers = _outliers(session)
        wrong = [-1.0 if hub.wrong_share is None else hub.wrong_share for hub in hubs]
        rows = np.array([hub.item for hub in hubs], dtype=np.int64)
        about = {
            "setting": _setting(session, method),
            "n_queries": n_queries,
            "n_items": n_items,
            "n_uncertain": answer.n_uncertain,
            "before": measure_hubness(counts[0]).to_dict(),
            "after": measure_hubness(counts[1]).to_dict(),
            "n_never_before": int(was_never.sum()),
            "n_never": int(is_never.sum()),
            "n_back": int(is_back.sum()),
            "n_gone": int((is_never & ~was_never).sum()),
            "scan_is_ready": is_ready,
            "verdicts": [_verdict(outliers, item) for item in rows.tolist()],
            "items": _items(session, [*rows, *never, *back]),
        }
        return about, {
            "histogram_before": np.bincount(counts[0], minlength=most + 1),
            "histogram_after": np.bincount(counts[1], minlength=most + 1),
            "expected": expect_occurrences(n_queries, n_items, most),
            "hubs": rows,
            "hub_before": counts[0][rows],
            "hub_after": counts[1][rows],
            "hub_wrong": np.array(wrong, dtype=np.float64),
            "hub_z": robust_z(bias.values)[rows],
            "hub_bias": bias.correction[rows],
            "never": never,
            "back": back,
        }

    def hub(self, method: Method, item: int) -> View:
        """Show the queries that an item answered first, wrongly where that is known, by intent."""
        session = self.session
        _check_below("item", item, len(session.gallery))
        about, arrays = self.hub_before(item)
        now, more = self.hub_after(method, item)
        return {**about, **now}, {**arrays, **more}

    def hub_before(self, item: int) -> View:
        """Show the part of `hub` that is the same for all settings."""
        session = self.session
        taken, wrong, groups = _taken(session, item)
        copies = session.views.get(("copies", item), lambda: _copies_of(session, item))
        is_ready = session.scan.is_ready
        outliers = _outliers(session)
        outlier = None if outliers is None else outliers.get(item)
        about = {
            "item": item,
            "n_before": len(taken),
            "n_wrong": None if session.truth is None else len(wrong),
            "n_shown": sum(map(len, groups)),
            "verdict": _verdict(outliers, item),
            "reasons": [] if outlier is None else list(outlier.reasons),
            "scan_is_ready": is_ready,
            "groups": [
                [
                    {
                        "query": int(session.chosen[row]),
                        "text": session.material.describe_query(int(session.chosen[row])),
                    }
                    for row in group
                ]
                for group in groups
            ],
            "items": _items(session, [item, *copies]),
        }
        return about, {"copies": copies}

    def hub_after(self, method: Method, item: int) -> View:
        """Show the part of `hub` that a setting changes."""
        session = self.session
        _, wrong, groups = _taken(session, item)
        first = session.rank(method).ranking.indices[:, 0]
        bias = session.bias_for(method)
        rows = np.concatenate([wrong[:0], *groups])
        about = {
            "setting": _setting(session, method),
            "n_after": int((first == item).sum()),
            "n_freed": int((first[wrong] != item).sum()),
            "bias": float(bias.correction[item]),
            "bias_z": float(robust_z(bias.values)[item]),
        }
        is_right = [int(first[row]) in _right(session, row) for row in rows]
        return about, {"now": first[rows], "now_is_right": np.array(is_right, dtype=np.bool_)}

    def copies(self) -> dict[str, Any]:
        """Show groups of items that are nearly the same."""
        session = self.session
        return session.views.get("copies", lambda: _find_copies(session))

    def scan(self) -> dict[str, Any]:
        """Show the verdicts of `scan`, once they are there."""
        session = self.session
        if not session.scan.is_ready:
            return {"ready": False}
        found = session.scan.result()
        if found is None:
            return {"ready": True, "is_scanned": False, "outliers": []}
        return {
            "ready": True,
            "is_scanned": True,
            **found.to_dict(),
            "items": _items(session, [one.item for one in found.outliers]),
        }

    def quality(self, method: Method) -> dict[str, Any]:
        """Show R@1, R@5 and R@10 before and after, with intervals."""
        session = self.session
        if session.truth is None:
            return {"has_truth": False, "setting": _setting(session, method)}
        return session.views.get(("quality", method), lambda: _measure_quality(session, method))

    def grid(self) -> dict[str, Any]:
        """Show R@1 of a grid of k and α, once it is there."""
        session = self.session
        if session.truth is None:
            return {"ready": True, "has_truth": False}
        if not session.tuning.is_ready:
            return {"ready": False}
        tuning = session.tuning.result()
        if tuning is None:
            return {"ready": True, "has_truth": False}
        cells = [cell for cell in tuning.grid if cell.method == "nnn"]
        return {
            "ready": True,
            "has_truth": True,
            "uncorrected": tuning.uncorrected.recall_at_1,
            "best": dict(tuning.best_by_rule.params),
            "highest": dict(tuning.best_by_maximum.params),
            "cells": [{**cell.params, "recall_at_1": cell.recall_at_1} for cell in cells],
        }

    def map(self) -> View:
        """Show the places of items on the map, once they are there."""
        session = self.session
        if not session.map.is_ready:
            return {"ready": False}, {}
        items, places = session.map.wait()
        about = {
            "ready": True,
            "n_items": len(session.gallery),
            "ids": [session.material.name_item(int(item)) for item in items],
        }
        return about, {"map_items": items, "x": places[:, 0], "y": places[:, 1]}

    def map_values(self, method: Method, where: Mapping[str, str] | None = None) -> View:
        """Show what the items of the map are coloured by."""
        session = self.session
        if not session.map.is_ready:
            return {"ready": False}, {}
        items, _ = session.map.wait()
        mask = session.mask(where or {})
        bias = session.bias_for(method)
        about = {"ready": True, "setting": _setting(session, method)}
        return about, {
            "bias": bias.correction[items],
            "z": robust_z(bias.values)[items],
            "before": session.count_first(None)[items],
            "after": session.count_first(method)[items],
            "is_kept": np.ones(len(items), bool) if mask is None else mask[items],
        }

    def items(self, items: Iterable[int]) -> dict[str, Any]:
        """Describe some items."""
        session = self.session
        numbers = list(items)
        for item in numbers:
            _check_below("item", item, len(session.gallery))
        return {"items": _items(session, numbers)}

    def bank(self) -> View:
        """Show the intents of the bank, what it has in common with the queries, and any drift."""
        session = self.session
        return session.views.get("bank", lambda: _describe_bank(session))


# --- about ---------------------------------------------------------------------------------------


def _setting(session: Session, method: Method) -> dict[str, Any]:
    """What the controls show, and the commands that make the same bias."""
    params = session.settled(method)
    return {
        "method": method.name,
        "label": method.variant.label,
        "params": params,
        "text": method.describe()
        if isinstance(method, Served)
        else describe_setting(method.name, params, ", ", " = "),
        "commands": _commands(session, method),
    }


def _automatic(session: Session) -> dict[str, Any]:
    params = session.automatic.params
    names = ("reference_k", "alpha", "center", "reliability", "density")
    return {name: params.get(name) for name in names}


def _commands(session: Session, method: Method) -> list[str]:
    options = session.material.options
    if isinstance(method, Served):
        url, queries = shlex.quote(method.url), shlex.quote(options["queries"])
        changed = "" if method == session.material.served else f" --weight {method.weight:g}"
        return [f"nnnorm index search {url} --queries {queries}{changed}"]
    chosen = f"--method {method.name}"
    for name, value in method.params.items():
        is_switch = isinstance(value, bool)
        shown = str(value).lower() if is_switch or isinstance(value, str) else f"{value:g}"
        if name in ("reference_k", "alpha"):
            chosen += f" --{name.replace('_', '-')} {shown}" if value != "auto" else ""
        elif value != "auto":
            chosen += f" --set {name}={shown}"
    if not method.is_automatic:
        chosen += " --duplicates drop"  # as the explorer itself does
    ending = {"yes": " --normalize", "no": " --no-normalize"}.get(options.get("normalize", ""), "")
    gallery, queries, references = (
        shlex.quote(options.get(name, otherwise))
        for name, otherwise in (
            ("gallery", "GALLERY.npy"),
            ("queries", "QUERIES.npy"),
            ("references", "PAST_QUERIES.npy"),
        )
    )
    return [
        f"nnnorm fit --gallery {gallery} --references {references} {chosen}{ending} "
        "-o bias.safetensors",
        f"nnnorm search --gallery {gallery} --queries {queries} --bias bias.safetensors{ending}",
    ]


def _items(session: Session, items: Iterable[Any]) -> dict[str, Any]:
    """Id, caption and metadata of items, by number."""
    material, found = session.material, {}
    for item in dict.fromkeys(map(int, items)):
        found[str(item)] = {
            "id": material.name_item(item),
            "caption": material.describe_item(item),
            "metadata": {name: material.metadata[name][item] for name in session.filters},
        }
    return found


# --- search --------------------------------------------------------------------------------------


def _open_query(
    session: Session, query: int | None, text: str | None, item: int | None
) -> tuple[FloatArray, dict[str, Any], list[int]]:
    """The embedding of what is asked, how it is shown, and its right items."""
    material = session.material
    if [query, text, item].count(None) != 2:
        raise NNNormError("give one of query (a number), text, or item (a number)")
    if query is not None:
        _check_below("query", query, len(material.queries))
        row = material.queries.take(np.array([query]))
        shown = {"kind": "query", "number": query, "text": material.describe_query(query)}
        return row, shown, material.right_items(query)
    if item is not None:
        _check_below("item", item, len(material.gallery))
        row = session.gallery.take(np.array([item]))
        shown = {"kind": "item", "number": item, "text": material.describe_item(item)}
        return row, shown, []
    if material.encode is None:
        raise NNNormError(
            "typed queries need an encoder; start with --encoder MODEL, or pick a query"
        )
    if not str(text).strip():
        raise NNNormError("the query is empty; type a few words")
    row = np.asarray(material.encode(str(text)), dtype=np.float32)
    return row, {"kind": "text", "number": -1, "text": text}, []


def _check_below(what: str, number: int, n_rows: int) -> None:
    if not 0 <= number < n_rows:
        raise NNNormError(f"{what} must be from 0 to {n_rows - 1}; got {number}")


def _masked(scores: FloatArray, mask: npt.NDArray[np.bool_] | None) -> FloatArray:
    return scores if mask is None else np.where(mask, scores, -np.inf).astype(np.float32)


def _matrix(scores: FloatArray) -> Matrix:
    return Matrix(ScoreMatrix([scores[None, :]], role="scores"))


def _ranks(scores: FloatArray, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places of some items, from 1; as in `top_k`, ties go to the lower number."""
    places = [
        1
        + np.count_nonzero(scores > scores[item])
        + np.count_nonzero(scores[:item] == scores[item])
        for item in items
    ]
    return np.array(places, dtype=np.int64)


# --- hubs ----------------------------------------------------------------------------------------


def _list_hubs(session: Session, bias: Bias, mask: npt.NDArray[np.bool_] | None) -> list[Any]:
    ranking = session.rank(None).ranking
    first = Ranking(ranking.scores[:, :1], ranking.indices[:, :1])
    most = N_HUBS if mask is None else len(session.gallery)
    hubs = list_hubs(first, len(session.gallery), truth=session.truth, bias=bias, most=most)
    return [hub for hub in hubs if mask is None or mask[hub.item]][:N_HUBS]


def _taken(
    session: Session, item: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """Queries that an item answers first, uncorrected; the wrong ones; some of these by intent."""

    def find() -> tuple[Any, Any, list[Any]]:
        taken = np.flatnonzero(session.rank(None).ranking.indices[:, 0] == item)
        wrong = taken
        if session.truth is not None:
            is_wrong = [item not in _right(session, row) for row in taken]
            wrong = taken[np.array(is_wrong, dtype=np.bool_)]
        shown = wrong
        if len(wrong) > _N_WRONG:
            rng = np.random.default_rng(session.seed)
            shown = np.sort(rng.choice(wrong, _N_WRONG, replace=False))
        return taken, wrong, _group(session, shown)

    return session.views.get(("taken", item), find)


def _draw(session: Session, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Some of the items of a mask, drawn at random."""
    items = np.flatnonzero(mask)
    rng = np.random.default_rng(session.seed)
    return items if len(items) <= _N_SHOWN else np.sort(rng.choice(items, _N_SHOWN, replace=False))


def _outliers(session: Session) -> dict[int, Outlier] | None:
    """Items that are not fine, by number; None while the scan goes on, or where it is refused."""
    found = session.scan.result() if session.scan.is_ready else None
    return None if found is None else {outlier.item: outlier for outlier in found.outliers}


def _verdict(outliers: Mapping[int, Outlier] | None, item: int) -> str:
    if outliers is None:
        return NOT_SCANNED
    return outliers[item].verdict if item in outliers else "fine"


def _right(session: Session, row: Any) -> list[int]:
    return session.material.right_items(int(session.chosen[row]))


def _group(session: Session, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Queries by intent, the largest group first."""
    if len(rows) == 0:
        return []
    asked = session.queries.subset(rows)
    leaders = unique_rows(asked).embeddings
    scores = as_units(asked.rows(0, len(asked))) @ as_units(leaders.rows(0, len(leaders))).T
    nearest = scores.argmax(axis=1)
    groups = [rows[nearest == leader] for leader in range(len(leaders))]
    return sorted((group for group in groups if len(group)), key=len, reverse=True)


def _copies_of(session: Session, item: int) -> npt.NDArray[np.int64]:
    row = session.gallery.take(np.array([item]))
    k = min(_N_SHOWN, len(session.gallery))
    found = search(as_units(row), session.gallery, k=k).indices[0]
    cosines = as_units(session.gallery.take(found)) @ as_units(row)[0]
    return found[(cosines >= _NEAR_COPY) & (found != item)]


def _find_copies(session: Session) -> dict[str, Any]:
    """Of a large gallery, copies of the items that come first most often."""
    counts = session.count_first(None)
    rows = np.argsort(-counts, kind="stable")[:_MOST_COPIES]
    k = min(6, len(session.gallery))
    found = search(session.gallery.subset(rows), session.gallery, k=k).indices
    parent: dict[int, int] = {}

    def find(one: int) -> int:
        while parent.setdefault(one, one) != one:
            one = parent[one]
        return one

    for row, near in zip(rows, found, strict=True):
        cosines = (
            as_units(session.gallery.take(near))
            @ as_units(session.gallery.take(np.array([row])))[0]
        )
        for other in near[(cosines >= _NEAR_COPY) & (near != row)]:
            parent[find(int(other))] = find(int(row))
    groups: dict[int, list[int]] = {}
    for one in parent:
        groups.setdefault(find(one), []).append(one)
    largest = sorted((sorted(group) for group in groups.values()), key=len, reverse=True)
    return {
        "cosine": _NEAR_COPY,
        "n_groups": len(largest),
        "n_looked_at": len(rows),
        "groups": [group[:_N_SHOWN] for group in largest[:_N_GROUPS]],
        "items": _items(session, [item for group in largest[:_N_GROUPS] for item in group]),
    }


# --- quality -------------------------------------------------------------------------------------


def _measure_quality(session: Session, method: Method) -> dict[str, Any]:
    truth, n_items = session.truth, len(session.gallery)
    answers = [session.rank(some) for some in (None, method)]
    raw, done = (evaluate_ranking(one.ranking, truth, n_gallery=n_items) for one in answers)
    clusters = clusters_of(truth) if truth is not None else None
    rows = []
    for k in [k for k in (1, 5, 10) if k <= raw.depth]:
        before, after = raw.hits(k), done.hits(k)
        uncorrected = session.views.get(
            ("uncorrected", k),
            partial(interval_of_mean, before, clusters, n_resamples=_N_RESAMPLES),
        )
        rows.append(
            {
                "k": k,
                "before": vars(uncorrected),
                "after": vars(interval_of_mean(after, clusters, n_resamples=_N_RESAMPLES)),
                "gain": vars(
                    interval_of_difference(after, before, clusters, n_resamples=_N_RESAMPLES)
                ),
                "n_gained": int((after > before).sum()),
                "n_lost": int((after < before).sum()),
            }
        )
    return {
        "has_truth": True,
        "setting": _setting(session, method),
        "n_queries": len(session.queries),
        "n_uncertain": answers[1].n_uncertain,
        "recalls": rows,
    }


# --- map -----------------------------------------------------------------------------------------


# --- bank ----------------------------------------------------------------------------------------


def _describe_bank(session: Session) -> View:
    material, used = session.material, session.used
    counts = used.counts if isinstance(used, UniqueRows) else np.ones(len(used), dtype=np.int64)
    rows = used.rows if isinstance(used, UniqueRows) else np.arange(len(used))
    order = np.argsort(-counts, kind="stable")[:20]
    texts = material.reference_captions
    asked = session.queries
    if session.truth is not None:  # captions of one item are closer to each other than to the bank
        asked = asked.subset(np.unique(clusters_of(session.truth), return_index=True)[1])
    z = mismatch_z(material.references, asked)
    drift = None
    if material.corrector is not None and material.recent is not None:
        try:
            drift = measure_drift(material.corrector, material.recent).to_dict()
        except NNNormError as error:  # the rest of the view does not need it
            drift = {"error": str(error)}
    n_rows = used.n_rows if isinstance(used, UniqueRows) else len(used)
    about = {
        "n_references": n_rows,
        "n_unique": len(used),
        "is_sample": isinstance(used, UniqueRows) and used.is_sample,
        "size": describe_size(n_rows, len(used), isinstance(used, UniqueRows) and used.is_sample),
        "near_copy": NEAR_COPY,
        "n_copies": int((counts - 1).sum()),
        "mismatch_z": None if np.isnan(z) else float(z),
        "mismatch_limit": MISMATCH_Z,
        "drift": drift,
        "intents": [
            {
                "row": int(rows[place]),
                "count": int(counts[place]),
                "text": "" if texts is None else texts[int(rows[place])],
            }
            for place in order
        ],
        "automatic": _automatic(session),
    }
    return about, {"histogram": np.bincount(np.minimum(counts, 50))}
