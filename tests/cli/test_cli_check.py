"""`nnnorm check`, and the general behavior of the command line."""

import json
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from nnnorm import Bias, Corrector, load_shapes, tune
from nnnorm.cli.app import app
from tests import made
from tests.command import run as run_any

FILES = ["--gallery", "gallery.npy", "--queries", "queries.npy"]
BANK = ["--references", "references.npy"]
TRUTH = ["--truth", "truth.npy"]


@pytest.fixture
def problem(tmp_path, monkeypatch):
    gallery, queries, references = made.make_embeddings(n_items=200, n_past=80, dim=24, seed=5)
    arrays = {"gallery": gallery, "queries": queries, "references": references}
    arrays["truth"] = np.repeat(np.arange(200), 5)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return arrays


@pytest.fixture
def shapes(problem):
    """Files of real embeddings, for which automatic settings are the recommended ones."""
    data = load_shapes()
    arrays = {"gallery": data.gallery, "references": data.references[::10]}
    arrays |= {"queries": data.queries[:600], "truth": data.truth[:600]}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)


def run(*arguments):
    result = run_any(*arguments)
    assert result.exit_code == 0, result.output
    return result


def printed_commands(text):
    """The commands of a text, as a shell reads them."""
    lines = text.replace(" \\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  nnnorm ")]


@pytest.mark.slow
def test_check_says_words_first_then_figures_then_commands_that_run(shapes):
    text = run("check", *FILES, *BANK, *TRUTH, "--explain").stdout
    words = " ".join(text.split())
    places = [
        words.index(part)
        for part in ("Verdict Try NNN(), the automatic", "Hubs ", "Past queries ", "Effect ",
                     "Gain, in points: +", "NNN, automatic", "most: hits of the", "Next:")
    ]  # fmt: skip
    assert places == sorted(places)
    assert max(map(len, text.splitlines())) <= 80
    commands = printed_commands(text)
    assert [command[0] for command in commands] == ["fit", "evaluate", "search"]
    for command in commands:
        run(*command)


@pytest.mark.slow
def test_the_gain_of_check_is_that_of_the_commands_it_prints(shapes):
    found = json.loads(run("check", *FILES, *BANK, *TRUTH, "--json").stdout)
    fit, evaluate, _ = (shlex.split(line)[1:] for line in found["next"])
    run(*fit)
    after = json.loads(run(*evaluate, "--json").stdout)["results"][1]
    assert found["recommended"] == "automatic"
    assert after["gain"] == found["automatic"]["gain"]


@pytest.mark.slow
def test_a_tuned_setting_is_not_evaluated_on_the_queries_that_chose_it(problem):
    np.save("references.npy", problem["references"][:24])
    found = json.loads(run("check", *FILES, *BANK, *TRUTH, "--json").stdout)
    assert found["recommended"] == "tuned"
    assert [shlex.split(line)[1] for line in found["next"]] == ["fit", "search"]
    assert "--set duplicates=drop" in found["next"][0]
    every = run("check", *FILES, *BANK, *TRUTH, "--json", "--set", "duplicates=keep")
    assert "--set duplicates=keep" in json.loads(every.stdout)["next"][0]
    run(*shlex.split(found["next"][0])[1:])
    assert Bias.load("bias.safetensors").params["alpha"] == found["tuned"]["params"]["alpha"]


def test_check_without_past_queries_makes_a_bank_of_these(problem):
    text = run("check", *FILES, "--normalize").stdout
    assert "Unknown without past queries" in " ".join(text.split())
    commands = printed_commands(text)
    assert [command[0] for command in commands] == ["bank", "fit"]
    for command in commands:
        run(*command)
    assert len(Bias.load("bias.safetensors")) == 200


def test_check_without_labels_and_with_few_says_what_is_missing(problem):
    text = " ".join(run("check", *FILES, *BANK, "--explain").stdout.split())
    assert "R@1" not in text
    assert "Popular items also look like hubs here." in text
    for name in ("queries", "truth"):
        np.save(f"{name}.npy", problem[name][::50])
    text = " ".join(run("check", *FILES, *BANK, *TRUTH).stdout.split())
    assert "(includes 0) with automatic settings" in text
    assert "Too few labels: to detect a gain of 1 point, you need about " in text


@pytest.mark.slow
def test_tune_prints_the_command_that_fits_what_it_chose(problem):
    text = run("tune", *FILES, *BANK, *TRUTH, "-o", "chosen.safetensors").stdout
    (command,) = printed_commands(text)
    run(*command)
    chosen, fitted = Bias.load("chosen.safetensors"), Bias.load("bias.safetensors")
    # The command keeps a corrector, whose past queries are rounded to float16.
    np.testing.assert_allclose(fitted.correction, chosen.correction, atol=1e-4)
    np.testing.assert_array_equal(
        fitted.values, Corrector.load("corrector.safetensors").bias.values
    )
    run(*command[: command.index("--save-corrector")])
    exact = Bias.load("bias.safetensors")
    np.testing.assert_allclose(exact.correction, chosen.correction, atol=1e-6)
    assert fitted.weight == chosen.weight
    known = {"queries": problem["queries"], "truth": problem["truth"]}
    tuned = tune(problem["gallery"], problem["references"], **known)
    assert fitted.params["reference_k"] == tuned.best.params["reference_k"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["csls", "dn", "is", "qbnorm", "sinkhorn"])
def test_the_command_fits_every_method_as_it_was_tuned(problem, method):
    options = [*FILES, *BANK, *TRUTH, "--method", method, "--select", "max"]
    found = json.loads(run("tune", *options, "-o", "chosen.safetensors", "--json").stdout)
    if found["best"]["method"] == "none":
        assert found["fit"] is None
        return
    run(*shlex.split(found["fit"])[1:])
    chosen, fitted = Bias.load("chosen.safetensors"), Bias.load("bias.safetensors")
    np.testing.assert_allclose(fitted.correction, chosen.correction, atol=1e-5)


@pytest.mark.slow
def test_a_file_name_with_spaces_and_quotes_is_printed_as_a_shell_takes_it(problem):
    np.save("it's --my gallery.npy", problem["gallery"])
    text = run("check", "--gallery", "it's --my gallery.npy", *FILES[2:], *BANK).stdout
    for command in printed_commands(text):
        run(*command)


# --- manners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [(), ("index",)], ids=["nnnorm", "index"])
def test_a_group_without_a_command_prints_its_help(group):
    bare, asked = run(*group), run(*group, "--help")
    assert bare.stdout == asked.stdout
    assert bare.stderr == ""


def test_a_shell_completes_commands_and_options():
    def complete(words):
        asked = {"_NNNORM_COMPLETE": "complete_bash", "COMP_WORDS": words}
        asked["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        return CliRunner().invoke(app, [], prog_name="nnnorm", env=asked).stdout.split()

    assert complete("nnnorm ch") == ["check"]
    assert "--references" in complete("nnnorm check --ref")
