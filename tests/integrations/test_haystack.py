"""Haystack's own document store between the two components, by both of its similarities."""

import inspect

import pytest

from nnnorm import NNN, Corrector, NNNormError
from tests.integrations.conftest import embed, embed_all, kind_of, search

pytestmark = pytest.mark.slow

from haystack import Document, Pipeline, default_from_dict  # noqa: E402
from haystack.components.retrievers import InMemoryEmbeddingRetriever  # noqa: E402
from haystack.components.writers import DocumentWriter  # noqa: E402
from haystack.document_stores.in_memory import InMemoryDocumentStore  # noqa: E402

from nnnorm.integrations.haystack import (  # noqa: E402
    ConfidenceRater,
    DocumentCorrector,
    QueryCorrector,
)

# Haystack 3 loads only its own components, and those of modules that the caller trusts.
TRUSTED = {"allowed_modules": ["nnnorm.integrations.haystack"]}
if not TRUSTED.keys() <= inspect.signature(Pipeline.loads).parameters.keys():
    TRUSTED = {}


def documents(texts):
    return [
        Document(content=text, meta={"kind": kind_of(text)}, embedding=embed(text))
        for text in texts
    ]


def write(store, corrector, texts):
    pipeline = Pipeline()
    pipeline.add_component("corrector", DocumentCorrector(corrector))
    pipeline.add_component("writer", DocumentWriter(store))
    pipeline.connect("corrector", "writer")
    pipeline.run({"corrector": {"documents": documents(texts)}})


def query_pipeline(store, corrector, **settings):
    pipeline = Pipeline()
    pipeline.add_component("corrector", QueryCorrector(corrector, **settings))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store))
    pipeline.connect("corrector.embedding", "retriever.query_embedding")
    return pipeline


def ask(pipeline, case, k=10, **options):
    found = []
    for query in case.queries:
        inputs = {"corrector": {"embedding": embed(query)}, "retriever": {"top_k": k, **options}}
        hits = pipeline.run(inputs)["retriever"]["documents"]
        found.append([document.content for document in hits])
    return found


@pytest.fixture(params=["cosine", "dot_product"])
def store(request, case):
    store = InMemoryDocumentStore(embedding_similarity_function=request.param)
    write(store, case.corrector, case.texts)
    return store


def test_the_store_ranks_as_the_exact_search_does(case, exact, store):
    assert ask(query_pipeline(store, case.corrector), case) == exact(case.texts)


def test_documents_have_the_confidence_of_the_exact_search(case, store, tmp_path):
    path = tmp_path / "corrector.safetensors"
    case.corrector.save(path)
    pipeline = query_pipeline(store, path, weight=0.5)
    similarity = store.embedding_similarity_function
    pipeline.add_component("rater", ConfidenceRater(path, similarity))
    pipeline.connect("retriever.documents", "rater.documents")
    pipeline.connect("corrector.embedding", "rater.embedding")
    exact = search(case, case.texts, weight=0.5).confidence
    for query, expected in zip(case.queries, exact, strict=True):
        done = pipeline.run({"corrector": {"embedding": embed(query)}})["rater"]
        found = [document.meta["confidence"] for document in done["documents"]]
        assert found == pytest.approx([expected] * 10, abs=1e-4)
        assert done["confidence"] == found[0]
    rater = pipeline.get_component("rater")
    assert rater.run([], embed("what")) == {"documents": [], "confidence": None}
    again = default_from_dict(ConfidenceRater, rater.to_dict())
    assert again.similarity == similarity
    with pytest.raises(NNNormError, match="scores must not be NaN"):
        rater.run(documents(["text 1"]), QueryCorrector(path).run(embed("what"))["embedding"])
    with pytest.raises(NNNormError, match="must be 'cosine' or 'dot_product'; got 'l2'"):
        ConfidenceRater(path, "l2")


def test_documents_keep_what_they_have_and_the_given_ones_are_not_changed(case):
    given = documents(["text 1"])
    done = DocumentCorrector(case.corrector).run(given)["documents"]
    assert given == documents(["text 1"])
    assert done[0].embedding == case.corrector.transform_items(embed_all(["text 1"]))[0].tolist()
    assert (done[0].id, done[0].meta) == (given[0].id, given[0].meta)
    assert DocumentCorrector(case.corrector).run([]) == {"documents": []}


def test_a_pipeline_is_saved_with_the_path_and_finds_the_same(case, tmp_path):
    path = tmp_path / "corrector.safetensors"
    case.corrector.save(path)
    pipeline = Pipeline()
    pipeline.add_component("documents", DocumentCorrector(path))
    pipeline.add_component("query", QueryCorrector(path, weight=0.5))
    again = Pipeline.loads(pipeline.dumps(), **TRUSTED)
    inputs = {
        "documents": {"documents": documents(case.texts)},
        "query": {"embedding": embed("what")},
    }
    assert again.run(inputs) == pipeline.run(inputs)


def test_a_saved_pipeline_rejects_another_corrector_at_the_same_path(case, tmp_path):
    path = tmp_path / "corrector.safetensors"
    case.corrector.save(path)
    pipeline = Pipeline()
    pipeline.add_component("query", QueryCorrector(path))
    saved = pipeline.dumps()
    rows, normalize = embed_all(case.texts), case.corrector.normalize
    other = Corrector.fit(rows, embed_all(case.queries), NNN(5, 0.6), normalize=normalize)
    other.save(path)
    expected = f"must have the fingerprint {case.corrector.fingerprint}; got {other.fingerprint}"
    with pytest.raises(Exception, match=expected):  # Haystack wraps it in an error of its own
        Pipeline.loads(saved, **TRUSTED)


def test_a_corrector_in_memory_can_not_be_saved_with_a_pipeline(case):
    for made in (DocumentCorrector, QueryCorrector):
        with pytest.raises(NNNormError, match="save the corrector first"):
            made(case.corrector).to_dict()


def test_a_document_without_an_embedding_is_named(case):
    given = [*documents(["text 1"]), Document(id="bare", content="text 2")]
    with pytest.raises(NNNormError, match="bare has none; put a document embedder before"):
        DocumentCorrector(case.corrector).run(given)
