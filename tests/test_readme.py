"""The README's Python runs as written, and its demo table is what the demo prints."""

import re
from pathlib import Path

import pytest

from nnnorm.demo.run import run_demo

pytestmark = pytest.mark.slow

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    assert (tmp_path / "corrector.safetensors").exists()


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
    words = " ".join(README.split())
    gain, low, high = map(
        float,
        re.search(r"gain in R@1 is (.*?) points, 95 % interval (.*?) to (.*?)\. ", words).groups(),
    )
    found = demo.tuned.gain
    shown = [100 * share for share in (found.mean, found.low, found.high)]
    assert [gain, low, high] == pytest.approx(shown, abs=0.1)
    others = r"inverted softmax gains (.*?) points here, CSLS (.*?) and DN (.*?):"
    results = {result.method: result for result in demo.comparison.results}
    gains = [100 * results[method].gain.mean for method in ("is", "csls", "dn")]
    assert list(map(float, re.search(others, words).groups())) == pytest.approx(gains, abs=0.1)


def test_the_picture_of_the_readme_is_the_demo_s_and_small(demo):
    """But for a picture or two: the last bits of a product may swap neighbours."""
    image = pytest.importorskip("matplotlib.image")
    path = Path(__file__).parents[1] / re.search(r"!\[.*?\]\((.*?)\)", README).group(1)
    assert path.stat().st_size <= 150_000
    shown, drawn = image.imread(path), image.imread(demo.output / "contact-sheet.png")
    assert shown.shape == drawn.shape
    assert (shown != drawn).any(axis=2).mean() < 0.1
