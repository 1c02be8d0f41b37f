import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import read_table

ROWS = [
    ("b.jpg", 'a "grey" cat, asleep', "train"),
    ("a.jpg", "a dog", "test"),
    ("b.jpg", "cats", "train"),
]


def write(path):
    if path.suffix == ".parquet":
        columns = dict(zip(("image", "caption", "split"), zip(*ROWS, strict=True), strict=True))
        pa.parquet.write_table(pa.table({k: list(v) for k, v in columns.items()}), path)
    elif path.suffix == ".csv":
        lines = ["image,split,caption"]
        for image, caption, split in ROWS:
            quoted = caption.replace('"', '""')
            lines.append(f'{image},{split},"{quoted}"')
        path.write_text("\n".join(lines) + "\n\n", encoding="utf-8-sig")
    elif path.suffix == ".jsonl":
        names = ("image", "caption", "split")
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in ROWS]
        path.write_text("\n".join(lines))
    else:
        path.write_text("\n".join("\t".join(row) for row in [("image", "caption", "split"), *ROWS]))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_of_one_image_are_its_captions(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    write(path)
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


def test_an_image_in_two_splits_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("image,caption,split\n1.jpg,a,train\n1.jpg,b,test\n")
    with pytest.raises(NNNormError, match=r"1.jpg is in the splits 'train' and 'test'"):
        read_table(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", "file,caption\n1,a\n", "image is not there, it has: file, caption"),
        ("x.csv", "", "it has: none"),
        ("x.csv", "image,caption\n1.jpg,\n", "line 2 has nothing in the column caption"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(NNNormError, match=words):
        read_table(tmp_path / name)
