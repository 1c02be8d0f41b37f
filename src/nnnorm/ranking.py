"""`search` and its `Ranking`: queries × gallery, streamed, less the bias, exactly.

Gates (QBNorm, DualDIS) are decided here, per query, on the raw scores.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import read_npz
from nnnorm.bias import Bias, check_correction, check_weight
from nnnorm.embeddings import (
    Embeddings,
    FloatArray,
    ScoreMatrix,
    Source,
    check_same_dim,
    check_same_norms,
    open_embeddings,
)
from nnnorm.errors import NNNormError, warn
from nnnorm.files import Progress, unreadable, write_whole
from nnnorm.methods import published_product
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Matrix, Products, TopK, top_k
from nnnorm.tables import check_ids

# The ratio of the middle norms of queries and references from which on a search warns.
_SCALES_APART = 2


@dataclass(frozen=True, eq=False)
class Ranking:
    """The best items of every query, best first; equal scores in the order of their indices.

    Rows that are alike may get scores that differ in the last bit: BLAS adds up the products of
    different parts of a matrix in different orders. Their order is then that of those bits.

    Attributes
    ----------
    scores : ndarray, shape (n_queries, k), float32
        Corrected scores.
    indices : ndarray, shape (n_queries, k), int64
        Gallery rows.
    ids : ndarray, shape (n_queries, k), or None
        The items' own ids, if they were given or came with the gallery.
    """

    scores: FloatArray
    indices: npt.NDArray[np.int64]
    ids: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        with_ids = "" if self.ids is None else ", with ids"
        return f"Ranking({len(self):,} queries, k={self.indices.shape[1]}{with_ids})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.npz` file with `scores`, `indices` and any `ids`, whole or not at all.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "ranking.npz"
        >>> search(np.eye(2), np.eye(2), k=1).save(path)
        >>> Ranking.load(path).indices.tolist()
        [[0], [1]]
        """
        if Path(path).suffix != ".npz":  # what the name says is what is in the file
            raise NNNormError(f"a ranking is saved as .npz; got {path}: choose another ending")
        arrays: dict[str, npt.NDArray[Any]] = {"scores": self.scores, "indices": self.indices}
        if self.ids is not None:
            arrays["ids"] = self.ids
        write_whole(path, lambda file: np.savez(file, allow_pickle=False, **arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Ranking":
        """Read a file that `save` wrote.

        Examples
        --------
        >>> Ranking.load("nowhere.npz")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no ranking file nowhere.npz; ...
        """
        if not os.path.isfile(path):
            raise NNNormError(f"there is no ranking file {path}; make one with: nnnorm search -o")
        try:
            arrays = read_npz(path)
            scores, indices, ids = arrays["scores"], arrays["indices"], arrays.get("ids")
            if scores.ndim != 2 or scores.shape != indices.shape:
                raise ValueError(f"scores {scores.shape} and indices {indices.shape}")
            if ids is not None and ids.shape != indices.shape:
                raise ValueError(f"ids {ids.shape} and indices {indices.shape}")
            return cls(scores, indices, ids)
        except NNNormError:
            raise
        except Exception as error:  # numpy, zipfile and zlib each raise their own kind here
            raise unreadable(path, "a ranking", error) from error


def search(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    k: int = 10,
    weight: float | None = None,
    ids: npt.ArrayLike | None = None,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Ranking:
    """Find the k best items of every query by ``s(q, r) − weight·values[r]``, exactly.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
        Open it once with `open_embeddings` when you search often.
    bias : Bias, optional
        Fitted on this gallery; without one the search is uncorrected.
    k : int
        How many items come back, at most n_gallery.
    weight : float, optional
        Instead of the bias's own weight; 0 is the uncorrected search.
    ids : array of int or str, shape (n_gallery,), optional
        What the items are called, for `Ranking.ids`; by default the ids that came with the gallery
        (a parquet's column `id`).
    normalize : bool, optional
        True divides every row by its norm (cosine), False says that raw inner products are meant.
        By default rows are taken as they are, with a warning where their norms differ.
    memory_budget : int
        Bytes to use beyond the inputs and the answer.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Ranking
        ``scores`` and ``indices``, both ``(n_queries, k)``. Items that are duplicates of each other
        may differ in the last bit of their scores, see `Ranking`.

    Examples
    --------
    >>> import numpy as np
    >>> gallery, queries = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[0.96, 0.28]])
    >>> search(queries, gallery, k=1).indices.tolist()
    [[0]]
    >>> hubs = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> search(queries, gallery, hubs, k=1).indices.tolist()
    [[1]]
    """
    asked, items, weight = _open(queries, gallery, bias, weight, normalize)
    warn_of_scale(bias, asked, weight)
    names = items.ids if ids is None else check_ids(ids, len(items), name=items.name)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= len(items):
        raise NNNormError(
            f"k must be a whole number from 1 to the {len(items)} items of {items.name}; got {k}"
        )
    if bias is not None and bias.gates:
        # A gate looks at a query's raw best item, so whole rows are made, a few at a time.
        found = []
        options: dict[str, Any] = {"memory_budget": memory_budget // 2, "progress": progress}
        for _, scores in iterate_scores(asked, items, bias, weight=weight, **options):
            rows = Matrix(ScoreMatrix([scores], role="scores"))
            found.append(top_k(rows, int(k), memory_budget=memory_budget))
        best = TopK(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    else:
        offset = None if bias is None else np.float32(weight) * bias.values
        products = Products(asked, items, offset=offset, memory_budget=memory_budget)
        best = top_k(products, int(k), memory_budget=memory_budget, progress=progress)
    return Ranking(*best, ids=None if names is None else names[best.indices])


def score_matrix(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    weight: float | None = None,
    normalize: bool | None = None,
) -> FloatArray:
    """Compute the corrected score of every query with every item, as one dense matrix.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
    weight : float, optional
        Instead of the bias's own weight.
    normalize : bool, optional
        As in `search`.

    Returns
    -------
    ndarray, shape (n_queries, n_gallery), float32

    Examples
    --------
    >>> import numpy as np
    >>> score_matrix(np.eye(2), np.eye(2), Bias(np.array([0.5, 0.0]), 1.0, "nnn")).tolist()
    [[0.5, 0.0], [-0.5, 1.0]]
    """
    asked, items, weight = _open(queries, gallery, bias, weight, normalize)
    warn_of_scale(bias, asked, weight)
    raw = asked.rows(0, len(asked)) @ items.rows(0, len(items)).T
    return raw if bias is None else _correct(raw, bias, weight)


def iterate_scores(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    weight: float | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Iterator[tuple[int, FloatArray]]:
    """Stream corrected scores in whole rows, a strip of queries at a time."""
    asked, items, weight = _open(queries, gallery, bias, weight)
    n_queries, n_gallery = len(asked), len(items)
    gated = bias is not None and bool(bias.gates)
    offset = None if bias is None or gated else np.float32(weight) * bias.values
    # Scores, and what a caller compares them by; a gate needs raw and corrected ones.
    bytes_per_row = (16 if gated else 8) * n_gallery + (0 if asked.in_memory else 8 * asked.dim)
    n_rows = max(1, min(memory_budget // 2 // bytes_per_row, 2**23 // n_gallery))
    n_rows = min(n_queries, n_rows)
    products = Products(asked, items, offset=offset, memory_budget=memory_budget)
    n_block = n_gallery
    if products.column_bytes:
        n_block = max(1, min(n_gallery, memory_budget // 8 // products.column_bytes))
    buffer = np.empty((n_rows, n_gallery), dtype=np.float32)
    for start in range(0, n_queries, n_rows):
        stop = min(start + n_rows, n_queries)
        read = products.strip(start, stop)
        scores = buffer[: stop - start]
        for first in range(0, n_gallery, n_block):
            last = min(first + n_block, n_gallery)
            read(first, last, scores[:, first:last])
        yield start, scores if bias is None or not gated else _correct(scores, bias, weight)
        if progress is not None:
            progress(stop, n_queries)


# --- gates and checks --------------------------------------------------------------------------


def _correct(raw: FloatArray, bias: Bias, weight: float) -> FloatArray:
    """Corrected scores of whole rows, ``(n_queries, n_gallery)``."""
    if not bias.gates:
        return np.subtract(raw, np.float32(weight) * bias.values)
    best = raw.argmax(axis=1)  # the raw best item; the lower index on a tie
    is_open = np.stack([gate.active[best] for gate in bias.gates])
    if bias.params.get("gate") == "paper":
        return published_product(raw, bias, is_open)
    corrected = raw.copy()
    for gate, rows in zip(bias.gates, is_open, strict=True):
        corrected[rows] -= np.float32(weight) * gate.values
    return corrected


def warn_of_scale(bias: Bias | None, queries: Embeddings, weight: float) -> None:
    """Warn if the bias is on another scale than the scores of these queries."""
    if bias is None or bias.reference_norms is None or weight == 0 or not bias.values.any():
        return
    (low, high), (least, most) = sorted([bias.reference_norms, queries.norm_range])
    if high < least and least + most > _SCALES_APART * (low + high):
        of_queries, of_references = (
            f"{first:.3g} to {last:.3g}"
            for first, last in (queries.norm_range, bias.reference_norms)
        )
        warn(
            f"{queries.name} has norms {of_queries}, but the bias was fitted with references of "
            f"norms {of_references}, so the correction is on another scale than the scores; "
            "scale both alike, or pass normalize=True (--normalize) to both fit and search"
        )


def _open(
    queries: Source,
    gallery: Source,
    bias: Bias | None,
    weight: float | None,
    normalize: bool | None = None,
) -> tuple[Embeddings, Embeddings, float]:
    """Open both sides, check that the bias belongs to this gallery, and return its weight too."""
    asked = open_embeddings(queries, name="queries", normalize=normalize, fingerprint=False)
    hashed = bias is not None  # a bias is matched with its gallery by the fingerprint
    items = open_embeddings(gallery, name="gallery", normalize=normalize, fingerprint=hashed)
    check_same_dim(asked, items)
    if asked.normalized or items.normalized:
        check_same_norms(asked, items)
    if bias is None:
        if weight is not None:
            raise NNNormError("weight needs a bias; pass one, or leave out weight")
        return asked, items, 0.0
    if not isinstance(bias, Bias):
        raise NNNormError(
            "bias must be a Bias, from a method's fit or Bias.load(path); got "
            f"{type(bias).__name__}"
        )
    if bias.fingerprints and not bias.fits(items) and bias.fits(asked):
        raise NNNormError(
            "queries and gallery look swapped: the bias was fitted on what was given as queries; "
            "the order is (queries, gallery, bias)"
        )
    bias.check_gallery(items)
    if weight is None:
        return asked, items, bias.weight
    if bias.params.get("gate") == "paper" and weight != 1:
        raise NNNormError(
            "the published DualDIS is a product of factors and takes no weight; leave it out, "
            "or fit with gate='safe'"
        )
    used = check_weight(weight)
    check_correction(used, bias.values)
    return asked, items, used


class Reranked(NamedTuple):
    """What `rerank` returns."""

    ids: npt.NDArray[Any]
    scores: FloatArray
    certain: npt.NDArray[np.bool_]


def rerank(
    ids: npt.ArrayLike,
    scores: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    weight: float,
    bias_range: tuple[float, float],
    k: int = 10,
) -> Reranked:
    """Re-rank hits that an engine found by raw score.

    Fetch several times k hits, and look up their bias by id.

    Parameters
    ----------
    ids : array, shape (n_queries, n_fetched)
        Hits by raw score, best first.
    scores : array, same shape
        Inner products.
    bias : array, same shape
        Bias of the hits.
    weight : float
        Weight of the bias.
    bias_range : (float, float)
        Smallest and largest bias of any item in the collection.
    k : int

    Returns
    -------
    Reranked

    Examples
    --------
    >>> found = rerank([[7, 3]], [[0.75, 0.5]], [[1.0, 0.0]], weight=0.5, bias_range=(0, 1), k=1)
    >>> found.ids.tolist(), found.certain.tolist()
    ([[3]], [True])
    """
    named, raw, values = np.asarray(ids), np.asarray(scores, float), np.asarray(bias, float)
    if not (named.ndim == 2 and named.shape == raw.shape == values.shape and raw.shape[1] >= k > 0):
        raise NNNormError(
            f"ids, scores and bias must share a shape (n_queries, at least k = {k}); got "
            f"{named.shape}, {raw.shape} and {values.shape}"
        )
    used = check_weight(weight)
    corrected = raw - used * values
    order = np.argsort(-corrected, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(corrected, order, axis=1)
    # An item that wasn't fetched has at most the last raw score, and at least this correction.
    outside = raw.min(axis=1) - min(used * bound for bound in bias_range)
    found = np.take_along_axis(named, order, axis=1)
    return Reranked(found, best.astype(np.float32), best[:, -1] >= outside)
