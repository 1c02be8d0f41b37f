"""What holds for the package as a whole: imports, layers, docstrings, the frame."""

import ast
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nnnorm
from nnnorm.cli import app, load_commands
from nnnorm.cli.app import COMMANDS
from tests.source import read_tree

SOURCE = Path(nnnorm.__file__).parent
ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "pyarrow", "faiss", "pandas", "scipy", "matplotlib", "rich", "typer"}
HEAVY |= {"transformers", "sentence_transformers", "tokenizers", "PIL", "soundfile"}
HEAVY |= {"hnswlib", "usearch", "duckdb", "sqlite_vec"}
HEAVY |= {"qdrant_client", "psycopg", "lancedb", "chromadb", "pymilvus"}
HEAVY |= {"fastapi", "starlette", "uvicorn", "ray", "fsspec"}
HEAVY |= {"langchain_core", "llama_index", "haystack", "mteb", "datasets", "pyspark"}


def modules_after(code):
    code = f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_nnnorm_and_using_it_loads_nothing_heavier_than_numpy():
    code = "import nnnorm, numpy as np\nx = np.eye(4)\n"
    code += "nnnorm.search(x, x, nnnorm.NNN().fit(x, x), k=2)"
    assert not modules_after("import nnnorm") & (HEAVY | {"safetensors", "numpy"})
    assert not modules_after(code) & (HEAVY | {"safetensors"})


def test_importing_nnnorm_loads_none_of_its_own_rooms():
    code = "import nnnorm, sys\nprint(*(m for m in sys.modules if m.startswith('nnnorm.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_is_found_once_and_listed():
    assert sorted(nnnorm._ROOM_OF) == sorted(nnnorm.__all__)
    assert dir(nnnorm) == nnnorm.__all__
    for name in nnnorm.__all__:
        assert getattr(nnnorm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        nnnorm.serach  # noqa: B018


def test_no_module_has_the_name_of_a_public_function():
    functions = {name for name in nnnorm.__all__ if inspect.isfunction(getattr(nnnorm, name))}
    modules = [path for path in SOURCE.rglob("*.py") if room_of(path) != "cli"]
    assert functions.isdisjoint({path.stem for path in modules})
    assert functions.isdisjoint({path.parent.name for path in modules})


def test_this_check_of_heavy_imports_can_fail():
    assert "rich" in modules_after("import nnnorm, rich")


def test_help_loads_no_optional_library():
    code = "sys.argv = ['nnnorm', '--help']\nfrom nnnorm.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass"
    assert not modules_after(code) & (HEAVY - {"typer", "rich"})


FIRST_WORDS = """
import io, sys
class Stdout(io.StringIO):
    def write(self, text):
        rooms = [m for m in sys.modules if m.startswith("nnnorm.") and ".cli" not in m]
        print(*{m.partition(".")[0] for m in sys.modules} - {"nnnorm"}, *rooms, file=sys.__stdout__)
        raise SystemExit
sys.argv = ["nnnorm", COMMAND]
sys.stdout = Stdout()
from nnnorm.cli import main
main()
"""


@pytest.mark.parametrize("command", ["demo", "--help"])
def test_the_first_line_is_printed_before_anything_slow_is_imported(command):
    code = FIRST_WORDS.replace("COMMAND", repr(command))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"numpy", "safetensors"}) - {"typer"}
    assert {name for name in loaded if name.startswith("nnnorm.")} == {
        "nnnorm.errors",
        "nnnorm.version",
    }


def test_every_command_is_in_the_table_with_its_module_and_a_line_that_fits():
    load_commands()
    commands = [
        (one.name or one.callback.__name__, one.callback) for one in app.registered_commands
    ]
    found = {name.replace("_", "-"): function.__module__ for name, function in commands}
    found |= {
        group.name: group.typer_instance.registered_commands[0].callback.__module__
        for group in app.registered_groups
    }
    assert found == {name: f"nnnorm.cli.{module}" for name, (module, _) in COMMANDS.items()}
    assert max(len(line) for _, line in COMMANDS.values()) <= 80 - len("  reproduce  ")


ROOMS = ("io", "scoring", "means", "copies", "signals", "suspects", "popularity", "bias", "bank")
ROOMS += ("roles", "foreign", "methods", "ranking", "augmentation", "corrector", "study", "report")
# Who may import whom, room by room: a line may use the lines above it, and no optional room another
# one unless it says so here.
MAY_IMPORT = {
    "version": set(),
    "errors": set(),
    "io": {"errors"},
    "scoring": {"errors", "io"},
    "means": {"errors", "io", "scoring"},
    "copies": {"errors", "io", "scoring"},
    "signals": {"errors", "io", "scoring", "copies"},
    "suspects": {"errors", "io", "signals"},
    "popularity": {"errors"},
    "bias": {"version", "errors", "io", "popularity"},
    "bank": {"version", "errors", "io", "copies"},
    "roles": {"errors", "io", "copies"},
    "foreign": {"errors", "io", "copies"},
    "methods": {"errors", "io", "scoring", "means", "copies", "bias", "bank", "roles"},
    "ranking": {"errors", "io", "scoring", "bias", "methods"},
    "augmentation": {"errors", "io", "bias"},
    "corrector": {
        *("errors", "io", "scoring", "means", "copies", "bias", "bank", "roles", "foreign"),
        *("methods", "ranking", "augmentation", "signals", "suspects", "popularity"),
    },
    "study": {
        *("errors", "io", "scoring", "copies", "popularity", "bias", "bank", "roles", "foreign"),
        *("methods", "ranking", "corrector", "signals", "suspects"),
    },
    "report": {"errors", "io", "copies", "methods", "study", "suspects"},
    "index": {
        *("version", "errors", "io", "scoring", "bias", "bank", "methods", "ranking"),
        *("augmentation", "corrector", "popularity"),
    },
    "encoders": {"version", "errors", "io", "scoring"},
    "datasets": {"errors", "io", "scoring"},
    "integrations": {"errors", "bias", "ranking", "corrector"},
    "cluster": {"errors", "io", "scoring", "means", "copies", "bias", "bank", "roles", "methods"},
    "reproduce": {"version", "errors", *ROOMS, "datasets", "encoders"},
    "demo": {"errors", *ROOMS, "datasets"},
    "explore": {"version", "errors", *ROOMS, "index", "encoders", "datasets"},
    "cli": {
        *("version", "errors", *ROOMS, "index", "encoders", "datasets", "reproduce", "demo"),
        *("explore", "cluster"),
    },
    "__main__": {"cli"},
    "__init__": {"version", "errors", *ROOMS, "index", "datasets"},
}


def room_of(path, source=SOURCE):
    return path.relative_to(source).with_suffix("").parts[0]


def imports_of(path):
    """Dotted names below `nnnorm` that a file imports, or names in a string."""
    for node in ast.walk(read_tree(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = [node.module or ""]
            if names == ["nnnorm"]:
                names = [f"nnnorm.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(r"nnnorm(\.[a-z_]+)+", node.value) else []
        for name in names:
            package, _, below = name.partition(".")
            if package == "nnnorm" and below:
                yield below


def wrong_imports(source):
    """What breaks the table: upstairs, sideways, or past a room's door."""
    for path in source.rglob("*.py"):
        room = room_of(path, source)
        for name in imports_of(path):
            asked, _, inside = name.partition(".")
            if not (source / asked).is_dir() and not (source / f"{asked}.py").exists():
                asked, inside = "__init__", ""  # a public name of the package itself
            if asked == room:
                continue
            if asked not in MAY_IMPORT[room]:
                yield f"{path.relative_to(source)} may not import {name}"
            elif inside and (source / asked / f"{inside.partition('.')[0]}.py").exists():
                yield f"{path.relative_to(source)} goes past the door of {asked}: {name}"


def test_every_file_stands_in_a_room_of_the_table():
    assert {room_of(path) for path in SOURCE.rglob("*.py")} == set(MAY_IMPORT)


def test_rooms_import_only_from_the_rooms_they_may_and_through_their_doors():
    assert sorted(wrong_imports(SOURCE)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from nnnorm.study import tune",
        "import nnnorm.study",
        "import nnnorm.study.tuning as tuning",
        "from nnnorm import study",
        'STORES = {"faiss": "nnnorm.study"}',
        "from nnnorm.errors.deep import x",
    ],
)
def test_this_check_of_imports_can_fail(tmp_path, line):
    for room in ("io", "study"):
        (tmp_path / room).mkdir()
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors" / "deep.py").touch()
    (tmp_path / "io" / "files.py").write_text(line)
    assert len(list(wrong_imports(tmp_path))) == 1


def test_input_is_never_checked_by_assert_nor_refused_by_a_bare_exception():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(read_tree(path)):
            assert not isinstance(node, ast.Assert), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                assert getattr(node.exc.func, "id", "") != "Exception", f"{path.name}:{node.lineno}"


# They are subclasses of classes of large libraries, and import them at once.
LOADING = ("integrations.haystack", "integrations.langchain", "integrations.llama_index")


def public_objects():
    for name in nnnorm.__all__:
        yield name, getattr(nnnorm, name)
    for module_info in pkgutil.walk_packages([str(SOURCE)], "nnnorm."):
        short = module_info.name.removeprefix("nnnorm.")
        if short.startswith(("cli", "__main__", "version", *LOADING)):
            continue
        module = importlib.import_module(module_info.name)
        for name, thing in vars(module).items():
            is_own = getattr(thing, "__module__", "") == module.__name__
            if is_own and inspect.isfunction(thing) and not name.startswith("_"):
                yield f"{short}.{name}", thing


def test_every_public_name_is_documented_and_every_function_has_an_example():
    missing = []
    for name, thing in public_objects():
        if not inspect.getdoc(thing):
            missing.append(f"{name} has no docstring")
        elif inspect.isfunction(thing) and ">>>" not in thing.__doc__:
            missing.append(f"{name} has no example")
        if inspect.isfunction(thing) and "return" not in thing.__annotations__:
            missing.append(f"{name} has no return type")
    assert missing == []


def test_every_module_says_what_it_does():
    for path in SOURCE.rglob("*.py"):
        doc = ast.get_docstring(read_tree(path))
        assert doc, path.name


def test_contributing_lists_every_file_and_the_readme_every_room():
    contributing, readme = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "README.md")
    )
    for path in SOURCE.rglob("*.py"):
        if not path.stem.startswith("__"):
            name = path.relative_to(SOURCE).as_posix()
            assert f"`{name}`" in contributing, f"CONTRIBUTING lists no {name}"
            assert f"`{room_of(path)}`" in readme, f"README shows no {room_of(path)}"


@pytest.mark.slow
def test_peak_memory_stays_near_the_budget(tmp_path):
    """100,000 x 256 mapped float16 against 10,000 references, 512 MB allowed; all scores have 4 GB.

    In a process of its own, with two threads everywhere: BLAS has memory of its own per thread.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, str(ROOT / "benchmarks/memory.py"), "--json", "memory.json"]
    command += ["--n-gallery", "100000", "--n-references", "10000"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | threads, capture_output=True, check=True)
    assert json.loads((tmp_path / "memory.json").read_text())["peak_extra_mb"] < 700
