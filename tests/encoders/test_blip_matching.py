"""BLIP's matching head as a scorer, and NNN over its scores."""

import numpy as np
import pytest
import torch

import nnnorm
from nnnorm import NNNormError
from nnnorm.encoders.blip_matching import BlipMatcher
from nnnorm.encoders.images import open_image
from tests import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def matcher(tiny_encoder):
    return BlipMatcher(tiny_encoder("blip"))


def match_as_the_authors(encoder, image, text, first):
    """The logit of a match, a text at a time, that begins with the token `first`."""
    model = encoder.model
    patches = model.vision_model(**encoder.process_images([open_image(image)])).last_hidden_state
    tokens = encoder.tokenize([text])
    ids = torch.cat([torch.tensor([[first]]), tokens["input_ids"][:, 1:]], dim=1)
    states = model.text_encoder(
        ids,
        attention_mask=tokens["attention_mask"],
        encoder_hidden_states=patches,
        encoder_attention_mask=torch.ones(patches.shape[:2], dtype=torch.long),
    ).last_hidden_state
    return float(model.itm_head(states[:, 0])[0, 1])


@torch.no_grad()
def test_scores_are_the_logit_of_a_match_of_a_text_that_begins_with_enc(
    matcher, tiny_encoder, pictures
):
    encoder = tiny_encoder("blip")
    scores = matcher.score(pictures, tiny.TEXTS, batch_size=3)
    assert scores.shape == (8, 8)
    assert scores.dtype == np.float32
    n_words = encoder.model.config.text_config.vocab_size
    for row, path in enumerate(pictures[:3]):
        for column, text in enumerate(tiny.TEXTS):
            expected = match_as_the_authors(encoder, path, text, n_words - 1)
            assert scores[row, column] == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_without_enc_the_score_is_that_of_transformers_and_another(matcher, tiny_encoder, pictures):
    encoder = tiny_encoder("blip")
    pixels = encoder.process_images([open_image(pictures[0])])
    theirs = float(encoder.model(**encoder.tokenize(tiny.TEXTS[:1]), **pixels).itm_score[0, 1])
    first = int(encoder.tokenize(tiny.TEXTS[:1])["input_ids"][0, 0])
    assert match_as_the_authors(encoder, pictures[0], tiny.TEXTS[0], first) == pytest.approx(theirs)
    assert abs(matcher.score(pictures[:1], tiny.TEXTS[:1]).item() - theirs) > 1e-3


def test_a_model_without_enc_is_refused(tiny_encoder, pictures, monkeypatch):
    encoder = tiny_encoder("blip")
    monkeypatch.setattr(encoder.model.config.text_config, "bos_token_id", 0)
    with pytest.raises(NNNormError, match=r"has no token \[ENC\]"):
        BlipMatcher(encoder).score(pictures[:1], ["a red circle"])


def test_the_batch_size_does_not_matter(matcher, pictures):
    np.testing.assert_allclose(
        matcher.score(pictures, tiny.TEXTS, batch_size=1),
        matcher.score(pictures, tiny.TEXTS, batch_size=100),
        atol=1e-5,
    )


def test_nnn_corrects_such_scores(matcher, pictures):
    bank = matcher.score(pictures, [f"the {text}" for text in tiny.TEXTS])
    bias = nnnorm.NNN(reference_k=4, alpha=0.75).fit_scores(bank)
    best = np.sort(bank, axis=1)[:, -4:].mean(axis=1)
    np.testing.assert_allclose(bias.correction, 0.75 * best, rtol=1e-5)
    corrected = matcher.score(pictures, tiny.TEXTS).T - bias.correction
    assert corrected.shape == (8, 8)


def test_progress_counts_pairs(matcher, pictures):
    told = []
    matcher.score(pictures[:2], tiny.TEXTS[:3], progress=lambda *pair: told.append(pair))
    assert told == [(3, 6), (6, 6)]


def test_a_model_without_a_matching_head_is_refused(tiny_encoder):
    with pytest.raises(NNNormError, match=r"has no matching head; .*got CLIPModel"):
        BlipMatcher(tiny_encoder("clip"))


def test_pairs_too_many_for_the_memory_are_said(matcher, tiny_encoder, pictures, monkeypatch):
    def full(**inputs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr(tiny_encoder("blip").model.vision_model, "forward", full)
    with pytest.raises(NNNormError, match="out of memory with 2 pairs at once; take a smaller"):
        matcher.score(pictures[:1], tiny.TEXTS[:3], batch_size=2)


def test_empty_texts_and_batches_are_refused(matcher, pictures):
    with pytest.raises(NNNormError, match="number 0"):
        matcher.score(pictures, [""])
    with pytest.raises(NNNormError, match="batch_size must be 1 or more"):
        matcher.score(pictures, ["a"], batch_size=0)
