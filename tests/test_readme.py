"""The README runs as written, its figures are those that are stored, and it stays short."""

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


def test_the_gains_of_the_readme_are_those_of_the_evidence():
    rows = results("evidence")["rows"]
    own = {row["set"]: row for row in rows if row["bank"] == "own"}
    gains = {name: row["gains"]["nnn"] for name, row in own.items()}
    plain = WORDS.replace("*", "")

    def shown(name):
        mean, low, high = (f"{points:+.1f}".replace("-", "−") for points in gains[name])
        return f"{mean} [{low}, {high}]"

    clip = own["unsplash500-image"]
    recalls = clip["recall_at_1"], clip["recall_at_1"] + gains["unsplash500-image"][0]
    words = f"{clip['n_references']} past queries, no labels: R@1 "
    words += " → ".join(f"{recall:.1f}" for recall in recalls)
    assert f"{words} %, {shown('unsplash500-image')}." in plain
    assert f"captions find photos {shown('flickr8k-image')};" in plain
    assert f"photos find captions {shown('flickr8k-text')}, which includes zero." in plain
    assert gains["flickr8k-text"][1] < 0
    n_gains = sum(low > 0 for _, low, _ in gains.values())
    assert not any(high < 0 for _, _, high in gains.values())
    assert f"[{len(own)} searches](docs/evidence.md)" in plain
    n_zero = len(own) - n_gains
    assert f"{n_gains} gains, {n_zero} with zero in the 95 % interval, no loss:" in plain
    (coco,) = (row for row in rows if row["bank"] == "COCO captions")
    recalls = coco["recall_at_1"], coco["recall_at_1"] + coco["gains"]["nnn"][0]
    words = f"{coco['n_references']:,} COCO captions: R@1 "
    assert words + " → ".join(f"{recall:.1f}" for recall in recalls) in plain


def test_the_latency_of_the_readme_is_that_of_the_engines():
    rows = results("engines")["engines"]
    median = 100 * (statistics.median(row["ratio"] for row in rows) - 1)
    assert f"at {median:+.0f} % latency in the median of [{len(rows)} settings]" in WORDS
    loss = max(row["recall_plain"] - row["recall"] for row in rows)
    assert f"at most {loss:.3f} less recall@10" in WORDS


@pytest.fixture
def demo(demo):
    return demo.figures


def test_the_demo_s_figures_are_those_of_the_readme(demo):
    """To 0.1 points and one count: the last bits of a product differ between machines."""
    rows = {
        "uncorrected": demo.uncorrected,
        "NNN, automatic": demo.untuned,
        "NNN, tuned": demo.tuned,
    }
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
