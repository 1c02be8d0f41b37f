"""A race finds the faster way by its clock, computes no row twice, and ends early if clear."""

import threading

import numpy as np
import pytest

from nnnorm.means.race import race

N_ROWS = 9000


class Track:
    """Two ways to compute means that take as long as a test says, on a clock of their own."""

    def __init__(self, exact, pruned):
        self.seconds = {"exact": exact, "pruned": pruned}  # per row, or a function of the strip
        self.rows = {"exact": [], "pruned": []}
        self.strips = {"exact": [], "pruned": []}
        self._own = threading.local()

    def clock(self):
        return getattr(self._own, "now", 0.0)

    def strip(self, name):
        def compute(rows, stop):
            self.rows[name] += rows.tolist()
            self.strips[name].append(len(rows))
            taken = self.seconds[name]
            taken = taken(len(self.strips[name])) if callable(taken) else taken
            self._own.now = self.clock() + taken * len(rows)
            return rows.astype(np.float32)

        return compute

    def run(self, n_rows=N_ROWS):
        means = np.full(n_rows, np.nan, dtype=np.float32)
        order = np.random.default_rng(0).permutation(n_rows)
        is_pruned, rest = race(
            self.strip("exact"), self.strip("pruned"), order, means, clock=self.clock
        )
        return is_pruned, rest, means


@pytest.fixture(autouse=True, params=[1, 2, 7])
def n_threads(monkeypatch, request):
    monkeypatch.setattr("nnnorm.means.race.count_threads", lambda: request.param)
    # One strip after the other: these take no real time, so that none would wait for another.
    monkeypatch.setattr("nnnorm.scoring.threads.count_threads", lambda: 1)


@pytest.mark.parametrize(("exact", "pruned"), [(1.0, 0.2), (0.2, 1.0), (1.0, 0.95), (0.95, 1.0)])
def test_the_faster_one_wins_however_close_it_is(exact, pruned):
    is_pruned, _, _ = Track(exact, pruned).run()
    assert is_pruned == (pruned < exact)


@pytest.mark.parametrize(("exact", "pruned"), [(1.0, 0.2), (0.2, 1.0), (1.0, 0.95)])
def test_every_row_is_computed_once_or_left_and_keeps_its_mean(exact, pruned):
    track = Track(exact, pruned)
    _, rest, means = track.run()
    computed = track.rows["exact"] + track.rows["pruned"]
    assert sorted([*computed, *rest]) == list(range(N_ROWS))
    np.testing.assert_array_equal(means[computed], computed)
    assert np.isnan(means[rest]).all()


def test_a_clear_race_ends_after_a_few_per_cent_of_the_rows():
    track = Track(1.0, 20.0)
    _, rest, _ = track.run()
    assert len(rest) > 0.93 * N_ROWS
    assert track.strips["exact"] == track.strips["pruned"]


@pytest.mark.parametrize(("n_rows", "length"), [(1000, 96), (9000, 192), (100_000, 768)])
def test_the_first_strips_are_as_long_as_the_gallery_allows(n_rows, length):
    track = Track(1.0, 20.0)
    track.run(n_rows)
    assert set(track.strips["exact"]) == {length}


def test_a_close_race_takes_longer_strips_for_both():
    track = Track(1.0, 0.95)
    track.run()
    assert sorted(set(track.strips["exact"])) == sorted(set(track.strips["pruned"]))
    assert len(set(track.strips["exact"])) >= 3
    assert len(track.rows["exact"]) == len(track.rows["pruned"])


def test_one_slow_strip_of_the_faster_one_does_not_decide():
    track = Track(1.0, lambda number: 1.2 if number == 1 else 0.8)
    is_pruned, _, _ = track.run()
    assert is_pruned


def test_a_small_gallery_is_left_with_most_of_its_rows():
    for exact, pruned in ((1.0, 0.1), (0.1, 1.0)):
        _, rest, _ = Track(exact, pruned).run(1000)
        assert len(rest) >= 800


def test_pruning_gets_neighbours_from_the_front_of_the_order():
    track = Track(1.0, 0.1)
    means = np.zeros(N_ROWS, dtype=np.float32)
    race(
        track.strip("exact"),
        track.strip("pruned"),
        np.arange(N_ROWS),
        means,
        clock=track.clock,
    )
    assert sorted(track.rows["pruned"]) == list(range(len(track.rows["pruned"])))
    assert min(track.rows["exact"]) > N_ROWS // 2


@pytest.mark.parametrize("waiting", ["exact", "pruned"])
def test_the_one_that_is_done_first_goes_on_instead_of_waiting(waiting, monkeypatch):
    monkeypatch.setattr("nnnorm.means.race.count_threads", lambda: 2)
    monkeypatch.setattr("nnnorm.scoring.threads.count_threads", lambda: 2)
    strips = {"exact": [], "pruned": []}
    both_run, goes_on = threading.Barrier(2), threading.Event()

    def strip(name):
        def compute(rows, stop):
            strips[name].append(len(rows))
            if len(strips[name]) == 1:
                both_run.wait(60)
            if name == waiting and len(strips[name]) == 1:
                assert goes_on.wait(60)
            elif name != waiting and len(strips[name]) == 3:
                goes_on.set()
            return rows.astype(np.float32)

        return compute

    means = np.full(N_ROWS, np.nan, dtype=np.float32)
    _, rest = race(strip("exact"), strip("pruned"), np.arange(N_ROWS), means)
    computed = means[~np.isnan(means)]
    np.testing.assert_array_equal(computed, np.flatnonzero(~np.isnan(means)))
    assert len(computed) + len(rest) == N_ROWS
