import contextlib
import os
import re
import signal
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import tiny

# The caller's terminal, locale, proxies and database settings decide no test. Models are built by
# the tests; a name on the hub must not be looked for in the network.
FOREIGN = r"CI|GITHUB_.*|.*_PROXY|NO_COLOR|(FORCE|PY|TTY)_.*|CLICOLOR.*|PG[A-Z]+"
for variable in [name for name in os.environ if re.fullmatch(FOREIGN, name.upper())]:
    del os.environ[variable]
os.environ |= {"COLUMNS": "80", "TERM": "xterm", "LC_ALL": "C.UTF-8", "HF_HUB_OFFLINE": "1"}

# A process that was started in the background ignores Ctrl-C, and so would those that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no limits of time: machines differ, and may be busy.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

REAL_DATA = Path(os.environ.get("NNNORM_REAL_DATA", Path(__file__).parents[2] / "shared" / "data"))


# Doctests carry no marks: those of these rooms load models, or run the whole demo.
SLOW_DOCTESTS = ("src/nnnorm/demo/", "src/nnnorm/encoders/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return the number of cores that may be used, at most 8 and one for every 2 GB of memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
    workers = max(1, min(cores or 1, 8, memory // 2**31 or 8))
    if workers < (cores or 1):  # products of all workers share the cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(2, cores // workers)))
    return workers


def pytest_ignore_collect(collection_path, config):
    """Where slow tests are left out, don't even import a file that is slow as a whole."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return bool(re.search(r"^pytestmark = .*pytest\.mark\.slow", text, re.MULTILINE)) or None


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW_DOCTESTS):
            item.add_marker(pytest.mark.slow)


def threads_and_children():
    """Threads that would keep this process alive, but for our pool's, and its child processes."""
    threads = {
        thread
        for thread in threading.enumerate()
        if not thread.daemon and not thread.name.startswith("nnnorm")
    }
    children = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            children |= set(path.read_text().split())
    return threads | children


@pytest.fixture(autouse=True)
def leave_nothing_behind(request):
    """Fail a test that leaves a thread or a process running."""
    before = threads_and_children()
    yield
    left = threads_and_children() - before
    assert not left, f"left running: {left}"


@pytest.fixture(autouse=True)
def doctests_write_into_a_folder_of_their_own(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        folder = request.getfixturevalue("tmp_path")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.fixture
def rng():
    return np.random.default_rng(20241112)


@pytest.fixture
def small(rng):
    """A small problem of non-unit vectors with n_queries ≠ n_gallery ≠ n_references."""
    return SimpleNamespace(
        gallery=rng.normal(size=(23, 12)).astype(np.float32) * 0.3,
        references=rng.normal(size=(57, 12)).astype(np.float32) * 0.3,
        queries=rng.normal(size=(11, 12)).astype(np.float32) * 0.3,
        gallery_references=rng.normal(size=(31, 12)).astype(np.float32) * 0.3,
    )


@pytest.fixture(scope="session")
def flickr8k():
    folder = REAL_DATA / "flickr8k"
    if not folder.is_dir():
        pytest.skip(f"the real embeddings are not here ({folder})")
    load = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    captions = {
        split: (5 * load[f"{split}_images"][:, None] + np.arange(5)).ravel()
        for split in ("train", "val", "test")
    }
    return SimpleNamespace(
        image={s: load["image"][load[f"{s}_images"]] for s in captions},
        caption={s: load["caption"][rows] for s, rows in captions.items()},
        coco_caption=load["coco_caption"],
    )


@pytest.fixture(scope="session")
def unsplash500():
    folder = REAL_DATA / "unsplash500"
    if not folder.is_dir():
        pytest.skip(f"the real embeddings are not here ({folder})")
    return SimpleNamespace(image=np.load(folder / "image.npy"), text=np.load(folder / "text.npy"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Path of a tiny model of some kind (tests/tiny.py), built once."""
    import torch

    torch.set_num_threads(1)  # quicker for models this small, and the same bits everywhere
    built = {}

    def path_of(kind):
        if kind not in built:
            built[kind] = tiny.build_any(kind, tmp_path_factory.mktemp(kind))
        return built[kind]

    return path_of


@pytest.fixture(scope="session")
def tiny_encoder(tiny_model):
    """The same, loaded; don't change it."""
    from nnnorm.encoders import load_encoder

    loaded = {}

    def encoder_of(kind):
        if kind not in loaded:
            loaded[kind] = load_encoder(tiny_model(kind), device="cpu")
        return loaded[kind]

    return encoder_of


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return tiny.draw_images(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def sounds(tmp_path_factory):
    return tiny.write_sounds(tmp_path_factory.mktemp("sounds"))
