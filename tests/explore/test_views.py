"""The page shows the same figures as the package's functions."""

from dataclasses import replace

import numpy as np
import pytest

import nnnorm
from nnnorm import NNN, NNNormError
from nnnorm.evaluation import count_occurrences, diagnose, expect_occurrences, find_hubs
from nnnorm.explore import Material, Session
from nnnorm.explore.candidates import Candidates
from nnnorm.explore.projection import project
from nnnorm.explore.session import result_of
from nnnorm.explore.views import Views, to_json
from tests import reference

SETTINGS = [
    ("nnn", {}),
    ("nnn", {"reference_k": 1, "alpha": 1.5, "center": False}),
    ("nnn", {"reference_k": 128, "alpha": 0.7, "center": True}),
    ("csls", {"reference_k": 8}),
    ("dn", {"weight": 1.0}),
    ("is", {"beta": 20.0}),
    ("qbnorm", {"beta": 20.0}),
]


@pytest.fixture(scope="module")
def tied():
    """Six items in three pairs of copies, which are too few for a scan."""
    rng = np.random.default_rng(0)
    axes = np.eye(4)[[0, 1, 2, 0, 1, 2]]  # products with these have no rounding, so copies are tied
    gallery, queries, bank = (
        nnnorm.open_embeddings(rows, normalize=True)
        for rows in (axes, rng.normal(size=(4, 4)), rng.normal(size=(9, 4)))
    )
    return Session(Material(gallery, queries, bank))


def fitted(session, name, params):
    method = session.open_method(name, params)
    return method, method.fit(
        session.material.gallery, session.material.references, duplicates="drop"
    )


@pytest.mark.parametrize(("name", "params"), SETTINGS)
def test_every_setting_ranks_as_a_search_with_its_own_fit(session, name, params):
    method, bias = fitted(session, name, params)
    answer = session.rank(method)
    exact = nnnorm.search(session.material.queries, session.material.gallery, bias, k=10)
    assert answer.n_uncertain == 0
    np.testing.assert_allclose(answer.ranking.scores, exact.scores, atol=2e-5)
    assert (answer.ranking.indices == exact.indices).mean() > 0.999  # equal but for the last bits


def test_few_candidates_still_give_the_exact_ranking(session):
    _, bias = fitted(session, "nnn", {"reference_k": 1, "alpha": 1.5, "center": False})
    queries, gallery = session.material.queries, session.material.gallery
    few = Candidates(queries, gallery, [], depth=12)
    exact = nnnorm.search(queries, gallery, bias, k=10)
    found = few.rank(bias, 10)
    assert (found.ranking.indices == exact.indices).mean() > 0.999


def test_one_query_is_shown_as_search_ranks_it(session, views):
    method, bias = fitted(session, "nnn", {})
    found = views.search(method, query=7)
    gallery, row = session.material.gallery, session.material.queries.take(np.array([7]))
    before, after = (nnnorm.search(row, gallery, some, k=200).indices[0] for some in (None, bias))
    assert found["before"].tolist() == before[:12].tolist()
    assert found["after"].tolist() == after[:12].tolist()
    was = {int(item): place + 1 for place, item in enumerate(before)}
    assert found["after_was"].tolist() == [was[int(item)] for item in after[:12]]
    exact = nnnorm.search(session.material.queries, gallery, bias).confidence
    assert found["confidence"] == pytest.approx(exact[7], abs=2e-5)
    assert found["confidence_rank"] == pytest.approx((exact < exact[7]).mean(), abs=0.01)
    assert found["right"] == [1]
    assert found["right_was"].tolist() == [was[1]]


def test_a_filter_leaves_only_the_items_that_have_the_value(session, views):
    found = views.search(session.open_method("nnn", {}), query=0, where={"background": "navy"})
    cells = session.material.metadata["background"]
    assert {cells[item] for item in found["before"]} == {"navy"}
    few = views.search(session.open_method("nnn", {}), query=0, where={"background": "navy"}, k=2)
    assert len(few["after"]) == 2
    assert (few["confidence"], few["confidence_rank"]) == (found["confidence"], None)
    scores = found["after_scores"].astype(float)
    assert few["confidence"] == pytest.approx(reference.confidence(scores[None])[0], abs=1e-6)


def test_a_right_item_that_is_filtered_out_has_no_place(session, views):
    method, cells = session.open_method("nnn", {}), session.material.metadata["background"]
    own = cells[session.material.right_items(7)[0]]
    other = next(cell for cell in cells if cell != own)
    shown = views.search(method, query=7, where={"background": own})
    assert (shown["right"], shown["n_filtered_out"]) == ([1], 0)
    shown = views.search(method, query=7, where={"background": other})
    assert (shown["right"], shown["n_filtered_out"]) == ([], 1)
    assert shown["right_was"].size == 0


def test_equal_scores_have_different_places(tied):
    method = tied.open_method("nnn", {})
    found = Views(tied).search(method, item=0, k=6)
    before, after = found["before"].tolist(), found["after"].tolist()
    assert found["before_scores"][0] == found["before_scores"][1]
    assert found["before_now"].tolist() == [after.index(item) + 1 for item in before]
    assert found["after_was"].tolist() == [before.index(item) + 1 for item in after]


def test_if_nothing_was_scanned_no_item_is_fine(tied):
    assert result_of(tied.scan) is None
    views, method = Views(tied), tied.open_method("nnn", {})
    assert set(views.hubs(method)["verdicts"]) <= {"not scanned"}
    assert views.hub(0)["verdict"] == "not scanned"


def test_hubs_are_those_of_diagnose(session, views):
    method, bias = fitted(session, "nnn", {})
    shown = views.hubs(method)
    material = session.material
    found = diagnose(material.queries, material.gallery, bias, truth=material.truth, most=30)
    assert shown["before"] == pytest.approx(found.before.to_dict())
    assert shown["after"]["max"] == found.after.max
    assert shown["hubs"].tolist() == [hub.item for hub in found.hubs]
    assert shown["hub_after"].tolist() == list(found.hubs_after)
    assert shown["hub_wrong"] == pytest.approx([hub.wrong_share for hub in found.hubs])
    assert shown["histogram_before"].sum() == shown["histogram_after"].sum() == 200
    assert shown["expected"].sum() == pytest.approx(200, rel=1e-3)


def test_if_items_outnumber_queries_hits_are_the_first_ten(material):
    few = material.queries.subset(np.arange(100))
    session = Session(replace(material, queries=few, truth=None))
    views, method = Views(session), session.open_method("nnn", {})
    ranking = nnnorm.search(few, material.gallery, k=10)
    counts = count_occurrences(ranking, len(material.gallery))
    shown = views.hubs(method)
    assert views.about()["hit_k"] == 10
    assert shown["hub_before"].tolist() == counts[shown["hubs"]].tolist()
    assert shown["before"]["max"] == counts.max()
    hub = int(shown["hubs"][0])
    assert views.hub(hub)["n_before"] == counts[hub]
    assert views.hub_now(method, hub)["n_after"] == shown["hub_after"][0]


def test_a_hub_lists_its_wrong_queries_and_where_they_go(session, views):
    method, bias = fitted(session, "nnn", {})
    hub = int(views.hubs(method)["hubs"][0])
    before, after = views.hub(hub), views.hub_now(method, hub)
    listed = [entry["query"] for group in before["groups"] for entry in group]
    material = session.material
    first, now = (
        nnnorm.search(material.queries, material.gallery, some, k=1).indices[:, 0]
        for some in (None, bias)
    )
    wrong = [q for q in np.flatnonzero(first == hub) if hub not in material.right_items(q)]
    assert sorted(listed) == wrong
    assert before["n_wrong"] == len(wrong)
    is_right = [now[query] in material.right_items(query) for query in listed]
    assert after["is_still_hit"].tolist() == (now[listed] == hub).tolist()
    assert after["now_is_right"].tolist() == is_right
    assert after["n_freed"] == (now[listed] != hub).sum()
    assert 0 < sum(is_right) < after["n_freed"]


def test_a_filter_leaves_the_lists_of_hubs_with_their_numbers(session, views):
    found = views.hubs(session.open_method("nnn", {}), {"background": "navy"})
    is_navy = np.array([cell == "navy" for cell in session.material.metadata["background"]])
    never = [(session.count_hits(some) == 0) & is_navy for some in (None, NNN())]
    assert [found["n_never_before"], found["n_never"]] == [some.sum() for some in never]
    assert found["n_never_before"] - found["n_back"] + found["n_gone"] == found["n_never"]
    assert is_navy[found["never"]].all()


def test_quality_is_that_of_evaluate(session, views):
    method, bias = fitted(session, "nnn", {})
    material = session.material
    recalls = views.quality(method)["recalls"]
    for entry in recalls:
        for name, some in (("before", None), ("after", bias)):
            exact = nnnorm.evaluate(material.queries, material.gallery, some, truth=material.truth)
            assert entry[name]["mean"] == pytest.approx(exact.recall(entry["k"]), abs=2e-3)
            assert entry[name]["low"] <= entry[name]["mean"] <= entry[name]["high"]


def test_the_grid_has_the_recall_of_its_cells(session, views):
    session.tuning.result()
    grid = views.grid()
    cell = next(one for one in grid["cells"] if one["alpha"] == 0.75 and one["reference_k"] == 16)
    params = {name: cell[name] for name in ("reference_k", "alpha", "center")}
    shown = views.quality(session.open_method("nnn", params))["recalls"][0]["after"]["mean"]
    assert shown == pytest.approx(cell["recall_at_1"], abs=2e-3)


@pytest.mark.slow
def test_a_hub_has_its_near_copies(material):
    rows = material.gallery.rows(0, len(material.gallery))
    gallery = np.concatenate([rows, rows[:1], rows[:1], rows[1:2]])
    names = {name: [*cells, *cells[:3]] for name, cells in material.metadata.items()}
    doubled = replace(
        material, gallery=nnnorm.open_embeddings(gallery), truth=None, metadata=names,
        captions=None, pictures=None,
    )  # fmt: skip
    views = Views(Session(doubled))
    copies = [sorted(views.hub(item)["copies"].tolist()) for item in (0, 202)]
    assert copies == [[200, 201], [1]]


def test_won_queries_are_right_only_with_the_correction(session):
    method, bias = fitted(session, "nnn", {})
    material = session.material
    won, lost = session.find_won(method)
    hits = [
        nnnorm.evaluate(material.queries, material.gallery, some, truth=material.truth).hits(1)
        for some in (None, bias)
    ]
    assert won.tolist() == np.flatnonzero(hits[0] < hits[1]).tolist()
    assert lost.tolist() == np.flatnonzero(hits[0] > hits[1]).tolist()
    example = session.choose_example()
    assert example in won
    hub = session.first(None)[session.chosen == example][0]
    assert hub in find_hubs(session.count_hits(None))


def test_neighbours_stay_near_on_the_plane(session):
    items = session.material.gallery
    places = project(items)
    assert np.array_equal(places, project(items))
    assert np.abs(places).max() <= 1
    nearest = nnnorm.search(items, items, k=2).indices[:, 1]
    gaps = np.linalg.norm(places - places[nearest], axis=1)
    others = np.linalg.norm(places - places[::-1], axis=1)
    assert np.median(gaps) < 0.4 * np.median(others)


def test_the_null_is_what_random_choices_give():
    rng = np.random.default_rng(0)
    drawn = [
        np.bincount(count_occurrences(rng.integers(0, 50, 100), 50), minlength=12)[:12]
        for _ in range(400)
    ]
    assert expect_occurrences(100, 50, 11) == pytest.approx(np.mean(drawn, axis=0), abs=0.6)


def test_the_bank_counts_its_unique_queries_and_copies(views, session):
    found = views.bank()
    assert found["n_references"] == 2000
    assert found["n_unique"] + found["n_copies"] == 2000
    assert found["most_asked"][0]["count"] == max(session.unique.counts)
    assert found["mismatch_z"] < found["mismatch_limit"]


def test_a_bank_can_be_explored_and_tuned(material):
    bank = nnnorm.Bank.of(material.references.rows(0, 300), max_references=100)
    session = Session(replace(material, references=bank.embeddings()))
    assert session.tuning.result().n_references == 300


@pytest.mark.slow
def test_drift_is_shown_if_a_corrector_is_given_and_it_can_be_measured(material):
    corrector = nnnorm.Corrector.fit(material.gallery, material.references)
    away = nnnorm.open_embeddings(-material.queries.rows(0, 200))
    one = material.queries.subset(np.zeros(5, dtype=np.int64))
    shown, failed = (
        Views(Session(replace(material, corrector=corrector, queries=queries, truth=None))).bank()
        for queries in (away, one)
    )
    assert shown["drift"]["verdict"] == "refit now"
    assert "queries" in failed["drift"]["error"]
    assert failed["n_references"] == 2000


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"reference_k": 5}, "reference_k must be one of 1, 2, 3, 4, 6"),
        ({"beta": 3.0}, "method nnn takes reference_k, alpha, center; got beta"),
        ({"alpha": 2.0}, "alpha must be from 0 to 1.5; got 2"),
    ],
)
def test_a_wrong_setting_is_explained(session, params, message):
    with pytest.raises(NNNormError, match=message):
        session.open_method("nnn", params)


def test_a_view_is_plain_json_with_lists_for_its_arrays():
    arrays = {"a": np.array([1, -2]), "b": np.float32([0.1, 1e-7]), "c": np.array([True, False])}
    written = to_json({"é": 1, **arrays})
    assert written == '{"é": 1, "a": [1, -2], "b": [0.1, 1e-07], "c": [true, false]}'
