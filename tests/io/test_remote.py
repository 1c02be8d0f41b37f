"""Files at a URL, and files that don't fit in memory, are read like any other."""

import io
import os
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest

from nnnorm import NNNormError, open_embeddings
from nnnorm.errors import MissingExtraError
from tests.command import run

ROWS = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def memory():
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def write_parquet(folder):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    for number, rows in enumerate(np.split(np.arange(50), [20])):
        table = pyarrow.table({"id": 1000 + rows, "embedding": list(ROWS[rows])})
        parquet.write_table(table, folder / f"part_{number}.parquet", row_group_size=7)
    return folder


@pytest.mark.parametrize("kind", ["npy", "npz", "shards", "pattern"])
def test_a_url_is_opened_as_a_path_is(memory, kind):
    url = "memory://set/gallery.npy"
    if kind == "npy":
        memory.pipe_file("/set/gallery.npy", npy(ROWS))
    elif kind == "npz":
        file = io.BytesIO()
        np.savez(file, embedding=ROWS)
        memory.pipe_file("/set/gallery.npz", file.getvalue())
        url = "memory://set/gallery.npz"
    else:
        for number, part in enumerate(np.split(ROWS, [5, 30])):
            memory.pipe_file(f"/set/img_emb/img_emb_{number}.npy", npy(part))
        url = "memory://set" if kind == "shards" else "memory://set/img_emb/*_emb_?.npy"
    here = open_embeddings(ROWS)
    for source in (url, Path(url)):  # a Path has lost a slash
        there = open_embeddings(source, name="gallery")
        assert there.fingerprint == here.fingerprint
        np.testing.assert_array_equal(there.take(np.array([49, 3, 30])), ROWS[[49, 3, 30]])


def test_parquet_behind_a_url_keeps_its_ids(memory, tmp_path):
    for path in write_parquet(tmp_path / "packed").iterdir():
        memory.pipe_file(f"/packed/{path.name}", path.read_bytes())
    found = open_embeddings("memory://packed", name="gallery")
    assert found.fingerprint == open_embeddings(ROWS).fingerprint
    assert found.ids.tolist() == list(range(1000, 1050))


def test_parquet_files_that_fill_the_memory_are_unpacked_to_disk(tmp_path, monkeypatch):
    folder = write_parquet(tmp_path / "packed")
    held = open_embeddings(folder, name="gallery")
    monkeypatch.setattr("nnnorm.arrays._LARGE_SHARE", 10**12)
    found = open_embeddings(folder, name="gallery")
    assert all(isinstance(part, np.memmap) for part in found.parts)
    assert found.fingerprint == held.fingerprint
    assert found.ids.tolist() == held.ids.tolist()
    np.testing.assert_array_equal(found.take(np.array([49, 3, 19, 20])), ROWS[[49, 3, 19, 20]])


def test_what_is_not_there_or_is_cut_short_is_named(memory):
    memory.pipe_file("/set/img_emb_0.npy", npy(ROWS)[:-9])
    for url, words in {
        "memory://set": "is it truncated",
        "memory://none.npy": r"gallery \(memory://none.npy\): there is no such file",
        "memory://set/*.parquet": "there is no such file",
        "nosuch://bucket/x.npy": "nosuch://bucket/x.npy can't be reached .*Protocol not known",
    }.items():
        with pytest.raises(NNNormError, match=words):
            open_embeddings(url, name="gallery")


def test_a_path_of_windows_may_be_a_url_or_a_pattern(memory, tmp_path, monkeypatch):
    memory.pipe_file("/set/gallery.npy", npy(ROWS))
    assert len(open_embeddings(PureWindowsPath("memory://set/gallery.npy"))) == len(ROWS)
    np.save(tmp_path / "part-1.npy", ROWS)
    stat, error = os.stat, OSError(22, "The filename, directory name, or volume label")
    error.winerror = 123

    def fail(path, **options):
        if "*" in str(path):
            raise error
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", fail)
    monkeypatch.setattr(Path, "is_dir", lambda path: os.path.isdir(path))
    monkeypatch.setattr(Path, "exists", lambda path, **_: os.path.exists(path))
    assert len(open_embeddings(tmp_path / "part-*.npy")) == len(ROWS)


def test_a_pattern_sorts_files_by_their_numbers(tmp_path):
    for number, part in zip((9, 10, 11), np.split(ROWS, [5, 30]), strict=True):
        np.save(tmp_path / f"part-{number}.npy", part)
    assert open_embeddings(tmp_path / "part-*.npy").fingerprint == open_embeddings(ROWS).fingerprint


def test_without_fsspec_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nnnorm\[remote\]'"):
        open_embeddings("memory://gallery.npy")


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such names")
@pytest.mark.parametrize("name", ["part[1].npy", "a?b.npy", "a*.npy"])
def test_a_file_with_the_name_of_a_pattern_is_that_file(memory, name):
    memory.pipe_file("/set/part1.npy", npy(ROWS[:3]))
    memory.pipe_file("/set/axb.npy", npy(ROWS[:3]))
    memory.pipe_file(f"/set/{name}", npy(ROWS))
    assert len(open_embeddings(f"memory://set/{name}")) == len(ROWS)


@pytest.fixture
def website():
    """A server on this machine that has /set/gallery.npy for those who know the signature."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_there = self.path == f"/set/gallery.npy?X-Amz-Expires=9&X-Amz-Signature={SECRET}"
            body = npy(ROWS) if is_there else b""
            self.send_response(200 if is_there else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    pytest.importorskip("aiohttp")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/set"
        server.shutdown()


SECRET = "Hunter2x"
SIGNED = [
    f"gallery.npy?X-Amz-Expires=8&X-Amz-Signature={SECRET}",
    f"gallery.npy?sv=2024&sig={SECRET}%3D&se=1",
    f"none.npy?token={SECRET}",
    f"?api_key={SECRET}",
]


def test_a_signed_url_is_one_file_and_not_a_pattern(website):
    url = f"{website}/gallery.npy?X-Amz-Expires=9&X-Amz-Signature={SECRET}"
    for source in (url, Path(url)):
        found = open_embeddings(source, name="gallery")
        assert found.fingerprint == open_embeddings(ROWS).fingerprint
        assert SECRET not in found.name


@pytest.mark.parametrize("rest", SIGNED)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_no_message_shows_a_signature(website, rest, debug):
    result = run("info", f"{website}/{rest}", *debug)
    assert result.exit_code == 1
    assert "can't be reached" in result.stderr or "there is no such file" in result.stderr
    assert SECRET not in result.output
    with pytest.raises(NNNormError) as caught:
        open_embeddings(f"{website}/{rest}", name="gallery")
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None


def test_what_is_printed_for_people_masks_the_secrets_of_urls(website, tmp_path):
    url = f"{website}/gallery.npy?X-Amz-Expires=9&X-Amz-Signature={SECRET}"
    output = tmp_path / "bias.safetensors"
    result = run("fit", "--gallery", url, "--references", url, "-o", output, "--json")
    for shown in (result, run("info", url), run("fit", f"--gallery={url}", f"--x={url}")):
        assert SECRET not in shown.output
        assert "gallery.npy" in shown.output or shown.exit_code != 1
