import json

import pytest

from nnnorm import NNNormError
from nnnorm.datasets import read_coco


@pytest.fixture
def write(tmp_path):
    def save(split, ids, annotations):
        path = tmp_path / f"captions_{split}.json"
        images = [
            {"license": 5, "file_name": f"{n:012d}.jpg", "height": 427, "width": 640, "id": n}
            for n in ids
        ]
        listed = [
            {"image_id": image, "id": number, "caption": caption}
            for number, (image, caption) in enumerate(annotations)
        ]
        path.write_text(json.dumps({"info": {}, "images": images, "annotations": listed}))
        return path

    return save


def test_each_file_is_a_split_and_captions_find_their_image_by_its_id(write, tmp_path):
    first = write("train2017", [391895, 522418], [(522418, "A woman cutting a cake.\n")])
    second = write("val2017", [179765], [(179765, "A motorcycle."), (179765, "A  black Honda.")])
    (tmp_path / "val2017").mkdir()
    pairs = read_coco([first, second], tmp_path)
    assert pairs.images[1] == str(tmp_path / "000000522418.jpg")
    assert pairs.images[2] == str(tmp_path / "val2017" / "000000179765.jpg")
    assert pairs.captions == ("A woman cutting a cake.", "A motorcycle.", "A black Honda.")
    assert pairs.image_of.tolist() == [1, 2, 2]
    assert pairs.split("train2017").tolist() == [0, 1]
    assert pairs.split("val2017").tolist() == [2]


def test_a_caption_of_an_unknown_image_is_refused(write):
    path = write("val2017", [1], [(1, "a"), (2, "b"), (3, "c")])
    with pytest.raises(NNNormError, match=r"2 captions are of images .* the first of image 2"):
        read_coco([path])


def test_instances_instead_of_captions_are_refused(write, tmp_path):
    path = tmp_path / "instances_val2017.json"
    content = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [{"image_id": 1}]}
    path.write_text(json.dumps(content))
    with pytest.raises(NNNormError, match=r"missing: 'caption'.*expected a caption file of COCO"):
        read_coco([path])


def test_no_file_and_the_same_file_twice_are_refused(write):
    path = write("val2017", [1], [(1, "a")])
    with pytest.raises(NNNormError, match="no file was given"):
        read_coco([])
    with pytest.raises(NNNormError, match="give each split once"):
        read_coco([path, path])
