"""Damaged files raise one sentence, within limits on time and memory, and give no silent result."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

import nnnorm
from nnnorm import Bias, NNNormError, open_embeddings
from nnnorm.cli.app import app
from nnnorm.datasets import Pairs, load_pairs, read_coco, save_pairs
from nnnorm.evaluation import read_truth
from nnnorm.explore.views import to_json
from nnnorm.files import check_memory
from nnnorm.ranking import Ranking
from nnnorm.tables import read_columns, read_ids, read_json, read_log

DEEP = "[" * 100_000


def run(*arguments):
    """Run a command; it must end with one sentence and without a traceback."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "this is a fault of" not in result.output, result.output
    return result


@pytest.fixture
def gallery(tmp_path):
    np.save(tmp_path / "gallery.npy", np.eye(4, dtype=np.float32))
    return tmp_path / "gallery.npy"


# --- silent answers ---


@pytest.mark.parametrize("text", ["null", "{}", "7", '"x"'])
def test_a_truth_that_is_no_list_is_refused(tmp_path, gallery, text):
    (tmp_path / "truth.json").write_text(text)
    with pytest.raises(NNNormError, match="must hold a list per query"):
        read_truth(tmp_path / "truth.json")
    options = ["--gallery", gallery, "--queries", gallery, "--truth", tmp_path / "truth.json"]
    assert run("evaluate", *options).exit_code != 0


def test_embeddings_whose_products_vanish_are_refused_unless_normalized():
    rows = 1e-25 * np.eye(3)
    with pytest.raises(NNNormError, match="so small that all scores would be about 0"):
        open_embeddings(rows)
    with pytest.raises(NNNormError, match="so small that all scores would be about 0"):
        open_embeddings(rows, normalize=False)
    assert open_embeddings(rows, normalize=True).rows(0, 1).tolist() == [[1.0, 0.0, 0.0]]
    assert open_embeddings(1e-12 * np.eye(3)).shape == (3, 3)


def test_unfinished_embeddings_are_no_gallery(tmp_path):
    folder = tmp_path / "img_emb.partial"
    folder.mkdir()
    np.save(folder / "img_emb_00000.npy", np.eye(2))
    with pytest.raises(NNNormError, match=r"unfinished embeddings; run the same nnnorm encode"):
        open_embeddings(folder)


@pytest.mark.parametrize("name", ["bias.pkl", "bias.npz", "bias"])
def test_a_file_is_what_its_name_says(tmp_path, name):
    with pytest.raises(NNNormError, match=r"saved as \.safetensors"):
        Bias(np.array([0.1]), 1.0, "nnn").save(tmp_path / name)
    with pytest.raises(NNNormError, match=r"saved as \.npz"):
        nnnorm.search(np.eye(2), np.eye(2), k=1).save(tmp_path / f"{name}.pkl")
    assert not list(tmp_path.iterdir())


# --- memory and time ---


def test_shards_named_by_dates_cost_no_memory(tmp_path):
    for number in ("20240101", "20991231235959"):
        np.save(tmp_path / f"part_{number}.npy", np.eye(2))
    with pytest.raises(NNNormError, match="number 20240102 is missing"):
        open_embeddings(tmp_path)


def write_bomb(path, shape, *, n_zeros):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("embedding.npy", "w") as file,
    ):
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, about)
        file.write(bytes(n_zeros))


def test_an_archive_that_announces_more_than_it_holds_is_refused(tmp_path):
    write_bomb(tmp_path / "bomb.npz", (10**9, 10**3), n_zeros=1000)
    with pytest.raises(NNNormError, match=r"can't be read as \.npz"):
        open_embeddings(tmp_path / "bomb.npz")


def test_an_archive_larger_than_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    write_bomb(tmp_path / "bomb.npz", (1000, 1000), n_zeros=4_000_000)
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    monkeypatch.setattr("nnnorm.files.available_memory", lambda: 1_000_000)
    with pytest.raises(NNNormError, match=r"needs .* but only .* of memory"):
        open_embeddings(tmp_path / "bomb.npz")


@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "dim"), [(3000, 100), (1, 300_000)])
def test_a_parquet_bomb_is_refused_before_it_is_read(tmp_path, monkeypatch, n_rows, dim):
    """A few zeros in run lengths announce gigabytes; here it is the memory that is small."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    flat = pyarrow.array(np.zeros(n_rows * dim, dtype=np.float32))
    rows = pyarrow.FixedSizeListArray.from_arrays(flat, dim)
    path = tmp_path / "bomb.parquet"
    parquet.write_table(pyarrow.table({"embedding": rows}), path)
    assert path.stat().st_size < n_rows * dim
    monkeypatch.setattr("nnnorm.files.available_memory", lambda: n_rows * dim)
    with pytest.raises(NNNormError, match=r"needs .* but only .* of memory"):
        open_embeddings(path)


def test_a_row_group_of_a_log_larger_than_the_memory_is_refused_before_it_is_read(
    tmp_path, monkeypatch
):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(name, **options):
        table = pyarrow.table({"embedding": [[1.0] * 1000] * 100})
        parquet.write_table(table, tmp_path / name, use_dictionary=False, **options)
        return tmp_path / name

    monkeypatch.setattr("nnnorm.files.available_memory", lambda: 200_000)
    with pytest.raises(NNNormError, match=r"one.parquet needs .* but only .* of memory"):
        list(read_log(write("one.parquet")))
    parts = read_log(write("many.parquet", row_group_size=10))  # a log may be larger than memory
    assert sum(len(part.rows) for part in parts) == 100


def test_the_memory_of_a_container_is_the_memory_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr("nnnorm.files._GROUP", str(tmp_path))
    texts = {"max": "3000000", "current": "2000000", "stat": "x 1\ninactive_file 500000\n"}
    for name, text in texts.items():
        (tmp_path / f"memory.{name}").write_text(text)
    check_memory(1_500_000, "gallery.npz")
    with pytest.raises(NNNormError, match=r"but only .* of memory"):
        check_memory(1_500_001, "gallery.npz")
    (tmp_path / "memory.max").write_text("max\n")
    check_memory(1_500_001, "gallery.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_refused_as_inputs(tmp_path, gallery):
    made = [tmp_path / f"pipe{suffix}" for suffix in (".npy", ".npz", ".parquet", ".safetensors")]
    for path in made:
        os.mkfifo(path)
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    (tmp_path / "full.safetensors").symlink_to("/dev/full")
    for path in (*made, tmp_path / "zero.npy", tmp_path / "full.safetensors"):
        for read in (open_embeddings, Bias.load, read_truth, Ranking.load):
            with pytest.raises(NNNormError):
                read(path)
        assert run("info", path).exit_code != 0


def test_a_pipe_in_a_folder_of_shards_is_refused(tmp_path):
    np.save(tmp_path / "part_0.npy", np.eye(2))
    os.mkfifo(tmp_path / "part_1.npy")
    with pytest.raises(NNNormError, match="pipe"):
        open_embeddings(tmp_path)


# --- tracebacks ---


@pytest.mark.parametrize("n_bytes", [4, 30, 100, 200])
@pytest.mark.parametrize("name", ["x.npz", "x.npy", "truth.npy"])
def test_damaged_archives_get_one_sentence(tmp_path, gallery, name, n_bytes):
    np.savez(tmp_path / "whole.npz", scores=np.eye(3), indices=np.eye(3, dtype=np.int64))
    content = bytearray((tmp_path / "whole.npz").read_bytes())
    path = tmp_path / name
    for damaged in (content[:n_bytes], content[:n_bytes] + bytes(8) + content[n_bytes + 8 :]):
        path.write_bytes(damaged)
        run("info", path)
        if name == "truth.npy":
            with pytest.raises(NNNormError, match=r"can't be read as \.npy"):
                read_truth(path)


def test_deeply_nested_json_gets_one_sentence(tmp_path, gallery):
    (tmp_path / "deep.json").write_text(DEEP)
    with pytest.raises(NNNormError, match="can't be read as JSON"):
        read_json(tmp_path / "deep.json", "a list")
    from safetensors.numpy import save_file

    save_file(
        {"values": np.zeros(4, dtype=np.float32)},
        tmp_path / "deep.safetensors",
        {"nnnorm": DEEP},
    )
    with pytest.raises(NNNormError, match="is not an nnnorm file"):
        Bias.load(tmp_path / "deep.safetensors")


def test_links_in_a_circle_get_one_sentence(tmp_path):
    for suffix in ("npy", "safetensors", "json", "npz"):
        path = tmp_path / f"loop.{suffix}"
        path.symlink_to(path)
        for act in (open_embeddings, Bias.load, read_truth, Ranking.load):
            with pytest.raises(NNNormError):
                act(path)
        run("info", path)
        run("fit", "--gallery", path, "--references", path, "-o", path)


def test_a_weight_times_a_bias_beyond_float32_is_refused_wherever_queries_are_made():
    rows = np.random.default_rng(0).normal(size=(40, 4)) * 1e16
    corrector = nnnorm.Corrector.fit(rows, rows[::-1], nnnorm.NNN(2, 1.0), allow_gallery_rows=True)
    bias = Bias(np.array([1e36, 0.0]), 1.0, "nnn")
    for ask in (
        lambda: Bias(bias.values, 1e5, "nnn"),
        lambda: nnnorm.search(np.eye(2), np.eye(2), bias, k=1, weight=1e5),
        lambda: nnnorm.augmentation.augment_queries(np.eye(2), bias, weight=1e5),
        lambda: corrector.transform_queries(rows[:2], weight=1e6),
    ):
        with pytest.raises(NNNormError, match="too large for float32"):
            ask()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_a_file_name_that_is_no_text_is_shown_with_escapes(tmp_path, gallery):
    os.rename(gallery, os.fsencode(tmp_path) + b"/\xff.npy")
    command = [sys.executable, "-m", "nnnorm", "info", b"\xff.npy"]
    usual = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env=usual)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(rb"\udcff.npy: 4 embeddings")


def test_half_a_character_is_an_escape_in_the_json_of_the_explorer():
    view = {"references": "\udcff.npy", "caption": "名前 🙂"}
    text = to_json(view)
    text.encode()
    assert json.loads(text) == view


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_the_explorer_takes_a_file_name_that_is_no_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    for name, part in (("gallery", rows[:20]), ("queries", rows[20:30]), ("\udcff", rows[30:])):
        np.save(f"{name}.npy", part)
    files = ["--gallery", "gallery.npy", "--queries", "queries.npy", "--references", "\udcff.npy"]
    assert run("explore", *files, "--export", "out").exit_code == 0
    assert r"\udcff.npy" in (tmp_path / "out" / "recorded.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("wrong", [[], {}, [1]])
@pytest.mark.parametrize("key", ["id", "image_id"])
def test_an_image_of_coco_whose_number_is_a_list_or_an_object_gets_one_sentence(
    tmp_path, key, wrong
):
    image, note = {"id": 1, "file_name": "a.jpg"}, {"image_id": 1, "caption": "a cat"}
    (image if key == "id" else note)[key] = wrong
    path = tmp_path / "captions_val2017.json"
    path.write_text(json.dumps({"images": [image], "annotations": [note]}))
    with pytest.raises(NNNormError, match="must have images with id and file_name"):
        read_coco([path])


def test_ids_in_a_structured_array_are_refused(tmp_path):
    np.save(tmp_path / "ids.npy", np.zeros(3, dtype=[("a", "f4"), ("b", "f4", (2,))]))
    with pytest.raises(NNNormError, match="ids must be numbers or text, one per item"):
        read_ids(tmp_path / "ids.npy")


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table([["a"], ["b"]], names=["group", "group"])
    parquet.write_table(table, tmp_path / "groups.parquet")
    with pytest.raises(NNNormError, match="has the column group twice"):
        read_columns(tmp_path / "groups.parquet", ["group"])


def test_pairs_with_half_a_character_are_not_half_written(tmp_path):
    pairs = Pairs("one", ("a.jpg",), ("a \ud800 cat",), np.array([0]))
    with pytest.raises(NNNormError, match="not text"):
        save_pairs(pairs, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [["2026-05-01"], {}, None, "soon", True])
def test_a_time_in_a_log_that_is_no_time_gets_one_sentence(tmp_path, wrong):
    rows = [{"embedding": [1.0, 0.0], "day": day} for day in ("2026-05-01", wrong)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(NNNormError, match=r"column day must be dates .*row 1 has"):
        list(read_log(tmp_path / "log.jsonl", time="day"))


@pytest.mark.parametrize(
    ("key", "wrong"), [("image_of", [[0]]), ("images", "ab"), ("captions", [7]), ("splits", 7)]
)
def test_saved_pairs_with_a_wrong_type_inside_get_one_sentence(tmp_path, key, wrong):
    pairs = Pairs("one", ("a.jpg", "b.jpg"), ("a cat", "a dog"), np.array([0, 1]))
    (path, *_) = save_pairs(pairs, tmp_path)
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, key: wrong}))
    with pytest.raises(NNNormError, match=r"damaged|list of image numbers"):
        load_pairs(path)


def test_sinkhorn_has_a_bound_on_its_iterations():
    with pytest.raises(NNNormError, match="from 1 to 10000"):
        nnnorm.Sinkhorn(iterations=10**12)


def test_an_error_that_was_not_foreseen_is_one_sentence_and_a_traceback_with_debug(
    gallery, monkeypatch
):
    def broken(*_, **__):
        raise AttributeError("no such thing")

    monkeypatch.setattr("nnnorm.cli.core.open_embeddings", broken)
    result = CliRunner().invoke(app, ["info", str(gallery)])
    assert result.exit_code == 1
    assert "unexpected AttributeError (no such thing)" in result.output
    result = CliRunner().invoke(app, ["info", str(gallery), "--debug"])
    assert result.exit_code == 1
    assert "Traceback" in result.output
    assert "AttributeError: no such thing" in result.output
