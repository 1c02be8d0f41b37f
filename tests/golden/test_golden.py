"""Results of public calls equal the recorded ones."""

import json
import math
from pathlib import Path

import pytest

from tests.golden.calls import CALLS, compute

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


# More than 4,096 past queries are searched for near copies approximately, so the last bits of a
# processor may decide about single ones.
LOOSE = {"fit_automatic_on_shapes": 5e-3}


def differences(found, expected, place="", rel=1e-4):
    if isinstance(expected, dict):
        if not isinstance(found, dict) or set(found) != set(expected):
            return [f"{place}: entries {sorted(set(found) ^ set(expected))}"]
        return [
            d for k in expected for d in differences(found[k], expected[k], f"{place}.{k}", rel)
        ]
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{place}: another length"]
        pairs = zip(found, expected, strict=True)
        return [
            d for n, (a, b) in enumerate(pairs) for d in differences(a, b, f"{place}[{n}]", rel)
        ]
    if isinstance(expected, float) and isinstance(found, int | float):
        return (
            []
            if math.isclose(found, expected, rel_tol=rel, abs_tol=2e-5)
            else [f"{place}: {found} instead of {expected}"]
        )
    return [] if found == expected else [f"{place}: {found!r} instead of {expected!r}"]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_result_is_what_was_recorded(name, tmp_path):
    assert name in GOLDEN, "record it: python -m tests.golden.record"
    found = compute(name, tmp_path)
    assert differences(found, GOLDEN[name], rel=LOOSE.get(name, 1e-4)) == []


def test_a_changed_number_is_noticed():
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.1]}) == [".a[1]: 2.0 instead of 2.1"]
