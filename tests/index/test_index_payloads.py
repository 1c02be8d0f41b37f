"""What is sent to engines over HTTP, as documents: no server runs here.

What an engine would answer is worked out from the documents by the formula of its manual.
"""

import json

import numpy as np
import pytest

import nnnorm
from nnnorm.index.payloads import make_payloads
from nnnorm.index.store import uuid_of
from tests.index.test_index import exact, make_data

ENGINES = ["elasticsearch", "opensearch", "weaviate", "vespa", "turbopuffer"]
WAYS = {engine: ["ip", "l2", "cosine"] for engine in ENGINES[:3]}
WAYS |= {"vespa": ["ip"], "turbopuffer": ["cosine", "l2"]}
each = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture
def data():
    return make_data(80, 6, 11, unit=False)


def plain(document):
    """Through JSON and back, as a server would get it."""
    return json.loads(json.dumps(document, allow_nan=False))


def vector_of(engine, document):
    if engine in ("elasticsearch", "opensearch"):
        return document["_source"]["embedding"]
    return document["fields"]["embedding"]["values"] if engine == "vespa" else document["vector"]


def vector_asked(engine, body):
    if engine == "elasticsearch":
        return body["knn"]["query_vector"]
    if engine == "opensearch":
        return body["query"]["knn"]["embedding"]["vector"]
    if engine == "weaviate":
        _, _, rest = body["query"].partition("vector: ")
        return json.loads(rest[: rest.index("]") + 1])
    return body["input.query(q)"] if engine == "vespa" else body["rank_by"][2]


def answer(engine, metric, stored, asked):
    """The number that the engine's manual promises, and whether more of it is better."""
    product = stored @ asked
    squared = ((stored - asked) ** 2).sum(axis=1)
    cosine = product / np.linalg.norm(stored, axis=1) / np.linalg.norm(asked)
    if engine in ("elasticsearch", "opensearch"):
        folded = np.where(product < 0, 1 / (1 - np.minimum(product, 0)), product + 1)
        return {"ip": folded, "l2": 1 / (1 + squared), "cosine": (1 + cosine) / 2}[metric], True
    if engine == "vespa":
        return product, True
    return {"ip": -product, "l2": squared, "cosine": 1 - cosine}[metric], False


@pytest.mark.parametrize(
    ("engine", "way"), [(engine, way) for engine in ENGINES for way in WAYS[engine]]
)
@pytest.mark.parametrize("weight", [None, 0.3])
@pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning")
def test_an_engine_that_does_as_its_manual_says_ranks_by_the_corrected_score(
    engine, way, weight, data
):
    payloads = make_payloads(engine, "photos", data.gallery, data.bias, way=way)
    stored = np.array([vector_of(engine, plain(one)) for one in payloads.documents()])
    right = exact(data, k=10, weight=weight)
    for row, query in enumerate(data.queries):
        body = plain(payloads.query(query, k=10, weight=weight))
        own, more_is_better = answer(engine, way, stored, np.array(vector_asked(engine, body)))
        best = np.argsort(-own if more_is_better else own, kind="stable")[:10]
        assert best.tolist() == right.ids[row].tolist()
        read = [payloads.read_score(own[item], query, weight=weight) for item in best]
        np.testing.assert_allclose(read, right.all_scores[row][best], atol=1e-4)


@each
def test_ids_and_metadata_go_along(engine, data):
    ids = [f"shelf/{row}" for row in range(80)]
    metadata = [{"year": 1940 + row, "tags": ["a"]} for row in range(80)]
    payloads = make_payloads(engine, "photos", data.gallery, data.bias, ids=ids, metadata=metadata)
    document = plain(list(payloads.documents())[7])
    known = {
        "elasticsearch": lambda d: (d["_id"], d["_source"]["metadata"]),
        "opensearch": lambda d: (d["_id"], d["_source"]["metadata"]),
        "weaviate": lambda d: (
            d["properties"]["nnnorm_id"],
            json.loads(d["properties"]["metadata"]),
        ),
        "vespa": lambda d: (
            d["put"].removeprefix("id:photos:photos::"),
            json.loads(d["fields"]["metadata"]),
        ),
        "turbopuffer": lambda d: (d["id"], json.loads(d["metadata"])),
    }
    assert known[engine](document) == ("shelf/7", metadata[7])
    if engine == "weaviate":
        assert document["id"] == uuid_of("shelf/7")


def test_elasticsearch_gets_floats_and_no_similarity_that_demands_unit_vectors(data):
    wide = make_data(5, 2, 512, unit=True)
    for some in (data, wide):  # from 384 numbers on its default would be binary
        payloads = make_payloads("elasticsearch", "photos", some.gallery, some.bias)
        field = payloads.collection()["mappings"]["properties"]["embedding"]
        assert field["index_options"]["type"] == "hnsw"
        assert field["similarity"] == "max_inner_product"
        assert field["dims"] == some.gallery.shape[1] + 1
    body = payloads.query(wide.queries[0], k=10)
    assert (body["knn"]["k"], body["knn"]["num_candidates"], body["size"]) == (10, 100, 10)
    assert payloads.query(wide.queries[0], k=5000)["knn"]["num_candidates"] == 10_000


def test_opensearch_keeps_its_vectors_in_memory_as_floats(data):
    payloads = make_payloads("opensearch", "photos", data.gallery, data.bias)
    body = payloads.collection()
    assert body["settings"]["index"]["knn"] is True
    field = body["mappings"]["properties"]["embedding"]
    assert (field["space_type"], field["mode"], field["dimension"]) == (
        "innerproduct",
        "in_memory",
        12,
    )
    assert "data_type" not in field
    assert field["method"]["name"] == "hnsw"


def test_weaviate_is_told_not_to_quantise(data):
    body = make_payloads("weaviate", "photos", data.gallery, data.bias).collection()
    assert body["class"] == "Photos"
    assert body["vectorizer"] == "none"
    assert body["vectorIndexConfig"] == {"distance": "dot", "skipDefaultQuantization": True}


def test_vespas_schema_and_query_agree(data):
    payloads = make_payloads("vespa", "photos", data.gallery, data.bias)
    schema = payloads.collection()
    assert schema.count("tensor<float>(x[12])") == 2
    assert "distance-metric: dotproduct" in schema
    assert "sum(query(q) * attribute(embedding))" in schema
    assert schema.count("{") == schema.count("}")
    body = payloads.query(data.queries[0], k=3)
    assert body["yql"] == (
        "select * from photos where {targetHits: 100}nearestNeighbor(embedding, q)"
    )
    assert (body["ranking.profile"], body["hits"]) == ("nnnorm", 3)


def test_turbopuffer_has_no_product_and_gets_two_coordinates(data):
    payloads = make_payloads("turbopuffer", "photos", data.gallery, data.bias)
    body = payloads.collection()
    assert body["distance_metric"] == "cosine_distance"
    assert body["schema"]["vector"] == {"type": "[13]f32", "ann": True}
    with pytest.raises(nnnorm.NNNormError, match="turbopuffer does not support the way 'ip'"):
        make_payloads("turbopuffer", "photos", data.gallery, data.bias, way="ip")


@each
def test_bad_input_is_one_sentence(engine, data):
    payloads = make_payloads(engine, "photos", data.gallery, data.bias)
    with pytest.raises(nnnorm.NNNormError, match=r"must have shape \(11,\); got \(9,\)"):
        payloads.query(np.ones(9))
    with pytest.raises(nnnorm.NNNormError, match="k must be a whole number from 1; got 0"):
        payloads.query(data.queries[0], k=0)
    with pytest.raises(nnnorm.NNNormError, match="was fitted on another gallery"):
        make_payloads(engine, "photos", data.gallery[::-1], data.bias)
    with pytest.raises(nnnorm.NNNormError, match="one mapping per item, 80; got 1"):
        make_payloads(engine, "photos", data.gallery, data.bias, metadata=[{}])
    with pytest.raises(nnnorm.NNNormError, match="ids of gallery must be unique"):
        make_payloads(engine, "photos", data.gallery, data.bias, ids=[1] * 80)


def test_an_engine_without_payloads_is_named(data):
    with pytest.raises(nnnorm.NNNormError, match="no payloads for 'solr'; engine must be one of"):
        make_payloads("solr", "photos", data.gallery, data.bias)
