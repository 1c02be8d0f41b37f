"""No name that comes from data chooses a place outside of the folder that is written to.

The source is walked for everything that writes a file: a new writer fails the first test until it
is listed here with where its names come from, and attacked below where they come from data.
"""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import nnnorm
from nnnorm import NNNormError, open_embeddings
from nnnorm.datasets import (
    ClipRetrieval,
    Pairs,
    load_pairs,
    read_karpathy,
    save_clip_retrieval,
    save_pairs,
)
from nnnorm.io import safe_name
from tests.source import read_tree

# Calls that create a file or a folder, by the name of the function or method.
_WRITING = {
    "write_whole",
    "make_folder",
    "mkdir",
    "write_text",
    "write_bytes",
    "save_record",
    "save_figure",
    "makedirs",
    "savefig",
    "symlink_to",
    "rename",
    "replace_file",
    "extractall",
}
# Where the name of every written file comes from: "caller" gives the whole path, "constant" is a
# fixed name in the caller's folder, "data" is what a file or a server says.
_WRITERS = {
    "bank.bank.Bank.save": "caller",
    "bias.Bias.save": "caller",
    "cli.app.Report.check": "caller",
    "cli.app.Report.deliver": "constant",
    "cli.dataset._write_lines": "data",
    "cli.dataset.dataset": "caller",
    "corrector.corrector.Corrector.save": "caller",
    "datasets.clip_retrieval.save_clip_retrieval": "data",
    "datasets.pairs._write_text": "data",
    "datasets.pairs.save_pairs": "data",
    "demo.run._plot": "constant",
    "demo.run.run_demo": "constant",
    "encoders.output._open_matrix": "constant",
    "encoders.output._write": "constant",
    "encoders.output.encode_to_folder": "caller",
    "explore.recording._write": "constant",  # or the number of an item
    "explore.recording._write_pictures": "constant",
    "explore.recording.record": "caller",
    "index.backend.Backend.writing": "caller",
    "index.folder.FolderBackend.finish": "constant",
    "index.folder.FolderBackend.swap": "constant",
    "io.files.make_folder": "caller",
    "io.records.save_record": "caller",
    "io.remote.RemotePath.send.put": "caller",
    "ranking.Ranking.save": "caller",
    "report.figure.save_figure": "caller",
    "suspects.Scan.save": "caller",
}
_HOSTILE = [
    "/{outside}/planted",
    "../planted",
    "a/../../planted",
    "..\\..\\planted",
    "..",
    ".",
    "",
    "/",
    "nul\0byte",
    "x" * 400,
    "\ud800",
    ["a", "list"],
    {"an": "object"},
    7,
]


def find_writers():
    root = Path(nnnorm.__file__).parent
    found = set()

    def walk(node, names):
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inner = [*names, child.name]
            if isinstance(child, ast.Call):
                called = child.func
                name = getattr(called, "attr", None) or getattr(called, "id", None)
                if name in _WRITING:
                    found.add(".".join(names))
            walk(child, inner)

    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        walk(read_tree(path), [module])
    return found


@pytest.mark.slow
def test_every_writer_is_known_and_its_names_accounted_for():
    assert find_writers() == set(_WRITERS)


@pytest.fixture
def places(tmp_path):
    output = tmp_path / "deep" / "output"
    output.mkdir(parents=True)
    (tmp_path / "planted.json").write_text("kept")
    return tmp_path, output


def written_outside(root, output):
    files = {path for path in root.rglob("*") if path.is_file() and output not in path.parents}
    return files - {root / "planted.json", root / "input.json"}


@pytest.mark.parametrize("name", _HOSTILE, ids=lambda name: repr(name)[:20])
def test_a_hostile_name_of_a_data_set_stays_in_the_output_folder(places, name):
    root, output = places
    if isinstance(name, str):
        name = name.replace("{outside}", str(root))
    picture = {"filename": "1.jpg", "split": "test", "sentences": [{"raw": "A dog runs ."}]}
    (root / "input.json").write_text(json.dumps({"dataset": name, "images": [picture]}))
    pairs = read_karpathy(root / "input.json")
    rows = open_embeddings(np.eye(1))
    for paths in (
        save_pairs(pairs, output),
        save_clip_retrieval(ClipRetrieval(pairs, np.array([0]), rows, rows), output),
        save_pairs(load_pairs(output / f"{pairs.name}.json"), output),
    ):
        assert all(path.parent == output and path.is_file() for path in paths)
    assert not written_outside(root, output)
    assert (root / "planted.json").read_text() == "kept"


def test_a_hostile_name_in_saved_pairs_stays_in_the_output_folder(places):
    root, output = places
    pairs = Pairs("one", ("a.jpg",), ("a cat",), np.array([0]))
    (path, *_) = save_pairs(pairs, output)
    about = json.loads(path.read_text())
    (root / "input.json").write_text(json.dumps({**about, "name": f"{root}/planted"}))
    save_pairs(load_pairs(root / "input.json"), output)
    assert not written_outside(root, output)
    assert (root / "planted.json").read_text() == "kept"


@pytest.mark.parametrize("name", ["flickr30k", "my photos (2024)", "Ünïcode-名前", "a.b"])
def test_a_harmless_name_is_kept(name):
    assert safe_name(name) == name


def test_the_command_writes_nothing_outside_of_its_output(places):
    from PIL import Image
    from typer.testing import CliRunner

    from nnnorm.cli import app

    root, output = places
    Image.new("RGB", (8, 8)).save(root / "1.png")
    picture = {"filename": "1.png", "split": "test", "sentences": [{"raw": "A dog runs ."}]}
    missing = {**picture, "filename": "none.png"}
    (root / "input.json").write_text(
        json.dumps({"dataset": f"{root}/planted", "images": [picture, missing]})
    )
    arguments = ["dataset", "karpathy", str(root / "input.json"), "--images", str(root)]
    result = CliRunner().invoke(app, [*arguments, "-o", str(output), "--skip-broken"])
    assert result.exit_code == 0, result.output
    assert not written_outside(root, output) - {root / "1.png"}
    assert (root / "planted.json").read_text() == "kept"
    assert {path.name for path in output.iterdir()} >= {"planted.json", "planted-skipped.txt"}


def test_pairs_whose_name_is_no_text_are_still_checked():
    with pytest.raises(NNNormError, match="images and captions"):
        Pairs(["x"], (), (), np.array([0]))
