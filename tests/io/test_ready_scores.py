"""Score matrices are opened and checked."""

import numpy as np

from nnnorm.embeddings import Embeddings, StoredMatrix, open_embeddings, open_matrix
from tests.io.matrices import VALUES, refusal, small_blocks


def test_scores_may_have_rows_of_zeros():
    np.testing.assert_array_equal(open_matrix(np.zeros((2, 3)), name="scores"), np.zeros((2, 3)))


def test_scores_that_are_not_finite_are_refused_by_row_and_column():
    scores = np.zeros((40, 3))
    scores[33, 1] = np.nan
    with small_blocks():
        assert refusal(scores, name="scores", opener=open_matrix) == (
            "scores must be finite; row 33 has NaN in column 1. Remove or re-encode that row"
        )


def test_scores_have_a_type_of_their_own():
    scores = open_matrix(VALUES, name="scores")
    assert isinstance(scores, StoredMatrix)
    assert not isinstance(scores, Embeddings)
    assert repr(scores) == "StoredMatrix(scores: 7 x 4)"
    assert refusal(scores) == (
        "gallery must be embeddings of shape (n_rows, dim); got a matrix of scores, opened as "
        "scores: pass it to fit_scores"
    )
    assert refusal(open_embeddings(VALUES, name="gallery"), name="scores", opener=open_matrix) == (
        "scores must have the shape (n_gallery, n_references); got embeddings, opened as gallery: "
        "pass them to fit, or multiply them first"
    )


def test_scores_with_another_form_are_refused():
    assert refusal(np.ones(3), name="scores", opener=open_matrix) == (
        "scores must have two dimensions (n_gallery, n_references); got shape (3,); "
        "a row must have shape (1, 3)"
    )
