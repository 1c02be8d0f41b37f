"""Scenes are ten bytes; pictures are smooth, and the same at every size."""

import numpy as np
import pytest

from nnnorm.datasets.shapes import (
    BACKGROUNDS,
    COLORS,
    SHAPES,
    SIZES,
    describe_scene,
    draw_scene,
    read_scene,
)


def one_thing(shape, color="red", size="big", cell=4, background="white"):
    code = list(SHAPES).index(shape) * len(COLORS) + list(COLORS).index(color)
    scene = np.zeros(10, dtype=np.uint8)
    scene[0] = list(BACKGROUNDS).index(background)
    scene[1 + cell] = 1 + code * len(SIZES) + SIZES.index(size)
    return scene


def test_a_scene_is_read_as_it_was_written():
    for shape in SHAPES:
        for cell in (0, 8):
            background, (thing,) = read_scene(one_thing(shape, "pink", cell=cell))
            assert (background, thing.shape, thing.color, thing.size, thing.cell) == (
                ("white", shape, "pink", "big", cell)
            )


def test_a_scene_is_described_in_words():
    scene = one_thing("heart", "blue", "small", cell=2, background="sand")
    assert describe_scene(scene) == "small blue heart (top right), on sand"


@pytest.mark.slow
@pytest.mark.parametrize("resolution", [24, 48, 64, 97])
def test_a_picture_has_its_thing_in_its_cell_and_background_elsewhere(resolution):
    for cell in range(9):
        picture = draw_scene(one_thing("square", "blue", cell=cell), resolution)
        assert picture.shape == (resolution, resolution, 3)
        row, column = divmod(cell, 3)
        middle = [int((place + 0.5) * resolution / 3) for place in (row, column)]
        assert tuple(picture[middle[0], middle[1]]) == COLORS["blue"]
        outside = np.ones((resolution, resolution), dtype=bool)
        edges = [round(place * resolution / 3) for place in range(4)]
        outside[edges[row] : edges[row + 1], edges[column] : edges[column + 1]] = False
        assert (picture[outside] == BACKGROUNDS["white"]).all()


def test_every_shape_looks_different_and_big_is_bigger_than_small():
    drawn = {shape: draw_scene(one_thing(shape), 48).astype(int) for shape in SHAPES}
    names = list(drawn)
    for place, name in enumerate(names):
        for other in names[place + 1 :]:
            assert np.abs(drawn[name] - drawn[other]).sum() > 5000, (name, other)
        small = draw_scene(one_thing(name, size="small"), 48)
        body = [(p == COLORS["red"]).all(axis=2).sum() for p in (small, drawn[name])]
        assert 0 < body[0] < body[1]
