"""`nnnorm bank` on files, and banks as the references of other commands."""

import json
from pathlib import Path

import numpy as np
import pytest

from nnnorm import Bank, Bias
from tests.command import assert_fails, run, run_json

LOG = ("--time", "asked_at", "--count", "times")
ADD = ("--add", "-o", "bank.safetensors")


def write_log(path, rows, start):
    """A day per ten rows, each asked twice."""
    lines = [
        json.dumps(
            {
                "embedding": row.tolist(),
                "asked_at": f"2026-05-{1 + (start + number) // 10:02d}T12:00:00",
                "times": 2,
            }
        )
        for number, row in enumerate(rows)
    ]
    path.write_text("\n".join(lines))


@pytest.fixture
def files(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    intents = rng.normal(size=(40, 32))
    rows = intents[rng.integers(0, 40, 200)] + 0.1 * rng.normal(size=(200, 32))
    write_log(tmp_path / "may.jsonl", rows[:100], 0)
    write_log(tmp_path / "later.jsonl", rows[100:], 100)
    write_log(tmp_path / "all.jsonl", rows, 0)
    np.save("log.npy", rows.astype(np.float32))
    np.save("gallery.npy", rng.normal(size=(60, 32)).astype(np.float32))
    return rows


def build(*arguments, log="all.jsonl", output="bank.safetensors"):
    return run_json("bank", log, *LOG, "--normalize", "-o", output, *arguments)


def test_build_and_add_give_the_bank_of_all_queries(files):
    whole = build()
    build(log="may.jsonl", output="may.safetensors")
    added = run_json("bank", "later.jsonl", *LOG, "--add", "-o", "may.safetensors")
    for name in ("n_unique", "n_seen", "fingerprint", "last_seen"):
        assert added[name] == whole[name]
    assert (added["n_seen"], added["output"]) == (400, "may.safetensors")
    assert Bank.load("may.safetensors").fingerprint == whole["fingerprint"]


def test_old_queries_are_forgotten_if_asked(files):
    build(log="may.jsonl")
    more = ("later.jsonl", *LOG, "--add", "--forget-before", "2026-05-15")
    added = run_json("bank", *more, "-o", "bank.safetensors")
    bank = Bank.load("bank.safetensors")
    assert len(bank) == added["n_unique"] < 40
    assert (bank.last_seen >= np.datetime64("2026-05-15")).all()


def test_embeddings_alone_make_a_bank_too(files):
    about = run_json("bank", "log.npy", "--normalize", "-o", "bank.safetensors")
    assert (about["n_seen"], about["last_seen"]) == (200, None)
    added = run_json("bank", "log.npy", "--add", "-o", "bank.safetensors")
    assert added["n_seen"] == 400
    assert added["fingerprint"] == about["fingerprint"]


def test_info_tells_what_a_bank_holds(files):
    about = build("--max-references", 20)
    text = run("info", "bank.safetensors").stdout
    assert "bank.safetensors: 20 sampled of 400 queries" in text
    assert "random, at most 20" in text
    assert "32 dimensions, normalized" in text
    assert about["fingerprint"] in text
    assert run_json("info", "bank.safetensors")["n_unique"] == 20


def test_a_bank_is_references_for_fit_and_the_studies(files, rng):
    build()
    fitted = run_json(
        "fit", "--gallery", "gallery.npy", "--references", "bank.safetensors", "--normalize",
        "-o", "bias.safetensors",
    )  # fmt: skip
    n_unique = len(Bank.load("bank.safetensors"))
    assert (fitted["n_references"], fitted["params"]["n_unique"]) == (400, n_unique)
    assert len(Bias.load("bias.safetensors")) == 60
    gallery = np.load("gallery.npy")
    np.save("queries.npy", gallery + rng.normal(size=gallery.shape).astype(np.float32))
    np.save("truth.npy", np.arange(60))
    asked = ("--gallery", "gallery.npy", "--queries", "queries.npy", "--normalize")
    bank = ("--references", "bank.safetensors")
    assert run_json("tune", *asked, *bank, "--truth", "truth.npy")["n_unique"] == n_unique
    assert run_json("check", *asked, *bank)["n_references"] == 400


def test_fit_calls_a_sample_a_sample(files):
    build("--max-references", "10")
    fit = ("fit", "--gallery", "gallery.npy", "--references", "bank.safetensors", "--normalize")
    done = run(*fit, "-o", "bias.safetensors")
    assert "from 400 past queries (10 sampled)" in done.stdout


def test_allow_gallery_rows_are_refused_unless_they_are_asked_for(files):
    given = ("--gallery", "gallery.npy", "--references", "gallery.npy", "--normalize")
    done = run("fit", *given, "-o", "bias.safetensors")
    assert_fails(done, "--set allow_gallery_rows=true")
    allowed = ("--set", "allow_gallery_rows=true")
    assert run("fit", *given, "-o", "bias.safetensors", *allowed).exit_code == 0
    asked = (*given, "--queries", "log.npy")
    assert_fails(run("check", *asked), "--set allow_gallery_rows=true")
    assert run("check", *asked, *allowed).exit_code == 0
    assert_fails(run("check", *asked, "--set", "k=3"), "check takes --set duplicates, ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all.jsonl", "-o", "b.npz"), "the output must end in .safetensors; got b.npz"),
        (("all.jsonl", *ADD, "--normalize"), "--add keeps the --max-references"),
        (("all.jsonl", "--add", "-o", "gone.safetensors"), "there is no bank file gone.safetens"),
        (("all.jsonl", *LOG, *ADD, "--forget-before", "2027-01-01"), "would drop all"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_the_bank_as_it_was(files, arguments, words):
    build()
    before = Path("bank.safetensors").read_bytes()
    assert_fails(run("bank", *arguments), words)
    assert Path("bank.safetensors").read_bytes() == before
