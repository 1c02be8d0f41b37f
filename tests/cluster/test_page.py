"""The page on a billion items, followed literally, with the rates of the machine that it shows."""

from pathlib import Path

import pytest

from nnnorm.cluster import Line, Rates
from tests.test_guide import follow

PAGE = Path(__file__).parents[2] / "docs" / "billion.md"
RATES = Rates(
    exact=Line(6e-6, 9e-9), learn=Line(0.8, 2e-8), probe=Line(0.0, 2e-8), read=2e-9, sign=2e-9,
    intent=8e-5, width=0.5, cores=2,
)  # fmt: skip


@pytest.mark.slow
def test_the_page_on_a_billion_items_does_what_it_says(tmp_path, monkeypatch):
    for library in ("lancedb", "pymilvus"):
        pytest.importorskip(library)
    monkeypatch.setattr("nnnorm.cli.plan.measure_rates", lambda dim, k: RATES)
    follow(PAGE, monkeypatch, tmp_path)
    assert len(list(tmp_path.glob("updates-*.jsonl"))) == 4
