"""Rows are normalized only on request, and norms that suggest cosine cause one warning."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnnorm
from nnnorm.embeddings import open_embeddings
from nnnorm.errors import NNNormWarning, quiet
from tests.io.matrices import VALUES, nonzero_rows, patient, refusal, small_blocks

# Normalizing: explicit, never silent


@patient
@given(nonzero_rows, st.integers(-90, 58), st.integers(16, 200))
def test_normalized_rows_have_unit_norm_at_any_scale(rows, exponent, n_bytes):
    rows = np.ldexp(rows, exponent)
    with small_blocks(n_bytes):
        opened = open_embeddings(rows, normalize=True)
    assert opened.normalized
    unit = np.asarray(opened).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(np.sign(unit), np.sign(rows))


def test_normalizing_an_opened_matrix_leaves_the_first_as_it_was():
    raw = open_embeddings(3 * VALUES)
    unit = open_embeddings(raw, normalize=True)
    assert unit.normalized
    assert not raw.normalized
    np.testing.assert_array_equal(raw, 3 * VALUES)
    np.testing.assert_array_equal(unit, open_embeddings(3 * VALUES, normalize=True))
    assert open_embeddings(unit, normalize=True) is unit
    assert open_embeddings(unit) is unit


def test_norm_range_gives_the_smallest_and_the_largest_norm():
    rows = np.array([[3.0, 4.0], [0.0, 0.5], [1.0, 0.0]])
    with small_blocks(8):
        assert open_embeddings(rows).norm_range == (0.5, 5.0)


# Norms that suggest cosine are warned of, once


def test_different_norms_are_warned_of(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[3.0, 4.0], [1.0, 0.0]]))
    with pytest.warns(NNNormWarning) as caught:
        open_embeddings(tmp_path / "a.npy", name="gallery")
    assert str(caught[0].message) == (
        f"rows of gallery ({tmp_path / 'a.npy'}) have norms of 1 to 5, so scores are raw inner "
        "products; for cosine, pass normalize=True (--normalize); to keep inner products, pass "
        "normalize=False (--no-normalize)"
    )
    assert caught[0].filename == __file__


@pytest.fixture
def no_warnings():
    """Fail on any warning, also on the one that the test settings ignore."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("normalize", [False, True])
def test_a_choice_about_norms_silences_the_warning(no_warnings, normalize):
    open_embeddings(3 * VALUES, normalize=normalize)


def test_rows_that_are_normalized_already_can_t_be_opened_raw():
    opened = open_embeddings(2 * np.eye(2), name="gallery", normalize=True)
    assert refusal(opened, normalize=False) == (
        "rows of gallery are already normalized, but normalize is False; leave out normalize, "
        "or open the original array or path again"
    )


@pytest.mark.parametrize("normalize", ["yes", 1, "False"])
def test_normalize_is_true_false_or_none(normalize):
    assert refusal(np.eye(2), normalize=normalize) == (
        f"normalize must be True, False or None; got {normalize!r}"
    )


@pytest.mark.parametrize("factor", [0.991, 1.009])
def test_norms_within_one_percent_are_not_warned_of(no_warnings, factor):
    open_embeddings(np.array([[2.0, 0.0], [0.0, 2.0 * factor]]))


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_norms_beyond_one_percent_are_warned_of(factor):
    with pytest.warns(NNNormWarning, match="^rows of embeddings have norms"):
        open_embeddings(np.array([[2.0, 0.0], [0.0, 2.0 * factor]]))


def test_what_was_opened_is_not_warned_of_again(no_warnings):
    opened = open_embeddings(VALUES, normalize=False)
    open_embeddings(open_embeddings(opened, name="gallery"), name="queries")
    opened.subset(np.arange(3))


@pytest.mark.parametrize("scale", [1e-15, 1e-12, 1e-6, 1e6, 1e12, 1e15, 1e18])
@pytest.mark.parametrize("normalize", [True, False])
def test_rows_of_any_scale_fit_as_rows_of_about_one(scale, normalize):
    rng = np.random.default_rng(0)
    gallery, references, queries = (rng.normal(size=(n, 16)) for n in (300, 500, 20))
    found = []
    for factor in (1.0, scale):
        rows = [(some * factor).astype(np.float32) for some in (gallery, references, queries)]
        with quiet():
            bias = nnnorm.NNN().fit(*rows[:2], normalize=normalize)
            hits = nnnorm.search(rows[2], rows[0], bias, k=10, normalize=normalize).indices
        values = bias.values.astype(np.float64) / (1 if normalize else factor**2)
        numbers = {name: bias.params[name] for name in ("alpha", "reference_k", "spread")}
        found.append((values, hits, numbers))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-4)
