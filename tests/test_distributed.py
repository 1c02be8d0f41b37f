"""A corrector mapped over a gallery in parquet files: on Ray, on Spark, and batch by batch.

Ray takes seconds to start, so one test starts it and the checks below share it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from nnnorm import NNN, Corrector, NNNormError, NNNormWarning
from nnnorm.distributed import _transform, make_worker, transform_parquet

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'nnnorm[parquet]'")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

DIM, N_ITEMS = 16, 900


def unit_rows(n, seed, dim=DIM):
    rows = np.random.default_rng(seed).normal(size=(n, dim)) + 1.0
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


ITEMS, REFERENCES = unit_rows(N_ITEMS, 0), unit_rows(500, 1)


@pytest.fixture(scope="module")
def corrector():
    return Corrector.fit(ITEMS[:400], REFERENCES, NNN(8, 0.5))


def table_of(rows, first=0):
    ids = [f"photo-{first + row}" for row in range(len(rows))]
    return pyarrow.table({"year": [1999] * len(rows), "id": ids, "embedding": list(rows)})


def write_gallery(folder, n_files=3, rows=ITEMS, **options):
    (folder / "more").mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), n_files)):
        name = f"more/part-{number}.parquet" if number == 1 else f"part-{number}.parquet"
        parquet.write_table(table_of(rows[part], part[0]), folder / name, **options)
    return folder


# --- the worker ----------------------------------------------------------------------------------

KINDS = {
    "pyarrow table": lambda table: table,
    "pyarrow batch": lambda table: table.combine_chunks().to_batches()[0],
    "pandas": lambda table: pytest.importorskip("pandas") and table.to_pandas(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_any_kind_gets_ids_and_values_of_that_kind(corrector, kind):
    batch = KINDS[kind](table_of(ITEMS[:70]))
    found = make_worker(corrector)(batch)
    assert type(found) is type(batch)
    assert list(found["id"]) == list(batch["id"])
    assert np.asarray(found["nnnorm_bias"]).dtype == np.float32
    np.testing.assert_array_equal(found["nnnorm_bias"], corrector.bias_for(ITEMS[:70]).values)
    vectors = list(make_worker(corrector, output="vectors")(batch)["vector"])
    rows = [row.as_py() if hasattr(row, "as_py") else row for row in vectors]
    np.testing.assert_array_equal(np.stack(rows), corrector.transform_items(ITEMS[:70]))
    for output in ("bias", "vectors"):
        assert len(make_worker(corrector, output=output)(batch[:0])) == 0


def test_columns_may_have_other_names_and_floats_any_width(corrector):
    halves = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(ITEMS[:9].astype(np.float16).ravel()), DIM
    )
    batch = pyarrow.table({"photo": range(9), "clip": halves})
    found = make_worker(corrector, column="clip", ids="photo")(batch)
    right = corrector.bias_for(ITEMS[:9].astype(np.float16)).values
    assert found.column_names == ["photo", "nnnorm_bias"]
    np.testing.assert_array_equal(found["nnnorm_bias"], right)


def with_row(row, value):
    rows = [*ITEMS[:9]]
    rows[row] = value
    return table_of(rows)


BROKEN = {
    "expected a column 'id'; got year, embedding": table_of(ITEMS[:9]).drop_columns("id"),
    "expected a column 'embedding'; got": table_of(ITEMS[:9]).drop_columns("embedding"),
    "the item with id 'photo-3' has 0 numbers; expected 16": with_row(3, None),
    "the item with id 'photo-7' has 9 numbers; expected 16": with_row(7, np.ones(9, np.float32)),
    "the item with id 'photo-2' is all zeros or has NaN": with_row(2, np.nan * ITEMS[2]),
    "the item with id 'photo-4' is all zeros or has NaN": with_row(4, 0 * ITEMS[4]),
    "the item with id 'photo-0' has 8 numbers; expected 16": table_of(ITEMS[:9, :8]),
    "expected embeddings as lists of floats; got": table_of((ITEMS[:9] > 0).astype(int)),
    "must have norm 1": table_of(7 * ITEMS[:9]),
}


@pytest.mark.parametrize("words", BROKEN)
def test_an_error_names_the_column_or_the_id(corrector, words):
    with pytest.raises(NNNormError, match=words):
        make_worker(corrector)(BROKEN[words])
    with pytest.raises(NNNormError, match='output must be "bias" or "vectors"; got \'both\''):
        make_worker(corrector, output="both")


# --- before anything is computed -----------------------------------------------------------------


def test_a_source_is_checked_before_ray_is_started(corrector, tmp_path):
    pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
    (tmp_path / "empty").mkdir()
    for source in ("empty", "nowhere"):
        with pytest.raises(NNNormError, match=rf"a folder of them; got .*{source}"):
            transform_parquet(corrector, tmp_path / source, tmp_path / "bias")
    gallery = write_gallery(tmp_path / "items")
    with pytest.raises(NNNormError, match=r"part-1.parquet: expected a column 'clip'; got year"):
        transform_parquet(corrector, gallery / "more", tmp_path / "bias", column="clip")
    with pytest.raises(NNNormError, match="is inside the source; choose another folder"):
        transform_parquet(corrector, gallery, gallery / "bias")
    (gallery / "part-2.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(NNNormError, match=r"part-2.parquet can't be read as parquet"):
        transform_parquet(corrector, gallery, tmp_path / "bias")
    assert not (tmp_path / "bias").exists()


@pytest.mark.parametrize("scheme", ["ray://", ""])
def test_a_ray_that_does_not_start_is_one_sentence_without_a_password(
    corrector, tmp_path, monkeypatch, scheme
):
    address = f"{scheme}me:Hunter2x@nowhere:10001"

    def fail(**_):
        raise ConnectionError(f"ray client connection timeout: {address}")

    ray = pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(NNNormError, match=r"Ray can't be started .*…@nowhere") as found:
        transform_parquet(corrector, write_gallery(tmp_path / "items"), tmp_path / "bias")
    assert "Hunter2x" not in str(found.value)
    assert found.value.__cause__ is None


def test_files_of_a_store_are_read_and_written_by_fsspec(corrector, tmp_path, monkeypatch):
    """In this process, because only it sees fsspec's store in memory."""
    pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.put(str(write_gallery(tmp_path / "items")), "/shop/items", recursive=True)

    def run(ray, work, fs, other, shards):
        for shard in shards:
            with threadpool_limits(1):  # which a task sets for good
                assert _transform(work, fs, other, shard) == []
            yield shard.n_rows

    monkeypatch.setattr("nnnorm.distributed._run", run)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a task sets
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    for _ in range(2):
        found = transform_parquet(corrector, "memory://shop/items", "memory://shop/bias")
        assert found == N_ITEMS
    names = [path.removeprefix("/shop/bias/") for path in store.find("/shop/bias")]
    parts = ["_nnnorm.json", "more/part-1.parquet", "part-0.parquet", "part-2.parquet"]
    assert sorted(names) == parts
    with store.open("/shop/bias/part-0.parquet") as file:
        found = parquet.read_table(file)["nnnorm_bias"]
    np.testing.assert_allclose(found, corrector.bias_for(ITEMS[:300]).values, rtol=1e-6)
    store.rm("/shop", recursive=True)


# --- on Ray --------------------------------------------------------------------------------------


@pytest.mark.slow
# As an error, this warning would stop Popen from waiting for processes of older versions of Ray.
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_files_on_ray_are_those_of_one_process_whatever_is_lost(corrector, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'nnnorm[ray]'")
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, **options)
    gallery = write_gallery(tmp_path / "items")
    limit = threadpool_limits(1)  # as on the workers, so that the bits are equal
    try:
        rows_keep_their_files_their_order_and_their_bits(corrector, gallery, tmp_path)
        an_interrupted_call_continues_and_a_changed_file_is_computed_again(corrector, tmp_path)
        large_files_are_split_between_row_groups(corrector, tmp_path, monkeypatch)
        errors_and_warnings_of_workers_name_the_file(corrector, tmp_path)
        a_killed_worker_changes_nothing_but_the_time(corrector, tmp_path, monkeypatch)
    finally:
        limit.restore_original_limits()
        ray.shutdown()
        subprocess._cleanup()  # older versions of Ray don't wait for a process that has ended


def rows_keep_their_files_their_order_and_their_bits(corrector, gallery, folder):
    seen = []
    found = transform_parquet(
        corrector, gallery, folder / "bias", progress=lambda *step: seen.append(step)
    )
    assert found == N_ITEMS
    assert sorted(seen) == [(300, 900), (600, 900), (900, 900)]
    for name in ("part-0.parquet", "more/part-1.parquet", "part-2.parquet"):
        source, table = (parquet.read_table(place / name) for place in (gallery, folder / "bias"))
        assert table.column_names == ["id", "nnnorm_bias"]
        assert table["id"] == source["id"]
        right = corrector.bias_for(np.stack(source["embedding"].to_numpy())).values
        np.testing.assert_array_equal(table["nnnorm_bias"], right)
    about = json.loads((folder / "bias" / "_nnnorm.json").read_text())
    wanted = {"corrector": corrector.fingerprint, "weight": 0.5, "n_rows": N_ITEMS, "n_files": 3}
    assert wanted.items() <= about.items()
    assert len(parquet.read_table(folder / "bias")) == N_ITEMS  # other readers skip the summary


def an_interrupted_call_continues_and_a_changed_file_is_computed_again(corrector, folder):
    gallery, bias = folder / "items", folder / "bias"
    (bias / "_nnnorm.json").unlink()
    (bias / "part-2.parquet").unlink()
    parquet.write_table(table_of(ITEMS[600:], 0), gallery / "part-0.parquet")
    times = {path: path.stat().st_mtime_ns for path in bias.rglob("*.parquet")}
    transform_parquet(corrector, gallery, bias)
    changed = {path.name for path, when in times.items() if path.stat().st_mtime_ns != when}
    assert changed == {"part-0.parquet"}
    assert (bias / "part-2.parquet").exists()
    assert (bias / "_nnnorm.json").exists()
    other = Corrector.fit(ITEMS[:400], REFERENCES, NNN(9, 0.5))
    with pytest.raises(NNNormError, match=r"part-1.parquet: .*correctors must not be mixed"):
        transform_parquet(other, gallery, bias)
    shutil.copy(bias / "part-0.parquet", bias / "part-7.parquet")
    with pytest.raises(NNNormError, match=r"part-7.parquet isn't a result of"):
        transform_parquet(corrector, gallery, bias)


def large_files_are_split_between_row_groups(corrector, folder, monkeypatch):
    gallery = write_gallery(folder / "large", n_files=1, row_group_size=100)
    monkeypatch.setattr("nnnorm.distributed._TASK_ROWS", 400)
    transform_parquet(corrector, gallery / "part-0.parquet", folder / "split", output="vectors")
    names = sorted(path.name for path in (folder / "split").glob("*.parquet"))
    assert names == ["part-0-00000.parquet", "part-0-00004.parquet", "part-0-00008.parquet"]
    table = pyarrow.concat_tables(parquet.read_table(folder / "split" / name) for name in names)
    assert table["id"].to_pylist() == [f"photo-{row}" for row in range(N_ITEMS)]
    np.testing.assert_allclose(
        np.stack(table["vector"].to_numpy()), corrector.transform_items(ITEMS), atol=1e-6
    )


def errors_and_warnings_of_workers_name_the_file(corrector, folder):
    rows = ITEMS.copy()
    rows[650, 3] = np.nan
    gallery = write_gallery(folder / "broken", rows=rows)
    words = r"broken/part-2.parquet: the item with id 'photo-650' is all zeros or has NaN"
    with pytest.raises(NNNormError, match=words):
        transform_parquet(corrector, gallery, folder / "broken-bias")
    assert not (folder / "broken-bias" / "part-2.parquet").exists()
    assert not (folder / "broken-bias" / "_nnnorm.json").exists()
    gallery = write_gallery(folder / "other", rows=-ITEMS)
    with pytest.warns(NNNormWarning, match=r"other/.*parquet: .* check that the same model"):
        transform_parquet(corrector, gallery, folder / "other-bias")


def a_killed_worker_changes_nothing_but_the_time(corrector, folder, monkeypatch):
    def make(*given, **options):
        work = make_worker(*given, **options)

        def die_once(batch):
            with contextlib.suppress(FileExistsError):
                (folder / "killed").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            return work(batch)

        return die_once

    gallery = write_gallery(folder / "many", n_files=6)
    monkeypatch.setattr("nnnorm.distributed.make_worker", make)
    assert transform_parquet(corrector, gallery, folder / "many-bias") == N_ITEMS
    assert (folder / "killed").exists()
    found = parquet.read_table(folder / "many-bias" / "part-0.parquet")["nnnorm_bias"]
    assert found == make_worker(corrector)(table_of(ITEMS[:150]))["nnnorm_bias"]


# --- on Spark ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_spark_maps_the_same_worker(corrector, tmp_path, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is large: `make extras` runs this")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # else the first python3 on the path
    builder = sql.SparkSession.builder.master("local[2]").appName("nnnorm")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    work, schema = make_worker(corrector), "id string, nnnorm_bias float"
    try:
        items = spark.read.parquet(str(write_gallery(tmp_path / "items", 1) / "part-0.parquet"))
        for mapped in (items.mapInPandas, items.mapInArrow):
            found = mapped(lambda batches: map(work, batches), schema).collect()
            assert {row["id"] for row in found} == {f"photo-{row}" for row in range(N_ITEMS)}
            values = {row["id"]: row["nnnorm_bias"] for row in found}
            ordered = [values[f"photo-{row}"] for row in range(N_ITEMS)]
            np.testing.assert_allclose(ordered, corrector.bias_for(ITEMS).values, rtol=1e-5)
        nameless = items.withColumnRenamed("embedding", "clip")
        with pytest.raises(Exception, match="expected a column 'embedding'; got year, id, clip"):
            nameless.mapInPandas(lambda batches: map(work, batches), schema).collect()
    finally:
        gateway = spark.sparkContext._gateway  # whose Java would run until this process ends
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
