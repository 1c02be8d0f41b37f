import numpy as np
import pytest

from nnnorm import NNN
from nnnorm.reproduce.runtime import time_exact, time_index


@pytest.fixture
def sides(rng):
    gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(500, 8))
    return gallery.astype(np.float32), references.astype(np.float32)


def test_the_exact_bias_is_that_of_nnn(sides):
    timed = time_exact(*sides, reference_k=8, alpha=0.5)
    np.testing.assert_array_equal(timed.bias.values, NNN(8, 0.5).fit(*sides).values)
    assert timed.seconds > 0


def test_an_index_that_searches_all_its_lists_gives_the_same(sides):
    timed = time_index(*sides, reference_k=8, alpha=0.5, n_probe=10_000)
    np.testing.assert_allclose(timed.bias.values, NNN(8, 0.5).fit(*sides).values, rtol=1e-5)
    assert timed.bias.weight == 0.5


def test_fewer_lists_find_nearly_as_good_references(sides):
    exact = NNN(8, 0.5).fit(*sides).values
    rough = time_index(*sides, reference_k=8, alpha=0.5, n_probe=8).bias.values
    assert np.all(rough <= exact + 1e-5)
    assert np.corrcoef(rough, exact)[0, 1] > 0.9


def test_what_an_index_pads_does_not_count(sides):
    """One list of 22 holds far fewer than 100 references; the mean is over those there are."""
    rough = time_index(*sides, reference_k=100, alpha=0.5, n_probe=1).bias.values
    assert np.isfinite(rough).all()
    assert np.abs(rough).max() < 50
