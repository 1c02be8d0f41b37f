"""LangChain's own vector store, filled and asked through `CorrectedEmbeddings`."""

import asyncio

import numpy as np
import pytest

from nnnorm import NNNormError
from tests.integrations.conftest import embed, embed_all, kind_of, search

pytestmark = pytest.mark.slow

from langchain_core.documents import Document  # noqa: E402
from langchain_core.embeddings import Embeddings  # noqa: E402
from langchain_core.vectorstores import InMemoryVectorStore  # noqa: E402

from nnnorm.integrations.langchain import CorrectedEmbeddings, search_with_confidence  # noqa: E402


class Model(Embeddings):
    def embed_documents(self, texts):
        return [embed(text) for text in texts]

    def embed_query(self, text):
        return embed(text)


def documents(texts):
    return [Document(text, metadata={"kind": kind_of(text)}) for text in texts]


def fill(case, **settings):
    store = InMemoryVectorStore(CorrectedEmbeddings(Model(), case.corrector, **settings))
    store.add_documents(documents(case.texts))
    return store


def ask(store, case, k=10, **options):
    found = (store.similarity_search(query, k=k, **options) for query in case.queries)
    return [[document.page_content for document in hits] for hits in found]


def test_the_store_ranks_as_the_exact_search_does(case, exact):
    assert ask(fill(case), case) == exact(case.texts)
    assert exact(case.texts) != exact(case.texts, weight=0)  # so there is something to correct


@pytest.mark.parametrize("weight", [None, 0.25])
def test_hits_have_the_confidence_of_the_exact_search(case, weight):
    store = fill(case, weight=weight)
    exact = search(case, case.texts, weight=weight).confidence
    hits = [search_with_confidence(store, query, k=3) for query in case.queries]
    found = [[hit.metadata["confidence"] for hit in some] for some in hits]
    np.testing.assert_allclose(found, np.tile(exact[:, None], 3), atol=1e-4)
    assert hits[0][0].metadata["kind"] == kind_of(hits[0][0].page_content)
    assert "confidence" not in store.similarity_search(case.queries[0])[0].metadata
    rare = [text for text in case.texts if kind_of(text) == "rare"]
    (hit, *_) = search_with_confidence(
        store, case.queries[0], filter=lambda one: one.metadata["kind"] == "rare"
    )
    expected = search(case, rare, weight=weight).confidence[0]
    assert hit.metadata["confidence"] == pytest.approx(expected, abs=1e-4)
    assert search_with_confidence(store, "what", filter=lambda one: False) == []
    with pytest.raises(NNNormError, match="are CorrectedEmbeddings; got Model"):
        search_with_confidence(InMemoryVectorStore(Model()), "what")


def test_so_it_does_with_documents_that_come_later(case, exact):
    store = fill(case)
    for document in documents(case.later):
        store.add_documents([document])
    assert ask(store, case, k=30) == exact(case.texts + case.later, k=30)


def test_another_weight_needs_no_new_documents(case, exact):
    store = fill(case)
    for weight in (0, 0.25):
        store.embedding = CorrectedEmbeddings(Model(), case.corrector, weight=weight)
        assert ask(store, case) == exact(case.texts, weight=weight)


def test_what_is_asynchronous_gives_the_same_vectors(case):
    corrected = CorrectedEmbeddings(Model(), case.corrector)

    async def embed_both():
        return await corrected.aembed_documents(case.texts), await corrected.aembed_query("what")

    stored, asked = asyncio.run(embed_both())
    assert stored == corrected.embed_documents(case.texts)
    assert stored == case.corrector.transform_items(embed_all(case.texts)).tolist()
    assert asked == corrected.embed_query("what")


def test_no_documents_give_no_vectors(case):
    assert CorrectedEmbeddings(Model(), case.corrector).embed_documents([]) == []


def test_a_corrector_may_be_its_path_and_what_is_no_corrector_is_rejected(case, tmp_path):
    case.corrector.save(tmp_path / "corrector.safetensors")
    loaded = CorrectedEmbeddings(Model(), tmp_path / "corrector.safetensors")
    assert loaded.corrector.fingerprint == case.corrector.fingerprint
    with pytest.raises(NNNormError, match=r"must be a Corrector, .*; got int"):
        CorrectedEmbeddings(Model(), 3)


@pytest.mark.parametrize("weight", ["0.5", float("nan"), True])
def test_a_weight_that_is_no_number_is_rejected(case, weight):
    with pytest.raises(NNNormError, match="weight must be"):
        CorrectedEmbeddings(Model(), case.corrector, weight=weight)
