"""LlamaIndex's own vector store, filled and asked through `CorrectedEmbedding`."""

import asyncio
import pickle

import pytest

from nnnorm import NNN, Corrector, NNNormError
from tests.integrations.conftest import embed, embed_all, kind_of, search

pytestmark = pytest.mark.slow

from llama_index.core import VectorStoreIndex  # noqa: E402
from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: E402
from llama_index.core.ingestion import IngestionPipeline  # noqa: E402
from llama_index.core.schema import MetadataMode, TextNode  # noqa: E402
from llama_index.core.storage.kvstore import SimpleKVStore  # noqa: E402

from nnnorm.integrations.llama_index import ConfidenceRater, CorrectedEmbedding  # noqa: E402


class Model(BaseEmbedding):
    def _get_text_embedding(self, text):
        return embed(text)

    def _get_query_embedding(self, query):
        return embed(query)

    async def _aget_query_embedding(self, query):
        return embed(query)


def nodes(texts):
    hidden = ["kind"]  # the model sees the text alone
    return [
        TextNode(text=text, metadata={"kind": kind_of(text)}, excluded_embed_metadata_keys=hidden)
        for text in texts
    ]


def fill(case):
    model = CorrectedEmbedding(Model(), case.corrector)
    return VectorStoreIndex(nodes(case.texts), embed_model=model)


def ask(index, case, k=10, **options):
    retriever = index.as_retriever(similarity_top_k=k, **options)
    return [[hit.text for hit in retriever.retrieve(query)] for query in case.queries]


def test_the_store_ranks_as_the_exact_search_does(case, exact):
    assert ask(fill(case), case) == exact(case.texts)


def test_nodes_have_the_confidence_of_the_exact_search(case):
    index = fill(case)
    rater = ConfidenceRater(model=CorrectedEmbedding(Model(), case.corrector))
    retriever = index.as_retriever(similarity_top_k=10)
    for query, exact in zip(case.queries, search(case, case.texts).confidence, strict=True):
        plain = retriever.retrieve(query)
        rated = rater.postprocess_nodes(plain, query_str=query)
        found = [hit.metadata["confidence"] for hit in rated]
        assert found == pytest.approx([exact] * 10, abs=1e-4)
        assert [hit.text for hit in rated] == [hit.text for hit in plain]
        assert "confidence" not in rated[0].node.get_content(MetadataMode.LLM)
        assert "confidence" not in plain[0].metadata
    with pytest.raises(NNNormError, match="pass query_bundle or query_str"):
        rater.postprocess_nodes(plain)


def test_what_is_asynchronous_gives_the_same_vectors(case):
    corrected = CorrectedEmbedding(Model(), case.corrector)

    async def embed_all_ways():
        return (
            await corrected.aget_text_embedding_batch(case.texts),
            await corrected.aget_text_embedding(case.texts[0]),
            await corrected.aget_query_embedding("what"),
        )

    stored, one, asked = asyncio.run(embed_all_ways())
    assert stored == corrected.get_text_embedding_batch(case.texts)
    assert one == corrected.get_text_embedding(case.texts[0])
    assert asked == corrected.get_query_embedding("what")


def test_batches_are_those_of_the_model_unless_they_are_given(case):
    assert CorrectedEmbedding(Model(embed_batch_size=7), case.corrector).embed_batch_size == 7
    corrected = CorrectedEmbedding(Model(), case.corrector, embed_batch_size=32)
    assert corrected.embed_batch_size == 32
    assert len(corrected.get_text_embedding_batch(case.texts)) == len(case.texts)


def test_a_cache_that_mixes_both_sides_is_rejected(case):
    with pytest.raises(NNNormError, match="set the cache on the inner model"):
        CorrectedEmbedding(Model(), case.corrector, embeddings_cache=SimpleKVStore())
    inside = CorrectedEmbedding(Model(embeddings_cache=SimpleKVStore()), case.corrector)
    stored, asked = inside.get_text_embedding("text"), inside.get_query_embedding("text")
    assert stored == case.corrector.transform_items(embed_all(["text"]))[0].tolist()
    assert asked == case.corrector.transform_queries(embed_all(["text"]))[0].tolist()


def test_a_pipeline_embeds_again_what_it_cached_with_another_corrector(case):
    pipeline = IngestionPipeline(transformations=[CorrectedEmbedding(Model(), case.corrector)])
    before = pipeline.run(nodes=nodes(["text 1"]))[0].embedding
    other = Corrector.fit(
        embed_all(case.texts),
        embed_all(case.queries),
        NNN(5, 0.6),
        normalize=case.corrector.normalize,
    )
    pipeline.transformations = [CorrectedEmbedding(Model(), other)]
    after = pipeline.run(nodes=nodes(["text 1"]))[0].embedding
    assert before != after == other.transform_items(embed_all(["text 1"]))[0].tolist()


def test_a_weight_that_is_set_later_is_used(case):
    corrected = CorrectedEmbedding(Model(), case.corrector)
    corrected.weight = 0.25
    expected = case.corrector.transform_queries(embed_all(["text"]), weight=0.25)[0].tolist()
    assert corrected.get_query_embedding("text") == expected


def test_a_pickled_copy_gives_the_same_vectors(case):
    corrected = CorrectedEmbedding(Model(), case.corrector, weight=0.5)
    copy = pickle.loads(pickle.dumps(corrected))
    for name in ("get_text_embedding", "get_query_embedding"):
        assert getattr(copy, name)("text") == getattr(corrected, name)("text")
