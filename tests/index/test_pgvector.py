"""PostgreSQL: connections and transactions of the caller, schemas, and plain SQL."""

import psycopg
import pytest

import nnnorm
from nnnorm.index import build_index, open_index
from nnnorm.index.engines.pgvector import PgvectorBackend
from tests import servers
from tests.index.engines import FIRST, MORE, arguments, held, world

pytestmark = pytest.mark.slow


@pytest.fixture
def connection(tmp_path):
    with psycopg.connect(servers.new_database(tmp_path)) as opened:
        yield opened


def build(connection, **options):
    rows, given = arguments(FIRST)
    backend = PgvectorBackend(connection, **{"table": "photos", **options})
    return build_index(backend, rows, world().correctors[0], **given)


def test_a_connection_of_the_caller_stays_open_and_idle(connection):
    build(connection).close()
    assert not connection.closed
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_what_is_written_belongs_to_the_transaction_of_the_caller(connection):
    index = build(connection)
    connection.execute("SELECT 1")  # a transaction begins
    rows, given = arguments(MORE)
    index.add(rows, **given)
    index.refresh(world().correctors[1])
    assert len(index) == len(FIRST) + len(MORE)
    connection.rollback()
    index = open_index(index.backend)
    assert held(index) == ({str(row): row for row in FIRST}, 0)


def test_plain_sql_finds_the_served_version_under_the_name_of_the_index(connection):
    index, made = build(connection), world()

    def ask():
        return connection.execute(
            "SELECT id FROM photos WHERE early ORDER BY (embedding <#> %s::vector) + %s * bias "
            "LIMIT 5",
            (str(made.queries[0].tolist()), index.config.weight),
        ).fetchall()

    for corrector in (None, 1, 2):
        if corrector is not None:
            index.refresh(made.correctors[corrector])
        hits = index.search(made.queries[:1], k=5, filter="early")
        assert [own for (own,) in ask()] == hits.ids[0].tolist()


def test_a_percent_sign_in_a_filter_is_a_percent_sign(connection):
    hits = build(connection).search(world().queries[:1], k=60, filter="title LIKE 'photo 1%'")
    assert set(hits.ids[0].tolist()) == {str(row) for row in FIRST if str(row).startswith("1")}


def test_a_table_in_a_schema(connection):
    connection.execute("CREATE SCHEMA shop")
    connection.commit()
    index = build(connection, table="shop.photos")
    index.refresh(world().correctors[1])
    assert held(index)[1] == 1
    with pytest.raises(nnnorm.NNNormError, match="already exists"):
        build(connection, table="shop.photos")


def test_a_table_of_the_application_is_not_replaced(connection):
    connection.execute("CREATE TABLE photos (id int)")
    connection.commit()
    with pytest.raises(nnnorm.NNNormError, match="already exists"):
        build(connection)
