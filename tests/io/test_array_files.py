"""Files and folders of arrays: shards in their order, and a sentence for what is no array.

Messages are compared word for word, for they are part of the interface: what was expected, what
arrived, what to do.
"""

import io
import os
import re

import numpy as np
import pytest

from nnnorm.embeddings import open_embeddings
from tests.io.matrices import VALUES, refusal, save_shards

# Files that are refused


def assert_no_such_kind(message, suffix):
    assert message.startswith(f"can't be read as {suffix} (")
    assert message.endswith("); is it truncated, or another kind of file?")


def npy_bytes(values=VALUES):
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def npz_bytes(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays or {"embedding": VALUES})
    return file.getvalue()


def test_a_missing_file_is_refused(tmp_path):
    assert refusal(tmp_path / "a.npy") == "there is no such file; check the path"
    assert refusal(str(tmp_path / "no" / "folder")) == "there is no such file; check the path"


@pytest.mark.skipif(os.name != "posix", reason="the wording is POSIX's")
def test_a_text_taken_for_a_path_is_refused():
    caption = "a dog that runs on the beach " * 200
    assert refusal(caption) == "can't be opened (File name too long); check the path"
    # Each Python has its own words for the null byte.
    assert re.fullmatch(r"can't be opened \(.*embedded null .*\); check the path", refusal("a\0b"))


@pytest.mark.parametrize("file", ["a.npy.gz", "a", "a.NPY", "a.csv"])
def test_an_unknown_suffix_is_refused(tmp_path, file):
    path = tmp_path / file
    path.write_bytes(npy_bytes())
    assert refusal(path) == (
        "must be a file with the suffix .npy, .npz or .parquet, or a folder of such files; "
        f"got the suffix {path.suffix!r}"
    )


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"0.1 0.2 0.3\n" * 50, bytes(500), b"\x80\x04N."],
    ids=["empty", "text", "zeros", "pickle"],
)
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    assert_no_such_kind(refusal(path), suffix)


npy_and_npz = pytest.mark.parametrize(
    ("suffix", "whole"),
    [(".npy", npy_bytes()), (".npz", npz_bytes()), (".npz", npz_bytes(np.savez_compressed))],
    ids=["npy", "npz", "compressed npz"],
)


@npy_and_npz
def test_a_file_cut_short_anywhere_is_refused(tmp_path, suffix, whole):
    path = tmp_path / f"a{suffix}"
    for size in [*range(0, len(whole), 5), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert_no_such_kind(refusal(path), suffix)


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_pickled_objects_are_refused_and_never_unpickled(tmp_path, suffix):
    path, sprung = tmp_path / f"a{suffix}", tmp_path / "sprung"
    objects = np.array([[Trap(sprung)]], dtype=object)
    path.write_bytes(npy_bytes(objects) if suffix == ".npy" else npz_bytes(embedding=objects))
    assert refusal(path) == (
        "contains Python objects, which nnnorm never unpickles; "
        "save numbers or strings with numpy.save"
    )
    assert not sprung.exists()


def test_a_damaged_array_that_is_called_object_is_not_taken_for_python_objects(tmp_path):
    path = tmp_path / "a.npz"
    whole = npz_bytes(object=VALUES)
    number = whole.index(VALUES.tobytes())
    path.write_bytes(whole[:number] + b"\x01" + whole[number + 1 :])
    assert_no_such_kind(refusal(path), ".npz")


@pytest.mark.parametrize("names", [["images", "texts"], ["embedding", "embeddings"], []])
def test_a_npz_without_one_array_of_that_name_is_refused(tmp_path, names):
    np.savez(tmp_path / "a.npz", **dict.fromkeys(names, VALUES))
    assert refusal(tmp_path / "a.npz") == (
        f"must contain one array, or one named 'embedding'; got {len(names)}: "
        f"{', '.join(names) or 'none'}"
    )


# Folders of shards


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path):
    save_shards(tmp_path / "img_emb", [np.full((2, 3), n + 1.0) for n in range(11)])
    first_column = open_embeddings(tmp_path / "img_emb").rows(0, 22)[:, 0]
    np.testing.assert_array_equal(first_column, np.repeat(np.arange(1, 12), 2))


def test_other_files_beside_the_shards_are_passed_over(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES[:3], VALUES[3:]])
    (tmp_path / "img_emb" / "README.md").write_text("notes")
    (tmp_path / "img_emb" / "stats_0.json").write_text("{}")
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "metadata_0.parquet").write_bytes(b"")
    np.testing.assert_array_equal(open_embeddings(tmp_path), VALUES)


def test_a_folder_with_both_kinds_is_refused_with_the_choice(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES])
    save_shards(tmp_path / "text_emb", [VALUES], stem="text_emb")
    assert refusal(tmp_path) == (
        "is a folder without numbered .npy or .parquet shards; expected a file, or "
        f"{tmp_path / 'img_emb'} or {tmp_path / 'text_emb'}"
    )


@pytest.mark.parametrize(
    ("names", "what"),
    [([0, 1, 3, 4], "number 2 is missing"), ([0, 1, "01"], "a number occurs twice")],
)
def test_numbers_with_a_gap_or_twice_are_refused(tmp_path, names, what):
    for name in names:
        np.save(tmp_path / f"img_emb_{name}.npy", VALUES)
    assert refusal(tmp_path) == (
        f"the {len(names)} shards must be numbered without gaps, but {what}; add or "
        "rename files, because rows would no longer match their metadata"
    )


def test_shards_that_do_not_fit_are_refused(tmp_path):
    save_shards(tmp_path / "a", [VALUES, VALUES, VALUES[:, :3]])
    assert refusal(tmp_path / "a") == "all shards must have the same dimension; got 4 and 3"
    save_shards(tmp_path / "b", [VALUES, VALUES[0]])
    assert refusal(tmp_path / "b").startswith("must have two dimensions (n_rows, dim); got shape")
    save_shards(tmp_path / "c", [VALUES, VALUES])
    shard = tmp_path / "c" / "img_emb_1.npy"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert_no_such_kind(refusal(tmp_path / "c"), ".npy")
    shard.unlink()
    shard.mkdir()
    assert_no_such_kind(refusal(tmp_path / "c"), ".npy")


@pytest.mark.parametrize("inside", [[], ["img_emb"], ["notes.txt"], ["photos.npy"]], ids=str)
def test_a_folder_without_shards_is_refused(tmp_path, inside):
    for entry in inside:
        (tmp_path / entry).mkdir()
    assert refusal(tmp_path) == (
        "is a folder without numbered .npy or .parquet shards; "
        "expected a file, or a folder such as img_emb/ with img_emb_0.npy, …"
    )
