"""Scores of BLIP's matching head on disk: as its authors evaluate, whole or resumed."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

from nnnorm import NNNormError, NNNormWarning
from nnnorm.encoders import match_to_files
from nnnorm.encoders.blip_matching import BlipMatcher
from nnnorm.encoders.images import open_image
from tests import tiny
from tests.command import run

pytestmark = pytest.mark.slow

PAST = [f"the {text}" for text in tiny.TEXTS] + ["a big ring", "a small star"]
K = 3


@pytest.fixture(scope="module")
def blip(tiny_encoder):
    return tiny_encoder("blip")


def logit(encoder, image, text):
    """The second output of the matching head, of one pair, where the text begins with [ENC]."""
    model = encoder.model
    patches = model.vision_model(**encoder.process_images([open_image(image)])).last_hidden_state
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
    """Both directions, from a Python call each."""
    folder = tmp_path_factory.mktemp("matched")
    options = {"shortlist": K, "batch_size": 2}
    with pytest.warns(NNNormWarning, match="use a reference_k of at most 3"):
        match_to_files(blip, pictures, tiny.TEXTS, folder / "image", references=PAST, **options)
    options |= {"direction": "text", "references": pictures[5:]}
    match_to_files(blip, pictures[:5], tiny.TEXTS, folder / "text", **options)
    return folder


def test_images_found_by_texts_are_scored_as_by_the_authors(blip, pictures, matched):
    scores = np.load(matched / "image" / "test-scores.npy")
    assert scores.dtype == np.float32
    expected = scores_as_the_authors(blip, pictures, tiny.TEXTS, K, chooser="text")
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert ((scores > -100).sum(axis=0) == K).all()


def test_every_image_is_matched_with_its_best_references(blip, pictures, matched):
    scores = np.load(matched / "image" / "reference-scores.npy")
    expected = scores_as_the_authors(blip, pictures, PAST, K, chooser="image")
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_texts_found_by_images_are_scored_as_by_the_authors_with_texts_in_rows(
    blip, pictures, matched
):
    scores = np.load(matched / "text" / "test-scores.npy")
    expected = scores_as_the_authors(blip, pictures[:5], tiny.TEXTS, K, chooser="image")
    np.testing.assert_allclose(scores, expected.T, atol=1e-5)
    past = np.load(matched / "text" / "reference-scores.npy")
    expected = scores_as_the_authors(blip, pictures[5:], tiny.TEXTS, K, chooser="text")
    np.testing.assert_allclose(past, expected.T, atol=1e-5)


def test_only_finished_files_are_left_and_say_how_they_were_made(matched):
    names = ["matching.json", "reference-scores.npy", "test-scores.npy"]
    assert sorted(os.listdir(matched / "image")) == names
    about = json.loads((matched / "image" / "matching.json").read_text())
    assert (about["direction"], about["shortlist"]) == ("image", K)
    assert (about["n_images"], about["n_texts"], about["n_references"]) == (8, 8, 10)
    assert about["weights_sha256"]


def test_a_shortlist_longer_than_the_gallery_matches_every_pair(blip, pictures, tmp_path):
    match_to_files(blip, pictures[:2], tiny.TEXTS[:3], tmp_path)
    scores = np.load(tmp_path / "test-scores.npy")
    logits = BlipMatcher(blip).score(pictures[:2], tiny.TEXTS[:3])
    similar = blip.encode_images(pictures[:2]) @ blip.encode_texts(tiny.TEXTS[:3]).T
    np.testing.assert_allclose(scores, logits + similar, atol=1e-5)


@pytest.mark.filterwarnings("ignore:an item is matched:nnnorm.NNNormWarning")
def test_broken_off_and_resumed_every_byte_is_the_same(
    blip, pictures, matched, tmp_path, monkeypatch
):
    options = {"references": PAST, "shortlist": K, "batch_size": 2}
    monkeypatch.setattr("nnnorm.encoders.matching._PART_IMAGES", 2)
    told = []

    def stop(done, total):
        told.append((done, total))
        if done > 0.6 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        match_to_files(blip, pictures, tiny.TEXTS, tmp_path, progress=stop, **options)
    assert os.listdir(tmp_path) == ["matching.partial"]
    with pytest.raises(NNNormError, match="interrupted work is there; resume it with --resume"):
        match_to_files(blip, pictures, tiny.TEXTS, tmp_path, **options)
    with pytest.raises(NNNormError, match="made with other inputs"):
        match_to_files(blip, pictures[1:], tiny.TEXTS, tmp_path, resume=True, **options)
    done = match_to_files(blip, pictures, tiny.TEXTS, tmp_path, resume=True, **options)
    assert 0 < done.n_resumed < told[-1][1]
    for name in os.listdir(matched / "image"):
        assert (tmp_path / name).read_bytes() == (matched / "image" / name).read_bytes()
    again = match_to_files(blip, pictures, tiny.TEXTS, tmp_path, resume=True, **options)
    assert again.files == done.files
    with pytest.raises(NNNormError, match=r"made with another shortlist \(3; now 4\)"):
        match_to_files(
            blip, pictures, tiny.TEXTS, tmp_path, resume=True, references=PAST, shortlist=4
        )


@pytest.mark.filterwarnings("ignore:an item is matched:nnnorm.NNNormWarning")
@pytest.mark.parametrize("changed", ["images", "texts", "references"])
def test_finished_scores_are_never_given_for_other_inputs_of_the_same_number(
    blip, pictures, matched, changed
):
    inputs = {"images": pictures, "texts": tiny.TEXTS, "references": PAST}
    inputs[changed] = inputs[changed][::-1]
    with pytest.raises(NNNormError, match=f"it was made with other {changed} "):
        match_to_files(blip, output=matched / "image", shortlist=K, resume=True, **inputs)


@pytest.mark.filterwarnings("ignore:an item is matched:nnnorm.NNNormWarning")
def test_finished_scores_of_a_model_known_only_by_its_name_are_not_given_for_another(
    blip, pictures, matched, tmp_path, monkeypatch
):
    options = {"references": PAST, "shortlist": K, "resume": True}
    shutil.copytree(matched / "image", tmp_path / "out")
    monkeypatch.setattr(blip, "about", {**blip.about, "model": "moved"})
    assert match_to_files(blip, pictures, tiny.TEXTS, tmp_path / "out", **options).files
    about = json.loads((tmp_path / "out" / "matching.json").read_text())
    about["weights_sha256"] = None
    (tmp_path / "out" / "matching.json").write_text(json.dumps(about))
    monkeypatch.setattr(blip, "about", {**blip.about, "weights_sha256": None})
    with pytest.raises(NNNormError, match=r"made with another model \(.*; now moved\)"):
        match_to_files(blip, pictures, tiny.TEXTS, tmp_path / "out", **options)


def test_scores_of_earlier_references_do_not_stay_beside_new_ones(blip, pictures, tmp_path):
    (tmp_path / "reference-scores.npy").write_bytes(b"of other work")
    match_to_files(blip, pictures[:2], tiny.TEXTS[:2], tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["matching.json", "test-scores.npy"]


def test_a_model_without_a_matching_head_is_refused(tiny_encoder, pictures, tmp_path):
    for kind in ("clip", "albef"):
        with pytest.raises(NNNormError, match="has no matching head; expected a BLIP"):
            match_to_files(tiny_encoder(kind), pictures, tiny.TEXTS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_same_files(matched, tiny_model, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("images", pictures), ("texts", tiny.TEXTS), ("past", PAST)):
        (tmp_path / f"{name}.txt").write_text("\n".join(map(str, lines)) + "\n")
    lists = ["--images", "images.txt", "--texts", "texts.txt", "--references", "past.txt"]
    match = ["encode", tiny_model("blip"), "-o", "out", "--device", "cpu", *lists]
    match += ["--shortlist", K, "--batch-size", 2]
    result = run(*match, "--matching", "image", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["files"] == ["out/test-scores.npy", "out/reference-scores.npy"]
    assert "Note: an item is matched with its 3 best references only" in result.stderr
    for name in ("test-scores.npy", "reference-scores.npy"):
        assert (tmp_path / "out" / name).read_bytes() == (matched / "image" / name).read_bytes()
    result = run(*match, "--matching", "image")
    assert "Error: cannot write out/test-scores.npy: it exists" in result.stderr
    result = run(*match)
    assert "--references and --shortlist are for --matching" in result.stderr
    result = run(*match, "--matching", "image", "--shard", "1/2")
    assert "takes no --audio and no --shard" in result.stderr
