"""What Qdrant's client and its embedded engine share: points with an id, a vector and a payload.

A point's id is a whole number or a UUID; other names become a UUID and stay in the payload. Cosine
collections keep the direction of a vector alone, whatever they are given.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.index.store import (
    BATCH,
    Facts,
    Found,
    Ids,
    Items,
    Store,
    StoreMetric,
    Way,
    check_kind,
    check_positive,
    pad_rows,
    uuid_of,
)

__all__ = ["BIAS", "DISTANCES", "NAME", "Described", "Point", "PointStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
BIAS, NAME = "nnnorm_bias", "nnnorm_id"
DISTANCES: dict[StoreMetric, str] = {"ip": "Dot", "cosine": "Cosine", "l2": "Euclid"}


class Point(NamedTuple):
    """One point as it goes in or comes out; a hit has a score, an item a vector."""

    id: int | str
    vector: list[float]
    payload: Mapping[str, Any]
    score: float = 0.0


class Described(NamedTuple):
    """Width and distance of the vectors, how many points, and how their numbers are stored.

    `codes` names a quantisation or a kind of number of few bits; it is empty for plain float32.
    """

    width: int
    distance: str
    n_points: int
    codes: str = ""


class PointStore(Store):
    """A Qdrant collection, through whichever library."""

    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")
    keeps_vectors = False

    # --- what a library says ---

    @abstractmethod
    def _describe(self) -> Described | None:
        """The collection, or None if there is none."""

    @abstractmethod
    def _upsert(self, points: Sequence[Point]) -> None:
        """Put points in."""

    @abstractmethod
    def _known(self, ids: list[Any]) -> set[Any]:
        """Which of these point ids exist."""

    @abstractmethod
    def _erase(self, ids: list[Any]) -> None:
        """Delete points."""

    @abstractmethod
    def _query(self, queries: FloatArray, k: int) -> list[list[Point]]:
        """Hits with Qdrant's own scores and our part of the payload."""

    @abstractmethod
    def _scroll(self, batch: int, offset: Any) -> tuple[list[Point], Any]:
        """Some points from `offset` on, and the next offset or None."""

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
        return Facts(described.width, metrics[described.distance], described.n_points)

    def check_new(self, ids: Ids) -> None:
        """Qdrant would take numbers beside names, but a ranking has ids of one kind."""
        check_positive(ids, self.engine)
        if self.facts() is None:
            return
        for point in self._scroll(1, None)[0]:
            strings = isinstance(point.payload.get(NAME, point.id), str)
            check_kind(ids, strings=strings, name=self.name)

    def traps(self) -> list[str]:
        described = self._describe()
        if described is None or not described.codes:
            return []
        return [
            f"its vectors are stored in few bits ({described.codes}), and the bias's coordinate is "
            "an outlier for those: make a copy without, or search with rescoring and oversampling"
        ]

    def add(self, items: Items) -> None:
        points = []
        for row, (own, vector) in enumerate(
            zip(items.ids.tolist(), items.vectors.tolist(), strict=True)
        ):
            payload = {} if items.metadata is None else dict(items.metadata[row])
            if items.values is not None:
                payload[BIAS] = float(items.values[row])
            if isinstance(own, str) and uuid_of(own) != own:
                payload[NAME] = own
            points.append(Point(_point_id(own), vector, payload))
        self._upsert(points)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        asked = [_point_id(own) for own in ids.tolist()]
        known = self._known([one for one in asked if isinstance(one, str) or one >= 0])
        return np.array([one in known for one in asked], dtype=bool)

    def delete(self, ids: Ids) -> None:
        self._erase([_point_id(own) for own in ids.tolist()])

    def search(self, queries: FloatArray, k: int) -> Found:
        is_l2 = self._metric() == "l2"
        hits = self._query(queries, k)
        has_values = all(BIAS in hit.payload for row in hits for hit in row)
        return pad_rows(
            [[hit.payload.get(NAME, hit.id) for hit in row] for row in hits],
            [[-(hit.score**2) if is_l2 else hit.score for hit in row] for row in hits],
            [[hit.payload[BIAS] for hit in row] for row in hits] if has_values else None,
        )

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        self._metric()  # also finds out which vector is meant
        offset = None
        while True:
            points, offset = self._scroll(batch, offset)
            for kind in (int, str):  # one collection may have both
                some = [p for p in points if isinstance(p.payload.get(NAME, p.id), kind)]
                if some:
                    yield self._items(some)
            if offset is None:
                return

    def _items(self, points: list[Point]) -> Items:
        ids = np.array([point.payload.get(NAME, point.id) for point in points])
        if ids.dtype.kind not in "iU":
            raise NNNormError(f"ids must fit in 64 bits with a sign; {self.name} has larger ones")
        values = [point.payload.get(BIAS) for point in points]
        known = [
            {key: value for key, value in point.payload.items() if key not in (BIAS, NAME)}
            for point in points
        ]
        return Items(
            ids,
            np.array([point.vector for point in points], dtype=np.float32),
            None if None in values else np.array(values, dtype=np.float32),
            known if any(known) else None,
        )

    def _metric(self) -> StoreMetric:
        facts = self.facts()
        if facts is None:
            raise NNNormError(f"there is no {self.name}; check the name, or build it first")
        return facts.metric

    def _choose_vector(self, names: Sequence[str], asked: str) -> str:
        """Of a collection with named vectors, the one asked for or the only one."""
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
