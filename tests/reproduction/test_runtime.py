import numpy as np
import pytest

from nnnorm import NNN
from reproduction.runtime import build_ivf, ivf_means, time_exact, time_index


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


def test_the_bias_by_index_is_nearly_that_of_nnn(sides):
    timed = time_index(*sides, reference_k=8, alpha=0.5)
    assert timed.bias.weight == 0.5
    assert timed.bias.params["solver"] == "faiss-ivf"
    assert np.corrcoef(timed.bias.values, fit(*sides).values)[0, 1] > 0.9


def test_an_index_that_searches_all_its_lists_gives_the_exact_means(sides):
    gallery, references = sides
    means = ivf_means(*sides, 8, index=build_ivf(references), n_probe=10_000)
    expected = np.sort(gallery @ references.T, axis=1)[:, -8:].mean(axis=1)
    np.testing.assert_allclose(means, expected, rtol=1e-5)


def test_lists_with_fewer_than_k_references_are_not_padded(sides):
    """100 is more than four lists hold: those items are computed from all scores."""
    gallery, references = sides
    means = ivf_means(*sides, 100, index=build_ivf(references), n_probe=4)
    expected = np.sort(gallery @ references.T, axis=1)[:, -100:].mean(axis=1)
    np.testing.assert_allclose(means, expected, rtol=1e-5)
