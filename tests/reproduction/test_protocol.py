import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import Pairs
from nnnorm.evaluation import open_truth
from reproduction.protocol import split_pairs


def make_pairs(n_train=100, n_test=10, per_image=5, name="small"):
    n_images = n_train + n_test
    return Pairs(
        name,
        tuple(f"{n}.jpg" for n in range(n_images)),
        tuple(f"{n}" for n in range(per_image * n_images)),
        np.repeat(np.arange(n_images), per_image),
        {"train": np.arange(n_train), "test": np.arange(n_train, n_images)},
    )


def test_the_paper_s_sizes_come_out_for_both_data_sets():
    flickr = split_pairs(make_pairs(29_000, 1_000))
    assert len(flickr.test.images) == len(flickr.validation.images) == 1_000
    assert len(flickr.test.captions) == len(flickr.validation.captions) == 5_000
    assert len(flickr.references.images) == 5_800
    coco = split_pairs(make_pairs(113_287, 5_000, per_image=6))
    assert len(coco.test.captions) == len(coco.validation.captions) == 25_000
    assert len(coco.references.images) == 22_657
    assert len(coco.references.captions) == 6 * 22_657


def test_no_image_is_in_two_parts_and_all_but_test_come_from_train():
    pairs = make_pairs()
    parts = split_pairs(pairs)
    together = np.concatenate([parts.validation.images, parts.references.images])
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, pairs.split("train")).all()
    np.testing.assert_array_equal(parts.test.images, pairs.split("test"))


def test_smaller_shares_lie_inside_larger_ones_and_the_tuning_images_stay():
    pairs = make_pairs()
    parts = {share: split_pairs(pairs, share=share) for share in (0.1, 0.2, 0.5, 1.0)}
    assert [len(part.references.images) for part in parts.values()] == [10, 20, 50, 90]
    for small, large in ((0.1, 0.2), (0.2, 0.5), (0.5, 1.0)):
        assert np.isin(parts[small].references.images, parts[large].references.images).all()
        np.testing.assert_array_equal(
            parts[small].validation.images, parts[large].validation.images
        )


def test_the_seed_decides():
    pairs = make_pairs()
    first, again, other = (split_pairs(pairs, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.references.images, again.references.images)
    assert not np.array_equal(first.references.images, other.references.images)


def test_the_truth_of_both_directions_says_the_same():
    part = split_pairs(make_pairs()).test
    by_caption = open_truth(part.truth("image"), n_queries=50, n_gallery=10)
    by_image = open_truth(part.truth("text"), n_queries=10, n_gallery=50)
    assert by_caption.counts.tolist() == [1] * 50
    assert by_image.counts.tolist() == [5] * 10
    assert by_image.items[by_image.queries == 3].tolist() == [15, 16, 17, 18, 19]
    assert by_caption.items[15:20].tolist() == [3] * 5


def test_too_few_train_images_are_refused():
    with pytest.raises(NNNormError, match="has 10 train images, too few to hold out as many"):
        split_pairs(make_pairs(10, 10))


def test_a_test_image_without_captions_is_refused():
    pairs = make_pairs(20, 2)
    bare = Pairs("bare", pairs.images, pairs.captions[:-5], pairs.image_of[:-5], dict(pairs.splits))
    with pytest.raises(NNNormError, match=r"1 test or tuning images have no caption.* 21.jpg"):
        split_pairs(bare)
