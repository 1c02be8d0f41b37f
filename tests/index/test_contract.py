"""What every index does, on every engine."""

import asyncio
import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest

import nnnorm
from nnnorm.index import ENGINES as REGISTERED
from nnnorm.index import CorrectedIndex, build_index, copy_index, open_backend, verify_index
from nnnorm.index.folder import FolderBackend
from tests import reference
from tests.index.engines import (
    CASES,
    DIM,
    ENGINES,
    FIRST,
    MORE,
    arguments,
    build,
    check,
    described,
    expected,
    held,
    parametrize,
    same_place,
    world,
)


@parametrize(CASES)
def test_a_search_returns_the_corrected_ranking(case, tmp_path):
    made = world()
    with build(case, tmp_path) as index:
        check(case, index.search(made.queries), FIRST, 0)
        check(case, index.search(made.queries, k=3, weight=0.1), FIRST, 0, k=3, weight=0.1)
        check(case, index.search(made.queries, k=5, weight=0), FIRST, 0, k=5, weight=0)
        assert index.search(made.queries, k=300).ids.shape == (len(made.queries), len(FIRST))
        found = asyncio.run(index.search_async(made.queries, k=4, with_metadata=True))
        check(case, found, FIRST, 0, k=4)
        assert found.metadata == [described(map(int, row)) for row in found.ids.tolist()]
        assert len(index) == len(FIRST)


@parametrize(CASES)
def test_items_are_added_replaced_and_deleted_for_good(case, tmp_path):
    made, rows = world(), set(FIRST) | set(MORE)
    with build(case, tmp_path) as index:
        new, given = arguments(MORE)
        index.add(new, **given)
        check(case, index.search(made.queries), rows, 0)
        index.delete(["3", "70"])
        rows -= {3, 70}
        check(case, index.search(made.queries), rows, 0)
        changed, given = arguments([300, 301])  # one id is there, the other isn't
        index.upsert(changed, ids=["5", "3"], metadata=given["metadata"])
        model = {str(row): row for row in rows} | {"5": 300, "3": 301}
        assert held(index) == (model, 0)
        assert index.present(["5", "70", "none"]).tolist() == [True, False, False]
    if case.url != "faiss:":
        with nnnorm.open_index(case.at(tmp_path)) as again:
            assert held(again) == (model, 0)
            best = again.search(made.queries, k=1).scores[:, 0]
            right = expected(model.values(), 0, k=1)[1][:, 0]
            np.testing.assert_allclose(best, right, atol=1e-4 if case.recall == 1 else 0.2)


@parametrize(ENGINES)
def test_whole_numbers_are_ids_too(case, tmp_path):
    made = world()
    with build(case, tmp_path, names=lambda row: row - 5) as index:
        hits = index.search(made.queries, k=3)
        assert hits.ids.dtype == np.int64
        assert (hits.ids + 5).tolist() == [
            [int(own) for own in row] for row in expected(FIRST, 0)[0][:, :3]
        ]
        index.delete([-5, 3])
        assert len(index) == len(FIRST) - 2
        with pytest.raises(nnnorm.NNNormError, match="are whole numbers; got text"):
            index.add(made.items[:1], ids=["a"])


@parametrize(CASES)
def test_a_filter_applies_before_the_best_are_taken(case, tmp_path):
    with build(case, tmp_path) as index:
        for k in (3, 30):
            hits = index.search(world().queries, k=k, filter=case.filter)
            check(case, hits, range(20), 0, k=k)


@parametrize(ENGINES)
def test_what_a_function_of_the_caller_raises_is_passed_on(case, tmp_path):
    def fail(*_):
        raise OSError("mine")

    with build(case, tmp_path) as index:
        with pytest.raises(OSError, match="mine"):
            index.refresh(world().correctors[1], progress=fail)
        assert held(index) == ({str(row): row for row in FIRST}, 0)
        if isinstance(index.backend, FolderBackend):
            with pytest.raises(OSError, match="mine"):
                index.search(world().queries, filter=fail)


@parametrize(CASES)
def test_confidence_is_that_of_the_hits_on_every_engine(case, tmp_path):
    made = world()
    names = {"queries": made.queries, "gallery": made.items[list(FIRST)]}
    with build(case, tmp_path) as index:
        for options in ({}, {"weight": 0.1}, {"filter": case.filter}):
            hits = index.search(made.queries, **options)
            naive = reference.confidence(hits.scores)
            np.testing.assert_allclose(hits.confidence, naive, atol=1e-6)
            few = index.search(made.queries, k=1, **options)
            np.testing.assert_array_equal(few.confidence, hits.confidence)
            assert repr(few) == f"Hits({len(made.queries)} queries, k=1)"
        if case.recall == 1:
            exact = nnnorm.search(**names, bias=made.correctors[0].bias_for(names["gallery"]))
            found = index.search(made.queries, k=2).confidence
            np.testing.assert_allclose(found, exact.confidence, atol=4e-5)
        bound = float(np.median(hits.confidence))
        below = hits.confidence < bound
        options |= {"min_confidence": bound, "with_metadata": True}
        some = index.search(made.queries, k=3, **options)
        np.testing.assert_array_equal(some.confidence, hits.confidence)
        assert (some.scores[below] == -np.inf).all()
        assert (some.ids[below] == "").all()
        np.testing.assert_array_equal(some.ids[~below], hits.ids[~below, :3])
        assert [len(row) for row in some.metadata] == np.where(below, 0, 3).tolist()


@parametrize(CASES)
def test_a_refresh_is_rolled_back_and_returned_to(case, tmp_path):
    made = world()
    with build(case, tmp_path) as index:
        with pytest.raises(nnnorm.NNNormError, match="has no previous version"):
            index.rollback()
        told = []
        index.refresh(made.correctors[1], progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (len(FIRST), len(FIRST))
        check(case, index.search(made.queries), FIRST, 1)
        assert held(index) == ({str(row): row for row in FIRST}, 1)
        info = index.info()
        assert (info.version, info.can_roll_back, info.is_rolled_back) == (2, True, False)
        for _ in range(2):  # a repeated call changes nothing
            index.rollback()
            check(case, index.search(made.queries), FIRST, 0)
        info = index.info()
        assert (info.version, info.can_roll_back, info.is_rolled_back) == (1, False, True)
        new, given = arguments(MORE)
        index.add(new, **given)  # its corrector is known from the build
        for _ in range(2):
            index.rollback(undo=True)
            check(case, index.search(made.queries), FIRST, 1)
        index.refresh(made.correctors[2])
        index.refresh(made.correctors[0])
        check(case, index.search(made.queries), FIRST, 0)
        assert index.info().version == 4
        assert len(index.backend.versions()) == 2
        index.rollback()
        check(case, index.search(made.queries), FIRST, 2)


@parametrize(ENGINES)
def test_an_index_knows_its_corrector(case, tmp_path):
    made = world()
    with build(case, tmp_path) as index:
        with pytest.raises(nnnorm.NNNormError, match="built by corrector"):
            same_place(index, made.correctors[1])
        without = same_place(index)
        with pytest.raises(nnnorm.NNNormError, match=r"with its corrector .*open_index"):
            without.add(made.items[70:71], ids=["70"])
        own = same_place(index, made.correctors[0])
        index.refresh(made.correctors[1])
        with pytest.raises(nnnorm.NNNormError, match="was refreshed or rolled back since"):
            own.add(made.items[70:71], ids=["70"])
        with pytest.raises(nnnorm.NNNormError, match="was refreshed or rolled back since"):
            own.delete(["3"])
        assert len(index) == len(FIRST)
        assert index.info().corrector == made.correctors[1].fingerprint


@parametrize(ENGINES)
def test_mistakes_are_one_sentence_and_change_nothing(case, tmp_path):
    made = world()
    with build(case, tmp_path) as index:
        for act, message in [
            (lambda: build_index(index.backend, made.items, made.correctors[0]), "already exists"),
            (lambda: index.add(made.items[:1], ids=["3"]), "has the id '3' already; use upsert"),
            (lambda: index.add(made.items[:2], ids=["a", "a"]), "must be unique"),
            (lambda: index.add(made.items[:1]), "new items need ids"),
            (lambda: index.add(made.items[:1], ids=["nul\0"]), "null characters"),
            (lambda: index.add(made.items[:1, :5], ids=["a"]), "must have the same dimension"),
            (lambda: index.add(made.items[:1], ids=[7]), "are text; got whole numbers"),
            (lambda: index.delete(["3", "none"]), "has no item 'none'; nothing was deleted"),
            (lambda: index.search(made.queries, k=0), "k must be a whole number"),
            (lambda: index.search(made.queries[:, :5]), "must have the same dimension"),
            (lambda: index.search(made.queries, filter=3.5), "filter|engine reports"),
            (lambda: index.search(made.queries, filter="no ( such"), "filter|engine reports"),
            (lambda: index.refresh(made.values[0]), "must be a Corrector"),
        ]:
            with pytest.raises(nnnorm.NNNormError, match=message) as caught:
                act()
            assert "\n" not in str(caught.value)
        assert held(index) == ({str(row): row for row in FIRST}, 0)


@parametrize(ENGINES)
def test_a_reader_sees_one_version_and_then_the_next(case, tmp_path):
    made = world()
    with build(case, tmp_path) as index:
        if case.url == "faiss:":
            return
        reader = same_place(index)
        check(case, reader.search(made.queries), FIRST, 0)
        index.refresh(made.correctors[1])
        check(case, reader.search(made.queries), FIRST, 0)
        reader.reload()
        check(case, reader.search(made.queries), FIRST, 1)
        index.refresh(made.correctors[2])
        index.refresh(made.correctors[0])  # drops what the reader has open
        hits = reader.search(made.queries)
        known = [corrector.fingerprint for corrector in made.correctors]
        check(case, hits, FIRST, known.index(reader.config.corrector))


@pytest.mark.slow
@parametrize(ENGINES)
def test_threads_share_an_index_that_is_refreshed(case, tmp_path):
    made, problems, is_done = world(), [], threading.Event()
    best = [expected(FIRST, which, k=1)[1][:, 0] for which in range(2)]
    with build(case, tmp_path) as index:

        def read():
            try:
                while not is_done.is_set():
                    found = index.search(made.queries, k=1).scores[:, 0]
                    assert any(np.allclose(found, one, atol=1e-4) for one in best), "a mix"
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(4):
                index.refresh(made.correctors[1 - turn % 2])
                index.rollback()
                index.rollback(undo=True)
        finally:
            is_done.set()
            for thread in threads:
                thread.join()
    assert not problems


@parametrize(CASES)
def test_an_index_is_verified(case, tmp_path):
    made = world()
    with build(case, tmp_path) as index:
        names = [str(row) for row in FIRST]
        result = verify_index(index, made.queries, gallery=made.items[:60], ids=names)
        assert result.n_items == 60
        assert result.score_error < 1e-4
        assert result.recall >= case.recall
        assert result.is_good or case.recall < 0.95
        wrong = made.items[::-1][:60]
        assert not verify_index(index, made.queries, gallery=wrong, ids=names).is_good
        # Another program writes an item without its bias.
        stored = next(iter(index.backend.scan(index.backend.served())))
        if stored.bias is None:
            stored.vectors[:, -2] += 0.4
        else:
            stored.bias[:] += 0.4
        with index.backend.write(index.backend.served()) as version:
            index.backend.upsert(version, stored)
        index.reload()
        problems = verify_index(index, made.queries).problems
        assert any("bias" in one or "norms" in one for one in problems)


@parametrize(CASES)
def test_an_index_is_copied_to_another_engine_and_back(case, tmp_path):
    made = world()
    with (
        build(case, tmp_path) as index,
        copy_index(index.backend, "faiss:", made.correctors[1]) as copy,
    ):
        assert held(copy) == ({str(row): row for row in FIRST}, 1)
        name = case.at(tmp_path, "back")
        if case.engine in ("qdrant", "duckdb"):  # their files are open
            named = {"collection" if case.engine == "qdrant" else "table": "back"}
            options = vars(index.backend.options) | named
            name = type(index.backend)(index.backend.client, **options)
        with copy_index(copy.backend, name, made.correctors[2]) as back:
            assert held(back) == ({str(row): row for row in FIRST}, 2)
            check(case, back.search(made.queries), FIRST, 2)


@parametrize(ENGINES)
def test_clicks_are_added_to_the_bias_by_a_refresh(case, tmp_path):
    made = world()
    clicks = nnnorm.Popularity([500.0, 3.0], weight=0.1)
    with build(case, tmp_path) as index:
        index.refresh(made.correctors[0].with_room(clicks), popularity=clicks, ids=["7", "9"])
        scores = made.queries @ made.items[:60].T - 0.75 * made.values[0][:60]
        scores[:, 7] += 0.1 * np.log1p(500)
        scores[:, 9] += 0.1 * np.log1p(3)
        hits = index.search(made.queries, k=5)
        order = np.argsort(-scores, axis=1)[:, :5]
        np.testing.assert_allclose(hits.scores, np.take_along_axis(scores, order, 1), atol=1e-4)
        assert hits.ids.tolist() == order.astype(str).tolist()
        assert [[own for own, _ in row] for row in hits] == hits.ids.tolist()
        with pytest.raises(nnnorm.NNNormError, match="2 of 2 ids"):
            index.refresh(made.correctors[1], popularity=clicks, ids=["a", "b"])
        with pytest.raises(nnnorm.NNNormError, match="clicks without ids must have one"):
            index.refresh(made.correctors[1], popularity=clicks)
        assert index.search(made.queries, k=5).ids.tolist() == hits.ids.tolist()
        with pytest.warns(nnnorm.NNNormWarning, match="1 of 2 ids"):
            index.refresh(made.correctors[0].with_room(clicks), popularity=clicks, ids=["7", "b"])


@parametrize(ENGINES)
def test_a_refresh_that_fails_leaves_index_and_previous_version(case, tmp_path, monkeypatch):
    made = world()
    with build(case, tmp_path) as index:
        index.refresh(made.correctors[1])
        for name in ("finish", "add", "create", "swap"):
            with monkeypatch.context() as patch:

                def fail(*_, name=name, **__):
                    raise OSError(f"{name} fails")

                patch.setattr(index.backend, name, fail)
                with pytest.raises(nnnorm.NNNormError, match=f"{name} fails"):
                    index.refresh(made.correctors[2])
            assert held(index) == ({str(row): row for row in FIRST}, 1)
        assert len(index.backend.versions()) == 2
        index.rollback()
        assert held(index)[1] == 0


@parametrize(CASES)
def test_a_write_that_fails_is_undone_or_repeated(case, tmp_path, monkeypatch):
    made, (rows, given) = world(), arguments(MORE)
    with build(case, tmp_path) as index:
        add = index.backend.add

        def fail(*written):
            add(*written)
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(index.backend, "add", fail)
            with pytest.raises(nnnorm.NNNormError, match="the disk is full"):
                index.add(rows, **given)
        if index.backend.atomic_writes:
            stored = set(held(index)[0].values())
            assert stored in ({*FIRST}, {*FIRST, *MORE})
            check(case, index.search(made.queries), stored, 0)
        index.upsert(rows, **given)
        assert held(index) == ({str(row): row for row in (*FIRST, *MORE)}, 0)
        check(case, index.search(made.queries), {*FIRST, *MORE}, 0)


@parametrize(CASES)
def test_an_index_keeps_the_options_that_it_was_created_with(case, tmp_path):
    with build(case, tmp_path) as index:
        backend, of_the_call = index.backend, ("table", "collection", "host", "options", "threads")
        if place := getattr(backend, "_client", None) or backend.place:
            named = {name: getattr(backend.options, name, None) for name in of_the_call}
            again = type(backend)(place, **{name: own for name, own in named.items() if own})
            assert CorrectedIndex(again).backend.created == backend.created
            assert (again.is_exact, again.metric) == (backend.is_exact, backend.metric)


@parametrize(CASES)
def test_an_index_that_calls_itself_exact_finds_all_with_the_narrowest_search(case, tmp_path):
    rows = np.random.default_rng(0).normal(size=(3000, DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    made, backend = world(), open_backend(case.at(tmp_path))
    narrow = {
        one.name: one.metadata["bounds"][0]
        for one in dataclasses.fields(backend.options)
        if one.name in ("links", "ef", "ef_construction", "probes")
    }
    if backend.is_exact:
        backend.options = dataclasses.replace(backend.options, **narrow)
        with build_index(backend, rows, made.correctors[0]) as index:
            assert verify_index(index, made.queries).recall == 1


def test_every_engine_has_a_case_and_a_benchmark():
    assert {case.engine for case in CASES} == set(REGISTERED)
    text = Path(__file__).parents[2].joinpath("benchmarks", "engines.py").read_text("utf-8")
    assert [name for name in REGISTERED if f'"{name}' not in text] == []


@parametrize(ENGINES)
def test_another_process_that_writes_during_a_refresh_stops_it(case, tmp_path, monkeypatch):
    made = world()
    with build(case, tmp_path) as index:
        backend, finish = index.backend, index.backend.finish

        def finish_late(version, config):
            finish(version, config)
            backend.delete(backend.served(), np.array(["3"]))

        monkeypatch.setattr(backend, "finish", finish_late)
        with pytest.raises(nnnorm.NNNormError, match="was changed by another process"):
            index.refresh(made.correctors[1])
        monkeypatch.setattr(backend, "finish", finish)
        assert index.info().version == 1


def test_items_of_a_corrector_are_rejected_if_the_index_is_refreshed_meanwhile(
    tmp_path, monkeypatch
):
    made, bias_for = world(), nnnorm.Corrector.values_for
    with build(CASES[0], tmp_path) as index:

        def refresh_afterwards(*given, **options):
            found = bias_for(*given, **options)
            monkeypatch.undo()
            index.refresh(made.correctors[1])
            return found

        monkeypatch.setattr(nnnorm.Corrector, "values_for", refresh_afterwards)
        with pytest.raises(nnnorm.NNNormError, match="was refreshed or rolled back since"):
            index.add(made.items[70:71], ids=["70"])
        assert len(index) == len(FIRST)
