"""The package as a whole: imports, layers, docstrings, packaging."""

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nnnorm
from nnnorm.cli.app import COMMANDS, app, load_commands
from tests.source import read_tree

SOURCE = Path(nnnorm.__file__).parent
ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "pyarrow", "faiss", "pandas", "scipy", "matplotlib", "rich", "typer"}
HEAVY |= {"transformers", "sentence_transformers", "tokenizers", "PIL", "soundfile"}
HEAVY |= {"hnswlib", "usearch", "duckdb", "sqlite_vec"}
HEAVY |= {"qdrant_client", "psycopg", "lancedb", "chromadb", "pymilvus"}
HEAVY |= {"starlette", "uvicorn", "ray", "fsspec"}
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


def test_importing_nnnorm_loads_none_of_its_modules():
    code = "import nnnorm, sys\nprint(*(m for m in sys.modules if m.startswith('nnnorm.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_is_found_once_and_listed():
    assert sorted(nnnorm._MODULE_OF) == sorted([*nnnorm.__all__, "__version__"])
    assert dir(nnnorm) == nnnorm.__all__
    for name in nnnorm.__all__:
        assert getattr(nnnorm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        nnnorm.serach  # noqa: B018


def test_no_module_has_the_name_of_a_public_function():
    functions = {name for name in nnnorm.__all__ if inspect.isfunction(getattr(nnnorm, name))}
    modules = [path for path in SOURCE.rglob("*.py") if "cli" not in path.parts]
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
    light = {f"nnnorm.{name}" for name in ("commands", "errors", "version")}
    assert {name for name in loaded if name.startswith("nnnorm.")} == light


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
    assert max(len(line) for _, line in COMMANDS.values()) <= 80 - len("  evaluate  ")


# Imports go up this list only: a line may import the lines above it.
LAYERS = [
    "version errors commands",
    "files",
    "arrays",
    "embeddings tables",
    "scoring",
    "solvers softmax",
    "dedup",
    "bias",
    "bank input_checks calibration",
    "methods",
    "documents",
    "ranking augmentation",
    "corrector",
    "evaluation datasets encoders integrations",
    "report index distributed",
    "demo explore",
    "cli",
    "__main__ __init__",
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}


def imports_of(path):
    """Names below `nnnorm` that a file imports."""
    for node in ast.walk(read_tree(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name.split(".")[1] for name in names if name.startswith("nnnorm."))


def wrong_imports(source):
    for path in source.rglob("*.py"):
        own = path.relative_to(source).with_suffix("").parts[0]
        for name in imports_of(path):
            if name != own and LEVEL[name] >= LEVEL[own]:
                yield f"{path.relative_to(source)} imports {name}"


def test_imports_go_up_the_list_of_layers():
    assert sorted(wrong_imports(SOURCE)) == []


def test_this_check_of_imports_can_fail(tmp_path):
    (tmp_path / "errors.py").write_text("from nnnorm.evaluation.tuning import tune")
    assert list(wrong_imports(tmp_path)) == ["errors.py imports evaluation"]


def test_input_is_never_checked_by_assert_nor_rejected_by_a_bare_exception():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(read_tree(path)):
            assert not isinstance(node, ast.Assert), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                assert getattr(node.exc.func, "id", "") != "Exception", f"{path.name}:{node.lineno}"


def test_every_public_name_is_documented_and_every_function_has_an_example_and_types():
    missing = []
    for name in nnnorm.__all__:
        thing = getattr(nnnorm, name)
        if not inspect.getdoc(thing):
            missing.append(f"{name} has no docstring")
        elif inspect.isfunction(thing) and ">>>" not in thing.__doc__:
            missing.append(f"{name} has no example")
        if inspect.isfunction(thing) and "return" not in thing.__annotations__:
            missing.append(f"{name} has no return type")
    assert missing == []


@pytest.mark.slow
def test_peak_memory_stays_near_the_budget(tmp_path):
    """50,000 x 256 mapped float16 against 10,000 references, 512 MB allowed; all scores have 2 GB.

    In a process of its own, with two threads everywhere: BLAS has memory of its own per thread.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    threads = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, str(ROOT / "benchmarks/memory.py"), "--json", "memory.json"]
    command += ["--n-gallery", "50000", "--n-references", "10000"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | threads, capture_output=True, check=True)
    assert json.loads((tmp_path / "memory.json").read_text())["peak_extra_mb"] < 700
