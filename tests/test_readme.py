"""The README's Python runs as written, and its demo table is what the demo prints."""

import re
from pathlib import Path

from nnnorm.demo import run_demo

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    assert (tmp_path / "bias.safetensors").exists()


def test_the_demo_s_figures_are_those_of_the_readme():
    for row in run_demo()["rows"]:
        line = next(line for line in README.splitlines() if line.startswith(f"| {row['search']} "))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[1:4] == [f"{row[f'recall_at_{k}']:.1f}" for k in (1, 5, 10)]
        assert cells[4:] == [f"{row['max_n1']} times", str(row["n_antihubs"])]
