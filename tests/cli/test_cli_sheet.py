"""Sheets of a search and of an audit, from files of one's own."""

import json

import numpy as np
import pytest

from nnnorm import NNN
from nnnorm.io import write_png
from tests.command import run

pillow = pytest.importorskip("PIL.Image")


def seen(path):
    with pillow.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


GREEN, ORANGE, BLUE = (0, 158, 115), (213, 94, 0), (0, 114, 178)


def has(sheet, colour):
    return bool((sheet == colour).all(axis=2).any())


@pytest.fixture
def files(tmp_path, monkeypatch, rng):
    """A gallery whose item 0 is a hub, with a picture of its own colour for every item."""
    monkeypatch.chdir(tmp_path)
    items = rng.normal(size=(12, 24))
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    queries = np.repeat(items, 4, axis=0) + 0.15 * rng.normal(size=(48, 24))
    lean = items.sum(axis=0) / np.linalg.norm(items.sum(axis=0))
    gallery = items.copy()
    gallery[0] = 0.5 * items[0] + 4.0 * lean
    np.save("gallery.npy", gallery.astype(np.float32))
    np.save("queries.npy", queries.astype(np.float32))
    np.save("truth.npy", np.repeat(np.arange(12), 4))
    references = np.repeat(items, 20, axis=0) + 0.15 * rng.normal(size=(240, 24))
    NNN(16, 1.0).fit(np.load("gallery.npy"), references).save("bias.safetensors")
    (tmp_path / "pictures").mkdir()
    for number in range(12):
        write_png(f"pictures/{number:02d}.png", np.full((30, 40, 3), 10 * number, dtype=np.uint8))
    (tmp_path / "groups.csv").write_text("group\n" + "a\nb\n" * 6)
    (tmp_path / "items.txt").write_text("".join(f"caption of {n}\n" for n in range(12)))
    (tmp_path / "asked.txt").write_text("".join(f"question {n}\n" for n in range(48)))
    return tmp_path


TASK = ["--gallery", "gallery.npy", "--queries", "queries.npy", "--no-normalize"]
SEARCH = ["search", *TASK, "-k", "3", "--sheet", "out.png"]


@pytest.mark.slow
def test_a_sheet_shows_pictures_before_and_after(files):
    result = run(*SEARCH, "--bias", "bias.safetensors", "--images", "pictures", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["k"] == 3  # the answer is the same as without a sheet
    assert "Sheet: out.png" in result.stderr
    sheet = seen("out.png")
    assert has(sheet, ORANGE)  # the hub
    assert not has(sheet, GREEN)  # nothing is known to be right
    plain = run(*SEARCH, "--images", "pictures")
    assert plain.exit_code == 0
    assert len(seen("out.png")) < len(sheet)


@pytest.mark.slow
def test_with_truth_the_queries_are_those_that_a_hub_had_answered(files):
    asked = [*SEARCH, "--bias", "bias.safetensors", "--truth", "truth.npy"]
    result = run(*asked, "--captions", "items.txt", "--query-captions", "asked.txt")
    assert result.exit_code == 0, result.output
    assert "no query was answered by a hub" not in result.stderr
    sheet = seen("out.png")
    assert has(sheet, GREEN)
    assert has(sheet, ORANGE)
    np.save("truth.npy", np.zeros(48, dtype=int))
    result = run(*asked)
    assert "Note: no query was answered by a hub before and is right after" in result.stderr


@pytest.mark.slow
def test_an_audit_frames_items_by_their_group(files):
    asked = ["audit", *TASK, "--groups", "groups.csv", "-k", "5", "--difference", "a,b"]
    result = run(*asked, "--bias", "bias.safetensors", "--sheet", "out.png", "--images", "pictures")
    assert result.exit_code == 0, result.output
    sheet = seen("out.png")
    assert has(sheet, ORANGE)
    assert has(sheet, BLUE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search", *TASK, "--images", "pictures"], "are for a sheet; give --sheet FILE"),
        (["search", *TASK, "--truth", "truth.npy"], "--truth is for a sheet; give --sheet FILE"),
        ([*SEARCH, "--captions", "asked.txt"], "has 48 entries, but there are 12 items"),
        ([*SEARCH, "--query-captions", "items.txt"], "has 12 entries, but there are 48 queries"),
        ([*SEARCH, "--images", "nowhere"], "there is no file or folder nowhere"),
        (["search", *TASK, "--sheet", "out.jpg"], "the output must end in .png"),
        (["search", *TASK, "--sheet", "gallery.npy"], "is one of the inputs and would be lost"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(files, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 1
    assert words in " ".join(result.stderr.split())
    assert not (files / "out.png").exists()


def test_a_picture_that_cannot_be_read_is_named(files):
    (files / "pictures/00.png").write_text("no picture")
    result = run(*SEARCH, "--images", "pictures")
    assert result.exit_code == 1
    assert "the picture pictures/00.png can't be read" in " ".join(result.stderr.split())
