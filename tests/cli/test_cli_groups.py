"""`--groups`: one label per item on the command line, from lists, tables and metadata."""

import json

import numpy as np
import pytest

from nnnorm import Bias
from tests.command import assert_fails, run, run_json
from tests.test_groups import KINDS, mixed  # noqa: F401 - a fixture

FIT = ["fit", "--gallery", "gallery.npy", "--references", "past.npy", "-o", "bias.safetensors"]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch, mixed):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    for name in ("gallery", "past", "queries"):
        np.save(f"{name}.npy", mixed[name])
    np.save("truth.npy", np.arange(100))
    np.save("groups.npy", np.array(KINDS))
    (tmp_path / "groups.txt").write_text("\n".join(KINDS))
    (tmp_path / "groups.json").write_text(json.dumps(KINDS))
    (tmp_path / "one.csv").write_text("kind\n" + "\n".join(KINDS))
    rows = [json.dumps({"title": f"item {n}", "kind": kind}) for n, kind in enumerate(KINDS)]
    (tmp_path / "items.jsonl").write_text("\n".join(rows))


@pytest.mark.parametrize(
    "given", ["groups.npy", "groups.txt", "groups.json", "one.csv", "one.csv:kind",
              "items.jsonl:kind"]
)  # fmt: skip
def test_fit_reads_groups_from_lists_and_tables(given):
    result = run(*FIT, "--groups", given, "--set", "between=0.5")
    assert result.exit_code == 0, result.output
    assert "photo −" in result.stdout.replace("-", "−")
    params = Bias.load("bias.safetensors").params
    assert params["groups"].keys() == {"photo", "text"}
    assert params["between"] == 0.5


def test_extend_takes_the_groups_of_new_items():
    command = [*FIT, "--groups", "groups.txt", "--save-corrector", "c.safetensors"]
    assert "--groups NEW_GROUPS" in " ".join(run(*command).stdout.split())
    new = ["extend", "--corrector", "c.safetensors", "--items", "gallery.npy", "-o"]
    assert run(*new, "new.safetensors", "--groups", "groups.txt").exit_code == 0
    both = (Bias.load(f"{name}.safetensors").values for name in ("new", "bias"))
    np.testing.assert_allclose(*both, atol=1e-6)
    assert_fails(run(*new, "other.safetensors"), "fitted with groups (photo, text); pass --groups")


def test_check_and_tune_take_groups_and_pass_them_on():
    task = ["--gallery", "gallery.npy", "--references", "past.npy", "--queries", "queries.npy"]
    found = run_json("check", *task)
    assert found["mixed"]["sizes"] == [100, 100]
    assert "--groups GROUPS" in found["next"][0]
    task += ["--truth", "truth.npy", "--groups", "groups.txt"]
    found = run_json("check", *task)
    assert found["automatic"]["params"]["groups"].keys() == {"photo", "text"}
    assert "--groups groups.txt" in found["next"][0]
    tuned = run_json("tune", *task)
    assert found["tuned"]["params"].get("between", 1) == tuned["between"]
    assert found["tuned"]["gain"] == tuned["cross_fitted"]
    assert found["recommended"] == "tuned"
    assert found["next"][0] == tuned["fit"]
    assert "--groups groups.txt" in tuned["fit"]
    assert run(*tuned["fit"].split()[1:]).exit_code == 0
    assert Bias.load("bias.safetensors").params["between"] == tuned["between"]


def test_an_index_takes_groups_from_metadata():
    run(*FIT, "--groups", "groups.txt", "--save-corrector", "c.safetensors")
    built = ["--gallery", "gallery.npy", "--corrector", "c.safetensors"]
    assert run("index", "build", "faiss:items", *built, "--metadata", "items.jsonl",
               "--groups", "kind").exit_code == 0  # fmt: skip
    alpha = Bias.load("bias.safetensors").params["alpha"]
    assert f"(nnn, alpha {alpha:.4g} within groups)" in run("index", "info", "faiss:items").stdout
    more = ["--corrector", "c.safetensors", "--groups"]
    assert run("index", "refresh", "faiss:items", *more, "kind").exit_code == 0
    assert_fails(run("index", "refresh", "faiss:items", *more, "sort"), "has no key 'sort'")
    assert run("index", "add", "faiss:items", *built, "--replace", "--ids", "ids.txt",
               "--groups", "groups.txt").exit_code == 1  # fmt: skip
    verified = run("index", "verify", "faiss:items", "--queries", "queries.npy",
                   "--corrector", "c.safetensors")  # fmt: skip
    assert verified.exit_code == 0, verified.output


def test_drift_takes_the_groups_of_its_gallery():
    run(*FIT, "--groups", "groups.txt", "--save-corrector", "c.safetensors")
    drift = ["drift", "--corrector", "c.safetensors", "--queries", "queries.npy"]
    now = ["--gallery", "gallery.npy"]
    assert run_json(*drift, *now, "--groups", "groups.txt")["n_items"] == 200
    assert_fails(run(*drift, *now), "pass --groups, one label per item")
    assert_fails(run(*drift, "--groups", "groups.txt"), "pass --gallery too")


def test_only_the_setting_that_has_the_weight_between_groups_is_in_the_table_of_tune():
    shown = run("tune", "--gallery", "gallery.npy", "--references", "past.npy", "--queries",
                "queries.npy", "--truth", "truth.npy", "--groups", "groups.txt").stdout  # fmt: skip
    assert "differences between groups: 1." in shown
    assert shown.count("nnn  ") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("items.jsonl", "name a column"),
        ("truth.npy", "one label per item, shape (200,); got shape (100,)"),
    ],
)
def test_groups_that_can_not_be_read_are_an_error(given, message):
    assert_fails(run(*FIT, "--groups", given), message)
