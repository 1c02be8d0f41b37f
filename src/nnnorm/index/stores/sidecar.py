"""The two files of an index that lives in memory: the engine's own, and a second one beside it.

The second one, ``photos.faiss.nnnorm``, has what engines do not keep: string ids, bias values,
metadata and the note. Both change in one step: it holds the checksum of the engine's file that it
belongs to, and is written as ``….nnnorm.new`` before the engine's file is replaced. A reader takes
the one that belongs; the next write renames it. The other generation is ``photos.faiss.other``.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from nnnorm.files import check_entries, digest_of, write_whole
from nnnorm.index.store import StoreMetric

_FORMAT = "nnnorm.sidecar/1"
_KINDS = {
    "note": dict | None,
    "settings": dict,
    "names": list | None,
    "metadata": list | None,
}
_SETTINGS_KINDS = {"padding": int, "dim": int, "metric": StoreMetric, "deleted": list}


@dataclass(frozen=True)
class Files:
    """The engine's file at `path`, and those beside it."""

    path: Path

    @property
    def sidecar(self) -> Path:
        """The second file."""
        return self._beside("nnnorm")

    @property
    def new(self) -> Path:
        """The second file of a write that is not finished."""
        return Path(f"{self.sidecar}.new")

    @property
    def other(self) -> "Files":
        """The files of the other generation."""
        return Files(self._beside("other"))

    def _beside(self, suffix: str) -> Path:
        return Path(f"{self.path}.{suffix}")  # the root has no name to change

    def _swap(self) -> Path | None:
        """Where an exchange puts what will be the other generation; None for the one served."""
        return self.path.with_suffix(".swap") if self.path.suffix == ".other" else None

    def exist(self) -> bool:
        """Whether there is such a file, which an interrupted exchange may have left elsewhere."""
        swap = self._swap()
        if not self.path.exists() and swap is not None and swap.exists():
            os.replace(swap, self.path)
        return self.path.exists()

    def finish(self) -> None:
        """Complete, or undo, what an interrupted write has left."""
        if not self.exist() or not self.new.exists():
            return
        checksum = self.checksum()
        if _checksum_in(self.new) == checksum != _checksum_in(self.sidecar):
            os.replace(self.new, self.sidecar)
        else:
            self.new.unlink(missing_ok=True)

    def find_sidecar(self, checksum: str) -> Path:
        """Return the second file that belongs to an engine's file of this checksum."""
        is_unfinished = self.new.exists() and _checksum_in(self.sidecar) != checksum
        return self.new if is_unfinished and _checksum_in(self.new) == checksum else self.sidecar

    def checksum(self) -> str:
        """Return the BLAKE2 digest of the engine's file."""
        return _checksum(self.path)

    def stamps(self) -> list[Any]:
        """Return what changes when one of the files is replaced."""
        return [stamp_of(one) for one in (self.path, self.sidecar, self.new)]

    def write(self, dump: Callable[[Path], None], describe: Callable[[str], bytes]) -> None:
        """Write both in one step, or none.

        `dump` writes the engine's file, and `describe` returns the second one for its checksum.
        """

        def write(file: BinaryIO) -> None:
            dump(Path(file.name))
            blob = describe(_checksum(Path(file.name)))
            write_whole(self.new, lambda beside: beside.write(blob))

        write_whole(self.path, write)
        os.replace(self.new, self.sidecar)

    def describe(self, describe: Callable[[str], bytes]) -> None:
        """Write the second file again, beside the engine's file as it is."""
        blob = describe(self.checksum())
        write_whole(self.sidecar, lambda file: file.write(blob))

    def copy_to(self, other: "Files") -> None:
        """Give both files a second name; engines' files are replaced, never written to."""
        write_whole(other.sidecar, lambda file: _copy(self.sidecar, file))
        _link(self.path, other.path)

    def exchange(self) -> None:
        """Exchange these files with those of the other generation; both have to be there."""
        other, swap = self.other, self._beside("swap")
        swap.unlink(missing_ok=True)
        _link(self.path, swap)
        write_whole(self.new, lambda file: _copy(other.sidecar, file))
        write_whole(other.new, lambda file: _copy(self.sidecar, file))
        os.replace(other.path, self.path)  # from here on the other generation is served
        os.replace(swap, other.path)
        # Where both engine's files are alike, the last line is the step that counts.
        os.replace(other.new, other.sidecar)
        os.replace(self.new, self.sidecar)

    def remove(self) -> None:
        """Remove all of them; what completes an interrupted exchange goes first."""
        for path in (self._swap(), self.path, self.new, self.sidecar):
            if path is not None:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Sidecar:
    """What the second file holds; lists have one entry per label.

    Attributes
    ----------
    labels : list of int
    values : list of float, or None
        The bias.
    names : list of str, or None
        The ids, where they are no labels.
    metadata : list of dict, or None
    note : dict or None
    settings : dict
        Of the engine.
    checksum : str or None
        Of the engine's file; the first version wrote none.
    """

    labels: list[int]
    values: list[float] | None
    names: list[str] | None
    metadata: list[dict[str, Any]] | None
    note: dict[str, Any] | None
    settings: dict[str, Any]
    checksum: str | None

    def pack(self) -> bytes:
        """Return the contents of the file."""
        from safetensors.numpy import save

        tensors: dict[str, npt.NDArray[Any]] = {"labels": np.array(self.labels, dtype=np.int64)}
        if self.values is not None:
            tensors["values"] = np.array(self.values, dtype=np.float32)
        about = {
            "format": _FORMAT,
            "checksum": str(self.checksum),
            "note": json.dumps(self.note),
            "settings": json.dumps(self.settings),
            "names": json.dumps(self.names),
            "metadata": json.dumps(self.metadata),
        }
        return save(tensors, {**about, "digest": _digest(tensors, about)})

    @classmethod
    def read(cls, path: Path) -> "Sidecar":
        """Read a file; a damaged one raises ValueError, TypeError, KeyError or OSError."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        if about.get("format") != _FORMAT:
            raise ValueError(f"its format is {about.get('format')!r}, not {_FORMAT!r}")
        # The first version wrote neither checksum nor digest.
        if "checksum" in about and about.pop("digest", None) != _digest(tensors, about):
            raise ValueError("it was changed since it was written")
        labels = _read_labels(tensors["labels"])
        parsed = {name: json.loads(about[name]) for name in _KINDS}
        check_entries(parsed, _KINDS)
        check_entries(parsed["settings"], _SETTINGS_KINDS)
        names, metadata = parsed["names"], parsed["metadata"]
        if not all(isinstance(name, str) for name in names or ()):
            raise TypeError("a name is no text")
        if not all(isinstance(entry, dict) for entry in metadata or ()):
            raise TypeError("the metadata of an item are no mapping")
        values = tensors["values"].tolist() if "values" in tensors else None
        for listed in (values, names, metadata):
            if listed is not None and len(listed) != len(labels):
                raise ValueError(f"it has {len(listed)} entries for {len(labels)} items")
        own = labels, values, names, metadata, parsed["note"], parsed["settings"]
        return cls(*own, about.get("checksum"))


def stamp_of(path: Path) -> Any:
    """Return what changes when a file is replaced, and not when it is renamed.

    Examples
    --------
    >>> stamp_of(Path("nowhere.faiss"))
    """
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size


def _copy(path: Path, file: BinaryIO) -> None:
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file)


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # a file system without links
        write_whole(other, lambda file: _copy(path, file))


def _checksum_in(path: Path) -> str | None:
    """The checksum of the engine's file that a second file belongs to; None if it can't be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("checksum")
    except (SafetensorError, OSError, ValueError):
        return None


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _digest(tensors: Mapping[str, npt.NDArray[Any]], about: Mapping[str, str]) -> str:
    return digest_of(dict(tensors), json.dumps(about, sort_keys=True))


def _read_labels(labels: npt.NDArray[Any]) -> list[int]:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels of type {labels.dtype} and shape {labels.shape}")
    listed: list[int] = labels.tolist()
    return listed
