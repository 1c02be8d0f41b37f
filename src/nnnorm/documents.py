"""Long documents: items that are chunks of one document, found by their best chunk.

The best of many scores is higher than the best of few, so a document of many chunks is found too
often. `discount_length` measures that on past queries: the m_k of documents, by the scores of
their best chunks, grows with log(number of chunks). Half of that growth is added to the bias of the
chunks, so it is still one number per item.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import Ids
from nnnorm.bank import Bank
from nnnorm.bias import Bias, check_number
from nnnorm.embeddings import Embeddings, FloatArray, IntArray, Source, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.methods.base import open_references
from nnnorm.methods.nnn import choose_reference_k
from nnnorm.scoring import Products
from nnnorm.tables import check_names

_SCORES_AT_ONCE = 2**23


@dataclass(frozen=True, eq=False)
class Documents:
    """Which items are chunks of which document; documents are numbered as they first appear."""

    ids: Ids
    of_item: IntArray
    counts: IntArray

    @classmethod
    def open(cls, parents: Any, n_items: int, name: str = "gallery") -> "Documents":
        """Read one parent per item, a whole number or a string."""
        named = check_names(parents, n_items, "parents", name)
        _, first, number = np.unique(named, return_index=True, return_inverse=True)
        order = np.argsort(first)
        of_item = np.argsort(order)[number.ravel()]
        return cls(named[np.sort(first)], of_item, np.bincount(of_item))

    def __len__(self) -> int:
        return len(self.ids)

    def best(self, scores: FloatArray) -> FloatArray:
        """The best score of each document: ``(n_queries, n_items)`` to ``(n_queries, n_docs)``."""
        return np.asarray(np.maximum.reduceat(self._group(scores), self._starts, axis=1))

    def best_items(self, scores: FloatArray, found: IntArray) -> IntArray:
        """The best item of each document found, shape ``(n_queries, k)``."""
        n_items, items = len(self.of_item), np.empty_like(found)
        for row, documents in enumerate(found):
            own = self._group(scores[row : row + 1])[0]
            is_best = own == np.repeat(np.maximum.reduceat(own, self._starts), self.counts)
            places = np.where(is_best, np.arange(n_items), n_items)
            items[row] = self._order[np.minimum.reduceat(places, self._starts)[documents]]
        return items

    def _group(self, scores: FloatArray) -> FloatArray:
        """Scores with the chunks of each document side by side."""
        return scores if self._is_grouped else scores[:, self._order]

    @cached_property
    def _order(self) -> IntArray:
        return np.argsort(self.of_item, kind="stable")

    @cached_property
    def _starts(self) -> IntArray:
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def _is_grouped(self) -> bool:
        return bool((np.diff(self.of_item) >= 0).all())


def discount_length(
    bias: Bias,
    gallery: Source,
    references: Source | Bank,
    *,
    parents: npt.ArrayLike,
    share: float = 0.5,
    normalize: bool | None = None,
) -> Bias:
    """Take from documents of many chunks what the number of their chunks gives them.

    Parameters
    ----------
    bias : Bias
        Fitted on the chunks.
    gallery : array or path, shape (n_gallery, dim)
    references : Bank, array or path, shape (n_references, dim)
        Past queries, such as those of the fit.
    parents : array of int or str, shape (n_gallery,)
        The document of each chunk.
    share : float
        How much of the measured growth is taken off, from 0 to 1.
    normalize : bool, optional
        As in the fit.

    Returns
    -------
    Bias
        With ``params["length_weight"]``, what a unit of log(number of chunks) costs.

    Examples
    --------
    >>> import numpy as np, nnnorm
    >>> rng = np.random.default_rng(0)
    >>> chunks, past = rng.normal(size=(60, 8)), rng.normal(size=(200, 8))
    >>> parents = np.repeat(np.arange(20), [1, 5] * 10)
    >>> bias = nnnorm.NNN().fit(chunks, past, normalize=True)
    >>> fairer = discount_length(bias, chunks, past, parents=parents, normalize=True)
    >>> bool(fairer.params["length_weight"] > 0)
    True
    """
    if not 0 <= check_number("share", share) <= 1:
        raise NNNormError(f"share must be between 0 and 1; got {share}")
    if bias.gates or "length_weight" in bias.params:
        what = "decides per query" if bias.gates else "has a discount already"
        raise NNNormError(f"this bias ({bias.method}) {what}; fit another without it")
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    bias.check_gallery(items)
    past = open_references(references, normalize=normalize)
    documents = Documents.open(parents, len(items), items.name)
    k = choose_reference_k(len(past), len(documents))
    kept = np.empty((0, len(documents)), dtype=np.float32)
    for scores in _scores(past, items, bias):
        kept = np.concatenate([kept, documents.best(scores)])
        kept = np.partition(kept, -k, axis=0)[-k:] if len(kept) > k else kept
    lengths = np.log(documents.counts)
    slope = np.polyfit(lengths, kept.mean(axis=0), 1)[0] if lengths.any() and lengths.std() else 0.0
    cost = share * max(float(slope), 0.0)
    weight = bias.weight or 1.0
    values = bias.values if bias.weight else np.zeros_like(bias.values)
    return replace(
        bias,
        values=(values + cost / weight * lengths[documents.of_item]).astype(np.float32),
        weight=weight,
        params={**bias.params, "length_weight": cost},
    )


def _scores(past: Embeddings, items: Embeddings, bias: Bias) -> Iterator[FloatArray]:
    """Corrected scores of past queries with all items, a strip at a time."""
    products = Products(past, items, offset=bias.correction)
    step = max(1, _SCORES_AT_ONCE // len(items))
    for start in range(0, len(past), step):
        stop = min(start + step, len(past))
        out = np.empty((stop - start, len(items)), dtype=np.float32)
        yield products.strip(start, stop)(0, len(items), out)
