"""One verdict, with the same figures as the other functions."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import nnnorm
from nnnorm import NNN, Bank, NNNormError, NNNormWarning, check, compare, evaluate, tune
from nnnorm.evaluation import Check, Interval, Task, checking
from nnnorm.evaluation.checking import Measured
from nnnorm.evaluation.hubness import judge_hubs
from tests import made

pytestmark = pytest.mark.filterwarnings("ignore:.* are among the queries:nnnorm.NNNormWarning")


@pytest.fixture(scope="module")
def hubs():
    """300 items with hubs, five queries for each, and 500 past queries."""
    gallery, queries, references = made.make_embeddings(n_items=300, n_past=100, dim=24, seed=2)
    known = {"queries": queries, "truth": np.repeat(np.arange(300), 5)}
    return SimpleNamespace(gallery=gallery, references=references, known=known, queries=queries)


@pytest.fixture(scope="module")
def labelled(hubs):
    return check(hubs.gallery, hubs.references, **hubs.known)


@pytest.fixture(scope="module")
def unlabelled(hubs):
    return check(hubs.gallery, hubs.references, queries=hubs.queries)


@pytest.fixture(scope="module")
def small_bank(hubs):
    """Labelled queries and 24 past ones, where tuning pays."""
    return check(hubs.gallery, hubs.references[:24], **hubs.known)


@pytest.fixture(scope="module")
def change(hubs):
    """What the automatic correction does to each query: 1, 0 or -1 right items in first place."""
    bias, truth = NNN().fit(hubs.gallery, hubs.references), hubs.known["truth"]
    raw, corrected = (
        evaluate(hubs.queries, hubs.gallery, some, truth=truth).hits(1) for some in (None, bias)
    )
    return corrected - raw


def without_hubs():
    """Items all around, queries near their items, past queries of nothing in particular."""
    rng = np.random.default_rng(0)
    gallery, references = (made._unit(rng.normal(size=(n, 32))) for n in (300, 400))
    truth = np.repeat(np.arange(300), 2)
    queries = made._unit(gallery[truth] + 0.2 * rng.normal(size=(600, 32)))
    return gallery, references, {"queries": queries, "truth": truth}


def gain_of(gallery, bias, queries, truth):
    raw = nnnorm.evaluate(queries, gallery, truth=truth)
    return nnnorm.evaluate(queries, gallery, bias, truth=truth).gain_over(raw)


# --- one story -----------------------------------------------------------------------------------


def tell_alike(gallery, references, known):
    """Whether check, evaluate, tune and compare agree to the last digit."""
    found = check(gallery, references, **known)
    automatic = NNN().fit(gallery, references)
    assert found.automatic.gain == gain_of(gallery, automatic, **known)
    tuned = tune(gallery, references, **known)
    assert tuned.gain == gain_of(gallery, tuned.bias, **known)
    compared = compare(gallery, references, **known, methods=["nnn"])
    assert found.tuned.gain == tuned.cross_fitted == compared.results[1].gain
    assert found.tuned.params == dict(tuned.best.params) == compared.results[1].params
    # The same setting, alone in its grid, on the same queries, however it is asked for.
    params = {name: automatic.params[name] for name in ("reference_k", "alpha", "center")}
    alone = {"nnn": {name: [value] for name, value in params.items()}}
    task = Task(known["queries"], gallery, known["truth"])
    once = compare(
        gallery, references, **known, validation=task, methods=["nnn"], grids=alone, select="max"
    ).results[1]
    again = tune(gallery, references, **known, grids=alone, select="max")
    assert once.gain == again.gain == gain_of(gallery, again.bias, **known)
    assert again.gain.mean == pytest.approx(found.automatic.gain.mean, abs=2e-4)
    return found


@pytest.mark.slow
def test_check_evaluate_tune_and_compare_tell_one_story(hubs):
    assert tell_alike(hubs.gallery, hubs.references, hubs.known).verdict == "correct"


# --- what is said of what ------------------------------------------------------------------------


def test_hubs_and_a_gain_are_a_reason_to_correct(labelled):
    assert labelled.verdict == "correct"
    assert labelled.hubs.severity in ("moderate", "severe")
    assert labelled.automatic.hubs.beyond_chance < labelled.hubs.beyond_chance
    assert labelled.chosen.gain.low > 0
    assert labelled.n_needed is None


def test_without_labels_the_bank_says_what_to_expect(hubs, unlabelled):
    verdicts = {"help": "correct", "unclear": "try"}
    assert unlabelled.verdict == verdicts[unlabelled.expectation]
    assert bool(unlabelled.reasons) == (unlabelled.expectation == "unclear")
    bias = NNN().fit(hubs.gallery, hubs.references)
    assert unlabelled.reliability == bias.params["reliability"]
    assert unlabelled.density == bias.params["density"]
    first, second = (
        nnnorm.search(hubs.queries, hubs.gallery, some, k=1).indices for some in (None, bias)
    )
    assert unlabelled.automatic.moved == pytest.approx((first != second).mean())
    assert unlabelled.automatic.gain is unlabelled.tuned is unlabelled.recall_at_1 is None


def test_without_references_only_the_hubs_are_judged(hubs, unlabelled):
    found = check(hubs.gallery, queries=hubs.queries)
    assert (found.verdict, found.expectation, found.automatic) == ("unknown", None, None)
    assert found.hubs == unlabelled.hubs
    assert found.next[0] == "bank = nnnorm.Bank.of(queries)"


def test_where_there_are_no_hubs_a_search_is_left_as_it_is():
    gallery, references, known = without_hubs()
    found = check(gallery, references, **known)
    assert (found.verdict, found.hubs.severity, found.recommended) == ("leave", "none", None)
    assert found.next == ()
    assert check(gallery, **known).verdict == "leave"
    assert check(gallery, queries=known["queries"]).verdict == "unknown"


def test_a_correction_that_does_harm_is_not_recommended(hubs, monkeypatch):
    monkeypatch.setattr("nnnorm.evaluation.checking.NNN", lambda: NNN(reference_k=2, alpha=6.0))
    found = check(hubs.gallery, hubs.references, **hubs.known)
    assert found.automatic.gain.high < 0
    assert found.recommended != "automatic"


def test_the_gallery_as_its_own_bank_is_refused_as_in_a_fit(hubs):
    with pytest.raises(NNNormError, match="sampled references are rows of gallery"):
        check(hubs.gallery, hubs.gallery, **hubs.known)
    found = check(hubs.gallery, hubs.gallery, **hubs.known, allow_gallery_rows=True)
    assert "allow_gallery_rows=True" in found.next[0]


@pytest.mark.slow
def test_a_bank_of_another_source_is_a_reason_not_to_trust_it(hubs):
    other = made._unit(hubs.references + hubs.references[3])
    with pytest.warns(NNNormWarning, match="did you swap"):  # the gallery is like them
        found = check(hubs.gallery, other, **hubs.known)
    assert found.z > 4
    assert found.expectation == "unclear"
    assert "they don't resemble your queries, which may make results worse" in found.reasons
    with pytest.warns(NNNormWarning, match="did you swap"):
        unlabeled = check(hubs.gallery, other, queries=hubs.known["queries"])
    assert unlabeled.next[0].endswith("Corrector.fit(gallery, references, recent=queries)")


def test_a_handful_of_labels_is_said_to_be_too_few(hubs):
    few = {name: values[::50] for name, values in hubs.known.items()}
    found = check(hubs.gallery, hubs.references, **few)
    gain = found.automatic.gain
    assert gain.includes_zero
    assert found.verdict == "try"
    half_width = 100 * (gain.high - gain.low) / 2
    assert found.n_needed == pytest.approx(30 * half_width**2, abs=1)


def test_a_bank_that_says_nothing_about_the_items_promises_nothing(hubs):
    noise = made._unit(np.random.default_rng(0).normal(size=(12, 24)))
    found = check(hubs.gallery, noise, queries=hubs.queries)
    assert found.expectation != "help"
    assert found.reasons


def test_a_tuned_setting_is_recommended_where_it_is_shown_to_be_better(small_bank):
    assert small_bank.recommended == "tuned"
    assert small_bank.better.low > 0
    assert small_bank.chosen is small_bank.tuned


def test_past_queries_for_other_items_than_the_labels_are_said_to_inflate_the_gain(hubs):
    truth, rng = hubs.known["truth"], np.random.default_rng(0)
    is_past = truth < 150
    known = {"queries": hubs.queries[~is_past], "truth": truth[~is_past]}
    found = check(hubs.gallery, hubs.queries[is_past], **known)
    for measure in (tune, compare):
        with pytest.warns(NNNormWarning, match="ask for different items, so gains may be inflated"):
            measure(hubs.gallery, hubs.queries[is_past], **known, methods=["nnn"])
    own = NNN().fit(hubs.gallery[150:], hubs.queries[is_past])
    within = {"queries": known["queries"], "truth": known["truth"] - 150}
    assert found.within == gain_of(hubs.gallery[150:], own, **within)
    assert found.recommended != "tuned"
    assert "your past queries and these queries ask for different items" in " ".join(
        str(found).split()
    )
    is_past = rng.random(len(truth)) < 0.5
    known = {"queries": hubs.queries[~is_past][:400], "truth": truth[~is_past][:400]}
    assert check(hubs.gallery, hubs.queries[is_past], **known).within is None


@pytest.mark.parametrize("name", ["references", "queries"])
@pytest.mark.filterwarnings("ignore:rows of gallery .* have norm")
def test_rows_of_another_scale_give_no_verdict(hubs, unlabelled, name):
    given = {"references": hubs.references, "queries": hubs.queries}
    given[name] = 7 * given[name]
    with pytest.raises(NNNormError, match=r"norms of 7.* different scales; scale both"):
        check(hubs.gallery, **given)
    assert check(hubs.gallery, **given, normalize=True).verdict == unlabelled.verdict


@pytest.mark.parametrize("measure", [check, tune, compare, evaluate])
def test_a_truth_in_another_order_is_warned_of(hubs, measure):
    known = {"queries": hubs.queries, "truth": np.roll(hubs.known["truth"], 5)}
    given = [hubs.gallery] if measure is evaluate else [hubs.gallery, hubs.references]
    names = {"gallery": given.pop(0)} if measure is evaluate else {}
    more = {"methods": ["nnn"]} if measure in (tune, compare) else {}
    with pytest.warns(NNNormWarning, match="score their right items no higher than those of other"):
        measure(*given, **names, **known, **more)


def test_past_queries_that_are_the_queries_prove_nothing(hubs):
    found = check(hubs.gallery, hubs.queries, **hubs.known)
    assert found.automatic.is_sure
    assert found.verdict == "try"
    assert found.overlap == 1
    assert found.reasons[0] == "they contain your queries, so their effect may be overstated"
    assert "in an A/B test; its gain may be inflated." in " ".join(str(found).split())
    assert check(hubs.gallery, hubs.queries, queries=hubs.queries).expectation == "unclear"


def test_a_few_queries_or_past_queries_give_no_verdict(hubs):
    few = check(hubs.gallery, hubs.references, queries=hubs.queries[:3])
    assert (few.verdict, few.recommended, few.next) == ("unknown", None, ())
    assert "Unknown with so few queries." in str(few)
    one = check(hubs.gallery, hubs.references[:1], queries=hubs.queries)
    assert (one.verdict, one.recommended) == ("unknown", None)
    assert "Unknown with so few past queries." in str(one)
    some = check(hubs.gallery, hubs.references[::12], queries=hubs.queries)
    assert some.verdict != "correct"
    assert "too few for more than a small gain" in " ".join(str(some).split())


def test_tuned_settings_are_recommended_if_only_they_show_a_gain():
    sure, unsure = Interval(0.02, 0.01, 0.03), Interval(0.01, -0.01, 0.03)
    hubs = judge_hubs(np.arange(50)[:, None], 50)
    automatic, tuned = (
        Measured("nnn", {"reference_k": 8, "alpha": 0.5}, hubs, 0.1, 0.5, gain, 20)
        for gain in (unsure, sure)
    )
    found = Check(verdict="unknown", hubs=hubs, expectation="help", automatic=automatic,
                  tuned=tuned, better=unsure, n_queries=50, n_gallery=50)  # fmt: skip
    assert checking._choose_verdict(found, automatic) == ("correct", "tuned")
    apart = replace(found, within=unsure)  # tuning chooses too large a weight
    assert checking._choose_verdict(apart, automatic) == ("try", "automatic")


def test_items_with_different_norms_are_named_in_the_verdict(hubs):
    scales = np.linspace(0.5, 2, len(hubs.gallery))[:, None]
    given = {"queries": hubs.queries, "truth": hubs.known["truth"]}
    with pytest.warns(NNNormWarning, match="have norms"):
        found = check(hubs.gallery * scales, hubs.references, **given)
    assert found.recommended is not None
    assert "Your items have norms from " in str(found)
    assert check(hubs.gallery * scales, hubs.references, normalize=True, **given).norms is None


# --- what to do next -----------------------------------------------------------------------------


def test_the_next_lines_of_python_run_and_give_what_was_measured(hubs, small_bank):
    names = vars(hubs) | {"nnnorm": nnnorm, "references": hubs.references[:24]}
    for line in small_bank.next:
        exec(line, names)
    tuned = tune(hubs.gallery, hubs.references[:24], **hubs.known)
    corrector = names["corrector"]
    assert {**tuned.best.params, "center": True} == corrector.method.params
    # The corrector rounds its past queries to float16.
    np.testing.assert_allclose(corrector.bias.correction, tuned.bias.correction, atol=1e-4)


def test_a_notebook_shows_the_report(labelled):
    shown = labelled._repr_html_()
    assert shown.startswith("<pre>Verdict")
    assert shown.endswith("</pre>")


def test_a_check_is_ready_for_json_and_names_its_hub(hubs):
    names = [f"picture {n}" for n in range(300)]
    found = check(hubs.gallery, Bank.of(hubs.references), queries=hubs.queries, ids=names)
    printed = json.loads(json.dumps(found.to_dict()))
    assert printed["hubs"]["id"] == f"picture {found.hubs.item}"
    assert "ids" not in printed


@pytest.mark.parametrize("n_better", [0, 3, 8])
def test_a_handful_of_changes_is_no_gain_yet(hubs, change, n_better):
    truth = hubs.known["truth"]
    better = np.flatnonzero(change > 0)
    better = better[np.unique(truth[better], return_index=True)[1]][:n_better]
    chosen = np.concatenate([better, np.flatnonzero(change == 0)[:40]])
    found = check(hubs.gallery, hubs.references, queries=hubs.queries[chosen], truth=truth[chosen])
    assert found.automatic.n_changed == n_better
    assert found.automatic.is_sure == (n_better == 8)
    assert (found.n_needed is None) == (n_better == 8)
    if n_better < 8:
        assert found.verdict != "correct"


def test_mismatched_past_queries_are_named_in_the_verdict_even_if_they_change_nothing(hubs):
    rng = np.random.default_rng(0)
    away = -made._unit(hubs.gallery.mean(axis=0, keepdims=True))
    others = made._unit(away + 0.3 * rng.normal(size=(300, 24)))
    with pytest.warns(NNNormWarning, match="do not look like the queries"):
        found = check(hubs.gallery, others, queries=hubs.queries, normalize=True)
    assert (found.expectation, found.verdict) == ("little", "try")
    assert "Don't use these past queries." in str(found)
