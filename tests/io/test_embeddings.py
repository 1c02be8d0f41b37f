"""The one door for arrays: every source gives the same matrix, every bad one a sentence.

Messages are compared word for word, for they are part of the interface: what was expected, what
arrived, what to do.
"""

import io
import os
import tempfile
import tracemalloc
import warnings
from collections import Counter
from functools import reduce
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nnnorm
from nnnorm.bias import Bias
from nnnorm.errors import NNNormError, NNNormWarning
from nnnorm.io import Embeddings, ScoreMatrix, check_same_dim, open_embeddings, open_matrix, stored
from nnnorm.io.stored import StoredMatrix

# Held exactly by float16, so that every float type carries the same numbers.
VALUES = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float16).astype(np.float32)

patient = settings(max_examples=min(60, settings().max_examples))


def small_blocks(n_bytes=64):
    """Read in blocks of a few rows, so that small matrices have many blocks."""
    return mock.patch.object(stored, "_BLOCK_BYTES", n_bytes)


def refusal(source, *, name="gallery", door=open_embeddings, **options):
    """The message with which `source` is refused; of a path, what comes after ``name (path)``."""
    with pytest.raises(NNNormError) as caught:
        door(source, name=name, **options)
    message = str(caught.value)
    assert "\n" not in message
    if isinstance(source, (str, os.PathLike)):
        prefix = f"{name} ({source})"
        assert message.startswith(prefix)
        message = message.removeprefix(prefix).removeprefix(": ").strip()
    return message


@pytest.fixture
def reads(monkeypatch):
    """Rows read, by the name of the matrix: every value of a row comes from one of two places."""
    counts = Counter()
    slices, takes = StoredMatrix._widened, StoredMatrix.take

    def widened(self, start, stop):
        counts[self.name] += stop - start
        return slices(self, start, stop)

    def take(self, indices, **options):
        counts[self.name] += len(indices)
        return takes(self, indices, **options)

    monkeypatch.setattr(StoredMatrix, "_widened", widened)
    monkeypatch.setattr(StoredMatrix, "take", take)
    return counts


# Sources: whatever carries the numbers, the same matrix comes in


class OnlyArray:
    """What pandas, jax and others are to numpy: something with ``__array__``."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


class OnlyDLPack:
    """A tensor of a library that numpy has never heard of."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def every_other_row(values):
    wide = np.full((2 * len(values), values.shape[1]), np.nan, dtype=values.dtype)
    wide[::2] = values
    return wide[::2]


def inner_columns(values):
    return np.pad(values, ((0, 0), (1, 2)), constant_values=np.nan)[:, 1:-2]


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


def torch_tensor(values, dtype="float32"):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return torch.tensor(values, dtype=getattr(torch, dtype))


IN_MEMORY = {
    "float16 array": lambda v: v.astype(np.float16),
    "float32 array": lambda v: v.copy(),
    "float64 array": lambda v: v.astype(np.float64),
    "array in F order": np.asfortranarray,
    "float64 array in F order": lambda v: np.asfortranarray(v, dtype=np.float64),
    "big-endian float16 array": lambda v: v.astype(">f2"),
    "big-endian float32 array": lambda v: v.astype(">f4"),
    "big-endian float64 array": lambda v: v.astype(">f8"),
    "little-endian float32 array": lambda v: v.astype("<f4"),
    "every other row of an array": every_other_row,
    "inner columns of an array": inner_columns,
    "array read backwards": lambda v: v[::-1, ::-1].copy()[::-1, ::-1],
    "read-only array": read_only,
    "numpy matrix": lambda v: v.copy().view(np.matrix),
    "list of lists": lambda v: v.tolist(),
    "tuple of arrays": tuple,
    "object with __array__": lambda v: OnlyArray(v.copy()),
    "object with only __dlpack__": lambda v: OnlyDLPack(v.copy()),
    "torch float16 tensor": lambda v: torch_tensor(v, "float16"),
    "torch float32 tensor": torch_tensor,
    "torch float64 tensor": lambda v: torch_tensor(v, "float64"),
    "torch tensor in F order": lambda v: torch_tensor(v.T.copy()).T,
    "torch tensor by DLPack alone": lambda v: OnlyDLPack(torch_tensor(v)),
}


def save_npz(path, save=np.savez, **arrays):
    save(path, **arrays)


def save_shards(folder, shards, stem="img_emb", pattern="{stem}_{number}.npy"):
    folder.mkdir(parents=True)
    for number, shard in enumerate(shards):
        np.save(folder / pattern.format(stem=stem, number=number), shard)


ON_DISK = {
    "a.npy": lambda path, v: np.save(path, v),
    "float16.npy": lambda path, v: np.save(path, v.astype(np.float16)),
    "float64.npy": lambda path, v: np.save(path, v.astype(np.float64)),
    "fortran.npy": lambda path, v: np.save(path, np.asfortranarray(v)),
    "big_endian.npy": lambda path, v: np.save(path, v.astype(">f4")),
    "one_array.npz": lambda path, v: save_npz(path, anything=v),
    "one_unnamed_array.npz": lambda path, v: np.savez(path, v),
    "compressed.npz": lambda path, v: save_npz(path, np.savez_compressed, embedding=v),
    "several.npz": lambda path, v: save_npz(path, ids=np.arange(7), embedding=v, norms=v[:, 0]),
    "several_plural.npz": lambda path, v: save_npz(path, ids=np.arange(7), embeddings=v),
    "img_emb": lambda path, v: save_shards(path, [v[:3], v[3:4], v[4:]]),
    "text_emb": lambda path, v: save_shards(path, [v[:3], v[3:]], stem="text_emb"),
    "root_with_images": lambda path, v: save_shards(path / "img_emb", [v[:3], v[3:]]),
    "root_with_texts": lambda path, v: save_shards(path / "text_emb", [v], stem="text_emb"),
    "padded": lambda path, v: save_shards(path, v[:, None], pattern="{stem}_{number:04d}.npy"),
    "mixed": lambda path, v: save_shards(path, [v[:2].astype(np.float16), v[2:].astype(">f8")]),
}


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


def test_every_source_gives_the_same_rows_and_columns_as_scores(source):
    np.testing.assert_array_equal(open_matrix(source, name="scores"), VALUES)


def test_every_source_has_the_same_fingerprint(source):
    assert open_embeddings(source).fingerprint == open_embeddings(VALUES).fingerprint


def test_every_source_can_be_normalised_as_it_is_read(source):
    expected = VALUES / np.linalg.norm(VALUES, axis=1, keepdims=True)
    np.testing.assert_allclose(open_embeddings(source, normalize=True), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_what_is_handed_in_is_never_changed(kind):
    source = IN_MEMORY[kind](VALUES)
    opened = open_embeddings(source, normalize=True, metric="cosine")
    opened.rows(0, 7)
    opened.take(np.arange(7))
    _ = opened.fingerprint
    np.testing.assert_array_equal(open_embeddings(source), VALUES)


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_file_is_never_changed(kind, tmp_path):
    path = tmp_path / kind
    ON_DISK[kind](path, VALUES)
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    before = [file.read_bytes() for file in files]
    open_embeddings(path, normalize=True, metric="cosine").rows(0, 7)
    assert [file.read_bytes() for file in files] == before


def test_a_path_may_be_a_string(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    np.testing.assert_array_equal(open_embeddings(str(tmp_path / "a.npy")), VALUES)


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


def bases(array):
    while array is not None:
        yield array
        array = getattr(array, "base", None)


def test_a_npy_file_is_memory_mapped(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    block = open_embeddings(tmp_path / "a.npy").rows(2, 5)
    assert any(isinstance(base, np.memmap) for base in bases(block))


def test_a_mapped_file_cannot_be_written_through_its_rows(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)
    assert not open_embeddings(tmp_path / "a.npy").rows(0, 7).flags.writeable


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


# Rows


@st.composite
def shards(draw):
    """Shards of any lengths and float types, and what they are together."""
    dim = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    kinds = draw(st.lists(st.sampled_from(["<f2", ">f4", "<f4", "<f8"]), min_size=5, max_size=5))
    order = draw(st.sampled_from("CF"))
    whole = np.arange(1, sum(lengths) * dim + 1, dtype=np.float32).reshape(-1, dim)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    cast = [np.asarray(p, dtype=k, order=order) for p, k in zip(parts, kinds, strict=False)]
    return cast, whole


@patient
@given(shards(), st.data())
def test_rows_across_shard_borders_are_those_of_the_whole(sharded, data):
    parts, whole = sharded
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole) + 2))
    with tempfile.TemporaryDirectory() as place:
        save_shards(Path(place) / "img_emb", parts)
        block = open_embeddings(place).rows(start, stop).copy()
    assert block.dtype == np.float32
    assert block.flags.c_contiguous
    np.testing.assert_array_equal(block, whole[start:stop])


@patient
@given(shards())
def test_joined_parts_are_the_whole(sharded):
    parts, whole = sharded
    opened = reduce(Embeddings.joined, map(open_embeddings, parts))
    assert opened.shape == whole.shape
    assert opened.fingerprint == open_embeddings(whole).fingerprint
    np.testing.assert_array_equal(opened, whole)


@patient
@given(shards())
def test_joined_normalised_parts_are_the_whole_normalised(sharded):
    parts, whole = sharded
    opened = reduce(Embeddings.joined, (open_embeddings(p, normalize=True) for p in parts))
    expected = open_embeddings(whole, normalize=True)
    assert opened.normalized
    assert opened.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(opened, expected)


def test_joining_keeps_each_side_as_it_was_opened():
    raw, unit = open_embeddings(VALUES), open_embeddings(VALUES, normalize=True)
    for pair in ((raw, unit), (unit, raw)):
        joined = pair[0].joined(pair[1])
        assert len(joined) == 14
        np.testing.assert_array_equal(joined, np.vstack([np.asarray(e) for e in pair]))


def test_joining_copies_nothing_and_names_both():
    first, second = open_embeddings(VALUES, name="gallery"), open_embeddings(VALUES, name="bank")
    joined = first.joined(second)
    assert joined.name == "gallery and bank"
    assert np.shares_memory(joined.rows(1, 3), VALUES)
    assert len(first) == len(second) == 7


@patient
@given(shards(), st.data(), st.booleans())
def test_take_copies_the_rows_asked_for_in_that_order(sharded, data, normalize):
    parts, whole = sharded
    opened = reduce(Embeddings.joined, (open_embeddings(p, normalize=normalize) for p in parts))
    wanted = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8))
    taken = opened.take(np.array(wanted, dtype=np.intp))
    assert taken.dtype == np.float32
    assert taken.shape == (len(wanted), whole.shape[1])
    assert not any(np.shares_memory(taken, part) for part in parts)
    np.testing.assert_array_equal(taken, np.asarray(opened)[wanted])


@pytest.mark.parametrize("index", [-8, -1, 7, 100])
def test_take_refuses_an_index_outside_instead_of_guessing(index):
    with pytest.raises(IndexError):
        open_embeddings(VALUES).take(np.array([0, index]))


@patient
@given(shards(), st.integers(1, 200), st.booleans())
def test_blocks_cover_all_rows_once_and_in_order(sharded, n_bytes, normalize):
    parts, _ = sharded
    opened = reduce(Embeddings.joined, (open_embeddings(p, normalize=normalize) for p in parts))
    with small_blocks(n_bytes):
        blocks = list(opened.blocks())
    ends = [start + len(block) for start, block in blocks]
    assert [start for start, _ in blocks] == [0, *ends[:-1]]
    assert ends[-1] == len(opened)
    assert all(len(one) >= len(next_one) for (_, one), (_, next_one) in pairwise(blocks))
    assert all(4 * block.size <= max(n_bytes, 4 * opened.dim) for _, block in blocks)
    np.testing.assert_array_equal(np.vstack([block for _, block in blocks]), np.asarray(opened))


@patient
@given(shards(), st.integers(1, 200))
def test_block_size_changes_neither_values_nor_fingerprint(sharded, n_bytes):
    parts, whole = sharded
    expected = open_embeddings(whole, normalize=True)
    with small_blocks(n_bytes):
        opened = open_embeddings(reduce(Embeddings.joined, map(open_embeddings, parts)))
        unit = open_embeddings(opened, normalize=True)
        assert unit.fingerprint == expected.fingerprint
        np.testing.assert_array_equal(unit, expected)


# As a numpy array


def test_asarray_gives_float32_rows():
    array = np.asarray(open_embeddings(VALUES.astype(np.float64)))
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, VALUES)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_asarray_gives_the_dtype_asked_for(dtype):
    array = np.asarray(open_embeddings(VALUES), dtype=dtype)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, VALUES)


def test_array_copies_and_asarray_need_not():
    opened = open_embeddings(VALUES)
    assert np.shares_memory(np.asarray(opened), VALUES)
    assert not np.shares_memory(np.array(opened), VALUES)


# Normalising: explicit, never silent


def test_nothing_is_normalised_unless_asked():
    opened = open_embeddings(3 * VALUES)
    assert not opened.normalized
    np.testing.assert_array_equal(opened, 3 * VALUES)


nonzero_rows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(0.125, 1, width=32) | st.floats(-1, -0.125, width=32),
)


@patient
@given(nonzero_rows, st.integers(-90, 58), st.integers(16, 200))
def test_normalised_rows_have_unit_norm_at_any_scale(rows, exponent, n_bytes):
    rows = np.ldexp(rows, exponent)
    with small_blocks(n_bytes):
        opened = open_embeddings(rows, normalize=True)
    assert opened.normalized
    unit = np.asarray(opened).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(np.sign(unit), np.sign(rows))


def test_normalising_an_opened_matrix_leaves_the_first_as_it_was():
    raw = open_embeddings(3 * VALUES)
    unit = open_embeddings(raw, normalize=True)
    assert unit.normalized
    assert not raw.normalized
    np.testing.assert_array_equal(raw, 3 * VALUES)
    np.testing.assert_array_equal(unit, open_embeddings(3 * VALUES, normalize=True))


def test_normalising_twice_is_normalising_once():
    unit = open_embeddings(VALUES, normalize=True)
    assert open_embeddings(unit, normalize=True) is unit
    assert open_embeddings(unit, normalize=True, metric="cosine") is unit
    assert open_embeddings(unit) is unit


def test_norm_range_gives_the_smallest_and_the_largest_norm():
    rows = np.array([[3.0, 4.0], [0.0, 0.5], [1.0, 0.0]])
    with small_blocks(8):
        assert open_embeddings(rows).norm_range == (0.5, 5.0)


# Norms that suggest cosine are warned of, once


def test_different_norms_are_warned_of(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[3.0, 4.0], [1.0, 0.0]]))
    with pytest.warns(NNNormWarning) as caught:
        open_embeddings(tmp_path / "a.npy", name="gallery")
    assert str(caught[0].message) == (
        f"rows of gallery ({tmp_path / 'a.npy'}) have norms 1 to 5, so scores are raw inner "
        "products; for cosine pass normalize=True (--normalize), and if inner products are meant, "
        "normalize=False (--no-normalize)"
    )
    assert caught[0].filename == __file__


@pytest.fixture
def no_warnings():
    """Fail on any warning, also on the one that the test settings ignore."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("normalize", [False, True])
def test_a_choice_about_norms_silences_the_warning(no_warnings, normalize):
    open_embeddings(3 * VALUES, normalize=normalize)


def test_the_warning_of_norms_points_at_the_line_of_the_caller():
    rows = np.array([[3.0, 4.0], [0.0, 1.0]])
    for call in (open_embeddings, lambda rows: nnnorm.search(rows, rows, k=1)):
        with pytest.warns(NNNormWarning) as caught:
            call(rows)
        assert {one.filename for one in caught} == {__file__}


def test_rows_that_are_normalised_already_can_t_be_opened_raw():
    opened = open_embeddings(2 * np.eye(2), name="gallery", normalize=True)
    assert refusal(opened, normalize=False) == (
        "the rows of gallery are normalised already, but normalize is False; leave out normalize, "
        "or open the original array or path again"
    )


@pytest.mark.parametrize("normalize", ["yes", 1, "False"])
def test_normalize_is_true_false_or_none(normalize):
    assert refusal(np.eye(2), normalize=normalize) == (
        f"normalize must be True, False or None; got {normalize!r}"
    )


@pytest.mark.parametrize("factor", [0.991, 1.009])
def test_norms_within_one_percent_are_not_warned_of(no_warnings, factor):
    open_embeddings(np.array([[2.0, 0.0], [0.0, 2.0 * factor]]))


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_norms_beyond_one_percent_are_warned_of(factor):
    with pytest.warns(NNNormWarning, match="^rows of embeddings have norms"):
        open_embeddings(np.array([[2.0, 0.0], [0.0, 2.0 * factor]]))


def test_what_was_opened_is_not_warned_of_again(no_warnings):
    opened = open_embeddings(VALUES, normalize=False)
    open_embeddings(open_embeddings(opened, name="gallery"), name="queries")
    opened.subset(np.arange(3))


# One read finds everything


def test_norms_and_fingerprint_come_from_the_read_that_opens(reads):
    opened = open_embeddings(VALUES.astype(np.float16), name="gallery")
    _ = opened.norm_range, opened.fingerprint
    unit = open_embeddings(opened, normalize=True, metric="cosine", name="queries")
    _ = unit.norm_range, unit.fingerprint
    assert reads == {"gallery": 7}


@pytest.mark.parametrize("normalize", [False, True])
def test_the_mean_comes_from_the_read_that_opens(reads, normalize):
    opened = open_embeddings(VALUES, name="gallery", normalize=normalize)
    found = opened.mean()
    assert reads == {"gallery": 7}
    np.testing.assert_allclose(found, np.asarray(opened).mean(axis=0), rtol=1e-6, atol=1e-7)
    both = opened.joined(open_embeddings(3 * VALUES, normalize=False))
    np.testing.assert_allclose(both.mean(), np.asarray(both).mean(axis=0), rtol=1e-6, atol=1e-7)


def test_a_fingerprint_that_was_left_out_is_one_more_read_for_all_views(reads):
    opened = open_embeddings(VALUES, fingerprint=False)
    view = open_embeddings(opened, name="queries")
    assert view.fingerprint == opened.fingerprint
    assert reads == {"embeddings": 7, "queries": 7}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("rule", "n_sampled"),
    [("first", 512), ("second", 4 * 512 + 16_384)],  # for the reliability; for the density too
)
def test_a_fit_reads_its_gallery_three_times_and_its_bank_twice(
    tmp_path, reads, normalize, rule, n_sampled
):
    """Once to check them and once to multiply, and a sample of the items for the choice of alpha.

    Items that are repeated or among the references are looked for in a third read of the gallery.
    """
    rng = np.random.default_rng(0)
    for name, n_rows in (("gallery", 20_000), ("references", 400)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(n_rows, 8)).astype(np.float16))
    gallery, references = (
        open_embeddings(tmp_path / f"{name}.npy", name=name, normalize=normalize)
        for name in ("gallery", "references")
    )
    nnnorm.NNN(rule=rule).fit(gallery, references, solver="exact", duplicates="keep")
    by_role = {name.partition(" ")[0]: n_rows for name, n_rows in reads.items()}
    assert 2 * 400 <= by_role["references"] <= 2 * 400 + 64
    assert 3 * 20_000 <= by_role["gallery"] <= 3 * 20_000 + n_sampled + 64


# Fingerprint: of the float32 values, and of nothing else


def test_a_fingerprint_is_32_hex_digits():
    fingerprint = open_embeddings(VALUES).fingerprint
    assert len(fingerprint) == 32
    assert set(fingerprint) <= set("0123456789abcdef")


def test_a_fingerprint_stays_the_same_between_releases():
    """Stored with every bias, so that a change here would disown all saved ones."""
    opened = open_embeddings(np.arange(1, 7, dtype=np.float32).reshape(3, 2))
    assert opened.fingerprint == "c17e6a64db598031afaa7e18fbfd9107"


def test_a_normalised_fingerprint_says_so():
    raw = open_embeddings(VALUES)
    unit = open_embeddings(VALUES, normalize=True)
    assert unit.fingerprint == raw.fingerprint + ":unit"
    assert open_embeddings(raw, normalize=True).fingerprint == unit.fingerprint


@patient
@given(nonzero_rows, st.data())
def test_one_changed_value_changes_the_fingerprint(rows, data):
    row = data.draw(st.integers(0, rows.shape[0] - 1))
    column = data.draw(st.integers(0, rows.shape[1] - 1))
    changed = rows.copy()
    changed[row, column] = np.nextafter(changed[row, column], np.float32(2))
    assert open_embeddings(rows).fingerprint != open_embeddings(changed).fingerprint


def test_another_order_of_rows_or_columns_changes_the_fingerprint():
    prints = {
        open_embeddings(VALUES).fingerprint,
        open_embeddings(VALUES[::-1]).fingerprint,
        open_embeddings(VALUES[:, ::-1]).fingerprint,
        open_embeddings(VALUES[[1, 0, 2, 3, 4, 5, 6]]).fingerprint,
    }
    assert len(prints) == 4


def test_another_shape_of_the_same_numbers_changes_the_fingerprint():
    flat = np.arange(1, 13, dtype=np.float32)
    prints = {open_embeddings(flat.reshape(n, -1)).fingerprint for n in (1, 2, 3, 4, 6, 12)}
    assert len(prints) == 6


# Cosine


def unit_rows(n_rows=50, dim=512):
    rows = np.random.default_rng(1).normal(size=(n_rows, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_cosine_accepts_unit_rows_even_rounded_to_float16(kind):
    opened = open_embeddings(unit_rows().astype(kind), metric="cosine")
    assert not opened.normalized


def test_cosine_refuses_other_norms_and_names_them():
    rows = np.array([[3.0, 4.0], [1.0, 0.0], [0.5, 0.0]])
    expected = (
        "cosine was asked for, but the rows of gallery do not have unit norm (norms 0.5 to 5); "
        "normalise them, or pass normalize=True (--normalize)"
    )
    assert refusal(rows, metric="cosine") == expected
    assert refusal(open_embeddings(rows, name="gallery"), metric="cosine") == expected


@pytest.mark.parametrize("norm", [0.99, 1.01])
def test_cosine_refuses_a_single_row_one_percent_off_in_a_late_block(norm):
    rows = unit_rows()
    rows[48] *= norm
    with small_blocks(4 * 512 * 10):
        message = refusal(rows, metric="cosine")
    assert f"{norm:.4g}" in message.partition("(norms ")[2].partition(")")[0].split(" to ")


def test_cosine_accepts_any_norms_once_normalised():
    assert open_embeddings(3 * VALUES, metric="cosine", normalize=True).normalized
    unit = open_embeddings(3 * VALUES, normalize=True)
    assert open_embeddings(unit, metric="cosine") is unit


def test_an_unknown_metric_is_refused():
    assert refusal(VALUES, metric="dot") == "metric must be 'ip' or 'cosine'; got 'dot'"


# Refused: form


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            np.ones(4),
            "gallery must have two dimensions (n_rows, dim); got shape (4,); "
            "a single row needs [None, :]",
        ),
        (
            np.ones((2, 3, 4)),
            "gallery must have two dimensions (n_rows, dim); got shape (2, 3, 4)",
        ),
        (np.float32(1), "gallery must have two dimensions (n_rows, dim); got shape ()"),
        (np.ones((0, 4)), "gallery is empty: got shape (0, 4), need a row and a column"),
        (np.ones((4, 0)), "gallery is empty: got shape (4, 0), need a row and a column"),
        (
            [],
            "gallery must have two dimensions (n_rows, dim); got shape (0,); "
            "a single row needs [None, :]",
        ),
    ],
    ids=["one dimension", "three dimensions", "a number", "no rows", "no columns", "empty list"],
)
def test_another_shape_than_rows_and_columns_is_refused(source, message):
    assert refusal(source) == message


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (np.ones((2, 2), dtype=np.uint8), "uint8"),
        (np.ones((2, 2), dtype=np.complex64), "complex64"),
        (np.ones((2, 2), dtype=bool), "bool"),
        (np.array([["1.0", "2.0"]]), "<U3"),
        (np.array([[b"1.0", b"2.0"]]), "|S3"),
        (np.zeros((2, 2), dtype="datetime64[s]"), "datetime64[s]"),
        (np.zeros((2, 2), dtype=[("x", "<f4")]), "[('x', '<f4')]"),
        ([[True, False]], "bool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_float_is_refused_with_its_dtype(source, dtype):
    assert refusal(source) == (
        f"gallery must be float16, float32 or float64; got {dtype}: "
        "convert with .astype(numpy.float32)"
    )


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="longdouble is float64 here")
def test_a_longer_float_is_refused():
    assert refusal(np.ones((2, 2), dtype=np.longdouble)).startswith(
        f"gallery must be float16, float32 or float64; got {np.dtype(np.longdouble)}: "
    )


@pytest.mark.parametrize("source", [np.array([[1.0, None]]), [[1.0, None]]])
def test_python_objects_are_refused(source):
    assert refusal(source) == (
        "gallery must be float16, float32 or float64; got object: a "
        f"{type(source).__name__} of Python objects; pass an array of floats"
    )


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (None, "got a NoneType where an array or a path was expected"),
        ({"a": 1.0}, "got a dict where an array or a path was expected"),
        (
            Bias([0.5], 1.0, "nnn"),
            "got a Bias where an array or a path was expected; the order is (queries, gallery, "
            "bias)",
        ),
    ],
    ids=["nothing", "a dict", "a bias"],
)
def test_what_is_no_array_at_all_is_named(source, what):
    assert refusal(source) == f"gallery: {what}"


def whole_numbers(dtype, shape):
    return (
        f"holds integers ({dtype}, shape {shape}), which look like truth or row numbers; expected "
        "embeddings of shape (n_rows, dim), float16, float32 or float64. Were the arguments "
        "swapped?"
    )


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint32"])
@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_whole_numbers_are_taken_for_truth_and_refused(dtype, shape):
    source = np.ones(shape, dtype=dtype)
    assert refusal(source) == f"gallery {whole_numbers(dtype, shape)}"


class Frame:
    """A table with a column of names, as pandas hands it to numpy."""

    columns = ("file", "x")

    def __array__(self, dtype=None, copy=None):
        return np.array([["a.jpg", 0.5]], dtype=object)


def test_a_table_with_other_columns_says_to_pass_the_numbers_alone():
    assert refusal(Frame()) == (
        "gallery must be float16, float32 or float64; got object: the table has columns that are "
        "not numbers; pass those of the embedding alone, such as frame[columns].to_numpy(), or "
        "numpy.stack(frame['embedding']) for lists"
    )


def test_a_masked_array_is_refused_even_where_nothing_is_masked():
    assert refusal(np.ma.masked_array(VALUES)) == (
        "gallery is a masked array; fill it or drop the masked rows first"
    )


def assert_unreadable(message, source_type):
    assert message.startswith(f"gallery can't be read as a numpy array ({source_type}: ")
    assert message.endswith(
        "); pass a float array on the CPU (torch: tensor.detach().cpu().float())"
    )


def test_a_ragged_list_is_refused():
    message = refusal([[1.0, 2.0], [3.0]])
    assert_unreadable(message, "list")
    assert "inhomogeneous shape" in message


def test_a_torch_tensor_that_requires_grad_is_refused():
    message = refusal(torch_tensor(VALUES).requires_grad_())
    assert_unreadable(message, "Tensor")
    assert "requires grad" in message


def test_a_torch_bfloat16_tensor_is_refused():
    message = refusal(torch_tensor(VALUES, "bfloat16"))
    assert_unreadable(message, "Tensor")
    assert "BFloat16" in message


def test_a_torch_tensor_of_integers_is_refused():
    message = refusal(torch_tensor(np.ones((2, 2)), "int64"))
    assert message == f"gallery {whole_numbers('int64', (2, 2))}"


@pytest.mark.slow
def test_a_dlpack_tensor_of_a_kind_numpy_lacks_is_refused():
    assert_unreadable(refusal(OnlyDLPack(torch_tensor(VALUES, "bfloat16"))), "OnlyDLPack")


def test_a_library_that_fails_without_a_word_is_still_named():
    class Silent:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError

    message = refusal(Silent())
    assert_unreadable(message, "Silent")
    assert "(Silent: RuntimeError)" in message


# Refused: values


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.nan, "NaN"),
        (np.inf, "infinity (or a number beyond float32)"),
        (-np.inf, "infinity (or a number beyond float32)"),
        (1e39, "infinity (or a number beyond float32)"),
        (-1e300, "infinity (or a number beyond float32)"),
    ],
)
@pytest.mark.parametrize("row", [0, 6])
def test_a_value_that_is_not_finite_is_refused_by_row_and_column(row, value, what):
    rows = VALUES.astype(np.float64)
    rows[row, 2] = value
    assert refusal(rows) == (
        f"gallery must be finite; row {row} has {what} in column 2. Remove or re-encode that row"
    )


@patient
@given(st.sets(st.integers(0, 39), min_size=1), st.integers(1, 400), st.sampled_from("fFi"))
def test_the_first_bad_row_is_named_whatever_the_block(bad, n_bytes, form):
    rows = np.ones((40, 3), dtype=np.float32, order="F" if form == "F" else "C")
    rows[sorted(bad), 1] = np.inf if form == "i" else np.nan
    with small_blocks(n_bytes):
        assert f"row {min(bad)} has " in refusal(rows)


@patient
@given(st.integers(0, 19), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_a_bad_row_in_a_late_shard_is_named_by_its_number_in_the_whole(bad, lengths):
    rows = np.ones((20, 3), dtype=np.float16)
    rows[bad, 2] = np.nan
    with tempfile.TemporaryDirectory() as place:
        borders = [b for b in np.cumsum(lengths) if b < 20]
        save_shards(Path(place) / "img_emb", np.split(rows, borders))
        assert refusal(place) == (
            f"must be finite; row {bad} has NaN in column 2. Remove or re-encode that row"
        )


def test_a_zero_row_is_refused_by_number():
    rows = VALUES.copy()
    rows[[3, 5]] = 0
    assert refusal(rows) == (
        "gallery row 3 is all zeros (2 such of 7 rows) and scores 0 with everything; "
        "a failed encoding? Remove or re-encode such rows"
    )


@pytest.mark.parametrize("role", ["queries", "references"])
def test_a_zero_row_of_queries_is_not_called_an_item(role):
    with pytest.raises(NNNormError) as error:
        open_embeddings(np.zeros((1, 3)), name=role)
    assert str(error.value).startswith(f"{role} row 0 is all zeros (1 such of 1 rows) and scores 0")
    assert "item" not in str(error.value)


def test_a_zero_row_in_a_late_block_is_refused_by_number():
    rows = np.ones((1000, 3), dtype=np.float32)
    rows[987] = -0.0
    with small_blocks():
        assert refusal(rows).startswith("gallery row 987 is all zeros (1 such of 1000 rows) ")


def test_a_row_whose_squares_underflow_is_no_zero_row():
    rows = np.array([[1e-30, 0.0], [0.0, -1e-38], [1.0, 1.0]], dtype=np.float32)
    low, high = open_embeddings(rows).norm_range
    assert low == pytest.approx(1e-38)
    assert high == pytest.approx(2**0.5)


def test_a_row_too_large_for_float32_products_is_refused_by_number():
    rows = VALUES.copy()
    rows[4] = [1e20, -2.5e20, 0, 1]
    assert refusal(rows) == (
        "gallery row 4 is too large for float32 products (its entries reach 2.5e+20); "
        "scale the embeddings down"
    )


@pytest.mark.parametrize("dim", [3, 7, 33, 100, 170, 511])
def test_a_row_at_the_very_edge_of_float32_products_is_taken_or_refused_by_number(dim):
    edge = np.float32(np.sqrt(np.finfo(np.float32).max / dim))
    steps = np.arange(-60, 60, dtype=np.int32)
    for value in (edge.view(np.int32) + steps).view(np.float32):
        row = np.full((1, dim), value)
        try:
            open_embeddings(row)
        except NNNormError:
            assert refusal(row).startswith("gallery row 0 is too large for float32 products (its ")


def test_bad_values_in_a_file_are_refused_with_its_path(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.where(np.eye(7, 4) > 0, np.nan, VALUES))
    assert refusal(path) == (
        "must be finite; row 0 has NaN in column 0. Remove or re-encode that row"
    )


# Refused: files


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


@pytest.mark.parametrize("file", ["a.csv", "a.JSONL", "a.txt"])
def test_a_text_file_is_refused_with_advice(tmp_path, file):
    path = tmp_path / file
    path.write_text("0.5,0.5")
    assert refusal(path) == (
        f"expected one of .npy, .npz, .parquet or a folder of them; got the suffix {path.suffix!r}."
        " Read a text file yourself, for instance with numpy.loadtxt or pandas.read_csv, and pass "
        "its float columns as an array"
    )


@pytest.mark.parametrize("file", ["a.npy.gz", "a", "a.NPY"])
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


def test_a_lack_of_memory_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(npz_bytes())
    with (
        mock.patch.object(np.lib.format, "read_magic", side_effect=MemoryError),
        pytest.raises(MemoryError),
    ):
        open_embeddings(path)


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
    odd = tmp_path / "img_emb" / "img_emb_1.npy"
    odd.mkdir()
    assert refusal(tmp_path) == f"{odd} is a folder; expected a file"


@pytest.mark.parametrize("inside", [[], ["img_emb"], ["notes.txt"]], ids=str)
def test_a_folder_without_shards_is_refused(tmp_path, inside):
    for entry in inside:
        (tmp_path / entry).mkdir()
    assert refusal(tmp_path) == (
        "is a folder without .npy or .parquet shards; "
        "expected a file, or a folder such as img_emb/ with img_emb_0.npy, img_emb_1.npy, …"
    )


def test_a_folder_of_files_without_numbers_says_what_names_it_expects(tmp_path):
    for name in ("photos.npy", "more.npy", "notes.txt"):
        np.save(tmp_path / name, VALUES) if name.endswith("npy") else (tmp_path / name).touch()
    assert refusal(tmp_path) == (
        "is a folder whose files have no numbers (such as more.npy); "
        "expected a file, or a folder such as img_emb/ with img_emb_0.npy, img_emb_1.npy, …"
    )


# Ready score matrices, and two matrices side by side


def test_scores_may_have_rows_of_zeros():
    np.testing.assert_array_equal(open_matrix(np.zeros((2, 3)), name="scores"), np.zeros((2, 3)))


def test_scores_that_are_not_finite_are_refused_by_row_and_column():
    scores = np.zeros((40, 3))
    scores[33, 1] = np.nan
    with small_blocks():
        assert refusal(scores, name="scores", door=open_matrix) == (
            "scores must be finite; row 33 has NaN in column 1. Remove or re-encode that row"
        )


def test_scores_have_a_type_of_their_own():
    scores = open_matrix(VALUES, name="scores")
    assert isinstance(scores, ScoreMatrix)
    assert not isinstance(scores, Embeddings)
    assert repr(scores) == "ScoreMatrix(scores: 7 x 4)"
    assert refusal(scores) == (
        "gallery must be embeddings of shape (n_rows, dim); got ready scores, opened as scores"
    )
    assert refusal(open_embeddings(VALUES, name="gallery"), name="scores", door=open_matrix) == (
        "scores must be ready scores of shape (n_gallery, n_references); got embeddings, opened as "
        "gallery. Multiply them first, or use fit"
    )


def test_scores_with_another_form_are_refused():
    assert refusal(np.ones(3), name="scores", door=open_matrix) == (
        "scores must have two dimensions (n_gallery, n_references); got shape (3,); "
        "a single row needs [None, :]"
    )


def test_matrices_of_the_same_dim_go_together():
    check_same_dim(open_embeddings(VALUES), open_embeddings(VALUES[:2]))


def test_matrices_of_other_dims_are_refused_with_both_shapes():
    gallery = open_embeddings(VALUES, name="gallery")
    references = open_embeddings(VALUES[:5, :3], name="references")
    with pytest.raises(NNNormError) as caught:
        check_same_dim(gallery, references)
    assert str(caught.value) == (
        "gallery and references must share dim; got gallery (7, 4) and references (5, 3). "
        "Were they encoded by different models?"
    )
