import pytest
from PIL import Image

from nnnorm import NNNormError
from nnnorm.datasets.shapes import draw_scene
from nnnorm.encoders import check_images


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        drawn = draw_scene([number, 7, 0, 0, 100, 0, 0, 0, 60, 0], 24)
        Image.fromarray(drawn).save(tmp_path / f"good{number}.png")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.jpg").write_text("<!DOCTYPE html><title>404</title>")
    (tmp_path / "folder.jpg").mkdir()
    whole = (tmp_path / "good0.png").read_bytes()
    (tmp_path / "short.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def names(folder, *files):
    return [str(folder / file) for file in files]


def test_what_is_absent_empty_or_no_picture_is_listed_with_the_reason(folder):
    files = names(folder, "good0.png", "empty.jpg", "page.jpg", "nowhere.jpg", "folder.jpg")
    problems = {problem.row: problem.reason for problem in check_images(files, skip=True)}
    assert list(problems) == [1, 2, 3, 4]
    assert "empty.jpg can't be read (" in problems[1]
    assert "page.jpg can't be read (" in problems[2]
    assert "there is no such file" in problems[3]
    assert "it is a folder" in problems[4]


def test_a_picture_cut_short_is_found_by_decoding(folder):
    files = names(folder, "good0.png", "short.png")
    assert check_images(files) == []
    (problem,) = check_images(files, decode=True, skip=True)
    assert problem.row == 1
    assert "short.png can't be read (" in problem.reason


def test_nothing_is_skipped_unless_told_to(folder):
    files = names(folder, "good0.png", "nowhere.jpg", "empty.jpg")
    with pytest.raises(
        NNNormError, match=r"nowhere.jpg: there is no such file.*2 of 3 images can't be used"
    ):
        check_images(files)
    assert [problem.row for problem in check_images(files, skip=True)] == [1, 2]
    assert check_images(files[:1]) == []


def test_a_folder_without_any_of_the_pictures_is_the_wrong_one(tmp_path):
    files = names(tmp_path, *(f"{n}.jpg" for n in range(1000)))
    with pytest.raises(NNNormError, match="1,000 of 1,000 images can't be used"):
        check_images(files, skip=True)


def test_progress_reaches_the_end(folder):
    seen = []
    check_images(names(folder, "good0.png", "good1.png"), progress=lambda *s: seen.append(s))
    assert seen == [(1, 2), (2, 2)]
