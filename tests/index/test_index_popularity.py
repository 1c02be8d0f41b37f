"""Clicks beside the correction in a living index: they survive a refresh, by ids."""

import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import nnnorm
from nnnorm.cli import app
from nnnorm.index import build_index, export_index, open_index, verify_index
from tests.index.living import MORE, N_FIRST, numbered, world
from tests.index.test_living import FEW
from tests.stores import CASES, parametrize

IDS = list(range(N_FIRST))
FAISS = CASES[0]
unclicked = pytest.mark.filterwarnings("ignore:.* the new items .* have no clicks")
SQLITE = next(case for case in FEW if case.engine == "sqlite-vec")
WITHOUT = r"and the new items \(30\) have no clicks: they count 0, .* until the next refresh"
FEW_BITS = next(case for case in CASES if case.name == "faiss sq")
quick = [case for case in FEW if not case.slow]


def clicks(seed, n=N_FIRST, weight=0.02):
    return nnnorm.Popularity(np.random.default_rng(seed).integers(0, 500, n), weight)


def bias_of(corrector, popularity):
    return world().correctors[corrector].bias_of(world().items[IDS]) + popularity


def build(store, case, popularity, corrector=0):
    rows, options = numbered(IDS, IDS)
    bias = bias_of(corrector, popularity)
    return build_index(store, rows, bias, way=case.way, **options)


def refresh(index, corrector, popularity, **options):
    if index.store.is_lossy:
        options |= {"gallery": world().items[IDS], "ids": IDS}
    index.refresh(world().correctors[corrector], popularity=popularity, **options)


def check(case, index, bias, n=N_FIRST):
    """The index ranks by this bias of the first n items."""
    scores = world().queries @ world().items[:n].T - bias.correction
    found = index.search(world().queries, k=10)
    right = np.take_along_axis(scores, found.ids, axis=1)
    np.testing.assert_allclose(found.scores, right, atol=max(case.later * case.tolerance, 1e-4))
    least = np.sort(scores, axis=1)[:, -10:][:, :1]
    assert np.mean(right >= least - 1e-5) >= case.recall


@unclicked
@pytest.mark.slow
@parametrize([*FEW, FEW_BITS])
def test_clicks_survive_a_refresh_a_rollback_and_new_items(case, store):
    first, second = clicks(1), clicks(2, weight=0.05)
    with build(store(), case, first) as index:
        refresh(index, 1, second)
        check(case, index, bias_of(1, second))
        assert index.recipe.popularity == 0.05
        known = {"gallery": world().items[IDS], "bias": bias_of(1, second)}
        assert verify_index(index, world().queries, **known).is_good != index.store.is_lossy
        index.rollback()
        check(case, index, bias_of(0, first))
        index.rollback(undo=True)
        corrector, half = world().correctors[1], len(MORE) // 2
        numbers = np.append(second.clicks, clicks(3, half).clicks)
        for part in (MORE[:half], MORE[half:]):  # with clicks, and without any yet
            rows, options = numbered(list(part), part)
            own = corrector
            if part.start < len(numbers):
                own = corrector.bias_of(rows) + nnnorm.Popularity(numbers[part.start :], 0.05)
            index.add(rows, own, **options)
        whole = corrector.bias_of(world().items[: MORE.stop])
        popularity = nnnorm.Popularity(np.append(numbers, np.zeros(len(MORE) - half)), 0.05)
        check(case, index, whole + popularity, MORE.stop)
        index.save()
    with open_index(store()) as index:  # all of them have clicks at the next refresh
        popularity = clicks(4, MORE.stop, weight=0.05)
        options = {}
        if index.store.is_lossy:
            options = {"gallery": world().items[: MORE.stop], "ids": list(range(MORE.stop))}
        index.refresh(corrector, popularity=popularity, **options)
        check(case, index, whole + popularity, MORE.stop)


@parametrize(quick)
def test_clicks_are_those_of_ids_in_any_order(case, store):
    popularity = clicks(1)
    with build(store(), case, clicks(0)) as index:
        turned = nnnorm.Popularity(popularity.clicks[::-1], popularity.weight)
        refresh(index, 1, turned, ids=IDS[::-1])
        check(case, index, bias_of(1, popularity))


def test_an_index_without_clicks_gets_some_and_loses_them(tmp_path):
    rows, options = numbered(IDS, IDS)
    corrector = world().correctors[0]
    with build_index(FAISS.make(tmp_path, "photos"), rows, corrector, **options) as index:
        refresh(index, 0, clicks(1))
        check(FAISS, index, bias_of(0, clicks(1)))
        refresh(index, 0, clicks(1, weight=0))
        check(FAISS, index, corrector.bias_of(world().items[IDS]))
        assert index.recipe.popularity is None
        refresh(index, 1, None)  # as of an index that never had any


def test_clicks_that_would_be_lost_are_asked_for(tmp_path):
    with build(FAISS.make(tmp_path, "photos"), FAISS, clicks(1)) as index:
        for corrector in (0, 1):
            with pytest.raises(nnnorm.NNNormError, match=r"pass popularity= \(--clicks\)"):
                refresh(index, corrector, None)


@pytest.mark.filterwarnings("error")
def test_ids_that_do_not_match_are_named(tmp_path):
    with build(FAISS.make(tmp_path, "photos"), FAISS, clicks(0)) as index:
        with pytest.warns(nnnorm.NNNormWarning, match=r"10 of 60 items of .*, such as 50; they co"):
            refresh(index, 1, clicks(1, 50), ids=IDS[:50])
        numbers = np.append(clicks(1, 50).clicks, np.zeros(10))
        check(FAISS, index, bias_of(1, nnnorm.Popularity(numbers)))
        with pytest.warns(nnnorm.NNNormWarning, match=r"2 of 62 ids of the clicks are not in .*"):
            refresh(index, 1, clicks(2, 62), ids=[900, *IDS, 901])
        check(FAISS, index, bias_of(1, nnnorm.Popularity(clicks(2, 62).clicks[1:-1])))
        served = index.recipe
        for given, ids, sentence in (
            (clicks(1, 59), None, r"those of the items 0 to 58, and .* has 60 items, such as 59"),
            (clicks(1, 61), None, r"those of the items 0 to 60, and .* has 60 items, such as 0"),
            (clicks(1), [f"photo {own}" for own in IDS], "none of the 60 ids of the clicks is in"),
            (clicks(1), IDS[:59], r"per item of the clicks, shape \(60,\); got shape \(59,\)"),
            (clicks(1).clicks, None, "popularity must be a Popularity, such as .*; got ndarray"),
        ):
            with pytest.raises(nnnorm.NNNormError, match=sentence):
                refresh(index, 1, given, ids=ids)
        index.delete([5])  # the order of the others is not the number of their rows any more
        with pytest.raises(nnnorm.NNNormError, match=r"pass ids \(--ids\)"):
            refresh(index, 1, clicks(1, 59))
        assert index.recipe == served


@unclicked
def test_the_same_refresh_again_changes_nothing_and_other_clicks_do(tmp_path):
    with build(FAISS.make(tmp_path, "photos"), FAISS, clicks(0)) as index:
        refresh(index, 1, clicks(1))
        for _ in range(2):
            refresh(index, 1, clicks(1))
            assert index.recipe.generation == 1
        index.rollback()
        check(FAISS, index, bias_of(0, clicks(0)))
        refresh(index, 1, clicks(2))
        check(FAISS, index, bias_of(1, clicks(2)))
        rows, options = numbered([3], [3])
        index.upsert(rows, world().correctors[1], **options)
        refresh(index, 1, clicks(2))  # the item has lost its clicks since
        check(FAISS, index, bias_of(1, clicks(2)))


@pytest.mark.parametrize("way", ["cosine", "rerank"])
def test_the_same_clicks_reach_items_that_the_engines_own_client_wrote(way, tmp_path):
    rows, options = numbered(IDS, IDS)
    corrector, popularity, ids = world().correctors[0], clicks(1, MORE.stop), list(range(MORE.stop))
    store = SQLITE.make(tmp_path, "photos")
    with build_index(store, rows, corrector, way=way, **options) as ix:
        with pytest.warns(nnnorm.NNNormWarning, match="30 of 90 ids of the clicks are not in"):
            ix.refresh(corrector, popularity=popularity, ids=ids)
        later, named = numbered(list(MORE), MORE)
        with pytest.warns(nnnorm.NNNormWarning, match=WITHOUT):
            packed = ix.pack(later, corrector, **named)
        ix.store.add(packed)
        ix.refresh(corrector, popularity=popularity, ids=ids)
        check(SQLITE, ix, corrector.bias_of(world().items[ids]) + popularity, MORE.stop)


@pytest.mark.parametrize("write", ["add", "upsert"])
def test_items_without_clicks_are_warned_of(write, tmp_path):
    rows, options = numbered(list(MORE), MORE)
    own = world().correctors[0]
    with build(FAISS.make(tmp_path, "photos"), FAISS, clicks(0)) as index:
        with pytest.warns(nnnorm.NNNormWarning, match=WITHOUT):
            getattr(index, write)(rows, own, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index.upsert(rows, own.bias_of(rows) + clicks(1, len(MORE)), **options)


@pytest.mark.slow
@parametrize(quick)
def test_a_part_of_a_refresh_is_not_continued_with_other_clicks(case, store, monkeypatch):
    with build(store(), case, clicks(0)) as index:
        with monkeypatch.context() as patched:
            patched.setattr(type(index.store), "copy_rest", lambda *_: 1 / 0)
            if case.way in ("column", "rerank"):
                patched.setattr(type(index.store), "set_values", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                refresh(index, 1, clicks(1))
        check(case, index, bias_of(0, clicks(0)))
        refresh(index, 1, clicks(2))
        check(case, index, bias_of(1, clicks(2)))


def test_a_part_of_a_refresh_with_clicks_is_not_continued_without_any(tmp_path):
    rows, options = numbered(IDS, IDS)
    numbers = np.zeros(N_FIRST)
    numbers[np.argsort(world().values[1][:N_FIRST])[N_FIRST // 2]] = 3  # the range stays as it is

    def stop(done, total):
        raise KeyboardInterrupt

    with build_index(FAISS.make(tmp_path, "photos"), rows, world().correctors[0], **options) as ix:
        with pytest.raises(KeyboardInterrupt):
            refresh(ix, 1, nnnorm.Popularity(numbers), progress=stop)
        refresh(ix, 1, None)
        check(FAISS, ix, world().correctors[1].bias_of(rows))


@pytest.mark.slow
@parametrize([case for case in quick if case.way in ("l2", "cosine")])
def test_there_is_room_for_a_thousand_times_as_many_clicks(case, store):
    popularity = clicks(1, weight=0.5)
    with build(store(), case, clicks(0)) as index:
        refresh(index, 1, popularity)
        check(case, index, bias_of(1, popularity))
        rows, options = numbered([3], [3])
        much = nnnorm.Popularity([900 * popularity.clicks.max()], 0.5)
        index.upsert(rows, world().correctors[1].bias_of(rows) + much, **options)
        assert (index.search(world().queries, k=1).ids == 3).all()
        with pytest.raises(nnnorm.NNNormError, match="add it with the same weights"):
            index.upsert(rows, world().correctors[1].bias_of(rows) + clicks(1, 1), **options)


@pytest.mark.slow
def test_clicks_of_a_refresh_do_not_lead_a_graph_astray():
    rng = np.random.default_rng(0)
    rows, bank, queries = (rng.normal(size=(n, 64)).astype(np.float32) for n in (1000, 300, 50))
    corrector = nnnorm.Corrector.fit(rows, bank, nnnorm.NNN(8, 0.02), normalize=True)
    popularity = nnnorm.Popularity((200 * rng.pareto(1, 1000)).clip(0, 10000), 0.02)
    both = corrector.bias_of(rows) + popularity
    expected = nnnorm.search(queries, rows, both, k=10, normalize=True)
    for way in ("ip", "l2"):
        built = build_index("hnswlib:", rows, both, way=way, normalize=True)
        index = build_index("hnswlib:", rows, corrector, way=way)
        index.refresh(corrector, popularity=popularity)
        assert index.recipe.scale == pytest.approx(built.recipe.scale, rel=1e-3)
        found = index.search(queries, k=10)
        np.testing.assert_allclose(found.scores[:, 0], expected.scores[:, 0], atol=5e-6)
        assert (found.scores >= expected.scores[:, -1:] - 1e-5).mean() > 0.99


@pytest.mark.slow
@unclicked
@parametrize(quick)
def test_beside_a_corrector_of_weight_0_clicks_stand_alone(case, store):
    rows, none = world().items[IDS], nnnorm.NNN(4, 0.0)
    corrector = nnnorm.Corrector.fit(rows, world().queries, none)
    with build(store(), case, clicks(0)) as index:
        for _ in range(2):
            index.refresh(corrector, popularity=clicks(1))
            assert index.recipe.generation == 1
        check(case, index, corrector.bias + clicks(1))
        later = world().items[list(MORE)]
        index.add(later, corrector, ids=list(MORE))
        numbers = np.append(clicks(1).clicks, np.zeros(len(MORE)))
        whole = corrector.bias_of(world().items[: MORE.stop]) + nnnorm.Popularity(numbers)
        check(case, index, whole, MORE.stop)


def test_verify_names_a_popularity_that_is_missing(tmp_path):
    rows = world().items[IDS]
    with build(FAISS.make(tmp_path, "photos"), FAISS, clicks(0)) as index:
        refresh(index, 1, clicks(1))
        (problem,) = verify_index(index, world().queries, bias=world().correctors[1]).problems
        assert "has a popularity of weight 0.02 added, the one that is expected no popu" in problem
        for own, is_good in ((clicks(1), True), (clicks(2), False)):
            known = {"gallery": rows, "bias": bias_of(1, own)}
            assert verify_index(index, world().queries, **known).is_good == is_good
        with export_index(index.store, FAISS.make(tmp_path, "copy")) as copied:
            assert copied.recipe.popularity == 0.02
            check(FAISS, copied, bias_of(1, clicks(1)))


def test_the_command_takes_clicks_as_tune_does(tmp_path):
    url, runner = f"faiss:{tmp_path / 'photos.faiss'}", CliRunner()
    build(FAISS.make(tmp_path, "photos"), FAISS, clicks(0, weight=0.03)).close()
    world().correctors[1].save(tmp_path / "newer.safetensors")
    (tmp_path / "clicks.txt").write_text("\n".join(str(int(one)) for one in clicks(1).clicks[::-1]))
    (tmp_path / "ids.txt").write_text("\n".join(map(str, IDS[::-1])))
    base = ["index", "refresh", "--index", url, "--corrector", str(tmp_path / "newer.safetensors")]
    lost = runner.invoke(app, base)
    assert lost.exit_code == 1
    assert "--clicks" in lost.stderr
    alone = runner.invoke(app, [*base, "--popularity-weight", "0.1"])
    assert alone.exit_code == 1
    assert "give --clicks too" in alone.stderr
    gallery = tmp_path / "photos.npy"
    np.save(gallery, world().items[IDS])
    for more in ([], ["--gallery", str(gallery)]):
        taken = runner.invoke(app, [*base, *more, "--popularity-weight", "0"])
        assert taken.exit_code == 0, taken.stderr
        with open_index(url) as index:
            check(FAISS, index, world().correctors[1].bias_of(world().items[IDS]))
            index.rollback()
    given = ["--clicks", str(tmp_path / "clicks.txt"), "--ids", str(tmp_path / "ids.txt")]
    done = runner.invoke(app, [*base, *given])
    assert done.exit_code == 0, done.stderr
    assert "0.03" in done.stdout
    with open_index(url) as index:
        check(FAISS, index, bias_of(1, clicks(1, weight=0.03)))
    assert runner.invoke(app, [*base, *given, "--popularity-weight", "0.1"]).exit_code == 0
    with open_index(url) as index:
        check(FAISS, index, bias_of(1, clicks(1, weight=0.1)))
