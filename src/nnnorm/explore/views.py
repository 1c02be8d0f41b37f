"""The data of each view of the page.

Every view returns one dictionary of plain values and arrays, which `to_json` writes. Items are
described once per answer, under ``items``; arrays hold their numbers. `Views.paths` names the views
as the page asks for them, over HTTP or in a recorded page.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm import evaluation
from nnnorm.commands import wrap_command, write_command, write_fit
from nnnorm.dedup import NEAR_COPY, find_originals
from nnnorm.embeddings import FloatArray, IntArray, StoredMatrix, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.explore.material import Served
from nnnorm.explore.session import BoolArray, Session, Setting, draw_some, result_of
from nnnorm.input_checks import MISMATCH_Z, mismatch_z
from nnnorm.methods import label_method
from nnnorm.ranking import N_COMPARED, measure_confidence, search
from nnnorm.scoring import Matrix, top_k
from nnnorm.version import __version__

Which = Literal["any", "won", "lost"]
View: TypeAlias = dict[str, Any]
Where: TypeAlias = Mapping[str, str]
_ANYWHERE: Where = {}
_PATHS = (
    *("about", "queries", "search", "hubs", "hub", "hub/now", "scan"),
    *("quality", "grid", "map", "map/values", "items", "bank"),
)
# What may be missing, and changes what the page offers.
_OPTIONAL = ("truth", "captions", "query_captions", "reference_captions", "pictures", "encode")
N_HUBS = 30
_COLUMNS = 56  # of a command on the page
# The verdict on items if the inputs are too small for `scan`.
NOT_SCANNED = "not scanned"
_N_SHOWN = 12
_N_WRONG = 200
# Items this close, as a cosine, are shown as near copies.
_NEAR_COPY = 0.98
# Enough for the width of an interval on a screen; the reports of `evaluation` draw more.
_N_RESAMPLES = 1000


def to_json(view: View) -> str:
    """Write a view as JSON: arrays as lists, real numbers with the digits of float32."""

    def write(array: npt.NDArray[Any]) -> list[Any]:
        if array.dtype.kind != "f":
            return array.tolist()
        return [float(f"{number:.7g}") for number in array.tolist()]

    text = json.dumps(view, default=write, ensure_ascii=False, allow_nan=False)
    # Half of a pair, as in a file name that isn't UTF-8, becomes an escape of JSON.
    return text.encode(errors="backslashreplace").decode()


class Views:
    """The views of the page, one method each."""

    def __init__(self, session: Session) -> None:
        self.session, self.material = session, session.material

    @property
    def paths(self) -> dict[str, Callable[..., View]]:
        """The views by the path that the page asks for."""
        return {path: getattr(self, path.replace("/", "_")) for path in _PATHS}

    # --- what there is ---------------------------------------------------------------------------

    def about(self) -> View:
        """Describe the data, the methods with their controls, and the filters."""
        session, material = self.session, self.material
        return {
            "version": __version__,
            "n_gallery": len(material.gallery),
            "n_queries": len(material.queries),
            "n_sampled": len(session.chosen),
            "hit_k": session.hit_k,
            "hub_hits": evaluation.hub_hits(session.count_hits(None)),
            "n_references": session.unique.n_given,
            "n_unique": len(session.unique),
            "dim": material.gallery.dim,
            **{f"has_{name}": getattr(material, name) is not None for name in _OPTIONAL},
            "is_demo": not material.options,
            "served": None if material.served is None else material.served.describe(),
            "examples": list(material.examples),
            "example": session.choose_example(),
            "filters": session.filters,
            "notes": list(material.notes),
            "methods": [
                {
                    "name": name,
                    "label": Served.label if name == Served.name else label_method(name),
                    "knobs": [vars(knob) for knob in session.knobs(name)],
                }
                for name in session.offered
            ],
            "automatic": self._automatic(),
        }

    def queries(
        self, method: Setting, text: str = "", which: Which = "any", seed: int = 0, k: int = 8
    ) -> View:
        """Draw queries at random: of all, of those that a setting wins or loses, or with a text."""
        rows = np.arange(len(self.material.queries))
        if which != "any":
            rows = self.session.find_won(method)[which == "lost"]
        if words := text.lower().split():
            texts = self.material.query_captions
            if texts is None:
                raise NNNormError("the queries have no texts; pass --query-captions")
            has_all = [all(word in texts[row].lower() for word in words) for row in rows.tolist()]
            rows = rows[np.array(has_all, dtype=bool)]
        drawn = rows[draw_some(len(rows), k, seed)]
        return {"n_found": len(rows), "queries": self.list_queries(drawn)}

    def list_queries(self, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Return queries by number, with their texts."""
        return [{"query": int(row), "text": self.material.describe_query(int(row))} for row in rows]

    def items(self, items: Iterable[int]) -> View:
        """Describe some items by their numbers: id and caption."""
        material, found = self.material, {}
        for item in dict.fromkeys(map(int, items)):
            _check_below("item", item, len(material.gallery))
            name, caption = material.name_item(item), material.describe_item(item)
            found[str(item)] = {"id": name, "caption": caption}
        return {"items": found}

    def _automatic(self) -> dict[str, Any]:
        names = ("reference_k", "alpha", "center", "reliability")
        return {name: self.session.automatic.params.get(name) for name in names}

    def _setting(self, method: Setting) -> dict[str, Any]:
        """What the controls show, and the commands that make the same bias."""
        params = self.session.resolved(method)
        commands = [wrap_command(parts, _COLUMNS) for parts in self._commands(method)]
        return {"method": method.name, "params": params, "commands": commands}

    def _commands(self, method: Setting) -> list[list[str]]:
        names = {"gallery": "GALLERY.npy", "queries": "QUERIES.npy", "references": "PAST.npy"}
        given = {**names, "normalize": None, **self.material.options}
        queries = {"queries": given["queries"]}
        if isinstance(method, Served):
            weight = None if method == self.material.served else method.weight
            return [write_command("index search", {"": method.url, **queries, "weight": weight})]
        params = dict(method.params)
        if not method.is_automatic:
            params["duplicates"] = "drop"  # as the explorer itself does
        files = {name: given[name] for name in ("gallery", "references")}
        ask = {"gallery": given["gallery"], **queries, "bias": "bias.safetensors"}
        ask["normalize"] = given["normalize"]
        fit = write_fit(files, method.name, params, given["normalize"])
        return [fit, write_command("search", ask)]

    # --- search ----------------------------------------------------------------------------------

    def search(
        self,
        method: Setting,
        query: int | None = None,
        text: str | None = None,
        item: int | None = None,
        where: Where = _ANYWHERE,
        k: int = _N_SHOWN,
    ) -> View:
        """Show the first hits of one query (a number, a text, or an item), before and after."""
        row, asked, all_right = self._open_query(query, text, item)
        mask = self.session.mask(where)
        right = [one for one in all_right if mask[one]]
        n_items = int(mask.sum())
        raw = np.where(mask, self.session.score(row.tobytes(), None), np.float32(-np.inf))
        corrected = np.where(mask, self.session.score(row.tobytes(), method), np.float32(-np.inf))
        before, before_scores = _best(raw, min(k, n_items))
        after, after_scores = _best(corrected, min(max(k, N_COMPARED), n_items))
        confidence = float(measure_confidence(after_scores[None])[0])
        after, after_scores = after[:k], after_scores[:k]
        rank = None  # with a filter, that of the other queries isn't known
        if not where:
            rank = float((self.session.confidence(method) < confidence).mean())
        n_hits = self.session.count_hits(None)
        return {
            "query": asked,
            "right": right,
            "n_filtered_out": len(all_right) - len(right),
            "n_items": n_items,
            "confidence": confidence,
            "confidence_rank": rank,
            "setting": self._setting(method),
            **self.items([*before, *after, *right]),
            "before": before,
            "after": after,
            "before_scores": before_scores,
            "after_scores": after_scores,
            "before_now": _ranks(corrected, before),
            "after_was": _ranks(raw, after),
            "right_was": _ranks(raw, right),
            "right_now": _ranks(corrected, right),
            "before_hits": n_hits[before],
            "after_hits": n_hits[after],
        }

    def _open_query(
        self, query: int | None, text: str | None, item: int | None
    ) -> tuple[FloatArray, dict[str, Any], list[int]]:
        """The embedding of what is asked, how it is shown, and its right items."""
        material = self.material
        if [query, text, item].count(None) != 2:
            raise NNNormError("give one of query (a number), text, or item (a number)")
        if query is not None:
            _check_below("query", query, len(material.queries))
            row = material.queries.take(np.array([query]))
            shown = {"kind": "query", "number": query, "text": material.describe_query(query)}
            return row, shown, material.right_items(query)
        if item is not None:
            _check_below("item", item, len(material.gallery))
            row = self.session.gallery.take(np.array([item]))
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

    # --- hubs ------------------------------------------------------------------------------------

    def hubs(self, method: Setting, where: Where = _ANYWHERE) -> View:
        """Show how often items are hits, before and after, and the worst hubs."""
        session = self.session
        n_items = len(session.gallery)
        was, now = session.count_hits(None), session.count_hits(method)
        mask, bias = session.mask(where), session.bias_for(method)
        most = int(max(was.max(), now.max()))
        was_never, is_never = mask & (was == 0), mask & (now == 0)
        is_back = was_never & (now > 0)
        never, back = self._draw(is_never), self._draw(is_back)
        order = np.argsort(-was, kind="stable")
        hubs = order[mask[order] & (was[order] > 0)][:N_HUBS]
        wrong_share = np.full(len(hubs), -1.0)  # not known
        if session.truth is not None:
            found = session.hits(None)
            wrong = np.bincount(found[~self._is_right(found)], minlength=n_items)
            wrong_share = wrong[hubs] / was[hubs]
        is_ready = session.scan.done()  # asked first: the page repeats the request until it is
        return {
            "setting": self._setting(method),
            "n_uncertain": session.rank(method).n_uncertain,
            "before": evaluation.measure_hubness(was).to_dict(),
            "after": evaluation.measure_hubness(now).to_dict(),
            "n_never_before": int(was_never.sum()),
            "n_never": int(is_never.sum()),
            "n_back": int(is_back.sum()),
            "n_gone": int((is_never & ~was_never).sum()),
            "scan_is_ready": is_ready,
            "verdicts": [verdict for verdict, _ in self.verdicts(hubs)],
            **self.items([*hubs, *never, *back]),
            "histogram_before": np.bincount(was, minlength=most + 1),
            "histogram_after": np.bincount(now, minlength=most + 1),
            "expected": evaluation.expect_occurrences(int(was.sum()), n_items, most),
            "hubs": hubs,
            "hub_before": was[hubs],
            "hub_after": now[hubs],
            "hub_wrong": wrong_share,
            "hub_z": evaluation.robust_z(bias.values)[hubs],
            "hub_bias": bias.correction[hubs],
            "never": never,
            "back": back,
        }

    def hub(self, item: int) -> View:
        """Show the queries that an item is a hit of, wrongly if that is known, and its copies.

        They are grouped by what they ask for. `hub/now` has what a setting changes.
        """
        taken, wrong, groups = self._taken(item)
        copies = self._copies_of(item)
        is_ready = self.session.scan.done()
        ((verdict, reasons),) = self.verdicts([item])
        return {
            "n_before": len(taken),
            "n_wrong": None if self.session.truth is None else len(wrong),
            "verdict": verdict,
            "reasons": reasons,
            "scan_is_ready": is_ready,
            "groups": [self.list_queries(self.session.chosen[group]) for group in groups],
            **self.items([item, *copies]),
            "copies": copies,
        }

    def hub_now(self, method: Setting, item: int) -> View:
        """Show what a setting changes for the queries that an item is a hit of."""
        session = self.session
        _, wrong, groups = self._taken(item)
        first, bias = session.first(method), session.bias_for(method)
        is_hit = (session.hits(method) == item).any(axis=1)
        rows = np.concatenate([wrong[:0], *groups])
        return {
            "setting": self._setting(method),
            "n_after": int(is_hit.sum()),
            "n_freed": int((~is_hit[wrong]).sum()),
            "bias": float(bias.correction[item]),
            "bias_z": float(evaluation.robust_z(bias.values)[item]),
            "is_still_hit": is_hit[rows],
            "now_is_right": self._is_right(first)[rows],
        }

    @lru_cache(1024)
    def _taken(self, item: int) -> tuple[IntArray, IntArray, list[IntArray]]:
        """Queries that an item is a hit of, uncorrected; the wrong ones; some of these in groups.

        A group asks for one thing; the largest is listed first.
        """
        session = self.session
        _check_below("item", item, len(session.gallery))
        found = session.hits(None)
        is_taken = (found == item).any(axis=1)
        wrong = np.flatnonzero(((found == item) & ~self._is_right(found)).any(axis=1))
        shown = wrong[draw_some(len(wrong), _N_WRONG)]
        originals = find_originals(session.queries.take(shown))
        groups = [shown[originals == row] for row in np.unique(originals)]
        return np.flatnonzero(is_taken), wrong, sorted(groups, key=len, reverse=True)

    def _is_right(self, items: IntArray) -> BoolArray:
        """Whether items of each query are right; never if no truth is known."""
        truth = self.session.truth
        return np.zeros(items.shape, dtype=bool) if truth is None else truth.holds(items)

    def _draw(self, mask: BoolArray) -> IntArray:
        """Some of the items of a mask, drawn at random."""
        items = np.flatnonzero(mask)
        return items[draw_some(len(items), _N_SHOWN)]

    def verdicts(self, items: Iterable[Any]) -> list[tuple[str, list[str]]]:
        """Return the results of `scan` for items, with reasons, if it has finished."""
        found = result_of(self.session.scan) if self.session.scan.done() else None
        if found is None:
            return [(NOT_SCANNED, []) for _ in items]
        known = {one.item: (str(one.verdict), list(one.reasons)) for one in found.outliers}
        return [known.get(int(item), ("fine", [])) for item in items]

    @lru_cache(1024)
    def _copies_of(self, item: int) -> IntArray:
        gallery = open_embeddings(self.session.gallery, normalize=True)
        found = search(gallery.subset(np.array([item])), gallery, k=min(_N_SHOWN, len(gallery)))
        near = found.indices[0, found.scores[0] >= _NEAR_COPY]
        return near[near != item]

    def scan(self) -> View:
        """Return whether `nnnorm scan` is done."""
        return {"ready": self.session.scan.done()}

    # --- quality ---------------------------------------------------------------------------------

    @lru_cache(1024)
    def quality(self, method: Setting) -> View:
        """Show R@1, R@5 and R@10 before and after, with intervals."""
        session, setting = self.session, self._setting(method)
        if session.truth is None:
            return {"has_truth": False, "setting": setting}
        clusters, rows = session.clusters, []
        raw, done = self._evaluate(None), self._evaluate(method)
        for k in [k for k in (1, 5, 10) if k <= raw.depth]:
            was, now = raw.hits(k), done.hits(k)
            gain = evaluation.interval_of_difference(now, was, clusters, n_resamples=_N_RESAMPLES)
            moved = {"n_gained": int((now > was).sum()), "n_lost": int((now < was).sum())}
            recalls = {"before": self._recall(None, k), "after": self._recall(method, k)}
            rows.append({"k": k, **recalls, "gain": vars(gain), **moved})
        n_uncertain = session.rank(method).n_uncertain
        return {"has_truth": True, "setting": setting, "n_uncertain": n_uncertain, "recalls": rows}

    @lru_cache(16)
    def _evaluate(self, method: Setting | None) -> evaluation.Evaluation:
        ranking, n_items = self.session.rank(method).ranking, len(self.session.gallery)
        return evaluation.evaluate_ranking(ranking, self.session.truth, n_gallery=n_items)

    @lru_cache(64)
    def _recall(self, method: Setting | None, k: int) -> dict[str, float]:
        hits, clusters = self._evaluate(method).hits(k), self.session.clusters
        return vars(evaluation.interval_of_mean(hits, clusters, n_resamples=_N_RESAMPLES))

    def grid(self) -> View:
        """Show R@1 of a grid of reference_k and alpha, once it is there."""
        if not self.session.tuning.done():
            return {"ready": False}
        tuning = result_of(self.session.tuning)
        if tuning is None:
            return {"ready": True, "has_truth": False}
        own = [cell for cell in tuning.grid if cell.method == "nnn"]
        cells = [{**cell.params, "recall_at_1": cell.recall_at_1} for cell in own]
        uncorrected = tuning.uncorrected.recall_at_1
        return {"ready": True, "has_truth": True, "uncorrected": uncorrected, "cells": cells}

    # --- map and bank ----------------------------------------------------------------------------

    def map(self) -> View:
        """Show the places of items on the map, once they are there."""
        if not self.session.map.done():
            return {"ready": False}
        items, places = self.session.map.result()
        return {
            "ready": True,
            "ids": [self.material.name_item(int(item)) for item in items],
            "map_items": items,
            "x": places[:, 0],
            "y": places[:, 1],
        }

    def map_values(self, method: Setting, where: Where = _ANYWHERE) -> View:
        """Show what the items of the map are colored by."""
        session = self.session
        if not session.map.done():
            return {"ready": False}
        items, _ = session.map.result()
        return {
            "ready": True,
            "setting": self._setting(method),
            "bias": session.bias_for(method).correction[items],
            "before": session.count_hits(None)[items],
            "after": session.count_hits(method)[items],
            "is_kept": session.mask(where)[items],
        }

    @lru_cache(1)
    def bank(self) -> View:
        """Show the unique past queries, how well they match the queries, and any drift."""
        session, material, unique = self.session, self.material, self.session.unique
        asked = session.queries
        if session.clusters is not None:  # texts of one item are closer to each other than to these
            asked = asked.subset(np.unique(session.clusters, return_index=True)[1])
        z = mismatch_z(material.references, asked)
        drift = None
        if material.corrector is not None:
            try:
                drift = evaluation.measure_drift(material.corrector, material.queries).to_dict()
            except NNNormError as error:  # the rest of the view does not need it
                drift = {"error": str(error)}
        texts = material.reference_captions
        rows, counts = np.asarray(unique.rows), np.asarray(unique.counts)
        most = np.argsort(-counts, kind="stable")[:20]
        most = most[counts[most] > 1]
        return {
            "n_references": unique.n_given,
            "n_unique": len(unique),
            "is_sample": unique.is_sample,
            "near_copy": NEAR_COPY,
            "n_copies": int((counts - 1).sum()),
            "mismatch_z": None if np.isnan(z) else float(z),
            "mismatch_limit": MISMATCH_Z,
            "drift": drift,
            "most_asked": [
                {"row": int(row), "count": int(times), "text": "" if texts is None else texts[row]}
                for row, times in zip(rows[most], counts[most], strict=True)
            ],
            "automatic": self._automatic(),
        }


def _check_below(what: str, number: int, n_rows: int) -> None:
    if not 0 <= number < n_rows:
        raise NNNormError(f"{what} must be from 0 to {n_rows - 1}; got {number}")


def _best(scores: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """The best items and their scores."""
    found = top_k(Matrix(StoredMatrix([scores[None, :]], "scores")), k)
    return found.indices[0], found.scores[0]


def _ranks(scores: FloatArray, items: IntArray | list[int]) -> IntArray:
    """Places of some items, from 1; as in `top_k`, ties go to the lower number."""
    places = [
        1 + np.count_nonzero(scores > score) + np.count_nonzero(scores[:item] == score)
        for item, score in zip(items, scores[items], strict=True)
    ]
    return np.array(places, dtype=np.int64)
