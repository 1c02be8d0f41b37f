"""URLs: invalid ones are rejected early, and no message shows a password."""

import os
import socket
import traceback
from pathlib import Path

import pytest

import nnnorm
from nnnorm.errors import show_url
from nnnorm.index import ENGINES, open_backend, open_index
from nnnorm.index.engines import load_engine

ROOT = Path(__file__).parents[2]

SECRET = "Hunter2x"
OPTIONS = {name: set(load_engine(name).options_type.__dataclass_fields__) for name in ENGINES}
SERVERS = [name for name in ENGINES if OPTIONS[name] & {"collection", "host"}]


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
@pytest.mark.parametrize("scheme", SERVERS)
def test_no_message_shows_a_password(scheme):
    with socket.socket() as taken:  # bound, but nothing listens
        taken.bind(("127.0.0.1", 0))
        url = f"{scheme}://me:{SECRET}@127.0.0.1:{taken.getsockname()[1]}/photos"
        backend = open_backend(url)
        assert SECRET not in backend.name + repr(backend)
        assert SECRET not in told(lambda: open_index(url))


@pytest.mark.parametrize("scheme", SERVERS)
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
    assert SECRET not in told(lambda: open_index(f"{scheme}:{rest}"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("qdrant://box:port/photos", "isn't the address of a server"),
        ("milvus://", "isn't the address of a server"),
        ("milvus:folder", r"milvus needs a \.db file or a server; got folder"),
        ("excel:photos", "there is no engine 'excel'"),
        ("photos.faiss", "has no engine"),
        ("sqlite:photos.db?table=", "'table' of the sqlite URL has no value"),
        ("sqlite:photos.db?table=a&table=b", "'table' of the sqlite URL is given twice"),
        ("sqlite:photos.db?tabel=a", "sqlite-vec has no option 'tabel'; it has table"),
        ("faiss:photos?ef=many", "ef of faiss must be a whole number"),
        ("milvus:photos.db?kind=ivf", "kind of milvus must be one of flat, hnsw"),
        ("pgvector:?table=" + "x" * 60, "must have at most 48 bytes"),
        ("faiss:\udcff", "a URL must be text in UTF-8; got"),
    ],
)
def test_a_malformed_url_says_what_is_expected(url, message):
    with pytest.raises(nnnorm.NNNormError, match=message) as caught:
        open_index(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("faiss:photos", "faiss:photos"),
        ("pgvector://me:a@b@box/shop", "pgvector://…@box/shop"),
        ("host=box password=secret dbname=shop", "host=box password=… dbname=shop"),
        ("https://box?api_key=secret&x=1", "https://box?api_key=…&x=…"),
        ("https://box/a.npy?hmac=secret#jwt=secret", "https://box/a.npy?hmac=…#jwt=…"),
        ("https://box/a.npy?sig%3Dsecret", "https://box/a.npy?sig…"),
        ("pgvector://me:my secret@box/shop", "pgvector://…@box/shop"),
        (r"password='a\'secret' user=me", "password=… user=me"),
        ("AccountName=me;AccountKey=secret", "AccountName=me;AccountKey=…"),
        ("{'Authorization': 'Bearer secret'}", "{'Authorization': 'Bearer …"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert show_url(url) == shown


@pytest.mark.parametrize("part", ["x", "/", "pass", "token=", "http://a?", "//a:", "'"])
def test_a_long_text_is_shown_in_time(part):
    text = 100_000 * part
    assert len(show_url(text)) <= len(text)


@pytest.mark.parametrize("scheme", ENGINES)
def test_the_page_of_an_engine_explains_every_option(scheme):
    name = load_engine(scheme).__module__.rpartition(".")[2].replace("_", "-")
    page = (ROOT / "docs" / "engines" / f"{name}.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    known = {option for row in rows for option in row.replace("`", "").replace(" ", "").split(",")}
    assert OPTIONS[scheme] <= known


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="Linux lists open files")
def test_a_file_that_is_no_database_is_closed_again(tmp_path):
    pytest.importorskip("sqlite_vec")
    path = tmp_path / "notes.db"
    path.write_text("no database\n" * 100)
    with pytest.raises(nnnorm.NNNormError, match="not a database") as caught:
        open_index(f"sqlite:{path}?table=photos")
    listed = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in listed if os.path.islink(link)]
    assert str(path) not in opened, caught.value
