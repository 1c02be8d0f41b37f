"""A fit that is settled once and computed in parts is the fit of the whole gallery."""

import errno
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from nnnorm import CSLS, NNN, InvertedSoftmax, NNNormError, Sinkhorn
from nnnorm.bank import Bank
from nnnorm.cluster import Job, Share, merge, settle
from tests.cluster.cases import (
    DIM,
    GALLERY,
    LARGE,
    N_GALLERY,
    OTHERS,
    REFERENCES,
    as_params,
    assert_same_bias,
    rows,
    write_shards,
)

METHOD = NNN(8, 0.5)
SECRET = "hunter2"


@pytest.fixture
def gallery(tmp_path):
    return write_shards(tmp_path / "img_emb")


@pytest.fixture
def job(gallery, tmp_path):
    return settle(gallery, REFERENCES, METHOD, folder=tmp_path / "parts")


@pytest.fixture
def memory():
    """The files behind memory://, removed afterwards."""
    files = pytest.importorskip("fsspec").filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def work(job, n_shares, order=None):
    for number in order or range(1, n_shares + 1):
        job.work(Share(number, n_shares))


def parts_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


# --- the same bias ------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "references", "options"), as_params())
def test_parts_join_to_the_bias_of_a_fit(gallery, tmp_path, method, references, options):
    whole = method.fit(GALLERY, references, **options)
    job = settle(gallery, references, method, folder=tmp_path / "parts", **options)
    work(job, 4, order=(3, 1, 4, 2))
    assert_same_bias(merge(tmp_path / "parts"), whole)


def test_lists_are_restored_within_the_budget_of_the_worker(tmp_path):
    options = {"solver": "approximate", "quality": 8, "duplicates": "keep"}
    job = settle(GALLERY, LARGE, CSLS(16), folder=tmp_path, **options)

    def held_bytes(budget):
        job.value(GALLERY[:20], first_row=0, memory_budget=budget)
        (learnt,) = job.recall(budget).values()
        assert job.recall(budget)["learnt", 16, False] is learnt  # restored once
        return learnt.model.lists.held_bytes

    sorted_rows = LARGE.astype(np.float32).nbytes
    assert held_bytes(sorted_rows) < held_bytes(2**29) <= sorted_rows


@pytest.mark.parametrize("n_shares", [1, 2, 7, N_GALLERY])
def test_rows_are_split_evenly_among_any_number_of_shards(job, n_shares):
    if n_shares == N_GALLERY:  # one row each
        edges = [Share(number + 1, n_shares).rows(N_GALLERY) for number in range(n_shares)]
        assert edges == [(row, row + 1) for row in range(N_GALLERY)]
        return
    work(job, n_shares)
    sizes = [Share(number + 1, n_shares).rows(N_GALLERY) for number in range(n_shares)]
    assert max(b - a for a, b in sizes) - min(b - a for a, b in sizes) <= 1
    assert_same_bias(job.merge(), METHOD.fit(GALLERY, REFERENCES))


@pytest.mark.parametrize("kind", ["a file", "a pattern", "parquet", "clip-retrieval", "float16"])
def test_the_gallery_may_be_in_any_form(tmp_path, kind):
    gallery, path = GALLERY, tmp_path / "gallery.npy"
    if kind == "float16":
        gallery = GALLERY.astype(np.float16)
    if kind in ("a file", "float16"):
        np.save(path, gallery)
    elif kind == "a pattern":
        write_shards(tmp_path / "some")
        path = tmp_path / "some" / "img_*.npy"
    elif kind == "clip-retrieval":
        write_shards(tmp_path / "set" / "img_emb")
        path = tmp_path / "set"
    else:
        path = write_parquet(tmp_path / "packed")
    job = settle(path, REFERENCES, METHOD, folder=tmp_path / "parts")
    work(job, 3)
    assert_same_bias(job.merge(), METHOD.fit(gallery, REFERENCES))


def write_parquet(folder, gallery=GALLERY):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    for number, part in enumerate((gallery[:300], gallery[300:])):
        column = pyarrow.array(list(part), pyarrow.list_(pyarrow.float32()))
        table = pyarrow.table({"id": np.arange(len(part)), "embedding": column})
        parquet.write_table(table, folder / f"part_{number}.parquet", row_group_size=128)
    return folder


def test_a_worker_reads_only_the_files_of_its_rows(gallery, job):
    np.save(gallery / "img_emb_0.npy", np.zeros((100, DIM), np.float32))
    last = job.open_rows(500, N_GALLERY)
    np.testing.assert_array_equal(last.rows(0, 201), GALLERY[500:])
    with pytest.raises(NNNormError, match=r"row 0 is all zeros"):
        job.open_rows(0, 50)


def test_a_bank_larger_than_the_budget_is_read_in_blocks_and_merged_exactly(tmp_path):
    references = rows(60_000, 5)  # 3.8 MB, and 1 MB allowed
    np.save(tmp_path / "bank.npy", references)
    for method in (CSLS(7), InvertedSoftmax(5.0)):
        folder = tmp_path / method.name
        job = settle(GALLERY[:200], tmp_path / "bank.npy", method, folder=folder, duplicates="keep")
        small = job.value(GALLERY[:200], memory_budget=2**20).values
        whole = method.fit(GALLERY[:200], references, duplicates="keep").values
        np.testing.assert_allclose(small, whole, atol=2e-6)


def test_a_bank_file_and_a_bank_of_a_log_are_both_banks(gallery, tmp_path):
    bank = Bank.of(REFERENCES)
    bank.save(tmp_path / "bank.safetensors")
    job = settle(gallery, tmp_path / "bank.safetensors", METHOD, folder=tmp_path / "parts")
    work(job, 2)
    assert_same_bias(job.merge(), METHOD.fit(GALLERY, bank))


def test_a_job_travels_to_workers_and_values_any_rows_there(job, tmp_path):
    there = pickle.loads(pickle.dumps(job))
    expected = METHOD.fit(GALLERY, REFERENCES).values
    np.testing.assert_allclose(there.value(GALLERY[5:9]).values, expected[5:9], atol=1e-6)
    np.testing.assert_array_equal(there.open_rows(5, 9).rows(0, 4), GALLERY[5:9])
    in_memory = settle(GALLERY, REFERENCES, METHOD, folder=tmp_path / "other")
    with pytest.raises(NNNormError, match=r"was an array or a URL .*does not keep; pass it again"):
        pickle.loads(pickle.dumps(in_memory)).open_rows(0, 1)


def test_jobs_and_galleries_may_be_behind_a_url(memory, tmp_path):
    write_shards(tmp_path / "local")
    packed = write_parquet(tmp_path / "packed")
    for number, path in enumerate(sorted((tmp_path / "local").iterdir())):
        memory.pipe_file(f"/set/img_emb/img_emb_{number}.npy", path.read_bytes())
    for path in packed.iterdir():
        memory.pipe_file(f"/packed/{path.name}", path.read_bytes())
    for number, url in enumerate(("set", "set/img_emb/*.npy", "packed")):
        folder = f"memory://jobs/{number}"
        job = settle(f"memory://{url}", REFERENCES, METHOD, folder=folder)
        work(job, 3, order=(2, 3, 1))
        work(job, 3)
        assert len(memory.glob(f"/jobs/{number}/part-*")) == 3
        assert_same_bias(merge(folder), METHOD.fit(GALLERY, REFERENCES))
    with pytest.raises(NNNormError, match=r"memory://nowhere.*there is no such file"):
        settle("memory://nowhere", REFERENCES, METHOD, folder=tmp_path / "other")


def test_a_password_in_a_url_is_neither_shown_nor_stored(memory, tmp_path, monkeypatch):
    for number, path in enumerate(sorted(write_shards(tmp_path / "local").iterdir())):
        memory.pipe_file(f"/me:{SECRET}@box/set/img_emb_{number}.npy", path.read_bytes())
    url = f"memory://me:{SECRET}@box/set"
    job = settle(url, REFERENCES, METHOD, folder=tmp_path / "parts")
    assert SECRET not in f"{job}{job.open_rows(0, 9).name}"
    assert SECRET.encode() not in (tmp_path / "parts" / "job.safetensors").read_bytes()
    with pytest.raises(NNNormError, match="a URL with a password, which it does not keep; pass it"):
        Job.load(tmp_path / "parts").work(Share(1, 2))
    work(Job.load(tmp_path / "parts", url), 2)
    for wrong in (f"memory://me:{SECRET}@box/nowhere", f"no-such-store://me:{SECRET}@box/set"):
        with pytest.raises(NNNormError, match=r"//…@box/") as caught:
            settle(wrong, REFERENCES, METHOD, folder=tmp_path / "other")
        assert SECRET not in str(caught.value)
    # What a library says may hold it too.
    monkeypatch.setattr(memory, "cat_file", lambda *_, **__: 1 / {}[f"me:{SECRET}"])
    with pytest.raises(NNNormError, match=r"can't be reached .'me:…'.; check the URL") as caught:
        settle(url, REFERENCES, METHOD, folder=tmp_path / "other")
    assert SECRET not in str(caught.value)


# --- the same bytes -----------------------------------------------------------------------------


def test_what_is_done_is_skipped_and_parts_are_the_same_bytes_in_any_order(gallery, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, order in zip(folders, ((1, 2, 3), (3, 1, 2)), strict=True):
        job = settle(gallery, REFERENCES, NNN(), folder=folder)
        work(job, 3, order)
        before = parts_of(folder)
        assert [job.work(Share(number, 3)).is_new for number in order] == [False] * 3
        assert parts_of(folder) == before
        job.merge().save(folder / "bias.safetensors")
    assert parts_of(folders[0]) == parts_of(folders[1])
    job.merge().save(tmp_path / "again.safetensors")
    again = (tmp_path / "again.safetensors").read_bytes()
    assert again == (folders[1] / "bias.safetensors").read_bytes()


KILLED = """
import os, sys, time
from nnnorm import NNN
from nnnorm.cluster import Share, settle
import nnnorm.io.files as files
class Waiting:
    def __getattr__(self, name):
        return getattr(os, name)
    def replace(self, source, target):  # all is written, and nothing is in its place yet
        if sys.argv[1] in str(target):
            print("here", flush=True)
            time.sleep(600)
        os.replace(source, target)
files.os = Waiting()
settle("img_emb", "references.npy", NNN(), folder="parts").work(Share(2, 3))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["bank.npy", "job.safetensors", "part-"])
def test_a_process_that_is_killed_leaves_nothing_that_changes_a_byte(gallery, tmp_path, moment):
    np.save(tmp_path / "references.npy", REFERENCES)
    command = [sys.executable, "-c", KILLED, moment]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        process.kill()
    assert not parts_of(tmp_path / "parts")
    jobs = [settle(gallery, REFERENCES, NNN(), folder=tmp_path / name) for name in ("parts", "new")]
    for job in jobs:
        work(job, 3)
    assert parts_of(tmp_path / "parts") == parts_of(tmp_path / "new")
    assert_same_bias(jobs[0].merge(), jobs[1].merge())


# --- bad input ----------------------------------------------------------------------------------


def test_shards_of_different_widths_are_refused(gallery, tmp_path):
    np.save(gallery / "img_emb_3.npy", rows(9, 0)[:, : DIM - 1])
    with pytest.raises(NNNormError, match="all shards must share dim; got 16 and 15"):
        settle(gallery, REFERENCES, METHOD, folder=tmp_path / "parts")


def test_a_job_that_could_not_be_settled_leaves_no_file(tmp_path):
    np.save(tmp_path / "gallery.npy", GALLERY[:, :15])
    with pytest.raises(NNNormError, match="dim"):
        settle(tmp_path / "gallery.npy", REFERENCES, NNN(4, 0.5), folder=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_pipe_in_the_place_of_the_bank_is_refused(job):
    (job.folder / "bank.npy").unlink()
    os.mkfifo(job.folder / "bank.npy")
    with pytest.raises(NNNormError, match=r"bank\.npy is a device, a pipe or a socket"):
        Job.load(job.folder)


@pytest.mark.parametrize("bank", [np.ones((3, 0), np.float32), np.ones(4), np.array(["a"])])
def test_an_array_that_is_no_bank_is_not_the_bank_of_the_job(job, bank):
    np.save(job.folder / "bank.npy", bank)
    with pytest.raises(NNNormError, match=r"is not the bank that the job was settled with"):
        Job.load(job.folder)


def test_missing_shards_are_named(job):
    with pytest.raises(NNNormError, match=r"parts holds no parts yet; run nnnorm fit --shard i/n"):
        job.merge()
    work(job, 8, order=(2, 5))
    with pytest.raises(NNNormError, match=r"lacks shards 1/8, 3/8, 4/8, 6/8, 7/8 and 1 others"):
        job.merge()
    work(job, 8, order=(1, 3, 4, 6, 7))
    with pytest.raises(NNNormError, match=r"lacks shard 8/8; run nnnorm fit --shard for each"):
        job.merge()


def test_shards_that_are_counted_in_two_ways_are_refused(job, tmp_path):
    work(job, 2)
    with pytest.raises(NNNormError, match="holds parts of 2 shards; got 3: use that number"):
        job.work(Share(1, 3))
    other = settle(GALLERY, REFERENCES, METHOD, folder=tmp_path / "other")
    work(other, 3)
    for path in (tmp_path / "other").glob("part-*"):
        path.rename(job.folder / path.name)
    with pytest.raises(NNNormError, match=r"rows 0 to 232 are in both part-00001"):
        job.merge()


def test_a_part_of_another_bank_is_refused_and_computed_again_by_its_shard(job, tmp_path):
    work(job, 2)
    other = settle(GALLERY, rows(301, 9), METHOD, folder=tmp_path / "other")
    work(other, 2)
    name = "part-00002-of-00002.safetensors"
    (job.folder / name).write_bytes((other.folder / name).read_bytes())
    with pytest.raises(NNNormError, match=f"{name} is a part of another job .another bank"):
        job.merge()
    assert [job.work(Share(number, 2)).is_new for number in (1, 2)] == [False, True]
    assert_same_bias(job.merge(), METHOD.fit(GALLERY, REFERENCES))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"references": rows(301, 9)}, "holds a job with other references than those given"),
        ({"method": NNN(9, 0.5)}, r'holds a job with method .*"reference_k": 8.*got .*: 9'),
        ({"method": Sinkhorn(), **OTHERS}, r'holds a job with method .*got .*"name": "sinkhorn"'),
        ({"solver": "exact"}, 'holds a job with solver "auto"; got "exact"'),
        ({"normalize": True}, "holds a job with normalize false; got true"),
        ({"duplicates": "keep"}, 'holds a job with duplicates "drop"; got "keep"'),
        (
            {"gallery": GALLERY[1:]},
            "a gallery of 701 rows of 16 dimensions in 3 files; got",
        ),
    ],
)
def test_a_folder_keeps_to_one_job(job, gallery, change, words):
    given = {"gallery": gallery, "references": REFERENCES, "method": METHOD} | change
    with pytest.raises(NNNormError, match=words):
        settle(folder=job.folder, **given)
    assert settle(gallery, REFERENCES, METHOD, folder=job.folder).fingerprint == job.fingerprint


def test_a_job_that_another_process_settled_meanwhile_behind_a_url_is_compared_too(
    memory, gallery, monkeypatch
):
    settle(gallery, REFERENCES, NNN(9, 0.5), folder="memory://other")
    put = memory.put_file

    def put_and_be_overtaken(source, path, **options):
        put(source, path, **options)
        for name in ("bank.npy", "job.safetensors"):
            memory.pipe_file(f"/parts/{name}", memory.cat_file(f"/other/{name}"))

    monkeypatch.setattr(memory, "put_file", put_and_be_overtaken)
    with pytest.raises(NNNormError, match=r'holds a job with method .*"reference_k": 9.*got'):
        settle(gallery, REFERENCES, METHOD, folder="memory://parts")


def test_a_gallery_bank_that_is_given_later_is_another_job(gallery, tmp_path):
    settle(gallery, REFERENCES, Sinkhorn(), folder=tmp_path / "parts")
    with pytest.raises(NNNormError, match="a job with other gallery_references than those given"):
        settle(gallery, REFERENCES, Sinkhorn(), folder=tmp_path / "parts", **OTHERS)


def test_a_gallery_that_has_changed_is_noticed(job, gallery):
    np.save(gallery / "img_emb_1.npy", rows(320, 7))
    work(job, 7, order=(1, 7))
    with pytest.raises(NNNormError, match=r"has changed since the job in .* was settled"):
        job.work(Share(3, 7))


@pytest.mark.parametrize("change", ["reversed", "scaled", "longer file", "float64"])
def test_a_gallery_that_was_replaced_is_refused_by_the_same_call(tmp_path, change):
    path = tmp_path / "gallery.npy"
    np.save(path, GALLERY)
    given = path, REFERENCES, METHOD
    work(settle(*given, folder=tmp_path / "parts"), 2)
    os.utime(path, ns=(0, 0))  # as a copy on another node
    work(settle(*given, folder=tmp_path / "parts"), 2)
    if change == "longer file":
        with path.open("ab") as file:
            file.write(b"more")
    else:
        new = {"reversed": GALLERY[::-1], "scaled": GALLERY * np.float32(1.01)}
        np.save(path, new.get(change, GALLERY.astype(np.float64)))
    with pytest.raises(NNNormError, match=r"gallery.npy.* has changed since the job in .*parts"):
        settle(*given, folder=tmp_path / "parts")


def test_rows_that_were_scaled_are_noticed_by_a_worker_unless_they_are_normalised(tmp_path):
    path = tmp_path / "gallery.npy"
    np.save(path, GALLERY)
    raw, unit = (
        settle(path, REFERENCES, METHOD, folder=tmp_path / str(normalize), normalize=normalize)
        for normalize in (False, True)
    )
    np.save(path, GALLERY / np.linalg.norm(GALLERY, axis=1, keepdims=True))
    with pytest.raises(NNNormError, match="has changed since the job"):
        raw.work(Share(2, 2))
    assert unit.work(Share(2, 2)).is_new


def test_a_replaced_gallery_of_parquet_is_refused_and_an_equal_one_is_not(tmp_path):
    given = write_parquet(tmp_path / "packed"), REFERENCES, METHOD
    first, second = (tmp_path / "packed" / f"part_{number}.parquet" for number in (0, 1))
    settle(*given, folder=tmp_path / "parts")
    for path in (first, second):
        os.utime(path, ns=(0, 0))
    settle(*given, folder=tmp_path / "parts")
    write_parquet(tmp_path / "other", GALLERY[::-1])
    (tmp_path / "other" / "part_0.parquet").rename(first)
    with pytest.raises(NNNormError, match="has changed since the job"):
        settle(*given, folder=tmp_path / "parts")


@pytest.mark.parametrize("name", ["job.safetensors", "bank.npy"])
def test_damaged_files_of_a_job_are_noticed(job, name):
    path = job.folder / name
    blob = bytearray(path.read_bytes())
    blob[-5] ^= 1
    path.write_bytes(blob)
    with pytest.raises(NNNormError, match=r"damaged job file|not the bank that the job"):
        Job.load(job.folder)


def test_a_damaged_part_is_computed_again(job):
    work(job, 2)
    path = job.folder / "part-00001-of-00002.safetensors"
    right = path.read_bytes()
    path.write_bytes(right[:-9])
    assert job.missing(2) == [Share(1, 2)]
    work(job, 2)
    assert path.read_bytes() == right


def test_a_full_disk_loses_nothing_that_was_done(job, monkeypatch):
    work(job, 3, order=(1,))
    before = parts_of(job.folder)

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(NNNormError, match="No space left on device; nothing was changed"):
            job.work(Share(2, 3))
    assert parts_of(job.folder) == before
    assert not list(job.folder.glob("*.tmp"))
    assert job.missing(3) == [Share(2, 3), Share(3, 3)]


def test_more_shards_than_rows_and_rows_of_another_width_are_refused(job):
    with pytest.raises(NNNormError, match="701 rows, too few for 702 shards; use fewer"):
        job.work(Share(1, 702))
    with pytest.raises(NNNormError, match="must share dim; got 15 and 16"):
        job.value(GALLERY[:3, :15])
    with pytest.raises(NNNormError, match="shard 1/2 has 350 rows; got a part of 3"):
        job.save_part(Share(1, 2), job.value(GALLERY[:3]))
