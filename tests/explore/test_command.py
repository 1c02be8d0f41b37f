"""`nnnorm explore` from files, and the page that it writes to a folder."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import nnnorm
from nnnorm.cli.app import app
from nnnorm.explore import Session, open_material, record
from nnnorm.explore.recording import MODULES, STATIC, join_modules
from nnnorm.explore.views import Views

pytest.importorskip("starlette", reason="the explorer needs nnnorm[explore]")

N_ITEMS, N_QUERIES = 40, 10


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("explore")
    shapes = nnnorm.load_shapes()
    np.save(folder / "gallery.npy", shapes.gallery[:N_ITEMS])
    np.save(folder / "queries.npy", shapes.queries[:N_QUERIES])
    np.save(folder / "references.npy", shapes.references[:300])
    np.save(folder / "truth.npy", shapes.truth[:N_QUERIES])
    (folder / "captions.txt").write_text("\n".join(f"item {n}" for n in range(N_ITEMS)))
    (folder / "asked.csv").write_text(
        "id,caption\n"
        + "".join(f'{n},"{text}"\n' for n, text in enumerate(shapes.captions[:N_QUERIES]))
    )
    (folder / "items.jsonl").write_text(
        "".join(
            json.dumps({"image": f"{n}.png", "kind": ("odd", "even")[n % 2], "n": n}) + "\n"
            for n in range(N_ITEMS)
        )
    )
    (folder / "pictures").mkdir()
    for item in range(N_ITEMS):
        Image.fromarray(shapes.draw(item, 32)).save(folder / "pictures" / f"{item}.png")
    return folder


def inputs(folder, **more):
    names = {"gallery": "gallery.npy", "queries": "queries.npy", "references": "references.npy"}
    return {name: folder / file for name, file in {**names, **more}.items()}


def read_answers(folder):
    """The answers of an exported page, by the address that the page asks."""
    text = (folder / "recorded.js").read_text().partition(" = ")[2].rstrip(";\n")
    return json.loads(text)["answers"]


def test_files_become_material(files):
    texts = {"captions": "captions.txt", "query_captions": "asked.csv"}
    known = {"truth": "truth.npy", "metadata": "items.jsonl", "images": "pictures"}
    found = open_material(**inputs(files, **texts, **known))
    assert found.describe_item(3) == "item 3"
    assert found.describe_query(2) == nnnorm.load_shapes().captions[2]
    numbers = sorted(str(n) for n in range(N_ITEMS))
    assert found.filters() == {"kind": ["even", "odd"], "n": numbers}
    assert found.right_items(7) == [1]
    assert found.pictures.find(4).name == "4.png"  # by its name, not by its place in the folder
    assert found.options["gallery"] == str(files / "gallery.npy")


def open_served(folder, url):
    return open_material(
        index=url, queries=folder / "queries.npy", references=folder / "references.npy"
    )


@pytest.fixture(scope="module")
def served(files):
    """An index with the bias of another bank than the one that is looked at, and its material."""
    pytest.importorskip("faiss")
    gallery = np.load(files / "gallery.npy")
    past = nnnorm.load_shapes().references[300:600]
    corrector = nnnorm.Corrector.fit(gallery, past, nnnorm.NNN(8, 0.7))
    url = f"faiss:{files / 'index'}"
    metadata = [{"kind": "ab"[n % 2]} for n in range(N_ITEMS)]
    nnnorm.build_index(url, gallery, corrector, metadata=metadata).close()
    return open_served(files, url)


def test_an_index_is_seen_as_it_serves(files, served):
    gallery = np.load(files / "gallery.npy")
    np.testing.assert_allclose(served.gallery.rows(0, N_ITEMS), gallery, atol=1e-5)
    assert served.filters() == {"kind": ["a", "b"]}
    views = Views(session := Session(served))
    opens_with = views.about()["methods"][0]
    assert (opens_with["name"], opens_with["knobs"][0]["default"]) == ("index", 0.7)
    assert not views.about()["has_query_captions"]  # so no words to find a query by are asked for
    assert views.about()["served"].endswith("serves NNN, k = 8, weight 0.7")
    with nnnorm.open_index(served.options["index"]) as index:
        for weight in (None, 0.25):
            answers = index.search(files / "queries.npy", k=12, weight=weight).ids
            params = {} if weight is None else {"weight": weight}
            method = session.open_method("index", params)
            found = views.search(method, query=3)
            assert found["after"].tolist() == answers[3].tolist()
            assert session.first(method).tolist() == answers[:, 0].tolist()
            given = "" if weight is None else " --weight 0.25"
            shown = " ".join(found["setting"]["commands"][0].replace("\\", "").split())
            assert shown.endswith(f"queries.npy{given}")
    assert found["before"].tolist() != found["after"].tolist()


def test_the_password_of_an_index_is_neither_on_the_page_nor_in_its_export(
    files, served, monkeypatch, tmp_path
):
    opened = nnnorm.open_index(served.options["index"])
    monkeypatch.setattr("nnnorm.explore.material.open_index", lambda url: opened)
    found = open_served(files, "pgvector://me:s3cret@box/photos")
    views = Views(session := Session(found))
    method = session.open_method("index", {})
    shown = repr((views.about(), views.search(method, query=3), found.served, found.options))
    assert "s3cret" not in shown
    assert "pgvector://…@box/photos" in shown
    monkeypatch.setattr("nnnorm.explore.recording._ALPHAS", (0.0, 1.0))
    record(session, tmp_path / "page")
    answers = repr(read_answers(tmp_path / "page"))
    assert "pgvector://…@box/photos" in answers
    assert "s3cret" not in answers
    written = [path.read_bytes() for path in (tmp_path / "page").rglob("*") if path.is_file()]
    assert len(written) > 3
    assert not any(b"s3cret" in one for one in written)


def test_queries_of_an_index_of_unit_rows_are_divided_by_their_norms(files, tmp_path):
    pytest.importorskip("faiss")
    gallery, references = (2 * np.load(files / f"{name}.npy") for name in ("gallery", "references"))
    corrector = nnnorm.Corrector.fit(gallery, references, nnnorm.NNN(8, 0.7), normalize=True)
    nnnorm.build_index(f"faiss:{tmp_path / 'unit'}", gallery, corrector).close()
    np.save(tmp_path / "queries.npy", 5 * np.load(files / "queries.npy"))
    np.save(tmp_path / "references.npy", references)
    found = open_served(tmp_path, f"faiss:{tmp_path / 'unit'}")
    for rows in (found.queries, found.references, found.gallery):
        np.testing.assert_allclose(rows.norm_range, 1, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"captions": "asked.csv"}, "has 10 texts, but there are 40 items; --captions are"),
        ({"query_captions": "captions.txt"}, "has 40 texts, but there are 10 queries"),
        ({"metadata": "asked.csv"}, "has 10 rows, but the gallery has 40 items"),
        ({"images": "nowhere"}, "there is no folder of pictures"),
    ],
)
def test_files_that_do_not_fit_are_refused(files, more, message):
    with pytest.raises(nnnorm.NNNormError, match=message):
        open_material(**inputs(files, **more))


@pytest.mark.parametrize("name", ["gallery", "references", "queries"])
def test_files_of_another_dimension_are_an_error(files, tmp_path, name):
    given = inputs(files)
    np.save(tmp_path / "narrow.npy", np.load(given[name])[:, :-1])
    with pytest.raises(nnnorm.NNNormError, match="must have the same dimension"):
        open_material(**given | {name: tmp_path / "narrow.npy"})


def test_cells_without_a_value_are_no_choice_of_a_filter(files, tmp_path):
    rows = ["kind,same", *(f"{('', 'a', 'b')[n % 3]},x" for n in range(N_ITEMS))]
    (tmp_path / "items.csv").write_text("\n".join(rows))
    found = open_material(**inputs(files), metadata=tmp_path / "items.csv")
    assert found.filters() == {"kind": ["a", "b"]}


class OneAtATime:
    """An encoder that, as fast tokenizers do, fails when two threads use it."""

    def __init__(self):
        self.n_calls, self.lock = 0, threading.Lock()

    def check_modality(self, modality):
        assert modality == "texts"

    def encode_texts(self, texts):
        assert self.lock.acquire(blocking=False), "Already borrowed"
        try:
            self.n_calls += 1
            time.sleep(0.01)
            return nnnorm.load_shapes().queries[:1]
        finally:
            self.lock.release()


def test_an_encoder_is_used_by_one_thread_at_a_time_and_once_per_text(files, monkeypatch):
    encoder = OneAtATime()
    monkeypatch.setattr("nnnorm.explore.material.load_encoder", lambda model: encoder)
    encode = open_material(**inputs(files), encoder="model").encode
    with ThreadPoolExecutor(4) as threads:
        rows = list(threads.map(encode, "abcd"))
    assert {row.shape for row in rows} == {(1, nnnorm.load_shapes().queries.shape[1])}
    encode("a")
    assert encoder.n_calls == 4


def test_an_encoder_of_unit_rows_needs_past_queries_of_unit_norm(files, tmp_path, monkeypatch):
    monkeypatch.setattr("nnnorm.explore.material.load_encoder", lambda model: OneAtATime())
    np.save(tmp_path / "past.npy", 3 * np.load(files / "references.npy"))
    given = {**inputs(files), "references": tmp_path / "past.npy", "encoder": "model"}
    with pytest.raises(nnnorm.NNNormError, match=r"norms from 3 to 3, .* add --normalize"):
        open_material(**given)
    assert open_material(**given, normalize=True).encode is not None


def test_a_corrector_brings_its_past_queries(files, tmp_path):
    path = tmp_path / "corrector.safetensors"
    nnnorm.Corrector.fit(files / "gallery.npy", files / "references.npy").save(path)
    given = {name: file for name, file in inputs(files).items() if name != "references"}
    assert len(open_material(**given, corrector=path).references) > 50


def test_pictures_that_are_too_few_ask_for_a_column(files, tmp_path):
    (tmp_path / "one.png").write_bytes((files / "pictures" / "0.png").read_bytes())
    with pytest.raises(nnnorm.NNNormError, match="has 1 pictures, but the gallery has 40 items"):
        open_material(**inputs(files), images=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--queries {0}/queries.npy", "explore needs a gallery"),
        ("--gallery {0}/gallery.npy", "explore needs queries"),
        ("--gallery {0}/gallery.npy --queries {0}/queries.npy", "explore needs past queries"),
        ("--ids {0}/captions.txt", "explore needs a gallery"),
    ],
)
def test_missing_files_are_named(files, arguments, message, tmp_path):
    line = ["explore", *arguments.format(files).split(), "--export", str(tmp_path / "out")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 1
    assert message in done.stderr


@pytest.mark.slow
def test_the_command_writes_a_page_that_names_its_files(files, tmp_path):
    line = "explore --gallery {0}/gallery.npy --queries {0}/queries.npy "
    line += "--references {0}/references.npy --truth {0}/truth.npy --images {0}/pictures"
    target = ["--export", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, [*line.format(files).split(), *target])
    assert done.exit_code == 0, done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    told = json.loads(done.stdout)
    assert told["folder"] == str(tmp_path / "out")
    assert "index.html" in told["files"]
    assert {"index.html", "page.js", "recorded.js", "pictures", "vendor", "page.css"} <= written
    page = (tmp_path / "out" / "index.html").read_text()
    assert 'type="module"' not in page
    assert "/static/" not in page
    assert (tmp_path / "out" / "vendor" / "d3.LICENSE").exists()
    assert str(files / "gallery.npy") in repr(read_answers(tmp_path / "out"))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_listening_for_others_needs_a_flag_and_is_warned_of(files, host, monkeypatch):
    served = []
    monkeypatch.setattr("nnnorm.explore.serve", lambda *given: served.append(given))
    line = "explore --gallery {0}/gallery.npy --queries {0}/queries.npy "
    line += "--references {0}/references.npy --port 0 --no-browser"
    given = [] if host == "127.0.0.1" else ["--host", host]
    done = CliRunner().invoke(app, [*line.format(files).split(), *given])
    assert done.exit_code == 0, done.stderr
    assert ("everyone who can reach this machine" in done.stderr) == (host == "0.0.0.0")
    assert re.search(r"http://(127\.0\.0\.1|localhost):\d+/", done.stdout)
    _, opened, asked = served[0]
    assert opened.getsockname()[0] == asked == host
    opened.close()


@pytest.fixture(scope="module")
def exported(material, tmp_path_factory):
    """A session with few queries, and the folder of its recorded page."""
    few = replace(
        material, queries=material.queries.subset(np.arange(60)), truth=None, pictures=None,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("exported")
    record(session := Session(few), folder)
    return session, folder


@pytest.mark.slow
def test_markup_in_a_caption_can_not_end_the_script_of_a_recorded_page(exported):
    recorded = (exported[1] / "recorded.js").read_text()
    assert "<script>" in recorded
    assert "</script" not in recorded


@pytest.mark.slow
def test_an_export_has_the_numbers_of_a_hub_for_every_setting(exported):
    session, folder = exported
    views, answers = Views(session), read_answers(folder)
    listed = views.hubs(session.open_method("nnn", {}))["hubs"].tolist()
    hub = listed[0]
    k = session.automatic.params["reference_k"]
    center = bool(session.automatic.params.get("center"))
    seen = set()
    for alpha in (0, 1.5):
        asked = f"alpha={alpha:g}&center={str(center).lower()}&item={hub}&method=nnn"
        found = answers[f"hub/now?{asked}&reference_k={k}"]
        method = session.open_method("nnn", {"reference_k": k, "alpha": alpha, "center": center})
        expected = views.hub_now(method, hub)
        assert found["n_after"] == expected["n_after"]
        assert found["is_still_hit"] == expected["is_still_hit"].tolist()
        seen.add(found["n_after"])
    assert len(seen) == 2
    assert len(listed) > 12
    assert {f"hub?item={item}" for item in listed} <= set(answers)


@pytest.mark.slow
def test_a_folder_with_other_files_is_not_written_to(session, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(nnnorm.NNNormError, match="is not empty; pass a new folder"):
        record(session, tmp_path)


def test_the_modules_join_into_one_script_without_a_name_twice():
    text = join_modules()
    names = re.findall(r"^(?:async )?(?:function|const|let) (\w+)", text, flags=re.MULTILINE)
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    assert not re.search(r"^(import|export) ", text, flags=re.MULTILINE)
    assert {path.stem for path in STATIC.glob("*.js")} == set(MODULES)


def test_no_module_of_the_page_writes_markup_or_evaluates_text():
    words = ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "Function(", "document.w")
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        for word in words:
            assert word not in text, f"{path.name} has {word}"
