"""Matrices for the tests of this folder: one matrix in every form, rows and shards of any kind."""

import os
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnnorm import embeddings as stored
from nnnorm.embeddings import open_embeddings
from nnnorm.errors import NNNormError

# Held exactly by float16, so that every float type carries the same numbers.
VALUES = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float16).astype(np.float32)

patient = settings(max_examples=min(60, settings().max_examples))


def small_blocks(n_bytes=64):
    """Read in blocks of a few rows, so that small matrices have many blocks."""
    return mock.patch.object(stored, "_BLOCK_BYTES", n_bytes)


def refusal(source, *, name="gallery", opener=open_embeddings, **options):
    """The message with which `source` is refused; of a path, what comes after ``name (path)``."""
    with pytest.raises(NNNormError) as caught:
        opener(source, name=name, **options)
    message = str(caught.value)
    assert "\n" not in message
    if isinstance(source, (str, os.PathLike)):
        prefix = f"{name} ({source})"
        assert message.startswith(prefix)
        message = message.removeprefix(prefix).removeprefix(": ").strip()
    return message


def whole_numbers(dtype, shape):
    """What is said of whole numbers in the place of embeddings."""
    return (
        f"must be float16, float32 or float64; got {dtype}, shape {shape}: these look like truth "
        "or row numbers, so check the order of the arguments"
    )


def bases(array):
    """An array and those that it is a view of."""
    while array is not None:
        yield array
        array = getattr(array, "base", None)


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
    "big-endian float32 array": lambda v: v.astype(">f4"),
    "every other row of an array": every_other_row,
    "inner columns of an array": inner_columns,
    "array read backwards": lambda v: v[::-1, ::-1].copy()[::-1, ::-1],
    "read-only array": read_only,
    "numpy matrix": lambda v: v.copy().view(np.matrix),
    "list of lists": lambda v: v.tolist(),
    "tuple of arrays": tuple,
    "object with __array__": lambda v: OnlyArray(v.copy()),
    "object with only __dlpack__": lambda v: OnlyDLPack(v.copy()),
    "torch float32 tensor": torch_tensor,
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
    "float64.npy": lambda path, v: np.save(path, v.astype(np.float64)),
    "fortran.npy": lambda path, v: np.save(path, np.asfortranarray(v)),
    "big_endian.npy": lambda path, v: np.save(path, v.astype(">f4")),
    "one_array.npz": lambda path, v: save_npz(path, anything=v),
    "compressed.npz": lambda path, v: save_npz(path, np.savez_compressed, embedding=v),
    "several.npz": lambda path, v: save_npz(path, ids=np.arange(7), embedding=v, norms=v[:, 0]),
    "several_plural.npz": lambda path, v: save_npz(path, ids=np.arange(7), embeddings=v),
    "img_emb": lambda path, v: save_shards(path, [v[:3], v[3:4], v[4:]]),
    "root_with_images": lambda path, v: save_shards(path / "img_emb", [v[:3], v[3:]]),
    "root_with_texts": lambda path, v: save_shards(path / "text_emb", [v], stem="text_emb"),
    "padded": lambda path, v: save_shards(path, v[:, None], pattern="{stem}_{number:04d}.npy"),
    "mixed": lambda path, v: save_shards(path, [v[:2].astype(np.float16), v[2:].astype(">f8")]),
}


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


nonzero_rows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(0.125, 1, width=32) | st.floats(-1, -0.125, width=32),
)
