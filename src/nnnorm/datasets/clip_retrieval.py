"""Folders in the layout of clip-retrieval's inference: `img_emb/`, `text_emb/` and `metadata/`.

The shards of all three are aligned: row i of the embeddings is row i of the metadata. An image with
several captions has a row for each, so that its embedding is repeated; `image_rows` selects the
rows of a gallery in which every image occurs once.
"""

import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import find_shards
from nnnorm.datasets.pairs import Pairs, save_pairs
from nnnorm.datasets.table import make_pairs
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.files import write_whole
from nnnorm.tables import read_columns

_BLOCK = 8192  # rows in memory at once


class ClipRetrieval(NamedTuple):
    """The pairs and embeddings of a folder."""

    pairs: Pairs
    image_rows: npt.NDArray[np.int64]
    image_embeddings: Embeddings
    caption_embeddings: Embeddings


def read_clip_retrieval(folder: str | os.PathLike[str]) -> ClipRetrieval:
    """Read a folder with embeddings of images and texts and their metadata."""
    root = Path(folder)
    parts = {part: root / part for part in ("img_emb", "text_emb", "metadata")}
    if missing := [part for part, path in parts.items() if not path.is_dir()]:
        raise NNNormError(
            f"{folder} must be a folder with img_emb, text_emb and metadata; "
            f"{missing[0]} is not there"
        )
    files: list[str] = []
    captions: list[str] = []
    for shard in find_shards(parts["metadata"], f"metadata ({parts['metadata']})"):
        if shard.suffix != ".parquet":
            raise NNNormError(f"{shard} must be a .parquet file, as clip-retrieval writes it")
        columns = read_columns(shard, ("image_path", "caption"))
        files += columns["image_path"]
        captions += columns["caption"]
    images = open_embeddings(parts["img_emb"], name="img_emb")
    texts = open_embeddings(parts["text_emb"], name="text_emb")
    if not len(images) == len(texts) == len(captions):
        raise NNNormError(
            f"{folder}: img_emb, text_emb and metadata must have the same rows; got {len(images)}, "
            f"{len(texts)} and {len(captions)}. Is a shard missing?"
        )
    pairs = make_pairs(root.name or "clip-retrieval", files, captions)
    _, first = np.unique(pairs.image_of, return_index=True)
    return ClipRetrieval(pairs, first.astype(np.int64), images, texts)


def save_clip_retrieval(found: ClipRetrieval, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the files of `save_pairs`, and ``NAME-gallery.npy``: every image once."""
    gallery = Path(folder) / f"{found.pairs.name}-gallery.npy"

    def write(file: BinaryIO) -> None:
        shape = (len(found.image_rows), found.image_embeddings.shape[1])
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, about)
        for start in range(0, len(found.image_rows), _BLOCK):
            rows = found.image_embeddings.take(found.image_rows[start : start + _BLOCK])
            file.write(rows.astype("<f4").tobytes())

    write_whole(gallery, write)
    return (*save_pairs(found.pairs, folder), gallery)
