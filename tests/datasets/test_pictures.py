import struct
import zlib

import pytest
from PIL import Image

from nnnorm import NNNormError
from nnnorm.datasets import check_images, draw_scene


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
    assert problems[1].startswith("can't be read (")
    assert problems[2].startswith("can't be read (")
    assert (problems[3], problems[4]) == ("is not there", "is not a file")


def test_a_picture_cut_short_is_found_by_decoding(folder):
    files = names(folder, "good0.png", "short.png")
    assert check_images(files) == []
    (problem,) = check_images(files, decode=True, skip=True)
    assert problem.row == 1
    assert problem.reason.startswith("can't be read (")


def test_a_picture_of_absurd_size_is_refused(folder):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99))
    (folder / "bomb.png").write_bytes(bomb + chunk(b"IEND", b""))
    (problem,) = check_images(names(folder, "bomb.png", "good0.png"), skip=True)
    assert "exceeds limit" in problem.reason


def test_a_large_picture_that_an_encoder_takes_is_taken_here_too(folder, monkeypatch):
    Image.new("L", (40, 40)).save(folder / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow warns from here on
    assert check_images(names(folder, "large.png"), decode=True) == []


def test_nothing_is_skipped_unless_told_to(folder):
    files = names(folder, "good0.png", "nowhere.jpg", "empty.jpg")
    with pytest.raises(
        NNNormError, match=r"2 of 3 pictures can't be used: .*nowhere.jpg is not th"
    ):
        check_images(files)
    assert [problem.row for problem in check_images(files, skip=True)] == [1, 2]
    assert check_images(files[:1]) == []


def test_a_folder_without_any_of_the_pictures_is_the_wrong_one(tmp_path):
    files = names(tmp_path, *(f"{n}.jpg" for n in range(1000)))
    with pytest.raises(
        NNNormError, match=r"1,000 of 1,000 .*; …\. Is it the right folder\?"
    ) as error:
        check_images(files, skip=True)
    assert str(error.value).count("is not there") == 5


def test_progress_reaches_the_end(folder):
    seen = []
    check_images(names(folder, "good0.png", "good1.png"), progress=lambda *s: seen.append(s))
    assert seen == [(1, 2), (2, 2)]
