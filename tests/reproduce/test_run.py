"""The runner gives, for every kind of cell, what its parts give when called by hand."""

from dataclasses import replace

import numpy as np
import pytest

from nnnorm import NNN, DualSoftmax, NNNormError
from nnnorm.datasets.visogender import read_visogender
from nnnorm.methods import PAPER_GRID
from nnnorm.reproduce.material import EmbeddingFolder, NotThere, ReadyScores
from nnnorm.reproduce.paper import Experiment, find_tables, load_paper
from nnnorm.reproduce.run import Runner, run_table
from nnnorm.study.audits import audit_visogender
from nnnorm.study.evaluation import evaluate
from nnnorm.study.hubness import compare_occurrences, count_occurrences, measure_hubness
from nnnorm.study.tuning import tune
from tests.made import make_paper_folder

PLAIN = Experiment("recall_at_1", "CLIP", "coco")
NNN_OWN = Experiment("recall_at_1", "CLIP", "coco", "image", "nnn", "coco", 0.2)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_paper_folder(tmp_path_factory.mktemp("paper"))


@pytest.fixture(scope="module")
def folder(root):
    return EmbeddingFolder(root)


@pytest.fixture(scope="module")
def runner(folder):
    return Runner(folder.open)


def tuned(folder, direction="image", bank="coco", share=0.2):
    clip = folder.open("CLIP", "coco")
    queries, gallery, truth = clip.task(direction, "validation")
    references = clip.bank(direction, bank, share)
    ks = [k for k in PAPER_GRID["reference_k"] if k <= len(references)]
    grids = {"nnn": {**PAPER_GRID, "reference_k": ks}}
    options = {"queries": queries, "truth": truth, "grids": grids, "select": "max"}
    return tune(gallery, references, **options).best.params, references


@pytest.mark.slow
def test_every_table_of_the_paper_is_produced_from_a_folder_with_clip(runner):
    for table in load_paper().tables:
        outcomes = run_table(runner, table)
        assert len(outcomes) == len(table.cells)
        assert any(outcome.figure for outcome in outcomes), table.name
        for outcome in outcomes:
            assert (outcome.figure is None) == (outcome.missing is not None)
            if outcome.experiment.model == "CLIP":
                assert outcome.figure, (table.name, outcome.column, outcome.missing)


def test_the_uncorrected_recall_is_that_of_the_test_part(folder, runner):
    task = folder.open("CLIP", "coco").task("image", "test")
    for k in (1, 5, 10):
        figure = runner.measure(replace(PLAIN, metric=f"recall_at_{k}"))
        assert figure.value == pytest.approx(
            100 * evaluate(task.queries, task.gallery, truth=task.truth).recall(k)
        )
        assert figure.low <= figure.value <= figure.high


@pytest.mark.parametrize(
    ("direction", "bank"), [("image", "coco"), ("image", "flickr30k"), ("text", "coco")]
)
def test_a_tuned_cell_is_tuned_on_the_tuning_images_and_measured_on_test(
    folder, runner, direction, bank
):  # fmt: skip
    params, references = tuned(folder, direction, bank)
    queries, gallery, truth = folder.open("CLIP", "coco").task(direction, "test")
    bias = NNN(**params).fit(gallery, references) if params else None
    there = replace(NNN_OWN, direction=direction, bank=bank)
    expected = 100 * evaluate(queries, gallery, bias, truth=truth).recall(1)
    assert runner.measure(there).value == pytest.approx(expected)
    setting = runner.measure(replace(there, metric="setting")).value
    assert setting == (params.get("alpha", 0.0), params.get("reference_k", 0))


def test_dbnorm_uses_both_banks(folder, runner):
    clip = folder.open("CLIP", "coco")
    queries, gallery, truth = clip.task("image", "test")
    given = {"beta_query": 20.0, "beta_gallery": 5.0}
    banks = clip.bank("image", "coco", 0.2), clip.gallery_bank("image", 0.2)
    bias = DualSoftmax(**given).fit(gallery, banks[0], gallery_references=banks[1])
    there = replace(NNN_OWN, method="dualis", params=given)
    expected = 100 * evaluate(queries, gallery, bias, truth=truth).recall(1)
    assert runner.measure(there).value == pytest.approx(expected)


def test_given_settings_are_not_tuned(folder, runner):
    clip = folder.open("CLIP", "coco")
    queries, gallery, truth = clip.task("image", "test")
    bias = NNN(8, 0.75).fit(gallery, clip.bank("image", "coco", 1.0))
    there = replace(NNN_OWN, share=1.0, params={"reference_k": 8, "alpha": 0.75})
    done = evaluate(queries, gallery, bias, truth=truth)
    assert runner.measure(there).value == pytest.approx(100 * done.recall(1))
    counts = count_occurrences(done.top1, 10)
    np.testing.assert_array_equal(runner.occurrences(there), counts)
    for metric in ("kurtosis", "mean_absolute_error", "max"):
        expected = getattr(measure_hubness(counts), metric)
        assert runner.measure(replace(there, metric=metric)).value == pytest.approx(expected)
    before = runner.measure(PLAIN).value
    gain = runner.measure(replace(there, metric="gain"))
    assert gain.value == pytest.approx(100 * done.recall(1) - before)
    assert gain.low <= gain.value <= gain.high


@pytest.mark.slow
def test_the_audit_is_visogender_s(folder, runner, root):
    about = read_visogender(root / "visogender.tsv")
    queries, gallery, *_ = folder.open("CLIP", "visogender").groups()
    bank = folder.open("CLIP", "visogender").bank("image", "coco", 1.0)
    found = audit_visogender(
        queries,
        gallery,
        genders=about.genders,
        occupations=about.occupations,
        asked_occupations=list(about.questions),
        bias=NNN(16, 0.75).fit(gallery, bank),
    )
    (table,) = find_tables(["gender"])
    for outcome in run_table(runner, table):
        line = found.line(outcome.experiment.metric)
        mean = (line.before if outcome.experiment.method == "none" else line.after).mean
        scale = 100 if "precision" in outcome.row else 1
        assert outcome.figure.value == pytest.approx(scale * mean)


def test_ready_scores_are_corrected_through_fit_scores(runner, root):
    scores = np.load(root / "blip-itm/coco/test-scores.npy").astype(np.float32).T
    bias = NNN().fit_scores(np.load(root / "blip-itm/coco/reference-scores.npy"))
    after = scores - bias.correction
    tops = [matrix.argmax(axis=1) for matrix in (scores, after)]
    (table,) = find_tables(["cross-attention"])
    before, corrected, p_value = (outcome.figure.value for outcome in run_table(runner, table))
    assert before == pytest.approx(100 * np.mean(tops[0] == np.arange(10)))
    assert corrected == pytest.approx(100 * np.mean(tops[1] == np.arange(10)))
    counts = [np.bincount(top, minlength=10) for top in tops]
    assert p_value == pytest.approx(compare_occurrences(*counts)[1])


def test_the_runtime_table_times_both_searches_and_finds_nearly_the_same(runner):
    (table,) = find_tables(["runtime"])
    values = {o.column: o.figure.value for o in run_table(runner, table) if o.row == "CLIP"}
    assert values["factor"] == pytest.approx(values["exhaustive, s"] / values["vector index, s"])
    assert abs(values["R@1, exhaustive"] - values["R@1, vector index"]) <= 10


def test_what_cells_share_is_done_once(folder):
    asked = []

    def open_material(model, dataset):
        asked.append((model, dataset))
        return folder.open(model, dataset)

    counting = Runner(open_material)
    for metric in ("recall_at_1", "recall_at_5", "gain", "kurtosis", "setting"):
        counting.measure(replace(NNN_OWN, metric=metric))
    assert len(asked) == 3  # test, validation, bank


def test_scores_of_another_shape_are_refused(folder):
    class Odd:
        def __init__(self, *shapes):
            self._shapes = shapes

        def scores(self):
            return ReadyScores(*(np.ones(shape) for shape in self._shapes))

    there = Experiment("recall_at_1", "x", "x", method="nnn", bank="x", kind="scores")
    with pytest.raises(NNNormError, match=r"a query per item, query i of item i; got \(3, 4\)"):
        Runner(lambda *_: Odd((3, 4), (3, 9))).measure(there)
    with pytest.raises(NNNormError, match=r"gallery in rows; got \(3, 3\) and \(9, 3\)"):
        Runner(lambda *_: Odd((3, 3), (9, 3))).measure(there)


def test_an_unknown_metric_and_a_missing_bank_are_refused(runner):
    with pytest.raises(NNNormError, match="no way to measure 'beauty'"):
        runner.measure(replace(PLAIN, metric="beauty"))
    with pytest.raises(NNNormError, match="nnn needs a bank to be tuned with"):
        runner.measure(replace(NNN_OWN, bank=None))


@pytest.mark.slow
def test_missing_material_leaves_out_its_cells_only(runner):
    (table,) = find_tables(["image-retrieval"])
    outcomes = run_table(runner, table)
    assert [o.row for o in outcomes if o.figure] == ["CLIP"] * 8
    assert all("siglip" in o.missing for o in outcomes if o.row == "SigLIP")
    with pytest.raises(NotThere):
        runner.measure(replace(PLAIN, model="SigLIP"))
