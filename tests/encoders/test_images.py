"""Images are opened in RGB or rejected with a reason, and prepared for a model."""

import numpy as np
import pytest
from PIL import Image

from nnnorm import NNNormError
from nnnorm.datasets.shapes import draw_scene
from nnnorm.encoders import check_inputs, open_image
from nnnorm.encoders import inputs as module
from tests.attack.materials import png_of_size


def test_every_mode_of_pillow_comes_out_as_rgb(pictures):
    for path in pictures:
        opened = open_image(path)
        assert opened.mode == "RGB"
        assert opened.size == Image.open(path).size


def test_a_pillow_image_is_taken_as_it_is():
    assert open_image(Image.new("L", (3, 2), 7)).getpixel((0, 0)) == (7, 7, 7)


@pytest.mark.parametrize("size", [(20_000, 20_000), (13_380, 13_380), (2**31 - 1, 2)])
def test_a_decompression_bomb_is_rejected_by_its_header(tmp_path, size):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of_size(*size))
    for look in (open_image, lambda p: check_inputs([p])):
        with pytest.raises(NNNormError, match=r"too large \(.*pixels|pixels.*too large"):
            look(path)


def test_a_large_image_below_the_limit_is_opened_without_a_warning(monkeypatch, tmp_path):
    Image.new("L", (40, 40)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # Pillow warns from here on
    assert open_image(tmp_path / "large.png").size == (40, 40)
    opened = open_image(tmp_path / "large.png")
    monkeypatch.setattr(module, "MAX_PIXELS", 1500)
    with pytest.raises(NNNormError, match="40 x 40 pixels; at most 1,500"):
        open_image(opened)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_an_image_that_is_cut_short_is_rejected(tmp_path, suffix, rng):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(NNNormError, match=r"can't be read .*truncated"):
        open_image(path)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_more_than_8_bits_are_rejected_instead_of_clipped(tmp_path, mode):
    path = tmp_path / "deep.tiff"
    Image.new(mode, (4, 4), 300).save(path)
    with pytest.raises(NNNormError, match=rf"more than 8 bits per channel \(Pillow's mode {mode}"):
        open_image(path)
    with pytest.raises(NNNormError, match=r"more than 8 bits .*\(1 of 1 images can't be used"):
        check_inputs([path])


def test_a_missing_file_a_folder_and_another_kind_of_thing_are_rejected(tmp_path):
    with pytest.raises(NNNormError, match="there is no such file"):
        open_image(tmp_path / "none.png")
    with pytest.raises(NNNormError, match="it is a folder"):
        open_image(tmp_path)
    with pytest.raises(NNNormError, match="must be a path or a Pillow image; got int"):
        open_image(3)


# --- all of a list ---


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
    problems = {problem.row: problem.reason for problem in check_inputs(files, skip=True)}
    assert list(problems) == [1, 2, 3, 4]
    assert "empty.jpg can't be read (" in problems[1]
    assert "page.jpg can't be read (" in problems[2]
    assert "there is no such file" in problems[3]
    assert "it is a folder" in problems[4]


def test_a_picture_cut_short_is_found_by_decoding(folder):
    files = names(folder, "good0.png", "short.png")
    assert check_inputs(files) == []
    (problem,) = check_inputs(files, skip=True)
    assert problem.row == 1
    assert "short.png can't be read (" in problem.reason


def test_nothing_is_skipped_unless_told_to(folder):
    files = names(folder, "good0.png", "nowhere.jpg", "empty.jpg")
    with pytest.raises(
        NNNormError, match=r"nowhere.jpg: there is no such file.*2 of 3 images can't be used"
    ):
        check_inputs(files)
    assert [problem.row for problem in check_inputs(files, skip=True)] == [1, 2]
    assert check_inputs(files[:1]) == []
