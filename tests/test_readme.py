"""The README's Python runs as written, and its demo table is what the demo prints."""

import re
from pathlib import Path

import pytest

from nnnorm.demo import run_demo

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    assert (tmp_path / "bias.safetensors").exists()


def test_the_demo_s_figures_are_those_of_the_readme(tmp_path):
    """To 0.1 points and one count: the last bits of a product differ between machines."""
    demo = run_demo(tmp_path)
    rows = {"uncorrected": demo.uncorrected, "NNN, untuned": demo.untuned, "NNN, tuned": demo.tuned}
    for name, result in rows.items():
        line = next(line for line in README.splitlines() if line.startswith(f"| {name} "))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        recalls = [100 * result.to_dict()[f"recall_at_{k}"] for k in (1, 5, 10)]
        assert [float(cell) for cell in cells[1:4]] == pytest.approx(recalls, abs=0.1)
        never = result.hubness.antihub_share * len(demo.shapes.gallery)
        assert int(cells[4].removesuffix(" times")) == pytest.approx(result.hubness.max, abs=1)
        assert int(cells[5]) == pytest.approx(never, abs=1)


def test_the_picture_of_the_readme_is_small_enough_for_a_first_screen():
    path = Path(__file__).parents[1] / re.search(r"!\[.*?\]\((.*?)\)", README).group(1)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size <= 150_000
