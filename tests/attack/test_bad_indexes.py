"""Indexes: options that crash engines, damaged files, and Ctrl-C inside an engine."""

import dataclasses
import os
import time
from typing import get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

from nnnorm import NNN, Corrector, NNNormError
from nnnorm.cli.app import app
from nnnorm.errors import keep_interrupts
from nnnorm.files import write_whole
from nnnorm.index import ENGINES, build_index, copy_index, open_backend, open_index
from nnnorm.index.engines import load_engine
from nnnorm.index.folder import FolderBackend
from nnnorm.index.sql import SqlBackend

LOCAL = [name for name in ENGINES if issubclass(load_engine(name), FolderBackend)]
# Those that are one file, unlike a server's.
DATABASES = [
    name for name in ENGINES if issubclass(load_engine(name), SqlBackend) and name != "pgvector"
]
each_local = pytest.mark.parametrize("engine", LOCAL)


@pytest.fixture
def small():
    rows = np.random.default_rng(0).normal(size=(140, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows[:40], Corrector.fit(rows[:40], rows[40:], NNN(8, 0.75))


# --- options ---


@pytest.mark.parametrize("scheme", ENGINES)
def test_numbers_out_of_range_never_reach_an_engine(scheme):
    kind = load_engine(scheme).options_type
    hints = get_type_hints(kind)
    for one in dataclasses.fields(kind):
        if hints[one.name] is not int:
            continue
        low, high = one.metadata["bounds"]
        for value in (low - 1, high + 1, -(10**12), 10**12, 10**30, "9" * 5000, "--5", "1e3"):
            with pytest.raises(NNNormError, match=f"option {one.name} .*must be a whole number"):
                open_backend(f"{scheme}:photos.db?{one.name}={value}")


@each_local
def test_the_ends_of_every_range_build_an_index(engine, small):
    kind = load_engine(engine)
    bounds = {one.name: one.metadata.get("bounds") for one in dataclasses.fields(kind.options_type)}
    for name in {"links", "ef_construction", "ef"} & set(bounds):
        for value in bounds[name]:
            if name == "ef_construction" and engine == "faiss" and value > 1000:
                continue
            options = {"factory": "HNSW32"} if engine == "faiss" else {}
            index = build_index(kind("", **{name: value}, **options), *small)
            assert index.search(small[0][:2], k=3).ids.shape == (2, 3)


@pytest.mark.parametrize("factory", ["IVF5000,Flat", "nonsense", "PQ7,RFlat", "PQ7", ""])
def test_a_factory_that_faiss_cant_make_gets_one_sentence(factory, small):
    with pytest.raises(NNNormError, match=r"factory") as caught:
        build_index(f"faiss:?factory={factory}", *small)
    assert "\n" not in str(caught.value)


# --- damaged files ---


@each_local
def test_a_changed_bit_is_found_before_the_engine_opens_the_file(engine, small, tmp_path):
    url = f"{engine}:{tmp_path / 'photos'}"
    build_index(url, *small, metadata=[{"row": row} for row in range(40)]).close()
    (folder,) = (tmp_path / "photos").glob("v1_*")
    for path in folder.iterdir():
        whole = path.read_bytes()
        damages = [whole[:cut] for cut in (0, 1, len(whole) // 2, len(whole) - 1)]
        for place in np.linspace(0, len(whole) - 1, 15).astype(int):
            damaged = bytearray(whole)
            damaged[place] ^= 0x10
            damages.append(bytes(damaged))
        for damaged in damages:
            path.write_bytes(damaged)
            with pytest.raises(NNNormError, match="is damaged"):
                open_index(url).search(small[0][:2])
        path.write_bytes(whole)
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(NNNormError, match=r"open it again|no index metadata"):
            open_index(url).search(small[0][:2])
        (tmp_path / "elsewhere").rename(path)
    assert len(open_index(url)) == 40


@pytest.mark.parametrize("engine", [*LOCAL, *DATABASES])
def test_a_pipe_is_no_index(engine, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NNNormError, match="pipe"):
        open_index(f"{engine}:{tmp_path / 'pipe'}")


@each_local
def test_a_pipe_is_no_file_of_an_index(engine, small, tmp_path):
    url = f"{engine}:{tmp_path / 'photos'}"
    build_index(url, *small).close()
    (path,) = (tmp_path / "photos").glob("v1_*/index")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(NNNormError, match="pipe"):
        open_index(url).search(small[0][:2])


@each_local
def test_files_of_others_are_not_overwritten(engine, small, tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    for name in ("mine", "folder"):
        with pytest.raises(NNNormError, match=r"is a file|already exists"):
            build_index(f"{engine}:{tmp_path / name}", *small)
    assert (tmp_path / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize("url", ["faiss:/", "sqlite:x?table=a%00b"])
def test_a_place_that_is_no_file_gets_one_sentence(url, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NNNormError):
        build_index(url, *small)
    assert not list(tmp_path.iterdir())


@each_local
@pytest.mark.parametrize("place", [".", "out/..", "./"])
def test_a_folder_that_is_no_index_is_left_as_it_was(engine, place, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NNNormError, match="already exists"):
        build_index(f"{engine}:{place}", *small)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_that_is_no_database_gets_no_lock(small, tmp_path):
    (tmp_path / "mine").write_bytes(b"mine" * 1000)
    with pytest.raises(NNNormError, match="not a database"):
        build_index(f"sqlite:{tmp_path / 'mine'}", *small)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "pgvector"])
@pytest.mark.parametrize("is_link", [False, True])
def test_reading_creates_no_database(engine, is_link, small, tmp_path):
    place = tmp_path / "photos.db"
    if is_link:
        place.symlink_to("nowhere")
    before = list(tmp_path.iterdir())
    with pytest.raises(NNNormError, match="there is no index"):
        open_index(f"{engine}:{place}")
    with pytest.raises(NNNormError, match=r"there is no .* to copy"):
        copy_index(f"{engine}:{place}", "faiss:", small[1])
    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("engine", "lock"), [("faiss", "photos/LOCK"), ("sqlite", "photos.lock")])
def test_a_lock_file_that_is_none_gets_one_sentence(engine, lock, small, tmp_path):
    build_index(f"{engine}:{tmp_path / 'photos'}", *small).close()
    (tmp_path / lock).unlink()
    (tmp_path / lock).symlink_to(tmp_path / "nowhere")
    with (
        open_index(f"{engine}:{tmp_path / 'photos'}") as index,
        pytest.raises(NNNormError, match="is a link to a missing file"),
    ):
        index.delete([0])
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / lock).unlink()
    os.mkfifo(tmp_path / lock)
    with (
        open_index(f"{engine}:{tmp_path / 'photos'}") as index,
        pytest.raises(NNNormError, match="pipe"),
    ):
        index.delete([0])
    assert len(open_index(f"{engine}:{tmp_path / 'photos'}")) == 40


@pytest.mark.parametrize(
    ("engine", "nothing"),
    [("faiss", '{"year": 1}'), ("sqlite", "year = 1"), ("duckdb", "year = 1")],
)
def test_a_search_without_hits_is_a_result(engine, nothing, small, tmp_path):
    """Also that of a Milvus folder whose items are lost."""
    url, queries = f"{engine}:{tmp_path / 'photos'}", tmp_path / "queries.npy"
    build_index(url, *small, metadata=[{"year": 2000 + row} for row in range(40)]).close()
    np.save(queries, small[0][:3])
    line = ["index", "search", url, "--queries", str(queries), "--filter", nothing]
    for more in ([], ["--json"], ["-o", str(tmp_path / "hits.npz")]):
        result = CliRunner().invoke(app, [*line, *more])
        assert result.exit_code == 0, result.output
        assert more == ["--json"] or "3 of 3 queries have no hits." in result.output


# --- Ctrl-C, kills ---


@pytest.mark.parametrize(
    ("engine", "message"),
    [("usearch", "Operation has been terminated"), ("duckdb", "Query interrupted")],
)
def test_ctrl_c_inside_of_an_engine_is_an_interrupt(engine, message, small, tmp_path, monkeypatch):
    """The errors that usearch 2 and DuckDB 1 raise when a signal arrives while they work."""

    def interrupted(*_):
        raise RuntimeError(message)

    monkeypatch.setattr(load_engine(engine), "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_index(f"{engine}:{tmp_path / 'photos'}", *small)


def test_other_errors_stay_what_they_are():
    error, cause = RuntimeError("out of space"), ValueError("its cause")
    error.__cause__, cause.__cause__ = cause, error  # a circle, as pymilvus makes them
    with pytest.raises(RuntimeError, match="out of space"), keep_interrupts():
        raise error


def test_a_sentence_about_an_interrupt_stays():
    def act():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise NNNormError("interrupted; the same command continues where it stopped") from None

    with pytest.raises(NNNormError, match="continues where it stopped"), keep_interrupts():
        act()


def test_an_interrupt_that_numpy_turned_into_another_error_is_one_again(tmp_path):
    def write(file):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise TypeError("write() returned a wrong type")  # noqa: B904

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "rows.npy", write)
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_is_removed_by_the_next_run(tmp_path):
    stray, fresh = (tmp_path / f".nnnorm-{n}.tmp" for n in ("0f", "1f"))
    for path in (stray, fresh):  # the other may be of a process that still writes
        path.write_bytes(b"half")
    os.utime(stray, (time.time() - 7200,) * 2)
    write_whole(tmp_path / "whole.bin", lambda file: file.write(b"whole"))
    assert {path.name for path in tmp_path.iterdir()} == {"whole.bin", fresh.name}
