"""Readers of image–text data sets: Karpathy's and COCO's files, tables, clip-retrieval's folders.

In Karpathy's split of COCO, `restval` is the part of the validation images that is used neither for
validation nor for test; it is usually added to the training split. COCO's own annotation files are
one split each. In a table, and in a clip-retrieval folder, rows with the same image are its
captions; the shards of such a folder are aligned: row i of the embeddings is row i of the metadata.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import find_shards
from nnnorm.datasets.pairs import Pairs, save_pairs
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.files import write_whole
from nnnorm.tables import read_columns, read_json

_KARPATHY = "one of Karpathy's split files, such as dataset_flickr30k.json"
_COCO = "a caption file of COCO, such as captions_val2017.json"
_BLOCK = 8192  # rows in memory at once


def read_karpathy(
    path: str | os.PathLike[str], images: str | os.PathLike[str] = ".", *, restval: bool = True
) -> Pairs:
    """Read images, captions and splits of a Karpathy split file."""
    about = read_json(path, _KARPATHY)
    pictures = about.get("images") if isinstance(about, dict) else None
    if not isinstance(pictures, list):
        raise NNNormError(f"{path} has no list of images; expected {_KARPATHY}")
    files: list[str] = []
    captions: list[str] = []
    image_of: list[int] = []
    splits: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for number, picture in enumerate(pictures):
        needed = "filename, split and sentences, each with its raw text"
        with _explain_shape(f"{path}: image {number}", needed, _KARPATHY):
            file = str(Path(picture.get("filepath", "")) / picture["filename"])
            split = picture["split"]
            sentences = [_tidy(sentence["raw"]) for sentence in picture["sentences"]]
        files.append(str(Path(images) / file))
        captions += sentences
        image_of += [number] * len(sentences)
        if split == "restval":
            if restval:
                splits["train"].append(number)
        elif split in splits:
            splits[split].append(number)
        else:
            raise NNNormError(
                f"{path}: image {number} ({file}) is in the split {split!r}; expected train, val, "
                "test or restval"
            )
    name = str(about.get("dataset") or Path(path).stem.removeprefix("dataset_"))
    rows = {split: np.array(some, dtype=np.int64) for split, some in splits.items() if some}
    return Pairs(name, tuple(files), tuple(captions), np.array(image_of, dtype=np.int64), rows)


def read_coco(
    paths: Sequence[str | os.PathLike[str]], images: str | os.PathLike[str] = "."
) -> Pairs:
    """Read images and captions of COCO's caption files, one split per file."""
    if not paths:
        raise NNNormError(f"no file was given; expected at least {_COCO}")
    files: list[str] = []
    captions: list[str] = []
    image_of: list[int] = []
    splits: dict[str, Any] = {}
    for path in paths:
        about = read_json(path, _COCO)
        split = Path(path).stem.removeprefix("captions_")
        if split in splits:
            raise NNNormError(f"two files are named {Path(path).name}; give each split once")
        folder = Path(images) / split if (Path(images) / split).is_dir() else Path(images)
        needed = "images with id and file_name, and annotations with image_id and caption"
        with _explain_shape(str(path), needed, _COCO):
            number_of = {p["id"]: len(files) + row for row, p in enumerate(about["images"])}
            splits[split] = np.arange(len(files), len(files) + len(about["images"]))
            files += [str(folder / picture["file_name"]) for picture in about["images"]]
            pairs = [(a["image_id"], _tidy(a["caption"])) for a in about["annotations"]]
        if stray := [image for image, _ in pairs if image not in number_of]:
            raise NNNormError(
                f"{path}: {len(stray)} captions are of images that the file does not name, the "
                f"first of image {stray[0]}"
            )
        image_of += [number_of[image] for image, _ in pairs]
        captions += [caption for _, caption in pairs]
    return Pairs("coco", tuple(files), tuple(captions), np.array(image_of, dtype=np.int64), splits)


def read_table(path: str | os.PathLike[str], images: str | os.PathLike[str] = ".") -> Pairs:
    """Read a table with the columns `image`, `caption` and optionally `split`."""
    columns = read_columns(path, ("image", "caption"), ("split",))
    files = [str(Path(images) / file) for file in columns["image"]]
    return _make_pairs(Path(path).stem, files, columns["caption"], columns.get("split", ()))


class ClipRetrieval(NamedTuple):
    """The pairs and embeddings of a clip-retrieval folder.

    An image with several captions has a row for each. `image_rows` are the rows of a gallery in
    which every image occurs once.
    """

    pairs: Pairs
    image_rows: npt.NDArray[np.int64]
    image_embeddings: Embeddings
    caption_embeddings: Embeddings


def read_clip_retrieval(folder: str | os.PathLike[str]) -> ClipRetrieval:
    """Read a folder with `img_emb`, `text_emb` and `metadata`."""
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
    pairs = _make_pairs(root.name or "clip-retrieval", files, captions)
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


def _make_pairs(
    name: str, images: Sequence[str], captions: Sequence[str], splits: Sequence[str] = ()
) -> Pairs:
    """Make `Pairs` from rows; rows with the same image are its captions."""
    number_of = {image: number for number, image in enumerate(dict.fromkeys(images))}
    split_of: dict[str, str] = {}
    for image, split in zip(images, splits, strict=False):
        if split_of.setdefault(image, split) != split:
            raise NNNormError(
                f"{name}: {image} is in the splits {split_of[image]!r} and {split!r}; an "
                "image and all its captions belong to one"
            )
    named: dict[str, list[int]] = {}
    for image, split in split_of.items():
        if split:
            named.setdefault(split, []).append(number_of[image])
    image_of = np.array([number_of[image] for image in images], dtype=np.int64)
    rows = {split: np.array(some) for split, some in named.items()}
    return Pairs(name, tuple(number_of), tuple(map(_tidy, captions)), image_of, rows)


def _tidy(text: str) -> str:
    """Return a caption on one line, without spaces at its ends."""
    return " ".join(text.split())


@contextmanager
def _explain_shape(place: str, needed: str, expected: str) -> Iterator[None]:
    """Turn the errors of reading JSON of another shape into one sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        missing = f" (missing: {error})" if isinstance(error, KeyError) else ""
        raise NNNormError(f"{place} must have {needed}{missing}; expected {expected}") from error
