"""Haystack's own document store between the two components, by both of its similarities."""

import pytest

from nnnorm import NNN, Corrector, NNNormError
from tests.integrations.conftest import embed, embed_all, kind_of

pytestmark = pytest.mark.slow

from haystack import Document, Pipeline  # noqa: E402
from haystack.components.retrievers import InMemoryEmbeddingRetriever  # noqa: E402
from haystack.components.writers import DocumentWriter  # noqa: E402
from haystack.document_stores.in_memory import InMemoryDocumentStore  # noqa: E402

from nnnorm.integrations.haystack import DocumentCorrector, QueryCorrector  # noqa: E402

# Haystack loads only its own components, and those of modules that the caller trusts.
TRUSTED = ["nnnorm.integrations.haystack"]


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
        inputs = {
            "corrector": {"embedding": embed(query)},
            "retriever": {"top_k": k, **options},
        }
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


def test_so_it_does_with_a_filter(case, exact, store):
    rare = [text for text in case.texts if kind_of(text) == "rare"]
    filters = {"field": "meta.kind", "operator": "==", "value": "rare"}
    assert ask(query_pipeline(store, case.corrector), case, filters=filters) == exact(rare)


def test_so_it_does_with_documents_that_come_later(case, exact, store):
    for text in case.later:
        write(store, case.corrector, [text])
    found = ask(query_pipeline(store, case.corrector), case, k=30)
    assert found == exact(case.texts + case.later, k=30)


def test_another_weight_needs_no_new_documents(case, exact, store):
    softer = query_pipeline(store, case.corrector, weight=0.25)
    assert ask(softer, case) == exact(case.texts, weight=0.25)


def test_documents_keep_what_they_have_and_the_given_ones_are_not_changed(case):
    given = documents(["text 1"])
    done = DocumentCorrector(case.corrector).run(given)["documents"]
    assert given == documents(["text 1"])
    assert done[0].embedding == case.corrector.transform_items(embed_all(["text 1"]))[0].tolist()
    assert (done[0].id, done[0].meta) == (given[0].id, given[0].meta)
    assert DocumentCorrector(case.corrector).run([]) == {"documents": []}


def test_a_pipeline_is_saved_with_the_path_and_finds_the_same(case, store, tmp_path):
    path = tmp_path / "corrector.safetensors"
    case.corrector.save(path)
    saved = query_pipeline(store, path, weight=0.5).get_component("corrector").to_dict()
    assert saved["init_parameters"] == {
        "corrector": str(path),
        "weight": 0.5,
        "fingerprint": case.corrector.fingerprint,
    }
    pipeline = Pipeline()
    pipeline.add_component("documents", DocumentCorrector(path))
    pipeline.add_component("query", QueryCorrector(path, weight=0.5))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=TRUSTED)
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
        Pipeline.loads(saved, allowed_modules=TRUSTED)


def test_a_corrector_in_memory_can_not_be_saved_with_a_pipeline(case):
    for made in (DocumentCorrector, QueryCorrector):
        with pytest.raises(NNNormError, match="save the corrector first"):
            made(case.corrector).to_dict()


def test_a_document_without_an_embedding_is_named(case):
    given = [*documents(["text 1"]), Document(id="bare", content="text 2")]
    with pytest.raises(NNNormError, match="bare has none; put a document embedder before"):
        DocumentCorrector(case.corrector).run(given)


def test_documents_that_are_extended_already_are_rejected(case):
    done = DocumentCorrector(case.corrector).run(documents(case.texts))["documents"]
    with pytest.raises(NNNormError, match="18 and 16"):
        DocumentCorrector(case.corrector).run(done)


@pytest.mark.parametrize(
    ("given", "answer"),
    [("nowhere.safetensors", "there is no corrector file"), (3, "must be a Corrector, .*got int")],
)
def test_what_is_no_corrector_is_rejected(given, answer):
    for made in (DocumentCorrector, QueryCorrector):
        with pytest.raises(NNNormError, match=answer):
            made(given)


@pytest.mark.parametrize("weight", ["0.5", float("nan"), True])
def test_a_weight_that_is_no_number_is_rejected(case, weight):
    with pytest.raises(NNNormError, match="weight must be"):
        QueryCorrector(case.corrector, weight=weight)
