"""COCO's own annotation files: `captions_train2017.json`, `captions_val2017.json` and the like.

Each file is a split: a list of images, and a list of annotations with a caption of one image each.
(Papers usually report results on Karpathy's splits; see `karpathy.py`.)
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.datasets.pairs import Pairs, tidy
from nnnorm.errors import NNNormError
from nnnorm.tables import read_json

_WHAT = "a caption file of COCO, such as captions_val2017.json"


def read_coco(
    paths: Sequence[str | os.PathLike[str]], images: str | os.PathLike[str] = "."
) -> Pairs:
    """Read images and captions of COCO's caption files, one split per file."""
    if not paths:
        raise NNNormError(f"no file was given; expected at least {_WHAT}")
    files: list[str] = []
    captions: list[str] = []
    image_of: list[int] = []
    splits: dict[str, Any] = {}
    for path in paths:
        about = read_json(path, _WHAT)
        split = Path(path).stem.removeprefix("captions_")
        if split in splits:
            raise NNNormError(f"two files are named {Path(path).name}; give each split once")
        try:
            number_of = {p["id"]: len(files) + row for row, p in enumerate(about["images"])}
            folder = Path(images) / split if (Path(images) / split).is_dir() else Path(images)
            splits[split] = np.arange(len(files), len(files) + len(about["images"]))
            files += [str(folder / picture["file_name"]) for picture in about["images"]]
            pairs = [(a["image_id"], tidy(a["caption"])) for a in about["annotations"]]
        except (KeyError, TypeError, AttributeError) as error:
            missing = f" (missing: {error})" if isinstance(error, KeyError) else ""
            raise NNNormError(
                f"{path} must have images with id and file_name, and annotations with image_id and "
                f"caption{missing}; expected {_WHAT}"
            ) from error
        if stray := [image for image, _ in pairs if image not in number_of]:
            raise NNNormError(
                f"{path}: {len(stray)} captions are of images that the file does not name, the "
                f"first of image {stray[0]}"
            )
        image_of += [number_of[image] for image, _ in pairs]
        captions += [caption for _, caption in pairs]
    return Pairs("coco", tuple(files), tuple(captions), np.array(image_of, dtype=np.int64), splits)
