"""Results as JSON and as tables of pandas."""

import json

import numpy as np
import pytest

from nnnorm import NNN, audit, check, compare, scan, tune
from nnnorm.evaluation import Task, diagnose
from tests import made


@pytest.fixture(scope="module")
def results():
    gallery, queries, references = made.make_embeddings(n_items=40, n_past=30, dim=16)
    truth = np.arange(200) // 5
    known = {"queries": queries, "truth": truth}
    return {
        "audit": audit(queries, gallery, groups=["a", "b"] * 20),
        "check": check(gallery, references, **known),
        "compare": compare(
            gallery, references, **known, validation=Task(queries, gallery, truth), methods=["csls"]
        ),
        "diagnose": diagnose(
            queries, gallery, NNN(8, 0.5).fit(gallery, references), ids=np.arange(40)
        ),
        "scan": scan(np.concatenate([gallery, 0 * gallery[:1]]), references),
        "tune": tune(gallery, references, **known),
    }


def test_every_result_is_ready_for_json(results):
    for found in results.values():
        about = found.to_dict()
        assert json.loads(json.dumps(about, allow_nan=False)) == about


def test_every_result_is_a_table_of_pandas_with_a_row_per_entry(results):
    pytest.importorskip("pandas")
    tables = {name: found.to_pandas() for name, found in results.items()}
    assert tables["tune"]["recall_at_1"].max() == results["tune"].best_by_maximum.recall_at_1
    assert tables["compare"]["method"].tolist() == ["none", "csls"]
    assert tables["compare"]["gain.mean"][1] == results["compare"].results[1].gain.mean
    assert tables["diagnose"]["item"].tolist() == [hub.item for hub in results["diagnose"].hubs]
    assert tables["audit"]["metric"].tolist() == [line.metric for line in results["audit"].means]
    assert tables["scan"]["verdict"][0] == "remove"
    assert tables["check"]["hubs.severity"].tolist() == [results["check"].hubs.severity]


def test_a_printed_check_is_its_report_and_a_shown_one_is_short(results):
    found = results["check"]
    assert str(found).startswith("Verdict")
    assert len(repr(found)) < 100
