import json
import re
import shlex

import numpy as np
import pytest

import nnnorm
from tests.command import assert_fails, run

FIT = ["fit", "--gallery", "gallery.npy", "--references", "references.npy"]
FIT += ["-o", "bias.safetensors", "--save-corrector", "corrector.safetensors"]
EXTEND = [
    "extend",
    "--corrector",
    "corrector.safetensors",
    "--items",
    "new.npy",
    "-o",
    "b2.safetensors",
]
DRIFT = ["drift", "--corrector", "corrector.safetensors", "--queries"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    shapes = nnnorm.load_shapes()
    arrays = {
        "gallery": shapes.gallery[:300],
        "new": shapes.gallery[300:340],
        "references": shapes.references[:800],
        "own": shapes.queries[::5][:100],
        "mismatched": -shapes.queries[::5][:100],
        "narrow": shapes.gallery[:, :60],
        "long": 3 * shapes.gallery[:50],
        "none": shapes.queries[:0],
    }
    monkeypatch.chdir(tmp_path)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return arrays


def test_new_items_get_the_bias_of_a_fit_with_all_of_them(files):
    assert run(*FIT).exit_code == 0
    result = run(*EXTEND)
    assert result.exit_code == 0, result.output
    corrector = nnnorm.Corrector.load("corrector.safetensors")
    together = np.concatenate([files["gallery"], files["new"]])
    expected = corrector.bias_for(together).values
    found = [nnnorm.Bias.load(name) for name in ("bias.safetensors", "b2.safetensors")]
    np.testing.assert_allclose(np.concatenate([bias.values for bias in found]), expected, atol=1e-6)
    assert {bias.fingerprints["corrector"] for bias in found} == {corrector.fingerprint}


def test_fit_says_how_to_go_on_and_info_what_a_corrector_holds(files):
    result = run(*FIT)
    assert "nnnorm extend --corrector corrector.safetensors --items NEW" in result.stdout
    shown = run("info", "corrector.safetensors")
    assert "a corrector with 800 references (627 unique)" in shown.stdout
    assert "300 items" in shown.stdout
    about = json.loads(run("info", "corrector.safetensors", "--json").stdout)
    assert 300 < about["n_references"] <= 800
    assert about["fingerprint"][:8] in run("info", "bias.safetensors").stdout


def test_extend_prints_a_table_or_json(files):
    run(*FIT)
    assert "a bias for 40 items" in run(*EXTEND).stdout
    about = json.loads(run(*EXTEND, "--json").stdout)
    assert (about["n_gallery"], about["output"]) == (40, "b2.safetensors")


NUMBERS = ["--reference-k", "8", "--alpha", "0.5"]


def test_recent_queries_may_replace_the_bank(files):
    result = run(*FIT[:-2], *NUMBERS, "--recent", "mismatched.npy", "--json")
    about = json.loads(result.stdout)
    assert (about["n_references"], about["params"]["past_queries"]) == (100, "recent")
    assert about["params"]["mismatch_z"] > 3
    assert "corrector" not in about["fingerprints"]


@pytest.mark.parametrize(
    ("recent", "words"),
    [
        ("mismatched", "the recent queries alone: the references do not match them (z = "),
        ("own", "the recent queries and the references, which match them (z = "),
    ],
)
def test_fit_prints_which_past_queries_are_used(files, recent, words):
    fitted = run(*FIT, "--recent", f"{recent}.npy").stdout
    for shown in (fitted, run("info", "corrector.safetensors").stdout):
        assert words in " ".join(shown.split())
        assert "sampled" not in shown


def test_fit_prints_the_reliability_and_how_many_queries_measured_it(files):
    shown = " ".join(run(*FIT).stdout.split())
    assert re.search(r"reliability 0\.\d\d, measured on \d+ unique queries", shown)


def test_fit_says_that_its_setting_is_centered(files):
    assert ", centered" in run(*FIT).stdout
    assert ", centered" in run("info", "bias.safetensors").stdout
    assert "centered" not in run(*FIT, *NUMBERS).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "code"), [("own", 0), ("mismatched", 4)])
def test_drift_ends_with_an_exit_code_for_cron(files, queries, code):
    run(*FIT)
    result = run(*DRIFT, f"{queries}.npy")
    assert result.exit_code == code, result.output
    assert result.stdout.startswith("Fine" if code == 0 else "Refit now")
    result = run(*DRIFT, f"{queries}.npy", "--json", "--gallery", "gallery.npy")
    assert result.exit_code == code
    assert json.loads(result.stdout)["exit_code"] == code


@pytest.mark.slow
def test_input_that_does_not_fit_is_one_sentence_and_writes_nothing(files, tmp_path):
    run(*FIT)
    before = (tmp_path / "bias.safetensors").read_bytes()
    narrow = ["--items", "narrow.npy", "-o", "bias.safetensors"]
    assert_fails(run(*EXTEND[:3], *narrow), "must share dim; got 60 and 64")
    assert_fails(run(*EXTEND[:3], "--items", "long.npy", *narrow[2:]), "do not have unit norm")
    assert_fails(run(*EXTEND[:3], "--items", "none.npy", *narrow[2:]), "is empty")
    assert_fails(run(*DRIFT, "narrow.npy"), "must share dim; got 60 and 64")
    assert_fails(run(*DRIFT, "none.npy"), "is empty")
    assert (tmp_path / "bias.safetensors").read_bytes() == before
    bias = ["extend", "--corrector", "bias.safetensors", *EXTEND[3:]]
    assert_fails(run(*bias), "holds no corrector of this format")
    gone = ["extend", "--corrector", "gone.safetensors", *EXTEND[3:]]
    assert_fails(run(*gone), "there is no corrector file gone.safetensors; make one with")
    whole = (tmp_path / "corrector.safetensors").read_bytes()
    (tmp_path / "corrector.safetensors").write_bytes(whole[:-100])
    assert_fails(run(*EXTEND), "can't be read as a corrector")
    assert not (tmp_path / "b2.safetensors").exists()


def test_outputs_that_would_overwrite_inputs_or_each_other_are_refused(files):
    same = [*FIT[:-1], "bias.safetensors"]
    assert_fails(run(*same), "bias.safetensors is one of the inputs and would be lost")
    run(*FIT)
    assert_fails(run(*EXTEND[:-1], "corrector.safetensors"), "is one of the inputs")
    assert_fails(run(*FIT, "--method", "sinkhorn"), "balances all items of a gallery at once")
    assert_fails(run(*FIT, "--method", "qbnorm"), "decides per query")


@pytest.mark.slow
def test_tune_takes_clicks_and_info_shows_both_parts(files):
    shapes = nnnorm.load_shapes()
    np.save("queries.npy", shapes.queries[:1500])
    np.save("truth.npy", shapes.truth[:1500])
    np.save("clicks.npy", np.arange(300))
    task = ["--gallery", "gallery.npy", "--references", "references.npy", "--queries"]
    task += ["queries.npy", "--truth", "truth.npy", "--clicks"]
    result = run("tune", *task, "clicks.npy", "--json")
    assert json.loads(result.stdout)["popularity"]["weight"] >= 0
    assert "Popularity from clicks: weight" in run("tune", *task, "clicks.npy").stdout
    assert_fails(run("tune", *task, "gone.npy"), "there is no file of clicks gone.npy")
    np.save("clicks.npy", np.arange(300) - 1)
    assert_fails(run("tune", *task, "clicks.npy"), "counts of at least 0; item 0 has -1")
    both = nnnorm.Bias.load("bias.safetensors") if run(*FIT).exit_code == 0 else None
    (both + nnnorm.Popularity(np.arange(300), weight=0.05)).save("both.safetensors")
    shown = run("info", "both.safetensors").stdout
    assert "0.05·log(1 + clicks), of 44,850 clicks" in shown


@pytest.mark.slow
def test_the_command_that_tune_prints_keeps_a_corrector_of_the_chosen_setting(files):
    shapes = nnnorm.load_shapes()
    np.save("asked.npy", shapes.queries[shapes.truth < 300])
    np.save("truth.npy", shapes.truth[shapes.truth < 300])
    tune = ["tune", *FIT[1:5], "--queries", "asked.npy", "--truth", "truth.npy", "--json"]
    found = json.loads(run(*tune).stdout)
    fit = shlex.split(found["fit"])[1:]
    assert run(*fit, "--save-corrector", "corrector.safetensors").exit_code == 0
    method, best = nnnorm.Corrector.load("corrector.safetensors").method, found["best"]
    assert (method.name, method.params) == (best["method"], best["params"])
    assert run(*EXTEND).exit_code == 0


def test_a_corrector_of_a_method_that_can_t_have_one_is_rejected(files):
    for name in ("sinkhorn", "qbnorm"):
        assert_fails(run(*FIT, "--method", name), "later items have no value of their own")
