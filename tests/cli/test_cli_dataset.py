import json

import pytest
from PIL import Image

from nnnorm.datasets import load_pairs
from tests import tiny
from tests.command import assert_fails, run, run_json


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six pictures and a split file in Karpathy's format that names them."""
    monkeypatch.chdir(tmp_path)
    pictures = []
    for number, path in enumerate(tiny.draw_images(tmp_path / "photos", 6)):
        Image.open(path).save(tmp_path / "photos" / f"{number}.png")
        path.unlink()
        sentences = [{"raw": f"photo {number}, {place}"} for place in range(5)]
        split = "test" if number == 5 else "train"
        pictures.append({"filename": f"{number}.png", "split": split, "sentences": sentences})
    content = {"dataset": "flickr30k", "images": pictures}
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps(content))
    return tmp_path


KARPATHY = ["dataset", "karpathy", "dataset_flickr30k.json", "--images", "photos", "-o", "lists"]


def test_dataset_writes_pairs_and_lists_that_an_encoder_can_read(photos):
    printed = run_json(*KARPATHY)
    assert printed["splits"] == {"train": 5, "test": 1}
    assert (printed["n_images"], printed["n_captions"], printed["n_skipped"]) == (6, 30, 0)
    pairs = load_pairs("lists/flickr30k.json")
    paths = (photos / "lists/flickr30k-images.txt").read_text().splitlines()
    assert paths == [str(photos / "photos" / f"{n}.png") for n in range(6)]
    assert len(pairs.captions) == 30
    result = run(*KARPATHY)
    assert "--texts lists/flickr30k-captions.txt" in result.stdout


def test_a_split_file_that_names_files_that_are_not_there_is_refused(photos):
    (photos / "photos/2.png").unlink()
    (photos / "photos/3.png").write_text("<html>not found</html>")
    assert_fails(run(*KARPATHY), "2 of 6 images can't be used")
    assert not (photos / "lists").exists()


def test_pictures_are_skipped_when_told_to_and_listed(photos):
    (photos / "photos/2.png").unlink()
    short = (photos / "photos/5.png").read_bytes()
    (photos / "photos/0.png").write_bytes(short[: len(short) // 2])
    printed = run_json(*KARPATHY, "--skip-broken")
    assert (printed["n_images"], printed["n_skipped"]) == (4, 2)
    lines = (photos / "lists/flickr30k-skipped.txt").read_text().splitlines()
    assert [line.split("\t")[0].rsplit("/", 1)[1] for line in lines] == ["0.png", "2.png"]
    assert len(load_pairs("lists/flickr30k.json").captions) == 20
    (photos / "photos/0.png").write_bytes(short)
    assert "Note: 1 image is left out;" in run(*KARPATHY, "--skip-broken").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["coco", "dataset_flickr30k.json"], "missing: 'id'"),
        (["karpathy", "dataset_flickr30k.json", "x.json"], "karpathy takes one file; got 2"),
    ],
)
def test_files_of_another_kind_are_refused_and_nothing_is_written(photos, arguments, words):
    assert_fails(run("dataset", *arguments, "--images", "photos", "-o", "lists"), words)
    assert not (photos / "lists").exists()


def test_dataset_makes_the_folders_above_its_own_as_encode_does(photos):
    assert run(*KARPATHY[:-1], "new/and/deep").exit_code == 0
    assert (photos / "new/and/deep/flickr30k.json").is_file()
    (photos / "file").write_text("")
    assert_fails(run(*KARPATHY[:-1], "file"), "cannot make the folder file: it is a file")


def test_a_split_file_is_never_written_over_by_its_own_lists(photos):
    (photos / "dataset_flickr30k.json").rename(photos / "flickr30k.json")
    before = (photos / "flickr30k.json").read_bytes()
    result = run("dataset", "karpathy", "flickr30k.json", "--images", "photos", "-o", ".")
    assert_fails(result, "flickr30k.json is an input and would be overwritten")
    assert (photos / "flickr30k.json").read_bytes() == before
    assert sorted(path.name for path in photos.iterdir()) == ["flickr30k.json", "photos"]
