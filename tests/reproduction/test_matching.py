"""Scores of BLIP's matching head on disk: as its authors evaluate, whole or resumed."""

import os

import numpy as np
import pytest
import torch

from nnnorm import NNNormError
from nnnorm.encoders import open_image
from reproduction.models import matching
from tests import tiny

pytestmark = pytest.mark.slow

PAST = [f"the {text}" for text in tiny.TEXTS] + ["a big ring", "a small star"]
K = 3


@pytest.fixture(scope="module")
def blip(tiny_encoder):
    return tiny_encoder("blip")


def match(encoder, images, folder, texts=tiny.TEXTS, **options):
    names = [str(path) for path in images]
    return matching.match_to_files(encoder, names, texts, PAST, folder, shortlist=K, **options)


def logit(encoder, image, text):
    """The second output of the matching head, of one pair, where the text begins with [ENC]."""
    model = encoder.model
    patches = model.vision_model(
        **encoder.stack([encoder.prepare_image(open_image(image))])
    ).last_hidden_state
    tokens = encoder.tokenize([text])
    ids = tokens["input_ids"].clone()
    ids[:, 0] = model.config.text_config.vocab_size - 1
    states = model.text_encoder(
        ids,
        attention_mask=tokens["attention_mask"],
        encoder_hidden_states=patches,
        encoder_attention_mask=torch.ones(patches.shape[:2], dtype=torch.long),
    ).last_hidden_state
    return float(model.itm_head(states[:, 0])[0, 1])


@torch.no_grad()
def scores_as_the_authors(encoder, images, texts, k, chooser):
    """Rows are images. Each image (or text) chooses its k most similar partners; else −100."""
    similar = encoder.encode_images(images) @ encoder.encode_texts(texts).T
    scores = np.full(similar.shape, -100.0)
    for one in range(similar.shape[0 if chooser == "image" else 1]):
        line = similar[one] if chooser == "image" else similar[:, one]
        for other in np.argsort(-line)[:k]:
            pair = (one, other) if chooser == "image" else (other, one)
            scores[pair] = logit(encoder, images[pair[0]], texts[pair[1]]) + similar[pair]
    return scores


@pytest.fixture(scope="module")
def matched(blip, pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("matched")
    match(blip, pictures, folder)
    return folder


def test_images_found_by_texts_are_scored_as_by_the_authors(blip, pictures, matched):
    scores = np.load(matched / "test-scores.npy")
    assert scores.dtype == np.float32
    expected = scores_as_the_authors(blip, pictures, tiny.TEXTS, K, chooser="text")
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert ((scores > -100).sum(axis=0) == K).all()


def test_every_image_is_matched_with_its_best_references(blip, pictures, matched):
    scores = np.load(matched / "reference-scores.npy")
    expected = scores_as_the_authors(blip, pictures, PAST, K, chooser="image")
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_interrupted_and_resumed_every_byte_is_the_same(
    blip, pictures, matched, tmp_path, monkeypatch
):
    monkeypatch.setattr(matching, "_IMAGES_AT_ONCE", 2)

    def stop(text):
        if text.startswith("Matching image 5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        match(blip, pictures, tmp_path, step=stop)
    assert len(list((tmp_path / "matching.partial").glob("scores_*.npz"))) == 2
    with pytest.raises(NNNormError, match="scores of another model, shortlist or inputs"):
        match(blip, pictures[1:], tmp_path)
    match(blip, pictures, tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(os.listdir(matched))
    for name in os.listdir(matched):
        assert (tmp_path / name).read_bytes() == (matched / name).read_bytes()
    assert match(blip, pictures, tmp_path)[0].name == "test-scores.npy"


def test_finished_scores_are_never_given_for_other_inputs(blip, pictures, matched):
    with pytest.raises(NNNormError, match="scores of another model, shortlist or inputs"):
        match(blip, pictures, matched, texts=tiny.TEXTS[::-1])


def test_a_model_without_a_matching_head_is_rejected(tiny_encoder, pictures, tmp_path):
    for kind in ("clip", "albef"):
        with pytest.raises(NNNormError, match="has no matching head; expected a BLIP"):
            match(tiny_encoder(kind), pictures, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_enc_is_rejected(blip, monkeypatch):
    monkeypatch.setattr(blip.model.config.text_config, "bos_token_id", 0)
    with pytest.raises(NNNormError, match=r"has no token \[ENC\]"):
        matching.Matcher(blip)
