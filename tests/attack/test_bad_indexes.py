"""Indexes: options that engines crash on, damaged files, and Ctrl-C inside of an engine."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

from nnnorm import Bias, NNNormError
from nnnorm.cli import app
from nnnorm.errors import keep_interrupts
from nnnorm.files import write_whole
from nnnorm.index import ENGINES, build_index, open_index, open_store
from nnnorm.index.stores.duckdb import DuckdbStore
from nnnorm.index.stores.faiss import FaissStore
from nnnorm.index.stores.hnswlib import HnswlibStore
from nnnorm.index.stores.usearch import UsearchStore
from nnnorm.index.urls import load_engine

LOCAL = {"faiss": FaissStore, "hnswlib": HnswlibStore, "usearch": UsearchStore}
each_local = pytest.mark.parametrize("engine", LOCAL)


@pytest.fixture
def small():
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, Bias(np.linspace(0.1, 0.5, 40), 0.75, "nnn")


# --- options ---


@pytest.mark.parametrize("scheme", ENGINES)
def test_numbers_out_of_range_never_reach_an_engine(scheme):
    kind = load_engine(scheme).options_type
    hints = get_type_hints(kind)
    for one in dataclasses.fields(kind):
        if hints[one.name] is not int:
            continue
        low, high = one.metadata["range"]
        for value in (low - 1, high + 1, -(10**12), 10**12, 10**30, "9" * 5000, "--5", "1e3", "٣"):
            with pytest.raises(NNNormError, match=f"{one.name} must be a whole number from"):
                open_store(f"{scheme}:photos.db?{one.name}={value}")


@each_local
def test_the_ends_of_every_range_build_an_index(engine, small, tmp_path):
    gallery, bias = small
    bounds = {
        one.name: one.metadata["range"] for one in dataclasses.fields(LOCAL[engine].options_type)
    }
    for name in {"links", "ef_construction", "ef"} & set(bounds):
        for value in bounds[name]:
            if name == "ef_construction" and engine == "faiss" and value > 1000:
                continue
            kind = {"kind": "hnsw"} if engine == "faiss" else {}
            index = build_index(LOCAL[engine]("", **{name: value}, **kind), gallery, bias)
            assert index.search(gallery[:2], k=3).ids.shape == (2, 3)


def test_more_cells_than_items_are_refused_with_one_sentence(small):
    with pytest.raises(NNNormError, match="cells must be at most the number of items, 40"):
        build_index("faiss:?kind=ivf&cells=5000", *small)


# --- damaged files ---


@each_local
def test_a_changed_bit_is_found_before_the_engine_opens_the_file(engine, small, tmp_path):
    path = tmp_path / "photos.index"
    build_index(f"{engine}:{path}", *small).close()
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 25).astype(int):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(NNNormError, match="not the file that was saved"):
            open_index(f"{engine}:{path}")
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(NNNormError, match="not the file that was saved"):
            open_index(f"{engine}:{path}")
    path.write_bytes(whole)
    assert len(open_index(f"{engine}:{path}")) == 40


@each_local
def test_a_second_file_without_a_checksum_still_opens(engine, small, tmp_path):
    path = tmp_path / "photos.index"
    build_index(f"{engine}:{path}", *small).close()
    change_sidecar(path, lambda about: about.pop("checksum"))
    assert len(open_index(f"{engine}:{path}")) == 40


def change_sidecar(path, change, arrays=lambda tensors: None):
    beside = Path(f"{path}.nnnorm")
    with safe_open(beside, framework="numpy") as file:
        about, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(about)
    arrays(tensors)
    save_file(tensors, beside, about)


WRONG = ["null", "true", "7", '"x"', "[]", "[1]", "{}", '{"a": 1}', "[" * 100_000, "x", ""]


@each_local
@pytest.mark.parametrize("key", ["note", "settings", "names", "metadata", "format"])
def test_a_second_file_with_a_wrong_type_inside_gets_one_sentence(engine, small, tmp_path, key):
    path = tmp_path / "photos.index"
    build_index(f"{engine}:{path}", *small).close()
    for wrong in WRONG:
        change_sidecar(path, lambda about, wrong=wrong: about.update({key: wrong}))
        try:
            index = open_index(f"{engine}:{path}")
        except NNNormError:
            continue
        assert len(index) == 40  # null is what stands there without names and metadata


@pytest.mark.slow
@each_local
def test_every_setting_and_every_entry_of_the_note_is_checked(engine, small, tmp_path):
    path = tmp_path / "photos.index"
    build_index(f"{engine}:{path}", *small).close()
    with safe_open(f"{path}.nnnorm", framework="numpy") as file:
        kept = {part: json.loads(file.metadata()[part]) for part in ("settings", "note")}
    for part, entries in kept.items():
        for name in entries:
            for wrong in (None, True, -1, 10**30, 1e999, "x", [], ["x"], {}, {"a": 1}):
                text = json.dumps({**entries, name: wrong})
                change_sidecar(path, lambda about, part=part, text=text: about.update({part: text}))
                try:
                    open_index(f"{engine}:{path}").search(small[0][:2], k=2)
                except NNNormError:
                    continue


@each_local
def test_labels_of_a_wrong_form_get_one_sentence(engine, small, tmp_path):
    path = tmp_path / "photos.index"
    build_index(f"{engine}:{path}", *small).close()
    for wrong in (np.zeros((2, 2), dtype=np.int64), np.zeros(40), np.arange(3)):
        change_sidecar(
            path, lambda about: None, lambda tensors, wrong=wrong: tensors.update(labels=wrong)
        )
        with pytest.raises(NNNormError):
            open_index(f"{engine}:{path}")


@each_local
def test_a_pipe_is_no_index(engine, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NNNormError, match="pipe"):
        open_index(
            f"{engine}:{tmp_path / 'pipe'}?dim=4"
            if engine == "hnswlib"
            else f"{engine}:{tmp_path / 'pipe'}"
        )


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_a_pipe_is_no_database(engine, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NNNormError, match="pipe"):
        open_index(f"{engine}:{tmp_path / 'pipe'}?table=photos")


@each_local
def test_a_pipe_is_no_second_file(engine, small, tmp_path):
    path = tmp_path / "photos.index"
    build_index(f"{engine}:{path}", *small).close()
    Path(f"{path}.nnnorm").unlink()
    os.mkfifo(f"{path}.nnnorm")
    with pytest.raises(NNNormError, match="pipe"):
        open_index(f"{engine}:{path}")


@pytest.mark.parametrize("url", ["faiss:/", "hnswlib:/", "usearch:/", "sqlite:x?table=a%00b"])
def test_a_place_that_is_no_file_gets_one_sentence(url, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NNNormError):
        build_index(url, *small)
    assert not list(tmp_path.iterdir())


def test_ids_without_the_bias_that_they_name_are_refused(tmp_path):
    (tmp_path / "ids.txt").write_text("a\nb\n")
    line = ["index", "export", "--from", "faiss:a", "--to", "faiss:b", "--ids", "ids.txt"]
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 1
    assert "--ids names the rows of a bias" in told.output


# --- Ctrl-C, kills ---


@pytest.mark.parametrize(
    ("store", "message"),
    [(UsearchStore, "Operation has been terminated"), (DuckdbStore, "Query interrupted")],
)
def test_ctrl_c_inside_of_an_engine_is_an_interrupt(store, message, small, tmp_path, monkeypatch):
    """The errors that usearch 2 and DuckDB 1 raise when a signal arrives while they work."""

    def interrupted(*_):
        raise RuntimeError(message)

    monkeypatch.setattr(store, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_index(store(tmp_path / "photos.db"), *small)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="out of space"), keep_interrupts():
        raise RuntimeError("out of space")


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
    fcntl = pytest.importorskip("fcntl")
    stray, busy, fresh = (tmp_path / f".nnnorm-{n}.tmp" for n in ("0f", "1f", "2f"))
    for path in (stray, busy, fresh):
        path.write_bytes(b"half")
    for path in (stray, busy):
        os.utime(path, (time.time() - 60,) * 2)
    with open(busy, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a process that still writes it
        write_whole(tmp_path / "whole.bin", lambda file: file.write(b"whole"))
    assert {path.name for path in tmp_path.iterdir()} == {"whole.bin", busy.name, fresh.name}
