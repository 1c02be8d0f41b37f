"""LlamaIndex's own vector store, filled and asked through `CorrectedEmbedding`."""

import asyncio
import pickle

import pytest

from nnnorm import NNN, Corrector, NNNormError
from tests.integrations.conftest import embed, embed_all, kind_of

pytestmark = pytest.mark.slow

from llama_index.core import VectorStoreIndex  # noqa: E402
from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: E402
from llama_index.core.ingestion import IngestionPipeline  # noqa: E402
from llama_index.core.schema import TextNode  # noqa: E402
from llama_index.core.storage.kvstore import SimpleKVStore  # noqa: E402
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters  # noqa: E402

from nnnorm.integrations.llama_index import CorrectedEmbedding  # noqa: E402


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


def test_so_it_does_with_a_filter(case, exact):
    rare = [text for text in case.texts if kind_of(text) == "rare"]
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="rare")])
    assert ask(fill(case), case, filters=filters) == exact(rare)


def test_so_it_does_with_texts_that_come_later(case, exact):
    index = fill(case)
    for node in nodes(case.later):
        index.insert_nodes([node])
    assert ask(index, case, k=30) == exact(case.texts + case.later, k=30)


def test_another_weight_needs_no_new_texts(case, exact):
    index = fill(case)
    softer = CorrectedEmbedding(Model(), case.corrector, weight=0.25)
    assert ask(index, case, embed_model=softer) == exact(case.texts, weight=0.25)


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
    with pytest.raises(NNNormError, match="give the cache to the model inside"):
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


def test_a_pickled_copy_gives_the_same_vectors(case):
    corrected = CorrectedEmbedding(Model(), case.corrector, weight=0.5)
    copy = pickle.loads(pickle.dumps(corrected))
    for name in ("get_text_embedding", "get_query_embedding"):
        assert getattr(copy, name)("text") == getattr(corrected, name)("text")


def test_what_is_no_corrector_is_rejected(case):
    with pytest.raises(NNNormError, match=r"corrector must be a Corrector, .*; got NoneType"):
        CorrectedEmbedding(Model(), None)
    with pytest.raises(NNNormError, match=r"corrector must be a Corrector, .*; got Model"):
        CorrectedEmbedding(case.corrector, Model())


@pytest.mark.parametrize("weight", ["0.5", float("nan"), True])
def test_a_weight_that_is_no_number_is_rejected(case, weight):
    with pytest.raises(NNNormError, match="weight must be"):
        CorrectedEmbedding(Model(), case.corrector, weight=weight)
