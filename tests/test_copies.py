"""One intent counts once: the blockwise search for copies is the naive loop, row by row."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnnorm
from nnnorm import NNNormError, NNNormWarning, open_embeddings
from nnnorm.copies import SAME_INTENT, Leaders, find_intents, round_rows, without_copies
from nnnorm.report import tabulate_ablation, tabulate_comparison, tabulate_tuning


def naive_leaders(rows, *, most, seed, times=None, counts=None, half_life=None):
    """Row number, count and last time of every leader, one row after the other in float64."""
    times = np.zeros(len(rows)) if times is None else times
    counts = np.ones(len(rows), dtype=int) if counts is None else counts
    rate = 0 if half_life is None else math.log(2) / half_life
    units = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1)[:, None]
    leaders = []
    for row, unit in enumerate(units):
        cosines = [unit @ units[leader["row"]] for leader in leaders]
        if leaders and max(cosines) > SAME_INTENT:
            leader = leaders[int(np.argmax(cosines))]
            leader["count"] += counts[row]
            leader["seen"] = max(leader["seen"], times[row])
            continue
        key = str(seed).encode()
        digest = hashlib.blake2b(rows[row].tobytes(), digest_size=16, key=key).digest()
        share = ((int.from_bytes(digest[:8], "little") >> 11) + 0.5) / 2**53
        luck = -math.log(-math.log(share))
        leaders.append({"row": row, "count": counts[row], "seen": times[row], "luck": luck})
        if len(leaders) > most:
            leaders.remove(min(leaders, key=lambda one: one["luck"] + rate * one["seen"]))
    return [(leader["row"], leader["count"], leader["seen"]) for leader in leaders]


def make_log(rng, *, n_rows, n_intents, dim, spread, repeats):
    """Rows around some centres; with `repeats`, many of them equal."""
    centres = rng.normal(size=(n_intents, dim))
    rows = centres[rng.integers(0, n_intents, n_rows)] + spread * rng.normal(size=(n_rows, dim))
    if repeats:
        rows = rows[rng.integers(0, n_rows, n_rows)]
    return round_rows(rows.astype(np.float32))


@pytest.mark.slow
@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([3, 8, 24]),
    n_rows=st.integers(1, 200),
    n_intents=st.integers(1, 60),
    spread=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    repeats=st.booleans(),
    most=st.sampled_from([1, 3, 10, 40, 1000]),
    half_life=st.sampled_from([None, 3.0, 30.0]),
    block=st.sampled_from([1, 7, 50, 2048]),
    pieces=st.integers(1, 3),
)
def test_blocks_of_any_size_give_the_leaders_of_the_naive_loop(
    seed, dim, n_rows, n_intents, spread, repeats, most, half_life, block, pieces
):
    rng = np.random.default_rng(seed)
    rows = make_log(
        rng, n_rows=n_rows, n_intents=n_intents, dim=dim, spread=spread, repeats=repeats
    )
    times = rng.integers(0, 50, n_rows).astype(float)
    counts = rng.integers(1, 5, n_rows)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_LEAST_LEADERS", 8), ("_LEAST_DIM", 8), ("_N_PRINCIPAL", 4)):
            patch.setattr(f"nnnorm.copies.near.{name}", value)
        patch.setattr("nnnorm.copies.leaders._BLOCK_ROWS", block)
        leaders = Leaders(dim, most=most, seed=seed, half_life=half_life)
        for part in np.array_split(np.arange(n_rows), pieces):
            leaders.add(rows[part], times[part], counts[part])
    found = zip(
        leaders.arrivals.tolist(), leaders.counts.tolist(), leaders.last_seen.tolist(), strict=True
    )
    options = {"times": times, "counts": counts, "half_life": half_life}
    assert list(found) == naive_leaders(rows, most=most, seed=seed, **options)


@pytest.mark.slow
@pytest.mark.parametrize("is_flat", [False, True])
def test_the_bound_of_real_sizes_gives_the_leaders_of_the_naive_loop(rng, is_flat):
    """With a falling spectrum the bound is used, with a flat one it is given up."""
    scale = 1.0 if is_flat else np.arange(1, 193) ** -0.7
    centres = scale * rng.normal(size=(900, 192))
    rows = np.concatenate([centres, centres + 0.3 * scale * rng.normal(size=centres.shape)])
    rows = round_rows(rng.permutation(rows).astype(np.float32))
    leaders = Leaders(192, most=700)
    leaders.add(rows)
    expected = [row for row, _, _ in naive_leaders(rows, most=700, seed=0)]
    assert leaders.arrivals.tolist() == expected


def test_the_seed_decides_which_intents_stay(rng):
    rows = open_embeddings(rng.normal(size=(300, 64)), normalize=False)
    first, again, other = (find_intents(rows, most=20, seed=seed).rows for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()
    assert len(first) == len(other) == 20


def test_every_intent_is_as_likely_to_stay(rng):
    """Equal repeats do not make an intent likelier: 0.2 of the intents stay, popular or not."""
    intents = rng.normal(size=(100, 32))
    rows = open_embeddings(intents[rng.choice(100, 1000, p=_zipf(100))], normalize=False)
    asked = np.unique(np.array(rows), axis=0)
    found = [find_intents(rows, most=20, seed=seed) for seed in range(60)]
    kept = np.array([np.isin(asked[:, 0], np.array(one.embeddings)[:, 0]) for one in found])
    popular = np.isin(asked[:, 0], intents[:10, 0].astype(np.float32))
    share = 20 / len(asked)
    assert kept[:, popular].mean() == pytest.approx(share, abs=0.06)


def _zipf(n):
    share = 1 / np.arange(1, n + 1)
    return share / share.sum()


def test_a_bank_without_copies_is_used_as_it_is(rng):
    rows = open_embeddings(rng.normal(size=(50, 64)), name="references", normalize=False)
    intents = find_intents(rows)
    assert intents.embeddings is rows
    assert intents.counts.tolist() == [1] * 50


def test_the_scale_of_a_row_makes_no_other_intent():
    rows = np.array([[1e-3, 0, 0], [1e5, 0, 0], [0, 1e-20, 0]])
    assert find_intents(open_embeddings(rows, normalize=False)).rows.tolist() == [0, 2]


# --- in a fit -----------------------------------------------------------------------------------


METHODS = [
    nnnorm.NNN(reference_k=5, alpha=0.5),
    nnnorm.CSLS(reference_k=5),
    nnnorm.DN(weight=0.5),
    nnnorm.InvertedSoftmax(beta=5.0),
    nnnorm.InvertedSoftmax(beta=5.0, gated=True),
    nnnorm.Sinkhorn(),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_log_gives_the_bias_of_its_intents(rng, method):
    gallery, intents = rng.normal(size=(40, 32)), rng.normal(size=(60, 32))
    log = np.concatenate([intents, intents[rng.choice(60, 500, p=_zipf(60))]])
    log[60:] += 0.1 * rng.normal(size=(500, 32))
    bias = method.fit(gallery, log, normalize=True)
    expected = method.fit(gallery, intents, normalize=True)
    np.testing.assert_allclose(bias.correction, expected.correction, rtol=1e-6)
    assert (bias.n_references, bias.params["n_intents"]) == (560, 60)
    assert bias.fingerprints["references"] == open_embeddings(log, normalize=True).fingerprint
    kept = method.fit(gallery, log, normalize=True, duplicates="keep")
    assert np.abs(kept.correction - expected.correction).max() > 1e-3
    assert "n_intents" not in kept.params


def test_k_beyond_the_intents_is_refused_with_both_numbers(rng):
    log = np.repeat(rng.normal(size=(12, 32)), 5, axis=0)
    words = r"reference_k is 20, but there are only 60 references \(12 intents\); give more"
    with pytest.raises(NNNormError, match=words):
        nnnorm.NNN(20, 0.5).fit(rng.normal(size=(5, 32)), log)


def test_duplicates_must_be_drop_or_keep(rng):
    rows = open_embeddings(rng.normal(size=(5, 8)), normalize=False)
    with pytest.raises(NNNormError, match="duplicates must be 'drop' or 'keep'; got 'some'"):
        without_copies(rows, "some")


def test_a_model_that_puts_all_texts_close_together_is_noticed(rng):
    rows = 10 + rng.normal(size=(500, 32))
    with pytest.warns(NNNormWarning, match="the 500 rows of references are 1 intents: .* keep"):
        without_copies(open_embeddings(rows, name="references", normalize=True))


def test_a_random_part_of_the_intents_is_named_as_one(rng):
    gallery, log = rng.normal(size=(30, 32)), rng.normal(size=(200, 32))
    bank = nnnorm.Bank.of(log, most=30, normalize=True)
    queries, truth = gallery + rng.normal(size=(30, 32)), np.arange(30)
    asked = {"queries": queries, "truth": truth, "normalize": True}
    task = nnnorm.Task(queries, gallery, truth)
    tuning = nnnorm.tune(gallery, bank, **asked)
    assert "200 references (30 sampled intents)" in tabulate_tuning(tuning).title
    comparison = nnnorm.compare(gallery, bank, **asked, validation=task, methods=["csls"])
    assert "200 references (30 sampled intents)" in tabulate_comparison(comparison).title
    ablation = nnnorm.ablate(gallery, log, **asked, validation=task, shares=[1.0])
    assert not ablation.rows[0].intents_sampled
    part = replace(ablation.rows[0], n_intents=30, intents_sampled=True)
    ablation = replace(ablation, rows=(part,))
    assert "of more than 8,192 a random part." in tabulate_ablation(ablation).notes[0]
    assert all(found.to_dict()["intents_sampled"] for found in (tuning, comparison))


@pytest.mark.slow
def test_all_studies_count_intents(rng):
    gallery, intents = rng.normal(size=(30, 32)), rng.normal(size=(40, 32))
    log = intents[np.arange(200) % 40]
    queries, truth = gallery + rng.normal(size=(30, 32)), np.arange(30)
    asked = {"queries": queries, "truth": truth, "normalize": True}
    task = nnnorm.Task(queries, gallery, truth)
    found = [
        nnnorm.tune(gallery, log, **asked),
        nnnorm.compare(gallery, log, **asked, validation=task, methods=["csls"]),
        *nnnorm.ablate(gallery, log, **asked, validation=task, shares=[1.0]).rows,
    ]
    assert [(one.n_references, one.n_intents) for one in found] == [(200, 40)] * 3
    kept = nnnorm.tune(gallery, log, **asked, duplicates="keep")
    assert kept.n_intents is None
    once = nnnorm.diagnose(queries, gallery, references=log, normalize=True)
    bias = nnnorm.NNN().fit(gallery, intents, normalize=True)
    expected = nnnorm.diagnose(queries, gallery, bias, normalize=True)
    np.testing.assert_array_equal(once.occurrences_after, expected.occurrences_after)
