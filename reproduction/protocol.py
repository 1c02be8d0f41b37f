"""The paper's protocol: test, tuning and reference images of a data set, from one seed.

Test is the test split with five captions per image. As many images of train are held out for
tuning. References are a share of train, drawn from the rest: their captions are the bank for image
retrieval, the images that for text retrieval. Smaller shares are subsets of larger ones.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm import NNNormError
from nnnorm.datasets import Pairs
from reproduction.paper import Direction

IntArray: TypeAlias = npt.NDArray[np.int64]
SHARE = 0.2  # of train, where the paper says nothing else
_CAPTIONS = 5  # of a test or tuning image; references keep all of theirs


class Part(NamedTuple):
    """Numbers of some images and captions, and the position of each caption's image among them."""

    images: IntArray
    captions: IntArray
    image_of: IntArray

    def truth(self, direction: Direction) -> IntArray:
        """Return the image of each caption, or (query, item) pairs."""
        if direction == "image":
            return self.image_of
        return np.stack([self.image_of, np.arange(len(self.image_of))], axis=1)


class Protocol(NamedTuple):
    """Three parts that share no image."""

    test: Part
    validation: Part
    references: Part


def split_pairs(pairs: Pairs, *, share: float = SHARE, seed: int = 0) -> Protocol:
    """Split a data set with the splits train and test as the paper does."""
    tested, trained = pairs.split("test"), pairs.split("train")
    order = np.random.default_rng(seed).permutation(trained)
    held, rest = order[: len(tested)], order[len(tested) :]
    n_references = min(max(1, round(share * len(trained))), len(rest))
    if len(held) < len(tested) or n_references == 0:
        raise NNNormError(
            f"{pairs.name} has {len(trained):,} train images, too few to hold out as many for "
            f"tuning as the {len(tested):,} of test and have references left"
        )
    return Protocol(
        _make_part(pairs, tested, _CAPTIONS),
        _make_part(pairs, np.sort(held), _CAPTIONS),
        _make_part(pairs, np.sort(rest[:n_references]), None),
    )


def _make_part(pairs: Pairs, images: IntArray, at_most: int | None) -> Part:
    captions = pairs.captions_of(images, at_most)
    place = np.zeros(len(pairs.images), dtype=np.int64)
    place[images] = np.arange(len(images))
    image_of = place[pairs.image_of[captions]]
    if at_most is not None and len(silent := np.setdiff1d(np.arange(len(images)), image_of)):
        raise NNNormError(
            f"{pairs.name}: {len(silent)} test or tuning images have no caption, the first is "
            f"{pairs.images[images[silent[0]]]}; leave them out first"
        )
    return Part(images, captions, image_of)
