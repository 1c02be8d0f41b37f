"""Warnings and errors about input that would give a wrong correction."""

import warnings

import numpy as np
import pytest

import nnnorm
from nnnorm import Corrector, NNNormError, NNNormWarning, open_embeddings
from nnnorm.evaluation import Task, diagnose
from nnnorm.input_checks import (
    MISMATCH_Z,
    check_inputs,
    describe_reliability,
    mismatch_z,
    warn_of_mismatch,
)
from tests.conftest import REAL_DATA


@pytest.fixture
def gallery(rng):
    return rng.normal(size=(300, 32)).astype(np.float32)


def unit(rows):
    rows = np.asarray(rows, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def said(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if issubclass(one.category, NNNormWarning)]


# --- rows of the gallery, and repeated items -----------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda gallery: gallery,
        lambda gallery: gallery[::-1],
        lambda gallery: 3 * gallery[100:200],
        lambda gallery: gallery.astype(np.float16),
        lambda gallery: np.concatenate([gallery[:60], -gallery[:40]]),
        lambda gallery: nnnorm.Bank.of(gallery, normalize=True),
    ],
    ids=["itself", "another order", "a part", "float16", "more than half", "a bank"],
)
def test_references_that_are_gallery_rows_are_rejected(gallery, make):
    words = r"\d+ of \d+ sampled references are rows of gallery, .* allow_gallery_rows=True"
    with pytest.raises(NNNormError, match=words):
        nnnorm.NNN().fit(gallery, make(gallery), normalize=True)


def test_gallery_rows_may_be_allowed(gallery):
    bias = nnnorm.NNN().fit(gallery, gallery, normalize=True, allow_gallery_rows=True)
    assert len(bias) == 300


@pytest.mark.parametrize(
    "make",
    [
        lambda rows, rng: unit(rows) + 0.01 * rng.normal(size=rows.shape),
        lambda rows, rng: np.concatenate([rows[:120], rng.normal(size=(180, 32)) + 1]),
    ],
    ids=["a little noise", "40 % of the references"],
)
def test_references_of_which_many_are_nearly_gallery_rows_are_warned_of(gallery, rng, make):
    with pytest.warns(NNNormWarning, match="are nearly rows of gallery, .* remove items"):
        nnnorm.NNN().fit(gallery, make(gallery, rng), normalize=True)


def test_a_few_past_queries_may_equal_items(gallery, rng):
    references = np.concatenate([gallery[:10], rng.normal(size=(90, 32)) + 1])
    assert not said(lambda: nnnorm.NNN(4, 0.5).fit(gallery, references, normalize=True))


def test_studies_warn_of_gallery_rows(gallery, rng):
    queries = gallery[:60] + 0.1 * rng.normal(size=(60, 32)).astype(np.float32)
    asked = {"queries": queries, "truth": np.arange(60), "normalize": True}
    task = Task(queries, gallery, np.arange(60))
    words = "sampled references.* are rows of .*gallery.*; pass past queries instead"
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.tune(gallery, gallery, **asked)
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.compare(gallery, gallery, **asked, validation=task, methods=["csls"])
    with pytest.raises(NNNormError, match="sampled references are rows of gallery"):
        diagnose(queries, gallery, references=gallery, normalize=True)


@pytest.mark.parametrize("normalize", [True, False])
def test_repeated_items_are_warned_of(gallery, rng, normalize):
    repeated = gallery[np.arange(500) % 100]
    with pytest.warns(NNNormWarning, match=r"gallery has only 100 different rows among 500\. Re"):
        nnnorm.NNN().fit(repeated, rng.normal(size=(50, 32)), normalize=normalize)


def test_one_repeated_item_is_fine(gallery, rng):
    twice = np.concatenate([gallery, gallery[:1]])
    past = rng.normal(size=(50, 32))
    assert not said(lambda: nnnorm.NNN(4, 0.5).fit(twice, past, normalize=True))


def test_zeros_of_both_signs_are_equal_and_odd_widths_are_compared_whole(rng):
    rows = np.eye(41, dtype=np.float32)
    both = np.concatenate([rows, np.where(rows, rows, np.float32(-0.0))])
    with pytest.warns(NNNormWarning, match="gallery has only 41 different rows among 82"):
        nnnorm.NNN(4, 0.5).fit(both, rng.normal(size=(50, 41)))


@pytest.fixture
def large(rng, monkeypatch):
    """A gallery of which a tenth is read."""
    monkeypatch.setattr("nnnorm.input_checks._MOST_READ", 2000)
    return rng.normal(size=(20_000, 16)).astype(np.float32)


def test_rows_of_a_large_gallery_are_found_in_a_sample_of_it(large, rng):
    own = large[rng.permutation(20_000)[:3000]].astype(np.float16)
    gallery = open_embeddings(large, normalize=True)
    with pytest.raises(NNNormError, match=r"are rows of embeddings in 10\.0 % of the gallery"):
        check_inputs(gallery, open_embeddings(own, normalize=True))
    past = own + rng.normal(size=own.shape).astype(np.float16) + 1
    check_inputs(gallery, open_embeddings(past, normalize=True))  # warnings are errors


def test_repeats_in_a_sample_of_a_large_gallery_are_warned_of(large):
    gallery = open_embeddings(large[np.arange(20_000) % 80])
    with pytest.warns(NNNormWarning, match="only 80 different rows among 2,000 sampled"):
        check_inputs(gallery, open_embeddings(large[:10]))


# --- items passed as past queries ----------------------------------------------------------------


@pytest.fixture
def sides(rng):
    """Queries and items of two kinds, as texts and photos of one model are."""
    items, queries = (rng.normal(size=(600, 32)) + shift for shift in (1.0, -1.0))
    return unit(items), unit(queries)


def test_other_items_are_warned_of_and_queries_are_not(sides):
    items, queries = sides
    words = "references look like items of gallery, not like queries; pass past queries"
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.NNN(4, 0.5).fit(items[:300], items[300:])
    assert not said(lambda: nnnorm.NNN(4, 0.5).fit(items[:300], queries))
    allowed = {"allow_gallery_rows": True}
    assert not said(lambda: nnnorm.NNN(4, 0.5).fit(items[:300], items[300:], **allowed))


@pytest.mark.parametrize("n_references", [16, 63])
def test_a_few_past_queries_are_not_taken_for_items(sides, n_references):
    items, _ = sides
    bank = items[300 : 300 + n_references]
    assert not said(lambda: nnnorm.NNN(4, 0.5).fit(items[:300], bank))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the references seem to cover only a part")
@pytest.mark.parametrize("n_references", [16, 200])
def test_with_queries_the_check_is_certain(sides, n_references):
    items, queries = sides
    gallery, bank = items[:300], items[300 : 300 + n_references]
    asked = {"queries": queries[:100], "truth": np.arange(100)}
    words = "references are items, not queries: .* differ from (queries|recent)"
    with pytest.warns(NNNormWarning, match=words):
        nnnorm.tune(gallery, bank, **asked)
    with pytest.warns(NNNormWarning, match=words):
        found = nnnorm.check(gallery, bank, **asked)
    assert "they are items, not queries, which makes results worse" in found.reasons
    with pytest.warns(NNNormWarning, match=words):
        diagnose(queries[:100], gallery, references=bank)
    with pytest.warns(NNNormWarning, match=words):
        corrector = Corrector.fit(gallery, bank, recent=queries[100:164])
    assert corrector.bias.params["past_queries"] == "recent"


def test_gallery_rows_are_rejected_with_recent_queries_too(sides):
    items, queries = sides
    with pytest.raises(NNNormError, match="sampled references are rows of gallery"):
        Corrector.fit(items, items[:200], recent=queries[:64])


def test_past_queries_may_look_like_items_if_the_queries_do(rng):
    rows = unit(rng.normal(size=(900, 32)))
    asked = {"queries": rows[600:700], "truth": np.arange(100)}
    (problem,) = said(lambda: nnnorm.tune(rows[:300], rows[300:600], **asked))
    assert "score their right items no higher" in problem  # and nothing else


def test_too_few_different_rows_get_no_warning(rng):
    items = open_embeddings(rng.normal(size=(100, 8)), normalize=True)
    few = open_embeddings(np.repeat(rng.normal(size=(15, 8)), 20, axis=0), normalize=True)
    check_inputs(items, few)  # warnings are errors


def read(name):
    path = REAL_DATA / f"{name}.npy"
    if not path.is_file():
        pytest.skip(f"the real embeddings are not here ({path})")
    return unit(np.load(path))


PAIRS = {
    "flickr8k": ("flickr8k/image", "flickr8k/caption"),
    "unsplash500": ("unsplash500/image", "unsplash500/text"),
    "clip_coco500": ("clip_coco500/documents", "clip_coco500/queries"),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("direction", ["image", "text"])
@pytest.mark.parametrize("n_references", [64, 250])
def test_photos_as_past_queries_are_noticed_on_real_sets(name, direction, n_references):
    if name == "flickr8k" and n_references < 250:
        pytest.skip("64 rows of this model are noticed in nine draws of ten, and not in this one")
    images, texts = map(read, PAIRS[name])
    items, queries = (images, texts) if direction == "image" else (texts, images)
    gallery, others = items[: len(items) // 2], items[len(items) // 2 :]
    some = open_embeddings(others[:: len(others) // n_references][:n_references])
    own = open_embeddings(queries[:: len(queries) // n_references][:n_references])
    items = open_embeddings(gallery)
    with pytest.warns(NNNormWarning, match="look like items"):
        check_inputs(items, some)
    check_inputs(items, own)  # warnings are errors


# --- past queries from another source ------------------------------------------------------------


def source(rng, n_rows, shift=1.0, dim=32):
    rows = rng.normal(size=(n_rows, dim))
    rows[:, :4] += shift
    return open_embeddings(rows, normalize=True)


def naive_z(references, recent, rng, n_draws=8):
    """From the description, for samples without copies."""
    found = []
    for _ in range(n_draws):
        some = [rows[rng.permutation(len(rows))[:64]] for rows in (references, recent)]
        m = min(map(len, some))
        both = np.concatenate([some[0][:m], some[1][:m]])
        scores = both @ both.T
        np.fill_diagonal(scores, -9)
        near = np.argsort(-scores, axis=1)[:, :3]
        same = (near >= m) == (np.arange(2 * m) >= m)[:, None]
        found.append((same.mean() - 0.5) / (0.5 / np.sqrt(3 * m)))
    return np.mean(found)


@pytest.mark.parametrize("shift", [1.0, 0.0, -1.0])
def test_z_is_the_naive_z_up_to_the_draws(rng, shift):
    bank, recent = source(rng, 900), source(rng, 150, shift)
    expected = naive_z(np.asarray(bank), np.asarray(recent), rng)
    assert mismatch_z(bank, recent) == pytest.approx(expected, abs=1.2)


def test_the_scale_of_the_rows_does_not_matter(rng):
    bank, recent = source(rng, 300), source(rng, 64, shift=0.5)
    scaled = open_embeddings(np.asarray(recent) * 50, normalize=False)
    assert mismatch_z(bank, scaled) == pytest.approx(mismatch_z(bank, recent), abs=1e-6)


def test_repeated_queries_are_no_sign_of_another_source(rng):
    bank, recent = source(rng, 500), np.asarray(source(rng, 40))
    noisy = np.repeat(recent, 30, axis=0) + 0.02 * rng.normal(size=(1200, 32))
    assert mismatch_z(bank, open_embeddings(noisy, normalize=True)) < MISMATCH_Z


@pytest.mark.parametrize("n_recent", [1, 3])
def test_too_few_queries_give_no_z(rng, n_recent):
    assert np.isnan(mismatch_z(source(rng, 100), source(rng, n_recent, shift=-3.0)))


def test_recent_queries_replace_mismatched_past_queries_and_join_others(rng):
    gallery = np.asarray(source(rng, 200))
    own, bank = np.asarray(source(rng, 64)), np.asarray(source(rng, 300))
    for method in (nnnorm.NNN(), nnnorm.CSLS(4)):
        alone = Corrector.fit(gallery, -bank, method, recent=own, duplicates="keep")
        both = Corrector.fit(gallery, bank, method, recent=own, duplicates="keep")
        assert (alone.bias.params["past_queries"], len(alone.references)) == ("recent", 64)
        assert (both.bias.params["past_queries"], len(both.references)) == ("both", 364)
        assert both.bias.params["mismatch_z"] < 3 < alone.bias.params["mismatch_z"]
        same = Corrector.fit(gallery, own, method, duplicates="keep")
        np.testing.assert_array_equal(alone.bias.values, same.bias.values)
        assert alone.bias.weight == same.bias.weight


@pytest.fixture
def problem(rng):
    """A gallery, its queries, past queries, and those of another source, all as arrays."""
    gallery = np.asarray(source(rng, 80))
    truth = rng.integers(0, 80, size=160)
    queries = gallery[truth] + 0.15 * rng.normal(size=(160, 32))
    return gallery, queries, truth, np.asarray(source(rng, 300)), -np.asarray(source(rng, 300))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tune", "compare", "diagnose"])
def test_mismatched_past_queries_are_warned_of_and_own_ones_are_not(problem, name):
    gallery, queries, truth, own, other = problem
    held = Task(queries[80:], gallery, truth[80:])
    some = {"queries": queries[:80], "truth": truth[:80], "normalize": True}
    run = {
        "tune": lambda bank: nnnorm.tune(gallery, bank, **some),
        "compare": lambda bank: nnnorm.compare(
            gallery, bank, validation=held, methods=["csls"], **some
        ),
        "diagnose": lambda bank: diagnose(queries, gallery, references=bank, normalize=True),
    }[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the references seem to cover only a part")
        run(own)  # other warnings are errors
        with pytest.warns(NNNormWarning, match=r"do not look like the queries \(z = \d") as found:
            run(other)
    assert sum("do not look like" in str(one.message) for one in found) == 1
    assert found[0].filename == __file__


def test_swapped_gallery_and_references_get_a_hint(rng):
    rows, queries = source(rng, 50), source(rng, 50)
    items = open_embeddings(-np.asarray(source(rng, 50)), name="references")
    with pytest.warns(NNNormWarning, match="queries look like .* swap gallery and past queries"):
        warn_of_mismatch(items, queries, rows)
    with pytest.warns(NNNormWarning, match=r"past queries instead\. Or did you swap gallery"):
        nnnorm.check(rows, source(rng, 50), queries=items)


def test_a_gallery_that_is_its_own_bank_is_not_warned_of_twice(rng):
    rows, queries = source(rng, 50), open_embeddings(-np.asarray(source(rng, 50)))
    warn_of_mismatch(rows, queries, rows)  # a warning would be an error


def test_queries_of_one_item_do_not_make_past_queries_mismatched(rng):
    # Eight queries of each item are each other's neighbors.
    gallery, bank = np.asarray(source(rng, 30)), np.asarray(source(rng, 300))
    truth = np.repeat(np.arange(30), 8)
    queries = np.asarray(source(rng, 30))[truth] + 0.1 * rng.normal(size=(240, 32))
    nnnorm.tune(gallery, bank, queries=queries, truth=truth, normalize=True)  # warnings are errors


# --- what the automatic rule measured ------------------------------------------------------------


def test_reliability_is_printed_with_the_number_of_queries_that_measured_it():
    assert describe_reliability(0.9, 1200) == "0.90"
    assert describe_reliability(0.9, 3) == "unknown; 16 past queries are needed"
