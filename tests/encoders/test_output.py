"""Embeddings on disk are complete or absent, and resuming gives the same bits."""

import os
import tarfile

import numpy as np
import pytest

import nnnorm
from nnnorm import NNNormError
from nnnorm.encoders import Encoder, encode_to_folder, list_inputs
from nnnorm.encoders import output as module
from tests import tiny


class Letters(Encoder):
    name, dim, modalities = "letters", 3, ("texts",)

    def embed_texts(self, texts):
        return np.array([[1 + text.count(letter) for letter in "abc"] for text in texts])


class Means(Encoder):
    name, dim, modalities = "means", 3, ("images",)

    def embed_images(self, images):
        return np.array([1 + np.asarray(image).mean(axis=(0, 1)) for image in images])


TEXTS = [f"{'a' * (n % 5)}{'b' * (n % 3)}c" for n in range(50)]


def test_rows_are_those_of_the_encoder_in_one_file_with_its_description(tmp_path):
    done = encode_to_folder(Letters(), "texts", TEXTS, tmp_path, batch_size=7)
    assert done.folder == tmp_path / "text_emb"
    assert sorted(os.listdir(done.folder)) == ["about.json", "items.jsonl", "text_emb_0.npy"]
    rows = np.asarray(nnnorm.open_embeddings(done.folder))
    np.testing.assert_array_equal(rows, Letters().encode_texts(TEXTS))
    assert done.about["n_rows"] == 50


def test_interrupted_and_resumed_every_byte_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SAVE_EVERY", 2)

    def stop(done, total):
        if done > 30:
            raise KeyboardInterrupt

    once = encode_to_folder(Letters(), "texts", TEXTS, tmp_path / "once", batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        encode_to_folder(Letters(), "texts", TEXTS, tmp_path / "twice", batch_size=4, progress=stop)
    assert os.listdir(tmp_path / "twice") == ["text_emb.partial"]
    with pytest.raises(NNNormError, match="unfinished embeddings"):
        nnnorm.open_embeddings(tmp_path / "twice" / "text_emb.partial")
    twice = encode_to_folder(Letters(), "texts", TEXTS, tmp_path / "twice", batch_size=4)
    assert twice.n_resumed == 32
    for name in os.listdir(once.folder):
        assert (once.folder / name).read_bytes() == (twice.folder / name).read_bytes()


def test_finished_work_is_left_as_it_is_and_other_work_is_rejected(tmp_path):
    done = encode_to_folder(Letters(), "texts", TEXTS, tmp_path)
    again = encode_to_folder(Letters(), "texts", TEXTS, tmp_path)
    assert (again.folder, again.n_resumed) == (done.folder, 50)
    with pytest.raises(NNNormError, match="made with different items"):
        encode_to_folder(Letters(), "texts", TEXTS[::-1], tmp_path)

    class Other(Letters):
        name = "other"

    with pytest.raises(NNNormError, match=r"made with different model \(letters; now other\)"):
        encode_to_folder(Other(), "texts", TEXTS, tmp_path)
    (tmp_path / "mine" / "text_emb").mkdir(parents=True)
    with pytest.raises(NNNormError, match=r"has no about\.json of `nnnorm encode`"):
        encode_to_folder(Letters(), "texts", TEXTS, tmp_path / "mine")


def test_a_failure_before_anything_is_saved_leaves_nothing(tmp_path):
    class Broken(Letters):
        def embed_texts(self, texts):
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError):
        encode_to_folder(Broken(), "texts", TEXTS, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("bad", ["two\nlines", "\ud800", "ends\0"])
def test_ids_that_a_line_of_text_cannot_hold_are_rejected_before_the_work(tmp_path, bad):
    names = [f"text {number}" for number in range(len(TEXTS) - 1)]
    with pytest.raises(NNNormError, match=r"one line of text|isn't valid UTF-8|ends with a NUL"):
        encode_to_folder(Letters(), "texts", TEXTS, tmp_path, ids=[*names, bad])
    assert os.listdir(tmp_path) == []


def test_rows_keep_the_ids_that_were_given(tmp_path):
    names = [f"text {number}" for number in range(len(TEXTS))]
    done = encode_to_folder(Letters(), "texts", TEXTS, tmp_path, ids=names)
    assert nnnorm.open_embeddings(done.folder).ids.tolist() == names
    assert encode_to_folder(Letters(), "texts", TEXTS, tmp_path, ids=names).n_resumed == len(TEXTS)
    with pytest.raises(NNNormError, match="made with different ids"):
        encode_to_folder(Letters(), "texts", TEXTS, tmp_path, ids=names[::-1])
    for text, n_ids in (("only one\n", 1), ("", 0)):
        (done.folder / "ids.txt").write_text(text)
        words = rf"ids must be .* got {n_ids}.*correct ids.txt"
        with pytest.raises(NNNormError, match=words):
            nnnorm.open_embeddings(done.folder)
    (done.folder / "ids.txt").write_bytes(b"".join(b"\xff%d\n" % n for n in range(len(TEXTS))))
    with pytest.raises(NNNormError, match=r"isn't valid UTF-8; correct ids\.txt"):
        nnnorm.open_embeddings(done.folder)


def test_a_changed_picture_under_the_same_name_is_noticed(tmp_path):
    pictures = tiny.draw_images(tmp_path / "pictures", 4)
    encode_to_folder(Means(), "images", pictures, tmp_path / "out")
    pictures[0].write_bytes(pictures[1].read_bytes())
    with pytest.raises(NNNormError, match="made with different items"):
        encode_to_folder(Means(), "images", pictures, tmp_path / "out")


@pytest.mark.slow
def test_tar_files_of_webdataset_give_the_rows_of_the_same_files(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pictures = [path for path in tiny.draw_images(tmp_path / "p", 12) if path.suffix == ".png"]
    (tmp_path / "caption.txt").write_text("a red star")
    with tarfile.open(tmp_path / "00000.tar", "w") as tar:
        for number, path in enumerate(pictures):
            tar.add(path, f"{number:04d}.png")
            tar.add(tmp_path / "caption.txt", f"{number:04d}.txt")
    items = list_inputs(tmp_path / "00000.tar")
    done = encode_to_folder(Means(), "images", items, tmp_path / "out", batch_size=2)
    expected = Means().encode_images(pictures)
    np.testing.assert_array_equal(np.asarray(nnnorm.open_embeddings(done.folder)), expected)
    keys = [f"{number:04d}" for number in range(len(pictures))]
    assert nnnorm.open_embeddings(done.folder).ids.tolist() == keys
    assert list(list_inputs(tmp_path / "00000.tar", "texts")) == ["a red star"] * len(pictures)


@pytest.mark.slow
def test_a_folder_of_save_to_disk_is_read_by_its_columns(tmp_path):
    datasets = pytest.importorskip("datasets")
    pictures = tiny.draw_images(tmp_path / "p", 3)
    rows = {"image": [str(path) for path in pictures], "caption": ["a", "b", "c"]}
    made = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    made.save_to_disk(tmp_path / "saved")
    assert list(list_inputs(tmp_path / "saved", "texts")) == ["a", "b", "c"]
    images = list_inputs(tmp_path / "saved", "images")
    done = encode_to_folder(Means(), "images", images, tmp_path / "out")
    expected = Means().encode_images(pictures)
    np.testing.assert_array_equal(np.asarray(nnnorm.open_embeddings(done.folder)), expected)
    with pytest.raises(NNNormError, match="there is no column 'title'; it has: image, caption"):
        list_inputs(tmp_path / "saved", "texts", "title")
