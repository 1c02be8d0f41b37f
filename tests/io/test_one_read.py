"""One read finds norms, mean and fingerprint, and a fit reads little more."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm.embeddings import StoredMatrix, open_embeddings
from tests.io.matrices import VALUES, nonzero_rows, patient


@pytest.fixture
def reads(monkeypatch):
    """Rows read, by the name of the matrix: every value of a row comes from one of two places."""
    counts = Counter()
    slices, takes = StoredMatrix.rows, StoredMatrix.take

    def rows(self, start, stop):
        counts[self.name] += stop - start
        return slices(self, start, stop)

    def take(self, indices, **options):
        counts[self.name] += len(indices)
        return takes(self, indices, **options)

    monkeypatch.setattr(StoredMatrix, "rows", rows)
    monkeypatch.setattr(StoredMatrix, "take", take)
    return counts


def test_norms_and_fingerprint_come_from_the_read_that_opens(reads):
    opened = open_embeddings(VALUES.astype(np.float16), name="gallery")
    _ = opened.norm_range, opened.fingerprint
    unit = open_embeddings(opened, normalize=True, name="queries")
    _ = unit.norm_range, unit.fingerprint
    assert reads == {"gallery": 7}


@pytest.mark.parametrize("normalize", [False, True])
def test_the_mean_comes_from_the_read_that_opens(reads, normalize):
    opened = open_embeddings(VALUES, name="gallery", normalize=normalize)
    found = opened.mean()
    assert reads == {"gallery": 7}
    np.testing.assert_allclose(found, np.asarray(opened).mean(axis=0), rtol=1e-6, atol=1e-7)
    both = opened.joined(open_embeddings(3 * VALUES, normalize=False))
    np.testing.assert_allclose(both.mean(), np.asarray(both).mean(axis=0), rtol=1e-6, atol=1e-7)


def test_a_fingerprint_that_was_left_out_is_one_more_read_for_all_views(reads):
    opened = open_embeddings(VALUES, fingerprint=False)
    view = open_embeddings(opened, name="queries")
    assert view.fingerprint == opened.fingerprint
    assert reads == {"embeddings": 7, "queries": 7}


# Fingerprint: of the float32 values, and of nothing else


def test_a_fingerprint_stays_the_same_between_releases():
    """Stored with every bias, so that a change here would disown all saved ones."""
    opened = open_embeddings(np.arange(1, 7, dtype=np.float32).reshape(3, 2))
    assert opened.fingerprint == "c17e6a64db598031afaa7e18fbfd9107"


def test_a_normalized_fingerprint_says_so():
    raw = open_embeddings(VALUES)
    unit = open_embeddings(VALUES, normalize=True)
    assert unit.fingerprint == raw.fingerprint + ":unit"
    assert open_embeddings(raw, normalize=True).fingerprint == unit.fingerprint


@patient
@given(nonzero_rows, st.data())
def test_one_changed_value_changes_the_fingerprint(rows, data):
    row = data.draw(st.integers(0, rows.shape[0] - 1))
    column = data.draw(st.integers(0, rows.shape[1] - 1))
    changed = rows.copy()
    changed[row, column] = np.nextafter(changed[row, column], np.float32(2))
    assert open_embeddings(rows).fingerprint != open_embeddings(changed).fingerprint


def test_another_order_or_shape_changes_the_fingerprint():
    orders = [VALUES, VALUES[::-1], VALUES[:, ::-1], VALUES[[1, 0, 2, 3, 4, 5, 6]]]
    shapes = [VALUES.reshape(n, -1) for n in (1, 2, 4, 14, 28)]
    prints = {open_embeddings(rows).fingerprint for rows in (*orders, *shapes)}
    assert len(prints) == 9
