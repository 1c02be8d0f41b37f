"""The guide, followed literally: every command and every line of Python, from the top of a page."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nnnorm.cli.app import app

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
NOTEBOOK = GUIDE.parents[1] / "examples" / "nnnorm.ipynb"
FIRST = GUIDE / "quick-start.md"
BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def follow(page, monkeypatch, folder):
    """Run the blocks of a page in a folder, and compare what it shows with what is printed."""
    monkeypatch.chdir(folder)
    names, printed = {}, ""
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            exec(block, names)
        elif kind == "sh":
            printed = "".join(map(run, block.replace("\\\n", " ").splitlines()))
        elif printed:
            for line in missing(block, printed):
                raise AssertionError(f"{page.name} shows {line!r}, which is not in:\n{printed}")
            printed = ""


def run(line):
    """Run a command; a comment names the exit code, if it is another than 0."""
    written, _, comment = line.partition("#")
    words = shlex.split(written)
    assert words[0] == "nnnorm"
    result = CliRunner().invoke(app, words[1:], prog_name="nnnorm")
    expected = int(comment.split()[-1]) if "exit code" in comment else 0
    assert result.exit_code == expected, f"{line}\n{result.output}"
    return result.output


def missing(shown, printed):
    """Lines that are shown but not printed in this order; the last digits of numbers may differ."""
    left = iter(printed.splitlines())
    for line in shown.splitlines():
        if line.strip() not in ("", "…") and not any(alike(line, other) for other in left):
            yield line


def alike(one, other):
    number = r"[−-]?\d[\d,]*\.?\d*"
    if re.sub(number, "#", one).split() != re.sub(number, "#", other).split():
        return False
    values = [
        [float(value.replace(",", "").replace("−", "-")) for value in re.findall(number, line)]
        for line in (one, other)
    ]
    return all(abs(a - b) <= max(0.11, 0.05 * abs(a)) for a, b in zip(*values, strict=True))


@pytest.fixture(scope="module")
def after_quick_start(tmp_path_factory):
    """The folder that the quick start leaves, from which every other page sets out."""
    folder = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as monkeypatch:
        follow(FIRST, monkeypatch, folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_guide_does_what_it_says(page, after_quick_start, tmp_path, monkeypatch):
    if page != FIRST:  # the fixture has followed that one
        folder = shutil.copytree(after_quick_start, tmp_path / "guide")
        follow(page, monkeypatch, folder)


def test_what_a_page_shows_is_compared_with_what_is_printed():
    printed = "  most 34 times\n  R@1 21.42 %\n"
    assert list(missing("most 34 times\n…\nR@1 21.44 %\n", printed)) == []
    assert list(missing("most 43 times\n", printed)) == ["most 43 times"]
    assert list(missing("R@1 21.42 %\nmost 34 times\n", printed)) == ["most 34 times"]


def test_every_question_of_a_newcomer_is_answered_from_the_quick_start():
    linked = re.findall(r"\]\(([\w-]+\.md)", FIRST.read_text(encoding="utf-8"))
    assert {page.name for page in PAGES} - {FIRST.name, "faq.md", "glossary.md"} <= set(linked)


def test_the_notebook_runs_and_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            shown = "".join("".join(output.get("text", "")) for output in cell["outputs"])
            assert list(missing(shown, capsys.readouterr().out)) == []
    assert (tmp_path / "corrector.safetensors").exists()
    names["plt"].close("all")
