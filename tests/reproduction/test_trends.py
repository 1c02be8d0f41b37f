"""The paper's words in figures: computed from its tables, and from a world that has the trends."""

from types import SimpleNamespace

import pytest

from nnnorm import NNNormError
from reproduction.material import NotThere
from reproduction.trends import find_trends, tabulate_trends


class World:
    """High scores want a small α, foreign banks too; k hardly matters; DBNorm costs 40 times."""

    models = ("CLIP", "SigLIP", "BEiT-3", "BEiT-3 Large")
    debug = False

    def measure(self, there):
        if there.model not in self.models:
            raise NotThere("there are no images")
        number = self.models.index(there.model)
        if there.metric == "tuning_seconds":
            value = {"dualis": 80.0, "nnn": 2.0}[there.method]
        elif there.metric == "setting":
            own = there.bank == there.dataset
            value = (1.0 - 0.125 * number, 64) if own else (0.25, 8)
        elif there.method == "none":
            value = 50.0 + number
        elif there.params["reference_k"] == 1:
            value = 51.0 + number
        else:
            value = 53.0 + number + there.params["reference_k"] / 1280
        return SimpleNamespace(value=value)


class BrokenWorld(World):
    """The settings of the first model can't be tuned."""

    def __init__(self, error):
        self._error = error

    def measure(self, there):
        if there.model == "CLIP" and there.metric == "setting":
            raise self._error
        return super().measure(there)


def by_words(trends):
    return {trend.words: trend for trend in trends}


@pytest.fixture(scope="module")
def trends():
    return by_words(find_trends({"ours": World()}, other=False)[0])


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("(1) own bank: median setting", "α 0.8125, k 64"),
        ("(1) other bank: median setting", "α 0.25, k 8"),
        ("(2) correlation of uncorrected R@1 and best α", "−1.00"),
        ("(2) correlation of uncorrected R@1 and best k", "–"),  # all the same
        ("(3) same α ± 0.25 for images and texts", "16 of 16"),
        ("(3) R@1 with the other direction's setting", "+0.00 points"),
        ("(4) α = 0.75: gain with k = 1", "+1.00 points"),
        ("(4) α = 0.75: gain with k = 8", "+3.01 points"),
        ("(4) α = 0.75: spread of R@1, k = 8 to 128", "+0.09 points"),
        ("compute of tuning: DBNorm over NNN", "40.0×"),
    ],
)
def test_trends_are_found_where_they_are(trends, words, ours):
    assert trends[words].ours["ours"] == ours


def test_the_paper_s_own_figures_are_those_of_its_tables(trends):
    printed = {words: trend.printed for words, trend in trends.items()}
    assert printed["(1) own bank: median setting"] == "α 0.75, k 64"
    assert printed["(1) other bank: median setting"] == "α 0.5, k 16"
    assert printed["(3) same α ± 0.25 for images and texts"] == "48 of 56"
    assert printed["settings to try: DBNorm over NNN"] == "7.6×"  # 441 + 400 over 110
    assert printed["compute of tuning: DBNorm over NNN"] == "100×"
    assert printed["(3) R@1 with the other direction's setting"] == "–"


def test_the_table_has_the_paper_first(trends):
    table = tabulate_trends(list(trends.values()))
    assert table.columns == ("", "the paper", "ours")
    assert len(table.rows) == 11


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "out of memory"),
        (ValueError("odd"), "ValueError (odd)"),
        (NNNormError("row 3 is all zeros"), "row 3 is all zeros"),
    ],
)
def test_a_setting_that_fails_leaves_the_other_trends_as_they_are(trends, error, reason):
    found, cells = find_trends({"ours": BrokenWorld(error)}, other=False)
    found = by_words(found)
    assert found["(1) own bank: median setting"].ours["ours"] == "α 0.75, k 64"
    for words in ("(4) α = 0.75: gain with k = 1", "compute of tuning: DBNorm over NNN"):
        assert found[words] == trends[words]
    failed = [cell for cell in cells if cell.failed is not None]
    assert {(cell.row, cell.failed) for cell in failed} == {("CLIP", reason)}
    assert failed[0].column == "flickr30k, image retrieval: setting of nnn"
    assert any("there are no images" in (cell.missing or "") for cell in cells)
    broken = BrokenWorld(error)
    broken.debug = True
    with pytest.raises(type(error)):
        find_trends({"ours": broken}, other=False)


def test_trends_without_material_are_not_measured(trends):
    world = World()
    world.models = ()
    found, cells = find_trends({"ours": world}, other=False)
    assert [trend.words for trend in found if trend.is_measured] == []
    assert all(cell.missing for cell in cells)
    unmeasured = [words for words, trend in trends.items() if not trend.is_measured]
    assert unmeasured == [
        "(2) correlation of uncorrected R@1 and best k",
        "settings to try: DBNorm over NNN",
    ]
