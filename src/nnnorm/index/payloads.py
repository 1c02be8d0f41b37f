"""Ready documents for engines with an HTTP interface: to create, to fill and to search.

Elasticsearch, OpenSearch, Weaviate, Vespa and turbopuffer. Nothing is sent from here, and no server
was available: the documents are tested as such, not against the engines. Each class names the
default of its engine that would break the correction, and sets something else.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from nnnorm.augmentation import check_storable
from nnnorm.bias import Bias, check_correction, check_weight
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.index.recipe import Recipe, make_recipe
from nnnorm.index.store import (
    BATCH,
    Engine,
    FloatArray,
    Ids,
    Items,
    Metadata,
    Way,
    check_metadata,
    name_items,
    uuid_of,
)

PayloadEngine = Literal["elasticsearch", "opensearch", "weaviate", "vespa", "turbopuffer"]
_MOST_CANDIDATES = 10_000  # of Elasticsearch and OpenSearch


class Payloads(Engine):
    """What to send for one corrected collection. Returned by `make_payloads`.

    Attributes
    ----------
    name : str
        Name of the collection.
    recipe : Recipe
        How the correction is built in.
    """

    similarities: ClassVar[dict[str, str]]

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        gallery: Embeddings,
        values: FloatArray,
        ids: Ids,
        metadata: Sequence[Metadata] | None,
    ) -> None:
        self.name, self.recipe = name, recipe
        self._gallery, self._values, self._ids, self._metadata = gallery, values, ids, metadata

    @abstractmethod
    def collection(self) -> Any:
        """Return the body that creates the collection (Vespa: the text of its schema)."""

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield one document per item, in the order of the gallery, with Python floats."""
        for start in range(0, len(self._gallery), BATCH):
            stop = min(start + BATCH, len(self._gallery))
            raw = Items(
                self._ids[start:stop], self._gallery.rows(start, stop), self._values[start:stop]
            )
            packed = self.recipe.pack(raw)
            for row, (item_id, vector) in enumerate(
                zip(packed.ids.tolist(), packed.vectors.tolist(), strict=True), start
            ):
                known = {} if self._metadata is None else dict(self._metadata[row])
                yield self._document(item_id, vector, known)

    def query(self, query: Any, *, k: int = 10, weight: float | None = None) -> dict[str, Any]:
        """Return the body that searches the k best items of one query, shape ``(dim,)``.

        `weight` replaces the weight of the bias; nothing is re-indexed.
        """
        asked, used = self._ask(query, weight)
        if k < 1:
            raise NNNormError(f"k must be a whole number from 1; got {k}")
        vector: list[float] = self.recipe.ask(asked, used)[0].tolist()
        return self._query(vector, k)

    def read_score(self, score: float, query: Any, *, weight: float | None = None) -> float:
        """Turn the engine's score or distance into ``s(q, r) − weight·m(r)``."""
        asked, used = self._ask(query, weight)
        own = np.array([[self._unfold(float(score))]], dtype=np.float32)
        return float(self.recipe.read_scores(own, self.recipe.ask(asked, used), used)[0, 0])

    @abstractmethod
    def _document(self, item_id: Any, vector: list[float], metadata: dict[str, Any]) -> Any:
        """Make the document of one item."""

    @abstractmethod
    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        """Make the body of one search."""

    @abstractmethod
    def _unfold(self, score: float) -> float:
        """Turn the engine's number into inner product, cosine, or minus the squared distance."""

    def _ask(self, query: Any, weight: float | None) -> tuple[FloatArray, float]:
        asked = np.asarray(query, dtype=np.float32)
        if asked.shape != (self.recipe.dim,):
            raise NNNormError(
                f"a query for {self.name} must have shape ({self.recipe.dim},); got {asked.shape}"
            )
        used = self.recipe.weight if weight is None else check_weight(weight)
        check_correction(used, [self.recipe.lowest, self.recipe.highest])
        return asked[None], used


class _Lucene(Payloads):
    """What Elasticsearch and OpenSearch share: their documents, and their positive scores."""

    is_graph = True

    def _document(self, item_id: Any, vector: list[float], metadata: dict[str, Any]) -> Any:
        # An action as `helpers.bulk` of both clients takes it.
        body = {"embedding": vector, "metadata": metadata}
        return {"_index": self.name, "_id": str(item_id), "_source": body}

    def _unfold(self, score: float) -> float:
        if self.recipe.metric == "cosine":
            return 2 * score - 1
        if self.recipe.metric == "l2":
            return 1 - 1 / score
        return score - 1 if score >= 1 else 1 - 1 / score


class Elasticsearch(_Lucene):
    """``max_inner_product``, because ``dot_product`` requires unit vectors, and float HNSW.

    The default index is binary (bbq) from 384 dimensions on, and int8 below.
    """

    engine = "elasticsearch"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine")
    similarities: ClassVar = {"ip": "max_inner_product", "l2": "l2_norm", "cosine": "cosine"}

    def collection(self) -> dict[str, Any]:
        embedding = {
            "type": "dense_vector",
            "dims": self.recipe.width,
            "index": True,
            "similarity": self.similarities[self.recipe.metric],
            "index_options": {"type": "hnsw", "m": 16, "ef_construction": 100},
        }
        return {
            "mappings": {"properties": {"embedding": embedding, "metadata": {"type": "object"}}}
        }

    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        knn = {
            "field": "embedding",
            "query_vector": vector,
            "k": k,
            "num_candidates": min(max(100, 10 * k), _MOST_CANDIDATES),
        }
        return {"knn": knn, "size": k, "_source": {"excludes": ["embedding"]}}


class OpenSearch(_Lucene):
    """The mode ``in_memory``, because ``on_disk`` is binary."""

    engine = "opensearch"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine")
    similarities: ClassVar = {"ip": "innerproduct", "l2": "l2", "cosine": "cosinesimil"}

    def collection(self) -> dict[str, Any]:
        embedding = {
            "type": "knn_vector",
            "dimension": self.recipe.width,
            "space_type": self.similarities[self.recipe.metric],
            "mode": "in_memory",
            "method": {
                "name": "hnsw",
                "engine": "faiss",
                "parameters": {"m": 16, "ef_construction": 100},
            },
        }
        return {
            "settings": {"index": {"knn": True}},
            "mappings": {"properties": {"embedding": embedding, "metadata": {"type": "object"}}},
        }

    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        breadth = min(max(100, 10 * k), _MOST_CANDIDATES)
        knn = {"vector": vector, "k": k, "method_parameters": {"ef_search": breadth}}
        return {
            "size": k,
            "query": {"knn": {"embedding": knn}},
            "_source": {"excludes": ["embedding"]},
        }


class Weaviate(Payloads):
    """Ids are UUIDs, and quantisation, which a server may apply by default, is switched off."""

    engine = "weaviate"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine")
    is_graph = True
    similarities: ClassVar = {"ip": "dot", "l2": "l2-squared", "cosine": "cosine"}

    @property
    def _class(self) -> str:
        return self.name[:1].upper() + self.name[1:]  # as Weaviate writes it

    def collection(self) -> dict[str, Any]:
        return {
            "class": self._class,
            "vectorizer": "none",
            "vectorIndexType": "hnsw",
            "vectorIndexConfig": {
                "distance": self.similarities[self.recipe.metric],
                "skipDefaultQuantization": True,
            },
            "properties": [
                {"name": "nnnorm_id", "dataType": ["text"], "tokenization": "field"},
                {"name": "metadata", "dataType": ["text"], "indexSearchable": False},
            ],
        }

    def _document(self, item_id: Any, vector: list[float], metadata: dict[str, Any]) -> Any:
        return {
            "class": self._class,
            "id": uuid_of(str(item_id)),
            "vector": vector,
            "properties": {"nnnorm_id": str(item_id), "metadata": json.dumps(metadata)},
        }

    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        near = f"nearVector: {{vector: {json.dumps(vector)}}}"
        wanted = "nnnorm_id metadata _additional { id distance }"
        return {"query": f"{{ Get {{ {self._class}(limit: {k}, {near}) {{ {wanted} }} }} }}"}

    def _unfold(self, score: float) -> float:
        return 1 - score if self.recipe.metric == "cosine" else -score


class Vespa(Payloads):
    """``dotproduct`` supports a graph at any norms; the rank profile returns plain products."""

    engine = "vespa"
    ways: tuple[Way, ...] = ("ip",)
    similarities: ClassVar = {"ip": "dotproduct"}

    def collection(self) -> str:
        tensor = f"tensor<float>(x[{self.recipe.width}])"
        return f"""\
schema {self.name} {{
    document {self.name} {{
        field embedding type {tensor} {{
            indexing: attribute | index
            attribute {{
                distance-metric: {self.similarities[self.recipe.metric]}
            }}
            index {{
                hnsw {{
                    max-links-per-node: 16
                    neighbors-to-explore-at-insert: 200
                }}
            }}
        }}
        field metadata type string {{
            indexing: summary
        }}
    }}
    rank-profile nnnorm {{
        inputs {{
            query(q) {tensor}
        }}
        first-phase {{
            expression: sum(query(q) * attribute(embedding))
        }}
    }}
}}
"""

    def _document(self, item_id: Any, vector: list[float], metadata: dict[str, Any]) -> Any:
        return {
            "put": f"id:{self.name}:{self.name}::{item_id}",
            "fields": {"embedding": {"values": vector}, "metadata": json.dumps(metadata)},
        }

    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        near = f"{{targetHits: {max(100, 10 * k)}}}nearestNeighbor(embedding, q)"
        return {
            "yql": f"select * from {self.name} where {near}",
            "ranking.profile": "nnnorm",
            "input.query(q)": vector,
            "hits": k,
        }

    def _unfold(self, score: float) -> float:
        return score


class Turbopuffer(Payloads):
    """Without inner product: two extra coordinates, and cosine gives the corrected order."""

    engine = "turbopuffer"
    ways: tuple[Way, ...] = ("cosine", "l2")
    similarities: ClassVar = {"cosine": "cosine_distance", "l2": "euclidean_squared"}

    def collection(self) -> dict[str, Any]:
        """Return the fields to send with the rows of each write; there is no separate creation."""
        return {
            "distance_metric": self.similarities[self.recipe.metric],
            "schema": {
                "vector": {"type": f"[{self.recipe.width}]f32", "ann": True},
                "metadata": {"type": "string", "filterable": False},
            },
        }

    def _document(self, item_id: Any, vector: list[float], metadata: dict[str, Any]) -> Any:
        return {"id": item_id, "vector": vector, "metadata": json.dumps(metadata)}

    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        return {
            "rank_by": ["vector", "ANN", vector],
            "top_k": k,
            "include_attributes": ["metadata"],
        }

    def _unfold(self, score: float) -> float:
        return 1 - score if self.recipe.metric == "cosine" else -score


_CLASSES: dict[str, type[Payloads]] = {
    kind.engine: kind for kind in (Elasticsearch, OpenSearch, Weaviate, Vespa, Turbopuffer)
}


@explain_arguments
def make_payloads(
    engine: PayloadEngine,
    name: str,
    gallery: Source,
    bias: Bias,
    *,
    ids: Any = None,
    metadata: Sequence[Metadata] | None = None,
    way: Way | None = None,
    normalize: bool | None = None,
) -> Payloads:
    """Prepare what to send to an engine so that it ranks by the corrected score.

    Parameters
    ----------
    engine : {"elasticsearch", "opensearch", "weaviate", "vespa", "turbopuffer"}
    name : str
        Name of the collection.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias
        Fitted on this gallery, without gates.
    ids : sequence of int or str, optional
        One per item, by default those of the file of the gallery, or 0…n−1.
    metadata : sequence of mappings, optional
        One per item, ready for JSON.
    way : {"ip", "cosine", "l2"}, optional
        How the correction is served; by default the best way of the engine.
    normalize : bool, optional
        Divide every row by its norm; see `open_embeddings`.

    Returns
    -------
    Payloads
        With `collection`, `documents`, `query` and `read_score`.

    Examples
    --------
    >>> import numpy as np
    >>> bias = Bias(np.array([0.25, 0.75]), weight=0.5, method="nnn")
    >>> payloads = make_payloads("elasticsearch", "photos", np.eye(2), bias, ids=["a", "b"])
    >>> payloads.collection()["mappings"]["properties"]["embedding"]["similarity"]
    'max_inner_product'
    >>> next(payloads.documents())["_source"]["embedding"]
    [1.0, 0.0, -0.25]
    >>> payloads.query(np.array([0.6, 0.8]), k=1)["knn"]["query_vector"][2]
    -0.5
    """
    if engine not in get_args(PayloadEngine):
        known = ", ".join(get_args(PayloadEngine))
        raise NNNormError(f"there are no payloads for {engine!r}; engine must be one of {known}")
    kind = _CLASSES[engine]
    check_storable(bias)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    named = name_items(items, ids)
    recipe = make_recipe(kind, items, bias, way=way)
    described = check_metadata(metadata, len(items))
    return kind(name, recipe, items, bias.values, named, described)
