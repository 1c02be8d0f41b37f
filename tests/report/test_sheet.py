"""Contact sheets: pictures with frames, captions where there are none, text in a small font."""

import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.io import write_png
from nnnorm.report.sheet import (
    BLUE,
    GREEN,
    HAIRLINE,
    INK,
    ORANGE,
    Hits,
    Row,
    draw_hits,
    draw_sheet,
    draw_text,
    frame_right,
    read_tile,
)

PICTURE = np.full((48, 48, 3), 200, dtype=np.uint8)
HITS = [Hits("a red star", [7, 3], [3, 7], right=[3])]


def count(sheet, colour):
    return int((sheet == colour).all(axis=2).sum())


def test_a_sheet_frames_the_right_picture_and_gives_the_others_an_edge():
    sheet = draw_sheet([Row("a heading, 12"), Row("now", [PICTURE, PICTURE], [None, GREEN])])
    assert count(sheet, GREEN) == 56 * 56 - 48 * 48
    assert count(sheet, HAIRLINE) == 50 * 50 - 48 * 48


def test_text_is_legible_ink_on_paper():
    assert set(np.unique(draw_text("abc"))) == {34, 255}
    assert draw_text("abc", scale=1).shape == (9, 18, 3)
    with pytest.raises(NNNormError, match="text is empty"):
        draw_text("")
    with pytest.raises(NNNormError, match="at least one row"):
        draw_sheet([])


def test_an_accent_is_left_out_and_its_letter_stays():
    np.testing.assert_array_equal(draw_text("crème brûlée"), draw_text("creme brulee"))
    assert draw_text("名前").shape[1] == 2 * 12  # letters that the font lacks are blanks


@pytest.mark.parametrize("mark", "_'()/=+?!#")
def test_marks_of_file_names_and_captions_are_in_the_font(mark):
    assert count(draw_text(mark), INK) > 0


def test_hits_have_a_row_before_and_a_row_after():
    both = draw_hits(HITS, lambda item: PICTURE, frame_right, "green: right")
    only = [HITS[0]._replace(after=None)]
    one = draw_hits(only, lambda item: PICTURE, frame_right, "green: right")
    assert count(both, GREEN) == 2 * count(one, GREEN) == 2 * (56 * 56 - 48 * 48)
    assert len(both) - len(one) == 56 + 10


def test_captions_take_the_place_of_pictures_in_the_colours_of_frames():
    def colour(hits, item):
        return {3: BLUE, 7: ORANGE}[item]

    sheet = draw_hits(HITS, lambda item: f"picture {item}", colour, "")
    assert count(sheet, BLUE) > 0
    assert count(sheet, ORANGE) > 0
    long = draw_hits(HITS, lambda item: 300 * "long ", colour, "")
    assert long.shape[1] < 1400


def test_a_query_without_words_or_hits_is_drawn_all_the_same():
    assert draw_hits([Hits("", [])], lambda item: "", frame_right, "").ndim == 3
    assert draw_hits([Hits("", [1])], lambda item: "", frame_right, "").ndim == 3


@pytest.mark.parametrize("shape", [(40, 20), (20, 40), (400, 300), (7, 7)])
def test_a_tile_is_a_whole_picture_in_a_square(tmp_path, shape):
    pytest.importorskip("PIL")
    write_png(tmp_path / "p.png", np.full((*shape, 3), 50, dtype=np.uint8))
    tile = read_tile(tmp_path / "p.png", 96)
    assert tile.shape == (96, 96, 3)
    share = min(shape) / max(shape)
    assert count(tile, (50, 50, 50)) == pytest.approx(96 * 96 * share, rel=0.02)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_a_broken_picture_is_refused_in_one_sentence(tmp_path, content):
    pytest.importorskip("PIL")
    (tmp_path / "p.png").write_bytes(content)
    with pytest.raises(NNNormError, match=r"the picture .*p.png can't be read \(.*in their order"):
        read_tile(tmp_path / "p.png")
