"""Missing embeddings are made with a real encoder, where the encoders are installed."""

import json

import numpy as np
import pytest

from nnnorm.datasets.pairs import Pairs, save_pairs
from nnnorm.datasets.scenes import draw_scene, make_scenes
from nnnorm.io import write_png
from nnnorm.reproduce.encode import encode_missing, find_missing
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.paper import find_tables
from tests.command import run

pytestmark = pytest.mark.slow


N_TRAIN, N_TEST = 24, 6


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("transformers")
    tiny = pytest.importorskip("tests.tiny")
    tiny.build("clip", tmp_path / "tiny-clip")
    return tmp_path / "tiny-clip"


@pytest.fixture
def root(tmp_path):
    """Lists of 30 drawn pictures, as `nnnorm dataset` writes them."""
    (tmp_path / "photos").mkdir()
    lines = ["image,caption,split"]
    for number, scene in enumerate(make_scenes(N_TRAIN + N_TEST)):
        write_png(tmp_path / "photos" / f"{number}.png", draw_scene(scene, 48))
        split = "train" if number < N_TRAIN else "test"
        words = ("red", "star", "small", "ring", "blue")
        lines += [f"{number}.png,a {word} {number},{split}" for word in words]
    (tmp_path / "coco.csv").write_text("\n".join(lines))
    result = run(
        "dataset", "table", tmp_path / "coco.csv", "--images", tmp_path / "photos",
        "-o", tmp_path / "embeddings",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return tmp_path / "embeddings"


def test_what_is_missing_is_what_the_tables_need_of_that_model(root):
    folder = EmbeddingFolder(root)
    tables = find_tables(["k-sweep", "image-retrieval"])
    wanted = {("SigLIP", "coco"), ("SigLIP", "flickr30k")}
    assert set(find_missing(folder, tables, "siglip")) == wanted
    (root / "siglip/coco").mkdir(parents=True)
    for side in ("images", "texts"):
        np.save(root / f"siglip/coco/{side}.npy", np.eye(4, dtype=np.float32))
    assert find_missing(folder, tables, "siglip") == [("SigLIP", "flickr30k")]
    assert find_missing(folder, find_tables(["gender"]), "siglip") == []


def test_from_pictures_to_a_table_beside_the_paper_in_one_command(root, model):
    asked = ["reproduce", "--table", "ablation-coco-image", "--embeddings", root]
    result = run(*asked, "--encoder", f"clip={model}", "--json")
    assert result.exit_code == 0, result.output
    cells = [cell for cell in json.loads(result.stdout)[0]["cells"] if cell["row"] == "CLIP"]
    assert len(cells) == 5
    assert all(0 <= cell["figure"]["value"] <= 100 for cell in cells)
    again = run(*asked, "--json")  # the embeddings are there now
    assert json.loads(again.stdout) == json.loads(result.stdout)


def test_from_pictures_to_the_figure_of_cross_attention_in_one_command(root, tiny_model):
    """The first caption of every test image, and the captions of the bank, are matched."""
    asked = ["reproduce", "--table", "cross-attention", "--embeddings", root, "--json"]
    result = run(*asked, "--encoder", f"blip-itm={tiny_model('blip')}")
    assert result.exit_code == 0, result.output
    figures = [cell["figure"]["value"] for cell in json.loads(result.stdout)[0]["cells"]]
    test, bank = (
        np.load(root / "blip-itm/coco" / f"{name}-scores.npy") for name in ("test", "reference")
    )
    assert test.shape == (N_TEST, N_TEST)
    assert bank.shape == (N_TEST, 5 * round(0.2 * N_TRAIN))
    assert figures[0] == pytest.approx(100 * np.mean(test.argmax(axis=0) == np.arange(N_TEST)))
    assert json.loads(run(*asked).stdout) == json.loads(result.stdout)  # the scores are there now


def test_paths_in_a_list_are_meant_from_where_it_lies(tmp_path, model):
    """As `nnnorm encode` means them, wherever the command is run."""
    images = tuple(f"photos/{name}.png" for name in "ab")
    (tmp_path / "photos").mkdir()
    for path, scene in zip(images, make_scenes(2), strict=True):
        write_png(tmp_path / path, draw_scene(scene, 48))
    rows = np.arange(2)
    save_pairs(Pairs("coco", images, ("a red star", "a ring"), rows, {"test": rows}), tmp_path)
    made = encode_missing(EmbeddingFolder(tmp_path), [("CLIP", "coco")], str(model))
    assert [folder.name for folder in made] == ["img_emb", "text_emb"]
    assert EmbeddingFolder(tmp_path).embeddings("CLIP", "coco", "images").shape == (2, 24)
