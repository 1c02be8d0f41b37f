"""Records: arrays and a description in one `.safetensors` file, written whole or not at all.

The file holds numbers and JSON, nothing executable. Its metadata names the format, such as
``nnnorm.bias/1``, so that a bias is not taken for a bank, and a digest, so that damage is noticed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line
from nnnorm.io.files import check_regular, write_whole

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


def save_record(
    path: str | os.PathLike[str], kind: str, arrays: Arrays, about: Mapping[str, Any]
) -> None:
    """Write a record of a kind, such as ``"bias"``."""
    from safetensors.numpy import save

    if Path(path).suffix != ".safetensors":  # what the name says is what is in the file
        raise NNNormError(f"a {kind} is saved as .safetensors; got {path}: choose another ending")
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about)
    metadata = {"format": f"nnnorm.{kind}/1", kind: text, "digest": digest_of(dense, text)}
    blob = memoryview(save(dense, metadata))
    n_header = 8 + int.from_bytes(blob[:8], "little")
    header = _sort_metadata(bytes(blob[8:n_header]))
    length = len(header).to_bytes(8, "little")
    write_whole(path, lambda file: file.writelines([length, header, blob[n_header:]]))


def _sort_metadata(header: bytes) -> bytes:
    """Bring the metadata of a safetensors header, which is in random order, into one order."""
    entries = json.loads(header)
    entries["__metadata__"] = dict(sorted(entries["__metadata__"].items()))
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)  # the numbers behind it are aligned


def load_record(
    path: str | os.PathLike[str], kind: str, maker: str
) -> tuple[Arrays, dict[str, Any]]:
    """Read arrays and description of a record."""
    metadata, arrays = _read(path, kind, maker)
    expected = f"nnnorm.{kind}/1"
    if metadata.get("format") != expected:
        raise NNNormError(
            f"{path} is a safetensors file but holds no {kind} of this format ({expected}); "
            f"it says {metadata.get('format', 'nothing')!r}"
        )
    try:
        about = json.loads(metadata[kind])
        if not isinstance(about, dict):
            raise TypeError(type(about).__name__)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, kind, maker, error) from error
    digest = digest_of(arrays, metadata[kind])
    if metadata.get("digest", digest) != digest:  # biases of earlier versions have none
        raise damaged(path, kind, maker, "its numbers are not those that were saved")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise damaged(path, kind, maker, f"{name} must be finite")
    return arrays, about


def kind_of_record(path: str | os.PathLike[str]) -> str | None:
    """The kind that a file says it is; None where it is no record of this package."""
    try:
        metadata, _ = _read(path, "record", "nnnorm", arrays=False)
    except NNNormError:
        return None
    package, _, kind = metadata.get("format", "").partition(".")
    return kind.partition("/")[0] if package == "nnnorm" else None


def check_entries(about: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise a `TypeError` that names the first entry of a description that is of another type."""
    for name, kind in kinds.items():
        if name in about and not _is_of(about[name], kind):
            shown = getattr(kind, "__name__", None) if isinstance(kind, type) else None
            raise TypeError(f"{name} is {str(about[name])[:40]!r}, not of the type {shown or kind}")


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_args(kind):  # a union
        return any(_is_of(value, one) for one in get_args(kind))
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and abs(value) < 1e300
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, kind)


def damaged(
    path: str | os.PathLike[str], kind: str, maker: str, reason: Exception | str
) -> NNNormError:
    """The error for a record that lacks a part, or has another."""
    shown = reason if isinstance(reason, str) else repr(reason)
    return NNNormError(f"{path} is a damaged {kind} file ({shown}); make it again with: {maker}")


def digest_of(arrays: Arrays, text: str) -> str:
    """Digest of all numbers and the description, by which a damaged file is noticed."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read(
    path: str | os.PathLike[str], kind: str, maker: str, *, arrays: bool = True
) -> tuple[dict[str, str], Arrays]:
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    if os.path.isdir(path):
        raise NNNormError(f"{path} is a folder; expected a {kind} file (.safetensors)")
    if not os.path.exists(path):
        raise NNNormError(f"there is no {kind} file {path}; make one with: {maker}")
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.keys() if arrays else ()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise NNNormError(
            f"{path} can't be read as a {kind} ({first_line(error)}); "
            "is it cut short, or another kind of file?"
        ) from error
