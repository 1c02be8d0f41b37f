"""Our own `.safetensors` files: arrays and one JSON record, written whole, read with a sentence.

A file names its format (``"nnnorm.bias/1"``), so that another kind of file is told from a damaged
one. Nothing in it is executable.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line
from nnnorm.io.files import write_whole

Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
_T = TypeVar("_T")


@dataclass(frozen=True)
class TensorFile:
    """A kind of file.

    Attributes
    ----------
    what : str
        What such a file holds, which is also the name of its record: ``"bias"``.
    version : int
        Of the format.
    made_by : str
        The command that makes one.
    """

    what: str
    version: int
    made_by: str

    @property
    def format(self) -> str:
        """The name of the format."""
        return f"nnnorm.{self.what}/{self.version}"

    def write(
        self, path: str | os.PathLike[str], tensors: Tensors, about: Mapping[str, Any]
    ) -> None:
        """Write one file, whole or not at all."""
        from safetensors.numpy import save

        record = json.dumps(about)
        digest = _digest(tensors, record)
        metadata = {"format": self.format, self.what: record, "digest": digest}
        blob = save(dict(tensors), metadata)
        write_whole(path, lambda file: file.write(blob))

    def read(
        self, path: str | os.PathLike[str], make: Callable[[Tensors, dict[str, Any]], _T]
    ) -> _T:
        """Read a file that `write` wrote; `make` builds the object from its arrays and record."""
        from safetensors import SafetensorError, safe_open

        if os.path.isdir(path):
            raise NNNormError(f"{path} is a folder; expected a {self.what} file (.safetensors)")
        if not os.path.exists(path):
            raise NNNormError(f"there is no {self.what} file {path}; make one with: {self.made_by}")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise NNNormError(
                f"{path} can't be read as a {self.what} ({first_line(error)}); "
                "is it cut short, or another kind of file?"
            ) from error
        if metadata.get("format") != self.format:
            raise NNNormError(
                f"{path} is a safetensors file but holds no {self.what} of this format "
                f"({self.format}); it says {metadata.get('format', 'nothing')!r}"
            )
        # Files of older versions have no digest.
        digest = _digest(tensors, metadata.get(self.what, ""))
        if metadata.get("digest", digest) != digest:
            raise NNNormError(
                f"{path} is a damaged {self.what} file (its numbers are not those that were "
                f"saved); make it again with: {self.made_by}"
            )
        try:
            return make(tensors, json.loads(metadata[self.what]))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise NNNormError(
                f"{path} is a damaged {self.what} file ({error!r}); make it again with: "
                f"{self.made_by}"
            ) from error


def _digest(tensors: Tensors, record: str) -> str:
    digest = hashlib.sha256(record.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()[:32]


def read_format(path: str | os.PathLike[str]) -> str | None:
    """The format that a safetensors file names; None where it names none or can't be read.

    Examples
    --------
    >>> read_format("nowhere.safetensors")
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("format")
    except (SafetensorError, OSError):
        return None
