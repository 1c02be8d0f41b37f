"""The README runs as written, its figures are those that are stored, and it stays short."""

import importlib
import importlib.util
import json
import re
import shlex
import statistics
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nnnorm.cli import app
from nnnorm.datasets import load_shapes
from nnnorm.demo.run import run_demo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, flags=re.DOTALL)


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120
    assert max(map(len, README.splitlines())) <= 200


def test_the_python_and_the_commands_of_the_readme_run(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    sizes = {"photos": 100, "past_queries": 300, "queries": 20}
    arrays = {name: rng.normal(size=(n, 16)) for name, n in sizes.items()}
    for name, array in arrays.items():
        np.save(name, array)
    (code,) = blocks("python")
    exec(code, arrays)
    found = (arrays["asked"] @ arrays["stored"].T).argmax(axis=1)
    assert found.tolist() == arrays["ranking"].indices[:, 0].tolist()
    (commands,) = blocks("sh")
    for line in commands.splitlines()[1:]:  # the first installs the package
        assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0, line


def test_the_citation_is_that_of_the_paper_in_the_readme():
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    paper = cited["preferred-citation"]
    assert f"[*{paper['title']}*]({paper['url']})" in README
    assert paper["doi"].endswith("2024.emnlp-main.1257")
    assert paper["url"].endswith("/2024.emnlp-main.1257/")
    assert f"({paper['authors'][0]['family-names']} et al., {paper['conference']['name']};" in WORDS


def shown(gain):
    """A gain and its interval, as the README shows them."""
    mean, low, high = (f"{gain[name]:+.1f}".replace("-", "−") for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def test_the_gains_of_the_readme_are_those_of_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    found = importlib.import_module("unsplash").summarise(results("unsplash"), "texts find photos")
    plain = WORDS.replace("*", "")
    gain = shown({"mean": found["gain"], **found})
    assert f"R@1 {found['without']:.1f} → {found['with']:.1f} %, {gain} points" in plain
    banks = results("flickr8k")["ablations"]
    own = {bank["task"]: bank["rows"][0]["automatic"]["gain"] for bank in banks}
    gains = {task: shown({k: 100 * v for k, v in gain.items()}) for task, gain in own.items()}
    assert f"captions find photos {gains['image']};" in plain
    assert f"photos find captions {gains['text']}, which includes zero:" in plain
    assert own["text"]["low"] <= 0
    coco = next(row for row in banks[0]["rows"] if row["bank"] == "coco")
    recalls = banks[0]["uncorrected"]["recall_at_1"], coco["automatic"]["recall_at_1"]
    words = f"{coco['n_references']:,} COCO captions: R@1 "
    assert words + " → ".join(f"{100 * recall:.1f}" for recall in recalls) in plain


def test_the_latency_of_the_readme_is_that_of_the_engines():
    rows = results("engines")["engines"]
    median = 100 * (statistics.median(row["ratio"] for row in rows) - 1)
    assert f"at {median:+.0f} % latency in the median of [{len(rows)} settings]" in WORDS
    loss = max(row["recall_plain"] - row["recall"] for row in rows)
    assert f"at most {loss:.3f} less recall@10" in WORDS


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    return run_demo(tmp_path_factory.mktemp("demo"))


def test_the_demo_s_figures_are_those_of_the_readme(demo):
    """To 0.1 points and one count: the last bits of a product differ between machines."""
    rows = {"uncorrected": demo.uncorrected, "NNN, untuned": demo.untuned, "NNN, tuned": demo.tuned}
    for name, result in rows.items():
        line = next(line for line in README.splitlines() if line.startswith(f"| {name} "))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        recalls = [100 * result.to_dict()[f"recall_at_{k}"] for k in (1, 5, 10)]
        assert [float(cell) for cell in cells[1:4]] == pytest.approx(recalls, abs=0.1)
        never = result.hubness.antihub_share * len(demo.shapes.gallery)
        assert int(cells[4].removesuffix(" times")) == pytest.approx(result.hubness.max, abs=1)
        assert int(cells[5]) == pytest.approx(never, abs=1)


def test_the_demo_s_gains_are_those_of_the_readme(demo):
    gain, low, high = map(
        float,
        re.search(r"gain in R@1 is (.*?) points, 95 % interval (.*?) to (.*?)\. ", WORDS).groups(),
    )
    found = demo.tuned.gain
    shown = [100 * share for share in (found.mean, found.low, found.high)]
    assert [gain, low, high] == pytest.approx(shown, abs=0.1)
    others = r"inverted softmax gains (.*?) points here, CSLS (.*?) and DN (.*?):"
    results = {result.method: result for result in demo.comparison.results}
    gains = [100 * results[method].gain.mean for method in ("is", "csls", "dn")]
    assert list(map(float, re.search(others, WORDS).groups())) == pytest.approx(gains, abs=0.1)


def test_the_pictures_of_the_readme_are_what_their_script_draws(tmp_path):
    """But for a few pixels: fonts are drawn a little differently by other versions."""
    image = pytest.importorskip("matplotlib.image")
    spec = importlib.util.spec_from_file_location("picture", ROOT / "examples/shapes/picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shapes = load_shapes()
    found = module.find_rows(shapes)
    for theme in ("light", "dark"):
        path = ROOT / "docs" / "images" / f"hub-{theme}.png"
        assert f"docs/images/{path.name}" in README
        assert path.stat().st_size <= 150_000
        now = tmp_path / path.name
        module.draw(shapes, theme, *found).savefig(now, transparent=True)
        shown, drawn = image.imread(path), image.imread(now)
        assert shown.shape == drawn.shape
        assert (shown != drawn).any(axis=2).mean() < 0.1
