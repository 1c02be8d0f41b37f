"""The gallery as its own bank is refused, and repeated items are named."""

import numpy as np
import pytest

import nnnorm
from nnnorm import NNNormError, NNNormWarning


@pytest.fixture
def gallery(rng):
    return rng.normal(size=(300, 32)).astype(np.float32)


@pytest.mark.parametrize(
    "make",
    [
        lambda gallery: gallery,
        lambda gallery: gallery[::-1],
        lambda gallery: 3 * gallery[100:200],
        lambda gallery: gallery.astype(np.float16),
        lambda gallery: np.concatenate([gallery[:60], -gallery[:40]]),
    ],
    ids=["itself", "another order", "a part", "float16", "more than half"],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_gallery_is_no_bank_of_its_own(gallery, make, normalize):
    words = r"references seem to be rows of gallery: \d+ of 64 .* Give past queries instead"
    with pytest.raises(NNNormError, match=words):
        nnnorm.NNN().fit(gallery, make(gallery), normalize=normalize)


def test_own_rows_may_be_asked_for(gallery):
    bias = nnnorm.NNN().fit(gallery, gallery, normalize=True, own_rows=True)
    assert len(bias) == 300


def test_past_queries_may_equal_some_items(gallery, rng):
    references = np.concatenate([gallery[:40], rng.normal(size=(60, 32))])
    assert len(nnnorm.NNN().fit(gallery, references, normalize=True)) == 300


def test_a_bank_of_the_gallery_s_rows_is_refused_too(gallery):
    bank = nnnorm.Bank.of(gallery, normalize=True)
    with pytest.raises(NNNormError, match="references seem to be rows of gallery"):
        nnnorm.NNN().fit(gallery, bank, normalize=True)


def test_the_studies_name_it(gallery, rng):
    queries = gallery[:60] + 0.1 * rng.normal(size=(60, 32)).astype(np.float32)
    asked = {"queries": queries, "truth": np.arange(60), "normalize": True}
    task = nnnorm.Task(queries, gallery, np.arange(60))
    words = "references.* seem to be rows of .*gallery.* which makes the search worse"
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.tune(gallery, gallery, **asked)
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.compare(gallery, gallery, **asked, validation=task, methods=["csls"])
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.ablate(gallery, gallery, **asked, validation=task, shares=[1.0])
    with pytest.raises(NNNormError, match="references seem to be rows of gallery"):
        nnnorm.diagnose(queries, gallery, references=gallery, normalize=True)


@pytest.mark.parametrize("normalize", [True, False])
def test_repeated_items_are_named(gallery, rng, normalize):
    repeated = gallery[np.arange(500) % 100]
    with pytest.warns(NNNormWarning, match="gallery has 100 different rows among 500: repeated"):
        nnnorm.NNN().fit(repeated, rng.normal(size=(50, 32)), normalize=normalize)


def test_a_photo_that_is_twice_in_a_gallery_is_not_worth_a_word(gallery, rng, recwarn):
    twice = np.concatenate([gallery, gallery[:1]])
    nnnorm.NNN().fit(twice, rng.normal(size=(50, 32)), normalize=True)
    assert not recwarn.list
