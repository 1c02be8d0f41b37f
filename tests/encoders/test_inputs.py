"""Lists of files and texts, from folders, list files and tables."""

import pytest

from nnnorm import NNNormError
from nnnorm.encoders import list_inputs


def test_a_folder_gives_its_images_in_order_subfolders_too(tmp_path):
    for name in ("b.JPG", "a.png", "notes.txt", "sub/c.jpeg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [path.relative_to(tmp_path).as_posix() for path in list_inputs(tmp_path)]
    assert found == ["a.png", "b.JPG", "sub/c.jpeg"]


def test_a_folder_of_sounds(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "a.wav").write_bytes(b"")
    assert [path.name for path in list_inputs(tmp_path, "audio")] == ["a.wav"]


def test_a_single_image_is_a_list_of_one(tmp_path):
    assert list_inputs(tmp_path / "a.png") == [tmp_path / "a.png"]


def test_paths_in_a_list_are_meant_from_where_the_list_lies(tmp_path):
    (tmp_path / "list.txt").write_text("pictures/a.png\n/elsewhere/b.png\n")
    found = list_inputs(tmp_path / "list.txt")
    assert [str(path) for path in found] == [str(tmp_path / "pictures/a.png"), "/elsewhere/b.png"]


def test_a_column_of_a_table_gives_texts_or_paths(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('file,caption\na.png,"a dog, running"\nb.png,ünï\n')
    assert list_inputs(path, "texts", "caption") == ["a dog, running", "ünï"]
    assert list_inputs(path, "images", "file") == [tmp_path / "a.png", tmp_path / "b.png"]


def test_texts_of_a_jsonl_file_are_its_column_and_not_its_json(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_text('{"id": 1, "caption": "a \\"grey\\" cat"}\n{"id": 2, "caption": "a dog"}\n')
    assert list_inputs(path, "texts", "caption") == ['a "grey" cat', "a dog"]
    with pytest.raises(NNNormError, match="name a column; it has: id, caption"):
        list_inputs(path, "texts")


def test_a_json_file_is_not_a_list_of_texts(tmp_path):
    (tmp_path / "captions.json").write_text('["a dog"]')
    with pytest.raises(NNNormError, match=r"captions.json is JSON; expected an entry per line"):
        list_inputs(tmp_path / "captions.json", "texts")


def test_a_text_file_has_no_columns(tmp_path):
    (tmp_path / "t.txt").write_text("a\n")
    with pytest.raises(NNNormError, match="isn't a table with a column 'a'; leave out"):
        list_inputs(tmp_path / "t.txt", "texts", "a")


def test_a_missing_file_and_a_folder_without_images_are_rejected(tmp_path):
    with pytest.raises(NNNormError, match="there is no file"):
        list_inputs(tmp_path / "none.txt", "texts")
    with pytest.raises(NNNormError, match="is a folder; expected a file"):
        list_inputs(tmp_path, "texts")
    with pytest.raises(NNNormError, match="there is no file or folder"):
        list_inputs(tmp_path / "none")
    with pytest.raises(NNNormError, match=r"has no images \(\.jpg"):
        list_inputs(tmp_path)
