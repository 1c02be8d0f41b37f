"""`nnnorm encode` on tiny models of every kind, through to `fit` and `compare`."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import nnnorm
from tests import tiny
from tests.command import assert_fails, run

pytestmark = pytest.mark.slow

KINDS = ["clip", "siglip", "blip", "clap"]
N = 24


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Pictures, sounds and captions, two captions of each in order."""
    monkeypatch.chdir(tmp_path)
    tiny.draw_images(tmp_path / "pictures", n=N)
    tiny.write_sounds(tmp_path / "sounds", n=N)
    words = tiny.WORDS.split()
    captions = [f"{words[n % 17]} {words[n * 5 % 17]} {words[n * 7 % 16]}" for n in range(2 * N)]
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    bank = [f"the {words[n % 17]} {words[n * 11 % 17]}" for n in range(40)]
    (tmp_path / "bank.txt").write_text("\n".join(bank) + "\n")
    np.save(tmp_path / "truth.npy", np.repeat(np.arange(N), 2))
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_encode_fit_compare_with_a_tiny_model_of_every_kind(workplace, tiny_model, kind):
    things = ["--audio", "sounds"] if kind == "clap" else ["--images", "pictures"]
    model = ["encode", tiny_model(kind), "--device", "cpu", "--batch-size", 7]
    result = run(*model, *things, "--texts", "captions.txt", "-o", "test", "--json")
    assert result.exit_code == 0, result.output
    about = json.loads(result.stdout)
    assert {part["n_rows"] for part in about.values()} == {N, 2 * N}
    assert run(*model, "--texts", "bank.txt", "-o", "bank").exit_code == 0

    items = "test/audio_emb" if kind == "clap" else "test/img_emb"
    fit = ["fit", "--gallery", items, "--references", "bank"]
    assert run(*fit, "-o", "bias.safetensors").exit_code == 0
    assert len(nnnorm.Bias.load("bias.safetensors")) == N
    compare = ["compare", "--gallery", items, "--queries", "test/text_emb", "--references", "bank"]
    result = run(*compare, "--truth", "truth.npy", "--method", "nnn", "--method", "is", "--json")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)


def test_a_csv_of_images_and_captions(workplace, tiny_model):
    lines = [f"pictures/picture_{n:02d}.png,a red star" for n in (0, 1, 3)]
    (workplace / "pairs.csv").write_text("\n".join(["file,caption", *lines]) + "\n")
    both = ["--images", "pairs.csv:file", "--texts", "pairs.csv:caption"]
    result = run("encode", tiny_model("clip"), *both, "-o", "out", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "Embeddings of images" in result.stdout
    assert "nnnorm check --gallery out/img_emb --queries out/text_emb" in result.stdout
    rows = np.asarray(nnnorm.open_embeddings("out/text_emb"))
    np.testing.assert_allclose(rows[0], rows[2], atol=1e-6)


def test_a_column_of_jsonl_is_encoded_and_not_its_json(workplace, tiny_model):
    (workplace / "captions.jsonl").write_text('{"id": 1, "caption": "a red star"}\n')
    (workplace / "captions.txt").write_text("a red star\n")
    encode = ["encode", tiny_model("clip"), "--device", "cpu", "--texts"]
    jsonl = run(*encode, "captions.jsonl:caption", "-o", "jsonl")
    assert jsonl.exit_code == 0, jsonl.output
    assert run(*encode, "captions.txt", "-o", "txt").exit_code == 0
    rows = [np.asarray(nnnorm.open_embeddings(f"{name}/text_emb")) for name in ("jsonl", "txt")]
    np.testing.assert_array_equal(*rows)


def test_texts_beyond_the_context_are_said_and_counted(workplace, tiny_model):
    (workplace / "long.txt").write_text("red star\n" + "red " * 50 + "\n")
    result = run("encode", tiny_model("clip"), "--texts", "long.txt", "-o", "out", "--json")
    assert json.loads(result.stdout)["texts"]["n_texts_cut"] == 1
    assert "Note: 1 of 2 texts are longer than the 16 tokens" in result.stderr


# The command line, which stops once some rows are saved until it gets a signal.
WAITING = """
import os, time
from nnnorm.cli import main
from nnnorm.encoders import output
output._SAVE_EVERY = 2
replace = os.replace
def replace_and_wait(temporary, target):
    replace(temporary, target)
    if str(target).endswith("finished_rows.txt"):
        print("waiting", flush=True)
        time.sleep(600)
os.replace = replace_and_wait
main()
"""


def break_off(arguments, how):
    """Run a real process and send it a signal once some rows are saved."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as in this process (conftest.py)
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        process.send_signal(how)
        process.errors = process.communicate()[1]
    return process


def test_interrupted_it_says_how_to_go_on(workplace, tiny_model):
    arguments = ["encode", str(tiny_model("clip")), "--images", "pictures", "--device", "cpu"]
    process = break_off([*arguments, "--batch-size", "4", "-o", "out"], signal.SIGINT)
    assert process.returncode == 130
    assert "Error: interrupted; finished work is kept" in process.errors
    assert "Traceback" not in process.errors


def test_killed_half_way_and_resumed_every_byte_is_the_same(workplace, tiny_model):
    """A real SIGKILL of a real process, once some rows are saved."""
    arguments = ["encode", str(tiny_model("clip")), "--images", "pictures", "--device", "cpu"]
    arguments += ["--batch-size", "4"]
    assert run(*arguments, "-o", "once").exit_code == 0
    process = break_off([*arguments, "-o", "twice"], signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, process.errors
    assert not (workplace / "twice" / "img_emb").exists()

    result = run(*arguments, "-o", "twice", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["images"]["n_resumed"] == 8
    once, twice = (
        {path.name: path.read_bytes() for path in (workplace / name / "img_emb").iterdir()}
        for name in ("once", "twice")
    )
    assert once == twice


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--images", "list.txt"], "absent.png: there is no such file"),
        (["--images", "urls.txt"], "is a URL; download the files first"),
        (["--texts", "captions.txt", "--audio", "sounds"], "encodes images and texts, not audio"),
        (["--texts", "captions.txt", "--device", "warp:9"], "device 'warp:9' can't be used here"),
        (["--texts", "captions.txt:caption"], "isn't a table with a column 'caption'"),
        ([], "pass at least one of --images, --texts and --audio"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(workplace, tiny_model, arguments, words):
    (workplace / "list.txt").write_text("pictures/picture_00.png\npictures/absent.png\n")
    (workplace / "urls.txt").write_text("https://example.org/a.jpg\n")
    assert_fails(run("encode", tiny_model("clip"), "-o", "out", *arguments), words)
    assert not (workplace / "out").exists()


def test_a_picture_cut_short_in_the_first_batch_leaves_nothing(workplace, tiny_model):
    path = workplace / "pictures" / "picture_00.png"
    path.write_bytes(path.read_bytes()[:-40])
    encode = ["encode", tiny_model("clip"), "--device", "cpu", "--images", "pictures"]
    assert_fails(run(*encode, "-o", "out"), "picture_00.png can't be read")
    assert os.listdir("out") == []


def test_finished_work_is_kept_after_a_mistake_in_the_usage(workplace, tiny_model):
    encode = ["encode", tiny_model("clip"), "--device", "cpu", "-o", "out"]
    assert run(*encode, "--texts", "bank.txt").exit_code == 0
    before = sorted((workplace / "out/text_emb").iterdir())
    result = run(*encode, "--images", "pictures", "--dtype", "float8")
    assert_fails(result, "'float8' is not one of 'float32', 'bfloat16', 'float16'", 2)
    assert run(*encode, "--texts", "captions.txt", "--batch-size", 0).exit_code == 2
    assert sorted((workplace / "out/text_emb").iterdir()) == before
    assert os.listdir(workplace / "out") == ["text_emb"]
