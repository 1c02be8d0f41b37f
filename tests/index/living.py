"""What the tests of a living index share: a world of items and correctors, and a child process.

The child does one operation on a collection and is stopped at the n-th line of `nnnorm.index` that
it runs, by SIGKILL or Ctrl-C. It comes from a server that has imported all engines and used none.
"""

import functools
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import nnnorm
from nnnorm.index import build_index, export_index, open_index
from tests import servers
from tests.stores import CASES

DIM, N_ITEMS, N_FIRST = 13, 400, 60
WHERE = str(Path(nnnorm.__file__).parent / "index")


@functools.cache
def world():
    """Items by row, queries, and three correctors with banks, k and weights of their own."""
    rng = np.random.default_rng(0)
    lean = rng.normal(size=DIM)

    def rows(n, more):
        drawn = rng.normal(size=(n, DIM)) + more * lean
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    items, queries = rows(N_ITEMS, rng.gamma(1.0, 0.5, (N_ITEMS, 1))), rows(12, 1)
    correctors = [
        nnnorm.Corrector.fit(items[:N_FIRST], rows(150, more), nnnorm.NNN(k, weight))
        for k, weight, more in ((16, 0.75, 1), (8, 0.5, 0.5), (4, 0.9, 1.5))
    ]
    values = [corrector.bias_of(items).values for corrector in correctors]
    return SimpleNamespace(items=items, queries=queries, correctors=correctors, values=values)


class Model:
    """What a collection should hold: rows of `world` by id, and one of its correctors."""

    def __init__(self, rows, corrector):
        self.rows, self.corrector = dict(rows), corrector

    def copy(self):
        return Model(self.rows, self.corrector)

    def scores(self):
        """All ids, and all scores."""
        made = world()
        ids, rows = np.array(list(self.rows)), list(self.rows.values())
        weight = made.correctors[self.corrector].weight
        return ids, made.queries @ made.items[rows].T - weight * made.values[self.corrector][rows]

    def check(self, case, ranking, keep=None, k=10):
        """The best of the model where the engine is exact, else as many as stated."""
        ids, scores = self.scores()
        if keep is not None:
            ids, scores = ids[keep(ids)], scores[:, keep(ids)]
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(scores, order, axis=1)
        place = {own: column for column, own in enumerate(ids.tolist())}
        assert ranking.scores.shape == best.shape
        columns = np.array([[place[own] for own in row] for row in ranking.ids.tolist()])
        found = np.take_along_axis(scores, columns.reshape(best.shape), axis=1)
        np.testing.assert_allclose(ranking.scores, found, atol=case.later * case.tolerance)
        if case.recall == 1:
            np.testing.assert_allclose(found, best, atol=1e-5)
        else:
            hits = found >= best[:, -1:] - 1e-6
            assert hits.mean() >= case.recall


def served(index):
    """The model that an index claims to hold, by what it has stored."""
    prints = [corrector.fingerprint for corrector in world().correctors]
    rows = {}
    for batch in index.scan():
        for own, entry in zip(batch.ids.tolist(), batch.metadata_list(), strict=True):
            rows[own] = entry["row"]
    return Model(rows, prints.index(index.recipe.corrector))


def numbered(ids, rows):
    """Arguments that write rows of the world under these ids."""
    made = world()
    return made.items[list(rows)], {"ids": ids, "metadata": [{"row": int(row)} for row in rows]}


FIRST = Model({row: row for row in range(N_FIRST)}, 0)
MORE = range(N_FIRST, N_FIRST + 30)


def build(store, case):
    rows, options = numbered(list(FIRST.rows), FIRST.rows.values())
    return build_index(store, rows, world().correctors[0], way=case.way, **options)


def refresh(index, corrector):
    """Refresh, with the original vectors where the engine has lost them."""
    options = {}
    if index.store.is_lossy:
        held = served(index).rows
        options = {"gallery": world().items[list(held.values())], "ids": list(held)}
    index.refresh(world().correctors[corrector], **options)


def operate(case, make, operation):
    """Do one operation, as a command would: open, change, save, close."""
    made = world()
    if operation == "build":
        build(make(), case).close()
        return
    if operation == "export":
        export_index(make("source"), make(), way=case.way).close()
        return
    with open_index(make()) as index:
        if operation == "add":
            rows, options = numbered(list(MORE), MORE)
            index.add(rows, made.correctors[0], **options)
        elif operation == "refresh":
            refresh(index, 1)
        elif operation == "rollback":
            index.rollback()
        else:
            for turn in range(8):
                refresh(index, (turn + 1) % 2)
                index.rollback()
                index.rollback(undo=True)
        index.save()


class _Stop:
    """Sends a signal to this process at the n-th line of the index room, or counts them."""

    def __init__(self, at, number):
        self.at, self.number, self.seen = at, number, 0

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(WHERE):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                os.kill(os.getpid(), self.number)
        return self


def _run(case, folder, name, operation, at, number, address, memory, pipe):
    servers.MEMORY = memory
    if address is not None:
        servers.postgres = lambda: address
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    stop = _Stop(at, number)
    world()
    sys.settrace(stop)
    try:
        operate(CASES[case], lambda which=name: CASES[case].make(folder, which), operation)
    except KeyboardInterrupt:
        sys.settrace(None)
        os._exit(130)
    sys.settrace(None)
    pipe.send(stop.seen)
    os._exit(0)


def make_context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.index.libraries", "tests.index.living"])
    return context


def start_server():
    """Start the server by a child that does nothing."""
    child = make_context().Process(target=os.getpid)
    child.start()
    child.join()


def run_child(case, folder, name, operation, at=0, number=signal.SIGKILL):
    """Run an operation in a process of its own; the number of lines that it ran, or None."""
    context = make_context()
    address = servers.postgres() if case.engine == "pgvector" else None
    ours, theirs = context.Pipe(duplex=False)
    arguments = (CASES.index(case), folder, name, operation, at, number, address, servers.MEMORY)
    servers.release_milvus()
    child = context.Process(target=_run, args=(*arguments, theirs))
    child.start()
    theirs.close()
    child.join(120)
    assert child.exitcode is not None, f"the {operation} of {case.name} does not end"
    lines = ours.recv() if child.exitcode == 0 else None
    ours.close()
    return lines
