"""`search_async`: in a thread for every engine, and through its asynchronous client, if any.

The clients are imported by the tests that use them, which are slow: together they take seconds.
"""

import asyncio
import contextlib
import shutil
import threading

import numpy as np
import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row

import nnnorm
from nnnorm.index import build_index, open_index
from nnnorm.index.stores.chroma import ChromaStore
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.lancedb import LancedbStore
from nnnorm.index.stores.milvus import MilvusStore
from nnnorm.index.stores.pgvector import PgvectorStore
from nnnorm.index.stores.qdrant import QdrantStore
from tests.index.test_index import make_data
from tests.servers import clear_memory, in_memory, pgvector, postgres, unique
from tests.stores import CASES, parametrize

pytestmark = pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning")
OF_EACH_ENGINE = list({case.engine: case for case in reversed(CASES)}.values())
YEARS = [{"year": row} for row in range(60)]


@pytest.fixture
def data():
    return make_data(60, 20, 9, unit=True)


@pytest.fixture
def folder(tmp_path):
    yield in_memory(tmp_path)
    clear_memory()


def check_together(index, data, client=None, **options):
    """20 searches at once find what they find one after the other."""
    queries = [data.queries[row : row + 1] for row in range(20)]

    async def search_all():
        async with contextlib.AsyncExitStack() as stack:
            given = {} if client is None else {"client": await stack.enter_async_context(client)}
            searches = [index.search_async(one, k=5, **options, **given) for one in queries]
            return await asyncio.gather(*searches)

    found = asyncio.run(search_all())
    expected = [index.search(one, k=5, **options) for one in queries]
    for one, other in zip(found, expected, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
        assert one.metadata == other.metadata


@parametrize(OF_EACH_ENGINE)
def test_searches_in_threads_find_what_they_find_one_after_the_other(case, data, tmp_path):
    with build_index(case.make(tmp_path, "photos"), data.gallery, data.bias, way=case.way) as index:
        check_together(index, data)


def test_a_thread_leaves_the_event_loop_free(data):
    class Waiting(FaissStore):
        def search(self, *arguments):
            assert released.wait(60)
            return super().search(*arguments)

    async def search():
        task = asyncio.create_task(index.search_async(data.queries, k=5))
        while not task.done():
            await asyncio.sleep(0.001)
            released.set()  # which the search waits for
        return await task

    released = threading.Event()
    index = build_index(Waiting(), data.gallery, data.bias)
    exact = nnnorm.search(data.queries, data.gallery, data.bias, k=5)
    assert asyncio.run(search()).ids.tolist() == exact.indices.tolist()


# --- the engine's own client ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connect(**options):
    opened = await psycopg.AsyncConnection.connect(postgres(), autocommit=True, **options)
    async with opened as connection:
        yield connection


def fit(data, seed):
    bank = make_data(60, 20, 9, unit=True, seed=seed).references
    return nnnorm.Corrector.fit(data.gallery, bank, nnnorm.NNN(8, (0.75, 0.4)[seed]))


def exact(data, seed):
    bias = fit(data, seed).bias
    return nnnorm.search(data.queries, data.gallery, bias, k=5).indices.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ip", "column", "rerank"])
def test_a_connection_of_psycopg(way, data, tmp_path):
    store = pgvector()(tmp_path, "photos")
    with build_index(store, data.gallery, data.bias, way=way, metadata=YEARS) as index:
        check_together(index, data, connect(), filter="year >= 20", with_metadata=True)


@pytest.mark.slow
def test_a_connection_of_psycopg_searches_a_graph_and_keeps_its_settings(data, tmp_path):
    store = pgvector(kind="hnsw", ef=50)(tmp_path, "photos")
    with build_index(store, data.gallery, data.bias, metadata=YEARS) as index:

        @contextlib.asynccontextmanager
        async def connect_and_look():
            async with connect() as connection:
                await connection.execute("SET hnsw.ef_search = 41")
                await connection.execute("SET enable_seqscan = off")
                yield connection
                for name, value in (("hnsw.ef_search", "41"), ("enable_indexscan", "on")):
                    shown = await (await connection.execute(f"SHOW {name}")).fetchone()
                    assert shown == (value,)

        check_together(index, data, connect_and_look())
        check_together(index, data, connect_and_look(), filter="year >= 57")


@pytest.mark.slow
def test_a_connection_of_psycopg_leaves_the_event_loop_free(data, tmp_path):
    async def search(index):
        table = index.store.collection
        async with connect() as connection, connect() as other:
            async with other.transaction():
                await other.execute(f"LOCK TABLE {table}")
                task = asyncio.create_task(index.search_async(data.queries, client=connection))
                await asyncio.sleep(0.05)
                assert not task.done()  # it waits for the lock, which this loop gives up
            return await task

    with build_index(pgvector()(tmp_path, "photos"), data.gallery, data.bias) as index:
        found = asyncio.run(search(index))
        assert found.ids.tolist() == index.search(data.queries).ids.tolist()


@contextlib.asynccontextmanager
async def connect_lancedb(folder):
    import lancedb

    yield await lancedb.connect_async(folder / "lance")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_a_connection_of_lancedb(kind, data, folder):
    store = LancedbStore(folder / "lance", "photos", kind=kind, cells=8, probes=2)
    with build_index(store, data.gallery, data.bias, metadata=YEARS) as index:
        check_together(index, data, connect_lancedb(folder))
        options = {"filter": "year >= 20", "with_metadata": True}
        check_together(index, data, connect_lancedb(folder), **options)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["lancedb", "pgvector"])
def test_an_open_index_finds_the_generation_that_another_connection_brought(
    engine, data, folder, tmp_path
):
    def make():
        if engine == "pgvector":
            return pgvector()(tmp_path, "photos")
        return LancedbStore(folder / "lance", "photos")

    async def search(index):
        client = connect() if engine == "pgvector" else connect_lancedb(folder)
        async with client as opened:
            before = await index.search_async(data.queries, k=5, client=opened)
            with open_index(make()) as other:
                await asyncio.to_thread(other.refresh, fit(data, 1))
            both = [index.search_async(data.queries, k=5, client=opened) for _ in range(5)]
            return before, await asyncio.gather(*both)

    with build_index(make(), data.gallery, fit(data, 0)) as index:
        before, after = asyncio.run(search(index))
    assert before.ids.tolist() == exact(data, 0)
    for found in after:
        assert found.ids.tolist() == exact(data, 1)


@pytest.mark.slow
@pytest.mark.parametrize("with_metadata", [False, True])
@pytest.mark.parametrize("way", ["ip", "column", "rerank"])
def test_a_transaction_that_began_before_a_refresh_never_mixes_generations(
    way, with_metadata, data, tmp_path
):
    async def search(index):
        async with await psycopg.AsyncConnection.connect(postgres()) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await connection.execute("SELECT 1")
            with open_index(pgvector()(tmp_path, "photos")) as other:
                other.refresh(fit(data, 1))
            asked = {"k": 5, "client": connection, "with_metadata": with_metadata}
            if way == "ip" or with_metadata:  # metadata are read by the index
                with pytest.raises(nnnorm.NNNormError, match="began before the last refresh; end"):
                    await index.search_async(data.queries, **asked)
            else:
                former = await index.search_async(data.queries, **asked)
                assert former.ids.tolist() == exact(data, 0)
            await connection.rollback()
            return await index.search_async(data.queries, **asked)

    store = pgvector()(tmp_path, "photos")
    with build_index(store, data.gallery, fit(data, 0), way=way, metadata=YEARS) as index:
        found = asyncio.run(search(index))
    assert found.ids.tolist() == exact(data, 1)
    if with_metadata:
        assert [[entry["year"] for entry in row] for row in found.metadata] == found.ids.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_searches_leave_a_connection_of_psycopg_without_a_transaction(kind, data, tmp_path):
    def make():
        return pgvector(kind=kind)(tmp_path, "photos")

    def refresh():
        with open_index(make()) as other:
            other.store.client.execute("SET lock_timeout = '2s'")
            other.refresh(fit(data, 1))

    async def search(index):
        async with await psycopg.AsyncConnection.connect(postgres()) as connection:
            for condition in (None, "year >= 20", "year > 9999"):
                asked = {"k": 5, "client": connection, "filter": condition}
                both = [index.search_async(data.queries, **asked) for _ in range(3)]
                await asyncio.gather(*both)
                assert connection.info.transaction_status.name == "IDLE"
            await asyncio.to_thread(refresh)
            await connection.execute("SELECT 1")  # the transaction of the caller goes on
            found = await index.search_async(data.queries, k=5, client=connection)
            assert connection.info.transaction_status.name == "INTRANS"
            return found

    with build_index(make(), data.gallery, fit(data, 0), metadata=YEARS) as index:
        assert asyncio.run(search(index)).ids.tolist() == exact(data, 1)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
def test_a_connection_of_psycopg_may_have_rows_of_its_own(factory, data, tmp_path):
    async def search(index):
        async with connect(row_factory=factory) as connection:
            return await index.search_async(data.queries, k=5, client=connection)

    with build_index(pgvector()(tmp_path, "photos"), data.gallery, fit(data, 0)) as index:
        assert asyncio.run(search(index)).ids.tolist() == exact(data, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_no_statement_of_the_index_itself_blocks_the_event_loop(kind, data, tmp_path):
    class Noting(psycopg.Cursor):
        def execute(self, *args, **kwargs):
            threads.append(threading.get_ident())
            return super().execute(*args, **kwargs)

    async def search(index):
        async with connect() as connection:
            threads.clear()
            await index.search_async(data.queries, k=5, client=connection)
            with pytest.raises(nnnorm.NNNormError, match="PostgreSQL says"):
                await index.search_async(data.queries, client=connection, filter="nothing > 1")
            # What is known about the table is read again after an error.
            await index.search_async(data.queries, k=5, client=connection)
            assert threads
            assert threading.get_ident() not in threads

    threads = []
    build_index(pgvector(kind=kind)(tmp_path, "photos"), data.gallery, data.bias).close()
    with psycopg.connect(postgres(), autocommit=True, cursor_factory=Noting) as own:
        asyncio.run(search(open_index(PgvectorStore(own, unique(tmp_path, "photos")))))


@pytest.mark.slow
def test_a_client_of_qdrant(data, folder):
    """Local mode has one client per folder, so the asynchronous one has a copy of it."""
    from qdrant_client import AsyncQdrantClient

    store = QdrantStore(folder / "q", "photos")
    with build_index(store, data.gallery, data.bias, metadata=YEARS):
        pass
    shutil.copytree(folder / "q", folder / "copy")

    @contextlib.asynccontextmanager
    async def connect_qdrant():
        client = AsyncQdrantClient(path=str(folder / "copy"))
        yield client
        await client.close()

    with open_index(QdrantStore(folder / "q", "photos")) as index:
        check_together(index, data, connect_qdrant())
        wanted = '{"must": [{"key": "year", "range": {"gte": 20}}]}'
        check_together(index, data, connect_qdrant(), filter=wanted, with_metadata=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ip", "rerank"])
def test_a_client_of_milvus(way, data, folder):
    from pymilvus import AsyncMilvusClient

    @contextlib.asynccontextmanager
    async def connect_milvus():
        client = AsyncMilvusClient(str(folder / "m.db"))
        yield client
        await client.close()

    store = MilvusStore(folder / "m.db", "photos")
    with build_index(store, data.gallery, data.bias, way=way, metadata=YEARS) as index:
        options = {"filter": "year >= 20", "with_metadata": True}
        check_together(index, data, connect_milvus(), **options)


@pytest.mark.slow
def test_a_client_of_chroma_stays_with_the_generation_that_was_opened(data, tmp_path):
    import chromadb

    from tests.index.test_index_servers import chroma_server

    @contextlib.asynccontextmanager
    async def connect_chroma():
        yield await chromadb.AsyncHttpClient(host, port=int(port))

    with chroma_server(tmp_path / "served") as address:
        host, _, port = address.partition(":")
        corrector = nnnorm.Corrector.fit(data.gallery, data.references, nnnorm.NNN(8, 0.75))
        newer = nnnorm.Corrector.fit(data.gallery, data.queries, nnnorm.NNN(8, 0.75))
        store = ChromaStore(f"http://{address}", "photos", ef=500)
        with build_index(store, data.gallery, corrector, metadata=YEARS) as index:
            options = {"filter": {"year": {"$gte": 20}}, "with_metadata": True}
            check_together(index, data, connect_chroma(), **options)
            with open_index(f"chroma://{address}/photos?ef=500") as other:
                other.refresh(newer)
            check_together(index, data, connect_chroma())


@pytest.mark.parametrize(
    ("store", "client", "sentence"),
    [
        (FaissStore, object(), "faiss has no asynchronous clients; leave out client="),
        pytest.param(
            *(LancedbStore, "lance", "must be an AsyncConnection; got str"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_client_that_does_not_fit_is_named(store, client, sentence, data, tmp_path):
    index = build_index(store(tmp_path / "photos"), data.gallery, data.bias)
    with index, pytest.raises(nnnorm.NNNormError, match=sentence):
        asyncio.run(index.search_async(data.queries, client=client))


def test_a_wrong_argument_is_answered_before_anything_is_awaited(data):
    index = build_index("faiss:", data.gallery, data.bias)
    with pytest.raises(TypeError, match="search_async has no argument 'top_k'; did you mean 'k'"):
        index.search_async(data.queries, top_k=3)
