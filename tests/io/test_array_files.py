"""Files and folders of arrays: shards in their order, and a sentence for what is no array.

Messages are compared word for word, for they are part of the interface: what was expected, what
arrived, what to do.
"""

import io
import os

import numpy as np
import pytest

from nnnorm.embeddings import open_embeddings
from nnnorm.errors import NNNormError
from tests.io.matrices import VALUES, bases, refusal, save_shards, whole_numbers

# Files that are refused


def assert_no_such_kind(message, suffix):
    assert message.startswith(f"can't be read as {suffix} (")
    assert message.endswith("); is it cut short, or another kind of file?")


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
    assert refusal("a\0b") == "can't be opened (embedded null byte); check the path"


@pytest.mark.skipif(os.name != "posix", reason="the wording is POSIX's")
def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy_bytes())
    assert refusal(tmp_path / "a.npy" / "b.npy") == (
        "can't be opened (Not a directory); check the path"
    )


@pytest.mark.parametrize("file", ["a.npy.gz", "a", "a.NPY", "a.csv"])
def test_an_unknown_suffix_is_refused(tmp_path, file):
    path = tmp_path / file
    path.write_bytes(npy_bytes())
    assert refusal(path) == (
        f"expected one of .npy, .npz, .parquet or a folder of them; got the suffix {path.suffix!r}"
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


def test_a_npy_file_named_npz_and_the_other_way_round_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(npy_bytes())
    assert_no_such_kind(refusal(tmp_path / "a.npz"), ".npz")
    (tmp_path / "a.npy").write_bytes(npz_bytes())
    assert_no_such_kind(refusal(tmp_path / "a.npy"), ".npy")


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


@pytest.mark.slow
@npy_and_npz
def test_a_damaged_file_is_refused_or_read_but_never_crashes(tmp_path, suffix, whole):
    path = tmp_path / f"a{suffix}"
    n_refused = 0
    for position in range(0, len(whole), 2):
        wrong = (0xFF ^ whole[position], ord("("), ord("9"))[position % 3]
        path.write_bytes(whole[:position] + bytes([wrong]) + whole[position + 1 :])
        try:
            open_embeddings(path)
        except NNNormError:
            n_refused += 1
    assert n_refused > 0


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
        "holds Python objects, which are never unpickled; save a float array with numpy.save"
    )
    assert not sprung.exists()


def test_a_damaged_array_that_is_called_object_is_not_taken_for_python_objects(tmp_path):
    path = tmp_path / "a.npz"
    whole = npz_bytes(object=VALUES)
    number = whole.index(VALUES.tobytes())
    path.write_bytes(whole[:number] + b"\x01" + whole[number + 1 :])
    assert_no_such_kind(refusal(path), ".npz")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            VALUES[0],
            "must have two dimensions (n_rows, dim); got shape (4,); a single row needs [None, :]",
        ),
        (VALUES[:0], "is empty: got shape (0, 4), need a row and a column"),
        (
            np.ones((2, 3), dtype=np.int64),
            whole_numbers("int64", (2, 3)),
        ),
    ],
    ids=["one dimension", "no rows", "integers"],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_file_with_another_form_is_refused(tmp_path, suffix, values, message):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(npy_bytes(values) if suffix == ".npy" else npz_bytes(embedding=values))
    assert refusal(path) == message


def test_several_arrays_without_the_name_are_refused_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=VALUES, texts=VALUES)
    assert refusal(path) == ("must hold one array, or one named 'embedding'; got 2: images, texts")


def test_two_spellings_of_the_name_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, embedding=VALUES, embeddings=VALUES)
    assert refusal(path) == (
        "must hold one array, or one named 'embedding'; got 2: embedding, embeddings"
    )


def test_a_npz_without_arrays_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path)
    assert refusal(path) == "must hold one array, or one named 'embedding'; got 0: none"


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


def test_shards_are_memory_mapped(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES[:3], VALUES[3:]])
    block = open_embeddings(tmp_path).rows(3, 7)
    assert any(isinstance(base, np.memmap) for base in bases(block))


def test_a_folder_with_both_kinds_is_refused_with_the_choice(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES])
    save_shards(tmp_path / "text_emb", [VALUES], stem="text_emb")
    assert refusal(tmp_path) == (
        f"holds both kinds of embeddings; pass {tmp_path / 'img_emb'} or {tmp_path / 'text_emb'}"
    )


def test_a_gap_in_the_numbers_is_refused(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES] * 5)
    (tmp_path / "img_emb" / "img_emb_2.npy").unlink()
    assert refusal(tmp_path) == (
        "the 4 shards must be numbered without gaps, but number 2 is missing; "
        "rows would be shifted against their metadata"
    )


def test_a_number_that_occurs_twice_is_refused(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES] * 2)
    np.save(tmp_path / "img_emb" / "img_emb_01.npy", VALUES)
    assert refusal(tmp_path) == (
        "the 3 shards must be numbered without gaps, but a number occurs twice; "
        "rows would be shifted against their metadata"
    )


def test_shards_with_other_dims_are_refused(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES, VALUES, VALUES[:, :3]])
    assert refusal(tmp_path) == "all shards must share dim; got 4 and 3"


def test_a_shard_with_another_form_is_refused(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES, VALUES[0]])
    assert refusal(tmp_path).startswith("must have two dimensions (n_rows, dim); got shape (4,)")


def test_a_shard_cut_short_is_refused(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES, VALUES])
    shard = tmp_path / "img_emb" / "img_emb_1.npy"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert_no_such_kind(refusal(tmp_path), ".npy")


def test_a_folder_in_the_place_of_a_shard_is_refused(tmp_path):
    save_shards(tmp_path / "img_emb", [VALUES])
    (tmp_path / "img_emb" / "img_emb_1.npy").mkdir()
    assert_no_such_kind(refusal(tmp_path), ".npy")


@pytest.mark.parametrize("inside", [[], ["img_emb"], ["notes.txt"], ["photos.npy"]], ids=str)
def test_a_folder_without_shards_is_refused(tmp_path, inside):
    for entry in inside:
        (tmp_path / entry).mkdir()
    assert refusal(tmp_path) == (
        "is a folder without numbered .npy or .parquet shards; "
        "expected a file, or a folder such as img_emb/ with img_emb_0.npy, img_emb_1.npy, …"
    )
