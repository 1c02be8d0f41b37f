import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnnorm
from nnnorm import CSLS, DN, NNN, DualSoftmax, InvertedSoftmax, NNNormError, NNNormWarning, Sinkhorn
from nnnorm.methods import Uncorrected, make_method
from tests import reference

ALL = [
    Uncorrected(),
    NNN(),
    NNN(reference_k=4, alpha=0.75),
    CSLS(),
    DN(),
    InvertedSoftmax(),
    InvertedSoftmax(gated=True),
    DualSoftmax(20.0, 5.0),
    DualSoftmax(20.0, 5.0, gate="paper"),
    DualSoftmax(20.0, 5.0, gate="safe"),
    Sinkhorn(tau=0.05),
]


def scores_of(gallery, references):
    return gallery.astype(float) @ references.astype(float).T


def order(bias, small, k=23):
    return nnnorm.search(small.queries, small.gallery, bias, k=k).indices


def fit(method, small, bank=True):
    uses_bank = isinstance(method, DualSoftmax)
    extra = {"gallery_references": small.gallery_references} if uses_bank and bank else {}
    return method.fit(small.gallery, small.references, **extra)


# --- each method against its naive form ----------------------------------------------------------


def test_nnn_by_hand_with_k_2_and_alpha_three_quarters():
    gallery = np.array([[1.0, 0.0], [0.0, 1.0]])
    references = np.array([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    # Item 0 scores 0.8, 0.6, 0.0 -> mean of the best two 0.7. Item 1: 0.6, 0.8, 1.0 -> 0.9.
    bias = NNN(reference_k=2, alpha=0.75).fit(gallery, references, duplicates="keep")
    np.testing.assert_allclose(bias.values, [0.7, 0.9], atol=1e-7)
    np.testing.assert_allclose(bias.correction, [0.525, 0.675], atol=1e-7)
    # A query at (0.7, 0.72): raw 0.7 and 0.72, corrected 0.175 and 0.045: the answer turns round.
    query = np.array([[0.7, 0.72]])
    assert nnnorm.search(query, gallery, k=1).indices[0, 0] == 1
    corrected = nnnorm.search(query, gallery, bias, k=2)
    assert corrected.indices.tolist() == [[0, 1]]
    np.testing.assert_allclose(corrected.scores, [[0.175, 0.045]], atol=1e-6)


@given(k=st.integers(1, 57), alpha=st.floats(0, 2))
def test_nnn_is_alpha_times_the_mean_of_the_k_best(k, alpha):
    rng = np.random.default_rng(1)
    gallery, references = rng.normal(size=(23, 8)), rng.normal(size=(57, 8))
    bias = NNN(reference_k=k, alpha=alpha).fit(gallery, references, duplicates="keep")
    expected = reference.nnn(scores_of(gallery, references), k, alpha)
    np.testing.assert_allclose(bias.correction, expected, atol=2e-5)
    assert bias.params == {"reference_k": k, "alpha": alpha, "solver": "exact"}


def test_csls_ranks_as_published_with_its_query_term(small):
    published = reference.csls(*(a.astype(float) for a in (small.queries, small.gallery)),
                               small.references.astype(float), 10)  # fmt: skip
    np.testing.assert_array_equal(order(fit(CSLS(10), small), small), reference.rank(published, 23))


def test_dn_ranks_as_published_with_both_means(small):
    for weight in (0.25, 0.5, 1.0):
        published = reference.dn(small.queries, small.gallery, small.references, weight)
        np.testing.assert_array_equal(
            order(fit(DN(weight), small), small), reference.rank(published, 23)
        )


@pytest.mark.parametrize("beta", [0.01, 1.0, 20.0, 400.0])
def test_inverted_softmax_is_its_log_sum_up_to_a_constant(small, beta):
    expected = reference.inverted_softmax(scores_of(small.gallery, small.references), beta)
    bias = fit(InvertedSoftmax(beta), small)
    assert reference.same_up_to_a_constant(bias.correction, expected, 1e-5)


def test_dual_softmax_is_both_log_sums_up_to_a_constant(small):
    expected = reference.dual_softmax(
        scores_of(small.gallery, small.references),
        scores_of(small.gallery, small.gallery_references),
        30.0,
        7.0,
    )
    bias = fit(DualSoftmax(beta_query=30.0, beta_gallery=7.0), small)
    assert reference.same_up_to_a_constant(bias.correction, expected, 1e-5)


@pytest.mark.parametrize("iterations", [1, 2, 10])
def test_sinkhorn_is_minus_tau_log_u_up_to_a_constant(small, iterations):
    expected = reference.sinkhorn(scores_of(small.gallery, small.references), 0.05, iterations)
    bias = fit(Sinkhorn(tau=0.05, iterations=iterations), small)
    assert reference.same_up_to_a_constant(bias.correction, expected, 1e-5)


def test_sinkhorn_with_a_gallery_bank_joins_it_to_the_gallery(small):
    everything = np.vstack([small.gallery, small.gallery_references])
    expected = reference.sinkhorn(scores_of(everything, small.references), 0.05, 10)[:23]
    bias = Sinkhorn(tau=0.05).fit(
        small.gallery, small.references, gallery_references=small.gallery_references
    )
    assert len(bias) == 23
    assert reference.same_up_to_a_constant(bias.correction, expected, 1e-5)


def test_sinkhorn_if_plain_exponentials_vanish(small):
    # exp(-1/0.001) is 0 in float64 and exp(s/0.001) overflows float32.
    expected = reference.sinkhorn(scores_of(small.gallery, small.references), 0.001, 10)
    bias = fit(Sinkhorn(tau=0.001), small)
    assert reference.same_up_to_a_constant(bias.correction, expected, 1e-5)


@pytest.mark.parametrize("scale", [1e-4, 1e-12])
def test_a_bias_of_sinkhorn_that_is_only_rounding_warns(small, scale):
    rows = [(scale * side).astype(np.float32) for side in (small.gallery, small.references)]
    with pytest.warns(NNNormWarning, match=r"tau=0\.05 is too large for these scores"):
        Sinkhorn(tau=0.05).fit(*rows, normalize=False)


@pytest.mark.slow
def test_sinkhorn_in_many_strips_is_the_same(small):
    rng = np.random.default_rng(0)
    references = rng.normal(size=(40_000, 12)).astype(np.float16)
    answers = [
        Sinkhorn(tau=0.05, iterations=2).fit(small.gallery, references, memory_budget=budget).values
        for budget in (2**20, 2**29)
    ]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)


# --- gates ---------------------------------------------------------------------------------------


def gated_problem(rng):
    """Mostly positive scores and a small bank, so that some queries pass the gate and some not."""
    parts = (rng.normal(size=(n, 6)) * 0.3 + 0.2 for n in (40, 12, 60, 10))
    return tuple(part.astype(np.float32) for part in parts)


def test_dis_corrects_exactly_the_rows_whose_raw_best_is_active(rng):
    gallery, references, queries, _ = gated_problem(rng)
    scores, raw = scores_of(gallery, references), scores_of(queries, gallery)
    bias = InvertedSoftmax(beta=5.0, gated=True).fit(gallery, references)
    active = reference.activation_set(scores)
    np.testing.assert_array_equal(bias.gates[0].active, active)
    opened = active[raw.argmax(axis=1)]
    assert 0 < opened.sum() < len(opened)
    found = nnnorm.search(queries, gallery, bias, k=40)
    np.testing.assert_array_equal(
        found.indices, reference.rank(reference.dis(raw, scores, 5.0), 40)
    )
    np.testing.assert_allclose(found.scores[~opened], -np.sort(-raw[~opened], axis=1), atol=1e-6)


def test_dual_dis_as_published_ranks_by_the_product_of_factors(rng):
    gallery, references, queries, bank = gated_problem(rng)
    queries[::2] *= -1  # negative scores, whose order the published product reverses
    raw = scores_of(queries, gallery)
    expected = reference.dual_dis(
        raw, scores_of(gallery, references), scores_of(gallery, bank), 5.0, 2.0
    )
    bias = DualSoftmax(5.0, 2.0, gate="paper").fit(gallery, references, gallery_references=bank)
    opened = np.array([gate.active[raw.argmax(axis=1)] for gate in bias.gates])
    assert {tuple(pair) for pair in opened.T} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    found = nnnorm.search(queries, gallery, bias, k=40)
    np.testing.assert_array_equal(found.indices, reference.rank(expected, 40))
    steep = DualSoftmax(400.0, 400.0, gate="paper")
    bias = steep.fit(gallery, references, gallery_references=bank)
    assert np.isfinite(nnnorm.ranking.score_matrix(queries, gallery, bias)).all()


def test_dual_dis_as_published_survives_a_query_that_scores_zero_everywhere():
    gallery = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    references = np.array([[1.0, 0.0, 0.0]])
    bias = DualSoftmax(5.0, 2.0, gate="paper").fit(
        gallery, references, gallery_references=references
    )
    found = nnnorm.search(np.array([[0.0, 0.0, 1.0]]), gallery, bias, k=3)
    assert found.indices.tolist() == [[0, 1, 2]]
    assert np.isfinite(found.scores).all()


def test_dual_dis_in_its_safe_form_leaves_out_the_closed_gates_term(rng):
    gallery, references, queries, bank = gated_problem(rng)
    raw = scores_of(queries, gallery)
    bias = DualSoftmax(5.0, 2.0, gate="safe").fit(gallery, references, gallery_references=bank)
    terms = [
        reference.log_sum_exp(scores_of(gallery, other), beta) / 7.0
        for other, beta in ((references, 5.0), (bank, 2.0))
    ]
    best = raw.argmax(axis=1)
    for gate, term in zip(bias.gates, terms, strict=True):
        raw = raw - gate.active[best][:, None] * term
    np.testing.assert_array_equal(
        nnnorm.search(queries, gallery, bias, k=40).indices, reference.rank(raw, 40)
    )


def test_a_gated_search_in_small_strips_is_the_same(rng):
    gallery, references, queries, _ = gated_problem(rng)
    bias = InvertedSoftmax(beta=5.0, gated=True).fit(gallery, references)
    wide = nnnorm.search(queries, gallery, bias, k=5)
    narrow = nnnorm.search(queries, gallery, bias, k=5, memory_budget=2**20)
    np.testing.assert_array_equal(wide.indices, narrow.indices)


# --- the equivalences of the field ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (CSLS(7), NNN(reference_k=7, alpha=0.5)),
        (DN(0.25), NNN(reference_k=57, alpha=0.25)),
        (InvertedSoftmax(beta=1e7), NNN(reference_k=1, alpha=1.0)),
        (InvertedSoftmax(beta=1e-5), NNN(reference_k=57, alpha=1.0)),
    ],
    ids=repr,
)
def test_methods_at_their_limits_are_nnn(small, first, second):
    found, expected = fit(first, small), fit(second, small)
    np.testing.assert_allclose(found.correction, expected.correction, atol=2e-6)


def test_dual_softmax_without_gallery_beta_is_inverted_softmax(small):
    first = fit(DualSoftmax(beta_query=20.0, beta_gallery=0.0), small)
    second = fit(InvertedSoftmax(beta=20.0), small)
    np.testing.assert_allclose(first.correction, second.correction, atol=1e-6)
    no_bank = DualSoftmax(beta_query=20.0, beta_gallery=0.0).fit(small.gallery, small.references)
    np.testing.assert_allclose(no_bank.correction, second.correction, atol=1e-6)


def test_both_betas_zero_is_no_correction(small):
    for method in (DualSoftmax(0.0, 0.0), InvertedSoftmax(0.0)):
        np.testing.assert_array_equal(fit(method, small).correction, np.zeros(23))


# The published product of DualDIS is no such form: its order depends on the sign of the scores.
@pytest.mark.parametrize("method", [m for m in ALL if m.name != "dualdis"], ids=repr)
def test_a_constant_added_to_all_scores_changes_no_ranking(small, method):
    scores = scores_of(small.gallery, small.references)
    more = scores_of(small.gallery, small.gallery_references)
    extra = (more, more + 0.3) if isinstance(method, DualSoftmax) else (None, None)
    first = method.fit_scores(scores, extra[0]).correction
    second = method.fit_scores(scores + 0.3, extra[1]).correction
    assert reference.same_up_to_a_constant(first, second, 2e-5)


# --- ready scores, words, and the choices made alone ---------------------------------------------


@pytest.mark.parametrize("method", ALL, ids=repr)
def test_fit_scores_gives_what_fit_gives(small, method):
    scores = scores_of(small.gallery, small.references)
    gallery_scores = (
        scores_of(small.gallery, small.gallery_references)
        if isinstance(method, DualSoftmax)
        else None
    )
    ready = method.fit_scores(scores, gallery_scores)
    direct = fit(method, small)
    np.testing.assert_allclose(ready.values, direct.values, atol=2e-5)
    if "density" not in direct.params:  # which ready scores do not show
        assert ready.weight == pytest.approx(direct.weight, abs=1e-4)
    assert (ready.dim, ready.fingerprints) == (None, {})
    for first, second in zip(ready.gates, direct.gates, strict=True):
        np.testing.assert_array_equal(first.active, second.active)


def test_fit_scores_of_sinkhorn_takes_the_banks_scores_with_the_references(small):
    direct = Sinkhorn(tau=0.05).fit(
        small.gallery, small.references, gallery_references=small.gallery_references
    )
    ready = Sinkhorn(tau=0.05).fit_scores(
        scores_of(small.gallery, small.references),
        scores_of(small.gallery_references, small.references),
    )
    np.testing.assert_allclose(ready.values, direct.values, atol=2e-5)


@pytest.mark.parametrize("method", ALL, ids=repr)
def test_inputs_are_never_changed(small, method):
    before = {name: array.copy() for name, array in vars(small).items()}
    nnnorm.search(small.queries, small.gallery, fit(method, small))
    for name, array in vars(small).items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("method", ALL, ids=repr)
def test_a_bias_has_its_provenance(small, method):
    bias = fit(method, small)
    assert bias.method == method.name
    assert (bias.n_references, bias.dim, bias.version) == (57, 12, nnnorm.__version__)
    assert bias.fingerprints["gallery"] == nnnorm.open_embeddings(small.gallery).fingerprint
    assert bias.created.endswith("+00:00")


def test_dualdis_by_name_is_the_published_form_unless_told():
    assert make_method("dualdis", beta_query=1.0, beta_gallery=1.0).gate == "paper"
    assert make_method("dualdis", beta_query=1.0, beta_gallery=1.0, gate="safe").gate == "safe"


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NNN(reference_k=2.5), "reference_k must be a whole number of at least 1; got 2.5"),
        (lambda: NNN(alpha=float("nan")), "alpha must be a number .* got nan"),
        (lambda: NNN(alpha=10**400), "alpha must be a number .* got 1000"),
        (lambda: InvertedSoftmax(beta=-1), "beta must be a number from 0 to 1e.09; got -1"),
        (lambda: InvertedSoftmax(beta=float("nan")), "beta must be a number .* got nan"),
        (lambda: DualSoftmax(1e39, 1.0), "beta_query must be a number from 0"),
        (lambda: DualSoftmax(1.0, 1.0, gate="x"), "gate must be None, 'paper' or 'safe'; got 'x'"),
        (lambda: Sinkhorn(tau=0), "tau must be a number from 1e-06 to 100; got 0"),
        (lambda: make_method("best"), "method must be one of none, nnn, .*; got 'best'"),
        (lambda: make_method("nnn", beta=3.0), "takes reference_k, alpha, center; got beta"),
        (lambda: make_method("dualis", beta_query=1.0), "method dualis needs beta_gallery"),
        (
            lambda: make_method("dualdis", beta_query=1.0, beta_gallery=1.0, gate=None),
            "with gate=None, this is method dualis, not dualdis",
        ),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(make, words):
    with pytest.raises(NNNormError, match=words):
        make()


@pytest.mark.parametrize("method", [NNN.paper(), NNN(128), CSLS(reference_k=128)], ids=repr)
@pytest.mark.parametrize("groups", [None, ["a"] * 12 + ["b"] * 11])
def test_reference_k_beyond_the_bank_says_both_numbers(small, method, groups):
    words = "reference_k is 128, but there are only 57 past queries; pass more"
    with pytest.raises(NNNormError, match=words):
        method.fit(small.gallery, small.references, groups=groups)


def test_banks_of_another_dim_are_rejected_with_both_shapes(small):
    with pytest.raises(
        NNNormError,
        match=r"gallery and references must have the same dimension; got shapes \(23, 12\) and "
        r"\(57, 11\)\. Were they encoded by different models\?",
    ):
        NNN().fit(small.gallery, small.references[:, :11])
    with pytest.raises(
        NNNormError, match="gallery and gallery_references must have the same dimension"
    ):
        DualSoftmax(1.0, 1.0).fit(
            small.gallery, small.references, gallery_references=small.references[:, :5]
        )


def test_a_gallery_bank_is_required_if_needed_and_rejected_if_unused(small):
    with pytest.raises(NNNormError, match="method dualis needs a gallery bank"):
        DualSoftmax(20.0, 5.0).fit(small.gallery, small.references)
    with pytest.raises(NNNormError, match="method nnn uses no gallery bank; leave out gallery_ref"):
        NNN().fit(small.gallery, small.references, gallery_references=small.gallery)
    with pytest.raises(NNNormError, match="method csls uses no gallery bank; leave out gallery_sc"):
        CSLS(1).fit_scores([[0.1]], [[0.1]])


def test_ready_scores_of_a_gallery_bank_must_fit(small):
    scores = scores_of(small.gallery, small.references)
    with pytest.raises(NNNormError, match=r"as many rows as scores; got \(3, 57\)"):
        DualSoftmax(1.0, 1.0).fit_scores(scores, scores[:3])
    with pytest.raises(NNNormError, match=r"as many columns as scores; got \(23, 4\)"):
        Sinkhorn().fit_scores(scores, scores[:, :4])


def test_the_weight_of_an_automatic_alpha_is_known_after_the_fit():
    with pytest.raises(NNNormError, match="the weight is known only after a fit"):
        NNN().weight  # noqa: B018
