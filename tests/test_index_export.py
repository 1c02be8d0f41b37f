"""A collection becomes a corrected one: ids and metadata come along, the source stays as it is."""

import duckdb
import numpy as np
import pytest
from stores import CASES
from test_index import check, exact, make_data

import nnnorm
from nnnorm.index import Items, build_index, export_index, open_index
from nnnorm.index.faiss import FaissStore
from nnnorm.index.protocol import Sample

pytestmark = pytest.mark.filterwarnings("ignore:.* walks a graph:UserWarning")
ENGINES = {case.name.split()[0]: case for case in reversed(CASES)}
each_engine = pytest.mark.parametrize("case", ENGINES.values(), ids=ENGINES)


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
    assert index.search(data.queries).indices.tolist() == exact(data, ids=ids).ids.tolist()


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
    assert index.search(data.queries).indices.tolist() == right.tolist()


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
    with pytest.raises(nnnorm.NNNormError, match="must share dim"):
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
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(f"sqlite:{tmp_path}/old.db", data.gallery, data.bias, progress=stop)
    with pytest.raises(nnnorm.NNNormError, match="was not finished"):
        export_index(f"sqlite:{tmp_path}/old.db", "faiss:")


def test_an_interrupted_build_is_not_mixed_with_other_ids(data, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    url = f"sqlite:{tmp_path}/photos.db"
    with pytest.raises(KeyboardInterrupt):
        build_index(url, data.gallery, data.bias, progress=stop)
    with pytest.raises(nnnorm.NNNormError, match="not from an interrupted run of this"):
        build_index(url, data.gallery, data.bias, ids=np.arange(300) + 5)
    with build_index(url, data.gallery, data.bias) as index:
        assert len(index) == 300


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
    bias = nnnorm.Bias(data.bias.values[:1], data.bias.weight, data.bias.method)
    with pytest.raises(nnnorm.NNNormError, match="are whole numbers; got strings"):
        index.add(data.gallery[:1], bias, ids=["a"])
    assert len(index) == 300


def test_an_option_is_read_as_what_it_is(data, tmp_path):
    with build_index(f"sqlite:{tmp_path}/a.db?table=2024", data.gallery, data.bias) as index:
        assert index.store.name.endswith("table 2024")
    with pytest.raises(nnnorm.NNNormError, match="ef must be a whole number; got 'wide'"):
        build_index("faiss:?kind=hnsw&ef=wide", data.gallery, data.bias)
