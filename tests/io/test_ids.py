import numpy as np
import pytest

from nnnorm.errors import NNNormError
from nnnorm.tables import check_ids, read_ids


@pytest.mark.parametrize("ids", [[3, 1], ("a", "b"), range(2), np.array(["a", "b"], dtype=object)])
def test_ids_are_whole_numbers_or_strings(ids):
    checked = check_ids(ids, 2)
    assert checked.tolist() == list(ids)
    assert checked.dtype.kind == ("U" if isinstance(ids[0], str) else "i")


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_only_line_breaks_separate_ids(tmp_path, end):
    names = ["a\u2028b", "c\x85d", " e ", "\x1c"]
    path = tmp_path / "ids.txt"
    path.write_bytes((end or "\n").join(names).encode() + end.encode())
    assert read_ids(path) == names


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", 1], "per item of photos; 'a' is a string, so pass all of them as strings"),
        (["a", "a"], "ids of photos must be unique, but a occurs at positions 0 and 1; give each"),
        ([0.5, 1.5], "ids must be one whole number or string per item of photos; got 0.5"),
        ([True, False], "ids must be one whole number or string per item of photos; got True"),
        (["a", "b\0"], "'b\\x00' ends with a NUL character, which numpy drops"),
        (["a", "b\ud800"], "'b\\ud800' isn't valid UTF-8"),
        ([1, 2, 3], "per item of photos; expected 2, got 3"),
        ([1, 2**63], "a number doesn't fit in a signed 64-bit integer"),
        (np.array([1, 2**63], dtype=np.uint64), "a number doesn't fit in a signed 64-bit integer"),
    ],
    ids=str,
)
def test_other_ids_are_refused(ids, message):
    with pytest.raises(NNNormError) as caught:
        check_ids(ids, 2, name="photos")
    assert message in str(caught.value)
