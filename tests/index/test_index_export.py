"""A collection becomes a corrected one: ids and metadata come along, the source stays as it is."""

from dataclasses import replace

import duckdb
import numpy as np
import pytest

import nnnorm
from nnnorm.index import Items, build_index, export_index, open_index, open_store
from nnnorm.index.store import Sample
from nnnorm.index.stores.faiss import FaissStore
from tests.index.test_index import bias_of, check, exact, make_data
from tests.stores import CASES, parametrize

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning"),
    pytest.mark.filterwarnings("ignore:the references seem to cover only a part"),
]
ENGINES = {case.name.split()[0]: case for case in reversed(CASES)}
each_engine = parametrize(list(ENGINES.values()))


@pytest.fixture
def data():
    return make_data(300, 40, 13, unit=True)


def fill(store, data, ids, metadata, metric=None):
    """An uncorrected collection, as someone else made it."""
    metric = metric or next(m for m in ("ip", "cosine", "l2") if m in store.ways)
    vectors = Sample(len(ids), lambda: data.gallery)
    store.create(13, metric, strings=isinstance(ids[0], str), sample=vectors)
    store.add(Items(np.array(ids), data.gallery, None, metadata))
    store.save()
    store.close()


def read(store):
    batches = list(store.scan())
    store.close()
    ids = np.concatenate([batch.ids for batch in batches]).tolist()
    vectors = np.concatenate([batch.vectors for batch in batches])
    metadata = [dict(entry) for batch in batches for entry in batch.metadata]
    order = np.argsort(ids)
    return [ids[i] for i in order], vectors[order], [metadata[i] for i in order]


def interrupt(source, target):
    """Ctrl-C after three batches of 64."""
    scan, add, written = source.scan, target.add, []

    def add_and_break(items):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(items)
        add(items)

    source.scan = lambda batch=64: scan(64)
    target.add = add_and_break


def stop(done, total):
    raise KeyboardInterrupt


@each_engine
@pytest.mark.parametrize("strings", [False, True], ids=["int", "str"])
def test_a_collection_becomes_a_corrected_one_in_its_own_engine(case, data, tmp_path, strings):
    ids = (
        [f"photo-{row:03}" for row in range(300)] if strings else [900 - row for row in range(300)]
    )
    metadata = [{"title": f"Photo {row}"} for row in range(300)]
    fill(case.make(tmp_path, "photos"), data, ids, metadata)
    before = read(case.make(tmp_path, "photos"))
    source = case.make(tmp_path, "photos")
    with export_index(source, case.make(tmp_path, "better"), references=data.references) as index:
        data.bias = nnnorm.NNN().fit(data.gallery, data.references)
        check(case, index.search(data.queries), exact(data, ids=ids))
    source.close()
    after = read(case.make(tmp_path, "photos"))
    assert after[0] == before[0] == sorted(ids)
    np.testing.assert_array_equal(after[1], before[1])
    assert after[2] == before[2]
    assert [entry["title"] for entry in after[2]] == [
        f"Photo {ids.index(name)}" for name in sorted(ids)
    ]
    untouched = case.make(tmp_path, "photos")
    assert untouched.facts().n_items == 300
    assert untouched.read_note() is None
    untouched.close()
    with open_index(case.make(tmp_path, "better")) as index:
        described = {
            name: dict(entry)
            for batch in index.scan()
            for name, entry in zip(batch.ids.tolist(), batch.metadata, strict=True)
        }
    assert described == dict(zip(ids, metadata, strict=True))


@each_engine
def test_a_corrected_index_moves_to_another_engine_with_its_bias(case, data, tmp_path):
    old = build_index(FaissStore(), data.gallery, data.bias, ids=range(50, 350))
    with export_index(old.store, case.make(tmp_path, "moved"), way=case.way) as index:
        assert index.recipe.weight == data.bias.weight
        check(case, index.search(data.queries), exact(data, ids=range(50, 350)))


@pytest.mark.slow
@each_engine
def test_an_interrupted_export_goes_on_and_loses_nothing(case, data, tmp_path):
    fill(case.make(tmp_path, "photos"), data, list(range(300)), [{"row": r} for r in range(300)])
    source, target = case.make(tmp_path, "photos"), case.make(tmp_path, "better")
    interrupt(source, target)
    with pytest.raises(KeyboardInterrupt):
        export_index(source, target, references=data.references)
    source.close()
    target.close()
    source, target = case.make(tmp_path, "photos"), case.make(tmp_path, "better")
    assert source.facts().n_items == 300
    assert target.facts().n_items == 192
    add, again = target.add, []
    target.add = lambda items: (again.append(len(items)), add(items))
    with export_index(source, target, references=data.references) as index:
        assert sum(again) == 300 - 192
        assert len(index) == 300
        data.bias = nnnorm.NNN().fit(data.gallery, data.references)
        check(case, index.search(data.queries), exact(data))
    source.close()


def test_an_export_that_was_interrupted_is_not_mixed_with_another(data, tmp_path):
    fill(FaissStore(tmp_path / "a.faiss"), data, list(range(300)), None)
    source, target = FaissStore(tmp_path / "a.faiss"), FaissStore(tmp_path / "b.faiss")
    interrupt(source, target)
    with pytest.raises(KeyboardInterrupt):
        export_index(source, target, references=data.references)
    with pytest.raises(nnnorm.NNNormError, match="192 items, and not from an interrupted run of"):
        export_index(
            FaissStore(tmp_path / "a.faiss"),
            FaissStore(tmp_path / "b.faiss"),
            references=data.references[:100],
        )


def test_a_given_bias_finds_its_items_by_their_ids(data, tmp_path):
    ids = np.random.default_rng(0).permutation(300) + 40
    fill(FaissStore(tmp_path / "a.faiss"), data, ids.tolist(), None)
    index = export_index(
        f"faiss:{tmp_path}/a.faiss", FaissStore(), bias=data.bias, ids=ids, way="ip"
    )
    assert index.search(data.queries).ids.tolist() == exact(data, ids=ids).ids.tolist()


def test_a_bias_of_another_gallery_is_refused(data, tmp_path):
    fill(FaissStore(tmp_path / "a.faiss"), data, list(range(300)), None)
    url = f"faiss:{tmp_path}/a.faiss"
    other = make_data(300, 40, 13, unit=True, seed=8)
    with pytest.raises(nnnorm.NNNormError, match="was fitted on another gallery"):
        export_index(url, FaissStore(), bias=other.bias)
    fewer = make_data(200, 40, 13, unit=True)
    with pytest.raises(nnnorm.NNNormError, match=r"another gallery: .*300 items, the bias 200"):
        export_index(url, FaissStore(), bias=fewer.bias)
    with pytest.raises(nnnorm.NNNormError, match="has no value for the id 0; give the ids"):
        export_index(url, FaissStore(), bias=data.bias, ids=range(1, 301))


def test_a_cosine_collection_is_normalised_as_it_does_itself(tmp_path):
    data = make_data(300, 40, 13, unit=False)
    case = ENGINES["sqlite-vec"]
    fill(case.make(tmp_path, "photos"), data, list(range(300)), None, metric="cosine")
    index = export_index(case.make(tmp_path, "photos"), FaissStore(), references=data.references)
    unit = data.gallery / np.linalg.norm(data.gallery, axis=1, keepdims=True)
    bias = nnnorm.NNN().fit(unit, data.references)
    right = nnnorm.search(data.queries, unit, bias, k=10).indices
    assert index.search(data.queries).ids.tolist() == right.tolist()


def test_bad_sources_and_targets_are_named(data, tmp_path):
    fill(FaissStore(tmp_path / "a.faiss"), data, list(range(300)), None)
    url = f"faiss:{tmp_path}/a.faiss"
    with pytest.raises(nnnorm.NNNormError, match=r"there is no faiss nowhere\.faiss; check"):
        export_index("faiss:nowhere.faiss", "faiss:", references=data.references)
    with pytest.raises(nnnorm.NNNormError, match="source and target are both"):
        export_index(url, url, references=data.references)
    with pytest.raises(nnnorm.NNNormError, match="has no bias yet; give references"):
        export_index(url, "faiss:")
    with pytest.raises(nnnorm.NNNormError, match="give references or a bias, not both"):
        export_index(url, "faiss:", references=data.references, bias=data.bias)
    with pytest.raises(nnnorm.NNNormError, match=r"the items of faiss .*must share dim"):
        export_index(url, "faiss:", references=data.references[:, :5])
    index = build_index("faiss:", data.gallery, data.bias)
    index.delete(np.arange(300))
    with pytest.raises(nnnorm.NNNormError, match="is empty; there is nothing to export"):
        export_index(index.store, "faiss:", references=data.references)


def test_a_gated_bias_is_refused_by_an_export_too(data, tmp_path):
    source, target = FaissStore(tmp_path / "old"), FaissStore(tmp_path / "new")
    fill(source, data, list(range(300)), None)
    gated = nnnorm.InvertedSoftmax(gated=True).fit(data.gallery, data.queries)
    with pytest.raises(nnnorm.NNNormError, match="gated bias"):
        export_index(source, target, bias=gated)
    assert not (tmp_path / "new").exists()


def test_a_source_that_was_not_finished_is_refused(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build_index(f"sqlite:{tmp_path}/old.db", data.gallery, data.bias, progress=stop)
    with pytest.raises(nnnorm.NNNormError, match="was not finished"):
        export_index(f"sqlite:{tmp_path}/old.db", "faiss:")


def test_an_interrupted_build_is_not_mixed_with_other_ids(data, tmp_path):
    url = f"sqlite:{tmp_path}/photos.db"
    with pytest.raises(KeyboardInterrupt):
        build_index(url, data.gallery, data.bias, progress=stop)
    with pytest.raises(nnnorm.NNNormError, match="not from an interrupted run of the same"):
        build_index(url, data.gallery, data.bias, ids=np.arange(300) + 5)
    with build_index(url, data.gallery, data.bias) as index:
        assert len(index) == 300
    with pytest.raises(nnnorm.NNNormError, match=r"is finished already \(300 items\); search it"):
        build_index(url, data.gallery, data.bias)


def test_a_duckdb_table_keeps_dates_and_a_metadata_column_of_its_own(data, tmp_path):
    with duckdb.connect(tmp_path / "own.duckdb") as own:
        own.execute("CREATE TABLE items (id INT, embedding FLOAT[13], metadata TEXT, taken DATE)")
        rows = [[i, row, "a dog", "2024-05-06"] for i, row in enumerate(data.gallery.tolist())]
        own.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows[:20])
    url = f"duckdb:{tmp_path}/own.duckdb"
    with export_index(url, f"sqlite:{tmp_path}/new.db", references=data.queries) as index:
        (items,) = index.scan()
    assert items.metadata[7] == {"metadata": "a dog", "taken": "2024-05-06"}


@pytest.mark.parametrize("url", ["sqlite:", "duckdb:"])
def test_new_ids_of_another_kind_are_refused(url, data):
    index = build_index(url, data.gallery, data.bias)
    bias = bias_of(data, data.gallery[:1])
    with pytest.raises(nnnorm.NNNormError, match="are whole numbers; got strings"):
        index.add(data.gallery[:1], bias, ids=["a"])
    assert len(index) == 300


def test_an_option_is_read_as_what_it_is(data, tmp_path):
    with build_index(f"sqlite:{tmp_path}/a.db?table=2024", data.gallery, data.bias) as index:
        assert "table 2024 of" in index.store.name
    with pytest.raises(nnnorm.NNNormError, match=r"ef must be a whole number .*; got 'wide'"):
        build_index("faiss:?kind=hnsw&ef=wide", data.gallery, data.bias)


COSINE = {
    name: case
    for name, case in ENGINES.items()
    if name not in ("faiss", "duckdb")  # which know no cosine, or not of which table
}


@pytest.mark.parametrize("case", COSINE.values(), ids=COSINE)
@pytest.mark.slow
def test_a_bias_of_another_gallery_is_noticed_where_a_source_compares_by_cosine(case, tmp_path):
    data, other = (make_data(300, 40, 13, unit=False, seed=seed) for seed in (0, 8))

    def fit(rows, **options):
        return nnnorm.NNN().fit(nnnorm.open_embeddings(rows, **options), data.references)

    fill(case.make(tmp_path, "photos"), data, list(range(300)), None, metric="cosine")
    source = case.make(tmp_path, "photos")
    kept = np.concatenate([batch.vectors for batch in source.scan()])
    ids = np.concatenate([batch.ids for batch in source.scan()])
    # The bits of what an engine normalises don't show whether it is another gallery.
    assert np.array_equal(kept[np.argsort(ids)], data.gallery) == source.keeps_vectors
    wider = nnnorm.Bias(data.bias.values, 0.75, "nnn", dim=15)
    with pytest.raises(nnnorm.NNNormError, match="items of dim 13, the bias was fitted on dim 15"):
        export_index(source, FaissStore(), bias=wider)
    alike = fit(other.gallery, normalize=True)
    if not source.keeps_vectors:
        with pytest.warns(UserWarning, match="can't be determined, because one of them"):
            export_index(source, FaissStore(), bias=alike)
        source.close()
        return
    with pytest.raises(nnnorm.NNNormError, match="was fitted on another gallery"):
        export_index(source, FaissStore(), bias=alike)
    with pytest.raises(nnnorm.NNNormError, match=r"norms 0\.5.* to 1\.[45].*fit it with --normal"):
        export_index(source, FaissStore(), bias=fit(data.gallery))
    by_hand = data.gallery.astype(np.float64)
    by_hand /= np.linalg.norm(by_hand, axis=1, keepdims=True)
    with pytest.warns(UserWarning, match="can't be determined, because one of them"):
        export_index(source, FaissStore(), bias=fit(by_hand))
    bias = fit(data.gallery, normalize=True)
    index = export_index(source, FaissStore(), bias=bias)
    directions = nnnorm.open_embeddings(data.gallery, normalize=True)
    right = nnnorm.search(data.queries, directions, bias, k=10).indices
    assert index.search(data.queries).ids.tolist() == right.tolist()
    source.close()


def test_a_source_that_ranks_by_distances_of_unequal_norms_is_warned_of(tmp_path, recwarn):
    data = make_data(300, 40, 13, unit=False)
    store = FaissStore(tmp_path / "long")
    fill(store, data, list(range(300)), None, metric="l2")
    with pytest.warns(UserWarning, match=r"compares by l2, .* norms 0\.5.* which is another order"):
        export_index(FaissStore(tmp_path / "long"), FaissStore(), references=data.references)
    even = make_data(300, 40, 13, unit=True)
    fill(FaissStore(tmp_path / "unit"), even, list(range(300)), None, metric="l2")
    recwarn.clear()
    export_index(FaissStore(tmp_path / "unit"), FaissStore(), references=data.references)
    assert not [one for one in recwarn if "compares by" in str(one.message)]


@pytest.mark.parametrize("engine", ["faiss", "hnswlib", "usearch", "qdrant", "qdrant-edge"])
def test_ids_that_an_engine_can_not_hold_are_refused_before_anything_is_made(
    engine, data, tmp_path
):
    case = ENGINES[engine]
    ids = np.arange(300) - 4
    with pytest.raises(nnnorm.NNNormError, match=f"{engine} takes no negative ids; got -4"):
        build_index(case.make(tmp_path, "photos"), data.gallery, data.bias, ids=ids)
    store = case.make(tmp_path, "photos")
    assert store.facts() is None
    store.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["qdrant", "qdrant-edge"])
@pytest.mark.slow
def test_ids_of_both_kinds_are_named_and_never_made(engine, data, tmp_path):
    """Qdrant takes a number beside a UUID, but a ranking has ids of one kind."""
    case = ENGINES[engine]
    fill(case.make(tmp_path, "photos"), data, list(range(300)), None)
    store = case.make(tmp_path, "photos")
    own = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
    with pytest.raises(nnnorm.NNNormError, match="are whole numbers; got strings"):
        store.check_new(np.array([own]))
    store.add(Items(np.array([own]), data.gallery[:1]))  # as someone else's client would
    with pytest.raises(
        nnnorm.NNNormError, match=rf"both whole numbers and strings .*0 and '{own}'"
    ):
        export_index(store, FaissStore(), references=data.references)
    store.close()
    with build_index(case.make(tmp_path, "better"), data.gallery, data.bias) as index:
        one = bias_of(data, data.gallery[:1])
        with pytest.raises(nnnorm.NNNormError, match="are whole numbers; got strings"):
            index.add(data.gallery[:1], one, ids=[own])


@pytest.mark.parametrize("way", ["cosine", "rerank"])
def test_an_export_goes_on_though_its_bias_was_fitted_again_with_other_last_bits(
    data, tmp_path, monkeypatch, way
):
    fill(FaissStore(tmp_path / "a.faiss"), data, list(range(300)), None)
    source, target = FaissStore(tmp_path / "a.faiss"), open_store(f"sqlite:{tmp_path}/b.db")
    interrupt(source, target)
    with pytest.raises(KeyboardInterrupt):
        export_index(source, target, references=data.references, way=way)
    target.close()
    fit = nnnorm.NNN.fit

    def fit_elsewhere(self, gallery, references):
        bias = fit(self, gallery, references)
        return replace(bias, values=bias.values * np.float32(1 + 3e-7))

    monkeypatch.setattr(nnnorm.NNN, "fit", fit_elsewhere)
    target = open_store(f"sqlite:{tmp_path}/b.db")
    first = target.read_note()
    add, again = target.add, []
    target.add = lambda items: (again.append(len(items)), add(items))
    with export_index(
        FaissStore(tmp_path / "a.faiss"), target, references=data.references, way=way
    ) as index:
        assert sum(again) == 300 - 192
        assert (index.recipe.shift, index.recipe.radius) == (first["shift"], first["radius"])
        data.bias = fit(nnnorm.NNN(), data.gallery, data.references)
        check(ENGINES["sqlite-vec"], index.search(data.queries), exact(data))


def test_what_is_known_of_items_is_compared_before_an_export_or_a_build_goes_on(data, tmp_path):
    old, new = ([{"year": year + row} for row in range(300)] for year in (1900, 1700))
    build = {"gallery": data.gallery, "bias": data.bias}
    with pytest.raises(KeyboardInterrupt):
        build_index(f"sqlite:{tmp_path}/a.db", **build, metadata=old, progress=stop)
    with pytest.raises(
        nnnorm.NNNormError, match="from an interrupted run, but with other metadata"
    ):
        build_index(f"sqlite:{tmp_path}/a.db", **build, metadata=new)
    build_index(f"sqlite:{tmp_path}/a.db", **build, metadata=old).close()

    fill(FaissStore(tmp_path / "old"), data, list(range(300)), old)
    fill(FaissStore(tmp_path / "new"), data, list(range(300)), new)
    source, target = FaissStore(tmp_path / "old"), FaissStore(tmp_path / "target")
    interrupt(source, target)
    with pytest.raises(KeyboardInterrupt):
        export_index(source, target, references=data.references)
    with pytest.raises(
        nnnorm.NNNormError, match="from an interrupted run, but with other metadata"
    ):
        export_index(
            FaissStore(tmp_path / "new"),
            FaissStore(tmp_path / "target"),
            references=data.references,
        )
