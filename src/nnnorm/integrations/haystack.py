"""Haystack (`pip install 'nnnorm[haystack]'`): components to place after the embedders.

`DocumentCorrector` extends the embeddings of documents before they are written, and
`QueryCorrector` extends that of a query before the search. The document store may use cosine or
inner product. A saved pipeline has the path and the fingerprint of the corrector.
"""

import os
from dataclasses import replace
from typing import Any, ClassVar, Literal

from nnnorm.augmentation import Target
from nnnorm.corrector import Correction
from nnnorm.errors import NNNormError, require
from nnnorm.integrations.vectors import VectorCorrector

require("haystack", "haystack")
from haystack import Document, component, default_to_dict  # noqa: E402


class _Component(VectorCorrector):
    """A component that a pipeline saves as the path and the fingerprint of its corrector."""

    settings: ClassVar[tuple[str, ...]] = ()  # also saved

    def __init__(
        self, corrector: Correction, weight: float | None = None, fingerprint: str | None = None
    ) -> None:
        super().__init__(corrector, weight)
        self.path = os.fspath(corrector) if isinstance(corrector, str | os.PathLike) else None
        if fingerprint not in (None, self.corrector.fingerprint):
            raise NNNormError(
                f"the corrector {self.path or 'given'} must have the fingerprint {fingerprint}; "
                f"got {self.corrector.fingerprint}. Pass the corrector that the stored documents "
                "were written with, or write all documents again and save the pipelines again"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the fingerprint of the corrector, to save the component."""
        if self.path is None:
            raise NNNormError(
                "a pipeline with a corrector in memory can't be saved; save the corrector first "
                "and create the component with its path"
            )
        saved = {name: getattr(self, name) for name in self.settings}
        saved |= {"corrector": self.path, "fingerprint": self.corrector.fingerprint}
        return default_to_dict(self, **saved)


@component
class DocumentCorrector(_Component):
    """Extend the embeddings of documents by their bias."""

    def __init__(self, corrector: Correction, fingerprint: str | None = None) -> None:
        _Component.__init__(self, corrector, fingerprint=fingerprint)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of the documents with extended embeddings."""
        vectors = [document.embedding for document in documents]
        if None in vectors:
            raise NNNormError(
                f"every document must have an embedding, but {documents[vectors.index(None)].id} "
                "has none; put a document embedder before this component"
            )
        pairs = zip(documents, self.extend_items(vectors), strict=True)
        return {"documents": [replace(document, embedding=row) for document, row in pairs]}


@component
class QueryCorrector(_Component):
    """Extend the embedding of a query by the weight."""

    settings = ("weight",)

    @component.output_types(embedding=list[float])
    def run(self, embedding: list[float]) -> dict[str, list[float]]:
        """Return the extended embedding."""
        return {"embedding": self.extend_query(embedding)}


@component
class ConfidenceRater(_Component):
    """Add the confidence of a search to the metadata of its documents.

    Place it after the retriever, which should return 10 documents or more with unscaled scores.
    `similarity` is that of the document store.
    """

    settings = ("similarity",)

    def __init__(
        self,
        corrector: Correction,
        similarity: Literal["cosine", "dot_product"] = "cosine",
        fingerprint: str | None = None,
    ) -> None:
        if similarity not in ("cosine", "dot_product"):
            raise NNNormError(f"similarity must be 'cosine' or 'dot_product'; got {similarity!r}")
        _Component.__init__(self, corrector, fingerprint=fingerprint)
        self.similarity = similarity

    @component.output_types(documents=list[Document], confidence=float | None)
    def run(self, documents: list[Document], embedding: list[float]) -> dict[str, Any]:
        """Return copies of the documents with `meta["confidence"]`, and the confidence."""
        scores = [document.score for document in documents]
        metric: Target = "cosine" if self.similarity == "cosine" else "ip"
        found = self.measure_confidence(scores, embedding, metric)
        rated = [replace(one, meta={**one.meta, "confidence": found}) for one in documents]
        return {"documents": rated, "confidence": found}
