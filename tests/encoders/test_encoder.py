"""The protocol of all encoders: order, batches, unit norm, and what is rejected."""

import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.encoders import Encoder
from nnnorm.encoders.encoder import check_texts, unit_rows


class Letters(Encoder):
    """A row counts letters, so the right answer is plain."""

    name, dim, modalities = "letters", 3, ("texts",)
    context = 4

    def token_counts(self, texts):
        return [len(text) for text in texts]

    def embed_texts(self, texts):
        return np.array([[text.count(letter) for letter in "abc"] for text in texts])


def test_rows_come_in_the_order_of_the_texts_with_unit_norm_in_float32():
    rows = Letters().encode_texts(["aab", "c", "b"])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, [[2 / 5**0.5, 1 / 5**0.5, 0], [0, 0, 1], [0, 1, 0]], rtol=1e-6)


def test_texts_beyond_the_context_are_counted_and_said():
    with pytest.warns(UserWarning, match=r"2 of 3 texts are longer than the 4 tokens that letters"):
        Letters().encode_texts(["aaaaa", "b", "abcabc"])


@pytest.mark.parametrize("text", ["", "  ", "\n\t"])
def test_an_empty_text_is_rejected_with_its_place(text):
    with pytest.raises(NNNormError, match=r"text 1 \(counted from 0\) is empty \(2 texts are\)"):
        Letters().encode_texts(["a", text, "b", ""])


def test_one_string_instead_of_a_list_is_rejected():
    with pytest.raises(NNNormError, match="put it in a list"):
        check_texts("abc")


def test_a_text_that_is_no_string_is_rejected_with_its_place_and_kind():
    with pytest.raises(NNNormError, match="texts must be strings; number 1 is float"):
        check_texts(["a", float("nan")])
    with pytest.raises(NNNormError, match="must be valid UTF-8; number 1 is"):
        check_texts(["a", "b\ud800"])


def test_what_a_model_cannot_encode_is_rejected_by_name():
    with pytest.raises(NNNormError, match="letters encodes texts, not images"):
        Letters().encode_images([])


def test_a_batch_size_below_one_is_rejected():
    with pytest.raises(NNNormError, match="batch_size must be 1 or more; got 0"):
        Letters().encode_texts(["a"], batch_size=0)


def test_a_row_of_zeros_is_rejected():
    with pytest.raises(NNNormError, match="row 1 of a batch is all zeros"):
        Letters().encode_texts(["a", "x"])


def test_a_row_that_is_not_finite_is_rejected():
    with pytest.raises(NNNormError, match="row 0 of a batch is not finite"):
        unit_rows(np.array([[np.nan, 1.0]]), "a model's texts")


def test_rows_too_small_for_float32_squares_are_normalized_all_the_same():
    np.testing.assert_allclose(unit_rows(np.array([[3e-30, 4e-30]]), "x"), [[0.6, 0.8]], rtol=1e-6)


def test_a_model_that_gives_another_dim_than_it_says_is_rejected():
    class Liar(Letters):
        dim = 4

    with pytest.raises(NNNormError, match=r"gave shape \(1, 3\) for 1 texts; expected \(1, 4\)"):
        Liar().encode_texts(["a"])


# As Python, CUDA, and torch on the processor under Linux and Windows say it.
OUT_OF_MEMORY = [
    MemoryError(),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000000000 bytes."),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_a_batch_too_large_for_the_memory_is_said_with_a_smaller_one(error):
    class Large(Letters):
        def embed_texts(self, texts):
            raise error

    with pytest.raises(NNNormError, match=r"out of memory with 6 texts at once; .*--batch-size 3"):
        Large().encode_texts(["a"] * 6)
