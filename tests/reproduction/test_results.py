"""Finished cells are saved, found again, and never used for other inputs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnnorm import NNNormWarning
from reproduction.material import EmbeddingFolder
from reproduction.paper import find_tables
from reproduction.run import Results, Runner, run_table
from tests.made import make_paper_folder

SOURCE = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "paper").mkdir()
    return make_paper_folder(tmp_path / "paper", n_train=60)


def run(root, name="k-sweep-image", **options):
    results = Results(root / "results")
    runner = Runner(EmbeddingFolder(root).open, results=results, **options)
    (table,) = find_tables([name])
    return run_table(runner, table), results


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["settings-image", "gender", "cross-attention", "hubness", "outliers", "runtime"]
)
def test_figures_of_every_kind_come_back_as_they_were(root, name):
    first, _ = run(root, name)
    again, found = run(root, name)
    assert found.n_kept == 0
    assert again == first
    assert (name == "settings-image") == isinstance(again[0].figure.value, tuple)


@pytest.mark.parametrize("changed", ["images", "texts"])
def test_cells_of_other_embeddings_are_not_taken(root, changed):
    run(root)
    rows = np.load(root / f"clip/coco/{changed}.npy")
    np.save(root / f"clip/coco/{changed}.npy", rows[:, ::-1])
    _, results = run(root)
    assert (results.n_found, results.n_kept) == (0, 8)


def test_cells_of_another_split_or_seed_are_not_taken(root):
    run(root)
    _, results = run(root, seed=1)
    assert results.n_found == 0
    pairs = json.loads((root / "coco.json").read_text())
    train, test = pairs["splits"]["train"], pairs["splits"]["test"]
    train[0], test[0] = test[0], train[0]
    (root / "coco.json").write_text(json.dumps(pairs))
    _, results = run(root)
    assert results.n_found == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"figure": {"value": "x"}}', "\x00\x01"])
def test_a_damaged_cell_is_measured_again(root, content):
    first, _ = run(root)
    damaged = next((root / "results").iterdir())
    damaged.write_text(content)
    again, results = run(root)
    assert (results.n_found, results.n_kept) == (7, 1)
    assert again == first


def test_a_result_that_cannot_be_stored_is_still_returned(root):
    first, _ = run(root)
    taken = next((root / "results").iterdir())
    taken.unlink()
    taken.mkdir()
    with pytest.warns(NNNormWarning, match="a finished cell can't be stored"):
        again, _ = run(root)
    assert again == first


_SCRIPT = """
import sys
from pathlib import Path
from nnnorm import NNNormWarning
from reproduction.material import EmbeddingFolder
from reproduction.paper import find_tables
from reproduction import run
from reproduction.run import Results, Runner, run_table

root = Path(sys.argv[1])

def stop(text):
    if "(6 of" in text:
        print("waiting", flush=True)
        sys.stdin.read()

runner = Runner(EmbeddingFolder(root).open, results=Results(root / "results"))
(table,) = find_tables(["k-sweep-image"])
run.show_progress = stop
run_table(runner, table)
"""


@pytest.mark.slow
def test_a_killed_run_continues(root):
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(root)], env=environment, **pipes
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGKILL)
    outcomes, results = run(root)
    assert (results.n_found, results.n_kept) == (5, 3)
    assert len([outcome for outcome in outcomes if outcome.figure]) == 8
