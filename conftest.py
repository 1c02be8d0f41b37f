"""Test setup: the environment, the number of processes, and which tests are slow."""

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

# Tests must not depend on the caller's terminal, locale, proxies or database settings. Tests build
# their own models, so nothing is downloaded from the Hugging Face Hub.
UNSET = r"CI|GITHUB_.*|.*_PROXY|NO_COLOR|(FORCE|PY|TTY)_.*|CLICOLOR.*|PG[A-Z]+"
for variable in [name for name in os.environ if re.fullmatch(UNSET, name.upper())]:
    del os.environ[variable]
# Write bytecode: without it, every process would compile the package and the tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ |= {"COLUMNS": "80", "TERM": "xterm", "LC_ALL": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
# Turn off the telemetry of Haystack and LangSmith.
os.environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "LANGSMITH_TRACING": "false"}

# If pytest runs in the background, it ignores Ctrl-C, and so would the processes that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Use the same examples in every run, and no time limits, because machines may be slow or busy.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=25)
settings.load_profile("steady")

# Build the parsers of all commands once, not for every command that a test runs.
build_command = typer.main.get_command
build_once = functools.cache(lambda app, *_: build_command(app))
typer.main.get_command = lambda app: build_once(
    app, len(app.registered_commands), len(app.registered_groups)
)


ROOT = Path(__file__).parent

# Collecting tests creates hundreds of thousands of objects, but no garbage.
gc.disable()

# These doctests run the demo, a table or a check, measure this machine, or load a large library.
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
    """If slow tests are skipped, try fewer examples per property."""
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return the number of available cores, plus one if slow tests run.

    Slow tests often wait for a child process. The maximum is 8, or one per 2 GB of memory.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if os.name == "posix" else 0
    wanted = (cores or 1) + (config.option.markexpr != "not slow")
    workers = max(1, min(wanted, 8, memory // 2**31 or 8))
    # The workers share the cores, so more BLAS threads would only wait for each other.
    if workers < (cores or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(2, cores // workers)))
    else:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return workers


def pytest_ignore_collect(collection_path, config):
    """If slow tests are skipped, don't import files in which all tests are slow."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    if collection_path.as_posix().removeprefix(f"{ROOT.as_posix()}/").startswith(SLOW_DOCTESTS):
        return True
    text = collection_path.read_text(encoding="utf-8")
    return bool(re.search(r"^pytestmark = \[?\s*pytest\.mark\.slow", text, re.MULTILINE)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Don't collect doctests in tests/, because there are none."""
    found = yield
    if (ROOT / "tests") in file_path.parents:
        found = [one for one in found if type(one).__name__ != "DoctestModule"]
    return found


def pytest_collection_modifyitems(items):
    """Mark as slow: slow doctests, and tests whose fixtures or names show that they load torch."""
    for item in items:
        loads = {"tiny_model", "tiny_encoder"}.intersection(getattr(item, "fixturenames", ()))
        if loads or "torch" in item.name or item.nodeid.startswith(SLOW_DOCTESTS):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Collect garbage from now on, but less often than usual, because few objects are in cycles."""
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def threads_and_children():
    """Return child processes, and threads that block an exit, except those of nnnorm's pools."""
    threads = {
        thread
        for thread in threading.enumerate()
        if not thread.daemon and not thread.name.startswith("nnnorm")
    }
    children = set()
    for path in Path("/proc/self/task").glob("*/children") if has_children() else ():
        with contextlib.suppress(OSError):  # the thread has ended
            children |= set(path.read_text().split())
    return threads | children


def has_children():
    """Return whether there may be child processes; must be fast, because every test calls it."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # this system has no waitid
        pass
    return True


@pytest.fixture(autouse=True)
def leave_nothing_behind(request):
    """Fail tests that leave a thread or process running, or load torch without the mark `slow`."""
    before, had_torch = threads_and_children(), "torch" in sys.modules
    yield
    if request.config.option.markexpr == "not slow":
        assert had_torch or "torch" not in sys.modules, "this test loads torch: mark it slow"
    end = time.monotonic() + 30  # on a busy machine, ending may take a while
    while (left := threads_and_children() - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left, f"left running: {left}"


@pytest.fixture(autouse=True)
def doctests_write_into_a_folder_of_their_own(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        folder = request.getfixturevalue("tmp_path")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
