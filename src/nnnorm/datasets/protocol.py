"""The paper's protocol: test, tuning and reference images of a data set, from one seed.

Test is the test split (1,000 images of Flickr30k, 5,000 of COCO) with five captions per image. As
many images of train are held out for tuning. References are 20 % of train, drawn from the rest:
their captions are the bank for image retrieval, the images are the bank for text retrieval. Smaller
shares are subsets of larger ones, and a share of 1 is all of train without the tuning images.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.datasets.pairs import Pairs
from nnnorm.errors import NNNormError

IntArray: TypeAlias = npt.NDArray[np.int64]
# What is retrieved: images by captions, or captions by images.
Direction = Literal["image", "text"]


class Part(NamedTuple):
    """Some images and captions of a data set.

    Attributes
    ----------
    images, captions : ndarray, int64
        Their numbers in the data set, which are the rows of its embeddings.
    image_of : ndarray, shape (n_captions,), int64
        For each caption of the part, the position of its image in `images`.
    """

    images: IntArray
    captions: IntArray
    image_of: IntArray

    def truth(self, direction: Direction) -> IntArray:
        """Return the truth for `open_truth`: the image of each caption, or (query, item) pairs.

        Examples
        --------
        >>> part = Part(np.array([7]), np.array([35, 36]), np.array([0, 0]))
        >>> part.truth("text").tolist()
        [[0, 0], [0, 1]]
        """
        if direction == "image":
            return self.image_of
        return np.stack([self.image_of, np.arange(len(self.image_of))], axis=1)


@dataclass(frozen=True, eq=False)
class Protocol:
    """Three parts that share no image.

    Attributes
    ----------
    test, validation, references : Part
    """

    test: Part
    validation: Part
    references: Part


def paper_protocol(
    pairs: Pairs,
    *,
    reference_share: float = 0.2,
    captions_per_image: int = 5,
    train: str = "train",
    test: str = "test",
    seed: int = 0,
) -> Protocol:
    """Split a data set as the paper does.

    Parameters
    ----------
    pairs : Pairs
        They have a train and a test split.
    reference_share : float
        Share of the train images that become references.
    captions_per_image : int
        Maximum number of captions per test and tuning image; references keep all of theirs.
    train, test : str
        Names of the splits.
    seed : int
        Random seed.

    Returns
    -------
    Protocol

    Examples
    --------
    >>> names = tuple(f"{n}.jpg" for n in range(20))
    >>> splits = {"train": np.arange(18), "test": np.array([18, 19])}
    >>> pairs = Pairs("small", names, names, np.arange(20), splits)
    >>> parts = paper_protocol(pairs, reference_share=0.5)
    >>> len(parts.test.images), len(parts.validation.images), len(parts.references.images)
    (2, 2, 9)
    """
    if not 0 < reference_share <= 1:
        raise NNNormError(
            f"reference_share must be above 0 and at most 1, such as 0.2; got {reference_share}"
        )
    tested, trained = pairs.split(test), pairs.split(train)
    order = np.random.default_rng(seed).permutation(trained)
    held, rest = order[: len(tested)], order[len(tested) :]
    n_references = min(max(1, round(reference_share * len(trained))), len(rest))
    if len(held) < len(tested) or n_references == 0:
        raise NNNormError(
            f"{pairs.name} has {len(trained):,} train images, too few to hold out as many for "
            f"tuning as the {len(tested):,} of test and have references left"
        )
    return Protocol(
        _part(pairs, tested, captions_per_image),
        _part(pairs, np.sort(held), captions_per_image),
        _part(pairs, np.sort(rest[:n_references]), None),
    )


def _part(pairs: Pairs, images: IntArray, at_most: int | None) -> Part:
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
