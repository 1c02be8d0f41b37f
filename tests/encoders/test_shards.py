"""Embeddings on disk: whole or not there, resumable, and the same however often broken off."""

import errno
import json
import os
import tarfile
from contextlib import nullcontext

import numpy as np
import pytest
from PIL import Image

import nnnorm
from nnnorm import NNNormError
from nnnorm.encoders import Encoder, Share, encode_to_folder
from nnnorm.encoders.containers import read_samples
from nnnorm.encoders.shards import plan_encoding
from tests import tiny

TEXTS = [f"text number {n}" for n in range(23)]


class Hashes(Encoder):
    """Rows that depend on the text alone, and a count of the work done."""

    name, dim, modalities = "hashes", 8, ("texts",)
    context = 3
    breaks_at = None

    def __init__(self):
        self.seen = []

    def token_counts(self, texts):
        return [len(text.split()) for text in texts]

    def embed_texts(self, texts):
        if self.breaks_at in texts:
            raise NNNormError("broken off")
        self.seen += texts
        return np.stack(
            [np.random.default_rng(list(text.encode())).normal(size=self.dim) for text in texts]
        )


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def encode(output, encoder=None, texts=TEXTS, **options):
    options = {"batch_size": 4, "shard_rows": 5, **options}
    return encode_to_folder(encoder or Hashes(), "texts", texts, output, **options)


def break_off(output, at):
    encoder = Hashes()
    encoder.breaks_at = TEXTS[at]
    with pytest.raises(NNNormError, match="broken off"):
        encode(output, encoder)


def test_shards_and_sidecar_are_what_open_embeddings_reads(tmp_path):
    done = encode(tmp_path / "out")
    assert done.folder == tmp_path / "out" / "text_emb"
    assert sorted(os.listdir(done.folder)) == [
        "about.json",
        "items.jsonl",
        *(f"text_emb_{n:05d}.npy" for n in range(5)),
    ]
    opened = nnnorm.open_embeddings(tmp_path / "out", metric="cosine")
    assert opened.shape == (23, 8)
    np.testing.assert_array_equal(opened, Hashes().encode_texts(TEXTS))
    assert np.load(done.folder / "text_emb_00004.npy").shape == (3, 8)
    assert np.load(done.folder / "text_emb_00000.npy").dtype == np.float32


def test_the_sidecar_says_model_inputs_and_normalisation(tmp_path):
    done = encode(tmp_path, texts=[*TEXTS, "a text of five words"])
    about = json.loads((done.folder / "about.json").read_text())
    assert about == done.about
    assert about["model"] == "hashes"
    assert about["normalisation"] == "unit norm, by nnnorm"
    assert about["n_rows"] == 24
    assert about["dim"] == 8
    assert about["context"] == 3
    assert about["n_texts_cut"] == 1
    lines = (done.folder / "items.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [*TEXTS, "a text of five words"]


@pytest.mark.parametrize("batch_size", [1, 3, 5, 64])
@pytest.mark.parametrize("shard_rows", [1, 4, 23, 1000])
def test_neither_batches_nor_shards_change_the_rows(tmp_path, batch_size, shard_rows):
    encode(tmp_path, batch_size=batch_size, shard_rows=shard_rows)
    np.testing.assert_array_equal(nnnorm.open_embeddings(tmp_path), Hashes().encode_texts(TEXTS))


@pytest.mark.parametrize("at", [5, 12, 22])
def test_broken_off_and_resumed_every_byte_is_the_same(tmp_path, at):
    expected = contents(encode(tmp_path / "once").folder)
    break_off(tmp_path / "twice", at)
    encoder = Hashes()
    done = encode(tmp_path / "twice", encoder, resume=True)
    assert contents(done.folder) == expected
    assert done.n_resumed == at // 5 * 5
    assert encoder.seen == TEXTS[done.n_resumed :]
    assert os.listdir(tmp_path / "twice") == ["text_emb"]


def test_half_of_it_is_never_taken_for_the_whole(tmp_path):
    break_off(tmp_path, 12)
    assert os.listdir(tmp_path) == ["text_emb.partial"]
    with pytest.raises(NNNormError, match=r"is a folder without \.npy"):
        nnnorm.open_embeddings(tmp_path)


def test_broken_off_before_the_first_shard_nothing_is_left(tmp_path):
    (tmp_path / "mine").mkdir()
    for output in ("out", "new/clip/out", "mine", "mine/out"):
        break_off(tmp_path / output, 3)
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(tmp_path / "mine") == []


def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path):
    break_off(tmp_path, 12)
    (tmp_path / "text_emb.partial" / ".nnnorm-0123.tmp").write_bytes(b"half")
    folder = encode(tmp_path, resume=True).folder
    assert not list(folder.glob(".nnnorm*"))


def test_a_process_killed_before_its_first_sidecar_does_no_harm(tmp_path):
    (tmp_path / "text_emb.starting").mkdir()
    (tmp_path / "text_emb.starting" / "items.jsonl").write_text("half")
    encode(tmp_path)
    assert os.listdir(tmp_path) == ["text_emb"]


def test_resuming_what_is_whole_does_no_work(tmp_path):
    before = contents(encode(tmp_path).folder)
    encoder = Hashes()
    done = encode(tmp_path, encoder, resume=True)
    assert encoder.seen == []
    assert done.n_resumed == 23
    assert contents(done.folder) == before


def test_resuming_keeps_the_first_run_s_shards_and_takes_any_batch_size(tmp_path):
    break_off(tmp_path, 12)
    done = encode(tmp_path, resume=True, shard_rows=7, batch_size=2)
    assert done.about["shard_rows"] == 5
    np.testing.assert_array_equal(nnnorm.open_embeddings(tmp_path), Hashes().encode_texts(TEXTS))


def test_without_resume_nothing_is_written_over(tmp_path):
    before = contents(encode(tmp_path).folder)
    with pytest.raises(NNNormError, match="there are embeddings already; resume it with --resume"):
        encode(tmp_path)
    assert contents(tmp_path / "text_emb") == before


def test_without_resume_half_done_work_is_not_touched(tmp_path):
    break_off(tmp_path, 12)
    before = contents(tmp_path / "text_emb.partial")
    with pytest.raises(NNNormError, match="interrupted work is there; resume it with --resume"):
        encode(tmp_path)
    assert contents(tmp_path / "text_emb.partial") == before


@pytest.mark.parametrize("at", [None, 12])
def test_rows_of_other_texts_or_another_model_are_never_mixed(tmp_path, at):
    encode(tmp_path) if at is None else break_off(tmp_path, at)
    with pytest.raises(NNNormError, match=r"cannot resume .*made with other inputs"):
        encode(tmp_path, texts=[*TEXTS[:-1], "another"], resume=True)
    other = Hashes()
    other.about = {"weights_sha256": "f00"}
    with pytest.raises(NNNormError, match=r"other weights \(weights_sha256 None; now f00\)"):
        encode(tmp_path, other, resume=True)
    other.about = {"model": "another"}
    with pytest.raises(NNNormError, match=r"another model \(model hashes; now another\)"):
        encode(tmp_path, other, resume=True)


def test_a_model_known_by_its_weights_may_have_been_moved(tmp_path):
    here, there = Hashes(), Hashes()
    here.about = {"model": "here", "weights_sha256": "f00"}
    there.about = {"model": "there", "weights_sha256": "f00"}
    encode(tmp_path, here)
    assert encode(tmp_path, there, resume=True).n_resumed == 23


def test_a_sidecar_that_cannot_be_read_is_said(tmp_path):
    break_off(tmp_path, 12)
    (tmp_path / "text_emb.partial" / "about.json").write_text("{")
    with pytest.raises(NNNormError, match=r"its about\.json can't be read; remove the folder"):
        encode(tmp_path, resume=True)


def test_bad_input_is_found_before_anything_is_written(tmp_path):
    for texts, words in (([], "there are no texts to encode"), (["a", " "], "number 1")):
        with pytest.raises(NNNormError, match=words):
            encode(tmp_path / "out", texts=texts)
    with pytest.raises(NNNormError, match="hashes encodes texts, not images"):
        encode_to_folder(Hashes(), "images", ["a.png"], tmp_path / "out")
    for option in ("batch_size", "shard_rows"):
        with pytest.raises(NNNormError, match=f"{option} must be 1 or more; got 0"):
            encode(tmp_path / "out", **{option: 0})
    assert not (tmp_path / "out").exists()


def test_folders_above_the_output_are_made(tmp_path):
    encode(tmp_path / "clip" / "coco" / "out")
    assert (tmp_path / "clip/coco/out/text_emb/about.json").is_file()


def test_an_output_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(NNNormError, match="cannot make the folder"):
            encode(output)
    with pytest.raises(NNNormError, match="it is a file; choose another place"):
        encode(tmp_path / "file")


@pytest.mark.parametrize("resume", [False, True])
def test_what_is_there_and_is_something_else_is_not_touched(tmp_path, resume):
    (tmp_path / "text_emb").mkdir()
    (tmp_path / "text_emb" / "mine.npy").write_text("mine")
    with pytest.raises(NNNormError, match="it exists, and holds no embeddings of"):
        encode(tmp_path, resume=resume)
    assert (tmp_path / "text_emb" / "mine.npy").read_text() == "mine"
    assert os.listdir(tmp_path) == ["text_emb"]


def test_a_disk_that_is_full_at_the_sidecar_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NNNormError, match="No space left on device; nothing was changed"):
        encode(tmp_path / "new" / "out")
    assert os.listdir(tmp_path) == []


def test_a_file_that_changed_under_its_name_is_another_file(tmp_path, tiny_encoder):
    paths = tiny.draw_images(tmp_path / "pictures", n=6)
    clip = tiny_encoder("clip")
    encode_to_folder(clip, "images", paths, tmp_path, shard_rows=2)
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(NNNormError, match="made with other inputs"):
        encode_to_folder(clip, "images", paths, tmp_path, shard_rows=2, resume=True)


def draw_bitmaps(folder, n=4):
    """Pictures without compression, which have the same size whatever they show."""
    folder.mkdir()
    for number in range(n):
        Image.new("RGB", (90, 90), (9 * number, 0, 0)).save(folder / f"{number}.bmp")
    return sorted(folder.iterdir())


def stop_at(n_rows):
    def progress(done, total):
        if done == n_rows:
            raise NNNormError("broken off")

    return progress


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("is_tar", [True, False])
def test_a_file_that_changed_under_its_name_and_size_is_another_file(
    tmp_path, tiny_encoder, is_whole, is_tar
):
    paths, clip = draw_bitmaps(tmp_path / "pictures"), tiny_encoder("clip")

    def encode(**options):
        items = paths
        if is_tar:
            with tarfile.open(tmp_path / "pictures.tar", "w") as tar:
                for path in paths:
                    tar.add(path, path.name)
            samples = read_samples(tmp_path / "pictures.tar")
            items = [sample.members[".bmp"] for sample in samples]
        options |= {"shard_rows": 2, "batch_size": 2}
        return encode_to_folder(clip, "images", items, tmp_path, **options)

    with nullcontext() if is_whole else pytest.raises(NNNormError, match="broken off"):
        encode(progress=None if is_whole else stop_at(4))
    Image.new("RGB", (90, 90), "white").save(paths[0])
    with pytest.raises(NNNormError, match="it was made with files of other contents"):
        encode(resume=True)


def test_work_of_a_version_that_read_no_contents_is_resumed(tmp_path, tiny_encoder):
    paths, clip = draw_bitmaps(tmp_path / "pictures"), tiny_encoder("clip")
    done = encode_to_folder(clip, "images", paths, tmp_path)
    about = {key: value for key, value in done.about.items() if key != "contents_sha256"}
    (done.folder / "about.json").write_text(json.dumps(about))
    assert encode_to_folder(clip, "images", paths, tmp_path, resume=True).n_resumed == 4


def test_a_file_name_that_is_no_utf_8_is_kept_as_it_is(tmp_path, tiny_encoder):
    name = os.fsdecode(b"caf\xe9.png")

    (tiny.draw_images(tmp_path / "pictures", n=1)[0]).rename(tmp_path / "pictures" / name)
    done = encode_to_folder(
        tiny_encoder("clip"), "images", [tmp_path / "pictures" / name], tmp_path
    )
    assert b"caf\xe9.png" in (done.folder / "items.jsonl").read_bytes()


def test_progress_goes_up_to_all_rows(tmp_path):
    told = []
    encode(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (23, 23)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_parts_of_several_processes_make_the_bytes_of_one_run(tmp_path):
    expected = contents(encode(tmp_path / "once").folder)
    encoders = [Hashes() for _ in range(3)]
    for number in (2, 3, 1):
        done = encode(tmp_path / "parts", encoders[number - 1], share=Share(number, 3))
        assert done.n_missing == {2: 15, 3: 10, 1: 0}[number]
        if number != 1:
            assert done.folder.name == "text_emb.partial"
    assert contents(done.folder) == expected
    assert os.listdir(tmp_path / "parts") == ["text_emb"]
    assert encoders[1].seen == TEXTS[5:10] + TEXTS[20:]
    assert sorted(text for encoder in encoders for text in encoder.seen) == sorted(TEXTS)


def test_a_part_that_was_broken_off_is_taken_up_and_harms_no_other(tmp_path):
    encode(tmp_path, share=Share(2, 2))
    before = contents(tmp_path / "text_emb.partial")
    broken = Hashes()
    broken.breaks_at = TEXTS[3]
    with pytest.raises(NNNormError, match="broken off"):
        encode(tmp_path, broken, share=Share(1, 2))
    assert contents(tmp_path / "text_emb.partial") == before
    assert encode(tmp_path, share=Share(1, 2)).n_missing == 0
    np.testing.assert_array_equal(nnnorm.open_embeddings(tmp_path), Hashes().encode_texts(TEXTS))


def test_a_part_of_other_work_is_never_mixed_in(tmp_path):
    encode(tmp_path, share=Share(2, 2))
    with pytest.raises(NNNormError, match="made with other inputs"):
        encode(tmp_path, texts=TEXTS[1:], share=Share(1, 2))
    with pytest.raises(NNNormError, match=r"another dtype \(dtype float32; now bfloat16\)"):
        encode(tmp_path, half_precision(), share=Share(1, 2))


def begin_at_the_same_time(tmp_path, monkeypatch, **options):
    """Another process makes the folder between the look at it and its own attempt."""
    rename, first = os.rename, []

    def rename_after_another(source, target):
        if not first and str(target).endswith(".partial"):
            first.append(target)
            encode(tmp_path, share=Share(1, 2), **options)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_after_another)


def half_precision():
    encoder = Hashes()
    encoder.about = {"dtype": "bfloat16"}
    return encoder


OTHER_WORK = [
    ({"encoder": half_precision()}, r"another dtype \(dtype bfloat16; now float32\)"),
    ({"shard_rows": 7}, r"began it with --shard-rows 7; got 5; give all processes the same$"),
]


@pytest.mark.parametrize(("options", "words"), OTHER_WORK)
def test_other_work_that_begins_at_the_same_time_is_never_mixed_in(
    tmp_path, monkeypatch, options, words
):
    begin_at_the_same_time(tmp_path, monkeypatch, **options)
    with pytest.raises(NNNormError, match=words):
        encode(tmp_path, share=Share(2, 2))
    assert os.listdir(tmp_path) == ["text_emb.partial"]


@pytest.mark.parametrize(("options", "words"), OTHER_WORK)
def test_other_work_that_begins_after_the_plan_is_never_mixed_in(tmp_path, options, words):
    plan = plan_encoding(Hashes(), "texts", TEXTS, tmp_path, shard_rows=5, share=Share(2, 2))
    encode(tmp_path, share=Share(1, 2), **options)
    before = contents(tmp_path / "text_emb.partial")
    with pytest.raises(NNNormError, match=words):
        plan.run()
    assert contents(tmp_path / "text_emb.partial") == before


def test_other_work_that_ends_after_the_plan_is_not_taken_for_the_same(tmp_path):
    plan = plan_encoding(Hashes(), "texts", TEXTS, tmp_path)
    encode(tmp_path, half_precision())
    with pytest.raises(NNNormError, match="another dtype"):
        plan.run()


def test_a_process_that_joins_with_other_shards_is_refused_before_it_begins(tmp_path):
    encode(tmp_path, share=Share(1, 2))
    with pytest.raises(NNNormError, match="began it with --shard-rows 5; got 7"):
        plan_encoding(Hashes(), "texts", TEXTS, tmp_path, shard_rows=7, share=Share(2, 2))


def test_processes_that_begin_at_the_same_time_share_one_folder(tmp_path, monkeypatch):
    begin_at_the_same_time(tmp_path, monkeypatch)
    assert encode(tmp_path, share=Share(2, 2)).n_missing == 0
    assert os.listdir(tmp_path) == ["text_emb"]
    np.testing.assert_array_equal(nnnorm.open_embeddings(tmp_path), Hashes().encode_texts(TEXTS))


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "a/b", "-1/2", "1/2/3"])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(NNNormError, match=r"a shard is one of 1/n to n/n, such as 2/4; got"):
        Share.read(text)


def test_work_cut_into_small_batches_by_memory_is_whole(tmp_path):
    class Small(Hashes):
        def embed_texts(self, texts):
            if len(texts) > 1:
                raise MemoryError
            return super().embed_texts(texts)

    with pytest.warns(nnnorm.NNNormWarning, match=r"going on with [12] "):
        encode(tmp_path, Small())
    np.testing.assert_array_equal(nnnorm.open_embeddings(tmp_path), Hashes().encode_texts(TEXTS))


def test_the_time_in_the_model_is_part_of_the_time(tmp_path):
    done = encode(tmp_path)
    assert 0 < done.model_seconds < done.seconds
    assert "seconds" not in done.about
