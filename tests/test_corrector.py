"""A corrector gives later items the same values as a new fit with its past queries."""

import copy
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnnorm
from nnnorm import CSLS, DN, NNN, Corrector, DualSoftmax, InvertedSoftmax, NNNormError
from tests.made import make_embeddings

METHODS = {
    "automatic": (NNN(), False),
    "nnn": (NNN(6, 0.7), False),
    "csls": (CSLS(5), False),
    "dn": (DN(0.5), False),
    "is": (InvertedSoftmax(20.0), False),
    "dualis": (DualSoftmax(30.0, 5.0), True),
    "none": (nnnorm.methods.Uncorrected(), False),
}


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def made():
    """Unit rows with hubs: a gallery, references, queries, and items that arrive later."""
    gallery, queries, past = make_embeddings(n_items=160, n_past=60, dim=16, seed=3)
    return SimpleNamespace(
        gallery=gallery[:100], new=gallery[100:], references=past, queries=queries[:80]
    )


@pytest.fixture(scope="module")
def corrector(made):
    return Corrector.fit(made.gallery, made.references)


def from_scratch(corrector, items):
    """The values of all items by a fit with the same bank and center."""
    references = corrector.references
    if corrector.center is None:
        second = corrector.gallery_references
        options = {"gallery_references": second, "normalize": corrector.normalize}
        return corrector.method.fit(items, references, duplicates="keep", **options).values
    if corrector.normalize:
        items, references = unit(items), unit(references.astype(np.float32))
    scores = (items - corrector.center) @ references.astype(np.float32).T
    return np.sort(scores, axis=1)[:, -corrector.method.reference_k :].mean(axis=1)


def fit(made, name, *, scale=1.0, **options):
    method, needs_second = METHODS[name]
    second = {"gallery_references": scale * made.new[:30]} if needs_second else {}
    return Corrector.fit(scale * made.gallery, scale * made.references, method, **second, **options)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_values_of_any_items_are_those_of_a_fit_from_scratch_with_the_same_bank(
    made, name, normalize
):
    corrector = fit(made, name, scale=3.0, normalize=normalize)
    items = 3 * np.concatenate([made.gallery, made.new])
    found = corrector.bias_for(items)
    np.testing.assert_allclose(found.values, from_scratch(corrector, items), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.values[:100], corrector.bias.values, rtol=1e-5, atol=1e-6)
    assert found.weight == corrector.weight


def test_the_automatic_numbers_are_chosen_once(made, corrector):
    assert corrector.asked == NNN()
    assert isinstance(corrector.method.alpha, float)
    few = corrector.bias_for(made.new[:2])
    assert (few.weight, few.reference_k) == (corrector.weight, corrector.bias.reference_k)


def test_a_bias_names_the_corrector_and_the_items_it_is_for(made, corrector):
    new = corrector.bias_for(made.new)
    assert new.fingerprints["corrector"] == corrector.fingerprint
    assert corrector.bias.fingerprints["corrector"] == corrector.fingerprint
    assert new.fits(nnnorm.open_embeddings(made.new))
    corrector.bias.check_gallery(nnnorm.open_embeddings(made.gallery))


def test_the_fingerprint_is_of_everything_that_decides_numbers(made, corrector):
    same = Corrector.fit(made.gallery, made.references)
    assert same.fingerprint == corrector.fingerprint
    others = [
        Corrector.fit(made.gallery, made.references[10:]),
        Corrector.fit(made.gallery, made.references, NNN(3, corrector.weight)),
        Corrector.fit(made.gallery, made.references, NNN(corrector.method.reference_k, 0.1)),
        Corrector.fit(made.gallery, made.references, normalize=True),
        Corrector.fit(made.gallery[1:], made.references),
        Corrector.fit(made.gallery, made.references, CSLS(3)),
    ]
    assert len({one.fingerprint for one in [corrector, *others]}) == 1 + len(others)


def test_a_bank_is_rounded_before_the_first_number_is_computed(made):
    corrector = Corrector.fit(made.gallery, made.references, CSLS(5), duplicates="keep")
    assert corrector.references.dtype == np.float16
    rounded = made.references.astype(np.float16)
    np.testing.assert_array_equal(corrector.references, rounded)
    values = CSLS(5).fit(made.gallery, rounded, duplicates="keep").values
    np.testing.assert_array_equal(corrector.bias.values, values)


def test_every_unique_query_counts_once_as_in_a_fit(made):
    log = np.repeat(made.references, 3, axis=0)
    corrector = Corrector.fit(made.gallery, log)
    once = Corrector.fit(made.gallery, made.references)
    assert corrector.fingerprint == once.fingerprint
    fitted = NNN().fit(made.gallery, log)
    np.testing.assert_allclose(corrector.bias.values, fitted.values, atol=1e-3)
    assert corrector.bias.params["n_unique"] == len(corrector.references) < len(log)
    assert corrector.bias.n_references == len(log)
    assert len(Corrector.fit(made.gallery, log, duplicates="keep").references) == len(log)


def test_a_bank_gives_the_numbers_of_its_rows(made, tmp_path):
    bank = nnnorm.Bank.of(made.references[:150], normalize=True)
    bank.add(made.references[150:])
    corrector = Corrector.fit(made.gallery, bank, normalize=True)
    again = Corrector.fit(made.gallery, bank.rows, duplicates="keep", normalize=True)
    assert corrector.fingerprint == again.fingerprint
    assert corrector.bias.n_references == 300
    bank.save(tmp_path / "bank.safetensors")
    from_file = Corrector.fit(made.gallery, tmp_path / "bank.safetensors", normalize=True)
    assert from_file.fingerprint == corrector.fingerprint
    with pytest.raises(NNNormError, match="have norm 1, but rows of gallery have norms of 3;"):
        Corrector.fit(3 * made.gallery, bank)


def test_a_bank_beyond_the_range_of_float16_is_kept_whole(made):
    for scale in (1e6, 1e-6):
        corrector = fit(made, "nnn", scale=np.float32(scale), normalize=False)
        assert corrector.references.dtype == np.float32
        assert corrector.bias.values.std() > 0


# --- rows for an engine ---------------------------------------------------------------------------


def first_items(scores):
    return np.argsort(-scores, axis=1, kind="stable")[:, :5]


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, 0.0, 1.3])
@pytest.mark.parametrize("kind", ["unit", "normalized", "raw"])
@pytest.mark.parametrize("name", METHODS)
def test_inner_product_cosine_and_l2_give_the_order_of_the_exact_search(made, name, kind, weight):
    scale, normalize = {"unit": (1, None), "normalized": (4, True), "raw": (4, False)}[kind]
    corrector = fit(made, name, scale=scale, normalize=normalize)
    items, queries = scale * np.concatenate([made.gallery, made.new]), scale * made.queries
    bias = corrector.bias_for(items)
    exact = nnnorm.search(
        queries, items, bias, k=5, weight=weight, normalize=corrector.normalize or None
    )
    stored = np.concatenate(
        [corrector.transform_items(items[:130]), corrector.transform_items(items[130:])]
    )
    asked = corrector.transform_queries(queries, weight=weight)
    assert stored.dtype == asked.dtype == np.float32
    norms = np.linalg.norm(stored, axis=1)
    np.testing.assert_allclose(norms, corrector.augmentation.radius, rtol=1e-6)
    stored, asked = stored.astype(np.float64), asked.astype(np.float64)
    products = asked @ stored.T
    distances = ((asked[:, None] - stored) ** 2).sum(axis=2)
    cosines = products / np.linalg.norm(asked, axis=1)[:, None] / norms
    for scores in (products, -distances, cosines):
        found = first_items(scores)
        differ = found != exact.indices  # by rounding alone
        places = np.arange(len(queries))[:, None]
        gap = products[places, found] - products[places, exact.indices]
        assert np.abs(gap[differ]).max(initial=0) < 1e-5 * scale**2


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), norm=st.sampled_from([1.0, 8.0]))
def test_every_item_of_unit_norm_has_room_also_the_farthest(seed, norm):
    rng = np.random.default_rng(seed)
    past = unit(rng.normal(size=(30, 4)) + rng.normal(size=4))
    gallery = unit(rng.normal(size=(20, 4)))
    corrector = Corrector.fit(gallery, past, NNN(3, 0.5), normalize=bool(norm != 1) or None)
    lean = past.mean(axis=0, keepdims=True)
    far = norm * unit(np.concatenate([past, -past, lean, -lean, rng.normal(size=(50, 4))]))
    norms = np.linalg.norm(corrector.transform_items(far), axis=1)
    np.testing.assert_allclose(norms, corrector.augmentation.radius, rtol=1e-6)


def test_raw_items_have_room_up_to_a_margin_and_are_rejected_beyond_it(made):
    lengths = np.linspace(1.0, 2.0, 100)[:, None]
    corrector = Corrector.fit(
        lengths * made.gallery, 2 * made.references, NNN(6, 0.7), normalize=False
    )
    assert corrector.transform_items(2.4 * made.new).shape == (60, 18)
    long = made.new.copy()
    long[0] *= 9
    with pytest.raises(NNNormError, match=r"must have a norm of at most .*: fit again"):
        corrector.transform_items(long)
    assert len(corrector.bias_for(long)) == 60  # a value needs no room


# --- rows that do not fit -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bias_for", "transform_items", "transform_queries"])
def test_rows_of_another_width_or_without_unit_norm_are_rejected(made, corrector, method):
    ask = getattr(corrector, method)
    with pytest.raises(
        NNNormError, match=r"same dimension; got .*12.*16.*Were they encoded by diff"
    ):
        ask(made.new[:, :12])
    with pytest.raises(NNNormError, match=r"must have norm 1, .* got norms of 3: normal"):
        ask(3 * made.new)
    with pytest.raises(NNNormError, match="must be finite; row 1 has NaN"):
        ask(np.where(np.arange(60)[:, None] == 1, np.nan, made.new))


def test_raw_rows_on_another_scale_are_rejected_where_all_norms_are_equal(made):
    corrector = Corrector.fit(10 * made.gallery, 20 * made.references, normalize=False)
    assert corrector.transform_queries(20 * made.queries).shape == (80, 18)
    assert corrector.transform_items(10 * made.new).shape == (60, 18)
    with pytest.raises(NNNormError, match=r"queries have norms of 1, but all references .* 20;"):
        corrector.transform_queries(made.queries)
    with pytest.raises(NNNormError, match=r"norms of 1, but all items of .* 10; scale"):
        corrector.transform_items(made.new)
    with pytest.raises(NNNormError, match="items have norms of 1,"):
        corrector.bias_for(made.new)


def test_queries_on_another_scale_than_raw_references_are_warned_of(made):
    lengths = np.linspace(10, 20, len(made.references))[:, None]
    corrector = Corrector.fit(made.gallery, lengths * made.references, NNN(6, 0.7), normalize=False)
    with pytest.warns(nnnorm.NNNormWarning, match="correction and scores have"):
        corrector.transform_queries(made.queries)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrector.transform_queries(made.queries, weight=0)
        corrector.transform_queries(15 * made.queries)


@pytest.mark.parametrize("normalize", [None, False])
def test_recent_queries_on_another_scale_than_the_bank_are_rejected(made, normalize):
    for references in (made.references, nnnorm.Bank.of(made.references)):
        with pytest.raises(NNNormError, match="recent have norms of 20, but all references"):
            Corrector.fit(made.gallery, references, recent=20 * made.queries, normalize=normalize)


def test_a_corrector_that_normalizes_takes_rows_of_any_norm_and_one_of_unit_rows_normalized_ones(
    made, corrector
):
    normalizing = Corrector.fit(made.gallery, made.references, normalize=True)
    for ask in (normalizing.transform_items, normalizing.transform_queries):
        np.testing.assert_allclose(ask(5 * made.new), ask(made.new), atol=1e-6)
    opened = nnnorm.open_embeddings(5 * made.new, normalize=True)
    for one in (normalizing, corrector):
        np.testing.assert_allclose(
            one.transform_items(opened), one.transform_items(made.new), atol=1e-6
        )


@pytest.mark.slow
def test_items_of_another_model_of_the_same_width_are_warned_of():
    shapes = nnnorm.load_shapes()
    corrector = Corrector.fit(shapes.gallery[::2], shapes.references)
    dim = shapes.gallery.shape[1]
    other = shapes.gallery[:100] @ np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0]
    with pytest.warns(nnnorm.NNNormWarning, match="deviations from that of the corrector's"):
        corrector.bias_for(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrector.bias_for(shapes.gallery[1::2])
        corrector.bias_for(other[:4])  # so few may be unusual


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (InvertedSoftmax(gated=True), "method qbnorm depends on the best items"),
        (DualSoftmax(9.0, 2.0, gate="safe"), "method dualdis depends on the best items"),
        (nnnorm.Sinkhorn(), "method sinkhorn balances all items of a gallery at once"),
        ("nnn", r"method must be a Method, such as NNN\(\); got str"),
    ],
)
def test_methods_without_a_value_for_later_items_are_rejected(made, method, words):
    with pytest.raises(NNNormError, match=words):
        Corrector.fit(made.gallery, made.references, method)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_a_corrector_that_was_saved_and_loaded_gives_the_same_numbers(
    made, name, normalize, tmp_path
):
    corrector = fit(made, name, scale=2.0, normalize=normalize)
    corrector.save(path := tmp_path / "corrector.safetensors")
    back = Corrector.load(path)
    assert back.to_dict() == corrector.to_dict()
    assert back.method == corrector.method
    assert back.asked == corrector.asked
    np.testing.assert_array_equal(back.bias.values, corrector.bias.values)
    np.testing.assert_array_equal(
        back.transform_items(2 * made.new), corrector.transform_items(2 * made.new)
    )
    np.testing.assert_array_equal(
        back.transform_queries(2 * made.queries), corrector.transform_queries(2 * made.queries)
    )


def test_a_copy_of_a_corrector_gives_the_same_numbers(made, corrector):
    for other in (copy.deepcopy(corrector), pickle.loads(pickle.dumps(corrector))):
        assert other.fingerprint == corrector.fingerprint
        np.testing.assert_array_equal(
            other.transform_items(made.new), corrector.transform_items(made.new)
        )


def test_a_corrector_can_t_be_changed(corrector):
    with pytest.raises(AttributeError):
        corrector.longest = 2.0
    with pytest.raises(ValueError, match="read-only"):
        corrector.references[0] = 1.0


# --- the next version -----------------------------------------------------------------------------


def test_a_refit_chooses_the_numbers_again_and_reports_how_far_values_moved(made):
    first = Corrector.fit(made.gallery, made.references[:100])
    second = first.refit(made.references, gallery=made.gallery)
    scratch = Corrector.fit(made.gallery, made.references)
    assert second.fingerprint == scratch.fingerprint != first.fingerprint
    assert first.refit_report is None
    moved = second.refit_report
    assert 0.5 < moved.correlation < 1
    assert 0 < moved.changed_top1 < 0.5
    before, after = (float(one.bias.correction.mean()) for one in (first, second))
    assert moved.mean_shift == pytest.approx(after - before, abs=1e-5)
    assert (moved.n_items, moved.n_queries) == (100, len(second.references))


def test_a_refit_takes_a_gallery_that_has_grown_and_keeps_the_second_bank(made):
    first = fit(made, "dualis", scale=2.0, normalize=True)
    second = first.refit(made.references, gallery=np.concatenate([made.gallery, made.new]))
    assert len(second.bias) == 160
    np.testing.assert_array_equal(second.gallery_references, first.gallery_references)
    with pytest.raises(NNNormError, match=r"same dimension; got shapes \(100, 12\)"):
        first.refit(made.references, gallery=made.gallery[:, :12])


def test_a_refit_with_the_same_bank_moves_nothing(made):
    bank = nnnorm.Bank.of(made.references, normalize=True)
    for normalize in (None, True):
        corrector = Corrector.fit(made.gallery, bank, normalize=normalize)
        again = corrector.refit(bank, gallery=made.gallery)
        assert again.fingerprint == corrector.fingerprint
        moved = again.refit_report
        assert moved.correlation == pytest.approx(1)
        assert moved.mean_shift == pytest.approx(0, abs=1e-6)
        assert moved.changed_top1 == 0


def test_a_refit_of_raw_inner_products_is_silent_about_norms(made):
    lengths = np.linspace(1, 2, len(made.references))[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrector = Corrector.fit(
            made.gallery, lengths * made.references, NNN(8, 0.5), normalize=False
        )
        corrector.refit(lengths * made.references, gallery=made.gallery)


def test_a_refit_keeps_the_copies_that_the_fit_kept(made, tmp_path):
    log = np.repeat(made.references, 3, axis=0)
    first = Corrector.fit(made.gallery, log, NNN(6, 0.7), duplicates="keep")
    first.save(tmp_path / "corrector.safetensors")
    for corrector in (first, Corrector.load(tmp_path / "corrector.safetensors")):
        assert len(corrector.refit(log, gallery=made.gallery).references) == len(log)
    dropped = first.refit(log, gallery=made.gallery, duplicates="drop")
    assert len(dropped.references) < len(log)


@pytest.mark.slow
def test_a_refit_without_the_recent_queries_of_the_fit_warns(made):
    first = Corrector.fit(made.gallery, made.references, NNN(8, 0.5), recent=made.queries)
    with pytest.warns(nnnorm.NNNormWarning, match="to check them, pass recent= again"):
        first.refit(made.references, gallery=made.gallery)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.refit(made.references, gallery=made.gallery, recent=made.queries)
