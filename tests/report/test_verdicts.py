"""A check in words: every case has its sentence."""

from dataclasses import replace

import numpy as np
import pytest

from nnnorm import check
from nnnorm.evaluation import Interval
from nnnorm.report import tabulate_check, tell_check
from tests import made

GAIN, LOSS = Interval(0.0126, 0.0044, 0.0208, 0.001), Interval(-0.02, -0.03, -0.01, 0.001)
DOUBT = Interval(0.001, -0.02, 0.022, 0.9)


@pytest.fixture(scope="module")
def found():
    gallery, queries, references = made.make_embeddings(n_items=100, n_past=40, dim=16, seed=2)
    truth = np.repeat(np.arange(100), 5)
    return check(gallery, references, queries=queries, truth=truth)


def with_gains(found, automatic, better=DOUBT, **changes):
    return replace(
        found,
        automatic=replace(found.automatic, gain=automatic),
        better=better,
        n_needed=None,
        **changes,
    )


def said(found):
    return " ".join(tell_check(found))


def test_the_hub_is_named_with_what_chance_would_give(found):
    hubs = found.hubs
    words = tell_check(replace(found, ids=tuple(f"photo {n}" for n in range(100))))[0]
    assert words.startswith(
        f"Hubs: {hubs.severity}. Item photo {hubs.item} is in first place {hubs.most}"
    )
    assert f"by chance the most would be {hubs.most_by_chance:.0f}." in words
    assert f"{hubs.n_never} of 100 items never are; by chance" in words


def test_a_gain_has_its_interval_and_zero_is_said_where_it_is_included(found):
    sure = with_gains(found, GAIN, recommended="automatic", verdict="correct")
    assert "With labels: +1.26 [0.44, 2.08] points of R@1 by automatic settings" in said(sure)
    assert "(automatic; tuning adds +0.10 [−2.00, 2.20, includes zero] points" in said(sure)
    unsure = with_gains(found, DOUBT, recommended="automatic", verdict="try")
    assert "With labels: +0.10 [−2.00, 2.20, includes zero] points of R@1" in said(unsure)
    assert "No gain is shown yet: try it next to the search as it is." in said(unsure)
    few = replace(unsure, n_needed=2196)
    assert "Too few labels: to tell 1 point from 0 takes about 2,200 queries" in said(few)


def test_a_tuned_setting_says_what_it_adds(found):
    tuned = with_gains(found, GAIN, GAIN, recommended="tuned", verdict="correct")
    assert "(tuned, which adds +1.26 [0.44, 2.08] points of R@1 to automatic settings)." in said(
        tuned
    )


def test_no_correction_has_a_reason(found):
    left = {"recommended": None, "verdict": "leave"}
    assert "Recommended: no correction. It does harm here." in said(with_gains(found, LOSS, **left))
    little = with_gains(found, DOUBT, expectation="little", **left)
    assert "Recommended: no correction. It would change next to nothing." in said(little)
    assert "No gain is shown." in said(with_gains(found, DOUBT, **left))
    none = replace(with_gains(found, DOUBT, **left), tuned=replace(found.tuned, params={}))
    assert "(cross-fitted), where no correction is chosen." in said(none)


def test_the_table_has_a_row_per_search_and_chance_last(found):
    table = tabulate_check(found)
    assert [row[0] for row in table.rows] == [
        "as it is",
        "NNN, automatic",
        "NNN, tuned",
        "by chance",
    ]
    assert table.rows[0][1] == f"{100 * found.recall_at_1:.2f}"
    assert table.rows[0][3] == str(found.hubs.most)
    assert "falls on any item alike" in table.notes[0]
