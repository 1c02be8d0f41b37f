"""Lists of files and texts, from folders, list files and tables."""

import pytest

from nnnorm import NNNormError
from nnnorm.encoders.inputs import list_files, list_texts


def test_a_folder_gives_its_images_in_order_subfolders_too(tmp_path):
    for name in ("b.JPG", "a.png", "notes.txt", "sub/c.jpeg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [path.relative_to(tmp_path).as_posix() for path in list_files(tmp_path)]
    assert found == ["a.png", "b.JPG", "sub/c.jpeg"]


def test_a_folder_of_sounds(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "a.wav").write_bytes(b"")
    assert [path.name for path in list_files(tmp_path, "audio")] == ["a.wav"]


def test_a_single_image_is_a_list_of_one(tmp_path):
    assert list_files(tmp_path / "a.png") == [tmp_path / "a.png"]


def test_paths_in_a_list_are_meant_from_where_the_list_lies(tmp_path):
    (tmp_path / "list.txt").write_text("pictures/a.png\n/elsewhere/b.png\n")
    found = list_files(tmp_path / "list.txt")
    assert [str(path) for path in found] == [str(tmp_path / "pictures/a.png"), "/elsewhere/b.png"]


@pytest.mark.parametrize(("suffix", "comma"), [("csv", ","), ("tsv", "\t")])
def test_a_column_of_a_table(tmp_path, suffix, comma):
    path = tmp_path / f"table.{suffix}"
    path.write_text(f'file{comma}caption\na.png{comma}"two\nlines"\nb.png{comma}ünï\n')
    assert list_texts(path, "caption") == ["two\nlines", "ünï"]
    assert list_files(path, "images", "file") == [tmp_path / "a.png", tmp_path / "b.png"]


def test_a_table_of_one_column_needs_no_name(tmp_path):
    (tmp_path / "table.csv").write_text("\ufeffcaption\na dog\n", encoding="utf-8")
    assert list_texts(tmp_path / "table.csv") == ["a dog"]


def test_lines_of_windows_and_a_missing_last_newline(tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"a dog\r\na cat")
    assert list_texts(tmp_path / "texts.txt") == ["a dog", "a cat"]


@pytest.mark.parametrize(
    ("name", "content", "column", "words"),
    [
        ("t.csv", "a,b\n1,2\n", None, "say which column; it has a, b"),
        ("t.csv", "a,b\n1,2\n", "c", "there is no column 'c'; it has a, b"),
        ("t.csv", "a,b\n1,2\n3\n", "b", r"entry 2 is empty \(1 such\)"),
        ("t.csv", "", "b", "it has none"),
        ("t.csv", "a\n", "a", "t.csv is empty; expected at least one"),
        ("t.csv", "a,b\n1,2\n3,4,5\n", "b", "row 2 has more cells than the header's 2; put a text"),
        ("t.txt", "a\n\nb\n\n", None, r"entry 2 is empty \(2 such\)"),
        ("t.txt", "", None, "t.txt is empty; expected at least one"),
        ("t.txt", "a\n", "a", "is no table, so it has no column 'a'"),
    ],
)
def test_what_cannot_be_read_as_a_list_is_said(tmp_path, name, content, column, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(NNNormError, match=words):
        list_texts(tmp_path / name, column)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(NNNormError, match="can't be read as UTF-8 text"):
        list_texts(tmp_path / "t.txt")


def test_a_missing_file_and_a_folder_without_images_are_refused(tmp_path):
    with pytest.raises(NNNormError, match="texts: there is no file or folder"):
        list_texts(tmp_path / "none.txt")
    with pytest.raises(NNNormError, match="is a folder; expected a file with a text per line"):
        list_texts(tmp_path)
    with pytest.raises(NNNormError, match=r"images: there is no file or folder"):
        list_files(tmp_path / "none")
    with pytest.raises(NNNormError, match=r"has no files of \.jpg"):
        list_files(tmp_path)
