import numpy as np
import pytest

from nnnorm import load_shapes
from nnnorm.datasets import read_scene
from nnnorm.evaluation import Task
from reproduction.material import MissingData
from reproduction.paper import find_tables, load_paper
from reproduction.run import Runner, run_table
from reproduction.synthetic import open_data
from tests.conftest import REAL_DATA


@pytest.fixture(scope="module")
def shapes():
    return open_data("shapes")[1]


def test_shapes_have_tasks_and_banks_in_both_directions(shapes):
    data = load_shapes()
    queries, gallery, truth = shapes.task("image", "test")
    assert (len(queries), len(gallery)) == (5000, 1000)
    np.testing.assert_array_equal(truth, data.truth)
    queries, gallery, pairs = shapes.task("text", "validation")
    assert (len(queries), len(gallery)) == (1000, 5000)
    np.testing.assert_array_equal(pairs[:, 0], data.validation_truth)
    assert len(shapes.references("own", "texts", 1.0)) == 20_000
    assert len(shapes.references("own", "images", 0.1)) == 400
    assert len(shapes.references("other", "texts", 0.2)) == 1000


def test_smaller_shares_are_pictures_with_all_their_captions(shapes):
    images, captions = (shapes.references("own", side, 0.2) for side in ("images", "texts"))
    data = load_shapes()
    first = np.flatnonzero((data.gallery_references == np.asarray(images)[0]).all(axis=1))[0]
    np.testing.assert_array_equal(
        np.asarray(captions)[:5], data.references[5 * first : 5 * first + 5]
    )


def test_missing_inputs_of_other_data_are_reported(shapes):
    with pytest.raises(MissingData, match="the other bank of `shapes` contains no pictures"):
        shapes.references("other", "images", 1.0)


@pytest.mark.slow
def test_the_groups_of_shapes_are_what_their_labels_say(shapes):
    queries, gallery, sizes, labels, asked, difference, shown = shapes.groups()
    assert (len(shown.queries), len(shown.items)) == (12, 120)
    assert (len(queries), len(gallery)) == (12, 120)
    assert difference == ("big", "small")
    assert [labels.count(label) for label in asked] == [10] * 12
    data = load_shapes()
    for row, (size, label) in enumerate(zip(sizes, labels, strict=True)):
        item = np.flatnonzero((data.gallery == gallery[row]).all(axis=1))[0]
        things = read_scene(data.scenes[item])[1]
        assert [thing.size for thing in things if thing.shape == label] == [size]


def first(rows, n):
    return rows.subset(np.arange(min(n, len(rows))))


class Fewer:
    """Data with the first 200 images and their captions, and with short banks."""

    def __init__(self, whole):
        self._whole = whole

    def __getattr__(self, name):
        return getattr(self._whole, name)

    def task(self, direction, part):
        queries, gallery, truth = self._whole.task(direction, part)
        n_queries, n_gallery = (1000, 200) if direction == "image" else (200, 1000)
        return Task(first(queries, n_queries), first(gallery, n_gallery), truth[:1000])

    def references(self, *about):
        return first(self._whole.references(*about), 2000)


@pytest.mark.slow
def test_every_table_of_the_paper_is_produced_on_the_shapes_alone(shapes):
    runner = Runner(lambda *_: Fewer(shapes))
    for table in load_paper().tables:
        cells = run_table(runner, table, data="shapes")
        assert len({str(o.experiment) for o in cells}) == len(cells)
        for cell in cells:
            foreign = cell.experiment.bank == "other" and cell.experiment.direction == "text"
            assert (cell.figure is None) == foreign, (table.name, cell.missing)


@pytest.mark.slow
def test_flickr8k_gives_the_figures_that_are_known_of_it():
    folder = REAL_DATA / "flickr8k"
    if not folder.is_dir():
        pytest.skip(f"the real embeddings are not here ({folder})")
    name, flickr8k = open_data(f"flickr8k={folder}")
    runner = Runner(lambda *_: flickr8k)
    (full,) = find_tables(["full-flickr30k-image"])
    values = [o.figure.value for o in run_table(runner, full, data=name)]
    np.testing.assert_allclose(
        values, [20.54, 46.40, 59.56, 21.60, 48.62, 62.08, 20.88, 47.48, 60.72], atol=0.05
    )
    (settings,) = find_tables(["settings-image"])
    assert [o.figure.value for o in run_table(runner, settings, data=name)] == [
        (0.625, 256),
        (0.5, 2),
    ]
