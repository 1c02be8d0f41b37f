"""The same results as published software on the same input."""

import numpy as np
import pytest

import nnnorm

pytestmark = pytest.mark.slow


@pytest.fixture
def nnn():
    pytest.importorskip("torch", reason="nnn-retrieval needs torch")
    return pytest.importorskip("nnn", reason="nnn-retrieval is not installed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n_copies", [1, 5])
@pytest.mark.parametrize("k", [1, 16, 128])
def test_the_biases_and_rankings_of_nnn_retrieval(nnn, rng, k, n_copies):
    unit = [rng.normal(size=(n, 64)).astype(np.float32) for n in (300, 1000, 40)]
    gallery, references, queries = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in unit
    )
    references = np.repeat(references, n_copies, axis=0)
    theirs = nnn.NNNRanker(
        nnn.NNNRetriever(64), gallery, references, alternate_ks=k, alternate_weight=0.75
    )
    ours = nnnorm.NNN(reference_k=k, alpha=0.75).fit(gallery, references)
    np.testing.assert_allclose(ours.values, theirs.alignment_means.numpy()[:, 0], atol=2e-7)
    scores, indices = theirs.search(queries, 10)
    found = nnnorm.search(queries, gallery, ours, k=10)
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    np.testing.assert_array_equal(found.indices, indices)
    if k == 128:
        np.testing.assert_array_equal(
            nnnorm.NNN.paper().fit(gallery, references).values, ours.values
        )
