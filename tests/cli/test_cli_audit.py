import numpy as np
import pytest

from nnnorm import NNN
from tests import command
from tests.made import make_visogender

FILES = ["--gallery", "gallery.npy", "--queries", "queries.npy"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    made = make_visogender()
    made.references = np.random.default_rng(3).normal(size=(50, 23)).astype(np.float32)
    for name in ("gallery", "queries", "references"):
        np.save(tmp_path / f"{name}.npy", getattr(made, name))
    table = ["job,who"]
    for job, gender in zip(made.occupations, made.genders, strict=True):
        table.append(f"{job},{gender}")
    (tmp_path / "groups.csv").write_text("\n".join(table))
    monkeypatch.chdir(tmp_path)
    return made


def run(*arguments):
    return command.run("audit", *arguments)


def run_json(*arguments):
    return command.run_json("audit", *arguments)


def mean(printed, metric, when="before"):
    return next(line[when]["mean"] for line in printed["means"] if line["metric"] == metric)


def test_any_gallery_with_a_group_column_can_be_audited(made):
    NNN(8, 0.5).fit(made.gallery, made.references).save("bias.safetensors")
    printed = run_json(
        *FILES, "--groups", "groups.csv:who", "-k", 6, "-k", 10,
        "--difference", "masculine,feminine", "--target", "equal", "--bias", "bias.safetensors",
    )  # fmt: skip
    assert mean(printed, "bias@6") == pytest.approx(26 / 138)
    assert printed["target"] == {"feminine": 0.5, "masculine": 0.5}
    assert printed["correction"]["method"] == "nnn"


@pytest.mark.slow
def test_without_a_correction_it_only_counts_and_writes_what_was_asked_for(made, tmp_path):
    result = run(
        *FILES, "--groups", "groups.csv:who", "-k", 6,
        "--difference", "masculine,feminine", "--report", "made/report",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "What this does not show" in " ".join(result.stdout.split())
    assert "| bias@6 | 0.188 [" in (tmp_path / "made/report/report.md").read_text()
    assert (tmp_path / "made/report/audit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--groups", "groups.csv"], "groups.csv: name a column; it has: job, who"),
        (["--groups", "groups.tsv"], "there is no file of groups groups.tsv"),
        (["--groups", "groups.csv:who", "--difference", "masculine"],
         "difference must name two of the groups"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_nothing_is_written(made, tmp_path, arguments, words):
    before = sorted(path.name for path in tmp_path.iterdir())
    command.assert_fails(run(*FILES, *arguments), words)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [["--target", "half"], ["--bogus"]])
def test_wrong_usage_is_exit_code_2(made, arguments):
    result = run(*FILES, "--groups", "groups.csv:who", *arguments)
    assert result.exit_code == 2
