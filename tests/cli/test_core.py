import contextlib
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnnorm
from tests.attack.commands import walk_commands
from tests.command import assert_fails, run

# A title of the window, its short form, a line of its own, text that runs backwards, a Ctrl-H.
HOSTILE = ["\x1b]0;owned\x07", "\x9b31m", "a\nError: gone", "\u202egnp", "\x08", "\u2028"]
COMMAND = [sys.executable, "-m", "nnnorm"]
FIT = ["fit", "--gallery", "gallery.npy", "--references", "references.npy"]
FIT += ["-o", "bias.safetensors"]


@pytest.fixture
def files(tmp_path, small, monkeypatch):
    for name, array in vars(small).items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*arguments):
    return run(*FIT, *arguments)


def search(*arguments):
    return run("search", "--gallery", "gallery.npy", "--queries", "queries.npy", *arguments)


# --- the main job -------------------------------------------------------------------------------


def test_two_commands_correct_a_search(files, small):
    assert fit("--reference-k", 5, "--alpha", 0.75).exit_code == 0
    result = search("--bias", "bias.safetensors", "-k", 4, "-o", "ranking.npz")
    assert result.exit_code == 0, result.output
    bias = nnnorm.NNN(5, 0.75).fit(small.gallery, small.references)
    expected = nnnorm.search(small.queries, small.gallery, bias, k=4)
    np.testing.assert_array_equal(nnnorm.Ranking.load("ranking.npz").indices, expected.indices)


def test_fit_prints_a_table_and_what_to_do_next(files):
    result = fit("--normalize")
    assert "a bias for 23 items from 57 past queries" in result.stdout
    assert "reference_k=8, alpha=0" in result.stdout
    assert "params." not in result.stdout
    following = " ".join(result.stdout.partition("Next:")[2].replace("\\", "").split())
    expected = "nnnorm search --gallery gallery.npy --queries QUERIES --bias bias.safetensors"
    assert following == f"{expected} --normalize"
    assert "normalize" not in fit().stdout.partition("Next:")[2]
    assert "b[red]c.safetensors" in fit("-o", "b[red]c.safetensors").stdout  # no markup


@pytest.mark.slow
@pytest.mark.parametrize("module", ["nnnorm.cli.app", "nnnorm.cli.core", "nnnorm.bank"])
def test_ctrl_c_during_the_imports_is_one_sentence(module):
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['nnnorm', 'fit']\n"
        "from nnnorm.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "Error: interrupted\n")


NUMBERS = ("--reference-k", 5, "--alpha", 0.5, "--set", "center=True")


@pytest.mark.parametrize(
    ("options", "method"), [((), nnnorm.NNN()), (NUMBERS, nnnorm.NNN(5, 0.5, center=True))]
)
def test_settings_are_those_of_the_method(files, small, options, method):
    about = json.loads(fit("--json", *options).stdout)
    expected = method.fit(small.gallery, small.references)
    assert about["params"] == pytest.approx(expected.params)
    np.testing.assert_array_equal(nnnorm.Bias.load("bias.safetensors").values, expected.values)


def test_queries_below_a_confidence_are_shown_without_hits(files, small):
    found = nnnorm.search(small.queries, small.gallery)
    bound = float(np.median(found.confidence))
    below = found.confidence < bound
    printed = json.loads(search("--min-confidence", bound, "--json").stdout)
    expected = np.where(below[:, None], -1, found.indices)
    assert printed["indices"] == expected.tolist()
    assert printed["scores"][int(below.argmax())] == [None] * 10
    lines = search("--min-confidence", bound).stdout.splitlines()
    assert [line.count("–") for line in lines].count(5) == below[:10].sum()
    assert lines[-1] == f"{below.sum()} of {len(below)} queries have no hits."


def test_a_weight_on_the_command_line_overrides(files, small):
    fit("--alpha", 0.75, "--reference-k", 3)
    printed = json.loads(search("--bias", "bias.safetensors", "--weight", 0, "--json").stdout)
    raw = nnnorm.search(small.queries, small.gallery, k=10)
    assert printed["indices"] == raw.indices.tolist()
    assert printed["weight"] == 0


def test_search_shows_a_table_and_says_what_it_left_out(files, small):
    result = search()
    assert "Best items (index, score)" in result.stdout
    assert "Showing 10 of 11 queries, 5 of 10 hits each." in " ".join(result.stdout.split())
    Path("ids.txt").write_text("".join(f"document-{row}\n" for row in range(len(small.gallery))))
    lines = search("--ids", "ids.txt").stdout.splitlines()
    assert "of 11 queries, 3 of 10 hits each." in lines[-1]
    assert len(lines) == len(result.stdout.splitlines())  # long ids wrap no line


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("none", []),
        ("nnn", ["--reference-k", 5, "--alpha", 0.5]),
        ("csls", ["--reference-k", 5]),
        ("dn", ["--set", "weight=0.25"]),
        ("is", ["--set", "beta=10"]),
        ("qbnorm", ["--set", "beta=10"]),
        ("dualis", ["--set", "beta_query=10", "--set", "beta_gallery=2"]),
        ("dualdis", ["--set", "beta_query=10", "--set", "beta_gallery=2", "--set", "gate=safe"]),
        ("sinkhorn", ["--set", "tau=0.05", "--set", "iterations=3"]),
    ],
)
def test_every_method_has_a_name_on_the_command_line(files, name, options):
    if name in ("dualis", "dualdis", "sinkhorn"):
        options = [*options, "--set", "gallery_references=gallery_references.npy"]
    result = fit("--method", name, *options)
    assert result.exit_code == 0, result.output
    assert nnnorm.Bias.load("bias.safetensors").method == name
    assert "corrected score" in search("--bias", "bias.safetensors").stdout
    assert ("nothing will be corrected" in result.stderr) == (name == "none")


def test_fit_takes_an_engine_and_shows_the_error_that_it_tells(files):
    rng = np.random.default_rng(0)
    np.save("references.npy", rng.normal(size=(9000, 12)).astype(np.float32))
    np.save("gallery.npy", rng.normal(size=(500, 12)).astype(np.float32))
    result = fit(
        "--solver", "approximate", "--set", "quality=16", "--set", "duplicates=keep", "--json"
    )
    params = json.loads(result.stdout)["params"]
    assert (params["solver"], params["quality"]) == ("approximate", 16)
    assert 0 < params["error"] < 0.5
    assert_fails(fit("--set", "quality=16"), "quality only applies to the solver approximate")
    assert fit("--solver", "abacus").exit_code == 2


def test_normalize_is_for_fit_and_search_alike(files):
    assert fit("--normalize").exit_code == 0
    assert search("--normalize", "--bias", "bias.safetensors").exit_code == 0
    assert_fails(
        search("--bias", "bias.safetensors"), "use the same --normalize for fit and search"
    )


def test_rows_without_unit_norm_are_noted_unless_they_are_meant(files):
    assert "raw inner products; for cosine, pass --normalize;" in fit().stderr
    assert "Note" not in fit("--no-normalize").stderr


# --- info, help, version ------------------------------------------------------------------------


def test_info_tells_versions_and_blas(files):
    facts = json.loads(run("info", "--json").stdout)
    assert facts["nnnorm"] == nnnorm.__version__
    assert facts["numpy"] == np.__version__
    assert facts["blas"]
    assert facts["threads"] >= 1
    assert run("info").stdout.count("nnnorm") == 1
    assert run("--version").stdout.strip() == nnnorm.__version__


def test_info_tells_what_a_file_holds(files):
    fit("--reference-k", 5)
    search("-o", "ranking.npz")
    bias = json.loads(run("info", "bias.safetensors", "--json").stdout)
    assert (bias["method"], bias["n_gallery"], bias["n_references"]) == ("nnn", 23, 57)
    ranking = json.loads(run("info", "ranking.npz", "--json").stdout)
    assert ranking == {"n_queries": 11, "k": 10, "ids": False}
    assert "scores, indices and confidence" in run("info", "ranking.npz").stdout
    embeddings = json.loads(run("info", "gallery.npy", "--json").stdout)
    assert (embeddings["n_rows"], embeddings["dim"]) == (23, 12)
    assert "a bias for 23 items" in run("info", "bias.safetensors").stdout


@pytest.mark.slow
def test_the_demo_fits_on_one_screen_and_names_its_file(demo):
    lines = demo.told.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 80
    assert "worse with the correction" in demo.told
    assert [path.name for path in demo.folder.iterdir()] == ["bias.safetensors"]
    assert "bias.safetensors" in demo.told
    bias = nnnorm.Bias.load(demo.folder / "bias.safetensors")
    assert len(bias) == 1000


@pytest.mark.slow
def test_the_demo_prints_all_figures_as_json(tmp_path, monkeypatch, demo):
    monkeypatch.setattr("nnnorm.demo.run_demo", lambda output: demo.figures)
    printed = json.loads(run("demo", "--json", "-o", str(tmp_path)).stdout)
    before, after = printed["before"], printed["after"]
    assert after["recall_at_1"] > before["recall_at_1"] + 0.01
    assert after["gain"]["low"] > 0
    assert after["hubness"]["max"] < before["hubness"]["max"]
    assert printed["n_gained"] > printed["n_lost"]
    is_right = [e["right"] == e["after"] for e in printed["examples"]]
    assert is_right == [True, True, False]


# --- mistakes -----------------------------------------------------------------------------------


def spoil(name, change):
    array = np.load(f"{name}.npy").copy()
    np.save(f"{name}.npy", change(array))


def with_nan(array):
    array[7, 3] = np.nan
    return array


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, "references (references.npy) must be finite; row 7 has NaN in column 3"),
        (
            lambda a: a[:, :5],
            "must have the same dimension; got shapes (23, 12) and ",
        ),
        (
            lambda a: a.astype(int),
            "these look like truth or row numbers, so check the order",
        ),
    ],
    ids=["nan", "other-dim", "integers"],
)
def test_bad_embeddings_are_one_sentence_and_no_file(files, change, words):
    spoil("references", change)
    assert_fails(fit(), words)
    assert not (files / "bias.safetensors").exists()


def test_numbers_that_do_not_fit_say_both(files):
    assert_fails(fit("--reference-k", 58), "reference_k is 58, but there are only 57 past queries")
    assert_fails(search("-k", 24), "from 1 to 23, the number of items of gallery (g")
    assert_fails(fit("--method", "is", "--set", "beta=inf"), "from 0 to 1e+09; got inf")
    assert_fails(fit("--alpha", "much"), "alpha must be a number from 0 to 1e+06; got 'much'")


@pytest.mark.parametrize(
    ("options", "n_references", "words"),
    [
        ((), 1, "1 past queries are too few to distinguish the hubs of 23 items from noise, so "),
        (("--alpha", 0), 57, "the weight is 0"),
        (("--method", "none"), 57, "the method is none"),
        (("--method", "is", "--set", "beta=0"), 57, "every item's value is 0"),
    ],
    ids=["tiny-bank", "alpha-0", "none", "beta-0"],
)
def test_a_bias_that_corrects_nothing_says_so(files, options, n_references, words):
    spoil("references", lambda array: array[:n_references])
    result = fit(*options)
    assert result.exit_code == 0, result.output
    assert f"Note: nothing will be corrected: {words}" in result.stderr


def test_missing_and_foreign_files_are_named(files):
    (files / "text.npy").write_text("no numbers here")
    for wrong, words in (("gone.npy", "there is no such file"), ("text.npy", "can't be read as")):
        result = run("search", "--gallery", wrong, "--queries", "queries.npy")
        assert_fails(result, words)
    assert_fails(search("--bias", "gone.safetensors"), "there is no bias file gone.safetensors")
    assert_fails(search("--bias", "gallery.npy"), "contains embeddings; expected a bias")
    assert_fails(search("--bias", files), "is a folder; expected a bias file")
    assert_fails(run("info", files), "is a folder without numbered .npy or .parquet shards")


def test_an_output_that_can_t_be_written_is_found_before_the_work(files, monkeypatch):
    monkeypatch.setattr(nnnorm.NNN, "fit", lambda *_, **__: pytest.fail("the work was begun"))
    for output, words in (
        ("no/such/folder/b.safetensors", "does not exist; create it first"),
        (files, "it is a folder; pass a file name inside it"),
    ):
        assert_fails(fit("-o", output), words)


def test_an_output_never_replaces_an_input_and_says_its_kind(files):
    (files / "gallery.safetensors").symlink_to(files / "gallery.npy")
    before = (files / "gallery.npy").read_bytes()
    assert_fails(fit("-o", "gallery.npy"), "is one of the inputs and would be overwritten")
    os.link("gallery.npy", "Gallery.safetensors")  # as on a disk that ignores case
    assert_fails(fit("-o", "Gallery.safetensors"), "is one of the inputs and would be overwritten")
    assert_fails(fit("-o", "bias"), "the output must end in .safetensors; got bias")
    assert_fails(fit("-o", "gallery.safetensors"), "is one of the inputs and would be overwritten")
    assert_fails(search("-o", "ranking.csv"), "the output must end in .npz; got ranking.csv")
    assert (files / "gallery.npy").read_bytes() == before


@pytest.mark.parametrize("hostile", HOSTILE)
def test_text_from_data_never_controls_the_terminal(files, small, hostile):
    """Ids, names of groups, paths and notes in tables, errors and commands; JSON stays exact."""
    shown, folder = hostile.encode("unicode_escape").decode(), files / f"x{hostile}"
    folder.mkdir()
    gallery, output = folder / "gallery.npy", folder / "bias.safetensors"
    np.save(gallery, small.gallery)
    ids = [f"{hostile}{n}" for n in range(len(small.gallery))]
    (files / "ids.json").write_text(json.dumps(ids))
    groups = [json.dumps({"group": f"{hostile}{n % 2}"}) for n in range(len(ids))]
    (files / "groups.jsonl").write_text("\n".join(groups))
    inputs = ["--gallery", gallery, "--queries", "queries.npy"]
    found = [
        run("fit", "--gallery", gallery, "--references", "references.npy", "-o", output),
        run("search", *inputs, "--ids", "ids.json"),
        run("search", *inputs, "--bias", f"{hostile}.safetensors"),
        run("search", *inputs, "-o", folder / "hits.npz"),
        run("audit", *inputs, "--groups", "groups.jsonl"),
        run("info", folder / "none.npy", *([] if "\n" in hostile else ["--debug"])),
        run("index", "info", f"sqlite:{folder}/a.db?table={hostile}"),
        run("fit", f"--{hostile}"),
        run(f"--{hostile}"),
        run("encode", hostile, "-o", folder, "--images", folder),
    ]
    for result in found:
        assert shown in result.output.replace("\n", "").replace(r"\x0a", r"\n"), result.output
        assert hostile not in result.output, result.output
    exact = json.loads(run("search", *inputs, "--ids", "ids.json", "--json").stdout)
    assert {one for row in exact["ids"] for one in row} <= set(ids)


def test_names_beyond_what_a_file_system_takes_are_one_sentence(files):
    assert_fails(run("info", "x" * 300 + ".safetensors"), "File name too long")
    assert_fails(run("info", "x" * 300 + ".npz"), "xxx")


@pytest.mark.parametrize("name", walk_commands())
def test_the_help_of_a_command_has_one_line_per_option_json_and_an_example(name):
    text = run(*name.split(), "--help").stdout
    assert text.isascii()  # for old terminals
    assert max(map(len, text.splitlines())) <= 80
    assert f"Example: nnnorm {name}" in " ".join(text.split())
    sections = text.partition("Example:")[0].split("\n\n")[2:]
    lines = [line for section in sections for line in section.splitlines()[1:] if line.strip()]
    shown = [re.match(r"  (?:-\w, )?([\w-]+)", line)[1] for line in lines]
    options = walk_commands()[name].options
    assert sorted(shown) == sorted(option.flag or option.metavar for option in options)
    assert "--json" in shown


@pytest.mark.slow
def test_a_terminal_without_the_letters_gets_escapes_and_valid_json(files):
    env = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}
    command = [*COMMAND, *FIT[:-1], "größe.safetensors"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=env, check=True)
    assert r"gr\xf6\xdfe.safetensors" in done.stdout
    command.append("--json")
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=env, check=True)
    assert json.loads(done.stdout)["output"] == "größe.safetensors"


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_file(files):
    fit("--reference-k", 5)
    old = (files / "bias.safetensors").read_bytes()
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "from nnnorm.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", limited, *FIT], capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        "Error: cannot write bias.safetensors: File too large; nothing was changed" in done.stderr
    )
    assert (files / "bias.safetensors").read_bytes() == old
    assert not list(files.glob(".*tmp"))


def test_a_traceback_only_with_debug(files):
    assert "Traceback" not in fit("--reference-k", 58).output
    result = fit("--reference-k", 58, "--debug")
    assert "Traceback" in result.stderr
    assert result.exit_code == 1


def test_wrong_usage_has_exit_code_2(files):
    for arguments in (
        ["fit"],
        ["fit", "--nonsense"],
        ["nonsense"],
        ["search", "--gallery", "gallery.npy", "--queries", "queries.npy", "-k", "many"],
    ):
        assert run(*arguments).exit_code == 2
    for pair, words in (("center", "expected NAME=VALUE"), ("alpha=1", "alpha is given twice")):
        assert_fails(fit("--alpha", 1, "--set", pair), words, 2)
    assert fit("--method", "best").exit_code == 2
    assert_fails(fit("-k", 3), "No such option: -k; use --reference-k: Past queries averaged", 2)
    assert_fails(run("search", "--past-queries", "a.npy"), "use --bias: Bias written by `nnn", 2)
    assert_fails(run("index", "build", "faiss:", "--bias=b"), "use --corrector: Corrector wr", 2)
    assert_fails(fit("--set", "centre=true"), "got 'centre'; use center")
    assert_fails(fit("--reference-k", "8", "--set", "k=8"), "got 'k'; use reference_k")
    assert_fails(run("check", "a.npy", "b.npy"), "files are passed as options", 2)
    assert_fails(search("-k", "many"), "'-k' / '--k': ", 2)


# --- a terminal ---------------------------------------------------------------------------------


def wait_for(descriptor, words):
    """Read until the words are there; a terminal that is closed raises or gives nothing more."""
    seen = ""
    while words not in seen:
        more = ""
        with contextlib.suppress(OSError):
            more = os.read(descriptor, 4096).decode(errors="replace")
        assert more, f"no {words!r} in {seen!r}"
        seen += more


# The command line, which stops in the middle of its work until it is interrupted.
WAITING = """
import time
from rich.progress import Progress
from nnnorm.cli import main
update = Progress.update
Progress.update = lambda *task, **done: (update(*task, **done), time.sleep(600))
main()
"""


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_is_one_sentence_and_no_file(files, rng):
    np.save("gallery.npy", rng.normal(size=(2000, 128)).astype(np.float32))
    np.save("references.npy", rng.normal(size=(20_000, 128)).astype(np.float32))
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, *FIT], stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    try:
        wait_for(terminal, "Scoring the gallery")
        process.send_signal(signal.SIGINT)
        wait_for(terminal, "Error: interrupted")
        assert process.wait() == 130
        assert process.stdout.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(terminal)
    assert not (files / "bias.safetensors").exists()
    assert not list(files.glob(".*tmp"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the output")
def test_a_closed_or_broken_output_is_no_fault_of_ours(files):
    line = f"{sys.executable} -m nnnorm search --gallery gallery.npy --queries queries.npy"
    for end in (">&-", "--json >&-", "| head -1", "--json | head -1"):
        done = subprocess.run(f"{line} {end}", shell=True, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        assert "fault of nnnorm" not in done.stderr


@pytest.mark.parametrize(
    ("module", "function", "line"),
    [
        ("nnnorm.explore", "record", ["explore", *FIT[1:5], "--queries", "queries.npy"]),
        ("nnnorm.evaluation", "tune", ["tune", *FIT[1:5], "--queries", "queries.npy"]),
        ("nnnorm.demo", "load_shapes", ["demo"]),
    ],
)
def test_an_interrupt_leaves_no_empty_folder(files, monkeypatch, module, function, line):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    np.save("truth.npy", np.arange(11))
    options = {"explore": ["--export", "new"], "demo": ["--output", "new"]}
    options["tune"] = ["--report", "new", "--truth", "truth.npy", "-o", "b.safetensors"]
    if function == "record":
        module, function = "nnnorm.explore.recording._Recording", "record"
    monkeypatch.setattr(f"{module}.{function}", interrupt)
    assert run(*line, *options[line[0]]).exit_code == 130
    assert not (files / "new").exists()


def test_what_a_library_logs_is_printable(files, monkeypatch):
    def fit(*_, **__):
        logging.getLogger("some.library").warning("table %s", HOSTILE[0])
        raise nnnorm.NNNormError("it failed")

    monkeypatch.setattr(nnnorm.NNN, "fit", fit)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    result = run("fit", *FIT[1:])
    assert result.stderr == "table \\x1b]0;owned\\x07\nError: it failed\n"
