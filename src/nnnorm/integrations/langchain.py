"""LangChain (`pip install 'nnnorm[langchain]'`): an embedding model whose vectors are corrected.

Any vector store that takes an `Embeddings` then ranks by the corrected score, by cosine, L2 or
inner product. Filters and later documents work as before.
"""

import asyncio
from typing import Any

from nnnorm.augmentation import Target
from nnnorm.corrector import Correction
from nnnorm.errors import NNNormError, require
from nnnorm.integrations.vectors import VectorCorrector
from nnnorm.ranking import N_COMPARED

require("langchain_core", "langchain")
from langchain_core.documents import Document  # noqa: E402
from langchain_core.embeddings import Embeddings  # noqa: E402
from langchain_core.vectorstores import VectorStore  # noqa: E402


class CorrectedEmbeddings(VectorCorrector, Embeddings):
    """Embeddings of another model, extended by a corrector."""

    def __init__(
        self, embeddings: Embeddings, corrector: Correction, *, weight: float | None = None
    ) -> None:
        super().__init__(corrector, weight)
        self.embeddings = embeddings

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts that are stored."""
        return self.extend_items(self.embeddings.embed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        """Embed a query."""
        return self.extend_query(self.embeddings.embed_query(text))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts that are stored, without blocking the event loop."""
        vectors = await self.embeddings.aembed_documents(texts)
        return await asyncio.to_thread(self.extend_items, vectors)

    async def aembed_query(self, text: str) -> list[float]:
        """Embed a query."""
        return self.extend_query(await self.embeddings.aembed_query(text))


def search_with_confidence(
    store: VectorStore, query: str, k: int = 4, *, metric: Target = "cosine", **options: Any
) -> list[Document]:
    """Search a store of `CorrectedEmbeddings`; ``metadata["confidence"]`` rates the search.

    `metric` is the type of the store's scores: cosines, inner products or squared distances.
    """
    model = store.embeddings
    if not isinstance(model, CorrectedEmbeddings):
        raise NNNormError(
            "confidence needs a vector store whose embeddings are CorrectedEmbeddings; got "
            f"{type(model).__name__}"
        )
    hits = store.similarity_search_with_score(query, k=max(k, N_COMPARED), **options)
    scores, asked = [score for _, score in hits], model.embed_query(query)
    found = model.measure_confidence(scores, asked, metric)
    return [
        hit.model_copy(update={"metadata": {**hit.metadata, "confidence": found}})
        for hit, _ in hits[:k]
    ]
