"""Tables: the same rules for every file, and errors that name the line."""

import pytest

from nnnorm import NNNormError
from nnnorm.tables import read_column, read_columns, read_json, read_lines, read_objects


@pytest.fixture
def write(tmp_path):
    """Write bytes or text to a file of that name and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


def refusal(read, *arguments):
    with pytest.raises(NNNormError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(arguments[0]), "FILE")


# CSV and TSV

both = pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])


@both
@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('"a ""grey"" cat"', 'a "grey" cat'),
        ('a "grey" cat', 'a "grey" cat'),
        ('"two\nlines"', "two\nlines"),
        ('"a dog,\trunning"', "a dog,\trunning"),
        ("  a dog ", "a dog"),
        ("ünï", "ünï"),
        ('""', ""),
        ("", ""),
    ],
)
def test_cells_are_quoted_as_in_rfc_4180(write, suffix, separator, cell, text):
    rows = [["id", "caption", "last"], ["1", cell, "x"]]
    path = write(f"t.{suffix}", "".join(separator.join(row) + "\r\n" for row in rows))
    assert read_columns(path, ["id"], ["caption"]) == {"id": ["1"], "caption": [text]}


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_end_in_any_usual_way(write, ending, last):
    path = write("t.csv", ending.join(["a,b", "1,2", "3,4"]) + ending * last)
    assert read_columns(path, ["b", "a"]) == {"b": ["2", "4"], "a": ["1", "3"]}


def test_a_byte_order_mark_is_not_part_of_the_first_name(write):
    assert read_column(write("t.csv", "\ufeffcaption\na dog\n")) == ["a dog"]


def test_the_suffix_may_be_in_capitals(write):
    assert read_column(write("t.CSV", "caption\na dog\n")) == ["a dog"]


def test_blank_lines_are_skipped(write):
    path = write("t.csv", "a,b\n\n1,2\n\n3,4\n\n")
    assert read_columns(path, ["a"]) == {"a": ["1", "3"]}


def test_an_optional_column_that_is_not_there_is_left_out(write):
    assert read_columns(write("t.csv", "a,b\n1,2\n"), ["a"], ["split"]) == {"a": ["1"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,c\n1,2\n", "FILE must have the column b; it has: a, c"),
        ("a,b\n", "FILE has no rows; is it truncated?"),
        ("a,b,b\n1,2,3\n", "FILE has the column b twice; rename one of them"),
        ("a,b\n1,2\n3,\n", "FILE: line 3 has nothing in the column b"),
        (
            'a,b\n"x\ny",2\n3\n',
            "FILE: line 4 has 1 cells, but the header has 2; put text that contains a separator in "
            'quotes, "like, this"',
        ),
        (
            "a,b\n1,2,3\n",
            "FILE: line 2 has 3 cells, but the header has 2; put text that contains a separator in "
            'quotes, "like, this"',
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_line(write, content, message):
    assert refusal(read_columns, write("t.csv", content), ["a", "b"]) == message


@both
@pytest.mark.parametrize("cell", ['"Stop" sign', '"open'])
def test_a_quote_that_is_not_closed_is_refused_by_line(write, suffix, separator, cell):
    path = write(f"t.{suffix}", f"id{separator}caption\n1{separator}a\n2{separator}{cell}\n")
    message = refusal(read_column, path, "caption")
    assert message.startswith("FILE: line 3 can't be read (")
    assert message.endswith('quotes inside it are doubled: "a ""gray"" cat"')


def test_a_cell_too_long_to_be_one_is_refused_by_line(write):
    path = write("t.csv", "a\nx\n" + "y" * 200_000)
    assert refusal(read_column, path).startswith("FILE: line 3 can't be read (field larger than")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.txt"])
def test_bytes_that_are_not_utf8_are_refused_by_line(write, name):
    path = write(name, b"1\n2\ncaf\xe9\n".replace(b"1", b"{}").replace(b"2", b"{}"))
    read = {"t.csv": read_column, "t.jsonl": read_objects, "t.txt": read_lines}[name]
    message = refusal(read, path)
    assert message.startswith("FILE: line 3 is not UTF-8 text (")
    assert message.endswith("); save the file as UTF-8")


# One column


def test_the_name_of_an_only_column_may_be_left_out(write):
    assert read_column(write("t.tsv", "caption\na dog\n")) == ["a dog"]
    assert read_column(write("t.jsonl", '{"caption": "a dog"}')) == ["a dog"]


def test_a_column_has_to_be_named_where_there_are_several(write):
    path = write("t.csv", "a,b\n1,2\n")
    assert refusal(read_column, path) == "FILE: name a column; it has: a, b"
    assert refusal(read_column, path, "c") == ("FILE must have the column c; it has: a, b")


# JSONL


def test_columns_of_jsonl_are_the_keys_of_its_objects(write):
    path = write("t.jsonl", '\ufeff{"id": 7, "x": 0.5}\n\n{"x": 2, "id": "é", "split": null}\n')
    assert read_columns(path, ["id"], ["split", "x"]) == {
        "id": ["7", "é"],
        "split": ["", ""],
        "x": ["0.5", "2"],
    }


def test_whole_objects_keep_their_types(write):
    assert read_objects(write("t.jsonl", '{"a": [1, null]}\r\n{}\n')) == [{"a": [1, None]}, {}]


@pytest.mark.parametrize(
    ("line", "reason"), [("[1]", "got the type list"), ('"a"', "got the type str")]
)
def test_lines_that_are_not_objects_are_refused(write, line, reason):
    assert refusal(read_objects, write("t.jsonl", f"{{}}\n\n{line}\n")) == (
        f"FILE: line 3 is not a JSON object ({reason}); expected one object per line, such as "
        '{"caption": "a dog"}'
    )


@pytest.mark.parametrize("line", ['{"a": ', "a dog", "[" * 100_000], ids=["cut", "text", "deep"])
def test_lines_that_are_not_json_are_refused(write, line):
    message = refusal(read_objects, write("t.jsonl", f"{{}}\n{line}\n"))
    assert message.startswith("FILE: line 2 is not a JSON object (")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('["a"]', "FILE: line 1 has the type list in the column a; expected text or a number"),
        ("NaN", "FILE: line 1 has NaN in the column a; expected text or a number"),
        ("null", "FILE: line 1 has nothing in the column a"),
    ],
)
def test_values_that_are_neither_text_nor_number_are_refused(write, value, message):
    assert refusal(read_column, write("t.jsonl", f'{{"a": {value}}}'), "a") == message


# Parquet


def test_columns_of_parquet_are_read_by_the_same_rules(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="needs nnnorm[parquet]")
    pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"image": ["1.jpg", None], "n": [1, 2]}), path)
    assert read_columns(path, ["n"], ["image"]) == {"n": ["1", "2"], "image": ["1.jpg", ""]}
    assert refusal(read_columns, path, ["image", "caption"]) == (
        "FILE must have the column caption; it has: image, n"
    )
    assert refusal(read_columns, path, ["image"]) == "FILE: row 1 has nothing in the column image"
    path.write_bytes(b"PAR?")
    assert refusal(read_column, path).startswith("FILE can't be read as parquet (")


# Lines and JSON


def test_a_text_file_is_one_entry_per_line_as_it_is(write):
    assert read_lines(write("t.txt", b'\xef\xbb\xbf"a dog", \r\n{"a": 1}')) == [
        '"a dog", ',
        '{"a": 1}',
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "FILE is empty; expected at least one line"),
        ("a\n\nb\n", "FILE: line 2 is empty; fill or remove it"),
    ],
)
def test_a_text_file_without_entries_is_refused(write, content, message):
    assert refusal(read_lines, write("t.txt", content)) == message


def test_json_that_cannot_be_read_is_refused_with_what_was_expected(write):
    assert read_json(write("t.json", "[1]"), "a list") == [1]
    message = refusal(read_json, write("t.json", "{"), "a list")
    assert message.startswith("FILE can't be read as JSON with a list (")
    assert message.endswith("); is it truncated, or another kind of file?")


# Files


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_missing_file_and_a_folder_are_refused(tmp_path, name):
    assert refusal(read_column, tmp_path / name) == "there is no file FILE; check the path"
    (tmp_path / name).mkdir()
    assert refusal(read_column, tmp_path / name) == "FILE is a folder; expected a file"


def test_another_kind_of_file_is_refused(write):
    assert refusal(read_column, write("t.xlsx", "")) == (
        "FILE: a table must have the suffix .csv, .tsv, .jsonl or .parquet; got the suffix '.xlsx'"
    )
