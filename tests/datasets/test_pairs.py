import json

import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import Pairs, load_pairs, save_pairs


@pytest.fixture
def pairs():
    """Four images; the captions do not stand in the order of the images."""
    return Pairs(
        "four",
        ("a.jpg", "b.jpg", "c.jpg", "d.jpg"),
        ("d1", "a1", "b1", "a2", "b2", "b3"),
        np.array([3, 0, 1, 0, 1, 1]),
        {"train": [1, 0], "test": [3]},
    )


def test_captions_come_in_the_order_of_the_images_asked_for(pairs):
    assert [pairs.captions[row] for row in pairs.captions_of([1, 3])] == ["b1", "b2", "b3", "d1"]
    assert [pairs.captions[row] for row in pairs.captions_of([1, 0], at_most=2)] == [
        "b1", "b2", "a1", "a2",
    ]  # fmt: skip
    assert pairs.captions_of([2]).tolist() == []


def test_splits_are_sorted_and_an_unknown_one_is_named(pairs):
    assert pairs.split("train").tolist() == [0, 1]
    with pytest.raises(NNNormError, match="four has no split 'val'; it has: train, test"):
        pairs.split("val")


def test_images_left_out_take_their_captions_along_and_all_are_numbered_anew(pairs):
    left = pairs.without_images([0])
    assert left.images == ("b.jpg", "c.jpg", "d.jpg")
    assert left.captions == ("d1", "b1", "b2", "b3")
    assert [left.images[i] for i in left.image_of] == ["d.jpg", "b.jpg", "b.jpg", "b.jpg"]
    assert {split: [left.images[i] for i in rows] for split, rows in left.splits.items()} == {
        "train": ["b.jpg"],
        "test": ["d.jpg"],
    }


def test_what_is_saved_comes_back_and_the_lists_go_line_by_line(pairs, tmp_path):
    about, images, captions, truth = save_pairs(pairs, tmp_path)
    assert np.load(truth).tolist() == pairs.image_of.tolist()
    loaded = load_pairs(about)
    assert (loaded.name, loaded.images, loaded.captions) == ("four", pairs.images, pairs.captions)
    np.testing.assert_array_equal(loaded.image_of, pairs.image_of)
    np.testing.assert_array_equal(loaded.splits["train"], [0, 1])
    assert images.read_text().splitlines() == list(pairs.images)
    assert captions.read_text().splitlines() == list(pairs.captions)


def test_where_one_file_can_t_be_written_none_is(pairs, tmp_path):
    (tmp_path / "four-captions.txt").mkdir()
    with pytest.raises(NNNormError, match="it is a folder"):
        save_pairs(pairs, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["four-captions.txt"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": ()}, "must have images and captions; got 0 and 6"),
        ({"image_of": np.array([0])}, "must name one image per caption; got 1 for 6 captions"),
        ({"image_of": np.array([0, 1, 2, 3, 4, 0])}, "names image 4, but there are 4 images"),
        ({"splits": {"test": [-1]}}, "names image -1, but there are 4 images"),
        ({"splits": {"train": [0, 1], "test": [1]}}, "b.jpg is in two splits"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(pairs, change, words):
    fields = ("name", "images", "captions", "image_of", "splits")
    with pytest.raises(NNNormError, match=words):
        Pairs(**{name: getattr(pairs, name) for name in fields} | change)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "can't be read as JSON"),
        (json.dumps({"format": "nnnorm.pairs/1", "name": "x"}), "is damaged"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused(tmp_path, text, words):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(NNNormError, match=words):
        load_pairs(tmp_path / "x.json")
