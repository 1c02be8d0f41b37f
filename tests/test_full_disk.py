"""Every engine and command reports a full disk and leaves no incomplete file.

The slow tests fill a real one: a file system of 1.5 MB, mounted for one process on Linux.
"""

import errno
import os
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest

import nnnorm
from nnnorm import files
from nnnorm.index import open_index
from tests.command import assert_fails, run
from tests.index.engines import ENGINES, MORE, arguments, build, parametrize, world

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
LOCAL = [case for case in ENGINES if not case.server]


@pytest.fixture
def full_disk(monkeypatch):
    """Nothing is written through to the disk any more."""

    def fail(*_):
        raise FULL

    def fill():
        monkeypatch.setattr(os, "fsync", fail)
        monkeypatch.setattr(files.shutil, "copyfile", fail)

    return fill


@parametrize(LOCAL)
@pytest.mark.parametrize("error", [FULL, RuntimeError("can't write"), ValueError("short write")])
def test_an_engine_says_so_even_if_its_library_does_not(case, error, tmp_path, monkeypatch):
    index = build(case, tmp_path)
    before, kind = len(index), type(index.backend)
    rows, given = arguments(MORE)

    def fail(*_):
        raise error

    usage = namedtuple("usage", "total used free")(2**30, 2**30, 5000)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(kind, "add", fail)
    with pytest.raises(nnnorm.NNNormError, match="the disk is full, free some space"):
        index.add(rows, **given)
    monkeypatch.undo()
    assert len(index) == before
    index.close()


@pytest.mark.slow
def test_a_saved_file_and_an_export_are_whole_or_not_there(tmp_path, full_disk, small):
    folder, given = tmp_path / "disk", []
    for name in ("gallery", "queries", "references"):
        np.save(tmp_path / f"{name}.npy", getattr(small, name))
        given += [f"--{name}", tmp_path / f"{name}.npy"]
    folder.mkdir()
    export, path = folder / "export", folder / "bias.safetensors"
    bias = nnnorm.NNN().fit(small.gallery, small.references)
    full_disk()
    with pytest.raises(nnnorm.NNNormError, match="the disk is full; nothing was changed"):
        bias.save(path)
    assert_fails(run("explore", *given, "--export", export), "the disk is full")
    assert list(folder.iterdir()) == []


def test_a_mapped_file_is_allocated_before_it_is_written_to(tmp_path, monkeypatch):
    path = tmp_path / "rows.npy"
    for has_call in (True, False):
        if not has_call:
            monkeypatch.delattr(os, "posix_fallocate", raising=False)
        rows = files.make_mapped(path, np.float16, (7, 300))
        rows[:] = 2
        rows.flush()
        assert path.stat().st_blocks * 512 >= rows.nbytes
        np.testing.assert_array_equal(np.load(path), np.full((7, 300), 2, np.float16))


FILL = """
import sys
from pathlib import Path
from nnnorm.files import make_mapped
from tests.test_full_disk import fill
what, folder = sys.argv[1:]
try:
    make_mapped(f"{folder}/rows.npy", "f4", (2000, 1000)) if what == "map" else fill(what, folder)
except ValueError as error:
    print(error)
print(*(path.name for path in Path(folder).glob("*.npy")))
"""


def fill(name, folder):
    """Build a small index, then add more to it than there is space for."""
    case = next(case for case in LOCAL if case.name == name)
    url = case.url.format(folder=folder, memory=folder, name="photos")
    rng, corrector = np.random.default_rng(0), world().correctors[0]
    rows = rng.normal(size=(40_000, corrector.dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    try:
        with nnnorm.build_index(url, rows[:100], corrector) as index:
            ids = np.arange(100, len(rows))
            index.add(rows[100:], ids=ids, metadata=[{"title": f"photo {n}"} for n in ids])
    finally:
        with open_index(url) as again:
            assert len(again) == 100


@pytest.mark.slow
@pytest.mark.parametrize("what", ["faiss", "sqlite", "duckdb", "lancedb", "map"])
def test_a_real_full_disk_is_one_sentence_and_the_index_is_as_before(what, tmp_path):
    mount = f"mount -t tmpfs -o size=1500k tmpfs {tmp_path}"
    wrap = ["unshare", "-rm", "sh", "-c"]
    if sys.platform != "linux" or subprocess.run([*wrap, mount], capture_output=True).returncode:
        pytest.skip("needs Linux, and the right to mount a file system")
    command = f'{mount} && exec "$0" -c "$1" "$2" {tmp_path}'
    line = [*wrap, command, sys.executable, FILL, what]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the disk is full" in done.stdout
    assert "rows.npy" not in done.stdout.splitlines()
