"""Chroma (`pip install 'nnnorm[chroma]'`): a folder, or a server; always a graph (HNSW).

Chroma's distance for inner products is 1 − product. Its ids are strings: a collection of ours notes
where they were whole numbers. An id that is there already is passed over without a word, so `add`
is only called with new ones. Documents travel as metadata under Chroma's own key.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.store import (
    BATCH,
    Facts,
    Found,
    Ids,
    Items,
    Sample,
    Store,
    StoreMetric,
    Way,
    pad_rows,
    read_json_note,
)

__all__ = ["ChromaStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
_SPACES: dict[StoreMetric, str] = {"ip": "ip", "cosine": "cosine", "l2": "l2"}
# Keys of ours in an item's metadata: its bias, and what Chroma can't keep (lists, mappings, None).
_BIAS, _OTHER = "nnnorm_bias", "nnnorm_json"
_DOCUMENT = "chroma:document"
_LARGEST = 2**63 - 1


class ChromaStore(Store):
    """A collection of Chroma.

    Parameters
    ----------
    place : str or PathLike
        A folder, or a server (``http://localhost:8000``).
    collection : str
    links, ef_construction, ef : int
        Of a new collection's graph. Chroma fixes `ef`, the breadth of a search, there too.
    """

    engine = "chroma"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    is_graph = True
    keeps_vectors = False
    largest_k: int = 30_000  # hits of one request: its SQLite takes no more variables

    def __init__(
        self,
        place: str | os.PathLike[str],
        collection: str = "items",
        *,
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
    ) -> None:
        self._place, self._name = str(place), collection
        self._is_server = self._place.startswith(("http://", "https://"))
        self._links, self._ef_construction, self._ef = links, ef_construction, ef
        self._client: Any = None

    @classmethod
    def from_url(
        cls,
        place: str,
        *,
        collection: str = "",
        https: bool = False,
        links: int = 16,
        ef_construction: int = 100,
        ef: int = 128,
    ) -> "ChromaStore":
        """``chroma:folder?collection=photos``, or ``chroma://host:8000/photos``."""
        if place.startswith("//"):
            host, _, name = place[2:].partition("/")
            place, collection = f"http{'s' if https else ''}://{host}", collection or name
        return cls(
            place,
            collection or "items",
            links=links,
            ef_construction=ef_construction,
            ef=ef,
        )

    @property
    def name(self) -> str:
        return f"chroma collection {self._name} of {self._place}"

    def facts(self) -> Facts | None:
        found = self._find()
        if found is None:
            return None
        with self._telling():
            n_items = found.count()
        about = found.metadata or {}
        return Facts(about.get("nnnorm_width") or self._width(found), self._metric(found), n_items)

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        graph = {
            "space": _SPACES[metric],
            "max_neighbors": self._links,
            "ef_construction": self._ef_construction,
            "ef_search": self._ef,
        }
        about = {"nnnorm_width": width, "nnnorm_ids": "strings" if strings else "numbers"}
        with self._telling():
            self._connect().create_collection(
                self._name, configuration={"hnsw": graph}, metadata=about, embedding_function=None
            )

    def add(self, items: Items) -> None:
        found = self._open()
        if (items.ids.dtype.kind == "U") == self._has_numbers(found):
            kinds = ("whole numbers", "strings")
            has, got = kinds if self._has_numbers(found) else kinds[::-1]
            raise NNNormError(f"the ids of {self.name} are {has}; got {got}")
        known = [
            {} if items.metadata is None else dict(items.metadata[row]) for row in range(len(items))
        ]
        documents = [entry.pop(_DOCUMENT, None) for entry in known]
        kept = [_flatten(entry) for entry in known]
        if items.values is not None:
            for entry, value in zip(kept, items.values.tolist(), strict=True):
                entry[_BIAS] = value
        with self._telling():
            found.add(
                ids=[str(own) for own in items.ids.tolist()],
                embeddings=items.vectors,
                metadatas=[entry or None for entry in kept] if any(kept) else None,
                documents=documents if any(one is not None for one in documents) else None,
            )

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        found = self._open()
        if (ids.dtype.kind == "U") == self._has_numbers(found):
            return np.zeros(len(ids), dtype=bool)
        names = [str(own) for own in ids.tolist()]
        with self._telling():
            there = set(found.get(ids=names, include=[])["ids"])
        return np.array([name in there for name in names], dtype=bool)

    def delete(self, ids: Ids) -> None:
        with self._telling():
            self._open().delete(ids=[str(own) for own in ids.tolist()])

    def search(self, queries: FloatArray, k: int) -> Found:
        found = self._open()
        metric, numbers = self._metric(found), self._has_numbers(found)
        ids: list[list[str]] = []
        distances: list[list[float]] = []
        values: list[list[Any]] = []
        step = max(1, self.largest_k // k)
        for start in range(0, len(queries), step):
            with self._telling():
                hits = found.query(
                    query_embeddings=queries[start : start + step],
                    n_results=k,
                    include=["distances", "metadatas"],
                )
            ids += hits["ids"]
            distances += hits["distances"]
            values += [[(entry or {}).get(_BIAS) for entry in row] for row in hits["metadatas"]]
        return pad_rows(
            [[int(name) if numbers else name for name in row] for row in ids],
            [[-one if metric == "l2" else 1 - one for one in row] for row in distances],
            None if any(None in row for row in values) else values,
        )

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        found = self._open()
        numbers = self._has_numbers(found)
        for start in range(0, found.count(), batch):
            with self._telling():
                rows = found.get(
                    limit=batch, offset=start, include=["embeddings", "metadatas", "documents"]
                )
            metadatas = rows["metadatas"] or [None] * len(rows["ids"])
            documents = rows["documents"] or [None] * len(rows["ids"])
            values = [(entry or {}).get(_BIAS) for entry in metadatas]
            known = [
                {**_unflatten(entry or {}), **({} if text is None else {_DOCUMENT: text})}
                for entry, text in zip(metadatas, documents, strict=True)
            ]
            yield Items(
                np.array([int(name) if numbers else name for name in rows["ids"]]),
                np.array(rows["embeddings"], dtype=np.float32),
                None if None in values else np.array(values, dtype=np.float32),
                known if any(known) else None,
            )

    def read_note(self) -> dict[str, Any] | None:
        return read_json_note((self._open().metadata or {}).get("nnnorm"))

    def write_note(self, note: Mapping[str, Any]) -> None:
        found = self._open()
        about = {**(found.metadata or {}), "nnnorm": json.dumps(dict(note))}
        with self._telling():
            found.modify(metadata=about)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- what the collection says ---

    def _metric(self, found: Any) -> StoreMetric:
        settings = found.configuration_json or {}
        space = (settings.get("hnsw") or settings.get("spann") or {}).get("space", "l2")
        known = [metric for metric, one in _SPACES.items() if one == space]
        if not known:
            raise NNNormError(f"{self.name} compares by {space}; expected ip, cosine or l2")
        return known[0]

    def _width(self, found: Any) -> int:
        with self._telling():
            first = found.get(limit=1, include=["embeddings"])["embeddings"]
        return len(first[0]) if len(first) else 0

    def _has_numbers(self, found: Any) -> bool:
        return (found.metadata or {}).get("nnnorm_ids") == "numbers"

    # --- the client ---

    def _connect(self) -> Any:
        if self._client is None:
            chromadb = require("chromadb", "chroma")
            try:
                if self._is_server:
                    scheme, _, address = self._place.partition("://")
                    host, _, port = address.partition(":")
                    self._client = chromadb.HttpClient(
                        host, port=int(port or 8000), ssl=scheme == "https"
                    )
                else:
                    self._client = chromadb.PersistentClient(self._place)
            except Exception as error:  # Chroma raises what its parts raise
                raise NNNormError(
                    f"Chroma can't be reached at {self._place} ({first_line(error)}); check the "
                    f"{'address, and that the server runs' if self._is_server else 'folder'}"
                ) from error
        return self._client

    def _find(self) -> Any:
        """The collection as it is now, or None."""
        if not self._is_server and not (Path(self._place) / "chroma.sqlite3").exists():
            return None  # a client would make the folder
        missing = require("chromadb.errors", "chroma").NotFoundError
        with self._telling():
            try:
                return self._connect().get_collection(self._name, embedding_function=None)
            except missing:
                return None

    def _open(self) -> Any:
        found = self._find()
        if found is None:
            raise NNNormError(f"there is no {self.name}; check the name, or build it first")
        return found

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Chroma's errors in one sentence."""
        errors = require("chromadb.errors", "chroma")
        try:
            yield
        except NNNormError:
            raise
        except (errors.ChromaError, ValueError, TypeError, OSError) as error:
            raise NNNormError(f"{self.name}: Chroma says: {first_line(error)}") from error


def _flatten(metadata: dict[str, Any]) -> dict[str, Any]:
    """What Chroma can filter by stays as it is; the rest goes into one string."""
    plain = {
        key: value
        for key, value in metadata.items()
        if isinstance(value, (str, bool, float))
        or (isinstance(value, int) and abs(value) <= _LARGEST)
    }
    rest = {key: value for key, value in metadata.items() if key not in plain}
    return {**plain, _OTHER: json.dumps(rest)} if rest else plain


def _unflatten(metadata: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in metadata.items() if key not in (_BIAS, _OTHER)}
    return {**plain, **json.loads(metadata.get(_OTHER, "{}"))}
