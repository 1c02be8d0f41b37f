"""A living index: items come, change and go, correctors are replaced, processes are killed.

Each test runs on every row of `stores.py` whose engine is in `LIVING`, on the real engine.
"""

import os
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

import nnnorm
from nnnorm.index import open_index
from tests.index.living import (
    FIRST,
    MORE,
    Model,
    build,
    numbered,
    operate,
    refresh,
    run_child,
    served,
    start_server,
    world,
)
from tests.servers import clear_memory
from tests.stores import CASES, LIVING, SHARED, parametrize

LIVE = [case for case in CASES if case.engine in LIVING]
each = parametrize(LIVE)
# Each of five operations is stopped at four moments, 20 per engine, on one row with the bias in the
# vectors and one with the bias beside them; on all rows where NNNORM_KILLS says how many moments.
ASKED = os.environ.get("NNNORM_KILLS")


def kind_of(case):
    return case.engine, case.way in ("rerank", "column")


FEW = list({kind_of(case): case for case in reversed(LIVE)}.values())[::-1]
each_killed = parametrize(LIVE if ASKED else FEW)


def n_kills(case):
    return int(ASKED or 4 // sum(few.engine == case.engine for few in FEW))


@pytest.fixture(scope="session")
def children():
    """Start the process that makes children before a test looks for processes left behind."""
    start_server()


# --- against a dictionary ------------------------------------------------------------------------


class Life:
    """An index and its model, which go through the same operations."""

    def __init__(self, case, make, seed):
        self.case, self.make = case, make
        self.rng = np.random.default_rng(seed)
        self.index, self.now, self.former = build(make(), case), FIRST.copy(), None
        self.next_id, self.is_back = 10_000, False

    def some(self, most):
        ids = list(self.now.rows)
        n = min(len(ids), int(self.rng.integers(1, most + 1)))
        return [ids[place] for place in self.rng.choice(len(ids), n, replace=False)]

    def rows(self, n):
        return self.rng.integers(0, len(world().items), n).tolist()

    def corrector(self):
        return world().correctors[self.now.corrector]

    def add(self):
        ids = list(range(self.next_id, self.next_id + int(self.rng.integers(1, 8))))
        self.next_id = ids[-1] + 1
        rows = self.rows(len(ids))
        items, options = numbered(ids, rows)
        self.index.add(items, self.corrector(), **options)
        self.now.rows.update(zip(ids, rows, strict=True))

    def upsert(self):
        if not self.index.store.can_delete:
            return
        ids = [*self.some(4), self.next_id]
        self.next_id += 1
        rows = self.rows(len(ids))
        items, options = numbered(ids, rows)
        self.index.upsert(items, self.corrector(), **options)
        self.now.rows.update(zip(ids, rows, strict=True))

    def delete(self):
        if not self.index.store.can_delete or len(self.now.rows) < 20:
            return
        ids = self.some(4)
        self.index.delete(ids)
        for own in ids:
            del self.now.rows[own]

    def refresh(self):
        new = int(self.rng.integers(len(world().correctors)))
        refresh(self.index, new)
        if new != self.now.corrector:
            self.former, self.now, self.is_back = self.now, Model(self.now.rows, new), False

    def rollback(self):
        if self.former is None:
            with pytest.raises(nnnorm.NNNormError, match=r"former|refresh"):
                self.index.rollback()
            return
        self.index.rollback(undo=self.is_back)
        self.former, self.now, self.is_back = self.now, self.former, not self.is_back
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.index.rollback(undo=not self.is_back)  # changes nothing

    def search(self):
        self.now.check(self.case, self.index.search(world().queries))

    def reopen(self):
        self.index.save()
        self.index.close()
        self.index = open_index(self.make())
        assert len(self.index) == len(self.now.rows)


@pytest.mark.slow
@parametrize(FEW)
@pytest.mark.parametrize("change", ["delete", "upsert"])
def test_a_refresh_to_a_generation_that_was_changed_makes_it_anew(case, store, change):
    life = Life(case, store, seed=1)
    if not life.index.store.can_delete:
        pytest.skip(f"{case.name} can't delete")
    refresh(life.index, 1)
    one = next(iter(life.now.rows))
    if change == "delete":
        life.index.delete([one])
    else:
        items, options = numbered([one], [life.now.rows[one] + 1])
        life.index.upsert(items, world().correctors[1], **options)
    life.index.rollback()
    refresh(life.index, 1)
    held = served(life.index)
    assert (held.rows, held.corrector) == (life.now.rows, 1)
    life.index.close()


@pytest.mark.slow
@each
def test_two_hundred_operations_agree_with_a_dictionary(case, store):
    """On the rows of `FEW`, and a quarter of them on others of the same engine."""
    life = Life(case, store, seed=len(case.name))
    names = ["add", "upsert", "delete", "refresh", "rollback", "search", "reopen"]
    shares = [0.2, 0.2, 0.15, 0.08, 0.07, 0.2, 0.1]
    for name in life.rng.choice(names, 200 if ASKED or case in FEW else 50, p=shares):
        getattr(life, name)()
    life.reopen()
    life.search()
    held = served(life.index)
    assert held.rows == life.now.rows
    assert held.corrector == life.now.corrector
    life.index.close()


def test_a_rollback_that_is_repeated_changes_nothing_and_says_so(tmp_path):
    case = CASES[0]
    index = build(case.make(tmp_path, "photos"), case)
    refresh(index, 1)
    index.rollback()
    for undo, stays in ((False, 0), (True, 1)):
        if undo:
            index.rollback(undo=True)
        with pytest.warns(nnnorm.NNNormWarning, match="serves the generation .* already"):
            index.rollback(undo=undo)
        assert served(index).corrector == stays
    refresh(index, 0)  # the former one, which is still there
    index.rollback()
    assert served(index).corrector == 1


# --- killed and interrupted ----------------------------------------------------------------------


def prepare(case, make, operation):
    if operation == "build":
        return
    with build(make("source" if operation == "export" else "photos"), case) as index:
        if operation == "rollback":
            refresh(index, 1)


def states_of(operation):
    """What is served before and after."""
    second = Model(FIRST.rows, 1)
    return {
        "build": (None, FIRST),
        "export": (None, FIRST),
        "add": (FIRST, Model({**FIRST.rows, **{row: row for row in MORE}}, 0)),
        "refresh": (FIRST, second),
        "rollback": (second, FIRST),
    }[operation]


def what_is_served(case, make):
    """The model of what is served, once its rankings have been compared; None for nothing."""
    try:
        index = open_index(make())
    except nnnorm.NNNormError as error:
        assert "there is no" in str(error) or "was not finished" in str(error)  # noqa: PT017
        return None
    with index:
        held = served(index)
        held.check(case, index.search(world().queries))
    return held


@pytest.mark.slow
@pytest.mark.usefixtures("children")
@pytest.mark.filterwarnings("ignore:.* the last refresh already")
@each_killed
@pytest.mark.parametrize("operation", ["build", "export", "add", "refresh", "rollback"])
def test_a_process_that_is_stopped_leaves_the_old_or_the_new(case, operation, tmp_path):
    rng = np.random.default_rng(len(operation))
    before, after = states_of(operation)

    def make_in(folder):
        folder.mkdir()
        return lambda name="photos": case.make(folder, name)

    make = make_in(tmp_path / "whole")
    prepare(case, make, operation)
    n_lines = run_child(case, tmp_path / "whole", "photos", operation)
    assert n_lines > 20
    assert what_is_served(case, make).rows == after.rows
    moments = rng.integers(1, n_lines, n_kills(case)).tolist()
    for number, moment in enumerate(moments):
        sent = (signal.SIGKILL, signal.SIGINT)[number % 2]
        folder = tmp_path / str(number)
        make = make_in(folder)
        prepare(case, make, operation)
        run_child(case, folder, "photos", operation, moment, sent)
        held = what_is_served(case, make)
        if held is None:
            assert before is None
        elif operation == "add":  # what has come in so far is right, and nothing is lost
            assert before.rows.items() <= held.rows.items() <= after.rows.items()
        else:
            assert held.rows == after.rows
            assert held.corrector in {state.corrector for state in (before, after) if state}
        is_done = held is not None and (held.rows, held.corrector) == (after.rows, after.corrector)
        if not (is_done and operation in ("build", "export")):
            operate(case, make, operation)
        held = what_is_served(case, make)
        assert (held.rows, held.corrector) == (after.rows, after.corrector)
        if operation in ("refresh", "rollback"):  # and the former one is still there
            with open_index(make()) as index:
                index.rollback(undo=operation == "rollback")
                assert served(index).corrector == before.corrector
                Model(before.rows, before.corrector).check(case, index.search(world().queries))
    clear_memory()


@pytest.mark.slow
@parametrize([case for case in FEW if case.engine in ("qdrant", "milvus", "lancedb")])
def test_a_generation_whose_removal_was_cut_short_is_not_served(case, store, monkeypatch):
    """A part of its files may be gone, and its note would call it whole."""
    index = build(store(), case)
    refresh(index, 1)
    is_table = case.engine == "lancedb"
    place = type(index.store.client) if is_table else type(index.store)
    with monkeypatch.context() as patch:
        patch.setattr(place, "drop_table" if is_table else "_drop_collection", sys.exit)
        with pytest.raises(SystemExit):
            refresh(index, 2)
    with pytest.raises(nnnorm.NNNormError, match="there is only a part of a generation"):
        index.rollback()
    refresh(index, 2)
    Model(FIRST.rows, 2).check(case, index.search(world().queries))
    index.rollback()
    Model(FIRST.rows, 1).check(case, index.search(world().queries))


class Meddler:
    """A store's scan that replaces an item after some passes, as another program would."""

    def __init__(self, scan, write, after):
        self.scan, self.write, self.after = scan, write, after

    def __call__(self, *args):
        self.after -= 1
        yield from self.scan(*args)
        if self.after == 0:
            self.write()


@parametrize([case for case in FEW if case.engine in ("sqlite-vec", "pgvector", "lancedb")])
@pytest.mark.parametrize("after", [1, 2], ids=["between", "behind"])
def test_an_item_that_is_replaced_during_a_refresh_is_found_out(case, store, after, monkeypatch):
    index = build(store(), case)
    rows, options = numbered([7], [99])
    other = open_index(store())
    meddler = Meddler(
        index.store.scan, lambda: other.upsert(rows, world().correctors[0], **options), after
    )
    monkeypatch.setattr(index.store, "scan", meddler)
    with pytest.raises(nnnorm.NNNormError, match="changed while it was refreshed"):
        index.refresh(world().correctors[1])
    found = served(open_index(store()))
    assert (found.rows[7], found.corrector) == (99, 0)


# --- readers -------------------------------------------------------------------------------------

shared = parametrize([case for case in FEW if case.engine in SHARED])


@pytest.mark.slow
@pytest.mark.usefixtures("children")
@shared
@pytest.mark.parametrize("reopens", [True, False], ids=["opening", "open"])
def test_a_reader_sees_the_old_or_the_new_ranking(case, store, reopens, tmp_path):
    """Another process refreshes and rolls back all the time while this one searches."""
    build(store(), case).close()
    states = [Model(FIRST.rows, corrector) for corrector in (0, 1)]
    writer = threading.Thread(target=run_child, args=(case, tmp_path, "photos", "turns"))
    writer.start()
    reader, n_answers = open_index(store()), 0
    while writer.is_alive() or n_answers < 3:
        if reopens:
            reader.close()
            reader = open_index(store())
        ranking = reader.search(world().queries)
        assert any(agrees(case, state, ranking) for state in states)
        n_answers += 1
    writer.join()
    reader.close()


def agrees(case, state, ranking):
    try:
        state.check(case, ranking)
    except AssertionError:
        return False
    return True
