"""Karpathy's split files: `dataset_coco.json`, `dataset_flickr30k.json`, `dataset_flickr8k.json`.

Each lists the images of a data set, their sentences and their split. In COCO, `restval` is the
part of the validation images that is used neither for validation nor for test; it is usually added
to the training split.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.datasets.pairs import Pairs, tidy
from nnnorm.errors import NNNormError
from nnnorm.tables import read_json

_WHAT = "one of Karpathy's split files, such as dataset_flickr30k.json"


def read_karpathy(
    path: str | os.PathLike[str], images: str | os.PathLike[str] = ".", *, restval: bool = True
) -> Pairs:
    """Read images, captions and splits of a Karpathy split file."""
    about = read_json(path, _WHAT)
    pictures = about.get("images") if isinstance(about, dict) else None
    if not isinstance(pictures, list):
        raise NNNormError(f"{path} has no list of images; expected {_WHAT}")
    paths, captions, image_of = [], [], []
    splits: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for number, picture in enumerate(pictures):
        file, split, sentences = _read_picture(path, number, picture)
        paths.append(str(Path(images) / file))
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
    return Pairs(name, tuple(paths), tuple(captions), np.array(image_of, dtype=np.int64), rows)


def _read_picture(path: Any, number: int, picture: Any) -> tuple[str, str, list[str]]:
    try:
        file = str(Path(picture.get("filepath", "")) / picture["filename"])
        return file, picture["split"], [tidy(s["raw"]) for s in picture["sentences"]]
    except (KeyError, TypeError, AttributeError) as error:
        missing = f" ({error})" if isinstance(error, KeyError) else ""
        raise NNNormError(
            f"{path}: image {number} must have filename, split and sentences, each with its raw "
            f"text{missing}; expected {_WHAT}"
        ) from error
