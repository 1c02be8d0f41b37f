"""Arrays that are no embeddings get a sentence: wrong forms, and wrong values by row.

Messages are compared word for word, for they are part of the interface: what was expected, what
arrived, what to do.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm.bias import Bias
from nnnorm.embeddings import open_embeddings
from nnnorm.errors import NNNormError
from tests.io.matrices import (
    VALUES,
    OnlyDLPack,
    patient,
    refusal,
    small_blocks,
    torch_tensor,
    whole_numbers,
)

# Form


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            np.ones(4),
            "gallery must have two dimensions (n_rows, dim); got shape (4,); "
            "a row must have shape (1, 4)",
        ),
        (
            np.ones((2, 3, 4)),
            "gallery must have two dimensions (n_rows, dim); got shape (2, 3, 4)",
        ),
        (np.ones((0, 4)), "gallery must have at least one row and column; got shape (0, 4)"),
        (np.ones((4, 0)), "gallery must have at least one row and column; got shape (4, 0)"),
    ],
    ids=["one dimension", "three dimensions", "no rows", "no columns"],
)
def test_another_shape_than_rows_and_columns_is_refused(source, message):
    assert refusal(source) == message


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (np.ones((2, 2), dtype=np.uint8), "uint8"),
        (np.ones((2, 2), dtype=np.complex64), "complex64"),
        (np.ones((2, 2), dtype=bool), "bool"),
        (np.zeros((2, 2), dtype="datetime64[s]"), "datetime64[s]"),
        (np.zeros((2, 2), dtype=[("x", "<f4")]), "[('x', '<f4')]"),
        ([[True, False]], "bool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_float_is_refused_with_its_dtype(source, dtype):
    assert refusal(source) == (
        f"gallery must be float16, float32 or float64; got {dtype}, shape {np.shape(source)}: "
        "convert with .astype(numpy.float32)"
    )


class Frame:
    """A table with a column of names, as pandas hands it to numpy."""

    def __array__(self, dtype=None, copy=None):
        return np.array([["a.jpg", 0.5]], dtype=object)


@pytest.mark.parametrize("source", [np.array([[1.0, None]]), [[1.0, None]], Frame()])
def test_python_objects_are_refused(source):
    assert refusal(source) == (
        "gallery must be float16, float32 or float64; got object, shape (1, 2): pass the numbers "
        "alone: frame[columns].to_numpy(), or numpy.stack(column) of lists"
    )


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (None, "must be an array or a path; got None"),
        ({"a": 1.0}, "must be an array or a path; got a dict"),
        (
            Bias([0.5], 1.0, "nnn"),
            "must be an array or a path; got a Bias; the order is (queries, gallery, bias)",
        ),
    ],
    ids=["nothing", "a dict", "a bias"],
)
def test_what_is_no_array_at_all_is_named(source, what):
    assert refusal(source) == f"gallery {what}"


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint32"])
@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_whole_numbers_are_taken_for_truth_and_refused(dtype, shape):
    source = np.ones(shape, dtype=dtype)
    assert refusal(source) == f"gallery {whole_numbers(dtype, shape)}"


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


def test_a_torch_tensor_that_numpy_cannot_read_is_refused():
    for tensor, words in (
        (torch_tensor(VALUES).requires_grad_(), "requires grad"),
        (torch_tensor(VALUES, "bfloat16"), "BFloat16"),
    ):
        message = refusal(tensor)
        assert_unreadable(message, "Tensor")
        assert words in message


@pytest.mark.slow
def test_a_dlpack_tensor_of_a_kind_numpy_lacks_is_refused():
    assert_unreadable(refusal(OnlyDLPack(torch_tensor(VALUES, "bfloat16"))), "OnlyDLPack")


# Values


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.nan, "NaN"),
        (np.inf, "infinity (or a number too large for float32)"),
        (-np.inf, "infinity (or a number too large for float32)"),
        (1e39, "infinity (or a number too large for float32)"),
        (-1e300, "infinity (or a number too large for float32)"),
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


def test_a_zero_row_is_refused_by_number():
    rows = VALUES.copy()
    rows[[3, 5]] = 0
    assert refusal(rows) == (
        "gallery row 3 is all zeros (2 of 7 rows are), so all its scores would be 0; "
        "did the encoding fail? Remove or re-encode such rows"
    )


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
