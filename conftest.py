"""How tests run: in what environment, in how many processes, and which of them are slow."""

import contextlib
import functools
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings

# The caller's terminal, locale, proxies and database settings decide no test. Models are built by
# the tests; a name on the hub must not be looked for in the network.
FOREIGN = r"CI|GITHUB_.*|.*_PROXY|NO_COLOR|(FORCE|PY|TTY)_.*|CLICOLOR.*|PG[A-Z]+"
for variable in [name for name in os.environ if re.fullmatch(FOREIGN, name.upper())]:
    del os.environ[variable]
# Byte code is written: without it, every process would compile the package and its tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ |= {"COLUMNS": "80", "TERM": "xterm", "LC_ALL": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
# Libraries above the engines must not report that they were used.
os.environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGSMITH_TRACING": "false"}

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
settings.register_profile("quick", settings.get_profile("steady"), max_examples=25)
settings.load_profile("steady")

# Every run of a command in a test would build the parsers of all commands again.
build_command = typer.main.get_command
build_once = functools.cache(lambda app, *_: build_command(app))
typer.main.get_command = lambda app: build_once(
    app, len(app.registered_commands), len(app.registered_groups)
)


ROOT = Path(__file__).parent

# Collection makes hundreds of thousands of objects that stay, and no garbage to look for in them.
gc.disable()

# They run the whole demo, a whole table or a whole check, measure this machine, or load torch or
# another large library.
SLOW_DOCTESTS = (
    "src/nnnorm/demo.py",
    "src/nnnorm/encoders/",
    "src/nnnorm/integrations/",
    "src/nnnorm/explore/",
    "src/nnnorm/report/plots.py",
    "src/nnnorm/evaluation/checking.py",
    "src/nnnorm/evaluation/drift.py",
)


def pytest_configure(config):
    """Where slow tests are left out, try fewer examples of a property."""
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return the number of cores that may be used, and one more for tests that wait for a child.

    Slow ones do, others don't. At most 8, and one for every 2 GB of memory.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
    wanted = (cores or 1) + (config.option.markexpr != "not slow")
    workers = max(1, min(wanted, 8, memory // 2**31 or 8))
    # Products of all workers share the cores; threads of BLAS would only wait for each other.
    if workers < (cores or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(2, cores // workers)))
    else:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return workers


def pytest_ignore_collect(collection_path, config):
    """Where slow tests are left out, don't even import a file that is slow as a whole."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    if collection_path.as_posix().removeprefix(f"{ROOT.as_posix()}/").startswith(SLOW_DOCTESTS):
        return True
    text = collection_path.read_text(encoding="utf-8")
    return bool(re.search(r"^pytestmark = \[?\s*pytest\.mark\.slow", text, re.MULTILINE)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Look for doctests in the package only: the tests have none."""
    found = yield
    if (ROOT / "tests") in file_path.parents:
        found = [one for one in found if type(one).__name__ != "DoctestModule"]
    return found


def pytest_collection_modifyitems(items):
    """Mark what loads torch by its fixtures or its name, and doctests, which carry no marks."""
    for item in items:
        loads = {"tiny_model", "tiny_encoder"}.intersection(getattr(item, "fixturenames", ()))
        if loads or "torch" in item.name or item.nodeid.startswith(SLOW_DOCTESTS):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Look for garbage from here on, and less often than usual: little of it is in cycles."""
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def threads_and_children():
    """Threads that would keep this process alive, but for our pool's, and its child processes."""
    threads = {
        thread
        for thread in threading.enumerate()
        if not thread.daemon and not thread.name.startswith("nnnorm")
    }
    children = set()
    for path in Path("/proc/self/task").glob("*/children") if has_children() else ():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            children |= set(path.read_text().split())
    return threads | children


def has_children():
    """Whether there may be any; asked around every test, so it should cost little."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # a system without it
        pass
    return True


@pytest.fixture(autouse=True)
def leave_nothing_behind(request):
    """Fail a test that leaves a thread or a process running, or that is slow without saying so."""
    before, had_torch = threads_and_children(), "torch" in sys.modules
    yield
    if request.config.option.markexpr == "not slow":
        assert had_torch or "torch" not in sys.modules, "this test loads torch: mark it slow"
    end = time.monotonic() + 30  # what is about to end may need a while on a busy machine
    while (left := threads_and_children() - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left, f"left running: {left}"


@pytest.fixture(autouse=True)
def doctests_write_into_a_folder_of_their_own(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        folder = request.getfixturevalue("tmp_path")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
