"""Rows across shards, joined, selected, or in blocks equal those of the whole matrix."""

import tempfile
from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm.embeddings import Embeddings, open_embeddings
from tests.io.matrices import VALUES, patient, save_shards, shards, small_blocks


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
@given(shards(), st.booleans())
def test_joined_parts_are_the_whole(sharded, normalize):
    parts, whole = sharded
    opened = reduce(Embeddings.joined, (open_embeddings(p, normalize=normalize) for p in parts))
    expected = open_embeddings(whole, normalize=normalize)
    assert (opened.shape, opened.normalized) == (whole.shape, normalize)
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
