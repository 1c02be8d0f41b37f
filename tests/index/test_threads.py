"""Threads that share one index while one of them changes what it serves, and reads meanwhile."""

import pytest

from nnnorm.index import build_index, open_index
from nnnorm.index.stores.gate import Gate
from tests.index.test_async import OF_EACH_ENGINE, exact, fit
from tests.index.test_index import make_data
from tests.stores import CASES, parametrize

pytestmark = pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning")
LOCAL = [case for case in OF_EACH_ENGINE if case.engine in ("faiss", "hnswlib", "usearch")]
RERANKED = [case for case in CASES if case.way == "rerank" and case.engine in ("faiss", "duckdb")]


@pytest.fixture(scope="module")
def data():
    return make_data(60, 20, 9, unit=True)


def interrupt(store, monkeypatch, change):
    """Do something once, just before the engine searches for the next time."""
    changes = [change]
    for name in ("search", "search_column"):

        def search(*arguments, own=getattr(store, name)):
            if changes:
                changes.pop()()
            return own(*arguments)

        monkeypatch.setattr(store, name, search)


@parametrize([*OF_EACH_ENGINE, *RERANKED])
def test_a_search_during_which_another_thread_refreshes_is_of_one_generation(
    case, data, tmp_path, monkeypatch
):
    with build_index(
        case.make(tmp_path, "photos"), data.gallery, fit(data, 0), way=case.way
    ) as index:
        for change, expected in [
            (lambda: index.refresh(fit(data, 1)), 1),
            (index.rollback, 0),
            (lambda: index.rollback(undo=True), 1),
        ]:
            interrupt(index.store, monkeypatch, change)
            found = index.search(data.queries, k=5)
            monkeypatch.undo()
            assert found.ids.tolist() == exact(data, expected)
            again = index.search(data.queries, k=5)
            assert found.scores == pytest.approx(again.scores, abs=1e-6)


@parametrize(LOCAL)
def test_a_search_finds_items_also_where_another_thread_has_just_let_go_of_them(
    case, data, tmp_path, monkeypatch
):
    index = build_index(case.make(tmp_path, "photos"), data.gallery, fit(data, 0))
    reading, closes = Gate.reading, [index.store.close]

    def enter(gate):
        if closes:
            closes.pop()()
        return reading(gate)

    monkeypatch.setattr(Gate, "reading", enter)
    assert index.search(data.queries, k=5).ids.tolist() == exact(data, 0)


@parametrize(LOCAL)
def test_an_index_that_was_closed_serves_what_it_finds_when_it_is_used_again(case, data, tmp_path):
    index = build_index(case.make(tmp_path, "photos"), data.gallery, fit(data, 0))
    with open_index(case.make(tmp_path, "photos")) as other:
        other.refresh(fit(data, 1))
    index.close()
    found = index.search(data.queries, k=5)
    with open_index(case.make(tmp_path, "photos")) as other:
        again = other.search(data.queries, k=5)
    assert found.ids.tolist() == exact(data, 1)
    assert found.scores == pytest.approx(again.scores, abs=1e-6)
