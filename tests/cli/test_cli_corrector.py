import json
import re

import numpy as np
import pytest

import nnnorm
from tests.command import assert_fails, run

FIT = ["fit", "--gallery", "gallery.npy", "--references", "references.npy"]
FIT += ["-o", "bias.safetensors", "--save-corrector", "corrector.safetensors"]
EXTEND = ["extend", "--corrector", "corrector.safetensors", "--items", "new.npy"]
EXTEND += ["-o", "b2.safetensors"]
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
    }
    monkeypatch.chdir(tmp_path)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    return arrays


def test_new_items_get_the_bias_of_a_fit_with_all_of_them(files):
    assert run(*FIT).exit_code == 0
    result = run(*EXTEND)
    assert result.exit_code == 0, result.output
    assert "a bias for 40 items" in result.stdout
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
    assert "a corrector with 800 past queries (627 unique)" in shown.stdout
    assert "300 items" in shown.stdout
    about = json.loads(run("info", "corrector.safetensors", "--json").stdout)
    assert 300 < about["n_references"] <= 800
    assert about["fingerprint"][:8] in run("info", "bias.safetensors").stdout


NUMBERS = ["--reference-k", "8", "--alpha", "0.5"]


def test_recent_queries_may_replace_the_bank(files):
    result = run(*FIT[:-2], *NUMBERS, "--recent", "mismatched.npy", "--json")
    about = json.loads(result.stdout)
    assert (about["n_references"], about["params"]["past_queries"]) == (100, "recent")
    assert about["params"]["mismatch_z"] > 3


@pytest.mark.parametrize(
    ("recent", "words"),
    [
        ("mismatched", "only the recent ones; the others don't match them (z = "),
        ("own", "all; the recent ones match the others (z = "),
    ],
)
def test_fit_prints_which_past_queries_are_used(files, recent, words):
    fitted = run(*FIT, "--recent", f"{recent}.npy").stdout
    for shown in (fitted, run("info", "corrector.safetensors").stdout):
        assert words in " ".join(shown.split())
        assert "sampled" not in shown


def test_fit_prints_its_reliability_and_that_its_setting_is_centered(files):
    shown = " ".join(run(*FIT).stdout.split())
    assert re.search(r"reliability 0\.\d\d ", shown)
    assert "center=True" in shown
    assert "center=True" in run("info", "bias.safetensors").stdout
    assert "center" not in run(*FIT, *NUMBERS).stdout


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
    assert_fails(run(*EXTEND[:3], *narrow), "and references must have the same dimension; got ")
    assert_fails(run(*DRIFT, "narrow.npy"), "and references must have the same dimension; got ")
    assert (tmp_path / "bias.safetensors").read_bytes() == before
    bias = ["extend", "--corrector", "bias.safetensors", *EXTEND[3:]]
    assert_fails(run(*bias), "is a bias; expected a corrector")
    assert not (tmp_path / "b2.safetensors").exists()


def test_outputs_that_would_overwrite_inputs_or_each_other_are_refused(files):
    same = [*FIT[:-1], "bias.safetensors"]
    assert_fails(run(*same), "bias.safetensors is given for two outputs and would be overwritten")
    run(*FIT)
    assert_fails(run(*EXTEND[:-1], "corrector.safetensors"), "is one of the inputs")
    assert_fails(run(*FIT, "--method", "sinkhorn"), "balances all items of a gallery at once")
    assert_fails(run(*FIT, "--method", "qbnorm"), "depends on the best items")


@pytest.mark.slow
def test_tune_takes_clicks_and_info_shows_both_parts(files):
    shapes = nnnorm.load_shapes()
    np.save("queries.npy", shapes.queries[:1500])
    np.save("truth.npy", shapes.truth[:1500])
    np.save("clicks.npy", np.arange(300))
    task = ["--gallery", "gallery.npy", "--references", "references.npy", "--queries"]
    task += ["queries.npy", "--truth", "truth.npy", "--clicks"]
    result = run("tune", *task, "clicks.npy", "--json")
    weight = json.loads(result.stdout)["popularity"]["weight"]
    assert json.loads(result.stdout)["fit"] is None  # it would not include the clicks
    shown = run("tune", *task, "clicks.npy")
    assert "Popularity from clicks: weight" in shown.stdout
    assert "to save the chosen bias with them, pass -o" in shown.stderr
    refreshed = f"--clicks clicks.npy --popularity-weight {weight}"
    assert refreshed in shown.stdout.replace("\\\n    ", "")
    assert "-o hubs.safetensors --save-corrector corrector.safetensors" in shown.stdout
    assert_fails(run("tune", *task, "gone.npy"), "there is no file of clicks gone.npy")
    assert run(*FIT).exit_code == 0
    hubs = nnnorm.Bias.load("bias.safetensors")
    (hubs + nnnorm.Popularity(np.arange(300), weight=0.05)).save("both.safetensors")
    shown = run("info", "both.safetensors").stdout
    assert "0.05·log(1 + clicks), from 44,850 clicks" in shown


# --- calibrate -----------------------------------------------------------------------------------


@pytest.fixture
def ranked(files):
    """A ranking file with a confidence, and labels that follow it."""
    assert run(*FIT).exit_code == 0
    shapes = nnnorm.load_shapes()
    np.save("queries.npy", shapes.queries[:400])
    words = ["search", "--gallery", "gallery.npy", "--queries", "queries.npy"]
    words += ["--bias", "bias.safetensors", "-k", 1, "-o", "ranking.npz"]
    assert run(*words).exit_code == 0
    confidence = nnnorm.Ranking.load("ranking.npz").confidence
    noise = np.random.default_rng(0).normal(size=400) * confidence.std()
    is_right = confidence + noise > np.median(confidence)
    with open("labels.txt", "w") as file:
        file.writelines(f"{int(label)}\n" for label in is_right)
    return confidence, is_right


def test_labels_calibrate_a_corrector(ranked):
    words = ["calibrate", "ranking.npz", "--labels", "labels.txt"]
    words += ["--corrector", "corrector.safetensors", "-o", "new.safetensors"]
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    made = nnnorm.calibrate(*ranked)
    assert nnnorm.Corrector.load("new.safetensors").calibration == made
    about = json.loads(result.stdout)
    assert about["curve"]["slope"] == made.curve.slope
    assert (about["n_queries"], about["output"]) == (400, "new.safetensors")
    assert "from 400 labels" in run("info", "new.safetensors").stdout
    shown = run(*words).stdout
    assert "Confidence of 400 queries" in shown
    assert f"{made.threshold(0.8):.4g}" in shown
    assert f"Brier score {made.curve.brier_score:.3f}" in shown


def test_without_labels_there_are_shares_of_queries(ranked):
    result = run("calibrate", "ranking.npz")
    made = nnnorm.calibrate(ranked[0])
    assert result.exit_code == 0, result.output
    assert f"{made.quantile(0.05):.4g}" in result.stdout
    assert "right" not in result.stdout
    assert json.loads(run("calibrate", "ranking.npz", "--json").stdout)["curve"] is None


@pytest.mark.slow
def test_the_report_has_a_reliability_plot(ranked):
    result = run("calibrate", "ranking.npz", "--labels", "labels.txt", "--report", "report")
    assert result.exit_code == 0, result.output
    with open("report/reliability.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"


def test_what_can_not_calibrate_is_one_sentence(ranked, files):
    with open("bad.txt", "w") as file:
        file.write("1\nperhaps\n" + 398 * "0\n")
    np.savez("old.npz", scores=np.zeros((3, 2)), indices=np.zeros((3, 2), int))
    for words, message in (
        (
            ["ranking.npz", "--labels", "bad.txt"],
            "labels must be 1 or 0, or True or False; got",
        ),
        (["ranking.npz", "--corrector", "corrector.safetensors"], "go together"),
        (["old.npz"], "old.npz has no confidence; search again and save"),
    ):
        assert_fails(run("calibrate", *words), message)
