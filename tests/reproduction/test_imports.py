"""`reproduction/` uses only public names of nnnorm."""

import re
from pathlib import Path

import reproduction

FOLDER = Path(reproduction.__file__).parent
PRIVATE = re.compile(r"^\s*(from|import) nnnorm(\.\w+\.|\S* import .*\b_)", re.MULTILINE)


def test_files_import_from_the_top_of_nnnorm_and_its_parts_alone():
    for path in FOLDER.rglob("*.py"):
        assert not PRIVATE.search(path.read_text(encoding="utf-8")), path.name
    assert PRIVATE.search("    from nnnorm.evaluation.tuning import tune")
    assert PRIVATE.search("from nnnorm.files import make_folder, _remove_strays")


def test_it_is_not_in_the_wheel():
    text = (FOLDER.parent / "pyproject.toml").read_text()
    assert 'packages = ["src/nnnorm"]' in text
