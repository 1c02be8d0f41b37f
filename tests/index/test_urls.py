"""URLs: what is refused before an engine sees it, and that no message shows a password."""

import ast
import socket
import traceback
from pathlib import Path

import pytest

import nnnorm
from nnnorm.index import open_index, open_store
from nnnorm.index.stores.pgvector import PgvectorStore
from nnnorm.index.stores.qdrant import QdrantStore
from nnnorm.index.urls import show_url
from tests.source import read_tree

SECRET = "Hunter2x"
_SERVERS = ("qdrant", "chroma", "milvus", "pgvector")


def told(act):
    """Everything that a user may see of an error, with the traceback of --debug."""
    with pytest.raises(nnnorm.NNNormError) as caught:
        act()
    # A traceback would show the code of this file too, with the URL.
    shown = traceback.TracebackException.from_exception(caught.value)
    seen, todo = str(caught.value), [shown]
    while todo and (one := todo.pop()) is not None:
        seen += "\n" + "".join(one.format_exception_only())
        todo.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("scheme", _SERVERS)
def test_no_message_and_no_fact_shows_a_password(scheme):
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        url = f"{scheme}://me:{SECRET}@127.0.0.1:{taken.getsockname()[1]}/photos"
        store = open_store(url)
        assert SECRET not in store.name + repr(store) + store.where
        seen = told(lambda: open_index(url))
    assert "can't be reached" in seen
    assert SECRET not in seen


@pytest.mark.parametrize("scheme", _SERVERS)
@pytest.mark.parametrize(
    "rest",
    [
        f"//me:{SECRET}/x@box:6333/photos",
        f"//me:x/{SECRET}@box:6333/photos",
        f"//me:12/{SECRET}@box:6333/photos",
        f"//me:{SECRET}?x@box:6333/photos",
        f"//me:12?{SECRET}@box:6333/photos",
        f"//me:{SECRET}@box:port/photos",
        f"//me:{SECRET}%ZZ@box:99999999/photos",
        f"//me:{SECRET}%ZZ@[::1/photos",
        f"//me:{SECRET}@",
    ],
)
def test_a_malformed_url_is_one_sentence_without_the_password(scheme, rest):
    seen = told(lambda: open_index(f"{scheme}:{rest}"))
    assert SECRET not in seen


@pytest.mark.parametrize("kind", [QdrantStore, PgvectorStore])
def test_a_store_that_is_made_directly_shows_no_password_either(kind):
    for address in (f"//me:x/{SECRET}@box/shop", f"postgresql://me:x/{SECRET}@box/shop"):
        assert SECRET not in told(lambda address=address: kind(address).name)


@pytest.mark.parametrize(
    "url",
    [
        "pgvector://%ZZ",
        "pgvector://box:port/shop",
        "qdrant://box:port/photos",
        "qdrant://box:0/photos",
        "chroma://box:8000000/photos",
        "chroma://[::1/photos",
        "milvus://box:-1/photos",
        "milvus://",
        "qdrant://",
    ],
)
def test_a_malformed_address_is_refused_with_one_sentence(url):
    assert "\n" not in told(lambda: open_index(url)).partition("\n")[0]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("faiss:photos.faiss", "faiss:photos.faiss"),
        ("pgvector://me:a@b@box/shop", "pgvector://…@box/shop"),
        ("host=box password=secret dbname=shop", "host=box password=… dbname=shop"),
        ("https://box?api_key=secret&x=1", "https://box?api_key=…&x=1"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert show_url(url) == shown


@pytest.mark.parametrize("option", ["table=", "hnsw", "table=photos&kind"])
def test_an_option_without_a_value_is_refused(option):
    name = option.rpartition("&")[2].rstrip("=")
    with pytest.raises(nnnorm.NNNormError, match=f"{name!r} of the sqlite URL has no value"):
        open_store(f"sqlite:photos.db?{option}")


def test_the_name_of_the_library_of_sqlite_names_its_engine_too():
    assert (
        open_store("sqlite-vec:photos.db?table=a").name
        == open_store("sqlite:photos.db?table=a").name
    )


def test_an_option_given_twice_is_refused():
    with pytest.raises(nnnorm.NNNormError, match="'table' twice"):
        open_store("sqlite:photos.db?table=a&table=b")


@pytest.mark.slow
def test_addresses_are_put_into_messages_by_show_url_only():
    """An f-string with an address or a URL in it, outside of a call, would print its password."""
    room = Path(nnnorm.__file__).parent
    bare = []
    for path in [*(room / "index").rglob("*.py"), *(room / "cli").glob("*.py")]:
        for raised in ast.walk(read_tree(path)):
            if not isinstance(raised, ast.Raise):
                continue
            for value in ast.walk(raised):
                if not isinstance(value, ast.FormattedValue):
                    continue
                name = getattr(value.value, "attr", getattr(value.value, "id", ""))
                if name in ("address", "url", "place", "source_url"):
                    bare.append(f"{path.name}:{value.lineno}")
    assert not bare


def test_this_file_sees_what_a_traceback_shows():
    def act():
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise nnnorm.NNNormError("short") from error

    assert SECRET in told(act)


def test_lancedb_needs_a_folder():
    """LanceDB itself takes the current one."""
    with pytest.raises(nnnorm.NNNormError, match="the place of LanceDB must be a folder"):
        open_store("lancedb:?table=photos")
