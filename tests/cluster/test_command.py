"""`nnnorm fit --shard`, `nnnorm merge` and the commands that take what they make."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nnnorm import NNN, Bias
from nnnorm.cli import app
from tests.cluster.cases import GALLERY, REFERENCES, assert_same_bias, rows, write_shards

FIT = "fit --gallery img_emb --references references.npy"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    write_shards(tmp_path / "img_emb")
    np.save(tmp_path / "references.npy", REFERENCES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line):
    result = CliRunner().invoke(app, line.split(), prog_name="nnnorm")
    assert result.exit_code == 0, result.output
    return result


def fail(line):
    """One sentence on stderr, nothing on stdout."""
    result = CliRunner().invoke(app, line.split(), prog_name="nnnorm")
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr.splitlines()[-1]


def test_shards_in_any_order_and_a_merge_give_the_bias_of_a_fit():
    last = [run(f"{FIT} --shard {number}/3 -o parts") for number in (2, 3, 1, 1)]
    assert "Shard 2/3 is done: rows 233 to 466 in parts" in last[0].stdout
    assert "2 of 3 shards are left" in last[0].stderr
    assert "Shard 1/3 was done already: rows 0 to 232 in parts" in last[3].stdout
    assert "Next: nnnorm merge parts -o bias.safetensors" in last[3].stderr
    merged = run("merge parts -o bias.safetensors")
    assert "a bias for 701 items from 301 past queries" in merged.stdout
    assert_same_bias(Bias.load("bias.safetensors"), NNN().fit(GALLERY, REFERENCES))


def test_json_says_what_was_done_and_what_is_left():
    run(f"{FIT} --normalize --shard 1/2 -o parts")
    about = json.loads(run(f"{FIT} --normalize --shard 2/2 -o parts --json").stdout)
    assert len(about.pop("job")) == 32
    assert about == {
        "folder": "parts",
        "shard": [2, 2],
        "rows": [350, 701],
        "is_new": True,
        "n_missing": 0,
    }
    merged = json.loads(run("merge parts -o bias.safetensors --json").stdout)
    assert merged["fingerprints"]["gallery"].endswith(":unit")


def test_other_commands_take_the_shards_and_the_merged_bias(tmp_path):
    for number in (1, 2):
        run(f"{FIT} --shard {number}/2 -o parts")
    run("merge parts -o bias")
    run("merge parts -o bias.safetensors")
    np.save("queries.npy", rows(20, 8))
    np.save("truth.npy", np.arange(20))
    task = "--gallery img_emb --queries queries.npy --bias bias"
    found = [
        json.loads(run(f"evaluate {task} --truth truth.npy --json").stdout),
        json.loads(run(f"diagnose {task} --json").stdout),
    ]
    np.save("gallery.npy", GALLERY)
    whole = "--gallery gallery.npy --queries queries.npy --bias bias.safetensors"
    assert found == [
        json.loads(run(f"evaluate {whole} --truth truth.npy --json").stdout),
        json.loads(run(f"diagnose {whole} --json").stdout),
    ]
    pytest.importorskip("faiss")
    run("index build --to faiss:items.faiss --gallery img_emb --bias bias")
    assert (tmp_path / "items.faiss").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{FIT} --shard 3/2 -o parts", "a shard is one of 1/n to n/n, such as 2/4; got '3/2'"),
        (f"{FIT} --shard 1/2 -o bias.safetensors", "such as bias.parts; nnnorm merge makes the"),
        (f"{FIT} --shard 1/2 --on ray -o parts", "two ways to share the work; give one of them"),
        (f"{FIT} --shards 3 -o bias.safetensors", "--num-cpus and --num-gpus are for --on ray"),
        (f"{FIT} --shard 1/2 --recent references.npy -o parts", "--recent can't be used with"),
        ("merge nowhere -o bias.safetensors", "there is no job in nowhere; start one with: nnnorm"),
        ("merge img_emb -o s3://me:pw@box/bias", "only; got s3://…@box/bias: give a path here"),
        (f"{FIT} --shard 1/2 -o memory://parts", "memory://parts is the memory of this command"),
        ("merge img_emb -o bias.npy", "the output must end in .safetensors; got bias.npy"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line, words):
    assert words in fail(line)
    assert not list(Path().glob("*:"))


def test_a_bias_in_a_folder_is_described_as_one_in_a_file():
    bias = NNN(8, 0.5).fit(GALLERY, REFERENCES)
    bias.save("bias.safetensors")
    bias.save_in_files("bias")
    one, other = (run(f"info {name} --json").stdout for name in ("bias.safetensors", "bias"))
    assert json.loads(other) == json.loads(one)
    assert "bias: a bias for 701 items from 301 past queries" in run("info bias").stdout


def test_a_gallery_that_was_replaced_is_refused_by_the_command(files):
    run(f"{FIT} --shard 1/2 -o parts")
    path = files / "img_emb" / "img_emb_2.npy"
    np.save(path, np.load(path)[::-1])
    assert "has changed since the job in parts was settled" in fail(f"{FIT} --shard 1/2 -o parts")


def test_a_missing_or_another_shard_is_refused_with_words():
    run(f"{FIT} --shard 1/2 -o parts")
    assert "parts lacks shard 2/2; run nnnorm fit --shard" in fail("merge parts -o b.safetensors")
    np.save("references.npy", rows(301, 9))
    assert "holds a job with other references" in fail(f"{FIT} --shard 2/2 -o parts")
