"""A printed check: five labels, and a sentence for every case."""

from dataclasses import replace

import numpy as np
import pytest

from nnnorm import check
from nnnorm.evaluation import Interval
from nnnorm.report.tables import tabulate_check
from tests import made

GAIN, LOSS = Interval(0.0126, 0.0044, 0.0208, 0.001), Interval(-0.02, -0.03, -0.01, 0.001)
DOUBT = Interval(0.001, -0.02, 0.022, 0.9)


@pytest.fixture(scope="module")
def found():
    gallery, queries, references = made.make_embeddings(n_items=100, n_past=40, dim=16, seed=2)
    truth = np.repeat(np.arange(100), 5)
    return check(gallery, references, queries=queries, truth=truth)


def with_gains(found, automatic, better=DOUBT, **changes):
    measured = replace(found.automatic, gain=automatic)
    return replace(found, automatic=measured, better=better, n_needed=None, **changes)


def said(found):
    return " ".join(str(found).split())


def test_a_printed_check_has_five_labels_in_80_columns(found):
    lines = str(found).splitlines()
    labels = [line[:14].strip() for line in lines if line[0] != " "]
    assert labels == ["Verdict", "Hubs", "Past queries", "Effect", "Next"]
    assert max(map(len, found.summary().splitlines())) <= 80
    assert lines[-2].removeprefix("Next").strip() == found.next[0]


def test_the_hub_is_named_with_what_chance_would_give(found):
    hubs = found.hubs
    words = said(replace(found, ids=tuple(f"photo {n}" for n in range(100))))
    hub = f"Item photo {hubs.item} is top-1 for {hubs.most} queries"
    assert (
        f"Hubs {hubs.severity.capitalize()}. {hub} ({hubs.most_by_chance:.0f} by chance);" in words
    )
    assert f"{hubs.n_never} of 100 items are never top-1 (" in words


def test_a_gain_has_its_interval_and_zero_is_said_if_it_is_included(found):
    sure = with_gains(found, GAIN, recommended="automatic", verdict="correct")
    assert "%. Gain, in points: +1.26 [0.44, 2.08] with automatic settings" in said(sure)
    assert said(sure).startswith("Verdict Use NNN(), the automatic settings (reference_k=")
    unsure = with_gains(found, DOUBT, recommended="automatic", verdict="try")
    assert "%. Gain, in points: +0.10 [−2.00, 2.20] (includes 0)" in said(unsure)
    assert "in an A/B test; no gain is shown yet." in said(unsure)
    few = replace(unsure, n_needed=2196)
    assert "Too few labels: to detect a gain of 1 point, you need about 2,200 queries" in said(few)


def test_a_tuned_setting_is_called_so(found):
    tuned = with_gains(found, GAIN, GAIN, recommended="tuned", verdict="correct")
    assert "), tuned on your labels." in said(tuned)


def test_no_correction_has_a_reason(found):
    left = {"recommended": None, "verdict": "leave"}
    harm = with_gains(found, LOSS, **left)
    assert "Verdict No correction needed: it makes results worse here." in said(harm)
    little = with_gains(found, DOUBT, expectation="little", **left)
    assert "No correction needed: it would change almost nothing." in said(little)
    assert "no gain is shown." in said(with_gains(found, DOUBT, **left))
    none = replace(with_gains(found, DOUBT, **left), tuned=replace(found.tuned, params={}))
    assert "(cross-fitted), which is no correction." in said(none)


def test_a_gain_that_is_larger_among_the_items_asked_for_is_not_called_inflated(found):
    options = {"recommended": "automatic", "verdict": "try"}
    larger = with_gains(found, DOUBT, within=GAIN, **options)
    assert "A/B test; no gain is shown yet." in said(larger)
    assert "The tuned gain may be inflated" in said(larger)
    smaller = with_gains(found, GAIN, within=DOUBT, **options)
    assert "A/B test; its gain may be inflated." in said(smaller)
    assert "The gain may be inflated" in said(smaller)


def test_an_item_that_many_queries_retrieve_is_a_reason_to_scan(found):
    assert "run nnnorm scan" not in said(found)
    corrupt = replace(found, hubs=replace(found.hubs, most=found.n_queries // 2))
    assert "So many hits may mean that the item is corrupt: run nnnorm scan." in said(corrupt)


def test_past_queries_that_repeat_are_counted(found):
    unlabeled = replace(found, automatic=replace(found.automatic, gain=None), n_references=900)
    repetitive = replace(unlabeled, n_unique=200, expectation="help")
    assert "Past queries 900, 200 of them unique." in said(repetitive)
    assert "label some queries, or add clicks." in said(repetitive)
    assert "unique" not in said(replace(unlabeled, n_unique=800, expectation="help"))


def test_the_table_has_a_row_per_search_and_chance_last(found):
    table = tabulate_check(found)
    names = [row[0] for row in table.rows]
    assert names == ["uncorrected", "NNN, automatic", "NNN, tuned", "by chance"]
    assert table.rows[0][1] == f"{100 * found.recall_at_1:.2f}"
    assert table.rows[0][3] == str(found.hubs.most)
    assert "is assigned to a random item" in table.notes[0]
