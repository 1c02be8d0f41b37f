"""A bias as sharded parquet, and joined into the tables of engines."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from nnnorm import Bias, NNNormError
from nnnorm.bias import Gate
from nnnorm.cli import app
from nnnorm.cluster import find_moved, open_table, refresh_table, vespa_updates, write_table

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def bias():
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    return Bias(values, weight=0.5, method="nnn", fingerprints={"gallery": "abc"})


def moved(bias, row, by):
    values = bias.values.copy()
    values[row] += by
    return replace(bias, values=values)


def test_a_table_gives_back_ids_and_values_in_their_order(bias, tmp_path):
    ids = [f"photo-{row}" for row in range(100)]
    write_table(bias, tmp_path / "table", ids=ids, n_shards=7)
    table = open_table(tmp_path / "table")
    shards = list(table.shards())
    assert (len(table), len(shards), table.weight) == (100, 7, 0.5)
    assert np.concatenate([shard.ids for shard in shards]).tolist() == ids
    assert np.concatenate([shard.values for shard in shards]).tobytes() == bias.values.tobytes()


def test_the_shards_are_plain_parquet_that_any_reader_opens(bias, tmp_path):
    write_table(bias, tmp_path, n_shards=3)
    found = parquet.ParquetDataset(sorted(map(str, tmp_path.glob("*.parquet")))).read()
    assert found.schema.field("id").type == pyarrow.int64()
    assert found.schema.field("nnnorm_bias").type == pyarrow.float32()
    assert found.column("id").to_pylist() == list(range(100))


def test_shards_differ_by_at_most_one_item(bias, tmp_path):
    for n_shards in (1, 7, 99, 100):
        sizes = write_table(bias, tmp_path / str(n_shards), n_shards=n_shards).sizes
        assert sum(sizes) == 100
        assert max(sizes) - min(sizes) <= 1


def test_the_description_has_the_provenance_of_the_bias(bias, tmp_path):
    write_table(bias, tmp_path)
    about = json.loads((tmp_path / "bias-table.json").read_text())
    assert about["method"] == "nnn"
    assert about["fingerprints"] == {"gallery": "abc"}
    assert about["shards"] == [{"file": "part-00000-of-00001.parquet", "n_items": 100}]


def test_only_the_shards_that_moved_are_written(bias, tmp_path):
    table = write_table(bias, tmp_path, n_shards=10)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    newer = moved(moved(bias, 35, 0.3), 71, 0.1)
    written = refresh_table(table, newer, tolerance=0.1)
    assert [move.file for move in written] == ["part-00003-of-00010.parquet"]
    changed = {name for name, old in before.items() if (tmp_path / name).read_bytes() != old}
    assert changed == {"part-00003-of-00010.parquet"}
    assert open_table(tmp_path).shard(3).values[5] == newer.values[35]


@pytest.mark.parametrize("tolerance", [0, 0.01, 0.05])
def test_after_a_refresh_every_correction_is_within_the_tolerance(bias, tmp_path, tolerance):
    noise = np.random.default_rng(1).normal(scale=0.03, size=100)
    newer = replace(bias, values=(bias.values + noise).astype(np.float32), weight=0.6)
    table = write_table(bias, tmp_path, n_shards=20)
    refresh_table(table, newer, tolerance=tolerance)
    served = open_table(tmp_path)
    values = np.concatenate([shard.values for shard in served.shards()])
    off = np.abs(served.weight * values - newer.weight * newer.values)
    assert off.max() <= tolerance + 1e-7
    assert served.weight == 0.6


def test_a_refresh_that_was_cut_short_is_finished_by_the_next(bias, tmp_path, monkeypatch):
    table = write_table(bias, tmp_path, n_shards=4)
    newer = replace(bias, values=bias.values + 1)
    written = []

    def fail_after_two(path, write):
        if len(written) == 2:
            raise NNNormError("cannot write: no space")
        written.append(path)
        real(path, write)

    from nnnorm.cluster import serving

    real = serving.write_whole
    monkeypatch.setattr(serving, "write_whole", fail_after_two)
    with pytest.raises(NNNormError, match="no space"):
        refresh_table(table, newer, tolerance=0.1)
    monkeypatch.undo()
    rest = refresh_table(open_table(tmp_path), newer, tolerance=0.1)
    assert len(rest) == 2
    values = np.concatenate([shard.values for shard in open_table(tmp_path).shards()])
    assert values.tolist() == newer.values.tolist()


def test_what_moved_is_told_in_units_of_the_score(bias, tmp_path):
    table = write_table(bias, tmp_path, n_shards=2)
    first, second = find_moved(table, moved(bias, 60, -0.4), tolerance=0.1)
    assert (first.n_moved, first.largest) == (0, 0.0)
    assert second.n_moved == 1
    assert second.largest == pytest.approx(0.2, abs=1e-6)
    assert second.typical == pytest.approx(0.2 / 50**0.5, abs=1e-6)


def test_updates_of_vespa_are_partial_and_name_every_item(bias, tmp_path):
    table = write_table(bias, tmp_path, ids=[f"p{row}" for row in range(100)])
    lines = [json.loads(line) for line in vespa_updates(table.shard(0), "photo", "shop")]
    assert [line["update"] for line in lines] == [f"id:shop:photo::p{row}" for row in range(100)]
    assert all(line.keys() == {"update", "fields"} for line in lines)
    values = [line["fields"]["nnnorm_bias"]["assign"] for line in lines]
    assert np.float32(values).tolist() == bias.values.tolist()


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.ones(99, np.float32)}, "has 100 items and the new bias 99"),
        ({"fingerprints": {"gallery": "other"}}, "is of another gallery"),
        ({"method": "csls"}, "of the method nnn and the new bias of csls"),
    ],
)
def test_a_bias_of_other_items_is_refused_and_nothing_is_written(bias, tmp_path, change, words):
    table = write_table(bias, tmp_path)
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    with pytest.raises(NNNormError, match=words):
        refresh_table(table, replace(bias, **change), tolerance=0.1)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before


@pytest.mark.parametrize("tolerance", [-1, float("nan"), float("inf"), True])
def test_a_tolerance_must_be_a_number_of_at_least_0(bias, tmp_path, tolerance):
    with pytest.raises(NNNormError, match="tolerance must be a number of at least 0"):
        find_moved(write_table(bias, tmp_path), bias, tolerance=tolerance)


@pytest.mark.parametrize("n_shards", [0, 101, 2.5, True])
def test_the_number_of_shards_must_be_possible(bias, tmp_path, n_shards):
    with pytest.raises(NNNormError, match="n_shards must be between 1 and the 100 items"):
        write_table(bias, tmp_path, n_shards=n_shards)


def test_a_gated_bias_is_no_column(bias, tmp_path):
    gated = replace(bias, gates=(Gate(bias.values, bias.values > 0),))
    with pytest.raises(NNNormError, match="decides per query and can't be a column"):
        write_table(gated, tmp_path)


def test_ids_that_repeat_are_refused(bias, tmp_path):
    with pytest.raises(NNNormError, match="must be unique"):
        write_table(bias, tmp_path, ids=[0] * 100)


def test_a_table_is_not_written_behind_a_url(bias, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NNNormError, match="to this machine only; got s3://bucket/table: give a"):
        write_table(bias, "s3://bucket/table")
    assert not list(tmp_path.iterdir())


def test_shards_of_another_table_are_not_mixed_in(bias, tmp_path):
    write_table(bias, tmp_path, n_shards=4)
    with pytest.raises(NNNormError, match="has shards of another table, such as part-00000-of-000"):
        write_table(bias, tmp_path, n_shards=5)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("nnnorm.bias-table/1", "something"),
        lambda text: text.replace("part-00000", "../part-00000"),
        lambda text: text.replace("part-00000-of-00001.parquet", ".."),
        lambda text: text.replace("part-00000-of-00001.parquet", "other.npy"),
        lambda text: text[: text.index('"shards"')] + '"shards": []}',
        lambda text: text.replace('"n_items": 100', '"n_items": -1'),
        lambda text: text.replace('"weight": 0.5', '"weight": "half"'),
        lambda text: "[]",
    ],
)
def test_a_damaged_description_is_refused(bias, tmp_path, damage):
    write_table(bias, tmp_path)
    path = tmp_path / "bias-table.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(NNNormError, match=r"bias-table\.json"):
        open_table(tmp_path)


@pytest.mark.parametrize("n_bytes", [0, 50, 500])
def test_a_damaged_shard_is_refused(bias, tmp_path, n_bytes):
    table = write_table(bias, tmp_path)
    path = tmp_path / table.files[0]
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(NNNormError, match="can't be read as a shard of a bias"):
        table.shard(0)


def test_a_shard_with_rows_missing_is_refused(bias, tmp_path):
    table = write_table(bias, tmp_path)
    some = parquet.read_table(tmp_path / table.files[0]).slice(0, 60)
    parquet.write_table(some, tmp_path / table.files[0])
    with pytest.raises(NNNormError, match="must have 100 finite values, got 60 rows"):
        table.shard(0)


# --- the commands --------------------------------------------------------------------------------


@pytest.fixture
def files(bias, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bias.save("old.safetensors")
    moved(bias, 35, 0.3).save("new.safetensors")
    np.save("ids.npy", np.arange(100) + 1000)


def run(line, code=0):
    result = CliRunner().invoke(app, line.split(), prog_name="nnnorm")
    assert result.exit_code == code, result.output
    return result


def test_the_commands_write_and_refresh_a_table(files):
    assert "100 items in 10 shards in made; search with score - 0.5 x nnnorm_bias" in (
        run("table write old.safetensors -o made --ids ids.npy --shards 10").output
    )
    assert open_table("made").shard(3).ids.tolist() == list(range(1030, 1040))
    dry = run("table refresh made --bias new.safetensors --tolerance 0.1 --dry-run").output
    assert "1 of 10 shards would be written" in dry
    assert "part-00003-of-00010.parquet" in dry
    done = run("table refresh made --bias new.safetensors --tolerance 0.1 --json")
    told = json.loads(done.output)
    assert (told["n_shards"], told["written"]) == (10, True)
    assert [move["file"] for move in told["moved"]] == ["part-00003-of-00010.parquet"]
    again = run("table refresh made --bias new.safetensors --tolerance 0.1")
    assert "0 of 10 shards written" in again.output


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("table refresh nowhere --bias new.safetensors", 1, "there is no file nowhere/bias-table"),
        ("table write nothing.safetensors -o made", 1, "there is no bias file nothing"),
        ("table write old.safetensors -o made --shards 0", 2, "--shards"),
        ("table write old.safetensors -o made --shards 101", 1, "n_shards must be between 1 and"),
        ("table refresh made --bias new.safetensors --tolerance -1", 1, "there is no file made"),
    ],
)
def test_the_commands_refuse_in_one_sentence(files, line, code, words):
    assert words in " ".join(run(line, code).stderr.split())
