"""Adversarial and corrupt items are found, and honest ones aren't."""

import json

import numpy as np
import pytest

import nnnorm
from nnnorm import Corrector, NNNormError
from nnnorm.embeddings import open_embeddings
from nnnorm.evaluation.outliers import REMOVE, SIGNALS, WATCH, Outlier, Scan, count_alerts, screen
from nnnorm.report.tables import tabulate_scan


@pytest.fixture(scope="module")
def shapes():
    return nnnorm.load_shapes()


@pytest.fixture(scope="module")
def bank(shapes):
    return shapes.references[:3000]


@pytest.fixture(scope="module")
def hub(shapes):
    """The mean of many queries that are not in the bank."""
    return unit(shapes.references[6000:6300].mean(axis=0))


@pytest.fixture(scope="module")
def topic(shapes):
    """The mean of the 200 queries nearest to one that is not in the bank."""
    others = shapes.references[6000:]
    return unit(others[np.argsort(-others @ others[0])[:200]].mean(axis=0))


@pytest.fixture(scope="module")
def clean(shapes, bank):
    """A scan of the gallery as it ships."""
    return nnnorm.scan(shapes.gallery, bank)


@pytest.fixture(scope="module")
def corrector(shapes, bank):
    return Corrector.fit(shapes.gallery[:800], bank)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def add(gallery, *rows):
    return np.concatenate([gallery, np.stack(rows)]).astype(np.float32)


# --- scan ---


def test_planted_items_are_the_first_alerts_and_say_why(shapes, bank, hub, topic):
    found = nnnorm.scan(add(shapes.gallery, hub, topic), bank)
    assert {outlier.item for outlier in found.outliers[:2]} == {1000, 1001}
    assert set(found.to_remove) == {1000, 1001}
    for outlier in found.outliers[:2]:
        assert outlier.verdict == "remove"
        assert outlier.score >= REMOVE
        assert set(outlier.signals) == set(SIGNALS)
        assert any("a typical item: " in reason for reason in outlier.reasons)


def test_a_clean_gallery_has_nothing_to_remove(clean):
    assert clean.to_remove == []
    assert len(clean.outliers) <= clean.budget == 5
    assert all(outlier.verdict == "watch" for outlier in clean.outliers)
    assert len(clean.kept) == 1000


@pytest.mark.slow
def test_verdicts_follow_suspicion_within_the_budget(shapes, bank, hub):
    gallery = add(shapes.gallery, hub)
    found = nnnorm.scan(gallery, bank, budget="100%")
    expected = ["fine" if s < WATCH else "watch" if s < REMOVE else "remove"
                for s in found.scores]  # fmt: skip
    assert found.verdicts == expected
    totals = [outlier.score for outlier in found.outliers]
    assert totals == sorted(totals, reverse=True)
    np.testing.assert_allclose(found.scores, sum(found.signals.values()))
    one = nnnorm.scan(gallery, bank, budget=1)
    assert [outlier.item for outlier in one.outliers] == [1000]


@pytest.mark.slow
def test_near_copies_of_a_hub_do_not_hide_each_other(shapes, bank, hub):
    rng = np.random.default_rng(0)
    copies = unit(hub + 0.01 * rng.normal(size=(30, 64)))
    assert (copies @ copies.T).min() > 0.98
    found = nnnorm.scan(add(shapes.gallery, *copies), bank, budget=30)
    assert set(found.to_remove) == set(range(1000, 1030))
    assert "it is one of 30 near-duplicates" in found.outliers[0].reasons


def test_an_item_in_a_dense_place_is_judged_by_its_like(shapes, clean):
    """The more neighbors an item has, the higher the scores that are expected of it."""
    near = np.sort(shapes.gallery @ shapes.gallery.T, axis=1)[:, -11:-1].mean(axis=1)
    by_bias, by_neighbors = (
        abs(np.corrcoef(near, clean.signals[name])[0, 1]) for name in ("bias", "neighbors")
    )
    assert by_neighbors < by_bias / 2


@pytest.mark.slow
def test_the_verdicts_do_not_depend_on_scale_order_or_memory(shapes, bank, hub):
    gallery = add(shapes.gallery, hub)
    found = nnnorm.scan(gallery, bank)
    scaled = nnnorm.scan(3 * gallery, 3 * bank, normalize=True)
    small = nnnorm.scan(gallery, bank, memory_budget=2**20)
    for other in (scaled, small):
        assert other.to_remove == found.to_remove
        for name in SIGNALS:
            np.testing.assert_allclose(other.signals[name], found.signals[name], atol=0.05)
    turned = nnnorm.scan(gallery[::-1], bank)
    assert turned.to_remove == [1000 - item for item in found.to_remove]


def test_a_gallery_larger_than_the_landmarks_is_judged_whole(shapes, bank, hub, monkeypatch):
    monkeypatch.setattr("nnnorm.evaluation.outliers._MOST_LANDMARKS", 300)
    found = nnnorm.scan(add(shapes.gallery, hub), bank)
    assert found.outliers[0].item == 1000
    assert found.to_remove == [1000]
    assert found.scores.shape == (1001,)


def test_a_corrector_takes_the_place_of_the_references(shapes, corrector, hub):
    found = nnnorm.scan(add(shapes.gallery[:800], hub), corrector=corrector)
    assert found.to_remove == [800]
    assert found.n_references == len(corrector.bank)


# --- broken rows ---


def test_a_row_that_is_too_large_is_not_said_to_be_infinite(shapes, bank):
    rows = shapes.gallery[:200].copy()
    rows[3] = 1e30
    (first, *_) = nnnorm.scan(rows, bank).outliers
    assert (first.item, first.reasons) == (3, ("it has entries that are not finite or too large",))


@pytest.mark.slow
def test_broken_rows_are_reported_and_the_others_judged(shapes, bank, hub):
    rows = shapes.gallery.copy()
    rows[3], rows[5, 2], rows[8], rows[9] = 0, np.nan, 0.125, 3 * rows[9]
    found = nnnorm.scan(add(rows, hub), bank)
    assert found.to_remove == [3, 5, 8, 9, 1000]
    reasons = [outlier.reasons[0] for outlier in found.outliers[:4]]
    assert reasons[0] == "it is all zeros"
    assert reasons[1] == "it has entries that are not finite or too large"
    assert reasons[2] == "all its entries are equal"
    assert reasons[3] == "its norm is 3, others have unit norms"
    assert np.isinf(found.scores[[3, 5, 8, 9]]).all()
    json.dumps(found.to_dict(), allow_nan=False)
    clean = nnnorm.scan(np.delete(add(rows, hub), [3, 5, 8, 9], axis=0), bank)
    rest = np.delete(np.arange(1001), [3, 5, 8, 9])
    np.testing.assert_allclose(found.scores[rest], clean.scores, atol=0.05)


def test_norms_far_from_all_others_are_faults_where_norms_vary(shapes, bank):
    rng = np.random.default_rng(0)
    rows = shapes.gallery * rng.uniform(4, 6, size=(1000, 1))
    rows[17] *= 50
    found = nnnorm.scan(rows.astype(np.float32), bank, normalize=False)
    assert found.outliers[0].item == 17
    assert "others have 5" in found.outliers[0].reasons[0]


def test_a_gallery_without_any_sound_row_is_refused(bank):
    with pytest.raises(NNNormError, match="all zeros"):
        nnnorm.scan(np.zeros((20, 64), np.float32), bank)


# --- admission ---


def test_a_corrector_admits_honest_items_and_no_planted_ones(shapes, corrector, hub, topic):
    found = screen(corrector, add(shapes.gallery[800:], hub, topic))
    assert set(found.to_remove) == {200, 201}
    assert found.kept.tolist() == list(range(200))
    assert found.budget is None


@pytest.mark.slow
def test_admission_judges_each_item_by_itself(shapes, corrector, hub):
    alone = screen(corrector, hub[None])
    among = screen(corrector, add(shapes.gallery[800:], hub, hub, hub))
    for name in SIGNALS:
        assert alone.signals[name][0] == pytest.approx(among.signals[name][-1], abs=1e-3)


def test_rows_that_a_corrector_can_t_store_are_not_admitted(shapes, corrector):
    rows = shapes.gallery[800:804].copy()
    rows[1], rows[2] = 0, 2 * rows[2]
    found = screen(corrector, rows, ids=["a", "b", "c", "d"])
    assert found.to_remove == ["b", "c"]
    assert corrector.transform_items(rows[found.kept]).shape == (2, 66)


# --- budgets, files, wrong input ---


@pytest.mark.parametrize(
    ("budget", "n_items", "expected"),
    [
        ("0.2%", 8091, 16),
        (0.002, 8091, 16),
        ("0.2%", 900, 5),
        ("7", 900, 7),
        (1, 900, 1),
        (2000, 900, 900),
    ],
)
def test_a_budget_is_a_share_or_a_number(budget, n_items, expected):
    assert count_alerts(budget, n_items) == expected


@pytest.mark.parametrize(
    "budget", ["", "%", "many", "-1%", 0, -3, "101%", 2.5, float("nan"), "inf", True, None]
)
def test_a_budget_that_makes_no_sense_is_refused(shapes, bank, budget):
    with pytest.raises(NNNormError, match=r"budget must be a share .* or a whole number"):
        nnnorm.scan(shapes.gallery[:50], bank[:50], budget=budget)


def test_the_list_to_remove_is_text_or_json(tmp_path):
    outliers = (
        Outlier(1, "b", "remove", ("x",), 20.0, {}),
        Outlier(0, "a", "watch", (), 9, {}),
    )
    found = Scan(outliers, np.zeros(2), {}, 2, 99, 5)
    found.save(tmp_path / "out.txt")
    found.save(tmp_path / "out.json")
    assert (tmp_path / "out.txt").read_text() == "b\n"
    assert json.loads((tmp_path / "out.json").read_text()) == ["b"]
    with pytest.raises(NNNormError, match=r"must end in \.txt or \.json; got .*out\.csv"):
        found.save(tmp_path / "out.csv")
    odd = Scan((Outlier(1, "b\nc", "remove", (), 20.0, {}),), np.zeros(2), {}, 2, 99, 5)
    with pytest.raises(NNNormError, match=r"'b\\nc' can't be a line .* write a \.json file"):
        odd.save(tmp_path / "out.txt")


def test_the_table_counts_verdicts_and_says_when_the_budget_is_used_up():
    outliers = (Outlier(1, "b", "remove", ("x", "y"), 20.0, {}),)
    table = tabulate_scan(Scan(outliers, np.zeros(2), {}, 2, 99, 1))
    assert table.title == "1 to remove among 2 items"
    assert table.rows == (("b", "20.0", "remove", "x; y"),)
    assert "All 1 alerts of the budget are used" in table.notes[0]
    assert tabulate_scan(Scan(outliers, np.zeros(2), {}, 2, 99, 2)).notes == ()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, b, c: nnnorm.scan(g), "got neither"),
        (lambda g, b, c: nnnorm.scan(g, b, corrector=c), "got both"),
        (
            lambda g, b, c: screen(c, g[:, :32]),
            "items and references must have the same dimension; got shapes",
        ),
        (lambda g, b, c: nnnorm.scan(g[:, :32], b), "must have the same dimension"),
        (lambda g, b, c: screen(c, g[:0]), "items must have at least one row"),
        (lambda g, b, c: nnnorm.scan(g, b * (np.arange(len(b)) > 0)[:, None]), "row 0 is all zero"),
        (lambda g, b, c: nnnorm.scan(g[:3], b), "scan needs 8 rows of gallery; got 3"),
        (lambda g, b, c: nnnorm.scan(g, b[:2]), "scan needs 8 rows of references; got 2"),
        (lambda g, b, c: nnnorm.scan(g, b, ids=[1] * 50), "ids of gallery must be unique"),
        (lambda g, b, c: nnnorm.scan(g, corrector=7), "corrector must be a Corrector"),
        (lambda g, b, c: nnnorm.scan(g, corrector=c, normalize=True), "leave out normalize"),
        (
            lambda g, b, c: nnnorm.scan(open_embeddings(g, normalize=True), 3 * b),
            "have norm 1, but rows of references",
        ),
    ],
)
def test_wrong_input_gets_a_sentence(shapes, bank, corrector, call, words):
    with pytest.raises(NNNormError, match=words):
        call(shapes.gallery[:50], bank, corrector)
