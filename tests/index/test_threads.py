"""Threads that share one index while one of them changes what it serves, and reads meanwhile."""

import numpy as np
import pytest

import nnnorm
from nnnorm.index import build_index, export_index, open_index
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.gate import Gate
from tests.index.test_async import OF_EACH_ENGINE, exact, fit
from tests.index.test_index import make_data
from tests.stores import CASES, SHARED, parametrize

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning"),
]
LOCAL = [case for case in OF_EACH_ENGINE if case.engine in ("faiss", "hnswlib", "usearch")]
READ_AT_ONCE = [
    case for case in OF_EACH_ENGINE if case.engine in SHARED and case not in LOCAL
]  # local ones keep in memory what they have opened
RERANKED = [case for case in CASES if case.way == "rerank" and case.engine in ("faiss", "duckdb")]


@pytest.fixture(scope="module")
def data():
    return make_data(60, 20, 9, unit=True)


def interrupt(store, monkeypatch, change):
    """Do something once, just before the engine searches for the next time."""
    changes = [change]

    def wrap(own):
        def search(*arguments):
            if changes:
                changes.pop()()
            return own(*arguments)

        return search

    for name in ("search", "search_column"):
        monkeypatch.setattr(store, name, wrap(getattr(store, name)))


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


@parametrize(READ_AT_ONCE)
def test_what_is_read_during_a_refresh_by_another_connection_is_of_one_generation_or_an_error(
    case, data, tmp_path
):
    def make():
        return case.make(tmp_path, "photos")

    with build_index(make(), data.gallery, fit(data, 0), way=case.way) as index:
        batches = index.scan(batch=20)
        first = next(batches)
        with open_index(make()) as other:
            # Items that are added leave the others as they are.
            other.add(-data.gallery[:1], fit(data, 0), ids=[900])
            second = next(batches)
            other.delete([900])
            other.refresh(fit(data, 1))
        for items in (first, second):
            np.testing.assert_allclose(items.vectors, data.gallery[items.ids], atol=1e-5)
        with pytest.raises(nnnorm.NNNormError, match=r"changed while it was read, .* start again"):
            next(batches)


@parametrize(READ_AT_ONCE)
def test_an_export_during_a_refresh_by_another_connection_is_of_one_generation_or_an_error(
    case, data, tmp_path, monkeypatch
):
    def refresh():
        with open_index(case.make(tmp_path, "photos")) as other:
            other.refresh(fit(data, 1))

    source, target = case.make(tmp_path, "photos"), FaissStore(tmp_path / "copy.faiss")
    with build_index(source, data.gallery, fit(data, 0), way=case.way):
        own, changes = source.scan, [refresh]

        def scan(*arguments):
            for items in own(20):
                if changes:
                    changes.pop()()
                yield items

        monkeypatch.setattr(source, "scan", scan)
        with pytest.raises(nnnorm.NNNormError, match=r"changed while it was read, .* start again"):
            export_index(source, target)
        monkeypatch.undo()
        with export_index(source, target) as copy:
            assert copy.search(data.queries, k=5).ids.tolist() == exact(data, 1)


@parametrize(LOCAL)
def test_a_refresh_keeps_items_that_another_program_saves_meanwhile(case, data, tmp_path):
    def make():
        return case.make(tmp_path, "photos")

    def add(done, total):
        if not added:
            with open_index(make()) as other:
                other.add(data.gallery[:1], fit(data, 0), ids=[900])
                other.save()
            added.append(900)

    added = []
    index = build_index(make(), data.gallery, fit(data, 0), way=case.way)
    with pytest.raises(nnnorm.NNNormError, match="which would be lost; open it again"):
        index.refresh(fit(data, 1), progress=add)
    with open_index(make()) as after:
        assert len(after) == len(data.gallery) + 1
        after.refresh(fit(data, 1))
        assert len(after) == len(data.gallery) + 1
