"""`python -m reproduction`, on folders of embeddings and on synthetic data."""

import contextlib
import io
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from reproduction.__main__ import main
from reproduction.figures import find_figures
from reproduction.material import EmbeddingFolder
from reproduction.paper import find_tables
from reproduction.run import Runner, run_table
from tests.made import make_paper_folder


def reproduce(*arguments):
    """Run the command in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main([str(argument) for argument in arguments])
    return SimpleNamespace(code=code, stdout=out.getvalue(), stderr=errors.getvalue())


def reproduce_json(*arguments):
    result = reproduce(*arguments, "--json")
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def assert_fails(result, words):
    assert result.code == 1, result.stdout
    assert "Traceback" not in result.stderr
    assert words in " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_paper_folder(tmp_path_factory.mktemp("paper"))


def test_without_a_table_all_are_listed_with_what_they_need(root):
    listed = {row["table"]: (row["needs"], row["available"]) for row in reproduce_json()}
    assert len(listed) == 21
    assert listed["image-retrieval"] == ("14 models on flickr30k, coco", "–")
    rows = reproduce_json("--embeddings", root)
    there = {row["table"]: (row["needs"], row["available"]) for row in rows}
    assert there["image-retrieval"][1] == "2 of 28"  # with the other bank
    assert there["k-sweep-image"] == ("14 models on coco", "1 of 14")
    assert there["gender"] == ("CLIP on visogender, coco", "2 of 2")
    assert there["cross-attention"] == ("BLIP ITM's scores on coco", "1 of 1")
    assert "k-sweep-image" in reproduce().stdout


def test_files_are_replaced_as_a_whole(tmp_path):
    asked = []
    for name in ("markdown", "latex"):
        (tmp_path / name).write_text("before")
        os.link(tmp_path / name, tmp_path / f"{name} as it was")
        asked += [f"--{name}", tmp_path / name]
    assert reproduce(*asked).code == 0
    for name in ("markdown", "latex"):
        assert "k-sweep-image" in (tmp_path / name).read_text()
        assert (tmp_path / f"{name} as it was").read_text() == "before"


def test_a_table_is_measured_beside_the_paper_in_every_form(root, tmp_path):
    files = ["--markdown", tmp_path / "t.md", "--latex", tmp_path / "t.tex"]
    result = reproduce("--table", "k-sweep-image", "--embeddings", root, *files)
    assert result.code == 0, result.stderr
    markdown = (tmp_path / "t.md").read_text()
    assert "|  | Original | k = 1 | 4 | 8 | 16 | 32 | 64 | 128 |" in markdown
    assert "|   the paper | 30.45 | 35.47 | 36.57 |" in markdown
    latex = (tmp_path / "t.tex").read_text()
    for text in (markdown, latex):
        assert str(root) not in text
    (printed,) = reproduce_json("--table", "k-sweep-image", "--embeddings", root)
    cells = [cell for cell in printed["cells"] if cell["row"] == "CLIP"]
    assert [cell["printed"] for cell in cells][:2] == [30.45, 35.47]
    assert all(cell["figure"]["low"] <= cell["figure"]["value"] for cell in cells)


@pytest.mark.slow
def test_all_tables_run_from_one_command_and_are_pages_of_a_document(root, tmp_path):
    asked = ["--table", "all", "--embeddings", root, "--latex", tmp_path / "all.tex"]
    printed = reproduce_json(*asked)
    assert len(printed) == 21
    for table in printed:
        assert any(cell["figure"] for cell in table["cells"]), table["table"]
    assert (tmp_path / "all.tex").read_text().count("begin{tabular}") == 21


def test_finished_cells_are_kept_beside_the_embeddings_and_taken_up(tmp_path):
    root = make_paper_folder(tmp_path)
    asked = ["--table", "k-sweep-image", "--embeddings", root]
    first = reproduce(*asked)
    assert "results were stored" not in first.stderr
    again = reproduce(*asked)
    assert "8 results were stored; 0 were measured" in again.stderr
    assert again.stdout == first.stdout


def test_failed_cells_are_reported_after_all_other_output(tmp_path):
    root = make_paper_folder(tmp_path, models=("clip", "siglip"))
    rows = np.load(root / "siglip/coco/images.npy")
    rows[-1] = 0  # an image of the test part
    np.save(root / "siglip/coco/images.npy", rows)
    asked = ["--table", "k-sweep-image", "--embeddings", root]
    result = reproduce(*asked, "--markdown", tmp_path / "t.md", "--json")
    assert result.code == 1
    words = " ".join(result.stderr.split())
    assert "Error: 8 of 112 cells failed, the first in table k-sweep-image, SigLIP, orig" in words
    assert "is all zeros" in words
    assert "are stored; run the same command again" in words
    (printed,) = json.loads(result.stdout)
    clip = [cell for cell in printed["cells"] if cell["row"] == "CLIP"]
    assert all(cell["figure"] for cell in clip)
    markdown = (tmp_path / "t.md").read_text()
    assert "8 of 112 cells failed, such as SigLIP, original." in markdown
    assert len(list((root / "results").iterdir())) == 8
    np.save(root / "siglip/coco/images.npy", np.load(root / "clip/coco/images.npy"))
    again = reproduce(*asked)
    assert again.code == 0
    assert "8 results were stored; 8 were measured" in again.stderr


def test_a_table_without_material_is_left_out_of_several(tmp_path):
    root = make_paper_folder(tmp_path)
    (root / "visogender.json").unlink()
    tables = [part for name in ("gender", "k-sweep-image") for part in ("--table", name)]
    result = reproduce(*tables, "--embeddings", root, "--json")
    assert result.code == 0
    assert [table["table"] for table in json.loads(result.stdout)] == ["k-sweep-image"]
    assert "Note: table gender is left out: there is no visogender.json" in result.stderr


@pytest.mark.slow
def test_the_runtime_table_says_what_it_ran_on(root, tmp_path):
    asked = ["--table", "runtime", "--embeddings", root]
    (printed,) = reproduce_json(*asked, "--markdown", tmp_path / "t.md")
    assert printed["device"].startswith("the processor (")
    assert f"Timed on {printed['device']}." in (tmp_path / "t.md").read_text()
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        words = "finds none; to use the processor, leave out --device"
        assert_fails(reproduce(*asked, "--device", "cuda"), words)


def test_visogender_s_lists_are_pictures_and_questions(tmp_path):
    rows = [f"OO_{n}\tbaker\tspoon\t{('feminine', 'masculine')[n % 2]}" for n in range(6)]
    header = "IDX\tOccupation\tObject\tOccupation_perceived_gender"
    (tmp_path / "OO.tsv").write_text("\n".join([header, *rows]))
    asked = ["--visogender", tmp_path / "OO.tsv", "--images", tmp_path]
    assert reproduce(*asked, "--embeddings", tmp_path / "lists").code == 0
    captions = (tmp_path / "lists/visogender-captions.txt").read_text()
    assert captions == "The baker and their spoon\n" * 6
    images = (tmp_path / "lists/visogender-images.txt").read_text().splitlines()
    assert images[0] == str(tmp_path / "OO_0.jpg")


@pytest.mark.slow
def test_the_paper_s_figures_are_drawn_where_asked_for(tmp_path):
    root = make_paper_folder(tmp_path, models=("clip", "clip-ft-coco"))
    tables = [part for name in ("gender", "hubness") for part in ("--table", name)]
    asked = [*tables, "--plots", tmp_path / "plots"]
    result = reproduce(*asked, "--embeddings", root)
    assert result.code == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "gender-first-ten.png",
        "gender.png",
        "hubness-image.png",
        "hubness-text.png",
        "hubs-first-ten.png",
    ]
    (table,) = find_tables(["hubness"])
    folder = EmbeddingFolder(root)
    runner = Runner(folder.open)
    draw = find_figures(runner, table, run_table(runner, table), folder=folder)["hubness-image.png"]
    texts = draw().legends[0].get_texts()
    labels = [text.get_text().partition(",")[0] for text in texts]
    assert labels == ["uncorrected", "NNN", "CLIP ft. COCO", "by chance"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "image-retrieval"], "pass --embeddings DIR"),
        (["--table", "bogus", "--data", "shapes"], "there is no table 'bogus'"),
        (["--table", "gender", "--data", "photos"], "--data must be shapes or flickr8k=FOLDER"),
        (["--embeddings", "nowhere"], "nowhere is not a folder"),
        (["--table", "gender", "--data", "shapes", "--encoder", "clip=x"], "pass --embeddings DIR"),
        (
            ["--table", "gender", "--embeddings", ".", "--encoder", "clap=x"],
            "the paper has no model 'clap'; its models are: clip, clip-ft-flickr",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert_fails(reproduce(*arguments, "--markdown", "out.md"), words)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_reported_with_the_command_that_creates_it(tmp_path):
    result = reproduce("--table", "k-sweep-image", "--embeddings", tmp_path)
    assert_fails(result, "nothing of table k-sweep-image can be measured")
    words = " ".join(result.stderr.split())
    assert "there is no coco.json" in words
    assert "pass --models TOML or --encoder NAME=MODEL" in words
