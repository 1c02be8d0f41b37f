"""Parquet: the column `embedding`, in every list type, or one sentence about what is wrong."""

import contextlib
import sys

import numpy as np
import pytest

from nnnorm.embeddings import open_embeddings
from nnnorm.errors import MissingExtraError, NNNormError, NNNormWarning
from tests.io.matrices import VALUES, refusal


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow", reason="needs nnnorm[parquet]")


@pytest.fixture
def pq(pa):
    return pytest.importorskip("pyarrow.parquet", reason="needs nnnorm[parquet]")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gallery.parquet"


@pytest.fixture
def save(pa, pq, path):
    """Write rows (lists, None) as the column `embedding` of `path`, of the pyarrow type given."""

    def save(rows, kind=None, **options):
        column = pa.array(list(rows), type=kind or pa.list_(pa.float32()))
        pq.write_table(pa.table({"id": range(len(column)), "embedding": column}), path, **options)

    return save


# What is read


@pytest.mark.parametrize("floats", ["float16", "float32", "float64"])
@pytest.mark.parametrize("lists", ["list", "large_list", "fixed_size_list"])
def test_every_list_type_of_every_float_type_is_read(pa, save, path, lists, floats):
    inner = getattr(pa, floats)()
    kind = {
        "list": pa.list_(inner),
        "large_list": pa.large_list(inner),
        "fixed_size_list": pa.list_(inner, VALUES.shape[1]),
    }[lists]
    save(VALUES.astype(floats), kind)
    opened = open_embeddings(path)
    np.testing.assert_array_equal(opened, VALUES)
    assert opened.parts[0].dtype == floats


def test_more_rows_than_one_batch_of_the_reader_are_read_in_order(save, path):
    rows = np.arange(1, 140_001, dtype=np.float32).reshape(-1, 2)
    save(rows, row_group_size=66_000)
    np.testing.assert_array_equal(open_embeddings(path), rows)


def test_empty_row_groups_between_others_are_passed_over(pa, pq, path):
    schema = pa.schema([("embedding", pa.list_(pa.float32(), 4))])
    with pq.ParquetWriter(path, schema) as writer:
        for rows in ([], VALUES[:3], [], VALUES[3:], []):
            writer.write_table(pa.table([pa.array(list(rows), schema[0].type)], schema=schema))
    np.testing.assert_array_equal(open_embeddings(path), VALUES)


def test_a_folder_of_parquet_shards_is_read_in_the_order_of_its_numbers(save, path):
    folder = path.parent / "img_emb"
    folder.mkdir()
    for number in range(11):
        save(np.full((1, 3), number + 1.0))
        path.rename(folder / f"img_emb_{number}.parquet")
    np.testing.assert_array_equal(open_embeddings(folder).rows(0, 11)[:, 0], np.arange(1, 12))


# Ids


def save_ids(pa, path, ids):
    table = pa.table({"id": ids, "embedding": VALUES[: len(ids)].tolist()})
    pa.parquet.write_table(table, path)


@pytest.mark.parametrize("ids", [[7, 3, -2], ["b.jpg", "a.jpg", "ünï"]])
def test_the_column_id_is_kept(pa, pq, path, ids):
    save_ids(pa, path, ids)
    opened = open_embeddings(path)
    assert opened.ids.tolist() == ids
    assert opened.ids.dtype.kind == ("i" if isinstance(ids[0], int) else "U")
    assert open_embeddings(opened, name="gallery", normalize=True).ids is opened.ids


def test_ids_of_shards_are_joined(pa, pq, path):
    folder = path.parent / "img_emb"
    folder.mkdir()
    for number, ids in enumerate([["a", "b"], ["long name"]]):
        save_ids(pa, folder / f"img_emb_{number}.parquet", ids)
    assert open_embeddings(folder).ids.tolist() == ["a", "b", "long name"]


@pytest.mark.parametrize(
    "ids",
    [
        [1, None],
        ["a", None],
        [0.5, 1.5],
        [True, False],
        np.arange(2).astype("datetime64[ns]"),
        np.array([1, 2**63], dtype=np.uint64),
    ],
    ids=["a gap", "a gap among strings", "floats", "booleans", "dates", "uint64"],
)
def test_a_column_id_that_can_t_be_used_is_left_out_with_a_warning(pa, pq, path, ids):
    save_ids(pa, path, ids)
    with pytest.warns(NNNormWarning, match="ids must be one whole number .* row numbers are used"):
        assert open_embeddings(path).ids is None


def test_an_id_that_numpy_would_cut_is_rejected(pa, pq, path):
    save_ids(pa, path, ["a", "b\0"])
    with pytest.raises(NNNormError, match="ends with a NUL character, which numpy drops; correct"):
        open_embeddings(path)


@pytest.mark.parametrize("columns", [{"id": [1]}, {}])
def test_shards_whose_ids_do_not_go_together_have_none(pa, pq, path, columns):
    folder = path.parent / "img_emb"
    folder.mkdir()
    save_ids(pa, folder / "img_emb_0.parquet", ["a"])
    table = pa.table({**columns, "embedding": VALUES[:1].tolist()})
    pq.write_table(table, folder / "img_emb_1.parquet")
    with pytest.warns(NNNormWarning, match="row numbers are used instead, unless you pass ids"):
        assert open_embeddings(folder).ids is None


def test_ids_follow_the_rows_of_a_subset(pa, pq, path):
    save_ids(pa, path, [7, 3, 5])
    assert open_embeddings(path).subset(np.array([2, 0])).ids.tolist() == [5, 7]


# What is refused


@pytest.mark.parametrize("names", [["id", "vector"], [], ["embedding", "embedding"]], ids=str)
def test_a_file_without_one_column_of_that_name_is_refused(pa, pq, path, names):
    pq.write_table(pa.Table.from_arrays([pa.array([[1.0, 2.0]])] * len(names), names), path)
    missing = f"must have the column embedding; it has: {', '.join(names) or 'none'}"
    missing += "; rename yours, or for a bank, pass column= (--column)"
    twice = "has the column embedding twice; rename one of them"
    assert refusal(path) == (twice if "embedding" in names else missing)


@pytest.mark.parametrize("row", [0, 5])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_null_row_is_refused_by_number(pa, save, path, fixed, row):
    rows = VALUES.tolist()
    rows[row] = None
    save(rows, pa.list_(pa.float32(), 4 if fixed else -1), row_group_size=2)
    words = refusal(path)
    if fixed and words.startswith("can't be read as parquet"):
        return  # before pyarrow 26 such a column can't be read at all
    assert words == f"column 'embedding' is empty in row {row}; fill it"


def test_a_null_among_the_numbers_is_refused_by_row_and_column(save, path):
    rows = VALUES.tolist()
    rows[3][2] = None
    save(rows)
    assert refusal(path) == (
        "must be finite; row 3 has NaN in column 2. Remove or re-encode that row"
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (None, "column 'embedding' is empty in row 69998; fill it"),
        (
            [1.0],
            "all rows of 'embedding' must have the same dimension; row 69998 has 1 numbers, "
            "row 0 has 2",
        ),
    ],
    ids=["null", "another length"],
)
def test_a_bad_row_past_the_first_batch_of_the_reader_is_refused_by_number(
    save, path, bad, message
):
    rows = [[1.0, 2.0]] * 70_000
    rows[69_998] = bad
    save(rows)
    assert refusal(path) == message


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        ([[1, 2], [3, 4]], "list<"),
        ([1.0, 2.0], "double"),
        (["a", "b"], "string"),
    ],
)
def test_what_is_no_list_of_floats_is_refused_with_its_type(pa, pq, path, rows, got):
    pq.write_table(pa.table({"embedding": rows}), path)
    assert refusal(path).startswith(f"column 'embedding' must be a list of floats; got {got}")


@pytest.mark.parametrize("fixed", [False, True])
def test_a_file_without_rows_is_refused(pa, save, path, fixed):
    save([], pa.list_(pa.float32(), 4 if fixed else -1))
    assert refusal(path).startswith("must have at least one row and column; got shape (0, ")


def test_rows_without_numbers_are_refused(save, path):
    save([[], []])
    assert refusal(path) == "must have at least one row and column; got shape (2, 0)"


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"id,embedding\n0,1.5\n" * 100, b"PAR1" + bytes(100) + b"PAR1"],
    ids=["empty", "one-byte", "csv", "only-the-magic-bytes"],
)
def test_a_file_that_is_no_parquet_is_refused(pa, path, content):
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith("can't be read as parquet (")
    assert message.endswith("); is it truncated, or another kind of file?")


def test_a_parquet_file_cut_short_anywhere_is_refused(save, path):
    save(VALUES)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert refusal(path).endswith("is it truncated, or another kind of file?")


@pytest.mark.slow
def test_a_damaged_parquet_file_is_refused_or_read_but_never_crashes(save, path):
    save(VALUES)
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(NNNormError):
            assert open_embeddings(path).shape == VALUES.shape


def test_a_file_that_announces_more_rows_than_it_holds_is_refused(save, path):
    save(VALUES)
    whole = path.read_bytes()
    # Seven rows are written as 14 (zigzag); among all places with that byte is the footer's count.
    messages = set()
    for position in (i for i, byte in enumerate(whole) if byte == 14):
        path.write_bytes(whole[:position] + bytes([16]) + whole[position + 1 :])
        try:
            n_rows = len(open_embeddings(path))
        except NNNormError:
            messages.add(refusal(path))
        else:
            assert n_rows == 7
    assert (
        "can't be read as parquet (expected 8 rows; got 7); "
        "is it truncated, or another kind of file?"
    ) in messages


# Without pyarrow


def test_without_pyarrow_the_extra_is_named(path, monkeypatch):
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError) as caught:
        open_embeddings(path)
    assert str(caught.value) == (
        "pyarrow is needed, but not installed; run: pip install 'nnnorm[parquet]'"
    )


def test_without_pyarrow_everything_else_still_opens(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(path) == "there is no such file; check the path"
    np.save(path.with_suffix(".npy"), VALUES)
    np.testing.assert_array_equal(open_embeddings(path.with_suffix(".npy")), VALUES)
