"""Faiss's factory strings: which are accepted, and how rows are padded for quantizers."""

import faiss
import numpy as np
import pytest

from nnnorm import Corrector, NNNormError
from nnnorm.index import build_index

RNG = np.random.default_rng(0)
GALLERY, PAST = RNG.normal(size=(300, 13)), RNG.normal(size=(99, 13))
CORRECTOR = Corrector.fit(GALLERY, PAST, normalize=True)
_LOSSY = ["SQ8", "PQ5x4np", "IVF4,PQ5x4np", "HNSW8_SQ8", "PCA8,Flat", "OPQ4_8,PQ4x4np"]


@pytest.mark.parametrize(
    ("factory", "step"),
    [("SQ8,RFlat", 16), ("SQfp16", 16), ("PQ4x4np,RFlat", 4), ("IVF4,PQ4x4np,RFlat", 4)],
)
def test_quantizers_get_the_dimension_that_they_need(factory, step, tmp_path):
    """Without padding, SQ8 takes eight times as long, and PQ4 rejects 15 dimensions."""
    build_index(f"faiss:{tmp_path}/items?factory={factory}", GALLERY, CORRECTOR).close()
    stored = faiss.read_index(str(next(tmp_path.glob("items/v*/index"))))
    inner = faiss.downcast_index(stored.base_index) if "RFlat" in factory else stored
    assert stored.d == 15  # rows of transform_queries can search the file
    assert faiss.downcast_index(inner.index).d == -(-15 // step) * step
    found = stored.search(CORRECTOR.transform_queries(GALLERY[:1]), 1)[1]
    assert found.shape == (1, 1)


@pytest.mark.parametrize("factory", _LOSSY)
def test_a_quantizer_without_the_full_vectors_is_rejected(factory):
    with pytest.raises(NNNormError, match="which a refresh needs; add ,RFlat to it"):
        build_index(f"faiss:?factory={factory}", GALLERY, CORRECTOR)


def test_options_of_a_graph_reach_a_quantized_graph():
    url = "faiss:?factory=HNSW8_SQ8,RFlat&ef_construction=57"
    with build_index(url, GALLERY, CORRECTOR) as index:
        (loaded,) = index.backend._loaded.values()
        padded = faiss.downcast_index(loaded.index.base_index)
        assert faiss.downcast_index(padded.index).hnsw.efConstruction == 57
