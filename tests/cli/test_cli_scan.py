import json
import shutil

import numpy as np
import pytest

import nnnorm
from tests.command import assert_fails, run

SCAN = ["scan", "--gallery", "gallery.npy", "--references", "references.npy"]
SCREEN = ["scan", "--items", "new.npy", "--corrector", "c.safetensors"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    shapes = nnnorm.load_shapes()
    hub = shapes.references[6000:6300].mean(axis=0)
    hub /= np.linalg.norm(hub)
    folder = tmp_path_factory.mktemp("made")
    arrays = {
        "clean": shapes.gallery[:400],
        "gallery": np.concatenate([shapes.gallery[:400], hub[None]]),
        "new": np.concatenate([shapes.gallery[400:420], hub[None]]),
        "references": shapes.references[:2000],
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.astype(np.float32))
    corrector = nnnorm.Corrector.fit(shapes.gallery[:400], shapes.references[:2000])
    corrector.save(folder / "c.safetensors")
    return folder


@pytest.fixture
def files(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_planted_item_is_listed_and_the_exit_code_says_so(files):
    result = run(*SCAN, "-o", "outliers.txt")
    assert result.exit_code == 3, result.output
    assert "1 to remove" in result.stdout
    assert "outliers.txt" in result.stderr
    assert (files / "outliers.txt").read_text() == "400\n"


def test_a_clean_gallery_ends_with_0_and_an_empty_list(files):
    options = ["--gallery", "clean.npy", "--references", "references.npy"]
    result = run("scan", *options, "-o", "outliers.json")
    assert result.exit_code == 0, result.output
    assert "Nothing to remove" in result.stdout
    assert json.loads((files / "outliers.json").read_text()) == []


def test_json_has_the_outliers_with_their_reasons(files):
    (files / "ids.txt").write_text("".join(f"p{row}\n" for row in range(401)))
    result = run(*SCAN, "--ids", "ids.txt", "--budget", "1", "--json")
    found = json.loads(result.stdout)
    assert (found["remove"], found["watch"], found["fine"]) == (1, 0, 400)
    assert found["budget"] == 1
    assert [one["id"] for one in found["outliers"]] == ["p400"]
    assert found["outliers"][0]["reasons"]


def test_new_items_are_judged_by_a_corrector(files):
    result = run("scan", "--corrector", "c.safetensors", "--items", "new.npy", "-o", "out.txt")
    assert result.exit_code == 3, result.output
    assert (files / "out.txt").read_text() == "20\n"
    whole = run("scan", "--corrector", "c.safetensors", "--gallery", "gallery.npy", "--json")
    assert json.loads(whole.stdout)["outliers"][0]["item"] == 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([*SCAN, "--budget", "lots"], "budget must be a share"),
        ([*SCAN, "-o", "list.csv"], "the output must end in .txt or .json"),
        ([*SCAN, "-o", "gallery.npy"], "is one of the inputs"),
        (["scan", "--references", "references.npy"], "pass --gallery, or --items"),
        (["scan", "--items", "new.npy"], "--items needs --corrector"),
        ([*SCREEN, "--budget", "3"], "no --gallery, --references, --budget or --normalize"),
        ([*SCREEN, "--no-normalize"], "no --gallery, --references, --budget or --normalize"),
    ],
)
def test_wrong_options_are_answered_with_a_sentence(files, options, words):
    assert_fails(run(*options), words)
