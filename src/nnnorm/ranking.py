"""`search` and its result, `Ranking`: exact corrected search in blocks.

For gated methods (QBNorm, DualDIS), the search compares raw scores to find which queries to
correct.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nnnorm import embeddings
from nnnorm.arrays import read_npz
from nnnorm.bias import Bias, check_correction
from nnnorm.documents import Documents
from nnnorm.embeddings import Embeddings, FloatArray, Range, Source, StoredMatrix, open_embeddings
from nnnorm.errors import NNNormError, check_count, check_number, check_type, require, warn
from nnnorm.files import PathLike, Progress, check_file, reading, write_whole
from nnnorm.methods import published_product
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Matrix, Products, TopK, fill_rows, top_k
from nnnorm.tables import check_ids

# A search warns if the norm ranges of queries and references don't overlap, and their middles
# differ by more than this factor.
_SCALES_APART = 2
# `rerank` warns if more than this share of the scores are higher than the one before.
_MOST_RISING = 0.9
# Confidence is the best score minus `_MEAN_SHARE` times the mean of the `N_COMPARED` best scores.
# With shares from 0.75 to 0.9, the mean AUROC of 11 sets is about the same; for CLIP, lower shares
# are slightly better.
N_COMPARED = 10
_MEAN_SHARE = 0.8
_SWAPPED = (
    "queries and gallery look swapped: the bias was fitted on the rows passed as queries; exchange "
    "the two"
)


class GivesBias(Protocol):
    """A `Corrector`, which can compute a bias for any gallery."""

    def bias_for(self, items: Source) -> Bias: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Ranking:
    """The best items of each query, best first.

    Items with equal scores are in the order of their rows. Scores of equal items may differ in the
    last bit, because BLAS adds up products in different orders. Then that bit determines their
    order. A missing hit has the score −inf, the index −1, and the id or parent −1 or "".

    Attributes
    ----------
    scores : ndarray, shape (n_queries, k), float32
        Corrected scores.
    indices : ndarray, shape (n_queries, k), int64
        Rows of the gallery.
    ids : ndarray, shape (n_queries, k), or None
        The ids of the items, if you passed ids or the gallery has them.
    confidence : ndarray, shape (n_queries,), float32, or None
        The higher it is, the more likely the first hit of the query is right, compared with other
        queries. It is the best score minus 0.8 times the mean of the 10 best scores (of all if
        there are fewer). None if the file that you loaded has no confidence.
    parents : ndarray, shape (n_queries, k), or None
        The document of each hit, if items are chunks of documents. Then `indices` and `ids` are
        those of the document's best chunk.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import search
    >>> ranking = search(np.eye(2), np.eye(2), k=1, ids=["cat", "dog"])
    >>> ranking
    Ranking(2 queries, k=1, with ids)
    >>> list(ranking)
    [[('cat', 1.0)], [('dog', 1.0)]]
    """

    scores: FloatArray
    indices: npt.NDArray[np.int64]
    ids: npt.NDArray[Any] | None = None
    confidence: FloatArray | None = None
    parents: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[list[tuple[Any, float]]]:
        """Yield a list of (id, score) per query; without ids, (row, score)."""
        names = self.indices if self.ids is None else self.ids
        for row, scores in zip(names.tolist(), self.scores.tolist(), strict=True):
            yield [hit for hit in zip(row, scores, strict=True) if hit[1] > -math.inf]

    def __repr__(self) -> str:
        with_ids = "" if self.ids is None else ", with ids"
        return f"Ranking({len(self):,} queries, k={self.indices.shape[1]}{with_ids})"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per hit: query, rank, item and score."""
        hits = [(query, *hit) for query, row in enumerate(self) for hit in enumerate(row, 1)]
        rows = [(query, rank, item, score) for query, rank, (item, score) in hits]
        return require("pandas", "pandas").DataFrame(
            rows, columns=["query", "rank", "item", "score"]
        )

    def save(self, path: PathLike) -> None:
        """Save the ranking as a `.npz` file; if that fails, nothing changes.

        Parameters
        ----------
        path : str or PathLike
            The file. An existing one is replaced.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from nnnorm import Ranking, search
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "ranking.npz"
        >>> search(np.eye(2), np.eye(2), k=1).save(path)
        >>> Ranking.load(path).indices.tolist()
        [[0], [1]]
        """
        if Path(path).suffix != ".npz":  # the suffix must match the content
            raise NNNormError(f"a ranking is saved as .npz; got {path}: choose another suffix")
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        write_whole(path, lambda file: np.savez(file, allow_pickle=False, **arrays))

    @classmethod
    def load(cls, path: PathLike) -> "Ranking":
        """Load a ranking from a file that `save` wrote.

        Parameters
        ----------
        path : str or PathLike
            The `.npz` file.

        Returns
        -------
        Ranking

        Examples
        --------
        >>> from nnnorm import Ranking
        >>> Ranking.load("nowhere.npz")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no ranking file nowhere.npz; ...
        """
        check_file(path, "ranking file", "make one with: nnnorm search -o")
        with reading(path, "a ranking"):
            arrays = read_npz(path)
            names = [name for name in cls.__dataclass_fields__ if name in arrays]
            found = cls(**{name: arrays[name] for name in names})
            shape = found.indices.shape
            for name, array in vars(found).items():
                expected = shape[:1] if name == "confidence" else shape
                if array is not None and (array.shape != expected or len(shape) != 2):
                    raise ValueError(f"{name} {array.shape} and indices {shape}")
            return found


def search(
    queries: Source,
    gallery: Source,
    bias: Bias | GivesBias | None = None,
    *,
    k: int = 10,
    weight: float | None = None,
    min_confidence: float | None = None,
    ids: npt.ArrayLike | None = None,
    parents: npt.ArrayLike | None = None,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Ranking:
    """Find the k best items of every query, with or without a correction.

    The score of an item is its inner product with the query, or their cosine with
    ``normalize=True``. With a bias, the search subtracts ``weight · bias.values`` from the scores,
    so that hubs rank lower. It compares every query with every item, so the result is exact.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        Embeddings of the queries.
    gallery : array or path, shape (n_gallery, dim)
        Embeddings of the items. If you search often, open them once with `open_embeddings`.
    bias : Bias or Corrector, optional
        A bias that was fitted on this gallery, or a corrector, which can compute the bias of any
        gallery. Without one, the search is uncorrected.
    k : int
        Number of items to return per query, at most n_gallery.
    weight : float, optional
        Replaces the weight of the bias; 0 is the uncorrected search.
    min_confidence : float, optional
        Queries with a lower confidence get no hits: the index −1 and the score −inf. See
        `Ranking` for confidence, and `calibrate` to choose this number.
    ids : array of int or str, shape (n_gallery,), optional
        Ids of the items, for `Ranking.ids`. By default those of the gallery, such as a parquet
        file's column `id`.
    parents : array of int or str, shape (n_gallery,), optional
        The document of each item, if items are chunks of documents. Then the search returns the k
        best documents, ranked by their best chunk; see `Ranking.parents`.
    normalize : bool, optional
        True divides every row by its norm, so scores are cosines. False uses raw inner products.
        None uses them too, with a warning if norms differ. With a corrector, None normalizes if
        the corrector does.
    memory_budget : int
        Bytes to use beyond the inputs and the result, 512 MB by default.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Ranking
        ``scores`` and ``indices``, shape ``(n_queries, k)``, and ``confidence``, shape
        ``(n_queries,)``. Compare the confidence of queries only if their norms are equal.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias, search
    >>> gallery, queries = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[0.96, 0.28]])
    >>> search(queries, gallery, k=1).indices.tolist()
    [[0]]
    >>> hubs = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> search(queries, gallery, hubs, k=1).indices.tolist()
    [[1]]
    """
    used, gallery, normalize = take_bias(bias, queries, gallery, normalize)
    asked, items, weight = _open(queries, gallery, used, weight, normalize)
    warn_of_scale(used, asked, weight)
    names = items.ids if ids is None else check_ids(ids, len(items), name=items.name)
    documents = None if parents is None else Documents.open(parents, len(items), items.name)
    what, n_items = ("items", len(items)) if documents is None else ("documents", len(documents))
    k = check_count("k", k, n_items, f"the number of {what} of {items.name}")
    least = check_min_confidence(min_confidence)
    n_fetched = max(k, min(N_COMPARED, n_items))
    if documents is not None or (used is not None and used.gates):
        # Gates need the raw best item of a query, and documents the scores of all their chunks. So
        # whole rows of scores are computed, a few at a time.
        found = []
        options: dict[str, Any] = {"memory_budget": memory_budget // 2, "progress": progress}
        options["weight"] = None if used is None else weight
        for _, scores in iterate_scores(asked, items, used, **options):
            compared = scores if documents is None else documents.best(scores)
            rows = Matrix(StoredMatrix([compared], "scores"), memory_budget=memory_budget)
            some = top_k(rows, n_fetched)
            if documents is not None:
                some = TopK(some.scores, documents.best_items(scores, some.indices))
            found.append(some)
        best = TopK(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    else:
        offset = None if used is None else np.float32(weight) * used.values
        products = Products(asked, items, offset=offset, memory_budget=memory_budget)
        best = top_k(products, n_fetched, progress)
    confidence = measure_confidence(best.scores)
    indices = np.ascontiguousarray(best.indices[:, :k])
    kept = np.ascontiguousarray(best.scores[:, :k])
    named = None if names is None else names[indices]
    owners = None if documents is None else documents.ids[documents.of_item[indices]]
    drop_hits(confidence < least, kept, indices, named, owners)
    return Ranking(kept, indices, named, confidence, owners)


def take_bias(
    bias: Any, queries: Source, gallery: Source, normalize: bool | None
) -> tuple[Bias | None, Source, bool | None]:
    """Take the bias of a gallery from a corrector, and open the gallery as the corrector does."""
    if not hasattr(bias, "bias_for"):
        return bias, gallery, normalize
    items = bias.open(gallery, "gallery")
    normalize = True if items.normalized and normalize is None else normalize
    if bias.bias.fits(items):
        return bias.bias, items, normalize
    if bias.bias.fits(bias.open(queries, "queries")):
        raise NNNormError(_SWAPPED)
    return bias.bias_for(items), items, normalize


def measure_confidence(scores: FloatArray) -> FloatArray:
    """Return the confidence of every query from its best corrected scores, best first."""
    best = scores[:, :N_COMPARED].astype(np.float64)
    is_hit = best > -np.inf
    mean = best.sum(axis=1, where=is_hit) / is_hit.sum(axis=1).clip(min=1)
    top = best.max(axis=1, initial=-np.inf)  # no hits: −inf
    return (top - _MEAN_SHARE * mean).astype(np.float32)


def check_min_confidence(given: float | None) -> float:
    """Return the minimum confidence, −inf if it is None; raise unless it is a number."""
    return -math.inf if given is None else check_number("min_confidence", given, -1e30, 1e30)


def drop_hits(is_dropped: npt.NDArray[np.bool_], *parts: npt.NDArray[Any] | None) -> None:
    """Remove the hits of some queries in place: scores become −inf, whole numbers −1, text ""."""
    if is_dropped.all() and len(is_dropped) >= N_COMPARED:
        warn(
            "no query reaches min_confidence, so none has hits; confidence is on the scale of the "
            "scores: for a probability, pass the threshold of a calibration"
        )
    for part in parts:
        if part is not None:
            part[is_dropped] = {"f": -np.inf, "U": ""}.get(part.dtype.kind, -1)


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
        Embeddings of the queries.
    gallery : array or path, shape (n_gallery, dim)
        Embeddings of the items.
    bias : Bias, optional
        A bias that was fitted on this gallery. Without one, the scores are uncorrected.
    weight : float, optional
        Replaces the weight of the bias.
    normalize : bool, optional
        As in `search`.

    Returns
    -------
    ndarray, shape (n_queries, n_gallery), float32

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import Bias
    >>> from nnnorm.ranking import score_matrix
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
    """Yield the row of the first query, and corrected scores of some queries with all items.

    The yielded array is overwritten by the next one.
    """
    asked, items, weight = _open(queries, gallery, bias, weight)
    n_queries, n_gallery = len(asked), len(items)
    gated = bias if bias is not None and bias.gates else None
    offset = None if bias is None or bias.gates else np.float32(weight) * bias.values
    # Bytes per score, with a copy for the caller. Gates need raw and corrected scores.
    per_score = 8 if gated is None else 16
    if gated is not None and gated.params.get("gate") == "paper":
        per_score = 64  # `published_product` uses several float64 matrices
    bytes_per_row = per_score * n_gallery + (0 if asked.in_memory else 8 * asked.dim)
    n_rows = max(1, min(memory_budget // 2 // bytes_per_row, 2**23 // n_gallery))
    n_rows = min(n_queries, n_rows)
    products = Products(asked, items, offset=offset, memory_budget=memory_budget)
    buffer = np.empty((n_rows, n_gallery), dtype=np.float32)
    for start in range(0, n_queries, n_rows):
        stop = min(start + n_rows, n_queries)
        scores = buffer[: stop - start]
        fill_rows(products, start, scores)
        yield start, scores if gated is None else _correct(scores, gated, weight)
        if progress is not None:
            progress(stop, n_queries)


# --- gates and checks --------------------------------------------------------------------------


def _correct(raw: FloatArray, bias: Bias, weight: float) -> FloatArray:
    """Return the corrected scores of whole rows, shape ``(n_queries, n_gallery)``."""
    if not bias.gates:
        return np.subtract(raw, np.float32(weight) * bias.values)
    best = raw.argmax(axis=1)  # on a tie, the lower index
    is_open = np.stack([gate.active[best] for gate in bias.gates])
    if bias.params.get("gate") == "paper":
        return published_product(raw, bias, is_open)
    corrected = raw.copy()
    for gate, rows in zip(bias.gates, is_open, strict=True):
        corrected[rows] -= np.float32(weight) * gate.values
    return corrected


def warn_of_scale(bias: Bias | None, queries: Embeddings, weight: float) -> None:
    """Warn if the norms of queries and references differ so much that the bias is off-scale."""
    if bias is None or bias.reference_norms is None or weight == 0 or not bias.values.any():
        return
    if problem := describe_scales(bias.reference_norms, queries):
        warn(problem)


def describe_scales(reference_norms: Range, queries: Embeddings) -> str:
    """Return what is wrong with the norms of queries and references; empty if nothing is."""
    (low, high), (least, most) = sorted([reference_norms, queries.norm_range])
    if high >= least or least + most <= _SCALES_APART * (low + high):
        return ""
    own, past = map(embeddings.describe_norms, (queries.norm_range, reference_norms))
    return (
        f"rows of {queries.name} have {own}, but the past queries have {past}, so correction and "
        "scores have different scales; scale both the same way, or pass normalize=True "
        "(--normalize) whenever you use either"
    )


def _open(
    queries: Source,
    gallery: Source,
    bias: Bias | None,
    weight: float | None,
    normalize: bool | None = None,
) -> tuple[Embeddings, Embeddings, float]:
    """Open queries and gallery, check that the bias fits the gallery, and return the weight."""
    asked = open_embeddings(queries, name="queries", normalize=normalize, fingerprint=False)
    hashed = bias is not None  # the fingerprint shows whether the bias belongs to the gallery
    items = open_embeddings(gallery, name="gallery", normalize=normalize, fingerprint=hashed)
    embeddings.check_same_dim(asked, items)
    if asked.normalized or items.normalized:
        embeddings.check_same_norms(asked, items)
    if bias is None:
        if weight is not None:
            raise NNNormError("weight needs a bias, got None; pass a bias, or leave out weight")
        return asked, items, 0.0
    check_type("bias", bias, Bias, "from a method's fit, corrector.bias or Bias.load(path)")
    if bias.fingerprints and not bias.fits(items) and bias.fits(asked):
        raise NNNormError(_SWAPPED)
    bias.check_gallery(items)
    if weight is None:
        return asked, items, bias.weight
    if bias.params.get("gate") == "paper" and weight != 1:
        raise NNNormError(
            "the published DualDIS (gate='paper') is a product of factors without a weight; leave "
            "out weight, or fit with gate='safe'"
        )
    return asked, items, check_correction(weight, bias.values)


class Reranked(NamedTuple):
    """The result of `rerank`: `ids`, `scores`, `certain` and `confidence`."""

    ids: npt.NDArray[Any]
    scores: FloatArray
    certain: npt.NDArray[np.bool_]
    confidence: FloatArray


def rerank(
    ids: npt.ArrayLike,
    scores: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    weight: float,
    bias_range: tuple[float, float],
    k: int = 10,
) -> Reranked:
    """Correct the order of hits that a vector engine found by raw score.

    Use this if you can't add dimensions to your engine's vectors. Fetch several times k hits, and
    look up the bias of each one by its id.

    Parameters
    ----------
    ids : array, shape (n_queries, n_fetched)
        The ids of the fetched hits.
    scores : array, shape (n_queries, n_fetched)
        Their raw inner products, not distances.
    bias : array, shape (n_queries, n_fetched)
        Their bias values.
    weight : float
        The weight of the bias.
    bias_range : (float, float)
        Smallest and largest bias value of any item in the collection.
    k : int
        Number of hits to return.

    Returns
    -------
    Reranked
        ``ids`` and corrected ``scores``, best first, shape ``(n_queries, k)``. ``certain`` is True
        if no item that wasn't fetched can be among them; otherwise, fetch more. ``confidence`` is
        that of `Ranking`; for this, fetch 10 hits or more. Both have shape ``(n_queries,)``.

    Examples
    --------
    >>> from nnnorm import rerank
    >>> found = rerank([[7, 3]], [[0.75, 0.5]], [[1.0, 0.0]], weight=0.5, bias_range=(0, 1), k=1)
    >>> found.ids.tolist(), found.certain.tolist()
    ([[3]], [True])
    """
    named, raw, values = np.asarray(ids), np.asarray(scores, float), np.asarray(bias, float)
    if not (named.ndim == 2 and named.shape == raw.shape == values.shape and raw.shape[1] >= k > 0):
        raise NNNormError(
            f"ids, scores and bias must have the same shape (n_queries, at least k = {k}); got "
            f"{named.shape}, {raw.shape} and {values.shape}: fetch more hits, or pass a smaller k"
        )
    if np.isnan(raw).any() or not np.isfinite(values).all():
        raise NNNormError(
            "scores and bias must be numbers, one of each per hit; got NaN or infinity: look up "
            "the bias of every fetched id"
        )
    rises = raw[:, 1:] > raw[:, :-1]
    if rises.size >= N_COMPARED and rises.mean() > _MOST_RISING:
        warn(
            "scores rise along the fetched hits, as distances do; pass inner products, of which "
            "the highest is the best, such as 1 − cosine distance"
        )
    used = check_number("weight", weight)
    corrected = raw - used * values
    order = np.argsort(-corrected, axis=1, kind="stable")
    best = np.take_along_axis(corrected, order, axis=1)
    confidence = measure_confidence(best.astype(np.float32))
    order, best = order[:, :k], best[:, :k]
    # An item that wasn't fetched has at most the lowest fetched raw score, less this correction.
    outside = raw.min(axis=1) - min(used * bound for bound in bias_range)
    found = np.take_along_axis(named, order, axis=1)
    return Reranked(found, best.astype(np.float32), best[:, -1] >= outside, confidence)
