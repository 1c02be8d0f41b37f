"""Connections that see an older generation than others, and indexes that were opened before it."""

import asyncio

import numpy as np
import psycopg
import pytest

import nnnorm
from nnnorm.index import build_index, open_index, verify_index
from nnnorm.index.stores.pgvector import PgvectorStore
from tests.index.living import FIRST, MORE, build, numbered, refresh, served, world
from tests.index.test_async import exact, fit
from tests.index.test_index import make_data
from tests.index.test_living import FEW
from tests.servers import pgvector, postgres, unique
from tests.stores import SHARED, parametrize

pytestmark = pytest.mark.slow
OUTDATED = r"was changed by another connection .*; end the transaction \(commit or rollback\)"
LEVELS = [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
WAYS = ["ip", "column", "rerank"]


@pytest.fixture(scope="module")
def data():
    return make_data(60, 20, 9, unit=True)


@pytest.fixture
def served_by(tmp_path):
    """Another connection to the same table."""
    return lambda: pgvector()(tmp_path, "photos")


@pytest.fixture
def connection():
    with psycopg.connect(postgres()) as opened:
        opened.isolation_level = LEVELS[0]
        yield opened
        opened.rollback()


def open_own(connection, folder):
    """Open the index on a connection whose transaction has then begun."""
    index = open_index(PgvectorStore(connection, unique(folder, "photos")))
    connection.execute("SELECT 1")
    return index


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_that_began_before_a_refresh_reads_one_generation_or_none(
    way, level, data, served_by, connection, tmp_path
):
    build_index(served_by(), data.gallery, fit(data, 0), way=way).close()
    connection.isolation_level = level
    index = open_own(connection, tmp_path)
    with open_index(served_by()) as other:
        other.refresh(fit(data, 1))
    reads = [
        lambda: index.search(data.queries, k=5),
        lambda: index.search(data.queries, k=5, with_metadata=True),
        lambda: verify_index(index, data.queries),
        lambda: list(index.scan()),
        lambda: open_index(index.store),
    ]
    if way == "ip":  # the former generation has another name by now
        for read in reads:
            with pytest.raises(nnnorm.NNNormError, match=OUTDATED):
                read()
    else:
        assert [read().ids.tolist() for read in reads[:2]] == [exact(data, 0)] * 2
        assert verify_index(index, data.queries, bias=fit(data, 0)).is_good
    connection.rollback()
    assert index.search(data.queries, k=5).ids.tolist() == exact(data, 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_that_sees_both_generations_never_mixes_them(
    way, data, served_by, connection, tmp_path
):
    with build_index(served_by(), data.gallery, fit(data, 0), way=way) as first:
        first.refresh(fit(data, 1))
        first.rollback()
    index = open_own(connection, tmp_path)
    with open_index(served_by()) as other:
        other.rollback(undo=True)
    assert index.search(data.queries, k=5).ids.tolist() == exact(data, 1)
    assert verify_index(index, data.queries, bias=fit(data, 1)).is_good
    with pytest.raises(nnnorm.NNNormError, match=OUTDATED):
        index.rollback()


@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_that_began_before_a_refresh_writes_nothing(
    way, data, served_by, connection, tmp_path
):
    build_index(served_by(), data.gallery, fit(data, 0), way=way).close()
    index, old = open_own(connection, tmp_path), fit(data, 0)
    with open_index(served_by()) as other:
        other.refresh(fit(data, 1))
    for write in (
        lambda: index.add(data.gallery[:2], old, ids=[900, 901]),
        lambda: index.upsert(data.gallery[:2], old, ids=[900, 901]),
        lambda: index.delete([3]),
        lambda: index.refresh(fit(data, 1)),
        index.rollback,
    ):
        with pytest.raises(nnnorm.NNNormError, match=OUTDATED):
            write()
    connection.commit()
    with open_index(served_by()) as other:
        options = {"gallery": data.gallery, "bias": fit(data, 1)}
        assert verify_index(other, data.queries, **options).is_good
    index.add(data.gallery[:2], fit(data, 1), ids=[900, 901])
    connection.commit()
    assert len(index) == 62


def test_a_re_rank_counts_the_items_that_its_client_sees(data, served_by):
    async def search(index):
        async with await psycopg.AsyncConnection.connect(postgres()) as client:
            await client.set_isolation_level(LEVELS[0])
            await client.execute("SELECT 1")
            index.delete(np.arange(20))
            return await index.search_async(data.queries, k=30, max_fetch=40, client=client)

    with build_index(served_by(), data.gallery, data.bias, way="rerank") as index:
        found = asyncio.run(search(index))
    right = nnnorm.search(data.queries, data.gallery, data.bias, k=30).indices
    is_right = (found.ids == right).all(axis=1)
    assert not is_right.all()
    assert is_right[found.certain].all()


def test_a_re_rank_that_fetched_all_items_is_certain(data):
    with build_index("faiss:", data.gallery, data.bias, way="rerank") as index:
        assert index.search(data.queries, k=60, max_fetch=60).certain.all()
        assert not index.search(data.queries, k=59, max_fetch=59).certain.all()


IN_FILES = {"faiss", "hnswlib", "usearch"}


@parametrize([case for case in FEW if case.engine in IN_FILES])
@pytest.mark.parametrize("change", ["add", "delete", "rollback", "refresh"])
def test_an_index_in_memory_that_is_older_than_its_file_does_not_replace_it(case, change, store):
    with build(store(), case) as first:
        refresh(first, 2)
    index = open_index(store())
    with open_index(store()) as other:
        refresh(other, 1)
    rows, options = numbered(list(MORE), MORE)
    changes = {
        "add": lambda: index.add(rows, world().correctors[2], **options),
        "delete": lambda: index.delete([3]),
        "rollback": index.rollback,
        "refresh": lambda: refresh(index, 0),
    }

    def change_and_save():
        changes[change]()
        index.save()

    with pytest.raises(nnnorm.NNNormError, match="since it was opened, such as by a refresh"):
        change_and_save()
    index.close()
    with open_index(store()) as index:
        assert (served(index).rows, served(index).corrector) == (FIRST.rows, 1)
        index.add(rows, world().correctors[1], **options)
        index.save()
        index.save()


@parametrize([case for case in FEW if case.engine in SHARED - IN_FILES])
def test_an_index_that_was_opened_before_a_refresh_writes_as_the_new_generation_needs(case, store):
    index, old, new = build(store(), case), *world().correctors[:2]
    with open_index(store()) as other:
        refresh(other, 1)
    rows, options = numbered(list(MORE), MORE)
    for write in (index.add, index.upsert):
        with pytest.raises(nnnorm.NNNormError, match="and such values do not mix"):
            write(rows, old, **options)
    index.add(rows, new, **options)
    with open_index(store()) as other:
        refresh(other, 2)
    assert served(index).rows == {**FIRST.rows, **{row: row for row in MORE}}
    with open_index(store()) as other:
        refresh(other, 0)
    refresh(index, 1)
    served(index).check(case, index.search(world().queries))
    assert verify_index(index, world().queries, bias=new).is_good


@parametrize(
    [
        case
        for case in FEW
        if case.engine in SHARED - IN_FILES and case.way not in ("rerank", "column")
    ]
)
def test_an_index_that_was_opened_before_a_refresh_asks_as_the_new_generation_needs(case, store):
    index = build(store(), case)
    before = index.ask(world().queries)
    with open_index(store()) as other:
        refresh(other, 1)
        expected = other.ask(world().queries)
    assert not np.array_equal(before, expected)
    np.testing.assert_array_equal(index.ask(world().queries), expected)


@parametrize([case for case in FEW if case.engine not in SHARED | {"duckdb"}])
def test_a_refresh_from_a_former_generation_leaves_it_for_a_rollback(case, store):
    with build(store(), case) as index, open_index(store()) as other:
        refresh(other, 1)
        with pytest.raises(nnnorm.NNNormError, match=r"since it was opened.*; open it again"):
            refresh(index, 2)
        FIRST.check(case, index.search(world().queries))
        other.rollback()
        FIRST.check(case, other.search(world().queries))


class Late(list):
    """Metadata that another program overtakes: something happens when they are first read."""

    def __init__(self, entries, happens):
        super().__init__(entries)
        self.happens = [happens]

    def __iter__(self):
        while self.happens:
            self.happens.pop()()
        return super().__iter__()


@parametrize([case for case in FEW if case.engine in SHARED - IN_FILES])
@pytest.mark.parametrize("write", ["add", "upsert"])
def test_items_that_a_refresh_overtakes_are_not_written(case, write, store):
    index, other = build(store(), case), open_index(store())
    rows, options = numbered(list(MORE), MORE)
    late = Late(options["metadata"], lambda: refresh(other, 1))
    with pytest.raises(nnnorm.NNNormError, match=r"was changed by another program, .*; repeat the"):
        getattr(index, write)(rows, world().correctors[0], ids=options["ids"], metadata=late)
    with open_index(store()) as fresh:
        assert (served(fresh).rows, served(fresh).corrector) == (FIRST.rows, 1)
        served(fresh).check(case, fresh.search(world().queries))
    getattr(index, write)(rows, world().correctors[1], **options)
    served(index).check(case, index.search(world().queries))


@parametrize([case for case in FEW if case.engine in SHARED - IN_FILES])
def test_items_that_other_items_overtake_are_written(case, store):
    index, other, corrector = build(store(), case), open_index(store()), world().correctors[0]
    rows, options = numbered(list(MORE), MORE)
    later, named = numbered([300], [300])
    late = Late(options["metadata"], lambda: other.add(later, corrector, **named))
    index.add(rows, corrector, ids=options["ids"], metadata=late)
    with open_index(store()) as fresh:
        assert len(fresh) == len(FIRST.rows) + len(MORE) + 1
        served(fresh).check(case, fresh.search(world().queries))


@parametrize([case for case in FEW if case.engine == "lancedb"])
def test_a_refresh_right_after_the_note_of_new_items_is_noticed(case, store, monkeypatch):
    index, other = build(store(), case), open_index(store())
    rows, options = numbered(list(MORE), MORE)
    write_note = index.store.write_note

    def overtaken(note):
        write_note(note)
        refresh(other, 1)

    monkeypatch.setattr(index.store, "write_note", overtaken)
    with pytest.raises(nnnorm.NNNormError, match="was changed by another program"):
        index.add(rows, world().correctors[0], **options)
    with open_index(store()) as fresh:
        assert served(fresh).rows == FIRST.rows
        served(fresh).check(case, fresh.search(world().queries))
