"""Answers with numbers in them, as one run of bytes that a browser reads as typed arrays.

A little-endian uint32 has the length of a JSON header, the header names every array with its type,
offset and length, and the arrays follow, each aligned to eight bytes.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# Arrays as JavaScript has them; whole numbers of 64 bits are no ordinary numbers there.
_TYPES: dict[str, npt.DTypeLike] = {"f": "<f4", "i": "<i4", "u": "u1", "b": "u1"}
_ALIGNED = 8


def pack(about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Put a description and arrays together."""
    listed, parts, offset = [], [], 0
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array, dtype=_TYPES[array.dtype.kind]).ravel()
        listed.append(
            {"name": name, "type": flat.dtype.name, "offset": offset, "length": len(flat)}
        )
        data = flat.tobytes()
        parts.append(data + bytes(-len(data) % _ALIGNED))
        offset += len(parts[-1])
    header = json.dumps(
        {"about": about, "arrays": listed}, ensure_ascii=False, allow_nan=False
    ).encode()
    header += b" " * (-(4 + len(header)) % _ALIGNED)
    return b"".join([struct.pack("<I", len(header)), header, *parts])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Read what `pack` wrote, for tests and programs."""
    (size,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + size])
    arrays = {
        one["name"]: np.frombuffer(
            data, dtype=one["type"], count=one["length"], offset=4 + size + one["offset"]
        )
        for one in header["arrays"]
    }
    return header["about"], arrays
