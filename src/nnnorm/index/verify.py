"""`verify_index`: compare an index with the exact corrected search."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nnnorm.embeddings import Source
from nnnorm.errors import NNNormError, quiet
from nnnorm.index.backend import FloatArray, Items, chunks
from nnnorm.index.config import bias_values
from nnnorm.index.corrected import CorrectedIndex
from nnnorm.tables import check_ids

_GOOD_RECALL = {True: 1.0, False: 0.95}  # for engines that compare every item, and others
_GOOD_SCORE = 1e-3  # limit of the error, in spreads of the scores
_NEAR = 1e-2  # limit of a difference, in norms of a row or spreads of the bias
_FLAT = 1e-3  # a spread that is small next to the numbers themselves, in their size
_MOST_QUERIES = 200
_BLOCK = 64  # queries compared with all items at once


@dataclass(frozen=True)
class Verification:
    """The result of `verify_index`."""

    recall: float
    score_error: float
    n_queries: int
    n_items: int
    k: int
    problems: list[str]

    @property
    def is_good(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the result, ready for JSON."""
        return {**asdict(self), "is_good": self.is_good}


def verify_index(
    index: CorrectedIndex,
    queries: Source,
    *,
    gallery: Source | None = None,
    ids: Any = None,
    k: int = 10,
) -> Verification:
    """Compare an index with the exact corrected search of the items that it holds.

    Parameters
    ----------
    index : CorrectedIndex
        If it was opened with its corrector, the stored bias of every item is checked.
    queries : array or path, shape (n_queries, dim)
        At most 200 of them are searched, chosen at random.
    gallery : array or path, shape (n_gallery, dim), optional
        The items that the index should have, to compare all rows; needs the corrector.
    ids : sequence of int or str, optional
        Ids of the gallery, by default those of its file, or 0…n−1.
    k : int

    Returns
    -------
    Verification

    Examples
    --------
    >>> from nnnorm import Corrector, build_index, load_shapes
    >>> shapes = load_shapes()
    >>> corrector = Corrector.fit(shapes.gallery, shapes.references)
    >>> index = build_index("faiss:", shapes.gallery, corrector)
    >>> verify_index(index, shapes.queries).is_good
    True
    """
    parts = list(index.scan())
    if not parts:
        raise index.backend.error("has no items to verify")
    stored = Items.join(parts)
    problems = _check_bias(index, stored)
    if gallery is not None:
        problems += _check_rows(index, stored, gallery, ids)
    asked = index.config.open_queries(queries, index.backend.name)
    some = np.random.default_rng(0).permutation(len(asked))[:_MOST_QUERIES]
    asked = asked[np.sort(some)]
    recall, error, scale = _compare(index, asked, stored, k)
    if recall < _GOOD_RECALL[index.backend.is_exact] - 1e-3:
        problems.append(
            f"it finds only {100 * recall:.1f} % of the {k} best items: increase ef or probes, or "
            "use an exact kind of index"
        )
    if error > _GOOD_SCORE * scale:
        problems.append(f"its scores differ from the exact ones by up to {error:.2g}")
    return Verification(recall, error, len(asked), len(stored), k, problems)


def _compare(
    index: CorrectedIndex, queries: FloatArray, stored: Items, k: int
) -> tuple[float, float, float]:
    """Return the recall, the largest error of a score, and the spread of the scores."""
    place = {own: row for row, own in enumerate(stored.ids.tolist())}
    right, error, scale = 0, 0.0, 0.0
    wanted = min(k, len(stored))
    for some in chunks(queries, _BLOCK):
        exact = some @ stored.vectors.T - np.float32(index.config.weight) * np.asarray(stored.bias)
        scale = max(scale, float(np.ptp(exact)), _FLAT * float(np.abs(exact).max()))
        last = -np.partition(-exact, wanted - 1, axis=1)[:, wanted - 1]
        hits = index.search(some, k)
        for row, (found, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
            known = [place[own] for own in found.tolist() if own in place]
            true = exact[row, known]
            right += int((true >= last[row] - 1e-6 * scale).sum())
            if len(known) == len(scores):
                error = max(error, float(np.abs(true - scores).max(initial=0)))
    return right / (wanted * len(queries)), error, scale


def _check_bias(index: CorrectedIndex, stored: Items) -> list[str]:
    corrector, values = index.corrector, np.asarray(stored.bias)
    if corrector is None or index.config.popularity is not None:
        return []
    try:
        items = corrector.open(stored.vectors, "items")
        if corrector.groups is None:
            right = bias_values(corrector, items)
        else:  # the engine doesn't store groups: an item must have the bias of one of them
            one = [next(iter(corrector.groups))] * len(items)
            with quiet():  # these labels are only to be subtracted again
                plain = corrector.values_for(items, one) - corrector.groups[one[0]]
            offsets = np.array(list(corrector.groups.values()))
            nearest = np.abs((values - plain)[:, None] - offsets).argmin(axis=1)
            right = plain + offsets[nearest].astype(np.float32)
    except NNNormError as error:
        return [f"another program wrote items that its corrector can't read ({error})"]
    spread = max(float(np.ptp(right)), _FLAT * float(np.abs(right).max()))
    n_wrong = int((np.abs(values - right) > _NEAR * spread).sum())
    if not n_wrong:
        return []
    return [
        f"{n_wrong:,} of {len(values):,} items don't have the bias of their corrector: another "
        "program wrote them; refresh the index"
    ]


def _check_rows(index: CorrectedIndex, stored: Items, gallery: Source, ids: Any) -> list[str]:
    corrector = index.corrector
    if corrector is None:
        raise NNNormError("to compare a gallery, pass the corrector of the index (--corrector)")
    items = corrector.open(gallery, "gallery")
    named = items.ids if ids is None else ids
    given = np.arange(len(items)) if named is None else check_ids(named, len(items))
    place = {own: row for row, own in enumerate(given.tolist())}
    there = np.array([place.get(own, -1) for own in stored.ids.tolist()], dtype=np.int64)
    known = there >= 0
    if not known.any():
        return ["it has none of the gallery's ids: pass the ids (--ids) that it was built with"]
    problems = []
    if n_missing := len(given) - int(known.sum()):
        problems.append(f"{n_missing:,} items of the gallery are missing: add them")
    if n_others := int((~known).sum()):
        problems.append(
            f"it has {n_others:,} items that aren't in the gallery: verify with all items, or "
            "delete these"
        )
    right = items.rows(0, len(items))[there[known]]
    far = np.linalg.norm(stored.vectors[known] - right, axis=1)
    if n_wrong := int((far > _NEAR * np.linalg.norm(right, axis=1)).sum()):
        problems.append(f"{n_wrong:,} items differ from the gallery: replace them with upsert")
    return problems
