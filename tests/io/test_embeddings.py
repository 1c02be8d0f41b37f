"""Every source of embeddings gives the same matrix, with the name of its role."""

import os
import tracemalloc

import numpy as np
import pytest

import nnnorm
from nnnorm import NNN
from nnnorm.embeddings import check_same_dim, open_embeddings, open_matrix
from nnnorm.errors import NNNormError
from tests.io.matrices import IN_MEMORY, ON_DISK, VALUES, bases, small_blocks


@pytest.fixture(params=[*IN_MEMORY, *ON_DISK])
def source(request, tmp_path):
    """`VALUES`, carried by every kind of source in turn."""
    if request.param in IN_MEMORY:
        return IN_MEMORY[request.param](VALUES)
    path = tmp_path / request.param
    ON_DISK[request.param](path, VALUES)
    return path


def test_every_source_gives_the_same_matrix(source):
    opened = open_embeddings(source)
    assert opened.shape == (7, 4)
    assert (len(opened), opened.dim) == (7, 4)
    block = opened.rows(0, 7)
    assert block.dtype == np.float32
    assert block.dtype.isnative
    assert block.flags.c_contiguous
    np.testing.assert_array_equal(block, VALUES)


def test_every_source_has_the_same_scores_fingerprint_and_unit_rows(source):
    np.testing.assert_array_equal(open_matrix(source, name="scores"), VALUES)
    opened = open_embeddings(source, normalize=True)
    assert opened.fingerprint == open_embeddings(VALUES, normalize=True).fingerprint
    expected = VALUES / np.linalg.norm(VALUES, axis=1, keepdims=True)
    np.testing.assert_allclose(opened, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_what_is_handed_in_is_never_changed(kind):
    source = IN_MEMORY[kind](VALUES)
    opened = open_embeddings(source, normalize=True)
    opened.rows(0, 7)
    opened.take(np.arange(7))
    _ = opened.fingerprint
    np.testing.assert_array_equal(open_embeddings(source), VALUES)


def test_an_opened_matrix_is_not_opened_again():
    opened = open_embeddings(VALUES)
    assert open_embeddings(opened) is opened
    scores = open_matrix(VALUES, name="scores")
    assert open_matrix(scores, name="scores") is scores


def test_only_a_native_float32_array_in_c_order_is_read_without_copying():
    assert open_embeddings(VALUES).in_memory
    assert np.shares_memory(open_embeddings(VALUES).rows(2, 5), VALUES)
    for kind in (np.float16, np.float64, ">f4"):
        assert not open_embeddings(VALUES.astype(kind)).in_memory
    assert not open_embeddings(np.asfortranarray(VALUES)).in_memory
    assert not open_embeddings(VALUES, normalize=True).in_memory
    assert not open_embeddings(VALUES).joined(open_embeddings(VALUES)).in_memory


def test_the_name_is_the_role_and_the_path(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    opened = open_embeddings(tmp_path / "a.npy", name="gallery", normalize=True)
    assert opened.name == f"gallery ({tmp_path / 'a.npy'})"
    assert repr(opened) == f"Embeddings(gallery ({tmp_path / 'a.npy'}): 7 x 4, normalized)"
    assert repr(open_embeddings(VALUES)) == "Embeddings(embeddings: 7 x 4)"


def test_opening_under_another_name_leaves_the_first_as_it_was(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    opened = open_embeddings(tmp_path / "a.npy")
    queries = open_embeddings(opened, name="queries")
    assert opened.name == f"embeddings ({tmp_path / 'a.npy'})"
    assert queries.name == f"queries ({tmp_path / 'a.npy'})"
    assert np.shares_memory(queries.rows(0, 7), opened.rows(0, 7))


def test_a_name_that_was_given_stays():
    photos = open_embeddings(VALUES, name="photos of 2024")
    assert open_embeddings(photos, name="gallery") is photos


@pytest.mark.parametrize(
    "attribute", ["name", "ids", "dim", "shape", "normalized", "norm_range", "fingerprint"]
)
def test_an_opened_matrix_is_immutable(attribute):
    with pytest.raises(AttributeError):
        setattr(open_embeddings(VALUES), attribute, "another")


# Memory-mapping


def test_a_npy_file_is_memory_mapped_and_cannot_be_written_through_its_rows(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    block = open_embeddings(str(tmp_path / "a.npy")).rows(2, 5)
    assert any(isinstance(base, np.memmap) for base in bases(block))
    assert not block.flags.writeable


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_npy_file_is_never_loaded_whole(tmp_path, kind, normalize):
    values = np.ones((4096, 256), dtype=kind)
    np.save(tmp_path / "a.npy", values)
    with small_blocks(2**16):
        tracemalloc.start()
        try:
            opened = open_embeddings(tmp_path / "a.npy", normalize=normalize)
            opened.rows(4000, 4010)
            _ = opened.fingerprint
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < values.nbytes / 4


# As a numpy array


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, None])
def test_asarray_gives_float32_or_the_dtype_asked_for(dtype):
    array = np.asarray(open_embeddings(VALUES.astype(np.float64)), dtype=dtype)
    assert array.dtype == (dtype or np.float32)
    np.testing.assert_array_equal(array, VALUES)


def test_array_copies_and_asarray_need_not():
    opened = open_embeddings(VALUES)
    assert np.shares_memory(np.asarray(opened), VALUES)
    assert not np.shares_memory(np.array(opened), VALUES)


def test_matrices_of_other_dims_are_refused_with_both_shapes():
    gallery = open_embeddings(VALUES, name="gallery")
    references = open_embeddings(VALUES[:5, :3], name="references")
    with pytest.raises(NNNormError) as caught:
        check_same_dim(gallery, references)
    assert str(caught.value) == (
        "gallery and references must have the same dimension; got shapes (7, 4) and "
        "(5, 3). Were they encoded by different models?"
    )


def test_a_file_that_is_written_into_after_it_was_opened_is_noticed(tmp_path):
    path, rows = tmp_path / "gallery.npy", np.eye(6, dtype=np.float32)
    np.save(path, rows)
    opened = open_embeddings(path, name="gallery")
    replaced = tmp_path / "new.npy"
    np.save(replaced, rows[::-1])
    kept = opened.fingerprint
    replaced.replace(path)  # the old file stays open, whole
    assert opened.fingerprint == kept
    opened = open_embeddings(path, name="gallery")
    np.save(path, rows[::-1] * 2)
    os.utime(path, ns=(1, 1))
    with pytest.raises(NNNormError, match="changed on disk after it was opened"):
        NNN(2).fit(opened, rows, allow_gallery_rows=True)


USES = {
    "search": lambda rows: nnnorm.search(np.eye(6), rows, k=2),
    "search of queries": lambda rows: nnnorm.search(rows, np.eye(6), k=2),
    "a few hits of documents": lambda rows: nnnorm.search(np.eye(6), rows, parents=[0, 1] * 3, k=2),
    "evaluate": lambda rows: nnnorm.evaluate(np.eye(6), rows, None, truth=np.arange(6)),
    "copy to store": lambda rows: nnnorm.augmentation.augment_queries(rows, BIAS),
    "references": lambda rows: nnnorm.CSLS(2).fit(np.eye(6), rows, allow_gallery_rows=True),
}
BIAS = nnnorm.Bias(np.arange(6) / 10, 0.5, "nnn")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_every_use_notices_a_file_that_is_written_into(tmp_path, use, dtype):
    path, rows = tmp_path / "rows.npy", np.eye(6, dtype=dtype)
    np.save(path, rows)
    opened = open_embeddings(path, name="rows", normalize=False)
    USES[use](opened)
    np.save(path, rows[::-1])
    os.utime(path, ns=(1, 1))
    with pytest.raises(NNNormError, match="changed on disk after it was opened"):
        USES[use](opened)
