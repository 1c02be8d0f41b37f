"""Raw rows of any scale are found as rows of norm 1 are; uneven norms warn if a graph searches."""

import warnings

import numpy as np
import pytest

import nnnorm
from nnnorm.index import open_backend, verify_index
from tests.index.engines import ENGINES, parametrize


@pytest.fixture(scope="module")
def raw():
    rng = np.random.default_rng(0)
    lean = np.linspace(-1, 1, 16)
    return [(rng.normal(size=(n, 16)) + lean).astype(np.float32) for n in (200, 400, 20)]


def corrected(scale, gallery, references):
    rows = (gallery * scale).astype(np.float32)
    past = (references * np.median(scale)).astype(np.float32)
    return rows, nnnorm.Corrector.fit(rows, past, nnnorm.NNN(16, 0.5), normalize=False)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e4, 1e15])
@parametrize(ENGINES)
def test_rows_of_any_scale_are_found_with_exact_scores(case, tmp_path, raw, scale):
    rows, corrector = corrected(scale, *raw[:2])
    queries = (raw[2] * scale).astype(np.float32)
    with nnnorm.build_index(case.at(tmp_path), rows[:100], corrector) as index:
        index.add(rows[100:], ids=range(100, 200))
        best = nnnorm.search(queries, rows, corrector, k=5, normalize=False)
        hits = index.search(queries, 5)
        assert (hits.ids == best.indices).mean() >= 0.98
        np.testing.assert_allclose(hits.scores, best.scores, atol=1e-4 * np.ptp(best.scores))
        assert verify_index(index, queries, gallery=rows).is_good
        part = next(iter(index.scan()))
        np.testing.assert_allclose(part.vectors, rows[part.ids], rtol=1e-4)


@parametrize(ENGINES)
def test_uneven_norms_warn_if_the_engine_is_not_exact(case, tmp_path, raw):
    norms = 10 ** np.random.default_rng(1).uniform(-1, 1, (200, 1))
    rows, corrector = corrected(norms, *raw[:2])
    backend = open_backend(case.at(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", nnnorm.NNNormWarning)
        nnnorm.build_index(backend, rows, corrector).close()
    assert any("may miss the best" in str(one.message) for one in caught) != backend.is_exact


def test_verify_notices_wrong_scores_and_biases_of_tiny_rows(tmp_path, raw):
    rows, corrector = corrected(1e-12, *raw[:2])
    queries = (raw[2] * 1e-12).astype(np.float32)
    with nnnorm.build_index("faiss:", rows, corrector) as index:
        assert verify_index(index, queries).is_good
        stored = next(iter(index.backend.scan(index.backend.served())))
        stored.vectors[:, -2] += 0.4
        with index.backend.write(index.backend.served()) as version:
            index.backend.upsert(version, stored)
        index.reload()
        assert "bias" in verify_index(index, queries).problems[0]
