"""Ready documents for engines that are asked over HTTP: what to create, to put in, and to ask.

Elasticsearch, OpenSearch, Weaviate, Vespa and turbopuffer. Nothing is sent from here, and no server
was at hand: these documents are tested as documents, not against the engines. Each class names the
default of its engine that would spoil the correction, and asks for something else.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias, check_weight
from nnnorm.errors import NNNormError
from nnnorm.index.recipe import Recipe, make_recipe
from nnnorm.index.store import BATCH, Engine, Ids, Items, Metadata, Way, check_ids, uuid_of
from nnnorm.io import Embeddings, Source, open_embeddings

__all__ = ["PayloadEngine", "Payloads", "make_payloads"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
PayloadEngine = Literal["elasticsearch", "opensearch", "weaviate", "vespa", "turbopuffer"]
_MOST_CANDIDATES = 10_000  # of Elasticsearch and OpenSearch


class Payloads(Engine):
    """What to send for one corrected collection. Made by `make_payloads`.

    Attributes
    ----------
    name : str
        Of the collection.
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
        """The body that creates the collection (Vespa: the text of its schema)."""

    def documents(self) -> Iterator[dict[str, Any]]:
        """One document per item, in the gallery's order; numbers are float32 as Python floats."""
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
        """The body that asks for the k best items of one query, shape ``(dim,)``.

        `weight` instead of the bias's own; nothing is re-indexed.
        """
        asked, used = self._ask(query, weight)
        if k < 1:
            raise NNNormError(f"k must be a whole number from 1; got {k}")
        vector: list[float] = self.recipe.ask(asked, used)[0].tolist()
        return self._query(vector, k)

    def read_score(self, score: float, query: Any, *, weight: float | None = None) -> float:
        """The corrected score ``s(q, r) − weight·m(r)`` out of the engine's score or distance."""
        asked, used = self._ask(query, weight)
        own = np.array([[self._unfold(float(score))]], dtype=np.float32)
        return float(self.recipe.read_scores(own, self.recipe.ask(asked, used), used)[0, 0])

    @abstractmethod
    def _document(self, item_id: Any, vector: list[float], metadata: dict[str, Any]) -> Any:
        """One item."""

    @abstractmethod
    def _query(self, vector: list[float], k: int) -> dict[str, Any]:
        """One question."""

    @abstractmethod
    def _unfold(self, score: float) -> float:
        """The engine's number as inner product, cosine, or minus the squared distance."""

    def _ask(self, query: Any, weight: float | None) -> tuple[FloatArray, float]:
        asked = np.asarray(query, dtype=np.float32)
        if asked.shape != (self.recipe.dim,):
            raise NNNormError(
                f"a query for {self.name} must have shape ({self.recipe.dim},); got {asked.shape}"
            )
        return asked[None], self.recipe.weight if weight is None else check_weight(weight)


class _Lucene(Payloads):
    """What Elasticsearch and OpenSearch share: their documents, and how they fold scores."""

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
    """Its ``dot_product`` demands unit vectors, which extended ones are not; ``max_inner_product``.

    Its default index is binary (bbq) from 384 numbers on, and int8 below: float HNSW is asked for.
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
    """Its ``on_disk`` mode is binary: ``in_memory`` is asked for by name."""

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
    """Its ids are UUIDs, and a server may quantise by default: neither is left to chance."""

    engine = "weaviate"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine")
    is_graph = True
    similarities: ClassVar = {"ip": "dot", "l2": "l2-squared", "cosine": "cosine"}

    @property
    def _class(self) -> str:
        return self.name[:1].upper() + self.name[1:]  # as Weaviate itself writes it

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
    """Its ``dotproduct`` suits a graph at any norms; the rank profile gives plain products."""

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
    """It has no inner product: two extra coordinates, and cosine gives the corrected order."""

    engine = "turbopuffer"
    ways: tuple[Way, ...] = ("cosine", "l2")
    similarities: ClassVar = {"cosine": "cosine_distance", "l2": "euclidean_squared"}

    def collection(self) -> dict[str, Any]:
        """What goes along with the rows of each write: there is no separate creation."""
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


def make_payloads(
    engine: PayloadEngine,
    name: str,
    gallery: Source,
    bias: Bias,
    *,
    ids: Any = None,
    metadata: Sequence[Metadata] | None = None,
    way: Way | None = None,
) -> Payloads:
    """Prepare what to send to an engine so that it ranks by the corrected score.

    Parameters
    ----------
    engine : {"elasticsearch", "opensearch", "weaviate", "vespa", "turbopuffer"}
    name : str
        Of the collection.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias
        Fitted on this gallery, without gates.
    ids : sequence of int or str, optional
        0…n−1 where there are none.
    metadata : sequence of mappings, optional
        One per item, ready for JSON.
    way : {"ip", "cosine", "l2"}, optional
        By itself the best that the engine has.

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
        raise NNNormError(f"there are no payloads for {engine!r}; there are for {known}")
    kind = _CLASSES[engine]
    items = open_embeddings(gallery, name="gallery")
    named = check_ids(ids, len(items))
    if metadata is not None and len(metadata) != len(items):
        raise NNNormError(
            f"metadata must be one mapping per item, {len(items)}; got {len(metadata)}"
        )
    recipe = make_recipe(kind, items, bias, way=way)
    return kind(name, recipe, items, bias.values, named, metadata)
