"""The worker as a function of batches, and within Spark where that is installed."""

import itertools
import shutil
import sys

import numpy as np
import pytest

import nnnorm
from nnnorm import NNNormError
from nnnorm.cluster import settle
from nnnorm.cluster.spark import bias_of_batches, bias_of_frame

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(n, 16)).astype(np.float32) for n in (300, 500))


@pytest.fixture(scope="module")
def job(rows, tmp_path_factory):
    gallery, references = rows
    folder = tmp_path_factory.mktemp("spark") / "job"
    return settle(gallery, references, nnnorm.NNN(8, 0.5), folder=folder, normalize=True)


@pytest.fixture(scope="module")
def right(rows):
    return nnnorm.NNN(8, 0.5).fit(*rows, normalize=True).values


def frame_of(gallery, start, stop, **names):
    id_column, embedding = names.get("id", "id"), names.get("embedding", "embedding")
    ids = [f"photo-{row}" for row in range(start, stop)]
    return pandas.DataFrame({id_column: ids, embedding: list(gallery[start:stop]), "year": 1999})


def batches(gallery, sizes=(100, 1, 199)):
    edges = np.cumsum([0, *sizes])
    return (frame_of(gallery, *ends) for ends in itertools.pairwise(edges))


@pytest.mark.parametrize("by_path", [True, False])
def test_batches_get_the_values_of_the_whole_fit(job, rows, right, by_path):
    given = str(job.folder) if by_path else job
    found = pandas.concat(bias_of_batches(given)(batches(rows[0])))
    assert list(found.columns) == ["id", "nnnorm_bias"]
    assert found["id"].tolist() == [f"photo-{row}" for row in range(300)]
    assert found["nnnorm_bias"].dtype == np.float32
    np.testing.assert_allclose(found["nnnorm_bias"], right, rtol=1e-5)


def test_columns_may_have_other_names(job, rows, right):
    value = bias_of_batches(job, id_column="photo", embedding_column="clip")
    (found,) = value(iter([frame_of(rows[0], 0, 20, id="photo", embedding="clip")]))
    assert list(found.columns) == ["photo", "nnnorm_bias"]
    np.testing.assert_allclose(found["nnnorm_bias"], right[:20], rtol=1e-5)


def test_an_empty_batch_gives_an_empty_batch(job, rows):
    (found,) = bias_of_batches(job)(iter([frame_of(rows[0], 0, 0)]))
    assert found.shape == (0, 2)
    assert found["nnnorm_bias"].dtype == np.float32


def test_nothing_is_read_ahead_of_the_consumer(job, rows):
    taken = []

    def watched():
        for number, batch in enumerate(batches(rows[0])):
            taken.append(number)
            yield batch

    values = bias_of_batches(job)(watched())
    next(values)
    assert taken == [0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda frame: frame.drop(columns="id"), "the items need a column 'id'; they have embed"),
        (lambda frame: frame.drop(columns="embedding"), "need a column 'embedding'; they have id"),
        (lambda frame: with_row(frame, 3, None), "the id 'photo-3' .row 3 of a batch. has no embe"),
        (lambda frame: with_row(frame, 7, np.ones(9)), "'photo-7' .* has 9 numbers, the others 16"),
        (lambda frame: with_row(frame, 2, np.full(16, np.nan)), "row 2"),
    ],
)
def test_a_batch_that_cannot_be_valued_is_refused_by_name(job, rows, damage, words):
    with pytest.raises(NNNormError, match=words):
        list(bias_of_batches(job)(iter([damage(frame_of(rows[0], 0, 10))])))


def with_row(frame, row, value):
    column = frame["embedding"].tolist()
    column[row] = value
    return frame.assign(embedding=column)


def test_rows_of_another_model_are_refused(job, rows):
    narrow = frame_of(rows[0][:, :8], 0, 10)
    with pytest.raises(NNNormError, match="must share dim; got 8 and 16"):
        list(bias_of_batches(job)(iter([narrow])))


def test_a_folder_without_a_job_is_refused(tmp_path, rows):
    with pytest.raises(NNNormError, match="there is no job in"):
        list(bias_of_batches(tmp_path)(batches(rows[0])))


@pytest.mark.parametrize("by_path", [True, False])
def test_gated_methods_are_refused_because_they_need_the_whole_gallery(tmp_path, rows, by_path):
    gated = settle(*rows, nnnorm.InvertedSoftmax(5.0, gated=True), folder=tmp_path, normalize=True)
    with pytest.raises(NNNormError, match="has gates, which need the whole gallery"):
        list(bias_of_batches(tmp_path if by_path else gated)(batches(rows[0])))


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_another_job_in_the_place_of_an_old_one_is_seen(tmp_path, rows, scheme):
    fsspec = pytest.importorskip("fsspec")
    gallery, references = rows
    folder = f"{scheme}{tmp_path}/job"
    for bank in (references[:100], references[100:200]):
        settle(gallery, bank, nnnorm.NNN(8, 0.5), folder=folder, normalize=True)
        found = pandas.concat(bias_of_batches(folder)(batches(gallery)))
        right = nnnorm.NNN(8, 0.5).fit(gallery, bank, normalize=True).values
        np.testing.assert_allclose(found["nnnorm_bias"], right, rtol=1e-5)
        files, path = fsspec.core.url_to_fs(folder)
        files.rm(path, recursive=True)


# --- within Spark: `make extras` -----------------------------------------------------------------


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is large: `make extras` runs this")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path")
    builder = sql.SparkSession.builder.master("local[2]").appName("nnnorm")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    }.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # else the first python3 on the path
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def items(spark, rows):
    table = [(row, vector.tolist(), 1999) for row, vector in enumerate(rows[0])]
    schema = "id bigint, embedding array<float>, year int"
    return spark.createDataFrame(table, schema).repartition(4)


@pytest.mark.slow
def test_spark_gives_the_values_of_the_whole_fit(items, job, right):
    found = bias_of_frame(items, job.folder)
    assert [field.simpleString() for field in found.schema] == ["id:bigint", "nnnorm_bias:float"]
    ids, values = zip(*found.orderBy("id").collect(), strict=True)
    assert ids == tuple(range(300))
    np.testing.assert_allclose(values, right, rtol=1e-5)


@pytest.mark.slow
def test_spark_writes_parquet_that_joins_the_items_again(items, job, right, spark, tmp_path):
    bias_of_frame(items, job.folder).write.parquet(str(tmp_path / "bias"))
    joined = items.join(spark.read.parquet(str(tmp_path / "bias")), "id").orderBy("id").collect()
    np.testing.assert_allclose([row["nnnorm_bias"] for row in joined], right, rtol=1e-5)


@pytest.mark.slow
def test_spark_shows_the_sentence_of_an_error(items, tmp_path):
    with pytest.raises(Exception, match="there is no job in"):
        bias_of_frame(items, tmp_path).collect()


@pytest.mark.slow
def test_spark_is_not_started_for_a_column_that_is_not_there(items, job):
    with pytest.raises(NNNormError, match="need a column 'photo'; they have id, embedding, year"):
        bias_of_frame(items, job.folder, id_column="photo")
