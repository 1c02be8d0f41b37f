"""LlamaIndex (`pip install 'nnnorm[llama-index]'`): an embedding model with corrected vectors.

A vector index with this `embed_model` stores texts with their bias and searches with the weight, so
any vector store ranks by the corrected score. A cache of embeddings can't distinguish documents
from queries, so it is rejected here; set it on the inner model.
"""

import asyncio
from typing import Any

from nnnorm.augmentation import Target
from nnnorm.corrector import Correction
from nnnorm.errors import NNNormError, require
from nnnorm.integrations.vectors import Vector, VectorCorrector

require("llama_index.core", "llama-index")
from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: E402
from llama_index.core.bridge.pydantic import Field, SerializeAsAny  # noqa: E402
from llama_index.core.postprocessor.types import BaseNodePostprocessor  # noqa: E402
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle  # noqa: E402


class CorrectedEmbedding(BaseEmbedding):
    """Embeddings of another model, extended by a corrector."""

    model: SerializeAsAny[BaseEmbedding]
    vectors: Any = Field(exclude=True)
    weight: float | None = None
    # Caches, such as that of an ingestion pipeline, depend on it.
    fingerprint: str = ""

    def __init__(
        self,
        model: BaseEmbedding,
        corrector: Correction,
        *,
        weight: float | None = None,
        **settings: Any,
    ) -> None:
        if settings.get("embeddings_cache") is not None:
            raise NNNormError(
                "embeddings_cache keeps one vector per text, but a query and a document with "
                "the same text need different vectors; set the cache on the inner model"
            )
        vectors = VectorCorrector(corrector, weight)
        own = {"model_name": model.model_name, "embed_batch_size": model.embed_batch_size}
        checked = {"vectors": vectors, "fingerprint": vectors.corrector.fingerprint}
        super().__init__(model=model, weight=weight, **(own | settings | checked))

    @classmethod
    def class_name(cls) -> str:
        """Return the name of this class in LlamaIndex's files."""
        return "CorrectedEmbedding"

    def _get_text_embedding(self, text: str) -> Vector:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[Vector]:
        return self.vectors.extend_items(self.model.get_text_embedding_batch(texts))

    def _get_query_embedding(self, query: str) -> Any:
        return self._extend_query(self.model.get_query_embedding(query))

    async def _aget_text_embedding(self, text: str) -> Vector:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Vector]:
        vectors = await self.model.aget_text_embedding_batch(texts)
        return await asyncio.to_thread(self.vectors.extend_items, vectors)

    async def _aget_query_embedding(self, query: str) -> Any:
        return self._extend_query(await self.model.aget_query_embedding(query))

    def _extend_query(self, vector: Vector) -> Vector:
        # The weight is a field, so it may have changed.
        return VectorCorrector(self.vectors.corrector, self.weight).extend_query(vector)


class ConfidenceRater(BaseNodePostprocessor):
    """Add the confidence of a search to the metadata of its nodes.

    The retriever should return 10 nodes or more. `metric` is the type of the store's scores.
    """

    model: CorrectedEmbedding
    metric: Target = "cosine"

    @classmethod
    def class_name(cls) -> str:
        """Return the name of this class in LlamaIndex's files."""
        return "ConfidenceRater"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise NNNormError("confidence needs the query; pass query_bundle or query_str")
        asked = query_bundle.embedding or self.model.get_query_embedding(query_bundle.query_str)
        scores = [node.score for node in nodes]
        found = self.model.vectors.measure_confidence(scores, asked, self.metric)
        return [NodeWithScore(node=_rate(hit.node, found), score=hit.score) for hit in nodes]


def _rate(node: BaseNode, confidence: float | None) -> BaseNode:
    """Return a copy with the confidence, hidden from the language model."""
    hidden = [*node.excluded_llm_metadata_keys, "confidence"]
    known = {**node.metadata, "confidence": confidence}
    return node.model_copy(update={"metadata": known, "excluded_llm_metadata_keys": hidden})
