"""For every kind of cell, the runner gives the same result as its parts."""

from dataclasses import replace

import numpy as np
import pytest

from nnnorm import NNN, DualSoftmax, NNNormError, audit, evaluate, open_embeddings
from nnnorm.evaluation import compare_occurrences, count_occurrences, measure_hubness
from reproduction.material import EmbeddingFolder, Material, MissingData
from reproduction.paper import Experiment, Figure, find_tables
from reproduction.run import Runner, run_table
from tests.made import make_paper_folder, make_visogender

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


def first_is_right(queries, gallery, truth, correction):
    top = (queries @ gallery.T - correction).argmax(axis=1)
    pairs = {tuple(pair) for pair in truth} if truth.ndim == 2 else set(enumerate(truth))
    return np.mean([(query, item) in pairs for query, item in enumerate(top)])


def authors_selection(task, references):
    """R@1 of every (α, k) of the paper's grid, and nothing else: the best of these is chosen.

    A bank counts as it is, copies and all, and no correction is not in the grid.
    """
    queries, gallery = (np.asarray(side.rows(0, len(side))) for side in task[:2])
    bank = np.asarray(references.rows(0, len(references)))
    scores = np.sort(gallery @ bank.T, axis=1)[:, ::-1]
    recalls = {}
    for step in range(11):
        for k in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            if k <= len(bank):
                alpha = 0.25 + 0.125 * step
                correction = alpha * scores[:, :k].mean(axis=1)
                recalls[alpha, k] = first_is_right(queries, gallery, task.truth, correction)
    return recalls


class Losing(Material):
    """Every correction of the paper's grid makes this search worse."""

    def part(self, part):
        items = np.eye(9, dtype=np.float32)[:8]
        # Half of the items are wanted, by a small margin, and the bank asks for all these.
        queries = 0.72 * items[:4] + 0.69 * items[4:]
        sides = map(open_embeddings, (items, np.repeat(queries, 5, axis=0)))
        return *sides, np.repeat(np.arange(4), 5)

    def references(self, bank, side, share):
        rows = np.eye(9, dtype=np.float32)
        return open_embeddings(np.repeat(0.95 * rows[:4] + 0.3 * rows[8], 130, axis=0))


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
def test_a_tuned_cell_is_tuned_as_the_authors_do_and_measured_on_test(
    folder, runner, direction, bank
):  # fmt: skip
    clip, there = folder.open("CLIP", "coco"), replace(NNN_OWN, direction=direction, bank=bank)
    references = clip.references(bank, "texts" if direction == "image" else "images", 0.2)
    recalls = authors_selection(clip.task(direction, "validation"), references)
    setting = runner.measure(replace(there, metric="setting")).value
    assert recalls[setting] == max(recalls.values())
    queries, gallery, truth = clip.task(direction, "test")
    bias = NNN(setting[1], setting[0]).fit(gallery, references, duplicates="keep")
    expected = 100 * evaluate(queries, gallery, bias, truth=truth).recall(1)
    assert runner.measure(there).value == pytest.approx(expected)


def test_a_loss_is_printed_next_to_the_result_of_the_other_rule():
    losing = Losing()
    recalls = authors_selection(
        losing.task("image", "test"), losing.references("own", "texts", 1.0)
    )
    assert max(recalls.values()) < 1  # which is that of no correction
    loser = Runner(lambda *_: losing)
    there = Experiment("gain", "x", "x", "image", "nnn", "own")
    setting = loser.measure(replace(there, metric="setting")).value
    assert recalls[setting] == max(recalls.values())
    assert loser.measure(there).value == pytest.approx(100 * (max(recalls.values()) - 1))
    ours = replace(there, select="one-standard-error")
    assert loser.measure(replace(ours, metric="setting")).value == (0.0, 0)
    assert loser.measure(ours).value == 0


def test_tables_have_both_rules_where_settings_are_tuned(runner):
    (table,) = find_tables(["settings-image"])
    cells = [cell for cell in run_table(runner, table) if cell.figure]
    assert all(cell.by_rule is not None for cell in cells)
    (table,) = find_tables(["k-sweep-image"])
    assert all(cell.by_rule is None for cell in run_table(runner, table))


@pytest.mark.parametrize("error", [NNNormError("row 3 is all zeros"), ZeroDivisionError("by 0")])
def test_a_cell_that_fails_leaves_the_others_as_they_are(runner, error):
    class Failing:
        debug = False

        def measure(self, experiment):
            if experiment.params and experiment.params["reference_k"] == 8:
                raise error
            return runner.measure(experiment)

    (table,) = find_tables(["k-sweep-image"])
    clip = [cell for cell in run_table(Failing(), table) if cell.row == "CLIP"]
    assert [cell.column for cell in clip if cell.figure is None] == ["k = 8"]
    assert str(error) in clip[3].failed
    assert clip[3].missing is None
    Failing.debug = True
    with pytest.raises(type(error)):
        run_table(Failing(), table)


@pytest.mark.parametrize(
    ("error", "reasons"),
    [(MemoryError(), ("MemoryError()", None)), (MissingData("no bank"), (None, "no bank"))],
)
def test_a_figure_stays_where_that_of_the_other_rule_fails(error, reasons):
    class Failing:
        debug = False

        def measure(self, experiment):
            if experiment.select == "one-standard-error":
                raise error
            return Figure((0.5, 16))

    (table,) = find_tables(["settings-image"])
    for cell in run_table(Failing(), table):
        assert (cell.figure, cell.by_rule) == (Figure((0.5, 16)), None)
        assert (cell.failed, cell.missing) == reasons


def test_dbnorm_uses_both_banks(folder, runner):
    clip = folder.open("CLIP", "coco")
    queries, gallery, truth = clip.task("image", "test")
    given = {"beta_query": 20.0, "beta_gallery": 5.0}
    bank, items = (clip.references("coco", side, 0.2) for side in ("texts", "images"))
    both = {"gallery_references": items, "duplicates": "keep"}
    bias = DualSoftmax(**given).fit(gallery, bank, **both)
    there = replace(NNN_OWN, method="dualis", params=given)
    expected = 100 * evaluate(queries, gallery, bias, truth=truth).recall(1)
    assert runner.measure(there).value == pytest.approx(expected)


def test_given_settings_are_not_tuned(folder, runner):
    clip = folder.open("CLIP", "coco")
    queries, gallery, truth = clip.task("image", "test")
    bank = clip.references("coco", "texts", 1.0)
    bias = NNN(8, 0.75).fit(gallery, bank, duplicates="keep")
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
def test_the_audit_is_visogender_s(folder, runner):
    queries, gallery, *_ = folder.open("CLIP", "visogender").groups()
    bank = folder.open("CLIP", "visogender").references("coco", "texts", 1.0)
    about = make_visogender()
    found = audit(
        queries,
        gallery,
        NNN(16, 0.75).fit(gallery, bank, duplicates="keep"),
        groups=about.genders,
        ks=(6, 10),
        difference=("masculine", "feminine"),
        target="equal",
        labels=about.occupations,
        query_labels=about.asked,
    )
    (table,) = find_tables(["gender"])
    for cell in run_table(runner, table):
        line = found.line(cell.experiment.metric)
        mean = (line.before if cell.experiment.method == "none" else line.after).mean
        scale = 100 if "precision" in cell.row else 1
        assert cell.figure.value == pytest.approx(scale * mean)


def test_ready_scores_are_corrected_through_fit_scores(runner, root):
    scores = np.load(root / "blip-itm/coco/test-scores.npy").astype(np.float32).T
    references = np.load(root / "blip-itm/coco/reference-scores.npy")
    bias = NNN(64, 0.75).fit_scores(references)
    after = scores - bias.correction
    tops = [matrix.argmax(axis=1) for matrix in (scores, after)]
    (table,) = find_tables(["cross-attention"])
    before, corrected, p_value = (cell.figure.value for cell in run_table(runner, table))
    assert before == pytest.approx(100 * np.mean(tops[0] == np.arange(10)))
    assert corrected == pytest.approx(100 * np.mean(tops[1] == np.arange(10)))
    counts = [np.bincount(top, minlength=10) for top in tops]
    assert p_value == pytest.approx(compare_occurrences(*counts)[1])
    used = run_table(runner, table)[1].figure.used
    assert used["n_references"] == references.shape[1]
    assert (used["share"], used["reference_k"], used["alpha"]) == (0.2, 64, 0.75)


def test_the_runtime_table_times_both_searches_and_finds_nearly_the_same(runner):
    (table,) = find_tables(["runtime"])
    values = {o.column: o.figure.value for o in run_table(runner, table) if o.row == "CLIP"}
    assert values["factor"] == pytest.approx(values["exhaustive, s"] / values["vector index, s"])
    assert abs(values["R@1, exhaustive"] - values["R@1, vector index"]) <= 10


def test_scores_of_another_shape_are_rejected(tmp_path):
    root = make_paper_folder(tmp_path)
    np.save(root / "blip-itm/coco/test-scores.npy", np.ones((3, 4)))
    there = Experiment("recall_at_1", "BLIP ITM", "coco", kind="scores")
    with pytest.raises(NNNormError, match=r"one query per item, .* got \(3, 4\) and \(10, 80\)"):
        Runner(EmbeddingFolder(root).open).measure(there)


def test_references_that_a_setting_needs_and_a_bank_lacks_are_missing_material(runner):
    given = {"reference_k": 512, "alpha": 0.75}
    with pytest.raises(MissingData, match=r"the bank has \d+ references, too few for k = 512"):
        runner.measure(replace(NNN_OWN, direction="text", params=given))
