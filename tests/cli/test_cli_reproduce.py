import importlib
import json

import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.cli.figures import draw_histogram
from nnnorm.datasets import load_pairs
from nnnorm.datasets.scenes import draw_scene, make_scenes
from nnnorm.io import write_png
from nnnorm.reproduce.material import EmbeddingFolder
from nnnorm.reproduce.results import Figure
from nnnorm.reproduce.run import Runner
from tests.command import assert_fails, run, run_json
from tests.latex import assert_compiles
from tests.made import make_paper_folder

# --- dataset -------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six pictures and a split file in Karpathy's format that names them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    pictures = []
    for number, scene in enumerate(make_scenes(6)):
        write_png(tmp_path / "photos" / f"{number}.png", draw_scene(scene, 24))
        sentences = [{"raw": f"photo {number}, {place}"} for place in range(5)]
        split = "test" if number == 5 else "train"
        pictures.append({"filename": f"{number}.png", "split": split, "sentences": sentences})
    content = {"dataset": "flickr30k", "images": pictures}
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps(content))
    return tmp_path


KARPATHY = ["dataset", "karpathy", "dataset_flickr30k.json", "--images", "photos", "-o", "lists"]


def test_dataset_writes_pairs_and_lists_that_an_encoder_can_read(photos):
    printed = run_json(*KARPATHY)
    assert printed["splits"] == {"train": 5, "test": 1}
    assert (printed["n_images"], printed["n_captions"], printed["n_skipped"]) == (6, 30, 0)
    pairs = load_pairs("lists/flickr30k.json")
    paths = (photos / "lists/flickr30k-images.txt").read_text().splitlines()
    assert paths == [str(photos / "photos" / f"{n}.png") for n in range(6)]
    assert len(pairs.captions) == 30
    result = run(*KARPATHY)
    assert "--texts lists/flickr30k-captions.txt" in result.stderr


def test_a_split_file_that_names_files_that_are_not_there_is_refused(photos):
    (photos / "photos/2.png").unlink()
    (photos / "photos/3.png").write_text("<html>not found</html>")
    assert_fails(run(*KARPATHY), "2 of 6 pictures can't be used:")
    assert not (photos / "lists").exists()


def test_pictures_are_skipped_when_told_to_and_listed(photos):
    (photos / "photos/2.png").unlink()
    short = (photos / "photos/5.png").read_bytes()
    (photos / "photos/0.png").write_bytes(short[: len(short) // 2])
    printed = run_json(*KARPATHY, "--skip-broken", "--decode")
    assert (printed["n_images"], printed["n_skipped"]) == (4, 2)
    lines = (photos / "lists/flickr30k-skipped.txt").read_text().splitlines()
    assert [line.split("\t")[0].rsplit("/", 1)[1] for line in lines] == ["0.png", "2.png"]
    assert len(load_pairs("lists/flickr30k.json").captions) == 20


def test_visogender_s_lists_are_pictures_and_questions(photos):
    rows = [f"OO_{n}\tbaker\tspoon\t{('feminine', 'masculine')[n % 2]}" for n in range(6)]
    header = "IDX\tOccupation\tObject\tOccupation_perceived_gender"
    (photos / "OO.tsv").write_text("\n".join([header, *rows]))
    for number in range(6):
        (photos / f"photos/{number}.png").rename(photos / f"photos/OO_{number}.png")
    printed = run_json("dataset", "visogender", "OO.tsv", "--images", "photos", "-o", "lists")
    assert (printed["n_images"], printed["n_captions"]) == (6, 1)
    captions = (photos / "lists/visogender-captions.txt").read_text()
    assert captions == "The baker and their spoon\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["karpathy", "nowhere.json"], "there is no file nowhere.json"),
        (["coco", "dataset_flickr30k.json"], "missing: 'id'"),
        (["table", "dataset_flickr30k.json"], "must end in .csv, .tsv, .jsonl or .parquet"),
        (["karpathy", "dataset_flickr30k.json", "x.json"], "karpathy takes one file; got 2"),
        (["visogender", "bad.tsv"], "needs the columns IDX, Occupation, Object"),
    ],
)
def test_files_of_another_kind_are_refused_and_nothing_is_written(photos, arguments, words):
    (photos / "bad.tsv").write_text("image\tcaption\n1\t2\n")
    assert_fails(run("dataset", *arguments, "--images", "photos", "-o", "lists"), words)
    assert not (photos / "lists").exists()


def test_dataset_makes_the_folders_above_its_own_as_encode_does(photos):
    assert run(*KARPATHY[:-1], "new/and/deep").exit_code == 0
    assert (photos / "new/and/deep/flickr30k.json").is_file()
    (photos / "file").write_text("")
    assert_fails(run(*KARPATHY[:-1], "file"), "cannot make the folder file: it is a file")


def test_one_picture_that_is_left_out_is_one_picture(photos):
    (photos / "photos/2.png").unlink()
    assert "Note: 1 picture is left out;" in run(*KARPATHY, "--skip-broken").stderr


def test_a_split_file_is_never_written_over_by_its_own_lists(photos):
    (photos / "dataset_flickr30k.json").rename(photos / "flickr30k.json")
    before = (photos / "flickr30k.json").read_bytes()
    result = run("dataset", "karpathy", "flickr30k.json", "--images", "photos", "-o", ".")
    assert_fails(result, "flickr30k.json is an input and would be overwritten")
    assert (photos / "flickr30k.json").read_bytes() == before
    assert sorted(path.name for path in photos.iterdir()) == ["flickr30k.json", "photos"]


def test_a_clip_retrieval_folder_becomes_a_search_that_can_be_evaluated(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    unit = np.eye(4, dtype=np.float16)
    for part, rows in (("img_emb", unit[[0, 1, 0, 2]]), ("text_emb", unit[[0, 1, 0, 3]])):
        (tmp_path / "web" / part).mkdir(parents=True)
        np.save(tmp_path / "web" / part / f"{part}_0.npy", rows)
    (tmp_path / "web/metadata").mkdir()
    about = {"image_path": ["a.jpg", "b.jpg", "a.jpg", "c.jpg"], "caption": ["a", "b", "aa", "c"]}
    pyarrow.parquet.write_table(pa.table(about), tmp_path / "web/metadata/metadata_0.parquet")

    printed = run_json("dataset", "clip-retrieval", "web", "-o", "lists")
    assert (printed["n_images"], printed["n_captions"], printed["n_skipped"]) == (3, 4, 0)
    assert load_pairs("lists/web.json").captions == ("a", "b", "aa", "c")
    np.testing.assert_array_equal(np.load("lists/web-gallery.npy"), unit[:3])
    assert np.load("lists/web-truth.npy").tolist() == [0, 1, 0, 2]
    following = run("dataset", "clip-retrieval", "web", "-o", "lists").stderr.split("Next: nnnorm ")
    scored = run_json(*following[1].split())
    assert json.dumps(scored).count("0.75") >= 1  # three of four captions find their image first
    words = "no pictures are checked; leave out --images"
    assert_fails(run("dataset", "clip-retrieval", "web", "--decode", "-o", "x"), words)
    assert_fails(run("dataset", "clip-retrieval", "nowhere", "-o", "x"), "img_emb is not there")


# --- reproduce -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_paper_folder(tmp_path_factory.mktemp("paper"))


def test_without_a_table_all_are_listed_with_what_they_need(root):
    listed = run_json("reproduce")
    assert len(listed) == 21
    assert listed[0]["needs"] == "14 models on flickr30k, coco"
    there = run_json("reproduce", "--embeddings", root)
    assert there[0]["there"] == "2 of 28"
    assert "k-sweep-image" in run("reproduce").stdout


def test_a_table_is_measured_beside_the_paper_in_every_form(root, tmp_path):
    files = ["--markdown", tmp_path / "t.md", "--latex", tmp_path / "t.tex"]
    result = run("reproduce", "--table", "k-sweep-image", "--embeddings", root, *files)
    assert result.exit_code == 0, result.output
    markdown = (tmp_path / "t.md").read_text()
    assert "|  | Original | k = 1 | 4 | 8 | 16 | 32 | 64 | 128 |" in markdown
    assert "|   the paper | 30.45 | 35.47 | 36.57 |" in markdown
    latex = (tmp_path / "t.tex").read_text()
    assert_compiles(tmp_path / "t.tex")
    for text in (markdown, latex):
        assert str(root) not in text
    (printed,) = run_json("reproduce", "--table", "k-sweep-image", "--embeddings", root)
    cells = [cell for cell in printed["cells"] if cell["row"] == "CLIP"]
    assert [cell["printed"] for cell in cells][:2] == [30.45, 35.47]
    assert all(cell["figure"]["low"] <= cell["figure"]["value"] for cell in cells)


@pytest.mark.slow
def test_a_line_per_cell_has_the_interval_and_the_difference(root, tmp_path):
    asked = ["--table", "image-retrieval", "--embeddings", root, "--by-cell"]
    assert run("reproduce", *asked, "--markdown", tmp_path / "t.md").exit_code == 0
    rows = [line for line in (tmp_path / "t.md").read_text().splitlines() if "COCO: NNN" in line]
    assert len(rows) == 2
    assert all(line.count("[") == 2 for line in rows)  # by the paper's rule, and by ours


@pytest.mark.slow
def test_all_tables_run_from_one_command_and_are_pages_of_a_document(root, tmp_path):
    asked = ["--table", "all", "--embeddings", root, "--latex", tmp_path / "all.tex"]
    printed = run_json("reproduce", *asked)
    assert len(printed) == 22  # with the trends
    for table in printed[:-1]:
        assert any(cell["figure"] for cell in table["cells"]), table["table"]
    assert printed[-1]["trends"][0]["printed"] == "α 0.75, k 64"
    assert_compiles(tmp_path / "all.tex")


def test_finished_cells_are_kept_beside_the_embeddings_and_taken_up(tmp_path):
    root = make_paper_folder(tmp_path)
    asked = ["reproduce", "--table", "k-sweep-image", "--embeddings", root]
    first = run(*asked)
    assert "figures were there" not in first.stderr
    again = run(*asked)
    assert "8 figures were there; 0 were measured" in again.stderr
    assert again.stdout == first.stdout
    other = run(*asked, "--results", tmp_path / "elsewhere")
    assert "figures were there" not in other.stderr
    assert len(list((tmp_path / "elsewhere").iterdir())) == 8


def test_a_failed_cell_is_said_after_everything_else_is_written(tmp_path):
    root = make_paper_folder(tmp_path, models=("clip", "siglip"))
    rows = np.load(root / "siglip/coco/images.npy")
    rows[-1] = 0  # an image of the test part
    np.save(root / "siglip/coco/images.npy", rows)
    asked = ["reproduce", "--table", "k-sweep-image", "--embeddings", root]
    result = run(*asked, "--markdown", tmp_path / "t.md", "--json")
    assert result.exit_code == 1
    words = " ".join(result.stderr.split())
    assert "Error: 8 of 112 cells failed, the first in table k-sweep-image, SigLIP, orig" in words
    assert "is all zeros" in words
    assert "are kept, and the same command measures only these again" in words
    (printed,) = json.loads(result.stdout)
    clip = [cell for cell in printed["cells"] if cell["row"] == "CLIP"]
    assert all(cell["figure"] for cell in clip)
    markdown = (tmp_path / "t.md").read_text()
    assert "8 of 112 cells failed, such as SigLIP, original." in markdown
    assert len(list((root / "results").iterdir())) == 8
    np.save(root / "siglip/coco/images.npy", np.load(root / "clip/coco/images.npy"))
    again = run(*asked)
    assert again.exit_code == 0
    assert "8 figures were there; 8 were measured" in again.stderr


def test_a_table_without_material_is_left_out_of_several(tmp_path):
    root = make_paper_folder(tmp_path)
    (root / "visogender.tsv").unlink()
    tables = [part for name in ("gender", "k-sweep-image") for part in ("--table", name)]
    result = run("reproduce", *tables, "--embeddings", root, "--json")
    assert result.exit_code == 0
    assert [table["table"] for table in json.loads(result.stdout)] == ["k-sweep-image"]
    assert "Note: table gender is left out: there is no visogender.tsv" in result.stderr


@pytest.mark.slow
def test_the_runtime_table_says_what_it_ran_on(root, tmp_path):
    asked = ["reproduce", "--table", "runtime", "--embeddings", root]
    (printed,) = run_json(*asked, "--markdown", tmp_path / "t.md")
    assert printed["device"].startswith("the processor (")
    assert f"Timed on {printed['device']}." in (tmp_path / "t.md").read_text()
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        words = "finds none on this machine; leave out --device to use the processor"
        assert_fails(run(*asked, "--device", "cuda"), words)
    assert_fails(run(*asked, "--device", "tpu"), "'tpu' is not one of", code=2)


@pytest.mark.slow
def test_trends_are_a_table_of_their_own(root):
    (printed,) = run_json("reproduce", "--table", "trends", "--embeddings", root)
    trends = {trend["words"]: trend for trend in printed["trends"]}
    assert trends["compute of tuning: DBNorm over NNN"]["printed"] == "100×"
    assert trends["compute of tuning: DBNorm over NNN"]["ours"]["ours"].endswith("×")
    assert trends["(3) R@1 with the other direction's setting"]["ours"]["ours"].endswith("points")


def test_a_trend_that_fails_leaves_the_other_tables_and_is_said(tmp_path, monkeypatch):
    def measure(self, there):
        if there.metric == "setting" and there.dataset == "coco":
            raise MemoryError
        return Figure((0.75, 8) if there.metric == "setting" else 50.0)

    monkeypatch.setattr(Runner, "measure", measure)
    tables = [part for name in ("k-sweep-image", "trends") for part in ("--table", name)]
    result = run("reproduce", *tables, "--embeddings", tmp_path, "--json")
    assert result.exit_code == 1
    sweep, found = json.loads(result.stdout)
    assert all(cell["figure"] for cell in sweep["cells"])
    assert found["trends"][0]["ours"] == {"ours": "α 0.75, k 8"}
    words = " ".join(result.stderr.split())
    assert "cells failed, the first in table trends, CLIP, coco, image retrieval: best" in words
    assert "out of memory" in words


def test_trends_of_damaged_embeddings_are_an_error(tmp_path, monkeypatch):
    def measure(self, there):
        raise NNNormError("row 3 is all zeros")

    monkeypatch.setattr(Runner, "measure", measure)
    result = run("reproduce", "--table", "trends", "--embeddings", tmp_path)
    assert_fails(result, f"table trends can be measured from {tmp_path}: row 3 is all zeros")
    result = run("reproduce", "--table", "trends", "--stand-in", "shapes")
    assert_fails(result, "nothing of table trends can be measured: row 3 is all zeros")


@pytest.mark.slow
def test_stand_ins_are_columns_of_the_same_tables(tmp_path):
    printed = run_json("reproduce", "--table", "k-sweep-image", "--stand-in", "shapes")
    (cells,) = printed[0]["stand_ins"].values()
    assert len(cells) == 8
    assert cells[0]["figure"]["value"] == pytest.approx(21.36, abs=0.1)


@pytest.mark.slow
def test_the_paper_s_figures_are_drawn_where_asked_for(tmp_path):
    root = make_paper_folder(tmp_path, models=("clip", "clip-ft-coco"))
    tables = [part for name in ("gender", "hubness") for part in ("--table", name)]
    asked = [*tables, "--histogram", "clip-ft-coco/flickr30k", "--plots", tmp_path / "plots"]
    result = run("reproduce", *asked, "--embeddings", root)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "gender-first-ten.png",
        "gender.png",
        "histogram-clip-ft-coco-flickr30k-image.png",
        "histogram-clip-ft-coco-flickr30k-text.png",
        "hubness-image.png",
        "hubness-text.png",
        "hubs-first-ten.png",
    ]


@pytest.mark.slow
def test_the_fine_tuned_model_is_the_third_curve_where_its_embeddings_are(tmp_path):
    plots = pytest.importorskip("matplotlib") and importlib.import_module("nnnorm.report.plots")
    for models in (("clip",), ("clip", "clip-ft-coco")):
        root = tmp_path / models[-1]
        root.mkdir()
        folder = EmbeddingFolder(make_paper_folder(root, models=models))
        figures = draw_histogram(Runner(folder.open), "clip/coco", folder)
        draw = figures["histogram-clip-coco-image.png"]
        labels = [text.get_text() for text in draw(plots).legends[0].get_texts()]
        curves = ["uncorrected", "NNN", "CLIP ft. COCO"][: 1 + len(models)]
        assert labels == [*curves, "by chance"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "image-retrieval"], "give --embeddings DIR"),
        (["--table", "bogus", "--stand-in", "shapes"], "there is no table 'bogus'"),
        (["--table", "gender", "--stand-in", "photos"], "a stand-in is shapes or flickr8k=FOLDER"),
        (["--embeddings", "nowhere"], "nowhere is no folder"),
        (["--table", "gender", "--stand-in", "shapes", "--encoder", "clip=x"], "needs --embedd"),
        (
            ["--table", "gender", "--embeddings", ".", "--encoder", "clap=x"],
            "the paper has no model 'clap'; its models are: clip, clip-ft-flickr",
        ),
        (
            ["--table", "gender", "--embeddings", ".", "--encoder", "clip=x"],
            "there is no visogender-images.txt; `nnnorm dataset` writes it",
        ),
        (["--table", "gender", "--stand-in", "flickr8k=."], "has no image.npy"),
        (["--histogram", "clip/coco", "--stand-in", "shapes"], "--histogram needs --embeddings"),
        (
            ["--histogram", "clip/coco", "--embeddings", ".", "--plots", "."],
            "--histogram takes MODEL/DATASET, two folders with embeddings below --embeddings",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert_fails(run("reproduce", *arguments, "--markdown", "out.md"), words)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_is_there_the_command_that_makes_it_is_said(tmp_path):
    result = run("reproduce", "--table", "k-sweep-image", "--embeddings", tmp_path)
    assert_fails(result, "nothing of table k-sweep-image can be measured")
    words = " ".join(result.stderr.split())
    assert "there is no coco.json" in words
    assert f"--embeddings {tmp_path} --encoder clip=MODEL" in words


def test_the_paper_s_trends_alone_are_no_result(tmp_path):
    result = run("reproduce", "--table", "all", "--embeddings", tmp_path)
    assert_fails(result, "nothing of table image-retrieval can be measured")
    words = " ".join(result.stderr.split())
    assert "Note: table trends is left out: there is no" in words
    result = run("reproduce", "--table", "trends", "--embeddings", tmp_path)
    assert_fails(result, f"nothing of table trends can be measured from {tmp_path}: there is no")
    words = " ".join(result.stderr.split())
    assert f"--table settings-image --table trends --embeddings {tmp_path} --encoder" in words


def test_scores_of_a_model_without_embeddings_need_the_lists_of_their_data_set(tmp_path):
    asked = ["reproduce", "--table", "cross-attention", "--embeddings", tmp_path]
    assert_fails(run(*asked), "there is no test-scores.npy in")
    result = run(*asked, "--encoder", "blip-itm=MODEL")
    assert_fails(result, "there is no coco-images.txt; `nnnorm dataset` writes it")


def test_embeddings_that_do_not_fit_their_data_set_stop_the_run(tmp_path):
    root = make_paper_folder(tmp_path)
    np.save(root / "clip/coco/texts.npy", np.eye(16, dtype=np.float32))
    result = run("reproduce", "--table", "k-sweep-image", "--embeddings", root)
    assert_fails(result, "has 16 rows, but coco has 800 texts")
