import numpy as np
import pytest

from nnnorm import NNN
from nnnorm.reproduce.runtime import time_exact, time_index


@pytest.fixture
def sides(rng):
    gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(500, 8))
    return gallery.astype(np.float32), references.astype(np.float32)


def fit(gallery, references):
    return NNN(8, 0.5).fit(gallery, references, duplicates="keep")


def test_the_exact_bias_is_that_of_nnn(sides):
    timed = time_exact(*sides, reference_k=8, alpha=0.5)
    np.testing.assert_allclose(timed.bias.values, fit(*sides).values, rtol=1e-5)
    assert timed.seconds > 0


def test_an_index_that_searches_all_its_lists_gives_the_same(sides):
    timed = time_index(*sides, reference_k=8, alpha=0.5, quality=10_000)
    np.testing.assert_allclose(timed.bias.values, fit(*sides).values, rtol=1e-5)
    assert timed.bias.weight == 0.5


def test_items_whose_lists_are_too_short_for_k_are_exact(sides):
    """What Faiss pads does not count; one list of about 90 never holds 100 of 500 references."""
    timed = time_index(*sides, reference_k=100, alpha=0.5, quality=1)
    exact = NNN(100, 0.5).fit(*sides, duplicates="keep")
    np.testing.assert_allclose(timed.bias.values, exact.values, rtol=1e-5)
    assert timed.bias.params["solver"] == "faiss-ivf"
    assert timed.seconds > 0
