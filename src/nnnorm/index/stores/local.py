"""What engines share that live in the memory of the process and in one file: Faiss and others.

They have integer labels and vectors, nothing else. String ids, bias values, metadata and the note
go into a second file beside theirs, ``photos.faiss.nnnorm``. Integer ids are the labels themselves,
so that other programs find them in the engine's own file.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line
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
    check_kind,
    check_positive,
)
from nnnorm.index.urls import show_url
from nnnorm.io import check_entries, check_regular, check_writable, write_whole

Labels: TypeAlias = npt.NDArray[np.int64]
_FORMAT = "nnnorm.sidecar/1"
_SIDECAR_KINDS = {
    "note": dict | None,
    "settings": dict,
    "names": list | None,
    "metadata": list | None,
}
_SETTINGS_KINDS = {"padding": int, "dim": int, "metric": StoreMetric, "deleted": list}


class LocalStore(Store):
    """An engine in memory, saved in its own file and a second one where there is a path."""

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self._path = Path(place) if str(place) else None
        self._index: Any = None
        self._forget()

    def _forget(self) -> None:
        self._live: set[int] = set()
        self._names: dict[int, str] = {}
        self._labels_of: dict[str, int] = {}
        self._values: dict[int, float] = {}
        self._metadata: dict[int, dict[str, Any]] = {}
        self._note: dict[str, Any] | None = None
        self._settings: dict[str, Any] = {}
        self._sorted: tuple[Labels, FloatArray] | None = None

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

    # --- what all of them do ---

    @property
    def name(self) -> str:
        return f"{self.engine} {show_url(self._path or 'in memory')}"

    def facts(self) -> Facts | None:
        if self._index is None and (self._path is None or not self._path.exists()):
            return None
        self._open()
        return Facts(*self._describe(), n_items=len(self._live))

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        if self._path is not None:
            check_writable(self._path)  # before the work, not after it
        self._create(width, metric, sample)

    def check_new(self, ids: Ids) -> None:
        check_positive(ids, self.engine)
        if self._live and (ids.dtype.kind == "U") != bool(self._names):
            check_kind(ids, strings=bool(self._names), name=self.name)

    def add(self, items: Items) -> None:
        self._open()
        labels = self._new_labels(items)
        # Registered before they are added: after a Ctrl-C, `save` can drop what was not added,
        # but can't know of items that were never registered.
        listed = labels.tolist()
        self._live.update(listed)
        if items.values is not None:
            self._values.update(zip(listed, items.values.tolist(), strict=True))
        if items.metadata is not None:
            self._metadata.update(zip(listed, items.metadata_list(), strict=True))
        self._sorted = None
        self._add(labels, np.ascontiguousarray(items.vectors))

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        self._open()
        if ids.dtype.kind == "U":
            return np.array([name in self._labels_of for name in ids.tolist()], dtype=bool)
        if self._names:  # the ids of this collection are strings
            return np.zeros(len(ids), dtype=bool)
        return np.array([label in self._live for label in ids.tolist()], dtype=bool)

    def delete(self, ids: Ids) -> None:
        self._open()
        labels = self._label(ids)
        self._remove(labels)
        self._forget_labels(labels.tolist())

    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        self._open()
        k = min(k, len(self._live))
        if k == 0:
            nothing = np.empty((len(queries), 0))
            return Found(nothing.astype(np.int64), nothing.astype(np.float32))
        labels, scores = self._search(np.ascontiguousarray(queries), k)
        # Faiss, for example, fills empty places with the label −1 and the score −3.4e38.
        if (missing := labels < 0).any():
            scores = np.where(missing, np.float32(-np.inf), scores)
        scores = scores.astype(np.float32, copy=False)
        values = self._values_of(labels) if self._values else None
        ids: Ids = labels
        if self._names:
            ids = np.array([self._names.get(label, "") for label in labels.ravel().tolist()])
            ids = ids.reshape(labels.shape)
        return Found(ids, scores, values)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        self._open()
        labels = np.array(sorted(self._live), dtype=np.int64)
        for start in range(0, len(labels), batch):
            some = labels[start : start + batch]
            ids: Ids = some
            if self._names:
                ids = np.array([self._names[label] for label in some.tolist()])
            metadata = [self._metadata.get(label, {}) for label in some.tolist()]
            values = self._values_of(some) if self._values else None
            yield Items(ids, self._vectors(some), values, metadata if self._metadata else None)

    def read_note(self) -> dict[str, Any] | None:
        self._open()
        return self._note

    def write_note(self, note: Mapping[str, Any]) -> None:
        self._note = dict(note)

    def save(self) -> None:
        """Write both files, each whole or not at all; a store without a path writes nothing."""
        if self._path is None:
            return
        from safetensors.numpy import save

        path = self._path
        self._forget_labels(self._live - set(self._labels().tolist()))
        checksums: list[str] = []

        def write(file: BinaryIO) -> None:
            self._dump(Path(file.name))
            checksums.append(_checksum(Path(file.name)))

        write_whole(path, write)
        labels = np.array(sorted(self._live), dtype=np.int64)
        tensors: dict[str, npt.NDArray[Any]] = {"labels": labels}
        if self._values:
            tensors["values"] = self._values_of(labels)
        metadata = {
            "format": _FORMAT,
            "checksum": checksums[0],
            "note": json.dumps(self._note),
            "settings": json.dumps(self._settings),
            "names": json.dumps([self._names[label] for label in labels.tolist()])
            if self._names
            else "null",
            "metadata": json.dumps([self._metadata.get(label, {}) for label in labels.tolist()])
            if self._metadata
            else "null",
        }
        blob = save(tensors, metadata)
        write_whole(self._sidecar(path), lambda file: file.write(blob))

    def close(self) -> None:
        self._index = None
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

    # --- labels, and the second file ---

    @staticmethod
    def _sidecar(path: Path) -> Path:
        return Path(f"{path}.nnnorm")

    def _open(self) -> None:
        if self._index is not None:
            return
        if self._path is None or not self._path.exists():
            raise NNNormError(f"there is no {self.name}; build it first")
        check_regular(self._path)
        beside = self._sidecar(self._path)
        check_regular(beside)
        kept = self._read_sidecar(beside) if beside.exists() else None
        try:
            self._index = self._load(self._path)
            self._live = set(self._labels().tolist())
        except (RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
            self.close()
            if isinstance(error, NNNormError):
                raise
            raise NNNormError(
                f"{self._path} can't be read as an index of {self.engine} ({first_line(error)}); "
                "is it truncated, or another kind of file?"
            ) from error
        if kept is not None and kept != self._live:
            n_items, n_kept = len(self._live), len(kept)
            self.close()
            raise NNNormError(
                f"{beside} does not belong to {self._path}: it describes {n_kept} items, not the "
                f"{n_items} that are there; restore both files together, or build the index again"
            )

    def _read_sidecar(self, path: Path) -> set[int]:
        """Read everything in the second file, and return its labels."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about.get("format") != _FORMAT:
                raise ValueError(f"its format is {about.get('format')!r}, not {_FORMAT!r}")
            labels = _read_labels(tensors["labels"])
            parsed = {name: json.loads(about[name]) for name in _SIDECAR_KINDS}
            check_entries(parsed, _SIDECAR_KINDS)
            check_entries(parsed["settings"], _SETTINGS_KINDS)
            self._note, self._settings = parsed["note"], parsed["settings"]
            names, metadata = parsed["names"], parsed["metadata"]
            if not all(isinstance(name, str) for name in names or ()):
                raise TypeError("a name is no text")
            if not all(isinstance(entry, dict) for entry in metadata or ()):
                raise TypeError("the metadata of an item are no mapping")
            if names is not None:
                self._names = dict(zip(labels, names, strict=True))
                self._labels_of = dict(zip(names, labels, strict=True))
            if metadata is not None:
                self._metadata = dict(zip(labels, metadata, strict=True))
            if "values" in tensors:
                self._values = dict(zip(labels, tensors["values"].tolist(), strict=True))
            # Engines trust their files, and may crash on a damaged one.
            is_whole = about.get("checksum") in (None, _checksum(self._path))
        except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
            self.close()
            raise NNNormError(
                f"{path} can't be read ({first_line(error)}); restore it together with "
                f"{self._path}, or build the index again"
            ) from error
        if not is_whole:
            self.close()
            raise NNNormError(
                f"{self._path} is not the file that was saved with {path}: it is damaged, or "
                "another program changed it; restore both together, or build the index again"
            )
        return set(labels)

    def _new_labels(self, items: Items) -> Labels:
        """Return labels for new items: integer ids themselves, the next free ones for names."""
        if items.ids.dtype.kind != "U":
            return items.ids
        first = max(self._live, default=-1) + 1
        labels = np.arange(first, first + len(items), dtype=np.int64)
        for label, name in zip(labels.tolist(), items.ids.tolist(), strict=True):
            self._names[label] = name
            self._labels_of[name] = label
        return labels

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


def _checksum(path: Path | None) -> str:
    """Return the BLAKE2 digest of a file."""
    digest = hashlib.blake2b(digest_size=16)
    if path is not None:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _read_labels(labels: npt.NDArray[Any]) -> list[int]:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels of type {labels.dtype} and shape {labels.shape}")
    listed: list[int] = labels.tolist()
    return listed
