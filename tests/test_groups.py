"""Mixed galleries: with one label per item, items of all groups are found."""

import numpy as np
import pytest

from nnnorm import (
    CSLS,
    DN,
    NNN,
    Corrector,
    InvertedSoftmax,
    NNNormError,
    NNNormWarning,
    Popularity,
    Sinkhorn,
    build_index,
    check,
    evaluate,
    load_shapes,
    search,
    tune,
)
from nnnorm.distributed import make_worker
from nnnorm.evaluation import measure_drift
from nnnorm.index import copy_index, verify_index
from tests import reference


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def mixed():
    """Photos that answer and texts that distract, in cones of their own; text queries."""
    rng = np.random.default_rng(5)
    topics, cones = rng.normal(size=(300, 24)), 8 * np.eye(24)[:2]
    photos = unit(topics[:100] + cones[0])
    texts, queries, past = (
        unit(topics[rows] + cones[1] + 0.4 * rng.normal(size=(100, 24)))
        for rows in (slice(100, 200), slice(100), slice(200, 300))
    )
    gallery = np.concatenate([photos, texts])
    return {"gallery": gallery, "past": past, "queries": queries, "kinds": KINDS}


KINDS = ["photo"] * 100 + ["text"] * 100


def recall(mixed, bias, k=10):
    found = search(mixed["queries"], mixed["gallery"], bias, k=k).indices
    return (found == np.arange(100)[:, None]).any(axis=1).mean()


# --- values ---------------------------------------------------------------------------------------


def test_photos_that_texts_hide_are_found_with_groups(mixed):
    plain = NNN().fit(mixed["gallery"], mixed["past"], allow_gallery_rows=True)
    grouped = NNN().fit(mixed["gallery"], mixed["past"], groups=KINDS)
    assert recall(mixed, None) < 0.05
    assert recall(mixed, plain) < 0.2
    assert recall(mixed, grouped) > 0.7
    assert grouped.weight == 1
    assert 0 < grouped.params["alpha"] <= 0.6
    assert grouped.params["groups"]["photo"] < 0 < grouped.params["groups"]["text"]


@pytest.mark.parametrize("between", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "method", [NNN(6, 0.7), NNN(6, 0.7, center=True), CSLS(5), DN(0.25)], ids=repr
)
def test_the_correction_is_that_of_the_naive_lines(mixed, method, between):
    gallery = mixed["gallery"].astype(np.float64)
    scores = gallery @ mixed["past"].T.astype(np.float64)
    k = getattr(method, "reference_k", len(mixed["past"]))
    plain = values = reference.m_k(scores, k)
    if getattr(method, "center", False):
        values = reference.m_k((gallery - gallery.mean(axis=0)) @ mixed["past"].T, k)
    right = reference.two_level(values, plain, KINDS, method.weight, between)
    bias = method.fit(mixed["gallery"], mixed["past"], groups=KINDS, between=between)
    np.testing.assert_allclose(bias.correction, right, atol=1e-5)


def test_alpha_is_the_mean_of_what_groups_choose_by_themselves(mixed):
    bias = NNN().fit(mixed["gallery"], mixed["past"], groups=KINDS, duplicates="keep")
    k = bias.reference_k
    halves = (mixed["gallery"][:100], mixed["gallery"][100:])
    alphas = [NNN(k).fit(half, mixed["past"], duplicates="keep").weight for half in halves]
    assert bias.params["alpha"] == pytest.approx(np.mean(alphas), abs=1e-3)


@pytest.mark.parametrize("n_groups", [1, 2, 20])
def test_labels_that_mean_nothing_change_nothing(mixed, n_groups):
    photos = mixed["gallery"][:100]
    labels = np.random.default_rng(2).integers(0, n_groups, len(photos))
    plain = NNN().fit(photos, mixed["past"])
    grouped = NNN().fit(photos, mixed["past"], groups=labels)
    np.testing.assert_allclose(grouped.correction, plain.correction, atol=1e-7)


def test_groups_of_one_or_two_items_are_treated_like_the_whole_gallery(mixed):
    labels = ["alone", "pair", "pair", *KINDS[3:]]
    offsets = NNN().fit(mixed["gallery"], mixed["past"], groups=labels).params["groups"]
    assert offsets["alone"] == offsets["pair"] == 0
    assert offsets["photo"] != 0


def test_groups_of_very_unequal_size_and_three_groups_are_corrected(mixed):
    labels = ["photo"] * 10 + ["text"] * 50 + ["caption"] * 50
    rows = np.r_[:10, 100:200]
    bias = NNN().fit(mixed["gallery"][rows], mixed["past"], groups=labels)
    found = search(mixed["queries"][:10], mixed["gallery"][rows], bias, k=10).indices
    assert (found == np.arange(10)[:, None]).any(axis=1).mean() > 0.6
    assert bias.params["groups"]["photo"] < 0


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (KINDS[:-1], r"one label per item, shape \(200,\); got shape \(199,\)"),
        ([None, *KINDS[1:]], "item 0 has None"),
        ([*KINDS[:-1], float("nan")], "item 199 has nan"),
        ([*KINDS[:-1], ""], "item 199 has ''"),
        (np.full(200, 0.5), "text or whole numbers; got float64"),
    ],
)
def test_wrong_labels_are_rejected(mixed, groups, message):
    with pytest.raises(NNNormError, match=message):
        NNN().fit(mixed["gallery"], mixed["past"], groups=groups)


def test_a_weight_between_groups_needs_groups(mixed):
    for fit in (NNN().fit, Corrector.fit):
        with pytest.raises(NNNormError, match=r"between=0.5 needs groups, got None; pass groups"):
            fit(mixed["gallery"], mixed["past"], between=0.5)


@pytest.mark.parametrize("method", [InvertedSoftmax(20.0), Sinkhorn()], ids=repr)
def test_methods_without_a_weight_take_no_groups(mixed, method):
    with pytest.raises(NNNormError, match="takes no groups; use nnn, csls or dn"):
        method.fit(mixed["gallery"], mixed["past"], groups=KINDS)


# --- correctors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corrector(mixed):
    return Corrector.fit(mixed["gallery"], mixed["past"], groups=KINDS)


def test_later_items_get_the_values_of_a_fit(mixed, corrector):
    some = np.r_[90:110]
    found = corrector.bias_for(mixed["gallery"][some], groups=np.array(KINDS)[some])
    np.testing.assert_allclose(found.values, corrector.bias.values[some], atol=1e-6)
    assert found.weight == corrector.weight == 1
    assert found.params["groups"] == corrector.groups
    assert found.fingerprints["corrector"] == corrector.fingerprint


def test_labels_of_the_other_group_are_warned_of(mixed, corrector):
    with pytest.warns(NNNormWarning, match="200 of 200 items look like another group .* labeled t"):
        corrector.transform_items(mixed["gallery"], groups=KINDS[::-1])
    with pytest.warns(NNNormWarning, match="1 of 1 items .* labeled text, but looks like photo"):
        corrector.transform_items(mixed["gallery"][:1], groups=["text"])


def test_groups_that_do_not_lie_apart_are_not_compared(mixed):
    labels = ["even", "odd"] * 100
    corrector = Corrector.fit(mixed["gallery"], mixed["past"], groups=labels)
    corrector.transform_items(mixed["gallery"], groups=labels[::-1])  # warnings are errors


def test_a_corrector_is_saved_with_its_groups(mixed, corrector, tmp_path):
    corrector.save(tmp_path / "corrector.safetensors")
    loaded = Corrector.load(tmp_path / "corrector.safetensors")
    assert loaded.groups == corrector.groups
    assert loaded.fingerprint == corrector.fingerprint
    assert loaded.sample_groups == tuple(KINDS)
    rows = loaded.transform_items(mixed["gallery"], groups=KINDS)
    np.testing.assert_array_equal(rows, corrector.transform_items(mixed["gallery"], groups=KINDS))


def test_other_offsets_are_another_corrector(mixed, corrector):
    weaker = Corrector.fit(mixed["gallery"], mixed["past"], groups=KINDS, between=0.5)
    assert weaker.method == corrector.method
    assert weaker.fingerprint != corrector.fingerprint


def test_stored_rows_rank_like_the_exact_search(mixed, corrector):
    stored = corrector.transform_items(mixed["gallery"], groups=KINDS)
    asked = corrector.transform_queries(mixed["queries"])
    exact = search(mixed["queries"], mixed["gallery"], corrector.bias, k=5)
    np.testing.assert_array_equal(np.argsort(-(asked @ stored.T))[:, :5], exact.indices)
    norms = np.linalg.norm(stored, axis=1)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-5)


@pytest.mark.parametrize("kind", ["photo", "text"])
@pytest.mark.filterwarnings("ignore:.* look like another group")
def test_stored_rows_have_room_for_any_item_of_any_group(mixed, corrector, kind):
    extremes = np.concatenate([mixed["past"], -mixed["past"]])
    rows = corrector.transform_items(extremes, groups=[kind] * len(extremes))
    assert np.isfinite(rows).all()


def test_clicks_are_added_to_groups(mixed, corrector):
    clicks = Popularity(np.arange(200), weight=0.02)
    roomy = corrector.with_room(clicks)
    stored = roomy.transform_items(mixed["gallery"], groups=KINDS, popularity=clicks)
    exact = search(mixed["queries"], mixed["gallery"], corrector.bias + clicks, k=5)
    found = np.argsort(-(roomy.transform_queries(mixed["queries"]) @ stored.T))[:, :5]
    np.testing.assert_array_equal(found, exact.indices)


def test_a_refit_keeps_groups_and_their_weight(mixed):
    first = Corrector.fit(mixed["gallery"], mixed["past"], groups=KINDS, between=0.5)
    second = first.refit(mixed["past"][:80], gallery=mixed["gallery"], groups=KINDS)
    assert second.bias.params["between"] == 0.5
    assert set(second.groups) == {"photo", "text"}
    assert second.refit_report.correlation > 0.9


def test_drift_is_measured_with_the_groups_of_the_sample(mixed, corrector):
    found = measure_drift(corrector, mixed["queries"])
    assert found.hub_share < found.hub_share_uncorrected
    again = measure_drift(corrector, mixed["queries"], gallery=mixed["gallery"], groups=KINDS)
    assert again.hub_share == pytest.approx(found.hub_share, abs=0.02)


@pytest.mark.parametrize("call", ["bias_for", "transform_items"])
def test_items_and_corrector_must_agree_about_groups(mixed, corrector, call):
    items = mixed["gallery"][:3]
    with pytest.raises(NNNormError, match=r"fitted with groups \(photo, text\); pass groups"):
        getattr(corrector, call)(items)
    with pytest.raises(NNNormError, match=r"fitted with, photo, text; got 'video': use one"):
        getattr(corrector, call)(items, groups=["photo", "video", "text"])
    with pytest.raises(NNNormError, match=r"one label per item, shape \(3,\)"):
        getattr(corrector, call)(items, groups=["photo"])
    plain = Corrector.fit(mixed["gallery"], mixed["past"])
    with pytest.raises(NNNormError, match="fitted without groups; leave out groups"):
        getattr(plain, call)(items, groups=["photo"] * 3)


# --- indexes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["faiss:", "sqlite:"])
def test_an_index_with_groups_ranks_like_the_exact_search(mixed, corrector, url):
    entries = [{"kind": kind} for kind in KINDS]
    with build_index(
        url, mixed["gallery"][:150], corrector, metadata=entries[:150], groups="kind"
    ) as index:
        index.add(mixed["gallery"][150:190], ids=range(150, 190), groups=KINDS[150:190],
                  metadata=entries[150:190])  # fmt: skip
        index.upsert(mixed["gallery"][180:], ids=range(180, 200), groups="kind",
                     metadata=entries[180:])  # fmt: skip
        exact = search(mixed["queries"], mixed["gallery"], corrector.bias, k=5)
        np.testing.assert_array_equal(index.search(mixed["queries"], 5).ids, exact.indices)
        assert verify_index(index, mixed["queries"]).is_good
        weaker = Corrector.fit(mixed["gallery"], mixed["past"], groups=KINDS, between=0.5)
        with pytest.raises(NNNormError, match="fitted with groups"):
            index.refresh(weaker)
        index.refresh(weaker, groups="kind")
        exact = search(mixed["queries"], mixed["gallery"], weaker.bias, k=5)
        np.testing.assert_array_equal(index.search(mixed["queries"], 5).ids, exact.indices)
        index.refresh(corrector, groups=dict(enumerate(KINDS)))
        assert verify_index(index, mixed["queries"]).is_good
        copied = copy_index(index.backend, "sqlite:", references=mixed["past"], groups="kind")
        assert set(copied.corrector.groups) == {"photo", "text"}


def test_a_missing_group_of_an_item_in_an_index_is_named(mixed, corrector):
    with pytest.raises(NNNormError, match="item 0 has no key 'kind'"):
        build_index("faiss:", mixed["gallery"], corrector, groups="kind")
    index = build_index("faiss:", mixed["gallery"], corrector, groups=KINDS)
    with pytest.raises(NNNormError, match="no label for the item 1"):
        index.refresh(corrector, groups={0: "photo"})
    with pytest.raises(NNNormError, match="fitted with groups"):
        index.add(mixed["gallery"][:1], ids=[900])


# --- tuning ---------------------------------------------------------------------------------------


def test_tune_chooses_the_weight_between_groups(mixed):
    known = {"queries": mixed["queries"], "truth": np.arange(100)}
    tuned = tune(mixed["gallery"], mixed["past"], groups=KINDS, **known)
    assert tuned.best.recall_at_1 > tuned.uncorrected.recall_at_1 + 0.5
    assert tuned.between == tuned.bias.params["between"] > 0
    method = NNN(**tuned.best.params)
    fitted = method.fit(mixed["gallery"], mixed["past"], groups=KINDS, between=tuned.between,
                        duplicates="drop")  # fmt: skip
    np.testing.assert_allclose(fitted.correction, tuned.bias.correction, atol=1e-6)
    measured = evaluate(mixed["queries"], mixed["gallery"], tuned.bias, truth=np.arange(100))
    assert measured.recall(1) == pytest.approx(tuned.best.recall_at_1)


# --- check ----------------------------------------------------------------------------------------


def test_check_detects_two_groups_and_shows_what_labels_would_gain(mixed):
    asked = {"queries": mixed["queries"]}
    found = check(mixed["gallery"], mixed["past"], **asked)
    assert found.mixed.sizes == (100, 100)
    assert found.mixed.apart > 3
    assert (found.verdict, found.recommended) == ("try", "mixed")
    assert "Your items form two groups" in " ".join(str(found).split())
    assert "groups=groups" in found.next[0]
    known = check(mixed["gallery"], mixed["past"], truth=np.arange(100), **asked)
    assert known.mixed.gain.low > 0
    # Labels for photos alone would choose a weight that buries the texts.
    assert (known.tuned, known.recommended, known.mixed.has_both) == (None, "mixed", False)
    assert "Label queries for both" in " ".join(str(known).split())
    given = check(mixed["gallery"], mixed["past"], truth=np.arange(100), groups=KINDS, **asked)
    assert given.mixed is None
    assert given.automatic.gain.mean == pytest.approx(known.mixed.gain.mean)
    assert given.automatic.params["groups"].keys() == {"photo", "text"}


@pytest.mark.slow
def test_check_finds_no_groups_in_a_gallery_of_one_kind(mixed):
    shapes = load_shapes()
    assert check(shapes.gallery, shapes.references, queries=shapes.queries).mixed is None
    photos = check(mixed["gallery"][:100], mixed["past"], queries=mixed["queries"])
    assert photos.mixed is None


def test_parquet_files_have_a_column_of_groups(mixed, corrector):
    pyarrow = pytest.importorskip("pyarrow")
    rows = {"id": range(200), "embedding": list(mixed["gallery"]), "kind": KINDS}
    for output, right in (
        ("bias", corrector.bias.values),
        ("vectors", corrector.transform_items(mixed["gallery"], groups=KINDS)),
    ):
        made = make_worker(corrector, groups="kind", output=output)(pyarrow.table(rows))
        found = np.array(made.column(1).to_pylist(), dtype=np.float32)
        np.testing.assert_allclose(found, right, atol=1e-6)
    with pytest.raises(NNNormError, match="fitted with groups"):
        make_worker(corrector)
    with pytest.raises(NNNormError, match="expected a column 'sort'"):
        make_worker(corrector, groups="sort")(pyarrow.table(rows))
