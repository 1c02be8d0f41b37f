"""What engines share that live in the memory of the process and in one file: Faiss and others.

They have integer labels and vectors, nothing else. String ids, bias values, metadata and the note
go into a second file beside theirs (`sidecar.py`). Integer ids are the labels themselves, so that
other programs find them in the engine's own file.
"""

import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line
from nnnorm.files import check_regular, check_writable
from nnnorm.index.options import Options, option
from nnnorm.index.store import (
    BATCH,
    Facts,
    FloatArray,
    Found,
    Ids,
    Items,
    Place,
    Sample,
    Store,
    StoreMetric,
    changed_while_read,
    check_kind,
    check_positive,
)
from nnnorm.index.stores.gate import Gate, deferred_interrupts
from nnnorm.index.stores.sidecar import Files, Sidecar, stamp_of
from nnnorm.index.urls import show_url

Labels: TypeAlias = npt.NDArray[np.int64]
# Items compared at once with all queries of a filtered search.
_AMONG = 2**22
# Files may be replaced while they are read; each attempt begins again.
_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class LocalOptions(Options):
    """Options of an engine in one file."""

    adopt: bool = option(
        False,
        "Accept a file that another program has changed since it was saved, with whole numbers as "
        "ids and rows of `index.pack`; the next save makes it nnnorm's own again.",
    )


class LocalStore(Store):
    """An engine in memory, saved in its own file and a second one where there is a path.

    Many threads may search at once; a write waits for them.
    """

    filters = "the ids that may come back, metadata that must be equal, or a function of metadata"
    options: LocalOptions
    _n_changes = 0  # of the note or the generation, counted inside of the gate
    # What a generation consists of, in memory.
    _parts: ClassVar[tuple[str, ...]] = (
        *("_index", "_is_open", "_live", "_names", "_labels_of", "_values", "_metadata"),
        *("_note", "_settings", "_sorted", "_is_torn", "ways", "is_quantized"),
    )

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self._files = Files(Path(place)) if str(place) else None
        self._gate, self._opening = Gate(), threading.RLock()
        self._other: LocalStore | None = None  # of a store without a path
        self.rewrites_values = self._files is not None
        self._forget()

    def _forget(self) -> None:
        self._index: Any = None
        self._is_open = self._is_torn = False
        self._live: set[int] = set()
        self._names: dict[int, str] = {}
        self._labels_of: dict[str, int] = {}
        self._values: dict[int, float] = {}
        self._metadata: dict[int, dict[str, Any]] = {}
        self._note: dict[str, Any] | None = None
        self._settings: dict[str, Any] = {}
        self._sorted: tuple[Labels, FloatArray] | None = None
        self._seen: list[Any] | None = None  # the stamps of both files, as this store knows them
        self._n_changes += 1

    # --- what an engine adds ---

    @abstractmethod
    def _create(self, width: int, metric: StoreMetric, sample: Sample) -> None:
        """Create an empty index."""

    @abstractmethod
    def _load(self, path: Path) -> Any:
        """Read the engine's file; the caller translates its errors."""

    @abstractmethod
    def _dump(self, path: Path) -> None:
        """Write the engine's file."""

    @abstractmethod
    def _describe(self) -> tuple[int, StoreMetric]:
        """Return width and metric of the loaded index."""

    @abstractmethod
    def _labels(self) -> Labels:
        """Return all labels of the loaded index."""

    @abstractmethod
    def _add(self, labels: Labels, vectors: FloatArray) -> None:
        """Add vectors under labels."""

    @abstractmethod
    def _remove(self, labels: Labels) -> None:
        """Remove labels."""

    @abstractmethod
    def _search(self, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        """Find labels and scores (higher is better), k columns; label −1 where there is no hit."""

    @abstractmethod
    def _vectors(self, labels: Labels) -> FloatArray:
        """Return the stored vectors of these labels."""

    @abstractmethod
    def _take_settings(self, source: Any) -> None:
        """Take over the settings of a loaded store of the same engine, before `_create`."""

    # --- what all of them do ---

    @property
    def name(self) -> str:
        return f"{self.engine} {show_url(self._path or 'in memory')}"

    @property
    def _path(self) -> Path | None:
        return None if self._files is None else self._files.path

    def facts(self) -> Facts | None:
        with self._reading(must_exist=False):
            if not self._is_open:
                return None
            return Facts(*self._describe(), n_items=len(self._live))

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        if self._path is not None:
            check_writable(self._path)  # before the work, not after it
        self._create(width, metric, sample)
        self._is_open = True

    def create_like(
        self, source: Store, width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        # An export has options of its own; a refresh keeps those that the index was built with.
        if isinstance(source, type(self)) and self._is_other_of(source):
            with source._reading():
                self._take_settings(source)
        self.create(width, metric, strings=strings, sample=sample)

    def check_new(self, ids: Ids) -> None:
        check_positive(ids, self.engine)
        if self._live and (ids.dtype.kind == "U") != bool(self._names):
            check_kind(ids, strings=bool(self._names), name=self.name)

    def add(self, items: Items) -> None:
        with self._gate.writing(), deferred_interrupts():
            self._open()
            labels = self._new_labels(items)
            listed = labels.tolist()
            self._sorted = None
            self._is_torn = True
            self._add(labels, np.ascontiguousarray(items.vectors))
            self._is_torn = False
            self._live.update(listed)
            if items.ids.dtype.kind == "U":
                self._names.update(zip(listed, items.ids.tolist(), strict=True))
                self._labels_of.update(zip(items.ids.tolist(), listed, strict=True))
            if items.values is not None:
                self._values.update(zip(listed, items.values.tolist(), strict=True))
            if items.metadata is not None:
                self._metadata.update(zip(listed, items.metadata_list(), strict=True))

    def upsert(self, items: Items) -> None:
        with self._gate.writing(), deferred_interrupts():
            super().upsert(items)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        with self._reading():
            if ids.dtype.kind == "U":
                return np.array([name in self._labels_of for name in ids.tolist()], dtype=bool)
            if self._names:  # the ids of this collection are strings
                return np.zeros(len(ids), dtype=bool)
            return np.array([label in self._live for label in ids.tolist()], dtype=bool)

    def delete(self, ids: Ids) -> None:
        with self._gate.writing(), deferred_interrupts():
            self._open()
            labels = self._label(ids)
            self._is_torn = True
            self._remove(labels)
            self._is_torn = False
            self._forget_labels(labels.tolist())

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        with self._reading():
            if filter is not None:
                labels, scores = self._search_among(self._allowed(filter), queries, k)
            elif k := min(k, len(self._live)):
                labels, scores = self._search(np.ascontiguousarray(queries), k)
            else:
                labels, scores = _nothing(len(queries))
            # Faiss, for example, fills empty places with the label −1 and the score −3.4e38.
            if (missing := labels < 0).any():
                scores = np.where(missing, np.float32(-np.inf), scores)
            values = self._values_of(labels) if self._values else None
            return Found(self._name(labels), scores.astype(np.float32, copy=False), values)

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        with self._reading():
            listed = ids.tolist()
            if ids.dtype.kind == "U":  # another thread may have exchanged the generations
                listed = [self._labels_of.get(name, -1) for name in listed]
            return [dict(self._metadata.get(label, {})) for label in listed]

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        with self._reading():
            labels, n_changes = np.array(sorted(self._live), dtype=np.int64), self._n_changes
        for start in range(0, len(labels), batch):
            with self._reading():
                some = labels[start : start + batch]
                if self._n_changes != n_changes or not self._live.issuperset(some.tolist()):
                    raise changed_while_read(self.name)
                metadata = [self._metadata.get(label, {}) for label in some.tolist()]
                values = self._values_of(some) if self._values else None
                vectors = self._vectors(some)
                found = Items(
                    self._name(some), vectors, values, metadata if self._metadata else None
                )
            yield found

    def read_note(self) -> dict[str, Any] | None:
        with self._reading():
            return self._note

    def write_note(self, note: Mapping[str, Any]) -> None:
        with self._gate.writing():
            self._note = dict(note)
            self._n_changes += 1

    def mark(self) -> object:
        """The number of changes of the note or the generation since this store was made."""
        return self._n_changes

    def save(self) -> None:
        """Write both files in one step, or none; a store without a path writes nothing."""
        if self._files is None:
            return
        if self._is_torn:
            raise NNNormError(
                f"the last change of {self.name} failed half-way, so it is not saved; open it "
                "again, and repeat the change"
            )
        with self._gate.writing():
            self._files.finish()
            self._check_seen(self._files)
            self._files.write(self._dump, self._describe_all)
            self._seen = self._stamps(self._files)

    def _check_seen(self, files: Files) -> None:
        """Raise where another program has saved since these files were read or written here."""
        if self._seen is not None and self._seen != self._stamps(files):
            raise NNNormError(
                f"{self.name} was changed by another program since it was opened, such as by a "
                "refresh or an add, which would be lost; open it again, and repeat the change"
            )

    @staticmethod
    def _stamps(files: Files) -> list[Any]:
        return [stamp_of(files.path), stamp_of(files.sidecar)]

    def close(self) -> None:
        with self._gate.writing():
            self._forget()

    # --- filters ---

    def _allowed(self, filter: Any) -> Labels:
        """Return the labels of items that a filter lets through."""
        if callable(filter) or isinstance(filter, Mapping):
            wanted = filter if callable(filter) else _equals(filter)
            chosen = [one for one in self._live if wanted(self._metadata.get(one, {}))]
            return np.array(sorted(chosen), dtype=np.int64)
        try:
            ids = np.asarray(filter)
        except ValueError:
            ids = np.empty(())
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iuU"):
            raise NNNormError(
                f"the filter of {self.engine} is {self.filters}; got {type(filter).__name__}"
            )
        if len(ids):
            check_kind(ids, strings=bool(self._names), name=self.name)
        return np.unique(self._label(ids[self.present(ids)] if len(ids) else np.arange(0)))

    def _search_among(
        self, labels: Labels, queries: FloatArray, k: int
    ) -> tuple[Labels, FloatArray]:
        """Compare every query with all these items: exact, whatever the index is."""
        width, k = max(1, _AMONG // max(1, len(queries))), min(k, len(labels))
        if k == 0:
            return _nothing(len(queries))
        best = _nothing(len(queries))
        for start in range(0, len(labels), width):
            some = labels[start : start + width]
            scores = score_by(self._describe()[1], queries, self._vectors(some))
            found = np.hstack([best[0], np.broadcast_to(some, scores.shape)])
            scores = np.hstack([best[1], scores])
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            best = np.take_along_axis(found, order, 1), np.take_along_axis(scores, order, 1)
        return best

    # --- generations ---

    def other(self) -> "LocalStore":
        if self._files is None:
            self._other = self._other or type(self)(**asdict(self.options))
            return self._other
        return type(self)(self._files.other.path, **asdict(self.options))

    def _is_other_of(self, source: "LocalStore") -> bool:
        if source._files is None:
            return source._other is self
        return self._files == source._files.other

    def drop(self) -> None:
        self.close()
        if self._files is not None:
            self._files.remove()

    def set_values(
        self, batches: Iterable[tuple[Ids, FloatArray]], note: Mapping[str, Any]
    ) -> None:
        """Write the second file again; the other generation is the same engine's file."""
        self._open()
        new = {
            label: value
            for ids, values in batches
            for label, value in zip(self._label(ids).tolist(), values.tolist(), strict=True)
        }
        files, other = self._files, self.other()
        if files is None or other._files is None:
            raise NNNormError(f"{self.name} has no file, so it has no former values")
        with self._gate.writing():
            self.save()
            other.drop()
            files.copy_to(other._files)
            self._values, self._sorted = new, None
            self.write_note(note)
            files.describe(self._describe_all)
            self._seen = self._stamps(files)

    def exchange(self) -> None:
        other = self.other()
        with self._gate.writing():
            if self._files is None:
                for name in self._parts:
                    mine, its = getattr(self, name), getattr(other, name)
                    setattr(self, name, its)
                    setattr(other, name, mine)
                self._n_changes += 1
                return
            for store, files in ((self, self._files), (other, self._files.other)):
                files.finish()
                if not files.sidecar.exists():
                    raise NNNormError(f"there is no {store.name}; refresh the index first")
            self._check_seen(self._files)
            self._files.exchange()
            self._forget()

    # --- zeros that pad rows to a width that suits the engine; `_create` sets how many ---

    @property
    def _padding(self) -> int:
        return int(self._settings.get("padding", 0))

    def _pad(self, rows: FloatArray) -> FloatArray:
        if not self._padding:
            return rows
        padded = np.zeros((len(rows), rows.shape[1] + self._padding), dtype=np.float32)
        padded[:, : rows.shape[1]] = rows
        return padded

    # --- both files ---

    @contextmanager
    def _reading(self, *, must_exist: bool = True) -> Iterator[None]:
        """Read while no thread writes, so that what was opened stays open."""
        with self._gate.reading():
            if must_exist or self._is_open or (self._files is not None and self._files.exist()):
                self._open()
            yield

    def _open(self) -> None:
        if not self._is_open:
            with self._opening:
                self._open_once()

    def _open_once(self) -> None:
        if self._is_open:  # by another thread
            return
        files = self._files
        if files is None or not files.exist():
            raise NNNormError(f"there is no {self.name}; build it first")
        check_regular(files.path)
        for attempt in range(_ATTEMPTS):
            before = files.stamps()
            try:
                self._read(files)
                is_read = True
            except NNNormError:
                self._forget()
                if files.stamps() == before or attempt == _ATTEMPTS - 1:
                    raise
                is_read = False
            except FileNotFoundError:  # just renamed
                is_read = False
            if is_read and files.stamps() == before:
                self._is_open = True
                return
            self._forget()
        raise NNNormError(f"{self.name} changes all the time; open it when fewer programs write")

    def _read(self, files: Files) -> None:
        """Read both files, once it is known that they belong together."""
        path = files.path
        try:
            checksum = files.checksum()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise NNNormError(
                f"{path} can't be read ({first_line(error)}); expected a file of {self.engine}"
            ) from error
        beside = files.find_sidecar(checksum)
        check_regular(beside)
        self._seen = [stamp_of(path), stamp_of(beside)]
        kept = self._read_sidecar(beside, checksum) if beside.exists() else None
        try:
            self._index = self._load(path)
            self._live = set(self._labels().tolist())
        except (RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, NNNormError):
                raise
            raise NNNormError(
                f"{path} can't be read as an index of {self.engine} ({first_line(error)}); is it "
                "truncated, or another kind of file?"
            ) from error
        if kept is None or kept == self._live:
            return
        if not self.options.adopt:
            raise NNNormError(
                f"{beside} does not belong to {path}: it describes {len(kept)} items, not the "
                f"{len(self._live)} that are there; restore both files together, or build the "
                "index again"
            )
        strangers = self._live - kept
        if strangers and (self._names or self._values):
            what = "names" if self._names else "bias values"
            raise NNNormError(
                f"{path} has {len(strangers)} items that another program added, and {beside} has "
                f"no {what} for them; add them with nnnorm (nnnorm index add)"
            )
        self._forget_labels(kept - self._live)

    def _describe_all(self, checksum: str) -> bytes:
        """Everything that goes into the second file, beside the engine's file of this checksum."""
        labels = sorted(self._live)
        values = self._values_of(np.array(labels, dtype=np.int64)) if self._values else None
        return Sidecar(
            labels,
            None if values is None else values.tolist(),
            [self._names[label] for label in labels] if self._names else None,
            [self._metadata.get(label, {}) for label in labels] if self._metadata else None,
            self._note,
            self._settings,
            checksum,
        ).pack()

    def _read_sidecar(self, path: Path, checksum: str) -> set[int]:
        """Read everything in the second file, and return its labels."""
        try:
            kept = Sidecar.read(path)
        except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise NNNormError(
                f"{path} can't be read ({first_line(error)}); restore it together with "
                f"{self._path}, or build the index again"
            ) from error
        # Engines trust their files, and may crash on a damaged one.
        if kept.checksum not in (None, checksum) and not self.options.adopt:
            raise NNNormError(
                f"{self._path} is not the file that was saved with {path}: it is damaged, or "
                "another program changed it; restore both together, build the index again, or, "
                "where your own program wrote rows of index.pack, open it with the option "
                f"adopt=true ({self.engine}:{self._path}?adopt=true)"
            )
        self._note, self._settings = kept.note, kept.settings
        if kept.names is not None:
            self._names = dict(zip(kept.labels, kept.names, strict=True))
            self._labels_of = dict(zip(kept.names, kept.labels, strict=True))
        if kept.metadata is not None:
            self._metadata = dict(zip(kept.labels, kept.metadata, strict=True))
        if kept.values is not None:
            self._values = dict(zip(kept.labels, kept.values, strict=True))
        return set(kept.labels)

    # --- labels ---

    def _new_labels(self, items: Items) -> Labels:
        """Return labels for new items: integer ids themselves, the next free ones for names."""
        if items.ids.dtype.kind != "U":
            return items.ids
        first = max(self._live, default=-1) + 1
        return np.arange(first, first + len(items), dtype=np.int64)

    def _name(self, labels: Labels) -> Ids:
        """Return the ids of labels of any shape."""
        if not self._names:
            return labels
        named = np.array([self._names.get(label, "") for label in labels.ravel().tolist()], str)
        return named.reshape(labels.shape)

    def _forget_labels(self, labels: Iterable[int]) -> None:
        for label in labels:
            self._live.discard(label)
            self._values.pop(label, None)
            self._metadata.pop(label, None)
            name = self._names.pop(label, None)
            if name is not None:
                del self._labels_of[name]
        self._sorted = None

    def _label(self, ids: Ids) -> Labels:
        if ids.dtype.kind != "U":
            return ids
        return np.array([self._labels_of[name] for name in ids.tolist()], dtype=np.int64)

    def _values_of(self, labels: Labels) -> FloatArray:
        """Return the bias of labels of any shape; 0 for the label −1."""
        if self._sorted is None:
            keys = np.array(sorted(self._values), dtype=np.int64)
            kept = np.array([self._values[key] for key in keys.tolist()], dtype=np.float32)
            self._sorted = keys, kept
        keys, kept = self._sorted
        places = np.searchsorted(keys, labels).clip(max=len(keys) - 1)
        return np.where(keys[places] == labels, kept[places], np.float32(0))


def score_by(metric: StoreMetric, queries: FloatArray, vectors: FloatArray) -> FloatArray:
    """Score every query ``(n_queries, width)`` with every vector, higher is better.

    Examples
    --------
    >>> score_by("l2", np.float32([[1, 0]]), np.float32([[1, 0], [0, 0]])).tolist()
    [[0.0, -1.0]]
    """
    products = queries.astype(np.float64) @ vectors.astype(np.float64).T
    if metric == "ip":
        return products.astype(np.float32)
    squares = [np.einsum("ij,ij->i", rows, rows, dtype=np.float64) for rows in (queries, vectors)]
    if metric == "l2":
        return (2 * products - squares[0][:, None] - squares[1]).astype(np.float32)
    norms = np.sqrt(np.outer(*squares))
    return np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0).astype(np.float32)


def _equals(wanted: Mapping[str, Any]) -> Any:
    return lambda entry: all(entry.get(key) == value for key, value in wanted.items())


def _nothing(n_queries: int) -> tuple[Labels, FloatArray]:
    return np.empty((n_queries, 0), dtype=np.int64), np.empty((n_queries, 0), dtype=np.float32)
