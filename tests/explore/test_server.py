"""The HTTP interface: safe by default; wrong parameters return one sentence, never a 500."""

import contextlib
import copy
import logging
import os
import re
import socket
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import repeat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnnorm import Bias, NNNormError, load_shapes, open_embeddings
from nnnorm.evaluation import open_truth
from nnnorm.explore import (
    FolderPictures,
    Material,
    Session,
    listen,
    make_app,
    make_server,
    record,
)
from nnnorm.explore.pictures import Thumbnails
from nnnorm.explore.session import result_of, start
from nnnorm.explore.views import Views
from tests.explore.conftest import ATTACK, serving

pytest.importorskip("starlette", reason="the explorer needs nnnorm[explore]")
TestClient = pytest.importorskip("starlette.testclient").TestClient

REFUSED = (403, 404, 422)


def test_the_page_and_its_files_are_served_with_a_strict_policy(client):
    for path in ("/", "/static/main.js", "/api/about", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert not {"unsafe", "http"} & set(re.findall("[a-z]+", policy))
        assert headers["x-content-type-options"] == "nosniff"


def test_no_file_of_the_page_names_another_machine(client):
    for path in ("/", "/static/page.css", "/static/main.js", "/static/core.js"):
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search("https?://|<style| style=", text)


NOT_OURS = ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example"]
NOT_OURS += ["", "[::1", "192.168.1.4:8765"]
ELSEWHERE = ["http://evil.example", "null", "http://127.0.0.1:1234"]


@pytest.mark.parametrize(
    "headers",
    [
        *({"host": host} for host in NOT_OURS),
        *({"origin": origin} for origin in ELSEWHERE),
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_other_hosts_and_origins_are_refused(client, headers):
    for path in ("/", "/api/about", "/api/picture?item=0"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 403
        assert "this explorer" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST"])
def test_the_names_of_this_machine_are_answered(client, host):
    headers = {"host": host, "origin": f"http://{host}"}
    assert client.get("/api/about", headers=headers).status_code == 200


def test_a_server_for_others_answers_addresses_but_no_foreign_names(session):
    with TestClient(make_app(session, "0.0.0.0"), base_url="http://192.168.1.4:8765") as opened:
        assert opened.get("/api/about").status_code == 200
        assert opened.get("/api/about", headers={"host": "evil.example"}).status_code == 403


def connect(port, *lines):
    """Open a connection and send the first lines of a request."""
    opened = socket.create_connection(("127.0.0.1", port), timeout=120)
    host = f"Host: 127.0.0.1:{port}"
    opened.sendall("".join(f"{line}\r\n" for line in ("GET / HTTP/1.1", host, *lines)).encode())
    return opened


def read_status(opened):
    with opened:
        return int(opened.recv(100).split()[1])


def test_a_websocket_and_long_headers_are_rejected_over_a_real_connection(session):
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    with serving(session) as port:
        assert read_status(connect(port, "")) == 200
        assert read_status(connect(port, *upgrade, "Sec-WebSocket-Key: AAAA", "")) == 403
        upgrade = ("Connection: Upgrade", "Upgrade: h2c, WebSocket")
        assert read_status(connect(port, *upgrade, "")) == 403
        assert read_status(connect(port, f"X-Long: {'x' * 20_000}")) == 400
        assert read_status(connect(port, f"X-Long: {'x' * 20_000}", "")) in (400, 403)


def test_connections_without_a_whole_request_make_room_for_others(session, monkeypatch):
    monkeypatch.setattr("nnnorm.explore.server._MOST_CONNECTIONS", 5)
    with serving(session) as port:
        half_open = [connect(port) for _ in range(20)]
        assert read_status(connect(port, "")) == 200
        with contextlib.suppress(ConnectionResetError):  # without uvloop
            assert half_open[0].recv(100) == b""
        for opened in half_open:
            opened.close()


def test_connections_that_read_no_answers_make_room_for_others(session, monkeypatch):
    monkeypatch.setattr("nnnorm.explore.server._MOST_CONNECTIONS", 5)
    with serving(session) as port:
        lines = 200 * ("", "GET /static/main.js HTTP/1.1", f"Host: 127.0.0.1:{port}")
        never_read = [connect(port, *lines, "") for _ in range(10)]
        assert read_status(connect(port, "")) == 200
        with pytest.raises(ConnectionError):  # the server has hung up
            deque(map(never_read[0].sendall, repeat(b"x")))
        for opened in never_read:
            opened.close()


def test_a_connection_that_is_left_before_its_answer_is_forgotten(session, monkeypatch):
    monkeypatch.setattr("nnnorm.explore.server._MOST_SECONDS", 0.05)
    seen, may_answer = threading.Event(), threading.Event()

    def wait_and_answer(self):
        seen.set()
        may_answer.wait(60)
        return {}

    monkeypatch.setattr(Views, "about", wait_and_answer)
    opened, server = listen(port=0), make_server(session)
    watched = []
    protocol = server.config.http
    watch = protocol._watch
    monkeypatch.setattr(protocol, "_watch", lambda self: (watched.append(self), watch(self))[1])
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    with socket.create_connection(opened.getsockname(), timeout=60) as asking:
        host = "Host: 127.0.0.1"
        asking.sendall(f"GET /api/about HTTP/1.1\r\n{host}\r\n\r\n".encode())
        assert seen.wait(60)
    may_answer.set()
    time.sleep(0.5)
    n_watched = len(watched)
    time.sleep(0.5)
    server.should_exit = True
    thread.join()
    assert n_watched == len(watched)


def test_a_connection_without_a_whole_request_is_closed_after_a_while(session, monkeypatch):
    monkeypatch.setattr("nnnorm.explore.server._MOST_SECONDS", 0.1)
    with serving(session) as port, connect(port) as opened:
        assert opened.recv(100) == b""


def test_nothing_can_be_written(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/about").status_code == 405


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("search", "give one of query (a number), text, or item (a number)"),
        ("search?query=1000", "query must be from 0 to 999; got 1000"),
        ("search?item=200", "item must be from 0 to 199; got 200"),
        ("search?query=x", "query must be a whole number from 0 to 999,999,999; got 'x'"),
        ("search?text=%20", "the query is empty; type a few words"),
        ("search?text=a+zebra", "vocabulary"),
        ("search?text=" + "a" * 501, "text must be at most 500 characters; got"),
        ("search?query=0&k=101", "k must be a whole number from 1 to 100; got '101'"),
        ("search?query=0&alpha=nan", "alpha must be a number; got 'nan'"),
        ("search?query=0&method=magic", "method must be one of nnn, csls, dn, is, qbnorm"),
        ("search?query=0&where=background", "where must be column=value"),
        ("search?query=0&where=planet=mars", "there is no filter 'planet'"),
        ("search?query=0&where=background=mars", "background has no value 'mars'"),
        ("hub?item=200", "item must be from 0 to 199"),
        ("items?items=1,,2", "items must be up to 200 numbers with commas"),
        ("picture?item=200", "item must be from 0 to 199; got 200"),
    ],
)
def test_a_wrong_parameter_is_answered_by_one_sentence(client, path, message):
    answer = client.get(f"/api/{path}")
    assert answer.status_code == 422
    assert message in answer.json()["detail"]


PARAMETERS = [
    *("query", "item", "seed", "k", "reference_k", "alpha", "weight", "beta", "center"),
    *("method", "where", "which", "text", "items", "unknown"),
]


_WEIRD = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=30),
    st.sampled_from(
        ["", "nnn", "qbnorm", "1e400", "-0", "１", "\x00", "a=b=c", "0x10", "💥", "%00"]
    ),
)


@pytest.mark.slow
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_parameters_of_the_interface_make_it_fail(client, views, data):
    """A server error would be raised by the client of this test."""
    path = data.draw(st.sampled_from(sorted(views.paths)))
    params = [
        (name, str(data.draw(st.one_of(st.integers(0, 300), st.floats(0, 2), _WEIRD))))
        for name in data.draw(st.lists(st.sampled_from(PARAMETERS), max_size=6))
    ]
    answer = client.get(f"/api/{path}", params=params)
    assert answer.status_code in (200, *REFUSED), answer.text
    if answer.status_code != 200:
        assert answer.json()["detail"]


def test_captions_are_data_and_never_markup(client):
    found = client.get("/api/search?query=0").json()
    assert found["query"]["text"] == ATTACK  # the page makes text nodes of it
    assert client.get("/api/about").headers["content-type"].startswith("application/json")


# --- pictures ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    from PIL import Image

    inside, outside = tmp_path / "pictures", tmp_path / "secret"
    for place in (inside, outside):
        place.mkdir()
        Image.new("RGB", (300, 200), (200, 30, 30)).save(place / "photo.png")
    os.symlink(outside / "photo.png", inside / "link.png")
    os.symlink(outside, inside / "folder")
    os.symlink(inside / "photo.png", inside / "own.png")
    (inside / "broken.jpg").write_bytes(b"no picture at all")
    return inside


NAMES = [
    *("photo.png", "own.png"),  # these may be shown
    *("../secret/photo.png", "link.png", "folder/photo.png", "..", "/etc/passwd", "broken.jpg"),
    *("..%2Fsecret%2Fphoto.png", "....//secret/photo.png", "nowhere.png", "", "photo.png\x00"),
]


@pytest.mark.slow
def test_pictures_come_from_their_folder_only(material, folder, caplog):
    outside = str(folder.parent / "secret" / "photo.png")
    names = [*NAMES, outside]
    names += ["photo.png"] * (len(material.gallery) - len(names))
    session = Session(replace(material, pictures=FolderPictures(folder, names), truth=None))
    with (
        TestClient(make_app(session), base_url="http://localhost") as opened,
        caplog.at_level(logging.WARNING, logger="nnnorm.explore"),
    ):
        kinds = [
            opened.get(f"/api/picture?item={item}").headers["content-type"]
            for item in range(len(NAMES) + 1)
        ]
    assert kinds[:2] == ["image/jpeg"] * 2
    assert kinds[2:] == ["image/svg+xml"] * (len(kinds) - 2)
    assert len(caplog.records) == len(kinds) - 2
    assert "is outside of" in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/static//etc/passwd", "/static/..%5cserver.py", "/api/picture/../../server.py",
        "/static/vendor/../../server.py", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(client, path):
    answer = client.get(path)
    assert answer.status_code in REFUSED
    assert "import" not in answer.text
    assert "root:" not in answer.text


def test_a_picture_is_made_once_and_then_kept(client, session):
    first = client.get("/api/picture?item=3")
    assert first.content.startswith(b"\x89PNG")
    assert "max-age" in first.headers["cache-control"]
    assert session.thumbnails.get(3) is session.thumbnails.get(3)


class RepairedPictures:
    """Every picture can't be read at first, with an error of Pillow's for damaged metadata."""

    def __init__(self):
        self.seen = set()

    def __call__(self, item):
        if item not in self.seen:
            self.seen.add(item)
            raise SyntaxError("not a TIFF file (header b'' not valid)")
        return b"\x89PNG"


def test_a_damaged_picture_is_a_placeholder_until_it_is_put_right(caplog):
    thumbnails = Thumbnails(RepairedPictures())
    with caplog.at_level(logging.WARNING, logger="nnnorm.explore"):
        assert thumbnails.get(3) is None
    assert "no picture of item 3: not a TIFF file" in caplog.text
    assert thumbnails.get(3) is not None


# --- out again -----------------------------------------------------------------------------------


def test_an_exported_bias_fits_the_gallery_and_is_the_shown_one(client, session, tmp_path):
    answer = client.get("/api/export/bias?method=nnn&reference_k=16&alpha=0.5&center=false")
    (tmp_path / "bias.safetensors").write_bytes(answer.content)
    bias = Bias.load(tmp_path / "bias.safetensors")
    assert bias.params["reference_k"] == 16
    assert bias.weight == 0.5
    assert bias.fits(session.material.gallery)


def test_the_list_of_outliers_is_that_of_scan(client, session):
    expected = "".join(f"{one}\n" for one in session.scan.result().to_remove)
    assert client.get("/api/export/outliers").text == expected


def test_lists_that_wait_for_the_scan_keep_no_other_request_waiting(session):
    waiting, is_scanned = copy.copy(session), threading.Event()
    waiting.scan = start(lambda: is_scanned.wait(240) and session.scan.result())
    with (
        TestClient(make_app(waiting), base_url="http://localhost") as opened,
        ThreadPoolExecutor(8) as threads,
    ):
        n_lists = min(7, max(2, os.cpu_count() or 1))
        lists = [threads.submit(opened.get, "/api/export/outliers") for _ in range(n_lists)]
        try:
            wait(lists, timeout=0.3)
            assert threads.submit(opened.get, "/api/hubs").result(timeout=120).status_code == 200
            assert not any(one.done() for one in lists)
        finally:
            is_scanned.set()
        assert {one.result().status_code for one in lists} == {200}


def test_the_commands_of_a_setting_make_its_bias(client):
    found = client.get("/api/search?query=0&reference_k=16&alpha=0.5&center=true").json()
    fit, search = (" ".join(one.replace("\\", "").split()) for one in found["setting"]["commands"])
    assert "--references PAST.npy --reference-k 16 --alpha 0.5 --set center=true" in fit
    assert search.startswith("nnnorm search --gallery GALLERY.npy")


@pytest.mark.slow
def test_long_work_is_announced_until_it_is_done(material):
    session = Session(material)
    with TestClient(make_app(session), base_url="http://localhost") as opened:
        for path, work in (("scan", session.scan), ("grid", session.tuning)):
            assert isinstance(opened.get(f"/api/{path}").json()["ready"], bool)
            work.result()
            assert opened.get(f"/api/{path}").json()["ready"] is True


def test_a_port_that_is_taken_is_named():
    with listen(port=0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NNNormError, match=f"can't listen on 127.0.0.1, port {port}"):
            listen(port=port)


def test_a_handful_of_rows_is_shown_or_refused_in_one_sentence(tmp_path):
    rows = load_shapes().gallery
    gallery, queries, bank = (
        open_embeddings(rows[some], name=name)
        for name, some in (("gallery", slice(3)), ("queries", [3]), ("references", [4, 5]))
    )
    truth = open_truth([1], n_queries=1, n_gallery=3)
    session = Session(Material(gallery, queries, bank, truth=truth))
    for work in (session.map, session.tuning, session.scan):
        result_of(work)
    with TestClient(make_app(session), base_url="http://localhost") as opened:
        for path in Views(session).paths:
            answer = opened.get(
                f"/api/{path}", params={"query": 0} if "search" in path else {"item": 1}
            )
            assert answer.status_code in (200, *REFUSED), path
        assert opened.get("/api/hubs").status_code == 200
        assert opened.get("/api/picture?item=0").status_code == 422  # there are none
    assert "index.html" in record(session, tmp_path / "out")
