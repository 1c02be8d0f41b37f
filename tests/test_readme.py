"""The README runs as written, shows the stored results, and stays short."""

import importlib.util
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import nnnorm
from nnnorm.cli.app import app
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
    assert len(README.splitlines()) <= 90
    assert max(map(len, README.splitlines())) <= 420


def test_the_python_and_the_commands_of_the_readme_run(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    sizes = {"photos": 100, "past_queries": 300, "queries": 20}
    arrays = {name: rng.normal(size=(n, 16)) for name, n in sizes.items()}
    for name, array in arrays.items():
        np.save(name, array)
    (code,) = blocks("python")
    exec(code, arrays)
    found = (arrays["asked"] @ arrays["stored"].T).argmax(axis=1)
    bias = arrays["corrector"].bias
    exact = nnnorm.search(arrays["queries"], arrays["photos"], bias, k=1, normalize=True)
    assert found.tolist() == exact.indices[:, 0].tolist()
    (commands,) = blocks("sh")
    for line in commands.splitlines()[1:]:  # the first installs the package
        assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0, line


def test_a_release_has_the_address_of_its_repository_in_all_links(tmp_path):
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    script = ROOT / ".github" / "fill_in_address.py"
    subprocess.run([sys.executable, script, "owner/name", "v9"], cwd=tmp_path, check=True)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "https://github.com/owner/name/blob/v9/docs/evidence.md" in links
    assert "https://github.com/owner/name/actions/workflows/test.yml" in links
    assert "https://raw.githubusercontent.com/owner/name/v9/docs/images/hub-light.png" in links
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Repository"] == "https://github.com/owner/name"
    assert {"Paper", "Documentation", "Issues", "Changelog"} <= set(project["urls"])


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


def test_the_report_of_the_readme_is_that_of_the_quick_start():
    (report,) = blocks("text")
    assert report in (ROOT / "docs" / "guide" / "quick-start.md").read_text(encoding="utf-8")


def test_the_gains_of_the_readme_are_those_of_the_evidence():
    rows = results("evidence")["rows"]
    own = [row for row in rows if row["bank"] == "own"]
    gains = [row["gains"]["nnn"] for row in own]
    stored = {
        (
            f"{row['n_gallery']:,}",
            f"{row['n_references']:,}",
            f"{row['recall_at_1']:.1f}",
            f"{row['recall_at_1'] + gain[0]:.1f}",
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(*gain).replace("-", "−"),
        )
        for row, gain in zip(own, gains, strict=True)
    }
    shown = re.findall(r"^\| [^|]+ \| ([\d,]+ \|.*\]) \|$", README, flags=re.MULTILINE)
    assert len(shown) == 6
    assert {tuple(cell.strip() for cell in line.split("|")) for line in shown} <= stored
    n_gains = sum(low > 0 for _, low, _ in gains)
    assert not any(high < 0 for _, _, high in gains)
    gaining = f"{n_gains} of [{len(own)} searches](docs/evidence.md) show a gain"
    assert f"{gaining} and none shows a loss" in WORDS
    assert f"for the other {len(own) - n_gains}, the interval includes zero" in WORDS
    (coco,) = (row for row in rows if row["bank"] == "COCO captions")
    recalls = coco["recall_at_1"], coco["recall_at_1"] + coco["gains"]["nnn"][0]
    words = f"{coco['n_references']:,} COCO captions as past queries for Flickr8k photos, "
    words += "R@1 only rises from {:.1f} to {:.1f}."
    assert words.format(*recalls) in WORDS


def test_the_latency_of_the_readme_is_that_of_the_engines():
    rows = results("engines")["engines"]
    changes = sorted(100 * (row["ratio"] - 1) for row in rows)
    least, median, most = changes[0], statistics.median(changes), changes[-1]
    assert f"Across [{len(rows)} engine settings]" in WORDS
    shown = f"changes latency by −{-least:.0f} to +{most:.0f} % (median {median:+.0f} %)"
    assert shown in WORDS
    loss = max(round(row["recall_plain"], 3) - round(row["recall"], 3) for row in rows)
    assert f"lowers recall@10 by at most {loss:.3f}." in WORDS


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
