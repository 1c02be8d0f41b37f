"""LangChain (`pip install 'nnnorm[langchain]'`): an embedding model whose vectors are corrected.

Any vector store that takes an `Embeddings` then ranks by the corrected score, whichever of cosine,
L2 and inner product it compares by; filters and later documents need nothing more.
"""

import asyncio

from nnnorm.corrector import Correction, open_corrector
from nnnorm.errors import require
from nnnorm.integrations.vectors import check_query_weight, extend_items, extend_query

require("langchain_core", "langchain")
from langchain_core.embeddings import Embeddings  # noqa: E402


class CorrectedEmbeddings(Embeddings):
    """Embeddings of another model, extended by a corrector."""

    def __init__(
        self, embeddings: Embeddings, corrector: Correction, *, weight: float | None = None
    ) -> None:
        self.embeddings = embeddings
        self.corrector = open_corrector(corrector)
        self.weight = check_query_weight(weight)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts that are stored."""
        return extend_items(self.corrector, self.embeddings.embed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        """Embed a text that is asked."""
        return extend_query(self.corrector, self.embeddings.embed_query(text), self.weight)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts that are stored; other tasks run meanwhile."""
        vectors = await self.embeddings.aembed_documents(texts)
        return await asyncio.to_thread(extend_items, self.corrector, vectors)

    async def aembed_query(self, text: str) -> list[float]:
        """Embed a text that is asked."""
        vector = await self.embeddings.aembed_query(text)
        return extend_query(self.corrector, vector, self.weight)
