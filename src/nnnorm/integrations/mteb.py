"""MTEB (`pip install 'nnnorm[mteb]'`): the corrected search as its index backend.

`CorrectedIndex` implements MTEB's `IndexEncoderSearchProtocol`, so `SearchEncoderWrapper(model,
index_backend=CorrectedIndex(…))` evaluates a model with the correction on retrieval and reranking
tasks. MTEB is imported only by `name_model`, which gives the wrapped model its own name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from nnnorm.corrector import Correction, Corrector, open_corrector
from nnnorm.embeddings import FloatArray
from nnnorm.errors import NNNormError, require
from nnnorm.ranking import search

# A corrector, or a function that fits one to the documents of a corpus.
Given: TypeAlias = Correction | Callable[[FloatArray], Corrector]


class CorrectedIndex:
    """An exact search by the corrected score, for MTEB."""

    def __init__(self, corrector: Given) -> None:
        self._given = corrector if callable(corrector) else open_corrector(corrector)
        self.clear()

    def clear(self) -> None:
        """Remove the documents, and a corrector that was fitted to them."""
        self._corrector: Corrector | None = None
        self._parts: list[FloatArray] = []
        self._rows: dict[str, int] = {}

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add documents of a corpus."""
        rows = _to_array(embeddings)
        if len(rows) != len(idxs):
            raise NNNormError(f"got {len(rows)} documents and {len(idxs)} ids; pass one id each")
        if self._corrector is None:
            given = self._given
            self._corrector = open_corrector(given(rows) if callable(given) else given)
        elif callable(self._given):
            raise NNNormError("a corrector is fitted to a whole corpus; add all documents at once")
        start = sum(map(len, self._parts))
        self._parts.append(self._corrector.transform_items(rows))
        self._rows |= {own: start + n for n, own in enumerate(idxs)}

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: object,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Find the best documents of every query, among all or among those in `top_ranked`."""
        if self._corrector is None:
            raise NNNormError("there are no documents yet; call add_documents first")
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        stored, asked = self._parts[0], self._corrector.transform_queries(_to_array(embeddings))
        if top_ranked is None:
            found = search(asked, stored, k=min(top_k, len(stored)), normalize=False)
            return found.scores.tolist(), found.indices.tolist()
        if query_idx_to_id is None:
            raise NNNormError("top_ranked needs query_idx_to_id, with the ids of the queries")
        ranked = [top_ranked.get(query_idx_to_id[n], ()) for n in range(len(asked))]
        places = [[self._rows[own] for own in own_ids] for own_ids in ranked]
        scores = [stored[rows] @ query for rows, query in zip(places, asked, strict=True)]
        orders = [np.argsort(-some, kind="stable")[:top_k] for some in scores]
        best = [some[order].tolist() for some, order in zip(scores, orders, strict=True)]
        return best, [order.tolist() for order in orders]


def name_model(model: Any, corrector: Given, *, revision: str | None = None) -> Any:
    """Wrap an MTEB model as ``NAME+nnnorm``, so its results can be published.

    Its revision is that of the model, followed by the corrector's fingerprint. If you pass a
    function, which fits a corrector to each corpus, `revision` replaces the fingerprint.
    """
    if callable(corrector):
        if not revision:
            problem = "a function that fits a corrector needs a revision"
            raise NNNormError(f"{problem}; pass one, such as revision='train-queries-1'")
    else:
        corrector = open_corrector(corrector)
        revision = revision or corrector.fingerprint[:16]
    wrapper = require("mteb.models", "mteb").SearchEncoderWrapper
    wrapped = wrapper(model, index_backend=CorrectedIndex(corrector))
    about = model.mteb_model_meta
    parts = [part for part in (about.revision, "nnnorm", revision) if part]
    own = {"name": f"{about.name}+nnnorm", "revision": "-".join(parts), "adapted_from": about.name}
    own["loader"] = None  # the model's own loader would omit the correction
    wrapped.mteb_model_meta = about.model_copy(update=own)
    return wrapped


def _to_array(embeddings: Any) -> FloatArray:
    if hasattr(embeddings, "detach"):  # a tensor, on any device and in bfloat16 too
        embeddings = embeddings.detach().cpu().float()
    return np.asarray(embeddings, dtype=np.float32)
