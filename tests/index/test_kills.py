"""After SIGKILL at any line of `nnnorm.index`, the previous or the new version is complete.

`NNNORM_KILLS=20` kills each operation of each engine 20 times, at lines spread over its run.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import nnnorm
from nnnorm.index import copy_index, open_backend, open_index
from tests import servers
from tests.index.engines import (
    CASES,
    ENGINES,
    FIRST,
    MORE,
    SERVERS,
    arguments,
    build,
    check,
    held,
    parametrize,
    world,
)

pytestmark = pytest.mark.slow

# What children start with: all engines imported, none of them used.
LIBRARIES = ["chromadb", "duckdb", "hnswlib", "lancedb.index", "psycopg", "pyarrow", "pymilvus"]
LIBRARIES += ["qdrant_client.models", "sqlite_vec", "usearch.index"]
KILLS = int(os.environ.get("NNNORM_KILLS", "2"))
WHERE = str(Path(nnnorm.__file__).parent / "index")
OPERATIONS = ("build", "add", "upsert", "delete", "refresh", "rollback", "copy")
BEFORE = {str(row): row for row in FIRST}
CHANGED = {
    "add": BEFORE | {str(row): row for row in MORE},
    "upsert": BEFORE | {"5": 300, "new": 301},
    "delete": {own: row for own, row in BEFORE.items() if row >= 7},
}


def operate(case, folder, operation):
    """Do one operation as a command would: open, change, close."""
    if operation == "build":
        build(case, folder).close()
        return
    if operation == "copy":
        source = f"faiss:{folder}/source"
        copy_index(source, case.at(folder), world().correctors[0]).close()
        return
    with open_index(case.at(folder)) as index:
        if index.config.corrector == world().correctors[0].fingerprint:
            index = type(index)(index.backend, world().correctors[0])
        if operation == "add":
            rows, given = arguments(MORE)
            missing = np.flatnonzero(~index.present(given["ids"]))  # what a kill has left out
            if len(missing):
                rows, given = arguments([MORE[row] for row in missing])
                index.add(rows, **given)
        elif operation == "upsert":
            rows, given = arguments([300, 301])
            index.upsert(rows, ids=["5", "new"], metadata=given["metadata"])
        elif operation == "delete":
            there = [own for own in map(str, range(7)) if index.present([own])[0]]
            if there:
                index.delete(there)
        elif operation == "refresh":
            index.refresh(world().correctors[1])
        else:
            index.rollback()


class Stop:
    """Kill this process at the n-th line of the index package, or count the lines."""

    def __init__(self, at):
        self.at, self.seen = at, 0

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(WHERE):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def run(case, folder, operation, at, address, memory, pipe):
    servers.MEMORY = memory
    if address is not None:
        setattr(servers, CASES[case].server, lambda: address)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    world()
    stop = Stop(at)
    sys.settrace(stop)
    operate(CASES[case], folder, operation)
    sys.settrace(None)
    pipe.send(stop.seen)
    os._exit(0)


def make_context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*LIBRARIES, "tests.index.test_kills"])
    return context


@pytest.fixture(scope="module", autouse=True)
def server():
    """Start the server of children, which stays until the tests end."""
    child = make_context().Process(target=os.getpid)
    child.start()
    child.join()


def run_child(case, folder, operation, at=0):
    """Run an operation in a process of its own; the number of lines that it ran, or None."""
    context = make_context()
    address = case.address()
    if case.name == "milvus":
        servers.release_milvus()
    ours, theirs = context.Pipe(duplex=False)
    given = CASES.index(case), folder, operation, at, address, servers.MEMORY, theirs
    child = context.Process(target=run, args=given)
    child.start()
    theirs.close()
    child.join(120)
    assert child.exitcode is not None, f"the {operation} of {case.name} doesn't end"
    with contextlib.closing(ours):
        return ours.recv() if child.exitcode == 0 else None


def prepare(case, folder, operation):
    if operation == "copy":
        source = CASES[0].at(folder, "source")
        rows, given = arguments(FIRST)
        nnnorm.build_index(source, rows, world().correctors[1], **given).close()
    elif operation != "build":
        with build(case, folder) as index:
            if operation == "rollback":
                index.refresh(world().correctors[1])


def check_state(case, folder, operation, is_repeated):
    """What is served is what was there before, or what should be there afterwards."""
    backend = open_backend(case.at(folder))
    if backend.served() is None:
        backend.close()
        assert operation in ("build", "copy")
        assert not is_repeated
        return
    with open_index(backend) as index:
        rows, corrector = held(index)
        after = CHANGED.get(operation, BEFORE)
        which = {"refresh": 1}.get(operation, 0)
        states = [(after, which)]
        if not is_repeated:
            states.append((BEFORE, 1 if operation == "rollback" else 0))
        if index.backend.atomic_writes or is_repeated or operation not in CHANGED:
            assert (rows, corrector) in states
        else:  # each item by itself
            assert corrector == 0
            assert BEFORE.items() & after.items() <= rows.items()
            assert rows.items() <= BEFORE.items() | after.items()
        if all(own == str(row) for own, row in rows.items()):
            hits = index.search(world().queries, k=5)
            check(case, hits, rows.values(), corrector, k=5)


@parametrize(ENGINES + [case for case in SERVERS if case not in ENGINES])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kill_leaves_the_previous_version_or_the_new_one(case, operation, tmp_path):
    # The first index on a server creates its list of versions; files are new in every folder.
    for name in ("first", "whole") if case.server else ("whole",):
        (tmp_path / name).mkdir()
        prepare(case, tmp_path / name, operation)
        lines = run_child(case, tmp_path / name, operation)
    assert lines
    rng = np.random.default_rng(sum(map(ord, case.name + operation)))
    for kill, share in enumerate((np.arange(KILLS) + rng.random(KILLS)) / KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        prepare(case, folder, operation)
        assert run_child(case, folder, operation, at=max(1, int(share * lines))) is None
        check_state(case, folder, operation, is_repeated=False)
        if operation in ("build", "copy"):
            with contextlib.suppress(nnnorm.NNNormError):  # it exists already
                operate(case, folder, operation)
        else:
            operate(case, folder, operation)
        check_state(case, folder, operation, is_repeated=True)
