"""Small files of the format of Karpathy's: `dataset_flickr30k.json` and `dataset_coco.json`."""

import json

import pytest

from nnnorm import NNNormError
from nnnorm.datasets import read_karpathy


def picture(number, split, n_sentences=5, **more):
    sentences = [
        {
            "tokens": ["photo", str(number)],
            "raw": f" Photo {number},\n sentence {place}. ",
            "imgid": number,
            "sentid": 5 * number + place,
        }
        for place in range(n_sentences)
    ]
    return {
        "sentids": [sentence["sentid"] for sentence in sentences],
        "imgid": number,
        "sentences": sentences,
        "split": split,
        "filename": f"{number}.jpg",
        **more,
    }


@pytest.fixture
def write(tmp_path):
    def save(content, name="dataset_flickr30k.json"):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return save


def test_flickr30k_gives_images_captions_pairs_and_splits(write):
    splits = ["train", "test", "val", "train"]
    path = write(
        {"dataset": "flickr30k", "images": [picture(n, split) for n, split in enumerate(splits)]}
    )
    pairs = read_karpathy(path, "photos")
    assert pairs.name == "flickr30k"
    assert pairs.images == ("photos/0.jpg", "photos/1.jpg", "photos/2.jpg", "photos/3.jpg")
    assert len(pairs.captions) == 20
    assert pairs.captions[7] == "Photo 1, sentence 2."
    assert pairs.image_of.tolist() == [n // 5 for n in range(20)]
    assert {split: rows.tolist() for split, rows in pairs.splits.items()} == {
        "train": [0, 3],
        "val": [2],
        "test": [1],
    }


def test_coco_lies_in_two_folders_and_its_restval_is_for_training(write):
    pictures = [
        picture(0, "test", filepath="val2014", cocoid=391895),
        picture(1, "restval", 6, filepath="val2014", cocoid=60623),
        picture(2, "train", 7, filepath="train2014", cocoid=57870),
    ]
    path = write({"dataset": "coco", "images": pictures}, "dataset_coco.json")
    pairs = read_karpathy(path, "coco")
    assert pairs.images == ("coco/val2014/0.jpg", "coco/val2014/1.jpg", "coco/train2014/2.jpg")
    assert pairs.split("train").tolist() == [1, 2]
    assert len(pairs.captions_of([1])) == 6
    apart = read_karpathy(path, "coco", restval=False)
    assert apart.split("train").tolist() == [2]
    assert len(apart.images) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "has no list of images; expected one of Karpathy's split files"),
        ({"images": {}}, "has no list of images"),
        (
            {"images": [{"filename": "0.jpg", "sentences": []}]},
            "image 0 must have .* \\('split'\\)",
        ),
        ({"images": ["0.jpg"]}, "image 0 must have filename, split and sentences"),
        ({"images": [picture(0, "dev")]}, "image 0 \\(0.jpg\\) is in the split 'dev'"),
        ({"images": []}, "must have images and captions; got 0 and 0"),
    ],
)
def test_another_kind_of_json_is_refused_with_what_was_expected(write, content, words):
    with pytest.raises(NNNormError, match=words):
        read_karpathy(write(content))


def test_a_file_cut_short_is_refused(tmp_path):
    (tmp_path / "dataset_coco.json").write_text('{"images": [{"split": "tr')
    with pytest.raises(NNNormError, match="can't be read as JSON"):
        read_karpathy(tmp_path / "dataset_coco.json")
