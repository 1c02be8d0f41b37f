"""Small files in the formats of Karpathy and COCO, and plain tables."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import read_coco, read_karpathy, read_table

# --- Karpathy ---


def picture(number, split, n_sentences=5, **more):
    raw = [f" Photo {number},\n sentence {place}. " for place in range(n_sentences)]
    sentences = [{"tokens": ["photo", str(number)], "raw": text, "imgid": number} for text in raw]
    return {"sentences": sentences, "split": split, "filename": f"{number}.jpg", **more}


@pytest.fixture
def write_karpathy(tmp_path):
    def save(content, name="dataset_flickr30k.json"):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return save


def test_flickr30k_gives_images_captions_pairs_and_splits(write_karpathy):
    splits = ["train", "test", "val", "train"]
    path = write_karpathy(
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


def test_coco_lies_in_two_folders_and_its_restval_is_for_training(write_karpathy):
    pictures = [
        picture(0, "test", filepath="val2014", cocoid=391895),
        picture(1, "restval", 6, filepath="val2014", cocoid=60623),
        picture(2, "train", 7, filepath="train2014", cocoid=57870),
    ]
    path = write_karpathy({"dataset": "coco", "images": pictures}, "dataset_coco.json")
    pairs = read_karpathy(path, "coco")
    assert pairs.images == ("coco/val2014/0.jpg", "coco/val2014/1.jpg", "coco/train2014/2.jpg")
    assert pairs.split("train").tolist() == [1, 2]
    assert len(pairs.captions_of([1])) == 6


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "has no list of images; expected a Karpathy split"),
        (
            {"images": [{"filename": "0.jpg", "sentences": []}]},
            "image 0 must have .*missing: 'split'",
        ),
        ({"images": ["0.jpg"]}, "image 0 must have filename, split and sentences"),
        ({"images": [picture(0, "dev")]}, "image 0 \\(0.jpg\\) is in the split 'dev'"),
    ],
)
def test_another_kind_of_json_is_rejected_with_what_was_expected(write_karpathy, content, words):
    with pytest.raises(NNNormError, match=words):
        read_karpathy(write_karpathy(content))


# --- COCO ---


@pytest.fixture
def write_coco(tmp_path):
    def save(split, ids, annotations):
        path = tmp_path / f"captions_{split}.json"
        images = [{"license": 5, "file_name": f"{n:012d}.jpg", "id": n} for n in ids]
        listed = [{"image_id": image, "caption": caption} for image, caption in annotations]
        path.write_text(json.dumps({"info": {}, "images": images, "annotations": listed}))
        return path

    return save


def test_each_file_is_a_split_and_captions_find_their_image_by_its_id(write_coco, tmp_path):
    first = write_coco("train2017", [391895, 522418], [(522418, "A woman cutting a cake.\n")])
    second = write_coco(
        "val2017", [179765], [(179765, "A motorcycle."), (179765, "A  black Honda.")]
    )
    (tmp_path / "val2017").mkdir()
    pairs = read_coco([first, second], tmp_path)
    assert pairs.images[1] == str(tmp_path / "000000522418.jpg")
    assert pairs.images[2] == str(tmp_path / "val2017" / "000000179765.jpg")
    assert pairs.captions == ("A woman cutting a cake.", "A motorcycle.", "A black Honda.")
    assert pairs.image_of.tolist() == [1, 2, 2]
    assert pairs.split("train2017").tolist() == [0, 1]
    assert pairs.split("val2017").tolist() == [2]


def test_a_caption_of_an_unknown_image_is_rejected(write_coco):
    path = write_coco("val2017", [1], [(1, "a"), (2, "b"), (3, "c")])
    with pytest.raises(NNNormError, match=r"2 captions belong to images .* such as image 2"):
        read_coco([path])


def test_instances_instead_of_captions_are_rejected(write_coco, tmp_path):
    path = tmp_path / "instances_val2017.json"
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"image_id": 1}]}
    path.write_text(json.dumps(content))
    with pytest.raises(NNNormError, match=r"missing: 'caption'.*expected COCO captions"):
        read_coco([path])


def test_the_same_file_twice_is_rejected(write_coco):
    path = write_coco("val2017", [1], [(1, "a")])
    with pytest.raises(NNNormError, match="pass each split once"):
        read_coco([path, path])


# --- tables ---


ROWS = [
    ("b.jpg", 'a "grey" cat, asleep', "train"),
    ("a.jpg", "a dog", "test"),
    ("b.jpg", "cats", "train"),
]


def write_table(path):
    names = ("image", "caption", "split")
    rows = [dict(zip(names, row, strict=True)) for row in ROWS]
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        with open(path, "w", encoding="utf-8-sig", newline="") as file:
            comma = "," if path.suffix == ".csv" else "\t"
            writer = csv.DictWriter(file, ("image", "split", "caption"), delimiter=comma)
            writer.writeheader()
            writer.writerows(rows)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_of_one_image_are_its_captions(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    write_table(path)
    pairs = read_table(path, "photos")
    assert pairs.name == "mine"
    assert pairs.images == ("photos/b.jpg", "photos/a.jpg")
    assert pairs.captions == ('a "grey" cat, asleep', "a dog", "cats")
    assert pairs.image_of.tolist() == [0, 1, 0]
    assert {split: rows.tolist() for split, rows in pairs.splits.items()} == {
        "train": [0],
        "test": [1],
    }


def test_a_table_without_splits_has_none(tmp_path):
    (tmp_path / "x.csv").write_text("caption,image\na cat,1.jpg\n")
    assert read_table(tmp_path / "x.csv").splits == {}


def test_an_image_in_two_splits_is_rejected(tmp_path):
    (tmp_path / "x.csv").write_text("image,caption,split\n1.jpg,a,train\n1.jpg,b,test\n")
    with pytest.raises(NNNormError, match=r"1.jpg is in the splits 'train' and 'test'"):
        read_table(tmp_path / "x.csv")
