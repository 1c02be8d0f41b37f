"""The gallery as its own bank is refused, and repeated items are named."""

import itertools

import numpy as np
import pytest

import nnnorm
from nnnorm import NNNormError, NNNormWarning
from nnnorm.roles import check_roles


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


def test_zeros_of_both_signs_are_equal_and_rows_of_any_width_are_told_apart(rng):
    rows = np.eye(41, dtype=np.float32)
    with pytest.warns(NNNormWarning, match="gallery has 41 different rows among 82"):
        nnnorm.NNN().fit(
            np.concatenate([rows, np.where(rows, rows, np.float32(-0.0))]),
            rng.normal(size=(50, 41)),
        )


@pytest.fixture
def large(rng, monkeypatch):
    """A gallery of which a twentieth is read."""
    monkeypatch.setattr("nnnorm.roles._MOST_ROWS", 1000)
    monkeypatch.setattr("nnnorm.roles._RUN", 100)
    return rng.normal(size=(20_000, 16)).astype(np.float32)


def rows_read(monkeypatch):
    read = []
    whole = nnnorm.Embeddings.rows
    monkeypatch.setattr(
        nnnorm.Embeddings, "rows", lambda self, a, b: (read.append((a, b)), whole(self, a, b))[1]
    )
    return read


def test_of_a_large_gallery_a_sample_is_read_that_does_not_overlap(large, rng, monkeypatch):
    gallery, references = (
        nnnorm.open_embeddings(rows) for rows in (large, rng.normal(size=(500, 16)))
    )
    read = rows_read(monkeypatch)
    check_roles(gallery, references)
    assert sum(stop - start for start, stop in read) == 1000
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(read))


@pytest.mark.parametrize("n_references", [40, 2000, 20_000])
def test_rows_of_a_large_gallery_are_found_in_a_sample_of_it(large, rng, n_references):
    own = large[rng.permutation(20_000)[:n_references]].astype(np.float16)
    gallery = nnnorm.open_embeddings(large, normalize=True)
    with pytest.raises(NNNormError, match=r"\d+ of \d+ that were looked for in \d+.\d% of the row"):
        check_roles(gallery, nnnorm.open_embeddings(own, normalize=True))
    past = own + rng.normal(size=own.shape).astype(np.float16)
    check_roles(gallery, nnnorm.open_embeddings(past, normalize=True))


def test_repeats_in_a_sample_of_a_large_gallery_are_named(large, rng):
    gallery, references = (
        nnnorm.open_embeddings(rows) for rows in (large[np.arange(20_000) % 80], large[:10])
    )
    with pytest.warns(NNNormWarning, match="80 different rows among 1,000 that were looked at"):
        check_roles(gallery, references, own_rows=True)
