"""Clicks are added to a bias: items that are often right stay on top."""

import numpy as np
import pytest

import nnnorm
from nnnorm import NNN, Bias, Corrector, InvertedSoftmax, NNNormError, Popularity
from tests.made import make_embeddings


@pytest.fixture
def hubs():
    return Bias(np.array([0.2, 0.4, 0.1]), 0.5, "nnn", params={"reference_k": 4, "alpha": 0.5})


def test_the_corrected_score_loses_the_hub_part_and_gains_the_popularity(small):
    hubs = NNN(4, 0.7).fit(small.gallery, small.references)
    clicks = np.arange(23) ** 2
    both = hubs + Popularity(clicks, weight=0.03)
    expected = small.queries @ small.gallery.T - 0.7 * hubs.values + 0.03 * np.log1p(clicks)
    found = nnnorm.ranking.score_matrix(small.queries, small.gallery, both)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_another_weight_scales_both_parts_alike(small):
    hubs = NNN(4, 0.7).fit(small.gallery, small.references)
    both = hubs + Popularity(np.arange(23), weight=0.03)
    raw = small.queries @ small.gallery.T
    for share in (0.0, 0.5):
        found = nnnorm.ranking.score_matrix(small.queries, small.gallery, both, weight=0.7 * share)
        np.testing.assert_allclose(found, raw - share * both.correction, atol=1e-5)


def test_both_parts_are_in_the_params_and_are_saved(hubs, tmp_path):
    both = hubs + Popularity([3, 0, 9], weight=0.05)
    assert both.method == "nnn"
    assert dict(both.params) == {
        **hubs.params,
        "popularity_weight": 0.05,
        "n_clicks": 12,
    }
    both.save(path := tmp_path / "bias.safetensors")
    back = Bias.load(path)
    assert back.to_dict() == both.to_dict()
    np.testing.assert_array_equal(back.values, both.values)
    assert "popularity_weight=0.05, n_clicks=12" in repr(both)


def test_the_order_of_a_sum_makes_no_difference(hubs):
    popularity = Popularity([3, 0, 9], weight=0.05)
    np.testing.assert_array_equal((popularity + hubs).values, (hubs + popularity).values)
    with pytest.raises(NNNormError, match="popularity must be a Popularity"):
        sum([hubs])


def test_items_without_clicks_keep_the_values_of_the_corrector():
    gallery, _, past = make_embeddings(n_items=60, n_past=40, dim=16)
    corrector = Corrector.fit(gallery[:50], past)
    clicks = np.where(np.arange(50) % 2, 30, 0)
    both = corrector.bias + Popularity(clicks)
    np.testing.assert_array_equal(both.values[::2], corrector.bias.values[::2])
    assert both.fingerprints["corrector"] == corrector.fingerprint
    assert both.weight == corrector.weight


@pytest.fixture(scope="module")
def shop():
    gallery, queries, past = make_embeddings(n_items=60, n_past=40, dim=16)
    return Corrector.fit(gallery[:50], past, NNN(4, 0.5), normalize=True), gallery, queries


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
def test_rows_of_a_corrector_with_clicks_rank_by_the_sum_in_every_metric(shop, metric):
    corrector, gallery, queries = shop
    clicks = np.arange(60) ** 2
    parts = [
        corrector.transform_items(gallery[rows], popularity=Popularity(clicks[rows]))
        for rows in (slice(1, 50), slice(50, 60))  # those of the fit, and later ones
    ]
    stored = np.concatenate(
        [corrector.transform_items(gallery[:1]), *parts]
    )  # and one without clicks
    both = corrector.bias_for(gallery) + Popularity(clicks)
    exact = nnnorm.search(queries, gallery, both, k=60, normalize=True).indices
    asked = corrector.transform_queries(queries)
    if metric == "l2":
        found = -((asked[:, None] - stored[None]) ** 2).sum(axis=2)
    else:
        norms = np.linalg.norm(stored, axis=1) if metric == "cosine" else 1
        found = asked @ stored.T / norms
    np.testing.assert_array_equal(np.argsort(-found, axis=1, kind="stable"), exact)


def test_more_clicks_than_rows_can_store_are_rejected_and_with_room_accepts_them(shop, tmp_path):
    corrector, gallery, queries = shop
    popular = Popularity(np.where(np.arange(60) == 7, 10**6, 3), weight=0.3)
    with pytest.raises(NNNormError, match="item 7 of items has 1,000,000 clicks, more than"):
        corrector.transform_items(gallery, popularity=popular)
    wider = corrector.with_room(popular)
    wider.save(tmp_path / "wider.safetensors")
    wider = Corrector.load(tmp_path / "wider.safetensors")
    later = Popularity(1000 * np.asarray(popular.clicks), weight=0.3)
    scores = wider.transform_queries(queries) @ wider.transform_items(gallery, popularity=later).T
    best = nnnorm.search(queries, gallery, wider.bias_for(gallery) + later, k=1, normalize=True)
    np.testing.assert_array_equal(scores.argmax(axis=1), best.indices[:, 0])
    assert wider.fingerprint != corrector.fingerprint
    assert wider.bias.fingerprints["corrector"] == wider.fingerprint


def test_a_corrector_that_corrects_nothing_takes_no_clicks(shop):
    _, gallery, _ = shop
    known = {"allow_gallery_rows": True, "normalize": True}
    flat = Corrector.fit(gallery[:50], gallery[50:], NNN(4, 0.0), **known)
    for call in (flat.transform_items, flat.with_room):
        arguments = (gallery,) if call == flat.transform_items else ()
        with pytest.raises(NNNormError, match="has weight 0"):
            call(*arguments, popularity=Popularity(np.ones(60)))


def test_a_bias_of_weight_0_becomes_the_popularity_alone(hubs):
    flat = Bias(hubs.values, 0.0, "nnn", fingerprints={"corrector": "abc"})
    both = flat + Popularity([0, 1, 2], weight=0.1)
    np.testing.assert_allclose(both.correction, -0.1 * np.log1p([0, 1, 2]), rtol=1e-6)
    assert both.fingerprints["corrector"] == "abc"  # whose later items have no popularity


@pytest.mark.parametrize(
    ("clicks", "words"),
    [
        ([1, -2, 3], "clicks must be at least 0; item 1 has -2"),
        ([1, np.nan, 3], "must be finite; item 1 has nan"),
        ([[1, 2, 3]], r"one number per item, .* got shape \(1, 3\)"),
        (["a", "b", "c"], "clicks must be one number per item, .*: could not convert"),
    ],
)
def test_clicks_that_are_no_counts_are_refused(clicks, words):
    with pytest.raises(NNNormError, match=words):
        Popularity(clicks)


@pytest.mark.parametrize("weight", [-0.1, np.nan, np.inf, "much", True])
def test_a_weight_that_is_no_number_of_at_least_0_is_refused(weight):
    with pytest.raises(NNNormError, match="the weight of a Popularity must be"):
        Popularity([1], weight=weight)


def test_what_can_t_be_added_is_refused(hubs, small):
    with pytest.raises(NNNormError, match="one number per item of the bias, 3; got 2"):
        hubs + Popularity([1, 2])
    with pytest.raises(NNNormError, match="already includes clicks"):
        hubs + Popularity([1, 2, 3]) + Popularity([1, 2, 3])
    with pytest.raises(NNNormError, match=r"must be a Popularity, .* got Bias"):
        hubs + hubs
    gated = InvertedSoftmax(gated=True).fit(small.gallery, small.references)
    with pytest.raises(NNNormError, match=r"a gated bias \(qbnorm\) corrects only some queries"):
        gated + Popularity(np.ones(23))


# --- choosing the weight --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traffic():
    """Items whose queries are hard to tell apart, with Zipf's traffic and clicks of the past."""
    gallery, asked, past = make_embeddings(n_items=150, n_past=60, dim=12, seed=2)
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, 151) ** 1.2
    popularity /= popularity.sum()
    items = rng.choice(150, 600, p=popularity)
    queries = asked[5 * items + rng.integers(0, 5, 600)]
    queries = queries + 0.25 * rng.normal(size=queries.shape)
    return {
        "gallery": gallery,
        "references": past,
        "queries": queries,
        "truth": items,
        "clicks": rng.multinomial(5000, popularity),
    }


def test_tune_chooses_a_weight_where_popular_items_are_right_more_often(traffic):
    tuning = nnnorm.tune(**traffic, normalize=True)
    chosen = tuning.popularity
    assert chosen.weight > 0
    assert tuning.bias.params["popularity_weight"] == chosen.weight
    found = nnnorm.evaluate(
        traffic["queries"],
        traffic["gallery"],
        tuning.bias,
        truth=traffic["truth"],
        normalize=True,
    )
    assert found.recall(1) == pytest.approx(chosen.recall_at_1)
    assert found.recall(1) > tuning.best.recall_at_1
    gain = found.recall(1) - tuning.uncorrected.recall_at_1
    assert tuning.gain.mean == pytest.approx(gain)
    assert tuning.to_dict()["popularity"]["weight"] == chosen.weight


def test_tune_leaves_out_a_popularity_that_does_not_help(traffic):
    wrong = traffic | {"clicks": traffic["clicks"][::-1]}
    tuning = nnnorm.tune(**wrong, normalize=True)
    assert tuning.popularity.weight == 0
    assert "popularity_weight" not in tuning.bias.params
    assert nnnorm.tune(**(traffic | {"clicks": None}), normalize=True).popularity is None


def test_the_weights_that_are_tried_grow_with_the_scores(traffic):
    unit = {
        name: rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for name, rows in traffic.items()
        if name in ("gallery", "references", "queries")
    }
    long = {name: 10 * rows for name, rows in unit.items()}
    first, second = (
        nnnorm.tune(**(traffic | rows), normalize=False).popularity for rows in (unit, long)
    )
    assert second.weight == pytest.approx(100 * first.weight, rel=0.01)


def test_clicks_are_checked_before_the_work_and_gated_methods_are_left_out(traffic, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("the work has begun")

    second = {"gallery_references": traffic["gallery"]}
    with monkeypatch.context() as patch:
        patch.setattr("nnnorm.evaluation.tuning.Trial", refuse)
        for wrong, words in (
            ({"clicks": [1, 2]}, "150 numbers, one per item; got 2"),
            ({"clicks": -traffic["clicks"]}, "clicks must be at least 0"),
            ({"methods": ["qbnorm"]}, "qbnorm decides per query"),
            ({"methods": ["dualdis"]} | second, "dualdis decides per query"),
        ):
            with pytest.raises(NNNormError, match=words):
                nnnorm.tune(**(traffic | wrong), normalize=True)
    tuning = nnnorm.tune(**traffic, methods="all", normalize=True)
    assert "qbnorm" not in {cell.method for cell in tuning.grid}
    grids = {"dualis": {"beta_query": [20.0], "beta_gallery": [5.0]}}
    tuning = nnnorm.tune(**traffic, **second, methods=["dualis"], grids=grids, normalize=True)
    assert {cell.method for cell in tuning.grid} == {"none", "dualis"}


def test_a_weight_at_the_end_of_the_grid_is_reported(traffic):
    # The right items have so many clicks that no weight is too large.
    counts = np.bincount(traffic["truth"], minlength=150)
    popular = counts >= np.sort(counts)[-2]
    asked = np.isin(traffic["truth"], np.flatnonzero(popular))
    sure = traffic | {
        "queries": traffic["queries"][asked],
        "truth": traffic["truth"][asked],
        "clicks": np.where(popular, 3, 0),
    }
    noise = 8 * np.random.default_rng(1).normal(size=sure["queries"].shape)
    with pytest.warns(nnnorm.NNNormWarning, match="the largest one tried, 0.12"):
        nnnorm.tune(**(sure | {"queries": sure["queries"] + noise}), normalize=True)


@pytest.mark.parametrize(
    ("popularity", "growth", "words"),
    [
        (Popularity(np.ones(60)), float("nan"), "growth must be a number from 1 to"),
        (Popularity(np.ones(60)), -1, "growth must be a number from 1 to"),
        ([1.0, 2.0], 10, "popularity must be a Popularity, .* got list"),
    ],
)
def test_room_for_clicks_is_a_finite_factor_of_a_popularity(popularity, growth, words):
    rng = np.random.default_rng(0)
    corrector = nnnorm.Corrector.fit(
        rng.normal(size=(60, 8)), rng.normal(size=(90, 8)), nnnorm.NNN(4, 0.5), normalize=True
    )
    with pytest.raises(nnnorm.NNNormError, match=words):
        corrector.with_room(popularity, growth=growth)
