"""Missing rows that tables need are encoded with a real encoder, after all checks."""

import json
import re

import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import load_pairs
from reproduction.encode import check_sources, find_needed, read_sources
from reproduction.material import EmbeddingFolder, split_pairs
from reproduction.paper import find_tables
from tests import tiny
from tests.command import run
from tests.reproduction.test_command import reproduce, reproduce_json

N_TRAIN, N_TEST = 24, 6


@pytest.fixture
def root(tmp_path):
    """Lists of 30 drawn pictures, as `nnnorm dataset` writes them; one caption is a dot."""
    pictures = tiny.draw_images(tmp_path / "photos", n=N_TRAIN + N_TEST)
    lines = ["image,caption,split"]
    for number, path in enumerate(pictures):
        split = "train" if number < N_TRAIN else "test"
        captions = [f"a {word} {number}" for word in ("red", "star", "small", "ring")]
        captions.append("." if number == 3 else f"a blue {number}")
        lines += [f"{path.name},{caption},{split}" for caption in captions]
    (tmp_path / "coco.csv").write_text("\n".join(lines))
    result = run(
        "dataset", "table", tmp_path / "coco.csv", "--images", tmp_path / "photos",
        "-o", tmp_path / "embeddings",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return tmp_path / "embeddings"


def needed_rows(root, *names):
    found = find_needed(EmbeddingFolder(root), find_tables(names), {"clip"})
    return {(dataset, side): rows for (_, dataset, side), rows in found.items()}


def test_a_table_needs_test_and_tuning_images_and_its_share_of_the_bank_alone(root):
    parts = split_pairs(load_pairs(root / "coco.json"), share=0.1)
    (table,) = find_tables(["ablation-coco-image"])
    small = [c for c in table.cells if c.experiment.share == 0.1 or c.experiment.method == "none"]
    folder = EmbeddingFolder(root)
    found = find_needed(folder, [type(table)("x", "1", "", "", tuple(small), ())], {"clip"})
    images, texts = found["CLIP", "coco", "images"], found["CLIP", "coco", "texts"]
    both = np.concatenate([parts.test.images, parts.validation.images])
    np.testing.assert_array_equal(images, np.sort(both))
    captions = [part.captions for part in (parts.test, parts.validation, parts.references)]
    np.testing.assert_array_equal(texts, np.sort(np.concatenate(captions)))


def test_uncorrected_and_given_settings_need_no_tuning_images(root):
    parts = split_pairs(load_pairs(root / "coco.json"), share=1.0)
    rows = needed_rows(root, "k-sweep-image")
    np.testing.assert_array_equal(rows["coco", "images"], parts.test.images)
    assert len(rows["coco", "texts"]) == len(parts.test.captions) + len(parts.references.captions)


def test_embeddings_made_elsewhere_are_left_alone(root):
    (root / "clip/coco").mkdir(parents=True)
    np.save(root / "clip/coco/images.npy", np.eye(30, dtype=np.float32))
    assert set(needed_rows(root, "k-sweep-image")) == {("coco", "texts")}


@pytest.mark.slow
def test_from_pictures_to_a_table_in_one_command_that_continues(root, tiny_model):
    asked = ["--table", "k-sweep-image", "--embeddings", root]
    first = reproduce_json(*asked, "--encoder", f"clip={tiny_model('clip')}")
    cells = [cell for cell in first[0]["cells"] if cell["row"] == "CLIP"]
    assert all(0 <= cell["figure"]["value"] <= 100 for cell in cells[:3])
    rows = np.isfinite(np.load(root / "clip/coco/images.npy")).all(axis=1)
    assert rows.sum() == N_TEST  # and no other image was encoded
    assert reproduce_json(*asked) == first  # the embeddings are there now
    more = ["--table", "ablation-coco-image", "--embeddings", root]
    reproduce_json(*more, "--encoder", f"clip={tiny_model('clip')}")
    assert np.isfinite(np.load(root / "clip/coco/images.npy")[:, 0]).sum() == 2 * N_TEST
    other = reproduce(
        *more, "--table", "ablation-coco-text", "--encoder", f"clip={tiny_model('siglip')}"
    )
    assert other.code == 1
    assert "was made with different" in other.stderr


@pytest.mark.slow
def test_from_pictures_to_the_figure_of_cross_attention_in_one_command(root, tiny_model):
    """The first caption of every test image, and the captions of the bank, are matched."""
    asked = ["--table", "cross-attention", "--embeddings", root]
    first = reproduce(*asked, "--encoder", f"blip-itm={tiny_model('blip')}", "--json")
    test, bank = (
        np.load(root / "blip-itm/coco" / f"{name}-scores.npy") for name in ("test", "reference")
    )
    assert test.shape == (N_TEST, N_TEST)
    assert bank.shape == (N_TEST, 5 * round(0.2 * N_TRAIN))
    cells = json.loads(first.stdout)[0]["cells"]
    expected = 100 * np.mean(test.argmax(axis=0) == np.arange(N_TEST))
    assert cells[0]["figure"]["value"] == pytest.approx(expected)
    assert "25 references, too few for k = 64" in cells[1]["missing"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clip", "can't be read as TOML"),
        ("[clip]\nsource = 'x'", "clip must be text: a file, a folder or a hub name"),
    ],
)
def test_a_toml_file_with_mistakes_is_rejected(tmp_path, text, words):
    (tmp_path / "models.toml").write_text(text)
    with pytest.raises(NNNormError, match=words):
        read_sources(tmp_path / "models.toml")


def test_the_file_that_ships_names_all_rows_of_the_paper():
    from pathlib import Path

    import reproduction
    from reproduction.paper import load_paper

    path = Path(reproduction.__file__).with_name("models.toml")
    named = set(read_sources(path))
    commented = set(re.findall(r"(?m)^# ([a-z-]+) = ", path.read_text()))
    assert named | commented == set(load_paper().models.values())
    assert commented == {"clip-ft-flickr", "clip-ft-coco"}  # no published checkpoint is named


def test_every_path_is_checked_before_anything_is_loaded(root, tmp_path):
    folder = EmbeddingFolder(root)
    (tmp_path / "photos" / "picture_29.png").unlink(missing_ok=True)
    for path in (tmp_path / "photos").glob("picture_29.*"):
        path.unlink()
    shorts = {"clip", "albef-ft-coco", "beit-3"}
    needed = find_needed(folder, find_tables(["k-sweep-image"]), shorts)
    (tmp_path / "beit3.pth").write_bytes(b"")
    sources = {
        "clip": str(tmp_path / "no" / "clip"),
        "albef-ft-coco": str(tmp_path / "mscoco.pth"),
        "beit-3": str(tmp_path / "beit3.pth"),
    }
    with pytest.raises(NNNormError) as found:
        check_sources(folder, needed, sources)
    for words in ("1 pictures are missing", "no/clip", "mscoco.pth", "beit3.spm"):
        assert words in str(found.value)
    assert not (root / "clip").exists()
