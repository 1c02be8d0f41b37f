"""Readers of data sets: Karpathy's and COCO's files, tables, and BEIR's folders.

In Karpathy's split of COCO, `restval` is the part of the validation images that is used neither for
validation nor for test; it is usually added to the training split. COCO's own annotation files are
one split each. In a table, rows with the same image are its captions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnnorm.datasets.pairs import Pairs
from nnnorm.errors import NNNormError, warn
from nnnorm.files import PathLike
from nnnorm.tables import check_ids, read_columns, read_json

_KARPATHY = "a Karpathy split, such as dataset_flickr30k.json"
_COCO = "COCO captions, such as captions_val2017.json"


def read_karpathy(path: PathLike, images: PathLike = ".") -> Pairs:
    """Read images, captions and splits of a Karpathy split file."""
    about = read_json(path, _KARPATHY)
    pictures = about.get("images") if isinstance(about, dict) else None
    if not isinstance(pictures, list):
        raise NNNormError(f"{path} has no list of images; expected {_KARPATHY}")
    split_of: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for number, picture in enumerate(pictures):
        needed = "filename, split and sentences, each with its raw text"
        with _explain_shape(f"{path}: image {number}", needed, _KARPATHY):
            file = str(Path(images, picture.get("filepath", ""), picture["filename"]))
            split = picture["split"]
            rows += [(file, _tidy(sentence["raw"])) for sentence in picture["sentences"]]
        if split not in ("train", "val", "test", "restval"):
            raise NNNormError(
                f"{path}: image {number} ({picture['filename']}) is in the split {split!r}; "
                "expected train, val, test or restval"
            )
        split_of[file] = "train" if split == "restval" else split
    name = str(about.get("dataset") or Path(path).stem.removeprefix("dataset_"))
    return _make_pairs(name, split_of, rows)


def read_coco(paths: Sequence[PathLike], images: PathLike = ".") -> Pairs:
    """Read images and captions of COCO's caption files, one split per file."""
    split_of: dict[str, str] = {}
    rows: list[tuple[str, str]] = []
    for path in paths:
        about = read_json(path, _COCO)
        split = Path(path).stem.removeprefix("captions_")
        if split in split_of.values():
            raise NNNormError(f"two files are named {Path(path).name}; pass each split once")
        folder = Path(images) / split if (Path(images) / split).is_dir() else Path(images)
        needed = "images with id and file_name, and annotations with image_id and caption"
        with _explain_shape(str(path), needed, _COCO):
            files = {image["id"]: str(folder / image["file_name"]) for image in about["images"]}
            captions = [(note["image_id"], _tidy(note["caption"])) for note in about["annotations"]]
            stray = [image for image, _ in captions if image not in files]
        if stray:
            raise NNNormError(
                f"{path}: {len(stray)} captions belong to images that the file doesn't list, "
                f"such as image {stray[0]}"
            )
        split_of |= dict.fromkeys(files.values(), split)
        rows += [(files[image], caption) for image, caption in captions]
    return _make_pairs("coco", split_of, rows)


def read_table(path: PathLike, images: PathLike = ".") -> Pairs:
    """Read a table with the columns `image`, `caption` and optionally `split`."""
    columns = read_columns(path, ("image", "caption"), ("split",))
    files = [str(Path(images) / file) for file in columns["image"]]
    split_of: dict[str, str] = {}
    for image, split in zip(files, columns.get("split", [""] * len(files)), strict=True):
        if split_of.setdefault(image, split) != split:
            raise NNNormError(
                f"{path}: {image} is in the splits {split_of[image]!r} and {split!r}; put "
                "all rows of an image in one split"
            )
    rows = list(zip(files, map(_tidy, columns["caption"]), strict=True))
    return _make_pairs(Path(path).stem, split_of, rows)


class Beir(NamedTuple):
    """Texts of a BEIR folder, the queries of one split, and their judgments by id."""

    name: str
    documents: list[str]
    document_ids: list[str]
    queries: list[str]
    query_ids: list[str]
    qrels: Path


def read_beir(folder: PathLike, split: str = "test") -> Beir:
    """Read `corpus.jsonl`, `queries.jsonl` and ``qrels/SPLIT.tsv``; a title comes before its text.

    Documents without a title and a text are left out, with a warning.
    """
    root, texts = Path(folder), {}
    qrels = root / "qrels" / f"{split}.tsv"
    if not qrels.is_file():
        there = ", ".join(sorted(path.stem for path in root.glob("qrels/*.tsv"))) or "none"
        raise NNNormError(f"there is no file {qrels}; the splits of {folder} are: {there}")
    for part in ("corpus", "queries"):
        columns = read_columns(root / f"{part}.jsonl", ("_id",), ("title", "text"))
        ids, blank = columns["_id"], [""] * len(columns["_id"])
        check_ids(ids, len(ids), name=f"{root / part}.jsonl")
        rows = zip(columns.get("title", blank), columns.get("text", blank), strict=True)
        texts[part] = dict(zip(ids, (" ".join(filter(None, row)) for row in rows), strict=True))
    documents = {own: text for own, text in texts["corpus"].items() if text}
    if n_blank := len(texts["corpus"]) - len(documents):
        warn(f"{n_blank:,} documents of {folder} have no title and no text and are left out")
    asked = dict.fromkeys(read_columns(qrels, ("query-id",))["query-id"])
    if unknown := [own for own in asked if own not in texts["queries"]]:
        raise NNNormError(f"{qrels} names the query {unknown[0]!r}, which isn't in queries.jsonl")
    if blank_ids := [own for own in asked if not texts["queries"][own]]:
        raise NNNormError(f"the query {blank_ids[0]!r} of {root / 'queries.jsonl'} has no text")
    queries = [texts["queries"][own] for own in asked]
    sides = list(documents.values()), list(documents), queries, list(asked)
    return Beir(root.resolve().name, *sides, qrels)


def _make_pairs(name: str, split_of: dict[str, str], rows: Sequence[tuple[str, str]]) -> Pairs:
    """Create `Pairs` from images with their splits, if any, and rows of image and caption."""
    number_of = {image: number for number, image in enumerate(split_of)}
    splits: dict[str, Any] = {}
    for image, split in split_of.items():
        if split:
            splits.setdefault(split, []).append(number_of[image])
    image_of = np.array([number_of[image] for image, _ in rows], dtype=np.int64)
    return Pairs(name, tuple(split_of), tuple(caption for _, caption in rows), image_of, splits)


def _tidy(text: str) -> str:
    """Return a caption on one line, without spaces at its ends."""
    return " ".join(text.split())


@contextmanager
def _explain_shape(place: str, needed: str, expected: str) -> Iterator[None]:
    """Convert errors from unexpected JSON to one sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        missing = f" (missing: {error})" if isinstance(error, KeyError) else ""
        raise NNNormError(f"{place} must have {needed}{missing}; expected {expected}") from error
