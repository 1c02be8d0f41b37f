"""`reproduction/` uses public names of nnnorm only: they suffice for the whole paper."""

import ast
import importlib
from pathlib import Path

import pytest

import nnnorm
import reproduction
from tests.source import read_tree

# Modules for anyone who reads and writes files as nnnorm does.
PUBLIC_MODULES = (
    "nnnorm.embeddings",
    "nnnorm.errors",
    "nnnorm.files",
    "nnnorm.ranking",
    "nnnorm.tables",
)
FILES = sorted(Path(reproduction.__file__).parent.rglob("*.py"))


def private_imports(tree):
    """Names of nnnorm that are neither at its top nor at the top of a subpackage."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.startswith("nnnorm."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nnnorm":
            package = importlib.import_module(node.module)
            for alias in node.names:
                is_open = hasattr(package, "__path__") or node.module in PUBLIC_MODULES
                public = is_open and not alias.name.startswith("_")
                if node.module == "nnnorm" and alias.name not in nnnorm.__all__:
                    public = (Path(nnnorm.__file__).parent / alias.name).is_dir()
                if not public or node.module.count(".") > 1:
                    yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_imports_public_names_only(path):
    assert list(private_imports(read_tree(path))) == []


def test_this_check_can_fail():
    assert list(private_imports(ast.parse("from nnnorm.evaluation.tuning import tune")))


def test_it_is_not_in_the_wheel():
    text = (Path(reproduction.__file__).parents[1] / "pyproject.toml").read_text()
    assert 'packages = ["src/nnnorm"]' in text
