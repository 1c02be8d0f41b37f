"""Base class of engines that are libraries: an index is a folder.

    photos/CURRENT                 the name of the served version, replaced atomically
    photos/v2_f10c9a/index         what the engine's library writes
    photos/v2_f10c9a/items.npz     ids and metadata
    photos/v2_f10c9a/config.json   written last

Loaded versions never change: a write copies the served one, changes the copy, and swaps. Threads
and processes keep the version that they have opened. Without a path, everything is in memory.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.files import check_regular, check_space, write_whole
from nnnorm.index.backend import BATCH, Backend, FloatArray, Hits, Ids, Items, Layout, chunks

Labels = npt.NDArray[np.int64]
_COMPARED = 4096  # vectors compared at once in a filtered search


@dataclass(eq=False)
class Loaded:
    """A version in memory. The item at position i has the engine's label i."""

    index: Any
    ids: Ids
    alive: npt.NDArray[np.bool_]
    metadata: list[dict[str, Any]]
    config: dict[str, Any] | None = None
    breadth: int = 0  # the search breadth of a graph that was set last

    @cached_property
    def labels(self) -> Labels:
        """The labels of all items."""
        return np.flatnonzero(self.alive)

    @cached_property
    def label_of(self) -> dict[Any, int]:
        """The label of each id."""
        return dict(zip(self.ids[self.labels].tolist(), self.labels.tolist(), strict=True))


class FolderBackend(Backend):
    """An index in a folder, or in memory."""

    filters = 'a list of ids or metadata such as {"year": 2007}, also in JSON, or a function'

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        super().__init__(place, **options)
        self.folder = Path(self.address) if self.address else None
        self._loaded: dict[str, Loaded] = {}
        self._current: str | None = None  # in memory
        self._loading = threading.Lock()

    # --- defined by each engine ---

    @abstractmethod
    def _create(self, layout: Layout) -> Any:
        """Create an empty index."""

    @abstractmethod
    def _load(self, path: Path, width: int) -> Any:
        """Read an index file."""

    @abstractmethod
    def _dump(self, index: Any, path: Path) -> None:
        """Write an index file."""

    @abstractmethod
    def _add(self, index: Any, labels: Labels, vectors: FloatArray) -> None:
        """Add vectors."""

    @abstractmethod
    def _vectors(self, index: Any, labels: Labels) -> FloatArray:
        """Return vectors as they were added."""

    @abstractmethod
    def _find(self, loaded: Loaded, queries: FloatArray, k: int) -> tuple[Labels, FloatArray]:
        """Find the k nearest items; missing hits have the label -1."""

    @abstractmethod
    def _read_file(self, path: Path) -> tuple[Ids, FloatArray]:
        """Read the ids and vectors of a file that the engine's library wrote."""

    @abstractmethod
    def _copy(self, index: Any) -> Any:
        """Copy an index."""

    def _remove(self, index: Any, labels: Labels) -> None:
        """Remove items from an index; `_find` may skip those that aren't alive instead."""
        return None

    # --- versions ---

    def is_taken(self) -> bool:
        own = ("CURRENT", "LOCK", ".nnnorm-", "v")
        # The real path: "out/.." is this folder even if there is no "out".
        found = [] if self.folder is None else Path(os.path.realpath(self.folder)).glob("*")
        return not all(path.name.startswith(own) for path in found)

    def lock_file(self) -> Path | None:
        if self.folder is not None and self.folder.is_file():
            raise NNNormError(
                f"{self.folder} is a file; an index of {self.engine} is a folder: choose another "
                "name, or copy the file with copy_index (nnnorm index copy)"
            )
        return None if self.folder is None else self.folder / "LOCK"

    def served(self) -> str | None:
        if self.folder is None:
            return self._current
        check_regular(self.folder)
        path = self.folder / "CURRENT"
        if not self.folder.is_dir() or not path.exists():
            return None
        check_regular(path)
        name = path.read_bytes().decode(errors="replace").strip()
        if not re.fullmatch(r"v\d+_[0-9a-f]{6}", name):
            raise NNNormError(f"{path} is damaged; build the index again")
        return name

    def versions(self) -> list[str]:
        if self.folder is None:
            return list(self._loaded)
        return sorted(path.name for path in self.folder.glob("v*_*") if path.is_dir())

    def create(self, version: str, layout: Layout) -> None:
        ids = np.empty(0, dtype=str if layout.string_ids else np.int64)
        self._loaded[version] = Loaded(self._create(layout), ids, np.empty(0, dtype=bool), [])

    def finish(self, version: str, config: dict[str, Any]) -> None:
        loaded = self._loaded[version]
        loaded.config = config
        if self.folder is None:
            return
        folder = self.folder / version
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._dump(loaded.index, folder / "index")
        finally:
            check_space(folder)  # hnswlib and usearch don't report a full disk
        text = json.dumps(loaded.metadata if any(loaded.metadata) else None).encode()
        arrays = {"ids": loaded.ids, "alive": loaded.alive, "metadata": np.frombuffer(text, "u1")}
        np.savez(folder / "items.npz", **arrays)  # type: ignore[arg-type]
        digests = {path.name: _digest(path, sync=True) for path in sorted(folder.iterdir())}
        text = json.dumps({"config": config, "digests": digests}).encode()
        signed = hashlib.blake2b(text).hexdigest().encode() + b"\n" + text
        write_whole(folder / "config.json", lambda file: file.write(signed))

    def read_config(self, version: str) -> dict[str, Any] | None:
        if self.folder is None:
            return self._loaded[version].config if version in self._loaded else None
        stored = self._read_signed(self.folder / version / "config.json")
        return None if stored is None else dict(stored["config"])

    def _read_signed(self, path: Path) -> dict[str, Any] | None:
        """Return the config and digests of a finished version, else None."""
        check_regular(path)
        if not path.exists():
            return None
        digest, _, text = path.read_bytes().partition(b"\n")
        if hashlib.blake2b(text).hexdigest().encode() != digest:
            raise self._damaged(path.parent.name)
        return json.loads(text)

    def swap(self, version: str) -> None:
        if self.folder is None:
            self._current = version
            return
        write_whole(self.folder / "CURRENT", lambda file: file.write(version.encode()))

    def drop(self, version: str) -> None:
        self._loaded.pop(version, None)
        if self.folder is not None and (self.folder / version).is_dir():
            (self.folder / version / "config.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder / version, ignore_errors=True)

    def close(self) -> None:
        if self.folder is not None:
            self._loaded.clear()

    @contextmanager
    def write(self, version: str) -> Iterator[str]:
        old = self._open(version)
        new = self.name_version(version[1:].partition("_")[0])
        self._loaded[new] = replace(old, index=self._copy(old.index), breadth=0)
        try:
            yield new
            self.finish(new, old.config or {})
        except BaseException:
            self.drop(new)
            raise
        self.swap(new)
        self.drop(version)

    # --- items ---

    def add(self, version: str, items: Items) -> None:
        loaded = self._loaded[version]
        start = len(loaded.ids)
        self._add(loaded.index, np.arange(start, start + len(items)), items.vectors)
        self._loaded[version] = replace(
            loaded,
            ids=np.concatenate([loaded.ids, items.ids]),
            alive=np.concatenate([loaded.alive, np.ones(len(items), dtype=bool)]),
            metadata=[*loaded.metadata, *items.metadata],
        )

    def delete(self, version: str, ids: Ids) -> None:
        loaded = self._loaded[version]
        labels = np.array([loaded.label_of[own] for own in ids.tolist()], dtype=np.int64)
        self._remove(loaded.index, labels)
        alive = loaded.alive.copy()
        alive[labels] = False
        self._loaded[version] = replace(loaded, alive=alive)

    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        loaded = self._open(version)
        known = [own for own in ids.tolist() if own in loaded.label_of]
        return {own: dict(loaded.metadata[loaded.label_of[own]]) for own in known}

    def count(self, version: str) -> int:
        return len(self._open(version).labels)

    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        loaded = self._open(version)
        if filter is not None or not len(loaded.labels):
            allowed = [] if filter is None else filter
            labels, scores = self._compare(loaded, self._allowed(loaded, allowed), vectors, k)
        else:
            labels, scores = self._find(loaded, vectors, min(k, len(loaded.labels)))
        found = labels >= 0
        missing: Any = "" if loaded.ids.dtype.kind == "U" else -1
        ids = np.where(found, loaded.ids[np.where(found, labels, 0)], missing)
        return Hits(ids, np.where(found, scores, -np.inf).astype(np.float32))

    def scan(self, version: str | None) -> Iterator[Items]:
        if version is None:
            if self.folder is None or not self.folder.is_file():
                raise NNNormError(f"there is no {self.name} to copy; check the path")
            ids, vectors = self._read_file(self.folder)
            yield Items(ids, vectors, None, [{} for _ in ids])
            return
        loaded = self._open(version)
        for part in chunks(loaded.labels, BATCH):
            metadata = [dict(loaded.metadata[label]) for label in part]
            yield Items(loaded.ids[part], self._vectors(loaded.index, part), None, metadata)

    # --- filters ---

    def _allowed(self, loaded: Loaded, given: Any) -> Labels:
        if isinstance(given, str):  # from the command line
            with contextlib.suppress(ValueError):
                given = json.loads(given)
        if isinstance(given, Mapping):
            wanted = dict(given).items()
            kept = [wanted <= loaded.metadata[label].items() for label in loaded.labels]
        elif callable(given):
            kept = [bool(given(dict(loaded.metadata[label]))) for label in loaded.labels]
        elif isinstance(given, str) or not hasattr(given, "__iter__"):
            raise self.wrong_filter(given)
        else:
            try:
                known = loaded.label_of.keys() & set(given)
            except TypeError:  # lists or objects in place of ids
                raise self.wrong_filter(given) from None
            return np.array(sorted(loaded.label_of[own] for own in known), dtype=np.int64)
        return loaded.labels[np.array(kept, dtype=bool)]

    def _compare(
        self, loaded: Loaded, labels: Labels, queries: FloatArray, k: int
    ) -> tuple[Labels, FloatArray]:
        """Compare queries with all of these items."""
        scores = np.empty((len(queries), len(labels)), dtype=np.float32)
        for start in range(0, len(labels), _COMPARED):
            rows = self._vectors(loaded.index, labels[start : start + _COMPARED])
            scores[:, start : start + len(rows)] = queries @ rows.T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return labels[order], np.take_along_axis(scores, order, axis=1)

    # --- loading ---

    def _open(self, version: str) -> Loaded:
        loaded = self._loaded.get(version)
        if loaded is None:
            with self._loading:
                loaded = self._loaded.get(version) or self._read(version)
                self._loaded[version] = loaded
        return loaded

    def _read(self, version: str) -> Loaded:
        folder = Path(self.address, version)
        stored = self._read_signed(folder / "config.json") if self.address else None
        if stored is None:
            raise self.missing()
        config = stored["config"]
        try:
            for name, digest in stored["digests"].items():
                check_regular(folder / name)
                if _digest(folder / name) != digest:
                    raise self._damaged(version)
            with np.load(folder / "items.npz", allow_pickle=False) as items:
                ids, alive, text = items["ids"], items["alive"], items["metadata"].tobytes()
            metadata = json.loads(text) or [{}] * len(ids)
            index = self._load(folder / "index", config["dim"] + 2)  # in mode "augmented"
        except FileNotFoundError:
            raise self.missing() from None
        return Loaded(index, ids, alive, metadata, config)

    def _damaged(self, version: str) -> NNNormError:
        return self.error(f"is damaged in {version}; roll back or build the index again")


def _digest(path: Path, *, sync: bool = False) -> str:
    if sync:
        with open(path, "r+b") as written:  # Windows syncs only files opened for writing
            os.fsync(written.fileno())
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
