"""The data set that ships: complete, disjoint, quick to load, and read by numpy as by torch."""

import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import nnnorm.datasets.shapes
from nnnorm import NNN, NNNormError
from nnnorm.datasets import load_shapes
from nnnorm.datasets.shapes import COLORS, SHAPES
from nnnorm.evaluation.hubness import count_occurrences
from nnnorm.evaluation.metrics import evaluate

ROOT = Path(__file__).parents[2]
STORED = ROOT / "src" / "nnnorm" / "datasets" / "shapes.npz"
PARTS = ("scenes", "validation_scenes", "reference_scenes", "other_scenes")


@pytest.fixture(scope="module")
def shapes():
    return load_shapes()


def test_every_role_of_a_search_is_there(shapes):
    dim = shapes.gallery.shape[1]
    assert shapes.gallery.shape == shapes.validation_gallery.shape == (1000, dim)
    assert shapes.queries.shape == shapes.validation_queries.shape == (5000, dim)
    assert shapes.references.shape == (20_000, dim)
    assert shapes.gallery_references.shape == (4000, dim)
    assert shapes.other_references.shape == (5000, dim)
    assert np.array_equal(shapes.truth, np.arange(5000) // 5)
    assert np.array_equal(shapes.validation_truth, np.arange(5000) // 5)
    for name in ("", "validation_", "reference_", "other_"):
        captions, scenes = getattr(shapes, f"{name}captions"), getattr(shapes, f"{name}scenes")
        assert len(captions) == 5 * len(scenes)


def test_embeddings_are_unit_rows_that_cannot_be_changed(shapes):
    for name in ("gallery", "queries", "references", "other_references", "validation_queries"):
        rows = getattr(shapes, name)
        assert rows.dtype == np.float32
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
        with pytest.raises(ValueError, match="read-only"):
            rows[0, 0] = 1


def test_no_scene_is_in_two_parts(shapes):
    seen = [{scene.tobytes() for scene in getattr(shapes, name)} for name in PARTS]
    assert [len(part) for part in seen] == [1000, 1000, 4000, 1000]
    assert len(set.union(*seen)) == 7000


def test_the_file_is_small_and_holds_nothing_that_runs():
    assert STORED.stat().st_size < 2.3e6  # the wheel stays below 3 MB
    with np.load(STORED, allow_pickle=False) as stored:
        assert all(stored[name].dtype.kind in "fu" for name in stored.files)


def test_loading_is_light_and_happens_once():
    load_shapes.cache_clear()
    tracemalloc.start()
    first = load_shapes()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6
    assert load_shapes() is first


# --- the text tower ------------------------------------------------------------------------------


def test_numpy_reads_texts_as_the_trained_tower_did(shapes):
    """The stored vectors come from torch, at the end of the training."""
    with np.load(STORED) as stored:
        texts = stored["check_texts"].tobytes().decode().split("\n")
        expected = stored["check_vectors"]
    assert len(texts) == 32
    assert np.abs(shapes.encode_texts(texts) - expected).max() < 1e-4


def test_stored_embeddings_are_those_of_the_stored_texts(shapes):
    for name in ("", "validation_", "reference_", "other_"):
        texts = getattr(shapes, f"{name}captions")
        stored = {"": shapes.queries, "validation_": shapes.validation_queries}.get(
            name, shapes.references if name == "reference_" else shapes.other_references
        )
        some = slice(0, None, 50)
        assert np.abs(shapes.encode_texts(texts[some]) - stored[some]).max() < 1e-3


def test_new_queries_rank_what_they_ask_for_far_above_the_rest(shapes):
    described = [shapes.describe(item) for item in range(len(shapes.gallery))]
    shares = []
    for name in (f"{color} {shape}" for color in COLORS for shape in SHAPES):
        right = np.array([name in words for words in described])
        text = f"{'an' if name.startswith('o') else 'a'} {name}"
        (scores,) = shapes.encode_texts([text]) @ shapes.gallery.T
        shares.append((scores[right][:, None] > scores[~right]).mean())
    assert np.mean(shares) > 0.85  # 0.5 by chance
    assert np.min(shares) > 0.7


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a purpel elephant"], r"without 'purpel' \(did you mean 'purple'\?\), 'elephant'"),
        (["a red star", ""], "text 1 has no words: ''"),
        ("a red star", "texts must be a list of strings.*; got 'a red star'"),
        ([" ".join(f"x{n}" for n in range(12))], "'x9' and 2 more; describe shapes"),
    ],
)
def test_words_that_it_does_not_know_are_named(shapes, texts, words):
    with pytest.raises(NNNormError, match=words):
        shapes.encode_texts(texts)


@pytest.mark.slow
def test_hubs_are_real_and_a_correction_helps(shapes):
    raw = evaluate(shapes.queries, shapes.gallery, truth=shapes.truth)
    bias = NNN().fit(shapes.gallery, shapes.references)
    done = evaluate(shapes.queries, shapes.gallery, bias, truth=shapes.truth)
    most = [count_occurrences(found.top1, 1000).max() for found in (raw, done)]
    assert most == pytest.approx([34, 25], abs=1)
    assert 100 * (done.recall(1) - raw.recall(1)) == pytest.approx(1.02, abs=0.1)


# --- the wheel, and the rebuild ------------------------------------------------------------------


@pytest.mark.slow
def test_the_wheel_contains_the_data(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    command += ["--disable-pip-version-check", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        stored = archive.read("nnnorm/datasets/shapes.npz")
    assert stored == STORED.read_bytes()


@pytest.mark.slow
def test_a_small_rebuild_from_nothing_learns_and_is_stored_like_what_ships(
    shapes, tmp_path, monkeypatch
):
    pytest.importorskip("torch")
    build = ROOT / "examples" / "shapes" / "build.py"
    command = [sys.executable, str(build), "-o", "rebuilt.npz", "--threads", "1"]
    command += ["--train", "5000", "--resolution", "24"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    with np.load(STORED) as shipped, np.load(tmp_path / "rebuilt.npz") as built:
        assert set(built.files) == set(shipped.files)
        for name in ("gallery", "captions", "scenes", "tower_middle"):
            assert (built[name].dtype, built[name].shape) == (
                (shipped[name].dtype, shipped[name].shape)
            )
    monkeypatch.setattr(nnnorm.datasets.shapes, "_FILE", tmp_path / "rebuilt.npz")
    again = load_shapes.__wrapped__()
    again = evaluate(again.queries, again.gallery, truth=shapes.truth).recall(10)
    assert again > 0.08  # 0.01 by chance; a whole rebuild has 0.65
