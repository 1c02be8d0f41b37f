import json

import numpy as np
import pytest

from nnnorm import NNN, Bias
from nnnorm.evaluation.metrics import evaluate
from nnnorm.evaluation.tuning import tune
from tests.command import assert_fails, run, run_json

FILES = ["--gallery", "gallery.npy", "--queries", "queries.npy", "--truth", "truth.npy"]
BANK = ["--references", "references.npy"]


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """Forty items with three noisy queries each, and a bank that leans as the queries do."""
    rng = np.random.default_rng(5)
    lean = rng.normal(size=12)
    meaning = rng.normal(size=(40, 12))
    arrays = {
        "gallery": meaning + lean * rng.gamma(2.0, 0.4, size=(40, 1)),
        "queries": np.repeat(meaning, 3, axis=0) + 0.8 * rng.normal(size=(120, 12)) + lean,
        "references": rng.normal(size=(200, 12)) + lean,
        "gallery_references": rng.normal(size=(60, 12)) + 0.5 * lean,
        "truth": np.repeat(np.arange(40), 3),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)
    return arrays


def recall(problem, bias=None):
    return evaluate(problem["queries"], problem["gallery"], bias, truth=problem["truth"]).recall(1)


def test_evaluate_measures_before_and_after(problem):
    bias = NNN(reference_k=8, alpha=0.75).fit(problem["gallery"], problem["references"])
    bias.save("bias.safetensors")
    before, after = run_json("evaluate", *FILES, "--bias", "bias.safetensors")["results"]
    assert before["recall_at_1"] == pytest.approx(recall(problem))
    assert after["recall_at_1"] == pytest.approx(recall(problem, bias))
    assert after["gain"]["mean"] == pytest.approx(recall(problem, bias) - recall(problem))
    assert {"mrr", "median_rank", "ndcg_at_10", "hubness"} <= set(after)
    assert run_json("evaluate", *FILES)["results"] == [before]
    assert before["gain"] is None
    table = run("evaluate", *FILES, "--bias", "bias.safetensors").stdout
    assert f"{100 * recall(problem, bias):.2f}" in table


def test_evaluate_lists_the_hubs_and_what_becomes_of_them(problem):
    NNN().fit(problem["gallery"], problem["references"]).save("bias.safetensors")
    bias = ["--bias", "bias.safetensors"]
    both = run_json("evaluate", *FILES, *bias, "--hubs", 3)
    assert len(both["results"]) == 2
    found = both["hubs"]
    assert len(found["hubs"]) == len(found["hubs_after"]) == 3
    assert found["after"]["max"] < found["before"]["max"]
    assert found["hubs"][0]["occurrences"] == found["before"]["max"]
    assert 0 <= found["ks_p_value"] <= 1
    text = run("evaluate", *FILES[:4], *bias).stdout  # without a truth
    assert "The 10 most retrieved items" in text
    assert "R@1" not in text


def test_tune_reports_both_choices_and_writes_the_bias(problem):
    printed = run_json("tune", *FILES, *BANK, "-o", "best.safetensors")
    expected = tune(
        problem["gallery"],
        problem["references"],
        queries=problem["queries"],
        truth=problem["truth"],
    )
    assert printed["best"]["params"] == dict(expected.best.params)
    assert printed["best_by_maximum"]["recall_at_1"] == max(
        cell["recall_at_1"] for cell in printed["grid"]
    )
    saved = Bias.load("best.safetensors")
    np.testing.assert_allclose(saved.values, expected.bias.values, atol=1e-6)
    table = run("tune", *FILES, *BANK, "--duplicates", "keep").stdout
    assert "one standard" in table
    assert "maximum" in table


def test_tune_takes_several_methods(problem):
    printed = run_json("tune", *FILES, *BANK, "--method", "csls", "--method", "dn")
    assert {cell["method"] for cell in printed["grid"]} == {"none", "csls", "dn"}


@pytest.mark.slow
def test_compare_and_tune_cross_fit_where_no_validation_is_given(problem):
    compared = run_json("compare", *FILES, *BANK, "--method", "nnn")
    assert [row["method"] for row in compared["results"]] == ["none", "nnn"]
    assert (compared["n_queries"], compared["n_validation"]) == (120, 0)
    assert compared["results"][1]["gain"] == run_json("tune", *FILES, *BANK)["cross_fitted"]
    table = run("compare", *FILES, *BANK, "--method", "nnn").stdout
    assert "cross-fitted: each fifth of the queries" in " ".join(table.split())


def test_compare_takes_validation_files_and_a_gallery_bank(problem):
    validation = ["--validation-queries", "queries.npy", "--validation-truth", "truth.npy"]
    printed = run_json(
        "compare", *FILES, *BANK, *validation, "--validation-gallery", "gallery.npy",
        "--gallery-references", "gallery_references.npy", "--method", "dualis",
    )  # fmt: skip
    assert (printed["n_queries"], printed["n_validation"]) == (120, 120)
    assert printed["results"][1]["method"] == "dualis"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "plots"),
    [
        (["evaluate", *FILES, "--hubs", "5"], ["occurrences.png"]),
        (["tune", *FILES, *BANK], ["grid.png"]),
        (["compare", *FILES, *BANK, "--method", "nnn"], ["gains.png"]),
    ],
    ids=lambda value: value[0],
)
def test_a_report_has_tables_and_plots(problem, tmp_path, command, plots):
    pytest.importorskip("matplotlib", reason="the extra nnnorm[plots] is not installed")
    result = run(*command, "--report", "made/report")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "made" / "report"
    assert (folder / "report.md").read_text(encoding="utf-8").startswith("**")
    for name in plots:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_references_among_the_queries_are_counted_and_said(problem):
    np.save("references.npy", np.vstack([problem["references"], problem["queries"][:7]]))
    result = run("tune", *FILES, *BANK)
    assert result.exit_code == 0
    words = "Note: 7 of the 207 rows of references (references.npy) are among the queries"
    assert result.stderr.count(words) == 1


@pytest.mark.parametrize("suffix", ["npy", "json", "txt"])
def test_ids_may_be_an_array_a_list_or_lines(problem, tmp_path, suffix):
    names = [f"photo {item}" for item in range(40)]
    np.save("ids.npy", names)
    (tmp_path / "ids.json").write_text(json.dumps(names))
    (tmp_path / "ids.txt").write_text("\n".join(names))
    ids = ["--ids", f"ids.{suffix}"]
    hub = run_json("evaluate", *FILES[:4], *ids)["hubs"]["hubs"][0]
    assert hub["id"] == f"photo {hub['item']}"
    found = run_json("search", *FILES[:4], *ids, "-k", 2)
    assert found["ids"][0] == [f"photo {item}" for item in found["indices"][0]]


def test_ids_that_cannot_be_read_are_one_sentence(problem, tmp_path):
    (tmp_path / "ids.txt").write_bytes(b"\x93\xff\x00")
    assert_fails(run("evaluate", *FILES, "--ids", "ids.txt"), "ids.txt can't be read as ids")
    assert_fails(run("search", *FILES[:4], "--ids", "no.txt"), "there is no file of ids no.txt")
    (tmp_path / "ids.json").write_text("{}")
    assert_fails(run("search", *FILES[:4], "--ids", "ids.json"), "must be a list of ids")
    words = "ids must be numbers or text, one per item; queries.npy has the shape (120, 12)"
    assert_fails(run("search", *FILES[:4], "--ids", "queries.npy"), words)


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["evaluate", "tune", "compare"])
def test_a_wrong_truth_is_one_sentence(problem, command):
    np.save("truth.npy", np.full(120, 40))
    more = [] if command == "evaluate" else BANK
    words = "truth names item 40, but there are 40 (0 to 39)"
    assert_fails(run(command, *FILES, *more), words)


def test_a_truth_file_that_is_none_is_named(problem, tmp_path):
    (tmp_path / "truth.npy").write_text("nothing")
    assert_fails(run("evaluate", *FILES), "truth.npy can't be read as .npy")
    (tmp_path / "truth.npy").unlink()
    assert_fails(run("evaluate", *FILES), "there is no truth file truth.npy")


def test_truth_may_be_json_with_lists(problem, tmp_path):
    lists = [[int(item)] for item in problem["truth"]]
    (tmp_path / "truth.json").write_text(json.dumps(lists))
    arguments = [*FILES[:-1], "truth.json"]
    assert run_json("evaluate", *arguments) == run_json("evaluate", *FILES)


def test_options_that_do_not_go_together_are_refused(problem):
    half = ["--validation-queries", "queries.npy"]
    words = "validation needs --validation-queries and --validation-truth; pass both"
    assert_fails(run("compare", *FILES, *BANK, *half), words)
    assert_fails(run("tune", *FILES, *BANK, "--method", "dualis"), "needs a gallery bank")


def test_outputs_are_checked_before_the_work(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "nnnorm.evaluation.tuning.make_settings", lambda *_, **__: pytest.fail("work begun")
    )
    command = ["tune", *FILES, *BANK]
    assert_fails(run(*command, "-o", tmp_path), "it is a folder; pass a file name inside it")
    assert_fails(run(*command, "--report", "gallery.npy"), "cannot make the folder gallery.npy")
