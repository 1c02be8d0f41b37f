"""Pictures as PNG, with numpy alone."""

import os
import struct
import zlib

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io.files import write_whole


def encode_png(pixels: npt.ArrayLike) -> bytes:
    """Encode a picture as PNG."""
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise NNNormError(
            f"a picture must be uint8 (height, width, 3); got {array.dtype} {array.shape}"
        )
    height, width = array.shape[:2]
    # Each row is stored as its difference to the row above (filter 2): flat areas become zeros.
    rows = np.full((height, 1 + 3 * width), 2, dtype=np.uint8)
    flat = array.reshape(height, -1)
    rows[:, 1:] = np.diff(flat, axis=0, prepend=np.zeros((1, 3 * width), dtype=np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def write_png(path: str | os.PathLike[str], pixels: npt.ArrayLike) -> None:
    """Write a picture as PNG, whole or not at all."""
    content = encode_png(pixels)
    write_whole(path, lambda file: file.write(content))
