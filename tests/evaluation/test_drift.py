import warnings

import numpy as np
import pytest

import nnnorm
from nnnorm import CSLS, NNN, Corrector, NNNormError
from nnnorm.evaluation import measure_drift
from nnnorm.report.tables import tabulate_drift


@pytest.fixture(scope="module")
def shapes():
    return nnnorm.load_shapes()


@pytest.fixture(scope="module")
def corrector(shapes):
    return Corrector.fit(shapes.gallery, shapes.references[::5])


@pytest.fixture(scope="module")
def other(shapes):
    """Queries of another source: turned a little away from all others."""
    rng = np.random.default_rng(5)
    turned = shapes.queries[1::5] + 0.6 * unit(rng.normal(size=shapes.queries.shape[1]))
    return unit(turned)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("n_queries", [64, 300])
def test_queries_of_the_bank_s_own_source_are_fine(shapes, corrector, n_queries):
    drift = measure_drift(corrector, shapes.queries[::5][:n_queries])
    assert (drift.verdict, drift.exit_code, drift.reasons) == ("fine", 0, ())
    assert drift.z < 1.5
    assert drift.hub_share < drift.hub_share_uncorrected
    assert (drift.n_queries, drift.n_items) == (n_queries, 1000)


def test_queries_of_another_scale_give_no_verdict(shapes):
    past = shapes.references[::5] * np.linspace(6, 8, len(shapes.references[::5]))[:, None]
    corrector = Corrector.fit(shapes.gallery, past, normalize=False)
    with pytest.raises(NNNormError, match="but the past queries have norms of 6 to 8"):
        measure_drift(corrector, shapes.queries[:300])


@pytest.mark.slow
def test_queries_of_another_source_ask_for_a_refit_now(corrector, other):
    drift = measure_drift(corrector, other[:300])
    assert (drift.verdict, drift.exit_code) == ("refit now", 4)
    assert drift.z > 3
    assert drift.hub_share_refitted < drift.hub_share_uncorrected


@pytest.mark.slow
def test_a_mixture_asks_for_a_refit_soon(shapes, corrector, other):
    mixed = np.concatenate([shapes.queries[::5][:150], other[:150]])
    drift = measure_drift(corrector, mixed)
    assert (drift.verdict, drift.exit_code) == ("refit soon", 3)
    assert drift.reasons


@pytest.mark.slow
def test_too_few_queries_raise_an_error_and_more_no_warning(shapes, corrector, other):
    with pytest.raises(NNNormError, match=r"to measure drift: 20 of 20, .* pass 32 or more"):
        measure_drift(corrector, shapes.queries[::5][:20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure_drift(corrector, other[:100])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [NNN(2, 0.5), NNN(400, 0.5), CSLS(5), nnnorm.DualSoftmax(20.0, 5.0)],
    ids=str,
)
def test_own_queries_are_fine_and_others_are_not_by_every_method(shapes, method, other):
    second = {}
    if method.gallery_bank == "needed":
        second = {"gallery_references": shapes.gallery_references[:200]}
    corrector = Corrector.fit(shapes.gallery, shapes.references[::5], method, **second)
    own = measure_drift(corrector, shapes.queries[::5][:300])
    assert own.verdict == "fine"
    assert measure_drift(corrector, other[:300]).verdict == "refit now"
    assert own.agreement > 0.7


@pytest.mark.slow
def test_copies_of_too_few_queries_are_refused(shapes, corrector):
    copies = np.repeat(shapes.queries[:1], 300, axis=0)
    with pytest.raises(NNNormError, match=r"too few unique queries .* 1 of 300"):
        measure_drift(corrector, copies)
    many = np.repeat(shapes.queries[::5][:20], 15, axis=0)
    with pytest.raises(NNNormError, match=r"too few unique queries to measure drift: \d+ of 300"):
        measure_drift(corrector, many)


@pytest.mark.slow
def test_the_path_of_a_saved_corrector_will_do(shapes, corrector, tmp_path):
    corrector.save(path := tmp_path / "corrector.safetensors")
    queries = shapes.queries[::5][:64]
    assert measure_drift(str(path), queries) == measure_drift(corrector, queries)
    with pytest.raises(NNNormError, match="or the path of its file; got Bias"):
        measure_drift(corrector.bias, queries)


def test_queries_that_do_not_fit_are_refused(shapes, corrector):
    with pytest.raises(NNNormError, match="same dimension; got "):
        measure_drift(corrector, shapes.queries[:, :60])
    with pytest.raises(NNNormError, match="queries must have at least one row"):
        measure_drift(corrector, shapes.queries[:0])
    with pytest.raises(NNNormError, match="must have norm 1"):
        measure_drift(corrector, 2 * shapes.queries)


@pytest.mark.slow
def test_the_table_says_the_verdict_first_and_why(corrector, other, shapes):
    table = tabulate_drift(measure_drift(corrector, other[:300]))
    assert table.title == "Refit now: 300 queries, 4,000 past queries"
    assert any("don't resemble the past queries" in note for note in table.notes)
    fine = tabulate_drift(measure_drift(corrector, shapes.queries[::5][:300]))
    assert fine.title.startswith("Fine")
    assert len(fine.notes) == 1


@pytest.mark.slow
def test_the_verdicts_on_flickr8k(flickr8k):
    gallery, bank = flickr8k.image["test"], flickr8k.caption["train"][::5]
    corrector = Corrector.fit(gallery, bank)
    rng = np.random.default_rng(0)
    own = flickr8k.caption["test"][::5][rng.permutation(1000)[:256]]
    coco = flickr8k.coco_caption[rng.permutation(25_000)[:256]]
    assert measure_drift(corrector, own).verdict == "fine"
    assert measure_drift(corrector, coco).verdict == "refit now"
    mixed = np.concatenate([own[:128], coco[:128]])
    assert measure_drift(corrector, mixed).verdict == "refit soon"
