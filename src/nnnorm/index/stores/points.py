"""What Qdrant's client and its embedded engine share: points with an id, a vector and a payload.

The id of a point is an unsigned integer or a UUID; other names become a UUID and are kept in the
payload. Cosine collections keep the direction of a vector only.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Hit,
    Ids,
    Items,
    Store,
    StoreMetric,
    Way,
    check_kind,
    check_positive,
    gather_hits,
    make_items,
    uuid_of,
)
from nnnorm.index.stores.database import BIAS, DatabaseStore, Entry, other_vectors

_NAME = "nnnorm_id"
PAYLOAD = [BIAS, _NAME]  # what a search needs of it
Payload: TypeAlias = list[str] | Literal[False]
_ONE_RANGE = ("scalar", "binary")
DISTANCES: dict[StoreMetric, str] = {"ip": "Dot", "cosine": "Cosine", "l2": "Euclid"}


class Point(NamedTuple):
    """One point; a hit has a score, an item has a vector and perhaps others."""

    id: int | str
    vector: list[float]
    payload: Mapping[str, Any]
    score: float = 0.0
    others: Mapping[str, Any] = {}

    @property
    def own(self) -> int | str:
        """The caller's id."""
        return self.payload.get(_NAME, self.id)

    @property
    def metadata(self) -> dict[str, Any]:
        """The payload without what nnnorm put there."""
        return {key: value for key, value in self.payload.items() if key not in PAYLOAD}


class Described(NamedTuple):
    """Width and distance of the vectors, number of points, and how numbers are stored.

    `codes` names a quantisation or a type of few bits; it is empty for plain float32.
    """

    width: int
    distance: str
    n_points: int
    codes: str = ""


class Shared:
    """Clients that can be open once per folder, shared by the stores of that folder."""

    def __init__(self) -> None:
        self._users: dict[str, tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def take(self, folder: str, make: Callable[[], Any]) -> Any:
        """Return the client of a folder, made if there is none yet."""
        with self._lock:
            client, users = self._users.get(folder, (None, 0))
            client = make() if client is None else client
            self._users[folder] = client, users + 1
            return client

    def release(self, folder: str) -> bool:
        """Give one back, and return whether it was the last."""
        with self._lock:
            client, users = self._users.pop(folder)
            if users > 1:
                self._users[folder] = client, users - 1
            return users == 1

    def close(self) -> None:
        """Close whatever is still open."""
        while self._users:
            self._users.popitem()[1][0].close()


class PointStore(DatabaseStore):
    """A Qdrant collection, through one of the two libraries."""

    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    keeps_vectors = False
    _using: str = ""  # name of the vector, once looked up
    _known: Facts | None = None  # of the last look at the collection
    _has_names: bool | None = None  # whether some ids are names, as far as searches have shown
    _codes: str | None = None  # how numbers are stored, of the last look or of a model

    # --- what a library adds ---

    @abstractmethod
    def _describe(self) -> Described | None:
        """Describe the collection, or return None if there is none."""

    @abstractmethod
    def _upsert(self, points: Sequence[Point]) -> None:
        """Write points."""

    @abstractmethod
    def _erase(self, ids: list[Any]) -> None:
        """Delete points."""

    @abstractmethod
    def _query(
        self, queries: FloatArray, k: int, filter: Any, payload: Payload
    ) -> Sequence[Sequence[Any]]:
        """Find hits, as the library returns them: with id, score, and these payloads."""

    @abstractmethod
    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        """Return some points from `offset` on, and the next offset or None."""

    @abstractmethod
    def _payloads(self, ids: list[Any]) -> dict[Any, Mapping[str, Any]]:
        """Return the payloads of points."""

    # --- what both do ---

    def facts(self) -> Facts | None:
        described = self._describe()
        if described is None:
            return None
        metrics = {distance: metric for metric, distance in DISTANCES.items()}
        if described.distance not in metrics:
            raise NNNormError(
                f"{self.name} compares by {described.distance}; expected one of "
                f"{', '.join(metrics)}"
            )
        self._known = Facts(described.width, metrics[described.distance], described.n_points)
        self._codes = described.codes
        return self._known

    def check_new(self, ids: Ids) -> None:
        """Raise for ids of another kind: Qdrant accepts both, but a ranking has ids of one kind."""
        check_positive(ids, self.engine)
        if self.facts() is not None and self._scroll(1, None)[0]:
            check_kind(ids, strings=self._has_string_ids(), name=self.name)

    def traps(self) -> list[str]:
        described = self._describe()
        if described is None or not described.codes:
            return []
        return [
            f"its vectors are stored in few bits ({described.codes}), and the coordinate of the "
            "bias is an outlier for those: copy it without, or search with rescoring and "
            "oversampling"
        ]

    def add(self, items: Items) -> None:
        self._know()  # this looks up the name of the vector
        points = []
        for own, vector, payload, value, others in zip(
            items.ids.tolist(),
            items.vectors.tolist(),
            items.metadata_list(),
            items.value_list(),
            other_vectors(items),
            strict=True,
        ):
            if value is not None:
                payload[BIAS] = value
            if _point_id(own) != own:
                payload[_NAME] = own
            points.append(Point(_point_id(own), vector, payload, others=others))
        self._upsert(points)

    def upsert(self, items: Items) -> None:
        self.add(items)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        points = [_point_id(own) for own in ids.tolist()]
        valid = [point for point in points if isinstance(point, str) or point >= 0]
        found = self._find_ids(np.array(valid, dtype=object))
        return np.array([point in found for point in points], dtype=bool)

    def delete(self, ids: Ids) -> None:
        self._erase([_point_id(own) for own in ids.tolist()])

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        self._know()  # this looks up the name of the vector
        payload = self._payload()
        hits = self._query(queries, k, filter, payload)
        if self._lacks_names(hits, payload):
            hits = self._query(queries, k, filter, PAYLOAD)
        return self._gather(hits)

    def _payload(self) -> Payload:
        """What a search has to return of the payload; points with numbers have no name there."""
        return PAYLOAD if self.returns_values or self._has_names is not False else False

    def _lacks_names(self, hits: Sequence[Sequence[Any]], payload: Payload) -> bool:
        """Whether a search has to be repeated for the names of its hits."""
        if any(not isinstance(hit.id, int) for some in hits for hit in some):
            self._has_names = True
            return not payload
        if self._has_names is None:
            self._has_names = False
        return False

    def _gather(self, hits: Sequence[Sequence[Any]]) -> Found:
        """Turn the hits of each query, as the library returns them, into arrays."""
        metric = self._know().metric
        rows: list[list[Hit]] = []
        for some in hits:
            row: list[Hit] = []
            for hit in some:
                payload = hit.payload or {}
                own = payload.get(_NAME, hit.id) if payload else hit.id
                # The embedded engine has objects for UUIDs.
                own = own if isinstance(own, int) else str(own)
                row.append((own, hit.score, payload.get(BIAS)))
            rows.append(row)
        return gather_hits(rows, lambda score: -(score**2) if metric == "l2" else score)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        self._know()
        offset = None
        while True:
            points, offset = self._scroll(batch, offset)
            for kind in (int, str):  # one collection may have both
                some = [point for point in points if isinstance(point.own, kind)]
                if some:
                    yield self._items(some)
            if offset is None:
                return

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        points = [_point_id(own) for own in ids.tolist()]
        payloads = self._payloads(list(dict.fromkeys(points)))
        return [Point(one, [], payloads.get(one) or {}).metadata for one in points]

    def imitate(self, source: Store) -> None:
        if isinstance(source, type(self)):
            source._know()
            self._codes = source._codes

    @property
    def is_quantized(self) -> bool:  # type: ignore[override]
        if self._codes is None:
            self.facts()
        return bool(self._codes)

    @property
    def has_one_range(self) -> bool:  # type: ignore[override]
        """Whether a random rotation helps: one range, or one bit, for every coordinate."""
        return self.is_quantized and any(kind in (self._codes or "") for kind in _ONE_RANGE)

    def _know(self) -> Facts:
        """The facts of the last look, which also found the name of the vector."""
        return self._known or self._found(self.facts())

    def _items(self, points: list[Point]) -> Items:
        items = make_items(
            [point.own for point in points],
            [point.vector for point in points],
            [point.payload.get(BIAS) for point in points],
            [
                Entry(point.metadata, point.others) if point.others else point.metadata
                for point in points
            ],
        )
        if items.ids.dtype.kind not in "iU":
            raise NNNormError(f"ids must fit in 64 bits with a sign; {self.name} has larger ones")
        return items

    def _has_string_ids(self) -> bool:
        return any(isinstance(point.own, str) for point in self._scroll(1, None)[0])

    def _name_vector(self, vector: Any, others: Mapping[str, Any] | None = None) -> Any:
        """A vector as the library takes it, under its name where it has one."""
        return {self._using: vector, **(others or {})} if self._using or others else vector

    def _make_point(self, point_id: int | str, vectors: Any, payload: Any) -> Point:
        """Make a point of what the library returns: one vector, or several by name."""
        if not isinstance(vectors, dict):
            return Point(point_id, vectors, payload or {})
        others = {name: vector for name, vector in vectors.items() if name != self._using}
        return Point(point_id, vectors[self._using], payload or {}, others=others)

    def _choose_vector(self, names: Sequence[str], asked: str) -> str:
        """Choose one of several named vectors: the one asked for, or the only one."""
        if asked in names:
            return asked
        if asked or len(names) != 1:
            what = f"no vector {asked!r}" if asked else f"{len(names)} kinds of vectors"
            raise NNNormError(
                f"{self.name} has {what}; choose one with vector=: {', '.join(names) or 'none'}"
            )
        return names[0]


def _point_id(own: int | str) -> int | str:
    return uuid_of(own) if isinstance(own, str) else own
