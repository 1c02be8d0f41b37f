"""What holds for the package as a whole: imports, layers, docstrings, the frame."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import nnnorm

SOURCE = Path(nnnorm.__file__).parent
ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "pyarrow", "faiss", "pandas", "scipy", "matplotlib", "rich", "typer"}
HEAVY |= {"transformers", "sentence_transformers", "tokenizers", "PIL", "soundfile"}
HEAVY |= {"hnswlib", "usearch", "duckdb", "sqlite_vec"}
HEAVY |= {"qdrant_client", "qdrant_edge", "psycopg", "lancedb", "chromadb", "pymilvus"}

# A module may import from the layers above its own, never from its own line's neighbours below.
LAYERS = [
    {"errors"},
    {"files", "parquet"},
    {"sources", "threads"},
    {"embeddings", "reducers"},
    {"scores"},
    {"topk", "heads", "order"},
    {"codes", "lists"},
    {"screen"},
    {"screen_plan"},
    {"automatic", "transport", "bias", "approximate", "engine_torch", "engine_faiss"},
    {"engines"},
    {"methods", "search", "augment", "truth"},
    {"__init__"},
    {"metrics", "hubness", "bootstrap", "sweep", "grids", "splits", "groups"},
    {"gated", "diagnose", "audit"},
    {"tune"},
    {"compare"},
    {"report", "plots"},
    {"audit_report"},
    {"datasets.scenes", "datasets.sheet", "datasets.pairs", "datasets.pictures"},
    {"datasets.captions", "datasets.table", "datasets.karpathy", "datasets.coco"},
    {"datasets.shapes", "datasets.clip_retrieval", "datasets.visogender", "datasets.protocol"},
    {"datasets"},
    {"encoders.images", "encoders.sounds", "encoders.weights", "encoders.inputs"},
    {"encoders.encoder", "encoders.layers"},
    {"encoders.huggingface", "encoders.sentences", "encoders.openclip"},
    {"encoders.albef", "encoders.beit3", "encoders.blip_matching", "encoders.shards"},
    {"encoders.load"},
    {"encoders"},
    {"reproduce.paper", "reproduce.runtime"},
    {"reproduce.material"},
    {"reproduce.standins", "reproduce.run"},
    {"reproduce.tables"},
    {"reproduce.encode"},
    {"reproduce"},
    {"demo"},
    {"demo_story"},
    {"index.protocol"},
    {"index.local", "index.points", "index.recipe", "index.urls"},
    {"index.ranking", "index.fill"},
    {"index.corrected"},
    {"index.export", "index.verify"},
    {"index.faiss", "index.hnswlib", "index.usearch", "index.duckdb", "index.sqlite_vec"},
    {"index.qdrant", "index.qdrant_edge", "index.pgvector", "index.payloads"},
    {"index.lancedb", "index.chroma", "index.milvus"},
    {"index"},
    {"cli_shared"},
    {"cli_study", "cli_encode", "cli_index"},
    {"cli_audit", "cli_reproduce"},
    {"cli"},
    {"__main__"},
]
# `bias` asks for the version.
ALLOWED = {("bias", "__init__")}


def modules_after(code):
    code = f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_nnnorm_loads_numpy_and_nothing_heavier():
    loaded = modules_after("import nnnorm")
    assert "numpy" in loaded
    assert not loaded & (HEAVY | {"safetensors"})


def test_this_check_of_heavy_imports_can_fail():
    assert "rich" in modules_after("import nnnorm, rich")


def test_help_loads_no_optional_library():
    code = "sys.argv = ['nnnorm', '--help']\nfrom nnnorm.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass"
    assert not modules_after(code) & (HEAVY - {"typer", "rich"})


def name_of(path):
    """`datasets.scenes` for datasets/scenes.py, `datasets` for datasets/__init__.py."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imports_of(path):
    known = {name_of(other) for other in SOURCE.rglob("*.py")}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            package, _, module = node.module.partition(".")
            if package == "nnnorm":
                inside = f"{module}." if module else ""
                names = {f"{inside}{alias.name}" for alias in node.names}
                yield from (name if name in known else module or "__init__" for name in names)


def test_modules_import_only_from_the_layers_above_them():
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    for path in SOURCE.rglob("*.py"):
        name = name_of(path)
        assert name in level, f"{name} is in no layer"
        for imported in imports_of(path):
            if (name, imported) in ALLOWED:
                continue
            assert level[imported] < level[name], f"{name} may not import {imported}"


def test_input_is_never_checked_by_assert_nor_refused_by_a_bare_exception():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Assert), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                assert getattr(node.exc.func, "id", "") != "Exception", f"{path.name}:{node.lineno}"


def public_objects():
    for name in nnnorm.__all__:
        yield name, getattr(nnnorm, name)
    for module_info in pkgutil.walk_packages([str(SOURCE)], "nnnorm."):
        short = module_info.name.removeprefix("nnnorm.")
        if short.startswith(("cli", "__main__")):
            continue
        module = importlib.import_module(module_info.name)
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                yield f"{short}.{name}", thing


@pytest.mark.parametrize(
    ("name", "thing"), [pytest.param(*pair, id=pair[0]) for pair in public_objects()]
)
def test_every_public_name_is_documented_and_every_function_has_an_example(name, thing):
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        assert ">>>" in thing.__doc__, f"{name} has no example"
        assert "return" in thing.__annotations__, f"{name} has no return type"


def test_every_module_says_what_it_does():
    for path in SOURCE.rglob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, path.name


def test_the_readme_maps_every_module():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in SOURCE.rglob("*.py"):
        if not path.stem.startswith("__"):
            name = path.relative_to(SOURCE).as_posix()
            assert f"`{name}`" in readme, f"README's map has no {name}"


@pytest.mark.slow
def test_peak_memory_stays_near_the_budget():
    """200,000 x 256 mapped float16 against 20,000 references, 512 MB allowed."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        memory = importlib.import_module("memory")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    assert memory.measure(200_000, 20_000, 256, 512)["peak_extra_mb"] < 700
